"""Speed of the closed loop, as ratios measured in one run: `python tests/benchmarks/table.py [--json]`.

One policy-day is 24 h of the embedded load, a control tick every 15 s, a cold start of 88 s, two pools, float64. The
peer is the same hard law and the same physics written as a plain Numba loop without gradients, parallel over policies
(install the `validate` extra; without it the ratio is null). Not a test: shared machines are noisy.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fluidq.policies import Thresholds
from fluidq.scenario import build_case
from fluidq.simulate import Load, load_of, simulate
from fluidq.tune import from_coordinates, to_coordinates


def timed(run: Callable[[], Any], repeats: int = 3) -> float:
    """Best of `repeats` [s], after one call that compiles."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def measure(batch: int) -> dict[str, Any]:
    """All figures, in one process."""
    case = build_case()
    load = load_of(case.workload, case.fleet.interval)
    origin = to_coordinates(case.policy)
    noise = 0.3 * jax.random.normal(jax.random.key(0), (batch, origin.shape[0]))
    points = origin[None] + noise

    def relaxed(u: Any) -> Any:
        policy = from_coordinates(u, case.policy)
        return simulate(case.fleet, load, policy, case.objective, width=1.0, record=False).cost.cost

    def hard(u: Any) -> Any:
        policy = from_coordinates(u, case.policy)
        return simulate(case.fleet, load, policy, case.objective, record=False).cost.cost

    def value_and_gradient(u: Any) -> Any:
        def twice(v: Any) -> Any:
            cost = relaxed(v)
            return cost, cost

        return jax.jacfwd(twice, has_aux=True)(u)

    start = time.perf_counter()
    jax.block_until_ready(jax.jit(value_and_gradient)(origin))
    first = time.perf_counter() - start
    forward, gradient = jax.jit(jax.vmap(relaxed)), jax.jit(jax.vmap(value_and_gradient))
    hard_batch = jax.jit(jax.vmap(hard))
    t_forward, t_gradient = timed(lambda: forward(points)), timed(lambda: gradient(points))
    t_hard = timed(lambda: hard_batch(points))
    one = jax.jit(hard)
    t_one = timed(lambda: one(origin))
    policies = jax.vmap(lambda u: from_coordinates(u, case.policy))(points)
    peer = numba_peer(case, load, policies)
    return {
        "batch": batch,
        "cores": os.cpu_count(),
        "policy_days_per_s": batch / t_hard,
        "relaxed_policy_days_per_s": batch / t_forward,
        "grad5_over_forward": t_gradient / t_forward,
        "single_policy_day_s": t_one,
        "first_gradient_s": first,
        "batch_over_numba": None if peer is None else peer / t_hard,
        "numba_policy_days_per_s": None if peer is None else batch / peer,
        "numba_cost_agrees_to": None if peer is None else numba_error(case, load, policies, hard_batch(points)),
    }


def numba_inputs(case: Any, load: Load, policies: Thresholds) -> tuple[Any, ...]:
    """Plain arrays for the peer."""
    f, p, o = case.fleet, case.fleet.plant, case.objective
    fields = (policies.prefill_up, policies.prefill_down, policies.decode_up, policies.decode_down, policies.ratio)
    thresholds = np.stack([np.asarray(x) for x in fields], axis=1)
    loads = np.stack([np.asarray(x) for x in load], axis=1)
    plant = np.array(
        [
            *(p.r_P, p.batch, p.t_step_a, p.t_step_b, p.t_step_c, p.kappa, p.capacity, p.nic_prefill, p.nic_decode),
            *(min(float(p.fabric), 1e300), p.prefill_worker, p.decode_worker),
        ],
        dtype=float,
    )
    fleet = np.array([f.cold_start, f.budget, f.initial_gpus, f.request_gpu_seconds, f.min_workers, f.interval], float)
    prices = np.array(
        [o.ttft, o.tpot, o.late_weight, o.stalled_weight, o.ttft_spread, o.tpot_spread, float(case.policy.step)], float
    )
    return thresholds, loads, plant, fleet, prices


def numba_peer(case: Any, load: Load, policies: Thresholds) -> float | None:
    """Best time [s] of the Numba loop over the whole batch, or None without Numba."""
    try:
        from tests.benchmarks.numba_loop import costs
    except ImportError:
        return None
    inputs = numba_inputs(case, load, policies)
    return timed(lambda: costs(*inputs))


def numba_error(case: Any, load: Load, policies: Thresholds, ours: Any) -> float:
    """Largest relative difference of the two hard costs: the peer does the same work."""
    from tests.benchmarks.numba_loop import costs

    theirs = costs(*numba_inputs(case, load, policies))
    return float(np.max(np.abs(theirs / np.asarray(ours) - 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only JSON on standard output")
    parser.add_argument("--batch", type=int, default=1024, help="policies side by side (default %(default)s)")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, the peer is found as well
    figures = measure(args.batch)
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<28}{'-' if value is None else f'{value:,.4g}'}")


if __name__ == "__main__":
    main()
