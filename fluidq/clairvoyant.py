"""The clairvoyant bound: what no policy can undercut, whatever it knows of the future.

Statement. For every fleet, load and objective, `Bound.value` is at most the cost of every hard run of
`fluidq.simulate` that starts from any split within the budget, asks for no more than the budget, and is otherwise free
to do anything, with full knowledge of the load.

Two bounds; the larger counts. *Apart*: prefill's own least cost plus decode's own, for the GPUs, starts and losses of a
run are sums over the pools, and late >= SHARE late + (1 - SHARE) late, of which prefill is charged the first and decode
the second for its own part of the wait. Prefill's is a dynamic programme with the exact late share
(`_clairvoyant_prefill`), decode's a linear one. *Together*, where the pools apart leave the common budget: one linear
programme of both (`_clairvoyant_lp`). Of a linear programme the value is what its *dual* proves, whatever the solver's
tolerance: a run gives a feasible point whose objective is at most the run's cost, and weak duality does the rest.

Per tick that point is P = ready prefill GPUs, S = decode GPUs in use (draining ones included), X = queued prefill work,
W = output tokens in the system that are not yet decoded, n = running sequences. What is left out only lowers the cost:

1. *Workers are not whole*, the least number of workers is 0, and the GPUs at time 0 are free to choose: more choice.
2. *Cold start.* P_t <= P_(t-1) + c_t, S_t <= S_(t-1) + c'_t: stops are free, and S includes what drains. A GPU that
   becomes ready was paid for its cold start before, so the price of c is the least time that a start, or a role switch
   where there is one, is paid for. The price is taken when it arrives; what never arrives is not charged. For an Erlang
   cold start it is the mean time: of a batch of starts, those that arrive before the end are never cheaper than that,
   for what remains of an Erlang time is on average at most the whole (new better than used in expectation). Nothing
   arrives before the first start can.
3. *Budget*: P + D <= budget with D <= S the ready decode GPUs; what drains may come on top, as in the engine.
4. *Prefill*: X_t = max(0, X_(t-1) + arrivals - P_t), whatever links, buffer and back-pressure take from it. Stalled
   work is charged nothing. Requests are lost only where that is cheaper, each with the longest request's output.
5. *Decode* is not made to wait for prefill, nor for links, KV memory or room in the buffer. W_t >= W_(t-1) + arrivals
   - done - lost. done <= p n_(t-1) + p' n_t + q S_t are facets over every step of the engine (step time of the batch at
   the start of the step, at the shortest context of any request; mean batch between what was there and what is there).
6. *Late in TPOT*: late >= alpha done + delta n_(t-1) + delta' n_t - gamma S_t, facets under (requests done) * (their
   share at the step time), with every request as long as the longest.
7. *Late in TTFT.* A request's TTFT is at least its own time in an empty system plus the wait, and the wait is at least
   X_t / (P_t r_P), and at least the time of what has not been admitted, W_t - (longest output) n_t, through S_t full
   GPUs at an empty batch's step time. In the linear programmes the late share is at least a staircase with its steps at
   a few waits w_i. What exceeds a step, e_t = (X_t - w_i r_P P_t)+, can be positive only on a tick that is late
   (l_t = 1), and has then grown by at most the arrivals and what the step has sunk by: e_t <= e_(t-1) + l_t (arrivals
   + w_i r_P budget), e_t <= e_(t-1) + l_t arrivals + w_i r_P (GPUs that stopped), e_t <= X_t; so for decode. Of l only
   0 <= l <= 1 is asked. The formulas of `fluidq.waiting` only add to the TTFT.
8. *Work left at the end* costs nothing, as in the engine.
9. *Stretches.* The horizon of a linear programme is cut; each stretch starts from the cheapest fleet and batch, without
   the backlog that it inherits. With Y_t = max(0, Y_(t-1) + arrivals - service) in place of a store that held something
   before, every row above stays true, so the sum over stretches is a bound.

Actions are charged for the workers that arrive, where they have a price.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._clairvoyant_decode import Facets, Lengths, facets
from fluidq._clairvoyant_lp import Physics, Prices, Solved, Stretch, solve
from fluidq._clairvoyant_prefill import Pool, prefill_pool
from fluidq._errors import refuse
from fluidq.fleet import Fleet
from fluidq.formulas import requests as formulas
from fluidq.objective import Objective
from fluidq.plant import Arrivals, Flows, Plant, empty
from fluidq.simulate import Load, load_of
from fluidq.workload import Workload

HOUR = 3600.0
# Levels of the TTFT's late share, beyond that of an empty system, at which the staircase under it has its steps.
LEVELS = (0.05, 0.15, 0.4, 0.7)
# Share of a late request's price that the prefill pool's own bound is given; decode's has the rest.
SHARE = 0.5
# Most ticks of one programme: its time grows faster than its length, and what a cut gives away is one ramp.
STRETCH = 120
# Of the value, for rounding in the sums of the engine and of the dual.
_ROUNDING = 1e-8

RELAXED = (
    "fractions of workers; any split of the budget at time 0; no least number of workers",
    "decode waits for no prefill, link, KV memory or buffer room; stalled work is free; loss is a choice",
    "shortest context for step times; longest output for late and lost requests",
    "decode: late from the tick on which a wait builds up; a staircase under the late share; each stretch of the "
    "horizon starts from the cheapest state",
    "the pools share no budget, and the price of a late request is split between them (unless they would exceed it)",
    "work left at the end is free (as in the simulator)",
)


@dataclass(frozen=True)
class Bound:
    """A lower bound of every policy's cost.

    Attributes:
        value: the bound, in the unit of `Cost.cost` [GPU-hours].
        parts: what the programme's optimum spends on gpu_hours, slo_loss, lost_flow, stalled_flow and actions
            [GPU-hours]; their sum is `value` but for the solver's tolerance.
        prefill_gpus, decode_gpus: the optimum's ready GPUs and GPUs in use on each tick, shape (ticks,).
        interval: seconds per tick.
        relaxed: what the bound leaves out, in words.
        status: "optimal", or the solver's own words where a stretch was not solved (it then counts 0: still a bound).
        stretches: number of programmes.
    """

    value: float
    parts: dict[str, float]
    prefill_gpus: np.ndarray
    decode_gpus: np.ndarray
    interval: float
    relaxed: tuple[str, ...]
    status: str
    stretches: int

    def ratio(self, cost: float) -> float:
        """`cost` over the bound: 1 is perfect; inf where the bound is 0."""
        return float(cost) / self.value if self.value > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "value": self.value,
            "unit": "GPU-hours over the workload",
            "parts": dict(self.parts),
            "status": self.status,
            "stretches": self.stretches,
            "relaxed": list(self.relaxed),
            "interval_s": self.interval,
            "prefill_gpus": [float(x) for x in self.prefill_gpus],
            "decode_gpus": [float(x) for x in self.decode_gpus],
        }

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value:,.1f}" for name, value in self.parts.items() if value)
        mean = f"{self.prefill_gpus.mean():,.1f} + {self.decode_gpus.mean():,.1f} GPUs on average"
        lines = [
            f"clairvoyant bound: {self.value:,.1f} GPU-hours ({parts or 'nothing to pay'}; {mean})",
            f"solver: {self.status}",
            "relaxed:",
            *(f"  {text}" for text in self.relaxed),
        ]
        return "\n".join(lines)


def clairvoyant(
    fleet: Fleet,
    workload: Workload | Load | Sequence[Workload],
    objective: Objective | None = None,
    *,
    progress: bool = True,
) -> Bound:
    """A lower bound of the cost of every policy, hard form, on this workload: see the module's statement and argument.

    Arguments:
        fleet, workload, objective: as for `simulate`.
        progress: a bar, on a terminal.

    A day at 15 s takes about half a minute of one core. Returns a `Bound`. Raises InputError for a workload that is
    empty, negative or not finite, or has tokens on a tick without requests; for numbers that are batched or traced; and
    for a plant other than the two pools.
    """
    objective = objective or Objective()
    _check_plant(fleet, objective)
    load = workload if isinstance(workload, Load) else load_of(workload, fleet.interval)
    amounts = _amounts(load)
    dt, plant = fleet.interval, fleet.plant
    lengths, longest_context = _lengths(amounts)
    facet = facets(plant, objective, lengths, dt, fleet.substeps)
    hour, lead = dt / HOUR, _lead(fleet) / dt  # of a GPU-tick [h]; of a start [ticks]
    late = float(objective.late_weight) * float(fleet.request_gpu_seconds) / dt
    waits, first, rises, share = _staircase(plant, amounts, objective, dt)
    physics = _physics(fleet, lengths, longest_context, facet, waits / dt)
    prices = _prices(fleet, objective, lengths, facet, late)

    computed, output = (np.asarray(part).sum(axis=1) for part in (amounts.computed, amounts.output))
    prefill = computed / (float(plant.r_P) * dt)
    requests = np.asarray(amounts.requests).sum(axis=1)
    number = max(1, math.ceil(prefill.size / STRETCH))
    edges = np.linspace(0, prefill.size, number + 1).round().astype(int)
    so_far = np.cumsum(requests)

    def programme(weight: float, *, both: bool) -> list[Solved]:
        price = weight * late
        parts = [
            Stretch(int(a), prefill[a:b], output[a:b] / facet.unit, float(so_far[b - 1]), price * rises[:, a:b])
            for a, b in pairwise(edges)
        ]
        text = "bound of both pools" if both else "bound of decode"
        bar = tqdm(parts, desc=text, disable=None if progress else True)
        return [solve(physics, prices, part, both=both) for part in bar]

    always = late * float(first.sum())  # nobody waits, and yet some requests are expected to be late
    decode = programme(1.0 - SHARE, both=False)
    alone = prefill_pool(
        prefill,
        SHARE * late * requests,
        share,
        gpu=prices.gpu,
        start=prices.start[0],
        budget=physics.budget,
        first=physics.first,
    )
    apart = _Parts.of(decode, (1.0 - SHARE) * always)
    apart = apart.with_prefill(alone)
    best = apart
    if np.max(apart.pools.sum(axis=0)) > physics.budget:
        joint = _Parts.of(programme(1.0, both=True), always)
        best = joint if joint.value > apart.value else apart
    return Bound(
        value=best.value * hour * (1.0 - _ROUNDING),
        parts={
            "gpu_hours": prices.gpu * float(best.pools.sum() - best.free + lead * best.started.sum()) * hour,
            "slo_loss": float(best.late) * hour,
            "lost_flow": float(best.lost) * hour,
            "stalled_flow": 0.0,
            "actions": float(best.started @ _actions(fleet, objective)),
        },
        prefill_gpus=best.pools[0],
        decode_gpus=best.pools[1],
        interval=dt,
        relaxed=RELAXED,
        status=best.status,
        stretches=number,
    )


@dataclass(frozen=True)
class _Parts:
    """A bound in GPU-ticks: value, late, lost, GPUs started, shape (2,), pools, shape (2, ticks), and what of the pools
    is not charged."""

    value: float
    late: float
    lost: float
    started: np.ndarray
    pools: np.ndarray
    status: str
    free: float = 0.0

    @staticmethod
    def of(solved: list[Solved], always: float) -> "_Parts":
        bad = [one.status for one in solved if "ptimal" not in one.status]
        return _Parts(
            value=math.fsum(one.value for one in solved) + always,
            late=math.fsum(one.late for one in solved) + always,
            lost=math.fsum(one.lost for one in solved),
            started=np.sum([one.started for one in solved], axis=0),
            pools=np.stack([np.concatenate([getattr(one, name) for one in solved]) for name in ("prefill", "decode")]),
            status=bad[0] if bad else "optimal",
        )

    def with_prefill(self, pool: Pool) -> "_Parts":
        return replace(
            self,
            value=self.value + pool.value,
            late=self.late + pool.late,
            started=self.started + np.array([pool.started, 0.0]),
            pools=np.stack([pool.path, self.pools[1]]),
            free=pool.step * pool.path.size,
        )


def _check_plant(fleet: Fleet, objective: Objective) -> None:
    """The argument is about the two pools with numbers in them."""
    if type(fleet.plant) is not Plant:
        raise refuse("fleet.plant", type(fleet.plant).__name__, "a Plant: the bound is proven for the two pools")
    for name, owner in (("fleet.plant", fleet.plant), ("fleet", fleet), ("objective", objective)):
        for field in owner.__dataclass_fields__:
            value = getattr(owner, field)
            if value is None or isinstance(value, Plant | str | bool):
                continue
            if isinstance(value, Tracer) or np.ndim(value) > 0 or math.isnan(float(value)):
                raise refuse(f"{name}.{field}", value, "one number: the bound is of one fleet and not of a batch")
    fleet.plant.check()


def _amounts(load: Load) -> Load:
    """The load as arrays of shape (ticks, classes), checked."""
    ticks = np.shape(load.requests)[:1]
    if ticks in ((), (0,)):
        raise refuse("workload", "no windows", "at least one window of arrivals")
    parts = [np.asarray(part, dtype=float) for part in load]
    for name, part in zip(Load._fields, parts, strict=True):
        if part.shape != parts[0].shape:
            raise refuse(f"load.{name}", part.shape, f"of the shape of load.requests, {parts[0].shape}")
        if not np.all(np.isfinite(part) & (part >= 0)):
            worst = float(part[~(np.isfinite(part) & (part >= 0))][0])
            raise refuse(f"load.{name}", worst, "finite amounts >= 0")
        if np.any((part > 0) & (parts[0] <= 0)):
            raise refuse(f"load.{name}", "more than 0 on a tick without requests", "0 there: tokens belong to requests")
    whole: list[Any] = [part.reshape(ticks[0], -1) for part in parts]
    return Load(*whole)


def _lengths(load: Load) -> tuple[Lengths, float]:
    """Extremes of the lengths over all requests, and the longest mean context of a running one [tok]."""
    some = load.requests > 0
    if not some.any():
        return Lengths(1.0, 1.0, 0.0), 0.0
    output = load.output[some] / load.requests[some]
    stored = load.stored[some] / load.requests[some]
    # The engine takes stored + (output - 1)+ / 2 of a mixture: at least the least of either form, at most the largest.
    context = max(float(np.min(stored + 0.5 * (output - 1.0))), float(np.min(stored)), 0.0)
    longest = float(np.max(output))
    if longest == 0.0:  # nothing to decode
        return Lengths(1.0, 1.0, context), context
    return Lengths(float(np.min(output)), longest, context), float(np.max(stored + 0.5 * np.maximum(output - 1.0, 0.0)))


def _staircase(
    plant: Plant, load: Load, objective: Objective, interval: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Levels of the wait [s], the late requests of each tick with no wait, and what each level adds to them.

    Shapes (levels,), (ticks,), (levels, ticks). With no wait the TTFT is the engine's for an empty system, at the step
    time of an empty batch.
    """
    zero = jnp.zeros(())
    nothing = Flows(empty().backlog, empty().backlog, zero, zero, jnp.asarray(plant.t_step_a, dtype=float), zero, zero)
    arrivals = Arrivals(*(jnp.asarray(part) for part in load))
    least = np.asarray(plant.latency(empty(), arrivals, 1.0, 1.0, nothing).ttft, dtype=float)
    least = np.broadcast_to(least, load.requests.shape)

    def late(wait: float) -> np.ndarray:
        share = np.asarray(objective.late_share(jnp.asarray(least + wait), 1.0)[0], dtype=float)
        return np.sum(load.requests * share, axis=1)

    bottom = float(least.min())
    share = float(objective.late_share(bottom, 1.0)[0])
    waits = []
    for level in LEVELS:
        aim = share + level * (1.0 - share)
        if aim < 1.0:
            waits.append(float(objective.ttft) * (aim / (1.0 - aim)) ** float(objective.ttft_spread) - bottom)
    shares = [late(wait) for wait in (0.0, *waits)]
    rises = np.maximum(np.diff(np.stack(shares), axis=0), 0.0)

    def at_least(wait: np.ndarray) -> np.ndarray:
        """Share of any tick's requests that is late after that many ticks of waiting, at the least own time of all."""
        return np.asarray(objective.late_share(jnp.asarray(bottom + wait * interval), 1.0)[0], dtype=float)

    return np.array(waits), shares[0], rises, at_least


