"""One command for the paper: results, numbers, tables, figures, appendix, then the PDF where TeX is installed.

`python -m paper.build` ends with paper/build/paper.pdf. Long results are computed anew only where the code or the
inputs that made them changed, which takes minutes; where their inputs are absent they are kept, and that is said. With
`--check` it writes nothing and fails, naming it, on what is stale or missing.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from paper import appendix, checks, numbers, tables
from paper.experiments import EXPERIMENTS

HERE = Path(__file__).parent
# What the manuscript loads, and the Debian package that brings it.
PROGRAMS = {"latexmk": "latexmk", "pdflatex": "texlive-latex-recommended", "bibtex": "texlive-latex-recommended"}
STYLES = {
    "mathtools.sty": "texlive-latex-recommended",
    "booktabs.sty": "texlive-latex-recommended",
    "microtype.sty": "texlive-latex-recommended",
    "natbib.sty": "texlive-latex-recommended",
    "hyperref.sty": "texlive-latex-recommended",
    "lmodern.sty": "lmodern",
}


def missing_packages() -> list[str]:
    """Debian packages that the PDF step lacks here; empty where it can run."""
    lacking = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if shutil.which("kpsewhich") is None:
        lacking |= set(STYLES.values())
    else:
        lacking |= {p for s, p in STYLES.items() if subprocess.run(["kpsewhich", s], capture_output=True).returncode}
    return sorted(lacking)


def refresh_results() -> list[Path]:
    """Compute what is stale or missing; raises FileNotFoundError for a missing result whose inputs are absent."""
    made = []
    for experiment in EXPERIMENTS.values():
        if reason := experiment.stale():
            if experiment.missing:
                raise FileNotFoundError(f"{reason}, and so is its input {', '.join(experiment.missing)}")
            print(f"{reason}: {experiment.words} ...", flush=True)
            made.append(experiment.refresh())
    return made


def write_generated() -> list[Path]:
    """numbers.tex, tables.tex and appendix.tex; equations.tex belongs to `python -m derivations --write`."""
    for module in (numbers, tables, appendix):
        module.FILE.parent.mkdir(exist_ok=True)
        module.FILE.write_text(module.render(), encoding="utf-8")
    return [numbers.FILE, tables.FILE, appendix.FILE]


def draw_figures(folder: Path = HERE / "figures") -> list[Path]:
    """Run every figure script; the PDFs lie beside the scripts unless `folder` says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    return [importlib.import_module(f"paper.figures.{s}").draw(folder / f"{s}.pdf") for s in checks.scripts()]


def pdf(folder: Path = HERE / "build") -> Path:
    """Set the manuscript in `folder`, from copies of all it needs, and return the PDF.

    The same input gives the same bytes. Raises RuntimeError with the end of the log where LaTeX fails.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for path in (checks.TEX, checks.BIB):
        shutil.copy(path, folder)
    shutil.copytree(HERE / "generated", folder / "generated", dirs_exist_ok=True)
    for name, text in ((checks.EQUATIONS.name, checks.equations()), (appendix.FILE.name, appendix.render())):
        (folder / "generated" / name).write_text(text, encoding="utf-8")
    for name in checks.scripts():
        drawn, wanted = HERE / "figures" / f"{name}.pdf", folder / "figures" / f"{name}.pdf"
        if drawn.exists() and not wanted.exists():
            shutil.copy(drawn, wanted)
    command = ["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", checks.TEX.name]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, errors="replace")
    if done.returncode:
        log = (folder / "paper.log").read_text(errors="replace") if (folder / "paper.log").exists() else done.stdout
        raise RuntimeError("LaTeX failed:\n" + "\n".join(log.splitlines()[-40:]))
    return folder / "paper.pdf"


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0 done (a PDF that no TeX could set included), 1 stale, missing or failed."""
    parser = argparse.ArgumentParser(prog="python -m paper.build", description="Build the paper, or check it.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on what is stale or missing")
    args = parser.parse_args(argv)
    kept = checks.unchecked_results()
    if args.check:
        wrong = checks.problems()
        print("\n".join([*kept, *(wrong or ["the paper is fresh and whole"])]))
        return 1 if wrong else 0
    print("\n".join(kept), end="\n" if kept else "")
    for path in (*refresh_results(), *write_generated(), *draw_figures()):
        print(f"wrote paper/{path.relative_to(HERE)}")
    wrong = checks.problems()
    print("\n".join(wrong), end="\n" if wrong else "")
    if lacking := missing_packages():
        print(f"no PDF: install the Debian packages {' '.join(lacking)}")
        return 1 if wrong else 0
    shutil.rmtree(HERE / "build" / "figures", ignore_errors=True)
    try:
        print(f"wrote paper/{pdf().relative_to(HERE)}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if wrong else 0


def main() -> NoReturn:
    """The shell's entry."""
    sys.exit(run())


if __name__ == "__main__":
    main()
