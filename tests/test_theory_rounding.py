"""D08 to D11 by brute force: every small fleet in exact fractions, planners run, queues switched step by step."""

import math
from fractions import Fraction

import numpy as np
import pytest

from derivations import _lattice
from derivations._relay import relay
from fluidq.formulas import rounding

SIZES = [(p, d) for p in range(1, 9) for d in range(1, 9)]


def bound(fleet, g_P, g_D):
    """GPUs' worth that the theorem says is kept: the fleet less the loss, times N."""
    d = math.gcd(g_P, g_D)
    return fleet // d * d - g_P - g_D + d


def kept_everywhere(fleet, g_P, g_D):
    """For all breakpoints at once, in integers: numerators and denominators of the GPUs' worth that is kept."""
    n_P = np.arange(g_P, fleet - g_D + 1, g_P, dtype=np.int64)
    n_D = (fleet - n_P) // g_D * g_D
    prefill = np.arange(g_P, fleet + 1, g_P, dtype=np.int64)[:, None]
    decode = np.arange(g_D, fleet + 1, g_D, dtype=np.int64)[None, :]
    best = np.minimum(n_P[:, None, None] * decode, n_D[:, None, None] * prefill).max(axis=0)
    return best * (prefill + decode), prefill * decode


@pytest.mark.parametrize(("g_P", "g_D"), SIZES, ids=[f"{p}x{d}" for p, d in SIZES])
def test_no_mix_loses_more_than_the_bound_and_some_mix_just_that(g_P, g_D):
    """All fleets up to 48: no violation at any breakpoint; the worst case is the stated one, and tight when stated."""
    common = math.gcd(g_P, g_D)
    for fleet in range(1, 49):
        allowed, least = bound(fleet, g_P, g_D), _lattice.least_kept(fleet, g_P, g_D)
        assert least >= allowed
        assert (least == allowed) == _lattice.combines(allowed, g_P, g_D), fleet
        if fleet // common * common >= g_P * g_D // common:  # the least common multiple
            assert least == allowed, fleet
        if fleet < g_P + g_D:
            assert least == 0
            continue
        over, under = kept_everywhere(fleet, g_P, g_D)
        assert (over >= least * under).all(), fleet
        ends = (fleet - g_P) // g_D * g_D, (fleet - g_D) // g_P * g_P  # phi -> 0 and phi -> 1
        assert min(ends) >= least
        assert (over == least * under).any() or min(ends) == least, fleet


def test_the_two_searches_agree_and_no_other_mix_is_worse():
    """Mixes between the breakpoints, at random, never keep less than the breakpoints do."""
    rng = np.random.default_rng(3)
    for _ in range(400):
        g_P, g_D = (int(g) for g in rng.integers(1, 9, 2))
        fleet = int(rng.integers(g_P + g_D, 40))
        searched = _lattice.least_kept_searched(fleet, g_P, g_D)
        assert searched == _lattice.least_kept(fleet, g_P, g_D)
        p, q = (int(x) for x in rng.integers(1, 1000, 2))
        assert _lattice.kept(fleet, g_P, g_D, p, q) >= searched


def test_the_generated_bound_is_the_theorem():
    for g_P, g_D in SIZES:
        for fleet in range(1, 49, 5):
            d = math.gcd(g_P, g_D)
            ours = float(rounding.rounding_bound(N=fleet, g_P=g_P, g_D=g_D, g_common=d))
            assert ours == pytest.approx(1 - bound(fleet, g_P, g_D) / fleet, abs=1e-12)


def test_one_and_eight_gpus_of_nine():
    """The published corner: eight ninths may be lost, and the supremum is approached only."""
    assert float(rounding.rounding_bound(N=9, g_P=1, g_D=8, g_common=1)) == pytest.approx(8 / 9)
    assert _lattice.least_kept(9, 1, 8) == 1
    assert _lattice.kept(9, 1, 8, 10**6, 1) == Fraction(10**6 + 1, 10**6)


