"""Tables of rates: one row per stretch of time, with how many requests came and how long they were on average.

ServeGen windows and clients, the digitised Azure 2024 curves, and any CSV with a column of time and one of rate.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fluidq._errors import InputError
from fluidq.io._files import short
from fluidq.io._formats._rows import LAST_SECOND, MOST_TOKENS, TICKS, BadRow, Rows, bad, iso_ticks
from fluidq.io._formats._table import body, number
from fluidq.io._formats.lengths import Lengths
from fluidq.workload import Number

SECOND, MINUTE, HOUR = 1.0, 60.0, 3600.0
MOST_RATE = 1e9

# What a column is called and what its unit is. Bare names are SI: seconds, requests per second.
TIMES = {
    **dict.fromkeys(("time", "time_s", "t", "t_s", "timestamp", "timestamp_s", "second", "seconds", "start_s"), SECOND),
    **dict.fromkeys(("window_start_s", "window_start", "time_sec", "time_seconds", "datetime"), SECOND),
    **dict.fromkeys(("time_ms", "timestamp_ms", "milliseconds", "t_ms"), 1e-3),
    **dict.fromkeys(("minute", "minutes", "time_min", "time_minutes", "t_min"), MINUTE),
    **dict.fromkeys(("hour", "hours", "time_h", "time_hours", "start_hour", "t_h"), HOUR),
}
RATES = {
    **dict.fromkeys(("rate", "rate_req_s", "rate_req_per_s", "request_rate", "requests_per_s", "rps", "qps"), SECOND),
    **dict.fromkeys(("req_s", "req_per_s", "requests_per_second", "requests_per_sec", "rate_per_s"), SECOND),
    **dict.fromkeys(("requests_per_min", "requests_per_minute", "requests_per_min_mid", "rpm"), MINUTE),
    **dict.fromkeys(("req_per_min", "rate_per_min", "rate_req_min", "rate_req_per_min"), MINUTE),
    **dict.fromkeys(("requests_per_hour", "requests_per_h", "req_per_hour", "rate_per_h"), HOUR),
    **dict.fromkeys(("requests", "request_count", "num_requests", "n_requests"), 0.0),  # a count per row
}
ISL = ("isl", "isl_tok", "isl_tokens", "mean_isl", "isl_stored", "mean_input_tokens", "input_tokens", "input_length")
OSL = ("osl", "osl_tok", "osl_tokens", "mean_osl", "mean_output_tokens", "output_tokens", "output_length")
COMPUTED = ("isl_computed", "mean_isl_computed")
HIT = ("hit", "hit_rate", "cache_hit_frac", "cache_hit_rate")
COVER = ("rate_with_lengths_req_s",)

WANTED = "a table with a column of time (time, time_s, minute, hour) and one of rate (rate, requests_per_min, requests)"


def _plain(name: str) -> str:
    """`Rate [req/s]` and `rate (req/s)` as `rate_req_per_s`; what is too long for a name stays as it is."""
    if len(name) > 80:
        return name
    name = re.sub(r"[\[(]([^\])]*)[\])]", r" \1", name.strip().lower())
    return re.sub(r"\s+", "_", name.replace("/", " per ").strip())


@dataclass(frozen=True)
class Columns:
    """Places of the columns (None: absent), and seconds per unit of time and of rate (0: the rate is a count)."""

    name: str
    header: list[str]
    time: int
    time_unit: float
    rate: int
    rate_unit: float
    isl: int | None
    osl: int | None
    computed: int | None
    hit: int | None
    cover: int | None
    client: int | None


def columns_of(file: str, line: int, header: list[str]) -> Columns | None:
    """The columns of a rate table, or None where no column is a time or none a rate.

    Raises `InputError` where two columns could be the time, the rate or a length.
    """
    names = [_plain(name) for name in header]

    def place(known: Iterable[str], what: str) -> int | None:
        found = [at for at, name in enumerate(names) if name in known]
        if len(found) > 1:
            both = " and ".join(short(header[at]) for at in found[:2])
            raise InputError(f"{file}, line {line}: {both} could both be the {what}; keep one of them.")
        return found[0] if found else None

    if not set(names) & set(TIMES) or not set(names) & set(RATES):
        return None
    time, rate = place(TIMES, "time"), place(RATES, "rate")
    assert time is not None
    assert rate is not None
    client = names.index("client") if "client" in names else None
    kind = "rate table"
    if {"window_start_s", "rate_req_s"} <= set(names):
        kind = "ServeGen windows" if client is None else "ServeGen clients"
    elif {"minute", "requests_per_min_mid"} <= set(names):
        kind = "Azure 2024 load curve"
    others = (place(ISL, "input length"), place(OSL, "output length"), place(COMPUTED, "computed input length"))
    return Columns(
        kind, header, time, TIMES[names[time]], rate, RATES[names[rate]], *others,
        hit=place(HIT, "hit rate"), cover=place(COVER, "covered rate"), client=client,
    )  # fmt: skip


@dataclass
class Rates:
    """Stretches of time with a constant rate, in order, none overlapping another.

    `start` and `step` [s], `rate` [req/s], `isl`, `computed`, `osl` [tokens], shape (stretches,); lengths are NaN where
    the table gives none. `cover` [req/s] is the part of the rate whose lengths are known.
    """

    start: np.ndarray
    step: np.ndarray
    rate: np.ndarray
    isl: np.ndarray
    computed: np.ndarray
    osl: np.ndarray
    cover: np.ndarray
    notes: list[str] = field(default_factory=list)

    @property
    def requests(self) -> float:
        """How many requests came."""
        return float((self.rate * self.step).sum())

    @property
    def duration(self) -> float:
        """From the start of the first stretch to the end of the last [s]."""
        return float(self.start[-1] + self.step[-1] - self.start[0])

    def mean(self, lengths: np.ndarray) -> float | None:
        """The mean over the requests whose lengths are known; None where no request's is."""
        weight = np.where(np.isnan(lengths), 0.0, self.cover * self.step)
        return float((weight * np.nan_to_num(lengths)).sum() / weight.sum()) if weight.sum() > 0 else None

    @property
    def peak_to_mean(self) -> float | None:
        """The largest rate over the mean rate; None where there is no request."""
        return float(self.rate.max() * self.duration / self.requests) if self.requests > 0 else None


