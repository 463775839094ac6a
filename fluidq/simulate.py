"""The closed loop at a fixed step: a policy on a plant under a workload.

A tick is one control interval: sample the signals, let the policy decide, start or stop workers, then move the flows.
What was started arrives `cold_start` seconds later; a cold start that is no whole number of ticks lands partly in one
tick and partly in the next (the mean over the tick), which is exact for the worker-seconds and gives a derivative in
the cold start. The physics may take several steps per tick (`Fleet.substeps`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from fluidq import pipeline
from fluidq._callable import make_callable
from fluidq._errors import refuse
from fluidq._numerics import least, most, positive_part, ratio
from fluidq._types import PerClass as Scalar
from fluidq._xla import compiled
from fluidq.fleet import Fleet as Fleet
from fluidq.objective import Cost, Objective
from fluidq.plant import Arrivals, Flows, Latency, PlantState, kv_tokens, settle, total
from fluidq.policies import gates
from fluidq.policies.base import ALWAYS_KNOWN, Asked, Policy, Reading
from fluidq.waiting import of_plant
from fluidq.workload import Workload


class Load(NamedTuple):
    """Arrivals per tick as amounts: requests, computed, stored and output tokens.

    Each of shape (ticks,), or (ticks, classes) for several classes of requests.
    """

    requests: Float[Array, "ticks ..."]
    computed: Float[Array, "ticks ..."]
    stored: Float[Array, "ticks ..."]
    output: Float[Array, "ticks ..."]


class Sampling(NamedTuple):
    """How metrics reach the controller: `delay` [s] late, and not at all on `missing` ticks, shape (ticks,).

    The delay is static and acts in whole ticks, the nearest.
    """

    delay: float = 0.0
    missing: Bool[Array, " ticks"] | Bool[np.ndarray, " ticks"] | None = None


def load_of(workload: Workload | Sequence[Workload], interval: float) -> Load:
    """The workload as amounts per control interval: rates are integrated, so no pulse is lost between ticks.

    A sequence of workloads is as many classes of requests, over the shortest of their durations.
    """
    if not isinstance(workload, Workload):
        loads = [load_of(w, interval) for w in workload]
        if not loads:
            raise refuse("workload", "no classes", "at least one workload")
        ticks = min(load.requests.shape[0] for load in loads)
        return Load(*(jnp.stack([part[:ticks] for part in parts], axis=-1) for parts in zip(*loads, strict=True)))
    fine = workload if workload.window == interval else workload.resampled(interval)
    n = np.asarray(fine.rate) * fine.window
    parts = (n, n * fine.isl_computed, n * fine.isl_stored, n * fine.osl)
    return Load(*(jnp.asarray(p, dtype=jnp.float64) for p in parts))


class Trajectory(eqx.Module):
    """What happened on each tick: arrays of shape (ticks,), at the end of the tick unless said otherwise.

    `prefill_gpus`, `decode_gpus` are ready; `requested_gpus` counts those that start too; `draining_gpus` still serve
    what they hold after they were told to stop. `buffer_bytes` against 0 and the `buffer_room`; `backlog` in computed
    tokens; `active` sequences in decode, `idle_slots` the rest of its batch; `ttft`, `tpot` [s] (`ttft` of shape
    (ticks, classes) for several classes), `wait` the queueing part of it; `arrived`, `done`, `lost` requests in the
    tick; `stalled` prefill work that the full buffer held back [computed tok].
    """

    time: Array
    prefill_gpus: Array
    decode_gpus: Array
    requested_gpus: Array
    draining_gpus: Array
    backlog: Array
    buffer_bytes: Array
    buffer_room: Array
    active: Array
    idle_slots: Array
    ttft: Array
    tpot: Array
    wait: Array
    arrived: Array
    done: Array
    lost: Array
    stalled: Array


class Run(eqx.Module):
    """A finished run: its cost, its request balance, and its trajectory where asked for.

    `arrived`, `done`, `lost`, `left` in requests over the run; `attained` the share of arrivals within both limits;
    `actions` workers started or stopped; `full`, `empty` the share of time with the buffer at either boundary.
    """

    cost: Cost
    arrived: Array
    done: Array
    lost: Array
    left: Array
    attained: Array
    actions: Array
    full: Array
    empty: Array
    trajectory: Trajectory | None


class _Sums(NamedTuple):
    gpu_seconds: Scalar
    late: Scalar
    lost: Scalar
    stalled: Scalar
    done: Scalar
    within: Scalar
    actions: Scalar
    full: Scalar
    empty: Scalar


class _Seen(NamedTuple):
    """What the last tick did, for the next reading."""

    ttft: Scalar
    tpot: Scalar
    prefilled: Scalar
    t_step: Scalar


class _Loop(NamedTuple):
    # Pools are pairs of scalars, not an axis of two: an axis that short costs XLA its vector code.
    state: PlantState
    workers: Asked  # commanded workers per pool, starting ones included
    pending: Asked  # workers that are starting or changing their role
    starts: Asked  # their pipelines
    switches: Asked | None  # the pipelines of those that change their role
    memory: Any  # the policy's own
    seen: _Seen
    late: Reading | None  # ring of past readings, where metrics come late
    sums: _Sums


def simulate(
    fleet: Fleet,
    workload: Workload | Load | Sequence[Workload],
    policy: Policy,
    objective: Objective | None = None,
    *,
    width: float | Array | None = None,
    record: bool = True,
    sampling: Sampling | None = None,
    checkpoint: bool = False,
) -> Run:
    """Run the closed loop over the whole workload.

    Arguments:
        fleet: plant, delay, budget.
        workload: windows of arrivals, several such for several classes, or a prepared `Load` (one entry per interval).
        policy: the autoscaler.
        objective: limits and prices; the default is `Objective()`.
        width: None for the hard law (integer workers, comparisons on ticks); a number > 0 for the relaxed one.
        record: keep the trajectory.
        sampling: delay and gaps of the metrics; None for fresh ones.
        checkpoint: for reverse-mode gradients: keep about sqrt(ticks) states and recompute the rest, so that
            memory grows as the square root of the horizon. Forward mode needs no memory and no checkpoints.

    Returns a `Run`. Raises InputError for a workload that is empty, negative or not finite, a width that is not
    positive, and a fleet whose `delay_ticks` is not that of its cold start.
    """
    load = workload if isinstance(workload, Load) else load_of(workload, fleet.interval)
    if load.requests.shape[0] == 0:
        raise refuse("workload", "no windows", "at least one window of arrivals")
    _check_load(load)
    if width is not None and not isinstance(width, Tracer):
        if not (isinstance(width, int | float | np.ndarray | np.number | jax.Array) and np.all(np.asarray(width) > 0)):
            raise refuse("width", width, "> 0, or None for the hard law")
    fleet = _with_checked_delay(fleet)
    delay, missing = _checked_sampling(sampling or Sampling(), load.requests.shape[0], fleet.interval)
    # As an array, so that another width is another input and not another compilation.
    width = None if width is None else jnp.asarray(width, dtype=jnp.float64)
    policy = policy.prepare(load, fleet)
    fleet, policy, objective = _as_arrays((fleet, policy, objective or Objective()))
    return _simulate(fleet, load, policy, objective, width, record, delay, missing, checkpoint)


def _as_arrays(tree: Any) -> Any:
    """Python numbers as arrays: another value is then another input, and not another compilation."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, tree)


