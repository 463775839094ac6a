"""Group "control" (D16, D17, D18, D20) against simulated queues and numeric roots, besides its algebra."""

from collections import deque
from fractions import Fraction
from itertools import pairwise
from math import ceil, cos, e, inf, pi, sin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from fluidq.formulas import control

AMP, PERIOD = 3.0, 240.0
OMEGA = 2 * pi / PERIOD


# --- D16: the reflected queue under late tracking --------------------------------------------------------------------


def wave(t, phase):
    """The integral of AMP sin(omega t + phase) from 0."""
    return AMP / OMEGA * (np.cos(phase) - np.cos(OMEGA * t + phase))


def netput(t, tau, phase, running=False):
    """Integral of the surplus less the correction; from rest the correction is 0 until the first one lands."""
    corrected = wave(t - tau, phase)
    start = wave(-tau, phase) if running else 0.0
    return wave(t, phase) - (corrected - start if running else np.where(t < tau, 0.0, corrected))


def losses(psi, C, Q0):
    """Bytes lost at either boundary in each step of the clip recursion."""
    Q, out = Q0, np.zeros(len(psi) - 1)
    for i, step in enumerate(np.diff(psi)):
        free = Q + step
        Q = min(max(free, 0.0), C)
        out[i] = abs(free - Q)
    return out


TIMES = np.linspace(0.0, 5 * PERIOD, 5 * 1200 + 1)
PHASES = np.linspace(0.0, 2 * pi, 8, endpoint=False)


def capacity(tau):
    return float(control.periodic_capacity(delta_amp=AMP, omega=OMEGA, tau=tau))


@pytest.mark.parametrize("share", [1 / 12, 1 / 6, 0.3, 0.5])
def test_loss_vanishes_at_the_periodic_capacity_and_not_below(share):
    tau = share * PERIOD
    C = capacity(tau)
    for phase in PHASES:
        psi = netput(TIMES, tau, phase)
        assert losses(psi, C, C / 2).sum() <= 1e-9 * C
        for Q0 in (0.3, 0.5, 0.7):
            assert losses(psi, 0.95 * C, Q0 * 0.95 * C).sum() > 0.01 * C


def spread(psi):
    return float(psi.max() - psi.min())


@pytest.mark.parametrize(("share", "helps"), [(0.05, True), (0.16, True), (0.173, False), (0.3, False), (0.5, False)])
def test_late_tracking_helps_up_to_a_sixth_of_the_period(share, helps):
    alone = spread(wave(TIMES, 0.0))
    assert alone == pytest.approx(2 * AMP / OMEGA, rel=1e-5)
    assert (spread(netput(TIMES, share * PERIOD, 0.7)) < alone) is helps
    assert (capacity(share * PERIOD) < alone) is helps


@pytest.mark.parametrize(("share", "helps"), [(0.8, False), (0.85, True), (1.1, True), (1.2, False)])
def test_longer_lead_times_help_near_multiples_of_the_period(share, helps):
    settled = netput(TIMES + 2 * PERIOD, share * PERIOD, 0.7)
    assert (spread(settled) < 2 * AMP / OMEGA) is helps
    assert spread(settled) == pytest.approx(capacity(share * PERIOD), rel=1e-4)


@pytest.mark.parametrize("share", [0.55, 0.75, 0.95, 1.3])
def test_the_start_of_a_long_lead_time(share):
    tau = share * PERIOD
    needed = float(control.startup_capacity(delta_amp=AMP, omega=OMEGA, tau=tau))
    spans = [spread(netput(TIMES, tau, phase)) for phase in (0.0, *PHASES)]
    assert spans[0] == pytest.approx(needed, rel=1e-4)
    assert max(spans) <= needed * (1 + 1e-9)
    highest = max(np.abs(netput(TIMES, tau, phase)).max() for phase in (0.0, *PHASES))
    assert highest == pytest.approx(2 * AMP / OMEGA, rel=1e-4)  # any phase from Q0 = C/2 needs 4 amp/omega


