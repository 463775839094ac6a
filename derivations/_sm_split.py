"""One GPU split in space: prefill linear in its multiprocessors, decode saturating the HBM (Bullet, DuetServe)."""

from typing import Any

import sympy as sp

from derivations._cases import decided, nonnegative
from derivations.batches import itl_max
from derivations.core import ClosedForm, Derivation, Proof
from derivations.functions import Ratio
from derivations.symbols import phi, quantity, t_step

saturation = quantity("saturation", "s_d", "1", "share of the multiprocessors that saturates the HBM", 0.4, (0, 1))

x, y, z = sp.symbols("x y z", positive=True)
below = y / (1 + y)  # strictly between 0 and 1


def above_zero(expr: Any) -> bool:
    return bool(sp.factor(sp.together(sp.simplify(expr))).is_positive)


# Shares of a GPU: s for prefill (its rate is linear in s), 1 - s for decode (linear up to the saturating share s_d).


def _split_cases() -> list[dict[Any, Any]]:
    """All of the open square by the odds of phi: below 1 - s_d (decode alone limits), there, and above (both do)."""
    satur = 1 / (1 + z)
    border = 1 - satur
    return [{phi: odds / (1 + odds), saturation: satur} for odds in (border / (1 + y), border, border * (1 + y))]


def _rates(share: Any, satur: Any, phi_: Any) -> tuple[Any, ...]:
    """Throughput of each limit as a multiple of that of two pools, 1/(t_P + t_D)."""
    return share / phi_, 1 / (1 - phi_), (1 - share) / (satur * (1 - phi_))


def _split_is_best(d: Derivation) -> list[Any]:
    """It is attained at the best share, and no share does better: a sum of two limits bounds every throughput.

    A throughput X of any split keeps X phi <= s, X s_d (1 - phi) <= 1 - s and X (1 - phi) <= 1. The first two add up
    to X (phi + s_d (1 - phi)) <= 1.
    """
    found: list[Any] = []
    for case in _split_cases():
        gained = sp.simplify(decided(d.formula("sm_split_gain").subs(case)))
        share = sp.simplify(decided(d.formula("best_sm_share").subs(case)))
        f, satur = case[phi], case[saturation]
        found += [nonnegative(sp.simplify(rate - gained)) for rate in _rates(share, satur, f)]
        bounds = 1 / (1 - f), 1 / (f + satur * (1 - f))
        found.append(sp.simplify((gained - bounds[0]) * (gained - bounds[1])))  # it equals one of the two bounds
        found.append(nonnegative(1 - share))
    s, cap = sp.symbols("s X")
    added = (cap * phi - s) + (cap * saturation * (1 - phi) - (1 - s))
    return [*found, sp.expand(added - (cap * (phi + saturation * (1 - phi)) - 1))]


def _most_for_prefill(d: Derivation) -> list[Any]:
    """With more for prefill than the best share decode is slower: it is the largest share without loss."""
    found = []
    for case in _split_cases():
        share = sp.simplify(decided(d.formula("best_sm_share").subs(case)))
        f, satur = case[phi], case[saturation]
        gained = decided(d.formula("sm_split_gain").subs(case))
        found.append(sp.simplify(_rates(share, satur, f)[2] - gained))  # decode limits exactly there
    return found


def _split_is_an_overlap(d: Derivation) -> list[Any]:
    """The split GPU hides min(phi, (1 - s_d)(1 - phi)), never more than the shorter phase."""
    found: list[Any] = []
    for case in _split_cases():
        hidden = decided(sp.Min(phi, (1 - saturation) * (1 - phi)).subs(case))
        gained = decided(d.formula("sm_split_gain").subs(case))
        found.append(sp.simplify(1 / (1 - hidden) - gained))
        found += [nonnegative(longest - hidden) for longest in (case[phi], 1 - case[phi])]
    return found


