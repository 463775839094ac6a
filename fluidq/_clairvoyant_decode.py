"""Linear bounds on one step of decode: what it can finish, and how many requests it finishes late.

Per GPU in use, with nu and nu' the batch at the start and at the end of the step as shares of its limit, the engine
finishes done(nu, nu') output tokens at the step time t(nu) of the batch at the start. Both facts are convexified here:

    done <= p n + p' n' + q S,        late >= alpha done + delta n + delta' n' - gamma S,

for every step that the engine can take. Coefficients come from small linear programmes over cells of nu; their
constant is then recomputed as a maximum over all cells, so a facet holds whatever that programme's solver did.
"""

from typing import NamedTuple

import numpy as np

from fluidq.formulas import requests
from fluidq.objective import Objective
from fluidq.plant import Plant

CELLS = 300
# Batches, as shares of the limit, at which the facets touch the hull.
TOUCH = (0.3, 0.5, 0.65, 0.8, 0.9, 1.0)
_STEEPEST = 50.0


class Lengths(NamedTuple):
    """Extremes over all requests that come: output tokens, and context tokens of a running sequence."""

    shortest: float
    longest: float
    context: float


class Facets(NamedTuple):
    """Rows (p, p', q) of what can be done, and rows (alpha, delta, delta', gamma) of what is late.

    Batches and GPUs are in GPUs (a full batch of one GPU is 1); work is in GPU-steps at the full batch, `unit` output
    tokens each. `full` is the least step time of a full batch [s].
    """

    done: np.ndarray
    late: np.ndarray
    unit: float
    full: float


def facets(plant: Plant, objective: Objective, lengths: Lengths, dt: float, steps: int) -> Facets:
    """Facets for one tick of `dt` seconds in `steps` steps of the physics.

    With several steps per tick the batches in between are no variables: then only q is used (p = p' = 0), and what is
    late is charged at an empty batch's step time.
    """
    batch, accept = float(plant.batch), float(plant.accept)
    h = dt / steps
    edges = np.linspace(0.0, 1.0, CELLS + 1)
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    times = np.asarray(requests.step_time(**law, B=batch * edges, theta_ctx=lengths.context), dtype=float)
    full = float(times[-1])
    grown, kept = _averages(h * accept / times[:-1], lengths)
    least_stay = _decay(h * accept / times[:-1], lengths.shortest)
    # Corners of each cell: (nu low, nu high, nu', done), nu' at its least and at the full batch; all is linear in nu'.
    low, high = edges[:-1], edges[1:]
    corners = []
    for after in (least_stay * low, np.ones(CELLS)):
        corners.append((low, high, after, (grown * after + kept * high) * full / times[:-1]))
    share = np.asarray(objective.late_share(float(objective.ttft), times[:-1] / accept)[1], dtype=float)
    unit = accept * dt * batch / full
    if steps > 1:
        most = max(float(np.max(done)) for *_, done in corners)
        return Facets(np.array([[0.0, 0.0, most]]), np.array([[share[0], 0.0, 0.0, 0.0]]), unit, full)
    steady = np.interp(TOUCH, edges, edges * full / times)
    done = [_done_facet(corners, nu) for nu in TOUCH]
    late = [_late_facet(corners, share, nu, at) for nu, at in zip(TOUCH, steady, strict=True)]
    late.append(np.array([share[0], 0.0, 0.0, 0.0]))
    return Facets(_distinct(done), _distinct(late), unit, full)


def _decay(rate: np.ndarray, length: float) -> np.ndarray:
    """e^-x at x = rate / length; 0 where the length is 0."""
    return np.exp(-rate / length) if length > 0 else np.zeros_like(rate)


def _mean_decay(x: np.ndarray) -> np.ndarray:
    """(1 - e^-x) / x, 1 at 0 and 0 at infinity."""
    safe = np.where((x > 0) & np.isfinite(x), x, 1.0)
    return np.where(x > 0, np.where(np.isfinite(x), -np.expm1(-safe) / safe, 0.0), 1.0)


