"""Reads the catalogue's TOML files into objects: figures in SI, each with its source."""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fluidq._errors import unknown
from fluidq.units import parse


@dataclass(frozen=True)
class Figure:
    """One figure: its value in SI units, what it is, and where it was published."""

    value: float
    label: str
    source: str


@dataclass(frozen=True)
class Gpu:
    """An accelerator: dense peaks [FLOP/s] by precision, HBM [B] and [B/s], NIC [B/s], per GPU and one direction."""

    name: str
    peaks: Mapping[str, Figure]
    hbm: Figure
    hbm_rate: Figure
    nic: Figure
    note: str


@dataclass(frozen=True)
class StepFit:
    """Decode step t = a + b*B + c*B*context, with B sequences per rank of `rank_gpus` GPUs.

    `a` [s], `b` [s/seq], `c` [s/(seq tok)]; `error` is the mean relative error of the fit.
    """

    gpu: str
    label: str
    a: float
    b: float
    c: float
    error: float
    rank_gpus: int
    worker_gpus: int
    source: str


@dataclass(frozen=True)
class PrefillRate:
    """A measured or modelled prefill rate [tok/s/GPU] on `gpu`."""

    gpu: str
    figure: Figure


@dataclass(frozen=True)
class Model:
    """A model: parameters, resident weights [B] by precision, KV bytes per token, step fits, prefill rates.

    `kv` holds the preset's own figure first. `kv_scan` [B/tok] and `kv_fixed` [B/seq] are what one decode step
    reads of a sequence's cache: less than what is stored where attention is sparse.
    """

    name: str
    params_active: Figure
    params_total: Figure
    weights: Mapping[str, Figure]
    worker_gpus: int
    kv: tuple[Figure, ...]
    kv_scan: Figure
    kv_fixed: Figure
    steps: tuple[StepFit, ...]
    prefill: tuple[PrefillRate, ...]


def _source(entry: Mapping[str, Any], sources: Mapping[str, str], where: str) -> str:
    key = entry.get("source", "")
    if key not in sources:
        raise unknown(f"source in {where}", key, sources)
    return sources[key]


def _figure(entry: Mapping[str, Any], dimension: str, sources: Mapping[str, str], where: str) -> Figure:
    value = parse(entry["value"], dimension, where, above=None if dimension == "bytes" else 0.0, minimum=0.0)
    return Figure(value, entry.get("label", ""), _source(entry, sources, where))


def _gpu(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    figure = functools.partial(_figure, sources=sources)
    return Gpu(
        name=name,
        peaks={p: figure(entry[p], "flop/s", where=f"{name}.{p}") for p in ("bf16", "fp8", "fp4") if p in entry},
        hbm=figure(entry["hbm"], "bytes", where=f"{name}.hbm"),
        hbm_rate=figure(entry["hbm_rate"], "bytes/s", where=f"{name}.hbm_rate"),
        nic=figure(entry["nic"], "bytes/s", where=f"{name}.nic"),
        note=entry.get("note", ""),
    )


def _step(entry: Mapping[str, Any], sources: Mapping[str, str], where: str) -> StepFit:
    a, b, c = (parse(entry[k], "seconds", f"{where}.{k}", minimum=0.0) for k in "abc")
    plain = {k: entry[k] for k in ("gpu", "label", "error", "rank_gpus", "worker_gpus")}
    return StepFit(a=a, b=b, c=c, source=_source(entry, sources, where), **plain)


def _model(name: str, table: Mapping[str, Any], sources: Mapping[str, str]) -> Model:
    entry = table[name]
    figure = functools.partial(_figure, sources=sources)
    weights = entry["weights"]
    steps = table[entry.get("steps_of", name)].get("steps", ())
    return Model(
        name=name,
        params_active=figure(entry["params_active"], "1", where=f"{name}.params_active"),
        params_total=figure(entry["params_total"], "1", where=f"{name}.params_total"),
        weights={
            p: figure({"value": weights[p], "source": weights["source"]}, "bytes", where=f"{name}.weights.{p}")
            for p in ("bf16", "fp8", "fp4")
            if p in weights
        },
        worker_gpus=entry["worker_gpus"],
        kv=tuple(figure(k, "bytes/token", where=f"{name}.kv") for k in entry["kv"]),
        kv_scan=figure(entry["kv_scan"], "bytes", where=f"{name}.kv_scan"),
        kv_fixed=figure(entry["kv_fixed"], "bytes", where=f"{name}.kv_fixed"),
        steps=tuple(_step(s, sources, f"{name}.steps") for s in steps),
        prefill=tuple(
            PrefillRate(p["gpu"], figure(p, "tokens/s", where=f"{name}.prefill")) for p in entry.get("prefill", ())
        ),
    )


def _read(file: str) -> tuple[dict[str, str], dict[str, Any]]:
    table = tomllib.loads(resources.files("fluidq.catalog").joinpath(file).read_text(encoding="utf-8"))
    return table.pop("sources"), table


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """All accelerators of the catalogue by name."""
    sources, table = _read("gpus.toml")
    return {name: _gpu(name, entry, sources) for name, entry in table.items()}


@functools.cache
def models() -> Mapping[str, Model]:
    """All models of the catalogue by name."""
    sources, table = _read("models.toml")
    return {name: _model(name, table, sources) for name in table}


@functools.cache
def _gpu_names() -> Mapping[str, str]:
    _, table = _read("gpus.toml")
    return {alias.lower(): name for name, entry in table.items() for alias in (name, *entry.get("aliases", ()))}


def gpu(name: str) -> Gpu:
    """The accelerator of that name (case does not matter; `B200-SXM` is `B200`).

    Raises:
        InputError: unknown name; the nearest is given.
    """
    if name.lower() not in _gpu_names():
        raise unknown("GPU", name, gpus())
    return gpus()[_gpu_names()[name.lower()]]


def model(name: str) -> Model:
    """The model of that name (case does not matter, and an organisation in front is dropped).

    Raises:
        InputError: unknown name; the nearest is given.
    """
    folded = {known.lower(): known for known in models()}
    key = name.lower().rpartition("/")[2]
    if key not in folded:
        raise unknown("model", name, models())
    return models()[folded[key]]
