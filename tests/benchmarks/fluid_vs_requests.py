"""The fluid against the requests: `python tests/benchmarks/fluid_vs_requests.py [--write] [--json]`.

The same plant under steady Poisson load from an empty start, once as a fluid and once as whole requests over seeds:
10, 30, 100 and 300 workers at loads 0.5 to 1.1 of the pool that binds, for three splits of the workers (prefill
binds, decode binds, balanced). Lengths are exponential. `--write` puts the table where the figure finds it.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import t
from tqdm import tqdm

from fluidq import waiting
from fluidq.formulas import requests as per_request
from fluidq.plant import Arrivals, Plant
from fluidq.replay import Run, draw, replay
from fluidq.simulate import Fleet
from fluidq.workload import Workload

TABLE = Path(__file__).parents[2] / "fluidq" / "figures" / "fluid_vs_requests.json"

WORKERS = (10, 30, 100, 300)
LOADS = (0.5, 0.8, 0.9, 0.95, 1.1)
SPLITS = {"prefill": 0.6, "balanced": 0.7, "decode": 0.8}  # share of the workers that prefill, by the pool that binds
BUDGET, SEEDS = 200_000, (10, 64)  # requests per cell, in seeds of that number
ISL, OSL = 1000.0, 100.0
DT = 0.05  # step of the fluid [s]
BLOCK = 100  # steps per call: one compilation for every length
OVERLOAD = (20.0, 30.0, 36.0)  # window and end [s] above capacity


def plant_of(workers: int) -> Plant:
    """10,000 prefill tokens per second and GPU, 64 slots, and a buffer that grows with the fleet."""
    return Plant(
        r_P=10_000.0,
        batch=64.0,
        t_step_a=0.02,
        t_step_b=1e-4,
        t_step_c=8e-9,
        kappa=95e3,
        capacity=0.5e9 * workers,
        nic_prefill=50e9,
        nic_decode=50e9,
        fabric=float("inf"),
        prefill_worker=1.0,
        decode_worker=1.0,
    )


def split_of(case: str, workers: int) -> tuple[int, int]:
    prefill = round(SPLITS[case] * workers)
    return prefill, workers - prefill


def residence(plant: Plant) -> float:
    """Time of a mean request in a full batch [s]."""
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    context = per_request.mean_context_fixed(isl=ISL, osl=OSL)
    return OSL * float(per_request.step_time(**law, B=plant.batch, theta_ctx=context)) / float(plant.accept)


def capacities(plant: Plant, pools: tuple[int, int]) -> tuple[float, float]:
    """What each pool serves at most [req/s]."""
    return pools[0] * float(plant.r_P) / ISL, pools[1] * float(plant.batch) / residence(plant)


def times_of(plant: Plant, pools: tuple[int, int], load: float) -> tuple[float, float, float]:
    """Start and end of the measured window, and of the run [s]: long against the slower pool's relaxation."""
    if load >= 1:
        return OVERLOAD
    relax = 0.0
    limit = min(capacities(plant, pools))
    servers = ((pools[0], ISL / float(plant.r_P)), (pools[1] * float(plant.batch), residence(plant)))
    for capacity, (count, service) in zip(capacities(plant, pools), servers, strict=True):
        relax = max(relax, service / (count * (1 - math.sqrt(load * limit / capacity)) ** 2))
    warm, length = max(12.0, 5 * relax), max(10.0, 20 * relax)
    return warm, warm + length, warm + length + 3.0


@jax.jit
def _block(state: Any, plant: Plant, arrivals: Arrivals, pools: Any) -> Any:
    def step(state: Any, _: None) -> Any:
        state, flows = plant.advance(state, arrivals, pools[0], pools[1], DT)
        felt = plant.latency(state, arrivals, pools[0], pools[1], flows)
        buffer = plant.kappa * state.buffer.stored
        return state, (felt.ttft, felt.tpot, flows.done.requests / DT, buffer, state.active.requests)

    return jax.lax.scan(step, state, length=BLOCK)


def fluid(plant: Plant, pools: tuple[int, int], rate: float, t0: float, t1: float) -> dict[str, float]:
    """The fluid's means over the window, from an empty start, at constant pools."""
    arrivals = Arrivals(*(jnp.asarray(rate * DT * each) for each in (1.0, ISL, ISL, OSL)))
    sizes = jnp.asarray(pools, dtype=float)
    state, parts = plant.empty(), []
    for _ in range(math.ceil(t1 / DT / BLOCK)):
        state, out = _block(state, plant, arrivals, sizes)
        parts.append([np.asarray(x) for x in out])
    window = slice(round(t0 / DT), round(t1 / DT))
    names = ("ttft", "tpot", "throughput", "buffer", "active")
    return {
        name: float(np.mean(np.concatenate(x)[window])) for name, x in zip(names, zip(*parts, strict=True), strict=True)
    }


def measured(run: Run, t0: float, t1: float) -> dict[str, float]:
    """The same means of one replay; TPOT is per token, as the fluid's is."""
    came = run.arrivals_in(t0, t1)
    ended = (run.finish >= t0) & (run.finish < t1) & (run.requests.output > run.accept)
    spent = float(np.sum(run.finish[ended] - run.first_token[ended]))
    # A request without a first token at the end counts with the time so far: an understatement, and none here.
    ttft = np.minimum(run.first_token[came], run.end) - run.requests.arrival[came]
    return {
        "ttft": float(np.mean(ttft)),
        "tpot": spent / float(np.sum(run.requests.output[ended] - run.accept)),
        "throughput": run.throughput(t0, t1),
        "buffer": run.mean_level("buffer", t0, t1, "bytes"),
        "active": run.mean_level("active", t0, t1),
        "wait": float(np.mean(run.wait[came])),
        "unanswered": float(np.count_nonzero(~np.isfinite(run.first_token[came]))),
    }


