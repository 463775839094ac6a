"""A GPU split in space: some multiprocessors prefill, the others decode (D23; Bullet, DuetServe, green contexts)."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import InputError, refuse
from fluidq._numerics import least, most, ratio
from fluidq._types import Scalar
from fluidq.formulas import aggregated
from fluidq.plant import Plant
from fluidq.topologies._colocated import Colocated, Load, sibling
from fluidq.topologies._frontier import NO_SPEED, Frontier, capped


class Partitioned(Colocated):
    """Prefill on a share s of the multiprocessors, decode on the rest: f = s, x = min(1, (1 - s)/saturation).

    Prefill is arithmetic, linear in its multiprocessors; decode is traffic, which few of them saturate. Three ways:

    - `share` None: s moves with the work (Bullet), as far as decode steps keep `itl`: decode has at least
      saturation t_s/itl (D23, DuetServe's constraint).
    - `share` a number: fixed partitions (green contexts); each idles when its phase has no work, and `itl` is not used.
      `green_context` gives the shares that the hardware can make.
    - `hybrid`: one phase after the other while that keeps `itl`, split only where it would not (DuetServe).

    No contention between the partitions: where it was measured, give a plant whose r_P and step law are slower by it.

    Attributes:
        saturation: share of the multiprocessors that saturates the HBM.
        share: prefill's share where it is fixed.
        hybrid: True for a split only when it is needed (static).
    """

    saturation: Scalar = eqx.field(kw_only=True)
    share: Scalar | None = None
    hybrid: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.hybrid and self.share is not None:
            raise InputError("hybrid and share exclude each other: a fixed share is always split.")

    @classmethod
    def of(cls, plant: Plant, **own: Any) -> "Partitioned":
        """The same hardware and engine as `plant`, split; `own` holds `saturation` and sets further fields."""
        return sibling(cls, plant, own)

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        super().check()
        self._require("saturation", 0.0, most=1.0, open_below=True)
        self._require("share", 0.0, most=1.0)

    def decode_share(self, load: Load) -> Array:
        """Smallest share of the multiprocessors whose decode steps keep `itl`; at most `saturation`."""
        if self.share is not None:
            return 1.0 - jnp.asarray(self.share)
        needed = aggregated.decode_sm_share(saturation=self.saturation, t_step=load.t_step, itl_max=self.itl)
        return jnp.where(load.keep > 0, least(needed, self.saturation), 0.0)

    def frontier(self, load: Load) -> Frontier:
        """The split that the work asks for, or the fixed one, or time-sharing down to `itl` and the split beyond."""
        top = 1.0 - self.decode_share(load)
        if self.share is not None:
            return Frontier(least(1.0, ratio(1.0 - top, self.saturation)), 0.0, 0.0, NO_SPEED, top, top)
        if self.hybrid:
            return Frontier(1.0, 1.0, 0.0, most(load.keep, NO_SPEED), top, least(1.0 - load.keep, top))
        return capped(0.0, self.saturation, load.keep, top)

    def own_prefill(self, load: Load, front: Frontier, computed: Array) -> tuple[Array, Array]:
        """Own prefill on prefill's multiprocessors."""
        rate = self.prefill_worker * self.r_P * front.top
        return ratio(computed, rate, empty=jnp.inf), jnp.asarray(load.t_step)


def green_context(share: float, sm_count: int = 132, grain: int = 8) -> float:
    """The share of the multiprocessors that a partition for `share` of them really gets.

    Partitions are whole multiples of the grain (8 on Hopper), asked for rounded up; the other side keeps the rest,
    at least one grain. Throughput then is at most grain/sm_count below the best split
    (`fluidq.formulas.rounding.sm_rounding_bound_joined`, D10).

    Raises:
        InputError: a share outside 0 to 1, a grain that does not fit twice.

    >>> round(green_context(0.4) * 132)
    56
    """
    if not 0 <= share <= 1:
        raise refuse("share", share, "a share from 0 to 1")
    if not 0 < 2 * grain <= sm_count:
        raise refuse("grain", grain, f"at least 1 and at most half of the {sm_count} multiprocessors")
    wanted = math.ceil(share * sm_count / grain - 1e-9) * grain
    return min(wanted, (sm_count - grain) // grain * grain) / sm_count
