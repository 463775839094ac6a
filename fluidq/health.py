"""Whether a gradient can be used: its growth over the horizon, and its agreement with two differences.

A closed loop with a delay can have a path-wise derivative that is right and useless: it grows by a factor per cold
start, or it is exactly 0 where the law compares on ticks, or it is not a number. This report names what it finds.

    health = gradient_health(cost_of, point)
    if not health.usable: print(health.verdict)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from fluidq._errors import refuse
from fluidq.simulate import Load
from fluidq.sweep import sweep

HEALTHY, EXPLODING, VANISHING, NOT_FINITE = "healthy", "exploding", "vanishing", "not finite"
DISAGREES, UNCLEAR = "disagrees", "unclear"
WORST_FIRST = (NOT_FINITE, EXPLODING, VANISHING, DISAGREES, UNCLEAR)

# A cost summed over time has a gradient that grows in proportion to the horizon, or with its square where the state
# remembers. Doubling the horizon then makes 2 to 4 of it; ten times that is no power law of this kind.
MOST_GROWTH = 40.0
# Gradients more than this many times the smoothed difference are not its size; with such growth this many suffice.
MOST_EXCESS, MOST_EXCESS_GROWING = 10.0, 2.0
# How near the smoothed difference a usable gradient is: this share, and this many standard errors.
AGREES, ERRORS = 0.25, 4.0
# A path-wise gradient below this share of the smoothed one is none.
NOTHING = 1e-6


@dataclass(frozen=True)
class Health:
    """What was found; arrays have one entry per parameter unless said otherwise.

    Attributes:
        names: of the parameters.
        shares: of the horizon, shape (shares,); costs: at the point, (shares,); gradients: (shares, parameters).
        smoothed: slope of the cost over a Gaussian cloud of points around this one; error: its standard error.
        central: central differences with a small step.
        growth: largest factor by which |gradient| grows when the horizon doubles, taken over the shares.
        findings: one of healthy, exploding, vanishing, not finite, disagrees, unclear per parameter; unclear where the
            smoothed difference is too uncertain to tell and the parameter is not one of little effect.
        verdict: the worst of them in words, with its numbers.
    """

    names: tuple[str, ...]
    shares: Float64[np.ndarray, " shares"]
    costs: Float64[np.ndarray, " shares"]
    gradients: Float64[np.ndarray, "shares parameters"]
    smoothed: Float64[np.ndarray, " parameters"]
    error: Float64[np.ndarray, " parameters"]
    central: Float64[np.ndarray, " parameters"]
    growth: Float64[np.ndarray, " parameters"]
    findings: tuple[str, ...]
    verdict: str

    @property
    def usable(self) -> bool:
        """Whether every component is healthy."""
        return all(finding == HEALTHY for finding in self.findings)

    def table(self) -> str:
        """One line per parameter."""
        head = f"{'parameter':<16}{'gradient':>13}{'smoothed':>13}{'+-':>10}{'central':>13}{'growth':>10}  finding"
        rows = [
            f"{name:<16}{g:>13.4g}{s:>13.4g}{e:>10.2g}{c:>13.4g}{r:>10.3g}  {finding}"
            for name, g, s, e, c, r, finding in zip(
                self.names,
                self.gradients[-1],
                self.smoothed,
                self.error,
                self.central,
                self.growth,
                self.findings,
                strict=True,
            )
        ]
        return "\n".join([head, *rows])


def gradient_health(
    cost_of: Callable[[Array, float], Any],
    point: Any,
    *,
    names: Sequence[str] | None = None,
    shares: Sequence[float] = (0.125, 0.25, 0.5, 1.0),
    sigma: float = 0.05,
    scale: Any = None,
    samples: int = 64,
    step: float = 1e-4,
    gradient: str = "forward",
    seed: int = 0,
) -> Health:
    """Examine the gradient of `cost_of` at `point`.

    The smoothed difference: antithetic pairs x +- sigma z, z Gaussian, all on the same load (common random numbers);
    the slopes are those of the least-squares plane through (f(x + sigma z) - f(x - sigma z)) / (2 sigma) over z, which
    has no error at all where f is quadratic. It exists where the path-wise derivative is 0 or runs away, and is what a
    tuner that smooths would follow.

    Arguments:
        cost_of: (point, share) to the cost of the first `share` of the horizon, one number; JAX must trace the point.
            `first_share` cuts a load.
        point: parameters, shape (n,). names: theirs, x[0] ... by default.
        shares: of the horizon, rising, the last one 1.
        sigma: spread of the cloud, step: half-width of the central difference; both relative to `scale`.
        scale: size of each parameter, |point| by default (1 where that is 0).
        samples: antithetic pairs, more than there are parameters.
        gradient: "forward" for few parameters, "reverse" for many.
        seed: of the cloud.

    Returns a `Health`. Raises InputError for a point without numbers, shares that do not rise to 1, and fewer samples
    than parameters.
    """
    x = np.asarray(point, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.all(np.isfinite(x)):
        raise refuse("point", point, "finite numbers, shape (n,)")
    part = np.asarray(shares, dtype=np.float64)
    if part.ndim != 1 or part.size < 2 or part[0] <= 0 or np.any(np.diff(part) <= 0) or part[-1] != 1.0:
        raise refuse("shares", tuple(shares), "two or more shares of the horizon that rise to 1.0")
    for name, value in (("sigma", sigma), ("step", step)):
        if not 0 < value < np.inf:
            raise refuse(name, value, "a finite number > 0")
    if samples <= x.size + 1:
        raise refuse("samples", samples, f"at least {x.size + 2}: two more than there are parameters")
    labels = tuple(f"x[{i}]" for i in range(x.size)) if names is None else tuple(names)
    if len(labels) != x.size:
        raise refuse("names", labels, f"{x.size} names")
    unit = np.where(x == 0, 1.0, np.abs(x)) if scale is None else np.broadcast_to(np.asarray(scale, float), x.shape)

    rows = [
        sweep(lambda u, s=float(s): jnp.asarray(cost_of(u, s)), jnp.asarray(x[None]), gradient=gradient, progress=False)
        for s in part
    ]
    costs = np.array([np.asarray(value)[0] for value, _ in rows], dtype=np.float64)
    gradients = np.array([np.asarray(slope)[0] for _, slope in rows], dtype=np.float64)

    z = np.random.default_rng(seed).standard_normal((samples, x.size))
    nudges = np.concatenate([sigma * unit * z, step * np.diag(unit)])
    points = jnp.asarray(np.concatenate([x + nudges, x - nudges]))
    whole = sweep(lambda u: jnp.asarray(cost_of(u, 1.0)), points, block=len(points), progress=False)
    up, down = np.split(np.asarray(whole, dtype=np.float64), 2)
    cloud, near = (up - down)[:samples], (up - down)[samples:]
    central = near / (2 * step * unit)
    smoothed, error = _plane(z, cloud / (2 * sigma))
    smoothed, error = smoothed / unit, error / unit

    growth = _growth(part, gradients)
    largest = np.max(np.abs(smoothed * unit)) / unit  # the slope that would have the effect of the strongest parameter
    rows_of = zip(gradients.T, smoothed, error, growth, largest, strict=True)
    findings = tuple(_finding(g, costs, *map(float, rest)) for g, *rest in rows_of)
    verdict = _verdict(labels, findings, part, gradients, smoothed, error, growth)
    return Health(labels, part, costs, gradients, smoothed, error, central, growth, findings, verdict)


def first_share(load: Load, share: float) -> Load:
    """The first `share` of a load's ticks, at least one."""
    ticks = max(1, round(load.requests.shape[0] * share))
    return Load(*(part[:ticks] for part in load))