def _check_load(load: Load) -> None:
    """Refuse amounts that are no amounts; a traced load is taken as it is."""
    for name, part in zip(Load._fields, load, strict=True):
        if isinstance(part, Tracer):
            continue
        if part.shape != load.requests.shape:
            raise refuse(f"load.{name}", part.shape, f"of the shape of load.requests, {load.requests.shape}")
        values = np.asarray(part)
        if not np.all(np.isfinite(values) & (values >= 0)):
            where = np.argwhere(~(np.isfinite(values) & (values >= 0)))[0]
            place = ", ".join(map(str, where))
            raise refuse(f"load.{name}[{place}]", float(values[tuple(where)]), "a finite amount >= 0")


def _checked_sampling(sampling: Sampling, ticks: int, interval: float) -> tuple[int, Array | None]:
    if not 0 <= sampling.delay < np.inf:
        raise refuse("sampling.delay", sampling.delay, "a time >= 0 s")
    if sampling.missing is None:
        return round(sampling.delay / interval), None
    missing = jnp.asarray(sampling.missing)
    if missing.shape != (ticks,):
        raise refuse("sampling.missing", missing.shape, f"one flag per tick, shape ({ticks},)")
    return round(sampling.delay / interval), missing


def _with_checked_delay(fleet: Fleet) -> Fleet:
    """A delay outside its static tick would be extrapolated silently: refuse it, also where it is traced."""
    if not fleet.stages:  # an Erlang chain has no ticks
        fleet = _with_checked_ticks(fleet, "cold_start", "delay_ticks")
    return fleet if fleet.switch_delay is None else _with_checked_ticks(fleet, "switch_delay", "switch_ticks")


