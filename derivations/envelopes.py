"""Envelopes: the buffer that is enough for every flow within given curves, and the reflected queue behind the bound."""

from typing import Any

import sympy as sp

from derivations._reflection import PROOFS, counted, move
from derivations.buffer import D15
from derivations.core import ClosedForm, Derivation, Proof, Published, Step
from derivations.functions import Least, Most
from derivations.symbols import C, Q, delta_down, delta_up, quantity, tau, time
from derivations.units import one

guaranteed = quantity("guaranteed", "R", "B/s", "rate that the accepting side guarantees", 5e9)
sustained = quantity("sustained", r"\rho_R", "B/s", "sustained arrival rate, within the service", 4e9, (0, guaranteed))
arrival = quantity("arrival", r"\rho", "B/s", "sustained arrival rate, whatever the service", 6e9, "nonnegative")
burst = quantity("burst", r"\sigma", "B", "burst that arrives at once", 10e9, "nonnegative")
latency = quantity("latency", "T", "s", "latency of the service", 2.0, "nonnegative")
burst_P = quantity("burst_P", r"\sigma_P", "B", "burst of the produced flow", 10e9, "nonnegative")
burst_A = quantity("burst_A", r"\sigma_A", "B", "burst of the accepted flow", 8e9, "nonnegative")
most_P = quantity("most_P", r"\rho_P", "B/s", "sustained produced flow, at most", 7e9, "nonnegative")
most_A = quantity("most_A", r"\rho_A", "B/s", "sustained accepted flow, at most", 6e9, "nonnegative")
least_P = quantity("least_P", "R_P", "B/s", "produced flow, at least", 1e9, "nonnegative")
least_A = quantity("least_A", "R_A", "B/s", "accepted flow, at least", 1e9, "nonnegative")
lam_worker = quantity("lam_worker", r"\lambda_w", "req/s", "arrival rate at one worker", 0.5, "nonnegative")
spread = quantity("spread", r"c_S^2", "1", "squared coefficient of variation of the set-up time", 0.25, "nonnegative")

# Positive symbols for the proofs.
s, b, r, R, T, t, e, y = sp.symbols("s sigma rho R T tau e y", positive=True)
line = {burst: b, sustained: r, guaranteed: R, latency: T, arrival: r, tau: t}
slow, fast = {R: r + e}, {r: R + e}  # the arrival rate below the service, and above it


def _backlog(d: Derivation) -> list[Any]:
    """alpha - beta is sigma + rho s up to T, then has the slope rho - R <= 0: its supremum is at T."""
    gap_before, gap_after = b + r * s, b + r * s - R * (s - T)
    return [
        sp.simplify(gap_before.subs(s, T) - d.formula("envelope_backlog").subs(line)),
        sp.simplify(gap_after.subs(s, T) - gap_before.subs(s, T)),
        sp.diff(gap_before, s).is_positive,
        sp.diff(gap_after, s).subs(slow).is_negative,
    ]


def _delay(d: Derivation) -> list[Any]:
    """The service has passed alpha(s) at T + alpha(s)/R: later than s by a distance that falls with s."""
    distance = T + (b + r * s) / R - s
    passed = (R * (sp.Symbol("x") - T) - (b + r * s)).subs(sp.Symbol("x"), T + (b + r * s) / R)
    return [
        sp.simplify(distance.subs(s, 0) - d.formula("envelope_delay").subs(line)),
        sp.simplify(sp.diff(distance, s).subs(slow)).is_negative,
        sp.expand(passed),
    ]


def _late(d: Derivation) -> list[Any]:
    """alpha - beta with a rate that joins after tau: it rises up to tau if rho > R, and falls from then on."""
    extra = sp.Symbol("extra", positive=True)
    before, after = b + (r - R) * s, b + (r - R) * s - extra * (s - t)
    form = d.formula("late_rate_capacity").subs(line)
    return [
        sp.simplify(form.subs(fast) - before.subs(s, t).subs(fast)),
        sp.simplify(form.subs(slow) - b),
        sp.simplify(form.subs(r, R) - b),
        sp.diff(before, s).subs(fast).is_positive,
        sp.diff(before, s).subs(slow).is_negative,
        sp.simplify(sp.diff(after, s).subs(fast).subs(extra, e * (1 + y))).is_negative,  # rho < R + extra
        sp.simplify(sp.diff(after, s).subs(fast).subs(extra, e)),  # rho = R + extra: level from then on
    ]


