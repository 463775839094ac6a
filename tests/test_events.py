"""The event-driven reference: against D17, D14, counts, differences, small steps, diffrax and the plain queue."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq import events
from fluidq._errors import InputError
from fluidq._events_setup import checked
from fluidq.formulas import buffer, control
from fluidq.queue import Queue
from tests.helpers import central

# Theory, V20: a gap of 3, tau = 3, the level rises at 1 and falls at 1/2.
PAPER = {"theta_h": 13.0, "theta_l": 10.0, "tau": 3.0, "fill": 1.0, "drain": 0.5}
FULL, EMPTY, UP, LANDING, LOOK = map(events.KINDS.index, ("full", "empty", "up", "landing", "look"))
MODES = ("count", "hold", "ignore")
NAMES = ("theta_h", "theta_l", "tau", "stop_delay", "hold", "C", "Q0", "mu", "step", "workers")
OUTPUTS = ("overflow", "starved", "worker_seconds", "starting_seconds", "Q_max", "Q_min", "level")


def _relay(theta_h, theta_l, tau, fill, drain, C=1e3, Q0=12.0, end=120.0, **more):
    """D17's plant: P = 2, and workers so that the level rises at `fill` and falls at `drain`."""
    workers, step = 2.0 - fill, fill + drain
    band = {"theta_h": theta_h, "theta_l": theta_l, "step": step, "tau": tau}
    return events.run(end, 2.0, C=C, Q0=Q0, mu=1.0, workers=workers, **band, **more)


def _scenario(seed):
    """Ten pieces of random inflow that drive an autoscaler over both boundaries, now and then."""
    rng = np.random.default_rng(seed)
    C = rng.uniform(5, 20)
    given_ = {
        "theta_h": C * rng.uniform(0.5, 1.1),
        "theta_l": C * rng.uniform(-0.05, 0.45),
        "tau": rng.uniform(0.2, 4),
        "stop_delay": rng.uniform(0, 4),
        "hold": rng.uniform(0.1, 3),
        "C": C,
        "Q0": C * rng.uniform(0, 1),
        "mu": 1.0,
        "step": rng.uniform(0.5, 2),
        "workers": 2.0,
    }
    return given_, np.concatenate([[0], np.cumsum(rng.exponential(5, 10))]), rng.exponential(2.5, 10)


def _outputs(path):
    return jnp.stack([path.level[-1] if name == "level" else getattr(path, name) for name in OUTPUTS])


def _kinds(path):
    return [event.kind for event in path.events]


# --- the limit cycle of D17 -------------------------------------------------------------------------------------------


def test_the_cycle_of_the_paper():
    path = _relay(**PAPER)
    cycle = path.cycle()
    assert bool(cycle.exists)
    assert not bool(path.grazing | path.tied)
    assert (float(path.Q_max), float(path.Q_min)) == (16.0, 8.5)
    assert (float(cycle.peak), float(cycle.trough)) == (16.0, 8.5)
    assert float(cycle.amplitude) == 7.5
    assert float(cycle.period) == pytest.approx(22.5, rel=1e-14)
    assert int(cycle.events) == 4
    assert _kinds(path)[:5] == ["start", "up", "landing", "down", "landing"]
    assert float(path.overflow) == float(path.starved) == 0.0


def _measured(v):
    """Highest and lowest level, swing and period of the simulated cycle, by theta_h, theta_l, tau, fill, drain."""
    path = _relay(*v, max_events=512)
    cycle = path.cycle()
    return jnp.stack([path.Q_max, path.Q_min, cycle.amplitude, cycle.period, cycle.peak, cycle.trough])


def _formulas(v):
    theta_h, theta_l, tau, fill, drain = v
    peak = control.cycle_peak(theta_h=theta_h, fill=fill, tau=tau)
    trough = control.cycle_trough(theta_l=theta_l, drain=drain, tau=tau)
    both = dict(zip(PAPER, v, strict=True))
    return jnp.stack([peak, trough, control.cycle_amplitude(**both), control.cycle_period(**both), peak, trough])


@pytest.fixture(scope="module")
def cycle_slopes():
    return {
        "forward": jax.jit(jax.jacfwd(_measured)),
        "reverse": jax.jit(jax.jacrev(_measured)),
        "analytic": jax.jit(jax.jacfwd(_formulas)),
    }


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_derivatives_of_the_cycle_are_the_analytic_ones(mode, cycle_slopes):
    v = jnp.array(list(PAPER.values()))
    slopes = cycle_slopes[mode](v)
    np.testing.assert_allclose(slopes, cycle_slopes["analytic"](v), rtol=1e-12, atol=1e-12)
    fill, drain = PAPER["fill"], PAPER["drain"]
    assert float(slopes[0, 0]) == 1.0  # dQ_max / d theta_h
    assert float(slopes[2, 2]) == pytest.approx(fill + drain)  # amplitude by tau
    assert float(slopes[3, 2]) == pytest.approx((fill + drain) ** 2 / (fill * drain))  # period by tau
    np.testing.assert_allclose(jax.jit(_measured)(v), _formulas(v), rtol=1e-13)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 3.5), st.floats(0.1, 1.9), st.floats(0.2, 3), st.floats(1.2, 4.0), st.booleans())