def test_joining_a_running_cycle_loses_once_and_then_never():
    tau = 0.25 * PERIOD
    C, worst = capacity(tau), 0.0
    for phase in PHASES:
        psi = netput(TIMES, tau, phase, running=True)
        lost = losses(psi, C, C / 2)
        assert lost[1200:].sum() <= 1e-9 * C
        worst = max(worst, lost.sum())
        assert losses(psi, 2 * C, C).sum() <= 1e-9 * C
    assert worst > 0.4 * C
    assert (
        max(losses(netput(TIMES, tau, p, running=True), 1.9 * C, 0.95 * C).sum() for p in np.arange(0, 6.3, 0.05)) > 0
    )


def predicted(t, tau, phase, ramp=0.0):
    """Netput under delta(t - tau) + tau delta'(t - tau), with a history of tau."""
    surplus = AMP * np.sin(OMEGA * (t - tau) + phase)
    corrected = wave(t - tau, phase) + tau * surplus
    ramps = ramp * (t**2 / 2 - ((t - tau) ** 2 / 2 + tau * (t - tau)))
    return wave(t, phase) - corrected + ramps


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2309, 0.2329, 0.6])
def test_the_predictor(share):
    tau = share * PERIOD
    psi = predicted(TIMES, tau, 0.4)
    needed = float(control.predicted_capacity(delta_amp=AMP, omega=OMEGA, tau=tau))
    assert spread(psi) == pytest.approx(needed, rel=1e-4)
    assert (spread(psi) < 2 * AMP / OMEGA) is (share < 0.2319)
    assert spread(predicted(TIMES, tau, 0.4, ramp=0.3)) == pytest.approx(needed, rel=1e-4)
    assert float(control.predictor_gain(omega=OMEGA, tau=tau)) == pytest.approx(needed * OMEGA / (2 * AMP), rel=1e-12)


def test_the_predictor_at_a_tiny_lag():
    tau = 1e-4 / OMEGA
    assert float(control.predictor_gain(omega=OMEGA, tau=tau)) == pytest.approx(1e-8 / 2, rel=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.4])
@pytest.mark.parametrize("cycles", [0.05, 1.0, 4.5])
def test_a_ramp_with_a_wave_on_it(share, cycles):
    tau, horizon, ramp = share * PERIOD, cycles * PERIOD, 0.02
    t = np.linspace(0, horizon, 4001)
    rise = ramp * (t**2 - np.maximum(t - tau, 0.0) ** 2) / 2
    given_ = dict(ramp=ramp, horizon=horizon, delta_amp=AMP, omega=OMEGA, tau=tau)
    needed = float(control.ramp_periodic_capacity(**given_))
    found = max(spread(netput(t, tau, phase) + rise) for phase in PHASES)
    assert found <= needed
    assert found >= needed - ramp * tau**2 / 2 - capacity(tau)  # enough, not least: this is what it can be above


@pytest.mark.parametrize("review", [0.0, 7.0])
def test_detection_of_a_constant_step(review):
    theta, delta, tau = 12.0, 0.8, 30.0
    seen = theta / delta
    moved = []
    for offset in np.linspace(0, review, 8):  # when the review clock started
        at = seen if not review else offset + ceil(max(seen - offset, 0) / review) * review
        moved.append(delta * (at + tau))
    needed = float(control.detected_headroom(theta_Q=theta, delta_up=delta, tau=tau, review=review))
    assert max(moved) <= needed + 1e-9
    assert max(moved) > needed - (delta * review / 4 + 1e-9)


def test_a_ramp_followed_to_its_landing():
    a, theta, tau = 0.01, 6.0, 50.0
    t = np.linspace(0, 200, 2_000_001)
    level = a * t**2 / 2
    seen = t[np.argmax(level >= theta)]
    detect = control.ramp_detection_time(ramp=a, theta_Q=theta)
    assert float(detect) == pytest.approx(seen, abs=1e-3)
    moved = float(control.ramp_displacement(ramp=a, detect=detect, tau=tau))
    assert moved == pytest.approx(np.interp(seen + tau, t, level), rel=1e-4)
    assert moved == pytest.approx(theta + tau * (2 * a * theta) ** 0.5 + a * tau**2 / 2, rel=1e-12)


