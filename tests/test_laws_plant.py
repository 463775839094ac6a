"""Laws that hold for the plant and its engine, whatever the numbers.

The plant is compiled once per choice of modes; hypothesis varies the numbers.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluidq import pipeline
from fluidq.plant import PLACES, Arrivals, Contents, PlantState, advance, kv_tokens
from fluidq.policies import Thresholds
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, simulate
from tests.helpers import small_fleet, small_plant

FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LAW = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)
STEP = jax.jit(advance)
MODES = [(place, back_pressure) for place in PLACES for back_pressure in (True, False)]


def arrays(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=float), tree)


seeds = st.integers(0, 2**32 - 1)


def drawn_plant(rng, place, back_pressure, **changes):
    fields = {
        "r_P": 10 ** rng.uniform(2, 5),
        "batch": rng.uniform(4, 256),
        "t_step_a": 10 ** rng.uniform(-3, -1),
        "t_step_b": rng.choice([0.0, 1e-4]),
        "capacity": 10 ** rng.uniform(8, 11),
        "capacity_per_gpu": rng.choice([0.0, 1e9]),
        "fabric": rng.choice([np.inf, 1e9]),
        "hit_decode": rng.choice([0.0, 0.4]),
        "accept": rng.uniform(1, 3),
        "kv_capacity": rng.choice([1e4, 1e6]),
    }
    return arrays(small_plant(**{**fields, "place": place, "back_pressure": back_pressure, **changes}))


def drawn_store(rng, classes, most):
    n = rng.exponential(most, classes) * rng.choice([0.0, 1.0], classes, p=[0.2, 0.8])
    return Contents(
        *(jnp.asarray(x) for x in (n, n * rng.uniform(100, 9000, classes), n * rng.uniform(0, 900, classes)))
    )


def drawn(rng, plant, pools, classes=3):
    """A state that the model can be in (the buffer within its room) and arrivals."""
    backlog, buffer = drawn_store(rng, classes, 100.0), drawn_store(rng, classes, 20.0)
    held = float(plant.kappa * jnp.sum(buffer.stored))
    room = float(plant.room(*pools))
    fit = min(1.0, rng.choice([1.0, rng.uniform()]) * room / held) if held > 0 else 1.0
    state = PlantState(
        backlog=backlog,
        computed=backlog.stored * rng.uniform(0, 1, classes),
        buffer=Contents(*(part * fit for part in buffer)),
        active=drawn_store(rng, classes, 50.0),
    )
    come = drawn_store(rng, classes, 50.0)
    return state, Arrivals(come.requests, come.stored * rng.uniform(0, 1, classes), come.stored, come.output)


def contents(state):
    return np.sum([np.asarray(jnp.stack(s)) for s in (state.backlog, state.buffer, state.active)], axis=0)


@pytest.mark.parametrize(("place", "back_pressure"), MODES)
@FEW
@given(seed=seeds)
def test_requests_and_tokens_of_every_class_are_conserved(place, back_pressure, seed):
    rng = np.random.default_rng(seed)
    plant, pools = drawn_plant(rng, place, back_pressure), (float(rng.uniform(0.5, 9)), float(rng.uniform(0.5, 9)))
    state, arrivals = drawn(rng, plant, pools)
    new, flows = STEP(state, arrivals, *pools, plant, float(10 ** rng.uniform(-1, 2)))
    came = np.asarray(jnp.stack([arrivals.requests, arrivals.stored, arrivals.output]))
    lost = np.asarray(jnp.stack([part + jnp.zeros(3) for part in flows.lost]))
    gone = np.asarray(jnp.stack(flows.done)) + lost
    before = contents(state) + came
    np.testing.assert_allclose(contents(new) + gone, before, rtol=1e-12, atol=1e-12 * before.max())
    assert min(float(jnp.min(leaf)) for leaf in jax.tree.leaves(new)) >= 0
    if back_pressure:
        assert np.all(lost == 0)
        work = float(jnp.sum(new.computed) + flows.prefilled)
        assert work == pytest.approx(float(jnp.sum(state.computed + arrivals.computed)), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(("place", "back_pressure"), MODES)
@FEW
@given(seed=seeds)
def test_both_boundaries_are_complementary(place, back_pressure, seed):
    """Nothing is stalled or lost unless the buffer is full. No slot is idle while stock waits, unless the KV memory is
    full or the link after the buffer carries all it can (a transfer in the buffer's own pool has none)."""
    rng = np.random.default_rng(seed)
    plant, pools = drawn_plant(rng, place, back_pressure), (float(rng.uniform(0.5, 9)), float(rng.uniform(0.5, 9)))
    state, arrivals = drawn(rng, plant, pools)
    dt = float(10 ** rng.uniform(-1, 2))
    new, flows = STEP(state, arrivals, *pools, plant, dt)
    held, room = float(plant.kappa * jnp.sum(new.buffer.stored)), float(plant.room(*pools))
    crossing = float(plant.crossing) if place != "prefill" else float(plant.kappa)
    counted = held * crossing / float(plant.kappa)  # what the room is measured in
    assert counted <= room * (1 + 1e-9)
    blocked = float(jnp.sum(flows.stalled)) + float(jnp.sum(jnp.asarray(flows.lost.requests)))
    if blocked > 1e-9:
        assert counted == pytest.approx(room, rel=1e-9)
    slots = pools[1] * float(plant.batch)
    idle = float(flows.idle) > 1e-9 * slots
    if idle and float(jnp.sum(new.buffer.requests)) > 1e-9:
        memory = float(kv_tokens(new.active)) >= pools[1] * float(plant.kv_capacity) * (1 - 1e-9)
        if place == "decode":
            assert memory
        else:
            sent, receive = (
                min(pools[0] * float(plant.nic_prefill), float(plant.fabric)),
                pools[1] * float(plant.nic_decode),
            )
            link = (receive if place == "host" else min(sent, receive)) * dt
            inside = state.active.stored - flows.done.stored - new.active.stored  # minus what was admitted
            crossed = float(plant.crossing) * -float(jnp.sum(inside))
            assert memory or crossed >= link * (1 - 1e-9)


# One run of the engine.


class Fixed(Policy):
    """Two pools that stay as they are."""

    KEEPS_BUDGET = True
    prefill: object = 1.0
    decode: object = 1.0

    def initial(self, fleet, width):
        return Asked(self.prefill, self.decode)

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(self.prefill, self.decode)


def drawn_load(rng, ticks=40, interval=15.0, isl=1000.0, osl=200.0):
    rate = np.repeat(rng.uniform(0, 60, ticks // 4), 4)
    n = rate * interval
    return Load(*(jnp.asarray(x) for x in (n, n * isl, n * isl, n * osl)))


def times(load, s):
    return Load(*(part * s for part in load))


@jax.jit
def run(fleet, amounts, prefill, decode):
    return simulate(fleet, amounts, Fixed(prefill, decode))


@jax.jit
def march(plant, state, amounts, prefill, decode):
    """The plant alone from any state, a step per entry; stored in the buffer and losses after each."""

    def step(state, arriving):
        state, flows = plant.advance(state, Arrivals(*arriving), prefill, decode, 15.0)
        return state, (plant.kappa * state.buffer.stored, jnp.asarray(flows.lost.requests) + 0.0, flows.done.requests)

    return jax.lax.scan(step, state, amounts)


def stocked(share, plant):
    """A busy decode side and a buffer filled to a share of its capacity."""
    stored = share * plant.capacity / plant.kappa
    zero = jnp.zeros(())
    nothing = Contents(zero, zero, zero)
    return PlantState(nothing, zero, Contents(stored / 1000, stored, stored / 5), arrays(Contents(64.0, 64e3, 128e2)))


FLAT = {"t_step_b": 0.0, "t_step_c": 0.0}


@FEW
@given(seed=seeds, low=st.floats(0, 1), more=st.floats(0, 1))
def test_more_stock_at_the_start_is_more_stock_later_and_no_less_loss(seed, low, more):
    """Monotone in Q0 where the step time does not depend on the batch. (Where it does, a fuller batch is a slower one,
    and a store downstream can hold less for it.)"""
    rng = np.random.default_rng(seed)
    plant, amounts = arrays(small_plant(capacity=3e9, back_pressure=False, **FLAT)), drawn_load(rng)
    high = low + more * (1 - low)
    a = march(plant, stocked(low, plant), amounts, 4.0, 1.0)[1]
    b = march(plant, stocked(high, plant), amounts, 4.0, 1.0)[1]
    assert np.all(np.asarray(b[0] - a[0]) >= -1e-6 * 3e9)
    assert np.all(np.cumsum(np.asarray(b[1] - a[1])) >= -1e-6)


@FEW
@given(seed=seeds, capacity=st.floats(1e8, 2e10), factor=st.floats(1, 4))
def test_more_capacity_loses_no_more_and_finishes_no_less(seed, capacity, factor):
    rng = np.random.default_rng(seed)
    amounts = drawn_load(rng)
    small, large = (arrays(small_plant(capacity=c, back_pressure=False, **FLAT)) for c in (capacity, capacity * factor))
    a, b = (march(plant, plant.empty(), amounts, 4.0, 1.0)[1] for plant in (small, large))
    assert np.all(np.cumsum(np.asarray(a[1] - b[1])) >= -1e-6)
    assert np.all(np.cumsum(np.asarray(b[2] - a[2])) >= -1e-6)


@FEW
@given(seed=seeds, factor=st.floats(1, 3))
def test_more_load_is_more_stock_more_loss_and_no_less_done(seed, factor):
    """With equal lengths and a step time that does not depend on the batch; a batch that slows down finishes less."""
    rng = np.random.default_rng(seed)
    plant, amounts = arrays(small_plant(capacity=3e9, back_pressure=False, **FLAT)), drawn_load(rng)
    a, b = (march(plant, plant.empty(), load, 4.0, 1.0)[1] for load in (amounts, times(amounts, factor)))
    for x, y in zip(a, b, strict=True):
        assert np.all(np.cumsum(np.asarray(y - x)) >= -1e-6 * max(1.0, float(jnp.max(jnp.abs(y)))))


@jax.jit
def late(cold_start, amounts):
    """A fleet that only grows, by one worker of each pool on tick 4."""
    fleet = eqx.tree_at(lambda f: f.cold_start, small_fleet(cold_start=7.5), cold_start)
    return simulate(fleet, amounts, Grows()).trajectory


class Grows(Policy):
    """One worker of each pool more from tick 4 on, whatever happens."""

    KEEPS_BUDGET = True

    def initial(self, fleet, width):
        return Asked(1.0, 1.0)

    def decide(self, memory, reading, fleet, width):
        more = jnp.where(reading.index >= 4, 1.0, 0.0)
        return memory, Asked(1.0 + more, 1.0 + more)


@FEW
@given(seed=seeds, early=st.floats(0, 15), later=st.floats(0, 15))
def test_workers_that_come_later_leave_a_longer_backlog(seed, early, later):
    """In an open loop. A closed loop need not: a law that sees the longer queue orders more, and may end up below."""
    rng = np.random.default_rng(seed)
    amounts = drawn_load(rng)
    early, later = sorted((early, later))
    a, b = late(early, amounts), late(later, amounts)
    scale = max(1.0, float(jnp.max(b.backlog)))
    assert np.all(np.asarray(b.backlog - a.backlog) >= -1e-9 * scale)
    assert np.all(np.asarray(b.prefill_gpus - a.prefill_gpus) <= 1e-12)


@FEW
@given(seed=seeds, s=st.floats(0.25, 4))
def test_flows_and_capacities_times_s_give_s_times_the_path(seed, s):
    rng = np.random.default_rng(seed)
    amounts = drawn_load(rng)
    a = run(arrays(small_fleet(small_plant(capacity=3e9))), amounts, 4.0, 2.0)
    b = run(arrays(small_fleet(small_plant(capacity=3e9 * s))), times(amounts, s), 4.0 * s, 2.0 * s)
    for name in ("backlog", "buffer_bytes", "active", "done", "stalled"):
        x, y = np.asarray(getattr(a.trajectory, name)), np.asarray(getattr(b.trajectory, name))
        np.testing.assert_allclose(y, s * x, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(x).max()), err_msg=name)
    np.testing.assert_allclose(np.asarray(b.trajectory.tpot), np.asarray(a.trajectory.tpot), rtol=1e-9)


@FEW
@given(seed=seeds, s=st.floats(0.25, 4))
def test_time_in_another_unit_is_the_same_path(seed, s):
    """Rates over s, times by s: the stores are the same step by step."""
    rng = np.random.default_rng(seed)
    plant = drawn_plant(rng, "host", True)
    pools = (float(rng.uniform(1, 9)), float(rng.uniform(1, 9)))
    state, arrivals = drawn(rng, plant, pools)
    slower = eqx.tree_at(
        lambda p: (p.r_P, p.t_step_a, p.t_step_b, p.t_step_c, p.nic_prefill, p.nic_decode, p.fabric),
        plant,
        (
            plant.r_P / s,
            plant.t_step_a * s,
            plant.t_step_b * s,
            plant.t_step_c * s,
            plant.nic_prefill / s,
            plant.nic_decode / s,
            plant.fabric / s,
        ),
    )
    a, _ = STEP(state, arrivals, *pools, plant, 5.0)
    b, _ = STEP(state, arrivals, *pools, slower, 5.0 * s)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(y), np.asarray(x), rtol=1e-9, atol=1e-9 * max(1.0, float(jnp.max(x))))


@FEW
@given(seed=seeds)
def test_two_runs_one_after_the_other_are_one_run(seed):
    rng = np.random.default_rng(seed)
    plant, amounts = arrays(small_plant(capacity=3e9)), drawn_load(rng)
    whole, _ = march(plant, plant.empty(), amounts, 4.0, 1.0)
    half, _ = march(plant, plant.empty(), Load(*(part[:20] for part in amounts)), 4.0, 1.0)
    both, _ = march(plant, half, Load(*(part[20:] for part in amounts)), 4.0, 1.0)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(both), strict=True):
        np.testing.assert_allclose(np.asarray(y), np.asarray(x), rtol=1e-12)


