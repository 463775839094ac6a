"""Sizing against the article's example, brute force and published splits; bounds against the published tables."""

import argparse
import csv
import dataclasses
import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidq import catalog
from fluidq._errors import InputError
from fluidq._size_buffer import block_efficiency
from fluidq._size_example import worked_example
from fluidq._size_point import Service
from fluidq.deployment import Deployment
from fluidq.formulas import requests
from fluidq.sizing import Traffic, bounds, size
from tests.helpers import data

GLM = Deployment.preset("GLM-5.2", "B200", nic="400Gbps")


def plain(**fields) -> Deployment:
    """A deployment whose decode rate per GPU is batch / t_step_a and whose memory and link never bind."""
    given = {"r_P": 1e4, "kappa_store": 1e5, "t_step_a": 0.03, "t_step_b": 0.0, "t_step_c": 0.0, "batch": 64}
    return Deployment(model="mine", gpu="mine", **{**given, "nic": math.inf, "hbm": math.inf, **fields})


# --- the article's worked example ---------------------------------------------------------------------------------


def test_the_articles_example():
    plan = size(GLM, 8192, 1024, 64)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert data["prefill_tokens_per_s_per_gpu"] == 56250
    assert data["kv_bytes_per_token"] == 95000
    assert data["fabric"]["required_bytes_per_s_per_gpu"] == pytest.approx(5.34375e9, rel=1e-12)
    assert data["fabric"]["limit_bytes_per_s_per_gpu"] == 50e9
    assert data["fabric"]["margin"] == pytest.approx(9.357, abs=5e-4)
    assert data["fabric"]["critical_hit_rate"] == pytest.approx(0.893, abs=5e-4)
    assert data["fabric"]["binds"] == "send"
    t_step = 19.2e-3 + 0.104e-3 * 64 + 7.9e-9 * 64 * 8703.5
    assert data["phi"] == pytest.approx(64 * 8192 / (64 * 8192 + 56250 * t_step * 1024), rel=1e-12)
    assert (data["prefill_gpus"], data["decode_gpus"]) == (16, 48)
    assert data["binds"] == "decode"
    assert [rung["cold_start_s"] for rung in data["buffer_ladder"]] == [9.6, 24.5, 32.1, 88.0, 695.0]


def test_the_report_says_which_kv_size_and_why():
    text = str(size(GLM, 8192, 1024, 64))
    for part in (
        "56,250 tok/s per GPU",
        "95,000 B/token  bf16, rounded as in the article, whose 5.34 GB/s and margin 9.36 rest on it",
        "94,720: bf16",
        "95,232: bf16",
        "47,700: fp8",
        "fit for GLM-5 NVFP4 on B200, mean error 6%",
        "5.34 GB/s",
        "9.36  the sending NICs bind first",
        "16 GPUs",
        "set by the decode pool",
        "103 GB",
        "doublewordai/inference-lab",
    ):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


# --- splits -------------------------------------------------------------------------------------------------------


def test_deepseeks_units_lose_what_was_computed():
    # D08 and the DeepSeek fleet: units of 4 and 18 nodes, 226 nodes, published rates; 25 and 7 units lose 3.7 %.
    nodes = plain(r_P=73700, t_step_a=0.05, batch=14800 * 0.05, gpus_per_prefill_worker=4, gpus_per_decode_worker=18)
    plan = size(nodes, 608, 168, 226)
    assert plan.phi == pytest.approx(0.4209, abs=5e-5)
    assert (plan.prefill_gpus, plan.decode_gpus) == (100, 126)
    assert plan.rounding_loss == pytest.approx(0.037, abs=5e-4)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(10, 60),
    st.integers(1, 9000),
    st.integers(1, 9000),
)
def test_the_best_split_is_that_of_brute_force_in_exact_rationals(g_P, g_D, gpus, isl, osl):
    d = plain(r_P=4096.0, t_step_a=0.5, batch=64, gpus_per_prefill_worker=g_P, gpus_per_decode_worker=g_D)
    t_P, t_D = Fraction(isl, 4096), Fraction(osl, 128)  # GPU-seconds per request
    phi = t_P / (t_P + t_D)

    def efficiency(n_P: int, n_D: int) -> Fraction:
        return min(n_P / (phi * gpus), n_D / ((1 - phi) * gpus))

    every = [(i, j) for i in range(0, gpus + 1, g_P) for j in range(0, gpus - i + 1, g_D)]
    most = max(efficiency(*split) for split in every)
    plan = size(d, isl, osl, gpus)
    assert efficiency(plan.prefill_gpus, plan.decode_gpus) == most
    full = [(i, j) for i, j in every if gpus - i - j < min(g_P, g_D)]  # no room for one more worker
    assert (plan.prefill_gpus, plan.decode_gpus) in full
    assert plan.prefill_gpus == min(i for i, j in full if efficiency(i, j) == most)  # ties: fewest prefill GPUs
    assert plan.rounding_loss == pytest.approx(float(1 - most), abs=1e-12)
    assert plan.throughput == pytest.approx(float(most * gpus / (t_P + t_D)), rel=1e-12)
    assert plan.phi == pytest.approx(float(phi), rel=1e-12)
    common = math.gcd(g_P, g_D)
    assert plan.rounding_loss <= (g_P + g_D - common + gpus % common) / gpus + 1e-12  # D08