def test_derivatives_of_any_cycle(cycle_slopes, tau, fill, drain, gap, reverse):
    if float(control.cycle_period(theta_h=11 + gap, theta_l=11.0, fill=fill, drain=drain, tau=tau)) > 45:
        return  # two turns and the way there do not fit into 120 s
    v = jnp.array([11.0 + gap, 11.0, tau, fill, drain])
    slopes = cycle_slopes["reverse" if reverse else "forward"](v)
    np.testing.assert_allclose(slopes, cycle_slopes["analytic"](v), rtol=1e-9, atol=1e-9)


def test_a_start_outside_the_band_swings_once_further():
    """D17: filling, started above theta_h, the first peak is Q0 + u tau; then the cycle."""
    path = _relay(**PAPER, Q0=20.0)
    assert float(path.Q_max) == 23.0
    assert path.events[0].ordered == pytest.approx(1.5)
    assert float(path.cycle().peak) == 16.0
    assert float(jax.grad(lambda Q0: _relay(**PAPER, Q0=Q0).Q_max)(20.0)) == 1.0


def test_a_cycle_that_spills_has_its_peak_at_the_capacity():
    """Each turn loses theta_h + u tau - C, and the period is shorter by the time that the level does not fall."""
    C, lost = 15.0, 1.0

    def measured(v):
        path = _relay(**{**PAPER, "theta_h": v[1]}, C=v[0], end=150.0)
        cycle = path.cycle()
        return jnp.stack([cycle.amplitude, cycle.period, path.overflow])

    v = jnp.array([C, 13.0])
    amplitude, period, overflow = measured(v)
    assert float(amplitude) == C - 8.5
    assert float(period) == pytest.approx(22.5 - lost / 0.5, rel=1e-14)
    turns = round(float(overflow) / lost)
    assert turns == 8
    assert float(overflow) == pytest.approx(turns * lost, rel=1e-12)
    np.testing.assert_allclose(jax.jacfwd(measured)(v), [[1, 0], [2, 1], [-turns, turns]], atol=1e-12)


def test_no_cycle_is_said_and_not_guessed():
    rest = events.run(50.0, 1.0, C=10.0, Q0=5.0, mu=1.0, workers=1.0, theta_h=8.0, theta_l=2.0)
    once = _relay(**PAPER, end=12.0)
    even = events.run(np.arange(9) * 10.0, [1.0] * 8, C=10.0, Q0=5.0, mu=1.0, workers=1.0)  # edges, but at rest
    wider = events.run(np.cumsum(1.2 ** np.arange(13)), [1.0, 0.0] * 6, C=50.0, Q0=25.0, mu=0.5, workers=1.0)
    for path in (rest, once, even, wider):
        cycle = path.cycle()
        assert not bool(cycle.exists)
        assert (float(cycle.period), float(cycle.amplitude)) == (np.inf, 0.0)
        assert float(cycle.peak) == float(cycle.trough) == float(path.level[-1])


def test_a_cycle_of_several_orders_is_found():
    """Waiting for each order, the autoscaler climbs and descends in steps; the turn that repeats has many events."""
    path = events.run(
        3000.0, 4.0, C=200.0, Q0=50.0, mu=1.0, workers=2.0, theta_h=60.0, theta_l=40.0, step=1.5, tau=6.0,
        pending="hold", hold=1.0, max_workers=20.0,
    )  # fmt: skip
    cycle = path.cycle()
    assert bool(cycle.exists)
    assert int(cycle.events) > 6
    late = path.time > 3000.0 - 2 * cycle.period
    level = np.asarray(path.at(3000.0 - 0.7 * float(cycle.period)).level)
    assert level == pytest.approx(float(path.at(3000.0 - 1.7 * float(cycle.period)).level), rel=1e-9)
    assert float(cycle.peak) == pytest.approx(float(path.level[late].max()))


# --- the shock of D14 -------------------------------------------------------------------------------------------------


def _shock_closed(v):
    delta, tau, C, Q0 = v
    hit = buffer.time_to_boundary(delta=delta, C=C, Q0=Q0)
    lost = buffer.lost_bytes(delta=delta, tau=tau, C=C, Q0=Q0)
    return jnp.stack([hit, lost, jnp.where(delta > 0, C, 0.0)])


@jax.jit
def _shock_by_events(v):
    def measured(v):
        delta, tau, C, Q0 = v
        path = events.run(tau, 5.34 + delta, C=C, Q0=Q0, mu=5.34, workers=1.0, max_events=8)
        hit = path.time[jnp.argmax((path.kind == FULL) | (path.kind == EMPTY))]
        return jnp.stack([hit, path.overflow + path.starved, path.level[-1]])

    return measured(v), jax.jacfwd(measured)(v), jax.jacrev(measured)(v)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_hit_time_and_lost_bytes_of_a_shock_with_their_derivatives(sign):
    """A mix step against a fixed fleet until tau: hit times, lost bytes, and both gradients, forward and reverse."""

    v = jnp.array([sign * 2.67, 88.0, 150.0, 75.0])
    value, forward, reverse = _shock_by_events(v)
    np.testing.assert_allclose(value, _shock_closed(v), rtol=1e-12)
    for slope in (forward, reverse):
        np.testing.assert_allclose(slope, jax.jacfwd(_shock_closed)(v), rtol=1e-9, atol=1e-12)


