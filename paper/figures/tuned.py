"""Figure: the day under the untuned and the tuned policy, hard law. `python -m paper.figures.tuned`"""

from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from fluidq import plot
from paper.experiments.tuning import case, trajectories

INPUTS = ("paper/measured/tuning.json: the laws before and after; paper.experiments.tuning: the day, replayed now",)
TARGET = Path(__file__).with_suffix(".pdf")


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    with style.context(plot.STYLE):
        figure = Figure(figsize=(6.4, 5.4), layout="constrained")
        axes = figure.subplots(4, 1, sharex=True)
        plot.trajectories(trajectories(), case().fleet, case().objective, axes)
        axes[-1].set_xlim(0, case().workload.duration / 3600)
        return plot.save(figure, path)


if __name__ == "__main__":
    print(draw())
