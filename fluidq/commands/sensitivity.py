"""`fluidq sensitivity`: what a second of cold start, a GB of buffer, a Gb/s of NIC is worth in GPU-hours per day."""

import argparse
from typing import Any

from fluidq._errors import refuse
from fluidq.commands._case import overrides, policy_of
from fluidq.commands._common import folder, show, write_json

HELP = "Shadow prices: what a unit more of each resource saves, in GPU-hours per day."
EPILOG = "example: fluidq sensitivity --tune --envelope cold_start prefill_rate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", help="TOML: deployment, fleet, workload, policy, objective, tune")
    add("--trace", metavar="FILE", help="a recorded load, see `fluidq inspect`")
    add("--seed", type=int, metavar="N", help="of the embedded workload and of the draws")
    add(
        "--policy",
        metavar="NAME|FILE",
        default="thresholds",
        help="a law of `fluidq compare --list` or a policy file; default: the scenario's thresholds as given",
    )
    add("--tune", action="store_true", help="tune the policy first, as `fluidq tune` does")
    add("--quantities", nargs="+", metavar="NAME", help="which prices; default: all that the scenario limits")
    add(
        "--envelope",
        nargs="*",
        metavar="NAME",
        help="re-tune at both ends of these prices (without names: of all) and compare; two searches each",
    )
    add("--width", type=float, metavar="W", default=0.3, help="of the relaxed law that has the gradient; default 0.3")
    add("--realisations", type=int, metavar="N", default=8, help="draws beside the given load; default 8")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where the envelope check says no; raises InputError for a flag that cannot be."""
    from fluidq.scenario import build_case
    from fluidq.sensitivity import sensitivity

    out = folder(args.out)
    case = build_case(overrides(args, seeded=("workload", "tune")), checked=True)
    policy, file = policy_of(args.policy, case)
    lines, tuned = [*case.notes, *([] if file is None else str(file).splitlines())], None
    if (args.tune or args.envelope is not None) and not policy.TUNABLE:
        flag = "--tune" if args.tune else "--envelope"
        raise refuse(flag, args.policy, "left out with a policy that has nothing to tune")
    if args.tune:
        from fluidq.tune import tune

        result = tune(case.fleet, case.workload, policy, case.objective, case.settings, progress=not args.json)
        policy, tuned = result.after, {"before": result.hard_before, "after": result.hard_after}
        before, after = result.hard_before["cost"], result.hard_after["cost"]
        lines.append(f"tuned: hard cost {before:.5g} -> {after:.5g} GPU-hours over the load")
    prices = sensitivity(
        case.fleet,
        case.workload,
        policy,
        case.objective,
        quantities=args.quantities,
        envelope=False if args.envelope is None else args.envelope or True,
        width=args.width,
        realisations=args.realisations,
        seed=args.seed or 0,
        progress=not args.json,
    )
    data: dict[str, Any] = {"policy": args.policy, "parameters": _numbers(policy), "tuned": tuned, **prices.to_dict()}
    data |= {"workload": case.workload_dict(), "notes": case.notes}
    if out:
        write_json(out / "sensitivity.json", data)
    show(args, data, lambda: "\n".join([*lines, *([""] if lines else []), str(prices)]))
    return 1 if prices.at_optimum is False else 0


def _numbers(policy: Any) -> dict[str, float]:
    """The policy's tunable numbers by name, dotted for a law per pool; those that it leaves open are left out."""
    given = {name: _at(policy, name.split(".")) for name in policy.TUNABLE}
    return {name: float(value) for name, value in given.items() if value is not None}


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        value = getattr(value, name, None)
    return value
