"""Calibration: parameters of a simulated fleet come back within their intervals, and what data cannot tell is said."""

import argparse
import dataclasses
import json
import math
import tomllib
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from fluidq._errors import InputError
from fluidq._fit import Part, fit, t_quantile
from fluidq.calibrate import calibrate
from fluidq.commands import calibrate as verb
from fluidq.deployment import Deployment, mean_context
from fluidq.io.benchmarks import read_benchmark
from fluidq.measurements import Measurements
from fluidq.policies import Thresholds
from fluidq.simulate import simulate
from fluidq.workload import Workload
from tests.helpers import data, small_fleet, small_plant

TRUE = {"r_P": 10_000.0, "t_step_a": 0.02, "t_step_b": 1e-4, "t_step_c": 8e-9, "batch": 64.0, "kappa_store": 95e3,
        "link_rate": 40e9, "link_latency": 2e-3, "link_efficiency": 0.8, "cold_start": 40.0, "hit": 0.4,
        "prefill_overhead": 0.012}  # fmt: skip
HIT = TRUE["hit"]
MIXES = ((1000.0, 200.0), (4000.0, 150.0), (9000.0, 400.0), (2500.0, 900.0))


@cache
def trajectories() -> list:
    """A fleet of 12 GPUs that cannot grow, under four mixes whose load swings from idle to beyond each pool's limit."""
    fleet = small_fleet(small_plant(t_step_c=8e-9), initial_gpus=12.0, budget=12.0)
    out = []
    for isl, osl in MIXES:
        t = np.arange(240)
        capacity = 6 * min(10_000 / (isl * (1 - HIT)), 64 / (osl * 0.03))
        rate = capacity * (0.75 + 0.6 * np.sin(t / 19.0)).clip(0.02)
        work = Workload.from_windows(
            name="swing", window=15.0, rate=rate, isl_stored=isl, osl=osl, isl_computed=isl * (1 - HIT)
        )
        policy = Thresholds(ratio=0.5, step=2.0)
        out.append((isl, osl, work, simulate(fleet, work, policy).trajectory))
    return out


def observed(seed: int, noise: float = 0.03, outliers: float = 0.0) -> list[Measurements]:
    """What a monitor would see of those runs: windows with relative errors of size `noise`."""
    rng = np.random.default_rng(seed)

    def noisy(values):
        seen = np.asarray(values) * (1 + noise * rng.standard_normal(np.shape(values)))
        return np.where(rng.random(np.shape(values)) < outliers, seen * rng.uniform(2, 6, np.shape(values)), seen)

    tables = []
    for isl, osl, work, t in trajectories():
        n = t.time.size - 1
        gpus = np.asarray(t.decode_gpus + t.draining_gpus)
        batch = np.asarray(t.active)[:-1] / gpus[1:]  # the step time of a tick is that of the batch before it
        backlog = np.asarray(t.backlog)
        prefilled = backlog[:-1] + np.asarray(work.rate * work.isl_computed * 15.0)[1:] - backlog[1:]
        prefill_rate = prefilled / 15.0 / np.asarray(t.prefill_gpus)[1:]
        buffered = np.asarray(t.buffer_bytes)[1:] / (TRUE["kappa_store"] * isl)
        full = (np.asarray(t.active) / gpus)[1:]
        moved = prefilled / (1 - HIT)  # stored tokens
        busy = (backlog[1:] > 0) & (np.asarray(t.stalled)[1:] == 0)
        size = TRUE["kappa_store"] * isl * rng.uniform(0.2, 2.0, n)
        tables.append(
            Measurements(
                source=f"run-{isl:g}-{osl:g}.json",
                format="synthetic",
                kind="windows",
                columns={
                    "time": 15.0 * np.arange(n),
                    "duration": np.full(n, 15.0),
                    "offered_rate": np.asarray(work.rate)[1:],
                    "served_rate": np.asarray(t.done)[1:] / 15.0,
                    "isl": np.full(n, isl),
                    "isl_computed": np.full(n, isl * (1 - HIT)),
                    "osl": np.full(n, osl),
                    "hit": noisy(np.full(n, HIT)).clip(0, 1),
                    "itl": np.where(batch > 0.5, noisy(np.asarray(t.tpot)[1:]), math.nan),
                    "batch": np.where(batch > 0.5, batch, math.nan),
                    "prefill_rate": noisy(prefill_rate),
                    "waiting_least": np.where(busy, backlog[1:] / isl, 0.0),
                    "prefill_time": noisy(TRUE["prefill_overhead"] + isl * (1 - HIT) / (2 * TRUE["r_P"]) * np.ones(n)),
                    "worker_gpus": np.full(n, 2.0),
                    "transfer_rate": noisy(TRUE["kappa_store"] * moved / 15.0).clip(1.0),
                    "transfer_tokens": moved / 15.0,
                    "transfer_size": size,
                    "transfer_time": noisy(TRUE["link_latency"] + size / TRUE["link_rate"]),
                },
                lines=np.arange(n),
                detail=Measurements(
                    source="pods", format="synthetic", kind="starts", lines=np.arange(6),
                    columns={"cold_start": TRUE["cold_start"] * (1 + 0.1 * rng.standard_normal(6))},
                ),
            )
        )  # fmt: skip
        # The batch at the end of a window, in those in which the stock never ran out.
        columns = {"batch": noisy(full), "buffered_least": buffered}
        tables.append(Measurements(f"limit-{isl:g}.json", "synthetic", "windows", columns, np.arange(n)))
    return tables


