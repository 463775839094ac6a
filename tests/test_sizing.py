"""Sizing against the article's example, brute force and published splits; bounds against the published tables."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidq._errors import InputError
from fluidq.deployment import Deployment
from fluidq.sizing import bounds, size

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
