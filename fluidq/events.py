"""An autoscaled buffer followed from event to event: the exact reference for hard thresholds.

    dQ/dt = P(t) - mu n(t) in [0, C];   Q comes up to theta_h: order k workers;   Q comes down to theta_l: stop k

The inflow P is constant between edges and each order acts tau seconds later, so the level is piecewise linear and every
event time is the solution of a linear equation. Nothing is stepped over, sampled or smoothed.

Derivatives, forward and reverse, with respect to every number that `run` takes. The *order* of the events is discrete,
their *times* are smooth functions, and the path-wise derivative is the derivative of those. It does not exist where a
small change alters the order of the events, and `Run` says how far that is:

- grazing: the level turns exactly at a threshold, so that a small change gives or takes an order and the path jumps.
  The number returned then belongs to the path that was followed. (A threshold that is touched has been met.)
- a tie: a crossing or a hit at the very moment at which the flows change. The path only bends, both one-sided
  derivatives exist, and the number returned is one of them; at a boundary that of a level just inside, as in
  `fluidq.queue`. (The limits on the workers are met exactly all the time; that is not counted.)

Source: D14 (hits and loss), D17 (limit cycle of a threshold autoscaler).
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from fluidq._errors import refuse, unknown
from fluidq._events_engine import END as _END
from fluidq._events_engine import KINDS, PENDING, Record, Totals, solve
from fluidq._events_engine import LANDING as _LANDING
from fluidq._events_setup import Setup, at_run_time, checked
from fluidq.queue import Number, Series, require

MOST_EVENTS = 1 << 17


class Event(NamedTuple):
    """One event: when [s], what (one of `KINDS`), the level [B], ready workers, and workers ordered (< 0: stopped)."""

    time: float
    kind: str
    level: float
    workers: float
    ordered: float


class Level(NamedTuple):
    """The system at the times asked for: level [B], ready workers, and the totals until then."""

    level: Float[Array, "*times"]
    workers: Float[Array, "*times"]
    totals: Totals


class Cycle(NamedTuple):
    """A limit cycle. Where `exists` is False: period inf, amplitude 0, peak and trough at the last level.

    period [s]; amplitude = peak - trough [B]; events: how many make one turn.
    """

    exists: Bool[Array, ""]
    period: Float[Array, ""]
    amplitude: Float[Array, ""]
    peak: Float[Array, ""]
    trough: Float[Array, ""]
    events: Int[Array, ""]


class Run(eqx.Module):
    """An exact path; made by `run`.

    Arrays have one entry per event, the state just *after* it, and repeat the end when there are no more; between two
    entries everything is linear, so (`time`, `level`) are the breakpoints of the path.

    Attributes:
        time: of each event [s]. kind: index into `KINDS`. level: Q [B].
        workers: ready workers. pending: ordered and not yet landed (< 0: stops). ordered: by this event.
        overflow, starved: lost at the full buffer, and asked for in vain at the empty one, over the run [B].
        worker_seconds: of ready workers; starting_seconds: of ordered ones that have not landed [s].
        Q_max, Q_min: highest and lowest level [B].
        graze: least distance of a decision from the other one [B]: 0 where the path-wise derivative does not exist.
        tie: least time between a crossing or hit and a change of the flows that is not due to it [s]: 0 at a kink.
        slowest: least slope at a crossing or hit [B/s], whose time moves by 1/slope per byte, or net flow at a
            boundary, where 0 decides between standing and leaving: a kink in the rates. inf without any.
        complete: whether the end was reached; `run` raises where it was not.
    """

    time: Float[Array, " events"]
    kind: Int[Array, " events"]
    level: Float[Array, " events"]
    workers: Float[Array, " events"]
    pending: Float[Array, " events"]
    ordered: Float[Array, " events"]
    overflow: Float[Array, ""]
    starved: Float[Array, ""]
    worker_seconds: Float[Array, ""]
    starting_seconds: Float[Array, ""]
    Q_max: Float[Array, ""]
    Q_min: Float[Array, ""]
    graze: Float[Array, ""]
    tie: Float[Array, ""]
    slowest: Float[Array, ""]
    complete: Bool[Array, ""]
    C: Float[Array, ""]
    record: Record

    @property
    def grazing(self) -> Bool[Array, ""]:
        """Whether the level grazes a threshold, to 1e-9 of C: the path-wise derivative does not exist."""
        return self.graze <= 1e-9 * self.C

    @property
    def tied(self) -> Bool[Array, ""]:
        """Whether the derivative is one-sided: two events tie, to 1e-9 of the run's length, or the flows balance at a
        boundary, to 1e-9 of the largest net flow.
        """
        balanced = self.slowest <= 1e-9 * jnp.abs(self.record.net).max()
        return balanced | (self.tie <= 1e-9 * (self.time[-1] - self.time[0]))

    @property
    def events(self) -> list[Event]:
        """The events in order, "start" first and "end" last; for reading, outside transformations."""
        n = int(jnp.argmax(self.kind == _END)) + 1
        columns = (self.time, self.kind, self.level, self.workers, self.ordered)
        rows = zip(*(np.asarray(x)[:n].tolist() for x in columns), strict=True)
        return [Event(time, KINDS[kind], level, workers, ordered) for time, kind, level, workers, ordered in rows]

    @property
    def landed(self) -> Bool[Array, ""]:
        """Whether any order acted before the end; False with a tau longer than the horizon: workers never come."""
        return (self.kind == _LANDING).any()

    def at(self, t: Number | Array | np.ndarray) -> Level:
        """The exact state at the times `t` [s] (any shape), each within the run.

        Raises:
            InputError: a time outside the run.
        """
        times, r = jnp.asarray(t, float), self.record
        within = (times >= r.time[0]) & (times <= r.time[-1])
        return _between(r, require("t", times, within, "a time within the run"))

    def cycle(self, longest: int = 64, rtol: float = 1e-9) -> Cycle:
        """The limit cycle in which the run ends: its last events repeat those before them, twice over.

        Two turns must fit between the transient and the end. An inflow that repeats with the turn is part of it.

        Args:
            longest: most events in a turn that are looked for.
            rtol: agreement of levels, workers and times between the two turns.
        """
        return _turn(self, min(longest, self.time.shape[0] // 2), rtol)


def run(
    ts: Series | Number | Sequence[Number],
    P: Series | Number | Sequence[Number],
    *,
    C: Number,
    Q0: Number,
    mu: Number,
    workers: Number,
    theta_h: Number | None = None,
    theta_l: Number | None = None,
    step: Number = 1.0,
    tau: Number = 0.0,
    stop_delay: Number | None = None,
    pending: str = "count",
    hold: Number = 0.0,
    min_workers: Number = 0.0,
    max_workers: Number | None = None,
    max_events: int | None = None,
    max_pending: int = 8,
) -> Run:
    """Follow a buffer and its threshold autoscaler exactly, from event to event.

    When the level comes up to `theta_h`, `step` workers are ordered; when it comes down to `theta_l`, `step` are
    stopped; each order acts `tau` seconds later. A level found outside the band at the start gives its order at once.
    What has been ordered and has not landed is, by `pending`:

        "count":  as good as there: after an order only the opposite threshold gives the next (D17's relay).
        "hold":   waited for: no order until it has landed and `hold` seconds more. Then the level is looked at, and
                  still outside the band it gives an order at once.
        "ignore": unknown: every crossing gives an order.

    Args:
        ts: n + 1 edges of the inflow [s], in order; one number T stands for [0, T].
        P: inflow of each piece [B/s], shape (n,), or one number for all.
        C: capacity [B]; what finds the buffer full is lost.
        Q0: level at the start [B].
        mu: outflow per ready worker [B/s].
        workers: ready at the start; any number >= 0.
        theta_h, theta_l: thresholds [B]; None for none. One that lies outside [0, C] is never met.
        step: workers per order, fewer where the limits say so.
        tau: lead time of an order [s]. Longer than the horizon is legal: its workers never come.
        stop_delay: that of a stop [s]; `tau` if None, 0 for a worker that leaves at once.
        hold: see above [s].
        min_workers, max_workers: limits on ready and ordered workers together; None for no upper one.
        max_events: room for events. If None it grows until the end is reached; under a transformation, which needs to
            know it before, it is 256 and four per piece.
        max_pending: room for orders on their way at one time; it grows like `max_events`.

    Raises:
        InputError: a shape, a number that is negative or not finite where it cannot be, Q0 > C, theta_l >= theta_h, an
            empty horizon, workers outside their limits, a "hold" of no time at all, or more events than there is
            room for. (Under a transformation the same checks run with the values and raise equinox's run-time error.)

    >>> from fluidq import events
    >>> path = events.run(200.0, P=3.0, C=30.0, Q0=11.0, mu=1.5, workers=1.0, theta_h=16.0, theta_l=10.0, step=2, tau=2)
    >>> [(event.time, event.kind, event.level) for event in path.events[:4]]
    [(0.0, 'start', 11.0), (3.3333333333333335, 'up', 16.0), (5.333333333333334, 'landing', 19.0), (11.333333333333334, 'down', 10.0)]
    >>> float(path.Q_max), float(path.cycle().period), float(path.overflow)
    (19.0, 16.0, 0.0)
    """  # noqa: E501
    if pending not in PENDING:
        raise unknown("pending", pending, PENDING)
    for name, room in (("max_events", max_events), ("max_pending", max_pending)):
        if room is not None and not (isinstance(room, int) and room >= 2):
            raise refuse(name, room, "a whole number of at least 2")
    setup = checked(
        ts,
        P,
        pending,
        C=C,
        Q0=Q0,
        mu=mu,
        workers=workers,
        theta_h=theta_h,
        theta_l=theta_l,
        step=step,
        tau=tau,
        stop_delay=stop_delay,
        hold=hold,
        min_workers=min_workers,
        max_workers=max_workers,
    )
    pieces = setup.P.shape[0]
    if any(isinstance(x, Tracer) for x in setup):
        return _traced(setup, pending, max_events or 256 + 4 * pieces, max_pending)
    room = max_events or 1 << max(8, (4 * pieces).bit_length())
    while True:
        path, short = _follow(setup, pending, room, max_pending)
        if not bool(short) and bool(path.complete):
            return path
        if bool(short):
            max_pending *= 4
        elif max_events is not None or room > MOST_EVENTS + 32 * pieces:
            raise refuse("max_events", room, "more: the end of the run was not reached")
        else:
            room *= 8


@eqx.filter_jit
def _follow(setup: Setup, pending: str, room: int, max_pending: int) -> tuple[Run, Array]:
    """The path, complete or not, and whether there were more orders on their way than room for them."""
    record, margins, short = solve(setup, pending, room, max_pending)
    final = jax.tree.map(lambda x: x[-1], record.totals)
    fixed = jax.lax.stop_gradient(record.level)
    path = Run(
        time=record.time,
        kind=record.kind,
        level=record.level,
        workers=record.workers,
        pending=record.pending,
        ordered=record.ordered,
        overflow=final.overflow,
        starved=final.starved,
        worker_seconds=final.worker_seconds,
        starting_seconds=final.starting_seconds,
        Q_max=record.level[jnp.argmax(fixed)],
        Q_min=record.level[jnp.argmin(fixed)],
        graze=margins.graze,
        tie=margins.tie,
        slowest=margins.slowest,
        complete=record.kind[-1] == _END,
        C=setup.C,
        record=record,
    )
    return path, short


@eqx.filter_jit
def _traced(setup: Setup, pending: str, room: int, max_pending: int) -> Run:
    """The path where values are not known while it is traced: what cannot be used fails when it runs."""
    setup = at_run_time(setup, pending)
    path, short = _follow(setup, pending, room, max_pending)
    full = jnp.where(short, 1, 0)
    wanted = [f"max_events must be more than {room}.", f"max_pending must be more than {max_pending}."]
    return eqx.branched_error_if(path, short | ~path.complete, full, wanted)


@eqx.filter_jit
def _between(record: Record, times: Array) -> Level:
    """From the last event before each time along the straight line."""
    i = jnp.clip(jnp.searchsorted(record.time, times, side="right") - 1, 0, record.time.shape[0] - 1)
    now = jax.tree.map(lambda x: x[i], record)
    h = times - now.time
    totals = Totals(
        now.totals.overflow + jnp.where(now.mode == 1, now.net * h, 0.0),
        now.totals.starved + jnp.where(now.mode == -1, -now.net * h, 0.0),
        now.totals.worker_seconds + now.workers * h,
        now.totals.starting_seconds + now.starting * h,
    )
    return Level(now.level + jnp.where(now.mode == 0, now.net, 0.0) * h, now.workers, totals)


@eqx.filter_jit
def _turn(path: Run, longest: int, rtol: float) -> Cycle:
    """The shortest run of events that ends the path and repeats the one before it."""
    last = jnp.argmax(path.kind == _END) - 1
    fixed = jax.lax.stop_gradient((path.level, path.workers, jnp.diff(path.time, prepend=path.time[:1])))
    scales = jax.lax.stop_gradient((path.C, path.workers.max(), path.time[-1] - path.time[0]))
    back = jnp.arange(longest)

    def repeats(m: Array) -> Array:
        here, before = last - back, last - back - m
        same = path.kind[here] == path.kind[before]
        for x, scale in zip(fixed, scales, strict=True):
            same &= jnp.abs(x[here] - x[before]) <= rtol * scale
        turn = fixed[0][here]
        moves = jnp.where(back < m, turn, -jnp.inf).max() > jnp.where(back < m, turn, jnp.inf).min()
        return (same | (back >= m)).all() & moves & (last - 2 * m >= 0)

    found = jax.lax.map(repeats, jnp.arange(1, longest + 1))
    exists, m = found.any(), jnp.argmax(found) + 1
    turn = jnp.where(back < m, fixed[0][last - back], fixed[0][last])
    peak, trough = path.level[last - jnp.argmax(turn)], path.level[last - jnp.argmin(turn)]
    still = path.level[last + 1]
    return Cycle(
        exists,
        jnp.where(exists, path.time[last] - path.time[last - m], jnp.inf),
        jnp.where(exists, peak - trough, 0.0),
        jnp.where(exists, peak, still),
        jnp.where(exists, trough, still),
        jnp.where(exists, m, 0),
    )
