"""Prefill and decode on the same GPUs: one step of physics, whatever the way in which they share them.

The stores are the plant's, with nothing between prefill and decode: a prompt is admitted when the batch has a place
for it, is prefilled, and decodes where it is. So the handoff buffer stays empty, nothing crosses the fabric, and
neither `capacity`, `place`, `back_pressure` nor the link rates matter. Both pools' ready GPUs serve as one pool of
n = prefill_gpus + decode_gpus: a policy may split them as it likes, only the sum counts. Prefill goes first as far as
the batch has places and the frontier allows; decode has what that leaves.
Source: D21, D23; theory, group 5.
"""

import abc
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, most, positive_part, ratio, share
from fluidq._types import PerClass, Scalar
from fluidq.plant import (
    NEGLIGIBLE,
    Arrivals,
    Contents,
    Flows,
    Latency,
    Plant,
    PlantState,
    kv_tokens,
    settle,
    step_time,
    total,
)
from fluidq.topologies._admission import Admission, largest
from fluidq.topologies._frontier import Frontier

# An age at which nothing is left. Its eighth power is finite, so derivatives of `mean_decay` are.
_OVER = 1e30


class Load(NamedTuple):
    """What a frontier depends on.

    `law`: the plant's decode step [s] for the `batch` then running [seq/GPU]; `t_step`: that of this system without
    prefill; `keep`: share of its decode speed that prefill must leave; `computed`, `stored`: mean tokens of the prompts
    that wait.
    """

    law: Scalar
    t_step: Scalar
    batch: Scalar
    keep: Scalar
    computed: Scalar
    stored: Scalar


