"""Attention and FFN apart: the ratio of their instances, and the micro-batches that hide the hops (D28)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq.figures._overlay import Reproduced, by_start, keys, of_system, overlay, ticks
from fluidq.formulas import stages

SOURCE = "arXiv 2504.02263 (MegaScale-Infer), secondary; arXiv 2507.19427 (Step-3); arXiv 2601.21351 (ratio); D28"
CAPTION = (
    "The best number of attention instances per FFN instance is where their times meet, or sqrt(beta / alpha B) where "
    "the FFN's fixed time rules; with three or four micro-batches in flight the hops between them cost nothing."
)
SIZE = (8.4, 3.5)
# A layer's times in the paper's linear form: FFN 20 us + 0.15 us a sequence, attention 60 us, hop 10 us.
LAYER = {"t_attention": 60e-6, "t_hop": 10e-6, "ffn_slope": 0.15e-6, "ffn_base": 20e-6}
BATCHES = (32.0, 128.0, 512.0)
HOPS = np.linspace(0.02, 1.0, 99)


def compute() -> Reproduced:
    """Throughput over the ratio for three batches, with the optimum, and micro-batches over the hop."""
    ratio = np.geomspace(0.1, 64.0, 400)
    curves: dict[str, Any] = {"ratio": ratio, "hop": HOPS}
    numbers: dict[str, float] = {}
    gaps = []
    for batch in BATCHES:
        rate = np.asarray(stages.afd_throughput(attention_ratio=ratio, B=batch, **LAYER))
        best = float(stages.best_attention_ratio(B=batch, **LAYER))
        top = float(stages.afd_throughput(attention_ratio=best, B=batch, **LAYER))
        curves[f"B = {batch:g}"] = rate
        numbers |= {f"best_ratio_{batch:g}": best, f"best_rate_{batch:g}": top}
        gaps.append(rate.max() / top - 1)
    curves["least"] = np.asarray(stages.micro_batches_needed(t_attention=1.0, t_ffn=1.0, t_hop=HOPS))
    # How far a search over the grid gets past the closed optimum: not at all.
    return Reproduced(CAPTION, of_system("attention-FFN split"), curves, numbers | {"search_gain": float(max(gaps))})


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the ratio, right the micro-batches."""
    left, right = figure.subplots(1, 2)
    for batch, style in zip(BATCHES, ("-", "--", ":"), strict=True):
        scaled = data.curves[f"B = {batch:g}"] / 1e6
        (line,) = left.plot(data.curves["ratio"], scaled, ls=style, label=f"B = {batch:g} per attention instance")
        best, top = data.numbers[f"best_ratio_{batch:g}"], data.numbers[f"best_rate_{batch:g}"] / 1e6
        left.plot([best], [top], "D", color=line.get_color(), ms=5)
        left.annotate(f"r* = {best:.2g}", (best, top), (-7, 3), textcoords="offset points", ha="right", fontsize=8)
    left.set(xscale="log", xlim=(0.1, 64), ylim=(0, 1.25 * data.numbers["best_rate_512"] / 1e6))
    ticks(left.xaxis, (0.1, 0.3, 1, 3, 10, 30))
    left.set_xlabel("attention instances per FFN instance r")
    left.set_ylabel("throughput of a layer  [M tok/s per instance]")
    left.set_title("diamonds: closed optimum")
    left.legend(loc="upper right")
    hop = data.curves["hop"]
    right.plot(hop, data.curves["least"], "--", color="C1", label="2 (1 + hop / stage)")
    right.step(hop, np.ceil(data.curves["least"] - 1e-9), where="post", color="C0", label="whole micro-batches")
    marks = by_start(data.marks, "micro-batches")
    overlay(right, [float(mark.what.split()[2]) for mark in marks], marks)
    right.set(xlim=(0, 1.05), ylim=(1.5, 5.4))
    right.set_xlabel("hop / longer stage")
    right.set_ylabel("micro-batches in flight")
    right.set_title("MegaScale-Infer")
    right.legend(handles=[*right.get_lines()[:2], *keys(marks, "")], loc="upper left")
