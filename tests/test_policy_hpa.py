"""Kubernetes' HPA and KEDA: to the letter, relaxed, and the ways in which they go wrong."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies.facts import Mix
from fluidq.policies.hpa import (
    HPA,
    HPABehavior,
    HPAMetric,
    HPAScalingPolicy,
    HPAScalingRules,
    HPATarget,
    default_down,
    default_up,
)
from fluidq.policies.keda import KEDA, KEDATarget
from fluidq.queue import shock
from tests.helpers import small_fleet
from tests.product_laws import FLEET, NAN, asked, finite_reverse, follow, gaps, judge, moves, reading, start

FREE = HPABehavior(HPAScalingRules(), HPAScalingRules())  # no windows, no limits


def decode(metric="queue_length", target=5.0, behavior=FREE, **changes):
    return HPA(decode=HPATarget(metric, target, behavior=behavior, **changes))


@pytest.mark.parametrize(
    ("law", "now", "workers"),
    [
        # AverageValue: ceil(sum / target) outside the tolerance of sum / (target * replicas).
        (decode(), reading(buffered=20.0), 4),
        (decode(), reading(buffered=22.0), 4),  # 1.10 is within
        (decode(), reading(buffered=22.5), 5),
        (decode(), reading(buffered=18.0), 4),  # 0.90 is within
        (decode(), reading(buffered=14.9), 3),
        (decode(), reading(buffered=100.0), 20),
        (decode(), reading(starting=(0.0, 2.0), buffered=30.0), 6),  # status replicas count those that start
        (decode(minReplicas=2.0), reading(buffered=0.0), 2),
        (decode(maxReplicas=7.0), reading(buffered=1e6), 7),
        # Value: ceil(ready * metric / target).
        (decode(target_type="Value"), reading(buffered=10.0), 8),
        (decode(target_type="Value"), reading(buffered=5.5), 4),
        (decode(target_type="Value"), reading(buffered=2.0), 2),
        (decode(target_type="Value"), reading(starting=(0.0, 3.0), buffered=10.0), 2),  # the one that is ready, twice
        (decode("kv_usage", 0.5, target_type="Value"), reading(kv_tokens=0.8 * 4 * 200e3), 7),
        (decode("itl", 0.02, target_type="Value"), reading(tpot=0.03, decode_rate=1.0), 6),
        # Per direction since Kubernetes 1.33.
        (decode(behavior=HPABehavior(HPAScalingRules(tolerance=0.5), HPAScalingRules())), reading(buffered=29.0), 4),
        (decode(behavior=HPABehavior(HPAScalingRules(tolerance=0.0), HPAScalingRules())), reading(buffered=20.1), 5),
        # Pods: what starts counts as 0 on the way up ...
        (decode(type="Pods"), reading(buffered=30.0), 6),
        (decode(type="Pods"), reading(starting=(0.0, 2.0), buffered=20.0), 4),  # 4 pods of 5: as it is
        (decode(type="Pods"), reading(starting=(0.0, 2.0), buffered=25.0), 5),
        # ... and what is overdue counts as the target on the way down: 1.2 pods' worth and two at 1 need 4.
        (decode(type="Pods"), reading(starting=(0.0, 2.0), buffered=6.0), 4),
        (decode(type="Pods"), reading(starting=(0.0, 1.0), buffered=6.0), 3),
        (decode(type="Pods"), reading(buffered=6.0), 2),
    ],
)
def test_the_proposal_to_the_letter(law, now, workers):
    assert asked(law, now) == (4.0, workers)


def test_a_starting_pod_is_unready_first_and_missing_later():
    """Unready pods are left out of a move down; after the initial readiness delay they count as the target."""
    decisions = follow(
        decode(type="Pods", target=5.0),
        8,
        lambda tick, ready: {"buffered": 40.0 if tick == 0 else 3.0 * ready[1]},
        cold_start=6,
    )
    # 8 on the first tick. Four ready pods at 3 of 5, four unready for one sync: ceil(4 * 0.6) = 3 of 8.
    assert decisions[:2] == [8.0, 3.0]
    late = follow(
        decode(type="Pods", initial_readiness_delay=0.0),
        2,
        lambda tick, ready: {"buffered": 40.0 if tick == 0 else 3.0 * ready[1]},
        cold_start=6,
    )
    assert late == [8.0, 7.0]  # (4 * 3 + 4 * 5) / 5 = 6.4


def test_several_metrics_give_the_largest_proposal():
    law = decode(more=(HPAMetric("ttft", 0.5, "Value"),))
    now = {"ttft": 0.8, "prefill_rate": 1.0}
    assert asked(law, reading(buffered=10.0, **now))[1] == 7  # 2 and ceil(4 * 1.6)
    assert asked(law, reading(buffered=50.0, **now))[1] == 10


def test_the_upward_window_takes_the_lowest_and_the_downward_the_highest_proposal():
    rules = HPABehavior(HPAScalingRules(60.0), HPAScalingRules(45.0))
    queue = [60.0, 50.0, 60.0, 60.0, 60.0, 60.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    sizes = follow(decode(behavior=rules), len(queue), lambda tick, ready: {"buffered": queue[tick]})
    # The window of 60 s is four syncs: first the old size, then the 10 of the second sync.
    assert sizes[:6] == [4.0, 4.0, 4.0, 10.0, 10.0, 12.0]
    # The window of 45 s is three syncs.
    assert sizes[6:] == [12.0, 12.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("up", "sizes"),
    [
        (default_up(), [8, 16, 32, 64, 100]),  # the larger of 4 pods and 100 % per 15 s
        (HPAScalingRules(policies=default_up().policies, selectPolicy="Min"), [8, 12, 16, 20, 24]),
        (HPAScalingRules(policies=default_up().policies, selectPolicy="Disabled"), [4, 4, 4, 4, 4]),
        (HPAScalingRules(policies=(HPAScalingPolicy(10.0, periodSeconds=60.0),)), [14, 14, 14, 14, 24]),
        (HPAScalingRules(policies=(HPAScalingPolicy(10.0, "Percent", 30.0),)), [5, 5, 6, 6, 7]),
        (HPAScalingRules(), [100, 100, 100, 100, 100]),
    ],
)
def test_scaling_policies_limit_the_move_up_per_period(up, sizes):
    law = decode(behavior=HPABehavior(up, default_down()))
    assert follow(law, 5, lambda tick, ready: {"buffered": 500.0}) == sizes


@pytest.mark.parametrize(
    ("down", "sizes"),
    [
        (HPAScalingRules(policies=(HPAScalingPolicy(50.0, "Percent"),)), [20, 10, 5, 2, 1]),
        (HPAScalingRules(policies=(HPAScalingPolicy(3.0, periodSeconds=30.0),)), [37, 37, 34, 34, 31]),
        (HPAScalingRules(policies=(HPAScalingPolicy(3.0), HPAScalingPolicy(50.0, "Percent"))), [20, 10, 5, 2, 1]),
        (
            HPAScalingRules(selectPolicy="Min", policies=(HPAScalingPolicy(3.0), HPAScalingPolicy(50.0, "Percent"))),
            [37, 34, 31, 28, 25],
        ),
        (HPAScalingRules(selectPolicy="Disabled"), [40] * 5),
        (default_down(), [40] * 5),  # its window of 300 s
    ],
)
def test_scaling_policies_limit_the_move_down_per_period(down, sizes):
    law = decode(behavior=HPABehavior(default_up(), down))
    assert follow(law, 5, lambda tick, ready: {"buffered": 0.0}, workers=(4.0, 40.0)) == sizes


def test_a_longer_sync_decides_less_often():
    law = decode(sync_period=45.0)
    sizes = follow(law, 7, lambda tick, ready: {"buffered": 5.0 * (5 + tick)})
    assert sizes == [5, 5, 5, 8, 8, 8, 11]


def test_missing_samples_hold_and_leave_the_windows_as_they_were():
    rules = HPABehavior(HPAScalingRules(), HPAScalingRules(30.0))
    queue = [60.0, 10.0, NAN, 10.0]
    sizes = follow(decode(behavior=rules), 4, lambda tick, ready: {"buffered": queue[tick]})
    assert sizes == [12.0, 12.0, 12.0, 2.0]  # the 12 is too old by then, and the gap proposed nothing


# ---- KEDA ----


def keda(**changes):
    return KEDA(decode=KEDATarget("queue_length", 5.0, **{"behavior": FREE, **changes}))


def test_keda_scales_as_its_hpa_does_from_one_replica_on():
    assert asked(keda(), reading(buffered=33.0))[1] == 7
    assert asked(keda(maxReplicaCount=6.0), reading(buffered=33.0))[1] == 6
    assert asked(keda(minReplicaCount=3), reading(buffered=1.0))[1] == 3
    assert asked(keda(metricType="Value"), reading(buffered=10.0))[1] == 8


def test_keda_goes_to_zero_after_the_cooldown_and_to_one_on_the_next_poll():
    queue = [10.0] + [0.0] * 9 + [30.0] * 6
    sizes = follow(keda(cooldownPeriod=90.0), 16, lambda tick, ready: {"buffered": queue[tick]})
    # Polls every other tick: inactive on ticks 2, 4, 6, so three polls and 90 s after the active one it goes to 0.
    assert sizes[:6] == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert sizes[6:10] == [0.0] * 4
    assert sizes[10:12] == [1.0, 6.0]


def test_keda_keeps_one_replica_where_the_minimum_says_so():
    sizes = follow(keda(cooldownPeriod=0.0, minReplicaCount=1), 8, lambda tick, ready: {"buffered": 0.0})
    assert min(sizes) == 1.0


def test_the_activation_threshold_counts_for_zero_only():
    queue = [0.0] * 4 + [3.0] * 2 + [8.0] * 2
    sizes = follow(keda(cooldownPeriod=30.0, activationThreshold=4.0), 8, lambda tick, ready: {"buffered": queue[tick]})
    assert sizes == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(("ignore", "size"), [(True, 1.0), (False, 4.0)])
def test_a_null_value_is_zero_or_holds(ignore, size):
    assert asked(keda(ignoreNullValues=ignore), reading(buffered=NAN))[1] == size


def test_a_cached_value_is_that_of_the_last_poll():
    queue = [20.0, 40.0, 40.0, 60.0, 60.0]
    ask = lambda tick, ready: {"buffered": queue[tick]}  # noqa: E731
    assert follow(keda(useCachedMetrics=True), 5, ask) == [4, 4, 8, 8, 12]
    assert follow(keda(), 5, ask) == [4, 8, 8, 12, 12]


# ---- What goes wrong, by the law's own arithmetic ----


def test_value_on_a_backlog_grows_geometrically():
    """1, 6, 65, 1053, 22745: the backlog grows by 5.4 targets per sync and each sync multiplies by its ratio."""
    law = decode(target_type="Value")
    sizes = follow(law, 4, lambda tick, ready: {"buffered": 5.4 * 5.0 * (tick + 1)}, workers=(4.0, 1.0))
    assert sizes == [6, 65, 1053, 22745]
    calm = follow(decode(), 4, lambda tick, ready: {"buffered": 5.4 * 5.0 * (tick + 1)}, workers=(4.0, 1.0))
    assert calm == [6, 11, 17, 22]  # AverageValue is only linear in it


def test_a_bounded_signal_never_reaches_a_target_near_its_bound():
    """KV use stops at 1: 0.95 with 10 % tolerance asks for more than 1.045."""
    full = reading(kv_tokens=1e9, buffered=1e6)
    assert asked(decode("kv_usage", 0.95, target_type="Value"), full)[1] == 4
    assert asked(decode("kv_usage", 0.90, target_type="Value"), full)[1] == 5


def test_one_missing_latency_blocks_every_move_down_of_an_idle_fleet():
    """Nobody is served, so TTFT is 0/0: the HPA that also has that metric keeps its twelve idle replicas for ever."""
    alone = decode()
    with_ttft = decode(more=(HPAMetric("ttft", 0.5, "Value"),))
    idle = lambda tick, ready: {"buffered": 0.0}  # noqa: E731
    assert follow(alone, 30, idle, workers=(4.0, 12.0))[-1] == 1
    assert follow(with_ttft, 30, idle, workers=(4.0, 12.0))[-1] == 12
    busy = reading(decode=12.0, buffered=100.0)
    assert asked(with_ttft, busy)[1] == 20  # upwards it moves


def test_a_size_from_the_arrivals_never_drains_a_backlog():
    """n = ceil(lambda / mu) with lambda / mu whole: the same size with no queue and with a hundred thousand waiting."""
    law = decode("arrival_rate", 2.5)
    assert asked(law, reading(rate=10.0))[1] == asked(law, reading(rate=10.0, buffered=1e5, queue=1e5))[1] == 4


def test_a_cold_start_longer_than_the_time_to_fill_loses_flow_whatever_is_asked():
    """The law asks as soon as it can; what it asked for comes after the buffer is full, or before."""
    C, Q0, surplus = 90.0, 10.0, 0.5  # requests, requests, requests per second: 160 s to fill
    law = decode()
    sizes = follow(law, 12, lambda tick, ready: {"buffered": Q0 + surplus * 15.0 * tick})
    asks = 15.0 * next(tick for tick, n in enumerate(sizes) if n > 4)
    for cold_start, loses in ((60.0, False), (180.0, True)):
        tau = asks + cold_start
        lost = float(shock(C=C, Q0=Q0, delta=surplus, tau=tau, P=1.0).final.overflow)
        assert (lost > 0) == loses == (tau > (C - Q0) / surplus)


def test_value_with_pods_that_start_undoes_itself():
    """ceil(ready * ratio) of few ready pods is below what is already asked for: overload proposes a smaller fleet."""
    assert asked(decode(target_type="Value"), reading(decode=10.0, starting=(0.0, 6.0), buffered=7.5))[1] == 6


# ---- Relaxed ----

BOTH = HPA(prefill=HPATarget("queue_length", 5.0), decode=HPATarget("decode_tps", 800.0, type="Pods"))
SCALED = KEDA(prefill=KEDATarget("queue_length", 5.0), decode=KEDATarget("ongoing_requests", 45.0))
VALUED = HPA(prefill=HPATarget("ttft", 0.5, "Value"), decode=HPATarget("kv_usage", 0.5, "Value", behavior=FREE))


@pytest.mark.parametrize("policy", [BOTH, SCALED, VALUED], ids=["AverageValue", "KEDA", "Value"])
def test_the_relaxed_law_tends_to_the_hard_one(policy):
    assert moves(policy) > 10
    wide, narrow, sharp = gaps(policy, (0.3, 1e-2, 1e-7))
    assert sharp < 1e-6
    assert sharp < narrow < wide


NAMES = ("prefill.target", "decode.target", "prefill.behavior.scaleUp.tolerance", "decode.behavior.scaleDown.tolerance")


@pytest.mark.parametrize(
    ("policy", "names"),
    [(BOTH, NAMES), (SCALED, tuple(name.replace("target", "threshold") for name in NAMES))],
    ids=["HPA", "KEDA"],
)
def test_closed_loop_gradients_and_the_limit_of_the_loop(policy, names):
    slopes, differences, hard, sharp = judge(policy, names)
    assert np.all(np.abs(slopes) > 1e-6)
    assert slopes == pytest.approx(differences, rel=1e-4)
    assert sharp == pytest.approx(hard, rel=1e-6)


@pytest.mark.parametrize(
    ("policy", "names"),
    [(BOTH, NAMES), (SCALED, ("prefill.threshold", "decode.behavior.scaleUp.tolerance")), (VALUED, NAMES)],
    ids=["AverageValue", "KEDA", "Value"],
)
def test_reverse_mode_is_finite_also_without_samples(policy, names):
    assert finite_reverse(policy, names)


def test_policies_batch():
    targets = jnp.array([5.0, 10.0, 2.5])
    now = reading(buffered=30.0)
    sizes = jax.vmap(lambda t: decode(target=t).decide(start(decode(), now), now, FLEET, None)[1].decode)(targets)
    assert sizes.tolist() == [6.0, 3.0, 12.0]


# ---- Facts ----

MIX = Mix(10.0, 1000.0, 1000.0, 200.0)


def test_the_detection_delays_are_those_of_the_clocks():
    assert decode().detection_delay == 15.0
    assert decode(behavior=HPABehavior(HPAScalingRules(240.0), HPAScalingRules())).detection_delay == 255.0
    assert keda().detection_delay == 30.0  # from zero: a poll
    assert keda(minReplicaCount=1).detection_delay == 15.0
    assert keda(useCachedMetrics=True).detection_delay == 45.0
    assert not decode().hold_while_pending


def test_the_gain_is_what_the_asked_workers_take_off_the_queue():
    prefill = HPA(prefill=HPATarget("queue_length", 5.0))
    # Ten requests too many ask for two workers; each prefills 10 000 / 1000 per second: 20 of 10 in a second.
    assert float(prefill.gain(FLEET, MIX)) == pytest.approx(2.0)
    assert float(HPA(prefill=HPATarget("queue_tokens", 5000.0)).gain(FLEET, MIX)) == pytest.approx(2.0)
    assert float(HPA(prefill=HPATarget("arrival_rate", 5.0)).gain(FLEET, MIX)) == 0.0
    assert decode(target_type="Value").gain(FLEET, MIX) is None
    t_step = 0.02 + 1e-4 * 64 + 8e-9 * 64 * (1000 + 199 / 2)
    served = 64 / (200 * t_step)
    assert float(keda().gain(FLEET, MIX)) == pytest.approx(served / 5.0, rel=1e-2)
    both = KEDA(prefill=KEDATarget("queue_length", 2.0), decode=keda().decode)
    assert float(both.gain(FLEET, MIX)) == pytest.approx(5.0)  # the larger one


# ---- Bad input ----


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HPATarget("queue_lenght", 5.0), "unknown metric 'queue_lenght'; did you mean 'queue_length'"),
        (lambda: HPATarget("queue_length", -5.0), r"target is -5.0; it must be a number > 0 \[req\]"),
        (lambda: HPATarget("kv_usage", 80.0), r"target is 80.0; .* \(0.8 for 80 %\)"),
        (lambda: HPATarget("queue_length", 5.0, "averagevalue"), "did you mean 'AverageValue'"),
        (lambda: HPATarget("queue_length", 5.0, type="Pod"), "unknown metric source 'Pod'; did you mean 'Pods'"),
        (lambda: HPATarget("queue_length", 5.0, "Value", "Pods"), "target_type is 'Value'; it must be AverageValue"),
        (lambda: HPATarget("queue_length", 5.0, minReplicas=9.0, maxReplicas=3.0), "minReplicas is 9.0; .* at most"),
        (lambda: HPATarget("queue_length", 5.0, minReplicas=-1.0), "minReplicas is -1.0"),
        (lambda: HPATarget("queue_length", 5.0, sync_period=0.0), "sync_period is 0.0"),
        (lambda: HPATarget("queue_length", 5.0, initial_readiness_delay=-1.0), "initial_readiness_delay is -1.0"),
        (lambda: HPAScalingRules(tolerance=10.0), r"behavior.tolerance is 10.0; .* \(0.1 for 10 %\)"),
        (lambda: HPAScalingRules(4000.0), "stabilizationWindowSeconds is 4000.0"),
        (lambda: HPAScalingRules(selectPolicy="max"), "did you mean 'Max'"),
        (lambda: HPAScalingPolicy(4.0, "Pod"), "did you mean 'Pods'"),
        (lambda: HPAScalingPolicy(0.0), "behavior.policies.value is 0.0"),
        (lambda: HPAScalingPolicy(4.0, "Pods", 0.0), "periodSeconds is 0.0"),
        (lambda: HPA(), "a law for at least one of the pools"),
        (lambda: KEDATarget("queue_length", math.nan), "threshold is nan"),
        (lambda: KEDATarget("queue_length", 5.0, "Averages"), "unknown metricType 'Averages'"),
        (lambda: KEDATarget("queue_length", 5.0, minReplicaCount=5, maxReplicaCount=2.0), "minReplicaCount is 5"),
        (lambda: KEDATarget("queue_length", 5.0, activationThreshold=-1.0), "activationThreshold is -1.0"),
        (lambda: KEDATarget("queue_length", 5.0, pollingInterval=0.0), "pollingInterval is 0.0"),
        (lambda: KEDATarget("queue_length", 5.0, cooldownPeriod=-1.0), "cooldownPeriod is -1.0"),
        (lambda: HPA(prefill=HPATarget("kv_usage", 0.8)).prepare(None, FLEET), "prefill.metric is 'kv_usage'"),
        (lambda: decode("kv_usage", 0.8).prepare(None, small_fleet()), "plant.kv_capacity is None"),
        (lambda: KEDA(decode=KEDATarget("kv_usage", 0.8)).prepare(None, small_fleet()), "plant.kv_capacity is None"),
    ],
)
def test_bad_input_is_named_with_the_remedy(make, words):
    with pytest.raises(ValueError, match=words):
        make()
