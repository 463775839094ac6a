"""The points of a sweep: every combination, or random ones; the same for one seed, and the same for every policy."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fluidq._errors import InputError, refuse, unknown
from fluidq._sweep_axes import Axis

METHODS = ("random", "sobol", "latin")
MOST_ROWS = 50_000_000


@dataclass(frozen=True)
class Design:
    """Axes, policies and how points are chosen; `scenario` holds the overrides that stay, in SI."""

    axes: tuple[Axis, ...]
    policies: tuple[str, ...]
    scenario: dict[str, dict[str, Any]]
    random: int | None
    method: str
    seed: int

    def points(self, policy: str) -> dict[str, np.ndarray]:
        """The values of each axis of that policy, by the axis's key, shape (rows,); one row where nothing varies."""
        mine = [axis for axis in self.axes if axis.law in (None, policy)]
        if self.random is not None:
            # Every policy sees the same draws: the column of an axis does not depend on who uses it.
            u = self._uniform()
            return {axis.key: axis.draw(u[:, self.axes.index(axis)]) for axis in mine}
        sizes = [axis.choices for axis in mine]
        indices = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), dtype=np.int64)
        return {axis.key: axis.at(index) for axis, index in zip(mine, indices, strict=True)}

    @property
    def rows(self) -> int:
        """How many runs."""
        if self.random is not None:
            return self.random * len(self.policies)
        return sum(math.prod(axis.choices for axis in self.axes if axis.law in (None, p)) for p in self.policies)

    def check(self) -> None:
        """Raises InputError for an unknown method, no rows or too many, and random draws of nothing."""
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if not 0 <= self.seed < 2**63:
            raise refuse("--seed", self.seed, "an integer from 0 to 2^63 - 1")
        if self.random is not None and self.random < 1:
            raise refuse("--random", self.random, "at least one draw")
        if self.random is not None and not self.axes:
            raise refuse("--random", self.random, "given with --vary: nothing is drawn without it")
        if self.rows > MOST_ROWS:
            raise refuse("the number of runs", self.rows, f"at most {MOST_ROWS:,}: fewer values, or --random N")

    def describe(self) -> dict[str, Any]:
        """All that fixes the points, for the manifest; a trace counts with its contents."""
        return {
            "vary": {axis.key: axis.describe() for axis in self.axes},
            "policies": list(self.policies),
            "scenario": self.scenario,
            "random": self.random,
            "method": None if self.random is None else self.method,
            "seed": None if self.random is None else self.seed,
            "traces": {path: _digest(path) for path in self._traces()},
        }

    def _traces(self) -> list[str]:
        given = self.scenario.get("workload", {}).get("trace")
        varied = [v for axis in self.axes if axis.key == "workload.trace" for v in axis.values or ()]
        return sorted({*varied, *([given] if given is not None else [])})

    def _uniform(self) -> np.ndarray:
        n, d = self.random or 0, len(self.axes)
        if self.method == "random":
            return np.random.default_rng(self.seed).random((n, d))
        from scipy.stats import qmc

        rng = np.random.default_rng(self.seed)
        if self.method == "latin":
            # A Latin hypercube is one random order of the n strata per axis, and a place in each.
            order = np.stack([rng.permutation(n) for _ in range(d)], axis=-1)
            return (order + rng.random((n, d))) / n
        # Sobol's points, all shifted alike around the torus: scrambling that any SciPy does the same.
        points = qmc.Sobol(d, scramble=False).random_base2(max(0, math.ceil(math.log2(n))))[:n]
        return (points + rng.random(d)[None]) % 1.0


def fingerprint(what: dict[str, Any]) -> str:
    """SHA-256 of a description."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"workload.trace: {path!r} cannot be read: {error.strerror}.") from None


def named(policies: Sequence[str] | str, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The policies by name, from a list or a text with commas. Raises InputError for an unknown or repeated one."""
    names = [name.strip() for name in (policies.split(",") if isinstance(policies, str) else policies) if name.strip()]
    for name in names:
        if name not in known:
            raise unknown("policy", name, known)
    if not names or len(set(names)) < len(names):
        raise refuse("--policy", policies, "names of laws, each once")
    return tuple(names)
