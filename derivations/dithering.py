"""Dithering: switching between two whole plans achieves the fractional split, if the buffer holds the swing."""

from fractions import Fraction
from typing import Any

import sympy as sp

from derivations._relay import relay
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, value
from derivations.functions import Ratio
from derivations.symbols import (
    N,
    delta_down,
    delta_up,
    hit,
    hit_decode,
    kappa_store,
    phi,
    quantity,
    r_P,
    tau,
)

oo = sp.oo
half = sp.Rational(1, 2)

# Strictly between 0 and 1 for every positive x, y, z.
x, y, z = sp.symbols("x y z", positive=True)

moved = quantity("moved", "g", "GPU", "GPUs that change their role", 2.0)
flow_step = quantity("flow_step", "q", "B/s/GPU", "change of the surplus per GPU that changes its role", 10.7e9)
band = quantity("band", r"\Delta\theta", "B", "distance of the two thresholds", 2e10, "nonnegative")
dead_time = quantity(
    "dead_time", r"\tau_x", "s", "time that a GPU serves neither role when it changes", 3.0, "nonnegative"
)
period = quantity("period", r"\mathcal{T}", "s", "time from one move to the next one in the same direction", 120.0)

flow_cached = r_P * kappa_store * (1 - hit_decode)
swing = delta_up + delta_down


def _one_gpu(d: Derivation) -> list[Any]:
    """A GPU leaves prefill, which sends F less, for decode, which takes F phi/(1 - phi) more (D12, at balance)."""
    flow = flow_cached / (1 - hit)
    moves = flow + flow * phi / (1 - phi)
    q = d.formula("flow_per_moved_gpu")
    plain_q = q.subs({hit: 0, hit_decode: 0})
    return [sp.simplify(moves - q), sp.simplify(plain_q - r_P * kappa_store / (1 - phi))]


def _fractional_share(d: Derivation) -> list[Any]:
    """Surplus is q (n_P - phi N): plans above and below the balance, each for the time that keeps the level."""
    q, above, below = d.formula("flow_per_moved_gpu"), x, y  # n_P - phi N, phi N - n_P
    up, down = q * above, q * below
    in_surplus = down / (up + down)
    mean_off = in_surplus * above - (1 - in_surplus) * below
    at = {flow_step: q, moved: above + below, tau: z, band: 0}
    return [sp.simplify(mean_off), sp.simplify(d.formula("dithering_capacity").subs(at) - (up + down) * z)]


def _relay_range(d: Derivation) -> list[Any]:
    """Ends of the level: high + up tau and low - down tau; run exactly, with just that room and with a little less."""
    needed, found = d.formula("dithering_capacity"), []
    low, high = sp.symbols("low high", positive=True)
    ends = (high + delta_up * tau) - (low - delta_down * tau)
    found.append(sp.expand(ends - needed.subs({flow_step: swing / moved, band: high - low})))
    for up, down, wide in ((1, 1, 0), (1, 2, 3), (5, 2, 1), (3, 7, 10)):
        for delay in (1, 4):
            at = {flow_step: up + down, moved: 1, tau: delay, band: wide}
            room = Fraction(int(needed.subs(at)))
            bottom = Fraction(down * delay)
            run = relay(Fraction(up), Fraction(down), bottom, bottom + wide, Fraction(delay), room)
            found += [run.lost == 0, run.highest - run.lowest == room, run.lowest == 0]
            found.append(run.surplus_time / run.period == Fraction(down, up + down))
            smaller = room * Fraction(99, 100)
            for start in (bottom * Fraction(99, 100), Fraction(0)):
                if start + wide <= smaller:
                    tight = relay(Fraction(up), Fraction(down), start, start + wide, Fraction(delay), smaller)
                    found.append(tight.lost > 0)
    return found


def _scheduled(d: Derivation) -> list[Any]:
    """A plan issued ahead: the level rises for the share down/(up + down) of the period, and falls back."""
    share = delta_down / swing
    rise, fall = delta_up * share * period, delta_down * (1 - share) * period
    return [sp.simplify(rise - fall), sp.simplify(rise - d.formula("schedule_capacity"))]


def _dead_time(d: Derivation) -> list[Any]:
    """Per period the pools are busy for G_P and G_D GPU-seconds, and the stock is back where it was."""
    works, busy = sp.symbols("t_P t_D", positive=True), sp.symbols("G_P G_D", positive=True)
    rate = sp.Symbol("X", positive=True)
    served = [sp.Eq(b / w, rate * period) for b, w in zip(busy, works, strict=True)]
    there = sp.Eq(sum(busy), N * period - 2 * moved * dead_time)
    (solved,) = sp.solve([*served, there], [*busy, rate], dict=True)
    return [sp.simplify(solved[rate] / (N / sum(works)) - d.formula("dither_efficiency"))]


def _dither_faces(d: Derivation) -> list[Any]:
    share = {hit: x / (1 + x), hit_decode: y / (1 + y), phi: z / (1 + z)}
    q, room = d.regular("flow_per_moved_gpu"), d.regular("schedule_capacity")
    up, down = sp.symbols("up down", positive=True)
    inside = {delta_up: up, delta_down: down}
    return [
        sp.simplify((q - d.formula("flow_per_moved_gpu")).subs(share).doit()),
        sp.simplify((room - d.formula("schedule_capacity")).subs(inside)),
        room.subs({delta_up: 0, delta_down: down}),
        sp.Eq(q.subs(share | {hit: 1}), oo),
        sp.Eq(q.subs(share | {phi: 1}), oo),
        q.subs(share | {hit_decode: 1}),
    ]


