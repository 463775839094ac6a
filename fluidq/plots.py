"""One picture per kind of result: `plot(result)` finds it, draws it, and returns its axes.

from fluidq.plots import plot
ax = plot(fluidq.size(...))          # a plan: throughput over the split, the flat region, the best whole split
ax = plot(run, ax=ax)                # a simulated run, a comparison, a search, a sweep, prices, a certificate ...
"""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fluidq._errors import refuse
from fluidq.plot import AFTER, BEFORE, LIMIT, STYLE

PARTS = ("gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "churn")
LABELS = ("GPU-hours paid", "late requests", "lost requests", "stalled prefill", "scaling actions")
GREYS = ("#0b4f8a", "#c2410c", "#6b6b6b", "#b8b8b8", "#1b1b1b")
HATCHES = ("", "//", "..", "xx", "--")


def plot(result: Any, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw a result on `ax`, or on axes of its own.

    Arguments:
        result: a `Plan` (`size`), a `Run` or `Trajectory` (`simulate`), a `Comparison`, a `TuneResult` or a search's
            log, a `Study` or the table of `read_sweep`, a `Sensitivity`, a `Certificate`, or a clairvoyant `Bound`.
        options: those of the kind: `x`, `y`, `log` for a sweep.

    Returns the axes. Raises InputError for what has no picture.
    """
    kind = type(result).__name__
    if kind not in KINDS:
        raise refuse("result", kind, f"one of {', '.join(KINDS)}")
    with plt.style.context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        assert ax is not None
        KINDS[kind](result, ax, **options)
    return ax


def plan(result: Any, ax: Axes) -> None:
    """Request rate over the prefill share of the GPUs: the two limits, the flat region, the best whole split."""
    phi, top, gpus = result.phi, result.balanced_throughput, float(result.gpus)
    share = np.linspace(0.0, 1.0, 401)
    prefill, decode = top * share / phi, top * (1.0 - share) / (1.0 - phi)
    ax.plot(share, prefill, color=BEFORE, ls="--", label="what prefill carries")
    ax.plot(share, decode, color=BEFORE, ls=":", label="what decode carries")
    ax.plot(share, np.minimum(prefill, decode), color=AFTER, label="what the fleet carries")
    points = [(split.prefill_gpus / gpus, split.throughput) for split in result.flat]
    ax.plot(*np.array(points).T, "o", ms=4, color=AFTER, mfc="white", label=f"within {result.within:.0%} of the best")
    best = result.best
    words = f"{best.prefill_gpus:g} + {best.decode_gpus:g} GPUs"
    ax.plot(best.prefill_gpus / gpus, best.throughput, "D", ms=6, color=LIMIT, label=words)
    ax.axvline(phi, color=LIMIT, lw=0.8, ls="--")
    ax.set(xlim=(0, 1), ylim=(0, 1.25 * top), xlabel="prefill share of the GPUs [-]", ylabel="requests per second")
    ax.set_title(f"phi = {phi:.3f}")
    ax.legend(frameon=False, fontsize=8)


def trajectory(result: Any, ax: Axes) -> None:
    """Ready GPUs of both pools and what is asked for, over time."""
    t = getattr(result, "trajectory", result)
    if t is None:
        raise refuse("result.trajectory", None, "a run with its trajectory: simulate(..., record=True)")
    hours = np.asarray(t.time) / 3600
    prefill, decode = np.asarray(t.prefill_gpus), np.asarray(t.decode_gpus)
    ax.fill_between(hours, 0, prefill, color=AFTER, lw=0, label="prefill, ready")
    ax.fill_between(hours, prefill, prefill + decode, color=BEFORE, lw=0, label="decode, ready")
    ax.plot(hours, np.asarray(t.requested_gpus), color=LIMIT, lw=0.8, label="asked for")
    ax.set(xlabel="time since start [h]", ylabel="GPUs")
    ax.set_ylim(bottom=0)
    ax.margins(x=0)
    ax.legend(frameon=False, fontsize=8)


def comparison(result: Any, ax: Axes) -> None:
    """The parts of each law's cost, cheapest first."""
    rows = [{**row, "churn": float(result.runs[row["policy"]].cost.actions)} for row in result.rows()]
    _bars(ax, [row["policy"] for row in rows], rows)


def tuning(result: Any, ax: Axes) -> None:
    """The search: `fluidq.plot.tuning`."""
    from fluidq import plot as _plot

    _plot.tuning(result, ax)


def sweep(result: Any, ax: Axes, x: str | None = None, y: str = "cost", log: bool = False) -> None:
    """`y` over one varied parameter, a line per policy through the best of each value, every run a dot."""
    table = getattr(result, "table", result)
    names = [name for name in getattr(result, "parameters", ()) if name in table.columns]
    if x is None:
        numeric = [name for name in names if table[name].dtype.is_numeric()]
        if not numeric:
            raise refuse("x", None, "the name of a varied number; this sweep has none, or give it for a bare table")
        x = numeric[0]
    for name in (x, y):
        if name not in table.columns:
            raise refuse("column", name, f"one of {', '.join(table.columns)}")
    policies = table["policy"].unique(maintain_order=True).to_list() if "policy" in table.columns else [""]
    for number, policy in enumerate(policies):
        part = table.filter(table["policy"] == policy) if policy else table
        xs, ys = (part[name].cast(float).to_numpy() for name in (x, y))
        values = np.unique(xs)
        colour = f"C{number}"
        ax.plot(xs, ys, ".", ms=3, color=colour, alpha=0.35)
        least = [np.nanmin(ys[xs == value]) for value in values]
        if len(values) <= 50:
            ax.plot(values, least, "-o", ms=4, color=colour, label=f"{policy}, best of each".strip(", "))
        else:
            ax.plot([], [], "o", color=colour, label=policy)
    unit = getattr(result, "units", {}).get(x, "")
    ax.set(xlabel=f"{x} [{unit}]" if unit and unit != "1" else x, ylabel="cost [GPU-hours]" if y == "cost" else y)
    if log:
        ax.set_yscale("log")
    ax.legend(frameon=False, fontsize=8)


def sensitivity(result: Any, ax: Axes) -> None:
    """What one unit of each resource is worth, with its standard error, the dearest on top."""
    prices = sorted(result.prices.values(), key=lambda price: abs(price.worth))
    place = np.arange(len(prices))
    worth = np.array([price.worth for price in prices])
    error = np.array([price.error or 0.0 for price in prices])
    ax.barh(place, worth, xerr=error, color=AFTER, ecolor=LIMIT, capsize=3, height=0.6)
    ax.set_yticks(place, [f"{price.label}, {price.per}" for price in prices])
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="worth [GPU-hours per day]")
    largest = np.abs(worth).max(initial=0.0)
    for y, price in zip(place, prices, strict=True):
        if abs(price.worth) < 0.02 * largest or largest == 0:
            near = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
            ax.annotate(f"{price.worth:.2g}", (0, y), **near)


def certificate(result: Any, ax: Axes) -> None:
    """The hard cost before and after in its parts, with the clairvoyant bound, under the verdict."""
    rows = [result.tuning["before"], result.tuning["after"]]
    _bars(ax, ["before", "after"], rows)
    if result.bound_after is not None:
        ax.axvline(result.bound_after, color="black", lw=1.2, ls="--", label="clairvoyant bound")
        ax.legend(frameon=False, fontsize=8)
    ax.set_title(f"verdict: {result.verdict}")


def bound(result: Any, ax: Axes) -> None:
    """The fleet that the bound pays for, over time: no policy's, and not a whole number of workers."""
    hours = (np.arange(len(result.prefill_gpus)) + 1) * float(result.interval) / 3600
    ax.step(hours, np.asarray(result.prefill_gpus), where="pre", color=AFTER, label="prefill")
    ax.step(hours, np.asarray(result.decode_gpus), where="pre", color=LIMIT, ls="--", label="decode")
    ax.set(xlabel="time since start [h]", ylabel="GPUs", title=f"at least {result.value:,.0f} GPU-hours")
    ax.margins(x=0)
    ax.legend(frameon=False, fontsize=8)


def _bars(ax: Axes, names: list[str], rows: list[dict[str, Any]]) -> None:
    place = np.arange(len(names))[::-1]
    left = np.zeros(len(names))
    for part, label, colour, hatch in zip(PARTS, LABELS, GREYS, HATCHES, strict=True):
        size = np.array([float(row.get(part, 0.0)) for row in rows])
        if not size.any():
            continue
        ax.barh(place, size, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.7, label=label)
        left += size
    ax.set_yticks(place, names)
    ax.set(xlabel="cost [GPU-hours]")
    ax.margins(x=0.05)
    ax.legend(frameon=False, fontsize=8)


KINDS: dict[str, Callable[..., None]] = {
    "Plan": plan,
    "Run": trajectory,
    "Trajectory": trajectory,
    "Comparison": comparison,
    "TuneResult": tuning,
    "Logged": tuning,
    "Study": sweep,
    "DataFrame": sweep,
    "Sensitivity": sensitivity,
    "Certificate": certificate,
    "Bound": bound,
}
