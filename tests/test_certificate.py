"""The certificate: each verdict from a real search, what contradicts it, and what it reports."""

import json
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fluidq import _certificate_requests as sampled
from fluidq._certificate_hard import paired
from fluidq._certificate_verdict import Replayed, verdict
from fluidq._errors import InputError
from fluidq.certificate import HOLDS, NOT_BETTER, RELAXED_ONLY, VERDICTS, Requested, certify
from fluidq.objective import Objective
from fluidq.policies import StaticRatio, Thresholds
from fluidq.policies.facts import facts
from fluidq.replay import Estimate, draw, replay
from fluidq.simulate import simulate
from fluidq.tune import Relaxed, Settings, tune
from fluidq.workload import Workload, default_workload
from tests.helpers import small_fleet, small_plant

# One shape for all searches, so that they share their compilations: an hour, two draws, the same law.
HOUR = default_workload(seed=0).slice(8 * 3600, 9 * 3600)
QUICK = Settings(
    screen=0,
    finish=0,
    spread=0.7,
    learning_rate=0.15,
    steps=12,
    starts=2,
    judge_every=4,
    realisations=1,
    unseen=4,
    estimator="pathwise",
)
POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)
NO_LOSS = Objective(late_weight=0.0, lost_weight=0.0, stalled_weight=0.0)


def search(fleet, workload, policy, objective=None, **changes):
    return tune(fleet, workload, policy, objective, replace(QUICK, **changes), progress=False)


def quickly(result, **options):
    return certify(result, **{"replay": 0, "bound": False, "progress": False, **options})


@pytest.fixture(scope="module")
def helped():
    """The default thresholds on a busy hour: they lose, and tuning helps."""
    return search(small_fleet(), HOUR, POLICY)


@pytest.fixture(scope="module")
def holds(helped):
    return quickly(helped, bound=True)


@pytest.fixture(scope="module")
def cheapest():
    """Only GPU-hours cost and the least fleet is enough: nothing can be cheaper."""
    quiet = default_workload(seed=0, rate=0.3).slice(0, 3600)
    return search(small_fleet(initial_gpus=2.0), quiet, POLICY, NO_LOSS)


@pytest.fixture(scope="module")
def rounded():
    """Six GPUs at most: the relaxed law wins by parts of workers, which whole ones do not have."""
    policy = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=2.0)
    mid = default_workload(seed=0, rate=12.0).slice(8 * 3600, 9 * 3600)
    return search(small_fleet(budget=6.0, initial_gpus=4.0), mid, policy, width_start=3.0, width_end=3.0)


def doctored(cost=(-1.0, -2.0, -1.5), paid=(-1.0, -2.0, -1.5), attained=(0.1, 0.2, 0.1), after=(0.9, 0.95, 0.92)):
    cost, paid, attained, after = (Estimate.of(list(x)) for x in (cost, paid, attained, after))
    parts = {"cost": 10.0, "paid": 5.0, "attainment": after.mean}
    return Requested(((0.0, 60.0),), 3, 1000, 1.0, parts, parts, cost, paid, attained, after)


# The three verdicts


def test_thresholds_that_help_hold(helped, holds):
    assert holds.verdict == HOLDS
    assert holds.holds
    assert holds.tuning["after"]["cost"] == helped.hard_after["cost"] < helped.hard_before["cost"]
    assert holds.tuning["before"] == helped.hard_before
    # The unseen draws are those of the search, and the interval is Student's t on their differences.
    change = helped.unseen_after - helped.unseen_before
    low, high = stats.t.interval(0.95, 3, change.mean(), stats.sem(change))
    assert holds.unseen.difference.values == pytest.approx(change)
    assert (holds.unseen.difference.low, holds.unseen.difference.high) == pytest.approx((low, high))
    assert high < 0
    assert holds.unseen.draws == 4
    assert holds.unseen.better == int((change < 0).sum())


