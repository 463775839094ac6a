"""Arithmetic of Dynamo's planner: load signals and their gates, the throughput sizes, the GPU-budget clamp."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.formulas import requests
from fluidq.policies import gates
from fluidq.policies._demand import batch_of, step_at
from fluidq.policies.base import Reading


class Moves(NamedTuple):
    """How far a pool's load law wants to go up and down by one worker: 0 or 1, between when relaxed."""

    up: Array
    down: Array


class EngineLoad(NamedTuple):
    """Means over the engines (workers) of what the planner's engine metrics show.

    `queue`: queued prefill tokens, cached ones included; `computed`: the same without them [tok per prefill engine];
    `kv`: tokens of KV that run or wait, `most_kv`: those that fit, `running`: sequences [per decode engine];
    `isl`, `isl_computed`, `osl`: mean lengths [tok].
    """

    queue: Scalar
    computed: Scalar
    kv: Scalar
    running: Scalar
    most_kv: Scalar
    isl: Scalar
    isl_computed: Scalar
    osl: Scalar


def engine_load(reading: Reading, fleet: Fleet) -> EngineLoad:
    """The engine metrics of a reading without missing samples."""
    computed = ratio(reading.queue_tokens, reading.prefill_ready)
    return EngineLoad(
        queue=computed * ratio(reading.isl, reading.isl_computed, empty=1.0),
        computed=computed,
        kv=ratio(reading.kv_tokens + reading.buffered_tokens, reading.decode_ready),
        running=ratio(reading.running, reading.decode_ready),
        most_kv=fleet.kv_tokens() * fleet.per_worker[1],
        isl=reading.isl,
        isl_computed=reading.isl_computed,
        osl=reading.osl,
    )


def reaches(x: Scalar, threshold: Scalar, width: Scalar | None) -> Array:
    """1 where x >= threshold."""
    return 1.0 - gates.below(x, threshold, width)


def empty(x: Scalar, unit: Scalar, width: Scalar | None) -> Array:
    """1 where x <= 0; relaxed: exp(-x / (unit width)), 1 at 0 at every width."""
    if width is None:
        return jnp.where(jnp.asarray(x) <= 0, 1.0, 0.0)
    return jnp.exp(-positive_part(x) / (unit * width))


def band(x: Scalar, up: Scalar, down: Scalar, unit: Scalar, strict: bool, fleet: Fleet, width: Scalar | None) -> Moves:
    """Up if ANY engine is over `up` (reaches it where not `strict`), down if ALL are below `down`.

    A lower threshold of 0 means that all are empty; `unit` is the scale of x.
    """
    hot = fleet.hottest(x)
    over = gates.over(hot, up, width) if strict else reaches(hot, up, width)
    some = jnp.asarray(down) > 0
    under = jnp.where(some, gates.below(hot, jnp.where(some, down, 1.0), width), empty(hot, unit, width))
    return Moves(over, under)


def sla_prefill(
    load: EngineLoad, ready: Scalar, ttft: Scalar, share: Scalar, fleet: Fleet, width: Scalar | None
) -> Moves:
    """Up if ALL engines' estimated TTFT is over the limit; down if the queue on N - 1 engines keeps it with a margin.

    TTFT = (queued + one request's computed tokens) / rate; the consolidated queue may take `share` of the time that the
    limit leaves beyond a request's own prefill.
    """
    rate = fleet.per_worker[0] * fleet.plant.r_P
    own = load.isl_computed / rate
    up = gates.over((fleet.coolest(load.computed) + load.isl_computed) / rate, ttft, width)
    after = fleet.hottest(load.computed) * consolidation(ready) / rate  # its own prefill is on both sides
    return Moves(up, gates.above((ttft - own) * share - after, 0.0, _absolute(width, ttft)))


def sla_decode(
    load: EngineLoad, ready: Scalar, itl: Scalar, share: Scalar, fleet: Fleet, width: Scalar | None
) -> Moves:
    """Up if ALL engines' estimated ITL is over the limit; down if KV and ITL of N - 1 engines keep within theirs."""
    more = consolidation(ready)
    up = gates.over(_itl(load, fleet.coolest(1.0), fleet), itl, width)
    hot = fleet.hottest(1.0) * more
    fast = gates.below(_itl(load, hot, fleet), itl * share, width)
    fits = gates.below(load.kv * hot / load.most_kv, 1.0, width)
    return Moves(up, fast * fits)


def consolidation(ready: Scalar) -> Array:
    """N/(N - 1): the load of an engine once one of N has gone. One engine alone cannot go."""
    return ready / most(jnp.asarray(ready) - 1.0, 0.5)


def _itl(load: EngineLoad, factor: Scalar, fleet: Fleet) -> Array:
    """Step time [s] of an engine with `factor` times the mean load and one more request's context."""
    gpus, plant = fleet.per_worker[1], fleet.plant
    batch = most(load.running * factor, 1.0)
    kv = load.kv * factor + requests.mean_context_fixed(isl=load.isl, osl=load.osl)
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    return requests.step_time(**law, B=batch / gpus, theta_ctx=kv / batch)


def _absolute(width: Scalar | None, scale: Scalar) -> Array | None:
    return None if width is None else jnp.asarray(width * scale)


def throughput_sizes(
    demand: Scalar, isl: Scalar, isl_computed: Scalar, osl: Scalar, itl: Scalar, fleet: Fleet, width: Scalar | None
) -> Array:
    """Engines of each pool for `demand` [req/s]: ceil(demand / engine rate), shape (2,).

    Prefill: one engine does g_P r_P / isl_computed. Decode: B / (osl t(B)) with B the largest batch that fits the KV
    memory and the batch limit and whose step takes at most `itl` [s].
    """
    (g_P, g_D), plant = fleet.per_worker, fleet.plant
    batch = most(gates.whole_down(batch_of(plant, isl, osl, itl) * g_D, width), 1.0)
    t_step = step_at(plant, batch / g_D, isl, osl)
    prefill = demand * isl_computed / (g_P * plant.r_P)
    decode = demand * osl * t_step / (plant.accept * batch)
    return jnp.stack([gates.whole_up(prefill, width), gates.whole_up(decode, width)])


def within_gpus(
    proposed: Array, now: Array, low: Array, budget: Scalar, fleet: Fleet, reversal: bool, width: Scalar | None
) -> Array:
    """The planner's GPU-budget clamp: engines, shape (2,).

    Where p g_P + d g_D > budget: s = budget / total, p = max(min, min(floor((budget - min g_D)/g_P), floor(p s))),
    d = max(min, floor((budget - p g_P)/g_D)). That can take engines from a pool that asked for none less, and give some
    to one that asked for none more. Without `reversal` (newer versions) each pool stays between `now` and `proposed`.
    """
    g_P, g_D = fleet.per_worker
    total = proposed[0] * g_P + proposed[1] * g_D
    scaled = gates.whole_down(proposed[0] * budget / total, width)
    most_p = gates.whole_down((budget - low[1] * g_D) / g_P, width)
    p = most(least(scaled, most_p), low[0])
    d = most(gates.whole_down((budget - p * g_P) / g_D, width), low[1])
    if not reversal:
        first, last = least(now, proposed), most(now, proposed)
        room = gates.whole_down((budget - first[1] * g_D) / g_P, width)
        p = most(least(least(p, last[0]), room), first[0])
        d = most(least(gates.whole_down((budget - p * g_P) / g_D, width), last[1]), first[1])
    return jnp.where(total > budget + 1e-9, jnp.stack([p, d]), proposed)
