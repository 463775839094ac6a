"""Workers on their way: a fixed delay or an Erlang-k chain, both exact per tick and differentiable in the delay.

`begun` workers enter a pipeline on a tick; `push` returns those that become ready in it. Conservation: what entered is
what has left plus what is inside.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._types import Scalar
from fluidq.plant import settle


def ring(ticks: int) -> Array:
    """An empty fixed-delay pipeline for delays of up to `ticks` + 1 ticks."""
    return jnp.zeros((ticks + 2,))


def push_ring(starts: Array, begun: Array, index: Array, ticks: int, part: Scalar) -> tuple[Array, Array]:
    """Enter `begun` on tick `index`; what started `ticks` + `part` ticks ago arrives, split linearly over two ticks.

    The mean over the tick of a delay that ends inside it: exact for worker-seconds, and its derivative in `part`.
    """
    slots = ticks + 2
    begun, now, due = settle(begun, index % slots, (index - ticks) % slots)
    starts = jax.lax.dynamic_update_index_in_dim(starts, begun, now, 0)
    earlier = jax.lax.dynamic_index_in_dim(starts, due, 0, keepdims=False)
    before = jax.lax.dynamic_index_in_dim(starts, (due - 1) % slots, 0, keepdims=False)
    earlier, before = settle(earlier, before)
    return starts, (1.0 - part) * earlier + part * before


def erlang(stages: int) -> Array:
    """An empty chain of `stages` exponential stages."""
    return jnp.zeros((stages,))


def erlang_weights(stages: int, mean: Scalar, dt: float) -> Array:
    """Chance of passing exactly j = 0..stages - 1 stages in `dt`: Poisson of mean stages dt / mean; shape (stages,)."""
    x = stages * dt / jnp.asarray(mean, dtype=jnp.float64)
    j = jnp.arange(stages)
    log_factorial = jnp.asarray([math.lgamma(i + 1.0) for i in range(stages)])
    return jnp.exp(j * jnp.log(x) - x - log_factorial)


def push_erlang(chain: Array, begun: Array, weights: Array) -> tuple[Array, Array]:
    """One tick of the chain: `begun` enter stage 0 at the start of the tick; those that leave the last stage arrive.

    Exact for stages with constant rates: stage i moves on by j stages with the Poisson chance of j.
    """
    stages = chain.shape[0]
    chain = chain.at[0].add(begun)
    total = jnp.sum(chain, axis=0)
    moved = [sum((weights[i - j] * chain[j] for j in range(1, i + 1)), weights[i] * chain[0]) for i in range(stages)]
    chain = jnp.stack(moved)
    return chain, total - jnp.sum(chain, axis=0)
