"""The appendix: every formula that `derivations/` proves, listed from the derivations themselves, so it never lags."""

from pathlib import Path

from derivations import all_derivations
from derivations.layout import latex
from derivations.show import escaped
from derivations.to_latex import macro

HEAD = "% Made by `python -m paper.build` from derivations/; not committed.\n"
FILE = Path(__file__).parent / "generated" / "appendix.tex"

GREEK = "alpha beta gamma delta theta kappa lambda mu pi rho sigma tau phi omega"
# Words of a derivation are Unicode; pdfLaTeX knows accents but neither Greek nor signs.
SIGNS = {
    **dict(zip("αβγδθκλμπρστφω", GREEK.split(), strict=True)),
    **{"Δ": "Delta", "Λ": "Lambda", "Φ": "Phi", "≤": "le", "≥": "ge", "≈": "approx", "×": "times", "→": "to"},
    **{"∞": "infty", "·": "cdot", "≠": "ne", "±": "pm", "∫": "int", "√": "surd", "…": "ldots"},
}


def words(text: str) -> str:
    """Plain words for pdfLaTeX: special characters escaped, Greek and signs as mathematics."""
    out = escaped(text)
    for sign, name in SIGNS.items():
        out = out.replace(sign, rf"\ensuremath{{\{name}}}")
    return out


def render() -> str:
    """The text of appendix.tex: one paragraph a derivation, its formulas by their macros."""
    lines = [HEAD]
    for d in all_derivations():
        if not d.forms:
            continue
        lines.append(f"\\paragraph{{{d.id}. {words(d.name)}.}}\n")
        for form in d.forms:
            shown = [f"\\Formula{{{macro(form)}}}\n"]
            shown += [f"\\Formula{{{latex(symbol)} = {latex(expr)}}}\n" for symbol, expr in form.where]
            lines += [f"{words(form.words)}\n", *shown]
    return "".join(lines)
