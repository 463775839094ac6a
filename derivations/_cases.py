"""Signs and maxima of rational functions in positive symbols: what SymPy leaves open, `factor` often decides."""

from typing import Any

import sympy as sp

from derivations.functions import plain


def at_least(a: Any, b: Any) -> bool:
    """Whether a >= b is certain for all values of the (positive) symbols; `Max` and `Min` are looked into."""
    if isinstance(b, sp.Min):
        return any(at_least(a, x) for x in b.args)
    if isinstance(a, sp.Max):
        return any(at_least(x, b) for x in a.args)
    if isinstance(b, sp.Max):
        return all(at_least(a, x) for x in b.args)
    if isinstance(a, sp.Min):
        return all(at_least(x, b) for x in a.args)
    return bool(sp.factor(sp.together(a - b)).is_nonnegative)


def decided(expr: Any) -> Any:
    """`expr` with each `Max` and `Min` replaced by the argument that is certainly the largest or the smallest."""
    expr = plain(expr)
    if not expr.has(sp.Max, sp.Min):
        return expr
    args = [decided(a) for a in expr.args]
    if isinstance(expr, sp.Max):
        best = [a for a in args if all(at_least(a, b) for b in args)]
    elif isinstance(expr, sp.Min):
        best = [a for a in args if all(at_least(b, a) for b in args)]
    else:
        best = [expr.func(*args)]
    return best[0] if best else expr.func(*args)


def nonnegative(expr: Any) -> bool:
    """Whether `expr` >= 0 is certain for all values of its (positive) symbols."""
    return at_least(sp.sympify(expr), sp.S.Zero)
