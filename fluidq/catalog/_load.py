"""The catalogue as objects: what is shipped, and a user's own file laid over it."""

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from fluidq._errors import InputError, refuse, unknown
from fluidq.catalog._entries import Figure, Gpu, Link, Model, Transfer
from fluidq.catalog._read import (
    COUNTED,
    PRECISIONS,
    Fields,
    File,
    laid_over,
    read_transfers,
    required,
    resolved,
    take_sources,
    text,
    whole,
)
from fluidq.kv import Architecture, kv_bytes, kv_read, parameters, weight_bytes
from fluidq.units import Number

LARGEST_FILE = 4 * 2**20  # bytes
KINDS = ("rdma", "scaleup", "pcie")

_Entry = TypeVar("_Entry", Gpu, Model, Link)


def _peaks(entry: Fields) -> dict[str, Figure]:
    return {precision: entry[precision] for precision in PRECISIONS if precision in entry}


def _gpu(name: str, entry: Fields, where: str) -> Gpu:
    if not _peaks(entry):
        raise InputError(f"{where} has no peak rate; give bf16, fp8 or fp4.")
    return Gpu(
        name=name,
        peaks=MappingProxyType(_peaks(entry)),
        **{field: required(entry, field, where) for field in ("hbm", "hbm_rate", "nic")},
        note=text(entry, "note", where),
        scaleup=entry.get("scaleup"),
        scaleup_gpus=whole(entry, "scaleup_gpus", where),
        pcie=entry.get("pcie"),
    )


def _link(name: str, entry: Fields, where: str) -> Link:
    kind = text(entry, "kind", where, default="rdma")
    if kind not in KINDS:
        raise unknown(f"kind of {where}", kind, KINDS)
    return Link(name, kind, required(entry, "rate", where), text(entry, "note", where))


def _model(name: str, entry: Fields, where: str) -> Model:
    architecture: Architecture | None = entry.get("config")
    if architecture is not None:
        counted = _counted(architecture)
        entry = {**counted, **entry, "weights": {**counted["weights"], **entry.get("weights", {})}}
    for field in COUNTED:
        if field not in entry:
            raise InputError(f"{where}.{field} is missing; give it, or a config to count it from.")
    if not entry["weights"]:
        raise InputError(f"{where}.weights is missing; give bf16, fp8 or fp4, or a config to count them from.")
    return Model(
        name=name,
        weights=MappingProxyType(dict(entry["weights"])),
        worker_gpus=whole(entry, "worker_gpus", where),
        kv=tuple(entry["kv"]),
        steps=tuple(entry.get("steps", ())),
        prefill=tuple(entry.get("prefill", ())),
        architecture=architecture,
        **{field: entry[field] for field in ("params_active", "params_total", "kv_scan", "kv_fixed")},
    )


def _counted(model: Architecture) -> dict[str, Any]:
    """Every figure that follows from the architecture."""

    def figure(value: Number, label: str) -> Figure:
        return Figure(float(value), label, model.source)

    count, read = parameters(model), kv_read(model)
    words = "counted from the architecture"
    return {
        "params_active": figure(count.active, f"{words}, without input embedding and MTP"),
        "params_total": figure(count.total, f"{words}, without MTP"),
        "weights": {p: figure(weight_bytes(model, p), f"{p}, {words}") for p in PRECISIONS},
        # Floats, as no length is given.
        "kv": [figure(kv_bytes(model, p).used, f"{p}, {words}") for p in ("bf16", "fp8")],  # pyright: ignore[reportArgumentType]
        "kv_scan": figure(read.scan, f"bf16, {words}"),
        "kv_fixed": figure(read.fixed, f"bf16, {words}"),
    }


