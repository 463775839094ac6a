"""Tune an autoscaler by gradient; judge every candidate on its hard law; say whether the result can be trusted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from tqdm import tqdm

from fluidq import _checkpoint
from fluidq._callable import make_callable
from fluidq._descent import Descent
from fluidq._errors import InputError, refuse, unknown
from fluidq._feasible import check_attainment
from fluidq._finish import finish
from fluidq._merit import PAID, Merit
from fluidq._rows import Rows
from fluidq._run_log import RunLog
from fluidq.estimators import EXPLODED as EXPLODED
from fluidq.estimators import NAMES, Report, Search, choose
from fluidq.objective import Objective
from fluidq.policies import Policy
from fluidq.simulate import Fleet, Load, load_of, simulate
from fluidq.space import Space, find, make_space, tunables
from fluidq.workload import Workload

if TYPE_CHECKING:
    from fluidq.certificate import Certificate

RISKS = ("mean", "cvar")


@dataclass(frozen=True)
class Settings:
    """How long, how wide and for what to search.

    Attributes:
        steps: gradient steps at most. starts: searches run side by side, the first from the given policy.
        screen: points that are run on the hard law first; the best of them are the other starts. 0: the first ones are.
        spread: standard deviation of those points around the given policy, in unconstrained coordinates.
        learning_rate: Adam's, falling along a cosine. width_start, width_end: relaxed width, falling geometrically.
        judge_every: steps between hard judgements. patience: judgements without a better hard cost after which the
            search stops early; 0 for never.
        estimator: of the gradient, a name of `fluidq.estimators.NAMES`.
        samples: antithetic pairs of the smoothed estimator. sigma: their spread, in coordinates.
        risk: "mean" over workloads and draws, or "cvar", the mean over the worst `risk_share` of them.
        attainment: least SLO attainment, a share; the search then lowers what is paid subject to it. None for the cost.
        finish: generations of an evolution strategy on the hard law at the end, from the best point found; 0 for none.
        finish_sigma: its first spread, in coordinates.
        realisations: further draws of the workload used to choose among candidates (and for the gradient where the
            risk is "cvar"). unseen: draws that only the final verdict sees.
        seed: of the starts, the clouds and those draws.
    """

    steps: int = 60
    starts: int = 8
    screen: int = 64
    spread: float = 1.5
    learning_rate: float = 0.5
    width_start: float = 1.0
    width_end: float = 0.3
    judge_every: int = 10
    patience: int = 0
    estimator: str = "auto"
    samples: int = 16
    sigma: float = 0.1
    risk: str = "mean"
    risk_share: float = 0.3
    attainment: float | None = None
    finish: int = 40
    finish_sigma: float = 1.0
    realisations: int = 2
    unseen: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "starts", "judge_every", "unseen"):
            if getattr(self, name) < 1:
                raise refuse(f"tune.{name}", getattr(self, name), "at least 1")
        for name in ("realisations", "patience", "screen", "finish"):
            if getattr(self, name) < 0:
                raise refuse(f"tune.{name}", getattr(self, name), "an integer >= 0")
        if self.samples < 2:
            raise refuse("tune.samples", self.samples, "at least 2 antithetic pairs")
        if not 0 <= self.seed < 2**63:
            raise refuse("tune.seed", self.seed, "an integer from 0 to 2^63 - 1")
        for name in ("spread", "learning_rate", "width_start", "width_end", "sigma", "finish_sigma"):
            if not getattr(self, name) > 0:
                raise refuse(f"tune.{name}", getattr(self, name), "> 0")
        if self.width_end > self.width_start:
            raise refuse("tune.width_end", self.width_end, f"at most width_start, which is {self.width_start!r}")
        if self.estimator not in NAMES:
            raise InputError(f"tune.estimator: {unknown('estimator', self.estimator, NAMES)}")
        if self.risk not in RISKS:
            raise InputError(f"tune.risk: {unknown('risk', self.risk, RISKS)}")
        if not 0 < self.risk_share <= 1:
            raise refuse("tune.risk_share", self.risk_share, "a share in (0, 1]")
        if self.attainment is not None and not 0 < self.attainment < 1:
            raise refuse("tune.attainment", self.attainment, "a share between 0 and 1")

    @property
    def share(self) -> float:
        """Share of the draws that counts, the worst: 1 for the mean."""
        return 1.0 if self.risk == "mean" else self.risk_share


class Moves(NamedTuple):
    """What may move, by name: see `fluidq.space.make_space`."""

    free: Sequence[str] | None = None
    fixed: Sequence[str] = ()
    bounds: Mapping[str, tuple[float, float]] | None = None


class GradientCheck(NamedTuple):
    """The path-wise gradient of the relaxed merit at the start point against central differences."""

    gradient: np.ndarray
    differences: np.ndarray
    max_relative_error: float


class Relaxed(NamedTuple):
    """The best point of the relaxed law that the search met: relaxed merit there and at the start, hard merit there.

    `width` is the one at which it was met; the start is judged at the same.
    """

    before: float
    after: float
    hard: float
    width: float
    coordinates: np.ndarray


@dataclass
class TuneResult:
    """What was found and what judged it.

    `before`, `after` are policies; `fleet_before`, `fleet_after` the fleets (the same where nothing of it was free);
    `hard_before`, `hard_after` the parts of their hard cost on the tuning workload [GPU-hours]; `unseen_before`,
    `unseen_after` hard merits on draws that the search never saw, shape (unseen,); `history` merit per step and start,
    `judged` (step, best hard merit so far); `relaxed` the best of the relaxed law; `estimator`, `why`, `reports` how
    the gradient was taken; `runs` closed loops simulated (one with slopes counts 1 + parameters); `stopped` the step
    after which the search ended early; `health` what went wrong. `certificate` judges all of it.
    """

    before: Any
    after: Any
    hard_before: dict[str, float]
    hard_after: dict[str, float]
    unseen_before: np.ndarray
    unseen_after: np.ndarray
    gradient_check: GradientCheck
    history: np.ndarray
    judged: list[tuple[int, float]]
    settings: Settings
    health: list[str] = field(default_factory=list)
    space: Space | None = None
    coordinates: np.ndarray | None = None
    fleet_before: Fleet | None = None
    fleet_after: Fleet | None = None
    workload: Workload | None = None
    also: tuple[Workload, ...] = ()
    objective: Objective | None = None
    relaxed: Relaxed | None = None
    estimator: str = "pathwise"
    why: str = ""
    reports: list[Report] = field(default_factory=list)
    runs: int = 0
    stopped: int | None = None

    @cached_property
    def certificate(self) -> "Certificate":
        """Whether the result holds: made on the first look, in seconds; `fluidq.certificate` has the options."""
        from fluidq.certificate import certify

        return certify(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, ready for JSON; the certificate where it has been made."""
        out = {
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
            "estimator": {"name": self.estimator, "why": self.why, "reports": [r.to_dict() for r in self.reports]},
            "runs": self.runs,
            "stopped_early_after": self.stopped,
            "judged": [{"step": s, "best_hard_cost": c} for s, c in self.judged],
            "health": list(self.health),
        }
        if self.space is not None and self.coordinates is not None:
            moved = self.space.values(jnp.asarray(self.coordinates))
            out["moved"] = {name: np.asarray(value).tolist() for name, value in moved.items()}
        if "certificate" in self.__dict__:
            out["certificate"] = self.certificate.to_dict()
        return out


