"""Noise: what a delayed loop makes of random disturbances, and when whole workers stop it from flapping."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, both_faces_agree
from derivations.feedback import gain
from derivations.functions import Ratio
from derivations.symbols import quantity, tau

noise = quantity("noise", "S", "B^2/s", "intensity of white noise in the surplus", 1e18)
step_gain = quantity("step_gain", r"\bar{g}", "1", "share of the displacement corrected per review", 0.05)
step_noise = quantity("step_noise", r"\sigma^2", "B^2", "variance of the disturbance of one review period", 1e19)
lead_periods = quantity("lead_periods", "L", "1", "lead time in review periods", 5.0, "nonnegative")
averaged = quantity("averaged", "p", "1", "periods in the moving average of the forecast", 10.0, (1, sp.oo))
theta_in = quantity("theta_in", r"\theta_{\mathrm{in}}", "1", "dead band below the target load", 0.1, (0, 1))
theta_out = quantity("theta_out", r"\theta_{\mathrm{out}}", "1", "dead band above the target load", 0.1, "nonnegative")

g, S, t, s, x, y, G, V = sp.symbols("g S tau s x y G V", positive=True)
lag = gain * tau
stable = lag < sp.pi / 2
level = noise / (2 * gain) * (1 + sp.sin(lag)) / sp.cos(lag)
inside_level = Ratio(noise * (1 + sp.sin(lag)), 2 * gain * sp.cos(lag), sp.oo)


def _inside(d: Derivation, name: str) -> Any:
    """The branch of a formula where the loop is stable."""
    return d.formula(name).args[0][0].subs({gain: g, noise: S, tau: t, step_gain: G, step_noise: V})


def _covariance(d: Derivation) -> list[Any]:
    """R(s) on [0, tau]: R' = -g R(tau - s) there, and the power balance 2 g R(tau) = S fixes its size."""
    R0 = _inside(d, "level_variance")
    R = R0 * sp.cos(g * s) - S / (2 * g) * sp.sin(g * s)
    size = sp.Symbol("size")
    family = size * sp.cos(g * s) - S / (2 * g) * sp.sin(g * s)
    (solved,) = sp.solve(2 * g * family.subs(s, t) - S, size)
    delayed = sp.simplify(sp.expand(sp.diff(R, s) + g * R.subs(s, t - s), trig=True))
    return [
        sp.simplify(sp.diff(R, s, 2) + g**2 * R),
        sp.simplify(solved - R0),
        sp.simplify(delayed.subs(t, x / g)),
        sp.simplify(2 * g * R.subs(s, t) - S),
        sp.simplify(R.subs(s, 0) - R0),
        sp.simplify(R0.subs(t, 0) - S / (2 * g)),
    ]


def _command(d: Derivation) -> list[Any]:
    return [sp.simplify(_inside(d, "command_variance") - g**2 * _inside(d, "level_variance"))]


def _unstable(d: Derivation) -> list[Any]:
    """At the limit gain of D18, and beyond, the variance is infinite; it grows without bound towards it."""
    found = []
    for name in ("level_variance", "command_variance"):
        limit = sp.limit(_inside(d, name).subs(t, x / g), x, sp.pi / 2, "-")
        found += [sp.Eq(limit, sp.oo), d.formula(name).args[0][1] == stable, d.formula(name).args[1][0] == sp.oo]
    for name, bound in (("sampled_variance", 2), ("late_sampled_variance", 1)):
        found += [
            sp.Eq(sp.limit(_inside(d, name), G, bound, "-"), sp.oo),
            d.formula(name).args[0][1] == (step_gain < bound),
            d.formula(name).args[1][0] == sp.oo,
        ]
    return found


def _quietest(d: Derivation) -> list[Any]:
    """At a fixed delay, in x = g tau: ln Var has the derivative 1/cos x - 1/x, so it is least at x = cos x."""
    variance = _inside(d, "level_variance").subs(g, x / t)
    slope = sp.diff(sp.log(variance), x)
    curve = sp.sin(x) / sp.cos(x) ** 2 + 1 / x**2  # above 0 where the sine is
    low, high = sp.Rational(739, 1000), sp.Rational(740, 1000)
    return [
        sp.simplify(sp.expand((slope - 1 / sp.cos(x) + 1 / x) * x * sp.cos(x) * (1 + sp.sin(x))).rewrite(sp.exp)),
        sp.simplify(sp.diff(1 / sp.cos(x) - 1 / x, x) - curve),
        sp.is_increasing(sp.sin(x), sp.Interval(0, sp.pi / 2), x),
        bool(sp.cos(low) > low) and bool(sp.cos(high) < high),
        variance.subs(x, 1).is_positive,
    ]


