"""What the verbs share: folders, files that are whole or absent, text for people or JSON for programs."""

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluidq._atomic import write_whole
from fluidq._errors import InputError, refuse


def whole(value: float, flag: str) -> int:
    """A whole number of GPUs, or an error that names the flag."""
    if value != int(value):
        raise refuse(flag, value, "a whole number of GPUs")
    return int(value)


def folder(name: str | None) -> Path | None:
    """The folder of `--out`, made where absent; None where the flag is not given."""
    if name is None:
        return None
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {name!r} cannot be written: it cannot be made a folder: {error.strerror}.") from None
    if not os.access(path, os.W_OK):
        raise InputError(f"--out {name!r} cannot be written to; choose a folder of yours.")
    return path


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all."""
    write_whole(path, json.dumps(plain(data), indent=2) + "\n")


def show(args: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    """Print `data` as JSON where asked for, else the text for people."""
    print(json.dumps(plain(data), indent=2) if args.json else text())


def plain(data: Any) -> Any:
    """JSON has no infinity: it becomes null, as a strict parser wants. A NaN is a defect and is not passed on."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float) and math.isnan(data):
        raise InputError("a result is not a number; please report the input that led to it.")
    if isinstance(data, float) and math.isinf(data):
        return None
    return data
