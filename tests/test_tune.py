"""Tuning: the search, its judgement on the hard law, its constraints, its files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq import plot
from fluidq._descent import Descent
from fluidq._errors import InputError
from fluidq.laws import law
from fluidq.objective import Objective
from fluidq.policies import PARAMETERS, StaticRatio, Thresholds
from fluidq.simulate import Load, load_of, simulate
from fluidq.space import make_space
from fluidq.tune import Moves, Settings, parameters, tune
from fluidq.workload import default_workload
from tests.helpers import small_fleet, small_plant

POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)
SHORT = default_workload(seed=0).slice(8 * 3600, 12 * 3600)
QUICK = Settings(steps=12, starts=3, judge_every=4, realisations=1, unseen=2)


def quick(**changes):
    return dataclasses.replace(QUICK, **changes)


def run(policy=POLICY, settings=QUICK, fleet=None, load=SHORT, **kwargs):
    return tune(fleet or small_fleet(), load, policy, settings=settings, progress=False, **kwargs)


@pytest.fixture(scope="module")
def found():
    return run()


def test_tuning_lowers_the_hard_cost_and_reports_what_judged_it(found):
    assert found.hard_after["cost"] < found.hard_before["cost"]
    assert found.unseen_after.mean() < found.unseen_before.mean()
    assert found.gradient_check.max_relative_error < 1e-3
    # The reported cost is that of the reported policy, replayed from its plain numbers.
    again = simulate(small_fleet(), SHORT, Thresholds(**parameters(found.after)), record=False)
    assert float(again.cost.cost) == found.hard_after["cost"]
    parts = ("gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "churn")
    assert sum(found.hard_after[p] for p in parts) == pytest.approx(found.hard_after["cost"])
    assert found.history.shape == (QUICK.steps, QUICK.starts)
    assert found.estimator in ("pathwise", "combined", "smoothed")
    assert found.why
    assert found.relaxed is not None
    assert found.relaxed.after < found.relaxed.before


def test_the_same_seed_gives_the_same_bits_and_another_does_not(found):
    assert run().to_dict() == found.to_dict()
    assert run(settings=quick(seed=1)).to_dict()["after"] != found.to_dict()["after"]


def test_the_given_policy_is_kept_where_nothing_beats_it():
    """Priced only by GPU-hours and already at the least fleet, no candidate can be better."""
    fleet = small_fleet(initial_gpus=2.0)
    lazy = Thresholds(prefill_up=1e6, prefill_down=1.0, decode_up=1e6, decode_down=1.0, ratio=0.5, step=4.0)
    free = Objective(late_weight=0.0, lost_weight=0.0, stalled_weight=0.0)
    quiet = default_workload(seed=0, rate=2.0).slice(0, 3600)
    settings = Settings(steps=4, starts=2, judge_every=2, unseen=1)
    result = tune(fleet, quiet, lazy, free, settings, progress=False)
    assert result.hard_after["cost"] == result.hard_before["cost"]


def test_a_threshold_of_zero_is_judged_as_it_is():
    """Down below 0 means never; its coordinate is beside it and must not stand in for it in the judgement."""
    never = dataclasses.replace(POLICY, prefill_down=0.0)
    result = run(never)
    draws = [SHORT.reseeded(int(s)) for s in np.random.SeedSequence(0).generate_state(3)[1:]]
    for cost, draw in zip(result.unseen_before, draws, strict=True):
        assert cost == pytest.approx(float(simulate(small_fleet(), draw, never, record=False).cost.cost), rel=1e-12)
    assert result.hard_after["cost"] <= result.hard_before["cost"]


def test_an_exploding_gradient_is_named_and_its_step_not_taken():
    """Narrow gates on a loop with a long cold start amplify; the search says so instead of stepping on it."""
    load = default_workload(seed=0).slice(0, 12 * 3600).scaled(1.5)
    narrow = {"width_start": 0.02, "width_end": 0.02}
    settings = Settings(steps=3, starts=2, judge_every=3, realisations=0, unseen=1, estimator="pathwise", **narrow)
    result = run(settings=settings, fleet=small_fleet(cold_start=150.0), load=load)
    assert "gradient exploded at width 0.02" in result.health[0]
    assert result.reports[0].health == "exploding"
    assert all(np.isfinite(v) for v in parameters(result.after).values())
    # Left to itself, the search takes the hard law's slope instead, and says why.
    auto = run(settings=dataclasses.replace(settings, estimator="auto"), fleet=small_fleet(cold_start=150.0), load=load)
    assert auto.estimator == "smoothed"
    assert "exploding" in auto.why


def test_ties_and_thresholds_of_the_relaxed_loop_keep_finite_gradients():
    load = load_of(SHORT.slice(0, 3600), 15.0)
    fleet, space = small_fleet(), make_space(POLICY)

    @jax.jit
    def gradient(u):
        cost = lambda v: simulate(fleet, load, space.at(v)[0], width=1.0, record=False).cost.cost  # noqa: E731
        return jax.jacfwd(cost)(u)

    for u in (jnp.zeros(5), jnp.full(5, 6.0), jnp.full(5, -6.0)):
        assert np.all(np.isfinite(np.asarray(gradient(u))))


@pytest.mark.parametrize("estimator", ["smoothed", "combined"])
def test_the_other_estimators_lower_the_hard_cost_too(estimator):
    result = run(settings=quick(estimator=estimator, samples=8))
    assert result.estimator == estimator
    assert result.hard_after["cost"] < result.hard_before["cost"]
    assert np.all(result.reports[0].error > 0)


@pytest.mark.parametrize("name", ["balance", "hpa", "dynamo", "aibrix-apa"])
def test_any_law_can_be_tuned_and_is_never_worse(name):
    fleet = small_fleet(small_plant(kv_capacity=20_000.0))  # Dynamo compares KV use with it
    settings = Settings(steps=3, starts=2, judge_every=3, realisations=0, unseen=1)
    result = run(law(name, fleet), settings, fleet, SHORT.slice(0, 3600))
    assert result.hard_after["cost"] <= result.hard_before["cost"]
    assert set(parameters(result.after)) >= set(result.space.names)


def test_what_is_fixed_stays_and_what_is_bounded_stays_within():
    moves = Moves(free=(), fixed=("ratio",), bounds={"decode_up": (0.9, 1.1), "fleet.initial_gpus": (4.0, 16.0)})
    result = run(moves=moves, settings=quick(learning_rate=1.0))
    after = parameters(result.after)
    assert after["ratio"] == POLICY.ratio
    assert after["prefill_up"] == POLICY.prefill_up  # nothing says that it moves
    assert 0.9 < after["decode_up"] < 1.1
    assert 4.0 < float(result.fleet_after.initial_gpus) < 16.0


def test_a_constraint_lowers_what_is_paid_and_is_kept():
    result = run(settings=quick(steps=30, attainment=0.9, judge_every=5))
    assert result.hard_after["slo_attainment"] >= 0.9
    free = run(settings=quick(steps=30, judge_every=5))
    assert result.hard_after["gpu_hours"] <= free.hard_after["gpu_hours"] or free.hard_after["slo_attainment"] < 0.9


def test_an_attainment_that_no_policy_reaches_is_refused_with_the_limit_that_makes_it_so():
    tight = quick(attainment=0.99)
    for limits, words in (
        ({"tpot": 0.001}, "tpot = 1 ms: alone in its batch"),
        ({"ttft": 0.001}, "ttft = 1 ms: without any queue"),
    ):
        with pytest.raises(InputError, match=words):
            tune(small_fleet(), SHORT, POLICY, Objective(**limits), tight, progress=False)
    with pytest.raises(InputError, match=r"whole budget of .* GPUs serves"):
        tune(small_fleet(), SHORT.scaled(50.0), POLICY, None, tight, progress=False)


def test_risk_over_workloads_counts_the_worst():
    """With the share of one draw, the merit is that of the worst workload."""
    calm, busy = SHORT.slice(0, 3600), SHORT.slice(0, 3600).scaled(2.0)
    settings = Settings(steps=2, starts=1, judge_every=1, realisations=0, unseen=1, risk="cvar", risk_share=0.5)
    result = run(load=calm, also=(busy,), settings=settings)
    worst = max(float(simulate(small_fleet(), w, POLICY, record=False).cost.cost) for w in (calm, busy))
    assert result.judged[0][1] == pytest.approx(worst, rel=1e-12)


def test_early_stop_is_on_the_hard_cost():
    result = run(settings=quick(steps=40, starts=1, patience=2, judge_every=2, learning_rate=1e-6))
    assert result.stopped == 4  # two judgements in which nothing moved enough to be better
    assert len(result.history) == 4


@pytest.mark.parametrize("damage", [None, "last"])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, damage):
    settings = quick(attainment=0.9)
    whole = run(settings=settings, checkpoint=tmp_path / "whole", log=tmp_path / "whole.jsonl")
    file, log = tmp_path / "cut", tmp_path / "cut.jsonl"
    advance = Descent.advance

    def interrupted(self):
        if self.step == 10:
            raise KeyboardInterrupt
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Descent, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(settings=settings, checkpoint=file, log=log)
    if damage:
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    resumed = run(settings=settings, checkpoint=file, log=log, resume=True)
    notes = [line for line in resumed.health if line.startswith("resume: ")]
    assert len(notes) == (1 if damage else 0)
    assert all("is damaged" in note for note in notes)
    resumed.health[:] = [line for line in resumed.health if line not in notes]
    assert resumed.to_dict() == whole.to_dict()
    np.testing.assert_array_equal(resumed.history, whole.history)
    assert log.read_text() == (tmp_path / "whole.jsonl").read_text()
    # The log draws itself, without the result.
    logged = plot.read_log(log)
    np.testing.assert_array_equal(logged.history, whole.history)
    assert logged.judged == [(step, value) for step, value in whole.judged if 0 < step <= settings.steps]
    assert plot.tuning(logged).get_xlabel() == "gradient step"


def test_another_search_and_twofold_damage_are_refused(tmp_path):
    file = tmp_path / "state"
    run(settings=quick(steps=8), checkpoint=file)
    with pytest.raises(InputError, match="belongs to another search"):
        run(settings=quick(steps=8, seed=3), checkpoint=file, resume=True)
    for path in (file, file.with_name("state.previous")):
        path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"cannot be resumed: .*state is damaged.*state\.previous is damaged"):
        run(settings=quick(steps=8), checkpoint=file, resume=True)
    with pytest.raises(InputError, match="checkpoint is None"):
        run(resume=True)


def test_a_load_that_meets_no_threshold_is_refused():
    """Far thresholds that nothing reaches and a ratio that stays: no parameter has an effect."""
    far = dataclasses.replace(POLICY, prefill_up=1e12, prefill_down=1e-300, decode_up=1e12, decode_down=1e-300)
    moves = Moves(fixed=("ratio",))
    with pytest.raises(InputError, match="gradient is zero in every free parameter"):
        run(far, quick(width_start=1e-3, width_end=1e-3), moves=moves)


def test_a_start_without_a_finite_cost_is_refused():
    load = SHORT.slice(0, 1800)
    with pytest.raises(InputError, match=r"objective is .*finite at the start"):
        tune(small_fleet(), load, POLICY, Objective(late_weight=1e308, ttft=1e-9), QUICK, progress=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, r"tune\.steps is 0"),
        ({"starts": 0}, r"tune\.starts is 0"),
        ({"patience": -1}, r"tune\.patience is -1"),
        ({"samples": 1}, r"tune\.samples is 1"),
        ({"seed": -1}, r"tune\.seed is -1"),
        ({"learning_rate": 0.0}, r"tune\.learning_rate is 0\.0"),
        ({"width_end": 2.0}, r"tune\.width_end is 2\.0; it must be at most width_start"),
        ({"estimator": "pathwize"}, r"tune\.estimator: .*'pathwise'"),
        ({"risk": "var"}, r"tune\.risk: .*'cvar'"),
        ({"risk_share": 0.0}, r"tune\.risk_share is 0\.0"),
        ({"attainment": 1.0}, r"tune\.attainment is 1\.0"),
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
        ({"action_weight": -1.0}, r"objective\.action_weight is -1\.0"),
    ],
)
def test_bad_objectives_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        Objective(**changes)


def test_prices_scale_their_parts():
    fleet, load = small_fleet(), load_of(SHORT.slice(0, 3600), 15.0)
    plain = simulate(fleet, load, POLICY, record=False)
    priced = simulate(fleet, load, POLICY, Objective(gpu_hour_weight=2.0, action_weight=0.5), record=False)
    assert float(priced.cost.gpu_hours) == 2.0 * float(plain.cost.gpu_hours)
    assert float(priced.cost.actions) == 0.5 * float(plain.actions)
    assert float(plain.cost.actions) == 0.0
    assert isinstance(load, Load)
    assert set(PARAMETERS) == set(make_space(POLICY).names)
    assert make_space(StaticRatio()).names == ("utilisation",)
