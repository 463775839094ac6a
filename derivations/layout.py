"""How expressions are laid out in every printer: sums end with their minus terms, roots are joined, names are short."""

import re
from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.printing.latex import LatexPrinter
from sympy.printing.pretty.pretty import PrettyPrinter
from sympy.printing.pretty.pretty_symbology import greek_unicode
from sympy.printing.pretty.stringpict import prettyForm
from sympy.printing.str import StrPrinter

from derivations.symbols import QUANTITIES, latex_names
from derivations.units import ones_away

# --- names ------------------------------------------------------------------------------------------------------------

_SMALL = dict(zip("0123456789aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_RAISED = dict(zip("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True))
_GREEK: dict[str, str] = {str(name): str(letter) for name, letter in greek_unicode.items()}
_COMMANDS: dict[str, str] = {
    r"\uparrow": "↑",
    r"\downarrow": "↓",
    r"\ast": "*",
    r"\max": "max",
    r"\min": "min",
    r"\infty": "∞",
}
_COMMANDS |= {r"\leq": "≤", r"\geq": "≥"}
_COMMANDS |= {rf"\{name}": letter for name, letter in _GREEK.items()}
_COMMANDS |= {r"\Pr": "Pr", r"\ln": "ln", r"\partial": "∂", r"\varepsilon": "ε", r"\,": "\N{NO-BREAK SPACE}"}
_MARKS = {"bar": "\u0304", "hat": "\u0302", "tilde": "\u0303"}


def _below(word: str) -> str:
    """A subscript: small digits and letters, arrows as they are, words after an underscore."""
    if word in ("↑", "↓"):
        return word
    return "".join(_SMALL[c] for c in word) if len(word) <= 2 and set(word) <= set(_SMALL) else f"_{word}"


def _above(word: str) -> str:
    return word if set(word) <= {"*", "'"} else "".join(_RAISED[c] for c in word) if word.isdigit() else f"^{word}"


def readable(latex: str) -> str | None:
    r"""A LaTeX name in Unicode (`\delta_\uparrow` is δ↑, `\overline{I^2}` is ⟨I²⟩); None where it is no plain name."""
    text = re.sub(r"\\(?:mathrm|mathcal|mathit|text|operatorname)\{([^{}]*)\}", r"\1", latex)
    text = re.sub(r"\\(bar|hat|tilde)\s*(?:\{(\w)\}|(\w))", lambda m: (m[2] or m[3]) + _MARKS[m[1]], text)
    text = re.sub(r"\\[A-Za-z]+(?![A-Za-z{])|\\,", lambda m: _COMMANDS.get(m[0], m[0]), text)
    text = re.sub(r"\^(?:\{([^{}\\]*)\}|([^\\{}]))", lambda m: _above(m[1] or m[2]), text)
    text = re.sub(r"\\overline\{([^{}\\]*)\}", r"⟨\1⟩", text)
    text = re.sub(r"_(?:\{([^{}\\]*)\}|([^\\{}]))", lambda m: _below(m[1] or m[2]), text)
    text = re.sub(r"(?<=[^\x00-\x7f≤≥]) (?=\w)", "", text)  # the blank that ends a command
    return None if set(text) & set("\\{}") else text.replace("\N{NO-BREAK SPACE}", " ")


def name(symbol: Any) -> str:
    """A symbol in Unicode: as the theory writes it, if it is declared; else its own name with small subscripts."""
    if symbol in QUANTITIES:
        return readable(QUANTITIES[symbol].latex) or symbol.name
    head, _, tail = str(symbol.name).partition("_")
    return _GREEK.get(head, head) + (_below(_GREEK.get(tail, tail)) if tail else "")


def in_words(words: str, render: Callable[[str], str], math: Callable[[str], str]) -> str:
    """Running text in which code names that are no English words, Greek names and letters like p_up become symbols."""
    known = {"isl": "I", "osl": "O", "lam": r"\lambda"} | {greek: rf"\{greek}" for greek in _GREEK}
    known |= {s.name: about.latex for s, about in QUANTITIES.items() if set(s.name) & set("_0123456789")}
    known |= {s.name: about.latex for s, about in QUANTITIES.items() if s.name in _GREEK}
    known |= {letter: letter for letter in "BCHLNPQUW"}  # alone: GB/s and P/D are no symbols
    longer = "|".join(sorted((n for n in known if len(n) > 1), key=len, reverse=True))
    found = rf"(?<![\w-])((?:{longer}|[A-Za-z]_[A-Za-z]+)(?![\w(-])|(?<!/)[BCHLNPQUW](?![\w(/-]))"
    pieces = re.split(found, words)
    return "".join(math(known.get(p) or _indexed(p)) if n % 2 else render(p) for n, p in enumerate(pieces))


