"""The linear programme of the clairvoyant bound: its rows, and the value that its dual proves.

Units: GPUs, and GPU-ticks of work (a prefill GPU's rate for one tick; `Facets.unit` output tokens). The objective is in
GPU-ticks. Every variable has a finite upper limit that no run of the engine exceeds, so any dual vector y <= 0, optimal
or not, proves a lower bound: y b plus, for every variable, its reduced cost at the worse of its two limits.
"""

from typing import NamedTuple

import numpy as np

from fluidq._clairvoyant_decode import Facets


class Prices(NamedTuple):
    """Prices in GPU-ticks.

    `gpu`: of a GPU for one tick; `start`: of one GPU that arrives, per pool; `slow`: of one unit of output work done by
    requests that are late in TPOT; `lost`: of a lost request, None where nothing can be lost.
    """

    gpu: float
    start: tuple[float, float]
    slow: float
    lost: float | None


class Physics(NamedTuple):
    """Numbers of the plant, the same for every stretch.

    budget: GPUs; first: ticks of the run before any start can arrive; waits: levels of the wait [ticks]; queue: output
    work that waits one tick per GPU at an empty batch's step time; held: most output work in a full batch of one GPU;
    each: most output work of one request; stays: largest share of a batch that is still there a tick later.
    """

    budget: float
    first: int
    waits: np.ndarray
    queue: float
    held: float
    each: float
    stays: float
    facets: Facets


class Stretch(NamedTuple):
    """Arrivals of consecutive ticks from `start` on: prefill and output work [GPU-ticks], requests before its end;
    `late[i]`: price of the requests that a wait beyond level i makes late, beyond those of level i - 1."""

    start: int
    prefill: np.ndarray
    output: np.ndarray
    requests: float
    late: np.ndarray


class Solved(NamedTuple):
    """What the dual proves; of the optimum, what is late and lost [GPU-ticks], the pools per tick, and the GPUs that
    arrived per pool; and the solver's own word."""

    value: float
    late: float
    lost: float
    started: tuple[float, float]
    prefill: np.ndarray
    decode: np.ndarray
    status: str


