"""GPUs of several types: which takes prefill (comparative advantage), and which to buy (D06)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluidq._bounds import columns
from fluidq._errors import refuse
from fluidq._size_point import Service, operate
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.formulas import requests
from fluidq.units import Number


@dataclass(frozen=True)
class Kind:
    """One type of GPU: its number, and the requests per second that one GPU of it prefills and decodes."""

    name: str
    gpus: float
    prefill: float
    decode: float
    price: float | None = None

    @property
    def advantage(self) -> float:
        """Prefill over decode; the type with the larger one prefills first."""
        return self.prefill / self.decode


@dataclass(frozen=True)
class Types:
    """Fixed numbers of GPU types, each GPU in its best role.

    Attributes:
        kinds: the types, the one that prefills first in front.
        prefill: GPUs of each type that prefill, fractional; at most one type is split.
        throughput: requests per second.
        buy: (type for prefill, type for decode, price of a request) where prices were given and numbers are free.
    """

    kinds: tuple[Kind, ...]
    prefill: tuple[float, ...]
    throughput: float
    buy: tuple[str, str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        out: dict[str, Any] = {
            "throughput_requests_per_s": self.throughput,
            "types": [
                {
                    "gpu": k.name,
                    "gpus": k.gpus,
                    "prefill_gpus": p,
                    "decode_gpus": k.gpus - p,
                    "prefill_requests_per_s_per_gpu": k.prefill,
                    "decode_requests_per_s_per_gpu": k.decode,
                    "advantage": k.advantage,
                }
                for k, p in zip(self.kinds, self.prefill, strict=True)
            ],
        }
        if self.buy is not None:
            out["cheapest"] = dict(zip(("prefill", "decode", "price_per_request"), self.buy, strict=True))
        return out

    def __str__(self) -> str:
        rows = [("", "prefill", "decode", "prefill / decode rate")]
        rows += [
            (k.name, f"{p:.2f} GPUs", f"{k.gpus - p:.2f} GPUs", f"{k.advantage:.3f}")
            for k, p in zip(self.kinds, self.prefill, strict=True)
        ]
        parts = [
            f"{self.throughput:.4g} req/s with each GPU in its best role (D06)",
            columns(rows),
        ]
        if self.buy is not None:
            first, second, price = self.buy
            parts.append(f"  bought freely: prefill on {first}, decode on {second}, {price:.3g} a request")
        return "\n".join(parts)


def by_advantage(
    fleet: Sequence[tuple[Deployment, Number]],
    traffic: Traffic,
    service: Service = Service(),  # noqa: B008  (immutable)
    prices: Mapping[str, Number] | None = None,
) -> Types:
    """Give each type its role: the largest r_P/r_D prefills first, until both phases carry the same (D06).

    Each type decodes at the batch that its own limits allow. Links are not looked at.

    Args:
        fleet: (deployment, number of its GPUs), one or more.
        prices: of a GPU-hour by GPU name; all or none.

    Raises:
        InputError: no type, a number that is not > 0, a missing price, a traffic with one phase only.
    """
    if not fleet:
        raise refuse("fleet", "no GPUs", "one type at least, such as H100=64")
    if not (traffic.computed and traffic.osl):
        raise refuse("isl, osl", (traffic.isl, traffic.osl), "both > 0: with one phase there are no roles to give")
    kinds = []
    for d, gpus in fleet:
        if not (math.isfinite(gpus) and gpus > 0):
            raise refuse(f"GPUs of {d.gpu}", gpus, "a number > 0")
        if prices is not None and d.gpu not in prices:
            raise refuse(f"price of {d.gpu}", None, "given where that of another type is")
        p = operate(d, traffic, service, int(max(gpus, 1)))
        kinds.append(Kind(d.gpu, float(gpus), 1 / p.t_P, 1 / p.t_D, None if prices is None else float(prices[d.gpu])))
    kinds.sort(key=lambda k: -k.advantage)
    prefill, throughput = _roles(kinds)
    buy = None
    if prices is not None:
        cost = {k.name: (k.price or 0.0) / 3600 for k in kinds}
        first = min(kinds, key=lambda k: float(requests.phase_price(cost=cost[k.name], rate=k.prefill)))
        second = min(kinds, key=lambda k: float(requests.phase_price(cost=cost[k.name], rate=k.decode)))
        price = requests.cost_per_request(
            cost_P=cost[first.name], cost_D=cost[second.name], t_P=1 / first.prefill, t_D=1 / second.decode
        )
        buy = (first.name, second.name, float(price))
    return Types(tuple(kinds), prefill, throughput, buy)


def _roles(kinds: list[Kind]) -> tuple[tuple[float, ...], float]:
    """Types before the split one prefill, those after it decode; the split one balances both."""
    for i, split in enumerate(kinds):
        before = sum(k.gpus * k.prefill for k in kinds[:i])
        after = sum(k.gpus * k.decode for k in kinds[i + 1 :])
        # before + x prefill = after + (gpus - x) decode
        x = (after + split.gpus * split.decode - before) / (split.prefill + split.decode)
        if x <= split.gpus:
            x = max(x, 0.0)
            counts = [k.gpus for k in kinds[:i]] + [x] + [0.0] * (len(kinds) - i - 1)
            rate = min(before + x * split.prefill, after + (split.gpus - x) * split.decode)
            return tuple(counts), rate
    raise AssertionError("the last type balances: with all of it in prefill nothing decodes")
