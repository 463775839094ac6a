"""The two-pool plant: what one step of physics does to the prefill backlog, the handoff buffer and the decode batch.

One step moves, downstream of what is there, *the smaller of what the sender has and the receiver can take* (the
reflected update), so nothing is stiff, nothing goes negative, and every request is in a store, done or lost.
Each store carries its own contents (requests, stored tokens, output tokens; the backlog also computed tokens): a
request keeps its lengths when the mix of the arrivals changes behind it. Several classes of requests are one more
axis of the contents, shape (classes,); a store serves its classes in proportion to what each has in it.
Source: two-pool state space, D01, D14, D24, D29, D32.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from fluidq._errors import refuse, unknown
from fluidq._numerics import least, mean_decay, most, positive_part, ratio, share
from fluidq._types import PerClass as Scalar
from fluidq.formulas import aggregated, requests, stages

# Requests in a batch that count as none [req].
NEGLIGIBLE = 1e-12

# Where the handoff buffer lies, and so which ends of the transfer its bytes cross before it.
PLACES = ("prefill", "decode", "host")


class Contents(NamedTuple):
    """What a store holds: requests, and the stored-input and output tokens of those requests; () or (classes,)."""

    requests: Scalar
    stored: Scalar
    output: Scalar


class PlantState(NamedTuple):
    """The three stores. `computed` is the prefill work of the backlog in tokens still to be computed."""

    backlog: Contents
    computed: Scalar
    buffer: Contents
    active: Contents


class Arrivals(NamedTuple):
    """What arrives during one step: requests and their computed, stored and output tokens (amounts, not rates)."""

    requests: Scalar
    computed: Scalar
    stored: Scalar
    output: Scalar


class Flows(NamedTuple):
    """What one step moved, in amounts.

    `done` and `lost` are contents; `prefilled` and `stalled` are in computed tokens, `stalled` being the work that
    the pool could have done but the full buffer held back; `t_step` [s] is the step time of the running batch;
    `serving` is the decode GPUs in use, draining ones included; `idle` the decode slots that no sequence takes [seq].
    """

    done: Contents
    lost: Contents
    prefilled: Scalar
    stalled: Scalar
    t_step: Scalar
    serving: Scalar
    idle: Scalar


class Plant(eqx.Module):
    """Rates and limits of the two pools. Every field is a number, so each has a gradient.

    Attributes:
        r_P: prefill rate [tok/s per GPU].
        batch: decode batch limit B [seq per GPU].
        t_step_a, t_step_b, t_step_c: step time a + b*B + c*B*context [s, s/seq, s/(seq tok)].
        kappa: bytes that cross the fabric per stored token [B/tok].
        capacity: handoff buffer of the fleet [B]; capacity_per_gpu: what each ready GPU of the pool that holds the
            buffer adds to it [B] (D32: HBM that weights, activations and running requests leave).
        nic_prefill, nic_decode: link rate per GPU [B/s]; fabric: limit of the whole fabric [B/s], inf for none.
        prefill_worker, decode_worker: GPUs per worker.
        accept: output tokens per decode step and sequence.
        hit_decode: share of the stored input tokens that the decode side has already, and that do not cross (D12).
        kv_capacity: tokens of KV that a decode GPU holds, a limit on the batch beside `batch`; None for no limit.
        chunks: pieces of a prompt's KV, each sent as soon as it is computed (SGLang with Mooncake); None for a transfer
            after prefill (vLLM with NIXL).
        back_pressure: True to hold prefill while the buffer is full, False to lose what does not fit (static).
        place: where the buffer lies (static). `prefill`: in the prefill GPUs (pull: bytes cross both links when decode
            admits them); `decode`: in the decode GPUs (push: they cross before it); `host`: in between (they leave
            over the prefill links, and enter over the decode links).
    """

    r_P: Scalar
    batch: Scalar
    t_step_a: Scalar
    t_step_b: Scalar
    t_step_c: Scalar
    kappa: Scalar
    capacity: Scalar
    nic_prefill: Scalar
    nic_decode: Scalar
    fabric: Scalar
    prefill_worker: Scalar
    decode_worker: Scalar
    accept: Scalar = 1.0
    capacity_per_gpu: Scalar = 0.0
    hit_decode: Scalar = 0.0
    kv_capacity: Scalar | None = None
    chunks: Scalar | None = None
    back_pressure: bool = eqx.field(static=True, default=True)
    place: str = eqx.field(static=True, default="host")

    def __check_init__(self) -> None:
        if self.place not in PLACES:
            raise unknown("place of the buffer", self.place, PLACES)

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        for name in ("r_P", "batch", "t_step_a", "kappa", "nic_prefill", "nic_decode", "fabric", "accept"):
            self._require(name, 0.0, open_below=True)
        for name in ("prefill_worker", "decode_worker", "kv_capacity"):
            self._require(name, 0.0, open_below=True)
        for name in ("t_step_b", "t_step_c", "capacity", "capacity_per_gpu"):
            self._require(name, 0.0)
        self._require("hit_decode", 0.0, most=1.0)
        self._require("chunks", 1.0)

    def _require(self, name: str, least: float, most: float = math.inf, open_below: bool = False) -> None:
        value: Any = getattr(self, name)
        if value is None or isinstance(value, Tracer) or jnp.ndim(value) > 0:
            return
        number = float(value)
        if not (least < number <= most or (number == least and not open_below)):
            above = f"> {least:g}" if open_below else f">= {least:g}"
            raise refuse(name, number, above if most == math.inf else f"{above} and <= {most:g}")

    @property
    def crossing(self) -> Scalar:
        """Bytes that cross the fabric per stored token [B/tok]."""
        return self.kappa * (1.0 - self.hit_decode)

    def room(self, prefill_gpus: Scalar, decode_gpus: Scalar) -> Scalar:
        """The handoff buffer's capacity [B] with these ready GPUs."""
        holders = {"prefill": prefill_gpus, "decode": decode_gpus, "host": 0.0}[self.place]
        return self.capacity + self.capacity_per_gpu * holders

    def empty(self, shape: tuple[int, ...] = ()) -> PlantState:
        """This plant with nothing in it; `shape` is () or (classes,)."""
        return empty(shape)

    def advance(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, dt: Scalar
    ) -> tuple[PlantState, Flows]:
        """One step of `dt` seconds: `fluidq.plant.advance`."""
        return advance(state, arrivals, prefill_gpus, decode_gpus, self, dt)

    def latency(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, flows: Flows
    ) -> "Latency":
        """What a request that arrives now will feel: `fluidq.plant.latency`."""
        return latency(state, arrivals, prefill_gpus, decode_gpus, self, flows.t_step)


