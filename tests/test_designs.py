"""Designs in one batch against `size` one by one, gradients against central differences, and the comparison."""

import argparse
import json
import math
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq import catalog
from fluidq._errors import InputError
from fluidq._size_compare import DEPENDS, NO, YES, compare
from fluidq._size_cost import Design, design_of, design_of_plan, work
from fluidq._size_traffic import Traffic
from fluidq.deployment import Deployment
from fluidq.designs import designs
from fluidq.sizing import cost_per_million_tokens, sensitivities, size

GLM = Deployment.preset("GLM-5.2", "B200", nic="400Gbps")


# --- designs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    return designs(
        ["GLM-5.2", "DeepSeek-V3", "Llama-3.1-70B", "Qwen3-32B"],
        ["B200", "H200", "H100"],
        isl=[0.0, 512.0, 8192.0, 60_000.0],
        osl=[0.0, 1.0, 300.0, 4000.0],
        nic=["10Gbps", "400Gbps"],
        fleet=96,
        tpot="50ms",
        ttft="8s",
    )


def test_each_design_is_what_size_finds(table):
    random.seed(1)
    fit = lost = 0
    for index in random.sample(range(len(table)), 70):
        row = table.row(index)
        d = Deployment.preset(row["model"], row["gpu"], nic=row["nic"])
        try:
            plan = size(d, row["isl"], row["osl"], 96, tpot="50ms", ttft="8s")
        except InputError:
            assert not row["fits"], row
            assert row["throughput"] == 0
            lost += 1
            continue
        fit += 1
        assert row["fits"], row
        assert row["throughput"] == pytest.approx(plan.throughput, rel=1e-9)
        assert row["phi"] == pytest.approx(plan.phi, rel=1e-9, abs=1e-12)
        if row["osl"]:
            assert row["batch"] == pytest.approx(plan.batch, rel=1e-9)
        spend = row["prefill_gpus"] + row["decode_gpus"]
        assert row["cost"] == pytest.approx(spend / 3600 / (row["throughput"] * (row["isl"] + row["osl"])) * 1e6)
        if len([s for s in plan.flat if s.relative > 1 - 1e-9]) == 1:
            assert (row["prefill_gpus"], row["decode_gpus"]) == (plan.prefill_gpus, plan.decode_gpus)
            assert row["binds"] == plan.binds
    assert fit > 30
    assert lost > 3


def test_a_hundred_thousand_designs_in_five_seconds():
    models, gpus = list(catalog.models()), list(catalog.gpus())
    start = time.process_time()
    found = designs(models, gpus, np.linspace(256, 32_768, 16), np.linspace(64, 4096, 9), ["100Gbps", "400Gbps"])
    spent = time.process_time() - start
    assert len(found) > 100_000
    assert spent < 5
    best = found.best()
    assert best["fits"]
    assert best["cost"] == found.columns["cost"].min()
    only = found.columns["model"] == models.index("GLM-5.2")
    assert found.best(among=only)["model"] == "GLM-5.2"
    assert found.best("throughput")["throughput"] == found.columns["throughput"].max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": []}, "models is []; it must be a list of at least one"),
        ({"models": "GLM-5.2"}, "models is 'GLM-5.2'"),
        ({"models": ["GLM5"]}, "did you mean 'GLM-5'?"),
        ({"gpus": ["B20"]}, "did you mean 'B200'?"),
        ({"isl": [-1]}, "isl is -1"),
        ({"nic": ["400"]}, "400Gbps or 50GB/s"),
        ({"fleet": 2.5}, "fleet is 2.5"),
        ({"prices": {"H100": 2}}, "price of B200 is None"),
        ({"isl": range(3000), "osl": range(3000)}, "at most 5,000,000"),
    ],
)
def test_bad_designs(changes: dict, message: str):
    given = {"models": ["GLM-5.2"], "gpus": ["B200"], "isl": [1], "osl": [1], "nic": ["1GB/s"], **changes}
    with pytest.raises(InputError) as caught:
        designs(**given)
    assert message in str(caught.value)


def test_no_design_fits():
    with pytest.raises(InputError, match="no design fits"):
        designs(["GLM-5.2"], ["B200"], [8192], [64], ["400Gbps"], fleet=8).best()


# --- gradients ----------------------------------------------------------------------------------------------------

BASE = design_of(
    GLM,
    Traffic.of(8192, 1024, hit=0.3, isl_scv=0.5),
    ttft=1.0,
    tau=60.0,
    buffer=150e9,
    stock=75e9,
    swing=0.5,
    shocks=1e-3,
    price_prefill=3.0,
    price_decode=4.0,
    price_buffer=0.01,
)
SLOW = BASE._replace(nic=2e9, nic_decode=2e9)  # links bind
TIGHT = BASE._replace(tpot=30e-3)  # the TPOT limit sets the batch, not the HBM


