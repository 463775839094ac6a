"""KV that lies in two places while it moves, and the memory that it takes from the buffer (D25).

Transfer after prefill (vLLM with NIXL; `chunks` None): the decode side reserves room for the whole prompt while it is
fetched. Transfer by chunks (SGLang with Mooncake; `chunks` a number): the prefill side keeps the chunks that it sent
until the prompt's last one has landed. On top, prompts that nobody fetches are held on the prefill side for the lease.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import least, positive_part, ratio
from fluidq._types import Scalar
from fluidq.formulas import memory
from fluidq.plant import Arrivals, Flows, Latency, Plant, PlantState, advance, latency, total
from fluidq.topologies._colocated import sibling


class Windows(NamedTuple):
    """Bytes of KV that are there twice, or held for nobody: on all prefill GPUs, and on all decode GPUs [B]."""

    prefill: Array
    decode: Array


def windows(
    plant: Plant, load: Scalar, prefill_gpus: Scalar, isl: Scalar, lease: Scalar = 0.0, unfetched: Scalar = 0.0
) -> Windows:
    """The windows of a prefill pool at a load.

    Arguments:
        plant: the plant; its `chunks` says which way KV moves.
        load: share of the prefill pool that has a prompt in hand, 0 to 1.
        prefill_gpus: GPUs of that pool.
        isl: stored tokens of a prompt.
        lease: time for which KV is held that nobody fetches [s]; unfetched: share of the prompts of which that is so.

    Source: D25, for prompts of equal length, one at a time on a worker, a link margin of at least 1.
    """
    link = {"kappa_store": plant.kappa, "isl": isl, "g_P": plant.prefill_worker}
    held = memory.held_on_prefill(r_P=plant.r_P, kappa_store=plant.kappa, lease=lease) * load * unfetched
    if plant.chunks is None:
        reserved = memory.reserved_duplicate(**link, load=load, r_P=plant.r_P, nic=_pair(plant))
        return Windows(prefill_gpus * held, prefill_gpus * reserved)
    written = memory.written_duplicate(**link, load=load, n_chunks=plant.chunks)
    return Windows(prefill_gpus * (held + written), jnp.zeros_like(written))


def reserve(
    plant: Plant,
    load: Scalar,
    prefill_gpus: Scalar,
    decode_gpus: Scalar,
    isl: Scalar,
    lease: Scalar = 0.0,
    unfetched: Scalar = 0.0,
) -> Plant:
    """The same plant without the memory of its windows at this load.

    What lies where the buffer does (`place`) comes off the buffer. A reservation in decode GPUs that do not hold the
    buffer comes off their KV memory, where the plant states one. A buffer in host memory loses nothing, and KV held in
    prefill GPUs that do not hold the buffer takes memory that the plant does not model. Nothing goes below 0.
    """
    taken = windows(plant, load, prefill_gpus, isl, lease, unfetched)
    here = {"prefill": taken.prefill, "decode": taken.decode, "host": 0.0}[plant.place]
    room = positive_part(plant.room(prefill_gpus, decode_gpus) - here)
    new = eqx.tree_at(lambda p: (p.capacity, p.capacity_per_gpu), plant, (room, 0.0))
    if plant.kv_capacity is None or plant.place == "decode":
        return new
    per_gpu = ratio(taken.decode, decode_gpus * plant.kappa)
    return eqx.tree_at(lambda p: p.kv_capacity, new, positive_part(plant.kv_capacity - per_gpu))


class Windowed(Plant):
    """Two pools whose transfers take memory: the plant, less its windows at the current flow.

    On each step the load is the share of the prefill pool that has work in hand, arrivals included: a worker that waits
    for room in the buffer still holds its prompt. `room` says what a busy prefill pool leaves.

    Attributes:
        isl: stored tokens of the prompts that move.
        lease: time for which KV is held that nobody fetches [s]: 30 in vLLM with heartbeats, 480 without.
        unfetched: share of the prompts of which that is so (clients that left).
    """

    isl: Scalar = eqx.field(kw_only=True)
    lease: Scalar = 30.0
    unfetched: Scalar = 0.0

    @classmethod
    def of(cls, plant: Plant, **own: Any) -> "Windowed":
        """The same hardware and engine as `plant`, with the windows; `own` holds `isl` and sets further fields."""
        return sibling(cls, plant, own)

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        super().check()
        self._require("isl", 0.0)
        self._require("lease", 0.0)
        self._require("unfetched", 0.0, most=1.0)

    def room(self, prefill_gpus: Scalar, decode_gpus: Scalar) -> Scalar:
        """The buffer's capacity [B] that the windows of a busy prefill pool leave."""
        return self.at(1.0, prefill_gpus, decode_gpus).capacity

    def at(self, load: Scalar, prefill_gpus: Scalar, decode_gpus: Scalar) -> Plant:
        """The plain plant that is left at this load."""
        plain = Plant(**{name: getattr(self, name) for name in Plant.__dataclass_fields__})
        return reserve(plain, load, prefill_gpus, decode_gpus, self.isl, self.lease, self.unfetched)

    def advance(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, dt: Scalar
    ) -> tuple[PlantState, Flows]:
        """One step of `dt` seconds: `fluidq.plant.advance` of what is left at this step's load."""
        work = total(state.computed) + total(arrivals.computed)
        load = least(ratio(work, prefill_gpus * self.r_P * dt), 1.0)
        plain = self.at(load, prefill_gpus, decode_gpus)
        return advance(state, arrivals, prefill_gpus, decode_gpus, plain, dt)

    def latency(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, flows: Flows
    ) -> Latency:
        """What a request that arrives now will feel, by `fluidq.plant.latency`, beside the windows of a busy pool."""
        plain = self.at(1.0, prefill_gpus, decode_gpus)
        return latency(state, arrivals, prefill_gpus, decode_gpus, plain, flows.t_step)


def _pair(plant: Plant) -> Array:
    """Link rate of one worker to another, per prefill GPU [B/s]."""
    pair = least(plant.prefill_worker * plant.nic_prefill, plant.decode_worker * plant.nic_decode)
    return pair / plant.prefill_worker
