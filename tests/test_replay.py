"""The replay: by hand, by queueing theory, by laws; its workers, links and controls; the fluid beside it."""

import hashlib
import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq import figures as figure_registry
from fluidq import replay as replay_module
from fluidq import waiting
from fluidq._errors import InputError
from fluidq._replay_run import STORES
from fluidq.figures._fluid_vs_requests import CASES, FluidVsRequests, compute, fluid_vs_requests
from fluidq.formulas import aggregated
from fluidq.objective import Objective
from fluidq.plant import Plant
from fluidq.policies import BalanceTracking, Thresholds
from fluidq.replay import Control, Ensemble, Estimate, Requests, Run, Schedule, draw, replay, replicate
from fluidq.simulate import Fleet, simulate
from fluidq.workload import Workload, default_workload
from tests.benchmarks import fluid_vs_requests as experiment
from tests.helpers import small_fleet, small_plant

STAMPS = ("prefill_start", "prefill_end", "handoff", "admitted", "transfer_end", "first_token", "finish")


def fleet(plant: Plant | None = None, **changes: Any) -> Fleet:
    return small_fleet(plant or small_plant(), **{"budget": 400.0, "interval": 5.0, **changes})


def load(rate: float, seconds: float, isl: float = 1000.0, osl: float = 100.0) -> Workload:
    return Workload.from_windows(window=seconds, rate=[rate], isl_stored=isl, osl=osl)


def given_requests(arrival: Any, stored: Any = 1000.0, output: Any = 100.0, duration: float = 1000.0) -> Requests:
    at = np.asarray(arrival, dtype=float)
    ones = np.ones_like(at)
    return Requests(arrival=at, computed=stored * ones, stored=stored * ones, output=output * ones, duration=duration)


# By hand


def test_one_request_by_hand():
    """0.1 s of prefill, 95 MB over the slower link, 100 steps of a + b + c * context with the context growing."""
    run = replay(fleet(), given_requests([3.0]), (1, 1))
    transfer = 95e6 / 45e9
    step = 0.02 + 1e-4
    context = 8e-9 * (1000 + 99 / 2)  # D05: the mean context of a request of fixed length
    ends = 3.1 + transfer + 100 * (step + context)
    assert run.prefill_start[0] == 3.0
    assert run.prefill_end[0] == pytest.approx(3.1, abs=1e-12)
    assert run.transfer_end[0] == pytest.approx(3.1 + transfer, abs=1e-12)
    assert run.first_token[0] == pytest.approx(3.1 + transfer + step + 8e-9 * 1000, abs=1e-12)
    assert run.finish[0] == pytest.approx(ends, abs=1e-9)
    assert run.ttft[0] == pytest.approx(run.first_token[0] - 3.0)
    assert run.tpot[0] == pytest.approx((run.finish[0] - run.first_token[0]) / 99)


def test_steps_are_shared_as_token_by_token():
    """Against a loop that steps a worker token by token: the same ends, to the step in which a request joins."""
    rng = np.random.default_rng(2)
    arrival = np.sort(rng.uniform(0, 4, 60))
    output = rng.integers(20, 300, 60).astype(float)
    plant = small_plant(t_step_b=1e-3, t_step_c=4e-7, batch=32.0, r_P=1e9)
    run = replay(fleet(plant), given_requests(arrival, 1000.0, output), (60, 1), drain=True)
    now, running, waiting_, ends = 0.0, {}, list(range(60)), np.zeros(60)
    ready = run.prefill_end + 95e6 / 45e9
    while waiting_ or running:
        while waiting_ and len(running) < 32 and ready[waiting_[0]] <= now:
            running[waiting_.pop(0)] = 0
        if not running:
            now = ready[waiting_[0]]
            continue
        now += 0.02 + 1e-3 * len(running) + 4e-7 * sum(1000 + made for made in running.values())
        for i in list(running):
            running[i] += 1
            if running[i] == output[i]:
                ends[i] = now
                del running[i]
    step = 0.02 + 32 * (1e-3 + 4e-7 * 1200)
    assert np.abs(run.finish - ends).max() < 3 * step
    assert np.mean(run.finish - ends) == pytest.approx(0.0, abs=step)


