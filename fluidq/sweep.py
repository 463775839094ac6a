"""Thousands of runs at once: a function of one point, over many points, in blocks that fit the cache, on every core.

    costs = sweep(lambda u: simulate(fleet, load, policy_of(u), record=False).cost.cost, points)
    costs, gradients = sweep(cost, points, gradient="forward")

A block is one vectorised call; blocks run side by side on threads, for XLA runs a loop over time on one core.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._errors import refuse, unknown
from fluidq._xla import compiler_options

MODES = ("forward", "reverse", "auto")

# Inputs per point up to which forward mode is the cheaper one: it needs no memory, and its cost grows with them.
FEW = 24

# Points per block: the state of a loop over that many stays in the first-level cache (measured, see tests/benchmarks).
BLOCK = {None: 256, "forward": 64, "reverse": 64}


def sweep(
    function: Callable[[Any], Any],
    points: Any,
    *,
    gradient: str | None = None,
    block: int | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> Any:
    """`function` at every point.

    Arguments:
        function: of one point, to an array or a pytree of arrays, hashable; JAX must be able to trace it. With
            `gradient` it returns one number.
        points: an array or a pytree of arrays (a `Policy`, a `Fleet`, a `Load` ...) with a leading axis over points.
        gradient: None; "forward" for few inputs (no memory); "reverse" for many (give `simulate(checkpoint=True)` for
            long horizons); "auto" for the one that suits the number of inputs.
        block: points per vectorised call. threads: blocks side by side; default: the cores.
        progress: a bar, on a terminal.

    Returns what `function` returns, with a leading axis over points; with `gradient` a pair (values, gradients), the
    gradients shaped like `points`. Raises InputError for points of unequal number, none at all, or an unknown mode.
    """
    if gradient is not None and gradient not in MODES:
        raise unknown("gradient", gradient, MODES)
    leaves = jax.tree.leaves(points)
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        raise refuse(
            "points", sorted(str(jnp.shape(leaf)) for leaf in leaves), "arrays with one leading axis in common"
        )
    (number,) = sizes.pop()
    if number == 0:
        raise refuse("points", "no points", "at least one")
    if gradient == "auto":
        inputs = sum(int(np.prod(jnp.shape(leaf)[1:])) for leaf in leaves)
        gradient = "forward" if inputs <= FEW else "reverse"
    size = min(number, BLOCK[gradient] if block is None else block)
    if size < 1:
        raise refuse("block", block, "at least one point")
    call = _vectorised(function, gradient)
    starts = range(0, number, size)

    def run(start: int) -> Any:
        # The last block is filled up with its own last point: one shape, one compilation.
        index = np.minimum(np.arange(start, start + size), number - 1)
        out = jax.block_until_ready(call(jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], points)))
        return jax.tree.map(lambda x: x[: number - start], out)

    parts = [run(0)]  # compiles, once
    with (
        tqdm(total=number, initial=min(size, number), desc="sweep", disable=None if progress else True) as bar,
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
    ):
        for part in pool.map(run, starts[1:]):
            parts.append(part)
            bar.update(size)
    return jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)


@lru_cache(maxsize=32)
def _vectorised(function: Callable[[Any], Any], gradient: str | None) -> Callable[[Any], Any]:
    """The compiled batch; the same function object is compiled once."""
    return jax.jit(jax.vmap(_with_gradient(function, gradient)), compiler_options=compiler_options())


def _with_gradient(function: Callable[[Any], Any], gradient: str | None) -> Callable[[Any], Any]:
    if gradient is None:
        return function
    if gradient == "reverse":
        return jax.value_and_grad(function)

    def both(point: Any) -> tuple[Any, Any]:
        def twice(p: Any) -> tuple[Any, Any]:
            value = function(p)
            return value, value

        slope, value = jax.jacfwd(twice, has_aux=True)(point)
        return value, slope

    return both


make_callable(__name__)
