"""Arrivals of a clock that ticks coarsely, spread within the tick."""

import numpy as np
from jaxtyping import Float64

Times = Float64[np.ndarray, " requests"]


def spread(times: Times) -> tuple[Times, int, float]:
    """Sorted `times` [s] with equal ones spread evenly, how many were equal to the one before, and the tick [s].

    The tick is the usual gap between stamps where stamps come at a beat (as every 3 s), else the smallest gap (a clock
    of whole seconds in a quiet trace), and a second at most where two gaps or fewer say little. Equal stamps are spread
    over a tick, or up to the next stamp if that is nearer.
    """
    distinct, count = np.unique(times, return_counts=True)
    moved = times.size - distinct.size
    if moved == 0 or distinct.size == 1:
        return times, 0, 0.0
    gaps = np.diff(distinct)
    usual, least = float(np.median(gaps)), float(gaps.min())
    beat = gaps.size > 2 and least > 0.5 * usual
    tick = usual if beat else least if gaps.size > 2 else min(least, 1.0)
    room = np.minimum(np.append(gaps, np.inf), tick)  # the last stamp has no next one
    first = np.cumsum(count) - count
    place = np.arange(times.size) - np.repeat(first, count)
    return times + np.repeat(room / count, count) * place, moved, tick
