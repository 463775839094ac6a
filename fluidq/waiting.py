"""Waiting below capacity, by name: what a fluid cannot see, added as a stationary mean.

A fluid below capacity has no queue. Requests that come at random do wait, and the mean is a standard formula of the
load, the number of servers c and the squared coefficients of variation (scv) of arrivals and service.

- "none": 0, the fluid as it is.
- "mmc": M/M/c, W = C(c, a) s / (c - a) with a = rate s and Erlang's C (exact).
- "mgc": Allen-Cunneen, (scv_arrival + scv_service) / 2 times "mmc" (exact for M/G/1 and M/M/c).
- "kimura": Kimura's interpolation between M/M/c and Cosmetatos's M/D/c: closer for steady service on many servers
  (within 5 % of the exact M/D/c where the wait is above a thousandth of a service; Allen-Cunneen up to 27 % below).

c is any number > 0: Erlang's B is continued by its integral (Jagerman 1974), 1/B(c, a) = int_0^inf e^-u (1 + u/a)^c du,
which is a^c e^-a / Gamma(c + 1, a). The continuation agrees with the sums at whole c and is smooth between them.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.lax import stop_gradient
from jax.scipy.special import erf, erfc, gammaincc, gammaln
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import Scalar, least, most, positive_part
from fluidq.formulas import requests, stages
from fluidq.plant import Plant

NAMES = ("none", "mmc", "mgc", "kimura")

# Added to the offered load, so that its logarithm and the slope at an empty system exist [Erlang].
NO_LOAD = 1e-30
# Cosmetatos's term grows without bound with c at a fixed load; at 1, steady service would wait like a random one.
MOST_STEADY = 1.0
# Distance from capacity, in standard deviations of the flow over the horizon, from which the horizon no longer matters.
FORGOTTEN = 40.0


def erlang_b(servers: Scalar, offered: Scalar) -> Array:
    """Chance that all of `servers` are taken where nobody waits: a^c e^-a / Gamma(c + 1, a), a = `offered` [Erlang].

    Any number of servers > 0 and any load >= 0, of one shape or scalars. Relative error below 1e-10 up to c = 20,000.
    """
    c, a = jnp.asarray(servers, dtype=float), jnp.asarray(offered, dtype=float) + NO_LOAD
    return jnp.exp(c * jnp.log(a) - a - gammaln(c + 1.0) - jnp.log(gammaincc(c + 1.0, a)))


def erlang_c(servers: Scalar, offered: Scalar) -> Array:
    """Chance that a request has to wait in M/M/c: B / (1 - rho (1 - B)); 1 at rho = a/c >= 1."""
    c, a = jnp.asarray(servers, dtype=float), jnp.asarray(offered, dtype=float)
    stable = a < c
    a = jnp.where(stable, a, 0.5 * c)
    blocked = erlang_b(c, a)
    return jnp.where(stable, blocked / (1.0 - a / c * (1.0 - blocked)), 1.0)


def correction(
    name: str,
    rate: Scalar,
    service_time: Scalar,
    servers: Scalar,
    scv_arrival: Scalar = 1.0,
    scv_service: Scalar = 1.0,
    *,
    horizon: Scalar | None = None,
) -> Array:
    """Mean wait [s] in front of `servers` equal servers with one first-come queue, to be added to the fluid's TTFT.

    Stationary (`horizon` None): 0 without load, finite below capacity with finite derivatives, inf at and above it.

    With a `horizon` T [s], the time for which the load has lasted: what the queue has built up *beyond the fluid's own*
    since its servers were just taken. That is finite at every load, continuous through rho = 1, and tends to the
    stationary value below capacity. From the mean of a reflected Brownian motion of drift m and variance s2 per second,
    E[max] - max(m, 0) T = sqrt(s2 T) h(|m| sqrt(T / s2)), h(y) = pdf(y) - y cdf(-y) + erf(y / sqrt 2) / (2 y).

    Arguments:
        name: one of `NAMES`.
        rate: arrivals [req/s], >= 0. service_time: of one request on one server [s], > 0; traced, also 0.
        servers: c > 0, whole or not; 0 servers make every request wait for ever.
        scv_arrival, scv_service: variance over squared mean of the gaps and of the service times [-], >= 0.

    Raises InputError for an unknown name and for values out of range (not inside a transformation).
    Source: Erlang; Allen and Cunneen; Cosmetatos 1975; Kimura 1994; Harrison 1985 (reflected Brownian motion).
    """
    if name not in NAMES:
        raise unknown("waiting correction", name, NAMES)
    given = {"rate": rate, "servers": servers, "scv_arrival": scv_arrival, "scv_service": scv_service}
    for field, value in given.items():
        _check(field, value, zero=True)
    _check("service_time", service_time, zero=False)
    if horizon is not None:
        _check("horizon", horizon, zero=True)
    rate, s, c = (jnp.asarray(x, dtype=float) for x in (rate, service_time, servers))
    ca, cs = (jnp.asarray(x, dtype=float) for x in (scv_arrival, scv_service))
    if name == "none":
        return jnp.zeros(jnp.broadcast_shapes(rate.shape, s.shape, c.shape))
    if name == "mmc":
        ca = cs = jnp.ones(())
    # Requests of no length (an empty tick, no output) take no service and wait for none: 0, with derivative 0.
    served = s > 0
    s = jnp.where(served, s, 1.0)
    some = c > 0
    c = jnp.where(some, c, 1.0)
    a = jnp.where(served, rate, 0.0) * s
    shape = _steadiness(a / c, c, cs) if name == "kimura" else 1.0
    if horizon is None:
        stable = a < c
        wait = erlang_c(c, a) * s / jnp.where(stable, c - a, 1.0)
        wait = jnp.where(stable, 0.5 * (ca + cs) * shape * wait, jnp.inf)
    else:
        wait = shape * _built_up(rate, s, c, ca + cs, jnp.asarray(horizon, dtype=float))
    # Exactly 0 without load, and yet with the slope there (one server: the first request is in the second one's way).
    wait = jnp.where(a > 0, wait, wait - stop_gradient(wait))
    return jnp.where(some, jnp.where(served, wait, 0.0), jnp.inf)


def _steadiness(rho: Array, c: Array, scv: Array) -> Array:
    """Kimura's M/G/c over Allen-Cunneen's: 1 / (scv + (1 - scv) / g), with g Cosmetatos's 2 W(M/D/c) / W(M/M/c)."""
    few = (1.0 - rho) * (c - 1.0) * (jnp.sqrt(4.0 + 5.0 * c) - 2.0)
    g = 1.0 + least(positive_part(few / (16.0 * (rho + NO_LOAD) * c)), MOST_STEADY)
    return 1.0 / (scv + (1.0 - scv) / g)


