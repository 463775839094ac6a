"""Mooncake: the network below which moving KV is seen, and what chunk-wise transfer keeps twice (D24, D25)."""

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq._systems_compute import glm, kappa
from fluidq.figures._overlay import OWN, Reproduced, by_start, keys, of_system, overlay, ticks
from fluidq.formulas import aggregated, memory, transfer

SOURCE = "repository kvcache-ai/Mooncake, FAST'25 paper (knee read off a curve in steps of 100 Gb/s); D24, D25"
CAPTION = (
    "Sent by chunks, a prompt's KV hides behind its prefill as soon as the link keeps up with the flow, at about 100 "
    "Gb/s; the price is memory: each chunk lies on both sides until the last one lands."
)
SIZE = (8.4, 3.5)
PROMPT, PREFILL, LOADS = 15_325.0, 0.73, 4.5e9
CHUNKS = np.arange(1.0, 65.0)


def compute() -> Reproduced:
    """Exposed transfer of the published prompt over the link, and duplicated bytes over the number of chunks."""
    knee, limit = of_system("Mooncake")
    # The limit of many chunks is a figure of the theory, not of the paper.
    marks = (knee, replace(limit, evidence=OWN))
    each, rate = kappa("Llama-3.1-70B"), PROMPT / PREFILL
    link = np.geomspace(50.0, 800.0, 160)
    # What prefix loads leave of the link, B/s of one node.
    left = link * 1e9 / 8 - LOADS
    shared: dict[str, Any] = {"isl": PROMPT, "kappa_store": each, "nic": left, "g_P": 1.0}
    curves: dict[str, Any] = {
        "link": link,
        "after": np.asarray(aggregated.exposed_transfer(**shared)),
        "chunks": CHUNKS,
    }
    for chunks in (4.0, 30.0):
        curves[f"{chunks:g} chunks"] = np.asarray(
            aggregated.exposed_transfer_chunked(r_P=rate, n_chunks=chunks, **shared)
        )
    d = glm()
    window: dict[str, Any] = {"kappa_store": d.kappa_store, "isl": 8192.0, "g_P": 1.0}
    curves["written"] = np.asarray(memory.written_duplicate(load=1.0, n_chunks=CHUNKS, **window)) * d.r_P
    curves["reserved"] = np.full(
        CHUNKS.shape, float(memory.reserved_duplicate(load=1.0, r_P=d.r_P, nic=50e9, **window))
    )
    curves["ratio"] = np.asarray(
        memory.duplication_ratio(r_P=d.r_P, kappa_store=d.kappa_store, nic=50e9, n_chunks=CHUNKS)
    )
    flow = float(transfer.crossover_nic(r_P=rate, kappa_store=each)) * 8 / 1e9
    return Reproduced(CAPTION, marks, curves, {"prompt_flow_gbit": flow, "knee_gbit": marks[0].ours})


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the exposed transfer, right the duplicates."""
    left, right = figure.subplots(1, 2)
    for name, style in (("after", "-"), ("4 chunks", "--"), ("30 chunks", ":")):
        words = "after prefill" if name == "after" else f"in {name}"
        left.plot(data.curves["link"], data.curves[name], ls=style, label=words)
    knee = by_start(data.marks, "network")
    left.axvline(knee[0].ours, color="0.1", lw=0.8)
    left.axvline(knee[0].published, color="0.1", lw=0.8, ls="--")
    left.annotate(
        f"ours {knee[0].ours:.0f}", (knee[0].ours, 0.02), (-3, 0), textcoords="offset points", ha="right", fontsize=8
    )
    left.annotate(
        f"published 100 ({knee[0].error:+.0%})",
        (knee[0].published, 3.3),
        (4, 0),
        textcoords="offset points",
        fontsize=8,
    )
    left.set(xscale="log", yscale="log", xlim=(50, 800), ylim=(0.01, 5))
    ticks(left.xaxis, (50, 100, 200, 400, 800))
    left.set_xlabel("network  [Gb/s per node]")
    left.set_ylabel("transfer that a prompt waits for  [s]")
    left.set_title("Llama-70B, 15,325 tokens in 0.73 s")
    left.legend(loc="center right")
    right.plot(data.curves["chunks"], data.curves["ratio"], color="C0", label="kept by chunks / reserved by a pull")
    limit = by_start(data.marks, "kept over")
    overlay(right, [60.0], limit)
    right.axhline(limit[0].published, color="0.5", lw=0.8, ls=":")
    right.set(xlim=(0, 64), ylim=(0, 6))
    right.set_xlabel("chunks of a prompt")
    right.set_ylabel("bytes held twice, over those of a pull")
    right.set_title("GLM-5.2 on B200, 400 Gb/s")
    right.legend(handles=[right.get_lines()[0], *keys(limit, "")], loc="lower right")