@dataclass(frozen=True)
class Catalog:
    """GPUs, models and links by name, and measured transfers. `gpu`, `model` and `link` know aliases too."""

    gpus: Mapping[str, Gpu]
    models: Mapping[str, Model]
    links: Mapping[str, Link]
    transfers: tuple[Transfer, ...]
    not_covered: Mapping[str, str]
    _names: Mapping[str, Mapping[str, str]]
    _tables: Mapping[str, Mapping[str, Fields]]

    def gpu(self, name: str) -> Gpu:
        """The accelerator of that name (case does not matter; `B200-SXM` is `B200`).

        Raises:
            InputError: unknown name; the nearest is given.
        """
        return self._find("GPU", name, self.gpus, self._names["gpus"])

    def model(self, name: str) -> Model:
        """The model of that name (case does not matter, and an organisation in front is dropped).

        Raises:
            InputError: unknown name; the nearest is given. Or a model whose cache is not counted, and why.
        """
        bare = name.rpartition("/")[2]
        reason = next((why for known, why in self.not_covered.items() if known.lower() == bare.lower()), None)
        if reason is not None and bare.lower() not in self._names["models"]:
            raise InputError(f"model {name!r} is not in the catalogue: {reason}.")
        return self._find("model", bare, self.models, self._names["models"], name)

    def link(self, name: str) -> Link:
        """The link of that name (case does not matter; `ConnectX-7` is `RDMA-400G`).

        Raises:
            InputError: unknown name; the nearest is given.
        """
        return self._find("link", name, self.links, self._names["links"])

    @staticmethod
    def _find(
        kind: str, name: str, entries: Mapping[str, _Entry], names: Mapping[str, str], shown: str | None = None
    ) -> _Entry:
        if name.lower() not in names:
            raise unknown(kind, shown or name, entries)
        return entries[names[name.lower()]]


def _on_known_gpus(table: Fields, where: str, gpus: Mapping[str, str], known: Mapping[str, Fields]) -> Fields:
    """A model's table with the proper name of each GPU that its fits and rates are for."""
    found: dict[str, list[Any]] = {}
    for field in ("steps", "prefill"):
        for entry in table.get(field, ()):
            if entry.gpu.lower() not in gpus:
                raise unknown(f"GPU in {where}.{field}", entry.gpu, known)
        found[field] = [replace(entry, gpu=gpus[entry.gpu.lower()]) for entry in table.get(field, ())]
    return {**table, **found}


def _names(tables: Mapping[str, Fields]) -> dict[str, str]:
    """Every name and alias in lower case, and the name that it stands for; a name is worth more than an alias."""
    aliases = {alias.lower(): name for name, table in tables.items() for alias in table.get("aliases", ())}
    return {**aliases, **{name.lower(): name for name in tables}}


def _built(tables: Mapping[str, Mapping[str, Fields]], where: str, old: Catalog | None, transfers: Any) -> Catalog:
    """The catalogue that resolved tables describe."""
    names = {kind: _names(entries) for kind, entries in tables.items()}
    at = {kind: f"{where}{kind}." if where else "" for kind in tables}
    models = {
        name: _on_known_gpus(table, f"{at['models']}{name}", names["gpus"], tables["gpus"])
        for name, table in tables["models"].items()
    }
    for name, table in models.items():
        if "steps_of" in table:
            donor = text(table, "steps_of", f"{at['models']}{name}")
            if donor not in models:
                raise unknown(f"model in {at['models']}{name}.steps_of", donor, models)
            models[name] = {**table, "steps": [*table["steps"], *models[donor]["steps"]]}
    makers: dict[str, Callable[..., Any]] = {"gpus": _gpu, "models": _model, "links": _link}
    entries: dict[str, Mapping[str, Any]] = {}
    for kind, make in makers.items():
        made: dict[str, Any] = {}
        for name, table in (models if kind == "models" else tables[kind]).items():
            # What no file changed is kept, not made again.
            same = old is not None and old._tables[kind].get(name) is tables[kind][name] and "steps_of" not in table
            made[name] = getattr(old, kind)[name] if same else make(name, table, f"{at[kind]}{name}")
        entries[kind] = MappingProxyType(made)
    return Catalog(
        **entries,
        transfers=transfers,
        not_covered=MappingProxyType({}) if old is None else old.not_covered,
        _names=names,
        _tables=tables,
    )


