"""Splits that are off: the wrong share for the mix, and the grain of a split inside a GPU."""

from fractions import Fraction
from typing import Any

import sympy as sp

from derivations import _lattice
from derivations._cases import decided, nonnegative
from derivations._traces import AZURE_CONV, SPLITWISE_PREFILL
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, value
from derivations.functions import Least, Ratio
from derivations.rounding import bound, efficiency
from derivations.symbols import (
    N,
    g_common,
    g_D,
    g_P,
    n_D,
    n_P,
    phi,
    quantity,
    t_D,
    t_P,
)

oo = sp.oo
half = sp.Rational(1, 2)

# Strictly between 0 and 1 for every positive x, y, z.
x, y, z = sp.symbols("x y z", positive=True)

# --- D09 ------------------------------------------------------------------------------------------------------------

phi_opt = quantity("phi_opt", r"\phi^\ast", "1", "prefill share that the mix needs", 0.45, (0, 1))
phi_low = quantity("phi_low", r"\phi_1", "1", "smallest prefill share that the mixes need", 0.25, (0, 1))
phi_range = quantity("phi_range", "w", "1", "largest less smallest prefill share that the mixes need", 0.35, (0, 1))

missplit = sp.Min(phi / phi_opt, (1 - phi) / (1 - phi_opt))
phi_high = phi_low + phi_range
equaliser = phi_high / (1 + phi_range)

_more = {phi_opt: z / (1 + z), phi: (x + z) / (1 + x + z)}  # phi above phi_opt
_less = {phi: z / (1 + z), phi_opt: (x + z) / (1 + x + z)}


def _from_pools(d: Derivation) -> list[Any]:
    """Pools phi N and (1 - phi) N in the efficiency of D08, and in requests per second."""
    pools = {n_P: phi * N, n_D: (1 - phi) * N}
    found = []
    for case in (_more, _less):
        here = decided(d.formula("missplit_efficiency").subs(case))
        plan = efficiency.subs(phi, phi_opt).subs(pools).subs(case)
        works = {t_P: case[phi_opt], t_D: 1 - case[phi_opt]}
        rate = d.formula("two_pool_throughput").subs(pools).subs(case).subs(works)
        found += [sp.simplify(decided(plan) - here), sp.simplify(decided(rate) - N * here)]
    return found


def _slopes(d: Derivation) -> list[Any]:
    eta = d.formula("missplit_efficiency")
    rises, falls = phi / phi_opt, (1 - phi) / (1 - phi_opt)
    return [
        sp.simplify(decided(eta.subs(_less)) - rises.subs(_less)),
        sp.simplify(decided(eta.subs(_more)) - falls.subs(_more)),
        sp.diff(rises, phi) - 1 / phi_opt,
        sp.simplify(sp.diff(falls, phi) + 1 / (1 - phi_opt)),
        eta.subs(phi, phi_opt).doit() - 1,
    ]


def _newsvendor(d: Derivation) -> list[Any]:
    """The mean efficiency of a split p under any density of the share s needed, by Leibniz' rule, twice.

    The mean is the integral of `falls` over s < p and of `rises` over s > p, each times the density.
    """
    p, s, density = sp.symbols("p s density", positive=True)

    def branch(case: dict[Any, Any], low: Any, high: Any) -> Any:
        odds = {z: low / (1 - low), x: high / (1 - high) - low / (1 - low)}
        return decided(d.formula("missplit_efficiency").subs(case)).subs(odds)

    falls, rises = branch(_more, s, p), branch(_less, p, s)
    first = [sp.simplify(sp.diff(part, p)) for part in (falls, rises)]  # integrands of the first derivative
    second = sp.simplify((first[0] - first[1]).subs(s, p) * density)  # its own ends, p moving; nothing inside
    return [
        sp.simplify((falls - rises).subs(s, p)),  # the ends cancel
        sp.simplify(first[0] + 1 / (1 - s)),
        sp.simplify(first[1] - 1 / s),
        *(sp.diff(part, p) for part in first),
        sp.simplify(second + density / (p * (1 - p))),
        sp.simplify(second.subs(p, z / (1 + z))).is_negative,  # concave: the stationary split is the best
    ]


