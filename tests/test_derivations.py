"""Every derivation: proved, with fitting units, next to published figures; and each kind of damage is caught."""

import ast
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import sympy as sp

import derivations
from derivations import __main__ as shell
from derivations import core, coverage, layout, proving, show, to_jax, to_latex, units
from derivations.functions import Least, Most, Ratio, plain
from derivations.symbols import Q0, QUANTITIES, C, P, delta, hit, isl, quantity, tau
from derivations.to_jax import body

ROOT = Path(__file__).parents[1]
ALL = derivations.all_derivations()
FORMS = [(d, f) for d in ALL for f in d.forms]
CHECKS = [(d, c) for d in ALL for c in d.published]

each = pytest.mark.parametrize("d", ALL, ids=lambda d: d.id)
each_form = pytest.mark.parametrize(("d", "form"), FORMS, ids=[f"{d.id}-{f.name}" for d, f in FORMS])
each_check = pytest.mark.parametrize(("d", "check"), CHECKS, ids=[c.id for _, c in CHECKS])


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "derivations", *arguments], cwd=ROOT, capture_output=True, text=True)


# --- proofs -----------------------------------------------------------------------------------------------------------


@functools.cache
def proved(id):
    """What each proof leaves over, and its seconds."""
    d, found = derivations.derivation(id), []
    for proof in d.proofs:
        start = time.perf_counter()
        left = core.run_proof(d, proof)
        found.append((proof, left, time.perf_counter() - start))
    return found


@each
def test_every_proof_holds(d):
    assert [(proof.words, left) for proof, left, _ in proved(d.id) if left] == []


@each_form
@pytest.mark.parametrize("damage", ["negated", "doubled", "regular form negated"])
def test_a_damaged_formula_fails_its_proof(d, form, damage):
    if damage == "regular form negated":
        if form.regular is None:
            pytest.skip("one face only")
        changes = {"regular": -form.regular}
    else:
        # With one face only, the damaged face is also the one that becomes JAX.
        changes = {"textbook": form.textbook * (-1 if damage == "negated" else 2)}
    damaged = d.with_form(form.name, **changes)
    quickest_first = sorted(proved(d.id), key=lambda found: found[2])
    assert any(core.run_proof(damaged, proof) for proof, _, _ in quickest_first)


def test_anything_but_a_vanishing_residual_is_a_failure():
    d = ALL[0]
    for residual in (1, sp.Symbol("x"), False, None, [], [0, 1], "0", sp.nan):
        assert core.run_proof(d, core.Proof("w", lambda _, r=residual: r)) != "", residual
    for residual in (0, sp.S.Zero, True, sp.true, [0, True], isl - isl):
        assert core.run_proof(d, core.Proof("w", lambda _, r=residual: r)) == "", residual
    assert "ZeroDivisionError" in core.run_proof(d, core.Proof("w", lambda _: 1 // 0))


@each
def test_a_proof_that_ignores_its_derivation_is_noticed(d):
    """At least one proof must look at each formula; the damage test would not see one without formulas."""
    asked = set()

    class Watched(core.Derivation):
        def form(self, name):
            asked.add(name)
            return super().form(name)

    watched = Watched(**{name: getattr(d, name) for name in d.__dataclass_fields__})
    for proof in d.proofs:
        core.run_proof(watched, proof)
    assert asked >= {f.name for f in d.forms}


# --- units ------------------------------------------------------------------------------------------------------------


@each
def test_units_fit(d):
    d.check_units()


@each_form
def test_a_damaged_unit_is_caught(d, form):
    with pytest.raises(units.UnitError):
        d.with_form(form.name, unit=f"{form.unit}*s").check_units()


def test_a_damaged_step_is_caught():
    d = derivations.derivation("D14")
    wrong = replace(d, steps=(core.Step("bytes and seconds", Q0 + tau),))
    with pytest.raises(units.UnitError, match="mixes"):
        wrong.check_units()


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (Q0 + delta * tau, "B"),
        (sp.Max(0, delta * tau - C), "B"),
        (Ratio(Q0, delta, sp.oo), "s"),
        (sp.Piecewise((Q0, delta < 0), (C, True)), "B"),
        (sp.sqrt(C * Q0), "B"),
        (sp.exp(Q0 / C), "1"),
        (sp.Derivative(C * tau, tau), "B"),
        (sp.Integral(P * sp.Symbol("x") / tau, (sp.Symbol("x"), 0, tau)), "B"),
        (Most(Q0, C) - Least(Q0, C), "B"),
    ],
)
def test_unit_of(expr, wanted):
    from derivations.symbols import units as known

    assert units.unit_of(expr, known()) == units.parse(wanted)


