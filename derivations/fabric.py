"""Fabric: the KV flow that leaves the prefill pool, against the links that must carry it."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step
from derivations.functions import Ratio
from derivations.symbols import B, N, P, hit, hit_decode, isl, kappa_store, n_P, nic, osl, phi, r_P, t_step

oo = sp.oo
flow = r_P * kappa_store * (1 - hit_decode) / (1 - hit)
CACHED = (r_P, kappa_store, hit, hit_decode)
_moved = r_P * kappa_store * (1 - hit_decode)
_nothing_or_all = sp.Piecewise((oo, hit_decode < 1), (0, True))

# Shares strictly inside (0, 1), with positive symbols: then every sign is known to SymPy.
_x, _y, _z = sp.symbols("x y z", positive=True)
INSIDE = {hit: _x / (1 + _x), hit_decode: _y / (1 + _y), phi: _z / (1 + _z)}


def _inside(expr: Any) -> Any:
    return sp.simplify(expr.subs(INSIDE))


def _from_requests(d: Derivation) -> Any:
    """A prefill GPU computes r_P tokens a second, (1 - h) I of them per request, and each request moves its KV."""
    i = sp.Symbol("isl", positive=True)
    requests = r_P / ((1 - hit) * i)
    return _inside(requests * i * kappa_store * (1 - hit_decode) - d.formula("transfer_flow"))


def _receiving_side(d: Derivation) -> list[Any]:
    """At balance (with hits) a decode GPU receives its completions' bytes, whatever the hit rate and r_P."""
    i, o = sp.symbols("isl osl", positive=True)
    odds = B * (1 - hit) * i / (r_P * t_step * o)
    received = d.formula("transfer_flow") * odds
    return [_inside(received - B / (t_step * o) * i * kappa_store * (1 - hit_decode)), sp.diff(_inside(received), r_P)]


def _margin_is_ratio(d: Derivation) -> Any:
    return _inside(d.formula("fabric_margin") * d.formula("transfer_flow") - nic)


def _margin_falls_with_hits(d: Derivation) -> list[Any]:
    slope = sp.diff(d.formula("fabric_margin"), hit)
    return [_inside(slope).is_negative, sp.diff(slope, hit), sp.limit(d.formula("fabric_margin"), hit, 1)]


def _critical(d: Derivation) -> list[Any]:
    (solved,) = sp.solve(sp.Eq(d.formula("fabric_margin"), 1), hit)
    return [solved - d.formula("critical_hit_rate")]


def _minimal_nic(d: Derivation) -> list[Any]:
    """Sending needs nic >= flow, receiving n_D nic >= n_P flow: in either case the binding one is met exactly."""
    send = d.formula("transfer_flow")
    receive = send * phi / (1 - phi)
    found = []
    more = sp.Symbol("more", positive=True)
    for odds, binding, other in ((1 + more, receive, send), (1 / (1 + more), send, receive)):
        at = INSIDE | {phi: odds / (1 + odds)}
        least = sp.simplify(d.formula("minimal_nic").subs(at))
        found.append(sp.simplify(least - binding.subs(at)))
        found.append(sp.simplify(least - other.subs(at)).is_positive)
    return found


def _faces(d: Derivation) -> list[Any]:
    return [_inside(d.formula(f.name) - d.regular(f.name)) for f in d.forms if f.name != "minimal_nic"]


def _nic_faces(d: Derivation) -> list[Any]:
    more = sp.Symbol("more", positive=True)
    gap = d.formula("minimal_nic") - d.regular("minimal_nic")
    return [
        sp.simplify(gap.subs(INSIDE | {phi: odds / (1 + odds)})) for odds in (1 + more, 1 / (1 + more), sp.Integer(1))
    ]


def _ends(d: Derivation) -> list[Any]:
    everything, some = {hit: 1, hit_decode: _y / (1 + _y)}, {hit: _x / (1 + _x), hit_decode: 1}
    return [
        sp.Eq(d.regular("transfer_flow").subs(everything), oo),
        d.regular("transfer_flow").subs(some),
        d.regular("transfer_flow").subs({hit: 1, hit_decode: 1}),
        d.regular("fabric_margin").subs(everything),
        sp.Eq(d.regular("fabric_margin").subs(some), oo),
        sp.Eq(d.regular("minimal_nic").subs(INSIDE | {phi: 1}), oo),
        sp.simplify((d.regular("minimal_nic") - d.formula("transfer_flow")).subs(INSIDE | {phi: 0})),
    ]


ALL_CACHED = sp.Eq(hit, 1)
GLM = "the article's shock map: GLM-5.2 on B200, 4.5 PFLOP/s over 2 x 40e9 FLOP per token"
GLM_INPUTS = {
    "r_P": sp.Rational(45 * 10**14, 2 * 40 * 10**9),
    "kappa_store": 95_000,
    "nic": 50 * 10**9,
    "hit": 0,
    "hit_decode": 0,
}

