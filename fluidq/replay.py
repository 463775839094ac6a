"""Request-level replay of a deployment: the same plant with whole requests, whole workers and chance.

It is the judge of the fluid, so it shares no line with it: SimPy's clock and events, first-come queues, one request per
prefill worker, a handoff buffer that takes a request whole or not at all, links, batch slots, cold starts, draining.

- Prefill: one first-come queue; a worker takes computed / (g_P r_P) seconds per request.
- Handoff: straight into a free slot where nobody waits; else into the buffer where it has room; else the worker holds
  the request (back-pressure: it takes no other one) or it is lost.
- Links: each is first come, first served at its own rate; a request has crossed when its slowest link has carried it.
  Before a buffer that is not its own, a prefill worker sends one request at a time, over its link and the shared
  fabric, and computes the next meanwhile. Which ends are crossed before the buffer is `Plant.place`.
- Decode: floor(batch g_D) slots per worker, and kv_capacity where the plant has one, for stored + half the output; a
  new request goes to the emptiest worker and holds its slot from the transfer on.
  A step of a worker takes a + (b n + c S) / g_D seconds, S the context of its n sequences at that moment.
- Workers: started ones are ready after the cold start; stopped ones serve what they hold and are paid for until then.

Source: two-pool state space; D05, D07, D24, D29, D32.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._errors import InputError, refuse, unknown
from fluidq._replay_run import Estimate as Estimate
from fluidq._replay_run import Requests as Requests
from fluidq._replay_run import Run as Run
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies import Policy, Reading
from fluidq.simulate import Load
from fluidq.workload import Workload

LAWS = ("gamma", "lognormal")
MOST_WORKERS = 100_000
Number = float | int | np.integer | np.floating
Whole = int | np.integer


@dataclass(frozen=True)
class Schedule:
    """Pool sizes over time: from `times[k]` [s] on, `prefill[k]` and `decode[k]` workers are wanted.

    The first entry is at time 0 and ready at once; later ones go through the cold start.
    """

    times: tuple[Number, ...]
    prefill: tuple[Number, ...]
    decode: tuple[Number, ...]


@dataclass(frozen=True)
class Control:
    """A hand-written hard policy: `decide(time, readings)` is called every `Fleet.interval`, from time 0 on.

    It returns the wanted prefill and decode workers, starting ones included; more than the budget is an error.
    `initial` is ready at time 0. Readings are floats under the names of `fluidq.policies.Reading`, and: `blocked`
    workers that hold a finished request, requests `finished` since the last call, `pending` GPUs that start, `gpus` in
    all, `prefill_wait` [s] of the queue at the ready workers' rate, `decode_load` sequences per ready slot, those in
    the buffer included.
    """

    decide: Callable[[float, dict[str, float]], tuple[Any, Any]]
    initial: tuple[Number, Number]


Pools = tuple[Number, Number] | Schedule | Control | Policy


def draw(
    workload: Workload, seed: Whole, *, scv_isl: Number = 1.0, scv_osl: Number = 1.0, law: str = "gamma"
) -> Requests:
    """One realisation of the workload in whole requests; the same for one seed.

    Arrivals are Poisson at the rate of each window. Lengths are the window's means times independent factors of mean 1
    and squared coefficient of variation `scv_isl` (input, cached part included) and `scv_osl` (output), of the `law`
    "gamma" (1 is exponential) or "lognormal"; 0 is fixed lengths. Lengths are real numbers: their means are exact.
    Arrivals do not depend on the law of the lengths, so that two laws can be compared on the same arrivals.

    Raises InputError for a seed < 0, a scv < 0, an unknown law, or a realisation without a request.
    """
    whole = _whole("seed", seed, 0)
    if law not in LAWS:
        raise unknown("law of the lengths", law, LAWS)
    when, first, second = (np.random.default_rng((whole, stream)) for stream in range(3))
    counts = when.poisson(workload.rate * workload.window)
    window = np.repeat(np.arange(counts.size), counts)
    arrival = np.sort((window + when.random(window.size)) * workload.window)
    window = np.minimum((arrival / workload.window).astype(np.int64), counts.size - 1)
    into = _factors("scv_isl", scv_isl, law, first, window.size)
    out = _factors("scv_osl", scv_osl, law, second, window.size)
    return Requests(
        arrival=arrival,
        computed=workload.isl_computed[window] * into,
        stored=workload.isl_stored[window] * into,
        output=workload.osl[window] * out,
        duration=workload.duration,
    )


def replay(
    fleet: Fleet,
    requests: Requests,
    pools: Pools,
    *,
    horizon: Number | None = None,
    drain: bool = False,
    seed: Whole = 0,
    progress: bool = False,
) -> Run:
    """Serve every request of `requests` on the fleet and stamp what happened to each.

    Arguments:
        fleet: plant, cold start, interval, budget, least workers.
        requests: arrivals and lengths, drawn (`draw`) or given.
        pools: constant workers (prefill, decode), a `Schedule`, a `Control`, or a policy of `fluidq.policies` under its
            hard law, which reads whole requests here instead of a fluid.
        horizon: end of the replay [s]; the requests' own duration by default.
        drain: go on after the last arrival until nothing is left, instead of stopping at the horizon.
        seed: of the cold starts, where they are random (`Fleet.stages`); nothing else here is.
        progress: show a progress bar.

    Raises InputError for pools below the fleet's least or above its budget, for a batch of less than one slot per
    worker, for a request that no decode worker has the memory for, and where SimPy is not installed.
    """
    engine_type, controller = _engine()
    end = float(requests.duration if horizon is None else horizon)
    if not (np.isfinite(end) and end > 0):
        raise refuse("horizon", end, "a finite time > 0 s")
    if drain and horizon is not None:
        raise refuse("horizon", end, "left out where drain is asked for: the replay ends when nothing is left")
    engine = engine_type(fleet, requests, _whole("seed", seed, 0))
    if engine.slots < 1:
        raise refuse("batch", float(fleet.plant.batch), "at least one slot per decode worker")
    largest = float(np.max(requests.stored + 0.5 * requests.output))
    if largest > engine.memory:
        raise refuse("the KV memory of a decode worker", engine.memory, f"that of the longest request, {largest:g} tok")
    env = engine.env
    if isinstance(pools, Policy):
        pools = _controlled(fleet, requests, pools)
    if isinstance(pools, Control):
        engine.command(*_sizes("initial", fleet, *pools.initial), ready=True)
        env.process(
            controller(engine).controlled(lambda at, seen: _sizes("the decision", fleet, *pools.decide(at, seen)))
        )
    else:
        steps = _steps(fleet, pools)
        engine.command(*steps[0][1:], ready=True)
        env.process(controller(engine).scheduled(steps[1:]))
    with tqdm(total=len(engine.arrival), unit="req", disable=not progress, leave=False) as bar:
        env.process(engine.arrivals((lambda i: bar.update(i - bar.n)) if progress else None))
        end = engine.run(None if drain else end)
    return Run.of(engine, requests, end)


@dataclass(frozen=True)
class Ensemble:
    """Runs of the same deployment, one per seed."""

    runs: tuple[Run, ...]

    def estimate(self, measure: Callable[[Run], float], confidence: Number = 0.95) -> Estimate:
        """Mean of `measure` over the runs with a confidence interval (Student's t; the runs are independent)."""
        return Estimate.of([measure(run) for run in self.runs], float(confidence))

    def attainment(
        self, objective: Objective | None = None, t0: Number = 0.0, t1: Number | None = None, confidence: Number = 0.95
    ) -> Estimate:
        """Share of requests within the objective's limits, over seeds; see `Run.attainment`."""
        return self.estimate(lambda run: run.attainment(objective, t0, t1), confidence)


def replicate(
    fleet: Fleet,
    workload: Workload,
    pools: Pools,
    *,
    seeds: Iterable[Whole] = range(8),
    scv_isl: Number = 1.0,
    scv_osl: Number = 1.0,
    law: str = "gamma",
    drain: bool = False,
    progress: bool = True,
) -> Ensemble:
    """Replay independent realisations of the workload, one per seed, with a progress bar; arguments as above."""
    chosen = [_whole("seed", seed, 0) for seed in seeds]
    if not chosen or len(set(chosen)) < len(chosen):
        raise refuse("seeds", chosen, "one or more different whole numbers")
    runs = []
    for seed in tqdm(chosen, unit="seed", disable=not progress, leave=False):
        requests = draw(workload, seed, scv_isl=scv_isl, scv_osl=scv_osl, law=law)
        runs.append(replay(fleet, requests, pools, drain=drain, seed=seed))
    return Ensemble(tuple(runs))


def _engine() -> tuple[Any, Any]:
    try:
        from fluidq._replay_control import Controller
        from fluidq._replay_engine import Engine
    except ImportError as error:
        if (error.name or "").split(".")[0] != "simpy":
            raise
        raise InputError("the replay needs SimPy; install it: pip install 'fluidq[validate]'.") from None
    return Engine, Controller


def _controlled(fleet: Fleet, requests: Requests, policy: Policy) -> Control:
    """A policy of the fluid as one of whole requests: the same law, on the same names."""
    policy = policy.prepare(_load(requests, fleet.interval), fleet)
    asked = policy.initial(fleet, None)
    memory = policy.start(fleet, asked)
    # Numbers as arrays: another replay is then no other compilation.
    law, on = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, (policy, fleet))

    def decide(time: float, seen: dict[str, float]) -> tuple[int, int]:
        nonlocal memory
        values = {name: jnp.asarray(seen[name]) for name in Reading._fields}
        reading = Reading(**{**values, "index": jnp.asarray(round(seen["index"]))})
        memory, wanted = _decided(law, on, memory, reading)
        prefill, decode = (round(float(n)) for n in wanted)
        if policy.KEEPS_BUDGET:
            return prefill, decode
        return _fitted(fleet, (prefill, decode), (round(seen["prefill_asked"]), round(seen["decode_asked"])))

    prefill, decode = (round(float(n)) for n in asked)
    return Control(decide, (prefill, decode))


