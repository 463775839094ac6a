"""Scenario files: every key by its path, and what the default case is made of."""

import json
import tomllib

import pytest

from fluidq.cli import main
from fluidq.scenario import DEFAULTS, SCHEMA, build_case, check_keys, read_scenario
from fluidq.scenario_keys import json_schema, template


def write(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_text(text)
    return str(path)


def test_text_with_units_and_bare_si_numbers_are_read(tmp_path):
    read = read_scenario(
        write(tmp_path, '[fleet]\ncold_start = "2min"\nbuffer = "150GB"\n[objective]\nttft = 1.5\n[tune]\nsteps = 7\n')
    )
    assert read == {
        "fleet": {"cold_start": 120.0, "buffer": 150e9},
        "objective": {"ttft": 1.5},
        "tune": {"steps": 7},
    }


def test_a_trace_is_found_beside_the_scenario(tmp_path):
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:{m:02d}:{s:02d}.0000000,900,100\n" for m in range(4) for s in range(60))
    )
    case = build_case(read_scenario(write(tmp_path, '[workload]\ntrace = "t.csv"\n')))
    assert case.workload_dict()["requests"] == 240
    assert case.workload_dict()["mean_isl"] == pytest.approx(900)


def test_the_default_case_asks_for_a_quarter_of_its_gpus():
    case = build_case()
    demand = case.workload.requests / case.workload.duration * case.fleet.request_gpu_seconds
    assert demand == pytest.approx(0.25 * case.fleet.budget)
    assert case.policy.ratio == case.phi
    same = build_case({"workload": {"load_scale": 1.0}})
    assert same.load_scale == 1.0
    assert same.workload.requests == pytest.approx(case.workload.requests / case.load_scale)


def test_a_batch_that_does_not_fit_is_cut_and_said():
    case = build_case({"deployment": {"batch": 4000.0}})
    assert case.deployment.batch < 4000
    assert any("batch cut from 4000" in note for note in case.notes)


def test_another_model_or_gpu_brings_its_own_rates():
    default = build_case().deployment
    other = build_case({"deployment": {"model": "Llama-3.1-70B", "gpu": "H100", "batch": 8}}).deployment
    slower = build_case({"deployment": {"prefill_efficiency": 0.3}}).deployment
    assert default.r_P == 13_114
    assert other.r_P != default.r_P
    assert slower.r_P == pytest.approx(0.3 * 56_250)


