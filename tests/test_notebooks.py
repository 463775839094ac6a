"""Every notebook is stored without outputs, asserts its headline numbers, and runs in a folder of its own."""

import ast
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # for a whole notebook; 90 s are promised on two idle cores, and the tests share theirs


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> list[str]:
    """The code cells as plain Python, magics left out."""
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    return ["\n".join(line for line in cell.splitlines() if not line.startswith("%")) for cell in cells]


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


def execute(notebook: nbformat.NotebookNode, folder: Path, kernel: str) -> nbformat.NotebookNode:
    folder.mkdir(exist_ok=True)
    return NotebookClient(
        notebook, timeout=SECONDS, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}
    ).execute()


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", []))


def test_there_are_notebooks_numbered_from_one():
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{i:02d}_" for i in range(1, len(NOTEBOOKS) + 1)]
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_nothing_that_ran_is_stored(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs, f"an output is stored below: {cell.source[:60]!r}"
            assert cell.execution_count is None
        assert "execution" not in cell.metadata
    assert path.stat().st_size < 60_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_headline_numbers_are_asserted_and_cells_are_short(path):
    cells = code(path)
    trees = [ast.parse(cell) for cell in cells]
    assert sum(isinstance(node, ast.Assert) for tree in trees for node in ast.walk(tree)) >= 3
    for cell in cells:
        assert len(cell.splitlines()) <= 40, f"logic for the library: {cell[:60]!r}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_from_top_to_bottom(path, tmp_path, kernel):
    done = execute(read(path), tmp_path / "work", kernel)
    assert "from a clone" in printed(done)
    shown = [kind for cell in done.cells for out in cell.get("outputs", []) for kind in out.get("data", {})]
    assert "image/png" in shown
    assert not [out for cell in done.cells for out in cell.get("outputs", []) if out.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_begins_where_only_the_package_is_installed(path, tmp_path, kernel):
    """Up to the first long run: the package alone on the path, no derivations, no traces."""
    shutil.copytree(ROOT / "fluidq", tmp_path / "site" / "fluidq", ignore=shutil.ignore_patterns("__pycache__"))
    notebook = read(path)
    long = next((i for i, cell in enumerate(notebook.cells) if "fq.tune(" in cell.source), len(notebook.cells))
    site, others = str(tmp_path / "site"), ("", str(ROOT))
    prelude = f"import sys\nsys.path[:] = [{site!r}, *(p for p in sys.path if p not in {others!r})]"
    notebook.cells = [nbformat.v4.new_code_cell(prelude), *notebook.cells[:long]]
    done = execute(notebook, tmp_path / "work", kernel)
    assert "from an installed package" in printed(done)
    assert "embedded default" in printed(done)


def test_the_kernel_is_the_running_interpreter(tmp_path, kernel):
    cell = nbformat.v4.new_code_cell("import sys; print(sys.executable)")
    done = execute(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "work", kernel)
    assert Path(printed(done).splitlines()[-1]) == Path(sys.executable)