def _indexed(word: str) -> str:
    """`p_up` in LaTeX; a longer index is upright."""
    head, _, index = word.partition("_")
    return f"{head}_{index}" if len(index) == 1 else rf"{head}_{{\mathrm{{{index}}}}}"


# --- printers ---------------------------------------------------------------------------------------------------------


class MinusLast:
    """Mixed into a SymPy printer: the terms that carry a minus sign come last (1 - x)."""

    def _as_ordered_terms(self, expr: Any, order: Any = None) -> list[Any]:
        return sorted(expr.as_ordered_terms(), key=lambda term: term.could_extract_minus_sign())


def _one_root(expr: Any) -> Any:
    """A product with one square root instead of several: SymPy takes the root of a product of positives apart."""
    half = sp.Rational(1, 2)
    roots = [f for f in expr.args if isinstance(f, sp.Pow) and f.args[1] in (half, -half)]
    if len(roots) < 2:
        return None
    under = sp.Mul(*(f.args[0] ** (2 * f.args[1]) for f in roots))
    rest = sp.Mul(*(f for f in expr.args if f not in roots))
    root = sp.Pow(under, half, evaluate=False)
    return root if rest == 1 else sp.Mul(rest, root, evaluate=False)


class JoinedRoots(MinusLast):
    """Mixed into a SymPy printer for people."""

    def _print_Mul(self, expr: Any) -> Any:
        joined = _one_root(expr)
        return super()._print_Mul(expr) if joined is None else self._print(joined)  # type: ignore[misc]


class _Latex(JoinedRoots, LatexPrinter):
    pass


class _Text(JoinedRoots, StrPrinter):
    pass


class _Pretty(MinusLast, PrettyPrinter):
    def _print_Mul(self, product: Any) -> Any:
        joined = _one_root(product)
        return super()._print_Mul(product) if joined is None else self._print(joined)

    def _print_Symbol(self, e: Any, bold_name: bool = False) -> Any:
        return prettyForm(name(e), binding=prettyForm.ATOM)

    def _print_Max(self, expr: Any) -> Any:
        return self._helper_print_function(expr.func, expr.args, func_name="max")

    def _print_Min(self, expr: Any) -> Any:
        return self._helper_print_function(expr.func, expr.args, func_name="min")


def raised(words: str) -> str:
    """Whole powers in running text as raised digits."""
    return re.sub(r"\^(\d+)", lambda m: _above(m[1]), words)


def pretty(expr: Any, columns: int) -> str:
    """Two-dimensional Unicode for a terminal."""
    return _Pretty({"use_unicode": True, "num_columns": columns}).doprint(_bare(expr))


def _bare(expr: Any) -> Any:
    """`expr` without the ones that carry a unit."""
    return ones_away(expr) if isinstance(expr, sp.Basic) and "one[" in str(expr.free_symbols) else expr


def beside(left: str, expr: Any, columns: int) -> str:
    """`expr` with `left` in front of it, next to its fraction line."""
    form: Any = _Pretty({"use_unicode": True, "num_columns": columns})._print(_bare(expr))
    lines = form.render(wrap_line=True, num_columns=columns).splitlines()
    wrapped = len(lines) != form.height()
    return "\n".join(
        f"{left if n == (0 if wrapped else form.baseline) else '':{len(left)}} {line}" for n, line in enumerate(lines)
    )


def latex(expr: Any) -> str:
    """SymPy's LaTeX with the theory's symbols; text as it is."""
    return (
        expr
        if isinstance(expr, str)
        else _Latex({"symbol_names": latex_names(), "ln_notation": True}).doprint(_bare(expr))
    )


def text(expr: Any) -> str:
    """Plain text with the code names."""
    return _Text().doprint(_bare(expr))