def test_the_flat_region_holds_every_split_near_the_best_and_says_what_binds():
    d = plain(gpus_per_prefill_worker=1, gpus_per_decode_worker=1)
    plan = size(d, 4096, 512, 100, within=0.05)
    gpus = [s.prefill_gpus for s in plan.flat]
    assert gpus == list(range(gpus[0], gpus[-1] + 1))
    assert plan.prefill_gpus in gpus
    t_P, t_D = 4096 / d.r_P, 512 * 0.03 / 64

    def rate(n: int) -> float:
        return min(n / t_P, (100 - n) / t_D)

    top = max(rate(n) for n in range(101))
    assert gpus == [n for n in range(101) if rate(n) >= 0.95 * top]
    for split in plan.flat:
        assert split.binds == ("prefill" if split.prefill_gpus / t_P < split.decode_gpus / t_D else "decode")
        assert split.relative == pytest.approx(rate(split.prefill_gpus) / top, rel=1e-12)
    assert len(size(d, 4096, 512, 100, within=0.0).flat) == 1


def test_what_is_left_over_stays_idle():
    plan = size(plain(gpus_per_prefill_worker=4, gpus_per_decode_worker=8), 4096, 512, 31)
    assert plan.prefill_gpus % 4 == 0
    assert plan.decode_gpus % 8 == 0
    assert "idle" in str(plan)
    assert "idle" not in str(size(plain(), 4096, 512, 31))


def test_only_one_phase_is_a_right_limit():
    only_prefill, only_decode = size(GLM, 8192, 0, 64), size(GLM, 0, 1024, 64)
    assert (only_prefill.phi, only_prefill.prefill_gpus, only_prefill.decode_gpus) == (1.0, 64, 0)
    assert (only_decode.phi, only_decode.prefill_gpus, only_decode.decode_gpus) == (0.0, 0, 64)
    assert size(GLM, 8192, 1e-9, 64).phi == pytest.approx(1.0)
    for plan in (only_prefill, only_decode):
        assert plan.rounding_loss == 0.0
        data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
        assert data["fabric"]["required_bytes_per_s_per_gpu"] == 0.0
        assert data["fabric"]["margin"] is None
        assert data["buffer_ladder"] == []
        assert "no KV has to move" in str(plan)
    assert only_prefill.throughput == pytest.approx(64 * 56250 / 8192)
    assert size(GLM, 8192, 0, 8).prefill_gpus == 8  # one worker is enough where there is one pool


def test_cached_tokens_are_not_computed_but_still_move():
    cold, warm = size(plain(nic=50e9), 8192, 512, 1000), size(plain(nic=50e9), 8192, 512, 1000, hit=0.5)
    t_D = 512 * 0.03 / 64
    assert warm.phi == pytest.approx(4096 / 1e4 / (4096 / 1e4 + t_D), rel=1e-12)
    assert warm.context == cold.context
    assert warm.fabric.required == pytest.approx(2 * cold.fabric.required)
    both = size(plain(nic=50e9), 8192, 512, 1000, hit=0.5, hit_decode=0.5)
    assert both.fabric.required == pytest.approx(cold.fabric.required)


# --- fabric -------------------------------------------------------------------------------------------------------


def test_the_margin_is_one_at_the_critical_hit_rate():
    critical = size(GLM, 8192, 1024, 64).critical_hit
    assert critical is not None
    at = size(GLM, 8192, 1024, 64, hit=critical)
    assert at.fabric.send / at.fabric.required == pytest.approx(1.0)