def test_the_cheapest_policy_cannot_be_beaten(cheapest):
    c = quickly(cheapest, bound=True, replay=1000)
    assert c.verdict == NOT_BETTER
    assert "found nothing better" in c.reasons[0]
    assert c.unseen.difference.high == 0
    assert not c.to_dict()["replay"]["replayed"]
    assert "not replayed on requests: the policy is the given one" in str(c)
    # Nothing is late in this objective and the least workers are free to the bound: 0 is no divisor.
    assert c.bound_before == pytest.approx(0.0, abs=1e-9)
    assert c.to_dict()["bound_ratio_after"] is None
    assert "the clairvoyant bound is 0" in str(c)
    assert c.at_bounds == ()
    assert {b["name"]: b["share_of_time"] for b in c.binding}["min workers, prefill"] == 1.0


def test_an_optimum_of_parts_of_workers_is_one_of_the_relaxed_model_only(rounded):
    c = quickly(rounded)
    assert rounded.relaxed.after < 0.9 * rounded.relaxed.before
    assert rounded.relaxed.hard >= rounded.hard_before["cost"]
    assert c.verdict == RELAXED_ONLY
    assert "promised" in c.reasons[-1]
    assert "whole" not in c.verdict
    names = {b["name"] for b in c.binding}
    assert {"gpu budget", "min workers, prefill"} <= names
    # The same search without that promise is not better, and no more.
    assert quickly(replace(rounded, relaxed=None)).verdict == NOT_BETTER
    assert quickly(replace(rounded, relaxed=rounded.relaxed._replace(hard=0.0))).verdict == NOT_BETTER


def test_requests_that_contradict_turn_the_verdict(helped):
    c = quickly(helped, replay=doctored(cost=(1.0, 1.1, 0.9)))
    assert c.verdict == RELAXED_ONLY
    assert "on requests it costs 1 GPU-h more" in c.reasons[-1]
    assert c.to_dict()["replay"]["cost_difference"]["low"] > 0
    unclear = quickly(helped, replay=doctored(cost=(1.0, -1.1, 0.9)))
    assert unclear.verdict == HOLDS
    assert "not told apart" in unclear.reasons[2]


def test_a_tuned_policy_that_fails_on_unseen_draws_is_not_better(helped):
    """Judged on draws of which one is far off, the same search has an interval that reaches 0."""
    c = quickly(helped)
    noisy = replace(c.unseen, difference=Estimate.of([-1.0, -2.0, 3.0, -1.0]))
    point = Replayed(10.0, 0.9)
    said, reasons = verdict(point, Replayed(9.0, 0.9), noisy, None, None)
    assert said == NOT_BETTER
    assert "reaches 0" in reasons[-1]


@pytest.mark.parametrize(
    ("before", "after", "unseen_attainments", "change", "said"),
    [
        ((10.0, 0.95), (9.0, 0.95), (0.95, 0.95), (-1.0, -1.1), HOLDS),
        ((10.0, 0.95), (10.0, 0.99), (0.95, 0.95), (-1.0, -1.1), NOT_BETTER),  # a tie
        ((10.0, 0.95), (9.0, 0.89), (0.95, 0.95), (-1.0, -1.1), NOT_BETTER),  # cheaper and below what is wanted
        ((10.0, 0.80), (12.0, 0.91), (0.80, 0.91), (2.0, 2.1), HOLDS),  # dearer, and alone in keeping it
        ((10.0, 0.80), (12.0, 0.91), (0.95, 0.91), (2.0, 2.1), NOT_BETTER),
        ((10.0, 0.95), (9.0, 0.95), (0.95, 0.89), (-1.0, -1.1), NOT_BETTER),
        ((10.0, 0.95), (9.0, float("nan")), (0.95, 0.95), (-1.0, -1.1), NOT_BETTER),
    ],
)
def test_with_an_attainment_it_has_to_be_kept(before, after, unseen_attainments, change, said):
    outcomes = [np.array([[20.0, 10.0, a]] * 2) for a in unseen_attainments]
    outcomes[1][:, 1] += change
    pairs = paired(*outcomes, kind=1)
    assert verdict(Replayed(*before), Replayed(*after), pairs, None, None, attainment=0.9)[0] == said


