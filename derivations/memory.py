"""Memory: HBM that aggregation leaves idle, and the KV that lies in two places while it moves."""

from typing import Any

import sympy as sp

from derivations.aggregated import D21, load
from derivations.balance import D01
from derivations.core import ClosedForm, Derivation, Proof, Published, Step, value
from derivations.symbols import (
    A_D,
    A_P,
    B,
    H,
    N,
    W,
    g_P,
    isl,
    kappa_store,
    n_chunks,
    nic,
    osl,
    phi,
    quantity,
    r_P,
    t_step,
    t_step_a,
    t_step_b,
    t_step_c,
    theta_ctx,
)
from derivations.units import one

oo = sp.oo
GIB = 2**30
GB = 10**9
kv_space = quantity("kv_space", "K", "B/GPU", "KV space of an aggregated GPU, H - W - A_P", 51e9)
freed = quantity(
    "freed", r"\Delta\mathcal{A}", "B/GPU", "activation space that a decode GPU saves", 1.1e10, "nonnegative"
)
batch_factor = quantity(
    "batch_factor", r"\beta", "1", "batch of a decode GPU over that of an aggregated one", 1.25, (1, oo)
)
lease = quantity("lease", "w", "s", "time for which finished KV is held on the prefill side", 30.0, "nonnegative")

x, y, z = sp.symbols("x y z", positive=True)
request = one("req")

# --- D22 --------------------------------------------------------------------------------------------------------------

step = t_step_a + t_step_b * B + t_step_c * B * theta_ctx
larger = t_step_a + batch_factor * (t_step_b * B + t_step_c * B * theta_ctx)


def _little(d: Derivation) -> list[Any]:
    """Requests per second times the time that each decodes: all sequences in the one fleet, the decode pool's in the
    other; the difference is what waits while its GPU prefills."""
    i, o = sp.symbols("isl osl", positive=True)
    lengths = {isl: i, osl: o}
    share = D01.formula("balance_ratio").subs(lengths)
    rate = D01.formula("balanced_throughput").subs(lengths)
    together = rate * o * D21.formula("tpot_temporal").subs({load: 1, phi: share})
    apart = rate * o * t_step
    idle = d.formula("idle_kv").subs(phi, share)
    return [
        sp.simplify(together - N * B),
        sp.simplify(apart - d.formula("sequences_in_decode").subs(phi, share)),
        sp.simplify((together - apart) * kappa_store * theta_ctx - idle),
        sp.simplify(share * N * (B * kappa_store * theta_ctx) - idle),  # phi N whole KV spaces: nothing is created
    ]


def _space(d: Derivation) -> list[Any]:
    """The batch fills the space: H - W - A_P on an aggregated GPU, A_P - A_D more on a decode GPU."""
    gain = d.formula("batch_gain").subs({kv_space: H - W - A_P, freed: A_P - A_D})
    batches = [(H - W - a) / (kappa_store * x) for a in (A_D, A_P)]
    return [sp.simplify(gain - batches[0] / batches[1]), sp.diff(d.formula("batch_gain"), freed).is_positive]


def _decode_rate(d: Derivation) -> list[Any]:
    """B/t_step with the larger batch over that without: above 1, below the batch factor, and growing with it."""
    per_second = B / step
    gain = d.formula("decode_gain")
    theta = sp.Symbol("theta_ctx", positive=True)
    above = gain.subs({theta_ctx: theta, batch_factor: 1 + z})
    return [
        sp.simplify(per_second.subs(B, batch_factor * B) / per_second - gain),
        sp.factor(above - 1).is_positive,
        sp.factor(1 + z - above).is_positive,
        sp.factor(sp.diff(above, z)).is_positive,
        sp.simplify(sp.limit(above, z, oo) - (1 + t_step_a / (t_step_b * B + t_step_c * B * theta))),
        gain.subs(batch_factor, 1) - 1,
    ]


V14 = "the article's author, measured with vLLM on V4-Flash: prefill chunk 8192 to 2048"