def test_each_end_of_the_link_can_bind():
    send = size(plain(nic=0.5e9), 4096, 2048, 90)  # r_P kappa = 1 GB/s
    assert (send.binds, send.fabric.binds) == ("send", "send")
    assert send.fabric.margin == pytest.approx(0.5)
    assert send.throughput == pytest.approx(send.prefill_gpus * 0.5e9 / (4096 * 1e5))
    receive = size(plain(nic=1.1e9), 8192, 128, 90)
    assert receive.fabric.binds == "receive"
    assert receive.fabric.limit == pytest.approx(1.1e9 * receive.decode_gpus / receive.prefill_gpus)
    whole = size(plain(nic=50e9, fabric=10e9), 4096, 2048, 90)
    assert (whole.binds, whole.fabric.binds) == ("fabric", "fabric")
    assert whole.throughput == pytest.approx(10e9 / (4096 * 1e5))
    assert whole.fabric.limit == pytest.approx(10e9 / whole.prefill_gpus)
    cached = size(plain(nic=0.3e9), 4096, 2048, 90, hit=0.2, hit_decode=0.6)
    assert cached.fabric.margin == pytest.approx(0.3 / (0.4 / 0.8))
    moved = 4096 * 0.4 * 1e5  # bytes per request
    rates = {
        (i, 90 - i): min(i * 1e4 / (4096 * 0.8), (90 - i) * 64 / 0.03 / 2048, i * 0.3e9 / moved) for i in range(91)
    }
    assert cached.throughput == pytest.approx(max(rates.values()))
    assert cached.throughput == pytest.approx(rates[cached.prefill_gpus, cached.decode_gpus])
    for plan in (send, receive, whole):
        assert "cannot carry it" in str(plan) or plan.fabric.margin >= 1
        json.dumps(plan.to_dict(), allow_nan=False)
    free = size(plain(), 4096, 2048, 90)
    assert free.to_dict()["fabric"]["limit_bytes_per_s_per_gpu"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"isl": 0, "osl": 0}, "isl + osl is 0; it must be > 0"),
        ({"isl": -1}, "isl is -1; it must be a number of tokens >= 0 tok."),
        ({"osl": math.nan}, "osl is nan"),
        ({"osl": math.inf}, "osl is inf; it must be a finite number"),
        ({"isl": "8GB"}, "'GB' is the unit of a size"),
        ({"gpus": 0}, "gpus is 0; it must be a whole number of GPUs >= 16: a prefill worker of 8 and a decode"),
        ({"gpus": 15}, "gpus is 15"),
        ({"gpus": -64}, "gpus is -64"),
        ({"gpus": 64.5}, "gpus is 64.5"),
        ({"hit": 1.0}, "hit is 1.0; it must be below 1"),
        ({"hit": -0.1}, "hit is -0.1"),
        ({"hit_decode": 1.5}, "hit_decode is 1.5; it must be a share from 0 to 1."),
        ({"within": 2.0}, "within is 2.0"),
        ({"isl": 131072}, "more than the 99 GB left of 192 GB HBM"),
    ],
)
def test_bad_sizing_input(given: dict, message: str):
    with pytest.raises(InputError) as caught:
        size(**{"deployment": GLM, "isl": 8192, "osl": 1024, "gpus": 64, **given})
    assert message in str(caught.value)


# --- buffer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "gigabytes"), [(9.6, 103), (24.5, 262), (32.1, 343), (88, 940), (695, 7423)])
def test_the_cold_start_ladder(tau: float, gigabytes: int):
    found = bounds("5.34GB/s", "5.34GB/s", tau)
    assert round(found.to_dict()["capacity_bytes"] / 1e9) == gigabytes  # D15
    assert found.stock == pytest.approx(found.capacity / 2)
    assert found.capacity_per_second == pytest.approx(10.68e9)  # D31
    (rung,) = [r for r in found.ladder if r.cold_start == tau]
    assert rung.capacity == found.capacity
    assert f"{gigabytes:,} GB" in str(found)


