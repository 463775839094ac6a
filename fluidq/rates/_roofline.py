"""Rates from first figures: arithmetic, HBM traffic and exchange between GPUs, each with a named efficiency."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, ratio
from fluidq._types import Scalar
from fluidq.formulas import aggregated, ranks
from fluidq.rates._interface import AbstractRates, Numbers

# A combine moves two bytes per number where a dispatch moves FP8 with a scale per 128 (D26).
_BOTH_WAYS = 1 + 64 / 33
# Where a token meets every expert the logarithm of the share that it misses would be infinite.
_NEARLY_ALL = 1.0 - 1e-9


class Efficiency(eqx.Module):
    """What share of each peak is reached, and the time that no peak explains.

    Attributes:
        compute: share of peak arithmetic, in (0, 1].
        hbm: share of peak HBM bandwidth, in (0, 1].
        link: share of the rated link bandwidth, in (0, 1].
        pass_overhead, step_overhead: time of an empty prefill pass and of an empty decode step beyond the roofline [s].
        sources: (field, where its figure is from) for every field.
    """

    compute: Scalar
    hbm: Scalar
    link: Scalar
    pass_overhead: Scalar
    step_overhead: Scalar
    sources: tuple[tuple[str, str], ...] = eqx.field(static=True, default=())


def _sources(grid: str) -> tuple[tuple[str, str], ...]:
    fields = ("compute", "hbm", "pass_overhead", "step_overhead")
    link = "vidur, measured send/recv between two H100 nodes, 36 of 50 GB/s (microsoft/vidur, commit 7d475133)"
    return (*((field, grid) for field in fields), ("link", link))


_GRID = "relative least squares of this roofline over AIConfigurator 0.12.0's modelled grid (commit 095f58a5)"

#: Every peak reached and no overhead: the article's own assumption, and an upper bound.
PEAK = Efficiency(1.0, 1.0, 1.0, 0.0, 0.0, (("*", "peak figures, as in the article's worked example"),))
#: Dense models: medians over Qwen3-32B and Llama-3.1-70B on H100, H200 and B200.
DENSE = Efficiency(0.54, 0.74, 0.72, 7e-3, 3e-3, _sources(f"{_GRID}, dense models"))
#: Models with experts: medians over DeepSeek-V3/V3.1, Qwen3-235B and GLM-5 on H200 and B200.
EXPERTS = Efficiency(0.25, 0.6, 0.72, 30e-3, 9e-3, _sources(f"{_GRID}, models with experts"))


class Side(eqx.Module):
    """One pool's worker: its size, what its GPUs read, and how they exchange. Everything per GPU.

    Attributes:
        gpus: GPUs of one worker.
        weights: weights that every pass reads [B/GPU], routed experts left out.
        expert_weights: routed experts [B/GPU]; a pass reads those that some token meets.
        attention: arithmetic per token and token attended, full attention [FLOP/tok^2].
        window_attention: the same for layers that attend at most `window` tokens [FLOP/tok^2].
        exchange_rate: rate of the exchange between experts [B/s/GPU]; inf where experts do not leave the GPU.
        reduce_bytes: bytes of tensor-parallel reductions per token of this GPU's share [B/tok].
        reduce_rate: rate of those reductions [B/s/GPU].
    """

    gpus: Scalar
    weights: Scalar
    expert_weights: Scalar = 0.0
    attention: Scalar = 0.0
    window_attention: Scalar = 0.0
    exchange_rate: Scalar = float("inf")
    reduce_bytes: Scalar = 0.0
    reduce_rate: Scalar = float("inf")


class Roofline(AbstractRates):
    """t = max(arithmetic, HBM traffic) + exchange + overhead, for a prefill pass and for a decode step.

    Arithmetic and traffic are those of D23's step. A prefill token attends half its prompt on average: the quadratic
    term. A decode step reads the weights (of the routed experts those that its tokens meet) and the cache. Experts
    exchange one dispatch and one combine per expert layer (D26).

    Attributes:
        peak, hbm_rate: peaks of a GPU [FLOP/s], [B/s].
        flop_token: arithmetic per token without attention, twice the active parameters [FLOP/tok].
        kappa_read: KV bytes that a decode step reads per token of context [B/tok]; kv_fixed: per sequence [B/seq].
        prefill, decode: the workers.
        window: tokens that windowed or sparse attention attends at most [tok].
        experts, top_k: routed experts of a layer, and how many a token meets; 0 for a dense model.
        expert_layers, hidden: layers with experts, and the width of what they exchange.
        efficiency: the named factors.
    """

    peak: Scalar
    hbm_rate: Scalar
    flop_token: Scalar
    kappa_read: Scalar
    prefill: Side
    decode: Side
    kv_fixed: Scalar = 0.0
    window: Scalar = 0.0
    experts: Scalar = 0.0
    top_k: Scalar = 0.0
    expert_layers: Scalar = 0.0
    hidden: Scalar = 0.0
    efficiency: Efficiency = PEAK

    def worker_gpus(self) -> Scalar:
        """GPUs of a prefill worker, over which its passes are spread."""
        return self.prefill.gpus

    def empty_pass(self) -> Array:
        """Time [s] that a prefill pass takes before its first token."""
        return self.prefill_time(0.0, 0.0)

    def prefill_time(self, tokens: Numbers, isl: Numbers) -> Array:
        """Time [s] of one pass of a prefill worker over `tokens` [tok] that belong to prompts of `isl` [tok] each."""
        share = jnp.asarray(tokens) / self.prefill.gpus
        half = 0.5 * jnp.asarray(isl)
        # Of positions 0 ... isl, the first `window` attend all that is before them and the others the window.
        inside = least(isl, self.window)
        windowed = ratio(inside * (jnp.asarray(isl) - 0.5 * inside), isl)
        attention = self.prefill.attention * half + self.prefill.window_attention * windowed
        busy = self._busy(self.prefill, share, attention, chunk=share, batch=jnp.zeros_like(share), context=half)
        return busy + self._exchange(self.prefill, share) + self.efficiency.pass_overhead

    def step_time(self, batch: Numbers, context: Numbers) -> Array:
        """Time [s] of a decode step with `batch` sequences per GPU at mean `context` [tok]."""
        rows = jnp.asarray(batch)
        attention = self.decode.attention * jnp.asarray(context)
        attention = attention + self.decode.window_attention * least(context, self.window)
        busy = self._busy(self.decode, rows, attention, chunk=jnp.zeros_like(rows), batch=rows, context=context)
        return busy + self._exchange(self.decode, rows) + self.efficiency.step_overhead

    def _busy(
        self, side: Side, tokens: Numbers, attention: Numbers, *, chunk: Numbers, batch: Numbers, context: Numbers
    ) -> Array:
        """The longer of arithmetic and traffic [s] with `tokens` per GPU."""
        # A routed expert is read if one of the worker's tokens meets it.
        missed = jnp.log1p(-least(ratio(self.top_k, self.experts), _NEARLY_ALL))
        met = -jnp.expm1(jnp.asarray(tokens) * side.gpus * missed)
        read = side.weights + side.expert_weights * met + self.kv_fixed * jnp.asarray(batch)
        return aggregated.mixed_step(
            chunk=chunk,
            prior=0.0,
            B=batch,
            theta_ctx=context,
            W=read,
            kappa_read=self.kappa_read,
            flop_token=self.flop_token + attention,
            peak=self.peak * self.efficiency.compute,
            hbm_rate=self.hbm_rate * self.efficiency.hbm,
        )

    def _exchange(self, side: Side, tokens: Numbers) -> Array:
        """Dispatch and combine of the experts, and tensor-parallel reductions [s]."""
        rate = side.exchange_rate * self.efficiency.link
        one_way = ranks.dispatch_time(tokens=tokens, top_k=self.top_k, hidden=self.hidden, exchange_rate=rate)
        reduced = jnp.asarray(tokens) * side.reduce_bytes / (side.reduce_rate * self.efficiency.link)
        return jnp.asarray(_BOTH_WAYS * self.expert_layers * one_way + reduced)
