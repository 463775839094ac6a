"""The engines against each other: the tick engine and diffrax on a buffer that fills; the event engine and D17.

The buffer fills under back-pressure, is held full and drains again; every store is compared at the end of each control
interval, as a share of its largest content.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluidq import events
from fluidq.continuous import solve
from fluidq.figures import _limit_cycle
from fluidq.fleet import Fleet
from fluidq.formulas import control
from fluidq.plant import Plant
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, simulate
from paper.measure import Experiment

INTERVAL = 15.0
RATES = [20.0] * 7 + [2.0] * 9  # requests per second, by interval
POOLS = (4.0, 1.0)
PARTS = (10, 20, 40, 80)
RELAX = 0.0025
RELAY = {"theta_h": 13.0, "theta_l": 11.5, "tau": 3.0, "fill": 1.0, "drain": 0.5}


class Fixed(Policy):
    """Two pools that stay as they are."""

    KEEPS_BUDGET = True
    prefill: Any = 1.0
    decode: Any = 1.0

    def initial(self, fleet: Fleet, width: Any) -> Asked:
        return Asked(self.prefill, self.decode)

    def decide(self, memory: Any, reading: Any, fleet: Fleet, width: Any) -> tuple[Any, Asked]:
        return memory, Asked(self.prefill, self.decode)


def fleet(interval: float = INTERVAL) -> Fleet:
    """A small plant whose buffer holds some thirty requests."""
    plant = Plant(
        r_P=10_000.0,
        batch=64.0,
        t_step_a=0.02,
        t_step_b=1e-4,
        t_step_c=8e-9,
        kappa=95e3,
        capacity=3e9,
        nic_prefill=50e9,
        nic_decode=45e9,
        fabric=float("inf"),
        prefill_worker=1.0,
        decode_worker=1.0,
    )
    made = Fleet.make(
        plant, cold_start=40.0, budget=40.0, initial_gpus=12.0, request_gpu_seconds=0.2, interval=interval
    )
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=float), made)  # one program for all step lengths


def load(parts: int = 1) -> Load:
    """The rates above, each interval cut into `parts`; a thousand tokens in, two hundred out."""
    n = np.repeat(np.asarray(RATES), parts) * INTERVAL / parts
    return Load(*(jnp.asarray(x) for x in (n, n * 1000.0, n * 1000.0, n * 200.0)))


def stepped(parts: int) -> np.ndarray:
    """Backlog [tokens], buffer [tokens] and batch [sequences] of the tick engine at the ends of the intervals."""
    run = simulate(fleet(INTERVAL / parts), load(parts), Fixed(*POOLS))
    t = run.trajectory
    assert t is not None
    kappa = float(fleet().plant.kappa)
    return np.stack([np.asarray(x) for x in (t.backlog, t.buffer_bytes / kappa, t.active)])[:, parts - 1 :: parts]


def cycle(v: Any) -> Any:
    """Amplitude and period of the relay's cycle, by the event engine, from theta_h, theta_l, tau, fill, drain."""
    high, low, tau, fill, drain = v
    each = fill + drain
    given: dict[str, Any] = {"theta_h": high, "theta_l": low, "tau": tau, "C": 30.0, "Q0": 11.0}
    path = events.run(
        300.0, P=each + fill, mu=each, workers=1.0, min_workers=1.0, max_workers=2.0, max_events=512, **given
    )
    turn = path.cycle()
    return jnp.stack([turn.amplitude, turn.period])


def closed(v: Any) -> Any:
    """The same by D17."""
    both = dict(zip(RELAY, v, strict=True))
    return jnp.stack([control.cycle_amplitude(**both), control.cycle_period(**both)])


def compute() -> dict[str, Any]:
    """Errors of the tick engine by step length, their order; errors of the event engine and of its derivatives."""
    states = solve(fleet(), load(), POOLS, relax=RELAX, rtol=1e-7).states
    rows = [states.computed, states.buffer.stored, states.active.requests]
    reference = np.stack([np.asarray(x) for x in rows])[:, 1:]
    most = np.maximum(reference.max(axis=1), 1.0)[:, None]
    errors = [float(np.max(np.abs(stepped(parts) - reference) / most)) for parts in PARTS]
    v = jnp.array(list(RELAY.values()))
    exact, slopes = closed(v), jax.jacfwd(closed)(v)
    found = {mode: getattr(jax, mode)(cycle)(v) for mode in ("jacfwd", "jacrev")}
    scale = jnp.max(jnp.abs(slopes))
    return {
        "steps": [INTERVAL / parts for parts in PARTS],
        "errors": errors,
        "order": float(np.polyfit(-np.arange(len(errors)) * np.log(2.0), np.log(errors), 1)[0]),
        "cycle error": float(jnp.max(jnp.abs(cycle(v) / exact - 1))),
        "slope error": max(float(jnp.max(jnp.abs(x - slopes)) / scale) for x in found.values()),
        "relay marks": float(_limit_cycle.compute().worst_error),
    }


EXPERIMENT = Experiment("engines", "the engines against each other", __name__, compute)
