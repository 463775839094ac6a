"""Chunked prefill: each step decodes the batch and prefills a piece of a prompt (D23; SARATHI, Sarathi-Serve)."""

from typing import Any

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import least, positive_part, ratio
from fluidq._types import PerClass, Scalar
from fluidq.formulas import aggregated
from fluidq.plant import Plant
from fluidq.topologies._colocated import Colocated, Load, sibling
from fluidq.topologies._frontier import Frontier, capped


class Chunked(Colocated):
    """Aggregated GPUs with mixed steps of at most `budget` tokens, running sequences included.

    Two laws of the mixed step, by `overlap`:

    - a number omega: a chunk of c tokens makes a step t_s + c/r_P - omega min(t_s, c/r_P), D23's overlap bound. Chunks
      are as even as the work allows, up to the budget; omega = 0 is temporal aggregation, 1 disjoint resources.
    - None: the roofline's step, D23's mixed step with the plant's r_P as arithmetic and its step law as traffic: the
      longer of (chunk + B)/r_P and t_s + t_step_c (tokens before the chunk in its prompt, which it reads). Steps carry
      a chunk of the whole budget or none.

    TTFT has a mixed step for each chunk of the own prompt, the last of which emits the first token (D24).

    Attributes:
        budget: tokens of a step [tok per GPU], more than `batch`.
        overlap: share of the shorter phase that runs behind the longer, or None.
    """

    budget: Scalar = 2048.0
    overlap: Scalar | None = None

    @classmethod
    def of(cls, plant: Plant, **own: Any) -> "Chunked":
        """The same hardware and engine as `plant`, with mixed steps; `own` sets further fields."""
        return sibling(cls, plant, own)

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        super().check()
        self._require("budget", 0.0, open_below=True)
        self._require("overlap", 0.0, most=1.0)
        pair: tuple[Any, Any] = (self.budget, self.batch)
        if not any(isinstance(x, Tracer) or jnp.ndim(x) > 0 for x in pair) and float(pair[0]) <= float(pair[1]):
            raise refuse(
                "budget", float(pair[0]), f"more than the batch of {float(pair[1]):g}: running sequences count"
            )

    def decode_step(self, law: Scalar, batch: Scalar) -> Array:
        """Step without a chunk [s]."""
        return jnp.asarray(law) if self.overlap is not None else self._mixed(law, batch, 0.0, 0.0)

    def chunk(self, load: Load) -> Array:
        """Prefill tokens that a step has room for [tok/GPU]."""
        return positive_part(self.budget - load.batch)

    def mixed_step(self, load: Load, chunk: PerClass) -> Array:
        """Step with a chunk [s] of so many tokens per GPU."""
        if self.overlap is None:
            earlier = load.stored - load.computed + 0.5 * positive_part(load.computed - chunk)
            return self._mixed(load.law, load.batch, chunk, earlier)
        apart = chunk / self.r_P
        both = load.t_step + apart
        return both / aggregated.chunk_gain(phi=apart / both, overlap=self.overlap)

    def frontier(self, load: Load) -> Frontier:
        """Up to the full chunk: along the overlap bound, or mixing steps with and without a chunk."""
        chunk = self.chunk(load)
        t_mix = self.mixed_step(load, chunk)
        top = chunk / (self.r_P * t_mix)
        if self.overlap is not None:
            return capped(1.0 - self.overlap, 1.0 - self.overlap, load.keep, top)
        slope = ratio(self.r_P * positive_part(t_mix - load.t_step), chunk)
        return capped(slope, 0.0, load.keep, top)

    def own_prefill(self, load: Load, front: Frontier, computed: Array) -> tuple[Array, Array]:
        """A mixed step for each chunk, which is no longer than the prompt; the first token comes with the last."""
        chunk = least(computed / self.prefill_worker, self.chunk(load))
        some = chunk > 0
        safe = jnp.where(some, chunk, 1.0)
        steps = aggregated.ttft_chunked(
            isl=computed, chunk=safe * self.prefill_worker, t_mix=self.mixed_step(load, safe)
        )
        return jnp.where(some, steps, jnp.where(computed > 0, jnp.inf, 0.0)), jnp.zeros(())

    def _mixed(self, traffic: Scalar, batch: Scalar, chunk: PerClass, prior: PerClass) -> Array:
        """D23's mixed step in this plant's own units: seconds of traffic, and tokens at r_P."""
        return aggregated.mixed_step(
            chunk=chunk, prior=prior, B=batch, theta_ctx=0.0, W=traffic, kappa_read=self.t_step_c,
            flop_token=1.0, peak=self.r_P, hbm_rate=1.0,
        )  # fmt: skip
