"""Closed-form facts next to each law: how late it is, how fast it can move, whether it is stable, and what binds.

Each law states its ingredients; `facts(policy, fleet, workload)` turns them into `Facts`. All are optional and are
read with a default, so a law states what it has (properties and methods of the `Policy` subclass):

- `detection_delay` (property, float or traced [s]): worst case from a change of the load to the decision that asks for
  a worker, by the law's own clock: sample period + averaging window + up-stabilisation. Default: `period`. Without the
  cold start, and without delays of the metrics outside the law (an argument of `facts`).
- `hold_while_pending` (property, bool): True if it asks for nothing more while workers start. Default: False.
- `up_step` (property, number of workers; or `up_gpus`, in GPUs): most workers that one decision adds to a pool; inf for
  no limit, which is the default.
- `gain(fleet, mix)` (method, [1/s] or None): share of a displaced queue that the asked workers correct per second, g of
  D18's Q' = -g Q(t - tau). 0.0 for a law that does not look at a stock (feed-forward: nothing to oscillate); None
  for a relay or an incremental law, to which D18 does not apply. Default: None.
- `dead_band(fleet, mix)` (method, (down, up) or None): the load per worker, in any unit, below which it removes one
  worker and above which it adds one: D20's band of a +-1 law. None where the law tests what remains before it goes
  down, or sizes directly: then no constant load makes it flap. Default: None.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fluidq._bounds import columns
from fluidq._errors import refuse
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.formulas import buffer, control
from fluidq.policies._demand import unit_times
from fluidq.policies.base import Policy
from fluidq.units import format
from fluidq.workload import Workload


class Mix(NamedTuple):
    """A load that stands still: `rate` [req/s], mean lengths `isl_computed`, `isl_stored`, `osl` [tok]."""

    rate: Scalar
    isl_computed: Scalar
    isl_stored: Scalar
    osl: Scalar


@dataclass(frozen=True)
class Facts:
    """What a law can and cannot do on a fleet under a load; SI units. `str(facts)` is the report for people.

    Attributes:
        law: name of the policy's class.
        detection: worst case from a change of the load to a decision [s], metrics delay included; cold_start [s].
        reaction: their sum R [s], the reaction budget that the buffer has to cover.
        hold_while_pending, up_step: as the law states them.
        slew: most workers that it adds to a pool per second: up_step / (T_s + tau) if it holds, else up_step / T_s.
        slew_needed: fastest growth of what a pool needs, between two successive reaction times [workers/s].
        gain: D18's g [1/s]; None for a relay or an incremental law, 0 for feed-forward.
        gain_limit: largest stable g at this delay: the smaller of D18's, continuous and sampled. smooth_limit: largest
            g without overshoot [1/s].
        delay_margin: further delay [s] at which it would oscillate; None where there is no gain.
        dead_band: (down, up) load per worker of a +-1 law, or None.
        steady_size: workers from which no constant load makes it flap (D20), 0 without a dead band.
        smallest_pool: decode workers at the mean load.
        delta_up, delta_down: surplus and shortfall of the KV flow that the buffer has to bridge [B/s].
        capacity, stock: the buffer C and its stock Q0 [B].
        time_to_full, time_to_empty: (C - Q0)/delta_up and Q0/delta_down [s] (D14).
    """

    law: str
    detection: float
    cold_start: float
    reaction: float
    hold_while_pending: bool
    up_step: float
    slew: float
    slew_needed: float
    gain: float | None
    gain_limit: float
    smooth_limit: float
    delay_margin: float | None
    dead_band: tuple[float, float] | None
    steady_size: float
    smallest_pool: float
    delta_up: float
    delta_down: float
    capacity: float
    stock: float
    time_to_full: float
    time_to_empty: float

    @property
    def limits(self) -> dict[str, float]:
        """How much of each limit is used: above 1 it is broken.

        headroom = R delta_up/(C - Q0), stock = R delta_down/Q0, slew = needed/possible, stability = g/g_max, flapping =
        (smallest size that never flaps)/(size at the mean load).
        """
        return {
            "headroom": _share(self.reaction, self.time_to_full),
            "stock": _share(self.reaction, self.time_to_empty),
            "slew": _share(self.slew_needed, self.slew),
            "stability": 0.0 if self.gain is None else _share(self.gain, self.gain_limit),
            "flapping": _share(self.steady_size, self.smallest_pool),
        }

    @property
    def binds(self) -> str:
        """The limit that is used most."""
        used = self.limits
        return max(used, key=lambda name: used[name])

    @property
    def holds(self) -> bool:
        """Whether no limit is broken."""
        return all(used <= 1.0 for used in self.limits.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what is infinite is null."""
        names = {
            "detection_s": self.detection,
            "cold_start_s": self.cold_start,
            "reaction_s": self.reaction,
            "slew_workers_per_s": self.slew,
            "slew_needed_workers_per_s": self.slew_needed,
            "gain_per_s": self.gain,
            "gain_limit_per_s": self.gain_limit,
            "smooth_gain_limit_per_s": self.smooth_limit,
            "delay_margin_s": self.delay_margin,
            "steady_size_workers": self.steady_size,
            "decode_workers": self.smallest_pool,
            "delta_up_bytes_per_s": self.delta_up,
            "delta_down_bytes_per_s": self.delta_down,
            "capacity_bytes": self.capacity,
            "stock_bytes": self.stock,
            "time_to_full_s": self.time_to_full,
            "time_to_empty_s": self.time_to_empty,
        }
        out: dict[str, Any] = {"policy": self.law, "hold_while_pending": self.hold_while_pending}
        out |= {name: _or_none(value) for name, value in names.items()}
        out["up_step_workers"] = _or_none(self.up_step)
        out["dead_band"] = None if self.dead_band is None else list(self.dead_band)
        out["limits_used"] = {name: _or_none(used) for name, used in self.limits.items()}
        return out | {"binds": self.binds, "holds": self.holds}

    def __str__(self) -> str:
        never = "never" if math.isinf(self.detection) else format(self.detection, "seconds")
        hold = "holds while workers start" if self.hold_while_pending else "asks again while workers start"
        rows = [
            ("detection", never, "worst case until it asks"),
            ("cold start", format(self.cold_start, "seconds"), "until the worker serves"),
            ("reaction", _seconds(self.reaction), "what the buffer has to bridge"),
            ("to full", _seconds(self.time_to_full), f"(C - Q0)/delta at {format(self.delta_up, 'bytes/s')} (D14)"),
            ("to empty", _seconds(self.time_to_empty), f"Q0/delta at {format(self.delta_down, 'bytes/s')} (D14)"),
            ("slew", _per_minute(self.slew), f"workers per minute and pool; {hold}"),
            ("slew needed", _per_minute(self.slew_needed), "workers per minute"),
            ("gain", self._gain(), self._margin()),
            ("dead band", self._band(), self._flaps()),
        ]
        used = self.limits[self.binds]
        verdict = "within every limit" if self.holds else "broken"
        rows.append(("binds", self.binds, f"{used:.3g} of what is there; {verdict}"))
        return f"{self.law}\n{columns(rows)}"

    def _gain(self) -> str:
        return "relay" if self.gain is None else f"{self.gain:.3g}/s"

    def _margin(self) -> str:
        if self.gain is None:
            return "a switch, not a gain: D18 does not apply, it cycles (D17)"
        if self.gain == 0:
            return "feed-forward: looks at no stock, so it neither oscillates nor drains one"
        ring = "no overshoot" if self.gain <= self.smooth_limit else "overshoots"
        return f"limit {self.gain_limit:.3g}/s, delay margin {self.delay_margin:.3g} s (D18); {ring}"

    def _band(self) -> str:
        return "none" if self.dead_band is None else "{:g} to {:g}".format(*self.dead_band)

    def _flaps(self) -> str:
        if self.dead_band is None:
            return "sizes directly or tests N - 1: no constant load makes it flap"
        return f"some load flaps below {math.ceil(self.steady_size - 1e-9)} workers (D20)"


