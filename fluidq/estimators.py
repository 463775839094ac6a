"""Gradients of a search's merit, by name: what each costs, how uncertain it is, and whether it can be followed.

- `pathwise`: the derivative of the relaxed law's path, exact for that law; its width is annealed by the search.
- `events`: the derivative through exact event times, where the law is watched continuously (`fluidq.watched`).
- `smoothed`: slope of the *hard* law over a Gaussian cloud, by antithetic pairs on common random numbers.
- `combined`: both over one cloud, each component weighted by the inverse of its measured variance.
- `auto`: measures at the start, picks one of these, and says why.

Source: evolution strategies with antithetic pairs (Nesterov and Spokoiny 2017); the combination by variance follows
the alpha-order batched gradient (Suh et al. 2022).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fluidq._errors import InputError, refuse, unknown

# Above this, d ln(merit) / d(coordinate) says that the loop amplifies, not that the parameter matters.
EXPLODED = 1e4
# Points of the cloud at which `combined` takes the path-wise derivative; it costs several runs each.
FIRST_ORDER = 4
# A path-wise gradient below this share of the smoothed one is none.
NOTHING = 1e-6
# Below this cosine with the smoothed gradient the path-wise one does not point down the hard law's slope.
AGREES = 0.5


class Outcomes(Protocol):
    """What an estimator runs: `fluidq._rows.Rows`, or the rows of another problem."""

    counted: int
    exact: bool

    def hard(self, u: Any, draws: Any) -> np.ndarray: ...
    def slopes(self, u: Any, draws: Any, width: float) -> Any: ...


class Estimate(NamedTuple):
    """Per start: merit (starts,), its gradient and the gradient's variance (starts, parameters), and `sound` (starts,).

    The variance is that of the mean over draws, or over the cloud; NaN where there is a single sample.
    """

    merit: np.ndarray
    gradient: np.ndarray
    variance: np.ndarray
    sound: np.ndarray


@dataclass(frozen=True)
class Search:
    """What estimators share.

    Attributes:
        rows: runs. merit: outcomes (starts, draws, outcomes) and duals to merits (starts,) and their derivatives with
            respect to the outcomes. draws: on which the gradient is taken.
        samples: antithetic pairs. sigma: spread of the cloud, in coordinates. seed: of the cloud, which is the same for
            all starts of a step.
    """

    rows: Any
    merit: Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray]]
    draws: tuple[int, ...]
    samples: int = 16
    sigma: float = 0.1
    seed: int = 0

    def outcomes(self, u: np.ndarray) -> np.ndarray:
        """Hard outcomes at the coordinates (starts, parameters): (starts, draws, outcomes)."""
        points, draws = self._crossed(u)
        return self.rows.hard(points, draws).reshape(len(u), len(self.draws), -1)

    def cloud(self, step: int, parameters: int) -> np.ndarray:
        """Directions of this step, shape (samples, parameters)."""
        return np.random.default_rng([self.seed, step]).standard_normal((self.samples, parameters))

    def _crossed(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(u, len(self.draws), axis=0), np.tile(self.draws, len(u))

    def first_order(self, u: np.ndarray, width: float, duals: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Merit, gradient and each draw's contribution to it: (starts,), (starts, n), (starts, draws, n)."""
        points, draws = self._crossed(u)
        got = self.rows.slopes(points, draws, width)
        shape = (len(u), len(self.draws))
        merit, weights = self.merit(got.values.reshape(*shape, -1), duals)
        slopes = got.slopes.reshape(*shape, *got.slopes.shape[1:])
        with np.errstate(invalid="ignore", over="ignore"):
            each = len(self.draws) * np.einsum("sdo,sdon->sdn", weights, slopes)
        return merit, each.mean(axis=1), each


def pathwise(search: Search, u: np.ndarray, width: float, duals: Any, step: int) -> Estimate:
    """The relaxed law's own derivative; its variance is that over the draws."""
    if search.rows.exact:
        raise refuse("estimator", "pathwise", "'events' for a law that is watched continuously: it has no relaxed form")
    return _first(search, u, width, duals)