def test_a_simulated_fleet_comes_back_exactly_where_nothing_is_noisy():
    found = calibrate(observed(0, noise=0.0), nic=50e9)
    for name, value in TRUE.items():
        if name != "cold_start":
            assert found.parameters[name].value == pytest.approx(value, rel=1e-6), name
            assert found.parameters[name].determined


def test_a_simulated_fleet_comes_back_within_its_errors():
    """Every parameter within 4 standard errors, and the errors small enough to be of use."""
    found = calibrate(observed(1), nic=50e9)
    assert found.parameters.keys() == TRUE.keys()
    for name, p in found.parameters.items():
        assert abs(p.value - TRUE[name]) < 4 * p.error, name
        assert p.error < 0.1 * p.value, name
        assert p.determined, name


SEEDS = 60


def test_intervals_cover_as_often_as_they_say():
    """95 % intervals over seeds: each parameter's count within the binomial's reach, and all together near 95 %."""
    hits = dict.fromkeys(TRUE, 0)
    for seed in range(SEEDS):
        found = calibrate(observed(100 + seed), nic=50e9).parameters
        for name, value in TRUE.items():
            hits[name] += found[name].low <= value <= found[name].high
    # 60 draws at 95 %: fewer than 50 have a chance of 1e-4.
    assert min(hits.values()) >= 50, hits
    assert 0.92 <= sum(hits.values()) / (SEEDS * len(hits)) <= 0.98, hits


def test_outliers_have_a_bounded_pull():
    """A tenth of the rows two to six times too large moves nothing by more than its errors; plain means are far off."""
    tables = observed(5, outliers=0.1)
    found = calibrate(tables, nic=50e9)
    for name in ("r_P", "t_step_a", "kappa_store", "link_rate", "batch"):
        assert found.parameters[name].value == pytest.approx(TRUE[name], rel=0.05), name
    assert any("rows are outliers" in w and "line" in w for w in found.warnings)
    times = np.concatenate([t.get("prefill_time") / (t.get("isl") * (1 - HIT)) for t in tables[::2]])
    assert 1 / (2 * times.mean()) < 0.8 * TRUE["r_P"]


def windows(**columns) -> Measurements:
    rows = len(next(iter(columns.values())))
    made = {name: np.asarray(values, float) for name, values in columns.items()}
    return Measurements("made.json", "synthetic", "windows", made, np.arange(rows))


def steps(context, batch, noise=0.01, seed=0) -> Measurements:
    batch, context = np.broadcast_arrays(np.asarray(batch, float), np.asarray(context, float))
    rng = np.random.default_rng(seed)
    time = 0.02 + 1e-4 * batch + 8e-9 * batch * context
    return windows(itl=time * (1 + noise * rng.standard_normal(time.shape)), batch=batch, context=context)


def test_one_context_leaves_its_term_open():
    found = calibrate(steps(4096.0, np.arange(1.0, 100.0)))
    assert any(
        "t_step's context term is not determined by this data (context is 4,096 tok in every row)" in w
        for w in found.warnings
    )
    c = found.parameters["t_step_c"]
    assert (c.value, c.how, c.determined) == (0.0, "held", False)
    # Its part went into the batch term: the predictions at that context are right.
    assert found.parameters["t_step_b"].value == pytest.approx(1e-4 + 8e-9 * 4096, rel=0.05)


