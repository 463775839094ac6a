"""Dynamo's planner: its law to the letter, the relaxed form, the forecasts, and what it is known to get wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies import Asked, Reading
from fluidq.policies._dynamo_laws import within_gpus
from fluidq.policies.dynamo import DynamoPlanner
from fluidq.policies.facts import Mix, facts
from fluidq.policies.forecasts import Arima, Constant, Holt, Kalman, MovingAverage, predictor
from fluidq.simulate import Sampling, load_of, simulate
from fluidq.workload import Workload
from tests.helpers import central, small_fleet, small_plant

# Every worker is one GPU; a decode engine holds 100,000 tokens of KV; a context is 10,000 tokens.
FLEET = small_fleet(small_plant(kv_capacity=100_000.0))
LOAD = {
    "optimization_target": "load",
    "prefill_scale_up_queue_tokens": 10_000.0,
    "prefill_scale_down_queue_tokens": 2_000.0,
    "decode_scale_up_kv_rate": 80.0,
    "decode_scale_down_kv_rate": 40.0,
}


def planner(**changes):
    return DynamoPlanner(**{"context_length": 10_000.0, **changes})


def reading(ready=(4, 4), starting=(0, 0), queue=2_000.0, kv=70_000.0, **changes):
    """`queue` and `kv` are tokens per engine; between the thresholds by default."""
    values = dict.fromkeys(Reading._fields, 0.0)
    values |= {"rate": 10.0, "isl": 1000.0, "isl_computed": 1000.0, "osl": 200.0, "running": 40.0 * ready[1]}
    values |= {"queue_tokens": queue * ready[0], "kv_tokens": kv * ready[1]}
    for pool, n, more in zip(("prefill", "decode"), ready, starting, strict=True):
        values |= {f"{pool}_ready": float(n), f"{pool}_starting": float(more), f"{pool}_asked": float(n + more)}
    return Reading(**{**values, **changes})


def asked(policy, seen, fleet=FLEET, memory=None, width=None):
    return tuple(float(n) for n in policy.decide(memory, seen, fleet, width)[1])


def step_load(rates, isl=1000.0, osl=200.0):
    return load_of(Workload.from_windows(window=15.0, rate=rates, isl_stored=isl, osl=osl), 15.0)


# The load law, hard


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (reading(), (4, 4)),
        (reading(queue=10_000.0), (5, 4)),  # x = 1 context length: reached is enough
        (reading(queue=9_999.0), (4, 4)),
        (reading(queue=1_000.0), (4, 4)),  # at the lower threshold is not below it
        (reading(queue=999.0), (3, 4)),
        (reading(kv=100_000.0), (4, 4)),  # u = 1 is not over it
        (reading(kv=100_001.0), (4, 5)),
        (reading(kv=60_000.0), (4, 4)),
        (reading(kv=59_999.0), (4, 3)),
        (reading(kv=50_000.0, buffered_tokens=4 * 51_000.0), (4, 5)),  # waiting KV counts
        (reading(queue=20_000.0, kv=200_000.0), (5, 5)),
        (reading(queue=0.0, kv=0.0), (3, 3)),
        (reading(ready=(1, 1), queue=0.0, kv=0.0), (1, 1)),  # min_endpoint
        (reading(queue=20_000.0, kv=0.0, starting=(1, 0)), (5, 4)),  # nothing changes while one starts
        (reading(queue=20_000.0, kv=0.0, starting=(0, 1)), (4, 5)),
        (reading(queue=5_000.0, isl_computed=500.0), (5, 4)),  # cached tokens are queued tokens too
        (reading(rate=jnp.nan, queue_tokens=jnp.nan, kv_tokens=jnp.nan, isl=jnp.nan), (4, 4)),
    ],
)
def test_the_throughput_target_to_the_letter(seen, wanted):
    assert asked(planner(), seen) == wanted


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (reading(queue=500.0, kv=20_000.0), (4, 4)),
        (reading(queue=1_000.0, kv=20_000.0), (5, 4)),
        (reading(queue=1.0, kv=20_000.0), (4, 4)),
        (reading(queue=0.0, kv=20_000.0), (3, 4)),  # down only where all queues are empty
        (reading(queue=500.0, kv=40_001.0), (4, 5)),
        (reading(queue=500.0, kv=9_999.0), (4, 3)),
    ],
)
def test_the_latency_target_to_the_letter(seen, wanted):
    assert asked(planner(optimization_target="latency"), seen) == wanted


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (reading(queue=5_000.0), (4, 4)),
        (reading(queue=10_000.0, kv=80_001.0), (5, 5)),
        (reading(queue=1_999.0, kv=39_999.0), (3, 3)),
        (reading(queue=2_000.0, kv=40_000.0), (4, 4)),
    ],
)
def test_the_load_target_has_the_users_thresholds_in_per_cent(seen, wanted):
    assert asked(DynamoPlanner(**LOAD), seen) == wanted


def test_any_engine_scales_up_and_all_scale_down():
    spread = small_fleet(FLEET.plant, spread=0.2)
    assert asked(planner(), reading(queue=8_400.0, kv=84_000.0), spread) == (5, 5)  # the hottest is over
    assert asked(planner(), reading(queue=900.0, kv=55_000.0), spread) == (4, 4)  # the hottest is not below


# TTFT = (queue + 1000)/10,000 s against 500 ms; ITL = 20 ms + 0.1 ms running + 8e-9 s (kv + 1099.5) against 30 ms.
@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (reading(queue=3_000.0), (4, 4)),
        (reading(queue=4_001.0), (5, 4)),
        # N - 1: 4/3 queue/10,000 < (0.5 - 0.1) 0.8 = 0.32 s, so queue < 2400
        (reading(queue=2_399.0), (3, 4)),
        (reading(queue=2_401.0), (4, 4)),
        (reading(queue=3_000.0, kv=900_000.0), (4, 5)),
        (reading(queue=3_000.0, running=4 * 120.0), (4, 5)),
        # N - 1: 20 + 0.1 * 4/3 * 20 + 8e-6 (4/3 kv + 1100) = 22.67 + ... < 24 ms, so kv < 124,000: KV binds at 75,000
        (reading(queue=3_000.0, running=4 * 20.0, kv=74_999.0), (4, 3)),
        (reading(queue=3_000.0, running=4 * 20.0, kv=75_001.0), (4, 4)),
        (reading(queue=3_000.0, running=4 * 33.0, kv=10.0), (4, 4)),  # 20 + 4.4 ms is over 0.8 * 30
    ],
)
def test_the_sla_target_tests_what_one_engine_less_would_do(seen, wanted):
    policy = DynamoPlanner("sla", enable_throughput_scaling=False, enable_load_scaling=True, itl_ms=30.0)
    assert asked(policy, seen) == wanted


def test_up_under_sla_needs_all_engines_over_the_limit():
    policy = DynamoPlanner("sla", enable_throughput_scaling=False, enable_load_scaling=True)
    spread = small_fleet(FLEET.plant, spread=0.2)
    assert asked(policy, reading(queue=4_500.0), spread)[0] == 4
    assert asked(policy, reading(queue=5_100.0), spread)[0] == 5


def test_the_load_law_moves_on_its_own_interval():
    policy = planner(load_adjustment_interval_seconds=30.0)
    assert asked(policy, reading(queue=20_000.0, index=1)) == (4, 4)
    assert asked(policy, reading(queue=20_000.0, index=2)) == (5, 4)


# The throughput law, hard


def engines(rate, itl=50.0, kv=1e12):
    """Prefill and decode engines after three minutes at `rate`, without limits on size and moves."""
    fleet = small_fleet(small_plant(kv_capacity=1.0), budget=1e6).with_plant(kv_capacity=jnp.asarray(kv))
    free = {"load_predictor": "constant", "max_throughput_scaling_replicas": 1e9}
    run = simulate(fleet, step_load([rate] * 13), DynamoPlanner("sla", itl_ms=jnp.asarray(itl), **free))
    return float(run.trajectory.prefill_gpus[-1]), float(run.trajectory.decode_gpus[-1])


def decode_demand(rate, batch):
    """rate OSL t(B) / B, the step time being the plant's."""
    return rate * 200 * (0.02 + batch * (1e-4 + 8e-9 * 1099.5)) / batch


