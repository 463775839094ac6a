"""The site: its Python runs, its commands parse, its map is true and complete, and its links lead somewhere."""

import ast
import copy
import doctest
import importlib
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import fluidq
from fluidq import figures
from fluidq.cli import VERBS, _parser, main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".docs"
PAGES = sorted((DOCS / "pages").rglob("*.md"))
TEXT = {path.relative_to(DOCS / "pages").as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
THEORY = ROOT.parent / "shared" / "theory.md"


@pytest.fixture(scope="module")
def builder() -> Any:
    """The generators of the site, loaded as the site's own hooks load them."""
    pytest.importorskip("latex2mathml", reason="the site needs: pip install 'fluidq[docs]'")
    sys.path.insert(0, str(DOCS))
    try:
        names = ("article", "data", "doctest_blocks", "reference", "theory")
        pytest.importorskip("griffe", reason="the site needs: pip install 'fluidq[docs]'")
        yield {name: importlib.import_module(f"builder.{name}") for name in names}
    finally:
        sys.path.remove(str(DOCS))


# --- what pages say runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, text in TEXT.items() if ">>> " in text])
def test_the_python_of_a_page_runs(name):
    result = doctest.testfile(str(DOCS / "pages" / name), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def commands() -> list[tuple[str, list[str]]]:
    """Every `fluidq ...` line of a page with its arguments."""
    return [
        (name, shlex.split(line, comments=True)[1:])
        for name, text in TEXT.items()
        for block in re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith("fluidq ")
    ]


def test_every_command_of_a_page_parses():
    found = commands()
    assert len(found) >= 25
    for _, words in found:
        _parser().parse_args(words)
    # Every verb is taught somewhere.
    assert {words[0] for _, words in found} >= {"tune", "size", "bounds", "compare", "report", "figure", "inspect"}


def test_quick_commands_of_the_guides_run(capsys):
    quick = [w for _, w in commands() if w[0] in ("size", "bounds") and not any("." in x and "yaml" in x for x in w)]
    assert len(quick) >= 6
    for words in quick:
        assert main([*words, "--json"]) in (0, 1), words
        assert capsys.readouterr().out.startswith("{"), words


def test_python_that_is_only_shown_names_what_exists():
    blocks = [
        block
        for text in TEXT.values()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    assert blocks
    for block in blocks:
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fluidq":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fq":
                assert hasattr(fluidq, node.attr), node.attr
            if isinstance(node, ast.Call):
                _check_keywords(node)


def _check_keywords(call: ast.Call) -> None:
    """Keywords of a call of ours are parameters of what is called."""
    import inspect

    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    homes = {"read_prometheus": "io", "read_benchmark": "io", "calibrate": "calibrate", "draw": "replay"}
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "fq":
        thing = getattr(fluidq, name)
        thing = getattr(thing, name) if inspect.ismodule(thing) else thing
    elif name in homes:
        thing = getattr(importlib.import_module(f"fluidq.{homes[name]}"), name)
        thing = getattr(thing, name) if inspect.ismodule(thing) else thing
    else:
        return
    inspect.signature(thing).bind_partial(*call.args, **{k.arg: k.value for k in call.keywords if k.arg})


def test_abbreviations_are_in_the_glossary():
    text = TEXT["glossary.md"]
    for word in (
        "TTFT",
        "TPOT",
        "ITL",
        "ISL",
        "OSL",
        "KV",
        "φ",
        "τ",
        "δ",
        "Q0",
        "C, Q",
        "Relay",
        "Cold start",
        "Hit rate",
    ):
        assert re.search(rf"^\*\*[^*]*{re.escape(word)}[^*]*\*\*$", text, re.MULTILINE), word


def test_limits_come_from_the_measurement(builder):
    table = builder["data"].fluid_errors()
    rows = figures.REGISTRY["fluid-vs-requests"].data(case="balanced").rows
    (worst,) = [row["ttft"] for row in rows if row["load"] == 0.95 and row["workers"] == 10]
    assert f"{1 - worst['fluid'] / worst['requests']:.1%}" in table
    assert "{{ fluid_errors }}" in TEXT["limits.md"]


# --- the map ----------------------------------------------------------------------------------------------------------


def problems(statements: list[dict[str, Any]]) -> list[str]:
    """What is wrong with a map: names that do not exist, and what is left out."""
    from derivations import all_derivations

    known = {d.id for d in all_derivations()}
    found = []
    for s in statements:
        found += [f"{s['id']}: no derivation {d}" for d in s["derivations"] if d not in known]
        found += [f"{s['id']}: no function {name}" for name in s["functions"] if not _exists(name)]
        found += [f"{s['id']}: no figure {name}" for name in s.get("figures", ()) if name not in figures.names()]
        if bool(s.get("figures")) == bool(s.get("no_figure")):
            found.append(f"{s['id']}: needs either a figure or the reason why there is none")
        found += [f"{s['id']}: no test {test}" for test in s["tests"] if not _is_a_test(test)]
        found += [f"{s['id']}: {key} is empty" for key in ("says", "derivations", "functions", "tests") if not s[key]]
    covered = {d for s in statements for d in s["derivations"]}
    found += [f"{d} belongs to no statement" for d in sorted(known - covered)]
    shown = {name for s in statements for name in s.get("figures", ())}
    found += [f"the figure {name} shows no statement" for name in figures.names() if name not in shown]
    ids = [s["id"] for s in statements]
    return found + [f"{id} is there twice" for id in sorted({i for i in ids if ids.count(i) > 1})]


def _exists(name: str) -> bool:
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            thing = getattr(thing, part, None)
        if callable(thing) and not isinstance(thing, ModuleType):
            return True
    return False


def _is_a_test(name: str) -> bool:
    file, _, function = name.partition("::")
    path = ROOT / file
    return path.exists() and f"\ndef {function}(" in path.read_text(encoding="utf-8") and function.startswith("test_")


def test_the_map_is_true_and_complete(builder):
    assert problems(builder["article"].statements()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"derivations": ["D01", "D77"]}, "no derivation D77"),
        ({"functions": ["fluidq.sizing.sise"]}, "no function fluidq.sizing.sise"),
        ({"figures": ["no-such-figure"], "no_figure": ""}, "no figure no-such-figure"),
        ({"figures": [], "no_figure": ""}, "needs either a figure or the reason"),
        ({"tests": ["tests/test_sizing.py::test_nothing"]}, "no test tests/test_sizing.py::test_nothing"),
        ({"derivations": ["D01"]}, "D02 belongs to no statement"),
        ({"id": "rounding"}, "rounding is there twice"),
        ({"says": ""}, "says is empty"),
    ],
)
def test_a_damaged_map_is_seen(builder, change, said):
    statements = copy.deepcopy(builder["article"].statements())
    statements[0] |= change
    assert any(said in problem for problem in problems(statements))


