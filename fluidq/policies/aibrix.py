"""AIBrix' PodAutoscaler: the strategies APA and KPA, one per pool.

The window value is the mean over the pods. APA multiplies it by their number; KPA, as coded, does not: four pods at 1.5
times the target get ceil(1.5) = 2. `form` says which of the two a KPA does.
"""

import abc
import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import least, most
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies.base import Reading, Tunable
from fluidq.policies.facts import Mix
from fluidq.policies.metrics import (
    Pool,
    check_bounds,
    check_fraction,
    check_metric,
    check_pool,
    mean_value,
    plain,
)
from fluidq.policies.per_pool import PerPool, PoolLaw, pool_tunables, proportional_gain

FORMS = ("as coded", "as intended")

# A rise this near to the panic threshold is none: windows of whole samples meet it exactly (two of four for 2).
_TIE = 1e-6


class AIBrixMemory(NamedTuple):
    """Means over the pods, and past recommendations; the newest first."""

    values: Array
    recommended: Array


class _AIBrix(PoolLaw):
    """What both strategies share: samples, cooldown windows, bounds. A subclass implements `recommend`."""

    metric: eqx.AbstractVar[str]
    targetValue: eqx.AbstractVar[Scalar]
    minReplicas: eqx.AbstractVar[Scalar]
    maxReplicas: eqx.AbstractVar[Scalar]
    max_scale_up_rate: eqx.AbstractVar[Scalar]
    max_scale_down_rate: eqx.AbstractVar[Scalar]
    scale_up_tolerance: eqx.AbstractVar[Scalar]
    scale_down_tolerance: eqx.AbstractVar[Scalar]
    scale_up_cooldown_window: eqx.AbstractVar[float]
    scale_down_cooldown_window: eqx.AbstractVar[float]
    resync: eqx.AbstractVar[float]

    @abc.abstractmethod
    def recommend(self, values: Array, pods: Scalar, fleet: Fleet, width: Scalar | None) -> tuple[Array, Array]:
        """Replicas for these window values, and whether anything is known."""

    def _window(self) -> float:
        return 0.0

    def _check(self) -> None:
        check_metric(self.metric, self.targetValue, "targetValue")
        check_bounds("minReplicas", "maxReplicas", self)
        for name in ("max_scale_up_rate", "max_scale_down_rate"):
            rate = plain(getattr(self, name))
            if rate is not None and not 1 < rate < math.inf:
                raise refuse(name, rate, "a factor > 1 (2 for at most twice, or half, per decision)")
        for name in ("scale_up_tolerance", "scale_down_tolerance"):
            check_fraction(name, getattr(self, name), "of the target", open_above=True)
        for name in ("scale_up_cooldown_window", "scale_down_cooldown_window"):
            if not 0 <= getattr(self, name) < math.inf:
                raise refuse(name, getattr(self, name), "a time >= 0 s")
        if not self.resync > 0:
            raise refuse("resync", self.resync, "a time > 0 s")

    def check(self, pool: str, fleet: Fleet) -> None:
        """Raise InputError for a metric that this pool or plant does not show."""
        check_pool(self.metric, pool, fleet)

    def start(self, fleet: Fleet, asked: Scalar) -> AIBrixMemory:
        """Nothing sampled; the first recommendation is the present size."""
        cooldown = max(self.scale_up_cooldown_window, self.scale_down_cooldown_window)
        values = windows.ring(jnp.nan, windows.slots(self._window(), fleet.interval))
        return AIBrixMemory(values, windows.ring(asked, windows.slots(cooldown, fleet.interval)))

    def decide(
        self, memory: AIBrixMemory, reading: Reading, pool: Pool, fleet: Fleet, width: Scalar | None
    ) -> tuple[AIBrixMemory, Array]:
        """One tick. A tick without a sample fails its reconciliation: nothing is recommended or changed."""
        now = jnp.asarray(pool.asked, dtype=jnp.float64)
        sample = mean_value(self.metric, reading, pool, fleet)
        values = windows.push(memory.values, sample)
        size, there = self.recommend(values, now, fleet, width)
        valid = there & jnp.isfinite(sample)
        size = jnp.where(valid, most(self.minReplicas, least(self.maxReplicas, size)), now)
        recommended = windows.push(memory.recommended, jnp.where(valid, size, jnp.nan))
        up = windows.slots(self.scale_up_cooldown_window, fleet.interval)
        down = windows.slots(self.scale_down_cooldown_window, fleet.interval)
        asked = windows.stabilised(now, recommended.at[0].set(size), up, down)
        return AIBrixMemory(values, recommended), jnp.where(valid, asked, now)

    @property
    def period(self) -> float:
        """The resync [s]."""
        return self.resync

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g where the recommendation is the sum over the target."""
        return proportional_gain(self.metric, self.targetValue, pool, fleet, mix)


class APATarget(_AIBrix):
    """APA: r = mean / targetValue; above 1 + tolerance min(ceil(n r), ceil(up rate n)), below 1 - tolerance
    max(ceil(n r), floor(n / down rate)), else n. n counts starting pods, the mean is over ready ones.

    The cooldown windows bound the move: up to the lowest recommendation of the upward window, down to the highest of
    the downward one. The resync of 10 s runs once per tick where the tick is longer. Later releases also hold back
    while pods are pending; that guard is not part of it.

    Attributes:
        metric: a name of `fluidq.policies.metrics`. targetValue: its target per pod.
        minReplicas, maxReplicas: bounds [workers].
        max_scale_up_rate, max_scale_down_rate: factors per decision.
        scale_up_tolerance, scale_down_tolerance: distance of r from 1 that is ignored [fraction].
        scale_up_cooldown_window, scale_down_cooldown_window, resync: [s] (static).
    """

    metric: str = eqx.field(static=True)
    targetValue: Scalar
    minReplicas: Scalar = 1.0
    maxReplicas: Scalar = math.inf
    max_scale_up_rate: Scalar = 2.0
    max_scale_down_rate: Scalar = 2.0
    scale_up_tolerance: Scalar = 0.1
    scale_down_tolerance: Scalar = 0.1
    scale_up_cooldown_window: float = eqx.field(static=True, default=0.0)
    scale_down_cooldown_window: float = eqx.field(static=True, default=300.0)
    resync: float = eqx.field(static=True, default=10.0)

    def __check_init__(self) -> None:
        self._check()

    def recommend(self, values: Array, pods: Scalar, fleet: Fleet, width: Scalar | None) -> tuple[Array, Array]:
        """Replicas for the newest value."""
        value, there = windows.known(values[0])
        share = value / self.targetValue
        wanted = gates.whole_up(pods * share, width)
        more = least(wanted, gates.whole_up(self.max_scale_up_rate * pods, width))
        fewer = most(wanted, gates.whole_down(pods / self.max_scale_down_rate, width))
        up = gates.over(share, 1.0 + self.scale_up_tolerance, width)
        down = gates.below(share, 1.0 - self.scale_down_tolerance, width)
        return pods + up * (more - pods) + down * (fewer - pods), there

    @property
    def detection_delay(self) -> float:
        """A resync and the upward cooldown [s]."""
        return self.resync + self.scale_up_cooldown_window


class KPATarget(_AIBrix):
    """KPA: ceil(stable mean / targetValue) outside the band, within [floor(n / down rate), max(1, ceil(up rate n))].

    In panic, when the panic window's mean is over panic_threshold times the stable window's (or that is not positive),
    the larger of both windows' sizes counts and nothing decreases. Both means are over pods *and* time.

    Attributes:
        form: "as coded": ceil(mean / target), which forgets that the mean is per pod; "as intended": times n (static).
        panic_threshold: panic mean over stable mean.
        stable_window, panic_window: [s] (static).
        others: as in `APATarget`.
    """

    metric: str = eqx.field(static=True)
    targetValue: Scalar
    form: str = eqx.field(static=True, default="as coded")
    minReplicas: Scalar = 1.0
    maxReplicas: Scalar = math.inf
    max_scale_up_rate: Scalar = 2.0
    max_scale_down_rate: Scalar = 2.0
    scale_up_tolerance: Scalar = 0.1
    scale_down_tolerance: Scalar = 0.1
    panic_threshold: Scalar = 2.0
    stable_window: float = eqx.field(static=True, default=180.0)
    panic_window: float = eqx.field(static=True, default=60.0)
    scale_up_cooldown_window: float = eqx.field(static=True, default=0.0)
    scale_down_cooldown_window: float = eqx.field(static=True, default=300.0)
    resync: float = eqx.field(static=True, default=10.0)

    def __check_init__(self) -> None:
        self._check()
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS)
        threshold = plain(self.panic_threshold)
        if threshold is not None and not 1 < threshold < math.inf:
            raise refuse("panic_threshold", threshold, "a ratio > 1 (2 for twice the stable mean)")
        if not 0 < self.panic_window <= self.stable_window < math.inf:
            raise refuse("panic_window", self.panic_window, f"> 0 s and at most stable_window, {self.stable_window!r}")

    def _window(self) -> float:
        return self.stable_window

    def recommend(self, values: Array, pods: Scalar, fleet: Fleet, width: Scalar | None) -> tuple[Array, Array]:
        """Replicas for the two windows."""
        stable, there = windows.known(windows.mean(values))
        urgent, fresh = windows.known(windows.mean(values[: windows.slots(self.panic_window, fleet.interval)]))
        per_pod = pods if self.form == "as intended" else 1.0
        highest = most(1.0, gates.whole_up(self.max_scale_up_rate * pods, width))
        lowest = gates.whole_down(pods / self.max_scale_down_rate, width)

        def size(mean: Array) -> Array:
            share = mean / self.targetValue
            outside = gates.over(share, 1.0 + self.scale_up_tolerance, width)
            outside = outside + gates.below(share, 1.0 - self.scale_down_tolerance, width)
            clipped = least(most(gates.whole_up(share * per_pod, width), lowest), highest)
            return pods + outside * (clipped - pods)

        calm, rush = size(stable), size(urgent)
        some = stable > 0
        rise = urgent / jnp.where(some, stable, 1.0)
        panic = jnp.where(some, gates.over(rise, self.panic_threshold * (1.0 + _TIE), width), 1.0)
        held_up = most(most(calm, rush), pods)
        return calm + panic * (held_up - calm), there & fresh

    @property
    def detection_delay(self) -> float:
        """A resync, the stable window and the upward cooldown [s]; a rise past the panic threshold needs less."""
        return self.resync + self.stable_window + self.scale_up_cooldown_window

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g as intended; as coded the size is not proportional to the stock: None."""
        return super().gain(pool, fleet, mix) if self.form == "as intended" else None


_SHARED = {
    "targetValue": Tunable("positive"),
    "max_scale_up_rate": Tunable("positive"),
    "max_scale_down_rate": Tunable("positive"),
    "scale_up_tolerance": Tunable("share"),
    "scale_down_tolerance": Tunable("share"),
}


class AIBrixAPA(PerPool):
    """A PodAutoscaler with the strategy APA for each pool (None: that pool keeps its workers).

    >>> AIBrixAPA(decode=APATarget("running", 48.0)).detection_delay
    10.0
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = pool_tunables(**_SHARED)

    prefill: APATarget | None = None
    decode: APATarget | None = None


class AIBrixKPA(PerPool):
    """A PodAutoscaler with the strategy KPA for each pool (None: that pool keeps its workers).

    >>> AIBrixKPA(decode=KPATarget("running", 48.0, form="as intended")).detection_delay
    190.0
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = pool_tunables(**_SHARED, panic_threshold=Tunable("positive"))

    prefill: KPATarget | None = None
    decode: KPATarget | None = None
