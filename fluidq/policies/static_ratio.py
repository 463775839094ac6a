"""Static ratio: a fleet that never scales, sized once, split at one ratio."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer

from fluidq._errors import refuse
from fluidq._numerics import least, most
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies._demand import balance_of, mean_lengths, unit_times
from fluidq.policies.base import Asked, Policy, Reading, Tunable, check_numbers, split
from fluidq.policies.facts import Mix


class StaticRatio(Policy):
    """`gpus` GPUs, round(ratio gpus / g_P) prefill workers and floor(rest / g_D) decode workers, all the time.

    What is left open is sized with hindsight, from the load that comes: the ratio is D01's phi at its mean mix, the
    fleet that of its busiest `window_seconds` at `utilisation`, within the budget. The baseline for every law that
    scales: it pays for the peak, and has no cold start to wait for.

    Attributes:
        ratio: share of the GPUs that prefills, in (0, 1); None for phi.
        gpus: size of the fleet; None for the busiest window's.
        utilisation: share of the fleet that the busiest window takes, in (0, 1].
        window_seconds: length of that window [s] (static).
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "ratio": Tunable("share"),
        "gpus": Tunable("positive"),
        "utilisation": Tunable("share"),
    }
    KEEPS_BUDGET: ClassVar[bool] = True

    ratio: Scalar | None = None
    gpus: Scalar | None = None
    utilisation: Scalar = 0.7
    window_seconds: float = eqx.field(static=True, default=600.0)

    def __check_init__(self) -> None:
        for name in ("ratio", "utilisation"):
            value = getattr(self, name)
            if value is None or isinstance(value, Tracer) or jnp.ndim(value) > 0:
                continue
            if float(value) > 1:
                raise refuse(name, float(value), f"a share: write {float(value) / 100:g} for {float(value):g} %")
        check_numbers(self, {"ratio": (1e-9, 1.0 - 1e-9), "utilisation": (1e-9, 1.0), "gpus": (1e-9, float("inf"))})
        if not 0 < self.window_seconds < float("inf"):
            raise refuse("window_seconds", self.window_seconds, "a time > 0 s")

    @property
    def detection_delay(self) -> float:
        """Infinite: it never acts."""
        return float("inf")

    @property
    def up_step(self) -> float:
        """0: it adds no worker."""
        return 0.0

    def gain(self, fleet: Fleet, mix: Mix) -> float:
        """0: it looks at nothing."""
        return 0.0

    def prepare(self, load: Any, fleet: Fleet) -> "StaticRatio":
        """With the ratio and the size that were left open. Raises InputError for a size below one worker per pool."""
        g_P, g_D = fleet.per_worker
        floor = fleet.min_workers * (g_P + g_D)
        if self.gpus is not None and not isinstance(self.gpus, Tracer) and not isinstance(floor, Tracer):
            if jnp.ndim(self.gpus) == 0 and jnp.ndim(floor) == 0 and float(self.gpus) < float(floor):
                raise refuse("gpus", float(self.gpus), f"at least {float(floor):g}, the least workers of each pool")
        lengths = mean_lengths(load)
        new = self
        if self.ratio is None:
            new = _with(new, "ratio", balance_of(fleet.plant, *lengths))
        if self.gpus is None:
            new = _with(new, "gpus", busiest(load, fleet, self.window_seconds) / self.utilisation)
        return new

    def initial(self, fleet: Fleet, width: Scalar | None) -> Asked:
        """The whole fleet, from the start."""
        return self._split(fleet, width)

    def decide(self, memory: None, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[None, Asked]:
        """The same as ever."""
        return None, self._split(fleet, width)

    def _split(self, fleet: Fleet, width: Scalar | None) -> Asked:
        g_P, g_D = fleet.per_worker
        size = fleet.initial_gpus if self.gpus is None else self.gpus
        size = most(least(size, fleet.budget), fleet.min_workers * (g_P + g_D))
        return split(size, fleet.initial_ratio if self.ratio is None else self.ratio, fleet, width)


def busiest(load: Any, fleet: Fleet, seconds: float) -> Scalar:
    """Largest mean demand over a window of that length [GPU], at the load's mean lengths per request of the window."""
    ticks = load.requests.shape[0]
    n = max(1, min(ticks, round(seconds / fleet.interval)))
    flows = [part.reshape(ticks, -1).sum(axis=1) for part in (load.requests, load.computed, load.stored, load.output)]
    totals = [jnp.concatenate([jnp.zeros(1), jnp.cumsum(flow)]) for flow in flows]
    requests, computed, stored, output = ((total[n:] - total[:-n]) for total in totals)
    safe = jnp.where(requests > 0, requests, 1.0)
    t_P, t_D = unit_times(fleet.plant, computed / safe, stored / safe, output / safe)
    return jnp.max(requests * (t_P + t_D)) / (n * fleet.interval)


def _with(policy: StaticRatio, name: str, value: Scalar) -> StaticRatio:
    value = jnp.asarray(value, dtype=jnp.float64)
    return eqx.tree_at(lambda p: getattr(p, name), policy, value, is_leaf=lambda x: x is None)
