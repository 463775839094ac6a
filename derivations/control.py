"""Control: what late and quantised corrections do to the buffer: cycles, stability limits, noise."""

from typing import Any

import sympy as sp

from derivations.buffer import D15
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step
from derivations.symbols import C, delta_down, delta_up, quantity, tau

fill = quantity("fill", "u", "B/s", "rate at which the level rises between switches", 2.67e9)
drain = quantity("drain", "d", "B/s", "rate at which the level falls between switches", 2.67e9)
theta_h = quantity("theta_h", r"\theta_h", "B", "level at which draining is ordered", 100e9)
theta_l = quantity("theta_l", r"\theta_l", "B", "level at which filling is ordered", 50e9, (0, theta_h))
switch_cost = quantity("switch_cost", "K", "USD", "cost of one cycle of two switches", 2.0, "nonnegative")
hold_cost = quantity("hold_cost", "h_c", "USD/B/s", "cost of holding a byte for a second", 1e-13)
amplitude = quantity("amplitude", r"\mathcal{A}", "B", "swing of the level over a cycle", 500e9)

# Positive symbols for the proofs: rates, lead time, the gap between the thresholds, the lower one, costs, an excess.
u, d_, t, gap, low, K, h, e = sp.symbols("u d tau gap low K h e", positive=True)
at = {fill: u, drain: d_, tau: t, theta_l: low, theta_h: low + gap, switch_cost: K, hold_cost: h}
start = sp.Symbol("start", positive=True)

both = fill + drain
swing = theta_h - theta_l + both * tau


def _formula(d: Derivation, name: str) -> Any:
    return d.formula(name).subs(at, simultaneous=True)


def _cycle(peak_from: Any) -> list[Any]:
    """Extremes and phase lengths from a crossing of the upper threshold on; each order acts tau after its crossing."""
    peak = peak_from + u * t
    to_low = (peak - low) / d_
    trough = low - d_ * t
    to_high = (low + gap - trough) / u
    return [peak, trough, (t + to_low) + (t + to_high)]


def _followed(d: Derivation) -> list[Any]:
    """One turn from the upper threshold back to it: where it peaks, where it bottoms, how long it takes."""
    peak, trough, period = _cycle(low + gap)
    return [
        sp.simplify(peak - _formula(d, "cycle_peak")),
        sp.simplify(trough - _formula(d, "cycle_trough")),
        sp.simplify(peak - trough - _formula(d, "cycle_amplitude")),
        sp.simplify(period - _formula(d, "cycle_period")),
    ]


def _reached(d: Derivation) -> list[Any]:
    """From any start: the level meets a threshold in finite time, and one swing later it is on the cycle."""
    above = low + gap + start  # filling, started above the upper threshold: draining is ordered at once
    first_peak = above + u * t
    below = low / (1 + start)  # draining, started below the lower one
    return [
        (gap / u).is_positive and (gap / d_).is_positive,
        sp.simplify(first_peak - start - _formula(d, "cycle_peak")),
        (first_peak - _formula(d, "cycle_peak")).is_positive,
        sp.factor(_formula(d, "cycle_trough") - (below - d_ * t)).is_positive,
        # one order is out at a time: the opposite threshold lies beyond the peak (or trough) of the order before
        sp.simplify((_formula(d, "cycle_peak") - low) / d_).is_positive,
        sp.simplify((low + gap - _formula(d, "cycle_trough")) / u).is_positive,
    ]


def _feasible(d: Derivation) -> list[Any]:
    """No loss on the cycle iff peak <= C and trough >= 0; the extreme thresholds exist iff C is D15's capacity."""
    lowest = sp.solve(_formula(d, "cycle_trough"), low)[0]
    highest = sp.solve(d.formula("cycle_peak").subs({fill: u, tau: t}) - C, theta_h)[0]
    least = D15.formula("minimal_capacity").subs({delta_up: u, delta_down: d_, tau: t})
    return [
        sp.simplify((highest - lowest) - (C - least)),
        sp.simplify(_formula(d, "cycle_amplitude").subs(gap, 0) - least),
    ]


