"""Benchmark results: each format in its own units, real and hand-made, and files that are wrong in every way."""

import copy
import csv
import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluidq._errors import InputError
from fluidq.io._bench_fields import overlap
from fluidq.io.benchmarks import detect, read_benchmark, summary
from fluidq.measurements import QUANTITIES, Measurements
from tests.helpers import data

START = 1_759_813_207_532_900_363  # an epoch in ns: float64 is 256 ns wide there


def vllm(requests: int = 40, detailed: bool = False, **changes) -> dict:
    """A run whose figures agree: each request 0.25 s to the first token, then 9.9 ms per token."""
    osl, isl, ttft, tpot, run = 101, 1000, 0.25, 0.0099, 20.0
    record = {
        "date": "20260915-055723", "backend": "vllm", "model_id": "openai/gpt-oss-120b", "num_prompts": requests + 2,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": run, "completed": requests,
        "failed": 2, "total_input_tokens": isl * requests, "total_output_tokens": osl * requests,
        "request_throughput": requests / run, "request_goodput": None, "output_throughput": osl * requests / run,
        "total_token_throughput": (isl + osl) * requests / run,
    }  # fmt: skip
    means = {"ttft": ttft * 1e3, "tpot": tpot * 1e3, "itl": tpot * 1e3, "e2el": (ttft + 100 * tpot) * 1e3}
    for name, value in means.items():
        record |= {f"{stat}_{name}_ms": value * f for stat, f in (("mean", 1), ("median", 0.95), ("p99", 1.8))}
        record[f"std_{name}_ms"] = value / 10
    if detailed:
        record |= {
            "input_lens": [isl] * requests + [isl] * 2,
            "output_lens": [osl] * requests + [0, 0],
            "ttfts": [ttft] * requests + [0.0, 0.0],
            "itls": [[tpot] * 100] * requests + [[], []],
            "errors": [""] * requests + ["timeout", "refused"],
            "start_times": [1000.0 + 0.5 * i for i in range(requests + 2)],
        }
    return {**record, **changes}


def sglang(**changes) -> dict:
    record = {name.replace("e2el", "e2e_latency"): value for name, value in vllm().items()}
    for name in ("failed", "num_prompts", "model_id", "total_token_throughput"):
        record.pop(name)
    more = {
        "request_rate": math.inf, "total_input_text_tokens": record["total_input_tokens"], "concurrency": 2.4,
        "total_output_tokens_retokenized": 4030, "accept_length": 1.8,
        "server_info": {"model_path": "deepseek-ai/DeepSeek-V3", "disaggregation_mode": "decode", "tp_size": 8},
    }  # fmt: skip
    return {**record, **more, **changes}


def aiperf(index: int, start: int | None = None, **changes) -> dict:
    begin = START + index * 100_000_100 if start is None else start
    value = {
        "input_sequence_length": (550 + index, "tokens"), "output_sequence_length": (21, "tokens"),
        "time_to_first_token": (200.0, "ms"), "request_latency": (400.0, "ms"), "inter_token_latency": (10.0, "ms"),
        "inter_chunk_latency": ([9.0, 11.0], "ms"),
    }  # fmt: skip
    return {
        "metadata": {"request_start_ns": begin, "request_end_ns": begin + 400_000_000, "benchmark_phase": "profiling"},
        "metrics": {name: {"value": v, "unit": unit} for name, (v, unit) in value.items()},
        "error": None,
        **changes,
    }


def genai() -> dict:
    def stats(unit: str, mean: float) -> dict:
        return {"unit": unit, "avg": mean, "p50": 0.9 * mean, "p99": 1.5 * mean, "std": mean / 10}

    return {
        "request_throughput": {"unit": "requests/sec", "avg": 5.0},
        "request_count": {"unit": "count", "avg": 100.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 505.0},
        "time_to_first_token": stats("ms", 250.0),
        "inter_token_latency": stats("ms", 9.9),
        "request_latency": stats("ms", 1240.0),
        "input_sequence_length": stats("tokens", 1000.0),
        "output_sequence_length": stats("tokens", 101.0),
        "input_config": {"model": ["llama"], "perf_analyzer": {"stimulus": {"concurrency": 10}}},
    }


