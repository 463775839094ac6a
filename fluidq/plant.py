"""The two-pool plant: what one step of physics does to the prefill backlog, the handoff buffer and the decode batch.

One step moves, downstream of what is there, *the smaller of what the sender has and the receiver can take* (the
reflected update), so nothing is stiff, nothing goes negative, and every request is in a store, done or lost.
Each store carries its own contents (requests, stored tokens, output tokens; the backlog also computed tokens): a
request keeps its lengths when the mix of the arrivals changes behind it. Source: two-pool state space, D01, D14, D29.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.formulas import requests, stages

# Requests in a batch that count as none [req].
NEGLIGIBLE = 1e-12


class Contents(NamedTuple):
    """What a store holds: requests, and the stored-input and output tokens of those requests."""

    requests: Scalar
    stored: Scalar
    output: Scalar


class PlantState(NamedTuple):
    """The three stores. `computed` is the prefill work of the backlog in tokens still to be computed."""

    backlog: Contents
    computed: Scalar
    buffer: Contents
    active: Contents


class Arrivals(NamedTuple):
    """What arrives during one step: requests and their computed, stored and output tokens (amounts, not rates)."""

    requests: Scalar
    computed: Scalar
    stored: Scalar
    output: Scalar


class Flows(NamedTuple):
    """What one step moved and how it felt.

    `done` and `lost` are contents; `prefilled` is in computed tokens; `stalled` is prefill work [computed tokens] that
    the pool could have done but the full buffer held back; `ttft` [s] is that of a request that arrives now, `tpot` [s]
    that of the running batch; `serving` is the decode GPUs in use, draining ones included.
    """

    done: Contents
    lost: Contents
    prefilled: Scalar
    stalled: Scalar
    ttft: Scalar
    tpot: Scalar
    serving: Scalar


class Plant(eqx.Module):
    """Rates and limits of the two pools. Every field is a number, so each has a gradient.

    Attributes:
        r_P: prefill rate [tok/s per GPU].
        batch: decode batch limit B [seq per GPU].
        t_step_a, t_step_b, t_step_c: step time a + b*B + c*B*context [s, s/seq, s/(seq tok)].
        kappa: bytes that cross the fabric per stored token [B/tok].
        capacity: handoff buffer of the fleet [B].
        nic_prefill, nic_decode: link rate per GPU [B/s]; fabric: limit of the whole fabric [B/s], inf for none.
        prefill_worker, decode_worker: GPUs per worker.
        accept: output tokens per decode step and sequence.
        back_pressure: 1 to hold prefill while the buffer is full, 0 to lose what does not fit (static).
    """

    r_P: Scalar
    batch: Scalar
    t_step_a: Scalar
    t_step_b: Scalar
    t_step_c: Scalar
    kappa: Scalar
    capacity: Scalar
    nic_prefill: Scalar
    nic_decode: Scalar
    fabric: Scalar
    prefill_worker: Scalar
    decode_worker: Scalar
    accept: Scalar = 1.0
    back_pressure: bool = eqx.field(static=True, default=True)


def empty() -> PlantState:
    """A plant with nothing in it."""
    zero = jnp.zeros(())
    nothing = Contents(zero, zero, zero)
    return PlantState(nothing, zero, nothing, nothing)


def _take(store: Contents, share: Scalar) -> Contents:
    return Contents(store.requests * share, store.stored * share, store.output * share)


def _add(*stores: Contents) -> Contents:
    return Contents(*(sum(part[1:], part[0]) for part in zip(*stores, strict=True)))


def _share(limit: Scalar, wanted: Scalar) -> Array:
    """The share of `wanted` that fits in `limit`: 1 when all fits (also when nothing is wanted)."""
    short = jnp.asarray(wanted) > limit
    return jnp.where(short, jnp.asarray(limit) / jnp.where(short, wanted, 1.0), 1.0)


def step_time(plant: Plant, sequences: Scalar, stored: Scalar, output: Scalar, gpus: Scalar) -> Array:
    """Decode step time [s] of `sequences` spread over `gpus`: D07's law at D05's context of their mean lengths."""
    context = requests.mean_context_fixed(isl=ratio(stored, sequences), osl=ratio(output, sequences))
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    return requests.step_time(**law, B=ratio(sequences, gpus), theta_ctx=context)


def _residence(store: Contents, t_step: Scalar, plant: Plant) -> Array:
    """Mean time in the batch [s] of what `store` holds: O t_s / accept (D29's time constant)."""
    return stages.decode_time_constant(osl=ratio(store.output, store.requests), t_step=t_step) / plant.accept


def _kept(residence: Scalar, dt: Scalar) -> tuple[Array, Array]:
    """Shares still running after `dt`: of what was there, and of what came in evenly during it (constant rates)."""
    some = jnp.asarray(residence) > 0
    x = jnp.asarray(dt) / jnp.where(some, residence, 1.0)
    old = jnp.where(some, jnp.exp(-x), 0.0)
    return old, jnp.where(some, -jnp.expm1(-x) / x, 0.0)


def advance(
    state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, plant: Plant, dt: Scalar
) -> tuple[PlantState, Flows]:
    """One step of `dt` seconds at constant rates.

    Order: what is active decodes; the buffer's old stock is admitted first (FIFO between stock and newcomers); then
    prefill works, its output going straight into free decode slots and the rest into the buffer as far as it has room.

    Arguments: stores and arrivals in requests and tokens; `prefill_gpus`, `decode_gpus` ready GPUs; `dt` [s].
    Returns the new state and the `Flows`. Requests: before + arrived = after + done + lost, to rounding.
    """
    old, buffer = state.active, state.buffer
    serving = most(decode_gpus, old.requests / plant.batch)  # a decode GPU leaves only when its share has drained
    t_step = step_time(plant, old.requests, old.stored, old.output, serving)

    # Decode: residents leave at rate accept / (O t_s); a slot is a place in the batch at the end of the step.
    keep_old, _ = _kept(_residence(old, t_step, plant), dt)
    # The exponential tail of an idle batch ends here, before ratios of denormal numbers lose their derivatives.
    keep_old = jnp.where(old.requests > NEGLIGIBLE, keep_old, 0.0)
    slots = positive_part(decode_gpus * plant.batch - keep_old * old.requests)
    link = decode_gpus * plant.nic_decode * dt

    # Admission from the stock.
    _, keep_stock = _kept(_residence(buffer, t_step, plant), dt)
    stock_bytes = plant.kappa * buffer.stored
    admit = least(_share(slots, buffer.requests * keep_stock), _share(link, stock_bytes))
    admitted = _take(buffer, admit)
    slots_left = positive_part(slots - admitted.requests * keep_stock)
    link_left = positive_part(link - admit * stock_bytes)

    # Prefill, straight through into free slots, then into the buffer's room.
    ready = _add(state.backlog, Contents(arrivals.requests, arrivals.stored, arrivals.output))
    work = state.computed + arrivals.computed
    _, keep_new = _kept(_residence(ready, t_step, plant), dt)
    ready_bytes = plant.kappa * ready.stored
    could = least(
        _share(prefill_gpus * plant.r_P * dt, work),
        _share(least(prefill_gpus * plant.nic_prefill, plant.fabric) * dt, ready_bytes),
    )
    through = least(_share(slots_left, ready.requests * keep_new), _share(link_left, ready_bytes))
    room = positive_part(plant.capacity - (1.0 - admit) * stock_bytes)
    fits = through + ratio(room, ready_bytes, empty=1.0)
    moved = least(could, fits)
    spilled = could - moved
    if plant.back_pressure:
        lost, left, stalled = 0.0, 1.0 - moved, spilled * work
    else:
        lost, left, stalled = spilled, 1.0 - could, 0.0
    direct = least(moved, through)

    kept = _add(
        _take(old, keep_old),
        _take(admitted, keep_stock),
        _take(ready, direct * keep_new),
    )
    done = _add(
        _take(old, 1.0 - keep_old),
        _take(admitted, 1.0 - keep_stock),
        _take(ready, direct * (1.0 - keep_new)),
    )
    new = PlantState(
        backlog=_take(ready, left),
        computed=work * left,
        buffer=_add(_take(buffer, 1.0 - admit), _take(ready, moved - direct)),
        active=kept,
    )
    flows = Flows(
        done=done,
        lost=_take(ready, lost),
        prefilled=work * (1.0 - left),
        stalled=jnp.asarray(stalled),
        ttft=time_to_first_token(new, arrivals, prefill_gpus, decode_gpus, plant, t_step),
        tpot=t_step / plant.accept,
        serving=serving,
    )
    return new, flows


def time_to_first_token(
    state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, plant: Plant, t_step: Scalar
) -> Array:
    """TTFT [s] of a request that arrives now, at the current rates (D24's terms, queueing as a fluid).

    wait for what is ahead + own prefill on one worker + own transfer over one worker's links + one decode step. The
    wait is the larger of two: the backlog through prefill (or its links) and then the stock through decode; or, where
    decode or its links hold everything back, the backlog and the stock together through decode. A pool without a
    ready GPU serves nobody: inf.
    """
    isl_computed = ratio(arrivals.computed, arrivals.requests)
    isl_stored = ratio(arrivals.stored, arrivals.requests)
    decode_rate, link_rate = decode_gpus * plant.batch, decode_gpus * plant.nic_decode
    send_rate = least(prefill_gpus * plant.nic_prefill, plant.fabric)

    def through_decode(store: Contents) -> Array:
        return most(
            ratio(store.requests * _residence(store, t_step, plant), decode_rate, empty=jnp.inf),
            ratio(plant.kappa * store.stored, link_rate, empty=jnp.inf),
        )

    through_prefill = most(
        ratio(state.computed, prefill_gpus * plant.r_P, empty=jnp.inf),
        ratio(plant.kappa * state.backlog.stored, send_rate, empty=jnp.inf),
    )
    wait = most(
        through_prefill + through_decode(state.buffer),
        through_decode(_add(state.backlog, state.buffer)),
    )
    pair = least(plant.prefill_worker * plant.nic_prefill, plant.decode_worker * plant.nic_decode)
    return wait + isl_computed / (plant.prefill_worker * plant.r_P) + plant.kappa * isl_stored / pair + t_step
