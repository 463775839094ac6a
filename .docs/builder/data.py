"""Tables that come from the package's own data: figures, scenario keys, symbols, and what the fluid misses."""

import html
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from builder.theory import mathml, words

LOADS = (0.5, 0.8, 0.9, 0.95, 1.1)
SLOW = {"topologies": "it simulates a day of each system"}


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


@cache
def drawn(name: str) -> tuple[bytes, dict[str, Any]]:
    """A figure as PNG, and what it says of itself."""
    import matplotlib

    from fluidq import figures

    matplotlib.use("Agg")
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.png")
        told = figures.build(name, path)
        return path.read_bytes(), told


def pictures() -> dict[str, bytes]:
    """The figures that the site shows, by path."""
    from fluidq import figures

    return {f"pictures/{name}.png": drawn(name)[0] for name in figures.names() if name not in SLOW}


def every_figure() -> str:
    """The figures that `fluidq figure` knows: caption, source, error, and the picture."""
    from fluidq import figures

    parts = []
    for name in figures.names():
        entry = figures.REGISTRY[name]
        parts += [f"### {name} {{ #{name} }}", _plain(entry.caption)]
        if name in SLOW:
            parts.append(f"Not drawn here, for {SLOW[name]}: `fluidq figure {name}` draws it.")
        else:
            error = drawn(name)[1]["worst_error"]
            parts.append(f"![{_plain(entry.caption).replace(chr(34), '')}](../pictures/{name}.png)")
            parts.append(f"Largest error against what is published: {error:.2g}.")
        parts.append(f"Source: {_plain(entry.source)}.")
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    return html.escape(text, quote=False).replace("*", r"\*").replace("[", r"\[").replace("]", r"\]")


def scenario_keys() -> str:
    """Every key of a scenario file."""
    from fluidq.scenario_keys import KEYS, WORDS

    parts = []
    for section, keys in KEYS.items():
        rows = []
        for name, key in keys.items():
            kind = key.kind if isinstance(key.kind, str) else key.kind.__name__
            kind = {"1": "number or share", "str": "text", "int": "whole number", "gpus": "GPUs"}.get(kind, kind)
            choices = f" ({', '.join(key.choices)})" if key.choices else ""
            rows.append((f"`{name}`", kind, f"{key.words}{choices}"))
        parts += [f"### [{section}] {{ #{section} }}", WORDS[section], _table(("key", "kind", "what it is"), rows)]
    return "\n\n".join(parts)


def symbols() -> str:
    """The symbols of the theory, from `derivations/symbols.py`: the ones that every topic shares."""
    from derivations import symbols as shared  # noqa: TID251
    from derivations.symbols import QUANTITIES  # noqa: TID251

    own = {id(value) for value in vars(shared).values()}
    rows = [
        (mathml(q.latex), f"`{symbol.name}`", html.escape(q.shown, quote=False), words(q.words))
        for symbol, q in QUANTITIES.items()
        if id(symbol) in own
    ]
    return _table(("symbol", "in code", "unit", "meaning"), rows)


def fluid_errors() -> str:
    """Mean TTFT that the fluid misses, and what the waiting correction leaves, from the committed measurement."""
    from fluidq import figures

    rows = figures.REGISTRY["fluid-vs-requests"].data(case="balanced").rows
    sizes = sorted({row["workers"] for row in rows})
    parts = []
    for words_, field in (("the fluid alone", "fluid"), ("with the M/G/c wait", "corrected")):
        table = []
        for load in LOADS:
            found = {row["workers"]: row["ttft"] for row in rows if row["load"] == load}
            table.append((f"{load:.0%}", *(_missed(found[n], field) for n in sizes)))
        parts += [f"Share of the mean TTFT that is missed, {words_}:"]
        parts += [_table(("load", *(f"{n} workers" for n in sizes)), table)]
    return "\n\n".join(parts)


def _missed(ttft: dict[str, float], field: str) -> str:
    return f"{1 - ttft[field] / ttft['requests']:+.1%}".replace("+", "").replace("-", "\N{MINUS SIGN}")


DIRECTIVES: dict[str, Callable[[], str]] = {f.__name__: f for f in (every_figure, scenario_keys, symbols, fluid_errors)}