def test_the_throughput_law_is_the_fluid_balance_rounded_up():
    """n_P = ceil(rate ISL / r_P), n_D = ceil(rate OSL t / B) at 30 req/s, and phi at a large size."""
    assert engines(30.0) == (3.0, np.ceil(decode_demand(30, 64)))
    n_P, n_D = engines(30_000.0)
    assert n_P / (n_P + n_D) == pytest.approx(0.1 / (0.1 + decode_demand(1, 64)), rel=2 / n_P)


def test_the_throughput_law_keeps_the_batch_within_the_itl_and_the_memory():
    batch = np.floor(0.003 / (1e-4 + 8e-9 * 1099.5))
    assert engines(3_000.0, itl=23.0)[1] == np.ceil(decode_demand(3_000, batch))
    assert engines(3_000.0, kv=11_000.0)[1] == np.ceil(decode_demand(3_000, 10))  # ten sequences of 1100 tokens


def test_the_throughput_law_moves_at_most_eight_and_only_on_its_ticks():
    policy = DynamoPlanner("sla", load_predictor="constant")
    run = simulate(small_fleet(cold_start=0.0), step_load([10.0] * 5 + [300.0] * 20), policy)
    prefill = np.asarray(run.trajectory.prefill_gpus)
    assert prefill[11] == 1.0
    assert prefill[12] == 9.0  # the mean of the interval asks for more than eight, and the decode pool keeps its own
    assert np.all(prefill[12:24] == 9.0)


