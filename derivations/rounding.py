"""Rounding: what whole workers cost, how large a fleet must be, and what an operator can do about it."""

import math
from typing import Any

import sympy as sp

from derivations import _lattice, _planner
from derivations._cases import decided, nonnegative
from derivations._traces import DAY6
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step
from derivations.functions import Least, Ratio
from derivations.symbols import N, g_common, g_D, g_P, isl, lam, n_D, n_P, phi, quantity, r_P
from derivations.units import one

oo = sp.oo
gpu = one("GPU")

epsilon = quantity("epsilon", r"\varepsilon", "1", "share of the throughput that rounding may cost", 0.02)

whole = sp.floor(N / g_common) * g_common  # the GPUs that whole workers can use
bound = (g_P + g_D - g_common + (N - whole)) / N
efficiency = sp.Min(n_P / (phi * N), n_D / ((1 - phi) * N))
left_over = phi * N - sp.floor(phi * N)
unit_loss = sp.Min(left_over / phi, (1 - left_over) / (1 - phi)) / N

# Strictly between 0 and 1 for every positive x, y, z.
w, x, y, z = sp.symbols("w x y z", positive=True)
INSIDE = {phi: z / (1 + z)}


def _efficiency_is_a_rate(d: Derivation) -> list[Any]:
    """Pools with works t_P, t_D complete min(n_P/t_P, n_D/t_D); as a share of the N/(t_P + t_D) of a perfect split."""
    t_P, t_D = z, sp.S.One  # works in the proportion of phi = z / (1 + z)
    found = []
    for n in ({n_P: z * (x + y), n_D: y}, {n_P: z * y, n_D: x + y}):
        rate = sp.Min(n_P / t_P, n_D / t_D).subs(n)
        shared = d.formula("split_efficiency").subs(INSIDE).subs(n)
        found.append(sp.simplify(decided(shared) - decided(rate) * (t_P + t_D) / N))
    return found


def _efficiency_faces(d: Derivation) -> list[Any]:
    """Both orders of the two terms inside; at the ends only the phase that has work counts."""
    regular, found = d.regular("split_efficiency"), []
    for n in ({n_P: z * (x + y), n_D: y}, {n_P: z * y, n_D: x + y}):
        at = INSIDE | n
        found.append(sp.simplify(decided(regular.subs(at)) - decided(d.formula("split_efficiency").subs(at))))
    p, q = sp.symbols("p q", positive=True)
    only = regular.subs({n_P: p, n_D: q})
    return [*found, sp.simplify(only.subs(phi, 0).doit() - q / N), sp.simplify(only.subs(phi, 1).doit() - p / N)]


def _unit_cases() -> tuple[dict[Any, Any], ...]:
    """phi N = k + f with f = x/(1 + x): f < phi and f > phi, in a fleet of w + 1 GPUs."""
    f, fleet = x / (1 + x), w + 1
    below = f * w + (w - f * w) * y / (1 + y)
    above = f * w / (1 + y)
    return tuple({"f": f, "k": k, phi: (k + f) / fleet, N: fleet} for k in (below, above))


def _unit_formula(d: Derivation, case: dict[Any, Any]) -> Any:
    """The formula at a case, its floor written out as k."""
    at = {phi: case[phi], N: case[N]}
    return decided(d.formula("unit_loss").subs(at).replace(sp.floor, lambda _: case["k"]))


def _unit_plans(d: Derivation) -> list[Any]:
    """The best of rounding down and up. Fewer or more GPUs only move further from the balance, on a monotone branch."""
    found = []
    for case in _unit_cases():
        k, at = case["k"], {phi: case[phi], N: case[N]}
        down, up = (
            decided(d.formula("split_efficiency").subs({n_P: k + more, n_D: N - k - more}).subs(at)) for more in (0, 1)
        )
        best = decided(sp.Max(sp.factor(down), sp.factor(up)))
        found.append(sp.simplify(1 - best - _unit_formula(d, case)))
    return found


