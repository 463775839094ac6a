"""Shadow prices: closed forms, signs and units, kinks at whole ticks, and the envelope theorem's check."""

import argparse
import json
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import fluidq.sensitivity as verb
from fluidq._errors import InputError
from fluidq._sensitivity_envelope import envelope
from fluidq._sensitivity_price import Found, price_of
from fluidq._sensitivity_quantities import CENTRAL, ONE_SIDED, QUANTITIES, Facts, Span, moved_workload
from fluidq.commands import sensitivity as command
from fluidq.objective import Objective
from fluidq.policies import Thresholds
from fluidq.policies.static_ratio import StaticRatio
from fluidq.sensitivity import sensitivity
from fluidq.simulate import load_of, simulate
from fluidq.workload import Workload, default_workload
from tests.helpers import small_fleet, small_plant

FREE = Objective(late_weight=0.0, lost_weight=0.0, stalled_weight=0.0)
LOST = Objective(late_weight=0.0, lost_weight=20.0, stalled_weight=0.0)
POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)
NOWHERE = Facts([], 0.0, lambda draw: pytest.fail("nothing is to be run"))
MORNING = default_workload(seed=0).slice(8 * 3600, 10 * 3600)


def steady(rate: float, hours: float = 2.0, isl: float = 1000.0, osl: float = 200.0, hit: float = 0.0) -> Workload:
    """The same load all the time."""
    n = round(hours * 240)
    rates = np.full(n, rate)
    return Workload.from_windows(window=15.0, rate=rates, isl_stored=isl, osl=osl, isl_computed=isl * (1 - hit))


def prices(fleet, load, policy, objective=None, **options):
    return sensitivity(fleet, load, policy, objective, progress=False, **{"realisations": 0, **options})


# Closed forms


def test_prices_of_a_fleet_that_is_sized_by_its_load_are_those_of_its_size():
    """GPUs = rate (t_P + t_D) / u: 1 % of r_P, or one point of hits out of none, saves 1 % of the prefill part."""
    load, u = steady(40.0), 0.7
    fleet = small_fleet(budget=400.0)
    wide = prices(fleet, load, StaticRatio(utilisation=u), FREE, width=1e4)
    t_P = 1000.0 / 10_000.0
    saved = 24 * 40.0 * t_P / u / 100
    assert wide["prefill_rate"].gradient == pytest.approx(saved, rel=1e-3)
    assert wide["hit"].gradient == pytest.approx(saved, rel=1e-3)
    t_step = 0.02 + 1e-4 * 64 + 8e-9 * 64 * (1000 + 199 / 2)
    t_D = 200 * t_step / 64
    assert wide["decode_speed"].gradient == pytest.approx(24 * 40.0 * t_D / u / 100, rel=2e-3)
    # The hard fleet has whole workers; over steps of 5 % the same slope comes out within two workers of one step.
    assert wide["prefill_rate"].difference == pytest.approx(saved, abs=24 * 2 / 10)
    assert wide["cold_start"].worth == 0
    assert "starts no worker" in wide["cold_start"].note


def test_a_gpu_that_a_fleet_takes_and_does_not_need_costs_24_gpu_hours_a_day():
    fleet = small_fleet(budget=40.0)
    greedy = prices(fleet, steady(1.0), StaticRatio(gpus=1e3, ratio=0.5), FREE, quantities=("budget",))
    assert greedy["budget"].worth == pytest.approx(-24.0, rel=1e-12)
    modest = prices(fleet, steady(1.0), StaticRatio(gpus=10.0, ratio=0.5), FREE, quantities=("budget",))
    assert modest["budget"].worth == 0
    assert "asks for 10 of 40 GPUs at most" in modest["budget"].note


def overloaded(capacity: float = 0.0):
    """Six prefill GPUs do 60 req/s, six decode GPUs far fewer; what does not fit into the buffer is lost."""
    plant = small_plant(back_pressure=False, capacity=capacity, t_step_a=0.2)
    return small_fleet(plant, initial_gpus=12.0)


