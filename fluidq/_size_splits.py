"""Splits of a fleet into whole workers: what each carries, and which limit sets it."""

import math
from dataclasses import dataclass

import numpy as np

from fluidq._errors import refuse
from fluidq._size_point import Point, Service, loop_rates
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.units import Number

LIMITS = {  # what each limit on the request rate is called
    "prefill": "the prefill pool",
    "ttft": "the prefill pool at the TTFT limit",
    "decode": "the decode pool",
    "send": "the sending NICs",
    "receive": "the receiving NICs",
    "fabric": "the fabric",
    "concurrency": "the requests in flight",
}
# The largest fleet whose splits are listed.
MOST_GPUS = 1_000_000
# A closed loop always stays a little below its pools. Within this share of them a pool sets the rate, not the loop.
_LOOP_SLACK = 0.02


@dataclass(frozen=True)
class Split:
    """GPUs of each pool, the request rate [req/s] they carry, its share of the best, and the limit that binds."""

    prefill_gpus: int
    decode_gpus: int
    throughput: float
    relative: float
    binds: str


def all_splits(
    d: Deployment, traffic: Traffic, service: Service, point: Point, gpus: int
) -> tuple[list[Split], list[float]]:
    """Every split that leaves no room for one more worker, and what its two pools alone carry [req/s]."""
    g_P, g_D = d.gpus_per_prefill_worker, d.gpus_per_decode_worker
    n_P = np.arange(0, gpus + 1, g_P) if traffic.isl else np.zeros(1, int)
    n_D = (gpus - n_P) // g_D * g_D if traffic.osl else np.zeros_like(n_P)
    full = gpus - n_P - n_D < (g_P if traffic.isl else g_D)
    n_P, n_D = n_P[full], n_D[full]
    moved = traffic.moved * d.kappa_store * bool(traffic.osl)
    limits = {
        point.load_binds: _per(n_P, point.t_P),
        "decode": _per(n_D, point.t_D),
        "send": _per(_links(n_P, d.nic), moved),
        "receive": _per(_links(n_D, d.receive_nic()), moved),
        "fabric": _per(np.full(n_P.shape, d.fabric), moved),
    }
    pools = np.minimum(limits[point.load_binds], limits["decode"])
    if service.concurrency is not None and traffic.osl:
        # In a loop the batch follows from the split; the pool's own limit is what the other limits on the batch leave.
        cap = min((v for k, v in point.batch_limits.items() if k != "concurrency"), default=math.inf)
        if math.isfinite(cap):
            per_sequence = float(np.asarray(d.t_step(cap, point.context))) / cap
        else:  # a batch without limit takes its own slope
            per_sequence = d.t_step_b + d.t_step_c * point.context
        limits["decode"] = _per(n_D, traffic.osl * per_sequence / service.accept)
    rates = np.stack(list(limits.values()))
    carried, binding = rates.min(axis=0), rates.argmin(axis=0)
    if service.concurrency is not None:
        loop = loop_rates(d, traffic, service, point, n_P, n_D)
        limits["concurrency"] = loop
        binding = np.where(loop < (1 - _LOOP_SLACK) * carried, len(limits) - 1, binding)
        carried = np.minimum(carried, loop)
    names, top = list(limits), carried.max()
    splits = [
        Split(int(p), int(q), float(x), float(x / top), names[i])
        for p, q, x, i in zip(n_P, n_D, carried, binding, strict=True)
    ]
    return splits, pools.tolist()


def _links(gpus: np.ndarray, nic: float) -> np.ndarray:
    """What the NICs of that many GPUs carry; none carry nothing, also where a NIC is infinite."""
    return np.where(gpus > 0, np.maximum(gpus, 1) * nic, 0.0)


def _per(capacity: np.ndarray, work: float) -> np.ndarray:
    """Requests per second that `capacity` carries at `work` per request; without limit where there is no work."""
    return capacity / work if work else np.full(capacity.shape, math.inf)


def whole_fleet(gpus: Number, d: Deployment, isl: float, osl: float) -> int:
    workers = [
        f"a {pool} worker of {size}"
        for pool, size, work in (
            ("prefill", d.gpus_per_prefill_worker, isl),
            ("decode", d.gpus_per_decode_worker, osl),
        )
        if work
    ]
    least = d.gpus_per_prefill_worker * bool(isl) + d.gpus_per_decode_worker * bool(osl)
    if isinstance(gpus, bool) or not math.isfinite(gpus) or gpus != int(gpus) or gpus < least:
        raise refuse("gpus", gpus, f"a whole number of GPUs >= {least}: {' and '.join(workers)}")
    if gpus > MOST_GPUS:
        raise refuse("gpus", gpus, f"at most {MOST_GPUS:,}: every whole split is looked at")
    return int(gpus)
