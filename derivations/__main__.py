"""`python -m derivations`: prove everything, compare with published figures, write what is generated."""

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from derivations import derivation, to_jax, to_latex
from derivations.core import DerivationError, all_derivations, topics
from derivations.proving import Verdict, judge
from derivations.show import as_latex, as_text, check_line

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
        print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)


def prove_all(use_cache: bool = True) -> list[Verdict]:
    """Every derivation judged, in D-number order."""
    topic_of = {d.id: name for name, module in topics().items() for d in module.DERIVATIONS}
    found, every = [], all_derivations()
    for number, d in enumerate(every, 1):
        found.append(judge(d, topic_of[d.id], use_cache, lambda line, n=number: progress(f"[{n}/{len(every)}] {line}")))
    progress("")
    return found


def table(verdicts: list[Verdict]) -> str:
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
    total = sum(v.seconds for v in verdicts)
    proved, cached = sum(v.proved for v in verdicts), sum(v.cached for v in verdicts)
    lines.append(
        f"{proved} of {len(verdicts)} proved ({cached} known from the cache), {len(checks)} checks, {total:.1f} s"
    )
    for v in verdicts:
        lines += [f"{v.derivation.id} NOT PROVED: {failure}" for failure in v.failures]
    for c in checks:
        if c.verdict != "hit" or not c.as_declared:
            lines.append(("" if c.as_declared else f"UNEXPECTED (declared {c.check.expected}): ") + check_line(c))
    return "\n".join(lines)


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0 when all is proved and as declared, 1 when not (or stale), 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m derivations", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a list of objects on standard output, and nothing else")
    parser.add_argument("--write", action="store_true", help="regenerate fluidq/formulas and paper/generated")
    parser.add_argument("--check", action="store_true", help="fail, naming it, if a generated file is stale")
    parser.add_argument("--no-cache", action="store_true", help="prove again what was proved before")
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
        verdicts = prove_all(not args.no_cache)
    except DerivationError as error:
        print(f"derivations: {error}", file=sys.stderr)
        return 2
    print(json.dumps([v.as_dict() for v in verdicts], indent=1) if args.json else table(verdicts))
    return 0 if all(v.good for v in verdicts) else 1


def main() -> NoReturn:
    """The shell's entry."""
    sys.exit(run())


if __name__ == "__main__":
    main()
