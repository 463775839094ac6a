"""The threshold law, hard and relaxed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies import PARAMETERS, Signals, Thresholds
from fluidq.policies.base import split
from fluidq.simulate import load_of, simulate
from fluidq.workload import default_workload
from tests.helpers import small_fleet, small_plant

POLICY = Thresholds(prefill_up=1.0, prefill_down=0.1, decode_up=0.9, decode_down=0.5, ratio=0.4, step=4.0)
FLEET = small_fleet()


def signals(prefill=0.5, decode=0.7, pending=0.0, gpus=20.0):
    return Signals(prefill, decode, pending, gpus)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (signals(), 20),
        (signals(prefill=1.1), 24),
        (signals(decode=0.95), 24),
        (signals(prefill=0.05, decode=0.4), 16),
        (signals(prefill=0.05), 20),  # one pool low is not enough
        (signals(decode=0.4), 20),
        (signals(prefill=1.0, decode=0.9), 20),  # at a threshold is not over it
        (signals(prefill=0.1, decode=0.5), 20),
        (signals(prefill=5.0, pending=4.0), 20),  # hold while starting
        (signals(prefill=5.0, gpus=38.0), 40),  # the budget
        (signals(prefill=0.0, decode=0.0, gpus=3.0), 2),  # one worker of each pool
    ],
)
def test_the_hard_law_to_the_letter(seen, wanted):
    assert float(POLICY.size(seen, FLEET, None)) == wanted


@pytest.mark.parametrize(("gpus", "pools"), [(20.0, (8, 12)), (2.0, (1, 1)), (3.0, (1, 2)), (21.0, (8, 13))])
def test_the_split_is_integer_and_spends_the_fleet(gpus, pools):
    assert tuple(map(float, split(gpus, POLICY.ratio, FLEET, None))) == pools


def test_coarse_workers_never_exceed_the_fleet():
    fleet = small_fleet(small_plant(prefill_worker=4.0, decode_worker=8.0), budget=96.0)
    for gpus in np.linspace(12, 96, 500):
        for ratio in (0.05, 0.37, 0.62, 0.95):
            p, d = map(float, split(gpus, ratio, fleet, None))
            assert p == int(p) >= 1
            assert d == int(d) >= 1
            assert 4 * p + 8 * d <= gpus + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_relaxed_law_tends_to_the_hard_one(seed):
    rng = np.random.default_rng(seed)
    size, parts = jax.jit(POLICY.size), jax.jit(split)
    worst = []
    for width in (1e-1, 1e-2, 1e-3, 1e-4):
        gaps = []
        for _ in range(60):
            seen = signals(rng.uniform(0, 2), rng.uniform(0, 1.5), rng.choice([0.0, 0.5, 4.0]), rng.integers(2, 40))
            gaps.append(abs(float(size(seen, FLEET, width) - POLICY.size(seen, FLEET, None))))
            gpus = float(rng.uniform(2, 40))
            soft, hard = parts(gpus, POLICY.ratio, FLEET, width), split(gpus, POLICY.ratio, FLEET, None)
            gaps.append(max(abs(float(a - b)) for a, b in zip(soft, hard, strict=True)))
        worst.append(np.mean(gaps))
    assert worst[-1] < 1e-2
    assert worst[-1] < worst[0] / 10


def test_the_closed_loop_of_the_relaxed_law_tends_to_the_hard_one():
    """A whole day: the same trajectory to rounding once the width is below the distances to the thresholds."""
    fleet, load = small_fleet(), load_of(default_workload(seed=0).scaled(1.2), 15.0)
    hard = simulate(fleet, load, POLICY)
    gaps = []
    for width in (0.3, 1e-2, 1e-8):
        soft = simulate(fleet, load, POLICY, width=width)
        gaps.append(float(jnp.mean(jnp.abs(soft.trajectory.requested_gpus - hard.trajectory.requested_gpus))))
    assert gaps[2] < 1e-9
    assert gaps[2] < gaps[0]
    assert float(soft.cost.cost) == pytest.approx(float(hard.cost.cost), rel=1e-9)


@pytest.mark.parametrize("width", [1.0, 0.3, 0.05])
def test_the_relaxed_law_has_finite_gradients_also_where_signals_are_zero(width):
    for seen in (signals(0.0, 0.0), signals(1.0, 0.9), signals(1e-320, 1e-320), signals(1e9, 1e9)):

        def asked(x, seen=seen):
            policy = Thresholds(*x, step=4.0)
            size = policy.size(seen, FLEET, width)
            return size + split(size, policy.ratio, FLEET, width)[0]

        x = jnp.array([getattr(POLICY, name) for name in PARAMETERS])
        assert np.all(np.isfinite(np.asarray(jax.jacfwd(asked)(x))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prefill_down": 2.0}, "prefill_down is 2.0; it must be below prefill_up"),
        ({"decode_down": 0.9}, "decode_down is 0.9; it must be below decode_up"),
        ({"decode_down": -0.1}, "decode_down is -0.1"),
        ({"ratio": 1.0}, "ratio is 1.0"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"step": 0.0}, "step is 0.0"),
        ({"prefill_up": float("inf")}, "prefill_up is inf"),
    ],
)
def test_bad_parameters_are_named(changes, words):
    values = {name: getattr(POLICY, name) for name in (*PARAMETERS, "step")}
    with pytest.raises(ValueError, match=words):
        Thresholds(**{**values, **changes})
