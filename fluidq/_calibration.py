"""A calibration: parameters with their errors, and the scenario file that they make."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluidq.catalog import Figure
from fluidq.deployment import Deployment

WORDS = {
    "r_P": "prefill rate per GPU",
    "prefill_overhead": "fixed time of a prefill",
    "t_step_a": "t_step's constant term",
    "t_step_b": "t_step's batch term",
    "t_step_c": "t_step's context term",
    "batch": "decode sequences per GPU",
    "hit": "prefix-cache hit rate",
    "cold_start": "cold start",
    "kappa_store": "KV bytes per token, effective",
    "link_rate": "link rate of one transfer",
    "link_latency": "fixed time of a transfer",
    "link_efficiency": "share of the nominal link rate",
}
UNITS = {
    "r_P": "tok/s", "prefill_overhead": "s", "t_step_a": "s", "t_step_b": "s/seq", "t_step_c": "s/(seq tok)",
    "batch": "seq", "hit": "1", "cold_start": "s", "kappa_store": "B/tok", "link_rate": "B/s", "link_latency": "s",
    "link_efficiency": "1",
}  # fmt: skip
STEP_TERMS = ("t_step_a", "t_step_b", "t_step_c")


@dataclass(frozen=True)
class Parameter:
    """One figure in SI: its value, standard error and interval, the rows that it rests on, and how it was found.

    `how` is "fitted", "held" (the data cannot tell it: the base's value, or 0), "bound" (no row reaches it: at least
    this) or "configured". `determined` is whether the data tell it to better than half its value.
    """

    name: str
    value: float
    error: float
    low: float
    high: float
    rows: int
    how: str
    determined: bool

    @property
    def unit(self) -> str:
        return UNITS[self.name]

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        head = f"{WORDS[self.name]:<34} {self.value:>12.5g}{unit}"
        if self.how == "bound":
            return f"{head}  (at least: never reached)"
        if self.how != "fitted" or not math.isfinite(self.error):
            return f"{head}  ({self.how}{', no error: as many terms as rows' if self.how == 'fitted' else ''})"
        weak = "" if self.determined else "  NOT DETERMINED"
        return f"{head}  +- {self.error:.2g}, {self.low:.5g} to {self.high:.5g}, {self.rows:,} rows{weak}"


@dataclass(frozen=True)
class Calibration:
    """What the measurements say of a fleet.

    `parameters` by name (those that nothing tells are absent); `load` the offered and the served request rate [1/s]
    where measured, never one for the other; `warnings` what to beware of; `notes` what was done; `sources` the files.
    """

    parameters: Mapping[str, Parameter]
    load: Mapping[str, float]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    level: float
    base: Deployment | None = None

    def apply(self, base: Deployment) -> Deployment:
        """`base` with every parameter that the data determine, sources included."""
        given = {
            n: p for n, p in self.parameters.items() if p.how in ("fitted", "configured") and math.isfinite(p.value)
        }
        changes: dict[str, Any] = {n: given[n].value for n in ("r_P", "kappa_store") if n in given}
        if "batch" in given:
            changes["batch"] = given["batch"].value
        if "link_rate" in given:
            changes["nic"] = given["link_rate"].value
        if "t_step_a" in self.parameters:
            changes |= {n: self.parameters[n].value for n in STEP_TERMS}
        names = {"nic": "link_rate"}
        made = {
            "t_step" if n in STEP_TERMS else n: Figure(v, "calibrated", ", ".join(self.sources))
            for n, v in changes.items()
            if names.get(n, n) in self.parameters
        }
        return replace(base, **changes, sources={**base.sources, **made})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite error is None."""

        def number(x: float) -> float | None:
            return x if math.isfinite(x) else None

        return {
            "parameters": {
                n: {"value": p.value, "unit": p.unit, "standard_error": number(p.error), "low": number(p.low),
                    "high": number(p.high), "rows": p.rows, "how": p.how, "determined": p.determined}
                for n, p in self.parameters.items()
            },
            "level": self.level,
            "load": dict(self.load),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "sources": list(self.sources),
        }  # fmt: skip

    def to_toml(self) -> str:
        """A scenario file: the parameters that are known, in the keys that `size`, `simulate` and `tune` read.

        What is a bound only, or not determined, stands in a comment.
        """
        p = self.parameters
        heads = [f"Calibrated from {', '.join(self.sources)}.", *self.warnings]
        lines = [*(_comment(words) for words in heads), "", "[deployment]"]
        if self.base is not None:
            lines += [f"model = {json.dumps(self.base.model)}", f"gpu = {json.dumps(self.base.gpu)}"]
        else:
            lines.append('# model = "..." and gpu = "..." are not in the measurements: fill them in.')
        keys = (
            ("prefill_rate", "r_P", '"{:.9g}tok/s"'), ("kv_per_token", "kappa_store", '"{:.9g}B"'),
            ("nic", "link_rate", '"{:.9g}B/s"'), ("t_step_a", "t_step_a", "{:.9g}"), ("t_step_b", "t_step_b", "{:.9g}"),
            ("t_step_c", "t_step_c", "{:.9g}"),
        )  # fmt: skip
        for key, name, form in keys:
            if name in p:
                lines.append(_line(key, p[name], form.format(p[name].value)))
        if "batch" in p:
            lines.append(_line("batch", p["batch"], f"{max(1, round(p['batch'].value))}"))
        if self.base is not None:
            lines.append(f"gpus_per_prefill_worker = {self.base.gpus_per_prefill_worker}")
            lines.append(f"gpus_per_decode_worker = {self.base.gpus_per_decode_worker}")
        if "cold_start" in p:
            lines += ["", "[fleet]", _line("cold_start", p["cold_start"], f'"{p["cold_start"].value:.6g}s"')]
        if "hit" in p:
            lines += ["", "[workload]", _line("hit", p["hit"], f"{p['hit'].value:.6g}")]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        lines = [str(p) for p in self.parameters.values()] or ["nothing: no row tells a parameter"]
        for name, value in self.load.items():
            lines.append(f"{name + ' load':<34} {value:>12.5g} requests/s")
        lines += [f"warning: {w}" for w in self.warnings]
        lines += [f"note: {n}" for n in self.notes]
        return "\n".join(lines)


def _comment(words: str) -> str:
    """A comment of one line, whatever a file name holds."""
    return "# " + "".join(c if c.isprintable() else " " for c in words)


def _line(key: str, p: Parameter, value: str) -> str:
    if p.how == "bound":
        return f"# {key}: at least {value}; it was never reached, so it is not set here"
    error = f" # +- {p.error:.2g} {p.unit}" if p.how == "fitted" and math.isfinite(p.error) else f" # {p.how}"
    return f"{key} = {value}{error}{'' if p.determined else ', not determined by the data'}"
