"""Speed of the closed loop, as ratios measured in one run: `python tests/benchmarks/table.py [--json]`.

One policy-day is 24 h of the embedded load, a control tick every 15 s, a cold start of 300 s, two pools, 3 substeps of
the physics per tick, float64. The peers do the same work in the same run: the same hard law and physics as a plain
Numba loop without gradients, parallel over policies; SciPy's `solve_ivp` on the same closed loop, tick by tick; and the
request-level replay of the same day (install the `validate` extra; without it those ratios are null). Not a test:
shared machines are noisy.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, the peers are found as well

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fluidq import queue
from fluidq._xla import compiler_options
from fluidq.fleet import Fleet
from fluidq.policies import Asked, Policy, Thresholds
from fluidq.scenario import build_case
from fluidq.simulate import Load, load_of, simulate
from fluidq.space import make_space
from fluidq.sweep import sweep

WIDTH = 1.0


class Neural(Policy):
    """A small network on six signals, for the cost of a gradient of about 1,000 parameters."""

    net: eqx.nn.MLP
    KEEPS_BUDGET = True

    @staticmethod
    def make(key: Any) -> "Neural":
        return Neural(eqx.nn.MLP(6, 2, 24, 2, activation=jnp.tanh, dtype=jnp.float64, key=key))

    def decide(self, memory: Any, reading: Any, fleet: Fleet, width: Any) -> tuple[Any, Asked]:
        r = reading
        seen = [r.rate / 50, r.queue_tokens / 1e6, r.buffered / 1e3, r.running / 1e3, r.prefill_asked, r.decode_asked]
        out = jax.nn.sigmoid(self.net(jnp.tanh(jnp.stack([jnp.asarray(x, dtype=jnp.float64) for x in seen]))))
        g_P, g_D = fleet.per_worker
        return memory, Asked(1.0 + out[0] * 0.5 * fleet.budget / g_P, 1.0 + out[1] * 0.4 * fleet.budget / g_D)


def timed(run: Callable[[], Any], repeats: int = 3) -> float:
    """Best of `repeats` [s], after one call that compiles."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def policy_day() -> tuple[Any, Fleet, Load]:
    """The case, its fleet with 300 s of cold start and 3 substeps, and its load."""
    case = build_case()
    f = case.fleet
    fleet = Fleet.make(
        f.plant,
        cold_start=300.0,
        budget=f.budget,
        initial_gpus=f.initial_gpus,
        request_gpu_seconds=f.request_gpu_seconds,
        substeps=3,
    )
    return case, fleet, load_of(case.workload, fleet.interval)


def measure(batch: int) -> dict[str, Any]:
    """All figures, in one process but for the imports."""
    case, fleet, load = policy_day()
    space = make_space(case.policy)
    origin = space.start()
    points = origin[None] + 0.3 * jax.random.normal(jax.random.key(0), (batch, origin.shape[0]))

    def cost(u: Any, width: Any) -> Any:
        policy, _ = space.at(jnp.concatenate([u, origin[u.shape[0] :]]))
        return simulate(fleet, load, policy, case.objective, width=width, record=False).cost.cost

    hard, relaxed = partial(cost, width=None), partial(cost, width=WIDTH)

    start = time.perf_counter()
    slope = jax.jit(jax.value_and_grad(relaxed), compiler_options=compiler_options())
    slope = jax.jit(
        lambda u: jax.jacfwd(lambda v: (relaxed(v),) * 2, has_aux=True)(u), compiler_options=compiler_options()
    )
    jax.block_until_ready(slope(origin[:4]))
    first = time.perf_counter() - start

    quiet: dict[str, Any] = {"progress": False}
    ours = np.asarray(sweep(hard, points, **quiet))
    t_hard = timed(lambda: sweep(hard, points, **quiet))
    t_relaxed = timed(lambda: sweep(relaxed, points[:, :4], **quiet))
    t_grad4 = timed(lambda: sweep(relaxed, points[:, :4], gradient="forward", **quiet))
    some, apart = points[:128], jax.jit(jax.vmap(hard), compiler_options=compiler_options())
    fused = jax.jit(jax.vmap(hard))
    gain = timed(lambda: fused(some), repeats=1) / timed(lambda: apart(some))
    one = jax.jit(hard, compiler_options=compiler_options())
    t_one = timed(lambda: one(origin), repeats=5)
    policies = jax.vmap(lambda u: space.at(u)[0])(points)
    figures = {
        "batch": batch,
        "cores": os.cpu_count(),
        "policy_days_per_s": batch / t_hard,
        "relaxed_policy_days_per_s": batch / t_relaxed,
        "single_policy_day_s": t_one,
        "compiler_options_gain": gain,
        "grad4_over_forward": t_grad4 / t_relaxed,
        "grad1000_over_forward": neural_ratio(case, fleet, load),
        "first_gradient_s": first,
        "import_over_jax_diffrax": import_ratio(),
        "open_loop_ns_per_step": open_loop(),
        "gradient_peak_bytes_30d": gradient_memory(case),
        "cost_of_twice_the_horizon": horizon_ratio(case, fleet, load, one, origin),
    }
    return {**figures, **peers(case, fleet, load, policies, ours, batch / t_hard, t_one)}