def _averages(rate: np.ndarray, lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """The most that a sequence at the end (g) and one at the start (mu) of the step add to its mean batch.

    A resident of age x = rate / length adds m(x), of which e^-x is there at the end; a newcomer that is there at the
    end adds g(x) = 1/(1 - e^-x) - 1/x in [1/2, 1], which grows with x. So the mean batch is at most
    g n' + mu n with g = g(longest age) and mu = max over ages of m(x) - g e^-x.
    """
    x_low = rate / lengths.longest
    x_high = rate / lengths.shortest if lengths.shortest > 0 else np.full_like(rate, np.inf)
    grown = np.where(np.isfinite(x_high), 1.0, 1.0)
    finite = np.isfinite(x_high) & (x_high > 1e-3)
    x = np.where(finite, x_high, 1.0)
    grown = np.where(finite, 1.0 / -np.expm1(-x) - 1.0 / x, np.where(np.isfinite(x_high), 0.5 + x_high / 12.0, 1.0))
    # Sub-intervals of the ages: m and e^-x both fall, so m at the left end and e^-x at the right one bound it.
    top = np.where(np.isfinite(x_high), x_high, np.maximum(x_low, 1.0) * 1e3)
    grid = x_low[:, None] * (top / x_low)[:, None] ** np.linspace(0.0, 1.0, 400)[None, :]
    bound = _mean_decay(grid[:, :-1]) - grown[:, None] * np.exp(-grid[:, 1:])
    beyond = np.where(np.isfinite(x_high), 0.0, _mean_decay(top))
    return grown, np.maximum(np.max(bound, axis=1), beyond)


def _least_of(slope: float | np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """min of slope * nu over the cell."""
    return np.minimum(slope * low, slope * high)


def _solve(cost: list[float], rows: np.ndarray, right: np.ndarray, bounds: list[tuple]) -> np.ndarray:
    from scipy.optimize import linprog

    out = linprog(cost, A_ub=rows, b_ub=right, bounds=bounds, method="highs")
    return np.asarray(out.x) if out.x is not None else np.zeros(len(cost))


def _done_facet(corners: list, nu: float) -> np.ndarray:
    rows, right = [], []
    for low, high, after, done in corners:
        for before in (low, high):
            rows.append(-np.stack([before, after, np.ones_like(after)], axis=1))
            right.append(-done)
    free = (-_STEEPEST, _STEEPEST)
    p, p2, _ = _solve([nu, nu, 1.0], np.concatenate(rows), np.concatenate(right), [free, free, (None, None)])
    q = max(float(np.max(done - _least_of(p, low, high) - p2 * after)) for low, high, after, done in corners)
    return np.array([p, p2, q])


def _late_facet(corners: list, share: np.ndarray, nu: float, done_at: float) -> np.ndarray:
    rows, right = [], []
    for low, high, after, done in corners:
        for before in (low, high):
            for d in (np.zeros_like(done), done):
                # alpha d + delta nu + delta' nu' - gamma <= share d
                rows.append(np.stack([d, before, after, -np.ones_like(after)], axis=1))
                right.append(share * d)
    free = (-_STEEPEST, _STEEPEST)
    bounds = [(0.0, _STEEPEST), free, free, (None, None)]
    cost = [-done_at, -nu, -nu, 1.0]
    alpha, delta, delta2, _ = _solve(cost, np.concatenate(rows), np.concatenate(right), bounds)
    gamma = -np.inf
    for low, high, after, done in corners:
        for d in (np.zeros_like(done), done):
            over = (alpha - share) * d - _least_of(-delta, low, high) + delta2 * after
            gamma = max(gamma, float(np.max(over)))
    return np.array([alpha, delta, delta2, gamma])


def _distinct(rows: list[np.ndarray]) -> np.ndarray:
    out: list[np.ndarray] = []
    for row in rows:
        if not any(np.allclose(row, other, rtol=1e-6, atol=1e-9) for other in out):
            out.append(row)
    return np.array(out)
