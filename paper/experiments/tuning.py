"""The threshold law tuned on the embedded day with the package's own settings, and its certificate.

The runs that the figures draw are made again from the parameters that are kept here.
"""

import functools
from typing import Any

from fluidq.policies import Thresholds
from fluidq.scenario import Case, build_case
from fluidq.simulate import Trajectory, load_of, simulate
from fluidq.tune import hard_cost, parameters, tune
from paper.measure import Experiment

UNSEEN = 8


@functools.cache
def case() -> Case:
    """The embedded day."""
    return build_case({"tune": {"unseen": UNSEEN}})


def compute() -> dict[str, Any]:
    """The search, its hard costs, and what the certificate says; about a minute on two cores."""
    c = case()
    result = tune(c.fleet, c.workload, c.policy, c.objective, c.settings, progress=False)
    kept = result.certificate.to_dict()
    return {
        "before": {"policy": parameters(result.before), "hard": result.hard_before},
        "after": {"policy": parameters(result.after), "hard": result.hard_after},
        "unseen before": result.unseen_before.tolist(),
        "unseen after": result.unseen_after.tolist(),
        "gradient error": result.gradient_check.max_relative_error,
        "estimator": result.estimator,
        "runs": result.runs,
        "steps": len(result.history),
        "starts": result.settings.starts,
        "screened": result.settings.screen,
        "generations": result.settings.finish,
        "merits": [
            result.judged[0][1],
            min(cost for step, cost in result.judged if step <= len(result.history)),
            result.judged[-1][1],
        ],
        "not taken": kept["search"]["steps_not_taken"],
        "width start": result.settings.width_start,
        "width end": result.settings.width_end,
        "certificate": kept,
    }


def policy(side: str) -> Thresholds:
    """The kept law, "before" or "after" the search."""
    return Thresholds(**EXPERIMENT.values()[side]["policy"])


def replayed(side: str) -> dict[str, float]:
    """The hard cost of the kept law, computed now: what the kept one must be."""
    c = case()
    return hard_cost(c.fleet, load_of(c.workload, c.fleet.interval), policy(side), c.objective)


def trajectories() -> dict[str, Trajectory]:
    """The day under the law before and after the search, both on the hard law."""
    c, runs = case(), {}
    for label, side in (("untuned", "before"), ("tuned", "after")):
        run = simulate(c.fleet, c.workload, policy(side), c.objective)
        assert run.trajectory is not None  # recording is the default
        runs[label] = run.trajectory
    return runs


EXPERIMENT = Experiment("tuning", "the threshold law tuned on the embedded day", __name__, compute)