@FEW
@given(seed=seeds, share=st.floats(0.05, 0.95))
def test_two_identical_classes_are_one(seed, share):
    rng = np.random.default_rng(seed)
    plant, amounts = arrays(small_plant(capacity=3e9, back_pressure=False)), drawn_load(rng)
    split = Load(*(jnp.stack([part * share, part * (1 - share)], axis=-1) for part in amounts))
    one, _ = march(plant, plant.empty(), amounts, 4.0, 1.0)
    two, _ = march(plant, plant.empty((2,)), split, 4.0, 1.0)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(np.sum(np.asarray(y), axis=-1), np.asarray(x), rtol=1e-9, atol=1e-9)
    busy = np.asarray(two.active.requests)
    np.testing.assert_allclose(busy[0] * (1 - share), busy[1] * share, rtol=1e-9, atol=1e-12)


def test_a_batch_is_a_loop_jit_changes_nothing_and_the_same_call_gives_the_same_bits():
    amounts = drawn_load(np.random.default_rng(1), ticks=12)

    def cost(up, load_factor):
        law = Thresholds(0.5, 0.05, up, 0.5, 0.5, 4.0)
        return simulate(small_fleet(), times(amounts, load_factor), law, width=0.5, record=False).cost.cost

    ups, factors = jnp.asarray([0.7, 0.9, 1.2]), jnp.asarray([0.5, 1.0, 2.0])
    batch = jax.jit(jax.vmap(cost))
    values = np.asarray(batch(ups, factors))
    one = jax.jit(cost)
    np.testing.assert_allclose(values, [float(one(u, f)) for u, f in zip(ups, factors, strict=True)], rtol=1e-12)
    assert np.ptp(values) > 0
    assert np.array_equal(values, np.asarray(batch(ups, factors)))
    state, arrivals = stocked(0.5, small_plant()), arrays(Arrivals(300.0, 3e5, 3e5, 6e4))
    with jax.disable_jit():
        bare, _ = advance(state, arrivals, 4.0, 1.0, small_plant(), 15.0)
    jitted, _ = STEP(state, arrivals, 4.0, 1.0, small_plant(), 15.0)
    for x, y in zip(jax.tree.leaves(bare), jax.tree.leaves(jitted), strict=True):
        assert float(x) == pytest.approx(float(y), rel=1e-13)