def test_unit_workers_by_trying_every_plan():
    rng = np.random.default_rng(4)
    for _ in range(300):
        fleet, phi = int(rng.integers(2, 60)), rng.uniform(0.01, 0.99)
        n = np.arange(61)  # one shape, one compilation; more than the fleet leaves no decode
        every = np.asarray(rounding.split_efficiency(n_P=n, n_D=np.maximum(fleet - n, 0), N=fleet, phi=phi))
        assert float(rounding.unit_loss(N=fleet, phi=phi)) == pytest.approx(1 - every.max(), abs=1e-12)
        assert every.max() >= 1 - 1 / fleet - 1e-12


def test_mean_loss_of_unit_workers_over_many_fleets():
    """A fraction that is spread evenly: the fleets 1000 to 3000 at an irrational share."""
    fleets = np.arange(1000, 3001)
    lost = np.asarray(rounding.unit_loss(N=fleets, phi=math.sqrt(2) - 1)) * fleets
    assert lost.mean() == pytest.approx(0.5, abs=0.005)


def test_break_even_fleets_suffice():
    for g_P, g_D, share in ((4, 18, 0.05), (2, 4, 0.1), (3, 5, 0.2)):
        d = math.gcd(g_P, g_D)
        even = int(rounding.break_even_fleet(g_P=g_P, g_D=g_D, g_common=d, epsilon=share))
        every = int(rounding.break_even_fleet_any(g_P=g_P, g_D=g_D, epsilon=share))
        assert every >= even
        for fleet in range(even, even + 60):
            lost = 1 - _lattice.least_kept(fleet, g_P, g_D) / fleet
            assert lost <= share + 1e-12 or (fleet % d and fleet < every)


def test_a_planner_that_rounds_up_is_within_its_gap():
    """Loads and workers at random: pools hold the load, the share is inside the gap, and nearly reaches it."""
    rng = np.random.default_rng(5)
    nearest, ideal, phi, g_P, g_D, gap = 0.0, 0.0, 0.0, 0, 0, 0.0
    for _ in range(4000):
        g_P, g_D = (int(g) for g in rng.integers(1, 9, 2))
        lam, t_P, t_D = rng.uniform(1, 40), rng.uniform(0.05, 2), rng.uniform(0.05, 2)
        ideal, phi = lam * (t_P + t_D), t_P / (t_P + t_D)
        n_P, n_D = g_P * math.ceil(lam * t_P / g_P), g_D * math.ceil(lam * t_D / g_D)
        gap = max((1 - phi) * g_P / (ideal + g_P), phi * g_D / (ideal + g_D))
        off = abs(n_P / (n_P + n_D) - phi)
        assert off < gap
        assert n_P + n_D < ideal + g_P + g_D
        nearest = max(nearest, off / gap)
    assert nearest > 0.95
    ours = float(rounding.planner_gap(N=ideal, phi=phi, g_P=g_P, g_D=g_D))
    assert ours == pytest.approx(gap)
    far = rounding.planner_gap(N=np.array([1e2, 1e3, 1e4, 1e5]), phi=0.3, g_P=4, g_D=18)
    np.testing.assert_allclose(far * np.array([1e2, 1e3, 1e4, 1e5]), 0.3 * 18, rtol=0.25)


def test_planned_workers_of_no_load():
    assert float(rounding.planned_prefill_workers(lam=0, isl=8192, r_P=5e4, g_P=4)) == 0
    assert float(rounding.planned_decode_workers(lam=10, osl=0, rate=2e3, g_D=4)) == 0


def test_only_one_phase():
    """Both ends of the share: the pool that has work counts, also when the other pool is empty."""
    efficiency = rounding.split_efficiency
    assert float(efficiency(n_P=0, n_D=8, N=8, phi=0)) == 1
    assert float(efficiency(n_P=8, n_D=0, N=8, phi=1)) == 1
    assert float(efficiency(n_P=6, n_D=2, N=8, phi=1)) == 0.75
    assert float(rounding.unit_loss(N=7, phi=0)) == 0
    assert float(rounding.unit_loss(N=7, phi=1)) == 0
    assert float(rounding.missplit_efficiency(phi=0, phi_opt=0)) == 1
    assert float(rounding.missplit_efficiency(phi=0.25, phi_opt=1)) == 0.25
    assert float(rounding.two_pool_throughput(n_P=0, n_D=4, t_P=0, t_D=2)) == 2