def _plane(z: np.ndarray, rises: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of the least-squares plane through 0, and their standard errors."""
    if not np.all(np.isfinite(rises)):
        nothing = np.full(z.shape[1], np.nan)
        return nothing, nothing
    slopes, *_ = np.linalg.lstsq(z, rises, rcond=None)
    spread = np.sum((rises - z @ slopes) ** 2) / (z.shape[0] - z.shape[1])
    return slopes, np.sqrt(spread * np.diag(np.linalg.inv(z.T @ z)))


def _growth(shares: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Largest factor per doubling of the horizon; 1 where the gradient stays 0."""
    doublings = np.log2(shares[1:] / shares[:-1])[:, None]
    size = np.abs(gradients)
    before, after = size[:-1], size[1:]
    some = (before > 0) & np.isfinite(before) & np.isfinite(after)
    factors = np.exp(np.log(np.where(some, np.maximum(after, 1e-300), 1.0) / np.where(some, before, 1.0)) / doublings)
    out = np.where(some, factors, 1.0).max(axis=0)
    return np.where(np.isfinite(size).all(axis=0), out, np.inf)


def _finding(
    gradient: np.ndarray, costs: np.ndarray, smoothed: float, error: float, growth: float, largest: float
) -> str:
    g = gradient[-1]
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(costs)) and np.isfinite(smoothed)):
        return NOT_FINITE
    sure = abs(smoothed) > ERRORS * error and abs(smoothed) > 1e-3 * largest
    if sure and abs(g) <= NOTHING * abs(smoothed):
        return VANISHING
    bound = max(abs(smoothed), 1e-3 * largest) + ERRORS * error
    if abs(g) > (MOST_EXCESS_GROWING if growth > MOST_GROWTH else MOST_EXCESS) * bound:
        return EXPLODING
    if abs(g - smoothed) > AGREES * max(abs(smoothed), 0.01 * largest) + ERRORS * error:
        return DISAGREES
    if ERRORS * error > max(abs(g), abs(smoothed), AGREES * largest):
        return UNCLEAR
    return HEALTHY