def parameters(policy: Policy) -> dict[str, float]:
    """The numbers of a policy that can move, and its step where it has one, by name; arrays of weights are left out."""
    out = {}
    for name in tunables(policy):
        value = find(policy, name)
        if jnp.ndim(value) == 0:
            out[name] = float(value)
    step = getattr(policy, "step", None)
    return out if step is None else {**out, "step": float(step)}


def tune(
    fleet: Fleet,
    workload: Workload,
    policy: Policy,
    objective: Objective | None = None,
    settings: Settings | None = None,
    *,
    moves: Moves | None = None,
    also: Sequence[Workload] = (),
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    progress: bool = True,
) -> TuneResult:
    """Find parameters that lower the cost on the hard law.

    Adam descends ln(merit) from several starts in one batch, by the gradient estimator of `settings`, while the relaxed
    width falls. Every `judge_every` steps each start is replayed on the hard law (integer workers, comparisons on
    ticks) on the workload and on further draws of it; the best such replay that also beats the given policy on the
    workloads themselves is the answer, or the given policy where none does. A start whose gradient explodes or is not
    finite stands still for that step and is named in `health`.

    Arguments:
        fleet: plant, delay, budget. workload: what to tune on. policy: where to start, and the peer to beat; its
            defaults that a choice implies are spelled out first, so that they can move.
        objective: limits and prices (default `Objective()`). settings: `Settings()`.
        moves: what may move: by default every tunable parameter of the policy.
        also: further workloads that count as much as the first; all are cut to the shortest.
        checkpoint: a file that keeps the state at every judgement; with `resume` the search goes on from it, to the
            same bits as without an interruption.
        log: a file of JSON lines, one per step and judgement; `fluidq.plot.tuning` draws it.
        progress: a bar, on a terminal.

    Raises InputError for what `make_space` refuses, a merit that is not finite at the start, a gradient of zero in
    every parameter, an attainment that this fleet cannot reach (with the limit that makes it so), and a checkpoint that
    is another search's or damaged twice.
    """
    objective, settings = objective or Objective(), settings or Settings()
    if resume and checkpoint is None:
        raise refuse("checkpoint", None, "a file, where a search is resumed")
    policy = policy.spelled_out()
    space = make_space(policy, fleet, **(moves or Moves())._asdict())
    own = [load_of(w, fleet.interval) for w in (workload, *also)]
    seeds = np.random.SeedSequence(settings.seed).generate_state(settings.realisations + settings.unseen)
    draws = [load_of(workload.reseeded(int(s)), fleet.interval) for s in seeds]
    chosen, unseen = stack([*own, *draws[: settings.realisations]]), stack(draws[settings.realisations :])
    if settings.attainment is not None:
        check_attainment(fleet, Load(*(part[0] for part in chosen)), objective, settings.attainment)

    rows = Rows(space, chosen, objective)
    given = rows.of(policy)
    _check_finite(given)
    merit = Merit(settings.attainment, settings.share, float(given[:, PAID].mean()))
    gradient_draws = range(rows.draws if settings.risk == "cvar" else len(own))
    search = Search(rows, merit, tuple(gradient_draws), settings.samples, settings.sigma, settings.seed)
    descent = Descent(search, merit, settings, given, own=len(own))
    state = _Files(checkpoint, log, _design(space, chosen, unseen, objective, settings), space.labels)
    origin = np.asarray(space.start())
    check = _check_gradient(search, origin, settings.width_start)
    if resume:
        descent.restore(*state.resume())
    else:
        duals = merit.duals(1)
        descent.begin(origin, *choose(settings.estimator, search, origin, settings.width_start, duals))
    state.open(descent)
    with tqdm(
        total=settings.steps, initial=descent.step, desc="tuning", unit="step", disable=not progress or None
    ) as bar:
        while not descent.over:
            descent.advance()
            if descent.judged_now:
                bar.set_postfix_str(f"hard cost {descent.best_merit:.4g} GPU-h")
            state.keep(descent)
            bar.update()
        steps = descent.step
        finish(descent, origin, bar)

    best = descent.best
    after, fleet_after = (policy, fleet) if best is None else space.plain(jnp.asarray(best))
    last = Rows(space, unseen, objective)
    return TuneResult(
        before=policy,
        after=after,
        hard_before=hard_cost(fleet, own[0], policy, objective),
        hard_after=hard_cost(fleet_after, own[0], after, objective),
        unseen_before=_each(merit, last.of(policy)),
        unseen_after=_each(merit, last.of(after, fleet_after)),
        gradient_check=check,
        history=np.stack(descent.history),
        judged=descent.judged,
        settings=settings,
        health=descent.health,
        space=space,
        coordinates=origin if best is None else best,
        fleet_before=fleet,
        fleet_after=fleet_after,
        workload=workload,
        also=tuple(also),
        objective=objective,
        relaxed=_relaxed(search, merit, descent, origin),
        estimator=descent.estimator,
        why=descent.why,
        reports=descent.reports,
        runs=rows.counted,
        stopped=steps if steps < settings.steps else None,
    )


