"""llm-d's Workload Variant Autoscaler and its queueing analyser: to the letter, relaxed, and where they go wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies._wva import Use
from fluidq.policies.base import Asked
from fluidq.policies.facts import Mix
from fluidq.policies.metrics import pool_of
from fluidq.policies.queueing_analyser import QueueingAnalyser
from fluidq.policies.wva import WVASaturationV1, WVATokenCapacityV2, chart_behavior, sample_behavior
from tests.helpers import central, small_fleet, small_plant
from tests.product_laws import FLEET, NAN, asked, finite_reverse, follow, gaps, judge, moves, reading, start

KV = 200e3  # tokens of a decode worker
V1 = WVASaturationV1(behavior=None)
V2 = WVATokenCapacityV2(behavior=None)


def using(kv=0.0, queue=0.0, ready=4.0):
    """Metrics of a decode pool whose replicas each use this much."""
    return {"kv_tokens": kv * KV * ready, "buffered": queue * ready}


# ---- V1 ----


@pytest.mark.parametrize(
    ("kv", "queue", "move"),
    [
        (0.0, 0.0, -1),
        (0.50, 0.0, -1),  # 0.5 * 4/3 = 0.667: 0.133 spare
        (0.53, 0.0, 0),  # 0.707: 0.093 spare, less than the trigger
        (0.69, 0.0, 0),
        (0.71, 0.0, 1),  # 0.09 spare
        (0.85, 0.0, 1),  # all are saturated: the spare is 0
        (0.0, 1.4, -1),  # 1.4 * 4/3 = 1.87: 3.13 spare
        (0.0, 1.6, 0),  # 2.13: 2.87 spare
        (0.0, 1.9, 0),
        (0.0, 2.1, 1),  # 2.9 spare
        (0.0, 9.0, 1),
        (0.71, 0.1, 1),
        (0.1, 2.1, 1),  # either is enough upwards
        (0.1, 1.6, 0),  # and either forbids the way down
    ],
)
def test_v1_to_the_letter(kv, queue, move):
    assert asked(V1, reading(**using(kv, queue)))[1] == 4 + move


@pytest.mark.parametrize(("ready", "move"), [(1.0, 0), (2.0, -1), (3.0, -1)])
def test_v1_goes_down_only_with_two_replicas_that_are_not_saturated(ready, move):
    assert float(V1.move(Use(jnp.asarray(0.1), jnp.asarray(0.0), jnp.asarray(True)), ready, FLEET, None)) == move


def test_v1_averages_the_spare_over_replicas_that_are_not_saturated():
    """Half of them at 0.7 +- 0.2 are below 0.8 on three quarters of the way: 0.5 to 0.8, 0.65 on average: no move."""
    spread = small_fleet(small_plant(kv_capacity=KV), spread=2 / 7)
    now = reading(**using(0.70))
    assert asked(V1, reading(**using(0.71)))[1] == 5
    assert asked(V1, now, spread)[1] == 4
    assert asked(V1, reading(**using(0.79)), spread)[1] == 4  # 0.564 to 0.8: 0.682 on average
    # Down: three of four are not saturated, at 0.65 each; without one of them the others are above.
    assert asked(V1, reading(**using(0.45)), spread)[1] == 3


def test_v1_looks_at_the_largest_of_the_last_minute():
    spike = lambda tick, ready: using(0.75 if tick == 5 else 0.6, ready=ready[1])  # noqa: E731
    assert follow(V1, 9, spike)[8] == 5  # ticks 5 to 8 are within the minute
    early = lambda tick, ready: using(0.75 if tick == 4 else 0.6, ready=ready[1])  # noqa: E731
    assert follow(V1, 9, early) == [4] * 4 + [5] * 5  # seen at once on tick 4; on tick 8 it is too old


def test_v1_decides_once_a_minute_by_one():
    assert follow(V1, 12, lambda tick, ready: using(0.9, ready=ready[1])) == [5] * 4 + [6] * 4 + [7] * 4


def test_v1_waits_while_a_pool_starts_workers():
    """One step per interval and cold start: with 100 s of it, one replica every two minutes."""
    sizes = follow(V1, 24, lambda tick, ready: using(0.9, ready=ready[1]), cold_start=7)
    assert sizes == [5] * 8 + [6] * 8 + [7] * 8
    assert asked(V1, reading(starting=(1.0, 0.0), **using(0.9)))[1] == 4  # either pool blocks both


def test_v1_holds_without_reports():
    assert asked(V1, reading(kv_tokens=NAN, buffered=NAN))[1] == 4
    assert asked(V1, reading(prefill_ready=0.0, prefill_asked=0.0, **using(0.9)))[1] == 5  # the other pool is its own


def test_v1_keeps_its_bounds():
    assert asked(WVASaturationV1(behavior=None, maxReplicas=4.0), reading(**using(0.9)))[1] == 4
    assert asked(WVASaturationV1(behavior=None, minReplicas=4.0), reading(**using(0.1)))[1] == 4


def test_v1_scales_prefill_on_its_queue():
    assert asked(V1, reading(queue=100.0, **using(0.6)))[0] == 5
    assert asked(V1, reading(queue=6.5, **using(0.6)))[0] == 4
    assert asked(WVASaturationV1(behavior=None, pools=("decode",)), reading(queue=100.0, **using(0.6)))[0] == 4
    held_back = small_fleet(small_plant(kv_capacity=KV, place="prefill"))
    assert asked(V1, reading(buffered_tokens=0.75 * 4 * KV, **using(0.6)), held_back)[0] == 5


# ---- V1: what goes wrong, by its own arithmetic ----


def test_without_consolidation_two_replicas_and_one_alternate_for_ever():
    """Two at 0.45 have 0.35 spare each, so one goes; the other is at 0.9, saturated, so one comes."""
    shared = lambda tick, ready: using(0.9 / ready[1], ready=ready[1])  # noqa: E731
    blind = WVASaturationV1(behavior=None, consolidation=False)
    assert follow(blind, 24, shared, workers=(2.0, 2.0))[::4] == [1, 2, 1, 2, 1, 2]
    assert follow(V1, 24, shared, workers=(2.0, 2.0)) == [2] * 24


def test_the_charts_hpa_never_actuates_one_replica_more_than_ten():
    """11 for 10 is within the HPA's 10 %, so 11 is never reached, and V1 waits for it for ever."""
    stuck = WVASaturationV1(behavior=sample_behavior())
    full = lambda tick, ready: using(0.9, 50.0, ready[1])  # noqa: E731
    assert follow(stuck, 60, full, workers=(4.0, 8.0))[-1] == 10
    assert follow(WVASaturationV1(behavior=sample_behavior(0.01)), 60, full, workers=(4.0, 8.0))[-1] == 23


