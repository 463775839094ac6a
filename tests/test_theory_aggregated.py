"""Aggregated fleets against two pools: queues and batches simulated, splits searched, against the proved formulas."""

import heapq

import numpy as np
import pytest
from scipy import optimize

from derivations import derivation
from fluidq.formulas import aggregated, balance


def _temporal_gpu(sequences, isl, mean_osl, r_P, t_step, steps, rng, at_most_one):
    """Gaps between steps of one saturated GPU: who ends is replaced, each replacement is prefilled before a step."""
    left = rng.geometric(1 / mean_osl, sequences)
    waiting, gaps = 0, []
    for _ in range(steps):
        now = min(waiting, 1) if at_most_one else waiting
        waiting -= now
        gaps.append(t_step + now * isl / r_P)
        left -= 1
        ended = left <= 0
        left[ended] = rng.geometric(1 / mean_osl, int(ended.sum()))
        waiting += int(ended.sum())
    return np.array(gaps)


@pytest.mark.parametrize("at_most_one", [True, False])
def test_time_per_token_and_its_tail_on_a_simulated_gpu(at_most_one):
    sequences, isl, osl, r_P, t_step = 32, 4096.0, 512.0, 20_000.0, 0.02  # B/O = 6.3 %
    rng = np.random.default_rng(3)
    gaps = _temporal_gpu(sequences, isl, osl, r_P, t_step, 150_000, rng, at_most_one)
    phi = float(balance.balance_ratio(B=sequences, isl=isl, osl=osl, r_P=r_P, t_step=t_step))
    assert gaps.mean() == pytest.approx(float(aggregated.tpot_temporal(t_step=t_step, load=1, phi=phi)), rel=0.01)
    stalled = float(aggregated.stalled_step(t_step=t_step, isl=isl, r_P=r_P, g_worker=1))
    assert np.quantile(gaps, 0.99) == pytest.approx(stalled)  # a whole prefill, ten times t_step
    started = (gaps - t_step).mean() * r_P / isl
    assert started == pytest.approx(float(aggregated.prefills_per_step(B=sequences, osl=osl, g_worker=1)), rel=0.02)
    if not at_most_one:
        share = float(aggregated.stall_chance(B=sequences, osl=osl, g_worker=1))
        assert (gaps > t_step).mean() == pytest.approx(share, rel=0.02)


def _waits(arrivals, service):
    """Waits in front of one first-come worker (Lindley)."""
    wait, out = 0.0, np.empty(len(arrivals))
    for i, gap in enumerate(arrivals):
        wait = max(0.0, wait - gap)
        out[i] = wait
        wait += service[i]
    return out


@pytest.mark.parametrize(("load", "printed"), [(0.5, 0.250), (0.8, 0.118), (0.95, 0.032)])
def test_ratio_of_the_waits_is_simulated(load, printed):
    phi, n = 0.4, 400_000
    rng = np.random.default_rng(11)
    gaps = rng.exponential(1, n)
    apart = _waits(gaps / load, np.ones(n)).mean()
    together = _waits(gaps / (load * phi), np.ones(n)).mean()
    ours = float(aggregated.wait_ratio(load=load, phi=phi))
    assert ours == pytest.approx(printed, abs=5e-4)
    assert together / apart == pytest.approx(ours, rel=0.12 if load > 0.9 else 0.03)
    assert apart == pytest.approx(float(aggregated.queue_wait(load=load, service=1, scv=0)), rel=0.1)


@pytest.mark.parametrize("scv", [0.0, 0.25, 1.0])
def test_decode_steps_add_half_a_step_to_the_wait(scv):
    """Vacations: whenever no prompt waits the worker takes a decode step and looks again after it."""
    load, phi, step, n = 0.8, 0.5, 0.7, 300_000
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / (load * phi), n))
    service = np.ones(n) if scv == 0 else rng.gamma(1 / scv, scv, n)
    now, total = 0.0, 0.0
    for i in range(n):
        if arrivals[i] > now:
            now += step * np.ceil((arrivals[i] - now) / step)
        total += now - arrivals[i]
        now += service[i]
    ours = float(aggregated.temporal_wait(load=load, phi=phi, service=1, scv=scv, t_step=step))
    assert total / n == pytest.approx(ours, rel=0.02)


