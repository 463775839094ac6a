"""Capacity: how large a buffer is worth its rent."""

import itertools
import random
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Derivation, Proof, Step
from derivations.shock import D14
from derivations.symbols import Q0, C, delta, quantity, tau

oo = sp.oo

rent = quantity("rent", "c_C", "USD/B/s", "rent of a byte of buffer per second", 1.4e-15)
price_lost = quantity("price_lost", "c_U", "USD/B", "value of a byte of flow that is lost", 5.8e-12)
shock_rate = quantity("shock_rate", r"\nu", "1/s", "swings per second", 1 / 600, "nonnegative")
swing = quantity("swing", "S", "B", "what one swing would put into the buffer, at random", 5e11, "nonnegative")
swing_mean = quantity("swing_mean", "m", "B", "mean swing", 5e11)
swing_max = quantity("swing_max", r"S_{\max}", "B", "largest swing", 1e12)

x, e, y = sp.symbols("x e y", positive=True)
worth = shock_rate * price_lost  # what a byte that every swing would lose is worth per second
chance = rent / sp.Max(rent, worth)
# Cases with positive symbols: capacity is worth its rent at first (an excess e over it), or never.
PAYS = {shock_rate: (1 + e) * rent / price_lost}
NEVER = {shock_rate: rent / price_lost / (1 + e)}
JUST = {shock_rate: rent / price_lost}


def _cost(spilled: Any) -> Any:
    """What a capacity costs per second if a swing spills `spilled` bytes in the mean."""
    return rent * C + worth * spilled


# --- the condition, for any distribution ------------------------------------------------------------------------------


def _swing_of_a_step(d: Derivation) -> list[Any]:
    """A surplus n for the lead time, from an empty buffer, loses (S - C)^+ with S = n tau."""
    n, t = sp.symbols("n tau", positive=True)
    spilled = D14.formula("lost_bytes").subs({delta: n, tau: t, Q0: 0}, simultaneous=True)
    return [sp.simplify(spilled.subs(C, n * t / (1 + e)) - n * t * e / (1 + e)), spilled.subs(C, n * t * (1 + e))]


def _slope_from_density(d: Derivation) -> list[Any]:
    """With a density f: slope rent - worth Pr(S > C), curvature worth f(C) >= 0."""
    f = sp.Function("f", nonnegative=True)
    cost = _cost(sp.Integral((x - C) * f(x), (x, C, oo)))
    slope, curvature = sp.diff(cost, C), sp.diff(cost, C, 2)
    tail = sp.Integral(f(x), (x, C, oo))
    return [
        sp.expand(slope.doit() - (rent - worth * tail).doit()),
        sp.simplify(curvature.doit() - worth * f(C)),
        (worth * f(C)).is_nonnegative,
    ]


def _slope_from_distribution(d: Derivation) -> list[Any]:
    """With any distribution F, E[(S - C)^+] is the integral of 1 - F beyond C: the slope vanishes at the chance."""
    cdf = sp.Function("F")
    slope = sp.diff(_cost(sp.Integral(1 - cdf(x), (x, C, oo))), C).doit()
    best = d.formula("overflow_chance")
    stationary = slope.subs(cdf(C), 1 - best)
    # where the tail is larger than at the optimum by y the cost falls, where it is smaller it rises
    left, right = (sp.expand(slope.subs(cdf(C), 1 - best - sign * y).subs(PAYS)) for sign in (1, -1))
    return [
        sp.simplify(slope - rent + worth * (1 - cdf(C))),
        sp.simplify(stationary.subs(PAYS)),
        sp.simplify(left).is_negative,
        sp.simplify(right).is_positive,
    ]


def _corner(d: Derivation) -> list[Any]:
    """Where the rent is not below worth Pr(S > 0) every byte costs more than it saves: the tail only falls with C."""
    some, fallen = sp.symbols("some fallen", positive=True)  # Pr(S > 0) = some <= 1; the tail at C is less by fallen
    below = rent - worth * (some - fallen)
    return [
        *(sp.simplify(below.subs(shock_rate, rent / price_lost / some / k)).is_positive for k in (1, 1 + e)),
        *(sp.simplify(d.formula("overflow_chance").subs(case)) - 1 for case in (NEVER, JUST)),
        d.formula("overflow_chance").subs(shock_rate, 0) - 1,
        sp.simplify(d.formula("overflow_chance").subs(PAYS) - 1 / (1 + e)),
    ]


