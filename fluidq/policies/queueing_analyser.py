"""The queueing analyser of llm-d's Workload Variant Autoscaler: the request rate at which a replica meets its targets.

A replica is a state-dependent M/M/1/K queue: with n requests in it (at most N in the batch, Q more in the queue) it
completes mu(n) = n / (prefill(n) + O decode(n)), from an iteration time that is linear in the batch:

    T(n) = alpha + n (beta (I + O)/(O + 1) + gamma (I + O/2))
    prefill(n) = T(n) + (beta + gamma) I,    decode(n) = T(n) + beta + gamma (I + O/2)

The sizing searches the largest rate in [0.001 mu(1), 0.999 mu(N)] that meets TTFT and ITL; a target of tokens per
second takes 0.9 of the largest rate. Everything is in seconds and float64 here (the product: milliseconds, float32).
The chain is solved in logarithms, so no state underflows, and rates have gradients in all numbers.
Source: control-laws 1.2; the model is that of a replica that does prefill and decode.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from fluidq._errors import refuse
from fluidq._numerics import least, positive_part
from fluidq._types import Scalar
from fluidq.policies import gates
from fluidq.policies.metrics import check_positive

# Distance of the rates from 0 and from the largest service rate.
EPSILON = 1e-3
# Share of the largest rate that a throughput target leaves free.
STABILITY_SAFETY_FRACTION = 0.1
# Halvings of the range of rates: to the last digit.
_HALVINGS = 60


class Analysis(NamedTuple):
    """A replica at one request rate: throughput [req/s]; mean times [s]; mean requests in service; their share of N."""

    throughput: Array
    response: Array
    wait: Array
    in_service: Array
    prefill: Array
    itl: Array
    ttft: Array
    rho: Array


class Sizing(NamedTuple):
    """Largest rates per target [req/s per replica], their smallest, and what the replica does at it."""

    rate_ttft: Array
    rate_itl: Array
    rate_tps: Array
    rate: Array
    analysis: Analysis


class QueueingAnalyser(eqx.Module):
    """A replica, its requests and its queue.

    Attributes:
        alpha: base of the iteration time [s]; beta: compute [s/tok]; gamma: memory access [s/tok].
        isl, osl: mean lengths [tok]; osl >= 1.
        maxBatchSize, maxQueueSize: N and Q [req] (static).

    >>> analyser = QueueingAnalyser(alpha=0.008, beta=2e-5, gamma=5e-8, isl=1000.0, osl=200.0)
    >>> sizing = analyser.size(ttft=0.5, itl=0.03)
    >>> bool(sizing.analysis.ttft <= 0.5 + 1e-9), bool(sizing.analysis.itl <= 0.03 + 1e-9)
    (True, True)
    """

    alpha: Scalar
    beta: Scalar
    gamma: Scalar
    isl: Scalar
    osl: Scalar
    maxBatchSize: int = eqx.field(static=True, default=256)
    maxQueueSize: int = eqx.field(static=True, default=100)

    def __check_init__(self) -> None:
        check_positive("alpha", self.alpha, "s")
        for name, unit in (("beta", "s/tok"), ("gamma", "s/tok"), ("isl", "tok")):
            check_positive(name, getattr(self, name), unit, zero=True)
        check_positive("osl", self.osl, "tok")
        if not isinstance(self.osl, Tracer) and jnp.ndim(self.osl) == 0 and float(self.osl) < 1:
            raise refuse("osl", float(self.osl), "at least 1 output token")
        if self.maxBatchSize < 1:
            raise refuse("maxBatchSize", self.maxBatchSize, "a whole number >= 1")
        if self.maxQueueSize < 0:
            raise refuse("maxQueueSize", self.maxQueueSize, "a whole number >= 0")

    def iteration_time(self, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """T(n) [s] with n requests in the batch."""
        compute = (self.isl + self.osl) / (self.osl + 1.0)
        return self.alpha + n * (self.beta * compute + self.gamma * (self.isl + self.osl / 2.0))

    def prefill_time(self, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Prefill of one request [s]; 0 without input."""
        whole = self.iteration_time(n) + (self.beta + self.gamma) * self.isl
        return jnp.where(jnp.asarray(self.isl) > 0, whole, 0.0)

    def decode_time(self, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """One output token of one request [s]."""
        return self.iteration_time(n) + self.beta + self.gamma * (self.isl + self.osl / 2.0)

    def service_rates(self) -> Float[Array, " batch"]:
        """mu(1..N) [req/s]."""
        n = jnp.arange(1.0, self.maxBatchSize + 1.0)
        return n / (self.prefill_time(n) + self.osl * self.decode_time(n))

    def rate_range(self) -> tuple[Array, Array]:
        """The rates that are looked at [req/s]."""
        mu = self.service_rates()
        return EPSILON * mu[0], (1.0 - EPSILON) * mu[-1]

    def state_probabilities(self, rate: Scalar) -> Float[Array, " states"]:
        """Stationary probabilities of 0..N+Q requests in the replica."""
        log_mu = jnp.log(self.service_rates())
        log_mu = jnp.concatenate([log_mu, jnp.full((self.maxQueueSize,), log_mu[-1])])
        steps = jnp.log(rate) - log_mu
        return jax.nn.softmax(jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)]))

    def analyse(self, rate: Scalar) -> Analysis:
        """The replica at `rate` [req/s]. Raises InputError for a rate outside (0, 0.999 mu(N)]."""
        top = self.rate_range()[1]
        if not isinstance(rate, Tracer) and not isinstance(top, Tracer) and not 0 < float(rate) <= float(top):
            raise refuse("rate", float(rate), f"in (0, {float(top):g}] req/s, what one replica can serve")
        return self._analyse(rate)

    def _analyse(self, rate: Scalar) -> Analysis:
        p = self.state_probabilities(rate)
        n = jnp.arange(float(p.shape[0]))
        in_system = jnp.sum(n * p)
        in_service = jnp.sum(least(n, float(self.maxBatchSize)) * p)
        throughput = rate * (1.0 - p[-1])
        response, served = in_system / throughput, in_service / throughput
        wait = positive_part(response - served)
        prefill = self.prefill_time(in_service)
        itl = (served - prefill) / self.osl
        return Analysis(
            throughput=throughput,
            response=response,
            wait=wait,
            in_service=in_service,
            prefill=prefill,
            itl=itl,
            ttft=wait + prefill + itl,
            rho=jnp.clip(in_service / self.maxBatchSize, 0.0, 1.0),
        )

    def size(self, ttft: Scalar | None = None, itl: Scalar | None = None, tps: Scalar | None = None) -> Sizing:
        """Largest rate per replica for these targets [s, s, tok/s]; None for no such target.

        Raises InputError for a target that even the smallest rate misses.
        """
        for name, target, unit in (("ttft", ttft, "s"), ("itl", itl, "s"), ("tps", tps, "tok/s")):
            check_positive(name, target, unit)
        low, high = self.rate_range()
        by_ttft = high if ttft is None else self._largest("ttft", lambda a: a.ttft, ttft, low, high)
        by_itl = high if itl is None else self._largest("itl", lambda a: a.itl, itl, low, high)
        by_tps = high if tps is None else high * (1.0 - STABILITY_SAFETY_FRACTION)
        rate = least(least(by_ttft, by_itl), by_tps)
        return Sizing(by_ttft, by_itl, by_tps, rate, self._analyse(rate))

    def replicas(self, rate: Scalar, sizing: Sizing, width: Scalar | None = None) -> Array:
        """ceil(rate / the sized rate): replicas for `rate` [req/s]."""
        return gates.whole_up(rate / sizing.rate, width)

    def _largest(self, name: str, read: Callable[[Analysis], Array], target: Scalar, low: Array, high: Array) -> Array:
        """The rate at which a latency that grows with it reaches its target, by halving; `high` where it never does.

        One Newton step at the end has the root's value and, by the implicit function theorem, its derivative.
        """
        fixed = jax.lax.stop_gradient(self)
        aim = jax.lax.stop_gradient(target)
        reached = read(fixed._analyse(jax.lax.stop_gradient(low)))
        wanted = f"at least {float(reached):g} s, what an idle replica takes" if not _traced(reached) else "feasible"
        if not _traced(reached, aim) and float(aim) < float(reached):
            raise refuse(name, float(aim), wanted)

        def halve(_: Scalar, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            below, above = bounds
            middle = 0.5 * (below + above)
            late = read(fixed._analyse(middle)) > aim
            return jnp.where(late, below, middle), jnp.where(late, middle, above)

        start = (jax.lax.stop_gradient(low), jax.lax.stop_gradient(high))
        root, _ = jax.lax.fori_loop(0, _HALVINGS, halve, start)
        slope = jax.lax.stop_gradient(jax.grad(lambda r: read(fixed._analyse(r)))(root))
        found = root - (read(self._analyse(root)) - target) / slope
        never = read(fixed._analyse(start[1])) <= aim
        return jnp.where(never, high, found)


def _traced(*values: object) -> bool:
    return any(isinstance(v, Tracer) for v in values)