def _any_path(d: Derivation) -> list[Any]:
    """At the start u of a busy period the buffer is empty: B(t) = [A(t) - A(u)] - [D(t) - D(u)] <= alpha - beta."""
    now, since = sp.symbols("now since", positive=True)
    A, D = sp.Function("A"), sp.Function("D")
    backlog = A(now) - D(now)
    split = (A(now) - A(since)) - (D(now) - D(since)) + (A(since) - D(since))
    worst = (b + r * s) - R * s  # without latency or help: the backlog formula at T = 0
    return [
        sp.expand(backlog - split),
        sp.limit(worst, s, 0) - d.formula("envelope_backlog").subs(line).subs(T, 0),
    ]


def _two_sides(d: Derivation) -> list[Any]:
    """Upwards the netput rises by the first bracket at most, downwards by the second: the no-loss bound adds them."""
    names = {burst_P: b, most_P: r, least_A: R, burst_A: 0, most_A: 0, least_P: 0, tau: t}
    mirror = {burst_P: 0, most_P: 0, least_A: 0, burst_A: b, most_A: r, least_P: R, tau: t}
    capacity, stock, late = (d.formula(n) for n in ("two_sided_capacity", "two_sided_stock", "late_rate_capacity"))
    steps = {burst_P: 0, burst_A: 0, most_P: delta_up, least_A: 0, most_A: delta_down, least_P: 0}
    found = []
    for case in (fast, slow, {r: R}):
        up = late.subs(line).subs(case)
        found += [sp.simplify(capacity.subs(names).subs(case) - up), sp.simplify(capacity.subs(mirror).subs(case) - up)]
        found += [sp.simplify(stock.subs(mirror).subs(case) - up), sp.simplify(stock.subs(names).subs(case))]
    positive_steps = {delta_up: b, delta_down: r, tau: t}
    found.append(sp.simplify((capacity.subs(steps) - D15.formula("minimal_capacity")).subs(positive_steps)))
    joint = capacity - stock  # the two brackets do not share a symbol but tau: the sum is the capacity
    found.append(sp.simplify(joint.subs({burst_A: y, most_A: 1, least_P: 2}) - joint.subs({burst_A: 0, most_A: 0})))
    return found


def _setup(d: Derivation) -> list[Any]:
    """Departures of M/G/1 whose first service of a busy period waits for a set-up: generating function, then Little.

    pi(z) = p0 A(z) (1 - z S(z))/(A(z) - z), with A and S those of the arrivals in a service and in a set-up.
    """
    h, load, second, rate, m1, m2 = sp.symbols("h load second rate m1 m2", positive=True)
    a3, s3 = sp.symbols("a3 s3")

    def mean(set_up: bool) -> Any:
        A = 1 + load * h + rate**2 * second * h**2 / 2 + a3 * h**3  # h = z - 1
        S = 1 + rate * m1 * h + rate**2 * m2 * h**2 / 2 + s3 * h**3 if set_up else sp.S.One
        over = sp.cancel(sp.expand(A * (1 - (1 + h) * S)) / h)
        under = sp.cancel(sp.expand(A - 1 - h) / h)
        pi = over / under
        empty = 1 / pi.subs(h, 0)  # pi(1) = 1
        return sp.simplify(empty * sp.diff(pi, h).subs(h, 0))

    extra = sp.simplify((mean(True) - mean(False)) / rate)
    welch = (2 * m1 + rate * m2) / (2 * (1 + rate * m1))
    c2 = sp.Symbol("c2", positive=True)
    form = d.formula("setup_delay").subs({lam_worker: rate, tau: t, spread: c2})
    pollaczek = load + rate**2 * second / (2 * (1 - load))
    return [
        sp.simplify(mean(False) - pollaczek),
        sp.simplify(extra - welch),
        sp.simplify(extra.subs({m1: t, m2: t**2 * (1 + c2)}) - form),
    ]


