"""The command line as a user types it: keys, exit codes, one sentence for bad input, files in --out."""

import importlib
import json
import shlex

import pytest

from fluidq.cli import VERBS, _parser, main
from tests.helpers import data

SMALL = """
[fleet]
gpus = 64
initial_gpus = 32
[deployment]
gpus_per_prefill_worker = 4
gpus_per_decode_worker = 4
[workload]
days = 0.1
[tune]
steps = 6
starts = 2
judge_every = 3
realisations = 1
unseen = 2
"""


def run(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def test_tune_writes_only_json_to_stdout_and_files_to_out(capsys, scenario, tmp_path):
    code, out, _ = run(capsys, "tune", "--scenario", scenario, "--json", "--out", str(tmp_path / "o"))
    result = json.loads(out)
    assert code == (0 if result["after"]["hard"]["cost"] < result["before"]["hard"]["cost"] else 1)
    for side in ("before", "after"):
        assert set(result[side]["hard"]) >= {"cost", "gpu_hours", "slo_loss"}
        assert set(result[side]["policy"]) >= {"prefill_up", "prefill_down", "decode_up", "decode_down", "ratio"}
    assert result["after"]["hard"]["cost"] <= result["before"]["hard"]["cost"]
    assert result["gradient_check"]["max_relative_error"] <= 1e-3
    assert set(result["unseen"]) >= {"before_cost", "after_cost"}
    assert set(result["workload"]) >= {"requests", "duration_s", "mean_isl", "mean_osl"}
    assert result["workload"]["duration_s"] == 8640
    assert json.loads((tmp_path / "o" / "tune.json").read_text()) == result
    for picture in ("tune.png", "search.png"):
        assert (tmp_path / "o" / picture).read_bytes()[:4] == b"\x89PNG"


def test_tune_in_text_names_the_policy_and_the_judgement(capsys, scenario):
    _, out, _ = run(capsys, "tune", "--scenario", scenario)
    for words in ("prefill_up", "hard replay", "cost on unseen draws", "Gradient", "SLO attainment", "load scaled"):
        assert words in out


@pytest.mark.parametrize(
    ("trace", "requests", "isl", "osl", "seconds"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", 19_366, 1154.70, 211.13, 3501.72),
        ("mooncake/conversation_trace.jsonl.gz", 12_031, 12_035.06, 342.62, 3536.999),
    ],
)
def test_tune_on_a_real_trace_holds_on_the_hard_law_and_on_unseen_draws(capsys, trace, requests, isl, osl, seconds):
    code, out, _ = run(capsys, "tune", "--trace", str(data(trace)), "--json")
    result = json.loads(out)
    assert code == 0
    assert result["after"]["hard"]["cost"] < result["before"]["hard"]["cost"]
    assert result["unseen"]["after_cost"] < result["unseen"]["before_cost"]
    assert result["gradient_check"]["max_relative_error"] <= 1e-3
    load = result["workload"]
    assert load["requests"] == requests
    assert load["mean_isl"] == pytest.approx(isl, abs=0.01)
    assert load["mean_osl"] == pytest.approx(osl, abs=0.01)
    assert load["duration_s"] == pytest.approx(seconds, abs=0.01)


def test_size_gives_the_worked_example_of_the_article(capsys):
    argv = "size --model GLM-5.2 --gpu B200 --nic 400Gbps --isl 8192 --osl 1024 --gpus 64 --json".split()
    code, out, _ = run(capsys, *argv)
    plan = json.loads(out)
    assert code == 0
    assert plan["prefill_tokens_per_s_per_gpu"] == 56_250
    assert plan["kv_bytes_per_token"] == 95_000
    assert plan["fabric"]["required_bytes_per_s_per_gpu"] == pytest.approx(5.34e9, rel=1e-3)
    assert plan["fabric"]["limit_bytes_per_s_per_gpu"] == 50e9
    assert plan["fabric"]["margin"] == pytest.approx(9.36, abs=0.005)
    assert plan["prefill_gpus"] + plan["decode_gpus"] == 64
    assert 0 < plan["phi"] < 1


def test_bounds_gives_the_ladder_and_the_loss(capsys):
    ladder = {"9.6s": 103, "24.5s": 262, "32.1s": 343, "88s": 940, "695s": 7423}
    for tau, gigabytes in ladder.items():
        _, out, _ = run(capsys, *f"bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start {tau} --json".split())
        result = json.loads(out)
        assert round(result["capacity_bytes"] / 1e9) == gigabytes
        assert result["stock_bytes"] == result["capacity_bytes"] / 2
    argv = (
        "bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 88s "
        "--capacity 150GB --stock 75GB --flow 5.34GB/s --delta 2.67GB/s --json"
    )
    _, out, _ = run(capsys, *argv.split())
    result = json.loads(out)
    assert result["time_to_boundary_s"] == pytest.approx(28.09, abs=0.005)
    assert result["loss_fraction"] == pytest.approx(0.3404, abs=5e-5)


def test_a_shortfall_is_a_value_and_not_a_flag(capsys):
    argv = (
        "bounds --delta-up 5.34GB/s --delta-down 5.34GB/s --cold-start 88s "
        "--capacity 150GB --stock 75GB --flow 5.34GB/s --delta -1GB/s --json"
    )
    _, out, _ = run(capsys, *argv.split())
    assert json.loads(out)["loss_fraction"] == pytest.approx(0.0277, abs=5e-5)


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_figure_draws_by_name(capsys, tmp_path, kind):
    argv = ["figure", "shock-map", "--format", kind, "--out", str(tmp_path), "--json"]
    code, out, _ = run(capsys, *argv, "--capacity", "300GB", "--tau-max", "600s")
    built = json.loads(out)
    assert code == 0
    assert built["worst_error"] < 1e-9
    assert (tmp_path / f"shock-map.{kind}").stat().st_size > 5_000


def test_figures_are_listed(capsys):
    _, out, _ = run(capsys, "figure", "--list", "--json")
    assert {"name", "source", "worst_error"} <= set(json.loads(out)[0])


def test_sorting_and_spreading_are_told_in_text_and_json(capsys, tmp_path):
    rows = [f"2023-11-16 18:{m:02d}:{s:02d}.0000000,900,100" for m in range(6) for s in range(0, 60, 2)]
    rows[3], rows[4] = rows[4], rows[3]
    (tmp_path / "t.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    (tmp_path / "s.toml").write_text("[tune]\nsteps = 1\nstarts = 1\nunseen = 1\nrealisations = 0\n")
    argv = ["tune", "--scenario", str(tmp_path / "s.toml"), "--trace", str(tmp_path / "t.csv")]
    _, out, _ = run(capsys, *argv)
    assert "time stamps were not in order (first at line 6)" in out
    _, out, _ = run(capsys, *argv, "--json")
    assert any("not in order" in note for note in json.loads(out)["workload"]["notes"])


def test_a_result_that_cannot_be_written_is_one_sentence(capsys, tmp_path):
    (tmp_path / "size.json").mkdir()
    code, _, err = run(capsys, "size", "--out", str(tmp_path))
    assert code == 2
    assert "size.json cannot be written" in err
    assert not (tmp_path / "size.part").exists()


BAD = [
    ("tune --seed 9223372036854775808", "--seed is 9223372036854775808"),
    ("size --gpus 1e13", "gpus is 10000000000000"),
    ("size --gpu B20", "unknown GPU 'B20'; did you mean 'B200'?"),
    ("size --model GLM5.2", "unknown model 'GLM5.2'; did you mean 'GLM-5.2'?"),
    ("size --nic 400", "400Gbps or 50GB/s"),
    ("size --nic 400Gbq", "unknown"),
    ("size --nic 88s", "--nic"),
    ("size --isl -5", "--isl"),
    ("size --isl 0 --osl 0", "osl"),
    ("size --gpus 2.5", "--gpus is 2.5; it must be a whole number of GPUs"),
    ("size --gpus 3", "gpus"),
    ("bounds --delta-up 5GB/s --delta-down 5GB/s --cold-start -3s", "--cold-start is '-3s'"),
    ("bounds --delta-up 5 --delta-down 5GB/s --cold-start 3s", "--delta-up"),
    ("bounds --delta-up 5GB/s --delta-down 5GB/s --cold-start 3s --capacity 10GB --stock 20GB", "20"),
    ("bounds --delta-up 5GB/s", "--delta-down"),
    ("tune --trace missing.csv", "missing.csv does not exist"),
    ("tune --scenario missing.toml", "scenario file 'missing.toml' does not exist"),
    ("tune --seed -1", "--seed is -1"),
    ("tune --seed x", "--seed"),
    ("figure shok-map", "did you mean 'shock-map'?"),
    ("figure shock-map --capacity 10GB --stock 20GB", "20"),
    ("frobnicate", "frobnicate"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=[a for a, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, argv, words):
    try:
        code = main(argv.split())
    except SystemExit as stop:  # argparse's own errors
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_no_command_shows_the_help(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert all(verb in out for verb in VERBS)


def test_completion_knows_every_verb(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--completion", "bash"])
    assert done.value.code == 0
    script = capsys.readouterr().out
    for verb in VERBS:
        assert verb in script
    assert "--scenario" in script


def test_every_verb_has_an_example_that_parses(capsys):
    for verb in VERBS:
        epilog = importlib.import_module(f"fluidq.commands.{verb}").EPILOG
        example = epilog.removeprefix("example: ").split(". ")[0].split("; ")[0].split(" && ")[0]
        assert example.startswith(f"fluidq {verb}")
        _parser().parse_args(shlex.split(example)[1:])