TAUS = (9.6, 24.5, 32.1, 88, 300, 695, 1800)
TABLE = {  # D14: C = 150 GB, Q0 = 75 GB, P = 5.34 GB/s
    5.34: (14.04, (0, 0.4267, 0.5625, 0.8404, 0.9532, 0.9798, 0.9922)),
    2.67: (28.09, (0, 0, 0.0625, 0.3404, 0.4532, 0.4798, 0.4922)),
    1.00: (75.0, (0, 0, 0, 0.0277, 0.1404, 0.1671, 0.1795)),
    0.50: (150, (0, 0, 0, 0, 0.0468, 0.0734, 0.0858)),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size_of_step", TABLE)
def test_the_table_of_losses(size_of_step: float, sign: int):
    hit, losses = TABLE[size_of_step]
    for tau, loss in zip(TAUS, losses, strict=True):
        step = sign * size_of_step * 1e9
        found = bounds("5.34GB/s", "5.34GB/s", tau, "150GB", "75GB", "5.34GB/s", step).to_dict()
        assert found["time_to_boundary_s"] == pytest.approx(hit, abs=5e-3)
        assert found["loss_fraction"] == pytest.approx(loss, abs=5.1e-5)
        assert found["lost_bytes"] == pytest.approx(found["loss_fraction"] * 5.34e9 * tau, rel=1e-9, abs=1e-3)
        for rung in found["ladder"]:
            if rung["cold_start_s"] in TAUS:
                assert rung["loss_fraction"] == pytest.approx(losses[TAUS.index(rung["cold_start_s"])], abs=5.1e-5)


def test_the_report_of_bounds():
    text = str(bounds("5.34GB/s", "5.34GB/s", "88s", "150GB", "75GB", "5.34GB/s", "2.67GB/s"))
    for part in ("940 GB", "470 GB", "7,423 GB", "790 GB short of C*", "28.1 s", "34.04% of the flow", "pushed back"):
        assert part in text
    assert "not decoded" in str(bounds(5e9, 5e9, 88, 150e9, 75e9, 5e9, -5e9))
    assert "give the flow" in str(bounds(5e9, 5e9, 88, 150e9, 75e9, delta=5e9))
    assert "holds C*" in str(bounds(1e9, 1e9, 10, "150GB"))


def test_bounds_at_the_edges():
    still = bounds(0.0, 0.0, 88.0, "150GB", "75GB", "5.34GB/s", 0.0)
    data = json.loads(json.dumps(still.to_dict(), allow_nan=False))
    assert (data["capacity_bytes"], data["stock_bytes"], data["loss_fraction"]) == (0.0, 0.0, 0.0)
    assert data["time_to_boundary_s"] is None
    assert "never" in str(still)
    assert bounds(1e9, 1e9, 0.0).capacity == 0.0
    assert bounds(1e9, 1e9, 0.0, 10e9, 0.0, 1e9, -1e9).loss_fraction == 0.0
    assert bounds(1e9, 1e9, 10.0, 10e9, 0.0, 1e9, -1e9).loss_fraction == pytest.approx(1.0)  # empty from the start
    assert bounds(1e9, 3e9, 10.0).stock == pytest.approx(30e9)  # delta_down tau
    one_sided = bounds(1e9, 0.0, 10.0)
    assert (one_sided.capacity, one_sided.stock) == (pytest.approx(10e9), 0.0)


def test_a_capacity_alone_gets_the_centred_stock():
    assert bounds(1e9, 3e9, 10.0, "100GB").given_stock == pytest.approx(75e9)
    assert set(bounds(1e9, 1e9, 10.0).to_dict()) >= {"capacity_bytes", "stock_bytes"}
    assert "loss_fraction" not in bounds(1e9, 1e9, 10.0, "100GB", "50GB", delta="1GB/s").to_dict()
    assert "time_to_boundary_s" not in bounds(1e9, 1e9, 10.0, "100GB", "50GB").to_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cold_start": -1}, "cold_start is -1; it must be a time >= 0 s."),
        ({"cold_start": "-88s"}, "cold_start is '-88s'; it must be a time >= 0 s."),
        ({"cold_start": math.inf}, "cold_start is inf; it must be a finite number."),
        ({"cold_start": math.nan}, "cold_start is nan"),
        ({"delta_up": "-1GB/s"}, "delta_up is '-1GB/s'; it must be a data rate >= 0 B/s."),
        ({"delta_down": -1.0}, "delta_down is -1.0"),
        ({"delta_up": "5.34"}, "delta_up is '5.34'; it must be a data rate with its unit"),
        ({"capacity": "100GB", "stock": "150GB"}, "stock is '150 GB'; it must be at most the capacity, 100 GB"),
        ({"capacity": "-1GB"}, "capacity is '-1GB'"),
        ({"stock": "1GB"}, "capacity is None; it must be given where stock is."),
        ({"delta": "1GB/s"}, "capacity is None; it must be given where delta is."),
        ({"flow": 0.0}, "flow is 0.0; it must be a data rate > 0 B/s."),
        (
            {"capacity": "150GB", "stock": "75GB", "flow": "5.34GB/s", "delta": "6GB/s"},
            "delta is '6 GB/s'; it must be at most the flow, 5.34 GB/s: accepted flow cannot be negative.",
        ),
    ],
)
def test_bad_bounds_input(given: dict, message: str):
    with pytest.raises(InputError) as caught:
        bounds(**{"delta_up": "5.34GB/s", "delta_down": "5.34GB/s", "cold_start": "88s", **given})
    assert message in str(caught.value)


# --- phi and the batch together -----------------------------------------------------------------------------------


def rate(d: Deployment, batch: float, isl: float, osl: float) -> tuple[float, float]:
    """t_P and t_D in GPU seconds, by hand."""
    t_step = d.t_step_a + (d.t_step_b + d.t_step_c * (isl + (osl - 1) / 2)) * batch
    return isl / d.r_P, osl * t_step / batch


@pytest.mark.parametrize(
    ("limits", "binds"),
    [
        ({"tpot": "25ms"}, "tpot"),
        ({"tpot": "100ms"}, "memory"),
        ({"batch": math.inf}, "memory"),
        ({"concurrency": 800}, "concurrency"),
        ({"concurrency": 1e6, "tpot": 30e-3}, "tpot"),
        ({"batch": 10, "tpot": 30e-3}, "given"),
        ({}, "given"),
    ],
)
def test_the_limit_that_binds_sets_the_batch_and_phi_follows(limits: dict, binds: str):
    plan = size(GLM, 8192, 1024, 64, **limits)
    assert plan.batch_binds == binds
    assert plan.batch == min(plan.point.batch_limits.values())
    t_P, t_D = rate(GLM, plan.batch, 8192, 1024)
    assert plan.phi == pytest.approx(t_P / (t_P + t_D), rel=1e-9)
    held = plan.balanced_throughput * (1024 * plan.point.tpot + 8192 / GLM.r_P / 8)
    if binds == "tpot":
        assert plan.point.tpot == pytest.approx({"25ms": 25e-3}.get(limits["tpot"], 30e-3))
    if binds == "memory":
        assert plan.batch * 8703.5 * 95_000 == pytest.approx(GLM.free_hbm())
    if binds == "concurrency":
        assert held == pytest.approx(800)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert data["batch_binds"] == binds
    assert data["batch_per_gpu"] == pytest.approx(plan.batch)
    assert "binds" in str(plan) or binds == "given"


