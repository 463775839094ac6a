"""Aggregated serving against two pools: time per token, chunked prefill, the split of a GPU, time to first token."""

from typing import Any

import sympy as sp

from derivations.balance import D01
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive
from derivations.functions import Ratio
from derivations.symbols import B, N, isl, osl, phi, quantity, r_P, t_step
from derivations.units import one

oo = sp.oo
load = quantity("load", "u", "1", "load as a share of the largest throughput", 0.6, (0, 1))
g_worker = quantity("g_worker", "g", "GPU", "GPUs of an aggregated worker", 8.0)

# Shares strictly inside (0, 1), with positive symbols: then every sign is known to SymPy.
x, y = sp.symbols("x y", positive=True)
INSIDE = {load: x / (1 + x), phi: y / (1 + y)}
_i, _o = sp.symbols("isl osl", positive=True)
_lengths = {isl: _i, osl: _o}

split = D01.formula("balance_ratio")
per_step = g_worker * B / osl


def _balanced(expr: Any) -> Any:
    """`expr` at full load and at the balance ratio of its inputs, with lengths above 0."""
    return sp.simplify(expr.subs({load: 1, phi: split}, simultaneous=True).subs(_lengths))


def _one_round(d: Derivation) -> list[Any]:
    """While B sequences take their O steps, one GPU must prefill B prompts: a round of both, one after the other."""
    prefilling, decoding = B * _i / r_P, _o * t_step
    whole = prefilling + decoding
    return [
        sp.simplify(N * B / whole - D01.formula("balanced_throughput").subs(_lengths)),
        sp.simplify(prefilling / whole - split.subs(_lengths)),
        sp.simplify(whole / _o - _balanced(d.formula("tpot_temporal"))),
    ]


def _same_output(d: Derivation) -> list[Any]:
    """Tokens per second: of all sequences at the longer time per token, and of the decode pool's alone."""
    output = _balanced(d.formula("output_rate"))
    resident = N * B / d.formula("tpot_temporal")
    return [
        sp.simplify(_o * D01.formula("balanced_throughput").subs(_lengths) - output),
        sp.simplify(resident.subs(load, 1) - d.formula("output_rate")),
        sp.simplify(((1 - phi) * N) * B / t_step - d.formula("output_rate")),
    ]


def _mean_gap(d: Derivation) -> list[Any]:
    """A gap is a bare step, or a step and a prefill with chance m: the mean is the time per token, whatever g."""
    m, stalled = d.formula("prefills_per_step"), d.formula("stalled_step")
    k, mean = sp.Symbol("k", integer=True, nonnegative=True), sp.Symbol("m", positive=True)
    poisson = sp.summation(k * sp.exp(-mean) * mean**k / sp.factorial(k), (k, 0, oo))
    return [
        _balanced((1 - m) * t_step + m * stalled - d.formula("tpot_temporal")),
        sp.simplify(poisson - mean),  # any number of prefills in a gap: the same mean
    ]


def _below_full_load(d: Derivation) -> Any:
    """At load u prefill takes X t_P of the time; steps fill the rest."""
    requests = load * D01.formula("balanced_throughput") / N
    stepping = t_step / d.formula("tpot_temporal").subs(phi, split)
    return sp.simplify((stepping - (1 - requests * isl / r_P)).subs(_lengths))


def _tail(d: Derivation) -> list[Any]:
    """The 99th percentile: with one prefill a gap at most it is a stalled step as soon as m > 1 %; with random
    completions the number of prefills in a gap is Poisson, and its percentile steps up where each tail meets 1 %."""
    m = sp.Symbol("m", positive=True)
    chance = d.formula("stall_chance").subs(osl, g_worker * B / m)
    one_percent = sp.Rational(1, 100)
    beyond = [chance, *(1 - sp.exp(-m) * sum(m**j / sp.factorial(j) for j in range(n + 1)) for n in (1, 2))]
    roots = [sp.Rational("0.01005"), sp.Rational("0.1486"), sp.Rational("0.4360")]
    half_digit = [sp.Rational("5e-6"), sp.Rational("5e-5"), sp.Rational("1e-4")]
    found: list[Any] = [sp.simplify(sp.solve(sp.Eq(chance, one_percent), m)[0] + sp.log(1 - one_percent))]
    for tail, root, digit in zip(beyond, roots, half_digit, strict=True):
        found.append(sp.simplify(sp.diff(tail, m)).is_positive)  # so each is met once
        found.append(bool(sp.N(tail.subs(m, root - digit)) < one_percent < sp.N(tail.subs(m, root + digit))))
    three = 1 - sp.exp(-m) * sum(m**j / sp.factorial(j) for j in range(4))
    return [*found, bool(sp.N(three.subs(m, sp.Rational(1, 2))) < one_percent < sp.N(beyond[2].subs(m, 0.5)))]


def _chance(d: Derivation) -> list[Any]:
    """No prefill in a gap has the Poisson chance of none; at small m it is the at-most-one rule."""
    m = sp.Symbol("m", positive=True)
    chance = d.formula("stall_chance").subs(osl, g_worker * B / m)
    return [sp.simplify(1 - chance - sp.exp(-m)), sp.limit(chance / m, m, 0) - 1]