def _unit_worst(d: Derivation) -> list[Any]:
    """Never above 1/N, met where f = phi, which is phi = k / (N - 1)."""
    found: list[Any] = []
    for case in _unit_cases():
        loss = _unit_formula(d, case)
        found += [nonnegative(1 / case[N] - loss), nonnegative(loss)]
    k, size = sp.symbols("k size", positive=True)
    share = k / (size - 1)
    at_worst = d.formula("unit_loss").subs({N: size, phi: share}).replace(sp.floor, lambda _: k)
    found += [sp.simplify(share * size - k - share), sp.simplify(at_worst - 1 / size)]
    f, p = sp.symbols("f p", positive=True)
    return [*found, *(solved - p for solved in sp.solve(sp.Eq(f / p, (1 - f) / (1 - p)), f))]


def _unit_mean(d: Derivation) -> list[Any]:
    """f uniform on [0, 1): the same at every phi."""
    f, p = sp.symbols("f p", positive=True)
    mean = sp.integrate(f / p, (f, 0, p)) + sp.integrate((1 - f) / (1 - p), (f, p, 1))
    return [sp.simplify(mean / N - d.formula("mean_unit_loss")), sp.simplify(mean - sp.Rational(1, 2))]


def _unit_faces(d: Derivation) -> list[Any]:
    found = []
    for case in _unit_cases():
        at = {phi: case[phi], N: case[N]}
        regular = d.regular("unit_loss").replace(sp.floor, lambda _, c=case: c["k"])
        found.append(sp.simplify(decided(regular.subs(at)) - _unit_formula(d, case)))
    return [*found, d.regular("unit_loss").subs(phi, 0), d.regular("unit_loss").subs(phi, 1)]


def _bound_holds(d: Derivation) -> list[Any]:
    """For the efficiency e = 1 - bound: n_P = g_P ceil(e phi N / g_P) and n_D likewise fit into the fleet.

    ceil(v) = v + s with 0 <= s < 1, so n_P + n_D < e N + g_P + g_D, which is `whole` + d; both sides are multiples of
    d, so n_P + n_D <= `whole` <= N.
    """
    kept = (1 - d.formula("rounding_bound")) * N
    s_P, s_D = x / (1 + x), y / (1 + y)
    used = phi * kept + s_P * g_P + (1 - phi) * kept + s_D * g_D
    p, q, i, j = sp.symbols("p q i j", integer=True, positive=True)
    return [
        sp.simplify(kept + g_P + g_D - (whole + g_common)),
        sp.simplify(kept + g_P + g_D - used).is_positive,
        sp.expand((i * p * g_common + j * q * g_common) / g_common).is_integer,
    ]


def _divisible(d: Derivation) -> Any:
    """(b): for N a multiple of d the floor is N / d and the bound (g_P + g_D - d) / N."""
    exact = d.formula("rounding_bound").replace(sp.floor, lambda a: a)
    return sp.simplify(exact - (g_P + g_D - g_common) / N)


def _bound_met(d: Derivation) -> list[Any]:
    """Where e N = i g_P + j g_D and phi is that share: more efficiency needs i + 1 and j + 1 workers, above N."""
    i, j = sp.symbols("i j", positive=True)
    total = i * g_P + j * g_D
    used = total + g_P + g_D - g_common  # `whole`, when the bound leaves exactly `total`
    fleet = used + g_common * x / (1 + x)  # and fewer than d more
    loss = d.formula("rounding_bound").replace(sp.floor, lambda _: used / g_common).subs(N, fleet)
    plan = {n_P: i * g_P, n_D: j * g_D, phi: i * g_P / total, N: fleet}
    reached = d.formula("split_efficiency").subs(plan, simultaneous=True)
    return [
        sp.simplify(1 - decided(reached) - loss),
        sp.simplify((i + 1) * g_P + (j + 1) * g_D - fleet).is_positive,
    ]