# Workers on their way.


@FEW
@given(seed=seeds, ticks=st.integers(0, 6), part=st.floats(0, 1))
def test_a_ring_conserves_workers_and_delays_them_by_its_delay(seed, ticks, part):
    rng = np.random.default_rng(seed)
    begun = np.concatenate([rng.uniform(0, 5, 12), np.zeros(ticks + 2)])
    came = np.asarray(through_ring(ticks)(jnp.asarray(begun), part))
    assert came.sum() == pytest.approx(begun.sum(), rel=1e-12)
    i = np.arange(begun.size)
    assert (i * came).sum() - (i * begun).sum() == pytest.approx((ticks + part) * begun.sum(), rel=1e-9)


def through_ring(ticks):
    if ticks not in RINGS:

        @jax.jit
        def push(begun, part):
            step = lambda pipe, over: pipeline.push_ring(pipe, over[1], over[0], ticks, part)  # noqa: E731
            return jax.lax.scan(step, pipeline.ring(ticks), (jnp.arange(begun.shape[0]), begun))[1]

        RINGS[ticks] = push
    return RINGS[ticks]


RINGS: dict = {}


def erlang_arrivals(stages, mean, dt, steps):
    """One worker begun at the start of tick 0: the share that becomes ready in each tick, and what is left inside."""

    def step(chain, begun):
        chain, came = pipeline.push_erlang(chain, begun, weights)
        return chain, came

    weights = pipeline.erlang_weights(stages, mean, dt)
    begun = jnp.zeros((steps,)).at[0].set(1.0)
    chain, came = jax.lax.scan(step, pipeline.erlang(stages), begun)
    return np.asarray(came), float(jnp.sum(chain))


