"""The article's queue: exact path against an oracle, a differential equation and the closed form; derivatives too."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq import queue as queue_module
from fluidq._errors import InputError
from fluidq.formulas import buffer
from fluidq.queue import Queue, QueueState, shock, shock_loss_by_simulation, shock_rates
from fluidq.queue_ode import shock_loss_by_ode, solve

GB = 1e9
P = 5.34 * GB
FIELDS = ("level", "backlog", "overflow", "underflow")
NAMES = ("delta", "tau", "C", "Q0")


def _random(seed: int, pieces: int):
    """Edges and rates whose level meets both boundaries many times; volumes of order 1."""
    rng = np.random.default_rng(seed)
    ts = np.concatenate([[0.0], np.cumsum(rng.exponential(1.0, pieces))])
    return ts, rng.exponential(1.0, pieces), rng.exponential(1.0, pieces)


# --- the exact path ---------------------------------------------------------------------------------------------------


def _skorokhod(psi: np.ndarray, C: float) -> np.ndarray:
    """Two-sided reflection of the netput at the edges; Kruk, Lehoczky, Ramanan, Shreve 2007; O(T^2)."""
    g = psi + np.maximum.accumulate(np.maximum(-psi, 0))
    out = np.empty_like(g)
    for t in range(len(g)):
        infimum = np.minimum.accumulate(g[t::-1])[::-1]  # inf of g over [s, t], for each s
        out[t] = g[t] - np.minimum(np.maximum(g[: t + 1] - C, 0), infimum).max()
    return out


@pytest.mark.parametrize(
    ("seed", "C", "share"), [(0, 2.0, 0.5), (1, 0.3, 0.0), (2, 5.0, 1.0), (3, 1e6, 0.5), (4, 0.0, 0.5)]
)
def test_the_recursion_is_the_two_sided_skorokhod_map(seed, C, share):
    ts, produced, accepted = _random(seed, 700)
    psi = C * share + np.concatenate([[0.0], np.cumsum((produced - accepted) * np.diff(ts))])
    level = np.asarray(Queue(C, C * share).path(ts, produced, accepted).at(ts).level)
    np.testing.assert_allclose(level, _skorokhod(psi, C), rtol=0, atol=1e-12 * max(1.0, C, np.abs(psi).max()))


@pytest.mark.parametrize("mode", ["lost", "pushed_back"])
def test_path_agrees_with_small_explicit_steps(mode):
    """An oracle that knows no formula: move, then move what does not fit, 40,000 times."""
    ts, produced, accepted = _random(5, 40)
    C, Q0, n = 1.5, 0.4, 1000
    path = Queue(C, Q0, mode).path(ts, produced, accepted)
    level, backlog, overflow, underflow = Q0, 0.0, 0.0, 0.0
    for i in range(len(produced)):
        h = (ts[i + 1] - ts[i]) / n
        for _ in range(n):
            level += backlog + (produced[i] - accepted[i]) * h
            backlog = 0.0
            underflow += max(-level, 0)
            excess = max(level - C, 0)
            level = min(max(level, 0), C)
            overflow, backlog = (overflow + excess, 0.0) if mode == "lost" else (overflow, excess)
        found = path.at(ts[i + 1])
        np.testing.assert_allclose(
            [getattr(found, f) for f in FIELDS], [level, backlog, overflow, underflow], atol=1e-9
        )
    assert underflow > 0
    assert (overflow if mode == "lost" else np.asarray(path.at(ts).backlog).max()) > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 5), st.floats(0, 1), st.sampled_from(["lost", "pushed_back"]))
def test_conservation_complementarity_and_order(seed, C, share, mode):
    ts, produced, accepted = _random(seed, 30)
    path = Queue(C, share * C, mode).path(ts, produced, accepted)
    knots = np.asarray(path.knots)
    s = path.at(knots)
    level, backlog, overflow, underflow = (np.asarray(getattr(s, f)) for f in FIELDS)
    net = np.interp(knots, ts, np.concatenate([[0.0], np.cumsum((produced - accepted) * np.diff(ts))]))
    np.testing.assert_allclose(level + backlog + overflow - underflow, share * C + net, atol=1e-11)
    assert (np.diff(knots) >= 0).all()
    assert (level >= 0).all()
    assert (level <= C).all()
    assert (backlog >= 0).all()
    assert (overflow if mode == "pushed_back" else backlog).max() == 0
    # Nothing spills but at a boundary: between two knots either the loss stands still or the level does, at its bound.
    at_full = np.minimum(level[:-1], level[1:]) >= C - 1e-9
    assert (at_full | (np.diff(overflow) <= 1e-9)).all()
    assert (at_full | (np.maximum(backlog[:-1], backlog[1:]) <= 1e-9)).all()
    assert ((np.maximum(level[:-1], level[1:]) <= 1e-9) | (np.diff(underflow) <= 1e-9)).all()
    # Between knots every part is linear.
    middle = path.at((knots[:-1] + knots[1:]) / 2)
    for f in FIELDS:
        at_knots = np.asarray(getattr(s, f))
        np.testing.assert_allclose(getattr(middle, f), (at_knots[:-1] + at_knots[1:]) / 2, atol=1e-9)


def test_pushed_back_enters_as_soon_as_there_is_room():
    path = Queue(10.0, 8.0, "pushed_back").path([0.0, 4.0, 14.0], [2.0, 0.0], [1.0, 1.0])
    np.testing.assert_allclose(path.knots, [0, 2, 4, 4, 6, 14, 14])
    s = path.at(jnp.array([2.0, 4.0, 5.0, 6.0, 14.0]))
    np.testing.assert_allclose(s.level, [10, 10, 10, 10, 2])
    np.testing.assert_allclose(s.backlog, [0, 2, 1, 0, 0])
    assert float(path.final.stranded) == 0


def test_a_piece_can_meet_both_boundaries_when_a_backlog_drains():
    path = Queue(10.0, 10.0, "pushed_back").path([0.0, 5.0, 30.0], [1.0, 0.0], [0.0, 1.0])
    np.testing.assert_allclose(path.knots, [0, 5, 5, 5, 10, 20, 30])
    assert float(path.first_empty) == pytest.approx(20)
    assert float(path.final.underflow) == pytest.approx(10)


def test_first_hit_times():
    path = Queue(100.0, 50.0).path([0.0, 10.0, 20.0], [20.0, 0.0], [10.0, 20.0])
    assert (float(path.first_full), float(path.first_empty)) == (5.0, 15.0)
    calm = Queue(100.0, 50.0).path([0.0, 10.0], 1.0, 1.0)
    assert (float(calm.first_full), float(calm.first_empty)) == (np.inf, np.inf)
    assert float(Queue(100.0, 100.0).path([3.0, 10.0], 1.0, 2.0).first_full) == 3.0
    assert float(Queue(100.0, 0.0).path([3.0, 10.0], 2.0, 1.0).first_empty) == 3.0
    landing = Queue(100.0, 50.0).path([0.0, 5.0, 6.0], [10.0, 0.0], [0.0, 1.0])  # exactly at the end of a piece
    assert (float(landing.first_full), float(landing.final.overflow)) == (5.0, 0.0)


def test_times_need_no_shape_and_pieces_no_length():
    path = Queue(10.0, 5.0).path([0, 1, 1, 2], [1, 5, 0], [0, 0, 2])
    assert path.at(1.5).level.shape == ()
    np.testing.assert_allclose(path.at(np.array([[0.0, 1.0], [1.5, 2.0]])).level, [[5, 6], [5, 4]])


def test_vmap_and_jit_give_the_same_path():
    ts, produced, accepted = _random(6, 50)

    def final(C, Q0):
        return Queue(C, Q0).path(ts, produced, accepted).final

    capacities = jnp.linspace(0.5, 4, 7)
    together = jax.jit(jax.vmap(final))(capacities, capacities / 3)
    for i, C in enumerate(capacities):
        for f in FIELDS:
            assert getattr(together, f)[i] == pytest.approx(float(getattr(final(C, C / 3), f)), abs=1e-12)


# --- the shock and the closed form ------------------------------------------------------------------------------------


def _grid(C: float, Q0: float):
    delta = -P + (np.arange(48) + 0.5) * (2 * P / 48)
    tau = (np.arange(30) + 0.5) * 60.0
    d, t = np.meshgrid(delta, tau)
    return {"delta": d, "tau": t, "C": np.float64(C), "Q0": np.float64(Q0), "P": np.float64(P)}


@pytest.mark.parametrize(("C", "share"), [(150, 0.5), (25, 0.05), (500, 0.95), (150, 0.0), (150, 1.0), (0, 0)])
@pytest.mark.parametrize("mode", ["lost", "pushed_back"])
def test_simulated_loss_is_the_closed_form(C, share, mode):
    cells = _grid(C * GB, C * share * GB)
    simulated = shock_loss_by_simulation(**cells, mode=mode)
    assert simulated.shape == (30, 48)
    np.testing.assert_allclose(simulated, buffer.shock_loss(**cells), rtol=0, atol=1e-9)
    assert float(simulated.max()) > 0.5


def test_the_grid_is_one_vmapped_call(monkeypatch):
    calls = []
    inner = queue_module._losses
    monkeypatch.setattr(queue_module, "_losses", lambda *args: calls.append(args[0].shape) or inner(*args))
    shock_loss_by_simulation(**_grid(150 * GB, 75 * GB))
    assert calls == [(48 * 30,)]


# Theory, D14: C = 150, Q0 = 75, P = 5.34 [GB]; four digits as printed.
TABLE = {
    5.34: (14.04, (0, 0.4267, 0.5625, 0.8404, 0.9532, 0.9798, 0.9922)),
    2.67: (28.09, (0, 0, 0.0625, 0.3404, 0.4532, 0.4798, 0.4922)),
    1.00: (75.0, (0, 0, 0, 0.0277, 0.1404, 0.1671, 0.1795)),
    0.50: (150.0, (0, 0, 0, 0, 0.0468, 0.0734, 0.0858)),
}


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("size", TABLE)
def test_published_table_of_the_shock(size, sign):
    hit, losses = TABLE[size]
    path = shock(150 * GB, 75 * GB, sign * size * GB, 1800.0, P)
    found = path.first_full if sign > 0 else path.first_empty
    assert float(found) == pytest.approx(hit, abs=0.006)
    taus = np.array([9.6, 24.5, 32.1, 88, 300, 695, 1800])
    simulated = shock_loss_by_simulation(delta=sign * size * GB, tau=taus, C=150 * GB, Q0=75 * GB, P=P)
    np.testing.assert_allclose(simulated, losses, atol=6e-5)


def test_the_level_stands_still_after_the_resize():
    path = shock(150 * GB, 75 * GB, -1 * GB, 30.0, P, horizon=100.0)
    np.testing.assert_allclose(path.at(np.array([0.0, 30.0, 60.0, 100.0])).level / GB, [75, 45, 45, 45])


# --- the differential equation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lost", "pushed_back"])
def test_the_ode_follows_the_exact_path(mode):
    """Random rates, with extra edges so that pieces also start at a boundary; every part at every edge."""
    ts, produced, accepted = _random(7, 60)
    fine = np.sort(np.concatenate([ts, (ts[:-1] + ts[1:]) / 2]))
    queue = Queue(1.5, 0.4, mode)
    exact = queue.path(fine, np.repeat(produced, 2), np.repeat(accepted, 2))
    ode = solve(queue, fine, np.repeat(produced, 2), np.repeat(accepted, 2))
    expected = exact.at(fine)
    for f in FIELDS:
        np.testing.assert_allclose(getattr(ode.states, f), getattr(expected, f), rtol=0, atol=1e-6, err_msg=f)
    inside = np.setdiff1d(np.asarray(exact.knots), fine)
    assert len(inside) > 10
    gaps = np.abs(np.asarray(ode.hits)[None, :] - inside[:, None]).min(axis=1)
    if mode == "lost":
        assert gaps.max() < 1e-6


POINTS = {
    "surplus": (2.67, 88.0, 150.0, 75.0),
    "shortfall": (-2.67, 88.0, 150.0, 75.0),
    "absorbed": (2.67, 10.0, 150.0, 75.0),
    "no step": (0.0, 88.0, 150.0, 75.0),
    "no time": (2.67, 0.0, 150.0, 75.0),
    "empty, shortfall": (-2.67, 88.0, 150.0, 0.0),
    "empty, surplus": (2.67, 88.0, 150.0, 0.0),
    "full, surplus": (2.67, 88.0, 150.0, 150.0),
    "full, shortfall": (-2.67, 88.0, 150.0, 150.0),
    "full, no step": (0.0, 88.0, 150.0, 150.0),
    "empty, no step": (0.0, 88.0, 150.0, 0.0),
    "lands on the boundary": (2.0, 37.5, 150.0, 75.0),
    "long": (5.0, 695.0, 150.0, 75.0),
}
TIES = ("no step", "no time", "lands on the boundary", "full, no step", "empty, no step")


def _scaled(f):
    """Value and gradient of f in GB, s: the four derivatives are then comparable with one another."""

    def loss(v):
        return f(delta=v[0] * GB, tau=v[1], C=v[2] * GB, Q0=v[3] * GB, P=P)

    return jax.jit(jax.value_and_grad(loss))


@pytest.fixture(scope="module")
def three_ways():
    return {
        "exact": _scaled(shock_loss_by_simulation),
        "ode": _scaled(shock_loss_by_ode),
        "closed": _scaled(buffer.shock_loss),
    }


@pytest.mark.parametrize("case", POINTS)
def test_loss_and_derivatives_agree_three_ways(case, three_ways):
    point = jnp.array(POINTS[case])
    value, gradient = three_ways["closed"](point)
    assert np.isfinite(gradient).all()
    for way in ("exact", "ode"):
        v, g = three_ways[way](point)
        np.testing.assert_allclose(v, value, rtol=1e-6, atol=1e-9, err_msg=way)
        np.testing.assert_allclose(g, gradient, rtol=1e-6, atol=1e-9, err_msg=way)


@pytest.mark.parametrize("case", [case for case in POINTS if case not in TIES])
def test_derivatives_are_those_of_the_loss_itself(case, three_ways):
    """Differences of the simulated loss: central, or one-sided where Q0 sits on 0 or C and can only move inwards."""
    point = np.array(POINTS[case])
    gradient = np.asarray(three_ways["exact"](jnp.array(point))[1])
    for i, name in enumerate(NAMES):
        h = 1e-4 * np.eye(4)[i]
        ends = [point - h, point + h]
        if name == "Q0" and point[3] == 0:
            ends[0] = point
        if point[3] == point[2] and name in ("Q0", "C"):  # C only upwards, Q0 only downwards
            ends[0 if name == "C" else 1] = point
        low, high = (float(three_ways["exact"](jnp.array(end))[0]) for end in ends)
        difference = (high - low) / (ends[1] - ends[0])[i]
        assert gradient[i] == pytest.approx(difference, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("case", TIES)
def test_derivatives_at_ties_are_one_of_the_two_sides(case, three_ways):
    point = np.array(POINTS[case])
    gradient = np.asarray(three_ways["exact"](jnp.array(point))[1])
    here = float(three_ways["exact"](jnp.array(point))[0])
    for i, name in enumerate(NAMES):
        sides = []
        for sign in (-1, 1):
            moved = point + sign * 1e-4 * np.eye(4)[i]
            if 0 <= moved[3] <= moved[2] and moved[1] >= 0:
                sides.append((float(three_ways["exact"](jnp.array(moved))[0]) - here) / (sign * 1e-4))
        assert any(gradient[i] == pytest.approx(side, rel=1e-4, abs=1e-7) for side in sides), (name, sides)


def test_hit_time_and_later_level_with_their_derivatives():
    """After the resize the level depends on tau by delta; where the jump is not declared this derivative is 0."""

    def by_ode(v):
        path = solve(Queue(v[2], v[3]), *shock_rates(v[0], v[1], 5.34, 100.0))
        return jnp.stack([path.hits[0], path.final.level])

    def by_path(v):
        path = shock(v[2], v[3], v[0], v[1], 5.34, horizon=100.0)
        return jnp.stack([jnp.minimum(path.first_empty, v[1]), path.at(80.0).level])

    both = (jax.jit(jax.jacrev(by_path)), jax.jit(jax.jacrev(by_ode)))
    for slope in (f(jnp.array([-0.5, 30.0, 150.0, 75.0])) for f in both):  # the resize comes first
        np.testing.assert_allclose(slope, [[0, 1, 0, 0], [30, -0.5, 0, 1]], rtol=1e-9, atol=1e-12)
    delta, Q0 = -2.67, 75.0
    for slope in (f(jnp.array([delta, 88.0, 150.0, Q0])) for f in both):  # empty first: T = -Q0 / delta
        np.testing.assert_allclose(slope, [[Q0 / delta**2, 0, 0, -1 / delta], [0] * 4], rtol=1e-6, atol=1e-12)
    exact = jax.grad(lambda v: buffer.time_to_boundary(delta=v[0], C=v[1], Q0=v[2]))(jnp.array([delta, 150.0, Q0]))
    np.testing.assert_allclose(exact, [Q0 / delta**2, 0, -1 / delta], rtol=1e-12)


@pytest.mark.parametrize("mode", ["lost", "pushed_back"])
def test_derivatives_of_a_long_path_agree_between_ode_and_recursion(mode):
    """Several hits of both boundaries in a row: the chain of events, not one of them; in forward mode."""
    ts, produced, accepted = _random(8, 25)

    def cost(v, how):
        last = how(Queue(v[0], v[1], mode), ts * v[2], produced, accepted * v[3]).final
        return last.overflow + 2 * last.underflow + 3 * last.level + 5 * last.backlog

    point = jnp.array([1.5, 0.4, 1.1, 0.9])
    exact = jax.grad(lambda v: cost(v, Queue.path))(point)
    ode = jax.jacfwd(lambda v: cost(v, lambda *a: solve(*a, adjoint=diffrax.ForwardMode())))(point)
    assert np.abs(exact).min() > 0 or mode == "pushed_back"
    np.testing.assert_allclose(ode, exact, rtol=1e-6, atol=1e-8)


# --- IPA --------------------------------------------------------------------------------------------------------------


def test_infinitesimal_perturbation_analysis():
    """d overflow / dC = -(busy periods with an overflow), Cassandras et al. 2002; counted, differenced, autodiffed."""
    ts, produced, accepted = _random(9, 20_000)
    C, Q0 = 6.0, 2.0

    def overflow(C):
        return Queue(C, Q0).path(ts, produced, accepted).final.overflow

    def underflow(C):
        return Queue(C, Q0).path(ts, produced, accepted).final.underflow

    path = Queue(C, Q0).path(ts, produced, accepted)
    s = path.at(path.knots)
    spilled, missed = (np.diff(np.asarray(x)) for x in (s.overflow, s.underflow))
    count = dual = 0
    full_since_empty, empty_since_full = False, False
    for spill, miss in zip(spilled > 0, missed > 0, strict=True):
        # A busy period ends at an idle time; the dual one (time since the buffer was last full) ends at an overflow.
        if spill and not full_since_empty:
            count, full_since_empty = count + 1, True
        if miss:
            full_since_empty = False
        if miss and not empty_since_full:
            dual, empty_since_full = dual + 1, True
        if spill:
            empty_since_full = False
    # The dual: a larger C with the same Q0 reaches an underflow only after an overflow has carried the change there.
    first_is_underflow = np.argmax(missed > 0) < np.argmax(spilled > 0)
    assert count > 50
    assert float(jax.grad(overflow)(C)) == -count
    h = 1e-7
    assert float(overflow(C + h) - overflow(C - h)) / (2 * h) == pytest.approx(-count, abs=1e-3)
    assert float(jax.grad(underflow)(C)) == -(dual - first_is_underflow)


def test_more_stock_moves_the_level_by_all_or_nothing():
    ts, produced, accepted = _random(10, 200)
    slopes = jax.jacfwd(lambda Q0: Queue(2.0, Q0).path(ts, produced, accepted).at(ts).level)(0.7)
    assert set(np.unique(slopes)) == {0.0, 1.0}
    assert (np.diff(slopes) <= 0).all()


def test_derivative_at_a_boundary_is_whole():
    """jnp.clip would halve it: a full buffer under balanced flow still holds Q0."""
    held = jax.grad(lambda Q0: Queue(1.0, Q0).path([0.0, 1.0], 1.0, 1.0).final.level)
    assert float(held(1.0)) == 1.0
    assert float(held(0.0)) == 1.0


# --- bad input --------------------------------------------------------------------------------------------------------

OK = {"C": 10.0, "Q0": 5.0, "ts": [0.0, 1.0, 2.0], "P": [1.0, 2.0], "A": [2.0, 1.0]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Q0": 11.0}, ("Q0 is 11.0", "capacity C, 10 B")),
        ({"Q0": -1.0}, ("Q0 is -1.0",)),
        ({"C": -1.0, "Q0": 0.0}, ("C is -1.0",)),
        ({"C": np.inf}, ("C is inf",)),
        ({"C": np.nan}, ("C is nan",)),
        ({"ts": [0.0, 2.0, 1.0]}, ("ts is 1.0", "in order")),
        ({"ts": [0.0, np.nan, 1.0]}, ("ts is nan",)),
        ({"ts": [0.0]}, ("shape of ts is (1,)",)),
        ({"ts": np.zeros((2, 2))}, ("shape of ts is (2, 2)",)),
        ({"P": [1.0, -2.0]}, ("P is -2.0", ">= 0")),
        ({"A": [np.inf, 1.0]}, ("A is inf",)),
        ({"P": [1.0]}, ("shape of P is (1,)", "(2,)")),
        ({"A": [1.0, 2.0, 3.0]}, ("shape of A is (3,)",)),
        ({"mode": "lots"}, ("unknown mode 'lots'", "did you mean 'lost'")),
    ],
)
def test_bad_queues_are_refused(change, words):
    given_ = {**OK, "mode": "lost", **change}
    with pytest.raises(InputError) as caught:
        Queue(given_["C"], given_["Q0"], given_["mode"]).path(*(np.asarray(given_[k]) for k in ("ts", "P", "A")))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tau": -1.0}, ("tau is -1.0", ">= 0 s")),
        ({"tau": np.nan}, ("tau is nan",)),
        ({"P": 0.0}, ("P is 0.0",)),
        ({"delta": 2.0}, ("delta is 2.0", "at most P")),
        ({"delta": np.nan}, ("delta is nan",)),
        ({"Q0": 11.0}, ("Q0 is 11.0",)),
    ],
)
def test_bad_shocks_are_refused(change, words):
    shot = {"C": 10.0, "Q0": 5.0, "delta": 0.5, "tau": 3.0, "P": 1.0, **change}
    for call in (shock, shock_loss_by_simulation, shock_loss_by_ode):
        with pytest.raises(InputError) as caught:
            call(**shot)
        for word in words:
            assert word in str(caught.value)


def test_bad_values_inside_arrays_and_traces_are_refused():
    with pytest.raises(InputError, match="tau is -2"):
        shock_loss_by_simulation(delta=0.5, tau=np.array([1.0, -2.0]), C=10.0, Q0=5.0, P=1.0)
    with pytest.raises(InputError, match="broadcast"):
        shock_loss_by_simulation(delta=np.ones(2), tau=np.ones(3), C=10.0, Q0=5.0, P=1.0)
    with pytest.raises(InputError, match="horizon is 1"):
        shock(10.0, 5.0, 0.5, 3.0, 1.0, horizon=1.0)
    path = Queue(10.0, 5.0).path(np.array([0.0, 1.0]), 1.0, 1.0)
    with pytest.raises(InputError, match=r"t is 1\.5"):
        path.at(1.5)
    with pytest.raises(Exception, match="Q0 must be a stock from 0 to the capacity C"):
        jax.block_until_ready(jax.jit(lambda C: Queue(C, 5.0).path(OK["ts"], 1.0, 1.0).final.level)(4.0))


def test_a_state_adds_up_what_is_stranded():
    state = QueueState(*(jnp.array([x]) for x in (1.0, 2.0, 3.0, 4.0)))
    assert float(state.stranded[0]) == 9.0