def _atoms(d: Derivation) -> bool:
    """Swings with atoms, at random: the capacities of least cost are those with Pr(S > C) <= chance <= Pr(S >= C)."""
    draw, condition = random.Random(30), d.formula("overflow_chance")
    for _ in range(150):
        sizes = [draw.randrange(12) for _ in range(draw.randrange(1, 6))]
        prices = {rent: draw.randrange(1, 9), price_lost: draw.randrange(1, 9), shock_rate: draw.randrange(9)}
        best = Fraction(str(condition.subs(prices)))
        value, count = prices[price_lost] * prices[shock_rate], len(sizes)
        cost = [prices[rent] * count * c + value * sum(max(0, s - c) for s in sizes) for c in range(14)]
        for c, paid in enumerate(cost):
            over = Fraction(sum(s > c for s in sizes), count)
            reached = Fraction(sum(s >= c for s in sizes), count) if c else Fraction(1)
            meets = over <= best <= reached if value >= prices[rent] else c == 0  # the corner: every byte is too dear
            if (paid == min(cost)) != meets:
                return False
    return True


# --- two distributions ------------------------------------------------------------------------------------------------


def _optimum(d: Derivation, name: str, spilled: Any, tail: Any) -> list[Any]:
    """First and second order at the closed form, the tail there, and the corner."""
    best = d.formula(name)
    slope = sp.diff(_cost(spilled), C)
    return [
        sp.simplify(slope - rent + worth * tail),
        sp.simplify(slope.subs(C, best.subs(PAYS)).subs(PAYS)),
        sp.simplify(tail.subs(C, best.subs(PAYS)) - d.formula("overflow_chance").subs(PAYS)),
        sp.simplify(best.subs(PAYS)).is_positive,
        *(sp.simplify(best.subs(case)) for case in (NEVER, JUST)),
        best.subs(shock_rate, 0),
        sp.simplify(sp.diff(slope, C).subs(PAYS)).is_positive,
        sp.simplify(slope.subs(C, 0).subs(NEVER)).is_positive,
    ]


def _exponential(d: Derivation) -> list[Any]:
    tail = sp.exp(-C / swing_mean)
    integral = sp.integrate((x - C) * sp.exp(-x / swing_mean) / swing_mean, (x, C, oo))
    found = _optimum(d, "capacity_of_exponential_swings", swing_mean * tail, tail)
    return [sp.simplify(integral - swing_mean * tail), *found]


def _uniform(d: Derivation) -> list[Any]:
    tail = 1 - C / swing_max
    integral = sp.integrate((x - C) / swing_max, (x, C, swing_max))
    found = _optimum(d, "capacity_of_uniform_swings", swing_max * tail**2 / 2, tail)
    faces = d.formula("capacity_of_uniform_swings") - d.regular("capacity_of_uniform_swings")
    return [
        sp.simplify(integral - swing_max * tail**2 / 2),
        *found,
        *(sp.simplify(faces.subs(case)) for case in (PAYS, NEVER, JUST)),
    ]


def _paid(d: Derivation) -> list[Any]:
    """The cost of any capacity, and at the optimum: rent of C and of one mean swing more; else every swing is lost."""
    cost, best = d.formula("capacity_cost"), d.formula("capacity_of_exponential_swings")
    integral = sp.integrate((x - C) * sp.exp(-x / swing_mean) / swing_mean, (x, C, oo))
    at_best = cost.subs(C, best.subs(PAYS)).subs(PAYS)
    return [
        sp.simplify(cost - _cost(integral)),
        sp.simplify(at_best - rent * (best.subs(PAYS) + swing_mean)),
        sp.simplify(cost.subs(C, 0) - worth * swing_mean),
    ]


