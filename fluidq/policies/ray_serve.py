"""Ray Serve's autoscaling of a deployment, one per pool."""

import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import least, most
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates, windows
from fluidq.policies.base import Reading, Tunable
from fluidq.policies.facts import Mix
from fluidq.policies.metrics import Pool, check_bounds, check_positive, fleet_value, plain
from fluidq.policies.per_pool import PerPool, PoolLaw, pool_tunables, proportional_gain


class RayMemory(NamedTuple):
    """Ongoing requests of the look-back period, their last known mean, and decisions in a row: up, down, up to zero."""

    ongoing: Array
    seen: Array
    up: Array
    down: Array


class RayServeTarget(PoolLaw):
    """An `AutoscalingConfig` of one pool.

    desired = ongoing requests, a mean over `look_back_period_s`, / target_ongoing_requests;
    new = ceil(ready + factor (desired - ready)), one less where that ceiling stops a downscale, within the bounds.
    It acts once the same direction has held for its delay; a change of direction or none starts anew. From 0 replicas
    any request asks for one (times the factor) at once; to 0 it goes from 1 only, after `downscale_to_zero_delay_s`.
    Missing reports leave the last known mean. Ray's loop runs each 0.1 s, here on each tick: delays count in ticks
    (a decision acts on the first tick that is `delay` after the first of its kind).

    Relaxed: delays and the look-back are whole ticks (static), and leaving 0 replicas is not softened.

    Attributes:
        target_ongoing_requests: per replica [req], waiting and running.
        min_replicas, max_replicas: [workers]; Ray's default of 1 at most never scales, see `auto`.
        upscaling_factor, downscaling_factor: None means 1.
        look_back_period_s, metrics_interval_s, upscale_delay_s, downscale_delay_s: [s] (static).
        downscale_to_zero_delay_s: None means downscale_delay_s (static).
    """

    target_ongoing_requests: Scalar = 2.0
    min_replicas: Scalar = 1.0
    max_replicas: Scalar = 1.0
    upscaling_factor: Scalar | None = None
    downscaling_factor: Scalar | None = None
    metrics_interval_s: float = eqx.field(static=True, default=10.0)
    look_back_period_s: float = eqx.field(static=True, default=30.0)
    upscale_delay_s: float = eqx.field(static=True, default=30.0)
    downscale_delay_s: float = eqx.field(static=True, default=600.0)
    downscale_to_zero_delay_s: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_positive("target_ongoing_requests", self.target_ongoing_requests, "req")
        check_bounds("min_replicas", "max_replicas", self)
        for name in ("upscaling_factor", "downscaling_factor"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name), "1")
        for name in ("metrics_interval_s", "look_back_period_s"):
            if not getattr(self, name) > 0:
                raise refuse(name, getattr(self, name), "a time > 0 s")
        for name in ("upscale_delay_s", "downscale_delay_s", "downscale_to_zero_delay_s"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < math.inf:
                raise refuse(name, getattr(self, name), "a time >= 0 s")

    @staticmethod
    def auto(**changes: Any) -> "RayServeTarget":
        """What `num_replicas="auto"` sets: up to 100 replicas."""
        return RayServeTarget(**{"max_replicas": 100.0, **changes})

    def start(self, fleet: Fleet, asked: Scalar) -> RayMemory:
        """Nothing reported, nothing decided."""
        zero = jnp.zeros(())
        size = windows.slots(self.look_back_period_s, fleet.interval)
        return RayMemory(windows.ring(jnp.nan, size), zero, zero, zero)

    def decide(
        self, memory: RayMemory, reading: Reading, pool: Pool, fleet: Fleet, width: Scalar | None
    ) -> tuple[RayMemory, Array]:
        """One tick."""
        ongoing = windows.push(memory.ongoing, fleet_value("ongoing_requests", reading, pool, fleet))
        mean, there = windows.known(windows.mean(ongoing))
        seen = jnp.where(there, mean, memory.seen)
        now = jnp.asarray(pool.asked, dtype=jnp.float64)
        wanted = self.propose(seen, pool.ready, width)
        up_by, down_by = gates.above(wanted - now, 0.5, width), gates.above(now - wanted, 0.5, width)
        up, down = windows.agreed(memory.up, up_by), windows.agreed(memory.down, down_by)
        last = gates.above(1.5 - now, 0.0, width)  # one replica left: the move would be to zero
        more = gates.above(up, self._needed(self.upscale_delay_s, fleet), width)
        slow = gates.above(down, self._needed(self.downscale_delay_s, fleet), width)
        to_zero = self.downscale_delay_s if self.downscale_to_zero_delay_s is None else self.downscale_to_zero_delay_s
        out = gates.above(down, self._needed(to_zero, fleet), width)
        fewer = slow + last * (out - slow)
        lower = wanted + (1.0 - last) * (most(wanted, 1.0) - wanted)  # from 2 and more, to 1 at least
        asked = now + more * (wanted - now) + fewer * (lower - now)
        some = jnp.where(seen > _NOTHING, most(1.0, gates.whole_up(self._up, width)), 0.0)
        empty = now < 0.5
        asked = jnp.where(empty, most(some, now), asked)
        idle = jnp.where(empty, 0.0, 1.0)
        return RayMemory(ongoing, seen, up * (1.0 - more) * idle, down * (1.0 - fewer) * idle), asked

    def propose(self, ongoing: Scalar, ready: Scalar, width: Scalar | None) -> Array:
        """Replicas for this many ongoing requests: factors, the stuck downscale, bounds."""
        desired = ongoing / self.target_ongoing_requests
        gap = desired - ready
        factor = jnp.where(jnp.asarray(gap) > 0, self._up, self._down)
        scaled = gates.whole_up(ready + factor * gap, width)
        below = gates.above(ready - gates.whole_up(desired, width), 0.5, width)
        stuck = below * (1.0 - gates.above(jnp.abs(scaled - ready), 0.5, width))
        return most(self.min_replicas, least(self.max_replicas, scaled - stuck))

    @property
    def _up(self) -> Scalar:
        return 1.0 if self.upscaling_factor is None else self.upscaling_factor

    @property
    def _down(self) -> Scalar:
        return 1.0 if self.downscaling_factor is None else self.downscaling_factor

    @staticmethod
    def _needed(delay: float, fleet: Fleet) -> float:
        return windows.runs_needed(delay, fleet.interval) - 0.5

    @property
    def period(self) -> float:
        """Ray's control loop [s]."""
        return 0.1

    @property
    def detection_delay(self) -> float:
        """A report, the look-back mean, and the upscale delay [s]."""
        return self.metrics_interval_s + self.look_back_period_s + self.upscale_delay_s

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """g with a factor of 1, where replicas = ongoing / target; another factor is incremental: None."""
        factors = [plain(f) for f in (self._up, self._down)]
        if factors != [1.0, 1.0]:
            return None
        return proportional_gain("ongoing_requests", self.target_ongoing_requests, pool, fleet, mix)


# A fluid has no last request: what is left of a decaying level below this is none.
_NOTHING = 1e-6


class RayServe(PerPool):
    """An autoscaled deployment for each pool (None: that pool keeps its workers).

    >>> RayServe(decode=RayServeTarget.auto(target_ongoing_requests=48.0)).detection_delay
    70.0
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = pool_tunables(
        target_ongoing_requests=Tunable("positive"),
        upscaling_factor=Tunable("positive"),
        downscaling_factor=Tunable("positive"),
        min_replicas=Tunable("positive"),
        max_replicas=Tunable("above", "min_replicas"),
    )

    prefill: RayServeTarget | None = None
    decode: RayServeTarget | None = None
