"""Figures by name. Each knows its source and its published values, and says how far off ours are.

>>> from fluidq import figures
>>> figures.names()[:4]
('afd-ratio', 'balance', 'cold-start', 'crossover')
>>> built = figures.build("fabric-margin")
>>> built["worst_error"] < 1e-3, built["misses"]
(True, [])
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from fluidq._errors import InputError, unknown
from fluidq.figures import (
    _afd,
    _balance,
    _cold_start,
    _crossover,
    _deepep,
    _deepseek_day,
    _distserve,
    _fabric_margin,
    _fluid_vs_requests,
    _kv_per_token,
    _limit_cycle,
    _measured_splits,
    _mooncake,
    _sarathi,
    _shock_map,
    _splitwise,
    _taichi,
    _topologies,
)
from fluidq.figures._canvas import sheet
from fluidq.figures._fluid_vs_requests import FluidVsRequests as FluidVsRequests
from fluidq.figures._fluid_vs_requests import fluid_vs_requests as fluid_vs_requests
from fluidq.figures._overlay import Mark as Mark
from fluidq.figures._overlay import Reproduced as Reproduced
from fluidq.figures._shock_map import ShockMap as ShockMap
from fluidq.figures._shock_map import shock_map as shock_map
from fluidq.figures._topologies import Topologies as Topologies
from fluidq.figures._topologies import topologies as topologies

__all__ = [
    "FluidVsRequests",
    "Mark",
    "Reproduced",
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
        caption: one sentence, what to see.
        published: values that the source states, in SI units, which are the defaults; None where its marks have them.
    """

    draw: Callable[..., Built]
    data: Callable[..., Built]
    parameters: tuple[str, ...]
    source: str
    caption: str
    published: dict[str, float] | None = None


def _reproduced(module: ModuleType) -> Entry:
    """A figure of published values: its module computes and paints, the sheet and the file are the same for all."""

    def draw(path: str | Path | None = None) -> Reproduced:
        data = module.compute()
        width, height = module.SIZE
        with sheet(width, height, path) as figure:
            module.paint(figure, data)
        return replace(data, figure=figure)

    return Entry(draw, module.compute, (), module.SOURCE, module.CAPTION)


def _computed(module: ModuleType, draw: Callable[..., Built], caption: str) -> Entry:
    return Entry(draw, module.compute, module.PARAMETERS, module.SOURCE, caption, module.PUBLISHED)


REGISTRY = {
    "afd-ratio": _reproduced(_afd),
    "balance": _reproduced(_balance),
    "cold-start": _reproduced(_cold_start),
    "crossover": _reproduced(_crossover),
    "deepep": _reproduced(_deepep),
    "deepseek-day": _reproduced(_deepseek_day),
    "distserve": _reproduced(_distserve),
    "fabric-margin": _reproduced(_fabric_margin),
    "fluid-vs-requests": _computed(
        _fluid_vs_requests,
        fluid_vs_requests,
        "The fluid misses the wait of whole requests below capacity; a closed form for queues of many servers adds it, "
        "and what is left falls with the size of the fleet.",
    ),
    "kv-per-token": _reproduced(_kv_per_token),
    "limit-cycle": _reproduced(_limit_cycle),
    "measured-splits": _reproduced(_measured_splits),
    "mooncake": _reproduced(_mooncake),
    "sarathi": _reproduced(_sarathi),
    "shock-map": _computed(
        _shock_map,
        shock_map,
        "Steps below the curves are absorbed by stock or headroom until the resize lands; above them a share of the "
        "flow is stranded that grows with the step and the cold start.",
    ),
    "splitwise": _reproduced(_splitwise),
    "taichi": _reproduced(_taichi),
    "topologies": _computed(
        _topologies,
        topologies,
        "On the same GPUs and the same day two pools keep the time per token flat, shared GPUs keep the wait short; "
        "each simulated throughput is its closed form.",
    ),
}


def names() -> tuple[str, ...]:
    """The names that `build` knows."""
    return tuple(sorted(REGISTRY))


def listing() -> list[dict[str, Any]]:
    """Every figure: source, caption, published values, and the worst error of its default, computed now."""
    return [_line(name, entry) for name in names() for entry in (REGISTRY[name],)]


def _line(name: str, entry: Entry) -> dict[str, Any]:
    told = entry.data().to_dict()
    published = {m["what"]: m["published"] for m in told["marks"]} if entry.published is None else entry.published
    return {
        "name": name,
        "source": entry.source,
        "caption": entry.caption,
        "published": published,
        "parameters": list(entry.parameters),
        "worst_error": told["worst_error"],
        "misses": told.get("misses", []),
    }


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
    told = {"name": name, "source": entry.source, "caption": entry.caption, **built.to_dict()}
    return told if entry.published is None else {**told, "published": entry.published}
