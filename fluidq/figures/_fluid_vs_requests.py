"""The fluid against whole requests: what the mean path misses, and how that falls with the size of the fleet.

The table beside this file was measured by `tests/benchmarks/fluid_vs_requests.py`: the same plant as a fluid and as a
request-level replay over seeds, 10 to 300 workers at loads of 0.5 to 1.1 of the pool that binds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter

from fluidq._errors import unknown
from fluidq.figures._canvas import sheet

SOURCE = "measured here: fluidq.replay against fluidq.plant (tests/benchmarks/fluid_vs_requests.py)"
# The lengths and the plant of the measurement; all of it is in the script.
PUBLISHED = {"isl": 1000.0, "osl": 100.0, "r_P": 10_000.0, "batch": 64.0}
PARAMETERS = ("case",)
CASES = {"prefill": "prefill binds", "balanced": "both pools bind", "decode": "decode binds"}
TABLE = Path(__file__).with_name("fluid_vs_requests.json")
HIGH, OVER = 0.95, 1.1  # the loads that the second and third panels show
FLOOR = 1e-3  # what is below is drawn there: the seeds do not tell it from 0


@dataclass(frozen=True)
class FluidVsRequests:
    """The table's rows of one case; `figure` is what was drawn, None where only the numbers were asked for.

    A row holds the case, workers, load, seeds and requests, and per quantity what the `requests` gave (mean over
    seeds, with the tokens that came as control variates, and `half_width` of its 95 % interval) and what the `fluid`
    gave; for TTFT also `corrected`, the fluid with the M/G/c waits of `fluidq.waiting`; for active sequences and buffer
    the `spread` of the path around the fluid (rms).
    """

    case: str
    rows: list[dict[str, Any]]
    figure: Figure | None = None

    @property
    def loads(self) -> list[float]:
        """Loads of the table, rising."""
        return sorted({row["load"] for row in self.rows})

    @property
    def worst_error(self) -> float:
        """Largest relative error of the corrected TTFT below capacity."""
        below = [row["ttft"] for row in self.rows if row["load"] < 1]
        return max(abs(x["corrected"] / x["requests"] - 1) for x in below)

    def column(self, load: float, name: str, field: str) -> np.ndarray:
        """One number per fleet size at a load, in the order of `workers`."""
        return np.array([row[name][field] for row in self.at(load)])

    def at(self, load: float) -> list[dict[str, Any]]:
        """The rows of a load by fleet size."""
        return sorted((row for row in self.rows if row["load"] == load), key=lambda row: row["workers"])

    def workers(self, load: float) -> np.ndarray:
        """Fleet sizes at a load."""
        return np.array([row["workers"] for row in self.at(load)], dtype=float)

    def missed(self, load: float) -> np.ndarray:
        """Share of the TTFT that the fluid misses, per fleet size; negative where it says too much."""
        return 1 - self.column(load, "ttft", "fluid") / self.column(load, "ttft", "requests")

    def spread(self, load: float) -> np.ndarray:
        """Relative rms distance of the number of active sequences from the fluid's, per fleet size."""
        return self.column(load, "active", "spread") / self.column(load, "active", "requests")

    def exponent(self, load: float, what: np.ndarray) -> float:
        """Slope of ln |what| over ln workers."""
        return float(np.polyfit(np.log(self.workers(load)), np.log(np.abs(what)), 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: the errors at the smallest and largest fleet, and how they fall with its size."""
        per_load = {}
        for load in self.loads:
            entry: dict[str, Any] = {"spread_exponent": self.exponent(load, self.spread(load))}
            for name in ("tpot", "throughput", "active"):
                error = self.column(load, name, "fluid") / self.column(load, name, "requests") - 1
                entry[f"{name}_largest_error"] = float(np.abs(error).max())
            off = self.column(load, "buffer", "fluid") - self.column(load, "buffer", "requests")
            entry["buffer_largest_error"] = float(np.abs(off / self.column(load, "buffer", "capacity")).max())
            entry["ttft_missed"] = self.missed(load).tolist()
            corrected = self.column(load, "ttft", "corrected") / self.column(load, "ttft", "requests") - 1
            entry["ttft_corrected_error"] = corrected.tolist()
            per_load[f"{load:g}"] = entry
        return {
            "case": self.case,
            "workers": self.workers(self.loads[0]).tolist(),
            "requests": sum(row["requests"] for row in self.rows),
            "ttft_exponent_at_0.95": self.exponent(HIGH, self.missed(HIGH)),
            "loads": per_load,
            "worst_error": self.worst_error,
        }


def compute(*, case: str = "balanced") -> FluidVsRequests:
    """The measured rows of a case: the pool that binds, `prefill`, `balanced` or `decode`.

    Raises:
        InputError: an unknown case.
    """
    if case not in CASES:
        raise unknown("case", case, CASES)
    return FluidVsRequests(case, [row for row in json.loads(TABLE.read_text()) if row["case"] == case])


def fluid_vs_requests(path: str | Path | None = None, *, case: str = "balanced") -> FluidVsRequests:
    """Draw a case of the table, into `path` where one is given; arguments and errors as `compute`."""
    data = compute(case=case)
    with sheet(9.6, 3.3, path) as figure:
        first, second, third = figure.subplots(1, 3)
        _ttft(first, data)
        _decay(second, data)
        _buffer(third, data)
        for axes in (first, second, third):
            axes.set_xscale("log")
            sizes = data.workers(data.loads[0])
            axes.set_xticks(sizes, [f"{n:g}" for n in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlabel("workers")
    return FluidVsRequests(data.case, data.rows, figure)


def _ttft(axes: Axes, data: FluidVsRequests) -> None:
    """TTFT below capacity: requests with their interval, the fluid, the fluid with the correction."""
    for k, load in enumerate(load for load in data.loads if load < 1):
        n, colour = data.workers(load), f"C{k}"
        value = {field: 1e3 * data.column(load, "ttft", field) for field in ("requests", "half_width", "fluid")}
        axes.errorbar(n, value["requests"], value["half_width"], fmt="o", ms=4, color=colour, label=f"load {load:g}")
        axes.plot(n, value["fluid"], "-", color=colour, lw=0.9)
        axes.plot(n, 1e3 * data.column(load, "ttft", "corrected"), "--", color=colour)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    ticks = [t for t in (50, 100, 150, 200, 300, 500, 700, 1000) if low <= t <= high]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.set_ylabel("mean TTFT  [ms]")
    axes.set_title(CASES[data.case])
    lines = [Line2D([], [], color="0.3", lw=0.9), Line2D([], [], color="0.3", ls="--")]
    shown, words = axes.get_legend_handles_labels()
    axes.legend([*shown, *lines], [*words, "fluid", "fluid + M/G/c wait"], fontsize=7)


def _decay(axes: Axes, data: FluidVsRequests) -> None:
    """What falls with size at the highest load below capacity: the missed wait, and chance around the mean path."""
    n = data.workers(HIGH)
    missed, spread = np.abs(data.missed(HIGH)), data.spread(HIGH)
    corrected = np.abs(data.column(HIGH, "ttft", "corrected") / data.column(HIGH, "ttft", "requests") - 1)
    seeds = data.column(HIGH, "ttft", "half_width") / data.column(HIGH, "ttft", "requests")
    slope = data.exponent(HIGH, spread)
    axes.plot(n, missed, "o-", color="C0", label="TTFT that the fluid misses")
    axes.plot(n, np.maximum(corrected, FLOOR), "s--", color="C0", mfc="white", label="TTFT, corrected")
    axes.fill_between(n, FLOOR, seeds, color="C0", alpha=0.12, lw=0, label="what the seeds leave open")
    axes.plot(n, spread, "^-", color="C1", label=f"active batch, rms (slope {slope:.2f})".replace("-", "−"))
    axes.plot(n, spread[0] * np.sqrt(n[0] / n), ":", color="0.3", label="slope −1/2")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 20)
    ticks = (1e-3, 1e-2, 1e-1, 1.0)
    axes.set_yticks(ticks, [f"{x:.1%}" if x < 0.01 else f"{x:.0%}" for x in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("relative error")
    axes.set_title(f"load {HIGH:g}")
    axes.legend(fontsize=7, loc="upper right")


def _buffer(axes: Axes, data: FluidVsRequests) -> None:
    """Mean handoff buffer near and above capacity, as a share of it."""
    top = 0.1
    for k, load in enumerate((HIGH, OVER)):
        n, room = data.workers(load), data.column(load, "buffer", "capacity")
        value = {f: data.column(load, "buffer", f) / room for f in ("requests", "half_width", "fluid")}
        axes.errorbar(n, value["requests"], value["half_width"], fmt="o", ms=4, color=f"C{k}", label=f"load {load:g}")
        axes.plot(n, value["fluid"], "-", color=f"C{k}", lw=0.9)
        top = max(top, 1.05 * max(value["fluid"].max(), (value["requests"] + value["half_width"]).max()))
    axes.set_ylim(-0.02 * top, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("mean handoff buffer  [share of its capacity]")
    axes.set_title("points: requests, lines: fluid")
    axes.legend(fontsize=7)