@pytest.mark.parametrize(
    "expr",
    [
        Q0 + tau,
        sp.exp(tau),
        tau**delta,
        sp.Max(1, tau),
        sp.Piecewise((Q0, tau > 1), (C, True)),
        sp.Piecewise((Q0, tau > 0), (P, True)),
        Ratio(Q0, delta, C),
        sp.Symbol("nobody"),
        1 + isl,
    ],
    ids=str,
)
def test_unit_of_refuses(expr):
    from derivations.symbols import units as known

    with pytest.raises(units.UnitError):
        units.unit_of(expr, known())


def test_unit_text():
    assert units.parse("tok/s/GPU") * units.parse("GPU*s/req") == units.parse("tok/seq")
    assert str(units.parse("B^2/s")) == "B^2/s"
    with pytest.raises(units.UnitError, match="parsec"):
        units.parse("parsec/s")


def test_the_dimensional_form_must_be_the_same_formula():
    one = units.one("tok/req")
    form = core.ClosedForm("half_square", "x", isl * (isl - 1) / 2, "tok^2/req^2", "w", (isl,))
    with pytest.raises(units.UnitError, match="mixes"):
        form.check_unit()
    replace(form, dimensional=isl * (isl - one) / 2).check_unit()
    with pytest.raises(units.UnitError, match="another formula"):
        replace(form, dimensional=isl * (isl - 2 * one) / 2).check_unit()


# --- published figures ------------------------------------------------------------------------------------------------


@each_check
def test_published_figures_are_judged_as_declared(d, check):
    (result,) = replace(d, published=(check,)).check_published()
    assert result.as_declared, (result.ours, check.published)


@each_check
def test_a_damaged_published_figure_is_caught(d, check):
    if check.expected != "hit":
        pytest.skip("a miss or a soft check asserts nothing")
    wrong = replace(check, published=check.published * 1.2 + 0.01)
    (result,) = replace(d, published=(wrong,)).check_published()
    assert result.verdict == "miss"
    assert not result.as_declared


def test_the_checks_of_the_theory_are_there():
    assert list(coverage.CHECKS) == [f"V{number:02}" for number in range(1, 24)]
    absent = coverage.missing(r for d in ALL for r in d.check_published())
    if len(ALL) < 32:
        pytest.skip(f"{len(ALL)} of 32 derivations are written; no figure yet of {', '.join(absent) or 'none'}")
    assert [d.id for d in ALL] == [f"D{number:02}" for number in range(1, 33)]
    assert absent == []


def test_a_figure_belongs_to_a_check():
    make = dict(source="s", tag="D", published=1.0, ours=lambda d: 1.0, tolerance=0.1)
    covered = {id: core.Published(id, **make).covers for id in ("V12-1GB/s-88s", "V03b", "V03b-x", "V07", "D31-full")}
    assert covered == {"V12-1GB/s-88s": "V12", "V03b": "V03", "V03b-x": "V03", "V07": "V07", "D31-full": "D31"}


def test_figures_are_counted_by_check():
    make = dict(source="s", tag="P", ours=lambda d: 1.0, tolerance=0.1)
    checks = (
        core.Published("V01-a", published=1.0, **make),
        core.Published("V01-b", published=2.0, expected="miss", reason="r", **make),
        core.Published("V02", published=1.05, **make),
        core.Published("D99", published=1.0, **make),
    )
    results = replace(ALL[0], published=checks).check_published()
    found = coverage.by_number(results)
    assert list(found) == ["V01", "V02", "D99"]
    assert (found["V01"]["hit"], found["V01"]["miss"], found["V01"]["figures"]) == (1, 1, 2)
    assert (found["V01"]["worst"], found["V01"]["worst_error"], found["V01"]["reasons"]) == ("V01-b", -0.5, ["r"])
    assert coverage.missing(results) == [f"V{number:02}" for number in range(3, 24)]


