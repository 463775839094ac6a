"""The signals that autoscalers scale on, by name: what each means for either pool, and how it is read.

| name | prefill pool | decode pool | unit | over replicas |
|---|---|---|---|---|
| queue_length | requests waiting for prefill | requests between the pools | req | sum |
| queue_tokens | their prefill work | their stored tokens | tok | sum |
| ongoing_requests | waiting for prefill | waiting and running | req | sum |
| running | - | sequences in the batch | req | sum |
| kv_usage | - | KV in use over KV memory, 0 to 1 | fraction | mean |
| batch_usage | - | running over batch slots, 0 to 1 | fraction | mean |
| ttft, itl | of the last tick | of the last tick | s | mean |
| prefill_tps, decode_tps | tokens per second of that phase | the same | tok/s | sum |
| arrival_rate | arrivals | arrivals | req/s | sum |

A latency is a mean over the requests of the last tick: with none it is 0/0, a missing sample, as in Prometheus.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import least, ratio
from fluidq._types import Scalar
from fluidq.fleet import Fleet
from fluidq.policies.base import Reading

POOLS = ("prefill", "decode")


class Pool(NamedTuple):
    """A pool as its autoscaler sees it: workers that are ready, starting, and asked for; GPUs per worker."""

    name: str
    ready: Scalar
    starting: Scalar
    asked: Scalar
    gpus: Scalar


def pool_of(name: str, reading: Reading, fleet: Fleet) -> Pool:
    """The pool `name` in this reading."""
    ready, starting, asked = (getattr(reading, f"{name}_{part}") for part in ("ready", "starting", "asked"))
    return Pool(name, ready, starting, asked, fleet.per_worker[POOLS.index(name)])


class Metric(NamedTuple):
    """A named signal: how it is read, whether it is summed over replicas, and whether it is a share, at most 1."""

    unit: str
    summed: bool
    share: bool
    pools: tuple[str, ...]
    read: Callable[[Reading, Pool, Fleet], Any]


def _either(prefill: str, decode: str) -> Callable[[Reading, Pool, Fleet], Any]:
    return lambda reading, pool, fleet: getattr(reading, prefill if pool.name == "prefill" else decode)


def _ongoing(reading: Reading, pool: Pool, fleet: Fleet) -> Scalar:
    return reading.queue if pool.name == "prefill" else reading.running + reading.buffered


def _kv_usage(reading: Reading, pool: Pool, fleet: Fleet) -> Array:
    # An engine reports what is scheduled: never more than all of it. (In this order a missing value stays missing.)
    return least(1.0, ratio(reading.kv_tokens, pool.ready * pool.gpus * fleet.kv_tokens(), empty=jnp.nan))


def _batch_usage(reading: Reading, pool: Pool, fleet: Fleet) -> Array:
    return least(1.0, ratio(reading.running, pool.ready * pool.gpus * fleet.plant.batch, empty=jnp.nan))


def _of_requests(value: str, served: str) -> Callable[[Reading, Pool, Fleet], Array]:
    """A histogram's mean: sum over count, 0/0 where nothing was served."""
    return lambda reading, pool, fleet: jnp.where(
        jnp.asarray(getattr(reading, served)) > 0, getattr(reading, value), jnp.nan
    )


METRICS: dict[str, Metric] = {
    "queue_length": Metric("req", True, False, POOLS, _either("queue", "buffered")),
    "queue_tokens": Metric("tok", True, False, POOLS, _either("queue_tokens", "buffered_tokens")),
    "ongoing_requests": Metric("req", True, False, POOLS, _ongoing),
    "running": Metric("req", True, False, ("decode",), _either("running", "running")),
    "kv_usage": Metric("fraction", False, True, ("decode",), _kv_usage),
    "batch_usage": Metric("fraction", False, True, ("decode",), _batch_usage),
    "ttft": Metric("s", False, False, POOLS, _of_requests("ttft", "prefill_rate")),
    "itl": Metric("s", False, False, POOLS, _of_requests("tpot", "decode_rate")),
    "prefill_tps": Metric("tok/s", True, False, POOLS, _either("prefill_rate", "prefill_rate")),
    "decode_tps": Metric("tok/s", True, False, POOLS, _either("decode_rate", "decode_rate")),
    "arrival_rate": Metric("req/s", True, False, POOLS, _either("rate", "rate")),
}