def _uniform(d: Derivation) -> list[Any]:
    """A uniform law between the ends: ln(high/phi) = ln((1 - low)/(1 - phi)), met by the minimax split itself."""
    low, width = sp.symbols("low width", positive=True)
    split = d.formula("minimax_split").subs({phi_low: low, phi_range: width})
    odd = width * (1 - 2 * low - width) / (2 * (1 + width))
    return [
        sp.simplify(((low + width) / split) * (1 - split) / (1 - low) - 1),
        sp.simplify(split - (low + width / 2) - odd),
    ]


def _minimax(d: Derivation) -> list[Any]:
    """The worst mix is an end: below the split the efficiency rises with the share needed, above it falls."""
    rises, falls = phi / phi_high, (1 - phi) / (1 - phi_low)
    (solved,) = sp.solve(sp.Eq(rises, falls), phi)
    low, high = z / (1 + z), (z + x) / (1 + z + x)
    ends = {phi_low: low, phi_range: high - low}
    inside = solved.subs(ends)
    return [
        sp.simplify(solved - d.formula("minimax_split")),
        sp.simplify(rises.subs(phi, solved) - d.formula("minimax_efficiency")),
        sp.simplify(sp.diff(rises, phi).subs(ends)).is_positive,
        sp.simplify(sp.diff(falls, phi).subs(ends)).is_negative,
        sp.simplify(sp.diff(phi / phi_opt, phi_opt).subs({phi: z, phi_opt: x})).is_negative,
        sp.simplify(sp.diff((1 - phi) / (1 - phi_opt), phi_opt).subs({phi: low, phi_opt: high})).is_positive,
        nonnegative(sp.factor(inside - low)),
        nonnegative(sp.factor(high - inside)),
    ]


def _regular_missplit(d: Derivation) -> list[Any]:
    eta, rate = d.regular("missplit_efficiency"), d.regular("two_pool_throughput")
    inside = [sp.simplify(decided((eta - d.formula("missplit_efficiency")).subs(case))) for case in (_more, _less)]
    p, q, s = sp.symbols("p q s", positive=True)
    share = z / (1 + z)
    pools = {n_P: p, n_D: q}
    cases = ({t_P: p / (s + z), t_D: q / s}, {t_P: p / s, t_D: q / (s + z)})
    return [
        *inside,
        *(eta.subs({phi: e, phi_opt: e}) - 1 for e in (0, 1)),
        sp.simplify(eta.subs({phi: share, phi_opt: 0}) - (1 - share)),
        sp.simplify(eta.subs({phi: share, phi_opt: 1}) - share),
        *(eta.subs({phi: e, phi_opt: share}) for e in (0, 1)),
        *(decided(rate.subs(pools).subs(c)) - s for c in cases),
        *(decided(d.formula("two_pool_throughput").subs(pools).subs(c)) - s for c in cases),
        rate.subs(pools).subs({t_P: 0, t_D: s}) - q / s,
        rate.subs(pools).subs({t_P: s, t_D: 0}) - p / s,
    ]


PLANNING = "arXiv 2603.04716 (DeepSeek-V3.1, H200)"
_per_request = 6144 + 512
_works = {"t_P": sp.Rational(6144, 25_066), "t_D": sp.Rational(512, 1700)}


def _capacity(prefill: int, decode: int) -> Any:
    """Millions of tokens a minute of so many instances."""
    plan = _works | {"n_P": prefill, "n_D": decode}
    return lambda d: value(d.formula("two_pool_throughput"), plan) * _per_request * 60 / sp.Integer(10**6)


