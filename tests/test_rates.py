"""Rates by roofline, fit and table: published figures, limits, gradients, and what is refused."""

import csv
import json
import math
from collections import defaultdict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq import rates
from fluidq._errors import InputError
from fluidq.formulas import ranks, requests
from tests.helpers import data

GRID = "aiconfigurator/model_grid.csv"
# grid model -> catalogue name, precision, type of its cache
MODELS = {
    "deepseek-ai/DeepSeek-V3": ("DeepSeek-V3", "fp8", "fp8"),
    "nvidia/DeepSeek-V3.1-NVFP4": ("DeepSeek-V3.1", "fp4", "fp8"),
    "Qwen/Qwen3-235B-A22B-FP8": ("Qwen3-235B-A22B", "fp8", "fp8"),
    "Qwen/Qwen3-32B-FP8": ("Qwen3-32B", "fp8", "fp8"),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("Llama-3.1-70B", "fp8", "fp8"),
    "meta-llama/Meta-Llama-3.1-70B": ("Llama-3.1-70B", "bf16", "bf16"),
    "zai-org/GLM-5-FP8": ("GLM-5", "fp8", "fp8"),
}


class Grid:
    """One model on one system in one role: times that fit in memory."""

    def __init__(self, rows):
        first = rows[0]
        self.tp, self.dp, self.gpus = (int(first[k]) for k in ("tp", "dp", "gpus"))
        self.batch, self.length, self.time = (
            np.array([float(r[k]) for r in rows]) for k in ("batch_per_rank", "isl_or_context", "latency_ms")
        )
        self.time = self.time / 1e3


@pytest.fixture(scope="module")
def grids():
    found = defaultdict(list)
    with data(GRID).open() as file:
        for row in csv.DictReader(file):
            if row["oom"] == "0":
                found[row["model"], row["system"].split("_")[0].upper(), row["role"]].append(row)
    return {key: Grid(rows) for key, rows in found.items()}


def simple_rates() -> dict[str, rates.AbstractRates]:
    """One of each route, with round figures."""
    side = rates.Side(gpus=4.0, weights=20e9, attention=2e6, reduce_bytes=1e5, reduce_rate=450e9)
    roofline = rates.Roofline(1e15, 3e12, 1.4e11, 1.6e5, side, side, efficiency=rates.DENSE)
    fitted = rates.FittedRates((0.02, 1e-5, 1e-9), (0.01, 1e-4, 2e-8), 4.0)
    grid_b, grid_c = (v.ravel() for v in np.meshgrid([1.0, 8.0, 64.0], [0.0, 1024.0, 8192.0]))
    table = rates.TabledRates.of(
        prefill={"prompts": [1, 1, 1], "isl": [512, 2048, 8192], "time": [0.03, 0.1, 0.5]},
        step={"batch": grid_b, "context": grid_c, "time": 0.01 + 1e-4 * grid_b + 2e-8 * grid_b * grid_c},
        prefill_gpus=4.0,
        outside="clamp",
    )
    return {"roofline": roofline, "fitted": fitted, "tabled": table}


# --- the interface -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["roofline", "fitted", "tabled"])
def test_every_route_has_the_limits_at_zero_length(route):
    r = simple_rates()[route]
    assert float(r.prefill_work(0.0)) == 0.0
    assert float(r.prefill_rate(0.0)) == 0.0  # a pass takes time of its own
    assert float(r.decode_work(8.0, 1024.0, 0.0)) == 0.0
    assert float(r.decode_work(0.0, 1024.0, 0.0)) == 0.0
    assert float(r.decode_work(0.0, 1024.0, 5.0)) == math.inf
    assert float(r.step_time(0.0, 0.0)) > 0
    for f in (r.prefill_work, r.prefill_rate, lambda x: r.decode_work(8.0, 1024.0, x)):
        assert np.isfinite(float(jax.grad(f)(0.0)))


def test_a_worker_without_overhead_has_its_rate_of_one_token_as_limit():
    r = rates.FittedRates((0.0, 2e-4, 0.0), (0.01, 0.0, 0.0), 2.0)
    assert float(r.prefill_rate(0.0)) == pytest.approx(2500.0)
    assert float(r.prefill_rate(1000.0)) == pytest.approx(2500.0)