def _always_tight(d: Derivation) -> list[Any]:
    """From lcm(g_P, g_D) on: each multiple of d from d (p - 1)(q - 1) on is i g_P + j g_D (Sylvester), g = d p, d q."""
    p, q = sp.symbols("p q", positive=True)
    sizes = {g_P: g_common * p, g_D: g_common * q}
    least = d.formula("tight_fleet").subs(sizes)
    found = [sp.expand(least - (sizes[g_P] + sizes[g_D] - g_common) - g_common * (p - 1) * (q - 1))]
    for first in range(1, 9):
        for second in range(1, 9):
            if math.gcd(first, second) == 1:
                start = (first - 1) * (second - 1)
                found.append(all(_lattice.combines(n, first, second) for n in range(start, start + first * second)))
                found.append(start == 0 or not _lattice.combines(start - 1, first, second))
    return found


def _searched(d: Derivation) -> list[Any]:
    """Every fleet up to 14 GPUs, workers up to 4: the worst loss over all phi, exactly; none above the bound."""
    lost, tight_from, found = d.formula("rounding_bound"), d.formula("tight_fleet"), []
    for first in range(1, 5):
        for second in range(1, 5):
            common = math.gcd(first, second)
            sizes = {g_P: first, g_D: second, g_common: common}
            here = lost.subs(sizes)
            for fleet in range(1, 15):
                worst = _lattice.least_kept_searched(fleet, first, second)
                allowed = fleet - int(here.subs(N, fleet) * fleet)
                found.append(worst == _lattice.least_kept(fleet, first, second))
                found.append(worst >= allowed)
                found.append((worst == allowed) == _lattice.combines(allowed, first, second))
                usable = fleet // common * common
                found.append(worst == allowed or usable < int(tight_from.subs(sizes)))
    return found


def _break_even(d: Derivation) -> list[Any]:
    """At the fleet without its rounding up the bound is epsilon, and it falls from there on."""
    exact = d.formula("rounding_bound").replace(sp.floor, lambda a: a)
    worst = d.formula("rounding_bound").replace(sp.floor, lambda a: a - 1 + 1 / g_common)  # N mod d = d - 1
    found = []
    for name, loss in (("break_even_fleet", exact), ("break_even_fleet_any", worst)):
        fleet = d.formula(name).replace(sp.ceiling, lambda a: a)
        numerator = sp.simplify(loss * N)
        found += [sp.simplify(loss.subs(N, fleet) - epsilon), sp.diff(numerator, N)]
    return found


_phi_day = sp.Rational(608, 73_700) / (sp.Rational(608, 73_700) + sp.Rational(168, 14_800))
UNITS = {"g_P": 4, "g_D": 18, "g_common": 2}
WIDE = {"g_P": 4, "g_D": 40, "g_common": 4}


def _bound_check(id: str, words: str, printed: float, at: dict[str, Any], fleet: int, rounding: float) -> Published:
    return Published(id, words, "D", printed, "rounding_bound", at | {"N": fleet}, rounding=rounding)


