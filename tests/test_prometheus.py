"""Prometheus: recorded JSON, a fake server in the process, and a real server where its program is installed."""

import http.server
import itertools
import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluidq._errors import InputError
from fluidq.io import _prom_map
from fluidq.io._prom_http import Client, selector
from fluidq.io._prom_series import Series, Tally, increase
from fluidq.io.benchmarks import detect, summary
from fluidq.io.prometheus import FORMAT, read_prometheus

T0 = 1_726_480_000.298  # Unix seconds: in float32 the neighbours are 128 s away
PREFILL, DECODE = {"pod": "llm-prefill-0"}, {"pod": "llm-decode-0"}


def text(value: float) -> str:
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(float(value)))


def one(name: str, labels: dict, values, step: float = 15.0, start: float = T0) -> dict:
    """A series as the server sends it: float times, values as text; None is a missing sample."""
    samples = [[start + i * step, text(v)] for i, v in enumerate(values) if v is not None]
    return {"metric": {"__name__": name, **labels}, "values": samples}


def response(*series: dict) -> dict:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, "warnings": []}


def saved(folder: Path, content, name: str = "export.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def counter(rate: float, n: int = 41, step: float = 15.0, start: float = 1000.0) -> list[float]:
    return [start + rate * step * i for i in range(n)]


def vllm_fleet(n: int = 41, served: float = 2.0, **more) -> list[dict]:
    """One prefill and one decode worker at constant flow: 1000 tokens in (half of them cached), 100 out, 20 ms a step.

    Both count prompts, as vLLM does in P/D mode.
    """
    flow = {
        "vllm:request_success_total": (served, served),
        "vllm:request_prompt_tokens_sum": (1000 * served, 1000 * served),
        "vllm:request_prompt_tokens_count": (served, served),
        "vllm:request_generation_tokens_sum": (1 * served, 100 * served),
        "vllm:request_generation_tokens_count": (served, served),
        "vllm:inter_token_latency_seconds_sum": (0.0, 0.02 * 99 * served),
        "vllm:inter_token_latency_seconds_count": (0.0, 99 * served),
        "vllm:prefix_cache_hits_total": (500 * served, 0.0),
        "vllm:prefix_cache_queries_total": (1000 * served, 0.0),
        "vllm:request_prefill_time_seconds_sum": (0.05 * served, 0.0),
        "vllm:request_prefill_time_seconds_count": (served, 0.0),
        "vllm:nixl_bytes_transferred_sum": (0.0, 95e6 * served),
        "vllm:nixl_bytes_transferred_count": (0.0, served),
        "vllm:nixl_xfer_time_seconds_sum": (0.0, 0.003 * served),
        "vllm:nixl_xfer_time_seconds_count": (0.0, served),
    }
    out = []
    for name, rates in flow.items():
        out += [one(name, labels, counter(rate, n)) for labels, rate in zip((PREFILL, DECODE), rates, strict=True)]
    for name, values in {"vllm:num_requests_running": (1.0, 40.0), "vllm:num_requests_waiting": (6.0, 2.0),
                         "vllm:kv_cache_usage_perc": (0.1, 0.75)}.items():  # fmt: skip
        out += [one(name, labels, [v] * n) for labels, v in zip((PREFILL, DECODE), values, strict=True)]
    info = {"num_gpu_blocks": "27000", "block_size": "16", "gpu_memory_utilization": "0.9"}
    return [*out, one("vllm:cache_config_info", {**DECODE, **info}, [1.0] * n)]


# Recorded responses


def test_a_fleet_of_two_pools(tmp_path):
    seen = read_prometheus(saved(tmp_path, response(*vllm_fleet())), prefill_worker=4, decode_worker=8)
    m, w = seen.measurements, seen.workload
    assert w is not None
    want = {"served_rate": 2, "isl": 1000, "osl": 100, "itl": 0.02, "hit": 0.5, "isl_computed": 500, "running": 40,
            "waiting": 6, "buffered": 2, "kv_use": 0.75, "batch": 5, "prefill_rate": 250, "prefill_time": 0.05,
            "capacity_tokens": 432_000, "transfer_size": 95e6, "transfer_rate": 190e6, "transfer_tokens": 2000,
            "prefill_workers": 1, "decode_gpus": 8, "worker_gpus": 4}  # fmt: skip
    for name, value in want.items():
        np.testing.assert_allclose(m.get(name), value, rtol=1e-9, err_msg=name)
    # Both pools count the prompt; one of them is taken.
    assert (w.mean_isl, w.mean_isl_computed, w.mean_osl) == (
        pytest.approx(1000),
        pytest.approx(500),
        pytest.approx(100),
    )
    assert w.requests == pytest.approx(2 * w.duration)
    assert seen.load == "served"
    assert any("in overload it is too low" in note for note in seen.notes)
    assert m.facts["topology"] == "disaggregated"


def test_times_are_seconds_since_the_start_in_float64(tmp_path):
    seen = read_prometheus(saved(tmp_path, response(*vllm_fleet())))
    assert seen.origin == T0
    np.testing.assert_allclose(seen.measurements.get("time"), 60.0 * np.arange(10), atol=1e-6)
    assert np.ptp(np.float32(T0) - np.float32(T0 + np.arange(0, 60, 15))) == 0  # what float32 would leave of them


def test_state_is_a_start_for_the_plant(tmp_path):
    state = read_prometheus(saved(tmp_path, response(*vllm_fleet()))).state
    plant = state.plant_state()
    assert (plant.backlog.requests, plant.buffer.requests, plant.active.requests) == (6, 2, 40)
    assert plant.computed == pytest.approx(6 * 500)
    assert plant.active.output == pytest.approx(40 * 100)
    assert state.time == pytest.approx(T0 + 600)


def test_without_lengths_there_is_no_workload_and_no_plant(tmp_path):
    few = [s for s in vllm_fleet() if "tokens" not in s["metric"]["__name__"]]
    seen = read_prometheus(saved(tmp_path, response(*few)))
    assert seen.workload is None
    assert any("no workload: no series gives input length" in note for note in seen.notes)
    with pytest.raises(InputError, match="mean lengths"):
        seen.state.plant_state()


def test_a_reset_is_a_restart_not_a_negative_rate(tmp_path):
    """2 requests/s all along; the worker restarts after 300 s and counts from 0."""
    values = [1000 + 30.0 * i if i <= 20 else 30.0 * (i - 20) for i in range(41)]
    fleet = [s for s in vllm_fleet() if s["metric"]["__name__"] != "vllm:request_success_total"]
    fleet.append(one("vllm:request_success_total", DECODE, values))
    seen = read_prometheus(saved(tmp_path, response(*fleet)))
    np.testing.assert_allclose(seen.measurements.get("served_rate"), 2.0, rtol=1e-12)
    assert any("reset 1 times" in note for note in seen.notes)


def test_increase_by_hand():
    """Grows 10 to 40, falls to 5 (reset: 5 since), grows to 25: 55 in all, and 30 of it before t = 20."""
    series = Series("x_total", {}, np.array([0.0, 10.0, 20.0, 30.0, 40.0]), np.array([10.0, 20.0, 40.0, 5.0, 25.0]))
    tally = Tally()
    np.testing.assert_allclose(increase(series, np.array([0.0, 20.0, 40.0]), tally), [30.0, 25.0])
    # Between samples it grew evenly; outside of them it was not there.
    np.testing.assert_allclose(increase(series, np.array([-20.0, 5.0, 15.0, 60.0]), tally), [5.0, 15.0, 35.0])
    assert tally.resets == 2


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.floats(1.0, 40.0), min_size=3, max_size=40),
    growth=st.lists(st.floats(0.0, 1e6), min_size=40, max_size=40),
    resets=st.sets(st.integers(1, 39)),
)
def test_no_count_is_lost_or_made(steps, growth, resets):
    """Windows over the whole life hold all that was counted, wherever the resets were and the windows are cut."""
    times = np.concatenate([[0.0], np.cumsum(steps)])
    values, total = [100.0], 0.0
    for i in range(1, times.size):
        more = growth[i] if i not in resets else min(growth[i], values[-1] / 2)
        values.append(more if i in resets else values[-1] + more)
        total += more
    series = Series("x", {}, times, np.array(values))
    edges = np.linspace(-5, times[-1] + 5, 17)
    assert increase(series, edges, Tally()).sum() == pytest.approx(total, rel=1e-9, abs=1e-6)