class Latency(NamedTuple):
    """TTFT [s] of a request that arrives now, by D24's terms, and TPOT [s] of the running batch.

    ttft = wait + prefill + transfer + first_step; `wait` is queueing behind what is there, at the current rates.
    """

    ttft: Scalar
    tpot: Scalar
    wait: Scalar
    prefill: Scalar
    transfer: Scalar
    first_step: Scalar


def empty(shape: tuple[int, ...] = ()) -> PlantState:
    """A plant with nothing in it; `shape` is () for one class of requests, (classes,) for several."""
    zero = jnp.zeros(shape)
    nothing = Contents(zero, zero, zero)
    return PlantState(nothing, zero, nothing, nothing)


def total(x: Scalar) -> Array:
    """Sum over the classes; a number is its own sum."""
    x = jnp.asarray(x)
    return jnp.sum(x, axis=-1) if x.ndim else x


def settle(*values: Any) -> Any:
    """The same values, computed once: XLA on CPU else recomputes a chain inside every result that reads it."""
    return jax.lax.optimization_barrier(values)


def _take(store: Contents, share: Scalar) -> Contents:
    return Contents(store.requests * share, store.stored * share, store.output * share)


def _add(*stores: Contents) -> Contents:
    return Contents(*(sum(part[1:], part[0]) for part in zip(*stores, strict=True)))


def step_time(plant: Plant, store: Contents, gpus: Scalar) -> Array:
    """Decode step time [s] of the sequences in `store` spread over `gpus`: D07's law at D05's mean context.

    Both laws are called with totals in place of means, so that nothing is divided by the number n of sequences:
    n (s/n + (o/n - 1)+ / 2) = s + ((o - n + 1) - 1)+ / 2 tokens, and a + b n/g + c tokens/g.
    """
    n = total(store.requests)
    tokens = requests.mean_context_fixed(isl=total(store.stored), osl=total(store.output) - n + 1.0)
    law = {"t_step_a": plant.t_step_a, "t_step_b": plant.t_step_b * n, "t_step_c": plant.t_step_c}
    return requests.step_time(**law, B=ratio(1.0, gpus), theta_ctx=tokens)


def kv_tokens(store: Contents) -> Array:
    """Tokens of KV of running sequences, which are on average half way through their output [tok]."""
    return total(store.stored) + 0.5 * total(store.output)


# An age at which nothing is left; beyond it derivatives would overflow.
_OVER = 1e18