def test_check_ids_are_unique():
    ids = [c.id for _, c in CHECKS]
    assert len(set(ids)) == len(ids)


def test_secondary_sources_are_soft_and_misses_need_a_reason():
    make = dict(id="V99", source="s", published=1.0, ours=lambda d: 3.0, tolerance=0.1)
    with pytest.raises(core.DerivationError, match="reason"):
        core.Published(**make, tag="S")
    with pytest.raises(core.DerivationError, match="reason"):
        core.Published(**make, tag="P", expected="miss")
    with pytest.raises(core.DerivationError, match="tolerance"):
        core.Published(**{**make, "tolerance": 0.0}, tag="P")
    soft = core.Published(**make, tag="S", reason="r")
    (result,) = replace(ALL[0], published=(soft,)).check_published()
    assert (result.verdict, result.relative_error) == ("soft", 2.0)


# --- what is generated ------------------------------------------------------------------------------------------------


def test_generated_files_are_fresh():
    assert shell.stale(ROOT) == []


def test_a_stale_a_missing_and_a_left_over_file_are_named(tmp_path, capsys):
    shell.write(tmp_path)
    assert shell.stale(tmp_path) == []
    folder = tmp_path / "fluidq" / "formulas"
    balance = folder / "balance.py"
    balance.write_text(balance.read_text().replace("*", "+", 1))
    (folder / "buffer.py").unlink()
    (folder / "old.py").write_text("x = 1\n")
    assert shell.stale(tmp_path) == [
        "fluidq/formulas/balance.py is stale",
        "fluidq/formulas/buffer.py is missing",
        "fluidq/formulas/old.py has no derivation",
    ]
    shell.write(tmp_path)
    assert shell.stale(tmp_path) == []


def test_check_fails_on_a_stale_file(monkeypatch, capsys):
    monkeypatch.setattr(shell, "stale", lambda: ["fluidq/formulas/balance.py is stale"])
    assert shell.run(["--check"]) == 1
    assert "fluidq/formulas/balance.py is stale; run python -m derivations --write" in capsys.readouterr().out


def test_macros_are_letters_and_unique():
    macros = [to_latex.macro(f) for _, f in FORMS]
    assert len(set(macros)) == len(macros)
    assert all(m[1:].isalpha() for m in macros)


def broken(expr, *arguments):
    return core.ClosedForm("broken", "x", expr, "1", "w", arguments)


@pytest.mark.parametrize(
    ("expr", "arguments", "why"),
    [
        (1 / (1 - hit), (hit,), "divide by 0"),
        (isl / (isl + tau), (isl, tau), "divide by 0"),
        (sp.log(isl), (isl,), "infinite"),
        (sp.sqrt(isl), (isl,), "no finite gradient"),
        (sp.gamma(C), (C,), "gamma"),
        (sp.Sum(C, (sp.Symbol("k"), 1, 3)), (C,), "Sum"),
        (sp.Piecewise((sp.log(isl), isl >= 0), (0, True)), (isl,), "infinite"),
        (sp.Piecewise((isl, isl > 0)), (isl,), "otherwise"),
    ],
    ids=str,
)
def test_the_printer_refuses_what_could_be_nan(expr, arguments, why):
    with pytest.raises(core.DerivationError, match=why):
        body(broken(expr, *arguments))


def test_the_printer_guards_a_branch():
    statements, _ = body(broken(sp.Piecewise((isl * sp.log(isl), isl > 0), (0, True)), isl))
    assert statements == [
        "isl = jnp.asarray(isl)",
        "inside = isl > 0",
        "isl_in = jnp.where(inside, isl, 8192.0)",
        "return jnp.where(inside, isl_in*jnp.log(isl_in), 0)",
    ]


