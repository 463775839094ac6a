"""Shock loss: how long the stock between the pools bridges a mix step, and what is lost after that."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step
from derivations.functions import Ratio
from derivations.symbols import Q0, C, L, P, T_hit, U, delta, stock, tau, time

oo = sp.oo
GB = 10**9

# Positive symbols for proofs by cases: magnitude of the step, the stock on the other side, an excess, the lead time.
n, other, e, s = sp.symbols("n other e s", positive=True)
t = sp.Symbol("tau", positive=True)


def _cases(stock: Any) -> tuple[dict[Any, Any], ...]:
    """A shortfall that drains `stock`, and a surplus that fills a headroom of `stock`."""
    return (
        {delta: -n, Q0: stock, C: stock + other, tau: t},
        {delta: n, Q0: other, C: stock + other, tau: t},
    )


LOST = _cases(n * t / (1 + e))  # the boundary is met before the resize
ABSORBED = _cases(n * t * (1 + e))  # the resize comes first
GRAZED = _cases(n * t)
NO_STOCK = _cases(sp.S.Zero)
ALL_CASES = (*LOST, *ABSORBED, *GRAZED, *NO_STOCK)

time_to_boundary = sp.Piecewise((-Q0 / delta, delta < 0), ((C - Q0) / delta, delta > 0), (oo, True))
stock_ahead = sp.Piecewise((Q0, delta < 0), (C - Q0, True))
spilled = sp.Max(0, -delta * tau - Q0, delta * tau - (C - Q0))


def _met(d: Derivation) -> list[Any]:
    """The level Q0 + delta t is at the boundary at the time to the boundary, and only then."""
    found = []
    for case, boundary in zip(_cases(s), (sp.S.Zero, C), strict=True):
        level = (Q0 + delta * time - boundary).subs(case)
        (when,) = sp.solve(level, time)
        found.append(when - d.formula("time_to_boundary").subs(case))
    return found


def _stranded(d: Derivation) -> list[Any]:
    """Average over the lead time of |delta| once the boundary is met."""
    x, found = sp.Symbol("x", positive=True), []
    for case in ALL_CASES:
        hit = d.formula("time_to_boundary").subs(case)
        flow = sp.Piecewise((0, x < hit), (n, True))
        average = sp.integrate(flow, (x, 0, t)) / (P * t)
        found.append(sp.simplify(average - d.formula("shock_loss").subs(case)))
    return found


def _bytes(d: Derivation) -> list[Any]:
    lost, share = d.formula("lost_bytes"), d.formula("shock_loss")
    return [sp.simplify((lost - P * tau * share).subs(case)) for case in ALL_CASES]


def _faces(d: Derivation) -> list[Any]:
    return [sp.simplify((d.formula(f.name) - d.regular(f.name)).subs(case)) for f in d.forms for case in ALL_CASES]


def _still(d: Derivation) -> list[Any]:
    return [
        d.regular("shock_loss").subs({tau: 0, delta: -n, C: Q0 + other}),
        d.regular("shock_loss").subs({tau: 0, delta: n, C: Q0 + other}),
        d.regular("shock_loss").subs({delta: 0, C: Q0 + other, tau: t}),
        d.regular("lost_bytes").subs({delta: 0, C: Q0 + other}),
        sp.Eq(d.regular("time_to_boundary").subs(delta, 0), oo),
    ]


SHORT, SURPLUS = (-delta - Q0 / tau) / P, (delta - (C - Q0) / tau) / P  # the loss inside its two regions


def _derivatives(d: Derivation) -> list[Any]:
    share, rho = d.formula("shock_loss"), sp.Symbol("rho", positive=True)
    found = [sp.simplify((share - piece).subs(case)) for piece, case in zip((SHORT, SURPLUS), LOST, strict=True)]
    found += [sp.diff(SURPLUS, C) + 1 / (P * tau), sp.diff(SURPLUS, Q0) - 1 / (P * tau)]
    found += [sp.diff(SHORT, C), sp.diff(SHORT, Q0) + 1 / (P * tau)]
    for piece, case, held in ((SHORT, LOST[0], rho), (SURPLUS, LOST[1], 1 - rho)):
        grows = sp.Abs(delta) / P * d.formula("time_to_boundary") / tau**2
        found.append(sp.simplify((sp.diff(piece, tau) - grows).subs(case)))
        found.append(sp.simplify(sp.diff(piece.subs(Q0, rho * C), C) + held / (P * tau)))
    return found


def _bounded(d: Derivation) -> list[Any]:
    """Between 0 and |delta|/P, which it approaches for a long lead time."""
    share, found = d.formula("shock_loss"), []
    for case in LOST:
        inside = sp.simplify(share.subs(case))
        # tau is (1 + e) times the time to the boundary: e -> oo is a long lead time for the same stock
        found += [inside.is_positive, sp.simplify(n / P - inside).is_positive, sp.limit(inside, e, oo) - n / P]
    return [*found, *(sp.simplify(share.subs(case)) for case in (*ABSORBED, *GRAZED))]


def _mirrored(d: Derivation) -> list[Any]:
    mirror = {delta: -delta, Q0: C - Q0}
    return [
        sp.simplify((f.expanded - f.expanded.subs(mirror, simultaneous=True)).subs(case))
        for f in d.forms
        for case in (*LOST, *ABSORBED)
    ]


MAP = "theory, table of D14 (C = 150 GB, Q0 = 75 GB, P = 5.34 GB/s: the article's shock map)"
LEADS = ("9.6", "24.5", "32.1", "88", "300", "695", "1800")
TABLE = {
    "5.34": ("14.04", "0", ".4267", ".5625", ".8404", ".9532", ".9798", ".9922"),
    "2.67": ("28.09", "0", "0", ".0625", ".3404", ".4532", ".4798", ".4922"),
    "1": ("75.0", "0", "0", "0", ".0277", ".1404", ".1671", ".1795"),
    "0.5": ("150", "0", "0", "0", "0", ".0468", ".0734", ".0858"),
}


def _half_digit(printed: str) -> float:
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def _map_checks() -> list[Published]:
    checks = []
    for step, (first, *row) in TABLE.items():
        at = {"delta": sp.Rational(step) * GB, "C": 150 * GB, "Q0": 75 * GB, "P": sp.Rational("5.34") * GB}
        name, shown = f"V12-{step}GB/s", _half_digit(first)
        checks.append(
            Published(name, f"{MAP}, T_hit", "D", float(first), "time_to_boundary", at, unit="s", rounding=shown)
        )
        for lead, printed in zip(LEADS, row, strict=True):
            here = at | {"tau": sp.Rational(lead)}
            checks.append(Published(f"{name}-{lead}s", MAP, "D", float(printed), "shock_loss", here, rounding=5e-5))
    return checks


D14 = Derivation(
    id="D14",
    name="Fill, drain and shock loss",
    statement="A mix step opens a constant surplus or shortfall against the flow. The stock (or the headroom) bridges "
    "it until a boundary is met; from then until the resize lands the surplus or shortfall is stranded.",
    assumptions=(
        "the step is constant and persists; the resize lands after tau and ends it",
        "the accepted flow changes at once",
        "C, Q0, P and delta are all of the fleet or all per prefill GPU",
    ),
    steps=(
        Step("The level moves in a straight line", Q0 + delta * time),
        Step("and meets the empty or the full end at", sp.Eq(T_hit, time_to_boundary)),
        Step(
            "From then on the whole step is stranded, so the bytes are",
            sp.Eq(U, sp.Max(0, sp.Abs(delta) * (tau - T_hit))),
        ),
        Step("and the average over the lead time, as a share of the flow, is", sp.Eq(L, U / (P * tau))),
        Step("In the loss region of a surplus capacity saves, per byte", sp.Eq(sp.Derivative(L, C), -1 / (P * tau))),
    ),
    forms=(
        ClosedForm(
            "time_to_boundary",
            r"T_{\mathrm{hit}}",
            time_to_boundary,
            "s",
            "Time until a constant surplus fills the buffer or a constant shortfall empties it.",
            (delta, C, Q0),
            regular=Ratio(stock_ahead, sp.Abs(delta), oo),
            code_symbol="T_hit",
            conventions=(Convention(sp.Eq(delta, 0), "delta = 0 (the level stands still): inf"),),
        ),
        ClosedForm(
            "shock_loss",
            "L",
            sp.Abs(delta) / P * sp.Max(0, 1 - T_hit / tau),
            "1",
            "Average stranded flow over the lead time, as a share of the balanced flow.",
            (delta, tau, C, Q0, P),
            regular=Ratio(spilled, P * tau),
            code_symbol="L",
            where=((T_hit, time_to_boundary),),
            conventions=(Convention(sp.Eq(tau, 0), "tau = 0 (the resize is there at once): 0"),),
            note="To compare different lead times use lost_bytes: this average divides by the lead time.",
        ),
        ClosedForm(
            "lost_bytes",
            "U",
            sp.Max(0, sp.Abs(delta) * tau - stock),
            "B",
            "Bytes stranded over the lead time: what the stock, or the headroom, does not cover.",
            (delta, tau, C, Q0),
            regular=spilled,
            code_symbol="U",
            where=((stock, stock_ahead),),
        ),
    ),
    proofs=(
        Proof("the level is at the boundary exactly then", _met),
        Proof("the loss is the integral of the stranded flow over the lead time, by P tau, in every case", _stranded),
        Proof("the bytes are P tau times the loss, in every case", _bytes),
        Proof("textbook and regular forms agree in every case", _faces),
        Proof("nothing is lost without a step or without a lead time", _still),
        Proof("derivatives to C, Q0 and tau, at fixed Q0 and at fixed Q0/C", _derivatives),
        Proof("the loss lies between 0 and |delta|/P, and tends to that", _bounded),
        Proof("a shortfall from Q0 is the mirror image of a surplus from C - Q0", _mirrored),
    ),
    limits=(
        "Decode works its batch off for osl t_step, which softens a shortfall (D29).",
        "A surplus raises the time to first token before it pushes prefill back.",
        "A ramp, a periodic mix or a detection threshold: D16.",
    ),
    source="the article's shock map",
    published=tuple(_map_checks()),
)

GENERATED = "buffer"
DERIVATIONS = (D14,)
