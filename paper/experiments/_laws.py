"""What the experiments that compare laws share: one row per law, the bound, and curves short enough to keep."""

from typing import Any

import numpy as np

from fluidq.clairvoyant import Bound, clairvoyant
from fluidq.compare import Comparison, compare
from fluidq.scenario import Case

KEPT = ("cost", "gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "slo_attainment", "actions", "time_full")
# Points of a curve that is kept for a figure.
POINTS = 144


def compared(case: Case) -> tuple[dict[str, Any], Comparison, Bound]:
    """Every law on the case in its hard form, with the clairvoyant bound; also the runs themselves."""
    table = compare(case.fleet, case.workload, None, case.objective, progress=False)
    bound = clairvoyant(case.fleet, case.workload, case.objective, progress=False)
    return {**described(case), "bound": bound.value, "bound status": bound.status, "laws": rows(table)}, table, bound


def rows(table: Comparison) -> dict[str, dict[str, float]]:
    """The rows of a comparison by law, cheapest first."""
    return {str(row["policy"]): {key: float(row[key]) for key in KEPT} for row in table.rows()}


def described(case: Case) -> dict[str, Any]:
    """What a case runs on."""
    w = case.workload
    return {
        "requests": w.requests,
        "hours": w.duration / 3600.0,
        "isl": w.mean_isl,
        "isl computed": w.mean_isl_computed,
        "osl": w.mean_osl,
        "load scale": case.load_scale,
        "phi": case.phi,
        "batch": float(case.deployment.batch),
    }


def curve(values: Any, points: int = POINTS) -> list[float]:
    """Means over equal stretches of time."""
    return [float(part.mean()) for part in np.array_split(np.asarray(values, dtype=float), points)]
