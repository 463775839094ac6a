"""The two-pool plant in continuous time, solved by diffrax: any solver and tolerance, dense output, event times.

The physics is `fluidq.plant.Plant.advance`, the step of the fast engine, and nothing else:

    dx/dt = (advance(x, arrivals h, gpus, h) - x) / h

Explicit Euler with step h is therefore the fast engine itself. The right-hand side is Lipschitz: where the reflected
flow would stop dead at a boundary (buffer full or empty, slots taken, backlog gone) it slows down over the last h
seconds, a boundary layer of the time `relax`. As h -> 0 the solution tends to the reflected one, at first order in h;
the fast engine tends to the same limit, at first order in its step. An explicit solver takes steps of about 3 h inside
a layer; `diffrax.Kvaerno5()` does not, and suits a very small h.

What jumps is declared and never stepped over: the arrival rates at the ticks, and each worker at its own landing time
(method of steps: what lands in a tick was decided before it). Each solve sees one piece without jumps, and the pieces'
edges carry the derivative in the cold start.
"""

from collections.abc import Callable, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from fluidq import pipeline
from fluidq._continuous_engine import Level as Level
from fluidq._continuous_engine import Piece, Setup, Totals, Y, closed_loop, field, look, march, run
from fluidq._errors import refuse
from fluidq._numerics import ratio
from fluidq._types import Scalar
from fluidq._xla import compiled
from fluidq.fleet import Fleet
from fluidq.objective import Cost, Objective
from fluidq.plant import Arrivals, Contents, PlantState, total
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, _check_load, _with_checked_delay, load_of
from fluidq.workload import Workload

RTOL = 1e-6
# Layers per control interval where the user states none.
LAYERS = 200


