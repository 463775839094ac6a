"""The envelope theorem as a check: at an optimum, re-tuning after a small change buys nothing to first order.

V(p) = min over policies of J(policy, p);   dV/dp = (partial J / partial p) at the best policy, where it is one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

# The two derivatives agree within this share and so many standard errors; a gain above this share of the cost says
# that the policy could be better as it is.
AGREES, ERRORS, MOST_GAIN = 0.1, 2.0, 0.01


@dataclass(frozen=True)
class Envelope:
    """The price with the policy held, against the price with the policy re-tuned at both points.

    Attributes:
        held, retuned: worth of one unit [GPU-hours/day], with the same step and the same draws.
        error: standard error of their difference over the draws (None for one draw); the search has its own noise.
        gain: what re-tuning saves at the two points, their mean [GPU-hours/day]; gain_error its standard error.
        holds: whether the two agree, and re-tuning gains less than 1 % of the cost, each within its error; None where
            the error is too large to tell.
        words: the finding.
    """

    held: float
    retuned: float
    error: float | None
    gain: float
    gain_error: float | None
    holds: bool | None
    words: str

    @property
    def ratio(self) -> float | None:
        """Re-tuned over held price; None where the held one is 0."""
        return None if self.held == 0 else self.retuned / self.held

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, ready for JSON."""
        names = ("held", "retuned", "error", "gain", "gain_error", "holds", "words")
        return {name: getattr(self, name) for name in names} | {"ratio": self.ratio}


def envelope(
    cost: Callable[[Any, float], Float64[np.ndarray, " draws"]],
    policy: Any,
    retune: Callable[[float], Any],
    low: float,
    high: float,
    *,
    others: Sequence[Any] = (),
    tolerance: float = AGREES,
) -> Envelope:
    """Check the envelope theorem between the moves `low` and `high`.

    V at either move is the least mean cost over the same few policies: the given one, `others`, and what re-tuning
    finds at the two moves. A search that is luckier at one end than at the other then says nothing, for what it finds
    is tried at both.

    Arguments:
        cost: (policy, move) to the cost on each draw [GPU-hours/day], the same draws every time.
        policy: the one that is thought to be best. retune: move to the best policy there.
        low, high: two moves, high > low, in units of help.
        others: further policies to try. tolerance: relative, on the two prices.
    """
    span = high - low
    moves = (low, high)
    tried = [policy, *others, *(retune(x) for x in moves)]
    costs = [[cost(one, x) for one in tried] for x in moves]
    held = [row[0] for row in costs]
    best = [row[int(np.argmin([np.mean(c) for c in row]))] for row in costs]
    gains = [h - b for h, b in zip(held, best, strict=True)]
    price_held = float(np.mean(held[0] - held[1])) / span
    price_best = float(np.mean(best[0] - best[1])) / span
    gain = float(np.mean(gains[0] + gains[1])) / 2
    error = standard_error((gains[1] - gains[0]) / span)
    gain_error = standard_error((gains[0] + gains[1]) / 2)
    level = float(np.mean(held[0] + held[1])) / 2
    holds, words = _verdict(price_held, price_best, error, gain, gain_error, level, tolerance)
    return Envelope(price_held, price_best, error, gain, gain_error, holds, words)


def _verdict(
    held: float,
    best: float,
    error: float | None,
    gain: float,
    gain_error: float | None,
    level: float,
    tolerance: float,
) -> tuple[bool | None, str]:
    saved = f"re-tuning saves {gain:.4g} GPU-hours/day ({gain / level:.2%} of the cost)" if level else ""
    if gain > MOST_GAIN * abs(level) + ERRORS * (gain_error or 0.0):
        return False, f"does not hold: {saved}, so the policy is not at an optimum"
    apart = abs(best - held)
    if apart <= tolerance * max(abs(held), abs(best)):
        return True, "holds"
    if apart <= ERRORS * (error or 0.0):
        return None, f"cannot be told: the prices differ by {apart:.2g} with a standard error of {error:.2g}"
    return False, f"does not hold: the policy is not at an optimum for this direction ({saved})"


def standard_error(values: Float64[np.ndarray, " draws"]) -> float | None:
    """Of the mean of independent draws; None for a single one."""
    return None if values.size < 2 else float(np.std(values, ddof=1)) / math.sqrt(values.size)
