"""Mooncake records as whole numbers, a block of lines at a time and without a Python object per row.

Read here are only lines that look like the first one of their block but for the digits: the same keys in the same
order and spacing, whole numbers, `hash_ids` last. Every other line is left to the row-by-row reader. Measured: 0.6 us
a row instead of 3.4 with 2 ids, 3.2 instead of 6.1 with 24.
"""

import re
from typing import NamedTuple

import numpy as np

from fluidq.io._formats._fast import digits

LINE = re.compile(rb'\{(?:"[a-z_]{1,40}":[ ]?\d{1,18},[ ]?){1,8}"hash_ids":[ ]?\[\d{1,18}(?:,[ ]?\d{1,18})*\]\}')
KEY = re.compile(rb'"([a-z_]+)":')
RUN = re.compile(rb"\d+")


class Template(NamedTuple):
    """A line without its digits: `head` up to the list, `gap` between two ids, `tail`; `places` in `head` where the
    numbers of `names` stand.
    """

    names: list[str]
    head: bytes
    gap: bytes
    tail: bytes
    places: list[int]


class Records(NamedTuple):
    """The lines that fit (their indices in the block), the values of each key and the ids, one after the other.

    `start` says where the ids of each line begin in `ids`, with their total at the end.
    """

    fits: np.ndarray
    values: dict[str, np.ndarray]
    start: np.ndarray
    ids: np.ndarray


def template_of(line: bytes, needed: tuple[str, ...]) -> Template | None:
    """What `line` looks like without its digits; None where it is not of the plain kind with just the `needed` keys."""
    if not LINE.fullmatch(line):
        return None
    names = [name.decode() for name in KEY.findall(line)][:-1]
    if sorted(names) != sorted(needed):
        return None
    list_at = line.index(b"[")
    places, gone = [], 0
    for run in RUN.finditer(line, 0, list_at):
        places.append(run.start() - gone)
        gone += run.end() - run.start()
    head, ids = RUN.sub(b"", line[: list_at + 1]), RUN.sub(b"", line[list_at + 1 :])
    gap = b", " if b", " in head else b","
    tail = b"]}\n"
    return Template(names, head, gap, tail, places) if not ids.removesuffix(b"]}").replace(gap, b"") else None


def records(block: bytes, template: Template) -> Records:
    """The records of a block of lines with LF ends that fit the `template`."""
    raw = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8)
    digit = (raw - np.uint8(ord("0"))) <= 9  # wraps: what comes before "0" is large
    edge = np.diff(digit.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
    start, end = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    bare = raw[~digit]
    ends = np.flatnonzero(bare == ord("\n")) + 1
    begins = np.concatenate([[0], ends[:-1]])
    count = np.diff(np.searchsorted(start, np.flatnonzero(raw == ord("\n"))), prepend=0)
    first = np.cumsum(count) - count

    keys, gap = len(template.places), len(template.gap)
    between = ends - begins - len(template.head) - len(template.tail)
    fits = (between >= 0) & (between % gap == 0) & (count == keys + 1 + between // gap)
    fits &= _same(bare, begins, template.head, fits)
    fits &= _same(bare, ends - len(template.tail), template.tail, fits)
    at = np.flatnonzero(fits)
    inner = _ranges(begins[at] + len(template.head), between[at])
    wrong = bare[inner] != np.tile(np.frombuffer(template.gap, dtype=np.uint8), inner.size // gap)
    fits[at[np.repeat(np.arange(at.size), between[at])[wrong]]] = False

    # Each number where it belongs: behind its colon, or one gap after the id before.
    at = np.flatnonzero(fits)
    runs = _ranges(first[at], count[at])
    line = np.repeat(at, count[at])
    order = runs - first[line]
    place = (start - (np.cumsum(end - start) - (end - start)))[runs] - begins[line]
    listed = len(template.head) + (order - keys) * gap
    wanted = np.where(order < keys, np.append(template.places, 0)[np.minimum(order, keys)], listed)
    size = (end - start)[runs]
    wrong = (place != wanted) | (size > 18) | ((size > 1) & (raw[start[runs]] == ord("0")))
    fits[line[wrong]] = False

    at = np.flatnonzero(fits)
    values = {
        name: digits(raw, start[first[at] + k], end[first[at] + k], 18)[0] for k, name in enumerate(template.names)
    }
    counts = count[at] - keys
    ids = _ranges(first[at] + keys, counts)
    total = np.concatenate([[0], np.cumsum(counts)])
    return Records(at, values, total, digits(raw, start[ids], end[ids], 18)[0])


def _same(bare: np.ndarray, begins: np.ndarray, text: bytes, lines: np.ndarray) -> np.ndarray:
    """Which of `lines` have `text` at their place in `begins`."""
    at = np.flatnonzero(lines)
    found = np.zeros(lines.size, dtype=bool)
    window = bare[begins[at][:, None] + np.arange(len(text))]
    found[at] = (window == np.frombuffer(text, dtype=np.uint8)).all(axis=1)
    return found


def _ranges(start: np.ndarray, size: np.ndarray) -> np.ndarray:
    """start[0], start[0] + 1, ... (size[0] of them), start[1], ... as one array."""
    before = np.cumsum(size) - size
    return np.arange(int(size.sum())) + np.repeat(start - before, size)
