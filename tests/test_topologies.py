"""The compared systems: closed forms at any step, conservation, gradients, and where each is better than two pools."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq._errors import InputError
from fluidq.figures import _topologies
from fluidq.formulas import aggregated, balance, memory, rounding, stages
from fluidq.plant import Arrivals, Contents, Plant, PlantState, step_time
from fluidq.policies import Thresholds
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import load_of, simulate
from fluidq.topologies import (
    AttentionFFN,
    Chunked,
    Partitioned,
    Temporal,
    Windowed,
    green_context,
    reserve,
    windows,
)
from fluidq.topologies._admission import Admission, largest
from fluidq.topologies._frontier import Frontier, capped
from fluidq.workload import default_workload
from tests.helpers import central, small_fleet, small_plant

PLANT = small_plant()
SIBLINGS = {
    "temporal": Temporal.of(PLANT),
    "overlapped chunks": Chunked.of(PLANT, overlap=0.7),
    "roofline chunks": Chunked.of(PLANT, budget=512.0),
    "Bullet": Partitioned.of(PLANT, saturation=0.4),
    "green contexts": Partitioned.of(PLANT, saturation=0.4, share=0.5),
    "DuetServe": Partitioned.of(PLANT, saturation=0.4, itl=0.05, hybrid=True),
    "NIXL": Windowed.of(small_plant(place="prefill"), isl=1000.0, unfetched=0.01),
    "Mooncake": Windowed.of(small_plant(place="prefill", chunks=8.0), isl=1000.0),
    "attention-FFN": AttentionFFN.of(PLANT, attention_ratio=0.5, t_hop=2e-5),
}


def among(*names):
    """These of the siblings: each has its own code to compile, so those that differ in numbers only share a test."""
    return pytest.mark.parametrize("plant", [SIBLINGS[name] for name in names], ids=names)


class Fixed(Policy):
    """A fleet that stays as it is."""

    prefill: float = 5.0
    decode: float = 5.0

    def initial(self, fleet, width):
        return Asked(self.prefill, self.decode)

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(jnp.asarray(self.prefill), jnp.asarray(self.decode))


@eqx.filter_jit
def step(plant, state, arrivals, prefill_gpus, decode_gpus, dt):
    return plant.advance(state, arrivals, prefill_gpus, decode_gpus, dt)


def numbers(*trees):
    """The same with every Python number an array: another value is then another input, not another compilation."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float64) if isinstance(x, float) else x, trees)


def steady(plant, rate, isl, osl, prefill_gpus, decode_gpus, dt, start=None):
    """The state, the last flows and the latency after many steps of a constant load."""
    start = plant.empty() if start is None else start
    return _steady(*numbers(plant, start, rate, isl, osl, prefill_gpus, decode_gpus, dt))[:3]


@eqx.filter_jit
def _steady(plant, start, rate, isl, osl, prefill_gpus, decode_gpus, dt):
    n = rate * dt
    arrivals = Arrivals(n, n * isl, n * isl, n * osl)

    def once(state, _):
        new, flows = plant.advance(state, arrivals, prefill_gpus, decode_gpus, dt)
        return new, (flows, state.backlog.requests)

    state, (flows, queue) = jax.lax.scan(once, start, None, length=1500)
    last = jax.tree.map(lambda x: x[-1], flows)
    return state, last, plant.latency(state, arrivals, prefill_gpus, decode_gpus, last), queue


def rates(isl, osl, plant=PLANT):
    """Closed forms of two balanced pools: full step time, phi, largest throughput per GPU."""
    context = isl + (osl - 1) / 2
    t_step = plant.t_step_a + plant.batch * (plant.t_step_b + plant.t_step_c * context)
    phi = float(balance.balance_ratio(B=plant.batch, isl=isl, osl=osl, r_P=plant.r_P, t_step=t_step))
    return t_step, phi, phi / (isl / plant.r_P)


def saturated(plant, isl, osl, dt=15.0, gpus=10.0):
    """Throughput over that of two balanced pools, and the time between two decode steps, with work for ever."""
    _, _, best = rates(isl, osl)
    _, flows, _ = steady(plant, 4 * best * gpus, isl, osl, gpus / 4, gpus * 3 / 4, dt)
    return float(flows.done.requests) / dt / (best * gpus), float(flows.t_step)


MIXES = ((3000.0, 60.0), (1155.0, 211.0), (300.0, 400.0))  # phi 0.93, 0.56, 0.16


# Closed forms


@pytest.mark.parametrize(("isl", "osl"), MIXES)
@pytest.mark.parametrize("dt", [2.0, 40.0])
def test_temporal_aggregation_gives_the_output_of_two_pools_at_a_longer_tpot(isl, osl, dt):
    t_step, phi, _ = rates(isl, osl)
    gain, t_felt = saturated(Temporal.of(PLANT), isl, osl, dt)
    assert gain == pytest.approx(1.0, rel=1e-9)
    assert t_felt == pytest.approx(float(aggregated.tpot_temporal(t_step=t_step, load=1.0, phi=phi)), rel=1e-9)
    output = float(aggregated.output_rate(N=10.0, phi=phi, B=PLANT.batch, t_step=t_step))
    assert gain * rates(isl, osl)[2] * 10.0 * osl == pytest.approx(output, rel=1e-9)


def test_tokens_per_step_shorten_decode_and_not_the_step():
    isl, osl, accept = 1155.0, 211.0, 1.7
    t_step, _, _ = rates(isl, osl)
    work = isl / PLANT.r_P + osl * t_step / (accept * PLANT.batch)  # D04
    _, flows, felt = steady(Temporal.of(small_plant(accept=accept)), 300.0, isl, osl, 5.0, 5.0, 15.0)
    assert float(flows.done.requests) / 15.0 == pytest.approx(10 / work, rel=1e-9)
    assert float(felt.tpot) == pytest.approx(float(flows.t_step) / accept)