def _coding_for_conversation(d: Derivation) -> Any:
    """35 of 40 machines prefill, for the conversation trace with a batch of 58.4 and steps of 35.5 ms (V09)."""
    decode = AZURE_CONV.mean("osl") * sp.Rational("0.0355") / sp.Rational("58.4")
    needed = SPLITWISE_PREFILL["conv"] / (SPLITWISE_PREFILL["conv"] + decode)
    return value(d.formula("missplit_efficiency"), {"phi": sp.Rational(35, 40), "phi_opt": needed}) - 1


D09 = Derivation(
    id="D09",
    name="Mis-split loss",
    statement="A fleet split at phi serves a mix that needs phi*: the pool that is too small limits it, with a steeper "
    "loss on the side of the smaller pool. The split that is best in the worst case of an interval is not its middle; "
    "it is also the best in the mean for a uniform law on the interval.",
    assumptions=("those of D01", "the split stays; the mix moves, known by its interval or its law"),
    steps=(
        Step("Each pool limits; as a share of the rate at the right split", missplit),
        Step("Slopes: below the need", 1 / phi_opt),
        Step("and above it", -1 / (1 - phi_opt)),
        Step(
            "Over an interval the worst mixes are its ends; equal there",
            sp.Eq(phi / phi_high, (1 - phi) / (1 - phi_low)),
        ),
        Step("Random need: E[1{phi* > phi}/phi*] = E[1{phi* < phi}/(1 - phi*)] (a newsvendor)", phi),
    ),
    forms=(
        ClosedForm(
            "missplit_efficiency",
            r"\eta",
            sp.Min(phi * (1 - phi_opt), (1 - phi) * phi_opt) / (phi_opt * (1 - phi_opt)),
            "1",
            "Throughput of a fleet split at phi as a share of that at the split which the mix needs.",
            (phi, phi_opt),
            regular=sp.Piecewise(
                (1, (sp.Eq(phi, 0) & sp.Eq(phi_opt, 0)) | (sp.Eq(phi, 1) & sp.Eq(phi_opt, 1))),
                (Least(Ratio(phi, phi_opt, oo), Ratio(1 - phi, 1 - phi_opt, oo)), True),
            ),
            code_symbol="efficiency",
            conventions=(
                Convention(
                    (sp.Eq(phi, 0) & sp.Eq(phi_opt, 0)) | (sp.Eq(phi, 1) & sp.Eq(phi_opt, 1)),
                    "phi = phi_opt = 0 or 1 (one phase only, and its pool is the fleet): 1",
                ),
            ),
        ),
        ClosedForm(
            "minimax_split",
            r"\phi",
            equaliser,
            "1",
            "Split whose worst efficiency over mixes that need phi_low to phi_low + phi_range is largest.",
            (phi_low, phi_range),
            code_symbol="phi",
        ),
        ClosedForm(
            "minimax_efficiency",
            r"\eta",
            1 / (1 + phi_range),
            "1",
            "Worst efficiency of the minimax split.",
            (phi_range,),
            code_symbol="efficiency",
        ),
        ClosedForm(
            "two_pool_throughput",
            "X",
            sp.Min(n_P * t_D, n_D * t_P) / (t_P * t_D),
            "req/s",
            "Requests per second of two pools with given works per request.",
            (n_P, n_D, t_P, t_D),
            regular=Least(Ratio(n_P, t_P, oo), Ratio(n_D, t_D, oo)),
            code_symbol="X",
            conventions=(
                Convention(sp.Eq(t_P, 0) & sp.Eq(t_D, 0), "t_P = t_D = 0 (no work): inf"),
                Convention(
                    (sp.Eq(t_P, 0) & sp.Eq(n_P, 0)) | (sp.Eq(t_D, 0) & sp.Eq(n_D, 0)),
                    "a pool without work and without GPUs: the rate of the other pool and its derivative, "
                    "but for the size of the idle pool it jumps",
                ),
            ),
        ),
    ),
    proofs=(
        Proof("it is the efficiency of D08 and the ratio of rates", _from_pools),
        Proof("its two branches and their slopes; 1 at the right split", _slopes),
        Proof("the mean over any law of the need is concave, with the newsvendor condition", _newsvendor),
        Proof("for a uniform law the best split is the minimax split, and not the mean", _uniform),
        Proof("equal ends solve the worst case: one falls, the other rises, and it lies between", _minimax),
        Proof("the regular forms inside and at the ends", _regular_missplit),
    ),
    limits=(
        "Saturated demand; below it a mis-split only uses up the spare capacity.",
        "A third, flexible pool takes up most of a mis-split (Splitwise reports 7 % where two fixed pools lose 70 %).",
    ),
    source="theory, group 2",
    published=(
        Published(
            "V03d",
            f"{PLANNING}: 3 prefill and 4 decode instances",
            "S",
            4.8,
            _capacity(3, 4),
            unit="million tok/min",
            tolerance=0.05,
            reason="a secondary account",
        ),
        Published(
            "V03e",
            f"{PLANNING}: 3 prefill and 3 decode instances",
            "S",
            3.6,
            _capacity(3, 3),
            unit="million tok/min",
            tolerance=0.05,
            reason="bound by decode, whose measured rate was below the 1700 tok/s of the plan",
        ),
        Published(
            "D09-splitwise",
            "Splitwise (2311.18677): throughput change of a cluster optimised for coding that serves conversation",
            "S",
            -0.07,
            _coding_for_conversation,
            tolerance=0.1,
            reason="their mixed pool moves machines between the roles; two fixed pools would lose this much more",
        ),
    ),
)

