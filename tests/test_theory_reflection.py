"""The reflected queue of D19 and its envelopes: NumPy and JAX against oracles, paths and counts."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq.formulas import envelopes

whole = st.integers(-50, 50).map(float)  # sums of these are exact, so maps are equal or not
C, STEPS = 30.0, 400


@st.composite
def clip_add(draw):
    """A map x -> min(u, max(l, x + d)) with l <= u."""
    low, high = sorted((draw(whole), draw(whole)))
    return draw(whole), low, high


def apply(f, x, np=np):
    return np.minimum(f[2], np.maximum(f[1], x + f[0]))


def then(first, second, np=np):
    """First one map, then another: again a clip-add map."""
    (d1, l1, u1), (d2, l2, u2) = first, second
    return d1 + d2, np.clip(l1 + d2, l2, u2), np.clip(u1 + d2, l2, u2)


@settings(deadline=None, max_examples=300)
@given(clip_add(), clip_add(), clip_add(), st.integers(-300, 300))
def test_clip_add_maps_compose_and_associate(f, g, h, x):
    assert apply(then(f, g), x) == apply(g, apply(f, x))
    assert then(then(f, g), h) == then(f, then(g, h))
    nothing = (0.0, -np.inf, np.inf)
    assert then(nothing, f) == f == then(f, nothing)


@settings(deadline=None, max_examples=30)
@given(st.lists(clip_add(), min_size=8, max_size=8), st.integers(-300, 300))
def test_jax_scans_in_any_grouping(maps, x):
    stacked = tuple(jnp.asarray(part) for part in zip(*maps, strict=True))
    whole_path = jax.lax.associative_scan(lambda f, g: then(f, g, jnp), stacked)
    one_by_one = [reduce(lambda q, f: apply(f, q), maps[: n + 1], float(x)) for n in range(8)]
    np.testing.assert_array_equal(apply(whole_path, float(x), jnp), one_by_one)


def moves(seed, steps=STEPS):
    return np.random.default_rng(seed).normal(0.2, 6.0, steps)


def recursion(d, capacity, Q0):
    """Levels, overflows and underflows of the clip recursion, in NumPy."""
    Q, out = Q0, []
    for step in d:
        free = Q + step
        Q = min(max(free, 0.0), capacity)
        out.append((Q, max(free - capacity, 0.0), max(-free, 0.0)))
    return np.array(out).T


def by_formulas(d, capacity, Q0):
    """The same by the generated formulas, scanned."""

    def advance(Q, step):
        new = envelopes.reflected_level(Q=Q, move=step, C=capacity)
        over = envelopes.overflow(Q=Q, move=step, C=capacity)
        return new, (new, over, envelopes.underflow(Q=Q, move=step))

    return jax.lax.scan(advance, jnp.asarray(Q0, float), jnp.asarray(d))[1]


def skorokhod(d, capacity, Q0):
    """The two-sided map by its formula, O(T^2): g(t) - sup over s of min((g(s) - C)+, inf of g on [s, t])."""
    psi = Q0 + np.concatenate([[0.0], np.cumsum(d)])
    g = psi + np.maximum.accumulate(np.maximum(-psi, 0.0))
    out = []
    for t in range(1, len(g)):
        lowest = np.minimum.accumulate(g[t::-1])[::-1]  # inf of g on [s, t], for each s
        out.append(g[t] - np.minimum(np.maximum(g[: t + 1] - capacity, 0.0), lowest).max())
    return np.array(out)


@pytest.mark.parametrize("Q0", [0.0, 11.0, C])
@pytest.mark.parametrize("seed", range(6))
def test_skorokhod_equals_the_recursion(seed, Q0):
    d = moves(seed)
    levels, over, under = recursion(d, C, Q0)
    assert min((levels == C).sum(), (levels == 0).sum()) >= 10  # both boundaries are met
    np.testing.assert_allclose(skorokhod(d, C, Q0), levels, rtol=0, atol=1e-12)
    for ours, theirs in zip(by_formulas(d, C, Q0), (levels, over, under), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60), st.floats(0.1, 80), st.floats(0, 1))
def test_skorokhod_conservation_and_complementarity_on_any_path(d, capacity, share):
    levels, over, under = recursion(d, capacity, share * capacity)
    np.testing.assert_allclose(skorokhod(np.array(d), capacity, share * capacity), levels, rtol=0, atol=1e-12 * 6000)
    assert share * capacity + sum(d) == pytest.approx(levels[-1] + over.sum() - under.sum(), abs=1e-9)
    assert (levels >= 0).all()
    assert (levels <= capacity).all()
    assert ((capacity - levels) * over == 0).all()
    assert (levels * under == 0).all()


def test_symmetry_and_monotone_in_the_start():
    d = moves(3)
    levels, over, under = recursion(d, C, 10.0)
    mirror, over_m, under_m = recursion(-d, C, C - 10.0)
    np.testing.assert_allclose(mirror, C - levels, atol=1e-12)
    np.testing.assert_allclose([over_m, under_m], [under, over], atol=1e-12)
    higher = recursion(d, C, 14.0)[0]
    assert (higher >= levels).all()
    slopes = np.asarray(jax.jacfwd(lambda Q0: by_formulas(d, C, Q0)[0])(10.0))
    assert set(np.unique(slopes)) == {0.0, 1.0}
    assert (np.diff(slopes) <= 0).all()  # 1 until the first clip, then 0


@pytest.mark.parametrize("seed", range(5))
def test_the_least_capacity_is_the_range_of_the_netput(seed):
    d = moves(seed)
    psi = np.concatenate([[0.0], np.cumsum(d)])
    least, best = psi.max() - psi.min(), -psi.min()
    assert sum(map(np.sum, recursion(d, least, best)[1:])) <= 1e-9
    for share in np.linspace(0, 1, 21):
        capacity = 0.99 * least
        levels_lost = recursion(d, capacity, share * capacity)[1:]
        assert np.sum(levels_lost) >= 0.009 * least
    for other in (best + 1.0, best - 1.0):
        if 0 <= other <= least:
            assert np.sum(recursion(d, least, other)[1:]) > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_ipa_counts_are_autodiff_and_differences(seed):
    """dU/dC = -(busy periods with an overflow); d(sum of levels)/dC = steps from first overflow to the period's end."""
    d = moves(seed, 5000)

    def totals(capacity):
        levels, over, under = by_formulas(d, capacity, 10.0)
        return jnp.stack([over.sum(), levels.sum(), under.sum()])

    counted, high, empty, seen, dry = 0, 0, 0, False, False
    _, over, under = recursion(d, C, 10.0)
    lossy = False
    for o, u in zip(over, under, strict=True):
        counted += bool(o > 0 and not seen)
        empty += bool(u > 0 and seen)  # an emptying after a full buffer: the first one loses what C added
        seen = (seen or o > 0) and not u > 0
        high += seen
        lossy, dry = lossy or o > 0, dry or u > 0
    assert lossy
    assert dry
    assert counted > 40
    forward, backward = jax.jit(jax.jacfwd(totals))(C), jax.jit(jax.jacrev(totals))(C)
    wanted = [-counted, high, -empty]
    np.testing.assert_array_equal(np.asarray(forward), wanted)
    np.testing.assert_allclose(np.asarray(backward), wanted, rtol=1e-12)
    h = 1e-7
    near = (np.asarray(totals(C + h)) - np.asarray(totals(C - h))) / (2 * h)
    np.testing.assert_allclose(near, wanted, rtol=1e-4)