D22 = Derivation(
    id="D22",
    name="HBM accounting",
    statement="Two pools decode with fewer resident sequences and the same output: the KV that they free was idle on "
    "aggregated GPUs. What they gain in memory is the activation space of prefill, on decode GPUs only.",
    assumptions=(
        "those of D21 at full load; KV that fills what weights and activations leave",
        "the step grows with batch and context as in D07",
    ),
    steps=(
        Step("Aggregated, by Little's law with the longer time per token, in flight are", N * B),
        Step("and in two pools", (1 - phi) * N * B),
        Step("for the same output; the difference holds KV of", phi * N * B * kappa_store * theta_ctx),
        Step("which is the whole KV space of the phi N GPUs that now prefill: room for the buffer (D32)", kv_space),
        Step("A decode GPU needs the smaller activation reservation, which leaves more room for KV by", A_P - A_D),
        Step("Its batch grows in proportion, its rate less", batch_factor * step / larger),
    ),
    forms=(
        ClosedForm(
            "sequences_in_decode",
            "n",
            (1 - phi) * N * B,
            "seq",
            "Sequences in flight in the decode pool; aggregated GPUs hold N B for the same output.",
            (N, phi, B),
            code_symbol="n",
        ),
        ClosedForm(
            "idle_kv",
            r"\mathrm{idle}",
            phi * N * B * kappa_store * theta_ctx,
            "B",
            "KV bytes of aggregated GPUs that wait, at any time, while their GPU prefills.",
            (N, phi, B, kappa_store, theta_ctx),
            code_symbol="idle",
        ),
        ClosedForm(
            "batch_gain",
            r"\frac{B_{\mathrm{dis}}}{B_{\mathrm{agg}}}",
            (kv_space + freed) / kv_space,
            "1",
            "Batch of a decode GPU over that of an aggregated one, by the activation space it saves.",
            (kv_space, freed),
            code_symbol="B_dis/B_agg",
        ),
        ClosedForm(
            "decode_gain",
            r"\frac{X_D'}{X_D}",
            batch_factor * step / larger,
            "1",
            "Decode rate with a larger batch over that without.",
            (t_step_a, t_step_b, t_step_c, theta_ctx, B, batch_factor),
            code_symbol="X_D'/X_D",
        ),
    ),
    proofs=(
        Proof("Little's law on both sides; the difference is phi N KV spaces", _little),
        Proof("the batch fills what weights and activations leave", _space),
        Proof("the rate grows with the batch, by less than the batch", _decode_rate),
    ),
    limits=(
        "KV of prompts in prefill lies in the freed space, and KV on the way in two places (D25).",
        "Wider expert parallelism changes W as well: compare at equal W.",
    ),
    source="theory, group 5; 'effective output is equal, idle HBM already existed' of the article",
    published=(
        Published(
            "V14",
            f"{V14}: KV pool 48 to 60 GiB, batch gain",
            "P",
            1.25,
            "batch_gain",
            {"kv_space": 48 * GIB, "freed": 12 * GIB},
            rounding=5e-3,
        ),
        Published(
            "V14-activation",
            f"{V14}: KV pool that 15.8 - 5.7 GiB of activations leave",
            "P",
            60.0,
            lambda d: 48 * value(d.formula("batch_gain"), {"kv_space": 48, "freed": sp.Rational("10.1")}),
            unit="GiB",
            rounding=0.5,
            expected="miss",
            reason="peak activation accounts for 10.1 of the 12 GiB; the rest is not broken down",
        ),
    ),
)

# --- D25 --------------------------------------------------------------------------------------------------------------

prompt = kappa_store * isl
duration = isl / (g_P * r_P)
moving = isl * kappa_store / (g_P * nic)
margin = nic / (r_P * kappa_store)
rate_in = load * g_P * r_P / isl  # requests per second of a worker


def _reserved(d: Derivation) -> list[Any]:
    """Little: requests per second of a worker, times the time of a transfer, times its bytes; per GPU. Written on the
    decode side grows linearly in that time: half on the average."""
    i, s = sp.Symbol("isl", positive=True), sp.Symbol("s", positive=True)
    at = {isl: i}
    held = (rate_in * moving * prompt / g_P).subs(at)
    written = sp.integrate(rate_in * prompt * s / moving, (s, 0, moving)).subs(at) / g_P
    return [
        sp.simplify(held - d.formula("reserved_duplicate").subs(at)),
        sp.simplify(written - held / 2),
    ]