def inferencex(**changes) -> dict:
    """40 prefill and 16 decode GPUs; requests of 921.6 tokens on average, drawn from 0.8 to 1.0 of 1024."""
    osl, isl, ttft, tpot, rate = 921.6, 7372.8, 1.5, 0.012, 180.0
    record = {
        "hw": "gb200", "conc": 2200, "model": "deepseek-r1", "framework": "dynamo-trt", "precision": "fp4",
        "isl": 8192, "osl": 1024, "disagg": True, "is_multinode": True, "num_prefill_gpu": 40, "num_decode_gpu": 16,
        "tput_per_gpu": rate * (isl + osl) / 56, "input_tput_per_gpu": rate * isl / 40,
        "output_tput_per_gpu": rate * osl / 16, "mean_intvty": 1 / tpot,
    }  # fmt: skip
    for name, value in {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2el": ttft + (osl - 1) * tpot}.items():
        record |= {f"mean_{name}": value, f"median_{name}": 0.95 * value, f"p99_{name}": 1.4 * value}
    return {**record, **changes}


def saved(folder: Path, content, name: str = "result.json", lines: bool = False) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(one) + "\n" for one in content) if lines else json.dumps(content))
    return path


def only(found: Measurements, name: str) -> float:
    (value,) = found.get(name)
    return float(value)


# Each format in its own units


def test_vllm_milliseconds_become_seconds_and_an_unlimited_rate_is_no_offered_rate(tmp_path):
    path = saved(tmp_path, vllm())
    found = read_benchmark(path)
    assert (found.format, found.kind, found.rows) == ("vLLM bench serve JSON", "runs", 1)
    want = {"ttft": 0.25, "tpot": 0.0099, "e2el": 1.24, "isl": 1000, "osl": 101, "served_rate": 2, "failed": 2}
    for name, value in want.items():
        assert only(found, name) == pytest.approx(value, rel=1e-12), name
    assert only(found, "ttft_p99") == pytest.approx(0.45)
    assert math.isnan(found.get("offered_rate")[0])
    assert "unlimited" in found.notes[0]
    assert found.facts["model"] == "openai/gpt-oss-120b"
    assert found.lines[0] == 1


def test_vllm_offered_and_served_are_kept_apart(tmp_path):
    found = read_benchmark(saved(tmp_path, vllm(request_rate=3.5, max_concurrency=None)))
    assert only(found, "offered_rate") == 3.5
    assert only(found, "served_rate") == 2.0
    assert not found.notes


def test_vllm_requests_behind_a_run(tmp_path):
    """Arrays are in seconds; a request with an error is none; beside each one others decode."""
    detail = read_benchmark(saved(tmp_path, vllm(detailed=True))).detail
    assert detail is not None
    assert detail.rows == 40
    np.testing.assert_allclose(detail.get("ttft"), 0.25)
    np.testing.assert_allclose(detail.get("tpot"), 0.0099)
    np.testing.assert_allclose(detail.get("time"), 0.5 * np.arange(40))
    # A request every 0.5 s that decodes for 0.99 s has the one before and the one after beside it for 0.49 s each.
    np.testing.assert_allclose(detail.get("running")[3:-3], 1 + 2 * 0.49 / 0.99, rtol=1e-9)


