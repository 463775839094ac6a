"""Published values over our curves: what a mark is, how far off ours is, and how both are drawn.

A value from a primary source is a hit or a miss. One from a secondary account, or recorded in our own theory, is shown
and never counted as a hit; it is still a miss where it is off. The worst error is over all of them.
"""

import functools
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

from fluidq._errors import unknown
from fluidq.systems import SYSTEMS
from fluidq.units import Number

INK = "0.1"
VALUE, AT_LEAST, AT_MOST = "value", "at least", "at most"
PRIMARY, SECONDARY, OWN = "primary", "secondary", "own"


@dataclass(frozen=True)
class Mark:
    """A published value and ours.

    Attributes:
        what, unit: in words.
        published, ours: as printed, and as computed here.
        within: largest relative error that counts as agreement.
        source: where it was published.
        evidence: "primary" source; "secondary" account or our "own" figure, which are never counted as hits.
        kind: "value"; or a bound, ours being "at least" or "at most" the published one.
        note: why it differs, where it does.
    """

    what: str
    unit: str
    published: Number
    ours: Number
    within: Number
    source: str
    evidence: str = PRIMARY
    kind: str = VALUE
    note: str = ""

    @property
    def error(self) -> float:
        """Relative to the published value; of a bound only what breaks it."""
        return {AT_LEAST: min(0.0, self.gap), AT_MOST: max(0.0, self.gap)}.get(self.kind, self.gap)

    @property
    def gap(self) -> float:
        """How far ours is from the published value, relative to it; of a bound also where it is kept."""
        return self.ours / self.published - 1

    @property
    def verdict(self) -> str:
        """ "hit", "miss", or "shown" for what agrees without a primary source."""
        if not abs(self.error) <= self.within:
            return "miss"
        return "hit" if self.evidence == PRIMARY else "shown"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "published": self.published,
            "ours": self.ours,
            "error": self.error,
            "gap": self.gap,
            "within": self.within,
            "kind": self.kind,
            "verdict": self.verdict,
            "source": self.source,
            "evidence": self.evidence,
            "note": self.note,
        }