def events(search: Search, u: np.ndarray, width: float, duals: Any, step: int) -> Estimate:
    """The hard law's own derivative, through its event times."""
    if not search.rows.exact:
        wanted = "'pathwise', 'smoothed' or 'combined': a law that looks on ticks has no derivative through its events"
        raise refuse("estimator", "events", wanted)
    return _first(search, u, width, duals)


def smoothed(search: Search, u: np.ndarray, width: float, duals: Any, step: int) -> Estimate:
    """The plane through (f(u + sigma z) - f(u - sigma z)) / (2 sigma) over z, by least squares, f the hard law."""
    starts, n = u.shape
    z = search.cloud(step, n)
    shift = search.sigma * np.concatenate([z, -z])
    points = np.concatenate([u[:, None, :], u[:, None, :] + shift[None]], axis=1).reshape(-1, n)
    outcomes = search.outcomes(points)
    repeated = _repeated(duals, 1 + len(shift))
    merits = search.merit(outcomes, repeated)[0].reshape(starts, -1)
    k = len(z)
    slope = (merits[:, 1 : 1 + k] - merits[:, 1 + k :]) / (2.0 * search.sigma)
    if k >= n + 2:
        inverse = np.linalg.pinv(z)
        gradient = slope @ inverse.T
        left = slope - gradient @ z.T
        spread = np.diag(inverse @ inverse.T)
        variance = (left**2).sum(axis=1, keepdims=True) / (k - n) * spread[None]
    else:
        each = slope[:, :, None] * z[None]
        gradient, variance = each.mean(axis=1), each.var(axis=1, ddof=1) / k
    return Estimate(merits[:, 0], gradient, variance, _sound(merits[:, 0], gradient))


