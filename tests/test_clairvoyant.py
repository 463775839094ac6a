"""The clairvoyant bound: below every policy's hard cost, exact where the hand can say what is least."""

import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq import clairvoyant as module
from fluidq._clairvoyant_decode import Lengths, facets
from fluidq._errors import InputError
from fluidq.clairvoyant import Bound, clairvoyant
from fluidq.io.traces import read_trace
from fluidq.laws import LAWS, law
from fluidq.objective import Objective
from fluidq.plant import Arrivals, Plant
from fluidq.policies import Thresholds
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, load_of, simulate
from fluidq.workload import default_workload
from tests.helpers import data, small_fleet, small_plant

TICKS = 40


class Replay(Policy):
    """Asks for a given path of workers."""

    KEEPS_BUDGET = True
    prefill: jax.Array
    decode: jax.Array

    def initial(self, fleet, width):
        return Asked(self.prefill[0], self.decode[0])

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(self.prefill[reading.index], self.decode[reading.index])


# What is static in a run, so that each compiles once: plant, fleet.
CASES = {
    "plain": ({}, {}),
    "loss": ({"back_pressure": False, "place": "prefill", "capacity": 1e9}, {"cold_start": 52.0}),
    "switch": ({"place": "decode", "kv_capacity": 150_000.0}, {"switch_delay": 20.0, "budget": 12.0}),
    "erlang": ({"back_pressure": False}, {"stages": 3, "substeps": 2}),
    "never": ({"prefill_worker": 2.0}, {"cold_start": 1e5}),
}


def random_case(rng, case):
    plant, fleet = CASES[case]
    numbers = {
        "t_step_a": rng.choice([0.005, 0.02, 0.045]),
        "t_step_b": rng.choice([0.0, 1e-4, 1e-3]),
        "accept": rng.choice([1.0, 2.0]),
        "capacity": rng.choice([0.0, 1e9, 20e9]),
    }
    plant = small_plant(**{**{name: float(x) for name, x in numbers.items()}, **plant})
    objective = Objective(
        late_weight=float(rng.choice([0.5, 10.0, 100.0])),
        lost_weight=float(rng.choice([0.5, 20.0])),
        ttft=float(rng.choice([0.1, 2.0, 10.0])),
        tpot=float(rng.choice([0.01, 0.05])),
        ttft_spread=float(rng.choice([0.05, 0.3, 1.0])),
        gpu_hour_weight=float(rng.choice([1.0, 2.0])),
        action_weight=float(rng.choice([0.0, 0.01])),
    )
    scale, spread = rng.choice([0.0, 1.0, 30.0, 200.0, 2000.0]), rng.choice([0.0, 0.1, 0.8])
    rough = rng.choice([0.0, 0.2, 1.0])
    n = scale * (rng.gamma(0.7, 1.0, TICKS) * (rng.random(TICKS) < 0.9) if rough == 1.0 else np.ones(TICKS))
    isl, osl = rng.lognormal(7, 0.6 * rough, TICKS), rng.lognormal(5, spread, TICKS) * (rng.random() < 0.9)
    load = Load(*(jnp.asarray(x) for x in (n, n * isl * 0.6, n * isl, n * osl)))
    return small_fleet(plant, **fleet), load, objective


