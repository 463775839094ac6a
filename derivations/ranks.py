"""Ranks: a step that waits for the slowest of many, prefills that stall all of them, and what experts exchange."""

from typing import Any

import mpmath as mp
import sympy as sp

from derivations._cases import nonnegative
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step
from derivations.symbols import quantity, t_step
from derivations.ttft import t_mix
from derivations.units import one

oo = sp.oo
ranks = quantity("ranks", "R", "1", "ranks that wait for each other", 8.0, (1, oo), integer=True)
step_mean = quantity("step_mean", r"\mu", "s*seq/tok", "mean step time of a rank", 0.02, shown="s")
step_spread = quantity(
    "step_spread", "s", "s*seq/tok", "standard deviation of the step time", 0.002, "nonnegative", "s"
)
barrier = quantity("barrier", "e_R", "1", "mean of the largest of R standard normals", 2.07, "nonnegative")
chance = quantity("chance", "p", "1", "chance that a rank prefills in a step", 0.05, (0, 1))
tokens = quantity("tokens", "n", "tok/GPU", "tokens that a GPU sends in a step", 128.0)
top_k = quantity("top_k", "k", "1", "experts per token", 8.0)
hidden = quantity("hidden", "h", "1", "width of the hidden state", 7168.0)
t_exchange = quantity("t_exchange", "t_x", "s", "time of an exchange between experts", 1.55e-4)
exchange_rate = quantity("exchange_rate", r"\mathrm{BW}_x", "B/s/GPU", "bandwidth of an exchange between experts", 48e9)

element = one("B/tok")
DISPATCH = 1 + sp.Rational(4, 128)  # an FP8 value, and its share of a 4-byte scale for 128 of them
COMBINE = 2  # BF16

# --- the slowest rank -------------------------------------------------------------------------------------------------


def largest_normal(count: int) -> Any:
    """Mean of the largest of `count` standard normals, by its two integrals."""
    above: Any = mp.quad(lambda v: 1 - mp.ncdf(v) ** count, [0, 4, 12])
    below: Any = mp.quad(lambda v: mp.ncdf(v) ** count, [-12, -4, 0])
    return above - below


def _two_ranks(d: Derivation) -> list[Any]:
    """Two normals exactly: the density of the larger is 2 f F, and its mean is mu + s/sqrt(pi)."""
    v = sp.Symbol("v", real=True)
    density = sp.exp(-(v**2) / 2) / sp.sqrt(2 * sp.pi)
    below = (1 + sp.erf(v / sp.sqrt(2))) / 2
    e_two = sp.integrate(v * 2 * density * below, (v, -oo, oo))
    mean = step_mean * sp.integrate(2 * density * below, (v, -oo, oo)) + step_spread * e_two
    return [sp.simplify(mean - d.formula("barrier_step").subs(barrier, e_two)), sp.simplify(e_two - 1 / sp.sqrt(sp.pi))]


def _parts(d: Derivation) -> list[Any]:
    """The integral of v dG(v) by parts is that of 1 - G above 0 less that of G below: for the law G = F^R, R = 2."""
    below = mp.quad(lambda v: v * 2 * mp.npdf(v) * mp.ncdf(v), [-12, 0, 12])
    return [abs(largest_normal(2) - below) < 1e-12, abs(largest_normal(2) - 1 / mp.sqrt(mp.pi)) < 1e-12]


def _chernoff(d: Derivation) -> list[Any]:
    """exp(t E max) <= E exp(t max) <= R exp(t^2/2) for every t > 0 (Jensen, a maximum below the sum): take the best."""
    t, v, r = sp.Symbol("t", positive=True), sp.Symbol("v", real=True), sp.Symbol("r", positive=True)
    moment = sp.integrate(sp.exp(t * v) * sp.exp(-(v**2) / 2) / sp.sqrt(2 * sp.pi), (v, -oo, oo))
    bound = sp.log(1 + r) / t + sp.log(moment) / t  # R = 1 + r
    best = sp.sqrt(2 * sp.log(1 + r))
    excess = (d.formula("barrier_bound") - step_mean) / step_spread
    found = [
        sp.simplify(moment - sp.exp(t**2 / 2)),
        sp.simplify(sp.diff(bound, t).subs(t, best)),
        sp.simplify(sp.diff(sp.expand_log(bound, force=True), t, 2)).is_positive,
        sp.simplify(bound.subs(t, best) - excess.subs(ranks, 1 + r)),
    ]
    return [*found, *(bool(largest_normal(n) <= sp.N(excess.subs(ranks, n)) + 1e-12) for n in (1, 2, 8, 64, 320))]


