"""How sums are laid out in every printer: SymPy's order, with the terms that carry a minus sign last (1 - x)."""

from typing import Any

from sympy.printing.latex import LatexPrinter
from sympy.printing.pretty.pretty import PrettyPrinter
from sympy.printing.str import StrPrinter

from derivations.symbols import latex_names


class MinusLast:
    """Mixed into a SymPy printer."""

    def _as_ordered_terms(self, expr: Any, order: Any = None) -> list[Any]:
        return sorted(expr.as_ordered_terms(), key=lambda term: term.could_extract_minus_sign())


class _Latex(MinusLast, LatexPrinter):
    pass


class _Text(MinusLast, StrPrinter):
    pass


class _Pretty(MinusLast, PrettyPrinter):
    def _print_Max(self, expr: Any) -> Any:
        return self._helper_print_function(expr.func, expr.args, func_name="max")

    def _print_Min(self, expr: Any) -> Any:
        return self._helper_print_function(expr.func, expr.args, func_name="min")


def pretty(expr: Any, columns: int) -> str:
    """Two-dimensional Unicode for a terminal."""
    return _Pretty({"use_unicode": True, "num_columns": columns}).doprint(expr)


def latex(expr: Any) -> str:
    """SymPy's LaTeX with the theory's symbols; text as it is."""
    return expr if isinstance(expr, str) else _Latex({"symbol_names": latex_names()}).doprint(expr)


def text(expr: Any) -> str:
    """Plain text with the code names."""
    return _Text().doprint(expr)