def test_real_vllm_runs(tmp_path):
    """57 published results of one sweep, as `bench serve` wrote them, back into JSON and read."""
    with data("dstack-pd-ratio/results.csv").open() as file:
        rows = list(csv.DictReader(file))
    keys = ("duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
            "output_throughput", "total_token_throughput", "num_prompts", "max_concurrency")  # fmt: skip
    assert len(rows) == 57
    for row in rows:
        record = {key: float(row[key]) for key in keys if row[key]}
        record |= {key: float(value) for key, value in row.items() if key.endswith("_ms") and value}
        found = read_benchmark(saved(tmp_path, {**record, "request_rate": row["request_rate"]}))
        assert only(found, "ttft") == pytest.approx(float(row["mean_ttft_ms"]) / 1000, rel=1e-12)
        assert only(found, "isl") == pytest.approx(float(row["total_input_tokens"]) / float(row["completed"]))
        assert only(found, "output_rate") == pytest.approx(float(row["output_throughput"]), rel=0.02)


def test_sglang_runs_appended_to_one_file(tmp_path):
    path = tmp_path / "online.jsonl"
    good = [sglang(), sglang(request_rate=4.0), sglang(request_rate="trace")]
    lines = [json.dumps(one) for one in good]  # writes Infinity, as the client does
    path.write_text("\n".join([lines[0], "", lines[1], lines[2], '{"duration": 20.0, "compl']))
    found = read_benchmark(path)
    assert found.format == "SGLang bench_serving JSONL"
    assert found.lines.tolist() == [1, 3, 4]
    assert [line for line, _ in found.dropped] == [5]
    assert found.facts["topology"] == "disaggregated"
    np.testing.assert_allclose(found.get("accept"), 1.8)
    np.testing.assert_allclose(found.get("offered_rate"), [math.nan, 4.0, math.nan])
    np.testing.assert_allclose(found.get("e2el"), 1.24)


def test_aiperf_times_are_subtracted_as_whole_nanoseconds(tmp_path):
    rows = [aiperf(0), aiperf(1, start=START + 1), aiperf(2, start=START + 3)]
    found = read_benchmark(saved(tmp_path, rows, lines=True))
    assert found.get("time").tolist() == [0.0, 1e-9, 3e-9]
    # The same through floats of the epoch would lose them:
    assert float(START + 3) - float(START) not in (3.0, 1.0)


def test_aiperf_leaves_out_warm_up_and_failures(tmp_path):
    rows = [aiperf(i) for i in range(20)]
    rows[0]["metadata"]["benchmark_phase"] = "warmup"
    rows[5] |= {"metrics": {"error_isl": {"value": 550, "unit": "tokens"}}, "error": {"code": 499, "type": "Timeout"}}
    found = read_benchmark(saved(tmp_path, rows, lines=True))
    assert found.rows == 18
    assert [line for line, _ in found.dropped] == [1, 6]
    assert "Timeout" in found.dropped[1][1]
    assert found.detail is not None
    assert only(found.detail, "failed") == 1
    # From the second row's start to the last one's end.
    assert only(found.detail, "duration") == pytest.approx(18 * 0.1000001 + 0.4, rel=1e-12)
    assert only(found.detail, "served_rate") == pytest.approx(18 / (18 * 0.1000001 + 0.4))
    np.testing.assert_allclose(found.get("itl"), 0.010)
    assert any("warm-up" in note for note in found.notes)


def test_overlap_is_the_time_average_by_counting():
    rng = np.random.default_rng(3)
    start = rng.uniform(0, 20, 60)
    stop = start + rng.uniform(0.1, 5, 60)
    context = rng.uniform(100, 9000, 60)
    running, around = overlap(start, stop, context)
    for i in range(0, 60, 7):
        ts = np.linspace(start[i], stop[i], 40_001)[:-1] + (stop[i] - start[i]) / 80_000
        there = (start[:, None] <= ts) & (ts < stop[:, None])
        assert running[i] == pytest.approx(there.sum(axis=0).mean(), rel=2e-3)
        assert around[i] == pytest.approx((there * context[:, None]).sum() / there.sum(), rel=2e-3)