def test_with_both_laws_the_throughput_size_is_a_floor():
    policy = DynamoPlanner("sla", enable_load_scaling=True, load_predictor="constant")
    memory = policy.start(FLEET, Asked(4.0, 4.0))
    memory = memory._replace(sizes=jnp.array([4.0, 3.0]))
    quiet = reading(queue=0.0, kv=10.0, running=4.0, index=5)
    assert asked(policy, quiet, memory=memory) == (4, 3)
    assert asked(policy, reading(queue=9_000.0, kv=10.0, running=4.0, index=5), memory=memory) == (5, 3)


# The GPU budget


def test_the_old_clamp_moves_a_pool_against_its_own_proposal():
    """Pools of 8 and 1 GPUs under a budget of 16: prefill wants 1 -> 2, decode wants to keep its one engine."""
    fleet = small_fleet(small_plant(prefill_worker=8.0), initial_gpus=9.0)
    now, proposed, low = jnp.array([1.0, 1.0]), jnp.array([2.0, 1.0]), jnp.ones(2)
    old = within_gpus(proposed, now, low, 16.0, fleet, True, None)
    new = within_gpus(proposed, now, low, 16.0, fleet, False, None)
    assert tuple(map(float, old)) == (1, 8)  # decode gets seven that it did not ask for
    assert tuple(map(float, new)) == (1, 1)


def test_the_old_clamp_takes_from_a_pool_that_wanted_to_stay():
    now, proposed, low = jnp.array([4.0, 4.0]), jnp.array([4.0, 5.0]), jnp.ones(2)
    fleet = small_fleet()
    assert tuple(map(float, within_gpus(proposed, now, low, 8.0, fleet, True, None))) == (3, 5)
    assert tuple(map(float, within_gpus(proposed, now, low, 8.0, fleet, False, None))) == (4, 4)
    # An opposing move at a full budget is no reversal.
    assert tuple(map(float, within_gpus(jnp.array([3.0, 5.0]), now, low, 8.0, fleet, False, None))) == (3, 5)


