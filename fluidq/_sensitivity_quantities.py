"""What can be priced: how each quantity moves a fleet and its load, how far one may move it, and why it may cost 0.

A move by x is x units *in the direction that should help*: seconds less of cold start, GB more of buffer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fluidq._numerics import least, positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.simulate import Load, Run
from fluidq.workload import Workload

GIGA_BYTE = 1e9
GIGA_BIT_PER_SECOND = 1e9 / 8
PER_CENT = 0.01

CENTRAL, ONE_SIDED = "both sides", "the side that helps"


class Span(NamedTuple):
    """Two points of a difference in units of the quantity, and why they lie on one side where they do."""

    low: float
    high: float
    side: str = CENTRAL
    words: str = ""


@dataclass(frozen=True)
class Facts:
    """The hard law as things stand.

    Attributes:
        runs: on each draw of the load, without trajectories. horizon: length of the load [s].
        record: draw to the run with its trajectory; None for the first one with links that have no limit.
    """

    runs: Sequence[Run]
    horizon: float
    record: Callable[[int | None], Run]

    @property
    def never_full(self) -> bool:
        """Whether the buffer has room at the end of every tick: prefill is then never held back by it."""
        return all(float(run.full) == 0 for run in self.runs)

    @cached_property
    def links_free(self) -> bool:
        """Whether every flow is what it would be with links that have no limit."""
        one, other = self.record(0).trajectory, self.record(None).trajectory
        assert one is not None
        assert other is not None
        parts = ((one.done, other.done), (one.backlog, other.backlog), (one.stalled, other.stalled))
        return all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in parts)

    @cached_property
    def most_gpus(self) -> float:
        """Most GPUs asked for at any time on any draw."""
        paths = [self.record(i).trajectory for i in range(len(self.runs))]
        return max(float(np.max(path.requested_gpus)) for path in paths if path is not None)


@dataclass(frozen=True)
class Quantity:
    """A quantity with a price.

    Attributes:
        label, per: its name and one unit of help, in words.
        move: (fleet, load, x) to both after x units of help; x may be traced.
        span: (fleet, load, share, runs) to the points of a difference over `share` of the quantity, or the reason in
            words for which it has no price.
        zero: (fleet, facts) to why the price is exactly 0.
    """

    label: str
    per: str
    move: Callable[[Fleet, Load, Scalar], tuple[Fleet, Load]]
    span: Callable[[Fleet, Load, float, Facts], Span | str]
    zero: Callable[[Fleet, Facts], str]


def aimed(fleet: Fleet) -> Fleet:
    """The same fleet on the tick from which its cold start falls: a whole number of ticks is the end of the one below.

    There the workers land at the end of a tick, and the cost has a kink: its slope is another on either side.
    """
    if fleet.stages or isinstance(fleet.cold_start, Tracer):
        return fleet
    ticks = float(fleet.cold_start) / fleet.interval
    return replace(fleet, delay_ticks=round(ticks) - 1) if ticks > 0.5 and _whole(ticks) else fleet


def moved_workload(name: str, workload: Workload, x: float) -> Workload:
    """The workload after x units of help; only the hit rate is a matter of the workload. Its draws move with it."""
    if name != "hit":
        return workload
    factor = 1.0 - PER_CENT * x * workload.mean_isl / workload.mean_isl_computed
    computed = np.clip(workload.isl_computed * factor, 0.0, workload.isl_stored)
    return replace(workload, isl_computed=computed, again=partial(_hit_again, workload, x))


def _hit_again(workload: Workload, x: float, seed: int) -> Workload:
    return moved_workload("hit", workload.reseeded(seed), x)


# Cold start


def _cold_start(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    seconds = fleet.cold_start - x
    if isinstance(seconds, Tracer):  # its ticks are static, and were chosen by `aimed`
        return replace(fleet, cold_start=seconds), load
    ticks = math.floor(float(seconds) / fleet.interval)
    return replace(fleet, cold_start=float(seconds), delay_ticks=ticks), load


def _cold_start_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    seconds = float(fleet.cold_start)
    if seconds == 0:
        return "the cold start is 0 s already: there is no less"
    step = min(max(share * seconds, 1.0), seconds)
    if not fleet.stages and step <= fleet.interval and _whole(seconds / fleet.interval):
        ticks = round(seconds / fleet.interval)
        words = f"the cold start is {ticks} whole ticks, where the cost has a kink; the price is that of less of it"
        return Span(0.0, step, ONE_SIDED, words)
    return Span(-step, step)


def _cold_start_zero(fleet: Fleet, facts: Facts) -> str:
    if all(float(run.actions) == 0 for run in facts.runs):
        return "the policy starts no worker on this load: how long a start takes is worth nothing"
    if float(fleet.cold_start) - 1.0 > facts.horizon and not fleet.stages:
        return f"the cold start is longer than the load of {facts.horizon:g} s: workers that start never come"
    return "when workers come changes nothing that is priced"


# Buffer


def _buffer(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    return fleet.with_plant(capacity=fleet.plant.capacity + x * GIGA_BYTE), load


def _buffer_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    if math.isinf(float(fleet.plant.capacity)):
        return "the buffer has no limit: there is no more"
    size = float(fleet.plant.capacity) / GIGA_BYTE
    step = max(share * size, 1.0)
    if facts.never_full:
        return Span(0.0, step, ONE_SIDED, "the buffer never fills on this load; the price is that of more of it")
    return _either(size, step, "the buffer is smaller than the step")


def _buffer_zero(fleet: Fleet, facts: Facts) -> str:
    if facts.never_full:
        return "the buffer never fills on this load: more of it is worth nothing"
    full = float(np.mean([float(run.full) for run in facts.runs]))
    return f"the buffer is full {full:.1%} of the time, yet its size changes nothing that is priced"


# Links


def _nic(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    plant, more = fleet.plant, x * GIGA_BIT_PER_SECOND
    return fleet.with_plant(nic_prefill=plant.nic_prefill + more, nic_decode=plant.nic_decode + more), load


def _nic_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    return _link_span((fleet.plant.nic_prefill, fleet.plant.nic_decode), share, "the links have no limit")


def _nic_zero(fleet: Fleet, facts: Facts) -> str:
    return _link_zero("links", facts)


def _fabric(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    return fleet.with_plant(fabric=fleet.plant.fabric + x * GIGA_BIT_PER_SECOND), load


def _fabric_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    return _link_span((fleet.plant.fabric,), share, "the fabric never binds: no limit is stated for it")


def _fabric_zero(fleet: Fleet, facts: Facts) -> str:
    return _link_zero("fabric", facts)


def _link_zero(name: str, facts: Facts) -> str:
    if facts.links_free:
        return f"the {name} never bind{'' if name == 'links' else 's'} on this load: more is worth nothing"
    return f"the {name} bind{'' if name == 'links' else 's'} at times, but nothing that is priced depends on it"


def _link_span(rates: Sequence[Scalar], share: float, unlimited: str) -> Span | str:
    rate = min(float(r) for r in rates) / GIGA_BIT_PER_SECOND
    return unlimited if math.isinf(rate) else _either(rate, max(share * rate, 1.0), "the link is slower than the step")


# Hit rate


def _hit(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    """A point of the mean: every tick computes less by the same factor; what is stored, and crosses, stays."""
    factor = 1.0 - PER_CENT * x * ratio(jnp.sum(load.stored), jnp.sum(load.computed))
    # Not `clip`: where nothing is cached the two are equal, and it would split the slope between them.
    return fleet, load._replace(computed=least(positive_part(load.computed * factor), load.stored))


def _hit_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    computed = float(np.sum(load.computed) / np.sum(load.stored))
    if computed == 0:
        return "the hit rate is 100 % already: there is no more"
    step = share * computed / PER_CENT
    misses = 1.0 - computed
    if misses < PER_CENT * step:
        words = f"the hit rate is {max(misses, 0.0):.1%}, less than the step; the price is that of more of it"
        return Span(0.0, step, ONE_SIDED, words)
    return Span(-step, step)


def _hit_zero(fleet: Fleet, facts: Facts) -> str:
    return "prefill waits for nothing and is paid for regardless: less to compute is worth nothing"


# Speeds


def _prefill_rate(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    return fleet.with_plant(r_P=fleet.plant.r_P * (1.0 + PER_CENT * x)), load


def _decode_speed(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    terms = ("t_step_a", "t_step_b", "t_step_c")
    return fleet.with_plant(**{name: getattr(fleet.plant, name) / (1.0 + PER_CENT * x) for name in terms}), load


def _speed_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    step = share / PER_CENT
    return Span(-step, step)


def _prefill_zero(fleet: Fleet, facts: Facts) -> str:
    return "prefill is never the slower pool and its fleet does not depend on it: a faster one is worth nothing"


def _decode_zero(fleet: Fleet, facts: Facts) -> str:
    return "decode is never the slower pool and its fleet does not depend on it: a faster one is worth nothing"


# Budget


def _budget(fleet: Fleet, load: Load, x: Scalar) -> tuple[Fleet, Load]:
    return replace(fleet, budget=fleet.budget + x), load


def _budget_span(fleet: Fleet, load: Load, share: float, facts: Facts) -> Span | str:
    budget = float(fleet.budget)
    if math.isinf(budget):
        return "the budget has no limit: there is no more"
    pair = sum(float(g) for g in fleet.per_worker)
    if budget - pair < max(float(fleet.initial_gpus), float(fleet.min_workers) * pair):
        return Span(0.0, pair, ONE_SIDED, "the fleet starts with its whole budget; the price is that of more of it")
    return Span(-pair, pair)


def _budget_zero(fleet: Fleet, facts: Facts) -> str:
    budget, most = float(fleet.budget), facts.most_gpus
    if most < budget:
        return f"the fleet asks for {most:g} of {budget:g} GPUs at most: a larger budget is worth nothing"
    return f"the fleet reaches its budget of {budget:g} GPUs, but nothing that is priced depends on one more worker"


def _either(size: float, step: float, small: str) -> Span:
    return Span(-step, step) if size > step else Span(0.0, step, ONE_SIDED, f"{small}; the price is that of more of it")


def _whole(ticks: float) -> bool:
    return abs(ticks - round(ticks)) < 1e-9


QUANTITIES: dict[str, Quantity] = {
    "cold_start": Quantity("cold start", "1 s less", _cold_start, _cold_start_span, _cold_start_zero),
    "buffer": Quantity("handoff buffer", "1 GB", _buffer, _buffer_span, _buffer_zero),
    "nic": Quantity("NIC of every GPU", "1 Gb/s", _nic, _nic_span, _nic_zero),
    "fabric": Quantity("fabric", "1 Gb/s", _fabric, _fabric_span, _fabric_zero),
    "hit": Quantity("prefix-cache hits", "1 point", _hit, _hit_span, _hit_zero),
    "prefill_rate": Quantity("prefill rate r_P", "1 %", _prefill_rate, _speed_span, _prefill_zero),
    "decode_speed": Quantity("decode speed", "1 %", _decode_speed, _speed_span, _decode_zero),
    "budget": Quantity("GPU budget", "1 GPU", _budget, _budget_span, _budget_zero),
}