def facts(
    policy: Policy,
    fleet: Fleet,
    load: Workload | Mix,
    *,
    delta_up: float | None = None,
    delta_down: float | None = None,
    stock: float | None = None,
    metrics_delay: float = 0.0,
) -> Facts:
    """The closed-form facts of a law on a fleet under a load.

    Arguments:
        load: a workload, or a mix that stands still.
        delta_up, delta_down: surplus and shortfall to bridge [B/s]. By default, for a workload the largest that a
            reaction time brings to pools sized for the one before it; for a mix one whole flow either way.
        stock: Q0 [B]; by default D15's, that centres the two.
        metrics_delay: age of the metrics when the law reads them [s].

    Raises InputError for values below 0, and a stock above the capacity.
    """
    for name, value in (("delta_up", delta_up), ("delta_down", delta_down), ("metrics_delay", metrics_delay)):
        if value is not None and not value >= 0:
            raise refuse(name, value, ">= 0")
    mix = load if isinstance(load, Mix) else mean_mix(load)
    plant, tau = fleet.plant, float(fleet.cold_start)
    period = max(float(policy.period), fleet.interval)
    own = float(getattr(policy, "detection_delay", policy.period))
    # The engine samples on its own ticks: a law whose clock is faster waits for them.
    detection = own + (period if policy.period == 0 else period - float(policy.period)) + metrics_delay
    reaction = detection + tau
    span = min(reaction, 3600.0)

    t_P, t_D = (float(t) for t in unit_times(plant, mix.isl_computed, mix.isl_stored, mix.osl))
    gpus = float(mix.rate) * t_P, float(mix.rate) * t_D
    swing = _swings(load, fleet, span) if isinstance(load, Workload) else None
    flow = float(plant.crossing * mix.rate * mix.isl_stored)
    up = delta_up if delta_up is not None else swing.up if swing else flow
    down = delta_down if delta_down is not None else swing.down if swing else flow
    capacity = float(plant.room(*gpus))
    if stock is None:
        stock = float(buffer.centred_stock(C=capacity, delta_up=up, delta_down=down))
    if not 0 <= stock <= capacity:
        raise refuse("stock", stock, f"between 0 and the capacity of {capacity:g} B")

    hold = bool(getattr(policy, "hold_while_pending", False))
    step = float(getattr(policy, "up_step", math.inf))
    if (most_gpus := getattr(policy, "up_gpus", None)) is not None:
        step = float(most_gpus) / min(map(float, fleet.per_worker))
    gain = policy.gain(fleet, mix) if hasattr(policy, "gain") else None  # type: ignore[attr-defined]
    band = policy.dead_band(fleet, mix) if hasattr(policy, "dead_band") else None  # type: ignore[attr-defined]
    gain = None if gain is None else float(gain)
    band = None if band is None else (float(band[0]), float(band[1]))
    steady = 0.0
    if band is not None:
        # D20's sizes do not depend on where in the band the target lies; at its top the arithmetic is shortest.
        steady = float(control.steady_size(theta_in=1.0 - band[0] / band[1], theta_out=0.0))
    return Facts(
        law=type(policy).__name__,
        detection=detection,
        cold_start=tau,
        reaction=reaction,
        hold_while_pending=hold,
        up_step=step,
        slew=step / (period + tau) if hold else step / period,
        slew_needed=swing.workers if swing else 0.0,
        gain=gain,
        gain_limit=_gain_limit(reaction, period),
        smooth_limit=float(control.monotone_gain_limit(tau=reaction)) if reaction > 0 else math.inf,
        delay_margin=float(control.delay_gain_limit(tau=1.0)) / gain - reaction if gain else None,
        dead_band=band,
        steady_size=steady,
        smallest_pool=float(max(math.ceil(gpus[1] / float(fleet.per_worker[1])), fleet.min_workers)),
        delta_up=up,
        delta_down=down,
        capacity=capacity,
        stock=stock,
        time_to_full=float(buffer.time_to_boundary(delta=up, C=capacity, Q0=stock)),
        time_to_empty=float(buffer.time_to_boundary(delta=-down, C=capacity, Q0=stock)),
    )


