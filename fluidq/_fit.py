"""Robust least squares with standard errors, and a word on which parameters the data cannot tell.

Levenberg-Marquardt on exact derivatives inside iteratively reweighted least squares: errors are relative to the
prediction, Huber's weights keep an outlier's pull bounded, the covariance is the sandwich of an M-estimate (Huber
1981), widened where residuals in order of time are correlated.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float64

Values = Float64[np.ndarray, " rows"]
Model = Callable[[Mapping[str, Any], Mapping[str, Any]], Array]

HUBER = 1.345  # 95 % efficient where the errors are normal
FEW = 8  # rows below which a median says less about the scatter than the sum of squares
MANY = 40  # rows from which errors need not be presumed equal
SINGULAR = 1e-6  # of the largest singular value: what the data do not tell at all
WEAK = 0.5  # standard error as a share of the value: what they hardly tell
ROUNDS = 60
FEWEST = 64  # rows of a compiled fit


@dataclass(frozen=True)
class Part:
    """Observations under one law: `model(parameters, data)` predicts `observed`, each of shape (rows,) and > 0.

    `weight` is the relative weight of each row (1 where the rows count alike). `sequence` numbers the runs of rows that
    follow each other in time, whose errors may be correlated. `model` is a function at the top of a module: it is a
    key of the compilation cache.
    """

    model: Model
    data: Mapping[str, Values]
    observed: Values
    weight: Values
    sequence: np.ndarray


@dataclass(frozen=True)
class Fit:
    """What came out: parameters that were free, with their errors; `fixed` those that were not, and why.

    `scatter` is the relative scatter of the observations, `freedom` rows less free parameters, `condition` that of the
    Jacobian with unit columns, `weights` Huber's weights of the rows in order of the parts, `widened` the factor on
    the standard errors for correlation in time.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    fixed: Mapping[str, str]
    scatter: float
    freedom: int
    condition: float
    weights: Values
    widened: float


def fit(
    parts: Sequence[Part],
    start: Mapping[str, float],
    *,
    sacrifice: Sequence[str] = (),
    fallback: Mapping[str, float] | None = None,
) -> Fit:
    """Fit the parameters in `start` (values > 0 of about the right size) to all `parts` at once.

    `sacrifice` lists parameters that may be held fixed, at their `fallback` value or 0: in that order those that the
    data cannot tell apart from others, and any that comes out negative (at 0), since none of them can be.
    """
    fallback = dict(fallback or {})
    free = [name for name in start]
    held: dict[str, float] = {}
    why: dict[str, str] = {}
    rows = sum(part.observed.size for part in parts)
    for name in (name for name in sacrifice if name in free):
        if len(free) > rows:
            free.remove(name)
            held[name], why[name] = fallback.get(name, 0.0), "fewer rows than terms"
    while True:
        solved = _reweighted(parts, {name: start[name] for name in free}, held)
        culprit = _culprit(solved, free, sacrifice)
        if culprit is not None:
            held[culprit], why[culprit] = fallback.get(culprit, 0.0), "not told apart from the other terms"
            free.remove(culprit)
            continue
        negative = [name for name in sacrifice if name in free and solved.values[name] < 0]
        if negative:
            worst = min(negative, key=lambda name: solved.values[name] / start[name])
            held[worst], why[worst] = 0.0, f"came out negative ({solved.values[worst]:.3g})"
            free.remove(worst)
            continue
        return _finish(parts, solved, free, held, why)


@dataclass(frozen=True)
class _Solved:
    values: dict[str, float]
    jacobian: np.ndarray  # of the relative predictions, prior weights applied: (rows, free)
    residuals: np.ndarray  # relative, prior weights applied
    weights: np.ndarray
    scatter: float


