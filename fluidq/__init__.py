"""Differentiable fluid-queue models of disaggregated prefill and decode."""

import jax

# Seconds over days next to nanosecond steps need float64; this is the one place that asks for it.
jax.config.update("jax_enable_x64", True)
