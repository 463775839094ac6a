"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), one per pool.

On each sync: ratio = metric / target; nothing within the tolerance; else ceil(sum / target) (AverageValue) or
ceil(ready * ratio) (Value); then the stabilisation windows, the limits of the behaviour, and the bounds.
An external metric of type Value that is a backlog makes the fleet grow geometrically: the backlog does not fall when
pods are added, and each sync multiplies by the ratio anew.
"""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import least, most, positive_part
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies.base import Reading, Tunable, due, held
from fluidq.policies.facts import Mix
from fluidq.policies.metrics import (
    Pool,
    check_bounds,
    check_fraction,
    check_metric,
    check_pool,
    check_positive,
    fleet_value,
    mean_value,
    summed_value,
)
from fluidq.policies.per_pool import PerPool, PoolLaw, pool_tunables, proportional_gain

TARGET_TYPES = ("AverageValue", "Value")
SOURCES = ("External", "Object", "Pods")
SELECT_POLICIES = ("Max", "Min", "Disabled")


class HPAScalingPolicy(eqx.Module):
    """At most `value` pods ("Pods") or per cent of the pods ("Percent") within any `periodSeconds` (static)."""

    value: Scalar
    type: str = eqx.field(static=True, default="Pods")
    periodSeconds: float = eqx.field(static=True, default=15.0)

    def __check_init__(self) -> None:
        if self.type not in ("Pods", "Percent"):
            raise unknown("scaling policy type", self.type, ("Pods", "Percent"))
        check_positive("behavior.policies.value", self.value, "pods or per cent")
        if not 0 < self.periodSeconds <= 1800:
            raise refuse("behavior.policies.periodSeconds", self.periodSeconds, "in (0, 1800] s, as Kubernetes has it")


class HPAScalingRules(eqx.Module):
    """One direction of `behavior`.

    Attributes:
        stabilizationWindowSeconds: proposals this young bound the move: their lowest upwards, highest downwards [s].
        selectPolicy: which of the policies' limits holds: `Max` change, `Min` change, or `Disabled` for no moves.
        policies: limits of the change per period; none of them means no limit.
        tolerance: distance of the ratio from 1 that is ignored in this direction [fraction].
    """

    stabilizationWindowSeconds: float = eqx.field(static=True, default=0.0)
    selectPolicy: str = eqx.field(static=True, default="Max")
    policies: tuple[HPAScalingPolicy, ...] = ()
    tolerance: Scalar = 0.1

    def __check_init__(self) -> None:
        if self.selectPolicy not in SELECT_POLICIES:
            raise unknown("selectPolicy", self.selectPolicy, SELECT_POLICIES)
        if not 0 <= self.stabilizationWindowSeconds <= 3600:
            raise refuse(
                "behavior.stabilizationWindowSeconds",
                self.stabilizationWindowSeconds,
                "in [0, 3600] s, as Kubernetes has it",
            )
        check_fraction("behavior.tolerance", self.tolerance, "of the target", open_above=True)


def default_up() -> HPAScalingRules:
    """Kubernetes' default upwards: no window, the larger of 4 pods and 100 % per 15 s."""
    return HPAScalingRules(policies=(HPAScalingPolicy(4.0), HPAScalingPolicy(100.0, "Percent")))


def default_down() -> HPAScalingRules:
    """Kubernetes' default downwards: a window of 300 s, 100 % per 15 s."""
    return HPAScalingRules(300.0, policies=(HPAScalingPolicy(100.0, "Percent"),))


class HPABehavior(eqx.Module):
    """`spec.behavior`; the defaults are Kubernetes' own."""

    scaleUp: HPAScalingRules = eqx.field(default_factory=default_up)
    scaleDown: HPAScalingRules = eqx.field(default_factory=default_down)


