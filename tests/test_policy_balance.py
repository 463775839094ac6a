"""Balance tracking, HeteroScale and the static ratio: the laws that move both pools together, or neither."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidq.policies import Asked, Reading
from fluidq.policies._balance_demand import Expected, Forecaster
from fluidq.policies.balance import BalanceTracking
from fluidq.policies.heteroscale import HeteroScale, Since, decode_worker_tps
from fluidq.policies.static_ratio import StaticRatio, busiest
from fluidq.scenario import build_case
from fluidq.simulate import load_of, simulate
from fluidq.workload import Workload
from tests.helpers import central, small_fleet, small_plant

# 40 s of cold start are two whole ticks: the horizon is four ticks, 60 s.
FLEET = small_fleet()
# GPU-seconds per request of 1000 tokens in and 200 out on the small plant: prefill, and decode at its batch of 64.
T_P, T_D = 0.1, 200 * (0.02 + 64 * (1e-4 + 8e-9 * 1099.5)) / 64


def step_load(rates, isl=1000.0, osl=200.0):
    return load_of(Workload.from_windows(window=15.0, rate=rates, isl_stored=isl, osl=osl), 15.0)


def reading(**changes):
    values = dict.fromkeys(Reading._fields, 0.0)
    values |= {"rate": 30.0, "isl": 1000.0, "isl_computed": 1000.0, "osl": 200.0, "prefill_rate": 30_000.0}
    for pool in ("prefill", "decode"):
        values |= {f"{pool}_ready": 4.0, f"{pool}_asked": 4.0}
    return Reading(**{**values, **changes})


def arrays(seen):
    return Reading(*(jnp.asarray(value, dtype=jnp.float64) for value in seen))


# Balance tracking


def test_it_costs_less_than_half_of_the_threshold_law_on_the_default_day():
    case = build_case()
    load, other = load_of(case.workload, 15.0), load_of(case.workload.reseeded(7), 15.0)
    band, ours = (
        [simulate(case.fleet, day, law, case.objective, record=False) for day in (load, other)]
        for law in (case.policy, BalanceTracking())
    )
    for theirs, mine in zip(band, ours, strict=True):
        assert float(mine.cost.cost) < 0.5 * float(theirs.cost.cost)
        assert float(mine.attained) > 0.97


@pytest.mark.parametrize(
    ("need", "peak", "asked", "wanted"),
    [
        ((2.2, 1.0), (2.2, 1.0), (2, 2), (3, 2)),  # up at once; down not for less than 0.4 of a worker
        ((2.2, 0.55), (2.2, 0.55), (3, 2), (3, 1)),
        ((2.2, 1.0), (4.3, 1.0), (5, 1), (5, 1)),  # the peak holds
        ((2.2, 1.0), (2.8, 1.0), (5, 1), (4, 1)),
        ((0.0, 0.0), (0.0, 0.0), (4, 4), (1, 1)),
        ((4.3, 3.0), (4.3, 3.0), (5, 3), (5, 3)),  # what is asked for is on its way: no second time
        ((30.0, 30.0), (30.0, 30.0), (4, 4), (20, 20)),  # the budget of 40, along phi = 1/2
        ((50.0, 10.0), (50.0, 10.0), (4, 4), (33, 7)),
        ((20.0, 10.0), (30.0, 15.0), (30, 15), (26, 13)),  # over the budget by 5: reserves first, in proportion
    ],
)
def test_the_workers_to_the_letter(need, peak, asked, wanted):
    arguments = (jnp.array(need), jnp.array(peak), jnp.array(asked, dtype=float))
    got = BalanceTracking(slack=0.4).workers(*arguments, FLEET, None)
    assert tuple(map(float, got)) == wanted


@pytest.mark.parametrize(("delay", "wanted"), [(None, (6, 6)), (5.0, (6, 4)), (50.0, (6, 6))])
def test_a_role_switch_that_is_faster_than_a_start_takes_the_other_pools_reserve(delay, wanted):
    fleet = small_fleet(switch_delay=delay)
    arguments = (jnp.array([6.0, 2.0]), jnp.array([6.0, 6.0]), jnp.array([4.0, 6.0]))
    assert tuple(map(float, BalanceTracking().workers(*arguments, fleet, None))) == wanted


def expected(rate=100.0):
    unit = jnp.array([0.1, 0.1])
    length = jnp.asarray(1000.0)
    return Expected(rate * unit, unit, jnp.asarray(rate), length, length, jnp.zeros(2))


@pytest.mark.parametrize(
    ("admitted", "capacity", "changes", "wanted"),
    [
        # Prefill delivers 100 req/s, decode admits 60: 40 req/s for H + guard = 75 s are 3000 requests of 95 MB.
        (60.0, 2999 * 95e6, {}, (0, 10)),
        (60.0, 3001 * 95e6, {}, (0, 0)),
        (60.0, 3099 * 95e6, {"buffered": 100.0}, (0, 10)),
        (60.0, 3101 * 95e6, {"buffered": 100.0}, (0, 0)),
        (100.0, 0.0, {}, (0, 0)),  # nothing fills it
        (40.0, 1e15, {"prefill_ready": 20.0}, (0, 0)),
        # Decode could take 80 req/s of the 100 there are, prefill delivers 50: 30 req/s for 75 s are 2250 requests.
        (50.0, 1e15, {"prefill_ready": 5.0, "decode_ready": 8.0, "buffered": 2251.0}, (0, 0)),
        (50.0, 1e15, {"prefill_ready": 5.0, "decode_ready": 8.0, "buffered": 2249.0}, (8, 0)),
    ],
)
def test_the_guard_acts_when_the_buffer_would_reach_a_boundary_before_help(admitted, capacity, changes, wanted):
    fleet = small_fleet(small_plant(capacity=capacity))
    seen = reading(**{"prefill_ready": 30.0, "decode_ready": 30.0, **changes})
    got = BalanceTracking(guard=15.0).guarded(seen, expected(), jnp.asarray(admitted), fleet, None)
    assert tuple(map(float, got)) == pytest.approx(wanted)


def test_the_need_is_the_load_with_its_safety_and_what_waits():
    policy = BalanceTracking(z=2.0, prefill_margin=0.1, decode_margin=0.0, drain=2.0, stock_wait=1.0)
    seen = reading(queue=120.0, queue_tokens=120_000.0, buffered=130.0)
    forecast = expected()._replace(spread=jnp.array([0.1, 0.2]))
    roomy, none_left = (small_fleet(small_plant(capacity=c)) for c in (1e15, 0.0))
    got = policy.need(seen, forecast, jnp.asarray(100.0), roomy, None)
    # T_drain = 2 H = 120 s; 12 GPU s of prefill wait; 120 requests and the 30 beyond a second's worth need decode.
    assert tuple(map(float, got)) == pytest.approx((10 * 1.1 * 1.2 + 12 / 120, 10 * 1.4 + 150 * 0.1 / 120))
    # With nothing to come, and a full buffer, the guard is what is left: decode for all that four prefill GPUs deliver.
    nothing = forecast._replace(load=jnp.zeros(2))
    got = policy.need(
        seen._replace(queue=0.0, queue_tokens=0.0, buffered=0.0), nothing, jnp.asarray(10.0), none_left, None
    )
    assert float(got[1]) == pytest.approx(40 * 0.1)


# Numbers as arrays are inputs of the compiled loop, not part of it: these tests share one.
START = small_fleet(initial_gpus=4.0, cold_start=60.0)


def law(**changes):
    numbers = {name: getattr(BalanceTracking(), name) for name in BalanceTracking.TUNABLE} | changes
    return BalanceTracking(**{name: jnp.asarray(value) for name, value in numbers.items()})


def test_a_constant_load_gets_the_fluid_balance_rounded_up():
    run = simulate(START, step_load([52.0] * 240), law(z=0.0, prefill_margin=0.0, decode_margin=0.0))
    assert float(run.trajectory.prefill_gpus[-1]) == np.ceil(52 * T_P)
    assert float(run.trajectory.decode_gpus[-1]) == np.ceil(52 * T_D)


def test_it_drains_the_backlog_that_a_size_of_exactly_the_demand_would_keep():
    """Demand 3.000 prefill GPUs, two at the start: ceil(rate/capacity) never works the first minute off."""
    run = simulate(START, step_load([30.0] * 240), law(z=0.0, prefill_margin=0.0, decode_margin=0.0))
    assert float(jnp.max(run.trajectory.backlog)) > 100_000
    assert float(run.trajectory.backlog[-1]) == 0.0


def test_it_meets_a_doubling_of_the_load_and_comes_back():
    run = simulate(START, step_load([30.0] * 80 + [60.0] * 80 + [30.0] * 80), law())
    assert float(jnp.sum(run.trajectory.backlog[95:])) == 0.0  # four minutes: the cold start, and the work of it
    asked = np.asarray(run.trajectory.requested_gpus)
    assert asked[140] > 60 * (T_P + T_D) > asked[-1]


def test_a_missing_sample_changes_nothing():
    policy = BalanceTracking()
    memory = policy.start(FLEET, Asked(4.0, 4.0))
    memory, _ = policy.decide(memory, arrays(reading())._replace(index=0), FLEET, None)
    names = [
        name for name in Reading._fields if not name.startswith(("prefill_re", "prefill_as", "decode_re", "index"))
    ]
    lost = {name: jnp.nan for name in names if name not in ("time", "decode_asked")}
    blind = arrays(reading(**{**lost, "prefill_starting": 1.0, "decode_starting": 0.0, "index": 1}))
    for width in (None, 0.3):
        after, asked = policy.decide(memory, blind._replace(index=1), FLEET, width)
        jax.tree.map(np.testing.assert_array_equal, after, memory)
        assert tuple(map(float, asked)) == (4, 4)


@pytest.mark.parametrize(("memory", "lasting"), [(0.0, 0.0), (0.9, 0.9**4), (0.999, 1.0)])
def test_the_forecaster_learns_how_much_of_a_departure_lasts(memory, lasting):
    """AR(1) departures around a level: the share that lasts over a horizon of four ticks is memory^4."""
    rng, x, steps = np.random.default_rng(1), np.zeros(20_000), 4
    for k in range(1, x.size):
        x[k] = memory * x[k - 1] + rng.normal() * 0.1 * np.sqrt(1 - memory**2)
    maker = Forecaster(1e-3, 1e7 if memory < 0.99 else 7500.0, 1e9, 30_000.0, 0.2, 0.05)
    rate = 100.0 * np.exp(x)
    flows = jnp.asarray(rate[:, None] * np.array([1.0, 1000.0, 1000.0, 200.0]))
    plant = FLEET.plant

    def tick(past, inputs):
        index, flow = inputs
        past, expected = maker.observe(past, index, flow, plant, steps, 15.0)
        return past, (past.made[index % steps, 4], expected.spread)

    _, (share, spread) = jax.lax.scan(tick, maker.start(steps), (jnp.arange(x.size), flows))
    mean = np.asarray(share[10_000:]).mean()
    assert mean == pytest.approx(lasting, abs=0.1)
    if memory == 0.9:  # what an AR(1) cannot know: sd * sqrt(1 - rho^2)
        assert float(spread[5_000:, 0].mean()) == pytest.approx(0.1 * np.sqrt(1 - lasting**2), rel=0.1)


def test_the_relaxed_workers_tend_to_the_hard_ones():
    rng, policy = np.random.default_rng(0), BalanceTracking()
    soft = jax.jit(policy.workers)
    gaps = {width: [] for width in (0.3, 1e-2, 1e-8)}
    for _ in range(100):
        need = rng.uniform(0, 25, 2)
        peak, asked = need + rng.uniform(0, 5, 2), rng.integers(1, 20, 2).astype(float)
        arguments = tuple(map(jnp.asarray, (need, peak, asked)))
        hard = np.asarray(policy.workers(*arguments, FLEET, None))
        for width, gap in gaps.items():
            gap.append(np.max(np.abs(np.asarray(soft(*arguments, FLEET, width)) - hard)))
    mean = [np.mean(gap) for gap in gaps.values()]
    assert mean[2] < 1e-3
    assert mean[2] < mean[1] < mean[0]


RATES = [20.0 + 15.0 * np.sin(i / 5) + 3 * (i % 3) for i in range(60)]


def closed_loop(make, fleet, x, nonzero):
    """Gradients of the relaxed loop's cost against central differences; the loop tends to the hard one."""
    load = step_load(RATES)
    x = jnp.asarray(x)

    @jax.jit
    @jax.value_and_grad
    def cost(x, width):
        return simulate(fleet, load, make(x), width=width, record=False).cost.cost

    slopes = np.asarray(cost(x, 0.3)[1])
    assert np.all(np.isfinite(slopes))
    assert np.count_nonzero(slopes) >= nonzero
    differences = central(lambda x: cost(x, 0.3)[0], x)
    np.testing.assert_allclose(slopes, differences, rtol=5e-4, atol=1e-7)
    hard = float(simulate(fleet, load, make([float(v) for v in x]), record=False).cost.cost)
    gaps = [abs(float(cost(x, width)[0]) - hard) for width in (0.3, 1e-2, 1e-8)]
    assert gaps[2] < 1e-6 * hard < gaps[0]