def test_a_relaxed_point_that_breaks_the_attainment_is_no_better_one():
    pairs = paired(*[np.array([[20.0, 10.0, 0.95]] * 2)] * 2, kind=1)
    given = Replayed(10.0, 0.95)
    broken = Relaxed(11.0, 5.0, 1e3 * 10.0 * 1.02, 0.3, np.zeros(1))
    said, reasons = verdict(given, given, pairs, broken, None, attainment=0.9, same=True)
    assert said == RELAXED_ONLY
    assert "does not keep the attainment" in reasons[-1]
    kept = broken._replace(hard=9.0)
    assert verdict(given, given, pairs, kept, None, attainment=0.9, same=True)[0] == NOT_BETTER
    dearer = broken._replace(hard=10.5)
    assert verdict(given, given, pairs, dearer, None, attainment=0.9, same=True)[0] == RELAXED_ONLY
    small = dearer._replace(after=10.95)  # less than 1 % is no promise
    assert verdict(given, given, pairs, small, None, attainment=0.9, same=True)[0] == NOT_BETTER


def test_a_constrained_search_is_judged_by_its_attainment(helped):
    wanted = round(helped.hard_after["slo_attainment"] - 0.03, 3)
    result = search(small_fleet(), HOUR, POLICY, attainment=wanted)
    c = quickly(result, bound=True)
    kept = c.tuning["after"]["slo_attainment"] >= wanted and c.unseen.after["attainment"] >= wanted
    assert c.attainment == wanted
    assert (c.verdict == HOLDS) == (kept and not np.array_equal(result.coordinates, result.space.start()))
    assert c.bound_ratio_after == pytest.approx(c.tuning["after"]["cost"] / c.bound_after)
    assert "the whole cost" in str(c)


# What it reports


def test_no_policy_is_below_the_bound(holds):
    assert 1.0 <= holds.bound_ratio_after < holds.bound_ratio_before
    assert holds.bound_ratio_after == holds.tuning["after"]["cost"] / holds.bound_after
    assert f"{holds.bound_ratio_after:.3f} times the clairvoyant bound" in str(holds)


def test_the_dictionary_is_plain_json(holds, rounded):
    for c in (holds, quickly(rounded), quickly(rounded, replay=doctored(cost=(1.0,)))):
        told = json.loads(json.dumps(c.to_dict(), allow_nan=False))
        assert told["verdict"] in VERDICTS
        assert {"reasons", "bound_ratio_before", "bound_ratio_after", "replay", "gradient_check", "binding"} <= set(
            told
        )
        assert {"at_bounds", "stability", "reaction", "unseen", "tuning"} <= set(told)
        assert told["gradient_check"]["max_relative_error"] == c.gradient["max_relative_error"]
        assert told["unseen"]["difference"]["mean"] == c.unseen.difference.mean
        assert told["tuning"]["after"]["cost"] == c.tuning["after"]["cost"]
        assert all({"name", "share_of_time", "used", "text"} == set(b) for b in told["binding"])
    assert told["replay"]["cost_difference"] == {"mean": 1.0, "low": None, "high": None, "values": [1.0]}


def test_the_page_says_the_verdict_and_its_parts(holds):
    page = str(holds)
    assert page.splitlines()[0] == f"{'Verdict':<12}holds"
    heads = (
        "Tuning",
        "Unseen",
        "Requests",
        "Bound",
        "Gradient",
        "Health",
        "Stability",
        "Reaction",
        "Binding",
        "Bounds",
    )
    for word in heads:
        assert f"\n{word} " in page
    assert "not replayed on requests: left out" in page
    assert "nan" not in page
    assert max(map(len, page.splitlines())) <= 118


def test_what_binds_is_the_share_of_the_time_of_the_run(helped, holds):
    run = simulate(helped.fleet_after, HOUR, helped.after)
    shares = {b["name"]: b["share_of_time"] for b in holds.binding}
    assert shares["buffer"] == pytest.approx(float(run.full))
    assert shares["buffer"] > 0
    assert shares["batch"] == pytest.approx(float(jnp.mean(run.trajectory.idle_slots <= 1e-6)))
    assert "gpu budget" not in shares
    assert holds.reaction["slack_s"] == pytest.approx(
        min(holds.facts.time_to_full, holds.facts.time_to_empty) - holds.facts.reaction
    )
    assert {b["name"] for b in holds.binding} >= {"cold start, headroom", "cold start, stock"}


