"""Costs: the balance of a mix of classes, what it costs, and two types of GPU."""

from typing import Any

import sympy as sp

from derivations._cases import decided, nonnegative
from derivations._traces import DAY6
from derivations.core import (
    ClosedForm,
    Convention,
    Derivation,
    Proof,
    Published,
    Step,
    both_faces_agree,
    value,
)
from derivations.functions import Ratio
from derivations.symbols import (
    B,
    N,
    hit,
    isl,
    osl,
    phi,
    quantity,
    r_P,
    t_D,
    t_P,
    t_step,
)

oo = sp.oo

x, y = sp.symbols("x y", positive=True)

# --- D06 ------------------------------------------------------------------------------------------------------------

cost_P = quantity("cost_P", "c_P", "USD/GPU/s", "price of a prefill GPU", 5.5e-4, "nonnegative")
cost_D = quantity("cost_D", "c_D", "USD/GPU/s", "price of a decode GPU", 5.5e-4, "nonnegative")
cost = quantity("cost", "c", "USD/GPU/s", "price of a GPU", 5.5e-4, "nonnegative")
rate = quantity("rate", "r", "tok/s/GPU", "tokens per second and GPU in one phase", 2000.0)
price_hit = quantity("price_hit", "p_h", "USD/tok", "price of a cached input token", 1.4e-7, "nonnegative")
price_miss = quantity("price_miss", "p_m", "USD/tok", "price of a computed input token", 5.5e-7, "nonnegative")
price_out = quantity("price_out", "p_o", "USD/tok", "price of an output token", 2.19e-6, "nonnegative")
prefill_one = quantity("prefill_one", "a_1", "req/s", "requests that all GPUs of type 1 could prefill", 50.0)
decode_one = quantity("decode_one", "b_1", "req/s", "requests that all GPUs of type 1 could decode", 20.0)
prefill_two = quantity("prefill_two", "a_2", "req/s", "requests that all GPUs of type 2 could prefill", 40.0)
decode_two = quantity("decode_two", "b_2", "req/s", "requests that all GPUs of type 2 could decode", 60.0)

a1, b1, a2, b2 = prefill_one, decode_one, prefill_two, decode_two
TYPES = (a1, b1, a2, b2)
SWAPPED = {a1: a2, b1: b2, a2: a1, b2: b1}


def _one_first(a1: Any, b1: Any, a2: Any, b2: Any) -> Any:
    """The balanced rate when type 1 takes prefill first: type 2 is split, or type 1 itself, whichever is less."""
    return sp.Min(b2 * (a1 + a2) / (a2 + b2), a1 * (b1 + b2) / (a1 + b1))


two_types = sp.Max(_one_first(a1, b1, a2, b2), _one_first(a2, b2, a1, b1))


def _classes(d: Derivation) -> list[Any]:
    """Three classes: pools finish the mix at one rate when balanced in the mean works, and only the means count."""
    weights, prefill, decode = (sp.symbols(f"{s}:3", positive=True) for s in "wpd")
    share = sp.Symbol("share")
    means = [sum(w * v for w, v in zip(weights, work, strict=True)) / sum(weights) for work in (prefill, decode)]
    ratio = d.formula("balance_ratio_work")
    (solved,) = sp.solve(sp.Eq(share * means[1], (1 - share) * means[0]), share)
    of_lengths = ratio.subs({t_P: isl / r_P, t_D: osl * t_step / B})
    return [
        sp.simplify(solved - ratio.subs({t_P: means[0], t_D: means[1]})),
        sp.simplify(of_lengths - B * isl / (B * isl + r_P * t_step * osl)),
    ]


def _not_the_mean_ratio(d: Derivation) -> list[Any]:
    """Classes (1, 1) and (9, 3): the mix balances at 10/14, the ratios are 1/2 and 3/4."""
    ratio = d.formula("balance_ratio_work")
    mixed, first, second = (ratio.subs({t_P: p, t_D: q}) for p, q in ((10, 4), (1, 1), (9, 3)))
    return [mixed - sp.Rational(5, 7), (first + second) / 2 - sp.Rational(5, 8)]


def _spend(d: Derivation) -> list[Any]:
    """Money per second of a balanced fleet, by pool and over its throughput."""
    share = d.formula("balance_ratio_work")
    spent_P, spent_D = cost_P * share * N, cost_D * (1 - share) * N
    throughput = N / (t_P + t_D)
    return [
        sp.simplify(spent_P / (spent_P + spent_D) - d.formula("spend_share")),
        sp.simplify((spent_P + spent_D) / throughput - d.formula("cost_per_request")),
        sp.simplify(d.formula("spend_share").subs(cost_D, cost_P) - share),
    ]


def _income(d: Derivation) -> list[Any]:
    earned = d.formula("income_per_request")
    return [
        sp.expand(earned - hit * isl * price_hit - (isl - hit * isl) * price_miss - osl * price_out),
        sp.expand(earned.subs(hit, 1) - isl * price_hit - osl * price_out),
    ]


