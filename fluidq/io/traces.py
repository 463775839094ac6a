"""Recorded load as a workload: traces of requests and tables of rates, told apart by content, plain or compressed."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.io._arrivals import spread as spread_arrivals
from fluidq.io._files import PathLike, short
from fluidq.io._formats import csv_requests, json_requests, lengths, rates
from fluidq.io._formats._rows import MOST_TOKENS, TICKS, Rows
from fluidq.io._formats._table import MOST_COLUMNS, check_header, header_of
from fluidq.io._opening import CUT, Opening, after, chain, opening, records
from fluidq.io._prefix import in_order, leading_hits
from fluidq.workload import MOST_WINDOWS, Number, Workload

REMEDY = (
    "either CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure) or those of BurstGPT, Splitwise or "
    "ServeGen, or JSON lines with the fields timestamp, input_length, output_length, hash_ids (Mooncake, "
    f"Qwen-Bailian), or {rates.WANTED}"
)
LARGEST_FLEET = 2e7  # input tokens per second: three times the largest published fleet


@dataclass(frozen=True)
class ReadReport:
    """What became of the rows of a trace.

    `kept` and `dropped` count rows (blank lines and the header are none), `reasons` holds (line number, reason) for
    each dropped row in the order of the file (the first 10,000 of them), `format` what was recognised, `span` the time
    from the first stamp to the last [s] (of a table of rates: all its stretches), `notes` what was done to the kept
    rows (sorting, spreading) and what looks odd, `failed` how many of the dropped rows are requests without output.
    """

    kept: int
    dropped: int
    reasons: list[tuple[int, str]]
    format: str
    span: float
    notes: list[str]
    failed: int = 0

    @property
    def rows(self) -> int:
        """Rows in the file, kept or not."""
        return self.kept + self.dropped

    def __str__(self) -> str:
        lines = [f"{self.format}: {self.kept:,} rows kept, {self.dropped:,} dropped, {self.span:,.1f} s"]
        lines += self.notes
        lines += [f"line {line}: {reason}" for line, reason in self.reasons[:5]]
        if self.dropped > 5:
            lines.append(f"and {self.dropped - 5:,} more")
        return "\n".join(lines)


@dataclass
class Requests:
    """Requests in the order of arrival, shape (requests,) each: `time` [s] from the first stamp, lengths [tokens]."""

    time: np.ndarray
    isl: np.ndarray
    computed: np.ndarray
    osl: np.ndarray


def read_trace(
    path: PathLike,
    window: Number = 15.0,
    *,
    spread: bool = True,
    strict: bool = False,
    cache_tokens: Number = math.inf,
    lengths: PathLike | None = None,
    isl: Number | None = None,
    osl: Number | None = None,
) -> tuple[Workload, ReadReport]:
    """The workload of a recorded trace, and a report of the rows kept and dropped.

    The format is told from the content, plain, gzip or zstd, never from the name:

    - Azure LLM inference CSV of 2023, 2024, 2025: `TIMESTAMP` (ISO, up to 9 fractional digits of which 7 count, with
      or without a zone; none means UTC), `ContextTokens`, `GeneratedTokens`; other columns are ignored.
    - BurstGPT CSV, both column sets: `Timestamp` [s], `Request tokens`, `Response tokens`; a response of 0 tokens is a
      failed request, counted in `failed`. Splitwise CSV: `arrival_timestamp` [s], `prompt_size`, `token_size`.
    - Mooncake JSON lines: `timestamp` [ms], `input_length`, `output_length`, or `created_time` [ms], `input_tokens`,
      `output_tokens`; `hash_ids`, one per block of 512 tokens. Qwen-Bailian JSON lines: seconds, blocks of 16 tokens.
    - Tables of rates: ServeGen windows; ServeGen clients with `lengths`, the path of their length file; any CSV with a
      time, a rate and the lengths, which `isl` and `osl` [tokens] give where the table has none.

    Where a trace names prefix blocks, the computed length is what a cache of `cache_tokens` leaves that is empty at the
    start and drops what was not used for longest (infinite by default; 0: none):
    input_length - min(block * leading ids in the cache, input_length). Else every input token counts as computed.

    A row with a missing or unreadable field or a length <= 0 (output 0: a failed request) is dropped and reported;
    `strict` raises instead. Rows out of order are sorted and a note says so. `spread` puts rows with equal time stamps
    at even distances up to the next stamp, or over one tick of the clock where that is less; a note says so. The
    first window starts at the first stamp, and the last one may be partly empty; every kept request and token is
    counted, in `window` [s] long windows. Windows without requests take the overall mean lengths.

    Raises `InputError` (file, line, field, value, remedy) where the file cannot be read, is none of the formats, has
    no usable row or more unusable than usable ones, or spans more than 10 million windows.
    """
    seconds = window_seconds(window)
    load = load_trace(path, spread=spread, strict=strict, cache_tokens=cache_tokens, lengths=lengths)
    if isinstance(load.data, rates.Rates):
        return _from_rates(load, seconds, isl, osl), load.report
    for name, value in (("isl", isl), ("osl", osl), ("lengths", lengths)):
        if value is not None:
            raise InputError(f"{name} is given and {load.file} has lengths of its own: leave {name} away.")
    return _from_requests(load, seconds), load.report


@dataclass
class Load:
    """A trace as read: its requests or its rates, the report, and the line of each kept row."""

    file: str
    data: Requests | rates.Rates
    report: ReadReport
    lines: np.ndarray


def load_trace(
    path: PathLike,
    *,
    spread: bool = True,
    strict: bool = False,
    cache_tokens: Number = math.inf,
    lengths: PathLike | None = None,
) -> Load:
    """The rows of a trace before they are put into windows; arguments and errors as for `read_trace`."""
    rows = Rows(os.fsdecode(path), strict)
    capacity = _capacity(cache_tokens)
    name, kept = _read(rows, lengths)
    kept = kept if kept is None or len(rows) else None
    rows.check_some(REMEDY)
    if kept is not None:
        _doubts(rows, kept.requests, kept.duration, kept.mean(kept.isl), kept.mean(kept.osl))
        report = ReadReport(len(rows), rows.dropped, rows.reasons, name, kept.duration, rows.notes, rows.failed)
        return Load(rows.file, kept, report, np.frombuffer(rows.line, dtype=np.int64))
    return _requests(rows, name, spread, capacity)


def _read(rows: Rows, lengths_path: PathLike | None) -> tuple[str, rates.Rates | None]:
    """The name of the format, and the rates of a table of rates; the requests of a trace go into `rows`."""
    line, first, blocks = opening(rows.file, REMEDY)
    names = header_of(first)
    layout = csv_requests.layout_of(names)
    if layout is None:
        found = json_requests.layout_of(records(blocks))
        if found is not None:
            json_requests.read(rows, found, chain(blocks))
            return found.name, None
    table = None
    if (layout is None or not layout.complete(names)) and len(names) <= MOST_COLUMNS:
        table = rates.columns_of(rows.file, line, names)
    if table is not None:
        layout = None  # TIMESTAMP beside a rate
    elif layout is None:
        raise _no_format(rows.file, line, first)
    rest = after(line, chain(blocks))
    if layout is not None:
        csv_requests.read(rows, layout, names, line, rest)
        name, kept = layout.name, None
    else:
        assert table is not None
        check_header(rows.file, line, names)
        known = None if lengths_path is None else read_lengths(lengths_path)[0]
        name, kept = table.name, rates.read(rows, table, rest, known)
        if known is not None and table.client is None:
            _take_lengths(kept, known, lengths_path)
    if blocks.cut:
        rows.notes.append(CUT)
    if not len(rows) and not rows.dropped:
        raise InputError(
            f"{rows.file} holds a header and no rows; add rows of {short(', '.join(names))} below line {line}."
        )
    return name, kept


def _no_format(file: str, line: int, first: str) -> InputError:
    return InputError(f"{file}, line {line}: the columns are {short(first)}; they must be {REMEDY}.")


def read_lengths(path: PathLike) -> tuple[lengths.Lengths, Rows]:
    """A file of lengths without times, and what became of its rows. Raises `InputError` for any other file."""
    rows = Rows(os.fsdecode(path), strict=False)
    line, first, blocks = opening(rows.file, REMEDY)
    found = lengths_of(rows, line, first, blocks)
    if found is None:
        raise InputError(
            f"{rows.file}, line {line}: {short(first)} is no file of lengths; it must be a ServeGen length file or CSV "
            f"with the columns {', '.join(lengths.PLAIN)}."
        )
    rows.check_some(REMEDY)
    return found, rows


def lengths_of(rows: Rows, line: int, first: str, blocks: Opening) -> lengths.Lengths | None:
    """The lengths of a file that begins with `first`, or None where it holds no lengths."""
    if first.lstrip().startswith("{"):
        record = next(iter(records(blocks)), None)
        if isinstance(record, dict) and {"client", "window_start_s", lengths.WHOLE_INPUT} <= set(record):
            return lengths.read_pmf(rows, chain(blocks))
        return None
    names = header_of(first)
    lower = {name.lower() for name in names}
    for columns, read in ((lengths.SUMMARY, lengths.read_summary), (lengths.PLAIN, lengths.read_plain)):
        if set(columns) <= lower:
            check_header(rows.file, line, names)
            return read(rows, names, after(line, chain(blocks)))
    return None


def _take_lengths(kept: rates.Rates, known: lengths.Lengths, path: PathLike | None) -> None:
    if known.everyone is None:
        raise InputError(
            f"{os.fsdecode(path or '')} gives lengths by client, and the table of rates has no clients; give the "
            f"clients file with it, or isl= and osl=."
        )
    kept.isl[:], kept.osl[:] = known.everyone
    kept.computed[:] = known.everyone[0]


def _requests(rows: Rows, name: str, spread: bool, capacity: float) -> Load:
    line, ticks = (np.frombuffer(column, dtype=np.int64) for column in (rows.line, rows.ticks))
    stored, output = (np.frombuffer(column, dtype=np.int32) for column in (rows.isl, rows.osl))
    ids, count = np.frombuffer(rows.ids, dtype=np.int64), np.frombuffer(rows.count, dtype=np.int32)
    behind = np.flatnonzero(np.diff(ticks) < 0)
    if behind.size:
        rows.notes.append(f"time stamps were not in order (first at line {line[behind[0] + 1]}): rows were sorted")
        if behind.size > 0.25 * ticks.size:
            rows.notes.append(f"check the column of time: {behind.size:,} rows are earlier than the row before")
        order = np.argsort(ticks, kind="stable")
        if rows.block_tokens:
            ids, count = in_order(ids, count, order)
        line, ticks, stored, output = (column[order] for column in (line, ticks, stored, output))
    computed = stored
    if rows.block_tokens and capacity > 0:
        blocks = None if math.isinf(capacity) else int(capacity // rows.block_tokens)
        held = leading_hits(ids, count, blocks) * rows.block_tokens
        computed = stored - np.minimum(held, stored)
    times = (ticks - ticks[0]).astype(np.float64) / TICKS
    span = float(times[-1])
    if spread:
        times, moved, tick = spread_arrivals(times)
        if moved:
            rows.notes.append(
                f"{moved:,} rows shared a time stamp with the row before: arrivals were spread within the tick of "
                f"{tick:g} s"
            )
    _doubts(rows, float(times.size), span, float(stored.mean()), float(output.mean()))
    report = ReadReport(len(rows), rows.dropped, rows.reasons, name, span, rows.notes, rows.failed)
    return Load(rows.file, Requests(times, stored, computed, output), report, line)


def _doubts(rows: Rows, requests: float, span: float, isl: float | None, osl: float | None) -> None:
    """Notes on what is possible but looks like a wrong unit or swapped columns; lengths are means [tokens]."""
    if requests < 10 or span <= 0:
        return
    rate, isl, osl = requests / span, isl or 1.0, osl or 1.0
    if rate * isl > LARGEST_FLEET:
        rows.notes.append(
            f"check the unit of time: {rate:,.0f} requests and {rate * isl:,.0f} input tokens per second are more than "
            f"any published fleet serves"
        )
    if rate < 1 / 3600:
        rows.notes.append(f"check the unit of time: one request in {1 / rate:,.0f} s is hardly a load")
    if max(isl, osl) > 1e6:
        rows.notes.append("check the unit of the lengths: the mean is over a million tokens")
    if osl > 10 * isl > 10:
        rows.notes.append(f"check that input and output are not swapped: {isl:,.0f} tokens in, {osl:,.0f} out")


def _from_requests(load: Load, window: float) -> Workload:
    data = load.data
    assert isinstance(data, Requests)
    check_windows(load.file, float(load.report.span), window, load.lines)
    index = np.floor(data.time / window).astype(np.int64)
    requests = np.bincount(index)
    # Whole numbers below 2^53 throughout, so the sums are exact.
    some = np.maximum(requests, 1)
    means = {
        name: np.bincount(index, tokens) / some
        for name, tokens in (("isl_computed", data.computed), ("isl_stored", data.isl), ("osl", data.osl))
    }
    return Workload.from_windows(name=Path(load.file).name, window=window, rate=requests / window, **means)


def _from_rates(load: Load, window: float, isl: Number | None, osl: Number | None) -> Workload:
    data = load.data
    assert isinstance(data, rates.Rates)
    if data.requests <= 0:
        raise InputError(f"{load.file} holds no request: every rate is 0.")
    lengths_of_windows = {"isl": data.isl, "computed": data.computed, "osl": data.osl}
    for name, given in (("isl", isl), ("osl", osl)):
        if given is not None:
            if data.mean(lengths_of_windows[name]) is not None:
                raise InputError(f"{name} is given and {load.file} has lengths of its own: leave {name} away.")
            if not 0 < float(given) <= MOST_TOKENS:
                raise refuse(name, given, f"a mean length > 0 and <= {MOST_TOKENS} tokens")
            lengths_of_windows[name] = np.full(data.rate.shape, float(given))
            if name == "isl":
                lengths_of_windows["computed"] = lengths_of_windows["isl"]
        elif data.mean(lengths_of_windows[name]) is None:
            raise InputError(
                f"{load.file} ({load.report.format}) gives rates and no {name}; give {name}=, or lengths= with the "
                f"path of a length file."
            )
    check_windows(load.file, data.duration, window, load.lines)
    edges = np.arange(max(1, math.ceil(data.duration / window - 1e-9)) + 1) * window
    ends = data.start + data.step
    knots = np.stack([data.start, ends], axis=1).ravel()

    def per_window(density: np.ndarray) -> np.ndarray:
        """What flows at `density` [1/s] within each window: the difference of the running total at its edges."""
        total = np.cumsum(density * data.step)
        before = np.concatenate([[0.0], total[:-1]])
        return np.maximum(np.diff(np.interp(edges, knots, np.stack([before, total], axis=1).ravel())), 0.0)

    requests = per_window(data.rate)
    some = np.where(requests > 0, requests, 1.0)
    means = {}
    for name, values in lengths_of_windows.items():
        filled = np.where(np.isnan(values), data.mean(values) or 0.0, values)
        means[name] = per_window(data.rate * filled) / some
    step = float(np.median(data.step))
    if step > window * (1 + 1e-9):
        load.report.notes.append(f"rates are constant within a step of {step:g} s: bursts shorter than that are not in")
    return Workload.from_windows(
        name=Path(load.file).name,
        window=window,
        rate=requests / window,
        isl_stored=means["isl"],
        isl_computed=np.minimum(means["computed"], means["isl"]),
        osl=means["osl"],
    )


def check_windows(file: str, span: float, window: float, lines: np.ndarray) -> None:
    if span / window >= MOST_WINDOWS:
        raise InputError(
            f"{file}: line {lines[0]} and line {lines[-1]} are {span:g} s apart, over {MOST_WINDOWS:,} windows "
            f"of {window:g} s; correct the time stamp or choose a window of at least {span / MOST_WINDOWS * 1.01:g} s."
        )


def window_seconds(window: Number) -> float:
    try:
        seconds = float(window)
    except (TypeError, ValueError, OverflowError) as error:
        raise refuse("window", window, "a number of seconds > 0") from error
    if not 0 < seconds < math.inf:
        raise refuse("window", seconds, "a finite number of seconds > 0")
    return seconds


def _capacity(tokens: Number) -> float:
    value = float(tokens)
    if not value >= 0:
        raise refuse("cache_tokens", tokens, "a number of tokens >= 0 (math.inf: no bound)")
    return value
