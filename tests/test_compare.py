"""Laws side by side: each row is that law alone, cheapest first; what cannot run is listed with its reason."""

import argparse
import json

import matplotlib as mpl
import numpy as np
import pytest

from fluidq import InputError, plot, simulate
from fluidq.commands import compare as command
from fluidq.compare import Comparison, compare
from fluidq.io.policies import write_policy
from fluidq.laws import LAWS, law
from fluidq.objective import Objective
from fluidq.policies.dynamo import DynamoPlanner
from fluidq.simulate import load_of
from fluidq.workload import default_workload
from tests.helpers import small_fleet, small_plant

mpl.use("Agg")

KEYS = {"policy", "gpu_hours", "slo_loss", "lost_flow", "stalled_flow", "actions", "cost"}


@pytest.fixture(scope="module")
def fleet():
    return small_fleet(small_plant(kv_capacity=200e3))


@pytest.fixture(scope="module")
def load(fleet):
    """Three hours around the morning rise, small enough for forty GPUs."""
    day = default_workload(window=fleet.interval)
    return load_of(day.slice(6 * 3600.0, 9 * 3600.0).scaled(0.5), fleet.interval)


@pytest.fixture(scope="module")
def result(fleet, load):
    return compare(fleet, load, progress=False)


def test_every_law_runs(result):
    assert set(result.runs) == set(LAWS)
    assert result.refused == {}


def test_the_cheapest_is_first_and_costs_add_up(result):
    rows = result.rows()
    costs = [row["cost"] for row in rows]
    assert costs == sorted(costs)
    assert [row["policy"] for row in rows] == list(result.runs)
    for row in rows:
        parts = row["gpu_hours"] + row["slo_loss"] + row["lost_flow"] + row["stalled_flow"]
        assert row["cost"] == pytest.approx(parts, rel=1e-9)
        assert row["gpu_hours"] > 0


@pytest.mark.parametrize("name", ["balance", "hpa"])
def test_a_row_is_the_law_alone(result, fleet, load, name):
    alone = simulate(fleet, load, law(name, fleet), Objective())
    row = next(row for row in result.rows() if row["policy"] == name)
    assert row["cost"] == pytest.approx(float(alone.cost.cost), rel=1e-12)
    assert row["actions"] == float(alone.actions)
    assert row["time_full"] == float(alone.full)


def test_the_json_has_the_keys_that_others_read(result):
    data = json.loads(json.dumps(result.to_dict()))
    assert len(data["policies"]) == len(LAWS)
    for row in data["policies"]:
        assert row.keys() >= KEYS
        assert all(np.isfinite(value) for key, value in row.items() if key not in ("policy", "bound_ratio"))
        assert row["bound_ratio"] is None  # not asked for


def test_the_table_has_a_line_for_each(result):
    lines = str(result).splitlines()
    assert lines[0].split()[:2] == ["policy", "cost"]
    assert [line.split()[0] for line in lines[1 : 1 + len(result.runs)]] == list(result.runs)
    assert lines[1 + len(result.runs) :] == list(result.notes)


def test_kv_memory_that_cannot_fill_is_said(result, fleet, load):
    """64 sequences of the mean length in 200,000 tokens of memory."""
    (note,) = result.notes
    share = float(note.split("fills ")[1].split("%")[0]) / 100
    n = float(np.sum(load.requests))
    tokens = float(np.sum(load.stored) + 0.5 * np.sum(load.output)) / n
    assert share == pytest.approx(64 * tokens / float(fleet.plant.kv_capacity), abs=0.01)
    tight = fleet.with_plant(kv_capacity=64 * tokens)
    assert compare(tight, load, ["static"], progress=False).notes == ()


def test_the_picture_draws(result, fleet, tmp_path):
    names = list(result.runs)[:3]
    few = Comparison({name: result.runs[name] for name in names}, {}, {})
    axes = plot.comparison(few, fleet, Objective())
    assert axes.shape == (3, 4)
    assert [axes[row, 0].get_ylabel().split("\n")[0] for row in range(3)] == names
    path = plot.save(axes, tmp_path / "compare.png")
    assert path.stat().st_size > 10_000