def test_the_charts_hpa_waits_for_its_window():
    sizes = follow(WVASaturationV1(), 20, lambda tick, ready: using(0.9, 50.0, ready[1]))
    assert sizes.index(5.0) == 15  # 240 s are sixteen syncs, the last one before time 0 was still content


# ---- V2 ----


@pytest.mark.parametrize(
    ("law", "now", "size"),
    [
        # Capacity min(0.8 * 200 k, k2); k2 = N (I + O/2), N = min(8192 * 200 / 1200, 64) = 64: 70.4 k.
        (V2, {"kv_tokens": 4 * 59e3}, 4),  # 236 k / 0.85 = 277.6 k of 281.6 k
        (V2, {"kv_tokens": 4 * 61e3}, 5),  # 287 k
        (V2, {"kv_tokens": 4 * 140e3}, 10),  # 658.8 k - 281.6 k = 5.4 capacities
        (V2, {"kv_tokens": 4 * 59e3, "starting": (0.0, 1.0)}, 4),  # the starting one counts
        (V2, {"kv_tokens": 4 * 45e3}, 4),  # 180 k / 0.7 = 257 k: 24 k spare
        (V2, {"kv_tokens": 4 * 30e3}, 3),  # 171.4 k: 110 k spare
        (V2, {"kv_tokens": 0.0}, 1),
        (V2, {"kv_tokens": 4 * 59e3, "buffered": 8.0}, 5),  # the queue's prompts count
        (V2, {"isl": 0.0, "osl": 0.0, "kv_tokens": 4 * 130e3}, 4),  # no lengths: k1 = 160 k; 611.8 k of 640 k
        (WVATokenCapacityV2(behavior=None, max_num_seqs=32.0), {"kv_tokens": 4 * 40e3}, 6),  # N = 32: 35.2 k
        (WVATokenCapacityV2(behavior=None, max_num_batched_tokens=192.0), {"kv_tokens": 4 * 40e3}, 6),  # the same N
        (WVATokenCapacityV2(behavior=None, maxReplicas=8.0), {"kv_tokens": 4 * 140e3}, 8),
        (V2, {"kv_tokens": NAN, "buffered": NAN}, 4),
    ],
)
def test_v2_to_the_letter(law, now, size):
    assert asked(law, reading(**{"isl": 1000.0, "osl": 200.0, **now}))[1] == size