def test_not_finite_samples_and_gaps(tmp_path):
    values: list[float | None] = [float(v) for v in counter(2.0)]
    values[3], values[4] = math.nan, math.inf
    values[12:31] = [None] * 19  # 285 s without a scrape
    fleet = [s for s in vllm_fleet() if s["metric"]["__name__"] != "vllm:request_success_total"]
    fleet.append(one("vllm:request_success_total", DECODE, values))
    seen = read_prometheus(saved(tmp_path, response(*fleet)))
    assert seen.workload is not None
    np.testing.assert_allclose(seen.workload.rate, 2.0, rtol=1e-9)  # the total over the gap is known
    rate = seen.measurements.get("served_rate")
    np.testing.assert_allclose(rate[[0, 1, 8, 9]], 2.0)
    assert np.isnan(rate[3:7]).all()  # but it measures no window
    assert any("2 samples were NaN or infinite" in note for note in seen.notes)
    assert any("lie in a gap" in note for note in seen.notes)


def test_a_gap_of_one_gauge_is_no_zero(tmp_path):
    """Two decode workers of 40: where one was not scraped the sum is unknown, where it was not there it is 40."""
    fleet = [s for s in vllm_fleet() if s["metric"]["__name__"] != "vllm:num_requests_running"]
    late = [None] * 20 + [40.0] * 21
    holed = [40.0] * 8 + [None] * 8 + [40.0] * 25
    fleet += [one("vllm:num_requests_running", {"pod": f"decode-{i}"}, v) for i, v in enumerate((late, holed))]
    running = read_prometheus(saved(tmp_path, response(*fleet))).measurements.get("running")
    np.testing.assert_allclose(running, [40, 40, math.nan, math.nan, 40, 80, 80, 80, 80, 80])