def _any_law(d: Derivation) -> list[Any]:
    """E max - mu = int (q(u) - mu)(R u^(R-1) - 1) du, so by Cauchy and Schwarz at most s times the norm of the second.

    Equality where q is linear in u^(R-1): no bound without the law is smaller.
    """
    u, r = sp.Symbol("u", positive=True), sp.Symbol("r", positive=True)
    weight = (1 + r) * u**r - 1  # R = 1 + r
    square = sp.integrate(sp.expand(weight**2), (u, 0, 1))
    excess = ((d.formula("barrier_bound_any") - step_mean) / step_spread).subs(ranks, 1 + r)
    q = u**r
    mean = sp.integrate(q, (u, 0, 1))
    variance = sp.integrate(sp.expand((q - mean) ** 2), (u, 0, 1))
    top = sp.integrate(sp.expand(q * (1 + r) * u**r), (u, 0, 1))
    return [
        sp.simplify(sp.integrate(weight, (u, 0, 1))),
        sp.simplify(square - excess**2),
        excess.is_positive,
        sp.simplify((top - mean) ** 2 / variance - excess**2),
        d.formula("barrier_bound_any").subs(ranks, 1) - step_mean,
    ]


def _rank_faces(d: Derivation) -> list[Any]:
    """The guards never bind: 2 ln R > 10^-30 and 2R - 1 >= 1 from two ranks on, and all agree at one rank."""
    r = sp.Symbol("r", positive=True)
    normal, anyway = "barrier_bound", "barrier_bound_any"
    small = (d.regular(normal).subs(ranks, 1) - step_mean) / step_spread
    return [
        *(sp.simplify(d.formula(normal).subs(ranks, n) - d.regular(normal).subs(ranks, n)) for n in (2, 8, 320)),
        sp.diff(2 * sp.log(1 + r), r).is_positive,
        sp.Abs(small) < sp.Rational(1, 10**14),
        sp.simplify((d.regular(anyway) - d.formula(anyway)).subs(ranks, 1 + r)),
    ]


# --- prefill on any rank ----------------------------------------------------------------------------------------------


def _some_rank(d: Derivation) -> list[Any]:
    """No rank of R prefills with chance (1 - p)^R; then the step is t_step, else t_mix: by induction on the ranks."""
    q = sp.Symbol("q", positive=True)
    some = d.formula("some_rank_prefills")
    one_more = some.subs(ranks, ranks + 1)
    mean = (1 - some) * t_step + some * t_mix
    return [
        some.subs(ranks, 1) - chance,
        sp.simplify((one_more - (some + (1 - some) * chance)).subs(chance, 1 - q)),
        sp.simplify(mean - d.formula("step_with_prefills")),
        d.formula("step_with_prefills").subs(chance, 0) - t_step,
        d.formula("step_with_prefills").subs(chance, 1) - t_mix,
    ]


def _never_lower(d: Derivation) -> list[Any]:
    """It grows with the ranks, and is at least p: one more rank adds (1 - p)^R p."""
    q = sp.Symbol("q", positive=True)
    some = d.formula("some_rank_prefills")
    gap = sp.simplify((some.subs(ranks, ranks + 1) - some).subs(chance, q / (1 + q)))
    return [nonnegative(gap) or gap.is_positive]


# --- experts ----------------------------------------------------------------------------------------------------------


