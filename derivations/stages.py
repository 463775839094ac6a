"""Stages in series: prefill, attention and FFN on GPUs of their own, and how full they can be kept."""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy as sp

from derivations._cases import decided, nonnegative
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, both_faces_agree, value
from derivations.functions import Ratio
from derivations.requests import D05
from derivations.symbols import B, N, quantity

oo = sp.oo
seconds = "s*seq/tok"
t_stage = quantity("t_stage", "t_j", "GPU*s/req", "work of a request in one stage", 0.2, "nonnegative")
t_others = quantity("t_others", r"t_{\ne j}", "GPU*s/req", "work of a request in all other stages", 0.5, "nonnegative")
worker_sum = quantity("worker_sum", r"\sum_j g_j", "GPU", "one worker of each stage, in GPUs", 12.0)
worker_gcd = quantity("worker_gcd", "d", "GPU", "greatest common divisor of the worker sizes", 2.0)
t_attention = quantity("t_attention", "T_a", seconds, "attention of a micro-batch in one layer", 5e-4, shown="s")
t_ffn = quantity("t_ffn", "T_e", seconds, "FFN of a micro-batch in one layer", 4e-4, shown="s")
t_hop = quantity("t_hop", "T_c", seconds, "transfer between attention and FFN, one way", 2e-4, "nonnegative", shown="s")
micro_batches = quantity("micro_batches", "m", "1", "micro-batches in flight", 3.0, (1, oo))
layers = quantity("layers", r"\mathcal{L}", "1", "layers of the model", 60.0, (1, oo))
ffn_slope = quantity("ffn_slope", r"\alpha_F", "s*GPU/tok", "FFN time per sequence", 2e-6, shown="s/seq")
ffn_base = quantity("ffn_base", r"\beta_F", seconds, "FFN time without sequences", 1e-3, shown="s")
attention_ratio = quantity("attention_ratio", "r", "1", "attention instances per FFN instance", 4.0)

e, x, y = sp.symbols("e x y", positive=True)
_longest = sp.Max(t_attention, t_ffn)
AT_LEAST = ((t_ffn, t_attention), (t_attention, t_ffn))  # (shorter, longer) in either order

# --- the simplex ------------------------------------------------------------------------------------------------------


def _balance(d: Derivation) -> list[Any]:
    """All stages complete at one rate and use all GPUs: n_j/t_j equal, for any number of stages (here two to five)."""
    found = []
    for count in range(2, 6):
        works = sp.symbols(f"t1:{count + 1}", positive=True)
        pools = sp.symbols(f"n1:{count + 1}", positive=True)
        equal = [sp.Eq(pools[0] * t, n * works[0]) for n, t in zip(pools[1:], works[1:], strict=True)]
        solved = sp.solve([*equal, sp.Eq(sum(pools), N)], pools, dict=True)[0]
        for n, t in zip(pools, works, strict=True):
            ours = d.formula("stage_share").subs({t_stage: t, t_others: sum(works) - t})
            found.append(sp.simplify(solved[n] / N - ours))
    return found


def _room_for_all(d: Derivation) -> list[Any]:
    """Take n_j = g_j ceil(y phi_j N/g_j) with y = (M - sum g + d)/N, M = d floor(N/d).

    Each n_j < y phi_j N + g_j, so their sum is below y N + sum g = M + d; a multiple of d, it is at most M.
    """
    whole = worker_gcd * sp.floor(N / worker_gcd)
    kept = 1 - d.formula("stage_rounding_bound")
    return [sp.simplify(kept * N + worker_sum - (whole + worker_gcd))]


