"""The watched buffer as a search problem: exact derivatives, and the estimators on a problem whose truth is known."""

import numpy as np
import pytest

from fluidq import events, watched
from fluidq._errors import InputError
from fluidq._merit import Merit
from fluidq.estimators import ESTIMATORS, NAMES, Search, choose, measure
from fluidq.space import make_space
from fluidq.tune import Settings
from fluidq.watched import Watched, WatchedRows, tune_watched

EDGES, FLOW = tuple(np.arange(21) * 100.0), tuple(3.0 + 2.0 * np.sin(np.arange(20.0)))
LAW = Watched(
    EDGES, FLOW, C=300.0, Q0=110.0, mu=1.5, workers=1.0, theta_h=160.0, theta_l=60.0, tau=30.0,
    overflow_price=1e-3, starved_price=1e-3,
)  # fmt: skip
QUIET = Settings(steps=30, starts=3, judge_every=5, realisations=0)


def search_of(law, free=("theta_l", "theta_h"), **kwargs):
    space = make_space(law, free=free)
    return Search(WatchedRows(space), Merit(None, 1.0, 1.0), (0,), **kwargs), np.asarray(space.start())


def test_the_cost_is_that_of_the_events():
    path = events.run(np.asarray(EDGES), np.asarray(FLOW), C=300.0, Q0=110.0, mu=1.5, workers=1.0, theta_h=160.0,
                      theta_l=60.0, tau=30.0)  # fmt: skip
    paid = float(path.worker_seconds + path.starting_seconds) / 3600
    assert float(LAW.cost()) == pytest.approx(paid + 1e-3 * float(path.overflow + path.starved), rel=1e-12)


@pytest.mark.parametrize("name", ["theta_l", "theta_h", "Q0", "C", "tau"])
def test_the_event_derivative_is_that_of_differences_in_every_parameter(name):
    search, u = search_of(LAW, free=(name,))
    report = measure("events", search, u, 1.0, search.merit.duals(1))
    h = 1e-6
    hard = search.rows.hard(np.array([u + h, u - h]))[:, 0]
    assert report.gradient[0] == pytest.approx((hard[0] - hard[1]) / (2 * h), rel=1e-5, abs=1e-9)
    assert report.health == "healthy"


def test_smoothing_agrees_with_the_events_where_the_path_is_smooth():
    search, u = search_of(LAW, samples=64, sigma=0.005)
    exact = measure("events", search, u, 1.0, search.merit.duals(1))
    cloud = measure("smoothed", search, u, 1.0, search.merit.duals(1))
    assert np.all(np.abs(cloud.gradient - exact.gradient) < 4 * cloud.error + 0.05 * np.abs(exact.gradient))
    assert cloud.runs == 1 + 2 * 64
    assert exact.runs == 1 + 2


def test_common_random_numbers_give_the_same_cloud_to_every_start():
    search, u = search_of(LAW)
    both = ESTIMATORS["smoothed"](search, np.stack([u, u]), 1.0, search.merit.duals(2), 3)
    np.testing.assert_array_equal(both.gradient[0], both.gradient[1])
    other = ESTIMATORS["smoothed"](search, u[None], 1.0, search.merit.duals(1), 4)
    assert np.any(other.gradient[0] != both.gradient[0])


def test_few_samples_give_the_mean_and_its_error():
    search, u = search_of(LAW, samples=3)
    got = ESTIMATORS["smoothed"](search, u[None], 1.0, search.merit.duals(1), 0)
    assert np.all(got.variance > 0)


def test_the_default_is_the_exact_one_and_says_why():
    search, u = search_of(LAW)
    name, why, reports = choose("auto", search, u, 1.0, search.merit.duals(1))
    assert name == "events"
    assert "watched continuously" in why
    assert np.all(np.isfinite(reports[0].gradient))


def test_tuning_lowers_the_cost_by_exact_derivatives_and_by_smoothing():
    start = float(LAW.cost())
    exact, descent = tune_watched(LAW, QUIET)
    assert float(exact.cost()) < 0.95 * start
    assert 0 < exact.theta_l < exact.theta_h
    assert descent.estimator == "events"
    smooth, _ = tune_watched(LAW, Settings(**{**vars(QUIET), "estimator": "smoothed"}))
    assert float(smooth.cost()) < 0.95 * start


def test_the_buffer_the_stock_and_the_hold_can_be_tuned():
    held = Watched(**{**vars(LAW), "pending": "hold", "hold": 60.0, "tau": 5.0})
    better, _ = tune_watched(held, QUIET, free=("hold", "Q0", "theta_h"))
    assert float(better.cost()) <= float(held.cost())
    assert 0 < better.Q0 < 300.0
    with pytest.raises(InputError, match="does not read it"):
        tune_watched(LAW, QUIET, free=("hold",))


def test_a_law_that_never_acts_has_no_gradient_and_says_so():
    far = Watched(**{**vars(LAW), "theta_h": 1e6, "theta_l": 1e-9, "C": 1e7, "Q0": 5e4})
    with pytest.raises(InputError, match="zero in every free parameter"):
        tune_watched(far, QUIET)


@pytest.mark.parametrize("name", ["pathwise"])
def test_an_estimator_that_the_problem_lacks_is_refused(name):
    with pytest.raises(InputError, match="'events'"):
        tune_watched(LAW, Settings(**{**vars(QUIET), "estimator": name}))


def test_names_and_constraints():
    search, u = search_of(LAW)
    with pytest.raises(InputError, match="'smoothed'"):
        choose("smooth", search, u, 1.0, search.merit.duals(1))
    with pytest.raises(InputError, match=r"tune\.attainment"):
        tune_watched(LAW, Settings(attainment=0.9))
    assert set(NAMES) == {"auto", *ESTIMATORS}
    assert watched.WatchedRows.exact