@pytest.mark.parametrize("stages", [1, 3, 8])
def test_an_erlang_chain_conserves_workers_and_has_mean_tau_and_variance_tau_squared_over_k(stages):
    tau, dt = 40.0, 0.25
    came, inside = erlang_arrivals(stages, tau, dt, 4000)
    assert came.sum() + inside == pytest.approx(1.0, rel=1e-12)
    ends = dt * (np.arange(came.size) + 0.5)  # the middle of a tick: its variance is dt^2 / 12 too small
    mean = (ends * came).sum()
    assert mean == pytest.approx(tau, rel=1e-4)
    assert ((ends - mean) ** 2 * came).sum() == pytest.approx(tau**2 / stages, rel=1e-3)


def test_an_erlang_chain_of_many_stages_is_the_fixed_delay():
    widths = []
    for stages in (4, 9, 25):
        came, _ = erlang_arrivals(stages, 40.0, 1.0, 200)
        times_of = np.arange(came.size) + 0.5
        widths.append(math.sqrt(((times_of - 40.0) ** 2 * came).sum()))
    np.testing.assert_allclose(widths, [40 / math.sqrt(k) for k in (4, 9, 25)], rtol=5e-3)


@pytest.mark.parametrize("stages", [0, 4])
@FEW
@given(seed=seeds)
def test_workers_asked_for_are_ready_or_on_their_way_and_none_gets_lost(stages, seed):
    rng = np.random.default_rng(seed)
    jumps = jnp.asarray(np.repeat(rng.integers(1, 12, 5), 8), dtype=float)
    t = staircase(stages)(jumps)
    ready = np.asarray(t.prefill_gpus)
    assert np.all(ready <= np.asarray(jumps) + 1e-9)
    assert np.all(ready >= -1e-9)
    idle = np.arange(40) % 8 == 7  # eight ticks after a jump: three cold starts of 40 s
    if stages == 0:
        np.testing.assert_allclose(ready[idle], np.asarray(jumps)[idle], rtol=1e-9)
    requested = np.asarray(t.requested_gpus)
    np.testing.assert_allclose(requested, np.asarray(jumps) + 2.0, rtol=1e-12)


