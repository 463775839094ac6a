"""The catalogue's figures against the published tables, a user's file over them, and the presets made from them."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from fluidq import catalog
from fluidq._errors import InputError
from fluidq.deployment import Deployment, mean_context
from tests.helpers import data


def table(path: str) -> list[dict[str, str]]:
    with data(path).open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_every_figure_has_a_source():
    figures: list[catalog.Figure | None] = []
    for gpu in catalog.gpus().values():
        assert gpu.scaleup is not None
        figures += [*gpu.peaks.values(), gpu.hbm, gpu.hbm_rate, gpu.nic, gpu.scaleup, gpu.pcie]
    for model in catalog.models().values():
        figures += [model.params_active, model.params_total, *model.weights.values(), *model.kv, model.kv_scan]
        figures += [rate.figure for rate in model.prefill]
        assert model.architecture is not None
        assert all(len(text) > 10 for text in (model.architecture.source, *(step.source for step in model.steps)))
        assert all(figure.label for figure in model.kv)
        assert all(entry.precision in ("bf16", "fp8", "fp4") for entry in (*model.steps, *model.prefill))
    figures += [link.rate for link in catalog.links().values()]
    for transfer in catalog.transfers():
        figures += [transfer.measured, transfer.nominal, transfer.size]
    given = [figure for figure in figures if figure is not None]
    assert len(given) > 300
    assert all(figure.value > 0 and len(figure.source) > 10 for figure in given)


def test_what_the_catalogue_holds():
    gpus = "A100 H100 H200 H800 H20 B200 B300 GB200 GB300 MI300X MI325X MI355X"
    assert set(gpus.split()) <= set(catalog.gpus())
    models = "GLM-5.2 GLM-5 DeepSeek-V3 DeepSeek-R1 DeepSeek-V3.2 Kimi-K2 Qwen3-235B-A22B Qwen3-32B Llama-3.1-8B"
    assert {*models.split(), "Llama-3.1-70B", "Llama-3.1-405B", "gpt-oss-120b"} <= set(catalog.models())
    rates = [catalog.link(name).rate.value for name in ("100G", "ConnectX-6", "NDR", "RDMA-800G", "NVLink5", "PCIe5")]
    assert rates == [12.5e9, 25e9, 50e9, 100e9, 900e9, 64e9]


def test_links_agree_with_the_gpus():
    for gpu, link in (("A100", "NVLink3"), ("H200", "NVLink4"), ("H800", "NVLink4-H800"), ("GB300", "NVLink5")):
        assert catalog.gpu(gpu).scaleup == catalog.link(link).rate
    assert {link.kind for link in catalog.links().values()} == {"rdma", "scaleup", "pcie"}


@pytest.mark.parametrize("name", ["B200", "b200", "B200-SXM"])
def test_gpu_names(name: str):
    assert catalog.gpu(name).name == "B200"


@pytest.mark.parametrize("name", ["GLM-5.2", "glm-5.2", "zai-org/GLM-5.2"])
def test_model_names(name: str):
    assert catalog.model(name).name == "GLM-5.2"


def test_unknown_names_give_the_nearest():
    with pytest.raises(InputError, match=r"unknown GPU 'B20'; did you mean 'B200'\? Known: A100, .*RTX-PRO-6000\."):
        catalog.gpu("B20")
    with pytest.raises(InputError, match=r"unknown model 'GLM5\.2'; did you mean 'GLM-5\.2'\?"):
        catalog.model("GLM5.2")
    with pytest.raises(InputError, match="unknown link 'ConnectX7'"):
        catalog.link("ConnectX7")
    with pytest.raises(InputError, match=r"model 'deepseek-ai/DeepSeek-V4-Pro' is not in the catalogue: its attention"):
        catalog.model("deepseek-ai/DeepSeek-V4-Pro")


def test_gpus_against_the_published_table():
    """Every row and every figure, but for one."""
    rows = table("deployments/gpus.csv")
    assert len(rows) == 13
    for row in rows:
        gpu = catalog.gpu(row["gpu"])
        for precision in ("bf16", "fp8", "fp4"):
            peak = row[f"{precision}_dense_flop_per_s"]
            assert (gpu.peaks[precision].value if precision in gpu.peaks else "") == (float(peak) if peak else "")
        assert gpu.hbm_rate.value == float(row["hbm_bytes_per_s"])
        assert gpu.nic.value == float(row["nic_bytes_per_s_per_gpu"]) == float(row["nic_bits_per_s_per_gpu"]) / 8
        assert gpu.scaleup is not None
        assert gpu.scaleup.value == float(row["scaleup_bytes_per_s_one_direction"])
        assert gpu.scaleup_gpus == int(row["scaleup_domain_gpus"])
        # B200: the article counts 192 GB where this table has 180 GB; the catalogue's note says so.
        assert gpu.hbm.value == (192e9 if gpu.name == "B200" else float(row["hbm_bytes"]))


# System files that differ from the specs file: what is beside the catalogue's figure in its note, or rounding.
SYSTEMS = {
    ("a100_sxm", "hbm"): "80 GiB",
    ("h100_sxm", "hbm"): "80 GiB",
    ("h100_pcie", "hbm"): "80 GiB",
    ("h200_sxm", "hbm"): "141 GiB",
    ("b200_sxm", "hbm"): "193.3 GB",
    ("b200_sxm", "hbm_rate"): "7.7 TB/s",
    ("b200_sxm", "nic"): "800 Gb/s",
    ("b300_sxm", "hbm"): "288.4 GB",
    ("b300_sxm", "hbm_rate"): "7.75 TB/s",
    ("b300_sxm", "fp4"): "14 PFLOP/s",
    ("gb200", "hbm"): "198.7 GB",
    ("gb300", "hbm"): "298.0 GB",
}


def test_gpus_against_the_system_files():
    """Every row: equal to 0.1 %, or a difference that is listed above, of at most 11 % or in the NIC."""
    alias = {"h100_pcie": "H100-PCIe", "rtx_pro_6000_server": "RTX-PRO-6000"}
    different = set()
    rows = table("aiconfigurator/systems.csv")
    assert len(rows) == 10
    for row in rows:
        gpu = catalog.gpu(alias.get(row["system"], row["system"].replace("_", "-")))
        assert gpu.scaleup is not None
        assert gpu.pcie is not None
        between = row["inter_rack_bytes_per_s_per_gpu"] or row["inter_node_bytes_per_s_per_gpu"]
        pairs = {
            "hbm": (gpu.hbm, row["hbm_bytes"]),
            "hbm_rate": (gpu.hbm_rate, row["hbm_bytes_per_s"]),
            "nic": (gpu.nic, between),
            "scaleup": (gpu.scaleup, row["intra_node_bytes_per_s_per_gpu"]),
            "pcie": (gpu.pcie, row["pcie_bytes_per_s"]),
            **{p: (gpu.peaks.get(p), row[f"{p}_flops"]) for p in ("bf16", "fp8", "fp4")},
        }
        for field, (figure, published) in pairs.items():
            if published == "":
                assert figure is None
                continue
            assert figure is not None
            if figure.value != pytest.approx(float(published), rel=1e-3):
                different.add((row["system"], field))
                assert field == "nic" or figure.value == pytest.approx(float(published), rel=0.11)
    assert different == set(SYSTEMS)
    for (system, _), words in SYSTEMS.items():
        assert words.endswith("GiB") or words in catalog.gpu(system.replace("_", "-")).note


def test_transfers_against_the_published_tables():
    mine = {transfer.name: transfer for transfer in catalog.transfers()}
    seen = 0
    for row in table("deployments/fabric.csv"):
        name = row["fabric_id"].replace("hkust-h800-sgl048", "sglang-h800")
        if row["kind"] != "measured":  # a threshold of a whole system, and a link that is in the table of links
            assert name not in mine
            continue
        assert mine[name].measured.value == float(row["measured_bytes_per_s"])
        assert mine[name].efficiency == pytest.approx(float(row["efficiency"]), rel=1e-12)
        size = mine[name].size
        assert (size.value if size else "") == (float(row["transfer_bytes"]) if row["transfer_bytes"] else "")
        seen += 1
    assert seen == 5
    best: dict[tuple[str, str], float] = {}
    for row in table("mooncake/transfer_engine_bandwidth.csv"):
        if row["path"] == "gpu-gpu" and row["write_gbyte_s"]:
            key = (row["node"], row["block_kib"])
            best[key] = max(best.get(key, 0.0), float(row["write_gbyte_s"]) * 1e9)
    for name, key in {
        "mooncake-te-h100-1MiB": ("AWS p5 (8x H100)", "1024"),
        "mooncake-te-h200-1MiB": ("AWS p5en (8x H200)", "1024"),
        "mooncake-te-h200-256KiB": ("AWS p5en (8x H200)", "256"),
        "mooncake-te-h200-128KiB": ("AWS p5en (8x H200)", "128"),
        "mooncake-te-h200-64KiB": ("AWS p5en (8x H200)", "64"),
        "mooncake-te-b300-1MiB": ("AWS p6-b300 (8x B300)", "1024"),
    }.items():
        assert mine[name].measured.value == best[key]


def test_models_against_the_published_table():
    """Every row that has KV figures; the two that have none are refused by name."""
    seen = 0
    for row in table("deployments/models.csv"):
        if not row["kv_bytes_per_tok_bf16"]:
            with pytest.raises(InputError, match=f"model '{row['model']}' is not in the catalogue: "):
                catalog.model(row["model"])
            continue
        model = catalog.model(row["model"])
        kv = [figure.value for figure in model.kv]
        assert float(row["kv_bytes_per_tok_bf16"]) in kv
        assert float(row["kv_bytes_per_tok_fp8"]) in kv
        if row["params_active_published"]:
            assert model.params_active.value == float(row["params_active_published"])
            assert model.params_total.value == pytest.approx(float(row["params_total_published"]), rel=0.01)
        else:
            assert model.params_active.value == pytest.approx(float(row["params_active_counted"]), rel=5e-4)
            assert model.params_total.value == pytest.approx(float(row["params_total_counted"]), rel=5e-4)
        seen += 1
    assert seen == 17


GRID_NAMES = {
    "GLM-5 NVFP4": "nvidia/GLM-5-NVFP4",
    "GLM-5 FP8": "zai-org/GLM-5-FP8",
    "DeepSeek-V3 FP8": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V3 NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "Llama-3.1-70B FP8": "nvidia/Llama-3.1-70B-Instruct-FP8",
    "Llama-3.1-70B BF16": "meta-llama/Meta-Llama-3.1-70B",
    "Qwen3-235B-A22B FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen3-32B FP8": "Qwen/Qwen3-32B-FP8",
}


def test_step_fits_are_those_of_the_modelled_grid():
    rows = [r for r in table("aiconfigurator/model_grid.csv") if r["role"] == "decode" and r["oom"] == "0"]
    fits = {step.label: step for model in catalog.models().values() for step in model.steps}
    assert len(fits) == len({(r["model"], r["system"]) for r in rows}) == 15  # all that the grid has
    for label, step in fits.items():
        name = GRID_NAMES[label.split(" on ")[0]]
        mine = [r for r in rows if r["model"] == name and r["system"] == f"{step.gpu.lower()}_sxm"]
        batch, context, latency = (
            np.array([float(r[key]) for r in mine]) for key in ("batch_per_rank", "isl_or_context", "latency_ms")
        )
        terms = np.stack([np.ones_like(batch), batch, batch * context], axis=1) / latency[:, None]
        solution, *_ = np.linalg.lstsq(terms, np.ones_like(latency), rcond=None)
        np.testing.assert_allclose([step.a, step.b, step.c], solution * 1e-3, rtol=0.008)  # rounded as published
        error = np.abs(terms @ np.array([step.a, step.b, step.c]) * 1e3 - 1).mean()
        assert error == pytest.approx(step.error, abs=0.002)
        assert {int(r["tp"]) for r in mine} == {step.rank_gpus}
        assert {int(r["gpus"]) for r in mine} == {step.worker_gpus}


def test_modelled_prefill_rates_are_those_of_the_grid():
    rows = [r for r in table("aiconfigurator/model_grid.csv") if r["role"] == "prefill"]
    one = {
        (r["model"], r["system"]): float(r["isl_or_context"]) / (float(r["latency_ms"]) * 1e-3 * int(r["tp"]))
        for r in rows
        if r["isl_or_context"] == "8192" and r["batch_per_rank"] == "1"
    }
    seen = 0
    for model in catalog.models().values():
        for rate in model.prefill:
            if rate.figure.label.startswith("modelled"):
                kind = {"fp4": "NVFP4", "fp8": "FP8", "bf16": "BF16"}[rate.precision]
                assert f"{kind} on {rate.gpu}" in rate.figure.label
                base = "GLM-5" if model.name == "GLM-5.2" else model.name
                key = (GRID_NAMES[f"{base} {kind}"], f"{rate.gpu.lower()}_sxm")
                assert rate.figure.value == pytest.approx(one[key], abs=0.6)
                seen += 1
    assert seen == len(one) + 1 == 16  # GLM-5.2 names one of GLM-5's


def test_the_measured_prefill_rate_is_in_the_deployments_table():
    (row,) = [r for r in table("deployments/deployments.csv") if r["row_id"] == "glm52-b300-32k"]
    figures = [p.figure for p in catalog.model("GLM-5.2").prefill if p.figure.label.startswith("measured")]
    assert [f.value for f in figures] == [float(row["r_P_tok_per_s_gpu"])]


def test_glm_on_b200_is_the_articles_example():
    d = Deployment.preset("GLM-5.2", "B200", nic="400Gbps")
    assert d.r_P == 56250.0
    assert d.kappa_store == 95000.0
    assert d.nic == 50e9
    assert (d.t_step_a, d.t_step_b, d.t_step_c) == (19.2e-3, 0.104e-3, 7.9e-9)
    assert d.t_step(64, 8703.5) == pytest.approx(19.2e-3 + 0.104e-3 * 64 + 7.9e-9 * 64 * 8703.5, rel=1e-15)
    assert d.weights / d.gpus_per_decode_worker == pytest.approx(93.0e9, rel=1e-3)  # D32
    assert d.free_hbm() == pytest.approx(99.0e9, rel=1e-3)  # D32
    assert {a.value for a in d.alternatives["kappa_store"]} == {94720, 95232, 53940, 47700}
    assert {a.value for a in d.alternatives["r_P"]} == {10830, 13114}


def test_the_kv_sizes_are_their_own_formulas():
    kv = [figure.value for figure in catalog.model("GLM-5.2").kv]
    assert kv[1:] == [
        78 * 576 * 2 + 19 * 256,
        78 * 576 * 2 + 21 * 256,
        78 * 656 + 21 * 132,
        78 * 576 + 21 * 132,
    ]
    assert catalog.model("GLM-5").kv[0].value == 78 * 576 * 2 + 78 * 256
    assert catalog.model("DeepSeek-V3").kv[0].value == 61 * 576 * 2
    assert catalog.model("Llama-3.1-70B").kv[0].value == 80 * 2 * 8 * 128 * 2


def test_overrides():
    d = Deployment.preset(
        "GLM-5.2", "B200", prefill_efficiency=0.2, kv_bytes_per_token="47.7kB", batch=32, fabric="3.2Tbps"
    )
    assert d.r_P == pytest.approx(11250.0)
    assert (d.kappa_store, d.batch, d.fabric) == (47700.0, 32.0, 400e9)
    assert d.sources["kappa_store"].label == "as given"
    assert Deployment.preset("GLM-5.2", "B200", r_P="13114tok/s").r_P == 13114.0
    assert Deployment.preset("GLM-5.2", "B200", kv_bytes_per_token=95232.0).kappa_store == 95232.0


def test_a_rank_of_four_gpus_holds_four_times_the_batch_per_gpu():
    d = Deployment.preset("Llama-3.1-70B", "H100")
    assert d.gpus_per_decode_worker == 4
    # The published fit: 9.8 ms + 0.039 ms B + 0.0141 ms B ctx/1k with B per rank of four GPUs.
    assert d.t_step(8, 4096) == pytest.approx((9.8 + 0.039 * 32 + 0.0141 * 32 * 4.096) * 1e-3, rel=1e-12)


def test_without_a_fit_the_step_is_a_roofline():
    d = Deployment.preset("Llama-3.1-70B", "A100")  # no FP8 there: bf16
    assert d.r_P == pytest.approx(312e12 / (2 * 70e9))
    assert d.t_step(10, 1000) == pytest.approx((141.1e9 / 4 + 10 * 1000 * 327680) / 2.039e12, rel=1e-12)
    assert d.sources["t_step"].label.startswith("roofline")
    # GLM-5.2 reads less of its cache than it stores: the indexer's keys and the top 2048 entries.
    d = Deployment.preset("GLM-5.2", "H100")
    assert d.t_step(10, 1000) == pytest.approx((743.7e9 / 16 + 10 * (184e6 + 4864 * 1000)) / 3.35e12, rel=1e-12)


def test_workers_double_until_the_weights_fit():
    assert Deployment.preset("GLM-5.2", "H100").gpus_per_decode_worker == 16
    assert Deployment.preset("GLM-5.2", "H200").gpus_per_decode_worker == 8
    assert Deployment.preset("GLM-5.2", "A100").gpus_per_decode_worker == 32  # bf16


@pytest.mark.parametrize("model", ["GLM-5.2", "GLM-5", "DeepSeek-V3", "Llama-3.1-70B"])
@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "B200"])
def test_every_pair_has_a_preset(model: str, gpu: str):
    d = Deployment.preset(model, gpu)
    assert 0 < d.weights / d.gpus_per_decode_worker < 0.75 * d.hbm
    assert 1e-3 < d.t_step(8, 4096) < 0.2
    assert set(d.sources) == {"r_P", "kappa_store", "t_step", "nic", "hbm", "weights"}


def test_mean_context_is_the_mean_over_the_steps():
    assert mean_context(100, 7) == np.mean([100 + j for j in range(7)])
    assert mean_context(100, 1) == mean_context(100, 0) == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "GLM-52"}, "unknown model 'GLM-52'; did you mean 'GLM-5.2'?"),
        ({"gpu": "H2000"}, "unknown GPU 'H2000'; did you mean 'H200'?"),
        ({"precision": "fp88"}, "unknown precision for GLM-5.2 on B200 'fp88'; did you mean 'fp8'?"),
        ({"nic": "400"}, "write 400Gbps or 50GB/s"),
        ({"nic": "-5GB/s"}, "nic is '-5GB/s'; it must be a data rate > 0 B/s."),
        ({"nic": math.nan}, "nic is nan; it must be a data rate, not NaN."),
        ({"kv_bytes_per_token": "95"}, "write 95kB"),
        ({"prefill_efficiency": 0.0}, "prefill_efficiency is 0.0; it must be a plain number > 0."),
        ({"prefill_efficiency": 1.5}, "prefill_efficiency is 1.5; it must be a share of peak in (0, 1]."),
        ({"r_P": "5GB/s"}, "'GB/s' is the unit of a data rate"),
        ({"batch": 0}, "batch is 0; it must be a plain number > 0."),
        ({"batch": math.inf}, "batch is inf; it must be a finite number."),
        ({"gpus_per_prefill_worker": 0}, "gpus_per_prefill_worker is 0; it must be a whole number of GPUs >= 1."),
        (
            {"gpus_per_decode_worker": 2},
            "gpus_per_decode_worker is 2; it must be at least 4: 372 GB of weights per GPU are 180 GB more than its "
            "192 GB of HBM.",
        ),
    ],
)
def test_bad_input(given: dict, message: str):
    with pytest.raises(InputError) as caught:
        Deployment.preset(**{"model": "GLM-5.2", "gpu": "B200", **given})
    assert message in str(caught.value)


OWN = {
    "model": "mine",
    "gpu": "mine",
    "r_P": 1e4,
    "kappa_store": 1e5,
    "t_step_a": 0.02,
    "t_step_b": 0.0,
    "t_step_c": 0.0,
    "batch": 64,
    "nic": 50e9,
    "hbm": 192e9,
}


@pytest.mark.parametrize("name", ["r_P", "kappa_store", "t_step_a", "t_step_b", "t_step_c", "batch", "nic", "hbm"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_every_field_is_checked(name: str, value: float):
    with pytest.raises(InputError, match=f"^{name} is"):
        Deployment(**{**OWN, name: value})


def test_a_step_takes_time():
    with pytest.raises(InputError, match="a step takes time"):
        Deployment(**{**OWN, "t_step_a": 0.0})


def test_a_batch_that_does_not_fit_says_by_how_much():
    d = Deployment.preset("GLM-5.2", "B200")
    d.check_memory(8703.5)
    with pytest.raises(InputError) as caught:
        d.check_memory(131072)
    assert str(caught.value) == (
        "batch is 64.0; it must be at most 7: 64 sequences x 131,072 tok x 95,000 B need 797 GB per GPU, "
        "698 GB more than the 99 GB left of 192 GB HBM by weights."
    )
    Deployment.preset("GLM-5.2", "B200", batch=7).check_memory(131072)
    with pytest.raises(InputError, match="at most 7"):
        Deployment.preset("GLM-5.2", "B200", batch=8).check_memory(131072)
    with pytest.raises(InputError, match="not one sequence fits"):
        d.check_memory(2e6)


# --- the user's own file ----------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


MINE = """
[sources]
lab = "measured in our lab, 3 May"

