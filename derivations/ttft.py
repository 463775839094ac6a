"""Time to first token of two pools, of aggregated GPUs, and of parallel layouts."""

from typing import Any

import sympy as sp

from derivations import _layouts
from derivations._cases import decided
from derivations._layouts import FULL, scv, service
from derivations.aggregated import D21, INSIDE, g_worker, load, x, y
from derivations.chunked import chunk
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, value
from derivations.functions import Ratio
from derivations.symbols import g_P, isl, kappa_store, n_chunks, nic, phi, quantity, r_P, t_step
from derivations.units import one

GENERATED = "aggregated"
oo = sp.oo
t_mix = quantity(
    "t_mix", r"t_{\mathrm{mix}}", "s*seq/tok", "time of a step with a prefill chunk in it", 0.06, shown="s"
)
transfer = sp.Symbol("T_x")
work = sp.Symbol("D")

per_token, request = one("tok/seq"), one("req")
wait = load * service * (1 + scv) / (2 * (1 - load))
busy = load * phi

# --- queues -----------------------------------------------------------------------------------------------------------


def _mean_value(d: Derivation) -> list[Any]:
    """An arrival finds lambda W waiting and, when the worker is busy, a residual service: Pollaczek and Khinchine."""
    w = sp.Symbol("w")
    residual = service * (1 + scv) / 2  # E[S^2] / (2 E[S])
    (solved,) = sp.solve(sp.Eq(w, load * w + load * residual), w)
    return [
        sp.simplify(solved - d.formula("queue_wait")),
        sp.simplify(d.formula("queue_wait").subs(scv, 0) - load * service / (2 * (1 - load))),
        sp.simplify(d.formula("queue_wait").subs(scv, 1) - load * service / (1 - load)),
    ]


def _vacations(d: Derivation) -> Any:
    """Decode steps fill all time without prefill: an arrival that finds none meets the rest of a step, t_s/2."""
    w, step = sp.Symbol("w"), t_step
    residual = busy * service * (1 + scv) / 2 + (1 - busy) * step / 2
    (solved,) = sp.solve(sp.Eq(w, busy * w + residual), w)
    return sp.simplify(solved - d.formula("temporal_wait"))


def _ratio(d: Derivation) -> list[Any]:
    """At the same fleet load a prefill worker is loaded u, an aggregated one u phi; the ratio is below 1."""
    apart = d.formula("queue_wait")
    together = apart.subs(load, busy)
    ratio = d.formula("wait_ratio")
    tpot = D21.formula("tpot_temporal") / t_step
    return [
        sp.simplify(together / apart - ratio),
        _above(1 - ratio),
        _above(ratio),
        _above(tpot - 1),
        sp.simplify(d.formula("temporal_wait") - t_step / 2 - together),
        sp.limit(ratio.subs(phi, y / (1 + y)), load, 1),
    ]


def _above(expr: Any) -> bool:
    return bool(sp.factor(sp.simplify(expr.subs(INSIDE))).is_positive)


# --- transfer ---------------------------------------------------------------------------------------------------------


def _in_order(d: Derivation) -> list[Any]:
    """Chunk i is ready at i p and the link takes q for each, in order: the last is through at max(np + q, p + nq).

    By induction f_i = max(f_(i-1), i p) + q; checked for both orders of p and q and n up to 6, then for any n.
    """
    p, q, n = sp.symbols("p q n", positive=True)
    found: list[Any] = []
    cases = ({p: q / (1 + x)}, {p: q}, {p: q * (1 + x)})
    exposed = d.formula("exposed_transfer_chunked").subs({isl: n * r_P * p * g_P, kappa_store: nic * q / (r_P * p)})
    for case in cases:
        for count in range(1, 7):
            done = sp.S.Zero
            for i in range(1, count + 1):
                done = decided(sp.Max(done, i * p).subs(case)) + q
            ours = exposed.subs(n_chunks, n).subs(n, count).subs(case)
            found.append(sp.simplify(decided(sp.simplify(ours)) - (done - count * p.subs(case))))
        previous = decided(sp.Max((n - 1) * p + q, p + (n - 1) * q).subs(n, 2 + y).subs(case))
        whole = decided(sp.Max(n * p + q, p + n * q).subs(n, 2 + y).subs(case))
        found.append(sp.simplify(decided(sp.Max(previous, ((2 + y) * p).subs(case))) + q - whole))
    return found


