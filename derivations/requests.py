"""Requests: caching, speculation and the law of the lengths, prices and classes, and the batch."""

from typing import Any

import sympy as sp

from derivations._cases import nonnegative
from derivations._traces import AZURE_CODE, AZURE_CONV, MOMENTS, MOONCAKE_CONV, MOONCAKE_SYNTHETIC
from derivations.core import (
    ClosedForm,
    Convention,
    Derivation,
    Proof,
    Published,
    Step,
    both_faces_agree,
    positive,
    value,
)
from derivations.functions import Ratio
from derivations.symbols import (
    B,
    accept,
    hit,
    isl,
    isl_osl,
    osl,
    osl_sq,
    r_0,
    r_P,
    s_0,
    t_D,
    t_P,
    t_step,
    theta_ctx,
)
from derivations.units import one

oo = sp.oo
half = sp.Rational(1, 2)
token = one("tok/req")

# Strictly between 0 and 1 for every x > 0.
x, y = sp.symbols("x y", positive=True)
below_one = x / (1 + x)

# --- D04 ------------------------------------------------------------------------------------------------------------

_cached_input = accept * B * (1 - hit) * isl
_cached = _cached_input / (_cached_input + r_P * t_step * osl)
prefill_cached = (1 - hit) * isl / r_0 + (1 - hit**2) * isl**2 / s_0


def _cached_solved(d: Derivation) -> list[Any]:
    share = sp.Symbol("share")
    works = (1 - hit) * isl / r_P, osl * t_step / (accept * B)
    solved = sp.solve(positive(sp.Eq(share * works[1], (1 - share) * works[0])), share)
    return [solution - positive(d.formula("balance_ratio_cached")) for solution in solved]


def _cached_odds(d: Derivation) -> list[Any]:
    ratio, plain_odds = d.formula("balance_ratio_cached"), B * isl / (r_P * t_step * osl)
    return [
        sp.simplify(ratio / (1 - ratio) - plain_odds * d.formula("odds_factor")),
        sp.simplify(ratio.subs({hit: 0, accept: 1}) - B * isl / (B * isl + r_P * t_step * osl)),
        sp.limit(positive(ratio), sp.Symbol("hit", positive=True), 1),
        d.formula("odds_factor").subs(hit, 1),
    ]


def _logs_add(d: Derivation) -> Any:
    left = sp.Symbol("left", positive=True)  # 1 - h
    factor = d.formula("odds_factor").subs(hit, 1 - left)
    return sp.expand_log(sp.log(factor), force=True) - sp.log(accept) - sp.log(left)


def _attention_summed(d: Derivation) -> list[Any]:
    """Token number n costs 1/r_0 and attends n earlier ones; the cached ones are attended but not computed."""
    n = sp.Symbol("n", positive=True)
    work = sp.integrate(1 / r_0 + 2 * n / s_0, (n, hit * isl, isl))
    return [sp.expand(work - d.formula("prefill_work_cached"))]


def _saves_less(d: Derivation) -> list[Any]:
    """The work left is the linear share 1 - h and h (1 - h) of the attention besides."""
    work = d.formula("prefill_work_cached")
    more = work - (1 - hit) * work.subs(hit, 0)
    return [
        sp.expand(more - hit * (1 - hit) * isl**2 / s_0),
        nonnegative(positive(more.subs(hit, below_one))),
        sp.expand(work.subs(hit, 0) - isl / r_0 - isl**2 / s_0),
        work.subs(hit, 1),
    ]


def _not_of_means(d: Derivation) -> Any:
    """Prompts of 1 (nothing cached) and 3 (two cached): half of the tokens are cached, yet means mislead."""
    attention = sp.expand(d.formula("prefill_work_cached")).coeff(1 / s_0)
    right = (attention.subs({isl: 1, hit: 0}) + attention.subs({isl: 3, hit: sp.Rational(2, 3)})) / 2
    of_means = attention.subs(hit, half).subs(isl, sp.sqrt(sp.Rational(1 + 9, 2)))
    return [right - 3, of_means - sp.Rational(15, 4)]


