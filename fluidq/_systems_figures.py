"""A system that the article names, and a published figure of it with what computes it here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluidq.units import Number


@dataclass(frozen=True)
class Figure:
    """A published figure and how it is computed here.

    Attributes:
        what, unit: in words.
        published: as printed.
        ours: computes it.
        within: largest relative error that counts as agreement; for a `bound`, ours must not be below the published.
        primary: from a primary source; else a secondary account, a soft check.
        bound: ours is a limit that the published figure must respect.
        note: why it differs, where it does.
    """

    what: str
    unit: str
    published: Number
    ours: Callable[[], Number]
    within: float
    primary: bool = True
    bound: bool = False
    note: str = ""


@dataclass(frozen=True)
class System:
    """A system of the article: `model` in words with its derivations, `call` that reaches it, its figures."""

    name: str
    model: str
    call: str
    figures: tuple[Figure, ...]
    source: str


@dataclass(frozen=True)
class Checked:
    """A figure with its computed value."""

    system: str
    figure: Figure
    ours: float

    @property
    def error(self) -> float:
        """Relative to the published figure."""
        return self.ours / self.figure.published - 1

    @property
    def holds(self) -> bool:
        """Within its tolerance, or a bound that is respected."""
        return self.error >= -self.figure.within if self.figure.bound else abs(self.error) <= self.figure.within

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        f = self.figure
        return {
            "what": f.what,
            "unit": f.unit,
            "published": f.published,
            "ours": self.ours,
            "error": self.error,
            "within": f.within,
            "kind": "bound" if f.bound else "value",
            "source": "primary" if f.primary else "secondary",
            "holds": self.holds,
            "note": f.note,
        }