def _exposed_ends(d: Derivation) -> list[Any]:
    """One chunk: all of it. Ever more: what takes longer than prefill (Splitwise's layers)."""
    whole, chunked = d.formula("exposed_transfer"), d.formula("exposed_transfer_chunked")
    i = sp.Symbol("isl", positive=True)
    found = [sp.simplify(chunked.subs(n_chunks, 1) - whole)]
    for kappa, left in ((nic / (r_P * (1 + x)), 0), (nic * (1 + x) / r_P, i * x / (r_P * g_P))):
        found.append(sp.limit(sp.simplify(chunked.subs({kappa_store: kappa, isl: i})), n_chunks, oo) - left)
    return [*found, sp.simplify(whole * g_P * nic - isl * kappa_store)]


def _sums(d: Derivation) -> list[Any]:
    """Wait, service, what follows: in two pools the transfer and a step, in one the rest of a step and a step."""
    queue = {service: isl / (g_P * r_P), scv: 0}
    apart = d.formula("queue_wait").subs(queue) + isl / (g_P * r_P) + d.formula("exposed_transfer") + t_step
    here = {service: isl / (g_worker * r_P), scv: 0}
    together = d.formula("temporal_wait").subs(here) + isl / (g_worker * r_P) + t_step
    return [
        sp.simplify(apart - d.formula("ttft_disaggregated")),
        sp.simplify(together - d.formula("ttft_temporal")),
    ]


def _whole_steps(d: Derivation) -> list[Any]:
    """k full chunks take k steps, a token more takes one more."""
    k = sp.Symbol("k", integer=True, positive=True)
    steps = d.formula("ttft_chunked") / t_mix
    more = sp.Symbol("more", positive=True)
    return [
        steps.subs(isl, k * chunk) - k,
        [steps.subs({isl: (n + part) * chunk}) - (n + 1) for n in range(4) for part in (sp.Rational(1, 9), 1)],
        sp.limit(steps.subs(isl, more).subs(chunk, 8), more, 0, "+") - 1,
        steps.subs(isl, 0),
    ]


def _faces(d: Derivation) -> list[Any]:
    names = ("queue_wait", "wait_ratio", "temporal_wait", "ttft_pipelined", "ttft_tensor")
    names += ("ttft_disaggregated", "ttft_temporal")
    inside = [sp.simplify((d.formula(n) - d.regular(n)).subs(INSIDE)) for n in names]
    one_u = {load: 1, phi: y / (1 + y)}
    ends = [
        d.regular("wait_ratio").subs(one_u),
        d.regular("wait_ratio").subs({load: 1, phi: 1}) - 1,
        d.regular("wait_ratio").subs({load: x / (1 + x), phi: 1}) - 1,
        d.regular("queue_wait").subs(load, 0),
        [sp.Eq(d.regular(n).subs(load, 1), oo) for n in ("queue_wait", "ttft_pipelined", "ttft_tensor")],
        sp.Eq(d.regular("ttft_disaggregated").subs(load, 1).subs(isl, x), oo),
        sp.Eq(d.regular("temporal_wait").subs({load: 1, phi: 1}), oo),
    ]
    return [*inside, *ends]


ALL_PREFILL = FULL & sp.Eq(phi, 1)


def _tight(what: str) -> Any:
    """1 where the formula says that aggregation is better, 0 where two pools are, at phi = 0.4 and 80 % load."""
    at = {"load": sp.Rational(4, 5), "phi": sp.Rational(2, 5), "t_step": 1}
    if what == "TTFT":
        return lambda d: sp.Integer(bool(value(d.formula("wait_ratio"), at) < 1))
    return lambda d: sp.Integer(bool(value(D21.formula("tpot_temporal"), at) <= 1))


TAICHI = "TaiChi (2508.01989), Llama-2-70B"