def test_margins_without_an_end_are_told_and_are_not_numbers(holds):
    fleet = small_fleet()
    steady = Workload.from_windows(window=15.0, rate=np.full(40, 5.0), isl_stored=1000.0, osl=200.0)
    calm = replace(holds, facts=facts(POLICY, fleet, steady))
    assert calm.facts.time_to_full == math.inf
    assert calm.reaction["slack_s"] is None
    assert calm.reaction["within"]
    assert "no end of slack" in str(calm)
    never = replace(holds, facts=facts(StaticRatio(gpus=10.0), fleet, HOUR))
    assert never.reaction["slack_s"] is None
    assert not never.reaction["within"]
    assert "the law never reacts" in str(never)
    assert "feed-forward" in never.stability["text"]
    assert holds.stability["stable"] is None
    assert "D18 does not apply" in holds.stability["text"]
    tight = replace(holds.facts, gain=2.0 * holds.facts.gain_limit, delay_margin=-20.0)
    assert replace(holds, facts=tight).stability["stable"] is False
    assert replace(holds, facts=None).reaction["known"] is False
    for c in (calm, never, replace(holds, facts=None)):
        json.dumps(c.to_dict(), allow_nan=False)


def test_parameters_at_an_end_of_their_range_are_named(cheapest):
    space = cheapest.space
    values = space.values(jnp.asarray(cheapest.coordinates))
    end = np.asarray(space.coordinates({**values, "prefill_down": 0.0}))
    c = quickly(replace(cheapest, coordinates=end))
    assert c.to_dict()["at_bounds"] == ["prefill_down at its lower end, 0"]
    assert "prefill_down at its lower end, 0" in str(c)
    assert "no parameter at an end of its range" in str(quickly(cheapest))


def test_exploded_steps_are_counted(rounded):
    health = ["start 0, step 3: gradient exploded at width 0.3; step not taken", "resume: the newest was damaged"]
    c = quickly(replace(rounded, health=health))
    assert c.search["steps_not_taken"] == c.search["exploded"] == 1
    assert "1 step not taken, 1 exploded; the first: start 0, step 3" in str(c)


def test_the_worst_share_has_a_bootstrap():
    rng = np.random.default_rng(0)
    before = rng.gamma(2.0, 10.0, (12, 3))
    after = before + np.array([-5.0, 0.0, 0.0])
    pairs = paired(before, after, kind=0, share=0.25)
    assert pairs.difference.mean == pytest.approx(-5.0)
    assert (pairs.difference.low, pairs.difference.high) == pytest.approx((-5.0, -5.0))
    after[np.argmax(before[:, 0]), 0] += 100.0
    risky = paired(before, after, kind=0, share=0.25)
    assert risky.difference.mean == pytest.approx(-5.0 + 100.0 / 3)
    assert risky.difference.low < 0 < risky.difference.high
    assert "bootstrap" in risky.method
    one = paired(before[:1], after[:1], kind=0)
    assert one.to_dict()["difference"]["low"] is None
    lower = Replayed(9.0, 1.0)
    assert verdict(Replayed(10.0, 1.0), lower, one, None, None)[0] == (HOLDS if one.difference.mean < 0 else NOT_BETTER)


# Requests


@pytest.fixture(scope="module")
def served(helped):
    """The busy hour in whole requests, on a smaller copy of the system."""
    return quickly(helped, replay=6000, seeds=2)


def test_the_sample_is_what_was_asked_for(helped, served):
    r = served.requests
    assert r is not None
    assert 0.5 * 6000 < 2 * r.requests < 1.3 * 6000
    assert r.share < 1
    assert f"1/{1 / r.share:.3g} of its size" in served.to_dict()["replay"]["sample"]
    assert "the busiest window" in str(served)
    (start, stop), *others = r.windows
    assert stop - start >= 4 * served.facts.reaction
    index = np.arange(HOUR.rate.size)
    inside = (index * 15.0 >= start) & (index * 15.0 < stop)
    assert HOUR.rate[inside].sum() == max(
        HOUR.rate[k : k + inside.sum()].sum() for k in range(HOUR.rate.size - inside.sum() + 1)
    )
    for a, b in others:
        assert b <= start or a >= stop
    assert r.cost.mean == pytest.approx(r.after["cost"] - r.before["cost"])
    again = quickly(helped, replay=6000, seeds=2).requests
    assert again == r