@dataclass(frozen=True)
class Reproduced:
    """A figure with the published values that lie over it.

    Attributes:
        caption: one sentence, what to see.
        marks: the published values with ours.
        curves: what is drawn beside them, by name; arrays in the units of the axes.
        numbers: a few plain numbers that the figure shows.
        figure: what was drawn; None where only the numbers were asked for.
    """

    caption: str
    marks: tuple[Mark, ...]
    curves: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    figure: Figure | None = None

    @property
    def worst(self) -> Mark:
        """The mark that is furthest off."""
        return max(self.marks, key=lambda mark: abs(mark.error))

    @property
    def worst_error(self) -> float:
        """Largest relative error over all marks, of bounds what breaks them."""
        return float(abs(self.worst.error))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: the marks, the worst of them, and the numbers."""
        return {
            "caption": self.caption,
            "marks": [mark.to_dict() for mark in self.marks],
            "worst": self.worst.what,
            "worst_error": self.worst_error,
            "misses": [mark.what for mark in self.marks if mark.verdict == "miss"],
            **self.numbers,
        }


@functools.cache
def table() -> dict[str, Any]:
    """The published values that only figures use, with their sources."""
    return tomllib.loads(resources.files("fluidq.figures").joinpath("published.toml").read_text(encoding="utf-8"))


def source(key: str) -> str:
    """The words of a source in the table."""
    return table()["sources"][key]


def of_system(name: str, starts: str = "") -> tuple[Mark, ...]:
    """The figures of a system on the page of systems, computed; those whose words begin with `starts`.

    Raises:
        InputError: a system that is not on the page.
    """
    found = {system.name: system for system in SYSTEMS}
    if name not in found:
        raise unknown("system", name, found)
    system = found[name]
    return tuple(
        Mark(
            what=f.what,
            unit=f.unit,
            published=float(f.published),
            ours=float(f.ours()),
            within=float(f.within) + 1e-12,
            source=system.source,
            evidence=PRIMARY if f.primary else SECONDARY,
            kind=AT_LEAST if f.bound else VALUE,
            note=f.note,
        )
        for f in system.figures
        if f.what.startswith(starts)
    )


def overlay(axes: Axes, xs: Sequence[Number] | np.ndarray, marks: Sequence[Mark], *, side: int = 1) -> None:
    """Published values at `xs`, each with a tie to ours; a miss says by how much it is off, to its right (`side` 1) or
    left (-1)."""
    for x, mark in zip(xs, marks, strict=True):
        axes.plot([x, x], [mark.published, mark.ours], color=INK, lw=0.8, zorder=4)
        axes.plot([x], [mark.published], **dot(mark), zorder=5)
        if mark.verdict == "miss":
            axes.annotate(
                f"{mark.error:+.0%}", (x, mark.published), (6 * side, 0), textcoords="offset points", va="center",
                ha="left" if side > 0 else "right", fontsize=8, weight="bold",
            )  # fmt: skip


def dot(mark: Mark) -> dict[str, Any]:
    """How a published value is drawn: filled from a primary source, hollow from a secondary, a square where it is
    our own; a bound is a triangle that points to the side where ours may lie."""
    shape = {AT_LEAST: "^", AT_MOST: "v"}.get(mark.kind, "s" if mark.evidence == OWN else "o")
    fill = INK if mark.evidence == PRIMARY else "white"
    return {"marker": shape, "color": INK, "mfc": fill, "ms": 5.5, "mew": 1.1, "ls": ""}


def rows(axes: Axes, marks: Sequence[Mark], words: Sequence[str] | None = None) -> None:
    """One row a mark: published dot, our bar as a tick, the error at the right edge."""
    axes.set_ylim(len(marks) - 0.4, -0.6)
    axes.set_yticks(range(len(marks)), [m.what for m in marks] if words is None else words)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    for row, mark in enumerate(marks):
        axes.plot([mark.published, mark.ours], [row, row], color=INK, lw=0.8)
        axes.plot([mark.published], [row], **dot(mark))
        axes.plot([mark.ours], [row], "|", color="C0", ms=13, mew=2)
        axes.text(
            1.01, row, percent(mark.error), transform=axes.get_yaxis_transform(), va="center", fontsize=8,
            weight="bold" if mark.verdict == "miss" else "normal", color=INK,
        )  # fmt: skip


def keys(marks: Iterable[Mark], ours: str = "ours") -> list[Line2D]:
    """Legend handles for what `overlay` and `rows` draw of these marks."""
    drawn = {(mark.kind, mark.evidence): mark for mark in marks}
    kinds = {VALUE: "published", AT_LEAST: "published bound, ours above", AT_MOST: "published bound, ours below"}
    words = {PRIMARY: "", SECONDARY: " (secondary account)"}
    handles = [
        Line2D([], [], **dot(mark), label="recorded in the theory" if how == OWN else kinds[kind] + words[how])
        for (kind, how), mark in sorted(drawn.items(), reverse=True)
    ]
    tick = Line2D([], [], marker="|", color="C0", ms=10, mew=2, ls="", label=ours)
    return [*handles, tick] if ours else handles


def ticks(axis: Axis, values: Sequence[Number]) -> None:
    """Plain numbers at these places of a logarithmic axis, and no others."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FixedFormatter([f"{value:g}" for value in values]))
    axis.set_minor_formatter(NullFormatter())


def percent(error: float) -> str:
    """A signed share in words; none where it rounds to nothing."""
    return "0.0%" if abs(error) < 5e-4 else f"{error:+.1%}"


def by_start(marks: Iterable[Mark], starts: str) -> list[Mark]:
    """The marks whose words begin so."""
    return [mark for mark in marks if mark.what.startswith(starts)]
