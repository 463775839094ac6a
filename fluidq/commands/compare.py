"""`fluidq compare`: every law on the same day, in its hard form."""

import argparse

from fluidq.commands._case import overrides, policy_of
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
    add("--no-bound", action="store_true", help="leave out the clairvoyant bound, the least that any policy could cost")
    add("--list", action="store_true", help="name every law")
    add("--seed", type=int, metavar="N", help="of the embedded workload")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for an unknown law and for a law, trace or scenario that cannot be."""
    from fluidq.laws import LAWS

    if args.list:
        rows = [{"policy": name, "what": law.words} for name, law in LAWS.items()]
        show(args, rows, lambda: "\n".join(f"{row['policy']:<20} {row['what']}" for row in rows))
        return 0

    from fluidq import plot
    from fluidq.compare import compare
    from fluidq.scenario import build_case

    out = folder(args.out)
    case = build_case(overrides(args), checked=True)
    names = list(LAWS) if args.policies is None else [name.strip() for name in args.policies.split(",") if name.strip()]
    chosen, said = {}, []
    for name in names:
        chosen[name], file = policy_of(name, case, args.pool)
        if file is not None:
            said += [f"{name}: {note}" for note in file.notes]
            said += [f"{name}: not represented: {part}" for part in file.unrepresented]
    result = compare(case.fleet, case.workload, chosen, case.objective, bound=not args.no_bound, progress=not args.json)
    data = {**result.to_dict(), "workload": case.workload_dict(), "phi": case.phi, "notes": [*case.notes, *said]}
    if out:
        write_json(out / "compare.json", data)
        plot.save(plot.comparison(result, case.fleet, case.objective), out / "compare.png")
    show(args, data, lambda: "\n".join([*case.notes, *said, "", str(result)]))
    return 0
