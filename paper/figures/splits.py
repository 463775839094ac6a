"""Figure: the split that balance predicts against the one that was published. `python -m paper.figures.splits`"""

from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from fluidq import plot
from paper.experiments import EXPERIMENTS

INPUTS = ("paper/measured/validation.json: rows of the table of deployments",)
TARGET = Path(__file__).with_suffix(".pdf")


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    kept = EXPERIMENTS["validation"].values()
    with style.context(plot.STYLE):
        figure = Figure(figsize=(3.7, 3.5), layout="constrained")
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], color="0.5", lw=0.8)
        ax.plot(*zip(*kept["expected"], strict=True), "o", color="C0", ms=4, alpha=0.8, label="balance expected")
        ax.plot(*zip(*kept["not expected"], strict=True), "x", color="C5", ms=5, mew=1.4, label="not expected")
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_xlabel("published prefill share of the GPUs")
        ax.set_ylabel("prefill share at balance")
        ax.legend(loc="lower right")
        return plot.save(figure, path)


if __name__ == "__main__":
    print(draw())
