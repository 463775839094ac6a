"""Closed loops needed to tune, fluidq against its peers: `python tests/benchmarks/peers.py [--json] [--quick]`.

Every method minimises the same thing, the hard cost of one law on one workload, over the same coordinates
(`fluidq.space`), from the same start (the product's defaults), with the same budget of closed loops. A closed loop with
slopes counts 1 + the number of parameters, and all that `fluidq.tune` runs counts: its check of the gradient too. A
method has found the best once its cost is within 1 % of the lowest that any method reached with any seed in that cell;
the figures are medians over the seeds, "-" where less than half of them got there within the budget.

The peers: CMA-ES (`cmaes`, population by its own rule, restarted with twice the population where it stops), SciPy's
Nelder-Mead (restarted from a random point where it stops), Optuna's TPE, and random search. Needs
`pip install 'fluidq[bench]'`. Searches of all seeds run in lockstep, so that their closed loops share calls; what a
method asks for does not depend on it. Not a test: it takes many minutes.
"""

import argparse
import json
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script

import numpy as np

import fluidq._descent
from fluidq._finish import POPULATION
from fluidq._rows import Rows
from fluidq.estimators import Report
from fluidq.simulate import load_of
from fluidq.tune import Settings, stack, tune
from tests.benchmarks._lockstep import Served, Spent
from tests.benchmarks._workloads import LAWS, Bench, benches

# Half-range around the start that TPE and random search draw from, in coordinates; the others may leave it.
RANGE = 4.0
# Standard deviation of CMA-ES's first population, a quarter of that range as is usual, and of Nelder-Mead's corners.
SIGMA, CORNERS = 2.0, 1.0
WITHIN = 0.01
GOAL = 20.0
# What fluidq runs with in every cell; steps and generations are what the budget allows.
SETTINGS = Settings(starts=2, screen=48, judge_every=2, estimator="pathwise", realisations=0, unseen=1)
OURS = {"fluidq": SETTINGS}
# Share of the budget, once the start is screened and checked, that gradient steps take; the rest ends the search.
SLOPES = 0.4

Objective = Callable[[np.ndarray], np.ndarray]
Peer = Callable[[Objective, np.ndarray, np.random.Generator], None]
Trace = list[tuple[int, float]]


def cma_es(f: Objective, start: np.ndarray, rng: np.random.Generator) -> None:
    """`cmaes` from the start; restarted there with twice the population."""
    from cmaes import CMA

    size = None
    while True:
        search = CMA(mean=start.copy(), sigma=SIGMA, seed=int(rng.integers(2**31)), population_size=size)
        while not search.should_stop():
            points = [search.ask() for _ in range(search.population_size)]
            search.tell(list(zip(points, f(np.stack(points)), strict=True)))
        size = 2 * search.population_size


def nelder_mead(f: Objective, start: np.ndarray, rng: np.random.Generator) -> None:
    """SciPy's simplex: its corners drawn around the start, one at it; from a random point once it has shrunk."""
    from scipy.optimize import minimize

    origin = start
    while True:
        simplex = np.concatenate([origin[None], origin + CORNERS * rng.standard_normal((len(start), len(start)))])
        options = {"initial_simplex": simplex, "adaptive": True, "maxiter": 10**6, "maxfev": 10**6}
        minimize(lambda u: float(f(u[None])[0]), origin, method="Nelder-Mead", options=options)
        origin = start + rng.uniform(-RANGE, RANGE, len(start))


def tpe(f: Objective, start: np.ndarray, rng: np.random.Generator) -> None:
    """Optuna's TPE sampler, multivariate, in the box around the start, which is its first trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate is called experimental
        sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), multivariate=True)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial({f"x{i}": float(x) for i, x in enumerate(start)})
    while True:
        trial = study.ask()
        u = [trial.suggest_float(f"x{i}", x - RANGE, x + RANGE) for i, x in enumerate(start)]
        study.tell(trial, float(f(np.array([u]))[0]))


def random_search(f: Objective, start: np.ndarray, rng: np.random.Generator) -> None:
    """Uniform in the box around the start, after the start itself."""
    f(start[None])
    while True:
        f(start + rng.uniform(-RANGE, RANGE, (16, len(start))))


PEERS: dict[str, Peer] = {
    "CMA-ES": cma_es,
    "Nelder-Mead": nelder_mead,
    "TPE": tpe,
    "random": random_search,
}


def traced(rows: Rows, budget: int, search: Callable[[Objective], None]) -> Trace:
    """(closed loops so far, lowest cost so far) of a search without gradients that is cut off at the budget."""
    trace: Trace = []
    best = math.inf

    def f(points: np.ndarray) -> np.ndarray:
        nonlocal best
        points = points[: max(budget - rows.counted, 0)]
        if not len(points):
            raise Spent
        before = rows.counted
        costs = rows.hard(points, np.zeros(len(points), int))[:, 0]
        for k, cost in enumerate(costs):
            if cost < best:
                best = float(cost)
                trace.append((before + k + 1, best))
        if rows.counted >= budget:
            raise Spent
        return costs

    try:
        search(f)
    except Spent:
        pass
    return trace


def fitted(budget: int, parameters: int, settings: Settings) -> Settings:
    """The settings with steps and generations that fit: what precedes them is about five runs with slopes."""
    left = budget - settings.screen - 5 * (1 + parameters)
    each = settings.starts * (1 + parameters + 1 / settings.judge_every)
    steps = max(1, int(SLOPES * left / each))
    return replace(settings, steps=steps, finish=max(0, int((left - steps * each) / POPULATION)))


class Watched(fluidq._descent.Descent):
    """A descent that notes closed loops and best hard cost at each judgement, in its own thread's trace."""

    notes = threading.local()

    def begin(self, origin: np.ndarray, estimator: str, why: str, reports: list[Report]) -> None:
        self.notes.trace.append((1, self.best_merit))  # the given policy, judged before anything else
        super().begin(origin, estimator, why, reports)

    def judge(self, u: np.ndarray, step: int) -> np.ndarray:
        merits = super().judge(u, step)
        self.notes.trace.append((self.search.rows.counted, self.best_merit))
        return merits


