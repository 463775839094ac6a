"""Sweeps into Parquet: the same rows as one run each, the same bits however the work is split, cut off or resumed."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest

from fluidq import _sweep_files, _sweep_run, cli, study
from fluidq._sweep_axes import read_axes
from fluidq._sweep_design import Design
from fluidq._sweep_plan import plan
from fluidq._sweep_run import COLUMNS
from fluidq.commands import sweep as verb
from fluidq.laws import law
from fluidq.scenario import build_case, check_keys
from fluidq.simulate import simulate
from fluidq.study import read_sweep

ROOT = Path(__file__).parents[1]
SMALL = {
    "fleet": {"gpus": 64, "initial_gpus": 32},
    "deployment": {"gpus_per_prefill_worker": 4, "gpus_per_decode_worker": 4},
    "workload": {"days": 0.01},
}
VARY = {"policy.decode_up": "0.7:1.2", "fleet.buffer": "10GB:1TB:log", "fleet.cold_start": "31s:44s"}
DRAWS = {"random": 21, "seed": 3, "block": 8, "chunk": 8, "progress": False}


def laws(*names):
    case = build_case(SMALL)
    return {name: case.policy if name == "thresholds" else law(name, case.fleet, case.objective) for name in names}


def same_bits(a, b):
    return a.columns == b.columns and all(a[c].to_list() == b[c].to_list() for c in a.columns)


@pytest.fixture(scope="module")
def whole():
    """The design that the tests below split, cut off and resume, in one go and in memory."""
    return study(SMALL, VARY, **DRAWS).table


# What is varied


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy.decode_upp=0.6:1.2:7", "unknown parameter of thresholds: 'decode_upp'; did you mean 'decode_up'"),
        ("fleet.cold_strat=30s", r"unknown key in \[fleet\] 'cold_strat'; did you mean 'cold_start'"),
        ("tune.steps=3,4", "unknown parameter 'tune.steps'"),
        ("fleet.cold_start=300s:30s:3", "--vary fleet.cold_start is '300s:30s:3'; it must be a range that grows"),
        ("fleet.cold_start=30 GB", "--vary fleet.cold_start is '30 GB'; it must be a time"),
        ("fleet.buffer=100,200", "--vary fleet.buffer is '100'; .* with its unit, bits or bytes"),
        ("fleet.gpus=64:128:4", "that 4 whole numbers divide evenly"),
        ("fleet.gpus=64.5", "fleet.gpus is 64.5; it must be a whole number"),
        ("workload.seed=1.5", "--vary workload.seed is '1.5'; it must be a whole number"),
        ("policy.ratio=0.3,0.3", "values that differ"),
        ("policy.ratio=0:0.5:4:log", "above 0 at its low end"),
        ("policy.ratio=0.1:0.5:1", "COUNT is a whole number from 2"),
        ("policy.ratio", "must be KEY=LOW:HIGH:COUNT"),
        ("policy.ratio=0.1:0.9:3,0.5", "LOW:HIGH:COUNT"),
        ("policy.ratio=nan", "not NaN|a plain number"),
        ("policy.ratio=0.5:1.5:3", "policy thresholds: ratio is 1.5; it must be the prefill share"),
        (
            "policy.decode_down=0.5:1.1:4",
            r"thresholds.decode_down is 1.1; it must be below decode_up, which is 1 there .1 of 4 runs",
        ),
        (
            "policy.decode_up=0.6:1.2:7",
            r"thresholds.decode_up is 0.6; it must be above decode_down, which is 0.6 .1 of 7",
        ),
        ("policy.ratio=0.3:0.6", "given a count, as in LOW:HIGH:7"),
        ("deployment.nic=-1GB/s", "nic_prefill|nic"),
        ("deployment.gpu=B2000", "B2000"),
    ],
)
def test_what_cannot_be_varied_is_named(text, words):
    with pytest.raises(ValueError, match=words):
        study(SMALL, [text], progress=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "sobel"}, "unknown method 'sobel'; did you mean 'sobol'"),
        ({"random": 0}, "at least one draw"),
        ({"seed": -1}, "from 0 to"),
        ({"policies": "hppa"}, "unknown policy 'hppa'; did you mean 'hpa'"),
        ({"policies": "hpa,hpa"}, "each once"),
        ({"policies": "thresholds,hpa"}, "written thresholds.decode_up: hpa has no such parameter"),
        ({"block": 0}, "--block is 0"),
        ({"chunk": 0}, "--chunk is 0"),
        ({"processes": 2}, "--coordinator is None"),
        ({"coordinator": "here"}, "HOST:PORT"),
        ({"coordinator": "here:1", "processes": 2, "process": 2}, "--process is 2; it must be from 0 to 1"),
    ],
)
def test_bad_calls_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        study(SMALL, VARY, **{**DRAWS, **changes})


def test_ranges_that_meet_are_refused_with_the_run():
    with pytest.raises(ValueError, match=r"decode_down is .*; it must be below decode_up, which is .* of 21 runs"):
        study(SMALL, {"policy.decode_up": "0.5:1.2", "policy.decode_down": "0.4:0.9"}, **DRAWS)
    with pytest.raises(ValueError, match=r"given once; policy.ratio is the same parameter"):
        study(SMALL, ["policy.ratio=0.3,0.4", "thresholds.ratio=0.5,0.6"], progress=False)


def test_several_processes_need_a_folder(monkeypatch):
    monkeypatch.setattr(study.hosts, "place", lambda: (0, 2))
    with pytest.raises(ValueError, match="--out is None; it must be a folder that all processes share"):
        study(SMALL, VARY, **DRAWS)


def test_a_grid_is_every_combination_the_first_axis_slowest():
    axes = read_axes(
        ["fleet.cold_start=30s,1.5min", "policy.decode_up=0.8:1.2:3", "workload.seed=1:2"], laws("thresholds")
    )
    design = Design(axes, ("thresholds",), {}, None, "random", 0)
    points = design.points("thresholds")
    assert design.rows == 12
    assert points["fleet.cold_start"].tolist() == [30.0] * 6 + [90.0] * 6
    assert points["policy.decode_up"].tolist()[:6] == [0.8, 0.8, 1.0, 1.0, 1.2, 1.2]
    assert points["workload.seed"].tolist()[:2] == [1.0, 2.0]


@pytest.mark.parametrize("method", ["random", "sobol", "latin"])
def test_draws_keep_to_their_ranges_and_are_shared_by_the_policies(method):
    vary = ["fleet.buffer=10GB:1TB:log", "hpa.prefill.target=2:8", "workload.seed=0:3", "fleet.cold_start=30s,88s"]
    axes = read_axes(vary, laws("thresholds", "hpa"))
    design = Design(axes, ("thresholds", "hpa"), {}, 256, method, 1)
    a, b = design.points("thresholds"), design.points("hpa")
    assert set(b) - set(a) == {"hpa.prefill.target"}
    assert all(np.array_equal(a[key], b[key]) for key in a)
    assert set(a["workload.seed"]) == {0.0, 1.0, 2.0, 3.0}
    assert set(a["fleet.cold_start"]) == {30.0, 88.0}
    u = np.log(a["fleet.buffer"] / 10e9) / np.log(100)
    assert 0 <= u.min() < 0.05
    assert 0.95 < u.max() <= 1
    if method != "random":  # one draw in each of as many strata, up to Sobol's common shift
        counts = np.histogram(u, bins=64, range=(0, 1))[0]
        assert counts.min() >= 3
        assert counts.max() <= 5
    other = Design(axes, ("hpa",), {}, 256, method, 2).points("hpa")
    assert not np.array_equal(other["fleet.buffer"], a["fleet.buffer"])


# Rows


def overrides_of(row, keys):
    over = {section: dict(values) for section, values in SMALL.items()}
    for key in keys:
        section, _, name = key.partition(".")
        value = row[key]
        whole = name in ("seed", "substeps", "min_workers")
        over.setdefault(section, {})[name] = (
            int(value) if whole else f"{value!r}B/s" if name in ("nic", "fabric") else value
        )
    for name in ("buffer", "buffer_per_gpu"):
        if name in over["fleet"]:
            over["fleet"][name] = f"{over['fleet'][name]!r}B"
    return over


EVERY = {
    **VARY,
    "policy.prefill_up": "0.5:1.5",
    "policy.ratio": "0.5:0.8",
    "fleet.switch_delay": "16s:29s",
    "fleet.buffer_per_gpu": "0B:1GB",
    "fleet.replica_spread": "0:0.2",
    "fleet.buffer_place": "decode",
    "deployment.nic": "10Gbps:400Gbps:log",
    "deployment.fabric": "50GB/s:500GB/s",
    "deployment.batch": "32,64",
    "objective.late_weight": "5:20",
    "objective.ttft_spread": "0.2:0.4",
    "objective.ttft": "1s,3s",
    "workload.load_share": "0.2:0.4",
    "workload.seed": "0:2",
}


def test_each_row_is_the_run_of_that_scenario():
    result = study(SMALL, EVERY, random=5, method="latin", seed=1, block=8, progress=False)
    assert result.programs == 1
    for row in result.table.to_dicts():
        case = build_case(overrides_of(row, EVERY))
        run = simulate(case.fleet, case.workload, case.policy, case.objective, record=False)
        expected = {
            "cost": run.cost.cost,
            "gpu_hours": run.cost.gpu_hours,
            "slo_loss": run.cost.slo_loss,
            "slo_attainment": run.attained,
            "actions": run.actions,
            "time_empty": run.empty,
            "requests": run.arrived,
            "requests_left": run.left,
        }
        for name, value in expected.items():
            assert row[name] == pytest.approx(float(value), rel=1e-9, abs=1e-9), name
    assert result.table["cost"].n_unique() == 5


def test_the_numbers_of_each_row_are_those_of_the_scenario():
    keys = {key: "0.1:2" for key in ("objective.lost_weight", "objective.stalled_weight", "objective.tpot_spread")}
    vary = {**EVERY, **keys, "objective.tpot": "20ms,50ms", "fleet.gpus": "56,64", "policy.step": "8:16"}
    (group,) = plan(Design(read_axes(vary, laws("thresholds")), ("thresholds",), check_keys(SMALL), 7, "latin", 0))
    for row in range(7):
        values = [x[row] if isinstance(x, np.ndarray) else x for x in group.numbers]
        found = group.shape.rebuilt(values, group.delay_ticks, group.switch_ticks)
        point = {key: group.points[key][row] for key in vary}
        point = {key: value if isinstance(value, str) else float(value) for key, value in point.items()}
        case = build_case(overrides_of(point, vary))
        for a, b in zip(found, (case.fleet, case.objective, case.policy), strict=True):
            assert jax.tree.structure(a) == jax.tree.structure(b), "static fields too"
            assert jax.tree.leaves(a) == pytest.approx([float(x) for x in jax.tree.leaves(b)], rel=1e-12)


def test_what_is_compiled_in_makes_groups_and_laws_have_their_own_parameters():
    vary = ["fleet.cold_start=20s,44s", "static.gpus=16,48", "workload.seed=0,1"]
    result = study(SMALL, vary, policies="thresholds,static", block=4, progress=False)
    assert result.programs == 4, "two laws, two numbers of whole ticks"
    table = result.table
    assert table["row"].to_list() == list(range(12))
    assert table["policy"].to_list() == ["thresholds"] * 4 + ["static"] * 8
    assert table.filter(policy="thresholds")["static.gpus"].null_count() == 4
    hours = 58 * 15 / 3600
    assert law("static", build_case(SMALL).fleet).gpus is None, "a number that the law leaves open can be varied"
    assert table.filter(policy="static")["gpu_hours"].to_list() == pytest.approx(
        [16 * hours] * 2 + [48 * hours] * 2 + [16 * hours] * 2 + [48 * hours] * 2, rel=1e-3
    )
    assert [row["policy"] for row in result.to_dict()["best"]] in (["static", "thresholds"], ["thresholds", "static"])


def test_the_numbers_of_a_law_per_pool_reach_the_law():
    axes = read_axes(
        {"hpa.prefill.target": [2, 8], "policy.decode.behavior.scaleUp.policies.1.value": [50]}, laws("hpa")
    )
    (group,) = plan(Design(axes, ("hpa",), check_keys(SMALL), None, "random", 0))
    values = [x[1] if isinstance(x, np.ndarray) else x for x in group.numbers]
    _, _, policy = group.shape.rebuilt(values, group.delay_ticks, group.switch_ticks)
    assert policy.prefill.target == 8.0
    assert policy.decode.behavior.scaleUp.policies[1].value == 50.0
    assert policy.prefill.behavior.scaleUp.policies[1].value == 100.0


def test_traces_and_other_texts_are_values_too(tmp_path):
    files = []
    for name, length in (("short", 300), ("long", 900)):
        rows = [f"2023-11-16 18:{s // 60:02d}:{s % 60:02d}.0000000,{length},50" for s in range(0, 900, 2)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
        files.append(str(path))
    vary = {"workload.trace": files, "workload.load_scale": [1, 2], "policy.step": [8, 16]}
    result = study(SMALL, vary, block=4, progress=False)
    assert result.programs == 1
    assert result.table["workload.trace"].to_list() == [files[0]] * 4 + [files[1]] * 4
    assert result.table["requests"].to_list() == pytest.approx([450, 450, 900, 900] * 2)
    last = build_case(SMALL | {"workload": {"trace": files[1], "load_scale": 2}, "policy": {"step": 16}})
    run = simulate(last.fleet, last.workload, last.policy, record=False)
    assert result.table["cost"][7] == pytest.approx(float(run.cost.cost), rel=1e-9)
    before = study(SMALL, vary, block=4, progress=False, out=tmp_path / "o").design
    Path(files[0]).write_text(Path(files[0]).read_text().replace(",300,", ",301,"))
    with pytest.raises(ValueError, match=r"another design .different: traces"):
        study(SMALL, vary, block=4, progress=False, out=tmp_path / "o")
    assert len(before) == 64


def test_how_many_rows_there_are_changes_no_bit_of_a_row_nor_the_width_of_a_block(whole, monkeypatch):
    widths, made = set(), _sweep_run._program

    def seen(*key):
        return lambda moving, *rest: widths.update(len(x) for x in moving) or made(*key)(moving, *rest)

    seen.cache_info = made.cache_info
    monkeypatch.setattr(_sweep_run, "_program", seen)
    few = study(SMALL, VARY, **{**DRAWS, "random": 5}).table
    assert same_bits(few, whole.head(5))
    assert whole["cost"].n_unique() == 21
    assert widths == {8}, "the last block is filled up"


# Files


def parts(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, whole):
    folder = tmp_path_factory.mktemp("sweeps") / "whole.parquet"
    result = study(SMALL, VARY, out=folder, **DRAWS)
    assert result.chunks == 3
    assert result.resumed == 0
    assert same_bits(result.table, whole)
    return folder


def copied(folder, to):
    to.mkdir()
    for name, content in parts(folder).items():
        (to / name).write_bytes(content)
    return to


def test_an_interrupted_sweep_resumes_with_the_same_bytes(finished, tmp_path, monkeypatch):
    write = _sweep_files.write_part

    def once(folder, chunk, *rest):
        if chunk == 1:
            raise KeyboardInterrupt
        write(folder, chunk, *rest)

    out = tmp_path / "cut"
    monkeypatch.setattr(_sweep_files, "write_part", once)
    with pytest.raises(KeyboardInterrupt):
        study(SMALL, VARY, out=out, **DRAWS)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"lacks 2 of 3 chunks, part-000001.parquet first"):
        read_sweep(out)
    assert len(read_sweep(out, partial=True)) == 8
    result = study(SMALL, VARY, out=out, **DRAWS)
    assert result.resumed == 1
    assert parts(out) == parts(finished)
    again = study(SMALL, VARY, out=out, **DRAWS)
    assert again.resumed == 3
    assert again.policy_days == 0
    assert same_bits(again.table, result.table)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_part_is_said_and_computed_again(finished, tmp_path, damage):
    out = copied(finished, tmp_path / "o")
    part = out / "part-000001.parquet"
    content = bytearray(part.read_bytes())
    if damage == "bit":
        # A value that Parquet itself has no reason to doubt.
        table = pl.read_parquet(part)
        said = pl.read_parquet_metadata(part)["fluidq"]
        table.with_columns(cost=pl.col("cost") + 1e-9).write_parquet(part, metadata={"fluidq": said})
    else:
        part.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(ValueError, match=r"part-000001.parquet is damaged"):
        read_sweep(out)
    result = study(SMALL, VARY, out=out, **DRAWS)
    assert "part-000001.parquet was damaged" in result.notes[0]
    assert parts(out) == parts(finished)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 4}, "another design .different: seed"),
        ({"random": 22}, "another design .different: random"),
        ({"chunk": 16}, "another block or chunk size .different: chunk"),
        ({"policies": "hpa", "vary": ["fleet.buffer=1TB,2TB"]}, "another design .different: policies, vary"),
    ],
)
def test_a_folder_of_another_design_is_refused(finished, changes, words):
    before = parts(finished)
    with pytest.raises(ValueError, match=words):
        study(SMALL, changes.pop("vary", VARY), out=finished, **{**DRAWS, **changes})
    assert parts(finished) == before


def test_other_versions_and_foreign_parts_are_refused(finished, tmp_path):
    out = copied(finished, tmp_path / "o")
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["made_by"]["jax"] = "0.0"
    (out / "_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"other versions .different: jax"):
        study(SMALL, VARY, out=out, **DRAWS)
    (out / "_manifest.json").write_text("{")  # damaged: the parts say themselves what they are
    assert study(SMALL, VARY, out=out, **DRAWS).resumed == 3
    (out / "_manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"part-000000.parquet belongs to another design"):
        study(SMALL, VARY, out=out, **{**DRAWS, "seed": 4})
    (out / "_manifest.json").unlink()
    with pytest.raises(ValueError, match="parts without a manifest"):
        study(SMALL, VARY, out=out, **DRAWS)
    with pytest.raises(ValueError, match=r"readable _manifest.json"):
        read_sweep(tmp_path)


# Processes, devices, hosts

CHILD = """
import json, os, signal, sys
from fluidq import _sweep_files
from fluidq.study import study
out, last, where = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
write = _sweep_files.write_part
def killed(folder, chunk, *rest):
    if chunk == last:
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, chunk, *rest)
_sweep_files.write_part = killed
result = study({small!r}, {vary!r}, out=out, **{draws!r}, **where)
import jax
print(json.dumps([jax.local_device_count(), jax.process_count(), result.table["cost"].sum(), result.compiled]))
"""


def child(out, last=-1, devices=1, **where):
    code = CHILD.format(small=SMALL, vary=VARY, draws=DRAWS)
    env = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    args = [sys.executable, "-c", code, str(out), str(last), json.dumps(where)]
    return subprocess.Popen(args, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1])


def test_two_processes_give_the_bits_of_one(finished, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    where = {"coordinator": f"127.0.0.1:{port}", "processes": 2}
    both = [child(tmp_path / "two", process=i, **where) for i in range(2)]
    said = [ended(process) for process in both]
    assert [line[1] for line in said] == [2, 2]
    assert [line[3] for line in said] == [1, 1], "both had work"
    assert said[0][2] == said[1][2], "both return the whole table"
    assert parts(tmp_path / "two") == parts(finished)


def test_a_killed_run_on_two_devices_is_finished_on_one_with_the_same_bytes(finished, tmp_path):
    out = tmp_path / "killed"
    process = child(out, last=1, devices=2)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    assert sorted(parts(out)) == ["_manifest.json", "part-000000.parquet"], "at most one chunk is lost"
    assert study(SMALL, VARY, out=out, **DRAWS).resumed == 1
    assert parts(out) == parts(finished)


# The command


def arguments(*argv):
    parser = cli._Parser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    verb.add_arguments(parser)
    return parser.parse_args(argv)


def test_the_command_prints_json_and_writes_a_folder(finished, tmp_path, capsys):
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "[fleet]\ngpus = 64\ninitial_gpus = 32\n[workload]\ndays = 0.01\n"
        "[deployment]\ngpus_per_prefill_worker = 4\ngpus_per_decode_worker = 4\n"
    )
    vary = [x for key, what in VARY.items() for x in ("--vary", f"{key}={what}")]
    flags = ["--random", "21", "--seed", "3", "--block", "8", "--chunk", "8", "--out", str(tmp_path / "o")]
    args = arguments("--scenario", str(scenario), *vary, *flags, "--json")
    assert verb.run(args) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["runs"] == len(data["table"]) == 21
    assert data["programs"] == 1
    assert data["chunks"] == {"total": 3, "there_before": 0}
    assert data["parameters"] == {"policy.decode_up": "", "fleet.buffer": "bytes", "fleet.cold_start": "seconds"}
    assert data["best"][0]["cost"] == min(row["cost"] for row in data["table"])
    assert set(COLUMNS) <= set(data["table"][0])
    assert parts(tmp_path / "o") == parts(finished), "the command and the call are the same sweep"
    args.json = False
    assert verb.run(args) == 0
    text = capsys.readouterr().out
    assert "21 runs, 1 programs" in text
    assert "fleet.cold_start" in text


def test_the_command_lists_what_there_is_and_wants_something(capsys):
    assert verb.run(arguments("--list", "--policy", "hpa", "--json")) == 0
    kinds = json.loads(capsys.readouterr().out)
    assert kinds["policy.prefill.target"] == kinds["hpa.prefill.target"] == "number"
    assert kinds["fleet.cold_start"] == "seconds"
    assert kinds["workload.trace"] == "text"
    with pytest.raises(ValueError, match="--vary is 'left out'"):
        verb.run(arguments())