@pytest.mark.parametrize("route", ["roofline", "fitted", "tabled"])
def test_every_route_maps_differentiates_and_jits(route):
    r = simple_rates()[route]
    isl = jnp.array([700.0, 1500.0, 3000.0])
    assert np.allclose(jax.vmap(r.prefill_rate)(isl), r.prefill_rate(isl), rtol=1e-12)
    batch, context = jnp.array([3.0, 20.0]), jnp.array([500.0, 4000.0])
    assert np.allclose(jax.jit(jax.vmap(r.step_time))(batch, context), r.step_time(batch, context), rtol=1e-12)
    for f, x in (
        (r.prefill_rate, 1500.0),
        (lambda b: r.step_time(b, 2000.0), 20.0),
        (lambda c: r.step_time(20.0, c), 2000.0),
    ):
        h = 1e-4 * x
        assert float(jax.grad(f)(x)) == pytest.approx(float(f(x + h) - f(x - h)) / (2 * h), rel=1e-5)
    moved = eqx.filter_grad(lambda q: q.step_time(20.0, 2000.0))(r)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(moved))


def test_the_rate_is_tokens_over_gpu_time_and_packing_helps_short_prompts():
    r = simple_rates()["fitted"]
    assert float(r.prefill_rate(1000.0)) == pytest.approx(1000 / (4 * (0.02 + 1e-5 * 1000 + 1e-9 * 1e6)))
    assert float(r.prefill_rate(1000.0, tokens=8000.0)) > 1.5 * float(r.prefill_rate(1000.0))
    assert float(r.prefill_work(1000.0)) == pytest.approx(1000 / float(r.prefill_rate(1000.0)))


# --- roofline ------------------------------------------------------------------------------------------------------


def test_at_the_peaks_the_roofline_is_the_articles_prefill_rate():
    side = rates.Side(gpus=8.0, weights=0.0)
    r = rates.Roofline(4.5e15, 8e12, 2 * 40e9, 95e3, side, side)
    assert float(r.prefill_rate(8192.0)) == pytest.approx(56_250.0)


def test_the_quadratic_term_is_half_a_prompt_attended():
    side = rates.Side(gpus=1.0, weights=0.0, attention=1e6)
    r = rates.Roofline(1e15, 8e12, 1e11, 1e5, side, side)
    work = requests.quadratic_prefill_work(isl=4096.0, isl_sq=4096.0**2, r_0=1e4, s_0=2e15 / 1e6)
    assert float(r.prefill_work(4096.0)) == pytest.approx(float(work))


def test_a_window_caps_what_is_attended():
    side = rates.Side(gpus=1.0, weights=0.0, window_attention=1e6)
    r = rates.Roofline(1e15, 8e12, 1e11, 1e5, side, side, window=128.0)
    full = rates.Side(gpus=1.0, weights=0.0, attention=1e6)
    q = rates.Roofline(1e15, 8e12, 1e11, 1e5, full, full)
    assert float(r.prefill_time(100.0, 100.0)) == pytest.approx(float(q.prefill_time(100.0, 100.0)))
    positions = np.minimum(np.arange(4096) + 0.5, 128.0).sum()
    assert float(r.prefill_time(4096.0, 4096.0)) == pytest.approx((4096 * 1e11 + 1e6 * positions) / 1e15, rel=1e-6)


def test_a_decode_step_reads_weights_and_cache_and_few_tokens_meet_few_experts():
    side = rates.Side(gpus=8.0, weights=5e9, expert_weights=80e9)
    r = rates.Roofline(1e18, 1e12, 1e9, 70e3, side, side, experts=256.0, top_k=8.0)
    met = 1 - (1 - 8 / 256) ** (2 * 8)
    assert float(r.step_time(2.0, 1000.0)) == pytest.approx((5e9 + 80e9 * met + 2 * 1000 * 70e3) / 1e12)
    assert float(r.step_time(200.0, 0.0)) == pytest.approx(85e9 / 1e12, rel=1e-6)
    sparse = eqx.tree_at(lambda q: q.kv_fixed, r, 184e6)
    more = float(sparse.step_time(2.0, 1000.0)) - float(r.step_time(2.0, 1000.0))
    assert more == pytest.approx(2 * 184e6 / 1e12)
    everyone = eqx.tree_at(lambda q: q.top_k, r, 256.0)
    assert np.isfinite(float(jax.grad(lambda b: everyone.step_time(b, 10.0))(0.0)))


