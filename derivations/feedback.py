"""Delayed feedback: how strongly a correction may follow the level, for each kind of delay."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, both_faces_agree, value
from derivations.functions import Ratio
from derivations.symbols import quantity, tau

gain = quantity("gain", "g", "1/s", "share of the displacement corrected per second", 1e-4)
stages = quantity("stages", "k", "1", "stages of the cold start (Erlang order)", 4.0, (1, sp.oo), integer=True)
delay_steps = quantity("delay_steps", "d", "1", "whole review periods of delay", 4.0, (0, sp.oo), integer=True)
short_delay = quantity(
    "short_delay", "f", "1", "delay of less than a review period, as a share of it", 0.4, (0, 1), special=("1/4",)
)

g, t, w, x, y, th = sp.symbols("g tau omega x y theta", positive=True)
z = sp.Symbol("z")
turn = sp.pi / (2 * stages)
erlang = stages * sp.tan(turn) / sp.cos(turn) ** stages


def _pure_delay(d: Derivation) -> list[Any]:
    """i w = -g exp(-i w tau): size gives w = g, phase gives g tau = pi/2 first; the roots cross outwards there."""
    limit = d.formula("delay_gain_limit").subs(tau, t)
    on_axis = (sp.I * w + g * sp.exp(-sp.I * w * t)).subs(w, g)
    s = sp.I * limit
    slope = (s / limit) / (1 + s * t)  # ds/dg from s + g exp(-s tau) = 0
    implicit = sp.Symbol("s")
    equation = implicit + g * sp.exp(-implicit * t)
    by_rule = -sp.diff(equation, g) / sp.diff(equation, implicit)
    return [
        sp.simplify(on_axis.subs(g, limit)),
        limit * t - sp.pi / 2,
        sp.simplify((by_rule - (implicit / g) / (1 + implicit * t)).subs(sp.exp(-implicit * t), -implicit / g)),
        sp.simplify(sp.re(slope) - sp.simplify(limit * t / (1 + (limit * t) ** 2))),
        sp.simplify(sp.re(slope)).is_positive,
        2 * sp.pi / limit - 4 * t,  # the period at the margin
    ]


def _no_overshoot(d: Derivation) -> list[Any]:
    """A real root exists iff g tau <= 1/e; with it y = Q exp(l t) grows from a constant history, so Q stays above 0."""
    decay, s = sp.symbols("decay s", positive=True)
    needed = decay * sp.exp(-decay * t)  # the gain of the real root -decay
    (best,) = sp.solve(sp.diff(needed, decay), decay)
    Q, now = sp.Function("Q"), sp.Symbol("now")
    grown = sp.diff(Q(now) * sp.exp(decay * now), now).subs(sp.diff(Q(now), now), -needed * Q(now - t))
    difference = decay * (Q(now) * sp.exp(decay * now) - Q(now - t) * sp.exp(decay * (now - t)))
    history = 1 - sp.exp(-decay * t)  # y(0) - y(-tau) for the history Q = 1
    return [
        sp.simplify(needed.subs(decay, best) - d.formula("monotone_gain_limit").subs(tau, t)),
        sp.simplify(sp.diff(needed, decay, 2).subs(decay, best)).is_negative,
        sp.simplify(grown - difference),
        sp.simplify(history.subs(t, s / decay)) == 1 - sp.exp(-s),
        sp.limit(1 - sp.exp(-s), s, 0) == 0 and sp.diff(1 - sp.exp(-s), s).is_positive,
    ]


def _lambert(d: Derivation) -> list[Any]:
    """The roots are W_j(-g tau)/tau; at the limit the first pair is on the axis."""
    at_limit = -value(d.formula("delay_gain_limit") * tau, {})
    margin = [abs(sp.N(sp.re(sp.LambertW(at_limit, j)), 20)) < 1e-15 for j in (0, -1)]
    sample = sp.N(sp.LambertW(sp.Rational(-1, 2), 2), 30)
    return [*margin, abs(sp.N(sample * sp.exp(sample) + sp.Rational(1, 2), 20)) < 1e-25]


def _erlang_axis(d: Derivation) -> list[Any]:
    """s (1 + s tau/k)^k + g at s = i w: the phase pi/2 + k atan(w tau/k) is pi once; the size there is the gain."""
    k, angle = stages, sp.Symbol("angle", positive=True)
    frequency = k * sp.tan(turn) / t
    size = frequency / sp.cos(turn) ** k  # sqrt(1 + tan^2) = 1/cos
    limit = d.formula("erlang_gain_limit").args[0][0]
    Y = sp.Symbol("Y", positive=True)  # w tau / k
    branch = 1 + k * Y**2 / (1 + Y**2) + sp.I * k * Y / (1 + Y**2)  # 1 + s tau/(1 + s tau/k) at s = i k Y/tau
    found = [
        sp.simplify(limit - size * t),
        sp.simplify(sp.diff(sp.atan(angle), angle)).is_positive,  # the phase grows, so it is pi once
        sp.simplify(branch - 1 - sp.I * k * Y / (1 + sp.I * Y)),
        sp.simplify(sp.im(branch)).is_positive,  # hence Re(ds/dg) = Im(branch) w/(g |branch|^2) > 0: outwards
        d.formula("erlang_gain_limit").subs(stages, 1) == sp.oo,
    ]
    s = sp.Symbol("s")
    for order in (2, 3, 4, 5):
        at = {k: order}
        polynomial = s * (1 + s * t / order) ** order + limit.subs(at) / t
        root = polynomial.subs(s, sp.I * frequency.subs(at)).subs(t, 1)
        found.append(abs(sp.N(sp.expand(root), 40, maxn=400)) < sp.Float("1e-30"))
    return found


def _routh(d: Derivation) -> list[Any]:
    """Orders 1 to 3 by their Hurwitz determinants, with x = g tau: no use of the axis."""
    s, found = sp.Symbol("s"), []
    for order in (1, 2, 3):
        coefficients = sp.Poly(sp.expand(s * (1 + s / order) ** order + x), s).all_coeffs()
        n = len(coefficients) - 1
        hurwitz: Any = sp.Matrix(
            n, n, lambda i, j, c=coefficients, n=n: c[2 * j - i + 1] if 0 <= 2 * j - i + 1 <= n else 0
        )
        minors = [sp.factor(hurwitz[:m, :m].det()) for m in range(1, n + 1)]
        limit: Any = d.formula("erlang_gain_limit").subs(stages, order)
        inside = {x: limit / (1 + y)} if limit.is_finite else {}
        found += [sp.simplify(m.subs(inside)).is_positive for m in minors]
        if limit.is_finite:
            found += [sp.Min(*(sp.simplify(m.subs(x, limit)) for m in minors)), limit.is_positive]
    return found


def _erlang_order(d: Derivation) -> list[Any]:
    """With v = pi/(2k) the limit is (pi/2) (tan v/v) exp(-(pi/2) ln(cos v)/v): each factor grows with v."""
    v = sp.Symbol("v", positive=True)
    limit = d.formula("erlang_gain_limit").args[0][0].subs(stages, sp.pi / (2 * v))
    factors = sp.pi / 2 * sp.tan(v) / v * sp.cos(v) ** (-sp.pi / (2 * v))
    first = sp.simplify(sp.diff(sp.tan(v) / v, v) - (v - sp.sin(v) * sp.cos(v)) / (v**2 * sp.cos(v) ** 2))
    second = sp.diff(-sp.log(sp.cos(v)) / v, v) - (v * sp.tan(v) + sp.log(sp.cos(v))) / v**2
    return [
        sp.simplify(sp.powsimp(limit / factors, force=True) - 1),
        first,
        sp.simplify(sp.diff(v - sp.sin(v) * sp.cos(v), v) - 2 * sp.sin(v) ** 2),  # so v > sin v cos v
        sp.simplify(second),
        sp.simplify(sp.diff(v * sp.tan(v) + sp.log(sp.cos(v)), v) - v / sp.cos(v) ** 2),  # so that one is above 0 too
        sp.limit(sp.tan(v) / v, v, 0) - 1,
        sp.limit(sp.log(sp.cos(v)) / v, v, 0),
        sp.pi / 2 - d_limit(d),
    ]


def d_limit(d: Derivation) -> Any:
    """The limit of the pure delay, times tau: what the Erlang orders tend to."""
    return d.formula("delay_gain_limit").subs(tau, t) * t


def _sampled(d: Derivation) -> list[Any]:
    """z^d (z - 1) = -G on |z| = 1: size 2 sin(theta/2) = G, phase (d + 1/2) theta = pi/2 + 2 pi m, least at m = 0."""
    limit = d.formula("sampled_gain_limit")
    size = 2 * sp.sin(th / 2)
    edge = sp.exp(sp.I * th) - 1 - size * sp.exp(sp.I * (th + sp.pi) / 2)
    speed = 1 / (delay_steps + sp.Rational(1, 2) - sp.I / 2 * sp.cot(th / 2))  # d ln z / d ln G
    ratio_ = z / (z - 1) - (sp.Rational(1, 2) - sp.I / 2 * sp.cot(th / 2))
    found = [
        sp.simplify(edge.rewrite(sp.cos)),
        sp.simplify(limit - size.subs(th, sp.pi / (2 * delay_steps + 1))),
        sp.simplify(ratio_.subs(z, sp.exp(sp.I * th)).rewrite(sp.exp)),
        sp.simplify(sp.re(1 / speed) - delay_steps - sp.Rational(1, 2)),  # above 0: the roots cross outwards
    ]
    for steps in range(7):
        root = sp.exp(sp.I * sp.pi / (2 * steps + 1))
        polynomial = root**steps * (root - 1) + limit.subs(delay_steps, steps)
        found.append(abs(sp.N(polynomial, 40, maxn=400)) < sp.Float("1e-30"))
    return found


def _between(d: Derivation) -> list[Any]:
    """One period at most: z^2 + (G (1 - f) - 1) z + G f; inside the circle iff p(1), p(-1) > 0 and G f < 1 (Jury)."""
    G = sp.Symbol("G", positive=True)
    limit, f = d.formula("short_gain_limit"), short_delay
    p = z**2 - z + G * ((1 - f) * z + f)
    early, late = {f: 1 / (4 * (1 + y))}, {f: (1 + y) / (4 + y)}  # f below 1/4; f in (1/4, 1)
    flip, turn_ = 2 / (1 - 2 * f), 1 / f
    return [
        sp.simplify(p.subs(z, 1) - G),
        sp.expand(p.subs(z, -1) - (2 - G * (1 - 2 * f))),
        sp.expand(p.subs(z, 0) - G * f),
        sp.simplify((limit - flip).subs(early)),
        sp.factor((turn_ - flip).subs(early)).is_positive,  # the flip comes first
        sp.simplify((limit - turn_).subs(late)),
        sp.factor((flip - turn_).subs(f, (1 + 2 * y) / (4 + 4 * y))).is_positive,  # later for f in (1/4, 1/2)
        limit.subs(f, 0) - 2,
        limit.subs(f, sp.Rational(1, 4)) - 4,
        limit.subs(f, sp.Rational(1, 2)) - 2,
        limit.subs(f, 1) - 1,
    ]


def _rounding_up(d: Derivation) -> list[Any]:
    """Delay (d - 1 + f) periods, any d >= 1: on |z| = 1 the gain is at least 2 sin(theta/2), and (d + 1/2) theta =
    pi/2 + arg((1 - f) z + f) + 2 pi m with that arg in [0, theta], so theta >= pi/(2d + 1)."""
    f = sp.Symbol("f", positive=True)
    share = f / (1 + f)  # any share in (0, 1)
    mixed = (1 - share) * sp.exp(sp.I * th) + share
    size = sp.expand(sp.re(mixed) ** 2 + sp.im(mixed) ** 2)
    below_one = sp.simplify(1 - size - 2 * share * (1 - share) * (1 - sp.cos(th)))
    least = 2 * sp.sin(th / 2).subs(th, sp.pi / (2 * delay_steps + 1))
    return [
        sp.simplify(sp.expand(below_one, trig=True)),  # hence |(1 - f) z + f| <= 1
        sp.simplify(sp.im(mixed) - (1 - share) * sp.sin(th)),  # its arg is at least 0
        sp.simplify(sp.im(mixed * sp.exp(-sp.I * th)).rewrite(sp.cos) + share * sp.sin(th)),  # and at most theta
        sp.simplify(d.formula("sampled_gain_limit") - least),
    ]


def _faces(d: Derivation) -> list[Any]:
    """Textbook and regular face of the Erlang and the short limit, on each of their branches."""
    form, regular = d.formula("erlang_gain_limit"), d.regular("erlang_gain_limit")
    inside = [sp.simplify(form.subs(stages, k) - regular.subs(stages, k)) for k in (2, 3, 4, 6)]
    raw = [e.args[0][0].replace(Ratio, lambda a, b, _: a / b) for e in (form, regular)]
    early, late = {short_delay: 1 / (4 * (1 + y))}, {short_delay: (1 + 2 * y) / (4 + 2 * y)}
    short = d.formula("short_gain_limit") - d.regular("short_gain_limit")
    return [
        *inside,
        sp.powsimp((raw[0] / raw[1]).subs(sp.tan(turn), sp.sin(turn) / sp.cos(turn))) - 1,
        regular.subs(stages, 1) == sp.oo,
        *(sp.simplify(short.subs(at)) for at in (early, late)),
        *(sp.simplify(short.subs(short_delay, f)) for f in (0, sp.Rational(1, 4), sp.Rational(1, 2), 1)),
    ]


def _largest_root(d: Derivation, steps: int) -> Any:
    limit = sp.N(d.formula("sampled_gain_limit").subs(delay_steps, steps), 60)
    roots = sp.Poly(z ** (steps + 1) - z**steps + limit, z).nroots(n=40, maxsteps=500)
    return max(abs(r) for r in roots)


SAMPLED = {0: 2.0, 1: 1.0, 2: 0.618, 3: 0.445, 4: 0.347}
ERLANG = {2: 4.0, 3: 2.667, 4: 2.274, 8: 1.858, 32: 1.634}

D18 = Derivation(
    id="D18",
    name="Delayed feedback stability",
    statement="A correction proportional to the level that acts a lead time late is stable up to a gain that "
    "the lead time "
    "divides; how it is delayed decides the constant: pi/2 for a pure delay, more for a cold start in stages, "
    "none for an "
    "exponential one.",
    assumptions=(
        "one integrator, linear: Q' = -g Q(t - tau), Q the displacement from the planned stock",
        "the command is proportional to Q (an incremental law adds an integrator and is another system)",
    ),
    steps=(
        Step("Solutions exp(s t) need s + g exp(-s tau) = 0, so s = W_j(-g tau)/tau with Lambert's W."),
        Step(
            "For a small gain all roots are on the left. On the axis, s = i w, the size gives w = g and the phase",
            sp.Eq(gain * tau, sp.pi / 2),
        ),
        Step("There, and at every later crossing, a pair moves to the right as g grows: it never comes back."),
        Step("A real root, hence no oscillation, needs", sp.Le(gain * tau, sp.exp(-1))),
        Step(
            "With a constant history there is then no overshoot: for the real root -l, y = Q exp(l t) obeys "
            "y' = l (y(t) - y(t - tau)) and starts growing, so it grows for ever. Other histories can cross zero once."
        ),
        Step("A cold start in k stages of mean tau: s (1 + s tau/k)^k + g = 0, with the phase pi/2 + k atan(w tau/k)"),
        Step("which is pi once, so", sp.Lt(gain * tau, erlang)),
        Step("For k = 1 it never is: no gain is unstable. For k to infinity the limit falls to pi/2."),
        Step(
            "Sampled, Q(n+1) = Q(n) - G Q(n-d): z^d (z - 1) = -G, on the circle |z - 1| = 2 sin(theta/2) and "
            "(d + 1/2) theta = pi/2: the limit is the textbook formula below."
        ),
        Step(
            "A delay between samples, (d - 1 + f) periods: z^(d+1) - z^d + G ((1 - f) z + f) = 0, |(1 - f) z + f| <= 1 "
            "with an argument in [0, theta]. So its limit is not below that of d: rounding the delay up is safe."
        ),
    ),
    forms=(
        ClosedForm(
            "delay_gain_limit",
            r"g_{\max}",
            sp.pi / (2 * tau),
            "1/s",
            "Gain below which a loop with a pure delay is stable.",
            (tau,),
            regular=Ratio(sp.pi / 2, tau, sp.oo),
            code_symbol="g_max",
            conventions=(Convention(sp.Eq(tau, 0), "tau = 0 (no delay): inf"),),
        ),
        ClosedForm(
            "monotone_gain_limit",
            r"g_{\mathrm{mono}}",
            sp.exp(-1) / tau,
            "1/s",
            "Gain up to which a loop with a pure delay does not overshoot from a constant history.",
            (tau,),
            regular=Ratio(sp.exp(-1), tau, sp.oo),
            code_symbol="g_mono",
            conventions=(Convention(sp.Eq(tau, 0), "tau = 0 (no delay): inf"),),
        ),
        ClosedForm(
            "erlang_gain_limit",
            r"(g\tau)_{\max}",
            sp.Piecewise((erlang, stages > 1), (sp.oo, True)),
            "1",
            "Gain times mean delay below which a loop with an Erlang delay is stable.",
            (stages,),
            regular=sp.Piecewise(
                (Ratio(stages * sp.sin(turn), sp.cos(turn) ** (stages + 1), sp.oo), stages > 1), (sp.oo, True)
            ),
            code_symbol="(g*tau)_max",
            conventions=(Convention(sp.Eq(stages, 1), "stages = 1 (exponential: never unstable): inf"),),
        ),
        ClosedForm(
            "sampled_gain_limit",
            r"\bar{g}_{\max}",
            2 * sp.sin(sp.pi / (2 * (2 * delay_steps + 1))),
            "1",
            "Gain times review period below which a sampled loop is stable that acts whole periods late.",
            (delay_steps,),
            code_symbol="(g*review)_max",
        ),
        ClosedForm(
            "short_gain_limit",
            r"\bar{g}_{\max}(f)",
            sp.Piecewise((2 / (1 - 2 * short_delay), short_delay < sp.Rational(1, 4)), (1 / short_delay, True)),
            "1",
            "Gain times review period below which a sampled loop is stable that acts a part of a period late.",
            (short_delay,),
            regular=sp.Piecewise(
                (Ratio(2, 1 - 2 * short_delay), short_delay < sp.Rational(1, 4)), (Ratio(1, short_delay), True)
            ),
            code_symbol="(g*review)_max",
        ),
    ),
    proofs=(
        Proof("pure delay: first crossing of the axis, outwards", _pure_delay),
        Proof("no overshoot up to 1/e, from a constant history", _no_overshoot),
        Proof("the roots by Lambert's W", _lambert),
        Proof("Erlang delay: one crossing of the axis, outwards", _erlang_axis),
        Proof("Erlang orders 1 to 3 by Hurwitz determinants", _routh),
        Proof("the Erlang limit falls with the order, to that of the pure delay", _erlang_order),
        Proof("sampled: first crossing of the circle, outwards", _sampled),
        Proof("a delay of less than a period: Jury's conditions", _between),
        Proof("a delay between samples is never worse than the next whole one", _rounding_up),
        Proof("textbook and regular forms agree on each branch", _faces),
        both_faces_agree("delay_gain_limit", "monotone_gain_limit"),
    ),
    limits=(
        "Linear: a saturating command or an empty buffer bounds the swing of an unstable loop (D17).",
        "Margins shrink by every other lag in the loop: metric windows, scrape intervals, smoothing.",
    ),
    source="theory, group 4: ours for the Erlang and the between-samples limits, else standard and proved again",
    published=(
        *(
            Published(
                f"V21-d{steps}",
                "theory, D18: sampled gain limits",
                "D",
                printed,
                "sampled_gain_limit",
                {"delay_steps": steps},
                rounding=5e-4,
            )
            for steps, printed in SAMPLED.items()
        ),
        *(
            Published(
                f"V21-roots-d{steps}",
                "theory, V21: at the limit the largest root of the characteristic polynomial has size 1",
                "D",
                1.0,
                lambda d, steps=steps: _largest_root(d, steps),
                tolerance=1e-12,
            )
            for steps in range(6)
        ),
        *(
            Published(
                f"D18-erlang-{order}",
                "theory, D18: Erlang limits",
                "D",
                printed,
                "erlang_gain_limit",
                {"stages": order},
                rounding=5e-4,
            )
            for order, printed in ERLANG.items()
        ),
    ),
)

GENERATED = "control"
DERIVATIONS = (D18,)