def test_an_order_that_lands_ends_the_shock():
    """The surplus is seen at theta_h; the loss is what flows in from C on until tau after that."""

    def loss(v):
        theta_h, tau, C, Q0, delta = v
        path = events.run(
            200.0, 5.0, C=C, Q0=Q0, mu=1.0, workers=5.0 - delta, theta_h=theta_h, theta_l=1.0, step=delta, tau=tau
        )
        return path.overflow

    v = jnp.array([90.0, 40.0, 150.0, 75.0, 2.5])  # 15 B to the threshold, 60 B of room beyond, 100 B flow in
    assert float(loss(v)) == pytest.approx(40.0)
    assert float(loss(v)) == pytest.approx(float(buffer.lost_bytes(delta=2.5, tau=40.0 + 6.0, C=150.0, Q0=75.0)))
    np.testing.assert_allclose(jax.grad(loss)(v), [1, 2.5, -1, 0, 40], rtol=1e-9, atol=1e-12)


# --- counts and differences -------------------------------------------------------------------------------------------


def test_lost_by_capacity_is_minus_the_busy_periods_with_an_overflow():
    """Infinitesimal perturbation analysis, counted from the event list."""
    rng = np.random.default_rng(3)
    ts = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0, 3000))])
    P = rng.exponential(1.0, 3000)

    def lost(C):
        return events.run(ts, P, C=C, Q0=2.0, mu=1.0, workers=1.0, max_events=8192).overflow

    path = events.run(ts, P, C=5.0, Q0=2.0, mu=1.0, workers=1.0)
    count, spilled = 0, False
    for kind in _kinds(path):
        count += kind == "full" and not spilled
        spilled = kind == "full" or (spilled and kind != "empty")
    assert count > 20
    assert float(jax.grad(lost)(5.0)) == pytest.approx(-count, abs=1e-9)
    h = 1e-6
    assert float(lost(5.0 + h) - lost(5.0 - h)) / (2 * h) == pytest.approx(-count, abs=1e-3)


@pytest.fixture(scope="module")
def slopes():
    """By pending mode: outputs as a function of NAMES, the edges and the inflow; their derivatives, both ways."""

    def of(mode):
        def outputs(x):
            v, ts, P = jnp.split(x, [len(NAMES), len(NAMES) + 11])
            return _outputs(events.run(ts, P, pending=mode, max_events=128, **dict(zip(NAMES, v, strict=True))))

        def slopes(x, weights, along):
            cost = lambda x: weights @ outputs(x)  # noqa: E731
            return jax.grad(cost)(x), jax.jvp(cost, (x,), (along,))[1]

        return jax.jit(outputs), jax.jit(slopes)

    return {mode: of(mode) for mode in MODES}


def _clear_of_kinks(mode, seeds, least=1e-3):
    """Scenarios whose choices are all clear: there the path-wise derivative exists."""
    for seed in seeds:
        given_, ts, P = _scenario(seed)
        path = events.run(ts, P, pending=mode, **given_)
        if min(float(path.graze), float(path.tie), float(path.slowest)) > least:
            yield seed, given_, ts, P, path


@pytest.mark.parametrize("mode", MODES)
def test_all_derivatives_are_those_of_the_outputs_themselves(mode, slopes):
    """Central differences by every number, edge and rate; forward and reverse mode agree."""
    outputs, both = slopes[mode]
    rng, seen = np.random.default_rng(0), 0
    for _, given_, ts, P, path in _clear_of_kinks(mode, range(14)):
        x = np.concatenate([[given_[name] for name in NAMES], ts, P])
        np.testing.assert_allclose(outputs(x), _outputs(path), rtol=1e-12, atol=1e-12)
        weights, along = rng.normal(size=len(OUTPUTS)), rng.normal(size=x.size)
        reverse, forward = both(x, weights, along)
        assert float(forward) == pytest.approx(float(reverse @ along), rel=1e-10, abs=1e-10)
        wanted = central(lambda x, w=weights: w @ outputs(x), x)
        np.testing.assert_allclose(reverse, wanted, rtol=1e-5, atol=2e-6)
        seen += len(set(_kinds(path)) & {"up", "down", "full", "empty", "landing"})
    assert seen > 20


# --- oracles ----------------------------------------------------------------------------------------------------------


def _small_steps(given_, ts, P, mode, h):
    """An oracle that knows no event times: move, compare, order; orders in a list."""
    g = given_
    level, workers, orders, relay, look = g["Q0"], g["workers"], [], 0, 0.0
    overflow = starved = worker_seconds = 0.0
    levels, ordered = [level], []
    before = None
    steps = round(ts[-1] / h)
    inflow = P[np.minimum(np.searchsorted(ts, (np.arange(steps) + 0.5) * h, side="right") - 1, len(P) - 1)].tolist()
    for i in range(steps):
        t = i * h
        while orders and min(orders)[0] <= t + 1e-12:
            order = min(orders)
            orders.remove(order)
            workers += order[1]
        # An order is given by a crossing, or by a look (at the start, or when a hold ends) at a level beyond.
        looks = look is not None and t >= look - 1e-12
        waits = look is not None and not looks
        if looks:
            look = None
        coming = sum(size for _, size in orders)
        up = level >= g["theta_h"] and (looks or before < g["theta_h"])
        down = level <= g["theta_l"] and (looks or before > g["theta_l"])
        size = g["step"] if up else -min(g["step"], workers + coming) if down else 0.0
        before = level
        if not waits and abs(size) > 1e-9 and not (mode == "count" and relay == np.sign(size)):
            lands = t + (g["tau"] if size > 0 else g["stop_delay"])
            orders.append((lands, size))
            relay = np.sign(size)
            ordered.append((t, size))
            if mode == "hold":
                look = lands + g["hold"]
        free = level + (inflow[i] - g["mu"] * workers) * h
        level = min(max(free, 0.0), g["C"])
        overflow += max(free - g["C"], 0.0)
        starved += max(-free, 0.0)
        worker_seconds += workers * h
        levels.append(level)
    return np.array(levels), ordered, overflow, starved, worker_seconds


