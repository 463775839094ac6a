"""When a gradient of a closed loop can be used: three laws on one small fleet, examined by `fluidq.health`.

A law that does not see the workers that are starting; the threshold law in its hard form; and the same law relaxed.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fluidq.fleet import Fleet
from fluidq.health import Health, first_share, gradient_health
from fluidq.plant import Plant
from fluidq.policies import PARAMETERS, Thresholds, gates
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import load_of, simulate
from fluidq.workload import default_workload
from paper.measure import Experiment

LAW = {"prefill_up": 0.5, "prefill_down": 0.05, "decode_up": 0.9, "decode_down": 0.5, "ratio": 0.5}
STEP = 4.0


class Blind(Policy):
    """A worker more on every tick on which the queue is over the threshold, one less where it is not."""

    KEEPS_BUDGET = True
    threshold: Any = 1.0

    def start(self, fleet: Fleet, asked: Asked) -> Any:
        return jnp.asarray(asked.prefill, dtype=jnp.float64)

    def decide(self, memory: Any, reading: Any, fleet: Fleet, width: Any) -> tuple[Any, Asked]:
        wait = reading.queue_tokens / (fleet.plant.r_P * reading.prefill_ready)
        workers = jnp.clip(memory + 2.0 * gates.over(wait, self.threshold, width) - 1.0, 1.0, fleet.budget - 8.0)
        return workers, Asked(workers, 8.0)


def fleet(cold_start: float, budget: float, initial: float) -> Fleet:
    """A small plant of single-GPU workers."""
    plant = Plant(
        r_P=10_000.0,
        batch=64.0,
        t_step_a=0.02,
        t_step_b=1e-4,
        t_step_c=8e-9,
        kappa=95e3,
        capacity=20e9,
        nic_prefill=50e9,
        nic_decode=45e9,
        fabric=float("inf"),
        prefill_worker=1.0,
        decode_worker=1.0,
    )
    return Fleet.make(plant, cold_start=cold_start, budget=budget, initial_gpus=initial, request_gpu_seconds=0.2)


def examined() -> dict[str, Health]:
    """The three reports."""
    blind, small = fleet(300.0, 60.0, 20.0), fleet(45.0, 40.0, 12.0)
    day = load_of(default_workload(seed=3).slice(0, 6 * 3600), 15.0)
    two = load_of(default_workload(seed=3).slice(0, 2 * 3600).scaled(1.5), 15.0)
    full = load_of(default_workload(seed=3).scaled(0.7), 15.0)

    def blindly(x: Any, share: float) -> Any:
        return simulate(blind, first_share(day, share), Blind(x[0]), width=1.0, record=False).cost.cost

    def hardly(x: Any, share: float) -> Any:
        law = Thresholds(**{**LAW, "decode_up": x[0]}, step=STEP)
        return simulate(small, first_share(two, share), law, record=False).cost.cost

    def relaxed(x: Any, share: float) -> Any:
        law = Thresholds(**{name: x[i] for i, name in enumerate(PARAMETERS)}, step=STEP)
        return simulate(small, first_share(full, share), law, width=4.0, record=False).cost.cost

    point = np.array([LAW[name] for name in PARAMETERS])
    return {
        "blind": gradient_health(blindly, np.array([1.0]), names=["threshold"], samples=16),
        "hard": gradient_health(hardly, np.array([0.9]), names=["decode_up"], sigma=0.1, shares=(0.5, 1.0)),
        "relaxed": gradient_health(relaxed, point, names=PARAMETERS, sigma=0.003, samples=16, shares=(0.5, 1.0)),
    }


def compute() -> dict[str, Any]:
    """Findings, gradients and how they grow."""
    out: dict[str, Any] = {}
    for name, h in examined().items():
        worst = int(np.argmax(np.abs(h.gradients[-1])))
        out[name] = {
            "findings": list(h.findings),
            "shares": h.shares.tolist(),
            "gradients": h.gradients[:, worst].tolist(),
            "smoothed": float(h.smoothed[worst]),
            "error": float(h.error[worst]),
            "growth": float(h.growth.max()),
            "parameters": len(h.names),
        }
    return out


EXPERIMENT = Experiment("health", "gradients of three closed loops", __name__, compute)
