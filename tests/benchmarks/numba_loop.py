"""The benchmark's peer: the hard closed loop as a plain Numba loop, parallel over policies, without gradients."""

import math

import numpy as np
from numba import njit, prange


@njit
def _share(limit, wanted):
    return limit / wanted if wanted > limit else 1.0


@njit
def _kept(residence, dt):
    if residence <= 0:
        return 0.0, 0.0
    x = dt / residence
    return math.exp(-x), -math.expm1(-x) / x


@njit
def _one(policy, loads, plant, fleet, prices):
    r_P, batch, a, b, c, kappa, capacity, nic_P, nic_D, fabric, g_P, g_D = plant
    cold, budget, gpus, unit, low, dt = fleet
    ttft_limit, tpot_limit, late_price, stall_price, ttft_spread, tpot_spread, step = prices
    p_up, p_down, d_up, d_down, ratio = policy
    delay = math.floor(cold / dt)
    part = cold / dt - delay
    starts = np.zeros((delay + 2, 2))
    size = delay + 2
    want_P = max(low, min(np.round(ratio * gpus / g_P), math.floor((gpus - low * g_D) / g_P + 1e-9)))
    want_D = math.floor((gpus - want_P * g_P) / g_D + 1e-9)
    pend_P = pend_D = 0.0
    x_n = x_s = x_o = work0 = q_n = q_s = q_o = b_n = b_s = b_o = 0.0
    gpu_s = late = stall = 0.0
    for k in range(loads.shape[0]):
        n, comp, stored, out = loads[k]
        ready_P, ready_D = (want_P - pend_P) * g_P, (want_D - pend_D) * g_D
        wait = work0 / (ready_P * r_P) if ready_P > 0 else 0.0
        load = (b_n + q_n) / (ready_D * batch) if ready_D > 0 else 0.0
        if pend_P * g_P + pend_D * g_D <= 1e-6:
            if wait > p_up or load > d_up:
                gpus += step
            elif wait < p_down and load < d_down:
                gpus -= step
            gpus = min(max(gpus, low * (g_P + g_D)), budget)
        top = (gpus - low * g_D) / g_P
        new_P = max(low, min(np.round(min(max(ratio * gpus / g_P, low), top)), math.floor(top + 1e-9)))
        new_D = math.floor((gpus - new_P * g_P) / g_D + 1e-9)
        starts[k % size, 0] = max(new_P - want_P, 0.0)
        starts[k % size, 1] = max(new_D - want_D, 0.0)
        i, j = (k - delay) % size, (k - delay - 1) % size
        pend_P = max(pend_P + starts[k % size, 0] - (1 - part) * starts[i, 0] - part * starts[j, 0], 0.0)
        pend_D = max(pend_D + starts[k % size, 1] - (1 - part) * starts[i, 1] - part * starts[j, 1], 0.0)
        want_P, want_D = new_P, new_D
        n_P, n_D = max(want_P - pend_P, 0.0) * g_P, max(want_D - pend_D, 0.0) * g_D

        serving = max(n_D, b_n / batch)
        context = b_s / b_n + 0.5 * max(b_o / b_n - 1.0, 0.0) if b_n > 0 else 0.0
        t = a + (b_n / serving if serving > 0 else 0.0) * (b + c * context)
        keep_old = _kept(b_o / b_n * t, dt)[0] if b_n > 1e-12 else 0.0
        slots = max(n_D * batch - keep_old * b_n, 0.0)
        link = n_D * nic_D * dt
        keep_q = _kept(q_o / q_n * t, dt)[1] if q_n > 0 else 0.0
        q_bytes = kappa * q_s
        admit = min(_share(slots, q_n * keep_q), _share(link, q_bytes))
        slots_left = max(slots - admit * q_n * keep_q, 0.0)
        link_left = max(link - admit * q_bytes, 0.0)
        y_n, y_s, y_o, work = x_n + n, x_s + stored, x_o + out, work0 + comp
        keep_y = _kept(y_o / y_n * t, dt)[1] if y_n > 0 else 0.0
        y_bytes = kappa * y_s
        could = min(_share(n_P * r_P * dt, work), _share(min(n_P * nic_P, fabric) * dt, y_bytes))
        through = min(_share(slots_left, y_n * keep_y), _share(link_left, y_bytes))
        room = max(capacity - (1 - admit) * q_bytes, 0.0)
        fits = through + (room / y_bytes if y_bytes > 0 else 1.0)
        moved = min(could, fits)
        direct = min(moved, through)
        stall += (could - moved) * work / r_P
        done = b_n * (1 - keep_old) + admit * q_n * (1 - keep_q) + direct * y_n * (1 - keep_y)
        b_n = keep_old * b_n + admit * keep_q * q_n + direct * keep_y * y_n
        b_s = keep_old * b_s + admit * keep_q * q_s + direct * keep_y * y_s
        b_o = keep_old * b_o + admit * keep_q * q_o + direct * keep_y * y_o
        q_n, q_s, q_o = (
            (1 - admit) * q_n + (moved - direct) * y_n,
            (1 - admit) * q_s + (moved - direct) * y_s,
            (1 - admit) * q_o + (moved - direct) * y_o,
        )
        x_n, x_s, x_o, work0 = (1 - moved) * y_n, (1 - moved) * y_s, (1 - moved) * y_o, (1 - moved) * work

        stock = both = 0.0
        if n_D > 0:
            stock = max(q_o * t / (n_D * batch), kappa * q_s / (n_D * nic_D))
            both = max((q_o + x_o) * t / (n_D * batch), kappa * (q_s + x_s) / (n_D * nic_D))
        isl_c, isl_s = (comp / n, stored / n) if n > 0 else (0.0, 0.0)
        first = max(work0 / (n_P * r_P), kappa * x_s / min(n_P * nic_P, fabric)) if n_P > 0 else 0.0
        ttft = max(first + stock, both) + isl_c / (g_P * r_P)
        ttft += kappa * isl_s / min(g_P * nic_P, g_D * nic_D) + t
        late += n / (1 + math.exp(-(math.log(ttft) - math.log(ttft_limit)) / ttft_spread))
        late += done / (1 + math.exp(-(math.log(t) - math.log(tpot_limit)) / tpot_spread))
        gpu_s += dt * (n_P + serving + pend_P * g_P + pend_D * g_D)
    return (gpu_s + late_price * unit * late + stall_price * stall) / 3600


@njit(parallel=True)
def costs(policies, loads, plant, fleet, prices):
    """Hard cost [GPU-hours] of each policy (back-pressure, one token per step)."""
    out = np.empty(policies.shape[0])
    for i in prange(policies.shape[0]):
        out[i] = _one(policies[i], loads, plant, fleet, prices)
    return out
