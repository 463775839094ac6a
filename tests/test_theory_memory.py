"""Memory and ranks: HBM counted, KV in flight and slow ranks simulated, against the proved formulas."""

import numpy as np
import pytest

from derivations.ranks import largest_normal
from fluidq.formulas import aggregated, balance, memory, ranks


def test_little_counts_the_sequences_of_both_fleets():
    """A fleet of one GPU in rounds of prefill and decode holds B; the two pools hold (1 - phi) B, output the same."""
    B, isl, osl, r_P, t_step = 48.0, 8192.0, 1024.0, 20_000.0, 0.03
    phi = float(balance.balance_ratio(B=B, isl=isl, osl=osl, r_P=r_P, t_step=t_step))
    output = float(aggregated.output_rate(N=1, phi=phi, B=B, t_step=t_step))
    together = output * float(aggregated.tpot_temporal(t_step=t_step, load=1, phi=phi))
    assert together == pytest.approx(B)
    assert output * t_step == pytest.approx(float(memory.sequences_in_decode(N=1, phi=phi, B=B)))
    idle = float(memory.idle_kv(N=1, phi=phi, B=B, kappa_store=95e3, theta_ctx=isl + osl / 2))
    assert idle == pytest.approx((together - output * t_step) * 95e3 * (isl + osl / 2))


def test_a_larger_batch_decodes_more_but_less_than_in_proportion():
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b, c, theta, B = 10 ** rng.uniform([-3, -6, -10, 2, 0], [-1, -3, -7, 5, 3])
        factor = 1 + 10 ** rng.uniform(-2, 2)
        gain = float(memory.decode_gain(t_step_a=a, t_step_b=b, t_step_c=c, theta_ctx=theta, B=B, batch_factor=factor))
        assert 1 < gain < factor


def test_batch_gain_of_the_measured_activations():
    assert float(memory.batch_gain(kv_space=48.0, freed=12.0)) == 1.25
    assert float(memory.batch_gain(kv_space=48.0, freed=15.8 - 5.7)) == pytest.approx(1.21, abs=0.005)


def _worker(load, isl, r_P, kappa, nic, chunks, requests, rng):
    """One prefill GPU, deterministic prompts at random times: time-averages of bytes lying twice."""
    prefill, move = isl / r_P, isl * kappa / nic
    start = end = reserved = kept = 0.0
    arrival = 0.0
    for _ in range(requests):
        arrival += rng.exponential(prefill / load)
        start = max(arrival, end)
        end = start + prefill
        reserved += isl * kappa * move  # the whole prompt, for the time of its transfer after prefill
        ready = start + prefill * np.arange(1, chunks + 1) / chunks
        landed = ready + move / chunks  # margin above 1: nothing queues
        kept += (isl * kappa / chunks) * (landed[-1] - landed).sum()
    return reserved / end, kept / end


@pytest.mark.parametrize("chunks", [1, 4, 32])
def test_duplicated_bytes_of_a_simulated_worker(chunks):
    load, isl, r_P, kappa, nic = 0.7, 8192.0, 56_250.0, 95e3, 50e9
    reserved, kept = _worker(load, isl, r_P, kappa, nic, chunks, 20_000, np.random.default_rng(9))
    ours = memory.reserved_duplicate(load=load, r_P=r_P, kappa_store=kappa, isl=isl, nic=nic, g_P=1)
    assert reserved == pytest.approx(float(ours), rel=0.02)
    ours = memory.written_duplicate(load=load, kappa_store=kappa, isl=isl, g_P=1, n_chunks=chunks)
    assert kept == pytest.approx(float(ours), rel=0.02, abs=1e-6)
    ratio = float(memory.duplication_ratio(r_P=r_P, kappa_store=kappa, nic=nic, n_chunks=chunks))
    assert kept / reserved == pytest.approx(ratio, rel=1e-6, abs=1e-9)


def test_random_lengths_count_by_their_token_weighted_mean():
    """Exponential lengths: twice the mean; the formula at the plain mean would be half of what is held."""
    rng = np.random.default_rng(10)
    lengths = rng.exponential(4000, 400_000)
    kappa, nic, rate = 95e3, 50e9, 2.0
    held = rate * np.mean(lengths * kappa * lengths * kappa / nic)
    weighted = np.mean(lengths**2) / np.mean(lengths)
    r_P = rate * np.mean(lengths)  # a GPU that is always busy
    ours = float(memory.reserved_duplicate(load=1, r_P=r_P, kappa_store=kappa, isl=weighted, nic=nic, g_P=1))
    assert held == pytest.approx(ours, rel=1e-9)
    plain = float(memory.reserved_duplicate(load=1, r_P=r_P, kappa_store=kappa, isl=4000.0, nic=nic, g_P=1))
    assert held / plain == pytest.approx(2, rel=0.02)


