"""NVIDIA Dynamo's planner: load-based steps of one worker and throughput-based sizes, per pool."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import InputError, refuse
from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies._dynamo_checks import check_choices, check_given_numbers
from fluidq.policies._dynamo_laws import (
    EngineLoad,
    Moves,
    band,
    engine_load,
    sla_decode,
    sla_prefill,
    throughput_sizes,
    within_gpus,
)
from fluidq.policies.base import Asked, Policy, Reading, Tunable, due, held
from fluidq.policies.facts import Mix
from fluidq.policies.forecasts import Arima, Kalman, Seen, predictor

_BANDS = {  # thresholds (up, down) of the targets that bring their own: context lengths, and shares of the KV memory
    "throughput": ((1.0, 0.1), (1.0, 0.6)),
    "latency": ((0.1, 0.0), (0.4, 0.1)),
}


class Interval(NamedTuple):
    """Memory of throughput scaling: sums over the interval's known samples, the predictor's state, the size it gave.

    `sums`: samples, then requests, computed, stored and output tokens per second, shape (5,); `seen`: of requests per
    interval, ISL, OSL; `sizes`: engines of the pools, shape (2,).
    """

    sums: Array
    seen: Seen
    sizes: Array


class DynamoPlanner(Policy):
    """The planner of NVIDIA Dynamo for a disaggregated deployment, with PlannerConfig's names and defaults.

    *Load-based* (every `load_adjustment_interval_seconds`): each pool moves by -1, 0 or +1. With x the queued prefill
    tokens of an engine and u its KV use, waiting sequences included:
    `throughput`: prefill up if ANY x >= 1 context length, down if ALL x < 0.1; decode up if ANY u > 1, down if ALL
    u < 0.6. `latency`: prefill up if ANY x >= 0.1, down if ALL queues are empty; decode up if ANY u > 0.4, down if ALL
    u < 0.1. `load`: the same with the four thresholds of the user. `sla`: up if ALL engines' estimated TTFT (ITL) is
    over the limit; down if N - 1 engines would keep it, with load * N/(N - 1) and the sensitivity as margin.

    *Throughput-based* (every `throughput_adjustment_interval_seconds`, target `sla` only): demand is the predicted
    requests over the interval; n = ceil(demand / engine rate) per pool, at most `max_throughput_scaling_replicas` away
    from what is there. With both, it is a floor under the load law. Other targets force load on, throughput off.

    Limits: `min_endpoint`, the GPU budget. Nothing changes while workers are starting; the exception for a lasting
    *down* recommendation during start-up (since 2026-09) is not modelled. A missing sample leaves the load law still;
    an interval without a sample counts as no requests, as the product's predictors take what is not finite for 0.

    KV use tells of an overload only where the KV memory is what limits the batch: where a limit on sequences binds
    first, u stays low with every slot taken, and the decode pool goes down while requests wait.

    The engines' regression of step times is taken as exact: it is the plant's own law. Cached tokens count in x but not
    in the estimated TTFT. Relaxed: gates for comparisons, smooth stairs for whole workers; it tends to this law.
    Source: ai-dynamo/dynamo, components/src/dynamo/planner; its planner-configuration reference.

    Attributes:
        optimization_target: throughput, latency, load or sla (static). mode: disagg, prefill or decode; a pool that is
            not named stays as it is (static).
        enable_throughput_scaling, enable_load_scaling: honoured for the target sla only (static).
        ttft_ms, itl_ms: limits [ms] of the target sla.
        throughput_adjustment_interval_seconds, load_adjustment_interval_seconds: [s] (static). The engine decides on
            its own ticks: an interval shorter than a tick acts on each.
        max_throughput_scaling_replicas: most workers per pool and throughput tick [workers].
        max_gpu_budget: most GPUs; None for the fleet's budget (the product's default is 8, a single node), -1 for none.
        min_gpu_budget: -1, off; the product's floor on GPUs is not modelled.
        min_endpoint: least workers per pool; prefill_min_endpoint and decode_min_endpoint override it.
        load_scaling_down_sensitivity: share of the limit's room that a smaller pool may use [per cent, 0-100].
        load_predictor: constant, arima or kalman; also holt and moving_average, not the product's (static).
        load_predictor_log1p: predict ln(1 + x) (static).
        kalman_q_level, kalman_q_trend, kalman_r, kalman_min_points: see `Kalman`.
        prefill_scale_up_queue_tokens, prefill_scale_down_queue_tokens: queued tokens per engine [tok], target load.
        decode_scale_up_kv_rate, decode_scale_down_kv_rate: KV use [per cent, not a fraction], target load.
        context_length: longest context that the engines report [tok], the unit of x.
        budget_clamp: no-reversal (newer: no pool moves against its own proposal) or proportional (older) (static).
        forecasts: requests, ISL and OSL expected on each throughput tick; set by `prepare` for arima.
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "ttft_ms": Tunable("positive"),
        "itl_ms": Tunable("positive"),
        "load_scaling_down_sensitivity": Tunable("percent"),
        "prefill_scale_up_queue_tokens": Tunable("above", "prefill_scale_down_queue_tokens"),
        "prefill_scale_down_queue_tokens": Tunable("positive"),
        "decode_scale_up_kv_rate": Tunable("above", "decode_scale_down_kv_rate"),
        "decode_scale_down_kv_rate": Tunable("positive"),
        "context_length": Tunable("positive"),
        "kalman_q_level": Tunable("positive"),
        "kalman_q_trend": Tunable("positive"),
        "kalman_r": Tunable("positive"),
    }

    optimization_target: str = eqx.field(static=True, default="throughput")
    mode: str = eqx.field(static=True, default="disagg")
    enable_throughput_scaling: bool = eqx.field(static=True, default=True)
    enable_load_scaling: bool = eqx.field(static=True, default=False)
    ttft_ms: Scalar = 500.0
    itl_ms: Scalar = 50.0
    throughput_adjustment_interval_seconds: float = eqx.field(static=True, default=180.0)
    load_adjustment_interval_seconds: float = eqx.field(static=True, default=5.0)
    max_throughput_scaling_replicas: Scalar = 8.0
    max_gpu_budget: Scalar | None = None
    min_gpu_budget: float = eqx.field(static=True, default=-1.0)
    min_endpoint: Scalar = 1.0
    prefill_min_endpoint: Scalar | None = None
    decode_min_endpoint: Scalar | None = None
    load_scaling_down_sensitivity: Scalar = 80.0
    load_predictor: str = eqx.field(static=True, default="arima")
    load_predictor_log1p: bool = eqx.field(static=True, default=False)
    kalman_q_level: Scalar = 1.0
    kalman_q_trend: Scalar = 0.1
    kalman_r: Scalar = 10.0
    kalman_min_points: int = eqx.field(static=True, default=5)
    prefill_scale_up_queue_tokens: Scalar | None = None
    prefill_scale_down_queue_tokens: Scalar | None = None
    decode_scale_up_kv_rate: Scalar | None = None
    decode_scale_down_kv_rate: Scalar | None = None
    context_length: Scalar = 131_072.0
    budget_clamp: str = eqx.field(static=True, default="no-reversal")
    forecasts: Array | None = None

    def __check_init__(self) -> None:
        check_choices(self)
        check_given_numbers(self)

    # Facts

    @property
    def load_based(self) -> bool:
        """Whether the load law runs: always but for the target sla, which has a switch."""
        return self.optimization_target != "sla" or self.enable_load_scaling

    @property
    def throughput_based(self) -> bool:
        """Whether the throughput law runs: for the target sla only."""
        return self.optimization_target == "sla" and self.enable_throughput_scaling

    @property
    def period(self) -> float:
        """Seconds between two decisions of the faster law that runs."""
        return float(
            self.load_adjustment_interval_seconds if self.load_based else self.throughput_adjustment_interval_seconds
        )

    @property
    def detection_delay(self) -> float:
        """One interval: the load law has no window, that of the throughput law is the interval itself [s]."""
        return self.period

    @property
    def hold_while_pending(self) -> bool:
        """True: nothing changes while ready workers are not the expected ones."""
        return True

    @property
    def up_step(self) -> Scalar:
        """One worker, or what the throughput law may add at once."""
        return self.max_throughput_scaling_replicas if self.throughput_based else 1.0

    def gain(self, fleet: Fleet, mix: Mix) -> Scalar | None:
        """None where the load law runs (a relay); 0 for the throughput law, which looks at no stock."""
        return None if self.load_based else 0.0

    def dead_band(self, fleet: Fleet, mix: Mix) -> tuple[Scalar, Scalar] | None:
        """KV use below which the decode pool goes down, and above which it goes up; None for sla, which tests N - 1."""
        if self.optimization_target == "sla":
            return None
        _, (up, down) = self._thresholds()
        return down, up

    def movable(self) -> tuple[str, ...]:
        """What the target reads: the four thresholds of load, the context of a preset, limits and filter of sla."""
        if self.optimization_target == "load":
            return tuple(name for name in type(self).TUNABLE if "_scale_" in name)
        if self.optimization_target != "sla":
            return ("context_length",)
        load = ("load_scaling_down_sensitivity",) if self.load_based else ()
        kalman = tuple(name for name in type(self).TUNABLE if name.startswith("kalman_"))
        filtered = self.throughput_based and self.load_predictor == "kalman"
        return ("ttft_ms", "itl_ms", *load, *(kalman if filtered else ()))

    def spelled_out(self) -> "DynamoPlanner":
        """A preset (target throughput or latency) as the target load with the same four thresholds, which can move."""
        if self.optimization_target in ("load", "sla"):
            return self
        queue, kv = self._thresholds()
        return replace(
            self,
            optimization_target="load",
            prefill_scale_up_queue_tokens=queue[0],
            prefill_scale_down_queue_tokens=queue[1],
            decode_scale_up_kv_rate=100.0 * kv[0],
            decode_scale_down_kv_rate=100.0 * kv[1],
        )

    # The law

    def prepare(self, load: Any, fleet: Fleet) -> "DynamoPlanner":
        """Checked against the fleet; with arima, the forecasts of every throughput tick.

        Raises InputError where the KV thresholds have no KV memory to refer to, and for a budget below one worker of
        each pool at their least.
        """
        if self.optimization_target != "sla" and fleet.plant.kv_capacity is None:
            wanted = f"the tokens that a decode GPU holds: target {self.optimization_target!r} compares KV use with it"
            raise refuse("kv_capacity", None, wanted)
        low, (g_P, g_D) = self._least(), fleet.per_worker
        numbers = (self.max_gpu_budget, *low, g_P, g_D)
        if not any(x is None or isinstance(x, Tracer) or np.ndim(x) > 0 for x in numbers):
            floor = float(low[0] * g_P + low[1] * g_D)
            if 0 <= float(self.max_gpu_budget) < floor:  # type: ignore[arg-type]
                least_text = f"at least {floor:g}, the GPUs of the least workers of each pool, or -1 for no limit"
                raise refuse("max_gpu_budget", float(self.max_gpu_budget), least_text)  # type: ignore[arg-type]
        if not (self.throughput_based and self.load_predictor == "arima") or self.forecasts is not None:
            return self
        series = _series(load, self._every(fleet), self.load_predictor_log1p)
        forecasts = np.stack([Arima().forecasts(row) for row in series], axis=-1)
        return eqx.tree_at(lambda p: p.forecasts, self, jnp.asarray(forecasts), is_leaf=lambda x: x is None)

    def start(self, fleet: Fleet, asked: Asked) -> Interval | None:
        """Sums and predictor of the throughput law; the load law remembers nothing."""
        if not self.throughput_based:
            return None
        sizes = jnp.stack([jnp.asarray(n, dtype=jnp.float64) for n in asked])
        return Interval(jnp.zeros(5), self._predictor().start(3), sizes)

    def decide(
        self, memory: Interval | None, reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[Interval | None, Asked]:
        """One tick: propose, limit, clamp, hold."""
        known = ~jnp.isnan(reading.rate)
        index = reading.index
        clean = Reading(*(jnp.where(jnp.isnan(value), 0.0, value) for value in reading))
        now = jnp.stack([clean.prefill_asked, clean.decode_asked])
        proposed = now
        if self.load_based:
            seen = known & due(reading, self.load_adjustment_interval_seconds, fleet.interval)
            prefill, decode = self.load_moves(clean, fleet, width)
            up, down = jnp.stack([prefill.up, decode.up]), jnp.stack([prefill.down, decode.down])
            proposed = now + jnp.where(seen, up - (1.0 - up) * down, 0.0)
        if memory is not None:
            memory = self._observe(memory, known, clean, index, fleet, width)
            most_step = self.max_throughput_scaling_replicas
            sizes = most(least(memory.sizes, now + most_step), now - most_step)
            if self.load_based:
                proposed = most(proposed, sizes)
            else:
                proposed = jnp.where(
                    due(reading, self.throughput_adjustment_interval_seconds, fleet.interval), sizes, now
                )
        return memory, self.limit(proposed, now, clean.prefill_starting + clean.decode_starting, fleet, width)

    def load_moves(self, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Moves, Moves]:
        """What the load law wants of the prefill and of the decode pool, from a reading without missing samples."""
        load: EngineLoad = engine_load(reading, fleet)
        if self.optimization_target == "sla":
            share = jnp.asarray(self.load_scaling_down_sensitivity) / 100.0
            limits = self.ttft_ms / 1e3, self.itl_ms / 1e3
            return (
                sla_prefill(load, reading.prefill_ready, limits[0], share, fleet, width),
                sla_decode(load, reading.decode_ready, limits[1], share, fleet, width),
            )
        (queue_up, queue_down), (kv_up, kv_down) = self._thresholds()
        used = load.kv / load.most_kv
        return (
            band(load.queue, queue_up, queue_down, self.context_length, False, fleet, width),
            band(used, kv_up, kv_down, 1.0, True, fleet, width),
        )

    def limit(self, proposed: Array, now: Array, starting: Scalar, fleet: Fleet, width: Scalar | None) -> Asked:
        """The proposal within the least workers, the mode and the GPU budget, and held while workers start."""
        low = jnp.stack([jnp.asarray(n, dtype=jnp.float64) for n in self._least()])
        proposed = most(proposed, low)
        if self.mode != "disagg":
            proposed = jnp.where(jnp.array([self.mode == "prefill", self.mode == "decode"]), proposed, now)
        budget = fleet.budget if self.max_gpu_budget is None else self.max_gpu_budget
        budget = jnp.where(jnp.asarray(budget) < 0, fleet.budget, budget)
        fits = within_gpus(proposed, now, low, budget, fleet, self.budget_clamp == "proportional", width)
        if width is None:
            free = jnp.where(jnp.asarray(starting) > 1e-6, 0.0, 1.0)
        else:
            free = positive_part(1.0 - starting / width)
        asked = now + free * (fits - now)
        return Asked(asked[0], asked[1])

    def _observe(
        self, memory: Interval, known: Array, clean: Reading, index: Scalar, fleet: Fleet, width: Scalar | None
    ) -> Interval:
        """One sample more; on a throughput tick, a forecast and the sizes for it."""
        interval = self.throughput_adjustment_interval_seconds
        tokens = jnp.stack([jnp.ones(()), clean.isl_computed, clean.isl, clean.osl])
        sums = memory.sums + jnp.where(known, jnp.concatenate([jnp.ones(1), clean.rate * tokens]), 0.0)
        now = jnp.asarray(index) % self._every(fleet) == 0
        mean = jnp.stack([ratio(part, sums[0]) for part in sums[1:]])
        sample = jnp.stack([mean[0] * interval, ratio(mean[2], mean[0]), ratio(mean[3], mean[0])])
        fresh = ratio(mean[1], mean[2], empty=1.0)  # one minus the hit rate
        transform, back = (jnp.log1p, jnp.expm1) if self.load_predictor_log1p else (jnp.asarray, jnp.asarray)
        if self.forecasts is None:
            # Leading zeros say that nobody has come yet, not that nobody will.
            value = jnp.where((memory.seen.number > 0) | (sample > 0), transform(sample), jnp.nan)
            seen = self._predictor().observe(memory.seen, value)
            coming = back(self._predictor().ahead(seen, 1.0))
        else:
            seen = memory.seen
            coming = back(self.forecasts[jnp.asarray(index) // self._every(fleet)])
        requests, isl, osl = coming
        itl = jnp.asarray(self.itl_ms) / 1e3
        sizes = throughput_sizes(requests / interval, isl, isl * fresh, osl, itl, fleet, width)
        new = Interval(jnp.zeros(5), seen, sizes)
        return held(now, new, memory._replace(sums=sums))

    def _predictor(self) -> Any:
        if self.load_predictor == "kalman":
            numbers = (self.kalman_q_level, self.kalman_q_trend, self.kalman_r)
            return Kalman(*numbers, min_points=self.kalman_min_points)
        return predictor("constant" if self.load_predictor == "arima" else self.load_predictor)

    def _every(self, fleet: Fleet) -> int:
        return max(1, round(self.throughput_adjustment_interval_seconds / fleet.interval))

    def _least(self) -> tuple[Scalar, Scalar]:
        own = (self.prefill_min_endpoint, self.decode_min_endpoint)
        prefill, decode = (self.min_endpoint if n is None else n for n in own)
        return prefill, decode

    def _thresholds(self) -> tuple[tuple[Scalar, Scalar], tuple[Scalar, Scalar]]:
        """(up, down) of the queue [tok per engine] and of the KV use [share]."""
        if self.optimization_target == "load":
            queue = (self.prefill_scale_up_queue_tokens, self.prefill_scale_down_queue_tokens)
            kv = (self.decode_scale_up_kv_rate, self.decode_scale_down_kv_rate)
            up, down = (jnp.asarray(rate) / 100.0 for rate in kv)
            return queue, (up, down)
        (up, down), kv = _BANDS[self.optimization_target]
        return (up * self.context_length, down * self.context_length), kv


def _series(load: Any, every: int, log: bool) -> np.ndarray:
    """Requests, ISL and OSL of each throughput interval as the planner has measured them on its tick, shape (3, ticks).

    The first tick has seen one sample, which is that of the first window.
    """
    parts = [part for part in (load.requests, load.stored, load.output)]
    if any(isinstance(part, Tracer) for part in parts):
        raise InputError("load_predictor is 'arima', which needs a known load, not a traced one; choose 'kalman'.")
    amounts = np.stack([np.asarray(p).reshape(len(p), -1).sum(axis=1) for p in parts])
    before = np.concatenate([amounts[:, :1], amounts[:, :-1]], axis=1)
    ticks = before.shape[1]
    means = [before[:, max(0, k - every + 1) : k + 1].mean(axis=1) for k in range(0, ticks, every)]
    requests, stored, output = np.stack(means, axis=1)
    some = np.where(requests > 0, requests, 1.0)
    series = np.stack([requests * every, stored / some, output / some])
    return np.log1p(series) if log else series
