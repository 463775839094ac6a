"""AIPerf's request records and summary, and GenAI-Perf's summary: each value carries its own unit."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fluidq._errors import InputError
from fluidq.io._bench_fields import FACTORS, SECONDS, Fields, consistent, overlap
from fluidq.io._files import short
from fluidq.measurements import Measurements, check

AIPERF_JSONL, AIPERF, GENAI_PERF = "AIPerf request JSONL", "AIPerf summary JSON", "GenAI-Perf summary JSON"

# Their names -> ours. Their inter-token latency is (latency - TTFT) / (tokens - 1): a time per output token.
METRICS = {
    "input_sequence_length": "isl",
    "output_sequence_length": "osl",
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2el",
}
RATES = {
    "request_throughput": "served_rate",
    "output_token_throughput": "output_rate",
    "request_count": "requests",
    "error_request_count": "failed",
    "benchmark_duration": "duration",
}
_AIPERF_ONLY = {"aiperf_version", "schema_version", "was_cancelled", "error_summary", "benchmark_id", "records"}


def recognise_record(record: dict[str, Any]) -> str | None:
    meta = record.get("metadata")
    return AIPERF_JSONL if isinstance(meta, dict) and "request_start_ns" in meta else None


def recognise_summary(data: dict[str, Any]) -> str | None:
    body = data.get("records") if isinstance(data.get("records"), dict) else data
    assert isinstance(body, dict)
    found = [body[name] for name in METRICS if isinstance(body.get(name), dict)]
    if found and all("unit" in entry and "avg" in entry for entry in found):
        return AIPERF if _AIPERF_ONLY & data.keys() else GENAI_PERF
    return None


def _value(where: str, name: str, entry: Any, key: str, time_unit: str | None) -> float:
    """The figure `key` of one metric in SI; NaN where there is none. A list (of gaps) gives its mean."""
    if not isinstance(entry, dict) or entry.get(key) is None:
        return math.nan
    value, unit = entry[key], entry.get("unit")
    fields = Fields(where, {})
    if isinstance(value, list):
        numbers = [fields.plain(f"{name}.{key}", v) for v in value]
        number = math.fsum(numbers) / len(numbers) if numbers else math.nan
    else:
        number = fields.plain(f"{name}.{key}", value)
    factor = FACTORS.get(unit) if isinstance(unit, str) else None
    if factor is None:
        raise InputError(f"{where}: {name} has the unit {short(unit)}; it must be one of {', '.join(FACTORS)}.")
    if time_unit is not None and METRICS.get(name) in ("ttft", "tpot", "itl", "e2el"):
        factor = SECONDS[time_unit]
    return number * factor


def read_records(file: str, records: Iterable[tuple[int, Any]], time_unit: str | None) -> Measurements:
    """One row per request of the profiling phase; `detail` is the run that they add up to.

    Times are subtracted as whole nanoseconds before they become floats: a float64 of an epoch is 256 ns wide.
    """
    kept: list[tuple[int, int, int, dict[str, float]]] = []
    dropped: list[tuple[int, str]] = []
    failed = malformed = 0
    for line, record in records:
        where = f"{file}, line {line}"
        meta = record.get("metadata") if isinstance(record, dict) else None
        if not isinstance(meta, dict) or not isinstance(record.get("metrics"), dict | None):
            malformed += 1
            dropped.append((line, "the row has no objects metadata and metrics"))
            continue
        phase = meta.get("benchmark_phase", "profiling")
        if phase != "profiling":
            dropped.append((line, f"the row is of the phase {short(phase)}, not of profiling"))
            continue
        if record.get("error") is not None or meta.get("was_cancelled"):
            error = record.get("error")
            kind = error.get("type") if isinstance(error, dict) else "cancelled"
            failed += 1
            dropped.append((line, f"the request failed: {short(kind)}"))
            continue
        start, stop = meta.get("request_start_ns"), meta.get("request_end_ns")
        if type(start) is not int or type(stop) is not int or not 0 <= start <= stop < 1 << 63:
            malformed += 1
            dropped.append((line, f"request_start_ns, request_end_ns are {short(start)}, {short(stop)}; they must be "
                                  f"whole numbers of ns in that order"))  # fmt: skip
            continue
        metrics = record["metrics"] or {}
        row = {ours: _value(where, theirs, metrics.get(theirs), "value", time_unit) for theirs, ours in METRICS.items()}
        if math.isnan(row["osl"]):
            row["osl"] = _value(where, "output_token_count", metrics.get("output_token_count"), "value", time_unit)
        lasted = (stop - start) / 1e9
        if math.isnan(row["e2el"]):
            row["e2el"] = lasted
        elif not lasted / 2 - 0.01 <= row["e2el"] <= lasted * 2 + 0.01:
            raise InputError(
                f"{where}: request_latency is {row['e2el']:g} s, but the time stamps are {lasted:g} s apart; its unit "
                f"is wrong: mend the file, or state the unit (time_unit, --time-unit)."
            )
        row = {name: value for name, value in row.items() if not math.isnan(value) and value > 0}
        for name in ("ttft", "tpot", "itl", "e2el"):
            if name in row:
                check(where, name, row[name])
        if row.get("ttft", 0.0) > 1.1 * lasted + 0.01:
            raise InputError(f"{where}: TTFT is {row['ttft']:g} s of a request of {lasted:g} s; its unit is wrong.")
        kept.append((line, start, stop, row))
    if not kept or malformed > len(kept):
        first = f" The first: line {dropped[0][0]}: {dropped[0][1]}." if dropped else ""
        raise InputError(
            f"{file}: {len(kept)} usable rows and {len(dropped)} others; there must be more usable.{first}"
        )
    return _records(file, kept, dropped, failed)


def _records(file: str, kept: list[Any], dropped: list[tuple[int, str]], failed: int) -> Measurements:
    first = min(start for _, start, _, _ in kept)
    last = max(stop for _, _, stop, _ in kept)
    times = np.array([(start - first) / 1e9 for _, start, _, _ in kept])
    ends = np.array([(stop - first) / 1e9 for _, _, stop, _ in kept])
    wait = np.array([row.get("ttft", 0.0) for *_, row in kept])
    context = np.array([row.get("isl", math.nan) + row.get("osl", math.nan) / 2 for *_, row in kept])
    known = ~np.isnan(context)
    running, around = overlap(np.minimum(times + wait, ends), ends, np.where(known, context, 0.0))
    rows = []
    for i, (line, _, _, row) in enumerate(kept):
        row = {"time": float(times[i]), **row, "running": float(running[i])}
        if known.all():
            row["context"] = float(around[i])
        rows.append((line, row))
    duration = (last - first) / 1e9
    requests = Measurements.from_rows(file, AIPERF_JSONL, "requests", rows)
    run = {
        "duration": duration,
        "requests": float(len(kept)),
        "failed": float(failed),
        **{name: mean for name in METRICS.values() if (mean := requests.mean(name)) is not None},
    }
    if duration > 0:
        run["served_rate"] = len(kept) / duration
        if "osl" in run:
            run["output_rate"] = run["osl"] * run["served_rate"]
        if "isl" in run:
            run["input_rate"] = run["isl"] * run["served_rate"]
    warm = sum("the phase" in reason for _, reason in dropped)
    notes = [f"{failed:,} requests failed"] if failed else []
    if warm:
        notes.append(f"{warm:,} rows of other phases than profiling (warm-up) were left out")
    whole = Measurements.from_rows(file, AIPERF_JSONL, "runs", [(kept[0][0], run)])
    return Measurements.from_rows(
        file, AIPERF_JSONL, "requests", rows, dropped=tuple(dropped), notes=tuple(notes), detail=whole
    )


def read_summary(file: str, format: str, data: dict[str, Any], time_unit: str | None) -> Measurements:
    """One row: the means, medians and 99th percentiles, each converted from its own unit."""
    where = f"{file}, line 1"
    body = data["records"] if isinstance(data.get("records"), dict) else data
    row: dict[str, float] = {}
    for theirs, ours in METRICS.items():
        for key, end in (("avg", ""), ("p50", "_p50"), ("p99", "_p99")):
            value = _value(where, theirs, body.get(theirs), key, time_unit)
            if ours in ("isl", "osl"):
                if not end:
                    row[ours] = value
            elif value > 0:
                check(f"{where}: {theirs}.{key}", ours + end, value)
                row[ours + end] = value
    for theirs, ours in RATES.items():
        row[ours] = _value(where, theirs, body.get(theirs), "avg", None)
    if math.isnan(row["duration"]) and row["served_rate"] > 0:
        row["duration"] = row["requests"] / row["served_rate"]
    for name, paths in {
        "concurrency": (("input_config", "loadgen", "concurrency"), ("input_config", "concurrency"),
                        ("input_config", "perf_analyzer", "stimulus", "concurrency")),
        "offered_rate": (("input_config", "loadgen", "request_rate"), ("input_config", "request_rate"),
                         ("input_config", "perf_analyzer", "stimulus", "request_rate")),
    }.items():  # fmt: skip
        row[name] = next((v for path in paths if not math.isnan(v := _at(where, data, path))), math.nan)
    consistent(where, row)
    notes = [] if time_unit is None else [f"times were read as {time_unit}, as stated"]
    names = _models(data)
    facts = {"model": names} if names else {}
    return Measurements.from_rows(file, format, "runs", [(1, row)], facts=facts, notes=tuple(notes))


def _at(where: str, data: Any, path: tuple[str, ...]) -> float:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return math.nan if data is None else Fields(where, {path[-1]: data}).number(path[-1], unlimited=True)


def _models(data: dict[str, Any]) -> str | None:
    config = data.get("input_config")
    if not isinstance(config, dict):
        return None
    endpoint = config.get("endpoint") if isinstance(config.get("endpoint"), dict) else config
    assert isinstance(endpoint, dict)
    for key in ("model_names", "model", "models"):
        value = endpoint.get(key)
        if isinstance(value, list) and value and isinstance(value[0], str):
            return value[0]
        if isinstance(value, str):
            return value
    return None
