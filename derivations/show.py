"""One derivation for people: text in a terminal, LaTeX for a paper, HTML in a notebook."""

import html
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import sympy as sp

from derivations.core import TAGS, CheckResult, ClosedForm, Derivation
from derivations.layout import beside, in_words, latex, name, pretty, raised, readable
from derivations.symbols import QUANTITIES, Quantity

WIDTH = 100


def used(d: Derivation) -> list[Quantity]:
    """The declared symbols that a derivation speaks of, in the order of `symbols.py` and of its topics."""
    shown: list[Any] = [step.equation for step in d.steps]
    for form in d.forms:
        shown += [form.textbook, *form.arguments, *(side for pair in form.where for side in pair)]
    free = set().union(*(e.free_symbols for e in shown if isinstance(e, sp.Basic)))
    return [about for symbol, about in QUANTITIES.items() if symbol in free]


def check_line(result: CheckResult) -> str:
    """A published figure and ours in one line."""
    check = result.check
    reason = f" - {check.reason}" if check.reason else ""
    return f"{check.id} [{check.tag}] {check.source}: {_figures(result)}: {result.verdict}{reason}"


def _figures(result: CheckResult) -> str:
    unit = f" {result.check.unit}" if result.check.unit else ""
    return f"published {result.check.published:g}{unit}, ours {result.ours:.6g}, error {percent(result)}"


def percent(result: CheckResult) -> str:
    """The relative error to a hundredth of a percent; what rounds to nothing has no sign."""
    text = f"{result.relative_error:+.2%}"
    return "0.00%" if text in ("+0.00%", "-0.00%") else text


def by_source(results: Iterable[CheckResult]) -> dict[str, list[CheckResult]]:
    """The figures of each source."""
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(f"{result.check.source} [{result.check.tag}: {TAGS[result.check.tag]}]", []).append(result)
    return found


# --- terminal ---------------------------------------------------------------------------------------------------------


def _plain(words: str) -> str:
    return in_words(raised(words), str, lambda m: readable(m) or m)


def _fill(text: str, first: str = "  ") -> str:
    return textwrap.fill(_plain(text), WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _shown(expr: Any) -> list[str]:
    """An equation on its own, between blank lines."""
    text = expr if isinstance(expr, str) else pretty(expr, WIDTH - 8)
    return ["", textwrap.indent(text.rstrip(), " " * 8), ""]


def _result(form: ClosedForm) -> list[str]:
    left = readable(form.symbol + form.relation) or f"{form.code_symbol or form.name} ="
    return _shown(beside(left, form.textbook, WIDTH - 12 - len(left)))


def as_text(d: Derivation) -> str:
    """Statement, symbols, assumptions, steps, results, proofs, figures and limits in Unicode."""
    lines = [f"{d.id}  {d.name}", "", _fill(d.statement), "", "Symbols", *_symbol_rows(d), "", "Assumptions"]
    lines += [_fill(a, "  - ") for a in d.assumptions]
    lines += ["", "Steps"]
    for number, step in enumerate(d.steps, 1):
        lines.append(_fill(step.text, f"  {number}. "))
        lines += [] if step.equation is None else _shown(step.equation)
    lines += ["", "Results"] if d.forms else []
    for form in d.forms:
        lines += [_fill(form.words, f"  {form.name} [{raised(form.shown or form.unit)}]: "), *_result(form)]
        for symbol, expr in form.where:
            lines += ["      with", *_shown(sp.Eq(symbol, expr, evaluate=False))]
        lines += [_fill(c.words, "      At the edge: ") for c in form.conventions]
        lines += [_fill(form.note, "      Note: ")] if form.note else []
        lines += [""] if form.conventions or form.note else []
    lines += ["", "Proved", *(_fill(p.words, "  - ") for p in d.proofs)]
    if d.published:
        lines += ["", "Published figures", *figure_rows(d.check_published())]
    lines += ["", "Limits", *(_fill(limit, "  - ") for limit in d.limits), "", _fill(f"Source: {d.source}")]
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", "\n".join(lines))) + "\n"


def _symbol_rows(d: Derivation) -> list[str]:
    rows = [(name(q.symbol), q.symbol.name, f"[{raised(q.shown)}]", f"{q.words}, {q.range_words}") for q in used(d)]
    wide = [max(len(row[i]) for row in rows) for i in range(3)] if rows else []
    return [
        textwrap.fill(
            f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c:<{wide[2]}}  {words}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * (sum(wide) + 8),
        )
        for a, b, c, words in rows
    ]


def figure_rows(results: Iterable[CheckResult]) -> list[str]:
    """Each source with its figures, ours, and the reasons of misses and soft ones."""
    lines = []
    for source, group in by_source(results).items():
        lines.append(_fill(source, "  "))
        wide = max(len(r.check.id) for r in group)
        lines += [f"    {r.check.id:<{wide}}  {_figures(r)}: {r.verdict}" for r in group]
        for reason in dict.fromkeys(r.check.reason for r in group if r.check.reason):
            lines.append(_fill(reason, "    because "))
    return lines


