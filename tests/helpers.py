"""What several tests share: a small plant, where the real data lies, and central differences."""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.plant import Plant
from fluidq.simulate import Fleet

DATA = Path(__file__).parents[2] / "shared" / "data"


def data(name: str) -> Path:
    """A file of the shared data folder; the test is skipped where the folder is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name}: the data folder is not beside this checkout")
    return path


def small_plant(**changes) -> Plant:
    """Ten thousand prefill tokens per second and GPU, 64 decode slots, a buffer of 20 GB."""
    fields = {
        "r_P": 10_000.0,
        "batch": 64.0,
        "t_step_a": 0.02,
        "t_step_b": 1e-4,
        "t_step_c": 8e-9,
        "kappa": 95e3,
        "capacity": 20e9,
        "nic_prefill": 50e9,
        "nic_decode": 45e9,  # not a tie with the other end: central differences average the two sides
        "fabric": float("inf"),
        "prefill_worker": 1.0,
        "decode_worker": 1.0,
    }
    return Plant(**{**fields, **changes})


def small_fleet(plant: Plant | None = None, **changes) -> Fleet:
    """Forty GPUs at most, twelve at the start, 40 s of cold start."""
    fields = {"cold_start": 40.0, "budget": 40.0, "initial_gpus": 12.0, "request_gpu_seconds": 0.2}
    return Fleet.make(plant or small_plant(), **{**fields, **changes})


def central(f: Callable, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function, the step relative to each coordinate."""
    x = np.asarray(x, dtype=float)
    out = []
    for i in range(x.size):
        h = step * max(1.0, abs(x[i]))
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        out.append((float(f(jnp.asarray(up))) - float(f(jnp.asarray(down)))) / (2 * h))
    return np.array(out)