def _with_checked_ticks(fleet: Fleet, delay: str, ticks: str) -> Fleet:
    part = getattr(fleet, delay) / fleet.interval - getattr(fleet, ticks)
    wanted = f"that of Fleet.make: the whole ticks in {delay}"
    slack = 1e-9  # compiled, a whole number of ticks comes out beside it by a rounding
    if isinstance(part, Tracer):
        outside = (part < -slack) | (part > 1 + slack)
        sure = eqx.error_if(getattr(fleet, delay), outside, f"fleet.{ticks} must be {wanted}")
        return eqx.tree_at(lambda f: getattr(f, delay), fleet, sure)
    if not -slack <= float(part) <= 1 + slack:
        raise refuse(f"fleet.{ticks}", getattr(fleet, ticks), wanted)
    return fleet


def _run(
    fleet: Fleet,
    load: Load,
    policy: Policy,
    objective: Objective,
    width: Scalar | None,
    record: bool,
    delay: int,
    missing: Array | None,
    checkpoint: bool,
) -> Run:
    ticks, classes = load.requests.shape[0], load.requests.shape[1:]
    loop = _start(fleet, policy, width, ticks, classes, delay)
    # A controller sees the arrivals of the tick before; before the first, the world was as on the first.
    before = Load(*(jnp.concatenate([part[:1], part[:-1]]) for part in load))

    def tick(loop: _Loop, inputs: Any) -> tuple[_Loop, Trajectory | None]:
        return _tick(fleet, policy, objective, width, record, delay, loop, *inputs)

    over = (jnp.arange(ticks), load, before, missing)
    loop, trajectory = _checkpointed(tick, loop, over, ticks) if checkpoint else jax.lax.scan(tick, loop, over)
    s = loop.sums
    hour = 3600.0
    unit = fleet.request_gpu_seconds / hour
    cost = Cost(
        gpu_hours=objective.gpu_hour_weight * s.gpu_seconds / hour,
        slo_loss=objective.late_weight * unit * s.late,
        lost_flow=objective.lost_weight * unit * s.lost,
        stalled_flow=objective.stalled_weight * s.stalled / hour,
        actions=objective.action_weight * jnp.asarray(s.actions),
    )
    state = loop.state
    arrived = jnp.sum(load.requests)
    return Run(
        cost=cost,
        arrived=arrived,
        done=jnp.asarray(s.done),
        lost=jnp.asarray(s.lost),
        left=total(state.backlog.requests + state.buffer.requests + state.active.requests),
        attained=ratio(s.within, arrived, empty=1.0),
        actions=jnp.asarray(s.actions),
        full=jnp.asarray(s.full) / ticks,
        empty=jnp.asarray(s.empty) / ticks,
        trajectory=trajectory,
    )


_simulate = compiled(_run)


def _checkpointed(tick: Callable[..., Any], loop: _Loop, over: Any, ticks: int) -> tuple[_Loop, Any]:
    """`lax.scan` in blocks of about sqrt(ticks), of which reverse mode keeps only the first states."""
    block = math.isqrt(ticks)
    whole = ticks // block * block
    blocks = jax.tree.map(lambda x: x[:whole].reshape(-1, block, *x.shape[1:]), over)
    rest = jax.tree.map(lambda x: x[whole:], over)
    loop, out = jax.lax.scan(jax.checkpoint(lambda c, xs: jax.lax.scan(tick, c, xs)), loop, blocks)
    out = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out)
    if whole < ticks:
        loop, more = jax.lax.scan(tick, loop, rest)
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, more)
    return loop, out


