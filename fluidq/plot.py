"""Figures of results, one call each; each takes the axes to draw on or makes them, and returns them."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fluidq.objective import Objective
from fluidq.simulate import Fleet, Trajectory
from fluidq.tune import TuneResult

STYLE = str(Path(__file__).with_name("style.mplstyle"))
# Colours that differ in hue and in lightness, so that they part in grey print as well.
BEFORE, AFTER, LIMIT = "#b8b8b8", "#0b4f8a", "#c2410c"


def trajectories(
    runs: dict[str, Trajectory], fleet: Fleet, objective: Objective, axes: np.ndarray | None = None
) -> np.ndarray:
    """Four panels over time [h]: GPUs, handoff buffer against 0 and C, TTFT and TPOT against their limits.

    `runs` maps a label to its trajectory; the first is drawn in grey behind the others.
    """
    with plt.style.context(STYLE):
        if axes is None:
            _, axes = plt.subplots(4, 1, figsize=(9, 8), sharex=True, layout="constrained")
        assert axes is not None
        colours = [BEFORE, AFTER, "#1b7f4b", "#7a3e9d"]
        for (label, run), colour in zip(runs.items(), colours, strict=False):
            hours = np.asarray(run.time) / 3600
            line: dict[str, Any] = {"color": colour, "lw": 1.1, "label": label}
            axes[0].plot(hours, np.asarray(run.prefill_gpus + run.decode_gpus), **line)
            axes[1].plot(hours, np.asarray(run.buffer_bytes) / 1e9, **line)
            axes[2].plot(hours, np.asarray(run.ttft), **line)
            axes[3].plot(hours, np.asarray(run.tpot) * 1e3, **line)
        axes[0].set_ylabel("ready GPUs")
        axes[1].set_ylabel("buffer [GB]")
        axes[1].axhline(float(fleet.plant.capacity) / 1e9, color=LIMIT, lw=1, ls="--", label="capacity C")
        axes[2].set_yscale("log")
        axes[2].set_ylabel("TTFT [s]")
        axes[2].axhline(float(objective.ttft), color=LIMIT, lw=1, ls="--", label="limit")
        axes[3].set_ylabel("TPOT [ms]")
        axes[3].axhline(float(objective.tpot) * 1e3, color=LIMIT, lw=1, ls="--", label="limit")
        axes[3].set_xlabel("time since start [h]")
        for ax in axes:
            ax.margins(x=0.01)
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return axes


def tuning(result: TuneResult, ax: Axes | None = None) -> Axes:
    """The search: relaxed cost of every start per step, and the best hard cost where it was judged [GPU-hours]."""
    with plt.style.context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
        assert ax is not None
        steps = np.arange(result.history.shape[0])
        for start in range(result.history.shape[1]):
            ax.plot(
                steps,
                result.history[:, start],
                color=BEFORE,
                lw=0.8,
                label="relaxed, each start" if not start else None,
            )
        judged = np.array(result.judged)
        ax.plot(judged[:, 0], judged[:, 1], color=AFTER, marker="o", ms=4, lw=1.6, label="hard, best so far")
        ax.set_yscale("log")
        ax.set_xlabel("gradient step")
        ax.set_ylabel("cost [GPU-hours]")
        ax.legend(frameon=False)
    return ax


def save(figure: Any, path: Path) -> Path:
    """Write a figure without a time stamp, so that the same data give the same bytes; closes it."""
    kind = path.suffix.lstrip(".").lower()
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    figure.savefig(path, metadata=stamp, dpi=150)
    plt.close(figure)
    return path
