"""Comparisons and whole numbers, hard and relaxed: the only place where a policy's law is softened.

`width=None` is the hard law. A number is the relaxed one: differentiable, and the hard law in the limit width -> 0.
A missing sample (NaN) lies on neither side of a threshold: both comparisons are 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._types import Scalar


def below(x: Scalar, threshold: Scalar, width: Scalar | None) -> Array:
    """1 where x < threshold, else 0; relaxed: a logistic gate in ln x, 1 / (1 + (x / threshold)^(1/width)), x >= 0.

    Signals span decades and sit at 0 when all is well; in ln x the gate is then exactly 1 there at every width, so the
    relaxed law has no drift that the hard law lacks. At the threshold it is 1/2.
    """
    if width is None:
        return jnp.where(jnp.asarray(x) < threshold, 1.0, 0.0)
    return jnp.where(jnp.isnan(x), 0.0, _gate(x, threshold, width))


def over(x: Scalar, threshold: Scalar, width: Scalar | None) -> Array:
    """1 where x > threshold, else 0; relaxed: 1 minus the gate of `below`."""
    if width is None:
        return jnp.where(jnp.asarray(x) > threshold, 1.0, 0.0)
    return jnp.where(jnp.isnan(x), 0.0, 1.0 - _gate(x, threshold, width))


def above(x: Scalar, threshold: Scalar, width: Scalar | None) -> Array:
    """1 where x > threshold for signals of either sign; relaxed: a logistic of that absolute width (unit of x)."""
    if width is None:
        return jnp.where(jnp.asarray(x) > threshold, 1.0, 0.0)
    known = ~jnp.isnan(x)
    return jnp.where(known, jax.nn.sigmoid((jnp.where(known, x, 0.0) - threshold) / width), 0.0)


def nearest(x: Scalar, width: Scalar | None) -> Array:
    """round(x); relaxed: the identity when `width` is large, round(x) as it goes to 0."""
    return jnp.round(jnp.asarray(x)) if width is None else _staircase(jnp.asarray(x), width)


def whole_down(x: Scalar, width: Scalar | None) -> Array:
    """floor(x), forgiving rounding of 1e-9; relaxed: the identity when `width` is large, floor(x) as it goes to 0.

    The shift falls as sqrt(width), slower than a tread's slope, so that an integer x keeps its value in the limit.
    """
    x = jnp.asarray(x)
    return jnp.floor(x + 1e-9) if width is None else _staircase(x - _shift(width), width)


def whole_up(x: Scalar, width: Scalar | None) -> Array:
    """ceil(x), forgiving rounding of 1e-9; relaxed as `whole_down`."""
    x = jnp.asarray(x)
    return jnp.ceil(x - 1e-9) if width is None else _staircase(x + _shift(width), width)


def _gate(x: Scalar, threshold: Scalar, width: Scalar) -> Array:
    some = jnp.asarray(x) > 1e-12 * jnp.asarray(threshold)  # below, ln x has no bounded slope and the gate is 1 anyway
    log = jnp.log(jnp.where(some, x, 1.0)) - jnp.log(threshold)
    return jnp.where(some, jax.nn.sigmoid(-log / width), 1.0)


def _shift(width: Scalar) -> Array:
    return 0.5 / (1.0 + jnp.sqrt(width))


def _staircase(x: Array, width: Scalar) -> Array:
    """Between two integers a scaled tanh through both: value and slope are bounded and no tread is lost."""
    base = jax.lax.stop_gradient(jnp.floor(x))
    s = jnp.tanh((x - base - 0.5) / width)
    return base + 0.5 + 0.5 * s / jnp.tanh(0.5 / width)