class HPAMetric(eqx.Module):
    """One entry of `spec.metrics`.

    Attributes:
        metric: a name of `fluidq.policies.metrics`. target: its target, in its unit.
        target_type: `AverageValue` (per replica) or `Value` (as it is).
        type: `External` or `Object` (one number), or `Pods` (one per pod, with the rules for unready and missing ones).
    """

    metric: str = eqx.field(static=True)
    target: Scalar
    target_type: str = eqx.field(static=True, default="AverageValue")
    type: str = eqx.field(static=True, default="External")

    def __check_init__(self) -> None:
        if self.target_type not in TARGET_TYPES:
            raise unknown("target type", self.target_type, TARGET_TYPES)
        if self.type not in SOURCES:
            raise unknown("metric source", self.type, SOURCES)
        if self.type == "Pods" and self.target_type != "AverageValue":
            raise refuse("target_type", self.target_type, "AverageValue, the only one for a metric of type Pods")
        check_metric(self.metric, self.target, "target")

    def propose(
        self, reading: Reading, pool: Pool, fleet: Fleet, rules: HPABehavior, unready: Scalar, width: Scalar | None
    ) -> tuple[Array, Array]:
        """Replicas for this metric, and whether it is known. `unready` of the starting pods are not missing yet."""
        if self.type == "Pods":
            value, there = windows.known(mean_value(self.metric, reading, pool, fleet))
            return self._of_pods(value, pool, rules, unready, width), there
        read = fleet_value if self.target_type == "Value" else summed_value
        value, there = windows.known(read(self.metric, reading, pool, fleet))
        return self.of_value(value, pool, rules, width), there

    def of_value(self, value: Scalar, pool: Pool, rules: HPABehavior, width: Scalar | None) -> Array:
        """Replicas for one number: an external or object metric."""
        share = value / self.target
        if self.target_type == "Value":
            even, wanted = 1.0, share * pool.ready
        else:
            even, wanted = most(pool.asked, _SOME), share
        move = gates.over(share, even * (1.0 + rules.scaleUp.tolerance) * (1.0 + _TIE), width)
        move = move + gates.below(share, even * (1.0 - rules.scaleDown.tolerance) * (1.0 - _TIE), width)
        return pool.asked + move * (gates.whole_up(wanted, width) - pool.asked)

    def _of_pods(self, value: Scalar, pool: Pool, rules: HPABehavior, unready: Scalar, width: Scalar | None) -> Array:
        """Replicas for a metric per pod.

        On the way up all pods that start count as 0; on the way down those that are overdue count as the target. What
        that turns around is not done.
        """
        missing = positive_part(pool.starting - unready)
        load = value / self.target * pool.ready
        all_pods, seen = pool.ready + pool.starting, pool.ready + missing
        up = gates.over(load, most(all_pods, _SOME) * (1.0 + rules.scaleUp.tolerance), width)
        down = gates.below(load + missing, most(seen, _SOME) * (1.0 - rules.scaleDown.tolerance), width)
        more = most(gates.whole_up(load, width), pool.asked)
        fewer = least(gates.whole_up(load + missing, width), pool.asked)
        return pool.asked + up * (more - pool.asked) + down * (fewer - pool.asked)


# A ratio this near to the edge of the tolerance is within it: published sizes meet it exactly (11 for 10 at 10 %).
_TIE = 1e-6
# Stands for 0 replicas in a ratio.
_SOME = 1e-9


class HPAMemory(NamedTuple):
    """Past proposals, replicas added and removed per sync (newest first), and the replicas seen on the last sync."""

    proposals: Array
    added: Array
    removed: Array
    replicas: Array