def test_exchange_of_experts_is_dispatch_and_combine_of_deepep():
    # DeepEP's low-latency table, EP32: 128 tokens, 155 us to dispatch and 273 us to combine at 48 to 54 GB/s.
    rate = ranks.dispatch_bandwidth(tokens=128, top_k=8, hidden=7168, t_exchange=155e-6)
    side = rates.Side(gpus=32.0, weights=0.0, exchange_rate=float(rate))
    r = rates.Roofline(1e30, 1e30, 1.0, 1.0, side, side, top_k=8.0, experts=256.0, expert_layers=1.0, hidden=7168.0)
    assert float(r.step_time(128.0, 0.0)) == pytest.approx(155e-6 * (1 + 64 / 33), rel=1e-9)
    assert float(r.step_time(128.0, 0.0)) == pytest.approx(155e-6 + 273e-6, rel=0.1)


def test_every_efficiency_names_its_source_and_is_a_share():
    for factors in (rates.DENSE, rates.EXPERTS):
        named = dict(factors.sources)
        assert set(named) == {"compute", "hbm", "link", "pass_overhead", "step_overhead"}
        assert all(named.values())
        assert all(0 < getattr(factors, f) <= 1 for f in ("compute", "hbm", "link"))


def test_the_link_efficiency_is_what_was_measured_between_nodes():
    with data("vidur/h100_dgx_send_recv.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["devices_per_node"] == "1"]
    best = max(float(r["size"]) / (float(r["time_stats.send_recv.median"]) / 1e3) for r in rows)
    assert best / 50e9 == pytest.approx(rates.DENSE.link, abs=0.02)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_roofline_meets_the_modelled_grid(grids, role):
    """One set of factors per kind of model, no figure of the single model: medians within a quarter, worst within half.

    GLM-5's sparse attention is the exception: the grid fills its gaps by formula.
    """
    seen = 0
    for (model, gpu, part), g in grids.items():
        if part != role or model not in MODELS:
            continue
        name, precision, kv_dtype = MODELS[model]
        r = rates.from_catalog(
            name, gpu, tp=g.tp, prefill_gpus=g.gpus, decode_gpus=g.gpus, precision=precision, kv_dtype=kv_dtype
        )
        if role == "prefill":
            ours = r.prefill_time(g.batch * g.length * g.dp, g.length)
        else:
            ours = r.step_time(g.batch / g.tp, g.length)
        error = np.abs(np.asarray(ours) / g.time - 1)
        assert np.median(error) < (0.45 if name == "GLM-5" else 0.27), (model, gpu)
        assert error.max() < 0.55, (model, gpu)
        seen += 1
    assert seen >= 12


def test_from_catalog_refuses_what_the_catalogue_does_not_know():
    with pytest.raises(InputError, match="did you mean 'DeepSeek-V3'"):
        rates.from_catalog("DeepSeekV3", "H200")
    with pytest.raises(InputError, match="unknown GPU"):
        rates.from_catalog("DeepSeek-V3", "H201")
    with pytest.raises(InputError, match="prefill_gpus is 6; it must be a multiple of tp, 4"):
        rates.from_catalog("Llama-3.1-70B", "H100", tp=4, prefill_gpus=6)
    with pytest.raises(InputError, match="tp is 0"):
        rates.from_catalog("Llama-3.1-70B", "H100", tp=0)
    with pytest.raises(InputError, match="precision"):
        rates.from_catalog("Llama-3.1-70B", "H100", precision="fp4")


# --- fits ----------------------------------------------------------------------------------------------------------


def test_fits_of_the_grid_have_the_published_coefficients_and_errors(grids):
    """FINDINGS: DeepSeek-V3 on H200 and B200, Llama-3.1-70B on H100; prefill 1 to 3 %, decode up to 12 %."""
    v3 = "deepseek-ai/DeepSeek-V3"
    for gpu, prefill, step in (
        ("H200", (23.6e-3, 191e-6, 3.54e-9), (21.9e-3, 0.215e-3, 0.0338e-6)),
        ("B200", (22.9e-3, 68.2e-6, 1.37e-9), (19.3e-3, 0.087e-3, 0.0083e-6)),
    ):
        p, d = grids[v3, gpu, "prefill"], grids[v3, gpu, "decode"]
        fit_p = rates.fit_prefill(p.batch * p.length, p.length, p.time)
        fit_d = rates.fit_step(d.batch, d.length, d.time)
        assert fit_p.values == pytest.approx(prefill, rel=0.04)
        assert fit_d.values == pytest.approx(step, rel=0.01)
        assert all(fit_p.determined)
        assert all(fit_d.determined)
        assert fit_p.relative_mean < 0.03
        assert fit_d.relative_mean < 0.12
    llama = grids["nvidia/Llama-3.1-70B-Instruct-FP8", "H100", "decode"]
    assert rates.fit_step(llama.batch, llama.length, llama.time).values == pytest.approx(
        (9.8e-3, 0.039e-3, 0.0141e-6), rel=0.01
    )


def test_measured_profiles_give_rates_near_the_published_ones():
    with data("dynamo/prefill_profile.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == "h100_sxm" and r["tp"] == "4"]
    isl, time = (np.array([float(r[k]) for r in rows]) for k in ("isl", "ttft_ms"))
    fit = rates.fit_prefill(isl, isl, time / 1e3)
    r = rates.FittedRates(fit.values, (0.01, 0.0, 0.0), 4.0)
    assert fit.relative_mean < 0.05
    assert float(r.prefill_rate(4170.0)) == pytest.approx(4413, rel=0.05)
    with data("dynamo/decode_profile.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == "h100_sxm" and r["tp"] == "4"]
    batch, context, time = (
        np.array([float(r[k]) for r in rows]) for k in ("implied_batch", "context_length", "itl_ms")
    )
    fit = rates.fit_step(batch / 4, context, time / 1e3)
    step = rates.FittedRates((0.01, 0.0, 0.0), fit.values).step_time(93 / 4, 350.0)
    assert float(step) == pytest.approx(19.2e-3, rel=0.15)


def test_splitwise_profile_sweeps_axes_only_so_the_context_is_not_determined():
    with data("splitwise-sim/perf_model.csv").open() as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["model"], r["hardware"], r["tensor_parallel"]) == ("llama2-70b", "h100-80gb", "8")
        ]
    column = lambda name: np.array([float(r[name]) for r in rows])  # noqa: E731
    batch, isl, time = column("batch_size"), column("prompt_size"), column("prompt_time") / 1e3
    fit = rates.fit_prefill(batch * isl, isl, time)
    r = rates.FittedRates(fit.values, (0.01, 0.0, 0.0), 8.0)
    assert float(r.prefill_rate(512.0)) == pytest.approx(1199, rel=0.25)
    at_one_prompt = isl == 512
    only = rates.fit_step(
        batch[at_one_prompt] / 8, np.full(at_one_prompt.sum(), 576.0), column("token_time")[at_one_prompt] / 1e3
    )
    assert only.determined == (True, False, False)
    assert only.errors[1] == only.errors[2] == math.inf
    assert any("c [s/(seq tok)] is not determined" in note for note in only.notes)
    step = rates.FittedRates((0.01, 0.0, 0.0), only.values)
    assert float(step.step_time(1 / 8, 576.0)) == pytest.approx(29.8e-3, rel=0.15)
    assert float(step.step_time(8.0, 576.0)) == pytest.approx(50.2e-3, rel=0.15)


def test_distserve_coefficients_are_the_same_law():
    table = json.loads(data("distserve/profiler-a100-80g.distserve.json").read_text())
    assert sum(len(by_tp) for by_tp in table.values()) == 7
    for by_tp in table.values():
        for tp, entry in by_tp.items():
            a, b, c = (v / 1e3 for v in entry["prefill"])
            da, per_token, per_request = (v / 1e3 for v in entry["decoding_largebs"])
            r = rates.FittedRates((a, b, c), (da, per_request, per_token), float(tp))
            # Two prompts of 256: N = 512, S = 2 * 256^2.
            assert float(r.prefill_time(512.0, 256.0)) == pytest.approx(a + b * 512 + c * 2 * 256**2)
            assert float(r.step_time(64.0, 500.0)) == pytest.approx(da + per_token * 64 * 500 + per_request * 64)


@settings(max_examples=40, deadline=None)
@given(
    law=st.tuples(st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3), st.floats(1e-9, 1e-7)),
    seed=st.integers(0, 1000),
)
def test_a_fit_recovers_its_law_and_its_errors_cover_it(law, seed):
    rng = np.random.default_rng(seed)
    batch, context = rng.uniform(1, 256, 60), rng.uniform(256, 16384, 60)
    exact = law[0] + law[1] * batch + law[2] * batch * context
    assert rates.fit_step(batch, context, exact).values == pytest.approx(law, rel=1e-5)
    noisy = rates.fit_step(batch, context, exact * (1 + 0.02 * rng.standard_normal(60)))
    for value, error, true in zip(noisy.values, noisy.errors, law, strict=True):
        assert abs(value - true) < 6 * error + 1e-12 or error == 0.0
    assert noisy.relative_rms < 0.04


