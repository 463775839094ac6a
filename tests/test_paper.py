"""The manuscript is whole and fresh; all but the last test need no TeX."""

import dataclasses
import json
import re
import types

import pytest

from paper import appendix, build, checks, measure, numbers, tables
from paper.experiments import EXPERIMENTS, tuning, validation

TEX = checks.TEX.read_text(encoding="utf-8")
BIB = checks.BIB.read_text(encoding="utf-8")
NUMBERS = numbers.FILE.read_text(encoding="utf-8")
TABLES = tables.FILE.read_text(encoding="utf-8")
EQUATIONS = checks.EQUATIONS.read_text(encoding="utf-8")


def add(text: str) -> str:
    """The manuscript with something at its end."""
    return TEX.replace(r"\end{document}", text + "\n\\end{document}")


def test_numbers_and_tables_are_those_that_fluidq_computes_now():
    assert numbers.render() == NUMBERS, "run python -m paper.build"
    assert tables.render() == TABLES, "run python -m paper.build"


@pytest.mark.parametrize("side", ["before", "after"])
def test_the_kept_search_is_judged_the_same_by_the_code_of_now(side):
    """A change of the engine shows here; which file it makes stale is for `paper.build --check` to say."""
    kept, now = EXPERIMENTS["tuning"].values()[side]["hard"], tuning.replayed(side)
    assert now == pytest.approx(kept, rel=1e-4), "run python -m paper.build"


def test_the_kept_laws_and_the_kept_search_are_of_one_day():
    day, search = EXPERIMENTS["day"].values(), EXPERIMENTS["tuning"].values()
    for key in ("cost", "gpu_hours", "slo_loss", "slo_attainment", "actions"):
        assert day["laws"]["thresholds"][key] == pytest.approx(search["before"]["hard"][key], rel=1e-7)
    assert day["bound"] == pytest.approx(search["certificate"]["bound"]["before"], rel=1e-7)
    assert all(row["cost"] >= day["bound"] for row in day["laws"].values())


def test_the_kept_validation_is_that_of_the_table():
    experiment = EXPERIMENTS["validation"]
    if experiment.missing:
        pytest.skip(experiment.unchecked())
    assert measure.rounded(validation.compute()) == experiment.values(), "run python -m paper.build"


@pytest.mark.parametrize("name", [e.name for e in EXPERIMENTS.values() if e.inputs])
def test_kept_results_name_the_inputs_that_are_there(name):
    experiment = EXPERIMENTS[name]
    if experiment.missing:
        pytest.skip(experiment.unchecked())
    made = json.loads(experiment.path.read_text(encoding="utf-8"))["made with"]["inputs"]
    assert made == {file: measure.file_digest(file) for file in experiment.inputs}


def test_what_the_text_says_in_words_is_so(monkeypatch):
    assert numbers.claims() == []
    whole = numbers.kept
    turned = whole("day")
    turned["laws"]["hpa"]["cost"] = 1.0
    monkeypatch.setattr(numbers, "kept", lambda name: turned if name == "day" else whole(name))
    assert (
        "the text says that balance tracking is the cheapest law on the day-long loads, and it is not so"
        in numbers.claims()
    )


