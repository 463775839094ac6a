"""Dimensions as exponent vectors: just enough to see that a formula adds seconds to seconds.

A unit is written as text, `"tok/s/GPU"`, each `/` reaching to the next `*` or `/`. A sequence is a request in service,
so `seq` and `req` are one dimension. Scale is not kept: everything is in SI, bytes and tokens.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp

from derivations.functions import Least, Most, Ratio

DIMENSIONS = {"tok": "tok", "B": "B", "s": "s", "req": "req", "seq": "req", "GPU": "GPU", "flop": "flop", "USD": "USD"}


class UnitError(ValueError):
    """A formula whose dimensions do not fit, or a unit that cannot be read."""


@dataclass(frozen=True)
class Unit:
    """A product of powers of the base dimensions; equal when the exponents are."""

    exponents: frozenset[tuple[str, Fraction]] = frozenset()

    def __mul__(self, other: "Unit") -> "Unit":
        powers = dict(self.exponents)
        for name, power in other.exponents:
            powers[name] = powers.get(name, Fraction(0)) + power
        return Unit(frozenset((name, power) for name, power in powers.items() if power))

    def __pow__(self, power: Fraction | int) -> "Unit":
        return Unit(frozenset((name, p * power) for name, p in self.exponents if power))

    def __truediv__(self, other: "Unit") -> "Unit":
        return self * other**-1

    def __str__(self) -> str:
        up = [(n, p) for n, p in sorted(self.exponents) if p > 0]
        down = [(n, -p) for n, p in sorted(self.exponents) if p < 0]
        text = "*".join(n if p == 1 else f"{n}^{p}" for n, p in up) or "1"
        return text + "".join(f"/{n}" if p == 1 else f"/{n}^{p}" for n, p in down)


ONE = Unit()


def parse(text: str) -> Unit:
    """The unit written as `text`.

    >>> str(parse("tok/s/GPU") * parse("B/tok"))
    'B/GPU/s'
    """
    unit, sign = ONE, 1
    for piece in re.split(r"([*/])", text.replace(" ", "")):
        if piece in ("*", "/"):
            sign = 1 if piece == "*" else -1
            continue
        match = re.fullmatch(r"([A-Za-z]+|1)(?:\^(-?\d+(?:/\d+)?))?", piece)
        if match is None or (match[1] != "1" and match[1] not in DIMENSIONS):
            raise UnitError(f"unit {text!r}: {piece!r} is not one of {', '.join(DIMENSIONS)}, 1")
        if match[1] != "1":
            unit *= Unit(frozenset({(DIMENSIONS[match[1]], Fraction(match[2] or 1) * sign)}))
    return unit


def one(text: str) -> Any:
    """The number 1 with a unit, for a formula in which a bare 1 stands for one token, one sequence and so on.

    Use it only in the `dimensional` form of a closed form; `ones_away` turns it back into 1.
    """
    parse(text)
    return sp.Symbol(f"one[{text}]", positive=True)


def ones_away(expr: Any) -> Any:
    """`expr` with every `one(...)` replaced by 1."""
    return expr.subs({s: 1 for s in expr.free_symbols if str(s).startswith("one[")})


def unit_of(expr: Any, units: dict[sp.Symbol, Unit]) -> Unit | None:
    """The unit of `expr`; None for 0 and the infinities, which go with every unit. Raises `UnitError`."""

    def same(parts: tuple[Any, ...], what: str) -> Unit | None:
        found: Unit | None = None
        for part in parts:
            unit = unit_of(part, units)
            if unit is not None and found is not None and unit != found:
                raise UnitError(f"{what} mixes [{found}] and [{unit}] in {expr}")
            found = unit if found is None else found
        return found

    def bare(part: Any) -> None:
        unit = unit_of(part, units)
        if unit not in (None, ONE):
            raise UnitError(f"{part} has the unit [{unit}] where a pure number is needed, in {expr}")

    args: Any = getattr(expr, "args", ())
    if isinstance(expr, sp.Symbol):
        if str(expr).startswith("one["):
            return parse(str(expr)[4:-1])
        if expr not in units:
            raise UnitError(f"{expr} has no unit: make it with symbols.quantity")
        return units[expr]
    if expr in (sp.S.Zero, sp.oo, -sp.oo, sp.nan):
        return None
    if isinstance(expr, sp.Number | sp.NumberSymbol | sp.logic.boolalg.BooleanAtom):
        return ONE
    if isinstance(expr, sp.Mul):
        total = ONE
        for factor in args:
            unit = unit_of(factor, units)
            if unit is None:
                return None
            total *= unit
        return total
    if isinstance(expr, sp.Pow):
        base, power = args
        unit = unit_of(base, units)
        if isinstance(power, sp.Rational):
            return None if unit is None else unit ** Fraction(power.p, power.q)
        bare(base)
        bare(power)
        return ONE
    if isinstance(expr, Ratio):
        over, under = unit_of(args[0], units), unit_of(args[1], units)
        empty = unit_of(args[2], units)
        unit = None if over is None or under is None else over / under
        if unit is not None and empty is not None and unit != empty:
            raise UnitError(f"the value [{empty}] for an empty denominator differs from [{unit}] in {expr}")
        return unit or empty
    if isinstance(expr, sp.Piecewise):
        for _, condition in args:
            unit_of(condition, units)
        return same(tuple(value for value, _ in args), "Piecewise")
    if isinstance(expr, sp.Rel):
        same(args, "comparison")
        return ONE
    if isinstance(expr, sp.logic.boolalg.BooleanFunction):
        for part in args:
            unit_of(part, units)
        return ONE
    if isinstance(expr, sp.Add | sp.Max | sp.Min | Most | Least | sp.Abs | sp.floor | sp.ceiling):
        return same(args, type(expr).__name__)
    if isinstance(expr, sp.Derivative):
        unit = unit_of(expr.expr, units)
        for variable, count in tuple[Any, ...](expr.variable_count):
            over = unit_of(variable, units)
            if unit is not None and over is not None:
                unit /= over ** int(count)
        return unit
    if isinstance(expr, sp.Integral | sp.Sum):
        inner, steps = dict(units), ONE
        for variable, *ends in tuple[Any, ...](expr.limits):
            step = same(tuple(ends), "limits") or units.get(variable, ONE)  # 0 and infinity go with every unit
            inner[variable] = step
            steps *= step
        unit = unit_of(expr.function, inner)
        return unit if unit is None or isinstance(expr, sp.Sum) else unit * steps
    if isinstance(expr, sp.core.function.AppliedUndef):
        raise UnitError(f"{expr}: an undefined function has no unit")
    if isinstance(expr, sp.Function):
        for part in args:
            bare(part)
        return ONE
    raise UnitError(f"no rule for the unit of {type(expr).__name__} in {expr}")
