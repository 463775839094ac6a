"""Temporal aggregation: each GPU prefills, then decodes, then prefills (D21)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fluidq.formulas import aggregated
from fluidq.plant import Plant
from fluidq.topologies._colocated import Colocated, Load, sibling
from fluidq.topologies._frontier import Frontier, capped


class Temporal(Colocated):
    """Aggregated GPUs, one phase at a time: x = 1 - f.

    Prompts go first while the batch has places (vLLM without chunked prefill); decode steps stop meanwhile, so
    TPOT = t_s/(1 - u phi) at load u. A prompt waits half a step for the one that its GPU has begun (D24).
    Fields: those of `fluidq.plant.Plant`, of which the handoff's are not used, and `itl`. Source: D21, D24.
    """

    @classmethod
    def of(cls, plant: Plant, **own: Any) -> "Temporal":
        """The same hardware and engine as `plant`, aggregated; `own` sets further fields."""
        return sibling(cls, plant, own)

    def frontier(self, load: Load) -> Frontier:
        """What prefill takes, decode has not."""
        return capped(slope=1.0, steep=0.0, keep=load.keep)

    def pause(self, load: Load) -> Array:
        """The rest of the running step, without other prompts."""
        return aggregated.temporal_wait(load=0.0, phi=0.0, service=1.0, scv=0.0, t_step=jnp.asarray(load.t_step))
