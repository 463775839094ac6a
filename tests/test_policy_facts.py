"""Closed-form facts: by hand for laws whose numbers are simple, against the closed loop where it can tell."""

import json
import math

import numpy as np
import pytest

from fluidq.policies import Asked, Policy, Thresholds
from fluidq.policies._demand import unit_times
from fluidq.policies.balance import BalanceTracking
from fluidq.policies.dynamo import DynamoPlanner
from fluidq.policies.facts import Facts, Mix, facts, mean_mix
from fluidq.policies.heteroscale import HeteroScale
from fluidq.policies.static_ratio import StaticRatio
from fluidq.simulate import simulate
from fluidq.workload import Workload, default_workload
from tests.helpers import small_fleet, small_plant

FLEET = small_fleet(small_plant(kv_capacity=100_000.0))
MIX = Mix(30.0, 1000.0, 1000.0, 200.0)


class Law(Policy):
    """States what a test gives it."""

    stated: float | None = None
    wait: float = 0.0

    @property
    def detection_delay(self) -> float:
        return self.wait

    def gain(self, fleet, mix):
        return self.stated

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(reading.prefill_asked, reading.decode_asked)


def test_the_reaction_budget_is_detection_plus_cold_start_against_the_time_to_a_boundary():
    f = facts(Law(wait=30.0), FLEET, MIX, delta_up=0.1e9, delta_down=0.05e9, metrics_delay=5.0)
    assert f.detection == 30.0 + 15.0 + 5.0  # its own wait, the tick on which it looks, the age of what it sees
    assert f.reaction == 90.0
    assert f.stock == pytest.approx(20e9 / 3)  # D15: both boundaries equally far
    assert f.time_to_full == pytest.approx((20e9 - f.stock) / 0.1e9)
    assert f.time_to_empty == pytest.approx(f.time_to_full)
    assert f.limits["headroom"] == pytest.approx(90.0 / f.time_to_full)
    assert f.holds


@pytest.mark.parametrize(
    ("given", "binds"),
    [
        ({"delta_up": 5e9, "delta_down": 0.1e9, "stock": 10e9}, "headroom"),
        ({"delta_up": 0.1e9, "delta_down": 5e9, "stock": 10e9}, "stock"),
    ],
)
def test_it_says_which_limit_binds(given, binds):
    f = facts(Law(), FLEET, MIX, **given)
    assert f.binds == binds
    assert not f.holds
    assert f.limits[binds] == pytest.approx(f.reaction / (10e9 / 5e9))


def test_a_mix_that_stands_still_has_one_whole_flow_to_bridge():
    f = facts(Law(), FLEET, MIX)
    assert f.delta_up == f.delta_down == pytest.approx(30.0 * 1000.0 * 95e3)
    assert f.slew_needed == 0.0


def test_hold_while_pending_limits_the_slew_to_one_move_per_cold_start():
    f = facts(DynamoPlanner(), FLEET, MIX)
    assert f.slew == pytest.approx(1.0 / (15.0 + 40.0))
    assert f.hold_while_pending
    # The closed loop: what the overload is, it adds no worker faster than that.
    crushed = Workload.from_windows(window=15.0, rate=[300.0] * 60, isl_stored=1000.0, osl=200.0)
    run = simulate(small_fleet(FLEET.plant, initial_gpus=4.0), crushed, DynamoPlanner(context_length=1000.0))
    asked = np.asarray(run.trajectory.requested_gpus)
    pools = 2
    assert asked[-1] - asked[0] <= pools * (f.slew * 900 + 1)
    assert asked[-1] - asked[0] >= pools * (f.slew * 900 - 3) / 2


def test_the_slew_that_a_ramp_needs_is_its_slope_in_workers():
    """Rate grows by 0.1 req/s per second, and prefill by 0.1 t_P workers per second, which is more than decode's."""
    ramp = Workload.from_windows(window=15.0, rate=10.0 + 1.5 * np.arange(200), isl_stored=1000.0, osl=200.0)
    f = facts(Law(), FLEET, ramp)
    assert f.slew_needed == pytest.approx(0.1 * 0.1, rel=1e-6)
    assert math.isinf(f.slew)
    assert facts(DynamoPlanner(), FLEET, ramp).limits["slew"] == pytest.approx(0.01 * 55.0)


