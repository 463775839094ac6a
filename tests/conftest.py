"""Strictness for every test: float64 on, silent broadcasting and dtype promotion off; programs do not pile up."""

from pathlib import Path

import jax
import matplotlib

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Every compiled program maps memory, and Linux ends a process that asks for more than 65,530 maps.
MANY_MAPS = 20_000
EVERY = 10  # tests between two looks, which take some milliseconds
_run = 0


def pytest_runtest_teardown():
    """Drop all compiled programs where many have piled up."""
    global _run
    _run += 1
    maps = Path("/proc/self/maps")
    if _run % EVERY == 0 and maps.exists() and maps.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


def pytest_make_parametrize_id(val):
    """Bytes by their length: archives carry the time, and every worker must collect the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
