"""Threshold autoscaling of both pools along one ratio: hysteresis, and a hold while workers are starting."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import positive_part
from fluidq._types import Scalar

PARAMETERS = ("prefill_up", "prefill_down", "decode_up", "decode_down", "ratio")


class Signals(NamedTuple):
    """What a controller sees on a tick.

    `prefill_wait` [s] is the queued work at the full prefill rate, whatever holds it back; `decode_load` the active and
    waiting sequences over batch slots; `pending` the GPUs that are starting; `gpus` the fleet size last asked for.
    """

    prefill_wait: Scalar
    decode_load: Scalar
    pending: Scalar
    gpus: Scalar


class Bounds(NamedTuple):
    """What the fleet allows: GPUs per worker, least workers per pool, and the GPU budget."""

    prefill_worker: Scalar
    decode_worker: Scalar
    min_workers: Scalar
    budget: Scalar


class Thresholds(eqx.Module):
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

    def size(self, signals: Signals, bounds: Bounds, width: Scalar | None) -> Array:
        """The fleet size [GPU] asked for on this tick.

        `width=None` is the hard law: comparisons. A number is the relaxed law: each comparison becomes a logistic gate
        of that width relative to its band, the hold a ramp, and the hard law is its limit as the width goes to 0.
        """
        if width is None:
            up = (signals.prefill_wait > self.prefill_up) | (signals.decode_load > self.decode_up)
            down = (signals.prefill_wait < self.prefill_down) & (signals.decode_load < self.decode_down)
            move = jnp.where(signals.pending > 1e-6, 0.0, jnp.where(up, 1.0, jnp.where(down, -1.0, 0.0)))
        else:
            calm = _below(self.prefill_up, signals.prefill_wait, width) * _below(
                self.decode_up, signals.decode_load, width
            )
            down = _below(self.prefill_down, signals.prefill_wait, width) * _below(
                self.decode_down, signals.decode_load, width
            )
            free = positive_part(1.0 - signals.pending / (width * self.step))
            move = free * ((1.0 - calm) - calm * down)
        least_size = bounds.min_workers * (bounds.prefill_worker + bounds.decode_worker)
        return jnp.clip(signals.gpus + self.step * move, least_size, bounds.budget)

    def split(self, gpus: Scalar, bounds: Bounds, width: Scalar | None) -> tuple[Array, Array]:
        """Workers of each pool for a fleet of `gpus`: integers in the hard law, a smooth staircase in the other."""
        g_P, g_D, low = bounds.prefill_worker, bounds.decode_worker, bounds.min_workers
        most_prefill = (gpus - low * g_D) / g_P
        wanted = jnp.clip(self.ratio * gpus / g_P, low, most_prefill)
        if width is None:
            prefill = jnp.maximum(low, jnp.minimum(jnp.round(wanted), jnp.floor(most_prefill + 1e-9)))
            decode = jnp.floor((gpus - prefill * g_P) / g_D + 1e-9)
        else:
            # The relaxed split is continuous: its gap to the integers is below one worker and is judged, not tuned.
            prefill = _staircase(wanted, width)
            decode = _treads((gpus - prefill * g_P) / g_D, width)
            decode = jnp.where(decode > low, decode, low)
        return prefill, decode


def _below(threshold: Scalar, x: Scalar, width: Scalar) -> Array:
    """How far `x` >= 0 lies below `threshold`: a logistic gate in ln x, 1 / (1 + (x / threshold)^(1/width)).

    Signals span decades and sit at 0 when all is well; in ln x the gate is then exactly 1 there at every width, so the
    relaxed law has no drift that the hard law lacks. At the threshold it is 1/2.
    """
    some = jnp.asarray(x) > 1e-12 * jnp.asarray(threshold)  # below, ln x has no bounded slope and the gate is 1 anyway
    log = jnp.log(jnp.where(some, x, 1.0)) - jnp.log(threshold)
    return jnp.where(some, jax.nn.sigmoid(-log / width), 1.0)


def _staircase(x: Scalar, width: Scalar) -> Array:
    """A continuous stand-in for round(x): the identity when `width` is large, round(x) as it goes to 0.

    Between two integers it is a scaled tanh through both, so value and slope are bounded and no tread is lost.
    """
    x = jnp.asarray(x)
    base = jax.lax.stop_gradient(jnp.floor(x))
    s = jnp.tanh((x - base - 0.5) / width)
    return base + 0.5 + 0.5 * s / jnp.tanh(0.5 / width)


def _treads(x: Scalar, width: Scalar) -> Array:
    """A continuous stand-in for floor(x): the identity when `width` is large, floor(x) as it goes to 0.

    The shift falls as sqrt(width), slower than a tread's slope, so that an integer x keeps its value in the limit.
    """
    root = jnp.sqrt(width)
    return _staircase(x - 0.5 / (1.0 + root), width)
