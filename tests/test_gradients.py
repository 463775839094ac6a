"""Gradients of the plant and of the closed loop where they are delicate: forward = reverse = differences."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq import compiler_options
from fluidq.plant import Arrivals, Contents, PlantState, advance
from fluidq.policies import Thresholds
from fluidq.policies.base import Asked, Policy
from fluidq.simulate import Load, load_of, simulate
from fluidq.workload import Workload, default_workload
from tests.helpers import central, small_fleet, small_plant

WIDTH = 0.7
LAW = Thresholds(prefill_up=0.5, prefill_down=0.05, decode_up=0.9, decode_down=0.5, ratio=0.5, step=4.0)
NOTHING = Contents(0.0, 0.0, 0.0)
DT = 7.0


def jit(function):
    return jax.jit(function, compiler_options=compiler_options())


def load(rates, isl=1000.0, osl=200.0, interval=15.0):
    n = np.asarray(rates, dtype=float) * interval
    return Load(*(jnp.asarray(x) for x in (n, n * isl, n * isl, n * osl)))


def modes(cost):
    """The value, the gradient in reverse mode and in forward mode by the first argument, in one compilation."""
    return jit(lambda x, *rest: (*jax.value_and_grad(cost)(x, *rest), jax.jacfwd(cost)(x, *rest)))


def three_ways(both, x, *rest, rtol=1e-4, step=1e-6, floor=1e-4):
    """Forward mode, reverse mode and central differences of `modes`, to `rtol`; returns the forward one.

    A component below `floor` of the largest need not be so near, relative to itself.
    """
    x = jnp.asarray(x, dtype=float)
    _, reverse, forward = (np.asarray(part) for part in both(x, *rest))
    expected = central(lambda v: both(v, *rest)[0], x, step)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(reverse, forward, rtol=1e-8, atol=1e-9 * scale)
    np.testing.assert_allclose(forward, expected, rtol=rtol, atol=rtol * floor * scale)
    return forward


# One step of the plant. x = (capacity, r_P, batch, kappa, arrivals, decode GPUs), each as a share of its nominal value.

FULL = Contents(20e9 / 95e3 / 1000.0, 20e9 / 95e3, 4e4)
BUSY = Contents(64.0, 64e3, 64e2)
WAITING = Contents(400.0, 4e5, 4e4)
STATES = {
    "empty buffer, free slots": PlantState(NOTHING, 0.0, NOTHING, Contents(10.0, 1e4, 1e3)),
    "empty buffer, busy decode": PlantState(WAITING, 4e5, NOTHING, BUSY),
    "full buffer": PlantState(WAITING, 4e5, FULL, BUSY),
    "half": PlantState(NOTHING, 0.0, Contents(80.0, 8e4, 8e3), BUSY),
}


def one_step(x, state, back_pressure):
    plant = small_plant(
        capacity=20e9 * x[0], r_P=1e4 * x[1], batch=64.0 * x[2], kappa=95e3 * x[3], back_pressure=back_pressure
    )
    n = 30.0 * x[4]
    new, flows = advance(state, Arrivals(n, n * 1000.0, n * 1000.0, n * 100.0), 2.0, x[5], plant, DT)
    return new.backlog.requests + 2.0 * new.buffer.requests + 3.0 * new.active.requests + flows.lost.requests


@functools.cache
def step_modes(back_pressure):
    return modes(functools.partial(one_step, back_pressure=back_pressure))


@pytest.mark.parametrize("back_pressure", [True, False])
@pytest.mark.parametrize("name", STATES)
def test_one_step_at_empty_and_full_buffer(name, back_pressure):
    """Nudged off the ties: a full buffer is at its boundary, and a busy decode side holds just its batch."""
    x = np.ones(6)
    x[2] += 1e-3
    x[0] += 1e-3 if name == "full buffer" else 0.0
    state = jax.tree.map(jnp.asarray, STATES[name])
    assert np.any(three_ways(step_modes(back_pressure), x, state) != 0)


def test_where_the_batch_is_just_full_the_derivative_is_that_of_one_more_gpu():
    """`most(GPUs, running / batch)` at its tie: the first argument's, so the slope to the right."""
    state = jax.tree.map(jnp.asarray, STATES["half"])
    f = lambda gpus: step_modes(True)(jnp.ones(6).at[5].set(gpus), state)  # noqa: E731
    value, *slopes = f(1.0)
    right, left = (float(f(1.0 + h)[0] - value) / h for h in (1e-6, -1e-6))
    assert abs(right - left) > 1.0, "a kink"
    for slope in slopes:
        assert float(slope[5]) == pytest.approx(right, rel=1e-4)


