"""Metric names and PromQL queries of real deployments, as the signals of `fluidq.policies.metrics`."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fluidq._errors import refuse, unknown
from fluidq.policies.metrics import METRICS


class Source(NamedTuple):
    """A metric: its fluidq signal, `scale` from its unit to the signal's, whether it is a mean, what to know of it."""

    signal: str
    scale: float = 1.0
    mean: bool = False
    note: str = ""


class Resolved(NamedTuple):
    """A metric or query as a signal, and where it is not quite that (sentences)."""

    signal: str
    scale: float
    unlike: tuple[str, ...]
    notes: tuple[str, ...]


_BUSY = "the share of time that a kernel runs, read as the filled share of the batch"
_SERVED = "what was served, read as what arrives: under overload it is less"

# From the products' own metric pages; times in seconds, KV use as a fraction unless a scale says otherwise.
SOURCES: dict[str, Source] = {
    "vllm:num_requests_waiting": Source("queue_length"),
    "vllm:num_requests_running": Source("running"),
    "vllm:kv_cache_usage_perc": Source("kv_usage"),
    "vllm:gpu_cache_usage_perc": Source("kv_usage"),
    "vllm:time_to_first_token_seconds": Source("ttft"),
    "vllm:inter_token_latency_seconds": Source("itl"),
    "vllm:time_per_output_token_seconds": Source("itl"),
    "vllm:prompt_tokens": Source("prefill_tps"),
    "vllm:generation_tokens": Source("decode_tps"),
    "vllm:request_success": Source("arrival_rate", note=_SERVED),
    "sglang:num_queue_reqs": Source("queue_length"),
    "sglang:num_running_reqs": Source("running"),
    "sglang:token_usage": Source("kv_usage"),
    "sglang:time_to_first_token_seconds": Source("ttft"),
    "sglang:inter_token_latency_seconds": Source("itl"),
    "sglang:gen_throughput": Source("decode_tps"),
    "sglang:num_requests": Source("arrival_rate"),
    "trtllm_num_requests_waiting": Source("queue_length"),
    "trtllm_num_generation_requests": Source("running"),
    "trtllm_kv_cache_utilization": Source("kv_usage"),
    "trtllm_time_per_output_token_seconds": Source("itl"),
    "dynamo_frontend_queued_requests": Source("queue_length"),
    "dynamo_component_inflight_requests": Source("running"),
    "dynamo_component_kvstats_gpu_cache_usage_percent": Source("kv_usage", note="a fraction, whatever its name says"),
    "dynamo_frontend_time_to_first_token_seconds": Source("ttft"),
    "dynamo_frontend_inter_token_latency_seconds": Source("itl"),
    "dynamo_frontend_requests_started": Source("arrival_rate"),
    "dynamo_frontend_requests": Source("arrival_rate", note=_SERVED),
    "inference_pool_average_queue_size": Source("queue_length", mean=True),
    "inference_pool_average_running_requests": Source("running", mean=True),
    "inference_pool_average_kv_cache_utilization": Source("kv_usage", mean=True),
    "inference_extension_flow_control_queue_size": Source("queue_length"),
    "inference_objective_request": Source("arrival_rate"),
    "inference_objective_request_ttft_seconds": Source("ttft"),
    "inference_objective_request_tpot_seconds": Source("itl"),
    "DCGM_FI_DEV_GPU_UTIL": Source("batch_usage", 0.01, note=_BUSY),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Source("batch_usage", note=_BUSY),
}

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ENDS = re.compile(r"_(total|sum|count|bucket|per_second)$")
_QUIET = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|\{[^{}]*\}|\[[^\]]*\]|\b(?:by|without)\s*\([^()]*\)')
_MEAN = re.compile(r"_sum\b[^/]*/[^/]*_count\b")  # of a histogram: sum over count
_AGGREGATE = re.compile(r"(?<![a-z_0-9])(sum|avg|max|min|count|topk|bottomk|quantile)\s*(?:by|without)?\s*\(")


def table(override: Mapping[str, Any] | None = None) -> dict[str, Source]:
    """The names, with the user's own on top: NAME -> signal, or (signal, scale). Raises InputError for no signal."""
    made = {**{name: Source(name) for name in METRICS}, **SOURCES}
    for name, value in (override or {}).items():
        signal, scale = (value, 1.0) if isinstance(value, str) else value
        if signal not in METRICS:
            raise unknown(f"signal of metric {name!r}", str(signal), METRICS)
        if not scale > 0:
            raise refuse(f"scale of metric {name!r}", scale, "a factor > 0 from the metric's unit to the signal's")
        made[name] = Source(signal, float(scale))
    return made