def _payload(d: Derivation) -> list[Any]:
    """Each token goes to k experts: h one-byte values, a 4-byte scale for each 128; back come two-byte values."""
    values, scales = hidden * 1, hidden / 128 * 4
    out = d.formula("dispatch_bandwidth") * t_exchange / (tokens * top_k)
    back = d.formula("combine_bandwidth") * t_exchange / (tokens * top_k)
    return [
        sp.simplify(out - values - scales),
        sp.simplify(back - hidden * 2),
        sp.simplify(back / out - sp.Rational(64, 33)),
    ]


def _inverse(d: Derivation) -> Any:
    bandwidth = d.formula("dispatch_bandwidth")
    return sp.simplify(
        bandwidth.subs(t_exchange, d.formula("dispatch_time").subs(exchange_rate, bandwidth)) - bandwidth
    )


DEEPEP = "DeepEP, low-latency kernels: 128 tokens of 7168, top 8, H800"
_inputs = {"tokens": 128, "top_k": 8, "hidden": 7168}
MEASURED = {
    "dispatch": {8: (77, 98), 16: (118, 63), 32: (155, 48), 64: (173, 43), 128: (192, 39), 256: (194, 39)},
    "combine": {8: (114, 127), 16: (195, 74), 32: (273, 53), 64: (314, 46), 128: (369, 39), 256: (360, 40)},
}