def test_a_full_buffer_gives_what_its_capacity_gives():
    """One byte of capacity holds one byte more: d(stored)/dC = 1/kappa, d(left or lost)/dC = -1/kappa."""
    state = STATES["full buffer"]

    def parts(capacity, back_pressure):
        plant = small_plant(capacity=capacity, back_pressure=back_pressure)
        new, flows = advance(state, Arrivals(0.0, 0.0, 0.0, 0.0), 2.0, 1.0, plant, DT)
        return new.buffer.stored, new.backlog.stored, jnp.asarray(flows.lost.stored)

    held, left, lost = jit(jax.jacfwd(lambda c: parts(c, True)))(20e9)
    assert float(held) == pytest.approx(1 / 95e3, rel=1e-9)
    assert float(left) == pytest.approx(-1 / 95e3, rel=1e-9)
    held, left, lost = jit(jax.jacfwd(lambda c: parts(c, False)))(20e9)
    assert float(held) == pytest.approx(1 / 95e3, rel=1e-9)
    assert float(lost) == pytest.approx(-1 / 95e3, rel=1e-9)
    assert float(left) == 0.0


def test_at_an_exact_tie_the_derivative_is_one_of_the_two_sides():
    """Prefill can do exactly what waits: a little more work is left over, a little less leaves capacity unused."""
    plant = small_plant(t_step_b=0.0, t_step_c=0.0)

    def left(work):
        state = PlantState(Contents(work / 1000.0, work, work / 10.0), work, NOTHING, NOTHING)
        new, _ = advance(state, Arrivals(0.0, 0.0, 0.0, 0.0), 2.0, 9.0, plant, DT)
        return new.computed

    tie = 2.0 * 1e4 * DT
    f = modes(left)
    at = [float(slope) for slope in f(tie)[1:]]
    sides = [float(f(tie * (1 - 1e-9))[1]), float(f(tie * (1 + 1e-9))[1])]
    assert sides == pytest.approx([0.0, 1.0], abs=1e-9)
    assert at[0] == at[1]
    assert min(abs(at[0] - side) for side in sides) < 1e-9


def test_two_links_at_a_tie_give_the_named_side():
    """`least(send, receive)`: at a tie the derivative is that of the sending end, on purpose."""

    def moved(x):
        plant = small_plant(nic_prefill=1e8 * x[0], nic_decode=1e8 * x[1], place="decode", r_P=1e9)
        state = PlantState(WAITING, 4e5, NOTHING, NOTHING)
        _, flows = advance(state, Arrivals(0.0, 0.0, 0.0, 0.0), 2.0, 2.0, plant, DT)
        return flows.prefilled

    amount, *slopes = modes(moved)(jnp.ones(2))
    for slope in slopes:
        np.testing.assert_allclose(np.asarray(slope), [float(amount), 0.0], rtol=1e-12)


# The closed loop.

SHOCK = load([20.0] * 6 + [40.0] * 24, osl=600.0)  # the buffer fills, prefill is held, and in the end it catches up


def loop_cost(x, **fleet):
    """x = (cold start, capacity, first threshold, load), each as a share of its nominal value."""
    options = {"cold_start": 40.0, "interval": 15.0, **fleet}
    made = small_fleet(small_plant(capacity=2e9), **options)
    made = eqx.tree_at(lambda f: (f.cold_start, f.plant.capacity), made, (options["cold_start"] * x[0], 2e9 * x[1]))
    policy = Thresholds(0.5, 0.05, 0.9 * x[2], 0.5, 0.5, 4.0)
    amounts = Load(*(part * x[3] for part in SHOCK))
    return simulate(made, amounts, policy, width=WIDTH, record=False).cost.cost


@pytest.mark.parametrize(
    "fleet",
    [
        {"cold_start": 40.0},  # a fractional tick
        {"cold_start": 50.0, "stages": 3, "switch_delay": 20.0},
    ],
    ids=["fixed", "Erlang and switching"],
)
def test_the_closed_loop_through_the_cold_start(fleet):
    slope = three_ways(modes(lambda x: loop_cost(x, **fleet)), np.ones(4))
    assert np.all(np.abs(slope) > 1e-3), "each of the four matters here"


class Switches(Policy):
    """Two workers change from decode to prefill on one tick; a third is asked for at the time `when` [s], a share of
    it on the tick in which that lies."""

    KEEPS_BUDGET = True
    when: object = 100.0

    def initial(self, fleet, width):
        return Asked(2.0, 8.0)

    def decide(self, memory, reading, fleet, width):
        moved = jnp.where(reading.index >= 4, 2.0, 0.0)
        third = jnp.clip((reading.time + fleet.interval - self.when) / fleet.interval, 0.0, 1.0)
        return memory, Asked(2.0 + moved + third, 8.0 - moved)


