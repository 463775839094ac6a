"""What `fluidq.sensitivity` returns: prices, how they were found, and how they read."""

from dataclasses import dataclass, field
from typing import Any

from fluidq._sensitivity_envelope import Envelope

UNIT = "GPU-hours/day"


@dataclass(frozen=True)
class Price:
    """What one unit of a quantity is worth.

    Attributes:
        name, label, per: the quantity, and the unit of help that the price is for.
        worth: GPU-hours saved per day by one unit; error: its standard error over the draws, None for one draw.
        by: "gradient" or "difference"; why: why that one, with what the other says where they disagree.
        gradient, gradient_error: slope of the relaxed law, path-wise; None where the policy cannot be traced.
        relaxed, relaxed_error: finite difference of the relaxed law, same points as `difference`.
        difference, difference_error: finite difference of the hard law with common random numbers.
        low, high: its two points in units of help; side: both sides, or the side that helps.
        agrees: whether gradient and difference agree; None where there is only one, or the gradient is too uncertain.
        note: why the price is 0, and which side it is of; "" where there is nothing to say.
        envelope: the check by re-tuning; None where none was made.
    """

    name: str
    label: str
    per: str
    worth: float
    error: float | None
    by: str
    why: str
    gradient: float | None
    gradient_error: float | None
    relaxed: float | None
    relaxed_error: float | None
    difference: float
    difference_error: float | None
    low: float
    high: float
    side: str
    agrees: bool | None
    note: str = ""
    envelope: Envelope | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, ready for JSON."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "envelope"}
        return out | {"envelope": None if self.envelope is None else self.envelope.to_dict()}


@dataclass(frozen=True)
class Sensitivity:
    """Shadow prices at one policy, on one load and further draws of it.

    `prices` by name; `cost`, `cost_error` the hard cost [GPU-hours/day], mean over the `draws`; `width` of the relaxed
    law; `health` what is wrong with gradients, in words.
    """

    prices: dict[str, Price]
    cost: float
    cost_error: float | None
    draws: int
    width: float
    health: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Price:
        return self.prices[name]

    @property
    def at_optimum(self) -> bool | None:
        """Whether the envelope check holds wherever it was made; None where that cannot be told, or none was made."""
        checks = [price.envelope.holds for price in self.prices.values() if price.envelope is not None]
        if False in checks:
            return False
        return True if checks and None not in checks else None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, ready for JSON."""
        return {
            "unit": UNIT,
            "cost": self.cost,
            "cost_error": self.cost_error,
            "draws": self.draws,
            "width": self.width,
            "prices": {name: price.to_dict() for name, price in self.prices.items()},
            "at_optimum": self.at_optimum,
            "health": list(self.health),
        }

    def __str__(self) -> str:
        draws = "1 draw" if self.draws == 1 else f"{self.draws} draws"
        lines = [
            f"cost {self.cost:.5g}{_error(self.cost_error)} {UNIT}, mean of {draws} of the load",
            "",
            f"{'one unit of':<19}{'is':<10}{f'worth [{UNIT}]':>22}{'+-':>10}  {'by':<12}{'re-tuned':>10}  envelope",
        ]
        notes = []
        for price in self.prices.values():
            lines.append(_row(price))
            said = [price.note, price.why if price.worth != 0 or price.agrees is False else ""]
            if price.envelope is not None and price.envelope.holds is not True:
                said.append(f"envelope theorem {price.envelope.words}")
            notes += [f"{price.label}: {words}." for words in said if words]
        return "\n".join([*lines, "", *notes, *([""] if self.health else []), *self.health])


def _row(price: Price) -> str:
    error = "" if price.error is None else f"{price.error:.2g}"
    check = price.envelope
    retuned = "" if check is None else f"{check.retuned:.4g}"
    ratio = "" if check is None or check.ratio is None else f" (x {check.ratio:.3g})"
    verdict = "" if check is None else {True: "holds", False: "no", None: "unclear"}[check.holds] + ratio
    row = f"{price.label:<19}{price.per:<10}{price.worth:>22.4g}{error:>10}  {price.by:<12}{retuned:>10}  {verdict}"
    return row.rstrip()


def _error(error: float | None) -> str:
    return "" if error is None else f" +- {error:.2g}"
