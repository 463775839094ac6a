"""Rows of a search: closed loops of (coordinates, draw of the load), many per call, with or without slopes.

A call is cut into blocks of a few fixed shapes, and blocks run side by side on threads: what a row gives does not
depend on the machine's cores.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fluidq._xla import compiled
from fluidq.objective import Objective
from fluidq.simulate import Load, simulate
from fluidq.space import Space

# Rows per call at most; measured, see tests/benchmarks. Fewer are rounded up to a multiple of `STEP`.
MOST = {"hard": 256, "relaxed": 256, "slopes": 64}
STEP = 8
# Up to here forward mode is the cheaper one: its cost grows with the number of parameters, and it keeps nothing.
FEW = 24

OUTCOMES = ("cost", "paid", "attained")


class Slopes(NamedTuple):
    """Outcomes of rows, shape (rows, outcomes), and their derivatives, (rows, outcomes, parameters)."""

    values: np.ndarray
    slopes: np.ndarray


class Rows:
    """The closed loops of one search.

    An outcome is (cost, GPU-hours and actions as priced, SLO attainment). `counted` adds up the runs that were asked
    for: 1 each, and 1 + parameters with slopes, what forward mode computes.
    """

    exact = False

    def __init__(self, space: Space, loads: Load, objective: Objective) -> None:
        self.space, self.loads, self.objective = space, loads, objective
        self.draws = int(loads.requests.shape[0])
        self.counted = 0
        self._forecasts = _forecasts(space, loads)

    def hard(self, u: Float[Array | np.ndarray, "rows parameters"], draws: Any) -> np.ndarray:
        """Outcomes under the hard law, shape (rows, outcomes)."""
        self.counted += len(u)
        return self._blocks("hard", u, draws, None)

    def relaxed(self, u: Float[Array | np.ndarray, "rows parameters"], draws: Any, width: float) -> np.ndarray:
        """Outcomes under the relaxed law."""
        self.counted += len(u)
        return self._blocks("relaxed", u, draws, width)

    def slopes(self, u: Float[Array | np.ndarray, "rows parameters"], draws: Any, width: float) -> Slopes:
        """Outcomes under the relaxed law with their path-wise derivatives."""
        self.counted += len(u) * (1 + len(self.space.labels))
        return Slopes(*self._blocks("slopes", u, draws, width))

    def of(self, policy: Any, fleet: Any = None) -> np.ndarray:
        """Hard outcomes of one policy as it is, not through its coordinates, on every draw: (draws, outcomes)."""
        self.counted += self.draws
        fleet = self.space.fleet if fleet is None else fleet
        return np.asarray(
            _as_it_is(_arrays(policy), _arrays(fleet), self.loads, self._forecasts, _arrays(self.objective))
        )

    def _blocks(self, kind: str, u: Any, draws: Any, width: float | None) -> Any:
        u, draws = np.asarray(u, dtype=np.float64), np.asarray(draws, dtype=np.int64)
        size = min(MOST[kind], -(-len(u) // STEP) * STEP)
        wide = None if width is None else jnp.asarray(width, dtype=jnp.float64)
        space = _arrays(self.space)
        call = _call(kind, len(self.space.labels) <= FEW)

        def run(start: int) -> Any:
            # The last block is filled up with its own last row: few shapes, few compilations.
            index = np.minimum(np.arange(start, start + size), len(u) - 1)
            out = call(space, jnp.asarray(u[index]), draws[index], wide, self._fixed())
            return jax.tree.map(lambda x: np.asarray(x)[: len(u) - start], out)

        starts = range(0, len(u), size)
        parts = [run(0)]
        if len(starts) > 1:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                parts += pool.map(run, starts[1:])
        return jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)

    def _fixed(self) -> Any:
        return self.loads, self._forecasts, _arrays(self.objective)


def _forecasts(space: Space, loads: Load) -> Array | None:
    """What a policy forecasts from a whole load and cannot under a transformation, per draw; None for most."""
    if getattr(space.policy, "forecasts", 0) is not None:
        return None
    each = []
    for d in range(loads.requests.shape[0]):
        prepared: Any = space.policy.prepare(Load(*(part[d] for part in loads)), space.fleet)
        if prepared.forecasts is None:
            return None
        each.append(prepared.forecasts)
    return jnp.stack(each)


def _outcome(policy: Any, fleet: Any, load: Load, objective: Objective, width: Any, checkpoint: bool) -> Array:
    run = simulate(fleet, load, policy, objective, width=width, record=False, checkpoint=checkpoint)
    return jnp.stack([run.cost.cost, run.cost.gpu_hours + run.cost.actions, run.attained])


def _with_forecasts(policy: Any, forecasts: Array | None, draw: Any) -> Any:
    if forecasts is None:
        return policy
    return eqx.tree_at(lambda p: p.forecasts, policy, forecasts[draw], is_leaf=lambda x: x is None)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float64) if isinstance(x, float) else x, tree)


@lru_cache(maxsize=8)
def _call(kind: str, few: bool) -> Callable[..., Any]:
    """The compiled block of one kind; the space's own numbers are inputs, so another start is no new compilation."""

    def block(space: Space, u: Array, draws: Array, width: Any, fixed: Any) -> Any:
        loads, forecasts, objective = fixed

        def row(v: Array, draw: Any) -> Any:
            def outcome(w: Array) -> tuple[Array, Array]:
                policy, fleet = space.at(w)
                load = Load(*(part[draw] for part in loads))
                policy = _with_forecasts(policy, forecasts, draw)
                out = _outcome(policy, fleet, load, objective, width, checkpoint=kind == "slopes" and not few)
                return out, out

            if kind != "slopes":
                return outcome(v)[0]
            slopes, values = (jax.jacfwd if few else jax.jacrev)(outcome, has_aux=True)(v)
            return values, slopes

        return jax.vmap(row)(u, draws)

    return compiled(block)


@compiled
def _as_it_is(policy: Any, fleet: Any, loads: Load, forecasts: Array | None, objective: Objective) -> Array:
    def one(draw: Array) -> Array:
        load = Load(*(part[draw] for part in loads))
        return _outcome(_with_forecasts(policy, forecasts, draw), fleet, load, objective, None, False)

    return jax.vmap(one)(jnp.arange(loads.requests.shape[0]))
