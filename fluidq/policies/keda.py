"""KEDA's ScaledObject, one per pool: an HPA that KEDA feeds, and its own switch between 0 and 1 replicas."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import most
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies.base import Reading, Tunable, due, held
from fluidq.policies.facts import Mix
from fluidq.policies.hpa import (
    TARGET_TYPES,
    HPABehavior,
    HPAMemory,
    HPAMetric,
    normalise,
    note_moves,
    remember,
)
from fluidq.policies.metrics import (
    Pool,
    check_bounds,
    check_metric,
    check_pool,
    check_positive,
    fleet_value,
    summed_value,
)
from fluidq.policies.per_pool import PerPool, PoolLaw, pool_tunables, proportional_gain

# A fluid has no last request: what is left of a decaying level below this is none.
_NOTHING = 1e-6


class KEDAMemory(NamedTuple):
    """The HPA's memory, the value of the last poll and whether it was active, and polls since the last active one."""

    hpa: HPAMemory
    value: Array
    known: Array
    active: Array
    idle: Array


class KEDATarget(PoolLaw):
    """A ScaledObject of one pool, with one trigger.

    From 1 replica on, the HPA of type External that KEDA creates scales on the metric, within [max(1,
    minReplicaCount), maxReplicaCount]; it asks KEDA anew on each sync, or takes the last poll's value with
    `useCachedMetrics`. On each poll the trigger is active if the value is above `activationThreshold`. With
    minReplicaCount 0 the pool goes to 0 once it was inactive for `cooldownPeriod`, and to 1 on the first active poll.
    A missing sample counts as 0 with `ignoreNullValues` (KEDA's default), else nothing moves.
    The engine decides at most once per tick: shorter periods run on each tick.

    Relaxed: the 0-or-1 state itself and the polls are not softened; the closed loop still converges as the width goes
    to 0, with no gradient in the periods (static).

    Attributes:
        metric, threshold: name of the metric and its target, per replica unless `metricType` is Value.
        metricType: `AverageValue` or `Value` (static).
        activationThreshold: above it the trigger is active, in the metric's unit.
        pollingInterval, cooldownPeriod: [s] (static).
        minReplicaCount, maxReplicaCount: [workers]; the first is static.
        ignoreNullValues, useCachedMetrics: static.
        behavior: `advanced.horizontalPodAutoscalerConfig.behavior`.
        sync_period: flag of the HPA controller [s] (static).
    """

    metric: str = eqx.field(static=True)
    threshold: Scalar
    metricType: str = eqx.field(static=True, default="AverageValue")
    activationThreshold: Scalar = 0.0
    pollingInterval: float = eqx.field(static=True, default=30.0)
    cooldownPeriod: float = eqx.field(static=True, default=300.0)
    minReplicaCount: int = eqx.field(static=True, default=0)
    maxReplicaCount: Scalar = 100.0
    ignoreNullValues: bool = eqx.field(static=True, default=True)
    useCachedMetrics: bool = eqx.field(static=True, default=False)
    behavior: HPABehavior = eqx.field(default_factory=HPABehavior)
    sync_period: float = eqx.field(static=True, default=15.0)

    def __check_init__(self) -> None:
        if self.metricType not in TARGET_TYPES:
            raise unknown("metricType", self.metricType, TARGET_TYPES)
        check_metric(self.metric, self.threshold, "threshold")
        check_positive("activationThreshold", self.activationThreshold, "the metric's unit", zero=True)
        check_bounds("minReplicaCount", "maxReplicaCount", self)
        for name in ("pollingInterval", "sync_period"):
            if not getattr(self, name) > 0:
                raise refuse(name, getattr(self, name), "a time > 0 s")
        if not self.cooldownPeriod >= 0:
            raise refuse("cooldownPeriod", self.cooldownPeriod, "a time >= 0 s")

    def check(self, pool: str, fleet: Fleet) -> None:
        """Raise InputError for a metric that this pool or plant does not show."""
        check_pool(self.metric, pool, fleet)

    def start(self, fleet: Fleet, asked: Scalar) -> KEDAMemory:
        """As if the trigger had last been active at time 0."""
        hpa = remember(self.behavior, asked, windows.step_of(self.sync_period, fleet.interval))
        zero = jnp.zeros(())
        return KEDAMemory(hpa, zero, jnp.zeros((), dtype=bool), zero, zero - 1.0)  # the poll at time 0 is no time later

    def decide(
        self, memory: KEDAMemory, reading: Reading, pool: Pool, fleet: Fleet, width: Scalar | None
    ) -> tuple[KEDAMemory, Array]:
        """One tick: the poll, then the HPA or the switch."""
        read = fleet_value if self.metricType == "Value" else summed_value
        value, there = windows.known(read(self.metric, reading, pool, fleet))
        there = there | self.ignoreNullValues
        memory = held(due(reading, self.pollingInterval, fleet.interval), self._poll(memory, value, there), memory)
        if self.useCachedMetrics:
            value, there = memory.value, memory.known

        hpa, scaled = self._scale(memory.hpa, reading, pool, fleet, value, there, width)
        rest = self._resting(memory, fleet, width)
        on = jnp.asarray(pool.asked) > 0.5
        return memory._replace(hpa=hpa), jnp.where(on, scaled * (1.0 - rest), memory.active)

    def _poll(self, memory: KEDAMemory, value: Array, there: Array) -> KEDAMemory:
        """Active or not, and for how many polls it has not been; a scaler that fails is neither."""
        active = gates.over(value, most(self.activationThreshold, _NOTHING), None)
        polled = memory._replace(value=value, active=active, idle=windows.agreed(memory.idle, 1.0 - active))
        return held(there, polled, memory)._replace(known=there)

    def _scale(
        self,
        memory: HPAMemory,
        reading: Reading,
        pool: Pool,
        fleet: Fleet,
        value: Array,
        there: Array,
        width: Scalar | None,
    ) -> tuple[HPAMemory, Array]:
        """What the HPA asks for."""
        step = windows.step_of(self.sync_period, fleet.interval)
        metric = HPAMetric(self.metric, self.threshold, self.metricType)
        wanted = metric.of_value(value, pool, self.behavior, width)
        bounds = (max(1.0, float(self.minReplicaCount)), self.maxReplicaCount)
        new, asked = normalise(note_moves(memory, pool), wanted, there, pool, self.behavior, bounds, step, width)
        now = due(reading, self.sync_period, fleet.interval)
        return held(now, new, memory), held(now, asked, jnp.asarray(pool.asked, dtype=jnp.float64))

    def _resting(self, memory: KEDAMemory, fleet: Fleet, width: Scalar | None) -> Scalar:
        """1 where the pool goes to 0: inactive for the whole cooldown."""
        if self.minReplicaCount > 0:
            return 0.0
        polls = windows.runs_needed(self.cooldownPeriod, windows.step_of(self.pollingInterval, fleet.interval)) - 1
        return gates.above(memory.idle, max(1, polls) - 0.5, width)

    @property
    def period(self) -> float:
        """The sync period of the HPA [s]."""
        return self.sync_period

    @property
    def detection_delay(self) -> float:
        """A sync and the upward window, after a poll where its value is cached; from 0 replicas on, a poll [s]."""
        sync = self.sync_period + self.behavior.scaleUp.stabilizationWindowSeconds
        cached = self.pollingInterval if self.useCachedMetrics else 0.0
        return max(sync + cached, self.pollingInterval if self.minReplicaCount == 0 else 0.0)

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g for AverageValue, where replicas = sum / threshold; None for Value, which multiplies."""
        if self.metricType == "Value":
            return None
        return proportional_gain(self.metric, self.threshold, pool, fleet, mix)


class KEDA(PerPool):
    """A ScaledObject for each pool (None: that pool keeps its workers).

    >>> KEDA(decode=KEDATarget("queue_length", 5.0, useCachedMetrics=True)).detection_delay
    45.0
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = pool_tunables(
        **{"threshold": Tunable("positive"), "maxReplicaCount": Tunable("positive")},
        **{f"behavior.{side}.tolerance": Tunable("share") for side in ("scaleUp", "scaleDown")},
    )

    prefill: KEDATarget | None = None
    decode: KEDATarget | None = None