def hard_cost(fleet: Fleet, load: Load, policy: Policy, objective: Objective) -> dict[str, float]:
    """The parts of the hard cost [GPU-hours], the SLO attainment and the number of workers started or stopped."""
    run = simulate(fleet, load, policy, objective, record=False)
    c = run.cost
    return {
        "cost": float(c.cost),
        "gpu_hours": float(c.gpu_hours),
        "slo_loss": float(c.slo_loss),
        "lost_flow": float(c.lost_flow),
        "stalled_flow": float(c.stalled_flow),
        "churn": float(c.actions),
        "slo_attainment": float(run.attained),
        "actions": float(run.actions),
    }


def stack(loads: Sequence[Load]) -> Load:
    """Draws side by side: each field of shape (draws, ticks), cut to the shortest."""
    ticks = min(load.requests.shape[0] for load in loads)
    return Load(*(jnp.stack([part[:ticks] for part in parts]) for parts in zip(*loads, strict=True)))


def check_gradient(search: Search, u: np.ndarray, width: float, step: float = 1e-5) -> GradientCheck:
    """The path-wise gradient of the relaxed merit at `u`, shape (parameters,), against central differences of `step`.

    The error of a component is relative to the larger of the two, and not below 1e-6 of the largest component: a
    derivative that is zero to rounding has no relative error. A law that is watched continuously is its own relaxed
    form.
    """
    duals = search.merit.duals(1)  # type: ignore[attr-defined]
    gradient = search.first_order(u[None], width, duals)[1][0]
    n = len(u)
    points = u[None] + step * np.concatenate([np.eye(n), -np.eye(n)])
    crossed, draws = np.repeat(points, len(search.draws), axis=0), np.tile(search.draws, len(points))
    outcomes = search.rows.relaxed(crossed, draws, width).reshape(2 * n, len(search.draws), -1)
    merits = search.merit(outcomes, search.merit.duals(2 * n))[0]  # type: ignore[attr-defined]
    differences = (merits[:n] - merits[n:]) / (2.0 * step)
    scale = np.maximum(np.maximum(np.abs(gradient), np.abs(differences)), 1e-6 * max(np.abs(differences).max(), 1e-300))
    return GradientCheck(gradient, differences, float(np.max(np.abs(gradient - differences) / scale)))