# --- D17: an event-exact relay ---------------------------------------------------------------------------------------


def relay(fill, drain, low, high, tau, start, filling, cycles=6):
    """Turning points (time, level) of the level, each followed exactly from event to event."""
    t, Q, turns = 0.0, start, []
    for _ in range(2 * cycles):
        rate, threshold = (fill, high) if filling else (-drain, low)
        wait = max((threshold - Q) / rate, 0.0) + tau  # ordered at the crossing, or at once beyond it; lands tau later
        t, Q, filling = t + wait, Q + rate * wait, not filling
        turns.append((t, Q))
    return turns


def formulas_of(fill, drain, low, high, tau):
    both = dict(theta_h=high, theta_l=low, fill=fill, drain=drain, tau=tau)
    return (
        float(control.cycle_peak(theta_h=high, fill=fill, tau=tau)),
        float(control.cycle_trough(theta_l=low, drain=drain, tau=tau)),
        float(control.cycle_amplitude(**both)),
        float(control.cycle_period(**both)),
    )


def test_published_limit_cycle():
    turns = relay(1.0, 0.5, 10.0, 13.0, 3.0, 11.0, True)
    levels, times = [q for _, q in turns[2:]], [t for t, _ in turns]
    assert max(levels) - min(levels) == pytest.approx(7.5, rel=1e-12)
    assert times[-1] - times[-3] == pytest.approx(22.5, rel=1e-12)
    assert formulas_of(1.0, 0.5, 10.0, 13.0, 3.0) == pytest.approx((16.0, 8.5, 7.5, 22.5), rel=1e-12)


def test_a_clocked_relay_swings_a_little_further():
    """Looked at every dt, as the published 7.504 and 22.51 were: further by at most a step in each direction."""
    dt, tau, Q, rate, ordered, orders = 0.005, 3.0, 11.0, 1.0, 1.0, deque()
    peaks, troughs, times = [], [], []
    for n in range(60_000):
        while orders and orders[0][0] <= n:
            new = orders.popleft()[1]
            (peaks if new < rate else troughs).append(Q)
            times.append(n * dt)
            rate = new
        wanted = -0.5 if Q >= 13.0 else 1.0 if Q <= 10.0 else ordered
        if wanted != ordered:
            ordered = wanted
            orders.append((n + round(tau / dt), wanted))
        Q += rate * dt
    swing, period = peaks[-1] - troughs[-1], times[-1] - times[-3]
    assert 7.5 <= swing <= 7.5 + 1.5 * dt + 1e-9
    assert 22.5 - 1e-9 <= period <= 22.5 + 4 * 1.5 * dt / 0.5
    assert swing == pytest.approx(7.504, rel=1e-3)
    assert period == pytest.approx(22.51, rel=1e-3)


rates = st.floats(0.1, 10.0)


@settings(deadline=None, max_examples=60)
@given(rates, rates, st.floats(0, 50), st.floats(0, 50), st.floats(0.0, 30.0), st.floats(-200, 200), st.booleans())
def test_every_start_leads_to_the_cycle(fill, drain, low, gap, tau, start, filling):
    turns = relay(fill, drain, low, low + gap, tau, start, filling)
    peak, trough, swing, period = formulas_of(fill, drain, low, low + gap, tau)
    levels, times = [q for _, q in turns[3:]], [t for t, _ in turns]
    assert max(levels) == pytest.approx(peak, rel=1e-9, abs=1e-9)
    assert min(levels) == pytest.approx(trough, rel=1e-9, abs=1e-9)
    assert max(levels) - min(levels) == pytest.approx(swing, rel=1e-9, abs=1e-9)
    assert times[-1] - times[-3] == pytest.approx(period, rel=1e-9, abs=1e-9)
    if low <= start <= low + gap:  # then the first swing goes no further
        every = [start, *(q for _, q in turns)]
        assert max(every) <= peak + 1e-9
        assert min(every) >= trough - 1e-9


