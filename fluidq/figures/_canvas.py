"""The sheet that figures are drawn on: the project's style, no global state, the same bytes for the same data."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from fluidq._errors import refuse

STYLE = Path(__file__).parents[1] / "style.mplstyle"
# What each format would otherwise stamp with the time of writing or the release of its writer.
STAMPS = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".svg": {"Date": None, "Creator": None},
}


@contextmanager
def sheet(width: float, height: float, path: str | Path | None = None) -> Iterator[Figure]:
    """An empty figure of the size in inches; written to `path`, where one is given, when the block ends.

    Raises:
        InputError: a path that ends in none of .png, .pdf, .svg.
    """
    target = None if path is None else Path(path)
    if target is not None and target.suffix.lower() not in STAMPS:
        raise refuse("the file name of the figure", str(target), f"a name that ends in {', '.join(STAMPS)}")
    with style.context(str(STYLE)):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        if target is not None:
            figure.savefig(target, metadata=STAMPS[target.suffix.lower()])
