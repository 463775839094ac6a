"""Which rows of which measurements tell a parameter, and the laws that they obey."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Array, Float64

from fluidq._errors import InputError
from fluidq.formulas import requests
from fluidq.measurements import Measurements
from fluidq.units import Number

Values = Float64[np.ndarray, " rows"]
Parameters = Mapping[str, Any]
Data = Mapping[str, Any]


# The laws: few, and with names of their own, so that a compiled fit is used again for another parameter.


def step_law(p: Parameters, d: Data) -> Array:
    """Decode step time [s]: D07's a + b B + c B theta."""
    law = {name: p[name] for name in ("t_step_a", "t_step_b", "t_step_c")}
    return requests.step_time(**law, B=d["batch"], theta_ctx=d["context"])


def time_law(p: Parameters, d: Data) -> Array:
    """Time of a piece of work [s]: a fixed time, and its amount (tokens per GPU, bytes) at a rate."""
    return p["fixed"] + d["amount"] / p["rate"]


def rate_law(p: Parameters, d: Data) -> Array:
    """What is `rate` times something known: 1 for a plain mean, tokens for bytes per token."""
    return p["rate"] * d["amount"]


@dataclass
class Rows:
    """Rows for one law, collected over files: columns, what was observed, weights, and where each row is from."""

    columns: dict[str, list[Values]] = field(default_factory=dict)
    observed: list[Values] = field(default_factory=list)
    weight: list[Values] = field(default_factory=list)
    source: list[tuple[str, int]] = field(default_factory=list)
    sequence: list[np.ndarray] = field(default_factory=list)

    def add(
        self, m: Measurements, observed: Values, weight: Values | None = None, where: Any = True, **columns: Values
    ) -> None:
        """The rows of `m` in which everything is known and > 0, and `where` holds."""
        parts = {**columns, "observed": observed}
        good = np.full(m.rows, True) & where
        for values in parts.values():
            good &= np.isfinite(values) & (values > 0)
        if weight is not None:
            good &= np.isfinite(weight) & (weight > 0)
        if not good.any():
            return
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(values[good])
        if "amount" not in columns and "batch" not in columns:
            self.columns.setdefault("amount", []).append(np.ones(int(good.sum())))
        self.observed.append(observed[good])
        self.weight.append(np.ones(int(good.sum())) if weight is None else weight[good])
        self.source += [(m.source, int(line)) for line in m.lines[good]]
        self.sequence.append(np.full(int(good.sum()), len(self.sequence)))

    @property
    def size(self) -> int:
        return len(self.source)

    def column(self, name: str) -> Values:
        return np.concatenate(self.columns[name])

    def values(self) -> Values:
        return np.concatenate(self.observed)


@dataclass(frozen=True)
class Counts:
    """What files do not say of themselves; None where it is not known."""

    prefill_worker: Number | None = None
    decode_worker: Number | None = None
    prefill_gpus: Number | None = None
    decode_gpus: Number | None = None
    accept: Number = 1.0


@dataclass
class Collected:
    """All rows, by law; `least` holds bounds that no row reaches; `told` sentences about what was done."""

    step: Rows = field(default_factory=Rows)
    prefill: Rows = field(default_factory=Rows)
    first_token: Rows = field(default_factory=Rows)
    rate: Rows = field(default_factory=Rows)
    batch: Rows = field(default_factory=Rows)
    hit: Rows = field(default_factory=Rows)
    no_hit: float = 0.0
    cold_start: Rows = field(default_factory=Rows)
    kappa: Rows = field(default_factory=Rows)
    link: Rows = field(default_factory=Rows)
    least: dict[str, float] = field(default_factory=dict)
    limit: float | None = None
    told: list[str] = field(default_factory=list)

    def tell(self, words: str) -> None:
        if words not in self.told:
            self.told.append(words)


def collect(tables: Sequence[Measurements], counts: Counts) -> Collected:
    """Every row of every table that tells something. Raises `InputError` where profiles of several worker sizes are
    mixed and no size is chosen."""
    out = Collected()
    for m in tables:
        for one in (m, m.detail):
            if one is None:
                continue
            if one.kind == "starts":
                out.cold_start.add(one, one.get("cold_start"))
                continue
            _prefill(one, counts, out)
            _decode(_finer(m) if one is m else one, one, counts, out)
            _transfer(one, out)
            _hit(one, out)
    return out


def _finer(m: Measurements) -> Measurements:
    """The requests behind a run, where they say how many ran beside each, else the run: not both."""
    return m.detail if m.detail is not None and m.kind == "runs" and "running" in m.detail.columns else m


def _filled(values: Values, other: Any) -> Values:
    return np.where(np.isnan(values), math.nan if other is None else other, values)


def _gpus(m: Measurements, pool: str, counts: Counts) -> Values:
    """GPUs of a pool: measured, or given, or its workers times the GPUs of one."""
    own = m.get(f"{pool}_gpus")
    worker = getattr(counts, f"{pool}_worker")
    if worker is not None:
        own = _filled(own, m.get(f"{pool}_workers") * worker)
    return _filled(own, getattr(counts, f"{pool}_gpus"))