def test_every_parameter_of_balance_tracking_has_its_gradient():
    values = {"itl": 0.024, "guard": 20.0, "stock_wait": 0.3}  # a limit on the step that binds
    names = list(BalanceTracking.TUNABLE)
    fleet = small_fleet(small_plant(capacity=2e9), initial_gpus=4.0)
    x = [float(values.get(name, getattr(BalanceTracking(), name))) for name in names]
    closed_loop(lambda x: BalanceTracking(**dict(zip(names, x, strict=True))), fleet, x, len(names) - 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drain": 0.0}, "drain is 0.0"),
        ({"release": -1.0}, "release is -1.0"),
        ({"prefill_margin": 25.0}, "prefill_margin is 25.0; it must be between 0 and 10"),
        ({"z": float("nan")}, "z is nan"),
        ({"itl": float("inf")}, "itl is inf"),
    ],
)
def test_bad_parameters_of_balance_tracking_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        BalanceTracking(**changes)


# HeteroScale

HETERO = HeteroScale(target_decode_tps=1000.0, pd_ratio=0.5)


@pytest.mark.parametrize(
    ("output", "out", "down", "wanted"),
    [
        (4_000.0, 1e9, 1e9, (2, 4)),
        (4_400.0, 1e9, 1e9, (2, 4)),  # at the tolerance is not over it
        (4_401.0, 1e9, 1e9, (3, 5)),
        (9_100.0, 1e9, 1e9, (5, 10)),  # proportional: ceil(R / target)
        (9_100.0, 30.0, 1e9, (2, 4)),  # 45 s since the last move out, of 60
        (9_100.0, 45.0, 1e9, (5, 10)),
        (3_600.0, 1e9, 1e9, (2, 4)),
        (2_900.0, 1e9, 1e9, (2, 3)),
        (2_900.0, 100.0, 1e9, (2, 4)),  # moves in wait for both cool-downs
        (2_900.0, 1e9, 100.0, (2, 4)),
        (0.0, 1e9, 1e9, (1, 1)),
        (90_000.0, 1e9, 1e9, (13, 26)),  # the budget of 40 holds 26 at this ratio
        (np.nan, 1e9, 1e9, (2, 4)),
    ],
)
def test_heteroscale_to_the_letter(output, out, down, wanted):
    seen = arrays(reading(decode_rate=output, prefill_asked=2.0, prefill_ready=2.0))
    _, asked = HETERO.decide(Since(jnp.asarray(out), jnp.asarray(down)), seen, FLEET, None)
    assert tuple(map(float, asked)) == wanted