def test_requests_in_flight_are_shared_by_both_pools_of_each_split():
    d = plain(t_step_b=1e-4, nic=1e12)
    few, many = size(d, 4096, 512, 16, concurrency=64), size(d, 4096, 512, 16, concurrency=1e7, batch=64)
    assert few.binds == "concurrency"
    assert few.throughput < few.balanced_throughput  # what waits in front of prefill decodes nothing
    assert many.binds in ("prefill", "decode")
    assert many.throughput == pytest.approx(size(d, 4096, 512, 16, batch=64).throughput, rel=1e-3)
    from fluidq.validation import Loop, closed_loop

    n_P, n_D = few.prefill_gpus, few.decode_gpus
    loop = Loop(1.0, 0.0, 0.0)
    by_hand = closed_loop(64.0, 4096.0, 512.0, 1e4, float(n_P), float(n_P), float(n_D), lambda b: 0.03 + 1e-4 * b, loop)
    assert few.throughput == pytest.approx(float(by_hand.request_rate), rel=1e-9)


def test_speculation_commits_tokens_at_the_same_step():
    one, two = size(GLM, 8192, 1024, 64, batch=64), size(GLM, 8192, 1024, 64, batch=64, accept=2)
    assert two.t_step == one.t_step
    assert two.phi == pytest.approx(2 * one.phi / (1 + one.phi))  # the odds double (D04)
    limited = size(GLM, 8192, 1024, 64, tpot="15ms", accept=2)
    assert limited.batch == pytest.approx(size(GLM, 8192, 1024, 64, tpot="30ms").batch)


def test_headroom_for_the_time_to_first_token_is_the_inverted_wait():
    free, tight = (size(GLM, 8192, 1024, 64, ttft=limit, isl_scv=0.8) for limit in (100.0, 0.1))
    assert free.point.load == pytest.approx(1.0, abs=1e-3)
    own = 8192 / 56_250 / 8
    least = own + 8192 * 95e3 / (8 * 50e9) + tight.t_step
    load = tight.point.load
    assert least + load / (1 - load) * 0.5 * 1.8 * own == pytest.approx(0.1)
    assert tight.point.ttft == pytest.approx(0.1)
    assert tight.phi > free.phi
    assert {s.binds for s in size(GLM, 8192, 1024, 64, ttft=0.06, within=0.9).flat} >= {"ttft", "decode"}
    half = size(GLM, 8192, 1024, 64, headroom="50%")
    assert half.point.t_P == pytest.approx(2 * 8192 / 56_250)
    assert half.phi == pytest.approx(half.point.t_P / (half.point.t_P + half.point.t_D))


def test_second_moments_matter_where_attention_is_quadratic():
    d = plain(s_P=1e8)
    even, spread = size(d, 4096, 512, 100), size(d, 4096, 512, 100, isl_scv=1.0, osl_scv=0.5)
    assert even.point.t_P == pytest.approx(4096 / 1e4 + 4096**2 / 1e8)  # D07
    assert spread.point.t_P == pytest.approx(4096 / 1e4 + 2 * 4096**2 / 1e8)
    assert spread.context == pytest.approx(4096 + (512**2 * 1.5 - 512) / (2 * 512))  # D05
    cached = size(d, 4096, 512, 100, hit=0.5)
    assert cached.point.t_P == pytest.approx(2048 / 1e4 + 0.75 * 4096**2 / 1e8)  # D04: the prefix is attended


def test_classes_share_one_batch_and_are_weighted():
    a, b = Traffic.of(8192, 128), Traffic.of(512, 2048, hit=0.5)
    mixed = Traffic.mixed([(3, a), (1, b)])
    assert mixed.isl == pytest.approx(0.75 * 8192 + 0.25 * 512)
    assert mixed.computed == pytest.approx(0.75 * 8192 + 0.25 * 256)
    steps = 0.75 * 128 * (8192 + 63.5) + 0.25 * 2048 * (512 + 1023.5)
    assert mixed.context == pytest.approx(steps / (0.75 * 128 + 0.25 * 2048))
    plan = size(GLM, traffic=mixed, gpus=64)
    t_D = mixed.osl * plan.t_step / 64
    assert plan.phi == pytest.approx(mixed.computed / GLM.r_P / (mixed.computed / GLM.r_P + t_D))
    alone = size(GLM, traffic=Traffic.mixed([(1, a), (1, a)]), gpus=64)
    assert alone.phi == pytest.approx(size(GLM, 8192, 128, 64).phi)
    lengths = Traffic.of_lengths([100, 300], [10, 2], [100, 100])
    assert (lengths.isl, lengths.osl, lengths.computed) == (200, 6, 100)
    assert lengths.context == pytest.approx((100 * 10 + 45 + 300 * 2 + 1) / 12)
    assert lengths.attended == pytest.approx((100**2 + 300**2 - 200**2) / 2)