def test_a_form_is_refused_when_it_does_not_fit_its_arguments():
    with pytest.raises(core.DerivationError, match="no arguments"):
        broken(isl * tau, isl)
    with pytest.raises(core.DerivationError, match="not used"):
        broken(isl, isl, tau)
    with pytest.raises(core.DerivationError, match=r"symbols\.quantity"):
        broken(sp.Symbol("x"), sp.Symbol("x"))
    with pytest.raises(core.DerivationError, match="lower case"):
        core.ClosedForm("Two2", "x", isl, "1", "w", (isl,))


def test_a_symbol_is_declared_once():
    assert quantity("tau", r"\tau", "s", QUANTITIES[tau].words, 88.0, "nonnegative") == tau
    with pytest.raises(ValueError, match="exists already"):
        quantity("tau", r"\tau", "s", "another thing", 1.0)
    assert "tau" in {s.name for s in QUANTITIES}
    assert len({s.name for s in QUANTITIES}) == len(QUANTITIES)


def test_regular_functions_evaluate_by_sign():
    x, y = sp.symbols("x y", positive=True)
    assert Ratio(x, y) == x / y
    assert Ratio(x, 0, sp.oo) == sp.oo
    assert Ratio(x, -y, 7) == 7
    assert Most(x + y, x) == x + y
    assert Least(x, x + y) == x
    free = sp.Symbol("free", real=True)
    assert plain(Ratio(x, free) + Most(x, free) + Least(x, free)) == x / free + sp.Max(x, free) + sp.Min(x, free)
    assert sp.diff(Ratio(x, free), free) == -Ratio(x, free**2)


def test_the_example_of_the_readme_is_a_derivation():
    text = (ROOT / "derivations" / "README.md").read_text(encoding="utf-8")
    module = ModuleType("example")
    exec(text.split("```python\n")[1].split("```")[0], vars(module))
    (d,) = core.all_derivations([module])
    assert core.first_failure(d) == ""
    assert d.check_published()[0].ours == pytest.approx(74.07, abs=0.01)
    source = to_jax.module_source("example", {"example": module})
    assert "def crossover_nic(*, r_P: Scalar, kappa_store: Scalar) -> Array:" in source
    assert core.first_failure(d.with_form("crossover_nic", textbook=-d.formula("crossover_nic"))) != ""


def test_derivations_import_sympy_only():
    allowed = set(sys.stdlib_module_names) | {"sympy", "mpmath", "derivations"}
    for file in (ROOT / "derivations").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {n.split(".")[0] for n in names} <= allowed, file.name


# --- the shell and the notebook ---------------------------------------------------------------------------------------


