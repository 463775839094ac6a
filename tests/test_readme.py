"""The README's commands exist, its Python runs, and its links lead somewhere."""

import doctest
import re
import shlex
from pathlib import Path

from fluidq.cli import _parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_runs():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_fluidq_command_parses():
    lines = [line.split("#")[0] for line in README.splitlines() if line.startswith("fluidq ")]
    assert len(lines) >= 4
    for line in lines:
        _parser().parse_args(shlex.split(line)[1:])


def test_ci_runs_the_same_test_command():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert commands[1].endswith("-m pytest")
    assert "grep -m1 'pytest$' README.md" in (ROOT / ".ci" / "run").read_text()


def test_relative_links_exist():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert target.startswith("http") or (ROOT / target).exists(), f"{name}: {target}"