D26 = Derivation(
    id="D26",
    name="Rank barrier",
    statement="A step over R ranks is as long as the slowest, which grows like the spread times sqrt(2 ln R); and "
    "where ranks prefill independently some rank nearly always does, so all of them take mixed steps. Two pools remove "
    "the second.",
    assumptions=(
        "step times of the ranks independent, with one law; normal where a normal is named",
        "independent prefills with the same chance on each rank; a step is mixed as soon as one rank prefills",
        "an exchange of experts moves its payload at one bandwidth",
    ),
    steps=(
        Step("The slowest of R normal ranks takes on the average", step_mean + step_spread * barrier),
        Step(
            "with e_R the integral of 1 - F^R above 0 less that of F^R below; at most",
            step_mean + step_spread * sp.sqrt(2 * sp.log(ranks)),
        ),
        Step("and whatever the law at most", step_mean + step_spread * (ranks - 1) / sp.sqrt(2 * ranks - 1)),
        Step("No rank prefills with chance", (1 - chance) ** ranks),
        Step("so the mean step is", t_step + (t_mix - t_step) * (1 - (1 - chance) ** ranks)),
        Step("An exchange sends each token to k experts", tokens * top_k * hidden * DISPATCH * element),
    ),
    forms=(
        ClosedForm(
            "barrier_step",
            r"\mathrm{E}\max",
            step_mean + step_spread * barrier,
            "s*seq/tok",
            "Mean step of normal ranks that wait for each other; `barrier` is 1.424, 2.070, 2.344, 2.635, 2.898 for 8, "
            "32, 64, 144, 320 ranks.",
            (step_mean, step_spread, barrier),
            shown="s",
            code_symbol="E max",
        ),
        ClosedForm(
            "barrier_bound",
            r"\mathrm{E}\max \le",
            step_mean + step_spread * sp.sqrt(2 * sp.log(ranks)),
            "s*seq/tok",
            "What the mean step of normal ranks does not exceed.",
            (step_mean, step_spread, ranks),
            regular=step_mean + step_spread * sp.sqrt(sp.Max(sp.Rational(1, 10**30), 2 * sp.log(ranks))),
            shown="s",
            code_symbol="E max (at most)",
            conventions=(Convention(sp.Eq(ranks, 1), "ranks = 1: step_mean, although the slope in ranks is infinite"),),
        ),
        ClosedForm(
            "barrier_bound_any",
            r"\mathrm{E}\max \le",
            step_mean + step_spread * (ranks - 1) / sp.sqrt(2 * ranks - 1),
            "s*seq/tok",
            "What the mean step does not exceed, whatever the law of a rank's step.",
            (step_mean, step_spread, ranks),
            regular=step_mean + step_spread * (ranks - 1) / sp.sqrt(sp.Max(1, 2 * ranks - 1)),
            shown="s",
            code_symbol="E max (at most)",
        ),
        ClosedForm(
            "some_rank_prefills",
            r"\Pr",
            1 - (1 - chance) ** ranks,
            "1",
            "Chance that some rank prefills in a step.",
            (chance, ranks),
            code_symbol="Pr",
        ),
        ClosedForm(
            "step_with_prefills",
            "t",
            t_step + (t_mix - t_step) * (1 - (1 - chance) ** ranks),
            "s*seq/tok",
            "Mean step of aggregated ranks; in two pools it is t_step.",
            (t_step, t_mix, chance, ranks),
            shown="s",
            code_symbol="t",
        ),
        ClosedForm(
            "dispatch_bandwidth",
            r"\mathrm{BW}_x",
            tokens * top_k * hidden * DISPATCH / t_exchange,
            "B/s/GPU",
            "Bandwidth of a dispatch to experts in FP8 with scales, by its time.",
            (tokens, top_k, hidden, t_exchange),
            code_symbol="BW",
            dimensional=element * tokens * top_k * hidden * DISPATCH / t_exchange,
        ),
        ClosedForm(
            "combine_bandwidth",
            r"\mathrm{BW}_x",
            tokens * top_k * hidden * COMBINE / t_exchange,
            "B/s/GPU",
            "Bandwidth of a combine from experts in BF16, by its time.",
            (tokens, top_k, hidden, t_exchange),
            code_symbol="BW",
            dimensional=element * tokens * top_k * hidden * COMBINE / t_exchange,
        ),
        ClosedForm(
            "dispatch_time",
            "t_x",
            tokens * top_k * hidden * DISPATCH / exchange_rate,
            "s",
            "Time of a dispatch to experts at a bandwidth; a combine takes 64/33 of it.",
            (tokens, top_k, hidden, exchange_rate),
            code_symbol="t_x",
            dimensional=element * tokens * top_k * hidden * DISPATCH / exchange_rate,
        ),
    ),
    proofs=(
        Proof("two normals exactly", _two_ranks),
        Proof("the two integrals of e_R are its mean", _parts),
        Proof("normal ranks stay below sqrt(2 ln R)", _chernoff),
        Proof("any ranks stay below (R - 1)/sqrt(2R - 1), and some reach it", _any_law),
        Proof("a prefill on some rank, by induction", _some_rank),
        Proof("more ranks, more often", _never_lower),
        Proof("payload of dispatch and combine", _payload),
        Proof("time and bandwidth of a dispatch are inverse", _inverse),
        Proof("the regular forms are the textbook ones beyond one rank", _rank_faces),
    ),
    limits=(
        "A straggler that stays slow, or load that moves together, is no independent rank.",
        "DeepEP's figures count every token as sent k times, also to experts on the same GPU or node.",
    ),
    source="theory, group 5; DeepEP",
    published=(
        *(
            Published(
                f"D26-barrier-{count}",
                f"theory, D26: mean of the largest of {count} standard normals",
                "D",
                printed,
                lambda d, n=count: sp.Float(str(largest_normal(n))),
                rounding=6e-4,
            )
            for count, printed in ((8, 1.424), (32, 2.070), (64, 2.344), (144, 2.635), (320, 2.898))
        ),
        *(
            Published(
                f"D26-some-{count}",
                f"theory, D26: 5 % on each of {count} ranks",
                "D",
                printed,
                "some_rank_prefills",
                {"chance": sp.Rational(1, 20), "ranks": count},
                100,
                "%",
                rounding=half,
            )
            for count, printed, half in ((8, 34.0, 0.5), (32, 81.0, 0.5), (144, 99.9, 0.05))
        ),
        *(
            Published(
                f"V11-{kind}-{width}",
                f"{DEEPEP}: {kind}, EP{width}",
                "P",
                gigabytes,
                f"{kind}_bandwidth",
                _inputs | {"t_exchange": sp.Rational(micros, 10**6)},
                sp.Rational(1, 10**9),
                "GB/s",
                tolerance=0.025,
            )
            for kind, table in MEASURED.items()
            for width, (micros, gigabytes) in table.items()
        ),
    ),
)

DERIVATIONS = (D26,)
