"""Numbers out of the JSON of a benchmark, each refusal naming the file, the line and the field."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from fluidq._errors import InputError
from fluidq.io._files import short
from fluidq.measurements import check

SECONDS = {"ms": 1e-3, "s": 1.0}

# Unit texts of AIPerf and GenAI-Perf to SI factors; anything else is refused, for a guess would be silent.
FACTORS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "milliseconds": 1e-3,
    "nanoseconds": 1e-9, "microseconds": 1e-6,
    "tokens": 1.0, "requests": 1.0, "count": 1.0, "": 1.0,
    "tokens/sec": 1.0, "requests/sec": 1.0, "tokens/s": 1.0, "requests/s": 1.0,
}  # fmt: skip


class Fields:
    """One JSON object, and the words for where it stands."""

    def __init__(self, where: str, data: Mapping[str, Any]):
        self.where, self.data = where, data

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def number(self, key: str, *, unlimited: bool = False) -> float:
        """The value >= 0 of `key`; NaN where it is missing, null or, if `unlimited` may be, infinite ("inf" too)."""
        value = self.data.get(key)
        if value is None:
            return math.nan
        if unlimited and (value == "inf" or value == math.inf or value == "trace"):
            return math.nan
        return self.plain(key, value)

    def plain(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.where}: {key} is {short(value)}; it must be a number.")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= 0):
            raise InputError(f"{self.where}: {key} is {number:g}; it must be a finite number >= 0.")
        return number

    def text(self, key: str) -> str | None:
        value = self.data.get(key)
        return value if isinstance(value, str) and value else None

    def array(self, key: str) -> Float64[np.ndarray, " n"] | None:
        """The numbers >= 0 of a list (null is NaN); None where there is no list."""
        values = self.data.get(key)
        if values is None:
            return None
        if not isinstance(values, list):
            raise InputError(f"{self.where}: {key} is {short(values)}; it must be a list of numbers.")
        return np.array(
            [math.nan if v is None else self.plain(f"{key}[{i}]", v) for i, v in enumerate(values)], dtype=np.float64
        )

    def lists(self, key: str) -> list[list[float]] | None:
        """The lists of numbers in a list, such as the gaps between the tokens of each request."""
        values = self.data.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or not all(isinstance(v, list | None) for v in values):
            raise InputError(f"{self.where}: {key} is {short(values)}; it must be a list of lists of numbers.")
        return [[self.plain(f"{key}[{i}]", x) for x in v or []] for i, v in enumerate(values)]


def latencies(fields: Fields, names: Mapping[str, str], pattern: str, factor: float) -> dict[str, float]:
    """The mean, median and 99th percentile of each latency in `names` (their name -> ours) in seconds, checked.

    0 is what a client writes where it measured nothing (no stream, one token): such a value is left out.
    """
    row = {}
    for theirs, ours in names.items():
        for statistic, end in (("mean", ""), ("median", "_p50"), ("p99", "_p99")):
            key = pattern.format(statistic=statistic, name=theirs)
            value = fields.number(key) * factor
            if value > 0:
                check(f"{fields.where}: {key}", ours + end, value)
                row[ours + end] = value
    return row


def agree(fields: Fields, words: str, one: float, other: float, tolerance: float) -> None:
    """Refuse two figures of a file that say the same thing and differ by more than `tolerance` (relative)."""
    if math.isnan(one) or math.isnan(other) or abs(one - other) <= tolerance * max(abs(one), abs(other)):
        return
    raise InputError(
        f"{fields.where}: {words} is {one:g}, but {other:g} by the file's other figures; "
        f"a unit or a field is wrong: mend the file, or state the unit (time_unit, --time-unit)."
    )


def consistent(where: str, row: Mapping[str, float]) -> None:
    """Refuse a row whose times cannot belong together: one of them is in another unit.

    No time is longer than the run. A time is not negative, so its median is at most twice, its 99th percentile at most
    100 times the mean (Markov), and the median is at most the 99th percentile. A request lasts as long as its first
    token and the others together, a chunk of tokens as long as its tokens, and no more requests are in flight than the
    client allowed; means of products differ from products of means, so these get a wide margin.
    """

    def get(name: str) -> float:
        return row.get(name, math.nan)

    def wrong(words: str) -> InputError:
        return InputError(
            f"{where}: {words}: a unit is wrong; mend the file, or state the unit of its latencies: time_unit='ms' or "
            f"'s' (--time-unit)."
        )

    run = get("duration")
    for name in ("ttft", "tpot", "itl", "e2el"):
        mean, middle, high = (get(name + end) for end in ("", "_p50", "_p99"))
        for value, end in ((mean, ""), (middle, "_p50"), (high, "_p99")):
            if value > 1.001 * run:
                raise wrong(f"{name + end} is {value:g} s in a run of {run:g} s")
        for value, most, end in ((middle, 2.0, "_p50"), (high, 100.0, "_p99")):
            if value > 1.001 * most * mean:
                raise wrong(f"{name + end} is {value:g} s, over {most:g} times the mean of {mean:g} s")
        if middle > 1.001 * high:
            raise wrong(f"{name}_p50 is {middle:g} s, over {name}_p99 of {high:g} s")
    first, each, whole, osl = get("ttft"), get("tpot"), get("e2el"), get("osl")
    parts = first + max(osl - 1.0, 0.0) * each if osl > 1 else first
    if not parts / 5 <= whole <= parts * 5 and not math.isnan(whole + parts):
        raise wrong(f"e2el is {whole:g} s, but TTFT and {osl:g} tokens make {parts:g} s")
    if not each / 5 <= get("itl") <= each * 50 and not math.isnan(each + get("itl")):
        raise wrong(f"itl is {get('itl'):g} s at a tpot of {each:g} s")
    in_flight = get("served_rate") * (parts if math.isnan(whole) else whole)
    if in_flight > 2.0 * get("concurrency"):
        raise wrong(f"{in_flight:g} requests were in flight, over the client's limit of {get('concurrency'):g}")


def overlap(
    start: Float64[np.ndarray, " n"], stop: Float64[np.ndarray, " n"], context: Float64[np.ndarray, " n"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """What decodes beside each request: sequences (itself included) and their mean context, averaged over its decode.

    A request decodes from `start` to `stop` [s] and counts there with its mean `context` [tok]. The number of running
    sequences is a step function of time; its integral, taken between the two ends of a request, gives the mean.
    """
    times = np.concatenate([start, stop])
    order = np.argsort(times, kind="stable")
    times = times[order]
    one = np.concatenate([np.ones_like(start), -np.ones_like(stop)])[order]
    tokens = np.concatenate([context, -context])[order]
    gaps = np.diff(times, append=times[-1:])
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(one) * gaps)])[:-1]
    area_tokens = np.concatenate([[0.0], np.cumsum(np.cumsum(tokens) * gaps)])[:-1]
    length = stop - start
    some = length > 0
    running = np.interp(stop, times, area) - np.interp(start, times, area)
    weight = np.interp(stop, times, area_tokens) - np.interp(start, times, area_tokens)
    mean = np.where(some, running / np.where(some, length, 1.0), 1.0)
    ctx = np.where(running > 0, weight / np.where(running > 0, running, 1.0), context)
    return mean, ctx
