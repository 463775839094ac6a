"""Waiting corrections: sums and tables, the continuation in c, exact M/D/c, edges, gradients, the horizon."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import poisson

from fluidq import waiting
from fluidq._errors import InputError
from fluidq.formulas import aggregated
from tests.helpers import small_plant

SERVERS = [1, 2, 5, 30, 180, 1000, 4000]


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("load", [0.3, 0.8, 0.95, 0.999])
def test_erlang_b_is_the_truncated_poisson(servers, load):
    exact = np.exp(poisson.logpmf(servers, load * servers) - poisson.logcdf(servers, load * servers))
    assert float(waiting.erlang_b(servers, load * servers)) == pytest.approx(exact, rel=1e-9)


def test_known_values():
    # Two servers with one Erlang wait with chance 1/3; five with four 0.5541 (any text); ten trunks lose 1 % at 4.461.
    assert float(waiting.erlang_c(2, 1.0)) == pytest.approx(1 / 3, rel=1e-14)
    assert float(waiting.erlang_c(5, 4.0)) == pytest.approx(0.5541, abs=5e-5)
    assert float(waiting.erlang_b(10, 4.461)) == pytest.approx(0.01, abs=5e-6)
    # M/M/1 at load 0.9: 9 services.
    assert float(waiting.correction("mmc", 0.9, 1.0, 1)) == pytest.approx(9.0, rel=1e-13)


@pytest.mark.parametrize("servers", [0.5, 1.5, 2.5, 33.3, 410.7])
def test_the_continuation_is_the_integral(servers):
    offered = 0.9 * servers
    inverse = quad(lambda u: np.exp(-u + servers * np.log1p(u / offered)), 0, np.inf, epsabs=0, limit=500)[0]
    assert float(waiting.erlang_b(servers, offered)) == pytest.approx(1 / inverse, rel=1e-7)


def test_more_servers_wait_less_also_between_whole_numbers():
    c = np.linspace(8.05, 12, 80)
    wait = np.asarray(waiting.correction("mmc", 8.0, 1.0, c))
    assert (np.diff(wait) < 0).all()
    assert (np.diff(wait, 2) > 0).all()  # no kink at the whole ones


def test_one_server_is_pollaczek_khinchine():
    """The generated D24 formula, which is exact for one server."""
    for scv in (0.0, 0.4, 1.0, 3.0):
        exact = aggregated.queue_wait(load=0.85, service=0.2, scv=scv)
        for name in ("mgc", "kimura"):
            ours = waiting.correction(name, 0.85 / 0.2, 0.2, 1, 1.0, scv)
            assert float(ours) == pytest.approx(float(exact), rel=1e-12)


def steady_wait(servers: int, load: float) -> float:
    """Exact mean wait of M/D/c in service times: the chain X' = max(X - c, 0) + Poisson(c rho) over one service."""
    size = 40 * servers + 400
    came = poisson.pmf(np.arange(size), load * servers)
    p = np.zeros(size)
    p[0] = 1.0
    for _ in range(20_000):
        served = np.zeros(size)
        served[: size - servers] = p[servers:]
        served[0] += p[:servers].sum()
        new = np.convolve(served, came)[:size]
        new /= new.sum()
        if np.abs(new - p).max() < 1e-14:
            break
        p = new
    queue = float(np.maximum(np.arange(size) - servers, 0) @ p)
    return queue / (servers * load)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.7), (4, 0.9), (10, 0.5), (20, 0.8), (20, 0.95), (100, 0.8)])
def test_steady_service_on_many_servers(servers, load):
    """Kimura is within 2 % (5 % for many servers) of the exact M/D/c; Allen-Cunneen is below it, and farther away."""
    exact = steady_wait(servers, load)
    near = float(waiting.correction("kimura", load * servers, 1.0, servers, 1.0, 0.0))
    plain = float(waiting.correction("mgc", load * servers, 1.0, servers, 1.0, 0.0))
    assert near == pytest.approx(exact, rel=0.02 if servers < 100 else 0.05)
    assert plain < exact
    assert abs(near - exact) < abs(plain - exact)


