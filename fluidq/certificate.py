"""Whether a tuned policy can be trusted: hard replays, whole requests, gradients, margins, limits, and a verdict.

The verdict is exactly one of three.

- *not better than the default*: the hard cost on the tuning workload is not below that of the given policy; or, over
  the unseen draws, the mean paired difference is not below 0 with its whole 95 % interval (with a single draw: not
  below 0). What is compared is the cost; where the search asked for an SLO attainment, the tuned policy has to keep
  that attainment, on the tuning workload and on average over the unseen draws, and is compared by what it pays, but
  with a given policy that does not keep it, over which it then wins. Where the risk is the worst share of the draws,
  the unseen difference is that of the mean over that share, its interval a paired bootstrap.
- *holds only in the relaxed model*: as above, but the relaxed law had promised at least 1 % less and the point that
  promised it is not better on the hard law; or the hard replays agree and the replay on requests contradicts them: its
  interval says that the tuned policy costs more (with an attainment: that it attains less than the given one and less
  than what is wanted, or pays more without attaining more).
- *holds*: neither. The replay on requests may be left out; the certificate then says so.

A tie is not better. The gradient check, the margins and the limits are reported and do not change the verdict.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluidq._certificate_hard import Paired, binding, judged, unseen
from fluidq._certificate_requests import REQUESTS, SEEDS, Requested, on_requests
from fluidq._certificate_text import text
from fluidq._certificate_verdict import HOLDS as HOLDS
from fluidq._certificate_verdict import NOT_BETTER as NOT_BETTER
from fluidq._certificate_verdict import RELAXED_ONLY as RELAXED_ONLY
from fluidq._certificate_verdict import Replayed, verdict
from fluidq._errors import InputError, refuse
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies.facts import Facts, facts
from fluidq.simulate import Load, Run, load_of, simulate
from fluidq.tune import TuneResult
from fluidq.units import format

VERDICTS = (HOLDS, RELAXED_ONLY, NOT_BETTER)


@dataclass(frozen=True)
class Certificate:
    """What judged a tuned policy, and the verdict; `str()` is the page for people, `to_dict()` that for machines.

    Attributes:
        verdict, reasons: one of `VERDICTS`, and why.
        tuning: hard runs on the tuning workload, "before" and "after": parts of the cost [GPU-hours], attainment.
        unseen: the unseen draws in pairs. requests: whole requests, or None with `not_replayed` saying why.
        bound_before, bound_after: clairvoyant bounds of the two fleets [GPU-hours], None with `no_bound` saying why.
        gradient: the check against differences. search: estimator, health, runs.
        facts: closed-form facts of the tuned policy, or None where it cannot state them.
        binding: constraints that the tuned policy meets. at_bounds: parameters at an end of their range.
        attainment: what the search asked for, or None.
    """

    verdict: str
    reasons: tuple[str, ...]
    tuning: dict[str, dict[str, float]]
    unseen: Paired
    requests: Requested | None
    not_replayed: str
    bound_before: float | None
    bound_after: float | None
    no_bound: str
    gradient: dict[str, Any]
    search: dict[str, Any]
    facts: Facts | None
    binding: tuple[dict[str, Any], ...]
    at_bounds: tuple[str, ...]
    attainment: float | None

    @property
    def holds(self) -> bool:
        """Whether the verdict is `HOLDS`."""
        return self.verdict == HOLDS

    @property
    def bound_ratio_before(self) -> float | None:
        """Hard cost of the given policy on the tuning workload over the clairvoyant bound, >= 1; None without one.

        It is the whole cost also where the search asked for an attainment: the bound knows the prices only.
        """
        return _over(self.tuning["before"]["cost"], self.bound_before)

    @property
    def bound_ratio_after(self) -> float | None:
        """The same of the tuned policy."""
        return _over(self.tuning["after"]["cost"], self.bound_after)

    @property
    def stability(self) -> dict[str, Any]:
        """D18's gain against its limit; a law without a gain says so. A share of the limit above 1 oscillates."""
        f = self.facts
        if f is None:
            return {"known": False, "text": "the law does not state its closed-form facts"}
        out = {"known": True, "gain_per_s": f.gain, "gain_limit_per_s": f.gain_limit, "delay_margin_s": f.delay_margin}
        out["used"] = None if f.gain is None else f.limits["stability"]
        out["stable"] = None if f.gain is None else f.limits["stability"] <= 1
        if f.gain is None:
            out["text"] = "no gain: a relay or an incremental law, D18 does not apply; it cycles (D17)"
        elif f.gain == 0:
            out["text"] = "gain 0: feed-forward, it looks at no stock and cannot oscillate"
        else:
            word = "stable" if out["stable"] else "unstable"
            margin = f"delay margin {f.delay_margin:.3g} s"
            out["text"] = f"{word}: gain {f.gain:.3g}/s of at most {f.gain_limit:.3g}/s, {margin} (D18)"
        return _safe(out)

    @property
    def reaction(self) -> dict[str, Any]:
        """The reaction budget, R = T_det + tau against (C - Q0)/delta and Q0/delta (D14): `slack_s` is what is left.

        `slack_s` is null where it has no end: nothing fills or drains the buffer, or the law never reacts; see `text`.
        """
        f = self.facts
        if f is None:
            return {"known": False, "text": "the law does not state its closed-form facts"}
        there = min(f.time_to_full, f.time_to_empty)
        slack = math.inf if math.isinf(there) else there - f.reaction
        out = {
            "known": True,
            "detection_s": f.detection,
            "cold_start_s": f.cold_start,
            "reaction_s": f.reaction,
            "time_to_full_s": f.time_to_full,
            "time_to_empty_s": f.time_to_empty,
            "slack_s": slack,
            "within": slack >= 0,
        }
        if slack == math.inf:
            out["text"] = "no end of slack: nothing in this workload fills or drains the buffer in a reaction time"
        elif slack == -math.inf:
            out["text"] = f"the law never reacts; the buffer lasts {format(there, 'seconds')}"
        else:
            word = "slack" if slack >= 0 else "short by"
            first = "full" if f.time_to_full <= f.time_to_empty else "empty"
            out["text"] = (
                f"{word} {format(abs(slack), 'seconds')}: reaction {format(f.reaction, 'seconds')}, "
                f"the buffer is {first} after {format(there, 'seconds')}"
            )
        return _safe(out)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text for JSON; what is infinite or not there is null."""
        replayed = {
            "replayed": False,
            "why": self.not_replayed,
            "text": f"not replayed on requests: {self.not_replayed}",
        }
        return _safe(
            {
                "verdict": self.verdict,
                "holds": self.holds,
                "reasons": list(self.reasons),
                "unit": "GPU-hours over the workload",
                "bound_ratio_before": self.bound_ratio_before,
                "bound_ratio_after": self.bound_ratio_after,
                "bound": {"before": self.bound_before, "after": self.bound_after, "why_none": self.no_bound},
                "replay": replayed if self.requests is None else self.requests.to_dict(),
                "gradient_check": dict(self.gradient),
                "search": dict(self.search),
                "binding": [dict(b) for b in self.binding],
                "at_bounds": list(self.at_bounds),
                "stability": self.stability,
                "reaction": self.reaction,
                "unseen": self.unseen.to_dict(),
                "tuning": {name: dict(parts) for name, parts in self.tuning.items()},
                "attainment_wanted": self.attainment,
            }
        )

    def __str__(self) -> str:
        return text(self)


def certify(
    result: TuneResult,
    *,
    replay: int | Requested | None = REQUESTS,
    seeds: int = SEEDS,
    bound: bool | float = True,
    progress: bool = True,
) -> Certificate:
    """Judge a tuned policy against the given one; the rules of the verdict are those of this module.

    Arguments:
        result: of `fluidq.tune`.
        replay: requests to serve in whole, over both policies and all seeds: the sample is cut to them (the default
            takes about ten seconds). 0 or None leaves it out. A replay that is there already is taken as it is.
        seeds: realisations of the sample, at least 2.
        bound: whether to compute the clairvoyant bound, beside the replays; or that of the fleet and the workloads, if
            it is known already [GPU-hours].
        progress: a bar, on a terminal.

    Raises InputError for a result without its fleet, workload or space, and for numbers that cannot be.
    """
    if not isinstance(replay, Requested | None) and replay < 0:
        raise refuse("replay", replay, "a number of requests >= 0")
    if seeds < 2:
        raise refuse("seeds", seeds, "at least 2: one realisation has no interval")
    case = judged(result)
    (before, after), fleets, workload, objective, settings = *case[:4], case.settings
    loads = [load_of(w, fleets[0].interval) for w in (workload, *result.also)]
    every = [[simulate(f, load, p, objective) for load in loads] for f, p in zip(fleets, (before, after), strict=True)]
    runs = every[0][0], every[1][0]
    tuning = {name: _parts(of) for name, of in zip(("before", "after"), every, strict=True)}
    pool = ThreadPoolExecutor(1)
    bounding = pool.submit(_bounds, fleets, loads, objective, bound)
    known = _facts(after, fleets[1], workload)

    same = _equal((before, fleets[0]), (after, fleets[1]))
    requests, why = None, ""
    if isinstance(replay, Requested):
        requests = replay
    elif not replay:
        why = "left out"
    elif same:
        why = "the policy is the given one"
    else:
        reaction = float(fleets[1].cold_start) + float(fleets[1].interval) if known is None else known.reaction
        given = {"reaction": reaction, "most": replay, "seeds": seeds, "seed": settings.seed, "progress": progress}
        got = on_requests(fleets, (before, after), runs, workload, objective, **given)
        requests, why = (None, got) if isinstance(got, str) else (got, "")

    pairs = unseen(case)
    said, reasons = verdict(
        _replayed(tuning["before"], settings.attainment),
        _replayed(tuning["after"], settings.attainment),
        pairs,
        result.relaxed,
        requests,
        attainment=settings.attainment,
        hard_start=result.judged[0][1] if settings.share < 1 and settings.attainment is None else None,
        same=same,
    )
    bounds, no_bound = bounding.result()
    pool.shutdown()
    return Certificate(
        verdict=said,
        reasons=tuple(reasons),
        tuning=tuning,
        unseen=pairs,
        requests=requests,
        not_replayed=why,
        bound_before=bounds[0],
        bound_after=bounds[1],
        no_bound=no_bound,
        gradient={"max_relative_error": float(result.gradient_check.max_relative_error), "at": "the start"},
        search=_search(result),
        facts=known,
        binding=tuple(binding(after, fleets[1], runs[1], known, settings.attainment)),
        at_bounds=case.space.at_bounds(jnp.asarray(case.coordinates)),
        attainment=settings.attainment,
    )


def _parts(runs: Sequence[Run]) -> dict[str, float]:
    """Costs and actions over all workloads, and the attainment of all their requests together."""
    names = ("cost", "gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "actions")
    out = {name: sum(float(getattr(run.cost, name)) for run in runs) for name in names}
    out["churn"] = out.pop("actions")
    arrived = sum(float(run.arrived) for run in runs)
    within = sum(float(run.attained) * float(run.arrived) for run in runs)
    share = within / arrived if arrived else 1.0
    return out | {"slo_attainment": share, "actions": sum(float(run.actions) for run in runs)}


def _replayed(parts: dict[str, float], attainment: float | None) -> Replayed:
    merit = parts["cost"] if attainment is None else parts["gpu_hours"] + parts["churn"]
    return Replayed(merit, parts["slo_attainment"])


def _facts(policy: Any, fleet: Fleet, workload: Any) -> Facts | None:
    try:
        return facts(policy, fleet, workload)
    except InputError:
        return None


def _equal(one: Any, other: Any) -> bool:
    """Whether two policies with their fleets are the same numbers."""
    a, b = jax.tree.flatten(one), jax.tree.flatten(other)
    return a[1] == b[1] and all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(a[0], b[0], strict=True))


def _bounds(
    fleets: tuple[Fleet, Fleet], loads: Sequence[Load], objective: Objective, wanted: bool | float
) -> tuple[tuple[float | None, float | None], str]:
    """The clairvoyant bound of each fleet over all workloads; one where they are equal."""
    from fluidq.clairvoyant import clairvoyant

    if wanted is False:
        return (None, None), "left out"
    same = _equal(*fleets)
    try:
        if wanted is True:
            first = sum(clairvoyant(fleets[0], load, objective, progress=False).value for load in loads)
        else:
            first = float(wanted)
        if same:
            return (first, first), ""
        return (first, sum(clairvoyant(fleets[1], load, objective, progress=False).value for load in loads)), ""
    except InputError as error:
        return (None, None), str(error).rstrip(".")


def _search(result: TuneResult) -> dict[str, Any]:
    not_taken = [line for line in result.health if "step not taken" in line]
    return {
        "estimator": result.estimator,
        "why": result.why,
        "steps": len(result.history),
        "starts": result.settings.starts,
        "runs": result.runs,
        "steps_not_taken": len(not_taken),
        "exploded": sum("exploded" in line for line in not_taken),
        "first_finding": result.health[0] if result.health else "",
        "stopped_early_after": result.stopped,
    }


def _over(cost: float, bound: float | None) -> float | None:
    """The ratio; None without a bound, or where it is 0 to rounding."""
    return cost / bound if bound is not None and bound > 1e-9 * cost and math.isfinite(cost) else None


def _safe(value: Any) -> Any:
    """The same with null for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _safe(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(x) for x in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