class Colocated(Plant):
    """What temporal, chunked and partitioned GPUs have in common; a subclass states its frontier.

    Attributes:
        itl: longest mean time between two decode steps that prefill may cause [s]. The default is no limit in
            practice: it only keeps a GPU from prefilling for ever while others wait for their next token.
    """

    itl: Scalar = 10.0

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        super().check()
        self._require("itl", 0.0, most=1e9, open_below=True)

    @abc.abstractmethod
    def frontier(self, load: Load) -> Frontier:
        """How prefill and decode share a GPU at this load."""

    def decode_step(self, law: Scalar, batch: Scalar) -> Array:
        """Decode step [s] of `batch` sequences on a GPU without prefill beside it; `law` is the plant's [s]."""
        return jnp.asarray(law)

    def own_prefill(self, load: Load, front: Frontier, computed: Array) -> tuple[Array, Array]:
        """Own prefill [s] of a prompt of `computed` tokens with none before it, and the step to its first token [s]."""
        return computed / (self.prefill_worker * self.r_P), jnp.asarray(load.t_step)

    def pause(self, load: Load) -> Array:
        """Mean wait [s] of a prompt for what its GPU has begun."""
        return jnp.zeros(())

    def advance(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, dt: Scalar
    ) -> tuple[PlantState, Flows]:
        """One step of `dt` seconds.

        The share m of the queue that is admitted is the largest that the queue, the frontier's `top` and the places in
        the batch (slots, KV memory) at the end of the step allow. The more is prefilled, the slower decode frees
        places: m solves m = fits(m). Residents leave at rate x accept / (O t_s), x the decode speed that is left, so a
        steady state is that of the closed forms at any `dt`.

        Arguments and results as `fluidq.plant.advance`; `Flows.t_step` is the mean time between two decode steps,
        t_s/x; `stalled` and `lost` are 0: a prompt without a place waits in the backlog, and its GPU decodes.
        """
        old, gpus = state.active, prefill_gpus + decode_gpus
        ready, work = _joined(state, arrivals)
        load, serving = self._load(old, ready, work, gpus)
        ready, work, load, serving = settle(ready, work, load, serving)

        front, effort, full = self.frontier(load), total(work), gpus * self.r_P * dt
        some = jnp.asarray(old.requests) > NEGLIGIBLE  # the exponential tail of an idle batch ends here
        batch = Admission(
            limit=gpus * self.batch,
            held=old.requests,
            entering=ready.requests,
            age_held=jnp.where(some, _age(old, load.t_step, self, dt), _OVER),
            age_entering=_age(ready, load.t_step, self, dt),
            front=front,
            part=ratio(gpus, serving, empty=1.0),  # GPUs that drain only decode
            busy=ratio(effort, full),
        )
        top = share(front.top * full, effort)
        batch, top = settle(batch, top)
        moved = largest(batch, top)
        if self.kv_capacity is not None:
            memory = batch._replace(limit=gpus * self.kv_capacity, held=_kv(old), entering=_kv(ready))
            moved = least(moved, largest(memory, top))
        (moved,) = settle(moved)
        x, stays, enters = batch.kept(moved)
        x, stays, enters, left = settle(x, stays, enters, 1.0 - moved)

        kept = _add(_take(old, stays), _take(ready, moved * enters))
        nothing = Contents(*(jnp.zeros_like(part) for part in ready))
        new = PlantState(backlog=_take(ready, left), computed=work * left, buffer=nothing, active=kept)
        flows = Flows(
            done=_add(_take(old, 1.0 - stays), _take(ready, moved * (1.0 - enters))),
            lost=nothing,
            prefilled=effort * moved,
            stalled=jnp.zeros(()),
            t_step=jnp.where(load.keep > 0, load.t_step / x, load.t_step),
            serving=serving - prefill_gpus,
            idle=positive_part(gpus * self.batch - total(kept.requests)),
        )
        return new, flows

    def latency(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, flows: Flows
    ) -> Latency:
        """What a request that arrives now will feel, at the current rates.

        The wait is the least time in which the GPUs do, along their frontier, the prefill work that is queued and the
        decode work that must be done before the batch has a place; then come the own prefill and the step to the first
        token. Nothing is transferred. TPOT is the mean time between two steps over the tokens of a step.
        """
        active, queue, gpus = state.active, state.backlog, prefill_gpus + decode_gpus
        load, _ = self._load(active, *_joined(state, arrivals), gpus)
        front, running, queued = self.frontier(load), total(active.requests), total(queue.requests)
        slots = gpus * self.batch
        if self.kv_capacity is not None:
            each = ratio(kv_tokens(active), running)
            slots = least(slots, ratio(gpus * self.kv_capacity, each, empty=jnp.inf))
        beyond = ratio(positive_part(queued - positive_part(slots - running)), queued)
        prefill_work = ratio(total(state.computed), gpus * self.r_P)
        decode_work = ratio(beyond * total(queue.output) * load.t_step, slots * self.accept)
        busy = jnp.where(jnp.asarray(gpus) > 0, front.time(prefill_work, decode_work), jnp.inf)
        wait = busy + self.pause(load)
        prefill, first = self.own_prefill(load, front, ratio(arrivals.computed, arrivals.requests))
        return Latency(
            ttft=wait + prefill + first,
            tpot=jnp.asarray(flows.t_step) / self.accept,
            wait=wait,
            prefill=prefill,
            transfer=jnp.zeros_like(prefill),
            first_step=first,
        )

    def _load(self, active: Contents, queue: Contents, work: PerClass, gpus: Scalar) -> tuple[Load, Array]:
        """The load, and the GPUs that serve: a GPU leaves only when its share has drained."""
        running, waiting = total(active.requests), total(queue.requests)
        serving = most(gpus, running / self.batch)
        law, batch = step_time(self, active, serving), ratio(running, serving)
        t_step = self.decode_step(law, batch)
        decodes = total(active.output) + total(queue.output) > 0  # else nobody waits for a step
        load = Load(
            law=law,
            t_step=t_step,
            batch=batch,
            keep=jnp.where(decodes, least(t_step / self.itl, 1.0), 0.0),
            computed=ratio(total(work), waiting),
            stored=ratio(total(queue.stored), waiting),
        )
        return load, serving


def sibling(kind: Any, plant: Plant, own: dict[str, Any]) -> Any:
    """A plant of another `kind` with the numbers of `plant`, and its `own` on top."""
    return kind(**{**{name: getattr(plant, name) for name in Plant.__dataclass_fields__}, **own})


def _joined(state: PlantState, arrivals: Arrivals) -> tuple[Contents, PerClass]:
    """The backlog with what arrives, and its prefill work."""
    new = Contents(arrivals.requests, arrivals.stored, arrivals.output)
    return _add(state.backlog, new), state.computed + arrivals.computed


def _add(a: Contents, b: Contents) -> Contents:
    return Contents(*(x + y for x, y in zip(a, b, strict=True)))


def _take(store: Contents, part: PerClass) -> Contents:
    return Contents(store.requests * part, store.stored * part, store.output * part)


def _kv(store: Contents) -> PerClass:
    """Tokens of KV per class, by `fluidq.plant.kv_tokens`."""
    return store.stored + 0.5 * store.output


def _age(store: Contents, t_step: Scalar, plant: Plant, dt: Scalar) -> Array:
    """A step over the mean time in the batch at full decode speed (D29), per class."""
    return least(ratio((dt * plant.accept) * store.requests, store.output * t_step, empty=_OVER), _OVER)
