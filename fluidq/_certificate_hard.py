"""Hard integer replay for a certificate: unseen draws in pairs, and what limits the tuned policy while it runs."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fluidq._errors import refuse
from fluidq._merit import ATTAINED, COST, PAID
from fluidq._replay_run import Estimate
from fluidq._rows import Rows
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies import Policy
from fluidq.policies.facts import Facts
from fluidq.simulate import Run, load_of
from fluidq.space import Space
from fluidq.tune import Settings, TuneResult, stack
from fluidq.workload import Workload

CONFIDENCE = 0.95
# Resamples of the draws, where the risk is that of the worst share and no t interval holds.
RESAMPLES = 4000
# The attainment is at its limit where less than this share of what may be missed is left.
NEAR = 0.1


@dataclass(frozen=True)
class Paired:
    """The same unseen draws under the policy before and after.

    Attributes:
        before, after: means of cost, paid (GPU-hours and actions as priced) and attainment over the draws.
        difference: after minus before of what the search ranks by (the cost; what is paid where an attainment is
            asked for), with the interval's ends, infinite for a single draw.
        method: of the interval, in words. better: draws on which after is lower. draws: how many.
    """

    before: dict[str, float]
    after: dict[str, float]
    difference: Estimate
    method: str
    better: int
    draws: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; an end that a single draw leaves open is null."""
        finite = lambda x: x if math.isfinite(x) else None  # noqa: E731
        d = self.difference
        return {
            "draws": self.draws,
            "before": dict(self.before),
            "after": dict(self.after),
            "difference": {"mean": finite(d.mean), "low": finite(d.low), "high": finite(d.high)},
            "confidence": CONFIDENCE,
            "method": self.method,
            "better_on": self.better,
        }


class Judged(NamedTuple):
    """What is judged, all of it there: policies and fleets as (before, after)."""

    policies: tuple[Policy, Policy]
    fleets: tuple[Fleet, Fleet]
    workload: Workload
    objective: Objective
    space: Space
    coordinates: np.ndarray
    settings: Settings


def judged(result: TuneResult) -> Judged:
    """The parts of a result. Raises InputError for one that lacks any."""
    r = result
    parts = {"fleet_before": r.fleet_before, "fleet_after": r.fleet_after, "workload": r.workload}
    parts |= {"objective": r.objective, "space": r.space, "coordinates": r.coordinates}
    for name, value in parts.items():
        if value is None:
            raise refuse(f"result.{name}", None, "that of the search: certify what `fluidq.tune` returns")
    before, after, *rest = parts.values()
    return Judged((r.before, r.after), (before, after), *rest, r.settings)  # type: ignore[arg-type]


def unseen(case: Judged) -> Paired:
    """Both policies on the draws that the search kept back, hard law."""
    s, interval = case.settings, case.fleets[0].interval
    seeds = np.random.SeedSequence(s.seed).generate_state(s.realisations + s.unseen)[s.realisations :]
    loads = stack([load_of(case.workload.reseeded(int(seed)), interval) for seed in seeds])
    rows = Rows(case.space, loads, case.objective)
    before, after = (rows.of(policy, fleet) for policy, fleet in zip(case.policies, case.fleets, strict=True))
    kind = COST if s.attainment is None else PAID
    return paired(before, after, kind, s.share, s.seed)


def paired(before: np.ndarray, after: np.ndarray, kind: int, share: float = 1.0, seed: int = 0) -> Paired:
    """Paired outcomes (draws, outcomes). The interval is Student's t; a bootstrap where the worst `share` counts."""
    change = after[:, kind] - before[:, kind]
    if share == 1.0 or len(change) == 1:
        difference = Estimate.of(change.tolist(), CONFIDENCE)
        method = "Student's t on the paired differences"
    else:
        picks = np.random.default_rng([seed, 2]).integers(len(change), size=(RESAMPLES, len(change)))
        resampled = _worst(after[:, kind][picks], share) - _worst(before[:, kind][picks], share)
        ends = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        whole = _worst(after[None, :, kind], share)[0] - _worst(before[None, :, kind], share)[0]
        difference = Estimate(float(whole), float(ends[0]), float(ends[1]), tuple(change.tolist()))
        method = f"paired bootstrap ({RESAMPLES:,} resamples) of the mean over the worst {share:.0%}"
    means = [
        {"cost": float(x[COST]), "paid": float(x[PAID]), "attainment": float(x[ATTAINED])}
        for x in (before.mean(axis=0), after.mean(axis=0))
    ]
    return Paired(means[0], means[1], difference, method, int(np.sum(change < 0)), len(change))