@pytest.mark.parametrize("running", [0.0, 200.0, 300.0, 900.0])
def test_prefill_and_decode_use_up_the_time_of_the_gpus_that_serve(running):
    """Four ready GPUs, 256 places: with more sequences than that some GPUs drain, and only decode."""
    plant, queue = Temporal.of(PLANT), Contents(500.0, 500e3, 500 * 100.0)
    state = PlantState(queue, 500e3, NOTHING, Contents(running, running * 900.0, running * 60.0))
    new, flows = step(*numbers(plant, state, NONE, 1.0, 3.0, 8.0))
    serving = max(4.0, running / 64)
    assert float(flows.serving) + 1.0 == pytest.approx(serving)
    law = float(step_time(PLANT, Contents(*numbers(*state.active)), serving))
    prefill, decode = float(flows.prefilled) / (PLANT.r_P * 8.0), serving * law / float(flows.t_step)
    assert prefill + decode == pytest.approx(serving, rel=1e-12)
    assert prefill > 0
    assert float(new.active.requests) <= 256 * (1 + 1e-9)


@pytest.mark.parametrize("load", [0.1, 0.6, 0.95])
def test_temporal_tpot_at_part_load_is_that_of_the_batch_then_running(load):
    isl, osl = 1155.0, 211.0
    _, phi, best = rates(isl, osl)
    state, flows, felt = steady(Temporal.of(PLANT), load * best * 10, isl, osl, 3.0, 7.0, 15.0)
    law = float(step_time(PLANT, state.active, 10.0))
    # Prefill's share of the time is load * phi, whatever the batch.
    expected = float(aggregated.tpot_temporal(t_step=law, load=load, phi=phi))
    assert float(flows.t_step) == pytest.approx(expected, rel=1e-9)
    assert float(felt.tpot) == float(flows.t_step)
    # Little: as many as arrive in the time that they stay.
    assert float(state.active.requests) == pytest.approx(load * best * 10 * osl * expected, rel=1e-9)
    assert float(state.backlog.requests) == 0


@pytest.mark.parametrize(("isl", "osl"), MIXES)
@pytest.mark.parametrize("overlap", [0.0, 0.6, 0.95, 1.0])
def test_overlapped_chunks_gain_what_the_bound_says(isl, osl, overlap):
    _, phi, _ = rates(isl, osl)
    gain, _ = saturated(Chunked.of(PLANT, overlap=overlap, budget=1e6), isl, osl)
    expected = float(aggregated.chunk_gain(phi=phi, overlap=overlap))
    if overlap == 1.0 and phi > 0.5:
        # Decode is hidden behind prefill and its batch is not full: the gain is the same.
        assert expected == pytest.approx(1 / phi)
    assert gain == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("isl", "osl"), MIXES)
@pytest.mark.parametrize("saturation", [0.25, 0.6, 1.0])
def test_a_split_gpu_gains_what_the_formula_says(isl, osl, saturation):
    _, phi, _ = rates(isl, osl)
    expected = float(aggregated.sm_split_gain(phi=phi, saturation=saturation))
    moved, _ = saturated(Partitioned.of(PLANT, saturation=saturation), isl, osl)
    assert moved == pytest.approx(expected, rel=1e-8)
    best = float(aggregated.best_sm_share(phi=phi, saturation=saturation))
    # A larger prefill batch than decode can take leaves the gain as it is; a share off the best one loses.
    gains = {}
    for share in (0.8 * best, best, best + 0.5 * (1 - best)):
        green = Partitioned.of(PLANT, saturation=saturation, share=share)
        gains[share], _ = saturated(green, isl, osl)
    assert gains[best] == pytest.approx(expected, rel=1e-8)
    assert max(gains.values()) <= expected * (1 + 1e-8)
    assert gains[best + 0.5 * (1 - best)] < expected * (1 - 1e-3) or saturation * (1 - phi) == 0


def test_duetserve_keeps_its_objective_and_prefills_what_the_split_leaves():
    isl, osl = 1155.0, 211.0
    t_step, phi, _ = rates(isl, osl)
    plant = Partitioned.of(PLANT, saturation=0.4, itl=0.05, hybrid=True)
    gain, t_felt = saturated(plant, isl, osl)
    assert t_felt == pytest.approx(0.05, rel=1e-9)
    # Decode runs at t_step / itl of its speed on a share that the formula gives; both phases complete alike.
    assert gain == pytest.approx(t_step / 0.05 / (1 - phi), rel=1e-8)
    state, _, _ = steady(plant, 100.0, isl, osl, 5.0, 5.0, 15.0)
    load = plant._load(state.active, state.backlog, state.computed, 10.0)[0]
    share = float(aggregated.decode_sm_share(saturation=0.4, t_step=load.t_step, itl_max=0.05))
    assert float(plant.decode_share(load)) == pytest.approx(share)
    assert gain * phi <= 1 - share
    # Without need of a split it is temporal aggregation.
    few = steady(plant, 10.0, isl, osl, 5.0, 5.0, 15.0)[1]
    assert float(few.t_step) == pytest.approx(
        float(steady(Temporal.of(PLANT), 10.0, isl, osl, 5.0, 5.0, 15.0)[1].t_step)
    )
    # Bullet under the same objective leaves decode as little.
    _, t_bullet = saturated(Partitioned.of(PLANT, saturation=0.4, itl=0.04), 3000.0, 60.0)
    assert t_bullet == pytest.approx(0.04, rel=1e-9)


# A hypothetical GPU and model for the roofline: a token takes `FLOP`, KV of a token `READ` bytes.
PEAK, HBM, FLOP, READ, WEIGHTS = 1e15, 4e12, 2e10, 60e3, 40e9
ROOFLINE = Chunked.of(
    small_plant(r_P=PEAK / FLOP, t_step_a=WEIGHTS / HBM, t_step_b=0.0, t_step_c=READ / HBM), budget=2048.0
)


