"""Cost per million tokens as a differentiable function of hardware, load and prices; what one more of each is worth."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._numerics import Scalar, least, most, ratio
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.formulas import buffer, requests
from fluidq.units import Number, format

if TYPE_CHECKING:
    from fluidq.sizing import Plan

HOUR = 3600.0


class Design(NamedTuple):
    """A fleet as plain numbers, each a leaf: scalars or arrays that broadcast.

    Attributes:
        r_P, s_P: prefill rate [tok/s/GPU] and its quadratic part [tok^2/s/GPU].
        t_step_a, t_step_b, t_step_c: decode step [s], [s/seq], [s/(seq tok)].
        kappa, kappa_held: KV bytes per token moved and resident [B/tok].
        hbm, weights: of a decode GPU [B].
        nic, nic_decode: link of a prefill and of a decode GPU [B/s].
        g_P, g_D: GPUs of a worker.
        isl, osl, computed, moved, attended, scv, context: the traffic's moments (`Traffic`).
        tpot, ttft, batch: limits [s], [s], [seq/GPU]; inf is none. accept, headroom: as `fluidq.sizing.size`.
        tau: cold start [s]. buffer, stock: per prefill GPU [B]. swing: signed step of the flow as a share of it;
            shocks: such steps per second.
        price_prefill, price_decode: of a GPU-hour. price_buffer: of a GB-hour.
    """

    r_P: Scalar
    t_step_a: Scalar
    t_step_b: Scalar
    t_step_c: Scalar
    kappa: Scalar
    hbm: Scalar
    nic: Scalar
    isl: Scalar
    osl: Scalar
    computed: Scalar
    moved: Scalar
    context: Scalar
    attended: Scalar = 0.0
    scv: Scalar = 0.0
    s_P: Scalar = math.inf
    weights: Scalar = 0.0
    kappa_held: Scalar | None = None
    nic_decode: Scalar | None = None
    g_P: Scalar = 1.0
    g_D: Scalar = 1.0
    tpot: Scalar = math.inf
    ttft: Scalar = math.inf
    batch: Scalar = math.inf
    accept: Scalar = 1.0
    headroom: Scalar = 1.0
    tau: Scalar = 0.0
    buffer: Scalar = 0.0
    stock: Scalar = 0.0
    swing: Scalar = 0.0
    shocks: Scalar = 0.0
    price_prefill: Scalar = 1.0
    price_decode: Scalar = 1.0
    price_buffer: Scalar = 0.0


class Work(NamedTuple):
    """GPU-seconds of a request in each pool, and what they follow from; arrays.

    `own_P` and `own_D` leave out what the links add, `t_P` and `t_D` do not; `lost`: stranded share of the flow.
    """

    t_P: Array
    t_D: Array
    own_P: Array
    own_D: Array
    batch: Array
    t_step: Array
    load: Array
    lost: Array


def work(x: Design) -> Work:
    """The operating point of a design, without checks: what cannot be is 0 batch or load, and infinite work.

    t_P = max(own prefill / load, moved kappa / nic), t_D = max(osl t_step/(accept B), moved kappa / nic_decode): a link
    that binds sets the pace of its pool (D12). Where no limit on the batch is finite there is no batch: give one.
    """
    held = x.kappa if x.kappa_held is None else x.kappa_held
    receive = x.nic if x.nic_decode is None else x.nic_decode
    law = {"t_step_a": x.t_step_a, "t_step_b": x.t_step_b, "t_step_c": x.t_step_c}
    room = requests.hbm_batch(H=x.hbm, W=x.weights, A_D=0.0, kappa_store=held, theta_ctx=x.context)
    limited = jnp.isfinite(jnp.asarray(x.tpot))
    step = jnp.where(limited, x.tpot, 1.0) * jnp.asarray(x.accept)
    slo = jnp.where(limited, requests.slo_batch(itl_max=step, **law, theta_ctx=x.context), jnp.inf)
    batch = least(least(room, slo), x.batch)
    t_step = requests.step_time(**law, B=batch, theta_ctx=x.context)
    decode = ratio(jnp.asarray(x.osl) * t_step, x.accept * batch, empty=jnp.where(jnp.asarray(x.osl) > 0, jnp.inf, 0.0))

    own = jnp.asarray(x.computed) / x.r_P + jnp.asarray(x.attended) / x.s_P
    bytes_moved = jnp.where(jnp.asarray(x.osl) > 0, jnp.asarray(x.moved) * x.kappa, 0.0)
    service = own / x.g_P
    pair = least(jnp.asarray(x.g_P) * x.nic, jnp.asarray(x.g_D) * receive)
    bounded = jnp.isfinite(jnp.asarray(x.ttft))
    slack = (
        jnp.where(bounded, x.ttft, 1.0) - service - bytes_moved / pair - jnp.where(jnp.asarray(x.osl) > 0, t_step, 0.0)
    )
    wait = 0.5 * (1 + jnp.asarray(x.scv)) * service
    allowed = jnp.where(bounded, ratio(slack, most(slack, 0.0) + wait, empty=1.0), 1.0)
    load = least(most(allowed, 0.0), x.headroom)
    paced = ratio(own, load, empty=jnp.where(own > 0, jnp.inf, 0.0))
    t_P, t_D = most(paced, bytes_moved / x.nic), most(decode, bytes_moved / receive)

    flow = ratio(bytes_moved, own)
    some = flow > 0
    stranded = buffer.lost_bytes(delta=jnp.asarray(x.swing) * flow, tau=x.tau, C=x.buffer, Q0=x.stock)
    lost = jnp.where(some, x.shocks * stranded / jnp.where(some, flow, 1.0), 0.0)
    return Work(t_P, t_D, paced, decode, batch, t_step, load, least(lost, 1.0))


def gpus_per_request_rate(x: Design) -> Array:
    """GPUs of both pools per request per second, at fractional balance (D01); with what shocks strand."""
    w = work(x)
    return jnp.asarray((w.t_P + w.t_D) / (1 - w.lost))


def cost_per_million_tokens(design: "Design | Plan | None" = None, **changes: Scalar) -> Array:
    """Cost of a million tokens, input and output, at fractional balance, in the currency of the prices.

        (c_P t_P + c_D t_D + c_C C t_P)/((1 - lost) (isl + osl)) 1e6       (D06; D14 for `lost`, D30's rent for c_C)

    Differentiable in every number of `Design`: `jax.grad(lambda nic: cost_per_million_tokens(design, nic=nic))(50e9)`.
    Where a link, the memory or a shock does not bind, its derivative is 0; on the boundary it is that of one side.

    Args:
        design: a `Design`, or a `Plan`.
        changes: fields of `Design` to replace, or all of them without a design, and `hit` and `hit_decode`; arrays
            broadcast, tracers are welcome.

    Raises:
        InputError: an unknown field.
    """
    x = as_design(design, changes)
    w = work(x)
    rent = jnp.asarray(x.price_buffer) * x.buffer / 1e9
    hourly = (x.price_prefill + rent) * w.t_P + x.price_decode * w.t_D
    return jnp.asarray(hourly / HOUR / ((1 - w.lost) * (jnp.asarray(x.isl) + x.osl)) * 1e6)


def as_design(design: "Design | Plan | None", changes: dict[str, Any]) -> Design:
    """A design with `changes` on top; `hit` and `hit_decode` set the tokens computed and moved."""
    for name in changes:
        if name not in (*Design._fields, "hit", "hit_decode"):
            raise refuse("field", name, f"hit, hit_decode or one of {', '.join(Design._fields)}")
    hits = {name: changes[name] for name in ("hit", "hit_decode") if name in changes}
    fields = {name: value for name, value in changes.items() if name not in hits}
    if design is None:
        x = Design(**fields)
    else:
        x = (design if isinstance(design, Design) else design_of_plan(design))._replace(**fields)
    if "hit_decode" in hits:
        x = x._replace(moved=(1 - jnp.asarray(hits["hit_decode"])) * jnp.asarray(x.isl))
    return _with_hit(x, hits["hit"]) if "hit" in hits else x


def design_of(d: Deployment, traffic: Traffic, **rest: Scalar) -> Design:
    """The numbers of a deployment and a traffic."""
    return Design(
        r_P=float(d.r_P),
        s_P=float(d.s_P),
        t_step_a=float(d.t_step_a),
        t_step_b=float(d.t_step_b),
        t_step_c=float(d.t_step_c),
        kappa=float(d.kappa_store),
        kappa_held=d.held(),
        hbm=float(d.hbm),
        weights=float(d.weights / d.gpus_per_decode_worker),
        nic=float(d.nic),
        nic_decode=None if d.receive_nic() == d.nic else d.receive_nic(),  # one figure for both ends moves both
        g_P=float(d.gpus_per_prefill_worker),
        g_D=float(d.gpus_per_decode_worker),
        isl=traffic.isl,
        osl=traffic.osl,
        computed=traffic.computed,
        moved=traffic.moved,
        attended=traffic.attended,
        scv=traffic.service_scv,
        context=traffic.context,
        **rest,
    )


def design_of_plan(plan: "Plan") -> Design:
    """The numbers of a plan: its deployment, traffic, limits, prices and buffer."""
    s, p = plan.service, plan.point
    batch = s.batch if s.batch is not None else math.inf
    if p.batch_binds == "concurrency":  # the closed loop's batch, held fixed
        batch = p.batch
    prices = plan.prices or (1.0, 1.0)
    tau, C, Q0 = plan.buffer or (0.0, 0.0, 0.0)
    return design_of(
        plan.deployment,
        plan.traffic,
        tpot=math.inf if s.tpot is None else s.tpot,
        ttft=math.inf if s.ttft is None else s.ttft,
        batch=batch,
        accept=s.accept,
        headroom=s.headroom,
        tau=tau,
        buffer=C,
        stock=Q0,
        price_prefill=prices[0],
        price_decode=prices[1],
    )


@dataclass(frozen=True)
class Sensitivity:
    """What one unit more of something is worth at a plan's throughput.

    Attributes:
        name, unit: what, and how much more of it.
        gpus: change of the GPUs that the same throughput needs; negative is a saving.
        cost: change of the cost per million tokens.
    """

    name: str
    unit: str
    gpus: float
    cost: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {"name": self.name, "unit": self.unit, "gpus": self.gpus, "cost_per_million_tokens": self.cost}


_UNITS = {  # field of Design -> what it is called, the unit, and its size in SI
    "tau": ("cold start", "1 s", 1.0),
    "buffer": ("buffer per prefill GPU", "1 GB", 1e9),
    "nic": ("NIC of a GPU", "1 Gb/s", 1e9 / 8),
    "hit": ("prefix hit rate", "1 point", 0.01),
    "hit_decode": ("prefix hit rate, decode side", "1 point", 0.01),
    "hbm": ("HBM of a GPU", "1 GB", 1e9),
    "hbm_rate": ("rate of decode steps", "1 %", 0.01),
    "r_P": ("prefill rate", "1 %", 0.01),
    "tpot": ("TPOT limit", "1 ms", 1e-3),
    "ttft": ("TTFT limit", "1 ms", 1e-3),
    "accept": ("tokens per step", "0.1", 0.1),
    "price_prefill": ("price of a prefill GPU-hour", "0.01", 0.01),
    "price_decode": ("price of a decode GPU-hour", "0.01", 0.01),
}


def hit_of(x: Design) -> Array:
    """The hit rate that a design's computed tokens imply."""
    return 1 - ratio(x.computed, x.isl, empty=1.0)


def _with_hit(x: Design, hit: Scalar) -> Design:
    """The design at another hit rate, its second moment E[I^2] kept: attended = (1 - h^2) E[I^2]."""
    old, new = hit_of(x), jnp.asarray(hit)
    second = jnp.asarray(x.attended) / most(1 - old * old, 1e-12)
    return x._replace(computed=(1 - new) * jnp.asarray(x.isl), attended=(1 - new * new) * second)


def _moved_by(x: Design, knobs: dict[str, Array]) -> Design:
    """The design with each knob of `_UNITS` moved by its amount; both NICs, and level with capacity, move together."""
    x = _with_hit(x, hit_of(x) + knobs["hit"])
    share = x.stock / x.buffer if x.buffer else 0.5
    faster = 1 + knobs["hbm_rate"]
    return x._replace(
        tau=x.tau + knobs["tau"],
        buffer=x.buffer + knobs["buffer"],
        stock=x.stock + share * knobs["buffer"],
        nic=x.nic + knobs["nic"],
        nic_decode=None if x.nic_decode is None else x.nic_decode + knobs["nic"],
        moved=x.moved - knobs["hit_decode"] * jnp.asarray(x.isl),
        hbm=x.hbm + knobs["hbm"],
        t_step_a=x.t_step_a / faster,
        t_step_b=x.t_step_b / faster,
        t_step_c=x.t_step_c / faster,
        r_P=x.r_P * (1 + knobs["r_P"]),
        s_P=x.s_P * (1 + knobs["r_P"]) if np.isfinite(np.asarray(x.s_P)) else x.s_P,
        tpot=x.tpot + knobs["tpot"],
        ttft=x.ttft + knobs["ttft"],
        accept=x.accept + knobs["accept"],
        price_prefill=x.price_prefill + knobs["price_prefill"],
        price_decode=x.price_decode + knobs["price_decode"],
    )


def _slopes(x: Design, rate: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Derivatives of GPUs and cost by each knob."""
    still = {name: jnp.zeros(()) for name in _UNITS}

    def both(knobs: dict[str, Array]) -> Array:
        moved = _moved_by(x, knobs)
        return jnp.stack([rate * gpus_per_request_rate(moved), cost_per_million_tokens(moved)])

    slopes = jax.jit(jax.jacrev(both))(still)
    return {k: v[0] for k, v in slopes.items()}, {k: v[1] for k, v in slopes.items()}


def sensitivities(
    plan: "Plan",
    *,
    swing: Number = 0.5,
    shocks_per_day: Number = 0.0,
) -> tuple[Sensitivity, ...]:
    """What a second of cold start, a GB of buffer, a Gb/s of NIC, a point of hit rate ... is worth, in GPUs and cost.

    Slopes at the plan's point with fractional pools, in one call of reverse mode: all by one unit from where the plan
    is. What does not bind is worth 0. A cold start and a buffer are worth something where the plan has both and
    `shocks_per_day` is above 0: each shock is a step of `swing` times the flow until the resize lands (D14).

    Args:
        swing: signed step of the flow, as a share of it, in [-1, 1].
        shocks_per_day: such steps per day.

    Raises:
        InputError: a swing outside [-1, 1], a negative rate of shocks.
    """
    if not -1 <= swing <= 1:
        raise refuse("swing", swing, "a share of the flow in [-1, 1]")
    if not 0 <= shocks_per_day < math.inf:
        raise refuse("shocks_per_day", shocks_per_day, "a finite number >= 0")
    x = design_of_plan(plan)._replace(swing=float(swing), shocks=shocks_per_day / 86400.0)
    gpus, cost = _slopes(x, plan.balanced_throughput)
    return tuple(
        Sensitivity(words, unit, float(gpus[name]) * size, float(cost[name]) * size)
        for name, (words, unit, size) in _UNITS.items()
        if math.isfinite(getattr(x, name, 0.0))
    )


def sensitivity_text(found: tuple[Sensitivity, ...], prices: bool) -> str:
    """A table of `sensitivities`; what is worth nothing is left out."""
    from fluidq._bounds import columns

    rows = [("", "one more", "GPUs", "cost per M tokens" if prices else "")]
    for s in found:
        if s.gpus or (prices and s.cost):
            rows.append((s.name, s.unit, format(s.gpus, "1"), f"{s.cost:+.3g}" if prices else ""))
    return columns(rows) if len(rows) > 1 else "  nothing that binds has a slope"
