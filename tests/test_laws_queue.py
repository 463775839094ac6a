"""Laws that any buffer obeys, on random input: the plain queue and the event-driven one; and derivatives at edges.

`tests/test_queue.py` has the plain queue's conservation, complementarity and oracles; they are not repeated here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fluidq import events
from fluidq.queue import Queue, shock, shock_loss_by_simulation
from tests.helpers import central

PIECES, ROOM = 12, 512
ENGINES = ("queue", "pushed_back", "events")
MODES = ("count", "hold", "ignore")
TOTALS = ("overflow", "starved", "worker_seconds", "starting_seconds")

rates = st.lists(st.one_of(st.just(0.0), st.floats(0.001, 10)), min_size=PIECES, max_size=PIECES).map(np.array)
spans = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 5)), min_size=PIECES, max_size=PIECES).map(np.array)
shares = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.001, 0.999))
capacities = st.one_of(st.just(0.0), st.floats(0.1, 30))
law = settings(max_examples=40, deadline=None)


def _edges(spans):
    """Edges of at least 1 s in all."""
    return np.concatenate([[0.0], np.cumsum(spans)]) + np.concatenate([np.zeros(PIECES), [1.0]])


@jax.jit
def _by_events(ts, P, A, C, Q0):
    """Only P - A matters to a level: the events see it as an inflow against a fleet that takes 10."""
    path = events.run(ts, P - A + 10.0, C=C, Q0=Q0, mu=2.5, workers=4.0, max_events=ROOM)
    level = path.at(ts)
    zero = jnp.zeros_like(level.level)
    return jnp.stack([level.level, zero, level.totals.overflow, level.totals.starved])


def _by_queue(mode):
    @jax.jit
    def follow(ts, P, A, C, Q0):
        s = Queue(C, Q0, mode).path(ts, P, A).at(ts)
        return jnp.stack([s.level, s.backlog, s.overflow, s.underflow])

    return follow


FOLLOW = {"queue": _by_queue("lost"), "pushed_back": _by_queue("pushed_back"), "events": _by_events}


def _scaler(mode):
    """Any autoscaled run by its numbers: levels, workers and totals at the events, what happened, and the margins."""

    def follow(ts, P, v):
        path = events.run(ts, P, pending=mode, max_events=ROOM, **v)
        r = path.record
        return {
            "time": path.time,
            "kind": path.kind,
            "level": path.level,
            "workers": path.workers,
            "pending": path.pending,
            "margin": jnp.stack([path.graze, path.tie, path.slowest]).min(),
            **{name: getattr(r.totals, name) for name in TOTALS},
        }

    return follow


SCALED = {mode: jax.jit(_scaler(mode)) for mode in MODES}


def _autoscaled(seed):
    """Twelve pieces of inflow against an autoscaler with a band, and a buffer that spills and starves now and then."""
    rng = np.random.default_rng(seed)
    C = rng.uniform(8, 20)
    v = {
        "C": C,
        "Q0": C * rng.uniform(0.3, 0.6),
        "mu": 1.0,
        "workers": 3.0,
        "theta_h": C * rng.uniform(0.65, 0.9),
        "theta_l": C * rng.uniform(0.1, 0.25),
        "step": rng.uniform(0.5, 1.5),
        "tau": rng.uniform(0.2, 3),
        "stop_delay": rng.uniform(0.2, 3),
        "hold": rng.uniform(0.1, 2),
    }
    ts = np.concatenate([[0.0], np.cumsum(rng.exponential(4.0, PIECES))])
    return ts, np.minimum(rng.exponential(3.0, PIECES), 6.0), {name: np.float64(x) for name, x in v.items()}


# --- conservation and complementarity ---------------------------------------------------------------------------------


@law
@given(st.integers(0, 10_000), st.sampled_from(MODES))
def test_an_autoscaled_buffer_conserves_and_spills_only_at_its_boundaries(seed, mode):
    ts, P, v = _autoscaled(seed)
    run = {name: np.asarray(x) for name, x in SCALED[mode](ts, P, v).items()}
    came = np.interp(run["time"], ts, np.concatenate([[0.0], np.cumsum(P * np.diff(ts))]))
    served = v["mu"] * run["worker_seconds"] - run["starved"]
    np.testing.assert_allclose(run["level"] + run["overflow"] + served, v["Q0"] + came, atol=1e-10)
    level, before, after = run["level"], run["level"][:-1], run["level"][1:]
    assert (level >= 0).all()
    assert (level <= v["C"]).all()
    assert (np.diff(run["time"]) >= 0).all()
    spills, misses = np.diff(run["overflow"]), np.diff(run["starved"])
    assert (spills >= 0).all()
    assert (misses >= 0).all()
    assert ((np.minimum(before, after) == v["C"]) | (spills == 0)).all()
    assert ((np.maximum(before, after) == 0) | (misses == 0)).all()
    assert (run["workers"] >= 0).all()
    spent = np.concatenate([[0.0], np.cumsum(run["workers"][:-1] * np.diff(run["time"]))])
    np.testing.assert_allclose(run["worker_seconds"], spent, atol=1e-9)
    assert run["time"][-1] == ts[-1]


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@law
@given(spans, rates, rates, capacities, shares, st.floats(0, 1), st.sampled_from(["Q0", "C", "load"]))
def test_more_stock_room_or_load_never_lowers_the_level(engine, spans, P, A, C, share, more, what):
    ts, Q0 = _edges(spans), C * share
    follow = FOLLOW[engine]
    low = follow(ts, P, A, C, Q0)
    if what == "Q0":
        high = follow(ts, P, A, C, Q0 + more * (C - Q0))
    elif what == "C":
        high = follow(ts, P, A, C + 5 * more, Q0)
    else:
        high = follow(ts, P + (10 - P) * more, A, C, Q0)
    (level, backlog, overflow, starved), (level_2, backlog_2, overflow_2, starved_2) = map(np.asarray, (low, high))
    slack = 1e-9
    assert (level_2 >= level - slack).all()
    assert (starved_2 <= starved + slack).all()
    fewer_lost = -1 if what == "C" else 1
    assert (fewer_lost * (overflow_2 - overflow) >= -slack).all()
    assert (fewer_lost * (backlog_2 - backlog) >= -slack).all()


@law
@given(st.floats(-5, 5), st.floats(0, 60), st.floats(0, 60), capacities, shares)
def test_a_longer_lead_time_never_loses_less(delta, tau, more, C, share):
    """The bytes of the plain queue's shock, and those of a surplus that one late order ends."""
    lost = [
        float(shock_loss_by_simulation(delta=delta, tau=t, C=C, Q0=C * share, P=5.0)) * 5.0 * t
        for t in (tau, tau + more)
    ]
    assert lost[1] >= lost[0] - 1e-9