def hardware(chunk, prior, batch, context):
    law = {"W": WEIGHTS, "kappa_read": READ, "flop_token": FLOP, "peak": PEAK, "hbm_rate": HBM}
    return float(aggregated.mixed_step(chunk=chunk, prior=prior, B=batch, theta_ctx=context, **law))


@pytest.mark.parametrize(("isl", "budget"), [(20_000.0, 2048.0), (20_000.0, 400.0), (400.0, 1200.0)])
def test_full_mixed_steps_take_what_the_hardware_says(isl, budget):
    osl = 10.0  # prefill binds: each step carries a full chunk
    plant = eqx.tree_at(lambda p: p.budget, ROOFLINE, budget)
    state, flows, felt = steady(plant, 3000.0, isl, osl, 5.0, 5.0, 15.0)
    batch = float(state.active.requests) / 10
    assert batch < plant.batch
    chunk = budget - batch
    expected = hardware(chunk, max(isl - chunk, 0.0) / 2, batch, isl + (osl - 1) / 2)
    assert float(flows.t_step) == pytest.approx(expected, rel=1e-9)
    assert float(flows.prefilled) == pytest.approx(10 * 15.0 * chunk / expected, rel=1e-9)
    # The reading over all chunks of a prompt is the re-read of the formula.
    n_chunks = max(isl / chunk, 1.0)
    reread = float(aggregated.prefix_reread(kappa_read=READ, isl=isl, n_chunks=n_chunks))
    assert n_chunks * READ * max(isl - chunk, 0.0) / 2 == pytest.approx(reread, rel=1e-12)
    if isl < chunk:  # the own prompt does not fill a step
        expected = hardware(isl, 0.0, batch, isl + (osl - 1) / 2)
    own = aggregated.ttft_chunked(isl=isl, chunk=min(chunk, isl), t_mix=expected)
    assert float(felt.prefill) == pytest.approx(float(own), rel=1e-9)
    assert float(felt.ttft) == pytest.approx(float(felt.wait + own), rel=1e-12)


def test_the_free_chunk_rides_along_and_a_larger_one_does_not():
    batch, isl, osl = 40.0, 300.0, 200.0
    context = isl + (osl - 1) / 2
    law = {"W": WEIGHTS, "kappa_read": READ, "flop_token": FLOP, "peak": PEAK, "hbm_rate": HBM}
    free = float(aggregated.free_chunk(B=batch, theta_ctx=context, **law))
    assert free > isl
    held = Contents(jnp.asarray(batch), jnp.asarray(batch * isl), jnp.asarray(batch * osl))
    queue = Contents(jnp.asarray(5.0), jnp.asarray(5 * isl), jnp.asarray(5 * osl))
    for chunk, longer in ((free * (1 - 1e-9), False), (free * 1.1, True)):
        plant = eqx.tree_at(lambda p: p.budget, ROOFLINE, batch + chunk)
        load, _ = plant._load(held, queue, 5 * isl, jnp.asarray(1.0))
        assert float(load.t_step) == pytest.approx(hardware(0.0, 0.0, batch, context), rel=1e-12)
        assert (float(plant.mixed_step(load, plant.chunk(load))) > float(load.t_step) * (1 + 1e-6)) == longer


def test_an_idle_fleet_answers_as_the_formula_says():
    isl = 4000.0
    _, _, felt = steady(Temporal.of(PLANT), 1e-9, isl, 200.0, 1.0, 1.0, 15.0)
    expected = aggregated.ttft_temporal(load=0.0, phi=0.5, isl=isl, r_P=PLANT.r_P, g_worker=1.0, t_step=PLANT.t_step_a)
    assert float(felt.ttft) == pytest.approx(float(expected), rel=1e-6)
    assert float(felt.transfer) == 0


def test_the_wait_is_the_time_in_which_the_queue_ahead_gets_its_places():
    """The estimate for a request that arrives now, against running the plant until what was ahead of it is admitted."""
    isl, osl, dt = 1155.0, 211.0, 0.25
    for plant in (Temporal.of(PLANT), Chunked.of(PLANT, overlap=0.7), Partitioned.of(PLANT, saturation=0.4)):
        rate = 2.0 * 10 * rates(isl, osl)[2]
        state, _, felt = steady(plant, rate, isl, osl, 5.0, 5.0, dt / 3)
        queue = _steady(*numbers(plant, state, 0.0, isl, osl, 5.0, 5.0, dt))[3]
        took = dt * float(jnp.sum(queue > 0))
        assert 15 < took < 1500 * dt
        assert float(felt.wait) == pytest.approx(took, rel=0.02)


def stages_of(plant, batch, context):
    times = plant.stage_times(batch, context)
    return times, float(times["ffn_base"] + times["ffn_slope"] * plant.attention_ratio * batch)