def _lyapunov(d: Derivation) -> list[Any]:
    """The stationary covariance of (Q_n, ..., Q_{n-d}) solves M = F M F' + noise: two cases, solved whole."""
    found = []
    for steps, name in ((0, "sampled_variance"), (1, "late_sampled_variance")):
        F = sp.zeros(steps + 1, steps + 1)
        F[0, 0] += 1
        F[0, steps] -= G
        for i in range(steps):
            F[i + 1, i] = 1
        unknown = sp.symbols(f"m:{(steps + 1) ** 2}")
        M = sp.Matrix(steps + 1, steps + 1, unknown)
        W = sp.zeros(steps + 1, steps + 1)
        W[0, 0] = V
        (solved,) = tuple[Any](sp.linsolve(list(F * M * F.T + W - M), unknown))
        found.append(sp.simplify(solved[0] - _inside(d, name)))
    return found


def _bullwhip(d: Derivation) -> list[Any]:
    """Order-up-to with a moving average of p: the order is (1 + L/p) D(n-1) - (L/p) D(n-p-1); variances add."""
    L, found = sp.Symbol("L", positive=True), []
    for p in (1, 2, 3, 5):
        demand = sp.symbols(f"D0:{p + 1}")  # newest first
        now, before = (L * sum(demand[k : k + p]) / p for k in (0, 1))
        order = now - before + demand[0]
        variance = sum(sp.diff(order, D) ** 2 for D in demand)
        found.append(sp.expand(variance - d.formula("bullwhip").subs({lead_periods: L, averaged: p})))
        found.append(sp.expand(order - ((1 + L / p) * demand[0] - L / p * demand[p])))
    p = sp.Symbol("p", positive=True)
    any_p = (1 + L / p) ** 2 + (L / p) ** 2
    return [*found, sp.expand(any_p - d.formula("bullwhip").subs({lead_periods: L, averaged: p}))]


def _flaps(d: Derivation) -> list[Any]:
    """Loads that are too much for n - 1 and too little for n: they exist iff the interval has a positive width."""
    low, high, n = sp.symbols("low high n", positive=True)
    width = n * (1 - low) - (n - 1) * (1 + high)
    size = d.formula("steady_size").subs({theta_in: low, theta_out: high}, simultaneous=True)
    (edge,) = sp.solve(width, n)
    return [
        sp.expand(width - (1 - (high * (n - 1) + low * n))),
        sp.simplify(edge - size),
        sp.simplify(sp.diff(width, n) + low + high),  # it shrinks with n: steady from there on
        sp.simplify(width.subs(n, size * (1 + y)) + y * (1 + high)),
    ]


def _faces(d: Derivation) -> list[Any]:
    """On the stable branch, and beyond it."""
    found = []
    for name in ("level_variance", "command_variance", "sampled_variance", "late_sampled_variance"):
        faces = [f.args[0][0].replace(Ratio, lambda a, b, _: a / b) for f in (d.formula(name), d.regular(name))]
        found.append(sp.simplify(faces[0] - faces[1]))
        found += [d.regular(name).args[0][1] == d.formula(name).args[0][1], d.regular(name).args[1][0] == sp.oo]
    return found


late = Convention(sp.Ge(lag, sp.pi / 2), "gain*tau >= pi/2 (unstable, D18): inf")
sampled_text = step_noise / (step_gain * (2 - step_gain))
late_text = step_noise * (1 + step_gain) / (step_gain * (1 - step_gain) * (2 + step_gain))