def test_the_minimax_split_beats_a_grid_and_is_the_best_mean_of_a_uniform_law():
    low, high = 0.2, 0.7
    need = np.linspace(low, high, 2001)
    tried = np.linspace(0.01, 0.99, 981)
    every = np.asarray(rounding.missplit_efficiency(phi=tried[:, None], phi_opt=need[None, :]))
    split = float(rounding.minimax_split(phi_low=low, phi_range=high - low))
    assert tried[every.min(axis=1).argmax()] == pytest.approx(split, abs=1e-3)
    assert every.min(axis=1).max() == pytest.approx(float(rounding.minimax_efficiency(phi_range=high - low)), abs=2e-3)
    assert tried[every.mean(axis=1).argmax()] == pytest.approx(split, abs=1.5e-3)
    assert abs(split - need.mean()) > 0.01


def test_the_grain_of_a_split_inside_a_gpu():
    for count, grain in ((132, 8), (148, 8), (132, 16)):
        idle = float(rounding.sm_rounding_bound(sm_count=count, sm_grain=grain))
        assert _lattice.least_kept(count, grain, grain) == round(count * (1 - idle))
        joined = float(rounding.sm_rounding_bound_joined(sm_count=count, sm_grain=grain))
        assert idle - joined == pytest.approx(count % grain / count)


def switched(n_high, n_low, share, delay, band, capacity, dead, ticks=400_000, dt=0.01):
    """Requests a second of two plans around the balance, a queue between the pools, ticked; GPUs' flow is 1.

    Independent of the proof: a level that is moved by min(what is there, what fits), and a switch in the air.
    """
    fleet = 5
    low = delay * (share * fleet - n_low) / (1 - share)
    level, target, landing, frozen, moved, busy = low, n_high, None, 0.0, n_high, 0.0
    for tick in range(ticks):
        now = tick * dt
        n_P, n_D = (moved, fleet - moved) if now >= frozen else (min(n_high, n_low), fleet - max(n_high, n_low))
        made, taken = n_P * dt, n_D * share / (1 - share) * dt
        accepted = min(taken, level + made)
        stored = min(level + made - accepted, capacity)
        level = stored
        busy += accepted
        if landing is None and ((target == n_high and level >= low + band) or (target == n_low and level <= low)):
            landing = now + delay
        if landing is not None and now >= landing - 1e-9:
            target = n_low if target == n_high else n_high
            moved, frozen, landing = target, now + dead, None
    return busy / (ticks * dt) / (share * fleet)


@pytest.mark.parametrize(
    ("delay", "band", "dead", "capacity", "wanted"),
    [
        (2.0, 0.0, 0.0, 4.05, 1.0),  # q g tau = 2 * 1 * 2, and a little for the tick
        (2.0, 3.0, 0.0, 7.1, 1.0),
        (2.0, 0.0, 0.0, 2.0, 0.95),  # half of the room: what does not fit is lost
        (0.0, 60.0, 3.0, 61.0, 0.9905),  # the theory's example: a band of a minute, 3 s dead
        (0.0, 0.0, 3.0, 1.0, 0.80),  # and without a band
    ],
)
def test_dithering_between_two_and_three_of_five(delay, band, dead, capacity, wanted):
    """phi = 1/2 in a fleet of 5: the best static plan reaches 0.8."""
    reached = switched(3, 2, 0.5, delay, band, capacity, dead, ticks=100_000)
    if wanted == 0.95:
        assert reached < wanted
    else:
        assert reached == pytest.approx(wanted, abs=0.006)
    if dead:
        period = 2 * band + 2 * dead
        ours = rounding.dither_efficiency(N=5, moved=1, dead_time=dead, period=period)
        assert float(ours) == pytest.approx(wanted, abs=1e-3)


def test_the_exact_relay_loses_when_the_buffer_is_short():
    run = relay(Fraction(1), Fraction(1), Fraction(2), Fraction(2), Fraction(2), Fraction(4))
    assert (run.lowest, run.highest, run.lost, run.period) == (0, 4, 0, 8)
    short = relay(Fraction(1), Fraction(1), Fraction(3, 2), Fraction(3, 2), Fraction(2), Fraction(3))
    assert short.lost > 0
