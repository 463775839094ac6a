"""DeepEP's low-latency kernels: bandwidth of dispatch and combine over the width of expert parallelism (D26)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fluidq.figures._overlay import Mark, Reproduced, by_start, keys, of_system, overlay

SOURCE = "repository deepseek-ai/DeepEP, low-latency kernels (128 tokens, 8 experts, width 7168); D26"
CAPTION = (
    "The published bandwidths follow from the published times and the bytes of a token: what an exchange costs grows "
    "once it leaves the node (EP 8) and is flat from EP 128 on."
)
SIZE = (6.4, 3.6)


def compute() -> Reproduced:
    """All twelve entries of the table."""
    return Reproduced(CAPTION, of_system("DeepEP"))


def paint(figure: Figure, data: Reproduced) -> None:
    """Two panels, one a kernel."""
    pair = figure.subplots(1, 2, sharey=True)
    for axes, kind, words in zip(
        pair, ("dispatch", "combine"), ("dispatch, fp8 and scales", "combine, bf16"), strict=True
    ):
        _kernel(axes, by_start(data.marks, kind))
        axes.set_title(words)
        axes.set_xlabel("expert parallelism  [GPUs]")
    pair[0].set_ylabel("bandwidth  [GB/s per GPU]")
    pair[0].set_ylim(0, None)
    pair[1].legend(handles=[*keys(data.marks, ""), pair[1].get_lines()[0]])


def _kernel(axes: Axes, marks: list[Mark]) -> None:
    widths = [int(mark.what.rpartition("EP")[2]) for mark in marks]
    axes.plot(widths, [mark.ours for mark in marks], "-", marker=".", color="C0", label="ours, from the time")
    overlay(axes, widths, marks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.xaxis.set_minor_locator(NullLocator())
