"""Request traces as workloads: Azure LLM inference CSV and Mooncake JSON lines, plain or gzipped."""

import datetime
import gzip
import json
import math
import os
import re
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.workload import MOST_WINDOWS, Number, Workload

AZURE, MOONCAKE = "Azure LLM CSV", "Mooncake JSONL"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
BLOCK_TOKENS = 512
TICKS = 10_000_000  # per second: time is held in whole units of 100 ns until the first stamp is taken away
MOST_TOKENS = 1_000_000_000
LAST_MS = 10**14  # 3,170 years; as ticks it still fits 64 bits

CONTROL = bytes(set(range(32)) - set(b"\t\n\r"))

LENGTH = f"a whole number from 1 to {MOST_TOKENS}"
REMEDY = f"either CSV with the columns {', '.join(COLUMNS)} or JSON lines with the fields {', '.join(FIELDS)}"
STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?([0-5]\d))?",
    re.ASCII,
)


@dataclass(frozen=True)
class ReadReport:
    """What became of the rows of a trace.

    `kept` and `dropped` count rows (blank lines and the header are none), `reasons` holds (line number, reason) for
    each dropped row in the order of the file, `format` what was recognised, `span` the time from the first stamp to the
    last [s], `notes` what was done to the kept rows (sorting, spreading).
    """

    kept: int
    dropped: int
    reasons: list[tuple[int, str]]
    format: str
    span: float
    notes: list[str]

    def __str__(self) -> str:
        lines = [f"{self.format}: {self.kept:,} rows kept, {self.dropped:,} dropped, {self.span:,.1f} s"]
        lines += self.notes
        lines += [f"line {line}: {reason}" for line, reason in self.reasons[:5]]
        if self.dropped > 5:
            lines.append(f"and {self.dropped - 5:,} more")
        return "\n".join(lines)


class _Row(NamedTuple):
    line: int
    ticks: int
    isl: int
    osl: int
    blocks: list[int] | None


class _BadRow(Exception):
    """Why one row cannot be used; never leaves this module."""


def read_trace(
    path: str | os.PathLike[str], window: Number = 15.0, *, spread: bool = True, strict: bool = False
) -> tuple[Workload, ReadReport]:
    """The workload of a recorded trace, and a report of the rows kept and dropped.

    The format is told from the content, gzipped or not, never from the name:

    - Azure LLM inference CSV: `TIMESTAMP` (ISO, up to 9 fractional digits of which 7 count, with or without a zone;
      none means UTC), `ContextTokens`, `GeneratedTokens`; other columns are ignored. No cache hits are known, so
      isl_computed = isl_stored.
    - Mooncake JSON lines: `timestamp` [ms], `input_length`, `output_length`, `hash_ids` (one per block of 512 tokens).
      The computed length is what an infinite prefix cache, empty at the start, leaves:
      input_length - min(512 * leading ids seen before, input_length).

    A row with a missing or unreadable field or a length <= 0 (output 0: a failed request) is dropped and reported;
    `strict` raises instead. Rows out of order are sorted and a note says so. `spread` puts rows with equal time stamps
    (recorded in ticks) at even distances up to the next stamp, or as far as the median distance of stamps where that
    is nearer. The first window starts at the first stamp, and the last one may be partly empty; every kept
    request and token is counted, in `window` [s] long windows.

    Raises `InputError` (file, line, field, value, remedy) where the file cannot be read, is neither of the formats, has
    no usable row or more unusable than usable ones, or spans more than 10 million windows.
    """
    file = os.fsdecode(path)
    seconds = _window(window)
    lines = _text(file).split("\n")
    format, rows, reasons = _rows(file, lines, strict)
    if not rows:
        first = f" The first: line {reasons[0][0]}: {reasons[0][1]}" if reasons else ""
        raise InputError(f"{file} has no usable row ({len(reasons)} dropped); it must be {REMEDY}.{first}")
    if len(reasons) > len(rows):
        raise InputError(
            f"{file}: {len(reasons)} of {len(reasons) + len(rows)} rows are unusable, more than half; mend the file or "
            f"convert it to {REMEDY}. The first: line {reasons[0][0]}: {reasons[0][1]}"
        )
    notes = []
    ticks = np.array([row.ticks for row in rows], dtype=np.int64)
    behind = np.flatnonzero(np.diff(ticks) < 0)
    if behind.size:
        notes.append(f"time stamps were not in order (first at line {rows[behind[0] + 1].line}): rows were sorted")
        order = np.argsort(ticks, kind="stable")
        rows, ticks = [rows[i] for i in order], ticks[order]
    span = float(ticks[-1] - ticks[0]) / TICKS
    if span / seconds >= MOST_WINDOWS:
        raise InputError(
            f"{file}: line {rows[0].line} and line {rows[-1].line} are {span:g} s apart, over {MOST_WINDOWS:,} windows "
            f"of {seconds:g} s; correct the time stamp or choose a window of at least {span / MOST_WINDOWS * 1.01:g} s."
        )
    times = (ticks - ticks[0]).astype(np.float64) / TICKS
    if spread:
        times, moved = _spread(times)
        if moved:
            notes.append(
                f"{moved:,} rows shared a time stamp with the row before: arrivals were spread within the tick"
            )
    stored = np.array([row.isl for row in rows], dtype=np.int64)
    output = np.array([row.osl for row in rows], dtype=np.int64)
    computed = stored - _cached(rows)
    index = np.floor(times / seconds).astype(np.int64)
    requests = np.bincount(index)
    # Whole numbers below 2^53 throughout, so the sums are exact.
    some = np.maximum(requests, 1)
    means = {
        field: np.bincount(index, tokens) / some
        for field, tokens in (("isl_computed", computed), ("isl_stored", stored), ("osl", output))
    }
    workload = Workload.from_windows(name=Path(file).name, window=seconds, rate=requests / seconds, **means)
    return workload, ReadReport(len(rows), len(reasons), reasons, format, span, notes)