def read(rows: Rows, columns: Columns, blocks: Iterable[tuple[int, bytes]], lengths: Lengths | None) -> Rates:
    """The stretches of a rate table; what is dropped is told to `rows`. Raises `InputError` for fewer than two rows."""
    reader = _Reader(rows, columns)
    for number_of_line, block in blocks:
        reader.block(number_of_line, block)
    if not reader.clients:
        return _nothing()
    table = np.concatenate(reader.kept)
    behind = np.flatnonzero(np.diff(table[:, 1]) < 0)
    if behind.size and columns.client is None:
        line = int(table[behind[0] + 1, 0])
        rows.notes.append(f"time stamps were not in order (first at line {line}): rows were sorted")
        if behind.size > 0.25 * table.shape[0]:
            rows.notes.append(f"check the column of time: {behind.size:,} rows are earlier than the row before")
    order = np.argsort(table[:, 1], kind="stable")
    table = table[order]
    rows.line.extend(table[:, 0].astype(np.int64).tolist())
    rows.notes.extend(_missing(columns, table))
    if columns.client is not None:
        table, extra = _sum_clients(table, [reader.clients[at] for at in order], lengths)
        rows.notes.extend(extra)
    return _stretches(rows, columns, table)


def _missing(columns: Columns, table: np.ndarray) -> list[str]:
    """Notes on lengths and hits that some or all rows do not give."""
    notes = []
    busy = table[:, 2] > 0
    for name, place, at in (("input length", columns.isl, 3), ("output length", columns.osl, 5)):
        blank = int((busy & np.isnan(table[:, at])).sum())
        if place is not None and blank:
            notes.append(f"{blank:,} rows with requests give no {name}: the mean of the others stands for it")
    if columns.isl is not None and columns.computed is None:
        if columns.hit is None:
            notes.append("no column of cache hits: every input token counts as computed")
        elif blank := int((busy & np.isnan(table[:, 7])).sum()):
            notes.append(f"{blank:,} rows give no {columns.header[columns.hit]}: their input counts as computed")
    return notes


