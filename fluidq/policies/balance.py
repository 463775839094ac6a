"""Balance tracking: both pools moved along phi, sized for the forecast over the lead time and for what waits."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates
from fluidq.policies._balance_demand import Expected, Forecaster, Past
from fluidq.policies.base import Asked, Policy, Reading, Tunable, check_numbers, held, split
from fluidq.policies.facts import Mix

_POSITIVE = ("drain", "fast_window", "level_window", "trend_window", "error_window", "release", "itl")
_AT_LEAST_0 = ("z", "prefill_margin", "decode_margin", "first_error", "slack", "guard", "stock_wait")


class Tracked(NamedTuple):
    """Memory of `BalanceTracking`.

    `past`: the forecaster's; `peak`: decaying highest need of the pools [workers], shape (2,); `buffered`: requests
    between the pools on the last tick.
    """

    past: Past
    peak: Array
    buffered: Array


class BalanceTracking(Policy):
    """Forecast, add what waits, add safety, split along phi; act before the buffer reaches a boundary.

    On each tick, with the horizon H of one tick to see, the cold start, and one tick until the worker serves:

    1. *Forecast* of each pool's demand at H: level and slope of the load, and the share of the present departure from
       them that lasts (`Forecaster`).
    2. *Safety*: the load grows by (1 + margin)(1 + z s), s the relative rms error of the pool's own forecasts over H,
       measured in the loop (the base-stock rule: what demand may do until a worker that is asked for serves).
    3. *What waits* is worked off in T_drain = `drain` H: d_P = load_P + X / (r_P T_drain),
       d_D = load_D + W t_D / T_drain; X is the queued prefill work, W the requests that still need decode, less what
       the buffer may hold (`stock_wait`).
    4. *Buffer guard*: fill rate delta+ = (what prefill can deliver) - (what decode admits); once
       (C - Q)/delta+ <= H + guard, decode is sized for what prefill delivers. Drain rate delta- = (what decode can take
       of the work there is) - (what prefill delivers); once Q/delta- <= H + guard, prefill is sized for that work.
    5. *Workers*: n = ceil(d/g), at once upwards, past any slack; downwards to the decaying peak of the need
       (time constant `release` H), and not for less than `slack` of a worker. Where that exceeds the budget, first
       the reserve goes, then both pools shrink along phi = d_P/(d_P + d_D).

    The workers that it compares with are ready or starting, so nothing is asked for twice. Where a role switch is
    faster than a cold start, a pool that is short takes at once what the other one holds in reserve. A missing sample
    changes nothing: it prefers nothing that it cannot see. The defaults were chosen on three other realisations of the
    default day. Source: D01, D14, D15, D18; base-stock rule; mean reversion by regression in the loop is ours.

    Attributes:
        drain: time in which what waits is to be worked off, T_drain/H [horizons]; D18: above e, no overshoot.
        z: safety in standard deviations of the forecast error [-].
        prefill_margin, decode_margin: spare capacity on top [share].
        fast_window, level_window, trend_window: time constants of the present load, of its level and of its slope [s].
        error_window: memory of the forecast error and of the regression [s].
        first_error: rms error of the forecast that is believed at the start [share].
        release: time constant of the decaying peak that capacity is held for [horizons]: what is dear to get back is
            kept longer.
        slack: excess that is not worth a stop [workers].
        guard: time beyond the horizon at which the buffer guard acts, the margin of the reaction budget [s].
        stock_wait: time that requests may wait in the buffer without counting as backlog, W_max [s].
        itl: longest decode step that the batch is sized for [s].
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {name: Tunable("positive") for name in (*_POSITIVE, *_AT_LEAST_0)}
    KEEPS_BUDGET: ClassVar[bool] = True

    drain: Scalar = 3.5
    z: Scalar = 1.0
    prefill_margin: Scalar = 0.25
    decode_margin: Scalar = 0.02
    fast_window: Scalar = 25.0
    level_window: Scalar = 2400.0
    trend_window: Scalar = 7200.0
    error_window: Scalar = 10800.0
    first_error: Scalar = 0.25
    release: Scalar = 0.8
    slack: Scalar = 0.4
    guard: Scalar = 15.0
    stock_wait: Scalar = 0.5
    itl: Scalar = 0.05

    def __check_init__(self) -> None:
        limits = {name: (0.0, 1e300) for name in _AT_LEAST_0} | {name: (1e-9, 1e300) for name in _POSITIVE}
        check_numbers(self, limits | {"prefill_margin": (0.0, 10.0), "decode_margin": (0.0, 10.0)})

    # Facts

    @property
    def detection_delay(self) -> Scalar:
        """The window in which a step of the load shows [s]."""
        return self.fast_window

    def gain(self, fleet: Fleet, mix: Mix) -> Scalar:
        """1/T_drain: the workers asked for beyond the load work off what waits in that time [1/s]."""
        return 1.0 / (jnp.asarray(self.drain) * _horizon(fleet))

    # The law

    def start(self, fleet: Fleet, asked: Asked) -> Tracked:
        """Nothing seen, no peak."""
        return Tracked(self._forecaster.start(_steps(fleet)), jnp.zeros(2), jnp.zeros(()))

    def decide(self, memory: Tracked, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Tracked, Asked]:
        """One tick: forecast, need, workers."""
        known, index = ~jnp.isnan(reading.rate), reading.index
        reading = Reading(*(jnp.where(jnp.isnan(value), 0.0, value) for value in reading))
        flows = reading.rate * jnp.stack([jnp.ones(()), reading.isl_computed, reading.isl, reading.osl])
        steps, dt = _steps(fleet), fleet.interval
        past, expected = self._forecaster.observe(memory.past, index, flows, fleet.plant, steps, dt)
        length = jnp.where(reading.isl_computed > 0, reading.isl_computed, expected.isl_computed)
        admitted = positive_part(ratio(reading.prefill_rate, length) - (reading.buffered - memory.buffered) / dt)
        need = self.need(reading, expected, admitted, fleet, width)

        per_worker = jnp.stack([jnp.asarray(g, dtype=jnp.float64) for g in fleet.per_worker])
        workers = need / per_worker
        fade = jnp.exp(-dt / (jnp.asarray(self.release) * _horizon(fleet)))
        peak = workers + fade * positive_part(memory.peak - workers)
        asked = jnp.stack([reading.prefill_asked, reading.decode_asked])
        wanted = self.workers(workers, peak, asked, fleet, width)
        new = Tracked(past, peak, reading.buffered)
        wanted = jnp.where(known, wanted, asked)
        return held(known, new, memory), Asked(wanted[0], wanted[1])

    def need(self, reading: Reading, expected: Expected, admitted: Scalar, fleet: Fleet, width: Scalar | None) -> Array:
        """GPUs that the pools need, shape (2,): the load with its safety, what waits, and what the guard demands.

        `admitted`: requests per second that decode took in on the last tick.
        """
        margins = (self.prefill_margin, self.decode_margin)
        margin = 1.0 + jnp.stack([jnp.asarray(m, dtype=jnp.float64) for m in margins])
        safe = expected.load * margin * (1.0 + self.z * expected.spread)
        beyond = positive_part(reading.buffered - self.stock_wait * admitted)
        waits = jnp.stack(
            [reading.queue_tokens / fleet.plant.r_P, (beyond + reading.queue) * expected.unit[1]],
        )
        need = safe + waits / (self.drain * _horizon(fleet))
        guarded = self.guarded(reading, expected, admitted, fleet, width)
        return most(need, guarded)

    def guarded(
        self, reading: Reading, expected: Expected, admitted: Scalar, fleet: Fleet, width: Scalar | None
    ) -> Array:
        """GPUs that the buffer guard demands, shape (2,); 0 while the buffer lasts longer than H + guard."""
        g_P, g_D = fleet.per_worker
        prefill_gpus, decode_gpus = reading.prefill_ready * g_P, reading.decode_ready * g_D
        work = expected.rate + reading.queue / fleet.interval
        delivers = least(ratio(prefill_gpus, expected.unit[0], empty=0.0), work)
        waiting = reading.queue / (self.drain * _horizon(fleet))
        takes = least(ratio(decode_gpus, expected.unit[1], empty=0.0), expected.rate + waiting)
        each = fleet.plant.crossing * expected.isl
        stock = reading.buffered
        headroom = positive_part(ratio(fleet.plant.room(prefill_gpus, decode_gpus), each) - stock)
        horizon = _horizon(fleet) + self.guard
        # t_b <= H + guard, written without the division by the distance to the boundary: it may be 0.
        fills = gates.over(ratio(positive_part(delivers - admitted) * horizon, most(headroom, 1e-9)), 1.0, width)
        dries = gates.over(ratio(positive_part(takes - delivers) * horizon, most(stock, 1e-9)), 1.0, width)
        return jnp.stack([dries * takes, fills * delivers]) * expected.unit

    def workers(self, need: Array, peak: Array, asked: Array, fleet: Fleet, width: Scalar | None) -> Array:
        """Workers to ask for, shape (2,), from the need and its peak [workers] and what was asked for so far."""
        per_worker = jnp.stack([jnp.asarray(g, dtype=jnp.float64) for g in fleet.per_worker])
        grown = most(_each(gates.whole_up, need, width), jnp.asarray(fleet.min_workers, dtype=jnp.float64))
        kept = _each(gates.whole_up, peak + self.slack, width)
        reserve = positive_part(least(asked, kept) - grown)
        if fleet.switch_delay is not None:
            short = positive_part(grown - asked)[::-1] * per_worker[::-1] / per_worker
            faster = jnp.asarray(fleet.switch_delay) < fleet.cold_start
            lent = least(reserve, _each(gates.whole_up, short, width))
            reserve = jnp.where(faster, positive_part(reserve - lent), reserve)
        wanted = grown + reserve
        total, least_total = jnp.sum(wanted * per_worker), jnp.sum(grown * per_worker)
        cut = least(1.0, ratio(positive_part(total - fleet.budget), total - least_total))
        shrunk = grown + _each(gates.whole_down, reserve * (1.0 - cut), width)
        wanted = jnp.where(total > fleet.budget, shrunk, wanted)
        gpus = need * per_worker
        phi = ratio(gpus[0], jnp.sum(gpus), empty=0.5)
        capped = jnp.stack(split(fleet.budget, phi, fleet, width))
        return jnp.where(least_total > fleet.budget, capped, wanted)

    @property
    def _forecaster(self) -> Forecaster:
        windows = (self.fast_window, self.level_window, self.trend_window, self.error_window)
        return Forecaster(*windows, first_error=self.first_error, itl=self.itl)


def _steps(fleet: Fleet) -> int:
    """The horizon in ticks: one to see, the cold start, one until the first whole tick of service."""
    return fleet.delay_ticks + 2


def _horizon(fleet: Fleet) -> float:
    """H [s]."""
    return _steps(fleet) * fleet.interval


def _each(gate: Callable, x: Array, width: Scalar | None) -> Array:
    """A gate on each pool's number."""
    return jnp.stack([gate(number, width) for number in x])