class _Programme:
    """Blocks of one variable per tick, and rows `sum of coefficient * x <= right`, gathered as triplets."""

    def __init__(self, ticks: int) -> None:
        self.ticks, self.rows = ticks, 0
        self.costs: list[np.ndarray] = []
        self.most: list[np.ndarray] = []
        self.triplets: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.right: list[np.ndarray] = []

    def block(self, cost: float | np.ndarray, most: float | np.ndarray) -> int:
        for values, store in ((cost, self.costs), (most, self.most)):
            store.append(np.broadcast_to(np.asarray(values, dtype=float), (self.ticks,)))
        return len(self.costs) - 1

    def add(self, *terms: tuple[int, int, float | np.ndarray], right: float | np.ndarray = 0.0, first: int = 0) -> None:
        """A row for each tick from `first` on; terms are (block, ticks back, coefficient)."""
        t = np.arange(first, self.ticks)
        for block, back, coefficient in terms:
            values = np.broadcast_to(np.asarray(coefficient, dtype=float), (self.ticks,))[first:]
            some = (t >= back) & (values != 0)
            places = self.rows + t[some] - first, block * self.ticks + t[some] - back
            self.triplets.append((values[some], *places))
        self.right.append(np.broadcast_to(np.asarray(right, dtype=float), (self.ticks,))[first:])
        self.rows += t.size

    def solve(self) -> tuple[float, np.ndarray, str]:
        """What the dual proves, the solver's optimum of shape (blocks, ticks), its message."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        cost, most, right = np.concatenate(self.costs), np.concatenate(self.most), np.concatenate(self.right)
        values, rows, columns = (np.concatenate(part) for part in zip(*self.triplets, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(self.rows, cost.size))
        bounds = np.stack([np.zeros_like(most), most], axis=1)
        for method in ("highs", "highs-ipm"):  # the simplex method gives up on a programme now and then
            out = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method=method)
            if out.x is not None:
                break
        if out.x is None:  # 0 is a lower bound of a sum of costs
            return 0.0, np.zeros((len(self.costs), self.ticks)), str(out.message)
        y = np.minimum(np.asarray(out.ineqlin.marginals), 0.0)
        reduced = cost - matrix.T @ y
        proven = float(y @ right + np.minimum(reduced * most, 0.0).sum())
        return proven, out.x.reshape(-1, self.ticks), str(out.message)


def solve(physics: Physics, prices: Prices, stretch: Stretch, *, both: bool) -> Solved:
    """The least cost of a stretch: of both pools within their common budget, or of decode alone."""
    f, q = physics, stretch
    # A stretch that does not begin the run has one tick before it, without arrivals and for nothing, for its state.
    before = 1 if q.start else 0
    paid = np.concatenate([np.zeros(before), np.ones(q.prefill.size)])
    come, put = (np.concatenate([np.zeros(before), work]) for work in (q.prefill, q.output))
    late = np.concatenate([np.zeros((f.waits.size, before)), q.late], axis=1)
    lp = _Programme(paid.size)
    all_come, all_put = np.cumsum(come), np.cumsum(put)
    inside = all_put + (f.held * f.budget if before else 0.0)

    S, W = lp.block(prices.gpu * paid, f.budget), lp.block(0.0, inside)
    n, done, slow = lp.block(0.0, f.budget), lp.block(0.0, inside), lp.block(prices.slow * paid, inside)
    lost = lp.block(prices.lost * paid, q.requests) if prices.lost is not None else None
    leaves = [(W, 1, 1.0), (W, 0, -1.0), (done, 0, -1.0)]
    lp.add(*leaves, *([(lost, 0, -f.each)] if lost is not None else []), right=-put)
    ticks = q.start - before + np.arange(paid.size)

    def started(gpus: int, price: float) -> list[int]:
        if price == 0.0 and f.first == 0:
            return []
        came = lp.block(price * paid, np.where(ticks >= f.first, f.budget, 0.0))
        lp.add((gpus, 0, 1.0), (gpus, 1, -1.0), (came, 0, -1.0), first=1)
        return [came]

    queues = [(W, S, started(S, prices.start[1]), put, all_put, f.queue, [(n, 0, -f.held)])]
    lp.add((n, 0, 1.0), (S, 0, -1.0))
    lp.add((n, 1, 1.0), (S, 0, -1.0), first=1)
    P = None
    if both:
        P, X = lp.block(prices.gpu * paid, f.budget), lp.block(0.0, all_come)
        lp.add((X, 1, 1.0), (X, 0, -1.0), (P, 0, -1.0), right=-come)
        queues.append((X, P, started(P, prices.start[0]), come, all_come, 1.0, []))
        D = lp.block(0.0, f.budget)  # ready decode GPUs, without those that drain
        lp.add((P, 0, 1.0), (D, 0, 1.0), right=f.budget)
        lp.add((n, 0, 1.0), (D, 0, -1.0), (n, 1, -f.stays), first=before)
        lp.add((D, 0, 1.0), (S, 0, -1.0))
    for p, p_after, top in f.facets.done:
        lp.add((done, 0, 1.0), (n, 1, -p), (n, 0, -p_after), (S, 0, -top))
    for alpha, delta, delta_after, gamma in f.facets.late:
        lp.add((done, 0, alpha), (n, 1, delta), (n, 0, delta_after), (S, 0, -gamma), (slow, 0, -1.0))
    levels = []
    for wait, price in zip(f.waits, late, strict=True):
        levels.append(lp.block(price, 1.0))
        for work, gpus, ramp, arrives, limit, per_wait, running in queues:
            beyond, room = lp.block(0.0, limit), wait * per_wait
            lp.add((work, 0, 1.0), (gpus, 0, -room), (beyond, 0, -1.0), *running)
            grows = (beyond, 0, 1.0), (beyond, 1, -1.0)
            lp.add(*grows, (levels[-1], 0, -(arrives + room * f.budget)))
            if ramp:  # or by what the level falls with the GPUs that stop
                stops = (gpus, 1, -room), (ramp[0], 0, -room), (gpus, 0, room)
                lp.add(*grows, (levels[-1], 0, -arrives), *stops, first=1)
            lp.add((beyond, 0, 1.0), (work, 0, -1.0))

    value, x, status = lp.solve()
    late_cost = sum(float(lp.costs[i] @ x[i]) for i in (*levels, slow))
    lost_cost = 0.0 if lost is None else float(lp.costs[lost] @ x[lost])
    decode, prefill = ([float(paid @ x[i]) for i in queue[2]] for queue in (queues * 2)[:2])
    path = np.zeros(q.prefill.size) if P is None else x[P, before:]
    came = sum(prefill) if both else 0.0, sum(decode)
    return Solved(max(value, 0.0), late_cost, lost_cost, came, path, x[S, before:], status)