def tuned(bench: Bench, name: str, settings: Settings, budget: int) -> Trace:
    """The same for `fluidq.tune`: only what it would return counts, and only within the budget."""
    Watched.notes.trace = []
    aim = bench.fleet, bench.workload, bench.law(name), bench.objective
    tune(*aim, settings, moves=bench.moves(name), progress=False)
    out: Trace = []
    for count, cost in Watched.notes.trace:
        if count <= budget and (not out or cost < out[-1][1]):
            out.append((count, cost))
    return out


def cell(
    bench: Bench,
    name: str,
    seeds: int,
    budget: int,
    settings: Mapping[str, Settings],
    methods: Mapping[str, Peer] | None = None,
) -> dict[str, list[Trace]]:
    """The traces of every method, one per seed; `settings` are fluidq's, by the name in the table."""
    methods = PEERS if methods is None else methods
    space = bench.space(name)
    start = np.asarray(space.start())
    whole = Rows(space, stack([load_of(bench.workload, bench.fleet.interval)]), bench.objective)
    server, served = Served.through(whole)
    searches: dict[tuple[str, int], Callable[[], Trace]] = {}
    for number, (method, peer) in enumerate(methods.items()):
        for seed in range(seeds):
            rows = served(space, whole.loads, whole.objective)
            rng = np.random.default_rng([seed, number])
            searches[method, seed] = partial(traced, rows, budget, lambda f, peer=peer, rng=rng: peer(f, start, rng))
    for method, s in settings.items():
        fit = fitted(budget, len(start), s)
        for seed in range(seeds):
            mine = replace(fit, seed=seed)
            searches[method, seed] = partial(tuned, bench, name, mine, budget)
    module = sys.modules["fluidq.tune"]
    with mock.patch.object(module, "Rows", served), mock.patch.object(module, "Descent", Watched):
        traces = server.run(searches)
    return {m: [traces[m, seed] for seed in range(seeds)] for m in (*methods, *settings)}


def reached(trace: Trace, level: float) -> float:
    """Closed loops until the cost is at most `level`; inf where it never is."""
    return next((float(count) for count, cost in trace if cost <= level), math.inf)


def judged(traces: dict[str, list[Trace]], ours: str = "fluidq") -> dict[str, Any]:
    """What a cell says: best known cost; per method the closed loops to within 1 % of it and the final costs."""
    final = {m: np.array([t[-1][1] for t in each]) for m, each in traces.items()}
    best = float(min(costs.min() for costs in final.values()))
    methods = {}
    for m, each in traces.items():
        runs = np.array([reached(t, (1.0 + WITHIN) * best) for t in each])
        median = float(np.median(runs)) if np.isfinite(runs).mean() > 0.5 else None
        methods[m] = {
            "runs_to_1_percent": median,
            "found": int(np.isfinite(runs).sum()),
            "final_over_best": float(np.median(final[m])) / best,
            "worst_over_best": float(final[m].max()) / best,
        }
    rest = {m: v for m, v in methods.items() if m in PEERS}
    quickest = min(rest, key=lambda m: (rest[m]["runs_to_1_percent"] or math.inf, -rest[m]["found"]))
    cheapest = min(rest, key=lambda m: rest[m]["final_over_best"])
    us, them = methods[ours]["runs_to_1_percent"], rest[quickest]["runs_to_1_percent"]
    gain = None if us is None or them is None else them / us
    return {
        "best": best,
        "start": traces[ours][0][0][1],
        "methods": methods,
        "best_peer": quickest,
        "gain": gain,
        "goal_met": us is not None and (gain is None or gain >= GOAL),
        "best_final_peer": cheapest,
        "never_worse": methods[ours]["final_over_best"] <= rest[cheapest]["final_over_best"] * (1 + 1e-9),
        "verdict": verdict(methods[ours], quickest, rest[quickest]),
    }