@pytest.mark.parametrize("mode", MODES)
def test_small_explicit_steps_come_to_the_same_path(mode):
    h, compared = 2e-3, 0
    for seed, given_, ts, P, path in _clear_of_kinks(mode, range(9), least=0.03):
        levels, ordered, *totals = _small_steps(given_, ts, P, mode, h)
        moves = [(event.time, event.ordered) for event in path.events if abs(event.ordered) > 1e-9]
        assert len(moves) == len(ordered), seed
        np.testing.assert_allclose(np.ravel(moves), np.ravel(ordered), atol=0.1, err_msg=str(seed))
        times = np.minimum(np.arange(len(levels)) * h, ts[-1])
        np.testing.assert_allclose(np.interp(times, path.time, path.level), levels, atol=0.15, err_msg=str(seed))
        for name, total in zip(("overflow", "starved", "worker_seconds"), totals, strict=True):
            assert float(getattr(path, name)) == pytest.approx(total, abs=0.3), (seed, name)
        compared += len(ordered)
    assert compared > 8


def _by_queue(v, ts, P):
    last = Queue(v[0], v[1]).path(ts, P, v[2]).final
    return jnp.stack([last.overflow, last.underflow, last.level])


def _without_autoscaler(v, ts, P):
    path = events.run(ts, P, C=v[0], Q0=v[1], mu=v[2] / 3, workers=3.0, max_events=256)
    return jnp.stack([path.overflow, path.starved, path.level[-1]])


@jax.jit
def _queue_at(ts, P, A, C, Q0, times):
    queue = Queue(C, Q0).path(ts, P, A)
    return queue.at(times), queue.knots, (queue.first_full, queue.first_empty)


_slopes_by_queue, _slopes_by_events = (jax.jit(jax.jacrev(f, (0, 1, 2))) for f in (_by_queue, _without_autoscaler))


@pytest.mark.parametrize("seed", range(4))
def test_without_an_autoscaler_it_is_the_plain_queue(seed):
    """The exact reflected path of `fluidq.queue`: level and losses at every knot, and their derivatives."""
    rng = np.random.default_rng(seed)
    ts = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0, 60))])
    P = rng.exponential(1.0, 60)
    C, Q0, A = 1.5, 0.4, 0.9
    path = events.run(ts, P, C=C, Q0=Q0, mu=0.3, workers=3.0)
    times = np.concatenate([path.time, ts[-1] * np.linspace(0, 1, 100), (ts[1:] + ts[:-1]) / 2])
    theirs, knots, firsts = _queue_at(ts, P, A, C, Q0, times)
    ours = path.at(times)
    np.testing.assert_allclose(ours.level, theirs.level, atol=1e-12)
    np.testing.assert_allclose(ours.totals.overflow, theirs.overflow, atol=1e-11)
    np.testing.assert_allclose(ours.totals.starved, theirs.underflow, atol=1e-11)
    gaps = np.abs(np.asarray(path.time)[None, :] - np.asarray(knots)[:, None]).min(axis=1)
    assert gaps.max() < 1e-11  # every bend of the queue is an event
    for kind, first in zip(("full", "empty"), firsts, strict=True):
        assert next(event.time for event in path.events if event.kind == kind) == pytest.approx(float(first), rel=1e-12)
    at = (jnp.array([C, Q0, A]), ts, P)
    for a, b in zip(_slopes_by_queue(*at), _slopes_by_events(*at), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-10)


# Legs of constant rate: (rate of the level, rate of what is counted, where it ends, which crossing orders).
TO_HIGH, TO_LOW, TO_FULL, TO_EMPTY, LANDS, ENDS = range(6)
LEGS = {
    "cycle": [(1, 0, TO_HIGH, 1), (1, 0, LANDS, 0), (-0.5, 0, TO_LOW, 1), (-0.5, 0, LANDS, 0), (1, 0, TO_HIGH, 0)],
    "spill": [(2, 0, TO_HIGH, 1), (2, 0, TO_FULL, 0), (0, 2, LANDS, 0), (-0.25, 0, ENDS, 0), (0, 0, ENDS, 0)],
    "drained": [(-1.5, 0, TO_LOW, 1), (-1.5, 0, TO_EMPTY, 0), (0, 1.5, LANDS, 0), (0.5, 0, ENDS, 0), (0, 0, ENDS, 0)],
}


@jax.jit
def _by_diffrax(legs, v):
    """Times and levels at the ends of the legs, and their derivatives by v."""
    return _solve_legs(legs, v), jax.jacfwd(_solve_legs, 1)(legs, v)


