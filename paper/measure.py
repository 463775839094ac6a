"""Results that take long to compute, kept in `paper/measured/`, each with what made it, so that a stale one is seen.

A file holds the values and digests of what made them: of each module of fluidq and of this folder that the experiment
imports, directly or not, without comments and docstrings, and of each input file. Inputs
lie in a data folder that is no part of the repository: beside the checkout, or where FLUIDQ_DATA says. Where it is
absent, results that need it are kept as they are, and the build says so.
"""

import ast
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

HERE = Path(__file__).parent
FOLDER = HERE / "measured"
PACKAGES = ("fluidq", "paper")
# The top of the package imports it all by name on demand; what is used is imported from where it is.
SKIPPED = ("fluidq", "paper")
# Data that modules read from their own folder.
TABLES = (".toml", ".json", ".csv")
# Changes that a message names, the rest being counted.
NAMED = 4


def data_folder() -> Path:
    """Where inputs are looked for."""
    return Path(os.environ.get("FLUIDQ_DATA") or HERE.parents[1] / "shared" / "data")


@dataclass(frozen=True)
class Experiment:
    """One file of results.

    Attributes:
        name: of the file. words: what is measured, in one line.
        module: that computes it; what it imports is the code of the result.
        compute: the values, plain numbers and text.
        inputs: files in the data folder, () where it needs none.
    """

    name: str
    words: str
    module: str
    compute: Callable[[], dict[str, Any]]
    inputs: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where the result lies."""
        return FOLDER / f"{self.name}.json"

    @property
    def missing(self) -> list[str]:
        """Inputs that are not there."""
        return [name for name in self.inputs if not (data_folder() / name).exists()]

    def made_with(self) -> dict[str, Any]:
        """The digests of now: code, and each input that is there."""
        found = [name for name in self.inputs if name not in self.missing]
        return {"code": code_digests(self.module), "inputs": {name: file_digest(name) for name in found}}

    def stale(self) -> str:
        """Why the result is not that of this code and these inputs; empty where it is, or where inputs are absent."""
        if not self.path.exists():
            return f"measured/{self.path.name} is missing"
        if self.missing:
            return ""
        made, now = json.loads(self.path.read_text(encoding="utf-8"))["made with"], self.made_with()
        changed = [name for name, digest in now["inputs"].items() if made["inputs"].get(name) != digest]
        old, new = made["code"], now["code"]
        changed += sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        return f"measured/{self.path.name} is stale: {', '.join(changed[:NAMED])}{more} changed" if changed else ""

    def unchecked(self) -> str:
        """Why it cannot be said whether the result is stale; empty where it can."""
        return f"measured/{self.path.name} is kept as it is: no {', '.join(self.missing)}" if self.missing else ""

    def refresh(self) -> Path:
        """Compute and write the result."""
        made = {**self.made_with(), "jax": jax.__version__, "numpy": np.__version__}
        text = json.dumps({"what": self.words, "made with": made, "values": rounded(self.compute())}, indent=1)
        FOLDER.mkdir(exist_ok=True)
        self.path.write_text(text + "\n", encoding="utf-8")
        return self.path

    def values(self) -> dict[str, Any]:
        """The values as they were kept. Raises FileNotFoundError, naming the command, where there are none."""
        if not self.path.exists():
            raise FileNotFoundError(f"paper/measured/{self.path.name} is missing; run python -m paper.build")
        return json.loads(self.path.read_text(encoding="utf-8"))["values"]


def rounded(value: Any) -> Any:
    """Numbers to eight digits: more than the paper prints, fewer than rounding on another machine would turn."""
    if isinstance(value, dict):
        return {key: rounded(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(x) for x in value]
    if isinstance(value, bool | int | str | None):
        return value
    return float(f"{float(value):.8g}")


def file_digest(name: str) -> str:
    """SHA-256 of an input."""
    return hashlib.sha256((data_folder() / name).read_bytes()).hexdigest()


def code_digests(module: str) -> dict[str, str]:
    """The start of a SHA-256 for each module that `module` imports from this project, itself included, and each table
    that lies beside one, by name. Comments and docstrings are left out.
    """
    found = {name: _short(_bare(name).encode()) for name in sorted(closure([module]))}
    for folder in sorted({_source(name)[1].parent for name in found}):
        tables = sorted(path for path in folder.iterdir() if path.suffix in TABLES)
        found |= {f"{folder.name}/{path.name}": _short(path.read_bytes()) for path in tables}
    return found


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def closure(modules: Iterable[str]) -> set[str]:
    """The modules of the project that these import, directly or not, wherever in the file the import stands."""
    seen: set[str] = set()
    queue = list(modules)
    while queue:
        name = queue.pop()
        if name in seen or name in SKIPPED:
            continue
        seen.add(name)
        queue += _imported(name)
    return seen


@functools.cache
def _source(name: str) -> tuple[str, Path]:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8"), Path(spec.origin)


@functools.cache
def _imported(name: str) -> tuple[str, ...]:
    """What a module of the project imports from the project."""
    source, _ = _source(name)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names if _exists(f"{node.module}.{alias.name}")]
    return tuple(sorted({f for f in found if f.partition(".")[0] in PACKAGES}))


@functools.cache
def _exists(name: str) -> bool:
    if name.partition(".")[0] not in PACKAGES:
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a class of a module, which is no package
        return False


@functools.cache
def _bare(name: str) -> str:
    """The syntax tree of a module as text, without docstrings."""
    tree = ast.parse(_source(name)[0])
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
