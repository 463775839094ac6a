"""Memory and buffer of a plan: what transfers hold twice (D25), shocks against a given buffer (D14), block size."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq import catalog
from fluidq._errors import refuse
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.formulas import buffer, memory
from fluidq.units import Quantity, si

# Chunks of a prompt where KV moves while it is computed, as in the theory's example.
CHUNKS = 8
# vLLM's lease on KV that nobody fetches, without heartbeats and with them [s].
LEASES = (30.0, 480.0)
# Swings of the flow that a plan is judged against, as shares of it.
SWINGS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Windows:
    """Memory that transfers take at full rate, in B per GPU of the pool that holds it (D25).

    Attributes:
        reserved: after prefill (vLLM with NIXL): room that a decode GPU keeps for prompts that are being fetched.
        written: by chunks (SGLang with Mooncake): chunks that a prefill GPU keeps until the prompt has landed.
        chunks: chunks of a prompt for `written`.
        saved: time to first token that chunks save [s].
        held: (lease [s], B per prefill GPU) of KV that nobody fetches.
    """

    reserved: float
    written: float
    chunks: int
    saved: float
    held: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "nixl_reserved_bytes_per_decode_gpu": self.reserved,
            "mooncake_written_bytes_per_prefill_gpu": self.written,
            "chunks": self.chunks,
            "ttft_saved_s": self.saved,
            "lease_bytes_per_prefill_gpu": [{"lease_s": t, "bytes": b} for t, b in self.held],
        }


def transfer_windows(d: Deployment, traffic: Traffic, n_P: int, n_D: int) -> Windows | None:
    """The windows of a split; None where a pool is empty, or the link cannot keep up (the queue has no end)."""
    if not (n_P and n_D):
        return None
    rate = traffic.computed / float(d.prefill_work(traffic.computed, traffic.attended))
    pair = min(d.gpus_per_prefill_worker * d.nic, d.gpus_per_decode_worker * d.receive_nic())
    nic = pair / d.gpus_per_prefill_worker
    ends = {"kappa_store": d.kappa_store, "isl": traffic.moved, "g_P": d.gpus_per_prefill_worker}
    # With cached tokens the flow is that of the stored ones: r_P counts computed tokens.
    stored = rate * traffic.moved / traffic.computed
    if math.isinf(nic):
        reserved = saved = 0.0
    else:
        reserved = float(memory.reserved_duplicate(load=1.0, r_P=stored, nic=nic, **ends)) * n_P / n_D
        saved = float(memory.transfer_saved(nic=nic, n_chunks=CHUNKS, **ends))
    written = float(memory.written_duplicate(load=1.0, n_chunks=CHUNKS, **ends))
    held = tuple((t, float(memory.held_on_prefill(r_P=stored, kappa_store=d.kappa_store, lease=t))) for t in LEASES)
    return Windows(reserved, written, CHUNKS, saved, held)


@dataclass(frozen=True)
class Shock:
    """A step of the flow by `swing` of it: time to full or empty [s], stranded share L over the cold start, bytes."""

    swing: float
    time_to_boundary: float
    loss_fraction: float
    lost_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; a boundary that is never reached is null."""
        hit = self.time_to_boundary if math.isfinite(self.time_to_boundary) else None
        return {
            "swing": self.swing,
            "time_to_boundary_s": hit,
            "loss_fraction": self.loss_fraction,
            "lost_bytes": self.lost_bytes,
        }


def shocks(flow: float, tau: float, C: float, Q0: float) -> tuple[Shock, ...]:
    """The article's map for one cold start and buffer: a step of each size of `SWINGS` times the flow (D14)."""
    out = []
    for swing in SWINGS:
        step = {"delta": swing * flow, "C": C, "Q0": Q0}
        hit = float(buffer.time_to_boundary(**step))
        loss = float(buffer.shock_loss(tau=tau, P=flow, **step))
        out.append(Shock(swing, hit, loss, float(buffer.lost_bytes(tau=tau, **step))))
    return tuple(out)


@functools.cache
def _measured() -> tuple[tuple[float, float], ...]:
    """(block size [B], share of the rated link) of one transfer engine on one system, in order."""
    found = [
        (t.size.value, t.efficiency)
        for t in catalog.transfers()
        if t.name.startswith("mooncake-te-h200") and t.size is not None and t.efficiency is not None
    ]
    return tuple(sorted(found))


def block_efficiency(block: Quantity) -> float:
    """Share of the rated link that transfers in blocks of that size reach: Mooncake on H200, measured.

    Linear in the logarithm of the size between 64 KiB and 1 MiB; above as at 1 MiB; below in proportion to the size,
    as where messages per second are the limit.

    >>> round(block_efficiency("128KiB"), 3), round(block_efficiency("4MiB"), 3)
    (0.477, 0.914)
    """
    size = si(block, "bytes", "block", above=0.0)
    if math.isinf(size):
        raise refuse("block", block, "a finite size")
    sizes, shares = (np.array(column) for column in zip(*_measured(), strict=True))
    if size < sizes[0]:
        return float(shares[0] * size / sizes[0])
    return float(np.interp(math.log(size), np.log(sizes), shares))
