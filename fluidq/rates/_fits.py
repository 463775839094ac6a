"""Smooth rates: T = a + b N + c N ISL for a prefill pass, t = a + b B + c B context for a decode step, and their fit.

Fitted by relative least squares: a grid of times spans three decades, and absolute errors would fit its largest only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from fluidq._errors import InputError, refuse
from fluidq._types import Scalar
from fluidq.formulas import requests
from fluidq.rates._interface import AbstractRates, Numbers
from fluidq.units import Number

Points = Real[ArrayLike, "_"] | Sequence[Number]
# Columns of a scaled design whose singular value is below this share of the largest are one column.
_SAME = 1e-7


@dataclass(frozen=True)
class Fit:
    """A fitted law t = a + b x + c x y.

    Attributes:
        names: of the coefficients, with units.
        values: a [s], b, c.
        errors: standard errors in the same units; inf where the data do not determine the coefficient, 0 where it was
            held at 0 because its best value was negative.
        determined: whether the data determine each: independent of the others, and above twice its error.
        relative_rms, relative_mean, relative_worst: of the residuals, as shares of the measured times.
        points: number of points.
        notes: what should be known about it, in words.
    """

    names: tuple[str, str, str]
    values: tuple[float, float, float]
    errors: tuple[float, float, float]
    determined: tuple[bool, bool, bool]
    relative_rms: float
    relative_mean: float
    relative_worst: float
    points: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [
            f"  {name:<14} {value:.4g} +- {error:.2g}"
            for name, value, error in zip(self.names, self.values, self.errors, strict=True)
        ]
        rows.append(f"  mean error {self.relative_mean:.1%}, worst {self.relative_worst:.1%}, {self.points} points")
        return "\n".join(rows + [f"  {note}" for note in self.notes])


class FittedRates(AbstractRates):
    """Rates by the two smooth laws.

    Attributes:
        prefill: a [s], b [s/tok], c [s/tok^2] of a prefill worker's pass.
        step: a [s], b [s/seq], c [s/(seq tok)], with the batch per GPU.
        prefill_gpus: GPUs of a prefill worker.
    """

    prefill: tuple[Scalar, Scalar, Scalar]
    step: tuple[Scalar, Scalar, Scalar]
    prefill_gpus: Scalar = 1.0

    def worker_gpus(self) -> Scalar:
        """GPUs of a prefill worker, over which its passes are spread."""
        return self.prefill_gpus

    def empty_pass(self) -> Array:
        """Time [s] that a prefill pass takes before its first token."""
        return jnp.asarray(self.prefill[0])

    def prefill_time(self, tokens: Numbers, isl: Numbers) -> Array:
        """Time [s] of one pass of a prefill worker over `tokens` [tok] that belong to prompts of `isl` [tok] each."""
        # The same law as the step's, with tokens for sequences and the prompt for the context.
        return _law(self.prefill, tokens, isl)

    def step_time(self, batch: Numbers, context: Numbers) -> Array:
        """Time [s] of a decode step with `batch` sequences per GPU at mean `context` [tok]."""
        return _law(self.step, batch, context)


def _law(coefficients: tuple[Scalar, Scalar, Scalar], x: Numbers, y: Numbers) -> Array:
    a, b, c = coefficients
    return requests.step_time(t_step_a=a, t_step_b=b, t_step_c=c, B=x, theta_ctx=y)


def fit_prefill(tokens: Points, isl: Points, time: Points, weight: Points | None = None) -> Fit:
    """Fit T = a + b N + c N ISL to passes of a prefill worker.

    Args:
        tokens, isl: tokens of each pass and the length of its prompts [tok].
        time: measured or modelled time of each pass [s].
        weight: of each point, 1 where not given; errors count relative to the time.

    Raises:
        InputError: arrays of different length, fewer than three points, or a value that no pass has.
    """
    return _fit("tokens", tokens, "isl", isl, time, weight, ("a [s]", "b [s/tok]", "c [s/tok2]"))


def fit_step(batch: Points, context: Points, time: Points, weight: Points | None = None) -> Fit:
    """Fit t = a + b B + c B context to decode steps; `batch` is per GPU [seq], `context` in tokens, `time` in s.

    Raises:
        InputError: as `fit_prefill`.
    """
    return _fit("batch", batch, "context", context, time, weight, ("a [s]", "b [s/seq]", "c [s/(seq tok)]"))


def _fit(
    x_name: str, x: Points, y_name: str, y: Points, time: Points, weight: Points | None, names: tuple[str, str, str]
) -> Fit:
    xs, ys, ts = (np.asarray(v, dtype=float) for v in (x, y, time))
    ws = np.ones_like(ts) if weight is None else np.asarray(weight, dtype=float)
    for name, values in ((x_name, xs), (y_name, ys), ("time", ts), ("weight", ws)):
        if values.shape != ts.shape or ts.ndim != 1:
            raise refuse(name, f"{values.size} values", f"one per point, as the {ts.size} times are")
        low = 0.0 if name != "time" else np.nextafter(0.0, 1.0)
        bad = ~(np.isfinite(values) & (values >= low))
        if bad.any():
            first = int(np.argmax(bad))
            words = "> 0 s" if name == "time" else ">= 0"
            raise refuse(f"{name}, point {first + 1}", float(values[first]), f"a finite number {words}")
    used = int((ws > 0).sum())
    if used < 3:
        raise refuse("time", f"{used} points with weight", "three at least, for three coefficients")
    design = np.stack([np.ones_like(xs), xs, xs * ys], axis=1) / ts[:, None]
    root = np.sqrt(ws)
    return _solve(design * root[:, None], root, names, used)


def _solve(design: np.ndarray, target: np.ndarray, names: tuple[str, str, str], points: int) -> Fit:
    """Least squares with no coefficient below 0, and what the data say about each."""
    scale = np.sqrt((design**2).sum(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = design / scale
    best: tuple[float, np.ndarray, tuple[int, ...]] | None = None
    for keep in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        part = np.linalg.lstsq(scaled[:, keep], target, rcond=_SAME)[0]
        if (part < -1e-12).any():
            continue
        loss = float(((scaled[:, keep] @ part - target) ** 2).sum())
        # A smaller set must be better by more than rounding: then the full one had a coefficient below 0.
        if best is None or loss < best[0] * (1 - 1e-9):
            full = np.zeros(3)
            full[list(keep)] = np.maximum(part, 0.0)
            best = (loss, full, keep)
    if best is None:  # one column of ones over times > 0 always has a coefficient above 0
        raise InputError("no law with coefficients >= 0 fits these times.")
    _, solution, keep = best
    residual = scaled @ solution - target
    singular, rows = np.linalg.svd(scaled[:, keep], full_matrices=False)[1:]
    weak = singular < _SAME * singular.max()
    mixed = (np.abs(rows[weak]) > 1e-6).any(axis=0)
    freedom = max(points - int((~weak).sum()), 1)
    variance = float((residual**2).sum()) / freedom
    strong = rows[~weak] / singular[~weak, None]
    deviation = np.sqrt(variance * (strong**2).sum(axis=0))
    errors = np.zeros(3)
    errors[list(keep)] = np.where(mixed, np.inf, deviation / scale[list(keep)])
    values = solution / scale
    notes, determined = [], []
    for i, name in enumerate(names):
        if i not in keep:
            notes.append(f"{name} is held at 0: its best value is negative")
            determined.append(False)
        elif np.isinf(errors[i]):
            notes.append(f"{name} is not determined: these points do not tell it from another coefficient")
            determined.append(False)
        else:
            determined.append(bool(values[i] > 2 * errors[i]))
            if not determined[-1]:
                notes.append(f"{name} is within twice its standard error of 0")
    shares = np.abs(residual[target > 0] / target[target > 0])
    return Fit(
        names=names,
        values=(float(values[0]), float(values[1]), float(values[2])),
        errors=(float(errors[0]), float(errors[1]), float(errors[2])),
        determined=(determined[0], determined[1], determined[2]),
        relative_rms=float(np.sqrt((shares**2).mean())),
        relative_mean=float(shares.mean()),
        relative_worst=float(shares.max()),
        points=points,
        notes=tuple(notes),
    )
