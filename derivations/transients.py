"""Transients: what the decode pool still holds when the flow into it changes."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive
from derivations.functions import Ratio
from derivations.symbols import A, B, isl, kappa_store, n_D, osl, quantity, t_step, theta_ctx

GENERATED = "stages"
oo = sp.oo
since = quantity("since", "t", "s", "time since the flow changed", 5.0, "nonnegative")
batch_start = quantity("batch_start", "b_0", "seq", "sequences in decode when the flow changes", 2816.0, "nonnegative")
batch_end = quantity("batch_end", r"b_\infty", "seq", "sequences that the new flow sustains", 1408.0, "nonnegative")

e, x, y = sp.symbols("e x y", positive=True)
life = osl * t_step
_o = sp.Symbol("osl", positive=True)
_t = sp.Symbol("since", positive=True)
k, j = sp.symbols("k j", integer=True, nonnegative=True)


def _little(d: Derivation) -> list[Any]:
    """Arrivals times the time that each stays: at rest the batch is A/(kappa I) times the time constant."""
    constant = d.formula("decode_time_constant")
    b = sp.Symbol("b")
    (rest,) = sp.solve(sp.Eq(A / (kappa_store * isl), b / constant), b)
    return [sp.simplify(positive(constant) - positive(life)), sp.simplify(rest - A / (kappa_store * isl) * life)]


def _solution(d: Derivation) -> list[Any]:
    """db/dt = in - b/(O t_step): the only solution, by the solver; it starts and ends where it should."""
    b, t, rate = sp.Function("b"), sp.Symbol("t", positive=True), sp.Symbol("rate", positive=True)
    span = _o * t_step
    solved: Any = sp.dsolve(sp.Eq(b(t).diff(t), rate - b(t) / span), b(t), ics={b(0): batch_start})
    ours = positive(d.formula("batch_after")).subs(_t, t)
    begun, reached = positive(batch_start), positive(batch_end)
    return [
        sp.simplify(solved.rhs.subs(batch_start, begun) - ours.subs(reached, rate * span)),
        sp.simplify(ours.subs(t, 0) - begun),
        sp.limit(ours, t, oo) - reached,
        sp.simplify(sp.diff(ours, t).subs(t, 0) - (reached - begun) / span),
    ]


def _exponential_left(d: Derivation) -> list[Any]:
    """Without inflow the share left is that solution; for outputs geometric in whole steps (1 - 1/O)^k, a little less.

    The theory calls the exponential exact for geometric O: it is so in the limit of many steps only.
    """
    left = positive(d.formula("share_in_flight"))
    alone = (positive(d.formula("batch_after")) / positive(batch_start)).subs(positive(batch_end), 0)
    tail: Any = (1 / _o) * sp.summation((1 - 1 / _o) ** j, (j, 0, oo))
    after = sp.simplify(sp.summation((1 - 1 / (1 + x)) ** (j + k), (j, 0, oo)) / (1 + x))
    per_step = left.subs(_t, t_step)
    return [
        sp.simplify(left - alone),
        sp.simplify(after - (x / (1 + x)) ** k),
        sp.simplify(tail.subs(_o, 1 + x) - 1),
        sp.limit(per_step**_o, _o, oo) - sp.limit((1 - 1 / _o) ** _o, _o, oo),
        *(bool(sp.N(per_step.subs(_o, n) - (1 - sp.Rational(1, n))) > 0) for n in (2, 28, 1024)),
        _log_gap(per_step),
    ]


def _log_gap(per_step: Any) -> Any:
    """ln of a step of the exponential, -1/O, exceeds ln(1 - 1/O) for every O > 1: the gap falls in O towards 0."""
    gap = sp.log(per_step).subs(_o, 1 + x) - sp.log(1 - 1 / (1 + x))
    return [sp.factor(sp.simplify(-sp.diff(gap, x))).is_positive, sp.limit(gap, x, oo)]


def _fixed_left(d: Derivation) -> list[Any]:
    """Equal outputs: of O ages, one each, those below O - k are left after k steps: linear, empty at O t_step."""
    n = sp.Symbol("n", integer=True, positive=True)
    left = d.formula("share_in_flight_fixed")
    counted = sp.summation(1, (j, k, n - 1)) / n
    inside = left.subs({since: k * t_step, osl: k + n})
    ours = left.subs({since: _t, osl: _t / t_step * (1 + x)})
    return [
        sp.simplify(counted.subs(n, k + n) - inside),
        sp.simplify(ours - x / (1 + x)),
        left.subs({since: (1 + x) * _o * t_step, osl: _o}),
        left.subs(osl, _o).subs(since, 0) - 1,
    ]


def _same_start(d: Derivation) -> list[Any]:
    """Whatever the law, 1 of O leaves in the first step: P(O > 0) = 1 over the mean."""
    slopes = [
        sp.diff(positive(d.formula("share_in_flight")), _t).subs(_t, 0),
        sp.diff(1 - _t / (_o * t_step), _t),
    ]
    fixed = d.formula("share_in_flight_fixed").subs({osl: _o, since: _o * t_step * e / (1 + e)})
    return [*(sp.simplify(slope * t_step + 1 / _o) for slope in slopes), sp.simplify(fixed - 1 / (1 + e))]


def _any_law(d: Derivation) -> list[Any]:
    """Shares left for a law on 1..4 by following every slot of a full cycle, against the sum of P(O > j)."""
    law = {1: sp.Rational(1, 2), 2: sp.Rational(1, 4), 4: sp.Rational(1, 4)}
    mean = sum(n * p for n, p in law.items())

    def survive(m: int) -> Any:
        return sum(p for n, p in law.items() if n > m)

    ages = {a: survive(a) / mean for a in range(4)}  # a step sees a sequence of age a with this chance
    found: list[Any] = [sum(ages.values()) - 1]
    for steps in range(5):
        followed: Any = sum(chance * survive(a + steps) / survive(a) for a, chance in ages.items() if survive(a))
        found.append(sp.simplify(followed - sum(survive(m) for m in range(steps, 4)) / mean))
    one = d.formula("share_in_flight_fixed").subs({osl: 3, since: t_step})
    return [*found, one - sum(sp.Integer(3 > m) for m in range(1, 3)) / sp.Integer(3)]


def _held(d: Derivation) -> Any:
    """Every slot of the pool full, at the mean context."""
    return sp.simplify(d.formula("decode_stock") - n_D * (B * (kappa_store * theta_ctx)))


def _faces(d: Derivation) -> list[Any]:
    at = {osl: _o, since: _t}
    return [
        *(sp.simplify((d.formula(n) - d.regular(n)).subs(at)) for n in ("batch_after", "share_in_flight")),
        sp.simplify(positive(d.formula("share_in_flight_fixed")) - positive(d.regular("share_in_flight_fixed"))),
        d.regular("share_in_flight").subs({osl: 0, since: x}),
        d.regular("share_in_flight_fixed").subs({osl: 0, since: x}),
        d.regular("batch_after").subs({osl: 0, since: x}) - batch_end,
        d.regular("share_in_flight").subs({osl: _o, since: 0}) - 1,
    ]


NO_OUTPUT = sp.Eq(osl, 0)
_decay = sp.exp(-since / life)
_decay_regular = sp.exp(-Ratio(since, life, oo))

D29 = Derivation(
    id="D29",
    name="Transients",
    statement="The decode pool holds a stock of its own: when the flow into it stops, its batch leaves over the time "
    "that outputs take, 1/(O t_step) of it per second at first. On the side of a shortfall it is a second buffer that "
    "costs nothing.",
    assumptions=(
        "constant step time; a batch in equilibrium when the flow changes",
        "exponential: an output ends with the same chance in every step, and takes many steps",
    ),
    steps=(
        Step("Requests enter at", A / (kappa_store * isl)),
        Step("and leave at the batch over", life),
        Step("so the batch goes to what the flow sustains", batch_end + (batch_start - batch_end) * _decay),
        Step("For any law of O the share left is the sum of P(O > j) from j = t/t_step on, over the mean"),
        Step("and for equal outputs it falls along a line", 1 - since / life),
        Step("The full pool holds", n_D * B * kappa_store * theta_ctx),
    ),
    forms=(
        ClosedForm(
            "decode_time_constant",
            "T",
            life,
            "s",
            "Time constant of the decode pool.",
            (osl, t_step),
            code_symbol="T",
        ),
        ClosedForm(
            "batch_after",
            "b(t)",
            batch_end + (batch_start - batch_end) * _decay,
            "seq",
            "Sequences in decode a time after the flow changed.",
            (batch_start, batch_end, since, osl, t_step),
            regular=batch_end + (batch_start - batch_end) * _decay_regular,
            code_symbol="b",
            conventions=(Convention(NO_OUTPUT, "osl = 0 (sequences do not stay): batch_end"),),
        ),
        ClosedForm(
            "share_in_flight",
            r"\frac{b(t)}{b_0}",
            _decay,
            "1",
            "Share of the batch that is left after a time without inflow, outputs of exponential length.",
            (since, osl, t_step),
            regular=_decay_regular,
            code_symbol="b/b_0",
            conventions=(Convention(NO_OUTPUT, "osl = 0: 0"),),
            note="Geometric in whole steps it is (1 - 1/osl)^(since/t_step), a little less.",
        ),
        ClosedForm(
            "share_in_flight_fixed",
            r"\frac{b(t)}{b_0}",
            sp.Max(0, 1 - since / life),
            "1",
            "Share of the batch that is left after a time without inflow, outputs of equal length.",
            (since, osl, t_step),
            regular=sp.Max(0, 1 - Ratio(since, life, oo)),
            code_symbol="b/b_0",
            conventions=(Convention(NO_OUTPUT, "osl = 0: 0"),),
        ),
        ClosedForm(
            "decode_stock",
            r"\mathrm{stock}",
            n_D * B * kappa_store * theta_ctx,
            "B",
            "KV bytes in the full decode pool.",
            (n_D, B, kappa_store, theta_ctx),
            code_symbol="stock",
        ),
    ),
    proofs=(
        Proof("at rest: Little's law", _little),
        Proof("the linear equation has this solution", _solution),
        Proof("exponential outputs; geometric ones leave a little faster", _exponential_left),
        Proof("equal outputs leave along a line", _fixed_left),
        Proof("the same rate at first", _same_start),
        Proof("any law: the ages of the sequences, followed", _any_law),
        Proof("bytes of the full pool", _held),
        Proof("the regular forms agree inside and have the right ends", _faces),
    ),
    limits=(
        "A smaller batch has shorter steps (D07): the real pool drains faster than at constant t_step.",
        "Its bytes cannot be given back: they bridge a shortfall by being decoded.",
        "The theory calls the exponential exact for geometric O; it is the limit of long outputs.",
    ),
    source="theory, group 5",
    published=(
        Published(
            "D29-inertia",
            "theory, D29: 1024 tokens at 20 ms",
            "D",
            20.0,
            "decode_time_constant",
            {"osl": 1024, "t_step": sp.Rational(1, 50)},
            unit="s",
            rounding=0.5,
        ),
    ),
)

DERIVATIONS = (D29,)
