"""The closed loop at a fixed step: a policy on a plant under a workload.

A tick is one control interval: read the signals, decide, start or stop workers, then move the flows. What was started
arrives `cold_start` seconds later; a cold start that is no whole number of ticks lands partly in one tick and partly in
the next (the mean over the tick), which is exact for the worker-seconds and gives a derivative in the cold start.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fluidq._callable import make_callable
from fluidq._errors import refuse
from fluidq._numerics import positive_part, ratio
from fluidq._types import Scalar
from fluidq.objective import Cost, Objective
from fluidq.plant import Arrivals, Plant, PlantState, advance, empty
from fluidq.policies import Bounds, Signals, Thresholds
from fluidq.workload import Workload


class Fleet(eqx.Module):
    """A plant with its pools' limits and their delay.

    Attributes:
        plant: the physics.
        cold_start: seconds from a decision to a ready worker (tau).
        interval: control interval [s] (static).
        budget: most GPUs, ready and starting. Decode GPUs that were told to stop serve what they hold and are paid
            for until it has drained; they may come on top.
        initial_gpus: fleet size at time 0, split by the policy's ratio.
        min_workers: least workers per pool.
        request_gpu_seconds: GPU time that serving a mean request takes, the unit of the objective's weights.
        delay_ticks: whole ticks in `cold_start` (static; set by `Fleet.make`, and refused where it does not fit).
    """

    plant: Plant
    cold_start: Scalar
    budget: Scalar
    initial_gpus: Scalar
    request_gpu_seconds: Scalar
    min_workers: Scalar = 1.0
    interval: float = eqx.field(static=True, default=15.0)
    delay_ticks: int = eqx.field(static=True, default=0)

    @staticmethod
    def make(
        plant: Plant,
        *,
        cold_start: float,
        budget: float,
        initial_gpus: float,
        request_gpu_seconds: float,
        interval: float = 15.0,
        min_workers: int = 1,
    ) -> "Fleet":
        """A checked fleet. Raises InputError naming the field that cannot be."""
        if not (math.isfinite(cold_start) and cold_start >= 0):
            raise refuse("cold_start", cold_start, "a time >= 0 s")
        if not (math.isfinite(interval) and interval > 0):
            raise refuse("interval", interval, "a control interval > 0 s")
        floor = float(min_workers * (plant.prefill_worker + plant.decode_worker))
        if min_workers < 1:
            raise refuse("min_workers", min_workers, "at least 1 worker per pool")
        if not budget >= floor:
            raise refuse("budget", budget, f"at least {floor:g} GPUs, one worker of each pool")
        if not floor <= initial_gpus <= budget:
            raise refuse("initial_gpus", initial_gpus, f"between {floor:g} and the budget of {budget:g} GPUs")
        if not float(plant.capacity) >= 0:
            raise refuse("capacity", float(plant.capacity), "a buffer >= 0 B")
        for name in ("r_P", "batch", "t_step_a", "kappa", "nic_prefill", "nic_decode", "fabric", "accept"):
            if not float(getattr(plant, name)) > 0:
                raise refuse(name, float(getattr(plant, name)), "> 0")
        return Fleet(
            plant=plant,
            cold_start=cold_start,
            budget=budget,
            initial_gpus=initial_gpus,
            request_gpu_seconds=request_gpu_seconds,
            min_workers=min_workers,
            interval=interval,
            delay_ticks=math.floor(cold_start / interval),
        )


class Load(NamedTuple):
    """Arrivals per tick as amounts: requests, computed, stored and output tokens, each of shape (ticks,)."""

    requests: Float[Array, " ticks"]
    computed: Float[Array, " ticks"]
    stored: Float[Array, " ticks"]
    output: Float[Array, " ticks"]


def load_of(workload: Workload, interval: float) -> Load:
    """The workload as amounts per control interval: rates are integrated, so no pulse is lost between ticks."""
    fine = workload if workload.window == interval else workload.resampled(interval)
    n = np.asarray(fine.rate) * fine.window
    parts = (n, n * fine.isl_computed, n * fine.isl_stored, n * fine.osl)
    return Load(*(jnp.asarray(p, dtype=jnp.float64) for p in parts))


class Trajectory(eqx.Module):
    """What happened on each tick: arrays of shape (ticks,), at the end of the tick unless said otherwise.

    `prefill_gpus`, `decode_gpus` are ready; `requested_gpus` counts those that start too; `draining_gpus` still serve
    what they hold after they were told to stop. `buffer_bytes` against 0 and the
    capacity; `backlog` in computed tokens; `ttft`, `tpot` [s]; `arrived`, `done`, `lost` requests in the tick.
    """

    time: Array
    prefill_gpus: Array
    decode_gpus: Array
    requested_gpus: Array
    draining_gpus: Array
    backlog: Array
    buffer_bytes: Array
    active: Array
    ttft: Array
    tpot: Array
    arrived: Array
    done: Array
    lost: Array
    stalled: Array


class Run(eqx.Module):
    """A finished run: its cost, its request balance, and its trajectory where asked for."""

    cost: Cost
    arrived: Array
    done: Array
    lost: Array
    left: Array
    attained: Array
    actions: Array
    trajectory: Trajectory | None


class _Sums(NamedTuple):
    gpu_seconds: Scalar
    late: Scalar
    lost: Scalar
    stalled: Scalar
    done: Scalar
    within: Scalar
    actions: Scalar


class _Loop(NamedTuple):
    state: PlantState
    workers: Array  # commanded workers per pool, starting ones included: shape (2,)
    pending: Array  # workers that are starting: shape (2,)
    gpus: Array  # fleet size the policy last asked for
    starts: Array  # ring of past starts: shape (delay + 2, 2)
    sums: _Sums


def simulate(
    fleet: Fleet,
    workload: Workload | Load,
    policy: Thresholds,
    objective: Objective | None = None,
    *,
    width: float | Array | None = None,
    record: bool = True,
) -> Run:
    """Run the closed loop over the whole workload.

    Arguments:
        fleet: plant, delay, budget.
        workload: windows of arrivals, or a prepared `Load` (one entry per control interval).
        policy: the autoscaler.
        objective: limits and prices; the default is `Objective()`.
        width: None for the hard law (integer workers, comparisons on ticks); a number > 0 for the relaxed one.
        record: keep the trajectory.

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
    # As an array, so that another width is another input and not another compilation.
    width = None if width is None else jnp.asarray(width, dtype=jnp.float64)
    return _simulate(fleet, load, policy, objective or Objective(), width, record)


