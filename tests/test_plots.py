"""One call draws any result, on its own axes or on those given."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import polars
import pytest

import fluidq as fq
from fluidq import plots
from fluidq._errors import InputError
from fluidq._run_log import Logged
from fluidq.certificate import Certificate
from fluidq.clairvoyant import Bound
from fluidq.policies import Thresholds
from fluidq.scenario import build_case
from fluidq.study import Study
from fluidq.workload import default_workload
from tests.helpers import small_fleet

LOAD = default_workload(seed=0).slice(0, 1800)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def results():
    fleet = small_fleet()
    run = fq.simulate(fleet, LOAD, Thresholds())
    price = {"worth": 3.0, "error": 0.5, "label": "cold start", "per": "1 s less"}
    columns = {"policy": ["a", "a", "b"], "fleet.cold_start": [30.0, 60.0, 30.0], "cost": [1.0, 2.0, 3.0]}
    table = polars.DataFrame(columns)
    named = lambda kind, **fields: type(kind.__name__, (), fields)()  # noqa: E731
    hard = {"gpu_hours": 4.0, "slo_loss": 1.0, "lost_flow": 0.0, "stalled_flow": 0.5, "churn": 0.0}
    return {
        "plan": fq.size(build_case({"workload": {"days": 0.05}}).deployment, isl=4096, osl=1024, gpus=64),
        "run": run,
        "trajectory": run.trajectory,
        "comparison": fq.compare(fleet, LOAD, ["thresholds", "static"], progress=False),
        "log": Logged(np.ones((3, 2)), [(3, 0.5)], ("x",)),
        "study": named(Study, table=table, parameters=("fleet.cold_start",), units={"fleet.cold_start": "s"}),
        "prices": named(fq.sensitivity.Sensitivity, prices={"cold_start": named(Thresholds, **price)}),
        "certificate": named(
            Certificate, tuning={"before": hard, "after": {**hard, "slo_loss": 0.1}}, bound_after=3.0, verdict="holds"
        ),
        "bound": named(Bound, prefill_gpus=np.ones(5), decode_gpus=np.ones(5), interval=15.0, value=12.0),
    }


KINDS = ("plan", "run", "trajectory", "comparison", "log", "study", "prices", "certificate", "bound")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_drawn_with_units_and_returns_its_axes(results, kind):
    _, own = plt.subplots()
    ax = plots.plot(results[kind], ax=own)
    assert ax is own
    assert ax.get_xlabel()
    assert ax.has_data()
    fresh = plots.plot(results[kind])
    assert fresh is not own


def test_the_plan_shows_its_best_split_where_it_is(results):
    plan = results["plan"]
    ax = plots.plot(plan)
    marked = [line for line in ax.lines if line.get_marker() == "D"]
    assert marked[0].get_xydata()[0] == pytest.approx((plan.best.prefill_gpus / plan.gpus, plan.best.throughput))
    # The two limits cross at phi, at the balanced throughput.
    assert max(ax.lines[2].get_ydata()) == pytest.approx(plan.balanced_throughput, rel=0.01)


def test_a_bar_is_as_long_as_the_cost(results):
    ax = plots.plot(results["comparison"])
    rows = results["comparison"].rows()
    ends = {}
    for bars in ax.containers:
        for patch in bars:
            ends[patch.get_y()] = max(ends.get(patch.get_y(), 0.0), patch.get_x() + patch.get_width())
    assert sorted(ends.values()) == pytest.approx(sorted(row["cost"] for row in rows))


def test_what_has_no_picture_and_what_lacks_its_data_is_refused(results):
    with pytest.raises(InputError, match="result is 'float'"):
        plots.plot(1.0)
    with pytest.raises(InputError, match="record=True"):
        plots.plot(fq.simulate(small_fleet(), LOAD, Thresholds(), record=False))
    with pytest.raises(InputError, match="column is 'coast'"):
        plots.plot(results["study"], y="coast")
    with pytest.raises(InputError, match="x is None"):
        plots.plot(results["study"].table)
    assert plots.plot(results["study"].table, x="fleet.cold_start", log=True).get_yscale() == "log"
    assert dataclasses.is_dataclass(Study)
