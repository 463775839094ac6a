"""`fluidq inspect`: every trace, profile and table of the shared data, with the counts of its README."""

import argparse
import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fluidq._errors import InputError
from fluidq.commands import inspect
from fluidq.io.tables import inspect_file
from tests.helpers import DATA, data

FIGURES = ("requests", "duration_s", "mean_isl", "mean_isl_computed", "mean_osl", "peak_to_mean")
KEYS = {"format", "rows", "kept", "dropped", *FIGURES}

# File, format, rows, and what its README (or the findings beside it) says of it: figure -> value and tolerance.
KNOWN = [
    ("aiconfigurator/disagg_picks.csv", "AIConfigurator picks", 28, {}),
    ("aiconfigurator/kv_bytes_per_token.csv", "KV bytes per token", 15, {}),
    ("aiconfigurator/model_grid.csv", "AIConfigurator time grid", 1725, {}),
    ("aiconfigurator/silicon_sample_clean.csv.gz", "AIConfigurator measured points", 5221, {}),
    ("aiconfigurator/systems.csv", "AIConfigurator systems", 10, {}),
    (
        "azure-llm-2023/AzureLLMInferenceTrace_code.csv", "Azure LLM CSV", 8819,
        {"requests": (8819, 0), "duration_s": (57.27 * 60, 0.3), "mean_isl": (2047.8, 0.05), "mean_osl": (27.9, 0.05),
         "mean_isl_computed": (2047.8, 0.05), "peak_to_mean": (4.18, 0.01)},
    ),
    (
        "azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "Azure LLM CSV", 19_366,
        {"requests": (19_366, 0), "duration_s": (58.36 * 60, 0.3), "mean_isl": (1154.7, 0.05),
         "mean_osl": (211.1, 0.05), "peak_to_mean": (1.52, 0.01)},
    ),
    (
        "azure-llm-2024-digitised/conv_requests_per_minute.csv", "Azure 2024 load curve", 1396,
        {"requests": (27_303_990 * (1 - 0.0049), 30_000), "duration_s": (7 * 86_400, 500)},
    ),
    ("azure-llm-2024-digitised/conv_tokens_per_minute.csv", "Azure 2024 token curve", 495, {}),
    ("deepseek-day6/h800_node_count.csv", "DeepSeek node count", 12, {"peak_to_mean": (278 / 226.75, 1e-9)}),
    ("deepseek-day6/hourly_theoretical_income.csv", "DeepSeek hourly income", 24, {"peak_to_mean": (1.33, 0.006)}),
    ("deepseek-day6/published_figures.csv", "published figures", 26, {}),
    ("deployments/deployments.csv", "published deployments", 151, {}),
    ("deployments/fabric.csv", "fabrics", 7, {}),
    ("deployments/gpus.csv", "GPUs", 13, {}),
    ("deployments/models.csv", "models", 19, {}),
    ("deployments/sweeps.csv", "published sweeps", 30, {}),
    ("distserve/profiler-a100-80g.distserve.json", "DistServe latency coefficients", 7, {}),
    ("distserve/profiler-a100-80g.vllm.json", "DistServe latency coefficients", 7, {}),
    ("dstack-pd-ratio/results.csv", "dstack ratio sweep", 57, {}),
    ("dynamo/H200_TP1P_TP1D_decode.npz", "Dynamo profile npz", 41, {}),
    ("dynamo/H200_TP1P_TP1D_prefill.npz", "Dynamo profile npz", 17, {}),
    ("dynamo/decode_profile.csv", "Dynamo decode profile", 158, {}),
    ("dynamo/prefill_profile.csv", "Dynamo prefill profile", 44, {}),
    ("dynamo/h100_sxm_vllm_nvidia_Llama-3.3-70B-Instruct-FP8_decode.npz", "Dynamo profile npz", 158 - 41, {}),
    ("dynamo/h100_sxm_vllm_nvidia_Llama-3.3-70B-Instruct-FP8_prefill.npz", "Dynamo profile npz", 44 - 17, {}),
    ("dynamo/h200_sxm_vllm_nvidia_Llama-3.1-8B-Instruct-FP8_decode.npz", "Dynamo profile npz", 41, {}),
    ("dynamo/h200_sxm_vllm_nvidia_Llama-3.1-8B-Instruct-FP8_prefill.npz", "Dynamo profile npz", 17, {}),
    (
        "mooncake/conversation_trace.jsonl.gz", "Mooncake JSONL", 12_031,
        {"requests": (12_031, 0), "duration_s": (3537.0, 0.05), "mean_isl": (12_035.1, 0.05), "mean_osl": (342.6, 0.05),
         "mean_isl_computed": (12_035.1 * (1 - 0.374), 8), "peak_to_mean": (1.21, 0.01)},
    ),
    (
        "mooncake/mooncake_trace_1000.jsonl.gz", "Mooncake JSONL", 1000,
        {"requests": (1000, 0), "duration_s": (177.1, 0.05), "mean_isl": (9792.0, 0.05), "mean_osl": (199.1, 0.05)},
    ),
    (
        "mooncake/synthetic_trace.jsonl.gz", "Mooncake JSONL", 3993,
        {"requests": (3993, 0), "duration_s": (1022.0, 0.05), "mean_isl": (15_325.5, 0.05), "mean_osl": (149.1, 0.05),
         "mean_isl_computed": (15_325.5 * (1 - 0.651), 8), "peak_to_mean": (1.17, 0.01)},
    ),
    ("mooncake/transfer_engine_bandwidth.csv", "Mooncake transfer bandwidth", 30, {}),
    (
        "servegen/clients_deepseek-r1.csv.gz", "ServeGen clients", 3111,
        {"requests": (16.0 * 86_400, 2000), "duration_s": (86_400, 0)},
    ),
    (
        "servegen/clients_m-large.csv.gz", "ServeGen clients", 99_839,
        {"requests": (195.8 * 14 * 86_400, 1e5), "duration_s": (14 * 86_400, 0)},
    ),
    (
        "servegen/clients_mm-image.csv.gz", "ServeGen clients", 2094,
        {"requests": (9.5 * 86_400, 5000), "duration_s": (86_400, 0)},
    ),
    ("servegen/length_pmf_deepseek-r1.jsonl.gz", "ServeGen length distributions", 292, {}),
    ("servegen/length_summary_deepseek-r1.csv.gz", "ServeGen length summary", 552, {}),
    ("servegen/length_summary_m-large.csv.gz", "ServeGen length summary", 7896, {}),
    ("servegen/length_summary_m-small.csv.gz", "ServeGen length summary", 2250, {}),
    ("servegen/length_summary_mm-image.csv.gz", "ServeGen length summary", 1120, {}),
    (
        "servegen/windows_deepseek-r1.csv", "ServeGen windows", 144,
        {"requests": (16.0 * 86_400, 2000), "duration_s": (86_400, 0), "mean_isl": (1268, 0.5),
         "mean_osl": (1527, 0.5)},
    ),
    (
        "servegen/windows_m-large.csv", "ServeGen windows", 2016,
        {"requests": (195.8 * 14 * 86_400, 1e5), "duration_s": (14 * 86_400, 0), "mean_isl": (914, 0.5),
         "mean_osl": (155, 0.5)},
    ),
    (
        "servegen/windows_m-small.csv", "ServeGen windows", 2016,
        {"requests": (1174 * 14 * 86_400, 1e6), "duration_s": (14 * 86_400, 0), "mean_isl": (120, 0.5),
         "mean_osl": (15, 0.5)},
    ),
    (
        "servegen/windows_mm-image.csv", "ServeGen windows", 144,
        {"requests": (9.5 * 86_400, 5000), "duration_s": (86_400, 0), "mean_isl": (1442, 0.5), "mean_osl": (130, 0.5)},
    ),
    ("splitwise-sim/perf_model.csv", "Splitwise performance model", 1260, {}),
    ("vidur/a100_dgx_send_recv.csv", "Vidur send/recv times", 1988, {}),
    ("vidur/h100_dgx_send_recv.csv", "Vidur send/recv times", 1988, {}),
    (
        "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz", "request lengths (Vidur CSV)", 28_257,
        {"requests": (28_257, 0), "mean_isl": (2588, 0.5), "mean_osl": (291, 0.5)},
    ),
]  # fmt: skip


