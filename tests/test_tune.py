"""Tuning: coordinates, gradients, and the judgement on the hard law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.objective import Objective
from fluidq.policies import PARAMETERS, Thresholds
from fluidq.simulate import load_of, simulate
from fluidq.tune import Settings, check_gradient, from_coordinates, parameters, to_coordinates, tune
from fluidq.workload import default_workload
from tests.helpers import small_fleet

POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)
SHORT = default_workload(seed=0).slice(8 * 3600, 12 * 3600)
QUICK = Settings(steps=12, starts=3, judge_every=4, realisations=1, unseen=2)


def test_coordinates_round_trip_and_every_point_is_a_valid_policy():
    back = from_coordinates(to_coordinates(POLICY), POLICY)
    for name in PARAMETERS:
        assert float(getattr(back, name)) == pytest.approx(getattr(POLICY, name), rel=1e-12)
    rng = np.random.default_rng(0)
    for u in rng.normal(0, 5, size=(200, 5)):
        p = from_coordinates(jnp.asarray(u), POLICY)
        assert 0 < float(p.prefill_down) < float(p.prefill_up)
        assert 0 < float(p.decode_down) < float(p.decode_up)
        assert 0 < float(p.ratio) < 1


def test_the_gradient_check_sees_a_wrong_gradient():
    right = jax.jit(lambda u, w: jnp.sum(u**3) * w)
    u = jnp.array([0.3, -1.2, 2.0, 0.7, 0.1])
    assert check_gradient(right, u, 1.0).max_relative_error < 1e-8

    @jax.custom_jvp
    def cube(u):
        return jnp.sum(u**3)

    @cube.defjvp
    def wrong(primals, tangents):
        return cube(primals[0]), jnp.sum(3.01 * primals[0] ** 2 * tangents[0])

    assert check_gradient(lambda u, w: cube(u) * w, u, 1.0).max_relative_error > 1e-3


def test_tuning_lowers_the_hard_cost_and_reports_what_judged_it():
    fleet = small_fleet()
    result = tune(fleet, SHORT, POLICY, settings=QUICK, progress=False)
    assert result.hard_after["cost"] < result.hard_before["cost"]
    assert result.unseen_after.mean() < result.unseen_before.mean()
    assert result.gradient_check.max_relative_error < 1e-3
    # The reported cost is that of the reported policy, replayed from its plain numbers.
    again = simulate(fleet, SHORT, Thresholds(**parameters(result.after)), record=False)
    assert float(again.cost.cost) == result.hard_after["cost"]
    parts = ("gpu_hours", "slo_loss", "lost_flow", "stalled_flow")
    assert sum(result.hard_after[p] for p in parts) == pytest.approx(result.hard_after["cost"])
    assert result.history.shape == (QUICK.steps, QUICK.starts)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    fleet = small_fleet()
    one, same = (tune(fleet, SHORT, POLICY, settings=QUICK, progress=False).to_dict() for _ in range(2))
    assert one == same
    other = tune(fleet, SHORT, POLICY, settings=Settings(**{**vars(QUICK), "seed": 1}), progress=False).to_dict()
    assert other["after"] != one["after"]


def test_the_given_policy_is_kept_where_nothing_beats_it():
    """Priced only by GPU-hours and already at the least fleet, no candidate can be better."""
    fleet = small_fleet(initial_gpus=2.0)
    lazy = Thresholds(prefill_up=1e6, prefill_down=1.0, decode_up=1e6, decode_down=1.0, ratio=0.5, step=4.0)
    free = Objective(late_weight=0.0, lost_weight=0.0, stalled_weight=0.0)
    quiet = default_workload(seed=0, rate=2.0).slice(0, 3600)
    result = tune(fleet, quiet, lazy, free, Settings(steps=4, starts=2, judge_every=2, unseen=1), progress=False)
    assert result.hard_after["cost"] == result.hard_before["cost"]


def test_a_threshold_of_zero_is_judged_as_it_is():
    """Down below 0 means never; its coordinate is beside it and must not stand in for it in the judgement."""
    fleet = small_fleet()
    never = Thresholds(prefill_up=1.0, prefill_down=0.0, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)
    result = tune(fleet, SHORT, never, settings=QUICK, progress=False)
    draws = [SHORT.reseeded(int(s)) for s in np.random.SeedSequence(0).generate_state(3)[1:]]
    for found, draw in zip(result.unseen_before, draws, strict=True):
        assert found == pytest.approx(float(simulate(fleet, draw, never, record=False).cost.cost), rel=1e-12)
    assert result.hard_after["cost"] <= result.hard_before["cost"]


def test_an_exploding_gradient_is_named_and_its_step_not_taken():
    """Narrow gates on a loop with a long cold start amplify; the search says so instead of stepping on it."""
    fleet = small_fleet(cold_start=150.0)
    load = default_workload(seed=0).slice(0, 12 * 3600).scaled(1.5)
    settings = Settings(steps=3, starts=2, judge_every=3, width_start=0.02, width_end=0.02, realisations=0, unseen=1)
    result = tune(fleet, load, POLICY, settings=settings, progress=False)
    assert result.health
    assert "gradient exploded at width 0.02" in result.health[0]
    assert all(np.isfinite(v) for v in parameters(result.after).values())


def test_ties_and_thresholds_of_the_relaxed_loop_keep_finite_gradients():
    load = load_of(SHORT.slice(0, 3600), 15.0)
    fleet = small_fleet()

    def cost(u):
        return simulate(fleet, load, from_coordinates(u, POLICY), width=1.0, record=False).cost.cost

    for u in (jnp.zeros(5), jnp.full(5, 6.0), jnp.full(5, -6.0)):
        gradient = jax.jacfwd(cost)(u)
        assert np.all(np.isfinite(np.asarray(gradient)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, r"tune\.steps is 0"),
        ({"starts": 0}, r"tune\.starts is 0"),
        ({"seed": -1}, r"tune\.seed is -1"),
        ({"learning_rate": 0.0}, r"tune\.learning_rate is 0\.0"),
        ({"width_end": 2.0}, r"tune\.width_end is 2\.0; it must be at most width_start"),
    ],
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        Settings(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttft": 0.0}, r"objective\.ttft is 0\.0"),
        ({"tpot": float("nan")}, r"objective\.tpot is nan"),
        ({"late_weight": -1.0}, r"objective\.late_weight is -1\.0"),
    ],
)
def test_bad_objectives_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        Objective(**changes)
