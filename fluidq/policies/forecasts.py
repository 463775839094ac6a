"""Predictors of a load series: what laws expect of the next interval, or of a horizon ahead.

Each in-loop predictor is a pair of pure functions in JAX, differentiable in its parameters: `observe(state, value)`
takes one sample of every series (all arrays of shape (series,)), `ahead(state, steps)` is the forecast. A sample that
is NaN is skipped: the state stays. ARIMA is fitted by statsmodels, so it runs once, in `Policy.prepare`, on the offered
series; a forecast there never sees its own future.
"""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fluidq._errors import InputError, refuse, unknown
from fluidq._numerics import positive_part
from fluidq._types import Scalar


class Seen(NamedTuple):
    """State of an in-loop predictor. Arrays of shape (series,), but `past` (memory, series) and `cov` (series, 2, 2).

    `number`: samples seen; `level`, `trend` per step; `past`: ring of the last samples; `cov`: covariance of
    (level, trend).
    """

    number: Array
    level: Array
    trend: Array
    past: Array
    cov: Array


def nothing_seen(series: int, memory: int = 1) -> Seen:
    """The state before the first sample."""
    zero = jnp.zeros(series)
    return Seen(zero, zero, zero, jnp.zeros((memory, series)), jnp.zeros((series, 2, 2)))


class Constant(eqx.Module):
    """The last sample holds. Dynamo's `constant`."""

    def start(self, series: int) -> Seen:
        return nothing_seen(series)

    def observe(self, seen: Seen, value: Array) -> Seen:
        known = ~jnp.isnan(value)
        return seen._replace(number=seen.number + known, level=jnp.where(known, value, seen.level))

    def ahead(self, seen: Seen, steps: Scalar) -> Array:
        return seen.level


class MovingAverage(eqx.Module):
    """The mean of the last `samples` known samples (static)."""

    samples: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        if self.samples < 1:
            raise refuse("samples", self.samples, "at least 1")

    def start(self, series: int) -> Seen:
        return nothing_seen(series, self.samples)

    def observe(self, seen: Seen, value: Array) -> Seen:
        known = ~jnp.isnan(value)
        place = (jnp.arange(self.samples)[:, None] == (seen.number % self.samples)[None, :]) & known[None, :]
        past = jnp.where(place, jnp.where(known, value, 0.0)[None, :], seen.past)
        count = seen.number + known
        level = jnp.sum(past, axis=0) / jnp.clip(count, 1.0, float(self.samples))
        return seen._replace(number=count, past=past, level=level)

    def ahead(self, seen: Seen, steps: Scalar) -> Array:
        return seen.level


class Holt(eqx.Module):
    """Level and slope by exponential smoothing: level' = level + trend + a e, trend' = trend + a b e, e the innovation.

    Attributes:
        level: share a of an innovation that the level takes, in (0, 1]; per series or one for all.
        trend: share b of that which the slope takes, in [0, 1].

    The first sample is the level, with no slope. Source: Holt 1957; steady state of `Kalman`.
    """

    level: Any = 0.3
    trend: Any = 0.05

    def start(self, series: int) -> Seen:
        return nothing_seen(series)

    def observe(self, seen: Seen, value: Array) -> Seen:
        known = ~jnp.isnan(value)
        value = jnp.where(known, value, 0.0)
        first = seen.number == 0
        error = value - (seen.level + seen.trend)
        level = jnp.where(first, value, seen.level + seen.trend + self.level * error)
        trend = jnp.where(first, 0.0, seen.trend + self.level * self.trend * error)
        return seen._replace(
            number=seen.number + known,
            level=jnp.where(known, level, seen.level),
            trend=jnp.where(known, trend, seen.trend),
        )

    def ahead(self, seen: Seen, steps: Scalar) -> Array:
        """The straight line, never below 0: a load has no negative values."""
        return positive_part(seen.level + steps * seen.trend)


