"""Benchmark results as measurements: seven formats, told from their content, in their own units."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from fluidq._errors import InputError, unknown
from fluidq.io import _bench_aiperf as aiperf
from fluidq.io import _bench_points as points
from fluidq.io import _bench_serving as serving
from fluidq.io._bench_fields import SECONDS
from fluidq.io._files import WHOLE_BYTES, BadJson, PathLike, loads, pieces, read_json, short, text_lines
from fluidq.measurements import Measurements

FORMATS = (
    serving.VLLM,
    serving.SGLANG,
    aiperf.AIPERF_JSONL,
    aiperf.AIPERF,
    aiperf.GENAI_PERF,
    points.INFERENCEX,
    points.DYNAMO,
)
REMEDY = f"one of: {', '.join(FORMATS)}"


def detect(path: PathLike) -> str | None:
    """The format of a benchmark result or of saved Prometheus JSON, by content; None for anything else.

    Raises `InputError` only where the file cannot be read at all, or is an archive of arrays that is damaged.
    """
    from fluidq.io import prometheus

    file = os.fsdecode(path)
    head = next(pieces(file), b"")
    if head.startswith(b"PK\x03\x04"):
        return points.DYNAMO if b"prefill_isl.npy" in head or b"x_kv_usage.npy" in head else None
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        format, _ = _load(file)
    except InputError:
        return None
    return format or prometheus.detect(file)


def read_benchmark(path: PathLike, *, time_unit: str | None = None) -> Measurements:
    """The measurements of one result file, in SI.

    The formats and their own units: vLLM `bench serve` JSON and SGLang `bench_serving` JSONL (ms in summaries, s in
    arrays), AIPerf request JSONL and summary, GenAI-Perf summary (each value names its unit), InferenceX aggregate
    JSON (s), Dynamo profile npz (ms). `time_unit`, "ms" or "s", states another unit for the latencies; a note says so.

    Raises:
        InputError: naming file and line, for a file that is none of these or is damaged, a field that is no number, a
            latency that no service has or that contradicts the file's other figures (its unit is wrong).
    """
    file = os.fsdecode(path)
    if time_unit is not None and time_unit not in SECONDS:
        raise unknown("time_unit", str(time_unit), SECONDS)
    head = next(pieces(file), b"")
    if head.startswith(b"PK\x03\x04"):
        arrays = points.arrays_of(file)
        if not points.is_profile(arrays):
            raise InputError(f"{file} holds the arrays {short(sorted(arrays))}; it must be {REMEDY}.")
        return points.read_profile(file, arrays, time_unit)
    format, content = _load(file)
    if format in (serving.VLLM, serving.SGLANG):
        rows = _objects(file, content)
        result = serving.read(file, format, rows[0], time_unit)
        return _with_dropped(result, rows[1])
    if format == points.INFERENCEX:
        rows = _objects(file, content)
        return _with_dropped(points.read_points(file, rows[0], time_unit), rows[1])
    if format == aiperf.AIPERF_JSONL:
        return aiperf.read_records(file, _lenient(content), time_unit)
    if format in (aiperf.AIPERF, aiperf.GENAI_PERF):
        return aiperf.read_summary(file, format, next(iter(content))[1], time_unit)
    raise InputError(f"{file} is no benchmark result that fluidq knows; it must be {REMEDY}.")


def summary(path: PathLike) -> dict[str, Any]:
    """What `fluidq inspect` shows of a file that `detect` knows; raises `InputError` as the reader does."""
    from fluidq.io import prometheus

    if (format := detect(path)) is not None and format == prometheus.FORMAT:
        return prometheus.summary(path)
    return read_benchmark(path).summary()


Rows = Iterable[tuple[int, Any]]


def _load(file: str) -> tuple[str | None, Rows]:
    """The format and the (line, value) rows of a JSON or JSON-lines file; a line that is no JSON is a `BadJson`.

    Lines after the first are read as they are asked for.
    """
    lines = text_lines(file, line_limit=WHOLE_BYTES)
    number, first = next(((number, line) for number, line in lines if line.strip()), (0, ""))
    if not number:
        raise InputError(f"{file} is empty; it must be {REMEDY}.")
    value = _try(first)
    if isinstance(value, BadJson):
        value, lines = read_json(file), iter(())  # one value over several lines
    if isinstance(value, list):
        return _recognise(value[0] if value else None), enumerate(value, 1)
    rest = ((number, _try(line)) for number, line in lines if line.strip())
    return _recognise(value), itertools.chain([(number, value)], rest)


def _try(line: str) -> Any:
    try:
        return loads(line)
    except BadJson as bad:
        return bad


def _recognise(record: Any) -> str | None:
    """By the first object: no format mixes with another in one file."""
    if not isinstance(record, dict):
        return None
    return (
        aiperf.recognise_record(record)
        or aiperf.recognise_summary(record)
        or points.recognise(record)
        or serving.recognise(record)
    )


def _objects(file: str, rows: Rows) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, str]]]:
    """The rows that are objects of the file's format, and why the others are not."""
    good, dropped = [], []
    for line, value in rows:
        if isinstance(value, dict) and _recognise(value) is not None:
            good.append((line, value))
        else:
            reason = str(value) if isinstance(value, BadJson) else f"the row is {short(value)}, no result"
            dropped.append((line, reason))
    if len(dropped) > len(good):
        raise InputError(f"{file}, line {dropped[0][0]}: {dropped[0][1]} Over half of the rows are unusable.")
    return good, dropped


def _lenient(rows: Rows) -> Iterator[tuple[int, Any]]:
    for line, value in rows:
        yield line, {} if isinstance(value, BadJson) else value


def _with_dropped(result: Measurements, dropped: list[tuple[int, str]]) -> Measurements:
    both = tuple(sorted([*result.dropped, *dropped]))
    return dataclasses.replace(result, dropped=both) if dropped else result