def mean_mix(workload: Workload) -> Mix:
    """The workload's mean rate and mean lengths."""
    rate = workload.requests / workload.duration
    return Mix(rate, workload.mean_isl_computed, workload.mean_isl, workload.mean_osl)


def _gain_limit(reaction: float, period: float) -> float:
    """D18: the largest stable gain [1/s] under this delay, sampled every `period`.

    For a fixed delay; an Erlang cold start of the same mean is milder, so the answer is safe there too.
    """
    if reaction <= 0:
        return math.inf
    if math.isinf(reaction):
        return 0.0
    sampled = float(control.sampled_gain_limit(delay_steps=float(math.ceil(reaction / period)))) / period
    return min(float(control.delay_gain_limit(tau=reaction)), sampled)


class _Swings(NamedTuple):
    up: float
    down: float
    workers: float


def _swings(workload: Workload, fleet: Fleet, span: float) -> _Swings:
    """What one reaction time can bring, for pools sized to the mean of the one before: the largest over the workload.

    With n_P, n_D the GPUs that fit the mean of `span` seconds, and the mean of the next such time: prefill can deliver
    min(rate, n_P/t_P) [req/s], decode can take n_D/t_D; the surplus is the excess of the first over the second, the
    shortfall what decode could take of the requests there are and prefill cannot deliver, times the KV of a request.
    """
    w = workload if workload.window == fleet.interval else workload.resampled(fleet.interval)
    n = max(1, min(round(span / fleet.interval), w.rate.size // 2))
    flows = np.stack([w.rate, w.rate * w.isl_computed, w.rate * w.isl_stored, w.rate * w.osl])
    total = np.concatenate([np.zeros((4, 1)), np.cumsum(flows, axis=1)], axis=1)
    rate, *tokens = (total[:, n:] - total[:, :-n]) / n
    some = np.where(rate > 0, rate, 1.0)
    computed, stored, output = (part / some for part in tokens)
    t_P, t_D = (np.asarray(t) for t in unit_times(fleet.plant, computed, stored, output))
    if rate.size <= n:
        return _Swings(0.0, 0.0, 0.0)
    held_P, held_D = (rate * t_P)[:-n], (rate * t_D)[:-n]
    rate, stored, t_P, t_D = rate[n:], stored[n:], t_P[n:], t_D[n:]
    delivers = held_P / np.where(t_P > 0, t_P, np.inf)
    takes = held_D / np.where(t_D > 0, t_D, np.inf)
    each = float(fleet.plant.crossing) * stored
    surplus = np.maximum(np.minimum(rate, delivers) - takes, 0.0) * each
    shortfall = np.maximum(np.minimum(rate, takes) - delivers, 0.0) * each
    g_P, g_D = (float(g) for g in fleet.per_worker)
    growth = np.maximum((rate * t_P - held_P) / g_P, (rate * t_D - held_D) / g_D)
    return _Swings(float(surplus.max()), float(shortfall.max()), max(float(growth.max()), 0.0) / (n * fleet.interval))


def _share(used: float, there: float) -> float:
    if used <= 0 or math.isinf(there):
        return 0.0
    return used / there if there > 0 else math.inf


def _or_none(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else format(value, "seconds")


def _per_minute(rate: float) -> str:
    return "no limit" if math.isinf(rate) else f"{60 * rate:.3g}"