def test_a_fit_is_relative_and_weights_count():
    batch, context = np.array([1.0, 2.0, 4.0, 8.0, 64.0]), np.full(5, 1000.0) * np.array([1, 2, 1, 2, 1])
    time = np.array([0.010, 0.011, 0.012, 0.015, 0.9])  # the last one is an outlier ten times too slow
    plain, muted = rates.fit_step(batch, context, time), rates.fit_step(batch, context, time, [1, 1, 1, 1, 0])
    assert muted.points == 4
    assert muted.relative_worst < 0.05 < plain.relative_worst


def test_a_negative_coefficient_is_held_at_zero_and_said():
    batch = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    context = np.array([100.0, 900.0, 100.0, 900.0, 100.0, 900.0])
    fit = rates.fit_step(batch, context, 0.05 + 1e-3 * batch - 1e-7 * batch * context)
    assert fit.values[2] == 0.0
    assert fit.determined[2] is False
    assert any("held at 0" in note for note in fit.notes)
    assert "held at 0" in str(fit)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"time": [0.1, 0.2]}, "one per point"),
        ({"time": [0.1, 0.0, 0.2, 0.3]}, "time, point 2 is 0.0; it must be a finite number > 0 s"),
        ({"batch": [1.0, 2.0, math.nan, 4.0]}, "batch, point 3"),
        ({"context": [-1.0, 2.0, 3.0, 4.0]}, "context, point 1"),
        ({"weight": [1.0, 1.0, 0.0, 0.0]}, "three at least"),
    ],
)
def test_a_fit_refuses_bad_points_by_place(change, words):
    good = {"batch": [1.0, 2.0, 3.0, 4.0], "context": [10.0, 20.0, 30.0, 10.0], "time": [0.1, 0.2, 0.3, 0.4]}
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        rates.fit_step(**{**good, **change})


