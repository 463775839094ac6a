"""Figures of results, one call each; each takes the axes to draw on or makes them, and returns them."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fluidq._run_log import Logged
from fluidq._run_log import read_log as read_log
from fluidq.compare import Comparison
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.simulate import Trajectory
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
        colours = [BEFORE, AFTER, "#1b7f4b", "#7a3e9d"] if len(runs) > 1 else [AFTER]
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


def comparison(result: Comparison, fleet: Fleet, objective: Objective, axes: np.ndarray | None = None) -> np.ndarray:
    """One row per law, cheapest first, over time [h]: workers' GPUs of each pool, the buffer, TTFT and TPOT.

    Ready GPUs are filled, what is asked for is a line above; the buffer is drawn against 0 and C, the latencies against
    their limits. `axes` is of shape (laws, 4).
    """
    names = list(result.runs)
    with plt.style.context(STYLE):
        if axes is None:
            _, axes = plt.subplots(
                len(names), 4, figsize=(14, 1.0 + 1.15 * len(names)), sharex=True, layout="constrained", squeeze=False
            )
        assert axes is not None
        for row, name in enumerate(names):
            run, panels = result.runs[name], axes[row]
            t = run.trajectory
            assert t is not None
            hours = np.asarray(t.time) / 3600
            prefill, decode = np.asarray(t.prefill_gpus), np.asarray(t.decode_gpus)
            panels[0].fill_between(hours, 0, prefill, color=AFTER, lw=0, label="prefill, ready")
            panels[0].fill_between(hours, prefill, prefill + decode, color=BEFORE, lw=0, label="decode, ready")
            panels[0].plot(hours, np.asarray(t.requested_gpus), color=LIMIT, lw=0.7, label="asked for")
            panels[0].set_ylim(0, float(fleet.budget) * 1.05)
            panels[1].plot(hours, np.asarray(t.buffer_bytes) / 1e9, color=AFTER, lw=0.8)
            panels[1].plot(hours, np.asarray(t.buffer_room) / 1e9, color=LIMIT, lw=0.8, ls="--", label="C")
            panels[1].axhline(0, color=LIMIT, lw=0.8, ls="--")
            panels[2].semilogy(hours, np.asarray(t.ttft), color=AFTER, lw=0.8)
            panels[2].axhline(float(objective.ttft), color=LIMIT, lw=0.8, ls="--", label="limit")
            panels[3].plot(hours, np.asarray(t.tpot) * 1e3, color=AFTER, lw=0.8)
            panels[3].axhline(float(objective.tpot) * 1e3, color=LIMIT, lw=0.8, ls="--", label="limit")
            panels[0].set_ylabel(f"{name}\n{float(run.cost.cost):,.0f} GPU-h", rotation=0, ha="right", va="center")
            for panel in panels:
                panel.margins(x=0)
        for panel, title in zip(axes[0], ("GPUs", "buffer [GB]", "TTFT [s]", "TPOT [ms]"), strict=True):
            panel.set_title(title)
        axes[0, 0].legend(loc="upper left", frameon=False, fontsize=6, ncols=3)
        for panel in axes[-1]:
            panel.set_xlabel("time since start [h]")
    return axes


def tuning(result: TuneResult | Logged, ax: Axes | None = None) -> Axes:
    """The search: merit of every start per step, and the best hard one where it was judged [GPU-hours].

    Takes a result, or the log that a search has written so far (`read_log`).
    """
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
                label="followed, each start" if not start else None,
            )
        judged = np.array(result.judged)
        ax.plot(judged[:, 0], judged[:, 1], color=AFTER, marker="o", ms=4, lw=1.6, label="hard, best so far")
        ax.set_yscale("log")
        ax.set_xlabel("gradient step")
        ax.set_ylabel("cost [GPU-hours]")
        ax.legend(frameon=False)
    return ax


def save(figure: Any, path: Path) -> Path:
    """Write a figure (or the one that these axes are on) without a time stamp: the same data, the same bytes.

    The figure is closed.
    """
    if isinstance(figure, np.ndarray):
        figure = figure.flat[0].figure
    kind = path.suffix.lstrip(".").lower()
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    figure.savefig(path, metadata=stamp, dpi=150)
    plt.close(figure)
    return path