class Path(eqx.Module):
    """A solved path.

    Attributes:
        edges: times at which something may jump [s], shape (pieces + 1,).
        final: the plant at the end.
    """

    edges: Float[Array, " edges"]
    final: Level
    _starts: Y
    _pieces: Piece
    _setup: Setup

    @property
    def states(self) -> PlantState:
        """The stores at the edges, shape (edges,) or (edges, classes)."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), self._starts.state, self.final.state)

    @property
    def cost(self) -> Cost:
        """The cost of the run, the integrals priced as in `fluidq.simulate` [GPU-hours]."""
        o, s = self._setup.objective, self.final.totals
        unit = self._setup.fleet.request_gpu_seconds / 3600.0
        return Cost(
            gpu_hours=jnp.asarray(o.gpu_hour_weight * s.gpu_seconds / 3600.0),
            slo_loss=jnp.asarray(o.late_weight * unit * s.late),
            lost_flow=jnp.asarray(o.lost_weight * unit * total(s.lost.requests)),
            stalled_flow=jnp.asarray(o.stalled_weight * s.stalled / self._setup.fleet.plant.r_P / 3600.0),
            actions=jnp.asarray(o.action_weight * s.actions),
        )

    def at(self, t: Any) -> Level:
        """The plant at the times `t` [s], any shape: solved from the last edge on, so exact to the tolerance.

        At an edge it is the instant before the jump. Raises InputError for a time outside the path.
        """
        times = jnp.asarray(t, dtype=jnp.float64)
        if not isinstance(times, Tracer) and not isinstance(self.edges, Tracer):
            outside = ~((np.asarray(times) >= self.edges[0]) & (np.asarray(times) <= self.edges[-1]))
            if outside.any():
                wanted = f"a time between {float(self.edges[0]):g} s and {float(self.edges[-1]):g} s"
                raise refuse("t", float(np.asarray(times)[outside].flat[0]), wanted)
        flat = _between(self, times.reshape(-1))
        return jax.tree.map(lambda x: x.reshape(*times.shape, *x.shape[1:]), flat)

    def when(self, gap: Callable[[Level], Scalar]) -> Array:
        """The first time [s] at which `gap` of the plant comes up through 0; inf where it never does.

        The time is solved for, not stepped over, and has a derivative (implicit function theorem). A gap above 0 at
        the start, or lifted there by a jump, is met at that instant. Two crossings inside one step of the solver
        cancel: a smaller `relax` or `rtol` sees them. `Full` and `Drained` are ready-made gaps.
        """
        return _first(self, _arrays(gap))


class Full(eqx.Module):
    """Gap of a full handoff buffer: less than `share` of its room is free.

    Inside the layer the last `share` takes about relax * ln(inflow relax / (share room)).
    """

    share: Scalar = 1e-4

    def __call__(self, level: Level) -> Scalar:
        """Above 0 where the buffer is full."""
        return level.buffer_bytes / level.buffer_room - (1.0 - self.share)


class Drained(eqx.Module):
    """Gap of an empty handoff buffer: less than `share` of its room is taken."""

    share: Scalar = 1e-4

    def __call__(self, level: Level) -> Scalar:
        """Above 0 where the buffer is empty."""
        return self.share - level.buffer_bytes / level.buffer_room


def solve(
    fleet: Fleet,
    workload: Workload | Load | Sequence[Workload],
    policy: Any,
    objective: Objective | None = None,
    *,
    width: float | Array | None = None,
    solver: diffrax.AbstractSolver | None = None,
    rtol: float = RTOL,
    atol: float | None = None,
    step: Scalar | None = None,
    relax: Scalar | None = None,
    state: PlantState | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    max_steps: int = 4096,
) -> Path:
    """Solve the plant in continuous time.

    Arguments:
        fleet: plant, delay, budget. `fleet.substeps` plays no part.
        workload: windows of arrivals, several such for several classes, or a prepared `Load`; rates are constant
            within a control interval.
        policy: a `Policy`, sampled every `fleet.interval` seconds as in `fluidq.simulate`, each worker landing at its
            own time; or ready GPUs of the two pools as a pair of numbers or arrays (one entry per interval); or a
            smooth controller, a function of the `Level` to that pair, acting at once.
        objective: limits and prices; the default is `Objective()`.
        width: None for the hard law, a number > 0 for the relaxed one.
        solver: Tsit5 by default. rtol, atol: tolerances, atol in mean requests (and their tokens), rtol by default.
        step: solver step [s] where it shall be constant; None for adaptive ones.
        relax: width h of the boundary layer [s]; the control interval over 200 by default.
        state: stores at the start, empty by default.
        adjoint: for a policy `diffrax.ForwardMode()`, the only mode that it takes: reverse mode through the landing
            times of workers was measured wrong (a cold start's slope by a factor of 2) and is refused. For pools and
            smooth controllers reverse mode is the default.
        max_steps: most solver steps between two jumps; diffrax raises where they do not suffice.

    Returns a `Path`. Raises InputError for what `fluidq.simulate` refuses, pools that do not fit the load, and a
    tolerance or layer that is not positive. A gradient is only as good as the tolerance: the field has kinks, and
    rtol 1e-3 can give the value right and a derivative wrong.
    """
    load = workload if isinstance(workload, Load) else load_of(workload, fleet.interval)
    ticks, classes = load.requests.shape[0], load.requests.shape[1:]
    if ticks == 0:
        raise refuse("workload", "no windows", "at least one window of arrivals")
    _check_load(load)
    relax = fleet.interval / LAYERS if relax is None else relax
    atol = rtol if atol is None else atol
    for name, value in (("width", width), ("relax", relax), ("rtol", rtol), ("atol", atol), ("step", step)):
        if value is not None and not isinstance(value, Tracer) and not 0 < float(value) < np.inf:
            raise refuse(name, value, "a finite number > 0")
    fleet = _with_checked_delay(fleet)
    law, pools = None, None
    if isinstance(policy, Policy):
        law = _arrays(policy.prepare(load, fleet))
    elif callable(policy):
        pools = policy
    else:
        law = _checked_pools(policy, ticks)
    adjoint = _checked_adjoint(adjoint, isinstance(law, Policy))
    zero = jnp.zeros(classes)
    nothing = Contents(zero, zero, zero)
    none = jnp.zeros(())
    chains = None
    if fleet.stages and isinstance(law, Policy):
        chain = pipeline.erlang(fleet.stages)
        chains = Asked(chain, chain)
    totals = Totals(nothing, nothing, none, none, none, none, none, none)
    begin = fleet.plant.empty(classes) if state is None else jax.tree.map(lambda x: jnp.asarray(x, float), state)
    y = Y(begin, totals, chains)
    setup = Setup(
        fleet=_arrays(fleet),
        objective=_arrays(objective or Objective()),
        relax=jnp.asarray(relax, dtype=jnp.float64),
        rtol=jnp.asarray(rtol, dtype=jnp.float64),
        atol=jnp.asarray(atol, dtype=jnp.float64),
        step=None if step is None else jnp.asarray(step, dtype=jnp.float64),
        units=_units(load, y),
        solver=diffrax.Tsit5() if solver is None else solver,
        adjoint=adjoint,
        max_steps=max_steps,
        pools=pools,
    )
    width = None if width is None else jnp.asarray(width, dtype=jnp.float64)
    return _solve(setup, load, law, width, y)


def _checked_pools(pools: Any, ticks: int) -> Asked:
    try:
        prefill, decode = pools
    except (TypeError, ValueError):
        raise refuse("policy", pools, "a Policy, a pair of pools or a function of the level") from None
    out = []
    for name, part in (("prefill", prefill), ("decode", decode)):
        part = jnp.asarray(part, dtype=jnp.float64)
        if part.shape not in ((), (ticks,)):
            raise refuse(f"{name} pool", part.shape, f"a number or one per interval, shape ({ticks},)")
        if not isinstance(part, Tracer) and not np.all(np.isfinite(part) & (part >= 0)):
            raise refuse(f"{name} pool", np.asarray(part).min().item(), "finite numbers of GPUs >= 0")
        out.append(jnp.broadcast_to(part, (ticks,)))
    return Asked(*out)


def _arrays(tree: Any) -> Any:
    """Numbers as arrays, so that another number is another input and not another compilation."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float64) if isinstance(x, float) else x, tree)


def _units(load: Load, y: Y) -> Y:
    """One mean request in each kind of content: the scale on which the absolute tolerance is measured."""
    n = jnp.sum(load.requests)
    mean = [jax.lax.stop_gradient(ratio(jnp.sum(part), n, empty=1.0)) for part in load]
    one, computed, stored, output = (jnp.where(m > 0, m, 1.0) for m in mean)
    store = Contents(one, stored, output)
    units = Y(
        PlantState(store, computed, store, store),
        Totals(store, store, computed, computed, one, one, one, one),
        None if y.chains is None else Asked(one, one),
    )
    return jax.tree.map(lambda u, x: jnp.broadcast_to(u, jnp.shape(x)), units, y)


def _solve_any(setup: Setup, load: Load, law: Policy | Asked | None, width: Array | None, y: Y) -> Path:
    dt, ticks = setup.fleet.interval, load.requests.shape[0]
    rates = Arrivals(*(part / dt for part in load))
    if isinstance(law, Policy):
        y, starts, edges, pieces = closed_loop(setup, load, rates, law, width, y)
    else:
        g_P, g_D = setup.fleet.per_worker
        gpus = Asked(jnp.zeros((ticks,)), jnp.zeros((ticks,))) if law is None else law
        nobody = jnp.zeros((ticks,))
        pieces = Piece(rates, Asked(gpus.prefill / g_P, gpus.decode / g_D), Asked(nobody, nobody))
        edges = dt * jnp.arange(ticks + 1.0)
        y, starts = march(setup, y, edges[:-1], edges[1:], pieces)
    final, _, _ = look(setup, edges[-1], y, jax.tree.map(lambda x: x[-1], pieces))
    return Path(edges, final, starts, pieces, setup)


_solve = compiled(_solve_any)


@eqx.filter_jit
def _between(path: Path, times: Array) -> Level:
    def one(t: Array) -> Level:
        i = jnp.clip(jnp.searchsorted(path.edges, t, side="left") - 1, 0, path.edges.shape[0] - 2)
        y, piece = jax.tree.map(lambda x: x[i], (path._starts, path._pieces))
        _, y, _ = run(path._setup, path.edges[i], t, y, piece)
        return look(path._setup, t, y, piece)[0]

    return jax.vmap(one)(times)


@eqx.filter_jit
def _first(path: Path, gap: Callable[[Level], Scalar]) -> Array:
    """The time is found without derivatives; then its own is that of the implicit function, -(dg/dx) / (dg/dt)."""
    setup, edges, over = path._setup, path.edges, (path.edges[:-1], path.edges[1:], path._starts, path._pieces)
    quiet = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, setup)

    def fires(t0: Array, t1: Array, y: Y, piece: Piece) -> tuple[Array, Array, Array]:
        there = gap(look(quiet, t0, y, piece)[0]) > 0
        t, _, fired = run(quiet, t0, t1, y, piece, gap)
        return jnp.where(there, t0, t), there, there | fired

    def next_piece(found: Array, over: Any) -> tuple[Array, tuple[Array, Array, Array]]:
        never = (jnp.asarray(jnp.inf), jnp.asarray(False), jnp.asarray(False))
        hit = jax.lax.cond(found, lambda: never, lambda: fires(*over))
        return found | hit[2], hit

    found, (times, already, hits) = jax.lax.scan(next_piece, jnp.asarray(False), jax.lax.stop_gradient(over))
    i = jnp.argmax(hits)
    t = jnp.where(found, times[i], edges[i])
    y, piece = jax.tree.map(lambda x: x[i], (path._starts, path._pieces))
    _, y, _ = run(setup, edges[i], jax.lax.stop_gradient(t), y, piece)
    level = lambda setup, t, y: jnp.asarray(gap(look(setup, t, y, piece)[0]))  # noqa: E731
    here = jax.lax.stop_gradient((t, y))
    moving = jax.tree.map(lambda dz, u: dz * u, field(here[0], _over(here[1], quiet), (quiet, piece)), quiet.units)
    _, slope = jax.jvp(lambda t, y: level(quiet, t, y), here, (jnp.ones(()), moving))
    slope = jax.lax.stop_gradient(jnp.where(slope == 0, 1.0, slope))
    height = level(setup, here[0], y)
    crossed = here[0] - (height - jax.lax.stop_gradient(height)) / slope
    return jnp.where(found, jnp.where(already[i], edges[i], crossed), jnp.inf)


def _over(y: Y, setup: Setup) -> Y:
    return jax.tree.map(lambda a, u: a / u, y, setup.units)


def _checked_adjoint(adjoint: diffrax.AbstractAdjoint | None, closed: bool) -> diffrax.AbstractAdjoint:
    if adjoint is None:
        return diffrax.ForwardMode() if closed else diffrax.RecursiveCheckpointAdjoint()
    if closed and not isinstance(adjoint, diffrax.ForwardMode):
        raise refuse(
            "adjoint", type(adjoint).__name__, "diffrax.ForwardMode() for a policy, whose workers land in time"
        )
    return adjoint
