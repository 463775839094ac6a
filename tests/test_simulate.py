"""The closed loop: balance of requests, cold starts, budget, derivatives."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq import waiting
from fluidq.objective import Objective
from fluidq.policies import PARAMETERS, Thresholds
from fluidq.simulate import Load, load_of, simulate
from fluidq.workload import Workload, default_workload
from tests.helpers import central, small_fleet, small_plant

POLICY = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)
GROWS = Thresholds(prefill_up=0.5, prefill_down=0.0, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)


def constant(rate=40.0, ticks=400, isl=1000.0, osl=200.0):
    n = np.full(ticks, rate * 15.0)
    return Load(*(jnp.asarray(x) for x in (n, n * isl, n * isl, n * osl)))


@pytest.mark.parametrize("width", [None, 0.5])
@pytest.mark.parametrize("back_pressure", [True, False])
def test_requests_balance_over_a_day(width, back_pressure):
    fleet = small_fleet(small_plant(capacity=2e9, back_pressure=back_pressure))
    run = simulate(fleet, default_workload(seed=1), POLICY, width=width, record=False)
    total = float(run.done + run.lost + run.left)
    assert total == pytest.approx(float(run.arrived), rel=1e-12)
    assert back_pressure or float(run.lost) > 0


def test_the_hard_law_keeps_integers_and_the_budget():
    fleet = small_fleet(budget=30.0, cold_start=30.0)
    t = simulate(fleet, default_workload(seed=2).scaled(2.0), POLICY).trajectory
    for pool in (t.prefill_gpus, t.decode_gpus):
        np.testing.assert_allclose(pool, np.round(pool), atol=1e-9)
    assert float(jnp.max(t.requested_gpus)) <= 30.0
    assert float(jnp.min(t.prefill_gpus)) >= 0


@pytest.mark.parametrize(("cold_start", "ticks_late"), [(0.0, 0.0), (15.0, 1.0), (40.0, 40 / 15), (150.0, 10.0)])
def test_workers_arrive_one_cold_start_after_they_are_asked_for(cold_start, ticks_late):
    """Total worker-time lost to starting = workers started x cold start, fractional ticks included."""
    fleet = small_fleet(cold_start=cold_start, initial_gpus=4.0)
    run = simulate(fleet, constant(rate=60.0), GROWS)
    t = run.trajectory
    starting = np.asarray(t.requested_gpus - t.prefill_gpus - t.decode_gpus)
    grown = np.diff(np.asarray(t.requested_gpus), prepend=4.0)
    assert grown.min() >= 0
    assert grown.sum() >= 8, "the scenario grows"
    assert starting.sum() == pytest.approx(grown.sum() * ticks_late, rel=1e-9)


def test_workers_that_never_come_leave_the_fleet_as_it_was():
    fleet = small_fleet(cold_start=1e6, initial_gpus=4.0)
    t = simulate(fleet, constant(rate=60.0, ticks=50), GROWS).trajectory
    assert float(t.requested_gpus[-1]) == 8.0
    assert np.ptp(np.asarray(t.prefill_gpus + t.decode_gpus)) == 0


def test_derivatives_with_respect_to_every_fleet_number_agree_with_differences():
    load = load_of(default_workload(seed=3).slice(0, 4 * 3600).scaled(1.5), 15.0)

    def cost(x):
        plant = small_plant(r_P=1e4 * x[0], kappa=95e3 * x[1], capacity=20e9 * x[2], t_step_a=0.02 * x[3])
        fleet = small_fleet(cold_start=40.0)
        fleet = jax.tree.map(lambda v: v, fleet)
        fleet = type(fleet)(
            plant=plant,
            cold_start=40.0 * x[4],
            budget=40.0,
            initial_gpus=12.0 * x[5],
            request_gpu_seconds=0.2,
            interval=15.0,
            delay_ticks=2,
        )
        return simulate(fleet, load, POLICY, width=0.7, record=False).cost.cost

    f = jax.jit(cost)
    ones = np.ones(6)
    gradient, expected = np.asarray(jax.jacfwd(f)(ones)), central(f, ones)
    reverse = np.asarray(jax.grad(f)(ones))
    np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(reverse, gradient, rtol=1e-8, atol=1e-10)
    assert abs(expected[4]) > 1e-3, "the cold start matters in this scenario"


def test_one_batch_is_the_loop_and_the_same_call_gives_the_same_bits():
    fleet, load = small_fleet(), load_of(default_workload(seed=4).slice(0, 7200), 15.0)

    def cost(up):
        policy = Thresholds(up, 0.05, 0.9, 0.5, 0.5, 4.0)
        return simulate(fleet, load, policy, record=False).cost.cost

    ups = jnp.array([0.2, 0.5, 1.0])
    batch = np.asarray(jax.jit(jax.vmap(cost))(ups))
    np.testing.assert_allclose(batch, [float(cost(u)) for u in ups], rtol=1e-12)
    assert np.array_equal(batch, np.asarray(jax.jit(jax.vmap(cost))(ups)))


def test_a_pulse_shorter_than_a_tick_is_not_lost():
    pulse = Workload.from_windows(
        name="pulse",
        window=1.0,
        rate=np.where(np.arange(60) == 7, 500.0, 0.0),
        isl_computed=np.full(60, 100.0),
        isl_stored=np.full(60, 100.0),
        osl=np.full(60, 10.0),
    )
    assert float(load_of(pulse, 15.0).requests.sum()) == pytest.approx(500.0)
    assert float(simulate(small_fleet(), pulse, POLICY).arrived) == pytest.approx(500.0)


def test_no_load_costs_the_least_fleet_and_has_finite_gradients():
    silent = constant(rate=0.0, ticks=200)

    def cost(x, width):
        policy = Thresholds(*x, step=4.0)
        return simulate(small_fleet(), silent, policy, width=width, record=False).cost.cost

    x = jnp.array([getattr(POLICY, name) for name in PARAMETERS])
    assert np.all(np.isfinite(np.asarray(jax.jacfwd(cost)(x, 0.5))))
    run = simulate(small_fleet(), silent, POLICY)
    assert float(run.trajectory.requested_gpus[-1]) == 2.0
    assert float(run.attained) == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cold_start": -1.0}, "cold_start is -1.0; it must be a time >= 0 s"),
        ({"cold_start": float("nan")}, "cold_start is nan"),
        ({"interval": 0.0}, "interval is 0.0"),
        ({"budget": 1.0}, "budget is 1.0; it must be at least 2 GPUs"),
        ({"initial_gpus": 50.0}, "initial_gpus is 50.0; it must be between 2 and the budget of 40 GPUs"),
        ({"min_workers": 0}, "min_workers is 0"),
    ],
)
def test_bad_fleets_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        small_fleet(**changes)


def test_a_cold_start_of_years_is_never_and_needs_no_memory():
    fleet = small_fleet(cold_start=1e12, initial_gpus=4.0)
    t = simulate(fleet, constant(rate=60.0, ticks=50), GROWS).trajectory
    assert np.ptp(np.asarray(t.prefill_gpus + t.decode_gpus)) == 0


def test_a_cold_start_that_does_not_fit_its_ticks_is_refused_also_when_traced():
    fleet = small_fleet(cold_start=40.0)
    longer = eqx.tree_at(lambda f: f.cold_start, fleet, 300.0)
    with pytest.raises(ValueError, match=r"fleet\.delay_ticks is 2"):
        simulate(longer, constant(ticks=20), POLICY)

    def cost(cold_start):
        moved = eqx.tree_at(lambda f: f.cold_start, fleet, cold_start)
        return simulate(moved, constant(ticks=20), POLICY, record=False).cost.cost

    assert np.isfinite(float(eqx.filter_jit(cost)(jnp.asarray(41.0))))
    with pytest.raises(RuntimeError, match="delay_ticks must be"):
        eqx.filter_jit(cost)(jnp.asarray(300.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_amounts_that_are_none_are_named(value):
    load = constant(ticks=10)
    bad = load._replace(stored=load.stored.at[3].set(value))
    with pytest.raises(ValueError, match=r"load\.stored\[3\] is"):
        simulate(small_fleet(), bad, POLICY)
    with pytest.raises(ValueError, match=r"load\.output is \(5,\)"):
        simulate(small_fleet(), load._replace(output=load.output[:5]), POLICY)


def test_bad_widths_and_empty_loads_are_named():
    with pytest.raises(ValueError, match=r"width is 0\.0"):
        simulate(small_fleet(), constant(), POLICY, width=0.0)
    with pytest.raises(ValueError, match="at least one window"):
        simulate(small_fleet(), constant(ticks=0), POLICY)


def test_the_wait_below_capacity_is_added_by_name():
    """At a steady load the TTFT is the fluid's plus the formula's; far from capacity that is next to nothing."""
    plant = small_plant(t_step_b=0.0, t_step_c=0.0)
    fleet, still = small_fleet(plant, initial_gpus=20.0), Thresholds(1e6, 0.0, 1e6, 0.0, 0.5)
    load = constant(rate=90.0, ticks=40, osl=100.0)
    fluid = simulate(fleet, load, still, Objective()).trajectory
    for name in ("mmc", "mgc", "kimura"):
        felt = simulate(fleet, load, still, Objective(waiting=name)).trajectory
        sizes = {"prefill_gpus": 10.0, "decode_gpus": 10.0, "horizon": 40.0}
        waits = waiting.of_plant(name, plant, rate=90.0, isl_computed=1e3, isl_stored=1e3, osl=100.0, **sizes)
        assert float(felt.ttft[-1] - fluid.ttft[-1]) == pytest.approx(float(sum(waits)), rel=1e-9)
        assert float(felt.ttft[-1]) > 1.02 * float(fluid.ttft[-1])
    with pytest.raises(ValueError, match="unknown waiting formula 'mm1'"):
        Objective(waiting="mm1")


def test_another_number_is_no_other_compilation():
    load = constant(ticks=20)
    simulate(small_fleet(), load, POLICY, record=False)
    compiled = jax.log_compiles
    with compiled(), pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr(logging.getLogger("jax._src.dispatch"), "handle", lambda r: lines.append(r.getMessage()))
        patch.setattr(logging.getLogger("jax._src.interpreters.pxla"), "handle", lambda r: lines.append(r.getMessage()))
        other = Thresholds(prefill_up=0.6, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.4, step=4.0)
        simulate(small_fleet(cold_start=41.0), load, other, Objective(ttft=1.0), record=False)
    assert not [line for line in lines if "_run" in line]


@pytest.mark.parametrize("delay", ["cold_start", "switch_delay"])
def test_a_traced_delay_of_whole_ticks_is_taken_and_one_outside_its_tick_is_refused(delay):
    """Compiled, 30 s over 15 s is 2 - 3e-17: a rounding is no delay of another tick."""
    fleet = small_fleet(cold_start=30.0, switch_delay=30.0)

    @eqx.filter_jit
    def gpu_hours(seconds):
        other = eqx.tree_at(lambda f: getattr(f, delay), fleet, seconds)
        return simulate(other, constant(ticks=20), POLICY, record=False).cost.gpu_hours

    for seconds in (30.0, 37.0, 45.0):
        assert np.isfinite(float(gpu_hours(jnp.asarray(seconds))))
    ticks = "delay_ticks" if delay == "cold_start" else "switch_ticks"
    for seconds in (29.0, 46.0):
        with pytest.raises(RuntimeError, match=f"fleet.{ticks} must be"):
            jax.block_until_ready(gpu_hours(jnp.asarray(seconds)))
        other = eqx.tree_at(lambda f: getattr(f, delay), fleet, seconds)
        with pytest.raises(ValueError, match=f"fleet.{ticks} is 2; it must be that of Fleet.make"):
            simulate(other, constant(ticks=20), POLICY, record=False)
