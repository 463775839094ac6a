"""Windows, stabilisation and clocks: what laws remember, as rings of static length, the newest entry first.

A window of W seconds holds the samples younger than W: with one sample per `step` seconds those of age 0, step, 2 step,
... below W, and at least the one of now. A missing sample is NaN in the ring; means, maxima and minima skip it and are
NaN where nothing is known. All of them have gradients in the entries that count.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fluidq._numerics import Scalar as Values
from fluidq._numerics import least, most
from fluidq._types import Scalar


def step_of(period: float, interval: float) -> float:
    """Seconds between two runs of a law with this period on ticks of `interval`: never shorter than a tick."""
    return max(1, round(period / interval)) * interval


def slots(window: float, step: float) -> int:
    """Samples of a window of `window` seconds, the one of now included.

    >>> slots(300.0, 15.0), slots(0.0, 15.0), slots(20.0, 15.0)
    (20, 1, 2)
    """
    return max(1, math.ceil(window / step - 1e-9))


def ring(value: Scalar, size: int) -> Float[Array, " {size}"]:
    """A ring of `size` entries that all hold `value`."""
    return jnp.full((size,), value, dtype=jnp.float64)


def push(entries: Float[Array, " n"], value: Scalar) -> Float[Array, " n"]:
    """The ring with `value` as its newest entry and without its oldest."""
    return jnp.concatenate([jnp.asarray(value, dtype=jnp.float64)[None], entries[:-1]])


def known(x: Values) -> tuple[Array, Array]:
    """The sample where it is a number, else 0; and whether it is one. Infinite counts as missing (0/0 of a rate)."""
    finite = jnp.isfinite(x)
    return jnp.where(finite, x, 0.0), finite


def mean(entries: Float[Array, " n"]) -> Array:
    """Mean of the known entries."""
    values, there = known(entries)
    count = jnp.sum(there)
    return jnp.where(count > 0, jnp.sum(values) / jnp.where(count > 0, count, 1), jnp.nan)


def highest(entries: Float[Array, " n"]) -> Array:
    """Largest known entry (PromQL's max_over_time)."""
    there = jnp.isfinite(entries)
    return _extreme(jnp.max(jnp.where(there, entries, -jnp.inf)), there)


def lowest(entries: Float[Array, " n"]) -> Array:
    """Smallest known entry."""
    there = jnp.isfinite(entries)
    return _extreme(jnp.min(jnp.where(there, entries, jnp.inf)), there)


def _extreme(value: Array, there: Bool[Array, " n"]) -> Array:
    return jnp.where(jnp.any(there), value, jnp.nan)


def stabilised(current: Scalar, proposals: Float[Array, " n"], up: int, down: int) -> Array:
    """The proposal nearest to `current` that the windows allow.

    Up to the lowest of the last `up` proposals, down to the highest of the last `down`; the newest counts in both, so
    the first bound is never above the second. The newest proposal must be known.
    """
    return least(most(current, lowest(proposals[:up])), highest(proposals[:down]))


def agreed(count: Scalar, holds: Scalar) -> Array:
    """Runs in a row in which a condition held: one more while it holds (1), none once it does not (0)."""
    return (count + 1.0) * holds


def runs_needed(delay: float, step: float) -> int:
    """Runs in a row that a decision must hold so that `delay` seconds lie between the first and the last of them.

    >>> runs_needed(30.0, 15.0), runs_needed(0.0, 15.0), runs_needed(20.0, 15.0)
    (3, 1, 3)
    """
    return math.ceil(delay / step - 1e-9) + 1