@law
@given(st.integers(0, 10_000), st.floats(0, 3), st.sampled_from(["tau", "C"]))
def test_one_late_order_loses_more_the_later_it_lands_and_less_the_more_room_there_is(seed, more, what):
    """Scaling up only, one order: when it is given depends on neither."""
    ts, P, v = _autoscaled(seed)
    v |= {"theta_l": np.float64(-1.0)}
    first, second = (SCALED["count"](ts, P, x) for x in (v, v | {what: v[what] + more}))
    sign = 1 if what == "tau" else -1
    assert sign * float(second["overflow"][-1] - first["overflow"][-1]) >= -1e-9
    assert float(second["starved"][-1] - first["starved"][-1]) <= 1e-9
    assert sign * float(second["worker_seconds"][-1] - first["worker_seconds"][-1]) <= 1e-9


# --- scaling and symmetry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["queue", "pushed_back"])
@law
@given(spans, rates, rates, capacities, shares, st.integers(-8, 8))
def test_units_do_not_matter_to_the_queue(engine, spans, P, A, C, share, power):
    """Bytes in other units, and seconds in other units; powers of two, so that every bit must agree."""
    ts, Q0, s = _edges(spans), C * share, 2.0**power
    follow = FOLLOW[engine]
    plain = np.asarray(follow(ts, P, A, C, Q0))
    np.testing.assert_array_equal(follow(ts, s * P, s * A, s * C, s * Q0), s * plain)
    np.testing.assert_array_equal(follow(s * ts, P / s, A / s, C, Q0), plain)


