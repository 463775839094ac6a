"""Strictness for every test: float64 on, silent broadcasting and silent dtype promotion off."""

import jax
import matplotlib

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_make_parametrize_id(val):
    """Bytes by their length: archives carry the time, and every worker must collect the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
