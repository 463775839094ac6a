"""Tracking: what a correction that comes late leaves for the buffer, for a step, a ramp and a periodic mix."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive, value
from derivations.functions import Most, Ratio
from derivations.shock import D14
from derivations.symbols import Q0, C, delta, delta_up, quantity, tau, time

theta_Q = quantity("theta_Q", r"\theta_Q", "B", "displacement of the level that is detected", 5e9, "nonnegative")
review = quantity("review", r"\Delta", "s", "review period", 15.0, "nonnegative")
ramp = quantity("ramp", "a", "B/s^2", "growth of the surplus per second", 1e7, "nonnegative")
detect = quantity("detect", r"t_\theta", "s", "time from the start of a ramp to its detection", 30.0, "nonnegative")
delta_amp = quantity("delta_amp", r"\delta_0", "B/s", "amplitude of a periodic surplus", 2.67e9, "nonnegative")
omega = quantity("omega", r"\omega", "1/s", "angular frequency of a periodic surplus", 0.01)
horizon = quantity("horizon", "T_h", "s", "time for which a ramp lasts", 3600.0, "nonnegative")


class RealRatio(Ratio):
    """A `Ratio` of real numbers, told to SymPy."""

    is_real = True

    def _pythoncode(self, printer: Any) -> str:
        return printer._print_Ratio(self)


# Positive symbols for the proofs: step, threshold, growth, lead time, amplitude, frequency, a time, an excess.
n, th, a, t, amp, w, y, e = sp.symbols("n theta a tau amp omega y e", positive=True)
phase = sp.Symbol("phase", real=True)

lag = omega * tau
turned, behind = 2 * sp.sin(lag / 2) ** 2, lag - sp.sin(lag)  # 1 - cos and x - sin of x = omega tau
gain_textbook = sp.sqrt(2 + lag**2 - 2 * sp.cos(lag) - 2 * lag * sp.sin(lag))
chord = behind * sp.sqrt(1 + RealRatio(turned, behind) ** 2)
gain_regular = sp.Piecewise((chord, tau > 0), (0, True))
capacity_regular = sp.Piecewise((2 * delta_amp / omega * chord, tau > 0), (0, True))
swing = 4 * delta_amp / omega
at_lag = sp.sin(lag / 2)
size_at_lag: Any = Most(at_lag, -at_lag)  # at tau = 0 this has the derivative from the right, which Abs has not


def _net(at: Any) -> Any:
    """The periodic surplus at time `at`."""
    return amp * sp.sin(w * at + phase)


def _periodic(expr: Any) -> Any:
    """A formula in the positive symbols of the proofs."""
    return expr.subs({delta_amp: amp, omega: w, tau: t, ramp: a, theta_Q: th})


def _constant_step(d: Derivation) -> list[Any]:
    """Seen at theta/delta, at worst a review later, corrected tau after that: the buffer just holds; less spills."""
    head, wait = d.formula("detected_headroom").subs({delta_up: n, theta_Q: th, tau: t, review: y}), th / n + y + t
    spill = D14.regular("lost_bytes").subs({delta: n, C: Q0 + head - e, tau: wait}, simultaneous=True)
    return [sp.simplify(n * wait - head), sp.simplify(spill - e)]


def _ramp_seen(d: Derivation) -> list[Any]:
    when = d.formula("ramp_detection_time").subs({ramp: a, theta_Q: th})
    moved = d.formula("ramp_displacement").subs({ramp: a, detect: when, tau: t})
    passed = sp.integrate(a * y, (y, 0, when + t))
    words = th + t * sp.sqrt(2 * a * th) + a * t**2 / 2
    return [
        sp.integrate(a * y, (y, 0, when)) - th,
        when.is_positive,
        sp.simplify(passed - moved),
        sp.simplify(sp.expand(moved) - words),
    ]


def _ramp_edges(d: Derivation) -> list[Any]:
    regular = d.regular("ramp_detection_time")
    return [
        regular.subs({ramp: a, theta_Q: th}) - d.formula("ramp_detection_time").subs({ramp: a, theta_Q: th}),
        regular.subs({theta_Q: 0, ramp: a}),
        regular.subs({theta_Q: 0, ramp: 0}),
        sp.Eq(regular.subs({theta_Q: th, ramp: 0}), sp.oo),
    ]


def _ramp_peak(d: Derivation) -> list[Any]:
    """After landing the level moves at a y - correction: down at first if the correction exceeds the rate reached."""
    landed = detect + tau
    after = sp.diff(ramp * (landed + y) ** 2 / 2 - (ramp * landed + e) * y, y)  # a correction e above the rate reached
    at_landing = d.formula("ramp_displacement") - ramp * landed**2 / 2
    return [at_landing, sp.simplify(after - (ramp * y - e)), sp.simplify(after.subs(y, 0) + e)]


def _net_flow(d: Derivation) -> list[Any]:
    """Late tracking leaves a sine of amplitude 2 delta_0 |sin(omega tau/2)|; its integral spans the capacity."""
    left = _net(time) - _net(time - t)
    product = 2 * amp * sp.sin(w * t / 2) * sp.cos(w * (time - t / 2) + phase)
    level = sp.integrate(_net(y), (y, time - t, time))
    wave = 2 * amp / w * sp.sin(w * t / 2) * sp.sin(w * (time - t / 2) + phase)
    peaks = [wave.subs(time, t / 2 + (s * sp.pi / 2 - phase) / w) for s in (1, -1)]
    ahead = _periodic(d.formula("periodic_capacity")).subs(sp.Abs(sp.sin(t * w / 2)), sp.sin(t * w / 2))  # sin >= 0
    return [
        sp.simplify(sp.expand(left - product, trig=True)),
        sp.simplify(sp.expand(level - wave, trig=True)),
        sp.simplify(sp.diff(level, time) - left),
        sp.simplify(peaks[0] - peaks[1] - ahead),
        # where the sine is -1 the capacity is its size
        sp.simplify(_periodic(d.formula("periodic_capacity")).subs(t, 3 * sp.pi / w) - 4 * amp / w),
    ]


def _from_rest(d: Derivation) -> list[Any]:
    """Before the first correction lands |psi| <= (2 delta_0/omega) sin(omega t/2), and the sine grows up to T/2."""
    level = sp.integrate(_net(y), (y, 0, time))
    half = sp.Symbol("half", positive=True)
    wave = 2 * amp / w * sp.sin(w * time / 2) * sp.sin(w * time / 2 + phase)
    bound = _periodic(d.formula("periodic_capacity")).subs(w * t, 2 * half) / 2
    return [
        sp.simplify(sp.expand(level - wave, trig=True)),
        sp.simplify(bound.subs(sp.Abs(sp.sin(half)), sp.sin(half)) - 2 * amp / w * sp.sin(half)),
        sp.is_increasing(sp.sin(half), sp.Interval(0, sp.pi / 2), half),
    ]


def _late_start(d: Derivation) -> list[Any]:
    """tau > T/2: with c = cos(phase) the start reaches [c - 1, c + 1] delta_0/omega, then the cycle [-q, q]."""
    c, q = sp.Symbol("c", real=True), sp.Symbol("q", positive=True)
    start = sp.integrate(_net(y), (y, 0, time)) * w / amp
    width = sp.Max(1 + c, q) + sp.Max(1 - c, q)  # convex in c: largest at an end
    ends = [width.subs(c, s) for s in (-1, 1)]
    formula = _periodic(d.formula("startup_capacity"))
    size = sp.Abs(sp.sin(t * w / 2))
    return [
        sp.simplify(start - (sp.cos(phase) - sp.cos(w * time + phase))),
        sp.simplify(ends[0] - ends[1]),
        sp.simplify(ends[0].subs(q, 2 / (1 + e)) - (2 + 2 / (1 + e))),  # any q = 2 |sin| below 2
        ends[0].subs(q, 2) - 4,
        sp.simplify(formula - amp / w * (2 + 2 * size)),
        start.subs({phase: 0, time: sp.pi / w}) - 2,  # phase 0 reaches 2 at T/2, so the bound is attained
    ]


def _sixth(d: Derivation) -> list[Any]:
    """Better than nothing iff |sin(omega tau/2)| < 1/2; the sine grows on [0, pi/2] and is 1/2 at pi/6."""
    alone = 2 * amp / w
    capacity, period = _periodic(d.formula("periodic_capacity")), 2 * sp.pi / w
    half = sp.Symbol("half", real=True)
    return [
        sp.simplify(capacity.subs(t, period / 6) - alone),
        sp.simplify(capacity.subs(t, period / 2) - 2 * alone),
        sp.simplify(capacity.subs(t, period)),
        sp.simplify(capacity.subs(t, period * sp.Rational(5, 6)) - alone),
        sp.is_increasing(sp.sin(half), sp.Interval(0, sp.pi / 2), half),
        sp.solveset(sp.sin(half) - sp.Rational(1, 2), half, sp.Interval(0, sp.pi / 2)) == sp.FiniteSet(sp.pi / 6),
        sp.simplify(sp.integrate(_net(y), (y, 0, time)) - amp / w * (sp.cos(phase) - sp.cos(w * time + phase))),
    ]


def _predicted(d: Derivation) -> list[Any]:
    """delta(t) - delta(t - tau) - tau delta'(t - tau): 0 for a ramp, a sine of this amplitude for a sine."""
    x = sp.Symbol("x", positive=True)
    ramp_left = a * time - a * (time - t) - t * sp.diff(a * time, time)
    sine = amp * sp.sin(time * w)
    left = sine - sine.subs(time, time - t) - t * sp.diff(sine, time).subs(time, time - t)
    in_phase, across = left.subs(time, sp.pi / (2 * w)), left.subs(time, 0)
    whole = in_phase * sp.sin(w * time) + across * sp.cos(w * time)
    squared = (in_phase**2 + across**2) / amp**2
    gain = d.formula("predictor_gain").subs({omega: w, tau: t})
    grows = sp.diff(d.formula("predictor_gain").subs({omega: x / tau}) ** 2, x)
    return [
        sp.expand(ramp_left),
        sp.simplify(sp.expand(left - whole, trig=True)),
        sp.simplify(sp.expand(squared - gain**2, trig=True)),
        sp.simplify(grows - 2 * x * (1 - sp.cos(x))),
        sp.limit(gain.subs(t, x / w) ** 2 / x**4, x, 0) - sp.Rational(1, 4),
        value(gain, {w: 1, t: 1}).is_positive,
    ]


