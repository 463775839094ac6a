"""Figure: the article's shock map on its own grid, simulated. `python -m paper.figures.shock_map`"""

from pathlib import Path

from fluidq import figures

INPUTS = ("fluidq.figures: shock-map with its published values (C, Q0, P, cold starts up to tau_max)",)
TARGET = Path(__file__).with_suffix(".pdf")


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    figures.build("shock-map", path)
    return path


if __name__ == "__main__":
    print(draw())
