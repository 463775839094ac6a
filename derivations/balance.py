"""Rate balance: the split at which both pools finish requests at the same rate, and how it moves."""

from typing import Any

import sympy as sp

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
from derivations.symbols import A, B, N, P, delta, isl, isl_new, logodds, osl, osl_new, phi, r_P, t_D, t_P, t_step

oo = sp.oo
INPUTS = (B, isl, osl, r_P, t_step)
SIGNS = {B: 1, isl: 1, osl: -1, r_P: -1, t_step: -1}  # how each input moves the split
prefill_work = isl / r_P
decode_work = osl * t_step / B
odds = B * isl / (r_P * t_step * osl)
NO_WORK = Convention(sp.Eq(isl, 0) & sp.Eq(osl, 0), "isl = osl = 0 (no work to balance)")

# --- D01 ------------------------------------------------------------------------------------------------------------


def _solved(d: Derivation) -> list[Any]:
    share = sp.Symbol("share")
    balance = positive(sp.Eq(share / prefill_work, (1 - share) / decode_work))
    return [solution - positive(d.formula("balance_ratio")) for solution in sp.solve(balance, share)]


def _equal_rates(d: Derivation) -> list[Any]:
    ratio, best = positive(d.formula("balance_ratio")), positive(d.formula("balanced_throughput"))
    return [N * ratio / positive(prefill_work) - best, N * (1 - ratio) / positive(decode_work) - best]


def _best_split(d: Derivation) -> list[Any]:
    """One pool's rate rises with the share, the other's falls, so the smaller is largest where they meet."""
    share = sp.Symbol("share", positive=True)
    prefill, decode = share * N / positive(prefill_work), (1 - share) * N / positive(decode_work)
    ratio = positive(d.formula("balance_ratio"))
    return [sp.diff(prefill, share) > 0, sp.diff(decode, share) < 0, sp.simplify((prefill - decode).subs(share, ratio))]


def _one_phase_only(d: Derivation) -> list[Any]:
    ratio = positive(d.formula("balance_ratio"))
    (i, o) = (s for s in sorted(ratio.free_symbols, key=str) if str(s) in ("isl", "osl"))
    return [sp.limit(ratio, i, 0), sp.limit(ratio, o, 0) - 1]


DEEPSEEK = "DeepSeek, open-infra-index day 6 (2025-02)"
# One day as one request: only the ratio of the lengths matters, and a node stands for a GPU.
DAY = {"isl": 608 * 10**9, "osl": 168 * 10**9, "r_P": 73_700, "B": 14_800, "t_step": 1}

D01 = Derivation(
    id="D01",
    name="Balance ratio",
    statement="The prefill share of the GPUs at which both pools finish requests at the same rate; no other is faster.",
    assumptions=(
        "steady state, fluid, one class of requests",
        "no limit from the transfer between the pools",
        "saturated: every decode GPU holds B sequences",
        "B, t_step and r_P do not depend on the split",
    ),
    steps=(
        Step("A request takes this much work of a prefill GPU", sp.Eq(t_P, prefill_work)),
        Step("and this much of a decode GPU, which serves B at a time", sp.Eq(t_D, decode_work)),
        Step("Equal rates of completion fix the share", sp.Eq(phi / prefill_work, (1 - phi) / decode_work)),
        Step("whose solution is the balance ratio", sp.Eq(phi, B * isl / (B * isl + r_P * t_step * osl))),
    ),
    forms=(
        ClosedForm(
            "balance_ratio",
            r"\phi",
            B * isl / (B * isl + r_P * t_step * osl),
            "1",
            "Prefill share of the GPUs at which both pools finish requests at the same rate.",
            INPUTS,
            regular=Ratio(B * isl, B * isl + r_P * t_step * osl),
            code_symbol="phi",
            conventions=(Convention(NO_WORK.where, f"{NO_WORK.words}: 0"),),
        ),
        ClosedForm(
            "balanced_throughput",
            r"X^\ast",
            N / (isl / r_P + osl * t_step / B),
            "req/s",
            "Requests per second of N GPUs that are split at the balance ratio.",
            (N, *INPUTS),
            regular=Ratio(N * B * r_P, B * isl + r_P * t_step * osl, oo),
            code_symbol="X",
            conventions=(Convention(NO_WORK.where, f"{NO_WORK.words}: inf"),),
        ),
    ),
    proofs=(
        Proof("solving the balance gives the closed form, and nothing else", _solved),
        Proof("both pools then run at the balanced throughput", _equal_rates),
        Proof("the smaller of the two rates is largest there", _best_split),
        Proof("without input the share is 0, without output 1", _one_phase_only),
        both_faces_agree("balance_ratio", "balanced_throughput"),
    ),
    limits=(
        "Integer workers lose up to the rounding bound (D08).",
        "t_step depends on B and the context in a real batch (D07).",
        "Below saturation decode batches are not full; phi is then the split at which both pools saturate together.",
    ),
    source="the article's balance condition",
    published=(
        Published(
            "V01",
            f"{DEEPSEEK}: average occupancy, from 608e9 input and 168e9 output tokens a day",
            "P",
            226.75,
            lambda d: 1 / value(d.formula("balanced_throughput"), DAY | {"N": 1}) / 86400,
            unit="nodes",
            tolerance=1e-3,
        ),
        Published(
            "V01-phi",
            f"{DEEPSEEK}: 95.48 prefill nodes of 226.86, from the same figures",
            "D",
            0.4209,
            "balance_ratio",
            DAY,
            rounding=5e-5,
        ),
    ),
)

