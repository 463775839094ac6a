"""What a replay takes and gives: requests, and the times at which things happened to each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from fluidq._errors import InputError, refuse, unknown
from fluidq.objective import Objective

Number = float | int | np.integer | np.floating
PerRequest = Float64[np.ndarray, " requests"]

# Where a request is, by the stamps between which it is there.
STORES = {
    "queue": ("arrival", "prefill_start"),
    "prefill": ("prefill_start", "handoff"),
    "buffer": ("handoff", "admitted"),
    "transfer": ("admitted", "transfer_end"),
    "active": ("transfer_end", "finish"),
    "system": ("arrival", "finish"),
}
WEIGHTS = ("requests", "computed", "bytes")


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of arrival: `arrival` [s], `computed`, `stored` and `output` tokens, each (requests,).

    `duration` [s] is the time that they cover. A given trace goes in as it is: arrays of its rows.

    Raises InputError for no request, arrays of other shapes, values that are not finite, arrivals out of order, before
    0 or after the duration, a length <= 0 (computed: < 0), or more computed than stored.
    """

    arrival: PerRequest
    computed: PerRequest
    stored: PerRequest
    output: PerRequest
    duration: float

    def __post_init__(self):
        n = np.size(self.arrival)
        if n == 0:
            raise refuse("the number of requests", 0, "at least 1")
        for field in ("arrival", "computed", "stored", "output"):
            values = np.array(getattr(self, field), dtype=np.float64)
            if values.shape != (n,):
                raise refuse(f"the shape of {field}", values.shape, f"(requests,), here ({n},)")
            good = np.isfinite(values) & ((values > 0) if field in ("stored", "output") else (values >= 0))
            if not good.all():
                wanted = "finite and > 0" if field in ("stored", "output") else "finite and >= 0"
                k = int(np.argmin(good))
                raise refuse(f"{field} of request {k}", float(values[k]), wanted)
            values.setflags(write=False)
            object.__setattr__(self, field, values)
        back = np.diff(self.arrival) < 0
        if back.any():
            k = int(np.argmax(back)) + 1
            raise refuse(f"arrival of request {k}", float(self.arrival[k]), "at or after the one before it")
        over = self.computed > self.stored * (1 + 1e-12)
        if over.any():
            k = int(np.argmax(over))
            raise refuse(f"computed of request {k}", float(self.computed[k]), "at most its stored tokens")
        object.__setattr__(self, "duration", float(self.duration))
        if not (np.isfinite(self.duration) and self.duration > 0 and self.duration >= self.arrival[-1]):
            raise refuse(
                "duration", self.duration, f"finite, > 0, and not before the last arrival, {self.arrival[-1]!r}"
            )


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its confidence interval; a single seed has an infinite one."""

    mean: float
    low: float
    high: float
    values: tuple[float, ...]

    @staticmethod
    def of(values: Sequence[float], confidence: float = 0.95) -> "Estimate":
        """Student's t interval of independent `values`. Raises InputError for none, or a confidence outside (0, 1)."""
        if not 0 < confidence < 1:
            raise refuse("confidence", confidence, "between 0 and 1")
        if not values:
            raise refuse("the number of values", 0, "at least 1")
        x = np.asarray(values, dtype=float)
        mean, half = float(x.mean()), float("inf")
        if x.size > 1:
            half = _student(confidence, x.size - 1) * float(x.std(ddof=1)) / np.sqrt(x.size)
        return Estimate(mean, mean - half, mean + half, tuple(float(v) for v in x))


def _student(confidence: float, freedom: int) -> float:
    try:
        from scipy.stats import t
    except ImportError:
        raise InputError("confidence intervals need SciPy; install it: pip install 'fluidq[validate]'.") from None
    return float(t.ppf(0.5 + 0.5 * confidence, freedom))


