"""What may import what, and what an import costs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_fluidq_imports_neither_sympy_nor_the_derivations():
    modules = imported_by(
        "import fluidq, fluidq.cli, fluidq.scenario, fluidq.report, fluidq.figures, fluidq.queue, fluidq.events"
    )
    assert "sympy" not in modules
    assert not any(m.split(".")[0] == "derivations" for m in modules)


def test_help_needs_no_heavy_import():
    modules = imported_by("import fluidq.cli")
    assert "diffrax" not in modules
    assert "matplotlib" not in modules


def test_the_core_does_not_import_the_edges():
    edges = re.compile(
        r"^\s*(?:from|import) fluidq\.?(?:import )?(io|plot|report|cli|scenario|figures)\b", re.MULTILINE
    )
    core = ("plant", "simulate", "objective", "tune", "workload", "queue", "sizing", "units", "deployment", "fleet")
    core += ("pipeline", "sweep", "replay", "waiting", "events", "compare", "laws")
    for name in core:
        assert not edges.search((ROOT / "fluidq" / f"{name}.py").read_text()), name
    for path in (ROOT / "fluidq" / "policies").glob("*.py"):
        assert not edges.search(path.read_text()), path.name


def test_derivations_import_nothing_of_fluidq():
    for path in (ROOT / "derivations").glob("*.py"):
        assert not re.search(r"^\s*(?:from|import) fluidq\b", path.read_text(), re.MULTILINE), path.name


def test_every_public_name_exists_is_documented_and_verbs_can_be_called():
    import fluidq

    for name in fluidq.__all__:
        assert (getattr(fluidq, name).__doc__ or "").strip(), name
    case = fluidq.build_case({"workload": {"days": 0.05}})
    run = fluidq.simulate(case.fleet, case.workload, case.policy, record=False)
    assert float(run.arrived) > 0