def _reweighted(parts: Sequence[Part], start: dict[str, float], held: dict[str, float]) -> _Solved:
    names = list(start)
    models = tuple(part.model for part in parts)
    padded = [_padded(part) for part in parts]
    data = tuple(columns for columns, _ in padded)
    real = np.concatenate([here for _, here in padded])
    observed = np.concatenate([part.observed for part in parts])
    prior = np.sqrt(np.concatenate([part.weight for part in parts]))
    targets, begin = jnp.asarray(_spread(observed, real)), jnp.asarray([start[name] for name in names])
    fixed = {name: jnp.asarray(value) for name, value in held.items()}
    unit, huber, size, scatter = jnp.ones(len(names)), np.ones(prior.size), observed, 0.0
    residual, slope = np.zeros(prior.size), np.zeros((prior.size, len(names)))
    for _ in range(ROUNDS):
        factor = jnp.asarray(_spread(prior * np.sqrt(huber) / size, real))
        unit_new, predicted, slope = _solve(models, names, begin, fixed, data, targets, factor, unit)
        predicted, slope = np.asarray(predicted)[real], np.asarray(slope)[real]
        size = np.maximum(predicted, 1e-3 * observed)  # errors relative to the law, not to one observation's noise
        residual = prior * (observed - predicted) / size
        scatter = _scatter(residual, len(names))
        huber = np.ones(prior.size)
        if scatter > 0:
            huber = np.minimum(1.0, HUBER * scatter / np.maximum(np.abs(residual), 1e-300))
        moved = float(np.max(np.abs(np.asarray(unit_new - unit)) / np.maximum(np.abs(np.asarray(unit_new)), 1e-9)))
        unit = unit_new
        if moved < 1e-9:
            break
    values = {name: float(v) for name, v in zip(names, np.asarray(unit * begin), strict=True)}
    jacobian = prior[:, None] * slope / size[:, None]
    return _Solved(values, jacobian, residual, huber, scatter)


def _padded(part: Part) -> tuple[dict[str, Array], np.ndarray]:
    """The data with their first row repeated up to a common length, so that a compiled fit serves many lengths.

    The second array says which rows are real: the others get the factor 0.
    """
    rows = part.observed.size
    length = max(FEWEST, 1 << (rows - 1).bit_length())
    index = np.where(np.arange(length) < rows, np.arange(length), 0)
    return {k: jnp.asarray(v[index], jnp.float64) for k, v in part.data.items()}, np.arange(length) < rows