def test_a_base_stands_where_the_data_say_nothing():
    base = dataclasses.replace(Deployment.preset("GLM-5.2", "B200"), t_step_c=8e-9)
    found = calibrate(steps(4096.0, np.arange(1.0, 100.0)), base=base)
    assert found.parameters["t_step_c"].value == 8e-9
    assert found.parameters["t_step_b"].value == pytest.approx(1e-4, rel=0.05)
    made = found.apply(base)
    assert made.t_step(50.0, 4096.0) == pytest.approx(0.02 + 50e-4 + 8e-9 * 50 * 4096, rel=0.01)
    assert made.sources["t_step"].label == "calibrated"
    assert made.r_P == base.r_P


def test_one_batch_and_one_context_leave_two_terms_open():
    found = calibrate(steps([4096.0] * 30, [32.0] * 30))
    open_ = [name for name in ("t_step_a", "t_step_b", "t_step_c") if not found.parameters[name].determined]
    assert open_ == ["t_step_b", "t_step_c"]
    assert any("t_step's batch term is not determined" in w and "batch is 32" in w for w in found.warnings)


def test_a_weak_term_is_said_to_be_weak():
    """Contexts that differ by 1 % and errors of 3 % tell nothing of c, although the equations are regular."""
    rng = np.random.default_rng(2)
    found = calibrate(steps(4000 * (1 + 0.01 * rng.random(80)), rng.uniform(1, 60, 80), noise=0.03))
    c = found.parameters["t_step_c"]
    assert not c.determined
    assert any("t_step's context term is not determined" in w for w in found.warnings)


def test_a_negative_term_is_held_at_zero():
    batch = np.linspace(1, 100, 40)
    found = calibrate(windows(itl=0.05 - 1e-4 * batch, batch=batch, context=np.linspace(100, 9000, 40)))
    values = [found.parameters[f"t_step_{x}"].value for x in "abc"]
    assert min(values) >= 0
    assert any("came out negative" in w for w in found.warnings)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_give_no_errors_but_say_so(rows):
    found = calibrate(steps(np.array([100.0, 4000.0, 9000.0])[:rows], np.array([4.0, 30.0, 10.0])[:rows], noise=0))
    assert any("as many terms as rows" in w for w in found.warnings)
    assert not any(p.determined for p in found.parameters.values())
    json.dumps(found.to_dict(), allow_nan=False)


def test_errors_that_stay_for_a_while_widen_the_intervals():
    rng = np.random.default_rng(4)
    drift = np.zeros(400)
    for i in range(1, 400):
        drift[i] = 0.9 * drift[i - 1] + 0.02 * rng.standard_normal()
    white = 0.02 / math.sqrt(1 - 0.81) * rng.standard_normal(400)
    errors = []
    for noise in (white, drift):
        found = calibrate(windows(transfer_rate=95e3 * (1 + noise), transfer_tokens=np.ones(400)))
        errors.append(found.parameters["kappa_store"].error)
        warned = any("correlated" in w for w in found.warnings)
        assert warned == (noise is drift)
    assert 3 < errors[1] / errors[0] < 6  # sqrt(1.9 / 0.1) = 4.4


def test_offered_and_served_are_kept_apart():
    found = calibrate(windows(duration=[60.0] * 5, offered_rate=[5.0] * 5, served_rate=[3.0] * 5, hit=[0.5] * 5))
    assert found.load == {"offered": pytest.approx(5.0), "served": pytest.approx(3.0)}
    assert any("overload" in w for w in found.warnings)
    only = calibrate(windows(duration=[60.0] * 5, served_rate=[3.0] * 5, hit=[0.5] * 5))
    assert only.load == {"served": pytest.approx(3.0)}
    assert any("in overload more were offered" in w for w in only.warnings)


def test_what_was_never_reached_is_a_bound():
    """Half loaded pools tell no limit: the largest value seen is a bound, and is not written as the parameter."""
    found = calibrate(windows(prefill_rate=[3000.0, 5000.0], waiting_least=[0.0, 0.0], running=[80.0, 100.0],
                              decode_gpus=[4.0, 4.0]))  # fmt: skip
    assert (found.parameters["r_P"].how, found.parameters["r_P"].value) == ("bound", 5000.0)
    assert found.parameters["batch"].value == 25.0
    assert "prefill_rate" not in tomllib.loads(found.to_toml()).get("deployment", {})
    assert any("it is at least 5000" in w for w in found.warnings)