def _faces(d: Derivation) -> list[Any]:
    at = positive(per_step)
    return [
        sp.simplify((d.formula("tpot_temporal") - d.regular("tpot_temporal")).subs(INSIDE)),
        positive(d.regular("prefills_per_step")) - at,
        positive(d.regular("stall_chance")) - (1 - sp.exp(-at)),
        d.regular("tpot_temporal").subs({load: 1, phi: y / (1 + y)}) - t_step * (1 + y),
        sp.Eq(d.regular("tpot_temporal").subs({load: 1, phi: 1}), oo),
        sp.Eq(d.regular("prefills_per_step").subs(osl, 0), oo),
        d.regular("stall_chance").subs(osl, 0) - 1,
    ]


NO_OUTPUT = sp.Eq(osl, 0)

D21 = Derivation(
    id="D21",
    name="Temporal aggregation",
    statement="GPUs that alternate between prefill and decode complete as many requests as two balanced pools; their "
    "time per token is longer by 1/(1 - phi), and its tail is a whole prefill as soon as one step in a hundred meets "
    "one.",
    assumptions=(
        "same r_P, batch and step time in both; phases one after the other, no mixed steps",
        "saturated where the load is 1: each GPU has B sequences resident and completes B/O a step",
        "at a load below 1, t_step is that of the batch then running and decoding never pauses",
    ),
    steps=(
        Step("In the time in which B sequences take O steps each, B prompts are prefilled", B * isl / r_P),
        Step("so of the time prefill takes the share", split),
        Step("and the time per output token is", t_step / (1 - phi)),
        Step(
            "All N B sequences at that time give as many tokens as the decode pool's alone", (1 - phi) * N * B / t_step
        ),
        Step("The extra phi N B sequences wait while their GPU prefills: their KV is idle (D22)", phi * N * B),
        Step("Below full load prefill takes u phi of the time", t_step / (1 - load * phi)),
        Step("A worker of g GPUs starts this many prefills a step", per_step, checked=False),
        Step("each of which stops the step that follows by", isl / (g_worker * r_P)),
        Step(
            "With any number of prefills in a gap and random completions the number is Poisson: the 99th percentile "
            "holds one prefill for 0.01005 < m <= 0.1486, two up to 0.436, three at m = 1/2."
        ),
    ),
    forms=(
        ClosedForm(
            "tpot_temporal",
            r"\mathrm{TPOT}",
            t_step / (1 - load * phi),
            "s*seq/tok",
            "Mean time per output token of aggregated GPUs at a load; two pools have t_step.",
            (t_step, load, phi),
            regular=Ratio(t_step, 1 - load * phi, oo),
            shown="s",
            code_symbol="TPOT",
            conventions=(Convention(sp.Eq(load, 1) & sp.Eq(phi, 1), "load = phi = 1 (prefill takes all): inf"),),
        ),
        ClosedForm(
            "output_rate",
            "X O",
            (1 - phi) * N * B / t_step,
            "tok/s",
            "Output tokens per second of a saturated fleet, aggregated or in two balanced pools.",
            (N, phi, B, t_step),
            code_symbol="X*O",
        ),
        ClosedForm(
            "prefills_per_step",
            "m",
            per_step,
            "1",
            "Prefills that an aggregated worker starts per decode step, on the average.",
            (B, osl, g_worker),
            regular=Ratio(g_worker * B, osl, oo),
            code_symbol="m",
            dimensional=per_step * one("tok/seq^2"),
            conventions=(Convention(NO_OUTPUT, "osl = 0 (nothing to decode): inf"),),
        ),
        ClosedForm(
            "stalled_step",
            r"\mathrm{TBT}_{0.99}",
            t_step + isl / (g_worker * r_P),
            "s",
            "Time between two tokens with one prefill in it: the 99th percentile where 1 % < m <= 1.",
            (t_step, isl, r_P, g_worker),
            code_symbol="TBT",
            dimensional=t_step * one("tok/seq") + one("req") * isl / (g_worker * r_P),
        ),
        ClosedForm(
            "stall_chance",
            r"\Pr(K > 0)",
            1 - sp.exp(-per_step),
            "1",
            "Chance that a gap between two tokens holds a prefill, with random completions.",
            (B, osl, g_worker),
            regular=1 - sp.exp(-Ratio(g_worker * B, osl, oo)),
            code_symbol="Pr(K > 0)",
            dimensional=1 - sp.exp(-per_step * one("tok/seq^2")),
            conventions=(Convention(NO_OUTPUT, "osl = 0 (nothing to decode): 1"),),
        ),
    ),
    proofs=(
        Proof("a round of prefill and decode gives throughput, share and time per token", _one_round),
        Proof("the output is that of the decode pool", _same_output),
        Proof("steps and stalls average to the time per token", _mean_gap),
        Proof("below full load prefill takes u phi of the time", _below_full_load),
        Proof("the chance of a stall is the Poisson one, m where it is small", _chance),
        Proof("the 99th percentile steps up at 1.005 %, 14.86 % and 43.6 %", _tail),
        Proof("the regular forms agree inside and have the right ends", _faces),
    ),
    limits=(
        "Mixed steps hide part of the prefill behind the weights' traffic: D23.",
        "At most one prefill in a gap needs g B <= O; otherwise the percentile is that of the Poisson number.",
        "Equal batches: two pools have room for a larger one (D22).",
    ),
    source="theory, group 5; the article's temporal aggregation",
    published=(
        Published(
            "D21-threshold",
            "theory, D21: m above which the 99th percentile of a Poisson number is 1",
            "D",
            0.01005,
            lambda d: (
                -sp.log(1 - sp.Rational(1, 100)) * d.formula("prefills_per_step").subs({B: 1, g_worker: 1, osl: 1})
            ),
            rounding=5e-6,
        ),
    ),
)

DERIVATIONS = (D21,)