@pytest.mark.parametrize("wrap", [False, True], ids=["flat", "under records"])
def test_aiperf_summary(tmp_path, wrap):
    body = genai()
    config = {"endpoint": {"model_names": ["qwen"]}, "loadgen": {"request_rate": 6.0, "concurrency": None}}
    body.pop("input_config")
    content = {"records": body, "input_config": config} if wrap else {**body, "input_config": config}
    found = read_benchmark(saved(tmp_path, {**content, "was_cancelled": False}))
    assert found.format == "AIPerf summary JSON"
    assert (only(found, "offered_rate"), only(found, "served_rate")) == (6.0, 5.0)
    assert only(found, "tpot") == pytest.approx(0.0099)
    assert only(found, "duration") == pytest.approx(20.0)
    assert found.facts["model"] == "qwen"


def test_genai_perf_values_name_their_unit(tmp_path):
    record = genai()
    found = read_benchmark(saved(tmp_path, record))
    assert found.format == "GenAI-Perf summary JSON"
    assert only(found, "concurrency") == 10
    assert only(found, "ttft_p99") == pytest.approx(0.375)
    in_us = copy.deepcopy(record)
    for entry in in_us["time_to_first_token"], in_us["request_latency"]:
        entry |= {key: value * 1000 for key, value in entry.items() if key != "unit"} | {"unit": "us"}
    again = read_benchmark(saved(tmp_path, in_us))
    assert only(again, "ttft") == pytest.approx(only(found, "ttft"), rel=1e-12)
    in_us["time_to_first_token"]["unit"] = "ticks"
    with pytest.raises(InputError, match=r"result\.json.*time_to_first_token has the unit 'ticks'"):
        read_benchmark(saved(tmp_path, in_us))


def test_inferencex_is_in_seconds_and_per_pool(tmp_path):
    found = read_benchmark(saved(tmp_path, inferencex()))
    assert only(found, "ttft") == 1.5
    assert only(found, "decode_rate") == pytest.approx(180 * 921.6 / 16)
    assert only(found, "served_rate") == pytest.approx(180.0)
    # The nominal 8192 and 1024 are not what was sent: the latencies give the mean output, the rates the input.
    assert (only(found, "isl"), only(found, "osl")) == (pytest.approx(7372.8), pytest.approx(921.6))
    assert found.facts["topology"] == "disaggregated"
    whole = read_benchmark(saved(tmp_path, [inferencex(disagg=False, conc=1200, output_tput_per_gpu=3000.0)]))
    assert only(whole, "batch") == pytest.approx(36.0)  # Little: 3000 tok/s * 12 ms
    assert math.isnan(whole.get("decode_rate")[0])


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("H200_TP1P_TP1D", 41),
        ("h200_sxm_vllm_nvidia_Llama-3.1-8B-Instruct-FP8", 41),
        ("h100_sxm_vllm_nvidia_Llama-3.3-70B-Instruct-FP8", 117),
    ],
)
def test_dynamo_profiles(name, rows):
    """Against the flattened tables beside them, whose figures were computed by others."""
    decode = read_benchmark(data(f"dynamo/{name}_decode.npz"))
    prefill = read_benchmark(data(f"dynamo/{name}_prefill.npz"))
    assert decode.rows == rows
    with data("dynamo/decode_profile.csv").open() as file:
        table = [r for r in csv.DictReader(file) if r["gpu"] == name[:8].lower() or name.startswith("H200")]
    table = table if name.startswith("h100") else [r for r in table if r["gpu"] == "h200_sxm"]
    np.testing.assert_allclose(decode.get("itl"), [float(r["itl_ms"]) / 1e3 for r in table], atol=6e-8)
    np.testing.assert_allclose(decode.get("running"), [float(r["implied_batch"]) for r in table], atol=0.06)
    np.testing.assert_allclose(decode.get("worker_gpus"), [float(r["tp"]) for r in table])
    with data("dynamo/prefill_profile.csv").open() as file:
        table = [r for r in csv.DictReader(file) if r["gpu"] == decode.facts.get("gpu_type", "h200_sxm")]
    rate = prefill.get("isl") / prefill.get("prefill_time") / prefill.get("worker_gpus")
    np.testing.assert_allclose(rate, [float(r["input_tok_s_per_gpu_recomputed"]) for r in table], rtol=1e-4)


