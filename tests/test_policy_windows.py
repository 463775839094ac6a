"""Windows, clocks and named metrics that the products' laws share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies import windows
from fluidq.policies.metrics import (
    METRICS,
    check_fraction,
    check_metric,
    check_pool,
    fleet_value,
    mean_value,
    pool_of,
    summed_value,
)
from tests.helpers import small_fleet
from tests.product_laws import FLEET, NAN, reading


@pytest.mark.parametrize(
    ("window", "step", "samples"),
    [(300.0, 15.0, 20), (0.0, 15.0, 1), (14.0, 15.0, 1), (15.0, 15.0, 1), (16.0, 15.0, 2), (60.0, 15.0, 4)],
)
def test_a_window_holds_the_samples_younger_than_itself(window, step, samples):
    ages = [k * step for k in range(100) if k * step < window]
    assert windows.slots(window, step) == samples == max(1, len(ages))


@pytest.mark.parametrize(("delay", "runs"), [(30.0, 3), (29.0, 3), (31.0, 4), (0.0, 1), (15.0, 2)])
def test_a_delay_lies_between_the_first_and_the_last_of_the_runs(delay, runs):
    assert windows.runs_needed(delay, 15.0) == runs
    assert (runs - 1) * 15.0 >= delay > (runs - 2) * 15.0 or runs == 1


def test_a_law_never_runs_more_often_than_the_ticks():
    assert windows.step_of(0.1, 15.0) == 15.0
    assert windows.step_of(30.0, 15.0) == 30.0


def test_the_newest_entry_comes_first_and_the_oldest_goes():
    entries = windows.ring(0.0, 3)
    for value in (1.0, 2.0, 3.0, 4.0):
        entries = windows.push(entries, value)
    assert entries.tolist() == [4.0, 3.0, 2.0]


def test_missing_samples_are_skipped():
    entries = jnp.array([NAN, 4.0, 1.0, NAN])
    assert float(windows.mean(entries)) == 2.5
    assert float(windows.highest(entries)) == 4.0
    assert float(windows.lowest(entries)) == 1.0
    nothing = jnp.array([NAN, jnp.inf])
    assert all(np.isnan(float(f(nothing))) for f in (windows.mean, windows.highest, windows.lowest))


@pytest.mark.parametrize("reduce", [windows.mean, windows.highest, windows.lowest])
def test_gradients_go_to_the_known_entries_only(reduce):
    gradient = jax.grad(lambda x: reduce(jnp.stack([jnp.asarray(NAN), x, jnp.asarray(2.0)])))(3.0)
    assert float(gradient) == {windows.mean: 0.5, windows.highest: 1.0, windows.lowest: 0.0}[reduce]
    gone = jax.grad(lambda x: reduce(jnp.where(jnp.array([True, True]), NAN, x)))(3.0)
    assert float(gone) == 0.0


@pytest.mark.parametrize(
    ("proposals", "up", "down", "size"),
    [
        ([9, 7, 8], 1, 3, 9),  # no window upwards: the newest
        ([9, 7, 8], 3, 3, 7),  # the lowest of the window upwards
        ([2, 4, 3], 1, 3, 4),  # the highest of the window downwards
        ([2, 4, 3], 1, 1, 2),
        ([2, 9, 3], 1, 3, 5),  # a window that has seen both holds
        ([9, 2, 9], 3, 3, 5),
    ],
)
def test_stabilisation_moves_to_the_nearest_allowed_size(proposals, up, down, size):
    assert float(windows.stabilised(5.0, jnp.array(proposals, dtype=float), up, down)) == size


def test_agreeing_runs_count_and_start_anew():
    count, seen = jnp.zeros(()), []
    for holds in (1.0, 1.0, 0.0, 1.0):
        count = windows.agreed(count, holds)
        seen.append(float(count))
    assert seen == [1.0, 2.0, 0.0, 1.0]


NOW = reading(
    prefill=4.0,
    decode=6.0,
    starting=(1.0, 2.0),
    queue=12.0,
    queue_tokens=3e4,
    buffered=8.0,
    buffered_tokens=2e4,
    running=100.0,
    kv_tokens=4e5,
    ttft=0.7,
    tpot=0.03,
    prefill_rate=9e3,
    decode_rate=3e3,
    rate=5.0,
)


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("queue_length", 12.0, 8.0),
        ("queue_tokens", 3e4, 2e4),
        ("ongoing_requests", 12.0, 108.0),
        ("running", None, 100.0),
        ("kv_usage", None, 4e5 / (4 * 200e3)),
        ("batch_usage", None, 100 / (4 * 64)),
        ("ttft", 0.7, 0.7),
        ("itl", 0.03, 0.03),
        ("prefill_tps", 9e3, 9e3),
        ("decode_tps", 3e3, 3e3),
        ("arrival_rate", 5.0, 5.0),
    ],
)
def test_each_metric_is_what_its_name_says_in_either_pool(name, prefill, decode):
    for pool, value, ready in (("prefill", prefill, 3.0), ("decode", decode, 4.0)):
        if value is None:
            with pytest.raises(ValueError, match=rf"{pool}.metric is '{name}'; it must be a metric that"):
                check_pool(name, pool, FLEET)
            continue
        check_pool(name, pool, FLEET)
        view = pool_of(pool, NOW, FLEET)
        assert (float(view.ready), float(view.starting)) == (ready, 1.0 if pool == "prefill" else 2.0)
        assert float(fleet_value(name, NOW, view, FLEET)) == pytest.approx(value)
        per_pod = value / ready if METRICS[name].summed else value
        assert float(mean_value(name, NOW, view, FLEET)) == pytest.approx(per_pod)
        assert float(summed_value(name, NOW, view, FLEET)) == pytest.approx(per_pod * ready)


def test_every_metric_is_in_that_table():
    assert len(METRICS) == 11


def test_shares_stop_at_one_and_latencies_of_nobody_are_missing():
    view = pool_of("decode", NOW, FLEET)
    assert float(fleet_value("kv_usage", NOW._replace(kv_tokens=jnp.asarray(1e9)), view, FLEET)) == 1.0
    idle = NOW._replace(prefill_rate=jnp.asarray(0.0), decode_rate=jnp.asarray(0.0))
    assert all(np.isnan(float(fleet_value(name, idle, view, FLEET))) for name in ("ttft", "itl"))
    gone = pool_of("decode", reading(decode=0.0, running=3.0), FLEET)
    assert all(np.isnan(float(mean_value(name, NOW, gone, FLEET))) for name in ("running", "kv_usage", "batch_usage"))


def test_bad_names_and_targets_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="unknown metric 'queue_lenght'; did you mean 'queue_length'"):
        check_metric("queue_lenght", 5.0, "target")
    with pytest.raises(
        ValueError, match=r"target is 80.0; it must be a fraction of kv_usage, in \(0, 1\] \(0.8 for 80"
    ):
        check_metric("kv_usage", 80.0, "target")
    with pytest.raises(ValueError, match=r"target is 0.0; it must be a number > 0 \[req\]"):
        check_metric("queue_length", 0.0, "target")
    with pytest.raises(ValueError, match=r"tolerance is 10.0.*0.1 for 10 %"):
        check_fraction("tolerance", 10.0, "of the target", open_above=True)
    with pytest.raises(ValueError, match=r"plant.kv_capacity is None"):
        check_pool("kv_usage", "decode", small_fleet())