def test_every_statement_that_the_theory_lists_is_in_the_map(builder):
    if not THEORY.exists():
        pytest.skip("the theory's own list of statements is not beside this checkout")
    section = THEORY.read_text(encoding="utf-8").partition("## 1.3")[2].partition("\n---")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("|") and "D" in line.split("|")[2]]
    rows = [row for row in rows if re.search(r"D\d\d", row)]
    assert len(rows) >= 10
    carried = [set(s["derivations"]) for s in builder["article"].statements()]
    for row in rows:
        wanted = set()
        for first, last in re.findall(r"D(\d\d)(?:–D(\d\d))?", row):
            wanted |= {f"D{n:02d}" for n in range(int(first), int(last or first) + 1)}
        assert any(wanted <= have for have in carried), row


def test_the_page_of_the_map_names_every_formula_and_every_system(builder):
    from fluidq.formulas import registry
    from fluidq.systems import SYSTEMS

    page = builder["article"].page()
    for name, about in registry.items():
        assert f"fluidq.formulas.{about['module']}.{name}]" in page, name
    for system in SYSTEMS:
        assert f"### {system.name}\n" in page


# --- generated pages --------------------------------------------------------------------------------------------------


def test_every_derivation_has_its_page_with_every_formula(builder):
    theory = builder["theory"]
    located = theory.located()
    assert [d.id for d, _ in located] == [f"D{n:02d}" for n in range(1, len(located) + 1)]
    for d, module in located:
        page = theory.page(d, module, ["used"])
        for form in d.forms:
            assert f"{{ #{form.name} }}" in page
        for proof in d.proofs:
            assert theory.words(proof.words) in page
        assert page.count("<math") >= len(d.forms)


