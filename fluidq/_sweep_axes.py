"""What a sweep varies: `KEY=0.6:1.2:7`, `KEY=30s:300s:log`, `KEY=30s,88s,300s` to values in SI, each checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fluidq import units
from fluidq._errors import InputError, refuse, unknown
from fluidq.policies.base import Policy
from fluidq.scenario_keys import SCHEMA

# What a parameter may be given as: text, one value, or a list of values.
Given: TypeAlias = str | float | int | Sequence[str | float | int]

# A grid of more rows than this is a slip of the keyboard.
MOST_VALUES = 1_000_000

# Sections whose keys change a run; [tune] only steers a search.
SECTIONS = tuple(section for section in SCHEMA if section not in ("policy", "tune"))


@dataclass(frozen=True)
class Axis:
    """One parameter: either `values`, or everything from `low` to `high` (for random designs).

    `key` as typed; `law` the only policy it belongs to, or None; `unit` of the SI values; `whole` for whole numbers.
    """

    key: str
    law: str | None
    unit: str
    values: tuple[Any, ...] | None
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """The path inside the scenario (`fleet.cold_start`) or, for a policy's parameter, `policy.` and its name."""
        return self.key if self.law is None else f"policy.{self.key.partition('.')[2]}"

    @property
    def choices(self) -> int:
        """How many values a grid takes. Raises InputError for a range without a count."""
        if self.values is not None:
            return len(self.values)
        if self.whole and not self.log:
            return int(self.high - self.low) + 1
        raise refuse(
            f"--vary {self.key}",
            f"{self.low:g}:{self.high:g}",
            "given a count, as in LOW:HIGH:7, in a grid; or add --random N, which draws from the range",
        )

    def at(self, index: np.ndarray) -> np.ndarray:
        """The grid's values with these numbers."""
        if self.values is None:
            return self.low + index.astype(np.float64)
        return np.asarray(self.values, dtype=object if isinstance(self.values[0], str) else np.float64)[index]

    def draw(self, u: np.ndarray) -> np.ndarray:
        """Values for uniform numbers in [0, 1)."""
        if self.values is not None:
            return self.at(np.minimum((u * len(self.values)).astype(np.int64), len(self.values) - 1))
        if self.whole and not self.log:
            return np.minimum(self.low + np.floor(u * (self.high - self.low + 1)), self.high)
        if self.log:
            x = np.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
            return np.rint(x) if self.whole else np.clip(x, self.low, self.high)
        return self.low + u * (self.high - self.low)

    def describe(self) -> dict[str, Any]:
        """What it is, for the manifest."""
        what: dict[str, Any] = {"unit": self.unit}
        if self.values is not None:
            return what | {"values": list(self.values)}
        return what | {"low": self.low, "high": self.high, "log": self.log, "whole": self.whole}


def numbers_of(policy: Policy) -> dict[str, float | None]:
    """The numbers of a law by dotted name; those that it leaves open, and may be given, are None."""
    import jax

    out: dict[str, float | None] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(policy)[0]:
        if isinstance(leaf, float | int) and not isinstance(leaf, bool):
            out[".".join(part.name if hasattr(part, "name") else str(part.idx) for part in path)] = float(leaf)
    for name in policy.TUNABLE:
        parent: Any = policy
        for part in name.split(".")[:-1]:
            parent = getattr(parent, part, None)
        if parent is not None and name not in out:
            out[name] = None
    return out


def parameters(policies: Mapping[str, Policy]) -> dict[str, str | type]:
    """Every name that can be varied with these laws, and its kind: a dimension, or the type of a plain value."""
    known: dict[str, str | type] = {f"{s}.{key}": kind for s in SECTIONS for key, kind in SCHEMA[s].items()}
    mine = {law: _kinds(law, policy) for law, policy in policies.items()}
    for law, kinds in mine.items():
        known |= {f"{law}.{name}": kind for name, kind in kinds.items()}
    shared = set.intersection(*(set(kinds) for kinds in mine.values()))
    return known | {f"policy.{name}": next(iter(mine.values()))[name] for name in shared}


def _kinds(law: str, policy: Policy) -> dict[str, str | type]:
    """Thresholds carry the scenario's units; a product's numbers are in the product's own."""
    return {name: SCHEMA["policy"].get(name, "1") if law == "thresholds" else "1" for name in numbers_of(policy)}


def read_axes(vary: Mapping[str, Given] | Iterable[str], policies: Mapping[str, Policy]) -> tuple[Axis, ...]:
    """The axes of `vary`: texts `KEY=WHAT`, or a mapping of KEY to WHAT (text or a list of values).

    Raises InputError for an unknown name (with the nearest), a value that is not of its kind, a contradictory range,
    and a name given twice.
    """
    pairs: list[tuple[str, Given]] = list(vary.items()) if isinstance(vary, Mapping) else [_pair(text) for text in vary]
    known = parameters(policies)
    axes: list[Axis] = []
    for key, what in pairs:
        if key not in known:
            raise _unknown(key, known, policies)
        axis = _axis(key, what, known[key], policies)
        clash = next((other for other in axes if other.name == axis.name and _meet(other, axis)), None)
        if clash is not None:
            raise refuse(f"--vary {key}", what, f"given once; {clash.key} is the same parameter")
        axes.append(axis)
    names = {axis.name for axis in axes}
    if {"workload.load_share", "workload.load_scale"} <= names:
        raise refuse("--vary workload.load_share", "varied", "left out where workload.load_scale is varied too")
    return tuple(axes)