def test_a_law_that_the_fleet_refuses_is_listed_and_the_others_run(load):
    bare = small_fleet()  # its plant does not say how much KV it holds
    result = compare(bare, load, ["static", "wva-v1"], progress=False)
    assert list(result.runs) == ["static"]
    assert "kv_capacity" in result.refused["wva-v1"]
    assert "wva-v1: not run: " in str(result)
    assert result.to_dict()["refused"] == result.refused
    with pytest.raises(InputError, match="no law could run: wva-v1"):
        compare(bare, load, ["wva-v1"], progress=False)


def test_laws_of_ones_own_by_any_name(fleet, load, result):
    mine = compare(fleet, load, {"mine": law("static", fleet)}, progress=False)
    assert float(mine.runs["mine"].cost.cost) == float(result.runs["static"].cost.cost)


def test_unknown_names_get_the_nearest(fleet, load):
    with pytest.raises(InputError, match="did you mean 'heteroscale'"):
        compare(fleet, load, ["heteroscal"], progress=False)
    with pytest.raises(InputError, match="at least one law"):
        compare(fleet, load, [], progress=False)


def run(capsys, *flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    command.add_arguments(parser)
    code = command.run(parser.parse_args(flags))
    return code, capsys.readouterr().out


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text("[workload]\ndays = 0.1\n")
    return str(path)


def test_the_verb_takes_policy_files_as_names(capsys, tmp_path, scenario):
    path = tmp_path / "planner.yaml"
    write_policy(DynamoPlanner(max_gpu_budget=512.0), path)
    flags = ("--scenario", scenario, "--policies", f"{path},dynamo,static", "--json", "--out", str(tmp_path / "out"))
    code, out = run(capsys, *flags)
    data = json.loads(out)
    assert code == 0
    rows = {row["policy"]: row for row in data["policies"]}
    assert set(rows) == {str(path), "dynamo", "static"}
    assert all(row.keys() >= KEYS for row in rows.values())
    # The file states what the name does: the same law, the same budget.
    assert rows[str(path)] | {"policy": ""} == rows["dynamo"] | {"policy": ""}
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == data
    assert (tmp_path / "out" / "compare.png").stat().st_size > 5_000


def test_what_a_policy_file_holds_and_fluidq_cannot_represent_is_said(capsys, tmp_path, scenario):
    path = tmp_path / "planner.yaml"
    write_policy(DynamoPlanner(max_gpu_budget=512.0), path)
    path.write_text(path.read_text() + "tick_max_seconds: 3\n")
    _, out = run(capsys, "--scenario", scenario, "--policies", f"{path},static", "--json")
    (said,) = [note for note in json.loads(out)["notes"] if "tick_max_seconds" in note]
    assert said.startswith(f"{path}: not represented: tick_max_seconds = 3")


def test_the_verb_lists_and_refuses(capsys, tmp_path, scenario):
    _, out = run(capsys, "--list", "--json")
    assert [row["policy"] for row in json.loads(out)] == list(LAWS)
    with pytest.raises(InputError, match="did you mean 'keda'"):
        run(capsys, "--scenario", scenario, "--policies", "kedda")
    with pytest.raises(InputError, match="does not exist"):
        run(capsys, "--scenario", scenario, "--policies", "dynamo,planner.yaml")
    with pytest.raises(InputError, match="--seed is -1"):
        run(capsys, "--seed", "-1")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("optimization_target: load\nprefill_scale_up_queue_tokens: 5\n")
    with pytest.raises(InputError, match=r"wrong\.yaml: .*given: target 'load'"):
        run(capsys, "--scenario", scenario, "--policies", str(wrong))


def test_every_cost_is_shown_over_the_bound_where_it_is_asked_for():
    load = default_workload(seed=0).slice(8 * 3600, 8.5 * 3600)
    result = compare(small_fleet(), load, ["static", "heteroscale"], bound=True, progress=False)
    assert all(row["bound_ratio"] >= 1.0 for row in result.rows())
    assert result.to_dict()["clairvoyant_bound"] == result.bound > 0
    assert "cost / bound" in str(result)