def test_windows_without_a_hit_count():
    found = calibrate(windows(hit=[0.6, 0.6, 0.0, 0.0], isl=[1000.0] * 4, served_rate=[1.0] * 4))
    assert found.parameters["hit"].value == pytest.approx(0.3)
    none = calibrate(windows(hit=[0.0] * 4, isl=[1000.0] * 4, served_rate=[1.0] * 4))
    assert none.parameters["hit"].value == 0.0


def test_little_gives_the_batch_of_a_benchmark():
    """Runs without a batch: output rate per GPU times the time per token, at the context of D05."""
    n = np.array([1.0, 8.0, 32.0, 64.0, 128.0])
    isl = np.array([500.0, 8000.0, 1000.0, 4000.0, 16_000.0])
    time = 0.02 + 1e-4 * n + 8e-9 * n * np.array([mean_context(i, 201.0) for i in isl])
    m = Measurements(
        "runs.jsonl", "x", "runs",
        {"tpot": time, "output_rate": 4 * n / time, "isl": isl, "osl": np.full(5, 201.0)}, np.arange(5),
    )  # fmt: skip
    found = calibrate(m, decode_gpus=4)
    for name in ("t_step_a", "t_step_b", "t_step_c"):
        assert found.parameters[name].value == pytest.approx(TRUE[name], rel=1e-6)
    assert any("--decode-gpus" in note for note in calibrate([m, windows(hit=[0.5])]).notes)


def test_profiles_of_several_sizes_need_a_choice():
    decode = read_benchmark(data("dynamo/h100_sxm_vllm_nvidia_Llama-3.3-70B-Instruct-FP8_decode.npz"))
    with pytest.raises(InputError, match=r"workers of 2, 4, 8 GPUs.*--decode-worker"):
        calibrate(decode)
    with pytest.raises(InputError, match="none of 3"):
        calibrate(decode, decode_worker=3)


def test_real_profiles():
    """Llama-3.3-70B FP8 on H100, TP 4: the rates that others computed from the same measurements."""
    name = "dynamo/h100_sxm_vllm_nvidia_Llama-3.3-70B-Instruct-FP8"
    tables = [read_benchmark(data(f"{name}_{side}.npz")) for side in ("decode", "prefill")]
    p = calibrate(tables, prefill_worker=4, decode_worker=4).parameters
    assert p["r_P"].value == pytest.approx(4413, rel=0.1)  # at 4,170 tokens; longer prompts are slower
    # 12.1 ms at B = 1, 19.2 at 93, 44.4 at 369 sequences per worker, context 350; 22.6 at 7 and 16,671.
    a, b, c = (p[f"t_step_{x}"].value for x in "abc")
    for batch, context, time in ((1, 350, 0.0121), (93, 350, 0.0192), (369, 350, 0.0444), (7, 16_671, 0.0226)):
        assert a + (b + c * context) * batch / 4 == pytest.approx(time, rel=0.16)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"level": 1.0}, "level is 1.0"),
        ({"decode_gpus": 0}, "decode_gpus is 0"),
        ({"accept": -1.0}, "accept is -1"),
        ({"nic": math.inf}, "nic is inf"),
    ],
)
def test_options_out_of_range(options, match):
    with pytest.raises(InputError, match=match):
        calibrate(windows(hit=[0.5]), **options)


def test_nothing_to_calibrate():
    with pytest.raises(InputError, match=r"made\.json: nothing to calibrate"):
        calibrate(windows(ttft=[0.5, 0.6]))
    with pytest.raises(InputError, match="no file: nothing"):
        calibrate([])


# The fit itself, against others


def line(p, d):
    return p["a"] + p["b"] * d["x"]


def a_part(x, y, model=line) -> Part:
    return Part(model, {"x": x}, y, np.ones(x.size), np.zeros(x.size, int))