@pytest.mark.parametrize("attention_ratio", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("t_hop", [0.0, 5e-4])
def test_attention_and_ffn_apart_reach_the_throughput_of_the_formula(attention_ratio, t_hop):
    isl, osl = 2000.0, 400.0
    plant = AttentionFFN.of(
        small_plant(t_step_c=5e-7), attention_ratio=attention_ratio, t_hop=t_hop, micro_batches=4.0, attention_base=1e-3
    )
    state, flows, _ = steady(plant, 200.0, isl, osl, 100.0, 8.0, 5.0)
    batch = float(plant.micro_batch(state.active.requests, 8.0))
    assert float(state.active.requests) == pytest.approx(8 * PLANT.batch, rel=1e-9)
    assert batch == pytest.approx(PLANT.batch * (1 + attention_ratio) / (attention_ratio * 4), rel=1e-9)
    times, t_ffn = stages_of(plant, batch, isl + (osl - 1) / 2)
    trip = {"t_attention": times["t_attention"], "t_hop": t_hop, "t_ffn": t_ffn}
    assert 4.0 >= float(stages.micro_batches_needed(**trip)) or t_hop > max(float(times["t_attention"]), t_ffn)
    per_gpu = float(stages.afd_throughput(attention_ratio=attention_ratio, **times)) / plant.layers
    assert float(flows.done.requests) * osl / 5.0 == pytest.approx(8 * per_gpu, rel=1e-6)
    # With a barrier a step is the ping-pong time, unless the hops are the longest.
    own = {**vars_of(plant), "barrier": True}
    t_step = float(AttentionFFN.of(plant, **own).decode_step(state.active, 8.0))
    drained = float(stages.pingpong_time(**trip, micro_batches=4.0, layers=plant.layers))
    assert t_step == pytest.approx(max(drained, 4.0 * plant.layers * t_hop), rel=1e-9)
    assert float(flows.t_step) <= t_step


def test_too_few_micro_batches_wait_for_the_round_trip():
    plant = AttentionFFN.of(small_plant(t_step_c=3e-7), micro_batches=1.0, t_hop=1e-4, attention_base=5e-3)
    held = Contents(jnp.asarray(64.0), jnp.asarray(64 * 1000.0), jnp.asarray(64.0 * 200))
    times, t_ffn = stages_of(plant, float(plant.micro_batch(64.0, 1.0)), 1000 + 199 / 2)
    trip = float(times["t_attention"]) + t_ffn + 2e-4
    assert float(plant.decode_step(held, 1.0)) == pytest.approx(plant.layers * trip)


def test_the_best_attention_ratio_is_best_in_the_plant():
    isl, osl, micro = 1500.0, 300.0, 40.0
    best = float(AttentionFFN.of(small_plant(t_step_c=4e-7)).best_ratio(micro, isl + (osl - 1) / 2))

    def tokens(r):
        # The same micro-batch on every attention GPU, as the formula has it.
        batch = micro * 3.0 * r / (1 + r)
        plant = AttentionFFN.of(small_plant(t_step_c=4e-7, batch=batch), attention_ratio=r)
        _, flows, _ = steady(plant, 300.0, isl, osl, 100.0, 10.0, 5.0)
        return float(flows.done.requests)

    assert 0.05 < best < 20
    found = {r: tokens(best * r) for r in (0.7, 0.9, 1.0, 1.1, 1.4)}
    assert max(found, key=found.get) == 1.0  # type: ignore[arg-type]


# The memory windows


def test_windows_are_those_of_the_formulas_and_of_their_ratio():
    after = small_plant(prefill_worker=2.0)
    sent = small_plant(prefill_worker=2.0, chunks=8.0)
    one, many = windows(after, 0.7, 6.0, 8000.0), windows(sent, 0.7, 6.0, 8000.0)
    assert float(one.prefill) == 0
    assert float(many.decode) == 0
    nic = min(2 * PLANT.nic_prefill, PLANT.nic_decode) / 2
    ratio = memory.duplication_ratio(r_P=PLANT.r_P, kappa_store=PLANT.kappa, nic=nic, n_chunks=8.0)
    assert float(many.prefill / one.decode) == pytest.approx(float(ratio))
    margin = nic / (PLANT.r_P * PLANT.kappa)
    assert float(ratio) == pytest.approx(margin / 2 * (1 - 1 / 8))
    assert float(many.prefill) == pytest.approx(6.0 * 0.7 * 95e3 * 8000 / 2 * 7 / 16)
    held = windows(after, 1.0, 6.0, 8000.0, lease=30.0, unfetched=0.1).prefill
    assert float(held) == pytest.approx(6 * 0.1 * PLANT.r_P * PLANT.kappa * 30)


@pytest.mark.parametrize("place", ["prefill", "decode", "host"])
@pytest.mark.parametrize("chunks", [None, 8.0])
def test_a_window_comes_off_the_memory_that_it_lies_in(place, chunks):
    plant = small_plant(place=place, chunks=chunks, capacity=5e9, capacity_per_gpu=1e9, kv_capacity=1e5)
    taken = windows(plant, 0.5, 4.0, 9000.0, 30.0, 0.02)
    left = reserve(plant, 0.5, 4.0, 6.0, 9000.0, 30.0, 0.02)
    here = {"prefill": taken.prefill, "decode": taken.decode, "host": 0.0}[place]
    assert float(left.room(4.0, 6.0)) == pytest.approx(float(plant.room(4.0, 6.0) - here))
    tokens = 0.0 if place == "decode" else float(taken.decode) / (6 * PLANT.kappa)
    assert float(left.kv_capacity) == pytest.approx(1e5 - tokens)
    assert float(taken.prefill) > 0
    assert (float(taken.decode) > 0) == (chunks is None)
    # Never below nothing.
    assert float(reserve(plant, 1.0, 4.0, 6.0, 1e9, 3e3, 1.0).room(4.0, 6.0)) >= 0


def test_the_buffer_fills_to_what_the_windows_leave():
    plain = small_plant(place="prefill", chunks=8.0, capacity=5e9)
    plant = Windowed.of(plain, isl=9000.0)
    state, flows, _ = steady(plant, 20.0, 9000.0, 3000.0, 10.0, 2.0, 1.0)
    room = float(plant.room(10.0, 2.0))
    taken = windows(plain, 1.0, 10.0, 9000.0)
    assert 5e9 - room == pytest.approx(float(taken.prefill + taken.decode))
    assert 0 < room < 5e9 * (1 - 1e-3)
    assert float(plant.kappa * state.buffer.stored) == pytest.approx(room, rel=1e-9)
    assert float(flows.stalled) > 0
    # An idle pool has no windows, a half busy one half of them.
    assert float(plant.at(0.0, 10.0, 2.0).capacity) == 5e9
    assert 5e9 - float(plant.at(0.5, 10.0, 2.0).capacity) == pytest.approx((5e9 - room) / 2)


# What holds for each


STORE = st.tuples(st.floats(0, 3000), st.floats(1, 20_000), st.floats(0, 3000), st.floats(0, 1))


def stores(rows, buffered):
    """A state of several classes from (requests, input, output, computed share) of each store and class."""
    n, isl, osl, part = (np.array([[r[k] for r in row] for row in rows]) for k in range(4))
    backlog, buffer, active = (Contents(n[k], n[k] * isl[k], n[k] * osl[k]) for k in range(3))
    if not buffered:
        buffer = Contents(*(np.zeros_like(x) for x in buffer))
    state = PlantState(backlog, backlog.stored * part[0], buffer, active)
    arrivals = Arrivals(n[3], n[3] * isl[3] * part[3], n[3] * isl[3], n[3] * osl[3])
    return jax.tree.map(jnp.asarray, (state, arrivals))


def contents(state):
    return np.sum([np.array(s, dtype=float) for s in (state.backlog, state.buffer, state.active)], axis=0)


@among("temporal", "roofline chunks", "green contexts", "DuetServe", "NIXL", "attention-FFN")
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.lists(STORE, min_size=2, max_size=2), min_size=4, max_size=4),
    gpus=st.tuples(st.sampled_from([0.0, 1.0, 7.5]), st.sampled_from([0.0, 2.0, 30.0])),
    dt=st.sampled_from([0.2, 15.0, 200.0]),
    kv=st.sampled_from([1e4, 4e4, 1e9]),
)
def test_every_step_conserves_and_keeps_its_limits(plant, kv, rows, gpus, dt):
    shared = hasattr(plant, "frontier")
    plant = with_kv(plant, kv)
    state, arrivals = stores(rows, buffered=not shared)
    new, flows = step(*numbers(plant, state, arrivals, *gpus, dt))
    came = np.array([arrivals.requests, arrivals.stored, arrivals.output])
    out = contents(new) + np.array(flows.done) + np.array(flows.lost)
    before = contents(state) + came
    np.testing.assert_allclose(out, before, rtol=1e-12, atol=1e-9 * (1 + before.max()))
    work = np.asarray(new.computed).sum() + float(flows.prefilled)
    assert work == pytest.approx(float((state.computed + arrivals.computed).sum()), rel=1e-12, abs=1e-9)
    for leaf in jax.tree.leaves((new, flows)):
        assert np.all(np.asarray(leaf) >= 0)
        assert np.all(np.isfinite(np.asarray(leaf)))
    if shared:
        n = sum(gpus)
        assert float(flows.serving) == pytest.approx(max(n, float(state.active.requests.sum()) / 64) - gpus[0])
        assert float(flows.prefilled) <= n * 1e4 * dt * (1 + 1e-9)
        # Nobody enters beyond the places; who is there already may be too many.
        was, now = (np.array([s.active.requests.sum(), _tokens(s)], dtype=float) for s in (state, new))
        assert now[0] <= max(n * 64, was[0]) * (1 + 1e-6) + 1e-9
        assert now[1] <= max(n * kv, was[1]) * (1 + 1e-6) + 1e-6


