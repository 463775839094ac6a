"""D04 to D07 and D13 against what they describe: traces counted again, laws sampled, programs solved by others."""

import csv
import gzip
import json

import numpy as np
import pytest
from scipy.optimize import linprog

from derivations import _traces, derivation
from derivations.core import value
from fluidq.formulas import requests, transfer

from .helpers import data


def azure(name):
    with data("azure-llm-2023").joinpath(f"AzureLLMInferenceTrace_{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows], None


def mooncake(name):
    lengths, seen, blocks, hits = [], set(), 0, 0
    with gzip.open(data("mooncake").joinpath(f"{name}.jsonl.gz"), "rt") as file:
        for line in file:
            record = json.loads(line)
            lengths.append((record["input_length"], record["output_length"]))
            ids = record["hash_ids"]
            hits += next((i for i, block in enumerate(ids) if block not in seen), len(ids))
            blocks += len(ids)
            seen.update(ids)
    return lengths, (blocks, hits)


def counted(lengths, hits):
    inputs, outputs = zip(*lengths, strict=True)
    pairs = list(zip(inputs, outputs, strict=True))
    return _traces.Trace(
        len(pairs),
        sum(inputs),
        sum(outputs),
        sum(i * i for i in inputs),
        sum(o * o for o in outputs),
        sum(i * o for i, o in pairs),
        int(np.median(inputs)),
        int(np.median(outputs)),
        *(hits or ()),
    )


@pytest.mark.parametrize(
    ("reader", "name", "stated"),
    [
        (azure, "code", _traces.AZURE_CODE),
        (azure, "conv", _traces.AZURE_CONV),
        (mooncake, "conversation_trace", _traces.MOONCAKE_CONV),
        (mooncake, "synthetic_trace", _traces.MOONCAKE_SYNTHETIC),
    ],
    ids=["azure-code", "azure-conv", "mooncake-conv", "mooncake-synthetic"],
)
def test_the_sums_over_the_traces_are_what_the_files_hold(reader, name, stated):
    assert counted(*reader(name)) == stated


@pytest.mark.parametrize("name", ["code", "conv"])
def test_the_prefill_times_of_splitwise_are_what_its_table_gives(name):
    with data("splitwise-sim").joinpath("perf_model.csv").open(newline="") as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["model"], r["hardware"], r["batch_size"], r["token_size"]) == ("bloom-176b", "h100-80gb", "1", "128")
        ]
    times: dict[int, list[float]] = {}
    for r in rows:
        times.setdefault(int(r["prompt_size"]), []).append(float(r["prompt_time"]))
    sizes = sorted(times)
    lengths = [i for i, _ in azure(name)[0]]
    mean = np.interp(lengths, sizes, [np.median(times[s]) for s in sizes]).mean() / 1000
    assert mean == pytest.approx(float(_traces.SPLITWISE_PREFILL[name]), abs=1e-7)


@pytest.mark.parametrize(("id", "machines"), [("V09", 35), ("V09-conv", 25)])
def test_the_splitwise_split_meets_the_sweep(id, machines):
    (found,) = [c for c in derivation("D07").check_published() if c.check.id == id]
    assert round(found.ours / 5) * 5 == machines
    assert found.verdict == "soft"


def test_context_per_step_of_sampled_requests():
    """Every step of every request, one by one, for lengths that hang together."""
    rng = np.random.default_rng(1)
    isl = rng.integers(1, 500, 400)
    osl = np.minimum(rng.geometric(1 / (1 + isl / 20)), 200)  # long inputs, long outputs
    steps = np.concatenate([i + np.arange(o) for i, o in zip(isl, osl, strict=True)])
    later = np.concatenate([i + np.arange(1, o) for i, o in zip(isl, osl, strict=True)])
    moments = dict(osl=osl.mean(), isl_osl=(isl * osl).mean(), osl_sq=(osl**2).mean())
    assert float(requests.mean_context(**moments)) == pytest.approx(steps.mean(), rel=1e-12)
    ours = requests.mean_context_prefill_first(isl=isl.mean(), **moments)
    assert float(ours) == pytest.approx(later.mean(), rel=1e-12)
    uncorrelated = requests.mean_context_uncorrelated(isl=isl.mean(), osl=osl.mean(), osl_sq=moments["osl_sq"])
    assert float(uncorrelated) < 0.9 * steps.mean()


