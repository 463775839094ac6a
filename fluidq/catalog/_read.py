"""Reads one table of a catalogue file: figures in SI, each with its source, and errors that name file and field."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluidq._errors import InputError, refuse, unknown
from fluidq.catalog._entries import Figure, PrefillRate, StepFit, Transfer
from fluidq.kv import Architecture, from_config, read_config
from fluidq.units import Number, parse

PRECISIONS = ("bf16", "fp8", "fp4")

Fields = Mapping[str, Any]

# What each table may hold: figures with their dimension, and everything else.
_FIGURES = {
    "gpus": {
        **dict.fromkeys(PRECISIONS, "flop/s"),
        **{"hbm": "bytes", "hbm_rate": "bytes/s", "nic": "bytes/s", "scaleup": "bytes/s", "pcie": "bytes/s"},
    },
    "models": {"params_active": "1", "params_total": "1", "kv_scan": "bytes/token", "kv_fixed": "bytes"},
    "links": {"rate": "bytes/s"},
    "transfers": {"measured": "bytes/s", "nominal": "bytes/s", "size": "bytes"},
}
_OTHERS = {
    "gpus": ("aliases", "note", "scaleup_gpus"),
    "models": (
        *("aliases", "config", "config_source", "kv", "note", "prefill", "steps", "steps_of", "weights"),
        "worker_gpus",
    ),
    "links": ("aliases", "kind", "note"),
    "transfers": ("hardware", "name", "note", "scope", "software", "source"),
}
COUNTED = ("params_active", "params_total", "weights", "kv", "kv_scan", "kv_fixed")
_STEP = ("gpu", "label", "a", "b", "c", "error", "rank_gpus", "worker_gpus", "precision", "source")
_PREFILL = ("value", "label", "gpu", "precision", "source")
_KV = ("value", "label", "source")


@dataclass(frozen=True)
class File:
    """A parsed file: what messages call it, its sources, and the folder that its paths start from.

    In the catalogue's own files (`strict`) each figure names one of its [sources]; a user may write the source itself,
    or leave it out.
    """

    name: str
    sources: Mapping[str, str]
    folder: Path | None = None
    strict: bool = False

    def source(self, given: object, where: str) -> str:
        if given is None and not self.strict:
            return self.name
        if not isinstance(given, str):
            raise refuse(f"{where}.source", given, "text")
        if self.strict and given not in self.sources:
            raise unknown(f"source in {where}", given, self.sources)
        return self.sources.get(given, given)

    def figure(self, given: object, dimension: str, where: str, least: Number | None = None) -> Figure:
        """A figure from text, a number, or a table with value, label and source; above 0 unless `least` is given."""
        entry = given if isinstance(given, Mapping) else {"value": given, "label": "as given"}
        _known(entry, _KV, where)
        value = number(required(entry, "value", where), dimension, where, least)
        return Figure(value, text(entry, "label", where), self.source(entry.get("source"), where))


def number(given: object, dimension: str, where: str, least: Number | None = None) -> float:
    """The SI value of text with its unit or of a number, finite, above 0 or at least `least`."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise refuse(where, given, "text with its unit, or a number")
    value = parse(given, dimension, where, minimum=least, above=0.0 if least is None else None)
    if math.isinf(value):
        raise refuse(where, given, "a finite number")
    return value


def _known(entry: object, fields: tuple[str, ...], where: str) -> None:
    if not isinstance(entry, Mapping):
        raise refuse(where, entry, f"a table with {', '.join(fields)}")
    for field, value in entry.items():
        if field not in fields:
            hint = " (a name that holds a dot needs quotes)" if isinstance(value, Mapping) else ""
            raise unknown(f"field of {where}{hint}", field, fields)


def required(entry: Fields, field: str, where: str) -> Any:
    if field not in entry:
        raise InputError(f"{where}.{field} is missing; it must be given.")
    return entry[field]


def text(entry: Fields, field: str, where: str, default: str = "") -> str:
    value = entry.get(field, default)
    if not isinstance(value, str):
        raise refuse(f"{where}.{field}", value, "text")
    return value


def whole(entry: Fields, field: str, where: str, default: int = 1) -> int:
    value = entry.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise refuse(f"{where}.{field}", value, "a whole number of GPUs >= 1")
    return value


def _tables(entry: Fields, field: str, where: str) -> list[Fields]:
    """An array of tables; one table alone will do."""
    given = entry.get(field, [])
    given = [given] if isinstance(given, Mapping) else given
    if not isinstance(given, list):
        raise refuse(f"{where}.{field}", given, "an array of tables")
    return given


def _config(name: str, given: object, file: File, source: object, where: str) -> Architecture:
    """The architecture of a table with the fields of a config.json, or of a file beside the TOML."""
    if isinstance(given, str):
        found = read_config(given if file.folder is None else file.folder / given)
        origin = found.source if source is None else file.source(source, where)
    elif isinstance(given, Mapping):
        found, origin = from_config(given, where), file.source(source, where)
    else:
        raise refuse(where, given, "the path of a config.json, or a table with its fields")
    return Architecture(**{**vars(found), "name": name, "source": origin})