def verdict(us: dict[str, Any], peer: str, them: dict[str, Any]) -> str:
    """Who gets within 1 % first, in words: how many times fewer closed loops, or whose seeds get there at all."""
    ours, theirs = us["runs_to_1_percent"], them["runs_to_1_percent"]
    if ours is not None and theirs is not None:
        return f"{theirs / ours:.1f} x" if ours <= theirs else f"{peer} wins, {ours / theirs:.1f} x"
    if ours is None and theirs is None and us["found"] == them["found"]:
        return "nobody wins"
    if theirs is None and us["found"] > them["found"]:
        return f"fluidq wins: {us['found']} seeds against {them['found']}"
    return f"{peer} wins: {them['found']} seeds against {us['found']}"


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: closed loops to within 1 % (seeds that found it), then final costs over the best known."""
    if not cells:
        return "no cell"
    methods = list(cells[0]["methods"])
    lines = [
        f"Closed loops to within 1 % of the best known cost, median (seeds of {cells[0]['seeds']} that got there)",
        "",
        "| workload | law | parameters | " + " | ".join(methods) + " | fluidq against the best peer |",
        "|---" * (len(methods) + 4) + "|",
    ]
    for c in cells:
        shown = []
        for m in methods:
            v = c["methods"][m]
            runs = "-" if v["runs_to_1_percent"] is None else f"{v['runs_to_1_percent']:.0f}"
            shown.append(f"{runs} ({v['found']})")
        lines.append(f"| {c['workload']} | {c['law']} | {c['parameters']} | {' | '.join(shown)} | {c['verdict']} |")
    lines += [
        "",
        f"Final cost over the best known after {cells[0]['budget']} closed loops, median (worst seed)",
        "",
        "| workload | law | best known [GPU-h] | start | " + " | ".join(methods) + " | lowest |",
        "|---" * (len(methods) + 5) + "|",
    ]
    for c in cells:
        shown = [f"{v['final_over_best']:.3f} ({v['worst_over_best']:.3f})" for v in c["methods"].values()]
        winner = "fluidq" if c["never_worse"] else c["best_final_peer"]
        start = c["start"] / c["best"]
        lines.append(
            f"| {c['workload']} | {c['law']} | {c['best']:,.1f} | {start:.3f} | {' | '.join(shown)} | {winner} |"
        )
    met, equal = sum(c["goal_met"] for c in cells), sum(c["never_worse"] for c in cells)
    lines += [
        "",
        f"Goal, at most 1/{GOAL:.0f} of the best peer's closed loops: met in {met} of {len(cells)} cells. "
        f"Never a worse final cost (medians): {equal} of {len(cells)}.",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="short loads, 2 seeds, a small budget")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--budget", type=int, default=None, help="closed loops per search")
    parser.add_argument("--workloads", nargs="*", help="names; without it all five")
    parser.add_argument("--laws", nargs="*", default=list(LAWS))
    parser.add_argument("--methods", nargs="*", default=list(PEERS), choices=list(PEERS), help="peers; without it all")
    parser.add_argument("--out", type=Path, help="a JSON file, written after every cell")
    args = parser.parse_args(arguments)
    seeds, budget = args.seeds or (2 if args.quick else 10), args.budget or (150 if args.quick else 600)
    out: dict[str, Any] = {
        "settings": {name: asdict(s) for name, s in OURS.items()},
        "within": WITHIN,
        "cells": [],
        "skipped": [],
    }
    for bench in benches(quick=args.quick, only=args.workloads):
        if not isinstance(bench, Bench):
            out["skipped"].append({"workload": bench[0], "reason": bench[1]})
            continue
        for name in args.laws:
            began = time.perf_counter()
            traces = cell(bench, name, seeds, budget, OURS, {m: PEERS[m] for m in args.methods})
            facts = {"workload": bench.name, "law": name, "seeds": seeds, "budget": budget}
            parameters = len(bench.space(name).parameters)
            seconds = time.perf_counter() - began
            out["cells"].append({**facts, "parameters": parameters, "seconds": seconds, **judged(traces)})
            print(f"{bench.name}, {name}: {out['cells'][-1]['verdict']} ({seconds:.0f} s)", file=sys.stderr, flush=True)
            if args.out:
                args.out.write_text(json.dumps(out, indent=2))
    if args.json:
        print(json.dumps(out, indent=2))
    else:
        print(table(out["cells"]), *(f"{s['workload']}: not run: {s['reason']}" for s in out["skipped"]), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