def test_speculation_commits_several_tokens_a_step():
    one = replay(fleet(small_plant(t_step_c=0.0)), given_requests([0.0]), (1, 1))
    two = replay(fleet(small_plant(t_step_c=0.0, accept=2.0)), given_requests([0.0]), (1, 1))
    assert two.finish[0] - two.transfer_end[0] == pytest.approx(0.5 * (one.finish[0] - one.transfer_end[0]))


# Draws


def test_draws_have_the_workloads_means_and_spreads():
    workload = Workload.from_windows(
        window=500.0, rate=[30.0, 90.0], isl_stored=[1000.0, 3000.0], isl_computed=[500.0, 3000.0], osl=[100.0, 50.0]
    )
    for law in replay_module.LAWS:
        drawn = draw(workload, 3, scv_isl=2.0, scv_osl=0.5, law=law)
        first = drawn.arrival < 500
        assert first.sum() == pytest.approx(15_000, abs=4 * np.sqrt(15_000))
        assert drawn.stored[first].mean() == pytest.approx(1000, rel=0.05)
        assert drawn.stored[~first].mean() == pytest.approx(3000, rel=0.05)
        np.testing.assert_allclose(drawn.computed[first], 0.5 * drawn.stored[first])
        assert drawn.output[~first].var() / 50.0**2 == pytest.approx(0.5, rel=0.1)
        assert drawn.stored[first].var() / 1000.0**2 == pytest.approx(2.0, rel=0.3)
    gaps = np.diff(drawn.arrival[first])
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)  # Poisson
    fixed = draw(workload, 3, scv_isl=0.0, scv_osl=0.0)
    np.testing.assert_array_equal(fixed.arrival, drawn.arrival)  # common random numbers
    assert set(fixed.output) == {100.0, 50.0}


def test_same_seed_same_bits():
    workload = load(50.0, 60.0)
    runs = [replay(fleet(), draw(workload, seed), (6, 4)) for seed in (7, 7, 8)]
    for name in STAMPS:
        np.testing.assert_array_equal(getattr(runs[0], name), getattr(runs[1], name))
    assert runs[0].finish.tobytes() == runs[1].finish.tobytes()
    assert runs[0].finish.tobytes() != runs[2].finish.tobytes()


# Queueing theory


def prefill_waits(servers: int, utilisation: float, scv: float, seeds: int, seconds: float) -> Estimate:
    """Mean wait for prefill alone, in service times: decode has room for everything."""
    plant = small_plant(batch=5000.0, kappa=1e-3)
    workload = load(utilisation * servers * 10.0, seconds, osl=5.0)
    values = []
    for seed in range(seeds):
        run = replay(fleet(plant), draw(workload, seed, scv_isl=scv), (servers, 1))
        came = run.arrivals_in(0.1 * seconds, 0.9 * seconds)
        values.append(float(run.wait[came].mean()) / 0.1)
    return Estimate.of(values, 0.999)


@pytest.mark.parametrize("scv", [1.0, 0.0])
def test_one_worker_is_pollaczek_khinchine(scv):
    """M/M/1 and M/D/1 at load 0.7."""
    exact = float(aggregated.queue_wait(load=0.7, service=1.0, scv=scv))
    estimate = prefill_waits(1, 0.7, scv, seeds=10, seconds=1500.0)
    assert estimate.low < exact < estimate.high
    assert estimate.high - estimate.low < 0.4 * exact


@pytest.mark.parametrize(("scv", "name"), [(1.0, "mmc"), (0.0, "kimura"), (3.0, "mgc")])
def test_many_workers_wait_as_the_correction_says(scv, name):
    formula = float(waiting.correction(name, 0.9 * 8, 1.0, 8, 1.0, scv))
    estimate = prefill_waits(8, 0.9, scv, seeds=8, seconds=500.0)
    slack = {"mmc": 0.0, "kimura": 0.02, "mgc": 0.12}[name] * formula  # the last two are approximations
    assert estimate.low - slack < formula < estimate.high + slack
    assert estimate.high - estimate.low < 1.2 * formula  # 99.9 %; a wrong c or scv is farther off


