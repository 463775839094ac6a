"""The release: wheel and sdist hold what they should and nothing else, work when unpacked, and tell one version."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

# Read at run time, so they have to be in the wheel.
DATA = (
    "fluidq/catalog/gpus.toml",
    "fluidq/catalog/links.toml",
    "fluidq/catalog/models.toml",
    "fluidq/figures/fluid_vs_requests.json",
    "fluidq/io/metrics.toml",
    "fluidq/py.typed",
    "fluidq/style.mplstyle",
    "fluidq/validation/published.toml",
)


def built(kind: str, folder: Path) -> Path:
    """The wheel or the sdist, made by the project's own backend, without a network."""
    pytest.importorskip("hatchling", reason="the build backend is not installed: pip install hatchling")
    code = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def info(wheel: Path, name: str) -> str:
    """A file of the wheel's own folder."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if n.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()


def test_the_wheel_is_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    inside = {n for n in names if ".dist-info/" not in n}
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fluidq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == source
    assert set(DATA) <= inside
    assert {n.partition(".dist-info/")[2] for n in names if ".dist-info/" in n} == {
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert wheel.stat().st_size < 5_000_000


def test_the_wheel_needs_no_compiler(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    about = email.message_from_string(info(wheel, "WHEEL"))
    assert about["Root-Is-Purelib"] == "true"
    assert about["Tag"] == "py3-none-any"


def test_the_metadata_are_those_of_the_project(wheel):
    about = email.message_from_string(info(wheel, "METADATA"))
    assert about["Name"] == PROJECT["name"]
    assert about["Version"] == PROJECT["version"]
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE"]
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    needed = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.split(r"[<>=!~ ;\[]", line)[0] for line in needed} == {
        re.split(r"[<>=!~ ;\[]", line)[0] for line in PROJECT["dependencies"]
    }
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_is_an_entry_point(wheel):
    assert re.search(r"\[console_scripts\]\s+fluidq = fluidq\.cli:main\b", info(wheel, "entry_points.txt"))


def unpacked(wheel: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`python -m fluidq` from the unpacked wheel alone, not from the checkout or what is installed of it."""
    if not (folder / "fluidq").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    env = {**os.environ, "PYTHONPATH": str(folder), "MPLBACKEND": "Agg"}
    where = "import fluidq, runpy, sys; assert fluidq.__file__.startswith(sys.argv.pop(1)), fluidq.__file__; "
    code = where + "runpy.run_module('fluidq', run_name='__main__', alter_sys=True)"
    call = [sys.executable, "-c", code, str(folder), *args]
    return subprocess.run(call, capture_output=True, text=True, cwd=folder, env=env, timeout=300)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--version",), f"fluidq {PROJECT['version']}"),
        (("size", "--gpus", "64"), "GLM-5.2 on 64 x B200"),  # the catalogue
        (("figure", "shock-map", "--out", "figures"), "worst error"),  # the style
        (("figure", "fluid-vs-requests", "--out", "figures", "--format", "svg"), "worst error"),  # the measured table
        (("inspect", "table.csv"), "table.csv"),
    ],
)
def test_the_unpacked_wheel_works(wheel, tmp_path, args, said):
    rows = "".join(f"2023-11-16 18:15:{s:02d}.0000000,{1000 + s},{100 + s}\n" for s in range(30))
    (tmp_path / "table.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    done = unpacked(wheel, tmp_path, *args)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_the_unpacked_wheel_refuses_bad_input_in_one_sentence(wheel, tmp_path):
    done = unpacked(wheel, tmp_path, "size", "--nic", "400")
    assert done.returncode == 2
    assert done.stderr.startswith("fluidq: ")
    assert "Traceback" not in done.stderr


def test_the_sdist_holds_what_is_needed_to_build_and_test(tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "PKG-INFO",
        "derivations/balance.py",
        "tests/test_release.py",
        "paper/paper.tex",
        ".docs/mkdocs.yml",
        *DATA,
    ):
        assert wanted in names, wanted
    unwanted = re.compile(r"(^|/)(__pycache__|\.venv|\.git|build|\.derivations-cache)(/|$)|\.whl$")
    assert [name for name in names if unwanted.search(name)] == []


def test_one_version_everywhere():
    assert re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"])
    assert version("fluidq") == PROJECT["version"]
    assert CITATION["version"] == PROJECT["version"]
    # No module repeats it: `fluidq --version` asks the metadata.
    number = re.compile(rf"(?i)\b(__version__|version)\s*=\s*[\"']{re.escape(PROJECT['version'])}[\"']")
    assert [p.name for p in (ROOT / "fluidq").rglob("*.py") if number.search(p.read_text(encoding="utf-8"))] == []


def test_the_changelog_leads_to_this_version():
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings
    released = [h for h in headings if h != "Unreleased"]
    assert headings[0] == "Unreleased" or released[0].split()[0].strip("[]") == PROJECT["version"]
    for heading in released:
        assert re.fullmatch(r"\[?\d+\.\d+\.\d+\]? - \d{4}-\d\d-\d\d", heading), heading
    assert not released or released[0].split()[0].strip("[]") == PROJECT["version"]


def test_the_citation_is_valid():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    for key in ("message", "title", "abstract"):
        assert CITATION[key].strip()
    assert CITATION["authors"]
    for author in CITATION["authors"]:
        assert author.get("name") or (author.get("family-names") and author.get("given-names"))
        assert set(author) <= {"name", "family-names", "given-names", "affiliation", "orcid", "website"}
    assert CITATION["license"] == PROJECT["license"]
    assert set(CITATION["keywords"]) == set(PROJECT["keywords"])
    allowed = {"cff-version", "message", "type", "title", "abstract", "authors", "version", "license", "keywords"}
    assert set(CITATION) <= allowed | {
        "date-released",
        "repository-code",
        "url",
        "doi",
        "preferred-citation",
        "references",
    }


def test_the_package_is_marked_as_typed():
    assert (ROOT / "fluidq" / "py.typed").is_file()


def test_the_top_level_is_what_the_readme_names():
    """Nothing stray is committed beside the folders that are described."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    top = {name.split("/")[0] for name in listed.stdout.splitlines()}
    folders = {"derivations", "fluidq", "notebooks", "paper", "tests"}
    files = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "pyproject.toml"}
    assert {name for name in top if not name.startswith(".")} - folders - files == set()
