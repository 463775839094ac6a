"""Moving a prefix against computing it again: the link rate at which both take as long (D13)."""

import numpy as np
from matplotlib.figure import Figure

from fluidq._systems_compute import crossover
from fluidq.figures._overlay import Reproduced, keys, of_system, rows, ticks

SOURCE = "arXiv 2608.14967 (Lightstorm), secondary; D13, b* = r_P kappa"
CAPTION = (
    "Above b* = r_P kappa a prefix is faster moved than computed, whatever its length: all eight published crossovers "
    "lie on that line, and a cache with fewer KV heads needs a slower link in proportion."
)
SIZE = (8.6, 3.6)
RATES = np.geomspace(2.0, 800.0, 200)


def compute() -> Reproduced:
    """The eight crossovers, and the relative cost of moving over the link rate for the two 70B caches."""
    marks = of_system("RDMA", "crossover")
    crossing = {mark.what: mark.ours for mark in marks}
    curves = {"link": RATES} | {
        words: crossing[f"crossover, {words} at 50% of peak"] / RATES
        for words in ("8B", "405B MHA", "70B MHA", "70B GQA 1/4", "70B GQA 1/8")
    }
    return Reproduced(CAPTION, marks, curves, {"one_kilobyte_per_token_of_70b_gb_s": float(crossover(70, 1000.0, 0.5))})


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the cost of moving over the link, right the crossovers as published and as computed."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    link = data.curves["link"]
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for (words, cost), style in zip(list(data.curves.items())[1:], styles, strict=True):
        left.plot(link, cost, ls=style, label=words)
    left.axhline(1.0, color="0.1", lw=0.8)
    left.text(780, 1.08, "moving is slower", fontsize=8, va="bottom", ha="right")
    left.text(2.2, 0.06, "moving is faster", fontsize=8)
    left.set(xscale="log", yscale="log", ylim=(0.05, 50), xlim=(2, 800))
    left.set_xlabel("link  [Gb/s per GPU]")
    left.set_ylabel("time to move / time to compute")
    left.set_title("H100 at 50 % of its peak")
    left.legend(loc="upper right")
    rows(right, data.marks, [mark.what.removeprefix("crossover, ") for mark in data.marks])
    right.set_xscale("log")
    right.set_xlabel("crossover  [Gb/s]")
    figure.legend(handles=keys(data.marks), loc="outside lower right", ncols=2)
    ticks(left.xaxis, (3, 10, 30, 100, 300))
    ticks(right.xaxis, (10, 20, 50, 100, 200))