class HPATarget(PoolLaw):
    """A HorizontalPodAutoscaler of one pool.

    A tick that lacks a metric decides nothing, and nothing is stored; with several metrics (`more`) the largest
    proposal counts, but one missing metric blocks every move downwards (an idle fleet's 0/0 latency does that).
    Pods that are starting are `unready` for `initial_readiness_delay` and then count as pods without metrics.
    The engine decides at most once per tick: a `sync_period` shorter than the tick runs on each tick.

    Attributes:
        metric, target, target_type, type: the first metric, as in `HPAMetric`.
        more: further metrics.
        minReplicas, maxReplicas: bounds [workers]; Kubernetes requires the second, here the budget bounds it too.
        behavior: windows, limits and tolerances, per direction.
        sync_period, initial_readiness_delay: flags of the controller [s] (static).
    """

    metric: str = eqx.field(static=True)
    target: Scalar
    target_type: str = eqx.field(static=True, default="AverageValue")
    type: str = eqx.field(static=True, default="External")
    more: tuple[HPAMetric, ...] = ()
    minReplicas: Scalar = 1.0
    maxReplicas: Scalar = math.inf
    behavior: HPABehavior = eqx.field(default_factory=HPABehavior)
    sync_period: float = eqx.field(static=True, default=15.0)
    initial_readiness_delay: float = eqx.field(static=True, default=30.0)

    def __check_init__(self) -> None:
        HPAMetric(self.metric, self.target, self.target_type, self.type)
        check_bounds("minReplicas", "maxReplicas", self)
        if not self.sync_period > 0:
            raise refuse("sync_period", self.sync_period, "a time > 0 s")
        if not self.initial_readiness_delay >= 0:
            raise refuse("initial_readiness_delay", self.initial_readiness_delay, "a time >= 0 s")

    @property
    def metrics(self) -> tuple[HPAMetric, ...]:
        """All metrics, the first one first."""
        return (HPAMetric(self.metric, self.target, self.target_type, self.type), *self.more)

    def check(self, pool: str, fleet: Fleet) -> None:
        """Raise InputError for a metric that this pool or plant does not show."""
        for each in self.metrics:
            check_pool(each.metric, pool, fleet)

    def start(self, fleet: Fleet, asked: Scalar) -> HPAMemory:
        """Nothing moved; the syncs before time 0 proposed the present size."""
        step = windows.step_of(self.sync_period, fleet.interval)
        return remember(self.behavior, asked, step, self.initial_readiness_delay)

    def decide(
        self, memory: HPAMemory, reading: Reading, pool: Pool, fleet: Fleet, width: Scalar | None
    ) -> tuple[HPAMemory, Array]:
        """One tick."""
        step = windows.step_of(self.sync_period, fleet.interval)
        noted = note_moves(memory, pool)
        fresh = windows.slots(self.initial_readiness_delay, step) - 1
        unready = least(pool.starting, jnp.sum(noted.added[:fresh]))
        wanted, valid = self._largest(reading, pool, fleet, unready, width)
        bounds = (self.minReplicas, self.maxReplicas)
        new, asked = normalise(noted, wanted, valid, pool, self.behavior, bounds, step, width)
        now = due(reading, self.sync_period, fleet.interval)
        return held(now, new, memory), held(now, asked, jnp.asarray(pool.asked, dtype=jnp.float64))

    def _largest(
        self, reading: Reading, pool: Pool, fleet: Fleet, unready: Scalar, width: Scalar | None
    ) -> tuple[Array, Array]:
        """The largest proposal, and whether it may be used: not downwards while any metric is missing."""
        proposals, there = zip(
            *(each.propose(reading, pool, fleet, self.behavior, unready, width) for each in self.metrics), strict=True
        )
        known = jnp.stack(there)
        largest = jnp.max(jnp.where(known, jnp.stack(proposals), -jnp.inf))
        valid = jnp.all(known) | (jnp.any(known) & (largest >= pool.asked))
        return jnp.where(valid, largest, pool.asked), valid

    @property
    def period(self) -> float:
        """The sync period [s]."""
        return self.sync_period

    @property
    def detection_delay(self) -> float:
        """A sync and the upward window [s]; the scrape of the metric comes on top."""
        return self.sync_period + self.behavior.scaleUp.stabilizationWindowSeconds

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g for AverageValue, where replicas = sum / target; None for Value, which multiplies."""
        if self.more or self.target_type == "Value":
            return None
        return proportional_gain(self.metric, self.target, pool, fleet, mix)


def remember(behavior: HPABehavior, asked: Scalar, step: float, also: float = 0.0) -> HPAMemory:
    """The memory of a controller that found `asked` replicas; `also` seconds of moves are kept at least."""
    rules = (behavior.scaleUp, behavior.scaleDown)
    proposals = max(windows.slots(r.stabilizationWindowSeconds, step) for r in rules)
    periods = [p.periodSeconds for r in rules for p in r.policies]
    moves = max(windows.slots(t, step) for t in (*periods, also))
    still = windows.ring(0.0, moves)
    return HPAMemory(windows.ring(asked, proposals), still, still, jnp.asarray(asked, dtype=jnp.float64))


def note_moves(memory: HPAMemory, pool: Pool) -> HPAMemory:
    """The memory with what the last sync really moved: its newest entry is one sync old."""
    change = pool.asked - memory.replicas
    return memory._replace(
        added=windows.push(memory.added, positive_part(change)),
        removed=windows.push(memory.removed, positive_part(-change)),
        replicas=jnp.asarray(pool.asked, dtype=jnp.float64),
    )


def normalise(
    memory: HPAMemory,
    wanted: Scalar,
    valid: Array,
    pool: Pool,
    behavior: HPABehavior,
    bounds: tuple[Scalar, Scalar],
    step: float,
    width: Scalar | None,
) -> tuple[HPAMemory, Array]:
    """Windows, limits and bounds: the new memory and the replicas. Where `valid` is false nothing moves."""
    now = jnp.asarray(pool.asked, dtype=jnp.float64)
    proposals = windows.push(memory.proposals, jnp.where(valid, wanted, jnp.nan))
    up = windows.slots(behavior.scaleUp.stabilizationWindowSeconds, step)
    down = windows.slots(behavior.scaleDown.stabilizationWindowSeconds, step)
    # The newest entry is known in this copy, so that a tick without a proposal has no NaN to differentiate.
    stable = windows.stabilised(now, proposals.at[0].set(jnp.where(valid, wanted, now)), up, down)
    lowest = _limit(behavior.scaleDown, memory, now, step, False, width)
    highest = _limit(behavior.scaleUp, memory, now, step, True, width)
    asked = most(bounds[0], least(bounds[1], most(least(stable, highest), lowest)))
    return memory._replace(proposals=proposals), jnp.where(valid, asked, now)


def _limit(rules: HPAScalingRules, memory: HPAMemory, now: Array, step: float, up: bool, width: Scalar | None) -> Array:
    """Most replicas upwards, or least downwards, that the policies of this direction allow now."""
    if rules.selectPolicy == "Disabled":
        return now
    if not rules.policies:
        return jnp.asarray(jnp.inf if up else -jnp.inf)
    limits = []
    for policy in rules.policies:
        past = windows.slots(policy.periodSeconds, step) - 1
        start = now - jnp.sum(memory.added[:past]) + jnp.sum(memory.removed[:past])
        if policy.type == "Pods":
            limits.append(start + policy.value if up else start - policy.value)
        elif up:
            limits.append(gates.whole_up(start * (1.0 + policy.value / 100.0), width))
        else:
            limits.append(gates.whole_down(start * (1.0 - policy.value / 100.0), width))
    both = jnp.stack([jnp.asarray(limit, dtype=jnp.float64) for limit in limits])
    pick = jnp.max if (rules.selectPolicy == "Max") == up else jnp.min
    return most(pick(both), now) if up else least(pick(both), now)


class HPA(PerPool):
    """A HorizontalPodAutoscaler for each pool (None: that pool keeps its workers).

    >>> HPA(prefill=HPATarget("queue_length", 5.0), decode=HPATarget("decode_tps", 2000.0)).detection_delay
    15.0
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = pool_tunables(
        **{"target": Tunable("positive"), "minReplicas": Tunable("positive")},
        **{"maxReplicas": Tunable("above", "minReplicas")},
        **{f"behavior.{side}.tolerance": Tunable("share") for side in ("scaleUp", "scaleDown")},
    )

    prefill: HPATarget | None = None
    decode: HPATarget | None = None
