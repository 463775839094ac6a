"""Sizing: phi, the integer split, its flat region, what binds, the fabric and the buffer, in one `Plan`."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq._bounds import Bounds as Bounds
from fluidq._bounds import Rung, columns, ladder, ladder_text
from fluidq._bounds import bounds as bounds
from fluidq._errors import refuse
from fluidq.deployment import Deployment, mean_context
from fluidq.formulas import balance, fabric
from fluidq.units import Number, Quantity, format, si

__all__ = ["Bounds", "Fabric", "Plan", "Split", "bounds", "size"]

_LIMITS = {  # what each limit on the request rate is called
    "prefill": "the prefill pool",
    "decode": "the decode pool",
    "send": "the sending NICs",
    "receive": "the receiving NICs",
    "fabric": "the fabric",
}


# The largest fleet whose splits are listed.
MOST_GPUS = 1_000_000


@dataclass(frozen=True)
class Split:
    """GPUs of each pool, the request rate [req/s] they carry, its share of the best, and the limit that binds."""

    prefill_gpus: int
    decode_gpus: int
    throughput: float
    relative: float
    binds: str


@dataclass(frozen=True)
class Fabric:
    """The fabric condition of a split (D12), all in B/s per prefill GPU.

    `required` is the KV flow of a prefill GPU at its full rate; `send`, `receive` and `whole` are what its own NIC,
    the decode pool's NICs and the whole fabric allow; `binds` names the least of them, `limit`.
    """

    required: float
    send: float
    receive: float
    whole: float

    @property
    def limit(self) -> float:
        return min(self.send, self.receive, self.whole)

    @property
    def margin(self) -> float:
        """limit / required; infinite where nothing has to move."""
        return self.limit / self.required if self.required else math.inf

    @property
    def binds(self) -> str:
        return min(("send", self.send), ("receive", self.receive), ("fabric", self.whole), key=lambda end: end[1])[0]


@dataclass(frozen=True)
class Plan:
    """A sized fleet; `str(plan)` is the report for people, `to_dict()` the one for programs.

    Attributes:
        phi: prefill share of the GPUs at which neither pool waits (D01).
        context, t_step: mean context of a decode step [tok] and its time at the deployment's batch [s].
        prefill_gpus, decode_gpus: the best split into whole workers; what is too small for one more stays idle.
        throughput, balanced_throughput: request rate [req/s] of that split, and of a fractional one at phi.
        rounding_loss: 1 - min(n_P/(phi N), n_D/((1 - phi) N)) (D08).
        binds: the limit that sets the throughput.
        flat: every split within `within` of the best, in order of prefill GPUs.
        fabric: the fabric condition of the best split.
        critical_hit: prefix hit rate at which the sending NIC is full (D12); None where nothing moves or it never is.
        ladder: buffer per prefill GPU for a surplus or shortfall of its whole flow; empty where nothing moves.
    """

    deployment: Deployment
    isl: float
    osl: float
    gpus: int
    hit: float
    hit_decode: float
    within: float
    phi: float
    context: float
    t_step: float
    balanced_throughput: float
    best: Split
    rounding_loss: float
    flat: tuple[Split, ...]
    fabric: Fabric
    critical_hit: float | None
    ladder: tuple[Rung, ...]

    @property
    def prefill_gpus(self) -> int:
        return self.best.prefill_gpus

    @property
    def decode_gpus(self) -> int:
        return self.best.decode_gpus

    @property
    def throughput(self) -> float:
        return self.best.throughput

    @property
    def binds(self) -> str:
        return self.best.binds

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what is infinite is null (JSON has no infinity)."""
        d, f = self.deployment, self.fabric
        return {
            "model": d.model,
            "gpu": d.gpu,
            "gpus": self.gpus,
            "isl": self.isl,
            "osl": self.osl,
            "hit": self.hit,
            "hit_decode": self.hit_decode,
            "phi": self.phi,
            "prefill_gpus": self.prefill_gpus,
            "decode_gpus": self.decode_gpus,
            "gpus_per_prefill_worker": d.gpus_per_prefill_worker,
            "gpus_per_decode_worker": d.gpus_per_decode_worker,
            "kv_bytes_per_token": d.kappa_store,
            "prefill_tokens_per_s_per_gpu": d.r_P,
            "batch_per_gpu": d.batch,
            "context_tokens": self.context,
            "step_s": self.t_step,
            "throughput_requests_per_s": self.throughput,
            "balanced_requests_per_s": self.balanced_throughput,
            "rounding_loss": self.rounding_loss,
            "binds": self.binds,
            "flat_region": {
                "within": self.within,
                "splits": [
                    {
                        "prefill_gpus": s.prefill_gpus,
                        "decode_gpus": s.decode_gpus,
                        "relative_throughput": s.relative,
                        "binds": s.binds,
                    }
                    for s in self.flat
                ],
            },
            "fabric": {
                "required_bytes_per_s_per_gpu": f.required,
                "limit_bytes_per_s_per_gpu": _or_none(f.limit),
                "margin": _or_none(f.margin),
                "binds": f.binds,
                "send_bytes_per_s_per_gpu": _or_none(f.send),
                "receive_bytes_per_s_per_gpu": _or_none(f.receive),
                "fabric_bytes_per_s_per_gpu": _or_none(f.whole),
                "critical_hit_rate": self.critical_hit,
            },
            "buffer_ladder": [rung.to_dict() for rung in self.ladder],
            "sources": {name: f"{figure.label}; {figure.source}".lstrip("; ") for name, figure in d.sources.items()},
        }

    def __str__(self) -> str:
        d = self.deployment
        title = f"{d.model} on {self.gpus} x {d.gpu}, {self.isl:,g} tokens in, {self.osl:,g} out"
        if self.hit or self.hit_decode:
            title += f", prefix hit {self.hit:.3g} (decode side {self.hit_decode:.3g})"
        parts = [title, "Balance\n" + self._balance(), "Split\n" + self._split(), "Fabric\n" + self._fabric()]
        if self.ladder:
            title = "Buffer per prefill GPU for a swing of one whole flow either way (D15)"
            parts.append(f"{title}\n{ladder_text(self.ladder)}")
        if self.deployment.sources:
            parts.append("Sources\n" + self._sources())
        return "\n\n".join(parts)

    def _balance(self) -> str:
        d = self.deployment
        labels = {name: figure.label for name, figure in d.sources.items()}

        def others(name: str) -> list[tuple[str, str, str]]:
            return [("", "or", f"{a.value:,.0f}: {a.label}") for a in d.alternatives.get(name, ())]

        rows = [
            ("phi", f"{self.phi:.4f}", "prefill share of the GPUs at balance (D01)"),
            ("prefill rate", f"{d.r_P:,.0f} tok/s per GPU", labels.get("r_P", "")),
            *others("r_P"),
            ("decode step", format(self.t_step, "seconds"), labels.get("t_step", "")),
            ("decode batch", f"{d.batch:g} per GPU", f"at {self.context:,.0f} tokens of context, mean over the steps"),
            ("KV size", f"{d.kappa_store:,.0f} B/token", labels.get("kappa_store", "")),
            *others("kappa_store"),
        ]
        return columns(rows)

    def _split(self) -> str:
        d = self.deployment
        idle = self.gpus - self.prefill_gpus - self.decode_gpus
        span = [s.prefill_gpus for s in self.flat]
        rows = [
            ("prefill", f"{self.prefill_gpus} GPUs", f"in workers of {d.gpus_per_prefill_worker}"),
            ("decode", f"{self.decode_gpus} GPUs", f"in workers of {d.gpus_per_decode_worker}"),
            *([("idle", f"{idle} GPUs", "no whole worker fits")] if idle else []),
            ("throughput", f"{self.throughput:.4g} req/s", f"set by {_LIMITS[self.binds]}"),
            ("rounding", f"{self.rounding_loss:.1%} lost", f"of {self.balanced_throughput:.4g} req/s at phi (D08)"),
            (
                "flat region",
                f"{min(span)} to {max(span)}",
                f"prefill GPUs: within {100 * self.within:g} % of the best, {len(span)} split{'s' * (len(span) > 1)}",
            ),
        ]
        shown = self.flat if len(self.flat) <= 7 else (*self.flat[:3], *self.flat[-3:])
        rows += [
            ("", f"{s.prefill_gpus} + {s.decode_gpus}", f"{s.relative:.1%} of the best, set by {_LIMITS[s.binds]}")
            for s in shown
        ]
        return columns(rows)

    def _fabric(self) -> str:
        f = self.fabric
        if not f.required:
            return "  no KV has to move"
        ends = ((f.send, "sending NIC"), (f.receive, "receiving NICs, shared"), (f.whole, "whole fabric, shared"))
        rows = [("required", format(f.required, "bytes/s"), "per prefill GPU at full rate (D12)")]
        rows += [("limit", format(end, "bytes/s"), name) for end, name in ends if math.isfinite(end)]
        binds = f"{_LIMITS[f.binds]} bind first" if f.margin >= 1 else f"below 1: {_LIMITS[f.binds]} cannot carry it"
        rows.append(("margin", format(f.margin, "1"), binds))
        if self.critical_hit is not None:
            rows.append(("critical hit", f"{self.critical_hit:.3f}", "prefix hit rate at which the NIC is full (D12)"))
        return columns(rows)

    def _sources(self) -> str:
        """Each source once, with the names of the figures that rest on it."""
        names: dict[str, dict[str, None]] = {}
        for name, figure in self.deployment.sources.items():
            for entry in (figure, *self.deployment.alternatives.get(name, ())):
                names.setdefault(entry.source, {})[name] = None
        return "\n".join(f"  {', '.join(fields)}: {source}" for source, fields in names.items())