class Kalman(eqx.Module):
    """A local linear trend filtered: level and trend are random walks. Dynamo's `kalman`, with its names and defaults.

    Attributes:
        q_level, q_trend: variance that level and trend gain per step; r: variance of a sample (squares of the unit of
            the series).
        min_points: samples before the first forecast; until then the last sample holds (static).
    """

    q_level: Scalar = 1.0
    q_trend: Scalar = 0.1
    r: Scalar = 10.0
    min_points: int = eqx.field(static=True, default=5)

    def start(self, series: int) -> Seen:
        return nothing_seen(series)

    def observe(self, seen: Seen, value: Array) -> Seen:
        known = ~jnp.isnan(value)
        value = jnp.where(known, value, 0.0)
        move = jnp.array([[1.0, 1.0], [0.0, 1.0]])
        noise = jnp.diag(jnp.stack([jnp.asarray(self.q_level, dtype=float), jnp.asarray(self.q_trend, dtype=float)]))
        cov = move @ seen.cov @ move.T + noise[None]
        error = value - (seen.level + seen.trend)
        gain = cov[:, :, 0] / (cov[:, 0, 0] + self.r)[:, None]
        first = seen.number == 0
        level = jnp.where(first, value, seen.level + seen.trend + gain[:, 0] * error)
        trend = jnp.where(first, 0.0, seen.trend + gain[:, 1] * error)
        cov = cov - gain[:, :, None] * cov[:, 0, :][:, None, :]
        start = jnp.broadcast_to(self.r * jnp.eye(2), cov.shape)  # the first sample is the level, to within its noise
        cov = jnp.where(first[:, None, None], start, cov)
        last = jnp.where(known, value, seen.past[0])
        return Seen(
            number=seen.number + known,
            level=jnp.where(known, level, seen.level),
            trend=jnp.where(known, trend, seen.trend),
            past=last[None, :],
            cov=jnp.where(known[:, None, None], cov, seen.cov),
        )

    def ahead(self, seen: Seen, steps: Scalar) -> Array:
        line = positive_part(seen.level + steps * seen.trend)
        return jnp.where(seen.number >= self.min_points, line, seen.past[0])


class Arima(eqx.Module):
    """ARIMA(p, d, q) by maximum likelihood (statsmodels), one interval ahead; Dynamo's `arima`, there over pmdarima.

    Dynamo searches the order; here it is given. The parameters are fitted again when the series has doubled, and
    the filter runs on with them in between. Until `min_points` samples, and where no fit is possible, the last sample
    holds. Source: Box and Jenkins; Dynamo's predictor needs 5 points too.

    Attributes:
        order: (p, d, q) (static). min_points: samples before the first fit (static).
    """

    order: tuple[int, int, int] = eqx.field(static=True, default=(1, 1, 1))
    min_points: int = eqx.field(static=True, default=5)

    def forecasts(self, series: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " samples"]:
        """Entry k: what is expected of sample k + 1 after samples 0 to k. Raises InputError without statsmodels."""
        try:
            from statsmodels.tsa.arima.model import ARIMA
        except ImportError:
            raise InputError(
                "predictor 'arima' needs statsmodels: pip install 'fluidq[predict]', or choose 'kalman'."
            ) from None
        values = np.asarray(series, dtype=float)
        out, start = values.copy(), max(self.min_points, sum(self.order) + 2)
        while start <= values.size:
            stop = min(2 * start, values.size + 1)
            ahead = _one_step_ahead(ARIMA, values, start, stop, self.order)
            out[start - 1 : stop - 1] = np.where(np.isfinite(ahead), np.maximum(ahead, 0.0), out[start - 1 : stop - 1])
            start = stop
        return out


def _one_step_ahead(model: Any, values: np.ndarray, start: int, stop: int, order: tuple[int, int, int]) -> np.ndarray:
    """Forecasts of samples `start` to `stop` - 1, each from those before it, by a fit to the first `start` samples.

    NaN where the series has nothing to fit.
    """
    if np.ptp(values[:start]) == 0:
        return np.full(stop - start, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few points: start values and convergence are warned about, and do no harm
        try:
            fitted = model(values[:start], order=order).fit(method="innovations_mle")
            if stop - 1 > start:
                fitted = fitted.append(values[start : stop - 1], refit=False)
            return np.asarray(fitted.get_prediction(start, stop - 1).predicted_mean)
        except (np.linalg.LinAlgError, ValueError):
            return np.full(stop - start, np.nan)


Predictor = Constant | MovingAverage | Holt | Kalman | Arima

PREDICTORS: dict[str, type] = {
    "constant": Constant,
    "moving_average": MovingAverage,
    "holt": Holt,
    "kalman": Kalman,
    "arima": Arima,
}


def predictor(name: str, **parameters: Any) -> Predictor:
    """The predictor of that name with its parameters. Raises InputError for one that is not here."""
    if name not in PREDICTORS:
        raise unknown("load predictor", name, PREDICTORS)
    return PREDICTORS[name](**parameters)
