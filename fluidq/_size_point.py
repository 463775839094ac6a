"""The decode batch and the prefill headroom that the limits allow, each limit with its figure, and which one binds."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fluidq._errors import refuse
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.formulas import aggregated, requests
from fluidq.units import Quantity, format, si

BATCH_LIMITS = {  # what each limit on the batch is called
    "given": "as given",
    "tpot": "the TPOT limit",
    "memory": "the HBM of a decode GPU",
    "concurrency": "the requests in flight",
}


@dataclass(frozen=True)
class Service:
    """What is asked of the fleet besides throughput. None is no limit.

    Attributes:
        tpot: longest mean time per output token [s].
        ttft: longest mean time to first token [s]; one M/G/1 queue per prefill worker (D24).
        concurrency: requests in flight, at most.
        batch: decode sequences per GPU, at most; None leaves it to the other limits.
        accept: output tokens per decode step and sequence (speculative decoding), >= 1.
        headroom: share of the prefill rate that may be used, in (0, 1].
    """

    tpot: float | None = None
    ttft: float | None = None
    concurrency: float | None = None
    batch: float | None = None
    accept: float = 1.0
    headroom: float = 1.0

    @classmethod
    def of(
        cls,
        tpot: Quantity | None = None,
        ttft: Quantity | None = None,
        concurrency: Quantity | None = None,
        batch: Quantity | None = None,
        accept: Quantity = 1.0,
        headroom: Quantity = 1.0,
    ) -> "Service":
        """From text with units or SI numbers.

        Raises:
            InputError: a limit that is not > 0, `accept` below 1, a headroom outside (0, 1].
        """
        limits = {}
        for name, value, dimension in (
            ("tpot", tpot, "seconds"),
            ("ttft", ttft, "seconds"),
            ("concurrency", concurrency, "1"),
            ("batch", batch, "1"),
        ):
            limits[name] = None if value is None else si(value, dimension, name, above=0.0)
            if limits[name] is not None and not math.isfinite(limits[name]):
                raise refuse(name, value, "a finite number > 0")
        alpha, share = si(accept, "1", "accept", minimum=1.0), si(headroom, "1", "headroom", above=0.0)
        if math.isinf(alpha):
            raise refuse("accept", accept, "a finite number of tokens per step >= 1")
        if share > 1:
            raise refuse("headroom", headroom, "a share of the prefill rate in (0, 1]")
        return cls(accept=alpha, headroom=share, **limits)


@dataclass(frozen=True)
class Point:
    """Where the pools run.

    Attributes:
        batch: sequences per decode GPU; `batch_binds` names the limit that sets it, `batch_limits` holds each of them.
        t_step: time of a decode step [s]; tpot: of an output token [s].
        t_P, t_D: prefill and decode work of a request at those rates, headroom included [GPU s].
        load: share of the prefill rate that may be used; `load_binds` is "prefill" or, where the TTFT limit sets it,
            "ttft".
        ttft: mean time to first token at that load, infinite at load 1 [s].
    """

    batch: float
    batch_binds: str
    batch_limits: dict[str, float]
    context: float
    t_step: float
    tpot: float
    t_P: float
    t_D: float
    load: float
    load_binds: str
    ttft: float


def operate(d: Deployment, traffic: Traffic, service: Service, gpus: int) -> Point:
    """Solve batch and step time together (the step grows with the batch), then the load that the TTFT limit allows.

    Raises:
        InputError: no batch keeps the TPOT limit, none fits in memory, or no load keeps the TTFT limit: with the
            least that could be asked for.
    """
    context, alpha = traffic.context, service.accept
    limits: dict[str, float] = {}
    if service.batch is not None:
        limits["given"] = service.batch
    if traffic.osl:
        if service.tpot is not None:
            limits["tpot"] = _tpot_batch(d, service.tpot * alpha, context, alpha)
        limits["memory"] = _memory_batch(d, context, service.batch)
        if service.concurrency is not None:
            limits["concurrency"] = _fluid_batch(d, traffic, service, gpus)
    if not limits:
        limits["given"] = float(d.batch)  # nothing is decoded: any batch
    binds = min(limits, key=lambda name: limits[name])
    batch = limits[binds]
    if math.isinf(batch):
        raise refuse("batch", None, "given: neither memory nor another limit bounds it at no context")
    t_step = float(np.asarray(d.t_step(batch, context)))
    load, load_binds, ttft = _load(d, traffic, service, t_step)
    t_P = float(d.prefill_work(traffic.computed, traffic.attended)) / load
    t_D = traffic.osl * t_step / (alpha * batch)
    return Point(batch, binds, limits, context, t_step, t_step / alpha, t_P, t_D, load, load_binds, ttft)


def _tpot_batch(d: Deployment, step: float, context: float, alpha: float) -> float:
    law = {"t_step_a": d.t_step_a, "t_step_b": d.t_step_b, "t_step_c": d.t_step_c}
    if d.t_step_b + d.t_step_c * context == 0:
        most = math.inf if step >= d.t_step_a else -1.0
    else:
        most = float(requests.slo_batch(itl_max=step, **law, theta_ctx=context))
    one = 1 / d.gpus_per_decode_worker
    if most < one:
        least = float(np.asarray(d.t_step(one, context))) / alpha
        words = (
            f"at least {format(least, 'seconds')}: one sequence per decode worker at {context:,.0f} tokens of context"
        )
        raise refuse("tpot", format(step / alpha, "seconds"), words)
    return most


def _memory_batch(d: Deployment, context: float, given: float | None) -> float:
    if context <= 0:
        return math.inf
    most = d.fits(context)
    if given is not None and given > most:
        d.with_batch(given).check_memory(context)
    if most * d.gpus_per_decode_worker < 1:
        need, free = context * d.held(), d.free_hbm() * d.gpus_per_decode_worker
        raise refuse(
            "gpus_per_decode_worker",
            d.gpus_per_decode_worker,
            f"more: one sequence of {context:,.0f} tok x {d.held():,.0f} B needs {format(need, 'bytes')}, "
            f"{format(need - free, 'bytes')} more than the {format(free, 'bytes')} that weights leave of a worker",
        )
    return most


def _fluid_batch(d: Deployment, traffic: Traffic, service: Service, gpus: int) -> float:
    """The batch at which balanced pools hold `concurrency` requests: X(B) (O tpot(B) + own prefill) = C."""
    assert service.concurrency is not None
    t_P = float(d.prefill_work(traffic.computed, traffic.attended)) / service.headroom
    law = (d.t_step_a, d.t_step_b + d.t_step_c * traffic.context)

    def held(batch: float) -> float:
        tpot = (law[0] + law[1] * batch) / service.accept
        rate = gpus / (t_P + traffic.osl * tpot / batch)
        return rate * (traffic.osl * tpot + t_P / d.gpus_per_prefill_worker)

    low, high = 0.0, 1.0
    while held(high) < service.concurrency:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf  # a step that no batch makes longer: any concurrency finds room
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if held(middle) < service.concurrency else (low, middle)
    return 0.5 * (low + high)


def _load(d: Deployment, traffic: Traffic, service: Service, t_step: float) -> tuple[float, str, float]:
    """The load of prefill, what sets it, and the mean TTFT at it (D24: M/G/1 per worker, inverted)."""
    own = float(d.prefill_work(traffic.computed, traffic.attended)) / d.gpus_per_prefill_worker
    first = t_step if traffic.osl else 0.0
    link = min(d.gpus_per_prefill_worker * d.nic, d.gpus_per_decode_worker * d.receive_nic())
    move = 0.0
    if traffic.osl and math.isfinite(link):
        ends = {"kappa_store": d.kappa_store, "nic": link / d.gpus_per_prefill_worker}
        move = float(aggregated.exposed_transfer(isl=traffic.moved, g_P=d.gpus_per_prefill_worker, **ends))
    least = own + move + first

    def ttft(load: float) -> float:
        if not own:
            return least
        return (
            least + float(aggregated.queue_wait(load=load, service=own, scv=traffic.service_scv))
            if load < 1
            else math.inf
        )

    if service.ttft is None or not own:
        if service.ttft is not None and service.ttft < least:
            raise _too_fast(service.ttft, own, move, first)
        return service.headroom, "prefill", ttft(service.headroom)
    slack = service.ttft - least
    if slack <= 0:
        raise _too_fast(service.ttft, own, move, first)
    allowed = slack / (slack + 0.5 * (1 + traffic.service_scv) * own)
    if allowed < service.headroom:
        return allowed, "ttft", ttft(allowed)
    return service.headroom, "prefill", ttft(service.headroom)


def _too_fast(ttft: float, own: float, move: float, first: float) -> Exception:
    parts = ((own, "prefill"), (move, "transfer"), (first, "the first step"))
    words = " + ".join(f"{format(time, 'seconds')} of {what}" for time, what in parts if time)
    return refuse(
        "ttft", format(ttft, "seconds"), f"above {format(own + move + first, 'seconds')}: {words}, without any wait"
    )


def loop_rates(
    d: Deployment, traffic: Traffic, service: Service, point: Point, n_P: np.ndarray, n_D: np.ndarray
) -> np.ndarray:
    """Request rate [req/s] of each split at `service.concurrency` requests in flight (closed loop, D24's wait).

    What the queue in front of prefill holds is missing in the decode batch. A batch above `point.batch` waits in front
    of decode. Splits without one of the pools carry what the other does.
    """
    some = (n_P > 0) & (n_D > 0)
    own = float(d.prefill_work(traffic.computed, traffic.attended))
    if not (own and traffic.osl):
        hold = traffic.osl * point.tpot + own / d.gpus_per_prefill_worker
        return np.full(n_P.shape, (service.concurrency or math.inf) / hold)
    cap = min((value for name, value in point.batch_limits.items() if name != "concurrency"), default=math.inf)
    rates = _loops(
        jnp.asarray(np.where(some, n_P, 1), float),
        jnp.asarray(np.where(some, n_D, 1), float),
        jnp.asarray(
            [service.concurrency, own / point.load, traffic.osl, traffic.service_scv, d.gpus_per_prefill_worker, cap],
            float,
        ),
        jnp.asarray([d.t_step_a, d.t_step_b + d.t_step_c * traffic.context, service.accept], float),
    )
    return np.where(some, np.asarray(rates), 0.0)


@jax.jit
def _loops(n_P: jax.Array, n_D: jax.Array, load: jax.Array, law: jax.Array) -> jax.Array:
    from fluidq.validation import Loop, closed_loop

    concurrency, work, osl, scv, worker, cap = load

    def tpot(batch: jax.Array) -> jax.Array:
        inside = jnp.minimum(batch, cap)
        return (law[0] + law[1] * inside) / law[2] * jnp.maximum(batch / cap, 1.0)

    def one(p: jax.Array, q: jax.Array) -> jax.Array:
        loop = Loop(share=1.0, scv=scv, delay=0.0)
        return closed_loop(concurrency, work, osl, 1.0, p / worker, p, q, tpot, loop).request_rate

    return jax.vmap(one)(n_P, n_D)
