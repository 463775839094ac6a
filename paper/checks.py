"""What can be wrong with the manuscript, found without TeX: each check returns sentences, none when all is well."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

from derivations import to_latex
from derivations.core import topics
from paper import appendix, numbers, tables
from paper.experiments import EXPERIMENTS

HERE = Path(__file__).parent
TEX, BIB, EQUATIONS = HERE / "paper.tex", HERE / "refs.bib", HERE / "generated" / "equations.tex"

MACRO = re.compile(r"\\((?:Eq|Num|Tab)[A-Za-z]+)")
DEFINITION = re.compile(r"^\\newcommand\{\\((?:Eq|Num|Tab)[A-Za-z]+)\}\{(.*?)(?:\}(?:%.*)?|%)$", re.MULTILINE)
# Arguments in which a number is no result: keys, file names, measures of the layout.
LAYOUT = re.compile(
    r"\\(?:label|ref|eqref|cite[a-z]*|includegraphics|input|begin|end|bibliography|bibliographystyle|cmidrule|vspace|"
    r"linewidth|hspace|url|href)\*?(?:\([a-z]*\))?(?:\[[^\]]*\])?(?:\{[^{}]*\})*"
)
# A number that stands by itself: not part of a name such as B200, GLM-5.2 or D15.
LITERAL = re.compile(r"(?<![\w.\-^])\d[\d.,]*\d|(?<![\w.\-^])\d")
YEAR = re.compile(r"(?:19|20)\d\d")


def uncommented(tex: str) -> str:
    """The text without its comments."""
    return re.sub(r"(?<!\\)%.*", "", tex)


def body(tex: str) -> str:
    """The text of the document, without preamble and comments."""
    return uncommented(tex).partition(r"\begin{document}")[2]


def macros(tex: str, definitions: Iterable[str], extra: str = "") -> list[str]:
    r"""Every \Eq, \Num and \Tab macro used is defined once, each defined one is used (`extra`: the made appendix)."""
    names = [name for text in definitions for name, _ in DEFINITION.findall(text)]
    used = set(MACRO.findall(body(tex))) | set(MACRO.findall(uncommented(extra)))
    wrong = [f"\\{name} is used but not defined" for name in sorted(used - set(names))]
    wrong += [f"\\{name} is defined but not used" for name in sorted(set(names) - used)]
    return wrong + [f"\\{name} is defined twice" for name in sorted({n for n in names if names.count(n) > 1})]


def displays(tex: str) -> list[str]:
    """Displayed equations hold macros of derivations/ and nothing typed."""
    found = re.findall(r"\\begin\{(?:equation|align|gather)\*?\}(.*?)\\end|\\\[(.*?)\\\]", body(tex), re.DOTALL)
    wrong = []
    for text in ("".join(pair) for pair in found):
        left = re.sub(r"\\label\{[^}]*\}|\\Eq[A-Za-z]+|\\\\|\\quad|\\qquad|[\s,.;&]", "", text)
        if left:
            wrong.append(f"a displayed equation is typed by hand: {' '.join(text.split())}")
    return wrong


def figure_scripts(tex: str, scripts: Iterable[str]) -> list[str]:
    r"""The scripts of figures/ and the \includegraphics of the text are one set."""
    shown = set(re.findall(r"\\includegraphics(?:\[[^\]]*\])?\{figures/([^}]*)\}", body(tex)))
    made = set(scripts)
    wrong = [f"figures/{name} is shown but no script makes it" for name in sorted(shown - made)]
    return wrong + [f"figures/{name}.py makes a figure that is not shown" for name in sorted(made - shown)]


def references(tex: str, bib: str) -> list[str]:
    r"""Every \ref and \cite has its target, labels are unique, and no entry or labelled figure is left out."""
    text = body(tex)
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    refs = set(re.findall(r"\\(?:eq)?ref\{([^}]*)\}", text))
    cited = {
        key.strip() for keys in re.findall(r"\\cite[a-z]*(?:\[[^\]]*\])*\{([^}]*)\}", text) for key in keys.split(",")
    }
    entries = re.findall(r"^@\w+\{([^,]+),", bib, re.MULTILINE)
    wrong = [f"\\ref{{{key}}} has no label" for key in sorted(refs - set(labels))]
    wrong += [f"the label {key} is set twice" for key in sorted({k for k in labels if labels.count(k) > 1})]
    wrong += [
        f"{key} is never referred to" for key in labels if key.startswith(("fig:", "tab:", "eq:")) and key not in refs
    ]
    wrong += [f"\\cite{{{key}}} has no entry in refs.bib" for key in sorted(cited - set(entries))]
    wrong += [f"refs.bib has {key} twice" for key in sorted({k for k in entries if entries.count(k) > 1})]
    return wrong + [f"refs.bib holds {key}, which is not cited" for key in sorted(set(entries) - cited)]


def typed_numbers(tex: str, definitions: str) -> list[str]:
    """No result is typed: beyond 0, 1, 2 and years no number stands in the prose, a macro's value least of all."""
    values = {}
    for name, value in DEFINITION.findall(definitions):
        for literal in LITERAL.findall(value):
            values.setdefault(literal.strip(".,"), name)
    wrong = []
    for literal in LITERAL.findall(LAYOUT.sub(" ", body(tex))):
        shown = literal.strip(".,")
        if shown in ("0", "1", "2") or YEAR.fullmatch(shown):
            continue
        macro = f"; \\{values[shown]} has this value" if shown in values else ""
        wrong.append(f"the number {shown} is typed in the text{macro}")
    return wrong