@dataclass(frozen=True, eq=False)
class Run:
    """A finished replay.

    Times [s] per request, inf for what did not happen before the `end`: `prefill_start`, `prefill_end`, `handoff` (it
    leaves the prefill worker), `admitted` (it gets a slot), `transfer_end` (it joins the batch), `first_token`,
    `finish`, `lost_at`. `prefilled_by` and `decoded_by` are worker numbers, -1 for none. `workers` has one row per
    worker: pool (0 prefill, 1 decode), commanded at, ready at, gone at. `commands`: rows of time and wanted workers.
    `gpu_hours` counts starting, ready and draining workers up to the `end`; `actions` the workers started or stopped.
    """

    requests: Requests
    prefill_start: PerRequest
    prefill_end: PerRequest
    handoff: PerRequest
    admitted: PerRequest
    transfer_end: PerRequest
    first_token: PerRequest
    finish: PerRequest
    lost_at: PerRequest
    prefilled_by: Int64[np.ndarray, " requests"]
    decoded_by: Int64[np.ndarray, " requests"]
    workers: Float64[np.ndarray, "workers 4"]
    commands: Float64[np.ndarray, "commands 3"]
    gpu_hours: float
    actions: int
    end: float
    accept: float
    bytes: PerRequest

    @staticmethod
    def of(engine: Any, requests: Requests, end: float) -> "Run":
        """The result of a finished engine."""
        stamps = {name: np.array(values) for name, values in engine.stamps.items()}
        for values in stamps.values():
            values[values > end] = np.inf
        rows = [(pool, w.born, w.ready, w.gone) for pool in (0, 1) for w in engine.pools[pool]]
        workers = np.array(rows, dtype=np.float64)
        paid = np.minimum(workers[:, 3], end) - workers[:, 1]
        gpus = np.array(engine.per_worker)[workers[:, 0].astype(int)]
        return Run(
            requests=requests,
            **stamps,
            prefilled_by=np.array(engine.prefilled_by, dtype=np.int64),
            decoded_by=np.array(engine.decoded_by, dtype=np.int64),
            workers=workers,
            commands=np.array(engine.commands, dtype=np.float64),
            gpu_hours=float(np.maximum(paid, 0.0) @ gpus) / 3600.0,
            actions=engine.actions,
            end=end,
            accept=engine.accept,
            bytes=np.array(engine.bytes),
        )

    # Per request

    @property
    def ttft(self) -> PerRequest:
        """Time to first token [s], inf where there was none."""
        return self.first_token - self.requests.arrival

    @property
    def wait(self) -> PerRequest:
        """Time in the prefill queue [s], inf where prefill did not start."""
        return self.prefill_start - self.requests.arrival

    @property
    def tpot(self) -> PerRequest:
        """Time per output token after the first step [s]; NaN for unfinished requests and for those of one step."""
        tokens = self.requests.output - self.accept
        good = np.isfinite(self.finish) & (tokens > 0)
        out = np.full(good.shape, np.nan)
        out[good] = (self.finish[good] - self.first_token[good]) / tokens[good]
        return out

    # Counts

    @property
    def arrived(self) -> int:
        """Requests that came before the end."""
        return int(np.count_nonzero(self.requests.arrival <= self.end))

    @property
    def done(self) -> int:
        """Requests that finished."""
        return int(np.count_nonzero(np.isfinite(self.finish)))

    @property
    def lost(self) -> int:
        """Requests that the full buffer turned away."""
        return int(np.count_nonzero(np.isfinite(self.lost_at)))

    def left(self) -> dict[str, int]:
        """Requests still there at the end, by store; arrived = done + lost + these."""
        return {name: int(self.level(name, np.array([self.end]))[0]) for name in STORES if name != "system"}

    # Levels

    def level(
        self, store: str, times: Float64[np.ndarray, " times"], weight: str = "requests"
    ) -> Float64[np.ndarray, " times"]:
        """What is in a store at each of `times` [s]: requests, computed tokens, or bytes; see `STORES`."""
        start, stop, size = self._span(store, weight)
        order_in, order_out = np.argsort(start), np.argsort(stop)
        into = np.concatenate([[0.0], np.cumsum(size[order_in])])
        out = np.concatenate([[0.0], np.cumsum(size[order_out])])
        came = np.searchsorted(start[order_in], times, side="right")
        went = np.searchsorted(stop[order_out], times, side="right")
        return np.maximum(into[came] - out[went], 0.0)

    def mean_level(self, store: str, t0: Number, t1: Number, weight: str = "requests") -> float:
        """The time average of `level` from `t0` to `t1` [s], exact."""
        lo, hi = self._window(t0, t1)
        start, stop, size = self._span(store, weight)
        inside = np.clip(np.minimum(stop, hi) - np.maximum(start, lo), 0.0, None)
        return float(inside @ size) / (hi - lo)

    def _span(self, store: str, weight: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if store not in STORES:
            raise unknown("store", store, STORES)
        if weight not in WEIGHTS:
            raise unknown("weight", weight, WEIGHTS)
        first, last = STORES[store]
        start = self.requests.arrival if first == "arrival" else getattr(self, first)
        # What is lost leaves where it stands.
        stop = np.minimum(getattr(self, last), self.lost_at)
        there = start < np.inf
        size = {"requests": np.ones_like(start), "computed": self.requests.computed, "bytes": self.bytes}[weight]
        return start[there], np.maximum(stop, start)[there], size[there]

    # Over a window

    def _window(self, t0: Number, t1: Number | None) -> tuple[float, float]:
        lo, hi = float(t0), self.end if t1 is None else float(t1)
        if not 0 <= lo < hi <= self.end * (1 + 1e-12):
            raise refuse("the window", (lo, hi), f"0 <= t0 < t1 <= {self.end:g} s")
        return lo, hi

    def arrivals_in(self, t0: Number, t1: Number | None) -> Bool[np.ndarray, " requests"]:
        """Which requests arrived from `t0` to `t1` [s]."""
        lo, hi = self._window(t0, t1)
        return (self.requests.arrival >= lo) & (self.requests.arrival < hi)

    def throughput(self, t0: Number = 0.0, t1: Number | None = None) -> float:
        """Requests finished per second from `t0` to `t1`."""
        lo, hi = self._window(t0, t1)
        return float(np.count_nonzero((self.finish >= lo) & (self.finish < hi))) / (hi - lo)

    def attainment(self, objective: Objective | None = None, t0: Number = 0.0, t1: Number | None = None) -> float:
        """Share of the requests arrived in the window that kept both limits, among those of which it is known.

        Known are the finished, the lost (they count as failed) and those already past the TTFT limit. 1 where none is.
        """
        limits = objective or Objective()
        came = self.arrivals_in(t0, t1)
        late = np.minimum(self.first_token, self.end) - self.requests.arrival > float(limits.ttft)
        slow = self.tpot > float(limits.tpot)  # of one step only: NaN, not slow
        finished, lost = np.isfinite(self.finish), np.isfinite(self.lost_at)
        known = came & (finished | lost | late)
        kept = known & finished & ~late & ~slow
        return float(kept.sum()) / max(int(known.sum()), 1) if known.any() else 1.0