# --- D02 ------------------------------------------------------------------------------------------------------------

_phi_of = B * isl / (B * isl + r_P * t_step * osl)


def _log_odds_of_ratio(d: Derivation) -> Any:
    ratio = positive(_phi_of)
    return sp.simplify(sp.exp(positive(d.formula("log_odds"))) - ratio / (1 - ratio))


def _sum_of_logs(d: Derivation) -> Any:
    terms = sum(sign * sp.log(x) for x, sign in SIGNS.items())
    return sp.expand_log(positive(d.formula("log_odds")), force=True) - positive(terms)


def _sensitivities(d: Derivation) -> list[Any]:
    left = []
    for x, sign in SIGNS.items():
        moved = x * sp.diff(_phi_of, x)
        left.append(sp.simplify(moved - sign * d.formula("balance_sensitivity").subs(phi, _phi_of)))
        left.append(sp.simplify(moved / _phi_of - sign * (1 - _phi_of)))  # the elasticity
    return left


def _worst_at_half(d: Derivation) -> list[Any]:
    slope = d.formula("balance_sensitivity")
    (where,) = sp.solve(sp.diff(slope, phi), phi)
    return [where - sp.Rational(1, 2), sp.diff(slope, phi, 2) < 0, slope.subs(phi, where) - sp.Rational(1, 4)]


def _regular_log_odds(d: Derivation) -> list[Any]:
    regular = d.regular("log_odds")
    i, o = sp.Symbol("isl", positive=True), sp.Symbol("osl", positive=True)
    inside = regular.subs({isl: i, osl: o}) - positive(d.formula("log_odds"))
    return [inside, sp.Eq(regular.subs({isl: i, osl: 0}), oo), sp.Eq(regular.subs({isl: 0, osl: o}), -oo)]


D02 = Derivation(
    id="D02",
    name="Log-odds and sensitivities",
    statement="The log-odds of the balance ratio is linear in the logarithms of its five inputs, so that a relative "
    "change of any of them moves the share by at most a quarter of it, most at an even split.",
    assumptions=("those of D01",),
    steps=(
        Step("The odds of the balance ratio are the ratio of the two works", odds),
        Step(
            "so the log-odds is a signed sum of logarithms",
            sp.Eq(logodds, sum(s * sp.log(x) for x, s in SIGNS.items())),
            checked=False,
        ),
        Step("A relative change of an input moves the share by", phi * (1 - phi)),
    ),
    forms=(
        ClosedForm(
            "log_odds",
            r"\Lambda",
            sp.log(odds),
            "1",
            "Log-odds of the balance ratio, ln(phi / (1 - phi)).",
            INPUTS,
            regular=sp.Piecewise((sp.log(odds), (isl > 0) & (osl > 0)), (oo, isl > 0), (-oo, True)),
            code_symbol="logodds",
            conventions=(
                Convention(sp.Eq(isl, 0), "isl = 0: -inf (phi = 0), also where osl = 0"),
                Convention(sp.Eq(osl, 0), "osl = 0 < isl: inf (phi = 1)"),
            ),
        ),
        ClosedForm(
            "balance_sensitivity",
            r"x\,\partial\phi/\partial x",
            phi * (1 - phi),
            "1",
            "Move of the balance ratio per relative change of isl or B; with a minus sign, of osl, r_P or t_step.",
            (phi,),
            code_symbol="x*dphi/dx",
        ),
    ),
    proofs=(
        Proof("its exponential is phi / (1 - phi)", _log_odds_of_ratio),
        Proof("it expands into the signed sum of five logarithms", _sum_of_logs),
        Proof("all five sensitivities and elasticities follow", _sensitivities),
        Proof("the sensitivity is largest at phi = 1/2, where it is 1/4", _worst_at_half),
        Proof("the regular form is the same inside and infinite where one phase is empty", _regular_log_odds),
    ),
    limits=("The sensitivity to B holds at fixed t_step; with t_step(B) it is a / t_step times that (D07).",),
    source="theory, group 1",
)

