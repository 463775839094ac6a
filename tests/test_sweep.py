"""Many runs at once: the same as one by one, in blocks, on threads, with either gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies import Thresholds
from fluidq.simulate import load_of, simulate
from fluidq.space import make_space
from fluidq.sweep import sweep
from fluidq.workload import default_workload
from tests.helpers import small_fleet

POLICY = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)
SPACE = make_space(POLICY)
LOAD = load_of(default_workload(seed=1).slice(0, 3600).scaled(1.5), 15.0)


def cost(u):
    policy, _ = SPACE.at(u)
    return simulate(small_fleet(), LOAD, policy, width=0.7, record=False).cost.cost


POINTS = SPACE.start()[None] + 0.3 * jax.random.normal(jax.random.key(0), (11, 5))


@pytest.fixture(scope="module")
def one_by_one():
    f = jax.jit(cost)
    return np.array([f(u) for u in POINTS])


@pytest.mark.parametrize(("block", "threads"), [(None, None), (4, 2), (1, 1), (11, 3)])
def test_a_sweep_is_the_loop_over_its_points(block, threads, one_by_one):
    costs = sweep(cost, POINTS, block=block, threads=threads)
    np.testing.assert_allclose(np.asarray(costs), one_by_one, rtol=1e-12)
    again = sweep(cost, POINTS, block=block, threads=threads)
    assert np.array_equal(np.asarray(costs), np.asarray(again)), "same bits"


def test_both_gradients_are_those_of_each_point(one_by_one):
    forward = sweep(cost, POINTS, gradient="forward", block=4)
    reverse = sweep(cost, POINTS, gradient="reverse", block=4)
    chosen = sweep(cost, POINTS, gradient="auto", block=4)
    assert np.array_equal(np.asarray(chosen[1]), np.asarray(forward[1])), "five inputs are few"
    expected = jax.jit(jax.jacfwd(cost))(POINTS[3])
    for values, slopes in (forward, reverse):
        np.testing.assert_allclose(np.asarray(values), one_by_one, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(slopes[3]), np.asarray(expected), rtol=1e-9)


def test_trees_of_points_keep_their_shape():
    fleets = jnp.linspace(0.5, 2.0, 5)
    out = sweep(lambda x: {"twice": 2 * x["a"], "b": x["b"]}, {"a": fleets, "b": fleets[:, None]}, block=2)
    assert out["twice"].shape == (5,)
    assert out["b"].shape == (5, 1)


@pytest.mark.parametrize(
    ("points", "changes", "words"),
    [
        ({"a": jnp.ones(3), "b": jnp.ones(4)}, {}, "one leading axis"),
        (jnp.ones(()), {}, "one leading axis"),
        (jnp.ones((0, 2)), {}, "no points"),
        (jnp.ones(3), {"gradient": "backward"}, "unknown gradient 'backward'"),
        (jnp.ones(3), {"block": 0}, "block is 0"),
    ],
)
def test_bad_points_are_named(points, changes, words):
    with pytest.raises(ValueError, match=words):
        sweep(lambda x: x, points, **changes)