_nothing_or_all = sp.Piecewise((oo, hit_decode < 1), (0, True))
GLM = {"r_P": 56_250, "kappa_store": 95_000, "hit": 0, "hit_decode": 0, "phi": half}
GIGA = sp.Rational(1, 10**9)

D11 = Derivation(
    id="D11",
    name="Dithering",
    statement="Switching g GPUs back and forth between two whole plans around the balance achieves the fractional "
    "split, without rounding loss, if and only if the buffer holds q g tau and the band of the thresholds.",
    assumptions=(
        "both plans use all N GPUs, one has too many prefill GPUs and one too few",
        "tau is a pure delay: a GPU serves its old role until the switch lands (but see dead_time)",
        "a relay: switch when the level meets the upper, and back at the lower threshold (D17)",
    ),
    steps=(
        Step("A GPU moved from prefill to decode lowers the surplus by", flow_cached / ((1 - hit) * (1 - phi))),
        Step("so plans that differ by g GPUs have surplus and shortfall that sum to", sp.Eq(swing, flow_step * moved)),
        Step("The level ends tau after each threshold was met, in a range of", band + swing * tau),
        Step("A level that returns spends in surplus the share", delta_down / swing),
        Step("over which the prefill pool is phi N in the mean.", phi * N),
        Step("A GPU that serves neither role while it moves costs, twice a period,", moved * dead_time / period),
    ),
    forms=(
        ClosedForm(
            "flow_per_moved_gpu",
            "q",
            flow_cached / ((1 - hit) * (1 - phi)),
            "B/s/GPU",
            "Change of the fleet's surplus for each GPU that moves between the pools.",
            (r_P, kappa_store, hit, hit_decode, phi),
            regular=Ratio(flow_cached, (1 - hit) * (1 - phi), _nothing_or_all),
            code_symbol="q",
            conventions=(
                Convention(sp.Eq(hit, 1) | sp.Eq(phi, 1), "hit = 1 or phi = 1: inf, or 0 where hit_decode = 1"),
            ),
        ),
        ClosedForm(
            "dithering_capacity",
            "C",
            flow_step * moved * tau + band,
            "B",
            "Buffer of the whole fleet that switching by thresholds needs to achieve the fractional split.",
            (flow_step, moved, tau, band),
            code_symbol="C",
        ),
        ClosedForm(
            "schedule_capacity",
            "C",
            delta_up * delta_down / swing * period,
            "B",
            "Buffer that switching by a schedule, issued ahead of known rates, needs; the lead time does not enter.",
            (delta_up, delta_down, period),
            regular=Ratio(delta_up * delta_down * period, swing),
            code_symbol="C",
            conventions=(Convention(sp.Eq(swing, 0), "delta_up = delta_down = 0 (nothing to balance): 0"),),
        ),
        ClosedForm(
            "dither_efficiency",
            r"X / X^\ast",
            1 - 2 * moved * dead_time / (period * N),
            "1",
            "Throughput of switching, as a share of the fractional split's, when a GPU is dead while it moves.",
            (N, moved, dead_time, period),
            code_symbol="efficiency",
        ),
    ),
    proofs=(
        Proof("a moved GPU sends less and takes more", _one_gpu),
        Proof("the time in both plans averages to the fractional split; their swing is q g", _fractional_share),
        Proof("the range of the level, and exact runs: no loss with that room, loss with 1 % less", _relay_range),
        Proof("a schedule needs the rise of one period", _scheduled),
        Proof("dead time: GPU-seconds over a period that returns to its level", _dead_time),
        Proof("the regular forms inside and at the ends", _dither_faces),
    ),
    limits=(
        "Whole-fleet bytes: with C per prefill GPU multiply by their number.",
        "With a dead time the period contains it, so a narrow band can lose more than the best static plan.",
        "A cold start is no pure delay in both directions: stopping a GPU takes capacity away at once.",
        "Stock costs latency: the range of the level over the flow is the swing of the wait.",
    ),
    source="theory, group 2: ours",
    published=(
        Published(
            "D11-GLM", "GLM-5.2 on B200, phi = 1/2", "D", 10.7, "flow_per_moved_gpu", GLM, GIGA, "GB/s", rounding=0.05
        ),
        Published(
            "D11-GLM-buffer",
            "GLM-5.2 on B200, phi = 1/2, lead time 9.6 s, one GPU",
            "D",
            103,
            lambda d: (
                value(
                    d.formula("dithering_capacity"),
                    {
                        "flow_step": value(d.formula("flow_per_moved_gpu"), GLM),
                        "moved": 1,
                        "tau": sp.Rational("9.6"),
                        "band": 0,
                    },
                )
                * GIGA
            ),
            unit="GB",
            rounding=0.5,
        ),
        Published(
            "D11-no-band",
            "theory: 5 GPUs, phi = 1/2, 3 s dead, no band: a period of two moves",
            "D",
            0.80,
            "dither_efficiency",
            {"N": 5, "moved": 1, "dead_time": 3, "period": 6},
            rounding=5e-3,
        ),
        Published(
            "D11-band",
            "theory: the same with a band of 60 s of one GPU's flow",
            "D",
            0.99,
            "dither_efficiency",
            {"N": 5, "moved": 1, "dead_time": 3, "period": 126},
            rounding=5e-3,
        ),
    ),
)

GENERATED = "rounding"
DERIVATIONS = (D11,)