@pytest.mark.parametrize("mode", MODES)
@law
@given(st.integers(0, 10_000), st.integers(-8, 8))
def test_units_do_not_matter_to_the_events(mode, seed, power):
    ts, P, v = _autoscaled(seed)
    s = 2.0**power
    plain = SCALED[mode](ts, P, v)
    volumes, times = ("C", "Q0", "theta_h", "theta_l"), ("tau", "stop_delay", "hold")
    bytes_ = SCALED[mode](ts, s * P, v | {name: s * v[name] for name in (*volumes, "mu")})
    seconds = SCALED[mode](s * ts, P / s, v | {name: s * v[name] for name in times} | {"mu": v["mu"] / s})
    for name, x in plain.items():
        if name == "margin":
            continue
        in_bytes = s if name in ("level", "overflow", "starved") else 1.0
        in_seconds = s if name in ("time", "worker_seconds", "starting_seconds") else 1.0
        np.testing.assert_array_equal(bytes_[name], in_bytes * x, err_msg=name)
        np.testing.assert_array_equal(seconds[name], in_seconds * x, err_msg=name)


@pytest.mark.parametrize("engine", ["queue", "events"])
@law
@given(spans, rates, rates, capacities, shares)
def test_a_buffer_seen_from_its_other_end(engine, spans, P, A, C, share):
    """delta -> -delta and Q0 -> C - Q0: room for stock, and what spilled starves."""
    ts, Q0 = _edges(spans), C * share
    level, _, overflow, starved = FOLLOW[engine](ts, P, A, C, Q0)
    mirror, _, overflow_m, starved_m = FOLLOW[engine](ts, A, P, C, C - Q0)
    np.testing.assert_allclose(mirror, C - level, atol=1e-9)
    np.testing.assert_allclose(overflow_m, starved, atol=1e-9)
    np.testing.assert_allclose(starved_m, overflow, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@law
@given(st.integers(0, 10_000))
def test_an_autoscaler_seen_from_the_other_end(mode, seed):
    """Thresholds mirror too: an order at theta_h is a stop at C - theta_h, so both delays change places."""
    ts, P, v = _autoscaled(seed)
    v |= {"workers": np.float64(30.0)}  # no stop is trimmed: an order never is
    P = P + 27.0
    mirrored = v | {
        "Q0": v["C"] - v["Q0"],
        "theta_h": v["C"] - v["theta_l"],
        "theta_l": v["C"] - v["theta_h"],
        "tau": v["stop_delay"],
        "stop_delay": v["tau"],
    }
    one, other = SCALED[mode](ts, P, v), SCALED[mode](ts, 60.0 - P, mirrored)
    assume(float(one["margin"]) > 1e-6)
    np.testing.assert_allclose(other["time"], one["time"], atol=1e-8)
    np.testing.assert_allclose(other["level"], v["C"] - one["level"], atol=1e-8)
    np.testing.assert_allclose(other["workers"], 60.0 - one["workers"], atol=1e-8)
    np.testing.assert_allclose(other["overflow"], one["starved"], atol=1e-8)
    swap = dict(zip(("up", "down", "full", "empty"), ("down", "up", "empty", "full"), strict=True))
    kinds = [[events.KINDS[k] for k in np.asarray(run["kind"])] for run in (one, other)]
    assert kinds[1] == [swap.get(kind, kind) for kind in kinds[0]]


# --- composition, batches, bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["queue", "events"])
@law
@given(spans, rates, rates, capacities, shares, st.floats(0.01, 0.99))
def test_two_runs_in_a_row_are_one_run(engine, spans, P, A, C, share, cut):
    """Stopped anywhere, also on an edge or a boundary, and started again from the level found there."""
    ts, Q0 = _edges(spans), C * share
    stop = ts[0] + cut * (ts[-1] - ts[0])
    follow = FOLLOW[engine]
    whole = np.asarray(follow(ts, P, A, C, Q0))
    first = np.asarray(follow(np.minimum(ts, stop), P, A, C, Q0))
    second = np.asarray(follow(np.maximum(ts, stop), P, A, C, np.clip(first[0, -1], 0, C)))
    assert second[0, -1] == pytest.approx(whole[0, -1], abs=1e-9)
    np.testing.assert_allclose(first[1:, -1] + second[1:, -1], whole[1:, -1], atol=1e-9)


@pytest.mark.parametrize("mode", ["hold", "ignore"])
def test_two_autoscaled_runs_in_a_row_are_one_run_where_no_order_is_on_its_way(mode):
    """The level and the workers are then all that there is to know. (A relay also knows its last order.)"""
    found = 0
    for seed in range(40):
        ts, P, v = _autoscaled(seed)
        whole = {name: np.asarray(x) for name, x in SCALED[mode](ts, P, v).items()}
        free = (whole["pending"] == 0) & (np.diff(whole["time"], append=ts[-1]) > 0.2)
        waits = np.inf
        for i in np.flatnonzero(free)[1:]:
            stop = whole["time"][i] + 0.1
            orders = np.flatnonzero(np.diff(whole["pending"][: i + 1]) != 0)
            waits = 0.0 if len(orders) == 0 else whole["time"][orders[-1] + 1] + v["hold"]
            path = events.run(ts, P, pending=mode, **v)
            level = float(path.at(stop).level)
            if not (v["theta_l"] < level < v["theta_h"]) or (mode == "hold" and stop <= waits):
                continue
            later = v | {"Q0": np.float64(level), "workers": path.at(stop).workers}
            second = SCALED[mode](np.maximum(ts, stop), P, later)
            for name in TOTALS:
                before = float(getattr(path.at(stop).totals, name))
                assert before + float(second[name][-1]) == pytest.approx(whole[name][-1], abs=1e-9), (seed, name)
            assert float(second["level"][-1]) == pytest.approx(whole["level"][-1], abs=1e-9)
            found += 1
            break
    assert found > 10


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_its_members_and_jit_changes_nothing(mode):
    cases = [_autoscaled(seed) for seed in range(16)]
    ts, P = (np.stack([case[i] for case in cases]) for i in (0, 1))
    v = {name: np.stack([case[2][name] for case in cases]) for name in cases[0][2]}
    together = jax.jit(jax.vmap(_scaler(mode)))(ts, P, v)
    for i, case in enumerate(cases):
        path = events.run(*case[:2], pending=mode, max_events=ROOM, **case[2])  # not under a transformation
        for alone in (
            SCALED[mode](*case),
            {name: getattr(path, name) for name in ("time", "kind", "level", "workers")},
        ):
            for name, x in alone.items():
                np.testing.assert_allclose(together[name][i], x, rtol=1e-12, atol=1e-12, err_msg=name)


def test_the_same_input_gives_the_same_bits():
    ts, P, v = _autoscaled(7)

    def bits():
        """Traced and compiled anew at each call."""
        follow = _scaler("hold")
        queue = jax.value_and_grad(lambda C: Queue(C, 4.0).path(ts, P, 2.0).final.overflow)
        autoscaled = jax.value_and_grad(lambda tau: follow(ts, P, v | {"tau": tau})["overflow"][-1])
        return [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.jit(lambda: (queue(9.0), autoscaled(v["tau"])))())]

    first = bits()
    assert np.frombuffer(first[2])[0] > 0
    assert bits() == first
    assert jax.tree.map(lambda x: x.tobytes(), jax.device_get(SCALED["hold"](ts, P, v))) == jax.tree.map(
        lambda x: x.tobytes(), jax.device_get(SCALED["hold"](ts, P, v))
    )