def _slopes(d: Derivation) -> list[Any]:
    return [
        sp.diff(d.formula("cycle_peak"), theta_h) - 1,
        sp.diff(d.formula("cycle_amplitude"), tau) - both,
        sp.simplify(sp.diff(d.formula("cycle_period"), tau) - both**2 / (fill * drain)),
        sp.simplify(_formula(d, "cycle_period").subs({gap: 0, d_: u}) - 4 * t),
    ]


def _mean_height(d: Derivation) -> list[Any]:
    """The level above its trough averages half of the swing: a triangle, whatever the rates."""
    x = sp.Symbol("x", positive=True)
    A = _formula(d, "cycle_amplitude")
    rising, falling = A / u, A / d_
    area = sp.integrate(u * x, (x, 0, rising)) + sp.integrate(A - d_ * x, (x, 0, falling))
    return [sp.simplify(area / (rising + falling) - A / 2), sp.simplify(rising + falling - _formula(d, "cycle_period"))]


def _optimum(d: Derivation) -> list[Any]:
    """First and second order for the swing, then the gap between the thresholds under gap >= 0."""
    A = sp.Symbol("A", positive=True)
    period = A * (u + d_) / (u * d_)
    assert sp.simplify(period.subs(A, _formula(d, "cycle_amplitude")) - _formula(d, "cycle_period")) == 0
    cost = K / period + h * A / 2
    best, late = _formula(d, "best_amplitude"), (u + d_) * t
    wide, narrow = (
        {K: (late * (1 + e)) ** 2 * (u + d_) * h / (2 * u * d_)},
        {K: (late / (1 + e)) ** 2 * (u + d_) * h / (2 * u * d_)},
    )
    gap_best, slope = _formula(d, "best_gap"), sp.diff(cost, A)
    return [
        sp.simplify(slope.subs(A, best)),
        sp.diff(cost, A, 2).is_positive,
        sp.simplify(gap_best.subs(wide) - e * late),  # the free optimum is wider than what the delay alone swings
        sp.simplify(gap_best.subs(narrow)),  # it is narrower: no gap, and the cost rises from there on
        sp.factor(slope.subs(A, late).subs(narrow)).is_positive,
        best.is_positive,
        sp.simplify(cost.subs(A, best) - h * best),
    ]


def _faces(d: Derivation) -> list[Any]:
    found = []
    for name in ("best_amplitude", "best_gap"):
        found.append(sp.simplify((d.formula(name) - d.regular(name)).subs(at, simultaneous=True)))
        found.append(d.regular(name).subs(switch_cost, 0).subs(tau, t))
    return found


PAPER = {"theta_h": 13, "theta_l": 10, "fill": 1, "drain": sp.Rational(1, 2), "tau": 3}
SIMULATED = "theory, V20: simulated with tau = 3, u = 1, d = 0.5, a gap of 3"
free_swing = sp.sqrt(2 * switch_cost * fill * drain / (both * hold_cost))
safe_swing = sp.Piecewise(
    (sp.sqrt(2 * fill * drain / (both * hold_cost)) * sp.sqrt(switch_cost), switch_cost > 0), (0, True)
)
no_price = Convention(sp.Eq(switch_cost, 0), "switch_cost = 0 (switching is free): 0, where the true slope is infinite")