def _chunks_kept(d: Derivation) -> list[Any]:
    """Chunk i is through 1/n of the prefill after the next one ends, and stays until the last: (n - i)/n of it."""
    i, n = sp.symbols("i n", integer=True, positive=True)
    length = sp.Symbol("isl", positive=True)
    kept = sp.summation((prompt / n) * ((n - i) / n * duration), (i, 1, n))
    per_gpu = (rate_in * kept / g_P).subs(isl, length)
    return [
        sp.simplify(per_gpu - d.formula("written_duplicate").subs({isl: length, n_chunks: n})),
        sp.simplify(sp.summation(i * isl / n * duration / n, (i, 1, n - 1)) * kappa_store - kept),
        d.formula("written_duplicate").subs(n_chunks, 1),
    ]


def _compared(d: Derivation) -> list[Any]:
    i = sp.Symbol("isl", positive=True)
    u = sp.Symbol("load", positive=True)
    at = {isl: i, load: u}
    ratio = (d.formula("written_duplicate") / d.formula("reserved_duplicate")).subs(at)
    return [
        sp.simplify(ratio - d.formula("duplication_ratio")),
        sp.limit(d.formula("duplication_ratio"), n_chunks, oo) - margin / 2,
        d.formula("duplication_ratio").subs(n_chunks, 1),
    ]


def _saved(d: Derivation) -> list[Any]:
    """With a margin of at least 1 only the last chunk's transfer is seen: the others are saved (D24)."""
    last = moving / n_chunks
    return [sp.simplify(moving - last - d.formula("transfer_saved")), d.formula("transfer_saved").subs(n_chunks, 1)]


def _squared_lengths(d: Derivation) -> list[Any]:
    """Both windows grow with I^2 per request, so random lengths enter by their token-weighted mean E[I^2]/E[I]."""
    i, k = sp.symbols("isl k", positive=True)
    found = []
    for name in ("reserved_duplicate", "written_duplicate"):
        per_request = d.formula(name).subs(isl, i) * i  # a GPU does u r_P / I requests a second
        found.append(sp.simplify(per_request.subs(i, k * i) - k**2 * per_request))
    return found


def _lease_held(d: Derivation) -> list[Any]:
    """All that a busy GPU finishes in the time of a lease, if nobody fetches it."""
    s = sp.Symbol("s", nonnegative=True)
    return [sp.simplify(sp.integrate(r_P * kappa_store, (s, 0, lease)) - d.formula("held_on_prefill"))]


GLM = "theory, D25, GLM-5.2 per prefill GPU at full rate"
GLM_AT = {"r_P": 56_250, "kappa_store": 95_000, "nic": 50 * GB, "g_P": 1, "load": 1}