def test_heteroscale_takes_small_steps_on_latency_and_restarts_its_clocks():
    policy = HeteroScale(target_decode_tps=1000.0, pd_ratio=0.5, tbt_limit_ms=40.0)
    seen = arrays(reading(decode_rate=4_000.0, tpot=0.041))
    memory, asked = policy.decide(policy.start(FLEET, Asked(2.0, 4.0)), seen, FLEET, None)
    assert tuple(map(float, asked)) == (3, 5)  # ten per cent more, rounded up
    assert float(memory.out) == 0.0
    assert float(memory.down) > 1e8
    _, asked = policy.decide(memory, arrays(reading(decode_rate=9_000.0)), FLEET, None)
    assert tuple(map(float, asked)) == (2, 4)


def test_heteroscale_never_reaches_a_target_above_what_a_worker_can_do():
    """Output saturates at capacity, so an overload is not seen: the idle pool of the start goes in, and stays there."""
    most = float(decode_worker_tps(FLEET, 1000.0, 200.0))
    assert most == pytest.approx(64 / (0.02 + 64 * (1e-4 + 8e-9 * 1099.5)))
    load = step_load([60.0] * 120)
    blind, sees = (
        simulate(FLEET, load, HeteroScale(target_decode_tps=jnp.asarray(share * most), pd_ratio=1.0))
        for share in (1.05, 0.6)
    )
    assert float(blind.trajectory.decode_gpus[-1]) == 1.0  # for a demand of 9: use is 0.95 at most, within the band
    assert float(blind.left) > 1000
    assert float(sees.trajectory.decode_gpus[-1]) > 60 * T_D


