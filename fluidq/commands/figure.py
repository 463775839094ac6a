"""`fluidq figure`: figures by name."""

import argparse
from typing import Any

from fluidq._bounds import columns
from fluidq.commands._common import folder, show

HELP = "Draw a figure by name, with its published values and ours; without a name, list them."
EPILOG = "example: fluidq figure shock-map --capacity 150GB --stock 75GB --tau-max 1800s --out figures"

EVIDENCE = {"primary": "", "secondary": " (secondary account)", "own": " (recorded in the theory)"}


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
            lambda: columns([(f["name"], f"worst error {f['worst_error']:.1e}", f["source"]) for f in listing], ""),
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
    show(args, {**built, "file": str(path)}, lambda: _told(str(path), built))
    return 0


def _told(path: str, built: dict[str, Any]) -> str:
    """The file, what to see in it, every published value with ours, and the worst error."""
    rows = [
        (
            mark["verdict"],
            f"{mark['published']:,.6g}",
            f"{mark['ours']:,.6g}",
            f"{mark['gap']:+.2%}" if mark["kind"] == "value" else f"{mark['kind']}, {mark['gap']:+.2%}",
            f"{mark['what']} [{mark['unit']}]{EVIDENCE[mark['evidence']]}{'; ' + mark['note'] if mark['note'] else ''}",
        )
        for mark in built.get("marks", [])
    ]
    table = [columns([("", "published", "ours", "error", ""), *rows], "  ")] if rows else []
    worst = f"worst error {built['worst_error']:.1e}" + (
        f": {built['worst']}" if built.get("worst_error") and "worst" in built else ""
    )
    return "\n".join([f"{path}: {worst}", built["caption"], *table])