def test_the_theta_of_the_code_trace():
    path = data("azure-llm-2023/AzureLLMInferenceTrace_code.csv")
    from fluidq.io.traces import Requests, load_trace

    found = load_trace(path).data
    assert isinstance(found, Requests)
    traffic = Traffic.of_lengths(found.isl, found.osl)
    assert traffic.context == pytest.approx(2130.4, abs=0.1)
    assert traffic.isl == pytest.approx(2047.8, abs=0.1)
    assert traffic.attended / traffic.isl**2 == pytest.approx(1.929, abs=1e-3)


# --- memory, buffer, types ----------------------------------------------------------------------------------------


def test_the_windows_of_both_transfers():
    plan = size(GLM, 8192, 1024, 64)
    assert plan.windows is not None
    per_prefill = 56_250**1 * 95e3**2 * 8192 / (8 * 50e9)
    assert plan.windows.reserved == pytest.approx(per_prefill * plan.prefill_gpus / plan.decode_gpus)
    assert plan.windows.written == pytest.approx(95e3 * 8192 / 2 * 7 / 8 / 8)
    assert plan.windows.held[0] == (30.0, pytest.approx(160.3e9, rel=1e-3))
    assert size(GLM, 8192, 0, 64).windows is None


def test_shocks_are_the_cells_of_the_articles_map():
    plan = size(GLM, 8192, 1024, 64, cold_start="88s", buffer="150GB")
    by_swing = {s.swing: s for s in plan.shocks}
    assert by_swing[1.0].time_to_boundary == pytest.approx(14.04, abs=0.01)
    assert by_swing[-0.5].loss_fraction == pytest.approx(0.3404, abs=2e-4)
    assert "Steps of the flow against C = 150 GB" in str(plan)
    held = size(GLM, 8192, 1024, 64, cold_start="9.6s", buffer="150GB").shocks
    assert all(s.loss_fraction == 0 for s in held)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert data["buffer"]["stock_bytes"] == 75e9


def test_prefill_and_decode_on_their_own_gpus():
    first, second = (Deployment.preset("Llama-3.1-70B", g, nic=n) for g, n in (("H100", "50GB/s"), ("H200", "25GB/s")))
    d = Deployment.joined(first, second)
    plan = size(d, 4000, 500, 64, prices=(2.0, 3.0))
    assert d.r_P == first.r_P
    assert plan.t_step == float(second.t_step(64, 4249.5))
    assert plan.fabric.receive == pytest.approx(25e9 * plan.decode_gpus / plan.prefill_gpus)
    assert plan.fabric.send == 50e9
    spend = (2.0 * plan.prefill_gpus + 3.0 * plan.decode_gpus) / 3600
    assert plan.cost_per_million == pytest.approx(spend / plan.throughput / 4500 * 1e6)
    with pytest.raises(InputError, match="that of the prefill pool"):
        Deployment.joined(GLM, second)


def test_comparative_advantage_is_the_best_of_every_assignment():
    from fluidq._size_types import by_advantage

    a, b = (dataclasses.replace(plain(r_P=r, t_step_a=10 / 333.0), gpu=g) for g, r in (("A", 5e3), ("B", 1e3)))
    traffic, service = Traffic.of(1000, 333), Service.of(batch=10)
    found = by_advantage([(b, 100), (a, 1)], traffic, service, {"A": 4.0, "B": 1.0})
    assert [k.name for k in found.kinds] == ["A", "B"]
    assert found.prefill == (1.0, pytest.approx(47.5))  # D06: the other type prefills too
    # The theory's numbers: (1, 100) GPUs, r_P = (5, 1), r_D = (1, 1). Against every assignment on a grid:
    grid = [min(5 * x + y, 101 - x - y) for x in np.linspace(0, 1, 11) for y in np.linspace(0, 100, 1001)]
    assert found.throughput == pytest.approx(max(grid), rel=1e-3)
    assert found.throughput >= max(grid) - 1e-9
    k = {kind.name: kind for kind in found.kinds}
    assert k["A"].prefill == pytest.approx(5.0)
    assert k["A"].decode == pytest.approx(1.0)
    two = requests.two_type_throughput(
        prefill_one=k["A"].prefill,
        decode_one=k["A"].decode,
        prefill_two=100 * k["B"].prefill,
        decode_two=100 * k["B"].decode,
    )
    assert found.throughput == pytest.approx(float(two))
    assert found.buy == ("A", "B", pytest.approx((4 / 5 + 1 / 1) / 3600))
    for bad, words in (({"A": 4.0}, "price of B"), (None, None)):
        if words:
            with pytest.raises(InputError, match=words):
                by_advantage([(b, 100), (a, 1)], traffic, service, bad)
    with pytest.raises(InputError, match="GPUs of A is 0"):
        by_advantage([(a, 0)], traffic, service)


