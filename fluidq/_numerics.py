"""Safe functions: each settles one tie or one NaN, and says which.

`jnp.minimum` and `jnp.maximum` split the derivative at a tie and cost several operations; a `where` is one select
whose derivative is one select. At a tie these take the *first* argument's derivative, on purpose and by name.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

Scalar = Real[ArrayLike, "..."]


def least(a: Scalar, b: Scalar) -> Array:
    """min(a, b); at a tie the derivative is that of `a`."""
    return jnp.where(jnp.asarray(a) <= b, a, b)


def most(a: Scalar, b: Scalar) -> Array:
    """max(a, b); at a tie the derivative is that of `a`."""
    return jnp.where(jnp.asarray(a) >= b, a, b)


def positive_part(x: Scalar) -> Array:
    """max(x, 0); at 0 the derivative is 0 (nothing has spilled yet)."""
    return jnp.where(jnp.asarray(x) > 0, x, 0.0)


def ratio(a: Scalar, b: Scalar, empty: Scalar = 0.0) -> Array:
    """a / b where b > 0, else `empty`; the division is guarded before it happens, so no gradient is NaN."""
    b = jnp.asarray(b)
    some = b > 0
    return jnp.where(some, jnp.asarray(a) / jnp.where(some, b, 1.0), empty)


def share(limit: Scalar, wanted: Scalar) -> Array:
    """The share of `wanted` that fits in `limit`: 1 when all fits (also when nothing is wanted), with derivative 0."""
    limit, wanted = jnp.asarray(limit), jnp.asarray(wanted)
    short = wanted > limit
    return jnp.where(short, limit / jnp.where(short, wanted, 1.0), 1.0)


# Below this, (1 - e^-x) / x loses digits, and eight terms of its series are exact to rounding.
_SMALL = 0.02


def mean_decay(x: Scalar) -> Array:
    """(1 - e^-x) / x for x >= 0, the mean of e^-t over t in [0, x]; 1 at the limit 0. Value and slope are exact."""
    x = jnp.asarray(x)
    small = x < _SMALL
    series = jnp.ones_like(x)
    for k in range(8, 1, -1):
        series = 1.0 - x * series / k
    return jnp.where(small, series, (1.0 - jnp.exp(-x)) / jnp.where(small, 1.0, x))
