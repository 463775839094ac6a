"""`fluidq report`: a policy and what was observed, to one page: what happened, why, and what would be better."""

import argparse
from typing import Any

from fluidq._atomic import write_whole
from fluidq._errors import InputError, refuse
from fluidq.commands._case import overrides, policy_of
from fluidq.commands._common import folder, show, write_json

HELP = "From a policy and a Prometheus export (or a trace) to one page: what happened, why, and what is better."
EPILOG = "example: fluidq report --policy planner.yaml --prometheus export.json --scenario site.toml --out page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    add = parser.add_argument
    add(
        "--policy",
        metavar="FILE|NAME",
        help="the policy that ran: its file, or a name of `fluidq compare --list`",
    )
    add("--prometheus", nargs="+", metavar="FILE|URL", help="saved query_range JSON, or a server: http://host:9090")
    add("--trace", metavar="FILE", help="a trace instead of a Prometheus export; without either, the embedded day")
    add("--scenario", metavar="FILE", help="TOML or YAML: deployment, fleet, objective (see `fluidq init`)")
    add("--no-tune", action="store_true", help="leave out the search for thresholds")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 where another law or other thresholds cost less; raises InputError for what cannot be read."""
    from fluidq.html_report import html
    from fluidq.operator_report import operator_report
    from fluidq.scenario import build_case
    from fluidq.tune import Settings

    out = folder(args.out)
    over = overrides(args)
    notes: list[str] = []
    workload: Any = None
    if args.prometheus is not None:
        if args.trace is not None:
            raise refuse("--trace", args.trace, "left out where --prometheus is given")
        workload, notes = _observed(args.prometheus)
        over.setdefault("workload", {}).setdefault("load_scale", 1.0)
    case = build_case(over, checked=True, workload=workload)
    name = args.policy or "thresholds"
    policy, file = policy_of(name, case)
    if file is not None:
        notes += [*file.notes, *(f"not represented: {part}" for part in file.unrepresented)]
    tuning = None if args.no_tune else Settings(steps=30, starts=4, realisations=1, unseen=1)
    report = operator_report(case, policy, name, tuning=tuning, notes=tuple(notes), progress=not args.json)
    page = None
    if out:
        write_json(out / "report.json", report.to_dict())
        page = out / "report.html"
        write_whole(page, html(report))
    show(args, report.to_dict(), lambda: "\n".join([str(report), *([f"\nPage: {page}"] if page else [])]))
    return 0 if next(iter(report.comparison.runs)) == name else 1


def _observed(sources: list[str]) -> tuple[Any, list[str]]:
    from fluidq.io.prometheus import read_prometheus

    found = read_prometheus(sources[0] if len(sources) == 1 else sources)
    if found.workload is None:
        raise InputError(f"--prometheus: no load in {', '.join(sources)}: {'; '.join(found.notes)}.")
    return found.workload, [f"the load is what was {found.load}", *found.notes]