def _or_none(x: float) -> float | None:
    return x if math.isfinite(x) else None


def size(
    deployment: Deployment,
    isl: Quantity,
    osl: Quantity,
    gpus: Number,
    hit: Quantity = 0.0,
    hit_decode: Quantity = 0.0,
    within: Quantity = 0.05,
) -> Plan:
    """Split `gpus` between the pools for requests of `isl` tokens in and `osl` out.

    phi = B I / (B I + r_P t_step O) with I the computed tokens (1 - hit) isl (D01, D04); t_step at the deployment's
    batch and the mean context of D05. Workers are whole; the split carries the highest request rate that the pools,
    the NICs and the fabric allow. Splits leave no room for one more worker; of equal ones the one whose pools have
    most to spare is taken, then the one with the fewest prefill GPUs.

    Args:
        isl, osl: stored input and output tokens per request, >= 0; one of them may be 0 (phi is then 0 or 1).
        gpus: GPUs of the fleet.
        hit: share of the input tokens whose KV prefill already has, in [0, 1).
        hit_decode: share whose KV the decode side already has, in [0, 1].
        within: how far below the best a split may be to count as flat, in [0, 1).

    Raises:
        InputError: a value out of range, both lengths 0, a batch that does not fit in HBM, or too few GPUs.
    """
    d = deployment
    tokens_in, tokens_out = _length(isl, "isl"), _length(osl, "osl")
    if tokens_in == 0 and tokens_out == 0:
        raise refuse("isl + osl", 0, "> 0: with neither input nor output there is nothing to compute")
    h, h_D, slack = _share(hit, "hit"), _share(hit_decode, "hit_decode"), _share(within, "within")
    if h == 1:
        raise refuse("hit", hit, "below 1: with every token cached there is no prefill")
    N = _fleet(gpus, d, tokens_in, tokens_out)
    context = mean_context(tokens_in, tokens_out)
    if tokens_out:
        d.check_memory(context)
    t_step = float(np.asarray(d.t_step(d.batch, context)))
    load = {"B": d.batch, "isl": (1 - h) * tokens_in, "osl": tokens_out, "r_P": d.r_P, "t_step": t_step}
    ideal = float(balance.balanced_throughput(N=float(N), **load))
    splits, pools = _splits(d, tokens_in, tokens_out, N, h, h_D, t_step)
    # Equal rates differ in their last bits. Where a link sets the rate many splits are equal: of those the one whose
    # pools carry most, and then the one with the fewest prefill GPUs.
    equal = [i for i, s in enumerate(splits) if s.relative >= 1 - 1e-12]
    most = max(pools[i] for i in equal)
    best = next(i for i in equal if pools[i] >= most * (1 - 1e-12))
    n_P, n_D = splits[best].prefill_gpus, splits[best].decode_gpus
    moves = bool(tokens_in and tokens_out)
    flow, critical = 0.0, None
    if moves:
        link = {"r_P": d.r_P, "kappa_store": d.kappa_store, "hit_decode": h_D}
        flow = float(fabric.transfer_flow(hit=h, **link))
        critical = _critical_hit(d.nic, link)
    return Plan(
        deployment=d,
        isl=tokens_in,
        osl=tokens_out,
        gpus=N,
        hit=h,
        hit_decode=h_D,
        within=slack,
        phi=float(balance.balance_ratio(**load)),
        context=context,
        t_step=t_step,
        balanced_throughput=ideal,
        best=splits[best],
        rounding_loss=max(0.0, 1 - pools[best] / ideal),
        flat=tuple(s for s in splits if s.relative >= 1 - slack),
        fabric=Fabric(
            required=flow,
            send=d.nic,
            receive=d.nic * n_D / n_P if moves else math.inf,
            whole=d.fabric / n_P if moves else math.inf,
        ),
        critical_hit=critical,
        ladder=ladder(flow, flow) if flow else (),
    )


