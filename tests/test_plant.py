"""One step of physics: conservation, limits, known steady states, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.plant import Arrivals, Contents, PlantState, advance, empty
from tests.helpers import central, small_plant

STEP = jax.jit(advance)


def random_state(rng, scale=1.0) -> PlantState:
    def store(n):
        n = n * scale * rng.choice([0.0, 1.0], p=[0.2, 0.8])
        return Contents(n, n * rng.uniform(100, 9000), n * rng.uniform(1, 900))

    backlog = store(rng.exponential(200))
    return PlantState(
        backlog=backlog,
        computed=backlog.stored * rng.uniform(0.1, 1),
        buffer=store(rng.exponential(20)),
        active=store(rng.exponential(300)),
    )


def random_arrivals(rng) -> Arrivals:
    n = rng.choice([0.0, rng.exponential(100)])
    isl = rng.uniform(50, 12000)
    return Arrivals(n, n * isl * rng.uniform(0, 1), n * isl, n * rng.uniform(1, 900))


def total(state: PlantState) -> np.ndarray:
    return np.sum([np.array(s, dtype=float) for s in (state.backlog, state.buffer, state.active)], axis=0)


@pytest.mark.parametrize("back_pressure", [True, False])
def test_every_step_conserves_requests_and_tokens_of_each_kind(back_pressure):
    rng = np.random.default_rng(0)
    plant = small_plant(back_pressure=back_pressure)
    for _ in range(400):
        state, arrivals = random_state(rng), random_arrivals(rng)
        # A buffer that starts over its capacity is no state of the model.
        if plant.kappa * state.buffer.stored > plant.capacity:
            continue
        dt = float(rng.choice([0.1, 5.0, 60.0]))
        new, flows = STEP(state, arrivals, float(rng.integers(1, 9)), float(rng.integers(1, 9)), plant, dt)
        came = np.array([arrivals.requests, arrivals.stored, arrivals.output])
        left = total(new) + np.array(flows.done, dtype=float) + np.array(flows.lost, dtype=float)
        np.testing.assert_allclose(left, total(state) + came, rtol=1e-13, atol=1e-9)
        lost_work = float(flows.lost.requests) > 0
        if not lost_work:
            work = float(new.computed + flows.prefilled)
            assert work == pytest.approx(float(state.computed + arrivals.computed), rel=1e-13, abs=1e-9)
        assert 0 <= float(plant.kappa * new.buffer.stored) <= plant.capacity * (1 + 1e-12)
        assert min(np.min(np.array(s, dtype=float)) for s in (new.backlog, new.buffer, new.active)) >= 0


def test_requests_stay_requests_when_the_mix_changes_over_full_stores():
    """ISL 8192 -> 1024 at full buffers: what went in comes out, although the current mix would say otherwise."""
    plant = small_plant(capacity=100e9)
    state, sent, done = empty(), 0.0, 0.0
    for k in range(4000):
        n, isl = (5.0, 8192.0) if k < 200 else (5.0, 1024.0) if k < 400 else (0.0, 1024.0)
        arrivals = Arrivals(n, n * isl, n * isl, n * 300.0)
        state, flows = STEP(state, arrivals, 2.0, 1.0, plant, 5.0)
        sent, done = sent + n, done + float(flows.done.requests)
    assert sent == 2000
    assert done == pytest.approx(sent, rel=1e-9)
    assert float(total(state)[0]) < 1e-6


def test_below_saturation_the_batch_obeys_little():
    plant = small_plant(t_step_b=0.0, t_step_c=0.0)
    state, rate, osl = empty(), 8.0, 250.0
    for _ in range(2000):
        state, _ = STEP(state, Arrivals(rate, rate * 500, rate * 500, rate * osl), 2.0, 1.0, plant, 1.0)
    assert float(state.active.requests) == pytest.approx(rate * osl * plant.t_step_a, rel=1e-9)
    assert float(state.buffer.requests) == 0
    assert float(state.backlog.requests) == 0


def test_saturated_decode_finishes_at_its_batch_over_its_residence_and_fills_the_buffer():
    plant = small_plant(t_step_b=0.0, t_step_c=0.0)
    state, osl = empty(), 400.0
    for _ in range(3000):
        state, flows = STEP(state, Arrivals(20.0, 20e3, 20e3, 20 * osl), 6.0, 1.0, plant, 1.0)
    assert float(flows.done.requests) == pytest.approx(plant.batch / (osl * plant.t_step_a), rel=1e-6)
    assert float(plant.kappa * state.buffer.stored) == pytest.approx(plant.capacity, rel=1e-9)
    assert float(flows.stalled) > 0
    assert float(state.backlog.requests) > 0


def test_prefill_and_fabric_limit_the_flow():
    prefill = small_plant()
    arrivals = Arrivals(100.0, 1e6, 1e6, 1e3)
    _, flows = STEP(empty(), arrivals, 3.0, 50.0, prefill, 10.0)
    assert float(flows.prefilled) == pytest.approx(3 * 10_000 * 10)
    fabric = small_plant(fabric=1e9)
    _, flows = STEP(empty(), arrivals, 30.0, 50.0, fabric, 10.0)
    assert float(flows.prefilled) == pytest.approx(1e9 * 10 / fabric.kappa)


def test_full_buffer_stalls_or_loses():
    full = Contents(100.0, 20e9 / 95e3, 5e4)
    busy = Contents(64.0, 64e3, 64e3)
    state = PlantState(Contents(0.0, 0.0, 0.0), 0.0, full, busy)
    arrivals = Arrivals(50.0, 5e4, 5e4, 5e3)
    held, flows = STEP(state, arrivals, 5.0, 1.0, small_plant(), 1.0)
    assert float(flows.lost.requests) == 0
    assert float(flows.stalled) > 0
    assert float(held.backlog.requests) > 0
    lossy, flows = STEP(state, arrivals, 5.0, 1.0, small_plant(back_pressure=False), 1.0)
    assert float(flows.lost.requests) > 0
    assert float(lossy.backlog.requests) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "rate_of_service"),
    [
        # Decode holds everything back: 64 slots, 400 steps of 20 ms.
        ({}, 64 / (400 * 0.02)),
        # The fabric does: 0.5 GB/s over 95 kB and 1000 tokens.
        ({"fabric": 0.5e9}, 0.5e9 / (95e3 * 1000)),
        # Prefill does: 2 GPUs of 10,000 tok/s, here at a tenth of it.
        ({"r_P": 500.0}, 2 * 500.0 / 1000),
    ],
)
def test_ttft_of_an_overloaded_fleet_is_the_wait_of_the_last_in_line(changes, rate_of_service):
    """FIFO: who arrives at time t after n requests is served when n are through, at the bottleneck's own rate."""
    plant = small_plant(t_step_b=0.0, t_step_c=0.0, capacity=5e9, **changes)
    state, arrived, dt = empty(), 0.0, 1.0
    for _ in range(600):
        state, flows = STEP(state, Arrivals(20.0, 20e3, 20e3, 20 * 400.0), 2.0, 1.0, plant, dt)
        arrived += 20.0
    waiting = float(state.backlog.requests + state.buffer.requests)
    own = 1000 / float(plant.r_P) + float(plant.kappa) * 1000 / 45e9 + 0.02
    assert waiting > 1000
    felt = plant.latency(state, Arrivals(20.0, 20e3, 20e3, 20 * 400.0), 2.0, 1.0, flows)
    assert float(felt.ttft) == pytest.approx(waiting / rate_of_service + own, rel=0.02)
    assert float(felt.wait + felt.prefill + felt.transfer + felt.first_step) == pytest.approx(float(felt.ttft))