def test_huber_fit_is_that_of_statsmodels():
    """Relative errors make the weights 1/prediction; with those fixed, RLM must give the same estimate and errors."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(8)
    x = rng.uniform(1, 10, 39)  # from 40 rows on the errors are not presumed equal
    y = (3 + 2 * x) * (1 + 0.05 * rng.standard_t(2, 39))
    found = fit([a_part(x, y)], {"a": 1.0, "b": 1.0})
    size = found.values["a"] + found.values["b"] * x
    design = np.column_stack([np.ones(39), x]) / size[:, None]
    theirs = sm.RLM(y / size, design, M=sm.robust.norms.HuberT(1.345)).fit(
        scale_est=sm.robust.scale.mad, cov="H1", tol=1e-12, maxiter=500
    )
    ours = np.array([found.values["a"], found.values["b"]])
    errors = np.array([found.errors["a"], found.errors["b"]])
    # They centre the median absolute deviation and do not count parameters in it: some percent apart in scale.
    np.testing.assert_allclose(ours, theirs.params, rtol=5e-3)
    np.testing.assert_allclose(errors, theirs.bse, rtol=0.05)


def test_plain_least_squares_where_errors_are_small():
    """Few rows, no outliers: weighted least squares by the normal equations."""
    x, e = np.arange(1.0, 7.0), np.array([1, -1, 1, -1, -1, 1.0])
    y = (3 + 2 * x) * (1 + 1e-6 * e)
    found = fit([a_part(x, y)], {"a": 1.0, "b": 1.0})
    design = np.column_stack([np.ones(6), x]) / (3 + 2 * x)[:, None]
    best, *_ = np.linalg.lstsq(design, y / (3 + 2 * x), rcond=None)
    np.testing.assert_allclose([found.values["a"], found.values["b"]], best, rtol=1e-9)
    residual = y / (3 + 2 * x) - design @ best
    spread = np.sqrt(residual @ residual / 4 * np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose([found.errors["a"], found.errors["b"]], spread, rtol=1e-4)


def test_errors_of_unequal_size_are_allowed_for():
    """Rows with large x scatter three times as much: the intervals still cover, those of equal errors would not."""
    rng = np.random.default_rng(11)
    x = np.concatenate([np.linspace(1, 2, 80), np.linspace(9, 10, 20)])
    size = np.where(x > 5, 0.03, 0.01)
    hits = 0
    for _ in range(200):
        y = (3 + 2 * x) * (1 + size * rng.standard_normal(100))
        found = fit([a_part(x, y)], {"a": 1.0, "b": 1.0})
        hits += abs(found.values["b"] - 2) < t_quantile(0.975, 98) * found.errors["b"]
    assert 178 <= hits <= 199


def test_disagreeing_prefill_figures_are_told():
    """Times that count each prompt of a shared step, against the throughput of windows that always had work."""
    found = calibrate(windows(prefill_time=[0.4, 0.8] * 10, isl=[1000.0, 2000.0] * 10, worker_gpus=[1.0] * 20,
                              prefill_rate=[5000.0, 5010.0] * 10, waiting_least=[3.0] * 20))  # fmt: skip
    assert found.parameters["r_P"].value == pytest.approx(5005, rel=1e-3)
    assert any("prefill times make 2500 tok/s per GPU" in w for w in found.warnings)


def bent(p, d):
    return p["a"] * jnp.exp(-p["b"] * d["x"])


def test_a_curved_law_against_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(1)
    x = np.linspace(0, 3, 60)
    y = 5 * np.exp(-0.7 * x) * (1 + 0.01 * rng.standard_normal(60))
    found = fit([a_part(x, y, bent)], {"a": 1.0, "b": 1.0})
    size = found.values["a"] * np.exp(-found.values["b"] * x)
    best, cov = optimize.curve_fit(lambda x, a, b: a * np.exp(-b * x), x, y, (1, 1), sigma=size)
    np.testing.assert_allclose([found.values["a"], found.values["b"]], best, rtol=3e-3)
    np.testing.assert_allclose([found.errors["a"], found.errors["b"]], np.sqrt(np.diag(cov)), rtol=0.25)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 200])
def test_student_quantiles(freedom):
    stats = pytest.importorskip("scipy.stats")
    for level in (0.9, 0.975, 0.995):
        assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=0.012)


# The file that it writes, and the verb


def test_the_file_holds_the_figures_and_survives_hostile_names():
    tables = observed(3)
    evil = 'x"\n[tune]\nsteps = 1\n#'
    tables[0] = dataclasses.replace(tables[0], source=evil)
    base = Deployment.preset("GLM-5.2", "B200", batch=16)
    found = calibrate(tables, base=base, nic=50e9)
    read = tomllib.loads(found.to_toml())
    assert read.keys() == {"deployment", "fleet", "workload"}
    d = read["deployment"]
    assert (d["model"], d["gpu"], d["batch"]) == ("GLM-5.2", "B200", 64)
    assert float(d["prefill_rate"].removesuffix("tok/s")) == pytest.approx(TRUE["r_P"], rel=0.02)
    assert float(d["nic"].removesuffix("B/s")) == pytest.approx(TRUE["link_rate"], rel=0.02)
    assert d["t_step_a"] == pytest.approx(found.parameters["t_step_a"].value, rel=1e-8)
    assert float(read["fleet"]["cold_start"].removesuffix("s")) == pytest.approx(40, rel=0.2)


def test_the_file_is_a_scenario(tmp_path):
    """`tune`, `simulate` and `size` read it: the case that it builds has the calibrated figures."""
    from fluidq.scenario import build_case, read_scenario

    base = Deployment.preset("GLM-5.2", "B200", batch=16)
    found = calibrate(observed(3), base=base, nic=50e9)
    path = tmp_path / "deployment.toml"
    path.write_text(found.to_toml())
    over = read_scenario(str(path))
    over.setdefault("workload", {})["days"] = 0.1
    case = build_case(over, checked=True)
    want = found.apply(base)
    for name in ("r_P", "kappa_store", "t_step_a", "t_step_b", "t_step_c", "nic"):
        assert float(getattr(case.deployment, name)) == pytest.approx(float(getattr(want, name)), rel=1e-6), name
    assert float(case.fleet.cold_start) == pytest.approx(found.parameters["cold_start"].value, rel=1e-5)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out")
    return parser.parse_args(words)


def test_the_verb(tmp_path, capsys):
    name = "dynamo/h200_sxm_vllm_nvidia_Llama-3.1-8B-Instruct-FP8"
    files = [str(data(f"{name}_{side}.npz")) for side in ("decode", "prefill")]
    assert verb.run(parsed(*files, "--json", "--out", str(tmp_path / "site"))) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parameters"]["r_P"]["value"] == pytest.approx(51_845, rel=0.01)
    assert tomllib.loads((tmp_path / "site" / "deployment.toml").read_text())["deployment"]["t_step_a"] > 0
    assert json.loads((tmp_path / "site" / "calibrate.json").read_text()) == shown
    assert not list((tmp_path / "site").glob("*.part"))
    assert verb.run(parsed(*files)) == 0
    said = capsys.readouterr().out
    assert "prefill rate per GPU" in said
    assert "[deployment]" in said


def test_the_verb_reads_prometheus(tmp_path, capsys):
    from tests.test_prometheus import response, saved, vllm_fleet

    series = vllm_fleet(n=81)
    parts = [saved(tmp_path, response(*series[i::2]), f"part{i}.json") for i in range(2)]
    code = verb.run(parsed(*map(str, parts), "--prefill-worker", "4", "--decode-worker", "8", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    p = found["parameters"]
    assert p["hit"]["value"] == pytest.approx(0.5)
    assert p["kappa_store"]["value"] == pytest.approx(95e3)
    # 500 computed tokens in 50 ms on 4 GPUs, and 250 tok/s per GPU where work always waited: they disagree.
    assert p["batch"]["value"] == pytest.approx(5.0)
    assert found["load"] == {"served": pytest.approx(2.0)}


def test_the_verb_says_no_where_nothing_is_determined(tmp_path, capsys):
    from tests.test_benchmarks_io import saved, vllm

    assert verb.run(parsed(str(saved(tmp_path, vllm())), "--decode-gpus", "2", "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert not any(p["determined"] for p in found["parameters"].values())


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("absent.json",), "absent.json does not exist"),
        (("FILE", "--model", "GLM-5.2"), "given together"),
        (("FILE", "--model", "GLM-9", "--gpu", "B200"), "unknown model 'GLM-9'"),
        (("FILE", "--nic", "400"), "--nic"),
        (("FILE", "--select", "x"), "LABEL=VALUE"),
        (("FILE", "--start", "yesterday"), "--start"),
        (("FILE", "--end", "2026-09-16T12:00:00"), "with its zone"),
        (("http://127.0.0.1:9/", "--timeout", "2s"), "does not answer"),
        (("FILE", "--out", "/dev/null/x"), "cannot be written"),
    ],
)
def test_words_that_are_wrong(tmp_path, words, match):
    from tests.test_prometheus import response, saved, vllm_fleet

    path = str(saved(tmp_path, response(*vllm_fleet())))
    with pytest.raises(InputError, match=match):
        verb.run(parsed(*(path if word == "FILE" else word for word in words)))
