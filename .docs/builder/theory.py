"""The theory: one page for each derivation, from the SymPy objects; formulas become MathML, which needs no script."""

import html
import re
from collections.abc import Callable, Iterable

from latex2mathml.converter import convert

from derivations.core import ClosedForm, Derivation, topics  # noqa: TID251
from derivations.layout import in_words, latex  # noqa: TID251
from derivations.show import by_source, percent, used  # noqa: TID251


def mathml(formula: str, display: bool = False) -> str:
    r"""LaTeX as MathML. A command that the converter does not know would be shown as text: that is an error."""
    found = convert(formula, display="block" if display else "inline")
    if unknown := re.findall(r"\\[A-Za-z]+", found):
        raise ValueError(f"no MathML for {', '.join(unknown)} in {formula}")
    return found


def words(text: str) -> str:
    """Plain words with code names as symbols."""
    return in_words(text, lambda plain: html.escape(plain, quote=False).replace("*", r"\*"), mathml)


def shown(formula: str) -> str:
    """A displayed equation: a block of HTML of its own."""
    return f"\n\n{mathml(formula, display=True)}\n\n"


def page(d: Derivation, module: str, used_by: Iterable[str]) -> str:
    """The page of one derivation; `module` is the one of `fluidq.formulas` that holds its functions."""
    parts = [f"# {d.id} {d.name}", words(d.statement), _symbols(d), "## Assumptions", _list(map(words, d.assumptions))]
    parts += ["## Steps"] if d.steps else []
    for number, step in enumerate(d.steps, 1):
        parts.append(f"**{number}.** {words(step.text)}")
        parts += [] if step.equation is None else [shown(latex(step.equation))]
    parts += ["## Results"] if d.forms else []
    parts += [_result(form, module) for form in d.forms]
    parts += [
        "## Proofs",
        "Each is run by `python -m derivations`, and can fail.",
        _list(words(p.words) for p in d.proofs),
    ]
    parts += _figures(d)
    parts += ["## Limits", _list(map(words, d.limits))] if d.limits else []
    parts += ["## Where it is used", _list(used_by)]
    parts.append(f"Source: {html.escape(d.source, quote=False)}.")
    return "\n\n".join(parts) + "\n"


def _result(form: ClosedForm, module: str) -> str:
    unit = html.escape(form.shown or form.unit, quote=False)
    lines = [f"### {form.name} {{ #{form.name} }}", f"{words(form.words)} Unit: {unit}.", shown(form.equation_latex)]
    for symbol, expr in form.where:
        lines += ["with", shown(f"{latex(symbol)} = {latex(expr)}")]
    lines += [f"At the edge: {words(c.words)}" for c in form.conventions]
    lines += [f"Note: {words(form.note)}"] if form.note else []
    name = f"fluidq.formulas.{module}.{form.name}"
    return "\n\n".join([*lines, f"In Python: [`{name}`][{name}]"])


def _symbols(d: Derivation) -> str:
    rows = []
    for q in used(d):
        meaning = f"{words(q.words)}, {q.range_words}"
        rows.append(f"| {mathml(q.latex)} | `{q.symbol.name}` | {_cell(q.shown)} | {_cell(meaning)} |")
    head = ["## Symbols", "", "| symbol | in code | unit | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def _figures(d: Derivation) -> list[str]:
    results = d.check_published()
    if not results:
        return ["## Published figures", "None is known to us."]
    parts = ["## Published figures"]
    for source, group in by_source(results).items():
        rows = [
            f"| {r.check.id} | {_cell(f'{r.check.published:g} {r.check.unit}'.strip())} | {r.ours:.6g} | {percent(r)} "
            f"| {_cell(f'{r.verdict}: {r.check.reason}' if r.check.reason else r.verdict)} |"
            for r in group
        ]
        head = ["| figure | published | ours | error | verdict |", "|---|---|---|---|---|"]
        parts += [f"{html.escape(source, quote=False)}:", "\n".join([*head, *rows])]
    return parts


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def located() -> list[tuple[Derivation, str]]:
    """Every derivation in the order of its number, with the module of `fluidq.formulas` that holds its functions."""
    found = [(d, getattr(m, "GENERATED", name)) for name, m in topics().items() for d in m.DERIVATIONS]
    return sorted(found, key=lambda pair: int(pair[0].id[1:]))


def overview(found: Iterable[tuple[Derivation, str]]) -> str:
    """The entry page of the theory."""
    rows = [f"| [{d.id}]({d.id}.md) | [{d.name}]({d.id}.md) | {_cell(words(d.statement))} |" for d, _ in found]
    return "\n".join(
        [
            "# Theory",
            "",
            "Every formula of fluidq is proved by SymPy in `derivations/` and printed here from the same object. "
            "`python -m derivations` runs the proofs and compares with published figures; "
            "`python -m derivations show D15` shows one in a terminal. "
            "[How to add one](../guides/own-derivation.md).",
            "",
            "| | name | statement |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def equations() -> Callable[[str], str]:
    """A function from the name of a formula to its equation: hand-written pages name formulas and never type them."""
    forms = {form.name: (d, form) for d, _ in located() for form in d.forms}

    def equation(name: str) -> str:
        d, form = forms[name]
        return f"{shown(form.equation_latex)}*[{d.id}](DOCS_ROOT/theory/{d.id}.md#{name}), {words(form.words)}*\n"

    return equation