def _solve_legs(legs, v):
    """Each leg one solve, to an event that diffrax locates or to a time."""
    theta_h, theta_l, tau, C, Q0 = v

    def leg(carry, row):
        t, y, ordered = carry
        rate, counted, until, orders = row
        target = jnp.stack([theta_h, theta_l, C, 0.0 * C, C, C])[until.astype(int)]
        to_level = until < LANDS
        end = jnp.where(to_level, t + 200.0, jnp.where(until == LANDS, ordered + tau, 40.0))
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: args),
            diffrax.Tsit5(),
            t,
            end,
            None,
            y,
            jnp.stack([rate, counted]),
            stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
            event=diffrax.Event(
                lambda t, y, args, **_: jnp.where(to_level, (y[0] - target) * jnp.sign(rate), -1.0),
                optx.Newton(1e-10, 1e-10),
                direction=True,
            ),
            adjoint=diffrax.ForwardMode(),
        )
        t, y = sol.ts[-1], sol.ys[-1]
        return (t, y, jnp.where(orders > 0, t, ordered)), (t, y)

    start = (0.0 * C, jnp.stack([Q0, 0.0 * Q0]), 0.0 * C)
    return jax.lax.scan(leg, start, legs)[1]


def _read(case, t, y):
    if case == "cycle":
        return jnp.stack([y[1, 0], y[3, 0], t[4]])
    return jnp.stack([y[-1, 1], y[-1, 0], t[2]])


def _by_events(case, v):
    theta_h, theta_l, tau, C, Q0 = v
    given_ = {"C": C, "Q0": Q0, "mu": 1.0, "theta_h": theta_h, "theta_l": theta_l, "tau": tau, "max_events": 32}
    if case == "cycle":
        path = events.run(60.0, 2.0, workers=1.0, step=1.5, **given_)
        second = jnp.nonzero(path.kind == UP, size=2)[0][1]
        return jnp.stack([path.Q_max, path.Q_min, path.time[second]])
    if case == "spill":
        path = events.run(40.0, 3.0, workers=1.0, step=2.25, **given_)
        total = path.overflow
    else:
        path = events.run(40.0, 3.0, workers=4.5, step=2.0, **given_)
        total = path.starved
    lands = path.time[jnp.argmax(path.kind == LANDING)]
    return jnp.stack([total, path.level[-1], lands])


@pytest.mark.parametrize(
    ("case", "v"),
    [
        ("cycle", [13.0, 10.0, 3.0, 50.0, 12.0]),
        ("spill", [13.0, 2.0, 6.0, 20.0, 12.0]),
        ("drained", [30.0, 10.0, 9.0, 60.0, 22.0]),
    ],
)
def test_diffrax_with_event_location_finds_the_same(case, v):
    v = jnp.array(v)
    ode, ode_slope = (_read(case, *found) for found in _by_diffrax(jnp.array(LEGS[case], float), v))
    np.testing.assert_allclose(ode, _by_events(case, v), rtol=1e-9, atol=1e-9)
    exact = jax.jit(jax.jacrev(lambda v: _by_events(case, v)))(v)
    np.testing.assert_allclose(ode_slope, exact, rtol=1e-6, atol=1e-9)
    assert np.abs(exact).sum(axis=0)[[1, 2] if case == "drained" else [0, 2]].min() > 0


# --- the laws of the autoscaler ---------------------------------------------------------------------------------------

BAND = {"C": 100.0, "Q0": 50.0, "mu": 1.0, "workers": 1.0, "theta_h": 60.0, "theta_l": 40.0, "tau": 5.0}


def _moves(path):
    return [(event.kind, event.time, event.ordered) for event in path.events if event.ordered]


def test_holding_waits_then_looks_again():
    """Surplus 2: theta_h at 5 s, an order of 1 lands at 10 s, is looked at 2 s later, and is not enough."""
    path = events.run(30.0, 3.0, **BAND, pending="hold", hold=2.0)
    assert _moves(path) == [("up", 5.0, 1.0), ("look", 12.0, 1.0), ("look", 19.0, 1.0), ("look", 26.0, 1.0)]
    assert float(path.workers[-1]) == 4.0  # 26 + 5 s is after the end
    slope = jax.jacfwd(lambda hold: events.run(30.0, 3.0, **BAND, pending="hold", hold=hold, max_events=256).time)(2.0)
    looks = np.asarray(path.kind) == LOOK
    assert np.asarray(slope)[looks].tolist() == [1.0, 2.0, 3.0]


def test_counting_gives_one_order_until_the_other_threshold_answers():
    path = events.run(40.0, 3.0, **BAND)
    assert _moves(path) == [("up", 5.0, 1.0)]
    # up, then down below theta_h but not to theta_l, then up again: counted, the first order stands for both
    ts, P = [0.0, 12.0, 20.0, 60.0], [3.0, 0.0, 4.0]
    counted, blind = (events.run(ts, P, **BAND, pending=mode) for mode in ("count", "ignore"))
    assert [kind for kind, *_ in _moves(counted)] == ["up"]
    assert [kind for kind, *_ in _moves(blind)] == ["up", "up"]