def _linear_in_lead_time(d: Derivation) -> list[Any]:
    """Swings of step times lead time: the optimum is the lead time times a capacity per second, as on the boundary."""
    per_second, t = sp.symbols("per_second tau", positive=True)
    swings = {"capacity_of_exponential_swings": swing_mean, "capacity_of_uniform_swings": swing_max}
    return [
        sp.diff(d.formula(name).subs(scale, per_second * t), t) - d.formula(name).subs(scale, per_second)
        for name, scale in swings.items()
    ]


# --- pathwise: infinitesimal perturbation analysis --------------------------------------------------------------------


def _path(increments: Iterable[int], capacity: Fraction) -> tuple[Fraction, int]:
    """Bytes lost by a buffer that starts empty, and the number of its busy periods with a loss."""
    level, lost, periods, lossy = Fraction(0), Fraction(0), 0, False
    for step in increments:
        level += step
        if level > capacity:
            lost, level, lossy = lost + level - capacity, capacity, True
        if level <= 0:
            level, periods, lossy = Fraction(0), periods + lossy, False
    return lost, periods + lossy


def _counted(d: Derivation) -> bool:
    """dU/dC = -(busy periods with an overflow): exactly, on every path of 6 steps and on long random ones.

    Integer steps and a capacity halfway between two integers keep every level at least 1/2 away from a tie, so the
    lost bytes are linear in C within less than 1/2 on either side.
    """
    draw, near = random.Random(31), Fraction(1, 4)
    paths = [(path, Fraction(3, 2)) for path in itertools.product(range(-2, 3), repeat=6)]
    paths += [(tuple(draw.randrange(-9, 10) for _ in range(300)), Fraction(25, 2)) for _ in range(20)]
    for path, capacity in paths:
        (less, _), (lost, periods), (more, _) = (_path(path, capacity + h) for h in (near, 0, -near))
        if not (lost - less == more - lost == periods * near):
            return False
    return True


def _one_busy_period(d: Derivation) -> list[Any]:
    """From the first overflow on the level is C plus what does not depend on C, until the buffer is empty."""
    down, up = sp.symbols("down up", positive=True)
    first = C + e - C  # the first overflow, by e: the inflow was C + e
    again = sp.Max(0, (C - down) + (down + up) - C)  # down by less than C, and over the end by up
    inflow = sp.Symbol("inflow", positive=True)
    lost = (inflow - C) + again
    return [first - e, again - up, sp.diff(lost, C) + 1, sp.diff(lost, C, 2)]


def _pathwise_optimum(d: Derivation) -> list[Any]:
    """A byte more costs rent for the horizon and saves price_lost in each of the counted busy periods."""
    counted, horizon = sp.symbols("counted horizon", positive=True)
    slope = rent - price_lost * counted / horizon
    (best,) = sp.solve(slope, counted)
    return [
        sp.simplify(best / horizon - d.formula("overflow_rate")),
        # separate swings: each busy period is one swing, lossy with the overflow chance
        sp.simplify((shock_rate * d.formula("overflow_chance") - d.formula("overflow_rate")).subs(PAYS)),
    ]


def _not_separate(d: Derivation) -> list[Any]:
    """Two equal swings in one busy period: the second is lost whole, the slope is -1, and per swing it would be -2."""
    lost, periods = _path([5, 5], Fraction(7, 2))
    more = _path([5, 5], Fraction(9, 2))[0]
    return [lost - (10 - Fraction(7, 2)) == 0, more - lost == -1, periods == 1, lost != 2 * (5 - Fraction(7, 2))]