def test_unequal_series_start_together(tmp_path):
    """Scrapes are up to one step apart; the first window must not be short of the counts of the later one."""
    fleet = [s for s in vllm_fleet() if s["metric"]["__name__"] != "vllm:request_success_total"]
    for i in range(3):
        fleet.append(one("vllm:request_success_total", {"pod": f"decode-{i}"}, counter(1.0), start=T0 + 5.0 * i))
    rate = read_prometheus(saved(tmp_path, response(*fleet))).measurements.get("served_rate")
    np.testing.assert_allclose(rate, 3.0, rtol=1e-12)


def test_means_are_ratios_of_sums_and_idle_windows_have_none(tmp_path):
    """One busy and one idle worker: 30 requests of 100 tokens and 1 of 10,000 make (3,000 + 10,000)/31."""
    fleet = [s for s in vllm_fleet() if "prompt_tokens" not in s["metric"]["__name__"]]
    count = {"a": (30.0, 100.0), "b": (1.0, 10_000.0)}
    for pod, (n, tokens) in count.items():
        flow = [0.0] * 5 + [n] * 36  # all in the second window; idle before and after
        for end, factor in (("count", 1.0), ("sum", tokens)):
            name = f"vllm:request_prompt_tokens_{end}"
            fleet.append(one(name, {"pod": f"prefill-{pod}"}, [factor * v for v in flow]))
    isl = read_prometheus(saved(tmp_path, response(*fleet))).measurements.get("isl")
    np.testing.assert_allclose(isl, [math.nan, 13_000 / 31, *[math.nan] * 8])


def test_native_histograms(tmp_path):
    fleet = [s for s in vllm_fleet() if "prompt_tokens" not in s["metric"]["__name__"]]
    samples = [[T0 + 15 * i, {"count": str(2 * i), "sum": str(1500 * i), "buckets": []}] for i in range(41)]
    fleet.append({"metric": {"__name__": "vllm:request_prompt_tokens", **PREFILL}, "histograms": samples})
    isl = read_prometheus(saved(tmp_path, response(*fleet))).measurements.get("isl")
    np.testing.assert_allclose(isl, 750.0)


def test_offered_and_served_in_overload(tmp_path):
    """Dynamo starts 5 requests/s and finishes 3: the workload is what was offered."""
    flow = {"requests_started_total": 5.0, "requests_total": 3.0, "input_sequence_tokens_sum": 2400.0,
            "input_sequence_tokens_count": 3.0, "output_sequence_tokens_sum": 300.0,
            "output_sequence_tokens_count": 3.0}  # fmt: skip
    series = [one(f"dynamo_frontend_{name}", {"model": "glm-5.2"}, counter(rate)) for name, rate in flow.items()]
    series.append(one("dynamo_component_kvstats_gpu_cache_usage_percent", DECODE, [0.8] * 41))
    series += [one(f"dynamo_frontend_model_{name}", {}, [v] * 41) for name, v in
               (("total_kv_blocks", 2000.0), ("kv_cache_block_size", 64.0))]  # fmt: skip
    seen = read_prometheus(saved(tmp_path, response(*series)))
    assert seen.load == "offered"
    assert seen.workload is not None
    np.testing.assert_allclose(seen.workload.rate, 5.0)
    np.testing.assert_allclose(seen.measurements.get("served_rate"), 3.0)
    np.testing.assert_allclose(seen.measurements.get("kv_use"), 0.8)  # named percent, holds a fraction
    np.testing.assert_allclose(seen.measurements.get("capacity_tokens"), 128_000)