def test_one_central_queue_is_another_model():
    """20 GPUs at phi = 0.4: eight prefill workers with one queue wait 0.15 D, not the 2 D of a queue each."""
    rng = np.random.default_rng(2)
    workers, load, n = 8, 0.8, 300_000
    free = [0.0] * workers
    now = total = 0.0
    for gap in rng.exponential(1 / (load * workers), n):
        now += gap
        start = max(now, heapq.heappop(free))
        total += start - now
        heapq.heappush(free, start + 1.0)
    assert total / n == pytest.approx(0.15, abs=0.02)
    assert float(aggregated.queue_wait(load=load, service=1, scv=0)) == pytest.approx(2.0)


def test_distserve_equations_are_simulated():
    rng = np.random.default_rng(8)
    offered, speedup, n = 0.9, 1.6, 400_000
    gaps = rng.exponential(1 / offered, n)
    tensor = _waits(gaps, np.full(n, 1 / speedup)) + 1 / speedup
    first = _waits(gaps, np.full(n, 0.5))
    piped = first + 1.0  # the second stage takes as long as the first and never lets anyone wait
    ours = aggregated.ttft_tensor(load=offered / speedup, service=1, speedup=speedup)
    assert tensor.mean() == pytest.approx(float(ours), rel=0.02)
    assert piped.mean() == pytest.approx(float(aggregated.ttft_pipelined(load=offered / 2, service=1)), rel=0.02)


def test_tensor_parallelism_wins_exactly_above_the_speedup_needed():
    for offered in np.linspace(0.02, 1.98, 60):
        need = float(aggregated.speedup_needed(offered=offered))
        assert 1 < need < 2
        piped = float(aggregated.ttft_pipelined(load=offered / 2, service=1))
        for speedup in np.linspace(max(1.0, offered) + 1e-6, 2, 30):
            tensor = float(aggregated.ttft_tensor(load=offered / speedup, service=1, speedup=speedup))
            assert (tensor < piped) == (speedup > need)


def test_chunks_through_a_link_as_events():
    rng = np.random.default_rng(4)
    for _ in range(200):
        n = int(rng.integers(1, 40))
        isl, r_P, nic, kappa = 8192.0, 10 ** rng.uniform(3, 5), 10 ** rng.uniform(8, 11), 10 ** rng.uniform(4, 6)
        done = 0.0
        for i in range(1, n + 1):
            done = max(done, i * isl / r_P / n) + isl * kappa / nic / n
        ours = aggregated.exposed_transfer_chunked(isl=isl, kappa_store=kappa, nic=nic, r_P=r_P, g_P=1, n_chunks=n)
        assert float(ours) == pytest.approx(done - isl / r_P, rel=1e-9, abs=1e-12)


def test_time_to_first_token_adds_up_and_the_trade_is_real():
    at = dict(isl=8192.0, r_P=56_250.0, t_step=0.02)
    for load in (0.3, 0.6, 0.9):
        apart = float(aggregated.ttft_disaggregated(load=load, g_P=1, kappa_store=95e3, nic=50e9, **at))
        together = float(aggregated.ttft_temporal(load=load, phi=0.4, g_worker=1, **at))
        assert together < apart
        prefill, transfer = 8192 / 56_250, 8192 * 95e3 / 50e9
        wait = float(aggregated.queue_wait(load=load, service=prefill, scv=0))
        assert apart == pytest.approx(wait + prefill + transfer + 0.02)
        assert float(aggregated.tpot_temporal(t_step=0.02, load=load, phi=0.4)) > 0.02


def test_no_split_of_a_gpu_beats_the_best_one():
    """Random shares: the throughput of a split never exceeds the closed form, and the best share reaches it."""
    rng = np.random.default_rng(6)
    for phi, saturation in rng.uniform(0.01, 0.99, (300, 2)):

        def rate(share, phi=phi, saturation=saturation):
            return min(share / phi, min(1.0, (1 - share) / saturation) / (1 - phi))

        best = float(aggregated.sm_split_gain(phi=phi, saturation=saturation))
        shares = np.append(rng.uniform(0, 1, 300), phi)
        assert max(rate(s) for s in shares) <= best * (1 + 1e-12)
        share = float(aggregated.best_sm_share(phi=phi, saturation=saturation))
        assert rate(share) == pytest.approx(best)
        assert rate(min(share + 1e-3, 1.0)) < best  # the largest share without loss
        assert 1 <= best <= 1 / (1 - min(phi, 1 - phi)) * (1 + 1e-12)