def _lead(fleet: Fleet) -> float:
    """Least mean time for which a GPU is paid before it serves [s]: the pending ticks of a start or of a switch."""
    start, dt = float(fleet.cold_start), fleet.interval
    if fleet.stages:
        from scipy.stats import gamma

        scale = start / fleet.stages
        ticks = np.arange(1, 2 + math.ceil(60.0 * start / dt))
        start = dt * float(gamma.sf(ticks * dt, fleet.stages, scale=scale).sum())
    return start if fleet.switch_delay is None else min(start, float(fleet.switch_delay))


def _actions(fleet: Fleet, objective: Objective) -> np.ndarray:
    """Price of the action by which one GPU of each pool arrives [GPU-hours], shape (2,)."""
    return float(objective.action_weight) / np.array([float(g) for g in fleet.per_worker])


def _prices(fleet: Fleet, objective: Objective, lengths: Lengths, facet: Facets, late: float) -> Prices:
    dt, gpu = fleet.interval, float(objective.gpu_hour_weight)
    start = gpu * _lead(fleet) / dt + _actions(fleet, objective) * HOUR / dt
    lost = float(objective.lost_weight) * float(fleet.request_gpu_seconds) / dt
    return Prices(
        gpu=gpu,
        start=(float(start[0]), float(start[1])),
        slow=late * facet.unit / lengths.longest,
        lost=None if fleet.plant.back_pressure else lost,
    )


def _physics(fleet: Fleet, lengths: Lengths, longest_context: float, facet: Facets, waits: np.ndarray) -> Physics:
    plant, dt = fleet.plant, fleet.interval
    first = 0 if fleet.stages else fleet.delay_ticks
    if fleet.switch_delay is not None:
        first = min(first, fleet.switch_ticks)
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    slowest = float(formulas.step_time(**law, B=plant.batch, theta_ctx=longest_context))
    batch, accept = float(plant.batch), float(plant.accept)
    return Physics(
        budget=float(fleet.budget) * (1.0 + 1e-8),
        first=first,
        waits=waits,
        queue=facet.full / float(plant.t_step_a),
        held=lengths.longest * batch / facet.unit,
        each=lengths.longest / facet.unit,
        stays=math.exp(-dt * accept / (lengths.longest * slowest)),
        facets=facet,
    )


make_callable(__name__)
