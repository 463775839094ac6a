"""What tuning is worth, product by product: `python tests/benchmarks/quality.py [--json] [--quick]`.

Per workload and law: the product's default, and its tuned form, both on the hard law. The tuned form is the same recipe
everywhere: the hard law at `SCAN` points around the default, then `fluidq.tune` from the cheapest of them. All figures
are GPU-hours over the workload, priced as in `Objective`; "loss" is what is not paid for GPUs (late, lost and stalled
work).

- *bound*: cost over the clairvoyant bound, below which no policy gets.
- *GPU-hours at equal SLO attainment*: least GPU-hours among candidates that keep the default's attainment.
- *loss at equal GPU-hours*: least loss among candidates that use at most the default's GPU-hours.

Candidates are the scan and the points on the paths of four searches (the cost at a third of, at, and at three times the
price of a late request; and GPU-hours subject to the default's attainment), all judged by the hard law on the tuning
data. "Any law" takes the candidates of every law on that workload together. *Other days* are further draws
(`Workload.reseeded`), which no search saw: what the tuning data chose, judged there. *Requests*: the replay of a sample
in whole requests, default and tuned on the same requests, with the interval of the difference. Not a test: it takes
many minutes.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fluidq._errors import InputError
from fluidq._rows import Rows
from fluidq.objective import Objective
from fluidq.simulate import load_of, simulate
from fluidq.space import Space
from fluidq.tune import Settings, stack, tune
from tests.benchmarks._workloads import Bench, benches, other_draw

LAWS = ("dynamo", "hpa", "balance", "thresholds", "ray-serve", "aibrix-apa", "wva-v2", "keda", "heteroscale")
SETTINGS = Settings(
    steps=30, starts=8, spread=0.7, learning_rate=0.7, judge_every=3, estimator="pathwise", realisations=1, unseen=1
)
# Points of the scan, and their standard deviation around the default in coordinates.
SCAN, WIDE = 255, 2.0
# Factors on the price of a late request for the searches whose paths make the candidates.
PRICES = (1 / 3, 1.0, 3.0)
OTHER_DAYS = 3
REQUESTS = 30_000
COST, PAID, ATTAINED = range(3)
# Two attainments, or two sums of GPU-hours, closer than this are equal.
SAME = 1e-9
# Cost over the bound that some tuned policy should reach.
GOAL = 1.05


@dataclass(frozen=True)
class Pool:
    """Candidates of one law: coordinates, and hard outcomes (candidates, outcomes) on the tuning data."""

    space: Space
    points: np.ndarray
    outcomes: np.ndarray


def choose(outcomes: np.ndarray, *, attained: float = 0.0, paid: float = math.inf) -> int | None:
    """Index of the candidate with the least GPU-hours at that attainment, or with the least loss within `paid`."""
    loss = outcomes[:, COST] - outcomes[:, PAID]
    legal = (outcomes[:, ATTAINED] >= attained - SAME) & (outcomes[:, PAID] <= paid * (1.0 + SAME))
    if not legal.any():
        return None
    return int(np.argmin(np.where(legal, outcomes[:, PAID] if math.isinf(paid) else loss, np.inf)))


def against(outcomes: np.ndarray, default: np.ndarray) -> dict[str, Any]:
    """Saved share of the GPU-hours at the default's attainment, and its loss over theirs at its GPU-hours.

    `outcomes` of candidates, shape (candidates, outcomes); `default` of the product's default, shape (outcomes,).
    """
    thrifty = choose(outcomes, attained=float(default[ATTAINED]))
    kind = choose(outcomes, paid=float(default[PAID]))
    out: dict[str, Any] = {"thrifty": thrifty, "kind": kind, "saved": None, "loss_factor": None}
    if thrifty is not None:
        out["saved"] = 1.0 - float(outcomes[thrifty, PAID] / default[PAID])
    if kind is not None:
        loss = float(outcomes[kind, COST] - outcomes[kind, PAID])
        out["loss_factor"] = float(default[COST] - default[PAID]) / loss if loss > 0 else math.inf
    return out


def visited(log: Path, every: int) -> np.ndarray:
    """The coordinates on the path of a search, every so many steps, from its log."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    points = [row for line in lines if line["step"] % every == 0 for row in line["coordinates"] if None not in row]
    return np.array(points)