# --- tables --------------------------------------------------------------------------------------------------------


def test_a_table_returns_its_points_and_lies_between_them(grids):
    p, d = grids["Qwen/Qwen3-32B-FP8", "B200", "prefill"], grids["Qwen/Qwen3-32B-FP8", "B200", "decode"]
    r = rates.TabledRates.of(
        prefill={"prompts": p.batch, "isl": p.length, "time": p.time},
        step={"batch": d.batch, "context": d.length, "time": d.time},
        monotone=False,
    )
    assert np.allclose(r.step_time(d.batch, d.length), d.time, rtol=1e-12)
    assert np.allclose(r.prefill_time(p.batch * p.length, p.length), p.time, rtol=1e-12)
    fit = rates.fit_step(d.batch, d.length, d.time)
    between = float(r.step_time(100.0, 3000.0))
    assert between == pytest.approx(
        float(rates.FittedRates((0.0, 0.0, 0.0), fit.values).step_time(100.0, 3000.0)), rel=0.05
    )
    assert float(r.prefill_rate(8192.0)) == pytest.approx(30407, rel=1e-3)


def test_outside_a_table_is_refused_by_name_and_range_or_clamped():
    x, y = (v.ravel() for v in np.meshgrid([1.0, 4.0, 16.0], [100.0, 1000.0]))
    strict = rates.Curves.of(x, y, x + y / 100, ("batch", "context", "time"))
    with pytest.raises(InputError, match=r"batch is 17\.0; it must be from 1 to 16, inside the table"):
        strict(17.0, 500.0)
    with pytest.raises(InputError, match=r"context is 50\.0; it must be from 100 to 1000"):
        strict(2.0, 50.0)
    with pytest.raises(eqx.EquinoxRuntimeError, match="batch must be inside the table"):
        eqx.filter_jit(strict)(17.0, 500.0)
    loose = rates.Curves.of(x, y, x + y / 100, ("batch", "context", "time"), outside="clamp")
    assert float(loose(17.0, 5000.0)) == float(strict(16.0, 1000.0))
    assert float(loose(0.0, 0.0)) == float(strict(1.0, 100.0))
    with pytest.raises(InputError, match="outside is 'ignore'"):
        rates.Curves.of(x, y, x, outside="ignore")


