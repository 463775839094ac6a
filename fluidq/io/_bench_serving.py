"""Results of `vllm bench serve` and of SGLang's `bench_serving`: milliseconds in summaries, seconds in arrays."""

import math
from typing import Any

import numpy as np

from fluidq._errors import InputError
from fluidq.io._bench_fields import SECONDS, Fields, agree, consistent, latencies, overlap
from fluidq.measurements import Measurements

VLLM, SGLANG = "vLLM bench serve JSON", "SGLang bench_serving JSONL"
NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl"}
LATENCIES = {VLLM: {**NAMES, "e2el": "e2el"}, SGLANG: {**NAMES, "e2e_latency": "e2el"}}
_SGLANG_ONLY = {"total_output_tokens_retokenized", "mean_e2e_latency_ms", "total_input_text_tokens", "accept_length"}
ARRAYS = ("input_lens", "output_lens", "ttfts")


def recognise(record: dict[str, Any]) -> str | None:
    """The format of one run, told from its fields."""
    if {"duration", "completed", "total_input_tokens"} <= record.keys():
        return SGLANG if _SGLANG_ONLY & record.keys() else VLLM
    return None


def read(file: str, format: str, records: list[tuple[int, dict[str, Any]]], time_unit: str | None) -> Measurements:
    """The runs of a file as rows of (line, object); the requests behind them, where they were saved, as `detail`."""
    rows, dropped, notes, details = [], [], [], []
    facts: dict[str, str] = {}
    factor = SECONDS[time_unit or "ms"]
    if time_unit == "s":
        notes.append("times in the summaries were read as seconds, as stated; the format writes milliseconds")
    for line, record in records:
        fields = Fields(f"{file}, line {line}", record)
        if fields.number("completed") == 0:
            dropped.append((line, "no request was completed"))
            continue
        row = _run(fields, format, factor)
        rows.append((line, row))
        facts |= _facts(fields)
        if all(name in fields for name in ARRAYS):
            details += _requests(fields, row)
    if not rows:
        raise InputError(f"{file}: no run completed a request; there is nothing to measure.")
    if any(math.isnan(row["offered_rate"]) for _, row in rows):
        notes.append("request_rate is unlimited: the load followed the service, so no offered rate is known")
    detail = Measurements.from_rows(file, format, "requests", details, facts=facts) if details else None
    return Measurements.from_rows(
        file, format, "runs", rows, facts=facts, dropped=tuple(dropped), notes=tuple(notes), detail=detail
    )


def _run(fields: Fields, format: str, factor: float) -> dict[str, float]:
    duration, completed = fields.number("duration"), fields.number("completed")
    if not (duration > 0 and completed > 0):
        raise InputError(
            f"{fields.where}: duration and completed must be > 0; they are {duration:g} and {completed:g}."
        )
    tokens_in, tokens_out = fields.number("total_input_tokens"), fields.number("total_output_tokens")
    row = {
        "duration": duration,
        "requests": completed,
        "failed": fields.number("failed"),
        "offered_rate": fields.number("request_rate", unlimited=True),
        "served_rate": completed / duration,
        "concurrency": fields.number("max_concurrency"),
        "isl": tokens_in / completed,
        "osl": tokens_out / completed,
        "input_rate": tokens_in / duration,
        "output_rate": tokens_out / duration,
        "accept": fields.number("accept_length"),
    }
    sent = fields.number("num_prompts")
    if math.isnan(row["failed"]) and sent >= completed:
        row["failed"] = sent - completed
    agree(fields, "request_throughput", fields.number("request_throughput"), row["served_rate"], 0.02)
    both = row["input_rate"] + row["output_rate"]
    for total in ("total_token_throughput", "total_throughput"):
        agree(fields, total, fields.number(total), both, 0.02)
    agree(fields, "output_throughput", fields.number("output_throughput"), row["output_rate"], 0.02)
    row |= latencies(fields, LATENCIES[format], "{statistic}_{name}_ms", factor)
    consistent(fields.where, row)
    return row


def _facts(fields: Fields) -> dict[str, str]:
    found = {"model": fields.text("model_id"), "backend": fields.text("backend")}
    info = fields.data.get("server_info")
    if isinstance(info, dict):
        server = Fields(fields.where, info)
        found["model"] = found["model"] or server.text("model_path")
        mode = server.text("disaggregation_mode")
        if mode is not None:
            found["topology"] = "aggregated" if mode == "null" else "disaggregated"
    return {name: value for name, value in found.items() if value}


def _requests(fields: Fields, run: dict[str, float]) -> list[tuple[int, dict[str, float]]]:
    """The single requests; those with an error or without a first token are left out."""
    isl, osl, ttft = (fields.array(name) for name in ARRAYS)
    gaps = fields.lists("itls")
    errors = fields.data.get("errors")
    start = fields.array("start_times")
    assert isl is not None
    assert osl is not None
    assert ttft is not None
    sizes = {name: len(part) for name, part in
             (("input_lens", isl), ("output_lens", osl), ("ttfts", ttft), ("itls", gaps), ("errors", errors),
              ("start_times", start)) if part is not None}  # fmt: skip
    if len(set(sizes.values())) != 1:
        raise InputError(f"{fields.where}: the arrays have different lengths {sizes}; they must be one per request.")
    good = (ttft > 0) & (osl > 0) & (isl > 0)
    if isinstance(errors, list):
        good &= np.array([not error for error in errors], dtype=bool)
    decode = np.array([math.fsum(g) for g in gaps]) if gaps else np.full(ttft.shape, math.nan)
    chunk = np.array([math.fsum(g) / len(g) if g else math.nan for g in gaps]) if gaps else decode
    if good.any():
        agree(fields, "mean TTFT (s)", run.get("ttft", math.nan), float(ttft[good].mean()), 0.1)
    running = context = np.full(ttft.shape, math.nan)
    if start is not None and gaps and good.any():
        begin = np.where(good, start + ttft, 0.0)
        end = np.where(good, begin + decode, 0.0)
        running, context = overlap(begin, end, np.where(good, isl + osl / 2, 0.0))
    rows = []
    for i in np.flatnonzero(good):
        row = {"isl": isl[i], "osl": osl[i], "ttft": ttft[i], "running": running[i], "context": context[i]}
        if decode[i] > 0 and osl[i] > 1:
            row |= {"tpot": decode[i] / (osl[i] - 1), "itl": chunk[i], "e2el": ttft[i] + decode[i]}
        if start is not None:
            row["time"] = start[i] - np.nanmin(start)
        rows.append((int(i), {name: float(value) for name, value in row.items() if not math.isnan(value)}))
    return rows