# --- D10 ------------------------------------------------------------------------------------------------------------

sm_count = quantity("sm_count", "S", "1", "streaming multiprocessors of the GPU", 132.0, shown="SM")
sm_grain = quantity("sm_grain", "g", "1", "size that each partition is a multiple of", 8.0, shown="SM")
_remainder = sm_count - sm_grain * sp.floor(sm_count / sm_grain)


def _as_workers(d: Derivation) -> Any:
    """D08 with workers of g multiprocessors on both sides, whose common divisor is g."""
    whole = bound.subs({g_P: g_common, g_D: g_common}).subs({N: sm_count, g_common: sm_grain}, simultaneous=True)
    return sp.simplify(whole - d.formula("sm_rounding_bound"))


def _remainder_used(d: Derivation) -> list[Any]:
    """n_D = g ceil(e (1 - phi) S/g) leaves n_P = S - n_D > e phi S for e = 1 - g/S; more than S - g is impossible.

    At phi = (i g + r)/(S - g), r the remainder, more needs n_P >= (i + 1) g + r and n_D >= (k - i) g: S + g in all.
    """
    kept = (1 - d.formula("sm_rounding_bound_joined")) * sm_count
    s, k, i, r = x / (1 + x), *sp.symbols("k i r", positive=True)
    n_decode = (1 - phi) * kept + s * sm_grain
    more = ((i + 1) * sm_grain + r) + (k - i) * sm_grain
    return [
        sp.simplify(sm_count - n_decode - phi * kept - (1 - s) * sm_grain),
        sp.simplify(1 - s).is_positive,
        sp.expand(more - (k * sm_grain + r) - sm_grain),
        sp.simplify(d.formula("sm_rounding_bound") - d.formula("sm_rounding_bound_joined") - _remainder / sm_count),
    ]


def _all_partitions(d: Derivation) -> list[Any]:
    """Every GPU up to 24 multiprocessors: the worst split, idle and joined, in exact fractions."""
    found = []
    idle, joined = d.formula("sm_rounding_bound"), d.formula("sm_rounding_bound_joined")
    for grain in range(1, 7):
        for count in range(grain, 25):
            at = {sm_count: count, sm_grain: grain}
            found.append(_lattice.least_kept_searched(count, grain, grain) == count * (1 - idle.subs(at)))
            found.append(_least_joined(count, grain) == count * (1 - joined.subs(at)))
    return found


