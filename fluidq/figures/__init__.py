"""Figures by name. Each knows its source and its published values, and judges itself against the closed form.

>>> from fluidq import figures
>>> figures.names()
('fluid-vs-requests', 'shock-map', 'topologies')
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fluidq._errors import InputError, unknown
from fluidq.figures import _fluid_vs_requests, _shock_map, _topologies
from fluidq.figures._fluid_vs_requests import FluidVsRequests as FluidVsRequests
from fluidq.figures._fluid_vs_requests import fluid_vs_requests as fluid_vs_requests
from fluidq.figures._shock_map import ShockMap as ShockMap
from fluidq.figures._shock_map import shock_map as shock_map
from fluidq.figures._topologies import Topologies as Topologies
from fluidq.figures._topologies import topologies as topologies

__all__ = [
    "FluidVsRequests",
    "ShockMap",
    "Topologies",
    "build",
    "fluid_vs_requests",
    "listing",
    "names",
    "shock_map",
    "topologies",
]


class Built(Protocol):
    """What a builder returns: it can be told in plain numbers, `worst_error` among them."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Entry:
    """One figure.

    Attributes:
        draw: builds it from keyword parameters and writes it where `path` is given.
        data: the same numbers without the drawing.
        parameters: names that both take.
        source: where it was published.
        published: values that the source states, in SI units; the defaults are these.
    """

    draw: Callable[..., Built]
    data: Callable[..., Built]
    parameters: tuple[str, ...]
    source: str
    published: dict[str, float]


REGISTRY = {
    "fluid-vs-requests": Entry(
        _fluid_vs_requests.fluid_vs_requests,
        _fluid_vs_requests.compute,
        _fluid_vs_requests.PARAMETERS,
        _fluid_vs_requests.SOURCE,
        _fluid_vs_requests.PUBLISHED,
    ),
    "shock-map": Entry(
        _shock_map.shock_map, _shock_map.compute, _shock_map.PARAMETERS, _shock_map.SOURCE, _shock_map.PUBLISHED
    ),
    "topologies": Entry(
        _topologies.topologies, _topologies.compute, _topologies.PARAMETERS, _topologies.SOURCE, _topologies.PUBLISHED
    ),
}


def names() -> tuple[str, ...]:
    """The names that `build` knows."""
    return tuple(sorted(REGISTRY))


def listing() -> list[dict[str, Any]]:
    """Every figure with its source, its published values and the worst error of its default, computed now."""
    return [
        {
            "name": name,
            "source": entry.source,
            "published": entry.published,
            "parameters": list(entry.parameters),
            "worst_error": entry.data().to_dict()["worst_error"],
        }
        for name in names()
        for entry in (REGISTRY[name],)
    ]


def build(name: str, path: str | Path | None = None, **params: Any) -> dict[str, Any]:
    """Draw the figure `name` into `path` (PNG, PDF or SVG by its ending) and say what it shows, in plain numbers.

    Raises:
        InputError: an unknown name or parameter, a parameter that the figure cannot use, a file that cannot be written.
    """
    if name not in REGISTRY:
        raise unknown("figure", name, REGISTRY)
    entry = REGISTRY[name]
    for param in params:
        if param not in entry.parameters:
            raise unknown(f"parameter of the figure {name}", param, entry.parameters)
    try:
        built = entry.draw(path, **params)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None
    return {"name": name, "source": entry.source, "published": entry.published, **built.to_dict()}