def run(capsys, path: Path, json_wanted: bool = True, out: Path | None = None, window: str = "60s"):
    args = argparse.Namespace(file=str(path), window=window, json=json_wanted, out=None if out is None else str(out))
    code = inspect.run(args)
    printed = capsys.readouterr().out
    return code, json.loads(printed) if json_wanted else printed


@pytest.mark.parametrize(("name", "format", "rows", "figures"), KNOWN, ids=[entry[0] for entry in KNOWN])
def test_every_file_is_read_with_the_counts_of_its_readme(capsys, name, format, rows, figures):
    code, found = run(capsys, data(name))
    assert code == 0
    assert set(found) >= KEYS
    assert (found["format"], found["rows"], found["kept"], found["dropped"]) == (format, rows, rows, 0)
    assert found["reasons"] == []
    for figure, (value, tolerance) in figures.items():
        assert found[figure] == pytest.approx(value, abs=tolerance, rel=1e-12), figure
    load = format.startswith(("Azure LLM", "Mooncake JSONL", "ServeGen windows", "ServeGen clients"))
    if not load and "requests" not in figures:
        assert found["requests"] is None
        assert found["mean_isl"] is None
        assert found["columns"] or "length" in format
    text = str(inspect_file(data(name)))
    assert f"rows          {rows:,}" in text
    assert format in text