D24 = Derivation(
    id="D24",
    name="Time to first token",
    statement="At equal load prompts wait longer in two pools than on aggregated GPUs, by (1 - u phi)/(phi (1 - u)), "
    "because only phi of the workers take prompts; and the transfer comes on top. It is the price of a shorter time "
    "per token.",
    assumptions=(
        "Poisson arrivals split at random over the workers, one first-come queue each (M/G/1), equal workers",
        "prefill of one prompt at a time, without preemption; aggregated workers decode whenever no prompt waits",
        "the decode pool admits at once; it emits the first token",
    ),
    steps=(
        Step("One prompt occupies a prefill worker of g_P GPUs for", isl / (g_P * r_P)),
        Step("A prompt that arrives waits for those before it and for what is left of the one in service", wait),
        Step(
            "An aggregated worker is loaded u phi and, when free, in the middle of a step",
            busy * service * (1 + scv) / (2 * (1 - busy)) + t_step * per_token / 2,
        ),
        Step("Without that half step the ratio of the waits is", phi * (1 - load) / (1 - busy)),
        Step("The transfer of the KV after prefill takes", isl * kappa_store / (g_P * nic)),
        Step(
            "in n chunks, each sent when ready, only this part of it is seen",
            sp.Max(
                isl * kappa_store / nic,
                isl * kappa_store / nic + (n_chunks - 1) * (isl * kappa_store / nic - isl / r_P),
            )
            / (g_P * n_chunks),
        ),
        Step(
            "Over two GPUs a pipeline starts a prompt every D/2, tensor parallelism serves it in D/K: at low load the "
            "shorter service wins, at high load the higher rate"
        ),
    ),
    forms=(
        ClosedForm(
            "queue_wait",
            "W",
            wait,
            "s",
            "Mean wait in front of a worker (M/G/1); scv 0 for equal prompts (M/D/1).",
            (load, service, scv),
            regular=Ratio(load * service * (1 + scv), 2 * (1 - load), oo),
            code_symbol="W",
            conventions=(Convention(FULL, "load = 1 (the queue grows for ever): inf"),),
        ),
        ClosedForm(
            "wait_ratio",
            r"\frac{W_{\mathrm{temp}}}{W_{\mathrm{dis}}}",
            phi * (1 - load) / (1 - busy),
            "1",
            "Wait on aggregated GPUs over that in front of a prefill pool, at equal load, without the half step.",
            (load, phi),
            regular=Ratio(phi * (1 - load), 1 - busy, 1),
            code_symbol="W_temp/W_dis",
            conventions=(Convention(ALL_PREFILL, "load = phi = 1: 1"),),
        ),
        ClosedForm(
            "temporal_wait",
            r"W_{\mathrm{temp}}",
            busy * service * (1 + scv) / (2 * (1 - busy)) + t_step / 2,
            "s",
            "Mean wait of a prompt on aggregated GPUs that decode when no prompt waits.",
            (load, phi, service, scv, t_step),
            regular=Ratio(busy * service * (1 + scv), 2 * (1 - busy), oo) + t_step / 2,
            code_symbol="W_temp",
            dimensional=busy * service * (1 + scv) / (2 * (1 - busy)) + t_step * per_token / 2,
            conventions=(Convention(ALL_PREFILL, "load = phi = 1: inf"),),
        ),
        *_layouts.FORMS,
        ClosedForm(
            "exposed_transfer",
            r"T_x",
            isl * kappa_store / (g_P * nic),
            "s",
            "Transfer of a prompt's KV after prefill: all of it is seen.",
            (isl, kappa_store, nic, g_P),
            code_symbol="T_x",
            dimensional=request * isl * kappa_store / (g_P * nic),
        ),
        ClosedForm(
            "exposed_transfer_chunked",
            r"T_x",
            (isl * kappa_store / nic + (n_chunks - 1) * sp.Max(0, isl * kappa_store / nic - isl / r_P))
            / (g_P * n_chunks),
            "s",
            "What is seen of a transfer in chunks (or layers), each sent as soon as it is computed.",
            (isl, kappa_store, nic, r_P, g_P, n_chunks),
            code_symbol="T_x",
            dimensional=request
            * (isl * kappa_store / nic + (n_chunks - 1) * sp.Max(0, isl * kappa_store / nic - isl / r_P))
            / (g_P * n_chunks),
        ),
        ClosedForm(
            "ttft_disaggregated",
            r"\mathrm{TTFT}_{\mathrm{dis}}",
            work * (1 + load / (2 * (1 - load))) + transfer + t_step,
            "s",
            "Mean time to first token of two pools: wait, prefill, transfer, one step; equal prompts.",
            (load, isl, r_P, g_P, kappa_store, nic, t_step),
            where=((work, isl / (g_P * r_P)), (transfer, isl * kappa_store / (g_P * nic))),
            regular=Ratio(isl * (2 - load), 2 * g_P * r_P * (1 - load), oo) + isl * kappa_store / (g_P * nic) + t_step,
            code_symbol="TTFT",
            dimensional=request * isl / (g_P * r_P) * (1 + load / (2 * (1 - load)))
            + request * isl * kappa_store / (g_P * nic)
            + t_step * per_token,
            conventions=(Convention(FULL, "load = 1: inf"),),
        ),
        ClosedForm(
            "ttft_temporal",
            r"\mathrm{TTFT}_{\mathrm{temp}}",
            work * (1 + busy / (2 * (1 - busy))) + 3 * t_step / 2,
            "s",
            "Mean time to first token of aggregated GPUs: wait, rest of a step, prefill, one step; equal prompts.",
            (load, phi, isl, r_P, g_worker, t_step),
            where=((work, isl / (g_worker * r_P)),),
            regular=Ratio(isl * (2 - busy), 2 * g_worker * r_P * (1 - busy), oo) + 3 * t_step / 2,
            code_symbol="TTFT",
            dimensional=request * isl / (g_worker * r_P) * (1 + busy / (2 * (1 - busy))) + 3 * t_step * per_token / 2,
            conventions=(Convention(ALL_PREFILL, "load = phi = 1: inf"),),
        ),
        ClosedForm(
            "ttft_chunked",
            r"\mathrm{TTFT}_{\mathrm{chunk}}",
            sp.ceiling(isl / chunk) * t_mix,
            "s",
            "Time to first token of chunked prefill without a queue: a mixed step for each chunk.",
            (isl, chunk, t_mix),
            code_symbol="TTFT",
            dimensional=sp.ceiling(isl / chunk * one("req/GPU")) * t_mix * per_token,
            conventions=(Convention(sp.Eq(isl, 0), "isl = 0 (no prompt): 0"),),
            note="Piecewise constant in isl and chunk: their gradient is 0.",
        ),
    ),
    proofs=(
        Proof("mean wait by mean values; M/D/1 and M/M/1 are its cases", _mean_value),
        Proof("steps as vacations add half a step", _vacations),
        Proof("the ratio of the waits, below 1, while the times per token are above", _ratio),
        *_layouts.PROOFS,
        Proof("chunks through a link in order", _in_order),
        Proof("one chunk and infinitely many", _exposed_ends),
        Proof("the times add up", _sums),
        Proof("whole steps of chunked prefill", _whole_steps),
        Proof("the regular forms agree inside and have the right ends", _faces),
    ),
    limits=(
        "One queue a worker. A central queue over all workers (M/D/c) waits far less in both, so the ratio is another.",
        "Random prompts: (1 + scv) multiplies both waits and the ratio stays; batches of prompts are not in it.",
        "A wait for a place in the decode batch comes on top where the stock is above 0 (Q/A).",
    ),
    source="theory, group 5; DistServe, Splitwise, SARATHI; the ratio of the waits is ours",
    published=(
        *_layouts.PUBLISHED,
        *(
            Published(
                f"D24-ratio-{name}",
                "theory, D24: simulated ratio of the waits at phi = 0.4",
                "D",
                simulated,
                "wait_ratio",
                {"load": sp.Rational(u), "phi": sp.Rational(2, 5)},
                rounding=1.5e-3,
            )
            for name, u, simulated in (("half", "0.5", 0.250), ("high", "0.8", 0.119), ("full", "0.95", 0.031))
        ),
        Published(
            "D24-glm",
            "theory, GLM-5.2: 8192 tokens over one 400 Gb/s NIC",
            "D",
            15.6,
            "exposed_transfer",
            {"isl": 8192, "kappa_store": 95_000, "nic": 50 * 10**9, "g_P": 1},
            1000,
            "ms",
            rounding=0.05,
        ),
        Published(
            "TaiChi-ttft",
            f"{TAICHI}: 5 s to first token, 250 ms per token: aggregated 97 %, two pools 42 %",
            "S",
            1.0,
            _tight("TTFT"),
            rounding=0.5,
            reason="which is better only: 1 is aggregated; a secondary account",
        ),
        Published(
            "TaiChi-tpot",
            f"{TAICHI}: 16 s to first token, 60 ms per token: aggregated 7 %, two pools 98 %",
            "S",
            0.0,
            _tight("TPOT"),
            rounding=0.5,
            reason="which is better only: 0 is two pools; a secondary account",
        ),
    ),
)

DERIVATIONS = (D24,)
