"""`fluidq tune`: thresholds and pool ratio by gradient, judged on the hard law."""

import argparse

from fluidq.commands._case import overrides
from fluidq.commands._common import folder, show, write_json

HELP = "Tune the thresholds and the pool ratio of an autoscaler by gradient."
EPILOG = "example: fluidq tune --trace AzureLLMInferenceTrace_conv.csv --out result --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", help="TOML: deployment, fleet, workload, policy, objective, tune")
    add("--trace", metavar="FILE", help="a recorded load, see `fluidq inspect`; plain, gzip or zstd")
    add("--seed", type=int, metavar="N", help="of the embedded workload, the starts and the unseen draws")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where nothing better was found; raises InputError for a flag that cannot be."""
    from fluidq.report import tune_text  # heavy imports wait until they are needed, so that --help is quick
    from fluidq.scenario import build_case
    from fluidq.tune import tune

    out = folder(args.out)
    case = build_case(overrides(args, seeded=("workload", "tune")), checked=True)
    result = tune(case.fleet, case.workload, case.policy, case.objective, case.settings, progress=not args.json)
    data = {**result.to_dict(), "workload": case.workload_dict(), "phi": case.phi, "notes": case.notes}
    if out:
        from fluidq.report import tune_figures

        write_json(out / "tune.json", data)
        tune_figures(case, result, out)
    show(args, data, lambda: tune_text(case, result, args.out))
    return 0 if data["after"]["hard"]["cost"] < data["before"]["hard"]["cost"] else 1