# --- D03 ------------------------------------------------------------------------------------------------------------


def _step_from_rates(d: Derivation) -> Any:
    """Pools stay split at the old ratio while the mix moves: surplus of what prefill makes over what decode takes."""
    old = positive(_phi_of)
    new = {isl: isl_new, osl: osl_new}
    made = positive(old * N) / positive(prefill_work.subs(new))
    taken = (1 - old) * N / positive(decode_work.subs(new))
    return sp.simplify((made - taken) / made - positive(d.formula("mix_step")))


def _step_from_log_odds(d: Derivation) -> Any:
    moved = sp.log(odds).subs({isl: isl_new, osl: osl_new}) - sp.log(odds)
    return sp.simplify(1 - sp.exp(positive(moved)) - positive(d.formula("mix_step")))


def _doubling_and_halving(d: Derivation) -> list[Any]:
    step = positive(d.formula("mix_step")).subs(sp.Symbol("isl_new", positive=True), sp.Symbol("isl", positive=True))
    o, o_new = sp.Symbol("osl", positive=True), sp.Symbol("osl_new", positive=True)
    return [step.subs(o_new, 2 * o) - sp.Rational(1, 2), step.subs(o_new, o / 2) + 1, step.subs(o_new, o)]


def _regular_step(d: Derivation) -> list[Any]:
    regular, s = d.regular("mix_step"), sp.Symbol("s", positive=True)
    return [
        sp.Eq(regular.subs({isl: 0, isl_new: s, osl: s, osl_new: s}), -oo),
        sp.Eq(regular.subs({isl: s, isl_new: s, osl: s, osl_new: 0}), -oo),
        regular.subs({isl: s, isl_new: 0, osl: s, osl_new: s}) - 1,
        regular.subs({isl: s, isl_new: s, osl: 0, osl_new: s}) - 1,
    ]


_before, _after = isl * osl_new, isl_new * osl

D03 = Derivation(
    id="D03",
    name="Mix step",
    statement="A fleet split for the old mix meets a new one: the surplus of the flow, as a share of the flow that is "
    "produced after the step.",
    assumptions=(
        "those of D01, the split left at the balance of the old mix",
        "only the lengths move; B, r_P, t_step and the KV bytes per token stay",
    ),
    steps=(
        Step(
            "Prefill produces, decode accepts; the surplus is a share of what is produced",
            sp.Eq(delta / P, (P - A) / P),
        ),
        Step("that depends on the two odds only", sp.Eq(delta / P, 1 - (isl_new / osl_new) / (isl / osl))),
    ),
    forms=(
        ClosedForm(
            "mix_step",
            r"\frac{\delta}{P}",
            1 - (isl_new / osl_new) / (isl / osl),
            "1",
            "Surplus (positive) or shortfall (negative) after a move of the mix, as a share of the produced flow P.",
            (isl, osl, isl_new, osl_new),
            regular=1 - Ratio(_after, _before, sp.Piecewise((oo, _after > 0), (1, True))),
            code_symbol="delta/P",
            conventions=(
                Convention(
                    sp.Eq(_before, 0) & (_after > 0),
                    "isl = 0 or osl_new = 0 (nothing produced, or nothing to decode): -inf",
                ),
                Convention(
                    sp.Eq(_before, 0) & sp.Eq(_after, 0), "neither a produced nor an accepted flow: 0 (no step)"
                ),
            ),
        ),
    ),
    proofs=(
        Proof("it is (produced - accepted) / produced at the old split", _step_from_rates),
        Proof("it is 1 - exp(move of the log-odds)", _step_from_log_odds),
        Proof("doubled output gives +1/2, halved output -1, the same mix 0", _doubling_and_halving),
        Proof("the regular form has the right ends where one length is 0", _regular_step),
        both_faces_agree("mix_step"),
    ),
    limits=(
        "If r_P or the KV bytes per token move too, P is not the old flow.",
        "It is the final value: stock and batch still hold the old mix for Q/A + osl t_step.",
    ),
    source="theory, group 1",
)

DERIVATIONS = (D01, D02, D03)
