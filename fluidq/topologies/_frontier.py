"""How fast one GPU can decode while it prefills: the trade that tells the colocated systems apart."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, most, ratio
from fluidq._types import Scalar

# A decode speed that counts as none [share]: whoever has no output leaves at it all the same.
NO_SPEED = 1e-9


class Frontier(NamedTuple):
    """Decode speed x against prefill speed f, each as a share of what the GPU does with nothing else to do.

    x(f) = max(floor, min(rest - slope f, (1 - f)/steep)) for 0 <= f <= top; steep = 0 for no such branch. Straight on
    either side of `kink`.
    One after the other it is 1 - f; overlapped by omega, min(1 - (1 - omega) f, (1 - f)/(1 - omega)), so that
    t_P + t_D - omega min(t_P, t_D) is used up (D23); in space, min(1, (1 - f)/saturation).
    """

    rest: Scalar
    slope: Scalar
    steep: Scalar
    floor: Scalar
    top: Scalar
    kink: Scalar

    def decode_speed(self, prefill: Scalar) -> Array:
        """x at a prefill speed."""
        across = ratio(1.0 - prefill, self.steep, empty=jnp.inf)
        return most(self.floor, least(self.rest - self.slope * prefill, across))

    def time(self, prefill: Scalar, decode: Scalar) -> Array:
        """Least time [s] in which a GPU does both: `prefill` and `decode` seconds of work at its full speeds."""
        along = ratio(decode + self.slope * prefill, self.rest, empty=jnp.inf)
        both = most(along, prefill + self.steep * decode)
        return most(ratio(prefill, self.top, empty=jnp.inf), least(both, ratio(decode, self.floor, empty=jnp.inf)))


def capped(slope: Scalar, steep: Scalar, keep: Scalar, top: Scalar = 1.0) -> Frontier:
    """The frontier min(1 - slope f, (1 - f)/steep), as far as decode keeps the speed `keep` and f is below `top`."""
    along = ratio(1.0 - keep, slope, empty=jnp.inf)
    highest = most(least(top, least(along, 1.0 - steep * keep)), 0.0)
    kink = ratio(1.0 - steep, 1.0 - steep * slope, empty=1.0)
    return Frontier(1.0, slope, steep, NO_SPEED, highest, least(kink, highest))
