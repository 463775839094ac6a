"""DeepSeek's day: the nodes that the day's tokens need at the published rates, hour by hour, and what the day earns."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fluidq._systems_compute import DAY, DEEPSEEK
from fluidq.figures._overlay import SECONDARY, Mark, Reproduced, keys, of_system, rows, source, table
from fluidq.formulas import requests

SOURCE = "repository deepseek-ai/open-infra-index, day 6 (27 February 2025, 24 h); D01, D06"
CAPTION = (
    "The day's averages close to a part in two thousand: 95 nodes of prefill and 131 of decode; the same averages ask "
    "for 8 % more nodes in the busiest hour than were there, so they are averages and not what a node can do."
)
SIZE = (8.8, 3.7)


def compute() -> Reproduced:
    """Nodes needed in each hour, of prefill and of both, and the day's totals."""
    given = table()["deepseek"]
    income = np.array(given["income"], dtype=float)
    share = income / income.sum()
    hours = float(len(income))
    prefill = DEEPSEEK["isl"] / DAY / DEEPSEEK["r_P"]
    decode = DEEPSEEK["osl"] * DEEPSEEK["t_step"] / DAY / DEEPSEEK["B"]
    nodes = share * hours * (prefill + decode)
    phi = float(requests.balance_ratio_work(t_P=prefill, t_D=decode))
    totals = of_system("DeepSeek-V3")
    found = {mark.what: mark.ours for mark in totals}
    margin = 100 * (found["income of the day"] / found["cost of the day"] - 1)
    marks = (
        *totals,
        Mark("profit over cost", "%", float(given["margin_percent"]), margin, 2e-3,
             "DeepSeek's day 6 as quoted", SECONDARY),
        Mark("nodes at the peak", "nodes", float(given["peak_nodes"]), float(nodes.max()), 0.01, source("deepseek"),
             note="at the day's average rates; in that hour a node carried more"),
    )  # fmt: skip
    curves: dict[str, Any] = {"hour": np.arange(hours), "nodes": nodes, "prefill": phi * nodes}
    numbers = {"prefill_nodes": prefill, "decode_nodes": decode, "busiest_over_mean": float(share.max() * hours)}
    return Reproduced(CAPTION, marks, curves, numbers)


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the hours, right the totals."""
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _hours(left, data)
    words = ["nodes, mean", "cost  [USD]", "income  [USD]", "prefill share", "profit / cost  [%]", "nodes, peak"]
    # Each row over its own published value: the axis is the ratio.
    ratios = [Mark(m.what, "1", 1.0, m.ours / m.published, m.within, m.source, m.evidence, m.kind) for m in data.marks]
    rows(right, ratios, [f"{w}\n{m.published:,.6g}" for w, m in zip(words, data.marks, strict=True)])
    right.set_xlim(0.985, 1.095)
    right.set_xlabel("ours / published")
    figure.legend(handles=keys(data.marks), loc="outside lower right", ncols=3)


def _hours(axes: Axes, data: Reproduced) -> None:
    hour, nodes, prefill = (data.curves[name] for name in ("hour", "nodes", "prefill"))
    edges = np.append(hour, len(hour))
    axes.stairs(prefill, edges, fill=True, color="C0", label="ours, prefill nodes")
    axes.stairs(nodes, edges, baseline=prefill, fill=True, color="C1", label="ours, decode nodes")
    steps = np.array(table()["deepseek"]["nodes"], dtype=float)
    axes.stairs(
        steps[:, 1], np.append(steps[:, 0], len(hour)), baseline=None, color="0.1", lw=1.6, label="published, occupied"
    )
    axes.set(xlim=(0, len(hour)), ylim=(0, 385))
    axes.set_xticks(range(0, len(hour) + 1, 6), ["12:00", "18:00", "0:00", "6:00", "12:00"])
    axes.set_xlabel("time of day, UTC+8")
    axes.set_ylabel("nodes of eight H800")
    axes.legend(loc="upper center", ncols=2)
