"""Every notebook is stored without outputs, asserts its headline numbers, and runs in a folder of its own."""

import ast
import re
import resource
import shutil
import sys
import time
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
NAMES = (
    "01_how_to_split",
    "02_does_the_fabric_carry_it",
    "03_shocks",
    "04_why_autoscalers_oscillate",
    "05_real_autoscalers_on_a_real_day",
    "06_tuning_by_gradient",
    "07_what_is_a_second_of_cold_start_worth",
    "08_should_i_disaggregate",
    "09_from_prometheus_to_a_tuned_planner",
    "10_fluid_against_requests",
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROMISED = 90  # seconds on two idle cores
SECONDS = 400  # for one cell; the tests share their cores
EMBEDDED = "embedded default"

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> list[str]:
    """The code cells as plain Python, magics left out."""
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    return ["\n".join(line for line in cell.splitlines() if not line.startswith(("%", "!"))) for cell in cells]


def words(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> str:
    """A kernel of the running interpreter, known to this test alone: none has to be installed, none can be mistaken."""
    name = "under-test"
    write_kernel_spec(tmp_path / "jupyter" / "kernels" / name)
    for variable, folder in (
        ("JUPYTER_PATH", "jupyter"),
        ("JUPYTER_RUNTIME_DIR", "runtime"),
        ("IPYTHONDIR", "ipython"),
        ("MPLCONFIGDIR", "matplotlib"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    return name


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the package alone, as an installation leaves it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "fluidq", folder / "fluidq", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def execute(notebook: nbformat.NotebookNode, folder: Path, kernel: str) -> nbformat.NotebookNode:
    folder.mkdir(exist_ok=True)
    return NotebookClient(
        notebook, timeout=SECONDS, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}
    ).execute()


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", []))


def cpu_of_children() -> float:
    """CPU seconds of the kernels that have ended, on all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_all_ten_are_there_numbered_in_order():
    assert [path.stem for path in NOTEBOOKS] == list(NAMES)


@every_notebook
def test_nothing_that_ran_is_stored(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs, f"an output is stored below: {cell.source[:60]!r}"
            assert cell.execution_count is None
        assert "execution" not in cell.metadata
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert path.stat().st_size < 60_000


@every_notebook
def test_headline_numbers_are_asserted_and_cells_are_short(path):
    cells = code(path)
    trees = [ast.parse(cell) for cell in cells]
    asserts = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert len(asserts) >= 3
    assert not [node for node in asserts if isinstance(node.test, ast.Constant)]  # those cannot fail
    for cell in cells:
        assert len(cell.splitlines()) <= 40, f"logic for the library: {cell[:60]!r}"


@every_notebook
def test_it_is_a_story(path):
    """A title, a question, what to see in the figures, what to take away, and the limits."""
    text = words(path)
    assert re.match(r"# \w", text)
    for part in ("**The question.**", "## What to take away", "## Where this stops being true"):
        assert part in text, f"{part} is missing"
    assert text.count("*What to see.*") >= 2
    assert str(ROOT) not in text + "".join(code(path))


@every_notebook
def test_runs_from_top_to_bottom(path, tmp_path, kernel, record_property):
    before, start = cpu_of_children(), time.perf_counter()
    done = execute(read(path), tmp_path / "work", kernel)
    cpu, wall = cpu_of_children() - before, time.perf_counter() - start
    record_property("cpu_seconds", cpu)
    print(f"{path.stem}: {cpu:.0f} s of CPU, {wall:.0f} s on the clock")
    text = printed(done)
    assert "fluidq from a clone" in text
    assert re.search(rf"^(Data|Load): .*({EMBEDDED}|trace|real day|export)", text, re.MULTILINE), (
        "it does not say which data it took"
    )
    shown = [kind for cell in done.cells for out in cell.get("outputs", []) for kind in out.get("data", {})]
    assert shown.count("image/png") >= 2
    assert not [out for cell in done.cells for out in cell.get("outputs", []) if out.output_type == "error"]
    assert cpu < 2 * PROMISED  # CPU time: the clock depends on what else runs


@every_notebook
def test_begins_where_only_the_package_is_installed(path, tmp_path, kernel, site, monkeypatch):
    """Up to the cell that finds the data: the package alone on the path, no derivations, no traces."""
    monkeypatch.setenv("FLUIDQ_DATA", str(tmp_path / "nothing"))
    notebook = read(path)
    sources = [cell.source if cell.cell_type == "code" else "" for cell in notebook.cells]
    last = next(i for i, source in enumerate(sources) if EMBEDDED in source)
    others = ("", str(ROOT))
    prelude = f"import sys\nsys.path[:] = [{str(site)!r}, *(p for p in sys.path if p not in {others!r})]"
    notebook.cells = [nbformat.v4.new_code_cell(prelude), *notebook.cells[: last + 1]]
    text = printed(execute(notebook, tmp_path / "work", kernel))
    assert "fluidq from an installed package" in text
    assert EMBEDDED in text


def test_the_kernel_is_the_running_interpreter_and_a_false_assert_stops_it(tmp_path, kernel):
    cell = nbformat.v4.new_code_cell("import sys; print(sys.executable)")
    done = execute(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "work", kernel)
    assert Path(printed(done).splitlines()[-1]) == Path(sys.executable)
    false = nbformat.v4.new_code_cell("assert 1 + 1 == 3")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(nbformat.v4.new_notebook(cells=[false]), tmp_path / "work", kernel)