def test_profile_counts_are_those_of_the_readme():
    folder = data("dynamo")
    counts = {"decode": 0, "prefill": 0}
    for path in folder.glob("*_sxm_*.npz"):
        counts[path.stem.rsplit("_", 1)[1]] += summary(path)["rows"]
    assert counts == {"decode": 158, "prefill": 44}


# Units that are wrong are never silent


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (inferencex(mean_ttft=2000.0), r"mean_ttft: ttft .* is 2000 s; .*time_unit='ms'"),
        (inferencex(mean_tpot=12.0), "tpot .* is 12 s"),
        (inferencex(mean_itl=9.0), "itl is 9 s at a tpot"),
        (inferencex(median_e2el=16_000.0), "e2el_p50 is 16000 s, over 2 times the mean"),
        (vllm(mean_ttft_ms=0.25), "ttft .* is 0.00025 s; .*time_unit='s'"),
        (vllm(mean_ttft_ms=250_000.0), "ttft is 250 s in a run of 20 s"),
        (vllm(mean_tpot_ms=9900.0), "e2el is 1.24 s, but TTFT"),
        (vllm(mean_itl_ms=9000.0, median_itl_ms=None, p99_itl_ms=None), "itl is 9 s at a tpot"),
        (vllm(duration=20_000.0), "request_throughput is 2, but 0.002"),
        (vllm(total_input_tokens=40), "total_token_throughput"),
        (vllm(max_concurrency=1), "2.48 requests were in flight"),
        (vllm(detailed=True, ttfts=[250.0] * 42), r"mean TTFT \(s\) is 0.25, but 250"),
        (sglang(mean_ttft_ms=2_000_000.0), "ttft .* is 2000 s"),
        (sglang(mean_e2e_latency_ms=1.24), "e2el_p50 is 1.178 s, over 2 times the mean of 0.00124 s"),
    ],
)
def test_a_wrong_unit_is_an_error_that_says_what_to_do(tmp_path, record, match):
    with pytest.raises(InputError, match=match) as caught:
        read_benchmark(saved(tmp_path, record))
    assert "result.json, line 1" in str(caught.value)


def test_a_stated_unit_is_taken_and_noted(tmp_path):
    in_ms = {k: v * 1000 if k.startswith(("mean_", "median_", "p99_")) and "intvty" not in k else v
             for k, v in inferencex().items()}  # fmt: skip
    with pytest.raises(InputError):
        read_benchmark(saved(tmp_path, in_ms))
    found = read_benchmark(saved(tmp_path, in_ms), time_unit="ms")
    assert only(found, "ttft") == pytest.approx(1.5)
    assert "as stated" in found.notes[0]
    with pytest.raises(InputError, match="unknown time_unit 'minutes'"):
        read_benchmark(saved(tmp_path, in_ms), time_unit="minutes")


# What inspect calls


@pytest.mark.parametrize(
    ("content", "lines", "format", "requests"),
    [
        (vllm(), False, "vLLM bench serve JSON", 40),
        ([sglang(), sglang()], True, "SGLang bench_serving JSONL", 80),
        ([aiperf(i) for i in range(5)], True, "AIPerf request JSONL", 5),
        (genai(), False, "GenAI-Perf summary JSON", 100),
        (inferencex(), False, "InferenceX aggregate JSON", None),
    ],
)
def test_detection_and_summary(tmp_path, content, lines, format, requests):
    path = saved(tmp_path, content, name="named.txt", lines=lines)
    assert detect(path) == format
    found = summary(path)
    assert (found["format"], found["requests"]) == (format, requests)
    assert found["rows"] == found["kept"] + found["dropped"]
    assert {"duration_s", "mean_isl", "mean_isl_computed", "mean_osl", "peak_to_mean"} <= found.keys()
    json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4808,10\n",
        '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n',
        '{"a": 1}',
        "[]",
        "",
        "hello",
    ],
)
def test_other_files_are_not_ours(tmp_path, text):
    path = tmp_path / "other"
    path.write_text(text)
    assert detect(path) is None
    with pytest.raises(InputError, match="other"):
        read_benchmark(path)