D20 = Derivation(
    id="D20",
    name="Noise, bullwhip and dead band",
    statement="A delayed loop amplifies noise, the more the nearer its stability limit; forecasting from a "
    "moving average "
    "amplifies orders; and a dead band stops a pool from flapping only from a certain size on.",
    assumptions=(
        "the loop of D18, driven by white noise in the surplus, stationary",
        "bullwhip: independent demands, order-up-to the forecast of the lead time, no safety stock",
        "dead band: constant load, one worker more or less at a time",
    ),
    steps=(
        Step("The autocovariance R of the level obeys R'(s) = -g R(tau - s) for 0 <= s <= tau, hence R'' = -g^2 R."),
        Step("Power balance: the noise brings in what the correction takes out, 2 g R(tau) = S. So R(0) is", level),
        Step("The command is g Q(t - tau), its variance", gain**2 * level),
        Step(
            "At a fixed delay the level is quietest at g tau = cos(g tau) = 0.7391, less than half of the "
            "stability limit: "
            "more gain costs more noise than it removes."
        ),
        Step("Sampled without delay: Var = (1 - G)^2 Var + sigma^2, so", sampled_text),
        Step("and one period late, from the two covariances,", late_text),
        Step(
            "The order after demand D is (1 + L/p) D(n-1) - (L/p) D(n-p-1), so orders vary more than demand by",
            (1 + lead_periods / averaged) ** 2 + (lead_periods / averaged) ** 2,
        ),
        Step(
            "A load flaps between n - 1 and n workers if it is above (1 + theta_out)(n - 1) and below (1 - "
            "theta_in) n. "
            "No load is, iff theta_out (n - 1) + theta_in n >= 1; for smaller n some loads flap, not all."
        ),
    ),
    forms=(
        ClosedForm(
            "level_variance",
            r"\mathrm{Var}\,Q",
            sp.Piecewise((level, stable), (sp.oo, True)),
            "B^2",
            "Variance of the level under white noise and a correction that is late by tau.",
            (noise, gain, tau),
            regular=sp.Piecewise((inside_level, stable), (sp.oo, True)),
            code_symbol="Var_Q",
            conventions=(late,),
        ),
        ClosedForm(
            "command_variance",
            r"\mathrm{Var}\,v",
            sp.Piecewise((gain**2 * level, stable), (sp.oo, True)),
            "B^2/s^2",
            "Variance of the commanded flow under white noise and a correction that is late by tau.",
            (noise, gain, tau),
            regular=sp.Piecewise(
                (Ratio(noise * gain * (1 + sp.sin(lag)), 2 * sp.cos(lag), sp.oo), stable), (sp.oo, True)
            ),
            code_symbol="Var_v",
            conventions=(late,),
        ),
        ClosedForm(
            "sampled_variance",
            r"\mathrm{Var}\,Q_0",
            sp.Piecewise((sampled_text, step_gain < 2), (sp.oo, True)),
            "B^2",
            "Variance of the level of a sampled loop without delay.",
            (step_noise, step_gain),
            regular=sp.Piecewise((Ratio(step_noise, step_gain * (2 - step_gain), sp.oo), step_gain < 2), (sp.oo, True)),
            code_symbol="Var_Q",
            conventions=(Convention(sp.Ge(step_gain, 2), "step_gain >= 2 (unstable, D18): inf"),),
        ),
        ClosedForm(
            "late_sampled_variance",
            r"\mathrm{Var}\,Q_1",
            sp.Piecewise((late_text, step_gain < 1), (sp.oo, True)),
            "B^2",
            "Variance of the level of a sampled loop that acts one period late.",
            (step_noise, step_gain),
            regular=sp.Piecewise(
                (
                    Ratio(step_noise * (1 + step_gain), step_gain * (1 - step_gain) * (2 + step_gain), sp.oo),
                    step_gain < 1,
                ),
                (sp.oo, True),
            ),
            code_symbol="Var_Q",
            conventions=(Convention(sp.Ge(step_gain, 1), "step_gain >= 1 (unstable, D18): inf"),),
        ),
        ClosedForm(
            "bullwhip",
            r"\frac{\mathrm{Var}\,\mathrm{orders}}{\mathrm{Var}\,\mathrm{demand}}",
            (1 + lead_periods / averaged) ** 2 + (lead_periods / averaged) ** 2,
            "1",
            "Variance of orders over that of demand, for a forecast by a moving average.",
            (lead_periods, averaged),
            code_symbol="Var_orders/Var_demand",
        ),
        ClosedForm(
            "steady_size",
            r"n_{\mathrm{steady}}",
            (1 + theta_out) / (theta_in + theta_out),
            "1",
            "Workers (round up) from which no constant load makes a pool flap between n - 1 and n.",
            (theta_in, theta_out),
            regular=Ratio(1 + theta_out, theta_in + theta_out, sp.oo),
            code_symbol="n_steady",
            conventions=(Convention(sp.Eq(theta_in + theta_out, 0), "no dead band: inf (some load always flaps)"),),
        ),
    ),
    proofs=(
        Proof("the autocovariance solves its delay equation, and power balance fixes its size", _covariance),
        Proof("the command's variance", _command),
        Proof("the variance is infinite from the stability limit on, and tends to that", _unstable),
        Proof("the quietest gain at a fixed delay: first and second order", _quietest),
        Proof("sampled loops: the stationary covariance, solved whole", _lyapunov),
        Proof("the bullwhip is an equality", _bullwhip),
        Proof("dead band: the loads that flap", _flaps),
        Proof("textbook and regular forms agree on the stable branch and beyond", _faces),
        both_faces_agree("steady_size"),
    ),
    limits=(
        "Chen et al. (2000) give the bullwhip as a lower bound, for correlated demand and with safety stock.",
        "Stationary noise only: a persistent step is D14, a periodic mix D16.",
    ),
    source="theory, group 4: ours for the dead band and the quietest gain, else standard and proved again",
    published=(
        Published(
            "D20-dead-band",
            "theory, D20: a dead band of 10 % either way is steady from 6 workers on",
            "D",
            6.0,
            lambda d: sp.ceiling(
                d.formula("steady_size").subs({theta_in: sp.Rational(1, 10), theta_out: sp.Rational(1, 10)})
            ),
            rounding=0.01,
            unit="workers",
        ),
    ),
)

GENERATED = "control"
DERIVATIONS = (D20,)