def combined(search: Search, u: np.ndarray, width: float, duals: Any, step: int) -> Estimate:
    """Path-wise and smoothed over one cloud, each component by the inverse of its measured variance.

    Where the path-wise derivative runs away its variance does too, and the hard law's slope is what is left.
    """
    zero = smoothed(search, u, width, duals, step)
    starts, n = u.shape
    z = search.cloud(step, n)[: FIRST_ORDER // 2]
    shift = search.sigma * np.concatenate([z, -z])
    points = (u[:, None, :] + shift[None]).reshape(-1, n)
    repeated = _repeated(duals, len(shift))
    _, gradient, _ = search.first_order(points, width, repeated)
    each = gradient.reshape(starts, len(shift), n)
    with np.errstate(invalid="ignore", over="ignore"):
        first, variance = each.mean(axis=1), each.var(axis=1, ddof=1) / len(shift)
        # The relaxed law is another law: what it is off by on average counts as its error too.
        off = np.maximum((first - zero.gradient) ** 2 - variance - zero.variance, 0.0)
        of_first = variance + off
        share = zero.variance / (zero.variance + of_first)
    share = np.where(np.isfinite(share) & np.isfinite(first), share, 0.0)
    first = np.where(np.isfinite(first), first, 0.0)
    known = np.where(np.isfinite(of_first), of_first, np.inf)
    mixed = share * first + (1.0 - share) * zero.gradient
    both = share**2 * np.where(share > 0, known, 0.0) + (1.0 - share) ** 2 * zero.variance
    return Estimate(zero.merit, mixed, both, _sound(zero.merit, mixed))


ESTIMATORS: dict[str, Callable[[Search, np.ndarray, float, Any, int], Estimate]] = {
    "pathwise": pathwise,
    "smoothed": smoothed,
    "combined": combined,
    "events": events,
}
NAMES = ("auto", *ESTIMATORS)


@dataclass(frozen=True)
class Report:
    """One estimator at the start of a search: gradient and standard error per parameter, runs that it took, health."""

    name: str
    gradient: np.ndarray
    error: np.ndarray
    runs: int
    health: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; what is not finite is None."""
        plain = lambda row: [float(x) if math.isfinite(x) else None for x in row]  # noqa: E731
        return {
            "name": self.name,
            "gradient": plain(self.gradient),
            "standard_error": plain(self.error),
            "runs": self.runs,
            "health": self.health,
        }


def measure(name: str, search: Search, u: np.ndarray, width: float, duals: Any) -> Report:
    """One estimator at the coordinates `u`, shape (parameters,)."""
    before = search.rows.counted
    got = ESTIMATORS[name](search, u[None], width, duals, 0)
    with np.errstate(invalid="ignore"):
        error = np.sqrt(got.variance[0])
    return Report(name, got.gradient[0], error, search.rows.counted - before, _health(got))


def choose(name: str, search: Search, u: np.ndarray, width: float, duals: Any) -> tuple[str, str, list[Report]]:
    """The estimator to follow, why, and what was measured at the coordinates `u`, shape (parameters,).

    Raises InputError for an unknown name, one that the problem does not have, and a gradient that is zero in every
    parameter by every estimator: nothing that may move has an effect.
    """
    if name not in NAMES:
        raise unknown("estimator", name, NAMES)
    if name != "auto":
        report = measure(name, search, u, width, duals)
        if name != "combined" or np.any(report.gradient != 0):
            _refuse_nothing([report], search, u, width, duals)
        return name, "as asked for", [report]
    if search.rows.exact:
        report = measure("events", search, u, width, duals)
        _refuse_nothing([report], search, u, width, duals)
        return "events", "the law is watched continuously, so its events have exact derivatives", [report]
    path, cloud = (measure(kind, search, u, width, duals) for kind in ("pathwise", "smoothed"))
    _refuse_nothing([path, cloud], search, u, width, duals)
    return (*_pick(path, cloud), [path, cloud])


def _pick(path: Report, cloud: Report) -> tuple[str, str]:
    if path.health != "healthy":
        return "smoothed", f"the path-wise gradient is {path.health}; the hard law's slope over a cloud is not"
    p, s = path.gradient, cloud.gradient
    clear = np.abs(s) > 4.0 * cloud.error
    if np.any(clear & (np.abs(p) < NOTHING * np.abs(s))):
        return "smoothed", "the path-wise gradient vanishes where the hard law has a slope"
    if not np.any(clear):
        return "pathwise", "the hard law's slope over a cloud is within its own noise; the path-wise one has none"
    size = np.linalg.norm(p) * np.linalg.norm(s)
    cosine = float(p @ s / size) if size > 0 else 0.0
    slack = float(np.linalg.norm(cloud.error) / np.linalg.norm(s))
    if cosine + slack < AGREES:
        return "combined", f"path-wise and smoothed gradient disagree (cosine {cosine:.2f}): both, by their variance"
    cheap = f"at {path.runs} runs against {cloud.runs}"
    return "pathwise", f"it agrees with the hard law's slope over a cloud (cosine {cosine:.2f}) {cheap}"


def _refuse_nothing(reports: list[Report], search: Search, u: np.ndarray, width: float, duals: Any) -> None:
    if any(np.any(r.gradient != 0) or not np.all(np.isfinite(r.gradient)) for r in reports):
        return
    if len(reports) == 1 and reports[0].name == "smoothed" and not search.rows.exact:
        if np.any(pathwise(search, u[None], width, duals, 0).gradient != 0):
            return  # flat within the cloud, not everywhere
    raise InputError(
        "objective: its gradient is zero in every free parameter: on this load no signal comes near a threshold that "
        "may move (the buffer never leaves its interior, no limit binds). Free other parameters, start elsewhere, or "
        "raise the load."
    )


def _repeated(duals: Any, times: int) -> Any:
    """The duals of each start, for the points around it; a tuple of arrays of its own kind."""
    return type(duals)(*(np.repeat(d, times, axis=0) for d in duals))


def _first(search: Search, u: np.ndarray, width: float, duals: Any) -> Estimate:
    merit, gradient, each = search.first_order(u, width, duals)
    draws = each.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        variance = each.var(axis=1, ddof=1) / draws if draws > 1 else np.full_like(gradient, np.nan)
    return Estimate(merit, gradient, variance, _sound(merit, gradient))


def _sound(merit: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        size = np.max(np.abs(gradient), axis=1)
        return np.isfinite(merit) & (size < EXPLODED * np.maximum(np.abs(merit), 1e-300))  # a NaN compares false


def _health(got: Estimate) -> str:
    if not np.all(np.isfinite(got.gradient)):
        return "not finite"
    return "healthy" if bool(got.sound[0]) else "exploding"