def test_v2_learns_the_capacity_where_a_queue_forms():
    """Five queued per replica: what is in use is what it can do. Later, the mean of what was seen."""
    memory = V2.start(FLEET, Asked(jnp.asarray(4.0), jnp.asarray(4.0)))
    assert asked(V2, reading(isl=1000.0, osl=200.0, kv_tokens=4 * 40e3, buffered=20.0))[1] == 6
    history, pool = memory[1].own, pool_of("decode", reading(), FLEET)
    full = Use(jnp.asarray(0.2), jnp.asarray(5.0), jnp.asarray(True))
    history, capacity = V2.capacity(history, full, pool, 1000.0, 200.0, FLEET)
    assert float(capacity) == 40e3
    history, capacity = V2.capacity(history, full._replace(kv=jnp.asarray(0.3)), pool, 1000.0, 200.0, FLEET)
    calm = Use(jnp.asarray(0.1), jnp.asarray(0.0), jnp.asarray(True))
    _, capacity = V2.capacity(history, calm, pool, 1000.0, 200.0, FLEET)
    assert float(capacity) == 50e3


def test_v2_in_prefill_has_one_output_token():
    """N = 8192/1001 prompts of 1000.5 tokens: 8188 a replica."""
    assert asked(V2, reading(isl=1000.0, osl=200.0, queue=19.0))[0] == 4  # 22.4 k of 32.8 k; 27.1 k below the boundary
    assert asked(V2, reading(isl=1000.0, osl=200.0, queue=12.0))[0] == 3  # 17.1 k
    assert asked(V2, reading(isl=1000.0, osl=200.0, queue=18.9, prefill=3.0))[0] == 3  # 22.2 k of 24.6 k
    # Ten waiting per replica are a queue, but nothing is in use that could be observed: 47.1 k.
    assert asked(V2, reading(isl=1000.0, osl=200.0, queue=40.0))[0] == 6


# ---- Relaxed ----


@pytest.mark.parametrize(
    "policy", [V1, WVASaturationV1(behavior=sample_behavior()), V2], ids=["V1", "V1 with its HPA", "V2"]
)
def test_the_relaxed_law_tends_to_the_hard_one(policy):
    assert moves(policy) > 5
    wide, narrow, sharp = gaps(policy, (0.3, 1e-2, 1e-7))
    assert sharp < 1e-5
    assert sharp < narrow < wide


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (V1, ("kvCacheThreshold", "queueLengthThreshold", "kvSpareTrigger", "queueSpareTrigger")),
        (
            WVATokenCapacityV2(behavior=None, maxReplicas=30.0),
            ("kvCacheThreshold", "scaleUpThreshold", "scaleDownBoundary"),
        ),
    ],
    ids=["V1", "V2"],
)
def test_closed_loop_gradients_and_the_limit_of_the_loop(policy, names):
    # Little KV memory, so that it, and not the batch, bounds the capacity of V2.
    slopes, differences, hard, sharp = judge(
        policy, names, fleet=small_fleet(small_plant(kv_capacity=40e3), budget=400.0)
    )
    assert np.all(np.abs(slopes) > 1e-6)
    assert slopes == pytest.approx(differences, rel=1e-3)
    assert sharp == pytest.approx(hard, rel=1e-6)


@pytest.mark.parametrize("policy", [WVASaturationV1(), V2], ids=["V1 with its HPA", "V2"])
def test_reverse_mode_is_finite_also_without_samples(policy):
    assert finite_reverse(policy, tuple(policy.TUNABLE))


def test_policies_batch():
    now = reading(**using(0.65))
    decide = lambda t: eqx.tree_at(lambda p: p.kvSpareTrigger, V1, t).decide(start(V1, now), now, FLEET, None)  # noqa: E731
    sizes = jax.vmap(lambda t: decide(t)[1].decode)(jnp.array([0.1, 0.14, 0.16, 0.2]))
    assert sizes.tolist() == [4.0, 4.0, 5.0, 5.0]


# ---- Facts ----


