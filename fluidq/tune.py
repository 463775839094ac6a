"""Tune a threshold policy by gradient through the relaxed closed loop; judge every candidate on the hard one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._errors import refuse
from fluidq._xla import compiled
from fluidq.objective import Objective
from fluidq.policies import PARAMETERS, Thresholds
from fluidq.simulate import Fleet, Load, load_of, simulate
from fluidq.workload import Workload

# Above this, d ln(cost) / d(coordinate) says that the loop amplifies, not that the parameter matters.
EXPLODED = 1e4


def to_coordinates(policy: Thresholds) -> Float[Array, " 5"]:
    """The five parameters without constraints: lower thresholds and gaps by inverse softplus, the ratio by log-odds."""

    def inverse_softplus(x: Any) -> Array:
        x = jnp.maximum(jnp.asarray(x, dtype=jnp.float64), 1e-6)  # 0 has no coordinate: the search starts beside it
        return x + jnp.log(-jnp.expm1(-x))

    return jnp.stack(
        [
            inverse_softplus(policy.prefill_up - policy.prefill_down),
            inverse_softplus(policy.prefill_down),
            inverse_softplus(policy.decode_up - policy.decode_down),
            inverse_softplus(policy.decode_down),
            jnp.log(policy.ratio) - jnp.log1p(-jnp.asarray(policy.ratio, dtype=jnp.float64)),
        ]
    )


def from_coordinates(u: Float[Array, " 5"], like: Thresholds) -> Thresholds:
    """The policy at `u`; thresholds come out ordered and positive, the ratio in (0, 1), for every real `u`."""
    prefill_down, decode_down = jax.nn.softplus(u[1]), jax.nn.softplus(u[3])
    return Thresholds(
        prefill_up=prefill_down + jax.nn.softplus(u[0]),
        prefill_down=prefill_down,
        decode_up=decode_down + jax.nn.softplus(u[2]),
        decode_down=decode_down,
        ratio=jax.nn.sigmoid(u[4]),
        step=like.step,
    )


@dataclass(frozen=True)
class Settings:
    """How long and how wide to search.

    Attributes:
        steps: gradient steps. starts: searches run side by side, the first from the given policy.
        spread: standard deviation of the other starts around it, in unconstrained coordinates.
        learning_rate: Adam's, falling along a cosine. width_start, width_end: relaxed width, falling geometrically.
        judge_every: steps between hard judgements. realisations: further draws of the workload used to choose among
            candidates (never for the gradient). unseen: draws that only the final verdict sees.
        seed: of the starts and of those draws.
    """

    steps: int = 60
    starts: int = 8
    spread: float = 0.7
    learning_rate: float = 0.15
    width_start: float = 1.0
    width_end: float = 0.3
    judge_every: int = 10
    realisations: int = 2
    unseen: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "starts", "judge_every", "unseen"):
            if getattr(self, name) < 1:
                raise refuse(f"tune.{name}", getattr(self, name), "at least 1")
        if self.realisations < 0:
            raise refuse("tune.realisations", self.realisations, "an integer >= 0")
        if not 0 <= self.seed < 2**63:
            raise refuse("tune.seed", self.seed, "an integer from 0 to 2^63 - 1")
        for name in ("spread", "learning_rate", "width_start", "width_end"):
            if not getattr(self, name) > 0:
                raise refuse(f"tune.{name}", getattr(self, name), "> 0")
        if self.width_end > self.width_start:
            raise refuse("tune.width_end", self.width_end, f"at most width_start, which is {self.width_start!r}")


class GradientCheck(NamedTuple):
    """The path-wise gradient of the relaxed cost at the start point against central differences."""

    gradient: np.ndarray
    differences: np.ndarray
    max_relative_error: float


@dataclass
class TuneResult:
    """What was found and what judged it.

    `before`, `after` are policies; `hard_before`, `hard_after` the parts of their hard cost on the tuning workload
    [GPU-hours]; `unseen_before`, `unseen_after` hard costs on draws that the search never saw, shape (unseen,);
    `history` relaxed cost per step and start, `judged` (step, best hard cost so far); `health` what went wrong.
    """

    before: Thresholds
    after: Thresholds
    hard_before: dict[str, float]
    hard_after: dict[str, float]
    unseen_before: np.ndarray
    unseen_after: np.ndarray
    gradient_check: GradientCheck
    history: np.ndarray
    judged: list[tuple[int, float]]
    settings: Settings
    health: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, ready for JSON."""
        return {
            "unit": "GPU-hours over the workload",
            "before": {"policy": parameters(self.before), "hard": self.hard_before},
            "after": {"policy": parameters(self.after), "hard": self.hard_after},
            "unseen": {
                "before_cost": float(np.mean(self.unseen_before)),
                "after_cost": float(np.mean(self.unseen_after)),
                "before_costs": [float(c) for c in self.unseen_before],
                "after_costs": [float(c) for c in self.unseen_after],
            },
            "gradient_check": {
                "max_relative_error": self.gradient_check.max_relative_error,
                "gradient": [float(g) for g in self.gradient_check.gradient],
                "central_differences": [float(g) for g in self.gradient_check.differences],
            },
            "judged": [{"step": s, "best_hard_cost": c} for s, c in self.judged],
            "health": list(self.health),
        }