def _tokens(state):
    return float(state.active.stored.sum() + 0.5 * state.active.output.sum())


def with_kv(plant, kv):
    return type(plant).of(plant, **vars_of(plant) | {"kv_capacity": kv})


def vars_of(plant):
    """The fields that a sibling has of its own."""
    return {name: getattr(plant, name) for name in plant.__dataclass_fields__ if name not in Plant.__dataclass_fields__}


def test_admission_finds_the_largest_share_for_every_frontier():
    """The root against bisection, for steps far shorter and far longer than a request stays."""
    rng = np.random.default_rng(5)
    n = 4000
    pick = lambda *values: rng.choice(values, n)  # noqa: E731
    keep, slope, steep = 10 ** rng.uniform(-4, -1, n), pick(0.0, 0.05, 0.5, 1.0), pick(0.05, 0.3, 0.95, 1.0)
    front = jax.vmap(capped)(*numbers(slope, steep, keep))
    timed = lambda k, s: Frontier(1.0, 1.0, 0.0, k, 1 - s * k, jnp.minimum(1 - k, 1 - s * k))  # noqa: E731
    hybrid = rng.random(n) < 0.3
    front = jax.tree.map(lambda a, b: jnp.where(hybrid, b, a), front, jax.vmap(timed)(*numbers(keep, steep)))
    age = 10 ** rng.uniform(-3, 1, n)
    held = pick(0.0, 0.5, 1.0, 1.0) * rng.uniform(0.9, 1.1, n)  # some are over their places
    part, busy = pick(1.0, 0.8), 10 ** rng.uniform(-2, 2, n)
    entering, age_entering = 10 ** rng.uniform(-2, 3, n), age * pick(0.3, 1.0, 3.0)
    known = (jnp.asarray(x) for x in (np.ones(n), held, entering, age, age_entering))
    batch = Admission(*known, front, jnp.asarray(part), jnp.asarray(busy))
    top = jnp.minimum(1.0, front.top / busy)
    found = np.asarray(jax.jit(jax.vmap(largest))(batch, top))
    fits = jax.jit(jax.vmap(lambda b, m: b.fits(m)))
    low, high = np.zeros(n), np.asarray(top)
    all_fit = np.asarray(fits(batch, top)) >= high
    for _ in range(80):
        middle = (low + high) / 2
        over = middle > np.asarray(fits(batch, jnp.asarray(middle)))
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    expected = np.where(all_fit, np.asarray(top), (low + high) / 2)
    assert 0.2 < all_fit.mean() < 0.9
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)
    # In the range of real engines, where a step is at most a few stays, it is exact to rounding.
    usual = age < 3
    np.testing.assert_allclose(found[usual], expected[usual], rtol=1e-12, atol=1e-14)


def wave(plant):
    """A scalar of a minute below capacity and one over it, with the flows, the state and the latency in it."""

    def once(state, n):
        arrivals = Arrivals(n, 900.0 * n, 1000.0 * n, 150.0 * n)
        state, flows = plant.advance(state, arrivals, 3.0, 4.0, 4.0)
        return state, flows

    load = 4.0 * jnp.concatenate([jnp.full(15, 12.0), jnp.full(15, 70.0)])
    state, flows = jax.lax.scan(once, plant.empty(), load)
    last = jax.tree.map(lambda x: x[-1], flows)
    felt = plant.latency(state, Arrivals(280.0, 252e3, 280e3, 42e3), 3.0, 4.0, last)
    moved = 50 * flows.t_step + 1e-3 * flows.done.requests + 1e-2 * flows.idle
    return jnp.mean(moved) + felt.ttft + 50 * felt.tpot + 1e-3 * state.active.requests


