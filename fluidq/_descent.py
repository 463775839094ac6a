"""The loop of a search: gradient, Adam, judgement on the hard law; its whole state can be taken out and put back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fluidq._merit import Duals, Merit
from fluidq.estimators import ESTIMATORS, Report, Search


class Descent:
    """A search of several starts side by side.

    Attributes:
        step: steps taken. history: merits per step, (starts,). judged: (step, best hard merit so far).
        best, best_merit: coordinates that won a hard judgement (None for the given policy), and the merit to beat.
        relaxed_best: coordinates of the lowest relaxed merit met at the present width or below it, and the width.
        estimator, why, reports: how the gradient is taken. health: steps that were not taken.
    """

    def __init__(self, search: Search, merit: Merit, settings: Any, given: np.ndarray, own: int) -> None:
        """`given`: hard outcomes of the policy to beat, (draws, outcomes); `own`: the draws that are the workloads."""
        self.search, self.merit, self.settings, self.own = search, merit, settings, own
        schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
        self._optimiser = optax.adam(schedule)
        self._update = jax.jit(jax.vmap(self._one))
        self._widths = np.geomspace(settings.width_start, settings.width_end, settings.steps)
        self.own_limit = float(merit.hard(given[None, :own])[0])
        own_merit = merit.hard(given[None, :own])
        self.best_merit, self.best = float(merit.where_broken(own_merit, merit.hard(given[None]))[0]), None
        self.judged: list[tuple[int, float]] = [(0, self.best_merit)]
        self.step, self.waited = 0, 0
        self.history: list[np.ndarray] = []
        self.health: list[str] = []
        self.sound = np.ones(settings.starts, bool)
        self.relaxed_best: tuple[np.ndarray, float] | None = None
        self._relaxed_merit, self._gaps = np.inf, None
        self.duals = merit.duals(settings.starts)
        self._last = np.zeros((0, 0, 0))
        self.estimator, self.why, self.reports = "", "", []
        self.u = np.zeros((settings.starts, 0))
        self._state: Any = None

    def begin(self, origin: np.ndarray, estimator: str, why: str, reports: list[Report]) -> None:
        """Start at `origin` and around it."""
        s = self.settings
        noise = np.asarray(jax.random.normal(jax.random.key(s.seed), (max(s.screen, s.starts - 1), len(origin))))
        around = origin[None] + s.spread * noise
        if s.screen:  # a hard run is cheap, and a start on a plateau or in a runaway loop never leaves it
            merits = self.merit.hard(self.search.outcomes(around))
            around = around[np.argsort(np.where(np.isfinite(merits), merits, np.inf), kind="stable")]
        self.u = np.concatenate([origin[None], around[: s.starts - 1]])
        self._state = jax.vmap(self._optimiser.init)(jnp.asarray(self.u))
        self.estimator, self.why, self.reports = estimator, why, reports

    @property
    def over(self) -> bool:
        """Whether the search has ended: all steps taken, or no better hard merit for `patience` judgements."""
        s = self.settings
        return self.step >= s.steps or bool(s.patience and self.waited >= s.patience)

    @property
    def judged_now(self) -> bool:
        """Whether the last step was followed by a judgement."""
        return self.judged[-1][0] == self.step > 0

    def advance(self) -> None:
        """One step of every start, and a judgement where one is due."""
        k, s = self.step, self.settings
        width = float(self._widths[k])
        got = ESTIMATORS[self.estimator](self.search, self.u, width, self.duals, k)
        self.history.append(got.merit)
        self.sound = got.sound
        for index in np.flatnonzero(~got.sound):
            self.health.append(f"start {index}, step {k}: gradient exploded at width {width:.3g}; step not taken")
        if self.estimator == "pathwise":
            self._remember(got.merit, width)
        with np.errstate(invalid="ignore"):
            slope = np.where(got.sound[:, None], got.gradient / np.abs(got.merit)[:, None], 0.0)
        u, state = self._update(jnp.asarray(self.u), self._state, jnp.asarray(slope), jnp.asarray(got.sound))
        self.u, self._state = np.asarray(u), state
        self.step += 1
        if self.step % s.judge_every == 0 or self.step == s.steps:
            self._judge()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and plain values from which `restore` goes on to the same bits."""
        arrays = {f"optimiser{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._state))}
        arrays |= {"u": self.u, "history": np.stack(self.history), **self.duals._asdict()}
        if self.best is not None:
            arrays["best"] = self.best
        if self._gaps is not None:
            arrays["gaps"] = self._gaps
        if self.relaxed_best is not None:
            arrays["relaxed_best"], arrays["relaxed_width"] = self.relaxed_best[0], np.asarray(self.relaxed_best[1])
            arrays["relaxed_merit"] = np.asarray(self._relaxed_merit)
        for i, report in enumerate(self.reports):
            arrays[f"report{i}"] = np.stack([report.gradient, report.error])
        plain = {
            "step": self.step,
            "waited": self.waited,
            "best_merit": self.best_merit,
            "judged": self.judged,
            "health": self.health,
            "estimator": self.estimator,
            "why": self.why,
            "reports": [(r.name, r.runs, r.health) for r in self.reports],
            "counted": self.search.rows.counted,
        }
        return arrays, plain

    def restore(self, arrays: dict[str, np.ndarray], plain: dict[str, Any]) -> None:
        """Go on from a state."""
        self.u = arrays["u"]
        fresh = jax.vmap(self._optimiser.init)(jnp.asarray(self.u))
        leaves = [jnp.asarray(arrays[f"optimiser{i}"]) for i in range(len(jax.tree.leaves(fresh)))]
        self._state = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
        self.history = list(arrays["history"])
        self.duals = Duals(*(arrays[name] for name in Duals._fields))
        self.best, self._gaps = arrays.get("best"), arrays.get("gaps")
        if "relaxed_best" in arrays:
            self.relaxed_best = arrays["relaxed_best"], float(arrays["relaxed_width"])
            self._relaxed_merit = float(arrays["relaxed_merit"])
        self.reports = [
            Report(name, arrays[f"report{i}"][0], arrays[f"report{i}"][1], runs, health)
            for i, (name, runs, health) in enumerate(plain["reports"])
        ]
        self.judged = [(int(step), float(value)) for step, value in plain["judged"]]
        self.step, self.waited, self.best_merit = plain["step"], plain["waited"], plain["best_merit"]
        self.health, self.estimator, self.why = list(plain["health"]), plain["estimator"], plain["why"]
        self.search.rows.counted = plain["counted"]

    def _one(self, u: Any, state: Any, slope: Any, sound: Any) -> Any:
        updates, moved = self._optimiser.update(slope, state, u)
        keep = lambda new, old: jnp.where(sound, new, old)  # noqa: E731
        return keep(optax.apply_updates(u, updates), u), jax.tree.map(keep, moved, state)

    def _remember(self, merits: np.ndarray, width: float) -> None:
        """The lowest relaxed merit near this width; merits at other widths are those of other laws."""
        if self.relaxed_best is not None and self.relaxed_best[1] > 1.2 * width:
            self._relaxed_merit = np.inf
        known = np.where(np.isfinite(merits), merits, np.inf)
        index = int(np.argmin(known))
        if known[index] < self._relaxed_merit:
            self._relaxed_merit, self.relaxed_best = float(known[index]), (self.u[index].copy(), width)

    def judge(self, u: np.ndarray, step: int) -> np.ndarray:
        """Hard merits of these points, inf where the workloads themselves are worse off; the best of them may win."""
        outcomes, merits = self._hard(u)
        # The workloads themselves come first: a candidate must beat the given policy there, not only on average, and
        # where it breaks the constraint there it ranks among those that break it.
        own = self.merit.hard(outcomes[:, : self.own])
        merits = np.where(own <= self.own_limit, self.merit.where_broken(own, merits), np.inf)
        index = int(np.argmin(merits))
        if merits[index] < self.best_merit:
            self.best_merit, self.best, self.waited = float(merits[index]), u[index].copy(), 0
        else:
            self.waited += 1
        self.judged.append((step, self.best_merit))
        return merits

    def _judge(self) -> None:
        self.judge(self.u, self.step)
        if self.merit.attainment is not None:
            chosen = self._last[:, list(self.search.draws)]
            self.duals, self._gaps = self.merit.tightened(self.duals, chosen, self._gaps)

    def _hard(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self.search.rows
        points = np.repeat(u, rows.draws, axis=0)
        self._last = rows.hard(points, np.tile(range(rows.draws), len(u))).reshape(len(u), rows.draws, -1)
        return self._last, self.merit.hard(self._last)