def test_heteroscale_sizes_what_is_left_open_from_the_mean_mix():
    prepared = HeteroScale().prepare(step_load([10.0, 20.0]), FLEET)
    assert float(prepared.pd_ratio) == pytest.approx(T_P / T_D)
    assert float(prepared.target_decode_tps) == pytest.approx(0.6 * 200 / T_D)


def test_the_relaxed_heteroscale_tends_to_the_hard_one():
    rng, soft = np.random.default_rng(0), jax.jit(HETERO.decide)
    gaps = {width: [] for width in (0.3, 1e-2, 1e-5)}
    for _ in range(60):
        seen = arrays(reading(decode_rate=rng.uniform(0, 12_000), decode_asked=float(rng.integers(1, 9))))
        memory = Since(jnp.asarray(rng.uniform(0, 500)), jnp.asarray(rng.uniform(0, 900)))
        _, hard = HETERO.decide(memory, seen, FLEET, None)
        for width, gap in gaps.items():
            _, near = soft(memory, seen, FLEET, width)
            gap.append(max(abs(float(a - b)) for a, b in zip(near, hard, strict=True)))
    mean = [np.mean(gap) for gap in gaps.values()]
    assert mean[2] < 1e-2
    assert mean[2] < mean[1] < mean[0]


def test_every_parameter_of_heteroscale_has_its_gradient():
    names = list(HeteroScale.TUNABLE)
    values = {"target_decode_tps": 1300.0, "pd_ratio": 0.9, "tbt_limit_ms": 24.0, "scale_in_cooldown_seconds": 100.0}
    x = [float(values.get(name) or getattr(HeteroScale(), name)) for name in names]
    # `utilisation` only matters where the target is open.
    closed_loop(lambda x: HeteroScale(**dict(zip(names, x, strict=True))), FLEET, x, len(names) - 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"utilisation": 60.0}, "utilisation is 60.0; .* write 0.6 for 60 %"),
        ({"pd_ratio": -1.0}, "pd_ratio is -1.0"),
        ({"scale_in_tolerance": 1.5}, "scale_in_tolerance is 1.5"),
        ({"scale_in_cooldown_seconds": -5.0}, "scale_in_cooldown_seconds is -5.0"),
        ({"interval_seconds": 0.0}, "interval_seconds is 0.0"),
    ],
)
def test_bad_parameters_of_heteroscale_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        HeteroScale(**changes)