D04 = Derivation(
    id="D04",
    name="Cache hits and speculation",
    statement="A hit rate h of the prefill side and alpha tokens committed per step multiply the odds of the balance "
    "ratio by alpha (1 - h). With quadratic attention cached tokens are still attended, and a hit rate saves less.",
    assumptions=(
        "those of D01",
        "h is the token-weighted hit rate, E[h I] / E[I]; a cached token is not computed",
        "t_step is the verify step, which commits alpha tokens per sequence",
    ),
    steps=(
        Step("A request now takes of a prefill GPU", sp.Eq(t_P, (1 - hit) * isl / r_P)),
        Step("and of a decode GPU", sp.Eq(t_D, osl * t_step / (accept * B))),
        Step("so the odds change by the factor", accept * (1 - hit)),
        Step("and the log-odds by", sp.log(accept) + sp.log(1 - hit)),
        Step("Attention: the tokens from h I to I each attend all before them", sp.Eq(t_P, prefill_cached)),
    ),
    forms=(
        ClosedForm(
            "balance_ratio_cached",
            r"\phi",
            _cached,
            "1",
            "Balance ratio with a hit rate of the prefill side and speculative decoding.",
            (B, isl, osl, r_P, t_step, hit, accept),
            regular=Ratio(_cached_input, _cached_input + r_P * t_step * osl),
            code_symbol="phi",
            conventions=(
                Convention((sp.Eq(isl, 0) | sp.Eq(hit, 1)) & sp.Eq(osl, 0), "nothing to compute and osl = 0: 0"),
            ),
        ),
        ClosedForm(
            "odds_factor",
            r"\frac{\phi / (1 - \phi)}{\phi_0 / (1 - \phi_0)}",
            accept * (1 - hit),
            "1",
            "Factor on the odds of the balance ratio, by caching and speculation.",
            (hit, accept),
            code_symbol="factor",
        ),
        ClosedForm(
            "prefill_work_cached",
            "t_P",
            prefill_cached,
            "GPU*s/req",
            "Prefill work of one request whose first h I tokens are cached, with quadratic attention.",
            (isl, hit, r_0, s_0),
            code_symbol="t_P",
            note="For many requests average (1 - h^2) I^2 over them: it is not a function of the means of h and I.",
        ),
    ),
    proofs=(
        Proof("solving the balance with both works gives the ratio", _cached_solved),
        Proof("the odds change by alpha (1 - h); all cached gives 0, none and alpha = 1 gives D01", _cached_odds),
        Proof("the log-odds gains ln alpha + ln(1 - h)", _logs_add),
        Proof("the work of the computed tokens, summed", _attention_summed),
        Proof("with attention a hit rate h saves less than h of the work", _saves_less),
        Proof("means of h and I do not give the mean work (a counter-example)", _not_of_means),
        both_faces_agree("balance_ratio_cached", "odds_factor", "prefill_work_cached"),
    ),
    limits=(
        "B and t_step are held fixed; a cache that frees HBM changes B (D07).",
        "alpha depends on the batch where the verify step becomes compute bound.",
        "The KV of cached tokens must still move unless the decode side has it (D12).",
    ),
    source="theory, group 1",
    published=(
        Published(
            "V22-hit",
            "Mooncake FAST'25 conversation trace: share of prefix blocks seen before, infinite cache",
            "D",
            0.366,
            lambda d: 1 - value(d.formula("odds_factor"), {"hit": sp.Rational(MOONCAKE_CONV.hit), "accept": 1}),
            rounding=5e-4,
        ),
        Published(
            "D04-hits",
            "Anyscale, MI325X: best P:D 2:1 without hits, 1:2 at a hit rate of 80 % (odds 0.5)",
            "S",
            0.5,
            lambda d: 2 * value(d.formula("odds_factor"), {"hit": sp.Rational(4, 5), "accept": 1}),
            tolerance=0.25,
            reason="a secondary account, and the two ratios are of different workloads",
        ),
    ),
)

# --- D05 ------------------------------------------------------------------------------------------------------------

_pairs = (osl_sq - osl) / 2
_first_by_prefill = (isl_osl - isl + _pairs) / (osl - 1)


def _law(d: Derivation, form: str, first: int) -> list[Any]:
    """Any law of (I, O) with three atoms: contexts summed step by step, over the number of steps."""
    weights = sp.symbols("w:3", positive=True)
    inputs = sp.symbols("i:3", positive=True)
    outputs, j = (1, 3, 6), sp.Symbol("j", integer=True)
    total = sum(weights)
    seen = sum(w * sum(i + k for k in range(first, o)) for w, i, o in zip(weights, inputs, outputs, strict=True))
    steps = sum(w * (o - first) for w, o in zip(weights, outputs, strict=True))
    moments = {
        isl: sum(w * i for w, i in zip(weights, inputs, strict=True)) / total,
        osl: sum(w * o for w, o in zip(weights, outputs, strict=True)) / total,
        osl_sq: sum(w * o**2 for w, o in zip(weights, outputs, strict=True)) / total,
        isl_osl: sum(w * i * o for w, i, o in zip(weights, inputs, outputs, strict=True)) / total,
    }
    o, i = sp.symbols("o i", positive=True, integer=True)
    summed = sp.summation(i + j, (j, first, o - 1))
    return [
        sp.simplify(seen / steps - d.formula(form).subs(moments, simultaneous=True)),
        sp.expand(summed - (o - first) * i - o * (o - 1) / 2),
    ]


