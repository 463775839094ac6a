"""What every route to the rates answers: the time of a prefill pass and of a decode step."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from fluidq._numerics import ratio
from fluidq._types import Scalar

if TYPE_CHECKING:
    # As `Scalar`, of any shape: what is asked for at many points at once.
    Numbers = Any
else:
    Numbers = Real[ArrayLike, "..."]


class AbstractRates(eqx.Module):
    """Rates of a prefill worker and of a decode GPU. Arguments may be numbers, arrays (they broadcast) or tracers."""

    @abc.abstractmethod
    def worker_gpus(self) -> Scalar:
        """GPUs of a prefill worker, over which its passes are spread."""

    @abc.abstractmethod
    def empty_pass(self) -> Array:
        """Time [s] that a prefill pass takes before its first token."""

    @abc.abstractmethod
    def prefill_time(self, tokens: Numbers, isl: Numbers) -> Array:
        """Time [s] of one pass of a prefill worker over `tokens` [tok] that belong to prompts of `isl` [tok] each."""

    @abc.abstractmethod
    def step_time(self, batch: Numbers, context: Numbers) -> Array:
        """Time [s] of a decode step with `batch` sequences per GPU at mean `context` [tok]."""

    def prefill_rate(self, isl: Numbers, tokens: Numbers | None = None) -> Array:
        """Prefill rate r_P [tok/s/GPU] on prompts of `isl` [tok], `tokens` to a pass (default: one prompt).

            r_P = tokens / (worker_gpus * prefill_time(tokens, isl))

        An empty pass has the limit of short ones: 0 where a pass has a time of its own, else the rate of one token.
        """
        n = jnp.asarray(isl if tokens is None else tokens)
        some = n > 0
        n_some = jnp.where(some, n, 1.0)
        rate = n_some / (self.worker_gpus() * self.prefill_time(n_some, isl))
        return jnp.where(some | (self.empty_pass() <= 0), rate, 0.0)

    def prefill_work(self, isl: Numbers) -> Array:
        """Prefill work of one prompt alone in its pass [GPU s/req]; 0 where there is no prompt."""
        some = jnp.asarray(isl) > 0
        return jnp.where(some, self.worker_gpus() * self.prefill_time(isl, isl), 0.0)

    def decode_work(self, batch: Numbers, context: Numbers, osl: Numbers, accept: Numbers = 1.0) -> Array:
        """Decode work of one request [GPU s/req]: osl * step_time / (accept * batch), inf at batch 0 and osl > 0."""
        time = jnp.asarray(osl) * self.step_time(batch, context)
        return ratio(time, accept * jnp.asarray(batch), empty=jnp.where(jnp.asarray(osl) > 0, jnp.inf, 0.0))