def test_saved_transfer_is_the_difference_of_the_exposed_ones():
    at = dict(isl=65_536.0, kappa_store=95e3, nic=50e9, g_P=4)
    whole = float(aggregated.exposed_transfer(**at))
    for chunks in (1, 2, 64):
        chunked = float(aggregated.exposed_transfer_chunked(**at, r_P=56_250.0, n_chunks=chunks))
        assert float(memory.transfer_saved(**at, n_chunks=chunks)) == pytest.approx(whole - chunked, abs=1e-12)


def test_a_lease_is_a_capacity():
    held = [float(memory.held_on_prefill(r_P=56_250, kappa_store=95_000, lease=w)) / 1e9 for w in (0, 1, 30, 480)]
    assert held == pytest.approx([0, 5.34375, 160.3125, 2565.0])


@pytest.mark.parametrize("count", [1, 2, 8, 32, 144])
def test_slowest_of_normal_ranks_is_drawn(count):
    rng = np.random.default_rng(count)
    drawn = rng.normal(0.02, 0.002, (60_000, count)).max(axis=1).mean()
    e_R = float(largest_normal(count))
    ours = float(ranks.barrier_step(step_mean=0.02, step_spread=0.002, barrier=e_R))
    assert drawn == pytest.approx(ours, abs=3e-5)
    assert ours <= float(ranks.barrier_bound(step_mean=0.02, step_spread=0.002, ranks=count)) + 1e-12
    assert ours <= float(ranks.barrier_bound_any(step_mean=0.02, step_spread=0.002, ranks=count)) + 1e-12


def test_the_normal_bound_is_the_least_of_a_family():
    """ln R / t + t/2 bounds the largest of R normals for every t; the formula is its minimum."""
    t = np.geomspace(1e-3, 1e2, 200_001)
    for count in (2, 8, 320):
        ours = float(ranks.barrier_bound(step_mean=0.0, step_spread=1.0, ranks=count))
        assert ours == pytest.approx((np.log(count) / t + t / 2).min(), rel=1e-8)
    assert float(ranks.barrier_bound(step_mean=0.02, step_spread=0.002, ranks=1)) == pytest.approx(0.02)


def test_no_law_exceeds_the_bound_that_needs_none():
    """Samples of six laws, among them heavy and two-valued ones; the power law u^(R - 1) reaches it."""
    rng = np.random.default_rng(12)
    u = rng.uniform(size=200_000)
    laws = [u, -np.log(u), u**0.1, (u > 0.9).astype(float), (1 - u) ** -0.3, rng.normal(size=u.size)]
    for count in (2, 5, 16):
        reached = 0.0
        for law in [*laws, u ** (count - 1)]:
            top = np.sum(np.sort(law) * np.diff(np.linspace(0, 1, law.size + 1) ** count))
            bound = float(ranks.barrier_bound_any(step_mean=law.mean(), step_spread=law.std(), ranks=count))
            assert top <= bound * (1 + 1e-9)
            reached = (top - law.mean()) / (bound - law.mean())
        assert reached == pytest.approx(1, rel=0.01)  # the last law


def test_some_rank_prefills_most_of_the_time():
    rng = np.random.default_rng(13)
    for count in (1, 8, 32):
        any_prefill = (rng.uniform(size=(100_000, count)) < 0.05).any(axis=1)
        ours = float(ranks.some_rank_prefills(chance=0.05, ranks=count))
        assert any_prefill.mean() == pytest.approx(ours, abs=0.005)
        step = np.where(any_prefill, 0.08, 0.02).mean()
        mixed = float(ranks.step_with_prefills(t_step=0.02, t_mix=0.08, chance=0.05, ranks=count))
        assert step == pytest.approx(mixed, rel=0.02)


def test_experts_exchange_their_payload():
    at = dict(tokens=128.0, top_k=8.0, hidden=7168.0)
    payload = 128 * 8 * (7168 + 7168 // 128 * 4)
    assert float(ranks.dispatch_bandwidth(**at, t_exchange=1.0)) == payload
    assert float(ranks.combine_bandwidth(**at, t_exchange=1.0)) == 128 * 8 * 7168 * 2
    assert float(ranks.dispatch_time(**at, exchange_rate=float(payload))) == 1.0
