"""`fluidq validate`: the balance and the closed loop against published deployments."""

import argparse
import json

from fluidq._atomic import write_whole
from fluidq.commands._common import folder

HELP = "Check the balance and the predicted request rate on a table of published deployments."
EPILOG = (
    "example: fluidq validate --deployments deployments.csv --out result. Columns are found by name; a row that lacks "
    "one is counted as not used, with the reason. Balance: isl_tok, osl_tok, r_P_tok_per_s_gpu, decode_tok_per_s_gpu "
    "(or B_req_per_gpu, t_step_s, tok_per_step), gpus_per_prefill_worker, n_prefill_workers, gpus_per_decode_worker, "
    "n_decode_workers (or n_P_gpu, n_D_gpu), and where known evidence_class, testable, ratio_selection, "
    "cache_hit_frac, r_P_counts_cached_tok. Leave one out, class B: also sibling_group, spec_decode, concurrency_req, "
    "request_rate_req_per_s, B_req_per_gpu."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument(
        "--deployments",
        required=True,
        metavar="FILE",
        help="CSV, one published operating point per line: lengths, worker counts, rates",
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help="more rows of the same kind for the leave-one-out test to learn from; they are not judged",
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where no row of the file could be judged.

    Raises:
        InputError: a file that cannot be read (file and line), or an output folder that cannot be written.
    """
    from fluidq.validation import validate

    report = validate(args.deployments, args.reference)
    data = report.to_dict()
    out = folder(getattr(args, "out", None))
    if out:
        write_whole(out / "validate.json", json.dumps(data, indent=2, allow_nan=False) + "\n")
    print(json.dumps(data, indent=2, allow_nan=False) if args.json else report)
    judged = data["balance_expected"]["rows"] + data["leave_one_out"]["rows"]
    return 0 if judged else 1