def cost(K, h, fill, drain, gap, tau):
    """Cost per second of the followed cycle: switches by its period, level above the trough by the trapezoid."""
    turns = relay(fill, drain, 0.0, gap, tau, 0.0, True)[3:6]
    (t0, _), (t1, _), (t2, _) = turns
    bottom = min(q for _, q in turns)
    area = sum((b - a) * (p + q - 2 * bottom) / 2 for (a, p), (b, q) in pairwise(turns))
    return (K + h * area) / (t2 - t0) if t1 > t0 else inf


@pytest.mark.parametrize(("K", "tau"), [(500.0, 3.0), (500.0, 0.0), (1.0, 3.0)])
def test_the_best_gap_is_the_cheapest_followed(K, tau):
    h, fill, drain = 0.4, 2.0, 0.7
    gaps = np.linspace(1e-6, 200, 20001)
    cheapest = gaps[np.argmin([cost(K, h, fill, drain, g, tau) for g in gaps])]
    given_ = dict(switch_cost=K, hold_cost=h, fill=fill, drain=drain)
    best = float(control.best_gap(**given_, tau=tau))
    assert best == pytest.approx(cheapest, abs=0.011)
    assert (best > 0) is (K > 1)
    assert float(control.best_amplitude(**given_)) == pytest.approx((2 * K * 1.4 / (2.7 * h)) ** 0.5, rel=1e-12)


# --- D18: roots, and loops run ----------------------------------------------------------------------------------------


def rightmost(order, x):
    """Largest real part for a chain of `order` stages of mean 1: eigenvalues of its state matrix."""
    F = np.zeros((order + 1, order + 1))
    F[0, order] = -x
    for i in range(1, order + 1):
        F[i, i - 1], F[i, i] = order, -order
    return np.linalg.eigvals(F).real.max()


@pytest.mark.parametrize("order", range(1, 33))
def test_erlang_orders_by_their_roots(order):
    limit = float(control.erlang_gain_limit(stages=order))
    if order == 1:
        assert limit == inf
        assert max(rightmost(1, x) for x in (0.1, 10.0, 1e4)) < 0
        return
    assert rightmost(order, limit * (1 - 1e-3)) < 0 < rightmost(order, limit * (1 + 1e-3))
    assert max(rightmost(order, limit * s) for s in np.linspace(0.02, 0.999, 40)) < 0
    assert min(rightmost(order, limit * s) for s in np.linspace(1.001, 20, 40)) > 0


def test_many_stages_are_a_pure_delay():
    assert float(control.erlang_gain_limit(stages=100_000)) == pytest.approx(pi / 2, rel=1e-4)