[gpus.B200]
hbm = { value = "180 GiB", source = "lab" }
nic = "800 Gbps"

[gpus.X1]
aliases = ["X1-SXM"]
bf16 = "1 PFLOP/s"
hbm = "100 GB"
hbm_rate = "4 TB/s"
nic = "400 Gbps"

[models."GLM-5.2"]
kv = { value = "47.7 kB", label = "fp8", source = "lab" }
prefill = { value = "9000 tok/s", gpu = "X1", label = "measured" }
weights = { fp4 = "400 GB" }
steps = { gpu = "X1", a = "9 ms", b = "10 us", c = "1 ns" }

[models.tiny]
worker_gpus = 2
config = { num_hidden_layers = 2, hidden_size = 64, num_attention_heads = 4, vocab_size = 100, intermediate_size = 256 }
steps = [{ gpu = "x1", a = "5 ms", b = "10 us", c = "1 ns", precision = "bf16" }]

[links.ours]
rate = "25 GB/s"
"""


def test_a_users_file_extends_and_overrides(tmp_path: Path):
    mine, own = catalog.load(written(tmp_path, MINE)), str(tmp_path / "mine.toml")
    b200 = mine.gpu("b200-sxm")
    assert (b200.hbm.value, b200.hbm.source) == (180 * 2**30, "measured in our lab, 3 May")
    assert (b200.nic.value, b200.nic.source, b200.nic.label) == (100e9, own, "as given")
    assert b200.hbm_rate == catalog.gpu("B200").hbm_rate
    assert (mine.gpu("x1-sxm").name, mine.gpu("X1").scaleup) == ("X1", None)
    glm, before = mine.model("GLM-5.2"), catalog.model("GLM-5.2")
    assert [figure.value for figure in glm.kv] == [47700.0, *(figure.value for figure in before.kv)]
    assert (glm.weights["fp4"].value, glm.weights["fp8"]) == (400e9, before.weights["fp8"])
    assert [rate.figure.value for rate in glm.prefill] == [9000.0, 10830.0, 13114.0]
    assert [step.a for step in glm.steps] == [9e-3, *(step.a for step in before.steps)]
    tiny = mine.model("tiny")
    assert tiny.kv[0].value == 2 * 2 * 64 * 2
    assert tiny.params_total.value == 2 * (4 * 64 * 64 + 3 * 64 * 256) + 2 * 64 * 100
    assert (tiny.worker_gpus, tiny.steps[0].a, tiny.steps[0].gpu) == (2, 5e-3, "X1")
    assert mine.link("ours").rate.value == 25e9
    # What the file does not name is the catalogue's own, and the catalogue itself is as it was.
    assert mine.model("Qwen3-32B") is catalog.model("Qwen3-32B")
    assert catalog.gpu("B200").hbm.value == 192e9
    assert catalog.load() is catalog.load(None)


def test_files_stack(tmp_path: Path):
    first = catalog.load(written(tmp_path, '[gpus.B200]\nhbm = "1 GB"\nnic = "1 GB/s"\n'))
    second = catalog.load(written(tmp_path, '[gpus.B200]\nhbm = "2 GB"\n'), base=first)
    assert (second.gpu("B200").hbm.value, second.gpu("B200").nic.value) == (2e9, 1e9)


def test_a_model_from_a_config_file_beside_the_toml(tmp_path: Path):
    configs = Path(__file__).parent / "configs"
    (tmp_path / "config.json").write_text((configs / "Qwen3-8B.json").read_text())
    mine = catalog.load(written(tmp_path, '[models."GLM-5.2"]\nconfig = "config.json"\n'))
    model = mine.model("GLM-5.2")
    # Nothing that was published for the old architecture is left.
    assert [figure.value for figure in model.kv] == [147456.0, 73728.0]
    assert (model.steps, model.prefill, model.kv_fixed.value) == ((), (), 0.0)
    assert model.weights["fp8"].value == model.params_total.value == pytest.approx(8.19e9, rel=1e-3)
    assert model.kv[0].source == str(tmp_path / "config.json")


BAD_FILES = [
    ("[gpus.B200]\nhbm = 180", "gpus.B200.hbm is 180; it must be a size with its unit, bits or bytes: write 180GB"),
    ('[gpus.B200]\nhbm = "180 Gbps"', "gpus.B200.hbm is '180 Gbps'"),
    ('[gpus.B200]\nhbm = "0 GB"', "gpus.B200.hbm is '0 GB'; it must be a size > 0 B."),
    ("[gpus.B200]\nhbm = nan", "gpus.B200.hbm is nan"),
    ("[gpus.B200]\nhbm = true", "gpus.B200.hbm is True; it must be text with its unit, or a number."),
    ("[gpus.B200]\nhbm = [1]", "gpus.B200.hbm is [1]; it must be text"),
    ("[gpus.B200]\nhbm = { label = 'x' }", "gpus.B200.hbm.value is missing"),
    ("[gpus.B200]\nhbm = { value = '1 GB', unit = 'GB' }", "unknown field of {file}: gpus.B200.hbm 'unit'"),
    ("[gpus.B200]\nnic = '400'", "write 400Gbps or 50GB/s"),
    ("[gpus.B200]\nhbmrate = '8 TB/s'", "unknown field of {file}: gpus.B200 'hbmrate'; did you mean 'hbm_rate'?"),
    ("[gpus.B200]\nscaleup_gpus = 0", "gpus.B200.scaleup_gpus is 0; it must be a whole number of GPUs >= 1."),
    ("[gpus.B200]\naliases = 'x'", "gpus.B200.aliases is 'x'; it must be a list of names."),
    ("[gpus.B200]\nnote = 3", "gpus.B200.note is 3; it must be text."),
    ("[gpus.B200]\nhbm = { value = '1 GB', source = 3 }", "gpus.B200.hbm.source is 3; it must be text."),
    ("[gpus.new]\nhbm = '1 GB'", "gpus.new has no peak rate; give bf16, fp8 or fp4."),
    ("[gpus.new]\nbf16 = '1 PFLOP/s'", "gpus.new.hbm is missing"),
    ("[gpus]\nnew = 3", "gpus.new is 3; it must be a table with"),
    ("gpus = 3", "gpus is 3; it must be tables such as [gpus.NAME]."),
    ("[gpu.B200]\nhbm = '1 GB'", "unknown table of {file} 'gpu'; did you mean 'gpus'?"),
    ("[sources]\na = 3", "sources is {'a': 3}; it must be a table of texts."),
    ("[models.GLM-5.2]\nworker_gpus = 4", "(a name that holds a dot needs quotes) '2'"),
    ("[models.mine]\nworker_gpus = 4", "models.mine.params_active is missing; give it, or a config to count it from."),
    ("[models.GLM-5]\nworker_gpus = 1.5", "models.GLM-5.worker_gpus is 1.5; it must be a whole number"),
    ("[models.GLM-5]\nkv = []", "models.GLM-5.kv is []; it must be at least one size per token."),
    ("[models.GLM-5]\nkv = '95 GB/s'", "'GB/s' is the unit of a data rate"),
    ("[models.GLM-5]\nweights = { fp9 = '1 GB' }", "GLM-5.weights 'fp9'; did you mean 'fp8'?"),
    ("[models.GLM-5]\nconfig = 3", "models.GLM-5.config is 3; it must be the path of a config.json, or a table"),
    ("[models.GLM-5]\nconfig = 'no.json'", "no.json'; it must be a config.json or the folder that holds one."),
    ("[models.GLM-5]\nconfig = { hidden_size = 4 }", "models.GLM-5.config: num_hidden_layers is missing"),
    ("[models.GLM-5]\nsteps = 3", "models.GLM-5.steps is 3; it must be an array of tables."),
    ("[models.GLM-5]\nsteps = { gpu = 'H100', a = '1 ms', b = '0 s' }", "models.GLM-5.steps.c is missing"),
    (
        "[models.GLM-5]\nsteps = { gpu = 'H100', a = '0 s', b = '0 s', c = '0 s' }",
        "models.GLM-5.steps.a is 0.0; it must be > 0 s where b and c are 0 (a step takes time).",
    ),
    (
        "[models.GLM-5]\nsteps = { gpu = 'H1', a = 1, b = 0, c = 0 }",
        "unknown GPU in {file}: models.GLM-5.steps 'H1'; did",
    ),
    ("[models.GLM-5]\nprefill = { gpu = 'H100', value = '-3 tok/s' }", "models.GLM-5.prefill is '-3 tok/s'"),
    ("[models.GLM-5]\nsteps_of = 'GLM-6'", "unknown model in {file}: models.GLM-5.steps_of 'GLM-6'; did you mean"),
    ("[links.x]\nkind = 'rmda'\nrate = '1 GB/s'", "unknown kind of {file}: links.x 'rmda'; did you mean 'rdma'?"),
    ("[links.x]\nkind = 'rdma'", "links.x.rate is missing"),
    ("[gpus.B200", "is not TOML"),
    ("#" * (4 * 2**20 + 1), "it must be a TOML file of at most 4,194,304 bytes."),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(tmp_path: Path, text: str, message: str):
    file = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        catalog.load(file)
    assert message.replace("{file}", str(file)) in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    for path in (tmp_path, tmp_path / "no.toml"):
        with pytest.raises(InputError, match="it must be a TOML file"):
            catalog.load(path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(InputError, match="is not TOML"):
        catalog.load(tmp_path / "latin.toml")
