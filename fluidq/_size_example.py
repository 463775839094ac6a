"""The article's worked example, GLM-5.2 on B200: every figure from the catalogue, and with the corrections beside it.

The article takes 100 % of the roofline and a cache in bf16. Measured prefill is 10,830 tok/s per GPU (B300, NVFP4),
19 % of the FP8 peak figure, and a cache in fp8 has 47,700 B per token.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq import catalog
from fluidq._bounds import COLD_STARTS, columns
from fluidq._size_buffer import LEASES
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.formulas import aggregated, buffer, fabric, memory
from fluidq.kv import kv_bytes, parameters
from fluidq.units import Number

# The article's figure: half-full buffer of 150 GB, and a prompt of 8K tokens.
_BUFFER, _PROMPT = 150e9, 8192
_PIPELINED = 1e9  # chunks without number: the limit of D25


@dataclass(frozen=True)
class Line:
    """One figure: as published, ours from the catalogue, and with the measured rate and an fp8 cache."""

    name: str
    unit: str
    published: float
    ours: float
    corrected: Number | None
    tolerance: float
    note: str = ""

    @property
    def error(self) -> float:
        """Relative to the published figure."""
        return self.ours / self.published - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "published": self.published,
            "ours": self.ours,
            "error": self.error,
            "tolerance": self.tolerance,
            "corrected": self.corrected,
            "note": self.note,
        }


@dataclass(frozen=True)
class Example:
    """The lines of the example; `holds` where every published figure is ours within its rounding."""

    lines: tuple[Line, ...]

    @property
    def holds(self) -> bool:
        """Whether every figure is within its tolerance."""
        return all(abs(line.error) <= line.tolerance for line in self.lines)

    def __getitem__(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {"holds": self.holds, "lines": [line.to_dict() for line in self.lines]}

    def __str__(self) -> str:
        rows = [("figure", "article", "ours", "error", "corrected", "")]
        for x in self.lines:
            corrected = "" if x.corrected is None else f"{x.corrected:,.4g}"
            unit = f"{x.unit}; {x.note}" if x.note else x.unit
            rows.append((x.name, f"{x.published:,.5g}", f"{x.ours:,.5g}", f"{x.error:+.2%}", corrected, unit))
        return (
            "The article's worked example: GLM-5.2 on B200, 400 Gb/s per GPU\n"
            "corrected: prefill as measured (NVFP4 on B300) instead of 100 % of peak, and the cache in fp8\n\n"
            f"{columns(rows)}"
        )


def worked_example() -> Example:
    """Every figure of the article's example, computed from the catalogue's entries."""
    d = Deployment.preset("GLM-5.2", "B200", nic="400Gbps")
    m, g = catalog.model("GLM-5.2"), catalog.gpu("B200")
    assert m.architecture is not None
    measured = next(p.figure.value for p in m.prefill if p.gpu == "B300")
    small = next(k.value for k in m.kv if k.label.startswith("fp8, 78 x 576"))
    rates, sizes = (d.r_P, measured), (d.kappa_store, small)
    flow, slow = (
        float(fabric.transfer_flow(r_P=r, kappa_store=k, hit=0.0, hit_decode=0.0))
        for r, k in zip(rates, sizes, strict=True)
    )
    cached = Traffic.of(_PROMPT, 1024, hit=0.9)
    ends = [{"r_P": r, "kappa_store": k} for r, k in zip(rates, sizes, strict=True)]
    count = parameters(m.architecture)

    def line(
        name: str,
        unit: str,
        published: Number,
        ours: Number,
        corrected: Number | None = None,
        half: Number = 0.0,
        note: str = "",
    ) -> Line:
        return Line(name, unit, float(published), float(ours), corrected, half / abs(published) + 1e-9, note)

    def both(formula: Any, scale: float = 1.0, **rest: float) -> tuple[float, float]:
        first, second = (float(formula(**end, **rest)) * scale for end in ends)
        return first, second

    kept = [k.value for k in m.kv if k.label.startswith("bf16")]
    bf16 = float(np.asarray(kv_bytes(m.architecture, "bf16").used))
    margin = both(fabric.fabric_margin, nic=d.nic, hit=0.0, hit_decode=0.0)
    full = both(fabric.critical_hit_rate, nic=d.nic, hit_decode=0.0)
    egress = both(fabric.transfer_flow, 1e-9, hit=cached.hit, hit_decode=0.0)
    lines = [
        line("total parameters", "1e9", 744, count.total / 1e9, None, 1.0, "counted from the architecture"),
        line("active parameters", "1e9", 40, count.active / 1e9, None, 0.5, "counted; the article rounds"),
        line("FP8 peak", "PFLOP/s", 4.5, g.peaks["fp8"].value / 1e15, None),
        line("HBM", "GB", 192, g.hbm.value / 1e9, None),
        line("HBM rate", "TB/s", 8, g.hbm_rate.value / 1e12, None),
        line("NIC", "GB/s", 50, d.nic / 1e9, None, note="400 Gb/s"),
        line("KV per token", "kB", 95, bf16 / 1e3, small / 1e3, 0.5, "bf16, counted; corrected: fp8"),
        line("KV per token, supporting figures", "B", 94_720, min(kept), small, note="19 indexer keys"),
        line("prefill rate", "tok/s/GPU", 56_250, d.r_P, measured, note="100 % of peak; corrected: measured"),
        line("KV flow", "GB/s per prefill GPU", 5.34, flow / 1e9, slow / 1e9, 0.005),
        line("link margin", "1", 9.36, margin[0], margin[1], 0.005),
        line("critical hit rate", "1", 0.893, full[0], full[1], 5e-4),
        line("egress at 90 % hit", "GB/s", 53.4, egress[0], egress[1], 0.05, "above the NIC; corrected: below"),
        line("8K prompt: KV", "GB", 0.778, _PROMPT * sizes[0] / 1e9, _PROMPT * sizes[1] / 1e9, 5e-4),
        line("8K prompt: prefill", "ms", 146, _PROMPT / rates[0] * 1e3, _PROMPT / rates[1] * 1e3, 0.5),
        line("8K prompt: transfer", "ms", 15.6, *_transfer(d, sizes), 0.05),
        line("weights per GPU of 8", "GB", 93.0, d.weights / 8 / 1e9, None, 0.05),
        line("HBM left of weights", "GB", 99.0, (d.hbm - d.weights / 8) / 1e9, None, 0.05, "the 150 GB need DRAM"),
    ]
    step = {"C": _BUFFER, "Q0": _BUFFER / 2}
    hits = [float(buffer.time_to_boundary(delta=f, **step)) for f in (flow, slow)]
    lines.append(line("time to full, one whole flow", "s", 14.04, *_pair(hits), 0.01))
    for tau, share in ((24.5, 0.4267), (88.0, 0.8404)):
        losses = [float(buffer.shock_loss(delta=f, tau=tau, P=f, **step)) for f in (flow, slow)]
        lines.append(line(f"loss L at {tau:g} s", "1", share, *_pair(losses), 5e-4))
    printed = {9.6: 103, 24.5: 262, 32.1: 343, 88.0: 940, 695.0: 7423}
    for name, tau in COLD_STARTS:
        need = [float(buffer.minimal_capacity(delta_up=f, delta_down=f, tau=tau)) / 1e9 for f in (flow, slow)]
        # The table takes the flow as 5.34 GB/s, rounded.
        half = max(0.5, 1e-3 * printed[tau])
        lines.append(line(f"C* at {tau:g} s ({name})", "GB per prefill GPU", printed[tau], *_pair(need), half))
    for time, gigabytes in zip(LEASES, (160, 2565), strict=True):
        lines.append(
            line(f"held over {time:g} s", "GB", gigabytes, *both(memory.held_on_prefill, 1e-9, lease=time), 0.5)
        )
    for isl, after, by_chunks in ((8192, 0.083, 0.389), (65_536, 0.665, 3.11), (195_000, 1.98, 9.26)):
        words = f"{isl / 1024:.0f}K" if isl % 1024 == 0 else f"{isl / 1000:.0f}k"
        reserved = [
            float(memory.reserved_duplicate(load=1.0, isl=isl, nic=d.nic, g_P=1.0, **end)) / 1e9 for end in ends
        ]
        written = [
            float(memory.written_duplicate(load=1.0, isl=isl, g_P=1.0, n_chunks=_PIPELINED, kappa_store=k)) / 1e9
            for k in sizes
        ]
        near = 0.005 if after > 1 else 5e-4
        lines.append(line(f"reserved by NIXL, {words}", "GB per prefill GPU", after, *_pair(reserved), near))
        lines.append(
            line(
                f"kept by Mooncake, {words}",
                "GB per prefill GPU",
                by_chunks,
                *_pair(written),
                10 * near if by_chunks > 1 else near,
            )
        )
    assert all(math.isfinite(x.ours) for x in lines)
    return Example(tuple(lines))


def _pair(values: list[float]) -> tuple[float, float]:
    """The article's figure and the corrected one."""
    return values[0], values[1]


def _transfer(d: Deployment, sizes: tuple[float, float]) -> tuple[float, float]:
    first, second = (
        float(aggregated.exposed_transfer(isl=_PROMPT, kappa_store=k, nic=d.nic, g_P=1.0)) * 1e3 for k in sizes
    )
    return first, second
