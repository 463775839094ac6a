"""The article's queue: one buffer in [0, C] between a produced flow P and an accepted flow A, followed exactly.

Between two edges the rates are constant, so the level is monotone and the clip update

    Q' = min(max(Q + (P - A) h, 0), C)

is the exact solution, overflow and underflow included; nothing is discretised. At a tie (the level lands exactly on a
boundary) derivatives are those of a level just inside: nothing has spilled yet. `fluidq.queue_ode` solves the same
queue as a differential equation.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Real

from fluidq._errors import refuse, unknown
from fluidq._numerics import Scalar, least, most, positive_part, ratio

MODES = ("lost", "pushed_back")
Number = Real[ArrayLike, ""]
Series = Real[ArrayLike, "..."] | Sequence[float | int]  # one number per edge or piece


class QueueState(eqx.Module):
    """What is in the queue, and what it has cost so far; each of the shape of the times asked for [B].

    Attributes:
        level: Q, in the buffer, 0 to C.
        backlog: W, waiting upstream for room; 0 in mode "lost".
        overflow: cumulative volume lost at the full buffer; 0 in mode "pushed_back".
        underflow: cumulative volume that the accepting side asked for and the empty buffer did not have.
    """

    level: Float[Array, "*times"]
    backlog: Float[Array, "*times"]
    overflow: Float[Array, "*times"]
    underflow: Float[Array, "*times"]

    @property
    def stranded(self) -> Float[Array, "*times"]:
        """Flow that did not pass: overflow + underflow + backlog [B]. Over [0, tau] it is P tau L of D14."""
        return self.overflow + self.underflow + self.backlog


class _Content(eqx.Module):
    """Z = Q + W with the two cumulative losses: what one step maps to the next."""

    volume: Float[Array, "*times"]
    overflow: Float[Array, "*times"]
    underflow: Float[Array, "*times"]

    def advance(self, net: Array, span: Array, C: Array, lost: bool) -> "_Content":
        """After `span` seconds at the constant rate `net` [B/s]; exact. Only mode "lost" has an upper boundary."""
        free = self.volume + net * span
        kept, underflow = most(free, 0.0), self.underflow + positive_part(-free)
        if not lost:
            return _Content(kept, self.overflow, underflow)
        return _Content(least(kept, C), self.overflow + positive_part(free - C), underflow)


class QueuePath(eqx.Module):
    """The exact path of a queue; made by `Queue.path`.

    Attributes:
        C: capacity [B].
        edges: times between which the rates are constant [s].
        net: P - A on each piece [B/s].
        mode: "lost" or "pushed_back".
    """

    C: Float[Array, ""]
    edges: Float[Array, " edges"]
    net: Float[Array, " pieces"]
    content: _Content  # at the edges
    mode: str = eqx.field(static=True)

    def at(self, t: Scalar) -> QueueState:
        """The state at the times `t` [s] (any shape), each within the edges; exact between edges too."""
        start, end = self.edges[0], self.edges[-1]
        times = jnp.asarray(t, float)
        times = require("t", times, (times >= start) & (times <= end), "a time within the edges of the path")
        piece = jnp.clip(jnp.searchsorted(self.edges, times, side="right") - 1, 0, self.net.shape[0] - 1)
        before = jax.tree.map(lambda x: x[piece], self.content)
        now = before.advance(self.net[piece], times - self.edges[piece], self.C, self.mode == "lost")
        return self._state(now)

    @property
    def final(self) -> QueueState:
        """The state at the last edge."""
        return self._state(jax.tree.map(lambda x: x[-1], self.content))

    @property
    def knots(self) -> Float[Array, " knots"]:
        """Every time at which the slope can change: the edges, and the boundary hits inside pieces, in order [s].

        A piece without a hit repeats its end, so the shape (3 pieces + 1) does not depend on the values. Between
        knots each part of the state is linear.
        """
        start, span = self.edges[:-1], jnp.diff(self.edges)

        def inside(delay: Array) -> Array:
            return jnp.where((delay > 0) & (delay < span), delay, span)

        # Downwards a backlog ends (content C) before the buffer does (content 0); upwards only C can be met.
        empty = inside(self._delay(jnp.zeros_like(self.C)))
        first = least(inside(self._delay(self.C)), empty)
        hits = jnp.stack([start, start + first, start + empty], axis=1).ravel()
        return jnp.append(hits, self.edges[-1])

    @property
    def first_full(self) -> Float[Array, ""]:
        """First time at which the level is C [s]; inf where it never is."""
        return self._first(self.content.volume >= self.C, self._delay(self.C), self.net > 0)

    @property
    def first_empty(self) -> Float[Array, ""]:
        """First time at which the level is 0 [s]; inf where it never is."""
        return self._first(self.content.volume <= 0, self._delay(jnp.zeros_like(self.C)), self.net < 0)

    def _delay(self, target: Array) -> Array:
        """Time from the start of each piece until its content would be `target`; inf where the rates balance."""
        gap = target - self.content.volume[:-1]
        return ratio(jnp.where(self.net > 0, gap, -gap), jnp.abs(self.net), jnp.inf)

    def _first(self, there: Array, delay: Array, towards: Array) -> Array:
        # A piece is monotone: it reaches the boundary if and only if it starts or ends there.
        reached = there[:-1] | there[1:]
        delay = jnp.where(towards, least(delay, jnp.diff(self.edges)), 0.0)
        return jnp.where(reached.any(), (self.edges[:-1] + delay)[jnp.argmax(reached)], jnp.inf)

    def _state(self, content: _Content) -> QueueState:
        z = content.volume
        return QueueState(least(z, self.C), positive_part(z - self.C), content.overflow, content.underflow)


class Queue(eqx.Module):
    """A buffer of capacity C that holds Q0 at the start.

    Args:
        C: capacity [B], >= 0.
        Q0: initial stock [B], 0 to C.
        mode: "lost": what finds the buffer full is gone. "pushed_back": it waits upstream in a backlog W and enters
            as soon as there is room, so that Z = Q + W knows the lower boundary only: Q = min(Z, C), W = max(Z - C, 0).

    Raises:
        InputError: C or Q0 not finite, C < 0, Q0 outside [0, C], an unknown mode. (Under jit, where values are not
            known yet, the same checks run with the values and raise equinox's run-time error.)

    >>> path = Queue(C=100.0, Q0=50.0).path([0.0, 10.0, 20.0], P=[20.0, 0.0], A=[10.0, 20.0])
    >>> float(path.first_full), float(path.final.overflow), float(path.first_empty), float(path.final.underflow)
    (5.0, 50.0, 15.0, 100.0)
    """

    C: Float[Array, ""]
    Q0: Float[Array, ""]
    mode: str = eqx.field(static=True)

    def __init__(self, C: Number, Q0: Number, mode: str = "lost"):
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        self.C, self.Q0 = _stock_of(jnp.asarray(C, float), jnp.asarray(Q0, float))
        self.mode = mode

    def path(self, ts: Series, P: Series, A: Series) -> QueuePath:
        """The exact path for rates that are constant between the edges.

        Args:
            ts: n + 1 edges [s], in order; a piece of no length is allowed.
            P: produced flow of each piece [B/s], shape (n,), or one number for all.
            A: flow that the other side can accept [B/s], likewise.

        Raises:
            InputError: edges out of order or fewer than two; a shape that does not fit; a rate that is negative or
                not finite.
        """
        edges, produced, accepted = checked_rates(ts, P, A)
        return _follow(self.C, self.Q0, edges, produced - accepted, self.mode)


@eqx.filter_jit
def _follow(C: Array, Q0: Array, edges: Array, net: Array, mode: str) -> QueuePath:
    """One clip per piece, in a scan; unchecked."""

    def step(content: _Content, piece: tuple[Array, Array]) -> tuple[_Content, _Content]:
        content = content.advance(*piece, C, mode == "lost")
        return content, content

    zero = jnp.zeros_like(Q0)
    first = _Content(Q0, zero, zero)
    _, later = jax.lax.scan(step, first, (net, jnp.diff(edges)))
    content = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
    return QueuePath(C, edges, net, content, mode)


def shock_rates(
    delta: Number, tau: Number, P: Number, horizon: Number | None = None
) -> tuple[Float[Array, " 3"], Float[Array, ""], Float[Array, " 2"]]:
    """Edges, produced and accepted flow of a mix step that the resize ends: (0, tau, horizon), P, (P - delta, P).

    P is the balanced flow. delta > 0 is a surplus that fills the buffer, delta < 0 a shortfall that drains it; from
    tau on the flows balance again. `horizon` [s] is where the path ends, tau by default.

    Raises:
        InputError: tau < 0, horizon < tau, P <= 0, delta > P (the accepted flow would be negative), not finite.
    """
    step, lead, flow = _shock_of(*(jnp.asarray(x, float) for x in (delta, tau, P)))
    end = lead if horizon is None else jnp.asarray(horizon, float)
    end = require("horizon", end, jnp.isfinite(end) & (end >= lead), "a finite time >= tau")
    return jnp.stack([jnp.zeros_like(lead), lead, end]), flow, jnp.stack([flow - step, flow])


def shock(
    C: Number,
    Q0: Number,
    delta: Number,
    tau: Number,
    P: Number,
    *,
    horizon: Number | None = None,
    mode: str = "lost",
) -> QueuePath:
    """The queue under a mix step of size delta [B/s] until the resize lands at tau [s]; D14.

    >>> path = shock(C=150e9, Q0=75e9, delta=-2.67e9, tau=88.0, P=5.34e9)
    >>> round(float(path.first_empty), 2), round(float(path.final.underflow) / 1e9, 2)
    (28.09, 159.96)
    """
    return Queue(C, Q0, mode).path(*shock_rates(delta, tau, P, horizon))


def shock_loss_by_simulation(
    *, delta: Scalar, tau: Scalar, C: Scalar, Q0: Scalar, P: Scalar, mode: str = "lost"
) -> Array:
    """Mean stranded flow over [0, tau] as a share of P, from the simulated queue; D14's L without its formula.

    Arguments broadcast against each other as NumPy arrays do, and every combination is simulated in one vmapped call.

    Args:
        delta: surplus (> 0) or shortfall (< 0) [B/s], at most P.
        tau: lead time [s], >= 0; the loss at 0 is 0.
        C, Q0: capacity and stock [B].
        P: balanced flow [B/s], > 0.
        mode: see `Queue`; the loss is the same in both, a backlog counts as stranded.

    Raises:
        InputError: as `Queue` and `shock_rates`, or shapes that do not broadcast.
    """
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    given = {"delta": delta, "tau": tau, "C": C, "Q0": Q0, "P": P}
    arrays = {name: jnp.asarray(x, float) for name, x in given.items()}
    shapes = {name: x.shape for name, x in arrays.items()}
    try:
        shape = jnp.broadcast_shapes(*shapes.values())
    except ValueError:
        raise refuse("the shapes of the arguments", shapes, "shapes that broadcast against each other") from None
    flat = {name: jnp.broadcast_to(x, shape).reshape(-1) for name, x in arrays.items()}
    capacity, stock = _stock_of(flat["C"], flat["Q0"])
    return _losses(*_shock_of(flat["delta"], flat["tau"], flat["P"]), capacity, stock, mode).reshape(shape)


@eqx.filter_jit
def _losses(delta: Array, tau: Array, P: Array, C: Array, Q0: Array, mode: str) -> Array:
    def one(delta: Array, tau: Array, P: Array, C: Array, Q0: Array) -> Array:
        # P - (P - delta), rounding included: the flows, as a simulation sees them.
        path = _follow(C, Q0, jnp.stack([jnp.zeros_like(tau), tau]), (P - (P - delta))[None], mode)
        return ratio(path.final.stranded, P * tau)

    return jax.vmap(one)(delta, tau, P, C, Q0)


def checked_rates(ts: object, P: object, A: object) -> tuple[Array, Array, Array]:
    """Edges (n + 1,) and both flows (n,), once they are known to be usable."""
    edges = _numbers("ts", ts)
    if edges.ndim != 1 or edges.shape[0] < 2:
        raise refuse("the shape of ts", edges.shape, "(n + 1,): at least two edges in one row")
    ordered = jnp.isfinite(edges) & jnp.append(True, jnp.diff(edges) >= 0)
    edges = require("ts", edges, ordered, "finite edges in order of time (this one is not finite or comes too early)")
    pieces, flows = edges.shape[0] - 1, []
    for name, given in (("P", P), ("A", A)):
        flow = _numbers(name, given)
        if flow.shape not in ((), (pieces,)):
            raise refuse(f"the shape of {name}", flow.shape, f"({pieces},), one rate per piece, or one number")
        flow = require(name, flow, jnp.isfinite(flow) & (flow >= 0), "a finite rate >= 0 B/s")
        flows.append(jnp.broadcast_to(flow, (pieces,)))
    return edges, flows[0], flows[1]


def _numbers(field: str, given: object) -> Array:
    try:
        return jnp.asarray(given, float)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise refuse(field, given, "numbers in one row") from None


def _stock_of(C: Array, Q0: Array) -> tuple[Array, Array]:
    C = require("C", C, jnp.isfinite(C) & (C >= 0), "a finite capacity >= 0 B")
    return C, require("Q0", Q0, jnp.isfinite(Q0) & (Q0 >= 0) & (Q0 <= C), _within(C))


def _within(C: Array) -> str:
    one = not isinstance(C, Tracer) and C.size > 0 and bool((C == C.reshape(-1)[0]).all())
    return "a stock from 0 to the capacity C" + (f", {float(C.reshape(-1)[0]):g} B" if one else "")


def _shock_of(delta: Array, tau: Array, P: Array) -> tuple[Array, Array, Array]:
    P = require("P", P, jnp.isfinite(P) & (P > 0), "a finite flow > 0 B/s")
    tau = require("tau", tau, jnp.isfinite(tau) & (tau >= 0), "a finite time >= 0 s")
    wanted = "a finite rate of at most P (the accepted flow P - delta cannot be negative)"
    return require("delta", delta, jnp.isfinite(delta) & (delta <= P), wanted), tau, P


def require(field: str, value: Array, holds: Array, wanted: str) -> Array:
    """`value`, once `holds` everywhere; else the first that does not is refused, at run time where it is traced."""
    if isinstance(value, Tracer) or isinstance(holds, Tracer):
        return eqx.error_if(value, ~holds, f"{field} must be {wanted}.")
    if not bool(holds.all()):
        raise refuse(field, float(np.broadcast_to(value, holds.shape)[~np.asarray(holds)][0]), wanted)
    return value