def root(f, low, high):
    """Where f turns from negative to positive, by bisection to the last bit."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return high


def largest(gain, d, f=None):
    """Largest size of a root of the sampled loop; with f, late by d - 1 + f periods."""
    p = np.zeros(d + 2)
    p[0] += 1
    p[1] -= 1
    p[-1] += gain if f is None else gain * f
    if f is not None:
        p[-2] += gain * (1 - f)
    return np.abs(np.roots(p)).max()


@pytest.mark.parametrize("d", range(9))
def test_sampled_loops_by_their_roots(d):
    limit = float(control.sampled_gain_limit(delay_steps=d))
    assert limit == pytest.approx(2 * sin(pi / (2 * (2 * d + 1))), rel=1e-15)
    found = root(lambda G: largest(G, d) - 1, 0.9 * limit, 1.1 * limit)
    assert found == pytest.approx(limit, rel=1e-12)
    assert max(largest(limit * s, d) for s in np.linspace(0.01, 0.999, 50)) < 1
    assert min(largest(limit * s, d) for s in np.linspace(1.001, 8, 50)) > 1


def first_unstable(d, f):
    """The lowest gain with a root on the circle: bracketed from below, then solved."""
    gains = np.linspace(0.005, 4.5, 900)
    at = next(i for i, G in enumerate(gains) if largest(G, d, f) > 1)
    return root(lambda G: largest(G, d, f) - 1, gains[at - 1], gains[at])


@pytest.mark.parametrize("f", [0.05, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0])
def test_delays_between_samples(f):
    assert float(control.short_gain_limit(short_delay=f)) == pytest.approx(first_unstable(1, f), rel=1e-9)
    for d in range(1, 9):
        assert first_unstable(d, f) >= float(control.sampled_gain_limit(delay_steps=d)) * (1 - 1e-9)
    if f == 1:
        assert first_unstable(5, f) == pytest.approx(float(control.sampled_gain_limit(delay_steps=5)), rel=1e-9)


def loop(gain, d, steps, noise=None, start=1.0):
    """Q(n+1) = Q(n) - gain Q(n-d) + noise from a constant history, many at once where the noise is."""
    history = deque([start] * (d + 1), maxlen=d + 1) if noise is None else deque([np.zeros(noise.shape[1])] * (d + 1))
    out = [history[-1]]
    for n in range(steps):
        new = history[-1] - gain * history[0] + (0.0 if noise is None else noise[n])
        history.popleft()
        history.append(new)
        out.append(new)
    return np.array(out)


@pytest.mark.parametrize("d", [0, 1, 3, 8])
def test_sampled_loops_run(d):
    limit = float(control.sampled_gain_limit(delay_steps=d))
    late = slice(-4 * d - 4, None)
    assert np.abs(loop(0.98 * limit, d, 3000)[late]).max() < 1e-2
    assert np.abs(loop(1.02 * limit, d, 3000)[late]).max() > 1e2


def test_a_pure_delay_run():
    """A fine grid: 400 steps to the delay. Stable below pi/2 over the delay; no overshoot up to 1/e."""
    d, tau = 400, 40.0
    dt = tau / d
    limit, mono = float(control.delay_gain_limit(tau=tau)), float(control.monotone_gain_limit(tau=tau))
    assert limit == pytest.approx(pi / (2 * tau), rel=1e-14)
    assert mono == pytest.approx(1 / (e * tau), rel=1e-14)
    assert np.abs(loop(0.95 * limit * dt, d, 60 * d)[-4 * d :]).max() < 0.2
    assert np.abs(loop(1.05 * limit * dt, d, 60 * d)[-4 * d :]).max() > 5.0
    assert loop(0.98 * mono * dt, d, 40 * d).min() > 0
    assert loop(1.3 * mono * dt, d, 40 * d).min() < 0
    margin = loop(limit * dt, d, 40 * d)
    crossings = np.flatnonzero((margin[:-1] < 0) & (margin[1:] >= 0))
    assert np.diff(crossings).mean() * dt == pytest.approx(4 * tau, rel=5e-3)


# --- D20: spectrum, covariance, and runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(("g", "tau"), [(0.3, 0.0), (0.3, 1.0), (0.3, 2.5), (0.3, 4.5)])
def test_the_variance_by_its_spectrum(g, tau):
    def spectrum(w):
        return 1 / abs(1j * w + g * np.exp(-1j * w * tau)) ** 2 / pi

    edges = np.linspace(0, 200, 401)
    inner = sum(quad(spectrum, a, b, epsabs=1e-13)[0] for a, b in pairwise(edges))
    tail = 1 / pi / 200  # 1/w^2; what is left is of order g/200^2
    ours = float(control.level_variance(noise=1.0, gain=g, tau=tau))
    assert inner + tail == pytest.approx(ours, rel=2e-5)
    assert float(control.command_variance(noise=1.0, gain=g, tau=tau)) == pytest.approx(g**2 * ours, rel=1e-12)


def stationary(gain, d):
    """Variance by summing the powers of the impulse response: the solution of the Lyapunov equation."""
    response = loop(gain, d, 4000, noise=np.vstack([[1.0], np.zeros((3999, 1))]))
    return float((response[1:] ** 2).sum())


@pytest.mark.parametrize("gain", [0.05, 0.3, 0.7, 0.95])
def test_the_sampled_variances(gain):
    at = dict(step_noise=2.0, step_gain=gain)
    assert float(control.sampled_variance(**at)) == pytest.approx(2 * stationary(gain, 0), rel=1e-9)
    assert float(control.late_sampled_variance(**at)) == pytest.approx(2 * stationary(gain, 1), rel=1e-9)
    assert float(control.sampled_variance(step_noise=1.0, step_gain=2.0)) == inf
    assert float(control.late_sampled_variance(step_noise=1.0, step_gain=1.2)) == inf


def test_the_variance_in_a_seeded_run():
    rng = np.random.default_rng(20)
    g, tau, d, S = 0.02, 40.0, 40, 3.0
    dt = tau / d
    noise = rng.normal(0, (S * dt) ** 0.5, (4000, 1500))
    levels = loop(g * dt, d, 4000, noise=noise)[2000:]
    assert levels.var() == pytest.approx(float(control.level_variance(noise=S, gain=g, tau=tau)), rel=0.05)
    assert float(control.level_variance(noise=S, gain=0.04, tau=40.0)) == inf
    fine = stationary(g * dt, d) * S * dt
    assert fine == pytest.approx(float(control.level_variance(noise=S, gain=g, tau=tau)), rel=0.03)


def test_the_quietest_gain():
    lags = np.linspace(0.1, 1.5, 14001)
    variances = np.asarray(control.level_variance(noise=1.0, gain=lags / 5.0, tau=5.0))
    best = lags[variances.argmin()]
    assert best == pytest.approx(0.739085, abs=2e-4)
    assert best == pytest.approx(cos(best), abs=4e-4)
    assert variances.min() == pytest.approx(5.0 * (1 + sin(0.739085)) / (2 * 0.739085**2), rel=1e-6)


@pytest.mark.parametrize(("lead", "window"), [(1, 1), (5, 10), (8, 3)])
def test_the_bullwhip_in_a_seeded_run(lead, window):
    demand = np.random.default_rng(3).normal(100, 15, 400_000)
    mean = np.convolve(demand, np.ones(window) / window, mode="valid")
    orders = lead * np.diff(mean) + demand[window:]
    ours = float(control.bullwhip(lead_periods=lead, averaged=window))
    assert orders.var() / demand.var() == pytest.approx(ours, rel=0.02)


def flaps(load, n, low, high):
    """Whether a pool at a constant load goes back and forth between n - 1 and n workers."""
    return load > (1 + high) * (n - 1) and load < (1 - low) * n


@pytest.mark.parametrize("low", range(0, 8))
@pytest.mark.parametrize("high", range(0, 8))
def test_dead_bands_by_brute_force(low, high):
    """Every load on a grid finer than any flapping interval, run until the pool rests or returns."""
    if low == high == 0:
        assert float(control.steady_size(theta_in=0.0, theta_out=0.0)) == inf
        return
    theta_in, theta_out = Fraction(low, 20), Fraction(high, 20)
    bad = set()
    for n in range(2, 26):
        for k in range(1, 41):
            load = n - 1 + Fraction(k, 41)
            size, seen = n, []
            while size not in seen and 0 < size < 60:
                seen.append(size)
                size += 1 if load > (1 + theta_out) * size else -1 if load < (1 - theta_in) * size else 0
            if size != seen[-1]:  # it came back to a size that it had left
                bad.add(max(size, seen[-1]))
                assert flaps(load, max(size, seen[-1]), theta_in, theta_out)
    steady = ceil(Fraction(1 + theta_out) / (theta_in + theta_out))
    assert steady == ceil(float(control.steady_size(theta_in=low / 20, theta_out=high / 20)) - 1e-9)
    assert bad == set(range(2, min(steady, 26)))
