"""Run proofs on all processors, and once per content: what has not changed since it was proved is not proved again."""

import ast
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import sympy as sp

from derivations.core import FRAMEWORK, CheckResult, Derivation, all_derivations, run_proof, topics
from derivations.units import UnitError

PACKAGE = Path(__file__).parent
CACHE = PACKAGE.parent / ".derivations-cache"
BASE = ("__init__", "core", "functions", "proving", "symbols", "units")
ANY_TOPIC = {"derivation", "all_derivations", "topics"}  # who imports one of these may look at every topic
WORTH_A_POOL = 12  # fewer proofs than this are done before other processes have imported SymPy

UNITS, FIGURES = -2, -1  # the parts of a derivation besides its proofs, which are numbered from 0


@dataclass(frozen=True)
class Verdict:
    """What the proofs and the published figures of one derivation came to."""

    derivation: Derivation
    failures: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    seconds: float  # of work, on whichever processor
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


# --- what a proof depends on ------------------------------------------------------------------------------------------


def content_key(topic: str) -> str:
    """A digest of all that a topic's proofs depend on: its file, what it imports, the framework, SymPy, Python."""
    digest = hashlib.sha256(f"{sp.__version__} {mpmath.__version__} {sys.version_info[:2]}".encode())
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
        said = set(_names_in(PACKAGE / f"{name}.py"))
        if said & ANY_TOPIC and name.strip("_") not in FRAMEWORK | {"init", "main"}:
            said |= {path.stem for path in PACKAGE.glob("*.py")}
        left |= {n for n in said if (PACKAGE / f"{n}.py").exists()} - found
    return found


def _names_in(file: Path) -> Iterator[str]:
    """The modules of this package that a file imports, and what it imports from them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = "derivations" if node.level else ""
            module = ".".join(part for part in (inside, node.module) if part)
            full = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in full:
            package, *parts = name.split(".")
            if package == "derivations":
                yield from parts


# --- one derivation ---------------------------------------------------------------------------------------------------


def _part(derivation: Derivation, part: int) -> tuple[str, list[float], float]:
    """One part of a derivation judged: what failed, our values (of the figures only), seconds."""
    start, failure, ours = time.perf_counter(), "", []
    if part == UNITS:
        try:
            derivation.check_units()
        except UnitError as error:
            failure = f"units: {error}"
    elif part == FIGURES:
        try:
            ours = [check.value(derivation) for check in derivation.published]
        except Exception as error:  # a figure that cannot be had is a failure, not the end of the run
            failure = f"published figures: {type(error).__name__}: {error}"
    else:
        proof = derivation.proofs[part]
        if left := run_proof(derivation, proof):
            failure = f"{proof.words}: {left}"
    return failure, ours, time.perf_counter() - start


def _parts(derivation: Derivation) -> range:
    return range(UNITS, len(derivation.proofs))


def _words(derivation: Derivation, part: int) -> str:
    words = {UNITS: "units", FIGURES: "published figures"}.get(part) or derivation.proofs[part].words
    return f"{derivation.id} {derivation.name}: {words}"


def _verdict(derivation: Derivation, done: dict[int, tuple[str, list[float], float]], key: str | None) -> Verdict:
    """All parts put together, in their order; remembered under `key` when nothing failed."""
    failures = tuple(done[part][0] for part in _parts(derivation) if done[part][0])
    ours, seconds = done[FIGURES][1], sum(spent for _, _, spent in done.values())
    if key is not None and not failures:
        with contextlib.suppress(OSError):  # a read-only working copy proves every time
            CACHE.mkdir(exist_ok=True)
            held = {"key": key, "proved": [p.words for p in derivation.proofs], "ours": ours}
            (CACHE / f"{derivation.id}.json").write_text(json.dumps(held, indent=1) + "\n")
    return Verdict(derivation, failures, _compared(derivation, ours), seconds, cached=False)


def _compared(derivation: Derivation, ours: list[float]) -> tuple[CheckResult, ...]:
    return tuple(check.compared(x) for check, x in zip(derivation.published, ours, strict=bool(ours)))


def _remembered(derivation: Derivation, key: str) -> Verdict | None:
    """The verdict from the cache, if what it depends on is as it was then."""
    start = time.perf_counter()
    try:
        held = json.loads((CACHE / f"{derivation.id}.json").read_text())
        ours = [float(x) for x in held["ours"]]
        if held["key"] != key or held["proved"] != [p.words for p in derivation.proofs]:
            return None
        if len(ours) != len(derivation.published):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Verdict(derivation, (), _compared(derivation, ours), time.perf_counter() - start, cached=True)


def judge(derivation: Derivation, topic: str, use_cache: bool = True, said: Callable[[str], None] = print) -> Verdict:
    """Prove one derivation (or find it proved) and hold it against its published figures."""
    key = content_key(topic) if use_cache else None
    if key is not None and (verdict := _remembered(derivation, key)):
        return verdict
    done = {}
    for part in _parts(derivation):
        said(_words(derivation, part))
        done[part] = _part(derivation, part)
    return _verdict(derivation, done, key)


# --- all of them ------------------------------------------------------------------------------------------------------


@functools.cache
def _known() -> dict[str, Derivation]:
    return {d.id: d for d in all_derivations()}


def _part_by_id(task: tuple[str, int]) -> tuple[str, list[float], float]:
    """What another process does: a derivation holds functions and cannot be sent, its number can."""
    id, part = task
    return _part(_known()[id], part)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def judge_all(
    use_cache: bool = True, said: Callable[[str], None] = print, jobs: int | None = None
) -> tuple[Verdict, ...]:
    """Every derivation judged, in D-number order; the open proofs run in `jobs` processes (all processors)."""
    topic_of = {d.id: name for name, module in topics().items() for d in module.DERIVATIONS}
    keys = {name: content_key(name) for name in set(topic_of.values())} if use_cache else {}
    verdicts: dict[str, Verdict] = {}
    for d in _known().values():
        if use_cache and (verdict := _remembered(d, keys[topic_of[d.id]])):
            verdicts[d.id] = verdict
    left = {d.id: d for d in _known().values() if d.id not in verdicts}
    tasks = [(d.id, part) for d in left.values() for part in _parts(d)]
    done: dict[str, dict[int, tuple[str, list[float], float]]] = {id: {} for id in left}
    for number, ((id, part), found) in enumerate(_results(tasks, jobs or processors()), 1):
        done[id][part] = found
        said(f"[{number}/{len(tasks)}] {_words(left[id], part)}")
        if len(done[id]) == len(_parts(left[id])):
            verdicts[id] = _verdict(left[id], done[id], keys.get(topic_of[id]))
    return tuple(verdicts[id] for id in _known())


def _results(
    tasks: list[tuple[str, int]], jobs: int
) -> Iterable[tuple[tuple[str, int], tuple[str, list[float], float]]]:
    """Each task with its result, as they end; here, one after the other, where there can be no processes."""
    left = dict.fromkeys(tasks)
    if jobs > 1 and len(tasks) >= WORTH_A_POOL:
        # "spawn": a fork of a process with threads may hang; what cannot start processes raises one of these
        with contextlib.suppress(OSError, ImportError, RuntimeError, BrokenProcessPool):
            pool = ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn"))
            try:
                waiting = {pool.submit(_part_by_id, task): task for task in tasks}
                for future in as_completed(waiting):
                    found = future.result()
                    del left[waiting[future]]
                    yield waiting[future], found
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    for task in left:
        yield task, _part_by_id(task)