# --- what makes a result stale ----------------------------------------------------------------------------------------


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A result of one input, in a folder of its own."""
    monkeypatch.setenv("FLUIDQ_DATA", str(tmp_path))
    monkeypatch.setattr(measure, "FOLDER", tmp_path / "measured")
    (tmp_path / "load.csv").write_text("1,2\n", encoding="utf-8")
    made = measure.Experiment("sum", "a sum", "paper.experiments.validation", lambda: {"x": 1 / 3}, ("load.csv",))
    made.refresh()
    return made


def test_a_result_is_kept_with_what_made_it(experiment):
    assert experiment.stale() == experiment.unchecked() == ""
    assert experiment.values() == {"x": 0.33333333}


def test_a_changed_input_and_changed_code_make_it_stale(experiment, tmp_path, monkeypatch):
    (tmp_path / "load.csv").write_text("1,3\n", encoding="utf-8")
    assert experiment.stale() == "measured/sum.json is stale: load.csv changed"
    digests = measure.code_digests("paper.experiments.validation")
    assert len(digests) > 10
    monkeypatch.setattr(measure, "code_digests", lambda module: {**digests, "fluidq.units": "0", "fluidq.new": "1"})
    assert experiment.stale() == "measured/sum.json is stale: load.csv, fluidq.new, fluidq.units changed"
    monkeypatch.setattr(measure, "code_digests", lambda module: {})
    assert experiment.stale().endswith(f" and {len(digests) - 3} more changed")


def test_an_absent_input_leaves_the_result_and_is_said(experiment, tmp_path):
    (tmp_path / "load.csv").unlink()
    assert experiment.stale() == ""
    assert experiment.unchecked() == "measured/sum.json is kept as it is: no load.csv"


def test_a_missing_result_is_named_and_one_without_input_cannot_be_built(experiment, tmp_path, monkeypatch):
    experiment.path.unlink()
    assert experiment.stale() == "measured/sum.json is missing"
    with pytest.raises(FileNotFoundError, match=r"sum\.json is missing; run python -m paper\.build"):
        experiment.values()
    (tmp_path / "load.csv").unlink()
    monkeypatch.setattr(build, "EXPERIMENTS", {"sum": experiment})
    with pytest.raises(FileNotFoundError, match=r"is missing, and so is its input load\.csv"):
        build.refresh_results()


def test_the_build_refreshes_what_is_stale_and_nothing_else(experiment, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "EXPERIMENTS", {"sum": experiment})
    assert build.refresh_results() == []
    (tmp_path / "load.csv").write_text("4\n", encoding="utf-8")
    assert build.refresh_results() == [experiment.path]
    assert "load.csv changed: a sum" in capsys.readouterr().out
    assert experiment.stale() == ""


def test_the_code_of_a_result_is_what_it_imports():
    found = measure.closure(["paper.experiments.day"])
    assert {"fluidq.simulate", "fluidq.plant", "fluidq.policies.hpa", "fluidq.formulas.balance"} <= found
    assert {"fluidq.clairvoyant", "paper.measure"} <= found
    assert not {"fluidq.events", "fluidq.cli", "paper.experiments.traces"} & found


def test_comments_and_docstrings_are_not_code(monkeypatch, tmp_path):
    def digest(source):
        (tmp_path / "one.py").write_text(source, encoding="utf-8")
        measure._bare.cache_clear()
        monkeypatch.setattr(measure, "closure", lambda modules: {"one"})
        monkeypatch.setattr(measure, "_source", lambda name: (source, tmp_path / "one.py"))
        return measure.code_digests("one")

    try:
        first = digest('"""Words."""\n\n\ndef f(x):\n    """More."""\n    return x + 1\n')
        assert digest("def f(x):\n    # a word\n    return (x + 1)\n") == first
        assert digest("def f(x):\n    return x + 2\n") != first
        (tmp_path / "data.toml").write_text("x = 1\n", encoding="utf-8")
        assert digest('"""Words."""\n\n\ndef f(x):\n    return x + 1\n') != first
    finally:
        measure._bare.cache_clear()


def test_a_check_says_what_it_cannot_see(monkeypatch, capsys):
    idle = types.SimpleNamespace(
        stale=lambda: "", unchecked=lambda: "measured/x.json is kept as it is: no y", path=checks.TEX
    )
    monkeypatch.setattr(checks, "EXPERIMENTS", {"x": idle})
    monkeypatch.setattr(checks, "inputs", lambda names: [])
    monkeypatch.setattr(numbers, "render", lambda: NUMBERS)
    monkeypatch.setattr(tables, "render", lambda: TABLES)
    assert build.run(["--check"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "measured/x.json is kept as it is: no y"
    idle.stale = lambda: "measured/x.json is stale: y changed"
    assert build.run(["--check"]) == 1
    assert "measured/x.json is stale: y changed; run python -m paper.build" in capsys.readouterr().out


# --- the text ---------------------------------------------------------------------------------------------------------


def test_equations_are_those_of_the_derivations():
    assert checks.equations() == EQUATIONS, "run python -m derivations --write"


def test_a_stale_and_a_missing_file_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "render", lambda: NUMBERS)
    monkeypatch.setattr(tables, "render", lambda: TABLES)
    (tmp_path / "equations.tex").write_text(checks.equations().replace("phi", "psi"), encoding="utf-8")
    assert checks.stale(tmp_path) == [
        "equations.tex is stale; run python -m derivations --write",
        "numbers.tex is missing; run python -m paper.build",
        "tables.tex is missing; run python -m paper.build",
    ]


def test_every_macro_used_is_defined_and_every_defined_one_is_used():
    assert checks.macros(TEX, (EQUATIONS, NUMBERS, TABLES), appendix.render()) == []


def test_macros_without_definition_or_use_are_seen():
    extra = "\\newcommand{\\NumIdle}{7}% nobody asks\n" + NUMBERS.splitlines()[1] + "\n"
    wrong = checks.macros(add(r"\NumTypo"), (EQUATIONS, NUMBERS, TABLES, extra), appendix.render())
    assert wrong == [
        r"\NumTypo is used but not defined",
        r"\NumIdle is defined but not used",
        r"\NumIsl is defined twice",
    ]
    assert checks.macros(TEX + "% \\NumTypo", (EQUATIONS, NUMBERS, TABLES), appendix.render()) == []


def test_displayed_equations_are_macros():
    assert checks.displays(TEX) == []
    assert len(re.findall(r"\\Eq", checks.body(TEX))) >= 6
    for typed in (r"\[ x = y \]", "\\begin{align*}\\EqBalanceRatio + x\\end{align*}"):
        assert len(checks.displays(add(typed))) == 1


def test_figure_scripts_and_figures_shown_are_one_set():
    assert checks.figure_scripts(TEX, checks.scripts()) == []
    assert checks.scripts() == ["laws", "real_day", "shock_map", "splits", "tuned", "waiting"]
    assert checks.figure_scripts(TEX, [*checks.scripts(), "spare"]) == [
        "figures/spare.py makes a figure that is not shown"
    ]
    assert checks.figure_scripts(TEX, checks.scripts()[1:]) == ["figures/laws is shown but no script makes it"]


def test_figures_name_their_inputs(monkeypatch):
    assert checks.inputs(checks.scripts()) == []
    monkeypatch.setattr("paper.figures.splits.INPUTS", ("paper/measured/nothing.json",))
    monkeypatch.setattr("paper.figures.laws.INPUTS", ())
    assert checks.inputs(["laws", "splits"]) == [
        "figures/laws.py does not name its inputs",
        "figures/splits.py names measured/nothing.json, which no experiment makes",
    ]


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
    with pytest.raises(ValueError, match="between two powers"):
        _ = numbers.Power("Size", 10**4.501, "", "", "").text
    assert numbers.Power("Size", 3e17, "", "", "").text == r"\ensuremath{10^{17}}"
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
