"""Load as a fluid sees it: request rate and mean lengths per window, with other realisations of the same process."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from fluidq import _synthetic
from fluidq._errors import refuse

Number = float | int | np.integer | np.floating
Whole = int | np.integer
Windows = Float64[np.ndarray, " windows"]

MOST_WINDOWS = 10_000_000

# Bootstrap: what is slower than this is the level and stays; what is faster is redrawn, in blocks a quarter as long.
LEVEL_SECONDS = 600.0
BLOCK_SECONDS = 150.0
FEWEST_WINDOWS = 4

DAY = 86_400.0


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests and their lengths as piecewise-constant functions of time, one value per window.

    `rate` [req/s], `isl_stored` (whole input: what crosses the fabric and sits in memory), `isl_computed` (input less
    prefix-cache hits: what prefill computes) and `osl` [tokens, mean per request of the window]; all of shape
    (windows,), read-only. In a window without requests the lengths are the overall means. `window` in seconds.
    `again` makes another realisation from a seed where the process is known (a generator); a recorded workload has
    none and is bootstrapped, see `reseeded`.

    Raises `InputError` for a value that is not finite, a rate < 0, a length <= 0 (computed: < 0), more computed than
    stored, or no request at all.
    """

    name: str
    window: float
    rate: Windows
    isl_computed: Windows
    isl_stored: Windows
    osl: Windows
    again: Callable[[int], "Workload"] | None = None

    def __post_init__(self):
        object.__setattr__(self, "window", _positive("window", self.window, "s"))
        n = np.size(self.rate)
        for field in ("rate", "isl_computed", "isl_stored", "osl"):
            values = np.array(getattr(self, field), dtype=np.float64)
            if values.shape != (n,) or n == 0:
                raise refuse(f"the shape of {field}", values.shape, f"(windows,), here ({max(n, 1)},)")
            _check_sign(field, values)
            values.setflags(write=False)
            object.__setattr__(self, field, values)
        # Weighted means round: a computed length may exceed the stored one by that much, and is then the stored one.
        over = self.isl_computed > self.isl_stored * (1 + 1e-12)
        _check("isl_computed", self.isl_computed, ~over, "at most isl_stored: a cache hit only takes tokens away")
        clipped = np.minimum(self.isl_computed, self.isl_stored)
        clipped.setflags(write=False)
        object.__setattr__(self, "isl_computed", clipped)
        total = math.fsum(self.rate) * self.window
        if not 0 < total < 1e15:
            raise refuse("the number of requests (sum of rate * window)", total, "> 0 and < 1e15")

    @classmethod
    def from_windows(
        cls,
        *,
        window: Number,
        rate: Any,
        isl_stored: Any,
        osl: Any,
        isl_computed: Any = None,
        name: str = "windows",
    ) -> "Workload":
        """A workload from one value per window (array-likes; a scalar length holds for every window).

        `window` [s], `rate` [req/s], lengths [tokens]; `isl_computed` defaults to `isl_stored` (no cache hits). In a
        window without requests the lengths may be anything, NaN too: the overall means replace them.
        Raises `InputError` as the class does, and for what is not numbers.
        """
        seconds = _positive("window", window, "s")
        rate = _numbers("rate", rate)
        if rate.ndim != 1 or rate.size == 0:
            raise refuse("the shape of rate", rate.shape, "(windows,) with at least one window")
        _check_sign("rate", rate)
        if not rate.any():
            raise refuse("rate", 0.0, "> 0 in at least one window")
        lengths: dict[str, np.ndarray] = {}
        given = {"isl_stored": isl_stored, "osl": osl, "isl_computed": isl_computed}
        for field, values in given.items():
            row = lengths["isl_stored"] if values is None and field == "isl_computed" else _numbers(field, values)
            if row.ndim == 0:
                row = np.full(rate.shape, float(row))
            if row.shape != rate.shape:
                raise refuse(f"the shape of {field}", row.shape, f"that of rate, {rate.shape}")
            _check_sign(field, row, rate == 0)
            lengths[field] = _fill(rate, row)
        return cls(name, seconds, rate, lengths["isl_computed"], lengths["isl_stored"], lengths["osl"])

    # What it holds

    @property
    def duration(self) -> float:
        """Length of all windows together [s]."""
        return self.window * self.rate.size

    @property
    def times(self) -> Windows:
        """Start of each window [s], shape (windows,)."""
        return self.window * np.arange(self.rate.size, dtype=np.float64)

    @property
    def requests(self) -> float:
        """Number of requests, the sum of rate * window."""
        return math.fsum(self.rate * self.window)

    @property
    def mean_isl(self) -> float:
        """Mean stored input length over requests [tokens]."""
        return self._mean(self.isl_stored)

    @property
    def mean_isl_computed(self) -> float:
        """Mean computed input length over requests [tokens]."""
        return self._mean(self.isl_computed)

    @property
    def mean_osl(self) -> float:
        """Mean output length over requests [tokens]."""
        return self._mean(self.osl)

    @property
    def hit(self) -> float:
        """Share of input tokens that the prefix cache served, 0 to 1."""
        return 1.0 - self.mean_isl_computed / self.mean_isl

    def _mean(self, lengths: np.ndarray) -> float:
        return math.fsum(self.rate * lengths) / math.fsum(self.rate)

    # Other workloads made from it

    def scaled(self, factor: Number) -> "Workload":
        """The same lengths at `factor` times the rate; `factor` > 0 or `InputError`."""
        times = _positive("factor", factor, "")
        return replace(self, rate=self.rate * times, again=self._after("scaled", times))

    def slice(self, t0: Number, t1: Number) -> "Workload":
        """The windows from `t0` to `t1` [s], each cut moved to the nearest window boundary.

        Raises `InputError` unless 0 <= t0 < t1 <= duration and a request is left.
        """
        start, stop = _finite("t0", t0, "s"), _finite("t1", t1, "s")
        first, last = round(start / self.window), round(stop / self.window)
        if not 0 <= start <= self.duration:
            raise refuse("t0", start, f"a time from 0 to {self.duration:g} s")
        if not start < stop <= self.duration * (1 + 1e-12):
            raise refuse("t1", stop, f"a time after t0 = {start:g} s and at most {self.duration:g} s")
        if first == last:
            raise refuse("t1 - t0", stop - start, f"at least one window of {self.window:g} s")
        rate = self.rate[first:last]
        if not rate.any():
            raise refuse(f"the number of requests from {start:g} s to {stop:g} s", 0, "> 0: choose a longer slice")
        computed, stored, output = (_fill(rate, row[first:last]) for row in self._lengths())
        return Workload(self.name, self.window, rate, computed, stored, output, self._after("slice", start, stop))

    def split(self, t: Number) -> tuple["Workload", "Workload"]:
        """What comes before `t` [s] and what comes after, cut at the nearest window boundary."""
        return self.slice(0.0, t), self.slice(t, self.duration)

    def resampled(self, window: Number) -> "Workload":
        """The same flow of requests and tokens on windows of another length [s], coarser or finer.

        Requests and tokens are spread evenly within an old window, so their totals are those of before; where the
        duration is no multiple of `window` the last window is partly empty.
        """
        ratio = _positive("window", window, "s") / self.window
        old = self.rate.size
        if old / ratio > MOST_WINDOWS:
            raise refuse("window", window, f"at least {self.duration / MOST_WINDOWS:g} s ({MOST_WINDOWS:,} windows)")
        # Edges in units of the old window; one that misses an old edge by rounding only is put onto it.
        edges = np.arange(max(1, math.ceil(old / ratio - 1e-9)) + 1) * ratio
        edges = np.where(np.abs(edges - np.rint(edges)) < 1e-9 * np.maximum(1.0, edges), np.rint(edges), edges)
        cuts = np.unique(np.concatenate([np.arange(old + 1), edges[edges < old]]))
        middle = (cuts[1:] + cuts[:-1]) / 2
        source, target = middle.astype(np.int64), np.searchsorted(edges, middle, side="right") - 1
        share = np.diff(cuts)
        totals = [np.bincount(target, share * row[source], minlength=edges.size - 1) for row in self._totals()]
        return _from_totals(self.name, float(window), np.stack(totals), self._after("resampled", float(window)))

    def reseeded(self, seed: Whole) -> "Workload":
        """Another realisation of the same process, for judging on data that was not tuned on; the same for one seed.

        A generated workload is generated anew (never the realisation one has). A recorded one is bootstrapped: its
        level, a Hann-weighted mean over 10 minutes of requests and of computed, cached and output tokens, stays;
        the ratios of the windows to that level are redrawn at random, the four jointly (a burst keeps its own mix),
        in circular blocks of 150 s. Each ratio is used equally often on average and is scaled once, so the expected
        totals of requests and of each kind of token are those of the record.

        Raises `InputError` for a seed < 0 or a record of fewer than 4 windows, which leaves nothing to redraw.
        """
        whole = _seed(seed)
        return self.again(whole) if self.again is not None else _bootstrap(self, whole)

    def _totals(self) -> np.ndarray:
        """Requests, computed, stored and output tokens of each window, shape (4, windows)."""
        return self.rate * self.window * np.stack([np.ones_like(self.rate), *self._lengths()])

    def _lengths(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.isl_computed, self.isl_stored, self.osl

    def _after(self, method: str, *arguments: float) -> Callable[[int], "Workload"] | None:
        """`again`, followed by the change that makes the present workload."""
        return None if self.again is None else partial(_again_then, self.again, method, arguments)


def _again_then(again: Callable[[int], Workload], method: str, arguments: tuple[float, ...], seed: int) -> Workload:
    return getattr(again(seed), method)(*arguments)


def _from_totals(name: str, window: float, totals: np.ndarray, again: Callable | None = None) -> Workload:
    """The workload with the given requests, computed, stored and output tokens per window, shape (4, windows)."""
    requests = totals[0]
    divisor = np.where(requests > 0, requests, 1.0)
    computed, stored, output = (_fill(requests, row / divisor) for row in totals[1:])
    return Workload(name, window, requests / window, computed, stored, output, again)


def _fill(weight: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`lengths`, with their weighted mean where the weight is 0."""
    some = weight > 0
    mean = math.fsum(weight[some] * lengths[some]) / math.fsum(weight[some])
    return np.where(some, lengths, mean)


def _bootstrap(record: Workload, seed: int) -> Workload:
    """Moving-block bootstrap of `record` around its own slow level; see `Workload.reseeded`."""
    n, window = record.rate.size, record.window
    if n < FEWEST_WINDOWS:
        raise refuse(
            f"the number of windows of {record.name!r}",
            n,
            f"at least {FEWEST_WINDOWS} to draw another realisation: choose a window below {window:g} s",
        )
    requests, computed, stored, output = record._totals()
    # Cached tokens, not stored ones, so that computed + cached never leaves computed > stored.
    streams = np.stack([requests, computed, np.maximum(stored - computed, 0.0), output])
    half = min(max(2, round(LEVEL_SECONDS / 2 / window)), (n - 1) // 2)
    kernel = np.hanning(2 * half + 3)[1:-1]
    level = np.stack([np.convolve(row, kernel, mode="same") for row in streams])
    level /= np.convolve(np.ones(n), kernel, mode="same")
    some = level > 0
    ratios = np.where(some, streams / np.where(some, level, 1.0), 1.0)
    # E[level_j * ratio_i] with i uniform is level_j * mean(ratio): one factor per stream makes the totals right.
    expected = level.sum(axis=1) * ratios.mean(axis=1)
    ratios *= np.where(expected > 0, streams.sum(axis=1) / np.where(expected > 0, expected, 1.0), 1.0)[:, None]
    block = max(1, min(round(BLOCK_SECONDS / window), n // FEWEST_WINDOWS))
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(n, size=(-(-n // block), 1))
        drawn = level * ratios[:, ((starts + np.arange(block)).ravel()[:n]) % n]
        if drawn[0].any():  # a record of a few requests can come out empty
            break
    requests, computed, cached, output = drawn
    return _from_totals(record.name, window, np.stack([requests, computed, computed + cached, output]))


def default_workload(
    seed: Whole = 0,
    days: Number = 1.0,
    window: Number = 15.0,
    *,
    rate: Number = 60.0,
    isl: Number = 1155.0,
    osl: Number = 211.0,
    hit: Number = 0.0,
) -> Workload:
    """A conversation service: diurnal load from midnight on, drifting input/output mix, bursts; the same for one seed.

    Every figure is taken from FINDINGS.md, the statistics computed from public traces and kept beside them:

    - daily shape: peak/mean 1.66, min/mean 0.47 (azure-2024 conv week, hourly); lowest at 05:00, the middle of
      03:30-06:30 when the fewest nodes ran (deepseek-day6);
    - bursts: index of dispersion of the counts 16.1 at 60 s (azure-2023 conv), as Poisson counts mixed by a gamma
      process: it holds at any window, and at any `rate`, which then is a superposition of such services;
    - mean lengths 1155 in, 211 out (azure-2023 conv);
    - mix: ln(ISL/OSL) is an Ornstein-Uhlenbeck process plus a daily swing, so that phi has the sd 0.087 and the rms
      step 0.043 per minute at 60 s of azure-2023 conv, at its reference rates (10,000 tok/s/GPU, 30 ms, B = 64). The
      swing has the sd of phi of the azure-2024 conv week, 0.010 at phi 0.762, and correlates -0.20 with the load
      (servegen deepseek-r1). The trace lasts 58 minutes; here the figures are those of the whole day, and within an
      hour the sd of phi is a little less. Input length takes 0.86 of a change and output length the rest, from the CV
      of prefill and decode tokens per minute (0.35, 0.12) and their correlation (-0.16) in azure-2023 conv.

    Takes `seed` >= 0, `days` and `window` [s] (the duration is rounded to whole windows), the daily mean `rate`
    [req/s], the means `isl` (stored) and `osl` [tokens] and the share `hit` of input tokens found in a prefix cache
    (0 to 1), so that isl_computed = (1 - hit) * isl_stored. Raises `InputError` for values out of range.
    """
    start = _seed(seed)
    span, step = _positive("days", days, "") * DAY, _positive("window", window, "s")
    mean_rate, share = _positive("rate", rate, "req/s"), _finite("hit", hit, "")
    if span < step:
        raise refuse("window", step, f"at most days * 86400 = {span:g} s")
    if span / step > MOST_WINDOWS:
        raise refuse("window", step, f"at least {span / MOST_WINDOWS:g} s ({MOST_WINDOWS:,} windows in {span:g} s)")
    if mean_rate > 1e9:
        raise refuse("rate", mean_rate, "at most 1e9 req/s")
    if not 0 <= share <= 1:
        raise refuse("hit", share, "a share from 0 to 1")
    lengths = _positive("isl", isl, "tokens"), _positive("osl", osl, "tokens")
    return _generate(start, (round(span / step), step, mean_rate, *lengths, share), None)


def _generate(seed: int, arguments: tuple, other: int | None) -> Workload:
    """The default process; `other` picks another realisation than the seed's own."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=() if other is None else (other,)))
    totals = _synthetic.totals(rng, *arguments)
    n, window, rate = arguments[:3]
    if not totals[0].any():
        raise refuse("rate", rate, f"greater: no request came in {n * window:g} s")
    return _from_totals("default", window, totals, partial(_generate, seed, arguments))


def _numbers(field: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise refuse(field, reprlib.repr(values), "numbers, one per window") from error


def _check(field: str, values: np.ndarray, good: np.ndarray, wanted: str) -> None:
    if not good.all():
        where = int(np.argmin(good))
        raise refuse(f"{field} in window {where}", float(values[where]), wanted)


def _check_sign(field: str, values: np.ndarray, spared: np.ndarray | bool = False) -> None:
    """Rates and computed lengths may be 0, the other lengths not; `spared` windows are not looked at."""
    if field in ("rate", "isl_computed"):
        _check(field, values, np.isfinite(values) & (values >= 0) | spared, "finite and >= 0")
    else:
        _check(field, values, np.isfinite(values) & (values > 0) | spared, "finite and > 0")


def _finite(field: str, value: Any, unit: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise refuse(field, value, "a number") from error
    if not math.isfinite(number):
        raise refuse(field, number, f"finite {unit}".strip())
    return number


def _positive(field: str, value: Any, unit: str) -> float:
    number = _finite(field, value, unit)
    if not number > 0:
        raise refuse(field, number, f"> 0 {unit}".strip())
    return number


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise refuse("seed", value, "a whole number >= 0")
    return int(value)
