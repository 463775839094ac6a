"""Figure: the fluid against whole requests. `python -m paper.figures.waiting`"""

from pathlib import Path

from fluidq import figures

INPUTS = ("fluidq.figures: fluid-vs-requests, from the table that tests/benchmarks/fluid_vs_requests.py measured",)
TARGET = Path(__file__).with_suffix(".pdf")


def draw(path: Path = TARGET) -> Path:
    """Write the figure and say where."""
    figures.build("fluid-vs-requests", path)
    return path


if __name__ == "__main__":
    print(draw())
