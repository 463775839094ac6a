"""The manuscript is whole and fresh; all but the last test need no TeX."""

import dataclasses
import re

import pytest

from paper import appendix, build, checks, numbers

TEX = checks.TEX.read_text(encoding="utf-8")
BIB = checks.BIB.read_text(encoding="utf-8")
NUMBERS = numbers.FILE.read_text(encoding="utf-8")
EQUATIONS = checks.EQUATIONS.read_text(encoding="utf-8")


def add(text: str) -> str:
    """The manuscript with something at its end."""
    return TEX.replace(r"\end{document}", text + "\n\\end{document}")


def test_numbers_are_those_that_fluidq_computes_now():
    if numbers.MADE_WITH in NUMBERS:
        assert numbers.render() == NUMBERS, "run python -m paper.build"
    # Whatever the releases, all but the outcome of the search is the same.
    for number in (*numbers.sizing(), *numbers.shocks(), *numbers.set_up()):
        assert number.line in NUMBERS, "run python -m paper.build"


def test_equations_are_those_of_the_derivations():
    assert checks.equations() == EQUATIONS, "run python -m derivations --write"


def test_a_stale_and_a_missing_file_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "render", lambda: NUMBERS)
    (tmp_path / "equations.tex").write_text(checks.equations().replace("phi", "psi"), encoding="utf-8")
    assert checks.stale(tmp_path) == [
        "equations.tex is stale; run python -m derivations --write",
        "numbers.tex is missing; run python -m paper.build",
    ]


def test_every_macro_used_is_defined_and_every_defined_one_is_used():
    assert checks.macros(TEX, (EQUATIONS, NUMBERS), appendix.render()) == []


def test_macros_without_definition_or_use_are_seen():
    extra = "\\newcommand{\\NumIdle}{7}% nobody asks\n" + NUMBERS.splitlines()[2] + "\n"
    wrong = checks.macros(add(r"\NumTypo"), (EQUATIONS, NUMBERS, extra), appendix.render())
    assert wrong == [
        r"\NumTypo is used but not defined",
        r"\NumIdle is defined but not used",
        r"\NumIsl is defined twice",
    ]
    assert checks.macros(TEX + "% \\NumTypo", (EQUATIONS, NUMBERS), appendix.render()) == []


def test_displayed_equations_are_macros():
    assert checks.displays(TEX) == []
    assert len(re.findall(r"\\Eq", checks.body(TEX))) >= 6
    for typed in (r"\[ x = y \]", "\\begin{align*}\\EqBalanceRatio + x\\end{align*}"):
        assert len(checks.displays(add(typed))) == 1


def test_figure_scripts_and_figures_shown_are_one_set():
    assert checks.figure_scripts(TEX, checks.scripts()) == []
    assert checks.scripts() == ["shock_map", "tuned"]
    assert checks.figure_scripts(TEX, [*checks.scripts(), "spare"]) == [
        "figures/spare.py makes a figure that is not shown"
    ]
    assert checks.figure_scripts(TEX, ["tuned"]) == ["figures/shock_map is shown but no script makes it"]


def test_references_and_citations_have_their_targets():
    assert checks.references(TEX, BIB) == []
    assert checks.references(add(r"\ref{fig:none}"), BIB) == [r"\ref{fig:none} has no label"]
    assert checks.references(add(r"\citep[p.~1]{adam,nobody}"), BIB) == [r"\cite{nobody} has no entry in refs.bib"]
    assert checks.references(add(r"\label{eq:phi}"), BIB) == ["the label eq:phi is set twice"]
    assert checks.references(add(r"\label{fig:alone}"), BIB) == ["fig:alone is never referred to"]
    assert checks.references(TEX, BIB + "\n@misc{spare,\n}\n") == ["refs.bib holds spare, which is not cited"]


def test_no_number_is_typed():
    assert checks.typed_numbers(TEX, NUMBERS) == []


@pytest.mark.parametrize("literal", ["9.36", "56", "1,184", "0.62", "7"])
def test_a_typed_number_is_seen(literal):
    (wrong,) = checks.typed_numbers(add(f"a margin of {literal}."), NUMBERS)
    assert literal in wrong


def test_a_typed_value_of_a_macro_is_named_with_the_macro():
    assert checks.typed_numbers(add("a margin of 9.36."), NUMBERS) == [
        r"the number 9.36 is typed in the text; \NumFabricMargin has this value"
    ]


def test_a_digit_that_another_machine_could_turn_is_refused():
    assert numbers.Number("Safe", 2.5, ".1f", "s", "").text == r"2.5\,s"
    with pytest.raises(ValueError, match=r"Edge: 0\.25 is too near a rounding edge"):
        _ = numbers.Number("Edge", 0.25, ".1f", "", "").text
    with pytest.raises(ValueError, match="finite"):
        _ = numbers.Number("Lost", float("nan"), ".1f", "", "").text
    bound = numbers.Bound("Error", 3e-8, "-6", "", "")
    assert bound.text == r"\ensuremath{10^{-6}}"
    assert dataclasses.replace(bound, value=3e-4).text == r"\ensuremath{10^{-3}}"
    assert dataclasses.replace(bound, value=0.0).text == r"\ensuremath{10^{-6}}"


def test_the_appendix_is_text_that_pdflatex_reads():
    assert not re.findall(r"[^\x00-\xff–—]", appendix.render())
    assert appendix.words("φ ≤ 5 % of C_max") == r"\ensuremath{\phi} \ensuremath{\le} 5 \% of C\_max"


def test_missing_tex_is_said_by_package(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda program: None)
    assert build.missing_packages() == ["latexmk", "lmodern", "texlive-latex-recommended"]


def test_the_pdf_has_no_undefined_references(tmp_path):
    if lacking := build.missing_packages():
        pytest.skip(f"no TeX here: the PDF needs the Debian packages {' '.join(lacking)}")
    build.draw_figures(tmp_path / "figures")
    made = build.pdf(tmp_path)
    log = (tmp_path / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert made.read_bytes().startswith(b"%PDF")
    assert not re.findall(r"(?i)undefined|multiply defined|missing character|overfull \\hbox", log)
