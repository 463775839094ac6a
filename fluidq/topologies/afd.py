"""Attention and FFN on GPUs of their own: a third pool in series with prefill (D28; MegaScale-Infer, Song et al.)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fluidq._numerics import most, ratio
from fluidq._types import Scalar
from fluidq.formulas import stages
from fluidq.plant import Arrivals, Contents, Flows, Plant, PlantState, advance, step_time, total
from fluidq.topologies._colocated import sibling

# Sequences per micro-batch below which the step is that of an empty one [seq].
_FEW = 1e-6


class AttentionFFN(Plant):
    """Two pools, and in the decode pool `attention_ratio` attention GPUs for each FFN GPU.

    Everything but the decode step is `fluidq.plant`. The step follows from the plant's own law a + b B + c B (context):
    FFN takes a + b (its sequences), attention `attention_base` + c (its context tokens), each over `layers`. With r
    attention GPUs per FFN GPU and m micro-batches of B sequences per attention GPU, a decode GPU holds m B r/(1 + r):
    `batch` and `kv_capacity` count per decode GPU of either kind.

    - Micro-batches follow one another without a break: step = layers max(m longest, one round trip), the longest of
      attention, FFN and a hop; the pool's tokens per second are D28's r B/((r + 1) layers longest) per GPU.
    - `barrier`: each step ends before the next begins: D28's ping-pong time; with fewer micro-batches than keep the
      longest busy, that of just enough of them.

    Attributes:
        attention_ratio: attention GPUs per FFN GPU, r.
        micro_batches: in flight, m. layers: of the model.
        t_hop: transfer between attention and FFN in one layer, one way [s].
        attention_base: attention of a step without context, over all layers [s].
        barrier: True to drain the pipeline after each step (static).
    """

    attention_ratio: Scalar = 1.0
    micro_batches: Scalar = 3.0
    layers: Scalar = 60.0
    t_hop: Scalar = 0.0
    attention_base: Scalar = 0.0
    barrier: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(cls, plant: Plant, **own: Any) -> "AttentionFFN":
        """The same hardware and engine as `plant`, its decode pool split; `own` sets further fields."""
        return sibling(cls, plant, own)

    def check(self) -> None:
        """Raise InputError naming the first number that cannot be; traced numbers are taken as they are."""
        super().check()
        self._require("attention_ratio", 0.0, open_below=True)
        self._require("micro_batches", 1.0)
        self._require("layers", 1.0)
        self._require("t_hop", 0.0)
        self._require("attention_base", 0.0)

    def micro_batch(self, running: Scalar, decode_gpus: Scalar) -> Array:
        """Sequences of a micro-batch on an attention GPU, of `running` on all decode GPUs."""
        attention_gpus = decode_gpus * self.attention_ratio / (1.0 + self.attention_ratio)
        return ratio(running, attention_gpus * self.micro_batches)

    def stage_times(self, batch: Scalar, context: Scalar) -> dict[str, Any]:
        """D28's arguments: attention, FFN (base, slope) and hop of one layer for micro-batches of `batch`."""
        return {
            "t_attention": (self.attention_base + self.t_step_c * batch * context) / self.layers,
            "t_hop": jnp.asarray(self.t_hop),
            "ffn_slope": self.t_step_b / self.layers,
            "ffn_base": self.t_step_a / self.layers,
            "B": jnp.asarray(batch),
        }

    def best_ratio(self, batch: Scalar, context: Scalar) -> Array:
        """Attention GPUs per FFN GPU with the most tokens per GPU (D28), for micro-batches of `batch`."""
        return stages.best_attention_ratio(**self.stage_times(batch, context))

    def decode_step(self, store: Contents, decode_gpus: Scalar) -> Array:
        """Time between two tokens of a sequence [s] of what is in `store`, spread over `decode_gpus`."""
        n, tokens = total(store.requests), step_time(self._with_law(0.0, 0.0, 1.0), store, 1.0)
        batch = most(self.micro_batch(n, decode_gpus), _FEW)
        times, r = self.stage_times(batch, ratio(tokens, n)), jnp.asarray(self.attention_ratio)
        t_ffn = times["ffn_base"] + times["ffn_slope"] * r * batch
        trip = {"t_attention": times["t_attention"], "t_ffn": t_ffn, "t_hop": times["t_hop"]}
        # The longest of the three, from the formula of the throughput.
        longest = batch * r / ((r + 1.0) * stages.afd_throughput(attention_ratio=r, **times))
        flowing = most(self.micro_batches * longest, stages.pingpong_time(**trip, micro_batches=1.0, layers=1.0))
        if not self.barrier:
            return self.layers * flowing
        enough = most(self.micro_batches, stages.micro_batches_needed(**trip))
        drained = stages.pingpong_time(**trip, micro_batches=enough, layers=self.layers)
        return most(drained, self.layers * self.micro_batches * longest)

    def advance(
        self, state: PlantState, arrivals: Arrivals, prefill_gpus: Scalar, decode_gpus: Scalar, dt: Scalar
    ) -> tuple[PlantState, Flows]:
        """One step of `dt` seconds: `fluidq.plant.advance` at this system's decode step."""
        serving = most(decode_gpus, total(state.active.requests) / self.batch)
        plain = self._with_law(self.decode_step(state.active, serving), 0.0, 0.0)
        return advance(state, arrivals, prefill_gpus, decode_gpus, plain, dt)

    def _with_law(self, a: Scalar, b: Scalar, c: Scalar) -> Plant:
        """The plain plant with another step law."""
        fields = {name: getattr(self, name) for name in Plant.__dataclass_fields__}
        return Plant(**{**fields, "t_step_a": a, "t_step_b": b, "t_step_c": c})