def _ages(store: Contents, t_step: Scalar, plant: Plant, dt: Scalar) -> Array:
    """A step over the mean time in the batch of what `store` holds, dt accept n / (o t_s) (D29), per class.

    Requests without output are through at once.
    """
    work = stages.decode_time_constant(osl=store.output, t_step=t_step)  # of all n together
    return least(ratio((dt * plant.accept) * store.requests, work, empty=_OVER), _OVER)


def advance(
    state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, plant: Plant, dt: Scalar
) -> tuple[PlantState, Flows]:
    """One step of `dt` seconds at constant rates.

    Order: what is active decodes; the buffer's old stock is admitted first (FIFO between stock and newcomers); then
    prefill works, its output going straight into free decode slots and the rest into the buffer as far as it has room.

    Arguments: stores and arrivals in requests and tokens, () or (classes,); `prefill_gpus`, `decode_gpus` ready GPUs;
    `dt` [s]. Returns the new state and the `Flows`. Requests: before + arrived = after + done + lost, to rounding.
    """
    old, buffer = state.active, state.buffer
    ready = _add(state.backlog, Contents(arrivals.requests, arrivals.stored, arrivals.output))
    work = state.computed + arrivals.computed
    running = total(old.requests)
    serving = most(decode_gpus, running / plant.batch)  # a decode GPU leaves only when its share has drained
    t_step = step_time(plant, old, serving)
    ready, work, serving, t_step = settle(ready, work, serving, t_step)

    # Decode: residents leave at rate accept / (O t_s); a slot is a place in the batch at the end of the step.
    # The exponential tail of an idle batch ends here, before ratios of denormal numbers lose their derivatives.
    keep_old = jnp.where(jnp.asarray(old.requests) > NEGLIGIBLE, jnp.exp(-_ages(old, t_step, plant, dt)), 0.0)
    keep_stock = mean_decay(_ages(buffer, t_step, plant, dt))
    keep_new = mean_decay(_ages(ready, t_step, plant, dt))
    keep_old, keep_stock, keep_new = settle(keep_old, keep_stock, keep_new)
    stay = _take(old, keep_old)
    slots = positive_part(decode_gpus * plant.batch - total(stay.requests))
    memory = None if plant.kv_capacity is None else positive_part(decode_gpus * plant.kv_capacity - kv_tokens(stay))
    before, after = _links(plant, prefill_gpus, decode_gpus)
    before, after = (None if rate is None else rate * dt for rate in (before, after))

    # Admission from the stock.
    stock, ready_stored = total(buffer.stored), total(ready.stored)
    entering, newcomers = _take(buffer, keep_stock), _take(ready, keep_new)
    slots, memory, entering, newcomers = settle(slots, memory, entering, newcomers)
    admit = _fit(plant, slots, memory, after, entering, stock)
    (admit,) = settle(admit)
    inside = _take(entering, admit)
    slots_left, memory_left, after_left = _left(plant, slots, memory, after, inside, admit * stock)

    # Prefill, straight through into free slots, then into the buffer's room.
    effort = total(work)
    wants = [(prefill_gpus * plant.r_P * dt, effort)]
    if before is not None:
        wants.append((before, plant.crossing * ready_stored))
    could = _all_fit(*wants)
    through = _fit(plant, slots_left, memory_left, after_left, newcomers, ready_stored)
    held = plant.kappa if plant.place == "prefill" else plant.crossing
    room = positive_part(plant.room(prefill_gpus, decode_gpus) - (1.0 - admit) * held * stock)
    could, through, room = settle(could, through, room)
    fits = through + ratio(room, held * ready_stored, empty=1.0)
    moved = least(could, fits)
    spilled = could - moved
    if plant.back_pressure:
        lost, left, stalled = 0.0, 1.0 - moved, spilled * effort
    else:
        lost, left, stalled = spilled, 1.0 - could, 0.0
    direct = least(moved, through)
    moved, direct, left, lost, stalled = settle(moved, direct, left, lost, stalled)

    kept = _add(stay, inside, _take(newcomers, direct))
    new = PlantState(
        backlog=_take(ready, left),
        computed=work * left,
        buffer=_add(_take(buffer, 1.0 - admit), _take(ready, moved - direct)),
        active=kept,
    )
    flows = Flows(
        done=_add(
            _take(old, 1.0 - keep_old),
            _take(buffer, admit * (1.0 - keep_stock)),
            _take(ready, direct * (1.0 - keep_new)),
        ),
        lost=_take(ready, lost),
        prefilled=effort * (1.0 - left),
        stalled=jnp.asarray(stalled),
        t_step=t_step,
        serving=serving,
        idle=positive_part(decode_gpus * plant.batch - total(kept.requests)),
    )
    return new, flows