def test_a_copy_is_refused_where_the_law_sees_the_difference(helped, monkeypatch):
    monkeypatch.setattr(sampled, "IN_GPUS", ())
    c = quickly(helped, replay=6000, seeds=2)
    assert c.requests is None
    assert "Thresholds acts otherwise on a smaller copy" in c.to_dict()["replay"]["why"]
    assert "not replayed on requests: Thresholds acts otherwise" in " ".join(str(c).split())


def test_whole_requests_are_priced_as_the_objective_says():
    fleet, objective = small_fleet(), Objective()
    requests = draw(HOUR.slice(0, 120), 1)
    run = replay(fleet, requests, (3, 5))
    cost, paid, attained = sampled._values(run, fleet, objective, 1.0)
    assert paid == run.gpu_hours
    assert attained == run.attainment(objective)
    late = np.minimum(run.first_token, run.end) - requests.arrival > 2.0
    assert late.any()
    unit = 10.0 * 0.2 / 3600.0
    stalled = sum(
        max(0.0, min(h, run.end) - e) for h, e in zip(run.handoff, run.prefill_end, strict=True) if math.isfinite(e)
    )
    assert cost == pytest.approx(paid + unit * (late.sum() + (run.tpot > 0.05).sum()) + stalled / 3600.0)
    strict = replace_weights(objective, tpot=0.022)
    slow = sampled._values(run, fleet, strict, 1.0)
    assert 0 < (run.tpot > 0.022).sum() < run.done
    assert slow[0] - cost == pytest.approx(unit * (run.tpot > 0.022).sum())
    assert slow[2] == run.attainment(strict)
    lossy = small_fleet(small_plant(capacity=1e9, back_pressure=False))
    turned = replay(lossy, requests, (6, 1))
    assert turned.lost > 0
    free = replace_weights(objective, late_weight=0.0, stalled_weight=0.0)
    values = sampled._values(turned, lossy, free, 1.0)
    assert values[0] - values[1] == pytest.approx(20.0 * 0.2 / 3600.0 * turned.lost)


def replace_weights(objective, **changes):
    return Objective(**{**{n: getattr(objective, n) for n in objective.__dataclass_fields__}, **changes})


def test_windows_start_with_the_workers_of_the_fluid(helped):
    run = simulate(helped.fleet_before, HOUR, helped.before)
    begun = sampled._begun(helped.fleet_before, run, 1500.0, 1.0)
    assert begun.initial_gpus == float(run.trajectory.requested_gpus[99])
    assert begun.initial_gpus != 12.0
    assert sampled._begun(helped.fleet_before, run, 0.0, 1.0) is helped.fleet_before


def test_attainment_on_requests_contradicts_only_below_what_is_wanted():
    lower = doctored(attained=(-0.1, -0.11, -0.12), after=(0.8, 0.81, 0.82))
    assert "it attains 81.0%, 11.0% less" in lower.worse(0.9)
    assert lower.worse(0.7) == ""
    assert "it pays 1 GPU-h more" in doctored(paid=(1.0, 1.1, 0.9), attained=(0.0, 0.1, -0.1)).worse(0.9)
    assert doctored(paid=(1.0, 1.1, 0.9), attained=(0.10, 0.11, 0.12)).worse(0.9) == ""


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [({"replay": -1}, "replay is -1"), ({"seeds": 1}, "seeds is 1; it must be at least 2")],
)
def test_bad_numbers_are_named(rounded, options, words):
    with pytest.raises(InputError, match=words):
        quickly(rounded, **options)


def test_a_result_without_its_search_is_refused(rounded):
    with pytest.raises(InputError, match=r"result\.workload is None"):
        quickly(replace(rounded, workload=None))
