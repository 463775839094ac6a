"""Published figures that need no table: reproduced figures, the systems of the article, the checks of validation."""

from typing import Any

from fluidq import figures, systems
from fluidq.validation import published_checks
from paper.measure import Experiment


def compute() -> dict[str, Any]:
    """Per reproduced figure its worst error and misses; per system how many of its figures are within tolerance."""
    checked = systems.report().checked
    groups: dict[str, list[bool]] = {}
    for check in published_checks():
        groups.setdefault(check.group, []).append(bool(check.right))
    return {
        "figures": {
            line["name"]: {
                "source": line["source"],
                "values": len(line["published"] or {}),
                "worst error": line["worst_error"],
                "misses": list(line["misses"]),
            }
            for line in figures.listing()
        },
        "systems": {
            s.name: {
                "figures": sum(c.system == s.name for c in checked),
                "hold": sum(c.system == s.name and c.holds for c in checked),
            }
            for s in systems.SYSTEMS
        },
        "checks": {name: {"right": sum(right), "of": len(right)} for name, right in groups.items()},
    }


EXPERIMENT = Experiment("published", "published figures reproduced", __name__, compute)
