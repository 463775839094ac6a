"""One buffer under a threshold law that is watched continuously, as a search problem with exact derivatives.

The path is `fluidq.events`: every event time is the solution of a linear equation, so the hard law itself has a
derivative in its thresholds, in C, Q0, tau and the hold, and nothing has to be relaxed or smoothed.

>>> from fluidq import watched
>>> law = watched.Watched(ts=(0.0, 200.0, 400.0), P=(3.0, 1.0), C=30.0, Q0=11.0, mu=1.5, workers=1.0,
...                       theta_h=16.0, theta_l=10.0, step=1.0, tau=2.0, overflow_price=1.0)
>>> float(law.cost()) > 0
True
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fluidq import events
from fluidq._errors import refuse
from fluidq._merit import Merit
from fluidq._rows import Slopes
from fluidq.estimators import Search
from fluidq.policies.base import Tunable
from fluidq.queue import Number
from fluidq.space import Space, make_space


class Watched(eqx.Module):
    """A buffer of capacity C under `fluidq.events.run`, and what it costs.

    cost = price of ready and starting workers + price of what the full buffer loses + price of what is asked for in
    vain at the empty one. Arguments as in `fluidq.events.run`: `ts` [s] and `P` [B/s] the inflow, `C`, `Q0`, `theta_h`,
    `theta_l` [B], `mu` [B/s per worker], `tau`, `hold` [s].

    Attributes:
        gpus_per_worker: prices a worker's hours. overflow_price, starved_price: GPU-hours per byte.
        pending: what is known of orders on their way (static). max_events: room for events (static).
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "theta_l": Tunable("positive"),
        "theta_h": Tunable("above", "theta_l"),
        "Q0": Tunable("positive"),
        "C": Tunable("above", "Q0"),
        "tau": Tunable("positive"),
        "hold": Tunable("positive"),
    }

    ts: Any
    P: Any
    C: Number | Array
    Q0: Number | Array
    mu: Number | Array
    workers: Number | Array
    theta_h: Number | Array
    theta_l: Number | Array
    step: Number | Array = 1.0
    tau: Number | Array = 0.0
    hold: Number | Array = 0.0
    min_workers: Number | Array = 0.0
    max_workers: Number | Array | None = None
    gpus_per_worker: Number | Array = 1.0
    overflow_price: Number | Array = 0.0
    starved_price: Number | Array = 0.0
    pending: str = eqx.field(static=True, default="count")
    max_events: int = eqx.field(static=True, default=1024)

    def movable(self) -> tuple[str, ...]:
        """All but the hold where nothing is waited for."""
        return tuple(name for name in self.TUNABLE if name != "hold" or self.pending == "hold")

    def ranges(self) -> dict[str, tuple[float, float]]:
        """None narrower than their kinds."""
        return {}

    def run(self) -> events.Run:
        """The path. Raises InputError as `fluidq.events.run` does."""
        names = ("C", "Q0", "mu", "workers", "theta_h", "theta_l", "step", "tau", "hold", "min_workers", "max_workers")
        given = {name: getattr(self, name) for name in names}
        series = tuple(jnp.asarray(x, dtype=jnp.float64) for x in (self.ts, self.P))
        return events.run(*series, **given, pending=self.pending, max_events=self.max_events)

    def cost(self) -> Array:
        """The cost [GPU-hours]."""
        return self._outcome(self.run())[0]

    def _outcome(self, path: events.Run) -> Array:
        paid = self.gpus_per_worker * (path.worker_seconds + path.starting_seconds) / 3600.0
        lost = self.overflow_price * path.overflow + self.starved_price * path.starved
        return jnp.stack([paid + lost, paid, jnp.ones_like(paid)])


class WatchedRows:
    """The paths of one search: `fluidq._rows.Rows` for a watched law, whose hard form has derivatives."""

    exact = True
    draws = 1

    def __init__(self, space: Space) -> None:
        self.space = space
        self.counted = 0
        outcome = lambda u: (lambda law: law._outcome(law.run()))(space.at(u)[0])  # noqa: E731
        self._hard = jax.jit(jax.vmap(outcome))
        self._slopes = jax.jit(jax.vmap(lambda u: (outcome(u), jax.jacfwd(outcome)(u))))

    def hard(self, u: Any, draws: Any = None) -> np.ndarray:
        """Outcomes, shape (rows, outcomes)."""
        self.counted += len(u)
        return np.asarray(self._hard(jnp.asarray(u)))

    def relaxed(self, u: Any, draws: Any = None, width: float = 0.0) -> np.ndarray:
        """The same: a law that is watched continuously is its own relaxed form."""
        return self.hard(u)

    def slopes(self, u: Any, draws: Any = None, width: float = 0.0) -> Slopes:
        """Outcomes and their exact derivatives."""
        self.counted += len(u) * (1 + len(self.space.labels))
        values, slopes = self._slopes(jnp.asarray(u))
        return Slopes(np.asarray(values), np.asarray(slopes))


def tune_watched(
    law: Watched,
    settings: Any = None,
    *,
    free: tuple[str, ...] = ("theta_l", "theta_h"),
    bounds: dict[str, tuple[float, float]] | None = None,
) -> tuple[Watched, Any]:
    """The law with the parameters that lower its cost, and the `Descent` that found them.

    Arguments:
        settings: `fluidq.tune.Settings`; its estimator is "auto" (the exact event derivatives), "events" or "smoothed".
        free: what moves. bounds: its ranges, by name.

    Raises InputError as `make_space` and the estimators do, and for a constraint on SLO attainment, which one buffer
    does not have.
    """
    from fluidq._descent import Descent
    from fluidq.estimators import choose
    from fluidq.tune import Settings

    settings = settings or Settings(realisations=0)
    if settings.attainment is not None:
        raise refuse("tune.attainment", settings.attainment, "None: one buffer has no service limits")
    space = make_space(law, free=free, bounds=bounds)
    rows = WatchedRows(space)
    origin = np.asarray(space.start())
    merit = Merit(None, 1.0, 1.0)
    search = Search(rows, merit, (0,), settings.samples, settings.sigma, settings.seed)
    descent = Descent(search, merit, settings, rows.hard(origin[None]), own=1)
    descent.begin(origin, *choose(settings.estimator, search, origin, settings.width_start, merit.duals(1)))
    while not descent.over:
        descent.advance()
    best = law if descent.best is None else space.plain(jnp.asarray(descent.best))[0]
    return best, descent