def _linear_program(d: Derivation) -> list[Any]:
    """max X with X <= u a1 + v a2, X <= (1-u) b1 + (1-v) b2, 0 <= u, v <= 1: both certificates, in both cases.

    Type 1 has the advantage in prefill: a1/b1 = (1 + x) a2/b2. Dual: weights m, 1 - m >= 0 of the two rows, value
    (1-m)(b1+b2) + (m a1 - (1-m) b1)^+ + (m a2 - (1-m) b2)^+.
    """
    best, found = d.formula("two_type_throughput"), []
    for two_split in (True, False):
        if two_split:  # type 1 prefills alone, a1 <= b2, and type 2 helps
            at = {b2: a1 + y, b1: a1 * (a1 + y) / (a2 * (1 + x))}
            u, v, m = sp.S.One, (b2 - a1) / (a2 + b2), b2 / (a2 + b2)
        else:  # type 2 decodes alone, a1 > b2, and type 1 helps
            at = {a1: b2 + y, b1: (b2 + y) * b2 / (a2 * (1 + x))}
            u, v, m = (b1 + b2) / (a1 + b1), sp.S.Zero, b1 / (a1 + b1)
        here = decided(best.subs(at, simultaneous=True))
        dual = (1 - m) * (b1 + b2) + sp.Max(0, m * a1 - (1 - m) * b1) + sp.Max(0, m * a2 - (1 - m) * b2)
        inside = [w.subs(at, simultaneous=True) for w in (u, 1 - u, v, 1 - v, m, 1 - m)]
        rows = [
            (u * a1 + v * a2).subs(at, simultaneous=True),
            ((1 - u) * b1 + (1 - v) * b2).subs(at, simultaneous=True),
        ]
        found += [*(nonnegative(w) for w in inside), *(sp.simplify(row - here) for row in rows)]
        found.append(sp.simplify(decided(dual.subs(at, simultaneous=True)) - here))
    return found


def _either_order(d: Derivation) -> Any:
    best = d.formula("two_type_throughput")
    return best - best.subs(SWAPPED, simultaneous=True)


def _equal_types(d: Derivation) -> list[Any]:
    """One type twice is one fleet; and the published example, where 47.5 GPUs of type 2 prefill."""
    best = d.formula("two_type_throughput")
    same = {a2: a1, b2: b1}
    example = {a1: 5, b1: 1, a2: 100, b2: 100}
    split = ((b2 - a1) / (a2 + b2)).subs(example) * 100
    return [
        sp.simplify(decided(best.subs(same)) - 2 * a1 * b1 / (a1 + b1)),
        split - sp.Rational(95, 2),
        best.subs(example) - (5 + split),
    ]


def _cheapest(d: Derivation) -> list[Any]:
    """Types bought freely: the cost of a phase is linear in the shares of the types, so its least is at one end."""
    first, second = (
        d.formula("phase_price").subs({cost: c, rate: r}) for c, r in (sp.symbols("c1 r1"), sp.symbols("c2 r2"))
    )
    share, tokens, gpus = sp.symbols("share tokens gpus", positive=True)
    paid = tokens * (share * first + (1 - share) * second)
    in_all = d.formula("phase_price") * rate * gpus  # tokens per second times price is rent per second
    return [sp.diff(paid, share, 2), sp.expand(paid.subs(share, 1) - tokens * first), sp.simplify(in_all - cost * gpus)]


PLANNING = "arXiv 2603.04716 (DeepSeek-V3.1, H200)"
SOFT = "a secondary account"