def _worst(values: np.ndarray, share: float) -> np.ndarray:
    """Mean of the worst `share` of each row."""
    room = share * values.shape[1]
    weights = np.clip(room - np.arange(values.shape[1]), 0.0, 1.0) / room
    return np.sort(values, axis=1)[:, ::-1] @ weights


def binding(policy: Policy, fleet: Fleet, run: Run, facts: Facts | None, attainment: float | None) -> list[dict]:
    """The constraints that the hard run on the tuning workload meets, each with its share of the time, or of the limit.

    A constraint counts where it is met on any tick: the budget where no further worker of the larger kind fits.
    """
    t = run.trajectory
    assert t is not None
    sizes = [float(g) for g in fleet.per_worker]
    asked = np.asarray(t.requested_gpus)
    small = 1e-9 * float(fleet.budget)
    out = []

    def over_time(name: str, met: np.ndarray, words: str) -> None:
        share = float(np.mean(met))
        if share > 0:
            out.append({"name": name, "share_of_time": share, "used": None, "text": f"{words} {_percent(share)}"})

    def used(name: str, value: float, words: str) -> None:
        finite = value if math.isfinite(value) else None
        out.append({"name": name, "share_of_time": None, "used": finite, "text": words})

    over_time(
        "gpu budget",
        float(fleet.budget) - asked < max(sizes) - small,
        f"the budget of {float(fleet.budget):g} GPUs is reached",
    )
    over_time("buffer", np.asarray(t.buffer_bytes) >= np.asarray(t.buffer_room) * (1 - 1e-12), "the buffer is full")
    over_time("batch", np.asarray(t.idle_slots) <= 1e-9 * float(fleet.plant.batch), "decode has no free slot")
    for pool, ready, size in zip(("prefill", "decode"), (t.prefill_gpus, t.decode_gpus), sizes, strict=True):
        workers = np.asarray(ready) / size
        over_time(
            f"min workers, {pool}",
            workers <= float(fleet.min_workers) + 1e-9,
            f"{pool} is at the fleet's least workers",
        )
        law = getattr(policy, pool, None)
        low, high = getattr(law, "min_replicas", None), getattr(law, "max_replicas", None)
        if low is not None and float(low) > float(fleet.min_workers):
            over_time(
                f"min replicas, {pool}", workers <= float(low) + 1e-9, f"{pool} is at min_replicas = {float(low):g}"
            )
        if high is not None:
            most = math.floor(float(high) + 1e-9)
            over_time(f"max replicas, {pool}", workers >= most - 1e-9, f"{pool} is at max_replicas = {most:g}")
    if facts is not None:
        for name, what in (("headroom", "the room of the buffer"), ("stock", "the stock of the buffer")):
            if facts.limits[name] > 1:
                share = f"{facts.limits[name]:.3g} times" if math.isfinite(facts.limits[name]) else "more than any of"
                words = f"the reaction time, {float(fleet.cold_start):g} s of it cold start, takes {share} {what}"
                used(f"cold start, {name}", facts.limits[name], words)
    if attainment is not None:
        spare = float(run.attained) - attainment
        if spare <= NEAR * (1.0 - attainment):
            words = f"SLO attainment {float(run.attained):.2%} against {attainment:.2%} wanted"
            used("attainment", (1.0 - float(run.attained)) / (1.0 - attainment), words)
    return out


def _percent(share: float) -> str:
    return f"{share:.1%} of the time" if share >= 5e-4 else "less than 0.1% of the time"
