"""`fluidq compare`: every law on the same day, in its hard form."""

import argparse

from fluidq._errors import refuse
from fluidq.commands._common import folder, show, write_json

HELP = "Run every autoscaler on the same workload and fleet, and put them side by side."
EPILOG = "example: fluidq compare --trace AzureLLMInferenceTrace_conv.csv --policies balance,dynamo,hpa --out result"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", help="TOML: deployment, fleet, workload, policy, objective")
    add("--trace", metavar="FILE", help="requests or windows, see `fluidq inspect`; default: the embedded day")
    add("--policies", metavar="NAMES", help="names or policy files, separated by commas (default: all)")
    add("--pool", choices=("prefill", "decode"), help="of a policy file that scales one pool and does not say which")
    add("--list", action="store_true", help="name every law")
    add("--seed", type=int, metavar="N", help="of the embedded workload")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for an unknown law and for a law, trace or scenario that cannot be."""
    from fluidq.laws import LAWS, law

    if args.list:
        rows = [{"policy": name, "what": law.words} for name, law in LAWS.items()]
        show(args, rows, lambda: "\n".join(f"{row['policy']:<20} {row['what']}" for row in rows))
        return 0

    from fluidq import plot
    from fluidq.compare import compare
    from fluidq.scenario import build_case, read_scenario

    out = folder(args.out)
    over = read_scenario(args.scenario)
    if args.trace is not None:
        over.setdefault("workload", {})["trace"] = args.trace
    if args.seed is not None:
        if not 0 <= args.seed < 2**63:
            raise refuse("--seed", args.seed, "an integer from 0 to 2^63 - 1")
        over.setdefault("workload", {})["seed"] = args.seed
    case = build_case(over, checked=True)
    names = list(LAWS) if args.policies is None else [name.strip() for name in args.policies.split(",") if name.strip()]
    chosen = {}
    for name in names:
        if name == "thresholds":
            chosen[name] = case.policy
        elif name in LAWS or not _is_file(name):
            chosen[name] = law(name, case.fleet, case.objective)
        else:
            from fluidq.io.policies import read_policy

            chosen[name] = read_policy(name, fleet=case.fleet, pool=args.pool).policy
    result = compare(case.fleet, case.workload, chosen, case.objective, progress=not args.json)
    data = {**result.to_dict(), "workload": case.workload_dict(), "phi": case.phi, "notes": case.notes}
    if out:
        write_json(out / "compare.json", data)
        plot.save(plot.comparison(result, case.fleet, case.objective), out / "compare.png")
    show(args, data, lambda: "\n".join([*case.notes, "", str(result)]))
    return 0


def _is_file(name: str) -> bool:
    return "." in name or "/" in name