D06 = Derivation(
    id="D06",
    name="Distributions, classes and costs",
    statement="Mean works per request fix the split, whatever the distributions and classes; prices turn it into a "
    "share of the spending. Of two types of GPU the one with the comparative advantage in prefill takes it first.",
    assumptions=(
        "r_P does not depend on the length",
        "classes share one decode batch: one t_step, at the pooled context and batch",
        "two types: fixed numbers, any GPU may take either role, each type with its own two rates",
    ),
    steps=(
        Step(
            "Work of a pool is linear in the requests, so classes enter by their mean works",
            sp.Eq(phi, t_P / (t_P + t_D)),
        ),
        Step("A request costs", cost_P * t_P + cost_D * t_D),
        Step("Two types: the requests prefilled and the requests decoded trade off along two straight lines", a1 + a2),
        Step(
            "of which the outer one starts with the type of the larger a/b; the split of the other type is",
            (b2 - a1) / (a2 + b2),
        ),
        Step("Types bought freely: each phase takes its own cheapest", cost / rate),
    ),
    forms=(
        ClosedForm(
            "balance_ratio_work",
            r"\phi",
            t_P / (t_P + t_D),
            "1",
            "Balance ratio from the mean works of a request, over all classes.",
            (t_P, t_D),
            regular=Ratio(t_P, t_P + t_D),
            code_symbol="phi",
            conventions=(Convention(sp.Eq(t_P, 0) & sp.Eq(t_D, 0), "t_P = t_D = 0 (no work to balance): 0"),),
        ),
        ClosedForm(
            "cost_per_request",
            r"\mathrm{cost}",
            cost_P * t_P + cost_D * t_D,
            "USD/req",
            "Price of serving one request in a balanced fleet.",
            (cost_P, cost_D, t_P, t_D),
        ),
        ClosedForm(
            "spend_share",
            r"\psi",
            cost_P * t_P / (cost_P * t_P + cost_D * t_D),
            "1",
            "Share of the spending that goes to the prefill pool.",
            (cost_P, cost_D, t_P, t_D),
            regular=Ratio(cost_P * t_P, cost_P * t_P + cost_D * t_D),
            code_symbol="psi",
            conventions=(
                Convention(sp.Eq(cost_P * t_P, 0) & sp.Eq(cost_D * t_D, 0), "nothing is spent on either phase: 0"),
            ),
        ),
        ClosedForm(
            "income_per_request",
            r"\mathrm{income}",
            isl * (hit * price_hit + (1 - hit) * price_miss) + osl * price_out,
            "USD/req",
            "Income from one request at token prices that tell cached input from computed input.",
            (isl, osl, hit, price_hit, price_miss, price_out),
        ),
        ClosedForm(
            "phase_price",
            r"c / r",
            cost / rate,
            "USD/tok",
            "Price of a token in one phase on one type of GPU; bought freely, a phase takes the type with the least.",
            (cost, rate),
        ),
        ClosedForm(
            "two_type_throughput",
            r"X^\ast",
            two_types,
            "req/s",
            "Requests per second of two types of GPU in fixed numbers, each GPU in its best role.",
            TYPES,
            code_symbol="X",
        ),
    ),
    proofs=(
        Proof("three classes balance at the ratio of their mean works, which only needs mean lengths", _classes),
        Proof("the mean of the classes' own ratios is another number (a counter-example)", _not_the_mean_ratio),
        Proof("share of spending and cost per request, from money per second over throughput", _spend),
        Proof("income adds up over the three kinds of tokens", _income),
        Proof("two types: a primal and a dual solution with this value, so it is optimal", _linear_program),
        Proof("the names of the types do not matter", _either_order),
        Proof(
            "two equal types are one fleet; (1, 100) GPUs with rates (5, 1) and (1, 1): 47.5 of type 2", _equal_types
        ),
        Proof("bought freely, mixing types in a phase never beats the cheaper end", _cheapest),
        both_faces_agree("balance_ratio_work", "spend_share"),
    ),
    limits=(
        "With quadratic attention the mean work needs the second moment of the length (D07).",
        "The type that prefills first is not the only one that prefills: the other may be split.",
        "KV must move between types; rates of a type that depend on the batch of the other are not covered.",
    ),
    source="theory, group 1; comparative advantage after the author of the article (2025)",
    published=(
        Published(
            "V02",
            f"{DAY6}: daily cost of 226.75 nodes of 8 GPUs at 2 USD per GPU-hour",
            "P",
            87_072,
            "cost_per_request",
            # The day as one request. Both phases pay one price, so only the sum of the works counts.
            {
                "cost_P": sp.Rational(2, 3600),
                "cost_D": sp.Rational(2, 3600),
                "t_P": sp.Rational("226.75") * 8 * 86400,
                "t_D": 0,
            },
            unit="USD",
            rounding=0.5,
        ),
        Published(
            "V02-income",
            f"{DAY6}: daily theoretical income, 342e9 cached of 608e9 input and 168e9 output tokens",
            "P",
            562_027,
            "income_per_request",
            {
                "isl": 608 * 10**9,
                "osl": 168 * 10**9,
                "hit": sp.Rational(342, 608),
                "price_hit": sp.Rational(14, 10**8),
                "price_miss": sp.Rational(55, 10**8),
                "price_out": sp.Rational(219, 10**8),
            },
            unit="USD",
            tolerance=2e-4,
        ),
        Published(
            "V23",
            "Step-3 (2507.19427): 4039 against 2324 tok/s/GPU of DeepSeek-V3",
            "P",
            1.74,
            lambda d: (
                value(d.formula("phase_price"), {"cost": 1, "rate": 2324})
                / value(d.formula("phase_price"), {"cost": 1, "rate": 4039})
            ),
            rounding=5e-3,
        ),
        Published(
            "V03b",
            f"{PLANNING}: P/D ratio of instances, 6144 and 512 tokens, 25 066 and 1700 tok/s",
            "S",
            0.82,
            lambda d: (
                1
                / (
                    1
                    / value(
                        d.formula("balance_ratio_work"),
                        {"t_P": sp.Rational(6144, 25066), "t_D": sp.Rational(512, 1700)},
                    )
                    - 1
                )
            ),
            tolerance=0.01,
            reason=SOFT,
        ),
    ),
)

GENERATED = "requests"
DERIVATIONS = (D06,)