def _uncorrelated(d: Derivation) -> list[Any]:
    """Without correlation the general formula becomes the simple one; in general the covariance over O adds."""
    covariance = sp.Symbol("covariance", real=True)
    general = d.formula("mean_context").subs(isl_osl, isl * osl + covariance)
    return [positive(general - d.formula("mean_context_uncorrelated")) - covariance / sp.Symbol("osl", positive=True)]


def _geometric(d: Derivation) -> list[Any]:
    """P(O = k) = p (1 - p)^(k - 1): moments by the generating function, p = 1/(1 + x)."""
    p, z = 1 / (1 + x), sp.Symbol("z")
    generating = p * z / (1 - (1 - p) * z)
    mean = sp.simplify(sp.diff(generating, z).subs(z, 1))
    square = sp.simplify(sp.diff(generating, z, 2).subs(z, 1) + mean)
    i = sp.Symbol("isl", positive=True)
    at = {osl: mean, osl_sq: square, isl_osl: i * mean, isl: i}
    theta = sp.simplify(d.formula("mean_context_uncorrelated").subs(at))
    return [
        sp.simplify(theta - i - (1 - p) / p),
        sp.simplify(theta - d.formula("mean_context_geometric").subs(at)),
        sp.simplify(square - (2 - p) / p**2),
        sp.simplify(d.formula("mean_context_prefill_first").subs(at) - i - 1 / p),
    ]


def _fixed(d: Derivation) -> list[Any]:
    """Deterministic O; any spread of O adds its variance over 2 O, so this is the least context for a mean O."""
    i, variance = sp.symbols("isl variance", positive=True)
    at = {osl: 1 + x, osl_sq: (1 + x) ** 2, isl: i, isl_osl: i * (1 + x)}
    spread = at | {osl_sq: (1 + x) ** 2 + variance}
    fixed = d.formula("mean_context_fixed").subs(at)
    return [
        sp.simplify(d.formula("mean_context_uncorrelated").subs(at) - fixed),
        sp.simplify(d.formula("mean_context_prefill_first").subs(at) - i - (1 + x) / 2),
        sp.simplify(d.formula("mean_context_uncorrelated").subs(spread) - fixed - variance / (2 * (1 + x))),
    ]


def _no_steps(d: Derivation) -> list[Any]:
    names = ("mean_context", "mean_context_uncorrelated", "mean_context_prefill_first")
    one_step = d.formula("mean_context_geometric"), d.formula("mean_context_fixed")
    return [*(d.regular(n).subs(osl, 0) for n in names), *(f.subs(osl, 1) - isl for f in one_step)]


NO_STEP = (Convention(sp.Eq(osl, 0), "osl = 0 (no decode step): 0"),)


def _theta_check(id: str, name: str, trace: Any, printed: float, rounding: float) -> Published:
    return Published(
        id, f"{name}: {MOMENTS}", "D", printed, "mean_context", trace.moments, unit="tok", rounding=rounding
    )


def _statistic(id: str, source: str, printed: float, ours: Any, unit: str, half_digit: float) -> Published:
    return Published(
        id,
        source,
        "S",
        printed,
        lambda d: ours,
        unit=unit,
        rounding=half_digit,
        reason="a statistic of the trace as the paper's secondary account prints it",
    )


PAPER, FAST = "Splitwise (2311.18677), trace medians", "Mooncake, FAST'25, conversation trace"