def test_switch_times_and_the_switch_delay_are_paid_for_in_work():
    """While prefill is the bottleneck dW/d(delay) = 2 r_P: each second of the switch costs two GPUs' work; and the
    backlog at the end rises by r_P for each second that the third worker is asked for later."""

    def work(x):
        fleet = eqx.tree_at(lambda f: f.switch_delay, small_fleet(switch_delay=50.0), x[0])
        return simulate(fleet, load([80.0] * 20), Switches(x[1])).trajectory.backlog[-1]

    f = modes(work)
    for when in (100.0, 105.0):  # 105 is the edge of a tick
        for slope in f(jnp.asarray([50.0, when]))[1:]:
            np.testing.assert_allclose(np.asarray(slope), [2e4, 1e4], rtol=1e-6)
    at = lambda delay, when: float(f(jnp.asarray([delay, when]))[0])  # noqa: E731
    assert (at(51.0, 100.0) - at(49.0, 100.0)) / 2 == pytest.approx(2e4, rel=1e-6)
    assert (at(50.0, 106.0) - at(50.0, 104.0)) / 2 == pytest.approx(1e4, rel=1e-6)


def scaled_cost(x, base):
    """x = (cold start, two thresholds, load): shares of their nominal values, the load by 1 request at least."""
    fleet = eqx.tree_at(lambda f: f.cold_start, small_fleet(), 40.0 * x[0])
    more = Load(base.requests + x[3] - 1.0, base.computed * x[3], base.stored * x[3], base.output * x[3])
    policy = Thresholds(0.5, 0.05, 0.9 * x[1], 0.5 * x[2], 0.5, 4.0)
    return simulate(fleet, more, policy, width=WIDTH, record=False).cost.cost


@functools.cache
def scaled_modes():
    return modes(scaled_cost)


@pytest.mark.parametrize(("rate", "osl"), [(0.0, 200.0), (30.0, 0.0), (0.0, 0.0)], ids=["no load", "no output", "none"])
def test_at_no_load_and_no_output_gradients_are_finite_and_right(rate, osl):
    base, x = load([rate] * 24, osl=osl), jnp.ones(4)
    _, reverse, forward = (np.asarray(part) for part in scaled_modes()(x, base))
    assert np.all(np.isfinite(forward))
    np.testing.assert_allclose(reverse, forward, rtol=1e-8, atol=1e-10)
    expected = central(lambda v: scaled_modes()(v, base)[0], np.ones(4))[:3]
    np.testing.assert_allclose(forward[:3], expected, rtol=1e-4, atol=1e-4 * max(1e-6, np.abs(expected).max()))


def month(interval):
    days = default_workload(seed=5, days=1.0, window=600.0)
    one = load_of(days, interval)
    return Load(*(jnp.tile(part, 30) for part in one))


def month_cost(x, amounts, interval, checkpoint):
    fleet = small_fleet(small_plant(capacity=2e9 * x[0]), interval=interval, cold_start=interval)
    policy = Thresholds(0.5, 0.05, 0.9 * x[1], 0.5, 0.5, 4.0)
    return simulate(fleet, amounts, policy, width=WIDTH, record=False, checkpoint=checkpoint).cost.cost