def _links(plant: Plant, prefill_gpus: Scalar, decode_gpus: Scalar) -> tuple[Scalar | None, Scalar | None]:
    """Link rates [B/s] before and after the buffer; None where nothing crosses."""
    send = least(prefill_gpus * plant.nic_prefill, plant.fabric)
    receive = decode_gpus * plant.nic_decode
    if plant.place == "host":
        return send, receive
    whole = least(send, receive)
    return (None, whole) if plant.place == "prefill" else (whole, None)


def _all_fit(*wants: tuple[Scalar, Scalar]) -> Array:
    """The share of which all of several (limit, wanted) fit: the least of their shares, with one division.

    Of two, l / w < l' / w' where l w' < l' w: the tighter pair is found by products. At a tie the first counts.
    """
    limit, wanted = map(jnp.asarray, wants[0])
    for other, more in wants[1:]:
        tighter = other * wanted < limit * more
        limit, wanted = jnp.where(tighter, other, limit), jnp.where(tighter, more, wanted)
    return share(limit, wanted)


def _fit(
    plant: Plant, slots: Scalar, memory: Scalar | None, link: Scalar | None, entering: Contents, stored: Scalar
) -> Array:
    """The share of a store that decode can take: slots, KV memory if it is a limit, the link after the buffer."""
    wants = [(slots, total(entering.requests))]
    if memory is not None:
        wants.append((memory, kv_tokens(entering)))
    if link is not None:
        wants.append((link, plant.crossing * stored))
    return _all_fit(*wants)


def _left(
    plant: Plant, slots: Scalar, memory: Scalar | None, link: Scalar | None, inside: Contents, moved: Scalar
) -> tuple[Array, Array | None, Array | None]:
    return (
        positive_part(slots - total(inside.requests)),
        None if memory is None else positive_part(memory - kv_tokens(inside)),
        None if link is None else positive_part(link - plant.crossing * moved),
    )


def latency(
    state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, plant: Plant, t_step: Scalar
) -> Latency:
    """What a request that arrives now will feel, at the current rates (D24's terms, queueing as a fluid).

    The wait is the larger of two: the backlog through prefill (or its links) and then the stock through decode; or,
    where decode or its links hold everything back, the backlog and the stock together through decode. Own prefill on
    one worker, own transfer over one worker's links, then one decode step. A pool without a ready GPU serves nobody:
    inf. Per class of requests where the arrivals have classes.
    """
    isl_computed = ratio(arrivals.computed, arrivals.requests)
    isl_stored = ratio(arrivals.stored, arrivals.requests)
    before, after = _links(plant, prefill_gpus, decode_gpus)
    slots = decode_gpus * plant.batch
    if plant.kv_capacity is not None:
        each = ratio(kv_tokens(state.active), total(state.active.requests))
        slots = least(slots, ratio(decode_gpus * plant.kv_capacity, each, empty=jnp.inf))

    def through_decode(stored: Scalar, output: Scalar) -> Array:
        work = stages.decode_time_constant(osl=output, t_step=t_step)
        served = ratio(work, slots * plant.accept, empty=jnp.inf)
        if after is None:
            return served
        return most(served, ratio(plant.crossing * stored, after, empty=jnp.inf))

    waiting, stock = state.backlog, state.buffer
    queued, behind = total(waiting.stored), total(waiting.output)
    through_prefill = ratio(total(state.computed), prefill_gpus * plant.r_P, empty=jnp.inf)
    if before is not None:
        through_prefill = most(through_prefill, ratio(plant.crossing * queued, before, empty=jnp.inf))
    stored, output = total(stock.stored), total(stock.output)
    wait = most(
        through_prefill + through_decode(stored, output),
        through_decode(stored + queued, output + behind),
    )
    pair = least(plant.prefill_worker * plant.nic_prefill, plant.decode_worker * plant.nic_decode)
    prefill = isl_computed / (plant.prefill_worker * plant.r_P)
    link = {"isl": isl_stored, "kappa_store": plant.crossing, "nic": pair / plant.prefill_worker}
    link["g_P"] = plant.prefill_worker
    if plant.chunks is None:
        transfer = aggregated.exposed_transfer(**link)
    else:
        transfer = aggregated.exposed_transfer_chunked(**link, r_P=plant.r_P, n_chunks=plant.chunks)
    first = jnp.asarray(t_step)
    return Latency(
        ttft=wait + prefill + transfer + first,
        tpot=first / plant.accept,
        wait=wait,
        prefill=prefill,
        transfer=transfer,
        first_step=first,
    )
