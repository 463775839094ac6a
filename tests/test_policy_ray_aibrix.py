"""Ray Serve and AIBrix: to the letter, relaxed, and where they go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies.aibrix import AIBrixAPA, AIBrixKPA, APATarget, KPATarget
from fluidq.policies.facts import Mix
from fluidq.policies.ray_serve import RayServe, RayServeTarget
from tests.helpers import small_fleet
from tests.product_laws import FLEET, NAN, asked, finite_reverse, follow, gaps, judge, moves, reading, start

MIX = Mix(10.0, 1000.0, 1000.0, 200.0)


def ray(**changes):
    numbers = {"target_ongoing_requests": 10.0, "look_back_period_s": 15.0, **changes}
    return RayServe(decode=RayServeTarget.auto(**numbers))


AT_ONCE = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}


@pytest.mark.parametrize(
    ("changes", "now", "size"),
    [
        ({}, {"running": 40.0}, 4),
        ({}, {"running": 40.5}, 5),
        ({}, {"running": 20.0, "buffered": 35.0}, 6),  # waiting ones count
        ({}, {"running": 31.0}, 4),  # 3.1 up to 4
        ({}, {"running": 30.0}, 3),
        ({"upscaling_factor": 0.5}, {"running": 80.0}, 6),  # 4 + 0.5 * 4
        ({"upscaling_factor": 0.5}, {"running": 50.0}, 5),  # 4.5 up to 5
        ({"downscaling_factor": 0.5}, {"running": 10.0}, 3),  # 4 - 0.5 * 3 = 2.5 up to 3
        ({"downscaling_factor": 0.2}, {"running": 29.0}, 3),  # 3.78 up to 4: stuck, so one less
        ({"downscaling_factor": 0.2}, {"running": 31.0}, 4),  # not stuck: ceil(3.1) is 4
        ({"max_replicas": 7.0}, {"running": 1e4}, 7),
        ({"min_replicas": 2.0}, {"running": 0.0}, 2),
        ({}, {"running": 60.0, "starting": (0.0, 2.0)}, 6),  # from the two that run
        ({"upscaling_factor": 0.5}, {"running": 60.0, "starting": (0.0, 2.0)}, 4),
        ({}, {"running": NAN, "buffered": NAN}, 1),  # nothing was ever reported
    ],
)
def test_ray_to_the_letter(changes, now, size):
    assert asked(ray(**{**AT_ONCE, **changes}), reading(**now))[1] == size


def test_ray_by_default_never_scales():
    assert asked(RayServe(decode=RayServeTarget(**AT_ONCE)), reading(decode=1.0, running=1e4))[1] == 1
    assert asked(RayServe(decode=RayServeTarget.auto(**AT_ONCE)), reading(decode=1.0, running=1e4))[1] == 100


def test_ray_acts_once_a_decision_has_held_for_its_delay():
    load = [80.0] * 4 + [20.0] * 5
    sizes = follow(ray(upscale_delay_s=30.0, downscale_delay_s=45.0), 9, lambda tick, ready: {"running": load[tick]})
    assert sizes == [4, 4, 8, 8, 8, 8, 8, 2, 2]


def test_ray_starts_its_delay_anew_on_a_change_of_mind():
    load = [80.0, 80.0, 40.0, 80.0, 80.0, 80.0, 80.0]
    assert follow(ray(), 7, lambda tick, ready: {"running": load[tick]}) == [4, 4, 4, 4, 4, 8, 8]
    swings = [80.0, 20.0] * 6
    both = ray(upscale_delay_s=15.0, downscale_delay_s=15.0)
    assert follow(both, 12, lambda tick, ready: {"running": swings[tick]}) == [4] * 12


def test_ray_averages_over_the_look_back_and_keeps_the_last_mean():
    load = [40.0, 80.0, NAN, NAN, NAN]
    law = ray(**AT_ONCE, look_back_period_s=30.0)
    assert follow(law, 5, lambda tick, ready: {"running": load[tick]}) == [4, 6, 8, 8, 8]


def test_ray_to_zero_and_back():
    load = [30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 25.0, 25.0]
    law = ray(min_replicas=0.0, upscale_delay_s=0.0, downscale_delay_s=0.0, downscale_to_zero_delay_s=30.0)
    sizes = follow(law, 8, lambda tick, ready: {"running": load[tick]})
    # From three to one at once (never further), from one after 30 s, and back with the first request.
    assert sizes == [3, 1, 1, 1, 0, 0, 1, 3]
    eager = ray(min_replicas=0.0, upscaling_factor=1.5, **AT_ONCE)
    assert asked(eager, reading(decode=0.0, buffered=1.0))[1] == 2
    assert asked(eager, reading(decode=0.0))[1] == 0


# ---- AIBrix ----


def apa(**changes):
    return AIBrixAPA(decode=APATarget("running", 10.0, **{"scale_down_cooldown_window": 0.0, **changes}))


def kpa(**changes):
    return AIBrixKPA(decode=KPATarget("running", 10.0, **{"scale_down_cooldown_window": 0.0, **changes}))


@pytest.mark.parametrize(
    ("changes", "per_pod", "size"),
    [
        ({}, 10.0, 4),
        ({}, 11.0, 4),  # within
        ({}, 11.5, 5),  # 4.6
        ({}, 15.0, 6),
        ({}, 50.0, 8),  # twice at most
        ({"max_scale_up_rate": 1.3}, 50.0, 6),  # ceil(5.2)
        ({}, 9.0, 4),
        ({}, 8.0, 4),  # 3.2 up to 4
        ({}, 7.0, 3),
        ({}, 0.0, 2),  # half at least
        ({"max_scale_down_rate": 3.0}, 0.0, 1),
        ({"scale_up_tolerance": 0.6}, 15.0, 4),
        ({"scale_down_tolerance": 0.4}, 7.0, 4),
        ({"maxReplicas": 5.0}, 50.0, 5),
        ({"minReplicas": 3.0}, 0.0, 3),
        ({}, NAN, 4),
    ],
)
def test_apa_to_the_letter(changes, per_pod, size):
    assert asked(apa(**changes), reading(running=4 * per_pod))[1] == size


def test_apa_counts_starting_pods_and_averages_over_ready_ones():
    """Two ready pods at 1.5 times the target, two on their way: still 4 * 1.5."""
    assert asked(apa(), reading(running=30.0, starting=(0.0, 2.0)))[1] == 6


def test_cooldown_windows_take_the_highest_and_the_lowest_recommendation():
    load = [15.0, 10.0, 5.0, 5.0, 5.0, 5.0]
    down = follow(apa(scale_down_cooldown_window=45.0), 6, lambda tick, ready: {"running": load[tick] * ready[1]})
    assert down == [6, 6, 6, 6, 3, 3]  # 3 of 6 is recommended thrice before it is taken; then 2, not before 75 s
    up = follow(apa(scale_up_cooldown_window=45.0), 4, lambda tick, ready: {"running": 60.0})
    assert up == [4, 4, 6, 6]


def test_kpa_as_coded_forgets_that_the_mean_is_per_pod():
    """Four pods at 1.5 times their target: ceil(1.5) = 2, half of what there is, in the middle of an overload."""
    now = reading(running=60.0)
    assert asked(kpa(), now)[1] == 2
    assert asked(kpa(form="as intended"), now)[1] == 6
    assert asked(apa(), now)[1] == 6
    later = follow(kpa(), 6, lambda tick, ready: {"running": 60.0})
    assert later[-1] <= 3  # and there it stays, near the square root of 60 / 10


def test_kpa_as_intended_swings_on_its_own_window():
    """Pods of now times a mean taken at the pods of then: without the cooldown the swings grow at a constant load."""
    sizes = follow(kpa(form="as intended"), 60, lambda tick, ready: {"running": 60.0})
    first, second, last = (max(part) - min(part) for part in (sizes[8:20], sizes[20:40], sizes[40:]))
    assert first < second < last


@pytest.mark.parametrize(
    ("changes", "per_pod", "size"),
    [
        ({}, 10.5, 4),
        ({}, 35.0, 4),  # ceil(3.5)
        ({}, 200.0, 8),  # twice at most
        ({}, 5.0, 2),  # half at least
        ({"form": "as intended"}, 5.0, 2),
        ({"form": "as intended"}, 8.0, 4),  # 3.2 up to 4
        ({"form": "as intended"}, 7.0, 3),
        ({"form": "as intended"}, 35.0, 8),
        ({"maxReplicas": 5.0}, 200.0, 5),
        ({}, NAN, 4),
        ({}, 0.0, 4),  # a stable mean that is not positive is panic, and panic does not decrease
    ],
)
def test_kpa_to_the_letter(changes, per_pod, size):
    assert asked(kpa(**changes), reading(running=4 * per_pod))[1] == size


def test_kpa_averages_over_the_stable_window():
    law = kpa(form="as intended", stable_window=60.0, panic_window=30.0, panic_threshold=9.0)
    load = [10.0, 10.0, 10.0, 14.0, 14.0, 14.0, 14.0]
    sizes = follow(law, 7, lambda tick, ready: {"running": 4 * load[tick] * ready[1] / 4})
    # Means over four samples: 10, 10, 10, 11, 12: up on the fifth.
    assert sizes[:5] == [4, 4, 4, 4, 5]


def test_panic_takes_the_short_window_and_never_decreases():
    law = kpa(form="as intended", stable_window=180.0, panic_window=30.0)
    load = [10.0] * 9 + [50.0, 50.0, 1.0, 1.0, 1.0]
    sizes = follow(law, 14, lambda tick, ready: {"running": load[tick] * ready[1]})
    # Tick 9: the stable mean is 14, the panic mean 30 (over twice that): ceil(4 * 3) is cut to 8.
    assert sizes[8:10] == [4, 8]
    assert min(sizes[9:12]) >= 8


def test_a_tick_without_a_sample_changes_nothing():
    load = [15.0, NAN, NAN, 15.0]
    assert follow(apa(), 4, lambda tick, ready: {"running": load[tick] * 4}) == [6, 6, 6, 6]
    assert follow(kpa(form="as intended"), 3, lambda tick, ready: {"running": NAN}) == [4, 4, 4]


def test_kpas_bounded_signal_as_coded_collapses_the_pool():
    """KV use is at most 1, so ceil(use / target) is at most ceil(1/0.8) = 2 pods, whatever the load."""
    law = AIBrixKPA(decode=KPATarget("kv_usage", 0.8, scale_down_cooldown_window=0.0))
    sizes = follow(law, 12, lambda tick, ready: {"kv_tokens": 1e9}, workers=(4.0, 40.0))
    assert sizes[-1] == 2


# ---- Relaxed ----

SERVE = RayServe(
    prefill=RayServeTarget.auto(**AT_ONCE), decode=RayServeTarget.auto(**AT_ONCE, target_ongoing_requests=40.0)
)
LOOP = RayServe(
    prefill=RayServeTarget.auto(downscale_delay_s=60.0, upscaling_factor=0.7),
    decode=RayServeTarget.auto(target_ongoing_requests=40.0, downscale_delay_s=60.0, downscaling_factor=0.6),
)
APA = AIBrixAPA(
    prefill=APATarget("queue_length", 5.0), decode=APATarget("running", 45.0, scale_down_cooldown_window=0.0)
)
KPA = AIBrixKPA(
    prefill=KPATarget("queue_length", 5.0, form="as intended", stable_window=60.0, panic_window=15.0),
    decode=KPATarget("running", 30.0, stable_window=45.0, panic_window=15.0, scale_down_cooldown_window=0.0),
)


CALM = AIBrixKPA(
    prefill=KPATarget("queue_length", 5.0, form="as intended"),
    decode=KPATarget("running", 45.0, form="as intended"),
)


@pytest.mark.parametrize("policy", [SERVE, APA, KPA], ids=["Ray", "APA", "KPA"])
def test_the_relaxed_law_tends_to_the_hard_one(policy):
    assert moves(policy) > 10
    wide, narrow, sharp = gaps(policy, (0.3, 1e-2, 1e-7))
    assert sharp < 1e-6
    assert sharp < narrow < wide


RAY_NAMES = ("prefill.target_ongoing_requests", "decode.target_ongoing_requests", "prefill.upscaling_factor")
APA_NAMES = ("prefill.targetValue", "decode.targetValue", "prefill.scale_up_tolerance", "decode.scale_down_tolerance")
KPA_NAMES = ("prefill.targetValue", "decode.targetValue", "prefill.panic_threshold", "decode.scale_up_tolerance")
LOOPS = [(LOOP, (*RAY_NAMES, "decode.downscaling_factor")), (APA, APA_NAMES), (CALM, KPA_NAMES)]


@pytest.mark.parametrize(("policy", "names"), LOOPS, ids=["Ray", "APA", "KPA"])
def test_closed_loop_gradients_and_the_limit_of_the_loop(policy, names):
    slopes, differences, hard, sharp = judge(policy, names)
    assert np.all(np.abs(slopes) > 1e-8)
    assert slopes == pytest.approx(differences, rel=1e-3)
    assert sharp == pytest.approx(hard, rel=1e-6)


@pytest.mark.parametrize(("policy", "names"), LOOPS, ids=["Ray", "APA", "KPA"])
def test_reverse_mode_is_finite_also_without_samples(policy, names):
    assert finite_reverse(policy, names)


def test_policies_batch():
    now = reading(running=60.0)

    def size(target):
        law = AIBrixAPA(decode=APATarget("running", target))
        return law.decide(start(law, now), now, FLEET, None)[1].decode

    assert jax.vmap(size)(jnp.array([10.0, 12.0, 14.0])).tolist() == [6.0, 5.0, 4.0]


# ---- Facts ----


def test_the_detection_delays_are_those_of_control_laws():
    assert RayServe(decode=RayServeTarget.auto()).detection_delay == 10 + 30 + 30
    assert apa().detection_delay == 10
    assert kpa().detection_delay == 190
    assert not apa().hold_while_pending


def test_the_gain_is_what_the_asked_workers_take_off_the_queue():
    assert float(RayServe(prefill=RayServeTarget.auto()).gain(FLEET, MIX)) == pytest.approx(10.0 / 2.0)
    assert RayServe(prefill=RayServeTarget.auto(upscaling_factor=0.5)).gain(FLEET, MIX) is None
    assert float(AIBrixAPA(prefill=APATarget("queue_length", 5.0)).gain(FLEET, MIX)) == pytest.approx(2.0)
    assert AIBrixKPA(prefill=KPATarget("queue_length", 5.0)).gain(FLEET, MIX) is None
    intended = AIBrixKPA(prefill=KPATarget("queue_length", 5.0, form="as intended"))
    assert float(intended.gain(FLEET, MIX)) == pytest.approx(2.0)


# ---- Bad input ----


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RayServeTarget(target_ongoing_requests=0.0), "target_ongoing_requests is 0.0"),
        (
            lambda: RayServeTarget(min_replicas=3.0, max_replicas=2.0),
            "min_replicas is 3.0; it must be at most",
        ),
        (lambda: RayServeTarget(max_replicas=0.0), "max_replicas is 0.0; it must be at least 1"),
        (lambda: RayServeTarget(upscaling_factor=-1.0), "upscaling_factor is -1.0"),
        (lambda: RayServeTarget(downscaling_factor=0.0), "downscaling_factor is 0.0"),
        (lambda: RayServeTarget(look_back_period_s=0.0), "look_back_period_s is 0.0"),
        (lambda: RayServeTarget(metrics_interval_s=-1.0), "metrics_interval_s is -1.0"),
        (lambda: RayServeTarget(upscale_delay_s=-1.0), "upscale_delay_s is -1.0"),
        (lambda: RayServeTarget(downscale_to_zero_delay_s=-1.0), "downscale_to_zero_delay_s is -1.0"),
        (lambda: RayServe(), "a law for at least one of the pools"),
        (lambda: APATarget("runing", 10.0), "unknown metric 'runing'; did you mean 'running'"),
        (lambda: APATarget("kv_usage", 80.0), r"targetValue is 80.0; .* \(0.8 for 80 %\)"),
        (lambda: APATarget("running", -1.0), "targetValue is -1.0"),
        (
            lambda: APATarget("running", 10.0, max_scale_up_rate=1.0),
            "max_scale_up_rate is 1.0; .* a factor > 1",
        ),
        (lambda: APATarget("running", 10.0, max_scale_down_rate=0.5), "max_scale_down_rate is 0.5"),
        (
            lambda: APATarget("running", 10.0, scale_up_tolerance=10.0),
            r"scale_up_tolerance is 10.0; .* \(0.1 for 10 %",
        ),
        (lambda: APATarget("running", 10.0, scale_down_cooldown_window=-1.0), "scale_down_cooldown_window is -1.0"),
        (lambda: APATarget("running", 10.0, resync=0.0), "resync is 0.0"),
        (lambda: APATarget("running", 10.0, minReplicas=9.0, maxReplicas=4.0), "minReplicas is 9.0"),
        (lambda: KPATarget("running", 10.0, form="intended"), "unknown form 'intended'; did you mean 'as intended'"),
        (lambda: KPATarget("running", 10.0, panic_threshold=1.0), "panic_threshold is 1.0"),
        (lambda: KPATarget("running", 10.0, panic_window=300.0), "panic_window is 300.0; .* at most stable_window"),
        (lambda: AIBrixAPA(prefill=APATarget("running", 1.0)).prepare(None, FLEET), "prefill.metric is 'running'"),
        (
            lambda: AIBrixKPA(decode=KPATarget("kv_usage", 0.8)).prepare(None, small_fleet()),
            "plant.kv_capacity is None",
        ),
    ],
)
def test_bad_input_is_named_with_the_remedy(make, words):
    with pytest.raises(ValueError, match=words):
        make()