# Laws


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rate=st.floats(5.0, 90.0),
    capacity=st.sampled_from([0.0, 3e8, 5e9]),
    back_pressure=st.booleans(),
    place=st.sampled_from(["prefill", "decode", "host"]),
    workers=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    later=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    link=st.sampled_from([45e9, 1.2e9]),
    fabric=st.sampled_from([float("inf"), 3e9]),
    memory=st.sampled_from([None, 8_000.0]),
    chunks=st.sampled_from([None, 4.0]),
)
def test_requests_are_conserved_and_first_come_is_first_served(
    seed, rate, capacity, back_pressure, place, workers, later, link, fabric, memory, chunks
):
    plant = small_plant(
        capacity=capacity,
        batch=16.0,
        back_pressure=back_pressure,
        place=place,
        nic_decode=link,
        fabric=fabric,
        kv_capacity=memory,
        chunks=chunks,
    )
    schedule = Schedule((0.0, 6.0, 12.0), *zip(workers, later, workers, strict=True))
    run = replay(fleet(plant, cold_start=3.0), draw(load(rate, 20.0), seed, scv_isl=0.3), schedule, seed=seed)
    assert run.arrived == run.requests.arrival.size
    assert run.arrived == run.done + run.lost + sum(run.left().values())
    assert back_pressure <= (run.lost == 0)
    # Every stamp follows the one before it.
    previous = run.requests.arrival
    for name in STAMPS[:-2]:
        stamp = getattr(run, name)
        assert (stamp >= previous - 1e-9).all(), name
        previous = stamp
    done = np.isfinite(run.finish)
    assert (run.first_token[done] >= run.transfer_end[done]).all()
    assert (run.finish[done] >= run.first_token[done] - 1e-9).all()
    # First come, first served: into prefill by arrival, into decode by leaving prefill.
    started = run.prefill_start[np.isfinite(run.prefill_start)]
    assert (np.diff(started) >= 0).all()
    inside = np.isfinite(run.admitted)
    left, entered = run.handoff[inside], run.admitted[inside]
    order = np.argsort(left)
    latest = np.maximum.accumulate(entered[order])
    before = np.searchsorted(left[order], left, side="left")  # how many left earlier: ties in either order
    assert (entered[before > 0] >= latest[before[before > 0] - 1] - 1e-9).all()
    # Nothing holds more than it can.
    times = np.linspace(0.0, run.end, 400)
    assert run.level("buffer", times, "bytes").max() <= capacity * (1 + 1e-9) + 1e-3
    _no_worker_overlaps(run, plant)


def _no_worker_overlaps(run: Run, plant: Plant) -> None:
    """A prefill worker has one request at a time; a decode worker no more than its slots and its memory."""
    for worker in np.unique(run.prefilled_by[run.prefilled_by >= 0]):
        mine = run.prefilled_by == worker
        start, end = run.prefill_start[mine], np.minimum(run.handoff[mine], run.lost_at[mine])
        order = np.argsort(start, kind="stable")
        assert (start[order][1:] >= end[order][:-1] - 1e-9).all()
    for worker in np.unique(run.decoded_by[run.decoded_by >= 0]):
        mine = np.flatnonzero(run.decoded_by == worker)
        kv = (run.requests.stored + 0.5 * run.requests.output)[mine]
        for at in run.admitted[mine]:
            held = (run.admitted[mine] <= at) & (run.finish[mine] > at)
            assert held.sum() <= 16
            if plant.kv_capacity is not None:
                assert kv[held].sum() <= float(plant.kv_capacity) * (1 + 1e-9)


def test_stores_add_up_at_every_moment():
    run = replay(fleet(small_plant(capacity=1e9)), draw(load(95.0, 40.0), 1), (9, 3))
    times = np.linspace(0, 40, 333)
    parts = [run.level(name, times) for name in STORES if name != "system"]
    np.testing.assert_allclose(np.sum(parts, axis=0), run.level("system", times))
    assert run.level("buffer", times).max() > 5
    fine = np.linspace(5, 35, 300_001)
    for weight in ("requests", "bytes", "computed"):
        mean = run.level("buffer", fine, weight).mean()
        assert run.mean_level("buffer", 5.0, 35.0, weight) == pytest.approx(mean, rel=1e-3)


def test_drain_leaves_nothing():
    run = replay(fleet(), draw(load(80.0, 20.0), 1), (6, 4), drain=True)
    assert run.done == run.arrived
    assert sum(run.left().values()) == 0
    assert run.end > 20.0