def test_the_newer_clamp_never_reverses_and_keeps_the_budget():
    rng = np.random.default_rng(0)
    for _ in range(300):
        g_P, g_D = rng.integers(1, 5, 2).astype(float)
        fleet = small_fleet(small_plant(prefill_worker=g_P, decode_worker=g_D), budget=200.0)
        now = rng.integers(1, 9, 2).astype(float)
        proposed = np.maximum(now + rng.integers(-3, 9, 2), 1.0)
        budget = now @ [g_P, g_D] + rng.integers(0, 6)
        fits = np.asarray(within_gpus(jnp.asarray(proposed), jnp.asarray(now), jnp.ones(2), budget, fleet, False, None))
        assert np.all((fits - now) * (proposed - now) >= 0)
        assert np.all(np.abs(fits - now) <= np.abs(proposed - now))
        assert fits @ [g_P, g_D] <= budget + 1e-9


def test_the_budget_of_the_policy_applies():
    full = reading(ready=(4, 4), queue=20_000.0, kv=200_000.0)
    assert asked(planner(max_gpu_budget=8.0), full) == (4, 4)
    assert asked(planner(max_gpu_budget=9.0), full) == (4, 5)  # s = 0.9: prefill keeps floor(4.5)
    assert asked(planner(max_gpu_budget=-1.0), full) == (5, 5)
    assert asked(planner(mode="decode"), full) == (4, 5)


# Known pathologies


def test_two_engines_and_one_take_turns_where_the_down_test_ignores_consolidation():
    """u = 0.55 on two is below 0.6; on one it is 1.1. With the N/(N - 1) test the pool of two stays."""
    assert asked(planner(), reading(ready=(4, 2), kv=55_000.0))[1] == 1
    assert asked(planner(), reading(ready=(4, 1), kv=110_000.0))[1] == 2
    band = planner().dead_band(FLEET, Mix(1.0, 1.0, 1.0, 1.0))
    assert band == (0.6, 1.0)
    f = facts(planner(), FLEET, Mix(10.0, 1000.0, 1000.0, 200.0))
    assert f.steady_size == pytest.approx(2.5)  # so from three on no constant load flaps
    sla = DynamoPlanner("sla", enable_throughput_scaling=False, enable_load_scaling=True)
    assert asked(sla, reading(ready=(4, 2), kv=55_000.0, queue=3_000.0))[1] == 2
    assert facts(sla, FLEET, Mix(10.0, 1000.0, 1000.0, 200.0)).steady_size == 0.0
    # The closed loop: constant load, and it never stops moving.
    fleet = small_fleet(small_plant(kv_capacity=27_000.0, t_step_b=0.0, t_step_c=0.0), cold_start=15.0)
    load = step_load([6.5] * 200)  # 6.5 req/s * 200 * 0.02 s * 1100 tok = 28,600 tok: 0.53 of two, 1.06 of one
    run = simulate(fleet, load, planner())
    assert len(set(np.asarray(run.trajectory.decode_gpus)[-50:])) > 1
    assert np.abs(np.diff(np.asarray(run.trajectory.decode_gpus)[100:])).sum() >= 10


def test_kv_use_says_nothing_where_the_batch_limit_binds_first():
    """64 sequences of 1100 tokens fill every slot and 7 % of the memory: the pool goes down while requests wait."""
    roomy = small_fleet(small_plant(kv_capacity=1e6))
    waiting = 4 * 300_000.0  # tokens between the pools, more than decode can hold in its slots
    full = reading(running=4 * 64.0, kv=70_400.0, buffered=1_100.0, buffered_tokens=waiting)
    assert asked(planner(), full, roomy) == (4, 3)
    assert asked(planner(), full, FLEET) == (4, 5)


