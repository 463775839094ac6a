"""One group of rows on the devices of this process: blocks of a fixed width, so that no split changes a bit.

A block is always as wide, the last one filled up with its last row; several local devices take a block each, side by
side, in one program (`jax.shard_map`); on one CPU device, blocks run side by side on threads.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fluidq._sweep_plan import Group, Shape
from fluidq._xla import compiler_options
from fluidq.objective import Cost
from fluidq.simulate import Load, Run
from fluidq.simulate import _run as run_checked  # the rows were checked as numbers: no checks inside the program
from fluidq.sweep import BLOCK

# Rows per block: on a CPU, what the first-level cache holds (fluidq.sweep); on an accelerator, enough to fill it.
WIDTH = {"cpu": BLOCK[None]}
WIDE = 8192


def width() -> int:
    """The default block of this backend."""
    return WIDTH.get(jax.default_backend(), WIDE)


class Runner:
    """Runs rows of groups; `programs` counts what it compiled, `compiling` the seconds that took."""

    def __init__(self, block: int, progress: Callable[[int], Any] | None = None) -> None:
        self.block = block
        self.devices = tuple(jax.local_devices())
        self.programs = 0
        self.progress = progress or (lambda rows: None)

    def run(self, group: Group, start: int, stop: int) -> dict[str, np.ndarray]:
        """What came out of these rows of the group, by column, shape (stop - start,)."""
        varies = tuple(isinstance(x, np.ndarray) for x in group.numbers)
        shared = [x for x in group.numbers if not isinstance(x, np.ndarray)]
        key = (group.shape, group.delay_ticks, group.switch_ticks, varies)
        before = _program.cache_info().misses
        program = _program(*key, np.ndim(group.load) > 0, np.ndim(group.scale) > 0, self.devices)
        self.programs += _program.cache_info().misses - before
        step = self.block * len(self.devices)

        def one(at: int) -> list[np.ndarray]:
            index = np.minimum(np.arange(at, at + step), stop - 1)
            take = lambda x: x[index] if isinstance(x, np.ndarray) else x  # noqa: E731
            moving = [take(x) for x in group.numbers if isinstance(x, np.ndarray)]
            out = jax.block_until_ready(program(moving, shared, take(group.load), take(group.scale), group.loads))
            self.progress(min(step, stop - at))
            return [np.asarray(values)[: stop - at] for values in out]

        starts = range(start, stop, step)
        parts = [one(starts[0])]  # compiles, once
        threads = os.cpu_count() or 1 if len(self.devices) == 1 and self.devices[0].platform == "cpu" else 1
        with ThreadPoolExecutor(threads) as pool:
            parts += pool.map(one, starts[1:])
        return {name: np.concatenate(pieces) for name, pieces in zip(COLUMNS, zip(*parts, strict=True), strict=True)}


@lru_cache(maxsize=128)
def _program(
    shape: Shape,
    delay_ticks: int,
    switch_ticks: int,
    varies: tuple[bool, ...],
    many_loads: bool,
    many_scales: bool,
    devices: tuple[Any, ...],
) -> Callable[..., tuple[Any, ...]]:
    """The compiled batch of one group."""

    def row(moving: list[Any], shared: list[Any], load: Any, scale: Any, loads: tuple[Any, ...]) -> tuple[Any, ...]:
        a, b = iter(moving), iter(shared)
        numbers = [next(a) if moves else next(b) for moves in varies]
        fleet, objective, policy = shape.rebuilt(numbers, delay_ticks, switch_ticks)
        amounts = Load(*(part[load] * scale for part in loads))
        policy = policy.prepare(amounts, fleet)
        return _results(run_checked(fleet, amounts, policy, objective, None, False, 0, None, False))

    axes = (0, None, 0 if many_loads else None, 0 if many_scales else None, None)
    if all(axis is None for axis in axes[2:]) and not any(varies):
        return jax.jit(_alone(row), compiler_options=compiler_options())
    batch = jax.vmap(row, in_axes=axes)
    if len(devices) > 1:
        spec, same = PartitionSpec("rows"), PartitionSpec()
        specs = tuple(same if axis is None else spec for axis in axes)
        mesh = Mesh(np.array(devices), ("rows",))
        batch = jax.shard_map(batch, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    return jax.jit(batch, compiler_options=compiler_options())


def _alone(row: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A batch of the one run there is where nothing varies."""
    return lambda *arguments: tuple(value[None] for value in row(*arguments))


# Columns of the table: the parts of the cost in GPU-hours over the workload, and what `fluidq.compare` shows.
_PARTS = tuple(Cost.__dataclass_fields__)
_REST = {
    "slo_attainment": "attained",
    "actions": "actions",
    "time_full": "full",
    "time_empty": "empty",
    "requests": "arrived",
    "requests_lost": "lost",
    "requests_left": "left",
}
COLUMNS = ("cost", *(f"{part}_cost" if part in _REST else part for part in _PARTS), *_REST)


def _results(run: Run) -> tuple[Any, ...]:
    """The values of `COLUMNS`."""
    return (
        run.cost.cost,
        *(getattr(run.cost, part) for part in _PARTS),
        *(getattr(run, field) for field in _REST.values()),
    )