@among("overlapped chunks", "roofline chunks", "DuetServe", "NIXL", "attention-FFN")
def test_gradients_of_every_number_agree_with_central_differences(plant):
    names = ["r_P", "batch", "t_step_a", "t_step_b", "t_step_c", "accept"]
    names += [name for name, value in vars_of(plant).items() if isinstance(value, float)]
    if plant is SIBLINGS["DuetServe"]:  # one of them with a limit on its KV
        plant, names = with_kv(plant, 6e4), [*names, "kv_capacity"]

    def cost(x):
        scaled = {name: getattr(plant, name) * x[i] for i, name in enumerate(names)}
        return wave(type(plant).of(plant, **vars_of(plant) | scaled))

    both, ones = jax.jit(jax.value_and_grad(cost)), np.ones(len(names))
    expected, found = central(lambda x: both(x)[0], ones), np.asarray(both(ones)[1])
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6 * np.abs(expected).max())
    assert np.count_nonzero(np.abs(expected) > 1e-6) >= 5, "the numbers matter in this scenario"


NOTHING = Contents(0.0, 0.0, 0.0)
BUSY = Contents(640.0, 640e3, 640 * 200.0)
QUEUE = Contents(50.0, 50e3, 50 * 200.0)
NONE = Arrivals(0.0, 0.0, 0.0, 0.0)
SOME = Arrivals(30.0, 30e3, 30e3, 6e3)
EDGES = {
    "empty": (PlantState(NOTHING, 0.0, NOTHING, NOTHING), NONE, 5.0, 5.0),
    "exactly full": (PlantState(QUEUE, 50e3, NOTHING, BUSY), NONE, 5.0, 5.0),
    "full buffer": (PlantState(QUEUE, 50e3, Contents(100.0, 20e9 / 95e3, 2e4), BUSY), SOME, 5.0, 5.0),
    "over full": (PlantState(QUEUE, 50e3, NOTHING, BUSY), SOME, 1.0, 1.0),
    "no GPU": (PlantState(QUEUE, 50e3, NOTHING, NOTHING), SOME, 0.0, 0.0),
    "no GPU, draining": (PlantState(QUEUE, 50e3, NOTHING, BUSY), NONE, 0.0, 0.0),
    "no output": (PlantState(NOTHING, 0.0, NOTHING, NOTHING), Arrivals(30.0, 30e3, 30e3, 0.0), 5.0, 5.0),
    "no prefill": (PlantState(NOTHING, 0.0, NOTHING, BUSY), Arrivals(30.0, 0.0, 30e3, 6e3), 5.0, 5.0),
    "nothing but requests": (PlantState(NOTHING, 0.0, NOTHING, NOTHING), Arrivals(30.0, 0.0, 0.0, 0.0), 5.0, 5.0),
    "exactly prefill's limit": (
        PlantState(NOTHING, 0.0, NOTHING, NOTHING), Arrivals(100.0, 1e6, 1e6, 1e3), 5.0, 5.0
    ),
    "a trace of a batch": (PlantState(NOTHING, 0.0, NOTHING, Contents(1e-320, 1e-318, 1e-319)), NONE, 5.0, 5.0),
    "a flood": (PlantState(NOTHING, 0.0, NOTHING, NOTHING), Arrivals(1e9, 1e12, 1e12, 1e12), 5.0, 5.0),
}  # fmt: skip


def outputs(everything):
    """The sum of all finite outputs of a step, and its step time."""
    plant, state, arrivals, prefill_gpus, decode_gpus = everything
    state, flows = plant.advance(state, arrivals, prefill_gpus, decode_gpus, 10.0)
    felt = plant.latency(state, arrivals, prefill_gpus, decode_gpus, flows)
    leaves = jax.tree.leaves((state, flows, felt))
    return sum(jnp.where(jnp.isfinite(leaf), leaf, 0.0) for leaf in leaves), flows.t_step


@among("roofline chunks", "NIXL", "attention-FFN")
def test_gradients_are_finite_at_every_edge(plant):
    reverse = eqx.filter_jit(eqx.filter_grad(outputs, has_aux=True))
    for name, edge in EDGES.items():
        (everything,) = numbers((with_kv(plant, 64e3), *edge))
        gradient, t_step = reverse(everything)
        for leaf in jax.tree.leaves(gradient):
            assert np.all(np.isfinite(np.asarray(leaf))), name
        assert np.isfinite(float(t_step)), name


def test_forward_gradients_are_finite_at_every_edge_too():
    forward = eqx.filter_jit(lambda x: jax.jvp(lambda y: outputs(y)[0], (x,), (jax.tree.map(jnp.ones_like, x),))[1])
    for name, edge in EDGES.items():
        (everything,) = numbers((with_kv(SIBLINGS["DuetServe"], 64e3), *edge))
        assert np.isfinite(float(forward(everything))), name


def test_one_batch_is_the_loop():
    plant, start, *rest = numbers(SIBLINGS["overlapped chunks"], PLANT.empty(), 1000.0, 200.0, 4.0, 4.0, 0.5)
    rates_of = jnp.array([0.0, 20.0, 90.0])

    def last(rate):
        state, flows, felt, _ = _steady(plant, start, rate, *rest)
        return jnp.stack([state.active.requests, state.backlog.requests, flows.t_step, felt.ttft])

    batch = np.asarray(jax.jit(jax.vmap(last))(rates_of))
    np.testing.assert_allclose(batch, [np.asarray(last(rate)) for rate in rates_of], rtol=1e-12)


LAW = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)