def test_under_constant_overload_a_faster_prefill_only_feeds_the_loss():
    """1 % of r_P is 0.6 req/s more that decode cannot take: each costs lost_weight GPU times of a request."""
    load = steady(100.0)
    found = prices(overloaded(), load, StaticRatio(gpus=12.0, ratio=0.5), LOST, quantities=("prefill_rate",))
    exact = -20.0 * 0.2 / 3600 * 0.6 * 86_400
    assert found["prefill_rate"].worth == pytest.approx(exact, rel=1e-2)
    assert found["prefill_rate"].gradient == pytest.approx(exact, rel=1e-2)
    assert found["prefill_rate"].agrees


def test_a_buffer_that_always_fills_saves_what_it_holds_once_and_one_that_never_fills_nothing():
    held = 1e9 / (95e3 * 1000)  # requests of 1000 tok in 1 GB
    hours = 2.0
    policy = StaticRatio(gpus=12.0, ratio=0.5)
    full = prices(overloaded(20e9), steady(100.0, hours), policy, LOST, quantities=("buffer",))
    assert full["buffer"].worth == pytest.approx(20.0 * 0.2 / 3600 * held * 24 / hours, rel=1e-6)
    assert full["buffer"].side == CENTRAL
    calm = prices(small_fleet(), steady(1.0), policy, quantities=("buffer",))
    assert (calm["buffer"].worth, calm["buffer"].gradient) == (0, 0)
    assert "never fills on this load: more of it is worth nothing" in calm["buffer"].note
    assert "never fills" in str(calm)


def test_a_link_that_binds_is_worth_something_and_one_without_limit_nothing():
    """Loss and no buffer: what the fabric does not carry waits, and only the first token is late."""
    load, policy = steady(50.0), StaticRatio(gpus=40.0, ratio=0.5)
    tight = small_fleet(small_plant(fabric=40 * 1000 * 95e3), initial_gpus=40.0)
    found = prices(tight, load, policy, quantities=("fabric", "nic"))
    assert found["fabric"].worth > 0.1
    assert "never" not in found["fabric"].note
    loose = prices(small_fleet(), load, policy, quantities=("fabric", "nic"))
    assert (loose["fabric"].worth, loose["fabric"].by) == (0, "-")
    assert "never binds" in loose["fabric"].note
    assert 0 < loose["nic"].worth < 1
    assert "never holds a flow back" in loose["nic"].note
    free = prices(small_fleet(), load, policy, FREE, quantities=("nic",))
    assert free["nic"].worth == 0
    assert "the links never bind" in free["nic"].note


def test_help_has_the_sign_of_a_saving():
    """In a fleet of fixed size whose requests are late, whatever is faster makes fewer of them late."""
    busy = StaticRatio(gpus=14.0, ratio=0.5)
    found = prices(small_fleet(), MORNING, busy, quantities=("hit", "prefill_rate", "decode_speed", "nic"))
    assert all(price.worth > 0 and price.gradient > 0 for price in found.prices.values())


# Moves


def test_a_point_of_hits_is_a_point_of_the_mean_and_leaves_what_is_stored():
    load = load_of(steady(2.0, hit=0.3), 15.0)
    fleet, after = QUANTITIES["hit"].move(small_fleet(), load, 4.0)
    assert float(1 - np.sum(after.computed) / np.sum(after.stored)) == pytest.approx(0.34)
    assert np.array_equal(after.stored, load.stored)
    work = moved_workload("hit", MORNING, 4.0)
    assert work.hit == pytest.approx(MORNING.hit + 0.04)
    assert work.reseeded(3).hit == pytest.approx(MORNING.reseeded(3).hit + 0.04)
    assert np.array_equal(work.isl_stored, MORNING.isl_stored)
    assert moved_workload("nic", MORNING, 4.0) is MORNING
    assert fleet.plant.r_P == small_plant().r_P