def _predicted_buffer(d: Derivation) -> list[Any]:
    """The integral of a sine of amplitude delta_0 gain spans 2 delta_0 gain/omega; without control the gain is 1."""
    gain, capacity = d.formula("predictor_gain"), d.formula("predicted_capacity")
    wave = sp.integrate(amp * sp.sin(w * y), y)
    span = wave.subs(y, sp.pi / w) - wave.subs(y, 0)
    below, above = (value(gain, {omega: 1, tau: x}) for x in (sp.Rational("1.45"), sp.Rational("1.465")))
    return [
        sp.simplify(capacity - (span / amp).subs(w, omega) * delta_amp * gain),
        below < 1,
        above > 1,
        sp.limit((capacity.subs(tau, y) / y**2).subs(omega, w), y, 0) - delta_amp * w,
    ]


def _faces_of_prediction(d: Derivation) -> list[Any]:
    """The squares agree; neither face vanishes for x > 0 (x - sin x > 0), so one point settles the sign."""
    x, found = sp.Symbol("x", positive=True), []
    for name in ("predictor_gain", "predicted_capacity"):
        faces = [f.subs({tau: x / omega, delta_amp: amp}) for f in (d.formula(name), d.regular(name))]
        squares = [sp.expand(f.replace(RealRatio, lambda over, under, _: over / under) ** 2) for f in faces]
        found.append(sp.expand((squares[0] - squares[1]).rewrite(sp.exp)))
        at = {omega: 1, x: 1, amp: 1}
        found += [abs(value(faces[0], at) - value(faces[1], at)) < 1e-25, d.regular(name).subs(tau, 0).doit()]
    return [*found, sp.simplify(sp.diff(x - sp.sin(x), x) - 2 * sp.sin(x / 2) ** 2)]


