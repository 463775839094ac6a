"""Measurements as every reader returns them: named columns in SI units, each row with the line that it came from."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Optional

import numpy as np
from jaxtyping import Float64, Int64

from fluidq._errors import InputError, unknown
from fluidq.units import Number

Column = Float64[np.ndarray, " rows"]


@dataclass(frozen=True)
class Quantity:
    """What a column holds: its SI unit, the words for it, and the values outside of which a unit must be wrong."""

    unit: str
    words: str
    low: float = 0.0
    high: float = math.inf


def _latency(words: str, low: float, high: float) -> dict[str, Quantity]:
    """A mean, and its percentiles under looser bounds: one slow request is no wrong unit, a slow mean is."""
    return {
        "": Quantity("s", f"{words}, mean", low, high),
        "_p50": Quantity("s", f"{words}, median", 0.0, high),
        "_p99": Quantity("s", f"{words}, 99th percentile", 0.0, 100 * high),
    }


_LATENCIES = {
    # A first token takes a millisecond at least and no service waits a quarter of an hour for it.
    "ttft": ("time to first token", 1e-3, 1e3),
    # 10,000 tokens/s for one user, and one token in 10 s.
    "tpot": ("time per output token", 1e-4, 10.0),
    "itl": ("time between chunks of tokens", 1e-4, 10.0),
    "e2el": ("time from request to last token", 1e-3, 1e5),
}

QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "time": Quantity("s", "start of the row since the first one"),
        "duration": Quantity("s", "length of the run or window", 0.0, 1e9),
        # Two rates, never one in the other's place: what was asked for and what came out.
        "offered_rate": Quantity("1/s", "requests that arrived per second", 0.0, 1e9),
        "served_rate": Quantity("1/s", "requests that were finished per second", 0.0, 1e9),
        "requests": Quantity("1", "requests finished"),
        "failed": Quantity("1", "requests failed"),
        "isl": Quantity("tok", "input length, mean: what is stored and sent", 0.0, 1e9),
        "isl_computed": Quantity("tok", "input length less cache hits, mean: what prefill computes", 0.0, 1e9),
        "osl": Quantity("tok", "output length, mean", 0.0, 1e9),
        "hit": Quantity("1", "share of input tokens found in the prefix cache", 0.0, 1.0),
        "accept": Quantity("tok", "output tokens per decode step and sequence", 0.5, 100.0),
        "concurrency": Quantity("1", "most requests that the client kept in flight"),
        "running": Quantity("1", "requests in the decode batches of the whole pool, mean"),
        "waiting": Quantity("1", "requests waiting for prefill, mean"),
        "waiting_least": Quantity("1", "requests waiting for prefill, least of the window"),
        "buffered": Quantity("1", "requests between prefill and decode, mean"),
        "buffered_least": Quantity("1", "requests between prefill and decode, least of the window"),
        "batch": Quantity("1", "decode sequences per GPU, mean", 0.0, 1e6),
        "batch_limit": Quantity("1", "most decode sequences per GPU that the engine was configured for", 0.0, 1e6),
        "context": Quantity("tok", "context of a decode step, mean", 0.0, 1e9),
        "input_rate": Quantity("tok/s", "input tokens per second, whole system"),
        "output_rate": Quantity("tok/s", "output tokens per second, whole system"),
        "computed_rate": Quantity("tok/s", "input tokens computed per second, whole prefill pool"),
        "prefill_rate": Quantity("tok/s", "input tokens computed per second and prefill GPU", 0.0, 1e8),
        "decode_rate": Quantity("tok/s", "output tokens per second and decode GPU", 0.0, 1e8),
        "prefill_gpus": Quantity("1", "GPUs of the prefill pool"),
        "decode_gpus": Quantity("1", "GPUs of the decode pool"),
        "prefill_workers": Quantity("1", "workers of the prefill pool"),
        "decode_workers": Quantity("1", "workers of the decode pool"),
        "worker_gpus": Quantity("1", "GPUs that work on one prompt"),
        "prefill_time": Quantity("s", "prefill of one prompt, mean, without its wait", 1e-6, 1e4),
        "queue_time": Quantity("s", "wait before prefill, mean", 0.0, 1e5),
        "kv_use": Quantity("1", "share of the KV cache in use", 0.0, 1.05),
        "capacity_tokens": Quantity("tok", "tokens that the KV cache of the decode pool holds"),
        "transfer_time": Quantity("s", "one KV transfer, mean", 0.0, 1e4),
        "transfer_size": Quantity("B", "bytes of one KV transfer, mean", 0.0, 1e14),
        "transfer_rate": Quantity("B/s", "KV bytes sent per second, whole system", 0.0, 1e16),
        "transfer_tokens": Quantity("tok/s", "input tokens whose KV was sent per second", 0.0, 1e12),
        "cold_start": Quantity("s", "from the start of a worker to its readiness", 0.1, 1e5),
        "preemption_rate": Quantity("1/s", "sequences thrown out of the batch per second"),
        **{
            name + end: quantity
            for name, bounds in _LATENCIES.items()
            for end, quantity in _latency(*bounds).items()
        },
    }
)  # fmt: skip

KINDS = ("runs", "requests", "profile", "windows", "starts")


@dataclass(frozen=True, eq=False)
class Measurements:
    """A table of measurements.

    Args:
        source: the file or address.
        format: what was recognised in it.
        kind: what a row is: "runs" (a whole benchmark), "requests", "profile" (an idle engine at one setting),
            "windows" (of time), "starts" (of a worker).
        columns: name in `QUANTITIES` -> values in its SI unit, shape (rows,), NaN where a row has none; read-only.
        lines: line of the file, or index within the file's arrays, of each row.
        facts: text such as the model, the engine, "topology" ("disaggregated" or "aggregated").
        dropped: (line, reason) of each row left out.
        notes: what was decided on the way.
        detail: a finer table of the same file, such as the single requests behind a run.

    Raises:
        InputError: an unknown column, a length that differs, or a value that cannot be (naming source and line).
    """

    source: str
    format: str
    kind: str
    columns: Mapping[str, Float64[np.ndarray, "..."]]
    lines: Int64[np.ndarray, " rows"]
    facts: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    detail: Optional["Measurements"] = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of measurements", self.kind, KINDS)
        made = {}
        for name, values in self.columns.items():
            if name not in QUANTITIES:
                raise unknown("measured quantity", name, QUANTITIES)
            column = np.array(values, dtype=np.float64)
            if column.shape != self.lines.shape:
                raise InputError(f"{self.source}: {name} has {column.size} values for {self.lines.size} rows.")
            quantity = QUANTITIES[name]
            inside = np.isnan(column) | (np.isfinite(column) & (column >= quantity.low) & (column <= quantity.high))
            if not inside.all():
                first = int(np.argmin(inside))
                check(f"{self.source}, line {self.lines[first]}", name, float(column[first]))
            column.setflags(write=False)
            made[name] = column
        object.__setattr__(self, "columns", MappingProxyType(made))
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))

    @classmethod
    def from_rows(
        cls, source: str, format: str, kind: str, rows: Iterable[tuple[int, Mapping[str, Number]]], **rest: Any
    ) -> "Measurements":
        """The table of (line, {name: SI value}) rows; a name that a row lacks is NaN there."""
        listed = list(rows)
        names = list(dict.fromkeys(name for _, row in listed for name in row))
        columns = {name: np.array([row.get(name, math.nan) for _, row in listed], dtype=np.float64) for name in names}
        lines = np.array([line for line, _ in listed], dtype=np.int64)
        return cls(source, format, kind, {n: c for n, c in columns.items() if not np.isnan(c).all()}, lines, **rest)

    @property
    def rows(self) -> int:
        """Number of rows kept."""
        return self.lines.size

    def get(self, name: str) -> Column:
        """The column, or NaN in every row where it was not measured."""
        if name not in QUANTITIES:
            raise unknown("measured quantity", name, QUANTITIES)
        return self.columns.get(name, np.full(self.rows, math.nan))

    def mean(self, name: str, weight: str | None = None) -> float | None:
        """Mean over the rows that have the value, weighted by another column where asked; None where no row has."""
        values = self.get(name)
        weights = np.ones(self.rows) if weight is None else self.get(weight)
        good = ~np.isnan(values) & (weights > 0)
        if not good.any():
            return None
        return math.fsum(values[good] * weights[good]) / math.fsum(weights[good])

    def summary(self) -> dict[str, Any]:
        """The figures of `fluidq inspect`: None for what the file does not say."""
        of_requests = self.kind == "requests"
        weight = "requests" if "requests" in self.columns else None
        total = None
        if of_requests:
            total = float(self.rows)
        elif weight:
            total = math.fsum(v for v in self.get("requests") if not math.isnan(v))
        isl = self.mean("isl", weight)
        computed = self.mean("isl_computed", weight)
        if computed is None and "hit" not in self.columns:
            computed = isl
        out = {
            "format": self.format,
            "kind": self.kind,
            "rows": self.rows + len(self.dropped),
            "kept": self.rows,
            "dropped": len(self.dropped),
            "requests": total,
            "duration_s": self._duration(),
            "mean_isl": isl,
            "mean_isl_computed": computed,
            "mean_osl": self.mean("osl", weight),
            "peak_to_mean": self._peak_to_mean(),
            "quantities": sorted(self.columns),
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }
        return out

    def _duration(self) -> float | None:
        if "duration" in self.columns:
            return math.fsum(v for v in self.get("duration") if not math.isnan(v))
        if self.kind == "requests" and {"time", "e2el"} <= self.columns.keys() and self.rows:
            return float(np.nanmax(self.get("time") + self.get("e2el")))
        return None

    def _peak_to_mean(self) -> float | None:
        """Of the rate of requests over windows; a benchmark of few runs has none."""
        if self.kind != "windows":
            return None
        name = "offered_rate" if "offered_rate" in self.columns else "served_rate"
        rate = self.get(name)
        rate = rate[~np.isnan(rate)]
        return float(rate.max() / rate.mean()) if rate.size and rate.mean() > 0 else None

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.format}, {self.rows:,} {self.kind}, {len(self.dropped):,} rows dropped"]
        for name, values in self.columns.items():
            good, quantity = values[~np.isnan(values)], QUANTITIES[name]
            unit = "" if quantity.unit == "1" else f" {quantity.unit}"
            lines.append(f"  {name:<18} {good.mean():>12.6g}{unit:<6} ({quantity.words}; {good.size:,} rows)")
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  line {line}: {reason}" for line, reason in self.dropped[:5]]
        if len(self.dropped) > 5:
            lines.append(f"  and {len(self.dropped) - 5:,} more")
        return "\n".join(lines)


def check(where: str, name: str, value: float) -> None:
    """Refuse a value of the quantity `name` that no system has; for a time, say which unit would make it right.

    Raises:
        InputError: naming `where` (source and line), the quantity, the value and what to do.
    """
    quantity = QUANTITIES[name]
    if math.isfinite(value) and quantity.low <= value <= quantity.high:
        return
    unit = "" if quantity.unit == "1" else f" {quantity.unit}"
    wanted = f"a finite number from {quantity.low:g} to {quantity.high:g}{unit}"
    hint = ""
    if quantity.unit == "s" and math.isfinite(value):
        for factor, text in ((1e-3, "ms"), (1e3, "s")):
            if value > 0 and quantity.low <= value * factor <= quantity.high:
                hint = f" If the file holds {text} here, say so: time_unit={text!r} (--time-unit {text})."
                break
    raise InputError(f"{where}: {name} ({quantity.words}) is {value:g}{unit}; it must be {wanted}.{hint}")