def _chosen(m: Measurements, pool: str, counts: Counts) -> Any:
    """Rows of the chosen worker size; a profile of several sizes needs the choice, since rates per GPU differ."""
    sizes = m.get("worker_gpus")
    known = sorted({float(s) for s in sizes[~np.isnan(sizes)]})
    worker = getattr(counts, f"{pool}_worker")
    if m.kind != "profile" or not known:
        return True
    if worker is None:
        if len(known) > 1:
            text = ", ".join(f"{s:g}" for s in known)
            raise InputError(
                f"{m.source} holds workers of {text} GPUs, whose rates per GPU differ; choose one: "
                f"{pool}_worker= (--{pool}-worker)."
            )
        return True
    if float(worker) not in known:
        text = ", ".join(f"{s:g}" for s in known)
        raise InputError(
            f"{m.source} holds workers of {text} GPUs, none of {worker:g} ({pool}_worker, --{pool}-worker)."
        )
    return sizes == float(worker)


def _lengths(m: Measurements) -> tuple[Values, Values]:
    """Computed and stored input length of each row: less the cache hits, where the row says what they are."""
    isl, computed = m.get("isl"), m.get("isl_computed")
    return np.where(np.isnan(computed), isl * (1.0 - np.nan_to_num(m.get("hit"))), computed), isl


def _prefill(m: Measurements, counts: Counts, out: Collected) -> None:
    computed, _ = _lengths(m)
    one_worker = _filled(m.get("worker_gpus"), counts.prefill_worker)
    if "prefill_time" in m.columns:
        if np.isnan(one_worker).all():
            out.tell("prefill times were not used: the GPUs of a prefill worker are not known (--prefill-worker)")
        else:
            where = _chosen(m, "prefill", counts)
            out.prefill.add(m, m.get("prefill_time"), where=where, amount=computed / one_worker)
            if m.kind == "windows":
                out.tell(
                    "prefill times of a busy engine count prompts that share a step once each: r_P is then too low "
                    "where more than one ran at a time"
                )
    elif "ttft" in m.columns and m.kind in ("runs", "requests") and counts.prefill_worker is not None:
        out.first_token.add(m, m.get("ttft"), amount=computed / one_worker)
    rate = m.get("prefill_rate")
    gpus = _gpus(m, "prefill", counts)
    flow = np.where(np.isnan(m.get("computed_rate")), m.get("input_rate"), m.get("computed_rate"))
    rate = np.where(np.isnan(rate), flow / np.where(gpus > 0, gpus, math.nan), rate)
    if np.isnan(rate).all():
        return
    if m.kind == "windows":
        # As many waiting as there are workers, in every sample of the window: each has work all along.
        busy = m.get("waiting_least") >= np.fmax(1.0, m.get("prefill_workers"))
        out.rate.add(m, rate, where=busy)
    out.least["r_P"] = max(out.least.get("r_P", 0.0), float(np.nanmax(rate)))


def _decode(finer: Measurements, m: Measurements, counts: Counts, out: Collected) -> None:
    aggregated = m.facts.get("topology") == "aggregated"
    median = aggregated and "itl_p50" in finer.columns
    time = finer.get("itl_p50" if median else "itl")
    if aggregated:
        out.tell(
            f"{m.source} was measured on servers that prefill too: the {'median' if median else 'mean'} step is used, "
            f"which {'their pauses leave alone' if median else 'holds their pauses'}"
        )
    accept = _filled(finer.get("accept"), counts.accept)
    time = np.where(np.isnan(time), finer.get("tpot") * accept, time)
    gpus = _gpus(finer, "decode", counts)
    gpus = np.where(gpus > 0, gpus, math.nan)
    batch = finer.get("batch")
    batch = np.where(np.isnan(batch), finer.get("running") / gpus, batch)
    per_gpu = finer.get("decode_rate")
    per_gpu = np.where(np.isnan(per_gpu), finer.get("output_rate") / gpus, per_gpu)
    little = np.asarray(requests.batch_in_flight(decode_rate=per_gpu / accept, t_step=time))
    batch = np.where(np.isnan(batch), little, batch)
    if np.isnan(batch).all() and not np.isnan(time).all() and finer.kind in ("runs", "requests", "windows"):
        out.tell(f"step times of {m.source} were not used: the GPUs that decode are not known (--decode-gpus)")
    isl, osl = finer.get("isl"), finer.get("osl")
    context = finer.get("context")
    fixed = np.asarray(requests.mean_context_fixed(isl=isl, osl=osl))
    context = np.where(np.isnan(context), fixed, context)
    where = _chosen(finer, "decode", counts)
    out.step.add(finer, time, where=where, batch=batch, context=context)
    if finer.kind != "profile" and not np.isnan(batch).all():
        out.least["batch"] = max(out.least.get("batch", 0.0), float(np.nanmax(batch)))
        out.batch.add(finer, batch, where=finer.get("buffered_least") >= 1.0)
    limit = m.get("batch_limit")
    if not np.isnan(limit).all():
        out.limit = float(np.nanmax(limit))


def _transfer(m: Measurements, out: Collected) -> None:
    tokens = m.get("transfer_tokens")
    if "transfer_rate" in m.columns:
        out.kappa.add(m, m.get("transfer_rate"), amount=tokens)
    if "transfer_time" in m.columns:
        out.link.add(m, m.get("transfer_time"), amount=m.get("transfer_size"))


def _hit(m: Measurements, out: Collected) -> None:
    computed, isl = _lengths(m)
    hit = m.get("hit")
    if np.isnan(hit).all() and "isl_computed" in m.columns and m.kind != "profile":
        hit = 1.0 - computed / isl
    tokens = m.get("served_rate") * isl
    weight = np.where(np.isnan(tokens), 1.0, tokens)
    known = ~np.isnan(hit) & (weight > 0)
    out.no_hit += float(weight[known & (hit <= 0)].sum())
    out.hit.add(m, hit, weight=weight)