D30 = Derivation(
    id="D30",
    name="Optimal capacity",
    statement="A byte of buffer is worth its rent as long as the swings that exceed the capacity are frequent enough: "
    "until their chance is rent over the worth of that byte, and on a path until the busy periods with an overflow per "
    "second are rent over price.",
    assumptions=(
        "the lost flow and the buffer have a price per byte; both are of the fleet or both per prefill GPU",
        "for the chance: separate swings, each from a level that does not depend on C",
        "for the count: any input; only C is changed, and no level is at a tie",
    ),
    steps=(
        Step("Rent and lost flow cost per second, in the mean over swings S,", rent * C + worth * sp.Max(0, swing - C)),
        Step(
            "One byte more costs its rent, and saves a byte whenever a swing exceeds C. So the cost falls while the "
            "chance of that is above the rent over the worth of such a byte, and is least where it is",
            rent / worth,
        ),
        Step("Exponential swings exceed C with the chance", sp.exp(-C / swing_mean)),
        Step("uniform ones with", 1 - C / swing_max),
        Step(
            "A mix step of delta that lasts tau is a swing of delta tau, so both optima are proportional to the lead "
            "time, as is the capacity without loss (D15, D31)."
        ),
        Step(
            "On a path (IPA): from the first overflow of a busy period on, the level is C plus what does not depend on "
            "C. So a byte more saves one byte in each busy period with an overflow, and dU/dC is minus their number."
        ),
    ),
    forms=(
        ClosedForm(
            "overflow_chance",
            r"\Pr(S > C^\ast)",
            chance,
            "1",
            "Chance that a swing exceeds the optimal capacity; 1: no capacity is worth its rent.",
            (rent, price_lost, shock_rate),
            code_symbol="p_best",
            note="Where swings are 0 with some chance, and this chance is not below Pr(S > 0), the optimum is C = 0.",
        ),
        ClosedForm(
            "overflow_rate",
            r"\nu_U^\ast",
            rent / price_lost,
            "1/s",
            "Busy periods with an overflow per second at the optimal capacity, for any input.",
            (rent, price_lost),
            code_symbol="nu_best",
        ),
        ClosedForm(
            "capacity_of_exponential_swings",
            r"C^\ast",
            swing_mean * sp.log(sp.Max(1, worth / rent)),
            "B",
            "Capacity of least cost for exponential swings.",
            (swing_mean, rent, price_lost, shock_rate),
            code_symbol="C_best",
        ),
        ClosedForm(
            "capacity_of_uniform_swings",
            r"C^\ast",
            swing_max * (1 - chance),
            "B",
            "Capacity of least cost for swings that are uniform between 0 and a largest one.",
            (swing_max, rent, price_lost, shock_rate),
            regular=swing_max * sp.Max(0, worth - rent) / sp.Max(rent, worth),  # exactly flat below the corner
            code_symbol="C_best",
        ),
        ClosedForm(
            "capacity_cost",
            "J",
            _cost(swing_mean * sp.exp(-C / swing_mean)),
            "USD/s",
            "Rent and lost flow per second of any capacity under exponential swings.",
            (C, swing_mean, rent, price_lost, shock_rate),
            code_symbol="J",
        ),
    ),
    proofs=(
        Proof("a mix step for the lead time is such a swing", _swing_of_a_step),
        Proof("a density: slope and curvature of the cost", _slope_from_density),
        Proof(
            "any distribution: the cost falls before the overflow chance and rises after it", _slope_from_distribution
        ),
        Proof("the corner: no capacity where the rent is not below worth Pr(S > 0)", _corner),
        Proof("distributions with atoms: the condition picks the capacities of least cost (searched)", _atoms),
        Proof("exponential swings: first and second order, and the corner", _exponential),
        Proof("uniform swings: first and second order, and the corner", _uniform),
        Proof("the cost at the optimum is the rent of the capacity and of one mean swing", _paid),
        Proof("the optimum is linear in the lead time", _linear_in_lead_time),
        Proof("IPA: minus the number of busy periods with an overflow, exactly, on every small path", _counted),
        Proof("IPA: within a busy period only the first overflow depends on C", _one_busy_period),
        Proof("pathwise optimum, and its agreement with the chance for separate swings", _pathwise_optimum),
        Proof("swings that are not separate: the chance counts too many, the busy periods do not", _not_separate),
    ),
    limits=(
        "The mean cost is differentiable; on one path the derivative jumps where a busy period gains or loses its "
        "overflow, and the optimum lies at such a jump.",
        "Swings that overlap, or start from a level that C moves, need the count instead of the chance.",
        "Shortfalls are the mirror image, with the stock in place of the headroom.",
    ),
    source="theory, groups 4 and 5; Cassandras, Wardi, Melamed, Sun and Panayiotou, IEEE TAC 2002",
)

DERIVATIONS = (D30,)