def _least_joined(count: int, grain: int) -> Fraction:
    """As `_lattice.least_kept_searched`, the remainder always on the prefill side."""
    k, r = divmod(count, grain)
    plans = [(i * grain + r, (k - i) * grain) for i in range(k + 1)]
    least = [Fraction(max(b for a, b in plans if a)) if r or k > 1 else Fraction(0)]
    least.append(Fraction(max((a for a, b in plans if b), default=0)))
    for p in {a for a, _ in plans if a}:
        for q in {b for _, b in plans if b}:
            least.append(Fraction(max(min(a * q, b * p) for a, b in plans) * (p + q), p * q))
    return min(least)


def _grain(id: str, words: str, printed: float, form: str, count: int, grain: int) -> Published:
    at = {"sm_count": count, "sm_grain": grain}
    return Published(id, words, "D", printed, form, at, rounding=5e-4)


D10 = Derivation(
    id="D10",
    name="Grain of a split inside a GPU",
    statement="A GPU shared by prefill and decode in partitions of g multiprocessors is D08 with workers of g: at "
    "most (g + S mod g)/S is lost, and g/S if the remainder joins one side; both are met by some mix.",
    assumptions=(
        "the rate of a phase is proportional to its multiprocessors",
        "both partitions are multiples of the grain; the remainder stays idle, or always joins the same side",
    ),
    steps=(
        Step("Multiprocessors that make no whole grain", _remainder),
        Step("Left idle, they add to the loss of the grain", (sm_grain + _remainder) / sm_count),
        Step("Joined to one side, decode rounds up to its grain and prefill keeps at least", sm_count - sm_grain),
    ),
    forms=(
        ClosedForm(
            "sm_rounding_bound",
            r"1 - \eta \leq",
            (sm_grain + _remainder) / sm_count,
            "1",
            "Largest loss of throughput of a split into whole grains, the remainder idle.",
            (sm_count, sm_grain),
            code_symbol="bound",
            note="Piecewise smooth: the derivative is that between two jumps.",
        ),
        ClosedForm(
            "sm_rounding_bound_joined",
            r"1 - \eta \leq",
            sm_grain / sm_count,
            "1",
            "Largest loss of throughput of a split into whole grains, the remainder joined to one side.",
            (sm_count, sm_grain),
            code_symbol="bound",
        ),
    ),
    proofs=(
        Proof("it is D08 with both workers of one grain", _as_workers),
        Proof(
            "with the remainder joined every split fits, more never does; the bound falls by the remainder",
            _remainder_used,
        ),
        Proof("every small GPU, both ways, in exact fractions", _all_partitions),
    ),
    limits=(
        "Bandwidth and L2 are not partitioned: decode saturates HBM with a part of the multiprocessors.",
        "cuDevSmResourceSplitByCount rounds the size asked for up; rounding prefill up always, not to the better "
        "side, can cost decode up to g/((1 - phi) S) of its need.",
        "The grain of 8 for compute capability 9.0 and later is not confirmed; newer calls relax it.",
    ),
    source="theory, group 2: ours; grains: CUDA driver documentation, MuxWise (2504.14489)",
    published=(
        _grain("D10-H100", "H100, 132 multiprocessors in grains of 8", 0.091, "sm_rounding_bound", 132, 8),
        _grain("D10-B200", "B200, 148 multiprocessors in grains of 8", 0.081, "sm_rounding_bound", 148, 8),
        _grain("D10-MuxWise", "MuxWise's grain of 16 on an H100", 0.152, "sm_rounding_bound", 132, 16),
        _grain("D10-H100-joined", "H100, remainder joined", 0.061, "sm_rounding_bound_joined", 132, 8),
        _grain("D10-B200-joined", "B200, remainder joined", 0.054, "sm_rounding_bound_joined", 148, 8),
        _grain("D10-MuxWise-joined", "grain of 16, remainder joined", 0.121, "sm_rounding_bound_joined", 132, 16),
    ),
)

GENERATED = "rounding"
DERIVATIONS = (D09, D10)