def test_a_size_of_exactly_the_demand_never_drains_a_backlog():
    """3 engines for a demand of 3.000: the backlog of the start stays for ever."""
    policy = DynamoPlanner("sla", load_predictor="constant")
    fleet = small_fleet(initial_gpus=4.0, cold_start=60.0)  # two prefill engines until the third has started
    run = simulate(fleet, step_load([30.0] * 240), policy)
    backlog = np.asarray(run.trajectory.backlog)
    assert float(run.trajectory.prefill_gpus[-1]) == 3.0
    assert backlog[20] > 100_000
    assert backlog[-1] == pytest.approx(backlog[20], rel=1e-9)


def test_a_cold_start_longer_than_the_time_to_fill_fills_the_buffer():
    """The output doubles: decode is short, and what it cannot take fills 20 GB; the facts say so beforehand."""
    rates, osl = [20.0] * 200, [200.0] * 60 + [500.0] * 140
    load = step_load(rates, osl=osl)
    policy = planner()
    kept = {}
    for cold_start in (15.0, 600.0):
        fleet = small_fleet(small_plant(kv_capacity=100_000.0, capacity=100e9), cold_start=cold_start)
        run = simulate(fleet, load, policy)
        f = facts(policy, fleet, Mix(20.0, 1000.0, 1000.0, 200.0), delta_up=0.4e9, delta_down=0.1e9, stock=0.0)
        kept[cold_start] = (float(run.full), f)
        assert f.reaction == 15.0 + cold_start
        assert f.time_to_full == pytest.approx(250.0)
    assert kept[15.0][0] == 0
    assert kept[600.0][0] > 0.05
    assert kept[600.0][1].limits["headroom"] == pytest.approx(615 / 250)
    assert kept[15.0][1].limits["headroom"] < 1


def test_metrics_that_are_missing_hold_the_load_law_and_empty_the_throughput_law():
    """The load law needs a sample to move; the predictors take what is not finite for 0: no data looks like no load."""
    load = step_load([30.0] * 40)
    blind = Sampling(missing=jnp.arange(40) >= 5)
    run = simulate(FLEET, load, planner(), sampling=blind)
    asked_for = np.asarray(run.trajectory.requested_gpus)
    assert np.all(asked_for[6:] == asked_for[6])
    policy = DynamoPlanner("sla", load_predictor="constant")
    run = simulate(small_fleet(), load, policy, sampling=blind)
    assert float(run.trajectory.requested_gpus[20]) > 2
    assert float(run.trajectory.requested_gpus[-1]) == 2  # three busy engines were stopped
    # An idle fleet that does report goes down, one engine per tick.
    assert asked(planner(), reading(rate=0.0, isl=0.0, isl_computed=0.0, osl=0.0, queue=0.0, kv=0.0)) == (3, 3)


# Relaxed


@pytest.mark.parametrize(
    "policy",
    [
        planner(),
        planner(optimization_target="latency"),
        DynamoPlanner("sla", enable_throughput_scaling=False, enable_load_scaling=True, max_gpu_budget=10.0),
    ],
)
def test_the_relaxed_law_tends_to_the_hard_one(policy):
    rng, soft = np.random.default_rng(0), jax.jit(policy.decide)
    gaps = {width: [] for width in (0.3, 1e-2, 1e-5)}
    for _ in range(60):
        seen = reading(
            ready=tuple(rng.integers(1, 8, 2)),
            starting=(0, int(rng.random() < 0.2)),
            queue=rng.uniform(0, 15_000) * (rng.random() < 0.8),
            kv=rng.uniform(0, 150_000),
            running=rng.uniform(0, 200),
        )
        seen = Reading(*(jnp.asarray(value, dtype=jnp.float64) for value in seen))
        _, hard = policy.decide(None, seen, FLEET, None)
        for width, gap in gaps.items():
            gap.append(max(abs(float(a - b)) for a, b in zip(soft(None, seen, FLEET, width)[1], hard, strict=True)))
    mean = [np.mean(gap) for gap in gaps.values()]
    assert mean[2] < 1e-3
    assert mean[2] < mean[1] < mean[0]


