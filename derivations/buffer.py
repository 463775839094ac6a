"""Buffer: how long the stock between the pools bridges a mix step, what is lost after that, and how much is needed."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive
from derivations.functions import Ratio
from derivations.shock import D14, GB, LOST, SURPLUS, e, n, oo, s, t
from derivations.symbols import Q0, C, delta, delta_down, delta_up, tau

# --- D15 ------------------------------------------------------------------------------------------------------------


def _spill(step: Any, capacity: Any, stock: Any) -> Any:
    return D14.formula("lost_bytes").subs({delta: step, C: capacity, Q0: stock}, simultaneous=True)


up, down = sp.Symbol("delta_up", positive=True), sp.Symbol("delta_down", positive=True)


def _enough(d: Derivation) -> list[Any]:
    """At the minimal capacity, from the centred stock, neither step loses a byte, and both just graze."""
    least = positive(d.formula("minimal_capacity"))
    stock = positive(d.formula("centred_stock")).subs(C, least)
    spills = [_spill(step, least, sp.simplify(stock)).subs(tau, t) for step in (up, -down)]
    return [*map(sp.simplify, spills), sp.simplify(stock - down * t), sp.simplify(least - stock - up * t)]


def _not_less(d: Derivation) -> list[Any]:
    """With s bytes less, for every stock: the two spills are at least x and s - x for some x, so one is above 0."""
    less, stock = positive(d.formula("minimal_capacity")) - s, sp.Symbol("stock", positive=True)
    lower_down, lower_up = down * t - stock, up * t - (less - stock)  # each spill is at least its own argument
    spill_down = D14.regular("lost_bytes").subs({delta: -down, tau: t, C: less, Q0: stock}, simultaneous=True)
    spill_up = D14.regular("lost_bytes").subs({delta: up, tau: t, C: less, Q0: stock}, simultaneous=True)
    bounds = [
        any(sp.expand(a - low) == 0 for a in spill.args)
        for spill, low in ((spill_down, lower_down), (spill_up, lower_up))
    ]
    return [*bounds, sp.simplify(lower_down + lower_up - s)]


def _equal_times(d: Derivation) -> list[Any]:
    stock = sp.Symbol("stock")
    (solved,) = sp.solve(sp.Eq((C - stock) / up, stock / down), stock)
    common = solved / down
    return [sp.simplify(solved - positive(d.formula("centred_stock"))), sp.simplify(common - C / (up + down))]


def _longest_bridge(d: Derivation) -> list[Any]:
    """The time of a shortfall grows with the stock, that of a surplus falls: the smaller is largest where they meet."""
    stock = sp.Symbol("stock", positive=True)
    centre = positive(d.formula("centred_stock"))
    return [
        sp.diff(stock / down, stock) > 0,
        sp.diff((C - stock) / up, stock) < 0,
        sp.simplify(centre / down - (C - centre) / up),
    ]


def _faces_of_stock(d: Derivation) -> list[Any]:
    regular = d.regular("centred_stock")
    return [
        sp.simplify(positive(regular) - positive(d.formula("centred_stock"))),
        regular.subs({delta_up: 0, delta_down: 0}) - C / 2,
        regular.subs({delta_up: 0, delta_down: down}) - C,
        regular.subs({delta_up: up, delta_down: 0}),
    ]


def _priced(d: Derivation) -> list[Any]:
    """Prices of the two sides: the cost is linear in the stock where both spill, and falls towards there elsewhere."""
    p_up, p_down, stock = sp.symbols("p_up p_down stock", positive=True)
    both = p_up * (up * t - C + stock) + p_down * (down * t - stock)
    width = sp.expand((down * t) - (C - up * t))  # where both spill, the stocks that do so
    return [
        sp.diff(both, stock) - (p_up - p_down),
        sp.diff(p_up * (up * t - C + stock), stock) > 0,
        sp.diff(p_down * (down * t - stock), stock) < 0,
        sp.simplify(width - (positive(d.formula("minimal_capacity")) - C)),
    ]


def _newsvendor(d: Derivation) -> list[Any]:
    """Random steps with densities f and g: the derivative of the expected cost is the difference of two tail prices."""
    x, stock, p_up, p_down = sp.symbols("x stock p_up p_down", positive=True)
    f, g = sp.Function("f"), sp.Function("g")
    cost = p_down * sp.Integral((x * t - stock) * f(x), (x, stock / t, oo))
    cost += p_up * sp.Integral((x * t - C + stock) * g(x), (x, (C - stock) / t, oo))
    slope = p_up * sp.Integral(g(x), (x, (C - stock) / t, oo)) - p_down * sp.Integral(f(x), (x, stock / t, oo))
    return [sp.expand(sp.diff(cost, stock).doit() - slope.doit())]


FULL = sp.Rational("5.34") * GB
LADDER = {"9.6": 103, "24.5": 262, "32.1": 343, "88": 940, "695": 7423}
CLOUDBURST = "the article's author on cold starts (117 GB of weights, SGLang on B200)"
PHASES = {
    "cold": ("3+21+9+531+104+3+24", 720.0, "nearly 12 min", 0.05),
    "warm": ("3+9+9+31+15+3+18", 88.0, "88 s", 0.006),
    "restored": ("6+7.1+19", 32.0, "32 s", 0.02),
    "patched": ("3+3.5+18", 24.5, "24.5 s", 0.002),
    "in-memory": ("3+3.5+3.1", 10.0, "10 s", 0.05),
}


def _sum(phases: str) -> Any:
    return sp.Add(*(sp.Rational(p) for p in phases.split("+")))


D15 = Derivation(
    id="D15",
    name="Minimal capacity and centring",
    statement="The smallest buffer that absorbs a surplus or a shortfall, whichever comes, for the whole lead time; "
    "and the stock that bridges both equally long.",
    assumptions=(
        "those of D14",
        "one step, at most delta_up or delta_down, from the planned stock; the level is back before the next",
    ),
    steps=(
        Step("No shortfall is lost if the stock covers it", sp.Ge(Q0, delta_down * tau)),
        Step("no surplus, if the headroom does", sp.Ge(C - Q0, delta_up * tau)),
        Step("Both together need", sp.Ge(C, (delta_up + delta_down) * tau)),
        Step("The two times to the boundary are equal when", sp.Eq((C - Q0) / delta_up, Q0 / delta_down)),
        Step("and are then", C / (delta_up + delta_down)),
        Step(
            "Below the minimal capacity, with prices p on the bytes of each side, the cheapest stock lies at an end of "
            "[C - delta_up tau, delta_down tau]; for random steps D the condition is "
            "p_down Pr(D_down tau > Q0) = p_up Pr(D_up tau > C - Q0)."
        ),
    ),
    forms=(
        ClosedForm(
            "minimal_capacity",
            r"C^\ast",
            (delta_up + delta_down) * tau,
            "B",
            "Smallest buffer that absorbs either step for the whole lead time.",
            (delta_up, delta_down, tau),
            code_symbol="C_min",
        ),
        ClosedForm(
            "centred_stock",
            r"Q_0^\ast",
            C * delta_down / (delta_up + delta_down),
            "B",
            "Stock from which both steps are bridged equally long.",
            (C, delta_up, delta_down),
            regular=C * Ratio(delta_down, delta_up + delta_down, sp.Rational(1, 2)),
            code_symbol="Q0_best",
            conventions=(Convention(sp.Eq(delta_up + delta_down, 0), "delta_up = delta_down = 0 (no step): C/2"),),
        ),
    ),
    proofs=(
        Proof("it is enough: from the centred stock neither step loses a byte", _enough),
        Proof("less is not: whatever the stock, the two spills add up to what is missing", _not_less),
        Proof("equal times give the centred stock", _equal_times),
        Proof("no other stock bridges the worse of the two longer", _longest_bridge),
        Proof("the regular form agrees, and one-sided steps put the stock at an end", _faces_of_stock),
        Proof("with prices on the two sides the best stock is at an end of the interval where both spill", _priced),
        Proof("random steps: the newsvendor's condition", _newsvendor),
    ),
    limits=(
        "It covers one step: at the minimal capacity a second surplus before the level is back is lost whole.",
        "Stock is latency: FIFO sojourn Q0/A, so a latency budget caps the stock.",
    ),
    source="theory, group 4; the buffer condition of the article",
    published=(
        *(
            Published(
                f"V13-ladder-{lead}s",
                "theory, ladder of D15 for a full step of 5.34 GB/s per prefill GPU either way",
                "D",
                float(gigabytes),
                "minimal_capacity",
                {"delta_up": FULL, "delta_down": FULL, "tau": sp.Rational(lead)},
                sp.Rational(1, GB),
                "GB",
                rounding=0.5,
            )
            for lead, gigabytes in LADDER.items()
        ),
        *(
            Published(
                f"V13-{name}",
                f"{CLOUDBURST}: {words!r}, sum of the phases {phases}",
                "P",
                seconds,
                lambda d, phases=phases: _sum(phases),
                unit="s",
                tolerance=tolerance,
            )
            for name, (phases, seconds, words, tolerance) in PHASES.items()
        ),
        Published(
            "V13-gain",
            f"{CLOUDBURST}: '70x' from cold to in-memory",
            "P",
            70.0,
            lambda d: _sum(PHASES["cold"][0]) / _sum(PHASES["in-memory"][0]),
            tolerance=0.05,
        ),
        Published(
            "V13-load",
            f"{CLOUDBURST}: the weights from memory, in the last 3.1 s of the in-memory start",
            "P",
            38.0,
            lambda d: sp.Rational(117 * 10, 31),
            unit="GB/s",
            rounding=0.5,
        ),
    ),
)

# --- D31 ------------------------------------------------------------------------------------------------------------


def _rate_of_ladder(d: Derivation) -> Any:
    return d.formula("capacity_per_second") - sp.diff(D15.formula("minimal_capacity"), tau)


def _at_fixed_bytes(d: Derivation) -> list[Any]:
    """Bytes of a shock on either side held fixed: a second of lead time is worth delta of headroom or of stock."""
    room = sp.Symbol("room", positive=True)
    spills = {up: up * t - room, down: down * t - room}
    rates = [-sp.diff(spill, t) / sp.diff(spill, room) for spill in spills.values()]
    exact = [
        D14.formula("lost_bytes").subs(case | {tau: t}).subs(n, size) - (size * t * e / (1 + e))
        for size in spills
        for case in LOST
    ]
    return [*map(sp.simplify, exact), sum(rates) - positive(d.formula("capacity_per_second"))]


def _at_fixed_average(d: Derivation) -> list[Any]:
    """With the window average held fixed the rate is C/tau (delta T_hit/tau a side): L is constant along C ~ tau."""
    rho, k = sp.symbols("rho k", positive=True)
    average = SURPLUS.subs(tau, t)
    room_rate = -sp.diff(average, t) / sp.diff(average, C)
    hit = (C - Q0) / delta
    scaled = SURPLUS.subs({Q0: rho * C, tau: t}).subs({C: k * C, t: k * t}, simultaneous=True)
    unscaled = SURPLUS.subs({Q0: rho * C, tau: t})
    (followed,) = sp.solve(sp.diff(unscaled, t) + sp.diff(unscaled, C) * sp.Symbol("rate"), sp.Symbol("rate"))
    return [sp.simplify(room_rate - hit / t * delta), sp.simplify(scaled - unscaled), sp.simplify(followed - C / t)]


D31 = Derivation(
    id="D31",
    name="Exchange rate of lead time and capacity",
    statement="On the boundary of no loss a second of lead time is worth the buffer that both steps fill in it.",
    assumptions=("those of D15",),
    steps=(
        Step("The minimal capacity is linear in the lead time", sp.Eq(C, (delta_up + delta_down) * tau)),
        Step("so a second costs", sp.Eq(sp.Derivative(C, tau), delta_up + delta_down)),
        Step("Where bytes are lost already, at fixed bytes of a shock each side alone is worth", delta_up),
        Step("while at a fixed window average L the rate is smaller, because L divides by the lead time", C / tau),
    ),
    forms=(
        ClosedForm(
            "capacity_per_second",
            r"\frac{\partial C^\ast}{\partial\tau}",
            delta_up + delta_down,
            "B/s",
            "Buffer that one second of lead time is worth on the boundary of no loss.",
            (delta_up, delta_down),
            code_symbol="dC_min/dtau",
        ),
    ),
    proofs=(
        Proof("it is the slope of the minimal capacity", _rate_of_ladder),
        Proof("at fixed lost bytes the two sides' rates add up to it", _at_fixed_bytes),
        Proof("at a fixed window average the rate is C/tau", _at_fixed_average),
    ),
    limits=("Prices of faster cold starts against host memory: use the bytes, not the window average.",),
    source="theory, group 4: ours",
    published=(
        Published(
            "D31-full",
            "theory, D31: a full step of 5.34 GB/s per prefill GPU either way",
            "D",
            10.7,
            "capacity_per_second",
            {"delta_up": FULL, "delta_down": FULL},
            sp.Rational(1, GB),
            "GB/s",
            rounding=0.05,
        ),
    ),
)

DERIVATIONS = (D15, D31)