# Malformed and hostile files

NUMBERS = {
    "vllm": ("duration", "completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms", "mean_tpot_ms",
             "mean_itl_ms", "mean_e2el_ms", "p99_ttft_ms", "max_concurrency", "request_throughput"),
    "sglang": ("duration", "completed", "total_output_tokens", "mean_ttft_ms", "mean_e2e_latency_ms", "accept_length"),
    "inferencex": ("isl", "osl", "mean_ttft", "mean_tpot", "num_prefill_gpu", "output_tput_per_gpu", "conc"),
}  # fmt: skip
GOOD = {"vllm": vllm, "sglang": sglang, "inferencex": inferencex}
BAD = ["text", "12", True, [1], {}, -1, float("nan"), float("-inf"), 10**400]
NOT_MISSING = ("duration", "completed", "isl", "osl")


def bad_fields():
    for format, names in NUMBERS.items():
        for name in names:
            for value in BAD:
                yield pytest.param(format, name, value, id=f"{format}-{name}-{str(value)[:6]}")


@pytest.mark.parametrize(("format", "name", "value"), list(bad_fields()))
def test_a_field_that_is_no_number_is_refused(tmp_path, format, name, value):
    with pytest.raises(InputError, match=r"result\.json") as caught:
        read_benchmark(saved(tmp_path, GOOD[format](**{name: value})))
    assert name.split("_")[0] in str(caught.value) or "no result" in str(caught.value)


def damaged(good: bytes) -> dict[str, bytes]:
    """The same file, wrong in ways that have nothing to do with its format."""
    return {
        "cut": good[: len(good) // 2],
        "cut at the end": good[:-3],
        "UTF-16": good.decode().encode("utf-16"),
        "empty": b"",
        "blank": b"\n \n",
        "binary": bytes(range(256)) * 8,
        "not UTF-8": good.replace(b"u", b"\xff\xfe", 3),
        "deep": b"[" * 5000 + b"]" * 5000,
        "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
        "key twice": good.replace(b'"duration"', b'"duration": 1, "duration"').replace(
            b'"metadata"', b'"metadata": {}, "metadata"'
        ).replace(b'"request_latency"', b'"request_latency": {}, "request_latency"').replace(
            b'"isl"', b'"isl": 1, "isl"'),
        "zip": b"PK\x03\x04" + good,
        "gzip of nothing": b"\x1f\x8b\x08" + bytes(10),
    }  # fmt: skip


CONTENTS = {
    "vllm": json.dumps(vllm(detailed=True)).encode(),
    "sglang": json.dumps(sglang()).encode(),
    "aiperf": json.dumps(aiperf(0)).encode(),
    "genai": json.dumps(genai()).encode(),
    "inferencex": json.dumps(inferencex()).encode(),
}


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("way", damaged(b'{"duration": 1}'))
def test_damaged_files(tmp_path, format, way):
    content = damaged(CONTENTS[format])[way]
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged\.json"):
        read_benchmark(path)
    if not content.startswith((b"PK", b"\x1f\x8b")):
        assert detect(path) is None or way == "key twice"


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("way", ["BOM", "CRLF", "extra field", "indented", "gzip"])
def test_harmless_changes_change_nothing(tmp_path, format, way):
    import gzip

    good = CONTENTS[format]
    changed = {
        "BOM": b"\xef\xbb\xbf" + good,
        "CRLF": good + b"\r\n\r\n",
        "extra field": good[:-1] + b', "something_new": [1, {"a": null}]}',
        "indented": json.dumps(json.loads(good), indent=2).encode(),
        "gzip": gzip.compress(good),
    }[way]
    tables = []
    for content in (good, changed):
        path = tmp_path / "file"
        path.write_bytes(content)
        tables.append(read_benchmark(path).columns)
    assert tables[0].keys() == tables[1].keys()
    for name, values in tables[0].items():
        np.testing.assert_array_equal(values, tables[1][name])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"input_lens": [1000]}, "different lengths"),
        ({"ttfts": "0.25"}, "ttfts is '0.25'; it must be a list"),
        ({"ttfts": [0.25] * 41 + ["x"]}, r"ttfts\[41\] is 'x'"),
        ({"itls": [0.01] * 42}, "list of lists"),
        ({"completed": 0}, "no run completed a request"),
    ],
)
def test_vllm_arrays_that_do_not_fit(tmp_path, change, match):
    with pytest.raises(InputError, match=match):
        read_benchmark(saved(tmp_path, vllm(detailed=True, **change)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"metadata": {"request_start_ns": 1.7e18, "request_end_ns": 1.7e18}}, "whole numbers of ns"),
        ({"metadata": {"request_start_ns": START, "request_end_ns": START - 1}}, "in that order"),
        ({"metadata": []}, "is no benchmark result|no objects"),
        ({"metrics": 5}, "no objects"),
    ],
)
def test_aiperf_rows_that_are_none(tmp_path, change, match):
    path = saved(tmp_path, [aiperf(0), {**aiperf(1), **change}], lines=True)
    found = read_benchmark(path)
    assert [line for line, _ in found.dropped] == [2]
    with pytest.raises(InputError, match=match):
        read_benchmark(saved(tmp_path, [{**aiperf(1), **change}] * 2, lines=True))