@pytest.mark.parametrize("pools", [(0.0, 1.0), (1.0, 0.0)])
def test_a_pool_without_gpus_serves_nobody(pools):
    plant, arrivals = small_plant(), Arrivals(5.0, 5e3, 5e3, 500.0)
    state, flows = STEP(empty(), arrivals, *pools, plant, 1.0)
    assert np.isinf(float(plant.latency(state, arrivals, *pools, flows).ttft))
    assert float(flows.done.requests) == 0


def test_draining_decode_gpus_keep_serving_and_are_counted():
    busy = Contents(128.0, 128e3, 128e3)
    state = PlantState(Contents(0.0, 0.0, 0.0), 0.0, Contents(0.0, 0.0, 0.0), busy)
    new, flows = STEP(state, Arrivals(1.0, 100.0, 100.0, 10.0), 1.0, 1.0, small_plant(), 1.0)
    assert float(flows.serving) == 2.0
    assert float(new.active.requests) < 128
    assert float(new.buffer.requests) == pytest.approx(1.0)  # no admission while the pool is over its slots


def test_two_half_steps_are_one_step_for_what_is_resident():
    plant = small_plant(t_step_b=0.0, t_step_c=0.0)
    busy = Contents(40.0, 40e3, 40 * 300.0)
    state = PlantState(Contents(0.0, 0.0, 0.0), 0.0, Contents(0.0, 0.0, 0.0), busy)
    whole, _ = STEP(state, Arrivals(4.0, 2e3, 2e3, 4 * 300.0), 2.0, 1.0, plant, 2.0)
    half, _ = STEP(state, Arrivals(2.0, 1e3, 1e3, 2 * 300.0), 2.0, 1.0, plant, 1.0)
    half, _ = STEP(half, Arrivals(2.0, 1e3, 1e3, 2 * 300.0), 2.0, 1.0, plant, 1.0)
    assert float(half.active.requests) == pytest.approx(float(whole.active.requests), rel=1e-14)


