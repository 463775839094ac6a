"""What both of llm-d's analysers share: the reports of a minute, the published size, and the HPA that actuates it."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies.base import Asked, Policy, Reading, due, held
from fluidq.policies.hpa import (
    HPABehavior,
    HPAMemory,
    HPAMetric,
    HPAScalingPolicy,
    HPAScalingRules,
    normalise,
    note_moves,
    remember,
)
from fluidq.policies.metrics import POOLS, Pool, check_bounds, check_fraction, check_positive, pool_of


def chart_behavior(tolerance: Scalar = 0.1) -> HPABehavior:
    """The HPA of llm-d's chart: windows of 240 s and 10 pods per 150 s, both ways."""
    rules = HPAScalingRules(240.0, policies=(HPAScalingPolicy(10.0, "Pods", 150.0),), tolerance=tolerance)
    return HPABehavior(rules, rules)


def sample_behavior(tolerance: Scalar = 0.1) -> HPABehavior:
    """The HPA of llm-d's samples: no windows, no limits."""
    rules = HPAScalingRules(0.0, tolerance=tolerance)
    return HPABehavior(rules, rules)


class Use(NamedTuple):
    """What a pool's replicas report, each the largest of the last minute: KV use [fraction], queue per replica [req].

    `there` is false where nothing was reported in that minute.
    """

    kv: Array
    queue: Array
    there: Array


class WVAMemory(NamedTuple):
    """Rings of KV use and queue length; the published size; the HPA's memory; what else a law keeps."""

    kv: Array
    queue: Array
    desired: Array
    hpa: HPAMemory | None
    own: Any


# The window of max_over_time(...[1m]) [s].
_MINUTE = 60.0


