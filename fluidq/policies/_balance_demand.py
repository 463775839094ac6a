"""The demand that balance tracking expects one horizon ahead, and how far off such forecasts were so far."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import most, ratio
from fluidq._types import Scalar
from fluidq.plant import Plant
from fluidq.policies._demand import unit_times
from fluidq.policies.forecasts import Holt, Seen

# What is believed of the regression before the first forecast has been judged: half of a departure of 14 % lasts.
_CROSS, _SQUARE = 0.01, 0.02


class Past(NamedTuple):
    """What the forecaster remembers; pools in the order (prefill, decode).

    `flows`: fast and slow levels of requests, computed, stored and output tokens per second, shape (8,); `made`: ring
    of the last horizon's (slow demand [GPU], departure of the fast from the slow one [share], share expected to
    last), shape (horizon, 6); `cross`, `square`, `error`: running means, shape (2,).
    """

    flows: Seen
    made: Array
    cross: Array
    square: Array
    error: Array


class Expected(NamedTuple):
    """Forecast: `load` [GPU] and `unit` [GPU s/req], shape (2,); `rate` [req/s]; `isl`: stored tokens per request;
    `isl_computed`; `spread`: relative rms error of the forecasts that were made one horizon ahead, shape (2,)."""

    load: Array
    unit: Array
    rate: Array
    isl: Array
    isl_computed: Array
    spread: Array


class Forecaster(NamedTuple):
    """Level, slope and mean reversion of each pool's demand.

    The slow level and its slope are where the load goes; the fast level is where it is. Of the departure
    a = fast/slow - 1 a share rho lasts over the horizon: forecast = slow (1 + rho a). rho = E[a b]/E[a^2] is the
    regression, in the loop, of the departure b that came on the departure a that had been seen one horizon before: 0
    for noise, 1 for a load that stays where it is. Attributes: time constants [s]; `first_error`: relative rms error
    believed at the start; `itl`: longest decode step [s].
    """

    fast_window: Scalar
    level_window: Scalar
    trend_window: Scalar
    error_window: Scalar
    first_error: Scalar
    itl: Scalar

    def start(self, steps: int) -> Past:
        """Nothing seen yet; `steps` is the horizon in ticks."""
        two = jnp.ones(2)
        first = jnp.asarray(self.first_error, dtype=jnp.float64) ** 2
        return Past(Holt().start(8), jnp.zeros((steps, 6)), _CROSS * two, _SQUARE * two, first * two)

    def observe(
        self, past: Past, index: Scalar, flows: Array, plant: Plant, steps: int, dt: float
    ) -> tuple[Past, Expected]:
        """One tick: judge the forecast that was made for it, make the next.

        Arguments: `flows` = (requests, computed, stored, output tokens) per second, shape (4,).
        """
        seen = self._holt(dt).observe(past.flows, jnp.concatenate([flows, flows]))
        coming = Holt().ahead(seen, float(steps))
        fast, _ = self._demand(coming[:4], plant)
        slow, unit = self._demand(coming[4:], plant)
        now, _ = self._demand(flows, plant)

        place = jnp.asarray(index) % steps
        was_slow, was_away, was_lasting = jnp.split(past.made[place], 3)
        judged = was_slow > 0
        came = jnp.where(judged, now / jnp.where(judged, was_slow, 1.0) - 1.0, 0.0)
        keep = jnp.exp(-dt / jnp.asarray(self.error_window))

        def running(mean: Array, new: Array) -> Array:
            return jnp.where(judged, keep * mean + (1.0 - keep) * new, mean)

        cross = running(past.cross, came * was_away)
        square = running(past.square, was_away**2)
        error = running(past.error, (came - was_lasting * was_away) ** 2)
        lasting = jnp.clip(cross / square, 0.0, 1.0)
        some = slow > 0
        away = jnp.where(some, fast / jnp.where(some, slow, 1.0) - 1.0, 0.0)
        made = past.made.at[place].set(jnp.concatenate([slow, away, lasting]))
        expected = Expected(
            load=slow * (1.0 + lasting * away),
            unit=unit,
            rate=coming[4],
            isl=ratio(coming[6], coming[4]),
            isl_computed=ratio(coming[5], coming[4]),
            spread=jnp.sqrt(most(error, 1e-12)),
        )
        return Past(seen, made, cross, square, error), expected

    def _holt(self, dt: float) -> Holt:
        fast, slow, trend = (
            -jnp.expm1(-dt / jnp.asarray(window, dtype=jnp.float64))
            for window in (self.fast_window, self.level_window, self.trend_window)
        )
        level = jnp.concatenate([jnp.full(4, fast), jnp.full(4, slow)])
        return Holt(level=level, trend=jnp.concatenate([jnp.zeros(4), jnp.full(4, trend)]))

    def _demand(self, flows: Array, plant: Plant) -> tuple[Array, Array]:
        """GPUs that each pool needs for these flows, and GPU-seconds per request: both of shape (2,)."""
        lengths = [ratio(tokens, flows[0]) for tokens in flows[1:]]
        unit = jnp.stack(unit_times(plant, *lengths, itl=self.itl))
        return flows[0] * unit, unit
