"""A queue between two plans, switched by thresholds with a pure delay: simulated event by event in exact fractions."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Cycle:
    """What the relay does once it repeats: ends of the level, bytes lost at them, time in surplus, period."""

    lowest: Fraction
    highest: Fraction
    lost: Fraction
    surplus_time: Fraction
    period: Fraction


def relay(up: Fraction, down: Fraction, low: Fraction, high: Fraction, delay: Fraction, capacity: Fraction) -> Cycle:
    """Level rises at `up` until `delay` after it met `high`, then falls at `down` until `delay` after `low`.

    Starts at `low` in surplus; the first cycle is run through and the second reported. 0 <= low <= high <= capacity.
    """
    level, clock, surplus = low, Fraction(0), True
    landing: Fraction | None = None
    switched: list[Fraction] = []
    lowest, highest, lost, in_surplus = level, level, Fraction(0), Fraction(0)
    while len(switched) < 4:
        speed = up if surplus else -down
        if landing is None:
            target = high if surplus else low
            ahead = target - level if surplus else level - target
            wait = max(ahead, Fraction(0)) / abs(speed)
        else:
            wait = landing - clock
        moved = level + speed * wait
        reported = len(switched) >= 2
        level = min(max(moved, Fraction(0)), capacity)
        clock += wait
        if reported:
            lost += abs(moved - level)
            in_surplus += wait if surplus else 0
            lowest, highest = min(lowest, level), max(highest, level)
        if landing is None:
            landing = clock + delay
        else:
            landing, surplus = None, not surplus
            switched.append(clock)
            if len(switched) == 2:
                lowest = highest = level
    return Cycle(lowest, highest, lost, in_surplus, switched[3] - switched[1])
