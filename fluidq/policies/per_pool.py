"""Autoscalers that scale one target each: one law per pool, each blind to the other."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.formulas import requests
from fluidq.policies.base import Asked, Policy, Reading, Tunable
from fluidq.policies.facts import Mix
from fluidq.policies.metrics import METRICS, POOLS, Pool, pool_of


class PoolLaw(eqx.Module):
    """The law of one pool. A subclass states its parameters, and implements `start` and `decide`."""

    def check(self, pool: str, fleet: Fleet) -> None:
        """Raise InputError where the law cannot run on this pool of this fleet."""

    @abc.abstractmethod
    def start(self, fleet: Fleet, asked: Scalar) -> Any:
        """The memory before the first tick, with `asked` workers."""

    @abc.abstractmethod
    def decide(
        self, memory: Any, reading: Reading, pool: Pool, fleet: Fleet, width: Scalar | None
    ) -> tuple[Any, Array]:
        """One tick: the new memory, and the workers asked for."""

    @property
    @abc.abstractmethod
    def period(self) -> float:
        """Seconds between two decisions of the product's own loop."""

    @property
    @abc.abstractmethod
    def detection_delay(self) -> float:
        """Worst case from a change of the load to the decision, by the law's own clock [s]."""

    def gain(self, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
        """D18's g [1/s]; 0.0 for a law that looks at no stock, None for one that is not proportional to it."""
        return None


class PerPool(Policy):
    """A policy of two independent laws. A pool whose law is None keeps its workers."""

    # PoolLaw or None; each subclass names its own kind.
    prefill: eqx.AbstractVar[Any]
    decode: eqx.AbstractVar[Any]

    def __check_init__(self) -> None:
        if self.prefill is None and self.decode is None:
            raise refuse("prefill and decode", None, "a law for at least one of the pools")

    def ranges(self) -> dict[str, tuple[float, float]]:
        """A target of a metric that is a share is a share too."""
        return {
            f"{pool}.{field}": (0.0, 1.0)
            for pool, law in self._laws()
            for field in ("target", "threshold", "targetValue")
            if hasattr(law, field) and METRICS[getattr(law, "metric", "queue_length")].share
        }

    def prepare(self, load: Any, fleet: Fleet) -> "PerPool":
        """The policy itself, once each law is known to fit its pool."""
        for name, law in self._laws():
            law.check(name, fleet)
        return self

    def start(self, fleet: Fleet, asked: Asked) -> tuple[Any, ...]:
        """The memory of each law."""
        return tuple(None if law is None else law.start(fleet, n) for law, n in zip(self._both(), asked, strict=True))

    def decide(
        self, memory: tuple[Any, ...], reading: Reading, fleet: Fleet, width: Scalar | None
    ) -> tuple[tuple[Any, ...], Asked]:
        """One tick of each law."""
        kept, asked = [], []
        for name, law, old in zip(POOLS, self._both(), memory, strict=True):
            pool = pool_of(name, reading, fleet)
            new, n = (None, pool.asked) if law is None else law.decide(old, reading, pool, fleet, width)
            kept.append(new)
            asked.append(n)
        return tuple(kept), Asked(*asked)

    @property
    def period(self) -> float:
        """The slower pool's loop [s]; the engine runs it once per tick where the tick is longer."""
        return max(law.period for _, law in self._laws())

    @property
    def detection_delay(self) -> float:
        """The slower pool's."""
        return max(law.detection_delay for _, law in self._laws())

    @property
    def hold_while_pending(self) -> bool:
        """These products count or ignore what is starting; none of them waits for it."""
        return False

    def gain(self, fleet: Fleet, mix: Mix) -> Scalar | None:
        """The larger of the pools' gains [1/s], the one nearer to its limit; None where either has none."""
        gains = [law.gain(name, fleet, mix) for name, law in self._laws()]
        if any(g is None for g in gains):
            return None
        return jnp.max(jnp.stack([jnp.asarray(g, dtype=jnp.float64) for g in gains]))

    def _both(self) -> tuple[PoolLaw | None, PoolLaw | None]:
        return self.prefill, self.decode

    def _laws(self) -> list[tuple[str, PoolLaw]]:
        return [(name, law) for name, law in zip(POOLS, self._both(), strict=True) if law is not None]


def pool_tunables(**names: Tunable) -> dict[str, Tunable]:
    """`TUNABLE` of a policy with a law per pool: dotted paths, as in `prefill.target`."""
    return {
        f"{pool}.{name}": tunable._replace(other=f"{pool}.{tunable.other}" if tunable.other else "")
        for pool in POOLS
        for name, tunable in names.items()
    }


def worker_rate(metric: str, pool: str, fleet: Fleet, mix: Mix) -> Array | None:
    """What a worker takes off a queue per second, in the unit of that queue's metric; None for what is no queue."""
    plant = fleet.plant
    if pool == "prefill":
        tokens = plant.r_P * plant.prefill_worker
        each = {"queue_tokens": 1.0, "queue_length": mix.isl_computed, "ongoing_requests": mix.isl_computed}
        return ratio(tokens, each[metric]) if metric in each else None
    context = requests.mean_context_fixed(isl=mix.isl_stored, osl=mix.osl)
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    t_step = requests.step_time(**law, B=plant.batch, theta_ctx=context)
    served = ratio(plant.batch * plant.accept * plant.decode_worker, mix.osl * t_step)
    each = {"queue_tokens": mix.isl_stored, "queue_length": 1.0, "ongoing_requests": 1.0}
    return served * each[metric] if metric in each else None


def proportional_gain(metric: str, target: Scalar, pool: str, fleet: Fleet, mix: Mix) -> Scalar | None:
    """g of a law that asks for metric / target workers: what one takes off per second, over the target.

    A rate (arrivals, tokens per second) is fed forward: 0.
    """
    if metric in ("arrival_rate", "prefill_tps", "decode_tps"):
        return 0.0
    rate = worker_rate(metric, pool, fleet, mix)
    return None if rate is None else rate / target
