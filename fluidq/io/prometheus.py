"""Prometheus as workload, measurements and run-time state: from a server's HTTP API or from saved query JSON."""

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fluidq._errors import InputError, refuse, unknown
from fluidq.io import _prom_map
from fluidq.io._files import WHOLE_BYTES, BadJson, PathLike, loads, read_json, short, text_lines
from fluidq.io._prom_http import MOST_BYTES, TIMEOUT, Client, selector
from fluidq.io._prom_map import MetricMap, Pools
from fluidq.io._prom_observed import Observed as Observed
from fluidq.io._prom_observed import State as State
from fluidq.io._prom_read import FORMAT, Reader
from fluidq.io._prom_series import Series, Tally, join, parse
from fluidq.units import Number

STEP = 15.0  # s, the usual scrape interval
HOUR = 3600.0
NAMES_AT_ONCE = 40  # in one question: an address may not grow without end


def detect(path: PathLike) -> str | None:
    """`FORMAT` where the file holds Prometheus responses, else None."""
    try:
        return FORMAT if next(iter(_responses(os.fsdecode(path))), None) is not None else None
    except InputError:
        return None


def summary(path: PathLike) -> dict[str, Any]:
    """What `fluidq inspect` shows of saved responses."""
    seen = read_prometheus(path)
    out = seen.measurements.summary()
    out["format"] = FORMAT
    if seen.workload is not None:
        w = seen.workload
        out |= {"requests": w.requests, "duration_s": w.duration, "mean_isl": w.mean_isl, "mean_osl": w.mean_osl}
        out |= {"mean_isl_computed": w.mean_isl_computed, "peak_to_mean": float(w.rate.max() / w.rate.mean())}
    out |= {"load": seen.load, "origin_unix_s": seen.origin, "notes": list(seen.notes)}
    return out


def read_prometheus(
    source: PathLike | Sequence[PathLike],
    *,
    start: Number | None = None,
    end: Number | None = None,
    step: Number = STEP,
    window: Number | None = None,
    metrics: PathLike | None = None,
    product: str | None = None,
    select: Mapping[str, str] | None = None,
    pools: Mapping[str, Sequence[str]] | None = None,
    prefill_worker: Number | None = None,
    decode_worker: Number | None = None,
    timeout: Number = TIMEOUT,
    limit: int = MOST_BYTES,
) -> Observed:
    """Workload, measurements and state from a Prometheus server or from saved `query_range` JSON.

    Args:
        source: an http:// or https:// address, or one or more files of saved responses: one response, a list of them,
            one per line, or an object of NAME -> response whose names are metric names (or, for queries that compute,
            names of quantities in their SI units).
        start, end: Unix times [s] to ask the server for; default the last hour. Longer ranges are asked for in parts.
        step: of the query [s].
        window: of the result [s]; default 60 s, or four steps where that is longer.
        metrics: a metric map in place of the shipped `metrics.toml`.
        product: a table of that map, where the names of several are found; default all, front ends first.
        select: labels that every series must have, such as {"namespace": "llm"}.
        pools: {"prefill": patterns, "decode": patterns} for the label values of the two pools.
        prefill_worker, decode_worker: GPUs per worker, for figures per GPU.
        timeout, limit: of each answer of the server, in seconds and bytes.

    Raises:
        InputError: an address that is none or does not answer, a response that is none or too large, no known series,
            too little data for one window.
    """
    table = _prom_map.load(metrics)
    if product is not None and product not in table.products:
        raise unknown("product", product, table.products)
    if window is not None and not 0 < window < math.inf:
        raise refuse("window", window, "a time > 0 s")
    tally = Tally()
    labels = dict(select or {})
    address = source if isinstance(source, str) and "://" in source else None
    if address is not None:
        client = Client(address, timeout=float(timeout), limit=limit)
        series = _fetch(client, table, product, labels, start, end, float(step), tally)
        name = address
    else:
        files = [source] if isinstance(source, str | os.PathLike) else list(source)
        series = [s for file in files for s in _saved(os.fsdecode(file), tally)]
        name = ", ".join(os.fsdecode(file) for file in files)
    series = [s for s in join(series, tally) if all(s.labels.get(k) == v for k, v in labels.items())]
    where = _with(table.pools, pools)
    try:
        return Reader(name, table, product, where, series, tally).read(window, prefill_worker, decode_worker)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _with(default: Pools, given: Mapping[str, Sequence[str]] | None) -> Pools:
    if not given:
        return default
    for pool, patterns in given.items():
        if pool not in ("prefill", "decode"):
            raise unknown("pool", pool, ("prefill", "decode"))
        if isinstance(patterns, str) or not all(isinstance(p, str) and p for p in patterns):
            raise refuse(f"pools[{pool!r}]", patterns, "a list of patterns such as ['*prefill*']")
    sides = {pool: tuple(given.get(pool, getattr(default, pool))) for pool in ("prefill", "decode")}
    return Pools(labels=default.labels, **sides)


# Where series come from


def _fetch(
    client: Client,
    table: MetricMap,
    product: str | None,
    labels: Mapping[str, str],
    start: Number | None,
    end: Number | None,
    step: float,
    tally: Tally,
) -> list[Series]:
    stop = time.time() if end is None else float(end)
    begin = stop - HOUR if start is None else float(start)
    if not (math.isfinite(begin) and math.isfinite(stop) and 0 <= begin < stop < 1e11):
        raise refuse("start, end", (begin, stop), "Unix times in seconds, the start before the end")
    if not 1e-3 <= step <= stop - begin:
        raise refuse("step", step, f"from 0.001 s to the {stop - begin:g} s between start and end")
    wanted = table.series_names(product)
    there = set()
    for i in range(0, len(wanted), NAMES_AT_ONCE):
        there |= set(client.names(["|".join(map(re.escape, wanted[i : i + NAMES_AT_ONCE]))], begin, stop))
    found: list[Series] = []
    for name in (name for name in wanted if name in there):
        for answer in client.ranges(selector(name, labels), begin, stop, step):
            found += parse(f"{client.address}, {name}", answer, tally, name)
    return found


def _saved(file: str, tally: Tally) -> list[Series]:
    found = []
    for where, name, response in _responses(file):
        found += parse(where, response, tally, name)
    if not found:
        raise InputError(f"{file} holds no samples; save a query_range response of the series.")
    return found


def _responses(file: str) -> list[tuple[str, str | None, Any]]:
    """(where, name or None, response) of each response in a file; raises `InputError` where there is none."""
    lines = [(n, line) for n, line in text_lines(file, line_limit=WHOLE_BYTES) if line.strip()][:100_000]
    if not lines:
        raise InputError(f"{file} is empty; it must be Prometheus responses.")
    try:
        rows = [(f"{file}, line {n}", loads(line)) for n, line in lines]
    except BadJson:
        rows = [(file, read_json(file))]
    out: list[tuple[str, str | None, Any]] = []
    for where, value in rows:
        if isinstance(value, list):
            out += [(f"{where}, response {i}", None, one) for i, one in enumerate(value)]
        elif _is_response(value):
            out.append((where, None, value))
        elif isinstance(value, dict):
            out += [(f"{where}, {short(name)}", name, one) for name, one in value.items()]
        else:
            out.append((where, None, value))
    if not out or not all(_is_response(one) for *_, one in out):
        raise InputError(f"{file} is no Prometheus query_range or query response, nor several of them.")
    return out


def _is_response(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    data = value.get("data", value)
    return value.get("status") == "error" or (isinstance(data, dict) and {"resultType", "result"} <= data.keys())