# Static ratio


def test_a_static_fleet_never_moves_and_is_sized_for_its_busiest_window():
    load = step_load([10.0] * 40 + [40.0] * 40 + [10.0] * 40)
    run = simulate(FLEET, load, StaticRatio(utilisation=0.5))
    assert float(run.actions) == 0.0
    total = 40 * (T_P + T_D) / 0.5
    assert float(busiest(load, FLEET, 600.0)) == pytest.approx(40 * (T_P + T_D))
    prefill = np.round(T_P / (T_P + T_D) * total)
    assert float(run.trajectory.prefill_gpus[0]) == prefill
    assert float(run.trajectory.decode_gpus[0]) == np.floor(total - prefill)
    given = simulate(FLEET, load, StaticRatio(ratio=0.25, gpus=20.0))
    assert (float(given.trajectory.prefill_gpus[3]), float(given.trajectory.decode_gpus[3])) == (5.0, 15.0)


def test_the_static_ratio_has_the_gradient_of_central_differences():
    @jax.value_and_grad
    def pools(x):
        _, asked = StaticRatio(ratio=x[0], gpus=x[1]).decide(None, reading(), FLEET, 0.3)
        return asked.prefill + 3.0 * asked.decode

    x = jnp.array([0.55, 9.3])
    np.testing.assert_allclose(np.asarray(pools(x)[1]), central(lambda x: pools(x)[0], x), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratio": 60.0}, "ratio is 60.0; it must be a share: write 0.6 for 60 %"),
        ({"utilisation": 80.0}, "write 0.8 for 80 %"),
        ({"window_seconds": 0.0}, "window_seconds is 0.0"),
    ],
)
def test_bad_parameters_of_the_static_ratio_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        StaticRatio(**changes)


def test_a_static_fleet_below_one_worker_of_each_pool_is_refused():
    with pytest.raises(ValueError, match=r"gpus is 1.0; it must be at least 2"):
        simulate(FLEET, step_load([10.0] * 3), StaticRatio(gpus=1.0))
