"""The prefill pool's own bound, by dynamic programming: exact in the late share, which no linear programme can be.

State: the pool's level k (k steps of `step` GPUs) and the queue (cells of `cell` GPU-ticks, rounded down). Per tick the
pool moves (up at the price of a start), serves, and pays for its GPUs and for the late share at the wait queue / pool.

The grid of the pool costs `step` GPUs at most: for a path P_t of any real numbers and u uniform on [0, 1), the path
k_t = floor(P_t/step + u) + 1 serves at least as much, its mean is P_t + step, and its mean climb is that of P_t. So a
path on the grid exists that costs at most `step` GPUs more, for the time of the run, and that much is taken off. Where
the budget has room for pools above the top level, that level serves all there is; the last cell holds all longer
queues; queues are rounded down. All of it lowers the cost.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LEVELS = 192
CELLS = 128
# Cells per level: a level serves a whole number of cells in a tick.
FINE = 2


class Pool(NamedTuple):
    """The bound [GPU-ticks], of it what is late, the GPUs that started, a least-cost path on the grid [GPU], and the
    step of that grid, which the bound does not charge."""

    value: float
    late: float
    started: float
    path: np.ndarray
    step: float


def prefill_pool(
    work: np.ndarray,
    late: np.ndarray,
    share: Callable[[np.ndarray], np.ndarray],
    *,
    gpu: float,
    start: float,
    budget: float,
    first: int,
) -> Pool:
    """The least cost of prefill alone.

    Arguments: `work` [GPU-ticks] that arrives and `late`, the price of all of the tick's requests being late, of shape
    (ticks,); `share` of them that is late at a wait [ticks]; prices of a GPU-tick and of a GPU that starts; `budget`
    [GPU]; `first` ticks without arrivals of starts.
    """
    ticks = work.size
    if not work.any():
        spent = float(late.sum() * share(np.zeros(())))
        return Pool(spent, spent, 0.0, np.zeros(ticks), 0.0)
    enough = 1.05 * float(np.max(work))
    larger = enough / LEVELS <= budget / (LEVELS - 1)  # pools above the top level are within the budget
    step = enough / LEVELS if larger else budget / (LEVELS - 1)
    cell = step / FINE
    k = np.arange(1, LEVELS + 1)
    cells = np.arange(CELLS)
    arrives = np.floor(work / cell).astype(np.int64)
    arrives = np.minimum(arrives, CELLS * 4 + FINE * LEVELS)
    serves = FINE * k
    wait = cells[None, :] * cell / (k * step)[:, None]
    if larger:
        serves[-1] = 10 * (CELLS * 4 + FINE * LEVELS)
        wait[-1] = 0.0
    table = share(wait)
    paid = (gpu * step * k)[:, None]
    climb = (start * step * k)[:, None]

    def moved(value: np.ndarray, t: int) -> np.ndarray:
        down = np.minimum.accumulate(value[::-1], axis=0)[::-1]
        if t < first:
            return down
        return np.minimum(down, np.minimum.accumulate(value - climb, axis=0) + climb)

    def served(value: np.ndarray, t: int) -> np.ndarray:
        shift = arrives[t] - serves  # the queue moves by that
        source = cells[None, :] - shift[:, None]
        out = np.take_along_axis(value, np.clip(source, 0, CELLS - 1), axis=1)
        out[(source < 0) | (source >= CELLS)] = np.inf
        lowest = np.minimum.accumulate(value, axis=1)
        out[:, 0] = np.where(shift <= 0, lowest[k - 1, np.clip(-shift, 0, CELLS - 1)], np.inf)
        highest = np.minimum.accumulate(value[:, ::-1], axis=1)[:, ::-1]
        edge = CELLS - 1 - shift
        out[:, -1] = np.where(edge < CELLS, highest[k - 1, np.clip(edge, 0, CELLS - 1)], np.inf)
        return out

    def stepped(value: np.ndarray, t: int) -> np.ndarray:
        return served(moved(value, t) if t else value, t) + (paid + late[t] * table)

    value = np.full((LEVELS, CELLS), np.inf)
    value[:, 0] = 0.0
    block = max(1, int(np.sqrt(ticks)))
    kept = {}
    for t in range(ticks):
        if t % block == 0:
            kept[t] = value
        value = stepped(value, t)
    best = float(value.min())

    path, spent, started = np.zeros(ticks), 0.0, 0.0
    level, queue = (int(i) for i in np.unravel_index(int(np.argmin(value)), value.shape))
    for begin in sorted(kept, reverse=True):
        end = min(begin + block, ticks)
        values = [kept[begin]]
        for t in range(begin, end - 1):
            values.append(stepped(values[-1], t))
        for t in range(end - 1, begin - 1, -1):
            path[t] = step * k[level]
            spent += late[t] * table[level, queue]
            before = values[t - begin]
            options = (moved(before, t) if t else before)[level]
            after = np.clip(cells + arrives[t] - serves[level], 0, CELLS - 1)
            queue = int(np.argmin(np.where(after == queue, options, np.inf)))
            if t:
                rises = np.maximum(k[level] - k, 0) * step
                cost = before[:, queue] + start * rises
                cost[(rises > 0) & (t < first)] = np.inf
                came = int(np.argmin(cost))
                started += rises[came]
                level = came
    return Pool(best - gpu * step * ticks, spent, started, path, step)