def test_no_file_of_the_data_is_left_out():
    if not DATA.exists():
        pytest.skip("the data folder is not beside this checkout")
    files = {str(path.relative_to(DATA)) for path in DATA.rglob("*") if path.is_file() and path.suffix != ".md"}
    named = {name.split("/")[0] for name, *_ in KNOWN}
    assert {name for name in files if name.split("/")[0] in named} == {name for name, *_ in KNOWN}


def test_what_servegen_lengths_and_empty_windows_hold(capsys):
    _, found = run(capsys, data("servegen/length_pmf_deepseek-r1.jsonl.gz"))
    assert found["clients"] == 73
    assert any("108 objects have empty lists" in note for note in found["notes"])
    for name, clients in (("m-large", 162 - 15), ("m-small", 43 - 5), ("mm-image", 35)):
        assert run(capsys, data(f"servegen/length_summary_{name}.csv.gz"))[1]["clients"] == clients
    for name, clients in (("m-large", 162), ("deepseek-r1", 73), ("mm-image", 35)):
        notes = run(capsys, data(f"servegen/clients_{name}.csv.gz"))[1]["notes"]
        assert f"{clients} clients were added up" in notes


def test_the_text_names_columns_ranges_and_notes(capsys):
    code, text = run(capsys, data("mooncake/transfer_engine_bandwidth.csv"), json_wanted=False)
    assert code == 0
    assert "columns       10" in text
    assert "63.6 to 780.33" in text
    _, text = run(capsys, data("mooncake/conversation_trace.jsonl.gz"), json_wanted=False)
    for words in ("12,031", "37.4% from the prefix cache", "tick of 3 s", "in windows of 60 s"):
        assert words in text