def neural_ratio(case: Any, fleet: Fleet, load: Load, batch: int = 16) -> float:
    """Reverse-mode value and gradient over the forward pass, for a policy of about 1,000 parameters."""
    keys = jax.random.split(jax.random.key(1), batch)
    nets = eqx.filter_vmap(Neural.make)(keys)
    numbers, fixed = eqx.partition(nets, eqx.is_inexact_array)

    def cost(part: Any, checkpoint: bool) -> Any:
        policy = eqx.combine(part, fixed)
        run = simulate(fleet, load, policy, case.objective, width=WIDTH, record=False, checkpoint=checkpoint)
        return run.cost.cost

    quiet: dict[str, Any] = {"progress": False, "block": 8}
    forward = timed(lambda: sweep(partial(cost, checkpoint=False), numbers, **quiet), repeats=2)
    return (
        timed(lambda: sweep(partial(cost, checkpoint=True), numbers, gradient="reverse", **quiet), repeats=2) / forward
    )


def import_ratio() -> float:
    """`import fluidq` and its engine over `import jax, diffrax`, best of 3 fresh processes each."""

    def cold(statement: str) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            times.append(time.perf_counter() - start)
        return min(times)

    return cold("import fluidq; fluidq.simulate, fluidq.Thresholds, fluidq.Workload") / cold("import jax, diffrax")


def open_loop(steps: int = 604_800) -> float:
    """Nanoseconds per step of a week of the single queue at 1 s."""
    net = jnp.asarray(np.random.default_rng(0).normal(0, 1e9, steps))
    edges, C, Q0 = jnp.arange(steps + 1.0), jnp.asarray(20e9), jnp.asarray(5e9)
    run = jax.jit(lambda x: queue._follow(C, Q0, edges, x, "lost").final.level, compiler_options=compiler_options())
    return timed(lambda: run(net)) / steps * 1e9


def gradient_memory(case: Any) -> int:
    """Temporary bytes of the compiled reverse-mode gradient of 30 days at 5 s, as XLA counts them."""
    f = case.fleet
    fleet = Fleet.make(
        f.plant,
        cold_start=300.0,
        budget=f.budget,
        initial_gpus=f.initial_gpus,
        request_gpu_seconds=f.request_gpu_seconds,
        interval=5.0,
    )
    ticks = 30 * 86_400 // 5
    load = Load(*(jax.ShapeDtypeStruct((ticks,), jnp.float64) for _ in Load._fields))

    def cost(u: Any, load: Load) -> Any:
        policy, _ = make_space(case.policy).at(u)
        return simulate(fleet, load, policy, case.objective, width=WIDTH, record=False, checkpoint=True).cost.cost

    u = make_space(case.policy).start()
    analysis = jax.jit(jax.grad(cost), compiler_options=compiler_options()).lower(u, load).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)


def horizon_ratio(case: Any, fleet: Fleet, load: Load, one: Callable[[Any], Any], origin: Any) -> float:
    """Time of two days over that of one: 2 where cost is linear in the horizon."""
    double = Load(*(jnp.concatenate([part, part]) for part in load))

    space = make_space(case.policy)

    def cost(u: Any) -> Any:
        return simulate(fleet, double, space.at(u)[0], case.objective, record=False).cost.cost

    two = jax.jit(cost, compiler_options=compiler_options())
    return timed(lambda: two(origin)) / timed(lambda: one(origin))


def peers(case: Any, fleet: Fleet, load: Load, policies: Thresholds, ours: Any, rate: float, t_one: float) -> Any:
    """Ratios against the peers; null where the `validate` extra is missing."""
    names = ("batch_over_numba", "single_over_numba", "numba_policy_days_per_s", "numba_cost_agrees_to")
    out: dict[str, Any] = dict.fromkeys((*names, "batch_over_scipy", "scipy_cost_agrees_to", "batch_over_replay"))
    try:
        from tests.benchmarks import numba_loop, replay_day, scipy_loop
    except ImportError:
        return out
    inputs = numba_loop.inputs(case, fleet, load, policies)
    first = numba_loop.inputs(case, fleet, load, jax.tree.map(lambda x: x[:1], policies))
    theirs = numba_loop.costs(*inputs)
    t_batch, t_single = timed(lambda: numba_loop.costs(*inputs)), timed(lambda: numba_loop.costs(*first), repeats=5)
    peer = theirs.size / t_batch
    out["batch_over_numba"], out["single_over_numba"] = rate / peer, t_single / t_one
    out["numba_policy_days_per_s"] = peer
    out["numba_cost_agrees_to"] = float(np.max(np.abs(theirs / ours - 1)))
    seconds, error = scipy_loop.measure(case, fleet, load)
    out["batch_over_scipy"], out["scipy_cost_agrees_to"] = rate * seconds, error
    out["batch_over_replay"] = rate * replay_day.seconds(case, fleet)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only JSON on standard output")
    parser.add_argument("--batch", type=int, default=1024, help="policies side by side (default %(default)s)")
    args = parser.parse_args()
    figures = measure(args.batch)
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<28}{'-' if value is None else f'{value:,.4g}'}")


if __name__ == "__main__":
    main()
