"""HeteroScale: one signal, decode tokens per second, scales both pools at a fixed ratio."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import least, most, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates
from fluidq.policies._demand import balance_of, batch_of, mean_lengths, step_at
from fluidq.policies.base import Asked, Policy, Reading, Tunable, check_numbers, due, held, split
from fluidq.policies.facts import Mix

# Longer than any cool-down: nothing has moved yet.
_LONG_AGO = 1e9


class Since(NamedTuple):
    """Seconds since the last move out (up) and in (down)."""

    out: Array
    down: Array


class HeteroScale(Policy):
    """Proportional control of decode tokens/s per decode worker; prefill follows at `pd_ratio`.

    With R the pool's output rate [tok/s], n its workers (starting ones count) and r = R / (n target_decode_tps):
    out if r > 1 + scale_out_tolerance and `scale_out_cooldown_seconds` have passed since the last move out; in if
    r < 1 - scale_in_tolerance and `scale_in_cooldown_seconds` have passed since the last move of either kind; to
    n_D = ceil(R / target_decode_tps), n_P = ceil(pd_ratio n_D). With `tbt_limit_ms`, a time between tokens over it also
    moves out, by a share `latency_step` of the pool (negative feedback, as the paper has it for latency metrics).

    The signal is linear in the load, so the loop's gain is the same everywhere, but it saturates: R never exceeds what
    the ready workers can do. A target above that is never reached, and an overload is then never seen.

    Source: arXiv 2508.19559. The paper's thresholds and cool-downs are those of a production system and are not given
    as defaults; the ones here are ours.

    Attributes:
        target_decode_tps: output of a decode worker [tok/s]; None: `utilisation` of what it can do at the mean mix.
        pd_ratio: prefill workers per decode worker; None: D01's balance at the load's mean mix.
        utilisation: share of a decode worker's capacity that its target is [share], in (0, 1].
        scale_out_tolerance, scale_in_tolerance: dead band [share].
        scale_out_cooldown_seconds, scale_in_cooldown_seconds: [s].
        tbt_limit_ms: limit on the time between tokens [ms]; None for none. latency_step: share of the pool per move.
        interval_seconds: sample period [s] (static).
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "target_decode_tps": Tunable("positive"),
        "pd_ratio": Tunable("positive"),
        "utilisation": Tunable("share"),
        "scale_out_tolerance": Tunable("positive"),
        "scale_in_tolerance": Tunable("share"),
        "scale_out_cooldown_seconds": Tunable("positive"),
        "scale_in_cooldown_seconds": Tunable("positive"),
        "tbt_limit_ms": Tunable("positive"),
        "latency_step": Tunable("positive"),
    }
    KEEPS_BUDGET: ClassVar[bool] = True

    target_decode_tps: Scalar | None = None
    pd_ratio: Scalar | None = None
    utilisation: Scalar = 0.6
    scale_out_tolerance: Scalar = 0.1
    scale_in_tolerance: Scalar = 0.1
    scale_out_cooldown_seconds: Scalar = 60.0
    scale_in_cooldown_seconds: Scalar = 300.0
    tbt_limit_ms: Scalar | None = None
    latency_step: Scalar = 0.1
    interval_seconds: float = eqx.field(static=True, default=15.0)

    def __check_init__(self) -> None:
        inf = float("inf")
        utilisation = self.utilisation
        if not isinstance(utilisation, Tracer) and jnp.ndim(utilisation) == 0 and float(utilisation) > 1:
            share = float(utilisation)
            raise refuse("utilisation", share, f"a share in (0, 1]: write {share / 100:g} for {share:g} %")
        limits = {name: (0.0, inf) for name in ("scale_out_tolerance", "latency_step")}
        limits |= {name: (0.0, inf) for name in ("scale_out_cooldown_seconds", "scale_in_cooldown_seconds")}
        limits |= {name: (1e-12, inf) for name in ("target_decode_tps", "pd_ratio", "tbt_limit_ms")}
        check_numbers(self, limits | {"utilisation": (1e-12, 1.0), "scale_in_tolerance": (0.0, 1.0)})
        if not 0 < self.interval_seconds < inf:
            raise refuse("interval_seconds", self.interval_seconds, "a time > 0 s")

    @property
    def period(self) -> float:
        """The sample period [s]."""
        return self.interval_seconds

    @property
    def detection_delay(self) -> Scalar:
        """A sample, and the cool-down after the move before [s]."""
        return self.interval_seconds + self.scale_out_cooldown_seconds

    def gain(self, fleet: Fleet, mix: Mix) -> float:
        """0: it looks at no stock."""
        return 0.0

    def prepare(self, load: Any, fleet: Fleet) -> "HeteroScale":
        """With the target and the ratio that were left open, from the load's mean mix."""
        lengths = mean_lengths(load)
        new = self
        if self.target_decode_tps is None:
            full = decode_worker_tps(fleet, lengths[1], lengths[2])
            new = _with(new, "target_decode_tps", self.utilisation * full)
        if self.pd_ratio is None:
            g_P, g_D = fleet.per_worker
            phi = balance_of(fleet.plant, *lengths)
            new = _with(new, "pd_ratio", phi / g_P / ((1.0 - phi) / g_D))
        return new

    def initial(self, fleet: Fleet, width: Scalar | None) -> Asked:
        """The fleet's first GPUs at this law's ratio; at the fleet's own where none is set."""
        if self.pd_ratio is None:
            return split(fleet.initial_gpus, fleet.initial_ratio, fleet, width)
        g_P, g_D = fleet.per_worker
        return split(fleet.initial_gpus, self.pd_ratio * g_P / (self.pd_ratio * g_P + g_D), fleet, width)

    def start(self, fleet: Fleet, asked: Asked) -> Since:
        """No move yet."""
        return Since(jnp.asarray(_LONG_AGO), jnp.asarray(_LONG_AGO))

    def decide(self, memory: Since, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Since, Asked]:
        """One tick; a missing sample moves nothing."""
        if self.target_decode_tps is None or self.pd_ratio is None:
            raise refuse("target_decode_tps", None, "set, here or by `prepare`, before the first tick")
        dt, n = fleet.interval, jnp.asarray(reading.decode_asked, dtype=jnp.float64)
        known = ~jnp.isnan(reading.decode_rate) & due(reading, self.interval_seconds, dt)
        output = jnp.where(known, reading.decode_rate, 0.0)
        needed = output / self.target_decode_tps
        use = ratio(needed, n)
        wanted = gates.whole_up(needed, width)

        since = Since(memory.out + dt, memory.down + dt)
        rested_out = _rested(since.out, self.scale_out_cooldown_seconds, width)
        rested_in = _rested(least(since.out, since.down), self.scale_in_cooldown_seconds, width)
        out = rested_out * gates.over(use, 1.0 + self.scale_out_tolerance, width)
        down = (1.0 - out) * rested_in * gates.below(use, 1.0 - self.scale_in_tolerance, width)
        target = n + out * (most(wanted, n) - n) + down * (least(wanted, n) - n)
        if self.tbt_limit_ms is not None:
            tpot = jnp.where(known, reading.tpot, 0.0)
            slow = rested_out * gates.over(tpot, self.tbt_limit_ms / 1e3, width)
            step = gates.whole_up(n * (1.0 + self.latency_step), width)
            target = target + slow * (most(target, step) - target)
            out, down = most(out, slow), (1.0 - slow) * down
        since = Since(since.out * (1.0 - out), since.down * (1.0 - down))
        target = jnp.where(known, target, n)
        asked = self._pair(target, fleet, width)
        now = Asked(jnp.asarray(reading.prefill_asked, dtype=jnp.float64), n)
        return held(known, since, Since(memory.out + dt, memory.down + dt)), held(known, asked, now)

    def _pair(self, decode: Array, fleet: Fleet, width: Scalar | None) -> Asked:
        """Both pools at the ratio, within the budget and above the least workers."""
        (g_P, g_D), low = fleet.per_worker, fleet.min_workers
        room = gates.whole_down(fleet.budget / (g_D + self.pd_ratio * g_P), width)  # type: ignore[operator]
        decode = most(least(decode, room), low)
        most_prefill = gates.whole_down((fleet.budget - decode * g_D) / g_P, width)
        prefill = most(least(gates.whole_up(self.pd_ratio * decode, width), most_prefill), low)  # type: ignore[operator]
        # With little room the least prefill worker takes its GPUs from decode.
        decode = most(least(decode, gates.whole_down((fleet.budget - prefill * g_P) / g_D, width)), low)
        return Asked(prefill, decode)


def decode_worker_tps(fleet: Fleet, isl: Scalar, osl: Scalar) -> Array:
    """Output of one decode worker with full batches [tok/s], the most that the signal can show per worker."""
    batch = batch_of(fleet.plant, isl, osl)
    return fleet.per_worker[1] * batch * fleet.plant.accept / step_at(fleet.plant, batch, isl, osl)


def _rested(since: Scalar, cooldown: Scalar, width: Scalar | None) -> Array:
    """1 where the cool-down has passed. Time comes in ticks: a tie is the rule, and counts as passed at every width."""
    some = jnp.asarray(cooldown) > 0
    return jnp.where(some, 1.0 - gates.below(since, jnp.where(some, cooldown, 1.0) * (1.0 - 1e-6), width), 1.0)


def _with(policy: HeteroScale, name: str, value: Scalar) -> HeteroScale:
    value = jnp.asarray(value, dtype=jnp.float64)
    return eqx.tree_at(lambda p: getattr(p, name), policy, value, is_leaf=lambda x: x is None)