def _setup_kinds(d: Derivation) -> list[Any]:
    """Deterministic: between tau and tau/2. Exponential: tau at every load. More spread: more delay."""
    form = d.formula("setup_delay").subs({tau: t})
    fixed = form.subs(spread, 0)
    rate = sp.Symbol("rate", positive=True)
    return [
        sp.simplify(form.subs(spread, 1) - t),
        sp.simplify(fixed - t * (2 + lam_worker * t) / (2 * (1 + lam_worker * t))),
        sp.limit(fixed.subs(lam_worker, rate), rate, 0) - t,
        sp.limit(fixed.subs(lam_worker, rate), rate, sp.oo) - t / 2,
        sp.simplify(sp.diff(fixed.subs(lam_worker, rate), rate)).is_negative,
        sp.simplify(sp.diff(form.subs(lam_worker, rate), spread)).is_positive,
    ]


bracket_up = burst_P + sp.Max(0, most_P - least_A) * tau
bracket_down = burst_A + sp.Max(0, most_A - least_P) * tau
wait = tau * (2 + lam_worker * tau * (1 + spread)) / (2 * (1 + lam_worker * tau))
request = one("req")

D19 = Derivation(
    id="D19",
    name="Envelopes and the reflected queue",
    statement="The buffer that is enough for every flow within given curves, from the exact solution of the "
    "queue between "
    "its two boundaries; and the mean delay that a cold start adds, next to the worst one.",
    assumptions=(
        "arrivals in any window of s seconds are within a burst and a sustained rate, sigma + rho s",
        "service from the onset of a backlog is at least the service curve; help that is ordered joins tau "
        "after the onset "
        "(detection included), stays until the backlog ends, and makes up for the excess",
        "set-up delay: Poisson arrivals, one server, first come first served, load below 1, the set-up starts "
        "at the first "
        "arrival to an empty system",
    ),
    steps=(
        Step(
            "A step of the queue adds d and clips, so it is a clip-add map x -> min(u, max(l, x + d)); two of "
            "them are one,"
        ),
        Step("and composition is associative: a scan, or a tree of pairs, gives the same exact path."),
        Step("What spills over and what is missing follow from the same step", sp.Max(0, Q + move - C)),
        Step(
            "The two-sided Skorokhod formula, g(t) - sup over s <= t of min((g(s) - C)+, inf of g on [s, t]) "
            "with g the "
            "one-sided map, obeys the same recursion."
        ),
        Step(
            "Nothing is lost iff the stock covers the deepest netput and the headroom the highest: the least "
            "capacity is "
            "the range of the netput, its best stock the depth."
        ),
        Step(
            "dQ/dC is 1 from the first overflow of a busy period to its end, so a byte of C saves one byte "
            "per busy period "
            "that has an overflow."
        ),
        Step(
            "The backlog is at most the largest gap of arrival and service curve, for a latency T at",
            burst + sustained * latency,
        ),
        Step("the delay at most their largest horizontal distance", latency + burst / guaranteed),
        Step("A rate that joins tau after the onset leaves the gap growing up to then", (arrival - guaranteed) * time),
        Step(
            "Both boundaries: the netput rises by the first and falls by the second bracket at most",
            bracket_up + bracket_down,
        ),
        Step(
            "Mean delay of a set-up: from the generating function of the departures, the delay of M/G/1 plus "
            "(2 E[S] + lambda E[S^2])/(2 (1 + lambda E[S])).",
        ),
    ),
    forms=(
        ClosedForm(
            "envelope_backlog",
            r"Q_{\max}",
            burst + sustained * latency,
            "B",
            "Largest backlog of arrivals within a burst and a rate, for a service with a latency.",
            (burst, sustained, latency),
            code_symbol="Q_max",
        ),
        ClosedForm(
            "envelope_delay",
            r"W_{\max}",
            latency + burst / guaranteed,
            "s",
            "Largest delay of arrivals within a burst and a rate that the service covers.",
            (burst, guaranteed, latency),
            code_symbol="W_max",
        ),
        ClosedForm(
            "late_rate_capacity",
            r"C^\ast",
            burst + sp.Max(0, arrival - guaranteed) * tau,
            "B",
            "Buffer that is enough when the missing service joins a lead time after the onset of the backlog.",
            (burst, arrival, guaranteed, tau),
            code_symbol="C_min",
        ),
        ClosedForm(
            "two_sided_capacity",
            r"C_{\mathrm{both}}",
            bracket_up + bracket_down,
            "B",
            "Buffer that is enough on both sides: for a late correction of a surplus and of a shortfall.",
            (burst_P, most_P, least_A, burst_A, most_A, least_P, tau),
            code_symbol="C_both",
        ),
        ClosedForm(
            "two_sided_stock",
            r"Q_0",
            bracket_down,
            "B",
            "Stock to hold in the two-sided buffer.",
            (burst_A, most_A, least_P, tau),
            code_symbol="Q0",
        ),
        ClosedForm(
            "reflected_level",
            "Q'",
            sp.Min(C, sp.Max(0, Q + move)),
            "B",
            "Level after a step at a constant rate.",
            (Q, move, C),
            regular=Least(Most(Q + move, 0), C),
            code_symbol="Q_next",
        ),
        ClosedForm(
            "overflow",
            r"\Delta U_{\mathrm{over}}",
            sp.Max(0, Q + move - C),
            "B",
            "Bytes that find the buffer full in a step at a constant rate.",
            (Q, move, C),
            code_symbol="dU_over",
        ),
        ClosedForm(
            "underflow",
            r"\Delta L_{\mathrm{under}}",
            sp.Max(0, -Q - move),
            "B",
            "Bytes asked of an empty buffer in a step at a constant rate.",
            (Q, move),
            code_symbol="dL_under",
        ),
        ClosedForm(
            "setup_delay",
            r"E[W_{\mathrm{setup}}]",
            wait,
            "s",
            "Mean delay that a server adds which is off when empty and takes tau to start.",
            (lam_worker, tau, spread),
            code_symbol="E_setup",
            dimensional=tau * (2 * request + lam_worker * tau * (1 + spread)) / (2 * (request + lam_worker * tau)),
            note="spread is 0 for a fixed set-up time, 1/k for Erlang stages, 1 for an exponential one (then "
            "it is tau).",
        ),
    ),
    proofs=(
        Proof("backlog: the gap of the curves is largest where the latency ends", _backlog),
        Proof("delay: the horizontal distance is largest at once", _delay),
        Proof("the bound holds for every path: count from the start of the busy period", _any_path),
        Proof("help after tau: the gap grows up to then and no further", _late),
        Proof("both sides: the brackets add up, and without bursts it is the capacity of D15", _two_sides),
        *PROOFS,
        Proof("set-up: the generating function of the departures gives Welch's formula", _setup),
        Proof("set-up: fixed lies between tau/2 and tau, exponential is tau, spread adds", _setup_kinds),
    ),
    limits=(
        "Enough, not least, for two sides: a flow rarely does its worst both ways.",
        "An average says little here: exponential set-up times hide the harm of fixed ones in pools of "
        "several servers.",
        "Thresholds that move with C make the netput depend on C: then its range is no fixed bound.",
    ),
    source="theory, sections 4.B to 4.D; Welch (1964); Kruk et al. (2007); Cassandras et al. (2002); proved again",
    published=(
        Published(
            "V19",
            "theory, V19: the derivative of the overflow is minus the number of busy periods with one (random path)",
            "D",
            1.0,
            lambda d: sp.Rational(str(-counted()[0] / counted()[2])),
            tolerance=1e-12,
            unit="difference/count",
        ),
        Published(
            "V19-workload",
            "theory, V19: the derivative of the summed level is the time from first overflows to ends of busy periods",
            "D",
            1.0,
            lambda d: sp.Rational(str(counted()[1] / counted()[3])),
            tolerance=1e-12,
            unit="difference/count",
        ),
    ),
)

DERIVATIONS = (D19,)