D08 = Derivation(
    id="D08",
    name="Rounding loss",
    statement="Whole workers of g_P and g_D GPUs lose at most (g_P + g_D - d + N mod d)/N of the throughput, d their "
    "greatest common divisor; from a fleet of lcm(g_P, g_D) on some mix loses exactly that. Unit workers lose at most "
    "1/N, and half of it in the mean. A planner that rounds each pool's load up tends to the same split.",
    assumptions=(
        "those of D01, with 0 < phi < 1",
        "GPUs that make no whole worker stay idle",
        "the mean of unit workers: the fraction of phi N is uniform",
        "the planner: loads and worker rates are known and constant",
    ),
    steps=(
        Step("A plan completes, as a share of the perfect split's rate", efficiency),
        Step("Unit workers: phi N lies between two whole numbers, a fraction f above the lower", left_over),
        Step(
            "so rounding down or up loses, whichever is less",
            sp.Min(left_over / phi, (gpu - left_over) / (1 - phi)) / N,
        ),
        Step(
            "Efficiency e needs g_P ceil(e phi N/g_P) + g_D ceil(e (1 - phi) N/g_D) GPUs, below e N and",
            g_P + g_D,
        ),
        Step("Both sides are multiples of d, so it fits when e N + g_P + g_D reaches at most", whole + g_common),
        Step(
            "At phi = i g_P/(i g_P + j g_D), e N = i g_P + j g_D, more needs one more worker of both kinds",
            n_P + g_P + n_D + g_D,
        ),
        Step(
            "Planner: each pool is its load rounded up to workers",
            sp.Eq(n_P, g_P * sp.ceiling(lam * isl / (r_P * g_P))),
        ),
    ),
    forms=(
        ClosedForm(
            "split_efficiency",
            r"\eta",
            sp.Min(n_P * (1 - phi), n_D * phi) / (phi * (1 - phi) * N),
            "1",
            "Throughput of a plan as a share of that of N GPUs split at phi exactly.",
            (n_P, n_D, N, phi),
            regular=Least(Ratio(n_P, phi * N, oo), Ratio(n_D, (1 - phi) * N, oo)),
            code_symbol="efficiency",
            conventions=(
                Convention(
                    (sp.Eq(phi, 0) & sp.Eq(n_P, 0)) | (sp.Eq(phi, 1) & sp.Eq(n_D, 0)),
                    "phi = 0 and n_P = 0, or phi = 1 and n_D = 0 (one phase only): n_D/N or n_P/N and its derivative, "
                    "but for the size of the idle pool it jumps",
                ),
            ),
        ),
        ClosedForm(
            "unit_loss",
            r"1 - \eta",
            unit_loss,
            "1",
            "Share of the throughput that the best plan with workers of one GPU loses.",
            (N, phi),
            regular=sp.Piecewise(
                (0, sp.Eq(phi, 0) | sp.Eq(phi, 1)),
                (Least(Ratio(left_over, phi, oo), Ratio(1 - left_over, 1 - phi, oo)) / N, True),
            ),
            code_symbol="loss",
            dimensional=sp.Min(left_over / phi, (gpu - left_over) / (1 - phi)) / N,
            conventions=(Convention(sp.Eq(phi, 0) | sp.Eq(phi, 1), "phi = 0 or 1 (one phase only): 0"),),
        ),
        ClosedForm(
            "mean_unit_loss",
            r"\overline{1 - \eta}",
            1 / (2 * N),
            "1",
            "Mean of the loss of unit workers over a uniform fraction of phi N; it does not depend on phi.",
            (N,),
            code_symbol="loss",
            dimensional=gpu / (2 * N),
        ),
        ClosedForm(
            "rounding_bound",
            r"1 - \eta \leq \varepsilon_N",
            bound,
            "1",
            "Largest share of the throughput that whole workers can lose, whatever the mix; 1 or more says nothing.",
            (N, g_P, g_D, g_common),
            code_symbol="bound",
            note="Piecewise smooth in N and g_common: the derivative is that between two jumps.",
        ),
        ClosedForm(
            "tight_fleet",
            r"\mathrm{lcm}(g_P, g_D)",
            g_P * g_D / g_common,
            "GPU",
            "Fleet from which on some mix loses exactly the rounding bound.",
            (g_P, g_D, g_common),
            code_symbol="N_tight",
        ),
        ClosedForm(
            "break_even_fleet",
            r"N^\ast",
            sp.ceiling((g_P + g_D - g_common) / epsilon),
            "GPU",
            "Fleet from which on rounding costs at most epsilon, among fleets that are multiples of g_common.",
            (g_P, g_D, g_common, epsilon),
            code_symbol="N_min",
            dimensional=sp.ceiling((g_P + g_D - g_common) / epsilon),
            note="Piecewise constant: the gradient is 0.",
        ),
        ClosedForm(
            "break_even_fleet_any",
            r"N^\ast",
            sp.ceiling((g_P + g_D - 1) / epsilon),
            "GPU",
            "Fleet from which on rounding costs at most epsilon in every fleet.",
            (g_P, g_D, epsilon),
            code_symbol="N_min",
            dimensional=sp.ceiling((g_P + g_D - gpu) / epsilon),
            note="Piecewise constant: the gradient is 0.",
        ),
        *_planner.FORMS,
    ),
    proofs=(
        Proof("the efficiency is the rate of a plan over that of the perfect split", _efficiency_is_a_rate),
        Proof("(a) unit workers: rounding down or up, whichever loses less", _unit_plans),
        Proof("(a) never above 1/N, which is met at phi = k/(N - 1)", _unit_worst),
        Proof("(a) the mean is 1/(2 N) at every phi", _unit_mean),
        Proof("(b) is (c) for N a multiple of d", _divisible),
        Proof("(c) the workers for an efficiency of 1 - bound fit into the fleet", _bound_holds),
        Proof("the bound is met where it leaves i g_P + j g_D GPUs", _bound_met),
        Proof("which it does from the least common multiple on", _always_tight),
        Proof(
            "every small fleet searched in exact fractions: worst case, bound, and when they are equal",
            _searched,
        ),
        Proof("the break-even fleets", _break_even),
        *_planner.PROOFS,
        Proof(
            "the regular forms are the same inside and right at the ends",
            lambda d: [*_efficiency_faces(d), *_unit_faces(d)],
        ),
    ),
    limits=(
        "Below g_P + g_D GPUs a pool is empty; the bound is then 1 or more.",
        "Below lcm(g_P, g_D) the worst case may be less than the bound: it is 1 - min(i g_P + j g_D)/N over the i, j "
        "for which one more worker of both kinds does not fit.",
        "The worst case with i or j = 0 is approached (phi -> 0, 1), not met; for N = 2 unit workers never meet 1/2.",
        "A planner that multiplies the prefill load by min(1, TTFT actual/expected) holds less prefill than this.",
        "One that rounds to nearest instead of up saves a worker and can fall short of the load by half of one.",
    ),
    source="theory, group 2: ours; planner: NVIDIA Dynamo planner documents",
    published=(
        _bound_check("D08-deepseek", f"{DAY6}: units of 4 and 18 nodes, 226 nodes", 0.088, UNITS, 226, 5e-4),
        _bound_check("D08-wide", f"{DAY6}: decode units of 40 nodes, 226 nodes", 0.186, WIDE, 226, 5e-4),
        _bound_check("D08-wide-228", f"{DAY6}: decode units of 40 nodes, 228 nodes", 0.175, WIDE, 228, 5e-4),
        _bound_check("D08-even", "theory: workers of 2 and 4", 0.10, {"g_P": 2, "g_D": 4, "g_common": 2}, 40, 1e-9),
        _bound_check("D08-odd", "theory: workers of 2 and 4", 0.122, {"g_P": 2, "g_D": 4, "g_common": 2}, 41, 5e-4),
        Published(
            "D08-plan",
            f"{DAY6}: best plan for 226 nodes, 25 prefill and 7 decode units, loses",
            "D",
            0.037,
            lambda d: 1 - d.formula("split_efficiency").subs({n_P: 100, n_D: 126, N: 226, phi: _phi_day}),
            rounding=5e-4,
        ),
        Published(
            "D08-fleet",
            f"{DAY6}: units of 4 and 18 nodes, 1 %",
            "D",
            2000,
            "break_even_fleet",
            UNITS | {"epsilon": sp.Rational(1, 100)},
            unit="nodes",
            rounding=0.5,
        ),
        Published(
            "D08-fleet-any",
            f"{DAY6}: units of 4 and 18 nodes, 1 %, every fleet",
            "D",
            2100,
            "break_even_fleet_any",
            UNITS | {"epsilon": sp.Rational(1, 100)},
            unit="nodes",
            rounding=0.5,
        ),
        *_planner.PUBLISHED,
    ),
)

DERIVATIONS = (D08,)