def test_aiperf_wrong_unit_in_one_row(tmp_path):
    row = aiperf(1)
    row["metrics"]["request_latency"]["unit"] = "s"
    with pytest.raises(InputError, match=r"line 2: request_latency is 400 s, but the time stamps are 0\.4 s apart"):
        read_benchmark(saved(tmp_path, [aiperf(0), row], lines=True))


def npz(arrays: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compress) as archive:
        for name, raw in arrays.items():
            archive.writestr(f"{name}.npy", raw)
    return stream.getvalue()


def npy(values) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(values), allow_pickle=True)
    return stream.getvalue()


PROFILE = {"prefill_isl": [100, 2000], "prefill_ttft": [20.0, 90.0], "tp": [1]}


def profile(**changes) -> bytes:
    return npz({name: raw if isinstance(raw, bytes) else npy(raw) for name, raw in {**PROFILE, **changes}.items()})


class Bomb:
    """Unpickling it would leave a mark."""

    fired = False

    def __reduce__(self):
        return (setattr, (Bomb, "fired", True))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (profile(prefill_isl=np.array([Bomb(), 1], dtype=object)), "Python objects, which are never unpickled"),
        (profile(tp=npy([1])[:-4]), "does not fit its"),
        (profile(tp=npy([1]).replace(b"(1,)", b"(9,)")), "does not fit its"),
        (profile(tp=npy([1]).replace(b"(1,), }", b"(10**12,)")), "is no NumPy array"),
        (profile(tp=npy([1]).replace(b"(1,), }         ", b"(999999999,), } ")), "does not fit its"),
        (profile(tp=b"hello"), "is no NumPy array"),
        (profile(tp=np.array(["2020"], dtype="M8[Y]")), "must hold numbers or text"),
        (profile(prefill_ttft=[20.0, -1.0]), "entry 1 is"),
        (profile(prefill_ttft=[20.0, math.nan]), "entry 1 is"),
        (profile(prefill_ttft=[20.0, 1.0, 2.0]), "shapes"),
        (profile(prefill_ttft=[[[20.0, 90.0]]]), r"of shape \(1, 1, 2\)"),
        (profile(prefill_ttft=["a", "b"]), "prefill_ttft is <U1"),
        (profile(tp=[0]), "at tp 0"),
        (profile(prefill_ttft=[20_000.0, 2e9]), r"profile\.npz, line 1: (ttft|prefill_time)"),
        (npz({"x": npy([1.0])}), "holds the arrays"),
        (npz({f"a{i}": npy([1]) for i in range(80)}), "80 arrays"),
        (npz({**{n: npy(v) for n, v in PROFILE.items()}, "z": bytes(100 << 20)}, zipfile.ZIP_DEFLATED), "at most"),
        (profile()[:100], "is damaged npz data"),
        (b"PK\x03\x04" + bytes(200), "is damaged npz data"),
        (profile(tp=npy([1.5])[:6] + b"\x63\x00" + npy([1.5])[8:]), "is no NumPy array"),
    ],
)
def test_hostile_npz(tmp_path, content, match):
    path = tmp_path / "profile.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as caught:
        read_benchmark(path)
    assert "profile.npz" in str(caught.value)
    assert not Bomb.fired


