"""The continuous engine: the fast engine converges to it at first order, events are solved for, derivatives exist."""

from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.continuous import Drained, Full, solve
from fluidq.plant import Contents
from fluidq.policies import Thresholds
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, simulate
from tests.helpers import central, small_fleet, small_plant

TICKS, INTERVAL = 16, 15.0
RELAX = 0.0025
LAW = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)


class Fixed(Policy):
    """Two pools that stay as they are."""

    KEEPS_BUDGET = True
    prefill: object = 1.0
    decode: object = 1.0

    def initial(self, fleet, width):
        return Asked(self.prefill, self.decode)

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(self.prefill, self.decode)


def load(rates, isl=1000.0, osl=200.0, parts=1):
    """One rate [req/s] per control interval, each interval cut into `parts`."""
    n = np.repeat(np.asarray(rates, dtype=float), parts) * INTERVAL / parts
    return Load(*(jnp.asarray(x) for x in (n, n * isl, n * isl, n * osl)))


def arrays(tree):
    """Numbers as arrays: one compilation for all scenarios."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=float), tree)


class Scenario(NamedTuple):
    capacity: float
    t_step_b: float
    rates: list
    pools: tuple


SCENARIOS = {
    "fill": Scenario(100e9, 1e-4, [20.0] * 16, (4.0, 1.0)),
    "drain": Scenario(100e9, 1e-4, [20.0] * 4 + [0.0] * 12, (4.0, 1.0)),
    "back-pressure": Scenario(3e9, 1e-4, [20.0] * 7 + [2.0] * 9, (4.0, 1.0)),
    "starvation": Scenario(20e9, 1e-3, [20.0] * 5 + [4.0] * 11, (1.0, 4.0)),
}


def continuous(scenario, **options):
    fleet = small_fleet(small_plant(capacity=scenario.capacity, t_step_b=scenario.t_step_b))
    return solve(fleet, load(scenario.rates), scenario.pools, **{"relax": RELAX, "rtol": 1e-7, **options})


def stores(state):
    return np.stack([np.asarray(state.computed), np.asarray(state.buffer.stored), np.asarray(state.active.requests)])


def fast(scenario, parts):
    """Backlog, buffer and batch of the fast engine at the ends of the control intervals."""
    plant = small_plant(capacity=scenario.capacity, t_step_b=scenario.t_step_b)
    fleet = arrays(small_fleet(plant, interval=INTERVAL / parts))
    t = simulate(fleet, load(scenario.rates, parts=parts), arrays(Fixed(*scenario.pools))).trajectory
    rows = np.stack([np.asarray(t.backlog), np.asarray(t.buffer_bytes) / float(plant.kappa), np.asarray(t.active)])
    return rows[:, parts - 1 :: parts]


def order(errors):
    """The slope of ln error over ln step; the steps halve."""
    return np.polyfit(-np.arange(len(errors)) * np.log(2.0), np.log(errors), 1)[0]


def difference(rows, reference):
    """The largest difference of a store at a control interval's end, as a share of that store's largest content."""
    return np.max(np.abs(rows - reference) / np.maximum(reference.max(axis=1), 1.0)[:, None])


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_fast_engine_converges_at_first_order(name):
    """The step time frozen over a step and the kinks inside one are of order 1. Steps of 1.5 s to 0.19 s."""
    scenario = SCENARIOS[name]
    reference = stores(continuous(scenario).states)[:, 1:]
    assert reference[{"fill": 1, "drain": 1, "back-pressure": 0, "starvation": 0}[name]].max() > 1e3
    errors = [difference(fast(scenario, parts), reference) for parts in (10, 20, 40, 80)]
    assert 0.85 < order(errors) < 1.25, errors
    assert errors[-1] < 3e-3


def test_a_closed_loop_through_a_cold_start_converges_at_first_order():
    rates = [10.0] * 3 + [60.0] * 13
    fleet = {"cold_start": 45.0, "initial_gpus": 6.0}
    plant = small_plant(capacity=3e9)
    path = solve(small_fleet(plant, **fleet), load(rates), LAW, width=0.5, relax=0.01, rtol=1e-7)
    reference = stores(path.states)[:, 2::2]
    errors = []
    for substeps in (4, 8, 16):
        run = simulate(arrays(small_fleet(plant, substeps=substeps, **fleet)), load(rates), arrays(LAW), width=0.5)
        t = run.trajectory
        rows = np.stack([np.asarray(t.backlog), np.asarray(t.buffer_bytes) / float(plant.kappa), np.asarray(t.active)])
        errors.append(difference(rows, reference))
    assert 0.85 < order(errors) < 1.25, errors
    assert np.ptp(np.asarray(t.decode_gpus)) > 1, "workers land in this scenario"
    assert float(path.final.decode_gpus) == pytest.approx(float(t.decode_gpus[-1]), abs=0.05)
    assert float(path.cost.gpu_hours) == pytest.approx(float(run.cost.gpu_hours), rel=1e-2)
    assert float(path.cost.cost) == pytest.approx(float(run.cost.cost), rel=2e-2)


def test_explicit_euler_with_the_step_of_the_layer_is_the_fast_engine():
    """One physics: the same flow functions, to rounding."""
    scenario = SCENARIOS["back-pressure"]
    path = continuous(scenario, relax=1.5, step=1.5, solver=diffrax.Euler())
    np.testing.assert_allclose(stores(path.states)[:, 1:], fast(scenario, 10), rtol=1e-9, atol=1e-6)


def test_the_layer_is_of_first_order_and_a_stiff_solver_takes_a_thinner_one():
    scenario = SCENARIOS["back-pressure"]
    reference = stores(continuous(scenario).states)
    errors = [difference(stores(continuous(scenario, relax=h).states), reference) for h in (0.2, 0.1, 0.05)]
    assert 0.85 < order(errors) < 1.25, errors
    thin = stores(continuous(scenario, relax=1e-4, solver=diffrax.Kvaerno5(), rtol=1e-6).states)
    assert difference(thin, reference) < 2e-4


def test_requests_and_tokens_balance():
    scenario = SCENARIOS["back-pressure"]
    path = continuous(scenario)
    y, sums = path.final.state, path.final.totals
    arrived = np.array([np.sum(np.asarray(part)) for part in load(scenario.rates)])[[0, 2, 3]]
    held = sum(np.array(store, dtype=float) for store in (y.backlog, y.buffer, y.active))
    gone = np.array(sums.done, dtype=float) + np.array(sums.lost, dtype=float)
    np.testing.assert_allclose(held + gone, arrived, rtol=1e-9)
    assert float(sums.prefilled + path.final.backlog) == pytest.approx(arrived[1], rel=1e-9)


# Events. Decode is busy from the start and t_s constant: it admits 64 / (200 * 0.02 s) = 16 req/s of 95 MB.

BUSY = Contents(64.0, 64e3, 64 * 200.0)
NOTHING = Contents(0.0, 0.0, 0.0)
FLAT = {"t_step_b": 0.0, "t_step_c": 0.0}
PER_REQUEST = 95e3 * 1000.0


def event_path(x, rate, stock, ticks=TICKS, **options):
    """x = (capacity [B], prefill GPUs)."""
    plant = small_plant(capacity=x[0], **FLAT)
    empty = plant.empty()
    buffer = Contents(stock, stock * 1000.0, stock * 200.0)
    state = empty._replace(buffer=buffer, active=BUSY)
    return solve(small_fleet(plant), load([rate] * ticks), (x[1], 1.0), state=state, relax=RELAX, **options)


def test_the_buffer_is_full_at_c_over_the_net_inflow_and_so_is_its_derivative():
    def when(x):
        time = event_path(x, 20.0, 0.0, ticks=4, adjoint=diffrax.ForwardMode()).when(Full())
        return time, time

    slope, time = (np.asarray(part) for part in jax.jit(jax.jacfwd(when, has_aux=True))(jnp.array([10e9, 4.0])))
    assert float(time) == pytest.approx(10e9 / (4.0 * PER_REQUEST), abs=4 * RELAX)
    assert slope[0] == pytest.approx(1.0 / (4.0 * PER_REQUEST), rel=1e-3)
    assert slope[1] == pytest.approx(0.0, abs=1e-6), "prefill is not the bottleneck"


def test_the_buffer_is_empty_when_its_stock_is_admitted_and_inf_is_never():
    path = event_path(jnp.array([10e9, 4.0]), 0.0, 100.0)
    assert float(path.when(Drained())) == pytest.approx(100.0 / 16.0, abs=8 * RELAX)
    assert float(path.when(Drained(share=0.0))) == np.inf, "the last byte goes exponentially"
    assert float(path.when(Drained(share=0.99))) == 0.0, "already there"


class Over(eqx.Module):
    """More than so many seconds to the first token."""

    limit: float

    def __call__(self, level):
        return level.latency.ttft - self.limit


def test_dense_output_continues_the_edges_and_a_threshold_is_met_where_it_says():
    path = continuous(SCENARIOS["starvation"])
    time = path.when(Over(20.0))
    found = path.at(jnp.concatenate([path.edges, time - jnp.asarray([5.0, 1.0, 0.1, 0.0])]))
    edges, ttft = np.asarray(found.active)[:-4], np.asarray(found.latency.ttft)[-4:]
    np.testing.assert_allclose(edges, np.asarray(path.states.active.requests), rtol=1e-7, atol=1e-9)
    assert np.all(np.diff(ttft) > 0)
    assert ttft[-1] == pytest.approx(20.0, abs=1e-6)
    with pytest.raises(ValueError, match=r"t is 999\.0; it must be a time between 0 s and 240 s"):
        path.at([0.0, 999.0])


# The other controllers.


def test_an_erlang_cold_start_and_a_role_switch_go_with_the_fast_engine():
    rates = [10.0] * 3 + [60.0] * 13
    options = {"cold_start": 60.0, "stages": 2, "switch_delay": 20.0, "initial_gpus": 6.0}
    fleet = small_fleet(small_plant(), **options)
    path = solve(fleet, load(rates), LAW, width=0.5, relax=0.05)
    run = simulate(small_fleet(small_plant(), substeps=4, **options), load(rates), LAW, width=0.5)
    for name in ("prefill_gpus", "decode_gpus", "active"):
        end = getattr(run.trajectory, name)[-1]
        assert float(getattr(path.final, name)) == pytest.approx(float(end), rel=0.05), name
    assert float(path.cost.gpu_hours) == pytest.approx(float(run.cost.gpu_hours), rel=0.03)


def follow(level):
    """A smooth controller without delay: decode GPUs in proportion to the batch and the stock."""
    wanted = (level.active + level.state.buffer.requests) / 48.0
    return 4.0, 1.0 + wanted


def test_a_smooth_controller_acts_at_once():
    path = solve(small_fleet(), load([20.0] * 16), follow, relax=0.05)
    assert float(path.final.decode_gpus) == pytest.approx(1.0 + float(path.final.active) / 48.0, rel=1e-9)
    little = 20.0 * 200.0 * float(path.final.latency.tpot)
    assert float(path.final.active) == pytest.approx(little, rel=1e-3), "in steady state, by Little"


# Derivatives, at the tolerance that is the default.


def closed_cost(x, adjoint=None):
    """x = (cold start, capacity, threshold), as shares of 40 s, 3 GB and 0.9; 40 s is a fractional tick."""
    fleet = small_fleet(small_plant(capacity=3e9), cold_start=40.0, initial_gpus=6.0)
    fleet = eqx.tree_at(lambda f: (f.cold_start, f.plant.capacity), fleet, (40.0 * x[0], 3e9 * x[1]))
    law = Thresholds(0.5, 0.05, 0.9 * x[2], 0.5, 0.5, 4.0)
    rates = load([10.0] * 2 + [60.0] * 8)
    return solve(fleet, rates, law, width=0.5, relax=0.1, adjoint=adjoint).cost.cost


def test_the_closed_loop_has_the_gradient_of_its_differences():
    both = jax.jit(jax.jacfwd(lambda x: (closed_cost(x, diffrax.ForwardMode()),) * 2, has_aux=True))
    forward = np.asarray(both(jnp.ones(3))[0])
    expected = central(lambda x: both(x)[1], np.ones(3), 1e-4)
    assert np.all(np.abs(expected[[0, 2]]) > 1e-3)
    np.testing.assert_allclose(forward, expected, rtol=5e-3, atol=1e-6)
    with pytest.raises(ValueError, match=r"adjoint is 'RecursiveCheckpointAdjoint'; it must be diffrax\.ForwardMode"):
        closed_cost(jnp.ones(3), diffrax.RecursiveCheckpointAdjoint())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"relax": 0.0}, r"relax is 0\.0; it must be a finite number > 0"),
        ({"rtol": -1.0}, r"rtol is -1\.0"),
        ({"policy": (1.0, jnp.ones(3))}, r"decode pool is \(3,\); it must be a number or one per interval"),
        ({"policy": (-1.0, 1.0)}, r"prefill pool is -1\.0"),
        ({"policy": 3.0}, r"policy is 3\.0; it must be a Policy, a pair of pools or a function"),
    ],
)
def test_bad_requests_are_named(change, words):
    policy = change.pop("policy", (1.0, 1.0))
    with pytest.raises(ValueError, match=words):
        solve(small_fleet(), load([1.0] * 4), policy, **change)