@among("roofline chunks", "DuetServe", "NIXL", "attention-FFN")
def test_the_engine_runs_each_under_a_policy(plant):
    fleet, load = small_fleet(plant), load_of(default_workload(seed=2).slice(8 * 3600, 10 * 3600), 15.0)
    run = simulate(fleet, load, LAW)
    assert float(run.done + run.lost + run.left) == pytest.approx(float(run.arrived), rel=1e-11)
    assert float(run.done) > 0.9 * float(run.arrived)
    assert len(set(np.asarray(run.trajectory.requested_gpus).tolist())) > 2, "the policy acts"
    for name in ("ttft", "tpot", "backlog", "active", "buffer_bytes", "idle_slots"):
        values = np.asarray(getattr(run.trajectory, name))
        assert np.all(np.isfinite(values) & (values >= 0)), name


def test_the_closed_loop_has_the_gradients_of_its_differences():
    load = load_of(default_workload(seed=3).slice(0, 3600).scaled(1.5), 15.0)

    def cost(x):
        plant = Temporal.of(small_plant(r_P=1e4 * x[0], t_step_a=0.02 * x[1], batch=64.0 * x[2]))
        law = Thresholds(0.5 * x[3], 0.05, 0.9, 0.5, 0.5, 4.0)
        return simulate(small_fleet(plant), load, law, width=0.7, record=False).cost.cost

    along = jax.jit(lambda x, dx: jax.jvp(cost, (x,), (dx,)))
    expected = central(lambda x: along(x, jnp.zeros(4))[0], np.ones(4))
    forward = np.array([along(jnp.ones(4), dx)[1] for dx in jnp.eye(4)])
    np.testing.assert_allclose(forward, expected, rtol=5e-4, atol=1e-4 * np.abs(expected).max())
    assert np.all(np.abs(expected[:2]) > 1e-3)