def test_sglang_counts_one_copy_per_rank(tmp_path):
    """Eight tensor-parallel ranks show the same 32 requests; two data-parallel ones each their own."""
    series = [one("sglang:num_running_reqs", {**DECODE, "dp_rank": str(d), "tp_rank": str(t)}, [32.0] * 41)
              for d in range(2) for t in range(8)]  # fmt: skip
    series += [one("sglang:num_requests_total", DECODE, counter(2.0)), one("sglang:num_queue_reqs", PREFILL, [1] * 41)]
    series += [one("sglang:kv_transfer_total_mb_sum", PREFILL, counter(90.0)),
               one("sglang:kv_transfer_total_mb_count", PREFILL, counter(1.0))]  # fmt: skip
    m = read_prometheus(saved(tmp_path, response(*series))).measurements
    np.testing.assert_allclose(m.get("running"), 64.0)
    np.testing.assert_allclose(m.get("transfer_size"), 90 * 2**20)


def test_pools_that_nothing_tells_apart(tmp_path):
    fleet = vllm_fleet()
    for series in fleet:
        series["metric"]["pod"] = {"llm-prefill-0": "a-1", "llm-decode-0": "b-1"}[series["metric"]["pod"]]
    path = saved(tmp_path, response(*fleet))
    seen = read_prometheus(path)
    assert any("no label tells the pools apart" in note for note in seen.notes)
    np.testing.assert_allclose(seen.measurements.get("served_rate"), 4.0)  # said to be counted twice
    told = read_prometheus(path, pools={"prefill": ["a-*"], "decode": ["b-*"]})
    np.testing.assert_allclose(told.measurements.get("served_rate"), 2.0)


def test_cold_starts_of_pods(tmp_path):
    fleet = vllm_fleet()
    for i, seconds in enumerate((95.0, 101.0, 88.0)):
        pod = {"namespace": "llm", "pod": f"decode-{i}"}
        fleet.append(one("kube_pod_created", pod, [T0 - 4000.0] * 41))
        fleet.append(one("kube_pod_status_ready_time", pod, [T0 - 4000.0 + seconds] * 41))
    starts = read_prometheus(saved(tmp_path, response(*fleet))).measurements.detail
    assert starts is not None
    np.testing.assert_allclose(starts.get("cold_start"), [95.0, 101.0, 88.0], atol=1e-6)


@pytest.mark.parametrize("form", ["list", "lines", "object", "data only", "indented", "two files"])
def test_ways_to_save(tmp_path, form):
    series = vllm_fleet()
    half = len(series) // 2
    parts = [response(*series[:half]), response(*series[half:])]
    path = tmp_path / "export"
    files: list[Path] = [path]
    if form == "list":
        path.write_text(json.dumps(parts))
    elif form == "lines":
        path.write_text("\n".join(map(json.dumps, parts)))
    elif form == "object":
        path.write_text(json.dumps({"first": parts[0], "second": parts[1]}))
    elif form == "data only":
        path.write_text(json.dumps(response(*series)["data"]))
    elif form == "indented":
        path.write_text(json.dumps(response(*series), indent=1))
    else:
        files = [saved(tmp_path, part, f"part{i}.json") for i, part in enumerate(parts)]
    seen = read_prometheus(files if len(files) > 1 else files[0])
    np.testing.assert_allclose(seen.measurements.get("isl"), 1000.0)
    assert detect(files[0]) == FORMAT


def test_queries_that_compute_are_named_by_their_key(tmp_path):
    rate = one("x", {}, [2.5] * 41)
    rate["metric"] = {}
    content = {"offered_rate": response(rate), **{f"q{i}": response(s) for i, s in enumerate(vllm_fleet())}}
    seen = read_prometheus(saved(tmp_path, content))
    assert seen.load == "offered"
    np.testing.assert_allclose(seen.measurements.get("offered_rate"), 2.5)


def test_overlapping_parts_count_once(tmp_path):
    whole = vllm_fleet()
    early = [{**s, "values": s["values"][:25]} for s in whole]
    late = [{**s, "values": s["values"][20:]} for s in whole]
    seen = read_prometheus(saved(tmp_path, [response(*early), response(*late)]))
    np.testing.assert_allclose(seen.measurements.get("served_rate"), 2.0)
    assert seen.measurements.rows == 10


def test_inspect_summary(tmp_path):
    found = summary(saved(tmp_path, response(*vllm_fleet())))
    assert found["format"] == FORMAT
    assert found["requests"] == pytest.approx(1200)
    assert found["mean_isl_computed"] == pytest.approx(500)
    assert found["peak_to_mean"] == pytest.approx(1.0)
    json.dumps(found)


# The metric map


def map_entries() -> list:
    table = _prom_map.load()
    return [pytest.param(product.name, quantity, id=f"{product.name}-{quantity}")
            for product in table.products.values() for quantity in product.entries]  # fmt: skip