def _window(window: Number) -> float:
    try:
        seconds = float(window)
    except (TypeError, ValueError, OverflowError) as error:
        raise refuse("window", window, "a number of seconds > 0") from error
    if not 0 < seconds < math.inf:
        raise refuse("window", seconds, "a finite number of seconds > 0")
    return seconds


def _text(file: str) -> str:
    """The decoded content with LF line ends; undecodable bytes become U+FFFD and spoil their own row only."""
    if os.path.isdir(file):
        raise InputError(f"{file} is a folder; name one trace file in it.")
    try:
        data = Path(file).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError as error:
        raise InputError(f"{file} does not exist; give the path of a trace file: {REMEDY}.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{file} is damaged gzip data ({error}); fetch it again.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{file!r} cannot be read ({error}); give the path of a readable trace file.") from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{file} is UTF-16 text; convert it to UTF-8.")
    head = data[:4096]
    if len(head) - len(head.translate(None, CONTROL)) > 0.02 * len(head):
        raise InputError(f"{file} is binary data; it must be {REMEDY}.")
    text = data.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(f"{file} is empty; it must be {REMEDY}.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _rows(file: str, lines: list[str], strict: bool) -> tuple[str, list[_Row], list[tuple[int, str]]]:
    """The format, the usable rows and why the others are not, from the lines of `file`."""
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    names = [name.strip().strip('"') for name in filled[0][1].split(",")]
    reasons: list[tuple[int, str]] = []
    if {name.lower() for name in COLUMNS} & {name.lower() for name in names}:
        format, parsed = AZURE, _azure(file, filled[0][0], names, filled[1:])
        if len(filled) == 1:
            raise InputError(f"{file} holds a header and no rows; add rows of {', '.join(COLUMNS)} below line 1.")
    elif any(line.lstrip().startswith("{") for _, line in filled[:20]):
        format, parsed = MOONCAKE, _mooncake(filled)
    else:
        found = _short(filled[0][1])
        raise InputError(f"{file}, line {filled[0][0]}: the columns are {found}; they must be {REMEDY}.")
    rows = []
    for row in parsed:
        if isinstance(row, _Row):
            rows.append(row)
        elif strict:
            raise InputError(f"{file}, line {row[0]}: {row[1]}")
        else:
            reasons.append(row)
    return format, rows, reasons


def _azure(file: str, line: int, names: list[str], filled: list[tuple[int, str]]) -> Iterator[_Row | tuple[int, str]]:
    lower = [name.lower() for name in names]
    places = []
    for column in COLUMNS:
        if lower.count(column.lower()) != 1:
            times = "twice or more" if column.lower() in lower else "missing"
            raise InputError(
                f"{file}, line {line}: the column {column} is {times} among {_short(', '.join(names))}; "
                f"the header must name {', '.join(COLUMNS)}, each once."
            )
        places.append(lower.index(column.lower()))
    return _azure_rows(lower, places, filled)


def _azure_rows(
    header: list[str], places: list[int], filled: list[tuple[int, str]]
) -> Iterator[_Row | tuple[int, str]]:
    at_time, at_isl, at_osl = places
    days: dict[str, int] = {}
    for line, text in filled:
        cells = text.split(",")
        try:
            if len(cells) != len(header):
                if len(cells) < len(header):
                    raise _BadRow(f"the row has {len(cells)} fields; it must have {len(header)}.")
                raise _BadRow(
                    f"the row has {len(cells)} fields; it must have {len(header)}, without commas in a number."
                )
            yield _Row(
                line, _stamp(cells[at_time], days), _length(COLUMNS[1], cells[at_isl]),
                _length(COLUMNS[2], cells[at_osl]), None,
            )  # fmt: skip
        except _BadRow as bad:
            again = [cell.strip().strip('"').lower() for cell in cells] == header
            yield line, "the row repeats the header." if again else str(bad)


def _stamp(text: str, days: dict[str, int]) -> int:
    """An ISO time as ticks of 100 ns since year 1, in whole numbers; `days` remembers the dates met."""
    found = STAMP.fullmatch(text.strip().strip('"'))
    if found is None:
        raise _bad(COLUMNS[0], text, "a time like 2023-11-16 18:15:46.6805900")
    date, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    day = days.get(date)
    if day is None:
        try:
            day = days[date] = datetime.date.fromisoformat(date).toordinal()
        except ValueError:
            raise _bad(COLUMNS[0], text, "a date of the calendar") from None
    seconds = day * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign is not None:
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds += -offset if sign == "+" else offset
    return seconds * TICKS + (int(fraction[:7].ljust(7, "0")) if fraction else 0)


def _length(field: str, value: object) -> int:
    """A token count, from the text of a CSV cell or a JSON value."""
    number = value
    if isinstance(value, str):
        text = value.strip().strip('"')
        plain = text.isascii() and len(text) < 40 and "_" not in text
        if plain and text.isdigit():
            number = int(text)
        else:
            try:
                number = float(text) if plain else math.nan
            except ValueError:
                raise _bad(field, value, LENGTH) from None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if type(number) is not int or not 0 < number <= MOST_TOKENS:
        raise _bad(field, value, LENGTH + ("; 0 marks a failed request" if type(number) is int and number == 0 else ""))
    return number


def _mooncake(filled: list[tuple[int, str]]) -> Iterator[_Row | tuple[int, str]]:
    decode = json.JSONDecoder(parse_constant=_no_constant).decode
    for line, text in filled:
        try:
            yield _record(line, decode(text.strip()))
        except _BadRow as bad:
            yield line, str(bad)
        except RecursionError:
            yield line, "the row is nested too deeply; it must be one flat JSON object."
        except ValueError as error:
            yield line, f"the row is {_short(text)}, no JSON ({_short(str(error))}); it must be one JSON object."


def _no_constant(name: str) -> float:
    raise _BadRow(f"the row holds {name}; every number must be finite.")


def _record(line: int, record: object) -> _Row:
    if not isinstance(record, dict):
        raise _BadRow(f"the row is {_short(record)}; it must be a JSON object.")
    for field in FIELDS:
        if field not in record:
            raise _BadRow(f"the field {field} is missing; the row must have {', '.join(FIELDS)}.")
    stamp, ids = record["timestamp"], record["hash_ids"]
    if type(stamp) not in (int, float) or not 0 <= stamp <= LAST_MS:
        raise _bad("timestamp", stamp, f"a time in ms from 0 to {LAST_MS}")
    isl, osl = (_json_length(field, record[field]) for field in FIELDS[1:3])
    if type(ids) is not list or not all(type(block) is int for block in ids):
        raise _bad("hash_ids", ids, "a list of whole numbers")
    blocks = -(-isl // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise _bad("the length of hash_ids", len(ids), f"{blocks}, one id per {BLOCK_TOKENS} of {isl} input tokens")
    ms = TICKS // 1000
    return _Row(line, stamp * ms if type(stamp) is int else round(stamp * ms), isl, osl, ids)


def _json_length(field: str, value: object) -> int:
    if isinstance(value, str):  # "12" is not 12 in JSON
        raise _bad(field, value, LENGTH)
    return _length(field, value)


def _cached(rows: list[_Row]) -> np.ndarray:
    """Input tokens of each row that an infinite prefix cache holds, empty before the first row."""
    seen: set[int] = set()
    cached = np.zeros(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        if row.blocks:
            hits = next((k for k, block in enumerate(row.blocks) if block not in seen), len(row.blocks))
            cached[i] = min(BLOCK_TOKENS * hits, row.isl)
            seen.update(row.blocks)
    return cached


def _spread(times: np.ndarray) -> tuple[np.ndarray, int]:
    """Sorted `times` with equal ones spread evenly up to the next, and how many were equal to the one before."""
    distinct, first, count = np.unique(times, return_index=True, return_counts=True)
    moved = times.size - distinct.size
    if moved == 0 or distinct.size == 1:
        return times, 0
    gaps = np.diff(distinct)
    # After a silence the next stamp says nothing about the tick; the last stamp has no next one.
    room = np.minimum(np.append(gaps, np.inf), np.median(gaps))
    place = np.arange(times.size) - np.repeat(first, count)
    return times + np.repeat(room / count, count) * place, moved


def _bad(field: str, value: object, wanted: str) -> _BadRow:
    return _BadRow(str(refuse(field, _Shown(value), wanted)))


class _Shown:
    """A value whose repr stays short, however large or deep the value."""

    def __init__(self, value: object):
        self.value = value

    def __repr__(self) -> str:
        return _short(self.value)


def _short(value: object) -> str:
    show = reprlib.Repr()
    show.maxstring = show.maxother = 60
    show.maxlevel = 2
    return show.repr(value)
