"""One derivation for people: text in a terminal, LaTeX for a paper, HTML in a notebook."""

import html
import re
import textwrap
from typing import Any

import sympy as sp

from derivations.core import CheckResult, Derivation
from derivations.layout import latex, pretty

WIDTH = 100


def _pretty(expr: Any) -> str:
    text = expr if isinstance(expr, str) else pretty(expr, WIDTH)
    return textwrap.indent(text, "        ")


def _fill(text: str, first: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def check_line(result: CheckResult) -> str:
    """A published figure and ours in one line."""
    check = result.check
    unit = f" {check.unit}" if check.unit else ""
    reason = f" - {check.reason}" if check.reason else ""
    return (
        f"{check.id} [{check.tag}] {check.source}: published {check.published:g}{unit}, ours {result.ours:.6g}, "
        f"error {result.relative_error:+.2%}: {result.verdict}{reason}"
    )


def as_text(d: Derivation) -> str:
    """Statement, assumptions, steps, results, proofs and checks in Unicode."""
    lines = [f"{d.id}  {d.name}", "", _fill(d.statement), "", "Assumptions"]
    lines += [_fill(a, "  - ") for a in d.assumptions]
    lines += ["", "Steps"]
    for number, step in enumerate(d.steps, 1):
        lines.append(_fill(step.text, f"  {number}. "))
        if step.equation is not None:
            lines += ["", _pretty(step.equation), ""]
    for form in d.forms:
        lines += ["", _fill(f"{form.name} [{form.shown or form.unit}]: {form.words}"), ""]
        lines.append(_pretty(sp.Eq(sp.Symbol(form.code_symbol or form.name), form.textbook, evaluate=False)))
        lines += ["\n" + _pretty(sp.Eq(symbol, expr, evaluate=False)) for symbol, expr in form.where]
        lines += [_fill(c.words, "    Edge: ") for c in form.conventions]
    lines += ["", "Proved"]
    lines += [_fill(p.words, "  - ") for p in d.proofs]
    if d.published:
        lines += ["", "Published figures", *(_fill(check_line(r), "  - ") for r in d.check_published())]
    lines += ["", "Limits", *(_fill(limit, "  - ") for limit in d.limits), "", _fill(f"Source: {d.source}")]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Plain words for LaTeX."""
    return re.sub(r"([&%$#_{}])", r"\\\1", text).replace("^", r"\^{}")


def as_latex(d: Derivation) -> str:
    """A passage for a paper; needs amsmath."""
    lines = [rf"\paragraph{{{d.id}. {escaped(d.name)}.}} {escaped(d.statement)}"]
    lines += [r"\begin{itemize}", *(rf"\item {escaped(a)}" for a in d.assumptions), r"\end{itemize}"]
    for step in d.steps:
        lines.append(escaped(step.text))
        if step.equation is not None:
            lines.append(rf"\[ {latex(step.equation)} \]")
    for form in d.forms:
        lines.append(rf"{escaped(form.words)} (\texttt{{{escaped(form.name)}}})")
        lines.append(rf"\[ {form.equation_latex} \]")
        lines += [rf"\[ {latex(s)} = {latex(e)} \]" for s, e in form.where]
    lines.append(rf"Limits: {escaped(' '.join(d.limits))} Source: {escaped(d.source)}.")
    return "\n".join(lines) + "\n"


def as_html(d: Derivation) -> str:
    """What a notebook shows; the mathematics is left to MathJax."""
    parts = [f"<h4>{d.id} {html.escape(d.name)}</h4><p>{html.escape(d.statement)}</p><p>Assumes</p><ul>"]
    parts += [f"<li>{html.escape(a)}</li>" for a in d.assumptions]
    parts.append("</ul><ol>")
    for step in d.steps:
        equation = "" if step.equation is None else f" $${html.escape(latex(step.equation))}$$"
        parts.append(f"<li>{html.escape(step.text)}{equation}</li>")
    parts.append("</ol>")
    for form in d.forms:
        parts.append(
            f"<p><code>{form.name}</code> [{html.escape(form.shown or form.unit)}]: {html.escape(form.words)}</p>"
        )
        parts.append(f"$${html.escape(form.equation_latex)}$$")
        parts += [f"$${html.escape(f'{latex(s)} = {latex(e)}')}$$" for s, e in form.where]
    results = d.check_published()
    if results:
        parts.append("<table><tr><th>check</th><th>published</th><th>ours</th><th>error</th><th>verdict</th></tr>")
        for r in results:
            cells = (
                f"{r.check.id}: {r.check.source}",
                f"{r.check.published:g} {r.check.unit}",
                f"{r.ours:.6g}",
                f"{r.relative_error:+.2%}",
                r.verdict,
            )
            parts.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
        parts.append("</table>")
    parts.append(f"<p>Limits: {html.escape(' '.join(d.limits))} Source: {html.escape(d.source)}.</p>")
    return "".join(parts)