def check_metric(name: str, target: object, field: str) -> None:
    """Raise InputError for an unknown metric, or a `target` (called `field`) that is no target of it.

    A share is a fraction: 80 for 80 % is refused with the remedy.
    """
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    if METRICS[name].share:
        check_fraction(field, target, f"of {name}")
    else:
        check_positive(field, target, METRICS[name].unit)


def check_pool(name: str, pool: str, fleet: Fleet) -> None:
    """Raise InputError where this pool does not show the metric, or the plant does not say what it is a share of."""
    if pool not in METRICS[name].pools:
        known = [other for other, metric in METRICS.items() if pool in metric.pools]
        raise refuse(f"{pool}.metric", name, f"a metric that the {pool} pool shows: {', '.join(known)}")
    if name == "kv_usage":
        check_kv_memory(name, fleet)


def check_kv_memory(user: str, fleet: Fleet) -> None:
    """Raise InputError where a law needs the plant's KV memory and the plant states none."""
    if fleet.plant.kv_capacity is None:
        raise refuse("plant.kv_capacity", None, f"the tokens of KV that a decode GPU holds: {user} is a share of them")


def fleet_value(name: str, reading: Reading, pool: Pool, fleet: Fleet) -> Array:
    """The metric as one number for the pool: summed, or the common value of a share or a latency."""
    return jnp.asarray(METRICS[name].read(reading, pool, fleet), dtype=jnp.float64)


def summed_value(name: str, reading: Reading, pool: Pool, fleet: Fleet) -> Array:
    """The metric summed over the pool's ready replicas."""
    value = fleet_value(name, reading, pool, fleet)
    return value if METRICS[name].summed else value * pool.ready


def mean_value(name: str, reading: Reading, pool: Pool, fleet: Fleet) -> Array:
    """The metric's mean over the pool's ready replicas; NaN where there is none."""
    value = fleet_value(name, reading, pool, fleet)
    return ratio(value, pool.ready, empty=jnp.nan) if METRICS[name].summed else value


def plain(value: object) -> float | None:
    """The number, or None where it is traced, batched or absent: those are taken as they are."""
    if value is None or isinstance(value, Tracer) or jnp.ndim(value) > 0:  # pyright: ignore[reportArgumentType]
        return None
    return float(value)  # pyright: ignore[reportArgumentType]


def check_positive(field: str, value: object, unit: str, zero: bool = False) -> None:
    """Raise InputError unless the number is finite and > 0 (or >= 0)."""
    number = plain(value)
    if number is not None and not (0 < number < jnp.inf or (zero and number == 0)):
        raise refuse(field, number, f"a number {'>=' if zero else '>'} 0 [{unit}]")


def check_fraction(field: str, value: object, what: str, open_above: bool = False) -> None:
    """Raise InputError unless the number is a fraction in (0, 1] (or [0, 1)); a per cent is named with its remedy."""
    number = plain(value)
    if number is None or 0 < number < 1 or (number == 1 and not open_above) or (number == 0 and open_above):
        return
    bounds = "in [0, 1)" if open_above else "in (0, 1]"
    remedy = f" ({number / 100:g} for {number:g} %)" if 1 < number <= 100 else ""
    raise refuse(field, number, f"a fraction {what}, {bounds}{remedy}")


def check_bounds(low: str, high: str, law: Any) -> None:
    """Raise InputError unless 0 <= law.low <= law.high and law.high >= 1, whatever the product calls them."""
    check_positive(low, getattr(law, low), "workers", zero=True)
    floor, top = plain(getattr(law, low)), plain(getattr(law, high))
    if top is not None and not top >= 1:
        raise refuse(high, top, "at least 1 worker")
    if floor is not None and top is not None and floor > top:
        raise refuse(low, floor, f"at most {high}, which is {top!r}")