def test_duetserve_by_linear_programme():
    """Tokens per second of a split with an objective are linear in the shares: a programme finds an end."""
    saturation, t_step, itl, prefill, decode = 0.4, 0.02, 0.05, 10_000.0, 3_000.0
    least = float(aggregated.decode_sm_share(saturation=saturation, t_step=t_step, itl_max=itl))
    found = optimize.linprog(
        [-decode / saturation, -prefill], A_eq=[[1, 1]], b_eq=[1], bounds=[(least, saturation), (0, 1)]
    )
    assert found.x[0] == pytest.approx(least if decode / saturation < prefill else saturation)
    assert least == pytest.approx(saturation * t_step / itl)


def test_overlap_gain_is_bounded_on_the_whole_square():
    phi, overlap = np.meshgrid(np.linspace(0, 1, 201), np.linspace(0, 1, 201))
    gain = np.asarray(aggregated.chunk_gain(phi=phi, overlap=overlap))
    assert gain.min() == 1
    assert gain.max() == 2 == gain[200, 100]
    needed = np.asarray(aggregated.break_even_specialisation(phi=phi, overlap=overlap))
    np.testing.assert_allclose(1 + needed, gain, rtol=1e-12)


def test_a_prompt_in_chunks_counted():
    isl, n, kappa = 8192, 8, 4864
    read = sum(i * (isl // n) * kappa for i in range(n))  # before chunk i + 1 lie i chunks
    assert float(aggregated.prefix_reread(kappa_read=kappa, isl=isl, n_chunks=n)) == read
    assert float(aggregated.chunk_loads(n_chunks=n)) == sum(range(1, n + 1))
    assert float(aggregated.prefix_reread(kappa_read=kappa, isl=isl, n_chunks=1)) == 0


def test_a_mixed_step_is_free_up_to_the_free_chunk():
    """Longest chunk (bisected) whose step takes no longer than a bare decode step, and the tokens that find no room."""
    at = dict(B=64.0, theta_ctx=8704.0, W=93e9, kappa_read=4864.0, flop_token=8e10, peak=2.25e15, hbm_rate=8e12)
    bare = (93e9 + 4864 * 64 * 8704) / 8e12
    longest = optimize.brentq(
        lambda c: float(aggregated.mixed_step(chunk=c, prior=0.0, **at)) - bare * (1 + 1e-9), 1.0, 1e4
    )
    assert float(aggregated.free_chunk(**at)) == pytest.approx(longest, rel=1e-5)
    with_prefix = float(aggregated.mixed_step(chunk=1.0, prior=1e6, **at))
    assert with_prefix == pytest.approx(bare + 1e6 * 4864 / 8e12)
    bound = float(aggregated.compute_bound_tokens(peak=2.25e15, weight_bytes=2.0, hbm_rate=8e12))
    assert 2 * bound * 1e9 / 2.25e15 == pytest.approx(2 * 1e9 / 8e12)  # a billion weights: computed and read
    left, slots = 64 * 8192.0, 0.0
    for _ in range(1024):  # steps of the batch, each with room beside its 64 decodes
        slots += min(left - slots, bound - 64)
    ours = aggregated.uncovered_prefill(B=64.0, isl=8192.0, osl=1024.0, tokens_bound=bound)
    assert float(ours) == pytest.approx(left - slots)


def test_decode_maximal_batches_are_always_full():
    """SARATHI: as many decode slots as output tokens when input over output is c/(B - 1)."""
    chunk, slots, osl = 256, 17, 160
    isl = float(aggregated.decode_maximal_ratio(chunk=chunk, B=slots)) * osl
    assert isl / chunk * (slots - 1) == pytest.approx(osl)
    assert float(aggregated.decode_maximal_ratio(chunk=chunk, B=1)) == np.inf


def test_edges():
    assert float(aggregated.wait_ratio(load=1, phi=0.5)) == 0
    assert float(aggregated.wait_ratio(load=1, phi=1)) == 1
    assert float(aggregated.queue_wait(load=1, service=0.1, scv=0)) == np.inf
    assert float(aggregated.tpot_temporal(t_step=0.02, load=1, phi=1)) == np.inf
    assert float(aggregated.ttft_chunked(isl=0, chunk=512, t_mix=0.05)) == 0
    assert float(aggregated.ttft_chunked(isl=513, chunk=512, t_mix=0.05)) == pytest.approx(0.1)
    assert float(aggregated.stall_chance(B=64, osl=0, g_worker=1)) == 1


def test_the_statements_say_what_limits_the_article():
    assert any("never worse" in limit for limit in derivation("D23").limits)
    assert "price of a shorter time per token" in derivation("D24").statement