FIELDS = (
    *("r_P", "batch", "t_step_a", "t_step_b", "t_step_c"),
    *("kappa", "capacity", "nic_prefill", "nic_decode", "accept"),
)


def outcome(values, state, arrivals):
    plant = small_plant(**dict(zip(FIELDS, values * NOMINAL, strict=True)))
    new, flows = advance(state, arrivals, 2.0, 1.0, plant, 7.0)
    stores = new.backlog.requests + 2 * new.buffer.requests + 3 * new.active.requests
    felt = plant.latency(new, arrivals, 2.0, 1.0, flows)
    return stores + felt.ttft + felt.tpot + flows.stalled


NOMINAL = np.array([float(getattr(small_plant(), f)) for f in FIELDS])


@pytest.mark.parametrize("seed", range(6))
def test_gradients_agree_with_differences(seed):
    rng = np.random.default_rng(seed)
    state, arrivals = random_state(rng, 0.3), random_arrivals(rng)
    f = jax.jit(lambda v: outcome(v, state, arrivals))
    ones = np.ones(len(FIELDS))
    gradient, reverse = np.asarray(jax.jacfwd(f)(ones)), np.asarray(jax.grad(f)(ones))
    expected = central(f, ones)
    scale = np.abs(expected).max() + 1e-9
    np.testing.assert_allclose(gradient / scale, expected / scale, atol=2e-6)
    np.testing.assert_allclose(reverse / scale, gradient / scale, atol=1e-12)


NOTHING = Contents(0.0, 0.0, 0.0)
EDGES = {
    "empty": (empty(), Arrivals(0.0, 0.0, 0.0, 0.0)),
    "first arrivals": (empty(), Arrivals(5.0, 5e3, 5e3, 500.0)),
    "no output": (empty(), Arrivals(5.0, 5e3, 5e3, 0.0)),
    "all cached": (empty(), Arrivals(5.0, 0.0, 5e3, 500.0)),
    "denormal": (
        PlantState(NOTHING, 0.0, NOTHING, Contents(1e-320, 1e-318, 1e-319)),
        Arrivals(0.0, 0.0, 0.0, 0.0),
    ),
    "full buffer": (
        PlantState(NOTHING, 0.0, Contents(100.0, 20e9 / 95e3, 5e4), Contents(64.0, 64e3, 64e3)),
        Arrivals(1.0, 1e3, 1e3, 100.0),
    ),
    "slots at a tie": (
        PlantState(NOTHING, 0.0, NOTHING, Contents(64.0, 64e3, 64e3)),
        Arrivals(0.0, 0.0, 0.0, 0.0),
    ),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("capacity", [1.0, 0.0])
def test_values_and_gradients_are_finite_at_the_edges(edge, capacity):
    state, arrivals = EDGES[edge]
    point = np.where(np.array(FIELDS) == "capacity", capacity, 1.0)
    if capacity == 0:
        state = state._replace(buffer=NOTHING)
    assert np.isfinite(float(outcome(point, state, arrivals)))
    for gradient in (jax.jacfwd, jax.grad):
        assert np.all(np.isfinite(np.asarray(gradient(lambda v: outcome(v, state, arrivals))(point))))
    by_arrivals = jax.jacfwd(lambda a: advance(state, Arrivals(*a), 2.0, 1.0, small_plant(), 7.0)[0].active.requests)
    assert np.all(np.isfinite(np.asarray(by_arrivals(jnp.array(arrivals, dtype=float)))))