def test_a_balanced_flow_on_a_boundary_has_a_whole_derivative():
    """`jnp.clip` halves it at a tie; here a tie counts as not yet clipped."""
    slope = jax.grad(lambda Q: envelopes.reflected_level(Q=Q, move=0.0, C=C))
    assert (float(slope(0.0)), float(slope(C)), float(slope(5.0))) == (1.0, 1.0, 1.0)
    assert float(jax.grad(lambda x: envelopes.overflow(Q=C, move=x, C=C))(0.0)) == 0.0


# --- envelopes -----------------------------------------------------------------------------------------------------


def conforming(rng, burst, rho, dt, steps):
    """Arrivals of a random source behind a leaky bucket: in any window at most burst + rho * length."""
    tokens, out = burst, []
    for _ in range(steps):
        wish = rng.exponential(3.0) * rho * dt * rng.integers(0, 2) + burst * (rng.random() < 0.02)
        out.append(min(wish, tokens))
        tokens = min(tokens - out[-1], burst - rho * dt) + rho * dt
    return np.array(out)


@pytest.mark.parametrize("greedy", [True, False])
def test_backlog_and_delay_stay_within_the_envelope(greedy):
    burst, rho, service, latency, dt, steps = 8.0, 1.5, 2.0, 3.0, 0.01, 6000
    backlog_bound = float(envelopes.envelope_backlog(burst=burst, sustained=rho, latency=latency))
    delay_bound = float(envelopes.envelope_delay(burst=burst, guaranteed=service, latency=latency))
    arrived = conforming(np.random.default_rng(5), burst, rho, dt, steps)
    if greedy:
        arrived = np.full(steps, rho * dt)
        arrived[0] = burst
    backlog, since, worst, delays, queue_out = 0.0, 0.0, 0.0, 0.0, 0.0
    total_in, total_out = np.cumsum(arrived), []
    for amount in arrived:
        since = 0.0 if backlog <= 0 else since
        backlog += amount
        worst = max(worst, backlog)
        since += dt
        served = min(backlog, service * dt) if since > latency else 0.0
        backlog -= served
        queue_out += served
        total_out.append(queue_out)
    left = np.searchsorted(np.array(total_out), total_in - 1e-9)  # when what came by then has gone
    kept = left < steps
    delays = ((left - np.arange(steps)) * dt)[kept & (arrived > 0)].max()
    assert worst <= backlog_bound + rho * dt + service * dt
    assert delays <= delay_bound + 2 * dt
    if greedy:
        assert worst == pytest.approx(backlog_bound, abs=2 * service * dt)
        assert delays == pytest.approx(delay_bound, abs=3 * dt)


