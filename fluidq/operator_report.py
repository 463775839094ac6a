"""What an operator asks after a bad day: was it the policy, which side was short, and what would have been better.

A policy and a load (a Prometheus export, a trace) go in; out come the replica timeline, the buffer against 0 and C, the
minutes outside the limits and the side that was short in them, the reaction budget against the time to the boundary,
three other laws on the same load, and thresholds tuned for it, with the reason.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fluidq.compare import Comparison, compare
from fluidq.laws import law
from fluidq.policies import Policy, Thresholds
from fluidq.policies.facts import Facts, facts
from fluidq.scenario import Case
from fluidq.simulate import Trajectory
from fluidq.tune import Settings, TuneResult, parameters, tune

ALTERNATIVES = ("balance", "heteroscale", "thresholds", "static")


class Spell(NamedTuple):
    """A stretch of time outside the limits [s since start], and the side that was short in most of it."""

    start: float
    end: float
    side: str


@dataclass(frozen=True)
class Report:
    """What was found. `name` is the policy that ran; the model replays it on the load in its hard form.

    `minutes_lost` is the time with TTFT or TPOT over its limit; `by_side` splits it; `spells` are its stretches.
    """

    case: Case
    name: str
    comparison: Comparison
    facts: Facts
    minutes_lost: dict[str, float]
    by_side: dict[str, float]
    spells: tuple[Spell, ...]
    tuned: TuneResult | None
    notes: tuple[str, ...]

    @property
    def trajectory(self) -> Trajectory:
        """The replay of the policy that ran."""
        found = self.comparison.runs[self.name].trajectory
        assert found is not None
        return found

    def recommendation(self) -> str:
        """The thresholds to set, or the law to take, and why: one paragraph."""
        runs = self.comparison.runs
        own, best = float(runs[self.name].cost.cost), next(iter(runs))
        side = max(self.by_side, key=lambda s: self.by_side[s]) if any(self.by_side.values()) else ""
        words = []
        if side:
            lost = self.minutes_lost[self.name]
            words.append(
                f"{side.capitalize()} was the short side in {self.by_side[side]:.0f} of {lost:.0f} lost minutes."
            )
        used = self.facts.limits[self.facts.binds]
        verdict = "more than there is" if used > 1 else "within what there is"
        words.append(f"The tightest limit of this law is {self.facts.binds}: {used:.2f} of it is used, {verdict}.")
        if best != self.name:
            cost = float(runs[best].cost.cost)
            words.append(f"On this load {best} costs {cost:,.0f} GPU-hours, the present policy {own:,.0f}.")
        if self.tuned is not None:
            after = float(self.tuned.hard_after["cost"])
            values = ", ".join(f"{k} = {v:.4g}" for k, v in parameters(self.tuned.after).items())
            if after < self.tuned.hard_before["cost"]:
                words.append(f"Thresholds tuned for this load cost {after:,.0f}: {values}.")
            else:
                words.append("Tuning found no better thresholds than those given.")
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "policy": self.name,
            "minutes_lost": dict(self.minutes_lost),
            "minutes_lost_by_side": dict(self.by_side),
            "spells": [spell._asdict() for spell in self.spells],
            "facts": self.facts.to_dict(),
            "comparison": self.comparison.to_dict(),
            "recommendation": self.recommendation(),
            "tuned": None if self.tuned is None else parameters(self.tuned.after),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [
            f"Policy      {self.name}",
            f"Lost        {self.minutes_lost[self.name]:.0f} min outside the limits "
            f"({', '.join(f'{side} short in {m:.0f}' for side, m in self.by_side.items())})",
            *(f"            {_clock(s.start)} to {_clock(s.end)}: {s.side} short" for s in self.spells[:5]),
            "",
            str(self.facts),
            "",
            str(self.comparison),
            "",
            f"Recommended {self.recommendation()}",
        ]
        return "\n".join([*lines, *(f"Note        {note}" for note in self.notes)])


def operator_report(
    case: Case,
    policy: Policy,
    name: str = "current",
    *,
    alternatives: tuple[str, ...] = ALTERNATIVES,
    tuning: Settings | None = None,
    notes: tuple[str, ...] = (),
    progress: bool = True,
) -> Report:
    """Replay `policy` on the case's load and put three other laws beside it.

    Arguments: `name` of the policy in tables; `alternatives`, names of `fluidq.laws.LAWS`, of which the first three
    that are another law are taken; `tuning`, settings of the search for thresholds, None to leave it out.
    """
    others = [other for other in alternatives if type(law(other, case.fleet, case.objective)) is not type(policy)][:3]
    laws = {name: policy} | {other: law(other, case.fleet, case.objective) for other in others}
    tuned = None
    if tuning is not None:
        start = policy if isinstance(policy, Thresholds) else case.policy
        tuned = tune(case.fleet, case.workload, start, case.objective, tuning, progress=progress)
        laws["thresholds, tuned"] = tuned.after
    result = compare(case.fleet, case.workload, laws, case.objective, bound=True, progress=progress)
    late = {key: _late(run.trajectory, case) for key, run in result.runs.items()}
    own = result.runs[name].trajectory
    assert own is not None
    sides = _sides(own, case)
    minute = case.fleet.interval / 60.0
    return Report(
        case=case,
        name=name,
        comparison=result,
        facts=facts(policy, case.fleet, case.workload),
        minutes_lost={key: float(np.sum(there)) * minute for key, there in late.items()},
        by_side={side: float(np.sum(late[name] & (sides == side))) * minute for side in ("prefill", "decode")},
        spells=_spells(late[name], sides, case.fleet.interval),
        tuned=tuned,
        notes=notes,
    )


def _late(t: Trajectory | None, case: Case) -> np.ndarray:
    assert t is not None
    return (np.asarray(t.ttft) > float(case.objective.ttft)) | (np.asarray(t.tpot) > float(case.objective.tpot))


def _sides(t: Trajectory, case: Case) -> np.ndarray:
    """Decode is short where a stock waits for it, or its steps are too long; prefill where the wait is its own."""
    waits = np.asarray(t.buffer_bytes) > 1e-3 * np.asarray(t.buffer_room)
    slow = np.asarray(t.tpot) > float(case.objective.tpot)
    return np.where(waits | slow, "decode", "prefill")


def _spells(late: np.ndarray, sides: np.ndarray, dt: float) -> tuple[Spell, ...]:
    """Stretches outside the limits, the longest first."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], late, [False]]).astype(int)))
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        decode = float(np.mean(sides[start:end] == "decode"))
        found.append(Spell(float(start * dt), float(end * dt), "decode" if decode >= 0.5 else "prefill"))
    return tuple(sorted(found, key=lambda spell: spell.start - spell.end))


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60.0)
    return f"{minutes // 60:d}:{minutes % 60:02d} h"