# Handoff


def test_back_pressure_holds_prefill_and_loss_loses():
    """Decode does half of what prefill could: the buffer fills; then one mode slows prefill and the other drops."""
    workload = load(45.0, 60.0)
    runs = {
        mode: replay(fleet(small_plant(capacity=2e9, back_pressure=mode)), draw(workload, 4), (6, 1))
        for mode in (True, False)
    }
    held, lossy = runs[True], runs[False]
    assert held.lost == 0
    assert lossy.lost > 0.3 * lossy.arrived
    assert held.wait[np.isfinite(held.wait)].max() > 5 > lossy.wait[np.isfinite(lossy.wait)].max()
    for run in runs.values():
        assert run.mean_level("buffer", 20.0, 60.0, "bytes") == pytest.approx(2e9, rel=0.1)
        # Decode is full either way: 64 slots of 100 steps at the full batch.
        assert run.throughput(20.0, 60.0) == pytest.approx(64 / experiment.residence(small_plant()), rel=0.05)
    # A held request keeps its worker: at the end all six hold one.
    assert held.left()["prefill"] == 6


@pytest.mark.parametrize("place", ["prefill", "decode", "host"])
@pytest.mark.parametrize(("limit", "rate"), [({"nic_prefill": 0.5e9}, 21.05), ({"fabric": 1.5e9}, 15.79)])
def test_slow_links_bound_the_flow(place, limit, rate):
    """Four links of 0.5 GB/s carry 21 requests of 95 MB per second, a fabric of 1.5 GB/s 15.8, wherever the buffer."""
    plant = small_plant(**limit, place=place, batch=640.0, capacity=1e9)
    run = replay(fleet(plant), draw(load(60.0, 120.0), 5, scv_isl=0.0), (4, 4))
    assert run.throughput(60.0, 120.0) == pytest.approx(rate, rel=0.03)


def test_a_slow_decode_link_bounds_the_flow():
    plant = small_plant(nic_decode=0.5e9, batch=640.0)
    run = replay(fleet(plant), draw(load(60.0, 120.0), 5, scv_isl=0.0), (6, 3))
    assert run.throughput(60.0, 120.0) == pytest.approx(3 * 0.5e9 / 95e6, rel=0.03)