# --- derivatives at edges ---------------------------------------------------------------------------------------------

EDGE = {
    # P, A, C, Q0 -> (level, overflow, starved) after 10 s; slopes by P, A, C, Q0 of the level and the two losses.
    "nothing flows": ((0.0, 0.0, 5.0, 2.0), (2, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "zero load, drained": ((0.0, 1.0, 5.0, 2.0), (0, 0, 8), [[0, 0, 0, 0], [0, 0, 0, 0], [-10, 10, 0, -1]]),
    "zero load, not yet": ((0.0, 0.1, 5.0, 2.0), (1, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "zero output, filled": ((1.0, 0.0, 5.0, 2.0), (5, 7, 0), [[0, 0, 1, 0], [10, -10, -1, 1], [0, 0, 0, 0]]),
    "zero output, not yet": ((0.1, 0.0, 5.0, 2.0), (3, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "from full, surplus": ((2.0, 1.0, 5.0, 5.0), (5, 10, 0), [[0, 0, 1, 0], [10, -10, -1, 1], [0, 0, 0, 0]]),
    "from empty, shortfall": ((1.0, 2.0, 5.0, 0.0), (0, 0, 10), [[0, 0, 0, 0], [0, 0, 0, 0], [-10, 10, 0, -1]]),
    "from full, balanced": ((1.0, 1.0, 5.0, 5.0), (5, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "from empty, balanced": ((1.0, 1.0, 5.0, 0.0), (0, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "fills at the very end": ((1.0, 0.5, 7.0, 2.0), (7, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
    "empties at the very end": ((0.5, 1.0, 7.0, 5.0), (0, 0, 0), [[10, -10, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]),
}


def _edge_by_queue(x):
    last = Queue(x[2], x[3]).path([0.0, 10.0], x[0], x[1]).final
    return jnp.stack([last.level, last.overflow, last.underflow])


def _edge_by_events(x):
    path = events.run(10.0, x[0], C=x[2], Q0=x[3], mu=x[1], workers=1.0, max_events=8)
    return jnp.stack([path.level[-1], path.overflow, path.starved])


EDGE_SLOPES = {
    (engine, way): jax.jit(lambda x, f=f, d=d: (f(x), d(f)(x)))
    for engine, f in (("queue", _edge_by_queue), ("events", _edge_by_events))
    for way, d in (("forward", jax.jacfwd), ("reverse", jax.jacrev))
}


@pytest.mark.parametrize("engine", ["queue", "events"])
@pytest.mark.parametrize("case", EDGE)
def test_derivatives_at_zero_flows_and_on_boundaries(case, engine):
    """At a tie those of a level just inside, in both engines and both modes."""
    x, value, slopes = EDGE[case]
    for way in ("forward", "reverse"):
        found, slope = EDGE_SLOPES[engine, way](jnp.array(x))
        np.testing.assert_allclose(found, value, atol=1e-12)
        np.testing.assert_allclose(slope, slopes, atol=1e-12, err_msg=way)


@pytest.mark.parametrize(("first", "level"), [(2.0, 5.0), (0.0, 0.0)])
def test_a_boundary_under_balanced_flow_has_the_slope_of_a_level_just_inside(first, level):
    """Full, or empty, and then P = A: in both engines the level follows the second inflow inwards."""

    def by_queue(P):
        return Queue(5.0, 2.0).path([0.0, 10.0, 13.0], P, 1.0).final.level

    def by_events(P):
        return events.run([0.0, 10.0, 13.0], P, C=5.0, Q0=2.0, mu=1.0, workers=1.0, max_events=16).level[-1]

    for follow in (by_queue, by_events):
        value, slope = jax.value_and_grad(follow)(jnp.array([first, 1.0]))
        assert float(value) == level
        np.testing.assert_allclose(slope, [0, 3], atol=1e-12)


@pytest.mark.parametrize("tau", [7.0, 7.25, 7.3, 22 / 3, 8.0])
def test_a_fractional_lead_time_has_the_same_slope_as_a_whole_one(tau):
    """Full after 5 s at a surplus of 2: each second more loses 2, on whole and on broken seconds alike."""
    path = jax.value_and_grad(lambda tau: shock(10.0, 0.0, 2.0, tau, 3.0).final.overflow)(tau)
    order = jax.value_and_grad(
        lambda tau: (
            events.run(
                30.0, 3.0, C=10.0, Q0=0.0, mu=1.0, workers=1.0, theta_h=0.0, step=2.0, tau=tau, max_events=16
            ).overflow
        )
    )(tau)
    for value, slope in (path, order):
        assert float(value) == pytest.approx(2 * (tau - 5), abs=1e-12)
        assert float(slope) == pytest.approx(2.0, abs=1e-12)


def test_derivatives_at_a_threshold_crossing():
    """Level and totals just before, at and just after the crossing and the landing, by theta_h and tau."""

    def at(v, t):
        path = events.run(
            40.0, 3.0, C=100.0, Q0=0.0, mu=1.0, workers=1.0, theta_h=v[0], step=3.0, tau=v[1], max_events=16
        )
        now = path.at(t)
        return jnp.stack([now.level, now.workers, now.totals.worker_seconds, now.totals.starting_seconds])

    v = jnp.array([20.0, 5.0])  # met at 10 s, landed at 15 s, where the level is 30 and from where it falls by 1
    slope = jax.jit(jax.jacfwd(at))
    np.testing.assert_allclose(slope(v, 10.0 - 1e-9), np.zeros((4, 2)), atol=1e-12)
    np.testing.assert_allclose(slope(v, 10.0), [[0, 0], [0, 0], [0, 0], [-1.5, 0]], atol=1e-12)
    np.testing.assert_allclose(slope(v, 15.0 - 1e-9), [[0, 0], [0, 0], [0, 0], [-1.5, 0]], atol=1e-12)
    np.testing.assert_allclose(slope(v, 15.0), [[1.5, 3], [0, 0], [-1.5, -3], [0, 3]], atol=1e-12)
    np.testing.assert_allclose(slope(v, 20.0), [[1.5, 3], [0, 0], [-1.5, -3], [0, 3]], atol=1e-12)
    np.testing.assert_allclose(at(v, 15.0), [30, 4, 15, 15])


def test_derivatives_over_switch_times():
    """Each edge of a random inflow, in both engines: differences, and (P_before - P_after) where nothing is met."""
    rng = np.random.default_rng(11)
    ts = np.concatenate([[0.0], np.cumsum(rng.exponential(2.0, PIECES))])
    P, A = rng.exponential(2.0, PIECES), rng.exponential(2.0, PIECES).clip(0, 8)
    for engine in ENGINES:
        for C, Q0 in ((4.0, 1.0), (1e3, 500.0)):

            def total(ts, C=C, Q0=Q0, engine=engine):
                level, backlog, overflow, starved = FOLLOW[engine](ts, P, A, C, Q0)[:, -1]
                return level + 2 * overflow + 3 * starved + 5 * backlog

            slope = np.asarray(jax.grad(total)(ts))
            np.testing.assert_allclose(slope, central(total, ts), rtol=1e-6, atol=1e-6)
            if C > 100:
                net = P - A
                np.testing.assert_allclose(slope[1:-1], net[:-1] - net[1:], atol=1e-9)
            assert np.abs(slope).min() < 10


def test_a_piece_of_no_length_has_a_one_sided_derivative():
    """A pulse that shrinks to nothing: longer lets more in, and the slope is that."""
    ts = jnp.array([0.0, 4.0, 4.0, 10.0])
    for follow in (
        lambda ts: Queue(50.0, 5.0).path(ts, [1.0, 9.0, 1.0], 1.0).final.level,
        lambda ts: events.run(ts, [1.0, 9.0, 1.0], C=50.0, Q0=5.0, mu=1.0, workers=1.0, max_events=16).level[-1],
    ):
        np.testing.assert_allclose(jax.grad(follow)(ts), [0, -8, 8, 0], atol=1e-12)


def test_the_gradient_holds_over_thirty_days():
    """518,400 pieces of 5 s: by C minus the busy periods with an overflow, by Q0 nothing once the buffer was empty."""
    n = 30 * 86_400 // 5
    rng = np.random.default_rng(1)
    ts, P, A = 5.0 * np.arange(n + 1), rng.exponential(1.0, n), 1.02
    path = Queue(60.0, 30.0).path(ts, P, A)
    spilled, missed = (np.diff(np.asarray(x)) > 0 for x in (path.content.overflow, path.content.underflow))
    count, full_since_empty = 0, False
    for spill, miss in zip(spilled.tolist(), missed.tolist(), strict=True):
        count += spill and not full_since_empty
        full_since_empty = (full_since_empty or spill) and not miss
    slope = jax.grad(lambda v: Queue(v[0], v[1]).path(ts, P, A).final.overflow)(jnp.array([60.0, 30.0]))
    assert count > 1000
    assert float(slope[0]) == -count
    assert float(slope[1]) in (0.0, 1.0)