def test_good_npz_and_its_stated_unit(tmp_path):
    path = tmp_path / "profile.npz"
    path.write_bytes(profile())
    np.testing.assert_allclose(read_benchmark(path).get("prefill_time"), [0.02, 0.09])
    path.write_bytes(profile(prefill_ttft=[0.02, 0.09]))
    with pytest.raises(InputError, match="time_unit='s'"):
        read_benchmark(path)
    np.testing.assert_allclose(read_benchmark(path, time_unit="s").get("prefill_time"), [0.02, 0.09])


def outcome(read, path: Path) -> tuple:
    """What `read` returns, or the words of its `InputError`; any other exception is a failure of the test."""
    try:
        return read(path), ""
    except InputError as error:
        return None, str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.sampled_from(sorted(CONTENTS)), key=st.integers(0, 60), value=JSON)
def test_fuzz_any_value_in_any_place(tmp_path, which, key, value):
    """Whatever stands in a field, the result is numbers in their range or an error that names the file."""
    record = json.loads(CONTENTS[which])
    fields = [(record, k) for k in record] + [(v, k) for v in record.values() if isinstance(v, dict) for k in v]
    owner, name = fields[key % len(fields)]
    owner[name] = value
    path = saved(tmp_path, record, name="fuzz.json")
    found, error = outcome(read_benchmark, path)
    if found is None:
        assert "fuzz.json" in error
        return
    for name, values in found.columns.items():
        good = values[~np.isnan(values)]
        assert np.isfinite(good).all()
        assert (good >= QUANTITIES[name].low).all()
        assert (good <= QUANTITIES[name].high).all()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.sampled_from([*sorted(CONTENTS), "npz"]), at=st.floats(0, 1), byte=st.binary(max_size=3))
def test_fuzz_bytes(tmp_path, which, at, byte):
    content = profile() if which == "npz" else CONTENTS[which]
    i = int(at * len(content))
    path = tmp_path / "fuzz.bin"
    path.write_bytes(content[:i] + byte + content[i + 1 :])
    for read in (read_benchmark, detect):
        found, error = outcome(read, path)
        assert found is not None or "fuzz.bin" in error or (read is detect and not error)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"ttft": [2000.0]}, "ttft .* 2000 s"),
        ({"ttft": [math.inf]}, "finite"),
        ({"nonsense": [1.0]}, "unknown measured quantity 'nonsense'"),
        ({"ttft": [1.0, 2.0]}, "2 values for 1 rows"),
        ({"hit": [1.5]}, "hit"),
    ],
)
def test_a_table_refuses_what_cannot_be(columns, match):
    with pytest.raises(InputError, match=match):
        Measurements("x", "y", "runs", {n: np.array(v) for n, v in columns.items()}, np.array([7]))