@pytest.mark.parametrize("design", [BASE, SLOW, TIGHT], ids=["memory", "links", "tpot"])
@pytest.mark.parametrize(
    "field",
    [
        "nic",
        "hbm",
        "tau",
        "buffer",
        "stock",
        "computed",
        "r_P",
        "price_prefill",
        "price_decode",
        "tpot",
        "ttft",
        "t_step_a",
    ],
)
def test_the_gradient_of_the_cost_is_that_of_central_differences(design: Design, field: str):
    if not math.isfinite(getattr(design, field)):
        pytest.skip("no limit of that kind in this design")
    x = float(getattr(design, field))

    def cost(value):
        return cost_per_million_tokens(design, **{field: value})

    slope = float(jax.grad(cost)(x))
    h = 1e-5 * x
    assert math.isfinite(slope)
    assert slope * x == pytest.approx(float(cost(x + h) - cost(x - h)) / 2e-5, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("name", ["hit", "hit_decode"])
@pytest.mark.parametrize("design", [BASE, SLOW, BASE._replace(s_P=1e9)], ids=["memory", "links", "quadratic"])
def test_the_gradient_by_hit_rate(design: Design, name: str):
    def cost(value):
        return cost_per_million_tokens(design, **{name: value})

    assert float(cost(0.3 if name == "hit" else 0.0)) == pytest.approx(float(cost_per_million_tokens(design)))
    slope = float(jax.grad(cost)(0.4))
    assert slope == pytest.approx(float(cost(0.4 + 1e-5) - cost(0.4 - 1e-5)) / 2e-5, rel=1e-6)
    # Where the sending NIC sets the pace a hit saves nothing, and the larger flow strands more in a shock (D12).
    assert (slope > 0) == (design is SLOW and name == "hit")


def test_what_binds_has_a_slope():
    def slope(design: Design, field: str) -> float:
        return float(jax.grad(lambda v: cost_per_million_tokens(design, **{field: v}))(float(getattr(design, field))))

    assert slope(BASE, "hbm") < 0
    assert slope(TIGHT, "hbm") == 0
    assert slope(TIGHT, "tpot") < 0
    assert slope(SLOW, "nic") < 0
    assert slope(BASE, "tau") > 0
    assert slope(BASE, "price_decode") > 0
    both = jax.vmap(lambda n: cost_per_million_tokens(BASE, nic=n, nic_decode=n))(jnp.array([1e9, 50e9]))
    assert both[0] > both[1]


def test_the_cost_is_that_of_the_plan_without_rounding():
    plan = size(GLM, 8192, 1024, 8000, tpot="40ms", prices=(3.0, 4.0))
    assert float(cost_per_million_tokens(plan)) == pytest.approx(plan.cost_per_million, rel=2e-3)
    t = work(design_of_plan(plan))
    by_hand = (3.0 * t.t_P + 4.0 * t.t_D) / 3600 / (8192 + 1024) * 1e6
    assert float(cost_per_million_tokens(plan)) == pytest.approx(float(by_hand))
    with pytest.raises(InputError, match="field is 'nics'"):
        cost_per_million_tokens(plan, nics=1.0)


def test_sensitivities_are_the_finite_changes_of_the_fleet():
    plan = size(GLM, 8192, 1024, 64, hit=0.2, tpot="60ms", ttft="1s", cold_start=60, buffer=150e9, prices=(3.0, 3.0))
    found = {s.name: s for s in sensitivities(plan, shocks_per_day=50)}
    base = design_of_plan(plan)._replace(swing=0.5, shocks=50 / 86_400)

    def gpus(**changes: float) -> float:
        w = work(base._replace(**changes))
        return plan.balanced_throughput * float((w.t_P + w.t_D) / (1 - w.lost))

    for name, unit, changes in (
        ("cold start", 1.0, {"tau": 1.0}),
        ("HBM of a GPU", 1e9, {"hbm": 1e9}),
        ("prefix hit rate", 0.01, {"computed": -0.01 * 8192}),
        ("TTFT limit", 1e-3, {"ttft": 1e-3}),
    ):
        small = 1e-4
        moved = {k: getattr(base, k) + small * v for k, v in changes.items()}
        back = {k: getattr(base, k) - small * v for k, v in changes.items()}
        assert found[name].gpus == pytest.approx((gpus(**moved) - gpus(**back)) / (2 * small), rel=1e-4), (name, unit)
    assert found["cold start"].gpus > 0
    assert found["buffer per prefill GPU"].gpus < 0
    with pytest.raises(InputError, match="swing"):
        sensitivities(plan, swing=2.0)
    with pytest.raises(InputError, match="shocks_per_day"):
        sensitivities(plan, shocks_per_day=-1.0)


# --- should I disaggregate? ---------------------------------------------------------------------------------------


def unit(**fields) -> Deployment:
    """One-GPU workers without links: rounding is small and phi is what one makes it."""
    given = {"r_P": 1e4, "kappa_store": 1e5, "t_step_a": 0.02, "t_step_b": 1e-4, "t_step_c": 0.0, "batch": 64}
    return Deployment(model="mine", gpu="mine", **{**given, "nic": 1e12, "hbm": math.inf, **fields})


def test_temporal_sharing_is_the_theorems_baseline():
    plan = size(unit(), 2048, 512, 1000)
    verdict = compare(plan)
    temporal = next(r for r in verdict.rivals if r.name == "temporal")
    assert temporal.throughput == pytest.approx(plan.balanced_throughput)  # same B: the same served work (D21)
    assert temporal.tpot == pytest.approx(plan.t_step / (1 - plan.phi))
    assert temporal.slowest_step == pytest.approx(plan.t_step + 2048 / 1e4)
    assert temporal.ratio == pytest.approx(1 - plan.rounding_loss)


def test_a_token_limit_makes_the_split_worth_it_and_overlap_takes_it_back():
    plan = size(unit(), 2048, 512, 1000, tpot="30ms", cold_start=10, buffer=1e12)
    none, full = compare(plan, overlap=0.0, saturation=1.0), compare(plan, overlap=1.0, saturation=1.0)
    assert none.answer == YES
    assert full.answer == NO
    temporal = none.rivals[0]
    assert temporal.batch < plan.batch
    assert temporal.tpot == pytest.approx(30e-3)
    assert temporal.ratio > 1
    unknown = compare(plan, saturation=1.0)
    assert unknown.answer == DEPENDS
    (words,) = [w for w in unknown.because if w.startswith("overlap")]
    at = float(words.rpartition("more than ")[2].rstrip("%")) / 100
    assert compare(plan, overlap=at - 0.01, saturation=1.0).answer == YES
    assert compare(plan, overlap=at + 0.01, saturation=1.0).answer == NO
    assert compare(plan, overlap=1.0, saturation=1.0, specialisation=1.5).answer == YES


def test_chunked_at_zero_overlap_is_temporal_and_the_bound_is_d23s():
    plan = size(unit(), 2048, 512, 1000)
    zero, one = compare(plan, overlap=0.0), compare(plan, overlap=1.0)
    assert zero.rivals[1].throughput == pytest.approx(zero.rivals[0].throughput)
    m = min(plan.phi, 1 - plan.phi)
    assert one.rivals[1].throughput == pytest.approx(one.rivals[0].throughput / (1 - m))


def test_too_few_gpus_or_a_slow_fabric_say_no():
    small = size(unit(gpus_per_prefill_worker=8, gpus_per_decode_worker=8), 8192, 64, 24, tpot=1.0, batch=64)
    verdict = compare(small, overlap=0.0)
    assert verdict.answer == NO
    assert any(w.startswith("rounding") for w in verdict.because)
    slow = compare(size(unit(nic=1e8), 2048, 512, 1000), overlap=0.0)
    assert slow.answer == NO
    assert any(w.startswith("fabric") for w in slow.because)


def test_what_is_not_known_is_said_with_its_figure():
    plan = size(GLM, 8192, 1024, 64)
    verdict = compare(plan)
    holds = {c.name: c.holds for c in verdict.conditions}
    assert verdict.answer == DEPENDS
    assert verdict.because[0].startswith(
        "TPOT: no limit is given; two pools serve more where it is between 30.3 ms and"
    )
    assert holds["tracking"] == DEPENDS
    assert "2.67 GB/s of buffer per second" in str(verdict)
    json.dumps(verdict.to_dict(), allow_nan=False)
    judged = compare(size(GLM, 8192, 1024, 64, cold_start=88, buffer=150e9), activations="9.4GB")
    holds = {c.name: c for c in judged.conditions}
    assert holds["tracking"].holds == NO
    assert holds["tracking"].figure == pytest.approx(0.3405, abs=1e-3)
    assert holds["memory"].holds == YES
    for bad, message in (
        ({"overlap": 1.5}, "overlap is 1.5"),
        ({"swing": 0.0}, "swing is 0.0"),
        ({"activations": "500GB"}, "activations is '500 GB'"),
        ({"specialisation": -0.1}, "specialisation"),
    ):
        with pytest.raises(InputError) as caught:
            compare(plan, **bad)
        assert message in str(caught.value)
    with pytest.raises(InputError, match="one phase alone"):
        compare(size(GLM, 8192, 0, 64))


def test_the_command_prints_the_verdict_and_its_exit_code(capsys):
    from fluidq.commands import size as verb

    def run(argv: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--out")
        verb.add_arguments(parser)
        code = verb.run(parser.parse_args(argv.split()))
        return code, capsys.readouterr().out

    code, text = run("--model Llama-3.1-70B --gpu H100 --isl 4000 --osl 500 --tpot 40ms --compare --overlap 0.9")
    assert code == 1
    assert "Disaggregate? no" in text
    code, text = run("--compare --sensitivities --price 4 --cold-start 24.5s --buffer 150GB --shocks-per-day 10 --json")
    data = json.loads(text)
    assert code == 0
    assert data["compare"]["answer"] == "it depends"
    assert {s["name"] for s in data["sensitivities"]} >= {"cold start", "HBM of a GPU", "prefix hit rate"}
    code, text = run("--systems --json")
    assert code == 0
    assert len(json.loads(text)["systems"]) == 17
    code, text = run("--example")
    assert code == 0
    assert "10,830" not in text.splitlines()[0]
    assert "1.083e+04" in text