def _splits(total: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All pools of whole workers that fit, one worker at least in each."""
    choices = (range(g, total + 1, g) for g in sizes)
    return (n for n in itertools.product(*choices) if sum(n) <= total)


def _searched(d: Derivation) -> bool:
    """Three stages, worker sizes up to 3, small fleets, shares on a grid: no best split loses more than the bound."""
    bound = sp.lambdify((N, worker_sum, worker_gcd), d.formula("stage_rounding_bound"), "sympy")
    for sizes in ((1, 1, 1), (1, 2, 3), (2, 2, 2), (1, 1, 3), (2, 2, 3)):
        for total in range(sum(sizes), 14):
            pools = list(_splits(total, sizes))
            allowed = Fraction(str(bound(sp.Integer(total), sp.Integer(sum(sizes)), sp.Integer(sp.igcd(*sizes)))))
            for i, j in itertools.product(range(1, 8), repeat=2):
                if i + j > 8:
                    continue
                parts = (Fraction(i, 9), Fraction(j, 9), Fraction(9 - i - j, 9))
                if 1 - best_kept(total, pools, parts) > allowed:
                    return False
    return True


def best_kept(total: int, pools: list[tuple[int, ...]], parts: tuple[Fraction, ...]) -> Fraction:
    """The largest min_j n_j/(phi_j N) over the pools."""
    return max(min(n / (part * total) for n, part in zip(split, parts, strict=True)) for split in pools)


def _attained(d: Derivation) -> list[Any]:
    """Unit workers, shares k_j/(N - n + 1): if every n_j exceeded k_j their sum would exceed N; so one does not."""
    stages = 3
    bound = d.formula("stage_rounding_bound").subs({worker_sum: stages, worker_gcd: 1})
    found: list[Any] = []
    for total, counts in ((6, (1, 1, 2)), (9, (1, 2, 4)), (12, (2, 3, 5))):
        parts = tuple(Fraction(k, total - stages + 1) for k in counts)
        kept = best_kept(total, list(_splits(total, (1, 1, 1))), parts)
        found.append(sp.Rational(1) - sp.Rational(kept.numerator, kept.denominator) - bound.subs(N, total))
    return [
        *found,
        sp.simplify(
            bound.subs(N, sp.Symbol("k", integer=True, positive=True) + stages)
            * (sp.Symbol("k", integer=True, positive=True) + stages)
            - (stages - 1)
        ),
    ]


# --- ping-pong --------------------------------------------------------------------------------------------------------


def _round_trip(d: Derivation) -> list[Any]:
    """A micro-batch comes back after T_a + T_e + 2 T_c; the longer stage serves m in m max(T_a, T_e): it never waits
    when the second is not shorter. With equal stages that is MegaScale's 2 (1 + T_c/T_f), which always suffices."""
    found: list[Any] = []
    for short, long in AT_LEAST:
        formula = d.formula("micro_batches_needed").subs(short, long / (1 + x))
        trip = (t_attention + t_ffn + 2 * t_hop).subs(short, long / (1 + x))
        found += [
            sp.simplify(formula * long - trip),
            nonnegative(2 * (1 + t_hop / long) - formula),
        ]
    equal = d.formula("micro_batches_needed").subs(t_ffn, t_attention)
    return [*found, sp.simplify(equal - 2 * (1 + t_hop / t_attention))]


def _last_out(d: Derivation) -> list[Any]:
    """The longer stage works m L times without a pause; before and after it lie the other's work and two transfers."""
    found = []
    for short, long in AT_LEAST:
        busy = micro_batches * layers * long
        ours = d.formula("pingpong_time").subs(short, long / (1 + x))
        found.append(sp.simplify(ours - busy - long / (1 + x) - 2 * t_hop))
    return found


# --- attention and FFN instances --------------------------------------------------------------------------------------

afd_step = sp.Max(t_attention, t_hop, ffn_slope * attention_ratio * B + ffn_base)
_root = sp.sqrt(ffn_base / (ffn_slope * B))


def _peak(d: Derivation) -> list[Any]:
    """Where FFN limits, r/((r + 1)(alpha B r + beta)) has one stationary point, a maximum: first and second order."""
    r = sp.Symbol("r", positive=True)
    rate = r * B / ((r + 1) * (ffn_slope * r * B + ffn_base))
    slope = sp.factor(sp.diff(rate, r))
    (best,) = sp.solve(sp.numer(slope), r)
    second = sp.diff(rate, r, 2).subs(r, _root)
    numbers = {B: y, ffn_base: x * ffn_slope * y}
    best_ratio = d.formula("best_attention_ratio").subs({t_attention: ffn_base / (1 + x), t_hop: ffn_base / (1 + y)})
    return [
        sp.simplify(best - _root),
        sp.factor(sp.simplify(second.subs(numbers))).is_negative,
        sp.simplify(best_ratio - _root),  # neither attention nor transfer binds: they are shorter than an empty FFN
    ]


def _below_the_corner(d: Derivation) -> list[Any]:
    """Up to the r where FFN takes as long as attention (or transfer) the step is that, and r/(r + 1) grows.

    So the best is the corner, or beyond it the peak: the larger of the two.
    """
    r, root = sp.symbols("r root", positive=True)
    base = ffn_slope * B * root**2
    found: list[Any] = [sp.factor(sp.diff(r / (r + 1), r)).is_positive]
    for limit, other in ((t_attention, t_hop), (t_hop, t_attention)):
        for corner, best in ((root * (1 + e), root * (1 + e)), (root / (1 + e), root)):
            point = {ffn_base: base, limit: base + ffn_slope * B * corner, other: base / (1 + x)}
            step = afd_step.subs(point, simultaneous=True)
            found += [
                sp.simplify(decided(step.subs(attention_ratio, corner / (1 + y))) - point[limit]),
                sp.simplify(decided(step.subs(attention_ratio, corner)) - point[limit]),
                sp.simplify(decided(d.formula("best_attention_ratio").subs(point, simultaneous=True)) - best),
            ]
    return found


def _throughput(d: Derivation) -> list[Any]:
    """r B sequences commit a token each in the longest of three times, on r + 1 instances."""
    rate = d.formula("afd_throughput")
    return [sp.simplify(rate * (attention_ratio + 1) * afd_step - attention_ratio * B)]


def _searched_ratio(d: Derivation) -> bool:
    """On a grid of cases no ratio beats the best one."""
    rate = sp.lambdify(
        (attention_ratio, t_attention, t_hop, ffn_slope, ffn_base, B), d.formula("afd_throughput"), "math"
    )
    best = sp.lambdify((t_attention, t_hop, ffn_slope, ffn_base, B), d.formula("best_attention_ratio"), "math")
    for case in itertools.product((0.4, 1.0, 3.0), (0.2, 2.0), (0.01, 0.1), (0.3, 1.5), (8.0, 64.0)):
        top = best(*case)
        if any(rate(top * 1.05**k, *case) > rate(top, *case) * (1 + 1e-12) for k in range(-60, 61)):
            return False
    return True


MEGASCALE = "MegaScale-Infer (2504.02263)"
SONG = "Song et al. (2601.21351)"


def _whole_micro_batches(share: str) -> Any:
    at = {"t_attention": 1, "t_ffn": 1, "t_hop": sp.Rational(share)}
    return lambda d: sp.ceiling(value(d.formula("micro_batches_needed"), at))


def _geometric_slot(d: Derivation) -> Any:
    """Mean context of a slot by D05: prompts of 500, one output in 200 steps ends."""
    return value(D05.formula("mean_context_geometric"), {"isl": 500, "osl": 200})


D28 = Derivation(
    id="D28",
    name="Stages in series",
    statement="With more than two stages the balance is a point of a simplex, and rounding costs what it costs two "
    "pools with one worker of each stage added. Attention and FFN apart need enough micro-batches that neither waits, "
    "and a ratio of instances that is the larger of a corner and a square root.",
    assumptions=(
        "each request passes all stages, with work proportional to GPUs; whole workers of g_j GPUs, some may be idle",
        "micro-batches of equal size pass attention, transfer, FFN, transfer in every layer",
        "FFN time linear in its sequences, attention and transfer time per micro-batch constant",
    ),
    steps=(
        Step("All stages complete at one rate when each has its share", t_stage / (t_stage + t_others)),
        Step(
            "Whole workers of all stages always fit with this loss",
            (worker_sum - worker_gcd + N - worker_gcd * sp.floor(N / worker_gcd)) / N,
        ),
        Step("A micro-batch is back after", t_attention + t_ffn + 2 * t_hop),
        Step("and the longer stage has served all m of them after", micro_batches * _longest),
        Step("r attention instances of B sequences feed one FFN instance: a step takes", afd_step),
        Step("Where FFN limits, tokens per instance are largest at", _root),
    ),
    forms=(
        ClosedForm(
            "stage_share",
            r"\phi_j",
            t_stage / (t_stage + t_others),
            "1",
            "Share of the GPUs that a stage needs.",
            (t_stage, t_others),
            regular=Ratio(t_stage, t_stage + t_others),
            code_symbol="phi_j",
            conventions=(Convention(sp.Eq(t_stage, 0) & sp.Eq(t_others, 0), "no work at all: 0"),),
        ),
        ClosedForm(
            "stage_rounding_bound",
            r"1 - \eta \le",
            (worker_sum - worker_gcd + N - worker_gcd * sp.floor(N / worker_gcd)) / N,
            "1",
            "Throughput that whole workers cost at most, whatever the shares.",
            (N, worker_sum, worker_gcd),
            code_symbol="1 - eta (at most)",
            dimensional=(worker_sum - worker_gcd + N - worker_gcd * sp.floor(N / worker_gcd)) / N,
            note="The gradient takes the floor as constant.",
        ),
        ClosedForm(
            "micro_batches_needed",
            r"m \ge",
            (t_attention + t_ffn + 2 * t_hop) / _longest,
            "1",
            "Micro-batches above which the longer of attention and FFN never waits; round up.",
            (t_attention, t_ffn, t_hop),
            code_symbol="m (at least)",
        ),
        ClosedForm(
            "pingpong_time",
            r"T",
            t_attention + t_ffn + 2 * t_hop + (micro_batches * layers - 1) * _longest,
            seconds,
            "Time of a decode step of all micro-batches through all layers, with enough micro-batches.",
            (t_attention, t_ffn, t_hop, micro_batches, layers),
            shown="s",
            code_symbol="T",
        ),
        ClosedForm(
            "afd_throughput",
            "X",
            attention_ratio * B / ((attention_ratio + 1) * afd_step),
            "tok/s/GPU",
            "Tokens per second and instance of r attention instances and one FFN instance.",
            (attention_ratio, t_attention, t_hop, ffn_slope, ffn_base, B),
            code_symbol="X",
        ),
        ClosedForm(
            "best_attention_ratio",
            r"r^\ast",
            sp.Max((t_attention - ffn_base) / (ffn_slope * B), (t_hop - ffn_base) / (ffn_slope * B), _root),
            "1",
            "Attention instances per FFN instance with the most tokens per instance.",
            (t_attention, t_hop, ffn_slope, ffn_base, B),
            code_symbol="r",
        ),
    ),
    proofs=(
        Proof("equal rates and all GPUs give the shares", _balance),
        Proof("workers rounded up from a little less than the balance fit", _room_for_all),
        Proof("no split of three stages in small fleets loses more", _searched),
        Proof("unit workers lose (n - 1)/N at some shares", _attained),
        Proof("micro-batches: a round trip against the longer stage", _round_trip),
        Proof("the last micro-batch leaves after the longer stage has served all", _last_out),
        Proof("tokens per instance and step", _throughput),
        Proof("where FFN limits: first and second order", _peak),
        Proof("where it does not the rate grows with r up to the corner", _below_the_corner),
        Proof("no ratio on a grid is better", _searched_ratio),
        both_faces_agree("stage_share"),
    ),
    limits=(
        "MegaScale's 2 (1 + T_c/T_f) is sufficient; with unequal stages fewer micro-batches do.",
        "Attention times vary with the contexts: a step then waits for the slowest instance (D26).",
        "A whole number of instances: round r and compare.",
    ),
    source="theory, group 5; MegaScale-Infer, Step-3, Song et al.",
    published=(
        *(
            Published(
                f"V16-{name}",
                f"{MEGASCALE}: micro-batches at T_c/T_f = {part}",
                "S",
                count,
                _whole_micro_batches(part),
                rounding=0.5,
                reason="a secondary account",
            )
            for name, part, count in (("quarter", "0.25", 3), ("half", "0.5", 3), ("most", "0.75", 4), ("all", "1", 4))
        ),
        Published(
            "V15",
            f"{SONG}: mean-field context of a slot, mu + (1 - p)/p at mu = 500, p = 1/200",
            "S",
            699.0,
            _geometric_slot,
            unit="tok",
            rounding=1e-9,
            reason="a secondary account; that a simulated optimum is within 10 % of the ratio is tested, not published",
        ),
    ),
)

DERIVATIONS = (D28,)