class Staircase(Policy):
    """Prefill workers by a list."""

    KEEPS_BUDGET = True
    counts: object = None

    def initial(self, fleet, width):
        return Asked(self.counts[0], 2.0)

    def decide(self, memory, reading, fleet, width):
        return memory, Asked(self.counts[reading.index], 2.0)


STAIRCASES: dict = {}


def staircase(stages):
    if stages not in STAIRCASES:
        zeros = jnp.zeros((40,))
        silent = Load(zeros, zeros, zeros, zeros)
        fleet = small_fleet(stages=stages)
        STAIRCASES[stages] = jax.jit(lambda counts: simulate(fleet, silent, Staircase(counts)).trajectory)
    return STAIRCASES[stages]


class Swaps(Policy):
    """`moved` workers go from decode to prefill on tick 3."""

    KEEPS_BUDGET = True
    moved: object = 1.0

    def initial(self, fleet, width):
        return Asked(4.0, 8.0)

    def decide(self, memory, reading, fleet, width):
        n = jnp.where(reading.index >= 3, self.moved, 0.0)
        return memory, Asked(4.0 + n, 8.0 - n)


@jax.jit
def swapped(moved, delay):
    zeros = jnp.zeros((12,))
    fleet = eqx.tree_at(lambda f: f.switch_delay, small_fleet(cold_start=90.0, switch_delay=37.5), delay)
    return simulate(fleet, Load(zeros, zeros, zeros, zeros), Swaps(moved)).trajectory


@FEW
@given(moved=st.integers(1, 6), delay=st.floats(30.0, 44.9))
def test_a_role_switch_keeps_the_gpus_and_lands_after_its_delay(moved, delay):
    """Not after a cold start, which is longer; the part of a tick is paid for in worker-seconds."""
    t = swapped(float(moved), delay)
    np.testing.assert_allclose(np.asarray(t.requested_gpus), 12.0, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(t.decode_gpus)[3:], 8.0 - moved, rtol=1e-12)
    missing = 12.0 - np.asarray(t.prefill_gpus + t.decode_gpus)
    assert missing.sum() * 15.0 == pytest.approx(moved * delay, rel=1e-9)
    assert missing[:3].sum() == 0
    assert missing[6:].sum() == pytest.approx(0.0, abs=1e-9)
