"""A planner that rounds the load of each pool up to workers: how far that is from the balance (part of D08)."""

from typing import Any

import sympy as sp

from derivations._cases import nonnegative
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published
from derivations.costs import rate
from derivations.symbols import N, g_common, g_D, g_P, isl, lam, osl, phi, quantity, r_P
from derivations.units import one

oo = sp.oo
request = one("req")

prompt_time = quantity(
    "prompt_time", r"\mathrm{TTFT} - T_0", "s", "time to first token that queue and prefill may take", 1.9
)

gap_up, gap_down = (1 - phi) * g_P / (N + g_P), phi * g_D / (N + g_D)

# Strictly between 0 and 1 for every positive x, y, z.
x, y, z = sp.symbols("x y z", positive=True)
INSIDE = {phi: z / (1 + z)}


def _enough_workers(d: Derivation) -> list[Any]:
    """ceil(v) = v + s, 0 <= s < 1: the pools hold the load, and exceed it by less than one worker each."""
    s = x / (1 + x)
    up = {
        "planned_prefill_workers": (lam * isl / r_P, g_P),
        "planned_decode_workers": (lam * osl / rate, g_D),
    }
    found: list[Any] = []
    for name, (load, size) in up.items():
        pool = d.formula(name).replace(sp.ceiling, lambda a: a + s) * size
        found += [sp.simplify(pool - load - s * size), nonnegative(size - s * size)]
    return found


def _gap(d: Derivation) -> list[Any]:
    """Pools phi N + e_P and (1 - phi) N + e_D, with e below a worker: how far the share is from phi."""
    e_P, e_D = g_P * x / (1 + x), g_D * y / (1 + y)
    share = (phi * N + e_P) / (N + e_P + e_D)
    off: Any = sp.factor((share - phi).subs(INSIDE))
    up, down = gap_up.subs(INSIDE), gap_down.subs(INSIDE)
    most = d.formula("planner_gap")
    reached = [sp.limit(sp.limit(off, y, 0), x, oo) - up, sp.limit(sp.limit(off, x, 0), y, oo) + down]
    return [
        nonnegative(up - off),
        nonnegative(down + off),
        *(sp.simplify(r) for r in reached),
        sp.simplify(most - sp.Max(gap_up, gap_down)),
        sp.limit(gap_up, N, oo),
        sp.limit(gap_down, N, oo),
    ]


def _excess(d: Derivation) -> list[Any]:
    """The plan exceeds an ideal fleet N by less than a worker of each kind; in multiples of d, that is D08's bound."""
    e_P, e_D = g_P * x / (1 + x), g_D * y / (1 + y)
    most = d.formula("planner_excess")
    plain_bound = d.formula("rounding_bound").replace(sp.floor, lambda a: a)
    return [
        nonnegative(sp.factor(most - (e_P + e_D) / N)),
        sp.limit(sp.limit(most - (e_P + e_D) / N, x, oo), y, oo),
        sp.simplify(most - g_common / N - plain_bound),
    ]


def _waiting(d: Derivation) -> list[Any]:
    """M/M/1 on a worker: 1/(mu - arrivals) = the time allowed, in tokens per second and GPU."""
    arrivals, i = sp.symbols("arrivals isl", positive=True)
    served = g_P * r_P / i
    (most,) = sp.solve(sp.Eq(1 / (served - arrivals), prompt_time), arrivals)
    formula = d.formula("planned_prefill_rate").subs(isl, i)
    enough = {r_P: i / (g_P * prompt_time) + x}
    return [
        sp.simplify((most * i / g_P - formula).subs(enough)),
        formula.subs(i, g_P * prompt_time * (r_P + x)),
        d.formula("planned_prefill_rate").subs(isl, 0) - r_P,
    ]


PLANNING = "arXiv 2603.04716 (DeepSeek-V3.1, H200), 5 million tokens a minute of 6144 in, 512 out"
_requests = sp.Rational(5 * 10**6, 60 * (6144 + 512))

FORMS = (
    ClosedForm(
        "planned_prefill_workers",
        r"n_P / g_P",
        sp.ceiling(lam * isl / (r_P * g_P)),
        "1",
        "Prefill workers of a planner that rounds the load up.",
        (lam, isl, r_P, g_P),
        code_symbol="workers",
        conventions=(Convention(sp.Eq(lam, 0) | sp.Eq(isl, 0), "no load: 0"),),
        note="Piecewise constant: the gradient is 0.",
    ),
    ClosedForm(
        "planned_decode_workers",
        r"n_D / g_D",
        sp.ceiling(lam * osl / (rate * g_D)),
        "1",
        "Decode workers of a planner that rounds the load up; rate is the best decode rate within the objective.",
        (lam, osl, rate, g_D),
        code_symbol="workers",
        conventions=(Convention(sp.Eq(lam, 0) | sp.Eq(osl, 0), "no load: 0"),),
        note="Piecewise constant: the gradient is 0.",
    ),
    ClosedForm(
        "planner_gap",
        r"\left|\frac{n_P}{n_P + n_D} - \phi\right| <",
        sp.Max(gap_up, gap_down),
        "1",
        "Smallest bound on how far a planner's share is from phi, when N GPUs would carry the load exactly.",
        (N, phi, g_P, g_D),
        code_symbol="gap",
    ),
    ClosedForm(
        "planner_excess",
        r"\frac{n_P + n_D}{N} - 1 <",
        (g_P + g_D) / N,
        "1",
        "Smallest bound on the GPUs of a plan above the N that would carry the load exactly, as a share of them.",
        (N, g_P, g_D),
        code_symbol="excess",
    ),
    ClosedForm(
        "planned_prefill_rate",
        r"r_P^{\mathrm{eff}}",
        sp.Max(0, r_P - isl / (g_P * prompt_time)),
        "tok/s/GPU",
        "Prefill tokens per second and GPU that keep the mean time to first token, by M/M/1 on each worker.",
        (r_P, isl, g_P, prompt_time),
        code_symbol="r_P_eff",
        dimensional=sp.Max(0, r_P - request * isl / (g_P * prompt_time)),
    ),
)

PROOFS = (
    Proof("a planner's pools carry the load, each with less than one worker to spare", _enough_workers),
    Proof("its share is within the gap of phi, no smaller gap does, and the gap vanishes in large fleets", _gap),
    Proof("its fleet exceeds the ideal one by the rounding bound and d", _excess),
    Proof("the prefill rate that keeps a mean wait, from M/M/1", _waiting),
)

PUBLISHED = (
    Published(
        "V03a",
        "arXiv 2603.04716: 28 300 tok/s, 6144 tokens, TTFT 2 s of which 0.1 s overhead",
        "S",
        25_000,
        "planned_prefill_rate",
        {"r_P": 28_300, "isl": 6144, "g_P": 1, "prompt_time": sp.Rational(19, 10)},
        unit="tok/s",
        rounding=500,
        reason="a secondary account",
    ),
    Published(
        "V03c",
        f"{PLANNING}: prefill instances of 25 066 tok/s",
        "S",
        3,
        "planned_prefill_workers",
        {"lam": _requests, "isl": 6144, "r_P": 25_066, "g_P": 1},
        unit="instances",
        rounding=0.5,
        reason="the load is 3.07 instances: they round to nearest, a plan that holds the load needs 4",
    ),
    Published(
        "V03c-decode",
        f"{PLANNING}: decode instances of 1700 tok/s",
        "S",
        4,
        "planned_decode_workers",
        {"lam": _requests, "osl": 512, "rate": 1700, "g_D": 1},
        unit="instances",
        rounding=0.5,
        reason="a secondary account",
    ),
)