D12 = Derivation(
    id="D12",
    name="Fabric condition",
    statement="The KV flow per prefill GPU grows as 1/(1 - h) with the hit rate of the prefill side, because cached "
    "tokens' KV must move too; so the margin of the link falls linearly with h and is used up at a critical hit rate.",
    assumptions=(
        "prefill computes at its full rate r_P; work is linear in the computed tokens",
        "every token of the prompt that the decode side lacks is moved once",
        "both pools at the balance ratio where it enters, one NIC per GPU on both sides",
    ),
    steps=(
        Step("A request of I tokens, a share h of them cached, takes of a prefill GPU", (1 - hit) * isl / r_P),
        Step("and moves the KV that the decode side lacks", isl * kappa_store * (1 - hit_decode)),
        Step("so a busy prefill GPU sends", flow),
        Step("All of the pool together must fit the fabric", sp.Eq(P, n_P * flow)),
        Step("and with n_P : n_D = phi : (1 - phi) a decode GPU receives", flow * phi / (1 - phi)),
        Step(
            "which at balance depends on neither h nor r_P", B * isl * kappa_store * (1 - hit_decode) / (t_step * osl)
        ),
        Step("A fleet of N sends in all", phi * N * flow),
    ),
    forms=(
        ClosedForm(
            "transfer_flow",
            r"\frac{F}{n_P}",
            flow,
            "B/s/GPU",
            "KV flow that a busy prefill GPU sends.",
            CACHED,
            regular=Ratio(_moved, 1 - hit, _nothing_or_all),
            code_symbol="F/n_P",
            conventions=(Convention(ALL_CACHED, "hit = 1 (nothing to compute): inf, or 0 where hit_decode = 1 too"),),
        ),
        ClosedForm(
            "fabric_margin",
            "M",
            nic * (1 - hit) / (r_P * kappa_store * (1 - hit_decode)),
            "1",
            "How many times the flow of a busy prefill GPU fits its NIC; below 1 the link limits prefill.",
            (r_P, kappa_store, nic, hit, hit_decode),
            regular=Ratio(nic * (1 - hit), _moved, oo),
            code_symbol="M",
            conventions=(Convention(sp.Eq(hit_decode, 1), "hit_decode = 1 (nothing to move): inf"),),
        ),
        ClosedForm(
            "critical_hit_rate",
            r"h_{\mathrm{crit}}",
            1 - (1 - hit_decode) * r_P * kappa_store / nic,
            "1",
            "Hit rate of the prefill side above which the NIC limits prefill; below 0 where it always does.",
            (r_P, kappa_store, nic, hit_decode),
            code_symbol="h_crit",
        ),
        ClosedForm(
            "minimal_nic",
            r"b_{\min}",
            flow * sp.Max(1, phi / (1 - phi)),
            "B/s/GPU",
            "Smallest NIC, the same on both sides, that carries the flow of a fleet split at phi.",
            (*CACHED, phi),
            regular=Ratio(_moved * sp.Max(phi, 1 - phi), (1 - hit) * (1 - phi), _nothing_or_all),
            code_symbol="b_min",
            conventions=(
                Convention(
                    ALL_CACHED | sp.Eq(phi, 1), "hit = 1 or phi = 1 (no receiver): inf, or 0 where hit_decode = 1"
                ),
            ),
        ),
    ),
    proofs=(
        Proof("it is requests per second times bytes per request", _from_requests),
        Proof("the receiving side does not depend on h and r_P", _receiving_side),
        Proof("margin times flow is the NIC", _margin_is_ratio),
        Proof("the margin falls linearly with h, to 0 at h = 1", _margin_falls_with_hits),
        Proof("solving margin = 1 gives the critical hit rate", _critical),
        Proof("the minimal NIC meets the binding side with equality and exceeds the other", _minimal_nic),
        Proof("textbook and regular forms agree inside", _faces),
        Proof("also for the minimal NIC, on both sides of phi = 1/2 and on it", _nic_faces),
        Proof("the regular forms have the right ends", _ends),
    ),
    limits=(
        "At less than full rate (a model FLOP utilisation below 1) the flow scales with the rate.",
        "Quadratic attention makes prefill slower and the flow smaller for long prompts.",
        "The fabric between the pools is shared: phi N flow must fit it besides.",
    ),
    source="the article's fabric condition; the dependence on the hit rate is ours",
    published=(
        Published("V04", GLM, "P", 5.34, "transfer_flow", GLM_INPUTS, sp.Rational(1, 10**9), "GB/s", rounding=5e-3),
        Published(
            "V04-margin", f"{GLM}; one 400 Gb/s NIC per GPU", "D", 9.357, "fabric_margin", GLM_INPUTS, rounding=5e-4
        ),
        Published("V04-hit", f"{GLM}; margin 1", "D", 0.893, "critical_hit_rate", GLM_INPUTS, rounding=5e-4),
        Published(
            "V04-cached",
            "the 90 % hit rate of the Dynamo recipe for GLM-5.2",
            "D",
            53.4,
            "transfer_flow",
            GLM_INPUTS | {"hit": sp.Rational(9, 10)},
            sp.Rational(1, 10**9),
            "GB/s",
            rounding=0.05,
        ),
    ),
)

DERIVATIONS = (D12,)