def _delay_ticks(ticks_late: int, ticks: int) -> int:
    """Longer than the horizon is the same as never: the ring need not remember more than the run has ticks."""
    return min(ticks_late, ticks + 1)


def _start(
    fleet: Fleet, policy: Policy, width: Scalar | None, ticks: int, classes: tuple[int, ...], delay: int
) -> _Loop:
    zero = jnp.zeros(())
    asked = policy.initial(fleet, width)
    ticks_late = _delay_ticks(fleet.delay_ticks, ticks)
    ring = pipeline.erlang(fleet.stages) if fleet.stages else pipeline.ring(ticks_late)
    switch = pipeline.ring(_delay_ticks(fleet.switch_ticks, ticks))
    late = Reading(*(jnp.zeros((delay + 1,)) for _ in Reading._fields)) if delay else None
    return _Loop(
        state=fleet.plant.empty(classes),
        workers=Asked(*(jnp.asarray(n, dtype=jnp.float64) for n in asked)),
        pending=Asked(zero, zero),
        starts=Asked(ring, ring),
        switches=None if fleet.switch_delay is None else Asked(switch, switch),
        memory=policy.start(fleet, asked),
        seen=_Seen(zero, zero, zero, zero),
        late=late,
        sums=_Sums(*([zero] * len(_Sums._fields))),
    )


def _tick(
    fleet: Fleet,
    policy: Policy,
    objective: Objective,
    width: Scalar | None,
    record: bool,
    delay: int,
    loop: _Loop,
    index: Array,
    arriving: Load,
    before: Load,
    missing: Array | None,
) -> tuple[_Loop, Trajectory | None]:
    plant, dt = fleet.plant, fleet.interval

    # Sample, decide.
    reading, late = _sample(fleet, loop, index, before, missing, delay)
    memory, wanted = policy.decide(loop.memory, reading, fleet, width)
    wanted = Asked(*(jnp.asarray(n) for n in wanted))
    wanted = wanted if policy.KEEPS_BUDGET else _within_budget(wanted, loop.workers, fleet, width)
    wanted, memory = settle(wanted, memory)

    # Start, stop, switch. Stops take ready workers at once; starts arrive after the cold start.
    change = Asked(*(a - b for a, b in zip(wanted, loop.workers, strict=True)))
    pending, starts, switches = _actuate(fleet, loop, change, index)
    ready = Asked(*(positive_part(w - p) * g for w, p, g in zip(wanted, pending, fleet.per_worker, strict=True)))
    ready, pending = settle(ready, pending)  # not the pipelines: they are updated in place

    # Move the flows.
    state, flows = _flow(fleet, loop.state, arriving, ready)
    felt = plant.latency(state, Arrivals(*arriving), ready[0], ready[1], flows)
    if objective.waiting != "none":
        felt = _with_waiting(fleet, objective.waiting, felt, before, ready)
    over_ttft, over_tpot = objective.late_share(felt.ttft, felt.tpot)
    g_P, g_D = fleet.per_worker
    paid = ready[0] + flows.serving + pending.prefill * g_P + pending.decode * g_D
    held = plant.kappa * total(state.buffer.stored)
    room = plant.room(ready[0], ready[1])
    s = loop.sums
    sums = _Sums(
        gpu_seconds=s.gpu_seconds + dt * paid,
        late=s.late + total(arriving.requests * over_ttft) + total(flows.done.requests) * over_tpot,
        lost=s.lost + total(flows.lost.requests),
        stalled=s.stalled + flows.stalled / plant.r_P,
        done=s.done + total(flows.done.requests),
        within=s.within + total(arriving.requests * (1.0 - over_ttft)) * (1.0 - over_tpot),
        actions=s.actions + jnp.abs(change.prefill) + jnp.abs(change.decode),
        full=s.full + jnp.where(held >= room * (1.0 - 1e-12), 1.0, 0.0),
        empty=s.empty + jnp.where(held <= 0, 1.0, 0.0),
    )
    n = total(arriving.requests)
    seen = _Seen(
        ttft=jnp.asarray(ratio(total(arriving.requests * felt.ttft), n)) if jnp.ndim(felt.ttft) else felt.ttft,
        tpot=jnp.asarray(felt.tpot),
        prefilled=jnp.asarray(flows.prefilled),
        t_step=jnp.asarray(flows.t_step),
    )
    state, sums, seen = settle(state, sums, seen)
    out = None
    if record:
        out = Trajectory(
            time=(index + 1.0) * dt,
            prefill_gpus=ready[0],
            decode_gpus=ready[1],
            requested_gpus=wanted.prefill * g_P + wanted.decode * g_D,
            draining_gpus=flows.serving - ready[1],
            backlog=total(state.computed),
            buffer_bytes=held,
            buffer_room=jnp.asarray(room, dtype=jnp.float64),
            active=total(state.active.requests),
            idle_slots=jnp.asarray(flows.idle),
            ttft=felt.ttft,
            tpot=jnp.asarray(felt.tpot),
            wait=jnp.asarray(felt.wait),
            arrived=n,
            done=total(flows.done.requests),
            lost=total(flows.lost.requests),
            stalled=jnp.asarray(flows.stalled),
        )
    return _Loop(state, wanted, pending, starts, switches, memory, seen, late, sums), out


