"""`fluidq bounds`: buffer and stock that survive a step of the mix, or what a law's own arithmetic allows."""

import argparse
from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.commands._case import overrides, policy_of
from fluidq.commands._common import folder, show, write_json

HELP = "Least buffer and stock for mix steps, and what one step loses; or the limits of a policy."
EPILOG = (
    "example: fluidq bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 88s "
    "--capacity 150GB --stock 75GB --flow 5.34GB/s --delta 2.67GB/s; or: fluidq bounds --policy planner.yaml"
)
_NEEDED = ("delta_up", "delta_down", "cold_start")
_STEP = (*_NEEDED, "capacity", "stock", "flow", "delta")
_LAW = ("scenario", "trace", "pool")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--delta-up", metavar="RATE", help="largest surplus, per prefill GPU")
    add("--delta-down", metavar="RATE", help="largest shortfall, per prefill GPU")
    add("--cold-start", metavar="TIME", help="tau: detection, decision and start")
    add("--capacity", metavar="SIZE", help="C, buffer per prefill GPU")
    add("--stock", metavar="SIZE", help="Q0, what it holds at the step")
    add("--flow", metavar="RATE", help="P, the balanced flow; needed for the loss as a share")
    add("--delta", metavar="RATE", help="one step: > 0 surplus, < 0 shortfall")
    add("--policy", metavar="FILE|NAME", help="a policy file, or a law of `fluidq compare --list`: its limits instead")
    add("--scenario", metavar="FILE", help="with --policy: TOML of the deployment, fleet and workload")
    add("--trace", metavar="FILE", help="with --policy: requests or windows; default: the embedded day")
    add("--pool", metavar="POOL", help="with --policy: prefill or decode, where the file scales one and does not say")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for a flag, a policy or a scenario that cannot be."""
    if args.policy is not None:
        return _policy(args)
    for name in _LAW:
        if getattr(args, name) is not None:
            raise refuse(
                _flag(name), getattr(args, name), "left out without --policy: a step of the mix has its own flags"
            )
    missing = [_flag(name) for name in _NEEDED if getattr(args, name) is None]
    if missing:
        raise InputError(f"the following flags are required: {', '.join(missing)} (or --policy FILE|NAME).")
    return _step(args)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _step(args: argparse.Namespace) -> int:
    from fluidq.sizing import bounds
    from fluidq.units import parse

    out = folder(args.out)

    def given(name: str, dimension: str, minimum: float | None = 0.0) -> Any:
        text = getattr(args, name)
        return None if text is None else parse(text, dimension, _flag(name), minimum)

    result = bounds(
        delta_up=given("delta_up", "bytes/s"),
        delta_down=given("delta_down", "bytes/s"),
        cold_start=given("cold_start", "seconds"),
        capacity=given("capacity", "bytes"),
        stock=given("stock", "bytes"),
        flow=given("flow", "bytes/s"),
        delta=given("delta", "bytes/s", None),
    )
    data = result.to_dict()
    if out:
        write_json(out / "bounds.json", data)
    show(args, data, lambda: str(result))
    return 0


def _policy(args: argparse.Namespace) -> int:
    mixed = [_flag(name) for name in _STEP if getattr(args, name) is not None]
    if mixed:
        raise InputError(
            f"--policy takes its numbers from the law, the fleet and the workload; leave out {', '.join(mixed)}, or "
            "leave out --policy for a step of the mix."
        )
    from fluidq.policies.facts import facts
    from fluidq.scenario import build_case

    out = folder(args.out)
    case = build_case(overrides(args), checked=True)
    data: dict[str, Any] = {"source": args.policy, "format": None, "policy_notes": [], "unrepresented": []}
    lines = [*case.notes]
    policy, file = policy_of(args.policy, case, args.pool)
    if file is not None:
        data |= {"format": file.format, "policy_notes": list(file.notes)}
        data["unrepresented"] = [{"where": w, "value": v, "reason": r} for w, v, r in file.unrepresented]
        lines += str(file).splitlines()
    if args.pool is not None and data["format"] is None:
        raise refuse("--pool", args.pool, "left out with the name of a law: it scales both pools")
    result = facts(policy, case.fleet, case.workload)
    data |= {**result.to_dict(), "workload": case.workload_dict(), "notes": case.notes}
    if out:
        write_json(out / "bounds.json", data)
    show(args, data, lambda: "\n".join([*lines, *([""] if lines else []), str(result)]))
    return 0
