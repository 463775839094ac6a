"""From the points of a design to batches: cases built once per distinct setting, rows grouped by what is compiled in.

Keys that only move numbers of the plant, the prices or the policy go straight into the batch. Every other key (GPUs,
model, load, seed, trace ...) builds a case, as a scenario file would, once per distinct setting. Rows whose programs
are the same (policy, ticks, whole ticks of the cold start, choices) form a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from tqdm import tqdm

from fluidq._errors import InputError, refuse
from fluidq._sweep_axes import numbers_of
from fluidq._sweep_design import Design
from fluidq.fleet import Fleet
from fluidq.io.traces import read_trace
from fluidq.laws import law
from fluidq.objective import Objective
from fluidq.policies.base import Policy
from fluidq.scenario import DEFAULTS, SCHEMA, build_case, check_keys
from fluidq.simulate import load_of
from fluidq.workload import Workload, default_workload

# Where these keys go in the tree of a run; nothing else of a case depends on them.
DIRECT: dict[str, tuple[str, ...]] = {
    "fleet.cold_start": ("fleet.cold_start",),
    "fleet.switch_delay": ("fleet.switch_delay",),
    "fleet.buffer": ("fleet.plant.capacity",),
    "fleet.buffer_per_gpu": ("fleet.plant.capacity_per_gpu",),
    "fleet.replica_spread": ("fleet.spread",),
    "deployment.nic": ("fleet.plant.nic_prefill", "fleet.plant.nic_decode"),
    "deployment.fabric": ("fleet.plant.fabric",),
    # Limits in seconds are not among them: some laws aim at the objective's own.
    **{f"objective.{key}": (f"objective.{key}",) for key, kind in SCHEMA["objective"].items() if kind == "1"},
}

Overrides = dict[str, dict[str, Any]]
WORKLOAD_KEYS = ("workload.trace", "workload.seed", "workload.days", "workload.hit", "fleet.interval")


class Shape(NamedTuple):
    """What is compiled in, hashable: the tree without its numbers."""

    tree: Any
    fixed: tuple[Any, ...]
    where: tuple[bool, ...]
    ticks: int
    interval: float

    def rebuilt(self, numbers: Any, delay_ticks: int, switch_ticks: int) -> tuple[Fleet, Objective, Policy]:
        """Fleet, objective and policy with these numbers."""
        numbers, fixed = iter(numbers), iter(self.fixed)
        tree = jax.tree.unflatten(self.tree, [next(numbers) if w else next(fixed) for w in self.where])
        return _with_ticks(tree["fleet"], delay_ticks, switch_ticks), tree["objective"], tree["policy"]


class Base(NamedTuple):
    """A case as arrays: the numbers of its tree, all the rest of it, its load before scaling, and the scale."""

    numbers: tuple[float, ...]
    names: tuple[str, ...]
    shape: Shape
    load: tuple[Any, ...]  # key of the workload
    scale: float
    interval: float
    stages: int
    cold_start: float
    switch_delay: float | None


@dataclass(frozen=True)
class Group:
    """Rows of one program.

    `rows` their numbers, `policy` the law's name; `shape`, `delay_ticks`, `switch_ticks` what is compiled in; `numbers`
    of the tree, each one float or an array over the rows; `load` the workload's number per row and `scale` its factor,
    likewise; `loads` requests, computed, stored and output tokens per tick, shape (workloads, ticks); `points` the
    parameters as varied.
    """

    policy: str
    rows: np.ndarray
    shape: Shape
    delay_ticks: int
    switch_ticks: int
    numbers: tuple[float | np.ndarray, ...]
    load: int | np.ndarray
    scale: float | np.ndarray
    loads: tuple[np.ndarray, ...]
    points: dict[str, np.ndarray]

    @property
    def days(self) -> float:
        """Days that one row simulates."""
        return self.shape.ticks * self.shape.interval / 86_400.0


def plan(design: Design, progress: bool = False) -> list[Group]:
    """The groups of a design, in the order of their first rows.

    Raises InputError where a case cannot be built, a law refuses the fleet, or parameters contradict one another.
    """
    builder = _Builder(design)
    groups: list[Group] = []
    first = 0
    for policy in design.policies:
        points = design.points(policy)
        n = len(next(iter(points.values()))) if points else 1
        groups += builder.groups(policy, points, np.arange(first, first + n), progress)
        first += n
    return sorted(groups, key=lambda g: int(g.rows[0]))


class _Builder:
    def __init__(self, design: Design) -> None:
        self.design = design
        self.axes = {axis.key: axis for axis in design.axes}
        self.workloads: dict[tuple[Any, ...], Workload] = {}
        self.amounts: dict[tuple[Any, ...], tuple[np.ndarray, ...]] = {}

    def groups(self, name: str, points: dict[str, np.ndarray], rows: np.ndarray, progress: bool) -> Iterator[Group]:
        heavy = [key for key in points if key not in DIRECT and not self._of_policy(key)]
        settings, which = _distinct([points[key] for key in heavy], len(rows))
        common = {key: points[key][0] for key in points if key not in heavy}
        self._check(points, heavy)
        self._check_policy(name, points)
        bases = []
        for row in tqdm(settings, desc=f"{name}: cases", disable=not progress or len(settings) < 200 or None):
            bases.append(self._base(name, {**common, **{key: points[key][row] for key in heavy}}))
        delay = self._ticks(
            "fleet.cold_start", points, [0.0 if b.stages else b.cold_start for b in bases], bases, which
        )
        switch = self._ticks("fleet.switch_delay", points, [b.switch_delay or 0.0 for b in bases], bases, which)
        shapes: dict[Any, int] = {}
        of_base = np.array([shapes.setdefault(base.shape, len(shapes)) for base in bases])
        keys = np.stack([of_base[which], delay, switch])
        unique, members = np.unique(keys, axis=1, return_inverse=True)
        for number in range(unique.shape[1]):
            index = np.flatnonzero(members.reshape(-1) == number)
            yield self._group(name, points, rows, index, bases, which, unique[:, number])

    def _of_policy(self, key: str) -> bool:
        return self.axes[key].name.startswith("policy.")

    def _group(
        self,
        name: str,
        points: dict[str, np.ndarray],
        rows: np.ndarray,
        index: np.ndarray,
        bases: list[Base],
        which: np.ndarray,
        key: np.ndarray,
    ) -> Group:
        used, local = np.unique(which[index], return_inverse=True)
        mine = [bases[i] for i in used]
        targets = {path: points[k][index] for k in points for path in self._paths(k)}
        numbers: list[float | np.ndarray] = []
        for place, path in enumerate(mine[0].names):
            values = np.array([base.numbers[place] for base in mine])
            moved = np.asarray(targets[path], dtype=np.float64) if path in targets else values[local]
            numbers.append(moved if path in targets or np.unique(values).size > 1 else float(values[0]))
        kinds = list(dict.fromkeys(base.load for base in mine))
        load = np.array([kinds.index(base.load) for base in mine])
        scale = np.array([base.scale for base in mine])
        amounts = [self._amounts(kind, mine[0].interval) for kind in kinds]
        return Group(
            policy=name,
            rows=rows[index],
            shape=mine[0].shape,
            delay_ticks=int(key[1]),
            switch_ticks=int(key[2]),
            numbers=tuple(numbers),
            load=0 if len(kinds) == 1 else load[local],
            scale=float(scale[0]) if np.unique(scale).size == 1 else scale[local],
            loads=tuple(np.stack(part) for part in zip(*amounts, strict=True)),
            points={k: points[k][index] for k in points},
        )

    def _paths(self, key: str) -> tuple[str, ...]:
        return (self.axes[key].name,) if self._of_policy(key) else DIRECT.get(key, ())

    def _ticks(
        self, key: str, points: dict[str, np.ndarray], own: list[float], bases: list[Base], which: np.ndarray
    ) -> np.ndarray:
        interval = np.array([base.interval for base in bases])[which]
        seconds = np.asarray(points[key], dtype=np.float64) if key in points else np.array(own)[which]
        if key == "fleet.cold_start":
            seconds = np.where(np.array([base.stages for base in bases])[which] > 0, 0.0, seconds)
        return np.floor(seconds / interval).astype(np.int64)

    # One case

    def _overrides(self, values: dict[str, Any]) -> Overrides:
        over = {section: dict(keys) for section, keys in self.design.scenario.items()}
        for key, value in values.items():
            section, _, name = key.partition(".")
            if not self._of_policy(key):
                plain = value if isinstance(value, str) else float(value)
                over.setdefault(section, {})[name] = int(value) if SCHEMA[section][name] is int else plain
                if key in ("workload.load_share", "workload.load_scale"):  # one stands in for the other
                    over[section].pop("load_scale" if name == "load_share" else "load_share", None)
        return over

    def _case(self, values: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        over = self._overrides(values)
        load: tuple[Any, ...] = tuple(_value_of(over, key) for key in WORKLOAD_KEYS)
        if load not in self.workloads:
            trace, seed, days, hit, interval = load
            if trace is None:
                self.workloads[load] = default_workload(seed=seed, days=days, window=interval, hit=hit or 0.0)
            else:
                self.workloads[load] = read_trace(trace, interval)[0]
        return build_case(over, checked=True, workload=self.workloads[load]), load

    def _law(self, name: str, case: Any) -> Policy:
        return case.policy if name == "thresholds" else law(name, case.fleet, case.objective)

    def _base(self, name: str, values: dict[str, Any]) -> Base:
        case, load = self._case(values)
        policy = self._law(name, case)
        own = {self.axes[k].name.partition(".")[2]: float(v) for k, v in values.items() if self._of_policy(k)}
        if own:
            # Through the constructor: it checks, and gives numbers that were left open a place in the tree.
            policy = _changed(policy, own)
        fleet = case.fleet
        try:
            if type(policy).prepare is not Policy.prepare:
                policy.prepare(load_of(case.workload, fleet.interval), fleet)  # what it refuses, as numbers
        except InputError as error:
            raise InputError(f"policy {name}: {error}") from None
        tree = {"fleet": _with_ticks(fleet, 0, 0), "objective": case.objective, "policy": policy}
        flat, structure = jax.tree_util.tree_flatten_with_path(tree)
        numbers, names, fixed, where = [], [], [], []
        for path, leaf in flat:
            text = ".".join(str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", "")))) for p in path)
            # A law's whole numbers may be lengths of its memory; those of the fleet are amounts.
            amount = isinstance(leaf, int) and not isinstance(leaf, bool) and path[0].key != "policy"
            real = amount or isinstance(leaf, float) or (isinstance(leaf, jax.Array) and leaf.ndim == 0)
            where.append(real)
            if real:
                numbers.append(float(leaf))
                names.append(text)
            else:
                fixed.append(leaf)
        ticks = self._amounts(load, fleet.interval)[0].shape[0]
        return Base(
            numbers=tuple(numbers),
            names=tuple(names),
            shape=Shape(structure, tuple(fixed), tuple(where), ticks, fleet.interval),
            load=load,
            scale=case.load_scale,
            interval=fleet.interval,
            stages=fleet.stages,
            cold_start=float(fleet.cold_start),
            switch_delay=None if fleet.switch_delay is None else float(fleet.switch_delay),
        )

    def _amounts(self, load: tuple[Any, ...], interval: float) -> tuple[np.ndarray, ...]:
        """Requests and tokens per tick of a workload before it is scaled."""
        if load not in self.amounts:
            self.amounts[load] = tuple(np.asarray(part) for part in load_of(self.workloads[load], interval))
        return self.amounts[load]

    # Checks

    def _check(self, points: dict[str, np.ndarray], heavy: list[str]) -> None:
        """Direct keys are bounded one by one: a case is built at both ends of each."""
        first = {key: values[0] for key, values in points.items()}
        for key in points:
            if key not in heavy and not self._of_policy(key):
                for value in (np.min(points[key]), np.max(points[key])):
                    self._case({**first, key: value})

    def _check_policy(self, name: str, points: dict[str, np.ndarray]) -> None:
        """The law keeps its order in every row, and takes its numbers at the ends of each axis."""
        mine = {self.axes[k].name.partition(".")[2]: points[k].astype(np.float64) for k in points if self._of_policy(k)}
        if not mine:
            return
        policy = self._law(name, self._case({key: values[0] for key, values in points.items()})[0])
        fixed = numbers_of(policy)
        for low_name, high_name in ((t.other, n) for n, t in policy.TUNABLE.items() if t.kind == "above"):
            if not {low_name, high_name} & mine.keys():
                continue
            low, high = (mine.get(n, fixed.get(n)) for n in (low_name, high_name))
            if low is None or high is None:
                continue
            shape = next(iter(mine.values())).shape
            low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
            wrong = np.flatnonzero(low >= high)
            if wrong.size:
                a, b, share = float(low[wrong[0]]), float(high[wrong[0]]), f"{wrong.size} of {low.size} runs"
                if low_name in mine:
                    raise refuse(f"--vary {name}.{low_name}", a, f"below {high_name}, which is {b:g} there ({share})")
                raise refuse(f"--vary {name}.{high_name}", b, f"above {low_name}, which is {a:g} ({share})")
        for values in mine.values():
            for row in {int(np.argmin(values)), int(np.argmax(values))}:
                try:
                    _changed(policy, {k: float(v[row]) for k, v in mine.items()})
                except InputError as error:
                    raise InputError(f"policy {name}: {error}") from None


_DEFAULTS = check_keys(DEFAULTS, "default")


def _value_of(over: Overrides, key: str) -> Any:
    section, _, name = key.partition(".")
    return over.get(section, {}).get(name, _DEFAULTS[section].get(name))


def _with_ticks(fleet: Fleet, delay_ticks: int, switch_ticks: int) -> Fleet:
    own = {f.name: getattr(fleet, f.name) for f in fields(fleet)}
    return Fleet(**{**own, "delay_ticks": delay_ticks, "switch_ticks": switch_ticks})


def _changed(module: Any, numbers: dict[str, float]) -> Any:
    """The module with these numbers (dotted names), made by its constructor."""
    own = {f.name: getattr(module, f.name) for f in fields(module) if f.init}
    inner: dict[str, dict[str, float]] = {}
    for name, value in numbers.items():
        head, _, rest = name.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, parts in inner.items():
        own[head] = _item(own[head], parts)
    return type(module)(**own)


def _item(value: Any, parts: dict[str, float]) -> Any:
    if isinstance(value, eqx.Module):
        return _changed(value, parts)
    # A tuple of modules: the first step of each name is a place in it.
    items = list(value)
    for index in {name.partition(".")[0] for name in parts}:
        mine = {n.partition(".")[2]: v for n, v in parts.items() if n.partition(".")[0] == index}
        items[int(index)] = mine[""] if "" in mine else _item(items[int(index)], mine)
    return tuple(items)


def _distinct(columns: list[np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each distinct setting, in order, and each row's setting."""
    if not columns:
        return np.zeros(1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    codes = np.stack([np.unique(column, return_inverse=True)[1].reshape(-1) for column in columns], axis=1)
    _, first, which = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return first[order], rank[which.reshape(-1)]