def _critical_hit(nic: float, link: dict[str, float]) -> float | None:
    """The hit rate at which the sending NIC is full; None where no rate in [0, 1) fills it or every one does."""
    if math.isinf(nic):
        return None
    critical = float(fabric.critical_hit_rate(nic=nic, **link))
    return critical if 0 <= critical < 1 else None


def _splits(
    d: Deployment, isl: float, osl: float, gpus: int, hit: float, hit_decode: float, t_step: float
) -> tuple[list[Split], list[float]]:
    """Every split that leaves no room for one more worker, and what its two pools alone carry [req/s]."""
    g_P, g_D = d.gpus_per_prefill_worker, d.gpus_per_decode_worker
    n_P = np.arange(0, gpus + 1, g_P) if isl else np.zeros(1, int)
    n_D = (gpus - n_P) // g_D * g_D if osl else np.zeros_like(n_P)
    full = gpus - n_P - n_D < (g_P if isl else g_D)
    n_P, n_D = n_P[full], n_D[full]
    computed, moved = (1 - hit) * isl, (1 - hit_decode) * isl * d.kappa_store * bool(osl)
    limits = {
        "prefill": _per(n_P * d.r_P, computed),
        "decode": _per(n_D * d.batch, osl * t_step),
        "send": _per(_links(n_P, d.nic), moved),
        "receive": _per(_links(n_D, d.nic), moved),
        "fabric": _per(np.full(n_P.shape, d.fabric), moved),
    }
    rates = np.stack(list(limits.values()))
    carried, binding, pools = rates.min(axis=0), rates.argmin(axis=0), rates[:2].min(axis=0)
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


def _length(value: Quantity, name: str) -> float:
    tokens = si(value, "tokens", name, minimum=0.0)
    if math.isinf(tokens):
        raise refuse(name, value, "a finite number of tokens >= 0")
    return tokens


def _share(value: Quantity, name: str) -> float:
    share = si(value, "1", name, minimum=0.0)
    if share > 1:
        raise refuse(name, value, "a share from 0 to 1")
    return share


def _fleet(gpus: Number, d: Deployment, isl: float, osl: float) -> int:
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