@pytest.mark.parametrize("chunks", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("nic", [50e9, 0.5e9])
def test_chunks_hide_the_transfer_behind_prefill(chunks, nic):
    """What D24 leaves exposed, for a link faster and one slower than prefill."""
    plant = small_plant(chunks=chunks, nic_prefill=nic, nic_decode=nic)
    run = replay(fleet(plant), given_requests([1.0]), (1, 1))
    exact = aggregated.exposed_transfer_chunked(isl=1000, kappa_store=95e3, nic=nic, r_P=1e4, g_P=1, n_chunks=chunks)
    assert run.transfer_end[0] - run.prefill_end[0] == pytest.approx(float(exact), rel=1e-9)


def test_tokens_that_decode_has_do_not_cross():
    run = replay(fleet(small_plant(hit_decode=0.75)), given_requests([1.0]), (1, 1))
    assert run.transfer_end[0] - run.prefill_end[0] == pytest.approx(0.25 * 95e6 / 45e9, rel=1e-9)


def test_a_buffer_in_the_pool_grows_with_it():
    plant = small_plant(capacity=0.0, capacity_per_gpu=1e9, place="prefill", batch=1.0)
    schedule = Schedule((0.0, 20.0), (2, 5), (1, 1))
    run = replay(fleet(plant, cold_start=2.0), draw(load(40.0, 40.0), 2, scv_isl=0.0), schedule)
    level = run.level("buffer", np.array([19.0, 39.0]), "bytes") / 95e6
    assert level.tolist() == [21.0, 52.0]  # 2 GB and 5 GB in requests of 95 MB


# Workers


def test_cold_start_delays_service_and_is_paid():
    requests = draw(load(30.0, 100.0), 6)
    slow = replay(fleet(cold_start=30.0), requests, Schedule((0.0, 10.0), (1, 4), (1, 4)))
    fast = replay(fleet(cold_start=0.0), requests, Schedule((0.0, 10.0), (1, 4), (1, 4)))
    ready = slow.workers[slow.workers[:, 1] == 10.0]
    assert len(ready) == 6
    assert (ready[:, 2] == 40.0).all()
    assert slow.gpu_hours * 3600 == pytest.approx(2 * 100 + 6 * 90)  # paid from the decision on
    assert fast.gpu_hours == slow.gpu_hours
    late = (requests.arrival > 20) & (requests.arrival < 30)
    assert slow.ttft[late].mean() > fast.ttft[late].mean() + 5.0
    assert slow.actions == 6


def test_a_cold_start_beyond_the_horizon_never_comes():
    run = replay(fleet(cold_start=500.0), draw(load(5.0, 50.0), 6), Schedule((0.0, 5.0), (1, 2), (1, 1)))
    assert np.isinf(run.workers[-1, 2]) | np.isinf(run.workers[:, 2]).any()
    assert set(run.prefilled_by) <= {0, -1}


def test_random_cold_starts_have_their_mean_and_spread():
    run = replay(
        fleet(cold_start=40.0, stages=4), draw(load(1.0, 400.0), 1), Schedule((0.0, 1.0), (1, 300), (1, 1)), seed=3
    )
    delays = run.workers[1:, 2] - run.workers[1:, 1]
    delays = delays[run.workers[1:, 1] == 1.0]
    assert delays.size == 299
    assert delays.mean() == pytest.approx(40.0, rel=0.1)
    assert delays.std() == pytest.approx(20.0, rel=0.2)


def test_a_stopped_decode_worker_drains_and_is_paid_for_until_then():
    requests = draw(load(20.0, 40.0), 9)
    run = replay(fleet(), requests, Schedule((0.0, 20.0), (4, 2), (3, 1)))
    gone = run.workers[np.isfinite(run.workers[:, 3])]
    decode = gone[gone[:, 0] == 1]
    assert len(decode) == 2
    assert (decode[:, 3] > 20.5).all()  # they held sequences of some seconds
    assert (decode[:, 3] < 40.0).all()
    prefill = gone[gone[:, 0] == 0]
    assert len(prefill) == 2
    assert (prefill[:, 3] < 21.0).all()
    paid = np.minimum(run.workers[:, 3], 40.0).sum()
    assert run.gpu_hours * 3600 == pytest.approx(paid)
    # Nothing new goes to a worker that was told to stop, and nothing that it held is lost.
    stopped = {k for k in range(3) if np.isfinite(run.workers[run.workers[:, 0] == 1][k, 3])}
    assert not (np.isin(run.decoded_by, list(stopped)) & (run.admitted > 20.0) & np.isfinite(run.admitted)).any()
    assert run.arrived == run.done + sum(run.left().values())


def test_starting_workers_are_called_off_when_no_ready_ones_are_left_to_stop():
    schedule = Schedule((0.0, 5.0, 10.0), (1, 6, 1), (1, 1, 1))
    run = replay(fleet(cold_start=30.0), draw(load(3.0, 60.0), 1), schedule)
    prefill = run.workers[run.workers[:, 0] == 0]
    # Of 1 ready and 5 starting 5 leave: the ready one first, and four that were starting.
    assert np.isfinite(prefill[:, 3]).sum() == 5
    assert np.isfinite(prefill[:, 2]).sum() == 2
    assert run.done > 0


def test_a_role_switch_has_its_own_delay():
    schedule = Schedule((0.0, 10.0), (4, 2), (2, 5))
    run = replay(fleet(cold_start=30.0, switch_delay=5.0), draw(load(10.0, 60.0), 1), schedule)
    started = run.workers[(run.workers[:, 1] == 10.0) & (run.workers[:, 0] == 1)]
    assert sorted(started[:, 2]) == [15.0, 15.0, 40.0]  # two from prefill, one new


# Control


def test_a_callable_decides_on_readings():
    seen = []

    def decide(time: float, readings: dict[str, float]) -> tuple[float, np.ndarray]:
        seen.append((time, readings))
        return (3.0, np.array(2)) if time < 20 else (5.0, np.array(4))

    run = replay(fleet(cold_start=10.0), draw(load(35.0, 60.0), 3), Control(decide, (3, 2)))
    assert [time for time, _ in seen] == [5.0 * k for k in range(12)]
    assert run.commands.tolist() == [[0.0, 3.0, 2.0], [20.0, 5.0, 4.0]]
    at = dict(seen)
    assert at[25.0]["prefill_ready"] == 3
    assert at[25.0]["prefill_starting"] == 2
    assert at[25.0]["pending"] == 4
    assert at[35.0]["decode_ready"] == 4
    assert np.mean([r["rate"] for _, r in seen]) == pytest.approx(35, rel=0.15)
    assert np.mean([r["isl"] for _, r in seen]) == pytest.approx(1000, rel=0.1)
    # Readings are what the stamps say.
    for time in (15.0, 40.0, 55.0):
        assert at[time]["queue"] == run.level("queue", np.array([time]))[0]
        assert (
            at[time]["running"] == run.level("transfer", np.array([time]))[0] + run.level("active", np.array([time]))[0]
        )
        first = (run.first_token > time - 5) & (run.first_token <= time)
        assert at[time]["ttft"] == pytest.approx(run.ttft[first].mean())
        going = run.level("prefill", np.array([time]), "computed")[0]
        queued = run.level("queue", np.array([time]), "computed")[0]
        assert queued <= at[time]["queue_tokens"] <= queued + going
    tokens = sum(r["decode_rate"] * 5 for time, r in seen if time > 0)
    prefilled = sum(r["prefill_rate"] * 5 for time, r in seen if time > 0)
    served = run.requests.computed[run.prefill_end < 55].sum()
    assert served <= prefilled <= served + run.level("prefill", np.array([55.0]), "computed")[0]
    assert tokens == pytest.approx(run.requests.output[run.finish < 55].sum(), rel=0.08)


def test_a_controlled_run_ends_when_nothing_is_left():
    """Also where requests are lost; a law that is still called long after has not been told."""

    def decide(time: float, readings: dict[str, float]) -> tuple[int, int]:
        assert time < 100.0
        return 6, 1

    plant = small_plant(capacity=1e9, back_pressure=False)
    run = replay(fleet(plant), draw(load(45.0, 30.0), 4), Control(decide, (6, 1)), drain=True)
    assert run.lost > 0
    assert run.done + run.lost == run.arrived
    assert 30.0 < run.end < 60.0


def test_a_policy_of_the_fluid_runs_on_requests():
    """The same law under the same rising load: it ends within a worker or two of where it takes the fluid."""
    workload = Workload.from_windows(window=100.0, rate=[20.0, 60.0, 60.0, 60.0], isl_stored=1000.0, osl=100.0)
    machine = fleet(cold_start=20.0, budget=24.0, initial_gpus=4.0, initial_ratio=0.5)
    policy = Thresholds(ratio=0.6, step=2.0)
    expected = simulate(machine, workload, policy)
    run = replay(machine, draw(workload, 1), policy)
    assert float(expected.trajectory.requested_gpus[-1]) > 6
    assert run.commands[-1, 1:].sum() == pytest.approx(float(expected.trajectory.requested_gpus[-1]), abs=4)
    assert run.gpu_hours == pytest.approx(float(expected.cost.gpu_hours), rel=0.25)
    assert run.commands[:, 1:].sum(axis=1).max() <= 24
    assert run.done == pytest.approx(float(expected.done), rel=0.1)


def test_growth_gets_the_gpus_that_are_left_prefill_first():
    machine = fleet(small_plant(prefill_worker=2.0, decode_worker=4.0), budget=24.0)
    fit = replay_module._fitted
    assert fit(machine, (3, 3), (3, 3)) == (3, 3)
    assert fit(machine, (9, 9), (3, 3)) == (6, 3)
    assert fit(machine, (4, 9), (3, 3)) == (4, 4)
    assert fit(machine, (1, 9), (3, 3)) == (1, 5)


def test_a_progress_bar_changes_nothing(capsys):
    requests = draw(load(200.0, 20.0), 1)
    plain, shown = (replay(fleet(), requests, (20, 10), progress=show) for show in (False, True))
    np.testing.assert_array_equal(plain.finish, shown.finish)
    assert "req" in capsys.readouterr().err


# Over seeds


def test_estimates_over_seeds():
    estimate = Estimate.of([1.0, 2.0, 3.0, 4.0])
    assert estimate.mean == 2.5
    assert estimate.high - estimate.mean == pytest.approx(3.182446 * np.sqrt(5 / 3) / 2, rel=1e-6)  # t, 3 degrees
    assert Estimate.of([5.0]).high == np.inf


def test_attainment_counts_lost_and_hopeless_requests_as_failed():
    workload = load(45.0, 40.0)
    ensemble = replicate(
        fleet(small_plant(capacity=2e9, back_pressure=False)), workload, (6, 1), seeds=range(4), progress=False
    )
    assert isinstance(ensemble, Ensemble)
    generous = ensemble.attainment(Objective(ttft=1e6, tpot=1e6))
    run = ensemble.runs[0]
    assert generous.values[0] == pytest.approx(run.done / (run.done + run.lost))
    assert generous.low < generous.mean < generous.high < 1
    strict = ensemble.attainment(Objective(ttft=1e-3, tpot=1e6))
    assert strict.mean == 0.0
    assert ensemble.attainment(Objective(ttft=1e6, tpot=1e-3)).mean < 0.02
    easy = replicate(fleet(), load(20.0, 20.0), (6, 4), seeds=[1], progress=False)
    assert easy.attainment().mean == 1.0
    # Under back-pressure those who wait past the limit at the end are known to have failed.
    stuck = replay(fleet(small_plant(capacity=1e9)), draw(workload, 1), (6, 1))
    waiting_now = int((stuck.requests.arrival < 38.0).sum() - np.isfinite(stuck.first_token).sum())
    assert waiting_now > 100
    known = np.isfinite(stuck.finish) | (np.minimum(stuck.first_token, 40.0) - stuck.requests.arrival > 2.0)
    kept = np.isfinite(stuck.finish) & (stuck.ttft <= 2.0) & ~(stuck.tpot > 0.05)
    assert stuck.attainment() == pytest.approx(kept.sum() / known.sum())


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, r: replay(f, r, (0, 1)), "pools: prefill workers is 0.0; it must be a whole number from 1"),
        (lambda f, r: replay(f, r, (3, 1.5)), "pools: decode workers is 1.5"),
        (lambda f, r: replay(f, r, (300, 101)), "pools: GPUs is 401.0; it must be at most the budget of 400 GPUs"),
        (lambda f, r: replay(f, r, Control(lambda t, s: (1, 0), (1, 1))), "the decision: decode workers is 0.0"),
        (lambda f, r: replay(f, r, Control(lambda t, s: (1, 1), (1, 999))), "initial: GPUs is 1000.0"),
        (lambda f, r: replay(f, r, Schedule((1.0,), (1,), (1,))), "schedule.times is (1.0,)"),
        (lambda f, r: replay(f, r, Schedule((0.0, 5.0), (1, 2), (1,))), "the lengths of times, prefill and decode"),
        (lambda f, r: replay(f, r, (1, 1), horizon=0.0), "horizon is 0.0"),
        (lambda f, r: replay(f, r, (1, 1), horizon=5.0, drain=True), "horizon is 5.0; it must be left out"),
        (lambda f, r: replay(f, r, (1, 1), seed=-1), "seed is -1"),
        (lambda f, r: replay(f.with_plant(batch=0.5), r, (1, 1)), "batch is 0.5"),
        (lambda f, r: replay(f.with_plant(kv_capacity=900.0), r, (1, 1)), "the KV memory of a decode worker is 900"),
        (lambda f, r: draw(load(1.0, 9.0), 1, scv_isl=-1.0), "scv_isl is -1.0"),
        (lambda f, r: draw(load(1.0, 9.0), 1, law="pareto"), "unknown law of the lengths 'pareto'"),
        (lambda f, r: draw(load(1e-9, 9.0), 1), "the number of requests is 0"),
        (lambda f, r: draw(load(-1.0, 9.0), 1), "rate in window 0 is -1.0"),
        (lambda f, r: replicate(f, load(1.0, 9.0), (1, 1), seeds=[], progress=False), "seeds is []"),
        (lambda f, r: given_requests([]), "the number of requests is 0"),
        (lambda f, r: given_requests([2.0, 1.0]), "arrival of request 1 is 1.0"),
        (lambda f, r: given_requests([-2.0]), "arrival of request 0 is -2.0; it must be finite and >= 0"),
        (lambda f, r: given_requests([1.0, 2.0], [5.0, 0.0]), "computed"),
        (lambda f, r: given_requests([1.0], duration=0.5), "duration is 0.5"),
        (lambda f, r: replay(f, r, (1, 1)).level("fridge", np.zeros(1)), "unknown store 'fridge'"),
        (lambda f, r: replay(f, r, (1, 1)).throughput(5.0, 2.0), "the window is (5.0, 2.0)"),
        (lambda f, r: Estimate.of([1.0], 1.5), "confidence is 1.5"),
    ],
)
def test_bad_input_is_refused(call, words):
    requests = given_requests([1.0], duration=10.0)
    with pytest.raises(InputError) as caught:
        call(fleet(), requests)
    assert words.replace("computed", "") in str(caught.value)


