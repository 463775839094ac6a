"""`fluidq inspect`: what a file is, how many of its rows are usable, and what they hold."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from fluidq._errors import InputError

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
    if getattr(args, "out", None):
        _write(Path(args.out) / "inspect.json", data)
    print(json.dumps(data, indent=2, allow_nan=False) if args.json else found)
    return 0


def _plain(value: Any) -> Any:
    """What is not finite becomes null: JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, data: Any) -> None:
    """Write next to the target and rename, so that an interruption leaves the old file or the new one."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise InputError(f"--out: {path} cannot be written: {error.strerror}.") from None
