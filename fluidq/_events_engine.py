"""From event to event: the inner loop of `fluidq.events`, unchecked.

One step of the scan finds the next event among eight candidates, moves there along a straight line, and lets it act.
Which event comes next is a discrete choice; when it comes is a smooth formula, so derivatives pass through the times
and not through the choice. How close each choice was is kept as margins, because at a margin of 0 it has no derivative.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fluidq._events_setup import Setup
from fluidq._numerics import least, most, positive_part

PENDING = ("count", "hold", "ignore")
# At equal times the first of these acts first: a threshold that is touched has been met, and at a boundary nothing has
# spilled yet (the conventions of D17 and of `fluidq.queue`). "start" is the first look at the level.
KINDS = ("up", "down", "landing", "inflow", "look", "end", "full", "empty", "start")
UP, DOWN, LANDING, INFLOW, LOOK, END, FULL, EMPTY, START = range(len(KINDS))
NEVER = jnp.inf
NO_ORDER = 1e-9  # share of a step below which the room left by the limits is rounding


class Orders(NamedTuple):
    """Orders on their way; a free slot lands never and holds nothing."""

    lands: Float[Array, " slots"]
    size: Float[Array, " slots"]
    made: Float[Array, " slots"]


class Margins(NamedTuple):
    """How far every choice so far was from another one; see `fluidq.events.Run`."""

    graze: Float[Array, ""]
    tie: Float[Array, ""]
    slowest: Float[Array, ""]


class Totals(NamedTuple):
    """Integrals since the start."""

    overflow: Float[Array, "..."]
    starved: Float[Array, "..."]
    worker_seconds: Float[Array, "..."]
    starting_seconds: Float[Array, "..."]


class Record(NamedTuple):
    """The system just after an event.

    `pending` is what is on its way, `starting` the part of it that adds workers, `ordered` what this event ordered;
    `net` is P - mu n; `mode` is -1 standing empty, 1 standing full, 0 otherwise.
    """

    time: Float[Array, "..."]
    kind: Int[Array, "..."]
    level: Float[Array, "..."]
    workers: Float[Array, "..."]
    pending: Float[Array, "..."]
    starting: Float[Array, "..."]
    ordered: Float[Array, "..."]
    net: Float[Array, "..."]
    mode: Int[Array, "..."]
    totals: Totals


class _Memory(NamedTuple):
    """When things last happened, -NEVER before the first time: what the margins of later events are measured from."""

    meeting: Array  # a crossing or a hit
    flow: Array  # a change of the flows
    bend: Array  # a change of the flows while the level stood at a boundary
    landing: Array
    look: Array
    order: Array  # a crossing that gave an order in the present rise or fall


class _State(NamedTuple):
    t: Array
    level: Array
    workers: Array
    piece: Array
    mode: Array
    over: Array  # theta_h has been met and not been left again
    under: Array
    relay: Array  # direction of the last order, 0 before the first
    look: Array  # time of the next look; orders wait for it
    orders: Orders
    totals: Totals
    margins: Margins
    memory: _Memory
    slots_short: Array


def solve(setup: Setup, pending: str, max_events: int, max_pending: int) -> tuple[Record, Margins, Bool[Array, ""]]:
    """Records of `max_events` events (the end repeats), the margins, and whether an order found no free slot."""
    s = setup
    zero, one_never = jnp.zeros_like(s.C), jnp.full_like(s.C, NEVER)
    slots = jnp.zeros(max_pending)
    first = _State(
        t=s.ts[0],
        level=s.Q0,
        workers=s.workers,
        piece=jnp.array(0),
        mode=jnp.array(0),
        over=jnp.array(False),
        under=jnp.array(False),
        relay=jnp.array(0),
        look=s.ts[0],
        orders=Orders(slots + NEVER, slots, slots),
        totals=Totals(zero, zero, zero, zero),
        margins=Margins(one_never, one_never, one_never),
        memory=_Memory(*[-one_never] * 6),
        slots_short=jnp.array(False),
    )
    last, records = jax.lax.scan(lambda c, _: _advance(s, pending, c), first, length=max_events)
    return records, last.margins, last.slots_short


def _advance(s: Setup, pending: str, c: _State) -> tuple[_State, Record]:
    """To the next event, and through it."""
    end = s.ts[-1]
    net = s.P[c.piece] - s.mu * c.workers
    mode, rate = c.mode, jnp.where(c.mode == 0, net, 0.0)
    coming = c.orders.size.sum()
    waiting = jnp.isfinite(c.look)
    up_size = least(s.step, s.max_workers - (c.workers + coming))
    down_size = least(s.step, c.workers + coming - s.min_workers)
    may_up, may_down = up_size > NO_ORDER * s.step, down_size > NO_ORDER * s.step
    if pending == "count":
        may_up, may_down = may_up & (c.relay != 1), may_down & (c.relay != -1)
    armed_up, armed_down = may_up & ~waiting, may_down & ~waiting

    def meets(gap: Array, speed: Array, watched: Array) -> Array:
        """When a gap is closed at a speed, where that is before the end; divides only where it is."""
        reached = watched & (speed > 0) & (speed * (end - c.t) >= gap)
        gap = most(jnp.where(reached, gap, 0.0), 0.0)
        return jnp.where(reached, c.t + gap / jnp.where(reached, speed, 1.0), NEVER)

    slot = jnp.argmin(c.orders.lands)
    inside = jnp.array(True)
    last_piece = c.piece + 1 >= s.P.shape[0]
    times = jnp.stack(
        [
            meets(s.theta_h - c.level, rate, armed_up & ~c.over),
            meets(c.level - s.theta_l, -rate, armed_down & ~c.under),
            c.orders.lands[slot],
            jnp.where(last_piece, NEVER, s.ts[jnp.minimum(c.piece + 1, s.P.shape[0] - 1)]),
            c.look,
            end,
            meets(s.C - c.level, rate, inside),
            meets(c.level, -rate, inside),
        ]
    )
    kind = jnp.argmin(times)
    t = times[kind]
    dt = t - c.t

    # Along the line. At a threshold or boundary the level is that value, so that no rounding crosses it twice.
    level = most(least(c.level + rate * dt, s.C), jnp.zeros_like(s.C))
    for which, value in ((UP, s.theta_h), (DOWN, s.theta_l), (FULL, s.C), (EMPTY, jnp.zeros_like(s.C))):
        level = jnp.where(kind == which, value, level)
    totals = Totals(
        c.totals.overflow + jnp.where(mode == 1, net * dt, 0.0),
        c.totals.starved + jnp.where(mode == -1, -net * dt, 0.0),
        c.totals.worker_seconds + c.workers * dt,
        c.totals.starting_seconds + positive_part(c.orders.size).sum() * dt,
    )

    # What the event does.
    landing, looking = kind == LANDING, kind == LOOK
    here = jnp.arange(c.orders.lands.shape[0])
    landed = landing & (here == slot)
    made = c.orders.made[slot]
    workers = c.workers + jnp.where(landed, c.orders.size, 0.0).sum()
    piece = c.piece + (kind == INFLOW)
    go_up = (kind == UP) | (looking & may_up & (level >= s.theta_h))
    go_down = ((kind == DOWN) | (looking & may_down & (level <= s.theta_l))) & ~go_up
    ordered = jnp.where(go_up, up_size, 0.0) - jnp.where(go_down, down_size, 0.0)
    gives = go_up | go_down
    lands = t + jnp.where(go_up, s.tau, s.stop_delay)
    free = jnp.isinf(c.orders.lands)
    placed = gives & (here == jnp.argmax(free))
    orders = Orders(
        jnp.where(placed, lands, jnp.where(landed, NEVER, c.orders.lands)),
        jnp.where(placed, ordered, jnp.where(landed, 0.0, c.orders.size)),
        jnp.where(placed, t, c.orders.made),
    )
    look = jnp.where(looking, NEVER, c.look)
    if pending == "hold":
        look = jnp.where(gives, lands + s.hold, look)

    net_after = s.P[piece] - s.mu * workers
    mode_after = _standing(jnp.where(kind == FULL, 1, jnp.where(kind == EMPTY, -1, mode)), net_after)
    rate_after = jnp.where(mode_after == 0, net_after, 0.0)
    seen = _Seen(
        kind, t, level, rate, rate_after, net_after, net_after != net, made, armed_up, armed_down, may_up, may_down
    )
    margins, memory = _judge(*jax.lax.stop_gradient((s, c, seen)))
    after = _State(
        t=t,
        level=level,
        workers=workers,
        piece=piece,
        mode=mode_after,
        over=(c.over | (kind == UP) | looking) & (level >= s.theta_h),
        under=(c.under | (kind == DOWN) | looking) & (level <= s.theta_l),
        relay=jnp.where(go_up, 1, jnp.where(go_down, -1, c.relay)),
        look=look,
        orders=orders,
        totals=totals,
        margins=margins,
        memory=memory,
        slots_short=c.slots_short | (gives & ~free.any()),
    )
    kind = jnp.where(looking & (t == s.ts[0]), START, kind)
    starting = positive_part(orders.size).sum()
    return after, Record(t, kind, level, workers, orders.size.sum(), starting, ordered, net_after, mode_after, totals)


def _standing(mode: Array, net: Array) -> Array:
    """A level stands at a boundary for as long as the flow pushes it there; balanced, it is a level just inside."""
    return jnp.where((mode * net) <= 0, 0, mode)


class _Seen(NamedTuple):
    """An event as the margins need it: the slopes before and after, and what the autoscaler might have done."""

    kind: Array
    t: Array
    level: Array
    before: Array
    after: Array
    net: Array
    flows_change: Array
    made: Array
    armed_up: Array
    armed_down: Array
    may_up: Array
    may_down: Array


def _judge(s: Setup, c: _State, e: _Seen) -> tuple[Margins, _Memory]:
    """The margins after this event, and what those of the next ones are measured from.

    graze: where the level turns near a threshold that would have given an order, or just gave one, or would give the
    next one, a small change gives or takes an order; so does a look at a level that does not move outwards.
    tie: where a crossing or hit and a change of the flows come close in time, swapping them bends the path. What an
    order itself brought about is exempt.
    slowest: a slope near 0 moves the time of its crossing or hit far; at a boundary it decides on standing or leaving.
    """
    m = c.memory
    looking, landing, at_end = e.kind == LOOK, e.kind == LANDING, e.kind == END
    rises, falls = e.kind == UP, e.kind == DOWN
    crosses, hits = rises | falls, (e.kind == FULL) | (e.kind == EMPTY)

    fresh = jnp.isfinite(m.order) & ~(landing & (e.made >= m.order))
    top = (e.before > 0) & (e.after <= 0) & ((e.armed_up & ~c.over) | fresh) & ~at_end
    bottom = (e.before < 0) & (e.after >= 0) & ((e.armed_down & ~c.under) | fresh) & ~at_end
    top = top | (looking & e.may_up & (e.after <= 0)) | ((e.before < 0) & (e.after >= 0) & e.armed_up & c.over)
    bottom = (
        bottom | (looking & e.may_down & (e.after >= 0)) | ((e.before > 0) & (e.after <= 0) & e.armed_down & c.under)
    )
    above, below = jnp.abs(e.level - s.theta_h), jnp.abs(e.level - s.theta_l)
    # An order given at the boundary's own level: a little beyond, and it is never given.
    edge = jnp.where(rises, s.C - e.level, jnp.where(falls, e.level, NEVER))
    graze = _least(edge, jnp.where(top, above, NEVER), jnp.where(bottom, below, NEVER))

    change = e.flows_change | at_end  # for what is lost the end is a change of the flows
    own = landing & (e.made >= m.meeting)
    # A crossing or hit soon after a change; Q0 at 0 or C, the ends of its range, is no change.
    later = jnp.where(hits & (m.flow > s.ts[0]), e.t - m.flow, NEVER)
    # A look at a level that is just beyond and moves on outwards: a little less, and the order comes with the crossing.
    beyond = jnp.where(e.after > 0, e.level - s.theta_h, s.theta_l - e.level)
    outward = jnp.where(e.after > 0, e.may_up, e.may_down) & looking & (beyond >= 0)
    tie = _least(
        jnp.where(change & ~own, e.t - m.meeting, NEVER),
        _over(jnp.where(e.before > 0, s.C - e.level, e.level), jnp.abs(e.before), change),
        _over(s.theta_h - e.level, e.before, at_end & e.armed_up & ~c.over),
        _over(e.level - s.theta_l, -e.before, at_end & e.armed_down & ~c.under),
        jnp.where(crosses, e.t - jnp.maximum(m.flow, m.look), later),
        _over(beyond, jnp.abs(e.after), outward),
        jnp.where(e.flows_change, e.t - m.bend, NEVER),
        jnp.where(at_end, _least(e.t - m.landing, c.orders.lands.min() - e.t, e.t - m.look, c.look - e.t), NEVER),
    )

    stands = (e.flows_change & (c.mode != 0)) | (looking & ((e.level <= 0) | (e.level >= s.C)))
    slowest = jnp.where(crosses | hits, jnp.abs(e.before), jnp.where(stands, jnp.abs(e.net), NEVER))
    margins = Margins(*(jnp.minimum(x, y) for x, y in zip(c.margins, (graze, tie, slowest), strict=True)))
    turned = e.before * e.after <= 0
    memory = _Memory(
        meeting=jnp.where(crosses | hits, e.t, m.meeting),
        flow=jnp.where(e.flows_change, e.t, m.flow),
        bend=jnp.where(e.flows_change & (c.mode != 0), e.t, m.bend),
        landing=jnp.where(landing, e.t, m.landing),
        look=jnp.where(looking, e.t, m.look),
        order=jnp.where(crosses, e.t, jnp.where(turned, -NEVER, m.order)),
    )
    return margins, memory


def _least(*margins: Array) -> Array:
    return jnp.stack(margins).min()


def _over(gap: Array, speed: Array, where: Array) -> Array:
    """gap / speed where asked for and moving, else NEVER."""
    there = where & (speed > 0)
    return jnp.where(there, gap / jnp.where(there, speed, 1.0), NEVER)