def test_over_thirty_days_reverse_with_checkpoints_is_forward():
    amounts = month(600.0)
    assert amounts.requests.shape == (4320,)
    x = jnp.ones(2)
    cost = lambda v: month_cost(v, amounts, 600.0, False)  # noqa: E731
    f = jit(jax.jacfwd(lambda v: (cost(v),) * 2, has_aux=True))
    forward = np.asarray(f(x)[0])
    reverse = np.asarray(jit(jax.grad(lambda v: month_cost(v, amounts, 600.0, True)))(x))
    assert np.all(np.isfinite(forward))
    assert abs(forward[1]) > 1e-3
    np.testing.assert_allclose(reverse, forward, rtol=1e-7)
    expected = central(lambda v: f(v)[1], np.ones(2), 1e-5)
    np.testing.assert_allclose(forward, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_thirty_days_at_five_seconds_take_less_than_a_gigabyte():
    """Compiled, not run: what reverse mode with checkpoints sets aside for 518,400 ticks."""
    shapes = Load(*(jax.ShapeDtypeStruct((30 * 86_400 // 5,), jnp.float64) for _ in Load._fields))
    gradient = jax.jit(
        jax.grad(lambda v, amounts: month_cost(v, amounts, 5.0, True)), compiler_options=compiler_options()
    )
    compiled = gradient.lower(jax.ShapeDtypeStruct((2,), jnp.float64), shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1e9


# Time and precision.


def as_float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.float32), tree)


def day_and_slopes(x, fleet, amounts, policy):
    """x = (cold start, threshold), as shares; returns the cost, and after it what else the run gives."""
    fleet = eqx.tree_at(lambda f: f.cold_start, fleet, fleet.cold_start * x[0])
    policy = eqx.tree_at(lambda p: p.decode_up, policy, policy.decode_up * x[1])
    run = simulate(fleet, amounts, policy, width=WIDTH)
    return run.cost.cost, run


def test_a_day_in_float32_stays_within_the_stated_bound():
    """With 64-bit numbers off in JAX, over 1,440 ticks of a minute: the cost within 2e-5 of float64's, requests
    conserved to 2e-5, every level within 1e-4 of its largest value, and the gradient within 1e-3 of its largest
    component (measured: 5e-6, 0, 8e-6 and 2e-7). Inputs in float32 alone do not suffice: the loop's state is
    float64 then.
    """
    day = load_of(default_workload(seed=3, days=1.0), 60.0)
    amounts = Load(*(part * share for part, share in zip(day, (0.7, 0.7, 0.7, 2.0), strict=True)))
    fleet = small_fleet(small_plant(capacity=2e9), interval=60.0)
    both = jit(jax.jacfwd(day_and_slopes, has_aux=True))
    slopes, exact = both(jnp.ones(2), *map(as_float32, (fleet, amounts, LAW)))
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        warnings.filterwarnings("ignore", "overflow encountered in cast")  # "at once" is infinite in float32
        rough, single = both(jnp.ones(2, dtype=jnp.float32), *map(as_float32, (fleet, amounts, LAW)))
    assert exact.cost.cost.dtype == exact.trajectory.active.dtype == jnp.float64
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype("float32")}
    assert float(single.cost.cost) == pytest.approx(float(exact.cost.cost), rel=2e-5)
    assert float(single.done + single.left + single.lost) == pytest.approx(float(exact.arrived), rel=2e-5)
    for name in ("backlog", "buffer_bytes", "active", "prefill_gpus", "decode_gpus", "ttft"):
        a, b = np.asarray(getattr(single.trajectory, name)), np.asarray(getattr(exact.trajectory, name))
        assert np.max(np.abs(b)) > 0, f"{name} is in use"
        assert np.max(np.abs(a - b)) <= 1e-4 * np.max(np.abs(b)), name
    np.testing.assert_allclose(np.asarray(rough), np.asarray(slopes), rtol=0, atol=1e-3 * np.abs(slopes).max())


def test_a_float32_step_of_the_plant_stays_float32_and_within_1e_5():
    state, arrivals = as_float32(STATES["half"]), as_float32(Arrivals(30.0, 3e4, 3e4, 3e3))
    plant = as_float32(small_plant())
    new, _ = advance(state, arrivals, jnp.float32(2.0), jnp.float32(1.0), plant, jnp.float32(DT))
    exact, _ = advance(STATES["half"], Arrivals(30.0, 3e4, 3e4, 3e3), 2.0, 1.0, small_plant(), DT)
    assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("float32")}
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(exact), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-5, abs=1e-5)


def test_absolute_time_stamps_never_reach_jax():
    """A run knows seconds since its start: 15 s steps are exact in float32 there, and lost in a Unix time stamp."""
    t = simulate(small_fleet(), SHOCK, LAW).trajectory
    assert float(t.time[0]) == 15.0
    assert float(t.time[-1]) == 15.0 * SHOCK.requests.shape[0]
    assert np.all(np.diff(np.asarray(t.time, dtype=np.float32)) == 15.0)
    unix = 1.8e9 + np.asarray(t.time)
    assert np.any(np.diff(unix.astype(np.float32)) != 15.0)


def test_a_pulse_shorter_than_the_step_is_not_lost():
    """One second of 500 req/s, anywhere in a tick of 15 s: every request arrives, is served or is left."""
    for second in (0, 7, 14, 29):
        rate = np.where(np.arange(60) == second, 500.0, 0.0)
        pulse = Workload.from_windows(window=1.0, rate=rate, isl_stored=100.0, osl=10.0)
        run = simulate(small_fleet(), pulse, LAW, record=False)
        assert float(run.arrived) == pytest.approx(500.0, rel=1e-12)
        assert float(run.done + run.left + run.lost) == pytest.approx(500.0, rel=1e-12)