@eqx.filter_jit
def _decided(policy: Policy, fleet: Fleet, memory: Any, reading: Reading) -> tuple[Any, Any]:
    return policy.decide(memory, reading, fleet, None)


def _fitted(fleet: Fleet, wanted: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    """What the cluster has GPUs for, as in the fluid: what is there stays, growth gets the room, prefill's first."""
    stays = [min(a, b) for a, b in zip(wanted, now, strict=True)]
    sizes = [float(g) for g in fleet.per_worker]
    room = float(fleet.budget) - sum(n * g for n, g in zip(stays, sizes, strict=True))
    for pool, size in enumerate(sizes):
        grows = max(0, min(wanted[pool] - stays[pool], math.floor(room / size + 1e-9)))
        stays[pool] += grows
        room -= grows * size
    return stays[0], stays[1]


def _load(requests: Requests, interval: float) -> Load:
    """What arrives per control interval, for policies that forecast."""
    ticks = max(1, math.ceil(requests.duration / interval - 1e-9))
    index = np.minimum((requests.arrival / interval).astype(np.int64), ticks - 1)
    parts = (np.ones_like(requests.arrival), requests.computed, requests.stored, requests.output)
    return Load(*(jnp.asarray(np.bincount(index, part, minlength=ticks)) for part in parts))


def _steps(fleet: Fleet, pools: tuple[Number, Number] | Schedule) -> list[tuple[float, int, int]]:
    if not isinstance(pools, Schedule):
        return [(0.0, *_sizes("pools", fleet, *pools))]
    times = np.asarray(pools.times, dtype=float)
    if not len(pools.times) == len(pools.prefill) == len(pools.decode) or times.size == 0:
        lengths = (len(pools.times), len(pools.prefill), len(pools.decode))
        raise refuse("the lengths of times, prefill and decode", lengths, "equal and at least 1")
    if times[0] != 0 or not (np.isfinite(times).all() and (np.diff(times) > 0).all()):
        raise refuse("schedule.times", pools.times, "finite, rising, and 0 at first")
    sizes = [
        _sizes(f"schedule[{k}]", fleet, *pair) for k, pair in enumerate(zip(pools.prefill, pools.decode, strict=True))
    ]
    return [(at, *size) for at, size in zip(times.tolist(), sizes, strict=True)]


def _sizes(name: str, fleet: Fleet, prefill: Any, decode: Any) -> tuple[int, int]:
    """Checked pool sizes; what a policy computes as 3.0 or as an array of no axes is the worker count 3."""
    low = max(1, round(float(fleet.min_workers)))
    sizes = []
    for pool, count in (("prefill", prefill), ("decode", decode)):
        value = float(count)
        if not (value.is_integer() and low <= value <= MOST_WORKERS):
            raise refuse(f"{name}: {pool} workers", value, f"a whole number from {low} to {MOST_WORKERS:,}")
        sizes.append(int(value))
    gpus = sizes[0] * float(fleet.plant.prefill_worker) + sizes[1] * float(fleet.plant.decode_worker)
    if gpus > float(fleet.budget) * (1 + 1e-9):
        raise refuse(f"{name}: GPUs", gpus, f"at most the budget of {float(fleet.budget):g} GPUs")
    return sizes[0], sizes[1]


def _factors(field: str, scv: Number, law: str, rng: np.random.Generator, n: int) -> Float64[np.ndarray, " n"]:
    spread = float(scv)
    if not (np.isfinite(spread) and spread >= 0):
        raise refuse(field, spread, "finite and >= 0")
    if spread == 0:
        return np.ones(n)
    if law == "gamma":
        factors = rng.gamma(1.0 / spread, spread, n)
    else:
        width = np.log1p(spread)
        factors = rng.lognormal(-width / 2, np.sqrt(width), n)
    return np.maximum(factors, 1e-12)  # a length of exactly 0 is no length


def _whole(field: str, value: Whole, least: int) -> int:
    if isinstance(value, bool) or value < least:
        raise refuse(field, value, f"a whole number >= {least}")
    return int(value)


make_callable(__name__)
