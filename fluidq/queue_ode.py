"""The queue of `fluidq.queue` as a differential equation, solved by diffrax: the second opinion on the exact path.

    dQ/dt = P - A inside (0, C);  at a boundary Q stands still and what does not fit is counted

The right-hand side jumps at each boundary hit and wherever the rates jump (the resize at tau). A `where` in the field
gets the values nearly right and the derivatives wrong, because the time of the jump depends on the parameters. So
every jump is declared: the rates' edges end one solve and start the next, and a boundary is an event whose time the
root finder locates and the implicit function theorem differentiates. Each solve then sees a smooth field.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from fluidq._numerics import ratio
from fluidq.queue import Number, Queue, QueueState, Series, checked_rates, shock_rates

TOLERANCE = 1e-9
Gap = Callable[[QueueState], Array]


class OdePath(eqx.Module):
    """The solved path.

    Attributes:
        edges: times at which the rates may jump [s].
        states: the state at the edges; see `QueueState`.
        hits: time at which each piece meets 0 or C from inside [s]; its end where it meets neither.
    """

    edges: Float[Array, " edges"]
    states: QueueState
    hits: Float[Array, " pieces"]

    @property
    def final(self) -> QueueState:
        """The state at the last edge."""
        return jax.tree.map(lambda x: x[-1], self.states)


def solve(
    queue: Queue,
    ts: Series,
    P: Series,
    A: Series,
    *,
    solver: diffrax.AbstractSolver | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
) -> OdePath:
    """Solve the queue for rates that are constant between the edges; arguments and errors as `Queue.path`.

    Args:
        queue: capacity, stock and mode.
        ts, P, A: edges [s] and flows [B/s].
        solver: Tsit5 by default.
        adjoint: reverse mode by default; `diffrax.ForwardMode()` for `jax.jvp`.
    """
    edges, produced, accepted = checked_rates(ts, P, A)
    solver = diffrax.Tsit5() if solver is None else solver
    adjoint = diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
    return _solve(queue, edges, produced - accepted, solver, adjoint)


def shock_loss_by_ode(*, delta: Number, tau: Number, C: Number, Q0: Number, P: Number, mode: str = "lost") -> Array:
    """D14's loss L from the differential equation: mean stranded flow over [0, tau] as a share of P; scalars."""
    states = solve(Queue(C, Q0, mode), *shock_rates(delta, tau, P)).states
    return ratio(states.stranded[1], P * jnp.asarray(tau, float))


@eqx.filter_jit
def _solve(
    queue: Queue, edges: Array, net: Array, solver: diffrax.AbstractSolver, adjoint: diffrax.AbstractAdjoint
) -> OdePath:
    C, lost = queue.C, queue.mode == "lost"
    zero = jnp.zeros_like(C)

    def run(t0: Array, t1: Array, y: QueueState, slope: QueueState, above: dict[str, Gap]) -> diffrax.Solution:
        """From t0 until one of the quantities `above` (functions of the state) exceeds 0, at the latest until t1."""
        # The root finder's tolerance is absolute, so the gaps go to it as shares of the largest that can occur.
        largest = C + jnp.abs(slope.level + slope.backlog) * (t1 - t0)
        unit = jax.lax.stop_gradient(ratio(1.0, largest, 1.0))
        events = {name: lambda t, y, args, f=f, **_: f(y) * unit for name, f in above.items()}
        # A gap is linear in time: Newton is there in one step, and the second confirms it.
        finder = optx.Newton(rtol=TOLERANCE, atol=TOLERANCE)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: args),
            solver,
            t0,
            t1,
            None,
            y,
            slope,
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
            event=diffrax.Event(events, finder, direction=dict.fromkeys(events, True)) if events else None,
            adjoint=adjoint,
        )

    def piece(y: QueueState, over: tuple[Array, Array, Array]) -> tuple[QueueState, tuple[QueueState, Array]]:
        t, end, net = over
        if not lost:
            # A backlog keeps the buffer full and takes the whole net flow until it is gone.
            waits = y.backlog > 0
            sol = run(t, jnp.where(waits, end, t), y, QueueState(zero, net, zero, zero), {"gone": lambda y: -y.backlog})
            t, y = _last(sol)
            gone = sol.event_mask["gone"] if sol.event_mask is not None else False
            y = eqx.tree_at(lambda y: y.backlog, y, jnp.where(gone, 0.0, y.backlog))

        sol = run(
            t, end, y, QueueState(net, zero, zero, zero), {"full": lambda y: y.level - C, "empty": lambda y: -y.level}
        )
        hit, y = _last(sol)
        assert isinstance(sol.event_mask, dict)
        full, empty = sol.event_mask["full"], sol.event_mask["empty"]
        # Exactly onto the boundary: the root is good to rounding, its derivative is that of the boundary itself.
        y = eqx.tree_at(lambda y: y.level, y, jnp.where(full, C, jnp.where(empty, 0.0, y.level)))

        excess = jnp.where(full, net, 0.0)
        slope = QueueState(zero, zero if lost else excess, excess if lost else zero, jnp.where(empty, -net, 0.0))
        _, y = _last(run(hit, end, y, slope, {}))
        return y, (y, hit)

    first = QueueState(queue.Q0, zero, zero, zero)
    _, (later, hits) = jax.lax.scan(piece, first, (edges[:-1], edges[1:], net))
    return OdePath(edges, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later), hits)


def _last(sol: diffrax.Solution) -> tuple[Array, QueueState]:
    assert sol.ts is not None
    return sol.ts[-1], jax.tree.map(lambda x: x[-1], sol.ys)