def test_orders_cross_while_others_are_on_their_way():
    """A lead time longer than the swings: several orders at once, each lands tau after its own crossing."""
    ts = np.concatenate([[0.0], np.arange(5.0, 66.0, 10.0)])
    P = np.array([8.0, 0.0] * 3 + [8.0])
    path = events.run(ts, P, **{**BAND, "tau": 25.0, "workers": 4.0})
    orders = [(event.time, event.ordered) for event in path.events if event.ordered]
    landings = [(event.time, event.workers) for event in path.events if event.kind == "landing"]
    assert len(orders) > len(landings) + 1 > 4
    sizes = np.array([size for _, size in orders])
    assert sizes.tolist() == [1.0, -1.0] * (len(sizes) // 2) + [1.0] * (len(sizes) % 2)
    np.testing.assert_allclose([t for t, _ in landings], np.array([t for t, _ in orders])[: len(landings)] + 25.0)
    assert [workers for _, workers in landings] == (4.0 + np.cumsum(sizes[: len(landings)])).tolist()
    assert float(path.pending[-1]) == sizes[len(landings) :].sum()


def test_limits_trim_an_order_and_withhold_an_empty_one():
    trimmed = events.run(40.0, 3.0, **BAND, pending="hold", step=1.5, max_workers=3.0)
    assert [size for *_, size in _moves(trimmed)] == [1.5, 0.5]
    floor = events.run(80.0, 0.5, **BAND, min_workers=1.0)
    assert _moves(floor) == []
    none = events.run(60.0, 0.0, **{**BAND, "tau": 1.0}, step=4.0)
    assert [size for *_, size in _moves(none)] == [-1.0]
    assert float(none.workers[-1]) == 0.0
    ts, P = [0.0, 12.0, 20.0, 60.0], [6.0, 0.0, 8.0]  # over theta_h twice before the first order lands
    for limit, orders in ((5.5, [1.0, 0.5]), (5.0, [1.0])):
        given_ = {**BAND, "tau": 50.0, "workers": 4.0}
        path = events.run(ts, P, **given_, pending="ignore", max_workers=limit)
        assert [size for *_, size in _moves(path)] == orders


def test_a_stop_may_act_at_once():
    ts, P = [0.0, 20.0, 80.0], [3.0, 0.5]
    late, at_once = (events.run(ts, P, **BAND, step=2.0, stop_delay=delay) for delay in (None, 0.0))
    down = next(event for event in at_once.events if event.kind == "down")
    assert float(at_once.at(down.time).workers) == 1.0
    assert float(late.at(down.time).workers) == 3.0
    assert float(late.at(down.time + 5.0).workers) == 1.0
    assert float(late.worker_seconds - at_once.worker_seconds) == pytest.approx(2.0 * 5.0)
    assert float(at_once.starting_seconds) == pytest.approx(2.0 * 5.0)


def test_a_lead_time_longer_than_the_horizon_is_legal_and_nobody_comes():
    path = events.run(40.0, 3.0, **{**BAND, "tau": 88.0})
    alone = events.run(40.0, 3.0, C=100.0, Q0=50.0, mu=1.0, workers=1.0)
    assert not bool(path.landed)
    assert float(path.pending[-1]) == 1.0
    assert float(path.overflow) == float(alone.overflow) == 30.0
    assert float(path.starting_seconds) == 35.0
    assert float(jax.grad(lambda tau: events.run(40.0, 3.0, **{**BAND, "tau": tau}).overflow)(88.0)) == 0.0


def test_a_threshold_outside_the_buffer_is_never_met():
    path = events.run(100.0, [3.0], **{**BAND, "theta_h": 101.0, "theta_l": -1.0})
    assert _kinds(path) == ["start", "full", "end"]
    up_only = events.run([0.0, 50.0, 200.0], [3.0, 0.0], C=100.0, Q0=50.0, mu=1.0, workers=1.0, theta_h=60.0, tau=5.0)
    assert [kind for kind, *_ in _moves(up_only)] == ["up"]
    at_the_brim = events.run(100.0, 3.0, **{**BAND, "theta_h": 100.0})
    assert _kinds(at_the_brim)[:4] == ["start", "up", "full", "landing"]
    assert bool(at_the_brim.grazing)  # a little higher, and it is never met


def test_the_state_between_events_is_that_of_a_run_that_ends_there():
    given_, ts, P = _scenario(4)
    path = events.run(ts, P, pending="ignore", **given_)
    for t in (0.3 * ts[-1], ts[4] - 0.1, 0.9 * ts[-1]):
        short = events.run(np.minimum(ts, t), P, pending="ignore", **given_)  # pieces of no length follow
        now = path.at(t)
        assert float(now.level) == pytest.approx(float(short.level[-1]), abs=1e-12)
        for name in ("overflow", "starved", "worker_seconds", "starting_seconds"):
            assert float(getattr(now.totals, name)) == pytest.approx(float(getattr(short, name)), abs=1e-11), name


# --- where there is no derivative -------------------------------------------------------------------------------------


def _bump(theta_h, top=1.0, **changes):
    """Up by `top` from 50 in 10 s, down again, then a long surplus: an order at the top, or only much later."""
    given_ = {**BAND, "Q0": 50.0, "theta_h": theta_h, "tau": 1.0, **changes}
    return events.run([0.0, 10.0, 20.0, 60.0], [1.0 + top, 0.0, 1.5], **given_)


def test_a_grazed_threshold_is_reported_and_no_nan_comes_out():
    touch = _bump(60.0)
    assert bool(touch.grazing)
    assert _kinds(touch)[1] == "up"  # touched is met
    below, above = _bump(60.0 - 1e-6), _bump(60.0 + 1e-6)
    assert abs(float(below.worker_seconds - above.worker_seconds)) > 5  # it jumps
    for path in (below, above):
        assert float(path.graze) == pytest.approx(1e-6, rel=1e-6)
        assert not bool(path.grazing)
        assert bool(_bump(60.0 - 1e-9).grazing)
    slope = jax.grad(lambda theta_h: _bump(theta_h).worker_seconds)(60.0)
    assert np.isfinite(slope)
    assert float(slope) == pytest.approx(float(central(lambda v: _bump(v[0]).worker_seconds, [60.0 - 1e-3], 1e-6)[0]))


def test_a_level_that_falls_back_exactly_to_the_threshold_grazes_it_from_above():
    """Where every crossing counts, a dip below theta_h and back is one more order; a dip that stays above is none."""

    def dipped(theta_h):
        given_ = {**BAND, "theta_h": theta_h, "tau": 100.0}
        return events.run([0.0, 10.0, 20.0, 40.0], [3.0, 0.0, 3.0], **given_, pending="ignore")

    touch, below, above = (dipped(60.0 + shift) for shift in (0.0, -1e-6, 1e-6))
    assert [len(_moves(path)) for path in (touch, below, above)] == [1, 1, 2]
    assert bool(touch.grazing)
    assert float(below.graze) == pytest.approx(1e-6, rel=1e-6)
    assert float(above.graze) == pytest.approx(1e-6, rel=1e-6)


def test_what_an_order_brought_about_is_no_grazing():
    """With tau = 0 the level turns exactly at theta_h, by its own order: it can move, it cannot be missed."""
    path = _relay(**{**PAPER, "tau": 0.0})
    assert not bool(path.grazing | path.tied)
    assert float(path.Q_max) == 13.0
    assert float(path.cycle().period) == pytest.approx(9.0)


@pytest.mark.parametrize("mode", MODES)
def test_no_change_of_the_events_goes_unreported(mode):
    """Bisect every number to the point where the orders or the hits change: one of the margins is 0 there."""

    def signature(path):
        orders = [(np.sign(event.ordered)) for event in path.events if abs(event.ordered) > 1e-8]
        return orders, [event.kind for event in path.events if event.kind in ("full", "empty")]

    found = 0
    for seed in range(20):
        given_, ts, P = _scenario(seed)
        for name in NAMES:
            low, high = given_[name], given_[name] * 1.03
            if name in ("step", "workers") or (name == "C" and high < given_["Q0"]):
                continue  # those two reach the limits on the workers, which are no margin
            if name == "Q0" and high > given_["C"]:
                continue
            path = events.run(ts, P, pending=mode, **given_)
            first = signature(path)
            if signature(events.run(ts, P, pending=mode, **{**given_, name: high})) == first:
                assert not bool(path.grazing | path.tied)  # nor is there an alarm where nothing happens
                continue
            while low < (middle := (low + high) / 2) < high:
                same = signature(events.run(ts, P, pending=mode, **{**given_, name: middle})) == first
                low, high = (middle, high) if same else (low, middle)
            for value in (low, high):
                path = events.run(ts, P, pending=mode, **{**given_, name: value})
                assert bool(path.grazing | path.tied), (seed, name, value)
            found += 1
    assert found > 4


def test_ties_bend_the_path_and_are_reported_with_one_of_the_two_slopes():
    """The order lands exactly when the buffer is full: more delay spills, less does not."""

    def lost(tau):
        path = events.run(40.0, 3.0, **{**BAND, "tau": tau}, step=3.0)
        return path.overflow, path

    value, path = lost(20.0)
    assert float(value) == 0.0
    assert bool(path.tied)
    assert not bool(path.grazing)
    assert float(jax.grad(lambda tau: lost(tau)[0])(20.0)) == 0.0  # that of a level just inside
    assert float(jax.grad(lambda tau: lost(tau)[0])(20.0 + 1e-6)) == 2.0
    late = lost(20.0 + 1e-3)[1]
    assert float(late.tie) == pytest.approx(1e-3, rel=1e-6)
    assert not bool(late.tied)


def test_a_standing_level_under_balanced_flow_is_one_sided_in_the_rates():
    path = events.run([0.0, 20.0, 40.0], [0.0, 1.0], C=10.0, Q0=5.0, mu=1.0, workers=1.0)
    assert float(path.slowest) == 0.0
    assert bool(path.tied)
    assert not bool(path.grazing)


# --- input, transformations, room -------------------------------------------------------------------------------------

OK = {**BAND, "ts": [0.0, 10.0, 20.0], "P": [3.0, 0.0]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"C": 40.0}, ("Q0 is 50.0", "capacity C, 40 B")),
        ({"C": -1.0, "Q0": 0.0}, ("C is -1.0", ">= 0 B")),
        ({"C": np.inf}, ("C is inf", "finite")),
        ({"Q0": np.nan}, ("Q0 is nan",)),
        ({"P": [3.0, -1.0]}, ("P is -1.0", ">= 0 B/s")),
        ({"P": [3.0]}, ("shape of P is (1,)", "(2,)")),
        ({"P": np.nan}, ("P is nan",)),
        ({"mu": -1.0}, ("mu is -1.0", "per worker")),
        ({"mu": np.inf}, ("mu is inf",)),
        ({"workers": -1.0}, ("workers is -1.0", "from min_workers, 0,")),
        ({"workers": np.inf}, ("workers is inf",)),
        ({"workers": 5.0, "max_workers": 4.0}, ("workers is 5.0", "max_workers")),
        ({"theta_l": 60.0}, ("theta_l is 60.0", "below theta_h, 60 B")),
        ({"theta_h": np.nan}, ("theta_h is nan",)),
        ({"theta_h": np.inf}, ("theta_h is inf", "None")),
        ({"step": 0.0}, ("step is 0.0", "> 0")),
        ({"tau": -1.0}, ("tau is -1.0", ">= 0 s")),
        ({"tau": np.inf}, ("tau is inf", "finite")),
        ({"stop_delay": -1.0}, ("stop_delay is -1.0",)),
        ({"hold": -1.0}, ("hold is -1.0",)),
        ({"pending": "hold", "tau": 0.0}, ("hold is 0.0", "without end")),
        ({"pending": "hold", "stop_delay": 0.0}, ("hold is 0.0",)),
        ({"pending": "holds"}, ("unknown pending 'holds'", "did you mean 'hold'")),
        ({"min_workers": -1.0}, ("min_workers is -1.0",)),
        ({"ts": [0.0, 20.0, 10.0]}, ("ts is 10.0", "in order")),
        ({"ts": [5.0, 5.0], "P": 1.0}, ("the horizon is 0.0", "longer than 0 s")),
        ({"ts": 0.0, "P": 1.0}, ("the horizon is 0.0",)),
        ({"ts": [0.0], "P": 1.0}, ("shape of ts is (1,)",)),
        ({"max_events": 1}, ("max_events is 1",)),
        ({"max_events": 3}, ("max_events is 3", "the end")),
        ({"max_pending": 0}, ("max_pending is 0",)),
    ],
)
def test_bad_input_is_refused(change, words):
    given_ = {**OK, **change}
    with pytest.raises(InputError) as caught:
        events.run(given_.pop("ts"), given_.pop("P"), **given_)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tau": [1.0, 2.0]}, ("shape of tau is (2,)", "jax.vmap")),
        ({"C": "big"}, ("C is 'big'", "one number")),
        ({"ts": "soon"}, ("ts is 'soon'", "one number")),
        ({"ts": ["soon", "later"]}, ("ts is ['soon', 'later']", "numbers in one row")),
    ],
)
def test_other_types_are_refused_too(change, words):
    """Below the run-time types of the tests, where a user without them arrives."""
    more = {"step": 1.0, "stop_delay": None, "hold": 0.0, "min_workers": 0.0, "max_workers": None}
    given_ = {**OK, **more, **change}
    with pytest.raises(InputError) as caught:
        checked(given_.pop("ts"), given_.pop("P"), "count", **given_)
    for word in words:
        assert word in str(caught.value)