D05 = Derivation(
    id="D05",
    name="Context seen by a decode step",
    statement="A decode step attends, in the mean over steps, the context that long outputs see: renewal-reward "
    "weighs each request with its number of steps, so second moments and the correlation of I and O enter.",
    assumptions=(
        "each request takes osl decode steps; step j attends isl + j tokens, j = 0 ... osl - 1",
        "stationary: requests of all ages are in the batch",
        "the *_prefill_first form: prefill emits the first token, so osl - 1 steps attend isl + 1 ... isl + osl - 1",
    ),
    steps=(
        Step("The steps of one request attend in all", isl * osl + osl * (osl - token) / 2),
        Step("Renewal-reward: mean context per request over mean steps per request", sp.Eq(theta_ctx, isl_osl / osl)),
        Step("with the growth during decoding", sp.Eq(theta_ctx, (isl_osl + (osl_sq - token * osl) / 2) / osl)),
        Step("A geometric O forgets its age: E[O] = 1/p leaves I + (1 - p)/p", sp.Eq(theta_ctx, isl + osl - token)),
    ),
    forms=(
        ClosedForm(
            "mean_context",
            r"\theta",
            (isl_osl + _pairs) / osl,
            "tok/req",
            "Mean context per decode step, from moments of any joint law of the lengths.",
            (osl, isl_osl, osl_sq),
            regular=Ratio(isl_osl + _pairs, osl),
            shown="tok",
            code_symbol="theta",
            dimensional=(isl_osl + (osl_sq - token * osl) / 2) / osl,
            conventions=NO_STEP,
        ),
        ClosedForm(
            "mean_context_uncorrelated",
            r"\theta",
            isl + (osl_sq - osl) / (2 * osl),
            "tok/req",
            "Mean context per decode step when input and output length are uncorrelated.",
            (isl, osl, osl_sq),
            regular=Ratio(2 * isl * osl + osl_sq - osl, 2 * osl),
            shown="tok",
            code_symbol="theta",
            dimensional=isl + (osl_sq - token * osl) / (2 * osl),
            conventions=NO_STEP,
        ),
        ClosedForm(
            "mean_context_geometric",
            r"\theta",
            isl + sp.Max(0, osl - 1),
            "tok/req",
            "Mean context per decode step when the output length is geometric and uncorrelated with the input.",
            (isl, osl),
            shown="tok",
            code_symbol="theta",
            dimensional=isl + sp.Max(0, osl - token),
            note="No law has a mean below one token; there the value is isl.",
        ),
        ClosedForm(
            "mean_context_fixed",
            r"\theta",
            isl + sp.Max(0, osl - 1) / 2,
            "tok/req",
            "Mean context per decode step when the output length is always the same: the least for a mean length.",
            (isl, osl),
            shown="tok",
            code_symbol="theta",
            dimensional=isl + sp.Max(0, osl - token) / 2,
            note="No law has a mean below one token; there the value is isl.",
        ),
        ClosedForm(
            "mean_context_prefill_first",
            r"\theta",
            _first_by_prefill,
            "tok/req",
            "Mean context per decode step when the prefill pool emits the first token.",
            (isl, osl, isl_osl, osl_sq),
            regular=Ratio(isl_osl - isl + _pairs, osl - 1),
            shown="tok",
            code_symbol="theta",
            dimensional=(isl_osl - isl * token + (osl_sq - token * osl) / 2) / (osl - token),
            conventions=(Convention(osl <= 1, "osl <= 1 (no decode step is left): 0"),),
        ),
    ),
    proofs=(
        Proof("steps summed one by one, for any law with three atoms", lambda d: _law(d, "mean_context", 0)),
        Proof("the same from the second token on", lambda d: _law(d, "mean_context_prefill_first", 1)),
        Proof("the covariance of I and O over the mean of O is what correlation adds", _uncorrelated),
        Proof("geometric O: I + (1 - p)/p, and I + 1/p if prefill emits the first token", _geometric),
        Proof("fixed O: I + (O - 1)/2, and I + O/2; a spread adds Var(O)/(2 O)", _fixed),
        Proof("no decode step gives 0, one step the input length", _no_steps),
        both_faces_agree("mean_context", "mean_context_uncorrelated", "mean_context_prefill_first"),
    ),
    limits=(
        "Sparse attention reads less than the context it attends.",
        "Not stationary: while a batch fills its contexts are younger.",
        "I + O/2 of an average-based planner holds for fixed O only; the Mooncake synthetic trace has 2.1 times less.",
    ),
    source="theory, group 1; geometric case: arXiv 2601.21351",
    published=(
        _theta_check("V10-theta-code", "Azure code 2023", AZURE_CODE, 2130.4, 0.05),
        _theta_check("V10-theta-conv", "Azure conversation 2023", AZURE_CONV, 1226.5, 0.05),
        _theta_check("V22-theta-conv", FAST, MOONCAKE_CONV, 13125, 0.5),
        _theta_check("V22-theta-synthetic", "Mooncake, FAST'25, synthetic trace", MOONCAKE_SYNTHETIC, 7291, 0.5),
        _statistic("V10-code-isl", f"{PAPER}, coding", 1500, AZURE_CODE.median_isl, "tok", 50),
        _statistic("V10-code-osl", f"{PAPER}, coding", 13, AZURE_CODE.median_osl, "tok", 0.5),
        _statistic("V10-conv-isl", f"{PAPER}, conversation", 1020, AZURE_CONV.median_isl, "tok", 5),
        _statistic("V10-conv-osl", f"{PAPER}, conversation", 129, AZURE_CONV.median_osl, "tok", 0.5),
        _statistic("V22", f"{FAST}: requests", 12031, MOONCAKE_CONV.requests, "req", 0.5),
        _statistic("V22-isl", f"{FAST}: mean input", 12035, MOONCAKE_CONV.mean("isl"), "tok", 0.5),
        _statistic("V22-osl", f"{FAST}: mean output", 343, MOONCAKE_CONV.mean("osl"), "tok", 0.5),
    ),
)

DERIVATIONS = (D04, D05)
