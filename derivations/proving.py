"""Run proofs once per content: what has not changed since it was proved is not proved again in this working copy."""

import ast
import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy as sp

from derivations.core import CheckResult, Derivation, run_proof
from derivations.units import UnitError

PACKAGE = Path(__file__).parent
CACHE = PACKAGE.parent / ".derivations-cache"
BASE = ("core", "functions", "proving", "symbols", "units")


@dataclass(frozen=True)
class Verdict:
    """What the proofs and the published figures of one derivation came to."""

    derivation: Derivation
    failures: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    seconds: float
    cached: bool

    @property
    def proved(self) -> bool:
        """Whether units fit and every proof holds."""
        return not self.failures

    @property
    def good(self) -> bool:
        """Proved, and each published figure judged as the derivation declares."""
        return self.proved and all(c.as_declared for c in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "id": self.derivation.id,
            "name": self.derivation.name,
            "proved": self.proved,
            "proofs": len(self.derivation.proofs),
            "failures": list(self.failures),
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
            "checks": [c.as_dict() for c in self.checks],
        }


def content_key(topic: str) -> str:
    """A digest of everything that a topic's proofs depend on: its file, the files it imports, the framework, SymPy."""
    digest = hashlib.sha256(sp.__version__.encode())
    for name in sorted(_imported({topic, *BASE})):
        digest.update(name.encode() + b"\0" + (PACKAGE / f"{name}.py").read_bytes())
    return digest.hexdigest()


def _imported(names: set[str]) -> set[str]:
    """`names` and every module of this package that they import, directly or not."""
    found: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        found.add(name)
        for node in ast.walk(ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "derivations":
                parts = (node.module or "").split(".")[1:2] or [alias.name for alias in node.names]
                left |= {p for p in parts if (PACKAGE / f"{p}.py").exists()} - found
    return found


def judge(derivation: Derivation, topic: str, use_cache: bool = True, said: Callable[[str], None] = print) -> Verdict:
    """Prove one derivation (or find it proved) and hold it against its published figures."""
    start = time.perf_counter()
    file = CACHE / f"{derivation.id}.json"
    key = content_key(topic)
    cached = use_cache and _read(file) == key
    failures: list[str] = []
    if not cached:
        try:
            derivation.check_units()
        except UnitError as error:
            failures.append(f"units: {error}")
        for proof in derivation.proofs:
            said(f"{derivation.id} {derivation.name}: {proof.words}")
            if left := run_proof(derivation, proof):
                failures.append(f"{proof.words}: {left}")
        if not failures and use_cache:
            with contextlib.suppress(OSError):  # a read-only working copy proves every time
                CACHE.mkdir(exist_ok=True)
                file.write_text(
                    json.dumps({"key": key, "proved": [p.words for p in derivation.proofs]}, indent=1) + "\n"
                )
    checks = derivation.check_published()
    return Verdict(derivation, tuple(failures), checks, time.perf_counter() - start, cached)


def _read(file: Path) -> str:
    try:
        return str(json.loads(file.read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
