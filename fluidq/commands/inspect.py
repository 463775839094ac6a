"""`fluidq inspect`: what a file is, how many of its rows are usable, and what they hold."""

import argparse
import json
import math
from typing import Any

from fluidq._atomic import write_whole
from fluidq.commands._common import folder

HELP = "Say what a trace, table, profile or benchmark file is and what it holds."
EPILOG = "example: fluidq inspect AzureLLMInferenceTrace_conv.csv --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("file", metavar="FILE", help="CSV, JSON, JSON lines or npz; plain, gzip or zstd")
    parser.add_argument(
        "--window", default="60s", metavar="TIME", help="window of peak/mean for a trace (default %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Print what was found; exit code 0, whether rows were dropped or not: the report says so.

    Raises:
        InputError: a file that cannot be read or is of no known kind (file and line), or a bad `--window` or `--out`.
    """
    from fluidq.io.tables import inspect_file
    from fluidq.units import parse

    window = parse(args.window, "seconds", "--window", above=0.0)
    found = inspect_file(args.file, window)
    data = _plain(found.to_dict())
    out = folder(getattr(args, "out", None))
    if out:
        write_whole(out / "inspect.json", json.dumps(data, indent=2, allow_nan=False) + "\n")
    print(json.dumps(data, indent=2, allow_nan=False) if args.json else found)
    return 0


def _plain(value: Any) -> Any:
    """What is not finite becomes null: JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
