"""What `fluidq.continuous` integrates: the right-hand side, one piece without jumps, and the sampled closed loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array

from fluidq._numerics import positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.plant import Arrivals, Contents, Latency, PlantState, total
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, _sample, _Seen, _start, _switched, _within_budget


class Totals(NamedTuple):
    """Integrals since the start: requests and tokens `done` and `lost` as `Contents`; the rest are numbers.

    `prefilled`, `stalled` in computed tokens; `gpu_seconds` paid; `late` requests over a limit (over both counts
    twice), `within` those within both; `actions` workers started or stopped, which jump on ticks.
    """

    done: Contents
    lost: Contents
    prefilled: Scalar
    stalled: Scalar
    gpu_seconds: Scalar
    late: Scalar
    within: Scalar
    actions: Scalar


class Y(NamedTuple):
    """What is integrated. `chains`: workers in the stages of an Erlang cold start, per pool; None for a fixed one."""

    state: PlantState
    totals: Totals
    chains: Asked | None


class Piece(NamedTuple):
    """What is constant between two jumps: arrivals per second, workers per pool (those in `chains` not yet taken off),
    workers pending outside the chains."""

    rates: Arrivals
    workers: Asked
    pending: Asked


class Level(NamedTuple):
    """The plant at one instant: stores, integrals, ready GPUs, and what flows [1/s].

    `backlog` in computed tokens; `buffer_bytes` against 0 and the `buffer_room` [B]; `active` sequences in decode;
    `latency` of a request that arrives now; `done`, `lost` [req/s]; `stalled` [computed tok/s].
    """

    time: Scalar
    state: PlantState
    totals: Totals
    prefill_gpus: Scalar
    decode_gpus: Scalar
    backlog: Scalar
    buffer_bytes: Scalar
    buffer_room: Scalar
    active: Scalar
    latency: Latency
    done: Scalar
    lost: Scalar
    stalled: Scalar


class Setup(eqx.Module):
    fleet: Fleet
    objective: Objective
    relax: Array
    rtol: Array
    atol: Array
    step: Array | None
    units: Y
    solver: diffrax.AbstractSolver
    adjoint: diffrax.AbstractAdjoint
    max_steps: int = eqx.field(static=True)
    pools: Any = eqx.field(static=True)  # a function of the level, or None


def _ready(y: Y, piece: Piece) -> Asked:
    """Ready workers of the pools: all but those that are still in an Erlang chain."""
    if y.chains is None:
        return piece.workers
    return Asked(*(positive_part(w - jnp.sum(c)) for w, c in zip(piece.workers, y.chains, strict=True)))


def look(setup: Setup, t: Scalar, y: Y, piece: Piece) -> tuple[Level, PlantState, Totals]:
    """The plant at an instant, and the rates of change of its stores and of the integrals."""
    plant, h = setup.fleet.plant, setup.relax
    g_P, g_D = setup.fleet.per_worker
    arrivals = Arrivals(*(rate * h for rate in piece.rates))
    level = Level(
        time=t,
        state=y.state,
        totals=y.totals,
        prefill_gpus=jnp.asarray(0.0),
        decode_gpus=jnp.asarray(0.0),
        backlog=total(y.state.computed),
        buffer_bytes=plant.kappa * total(y.state.buffer.stored),
        buffer_room=jnp.asarray(plant.capacity),
        active=total(y.state.active.requests),
        latency=Latency(*([jnp.asarray(0.0)] * 6)),
        done=jnp.asarray(0.0),
        lost=jnp.asarray(0.0),
        stalled=jnp.asarray(0.0),
    )
    if setup.pools is None:
        ready = _ready(y, piece)
        prefill, decode = ready.prefill * g_P, ready.decode * g_D
    else:
        prefill, decode = (jnp.asarray(n, dtype=jnp.float64) for n in setup.pools(level))
    new, flows = plant.advance(y.state, arrivals, prefill, decode, h)
    felt = plant.latency(y.state, arrivals, prefill, decode, flows)
    over_ttft, over_tpot = setup.objective.late_share(felt.ttft, felt.tpot)
    starting = piece.pending
    if y.chains is not None:
        starting = Asked(*(p + jnp.sum(c) for p, c in zip(starting, y.chains, strict=True)))
    done, arriving = total(flows.done.requests) / h, piece.rates.requests
    rates = Totals(
        done=Contents(*(part / h for part in flows.done)),
        lost=Contents(*(part / h + jnp.zeros_like(old) for part, old in zip(flows.lost, y.totals.lost, strict=True))),
        prefilled=flows.prefilled / h,
        stalled=flows.stalled / h,
        gpu_seconds=prefill + flows.serving + starting.prefill * g_P + starting.decode * g_D,
        late=total(arriving * over_ttft) + done * over_tpot,
        within=total(arriving * (1.0 - over_ttft)) * (1.0 - over_tpot),
        actions=jnp.zeros(()),
    )
    level = level._replace(
        prefill_gpus=prefill,
        decode_gpus=decode,
        buffer_room=jnp.asarray(plant.room(prefill, decode)),
        latency=felt,
        done=done,
        lost=total(rates.lost.requests),
        stalled=jnp.asarray(rates.stalled),
    )
    return level, jax.tree.map(lambda a, b: (a - b) / h, new, y.state), rates


def field(t: Scalar, z: Y, args: tuple[Setup, Piece]) -> Y:
    setup, piece = args
    y = jax.tree.map(lambda a, u: a * u, z, setup.units)
    _, state, totals = look(setup, t, y, piece)
    chains = None
    if y.chains is not None:
        pace = setup.fleet.stages / setup.fleet.cold_start
        shift = lambda c: pace * (jnp.concatenate([jnp.zeros((1,)), c[:-1]]) - c)  # noqa: E731
        chains = Asked(*(shift(c) for c in y.chains))
    return jax.tree.map(lambda a, u: a / u, Y(state, totals, chains), setup.units)


def run(
    setup: Setup, t0: Array, t1: Array, y: Y, piece: Piece, gap: Callable[[Level], Scalar] | None = None
) -> tuple[Array, Y, Array]:
    """From t0 until `gap` comes up through 0, at the latest until t1: time, y, and whether the gap ended it."""
    event = None
    if gap is not None:

        def above(t: Scalar, y: Y, args: tuple[Setup, Piece], **_: Any) -> Array:
            own, now = args
            return jnp.asarray(gap(look(own, t, jax.tree.map(lambda a, u: a * u, y, own.units), now)[0]))

        finder = optx.Newton(rtol=1e-9, atol=1e-9)
        event = diffrax.Event(above, finder, direction=True)
    controller = diffrax.PIDController(rtol=setup.rtol, atol=setup.atol)
    sol = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        setup.solver,
        t0,
        t1,
        setup.step,
        jax.tree.map(lambda a, u: a / u, y, setup.units),
        (setup, piece),
        stepsize_controller=controller if setup.step is None else diffrax.ConstantStepSize(),
        event=event,
        adjoint=setup.adjoint,
        max_steps=setup.max_steps,
    )
    assert sol.ts is not None
    last = jax.tree.map(lambda a, u: a[-1] * u, sol.ys, setup.units)
    fired = jnp.asarray(False) if sol.event_mask is None else jnp.asarray(sol.event_mask)
    return sol.ts[-1], last, fired


def march(setup: Setup, y: Y, starts: Array, ends: Array, pieces: Piece) -> tuple[Y, Y]:
    """Through consecutive pieces: y at the end, and at the start of each."""

    def one(y: Y, over: tuple[Array, Array, Piece]) -> tuple[Y, Y]:
        return run(setup, over[0], over[1], y, over[2])[1], y

    return jax.lax.scan(one, y, (starts, ends, pieces))


def _enter(pipe: Array, begun: Scalar, index: Array) -> tuple[Array, Array]:
    """Enter `begun` on this tick; what lands inside it."""
    slots = pipe.shape[0]
    pipe = jax.lax.dynamic_update_index_in_dim(pipe, jnp.asarray(begun), index % slots, 0)
    return pipe, jax.lax.dynamic_index_in_dim(pipe, (index - (slots - 2)) % slots, 0, keepdims=False)


def closed_loop(
    setup: Setup, load: Load, rates: Arrivals, policy: Policy, width: Array | None, y: Y
) -> tuple[Y, Y, Array, Piece]:
    """The sampled closed loop: y at the end, at the start of each piece, the edges and the pieces."""
    fleet = setup.fleet
    dt, ticks = fleet.interval, load.requests.shape[0]
    first = _start(fleet, policy, width, ticks, load.requests.shape[1:], 0)._replace(state=y.state)
    before = Load(*(jnp.concatenate([part[:1], part[:-1]]) for part in load))
    # Landing times after a tick's start; those of an Erlang chain are spread and need none.
    offsets = [] if fleet.stages else [fleet.cold_start - dt * fleet.delay_ticks]
    if fleet.switch_delay is not None:
        offsets.append(fleet.switch_delay - dt * fleet.switch_ticks)
    whens = jnp.sort(jnp.stack([jnp.zeros(()), *(jnp.clip(t, 0.0, dt) for t in offsets)]))

    def tick(carry: Any, over: Any) -> Any:
        loop, y = carry
        index, arriving, late, rate = over
        reading, _ = _sample(fleet, loop, index, late, None, 0)
        memory, wanted = policy.decide(loop.memory, reading, fleet, width)
        wanted = Asked(*(jnp.asarray(n) for n in wanted))
        wanted = wanted if policy.KEEPS_BUDGET else _within_budget(wanted, loop.workers, fleet, width)
        change = Asked(*(a - b for a, b in zip(wanted, loop.workers, strict=True)))
        begun = Asked(*(positive_part(n) for n in change))
        starts, switches, chains = loop.starts, loop.switches, y.chains
        landing: list[tuple[Scalar, Asked]] = []
        pending = loop.pending  # those in the chains are not counted here
        if y.chains is not None:
            pending = Asked(*(p - jnp.sum(c) for p, c in zip(pending, y.chains, strict=True)))
        if switches is not None:
            moved = _switched(change, fleet)
            begun = Asked(*(a - b for a, b in zip(begun, moved, strict=True)))
            pushed = [_enter(pipe, n, index) for pipe, n in zip(switches, moved, strict=True)]
            switches = Asked(*(pipe for pipe, _ in pushed))
            pending = Asked(*(p + n for p, n in zip(pending, moved, strict=True)))
            landing.append((offsets[-1], Asked(*(n for _, n in pushed))))
        if y.chains is not None:
            chains = Asked(*(c.at[0].add(n) for c, n in zip(y.chains, begun, strict=True)))
        else:
            pushed = [_enter(pipe, n, index) for pipe, n in zip(starts, begun, strict=True)]
            starts = Asked(*(pipe for pipe, _ in pushed))
            pending = Asked(*(p + n for p, n in zip(pending, begun, strict=True)))
            landing.append((offsets[0], Asked(*(n for _, n in pushed))))

        def on_their_way(since: Scalar) -> Asked:
            left = pending
            for offset, came in landing:
                there = jax.lax.stop_gradient(jnp.clip(offset, 0.0, dt) <= since)
                left = Asked(*(p - jnp.where(there, n, 0.0) for p, n in zip(left, came, strict=True)))
            return left

        parts = [on_their_way(since) for since in whens]
        stacked = Asked(*(jnp.stack(row) for row in zip(*parts, strict=True)))
        n = whens.shape[0]
        piece = Piece(
            Arrivals(*(jnp.broadcast_to(r, (n, *r.shape)) for r in rate)),
            Asked(*(positive_part(w - p) for w, p in zip(wanted, stacked, strict=True))),
            stacked,
        )
        begin = index * dt + whens
        end = jnp.concatenate([begin[1:], ((index + 1.0) * dt)[None]])
        old = y.totals
        y = y._replace(totals=old._replace(actions=old.actions + sum(jnp.abs(n) for n in change)))
        y, states = march(setup, y._replace(chains=chains), begin, end, piece)
        last = jax.tree.map(lambda x: x[-1], piece)
        level, _, _ = look(setup, end[-1], y, last)
        felt, arrived = level.latency, total(arriving.requests)
        ttft = ratio(total(arriving.requests * felt.ttft), arrived) if jnp.ndim(felt.ttft) else felt.ttft
        seen = _Seen(
            ttft=jnp.asarray(ttft),
            tpot=jnp.asarray(felt.tpot),
            prefilled=jnp.asarray(y.totals.prefilled - old.prefilled),
            t_step=jnp.asarray(felt.first_step),
        )
        waiting = last.pending
        if y.chains is not None:
            waiting = Asked(*(p + jnp.sum(c) for p, c in zip(waiting, y.chains, strict=True)))
        loop = loop._replace(
            state=y.state,
            workers=wanted,
            pending=Asked(*(positive_part(p) for p in waiting)),
            starts=starts,
            switches=switches,
            memory=memory,
            seen=seen,
        )
        return (loop, y), (begin, states, piece)

    over = (jnp.arange(ticks), load, before, rates)
    (_, y), (begin, states, pieces) = jax.lax.scan(tick, (first, y), over)
    flat = lambda tree: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)  # noqa: E731
    edges = jnp.concatenate([begin.reshape(-1), jnp.asarray([ticks * dt])])
    return y, flat(states), edges, flat(pieces)