RATES = [15.0 + 12.0 * np.sin(i / 6) for i in range(64)]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            lambda x: DynamoPlanner(**{**LOAD, **dict(zip(list(LOAD)[1:], x, strict=True))}),
            list(LOAD)[1:],
        ),
        (
            lambda x: DynamoPlanner(
                "sla",
                enable_load_scaling=True,
                load_predictor="kalman",
                throughput_adjustment_interval_seconds=60.0,
                itl_ms=x[0],
                ttft_ms=x[1],
                load_scaling_down_sensitivity=x[2],
                kalman_q_level=x[3],
                kalman_r=x[4],
            ),
            [25.0, 150.0, 70.0, 100.0, 300.0],
        ),
    ],
)
def test_the_closed_loop_has_the_gradient_of_central_differences_and_tends_to_the_hard_one(make, names):
    fleet, load = FLEET, step_load(RATES)
    x = jnp.array([LOAD.get(name, name) for name in names], dtype=float)

    @jax.jit
    @jax.value_and_grad
    def cost(x, width):
        return simulate(fleet, load, make(x), width=width, record=False).cost.cost

    slopes = np.asarray(cost(x, 0.3)[1])
    assert np.all(np.isfinite(slopes))
    assert np.count_nonzero(slopes) >= len(slopes) - 1
    np.testing.assert_allclose(slopes, central(lambda x: cost(x, 0.3)[0], x), rtol=2e-4, atol=1e-7)
    hard = float(simulate(fleet, load, make([float(v) for v in x]), record=False).cost.cost)
    gaps = [abs(float(cost(x, width)[0]) - hard) for width in (0.3, 1e-2, 1e-8)]
    assert gaps[2] < 1e-6 * hard < gaps[0]


# Forecasts


def test_the_predictors_meet_their_own_kind_of_series():
    line = jnp.stack([5.0 + 2.0 * jnp.arange(40.0), jnp.full(40, 7.0)], axis=1)
    for kind in (Constant(), MovingAverage(4), Holt(0.5, 0.3), Kalman(1.0, 0.1, 0.1)):
        seen, _ = jax.lax.scan(lambda seen, value, k=kind: (k.observe(seen, value), None), kind.start(2), line)
        ahead = np.asarray(kind.ahead(seen, 3.0))
        assert ahead[1] == pytest.approx(7.0, rel=1e-6)
        wanted = {Constant: 83.0, MovingAverage: 80.0}.get(type(kind), 89.0)
        assert ahead[0] == pytest.approx(wanted, rel=1e-2)


def test_a_missing_sample_leaves_the_state_alone():
    for kind in (Constant(), MovingAverage(3), Holt(), Kalman()):
        seen = kind.observe(kind.observe(kind.start(1), jnp.array([4.0])), jnp.array([5.0]))
        blind = kind.observe(seen, jnp.array([jnp.nan]))
        jax.tree.map(np.testing.assert_array_equal, blind, seen)


def test_the_kalman_filter_reaches_its_steady_gain():
    """With q_trend = 0 and no trend, P solves P^2 = q (P + r): the gain is that of exponential smoothing."""
    kind = Kalman(1.0, 0.0, 10.0)
    values = np.random.default_rng(0).normal(50, 3, (300, 1))
    seen, _ = jax.lax.scan(lambda seen, value: (kind.observe(seen, value), None), kind.start(1), jnp.asarray(values))
    ahead = (1.0 + np.sqrt(41.0)) / 2
    assert float(seen.cov[0, 0, 0]) == pytest.approx(ahead * 10 / (ahead + 10), rel=1e-2)