def test_without_simpy_the_extra_is_named(monkeypatch):
    for module in ("fluidq._replay_engine", "fluidq._replay_control"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(InputError, match=r"pip install 'fluidq\[validate\]'"):
        replay(fleet(), given_requests([1.0]), (1, 1))


# The fluid beside it


@pytest.mark.parametrize(("case", "load_"), [("prefill", 0.8), ("decode", 1.1)])
def test_the_committed_table_is_what_the_experiment_gives(case, load_):
    committed = next(r for r in compute(case=case).rows if (r["workers"], r["load"]) == (10, load_))
    fresh = experiment.cell(case, 10, load_)
    for name, value in committed.items():
        if isinstance(value, dict):
            assert fresh[name] == pytest.approx(value, rel=1e-4, abs=1e-9), name
        else:
            assert fresh[name] == value, name


@pytest.mark.parametrize("case", list(CASES))
def test_what_the_table_says(case):
    data = compute(case=case)
    assert len(data.rows) == 20
    for row in data.rows:
        assert row["unanswered"] == 0
        for name in ("tpot", "throughput", "active"):
            x = row[name]
            # The fluid's means are right to the noise of the seeds, and half a percent of physics.
            assert abs(x["fluid"] - x["requests"]) < 2.5 * x["half_width"] + 0.006 * x["requests"], (row, name)
        x = row["ttft"]
        if row["load"] < 1:
            assert abs(x["corrected"] - x["requests"]) < 2.5 * x["half_width"] + 0.03 * x["requests"], row
    below = [x for x in data.loads if x < 1]
    # Without the correction it misses most of the TTFT of a small fleet near capacity, and little of a large one's.
    missed = data.missed(0.95)
    assert missed[0] > 0.5
    assert missed[-1] < 0.06
    assert data.exponent(0.95, missed) < -0.6
    # The path's own scatter falls as the root of the size.
    slopes = [data.exponent(x, data.spread(x)) for x in below]
    assert np.mean(slopes) == pytest.approx(-0.5, abs=0.08)


def test_the_figure(tmp_path):
    digests = set()
    for name in ("a", "b"):
        built = fluid_vs_requests(tmp_path / f"{name}.png")
        digests.add(hashlib.sha256((tmp_path / f"{name}.png").read_bytes()).hexdigest())
    assert len(digests) == 1
    assert built.figure is not None
    words = " ".join(a.get_ylabel() + a.get_xlabel() + a.get_title("left") for a in built.figure.axes)
    for word in ("mean TTFT  [ms]", "workers", "relative error", "share of its capacity", CASES["balanced"]):
        assert word in words
    told = built.to_dict()
    json.dumps(told, allow_nan=False)
    assert told["requests"] > 1e6
    assert figure_registry.build("fluid-vs-requests", case="decode")["case"] == "decode"
    with pytest.raises(InputError, match="unknown case 'encode'; did you mean 'decode'"):
        compute(case="encode")


def test_worst_error_sees_a_difference():
    data = compute()
    rows = [{**row, "ttft": {**row["ttft"], "corrected": row["ttft"]["requests"] * 1.5}} for row in data.rows]
    assert FluidVsRequests(data.case, rows).worst_error == pytest.approx(0.5)


def test_laws_that_index_their_memory_run_on_requests_too():
    """The tick's number is a whole number there as in the fluid."""
    fleet = small_fleet()
    load = default_workload(seed=0).slice(0, 600)
    run = replay(fleet, draw(load, seed=0), BalanceTracking())
    assert run.arrived > 1000
    assert run.done > 0.9 * run.arrived