def test_the_swing_of_a_workload_is_what_pools_of_yesterday_cannot_take():
    """Output doubles: decode, sized for 200 tokens, takes half of what prefill still delivers."""
    osl = [200.0] * 50 + [400.0] * 50
    steps = Workload.from_windows(window=15.0, rate=[30.0] * 100, isl_stored=1000.0, osl=osl)
    f = facts(Law(), FLEET, steps)
    before, after = (float(unit_times(FLEET.plant, 1000.0, 1000.0, o)[1]) for o in (200.0, 400.0))
    assert f.delta_up == pytest.approx(30.0 * (1 - before / after) * 95e6, rel=1e-6)
    assert f.delta_down == pytest.approx(0.0, abs=1e-3)
    longer = Workload.from_windows(window=15.0, rate=[30.0] * 100, isl_stored=[1000.0] * 50 + [1500.0] * 50, osl=200.0)
    f = facts(Law(), FLEET, longer)
    before, after = (float(unit_times(FLEET.plant, i, i, 200.0)[1]) for i in (1000.0, 1500.0))
    takes = 30.0 * before / after
    assert f.delta_down == pytest.approx((takes - 20.0) * 1500.0 * 95e3, rel=1e-6)


def test_gain_and_delay_margin_are_those_of_the_delayed_integrator():
    still = facts(Law(stated=0.0), FLEET, MIX)
    assert still.delay_margin is None
    assert still.limits["stability"] == 0.0
    assert "feed-forward" in str(still)
    assert "D18 does not apply" in str(facts(Law(), FLEET, MIX))
    f = facts(Law(stated=0.01, wait=5.0), FLEET, MIX)
    reaction = 60.0
    assert f.smooth_limit == pytest.approx(1 / (math.e * reaction))
    assert f.delay_margin == pytest.approx(math.pi / 0.02 - reaction)
    # Sampled every 15 s, four ticks late: 2 sin(pi/18) per tick, below pi/2 over the delay.
    assert f.gain_limit == pytest.approx(2 * math.sin(math.pi / 18) / 15.0)
    assert f.gain_limit < math.pi / 2 / reaction
    assert f.limits["stability"] == pytest.approx(0.01 / f.gain_limit)
    assert facts(Law(stated=2 * f.gain_limit, wait=5.0), FLEET, MIX, delta_up=0.0, delta_down=0.0).binds == "stability"


def test_balance_tracking_does_not_overshoot_at_any_cold_start_by_its_default():
    for cold_start in (30.0, 88.0, 300.0, 695.0):
        f = facts(BalanceTracking(), small_fleet(cold_start=cold_start), MIX)
        assert 0 < f.gain <= f.smooth_limit


def test_the_dead_band_gives_the_size_from_which_nothing_flaps():
    """A +-1 law on [0.6, 1]: n workers at load L go down at L/n < 0.6 and up at L/n > 1."""
    f = facts(DynamoPlanner(), FLEET, MIX)
    assert f.steady_size == pytest.approx(1.0 / (1.0 - 0.6))

    def flaps(n):  # some load makes n go down and n - 1 come back
        return any(load / n < 0.6 and load / (n - 1) > 1.0 for load in np.linspace(0.01, n, 5000))

    assert flaps(2)
    assert not flaps(math.ceil(f.steady_size))


def test_a_law_that_states_nothing_gets_the_defaults():
    f = facts(Law(), small_fleet(), mean_mix(default_workload(seed=0)))
    assert (f.detection, f.gain, f.dead_band, f.steady_size) == (15.0, None, None, 0.0)
    assert math.isinf(f.slew)


def test_thresholds_hold_and_move_by_their_step():
    fleet = small_fleet(cold_start=60.0)
    f = facts(Thresholds(step=4.0), fleet, mean_mix(default_workload(seed=0)))
    assert f.hold_while_pending
    assert f.up_step == 4.0  # workers of one GPU each
    assert f.slew == pytest.approx(4.0 / (15.0 + 60.0))


def test_a_law_that_never_acts_never_reacts():
    f = facts(StaticRatio(), FLEET, MIX)
    assert math.isinf(f.reaction)
    assert math.isinf(f.limits["headroom"])
    assert not f.holds
    assert f.slew == 0.0
    assert "never" in str(f)


@pytest.mark.parametrize("policy", [DynamoPlanner(), BalanceTracking(), HeteroScale(), StaticRatio(), Law(stated=0.01)])
def test_the_report_and_the_json_hold_the_same_facts(policy):
    f = facts(policy, FLEET, MIX)
    assert isinstance(f, Facts)
    text, plain = str(f), json.loads(json.dumps(f.to_dict(), allow_nan=False))
    assert plain["binds"] == f.binds
    assert f"{f.binds}  " in text
    assert plain["policy"] == type(policy).__name__
    assert plain["reaction_s"] == (None if math.isinf(f.reaction) else f.reaction)
    assert set(plain["limits_used"]) == {"headroom", "stock", "slew", "stability", "flapping"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta_up": -1.0}, "delta_up is -1.0"),
        ({"metrics_delay": float("nan")}, "metrics_delay is nan"),
        ({"stock": 30e9}, "stock is 3"),
        ({"stock": -1.0}, "stock is -1.0"),
    ],
)
def test_bad_input_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        facts(Law(), FLEET, MIX, **given)