def test_links_are_priced_at_both_ends_in_gigabits_and_the_buffer_in_decimal_gigabytes():
    fleet = small_fleet()
    load = load_of(steady(2.0), 15.0)
    plant = QUANTITIES["nic"].move(fleet, load, 8.0)[0].plant
    assert plant.nic_prefill - fleet.plant.nic_prefill == pytest.approx(1e9)
    assert plant.nic_decode - fleet.plant.nic_decode == pytest.approx(1e9)
    assert QUANTITIES["buffer"].move(fleet, load, 3.0)[0].plant.capacity == pytest.approx(23e9)
    faster = QUANTITIES["decode_speed"].move(fleet, load, 25.0)[0].plant
    assert (faster.t_step_a, faster.t_step_c) == pytest.approx((0.02 / 1.25, 8e-9 / 1.25))


# Cold start and its ticks


def test_a_difference_of_the_cold_start_crosses_ticks_as_fleet_make_does():
    """A step of 5 % of 44 s goes from 41.8 to 46.2 s, over the tick at 45 s."""
    seconds = 44.0
    fleet = small_fleet(cold_start=seconds)
    found = prices(fleet, MORNING, POLICY, quantities=("cold_start",))["cold_start"]
    low, high = (
        float(simulate(small_fleet(cold_start=seconds + h), MORNING, POLICY, record=False).cost.cost)
        for h in (-found.high, -found.low)
    )
    assert found.difference == pytest.approx((high - low) / (found.high - found.low) * 12, rel=1e-9)
    assert found.side == CENTRAL


def test_at_a_whole_number_of_ticks_the_price_is_that_of_a_shorter_cold_start():
    fleet = small_fleet(cold_start=45.0)
    found = prices(fleet, MORNING, POLICY, quantities=("cold_start",), width=1.0)["cold_start"]
    assert found.side == ONE_SIDED
    assert "3 whole ticks" in found.note
    assert found.low == 0

    def cost(seconds: float) -> float:
        return float(simulate(small_fleet(cold_start=seconds), MORNING, POLICY, width=1.0, record=False).cost.cost)

    h = 1e-3
    below, above = ((cost(b) - cost(a)) / h * 12 for a, b in ((45 - h, 45.0), (45.0, 45 + h)))
    assert found.gradient == pytest.approx(below, rel=1e-2)
    assert abs(above - below) > 0.02 * abs(below)  # the kink is there: the other side is another number


def test_no_cold_start_has_no_price_and_an_erlang_one_has_no_kink():
    assert "0 s already" in span("cold_start", small_fleet(cold_start=0.0))
    assert span("cold_start", small_fleet(cold_start=45.0, stages=3)).side == CENTRAL
    assert span("cold_start", small_fleet(cold_start=45.0)).side == ONE_SIDED


def span(name, fleet, load=MORNING):
    """Where the difference would be taken; nothing is run."""
    return QUANTITIES[name].span(fleet, load_of(load, 15.0), 0.05, NOWHERE)


# Gradient and difference


def test_the_gradient_is_the_limit_of_the_relaxed_difference():
    names = ("hit", "prefill_rate", "decode_speed", "cold_start")
    found = prices(small_fleet(), MORNING, POLICY, quantities=names, share=1e-4, width=1.0)
    for name in names:
        near = 5e-2 if name == "cold_start" else 2e-3  # its step is a whole second
        assert found[name].gradient == pytest.approx(found[name].relaxed, rel=near)


def test_draws_give_a_standard_error_and_the_same_seed_the_same_bits():
    options = {"quantities": ("prefill_rate",), "realisations": 3}
    one, same = (prices(small_fleet(), MORNING, POLICY, **options).to_dict() for _ in range(2))
    other = prices(small_fleet(), MORNING, POLICY, seed=1, **options).to_dict()
    assert one == same
    assert one["draws"] == 4
    assert one["prices"]["prefill_rate"]["difference_error"] > 0
    assert other["prices"]["prefill_rate"]["difference"] != one["prices"]["prefill_rate"]["difference"]
    alone = prices(small_fleet(), MORNING, POLICY, quantities=("prefill_rate",))
    assert alone["prefill_rate"].difference_error is None


def choice(slope, relaxed, hard):
    found = Found(np.array(slope), np.array(relaxed), np.array(hard), 1000.0)
    return price_of("prefill_rate", Span(-5.0, 5.0), found, small_fleet(), NOWHERE, None, 0.3)