def random_paths(rng, fleet, bound):
    """Replays: the bound's own path in whole workers, ahead of its time, too small, too large; constant; erratic."""
    g_P, g_D = map(float, fleet.per_worker)
    own = bound.prefill_gpus / g_P, bound.decode_gpus / g_D
    ahead = min(fleet.delay_ticks + 2, TICKS)
    early = [np.array([x[t : t + ahead].max() for t in range(TICKS)]) for x in own]
    turns = (np.arange(TICKS) // rng.integers(1, 6)) % 2
    most = int(fleet.budget / (g_P + g_D))
    wild = [
        own,
        early,
        [x * rng.uniform(1.0, 1.6) + rng.integers(0, 2) for x in early],
        [np.full(TICKS, float(rng.integers(0, most + 1))) for _ in own],
        [rng.integers(0, most + 1) * turns, rng.integers(0, most + 1) * (turns if rng.random() < 0.5 else 1 - turns)],
        [rng.integers(0, most + 1, TICKS) for _ in own],
    ]
    for prefill, decode in wild:
        P = np.minimum(np.ceil(np.asarray(prefill, dtype=float) - 1e-6), np.floor(fleet.budget / g_P))
        D = np.minimum(np.ceil(np.asarray(decode, dtype=float) - 1e-6), np.floor((fleet.budget - P * g_P) / g_D))
        yield Replay(jnp.asarray(P), jnp.asarray(D))


def is_below(bound, run):
    return bound.value <= float(run.cost.cost) * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_no_replayed_path_costs_less(case, seed):
    rng = np.random.default_rng([seed, *case.encode()])
    for _ in range(2):
        fleet, load, objective = random_case(rng, case)
        bound = clairvoyant(fleet, load, objective, progress=False)
        assert bound.status == "optimal"
        for policy in random_paths(rng, fleet, bound):
            run = simulate(fleet, load, policy, objective, record=False)
            assert is_below(bound, run), (bound.value, run.cost)


def varied_load(seed=3, scale=0.5):
    """Ten minutes of the default process at a size that a dozen GPUs serve."""
    return load_of(default_workload(seed=seed, days=1.0).slice(43200.0, 43200.0 + 15.0 * TICKS).scaled(scale), 15.0)


@pytest.fixture(scope="module")
def served():
    fleet = small_fleet(small_plant(kv_capacity=600_000.0))
    loads = [varied_load(), varied_load(scale=4.0)]  # within the budget, and above it
    return fleet, loads, [clairvoyant(fleet, load, progress=False) for load in loads]


@pytest.mark.parametrize("name", LAWS)
def test_no_law_costs_less(name, served):
    fleet, loads, bounds = served
    policy = law(name, fleet)
    for load, bound in zip(loads, bounds, strict=True):
        run = simulate(fleet, load, policy, record=False)
        assert 0 < bound.value
        assert is_below(bound, run)


def test_no_thresholds_cost_less(served):
    fleet, loads, bounds = served
    rng = np.random.default_rng(0)
    for _ in range(20):
        low, high = np.sort(rng.uniform(0.01, 3.0, 2)), np.sort(rng.uniform(0.1, 1.0, 2))
        policy = Thresholds(
            prefill_up=float(high[1] * low[1]),
            prefill_down=float(high[0] * low[0]),
            decode_up=float(high[1]),
            decode_down=float(high[0]),
            ratio=float(rng.uniform(0.2, 0.8)),
            step=float(rng.choice([2.0, 4.0, 8.0])),
        )
        for load, bound in zip(loads, bounds, strict=True):
            assert is_below(bound, simulate(fleet, load, policy, record=False))


def test_the_waiting_formulas_only_add(served):
    fleet, loads, bounds = served
    objective = Objective(waiting="mmc")
    assert clairvoyant(fleet, loads[0], objective, progress=False).value == bounds[0].value
    for path in random_paths(np.random.default_rng(2), fleet, bounds[0]):
        assert is_below(bounds[0], simulate(fleet, loads[0], path, objective, record=False))


def constant(n=300.0, isl=0.0, computed=0.0, osl=0.0):
    n = jnp.full(TICKS, n)
    return Load(n, n * computed, n * isl, n * osl)


DEAR = Objective(late_weight=1000.0, ttft=2.0, tpot=10.0, ttft_spread=0.05, tpot_spread=0.01)


def test_a_constant_prefill_load_needs_its_rate():
    # 300 requests of 2000 tokens in 15 s at 10,000 tok/s per GPU: 4 GPUs, for ten minutes.
    bound = clairvoyant(small_fleet(), constant(computed=2000.0, isl=2000.0), DEAR, progress=False)
    exact = 4.0 * 15.0 * TICKS / 3600.0
    # The queue may hold two seconds of the pool's work at the end, which is then free.
    assert exact * (1 - 2.0 / (15.0 * TICKS) - 0.01) < bound.value <= exact
    assert bound.decode_gpus.max() < 0.02


def test_a_constant_decode_load_needs_its_full_batches():
    # 300 requests of 200 tokens in 15 s; a full batch of 64 steps in 20 ms + 64 (0.1 ms + 8 ns * context).
    isl, osl, plant = 1000.0, 200.0, small_plant()
    step = 0.02 + 64 * (1e-4 + 8e-9 * (isl + (osl - 1) / 2))
    bound = clairvoyant(small_fleet(), constant(isl=isl, osl=osl), DEAR, progress=False)
    exact = 300 * osl * step / (64 * 15.0)
    np.testing.assert_allclose(np.median(bound.decode_gpus), exact, rtol=0.02)
    # What runs or waits at the end is free: one batch, and the wait that is not late.
    gpu_hours = exact * 15.0 * TICKS / 3600.0
    rest = exact * (osl * step + 2.0 * step / plant.t_step_a) / 3600.0
    assert gpu_hours * 0.99 - rest < bound.value <= gpu_hours


def test_a_constant_load_leaves_little_room_below_the_best_constant_fleet():
    # Any real numbers of workers: the bound takes them too. A wrong factor in either pool breaks one side.
    fleet, load = small_fleet(), constant(isl=2000.0, computed=2000.0, osl=200.0)
    bound = clairvoyant(fleet, load, progress=False)
    costs = []
    for prefill in (3.9, 4.0, 4.1, 4.3):
        for decode in (1.9, 2.1, 2.3, 2.5, 2.7, 3.0, 3.4):
            path = Replay(jnp.full(TICKS, prefill), jnp.full(TICKS, decode))
            costs.append(float(simulate(fleet, load, path, record=False).cost.cost))
    assert bound.value <= min(costs) < 1.15 * bound.value, (bound, sorted(costs)[:3])


def test_a_rise_is_paid_a_cold_start_ahead():
    # From 1 to 4 GPUs of prefill for the second half: three GPUs start, and are paid for 40 s before they serve.
    n = jnp.where(jnp.arange(TICKS) < TICKS // 2, 75.0, 300.0)
    load = Load(n, n * 2000.0, n * 2000.0, 0.0 * n)
    values = []
    for cold_start in (0.0, 40.0, 80.0):
        values.append(clairvoyant(small_fleet(cold_start=cold_start), load, DEAR, progress=False).value)
    # The alternatives cost more: all four from the start, three more for the first 300 s.
    np.testing.assert_allclose(np.diff(values), 3.0 * 40.0 / 3600.0, rtol=0.02)
    # Nothing arrives within the horizon: all four from the start.
    never = clairvoyant(small_fleet(cold_start=1e6), load, DEAR, progress=False)
    np.testing.assert_allclose(never.value, 4.0 * 15.0 * TICKS / 3600.0, rtol=0.02)


def test_a_started_worker_has_a_price():
    n = jnp.where(jnp.arange(TICKS) < TICKS // 2, 75.0, 300.0)
    load = Load(n, n * 2000.0, n * 2000.0, 0.0 * n)
    free = clairvoyant(small_fleet(), load, DEAR, progress=False)
    priced = clairvoyant(small_fleet(), load, eqx.tree_at(lambda o: o.action_weight, DEAR, 0.01), progress=False)
    assert free.parts["actions"] == 0.0
    np.testing.assert_allclose(priced.parts["actions"], 0.03, rtol=0.05)
    np.testing.assert_allclose(priced.value - free.value, 0.03, rtol=0.05)


def test_nothing_to_serve_costs_nothing():
    bound = clairvoyant(small_fleet(), constant(n=0.0), progress=False)
    assert bound.value == 0.0
    assert not bound.prefill_gpus.any()
    assert bound.ratio(1.0) == math.inf


def test_a_limit_that_nobody_can_keep_is_charged():
    # TTFT of an empty system is above the limit: all are late, at 10 times 0.2 GPU-seconds each, whatever is built.
    bound = clairvoyant(small_fleet(), constant(osl=100.0), Objective(ttft=1e-4, tpot=10.0), progress=False)
    late = 300 * TICKS * 10.0 * 0.2 / 3600.0
    assert late * 0.999 < bound.value
    assert bound.parts["slo_loss"] == pytest.approx(late, rel=0.001)


def test_horizons_of_several_stretches_are_cut_without_much_loss(monkeypatch):
    fleet, load = small_fleet(), varied_load()
    whole = clairvoyant(fleet, load, progress=False)
    monkeypatch.setattr(module, "STRETCH", 10)
    cut = clairvoyant(fleet, load, progress=False)
    assert (whole.stretches, cut.stretches) == (1, 4)
    assert 0.93 * whole.value < cut.value <= whole.value * (1 + 1e-9)


def test_decode_facets_hold_in_the_engine():
    """One step from any state: what was done, and what of it was late, against every facet."""
    rng = np.random.default_rng(5)
    plant, dt, objective = small_plant(), 15.0, Objective(tpot=0.025)
    shortest, longest, context = 60.0, 240.0, 500.0
    facet = facets(plant, objective, Lengths(shortest, longest, context), dt, 1)
    touched = 0.0
    step = jax.jit(plant.advance)
    for i in range(300):
        gpus = rng.uniform(0.5, 4.0)
        osl = rng.uniform(shortest, longest, 3) if i % 2 else np.full(3, longest)
        n, queue, come = rng.uniform(0, 1) * 64 * 4.0, rng.uniform(0, 100), rng.uniform(0, 4000)
        isl = context - (osl - 1) / 2
        hold = lambda k, n: type(plant.empty().active)(n, n * isl[k], n * osl[k])  # noqa: B023, E731
        state = plant.empty()._replace(active=hold(0, n), buffer=hold(1, queue))
        arrivals = Arrivals(come, 0.0, come * isl[2], come * osl[2])
        after, flows = step(state, arrivals, 1.0, gpus, dt)
        batches = np.array([n, float(after.active.requests)]) / 64.0
        done, serving = float(flows.done.output) / facet.unit, float(flows.serving)
        most = facet.done @ np.array([*batches, serving])
        assert np.all(done <= most * (1 + 1e-9))
        touched = max(touched, float(np.max(done / most)))
        over = float(objective.late_share(1.0, flows.t_step)[1])
        late = float(flows.done.requests) * longest / facet.unit * over
        assert np.all(facet.late @ np.array([done, *batches, -serving]) <= late + 1e-9)
    assert touched > 0.9, "some step comes near to a facet"


def test_a_bound_is_told_in_words_and_in_json(served):
    _, _, bounds = served
    told = json.loads(json.dumps(bounds[0].to_dict()))
    assert told["value"] == bounds[0].value
    assert len(told["prefill_gpus"]) == TICKS
    assert set(told["parts"]) == {"gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "actions"}
    assert math.fsum(told["parts"].values()) == pytest.approx(told["value"], rel=1e-4)
    text = str(bounds[0])
    assert "clairvoyant bound" in text
    assert "relaxed" in text
    assert isinstance(module(small_fleet(), constant(n=0.0), progress=False), Bound)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests": jnp.zeros(0)}, "no windows"),
        ({"requests": jnp.array([1.0, jnp.nan])}, "requests"),
        ({"output": jnp.array([1.0, -1.0])}, "load.output"),
        ({"stored": jnp.zeros(3)}, "load.stored"),
        ({"requests": jnp.zeros(2)}, "without requests"),
    ],
)
def test_a_load_that_is_none_is_refused(change, words):
    load = Load(*(jnp.ones(2) for _ in Load._fields))._replace(**change)
    with pytest.raises(InputError, match=words):
        clairvoyant(small_fleet(), load, progress=False)


def test_other_plants_and_batches_of_fleets_are_refused():
    class Other(Plant):
        pass

    other = Other(**{name: getattr(small_plant(), name) for name in Plant.__dataclass_fields__})
    with pytest.raises(InputError, match="Other"):
        clairvoyant(small_fleet(other), constant(), progress=False)
    with pytest.raises(InputError, match="one fleet"):
        clairvoyant(small_fleet().with_plant(r_P=jnp.ones(3)), constant(), progress=False)
    with pytest.raises(InputError, match=r"objective\.ttft"):
        clairvoyant(small_fleet(), constant(), Objective(ttft=jnp.ones(2)), progress=False)


@pytest.mark.parametrize(
    "name", ["azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "mooncake/conversation_trace.jsonl.gz"]
)
def test_no_path_costs_less_on_a_trace(name):
    workload, _ = read_trace(str(data(name)), 15.0)
    load = load_of(workload.slice(0.0, 15.0 * TICKS), 15.0)
    fleet = small_fleet()
    bound = clairvoyant(fleet, load, progress=False)
    rng = np.random.default_rng(1)
    costs = [float(simulate(fleet, load, path, record=False).cost.cost) for path in random_paths(rng, fleet, bound)]
    assert 0 < bound.value <= min(costs)
