"""What a request costs each pool, and so how many GPUs a flow of requests needs: the model that sizing laws share."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import Scalar, least, most, ratio
from fluidq.formulas import balance, requests, stages
from fluidq.plant import Plant


def batch_of(plant: Plant, isl: Scalar, osl: Scalar, itl: Scalar | None = None) -> Array:
    """Sequences that a decode GPU can hold [seq/GPU]: the batch limit, its KV memory, and a step time within `itl` [s].

    At least one, also where a single sequence misses the limit.
    """
    batch = jnp.asarray(plant.batch, dtype=jnp.float64)
    if plant.kv_capacity is not None:
        batch = least(batch, ratio(plant.kv_capacity, jnp.asarray(isl) + 0.5 * jnp.asarray(osl), empty=jnp.inf))
    if itl is not None:
        law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
        context = requests.mean_context_fixed(isl=isl, osl=osl)
        batch = least(batch, requests.slo_batch(itl_max=itl, **law, theta_ctx=context))
    return most(batch, 1.0)


def step_at(plant: Plant, batch: Scalar, isl: Scalar, osl: Scalar) -> Array:
    """Decode step time [s] of `batch` sequences per GPU of these mean lengths (D07 at D05's context)."""
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    return requests.step_time(**law, B=batch, theta_ctx=requests.mean_context_fixed(isl=isl, osl=osl))


def unit_times(
    plant: Plant, isl_computed: Scalar, isl_stored: Scalar, osl: Scalar, itl: Scalar | None = None
) -> tuple[Array, Array]:
    """GPU-seconds of prefill and of decode that one request takes at full batches (t_P and t_D of D01)."""
    batch = batch_of(plant, isl_stored, osl, itl)
    t_step = step_at(plant, batch, isl_stored, osl)
    t_P = jnp.asarray(isl_computed) / plant.r_P
    t_D = stages.decode_time_constant(osl=osl, t_step=t_step) / (plant.accept * batch)
    return t_P, t_D


def balance_of(plant: Plant, isl_computed: Scalar, isl_stored: Scalar, osl: Scalar, itl: Scalar | None = None) -> Array:
    """D01's phi of these lengths: the prefill share of the GPUs at which neither pool waits."""
    batch = batch_of(plant, isl_stored, osl, itl)
    t_step = step_at(plant, batch, isl_stored, osl) / plant.accept
    return balance.balance_ratio(B=batch, isl=isl_computed, osl=osl, r_P=plant.r_P, t_step=t_step)


def mean_lengths(load: Any) -> tuple[Array, Array, Array]:
    """Mean computed, stored and output lengths of a `Load` over its requests, all classes together [tok]."""
    n = jnp.sum(load.requests)
    computed, stored, output = (ratio(jnp.sum(part), n) for part in (load.computed, load.stored, load.output))
    return computed, stored, output
