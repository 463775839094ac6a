"""A small network as a policy: what feedback on the same signals could do, as a yardstick for laws with few parameters.

    workers of a pool = ceil(workers that the recent load needs * exp(headroom + network(signals)))

Untrained, the network is near 0 and the law sizes for the recent load with a headroom. It is no product's law, it is
not interpretable, and it is tuned by reverse mode: `fluidq.tune(fleet, workload, Neural.make())`.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import most, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies import gates
from fluidq.policies._demand import unit_times
from fluidq.policies.base import Asked, Policy, Reading, Tunable

SIGNALS = ("trend", "prefill wait", "decode load", "prefill starting", "decode starting", "buffer use")
# A factor beyond e^+-3 of the need is never meant; the tanh keeps slopes finite.
REACH = 3.0


class Averages(NamedTuple):
    """Exponential averages of the arrivals (requests, computed, stored, output tokens per second), each (4,)."""

    fast: Array
    slow: Array


class Neural(Policy):
    """One hidden layer of tanh on the signals `SIGNALS`; two outputs, a pool each.

    Attributes:
        network: an `equinox.nn.MLP`; all its weights are tunable.
        headroom: logarithm of the factor on the need before the network has its say [-].
        fast, slow: time constants of the averages of the load [s]; the trend is the logarithm of their ratio.
    """

    TUNABLE: ClassVar[dict[str, Tunable]] = {
        **{f"network.layers.{i}.{part}": Tunable("real") for i in (0, 1) for part in ("weight", "bias")},
        "headroom": Tunable("real"),
        "fast": Tunable("positive"),
        "slow": Tunable("above", "fast"),
    }

    network: eqx.nn.MLP
    headroom: Scalar = 0.3
    fast: Scalar = 60.0
    slow: Scalar = 1800.0

    @staticmethod
    def make(hidden: int = 8, seed: int = 0) -> "Neural":
        """A network of `hidden` units with small weights. Raises InputError for fewer than one."""
        if hidden < 1:
            raise refuse("hidden", hidden, "at least 1 unit")
        keys = jax.random.key(seed)
        network = eqx.nn.MLP(len(SIGNALS), 2, hidden, 1, activation=jnp.tanh, dtype=jnp.float64, key=keys)
        return Neural(jax.tree.map(lambda x: 0.1 * x if eqx.is_array(x) else x, network))

    @property
    def detection_delay(self) -> float:
        """The time constant of the fast average [s]."""
        return float(self.fast)

    def start(self, fleet: Fleet, asked: Asked) -> Averages | None:
        """Nothing seen yet: the first known sample fills both averages."""
        nothing = jnp.full((4,), jnp.nan)
        return Averages(nothing, nothing)

    def decide(self, memory: Averages, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[Averages, Asked]:
        """One tick. A missing sample leaves the averages and the fleet as they are."""
        g_P, g_D = fleet.per_worker
        r = reading
        known = ~jnp.isnan(r.rate)
        rate = jnp.where(known, r.rate, 0.0)
        now = rate * jnp.stack([jnp.where(known, x, 0.0) for x in (1.0, r.isl_computed, r.isl, r.osl)])
        memory = Averages(
            *(_smooth(old, now, known, fleet.interval / t) for old, t in zip(memory, self._times(), strict=True))
        )
        n, computed, stored, output = jnp.where(jnp.isnan(memory.fast), 0.0, memory.fast)
        t_P, t_D = unit_times(fleet.plant, ratio(computed, n), ratio(stored, n), ratio(output, n))
        signals = jnp.where(known, self._signals(memory, r, fleet), 0.0)
        lift = REACH * jnp.tanh((self.headroom + self.network(signals)) / REACH)
        asked = []
        for need, factor, old in ((n * t_P / g_P, lift[0], r.prefill_asked), (n * t_D / g_D, lift[1], r.decode_asked)):
            wanted = gates.whole_up(most(need * jnp.exp(factor), fleet.min_workers), width)
            asked.append(jnp.where(known, most(wanted, fleet.min_workers), old))
        return memory, Asked(*asked)

    def _times(self) -> tuple[Scalar, Scalar]:
        return self.fast, self.slow

    def _signals(self, memory: Averages, r: Reading, fleet: Fleet) -> Array:
        g_P, g_D = fleet.per_worker
        plant = fleet.plant
        fast, slow = (jnp.where(jnp.isnan(x[0]) | (x[0] <= 0), 1.0, x[0]) for x in memory)
        clean: Any = [jnp.where(jnp.isnan(x), 0.0, x) for x in (r.queue_tokens, r.running + r.buffered, r.buffer_bytes)]
        tokens, sequences, held = clean
        return jnp.stack(
            [
                jnp.log(fast) - jnp.log(slow),
                jnp.log1p(ratio(tokens, r.prefill_ready * g_P * plant.r_P)),
                jnp.log1p(ratio(sequences, r.decode_ready * g_D * plant.batch)),
                ratio(r.prefill_starting, r.prefill_asked),
                ratio(r.decode_starting, r.decode_asked),
                jnp.clip(ratio(held, plant.room(r.prefill_ready * g_P, r.decode_ready * g_D)), 0.0, 1.0),
            ]
        )


def _smooth(old: Array, now: Array, known: Array, age: Scalar) -> Array:
    """An exponential average, which its first known sample starts."""
    first = jnp.isnan(old)
    base = jnp.where(first, now, old)
    moved = base + (1.0 - jnp.exp(-jnp.asarray(age))) * (now - base)
    return jnp.where(known, moved, old)
