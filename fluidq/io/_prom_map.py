"""The metric map: which Prometheus series hold which quantity, read from TOML that a user can edit."""

import fnmatch
import functools
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fluidq._errors import InputError, refuse, unknown
from fluidq.io._files import PathLike, open_text
from fluidq.measurements import QUANTITIES

KINDS = ("counter", "histogram", "gauge", "count", "each")
NAME_LISTS = (*KINDS, "per", "plus", "minus", "times")
KEYS = {*NAME_LISTS, "product", "where", "combine", "scale", "pool", "split", "by"}
METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """How one quantity is made of series; the fields are those that `metrics.toml` explains."""

    kind: str
    names: tuple[str, ...]
    per: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    product: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    combine: str = "sum"
    scale: float = 1.0
    pool: str | None = None
    split: bool = False

    def series_names(self) -> list[str]:
        """Every series that may be asked for."""
        main = [f"{n}{end}" for n in self.names for end in ("_sum", "_count")] if self.kind == "histogram" else []
        return [*main, *self.names, *self.per, *self.plus, *self.minus, *self.times]


@dataclass(frozen=True)
class Product:
    name: str
    words: str
    ranks: tuple[str, ...]
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class Pools:
    """Which labels and patterns tell a prefill series from a decode one."""

    labels: tuple[str, ...]
    prefill: tuple[str, ...]
    decode: tuple[str, ...]

    def of(self, labels: Mapping[str, str]) -> str | None:
        """ "prefill", "decode", or None where no label says, or they say both."""
        values = [labels[label].lower() for label in self.labels if label in labels]
        hits = {
            pool
            for pool, patterns in (("prefill", self.prefill), ("decode", self.decode))
            if any(fnmatch.fnmatchcase(value, pattern.lower()) for value in values for pattern in patterns)
        }
        return hits.pop() if len(hits) == 1 else None


@dataclass(frozen=True)
class MetricMap:
    pools: Pools
    products: Mapping[str, Product]

    def series_names(self, product: str | None = None) -> list[str]:
        """Every series name of the map, or of one product and of Kubernetes, each once."""
        chosen = [p for p in self.products.values() if product in (None, p.name) or p.name == "kubernetes"]
        return list(dict.fromkeys(n for p in chosen for e in p.entries.values() for n in e.series_names()))


def load(path: PathLike | None = None) -> MetricMap:
    """The map that is shipped, or a user's own; raises `InputError` naming the table and key that is wrong."""
    if path is None:
        return _shipped()
    return _parsed(os.fsdecode(path), open_text(path, limit=1 << 20))


@functools.cache
def _shipped() -> MetricMap:
    return _parsed("metrics.toml", resources.files("fluidq.io").joinpath("metrics.toml").read_text(encoding="utf-8"))


def _parsed(file: str, text: str) -> MetricMap:
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not TOML: {error}.") from None
    try:
        pools = _pools(raw.pop("pools", {}))
        return MetricMap(pools, {name: _product(name, table) for name, table in raw.items()})
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _pools(table: Any) -> Pools:
    if not isinstance(table, dict) or table.keys() - {"labels", "prefill", "decode"}:
        raise refuse("pools", table, "a table with labels, prefill and decode")
    parts = {key: _texts(f"pools.{key}", table.get(key, [])) for key in ("labels", "prefill", "decode")}
    return Pools(**parts)


def _product(name: str, table: Any) -> Product:
    if not isinstance(table, dict):
        raise refuse(name, table, f"a table [{name}]")
    rest = dict(table)
    words, ranks = rest.pop("words", name), _texts(f"{name}.ranks", rest.pop("ranks", []))
    entries = {}
    for quantity, entry in rest.items():
        if quantity not in QUANTITIES:
            raise unknown(f"quantity in [{name}]", quantity, QUANTITIES)
        entries[quantity] = _entry(f"{name}.{quantity}", entry)
    return Product(name, str(words), ranks, entries)


def _entry(where: str, table: Any) -> Entry:
    if not isinstance(table, dict):
        raise refuse(where, table, "a table such as {{ gauge = ['name'] }}")
    for key in table:
        if key not in KEYS:
            raise unknown(f"key in {where}", key, KEYS)
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        raise refuse(f"the kind of {where}", kinds, f"exactly one of {', '.join(KINDS)}")
    lists = {key: _texts(f"{where}.{key}", table.get(key, [])) for key in (*NAME_LISTS, "product", "by")}
    for key in NAME_LISTS:
        for name in lists[key]:
            if not METRIC.fullmatch(name):
                raise refuse(f"{where}.{key}", name, "a metric name")
    if not lists[kinds[0]]:
        raise refuse(f"{where}.{kinds[0]}", [], "at least one metric name")
    labels = table.get("where", {})
    if not isinstance(labels, dict) or not all(LABEL.fullmatch(k) and isinstance(v, str) for k, v in labels.items()):
        raise refuse(f"{where}.where", labels, "a table of labels")
    combine, pool, split = table.get("combine", "sum"), table.get("pool"), table.get("split", False)
    scale = table.get("scale", 1.0)
    if combine not in ("sum", "mean", "max"):
        raise unknown(f"combine in {where}", str(combine), ("sum", "mean", "max"))
    if pool not in (None, "prefill", "decode"):
        raise unknown(f"pool in {where}", str(pool), ("prefill", "decode"))
    if not isinstance(split, bool):
        raise refuse(f"{where}.split", split, "true or false")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise refuse(f"{where}.scale", scale, "a number > 0")
    return Entry(
        kind=kinds[0],
        names=lists[kinds[0]],
        where=labels,
        combine=combine,
        scale=float(scale),
        pool=pool,
        split=split,
        **{key: lists[key] for key in ("per", "plus", "minus", "times", "product", "by")},
    )


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) and v for v in value):
        raise refuse(where, value, "a list of names in quotes")
    return tuple(value)
