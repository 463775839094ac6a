"""Search spaces: coordinates without constraints for every tunable parameter, by name, within bounds and in order."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq._errors import InputError
from fluidq._moves import apply_moves, read_moves
from fluidq.laws import LAWS, law
from fluidq.policies import HPA, PARAMETERS, BalanceTracking, DynamoPlanner, HPATarget, Neural, Thresholds
from fluidq.scenario import build_case, check_keys, read_scenario
from fluidq.scenario_keys import MOVE_KINDS, template
from fluidq.simulate import simulate
from fluidq.space import FLEET, find, make_space, tunables
from fluidq.workload import default_workload
from tests.helpers import small_fleet, small_plant

POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=1.0, decode_down=0.6, ratio=0.5, step=4.0)


@pytest.mark.parametrize("name", LAWS)
def test_every_tunable_of_every_law_round_trips_and_stays_in_range(name):
    fleet = small_fleet()
    policy = law(name, fleet).spelled_out()
    space = make_space(policy, fleet, free=[*tunables(policy, fleet)])
    back = space.values(space.start())
    for p in space.parameters:
        tree, path = (fleet, FLEET[p.name][0]) if p.name in FLEET else (policy, p.name)
        assert float(back[p.name]) == pytest.approx(float(find(tree, path)), rel=1e-9, abs=2e-6 * p.size)
    rng = np.random.default_rng(0)
    at = jax.jit(space.values)
    for u in rng.normal(0, 5, size=(50, len(space.labels))):
        values = {k: float(v) for k, v in at(jnp.asarray(u)).items()}
        for p in space.parameters:
            low = max(p.low, values[p.over]) if p.over else p.low
            assert low <= values[p.name] <= p.high
            assert math.isfinite(values[p.name])


def test_every_point_is_a_policy_with_its_order():
    space = make_space(POLICY)
    for u in np.random.default_rng(0).normal(0, 5, size=(200, 5)):
        p, _ = space.plain(jnp.asarray(u))
        assert 0 < p.prefill_down < p.prefill_up
        assert 0 < p.decode_down < p.decode_up
        assert 0 < p.ratio < 1


def test_bounds_hold_for_ordered_parameters_together():
    space = make_space(POLICY, free=(), bounds={"prefill_down": (0.05, 3.0), "prefill_up": (0.5, 2.0)})
    values = jax.jit(jax.vmap(space.values))(jnp.asarray(np.random.default_rng(1).normal(0, 6, size=(500, 2))))
    down, up = np.asarray(values["prefill_down"]), np.asarray(values["prefill_up"])
    assert np.all((down >= 0.05) & (down <= 2.0))  # never above what the upper one may be
    assert np.all((up >= 0.5) & (up <= 2.0) & (up >= down))


def test_a_parameter_at_its_bound_is_named():
    space = make_space(POLICY, free=(), bounds={"decode_up": (0.8, 1.2)})
    assert space.at_bounds(np.array([0.3])) == ()
    assert space.at_bounds(np.array([9.0])) == ("decode_up at its upper end, 1.2",)
    assert space.at_bounds(np.array([-9.0])) == ("decode_up at its lower end, 0.8",)


def test_a_fixed_neighbour_is_a_bound():
    space = make_space(POLICY, free=["decode_down"])
    assert space.parameters[0].high == POLICY.decode_up
    space = make_space(POLICY, free=["decode_up"])
    assert space.parameters[0].low == POLICY.decode_down


def test_derivatives_are_finite_and_right_far_out():
    space = make_space(POLICY, small_fleet(), free=[*tunables(POLICY, small_fleet())])
    for scale in (0.0, 3.0, 30.0):
        u = scale * jnp.asarray(np.random.default_rng(2).normal(size=len(space.labels)))
        f = lambda v: jnp.stack(list(space.values(v).values()))  # noqa: E731
        slope = np.asarray(jax.jacfwd(f)(u))
        assert np.all(np.isfinite(slope))
        h = 1e-6
        for i in range(len(u)):
            step = h * jnp.eye(len(u))[i]
            difference = np.asarray((f(u + step) - f(u - step)) / (2 * h))
            np.testing.assert_allclose(slope[:, i], difference, rtol=1e-4, atol=1e-6 * np.abs(np.asarray(f(u))).max())


def test_an_array_of_weights_is_flattened_and_named_entry_by_entry():
    policy = Neural.make(hidden=3)
    space = make_space(policy)
    assert "network.layers.0.weight[2, 5]" in space.labels
    back, _ = space.at(space.start())
    np.testing.assert_array_equal(back.network.layers[0].weight, policy.network.layers[0].weight)
    with pytest.raises(InputError, match="left without bounds"):
        make_space(policy, bounds={"network.layers.0.bias": (0.0, 1.0)})


def test_a_preset_spelled_out_is_the_same_law():
    fleet, load = small_fleet(small_plant(kv_capacity=20_000.0)), default_workload(seed=0).slice(0, 7200)
    for target in ("throughput", "latency"):
        preset = DynamoPlanner(optimization_target=target, max_gpu_budget=16.0)
        assert preset.movable() == ("context_length",)
        spelled = preset.spelled_out()
        assert spelled.optimization_target == "load"
        assert len(spelled.movable()) == 4
        a, b = (simulate(fleet, load, p, record=False) for p in (preset, spelled))
        assert float(a.cost.cost) == pytest.approx(float(b.cost.cost), rel=1e-12)
        assert float(a.actions) == float(b.actions)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"free": ["prefil_up"]}, r"unknown parameter of Thresholds 'prefil_up'.*'prefill_up'"),
        ({"bounds": {"ratio": (0.7, 0.3)}}, r"parameters\.ratio is '0\.7 \.\. 0\.3'; it must be a lowest value below"),
        ({"bounds": {"ratio": (0.2, 1.5)}}, r"within 0 \.\. 1"),
        ({"bounds": {"ratio": (0.6, 0.9)}}, r"a range that holds the start, 0\.5"),
        ({"bounds": {"decode_up": (0.5, 1.1), "decode_down": (0.2, 0.9)}, "fixed": ["decode_up"]}, "same time"),
        ({"free": ["ratio"], "fixed": ["ratio"]}, "same time in free"),
        ({"free": ["ratio"], "fixed": ["decode_up"], "bounds": {"ratio": (math.nan, 1.0)}}, "lowest value"),
        ({"free": []}, "nothing free"),
    ],
)
def test_contradictions_are_named(kwargs, words):
    with pytest.raises(InputError, match=words):
        make_space(POLICY, small_fleet(), **kwargs)


def test_what_a_law_does_not_read_or_has_not_cannot_move():
    planner = DynamoPlanner(optimization_target="sla", load_predictor="constant")
    with pytest.raises(InputError, match="does not read it"):
        make_space(planner, free=["kalman_r"])
    one = HPA(decode=HPATarget("batch_usage", 0.8, type="Pods"))
    assert not any(name.startswith("prefill") for name in tunables(one))
    with pytest.raises(InputError, match="before it can move"):
        make_space(one, free=["prefill.target"])


def test_the_scenario_frees_fixes_bounds_and_sets_by_name():
    table = {
        "ratio": "fixed",
        "decode_up": "0.9 .. 1.2",
        "prefill_up": "100ms .. 2s",
        "decode_down": 0.5,
        "others": "fixed",
    }
    case = build_case({"workload": {"days": 0.05}, "parameters": table})
    assert case.policy.decode_down == 0.5
    space = make_space(case.policy, case.fleet, **case.moves._asdict())
    assert {p.name: (p.low, p.high) for p in space.parameters} == {"decode_up": (0.9, 1.2), "prefill_up": (0.1, 2.0)}
    case = build_case({"workload": {"days": 0.05}, "policy": {"law": "balance"}, "parameters": {"drain": 2.0}})
    assert isinstance(case.policy, BalanceTracking)
    assert case.policy.drain == 2.0
    names = make_space(case.policy, case.fleet, **case.moves._asdict()).names
    assert "drain" not in names
    assert "z" in names
    case = build_case(
        {"workload": {"days": 0.05}, "parameters": {"fleet.buffer": "500GB", "fleet.initial_gpus": "free"}}
    )
    assert float(case.fleet.plant.capacity) == 500e9
    assert set(make_space(case.policy, case.fleet, **case.moves._asdict()).names) == {*PARAMETERS, "fleet.initial_gpus"}


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"parameters": {"ratio": True}}, r"parameters\.ratio is True"),
        ({"parameters": {"ratio": "a .. b"}}, r"parameters\.ratio"),
        ({"parameters": {"ratio": "loose"}}, r"parameters\.ratio"),
        ({"parameters": {"others": "free"}}, r"parameters\.others is 'free'"),
        ({"parameters": {"decode_up": "1GB .. 2GB"}}, r"parameters\.decode_up"),
        ({"parameter": {}}, "'parameters'"),
        ({"policy": {"law": "balanse"}}, "'balance'"),
        ({"policy": {"law": "hpa", "ratio": 0.3}}, r"policy\.ratio is 'given'; it must be left out"),
    ],
)
def test_a_wrong_entry_is_named(over, words):
    with pytest.raises(InputError, match=words):
        build_case({"workload": {"days": 0.05}, **over})


def test_a_name_that_the_policy_lacks_is_refused_by_the_search_with_the_nearest():
    given = read_moves({"ratoi": 0.4}, MOVE_KINDS)
    policy, fleet, moves = apply_moves(given, POLICY, small_fleet())
    with pytest.raises(InputError, match=r"'ratoi'.*'ratio'"):
        make_space(policy, fleet, **moves._asdict())


def test_the_template_shows_the_section_and_is_a_scenario():
    import tomllib

    assert "[parameters]" in template()
    assert check_keys(tomllib.loads(template()))


def test_further_traces_are_read_beside_the_scenario_and_scaled_to_the_same_share(tmp_path):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{m:02d}:{s:02d}.0000000,1000,200" for m in range(10) for s in range(0, 60, 5)]
    (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "s.toml").write_text('[workload]\ndays = 0.05\n[tune]\nalso = "b.csv"\n')
    case = build_case(read_scenario(str(tmp_path / "s.toml")), checked=True)
    (other,) = case.also
    demand = other.requests / other.duration * float(case.fleet.request_gpu_seconds)
    assert demand == pytest.approx(0.25 * float(case.fleet.budget), rel=1e-9)


def test_a_target_of_a_share_stays_a_share():
    policy = law("hpa", small_fleet())
    space = make_space(policy)
    high = {p.name: p.high for p in space.parameters}
    assert high["decode.target"] == 1.0  # of the batch slots
    assert high["prefill.target"] == math.inf  # requests
    for u in np.random.default_rng(0).normal(0, 6, size=(20, len(space.labels))):
        moved, _ = space.plain(jnp.asarray(u))
        moved.prepare(None, small_fleet())