def _meet(a: Axis, b: Axis) -> bool:
    return a.law is None or b.law is None or a.law == b.law


def _pair(text: str) -> tuple[str, Given]:
    key, sign, what = text.partition("=")
    if not sign or not key.strip() or not what.strip():
        raise refuse("--vary", text, "KEY=LOW:HIGH:COUNT or KEY=VALUE,VALUE, such as fleet.cold_start=30s,88s,300s")
    return key.strip(), what.strip()


def _unknown(key: str, known: Mapping[str, Any], policies: Mapping[str, Policy]) -> InputError:
    section, _, name = key.partition(".")
    if section == "policy":
        have = [law for law in policies if f"{law}.{name}" in known]
        if have:
            lack = ", ".join(law for law in policies if law not in have)
            return refuse(
                f"--vary {key}", "for every policy", f"written {have[0]}.{name}: {lack} has no such parameter"
            )
        names = {n.partition(".")[2] for n in known if n.partition(".")[0] in policies}
        return unknown(f"parameter of {', '.join(policies)}:", name, names)
    if section in policies:
        return unknown(
            f"parameter of {section}:", name, [n.partition(".")[2] for n in known if n.startswith(f"{section}.")]
        )
    if section in SECTIONS:
        return unknown(f"key in [{section}]", name, SCHEMA[section])
    return unknown("parameter", key, known)


def _axis(key: str, what: Given, kind: str | type, policies: Mapping[str, Policy]) -> Axis:
    law = key.partition(".")[0] if key.partition(".")[0] in policies else None
    whole = kind is int or kind == "gpus"
    unit = "" if kind is str or kind is int or kind == "1" else str(kind)
    if isinstance(what, str) and kind is not str and ":" in what:
        return _range(key, law, what, kind, unit, whole)
    given = [part.strip() for part in what.split(",")] if isinstance(what, str) else what
    listed = list(given) if isinstance(given, Sequence) else [given]
    values = [_value(key, part, kind) for part in listed if part != ""]
    if not values:
        raise refuse(f"--vary {key}", what, "at least one value")
    if len(set(values)) < len(values):
        raise refuse(f"--vary {key}", what, "values that differ")
    return Axis(key, law, unit, tuple(values), whole=whole)


def _range(key: str, law: str | None, text: str, kind: str | type, unit: str, whole: bool) -> Axis:
    form = "LOW:HIGH, LOW:HIGH:COUNT, with :log at the end for a logarithmic one"
    parts = [part.strip() for part in text.split(":")]
    log = parts[-1] == "log"
    parts = parts[:-1] if log else parts
    if len(parts) not in (2, 3) or "," in text or not all(parts):
        raise refuse(f"--vary {key}", text, form)
    low, high = (_value(key, part, kind) for part in parts[:2])
    if not (math.isfinite(low) and math.isfinite(high)):
        raise refuse(f"--vary {key}", text, "a range with finite ends")
    if not low < high:
        raise refuse(f"--vary {key}", text, f"a range that grows, {parts[1]}:{parts[0]} perhaps")
    if log and not low > 0:
        raise refuse(f"--vary {key}", text, "above 0 at its low end: it is logarithmic")
    if len(parts) == 2:
        return Axis(key, law, unit, None, float(low), float(high), log, whole)
    if not parts[2].isdecimal() or not 2 <= int(parts[2]) <= MOST_VALUES:
        raise refuse(f"--vary {key}", text, f"{form}; COUNT is a whole number from 2 to {MOST_VALUES:,}")
    values = (np.geomspace if log else np.linspace)(low, high, int(parts[2]))
    if whole and not np.array_equal(values, np.rint(values)):
        raise refuse(f"--vary {key}", text, f"a range that {parts[2]} whole numbers divide evenly")
    inner = [float(f"{v:.12g}") for v in values[1:-1]]  # 0.8, and not 0.7999999999999999
    return Axis(key, law, unit, (float(low), *inner, float(high)), whole=whole)


def _value(key: str, value: Any, kind: str | type) -> Any:
    field = f"--vary {key}"
    if kind is str:
        if not isinstance(value, str):
            raise refuse(field, value, "text")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.integer | np.floating):
        raise refuse(field, value, "a number, or text with a unit")
    if kind is int:
        try:
            number = float(value)
        except ValueError:
            raise refuse(field, value, "a whole number") from None
        if not math.isfinite(number) or number != int(number):
            raise refuse(field, value, "a whole number")
        return number
    assert isinstance(kind, str)
    return units.parse(value, kind, field)
