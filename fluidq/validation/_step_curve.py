"""Time per output token against batch, from published points of like systems: a curve per group, pooled.

A group of published points has three to eight of them, on decode workers that the vendor changes with the batch: too
few and too mixed for a law of three coefficients each. So the logarithm of the time is a sum

    common line in log B, log r_P, log context and speculation
    + offset, slope and smooth curve of the group + offset of (group, speculation, decode worker size)

with normal laws of stated width on each part, and the estimate is their conditional mean (a Gaussian process): near a
group's own points it follows them, away from them the pooled line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fluidq.formulas import requests

# Origin of log B, log r_P and log context: 20 sequences per GPU, 8,000 tok/s per GPU, 8,000 tokens.
_CENTRE = (3.0, np.log(8e3), np.log(8e3))
# Mean and width of the common line's coefficients. A step of 30 ms at 20 sequences that grows like B^0.35 (wide
# workers are used at large batch, so that it grows less than on one worker); a system that prefills faster decodes
# faster; speculation saves a quarter, less of it at large batch. All are re-estimated from the points.
_LINE = {
    "level": (np.log(0.03), 0.3),
    "log B": (0.35, 0.1),
    "log B squared": (0.0, 0.03),
    "log r_P": (-0.4, 0.2),
    "log context": (0.1, 0.2),
    "speculation": (-0.25, 0.2),
    "speculation x log B": (0.0, 0.1),
}
_MEAN = np.array([mean for mean, _ in _LINE.values()])
_WIDTH = np.array([width for _, width in _LINE.values()])
# Widths, in logarithms: how far groups, and workers within a group, differ; how far a group's curve leaves its line,
# over what range of log B; by how much slopes differ; and the error of a point.
_GROUP, _WORKER, _CURVE, _RANGE, _SLOPE, _POINT = 0.15, 0.15, 0.15, 1.0, 0.1, 0.05


@dataclass(frozen=True)
class System:
    """What tells one system's curve from another's: its group, its worker within the group, and three figures."""

    group: str
    worker: tuple[str, str, float]
    r_P: float
    context: float
    speculates: bool


class Curve(NamedTuple):
    """log tpot = a + b u + c u^2 + sum_k weight_k exp(-(u - u_k)^2 / 2), u = log B - 3. Arrays, so it can be traced."""

    polynomial: Array
    at: Array
    weight: Array

    def __call__(self, batch: Array) -> Array:
        """Time per output token [s] at `batch` sequences per decode GPU > 0."""
        u = jnp.log(batch) - _CENTRE[0]
        smooth = jnp.sum(self.weight * jnp.exp(-0.5 * ((u - self.at) / _RANGE) ** 2))
        a, b, c = self.polynomial
        return jnp.exp(a + u * (b + c * u) + smooth)


def mean_context(isl: float, osl: float) -> float:
    """Mean context of a decode step [tok] of requests with these lengths (D05)."""
    return float(requests.mean_context_fixed(isl=isl, osl=osl))


def _features(system: System, u: np.ndarray) -> np.ndarray:
    """The common line's regressors at each u, shape (points, 7)."""
    rate, context = np.log(system.r_P) - _CENTRE[1], np.log(max(system.context, 1.0)) - _CENTRE[2]
    flag = float(system.speculates)
    one = np.ones_like(u)
    return np.stack([one, u, u**2, rate * one, context * one, flag * one, flag * u], axis=1)


def curve_of(target: System, systems: Sequence[System], batch: np.ndarray, tpot: np.ndarray, size: int) -> Curve:
    """The curve of `target` given points (batch, tpot) of other systems, shapes (points,).

    `size` >= points is the length of the arrays returned: equal sizes need one compilation.
    """
    u, y = np.log(batch) - _CENTRE[0], np.log(tpot)
    rows = np.concatenate([_features(s, u[i : i + 1]) for i, s in enumerate(systems)])
    group = np.array([[a.group == b.group for b in systems] for a in systems], float)
    worker = np.array([[a.worker == b.worker for b in systems] for a in systems], float)
    smooth = np.exp(-0.5 * ((u[:, None] - u[None]) / _RANGE) ** 2)
    cover = (rows * _WIDTH**2) @ rows.T + _WORKER**2 * worker
    cover += group * (_GROUP**2 + _SLOPE**2 * np.outer(u, u) + _CURVE**2 * smooth)
    weight = np.linalg.solve(cover + _POINT**2 * np.eye(u.size), y - rows @ _MEAN)
    same = np.array([s.group == target.group for s in systems], float) * weight
    like = np.array([s.worker == target.worker for s in systems], float) * weight
    # What the target's curve adds up to: a quadratic in u, and the smooth part.
    line = _MEAN + _WIDTH**2 * (rows.T @ weight)
    probe = np.array([0.0, 1.0, -1.0])
    at_0, at_1, at_2 = _features(target, probe) @ line
    polynomial = np.array([at_0, (at_1 - at_2) / 2, (at_1 + at_2) / 2 - at_0])
    polynomial[0] += _GROUP**2 * same.sum() + _WORKER**2 * like.sum()
    polynomial[1] += _SLOPE**2 * (same @ u)
    padding = np.zeros(size - u.size)
    return Curve(
        jnp.asarray(polynomial),
        jnp.asarray(np.concatenate([u, padding])),
        jnp.asarray(np.concatenate([_CURVE**2 * same, padding])),
    )