def test_the_better_of_two_that_agree_is_taken_and_a_disagreement_is_said():
    price, bad = choice([9.9, 10.1], [10.0, 10.0], [7.0, 14.0])
    assert (price.by, price.worth, price.agrees, bad) == ("gradient", pytest.approx(10.0), True, [])
    assert price.error == pytest.approx(0.1)
    price, _ = choice([9.0, 11.5], [10.0, 10.0], [10.0, 10.1])
    assert (price.by, price.worth) == ("difference", pytest.approx(10.05))
    price, _ = choice([30.0, 30.1], [30.0, 30.0], [10.0, 10.1])
    assert (price.by, price.agrees) == ("difference", False)
    assert "disagree: the law relaxed by 0.3 has another slope" in price.why
    price, _ = choice([30.0, 30.1], [12.0, 12.0], [10.0, 10.1])
    assert "the slope at the point is not that of steps of 5" in price.why
    price, _ = choice([-20.0, 50.0], [10.0, 10.0], [10.0, 10.1])
    assert price.agrees is None
    assert "too uncertain to tell" in price.why


def test_a_gradient_that_explodes_or_is_not_finite_is_named_and_not_used():
    price, bad = choice([10.0, 1e9], [10.0, 10.0], [10.0, 11.0])
    assert (price.by, price.worth) == ("difference", pytest.approx(10.5))
    assert "explodes on 1 of 2 draws, up to 1e+09" in bad[0]
    price, bad = choice([10.0, np.nan], [10.0, 10.0], [10.0, 11.0])
    assert price.gradient is None
    assert "not finite" in bad[0]


def test_a_closed_loop_explodes_on_some_draw_and_the_table_says_so():
    found = prices(small_fleet(), MORNING, POLICY, realisations=6, quantities=("prefill_rate",))
    assert any("explodes on" in line for line in found.health)
    assert found["prefill_rate"].by == "difference"
    assert found["prefill_rate"].agrees is False
    assert "explodes on" in str(found)


class Outside(Thresholds):
    """Looks at the load with NumPy, as a forecast does."""

    TUNABLE: ClassVar[dict] = {}

    def prepare(self, load, fleet):
        assert np.asarray(load.requests).sum() > 0
        return self


def test_a_law_that_cannot_be_traced_has_differences_only():
    law = Outside(**{field.name: getattr(POLICY, field.name) for field in fields(POLICY)})
    found = prices(small_fleet(), MORNING, law, quantities=("prefill_rate",))
    same = prices(small_fleet(), MORNING, POLICY, quantities=("prefill_rate",))
    assert found["prefill_rate"].gradient is None
    assert "no gradient: Outside" in found.health[0]
    assert found["prefill_rate"].difference == same["prefill_rate"].difference


# The envelope theorem


def bowl(theta, p):
    """J = (theta - p)^2 + 30 - 3 p on two draws: best at theta = p, where V = 30 - 3 p."""
    return np.array([1.0, 1.0]) * ((theta - p) ** 2 + 30.0 - 3.0 * p) + np.array([0.0, 1.0])


def test_the_envelope_theorem_holds_at_the_bottom_of_a_bowl_and_not_on_its_side():
    best = envelope(bowl, 0.0, lambda x: x, -0.01, 0.01)
    assert (best.held, best.retuned) == (pytest.approx(3.0), pytest.approx(3.0))
    assert (best.holds, best.words) == (True, "holds")
    beside = envelope(bowl, 0.4, lambda x: x, -0.01, 0.01)
    assert (beside.held, beside.retuned) == (pytest.approx(3.8), pytest.approx(3.0))
    assert beside.holds is False
    assert beside.ratio == pytest.approx(3.0 / 3.8)
    assert "not at an optimum for this direction" in beside.words
    far = envelope(bowl, 2.0, lambda x: x, -0.01, 0.01)
    assert far.holds is False
    assert far.words.startswith("does not hold: re-tuning saves 4")
    assert far.words.endswith("so the policy is not at an optimum")