def test_blocks_reach_what_was_measured():
    assert block_efficiency("64KiB") == pytest.approx(97.11 / 400)
    assert block_efficiency("256KiB") == pytest.approx(324.9 / 400)
    assert block_efficiency("32KiB") == pytest.approx(97.11 / 800)
    shares = [block_efficiency(2**n) for n in range(10, 24)]
    assert shares == sorted(shares)


# --- the worked example -------------------------------------------------------------------------------------------


def test_every_figure_of_the_article_and_its_correction():
    found = worked_example()
    assert found.holds
    for line in found.lines:
        assert abs(line.error) <= line.tolerance, line.name
        assert line.tolerance < 0.03, line.name
    assert found["prefill rate"].corrected == 10_830
    assert found["KV per token"].corrected == pytest.approx(47.7)
    assert found["prefill rate"].corrected / 56_250 == pytest.approx(0.19, abs=0.005)  # FINDINGS: 19 % of peak
    assert found["KV flow"].corrected == pytest.approx(0.52, abs=0.005)
    assert found["egress at 90 % hit"].ours > 50
    assert found["egress at 90 % hit"].corrected < 50
    text = str(found)
    assert "corrected" in text
    wrong = dataclasses.replace(found, lines=(dataclasses.replace(found.lines[0], ours=700.0), *found.lines[1:]))
    assert not wrong.holds


# --- speed, bad input ---------------------------------------------------------------------------------------------


def test_size_answers_in_two_seconds_of_processor_time():
    code = (
        "import time, fluidq.cli; start = time.process_time(); "
        "fluidq.cli.main('size --tpot 40ms --ttft 1s --json'.split()); "
        "print(time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) < 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpot": "10ms"}, "tpot is '10 ms'; it must be at least 19.2 ms: one sequence per decode worker"),
        ({"tpot": 0.0}, "tpot is 0.0"),
        ({"ttft": "20ms"}, "without any wait"),
        ({"concurrency": -1}, "concurrency is -1"),
        ({"accept": 0.5}, "accept is 0.5"),
        ({"headroom": 1.5}, "headroom is 1.5; it must be a share of the prefill rate in (0, 1]"),
        ({"batch": 500}, "batch is 500"),
        ({"batch": 500}, "more than the 99 GB left"),
        ({"isl_scv": -1}, "isl_scv is -1"),
        ({"buffer": "150GB"}, "cold_start is None; it must be given where buffer is."),
        ({"cold_start": "88s"}, "buffer is None"),
        ({"cold_start": "88s", "buffer": "150"}, "buffer is '150'; it must be a size with its unit"),
        ({"cold_start": "88s", "buffer": "1GB", "stock": "2GB"}, "at most the buffer"),
        ({"prices": (0.0, 1.0)}, "price is 0.0"),
        ({"isl": None}, "isl is None"),
    ],
)
def test_bad_limits(given: dict, message: str):
    with pytest.raises(InputError) as caught:
        size(**{"deployment": GLM, "isl": 8192, "osl": 1024, "gpus": 64, **given})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--trace x --isl 5", "exclude each other"),
        ("--trace x --hit 0.5", "--trace and --hit exclude each other"),
        ("--class 1:2", "WEIGHT:ISL:OSL"),
        ("--class 1:8192:1024 --class 0:1:1", "--class weight"),
        ("--fleet H100", "NAME=NUMBER"),
        ("--fleet H10=4", "did you mean 'H100'?"),
        ("--price H200=3", "unknown GPU in --price"),
        ("--price B200=-3", "--price B200 is -3.0"),
        ("--tp 3 --model Llama-3.1-70B --gpu H100", "tp is 3; it must be a divisor of the 64 attention heads"),
        ("--precision fp5", "unknown precision"),
        ("--kv-per-token 47700", "--kv-per-token is '47700'"),
        ("--buffer 150 --cold-start 3s", "--buffer"),
        ("--link-efficiency 2", "--link-efficiency"),
        ("--hit 1", "--hit"),
        ("--gpu H100 --decode-worker 1", "gpus_per_decode_worker is 1; it must be at least 10"),
    ],
)
def test_bad_flags(argv: str, message: str):
    with pytest.raises(InputError) as caught:
        command(argv)
    assert message in str(caught.value)


def command(argv: str) -> int:
    from fluidq.commands import size as verb

    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(argv.split()))