D25 = Derivation(
    id="D25",
    name="Duplicated KV",
    statement="KV lies in two places while it moves. After prefill (NIXL) a prompt's bytes are reserved twice for the "
    "time of its transfer; in chunks (Mooncake) each chunk stays on the prefill side until the last is through: half "
    "the link margin times more, in exchange for a transfer that is hidden. And a lease is a statement of capacity.",
    assumptions=(
        "no cached prefix; prompts of equal length, one at a time on a prefill worker at a given load",
        "a link margin of at least 1: a chunk is through before the next is computed",
        "the prefill side keeps what it sent until the request's last chunk has landed",
    ),
    steps=(
        Step("A worker finishes requests at", rate_in),
        Step("After prefill the transfer of one takes", moving),
        Step("and reserves on the decode side, per prefill GPU", load * r_P * kappa_store * moving),
        Step("of which half is written, on the average"),
        Step(
            "In chunks, chunk i waits on the prefill side for the rest of the prefill",
            sp.Sum(prompt / n_chunks * duration * sp.Symbol("i") / n_chunks, (sp.Symbol("i"), 1, n_chunks - 1)),
            checked=False,
        ),
        Step("which adds up to, per prefill GPU", load * prompt * (n_chunks - 1) / (2 * n_chunks * g_P)),
        Step("The ratio is half the link margin", margin / 2),
        Step("Finished KV that nobody fetches piles up for the time of a lease", r_P * kappa_store * lease),
    ),
    forms=(
        ClosedForm(
            "reserved_duplicate",
            r"\mathrm{reserved}",
            load * r_P * kappa_store * moving,
            "B/GPU",
            "Bytes reserved on the decode side for transfers in flight, per prefill GPU; half of them are written.",
            (load, r_P, kappa_store, isl, nic, g_P),
            code_symbol="reserved",
            dimensional=request * load * r_P * kappa_store * moving,
        ),
        ClosedForm(
            "written_duplicate",
            r"\mathrm{written}",
            load * prompt * (n_chunks - 1) / (2 * n_chunks * g_P),
            "B/GPU",
            "Bytes of chunks already sent that the prefill side keeps, per prefill GPU.",
            (load, kappa_store, isl, g_P, n_chunks),
            code_symbol="written",
            dimensional=request * load * prompt * (n_chunks - 1) / (2 * n_chunks * g_P),
        ),
        ClosedForm(
            "duplication_ratio",
            r"\frac{\mathrm{written}}{\mathrm{reserved}}",
            margin / 2 * (n_chunks - 1) / n_chunks,
            "1",
            "KV that chunk-wise transfer keeps twice over what transfer after prefill reserves twice.",
            (r_P, kappa_store, nic, n_chunks),
            code_symbol="written/reserved",
            note="Against what is written twice, not reserved, it is double.",
        ),
        ClosedForm(
            "transfer_saved",
            r"\Delta\mathrm{TTFT}",
            moving * (n_chunks - 1) / n_chunks,
            "s",
            "Time to first token that chunk-wise transfer saves.",
            (isl, kappa_store, nic, g_P, n_chunks),
            code_symbol="saved",
            dimensional=request * moving * (n_chunks - 1) / n_chunks,
        ),
        ClosedForm(
            "held_on_prefill",
            "C_w",
            r_P * kappa_store * lease,
            "B/GPU",
            "Bytes that a busy prefill GPU holds when what it finishes is fetched after the lease, or never.",
            (r_P, kappa_store, lease),
            code_symbol="C_w",
        ),
    ),
    proofs=(
        Proof("reserved: Little's law with the time of a transfer; half is written", _reserved),
        Proof("written: the sum over the chunks", _chunks_kept),
        Proof("the ratio is half the link margin, for many chunks", _compared),
        Proof("all but the last chunk's transfer is saved", _saved),
        Proof("both grow with the square of a prompt's length", _squared_lengths),
        Proof("a lease holds what is finished in it", _lease_held),
    ),
    limits=(
        "Random lengths: read isl as E[I^2]/E[I], 1.9 times the mean in the Azure traces.",
        "With a margin below 1 the link paces the chunks and replaces r_P in the chunk-wise window.",
        "vLLM/NIXL leases: 30 s at first, a heartbeat every 5 s extends by 20 s; the older single timeout is 480 s.",
        "KV that waits for admission is held on the prefill side besides: the same product with that wait.",
    ),
    source="theory, group 5; vLLM/NIXL, SGLang/Mooncake",
    published=(
        *(
            Published(
                f"D25-reserved-{tokens}",
                f"{GLM}: {tokens} tokens after prefill",
                "D",
                gigabytes,
                "reserved_duplicate",
                GLM_AT | {"isl": length},
                sp.Rational(1, GB),
                "GB",
                rounding=half,
            )
            for tokens, length, gigabytes, half in (
                ("8K", 8192, 0.083, 5e-4),
                ("64K", 65_536, 0.665, 1e-3),
                ("195K", 195_000, 1.98, 5e-3),
            )
        ),
        *(
            Published(
                f"D25-written-{tokens}",
                f"{GLM}: {tokens} tokens in many chunks",
                "D",
                gigabytes,
                lambda d, n=length: sp.limit(
                    d.formula("written_duplicate").subs({load: 1, kappa_store: 95_000, isl: n, g_P: 1}), n_chunks, oo
                ),
                scale=sp.Rational(1, GB),
                unit="GB",
                rounding=half,
            )
            for tokens, length, gigabytes, half in (
                ("8K", 8192, 0.389, 5e-4),
                ("64K", 65_536, 3.11, 5e-3),
                ("195K", 195_000, 9.26, 5e-3),
            )
        ),
        *(
            Published(
                f"D25-lease-{seconds}s",
                f"theory, vLLM/NIXL: GLM-5.2, KV held for {seconds} s",
                "D",
                gigabytes,
                "held_on_prefill",
                {"r_P": 56_250, "kappa_store": 95_000, "lease": seconds},
                sp.Rational(1, GB),
                "GB",
                rounding=half,
            )
            for seconds, gigabytes, half in ((1, 5.34, 5e-3), (30, 160.0, 0.5), (480, 2565.0, 0.5))
        ),
    ),
)

DERIVATIONS = (D22, D25)
