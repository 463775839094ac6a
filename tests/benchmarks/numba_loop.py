"""The benchmark's peer: the hard closed loop as a plain Numba loop, parallel over policies, without gradients.

Written from the equations, not from fluidq's code: that the two costs agree to rounding checks both.
"""

import math

import numpy as np
from numba import njit, prange


@njit(inline="always")
def _share(limit, wanted):
    return limit / wanted if wanted > limit else 1.0


@njit(inline="always")
def _kept(residence, dt):
    if residence <= 0:
        return 0.0, 0.0
    x = dt / residence
    return math.exp(-x), -math.expm1(-x) / x


@njit(inline="always")
def flow(y, come, n_P, n_D, plant, h):
    """One step of the physics: the new stores, requests done, work stalled, step time, GPUs serving.

    `y` is (backlog n, s, o, work; buffer n, s, o; batch n, s, o); `come` the arrivals (n, computed, stored, output).
    """
    x_n, x_s, x_o, work0, q_n, q_s, q_o, b_n, b_s, b_o = y
    r_P, batch, a, b, c, kappa, capacity, nic_P, nic_D, fabric = plant[:10]
    memory = plant[12]
    n, comp, stored, out = come
    serving = max(n_D, b_n / batch)
    context = b_s / b_n + 0.5 * max(b_o / b_n - 1.0, 0.0) if b_n > 0 else 0.0
    t = a + (b_n / serving if serving > 0 else 0.0) * (b + c * context)
    keep_old = _kept(b_o / b_n * t, h)[0] if b_n > 1e-12 else 0.0
    slots = max(n_D * batch - keep_old * b_n, 0.0)
    link = n_D * nic_D * h
    keep_q = _kept(q_o / q_n * t, h)[1] if q_n > 0 else 0.0
    q_bytes = kappa * q_s
    space = max(n_D * memory - keep_old * (b_s + 0.5 * b_o), 0.0)
    q_tokens = keep_q * (q_s + 0.5 * q_o)
    admit = min(_share(slots, q_n * keep_q), _share(space, q_tokens), _share(link, q_bytes))
    slots_left = max(slots - admit * q_n * keep_q, 0.0)
    link_left = max(link - admit * q_bytes, 0.0)
    y_n, y_s, y_o, work = x_n + n, x_s + stored, x_o + out, work0 + comp
    keep_y = _kept(y_o / y_n * t, h)[1] if y_n > 0 else 0.0
    y_bytes = kappa * y_s
    could = min(_share(n_P * r_P * h, work), _share(min(n_P * nic_P, fabric) * h, y_bytes))
    space_left = max(space - admit * q_tokens, 0.0)
    through = min(_share(slots_left, y_n * keep_y), _share(link_left, y_bytes))
    through = min(through, _share(space_left, keep_y * (y_s + 0.5 * y_o)))
    room = max(capacity - (1 - admit) * q_bytes, 0.0)
    fits = through + (room / y_bytes if y_bytes > 0 else 1.0)
    moved = min(could, fits)
    direct = min(moved, through)
    done = b_n * (1 - keep_old) + admit * q_n * (1 - keep_q) + direct * y_n * (1 - keep_y)
    left, stays, queued = 1 - moved, 1 - admit, moved - direct
    into_q, into_y = admit * keep_q, direct * keep_y
    new = (
        left * y_n,
        left * y_s,
        left * y_o,
        left * work,
        stays * q_n + queued * y_n,
        stays * q_s + queued * y_s,
        stays * q_o + queued * y_o,
        keep_old * b_n + into_q * q_n + into_y * y_n,
        keep_old * b_s + into_q * q_s + into_y * y_s,
        keep_old * b_o + into_q * q_o + into_y * y_o,
    )
    return new, done, (could - moved) * work, t, serving


@njit(inline="always")
def split(gpus, ratio, low, g_P, g_D):
    """round(ratio M / g_P) prefill workers and floor(rest / g_D) decode workers."""
    top = (gpus - low * g_D) / g_P
    prefill = max(low, min(np.round(min(max(ratio * gpus / g_P, low), top)), math.floor(top + 1e-9)))
    return prefill, math.floor((gpus - prefill * g_P) / g_D + 1e-9)


@njit(inline="always")
def resize(gpus, y, ready_P, ready_D, pending, policy, plant, fleet, step):
    """The hard threshold law: the fleet size asked for."""
    p_up, p_down, d_up, d_down, _ = policy
    wait = y[3] / (ready_P * plant[0]) if ready_P > 0 else 0.0
    load = (y[7] + y[4]) / (ready_D * plant[1]) if ready_D > 0 else 0.0
    if pending <= 1e-6:
        if wait > p_up or load > d_up:
            gpus += step
        elif wait < p_down and load < d_down:
            gpus -= step
    return min(max(gpus, fleet[4] * (plant[10] + plant[11])), fleet[1])


