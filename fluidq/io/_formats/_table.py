"""A CSV table read line by line: names once, cells as text, and a reason for each line that does not fit."""

import math
import re
from collections.abc import Iterable, Iterator

from fluidq._errors import InputError
from fluidq.io._files import short
from fluidq.io._formats._rows import BadRow, bad
from fluidq.io._formats.csv_requests import cells
from fluidq.workload import Number

MOST_COLUMNS = 10_000
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def header_of(line: str) -> list[str]:
    """The column names of a header line, without spaces and quotes around them."""
    return [name.strip().strip('"').strip() for name in cells(line)]


def check_header(file: str, line: int, names: list[str]) -> None:
    """Raises `InputError` for a name given twice, too many columns or cells that are no names."""
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{file}, line {line}: {len(names):,} columns; a table has at most {MOST_COLUMNS:,}.")
    named = [name.lower() for name in names if name]
    twice = next((name for name in named if named.count(name) > 1), None) if len(set(named)) < len(named) else None
    if twice is not None:
        raise InputError(f"{file}, line {line}: the column {short(twice)} is given twice; name each column once.")


def body(names: list[str], blocks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[str] | BadRow]]:
    """(line, cells or the reason against them) of each filled line after the header."""
    header = [name.lower() for name in names]
    for number, block in blocks:
        for offset, raw in enumerate(block.split(b"\n")):
            if not raw or raw.isspace():
                continue
            try:
                parts = [part.strip() for part in cells(raw.decode("utf-8"))]
            except UnicodeDecodeError as error:
                yield number + offset, BadRow(f"byte {error.start + 1} of the line is no UTF-8.")
                continue
            if [part.lower() for part in parts] == header:
                yield number + offset, BadRow("the row repeats the header.")
            elif len(parts) != len(names):
                more = "" if len(parts) < len(names) else ", without commas in a number"
                yield (
                    number + offset,
                    BadRow(f"the row has {len(parts)} fields; it must have {len(names)}{more}."),
                )
            else:
                yield number + offset, parts


def number(name: str, text: str, least: Number = -math.inf, most: Number = math.inf, blank: bool = True) -> float:
    """A finite number from a cell, from `least` to `most`; NaN for an empty one where `blank` ones are allowed.

    Raises `BadRow`. Only plain decimals: no underscores, no digits of other scripts, no NaN or infinity as text.
    """
    if not text and blank:
        return math.nan
    value = float(text) if len(text) < 60 and NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value) or not least <= value <= most:
        bounds = f" from {least:g} to {most:g}" if math.isfinite(most) else f" >= {least:g}" if least > -1e300 else ""
        raise bad(name, text, f"a finite number{bounds}")
    return value
