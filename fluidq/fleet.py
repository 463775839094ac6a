"""A fleet: a plant with the limits of its pools, the delay of its workers and the interval of its controller."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fluidq._errors import refuse
from fluidq._types import Scalar
from fluidq.plant import Plant


class Fleet(eqx.Module):
    """A plant with its pools' limits and their delay.

    Attributes:
        plant: the physics.
        cold_start: mean seconds from a decision to a ready worker (tau).
        budget: most GPUs, ready and starting. Decode GPUs that were told to stop serve what they hold and are paid
            for until it has drained; they may come on top.
        initial_gpus: fleet size at time 0; initial_ratio: its prefill share where the policy has none of its own.
        request_gpu_seconds: GPU time that serving a mean request takes, the unit of the objective's weights.
        min_workers: least workers per pool.
        spread: half-range of a per-replica signal around its mean, relative: laws that act on ANY or ALL replicas see
            (1 + spread) or (1 - spread) times the mean.
        switch_delay: seconds that a worker needs to change its role; None for no role switching.
        interval: control interval [s] (static). substeps: steps of the physics per interval (static).
        delay_ticks, switch_ticks: whole ticks in `cold_start` and `switch_delay` (static; set by `make`).
        stages: 0 for a cold start of exactly `cold_start`; k >= 1 for an Erlang-k one, whose standard deviation is
            cold_start / sqrt(k) (static).
    """

    plant: Plant
    cold_start: Scalar
    budget: Scalar
    initial_gpus: Scalar
    request_gpu_seconds: Scalar
    min_workers: Scalar = 1.0
    initial_ratio: Scalar = 0.5
    spread: Scalar = 0.0
    switch_delay: Scalar | None = None
    interval: float = eqx.field(static=True, default=15.0)
    substeps: int = eqx.field(static=True, default=1)
    delay_ticks: int = eqx.field(static=True, default=0)
    switch_ticks: int = eqx.field(static=True, default=0)
    stages: int = eqx.field(static=True, default=0)

    @staticmethod
    def make(
        plant: Plant,
        *,
        cold_start: float,
        budget: float,
        initial_gpus: float,
        request_gpu_seconds: float,
        interval: float = 15.0,
        min_workers: int = 1,
        substeps: int = 1,
        stages: int = 0,
        switch_delay: float | None = None,
        initial_ratio: float = 0.5,
        spread: float = 0.0,
    ) -> "Fleet":
        """A checked fleet. Raises InputError naming the field that cannot be.

        A cold start longer than the horizon is legal: those workers never come.
        """
        for name, value in (("cold_start", cold_start), ("switch_delay", switch_delay)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise refuse(name, value, "a time >= 0 s")
        if not (math.isfinite(interval) and interval > 0):
            raise refuse("interval", interval, "a control interval > 0 s")
        for name, value, low in (("substeps", substeps, 1), ("stages", stages, 0)):
            if isinstance(value, bool) or value != int(value) or value < low:
                raise refuse(name, value, f"a whole number >= {low}")
        floor = float(min_workers * (plant.prefill_worker + plant.decode_worker))
        if min_workers < 1:
            raise refuse("min_workers", min_workers, "at least 1 worker per pool")
        if not budget >= floor:
            raise refuse("budget", budget, f"at least {floor:g} GPUs, one worker of each pool")
        if not floor <= initial_gpus <= budget:
            raise refuse("initial_gpus", initial_gpus, f"between {floor:g} and the budget of {budget:g} GPUs")
        if not 0 < initial_ratio < 1:
            raise refuse("initial_ratio", initial_ratio, "the prefill share of the fleet, between 0 and 1")
        if not 0 <= spread < 1:
            raise refuse("spread", spread, "a share in [0, 1)")
        if stages and not cold_start > 0:
            raise refuse("stages", stages, "0 where the cold start is 0 s")
        plant.check()
        return Fleet(
            plant=plant,
            cold_start=cold_start,
            budget=budget,
            initial_gpus=initial_gpus,
            request_gpu_seconds=request_gpu_seconds,
            min_workers=min_workers,
            initial_ratio=initial_ratio,
            spread=spread,
            switch_delay=switch_delay,
            interval=float(interval),
            substeps=int(substeps),
            delay_ticks=math.floor(cold_start / interval),
            switch_ticks=0 if switch_delay is None else math.floor(switch_delay / interval),
            stages=int(stages),
        )

    @property
    def per_worker(self) -> tuple[Scalar, Scalar]:
        """GPUs per worker of the prefill and of the decode pool."""
        return self.plant.prefill_worker, self.plant.decode_worker

    def hottest(self, mean: Scalar) -> Scalar:
        """The largest of a per-replica signal, from its mean and the stated spread."""
        return mean * (1.0 + self.spread)

    def coolest(self, mean: Scalar) -> Scalar:
        """The smallest of a per-replica signal, from its mean and the stated spread."""
        return mean * (1.0 - self.spread)

    def with_plant(self, **changes: Any) -> "Fleet":
        """The same fleet with some numbers of its plant changed (for sensitivities and sweeps)."""
        fields = {name: getattr(self.plant, name) for name in self.plant.__dataclass_fields__}
        plant = type(self.plant)(**{**fields, **changes})
        return eqx.tree_at(lambda f: f.plant, self, plant)

    def kv_tokens(self) -> Scalar:
        """Tokens of KV that one decode GPU holds; infinite where the plant states no limit."""
        return jnp.inf if self.plant.kv_capacity is None else self.plant.kv_capacity
