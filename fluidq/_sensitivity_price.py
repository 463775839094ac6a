"""From three slopes to one price: gradient, relaxed difference, hard difference; which of them, and why."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from fluidq._sensitivity_envelope import Envelope, standard_error
from fluidq._sensitivity_quantities import QUANTITIES, Facts, Span
from fluidq._sensitivity_types import UNIT, Price
from fluidq.fleet import Fleet
from fluidq.health import MOST_EXCESS

# Gradient and difference agree within this share and so many standard errors.
AGREES, ERRORS = 0.25, 2.0
# A change of the cost below this share of it is rounding.
NOTHING = 1e-10


class Found(NamedTuple):
    """Worth of one unit on each draw by the three ways, and the cost per day."""

    slope: Float64[np.ndarray, " draws"] | None
    relaxed: Float64[np.ndarray, " draws"]
    hard: Float64[np.ndarray, " draws"]
    cost: float


def price_of(
    name: str, span: Span, found: Found, fleet: Fleet, facts: Facts, check: Envelope | None, width: float
) -> tuple[Price, list[str]]:
    """The price of the better of the two ways, and what is wrong with the gradient."""
    quantity = QUANTITIES[name]
    rounding = NOTHING * found.cost / (span.high - span.low)
    g, g_error = (None, None) if found.slope is None else _mean(found.slope)
    r, r_error = _mean(found.relaxed)
    d, d_error = _mean(found.hard)
    d = 0.0 if np.max(np.abs(found.hard)) <= rounding else d
    bad = [] if g is None else _defects(quantity.label, found, r, d, max(r_error or 0.0, d_error or 0.0) + rounding)
    agrees, by, why = _choose(g, g_error, r, r_error, d, d_error, rounding, bool(bad), span, width)
    worth, error = (d, d_error) if by == "difference" or g is None else (g, g_error)
    note = quantity.zero(fleet, facts) if worth == 0 else _note(name, span, facts, worth, error)
    finite = g is not None and bool(np.isfinite(g))
    price = Price(
        name=name,
        label=quantity.label,
        per=quantity.per,
        worth=worth,
        error=error,
        by=by,
        why=why,
        gradient=g if finite else None,
        gradient_error=g_error if finite else None,
        relaxed=r,
        relaxed_error=r_error,
        difference=d,
        difference_error=d_error,
        low=span.low,
        high=span.high,
        side=span.side,
        agrees=agrees,
        note=note,
        envelope=check,
    )
    return price, bad


def _defects(label: str, found: Found, relaxed: float, hard: float, slack: float) -> list[str]:
    """The gradient is not finite, or explodes on some draws: ten times what the same law does over the difference."""
    assert found.slope is not None
    if not np.all(np.isfinite(found.slope)):
        return [f"{label}: the gradient is not finite: a division or a logarithm at 0 on the way."]
    bound = MOST_EXCESS * (max(abs(relaxed), abs(hard)) + 2 * ERRORS * slack)
    draws = int(np.sum(np.abs(found.slope) > bound))
    if draws == 0:
        return []
    worst = float(found.slope[np.argmax(np.abs(found.slope))])
    return [
        f"{label}: the gradient explodes on {draws} of {found.slope.size} draws, up to {worst:.3g} {UNIT} per unit "
        f"against {relaxed:.3g} by a difference of the same relaxed law: the slope of one path, amplified by the loop."
    ]


def _note(name: str, span: Span, facts: Facts, worth: float, error: float | None) -> str:
    """What to know of a price that is not 0."""
    said = [span.words]
    if name in ("nic", "fabric") and facts.links_free:
        said.append("it never holds a flow back on this load, only delays the first token")
    if name == "buffer":
        filled = sum(float(run.full) > 0 for run in facts.runs)
        said.append(f"the buffer fills at all on {filled} of {len(facts.runs)} draws")
    if error is not None and abs(worth) <= ERRORS * error:
        said.append("not told from 0 within its error")
    return "; ".join(filter(None, said))


def _choose(
    g: float | None,
    g_error: float | None,
    r: float,
    r_error: float | None,
    d: float,
    d_error: float | None,
    rounding: float,
    bad: bool,
    span: Span,
    width: float,
) -> tuple[bool | None, str, str]:
    """Whether the two agree, which one is the price, and why in words."""
    if g is None:
        return None, "difference", "the gradient is not there"
    if bad:
        return False, "difference", "the gradient is of no use, see below"
    if _near(g, d, g_error, d_error, rounding):
        if (g_error or 0.0) < (d_error or 0.0):
            sure = abs(d) > ERRORS * (d_error or 0.0)
            more = "" if sure else f"; the difference, {_with(d, d_error)}, alone cannot tell its sign"
            return True, "gradient", f"both agree within their errors and the gradient's is smaller{more}"
        if (g_error or 0.0) > AGREES * abs(d) + ERRORS * (d_error or 0.0) + rounding:
            return None, "difference", f"the gradient, {_with(g, g_error)}, is too uncertain to tell"
        return True, "difference", "both agree, and the difference is of the hard law itself"
    said = f"gradient {_with(g, g_error)} and difference {_with(d, d_error)} disagree: "
    if _near(g, r, g_error, r_error, rounding):
        said += f"the law relaxed by {width:g} has another slope than the hard law, which is what is paid for"
    else:
        said += (
            f"the slope at the point is not that of steps of {span.high:.3g}, which the relaxed law puts at "
            f"{_with(r, r_error)}; the difference of the hard law counts"
        )
    return False, "difference", said


def _near(a: float, b: float, a_error: float | None, b_error: float | None, rounding: float) -> bool:
    error = float(np.hypot(a_error or 0.0, b_error or 0.0))
    return abs(a - b) <= AGREES * max(abs(a), abs(b)) + ERRORS * error + rounding


def no_price(name: str, words: str) -> Price:
    """A quantity that cannot be had more of, or has no limit: worth 0, for the reason given."""
    q = QUANTITIES[name]
    fields: dict[str, Any] = {key: None for key in ("error", "gradient", "gradient_error", "relaxed", "relaxed_error")}
    fields |= {"difference": 0.0, "difference_error": None, "low": 0.0, "high": 0.0, "side": "none", "agrees": None}
    return Price(name, q.label, q.per, 0.0, by="-", why="there is nothing to move", note=words, **fields)


def _mean(values: Float64[np.ndarray, " draws"]) -> tuple[float, float | None]:
    return float(np.mean(values)), standard_error(values)


def _with(value: float, error: float | None) -> str:
    return f"{value:.3g}" if error is None else f"{value:.3g} +- {error:.2g}"
