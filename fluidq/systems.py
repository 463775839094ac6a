"""The systems that the article names: the model of each here, the call that reaches it, and its published figures.

`SYSTEMS` is the page as data, `report()` computes every check; `fluidq size --systems` prints it.

>>> [system.name for system in SYSTEMS][:3]
['DistServe', 'Splitwise', 'SARATHI']
"""

from dataclasses import dataclass
from typing import Any

from fluidq._bounds import columns
from fluidq._systems_figures import Checked as Checked
from fluidq._systems_figures import Figure as Figure
from fluidq._systems_figures import System as System
from fluidq._systems_page import SYSTEMS as SYSTEMS


@dataclass(frozen=True)
class Report:
    """Every figure of every system, computed; `holds` where all of them do."""

    checked: tuple[Checked, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every figure is within its tolerance."""
        return all(c.holds for c in self.checked)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "holds": self.holds,
            "systems": [
                {
                    "name": s.name,
                    "model": s.model,
                    "call": s.call,
                    "source": s.source,
                    "figures": [c.to_dict() for c in self.checked if c.system == s.name],
                }
                for s in SYSTEMS
            ],
        }

    def __str__(self) -> str:
        parts = ["Systems that the article names: model, call, and published figures against ours"]
        for s in SYSTEMS:
            rows = []
            for c in (c for c in self.checked if c.system == s.name):
                f = c.figure
                kind = "at most ours" if f.bound else f"{c.error:+.2%}"
                words = f"{f.what} [{f.unit}]{'' if f.primary else ' (secondary)'}{'; ' + f.note if f.note else ''}"
                verdict = "ok" if c.holds else "OFF"
                rows.append((verdict, f"{f.published:,.5g}", f"{c.ours:,.5g}", kind, words))
            parts.append(f"{s.name}: {s.model}\n  {s.call}\n  {s.source}\n{columns(rows, '    ')}")
        return "\n\n".join(parts)


def report() -> Report:
    """Compute every figure."""
    return Report(tuple(Checked(s.name, f, float(f.ours())) for s in SYSTEMS for f in s.figures))