@functools.cache
def builtin() -> Catalog:
    """The catalogue as it is shipped."""
    tables: dict[str, dict[str, Fields]] = {}
    transfers: tuple[Transfer, ...] = ()
    not_covered: Mapping[str, str] = {}
    for kind in ("gpus", "models", "links"):
        name = f"{kind}.toml"
        raw = tomllib.loads(resources.files("fluidq.catalog").joinpath(name).read_text(encoding="utf-8"))
        file = File(name, take_sources(raw, name), strict=True)
        transfers = read_transfers(raw.pop("transfers", []), file) or transfers
        not_covered = raw.pop("not_covered", {}) or not_covered
        tables[kind] = {entry: resolved(kind, entry, fields, file) for entry, fields in raw.items()}
    made = _built(tables, "", None, transfers)
    return Catalog(**{**vars(made), "not_covered": MappingProxyType(dict(not_covered))})


def load(path: str | os.PathLike[str] | None = None, base: Catalog | None = None) -> Catalog:
    """The catalogue with a user's TOML file laid over it.

    The file holds tables `[gpus.NAME]`, `[models.NAME]`, `[links.NAME]` (a name that holds a dot in quotes) with the
    fields of the catalogue's own files, and may hold `[sources]`. A known name is overridden field by field, an unknown
    one is added. A figure is text with its unit, or a table with `value`, `label` and `source`; its source is the file
    where it names none. `config` of a model is a table with the fields of a Hugging Face config.json, or the path of
    one, from the TOML's folder; parameters, weights and KV sizes are counted from it where they are not given.

    Args:
        path: the user's file; None is the catalogue as it is.
        base: another catalogue to lay the file over.

    Raises:
        InputError: a file that cannot be read; an unknown table or field; a bad figure: names file, table and field.
    """
    base = builtin() if base is None else base
    if path is None:
        return base
    where = str(Path(path))
    if not Path(path).is_file():
        raise refuse("catalog", where, "a TOML file")
    try:
        with Path(path).open("rb") as handle:
            raw = handle.read(LARGEST_FILE + 1)
    except OSError as error:
        raise refuse("catalog", where, f"a TOML file that can be read ({error.strerror})") from None
    if len(raw) > LARGEST_FILE:
        raise refuse("catalog", where, f"a TOML file of at most {LARGEST_FILE:,} bytes")
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not TOML: {str(error)[:200]}.") from None
    file = File(where, take_sources(table, where), Path(path).parent)
    tables = {kind: dict(entries) for kind, entries in base._tables.items()}
    for kind, entries in table.items():
        if kind not in tables:
            raise unknown(f"table of {where}", kind, (*tables, "sources"))
        if not isinstance(entries, Mapping):
            raise refuse(f"{where}: {kind}", entries, f"tables such as [{kind}.NAME]")
        names = base._names[kind]
        for name, fields in entries.items():
            known = names.get(name.lower(), name)
            new = resolved(kind, name, fields, file)
            tables[kind][known] = laid_over(tables[kind].get(known, {}), new)
    return _built(tables, f"{where}: ", base, base.transfers)


def gpus() -> Mapping[str, Gpu]:
    """All accelerators of the catalogue by name."""
    return builtin().gpus


def models() -> Mapping[str, Model]:
    """All models of the catalogue by name."""
    return builtin().models


def links() -> Mapping[str, Link]:
    """All links of the catalogue by name."""
    return builtin().links


def transfers() -> tuple[Transfer, ...]:
    """What software reached on some of the links."""
    return builtin().transfers


def gpu(name: str) -> Gpu:
    """The accelerator of that name; see `Catalog.gpu`."""
    return builtin().gpu(name)


def model(name: str) -> Model:
    """The model of that name; see `Catalog.model`."""
    return builtin().model(name)


def link(name: str) -> Link:
    """The link of that name; see `Catalog.link`."""
    return builtin().link(name)
