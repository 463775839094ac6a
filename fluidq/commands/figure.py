"""`fluidq figure`: figures by name."""

import argparse
from typing import Any

from fluidq.commands._common import folder, show

HELP = "Draw a figure by name; without a name, list them."
EPILOG = "example: fluidq figure shock-map --capacity 150GB --stock 75GB --tau-max 1800s --out figures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add("name", nargs="?", help="e.g. shock-map")
    add("--list", action="store_true", help="name every figure")
    add("--format", default="png", choices=("png", "pdf", "svg"))
    add("--capacity", metavar="SIZE", help="C (shock-map; default 150GB)")
    add("--stock", metavar="SIZE", help="Q0 (shock-map; default half of C)")
    add("--flow", metavar="RATE", help="P (shock-map; default 5.34GB/s)")
    add("--tau-max", metavar="TIME", help="largest cold start (shock-map; default 1800s)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; raises InputError for a flag that cannot be."""
    from fluidq import figures
    from fluidq.units import parse

    if args.name is None or args.list:
        listing = figures.listing()
        show(
            args,
            listing,
            lambda: "\n".join(f"{f['name']:<14} worst error {f['worst_error']:.1e}  {f['source']}" for f in listing),
        )
        return 0
    given: dict[str, Any] = {}
    for flag, name, dimension in (
        ("capacity", "C", "bytes"),
        ("stock", "Q0", "bytes"),
        ("flow", "P", "bytes/s"),
        ("tau_max", "tau_max", "seconds"),
    ):
        if getattr(args, flag) is not None:
            given[name] = parse(getattr(args, flag), dimension, f"--{flag.replace('_', '-')}", minimum=0.0)
    out = folder(args.out or ".")
    assert out is not None
    path = out / f"{args.name}.{args.format}"
    built = figures.build(args.name, path, **given)
    show(args, {**built, "file": str(path)}, lambda: f"{path}: worst error {built['worst_error']:.1e}")
    return 0