def test_an_envelope_check_lost_in_noise_says_that_it_cannot_tell():
    noise = np.array([[0.0, 0.0], [3.0, -2.5]])

    def cost(theta, p):
        return 1000.0 - 0.1 * p + (noise[1] * p if theta == "found" else noise[0]) - 1e-3 * (theta == "found")

    check = envelope(cost, "held", lambda x: "found", -1.0, 1.0)
    assert check.holds is None
    assert "standard error" in check.words


def static_cost(load, width):
    """Relaxed cost per day of a static fleet of theta GPUs after r_P has risen by x %."""
    fleet = small_fleet(budget=60.0)

    def cost(theta, x):
        moved, offered = QUANTITIES["prefill_rate"].move(fleet, load, jnp.asarray(x))
        run = simulate(moved, offered, StaticRatio(gpus=theta, ratio=0.4), width=width, record=False)
        return np.array([float(run.cost.cost)]) * 24 / 2

    return cost


def test_the_envelope_theorem_holds_to_a_thousandth_for_a_tuned_static_fleet():
    """GPU-hours against lateness: smooth in the fleet's size, whose best is found to rounding by golden section."""
    from scipy.optimize import minimize_scalar

    cost = static_cost(load_of(MORNING, 15.0), 1e3)

    def retune(x):
        found = minimize_scalar(lambda n: cost(n, x)[0], bounds=(8.0, 59.0), method="bounded", options={"xatol": 1e-7})
        return float(found.x)

    best = retune(0.0)
    check = envelope(cost, best, retune, -0.02, 0.02)
    assert check.holds
    assert check.held > 0.1
    assert check.ratio == pytest.approx(1.0, abs=1e-3)
    generous = envelope(cost, 1.2 * best, retune, -0.02, 0.02)
    assert generous.holds is False
    assert generous.gain > 0


def test_a_policy_that_is_not_tuned_is_told_so_and_a_tuned_one_is_not():
    sizes = (16.0, 18.0, 20.0, 22.0, 24.0, 28.0, 32.0)
    fleet = small_fleet()

    def retune(fleet, load, policy, objective):
        laws = [StaticRatio(gpus=n, ratio=0.5) for n in sizes]
        return min(laws, key=lambda law: float(simulate(fleet, load, law, objective, record=False).cost.cost))

    options = {"quantities": ("prefill_rate", "buffer"), "envelope": True, "retune": retune, "share": 0.01}
    best = retune(fleet, MORNING, None, Objective())
    good = prices(fleet, MORNING, best, **options)
    assert good["prefill_rate"].envelope.holds
    assert good.at_optimum
    assert good["buffer"].envelope is None  # worth nothing: re-tuning has nothing to add
    bad = prices(fleet, MORNING, StaticRatio(gpus=36.0, ratio=0.5), **options)
    assert bad.at_optimum is False
    assert "not at an optimum" in str(bad)


def test_by_default_it_re_tunes_the_moved_fleet_from_the_given_policy(monkeypatch):
    import fluidq.tune as tuner

    seen = []

    def tune(fleet, workload, policy, objective, settings, *, progress):
        seen.append((float(fleet.plant.r_P), policy, settings.spread))
        return SimpleNamespace(after=replace(policy, ratio=0.45))

    monkeypatch.setattr(tuner, "tune", tune)
    found = prices(small_fleet(), MORNING, POLICY, quantities=("prefill_rate",), envelope=True)
    assert [r for r, _, _ in seen] == pytest.approx([10_000.0, 9_500.0, 10_500.0])
    assert all(policy is POLICY and spread <= 0.1 for _, policy, spread in seen)
    assert found["prefill_rate"].envelope.held == pytest.approx(found["prefill_rate"].difference, rel=1e-12)


# Input and output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantities": ("cold_strat",)}, r"unknown quantity 'cold_strat'; did you mean 'cold_start'"),
        ({"quantities": ()}, r"quantities is \(\)"),
        ({"envelope": ("nic",), "quantities": ("hit",)}, r"unknown quantity to check 'nic'"),
        ({"width": 0.0}, r"width is 0\.0"),
        ({"share": 0.6}, r"share is 0\.6"),
        ({"realisations": -1}, r"realisations is -1"),
        ({"realisations": 1, "seed": -1}, r"seed is -1"),
    ],
)
def test_bad_input_is_named(options, words):
    with pytest.raises(InputError, match=words):
        prices(small_fleet(), MORNING, POLICY, **options)