def _built_up(rate: Array, s: Array, c: Array, scv: Array, horizon: Array) -> Array:
    """The wait built up in `horizon` beyond the fluid's; Erlang's C carries the light-traffic part of M/M/c."""
    a = rate * s
    some = (scv > 0) & (horizon > 0)
    scv, horizon, rate = jnp.where(some, scv, 1.0), jnp.where(some, horizon, 1.0), jnp.where(rate > 0, rate, NO_LOAD)
    y = jnp.abs(c - a) / s * jnp.sqrt(horizon / (rate * scv))
    # Far from capacity, or long after the start, the horizon no longer matters (the terms left out are e^-800).
    far = y > FORGOTTEN
    settled = 0.5 * scv * s / jnp.where(far, jnp.abs(c - a), 1.0)
    rate, y = jnp.where(far, 1.0, rate), jnp.where(far, 1.0, y)
    tiny = y < 1e-4
    safe = jnp.where(tiny, 1.0, y)
    flat = 1.0 / math.sqrt(2.0 * math.pi)
    h = flat * jnp.exp(-0.5 * y * y) - 0.5 * y * erfc(y / math.sqrt(2.0))
    h = h + jnp.where(tiny, flat, 0.5 * erf(safe / math.sqrt(2.0)) / safe)
    growing = jnp.sqrt(scv * horizon / rate) * h
    return jnp.where(some, erlang_c(c, a) * most(a / c, 1.0) * jnp.where(far, settled, growing), 0.0)


def of_plant(
    name: str,
    plant: Plant,
    *,
    rate: Scalar,
    isl_computed: Scalar,
    isl_stored: Scalar,
    osl: Scalar,
    prefill_gpus: Scalar,
    decode_gpus: Scalar,
    scv_arrival: Scalar = 1.0,
    scv_isl: Scalar = 1.0,
    scv_osl: Scalar = 1.0,
    horizon: Scalar | None = None,
) -> tuple[Array, Array]:
    """Mean waits [s] of a plant under steady load: for a prefill worker, and for a decode slot.

    Prefill is c = prefill_gpus / prefill_worker servers of isl_computed / (g_P r_P) seconds. Decode is
    c = decode_gpus * batch slots of osl t_s / accept seconds, at the step time of the *full* batch: a request waits
    only while every slot is taken. Arguments of one request or rates [req/s], [tok], [GPU]; the rest as `correction`.
    """
    prefill_service = jnp.asarray(isl_computed) / (plant.prefill_worker * plant.r_P)
    prefill_servers = jnp.asarray(prefill_gpus) / plant.prefill_worker
    slots = jnp.asarray(decode_gpus) * plant.batch
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b, "t_step_c": plant.t_step_c}
    context = requests.mean_context_fixed(isl=isl_stored, osl=osl)
    full = requests.step_time(**law, B=plant.batch, theta_ctx=context)
    decode_service = stages.decode_time_constant(osl=osl, t_step=full) / plant.accept
    prefill = correction(name, rate, prefill_service, prefill_servers, scv_arrival, scv_isl, horizon=horizon)
    # The slots' queue is fed by the prefill pool; its gaps are taken to be as irregular as the arrivals.
    decode = correction(name, rate, decode_service, slots, scv_arrival, scv_osl, horizon=horizon)
    return prefill, decode


def _check(field: str, value: Scalar, *, zero: bool) -> None:
    if isinstance(value, Tracer):
        return
    array = np.asarray(value, dtype=float)
    good = np.isfinite(array) & ((array >= 0) if zero else (array > 0))
    if not good.all():
        raise refuse(field, float(array[~good].ravel()[0]), "finite and >= 0" if zero else "finite and > 0")