def _spread(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    out = np.zeros(real.size)
    out[real] = values
    return out


@eqx.filter_jit
def _solve(
    models: tuple[Model, ...],
    names: list[str],
    begin: Array,
    fixed: dict[str, Array],
    data: tuple[dict[str, Array], ...],
    observed: Array,
    factor: Array,
    unit: Array,
) -> tuple[Array, Array, Array]:
    """Least squares from `unit` (parameters over `begin`): the solution, the predictions, and their derivatives with
    respect to the parameters."""

    def predict(u: Array) -> Array:
        parameters = {**fixed, **{name: u[i] * begin[i] for i, name in enumerate(names)}}
        return jnp.concatenate([model(parameters, one) for model, one in zip(models, data, strict=True)])

    def residuals(u: Array, _: None) -> Array:
        return factor * (observed - predict(u))

    solver = optx.LevenbergMarquardt(rtol=1e-10, atol=1e-12)
    solution = optx.least_squares(residuals, solver, unit, max_steps=200, throw=False)
    return solution.value, predict(solution.value), jax.jacfwd(predict)(solution.value) / begin[None, :]


def _scatter(residual: np.ndarray, parameters: int) -> float:
    """The scale of the residuals: from the median where there are enough rows, which outliers do not move."""
    n = residual.size
    if n <= parameters:
        return 0.0
    if n < FEW:
        return math.sqrt(float(residual @ residual) / (n - parameters))
    return 1.4826 * float(np.median(np.abs(residual))) * math.sqrt(n / (n - parameters))


def _culprit(solved: _Solved, free: list[str], sacrifice: Sequence[str]) -> str | None:
    """The first of `sacrifice` in a combination of parameters that leaves every prediction as it is."""
    norms = np.linalg.norm(solved.jacobian, axis=0)
    columns = solved.jacobian / np.where(norms > 0, norms, 1.0)
    _, singular, right = np.linalg.svd(columns, full_matrices=False)
    if singular.size == 0 or singular[-1] > SINGULAR * singular[0]:
        return None
    part = dict(zip(free, np.abs(right[-1]), strict=True))
    return next((name for name in sacrifice if part.get(name, 0.0) > 0.1), None)


def _finish(
    parts: Sequence[Part], solved: _Solved, free: list[str], held: dict[str, float], why: dict[str, str]
) -> Fit:
    n, p = solved.residuals.size, len(free)
    norms = np.linalg.norm(solved.jacobian, axis=0)
    columns = solved.jacobian / np.where(norms > 0, norms, 1.0)
    singular = np.linalg.svd(columns, compute_uv=False) if p else np.ones(1)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    errors, widened = dict.fromkeys(free, math.inf), 1.0
    if n > p:
        widened = _widening(parts, solved.residuals)
        variance = np.diag(_covariance(columns, solved.residuals, solved.scatter))
        spread = np.sqrt(variance) / np.where(norms > 0, norms, np.nan) * widened
        errors = {name: float(e) if math.isfinite(e) else math.inf for name, e in zip(free, spread, strict=True)}
    return Fit(
        values={**solved.values, **held},
        errors=errors,
        fixed=why,
        scatter=solved.scatter,
        freedom=n - p,
        condition=condition,
        weights=solved.weights,
        widened=widened,
    )


def _covariance(x: np.ndarray, residual: np.ndarray, scatter: float) -> np.ndarray:
    """Covariance of a Huber estimate with the derivatives `x` of its predictions.

    With few rows that of equal errors (Huber's H1); with many the sandwich that does not presume them equal, each
    row's leverage h taken out by (1 - h)^-2 (HC3), since the scatter of a window depends on what happened in it.
    """
    n, p = x.shape
    inverse = np.linalg.pinv(x.T @ x)
    if scatter == 0:
        return np.zeros((p, p))
    standard = residual / scatter
    inside = float(np.mean(np.abs(standard) <= HUBER))
    if inside == 0:
        return np.full((p, p), math.inf)
    psi = scatter * np.clip(standard, -HUBER, HUBER)
    if n < MANY:
        correction = 1 + p / n * (1 - inside) / inside
        return correction**2 * float(psi @ psi) / (n - p) / inside**2 * inverse
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    bread = np.linalg.pinv(x.T @ (x * (np.abs(standard) <= HUBER)[:, None]))
    return bread @ (x.T * (psi / (1 - np.minimum(leverage, 0.99))) ** 2) @ x @ bread


def _widening(parts: Sequence[Part], residual: np.ndarray) -> float:
    """sqrt((1 + r)/(1 - r)) for residuals with a significant correlation r between neighbours in time; else 1."""
    sequence = np.concatenate([part.sequence + 1000 * i for i, part in enumerate(parts)])
    level = np.median(np.abs(residual))
    clipped = np.clip(residual, -4 * level, 4 * level)  # one outlier is no correlation
    same = sequence[1:] == sequence[:-1]
    square = float(np.mean(clipped**2))
    if same.sum() < 2 * FEW or square == 0:
        return 1.0
    r = float(np.mean((clipped[1:] * clipped[:-1])[same])) / square
    return math.sqrt((1 + r) / (1 - r)) if 2 / math.sqrt(same.sum()) < r < 1 else 1.0


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else Hill's expansion (CACM 13, 1970; to 1e-3)."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        a = 2 * probability - 1
        return a * math.sqrt(2 / (1 - a * a))
    z = statistics.NormalDist().inv_cdf(probability)
    n, s = freedom, z * z
    terms = (
        1.0,
        (s + 1) / 4,
        (5 * s**2 + 16 * s + 3) / 96,
        (3 * s**3 + 19 * s**2 + 17 * s - 15) / 384,
        (79 * s**4 + 776 * s**3 + 1482 * s**2 - 1920 * s - 945) / 92_160,
    )
    return z * math.fsum(term / n**k for k, term in enumerate(terms))