def test_curves_need_not_share_their_points():
    table = rates.Curves.of([1, 2, 4, 1, 3], [10, 10, 10, 20, 20], [1.0, 2.0, 4.0, 10.0, 30.0])
    assert float(table(3.0, 10.0)) == pytest.approx(3.0)
    assert float(table(2.0, 15.0)) == pytest.approx(0.5 * 2.0 + 0.5 * 20.0)
    with pytest.raises(InputError, match="from 1 to 3"):
        table(3.5, 15.0)  # the curve at 20 ends at 3


def test_a_measured_curve_that_falls_is_repaired_to_the_nearest_that_does_not():
    raw = rates.Curves.of([1, 2, 3, 4], [0] * 4, [1.0, 3.0, 2.0, 5.0], outside="clamp")
    even = rates.Curves.of([1, 2, 3, 4], [0] * 4, [1.0, 3.0, 2.0, 5.0], outside="clamp", monotone=True)
    assert [float(raw(x, 0.0)) for x in (1.0, 2.0, 3.0, 4.0)] == [1.0, 3.0, 2.0, 5.0]
    assert [float(even(x, 0.0)) for x in (1.0, 2.0, 3.0, 4.0)] == [1.0, 2.5, 2.5, 5.0]


def test_a_clamped_pass_beyond_the_table_is_passes_one_after_the_other():
    r = simple_rates()["tabled"]
    one = float(r.prefill_time(2048.0, 2048.0))
    assert float(r.prefill_time(3 * 2048.0, 2048.0)) == pytest.approx(3 * one)
    assert float(r.prefill_time(1024.0, 2048.0)) == pytest.approx(one / 2)


def test_a_table_refuses_wrong_columns_and_values():
    with pytest.raises(InputError, match=r"prefill is .*; it must be the columns prompts, isl, time"):
        rates.TabledRates.of(prefill={"isl": [1.0], "time": [1.0]}, step={})
    with pytest.raises(InputError, match="time, point 2 is nan"):
        rates.Curves.of([1.0, 2.0], [1.0, 1.0], [1.0, math.nan], ("batch", "context", "time"))
    with pytest.raises(InputError, match="batch is '0 values'"):
        rates.Curves.of([], [], [], ("batch", "context", "time"))


# --- memory --------------------------------------------------------------------------------------------------------


def test_the_batch_is_what_fits_beside_weights_and_activations():
    memory = rates.Memory(hbm=141e9, weights=84e9, kv_per_token=70272.0, activations=9e9)
    assert float(memory.max_batch(4989.0)) == pytest.approx(48e9 / (70272 * 4989))
    assert float(memory.max_batch(0.0)) == math.inf
    memory.check(136, 4989)
    with pytest.raises(
        InputError, match=r"batch is 140; it must be at most 136: .* need 49\.1 GB per GPU, 1\.08 GB more"
    ):
        memory.check(140, 4989)


def test_prefill_activations_cost_decode_a_quarter_of_its_batch():
    # vLLM, EP16: 15.8 GiB of activations at 8192 tokens per pass, 5.7 at 2048; KV pool 48 -> 60 GiB (V14).
    gib = 2**30
    small, large = (rates.Memory(80 * gib, 16.2 * gib, 1.0, a * gib) for a in (5.7, 15.8))
    assert float(small.max_batch(1.0) / large.max_batch(1.0)) == pytest.approx(60 / 48, abs=0.04)


def test_weights_that_do_not_fit_say_by_how_much():
    memory = rates.Memory(hbm=80e9, weights=86e9, kv_per_token=7e4, activations=4e9)
    assert float(memory.max_batch(1000.0)) == 0.0
    with pytest.raises(
        InputError, match=r"hbm is '80 GB'; it must be 10 GB more: weights \(86 GB\) and activations \(4 GB\)"
    ):
        memory.check(1, 1000)
    for batch, context, words in ((-1, 10, "batch is -1"), (math.nan, 10, "batch is nan"), (1, -5, "context is -5")):
        with pytest.raises(InputError, match=words):
            memory.check(batch, context)
