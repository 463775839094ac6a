"""Splitwise: the split of 40 machines that balances its two traces, against the one its search chose (D06, D07)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fluidq._systems_compute import kappa
from fluidq.figures._overlay import AT_MOST, PRIMARY, SECONDARY, Mark, Reproduced, dot, keys, percent, source, table
from fluidq.formulas import requests, rounding

SOURCE = "arXiv 2311.18677, splits of 40 H100 machines; phase times of repository Mutinifni/splitwise-sim; D07, D09"
CAPTION = (
    "Code needs nearly all machines for prefill, conversation little more than half: the balance lands within one grid "
    "step of five of both published splits, and a fixed split made for the one loses most of the other."
)
SIZE = (8.2, 3.5)
STEP_TIME, MEMORY, WEIGHTS = 35.5e-3, 640e9, 352.5e9
WORKLOADS = ("coding", "conversation")


def phases(workload: str, share: float = 1.0) -> dict[str, float]:
    """Machine-seconds of prefill and decode per request; the batch is what `share` of the memory holds."""
    given = table()["splitwise"][workload]
    batch = requests.hbm_batch(
        H=share * MEMORY, W=WEIGHTS, A_D=0.0, kappa_store=kappa("BLOOM-176B"), theta_ctx=given["context"]
    )
    return {"t_P": given["t_P"], "t_D": given["osl"] * STEP_TIME / float(batch)}


def compute() -> Reproduced:
    """Requests per second over the split for both traces and two shares of the memory, and the two optima."""
    given = table()["splitwise"]
    machines = float(given["machines"])
    prefill = np.linspace(0.0, machines, 401)
    curves: dict[str, Any] = {"prefill": prefill}
    marks, numbers = [], {}
    for workload in WORKLOADS:
        for share in given["memory_share"]:
            curves[f"{workload} {share:g}"] = np.asarray(
                rounding.two_pool_throughput(n_P=prefill, n_D=machines - prefill, **phases(workload, share))
            )
        best = machines * float(requests.balance_ratio_work(**phases(workload)))
        numbers[f"{workload}_balance"] = best
        numbers[f"{workload}_balance_at_0.9_of_memory"] = machines * float(
            requests.balance_ratio_work(**phases(workload, given["memory_share"][1]))
        )
        # The published search went over a grid of five: half a step either way is agreement.
        chosen = float(given[workload]["prefill"])
        words = f"prefill machines of 40, {workload}, before the grid of 5"
        marks.append(
            Mark(
                words,
                "machines",
                chosen,
                best,
                2.5 / chosen,
                source("splitwise"),
                PRIMARY if workload == "coding" else SECONDARY,
            )
        )
    wrong = rounding.missplit_efficiency(
        phi=given["coding"]["prefill"] / machines, phi_opt=numbers["conversation_balance"] / machines
    )
    lost = 1.0 - float(wrong)
    note = "published with a mixed pool that moves machines; ours is the loss of a split that stays"
    moved = Mark(
        "throughput kept on conversation by a cluster made for coding", "1", 1 - given["missplit_loss"], 1 - lost, 1e-9,
        source("splitwise"), SECONDARY, AT_MOST, note,
    )  # fmt: skip
    return Reproduced(CAPTION, (*marks, moved), curves, {**numbers, "fixed_split_loss": lost})


def paint(figure: Figure, data: Reproduced) -> None:
    """One panel a trace."""
    for axes, workload, mark in zip(figure.subplots(1, 2), WORKLOADS, data.marks, strict=False):
        _trace(axes, data, workload, mark)
    handles = keys(data.marks[:2], "")
    handles += [Line2D([], [], color="C0", ls=s, label=w) for s, w in (("-", "all HBM"), ("--", "0.9 of it"))]
    handles.append(Line2D([], [], marker="|", color="C0", ms=10, mew=2, ls="", label="balance"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)


def _trace(axes: Axes, data: Reproduced, workload: str, mark: Mark) -> None:
    prefill = data.curves["prefill"]
    shares = table()["splitwise"]["memory_share"]
    for share, style in zip(shares, ("-", "--"), strict=True):
        axes.plot(prefill, data.curves[f"{workload} {share:g}"], color="C0", ls=style)
    full = data.curves[f"{workload} {shares[0]:g}"]
    at = float(np.interp(mark.published, prefill, full))
    axes.plot([mark.published], [at], **dot(mark), zorder=5)
    axes.plot([mark.ours], [np.interp(mark.ours, prefill, full)], "|", color="C0", ms=14, mew=2)
    words = f"published {mark.published:g}P : {40 - mark.published:g}T\nours {mark.ours:.1f} ({percent(mark.error)})"
    axes.text(0.5, 0.14, words, transform=axes.transAxes, ha="center")
    axes.set(xlim=(0, 41), ylim=(0, 1.12 * full.max()))
    axes.set_xlabel("prefill machines of 40")
    axes.set_ylabel("throughput  [req/s]")
    axes.set_title(workload)