def _check_gradient(search: Search, origin: np.ndarray, width: float) -> GradientCheck:
    check = check_gradient(search, origin, width)
    if not (np.all(np.isfinite(check.gradient)) and np.all(np.isfinite(check.differences))):
        which = [n for n, g in zip(search.rows.space.labels, check.gradient, strict=True) if not np.isfinite(g)]
        wanted = "finite, with a finite gradient, at the start"
        raise refuse("objective", f"without a finite gradient ({', '.join(which) or 'differences'})", wanted)
    return check


def _check_finite(given: np.ndarray) -> None:
    if not np.all(np.isfinite(given)):
        wanted = "finite at the start: check the prices, the limits, and that the policy keeps workers in both pools"
        raise refuse("objective", float(given[:, 0].max()), wanted)


def _each(merit: Merit, outcomes: np.ndarray) -> np.ndarray:
    """The merit of every draw on its own."""
    return merit.hard(outcomes[:, None, :])


def _relaxed(search: Search, merit: Merit, descent: Descent, origin: np.ndarray) -> Relaxed:
    """The best relaxed point against the start at the same width, and what the hard law makes of it.

    A search that did not follow the relaxed law is asked where it ended.
    """
    followed = descent.relaxed_best
    ends, width = (descent.u, descent.settings.width_end) if followed is None else (followed[0][None], followed[1])
    points = np.concatenate([origin[None], ends])
    crossed, draws = np.repeat(points, len(search.draws), axis=0), np.tile(search.draws, len(points))
    outcomes = search.rows.relaxed(crossed, draws, width).reshape(len(points), len(search.draws), -1)
    merits = merit(outcomes, merit.duals(len(points)))[0]
    index = 1 + int(np.argmin(merits[1:]))
    hard = merit.hard(search.outcomes(points[index][None]))[0]
    return Relaxed(float(merits[0]), float(merits[index]), float(hard), float(width), points[index])


def _design(space: Space, chosen: Load, unseen: Load, objective: Objective, settings: Settings) -> str:
    """A digest of all that the path of the search depends on."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    arrays, static = eqx.partition((space, objective), lambda x: isinstance(x, float | int | jax.Array | np.ndarray))
    digest.update(str(jax.tree.structure(static)).encode())
    for leaf in jax.tree.leaves((arrays, chosen, unseen)):
        assert not isinstance(leaf, Tracer)
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


class _Files:
    """The checkpoint and the log of a search, either of them optional."""

    def __init__(
        self, checkpoint: str | Path | None, log: str | Path | None, design: str, labels: Sequence[str]
    ) -> None:
        self.path = None if checkpoint is None else Path(checkpoint)
        self.log = None if log is None else RunLog(Path(log), design, labels)
        self.design = design
        self.notes: list[str] = []

    def resume(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        assert self.path is not None
        arrays, plain, notes = _checkpoint.load(self.path, self.design)
        plain["health"] = [*plain["health"], *(f"resume: {note}" for note in notes)]
        return arrays, plain

    def open(self, descent: Descent) -> None:
        if self.log is not None:
            self.log.open(descent.step)

    def keep(self, descent: Descent) -> None:
        if self.log is not None:
            self.log.write(descent)
        if self.path is not None and descent.judged_now:
            _checkpoint.save(self.path, self.design, *descent.state())


make_callable(__name__)