def test_json_on_standard_output_and_nothing_else():
    done = command("--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert [v["id"] for v in found] == [d.id for d in ALL]
    assert all(v["proved"] is True for v in found)
    for v in found:
        assert {"id", "name", "proved", "checks"} <= set(v)
        for c in v["checks"]:
            assert {"id", "source", "published", "ours", "relative_error", "verdict"} <= set(c)
            assert c["verdict"] in ("hit", "miss", "soft")


def test_published_checks_as_table_and_json():
    done = command("--published", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["proved"], found["derivations"]) == (len(ALL), len(ALL))
    assert sum(about["figures"] for about in found["checks"].values()) == found["figures"] == len(CHECKS)
    assert found["checks"]["V12"]["hit"] == 32
    assert set(found["missing"]) == set(coverage.CHECKS) - set(found["checks"])
    assert found["seconds"] > 0
    table = command("--published").stdout
    assert all(c.reason in " ".join(table.split()) for _, c in CHECKS if c.reason)
    for number in coverage.CHECKS:
        assert any(line.split(maxsplit=1)[0] == number for line in table.splitlines() if line.startswith("V"))
    assert f"{len(CHECKS)} published figures" in table


def test_table_and_a_failure_in_it(monkeypatch, capsys):
    d = derivations.derivation("D15")
    wrong = d.with_form("minimal_capacity", textbook=d.formula("minimal_capacity") / 2)
    verdict = proving.judge(wrong, "buffer", use_cache=False, said=lambda _: None)
    monkeypatch.setattr(shell, "prove_all", lambda use_cache, jobs: [verdict])
    assert shell.run([]) == 1
    text = capsys.readouterr().out
    assert "0 of 1 proved" in text
    assert "D15 NOT PROVED: it is enough" in text
    assert "UNEXPECTED (declared hit): V13-ladder-9.6s" in text


def test_show():
    text = command("show", "d15").stdout
    for word in (
        "D15  Minimal capacity",
        "Assumptions",
        "Steps",
        "minimal_capacity [B]",
        "V13-ladder-88s",
        "Limits",
        "τ",
    ):
        assert word in text
    latex = command("show", "D15", "--latex").stdout
    assert r"\[ C^\ast = \tau \left(\delta_\downarrow + \delta_\uparrow\right) \]" in latex
    unknown = command("show", "D99")
    assert unknown.returncode == 2
    assert "there is no derivation 'D99'; known: D01" in unknown.stderr
    assert "Traceback" not in unknown.stderr


@each
def test_it_renders_itself(d):
    page = d._repr_html_()
    assert page.count("<table>") == (1 if d.published else 0)
    assert page.count("$$") % 2 == 0
    for form in d.forms:
        assert form.name in page
        assert form.equation_latex in d._repr_latex_()
    text = str(d)
    assert max(map(len, text.splitlines())) <= 120
    for line in (d.name, "Symbols", "Assumptions", "Steps", "Proved", "Limits"):
        assert line in text
    assert "one[" not in text + page + show.as_latex(d)


def test_names_and_words_for_people():
    names = {
        r"\delta_\uparrow": "δ↑",
        r"T_{\mathrm{hit}}": "T_hit",
        r"\overline{I^2}": "⟨I²⟩",
        r"\bar{g}": "g\u0304",
        r"Q_0^\ast": "Q₀*",
        r"\frac{1}{2}": None,
    }
    assert {latex: layout.readable(latex) for latex in names} == names
    words = "C - delta_up tau <= 5 GB/s, p_down of P/D"
    assert show._prose(words) == r"$C$ $-$ $\delta_\uparrow$ $\tau$ $\le$ 5 GB/s, $p_{\mathrm{down}}$ of P/D"
    assert show._plain(words) == "C - δ↑ τ <= 5 GB/s, p_down of P/D"
    assert show.escaped(r"50 % of x^2 & \y") == r"50 \% of x\textsuperscript{2} \& \textbackslash y"


def test_roots_are_joined_and_ones_are_gone():
    expr = sp.sqrt(2) * sp.sqrt(C) / sp.sqrt(P)
    assert layout.text(expr) == "sqrt(2*C/P)"
    assert layout.latex(expr) == r"\sqrt{\frac{2 C}{P}}"
    assert layout.text(isl * (isl - units.one("tok/req"))) == "isl*(isl - 1)"


def test_a_relation_on_the_left_takes_no_equals_sign():
    form = derivations.derivation("D15").form("minimal_capacity")
    assert replace(form, symbol=r"C \leq").equation_latex.startswith(r"C \leq \tau")


def test_sums_put_the_minus_last():
    assert layout.text(1 - tau) == "1 - tau"
    assert layout.latex(1 - hit) == "1 - h"


# --- the cache --------------------------------------------------------------------------------------------------------


def test_an_unchanged_proof_is_not_run_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(proving, "CACHE", tmp_path)
    runs = []
    d = replace(ALL[0], proofs=(core.Proof("counted", lambda d: runs.append(1) or True),))
    quiet = {"said": lambda _: None}
    assert not proving.judge(d, "balance", **quiet).cached
    assert proving.judge(d, "balance", **quiet).cached
    assert len(runs) == 1
    assert not proving.judge(d, "balance", use_cache=False, **quiet).cached
    assert len(runs) == 2
    monkeypatch.setattr(proving, "content_key", lambda topic: "changed")
    assert not proving.judge(d, "balance", **quiet).cached
    assert len(runs) == 3


def test_a_failed_proof_is_never_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(proving, "CACHE", tmp_path)
    d = replace(ALL[0], proofs=(core.Proof("wrong", lambda d: False),))
    for _ in range(2):
        verdict = proving.judge(d, "balance", said=lambda _: None)
        assert not verdict.cached
        assert verdict.failures == ("wrong: left over: False",)


def test_our_values_are_remembered_too(tmp_path, monkeypatch):
    monkeypatch.setattr(proving, "CACHE", tmp_path)
    calls = []
    make = dict(id="V99", source="s", tag="D", published=1.0, tolerance=0.1)
    d = replace(ALL[0], published=(core.Published(**make, ours=lambda d: calls.append(1) or sp.Rational(21, 20)),))
    first, again = (proving.judge(d, "balance", said=lambda _: None) for _ in range(2))
    assert (first.cached, again.cached, len(calls)) == (False, True, 1)
    assert first.checks == again.checks
    assert again.checks[0].relative_error == pytest.approx(0.05)
    broken = replace(ALL[0], published=(core.Published(**make, ours=lambda d: 1 // 0),))
    verdict = proving.judge(broken, "balance", use_cache=False, said=lambda _: None)
    assert verdict.failures == ("published figures: ZeroDivisionError: integer division or modulo by zero",)


def test_the_key_follows_the_content_and_what_it_imports(tmp_path, monkeypatch):
    for file in (ROOT / "derivations").glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "later.py").write_text("from derivations.buffer import D14\nDERIVATIONS = ()\n")
    (tmp_path / "whole.py").write_text("import derivations.buffer\nDERIVATIONS = ()\n")
    (tmp_path / "near.py").write_text("def f():\n    from .buffer import D14\nDERIVATIONS = ()\n")
    (tmp_path / "every.py").write_text("from derivations import derivation\nDERIVATIONS = ()\n")
    monkeypatch.setattr(proving, "PACKAGE", tmp_path)
    before = {t: proving.content_key(t) for t in ("balance", "buffer", "later", "whole", "near", "every")}
    with (tmp_path / "buffer.py").open("a") as file:
        file.write("\n# changed\n")
    after = {t: proving.content_key(t) for t in before}
    assert {t for t in before if before[t] != after[t]} == {"buffer", "later", "whole", "near", "every"}
    for base in ("core", "symbols", "units", "functions", "__init__"):
        held = (tmp_path / f"{base}.py").read_text(encoding="utf-8")
        (tmp_path / f"{base}.py").write_text(held + "\n# changed\n", encoding="utf-8")
        assert proving.content_key("balance") != before["balance"], base
        (tmp_path / f"{base}.py").write_text(held, encoding="utf-8")
    assert proving.content_key("balance") == before["balance"]


# --- several processes ------------------------------------------------------------------------------------------------

FEW = {d.id: d for d in ALL if d.id in ("D01", "D03", "D15", "D31")}


def as_found(verdicts):
    return [(v.derivation.id, v.failures, v.checks, v.cached) for v in verdicts]


def die_unless_at_home(task):
    if multiprocessing.parent_process() is not None:
        os._exit(3)
    return proving._part(FEW[task[0]], task[1])


def no_pool(*arguments):
    raise OSError("no semaphores here")


@pytest.fixture
def few(monkeypatch, tmp_path):
    monkeypatch.setattr(proving, "_known", lambda: FEW)
    monkeypatch.setattr(proving, "CACHE", tmp_path)
    return as_found(proving.judge_all(use_cache=False, said=lambda _: None, jobs=1))


def test_processes_prove_the_same_in_the_same_order(few):
    said = []
    assert as_found(proving.judge_all(use_cache=False, said=said.append, jobs=2)) == few
    assert [f[0] for f in few] == ["D01", "D03", "D15", "D31"]
    total = sum(len(d.proofs) + 2 for d in FEW.values())
    assert len(said) == total
    assert said[-1].startswith(f"[{total}/{total}] D")
    assert all(not v.cached for v in proving.judge_all(said=said.append, jobs=2))
    assert all(v.cached for v in proving.judge_all(said=said.append, jobs=2))


@pytest.mark.parametrize(("name", "instead"), [("ProcessPoolExecutor", no_pool), ("_part_by_id", die_unless_at_home)])
def test_without_processes_the_proofs_are_run_here(few, monkeypatch, name, instead):
    monkeypatch.setattr(proving, name, instead)
    assert as_found(proving.judge_all(use_cache=False, said=lambda _: None, jobs=2)) == few