class _Reader:
    """Rows as (line, time, rate or count, isl, computed, osl, covered rate, hit), in SI; NaN where nothing is given."""

    def __init__(self, rows: Rows, columns: Columns):
        self.rows, self.columns = rows, columns
        self.kept: list[np.ndarray] = []
        self.clients: list[str] = []
        self.seen: set[tuple[float, str]] = set()
        self.days: dict[str, int] = {}

    def block(self, number_of_line: int, block: bytes) -> None:
        """A block at once where all of it is plain, else row by row."""
        columns = self.columns
        values = _bulk(columns, block)
        if values is not None:
            table, clients = values
            keys = set(zip(table[:, 0].tolist(), clients, strict=True))
            if len(keys) == len(clients) and not keys & self.seen:
                self.seen |= keys
                lines = number_of_line + np.arange(len(clients), dtype=np.float64)
                self.kept.append(np.column_stack([lines, table]))
                self.clients += clients
                return
        for line, parts in body(columns.header, [(number_of_line, block)]):
            try:
                if isinstance(parts, BadRow):
                    raise parts
                row = _row(columns, parts, self.days)
                client = parts[columns.client] if columns.client is not None else ""
                if (row[0], client) in self.seen:
                    raise bad(columns.header[columns.time], parts[columns.time], "a time that no row before it has")
            except BadRow as why:
                self.rows.drop(line, str(why))
                continue
            self.seen.add((row[0], client))
            self.kept.append(np.array([[line, *row]]))
            self.clients.append(client)


def _bulk(columns: Columns, block: bytes) -> tuple[np.ndarray, list[str]] | None:
    """The rows of a block and their clients, as `_row` would read them one by one; None where any is not plain."""
    if not block.isascii() or b'"' in block:
        return None
    parts = [line.split(",") for line in block.decode("ascii").removesuffix("\n").split("\n")]
    if any(len(row) != len(columns.header) for row in parts):
        return None
    try:
        time, rate, isl, osl, computed, hit, cover = (
            _numbers(place, parts)
            for place in (
                columns.time, columns.rate, columns.isl, columns.osl, columns.computed, columns.hit, columns.cover
            )
        )  # fmt: skip
    except ValueError:
        return None
    time, rate = time * columns.time_unit, rate / (columns.rate_unit or 1.0)
    computed = np.where(np.isnan(computed), np.where(np.isnan(hit), isl, isl * (1.0 - hit)), computed)
    sound = (time <= LAST_SECOND * min(columns.time_unit, 1.0)) & (rate <= MOST_RATE / max(columns.rate_unit, 1.0))
    for tokens in (isl, osl, computed):
        sound &= np.isnan(tokens) | ((tokens <= MOST_TOKENS) & ((tokens > 0) | (rate == 0) | (tokens is computed)))
    sound &= np.isnan(computed) | (computed <= isl)
    sound &= (np.isnan(hit) | (hit <= 1)) & (np.isnan(cover) | (cover <= rate))
    if not sound.all():
        return None
    clients = [""] * len(parts) if columns.client is None else [row[columns.client].strip() for row in parts]
    return np.column_stack([time, rate, isl, computed, osl, np.where(np.isnan(cover), rate, cover), hit]), clients


PLAIN_NUMBERS = re.compile(r"[0-9.eE+,-]*", re.ASCII)


def _numbers(place: int | None, parts: list[list[str]]) -> np.ndarray:
    """A column as numbers >= 0, NaN for an empty cell; raises `ValueError` for anything else."""
    if place is None:
        return np.full(len(parts), np.nan)
    cells = [row[place] for row in parts]
    if not PLAIN_NUMBERS.fullmatch(",".join(cells)):
        raise ValueError
    values = np.array([float(cell) if cell else np.nan for cell in cells])
    if (values < 0).any() or np.isinf(values).any():
        raise ValueError
    return values


def _nothing() -> Rates:
    none = np.zeros(0)
    return Rates(none, none, none, none, none, none, none)