def _check_load(load: Load) -> None:
    """Refuse amounts that are no amounts; a traced load is taken as it is."""
    for name, part in zip(Load._fields, load, strict=True):
        if isinstance(part, Tracer):
            continue
        if part.shape != load.requests.shape:
            raise refuse(f"load.{name}", part.shape, f"of the shape of load.requests, {load.requests.shape}")
        values = np.asarray(part)
        if not np.all(np.isfinite(values) & (values >= 0)):
            bad = int(np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[0])
            raise refuse(f"load.{name}[{bad}]", float(values[bad]), "a finite amount >= 0")


def _with_checked_delay(fleet: Fleet) -> Fleet:
    """A cold start outside its static tick would be extrapolated silently: refuse it, also where it is traced."""
    part = fleet.cold_start / fleet.interval - fleet.delay_ticks
    wanted = "that of Fleet.make: the whole ticks in cold_start"
    if isinstance(part, Tracer):
        sure = eqx.error_if(fleet.cold_start, (part < 0) | (part > 1), f"fleet.delay_ticks must be {wanted}")
        return eqx.tree_at(lambda f: f.cold_start, fleet, sure)
    if not 0 <= float(part) <= 1:
        raise refuse("fleet.delay_ticks", fleet.delay_ticks, wanted)
    return fleet


@eqx.filter_jit
def _simulate(
    fleet: Fleet, load: Load, policy: Thresholds, objective: Objective, width: Scalar | None, record: bool
) -> Run:
    ticks = load.requests.shape[0]
    # Longer than the horizon is the same as never: the ring need not remember more than the run has ticks.
    delay = min(fleet.delay_ticks, ticks + 1)
    loop = _start(fleet, policy, width, delay)

    def tick(loop: _Loop, inputs: tuple[Array, Load]) -> tuple[_Loop, Trajectory | None]:
        return _tick(fleet, policy, objective, width, record, delay, loop, inputs)

    loop, trajectory = jax.lax.scan(tick, loop, (jnp.arange(ticks), load))
    s = loop.sums
    hour = 3600.0
    unit = fleet.request_gpu_seconds / hour
    cost = Cost(
        gpu_hours=s.gpu_seconds / hour,
        slo_loss=objective.late_weight * unit * s.late,
        lost_flow=objective.lost_weight * unit * s.lost,
        stalled_flow=objective.stalled_weight * s.stalled / hour,
    )
    state = loop.state
    arrived = jnp.sum(load.requests)
    return Run(
        cost=cost,
        arrived=arrived,
        done=jnp.asarray(s.done),
        lost=jnp.asarray(s.lost),
        left=state.backlog.requests + state.buffer.requests + state.active.requests,
        attained=ratio(s.within, arrived, empty=1.0),
        actions=jnp.asarray(s.actions),
        trajectory=trajectory,
    )