def test_two_types_of_gpu_against_a_linear_program():
    rng = np.random.default_rng(2)
    for a1, b1, a2, b2 in rng.lognormal(0, 1.5, (300, 4)):
        # minimise -X over X, u, v: X <= u a1 + v a2 and X <= (1-u) b1 + (1-v) b2
        done = linprog(
            [-1, 0, 0], A_ub=[[1, -a1, -a2], [1, b1, b2]], b_ub=[0, b1 + b2], bounds=[(0, None), (0, 1), (0, 1)]
        )
        ours = requests.two_type_throughput(prefill_one=a1, decode_one=b1, prefill_two=a2, decode_two=b2)
        assert float(ours) == pytest.approx(-done.fun, rel=1e-7)


def test_a_batch_that_obeys_littles_law_exists_only_below_the_stable_rate():
    step = dict(t_step_a=0.012, t_step_b=5e-5, t_step_c=5e-9, theta_ctx=8704.0)
    slopes = {k: v for k, v in step.items() if k != "t_step_a"}
    limit = float(requests.stable_request_rate(osl=1024.0, **slopes))
    for share in (0.5, 0.9, 1.01):
        batch = 1.0
        for _ in range(400):  # B -> X O t_step(B)
            batch = share * limit * 1024 * float(requests.step_time(B=batch, **step))
        if share < 1:
            assert batch == pytest.approx(share * limit * 1024 * 0.012 / (1 - share), rel=1e-6)
        else:
            assert batch > 1e4


def test_edges():
    """A user's corner cases: all cached, nothing to read, nothing to write."""
    common = dict(B=64, r_P=56_250, t_step=0.02)
    ratio = requests.balance_ratio_cached
    assert float(ratio(isl=8192, osl=1024, hit=1, accept=1, **common)) == 0
    assert float(ratio(isl=8192, osl=0, hit=0.5, accept=1, **common)) == 1
    assert float(ratio(isl=0, osl=1024, hit=0, accept=2, **common)) == 0
    assert float(ratio(isl=0, osl=0, hit=0, accept=1, **common)) == 0
    assert float(requests.prefill_work_cached(isl=8192, hit=1, r_0=5e4, s_0=2e9)) == 0
    assert float(requests.hbm_batch(H=100e9, W=120e9, A_D=0, kappa_store=1e5, theta_ctx=4096)) == 0
    assert float(requests.slo_batch(itl_max=0.01, t_step_a=0.012, t_step_b=5e-5, t_step_c=5e-9, theta_ctx=0)) == 0


def test_computing_a_head_and_moving_the_tail_is_best_there():
    where = dict(kappa_store=95e3, nic=2e9, r_0=56_250.0, s_0=2e9)
    head = float(transfer.recompute_prefix(**where))
    whole = 60_000.0
    assert 0 < head < whole

    def total(y):
        return y / where["r_0"] + y**2 / where["s_0"] + (whole - y) * where["kappa_store"] / where["nic"]

    tried = np.linspace(0, whole, 60_001)
    assert tried[np.argmin(total(tried))] == pytest.approx(head, abs=1)
    meets = float(transfer.crossover_prefix(**where))
    assert meets == pytest.approx(2 * head)
    assert float(transfer.transfer_saving(prefix_len=meets, **where)) == pytest.approx(0, abs=1e-12)
    assert float(transfer.transfer_saving(prefix_len=1.1 * meets, **where)) > 0
    assert float(transfer.transfer_saving(prefix_len=0.9 * meets, **where)) < 0


def test_the_crossover_table_is_met_within_one_percent():
    found = [c for c in derivation("D13").check_published() if c.check.id.startswith("V08")]
    assert len(found) == 8
    assert all(abs(c.relative_error) < 0.01 for c in found)


def test_hits_shift_the_odds_as_caching_in_the_balance_does():
    d = derivation("D04")
    at = {"B": 64, "isl": 8192, "osl": 1024, "r_P": 56_250, "t_step": 0.02}
    plain, cached = (
        value(d.formula("balance_ratio_cached"), at | more)
        for more in ({"hit": 0, "accept": 1}, {"hit": 0.75, "accept": 2})
    )
    assert float(cached / (1 - cached)) == pytest.approx(0.5 * float(plain / (1 - plain)), rel=1e-12)
