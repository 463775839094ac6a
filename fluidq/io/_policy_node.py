"""A policy document as it is read: every value is either taken, with its place, or reported."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.fleet import Fleet
from fluidq.io._files import short

Path = tuple[str | int, ...]


class Unrepresented(NamedTuple):
    """What fluidq has no place for: where it stands, its value, and why. It is kept and written back."""

    where: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.where} = {short(self.value)}: {self.reason}"


class Shown:
    """A value in a message: its repr, kept short however large it is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return short(self.value)


class Codec(NamedTuple):
    """How a value is written in a product's file: `read(raw, where)` raises InputError, `write(value)` inverts it."""

    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any]


@dataclass
class Context:
    """What is known while a file is read: its options, what was taken and what is to be said."""

    pool: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    fleet: Fleet | None = None
    documents: int = 1
    notes: list[str] = field(default_factory=list)
    extra: list[Unrepresented] = field(default_factory=list)
    taken: set[Path] = field(default_factory=set)
    known: dict[Path, set[str]] = field(default_factory=dict)
    reasons: dict[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """ "spec.metrics[0].external", with the document's number where there are several."""
        text = ""
        for part in path[1:]:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
        if self.documents > 1 and path:
            return f"document {int(path[0]) + 1}{': ' + text if text else ''}"
        return text or "the document"


class Node:
    """A mapping of a document, and its place in it."""

    def __init__(self, ctx: Context, raw: Any, path: Path) -> None:
        if not isinstance(raw, dict):
            raise refuse(ctx.where(path), Shown(raw), "a mapping of fields")
        self.ctx, self.raw, self.path = ctx, raw, path

    def where(self, key: str | int | None = None) -> str:
        """The place of a field, for messages."""
        return self.ctx.where(self.path if key is None else (*self.path, key))

    def know(self, *keys: str) -> None:
        """These are fields of the product here, whether fluidq models them or not."""
        self.ctx.known.setdefault(self.path, set()).update(keys)

    def mark(self, *keys: str) -> None:
        """These are taken, with all that is in them."""
        self.know(*keys)
        self.ctx.taken.update((*self.path, key) for key in keys if key in self.raw)

    def take(self, table: Mapping[str, Codec], names: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The values of the fields of `table` that are given, by the law's names (`names` where they differ)."""
        self.mark(*table)
        given = {key: codec.read(self.raw[key], self.where(key)) for key, codec in table.items() if self.has(key)}
        return {(names or {}).get(key, key): value for key, value in given.items()}

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.raw.get(key) is not None

    def child(self, key: str) -> "Node | None":
        """The mapping under `key`, None where it is absent."""
        self.know(key)
        return Node(self.ctx, self.raw[key], (*self.path, key)) if self.has(key) else None

    def children(self, key: str) -> list["Node"]:
        """The mappings of the list under `key`."""
        self.know(key)
        raw = self.raw.get(key)
        if raw is None:
            return []
        if not isinstance(raw, list):
            raise refuse(self.where(key), Shown(raw), "a list")
        return [Node(self.ctx, each, (*self.path, key, i)) for i, each in enumerate(raw)]

    def leave(self, key: str, reason: str) -> None:
        """Why the field (or, with "", this whole mapping) is reported."""
        self.ctx.reasons[(*self.path, key) if key else self.path] = reason

    @contextmanager
    def at(self, key: str = "") -> Any:
        """Errors of a law's own checks get the place of this mapping."""
        try:
            yield
        except InputError as error:
            place = self.where(key) if key else self.where()
            raise InputError(f"{place}: {error}" if not str(error).startswith(place) else str(error)) from None


def report(ctx: Context, documents: list[Any]) -> tuple[list[Unrepresented], list[str]]:
    """All that was not taken, and of it the sentences on fields that the product does not know either."""
    inside = {path[:n] for path in ctx.taken for n in range(len(path) + 1)}
    left = list(ctx.extra)

    def visit(path: Path, raw: Any) -> None:
        if path in ctx.taken or raw is None or raw in ({}, []):
            return
        if path not in inside or not isinstance(raw, dict | list):
            key = path[-1]
            reason = ctx.reasons.get(path) or nearest(key, ctx.known.get(path[:-1], set()))
            left.append(Unrepresented(ctx.where(path), raw, reason))
            return
        for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
            visit((*path, key), value)

    for i, document in enumerate(documents):
        visit((i,), document)
    return left, [f"{each.where}: {each.reason}" for each in left if each.reason.startswith(_UNKNOWN)]


_UNKNOWN = "unknown field"


def nearest(key: str | int, known: Iterable[str]) -> str:
    """Why a field is reported: the product has it and fluidq does not, or it is unknown, with the nearest known one."""
    names = set(known)
    if not names or not isinstance(key, str) or key in names:
        return "fluidq does not model it"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return _UNKNOWN + (f"; did you mean {near[0]!r}?" if near else "")


# Writing


def put(
    raw: dict[str, Any],
    table: Mapping[str, Codec],
    law: Any,
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Set the fields of `table` that do not already say what the law does; what equals the default stays absent."""
    own = {f.name: f.default for f in fields(type(law))}
    for key, codec in table.items():
        name = (names or {}).get(key, key)
        if not hasattr(law, name):
            continue
        value = concrete(getattr(law, name))
        if raw.get(key) is not None:
            if same(codec.read(raw[key], key), value):
                continue
        elif same((defaults or {}).get(key, own.get(name)), value):
            continue
        if value is None:
            raw.pop(key, None)
        else:
            raw[key] = codec.write(value)


def concrete(value: Any) -> Any:
    """The plain value of a parameter; raises InputError for one that is batched."""
    if value is None or isinstance(value, str | bool | int | float | tuple):
        return value
    array = np.asarray(value)
    if array.ndim:
        raise refuse("the policy", f"a batch of shape {array.shape}", "one policy, to be written to a file")
    return float(array)


def same(a: Any, b: Any) -> bool:
    """Equal, numbers to the last bits (a quantity may be written in thousandths)."""
    if isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool | str):
        return a == b or math.isclose(a, b, rel_tol=1e-12)
    return type(a) is type(b) and a == b


def differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """(field, value in a, value in b) of two laws, where they differ."""
    parts: list[tuple[str, Any, Any]]
    kind: Any = type(a)
    if kind is type(b) and hasattr(kind, "__dataclass_fields__"):
        parts = [(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(kind)]
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        parts = [(str(i), x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        return [] if same(a, b) else [(path, a, b)]
    out = []
    for name, x, y in parts:
        x, y = (v if _composite(v) else concrete(v) for v in (x, y))
        out += differences(x, y, f"{path}.{name}" if path else name)
    return out


def _composite(value: Any) -> bool:
    return isinstance(value, tuple) or hasattr(type(value), "__dataclass_fields__")


def aliases(node: Node, table: Mapping[str, str]) -> dict[str, str]:
    """Where a field is given by an older name: {name in the file: name of today}; both at once is refused."""
    found = {}
    for old, new in table.items():
        if node.has(old):
            if node.has(new):
                raise refuse(node.where(old), node.raw[old], f"left out where {new} is given: they are the same field")
            found[old] = new
    return found
