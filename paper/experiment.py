"""The paper's experiment: a short tuning run on the embedded default day, made once per process.

Thirty steps from two starts keep the whole build under a minute. The hard cost is piecewise constant in the policy, so
what rounding does to the search on another machine stays far below the digits that the paper prints; `numbers.py`
refuses to print a digit that such a change would turn.
"""

import functools
from typing import NamedTuple

from fluidq.scenario import Case, build_case
from fluidq.simulate import Trajectory, simulate
from fluidq.tune import TuneResult, tune

SEARCH = {"steps": 30, "starts": 2, "unseen": 8}


class Experiment(NamedTuple):
    """The case as it was built, and what the search made of it."""

    case: Case
    result: TuneResult


@functools.cache
def experiment() -> Experiment:
    """The tuning run; deterministic, about 15 s on two cores, compilation included."""
    case = build_case({"tune": SEARCH})
    result = tune(case.fleet, case.workload, case.policy, case.objective, case.settings, progress=False)
    return Experiment(case, result)


@functools.cache
def trajectories() -> dict[str, Trajectory]:
    """The day under the policy before and after, both on the hard law."""
    case, result = experiment()
    runs = {}
    for label, policy in (("untuned", result.before), ("tuned", result.after)):
        run = simulate(case.fleet, case.workload, policy, case.objective)
        assert run.trajectory is not None  # recording is the default
        runs[label] = run.trajectory
    return runs