def test_classes_of_one_kind_are_one_class():
    isl, osl, dt = 1155.0, 211.0, 15.0
    plant = with_kv(SIBLINGS["roofline chunks"], 1e9)
    one, two = plant.empty(), plant.empty((2,))
    for n in (300.0, 900.0, 100.0):
        single = Arrivals(n, n * isl, n * isl, n * osl)
        double = Arrivals(*(jnp.array([0.25, 0.75]) * part for part in single))
        one, flows = step(*numbers(plant, one, single, 3.0, 4.0, dt))
        two, both = step(*numbers(plant, two, double, 3.0, 4.0, dt))
        felt = plant.latency(two, double, 3.0, 4.0, both)
    np.testing.assert_allclose(np.sum(two.active.requests), one.active.requests, rtol=1e-10)
    np.testing.assert_allclose(np.sum(two.computed), one.computed, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(both.t_step, flows.t_step, rtol=1e-10)
    assert felt.ttft.shape == (2,)


# Against two pools


def test_two_pools_are_never_worse_than_temporal_aggregation_at_a_mix_that_stands_still():
    """D27's case: the split is right, the buffer is not needed, and the baseline has no overlap."""
    isl, osl = 1155.0, 211.0
    t_step, phi, best = rates(isl, osl)
    pools, done, felt = steady(small_plant(), 2 * best * 10, isl, osl, phi * 10, (1 - phi) * 10, 15.0)
    shared, together, slow = steady(Temporal.of(PLANT), 2 * best * 10, isl, osl, phi * 10, (1 - phi) * 10, 15.0)
    assert float(done.done.requests) >= float(together.done.requests) * (1 - 1e-6)
    assert float(felt.tpot) == pytest.approx((1 - phi) * float(slow.tpot), rel=1e-6)
    # The output is equal and the sequences in flight are not: what waits in the aggregated GPUs is idle KV (D22).
    idle = memory.idle_kv(N=10.0, phi=phi, B=PLANT.batch, kappa_store=PLANT.kappa, theta_ctx=isl)
    more = PLANT.kappa * isl * float(shared.active.requests - pools.active.requests)
    assert more == pytest.approx(float(idle), rel=1e-6)
    assert t_step == pytest.approx(float(felt.tpot), rel=1e-6)


def test_the_same_day_has_a_winner_for_each_question():
    """The default day on 20 GPUs that stay: what the mix costs a fixed split, and where "never worse" fails."""
    load = load_of(default_workload(), 15.0)
    law = Fixed(11.0, 9.0)

    def day(plant, load=load):
        return simulate(small_fleet(plant, budget=20.0, initial_gpus=20.0), load, law)

    def middle(run, name):
        return float(np.median(np.asarray(getattr(run.trajectory, name))))

    pools, temporal = day(small_plant(capacity=100e9)), day(SIBLINGS["temporal"])
    chunked, green = day(SIBLINGS["overlapped chunks"]), day(SIBLINGS["green contexts"])
    for run in (pools, temporal, chunked, green):
        assert float(run.done + run.lost + run.left) == pytest.approx(float(run.arrived), rel=1e-11)
    # TPOT: two pools never stop decoding, aggregated GPUs do.
    assert middle(pools, "tpot") < 0.8 * middle(temporal, "tpot")
    assert float(np.max(pools.trajectory.tpot)) < 0.3 * float(np.max(temporal.trajectory.tpot))
    # TTFT: a mix that drifts makes one of two fixed pools wait; shared GPUs balance themselves (D23, D27's hypotheses).
    assert float(np.mean(temporal.trajectory.ttft)) < 0.5 * float(np.mean(pools.trajectory.ttft))
    assert float(np.mean(chunked.trajectory.ttft)) < 0.05 * float(np.mean(pools.trajectory.ttft))
    # With good overlap chunked prefill attains what two pools of the same hardware do not.
    assert float(chunked.attained) > float(pools.attained) + 0.2
    # Two fixed partitions lose to a drifting mix as two fixed pools do.
    assert float(green.attained) < float(chunked.attained)


@pytest.mark.parametrize("overlap", [0.0, 0.8])
def test_never_worse_fails_where_the_phases_overlap(overlap):
    """Saturated by the default day's own mix: chunked GPUs over the best two pools, by D23 and by its break-even."""
    day = default_workload()
    isl, osl = day.mean_isl, day.mean_osl
    t_step, phi, best = rates(isl, osl)
    n_P, n_D = 10 * phi, 10 * (1 - phi)
    _, pools, _ = steady(small_plant(), 3 * best * 10, isl, osl, n_P, n_D, 15.0)
    bound = rounding.two_pool_throughput(n_P=n_P, n_D=n_D, t_P=isl / PLANT.r_P, t_D=osl * t_step / PLANT.batch)
    assert float(pools.done.requests) / 15.0 == pytest.approx(float(bound), rel=1e-6)
    _, chunked, _ = steady(Chunked.of(PLANT, overlap=overlap, budget=1e6), 3 * best * 10, isl, osl, n_P, n_D, 15.0)
    gain = float(chunked.done.requests) / float(pools.done.requests)
    sigma = float(aggregated.break_even_specialisation(phi=phi, overlap=overlap))
    assert gain == pytest.approx(1 + sigma, rel=1e-6)
    assert (gain > 1.3) == (overlap > 0)


# Refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chunked.of(PLANT, budget=64.0), "budget is 64.0; it must be more than the batch of 64"),
        (lambda: Chunked.of(PLANT, overlap=1.2), "overlap is 1.2"),
        (lambda: Temporal.of(PLANT, itl=0.0), "itl is 0.0"),
        (lambda: Temporal.of(small_plant(r_P=-1.0)), "r_P is -1.0"),
        (lambda: Partitioned.of(PLANT, saturation=0.0), "saturation is 0.0"),
        (lambda: Partitioned.of(PLANT, saturation=0.4, share=1.5), "share is 1.5"),
        (lambda: Partitioned.of(PLANT, saturation=0.4, share=0.5, hybrid=True), "hybrid and share exclude each other"),
        (lambda: AttentionFFN.of(PLANT, micro_batches=0.5), "micro_batches is 0.5"),
        (lambda: AttentionFFN.of(PLANT, attention_ratio=0.0), "attention_ratio is 0.0"),
        (lambda: Windowed.of(PLANT, isl=1000.0, unfetched=2.0), "unfetched is 2.0"),
        (lambda: green_context(1.1), "share is 1.1"),
        (lambda: green_context(0.5, 132, 100), "grain is 100"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        small_fleet(make())


def test_green_contexts_lose_less_than_a_grain():
    phi, saturation = 0.55, 0.4
    best = float(aggregated.best_sm_share(phi=phi, saturation=saturation))
    for sms, grain in ((132, 8), (148, 8), (132, 16)):
        share = green_context(best, sms, grain)
        assert share * sms % grain == pytest.approx(0)
        assert 0 <= share - best < grain / sms
        gain = min(share / phi, min(1.0, (1 - share) / saturation) / (1 - phi))
        loss = 1 - gain / float(aggregated.sm_split_gain(phi=phi, saturation=saturation))
        # Decode may lose a grain of the share that it has, 1/saturation times as fast as the whole GPU's throughput.
        assert loss <= float(rounding.sm_rounding_bound_joined(sm_count=sms, sm_grain=grain)) / (1 - best)
    assert green_context(1.0) == 120 / 132
    assert green_context(0.0) == 0.0


# The figure


def test_the_figure_judges_itself_and_shows_every_system(monkeypatch, tmp_path):
    hours = np.linspace(1.0, 2.0, 24)
    systems = [_topologies.Topology(f"system {k}", hours, 0.02 * hours, 1.0, 0.9, 50.0 + k, 50.0 + k) for k in range(8)]
    data = _topologies.Topologies(28, systems)
    assert data.worst_error == 0
    off = _topologies.Topologies(28, [*systems, _topologies.Topology("off", hours, hours, 1.0, 0.9, 99.0, 100.0)])
    assert off.worst_error == pytest.approx(0.01)
    monkeypatch.setattr(_topologies, "compute", lambda **_: data)
    drawn = _topologies.topologies(tmp_path / "topologies.png")
    assert (tmp_path / "topologies.png").stat().st_size > 10_000
    assert [len(axes.get_lines()) for axes in drawn.figure.axes] == [8, 8, 1]
    assert [text.get_text() for text in drawn.figure.legends[0].get_texts()] == [s.name for s in systems]
    assert set(drawn.to_dict()) == {"gpus", "systems", "worst_error"}


def test_one_system_of_the_figure_reaches_its_closed_form():
    day, plant = default_workload(), _topologies._plant()
    mix = {"isl": day.mean_isl, "osl": day.mean_osl}
    t_step = rates(mix["isl"], mix["osl"], plant)[0]
    rows = {name: rest for name, *rest in _topologies._systems(plant, mix, t_step, 0.8, 0.4, 0.05, 28)}
    load = load_of(day.slice(0, 6 * 3600), 15.0)
    found = _topologies._system("temporal", *rows["temporal aggregation"], load, mix, 28)
    assert found.throughput == pytest.approx(found.expected, rel=1e-9)
    assert found.ttft.shape == (6,)
    assert 0.9 < found.attained <= 1
    # By hand: the mean of the first hour weighs each tick by its arrivals.
    assert float(found.tpot.min()) > plant.t_step_a


@pytest.mark.parametrize(("params", "words"), [({"gpus": 1}, "gpus is 1"), ({"overlap": 0.0}, "overlap is 0"),
                                               ({"itl": 0.01}, "itl is 0.01")])  # fmt: skip
def test_the_figure_refuses_what_it_cannot_draw(params, words):
    with pytest.raises(InputError, match=words):
        _topologies.compute(**params)


def test_changing_a_number_keeps_the_system():
    """A fleet of shared GPUs stays one when a number of its plant is changed."""
    fleet = small_fleet(Temporal.of(small_plant()))
    assert isinstance(fleet.with_plant(kappa=1e5).plant, Temporal)
    assert float(fleet.with_plant(kappa=1e5).plant.kappa) == 1e5