def parameters(policy: Thresholds) -> dict[str, float]:
    """The policy's numbers by name; thresholds on the wait in seconds, on the load as fractions."""
    return {name: float(getattr(policy, name)) for name in (*PARAMETERS, "step")}


def tune(
    fleet: Fleet,
    workload: Workload,
    policy: Thresholds,
    objective: Objective | None = None,
    settings: Settings | None = None,
    *,
    progress: bool = True,
) -> TuneResult:
    """Find thresholds and ratio that lower the cost on the hard law.

    Adam descends ln(relaxed cost) of the workload from several starts in one batch, by forward-mode gradients, while
    the relaxed width falls. Every `judge_every` steps each start is replayed on the hard law (integer workers,
    comparisons on ticks) on the workload and on further draws of it; the best such replay that also beats the given
    policy on the workload itself is the answer, or the given policy where none does. A start whose gradient explodes
    or is not finite stands still for that step and is named in `health`.

    Arguments:
        fleet: plant, delay, budget. workload: what to tune on. policy: where to start, and the peer to beat.
        objective: limits and prices (default `Objective()`). settings: `Settings()`. progress: a bar, on a terminal.

    Raises InputError for a cost that is not finite at the start.
    """
    objective, settings = objective or Objective(), settings or Settings()
    load = load_of(workload, fleet.interval)
    seeds = np.random.SeedSequence(settings.seed).generate_state(settings.realisations + settings.unseen)
    draws = [load_of(workload.reseeded(int(s)), fleet.interval) for s in seeds]
    choosing = _stack([load, *draws[: settings.realisations]])
    unseen = _stack(draws[settings.realisations :])

    origin = to_coordinates(policy)
    noise = jax.random.normal(jax.random.key(settings.seed), (settings.starts - 1, origin.shape[0]))
    starts = jnp.concatenate([origin[None], origin[None] + settings.spread * noise])

    relaxed = _relaxed_cost(fleet, load, policy, objective)
    check = check_gradient(relaxed, origin, settings.width_start)
    hard = _hard_costs(fleet, objective)
    from_all = jax.jit(jax.vmap(lambda v: from_coordinates(v, policy)))

    # The given policy is judged as it is, not through its coordinates: a threshold of 0 has none.
    given = hard(_in_batch(policy), choosing)
    own_before, best_cost, best = float(given[0, 0]), float(given.mean()), None
    judged = [(0, best_cost)]

    optimiser = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.steps))
    step = _make_step(relaxed, optimiser)
    u, state = starts, jax.vmap(optimiser.init)(starts)
    widths = np.geomspace(settings.width_start, settings.width_end, settings.steps)
    history, health = [], []
    with tqdm(total=settings.steps, desc="tuning", unit="step", disable=None if progress else True) as bar:
        for k in range(settings.steps):
            u, state, cost, sound = step(u, state, widths[k])
            history.append(np.asarray(cost))
            for index in np.flatnonzero(~np.asarray(sound)):
                health.append(f"start {index}, step {k}: gradient exploded at width {widths[k]:.3g}; step not taken")
            if (k + 1) % settings.judge_every == 0 or k + 1 == settings.steps:
                # The tuning workload is column 0: a candidate must beat the given policy there, not only on average.
                value, index = _judge(hard(from_all(u), choosing), own_before)
                if value < best_cost:
                    best_cost, best = value, u[index]
                judged.append((k + 1, best_cost))
                bar.set_postfix_str(f"hard cost {best_cost:.4g} GPU-h")
            bar.update()

    after = policy if best is None else jax.tree.map(float, from_coordinates(best, policy))
    final = hard(jax.tree.map(lambda *x: jnp.stack(x), *map(_as_arrays, (policy, after))), unseen)
    return TuneResult(
        before=policy,
        after=after,
        hard_before=hard_cost(fleet, load, policy, objective),
        hard_after=hard_cost(fleet, load, after, objective),
        unseen_before=final[0],
        unseen_after=final[1],
        gradient_check=check,
        history=np.stack(history),
        judged=judged,
        settings=settings,
        health=health,
    )


