"""Cold starts and the buffer that bridges them: phases of the ladder, and D15's capacity for a full step."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fluidq._systems_compute import glm
from fluidq.figures._overlay import OWN, Mark, Reproduced, dot, keys, percent, source, table, ticks
from fluidq.formulas import buffer, fabric

SOURCE = "the article's author on cold starts (post Cloudburst); the theory's ladder of D15; D15, D31"
CAPTION = (
    "Each second of cold start costs 10.7 GB of buffer per prefill GPU at a full step: a start of minutes wants "
    "terabytes, one from memory 103 GB, less than the article's 150 GB."
)
SIZE = (8.8, 3.6)
ARTICLE = 150e9


def compute() -> Reproduced:
    """Sums of the phases and the capacity that each cold start needs."""
    given = table()["cold_start"]
    full = float(fabric.transfer_flow(r_P=glm().r_P, kappa_store=glm().kappa_store, hit=0.0, hit_decode=0.0))
    tau = np.geomspace(3.0, 2000.0, 120)
    marks, totals = [], []
    for path, printed in zip(given["paths"], given["capacity_gb"], strict=True):
        total = float(sum(path["phases"]))
        totals.append(total)
        note = f"said as {path['words']!r}"
        marks.append(
            Mark(
                f"cold start, {path['name']}", "s", path["said"], total, path["within"], source("cloudburst"), note=note
            )
        )
        ours = _capacity(total, full) / 1e9
        marks.append(
            Mark(f"capacity, {path['name']}", "GB per prefill GPU", printed, ours, 5e-3, source("ladder"), OWN)
        )
    curves: dict[str, Any] = {"tau": tau, "capacity": _capacity(tau, full), "totals": np.array(totals)}
    numbers = {"gb_per_second": _capacity(1.0, full) / 1e9}
    return Reproduced(CAPTION, tuple(marks), curves, numbers)


def _capacity(tau: Any, full: float) -> Any:
    found = np.asarray(buffer.minimal_capacity(delta_up=full, delta_down=full, tau=tau))
    return float(found) if found.ndim == 0 else found


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the phases, right the capacity."""
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    paths = table()["cold_start"]["paths"]
    _ladder(left, data, paths)
    right.plot(data.curves["tau"], data.curves["capacity"] / 1e9, label="(δ↑ + δ↓) τ, full steps")
    capacities = [mark for mark in data.marks if mark.what.startswith("capacity")]
    for mark, total in zip(capacities, data.curves["totals"], strict=True):
        right.plot([total], [mark.published], **dot(mark), zorder=5)
        right.annotate(f"{mark.published:g}", (total, mark.published), (6, -9), textcoords="offset points", fontsize=8)
    right.axhline(ARTICLE / 1e9, color="0.4", lw=0.8, ls="--")
    right.text(1900, ARTICLE / 1e9 * 0.9, "the article's C = 150 GB", fontsize=8, va="top", ha="right")
    right.set(xscale="log", yscale="log", xlim=(3, 2000), ylim=(20, 3e4))
    ticks(right.xaxis, (3, 10, 30, 100, 300, 1000))
    right.set_xlabel("cold start τ  [s]")
    right.set_ylabel("capacity  [GB per prefill GPU]")
    right.legend(handles=[right.get_lines()[0], *keys(capacities, "")], loc="upper left")


def _ladder(axes: Axes, data: Reproduced, paths: list[dict[str, Any]]) -> None:
    said = [mark for mark in data.marks if mark.what.startswith("cold start")]
    for row, (path, mark) in enumerate(zip(paths, said, strict=True)):
        left = 0.0
        for k, phase in enumerate(path["phases"]):
            # Stacked on a logarithmic axis: each phase from the time that it starts, the first from a second on.
            start = max(left, 1.0)
            grey = 0.25 + 0.5 * (k % 2)
            axes.barh(row, max(left + phase - start, 0.0), left=start, color=str(grey), height=0.55)
            left += phase
        axes.plot([mark.published], [row], **dot(mark), zorder=5)
        axes.text(1500, row, f"{mark.ours:g} s ({percent(mark.error)})", va="center", fontsize=8)
    axes.set_yticks(range(len(paths)), [path["name"] for path in paths])
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlim=(1, 1300), ylim=(len(paths) - 0.5, -0.6))
    ticks(axes.xaxis, (1, 3, 10, 30, 100, 300, 1000))
    axes.set_xlabel("time since the order  [s]; shades: phases")
    axes.set_title("dots: as the text says it")