def test_arima_forecasts_without_seeing_the_future_and_better_than_the_last_value():
    pytest.importorskip("statsmodels")
    rng, x = np.random.default_rng(0), np.zeros(160)
    noise = rng.normal(size=160)
    for k in range(1, 160):
        x[k] = x[k - 1] + noise[k] - 0.8 * noise[k - 1]
    x += 100.0
    ahead = Arima().forecasts(x)
    again = Arima().forecasts(np.concatenate([x[:100], x[100:] + 50.0]))
    np.testing.assert_allclose(ahead[:99], again[:99], rtol=1e-9)
    assert np.mean((ahead[20:-1] - x[21:]) ** 2) < 0.85 * np.mean((x[20:-1] - x[21:]) ** 2)
    np.testing.assert_array_equal(Arima().forecasts(np.full(30, 7.0)), np.full(30, 7.0))


def test_the_planner_uses_arima_by_default_and_says_what_is_missing_without_it(monkeypatch):
    pytest.importorskip("statsmodels")
    policy = DynamoPlanner("sla", throughput_adjustment_interval_seconds=60.0)
    prepared = policy.prepare(step_load(RATES), FLEET)
    assert prepared.forecasts.shape == (16, 3)
    run = simulate(FLEET, step_load(RATES), policy)
    assert float(run.actions) > 0
    monkeypatch.setitem(__import__("sys").modules, "statsmodels.tsa.arima.model", None)
    with pytest.raises(ValueError, match=r"fluidq\[predict\]"):
        policy.prepare(step_load(RATES), FLEET)


# Bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimization_target": "thruput"}, "did you mean 'throughput'"),
        ({"mode": "agg"}, "mode is 'agg'; it must be disagg, prefill or decode"),
        ({"load_predictor": "prophet"}, "load_predictor is 'prophet'"),
        ({"load_predictor": "kalmann"}, "did you mean 'kalman'"),
        ({"budget_clamp": "proportionl"}, "did you mean 'proportional'"),
        ({**LOAD, "decode_scale_up_kv_rate": 0.8}, "decode_scale_up_kv_rate is 0.8; .* write 80 for 0.8"),
        ({"load_scaling_down_sensitivity": 0.8}, "write 80 for 0.8"),
        ({"load_scaling_down_sensitivity": 180.0}, "load_scaling_down_sensitivity is 180.0; .* between 0 and 100"),
        ({"ttft_ms": 0.5}, "ttft_ms is 0.5; it must be milliseconds: write 500 for 0.5"),
        ({"itl_ms": 0.05}, "write 50 for 0.05"),
        ({**LOAD, "decode_scale_down_kv_rate": 90.0}, "decode_scale_down_kv_rate is 90.0; .* below decode_scale_up"),
        ({**LOAD, "prefill_scale_down_queue_tokens": 2e4}, "below prefill_scale_up_queue_tokens, which is 10000.0"),
        ({**LOAD, "decode_scale_up_kv_rate": None}, "decode_scale_up_kv_rate is None"),
        ({"load_adjustment_interval_seconds": 200.0}, "below throughput_adjustment_interval_seconds"),
        ({"optimization_target": "sla", "enable_throughput_scaling": False}, "nothing would scale"),
        ({"min_gpu_budget": 4.0}, "min_gpu_budget is 4.0"),
        ({"min_endpoint": 0.0}, "min_endpoint is 0.0"),
        ({"max_gpu_budget": -3.0}, "max_gpu_budget is -3.0"),
    ],
)
def test_bad_parameters_are_named_with_the_remedy(changes, words):
    with pytest.raises(ValueError, match=words):
        DynamoPlanner(**changes)


def test_what_the_fleet_cannot_hold_is_refused():
    load = step_load([10.0] * 4)
    with pytest.raises(ValueError, match="kv_capacity is None"):
        simulate(small_fleet(), load, DynamoPlanner())
    fleet = small_fleet(small_plant(kv_capacity=1e5, prefill_worker=8.0, decode_worker=8.0), initial_gpus=16.0)
    with pytest.raises(ValueError, match=r"max_gpu_budget is 8.0; it must be at least 16"):
        simulate(fleet, load, DynamoPlanner(max_gpu_budget=8.0))
    with pytest.raises(ValueError, match="unknown load predictor 'kalmann'"):
        predictor("kalmann")
