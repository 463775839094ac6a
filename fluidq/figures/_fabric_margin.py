"""The fabric condition over the hit rate: how caching uses up the margin of the link (D12)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq._systems_compute import glm
from fluidq.figures._overlay import Reproduced, by_start, keys, of_system, overlay, ticks
from fluidq.formulas import fabric

SOURCE = "the article: 5.34 GB/s per prefill GPU, margin 9.36 on 400 Gb/s (GLM-5.2, B200); D12"
CAPTION = (
    "The article's margin of 9.4 holds without prefix hits only: a cached token is not computed but still moves, so "
    "the margin falls as 1 - h and is gone at a hit rate of 89 % unless the decode side caches too."
)
SIZE = (7.4, 3.8)
NIC = 50e9
KEPT = (0.0, 0.5, 0.9)


def compute() -> Reproduced:
    """Margin over the hit rate of prefill for three shares that the decode side already has."""
    d = glm()
    model: dict[str, Any] = {"r_P": d.r_P, "kappa_store": d.kappa_store}
    hit = np.linspace(0.0, 0.99, 397)
    curves: dict[str, Any] = {"hit": hit}
    numbers = {}
    for kept in KEPT:
        curves[f"{kept:g}"] = np.asarray(fabric.fabric_margin(nic=NIC, hit=hit, hit_decode=kept, **model))
        numbers[f"critical_hit_{kept:g}"] = float(fabric.critical_hit_rate(nic=NIC, hit_decode=kept, **model))
    numbers["flow_at_0.9_gb_s"] = float(fabric.transfer_flow(hit=0.9, hit_decode=0.0, **model)) / 1e9
    marks = (*of_system("GLM-5.2", "KV flow"), *of_system("GLM-5.2", "margin"))
    return Reproduced(CAPTION, marks, curves, numbers)


def paint(figure: Figure, data: Reproduced) -> None:
    """The margin, the line where it is gone, and the published margin."""
    axes = figure.subplots()
    hit = data.curves["hit"]
    for kept, style in zip(KEPT, ("-", "--", ":"), strict=True):
        words = "decode caches nothing" if kept == 0 else f"decode has {kept:.0%} of the tokens"
        axes.plot(hit, data.curves[f"{kept:g}"], ls=style, label=words)
    axes.axhline(1.0, color="0.1", lw=0.9)
    axes.text(0.02, 0.93, "the link is too slow", fontsize=8, va="top")
    critical = data.numbers["critical_hit_0"]
    axes.plot([critical], [1.0], "D", color="C0", ms=5)
    axes.annotate(
        f"h = {critical:.3f}", (critical, 1.0), (-12, -12), textcoords="offset points", ha="right", fontsize=8
    )
    margin = by_start(data.marks, "margin")
    overlay(axes, [0.0], margin)
    axes.plot([0.9], [NIC / 1e9 / data.numbers["flow_at_0.9_gb_s"]], "s", color="C5", ms=5)
    axes.annotate(
        f"at a 90 % hit rate: {data.numbers['flow_at_0.9_gb_s']:.1f} GB/s on 50", (0.9, 0.936), (-15, -24),
        textcoords="offset points", ha="right", fontsize=8, color="0.1",
    )  # fmt: skip
    axes.set(yscale="log", xlim=(-0.02, 1.0), ylim=(0.3, 500))
    ticks(axes.yaxis, (0.5, 1, 2, 5, 10, 20, 50, 100))
    axes.set_xlabel("hit rate of the prefill side h")
    axes.set_ylabel("margin M: link rate / KV flow")
    axes.set_title("GLM-5.2 on B200 at the roofline, one 400 Gb/s NIC per GPU")
    axes.legend(handles=[*axes.get_lines()[:3], *keys(margin, "")], loc="upper left", ncols=2)
