"""Splits of eight GPUs as measured, against the balance with the limit on the requests in flight (D01, D07)."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fluidq.figures._overlay import Mark, Reproduced, keys, overlay, percent
from fluidq.validation._published import Check, published_checks

SOURCE = "repository dstackai/benchmarks, comparison/pd_ratio (gpt-oss-120b, 8 H200, SGLang and NIXL); D01, D07"
CAPTION = (
    "From one measured run of each mix the model names the best split of all four, but its rates of the other runs are "
    "high throughout, by 9 to 42 %, and in two mixes beyond the 25 % that it allows itself."
)
SIZE = (7.0, 4.0)
GROUP, RATE, BEST, CLAIM = "dstack sweep", "req/s, ", "prefill workers of the best split, ", 0.25


def compute() -> Reproduced:
    """The rates of the runs that gave nothing to the model, and the best split of each mix."""
    checks = [check for check in published_checks() if check.group == GROUP]
    rates = [_mark(check, "req/s", CLAIM) for check in _starting(checks, RATE)]
    best = [_mark(check, "workers", 1e-9) for check in _starting(checks, BEST)]
    curves: dict[str, Any] = {"rows": np.arange(len(rates))}
    gaps = [mark.gap for mark in rates]
    numbers = {
        "best_splits_named": float(sum(mark.verdict == "hit" for mark in best)),
        "least_gap": min(gaps),
        "largest_gap": max(gaps),
    }
    return Reproduced(CAPTION, (*rates, *best), curves, numbers)


def _starting(checks: Iterable[Check], words: str) -> list[Check]:
    return [check for check in checks if check.name.startswith(words)]


def _mark(check: Check, unit: str, within: float) -> Mark:
    return Mark(check.name, unit, check.published, check.predicted, within, check.source, note=check.words)


def paint(figure: Figure, data: Reproduced) -> None:
    """Rates of the runs by mix, with the best split of each mix in words."""
    axes = figure.subplots()
    rates = [mark for mark in data.marks if mark.what.startswith(RATE)]
    overlay(axes, data.curves["rows"], rates)
    axes.plot(data.curves["rows"], [mark.ours for mark in rates], "_", color="C0", ms=14, mew=2)
    for row, mark in enumerate(rates):
        if mark.verdict == "hit":
            axes.annotate(
                percent(mark.error), (row, mark.published), (8, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_xticks(data.curves["rows"], [_label(mark) for mark in rates])
    axes.set(yscale="log", ylim=(1, 150), xlim=(-0.6, len(rates) - 0.4))
    axes.set_ylabel("throughput  [req/s]")
    axes.set_xlabel("mix and split of the run")
    _best(axes, data)
    handles = keys(rates, "ours, with the limit on concurrency")
    handles[-1].set_marker("_")
    axes.legend(handles=handles, loc="lower left")


def _label(mark: Mark) -> str:
    mix, split = mark.what.removeprefix(RATE).rsplit(", ", 1)
    return mix.replace(", ", "\n") + "\n" + split


def _best(axes: Axes, data: Reproduced) -> None:
    """One line a mix: the best split as measured and as computed."""
    lines = []
    for mark in data.marks:
        if mark.what.startswith(BEST):
            mix, found = mark.what.removeprefix(BEST).split(": ")
            lines.append(f"{mix}: {found}")
    words = "best split\n" + "\n".join(lines)
    axes.text(0.99, 0.98, words, transform=axes.transAxes, ha="right", va="top", fontsize=8)