def _for_the_objective(d: Derivation) -> list[Any]:
    """Below saturation the step takes s_d/share as long: at that share exactly the objective. The token rate is
    linear in the share there, so its best is at an end: this share, or saturation where decode tokens come faster."""
    share = d.formula("decode_sm_share")
    s, prefill_rate, decode_rate = sp.symbols("s R_P R_D", positive=True)
    tokens = prefill_rate * (1 - s) + decode_rate * s / saturation
    return [
        sp.simplify(t_step * saturation / share - itl_max),
        sp.diff(tokens, s, 2),
        sp.simplify(sp.diff(tokens, s) - (decode_rate / saturation - prefill_rate)),
    ]


def _interleaved(d: Derivation) -> list[Any]:
    """k decode steps beside one prefill: tokens over max(k t_d, t_p) grow with k up to t_p/t_d and fall beyond."""
    k, dec, pre, t_d, t_p = sp.symbols("k n_D n_P t_d t_p", positive=True)
    before, after = (k * dec + pre) / t_p, (k * dec + pre) / (k * t_d)
    return [
        above_zero(sp.diff(before, k)),
        above_zero(-sp.diff(after, k)),
        sp.simplify(before.subs(k, t_p / t_d) - (dec / t_d + pre / t_p)),
        sp.simplify(after.subs(k, t_p / t_d) - (dec / t_d + pre / t_p)),
    ]


def _split_faces(d: Derivation) -> list[Any]:
    names = "sm_split_gain", "best_sm_share"
    found = [
        sp.simplify(decided(d.formula(n).subs(c)) - decided(d.regular(n).subs(c)))
        for n in names
        for c in _split_cases()
    ]
    ends = [
        d.regular("sm_split_gain").subs({phi: 0, saturation: 0}) - 1,
        d.regular("sm_split_gain").subs({phi: 1, saturation: below}) - 1,
        d.regular("sm_split_gain").subs({phi: below, saturation: 1}) - 1,
        d.regular("best_sm_share").subs({phi: 1, saturation: 1}) - 1,
    ]
    return [*found, *ends]


FORMS = (
    ClosedForm(
        "sm_split_gain",
        r"\frac{X_{\mathrm{split}}}{X_{\mathrm{dis}}}",
        1 / sp.Max(1 - phi, phi + saturation * (1 - phi)),
        "1",
        "Throughput of a GPU split in space at its best, over that of two balanced pools.",
        (phi, saturation),
        regular=Ratio(1, sp.Max(1 - phi, phi + saturation * (1 - phi))),
        code_symbol="X_split/X_dis",
        note="No contention: slow both phases down by the measured factor.",
    ),
    ClosedForm(
        "best_sm_share",
        r"\frac{S_P}{S}",
        sp.Max(1 - saturation, phi / (phi + saturation * (1 - phi))),
        "1",
        "Largest share of the multiprocessors that prefill can have without loss of throughput.",
        (phi, saturation),
        regular=sp.Piecewise(
            (1 - saturation, phi <= (1 - saturation) * (1 - phi)),
            (Ratio(phi, phi + saturation * (1 - phi)), True),
        ),
        code_symbol="S_P/S",
    ),
    ClosedForm(
        "decode_sm_share",
        r"\frac{S_D}{S}",
        saturation * t_step / itl_max,
        "1",
        "Smallest share of the multiprocessors whose decode steps keep an objective (DuetServe).",
        (saturation, t_step, itl_max),
        code_symbol="S_D/S",
        note="Above `saturation` the objective is shorter than the step of a whole GPU: no split keeps it.",
    ),
)

PROOFS = (
    Proof("the split of a GPU reaches a bound that no split exceeds", _split_is_best),
    Proof("at the best share decode limits: more for prefill costs throughput", _most_for_prefill),
    Proof("the split is an overlap of min(phi, (1 - s_d)(1 - phi)) / min(phi, 1 - phi)", _split_is_an_overlap),
    Proof("DuetServe: the share that keeps the objective", _for_the_objective),
    Proof("DuetServe: the best number of decode steps beside a prefill is t_p/t_d", _interleaved),
    Proof("the forms of the split agree and have the right ends", _split_faces),
)
