"""Sizing: phi and the batch together, whole workers, the flat region, what binds, fabric, memory, buffer: a `Plan`."""

import math
from dataclasses import dataclass
from typing import Any

from fluidq._bounds import Bounds as Bounds
from fluidq._bounds import Rung, ladder
from fluidq._bounds import bounds as bounds
from fluidq._errors import refuse
from fluidq._size_buffer import Shock, Windows, shocks, transfer_windows
from fluidq._size_cost import Sensitivity as Sensitivity
from fluidq._size_cost import cost_per_million_tokens as cost_per_million_tokens
from fluidq._size_cost import sensitivities as sensitivities
from fluidq._size_point import Point, Service, operate
from fluidq._size_splits import Split as Split
from fluidq._size_splits import all_splits, whole_fleet
from fluidq._size_text import report
from fluidq._size_traffic import Traffic as Traffic
from fluidq._size_traffic import _share
from fluidq.deployment import Deployment
from fluidq.formulas import fabric, requests
from fluidq.units import Number, Quantity, si

__all__ = [
    "Bounds",
    "Fabric",
    "Plan",
    "Sensitivity",
    "Split",
    "Traffic",
    "bounds",
    "cost_per_million_tokens",
    "sensitivities",
    "size",
]


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
        traffic, service: what the fleet is sized for: lengths, and limits on TPOT, TTFT and concurrency.
        point: batch, step time, work of a request and load, with the limits that set them.
        phi: prefill share of the GPUs at which neither pool waits (D01), at that batch and load.
        balanced_throughput: request rate [req/s] of a fractional split at phi.
        best: the best split into whole workers; what is too small for one more stays idle.
        rounding_loss: 1 - min(n_P/(phi N), n_D/((1 - phi) N)) (D08).
        flat: every split within `within` of the best, in order of prefill GPUs.
        fabric: the fabric condition of the best split.
        critical_hit: prefix hit rate at which the sending NIC is full (D12); None where nothing moves or it never is.
        ladder: buffer per prefill GPU for a surplus or shortfall of its whole flow; empty where nothing moves.
        windows: memory that transfers take (D25); None where nothing moves.
        shocks: time to full or empty and loss (D14), where a buffer and a cold start were given.
        prices: of a prefill and a decode GPU-hour, where given.
    """

    deployment: Deployment
    traffic: Traffic
    service: Service
    point: Point
    gpus: int
    within: float
    phi: float
    balanced_throughput: float
    best: Split
    rounding_loss: float
    flat: tuple[Split, ...]
    fabric: Fabric
    critical_hit: float | None
    ladder: tuple[Rung, ...]
    windows: Windows | None = None
    shocks: tuple[Shock, ...] = ()
    buffer: tuple[float, float, float] | None = None
    prices: tuple[float, float] | None = None

    @property
    def isl(self) -> float:
        """Mean stored input tokens."""
        return self.traffic.isl

    @property
    def osl(self) -> float:
        """Mean output tokens."""
        return self.traffic.osl

    @property
    def hit(self) -> float:
        """Share of the input tokens that prefill need not compute."""
        return self.traffic.hit

    @property
    def hit_decode(self) -> float:
        """Share of the input tokens that need not move."""
        return self.traffic.hit_decode

    @property
    def batch(self) -> float:
        """Decode sequences per GPU."""
        return self.point.batch

    @property
    def batch_binds(self) -> str:
        """The limit that sets the batch: "given", "tpot", "memory" or "concurrency"."""
        return self.point.batch_binds

    @property
    def context(self) -> float:
        """Mean context of a decode step [tok] (D05)."""
        return self.point.context

    @property
    def t_step(self) -> float:
        """Time of a decode step [s] at that batch and context."""
        return self.point.t_step

    @property
    def prefill_gpus(self) -> int:
        """Prefill GPUs of the best split."""
        return self.best.prefill_gpus

    @property
    def decode_gpus(self) -> int:
        """Decode GPUs of the best split."""
        return self.best.decode_gpus

    @property
    def throughput(self) -> float:
        """Requests per second of the best split."""
        return self.best.throughput

    @property
    def binds(self) -> str:
        """The limit that sets the throughput."""
        return self.best.binds

    @property
    def cost_per_million(self) -> float | None:
        """Price of a million tokens, input and output, at the best split; None without prices."""
        if self.prices is None:
            return None
        spend = self.prices[0] * self.prefill_gpus + self.prices[1] * self.decode_gpus
        return spend / 3600 / (self.throughput * (self.isl + self.osl)) * 1e6

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what is infinite is null (JSON has no infinity)."""
        d, f, p = self.deployment, self.fabric, self.point
        out = {
            "model": d.model,
            "gpu": d.gpu,
            "gpus": self.gpus,
            "isl": self.isl,
            "osl": self.osl,
            "hit": self.hit,
            "hit_decode": self.hit_decode,
            "computed_tokens": self.traffic.computed,
            "phi": self.phi,
            "prefill_gpus": self.prefill_gpus,
            "decode_gpus": self.decode_gpus,
            "gpus_per_prefill_worker": d.gpus_per_prefill_worker,
            "gpus_per_decode_worker": d.gpus_per_decode_worker,
            "kv_bytes_per_token": d.kappa_store,
            "prefill_tokens_per_s_per_gpu": d.r_P,
            "batch_per_gpu": p.batch,
            "batch_binds": p.batch_binds,
            "batch_limits": {name: _or_none(value) for name, value in p.batch_limits.items()},
            "context_tokens": self.context,
            "step_s": self.t_step,
            "tpot_s": p.tpot,
            "ttft_s": _or_none(p.ttft),
            "tokens_per_step": self.service.accept,
            "prefill_load": p.load,
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
        if self.windows is not None:
            out["transfer_windows"] = self.windows.to_dict()
        if self.buffer is not None:
            cold_start, capacity, stock = self.buffer
            out["buffer"] = {
                "cold_start_s": cold_start,
                "capacity_bytes": capacity,
                "stock_bytes": stock,
                "shocks": [shock.to_dict() for shock in self.shocks],
            }
        if self.prices is not None:
            share = requests.spend_share(cost_P=self.prices[0], cost_D=self.prices[1], t_P=p.t_P, t_D=p.t_D)
            out["cost"] = {
                "price_prefill_gpu_hour": self.prices[0],
                "price_decode_gpu_hour": self.prices[1],
                "per_million_tokens": self.cost_per_million,
                "prefill_share_of_spend": float(share),
            }
        return out

    def __str__(self) -> str:
        return report(self)


def _or_none(x: float) -> float | None:
    return x if math.isfinite(x) else None


def size(
    deployment: Deployment,
    isl: Quantity | None = None,
    osl: Quantity | None = None,
    gpus: Number = 64,
    hit: Quantity = 0.0,
    hit_decode: Quantity = 0.0,
    within: Quantity = 0.05,
    *,
    traffic: Traffic | None = None,
    isl_scv: Quantity = 0.0,
    osl_scv: Quantity = 0.0,
    tpot: Quantity | None = None,
    ttft: Quantity | None = None,
    concurrency: Quantity | None = None,
    batch: Quantity | None = None,
    accept: Quantity = 1.0,
    headroom: Quantity = 1.0,
    cold_start: Quantity | None = None,
    buffer: Quantity | None = None,
    stock: Quantity | None = None,
    prices: tuple[Number, Number] | None = None,
) -> Plan:
    """Split `gpus` between the pools for requests of `isl` tokens in and `osl` out.

    phi = t_P/(t_P + t_D) with t_P = ((1 - h) isl/r_P + (1 - h^2) E[I^2]/s_P)/load and t_D = osl t_step(B)/(accept B)
    (D01, D04, D07), t_step at the mean context of D05. B is solved with it: the least of what the TPOT limit, the HBM
    and the requests in flight allow, and of `batch`. Workers are whole; the split carries the highest request rate
    that the pools, the NICs, the fabric and the requests in flight allow. Splits leave no room for one more worker; of
    equal ones the one whose pools have most to spare is taken, then the one with the fewest prefill GPUs.

    Args:
        isl, osl: stored input and output tokens per request, >= 0; one of them may be 0 (phi is then 0 or 1).
        gpus: GPUs of the fleet.
        hit: share of the input tokens whose KV prefill already has, in [0, 1).
        hit_decode: share whose KV the decode side already has, in [0, 1].
        within: how far below the best a split may be to count as flat, in [0, 1).
        traffic: lengths with their moments, or of several classes, instead of `isl`, `osl`, hit rates and variations.
        isl_scv, osl_scv: squared coefficients of variation of independent lengths.
        tpot, ttft: longest mean times per output token and to the first [s].
        concurrency: requests in flight; each split is then a closed loop.
        batch: sequences per decode GPU, at most. None: the deployment's, or no limit of its own where `tpot` or
            `concurrency` is given; inf: what fits.
        accept: output tokens per step and sequence (speculative decoding), >= 1.
        headroom: share of the prefill rate to use, in (0, 1].
        cold_start, buffer, stock: lead time [s], capacity and level [B per prefill GPU] to judge; stock: half.
        prices: of a prefill and a decode GPU-hour.

    Raises:
        InputError: a value out of range, both lengths 0, a batch that does not fit in HBM (by how much), limits that
            no load keeps (with the least possible), or too few GPUs.
    """
    d = deployment
    if traffic is None:
        if isl is None or osl is None:
            raise refuse("isl" if isl is None else "osl", None, "a number of tokens, where no traffic is given")
        _below_one(hit)
        traffic = Traffic.of(isl, osl, hit, hit_decode, isl_scv, osl_scv)
    if traffic.isl == 0 and traffic.osl == 0:
        raise refuse("isl + osl", 0, "> 0: with neither input nor output there is nothing to compute")
    if traffic.isl and not traffic.computed:
        raise refuse("hit", 1.0, "below 1: with every token cached there is no prefill")
    slack = _share(within, "within")
    if batch is None and tpot is None and concurrency is None:
        batch = d.batch
    given = None if isinstance(batch, float) and math.isinf(batch) else batch
    service = Service.of(tpot, ttft, concurrency, given, accept, headroom)
    N = whole_fleet(gpus, d, traffic.isl, traffic.osl)
    point = operate(d, traffic, service, N)
    ideal = N / (point.t_P + point.t_D)
    splits, pools = all_splits(d, traffic, service, point, N)
    # Equal rates differ in their last bits. Where a link sets the rate many splits are equal: of those the one whose
    # pools carry most, and then the one with the fewest prefill GPUs.
    equal = [i for i, s in enumerate(splits) if s.relative >= 1 - 1e-12]
    most = max(pools[i] for i in equal)
    best = next(i for i in equal if pools[i] >= most * (1 - 1e-12))
    n_P, n_D = splits[best].prefill_gpus, splits[best].decode_gpus
    moves = bool(traffic.isl and traffic.osl)
    flow, critical = 0.0, None
    if moves:
        rate = traffic.computed / float(d.prefill_work(traffic.computed, traffic.attended))
        link = {"r_P": rate, "kappa_store": d.kappa_store, "hit_decode": traffic.hit_decode}
        flow = float(fabric.transfer_flow(hit=traffic.hit, **link))
        critical = _critical_hit(d.nic, link)
    judged, found = _judged(flow, cold_start, buffer, stock)
    return Plan(
        deployment=d if d.batch == point.batch else d.with_batch(point.batch),
        traffic=traffic,
        service=service,
        point=point,
        gpus=N,
        within=slack,
        phi=float(requests.balance_ratio_work(t_P=point.t_P, t_D=point.t_D)),
        balanced_throughput=ideal,
        best=splits[best],
        rounding_loss=max(0.0, 1 - pools[best] / ideal),
        flat=tuple(s for s in splits if s.relative >= 1 - slack),
        fabric=Fabric(
            required=flow,
            send=d.nic,
            receive=d.receive_nic() * n_D / n_P if moves else math.inf,
            whole=d.fabric / n_P if moves else math.inf,
        ),
        critical_hit=critical,
        ladder=ladder(flow, flow) if flow else (),
        windows=transfer_windows(d, traffic, n_P, n_D) if flow else None,
        shocks=found,
        buffer=judged,
        prices=None if prices is None else _prices(prices),
    )


def _below_one(hit: Quantity) -> None:
    if _share(hit, "hit") == 1:
        raise refuse("hit", hit, "below 1: with every token cached there is no prefill")


def _prices(prices: tuple[Number, Number]) -> tuple[float, float]:
    for price in prices:
        if not (math.isfinite(price) and price > 0):
            raise refuse("price", price, "a price of a GPU-hour > 0")
    return float(prices[0]), float(prices[1])


def _judged(
    flow: float, cold_start: Quantity | None, buffer: Quantity | None, stock: Quantity | None
) -> tuple[tuple[float, float, float] | None, tuple[Shock, ...]]:
    """Cold start, capacity and stock as given, and the shocks of this plan against them."""
    if buffer is None and cold_start is None and stock is None:
        return None, ()
    if buffer is None or cold_start is None:
        missing, there = ("buffer", "cold_start") if buffer is None else ("cold_start", "buffer")
        raise refuse(missing, None, f"given where {there if stock is None else 'stock'} is")
    tau = si(cold_start, "seconds", "cold_start", minimum=0.0)
    C = si(buffer, "bytes", "buffer", minimum=0.0)
    Q0 = 0.5 * C if stock is None else si(stock, "bytes", "stock", minimum=0.0)
    for name, value, number in (("cold_start", cold_start, tau), ("buffer", buffer, C)):
        if math.isinf(number):
            raise refuse(name, value, "a finite number")
    if Q0 > C:
        raise refuse("stock", stock, f"at most the buffer, {C:g} B (Q0 <= C)")
    return (tau, C, Q0), shocks(flow, tau, C, Q0) if flow else ()


def _critical_hit(nic: float, link: dict[str, float]) -> float | None:
    """The hit rate at which the sending NIC is full; None where no rate in [0, 1) fills it or every one does."""
    if math.isinf(nic):
        return None
    critical = float(fabric.critical_hit_rate(nic=nic, **link))
    return critical if 0 <= critical < 1 else None
