"""The benchmark's second peer: the same closed loop with SciPy's `solve_ivp` between the ticks."""

import time

import jax
import numpy as np
from scipy.integrate import solve_ivp

from fluidq.simulate import Load, simulate
from tests.benchmarks import numba_loop as peer

# Width of the boundary layer that makes the reflected rates an ordinary differential equation [s].
RELAX = 1.0


def measure(case, fleet, load, ticks: int = 240) -> tuple[float, float]:
    """Seconds for a day (from `ticks` of it), and the relative difference of its GPU-hours to the fast engine's."""
    policy = jax.tree.map(lambda x: np.asarray([float(x)]), case.policy)
    thresholds, loads, plant, limits, prices = peer.inputs(case, fleet, load, policy)
    start = time.perf_counter()
    hours = _hours(thresholds[0], loads[:ticks], plant, limits, prices)
    seconds = time.perf_counter() - start
    piece = Load(*(part[:ticks] for part in load))
    ours = float(simulate(fleet, piece, case.policy, case.objective, record=False).cost.gpu_hours)
    return seconds * loads.shape[0] / ticks, abs(hours / ours - 1)


def _hours(policy, loads, plant, fleet, prices) -> float:
    g_P, g_D = plant[10:12]
    cold, _, gpus, _, low, dt, _ = fleet
    due: dict[int, list[float]] = {}
    want = list(peer.split(gpus, policy[4], low, g_P, g_D))
    ready, y, hours = list(want), np.zeros(10), 0.0
    for k, come in enumerate(loads):
        starting = [w - r for w, r in zip(want, ready, strict=True)]
        pending = starting[0] * g_P + starting[1] * g_D
        gpus = peer.resize(
            gpus, tuple(y), ready[0] * g_P, ready[1] * g_D, pending, tuple(policy), plant, fleet, prices[6]
        )
        new = peer.split(gpus, policy[4], low, g_P, g_D)
        for pool in range(2):
            grown = new[pool] - want[pool]
            if grown > 0:
                due.setdefault(k + round(cold / dt), [0.0, 0.0])[pool] += grown
            else:
                ready[pool] += grown
        want = list(new)
        landed = due.pop(k, [0.0, 0.0])
        ready = [r + n for r, n in zip(ready, landed, strict=True)]
        n_P, n_D = ready[0] * g_P, ready[1] * g_D
        share = tuple(come * RELAX / dt)

        def rates(_, at, share=share, n_P=n_P, n_D=n_D):
            new, *_ = peer.flow(tuple(np.maximum(at, 0.0)), share, n_P, n_D, plant, RELAX)
            return (np.asarray(new) - at) / RELAX

        y = np.maximum(solve_ivp(rates, (0.0, dt), y, method="RK23", rtol=1e-4, atol=1e-3).y[:, -1], 0.0)
        starting = (want[0] - ready[0]) * g_P + (want[1] - ready[1]) * g_D
        hours += dt * (n_P + max(n_D, y[7] / plant[1]) + starting) / 3600
    return hours