def _ramp_and_sine(d: Derivation) -> list[Any]:
    """From rest the ramp part only rises, by less than a tau T_h, and the periodic part stays in its own range."""
    rises = sp.integrate(a * y, (y, 0, t)) + sp.integrate(a * t, (y, t, t + e))  # T_h = tau + e
    bound = _periodic(d.formula("ramp_periodic_capacity")) - _periodic(d.formula("periodic_capacity"))
    spare = sp.expand(bound.subs(horizon, t + e) - rises)
    short = sp.expand(bound.subs({horizon: t / (1 + e)}) - a * (t / (1 + e)) ** 2 / 2)
    return [
        sp.simplify(spare - a * t**2 / 2),
        sp.factor(short).is_positive,
        sp.simplify(d.formula("ramp_periodic_capacity").subs(ramp, 0) - d.formula("periodic_capacity")),
    ]


def _faces_of_waves(d: Derivation) -> list[Any]:
    """By the sign of the sine: half a turn and a half have opposite signs of it, and each face takes its size."""
    found = []
    for name in ("periodic_capacity", "startup_capacity", "ramp_periodic_capacity"):
        for turn in (sp.Rational(1, 3), sp.Rational(4, 3), sp.S.Zero):
            at = {tau: 2 * sp.pi * turn / omega}
            found.append(sp.simplify(positive((d.formula(name) - d.regular(name)).subs(at))))
        size = sp.Abs(at_lag)
        plain_face = d.regular(name).replace(Most, lambda p, q: sp.Abs(p) if p == -q else sp.Max(p, q))
        found.append(sp.simplify(plain_face - d.formula(name)))
        found.append(d.formula(name).has(size))
    return found