# --- LaTeX ------------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Plain words for LaTeX."""
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    text = re.sub(r"\^(\d+)", r"\\textsuperscript{\1}", text)
    signs = {
        "^": r"\^{}",
        "~": r"\~{}",
        "<=": r"$\le$",
        ">=": r"$\ge$",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        " - ": " $-$ ",
    }
    return re.sub("<=|>=| - |[\\^~<>|]", lambda m: signs[m[0]], text)


def _prose(words: str) -> str:
    return in_words(words, escaped, lambda m: f"${m}$")


def _sentence(words: str) -> str:
    words = words.strip()
    return _prose(words if words.endswith((".", ":", ";", ",")) else f"{words}.")


def as_latex(d: Derivation) -> str:
    """A passage for a paper; needs amsmath."""
    lines = [rf"\paragraph{{{d.id}. {escaped(d.name)}.}} {_prose(d.statement)}", ""]
    symbols = "; ".join(f"${q.latex}$ {_prose(q.words)} [{escaped(q.shown)}]" for q in used(d))
    lines += [rf"\noindent Symbols: {symbols}.", "", r"\noindent Assumptions:", r"\begin{itemize}"]
    lines += [*(rf"\item {_prose(a)}" for a in d.assumptions), r"\end{itemize}"]
    lines += [r"\noindent Steps:", r"\begin{enumerate}"] if d.steps else []
    for step in d.steps:
        lines.append(rf"\item {_prose(step.text)}")
        lines += [] if step.equation is None else [rf"\[ {latex(step.equation)} \]"]
    lines += [r"\end{enumerate}"] if d.steps else []
    for form in d.forms:
        lines += ["", rf"\noindent {_sentence(form.words)} (\texttt{{{escaped(form.name)}}}, [{escaped(form.unit)}])"]
        lines.append(rf"\[ {form.equation_latex} \]")
        lines += [rf"\[ \text{{with}}\quad {latex(s)} = {latex(e)} \]" for s, e in form.where]
        edges = "; ".join(_prose(c.words) for c in form.conventions)
        lines += [rf"\noindent At the edge: {edges}."] if edges else []
    limits = " ".join(_sentence(limit) for limit in d.limits)
    lines += ["", rf"\noindent Proved: {'; '.join(_prose(p.words) for p in d.proofs)}.", r"\par\medskip"]
    lines += [rf"\noindent Limits: {limits} Source: {escaped(d.source)}."]
    return "\n".join(lines) + "\n"


# --- notebook ---------------------------------------------------------------------------------------------------------


def _html(words: str) -> str:
    return in_words(words, html.escape, lambda m: f"${html.escape(m)}$")


def _displayed(equation: str) -> str:
    return f"$${html.escape(equation)}$$"


def _list(kind: str, items: list[str]) -> str:
    return f"<{kind}>{''.join(f'<li>{item}</li>' for item in items)}</{kind}>"


def as_html(d: Derivation) -> str:
    """What a notebook shows; the mathematics is left to MathJax."""
    parts = [f"<h4>{d.id} {html.escape(d.name)}</h4><p>{_html(d.statement)}</p>"]
    symbols = [
        f"${html.escape(q.latex)}$ <code>{q.symbol.name}</code> [{html.escape(q.shown)}] {q.words}" for q in used(d)
    ]
    parts += ["<details><summary>Symbols</summary>", _list("ul", symbols), "</details>"]
    parts += ["<b>Assumptions</b>", _list("ul", [_html(a) for a in d.assumptions]), "<b>Steps</b>"]
    equations = ["" if s.equation is None else f" {_displayed(latex(s.equation))}" for s in d.steps]
    parts.append(_list("ol", [_html(s.text) + e for s, e in zip(d.steps, equations, strict=True)]))
    parts.append("<b>Results</b>" if d.forms else "")
    for form in d.forms:
        unit = html.escape(form.shown or form.unit)
        parts.append(f"<p><code>{form.name}</code> [{unit}]: {_html(form.words)}</p>{_displayed(form.equation_latex)}")
        parts += [f"<p>with</p>{_displayed(f'{latex(s)} = {latex(e)}')}" for s, e in form.where]
        parts += [f"<p>At the edge: {_html(c.words)}</p>" for c in form.conventions]
    parts += ["<details><summary>Proofs</summary>", _list("ul", [_html(p.words) for p in d.proofs]), "</details>"]
    parts += _html_figures(d.check_published())
    parts += ["<b>Limits</b>", _list("ul", [_html(limit) for limit in d.limits])]
    return "".join([*parts, f"<p>Source: {html.escape(d.source)}.</p>"])


def _html_figures(results: tuple[CheckResult, ...]) -> list[str]:
    if not results:
        return []
    parts = ["<table><tr><th>figure</th><th>published</th><th>ours</th><th>error</th><th>verdict</th></tr>"]
    for source, group in by_source(results).items():
        parts.append(f'<tr><td colspan="5" style="text-align:left">{html.escape(source)}</td></tr>')
        for r in group:
            verdict = f"{r.verdict}: {r.check.reason}" if r.check.reason else r.verdict
            published = f"{r.check.published:g} {r.check.unit}".strip()
            cells = (r.check.id, published, f"{r.ours:.6g}", percent(r), verdict)
            parts.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    return [*parts, "</table>"]
