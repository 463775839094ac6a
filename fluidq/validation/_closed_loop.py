"""A closed loop of requests through both pools: the rate at a given concurrency.

A benchmark keeps a fixed number of requests in flight. Whatever waits in front of prefill is missing in the decode
batch, so that below saturation neither pool's rate is reached: the limit on concurrency belongs to the model.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fluidq._numerics import Scalar, ratio
from fluidq.formulas import aggregated

Tpot = Callable[[Array], Array]
_HALVINGS = 60
_LEAST_OSL = 1e-6  # tokens: an output shorter than this takes no place in a batch


class Loop(NamedTuple):
    """What a closed loop does besides serving.

    Attributes:
        share: mean share of the concurrency that is in flight; below 1 because a run fills up and runs empty.
        scv: squared variation of the prefill times as the queue feels it (D24): arrivals of a loop come in bursts.
        delay: time per request outside both pools: transfer, tokenisation, scheduling [s].
    """

    share: Scalar = 0.9
    scv: Scalar = 3.0
    delay: Scalar = 0.5


class Point(NamedTuple):
    """An operating point: requests per second, time per output token [s], batch per decode GPU, load of prefill."""

    request_rate: Array
    tpot: Array
    batch: Array
    prefill_load: Array


def closed_loop(
    concurrency: Scalar,
    isl: Scalar,
    osl: Scalar,
    r_P: Scalar,
    prefill_workers: Scalar,
    prefill_gpus: Scalar,
    decode_gpus: Scalar,
    tpot: Tpot,
    loop: Loop = Loop(),  # noqa: B008  (immutable)
) -> Point:
    """The operating point of `concurrency` requests that circulate through the two pools.

        share * C = X (osl * tpot(B) + delay) + prefill_workers * (u + u W(u)),   B n_D = X osl tpot(B)

    with u = X isl / (n_P r_P) the load of prefill and W the mean wait in units of a prompt's service (M/G/1, D24).
    The left side is what is in flight, the right side where it is: in decode, in between, in prefill and its queue.

    Args:
        concurrency: requests in flight, C > 0.
        isl, osl: computed input and output tokens per request; either may be 0.
        r_P: prefill rate [tok/s/GPU].
        prefill_workers, prefill_gpus, decode_gpus: workers and GPUs of the pools, all > 0.
        tpot: time per output token [s] as a function of the batch per decode GPU, growing less than linearly.
        loop: what the loop does besides.

    Returns:
        A `Point`. Scalars in, scalars out; `jax.vmap` for more. Its derivatives are those of the equations.
    """
    out = jnp.maximum(jnp.asarray(osl, float), _LEAST_OSL)
    held = jnp.asarray(loop.share, float) * concurrency

    def rest(decoding: Array) -> tuple[Array, Array]:
        """What is left over with `decoding` sequences in decode, and the rate that they imply."""
        rate = decoding / (out * tpot(decoding / decode_gpus))
        load = rate * isl / (prefill_gpus * r_P)
        full = load >= 1
        safe = jnp.where(full, 0.5, load)
        # Service 1: the wait in prompts. At load 1 the queue is endless, so less than that is in decode.
        queued = prefill_workers * safe * (1 + aggregated.queue_wait(load=safe, service=1.0, scv=loop.scv))
        left = held - decoding - rate * loop.delay - queued
        return jnp.where(full, -jnp.inf, left), rate

    def halve(_: Scalar, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        enough = rest(middle)[0] > 0
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(held), held))
    root = jax.lax.stop_gradient(low)
    # One Newton step from the root: it does not move it, and gives it the derivatives of the implicit function.
    left, slope = jax.jvp(lambda m: rest(m)[0], (root,), (jnp.ones_like(root),))
    step = ratio(left, -jax.lax.stop_gradient(slope))
    decoding = root + jnp.where(jnp.isfinite(step), step, 0.0)
    rate = rest(decoding)[1]
    batch = decoding / decode_gpus
    return Point(rate, tpot(batch), batch, rate * isl / (prefill_gpus * r_P))