def _break_even(d: Derivation) -> Any:
    """The lead time, as a share of the period, at which the predictor's gain is 1."""
    x = sp.Symbol("x", positive=True)
    gain = d.formula("predictor_gain").subs({omega: 1, tau: x})
    return sp.nsolve(gain**2 - 1, x, (1.4, 1.5), solver="bisect", prec=30) / (2 * sp.pi)


D16 = Derivation(
    id="D16",
    name="Detection, ramp and periodic mix",
    statement="A correction that lands a lead time late leaves for the buffer what passed meanwhile. For a periodic "
    "mix it shrinks the buffer only if the lead time is short against the period: a sixth of it for plain tracking, "
    "0.2319 with a linear predictor.",
    assumptions=(
        "tracking is exact but late: the correction at time t is the surplus of time t - tau (0 before the "
        "first lands)",
        "the netput does not depend on C: thresholds are placed relative to Q0",
        "phase known: the stock at the start is chosen for it",
    ),
    steps=(
        Step(
            "A constant surplus is seen after theta_Q/delta, a review later at worst, and passes on for the lead time."
        ),
        Step("A ramp a t is seen after", sp.Eq(detect, sp.sqrt(2 * theta_Q / ramp))),
        Step(
            "and has by the landing moved the level by",
            sp.Eq(ramp / 2 * (detect + tau) ** 2, theta_Q + tau * sp.sqrt(2 * ramp * theta_Q) + ramp * tau**2 / 2),
            checked=False,
        ),
        Step("which is a peak only if the correction exceeds the rate reached by then, ", ramp * (detect + tau)),
        Step(
            "Late tracking of a sine leaves",
            sp.Eq(
                delta_amp * sp.sin(omega * time) - delta_amp * sp.sin(omega * (time - tau)),
                2 * delta_amp * at_lag * sp.cos(omega * (time - tau / 2)),
            ),
        ),
        Step("whose integral spans", swing * sp.Abs(at_lag)),
        Step("against, without control,", 2 * delta_amp / omega),
        Step(
            "Smaller iff |sin(omega tau/2)| < 1/2: for tau <= T/2 iff tau < T/6; in general iff tau is within T/6 of a "
            "multiple of the period T. At T/2 it is doubled."
        ),
        Step(
            "From rest and for tau <= T/2 the netput stays within half of that on either side, whatever the "
            "phase: with "
            "Q0 = C/2 nothing is lost, the start included. For longer lead times the start can need more "
            "(startup_capacity; "
            "4 delta_0/omega with Q0 = C/2 and any phase)."
        ),
        Step(
            "The linear predictor delta(t - tau) + tau delta'(t - tau) is exact for a ramp, and leaves of a "
            "sine the chord "
            "of a cycloid, |(x - sin x, 1 - cos x)| at x = omega tau",
            sp.Eq(gain_textbook, sp.sqrt(behind**2 + turned**2)),
        ),
        Step(
            "Its square has the derivative 2 x (1 - cos x) >= 0, so one lead time separates gain from loss: 0.2319 T."
        ),
        Step(
            "A ramp leaves plain tracking a constant residual, so the level drifts for as long as it lasts",
            ramp * tau * horizon,
        ),
    ),
    forms=(
        ClosedForm(
            "detected_headroom",
            r"C_{\mathrm{head}}",
            theta_Q + delta_up * (tau + review),
            "B",
            "Headroom for a constant surplus that is detected by the displacement of the level.",
            (theta_Q, delta_up, tau, review),
            code_symbol="C_head",
        ),
        ClosedForm(
            "ramp_detection_time",
            r"t_\theta",
            sp.sqrt(2 * theta_Q / ramp),
            "s",
            "Time after which a ramp has displaced the level by the detected amount.",
            (ramp, theta_Q),
            regular=sp.Piecewise(
                (sp.sqrt(2) * sp.sqrt(theta_Q) / sp.sqrt(ramp), (theta_Q > 0) & (ramp > 0)),
                (0, theta_Q <= 0),
                (sp.oo, True),
            ),
            code_symbol="t_detect",
            conventions=(
                Convention(sp.Eq(theta_Q, 0), "theta_Q = 0 (seen at once): 0, where the true slope is infinite"),
                Convention(sp.Eq(ramp, 0), "ramp = 0 < theta_Q (never seen): inf"),
            ),
        ),
        ClosedForm(
            "ramp_displacement",
            r"\Delta Q",
            ramp / 2 * (detect + tau) ** 2,
            "B",
            "Displacement of the level by a ramp until its correction lands.",
            (ramp, detect, tau),
            code_symbol="dQ",
            note="With detect from ramp_detection_time it is theta_Q + tau*sqrt(2*ramp*theta_Q) + ramp*tau**2/2.",
        ),
        ClosedForm(
            "periodic_capacity",
            r"C^\ast",
            swing * sp.Abs(at_lag),
            "B",
            "Smallest buffer for a periodic surplus under late, exact tracking.",
            (delta_amp, omega, tau),
            regular=swing * size_at_lag,
            code_symbol="C_min",
        ),
        ClosedForm(
            "startup_capacity",
            r"C_{\mathrm{start}}",
            2 * delta_amp / omega * (1 + sp.Abs(at_lag)),
            "B",
            "Buffer that also covers the start from rest when the lead time exceeds half a period (known "
            "phase, worst).",
            (delta_amp, omega, tau),
            regular=2 * delta_amp / omega * (1 + size_at_lag),
            code_symbol="C_start",
        ),
        ClosedForm(
            "predictor_gain",
            r"\frac{\hat\delta}{\delta_0}",
            gain_textbook,
            "1",
            "Amplitude that the linear predictor leaves of a periodic surplus, as a share of it.",
            (omega, tau),
            regular=gain_regular,
        ),
        ClosedForm(
            "predicted_capacity",
            r"C^\ast_{\mathrm{pred}}",
            2 * delta_amp / omega * gain_textbook,
            "B",
            "Smallest buffer for a periodic surplus under a linear predictor that has its history.",
            (delta_amp, omega, tau),
            regular=capacity_regular,
            code_symbol="C_pred",
        ),
        ClosedForm(
            "ramp_periodic_capacity",
            r"C_{\mathrm{both}}",
            ramp * tau * horizon + swing * sp.Abs(at_lag),
            "B",
            "Buffer that is enough for a ramp with a periodic surplus on it, under late tracking from rest "
            "(tau <= T/2).",
            (ramp, horizon, delta_amp, omega, tau),
            regular=ramp * tau * horizon + swing * size_at_lag,
            code_symbol="C_both",
        ),
    ),
    proofs=(
        Proof("a constant step: the headroom just holds, and less of it loses what is missing", _constant_step),
        Proof("a ramp: detection, and displacement until the landing", _ramp_seen),
        Proof("the detection time on the edges of its domain", _ramp_edges),
        Proof("the landing is a peak exactly if the correction exceeds the rate reached", _ramp_peak),
        Proof("late tracking of a sine leaves a sine; the range of its integral is the capacity", _net_flow),
        Proof("from rest, for tau <= T/2, every phase stays within half of it on either side", _from_rest),
        Proof("for longer lead times the start needs more, and phase 0 needs all of it", _late_start),
        Proof("late tracking helps iff tau < T/6 (tau <= T/2), and doubles the buffer at T/2", _sixth),
        Proof("the predictor cancels a ramp and leaves this amplitude of a sine, growing with the lag", _predicted),
        Proof("its buffer, its break-even and its small-lag limit delta_0 omega tau^2", _predicted_buffer),
        Proof("the two faces of the predictor agree", _faces_of_prediction),
        Proof("ramp and sine together: the sum of the ranges is enough", _ramp_and_sine),
        Proof("the faces with |sin| agree", _faces_of_waves),
    ),
    limits=(
        "Joining a running cycle at an unknown phase needs 2 C*; with C* it loses once and then never.",
        "The predictor must have tau of history: a cold start adds ramp tau^2/2 and the first tau of the sine.",
        "ramp_periodic_capacity is enough, not least: from rest the ramp needs ramp tau^2/2 less.",
    ),
    source="theory, group 4: ours",
    published=(
        Published(
            "D16-sixth",
            "theory, D16 c: late tracking breaks even at a sixth of the period",
            "D",
            0.5,
            lambda d: value(
                d.formula("periodic_capacity") / swing, {omega: 1, delta_amp: 1, tau: 2 * sp.pi * sp.Rational(1, 6)}
            ),
            tolerance=1e-12,
            unit="of the any-phase buffer",
        ),
        Published(
            "D16-predictor",
            "theory, D16 d: the predictor breaks even at this share of the period",
            "D",
            0.2319,
            _break_even,
            rounding=5e-5,
            unit="T",
        ),
    ),
)

GENERATED = "control"
DERIVATIONS = (D16,)
