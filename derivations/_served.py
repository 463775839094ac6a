"""Served work of two pools over a schedule, exactly: constant rates, a buffer, and what is idle at its ends."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Phase:
    """For `duration`, pools of n_P and n_D GPUs at works t_P and t_D per request; `hold` stops whichever pool is
    faster at that level, None lets the level run to the ends."""

    duration: Fraction
    n_P: int
    n_D: int
    t_P: Fraction
    t_D: Fraction
    hold: Fraction | None = None


@dataclass(frozen=True)
class Served:
    """Busy GPU time over all, the time-average of |delta|/P at the ends, flow lost and offered, the last level."""

    share: Fraction
    stranded: Fraction
    lost: Fraction
    offered: Fraction
    level: Fraction


def served(phases: Iterable[Phase], gpus: int, capacity: Fraction, level: Fraction) -> Served:
    """Level and capacity in requests. In a phase the level is monotone: it runs to a stop, then rests there."""
    busy = stranded = lost = offered = total = Fraction(0)
    for p in phases:
        made, taken = Fraction(p.n_P) / p.t_P, Fraction(p.n_D) / p.t_D
        drift = made - taken
        stop = capacity if drift > 0 else Fraction(0)
        held = p.hold is not None and (p.hold >= level if drift > 0 else p.hold <= level)
        if held and p.hold is not None:
            stop = p.hold
        moving = min(p.duration, abs(stop - level) / abs(drift)) if drift else p.duration
        resting = p.duration - moving
        matched = min(made, taken)  # at rest the faster pool keeps to the slower
        busy += moving * (p.n_P + p.n_D) + resting * matched * (p.t_P + p.t_D)
        level += moving * drift
        total += p.duration
        offered += p.duration * made
        if not held:
            stranded += resting * abs(drift) / made
            lost += resting * abs(drift)
    return Served(busy / (gpus * total), stranded / total, lost, offered, level)


def rounded(gpus: int, t_P: Fraction, t_D: Fraction) -> tuple[int, int, Fraction]:
    """The best split of unit workers for a mix (more prefill at a tie), and the share of the work that it keeps."""
    phi = t_P / (t_P + t_D)

    def kept(n: int) -> Fraction:
        return min(n / (phi * gpus), (gpus - n) / ((1 - phi) * gpus))

    best = max(range(1, gpus), key=lambda n: (kept(n), n))
    return best, gpus - best, kept(best)