def _row(columns: Columns, parts: list[str], days: dict[str, int]) -> tuple[float, ...]:
    """(time, rate or count, isl, computed, osl, covered rate, hit) of one row, in SI; NaN where nothing is given."""
    header = columns.header
    text = parts[columns.time]
    if columns.time_unit == SECOND and "-" in text[1:] and ":" in text:
        time = iso_ticks(header[columns.time], text, days) / TICKS
    else:
        time = number(header[columns.time], text, 0.0, LAST_SECOND, blank=False) * columns.time_unit
    rate = number(header[columns.rate], parts[columns.rate], 0.0, MOST_RATE, blank=False)
    rate /= columns.rate_unit or 1.0
    isl, osl = (_cell(header, parts, place, MOST_TOKENS) for place in (columns.isl, columns.osl))
    if rate > 0:
        for place, value in ((columns.isl, isl), (columns.osl, osl)):
            if value == 0:
                raise bad(header[place or 0], value, "> 0 tokens where requests came, or empty")
    computed = _cell(header, parts, columns.computed, MOST_TOKENS)
    hit = _cell(header, parts, columns.hit, 1.0)
    if np.isnan(computed):
        computed = isl if np.isnan(hit) else isl * (1.0 - hit)
    if computed > isl:
        raise bad(header[columns.computed or 0], computed, f"at most the input length {isl:g}")
    cover = _cell(header, parts, columns.cover, MOST_RATE)
    if cover > rate * (1 + 1e-6):
        raise bad(header[columns.cover or 0], cover, f"at most the whole rate {rate:g}")
    return time, rate, isl, computed, osl, rate if np.isnan(cover) else cover, hit


def _cell(header: list[str], parts: list[str], place: int | None, most: Number) -> float:
    return math.nan if place is None else number(header[place], parts[place], 0.0, most)


def _sum_clients(table: np.ndarray, clients: list[str], lengths: Lengths | None) -> tuple[np.ndarray, list[str]]:
    """One row per window instead of one per window and client: rates add, lengths are rate-weighted means."""
    times, at = np.unique(table[:, 1], return_inverse=True)
    rate = np.bincount(at, table[:, 2])
    notes = [f"{len(set(clients)):,} clients were added up"]
    known = np.zeros((table.shape[0], 2))
    has = np.zeros(table.shape[0], dtype=bool)
    if lengths is not None:
        for row, client in enumerate(clients):
            found = lengths.at(client, float(table[row, 1]))
            if found is not None:
                known[row], has[row] = found, True
        absent = len({client for client, some in zip(clients, has, strict=True) if not some})
        if absent:
            notes.append(f"{absent} clients have no lengths: the mean of the others in the window stands for them")
    weight = table[:, 2] * has
    cover = np.bincount(at, weight)
    isl, osl = (
        np.where(cover > 0, np.bincount(at, weight * known[:, k]) / np.where(cover > 0, cover, 1.0), np.nan)
        for k in (0, 1)
    )
    return np.stack([np.zeros(times.size), times, rate, isl, isl, osl, cover], axis=1), notes


def _stretches(rows: Rows, columns: Columns, table: np.ndarray) -> Rates:
    """Each row holds until the next one; after a jump in time (over 1.5 usual steps) nothing came."""
    time = table[:, 1]
    if time.size < 2:
        raise InputError(f"{rows.file} has one usable row, so how long it holds is unknown; give at least two rows.")
    gaps = np.diff(time)
    usual = float(np.median(gaps))
    if columns.client is not None:  # windows without a request have no row: the grid is that of the shortest step
        usual = float(gaps.min())
    step = np.append(np.where(gaps > 1.5 * usual, usual, gaps), usual)
    notes = rows.notes
    jumps = np.flatnonzero(gaps > 1.5 * usual)
    if jumps.size:
        silent = float(gaps[jumps].sum() - usual * jumps.size)
        notes.append(f"{jumps.size:,} gaps between rows ({silent:,.0f} s together) count as times without requests")
    rate, cover = table[:, 2], table[:, 6]
    if columns.rate_unit == 0.0:
        rate, cover = rate / step, cover / step
    rates = Rates(time - time[0], step, rate, table[:, 3], table[:, 4], table[:, 5], cover)
    if rates.requests > 0 and columns.cover is not None and cover.sum() < rate.sum() * (1 - 1e-9):
        share = float((cover * step).sum() / rates.requests)
        notes.append(f"lengths are known for {share:.1%} of the requests and stand for the others of their window")
    zero = np.flatnonzero(rate == 0)
    if zero.size:
        runs = 1 + int((np.diff(zero) > 1).sum())
        notes.append(f"{zero.size:,} rows in {runs:,} stretches have a rate of 0: idle, or not recorded")
    return rates