D17 = Derivation(
    id="D17",
    name="Limit cycle of a threshold autoscaler",
    statement="Two thresholds with a lead time make the level swing for ever, further than the thresholds are apart by "
    "what flows in a lead time in each direction. The gap that balances switching against holding is an "
    "economic order quantity.",
    assumptions=(
        "the level rises at u or falls at d, both above 0, and nothing else disturbs it",
        "draining is ordered when the level comes up to theta_h, filling when it comes down to theta_l; each "
        "order acts "
        "tau later",
        "no order is on its way at the start",
    ),
    steps=(
        Step("The order at the upper threshold acts tau later: the level peaks at", theta_h + fill * tau),
        Step("and after the lower threshold bottoms at", theta_l - drain * tau),
        Step("so it swings by", sp.Eq(amplitude, swing)),
        Step("and one turn takes", sp.Eq(amplitude / fill + amplitude / drain, amplitude * both / (fill * drain))),
        Step(
            "From any start a threshold is met in finite time, and one swing later the level is on this "
            "cycle. Only the "
            "first swing can go further: filling, started above theta_h, it peaks at the start + u tau; "
            "draining, started "
            "below theta_l, it bottoms at the start - d tau."
        ),
        Step("Thresholds without loss exist iff", sp.Ge(C, both * tau)),
        Step(
            "A cycle costs K, and the level stands half of the swing above its trough on average, so the cost "
            "a second is",
            switch_cost * fill * drain / (amplitude * both) + hold_cost * amplitude / 2,
        ),
        Step("which is least, being convex, at", sp.Eq(amplitude, free_swing)),
        Step("The delay alone swings by (u + d) tau: the gap adds what is left of that, or nothing."),
    ),
    forms=(
        ClosedForm(
            "cycle_peak",
            r"Q_{\max}",
            theta_h + fill * tau,
            "B",
            "Highest level.",
            (theta_h, fill, tau),
            code_symbol="Q_max",
        ),
        ClosedForm(
            "cycle_trough",
            r"Q_{\min}",
            theta_l - drain * tau,
            "B",
            "Lowest level of the cycle; below 0 it means a loss of that many bytes a cycle.",
            (theta_l, drain, tau),
            code_symbol="Q_min",
        ),
        ClosedForm(
            "cycle_amplitude",
            r"\mathcal{A}",
            swing,
            "B",
            "Swing of the level over a cycle, from trough to peak.",
            (theta_h, theta_l, fill, drain, tau),
            code_symbol="amplitude",
        ),
        ClosedForm(
            "cycle_period",
            r"\mathcal{T}",
            swing * both / (fill * drain),
            "s",
            "Time of one cycle.",
            (theta_h, theta_l, fill, drain, tau),
            code_symbol="period",
        ),
        ClosedForm(
            "best_amplitude",
            r"\mathcal{A}^\ast",
            free_swing,
            "B",
            "Swing at which switching and holding cost least together, if the delay allows it.",
            (switch_cost, hold_cost, fill, drain),
            regular=safe_swing,
            code_symbol="amplitude_best",
            conventions=(no_price,),
        ),
        ClosedForm(
            "best_gap",
            r"\Delta\theta^\ast",
            sp.Max(0, free_swing - both * tau),
            "B",
            "Distance of the thresholds at which switching and holding cost least together.",
            (switch_cost, hold_cost, fill, drain, tau),
            regular=sp.Max(0, safe_swing - both * tau),
            code_symbol="gap_best",
            conventions=(no_price,),
        ),
    ),
    proofs=(
        Proof("one turn followed: peak, trough, swing and period", _followed),
        Proof("every start leads to it, and only the first swing can go further", _reached),
        Proof("thresholds without loss exist exactly from the minimal capacity of D15 on", _feasible),
        Proof("the derivatives that a tuner should see", _slopes),
        Proof("the mean height above the trough is half of the swing", _mean_height),
        Proof("the best swing and gap: first order, second order, and the boundary case", _optimum),
        Proof("the regular forms agree, and are 0 where switching is free", _faces),
    ),
    limits=(
        "theta_l <= Q(0) <= theta_h is enough for a loss-free start, not necessary: C - u tau, or d tau, bounds it.",
        "A second order on its way at once, or workers counted twice, is another system (numerics: it diverges).",
        "Sampling delays each crossing by up to a review period: add it to tau for the worst case.",
    ),
    source="theory, group 4: ours",
    published=(
        Published("V20-amplitude", SIMULATED, "D", 7.504, "cycle_amplitude", PAPER, tolerance=1e-3),
        Published("V20-period", SIMULATED, "D", 22.51, "cycle_period", PAPER, tolerance=1e-3),
    ),
)

DERIVATIONS = (D17,)