def test_out_writes_what_json_prints(capsys, tmp_path):
    _, found = run(capsys, data("deployments/gpus.csv"), out=tmp_path / "o")
    assert json.loads((tmp_path / "o" / "inspect.json").read_text()) == found
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["inspect.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        run(capsys, data("deployments/gpus.csv"), out=tmp_path / "file")


def test_the_verb_has_help_an_example_and_flags():
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    args = parser.parse_args(["trace.csv", "--window", "5min"])
    assert (args.file, args.window) == ("trace.csv", "5min")
    assert inspect.EPILOG.startswith("example: fluidq inspect ")
    assert len(inspect.HELP) < 100


def test_the_window_is_a_time_above_zero(capsys):
    path = data("azure-llm-2023/AzureLLMInferenceTrace_conv.csv")
    assert run(capsys, path, window="300s")[1]["peak_to_mean"] == pytest.approx(1.32, abs=0.01)
    assert run(capsys, path, window="1h")[1]["peak_to_mean"] is None
    for window in ("0s", "-1s", "5GB", "soon", "1ns"):
        with pytest.raises(InputError, match="window"):
            run(capsys, path, window=window)


# Files that are none of these


def test_dropped_rows_are_listed_and_do_not_stop_the_report(capsys, tmp_path):
    path = tmp_path / "gpus.csv"
    rows = "\n".join(f"G{k},{k}e9,{k}e12,4e11" for k in range(1, 6))
    path.write_text(f"gpu,hbm_bytes,hbm_bytes_per_s,nic_bits_per_s_per_gpu\n{rows}\nBad,-1,1e12,4e11\nShort,1\n")
    code, found = run(capsys, path)
    assert (code, found["rows"], found["kept"], found["dropped"]) == (0, 7, 5, 2)
    assert found["reasons"][0] == [7, "hbm_bytes is '-1'; it must be a finite number from 0 to 1e+18."]
    assert found["reasons"][1] == [8, "the row has 2 fields; it must have 4."]
    _, text = run(capsys, path, json_wanted=False)
    assert "7, 5 kept, 2 dropped" in text
    assert "line 7: hbm_bytes" in text


def test_a_failed_request_is_counted_as_such(capsys, tmp_path):
    path = tmp_path / "burst.csv"
    rows = "\n".join(f"{t},GPT-4,10,{t % 2},{10 + t % 2},x" for t in range(40))
    path.write_text(f"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n{rows}\n")
    _, found = run(capsys, path)
    assert (found["format"], found["requests"], found["failed"]) == ("BurstGPT CSV", 20, 20)


def test_an_unknown_csv_is_a_table_and_hostile_text_stays_text(capsys, tmp_path):
    path = tmp_path / "any.csv"
    path.write_text("name,\x1b[31mred,n\n\x1b]0;title\x07,<script>,1\n" + "b,some longer plain text,2\n" * 20)
    _, found = run(capsys, path)
    assert (found["format"], found["rows"], found["ranges"]["n"]) == ("CSV table", 21, [1.0, 2.0])
    _, text = run(capsys, path, json_wanted=False)
    assert "\x1b" not in text
    assert "\x07" not in text


def npz(**arrays) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_archives_of_arrays_are_read_without_unpickling(capsys, tmp_path):
    path = tmp_path / "any.npz"
    path.write_bytes(npz(a=np.arange(6.0).reshape(2, 3), b=np.array(["x"])))
    _, found = run(capsys, path)
    assert (found["rows"], found["columns"], found["ranges"]) == (6, ["a", "b"], {"a": [0.0, 5.0]})

    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").write_text, ("x",))

    path.write_bytes(npz(a=np.array([Trap()], dtype=object)))
    with pytest.raises(InputError, match="never unpickled"):
        inspect_file(path)
    assert not (tmp_path / "sprung").exists()
    whole = npz(prefill_isl=np.arange(5), prefill_ttft=np.ones(5))
    for content in (whole[: len(whole) // 2], b"PK\x03\x04", whole[:-30], b"PK\x03\x04" + bytes(500)):
        path.write_bytes(content)
        with pytest.raises(InputError):
            inspect_file(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"shape": (10**12,), "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(64))
    with pytest.raises(InputError, match="does not fit"):
        inspect_file(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(400 << 20))
    with pytest.raises(InputError):
        inspect_file(path)


COEFFICIENTS = {"prefill": [1, 2, 3], "decoding_smallbs": [1, 2, 3], "decoding_largebs": [1, 2, 3]}


def test_coefficients_that_are_none_are_dropped(capsys, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"m": {"1": COEFFICIENTS, "2": {**COEFFICIENTS, "prefill": [1, 2]}}}))
    _, found = run(capsys, path)
    assert (found["rows"], found["kept"], found["dropped"]) == (2, 1, 1)
    assert "prefill is [1, 2]; it must be 3 finite numbers" in found["reasons"][0][1]
    path.write_text(json.dumps({"m": {"1": {**COEFFICIENTS, "prefill": None}}}))
    with pytest.raises(InputError, match="no usable entry"):
        inspect_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"# A heading\n\nSome prose.\n", "line 1: '# A heading' is no header of a table"),
        (b'{"a": 1}', "JSON that is no trace, profile or benchmark result"),
        (b'{"a": ', "no JSON"),
        (b"[1, 2, 3]", "JSON that is no trace"),
        (b"[" * 100_000, "nested too deeply"),
        (b"a,b\n", "holds a header and no rows"),
        (b"a,a\n1,2\n", "the column 'a' is given twice"),
        (b"1,2\n3,4\n", "is no header of a table"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "binary data"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-5], "damaged gzip"),
        (b"a,b\n" + b"1\n" * 5, "has no usable row"),
        (("x," * 20_000).encode() + b"\n1,2\n", "columns; a table has at most"),
    ],
)
def test_what_is_no_known_file_is_refused_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        inspect_file(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
