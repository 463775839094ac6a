"""`fluidq tune`: an autoscaler's parameters by gradient, judged on its hard law, with a certificate."""

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fluidq._errors import refuse
from fluidq.commands._case import overrides
from fluidq.commands._common import folder, show, write_json

HELP = "Tune an autoscaler by gradient, and say whether the result holds."
EPILOG = "example: fluidq tune --trace AzureLLMInferenceTrace_conv.csv --out result --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", help="TOML: deployment, fleet, workload, policy, objective, tune, parameters")
    add("--policy", metavar="NAME|FILE", help="a law of `fluidq compare`, or a product's file; default: the thresholds")
    add("--trace", metavar="FILE", help="a recorded load, see `fluidq inspect`; plain, gzip or zstd")
    add("--seed", type=int, metavar="N", help="of the embedded workload, the starts and the unseen draws")
    add("--resume", action="store_true", help="go on from the checkpoint that an interrupted run left in --out")
    add("--no-bound", action="store_true", help="leave the clairvoyant bound out of the certificate")
    add("--no-replay", action="store_true", help="leave the sample of single requests out of the certificate")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where the certificate does not hold; raises InputError for a flag that cannot be."""
    from fluidq.certificate import certify
    from fluidq.report import tune_text  # heavy imports wait until they are needed, so that --help is quick
    from fluidq.scenario import build_case
    from fluidq.tune import tune

    if args.resume and args.out is None:
        raise refuse("--resume", "given", "together with the --out of the run that was interrupted")
    out = folder(args.out)
    over = overrides(args, seeded=("workload", "tune"))
    if args.policy is not None:
        over.setdefault("policy", {})["law"] = args.policy
    case = build_case(over, checked=True)
    quiet: dict[str, Any] = {"progress": not args.json}
    files: dict[str, Any] = {"checkpoint": out / "tune.checkpoint", "log": out / "tune.log.jsonl"} if out else {}
    given = (case.fleet, case.workload, case.policy, case.objective, case.settings)
    asked: dict[str, Any] = {"replay": 0} if args.no_replay else {}
    with ThreadPoolExecutor(1) as pool:  # the bound needs no result: it is found beside the search
        least = None if args.no_bound else pool.submit(_bound, case)
        result = tune(*given, moves=case.moves, also=case.also, resume=args.resume, **files, **quiet)
        result.certificate = certify(result, bound=False if least is None else least.result(), **asked, **quiet)
    data = {**result.to_dict(), "workload": case.workload_dict(), "phi": case.phi, "notes": case.notes}
    if out:
        from fluidq.report import tune_figures

        write_json(out / "tune.json", data)
        tune_figures(case, result, out)
    show(args, data, lambda: tune_text(case, result, args.out))
    return 0 if result.certificate.verdict == "holds" else 1


def _bound(case: Any) -> float | bool:
    """The clairvoyant bound over all workloads; True where it cannot be: the certificate then says why."""
    from fluidq._errors import InputError
    from fluidq.clairvoyant import clairvoyant

    try:
        every = (case.workload, *case.also)
        return sum(clairvoyant(case.fleet, load, case.objective, progress=False).value for load in every)
    except InputError:
        return True
