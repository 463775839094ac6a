"""`fluidq bounds --policy`: a law's limits, by name or from a file, next to the flags for one step of the mix."""

import argparse
import json

import pytest

from fluidq import InputError
from fluidq.commands import bounds
from fluidq.laws import LAWS, law
from fluidq.policies.facts import facts
from fluidq.scenario import build_case

PLANNER = """\
optimization_target: load
load_adjustment_interval_seconds: 15
max_gpu_budget: 512
prefill_scale_up_queue_tokens: 10000
prefill_scale_down_queue_tokens: 2000
decode_scale_up_kv_rate: 80
decode_scale_down_kv_rate: 60
advisory: true
"""
SCALED = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: vllm}
spec:
  maxReplicaCount: 20
  triggers:
  - {type: prometheus, metadata: {query: "sum(vllm:num_requests_waiting)", threshold: "5"}}
"""


def run(capsys, *flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    bounds.add_arguments(parser)
    code = bounds.run(parser.parse_args(flags))
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def case():
    return build_case()


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text('[workload]\ndays = 0.1\n[fleet]\ncold_start = "60s"\n')
    return str(path)


@pytest.mark.parametrize("name", ["dynamo", "balance", "ray-serve"])
def test_by_name_it_is_facts(capsys, case, name):
    code, out = run(capsys, "--policy", name, "--json")
    data = json.loads(out)
    assert code == 0
    expected = facts(law(name, case.fleet, case.objective), case.fleet, case.workload).to_dict()
    assert {key: data[key] for key in expected} == json.loads(json.dumps(expected))


@pytest.mark.parametrize("name", LAWS)
def test_every_law_has_its_limits(capsys, scenario, name):
    _, out = run(capsys, "--policy", name, "--scenario", scenario, "--json")
    data = json.loads(out)
    assert data["binds"] in data["limits_used"]
    assert data["cold_start_s"] == 60.0
    assert data["holds"] == all(used is not None and used <= 1 for used in data["limits_used"].values())


def test_a_file_gives_its_facts_and_its_report(capsys, scenario, tmp_path):
    path = tmp_path / "planner.yaml"
    path.write_text(PLANNER)
    code, out = run(capsys, "--policy", str(path), "--scenario", scenario, "--json", "--out", str(tmp_path / "out"))
    data = json.loads(out)
    assert code == 0
    assert (data["policy"], data["format"], data["hold_while_pending"]) == ("DynamoPlanner", "dynamo", True)
    # D-load: one worker per 15 s tick and 60 s of cold start; up at 80 %, down at 60 %: no flapping from 4 on (D20).
    assert data["slew_workers_per_s"] == pytest.approx(1 / 75)
    assert data["reaction_s"] == 75.0
    assert data["dead_band"] == [0.6, 0.8]
    assert data["steady_size_workers"] == pytest.approx(4.0)
    assert [(each["where"], each["value"]) for each in data["unrepresented"]] == [("advisory", True)]
    assert json.loads((tmp_path / "out" / "bounds.json").read_text()) == data
    _, text = run(capsys, "--policy", str(path), "--scenario", scenario)
    for words in ("detection", "reaction", "(C - Q0)/delta", "slew", "dead band", "binds", "not represented: advisory"):
        assert words in text


def test_a_trace_is_the_load(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2024-05-10 00:{t // 60:02d}:{t % 60:02d}.0000000,1000,100\n" for t in range(0, 1800, 2))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    _, out = run(capsys, "--policy", "static", "--trace", str(trace), "--json")
    assert json.loads(out)["workload"]["requests"] == 900


def test_the_pool_of_a_file_that_does_not_say(capsys, scenario, tmp_path):
    path = tmp_path / "scaled"
    path.write_text(SCALED)
    with pytest.raises(InputError, match="which pool"):
        run(capsys, "--policy", str(path), "--scenario", scenario)
    _, out = run(capsys, "--policy", str(path), "--scenario", scenario, "--pool", "prefill", "--json")
    assert "prefill" in json.loads(out)["policy_notes"][0]


WRONG = [
    ("--delta-up 5GB/s", "--delta-down, --cold-start .or --policy"),
    ("", "--delta-up, --delta-down, --cold-start"),
    ("--policy dynamo --delta-up 5GB/s --stock 1GB", "leave out --delta-up, --stock"),
    ("--delta-up 5GB/s --delta-down 5GB/s --cold-start 3s --trace x.csv", "--trace is 'x.csv'.*without --policy"),
    ("--policy dynmo", "did you mean 'dynamo'"),
    ("--policy no/such.yaml", "no/such.yaml does not exist"),
    ("--policy hpa --pool prefill", "--pool.*left out"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG)
def test_flags_that_do_not_go_together(capsys, flags, words):
    with pytest.raises(InputError, match=words):
        run(capsys, *flags.split())


def test_the_flags_for_a_step_are_as_before(capsys):
    flags = "--delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 60s --json".split()
    code, out = run(capsys, *flags)
    assert code == 0
    data = json.loads(out)
    assert (data["cold_start_s"], data["capacity_bytes"]) == (60.0, pytest.approx(2 * 5.34e9 * 60))