@pytest.mark.parametrize("name", ["mmc", "mgc", "kimura"])
def test_edges(name):
    def wait(rate, c):
        return waiting.correction(name, rate, 0.5, c, 1.0, 0.5)

    slope = jax.grad(wait)
    for c in (1.0, 2.0, 64.0, 3000.0):
        assert float(wait(0.0, c)) == 0.0
        assert float(wait(2 * c, c)) == np.inf
        assert float(wait(3 * c, c)) == np.inf
        for load in (0.0, 1e-12, 0.3, 0.9, 1 - 1e-9, 1.0, 1.5):
            assert np.isfinite(float(slope(load * c / 0.5, c))), (c, load)
    # The first request is in the way of the next one for half its mean residual time, on one server only.
    factor = 1.0 if name == "mmc" else 0.75
    assert float(slope(0.0, 1.0)) == pytest.approx(factor * 0.25, rel=1e-12)
    assert float(slope(0.0, 2.0)) == pytest.approx(0.0, abs=1e-25)
    assert float(wait(1.0, 0.0)) == np.inf
    assert np.isfinite(float(jax.grad(wait, argnums=1)(1.0, 0.0)))


def test_none_is_the_fluid():
    assert float(waiting.correction("none", 50.0, 1.0, 2)) == 0.0
    assert waiting.correction("none", np.ones(3), 1.0, 2).shape == (3,)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["mmc", "mgc", "kimura"]),
    servers=st.floats(0.7, 2500.0),
    load=st.floats(0.3, 0.98),
    scv=st.floats(0.05, 3.0),
    horizon=st.sampled_from([None, 3.0, 200.0]),
)
def test_gradients_are_those_of_differences(name, servers, load, scv, horizon):
    point = np.array([load * servers / 0.4, 0.4, servers, 1.3, scv])

    def log_wait(x):
        wait = waiting.correction(name, x[0], x[1], x[2], x[3], x[4], horizon=horizon)
        return jnp.log(wait + 1e-200)

    if float(log_wait(point)) < -100:
        return  # nobody waits; differences of rounding say nothing
    ours = np.asarray(jax.grad(log_wait)(jnp.asarray(point)))
    for i in range(5):
        h = 1e-5 * point[i] * min(1.0, 20 * (1 - load))
        up, down = point.copy(), point.copy()
        up[i] += h
        down[i] -= h
        theirs = (float(log_wait(up)) - float(log_wait(down))) / (2 * h)
        assert ours[i] == pytest.approx(theirs, rel=2e-5, abs=1e-4 / point[i])


def test_vmap_is_the_loop_and_jit_changes_nothing():
    rates, servers = np.linspace(0.0, 12.0, 25), np.linspace(1.0, 13.0, 25)

    def wait(rate, c):
        return waiting.correction("mgc", rate, 1.0, c, 1.0, 0.3)

    batch = np.asarray(jax.jit(jax.vmap(wait))(rates, servers))
    loop = np.array([float(wait(r, c)) for r, c in zip(rates, servers, strict=True)])
    np.testing.assert_allclose(batch, loop, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(wait(rates, servers)), loop, rtol=1e-12)


def test_a_horizon_makes_it_finite_and_continuous_through_capacity():
    def wait(load, horizon, c=20.0):
        return float(waiting.correction("mgc", load * c / 0.1, 0.1, c, 1.0, 0.6, horizon=horizon))

    settled = float(waiting.correction("mgc", 0.9 * 200, 0.1, 20.0, 1.0, 0.6))
    assert wait(0.9, 1e4) == pytest.approx(settled, rel=1e-9)
    assert wait(0.9, 1e6) == pytest.approx(settled, rel=1e-12)
    assert wait(0.9, 0.05) < 0.4 * settled
    assert wait(0.9, 0.0) == 0.0
    values = [wait(load, 30.0) for load in (1 - 1e-7, 1.0, 1 + 1e-7)]
    np.testing.assert_allclose(values, values[1], rtol=1e-5)
    # At capacity the queue is a reflected walk: sqrt(2 s2 T / pi) requests, each worth s/c.
    assert values[1] == pytest.approx(0.1 / 20 * np.sqrt(2 * 200 * 1.6 * 30.0 / np.pi), rel=1e-9)
    # Far above, what is left of chance is the same as far below: s2 / (2 |drift|).
    assert wait(1.5, 30.0) == pytest.approx(0.1 / 20 * (300 * 1.6) / (2 * 100), rel=1e-6)
    for load in (0.0, 0.5, 1.0, 2.0):
        grad = jax.grad(lambda r: waiting.correction("mgc", r, 0.1, 20.0, 1.0, 0.6, horizon=30.0))(load * 200)
        assert np.isfinite(float(grad))


