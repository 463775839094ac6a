"""Hooks of mkdocs: add the generated pages, and put what hand-written pages name in its place.

A page writes `{{ equation balance_ratio }}`, or `{{ every_figure }}`: a function of builder/data.py, on a line of its
own. Nothing is written into the repository.
"""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
for folder in (HERE, ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from builder import article, data, reference, theory  # noqa: E402
from mkdocs.structure.files import File  # noqa: E402

_NAMED = re.compile(r"^\{\{ (?:equation )?(\w+) \}\}$", re.MULTILINE)
_equation = theory.equations()


def generated() -> dict[str, str]:
    """Every generated page by its path."""
    found = theory.located()
    modules = reference.public_modules()
    pages = {"theory/index.md": theory.overview(found), "map.md": article.page(), "cli.md": reference.cli_page()}
    pages |= {f"theory/{d.id}.md": theory.page(d, module, article.used_by(d.id)) for d, module in found}
    pages |= {"api/index.md": reference.api_overview(modules)}
    pages |= {f"api/{name}.md": reference.module_page(name) for name in modules}
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return pages


def on_config(config: Any) -> Any:
    """Fill the two sections of the navigation that are generated."""
    _section(config.nav, "Theory", ["theory/index.md", *(f"theory/{d.id}.md" for d, _ in theory.located())])
    _section(config.nav, "API", ["api/index.md", *({n: f"api/{n}.md"} for n in reference.public_modules())])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for path, content in {**generated(), **data.pictures()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what the page names in its place; an unknown name fails the build."""
    root = "/".join([".."] * page.file.src_uri.count("/")) or "."

    def found(match: re.Match[str]) -> str:
        if "equation " not in match[0]:
            return data.DIRECTIVES[match[1]]()
        return _equation(match[1]).replace("DOCS_ROOT", root)

    return _NAMED.sub(found, markdown)


def _section(nav: list[Any], name: str, items: list[Any]) -> None:
    for entry in nav:
        if isinstance(entry, dict):
            for key, value in entry.items():
                if key == name:
                    entry[key] = items
                elif isinstance(value, list):
                    _section(value, name, items)
