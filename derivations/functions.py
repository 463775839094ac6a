"""Three functions for regular forms: they evaluate once the signs are known, and print to one safe JAX call each."""

from typing import Any

import sympy as sp


class Ratio(sp.Function):
    """`Ratio(a, b, empty=0)`: a/b where b > 0, else `empty`; becomes `fluidq._numerics.ratio`."""

    nargs = (2, 3)

    def __new__(cls, a: Any, b: Any, empty: Any = 0, **options: Any) -> Any:
        return super().__new__(cls, a, b, empty, **options)

    @classmethod
    def eval(cls, a: Any, b: Any, empty: Any) -> Any:  # type: ignore[override]
        if b.is_positive:
            return a / b
        if b.is_nonpositive:
            return empty
        return None

    def fdiff(self, argindex: int = 1) -> Any:
        a, b, _ = tuple[Any, Any, Any](self.args)
        return (Ratio(1, b, 0), -Ratio(a, b**2, 0), sp.S.Zero)[argindex - 1]

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        return _power(exp, rf"\frac{{{printer._print(self.args[0])}}}{{{printer._print(self.args[1])}}}")


class Most(sp.Function):
    """`Most(a, b)`: the larger; at a tie the derivative is that of `a` (SymPy's own `Max` sorts its arguments)."""

    nargs = 2

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:  # type: ignore[override]
        gap = a - b
        return a if gap.is_nonnegative else b if gap.is_negative else None

    def doit(self, **hints: Any) -> Any:
        return sp.Max(*(a.doit(**hints) for a in self.args))

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        return _power(exp, rf"\max\left({printer._print(self.args[0])}, {printer._print(self.args[1])}\right)")


class Least(sp.Function):
    """`Least(a, b)`: the smaller; at a tie the derivative is that of `a`."""

    nargs = 2

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:  # type: ignore[override]
        gap = a - b
        return a if gap.is_nonpositive else b if gap.is_positive else None

    def doit(self, **hints: Any) -> Any:
        return sp.Min(*(a.doit(**hints) for a in self.args))

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        return _power(exp, rf"\min\left({printer._print(self.args[0])}, {printer._print(self.args[1])}\right)")


def _power(exp: str | None, latex: str) -> str:
    return latex if exp is None else rf"\left({latex}\right)^{{{exp}}}"


def plain(expr: Any) -> Any:
    """`expr` with `Ratio`, `Most` and `Least` written as SymPy's own division, `Max` and `Min`."""
    expr = expr.replace(Ratio, lambda a, b, _: a / b)
    return expr.replace(Most, sp.Max).replace(Least, sp.Min)