def surplus(run: Run, rate: float, t1: float) -> list[float]:
    """Prefill and decode tokens that came up to `t1` over what was expected: chance of which the mean is known, 0."""
    came = run.requests.arrival < t1
    parts = (run.requests.computed, ISL), (run.requests.output, OSL)
    return [float(np.sum(tokens[came])) / (rate * t1 * mean) - 1 for tokens, mean in parts]


def adjusted(values: list[float], controls: list[list[float]]) -> tuple[float, float]:
    """Mean over seeds and half its 95 % interval, less what the controls explain (regression control variates)."""
    y, x = np.array(values), np.column_stack([np.ones(len(values)), np.array(controls)])
    fit = np.linalg.lstsq(x, y, rcond=None)[0]
    freedom = len(y) - x.shape[1]
    variance = float(np.sum((y - x @ fit) ** 2)) / freedom * float(np.linalg.inv(x.T @ x)[0, 0])
    return float(fit[0]), float(t.ppf(0.975, freedom)) * math.sqrt(variance)


def cell(case: str, workers: int, load: float, seeds: int | None = None) -> dict[str, Any]:
    """One row of the table; no two cells share a seed."""
    plant, pools = plant_of(workers), split_of(case, workers)
    rate = load * min(capacities(plant, pools))
    t0, t1, end = times_of(plant, pools, load)
    fleet = Fleet.make(
        plant, cold_start=0.0, budget=float(workers), initial_gpus=float(workers), request_gpu_seconds=0.1
    )
    workload = Workload.from_windows(window=end, rate=[rate], isl_stored=ISL, osl=OSL)
    expected = fluid(plant, pools, rate, t0, t1)
    seeds = seeds or min(max(round(BUDGET / (rate * end)), SEEDS[0]), SEEDS[1])
    first = 1000 * (1 + list(SPLITS).index(case) + 10 * LOADS.index(load) + 100 * WORKERS.index(workers))
    runs, samples, controls, count = [], [], [], 0
    for seed in range(first, first + seeds):
        run = replay(fleet, draw(workload, seed), pools)
        runs.append(measured(run, t0, t1))
        controls.append(surplus(run, rate, t1))
        grid = np.arange(t0, t1, 1.0)
        samples.append([run.level("active", grid), run.level("buffer", grid, "bytes")])
        count += run.arrived
    waits = waiting.of_plant(
        "mgc",
        plant,
        rate=rate,
        isl_computed=ISL,
        isl_stored=ISL,
        osl=OSL,
        prefill_gpus=float(pools[0]),
        decode_gpus=float(pools[1]),
        horizon=None if load < 1 else 0.5 * (t0 + t1),
    )
    row: dict[str, Any] = {"case": case, "workers": workers, "load": load, "seeds": seeds, "requests": count}
    for name in ("ttft", "tpot", "throughput", "buffer", "active", "wait"):
        mean, half_width = adjusted([run[name] for run in runs], controls)
        row[name] = {"requests": mean, "half_width": half_width}
        if name in expected:
            row[name]["fluid"] = expected[name]
    row["ttft"]["corrected"] = expected["ttft"] + float(waits[0]) + float(waits[1])
    row["unanswered"] = sum(run["unanswered"] for run in runs)
    for k, name in enumerate(("active", "buffer")):
        away = np.concatenate([sample[k] for sample in samples]) - expected[name]
        row[name]["spread"] = float(np.sqrt(np.mean(away**2)))  # of the path around the fluid
    row["buffer"]["capacity"] = float(plant.capacity)
    return _rounded(row)


def _rounded(value: Any) -> Any:
    """Six digits: what the seeds give, without the last bits of a machine."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def table(seeds: int | None = None) -> list[dict[str, Any]]:
    """Every cell."""
    cells = [(case, n, load) for case in SPLITS for load in LOADS for n in WORKERS]
    return [cell(*each, seeds=seeds) for each in tqdm(cells, unit="cell", leave=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} for the figure")
    parser.add_argument("--seeds", type=int, help=f"replays per cell (default: for {BUDGET:,} requests)")
    args = parser.parse_args()
    start = time.process_time()
    rows = table(args.seeds)
    seconds = time.process_time() - start
    if args.write:
        lines = ",\n".join(json.dumps(row) for row in rows)
        TABLE.write_text(f"[\n{lines}\n]\n")
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{seconds:.0f} s of CPU, {sum(row['requests'] for row in rows):,} requests")
    for row in rows:
        parts = [f"{row['case']:<9}{row['workers']:>4} at {row['load']:<5g}"]
        for name in ("ttft", "tpot", "throughput", "active"):
            x = row[name]
            parts.append(f"{name} {x['fluid'] / x['requests'] - 1:+8.3%} ±{x['half_width'] / x['requests']:.3%}")
        parts.append(f"corrected {row['ttft']['corrected'] / row['ttft']['requests'] - 1:+8.3%}")
        x = row["buffer"]
        parts.append(f"buffer {(x['fluid'] - x['requests']) / x['capacity']:+8.3%} of C")
        parts.append(f"spread {row['active']['spread'] / row['active']['requests']:.3%}")
        print("  ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