class WVA(Policy):
    """The common part: sampling, the optimisation interval, and the HPA. A subclass implements `_targets`."""

    kvCacheThreshold: eqx.AbstractVar[Scalar]
    queueLengthThreshold: eqx.AbstractVar[Scalar]
    minReplicas: eqx.AbstractVar[Scalar]
    maxReplicas: eqx.AbstractVar[Scalar]
    behavior: eqx.AbstractVar[HPABehavior | None]
    pools: eqx.AbstractVar[tuple[str, ...]]
    GLOBAL_OPT_INTERVAL: eqx.AbstractVar[float]
    sync_period: eqx.AbstractVar[float]

    @abc.abstractmethod
    def _targets(
        self, own: list[Any], uses: list[Use], pools: list[Pool], reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[list[Any], list[Array]]:
        """Sizes for both pools and the sizes to publish, from the uses of the last minute."""

    def _own(self, fleet: Fleet) -> Any:
        return None

    def _check(self) -> None:
        check_fraction("kvCacheThreshold", self.kvCacheThreshold, "of the KV memory")
        check_positive("queueLengthThreshold", self.queueLengthThreshold, "req")
        check_bounds("minReplicas", "maxReplicas", self)
        for name in ("GLOBAL_OPT_INTERVAL", "sync_period"):
            if not getattr(self, name) > 0:
                raise refuse(name, getattr(self, name), "a time > 0 s")
        for pool in self.pools:
            if pool not in POOLS:
                raise unknown("pool", pool, POOLS)
        if not self.pools:
            raise refuse("pools", self.pools, "at least one of prefill and decode")

    @property
    def period(self) -> float:
        """The optimisation interval [s]."""
        return self.GLOBAL_OPT_INTERVAL

    def start(self, fleet: Fleet, asked: Asked) -> tuple[WVAMemory, ...]:
        """Nothing reported yet; the published size is the present one."""
        size = windows.slots(_MINUTE, fleet.interval)
        step = windows.step_of(self.sync_period, fleet.interval)
        memory = []
        for name in self.pools:
            n = jnp.asarray(asked[POOLS.index(name)], dtype=jnp.float64)
            hpa = None if self.behavior is None else remember(self.behavior, n, step)
            nothing = windows.ring(jnp.nan, size)
            memory.append(WVAMemory(nothing, nothing, n, hpa, self._own(fleet)))
        return tuple(memory)

    def decide(
        self, memory: tuple[WVAMemory, ...], reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[tuple[WVAMemory, ...], Asked]:
        """One tick: sample; on the interval publish new sizes; let the HPA act on the published ones."""
        pools = [pool_of(name, reading, fleet) for name in self.pools]
        memory = tuple(_sampled(m, reading, pool, fleet) for m, pool in zip(memory, pools, strict=True))
        uses = [_used(m) for m in memory]
        own, targets = self._targets([m.own for m in memory], uses, pools, reading, fleet, width)
        now = due(reading, self.GLOBAL_OPT_INTERVAL, fleet.interval)
        asked = {"prefill": reading.prefill_asked, "decode": reading.decode_asked}
        kept = []
        for m, pool, use, mine, target in zip(memory, pools, uses, own, targets, strict=True):
            target = most(self.minReplicas, least(self.maxReplicas, target))
            m = held(now & use.there, m._replace(desired=target, own=mine), m)
            hpa, asked[pool.name] = self._actuate(m, pool, reading, fleet, width)
            kept.append(m._replace(hpa=hpa))
        return tuple(kept), Asked(**asked)

    def _actuate(
        self, memory: WVAMemory, pool: Pool, reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[HPAMemory | None, Array]:
        """The HPA on the published size, on its own sync."""
        if self.behavior is None or memory.hpa is None:
            return None, memory.desired
        step = windows.step_of(self.sync_period, fleet.interval)
        metric = HPAMetric("queue_length", 1.0)  # its name is not read: the value is the published size
        wanted = metric.of_value(memory.desired, pool, self.behavior, width)
        bounds = (self.minReplicas, self.maxReplicas)
        sure = jnp.asarray(True)
        new, asked = normalise(note_moves(memory.hpa, pool), wanted, sure, pool, self.behavior, bounds, step, width)
        now = due(reading, self.sync_period, fleet.interval)
        return held(now, new, memory.hpa), held(now, asked, jnp.asarray(pool.asked, dtype=jnp.float64))

    @property
    def detection_delay(self) -> float:
        """The interval, and the HPA's sync and upward window [s]; a maximum over a minute rises at once."""
        if self.behavior is None:
            return self.GLOBAL_OPT_INTERVAL
        return self.GLOBAL_OPT_INTERVAL + self.sync_period + self.behavior.scaleUp.stabilizationWindowSeconds


def _sampled(memory: WVAMemory, reading: Reading, pool: Pool, fleet: Fleet) -> WVAMemory:
    """The rings with this tick's reports: a pool without a ready replica reports nothing."""
    queue = reading.queue if pool.name == "prefill" else reading.buffered
    kv = ratio(_tokens_in_use(reading, pool, fleet), pool.ready * pool.gpus * fleet.kv_tokens(), empty=jnp.nan)
    each = ratio(queue, pool.ready, empty=jnp.nan)
    return memory._replace(kv=windows.push(memory.kv, least(1.0, kv)), queue=windows.push(memory.queue, each))


def _tokens_in_use(reading: Reading, pool: Pool, fleet: Fleet) -> Scalar:
    """KV that the pool's engines hold [tok]: the running batch; in prefill what waits there for its transfer."""
    if pool.name == "decode":
        return reading.kv_tokens
    held_back = reading.buffered_tokens if fleet.plant.place == "prefill" else 0.0 * reading.buffered_tokens
    return held_back


def _used(memory: WVAMemory) -> Use:
    (kv, some), (queue, too) = (windows.known(windows.highest(r)) for r in (memory.kv, memory.queue))
    return Use(kv, queue, some & too)


def in_transition(pools: list[Pool], published: list[Array], width: Scalar | None) -> Array:
    """1 where a pool starts workers or has not reached its published size; relaxed: in parts of a worker."""
    free = jnp.ones(())
    for pool, size in zip(pools, published, strict=True):
        starting = gates.whole_up(pool.starting - _ROUNDING, width)
        away = gates.nearest(jnp.abs(size - pool.asked), width)
        free = free * positive_part(1.0 - positive_part(starting)) * positive_part(1.0 - away)
    return 1.0 - free


# Workers that are starting below this are rounding.
_ROUNDING = 1e-6