def _verdict(
    names: tuple[str, ...],
    findings: tuple[str, ...],
    shares: np.ndarray,
    gradients: np.ndarray,
    smoothed: np.ndarray,
    error: np.ndarray,
    growth: np.ndarray,
) -> str:
    """The worst finding in words."""
    worst = next((finding for finding in WORST_FIRST if finding in findings), HEALTHY)
    if worst == HEALTHY:
        return (
            f"healthy: all {len(names)} components agree with the smoothed difference within its error; "
            f"doubling the horizon multiplies them by at most {growth.max():.3g}."
        )
    mine = [i for i, finding in enumerate(findings) if finding == worst]
    size = np.where(np.isfinite(gradients[-1]), np.abs(gradients[-1]), np.inf)
    i = max(mine, key=lambda k: size[k])
    others = "" if len(mine) == 1 else f" (and {len(mine) - 1} more)"
    g, s = f"{gradients[-1][i]:.3g}", f"{smoothed[i]:.3g} +- {error[i]:.2g}"
    said = {
        NOT_FINITE: f"d cost/d {names[i]} is {g}: a division or a logarithm at 0, or an overflow on the way.",
        EXPLODING: f"d cost/d {names[i]} is {g}, the smoothed difference {s}; doubling the horizon multiplies the "
        f"gradient by up to {growth[i]:.3g}. The number is the slope of one path and useless for tuning: smooth the "
        "cost, shorten the windows, or let the law count the workers that are starting.",
        VANISHING: f"d cost/d {names[i]} is {g}, but the smoothed difference {s}: the law compares on ticks, so the "
        "path does not move with the parameter until it jumps. Use a relaxed law (width), exact event times, or "
        "smoothing.",
        DISAGREES: f"d cost/d {names[i]} is {g}, the smoothed difference {s}: the slope of this one path is not the "
        "slope of its neighbourhood.",
        UNCLEAR: f"d cost/d {names[i]} is {g}, the smoothed difference {s}: too uncertain to tell. More samples, or a "
        "smaller sigma.",
    }
    return f"{worst}: {said[worst]}{others}"