def test_a_load_too_short_to_draw_again_is_refused():
    short = Workload.from_windows(window=15.0, rate=[1.0, 2.0], isl_stored=100.0, osl=10.0)
    with pytest.raises(InputError, match="number of windows"):
        prices(small_fleet(), short, POLICY, realisations=1)


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"nic_prefill": float("inf"), "nic_decode": float("inf")}, "nic", "no limit"),
        ({"capacity": float("inf")}, "buffer", "no limit"),
        ({}, "fabric", "no limit is stated"),
    ],
)
def test_what_has_no_limit_has_no_price(changes, name, words):
    assert words in span(name, small_fleet(small_plant(**changes)))


def test_all_cached_has_no_price_of_hits():
    assert "100 % already" in span("hit", small_fleet(), steady(1.0, hit=1.0))


def test_more_hits_than_there_are_misses_leave_nothing_and_never_less():
    load = load_of(MORNING, 15.0)
    _, after = QUANTITIES["hit"].move(small_fleet(), load, 200.0)
    assert float(np.min(after.computed)) == 0


def arguments(*flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    command.add_arguments(parser)
    return parser.parse_args(flags)


def scenario(tmp_path):
    path = tmp_path / "short.toml"
    path.write_text("[workload]\ndays = 0.05\n")
    return str(path)


def test_the_verb_prints_a_table_or_json_and_writes_it(tmp_path, capsys):
    flags = ("--scenario", scenario(tmp_path), "--realisations", "1", "--quantities", "buffer", "hit", "fabric")
    assert command.run(arguments(*flags)) == 0
    text = capsys.readouterr().out
    assert "worth [GPU-hours/day]" in text
    assert "the fabric never binds" in text
    assert command.run(arguments(*flags, "--json", "--out", str(tmp_path / "out"))) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["prices"]) == {"buffer", "hit", "fabric"}
    assert data["prices"]["hit"]["per"] == "1 point"
    assert data["parameters"]["prefill_up"] == Thresholds().prefill_up
    assert json.loads((tmp_path / "out" / "sensitivity.json").read_text()) == data


def test_the_verb_says_no_with_exit_code_1(tmp_path, capsys, monkeypatch):
    flags = ("--scenario", scenario(tmp_path), "--realisations", "0", "--quantities", "hit", "--envelope", "--json")
    monkeypatch.setattr(verb, "_short_search", lambda fleet, load, policy, objective: policy)
    assert command.run(arguments(*flags)) == 0
    assert json.loads(capsys.readouterr().out)["at_optimum"] is True
    better = {"ratio": 0.7, "prefill_up": 0.2, "prefill_down": 0.01}
    monkeypatch.setattr(verb, "_short_search", lambda fleet, load, policy, objective: replace(policy, **better))
    assert command.run(arguments(*flags)) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["at_optimum"] is False
    assert data["prices"]["hit"]["envelope"]["gain"] > 0


def test_the_verb_tunes_first_where_asked(tmp_path, capsys, monkeypatch):
    import fluidq.tune as tuner

    def tune(fleet, workload, policy, objective, settings, *, progress):
        after = replace(policy, ratio=0.7)
        return SimpleNamespace(after=after, hard_before={"cost": 20.0}, hard_after={"cost": 10.0})

    monkeypatch.setattr(tuner, "tune", tune)
    flags = ("--scenario", scenario(tmp_path), "--realisations", "0", "--quantities", "fabric", "--tune")
    assert command.run(arguments(*flags)) == 0
    assert "tuned: hard cost 20 -> 10 GPU-hours" in capsys.readouterr().out
    assert command.run(arguments(*flags, "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["parameters"]["ratio"] == 0.7
    assert data["tuned"]["after"]["cost"] == 10.0


def test_the_verb_refuses_to_tune_what_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setattr(Thresholds, "TUNABLE", {})
    with pytest.raises(InputError, match="nothing to tune"):
        command.run(arguments("--scenario", scenario(tmp_path), "--envelope"))
