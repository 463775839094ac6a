"""`python -m derivations`: prove everything, compare with published figures, write what is generated."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from derivations import derivation, to_jax, to_latex
from derivations.core import CheckResult, topics
from derivations.coverage import CHECKS, by_number, missing
from derivations.proving import Verdict, judge_all
from derivations.show import as_latex, as_text, check_line, figure_rows

ROOT = Path(__file__).parents[1]


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Every generated file with the text it should have."""
    modules = topics()
    return to_jax.files(modules, root) | to_latex.files(modules, root)


def stale(root: Path = ROOT) -> list[str]:
    """What is committed and differs from what would be generated, or is generated no more; empty when fresh."""
    wanted = generated(root)
    wrong = [
        f"{path.relative_to(root)} is {'stale' if path.exists() else 'missing'}"
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    extra = set((root / "fluidq" / "formulas").glob("*.py")) - set(wanted)
    return wrong + [f"{path.relative_to(root)} has no derivation" for path in sorted(extra)]


def write(root: Path = ROOT) -> list[str]:
    """Write every generated file that differs, remove those without a derivation, and say which."""
    said = stale(root)
    for path, text in generated(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in set((root / "fluidq" / "formulas").glob("*.py")) - set(generated(root)):
        path.unlink()
    return said


def progress(line: str, on: bool = True) -> None:
    """One line on standard error that the next one replaces; nothing unless that is a terminal."""
    if on and sys.stderr.isatty():
        print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def prove_all(use_cache: bool = True, jobs: int | None = None) -> tuple[Verdict, ...]:
    """Every derivation judged, in D-number order."""
    found = judge_all(use_cache, progress, jobs)
    progress("")
    return found


def table(verdicts: Sequence[Verdict], elapsed: float | None = None) -> str:
    """The table for people: one line a derivation with its worst error, then what failed."""
    width = max(len(v.derivation.name) for v in verdicts)
    lines = [f"{'id':<4} {'name':<{width}} {'proved':<7} {'published check':<26} worst error"]
    for v in verdicts:
        counts = [f"{sum(c.verdict == k for c in v.checks)} {k}" for k in ("hit", "miss", "soft")]
        said = ", ".join(c for c in counts if not c.startswith("0 ")) or "none published"
        worst = max(v.checks, key=lambda c: abs(c.relative_error), default=None)
        error = f"{worst.relative_error:+.3%} ({worst.check.id})" if worst else "-"
        lines.append(
            f"{v.derivation.id:<4} {v.derivation.name:<{width}} {'yes' if v.proved else 'NO':<7} {said:<26} {error}"
        )
    checks = [c for v in verdicts for c in v.checks]
    proved, cached = sum(v.proved for v in verdicts), sum(v.cached for v in verdicts)
    time_spent = sum(v.seconds for v in verdicts) if elapsed is None else elapsed
    lines.append("")
    lines += _missed(checks)
    lines += [f"{v.derivation.id} NOT PROVED: {failure}" for v in verdicts for failure in v.failures]
    lines += [
        _totals(checks),
        f"{proved} of {len(verdicts)} proved ({cached} known from the cache), {time_spent:.1f} s",
    ]
    return "\n".join(lines)


def _missed(checks: Sequence[CheckResult]) -> list[str]:
    """A line for each figure that is missed, with the reason, or that came out otherwise than declared."""
    return [
        ("" if c.as_declared else f"UNEXPECTED (declared {c.check.expected}): ") + check_line(c)
        for c in checks
        if c.verdict == "miss" or not c.as_declared
    ]


def _totals(checks: Sequence[CheckResult]) -> str:
    """How many figures and checks of the theory there are, and which are not."""
    there = [n for n in by_number(checks) if n in CHECKS]
    absent = f"; no figure of {', '.join(missing(checks))}" if missing(checks) else ""
    counts = ", ".join(f"{sum(c.verdict == k for c in checks)} {k}" for k in ("hit", "miss", "soft"))
    total = f"{len(checks)} published figures: {counts} (--published says which and why)"
    return f"{total}; {len(there)} of the {len(CHECKS)} checks V01 to V23{absent}"


def published_table(verdicts: Sequence[Verdict]) -> str:
    """One line for each published check of the theory, then the figures that are no hits."""
    checks = [c for v in verdicts for c in v.checks]
    found = by_number(checks)
    wide, width = max(map(len, [*CHECKS, *found])), max(map(len, CHECKS.values()))
    lines = [f"{'id':<{wide}} {'check':<{width}} {'figures':<24} largest error"]
    for number in [*CHECKS, *(n for n in found if n not in CHECKS)]:
        about = found.get(number)
        words = CHECKS.get(number, "our own figures")
        if about is None:
            lines.append(f"{number:<{wide}} {words:<{width}} none")
            continue
        said = ", ".join(f"{about[k]} {k}" for k in ("hit", "miss", "soft") if about[k])
        said += "" if about["as_declared"] else ", UNEXPECTED"
        lines.append(f"{number:<{wide}} {words:<{width}} {said:<24} {about['worst_error']:+.3%} ({about['worst']})")
    rest = [c for c in checks if c.verdict != "hit" or not c.as_declared]
    return "\n".join([*lines, "", "Not hit", *figure_rows(rest), "", _totals(checks)])


def as_data(verdicts: Sequence[Verdict], published: bool, elapsed: float) -> Any:
    """For `--json`: the list of derivations; with `--published` the checks by number, what is missing, the totals."""
    if not published:
        return [v.as_dict() for v in verdicts]
    checks = [c for v in verdicts for c in v.checks]
    return {
        "derivations": len(verdicts),
        "proved": sum(v.proved for v in verdicts),
        "cached": sum(v.cached for v in verdicts),
        "seconds": round(elapsed, 3),
        "figures": len(checks),
        "checks": by_number(checks),
        "missing": missing(checks),
    }


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0 when all is proved and as declared, 1 when not (or stale), 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m derivations", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON on standard output, and nothing else")
    parser.add_argument("--published", action="store_true", help="the checks V01 to V23 instead of the derivations")
    parser.add_argument("--write", action="store_true", help="regenerate fluidq/formulas and paper/generated")
    parser.add_argument("--check", action="store_true", help="fail, naming it, if a generated file is stale")
    parser.add_argument("--no-cache", action="store_true", help="prove again what was proved before")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes that prove (default: one a processor)")
    sub = parser.add_subparsers(dest="command")
    one = sub.add_parser("show", help="print one derivation: show D15")
    one.add_argument("id")
    one.add_argument("--latex", action="store_true", help="for a paper instead of the terminal")
    args = parser.parse_args(argv)
    try:
        if args.command == "show":
            d = derivation(args.id)
            print(as_latex(d) if args.latex else as_text(d), end="")
            return 0
        if args.write:
            print("\n".join(f"wrote: {line}" for line in write()) or "all generated files are fresh")
            return 0
        if args.check:
            wrong = stale()
            print(
                "\n".join(f"{line}; run python -m derivations --write" for line in wrong)
                or "all generated files are fresh"
            )
            return 1 if wrong else 0
        start = time.perf_counter()
        verdicts = prove_all(not args.no_cache, args.jobs)
        elapsed = time.perf_counter() - start
    except ValueError as error:  # of a topic that is put together wrongly
        print(f"derivations: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(as_data(verdicts, args.published, elapsed), indent=1))
    else:
        print(published_table(verdicts) if args.published else table(verdicts, elapsed))
    return 0 if all(v.good for v in verdicts) else 1


def main() -> NoReturn:
    """The shell's entry."""
    sys.exit(run())


if __name__ == "__main__":
    main()
