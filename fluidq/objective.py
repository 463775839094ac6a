"""What a run costs, in one unit: GPU-hours.

cost = GPU-hours paid (ready, starting and draining) + late requests + lost requests + stalled prefill work + workers
started or stopped (churn, unpriced by default), each with its own weight. A late
request is priced as a multiple of the GPU time that serving one costs (t_P + t_D of D01), so the same weights mean the
same thing on any hardware and at any load.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._types import PerClass as Scalar

# Formulas of fluidq.waiting for the wait below capacity.
WAITS = ("none", "mmc", "mgc", "kimura")


class Objective(eqx.Module):
    """Limits and prices.

    Attributes:
        ttft, tpot: service limits [s].
        late_weight: price of a request over a limit, in units of the GPU time that serving a mean request costs; each
            limit counts, so a request over both is charged twice.
        lost_weight: price of a lost request, in the same unit.
        stalled_weight: price of a GPU-hour of prefill held back by the full buffer (it is also paid as a GPU-hour).
        gpu_hour_weight: price of a GPU-hour paid; the cost's unit is then the currency of this price.
        action_weight: price of one worker started or stopped [GPU-hours].
        ttft_spread, tpot_spread: scale of the logistic spread of ln TTFT and ln TPOT over requests around the fluid
            value [-]; the fluid gives a mean per tick, requests differ in length. The expected share of late requests
            is logistic((ln x - ln limit) / spread): it is 1/2 at the limit. Percentiles are outside a fluid model.
        waiting: the wait below capacity that a fluid lacks, by the name of a formula of `fluidq.waiting` ("mmc", "mgc",
            "kimura"); it is added to TTFT. "none" is the fluid alone (static).
    """

    ttft: Scalar = 2.0
    tpot: Scalar = 0.05
    late_weight: Scalar = 10.0
    lost_weight: Scalar = 20.0
    stalled_weight: Scalar = 1.0
    ttft_spread: Scalar = 0.3
    tpot_spread: Scalar = 0.1
    waiting: str = eqx.field(static=True, default="none")
    gpu_hour_weight: Scalar = 1.0
    action_weight: Scalar = 0.0

    def __check_init__(self) -> None:
        for name in ("ttft", "tpot", "ttft_spread", "tpot_spread"):
            _check(name, getattr(self, name), above=True)
        for name in ("late_weight", "lost_weight", "stalled_weight", "gpu_hour_weight", "action_weight"):
            _check(name, getattr(self, name), above=False)
        if self.waiting not in WAITS:
            raise unknown("waiting formula", self.waiting, WAITS)

    def late_share(self, ttft: Scalar, tpot: Scalar) -> tuple[Array, Array]:
        """Expected shares of requests over the TTFT limit and over the TPOT limit."""
        over_ttft = jax.nn.sigmoid((jnp.log(ttft) - jnp.log(self.ttft)) / self.ttft_spread)
        over_tpot = jax.nn.sigmoid((jnp.log(tpot) - jnp.log(self.tpot)) / self.tpot_spread)
        return over_ttft, over_tpot


class Cost(eqx.Module):
    """The parts of a run's cost, each in GPU-hours and priced by its weight; `cost` is their sum."""

    gpu_hours: Array
    slo_loss: Array
    lost_flow: Array
    stalled_flow: Array
    actions: Array

    @property
    def cost(self) -> Array:
        """Total [GPU-hours]."""
        return self.gpu_hours + self.slo_loss + self.lost_flow + self.stalled_flow + self.actions


def _check(name: str, value: object, above: bool) -> None:
    if isinstance(value, Tracer) or jnp.ndim(value) > 0:  # type: ignore[arg-type]
        return
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number < 0 or (above and number == 0):
        raise refuse(f"objective.{name}", number, "a finite number > 0" if above else "a finite number >= 0")
