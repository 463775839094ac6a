"""The map from the article's statements to derivations, functions, figures and tests: map.toml, told as a page."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.theory import located

ROOT = Path(__file__).parents[2]


def statements() -> list[dict[str, Any]]:
    """The statements of map.toml, in its order."""
    with (ROOT / ".docs" / "map.toml").open("rb") as file:
        return tomllib.load(file)["statement"]


def users(folder: str, modules: Mapping[str, str]) -> dict[str, list[str]]:
    """For each formula (name to module) the Python files of a folder that use it; the generated ones are left out."""
    reference = re.compile(rf"\b({'|'.join(sorted(set(modules.values())))})\.(\w+)\b")
    found: dict[str, list[str]] = {name: [] for name in modules}
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "formulas" not in path.parts:
            for module, name in set(reference.findall(path.read_text(encoding="utf-8"))):
                if modules.get(name) == module:
                    found[name].append(path.relative_to(ROOT).as_posix())
    return found


def page() -> str:
    """The map as Markdown: a table per statement, then every derivation with what uses it, then every system."""
    names = {d.id: d.name for d, _ in located()}
    parts = [
        "# Map of the article",
        "From each statement of the article to the derivation that makes it exact, the function that computes it, the "
        "figure that shows it and the tests that would fail if it were wrong. Built from `.docs/map.toml`; "
        "`tests/test_docs.py` checks every name in it, and that nothing is left out.",
    ]
    group = None
    for s in statements():
        if s["group"] != group:
            group = s["group"]
            parts.append(f"## {group}")
        parts.append(_statement(s, names))
    return "\n\n".join([*parts, _derivations(), _systems()]) + "\n"


def _statement(s: dict[str, Any], names: dict[str, str]) -> str:
    shown = ", ".join(f"[`{name}`](guides/figures.md#{name})" for name in s.get("figures", ()))
    rows = [
        ("derivation", ", ".join(f"[{d} {names[d]}](theory/{d}.md)" for d in s["derivations"])),
        ("function", ", ".join(f"[`{name}`][{name}]" for name in s["functions"])),
        ("figure", shown or f"none: {s['no_figure']}"),
        ("test", "<br>".join(f"`{name}`" for name in s["tests"])),
    ]
    if "differs" in s:
        rows.append(("what differs", _cell(s["differs"])))
    table = "\n".join(f"| {left} | {right} |" for left, right in rows)
    return f"### {s['id']} {{ #{s['id']} }}\n\n| statement | {_cell(s['says'])} |\n|---|---|\n{table}"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _derivations() -> str:
    rows = []
    of_statement = {d.id: [s["id"] for s in statements() if d.id in s["derivations"]] for d, _ in located()}
    formulas = {f.name: module for d, module in located() for f in d.forms}
    used, tested = users("fluidq", formulas), users("tests", formulas)
    for d, module in located():
        calls = "<br>".join(f"[`{f.name}`][fluidq.formulas.{module}.{f.name}]" for f in d.forms)
        inside = sorted({_module(path) for f in d.forms for path in used[f.name]})
        checks = sorted({Path(path).name for f in d.forms for path in tested[f.name]} | {"test_formulas.py"})
        said = ", ".join(f"[{name}](#{name})" for name in of_statement[d.id])
        code = "<br>".join(f"`{name}`" for name in inside) or "for the user"
        rows.append(
            f"| [{d.id}](theory/{d.id}.md) {d.name} | {said} | {calls} | {code} | "
            f"{'<br>'.join(f'`{c}`' for c in checks)} |"
        )
    head = "| derivation | statements | formulas | used in | tests that call them |\n|---|---|---|---|---|"
    words = (
        "Every proof is run by `tests/test_derivations.py`, and damaged to see it fail; every formula is compared with "
        "its SymPy object by `tests/test_formulas.py`."
    )
    return f"## Every derivation\n\n{words}\n\n{head}\n" + "\n".join(rows)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def used_by(id: str) -> list[str]:
    """The statements that rest on a derivation, as links for its page."""
    return [f"[{s['id']}](../map.md#{s['id']}): {s['says']}" for s in statements() if id in s["derivations"]]


def _systems() -> str:
    from fluidq.systems import report

    parts = [
        "## Systems that the article names",
        "Each with its model here, the call that reaches it, and its published figures against ours, as "
        "`fluidq size --systems` prints them; `tests/test_systems.py` checks each.",
    ]
    for system in report().to_dict()["systems"]:
        rows = [
            f"| {f['what']} [{f['unit']}] | {f['published']:,.5g} | {f['ours']:,.5g} | "
            f"{'at most ours' if f['kind'] == 'bound' else format(f['error'], '+.2%')} | {f['note']} |"
            for f in system["figures"]
        ]
        model = re.sub(r"\b(D\d\d)\b", r"[\1](theory/\1.md)", system["model"])
        parts += [
            f"### {system['name']}",
            f"{model[0].upper()}{model[1:]}.",
            f"Reached by `{system['call']}`. Source: {system['source']}.",
            "| figure | published | ours | error | note |\n|---|---|---|---|---|\n" + "\n".join(rows),
        ]
    return "\n\n".join(parts)