def hard_cost(fleet: Fleet, load: Load, policy: Thresholds, objective: Objective) -> dict[str, float]:
    """The parts of the hard cost [GPU-hours], the SLO attainment and the number of workers started or stopped."""
    run = simulate(fleet, load, policy, objective, record=False)
    c = run.cost
    return {
        "cost": float(c.cost),
        "gpu_hours": float(c.gpu_hours),
        "slo_loss": float(c.slo_loss),
        "lost_flow": float(c.lost_flow),
        "stalled_flow": float(c.stalled_flow),
        "slo_attainment": float(run.attained),
        "actions": float(run.actions),
    }


def check_gradient(
    cost: Callable[[Array, Any], Array], u: Float[Array, " 5"], width: float, step: float = 1e-5
) -> GradientCheck:
    """The gradient of `cost` at `u` against central differences of `step`.

    The error of a component is relative to the larger of the two, and not below 1e-6 of the largest component: a
    derivative that is zero to rounding has no relative error.
    """
    gradient = jax.jacfwd(cost)(u, width)
    eye = step * jnp.eye(u.shape[0])
    at = jax.vmap(cost, in_axes=(0, None))
    differences = (at(u[None] + eye, width) - at(u[None] - eye, width)) / (2 * step)
    g, d = np.asarray(gradient), np.asarray(differences)
    scale = np.maximum(np.maximum(np.abs(g), np.abs(d)), 1e-6 * max(np.abs(d).max(), 1e-300))
    error = float(np.max(np.abs(g - d) / scale))
    if not np.all(np.isfinite(g)):
        raise refuse("objective", float(cost(u, width)), "finite, with a finite gradient, at the start point")
    return GradientCheck(g, d, error)


def _stack(loads: list[Load]) -> Load:
    """Draws side by side: each field of shape (draws, ticks)."""
    ticks = min(load.requests.shape[0] for load in loads)
    return Load(*(jnp.stack([part[:ticks] for part in parts]) for parts in zip(*loads, strict=True)))


def _relaxed_cost(fleet: Fleet, load: Load, like: Thresholds, objective: Objective) -> Callable[[Array, Any], Array]:
    @eqx.filter_jit
    def cost(u: Array, width: Any) -> Array:
        return simulate(fleet, load, from_coordinates(u, like), objective, width=width, record=False).cost.cost

    return cost


def _hard_costs(fleet: Fleet, objective: Objective) -> Callable[[Thresholds, Load], np.ndarray]:
    """Hard cost of every policy of a batch on every draw, in one call: shape (policies, draws)."""

    def costs(policies: Thresholds, loads: Load) -> Array:
        def one(policy: Thresholds, load: Load) -> Array:
            return simulate(fleet, load, policy, objective, record=False).cost.cost

        return jax.vmap(lambda policy: jax.vmap(lambda load: one(policy, load))(loads))(policies)

    fast = compiled(costs)
    return lambda policies, loads: np.asarray(fast(policies, loads))


def _as_arrays(policy: Thresholds) -> Thresholds:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float64), policy)


def _in_batch(policy: Thresholds) -> Thresholds:
    """A batch of one."""
    return jax.tree.map(lambda x: x[None], _as_arrays(policy))


def _judge(costs: np.ndarray, own_limit: float) -> tuple[float, int]:
    """Mean hard cost and index of the best candidate among those that beat `own_limit` on the workload itself."""
    means = np.where(costs[:, 0] <= own_limit, costs.mean(axis=1), np.inf)
    index = int(np.argmin(means))
    return float(means[index]), index


def _make_step(cost: Callable[[Array, Any], Array], optimiser: optax.GradientTransformation) -> Callable[..., Any]:
    def step(u: Array, state: Any, width: Any) -> tuple[Array, Any, Array, Array]:
        def one(v: Array, s: Any) -> tuple[Array, Any, Array, Array]:
            def log_cost(w: Array) -> tuple[Array, Array]:
                c = cost(w, width)
                return jnp.log(c), c

            gradient, value = jax.jacfwd(log_cost, has_aux=True)(v)
            size = jnp.max(jnp.abs(gradient))
            sound = jnp.isfinite(value) & (size < EXPLODED)  # a NaN compares false
            updates, moved = optimiser.update(jnp.where(sound, gradient, 0.0), s, v)
            keep = lambda new, old: jnp.where(sound, new, old)  # noqa: E731
            return keep(optax.apply_updates(v, updates), v), jax.tree.map(keep, moved, s), value, sound

        return jax.vmap(one)(u, state)

    return compiled(step)


make_callable(__name__)
