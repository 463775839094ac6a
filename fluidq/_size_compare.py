"""Should I disaggregate? Two pools against GPUs that do both, under the conditions of D27."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq._bounds import columns
from fluidq._errors import refuse
from fluidq._size_splits import LIMITS
from fluidq.formulas import aggregated, memory, requests, rounding, theorem
from fluidq.sizing import Plan
from fluidq.units import Number, Quantity, format, si

YES, NO, DEPENDS = "yes", "no", "it depends"
# Share of the multiprocessors that saturates the HBM: assumed, so that an SM split alone never makes the answer "no".
SATURATION = 0.4


@dataclass(frozen=True)
class Rival:
    """One way to run prefill and decode on the same GPUs, at the same limits.

    Attributes:
        name: "temporal", "chunked" or "SM split".
        batch, tpot, slowest_step: sequences per GPU, mean time per token and the longest usual gap between tokens [s].
        throughput: requests per second of the whole fleet; 0 where no batch keeps the limits.
        ratio: two pools' throughput over it.
        note: what it rests on.
    """

    name: str
    batch: float
    tpot: float
    slowest_step: float
    throughput: float
    ratio: float
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "system": self.name,
            "batch_per_gpu": self.batch,
            "tpot_s": _finite(self.tpot),
            "slowest_step_s": _finite(self.slowest_step),
            "throughput_requests_per_s": self.throughput,
            "disaggregated_over_it": _finite(self.ratio),
            "note": self.note,
        }


@dataclass(frozen=True)
class Condition:
    """A condition of D27: "yes", "no" or "it depends", with its figure and what would settle it."""

    name: str
    holds: str
    figure: float | None
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {"condition": self.name, "holds": self.holds, "figure": self.figure, "words": self.words}


@dataclass(frozen=True)
class Verdict:
    """`answer` is "yes", "no" or "it depends"; `because` says on what."""

    plan: Plan
    answer: str
    because: tuple[str, ...]
    conditions: tuple[Condition, ...]
    rivals: tuple[Rival, ...]
    throughput: float
    bound: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "answer": self.answer,
            "because": list(self.because),
            "disaggregated": {
                "throughput_requests_per_s": self.throughput,
                "tpot_s": self.plan.point.tpot,
                "batch_per_gpu": self.plan.batch,
                "at_least_of_temporal": self.bound,
            },
            "conditions": [c.to_dict() for c in self.conditions],
            "systems": [r.to_dict() for r in self.rivals],
        }

    def __str__(self) -> str:
        p = self.plan
        rows = [("", "throughput", "TPOT", "slowest step", "batch", "two pools over it")]
        rows.append(
            (
                "two pools",
                f"{self.throughput:.4g} req/s",
                format(p.point.tpot, "seconds"),
                format(p.t_step, "seconds"),
                f"{p.batch:.4g}",
                f"{p.prefill_gpus} + {p.decode_gpus} GPUs, rounding included",
            )
        )
        for r in self.rivals:
            served = r.throughput > 0
            rows.append(
                (
                    r.name,
                    f"{r.throughput:.4g} req/s",
                    format(r.tpot, "seconds") if served else "-",
                    format(r.slowest_step, "seconds") if served else "-",
                    f"{r.batch:.4g}",
                    (f"{r.ratio:.3f}; " if served else "") + r.note,
                )
            )
        conditions = columns([(c.name, c.holds, c.words) for c in self.conditions])
        reasons = "\n".join(f"  {reason}" for reason in self.because)
        return (
            f"Disaggregate? {self.answer}\n{reasons}\n\nConditions of never being worse than temporal sharing (D27)\n"
            f"{conditions}\n\nAt the same limits\n{columns(rows)}"
        )


def compare(
    plan: Plan,
    *,
    swing: Number = 0.5,
    overlap: Quantity | None = None,
    specialisation: Quantity = 0.0,
    saturation: Quantity = SATURATION,
    activations: Quantity | None = None,
) -> Verdict:
    """Two pools against temporal, chunked and SM-split GPUs at the plan's limits on TPOT, memory and batch.

    Aggregated GPUs hold B sequences each and serve X = N/T(B), T = (t_P + t_D)/gain: gain 1 for temporal sharing
    (D21), 1/(1 - omega min(phi, 1 - phi)) for chunks (D23), `sm_split_gain` for a split GPU. By Little TPOT = B T/osl,
    and B is the most that keeps the limits. Two pools are taken with whole workers, links and the prefill load of the
    plan; its specialisation gain multiplies them.

    Args:
        swing: largest step of the flow to survive, as a share of it.
        overlap: omega, share of the shorter phase that runs behind the longer in mixed steps; None: not known, taken
            as 1 (the most that there can be), and the answer may depend on it.
        specialisation: sigma, gain from parallelism and kernels of their own.
        saturation: share of the multiprocessors that saturates the HBM.
        activations: what prefill reserves on a GPU that does both and decode does not need [B/GPU] (D22).

    Raises:
        InputError: a share outside its range; a plan with one phase only.
    """
    p, d = plan.point, plan.deployment
    if not (p.t_P and p.t_D):
        raise refuse("isl, osl", (plan.isl, plan.osl), "both > 0: one phase alone has nothing to split")
    omega = None if overlap is None else _portion(overlap, "overlap")
    sigma, sat = si(specialisation, "1", "specialisation", minimum=0.0), _portion(saturation, "saturation")
    if not 0 < abs(swing) <= 1:
        raise refuse("swing", swing, "a share of the flow, not 0, from -1 to 1")
    freed = 0.0 if activations is None else si(activations, "bytes", "activations", minimum=0.0)
    own = float(d.prefill_work(plan.traffic.computed, plan.traffic.attended))
    free = d.free_hbm()
    if freed >= free:
        raise refuse("activations", format(freed, "bytes"), f"less than the {format(free, 'bytes')} that weights leave")

    phi_0 = float(requests.balance_ratio_work(t_P=own, t_D=p.t_D))
    rivals = [
        _rival(plan, "temporal", own, freed, lambda phi: 1.0, "no overlap (D21)"),
        _rival(
            plan,
            "chunked",
            own,
            freed,
            lambda phi: float(aggregated.chunk_gain(phi=phi, overlap=1.0 if omega is None else omega)),
            f"overlap {omega:g} (D23)" if omega is not None else "overlap not known, taken as 1: the most (D23)",
        ),
        _rival(
            plan,
            "SM split",
            own,
            freed,
            lambda phi: float(aggregated.sm_split_gain(phi=phi, saturation=sat)),
            f"{sat:.0%} of the SMs saturate the HBM, no contention (D23)",
        ),
    ]
    served = plan.throughput * (1 + sigma)
    rivals = [_with_ratio(r, served) for r in rivals]
    conditions = _conditions(plan, swing, omega, sigma, freed, phi_0)
    stranded = 0.0
    for c in conditions:
        if c.name == "tracking" and c.holds == NO and c.figure is not None:
            stranded = c.figure
    bound = theorem.never_worse_bound(
        rounding_loss=plan.rounding_loss,
        stranded=stranded,
        specialisation=sigma,
        overlap=1.0 if omega is None else omega,
        phi=phi_0,
    )
    answer, because = _answer(plan, conditions, rivals, omega, sigma, phi_0)
    return Verdict(plan, answer, because, conditions, tuple(rivals), served, float(np.asarray(bound)))


def _rival(plan: Plan, name: str, own: float, freed: float, gain: Any, note: str) -> Rival:
    """The best batch of aggregated GPUs within the limits, by bisection: TPOT grows with the batch."""
    d, service, traffic = plan.deployment, plan.service, plan.traffic
    context = plan.context

    def times(batch: float) -> tuple[float, float]:
        t_step = float(d.t_step_a + (d.t_step_b + d.t_step_c * context) * batch)
        t_D = traffic.osl * t_step / (service.accept * batch)
        total = (own + t_D) / gain(own / (own + t_D))
        return total, batch * total / traffic.osl

    most = math.inf if service.batch is None else service.batch
    room = d.fits(context)
    if math.isfinite(room):
        most = min(most, room * (1 - freed / d.free_hbm()))
    if service.concurrency is not None:
        most = min(most, service.concurrency / plan.gpus)
    batch = most
    if service.tpot is not None and (math.isinf(most) or times(most)[1] > service.tpot):
        low, high = 0.0, most
        if math.isinf(high):
            high = 1.0
            while times(high)[1] <= service.tpot and high < 1e12:
                high *= 2
        if times(1e-9)[1] > service.tpot:
            return Rival(name, 0.0, math.inf, math.inf, 0.0, math.inf, f"no batch keeps the TPOT limit; {note}")
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if times(middle)[1] <= service.tpot else (low, middle)
        batch = low
    total, tpot = times(batch)
    t_step = float(d.t_step_a + (d.t_step_b + d.t_step_c * context) * batch)
    worker = d.gpus_per_decode_worker
    # Temporal sharing prefills a whole prompt between two steps (D21); the others spread it over them.
    slowest = t_step + own / worker if name == "temporal" else tpot * service.accept
    rate = plan.gpus / total
    if service.ttft is not None:
        # Prefill first: the wait is that of prefill alone, and on average half a step more (D24).
        scv = traffic.service_scv
        slack = service.ttft - own / worker - 1.5 * t_step
        allowed = max(slack, 0.0) / (max(slack, 0.0) + 0.5 * (1 + scv) * own / worker)
        if rate * own / plan.gpus > allowed:
            rate, note = plan.gpus * allowed / own, f"at the TTFT limit; {note}"
    return Rival(name, batch, tpot, slowest, rate, math.inf, note)


def _with_ratio(r: Rival, served: float) -> Rival:
    share = served / r.throughput if r.throughput else math.inf
    return Rival(r.name, r.batch, r.tpot, r.slowest_step, r.throughput, share, r.note)


def _conditions(
    plan: Plan, swing: Number, omega: float | None, sigma: float, freed: float, phi: float
) -> tuple[Condition, ...]:
    d, f = plan.deployment, plan.fabric
    g_P, g_D = d.gpus_per_prefill_worker, d.gpus_per_decode_worker
    common = math.gcd(int(g_P), int(g_D))
    enough = int(rounding.break_even_fleet(g_P=g_P, g_D=g_D, g_common=common, epsilon=0.05))
    out = [
        Condition(
            "rounding",
            YES if plan.rounding_loss <= 0.05 else NO,
            plan.rounding_loss,
            f"{plan.rounding_loss:.1%} lost to whole workers of {g_P} and {g_D}; {enough} GPUs lose at most 5 % (D08)",
        ),
        Condition(
            "fabric",
            YES if f.margin >= 1 else NO,
            _finite(f.margin),
            f"margin {format(f.margin, '1')}, {LIMITS[f.binds]} first (D12)"
            if math.isfinite(f.margin)
            else "nothing limits it",
        ),
        _tracking(plan, swing),
    ]
    threshold = float(aggregated.break_even_specialisation(phi=phi, overlap=1.0 if omega is None else omega))
    m = min(phi, 1 - phi)
    if omega is None:
        most = sigma / (1 + sigma) / m if m else math.inf
        gain = f"two pools that gain {sigma:.1%} by specialisation"
        words = f"not known; {gain} win up to an overlap of {min(most, 1):.0%} at phi {phi:.3f}"
        out.append(Condition("no overlap in the baseline", YES if most >= 1 else DEPENDS, min(most, 1.0), words))
    else:
        words = f"overlap {omega:.0%} is worth {threshold:.1%}; specialisation is worth {sigma:.1%} (D23)"
        out.append(Condition("no overlap in the baseline", YES if sigma >= threshold else NO, threshold, words))
    out.append(_memory(plan, freed))
    out.append(
        Condition(
            "level",
            DEPENDS,
            None,
            "the pool with capacity to spare has to be stopped at the planned level of the buffer, not at its end",
        )
    )
    return tuple(out)


def _tracking(plan: Plan, swing: Number) -> Condition:
    if plan.buffer is None:
        flow = plan.fabric.required * abs(swing)
        words = f"not given; a swing of {swing:+.0%} needs {format(flow, 'bytes/s')} of buffer per second of cold start"
        return Condition("tracking", DEPENDS, None, words)
    tau, C, Q0 = plan.buffer
    from fluidq.formulas import buffer

    delta = swing * plan.fabric.required
    hit = float(buffer.time_to_boundary(delta=delta, C=C, Q0=Q0))
    loss = float(buffer.shock_loss(delta=delta, tau=tau, C=C, Q0=Q0, P=plan.fabric.required))
    end = format(hit, "seconds") if math.isfinite(hit) else "no time"
    words = f"cold start {format(tau, 'seconds')} against {end} to the end of the buffer at {swing:+.0%}"
    if loss:
        words += f": {loss:.1%} of the flow is stranded meanwhile (D14)"
    return Condition("tracking", YES if tau <= hit else NO, loss, words)


def _memory(plan: Plan, freed: float) -> Condition:
    d, w = plan.deployment, plan.windows
    reserved = 0.0 if w is None else w.reserved
    if not freed:
        words = f"{format(reserved, 'bytes')} per decode GPU reserved for transfers; give what activations free there"
        return Condition("memory", DEPENDS if reserved else YES, reserved, words)
    free = d.free_hbm()
    space = free - freed
    factor = float(memory.batch_gain(kv_space=space, freed=freed - reserved)) if freed > reserved else 1.0
    law = {"t_step_a": d.t_step_a, "t_step_b": d.t_step_b, "t_step_c": d.t_step_c}
    gain = memory.decode_gain(**law, theta_ctx=plan.context, B=space / (plan.context * d.held()), batch_factor=factor)
    words = (
        f"{format(reserved, 'bytes')} reserved of {format(freed, 'bytes')} freed per decode GPU: batch x {factor:.3f}, "
        f"decode rate x {float(gain):.3f} where memory limits it (D22)"
    )
    return Condition("memory", YES if reserved <= freed else NO, reserved, words)


def _answer(
    plan: Plan,
    conditions: tuple[Condition, ...],
    rivals: list[Rival],
    omega: float | None,
    sigma: float,
    phi: float,
) -> tuple[str, tuple[str, ...]]:
    by = {r.name: r for r in rivals}
    temporal = by["temporal"]
    if temporal.throughput and temporal.ratio < 1:
        limit = math.inf if plan.service.tpot is not None else _tpot_at_par(plan, temporal)
        if plan.point.tpot < limit < math.inf and plan.fabric.margin >= 1:
            low, high = format(plan.point.tpot, "seconds"), format(limit, "seconds")
            words = f"TPOT: no limit is given; two pools serve more where it is between {low} and {high}"
            return DEPENDS, (words, f"rounding: {conditions[0].words}")
        why = [f"temporal sharing serves {1 / temporal.ratio:.3f} times as much at the same limits"]
        why += [f"{c.name}: {c.words}" for c in conditions if c.holds == NO and c.name in ("rounding", "fabric")]
        return NO, tuple(why)
    known = [by["SM split"], *([by["chunked"]] if omega is not None else [])]
    better = [r for r in known if r.throughput and r.ratio < 1]
    open_points = [f"{c.name}: {c.words}" for c in conditions if c.holds == DEPENDS and c.name in ("tracking",)]
    open_points += [f"{c.name}: {c.words}" for c in conditions if c.holds == NO and c.name == "tracking"]
    if omega is not None and by["chunked"].throughput and by["chunked"].ratio < 1:
        return NO, (f"chunked prefill at an overlap of {omega:.0%} serves {1 / by['chunked'].ratio:.3f} times as much",)
    if omega is None and by["chunked"].throughput and by["chunked"].ratio < 1:
        limit = _overlap_at_par(plan, by["chunked"], temporal)
        open_points.append(f"overlap: chunked prefill serves more where its phases overlap by more than {limit:.0%}")
    open_points += [
        f"{r.name}: serves {1 / r.ratio:.3f} times as much if its phases do not slow each other down"
        for r in better
        if r.name == "SM split"
    ]
    if open_points:
        return DEPENDS, tuple(open_points)
    least = min((r.ratio for r in rivals if r.throughput), default=math.inf)
    words = f"at least {least:.3f} times any other" if math.isfinite(least) else "nothing else keeps the limits"
    return YES, (f"two pools serve {words} at the same limits",)


def _overlap_at_par(plan: Plan, full: Rival, none: Rival) -> float:
    """The overlap at which chunked prefill serves as much as the two pools."""
    d = plan.deployment
    own = float(d.prefill_work(plan.traffic.computed, plan.traffic.attended))
    served = full.ratio * full.throughput
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        rival = _rival(plan, "chunked", own, 0.0, _gain_at(middle), "")
        low, high = (middle, high) if rival.throughput < served else (low, middle)
    return 0.5 * (low + high)


def _tpot_at_par(plan: Plan, temporal: Rival) -> float:
    """The TPOT at which temporal sharing serves as much as the two pools: with a smaller batch, in longer steps."""
    d, traffic = plan.deployment, plan.traffic
    own = float(d.prefill_work(traffic.computed, traffic.attended))
    served = temporal.ratio * temporal.throughput
    # X = N/(own + O t_step/(accept B)) = served, solved for O t_step/(accept B) = t_D, and TPOT = B (own + t_D)/O.
    t_D = plan.gpus / served - own
    slope = d.t_step_b + d.t_step_c * plan.context
    rest = t_D * plan.service.accept / traffic.osl - slope
    if rest <= 0:
        return math.inf
    return d.t_step_a / rest * (own + t_D) / traffic.osl


def _gain_at(overlap: float) -> Any:
    return lambda phi: 1 / (1 - overlap * min(phi, 1 - phi))


def _portion(value: Quantity, name: str) -> float:
    share = si(value, "1", name, minimum=0.0)
    if share > 1:
        raise refuse(name, value, "a share from 0 to 1")
    return share


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
