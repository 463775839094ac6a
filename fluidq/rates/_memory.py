"""HBM of a decode GPU: weights, activations and KV, so that the batch is what fits."""

import math

import equinox as eqx
from jaxtyping import Array

from fluidq._errors import refuse
from fluidq._types import Scalar
from fluidq.formulas import requests
from fluidq.rates._interface import Numbers
from fluidq.units import Number, format


class Memory(eqx.Module):
    """What lies in the HBM of a decode GPU.

    Attributes:
        hbm: memory [B/GPU].
        weights: resident weights [B/GPU].
        kv_per_token: KV bytes that the engine holds per token [B/tok] (pages and replicas included).
        activations: reserved for activations, graphs and the runtime [B/GPU].
    """

    hbm: Scalar
    weights: Scalar
    kv_per_token: Scalar
    activations: Scalar = 0.0

    def max_batch(self, context: Numbers) -> Array:
        """Sequences per GPU at mean `context` [tok] that fit (D07), not rounded; inf where they take no room."""
        return requests.hbm_batch(
            H=self.hbm, W=self.weights, A_D=self.activations, kappa_store=self.kv_per_token, theta_ctx=context
        )

    def free(self) -> Scalar:
        """HBM left for KV [B/GPU]; negative where weights and activations alone do not fit."""
        return self.hbm - self.weights - self.activations

    def check(self, batch: Number, context: Number) -> None:
        """Refuse a batch that does not fit.

        Raises:
            InputError: by how much it does not fit, and the largest batch that does.
        """
        if not batch >= 0 or math.isinf(batch):
            raise refuse("batch", batch, "a finite number of sequences per GPU >= 0")
        if not context >= 0:
            raise refuse("context", context, "a number of tokens >= 0")
        free, hbm = float(self.free()), float(self.hbm)
        if free < 0:
            taken = f"weights ({format(float(self.weights), 'bytes')})"
            if float(self.activations):
                taken += f" and activations ({format(float(self.activations), 'bytes')})"
            raise refuse(
                "hbm", format(hbm, "bytes"), f"{format(-free, 'bytes')} more: {taken} per GPU do not fit, before any KV"
            )
        need = float(batch * context * self.kv_per_token)
        if need > free:
            most = math.floor(float(self.max_batch(context)))
            raise refuse(
                "batch",
                batch,
                f"at most {most}: {batch:g} sequences x {context:,.0f} tok x {float(self.kv_per_token):,.0f} B need "
                f"{format(need, 'bytes')} per GPU, {format(need - free, 'bytes')} more than the "
                f"{format(free, 'bytes')} left of {format(hbm, 'bytes')} HBM by weights and activations",
            )
