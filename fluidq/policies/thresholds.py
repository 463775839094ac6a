"""Threshold autoscaling of both pools along one ratio: hysteresis, and a hold while workers are starting."""

import math
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import positive_part, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates
from fluidq.policies.base import Asked, Policy, Reading, Tunable, split

PARAMETERS = ("prefill_up", "prefill_down", "decode_up", "decode_down", "ratio")


class Signals(NamedTuple):
    """What this law compares.

    `prefill_wait` [s] is the queued work at the full prefill rate, whatever holds it back; `decode_load` the active and
    waiting sequences over batch slots; `pending` the GPUs that are starting; `gpus` the fleet size last asked for.
    """

    prefill_wait: Scalar
    decode_load: Scalar
    pending: Scalar
    gpus: Scalar


class Thresholds(Policy):
    """Scale both pools by `step` GPUs when a signal leaves its band, split by `ratio`.

    On each tick: up if prefill_wait > prefill_up *or* decode_load > decode_up; down if prefill_wait < prefill_down
    *and* decode_load < decode_down; nothing while workers are starting. The fleet size M moves by `step`, within the
    budget, and is split into round(ratio M / g_P) prefill workers and floor(rest / g_D) decode workers.

    Defaults: the decode band and the prefill band of NVIDIA Dynamo's planner at its target `throughput` (up when KV use
    > 1.0 or the queue holds more than one context length of tokens, down below 0.6 and 0.1), the queue here in seconds
    of prefill work.

    Attributes:
        prefill_up, prefill_down: queued prefill work per ready GPU [s].
        decode_up, decode_down: sequences active and waiting over batch slots [fraction].
        ratio: share of the fleet that prefills, in (0, 1); D01's phi is its balanced value.
        step: GPUs per move (static law constant, not tuned).
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        "prefill_up": Tunable("above", "prefill_down"),
        "prefill_down": Tunable("positive"),
        "decode_up": Tunable("above", "decode_down"),
        "decode_down": Tunable("positive"),
        "ratio": Tunable("share"),
    }
    KEEPS_BUDGET: ClassVar[bool] = True

    prefill_up: Scalar = 1.0
    prefill_down: Scalar = 0.1
    decode_up: Scalar = 1.0
    decode_down: Scalar = 0.6
    ratio: Scalar = 0.5
    step: Scalar = 4.0

    def __check_init__(self) -> None:
        values = [getattr(self, name) for name in (*PARAMETERS, "step")]
        if any(isinstance(v, Tracer) or jnp.ndim(v) > 0 for v in values):
            return  # inside a transformation; what a user types is checked here, once
        for name, value in zip((*PARAMETERS, "step"), values, strict=True):
            if not math.isfinite(float(value)):
                raise refuse(name, float(value), "a finite number")
        for pool in ("prefill", "decode"):
            low, high = float(getattr(self, f"{pool}_down")), float(getattr(self, f"{pool}_up"))
            if low < 0:
                raise refuse(f"{pool}_down", low, "a threshold >= 0")
            if low >= high:
                raise refuse(f"{pool}_down", low, f"below {pool}_up, which is {high!r}")
        if not 0 < float(self.ratio) < 1:
            raise refuse("ratio", float(self.ratio), "the prefill share of the fleet, between 0 and 1")
        if float(self.step) <= 0:
            raise refuse("step", float(self.step), "a number of GPUs > 0")

    @property
    def hold_while_pending(self) -> bool:
        """True: nothing changes while workers are starting."""
        return True

    @property
    def up_gpus(self) -> Scalar:
        """Most GPUs that one decision adds, to both pools together."""
        return self.step

    def initial(self, fleet: Fleet, width: Scalar | None) -> Asked:
        """Workers at time 0: the fleet's first GPUs, split by this law's own ratio."""
        return split(fleet.initial_gpus, self.ratio, fleet, width)

    def start(self, fleet: Fleet, asked: Asked) -> Array:
        """The fleet size last asked for."""
        return jnp.asarray(fleet.initial_gpus, dtype=jnp.float64)

    def decide(self, memory: Array, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Array, Asked]:
        """One tick of the law: the new fleet size, and its split."""
        g_P, g_D = fleet.per_worker
        signals = Signals(
            prefill_wait=ratio(reading.queue_tokens, reading.prefill_ready * g_P * fleet.plant.r_P),
            decode_load=ratio(reading.running + reading.buffered, reading.decode_ready * g_D * fleet.plant.batch),
            pending=reading.prefill_starting * g_P + reading.decode_starting * g_D,
            gpus=memory,
        )
        gpus = self.size(signals, fleet, width)
        return gpus, split(gpus, self.ratio, fleet, width)

    def size(self, signals: Signals, fleet: Fleet, width: Scalar | None) -> Array:
        """The fleet size [GPU] asked for on this tick."""
        wait, load = signals.prefill_wait, signals.decode_load
        # A missing sample compares false with every threshold: the fleet stays as it is.
        calm = (1.0 - gates.over(wait, self.prefill_up, width)) * (1.0 - gates.over(load, self.decode_up, width))
        down = gates.below(wait, self.prefill_down, width) * gates.below(load, self.decode_down, width)
        if width is None:
            free = jnp.where(jnp.asarray(signals.pending) > 1e-6, 0.0, 1.0)
        else:
            free = positive_part(1.0 - signals.pending / (width * self.step))
        move = free * ((1.0 - calm) - calm * down)
        g_P, g_D = fleet.per_worker
        return jnp.clip(signals.gpus + self.step * move, fleet.min_workers * (g_P + g_D), fleet.budget)