def test_the_command_takes_a_scenario_and_classes_and_types(tmp_path, capsys):
    path = tmp_path / "case.toml"
    path.write_text(
        '[deployment]\nmodel = "DeepSeek-V3"\ngpu = "H200"\nnic = "25GB/s"\n'
        'prefill_rate = "4378 tok/s"\nt_step_a = "30ms"\n'
        '[fleet]\ngpus = 96\ncold_start = "24.5s"\nbuffer_per_gpu = "150GB"\n'
    )
    command(f"--scenario {path} --isl 4000 --osl 1000 --tpot 50ms --json --out {tmp_path}")
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["gpu"], found["gpus"]) == ("DeepSeek-V3", "H200", 96)
    assert found["prefill_tokens_per_s_per_gpu"] == 4378
    assert found["fabric"]["send_bytes_per_s_per_gpu"] == 25e9
    assert found["buffer"]["cold_start_s"] == 24.5
    law = (50e-3 - 30e-3) / (0.215e-3 + 33.8e-9 * 4499.5)
    assert found["batch_limits"]["tpot"] == pytest.approx(law, rel=2e-3)
    assert json.loads((tmp_path / "size.json").read_text()) == found
    command("--class 3:8192:128 --class 1:512:2048:0.5 --json")
    assert json.loads(capsys.readouterr().out)["computed_tokens"] == pytest.approx(0.75 * 8192 + 0.25 * 256)
    command("--model Llama-3.1-70B --fleet H100=64,B200=32 --price H100=2,B200=4 --batch max --json")
    assert [t["gpu"] for t in json.loads(capsys.readouterr().out)["types"]] == ["B200", "H100"]
    command("--block 64KiB --json")
    assert json.loads(capsys.readouterr().out)["fabric"]["send_bytes_per_s_per_gpu"] == pytest.approx(50e9 * 0.242775)
    command("--batch max --precision fp4")
    assert "mean error 6%\n" in capsys.readouterr().out


def test_own_catalogue_and_a_fit_of_the_same_precision(tmp_path):
    fp8 = Deployment.preset("DeepSeek-V3", "B200", precision="fp8")
    fp4 = Deployment.preset("DeepSeek-V3", "B200", precision="fp4")
    assert "FP8" in fp8.sources["t_step"].label or "19.3" in f"{1e3 * fp8.t_step_a:.1f}"
    assert fp4.t_step_a < fp8.t_step_a
    path = tmp_path / "own.toml"
    path.write_text('[gpus.B200]\nhbm = "180 GB"\n')
    assert Deployment.preset("GLM-5.2", "B200", own=path).hbm == 180e9
    assert Deployment.preset("GLM-5.2", "B200", own=catalog.load(path)).hbm == 180e9
    copied = Deployment.preset("Llama-3.1-70B", "H100", tp=16)
    assert copied.held() == 2 * copied.kappa_store
    assert copied.fits(4000) < Deployment.preset("Llama-3.1-70B", "H100", gpus_per_decode_worker=16).fits(4000)
    quadratic = Deployment.preset("Llama-3.1-70B", "H100", attention=True)
    assert quadratic.s_P == pytest.approx(2 * 1.979e15 / (2 * 80 * 64 * 256))
    assert math.isinf(Deployment.preset("Llama-3.1-70B", "H100").s_P)


CASES = {  # model and system of the tool -> of the catalogue, with the precision of weights
    ("deepseek-ai/DeepSeek-V3", "h200_sxm"): ("DeepSeek-V3", "H200", "fp8"),
    ("nvidia/DeepSeek-V3.1-NVFP4", "b200_sxm"): ("DeepSeek-V3", "B200", "fp4"),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "h100_sxm"): ("Llama-3.1-70B", "H100", "fp8"),
    ("Qwen/Qwen3-235B-A22B-FP8", "h200_sxm"): ("Qwen3-235B-A22B", "H200", "fp8"),
    ("zai-org/GLM-5-FP8", "b200_sxm"): ("GLM-5", "B200", "fp8"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_picks_of_aiconfigurator_are_in_the_flat_region(case):
    with data("aiconfigurator/disagg_picks.csv").open() as handle:
        row = next(r for r in csv.DictReader(handle) if (r["model"], r["system"], r["rank"]) == (*case, "1"))
    model, gpu, precision = CASES[case]
    entry = catalog.model(model)
    sizes = [int(row[f"{pool}_gpus_per_worker"]) for pool in ("prefill", "decode")]
    pick = tuple(int(row[f"{pool}_workers"]) * n for pool, n in zip(("prefill", "decode"), sizes, strict=True))
    d = Deployment.preset(
        model,
        gpu,
        precision=precision,
        r_P=next(p.figure.value for p in entry.prefill if (p.gpu, p.precision) == (gpu, precision)),
        kv_bytes_per_token=[k.value for k in entry.kv if k.label.startswith("fp8")][-1],
        gpus_per_decode_worker=sizes[1],
        gpus_per_prefill_worker=max(sizes[0], 2 if model.startswith("Llama") else 1),
    )
    plan = size(d, float(row["isl"]), float(row["osl"]), sum(pick), tpot=float(row["tpot_target_ms"]) / 1e3)
    assert plan.batch_binds == "tpot"
    assert pick in [(s.prefill_gpus, s.decode_gpus) for s in plan.flat]
    # The tool takes 0.9 of prefill's rate and 0.92 of decode's.
    assert 0.9 * plan.throughput == pytest.approx(float(row["request_rate_per_replica"]), rel=0.3)