@pytest.mark.parametrize(("product", "quantity"), map_entries())
def test_every_entry_of_the_map_gives_its_quantity(tmp_path, product, quantity):
    """Series of exactly the names of one entry, on both pools, give that quantity, from either end of its names."""
    entry = _prom_map.load().products[product].entries[quantity]
    lists = (entry.per, entry.plus, entry.minus, entry.times)
    for pick in (0, -1):
        names = [entry.names[pick], *(group[min(pick, len(group) - 1)] for group in lists if group)]
        series = []
        for labels in (PREFILL, DECODE):
            labels = {**labels, **entry.where, "num_gpu_blocks": "100", "block_size": "16"}
            for i, name in enumerate(names):
                if entry.kind == "histogram":
                    series += [one(f"{name}_{end}", labels, counter(r)) for end, r in (("sum", 0.3), ("count", 1.0))]
                elif entry.kind == "counter":
                    series.append(one(name, labels, counter([0.5, 0.6][min(i, 1)] if entry.minus == () else 3.0 - i)))
                elif entry.kind == "each":
                    series.append(one(name, labels, [T0 - 100.0 * i if entry.minus else 90.0] * 41))
                else:
                    series.append(one(name, labels, [0.4] * 41))
        m = read_prometheus(saved(tmp_path, response(*series)), product=product).measurements if entry.kind != "each" \
            else read_prometheus(saved(tmp_path, response(*series, *vllm_fleet()))).measurements.detail  # fmt: skip
        assert m is not None
        values = m.get(quantity)
        assert np.isfinite(values).all()
        assert (values > 0).all()


def test_a_map_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[ours]\nserved_rate = { counter = ["our_requests_total"] }\n'
        'ttft = { gauge = ["our_ttft_ms"], scale = 1e-3, combine = "max" }\n'
    )
    series = [one("our_requests_total", {}, counter(3.0)), one("our_ttft_ms", {"i": "a"}, [700.0] * 41),
              one("our_ttft_ms", {"i": "b"}, [900.0] * 41)]  # fmt: skip
    export = saved(tmp_path, response(*series))
    m = read_prometheus(export, metrics=path).measurements
    np.testing.assert_allclose(m.get("ttft"), 0.9)
    with pytest.raises(InputError, match=r"no known series among .*our_requests_total.*metrics\.toml"):
        read_prometheus(export)


@pytest.mark.parametrize(
    ("toml", "match"),
    [
        ("[a]\nttfd = { gauge = ['x'] }", "unknown quantity in .a. 'ttfd'; did you mean 'ttft'"),
        ("[a]\nttft = { guage = ['x'] }", "unknown key in a.ttft 'guage'; did you mean 'gauge'"),
        ("[a]\nttft = { gauge = ['x'], counter = ['y'] }", "exactly one of"),
        ("[a]\nttft = { scale = 2.0 }", "exactly one of"),
        ("[a]\nttft = { gauge = [] }", "at least one metric name"),
        ("[a]\nttft = { gauge = ['x{a=\"b\"}'] }", "a metric name"),
        ("[a]\nttft = { gauge = 'x' }", "a list of names"),
        ("[a]\nttft = { gauge = ['x'], scale = -1.0 }", "a.ttft.scale is -1.0"),
        ("[a]\nttft = { gauge = ['x'], combine = 'median' }", "combine"),
        ("[a]\nttft = { gauge = ['x'], pool = 'both' }", "pool"),
        ("[a]\nttft = { gauge = ['x'], split = 1 }", "split"),
        ("[a]\nttft = { gauge = ['x'], where = ['y'] }", "a table of labels"),
        ("[a]\nttft = 3", "a table such as"),
        ("a = 3", "a table"),
        ("[pools]\nlabel = ['pod']", "pools"),
        ("[a", "is not TOML"),
    ],
)
def test_maps_that_are_wrong(tmp_path, toml, match):
    path = tmp_path / "mine.toml"
    path.write_text(toml)
    with pytest.raises(InputError, match=match) as caught:
        _prom_map.load(path)
    assert "mine.toml" in str(caught.value)


# Malformed responses