def test_the_detection_delays_are_those_of_control_laws():
    assert WVASaturationV1().detection_delay == 60 + 240 + 15
    assert WVASaturationV1(behavior=sample_behavior()).detection_delay == 75
    assert V1.detection_delay == V1.period == 60
    assert V1.hold_while_pending
    assert V1.up_step == 1
    assert not V2.hold_while_pending


def test_the_gain_of_v2_is_that_of_a_queued_prompt():
    mix = Mix(10.0, 1000.0, 1000.0, 200.0)
    # Prefill: a queued prompt asks for 1000 / (8188 * 0.85) workers of 10 prompts per second each.
    only = WVATokenCapacityV2(behavior=None, pools=("prefill",))
    assert float(only.gain(FLEET, mix)) == pytest.approx(10 * 1000 / (8192 / 1001 * 1000.5 * 0.85))


# ---- Bad input ----


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WVASaturationV1(kvCacheThreshold=80.0), r"kvCacheThreshold is 80.0; .* \(0.8 for 80 %\)"),
        (lambda: WVASaturationV1(kvSpareTrigger=10.0), r"kvSpareTrigger is 10.0; .* \(0.1 for 10 %\)"),
        (lambda: WVASaturationV1(kvSpareTrigger=0.8), "kvSpareTrigger is 0.8; it must be below kvCacheThreshold"),
        (lambda: WVASaturationV1(queueSpareTrigger=6.0), "queueSpareTrigger is 6.0; it must be below queueLengthThr"),
        (lambda: WVASaturationV1(queueLengthThreshold=0.0), "queueLengthThreshold is 0.0"),
        (lambda: WVASaturationV1(minReplicas=5.0, maxReplicas=2.0), "minReplicas is 5.0; it must be at most"),
        (lambda: WVASaturationV1(pools=("decod",)), "unknown pool 'decod'; did you mean 'decode'"),
        (lambda: WVASaturationV1(pools=()), "pools is"),
        (lambda: WVASaturationV1(GLOBAL_OPT_INTERVAL=0.0), "GLOBAL_OPT_INTERVAL is 0.0"),
        (lambda: V1.prepare(None, small_fleet()), "plant.kv_capacity is None"),
        (lambda: V2.prepare(None, small_fleet()), "plant.kv_capacity is None"),
        (lambda: WVATokenCapacityV2(scaleUpThreshold=85.0), r"scaleUpThreshold is 85.0; .* \(0.85 for 85 %\)"),
        (lambda: WVATokenCapacityV2(scaleDownBoundary=0.9), "scaleDownBoundary is 0.9; it must be below scaleUpThr"),
        (lambda: WVATokenCapacityV2(max_num_seqs=0.0), "max_num_seqs is 0.0"),
        (lambda: WVATokenCapacityV2(max_num_batched_tokens=-1.0), "max_num_batched_tokens is -1.0"),
    ],
)
def test_bad_input_is_named_with_the_remedy(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_charts_behavior_is_its_own():
    rules = chart_behavior().scaleUp
    assert (rules.stabilizationWindowSeconds, rules.tolerance) == (240.0, 0.1)
    assert [(p.value, p.type, p.periodSeconds) for p in rules.policies] == [(10.0, "Pods", 150.0)]


# ---- The queueing analyser ----

REPLICA = {"alpha": 0.008, "beta": 2e-5, "gamma": 5e-8, "isl": 1000.0, "osl": 200.0}
ANALYSER = QueueingAnalyser(**REPLICA, maxBatchSize=32, maxQueueSize=40)


def rates(n):
    """mu(n), from the text of the law."""
    a, b, g, isl, osl = REPLICA.values()
    step = a + n * (b * (isl + osl) / (osl + 1) + g * (isl + osl / 2))
    return n / (step + (b + g) * isl + osl * (step + b + g * (isl + osl / 2)))


def test_service_rates_are_those_of_the_law():
    assert np.asarray(ANALYSER.service_rates()) == pytest.approx([rates(n) for n in range(1, 33)])
    low, high = map(float, ANALYSER.rate_range())
    assert (low, high) == (pytest.approx(0.001 * rates(1)), pytest.approx(0.999 * rates(32)))


@pytest.mark.parametrize("load", [0.01, 0.5, 0.9, 0.998])
def test_the_stationary_chain_is_that_of_its_generator(load):
    """An oracle of its own kind: the null vector of the chain's generator, and Little's law."""
    rate = load * rates(32)
    states = 73
    Q = np.zeros((states, states))
    for n in range(states - 1):
        Q[n, n + 1] = rate
        Q[n + 1, n] = rates(min(n + 1, 32))
    Q -= np.diag(Q.sum(axis=1))
    p = np.linalg.lstsq(np.vstack([Q.T, np.ones(states)]), np.r_[np.zeros(states), 1.0], rcond=None)[0]
    assert np.asarray(ANALYSER.state_probabilities(rate)) == pytest.approx(p, abs=1e-9)
    found = ANALYSER.analyse(rate)
    n = np.arange(states)
    assert float(found.throughput) == pytest.approx(rate * (1 - p[-1]))
    assert float(found.response) == pytest.approx(n @ p / (rate * (1 - p[-1])))
    assert float(found.in_service) == pytest.approx(np.minimum(n, 32) @ p)
    assert float(found.wait) == pytest.approx(np.maximum(n - 32, 0) @ p / (rate * (1 - p[-1])), abs=1e-9)
    assert float(found.response) == pytest.approx(float(found.wait + found.prefill + 200.0 * found.itl))
    assert float(found.ttft) == pytest.approx(float(found.wait + found.prefill + found.itl))


def test_one_server_is_the_textbook_queue():
    """N = 1: M/M/1/K, whose probabilities are geometric."""
    one = QueueingAnalyser(**REPLICA, maxBatchSize=1, maxQueueSize=9)
    rho = 0.7
    p = rho ** np.arange(11)
    assert np.asarray(one.state_probabilities(rho * rates(1))) == pytest.approx(p / p.sum())


def test_deep_queues_do_not_underflow():
    deep = QueueingAnalyser(**REPLICA, maxBatchSize=256, maxQueueSize=4000)
    found = deep.analyse(0.999 * float(deep.rate_range()[1]))
    assert all(np.isfinite(float(x)) for x in found)


def test_the_sized_rate_meets_its_targets_and_no_more_would():
    sizing = ANALYSER.size(ttft=0.08, itl=0.012)
    assert float(ANALYSER.analyse(sizing.rate_ttft).ttft) == pytest.approx(0.08, rel=1e-9)
    assert float(ANALYSER.analyse(sizing.rate_itl).itl) == pytest.approx(0.012, rel=1e-9)
    assert float(sizing.rate) == min(float(sizing.rate_ttft), float(sizing.rate_itl))
    assert float(sizing.rate_tps) == float(ANALYSER.rate_range()[1])
    assert float(ANALYSER.size(tps=100.0).rate) == pytest.approx(0.9 * 0.999 * rates(32))
    assert float(ANALYSER.size(ttft=1e3).rate) == float(ANALYSER.rate_range()[1])  # never missed
    assert float(ANALYSER.replicas(2.5 * sizing.rate, sizing)) == 3


def test_the_sized_rate_has_gradients_in_the_replica_and_in_the_target():
    def sized(x):
        replica = QueueingAnalyser(x[0] * 0.008, x[1] * 2e-5, x[2] * 5e-8, x[3] * 1000.0, x[4] * 200.0, 32, 40)
        return replica.size(ttft=x[5] * 0.08, itl=x[6] * 0.012).rate

    sized = jax.jit(sized)
    for shift in (jnp.ones(7), jnp.ones(7).at[6].set(2.0)):  # ITL binds, then TTFT
        gradient = np.asarray(jax.jit(jax.grad(sized))(shift))
        assert gradient == pytest.approx(central(sized, np.asarray(shift), 1e-6), rel=1e-5, abs=1e-7)
        assert np.sum(np.abs(gradient) > 1e-3) >= 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ANALYSER.size(ttft=1e-4), "ttft is 0.0001; it must be at least .* what an idle replica takes"),
        (lambda: ANALYSER.size(itl=-1.0), "itl is -1.0"),
        (lambda: ANALYSER.analyse(1e6), r"rate is 1000000.0; it must be in \(0, "),
        (lambda: ANALYSER.analyse(0.0), "rate is 0.0"),
        (lambda: QueueingAnalyser(**{**REPLICA, "osl": 0.5}), "osl is 0.5; it must be at least 1"),
        (lambda: QueueingAnalyser(**{**REPLICA, "alpha": 0.0}), "alpha is 0.0"),
        (lambda: QueueingAnalyser(**REPLICA, maxBatchSize=0), "maxBatchSize is 0"),
        (lambda: QueueingAnalyser(**REPLICA, maxQueueSize=-1), "maxQueueSize is -1"),
    ],
)
def test_bad_input_to_the_analyser_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
