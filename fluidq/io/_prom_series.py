"""Prometheus responses as series, and series as one value per window: rates with resets, gaps, unequal sample times."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from fluidq._errors import InputError
from fluidq.io._files import short

Windows = Float64[np.ndarray, " windows"]
Edges = Float64[np.ndarray, " edges"]
LAST = 1e11  # Unix seconds; what is larger is milliseconds
GAP = 5.0  # intervals between samples that are this many times the usual one hold no samples: a gap


@dataclass(frozen=True)
class Series:
    """One series: Unix times [s], increasing, and finite values."""

    name: str
    labels: Mapping[str, str]
    times: Float64[np.ndarray, " samples"]
    values: Float64[np.ndarray, " samples"]

    @property
    def step(self) -> float:
        """The usual distance of samples [s]; infinite for a single one."""
        return float(np.median(np.diff(self.times))) if self.times.size > 1 else math.inf


@dataclass
class Tally:
    """What was left out on the way, for the notes."""

    not_finite: int = 0
    twice: int = 0
    resets: int = 0


def parse(where: str, response: Any, tally: Tally, name: str | None = None) -> list[Series]:
    """The series of one `query_range` or `query` response, whole or only its `data`.

    `name` is for series without `__name__`, which a query that computes something returns. Values are text and may be
    "NaN" or "+Inf": such samples are left out and counted. Native histograms become NAME_sum and NAME_count.

    Raises:
        InputError: for an error response (with its text), and for what is no such response.
    """
    if not isinstance(response, dict):
        raise InputError(f"{where} is {short(response)}; it must be a Prometheus response.")
    if response.get("status") == "error":
        kind, text = (str(response.get(key, ""))[:300] for key in ("errorType", "error"))
        raise InputError(f"{where} is an error of the server: {kind}: {text}.")
    data = response.get("data", response)
    if not isinstance(data, dict) or not isinstance(data.get("result"), list):
        raise InputError(f"{where} has no data.result list; it must be a Prometheus query_range or query response.")
    kind = data.get("resultType")
    if kind not in ("matrix", "vector"):
        raise InputError(f"{where} has the resultType {short(kind)}; it must be 'matrix' or 'vector'.")
    found = []
    for index, entry in enumerate(data["result"]):
        at = f"{where}, result {index}"
        labels = entry.get("metric") if isinstance(entry, dict) else None
        if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
            raise InputError(f"{at}: metric is {short(labels)}; it must be an object of labels.")
        labels = dict(labels)
        own = labels.pop("__name__", name)
        if own is None:
            raise InputError(f"{at}: the series has no __name__; save the plain series, or name the query by a key.")
        for suffix, samples in _samples(at, entry):
            times, values = _arrays(at, samples, tally)
            if times.size:
                found.append(Series(own + suffix, labels, times, values))
    return found


def _samples(at: str, entry: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    plain = entry.get("values", [entry["value"]] if "value" in entry else [])
    native = entry.get("histograms", [entry["histogram"]] if "histogram" in entry else [])
    if not isinstance(plain, list) or not isinstance(native, list):
        raise InputError(f"{at}: values is {short(plain)}; it must be a list of [time, 'value'].")
    if plain:
        yield "", plain
    if native:
        for key in ("sum", "count"):
            try:
                yield f"_{key}", [[time, histogram[key]] for time, histogram in native]
            except (TypeError, ValueError, KeyError):
                raise InputError(f"{at}: histograms must be a list of [time, {{count, sum, ...}}].") from None


def _arrays(
    at: str, samples: list[Any], tally: Tally
) -> tuple[Float64[np.ndarray, " samples"], Float64[np.ndarray, " samples"]]:
    rows = []
    for sample in samples:
        if not isinstance(sample, list) or len(sample) != 2:
            raise InputError(f"{at}: a sample is {short(sample)}; it must be [time, 'value'].")
        time, value = sample
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < math.inf:
            raise InputError(f"{at}: a time is {short(time)}; it must be Unix seconds.")
        if time > LAST:
            raise InputError(f"{at}: a time is {time:g}, which is milliseconds; it must be Unix seconds.")
        rows.append((float(time), _number(at, value)))
    pairs = np.array(rows, dtype=np.float64).reshape(-1, 2)
    good = np.isfinite(pairs[:, 1])
    tally.not_finite += int((~good).sum())
    return _ordered(pairs[good, 0], pairs[good, 1], tally)


def _number(at: str, value: Any) -> float:
    if isinstance(value, str) and value.isascii() and "_" not in value and len(value) < 64:
        try:
            return float(value)
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 else math.inf
    raise InputError(f"{at}: a value is {short(value)}; it must be a number as text, such as '1.5e-05' or 'NaN'.")


def _ordered(
    times: Float64[np.ndarray, " n"], values: Float64[np.ndarray, " n"], tally: Tally
) -> tuple[Float64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """In order of time, the first of samples with one time kept."""
    if times.size and not (np.diff(times) > 0).all():
        unique, first = np.unique(times, return_index=True)
        tally.twice += times.size - unique.size
        return unique, values[first]
    return times, values


def join(series: Iterable[Series], tally: Tally) -> list[Series]:
    """Parts of one series, from split queries or several files, put together; a sample in both counts once."""
    parts: dict[tuple[Any, ...], list[Series]] = {}
    for one in series:
        parts.setdefault((one.name, *sorted(one.labels.items())), []).append(one)
    joined = []
    for group in parts.values():
        if len(group) == 1:
            joined.append(group[0])
            continue
        times, values = (np.concatenate([getattr(part, name) for part in group]) for name in ("times", "values"))
        before = tally.twice
        times, values = _ordered(times, values, tally)
        tally.twice = before  # the seam of split queries is no fault of the data
        joined.append(Series(group[0].name, group[0].labels, times, values))
    return joined


def without_ranks(series: Sequence[Series], ranks: Sequence[str]) -> list[Series]:
    """One of the series that differ only in the labels `ranks`: copies of one value, one per rank."""
    kept: dict[tuple[Any, ...], tuple[Any, Series]] = {}
    for one in series:
        key = (one.name, *sorted((k, v) for k, v in one.labels.items() if k not in ranks))
        rank = tuple((len(v), v) for v in (one.labels.get(label, "") for label in ranks))
        if key not in kept or rank < kept[key][0]:
            kept[key] = (rank, one)
    return [one for _, one in kept.values()]


def grid(series: Sequence[Series], window: float | None) -> tuple[Edges, float]:
    """The edges of whole windows that the series cover, in Unix seconds, and the usual step of the samples [s].

    Series start at their own scrape times: the grid begins where all those have begun that began within two steps of
    the first, and ends likewise, so that the first window is not short of counts. The default window is 60 s, or four
    steps where that is longer.
    """
    many = [one for one in series if one.times.size > 1]
    if not many:
        raise InputError("the Prometheus data has one sample per series; it must be a query_range over some time.")
    step = float(np.median([one.step for one in many]))
    width = max(60.0, 4 * step) if window is None else window
    if width < 2 * step:
        raise InputError(f"window is {width:g} s; it must be at least {2 * step:g} s, two of the data's steps.")
    firsts = np.array([one.times[0] for one in many])
    lasts = np.array([one.times[-1] for one in many])
    start = firsts[firsts <= firsts.min() + 2 * step].max()
    stop = lasts[lasts >= lasts.max() - 2 * step].min()
    count = math.floor((stop - start) / width * (1 + 1e-9))
    if count < 1:
        raise InputError(
            f"the Prometheus data spans {stop - start:g} s, less than a window of {width:g} s; "
            f"choose a smaller window or save a longer range."
        )
    if count > 1_000_000:
        raise InputError(f"the Prometheus data has {count:,} windows of {width:g} s; choose a larger window.")
    return start + width * np.arange(count + 1), step


def increase(one: Series, edges: Edges, tally: Tally) -> Windows:
    """How much a counter grew in each window.

    Between two samples it grew evenly; where it fell it was reset, and what it shows then it has counted since. A
    window before the first sample or after the last has none: the worker was not there.
    """
    change = np.diff(one.values)
    fell = change < 0
    tally.resets += int(fell.sum())
    change = np.where(fell, one.values[1:], change)
    total = np.concatenate([[0.0], np.cumsum(change)])
    return np.diff(np.interp(edges, one.times, total))


def blind(one: Series, edges: Edges, step: float) -> np.ndarray:
    """Which windows lie by half or more in a gap of the series, where only the total is known; shape (windows,)."""
    apart = np.diff(one.times)
    total = np.concatenate([[0.0], np.cumsum(np.where(apart > GAP * max(step, one.step), apart, 0.0))])
    return np.diff(np.interp(edges, one.times, total)) >= 0.5 * np.diff(edges)


def level(one: Series, edges: Edges, least: bool = False) -> Windows:
    """Mean (or least) of the samples of a gauge in each window.

    NaN in a gap; 0 before the first sample and after the last, where the worker was not there.
    """
    at = np.searchsorted(edges, one.times, side="right") - 1
    inside = (at >= 0) & (at < edges.size - 1)
    at, values = at[inside], one.values[inside]
    count = np.bincount(at, minlength=edges.size - 1)
    if least:
        out = np.full(edges.size - 1, math.inf)
        np.minimum.at(out, at, values)
    else:
        out = np.bincount(at, values, minlength=edges.size - 1) / np.maximum(count, 1)
    away = (edges[1:] <= one.times[0]) | (edges[:-1] > one.times[-1])
    return np.where(count > 0, out, np.where(away, 0.0, math.nan))


def alive(one: Series, edges: Edges) -> np.ndarray:
    """Which windows the series reaches into; shape (windows,)."""
    return (edges[1:] > one.times[0]) & (edges[:-1] <= one.times[-1])
