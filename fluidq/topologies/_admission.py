"""How much of the queue a shared batch takes in one step: the root of one falling function."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, mean_decay, positive_part, ratio
from fluidq._types import PerClass, Scalar
from fluidq.plant import settle, total
from fluidq.topologies._frontier import Frontier

# Newton steps after the secant, before the last: to rounding for steps up to three stays in the batch.
_NEWTON = 3
# What fits when nothing wants to enter, and what counts as nothing.
_ALL, _NOTHING = 1e100, 1e-30


class Admission(NamedTuple):
    """A limit on the batch at the end of a step, and what fills it.

    `limit`, `held` and `entering` in one unit (sequences, or KV tokens), the last two per class: what is there and what
    would come if all did; `age_held`, `age_entering`: the step over their mean times in the batch at full decode speed;
    `part`: share of the GPUs that prefill; `busy`: prefill speed if all came.
    """

    limit: Scalar
    held: PerClass
    entering: PerClass
    age_held: PerClass
    age_entering: PerClass
    front: Frontier
    part: Scalar
    busy: Scalar

    def kept(self, moved: Scalar) -> tuple[Array, Array, Array]:
        """With the share `moved` of the queue: the decode speed, and what is left of residents and of newcomers."""
        x = 1.0 - self.part * (1.0 - self.front.decode_speed(moved * self.busy))
        return x, jnp.exp(-self.age_held * x), mean_decay(self.age_entering * x)

    def fits(self, moved: Scalar) -> Array:
        """The share of the queue that would find a place if `moved` of it is prefilled; it falls with `moved`.

        Negative where residents alone are over the limit.
        """
        _, stays, enters = self.kept(moved)
        room = self.limit - total(self.held * stays)
        wants = total(self.entering * enters)
        some = wants > _NOTHING
        return jnp.where(some, room / jnp.where(some, wants, 1.0), _ALL)


def largest(batch: Admission, top: Scalar) -> Array:
    """The largest m in [0, top] with m <= fits(m); 0 where there is none.

    The gap m - fits(m) rises and is nearly straight on either side of the frontier's kink: pick the side, take a
    secant, then Newton steps inside the bracket, all on constants. One last step carries the derivatives, which so are
    those of the implicit equation.
    """
    top = jnp.asarray(top)
    fixed, high = jax.lax.stop_gradient((batch, top))
    low, kink = jnp.zeros_like(high), least(ratio(fixed.front.kink, fixed.busy, empty=jnp.inf), high)
    at_low, at_kink, over = -fixed.fits(low), kink - fixed.fits(kink), high - fixed.fits(high)
    none = at_low >= 0
    before = at_kink > 0
    low, high = jnp.where(before, low, kink), jnp.where(before, kink, high)
    at_low, at_high = jnp.where(before, at_low, at_kink), jnp.where(before, at_kink, over)
    m, slope = low + (high - low) * ratio(-at_low, at_high - at_low), jnp.ones_like(high)
    for _ in range(_NEWTON):
        m, low, high = settle(m, low, high)
        room, rise = jax.jvp(fixed.fits, (m,), (jnp.ones_like(m),))
        gap, slope = m - room, 1.0 - rise
        low, high = jnp.where(gap > 0, low, m), jnp.where(gap > 0, m, high)
        step = m - gap / slope
        m = jnp.where((step >= low) & (step <= high), step, 0.5 * (low + high))
    m, slope = settle(m, slope)
    root = m - (m - batch.fits(m)) / slope
    return jnp.where(over > 0, jnp.where(none, 0.0, positive_part(least(root, top))), top)