def equations() -> str:
    """The text of equations.tex as the derivations have it now."""
    (text,) = to_latex.files(topics(), HERE.parent).values()
    return text


def stale(folder: Path = HERE / "generated") -> list[str]:
    """Generated and committed files whose bytes are not what would be written now."""
    wrong = []
    for name, text, command in (
        (EQUATIONS.name, equations(), "python -m derivations --write"),
        (numbers.FILE.name, numbers.render(), "python -m paper.build"),
        (tables.FILE.name, tables.render(), "python -m paper.build"),
    ):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(f"{name} is {'stale' if path.exists() else 'missing'}; run {command}")
    return wrong


def stale_results() -> list[str]:
    """Kept results that other code or other inputs made, or that are missing."""
    reasons = [experiment.stale() for experiment in EXPERIMENTS.values()]
    return [f"{reason}; run python -m paper.build" for reason in reasons if reason]


def unchecked_results() -> list[str]:
    """Kept results of which nothing can be said here, and why."""
    return [reason for experiment in EXPERIMENTS.values() if (reason := experiment.unchecked())]


def scripts() -> list[str]:
    """The names of the figure scripts."""
    return sorted(path.stem for path in (HERE / "figures").glob("*.py") if not path.stem.startswith("_"))


def inputs(names: Iterable[str]) -> list[str]:
    """Every figure script says what it draws, and the results that it names exist."""
    wrong = []
    for name in names:
        said = getattr(importlib.import_module(f"paper.figures.{name}"), "INPUTS", ())
        if not said:
            wrong.append(f"figures/{name}.py does not name its inputs")
        for result in re.findall(r"paper/measured/(\w+)\.json", " ".join(said)):
            if result not in EXPERIMENTS:
                wrong.append(f"figures/{name}.py names measured/{result}.json, which no experiment makes")
    return wrong


def problems() -> list[str]:
    """Everything that is stale, missing or left over."""
    missing = [path for path in (TEX, BIB, EQUATIONS, numbers.FILE, tables.FILE) if not path.exists()]
    missing += [experiment.path for experiment in EXPERIMENTS.values() if not experiment.path.exists()]
    if missing:
        return [f"paper/{path.relative_to(HERE)} is missing; run python -m paper.build" for path in missing]
    tex, bib = TEX.read_text(encoding="utf-8"), BIB.read_text(encoding="utf-8")
    values, rows = (path.read_text(encoding="utf-8") for path in (numbers.FILE, tables.FILE))
    return [
        *stale_results(),
        *stale(),
        *macros(tex, (equations(), values, rows), appendix.render()),
        *displays(tex),
        *figure_scripts(tex, scripts()),
        *inputs(scripts()),
        *references(tex, bib),
        *typed_numbers(tex, values),
        *numbers.claims(),
    ]
