"""`fluidq sweep`: every run of a design, on every device and host, into Parquet."""

import argparse

from fluidq._errors import refuse
from fluidq.commands._common import show

HELP = "Run policies over ranges of parameters, loads and hardware, on every device and host, into Parquet."
EPILOG = (
    "example: fluidq sweep --vary policy.decode_up=0.7:1.3:7 --vary fleet.cold_start=30s,88s,300s "
    "--random 1000 --seed 0 --out sweep.parquet --json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", help="TOML or YAML: what stays as it is")
    add("--trace", metavar="FILE", help="a recorded load, see `fluidq inspect`; default: the embedded day")
    add(
        "--vary",
        metavar="KEY=WHAT",
        action="append",
        default=[],
        help="LOW:HIGH:COUNT, LOW:HIGH with --random, :log at the end, or VALUE,VALUE; repeat for more (see --list)",
    )
    add(
        "--policy",
        metavar="NAMES",
        default="thresholds",
        help="laws, separated by commas (see `fluidq compare --list`)",
    )
    add("--random", type=int, metavar="N", help="N draws instead of every combination")
    add("--method", metavar="HOW", default="random", help="of the draws: random, sobol or latin")
    add("--seed", type=int, default=0, metavar="N", help="of the draws; the load's is workload.seed")
    add("--list", action="store_true", help="name everything that can be varied")
    add("--block", type=int, metavar="N", help="runs per vectorised call")
    add("--chunk", type=int, metavar="N", help="runs per part file")
    add("--coordinator", metavar="HOST:PORT", help="process 0 of several; the same command on each, with --process")
    add("--processes", type=int, metavar="N", help="how many processes")
    add("--process", type=int, metavar="I", help="which one this is, from 0")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for a flag that cannot be, and for a folder of another design."""
    from fluidq._sweep_hosts import join
    from fluidq.commands._case import overrides

    join(args.coordinator, args.processes, args.process)  # before anything is computed
    from fluidq.study import CHUNK, names, study

    over = overrides(args, seeded=())  # the seed is the draws', the load has its own
    if args.list:
        kinds = names(over, args.policy, checked=True)
        show(args, kinds, lambda: "\n".join(f"{name:<44} {kind}" for name, kind in kinds.items()))
        return 0
    if not args.vary and args.policy == "thresholds":
        raise refuse(
            "--vary", "left out", "given at least once, or --policy with several laws; --list names what there is"
        )
    result = study(
        over,
        args.vary,
        policies=args.policy,
        random=args.random,
        method=args.method,
        seed=args.seed,
        out=args.out,
        block=args.block,
        chunk=CHUNK if args.chunk is None else args.chunk,
        progress=not args.json,
        checked=True,
    )
    if result.process == 0:  # the others have the same table
        show(args, result.to_dict(), lambda: str(result))
    return 0
