"""Figure: a recorded day, its demand, what three laws and the bound make of it. `python -m paper.figures.real_day`"""

from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from fluidq import plot
from paper.experiments import EXPERIMENTS

INPUTS = ("paper/measured/traces.json: curves of the ServeGen day, ten-minute means",)
TARGET = Path(__file__).with_suffix(".pdf")
LINES = {"balance": ("balance tracking", "C0", "-"), "heteroscale": ("HeteroScale", "C1", "--")}
LINES |= {"thresholds": ("joint thresholds, defaults", "C3", "-."), "bound": ("clairvoyant bound", "0.35", ":")}


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    curves = EXPERIMENTS["traces"].values()["servegen"]["curves"]
    hours = np.array(curves["hours"])
    with style.context(plot.STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        for ax, pool in zip(figure.subplots(2, 1, sharex=True), ("prefill", "decode"), strict=True):
            ax.fill_between(hours, 0, curves[f"{pool} demand"], color="0.82", lw=0, label="demand of the load")
            for name, (label, colour, dash) in LINES.items():
                ax.plot(hours, curves[name][pool], color=colour, ls=dash, lw=1.2, label=label)
            ax.set_ylabel(f"{pool} GPUs")
            ax.set_ylim(0, None)
            ax.set_xlim(0, 24)
        figure.axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=3)
        figure.axes[1].set_xlabel("time since the start of the record [h]")
        return plot.save(figure, path)


if __name__ == "__main__":
    print(draw())
