"""phi over the ratio of input to output, and the splits that were chosen or measured against it (D01, D06)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fluidq._systems_compute import DEEPSEEK, plan_rate
from fluidq.figures._overlay import Mark, Reproduced, dot, keys, of_system, percent, rows, table, ticks
from fluidq.formulas import balance, requests
from fluidq.validation._published import published_checks

SOURCE = (
    "repository deepseek-ai/open-infra-index day 6; arXiv 2603.04716, secondary; AIConfigurator's picks and measured "
    "points (repository ai-dynamo/aiconfigurator); D01, D02"
)
CAPTION = (
    "The balanced prefill share is a logistic curve in the logarithm of ISL / OSL, shifted by the rates of the engine; "
    "chosen splits are whole workers and lie around it by up to one of them."
)
SIZE = (9.6, 4.6)
RATIO = np.geomspace(0.05, 500.0, 200)


def compute() -> Reproduced:
    """phi of two published engines over ISL / OSL, and every published split with ours."""
    fleet, plan = (
        {"r_P": DEEPSEEK["r_P"], "B": DEEPSEEK["B"], "t_step": 1.0},
        {"r_P": plan_rate(), "B": 1700.0, "t_step": 1.0},
    )
    curves: dict[str, Any] = {"ratio": RATIO}
    for name, engine in (("DeepSeek day", fleet), ("planned H200", plan)):
        curves[name] = np.asarray(balance.balance_ratio(isl=RATIO, osl=1.0, **engine))
    (ratio,) = of_system("SGLang", "prefill over decode")
    # Instances of one size: R = n_P / n_D is phi / (1 - phi).
    planned = Mark(
        "prefill share, planned on H200 (from its P/D ratio)", "1", _share(ratio.published), _share(ratio.ours),
        ratio.within, ratio.source, ratio.evidence,
    )  # fmt: skip
    marks = (*of_system("DeepSeek-V3", "prefill share"), planned, *_splits())
    return Reproduced(CAPTION, marks, curves, {"deepseek_ratio": DEEPSEEK["isl"] / DEEPSEEK["osl"]})


def _share(ratio: float) -> float:
    return float(requests.balance_ratio_work(t_P=ratio, t_D=1.0))


def _splits() -> list[Mark]:
    """The checks of phi; what agrees is what they say: the same whole workers, or within one of them."""
    return [
        Mark(
            check.name, "1", check.published, check.predicted,
            abs(check.predicted / check.published - 1) if check.right else 0.0, check.source, note=check.words,
        )
        for check in published_checks()
        if check.name.startswith("phi,")
    ]  # fmt: skip


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the curves, right every split."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    _curves(left, data)
    rows(right, data.marks, [_words(mark) for mark in data.marks])
    right.set_xlim(0, 1)
    right.set_xlabel("prefill share of the GPUs φ")
    right.tick_params(axis="y", labelsize=7.5)
    figure.legend(handles=keys(data.marks, "ours, from the rates"), loc="outside lower right", ncols=3)


def _words(mark: Mark) -> str:
    if not mark.what.startswith("phi,"):
        return "DeepSeek day" if "nodes" in mark.what else "DeepSeek-V3.1, planned on H200"
    model, gpu = mark.what.split(", ")[1:3]
    return f"DeepSeek-V3, {model}" if gpu[0].isdigit() else f"{model}, {gpu}: pick"


def _curves(axes: Axes, data: Reproduced) -> None:
    for name, style in (("DeepSeek day", "-"), ("planned H200", "--")):
        axes.plot(data.curves["ratio"], data.curves[name], ls=style, label=name)
    places = (data.numbers["deepseek_ratio"], 6144 / 512)
    for x, mark, side in zip(places, data.marks, (-1, 1), strict=False):
        axes.plot([x], [mark.published], **dot(mark), zorder=5)
        axes.annotate(
            f"{mark.published:.3f} ({percent(mark.error)})",
            (x, mark.published),
            (8 * side, -4),
            textcoords="offset points",
            fontsize=8,
            ha="left" if side > 0 else "right",
        )
    for trace in table()["traces"]["lengths"]:
        axes.axvline(trace["isl"] / trace["osl"], color="0.7", lw=0.8, zorder=0)
        axes.text(
            trace["isl"] / trace["osl"] * 0.95, 0.02, trace["name"], rotation=90, ha="right", va="bottom", fontsize=7.5
        )
    axes.set(xscale="log", xlim=(0.05, 500), ylim=(0, 1))
    ticks(axes.xaxis, (0.1, 1, 10, 100))
    axes.set_xlabel("ISL / OSL")
    axes.set_ylabel("prefill share of the GPUs φ")
    axes.set_title("the article's split")
    axes.legend(loc="upper left")
