"""Shadow prices: what one unit more of a resource is worth in GPU-hours per day, with the policy as it is.

    prices = sensitivity(fleet, workload, policy)
    print(prices)                        # a table, and why a price is 0
    prices["cold_start"].worth           # GPU-hours/day saved by 1 s less of cold start

Each price is found twice, and the better of the two is named: by the path-wise gradient of the relaxed law, and by a
finite difference of the hard law (integer workers, comparisons on ticks) with common random numbers, the same draws
of the load on both sides. By the envelope theorem the price at a tuned policy is also that of a policy which is
re-tuned after the change, to first order; `envelope=True` re-tunes and looks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._errors import refuse, unknown
from fluidq._sensitivity_envelope import Envelope, envelope, standard_error
from fluidq._sensitivity_price import Found, no_price, price_of
from fluidq._sensitivity_quantities import QUANTITIES, Facts, Span, aimed, moved_workload
from fluidq._sensitivity_types import Price, Sensitivity
from fluidq._xla import compiled
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies.base import Policy
from fluidq.simulate import Load, Run, load_of, simulate
from fluidq.workload import DAY, Workload

Retune = Callable[[Fleet, Workload, Policy, Objective], Policy]

# The priced quantities unless named: all but the fabric, which most scenarios do not limit.
DEFAULT = ("cold_start", "buffer", "nic", "hit", "prefill_rate", "decode_speed", "budget")


def sensitivity(
    fleet: Fleet,
    workload: Workload,
    policy: Policy,
    objective: Objective | None = None,
    *,
    quantities: Sequence[str] | None = None,
    envelope: bool | Sequence[str] = False,
    width: float = 0.3,
    share: float = 0.05,
    realisations: int = 8,
    seed: int = 0,
    retune: Retune | None = None,
    progress: bool = True,
) -> Sensitivity:
    """What one unit of each quantity saves, with the policy's parameters and the objective's prices held.

    worth = -d(cost)/d(quantity), times +1 where more of it should help (buffer, NIC, hits, speeds, budget) and -1 for
    the cold start, so that a worth > 0 is a saving. The price of a late request (`fleet.request_gpu_seconds`) is held.

    Arguments:
        fleet: plant, delay, budget. workload: the load; its draws are `workload.reseeded`. policy: as tuned.
        objective: limits and prices (default `Objective()`).
        quantities: names, by default `DEFAULT`: cold_start [1 s less], buffer [1 GB], nic [1 Gb/s on every GPU of both
            pools], hit [1 percentage point: less to compute, the same to store], prefill_rate, decode_speed [1 %],
            budget [1 GPU]; also fabric [1 Gb/s].
        envelope: names, or True for those with a price other than 0: re-tune at both points of the difference and
            compare. Two searches each, by far the longest part.
        width: of the relaxed law. share: half-width of the finite difference, relative to the quantity (the budget
            moves by one worker of each pool).
        realisations: draws of the load beside the given one, for the means and their standard errors. seed: of them.
        retune: (fleet, workload, policy, objective) to a better policy; by default `fluidq.tune` with a short search
            from the given policy.
        progress: a bar, on a terminal.

    At a whole number of ticks of cold start the cost has a kink, and the price is that of a shorter one; a quantity at
    the end of its range has a price on the other side only. `Price.note` says so.

    Raises InputError for an unknown quantity, a share outside (0, 0.5], a width that is not positive, a number of
    realisations below 0, and a workload too short to draw again.
    """
    objective = objective or Objective()
    names = DEFAULT if quantities is None else tuple(quantities)
    checked = names if envelope is True else () if envelope is False else tuple(envelope)
    _check(names, checked, width, share, realisations)
    hard = _Costs(fleet, _draws(workload, fleet, realisations, seed), objective, None)
    relaxed = _Costs(fleet, hard.loads, objective, width)
    facts = _facts(hard, policy)
    base = np.array([float(run.cost.cost) for run in facts.runs]) / hard.days
    cost = float(np.mean(base))
    spans = {name: QUANTITIES[name].span(fleet, hard.loads[0], share, facts) for name in names}
    slopes, untraced = _gradients(hard, policy, width)
    retune = retune or _short_search
    others: tuple[Policy, ...] = ()

    prices: dict[str, Price] = {}
    health = [untraced] if untraced else []
    for name in tqdm(names, desc="prices", disable=None if progress else True):
        span = spans[name]
        if isinstance(span, str):
            prices[name] = no_price(name, span)
            continue
        slope = None if slopes is None else slopes[:, list(QUANTITIES).index(name)]
        by_steps = hard.difference(policy, name, span)
        check = None
        if name in checked and (np.any(by_steps) or envelope is not True):
            others = others or (retune(fleet, workload, policy, objective),)
            check = _envelope(name, span, hard, workload, policy, others, retune)
        found = Found(slope, relaxed.difference(policy, name, span), by_steps, cost)
        prices[name], bad = price_of(name, span, found, fleet, facts, check, width)
        health += bad
    return Sensitivity(prices, cost, standard_error(base), len(hard.loads), float(width), health)


def _check(names: Sequence[str], checked: Sequence[str], width: float, share: float, realisations: int) -> None:
    for name in names:
        if name not in QUANTITIES:
            raise unknown("quantity", name, QUANTITIES)
    if not names:
        raise refuse("quantities", names, f"at least one of {', '.join(QUANTITIES)}")
    for name in checked:
        if name not in names:
            raise unknown("quantity to check", name, names)
    if not 0 < width < np.inf:
        raise refuse("width", width, "a finite number > 0")
    if not 0 < share <= 0.5:
        raise refuse("share", share, "a share in (0, 0.5]")
    if isinstance(realisations, bool) or realisations != int(realisations) or realisations < 0:
        raise refuse("realisations", realisations, "a whole number >= 0")


def _draws(workload: Workload, fleet: Fleet, realisations: int, seed: int) -> list[Load]:
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise refuse("seed", seed, "an integer from 0 to 2^63 - 1")
    seeds = np.random.SeedSequence(seed).generate_state(realisations) if realisations else []
    return [load_of(w, fleet.interval) for w in (workload, *(workload.reseeded(int(s)) for s in seeds))]


class _Costs:
    """The cost per day of a policy after a move, on every draw; hard for width None."""

    def __init__(self, fleet: Fleet, loads: list[Load], objective: Objective, width: float | None) -> None:
        self.fleet, self.loads, self.objective, self.width = fleet, loads, objective, width
        self.days = fleet.interval * loads[0].requests.shape[0] / DAY

    def __call__(self, policy: Policy, name: str | None = None, x: float = 0.0) -> Float64[np.ndarray, " draws"]:
        costs = []
        for load in self.loads:
            fleet = self.fleet
            if name is not None and x != 0:
                fleet, load = QUANTITIES[name].move(fleet, load, x)
            run = simulate(fleet, load, policy, self.objective, width=self.width, record=False)
            costs.append(float(run.cost.cost))
        return np.array(costs) / self.days

    def difference(self, policy: Policy, name: str, span: Span) -> Float64[np.ndarray, " draws"]:
        """Worth of one unit on each draw, between the points of `span`."""
        return (self(policy, name, span.low) - self(policy, name, span.high)) / (span.high - span.low)


def _facts(hard: _Costs, policy: Policy) -> Facts:
    fleet, loads, objective = hard.fleet, hard.loads, hard.objective
    links = ("nic_prefill", "nic_decode", "fabric")
    wide = fleet.with_plant(**{name: getattr(fleet.plant, name) * 1e6 for name in links})

    def record(draw: int | None) -> Run:
        where, load = (wide, loads[0]) if draw is None else (fleet, loads[draw])
        return simulate(where, load, policy, objective)

    runs = [simulate(fleet, load, policy, objective, record=False) for load in loads]
    return Facts(runs, hard.days * DAY, record)


# The gradient


def _gradients(
    hard: _Costs, policy: Policy, width: float
) -> tuple[Float64[np.ndarray, "draws quantities"] | None, str]:
    """Worth of one unit of every quantity on each draw by the path-wise gradient; or None, and why, in words."""
    arrays = _as_arrays((aimed(hard.fleet), policy, hard.objective))
    try:
        rows = [np.asarray(_slopes(*arrays, load, jnp.asarray(width))) for load in hard.loads]
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        law = type(policy).__name__
        return None, f"no gradient: {law} prepares itself from the load outside JAX, so only differences are there."
    return -np.stack(rows) / hard.days, ""


def _relaxed_slopes(fleet: Fleet, policy: Policy, objective: Objective, load: Load, width: Array) -> Array:
    def cost(x: Array) -> Array:
        moved, offered = fleet, load
        for i, quantity in enumerate(QUANTITIES.values()):
            moved, offered = quantity.move(moved, offered, x[i])
        return simulate(moved, offered, policy, objective, width=width, record=False).cost.cost

    return jax.jacfwd(cost)(jnp.zeros(len(QUANTITIES)))


_slopes = compiled(_relaxed_slopes)


def _as_arrays(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float64) if isinstance(x, int | float) else x, tree)


# Re-tuning


def _envelope(
    name: str,
    span: Span,
    hard: _Costs,
    workload: Workload,
    policy: Policy,
    others: tuple[Policy, ...],
    retune: Retune,
) -> Envelope:
    def tuned(x: float) -> Policy:
        fleet, _ = QUANTITIES[name].move(hard.fleet, hard.loads[0], x)
        return retune(fleet, moved_workload(name, workload, x), policy, hard.objective)

    return envelope(lambda law, x: hard(law, name, x), policy, tuned, span.low, span.high, others=others)


def _short_search(fleet: Fleet, workload: Workload, policy: Policy, objective: Objective) -> Policy:
    from fluidq.tune import Settings, tune

    settings = Settings(
        steps=24, starts=4, spread=0.1, learning_rate=0.05, width_start=0.5, judge_every=4, realisations=4, unseen=1
    )
    return tune(fleet, workload, policy, objective, settings, progress=False).after


make_callable(__name__)
