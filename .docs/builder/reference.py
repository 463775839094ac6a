"""The reference: every flag of the command line from its parser, and a page for each public module."""

import argparse
import html
import pkgutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def public_modules() -> list[str]:
    """The modules of fluidq that a user imports: neither private, nor the command line's own."""
    import fluidq

    found = ["fluidq"]
    for info in pkgutil.walk_packages(fluidq.__path__, "fluidq."):
        parts = info.name.split(".")[1:]
        if not any(part.startswith("_") for part in parts) and parts[0] not in ("commands", "cli"):
            found.append(info.name)
    return sorted(found)


def module_page(name: str) -> str:
    """One module: its docstring, and every public name with its own."""
    return f"::: {name}\n"


def api_overview(modules: list[str]) -> str:
    """The entry page of the API: what `import fluidq as fq` gives, and every module."""
    import fluidq

    rows = [f"| [`{name}`]({name}.md) | {first_sentence(name)} |" for name in modules]
    names = []
    for name in fluidq.__all__:
        thing = getattr(fluidq, name)
        words = (thing.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        names.append(f"| `fq.{name}` | {_cell(words)} |")
    return "\n".join(
        [
            "# API",
            "",
            "What `import fluidq as fq` gives; each name is loaded when it is first used.",
            "",
            "| name | what it is |",
            "|---|---|",
            *names,
            "",
            "## Modules",
            "",
            "| module | what it holds |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def first_sentence(module: str) -> str:
    """The first line of a module's docstring, read without importing it."""
    import ast

    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return _cell(docstring.split("\n\n")[0].replace("\n", " "))


def cli_page() -> str:
    """Every verb and flag, as the parser knows them."""
    from fluidq.cli import DESCRIPTION, _parser

    parser = _parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parts = [
        "# Command line",
        DESCRIPTION.strip(),
        "Exit codes: 0 done; 1 done, but the answer is no; 2 bad input, said in one sentence. "
        "`python -m fluidq` is the same command.",
        _table([a for a in parser._actions if a is not verbs]),
    ]
    for name, verb in verbs.choices.items():
        usage = " ".join(verb.format_usage().split()).removeprefix("usage: ")
        parts += [f"## fluidq {name} {{ #{name} }}", _text(verb.description or ""), f"```text\n{usage}\n```"]
        for group in verb._action_groups:
            if group._group_actions:
                own = group.title not in ("options", "positional arguments")
                parts += [f"**{group.title}**"] if own and group.title else []
                parts.append(_table(group._group_actions))
        parts += [_example(verb.epilog)] if verb.epilog else []
    return "\n\n".join(parts) + "\n"


def _example(epilog: str) -> str:
    said, _, command = epilog.partition(": ")
    return f"{said.capitalize()}:\n\n```text\n{' '.join(command.split())}\n```"


def _table(actions: list[argparse.Action]) -> str:
    rows = []
    for a in actions:
        takes = (
            a.metavar if isinstance(a.metavar, str) else "{" + ",".join(map(str, a.choices)) + "}" if a.choices else ""
        )
        flag = ", ".join(f"`{s}`" for s in a.option_strings) or f"`{takes or a.dest}`"
        takes = f" `{takes}`" if takes and a.option_strings and a.nargs != 0 else ""
        help = (a.help or a.__doc__ or "") % {**vars(a), "prog": "fluidq"} if a.help else (a.__doc__ or "")
        rows.append(f"| {flag}{takes} | {_cell(_text(help))} |")  # a bar inside backticks parts no cells
    return "\n".join(["| flag | what it does |", "|---|---|", *rows])


def _text(words: str) -> str:
    return html.escape(words, quote=False).replace("*", r"\*").replace("[", r"\[")


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")