@njit(inline="always")
def late(y, come, n_P, n_D, done, t, plant, prices):
    """Late requests of a tick, over either limit."""
    r_P, batch, _, _, _, kappa, _, nic_P, nic_D, fabric, g_P, g_D, memory = plant
    ttft_limit, tpot_limit, _, _, ttft_spread, tpot_spread, _ = prices
    n, comp, stored, _ = come
    stock = both = 0.0
    if y[7] > 0:  # slots that the memory leaves at the mean KV of a sequence
        batch = min(batch, memory / ((y[8] + 0.5 * y[9]) / y[7]))
    if n_D > 0:
        stock = max(y[6] * t / (n_D * batch), kappa * y[5] / (n_D * nic_D))
        both = max((y[6] + y[2]) * t / (n_D * batch), kappa * (y[5] + y[1]) / (n_D * nic_D))
    isl_c, isl_s = (comp / n, stored / n) if n > 0 else (0.0, 0.0)
    first = max(y[3] / (n_P * r_P), kappa * y[1] / min(n_P * nic_P, fabric)) if n_P > 0 else 0.0
    ttft = max(first + stock, both) + isl_c / (g_P * r_P) + kappa * isl_s / min(g_P * nic_P, g_D * nic_D) + t
    return n / (1 + math.exp(-(math.log(ttft) - math.log(ttft_limit)) / ttft_spread)) + done / (
        1 + math.exp(-(math.log(t) - math.log(tpot_limit)) / tpot_spread)
    )


@njit
def _one(policy, loads, plant, fleet, prices):
    r_P, g_P, g_D = plant[0], plant[10], plant[11]
    cold, _, gpus, unit, low, dt, substeps = fleet
    late_price, stall_price, step = prices[2], prices[3], prices[6]
    steps = int(substeps)
    h = dt / steps
    delay = math.floor(cold / dt)
    part = cold / dt - delay
    size = delay + 2
    starts = np.zeros((size, 2))
    want_P, want_D = split(gpus, policy[4], low, g_P, g_D)
    pend_P = pend_D = 0.0
    y = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    gpu_s = over = stall = 0.0
    for k in range(loads.shape[0]):
        come = (loads[k, 0], loads[k, 1], loads[k, 2], loads[k, 3])
        share = (come[0] / steps, come[1] / steps, come[2] / steps, come[3] / steps)
        ready_P, ready_D = (want_P - pend_P) * g_P, (want_D - pend_D) * g_D
        gpus = resize(gpus, y, ready_P, ready_D, pend_P * g_P + pend_D * g_D, policy, plant, fleet, step)
        new_P, new_D = split(gpus, policy[4], low, g_P, g_D)
        starts[k % size, 0] = max(new_P - want_P, 0.0)
        starts[k % size, 1] = max(new_D - want_D, 0.0)
        i, j = (k - delay) % size, (k - delay - 1) % size
        pend_P = max(pend_P + starts[k % size, 0] - (1 - part) * starts[i, 0] - part * starts[j, 0], 0.0)
        pend_D = max(pend_D + starts[k % size, 1] - (1 - part) * starts[i, 1] - part * starts[j, 1], 0.0)
        want_P, want_D = new_P, new_D
        n_P, n_D = max(want_P - pend_P, 0.0) * g_P, max(want_D - pend_D, 0.0) * g_D
        finished = served = t = 0.0
        for _ in range(steps):
            y, done, held, t, serving = flow(y, share, n_P, n_D, plant, h)
            finished += done
            stall += held / r_P
            served += serving / steps
        over += late(y, come, n_P, n_D, finished, t, plant, prices)
        gpu_s += dt * (n_P + served + pend_P * g_P + pend_D * g_D)
    return (gpu_s + late_price * unit * over + stall_price * stall) / 3600


@njit(parallel=True)
def costs(policies, loads, plant, fleet, prices):
    """Hard cost [GPU-hours] of each policy (back-pressure, one token per step)."""
    out = np.empty(policies.shape[0])
    for i in prange(policies.shape[0]):
        out[i] = _one(policies[i], loads, plant, fleet, prices)
    return out


def inputs(case, fleet, load, policies):
    """The plain arrays that `costs` takes: policies of one batch on one load."""
    p, o = fleet.plant, case.objective
    fields = (policies.prefill_up, policies.prefill_down, policies.decode_up, policies.decode_down, policies.ratio)
    thresholds = np.stack([np.asarray(x) for x in fields], axis=1)
    loads = np.stack([np.asarray(x) for x in load], axis=1)
    rates = (p.r_P, p.batch, p.t_step_a, p.t_step_b, p.t_step_c, p.kappa, p.capacity, p.nic_prefill, p.nic_decode)
    memory = 1e300 if p.kv_capacity is None else p.kv_capacity
    plant = tuple(map(float, (*rates, min(float(p.fabric), 1e300), p.prefill_worker, p.decode_worker, memory)))
    limits = (fleet.cold_start, fleet.budget, fleet.initial_gpus, fleet.request_gpu_seconds, fleet.min_workers)
    limits = tuple(map(float, (*limits, fleet.interval, fleet.substeps)))
    prices = (o.ttft, o.tpot, o.late_weight, o.stalled_weight, o.ttft_spread, o.tpot_spread, case.policy.step)
    return thresholds, loads, plant, limits, tuple(map(float, prices))
