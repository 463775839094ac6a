"""Every law on the embedded day."""

from typing import Any

from fluidq.scenario import build_case
from paper.experiments._laws import compared
from paper.measure import Experiment


def compute() -> dict[str, Any]:
    """One row per law, and the bound; about a minute on two cores."""
    return compared(build_case())[0]


EXPERIMENT = Experiment("day", "every law on the embedded day, hard form", __name__, compute)