def _with_waiting(fleet: Fleet, name: str, felt: Latency, come: Load, ready: Asked) -> Latency:
    """The TTFT plus the stochastic wait of a steady load at the last tick's rate (Poisson, exponential lengths).

    The load may exceed capacity within a tick: a wait can grow for one cold start, the time until a resize lands.
    """
    n = total(come.requests)
    prefill, decode = of_plant(
        name,
        fleet.plant,
        rate=n / fleet.interval,
        isl_computed=ratio(total(come.computed), n),
        isl_stored=ratio(total(come.stored), n),
        osl=ratio(total(come.output), n),
        prefill_gpus=ready.prefill,
        decode_gpus=ready.decode,
        horizon=most(fleet.cold_start, fleet.interval),
    )
    extra = prefill + decode
    return felt._replace(ttft=felt.ttft + extra, wait=felt.wait + extra)


def _sample(
    fleet: Fleet, loop: _Loop, index: Array, before: Load, missing: Array | None, delay: int
) -> tuple[Reading, Reading | None]:
    """The reading of this tick: fresh, or `delay` ticks old, or without metrics."""
    plant, dt, state, seen = fleet.plant, fleet.interval, loop.state, loop.seen
    n = total(before.requests)
    ready = Asked(*(a - b for a, b in zip(loop.workers, loop.pending, strict=True)))
    running = total(state.active.requests)
    stored = total(state.buffer.stored)
    reading = Reading(
        index=index,
        time=index * dt,
        rate=n / dt,
        isl=ratio(total(before.stored), n),
        isl_computed=ratio(total(before.computed), n),
        osl=ratio(total(before.output), n),
        queue=total(state.backlog.requests),
        queue_tokens=total(state.computed),
        buffered=total(state.buffer.requests),
        buffered_tokens=stored,
        buffer_bytes=plant.kappa * stored,
        running=running,
        kv_tokens=kv_tokens(state.active),
        ttft=seen.ttft,
        tpot=seen.tpot,
        prefill_rate=seen.prefilled / dt,
        decode_rate=ratio(running * plant.accept, seen.t_step),
        prefill_ready=ready.prefill,
        decode_ready=ready.decode,
        prefill_starting=loop.pending.prefill,
        decode_starting=loop.pending.decode,
        prefill_asked=loop.workers.prefill,
        decode_asked=loop.workers.decode,
    )
    late = None
    if delay and loop.late is not None:
        slots = delay + 1
        late = Reading(*(ring.at[index % slots].set(new) for ring, new in zip(loop.late, reading, strict=True)))
        # Before the first sample has come through, the oldest one there is.
        old = Reading(*(ring[jnp.where(index < delay, 0, (index - delay) % slots)] for ring in late))
        reading = reading._replace(**{name: getattr(old, name) for name in Reading._fields if name not in ALWAYS_KNOWN})
    if missing is not None:
        lost = {name: getattr(reading, name) for name in Reading._fields if name not in ALWAYS_KNOWN}
        reading = reading._replace(**{name: jnp.where(missing, jnp.nan, value) for name, value in lost.items()})
    return reading, late