def law_on(bench: Bench, name: str, settings: Settings, requests: int) -> tuple[dict[str, Any], Pool]:
    """One law on one workload: see the module's text."""
    policy, fleet, objective = bench.law(name), bench.fleet, bench.objective
    loads = [load_of(bench.workload, fleet.interval)]
    loads += [load_of(other_draw(bench.workload, k), fleet.interval) for k in range(OTHER_DAYS)]
    began = time.perf_counter()
    space = bench.space(name)
    rows = Rows(space, stack(loads), objective)
    default = rows.of(policy)
    wanted = float(default[0, ATTAINED])

    # The first point stands for the default; its coordinates are beside it where it lies on a bound.
    around = np.random.default_rng(0).standard_normal((SCAN, len(space.labels)))
    points = np.asarray(space.start()) + WIDE * np.concatenate([np.zeros((1, len(space.labels))), around])
    outcomes = rows.hard(points, np.zeros(len(points), int))
    outcomes[0] = default[0]
    cheapest = int(np.argmin(np.where(np.isfinite(outcomes[:, COST]), outcomes[:, COST], np.inf)))
    given = policy if cheapest == 0 else space.plain(jnp.asarray(points[cheapest]))[0]

    found: dict[float, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "search.jsonl"

        def search(aim: Objective, s: Settings) -> Any:
            nonlocal points, outcomes
            result = tune(fleet, bench.workload, given, aim, s, moves=bench.moves(name), log=log, progress=False)
            path = np.concatenate([visited(log, s.judge_every), np.asarray(result.coordinates)[None]])
            assert result.space is not None
            found_in = result.space
            # Another start has another unit of its coordinates: back to those of the default.
            path = np.asarray(jax.vmap(lambda u: space.coordinates(found_in.values(u)))(jnp.asarray(path)))
            points = np.concatenate([points, path])
            outcomes = np.concatenate([outcomes, rows.hard(path, np.zeros(len(path), int))])
            return result

        for factor in PRICES:
            aim = eqx.tree_at(lambda o: o.late_weight, objective, factor * float(objective.late_weight))
            found[factor] = search(aim, settings)
        if 0 < wanted < 1:
            try:
                search(objective, replace(settings, attainment=wanted))
            except InputError:  # refused as out of reach by a bound that is coarser than the run; the others remain
                pass
    result = found[1.0]
    pool = Pool(space, points, outcomes)
    tuned = rows.of(result.after, result.fleet_after)
    own = against(outcomes, default[0])
    thrifty, kind = (_elsewhere(rows, pool, own[which], default) for which in ("thrifty", "kind"))
    out = {
        "workload": bench.name,
        "law": name,
        "parameters": len(space.labels),
        "default": _row(default[0]),
        "tuned": _row(tuned[0]),
        "scanned": _row(outcomes[cheapest]),
        "saved": own["saved"],
        "loss_factor": own["loss_factor"],
        "thrifty": thrifty,
        "kind": kind,
        "other_days": {
            "default": _row(default[1:].mean(axis=0)),
            "tuned": _row(tuned[1:].mean(axis=0)),
            "better_on": int((tuned[1:, COST] < default[1:, COST]).sum()),
            "days": OTHER_DAYS,
        },
        "closed_loops": SCAN + sum(r.runs for r in found.values()),
        "seconds": time.perf_counter() - began,
    }
    if requests:
        out["requests"] = on_requests(bench, policy, result.after, requests)
    return out, pool


def _elsewhere(rows: Rows, pool: Pool, index: int | None, default: np.ndarray) -> dict[str, Any] | None:
    """The chosen candidate on the tuning data and on other days, beside the default there."""
    if index is None:
        return None
    days = rows.draws - 1
    there = rows.hard(np.repeat(pool.points[index][None], days, axis=0), np.arange(1, rows.draws))
    if index == 0:
        there = default[1:]
    loss, before = (x[:, COST] - x[:, PAID] for x in (there, default[1:]))
    return {
        "here": _row(pool.outcomes[index]),
        "there": _row(there.mean(axis=0)),
        "there_default": _row(default[1:].mean(axis=0)),
        "saved_there": 1.0 - float(there[:, PAID].mean() / default[1:, PAID].mean()),
        "loss_factor_there": float(before.mean() / loss.mean()) if loss.mean() > 0 else math.inf,
    }


def _row(outcome: np.ndarray) -> dict[str, float]:
    cost, paid, attained = map(float, outcome)
    return {"cost": cost, "gpu_hours": paid, "loss": cost - paid, "attained": attained}


def on_requests(bench: Bench, before: Any, after: Any, most: int) -> dict[str, Any]:
    """A sample of the workload in whole requests under both; `why` where there is nothing to tell."""
    from fluidq._certificate_requests import on_requests as served

    first, last = (simulate(bench.fleet, bench.workload, p, bench.objective) for p in (before, after))
    reaction = float(bench.fleet.cold_start) + bench.fleet.interval
    fleets, laws = (bench.fleet, bench.fleet), (before, after)
    got = served(
        fleets,
        laws,
        (first, last),
        bench.workload,
        bench.objective,
        reaction=reaction,
        most=most,
        seeds=3,
        progress=False,
    )
    return {"why": got} if isinstance(got, str) else got.to_dict()


def bound_of(bench: Bench) -> dict[str, Any]:
    """The clairvoyant bound [GPU-hours]."""
    from fluidq.clairvoyant import clairvoyant

    began = time.perf_counter()
    bound = clairvoyant(bench.fleet, bench.workload, bench.objective, progress=False)
    return {"value": bound.value, "status": bound.status, "seconds": time.perf_counter() - began}


def together(rows: Sequence[dict[str, Any]], pools: dict[tuple[str, str], Pool]) -> list[dict[str, Any]]:
    """Each product's default against the candidates of every law on its workload."""
    out = []
    for row in rows:
        names = [law for workload, law in pools if workload == row["workload"]]
        owner = np.concatenate([[law] * len(pools[row["workload"], law].outcomes) for law in names])
        outcomes = np.concatenate([pools[row["workload"], law].outcomes for law in names])
        d = row["default"]
        got = against(outcomes, np.array([d["cost"], d["gpu_hours"], d["attained"]]))
        of = {key: None if got[key] is None else str(owner[got[key]]) for key in ("thrifty", "kind")}
        facts = {key: row[key] for key in ("workload", "law")}
        out.append(
            {
                **facts,
                "saved": got["saved"],
                "saved_by": of["thrifty"],
                "loss_factor": got["loss_factor"],
                "loss_by": of["kind"],
            }
        )
    return out


def tables(out: dict[str, Any]) -> str:
    """Markdown."""
    bounds = {name: b.get("value") for name, b in out["bounds"].items()}
    any_law = {(r["workload"], r["law"]): r for r in out["any_law"]}
    lines = [
        "Default and tuned on the tuning data: cost / clairvoyant bound (cost, GPU-hours, requests in SLO)",
        "",
        "| workload | law | default | tuned | default, other days | tuned, other days | better on |",
        "|---|---|---|---|---|---|---|",
    ]

    def cost(row: dict[str, float], bound: float | None) -> str:
        over = "" if bound is None else f"**{row['cost'] / bound:.2f}** "
        return f"{over}({row['cost']:,.0f}, {row['gpu_hours']:,.0f}, {row['attained']:.1%})"

    def share(x: float | None) -> str:
        return "-" if x is None else f"{x:.0%}"

    def times(x: float | None) -> str:
        return "-" if x is None else "no loss left" if math.isinf(x) else f"{x:.2g} x" if x < 100 else f"{x:,.0f} x"

    for r in out["rows"]:
        bound, o = bounds.get(r["workload"]), r["other_days"]
        cells = [cost(r["default"], bound), cost(r["tuned"], bound), cost(o["default"], None), cost(o["tuned"], None)]
        lines.append(f"| {r['workload']} | {r['law']} | {' | '.join(cells)} | {o['better_on']} of {o['days']} |")
    lines += [
        "",
        "Against the product's default: GPU-hours saved at equal SLO attainment; how many times less loss at equal "
        "GPU-hours",
        "",
        "| workload | law | saved | on other days (in SLO there, default's) | less loss | on other days "
        "| saved, any law | less loss, any law |",
        "|---" * 8 + "|",
    ]
    for r in out["rows"]:
        t, k, a = r["thrifty"], r["kind"], any_law.get((r["workload"], r["law"]), {})
        there = (
            "-"
            if t is None
            else (f"{t['saved_there']:.0%} ({t['there']['attained']:.1%}, {t['there_default']['attained']:.1%})")
        )
        less = "-" if k is None else times(k["loss_factor_there"])
        best = f"{share(a.get('saved'))} ({a.get('saved_by')}) | {times(a.get('loss_factor'))} ({a.get('loss_by')})"
        own = f"{share(r['saved'])} | {there} | {times(r['loss_factor'])} | {less}"
        lines.append(f"| {r['workload']} | {r['law']} | {own} | {best} |")
    told = [r for r in out["rows"] if "requests" in r]
    if told:
        lines += [
            "",
            "On whole requests, a sample: default -> tuned (95 % interval)",
            "",
            "| workload | law | said |",
            "|---|---|---|",
        ]
        for r in told:
            lines.append(f"| {r['workload']} | {r['law']} | {_said(r['requests'])} |")
    lines += ["", *goals(out)]
    return "\n".join(lines)


def _said(q: dict[str, Any]) -> str:
    if "why" in q:
        return f"not replayed: {q['why']}"
    parts = []
    for name, unit in (("cost", "GPU-h"), ("attainment", "of the requests in SLO")):
        d = q[f"{name}_difference"]
        ends = " to ".join("open" if d[end] is None else f"{d[end]:.3g}" for end in ("low", "high"))
        parts.append(f"{q['before'][name]:.4g} -> {q['after'][name]:.4g} {unit}, difference {d['mean']:.3g} ({ends})")
    return "; ".join([*parts, f"{q['requests']:,} requests"])


def goals(out: dict[str, Any]) -> list[str]:
    """Which goals hold, in words."""
    lines = []
    for name, b in out["bounds"].items():
        rows = [r for r in out["rows"] if r["workload"] == name]
        if not rows or b.get("value") is None:
            continue
        best = min(rows, key=lambda r: r["tuned"]["cost"])
        ratio = best["tuned"]["cost"] / b["value"]
        said = "met" if ratio <= GOAL else "missed"
        lines.append(f"{name}: closest to the bound is {best['law']} tuned, {ratio:.2f} (goal {GOAL}: {said})")
    for which, rows in (("by its own law", out["rows"]), ("by any law", out["any_law"])):
        saved = sum((r["saved"] or 0) >= 0.25 for r in rows)
        less = sum((r["loss_factor"] or 0) >= 10 for r in rows)
        either = sum((r["saved"] or 0) >= 0.25 or (r["loss_factor"] or 0) >= 10 for r in rows)
        lines.append(
            f"{which}: >= 25 % fewer GPU-hours at equal attainment in {saved} of {len(rows)}, >= 10 x less loss at "
            f"equal GPU-hours in {less}, one or the other in {either}"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """The tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="short loads, a short search, no requests")
    parser.add_argument("--workloads", nargs="*", help="names; without it all five")
    parser.add_argument("--laws", nargs="*", default=list(LAWS))
    parser.add_argument("--requests", type=int, default=None, help="requests to replay per law and workload; 0: none")
    parser.add_argument("--out", type=Path, help="a JSON file, written after every law")
    args = parser.parse_args(arguments)
    settings = replace(SETTINGS, steps=4, starts=2) if args.quick else SETTINGS
    requests = args.requests if args.requests is not None else 0 if args.quick else REQUESTS
    out: dict[str, Any] = {"settings": asdict(settings), "bounds": {}, "rows": [], "any_law": [], "skipped": []}
    pools: dict[tuple[str, str], Pool] = {}
    every = list(benches(quick=args.quick, only=args.workloads))
    cases = [b for b in every if isinstance(b, Bench)]
    out["skipped"] += [{"workload": b[0], "reason": b[1]} for b in every if not isinstance(b, Bench)]
    for bench in cases:
        out["bounds"][bench.name] = bound_of(bench)
    # Law by law: workloads of one length then share a law's compilations.
    for name in args.laws:
        for bench in cases:
            try:
                row, pools[bench.name, name] = law_on(bench, name, settings, requests)
            except InputError as error:
                out["skipped"].append({"workload": bench.name, "law": name, "reason": str(error)})
                continue
            out["rows"].append(row)
            out["any_law"] = together(out["rows"], pools)
            print(f"{bench.name}, {name}: {row['seconds']:.0f} s", file=sys.stderr, flush=True)
            if args.out:
                args.out.write_text(json.dumps(out, indent=2))
    if args.json:
        print(json.dumps(out, indent=2))
    else:
        print(tables(out))
        for s in out["skipped"]:
            print(f"{s['workload']}{', ' + s['law'] if 'law' in s else ''}: not run: {s['reason']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