def broken(**changes) -> dict:
    series = {**one("vllm:request_success_total", DECODE, counter(2.0)), **changes}
    return response(series)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "parse error"}, "bad_data: parse error"),
        ({"status": "success"}, "no Prometheus query_range"),
        ([], "no Prometheus"),
        (3, "no Prometheus"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}, "resultType 'scalar'"),
        ({"status": "success", "data": {"resultType": "matrix", "result": {}}}, "no data.result list"),
        (response(), "holds no samples"),
        (broken(metric=3), "an object of labels"),
        (broken(metric={"__name__": 3}), "an object of labels"),
        (broken(metric={}), "has no __name__"),
        (broken(values=3), "values is 3"),
        (broken(values=[[T0]]), "a sample is"),
        (broken(values=[["now", "1"]]), "a time is 'now'"),
        (broken(values=[[T0 * 1000, "1"]]), "which is milliseconds"),
        (broken(values=[[-1.0, "1"]]), "a time is -1"),
        (broken(values=[[True, "1"]]), "a time is True"),
        (broken(values=[[T0, "one"]]), "a value is 'one'"),
        (broken(values=[[T0, "1_000"]]), "a value is '1_000'"),
        (broken(values=[[T0, None]]), "a value is None"),
        (broken(values=[[T0, "1"]]), "one sample per series"),
        (broken(values=[[T0, "1"], [T0 + 15, "2"]]), "less than a window of 60 s"),
        (broken(values=[[T0, "1"], [T0 + 1e9, "2"]]), "less than a window|windows"),
        (broken(values=[[T0, "NaN"]]), "holds no samples"),
        (broken(histograms=[[T0, 3]]), "histograms must be"),
        (broken(metric={"__name__": "node_cpu_seconds_total"}), "no known series among"),
    ],
)
def test_responses_that_are_wrong(tmp_path, content, match):
    path = saved(tmp_path, content)
    with pytest.raises(InputError, match=match) as caught:
        read_prometheus(path)
    assert "export.json" in str(caught.value)


@pytest.mark.parametrize("way", ["cut", "empty", "binary", "UTF-16", "deep", "not UTF-8"])
def test_files_that_are_damaged(tmp_path, way):
    good = json.dumps(response(*vllm_fleet())).encode()
    path = tmp_path / "export.json"
    content = {
        "cut": good[:-100],
        "empty": b"",
        "binary": bytes(range(256)),
        "deep": b'{"data":' * 3000,
        "UTF-16": good.decode().encode("utf-16"),
        "not UTF-8": good.replace(b"v", b"\xff"),
    }
    path.write_bytes(content[way])
    with pytest.raises(InputError, match=r"export\.json"):
        read_prometheus(path)
    assert detect(path) is None


def test_samples_out_of_order_and_twice(tmp_path):
    fleet = vllm_fleet()
    for series in fleet:
        series["values"] = series["values"][::-1] + series["values"][:3]
    seen = read_prometheus(saved(tmp_path, response(*fleet)))
    np.testing.assert_allclose(seen.measurements.get("served_rate"), 2.0)
    assert any("had the time of another" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"window": 0}, "window is 0"),
        ({"window": 20.0}, "window is 20 s; it must be at least 30 s"),
        ({"window": 1e9}, "less than a window"),
        ({"product": "vlm"}, "unknown product 'vlm'; did you mean 'vllm'"),
        ({"pools": {"prefil": ["x"]}}, "unknown pool 'prefil'"),
        ({"pools": {"prefill": "x"}}, "a list of patterns"),
        ({"prefill_worker": 0}, "prefill_worker is 0"),
        ({"select": {"namespace": "other"}}, "no known series"),
        ({"metrics": "absent.toml"}, "absent.toml does not exist"),
    ],
)
def test_options_that_are_wrong(tmp_path, options, match):
    with pytest.raises(InputError, match=match):
        read_prometheus(saved(tmp_path, response(*vllm_fleet())), **options)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 10_000),
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=6) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_fuzz_any_value_in_any_place(tmp_path, at, value):
    content = response(*vllm_fleet(n=9)[:6], one("vllm:num_requests_running", DECODE, [40.0] * 9))
    places: list = []

    def walk(node) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(content)
    node, key = places[at % len(places)]
    node[key] = value
    path = saved(tmp_path, content, "fuzz.json")
    words = None
    try:
        seen = read_prometheus(path)
    except InputError as error:
        words = str(error)
    if words is not None:
        assert "fuzz.json" in words
    else:
        assert all(np.isfinite(v[~np.isnan(v)]).all() for v in seen.measurements.columns.values())


# A fake server in this process