def test_a_command_without_mathml_is_refused(builder):
    with pytest.raises(ValueError, match="no MathML for"):
        builder["theory"].mathml(r"\nosuchcommand{x}")


def test_the_command_line_page_names_every_flag(builder):
    page = builder["reference"].cli_page()
    for verb in VERBS:
        assert f"## fluidq {verb} " in page
        sub = next(iter(_parser()._subparsers._group_actions)).choices[verb]
        for action in sub._actions:
            for flag in action.option_strings:
                assert f"`{flag}`" in page, f"{verb} {flag}"


def test_public_modules_are_those_without_an_underscore(builder):
    found = builder["reference"].public_modules()
    assert {"fluidq", "fluidq.simulate", "fluidq.policies.hpa", "fluidq.formulas.buffer", "fluidq.io.traces"} <= set(
        found
    )
    assert not [name for name in found if "._" in name or name.startswith(("fluidq.commands", "fluidq.cli"))]
    for name in fluidq.__all__:
        assert f"`fq.{name}`" in builder["reference"].api_overview(found)


def test_examples_in_docstrings_are_fenced(builder):
    marked = builder["doctest_blocks"].marked
    text = "What it is.\n\n    >>> 1 + 1\n    2\n    >>> 3\n    3\n\nMore [tok] [tok]."
    assert (
        marked(text)
        == "What it is.\n\n    ```pycon\n    >>> 1 + 1\n    2\n    >>> 3\n    3\n    ```\n\nMore [tok] \\[tok]."
    )
    assert marked("no example") == "no example"


# --- the built site ---------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """What a page points to, what it can be pointed at, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(found.get("href", ""))


def broken(site: Path) -> list[str]:
    """Links and files of a site that lead nowhere, external ones that are no address, and what needs a network."""
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    found.append(f"{where}: loads {link}")
                elif parts.scheme not in ("http", "https", "mailto") or not (parts.netloc or parts.scheme == "mailto"):
                    found.append(f"{where}: {link} is no address")
                continue
            if path.name == "404.html":  # its links are for the root of a server
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{where}: {link} has no such place")
    return found


def test_broken_links_are_seen(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="#top">x</a><h1 id="top">x</h1>')
    (tmp_path / "b.html").write_text('<h2 id="here">x</h2>')
    assert broken(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="c.html">x</a><a href="b.html#gone">x</a><a href="https:///x">x</a><script src="https://cdn/x.js"></script>'
    )
    assert sorted(broken(tmp_path)) == [
        "a.html: b.html#gone has no such place",
        "a.html: c.html leads nowhere",
        "a.html: https:///x is no address",
        "a.html: loads https://cdn/x.js",
    ]


def test_the_site_builds_strictly_and_every_link_leads_somewhere(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the site needs: pip install 'fluidq[docs]'")
    pytest.importorskip("material", reason="the site needs: pip install 'fluidq[docs]'")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml"), "-d", str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    site = tmp_path
    assert broken(site) == []
    text = (site / "theory" / "D14.html").read_text(encoding="utf-8")
    assert "<math" in text
    assert "MathJax" not in text
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert "{{" not in re.sub(r"<(script|code|pre)\b.*?</\1>", "", page, flags=re.DOTALL), path.name