def test_the_horizon_against_reflected_walks():
    """The mean maximum of Gaussian walks, whose steps are those of the queue's Brownian limit, above its fluid."""
    rng = np.random.default_rng(5)
    horizon, steps, c, s, scv = 20.0, 4000, 1.0, 0.05, 1.5
    for load in (0.95, 1.0, 1.05):
        rate = load * c / s
        drift, spread = rate - c / s, np.sqrt(rate * scv)
        dt = horizon / steps
        top, x = np.zeros(4000), np.zeros(4000)
        for _ in range(steps):
            x += drift * dt + spread * np.sqrt(dt) * rng.standard_normal(4000)
            np.maximum(top, x, out=top)
        # A walk on a grid misses the peaks between: the mean gap is 0.5826 of a step's spread (Chernoff).
        known = x - drift * horizon  # its mean is 0: what it explains of the maximum's chance is taken out
        mean = np.mean(top - np.cov(top, known)[0, 1] / known.var() * known) + 0.5826 * spread * np.sqrt(dt)
        beyond = (mean - max(drift, 0.0) * horizon) * s / c
        ours = float(waiting.correction("mgc", rate, s, c, 1.0, scv - 1.0, horizon=horizon))
        assert ours == pytest.approx(beyond, rel=0.03)


def test_of_plant_names_both_pools():
    plant = small_plant(prefill_worker=4.0, accept=1.6)
    load = {"rate": 300.0, "isl_computed": 1000.0, "isl_stored": 1500.0, "osl": 200.0}
    prefill, decode = waiting.of_plant(
        "mgc", plant, **load, prefill_gpus=40.0, decode_gpus=18.0, scv_isl=2.0, scv_osl=0.5
    )
    assert float(prefill) == pytest.approx(float(waiting.correction("mgc", 300.0, 0.025, 10.0, 1.0, 2.0)), rel=1e-12)
    t_full = 0.02 + 64 * 1e-4 + 64 * 8e-9 * (1500 + 199 / 2)
    slots = waiting.correction("mgc", 300.0, 200 * t_full / 1.6, 18 * 64.0, 1.0, 0.5)
    assert float(decode) == pytest.approx(float(slots), rel=1e-9)
    gone = waiting.of_plant("mmc", plant, **load, prefill_gpus=0.0, decode_gpus=0.0)
    assert [float(x) for x in gone] == [np.inf, np.inf]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "mgk"}, "unknown waiting correction 'mgk'; did you mean 'mgc'"),
        ({"rate": -1.0}, "rate is -1.0; it must be finite and >= 0"),
        ({"rate": np.array([1.0, np.nan])}, "rate is nan"),
        ({"service_time": 0.0}, "service_time is 0.0; it must be finite and > 0"),
        ({"servers": -2}, "servers is -2.0"),
        ({"scv_service": -0.1}, "scv_service is -0.1"),
        ({"horizon": -5.0}, "horizon is -5.0"),
    ],
)
def test_bad_input_is_refused(change, words):
    good = {"name": "mgc", "rate": 1.0, "service_time": 0.5, "servers": 2}
    with pytest.raises(InputError) as caught:
        waiting.correction(**{**good, **change})
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["mmc", "mgc", "kimura"])
@pytest.mark.parametrize("lengths", [(0.0, 0.0), (1000.0, 0.0), (0.0, 200.0)])
@pytest.mark.parametrize("rate", [0.0, 20.0])
def test_requests_of_no_length_wait_for_none_and_have_finite_slopes_in_both_modes(name, lengths, rate):
    """An empty tick has no mean lengths, and a prompt may have no output: 0 / 0 in neither value nor slope."""
    plant = small_plant()

    def waits(x):
        isl, osl = x[0] * lengths[0], x[1] * lengths[1]
        sizes = {"prefill_gpus": 4.0 * x[2], "decode_gpus": 4.0 * x[2], "horizon": 60.0}
        got = waiting.of_plant(name, plant, rate=rate * x[3], isl_computed=isl, isl_stored=isl, osl=osl, **sizes)
        return jnp.stack(got)

    at = jnp.ones(4)
    values = np.asarray(jax.jit(waits)(at))
    assert np.all(np.isfinite(values))
    assert np.all(values[np.array(lengths) == 0] == 0.0)
    forward, reverse = np.asarray(jax.jit(jax.jacfwd(waits))(at)), np.asarray(jax.jit(jax.jacrev(waits))(at))
    assert np.all(np.isfinite(forward))
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-30)
