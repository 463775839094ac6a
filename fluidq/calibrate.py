"""Measurements to a deployment: the rates, sizes and delays of a fleet, each with its error and what it rests on."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fluidq._calibration import STEP_TERMS, UNITS, WORDS, Calibration, Parameter
from fluidq._calibration_rows import Collected, Counts, Rows, collect, rate_law, step_law, time_law
from fluidq._errors import InputError, refuse
from fluidq._fit import WEAK, Fit, Part, fit, t_quantile
from fluidq.deployment import Deployment
from fluidq.measurements import Measurements
from fluidq.units import Number

LEVEL = 0.95
OUTLIER = 0.5  # Huber's weight below which a row is called one
SERVED = 0.95  # of what was offered: less is overload


def calibrate(
    tables: Measurements | Sequence[Measurements],
    *,
    base: Deployment | None = None,
    prefill_worker: Number | None = None,
    decode_worker: Number | None = None,
    prefill_gpus: Number | None = None,
    decode_gpus: Number | None = None,
    accept: Number = 1.0,
    nic: Number | None = None,
    level: Number = LEVEL,
) -> Calibration:
    """The parameters of a fleet that the measurements tell, by robust least squares with standard errors.

    Equations, each fitted to the rows that it holds for:

    - t_step = a + b B + c B context (D07), B measured or by Little, context by D05;
    - prefill time = fixed + computed tokens / (GPUs of a worker * r_P), and rate per GPU = r_P in windows in which
      work always waited: together; from TTFT only where there is neither;
    - B = sequences per GPU in windows in which work for decode always waited;
    - KV bytes = kappa * tokens; time of a transfer = latency + bytes / rate; hit rate and cold start as means.

    Args:
        tables: what the readers returned, of one fleet.
        base: a deployment whose values stand where the data cannot tell a term, and whose names are written out.
        prefill_worker, decode_worker: GPUs per worker; default those of `base`.
        prefill_gpus, decode_gpus: GPUs of each pool, where the files do not say.
        accept: output tokens per step, where the files do not say.
        nic: nominal rate of one link [B/s], for its efficiency; default that of `base`.
        level: of the intervals.

    Raises:
        InputError: no table tells anything, profiles of several worker sizes without a choice, a count out of range.
    """
    listed = [tables] if isinstance(tables, Measurements) else list(tables)
    if not 0.5 <= level < 1:
        raise refuse("level", level, "a share in [0.5, 1)")
    given = {"prefill_worker": prefill_worker, "decode_worker": decode_worker, "prefill_gpus": prefill_gpus,
             "decode_gpus": decode_gpus, "accept": accept, "nic": nic}  # fmt: skip
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise refuse(name, value, "a number > 0")
    if base is not None:
        prefill_worker = base.gpus_per_prefill_worker if prefill_worker is None else prefill_worker
        decode_worker = base.gpus_per_decode_worker if decode_worker is None else decode_worker
        nic = base.nic if nic is None and math.isfinite(base.nic) else nic
    counts = Counts(prefill_worker, decode_worker, prefill_gpus, decode_gpus, accept)
    rows = collect(listed, counts)
    out = _Found(float(level), base)
    out.step(rows)
    out.prefill(rows)
    out.batch(rows)
    out.proportional("hit", rows.hit)
    out.no_hit(rows)
    out.proportional("cold_start", rows.cold_start)
    out.proportional("kappa_store", rows.kappa)
    out.link(rows.link, nic)
    load = _load(listed, out.warnings)
    if not out.parameters and not load:
        raise InputError(
            f"{', '.join(m.source for m in listed) or 'no file'}: nothing to calibrate: no row has a step time with "
            f"its batch, a prefill time, a transfer, a hit rate or a cold start. {' '.join(rows.told)}".strip()
        )
    order = [name for name in WORDS if name in out.parameters]
    return Calibration(
        parameters={name: out.parameters[name] for name in order},
        load=load,
        warnings=tuple(out.warnings),
        notes=tuple(rows.told),
        sources=tuple(dict.fromkeys(m.source for m in listed)),
        level=float(level),
        base=base,
    )


class _Found:
    """Parameters as they are found, and the warnings on the way."""

    def __init__(self, level: float, base: Deployment | None):
        self.level, self.base = level, base
        self.parameters: dict[str, Parameter] = {}
        self.warnings: list[str] = []

    def step(self, rows: Collected) -> None:
        r = rows.step
        if not r.size:
            return
        time, batch, context = r.values(), r.column("batch"), r.column("context")
        typical = float(np.median(time))
        start = {
            "t_step_a": typical / 2,
            "t_step_b": typical / 4 / float(np.median(batch)),
            "t_step_c": typical / 4 / float(np.median(batch * context)),
        }
        fallback = {n: float(getattr(self.base, n)) for n in STEP_TERMS} if self.base else {}
        found = fit([_part(step_law, r)], start, sacrifice=("t_step_c", "t_step_b", "t_step_a"), fallback=fallback)
        reasons = {"t_step_c": _same(context, "context", "tok"), "t_step_b": _same(batch, "batch", "seq per GPU")}
        self._take(found, [r], {n: n for n in STEP_TERMS}, reasons, "step times")

    def prefill(self, rows: Collected) -> None:
        r, busy = rows.prefill, rows.rate
        if not r.size and not busy.size and rows.first_token.size:
            r = rows.first_token
            rows.tell("r_P is from TTFT, which holds any wait: at load it is too low")
        if r.size:
            start = _start(r)
            parts, used = [_part(time_law, r)], [r]
            found = fit(parts, start, sacrifice=("fixed",))
            if busy.size and self._agree(found, busy):
                used.append(busy)
                found = fit([*parts, _part(rate_law, busy)], start, sacrifice=("fixed",))
            elif busy.size:
                self.proportional("r_P", busy)
                return
            same = _same(r.column("amount"), "computed input length per GPU", "tok")
            names = {"r_P": "rate", "prefill_overhead": "fixed"}
            self._take(found, used, names, {"prefill_overhead": same}, "prefill times")
        elif busy.size:
            self.proportional("r_P", busy)
        elif "r_P" in rows.least:
            self._bound("r_P", rows.least["r_P"], "prefill never had work waiting all through a window")

    def _agree(self, by_time: Fit, busy: Rows) -> bool:
        """Whether prefill times and the throughput of busy windows have one rate: within 5 %, or four errors."""
        by_rate = fit([_part(rate_law, busy)], {"rate": float(np.median(busy.values()))})
        one, other = by_time.values["rate"], by_rate.values["rate"]
        spread = math.hypot(by_time.errors.get("rate", 0.0), by_rate.errors["rate"])
        if abs(one - other) <= max(0.05 * other, 4 * spread if math.isfinite(spread) else 0.0):
            return True
        self.warnings.append(
            f"prefill times make {one:.5g} tok/s per GPU, the windows in which work always waited {other:.5g}: the "
            f"latter is taken (prompts that share a step count its time each; hits or GPUs may be other than given)"
        )
        return False

    def batch(self, rows: Collected) -> None:
        if rows.batch.size:
            self.proportional("batch", rows.batch)
        elif rows.limit is not None:
            value = rows.limit
            self.parameters["batch"] = Parameter("batch", value, 0.0, value, value, 0, "configured", True)
        elif "batch" in rows.least:
            self._bound("batch", rows.least["batch"], "decode never had work waiting all through a window")

    def no_hit(self, rows: Collected) -> None:
        """Windows without a hit have no place in relative errors: the mean over all tokens counts them."""
        if not rows.no_hit:
            return
        p = self.parameters.get("hit")
        hits = float(np.concatenate(rows.hit.weight).sum()) if rows.hit.size else 0.0
        share = hits / (hits + rows.no_hit)
        if p is None:
            self.parameters["hit"] = Parameter("hit", 0.0, 0.0, 0.0, 0.0, 0, "fitted", True)
        else:
            self.parameters["hit"] = replace(
                p, value=p.value * share, error=p.error * share, low=p.low * share, high=p.high * share
            )
            self.warnings.append(
                f"{1 - share:.0%} of the tokens were in rows without any cache hit: the hit rate changes"
            )

    def proportional(self, name: str, r: Rows) -> None:
        if r.size:
            start = {"rate": float(np.median(r.values() / r.column("amount")))}
            self._take(fit([_part(rate_law, r)], start), [r], {name: "rate"}, {}, WORDS[name])

    def link(self, r: Rows, nic: Number | None) -> None:
        if not r.size:
            return
        found = fit([_part(time_law, r)], _start(r), sacrifice=("fixed",))
        same = _same(r.column("amount"), "size of a transfer", "B")
        names = {"link_rate": "rate", "link_latency": "fixed"}
        self._take(found, [r], names, {"link_latency": same}, "transfer times")
        if nic is not None:
            p = self.parameters["link_rate"]
            share = {key: getattr(p, key) / nic for key in ("value", "error", "low", "high")}
            self.parameters["link_efficiency"] = replace(p, name="link_efficiency", **share)
            if share["value"] > 1.05:
                self.warnings.append(
                    f"the link carried {share['value']:.0%} of its nominal {nic:g} B/s: a transfer uses several links, "
                    f"or the nominal rate is another"
                )

    def _bound(self, name: str, value: float, why: str) -> None:
        self.parameters[name] = Parameter(name, value, math.inf, value, math.inf, 0, "bound", False)
        self.warnings.append(f"{WORDS[name]} is not determined by this data: {why}; it is at least {value:.5g}")

    def _take(
        self, found: Fit, used: Sequence[Rows], names: Mapping[str, str], reasons: Mapping[str, str], what: str
    ) -> None:
        """The parameters `names` (ours -> that of the law) of a fit, and what is to be said of it."""
        size = sum(r.size for r in used)
        reach = t_quantile(0.5 + self.level / 2, found.freedom) if found.freedom > 0 else math.inf
        for name, own in names.items():
            value = found.values[own]
            if own in found.fixed:
                self.parameters[name] = Parameter(name, value, math.inf, -math.inf, math.inf, size, "held", False)
                why = reasons.get(name) or found.fixed[own]
                held = f"held at {value:.4g} ({'from the base' if value else 'no base gives another'})"
                self.warnings.append(f"{WORDS[name]} is not determined by this data ({why}); {held}")
                continue
            error = found.errors[own]
            known = error <= WEAK * abs(value)
            low, high = (
                (value - reach * error, value + reach * error) if math.isfinite(error) else (-math.inf, math.inf)
            )
            self.parameters[name] = Parameter(name, value, error, low, high, size, "fitted", known)
            if not known and math.isfinite(error):
                self.warnings.append(
                    f"{WORDS[name]} is not determined by this data: {value:.3g} +- {error:.2g} {UNITS[name]}"
                )
        if found.freedom <= 0:
            self.warnings.append(f"{what}: as many terms as rows ({size}): no error can be given")
        if found.widened > 1.05:
            self.warnings.append(
                f"{what}: the errors of neighbouring rows are correlated; standard errors are {found.widened:.1f} "
                f"times those of independent rows"
            )
        places = [place for r in used for place in r.source]
        out = np.flatnonzero(found.weights < OUTLIER)
        if out.size:
            worst = out[np.argsort(found.weights[out])[:3]]
            named = "; ".join(f"{os.path.basename(places[i][0])}, line {places[i][1]}" for i in worst)
            self.warnings.append(f"{what}: {out.size:,} of {size:,} rows are outliers with a bounded pull ({named})")


def _part(law: Any, r: Rows) -> Part:
    weight = np.concatenate(r.weight)
    return Part(
        model=law,
        data={name: r.column(name) for name in r.columns},
        observed=r.values(),
        weight=weight / weight.mean(),
        sequence=np.concatenate(r.sequence),
    )


def _start(r: Rows) -> dict[str, float]:
    """Where a fit of the time law begins: of the right size, both terms > 0."""
    seconds = r.values()
    return {"rate": float(np.median(r.column("amount") / seconds)), "fixed": float(seconds.min()) / 4}


def _same(values: np.ndarray, words: str, unit: str) -> str:
    """The words for a quantity that hardly varies; empty where it does."""
    mean = float(values.mean())
    return f"{words} is {mean:,.4g} {unit} in every row" if np.ptp(values) <= 1e-3 * mean else ""


def _load(tables: Sequence[Measurements], warnings: list[str]) -> dict[str, float]:
    """Mean offered and served rate over time, of the rows that say how long they are."""
    load = {}
    for name in ("offered", "served"):
        total = span = 0.0
        for m in tables:
            for one in (m, m.detail):
                if one is None or one.kind not in ("runs", "windows"):
                    continue
                rate, seconds = one.get(f"{name}_rate"), one.get("duration")
                good = ~np.isnan(rate) & (seconds > 0)
                total += float((rate[good] * seconds[good]).sum())
                span += float(seconds[good].sum())
        if span:
            load[name] = total / span
    if "offered" in load and load.get("served", math.inf) < SERVED * load["offered"]:
        warnings.append(
            f"{load['served']:.4g} requests/s were served of {load['offered']:.4g} offered: overload; the served rate "
            f"is a capacity, the offered one the load"
        )
    elif "served" in load and "offered" not in load:
        warnings.append("only served requests were counted: in overload more were offered")
    return load
