"""`fluidq bounds`: buffer and stock that survive a step of the mix."""

import argparse
from typing import Any

from fluidq.commands._common import folder, show, write_json

HELP = "Least buffer and stock for mix steps, and what one step loses."
EPILOG = (
    "example: fluidq bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 88s "
    "--capacity 150GB --stock 75GB --flow 5.34GB/s --delta 2.67GB/s"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("--delta-up", required=True, metavar="RATE", help="largest surplus, per prefill GPU")
    add("--delta-down", required=True, metavar="RATE", help="largest shortfall, per prefill GPU")
    add("--cold-start", required=True, metavar="TIME", help="tau: detection, decision and start")
    add("--capacity", metavar="SIZE", help="C, buffer per prefill GPU")
    add("--stock", metavar="SIZE", help="Q0, what it holds at the step")
    add("--flow", metavar="RATE", help="P, the balanced flow; needed for the loss as a share")
    add("--delta", metavar="RATE", help="one step: > 0 surplus, < 0 shortfall")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for a flag that cannot be."""
    from fluidq.sizing import bounds
    from fluidq.units import parse

    out = folder(args.out)

    def given(name: str, dimension: str, minimum: float | None = 0.0) -> Any:
        text = getattr(args, name)
        return None if text is None else parse(text, dimension, f"--{name.replace('_', '-')}", minimum)

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