def _actuate(fleet: Fleet, loop: _Loop, change: Asked, index: Array) -> tuple[Asked, Asked, Asked | None]:
    """Send what starts and what switches on its way: workers pending after this tick, and the two pipelines."""
    dt, switches = fleet.interval, loop.switches
    begun = Asked(*(positive_part(n) for n in change))
    pending = loop.pending
    if switches is not None and fleet.switch_delay is not None:
        moved = _switched(change, fleet)
        begun = Asked(*(a - b for a, b in zip(begun, moved, strict=True)))
        part = fleet.switch_delay / dt - fleet.switch_ticks
        pushed = [_push(pipe, n, index, part) for pipe, n in zip(switches, moved, strict=True)]
        switches = Asked(*(pipe for pipe, _ in pushed))
        pending = Asked(*(p + n - back for p, n, (_, back) in zip(pending, moved, pushed, strict=True)))
    if fleet.stages:
        weights = pipeline.erlang_weights(fleet.stages, fleet.cold_start, dt)
        pushed = [pipeline.push_erlang(pipe, n, weights) for pipe, n in zip(loop.starts, begun, strict=True)]
    else:
        part = fleet.cold_start / dt - fleet.delay_ticks
        pushed = [_push(pipe, n, index, part) for pipe, n in zip(loop.starts, begun, strict=True)]
    starts = Asked(*(pipe for pipe, _ in pushed))
    pending = Asked(*(positive_part(p + n - came) for p, n, (_, came) in zip(pending, begun, pushed, strict=True)))
    return pending, starts, switches


def _push(pipe: Array, begun: Scalar, index: Array, part: Scalar) -> tuple[Array, Array]:
    return pipeline.push_ring(pipe, jnp.asarray(begun), index, pipe.shape[0] - 2, part)


def _within_budget(wanted: Asked, workers: Asked, fleet: Fleet, width: Scalar | None) -> Asked:
    """What of `wanted` the cluster has GPUs for: what is there stays, growth gets the room, prefill's first.

    What does not fit is not asked for; a law that still wants it asks again on its next tick.
    """
    g_P, g_D = fleet.per_worker
    stays = [least(a, b) for a, b in zip(wanted, workers, strict=True)]
    grows = [positive_part(a - b) for a, b in zip(wanted, workers, strict=True)]
    room = positive_part(fleet.budget - stays[0] * g_P - stays[1] * g_D)
    prefill = least(grows[0], gates.whole_down(room / g_P, width))
    decode = least(grows[1], gates.whole_down(positive_part(room - prefill * g_P) / g_D, width))
    return Asked(stays[0] + prefill, stays[1] + decode)


def _switched(change: Asked, fleet: Fleet) -> Asked:
    """Workers that start in a pool by taking the GPUs that the other gives up on the same tick, in whole workers."""
    g_P, g_D = fleet.per_worker
    to_prefill = least(positive_part(change.prefill * g_P), positive_part(-change.decode * g_D))
    to_decode = least(positive_part(change.decode * g_D), positive_part(-change.prefill * g_P))
    return Asked(to_prefill / g_P, to_decode / g_D)


def _flow(fleet: Fleet, state: PlantState, arriving: Load, ready: Asked) -> tuple[PlantState, Flows]:
    """The physics of one tick, in `fleet.substeps` steps; flows are summed, levels are those of the last step."""
    steps = fleet.substeps
    dt = fleet.interval / steps
    arrivals = Arrivals(*(part / steps for part in arriving)) if steps > 1 else Arrivals(*arriving)
    state, flows = fleet.plant.advance(state, arrivals, ready[0], ready[1], dt)
    for _ in range(steps - 1):
        state, flows = settle(state, flows)
        state, more = fleet.plant.advance(state, arrivals, ready[0], ready[1], dt)
        add = lambda a, b: a + b  # noqa: E731
        flows = more._replace(
            done=jax.tree.map(add, flows.done, more.done),
            lost=jax.tree.map(add, flows.lost, more.lost),
            prefilled=flows.prefilled + more.prefilled,
            stalled=flows.stalled + more.stalled,
            serving=flows.serving + more.serving,
        )
    if steps > 1:
        flows = flows._replace(serving=flows.serving / steps)
    return state, flows


make_callable(__name__)
