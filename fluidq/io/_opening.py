"""The first lines of a file, by which its format is told, without losing them for the reader that follows."""

import itertools
from collections.abc import Iterator

from fluidq._errors import InputError
from fluidq.io._files import BadJson, line_blocks, loads

PEEK = 20  # filled lines that decide on the format
CUT = "the last line has no line end: if the file was cut off there, its last number is short"


class Opening(list):
    """The first blocks of a file, already taken, and `rest`, the iterator over the others.

    `cut`, once all are read: the last line had no line end.
    """

    rest: Iterator[tuple[int, bytes]]
    cut: bool = False


def opening(file: str, remedy: str) -> tuple[int, str, Opening]:
    """The first filled line of a file (number, text) and its blocks; raises `InputError` for one without any."""
    source = line_blocks(file)
    taken = Opening()
    taken.rest = source
    found: tuple[int, str] | None = None
    filled = 0
    for number, block in source:
        if not found and block.isspace():
            continue  # any number of blank lines may come first: none is kept
        taken.append((number, block))
        for offset, line in enumerate(block.split(b"\n")):
            if line and not line.isspace():
                filled += 1
                found = found or (number + offset, line.decode("utf-8", "replace"))
                if filled == PEEK:
                    return *found, taken
        if found and len(taken) > 2:
            break
    if found is None:
        raise InputError(f"{file} is empty; it must be {remedy}.")
    return *found, taken


def chain(blocks: Opening) -> Iterator[tuple[int, bytes]]:
    """All blocks of the file."""
    for number, block in itertools.chain(blocks, blocks.rest):
        blocks.cut = not block.endswith(b"\n")
        yield number, block


def after(line: int, blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The blocks without what stands up to and in `line`."""
    for number, block in blocks:
        if number <= line:
            skip = line - number + 1
            at = -1
            for _ in range(skip):
                at = block.find(b"\n", at + 1)
                if at < 0:
                    break
            if at < 0:
                continue
            number, block = line + 1, block[at + 1 :]
        if block:
            yield number, block


def records(blocks: Opening) -> list[object]:
    """The JSON values among the first filled lines of a file, and {} for a line that only begins like one."""
    found: list[object] = []
    lines = (line for _, block in blocks for line in block.split(b"\n") if line and not line.isspace())
    for line in itertools.islice(lines, PEEK):
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found.append(loads(line.decode("utf-8", "replace")))
        except BadJson:
            found.append({})
    return found