def _steps(name: str, entry: Fields, file: File, where: str) -> list[StepFit]:
    fits = []
    for step in _tables(entry, "steps", where):
        at = f"{where}.steps"
        _known(step, _STEP, at)
        times = {k: number(required(step, k, at), "seconds", f"{at}.{k}", least=0.0) for k in "abc"}
        if sum(times.values()) <= 0:
            raise refuse(f"{at}.a", times["a"], "> 0 s where b and c are 0 (a step takes time)")
        error = number(step.get("error", 0.0), "1", f"{at}.error", least=0.0)
        gpu, precision = text(step, "gpu", at), text(step, "precision", at)
        label = text(step, "label", at, default=f"{name} on {gpu}")
        ranks = {k: whole(step, k, at) for k in ("rank_gpus", "worker_gpus")}
        source = file.source(step.get("source"), at)
        fits.append(StepFit(gpu=gpu, label=label, error=error, source=source, precision=precision, **times, **ranks))
    return fits


def _prefill(entry: Fields, file: File, where: str) -> list[PrefillRate]:
    rates = []
    for rate in _tables(entry, "prefill", where):
        at = f"{where}.prefill"
        _known(rate, _PREFILL, at)
        figure = file.figure({k: rate[k] for k in _KV if k in rate}, "tokens/s", at)
        rates.append(PrefillRate(text(rate, "gpu", at), figure, text(rate, "precision", at)))
    return rates


def resolved(kind: str, name: str, entry: object, file: File) -> dict[str, Any]:
    """One table with its figures parsed and its sources spelt out, so that another file can be laid over it."""
    where = f"{file.name}: {kind}.{name}" if not file.strict else name
    _known(entry, tuple(sorted((*_FIGURES[kind], *_OTHERS[kind]))), where)
    assert isinstance(entry, Mapping)
    out: dict[str, Any] = {}
    for field, given in entry.items():
        at = f"{where}.{field}"
        if field in _FIGURES[kind]:
            least = 0.0 if field in ("kv_scan", "kv_fixed") else None
            out[field] = file.figure(given, _FIGURES[kind][field], at, least)
        elif field == "weights":
            _known(given, (*PRECISIONS, "source"), at)
            out[field] = {}
            for precision in (key for key in given if key != "source"):
                size = given[precision]
                size = dict(size) if isinstance(size, Mapping) else {"value": size, "label": precision}
                if "source" in given:
                    size.setdefault("source", given["source"])
                out[field][precision] = file.figure(size, "bytes", f"{at}.{precision}")
        elif field == "kv":
            several = given if isinstance(given, list) else [given]
            if not several:
                raise refuse(at, given, "at least one size per token")
            out[field] = [file.figure(size, "bytes/token", at) for size in several]
        elif field == "config":
            out[field] = _config(name, given, file, entry.get("config_source"), at)
        elif field == "aliases":
            if not isinstance(given, list) or not all(isinstance(alias, str) for alias in given):
                raise refuse(at, given, "a list of names")
            out[field] = given
        else:
            out[field] = given
    if kind == "models":
        out |= {"steps": _steps(name, entry, file, where), "prefill": _prefill(entry, file, where)}
    return out


def laid_over(old: Fields, new: Fields) -> dict[str, Any]:
    """`new` laid over `old`: figures are replaced, lists of figures come before the old ones.

    A new architecture takes with it whatever was counted from, or published for, the old one.
    """
    if "config" in new:
        old = {k: v for k, v in old.items() if k not in (*COUNTED, "steps", "steps_of", "prefill")}
    out = {**old, **new}
    for field in {"kv", "steps", "prefill", "aliases"} & set(old) & set(new):
        out[field] = [*new[field], *old[field]]
    if "weights" in old and "weights" in new:
        out["weights"] = {**old["weights"], **new["weights"]}
    return out


def take_sources(table: dict[str, Any], where: str) -> dict[str, str]:
    sources = table.pop("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(words, str) for words in sources.values()):
        raise refuse(f"{where}: sources", sources, "a table of texts")
    return dict(sources)


def read_transfers(entries: list[Fields], file: File) -> tuple[Transfer, ...]:
    out = []
    for entry in entries:
        name = str(entry["name"])
        figure = functools.partial(file.figure, where=name)
        sized = {
            k: figure({"value": entry[k], "source": entry["source"]}, d) if k in entry else None
            for k, d in _FIGURES["transfers"].items()
        }
        words = {k: text(entry, k, name) for k in ("software", "hardware", "scope", "note")}
        out.append(Transfer(name=name, **words, **sized))  # pyright: ignore[reportArgumentType]
    return tuple(out)
