"""The network as a policy: sizes for the recent load untrained, keeps still without samples, learns by its gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq._errors import InputError
from fluidq.policies import Neural
from fluidq.policies.facts import facts, mean_mix
from fluidq.simulate import Load, Sampling, load_of, simulate
from fluidq.space import make_space
from fluidq.tune import Settings, tune
from fluidq.workload import default_workload
from tests.helpers import small_fleet

FLEET = small_fleet()
LOAD = default_workload(seed=0).slice(8 * 3600, 9 * 3600)
SILENT = dataclasses.replace(Neural.make(), network=jax.tree.map(lambda x: 0.0 * x if hasattr(x, "dtype") else x,
                                                                 Neural.make().network))  # fmt: skip


def steady(rate: float = 20.0, ticks: int = 240) -> Load:
    n = jnp.full((ticks,), rate * 15.0)
    return Load(n, n * 1000.0, n * 1000.0, n * 200.0)


def test_untrained_it_sizes_for_the_recent_load_with_its_headroom():
    """20 req/s of 1,000 tokens at 10,000 tok/s are 2 prefill workers; times e^headroom, rounded up."""
    for headroom, workers in ((0.0, 2.0), (0.3, 3.0), (1.0, 6.0)):
        policy = dataclasses.replace(SILENT, headroom=headroom)
        run = simulate(FLEET, steady(), policy)
        assert float(run.trajectory.prefill_gpus[-1]) == workers


def test_the_relaxed_form_goes_to_the_hard_one():
    hard = float(simulate(FLEET, LOAD, Neural.make(), record=False).cost.cost)
    relaxed = [simulate(FLEET, LOAD, Neural.make(), width=w, record=False).cost.cost for w in (1.0, 1e-5)]
    gaps = [abs(float(cost) - hard) for cost in relaxed]
    assert gaps[1] < 0.01 * hard
    assert gaps[1] < gaps[0]


def test_without_samples_the_fleet_stays():
    missing = np.ones(240, bool)
    run = simulate(FLEET, steady(), Neural.make(), sampling=Sampling(missing=missing))
    assert float(run.actions) == 0.0
    assert np.isfinite(float(run.cost.cost))
    some = np.arange(240) % 3 == 0
    assert np.isfinite(float(simulate(FLEET, steady(), Neural.make(), sampling=Sampling(missing=some)).cost.cost))


@pytest.mark.parametrize("load", [load_of(LOAD, 15.0), Load(*(jnp.zeros(100) for _ in range(4)))], ids=["day", "none"])
def test_its_gradient_is_finite_and_the_same_in_both_modes(load):
    space = make_space(Neural.make(hidden=2))

    def cost(u):
        return simulate(FLEET, load, space.at(u)[0], width=0.5, record=False, checkpoint=True).cost.cost

    u = space.start()
    forward, reverse = np.asarray(jax.jit(jax.jacfwd(cost))(u)), np.asarray(jax.jit(jax.jacrev(cost))(u))
    assert np.all(np.isfinite(forward))
    np.testing.assert_allclose(reverse, forward, rtol=1e-6, atol=1e-9 * max(1.0, np.abs(forward).max()))


def test_it_learns():
    slow = {"learning_rate": 0.15, "finish": 0, "estimator": "pathwise"}
    settings = Settings(steps=16, starts=1, judge_every=4, realisations=0, unseen=1, **slow)
    result = tune(FLEET, LOAD, Neural.make(hidden=3), settings=settings, progress=False)
    assert len(result.space.labels) > 24  # more than forward mode is meant for
    assert result.hard_after["cost"] < result.hard_before["cost"]
    assert result.gradient_check.max_relative_error < 1e-3


def test_it_states_how_late_it_is_and_needs_a_unit():
    f = facts(Neural.make(), FLEET, mean_mix(LOAD))
    assert f.detection >= 60.0
    with pytest.raises(InputError, match="hidden is 0"):
        Neural.make(hidden=0)