def _bounds(fleet: Fleet) -> Bounds:
    return Bounds(fleet.plant.prefill_worker, fleet.plant.decode_worker, fleet.min_workers, fleet.budget)


def _start(fleet: Fleet, policy: Thresholds, width: Scalar | None, delay: int) -> _Loop:
    zero = jnp.zeros(())
    gpus = jnp.asarray(fleet.initial_gpus, dtype=jnp.float64)
    workers = jnp.stack(policy.split(gpus, _bounds(fleet), width))
    return _Loop(
        state=empty(),
        workers=workers,
        pending=jnp.zeros(2),
        gpus=gpus,
        starts=jnp.zeros((delay + 2, 2)),
        sums=_Sums(*([zero] * len(_Sums._fields))),
    )


def _tick(
    fleet: Fleet,
    policy: Thresholds,
    objective: Objective,
    width: Scalar | None,
    record: bool,
    delay: int,
    loop: _Loop,
    inputs: tuple[Array, Load],
) -> tuple[_Loop, Trajectory | None]:
    index, arriving = inputs
    plant, dt = fleet.plant, fleet.interval
    per_worker = jnp.stack([jnp.asarray(plant.prefill_worker, float), jnp.asarray(plant.decode_worker, float)])
    state = loop.state

    # Sample, decide.
    ready = (loop.workers - loop.pending) * per_worker
    signals = Signals(
        prefill_wait=ratio(state.computed, ready[0] * plant.r_P),
        decode_load=ratio(state.active.requests + state.buffer.requests, ready[1] * plant.batch),
        pending=jnp.sum(loop.pending * per_worker),
        gpus=loop.gpus,
    )
    gpus = policy.size(signals, _bounds(fleet), width)
    wanted = jnp.stack(policy.split(gpus, _bounds(fleet), width))

    # Start and stop. Stops take ready workers at once; starts arrive after the cold start.
    change = wanted - loop.workers
    begun = positive_part(change)
    slots = delay + 2
    starts = jax.lax.dynamic_update_index_in_dim(loop.starts, begun, index % slots, 0)
    part = fleet.cold_start / dt - fleet.delay_ticks
    earlier = jax.lax.dynamic_index_in_dim(starts, (index - delay) % slots, 0, keepdims=False)
    before = jax.lax.dynamic_index_in_dim(starts, (index - delay - 1) % slots, 0, keepdims=False)
    arrived = (1.0 - part) * earlier + part * before
    pending = positive_part(loop.pending + begun - arrived)
    ready = positive_part(wanted - pending) * per_worker

    # Cut the chain here, or XLA on CPU recomputes the decision inside every flow that reads it.
    ready, gpus, pending, starts = jax.lax.optimization_barrier((ready, gpus, pending, starts))

    new, flows = advance(state, Arrivals(*arriving), ready[0], ready[1], plant, dt)
    over_ttft, over_tpot = objective.late_share(flows.ttft, flows.tpot)
    paid = ready[0] + flows.serving + jnp.sum(pending * per_worker)
    s = loop.sums
    sums = _Sums(
        gpu_seconds=s.gpu_seconds + dt * paid,
        late=s.late + arriving.requests * over_ttft + flows.done.requests * over_tpot,
        lost=s.lost + flows.lost.requests,
        stalled=s.stalled + flows.stalled / plant.r_P,
        done=s.done + flows.done.requests,
        within=s.within + arriving.requests * (1.0 - over_ttft) * (1.0 - over_tpot),
        actions=s.actions + jnp.sum(jnp.abs(change)),
    )
    new, sums = jax.lax.optimization_barrier((new, sums))
    out = None
    if record:
        out = Trajectory(
            time=(index + 1.0) * dt,
            prefill_gpus=ready[0],
            decode_gpus=ready[1],
            requested_gpus=jnp.sum(wanted * per_worker),
            draining_gpus=flows.serving - ready[1],
            backlog=jnp.asarray(new.computed),
            buffer_bytes=plant.kappa * jnp.asarray(new.buffer.stored),
            active=jnp.asarray(new.active.requests),
            ttft=flows.ttft,
            tpot=jnp.asarray(flows.tpot),
            arrived=arriving.requests,
            done=jnp.asarray(flows.done.requests),
            lost=jnp.asarray(flows.lost.requests),
            stalled=jnp.asarray(flows.stalled),
        )
    return _Loop(new, wanted, pending, gpus, starts, sums), out


make_callable(__name__)