def test_bad_values_inside_transformations_fail_when_they_run():
    def overflow(Q0, **changes):
        return events.run(40.0, 3.0, **{**BAND, "Q0": Q0, **changes}).overflow

    with pytest.raises(Exception, match="Q0 must be a stock from 0 to the capacity C"):
        jax.block_until_ready(jax.jit(overflow)(101.0))
    with pytest.raises(InputError, match=r"theta_l is .*61.*; it must be a level below theta_h, 60 B"):
        jax.grad(lambda x: overflow(50.0, theta_l=x))(61.0)
    with pytest.raises(Exception, match="max_events must be more than 3"):
        jax.block_until_ready(jax.jit(lambda x: overflow(x, max_events=3))(50.0))
    with pytest.raises(InputError, match="tau is -1"):  # what is known is refused at once
        jax.jit(lambda x: overflow(x, tau=-1.0))(50.0)
    with pytest.raises(InputError, match=r"t is 41\.0"):
        events.run(40.0, 3.0, **BAND).at(41.0)


def test_room_grows_until_the_run_fits():
    many = _relay(**PAPER, end=2000.0)
    assert bool(many.complete)
    assert len(many.events) > 300
    assert float(many.cycle().period) == pytest.approx(22.5, rel=1e-9)
    ts, P = np.concatenate([[0.0], np.arange(1.0, 60.0, 2.0)]), np.array([8.0, 0.0] * 15)
    crowded = {**BAND, "tau": 58.0, "theta_h": 51.0, "theta_l": 49.0, "workers": 4.0}
    path = events.run(ts, P, **crowded)
    assert int((path.ordered != 0).sum()) > 20
    with pytest.raises(Exception, match="max_pending must be more than 8"):
        jax.block_until_ready(jax.jit(lambda C: events.run(ts, P, **{**crowded, "C": C}).overflow)(100.0))


def test_edges_and_a_horizon_in_any_number_type():
    a = events.run(40, 3, **{**BAND, "C": 100, "tau": 5})
    b = events.run(np.float32(40), np.array([3]), **{**BAND, "C": np.float64(100.0), "tau": jnp.array(5)})
    c = events.run([0, 40], [3], **BAND)
    for other in (b, c):
        np.testing.assert_array_equal(a.time, other.time)


def test_the_horizon_may_be_what_is_differentiated():
    """Full after 40 s, and from then on 1 B/s is lost."""
    for edges in (lambda end: end, lambda end: [0.0, end]):
        lost = jax.value_and_grad(lambda end, ts=edges: events.run(ts(end), 3.0, **BAND, max_events=16).overflow)
        value, slope = lost(60.0)
        assert float(value) == pytest.approx(20.0)
        assert float(slope) == pytest.approx(1.0)
