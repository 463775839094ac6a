"""The merit of a search: mean and worst share over draws, and the constraint's augmented Lagrangian."""

import numpy as np
import pytest

from fluidq._merit import ATTAINED, COST, PAID, Duals, Merit

RNG = np.random.default_rng(0)


def outcomes(starts=3, draws=4):
    out = RNG.uniform(1.0, 2.0, size=(starts, draws, 3))
    out[..., ATTAINED] = RNG.uniform(0.5, 1.0, size=(starts, draws))
    return out


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3, 0.05])
def test_the_worst_share_is_the_mean_of_the_largest(share):
    """Against the definition: min over a of a + E(x - a)+ / share (Rockafellar and Uryasev)."""
    x = outcomes()
    got, _ = Merit(None, share, 1.0)(x, Merit(None, share, 1.0).duals(3))
    for row, value in zip(x[..., COST], got, strict=True):
        best = min(a + np.mean(np.maximum(row - a, 0.0)) / share for a in row)
        assert value == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("attainment", [None, 0.9])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_its_derivatives_are_those_of_differences(attainment, share):
    merit, x = Merit(attainment, share, 5.0), outcomes()
    duals = Duals(np.array([0.0, 0.5, 2.0]), np.array([10.0, 30.0, 1.0]))
    value, weights = merit(x, duals)
    h = 1e-6
    for place in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[place] += h
        down[place] -= h
        difference = (merit(up, duals)[0] - merit(down, duals)[0])[place[0]] / (2 * h)
        assert weights[place] == pytest.approx(difference, rel=1e-5, abs=1e-7)
    assert value.shape == (3,)


def test_the_multiplier_finds_the_constrained_optimum_of_a_toy():
    """min x^2 subject to attained = x >= 0.5: x = 0.5, multiplier 2 x = 1 (in units of the scale)."""
    merit = Merit(0.5, 1.0, 1.0)
    duals, x, gaps = merit.duals(1), 0.1, None
    for _ in range(60):
        for _ in range(200):
            _, weights = merit(np.array([[[x * x, x * x, x]]]), duals)
            slope = weights[0, 0, PAID] * 2 * x + weights[0, 0, ATTAINED]
            x -= 0.02 * slope
        duals, gaps = merit.tightened(duals, np.array([[[x * x, x * x, x]]]), gaps)
    assert x == pytest.approx(0.5, abs=1e-3)
    assert duals.multiplier[0] == pytest.approx(1.0, rel=1e-2)


def test_what_breaks_the_constraint_ranks_after_everything_that_keeps_it():
    merit = Merit(0.9, 1.0, 10.0)
    cheap_but_late, dear = np.array([[[1.0, 1.0, 0.89]]]), np.array([[[1.0, 900.0, 0.91]]])
    assert merit.hard(cheap_but_late)[0] > merit.hard(dear)[0] == 900.0