@pytest.mark.parametrize(("rho", "help_"), [(5.0, 3.0), (5.0, 2.0), (1.0, 2.0)])
@pytest.mark.parametrize("greedy", [True, False])
def test_help_that_is_late(rho, help_, greedy):
    burst, service, tau, dt, steps = 6.0, 3.0, 7.0, 0.01, 5000
    bound = float(envelopes.late_rate_capacity(burst=burst, arrival=rho, guaranteed=service, tau=tau))
    arrived = conforming(np.random.default_rng(8), burst, rho, dt, steps)
    if greedy:
        arrived = np.full(steps, rho * dt)
        arrived[0] = burst
    backlog, since, worst = 0.0, 0.0, 0.0
    for amount in arrived:
        since = 0.0 if backlog <= 0 else since + dt
        backlog += amount
        worst = max(worst, backlog)
        backlog = max(backlog - (service + help_ * (since >= tau)) * dt, 0.0)
    assert worst <= bound + (rho + service) * dt
    if greedy:
        assert worst == pytest.approx(bound, abs=2 * (rho + service) * dt)


@pytest.mark.parametrize("seed", range(8))
def test_two_sides(seed):
    """Any netput whose rises and falls keep within the two brackets is absorbed from the stock of the formula."""
    at = dict(burst_P=4.0, most_P=6.0, least_A=3.0, burst_A=2.0, most_A=5.0, least_P=4.0, tau=3.0)
    capacity = float(envelopes.two_sided_capacity(**at))
    stock = float(envelopes.two_sided_stock(**{k: at[k] for k in ("burst_A", "most_A", "least_P", "tau")}))
    rise, fall = 4 + 3 * 3.0, 2 + 1 * 3.0
    assert (capacity, stock) == (rise + fall, fall)
    rng, psi, low, high = np.random.default_rng(seed), [0.0], 0.0, 0.0
    for _ in range(3000):
        low, high = min(low, psi[-1]), max(high, psi[-1])
        psi.append(float(np.clip(psi[-1] + rng.normal(0, 2.0), high - fall, low + rise)))
    lost = recursion(np.diff(psi), capacity, stock)[1:]
    assert np.sum(lost) <= 1e-9
    up, down = np.array([rise]), np.array([-fall])
    for extreme in (up, down):  # each side is met, and not with a little less
        assert np.sum(recursion(extreme, capacity, stock)[1:]) <= 1e-12
        assert np.sum(recursion(extreme, capacity - 0.1, stock - 0.05)[1:]) == pytest.approx(0.05)


@pytest.mark.parametrize(("stages", "spread"), [(None, 0.0), (1, 1.0), (4, 0.25)])
@pytest.mark.parametrize("lam", [0.05, 0.3])
def test_the_mean_delay_of_a_set_up(stages, spread, lam):
    """A single server that is off when empty: every customer followed, with and without the set-up."""
    rng, n, tau, mean = np.random.default_rng(11), 300_000, 6.0, 2.0
    arrive = np.cumsum(rng.exponential(1 / lam, n))
    work = rng.exponential(mean, n)
    setups = np.full(n, tau) if stages is None else rng.gamma(stages, tau / stages, n)

    def sojourns(with_setup):
        free, total = 0.0, 0.0
        for at, need, start in zip(arrive.tolist(), work.tolist(), setups.tolist(), strict=True):
            begin = free if free > at else at + (start if with_setup else 0.0)
            free = begin + need
            total += free - at
        return total / n

    ours = float(envelopes.setup_delay(lam_worker=lam, tau=tau, spread=spread))
    assert sojourns(True) - sojourns(False) == pytest.approx(ours, rel=0.02)
    assert tau / 2 <= ours <= tau