BAD = [
    ("[fleet]\ngpus = -8\n", "fleet.gpus is -8.0; it must be a whole number of GPUs >= 2"),
    ("[fleet]\ngpus = 100.5\n", "fleet.gpus is 100.5"),
    ("[fleet]\ninitial_gpus = 33.3\n", "fleet.initial_gpus is 33.3"),
    ('[fleet]\ninterval = "12h"\n', "fleet.interval is 43200.0"),
    ("[fleet]\ncold_start = -3\n", "fleet.cold_start is -3.0"),
    ("[tune]\nseed = 99999999999999999999\n", "tune.seed is 99999999999999999999"),
    ('[deployment]\nprefill_rate = "1000tok/s"\nprefill_efficiency = 0.5\n', "left out where prefill_rate is given"),
    ("[fleat]\n", "unknown section 'fleat'; did you mean 'fleet'?"),
    ("[fleet]\ncold_strat = 3\n", "unknown key in .fleet. 'cold_strat'; did you mean 'cold_start'?"),
    ('[fleet]\ncold_start = "-3s"\n', "-3"),
    ('[fleet]\ncold_start = "3GB"\n', "fleet.cold_start"),
    ("[fleet]\nbuffer = 150\n", "fleet.buffer"),
    ('[fleet]\noverflow = "drop"\n', "'back-pressure' or 'loss'"),
    ("[fleet]\ngpus = 1\n", "fleet.gpus is 1.0"),
    ("[policy]\nprefill_up = 0.01\n", "policy.prefill_down is 0.1; it must be below prefill_up, which is 0.01"),
    ("[policy]\nratio = 1\n", "policy.ratio is 1.0"),
    ("[objective]\nttft = 0\n", "objective.ttft is 0.0"),
    ("[tune]\nsteps = 0\n", "tune.steps is 0"),
    ("[tune]\nsteps = 1.5\n", "tune.steps is 1.5; it must be a whole number"),
    ("[workload]\nload_share = 2\n", "workload.load_share is 2.0"),
    ("[workload]\nload_scale = 0\n", "workload.load_scale is 0.0"),
    ("[workload]\ntrace = 3\n", "workload.trace is 3; it must be text in quotes"),
    ('[deployment]\nmodel = "GPT"\n', "unknown model 'GPT'"),
    ("[deployment]\nbatch = true\n", "deployment.batch is True"),
    ("fleet = 3\n", "a table .fleet."),
    ("[fleet\n", "is not TOML"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=[t.strip().replace("\n", " ") for t, _ in BAD])
def test_a_wrong_scenario_is_named_by_its_path(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        build_case(read_scenario(write(tmp_path, text)))


def test_python_overrides_are_checked_like_a_file():
    for bad, words in (
        ({"fleet": {"gpu": 3}}, "unknown key"),
        ({"flet": {}}, "unknown section"),
        ({"fleet": {"buffer": 5.0}}, "fleet.buffer"),
    ):
        with pytest.raises(ValueError, match=words):
            build_case(bad)
    assert build_case({"fleet": {"cold_start": "2min"}}).fleet.cold_start == 120.0


def test_binary_and_folders_are_refused(tmp_path):
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "b.toml", tmp_path):
        with pytest.raises(ValueError, match="cannot be read as UTF-8 text"):
            read_scenario(str(path))


def test_every_documented_key_is_accepted(tmp_path):
    """The README's scenario reference lists the keys; none may be missing there."""
    from pathlib import Path

    readme = (Path(__file__).parents[1] / "README.md").read_text()
    for section, keys in SCHEMA.items():
        for key in keys:
            assert f"`{key}`" in readme, f"{section}.{key} is not in the README"


def test_the_template_is_the_embedded_default_and_its_comments_are_legal_too(tmp_path):
    text = template()
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    given = read_scenario(str(file))
    assert {s: set(k) for s, k in given.items() if k} == {s: set(k) for s, k in DEFAULTS.items() if k}
    assert build_case(given, checked=True).fleet == build_case().fleet
    # Every key is there once; with the comment sign taken away each line is valid on its own.
    for section, keys in SCHEMA.items():
        body = text.split(f"[{section}]\n")[1].split("\n\n")[0]
        assert [line.lstrip("# ").split(" = ")[0] for line in body.splitlines()] == list(keys)
        for line in body.splitlines():
            read = tomllib.loads(f"[{section}]\n{line.removeprefix('# ')}")
            check_keys(read)


def test_yaml_is_read_like_toml(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text("fleet:\n  cold_start: 2min\n  gpus: 64\n")
    assert read_scenario(str(file)) == {"fleet": {"cold_start": 120.0, "gpus": 64.0}}
    for text, words in (
        ("- a\n", "holds no sections"),
        ("a: [\n", "is not YAML"),
        ("fleet: {gpu: 3}\n", "did you mean"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_scenario(str(file))


def test_the_schema_knows_every_key_and_its_default():
    schema = json_schema()
    for section, keys in SCHEMA.items():
        known = schema["properties"][section]["properties"]
        assert set(known) == set(keys)
        assert all(entry["description"] for entry in known.values())
    assert schema["properties"]["fleet"]["properties"]["overflow"]["enum"] == ["back-pressure", "loss"]


def test_init_writes_a_file_once(tmp_path, capsys):
    file = tmp_path / "new" / "scenario.toml"
    assert main(["init", str(file)]) == 0
    assert file.read_text() == template()
    assert main(["init", str(file)]) == 2
    assert main(["init", str(file), "--force"]) == 0
    capsys.readouterr()
    assert main(["init", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