def resolve(text: str, names: Mapping[str, Source], pool: str, target_type: str) -> Resolved | str:
    """A metric name or a PromQL query as a signal that this pool shows, or the sentence on why it is none."""
    index = {_plain(name): source for name, source in names.items()}
    for name, source in names.items():  # adapters and AIBrix drop the product's prefix
        if ":" in name:
            index.setdefault(_plain(name.split(":", 1)[1]), source)
    bare = _QUIET.sub(" ", text)
    found = {_plain(word): index[_plain(word)] for word in _NAME.findall(bare) if _plain(word) in index}
    signals = {source.signal for source in found.values()}
    known = ", ".join(sorted(n for n, s in names.items() if pool in METRICS[s.signal].pools))
    if not signals:
        return f"unknown metric; known for the {pool} pool: {known}; name others by metrics={{name: signal}}"
    if len(signals) > 1:
        return f"it combines {', '.join(sorted(found))}; fluidq reads one signal"
    source = next(iter(found.values()))
    if pool not in METRICS[source.signal].pools:
        return f"the {pool} pool shows no {source.signal}; known there: {known}"
    scale, unlike = _scale(bare, source.scale)
    notes = [f"{text.strip()} is {source.note}"] if source.note else []
    unlike += _over_replicas(text, bare, source, target_type)
    return Resolved(source.signal, scale, tuple(unlike), tuple(notes))


def name_of(signal: str) -> str:
    """A product's metric that is the signal, in its unit; the signal's own name where none is quite that."""
    fits = (n for n, s in SOURCES.items() if s.signal == signal and s.scale == 1 and not (s.mean or s.note))
    return next(fits, signal)


def query_of(signal: str, target_type: str) -> str:
    """A PromQL query for the signal: a rate of counters, a mean of histograms, a sum or mean of gauges."""
    name = name_of(signal)
    if signal in ("prefill_tps", "decode_tps", "arrival_rate"):
        return f"sum(rate({name}_total[1m]))"
    if signal in ("ttft", "itl"):
        return f"sum(rate({name}_sum[1m])) / sum(rate({name}_count[1m]))"
    summed = target_type == "AverageValue" or METRICS[signal].summed
    return f"{'sum' if summed else 'avg'}({name})"


def _plain(name: str) -> str:
    return _ENDS.sub("", name.lower().replace(":", "_"))


def _scale(bare: str, scale: float) -> tuple[float, list[str]]:
    """The scale with a factor in front of or behind the query (100 * for a per cent); other arithmetic is named."""
    text = bare.strip()
    if _MEAN.search(text):
        return scale, []
    match = re.match(r"([\d.]+)\s*\*", text) or re.search(r"\*\s*([\d.]+)$", text)
    if match:
        factor = float(match[1]) if re.fullmatch(r"\d+\.?\d*", match[1]) else 0.0
        if factor > 0:
            return scale / factor, []
    if re.search(r"[-+*/%]", text):
        return scale, ["the query computes; fluidq reads the metric in it as it is"]
    return scale, []


def _over_replicas(text: str, bare: str, source: Source, target_type: str) -> list[str]:
    """Where the query's way over replicas and time is not the law's."""
    out = []
    match = _AGGREGATE.search(bare)
    way = match[1] if match else "avg" if source.mean else ""
    if _MEAN.search(bare):
        way = "avg"
    summed = target_type == "AverageValue" or METRICS[source.signal].summed
    if way in ("max", "min", "count", "topk", "bottomk", "quantile"):
        out.append(f"the query takes {way} over replicas; fluidq reads the {'sum' if summed else 'mean'}")
    elif way == "avg" and summed:
        out.append("the metric is a mean over replicas; fluidq reads their sum with this target type")
    elif way == "sum" and not summed:
        out.append("the query sums over replicas; fluidq reads the mean with this target type")
    if "histogram_quantile" in text:
        out.append("a percentile; a fluid has the mean only")
    if "_over_time" in text:
        out.append("the query's own window over time is not modelled")
    return out