class Fake(http.server.BaseHTTPRequestHandler):
    """Answers from `reply(path, query)`; a `str` goes to where it redirects, an int is a status."""

    reply: Callable
    seen: list

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query)
        self.seen.append((parts.path, query, dict(self.headers)))
        status, body = self.reply(parts.path, query)
        if status is None:  # a slow drip that never ends a socket's own timeout
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
            self.end_headers()
            return
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serving(reply: Callable) -> Iterator[tuple[str, list]]:
    seen: list = []
    handler = type("Handler", (Fake,), {"reply": staticmethod(reply), "seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False  # so that closing waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


def prometheus_like(at: Callable[[str, float], float | None], names: list[str]) -> Callable:
    """A server whose series have the value `at(name, unix time)`, with the limit of points of the real one."""

    def reply(path: str, query: dict) -> tuple:
        if path.endswith("/label/__name__/values"):
            patterns = [m.split('"')[1].replace("\\\\", "\\") for m in query["match[]"]]
            return 200, {"status": "success", "data": [n for n in names if any(re.fullmatch(p, n) for p in patterns)]}
        start, end, step = (float(query[key][0]) for key in ("start", "end", "step"))
        points = math.floor((end - start) / step + 1e-6) + 1
        if points > 11_000:
            return 400, {"status": "error", "errorType": "bad_data", "error": "exceeded maximum resolution of 11,000"}
        name, _, rest = query["query"][0].partition("{")
        times = [start + i * step for i in range(points)]
        values = [[t, text(v)] for t in times if (v := at(name, t)) is not None]
        labels = {"__name__": name, "pod": "decode-0", "model": "glm"}
        there = not rest or 'model="glm"' in rest
        return 200, response({"metric": labels, "values": values}) if there and name in names else response()

    return reply


def flat(name: str, t: float) -> float:
    return {"success": 2.0, "prompt": 1600.0, "generation": 160.0}[name.split("_")[1]] * (t - T0 + 100) if (
        name.endswith(("_total", "_sum"))) else 2.0 * (t - T0 + 100)  # fmt: skip


NAMES = ["vllm:request_success_total", "vllm:request_prompt_tokens_sum", "vllm:request_prompt_tokens_count",
         "vllm:request_generation_tokens_sum", "vllm:request_generation_tokens_count"]  # fmt: skip


def test_server_long_ranges_are_split_and_joined(monkeypatch):
    """25,001 points in three questions per series; a proxy of the environment is not used."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(prometheus_like(flat, NAMES)) as (address, seen):
        found = read_prometheus(address, start=T0, end=T0 + 25_000, step=1, window=100, select={"model": "glm"})
    ranges = [(q["start"][0], q["end"][0]) for path, q, _ in seen if path == "/api/v1/query_range"]
    assert len(ranges) == 3 * len(NAMES)
    for (_, end), (start, _) in itertools.pairwise(ranges[:3]):
        assert float(start) - float(end) == pytest.approx(1.0, abs=2e-3)  # no point twice, none left out
    assert found.measurements.rows == 250
    assert found.workload is not None
    np.testing.assert_allclose(found.workload.rate, 2.0, rtol=1e-9)
    np.testing.assert_allclose(found.workload.isl_stored, 800.0, rtol=1e-9)
    assert not any("had the time of another" in note for note in found.notes)
    assert all("Authorization" not in headers for *_, headers in seen)


def test_server_select_reaches_the_query():
    with serving(prometheus_like(flat, NAMES)) as (address, seen):
        with pytest.raises(InputError, match="no known series"):
            read_prometheus(address, start=T0, end=T0 + 600, select={"model": 'g"} or vector(1) #'})
        assert all('\\"' in q["query"][0] for path, q, _ in seen if path.endswith("query_range"))


def test_selector_escapes():
    assert selector("up", {}) == "up"
    assert selector("up", {"a": 'x"y\\z\n'}) == 'up{a="x\\"y\\\\z\\n"}'


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((302, "http://elsewhere.example/"), "redirects to 'http://elsewhere.example/', which is not followed"),
        ((400, {"status": "error", "errorType": "bad_data", "error": "no"}), "with 400 .*bad_data: no"),
        ((500, b"<html>"), "with 500"),
        ((200, b"<html>"), "with no JSON"),
        ((200, b"[" * 100_000), "with no JSON"),
        ((200, b"\xff\xfe"), "with no JSON"),
        ((200, {"status": "success", "data": 3}), "a list of metric names"),
        ((200, {"status": "success", "data": []}), "no known series"),
        ((200, b" " * 5_000_000), "sent over 4,000,000 bytes"),
        ((None, b""), "took over 0.6 s"),
    ],
)
def test_servers_that_misbehave(answer, match):
    began = time.monotonic()
    with serving(lambda path, query: answer) as (address, _):
        timeout = 0.6 if answer[0] is None else 20.0
        with pytest.raises(InputError, match=match) as caught:
            read_prometheus(address, start=T0, end=T0 + 600, timeout=timeout, limit=4_000_000)
        assert address in str(caught.value)
    assert time.monotonic() - began < 10


def test_no_server_at_the_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="does not answer"):
        read_prometheus(address, timeout=5)


@pytest.mark.parametrize(
    "address",
    ["ftp://host/x", "file:///etc/passwd", "http://", "http://user:word@host", "http://host:99999", "http://host/?q=1",
     "http://host/#x", "http://ho st", "gopher://host", "http://host:0"],
)  # fmt: skip
def test_addresses_that_are_none(address):
    with pytest.raises(InputError, match="Prometheus address"):
        read_prometheus(address)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"start": T0, "end": T0}, "start, end"),
        ({"start": T0 * 1000, "end": T0 * 1000 + 1}, "start, end"),
        ({"start": T0, "end": T0 + 60, "step": 120}, "step is 120"),
        ({"start": T0, "end": T0 + 60, "step": 0}, "step is 0"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_ranges_that_are_none(options, match):
    with pytest.raises(InputError, match=match):
        read_prometheus("http://127.0.0.1:9", **options)


# A real server


class Worker:
    """What a worker serves under /metrics: 8 requests/s of 500 tokens in and 50 out since its start."""

    def __init__(self) -> None:
        self.began = time.time()

    def reply(self, path: str, query: dict) -> tuple:
        return 200, exposition(time.time() - self.began).encode()


def exposition(life: float) -> str:
    rows = [f'vllm:request_success_total{{model_name="m",finished_reason="stop"}} {8 * life}']
    for name, tokens in (("prompt", 500), ("generation", 50)):
        rows += [f'vllm:request_{name}_tokens_sum{{model_name="m"}} {8 * tokens * life}',
                 f'vllm:request_{name}_tokens_count{{model_name="m"}} {8 * life}',
                 f'vllm:request_{name}_tokens_bucket{{model_name="m",le="+Inf"}} {8 * life}']  # fmt: skip
    rows += [f'vllm:inter_token_latency_seconds_sum{{model_name="m"}} {8 * 49 * 0.02 * life}',
             f'vllm:inter_token_latency_seconds_count{{model_name="m"}} {8 * 49 * life}',
             'vllm:num_requests_running{model_name="m"} 8', 'vllm:num_requests_waiting{model_name="m"} NaN',
             'vllm:kv_cache_usage_perc{model_name="m"} 0.25',
             'vllm:cache_config_info{num_gpu_blocks="1000",block_size="16"} 1']  # fmt: skip
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="the program prometheus is not installed (apt package)")
def test_real_prometheus(tmp_path):
    """A server of the distribution scrapes a fake worker each half second; what is read is what the worker did."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = Worker()
    with serving(worker.reply) as (target, _):
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
            "scrape_configs:\n- job_name: vllm-decode\n  static_configs:\n"
            f"  - targets: ['{target.removeprefix('http://')}']\n    labels: {{namespace: llm}}\n"
        )
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(address)
            start = time.time()  # of the first scrape
            time.sleep(3.0)
            worker.began = time.time()  # it restarts
            time.sleep(3.6)
            seen = read_prometheus(
                address, start=start, end=start + 6.0, step=0.5, window=1, select={"namespace": "llm"}
            )
            # Over 11,000 points: the server itself would refuse them in one question.
            with pytest.raises(InputError, match=r"with 400 .*11,000"):
                Client(address).get("query_range", {"query": "up", "start": "0", "end": "9999999", "step": "1"})
            answers = Client(address).ranges("vllm:request_success_total", start - 20_000, start + 6, 1.0)
            label = Client(address).names(["vllm:request_success_total", "absent"], start, start + 6)
        finally:
            process.terminate()
            process.wait(timeout=20)
    assert len(answers) == 2
    assert label == ["vllm:request_success_total"]
    m = seen.measurements
    assert m.rows in (5, 6)
    # A reset loses what was counted between the last scrape before it and the restart: up to half a second's worth.
    rate = m.get("served_rate")
    assert np.median(rate) == pytest.approx(8.0, rel=0.2)
    assert rate.mean() == pytest.approx(8.0, abs=8 * 1.0 / m.rows)
    assert any("reset" in note for note in seen.notes)
    for name, value in {
        "isl": 500,
        "osl": 50,
        "itl": 0.02,
        "running": 8,
        "kv_use": 0.25,
        "capacity_tokens": 16_000,
    }.items():
        np.testing.assert_allclose(m.get(name), value, rtol=1e-6, err_msg=name)
    assert "waiting" not in m.columns  # NaN is no number of requests
    assert seen.workload is not None
    assert seen.workload.mean_isl == pytest.approx(500)


def _wait_for(address: str) -> None:
    """Until the server is up and has scraped its target, which it finds within some seconds."""
    for _ in range(200):
        try:
            if Client(address).get("query", {"query": "up"})["data"]["result"]:
                return
        except InputError:
            pass
        time.sleep(0.1)
    pytest.fail("prometheus did not scrape its target within 20 s")
