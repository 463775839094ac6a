"""What every autoscaler is: sample -> aggregate -> compare -> propose -> limit -> hold -> actuate.

The engine samples a `Reading` on each tick and calls `Policy.decide`; the policy aggregates, compares, proposes, limits
and holds, and returns the workers it asks for; the engine actuates them, a cold start later. A policy's own memory
(windows, counters, clocks) is a pytree that the engine carries for it.
"""

import abc
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates


class Reading(NamedTuple):
    """What a controller can see on a tick. Metrics are NaN where a sample is missing; counts of workers never are.

    Attributes:
        index: number of the tick, from 0. time: its start [s].
        rate: arrivals over the last tick [req/s]; isl, isl_computed, osl: their mean lengths [tok], 0 where none came.
        queue: requests that wait for prefill; queue_tokens: their prefill work [computed tok].
        buffered: requests between the pools; buffered_tokens: their stored tokens; buffer_bytes: their KV [B].
        running: sequences in decode; kv_tokens: their KV [tok].
        ttft, tpot: of the last tick [s].
        prefill_rate: prefill done in the last tick [computed tok/s]; decode_rate: output [tok/s].
        prefill_ready, decode_ready: workers that serve; prefill_starting, decode_starting: on their way.
        prefill_asked, decode_asked: workers last asked for (ready + starting).
    """

    index: Scalar
    time: Scalar
    rate: Scalar
    isl: Scalar
    isl_computed: Scalar
    osl: Scalar
    queue: Scalar
    queue_tokens: Scalar
    buffered: Scalar
    buffered_tokens: Scalar
    buffer_bytes: Scalar
    running: Scalar
    kv_tokens: Scalar
    ttft: Scalar
    tpot: Scalar
    prefill_rate: Scalar
    decode_rate: Scalar
    prefill_ready: Scalar
    decode_ready: Scalar
    prefill_starting: Scalar
    decode_starting: Scalar
    prefill_asked: Scalar
    decode_asked: Scalar


# What stays known where a sample of the metrics is missing: the controller's own clock and its workers.
ALWAYS_KNOWN = (
    "index",
    "time",
    "prefill_ready",
    "decode_ready",
    "prefill_starting",
    "decode_starting",
    "prefill_asked",
    "decode_asked",
)


class Asked(NamedTuple):
    """Workers that a policy asks for, per pool, starting ones included."""

    prefill: Scalar
    decode: Scalar


class Tunable(NamedTuple):
    """How a parameter may move.

    `kind` is positive, share (0 to 1), percent (0 to 100), real, or above (more than the field `other`).
    """

    kind: str
    other: str = ""


class Policy(eqx.Module):
    """An autoscaler. A subclass states its parameters as fields, and which of them gradients may move as `TUNABLE`.

    Parameters that are numbers are leaves, so each has a gradient and policies batch; choices are static fields.
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {}
    # True where `decide` keeps within the GPU budget by itself; else the engine refuses what does not fit.
    KEEPS_BUDGET: ClassVar[bool] = False

    @property
    def period(self) -> float:
        """Seconds between two decisions of the law, T_s; 0 for every tick."""
        return 0.0

    def movable(self) -> tuple[str, ...]:
        """Names of `TUNABLE` that this law reads as it is set up: all, unless a choice switches some off."""
        return tuple(type(self).TUNABLE)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Ranges of parameters that this law, as it is set up, allows less than their kind would: by name."""
        return {}

    def spelled_out(self) -> "Policy":
        """The same law with the defaults that a choice implies written as numbers, so that they can move."""
        return self

    def prepare(self, load: Any, fleet: Fleet) -> "Policy":
        """The policy with what it computes once from the offered load (forecasts); most laws need nothing."""
        return self

    def initial(self, fleet: Fleet, width: Scalar | None) -> Asked:
        """Workers at time 0: `fleet.initial_gpus` split by `fleet.initial_ratio`."""
        return split(fleet.initial_gpus, fleet.initial_ratio, fleet, width)

    def start(self, fleet: Fleet, asked: Asked) -> Any:
        """The law's memory before the first tick: a pytree of arrays, or None."""
        return None

    @abc.abstractmethod
    def decide(self, memory: Any, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Any, Asked]:
        """One tick: the new memory, and the workers asked for. `width=None` is the hard law."""


def split(gpus: Scalar, ratio: Scalar, fleet: Fleet, width: Scalar | None) -> Asked:
    """Workers of each pool for a fleet of `gpus`: round(ratio M / g_P) prefill workers, floor(rest / g_D) decode ones.

    Both pools keep their least workers. Relaxed: a smooth staircase, less than one worker from the integers.
    """
    (g_P, g_D), low = fleet.per_worker, fleet.min_workers
    most_prefill = (gpus - low * g_D) / g_P
    wanted = jnp.clip(ratio * gpus / g_P, low, most_prefill)
    if width is None:
        prefill = jnp.maximum(low, jnp.minimum(jnp.round(wanted), jnp.floor(most_prefill + 1e-9)))
        return Asked(prefill, jnp.floor((gpus - prefill * g_P) / g_D + 1e-9))
    prefill = gates.nearest(wanted, width)
    decode = gates.whole_down((gpus - prefill * g_P) / g_D, width)
    return Asked(prefill, jnp.where(decode > low, decode, low))


def due(reading: Reading, period: float, interval: float) -> Array:
    """Whether a law with this period decides on this tick: the ticks nearest to its multiples; tick 0 is one."""
    every = max(1, round(period / interval))
    return jnp.asarray(reading.index) % every == 0


def held(now: Array, new: Any, old: Any) -> Any:
    """`new` where `now`, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(now, a, b), new, old)


def check_numbers(policy: Policy, limits: dict[str, tuple[float, float]], name: str = "") -> None:
    """Raise InputError for the first field outside its closed range; traced and batched values are not looked at."""
    for field, (low, high) in limits.items():
        value = getattr(policy, field)
        if value is None or isinstance(value, Tracer) or jnp.ndim(value) > 0:
            continue
        number = float(value)
        if not low <= number <= high:
            bound = f">= {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise refuse(f"{name}{field}", number, bound)
