"""Transfer or recompute: when moving the KV of a prefix is faster than computing it again."""

from typing import Any

import sympy as sp

from derivations.core import ClosedForm, Derivation, Proof, Published, Step
from derivations.symbols import kappa_store, nic, quantity, r_0, r_P, s_0

prefix = quantity(
    "prefix_len", "x", "tok/req", "length of the prefix whose KV lies elsewhere", 8192.0, "nonnegative", shown="tok"
)

compute = prefix / r_0 + prefix**2 / s_0
move = prefix * kappa_store / nic
_long = s_0 * (kappa_store / nic - 1 / r_0)  # prefix at which both take equally long, where positive

# A slow link, on which the KV of a token takes longer than its linear work, and a fast one.
e = sp.Symbol("e", positive=True)
SLOW = {nic: r_0 * kappa_store / (1 + e)}
FAST = {nic: r_0 * kappa_store * (1 + e)}


def _linear(d: Derivation) -> list[Any]:
    """Both linear: the same bandwidth for every prefix."""
    x = sp.Symbol("prefix_len", positive=True)
    (solved,) = sp.solve(sp.Eq(x * kappa_store / nic, x / r_P), nic)
    return [solved - d.formula("crossover_nic"), sp.diff(solved, x)]


def _quadratic(d: Derivation) -> list[Any]:
    """With attention: equal times give the bandwidth, which falls with the prefix from the linear one towards 0."""
    x = sp.Symbol("prefix_len", positive=True)
    (solved,) = sp.solve(sp.Eq((move).subs(prefix, x), compute.subs(prefix, x)), nic)
    crossover = d.formula("crossover_nic_quadratic").subs(prefix, x)
    return [
        sp.simplify(solved - crossover),
        sp.simplify(sp.diff(crossover, x)).is_negative,
        sp.limit(crossover, x, 0) - r_0 * kappa_store,
        sp.limit(crossover, x, sp.oo),
        sp.simplify(d.formula("crossover_nic").subs(r_P, r_0) - sp.limit(crossover, x, 0)),
    ]


def _saving(d: Derivation) -> list[Any]:
    """The saving is what computing takes more than moving; its sign is that of the link against the crossover."""
    x = sp.Symbol("prefix_len", positive=True)
    saving = d.formula("transfer_saving")
    crossover = d.formula("crossover_nic_quadratic")
    above, below = ({nic: crossover * f} for f in (1 + e, 1 / (1 + e)))
    return [
        sp.expand(saving - (compute - move)),
        sp.simplify(saving.subs(nic, crossover)),
        sp.factor(saving.subs(above).subs(prefix, x)).is_positive,
        sp.factor(saving.subs(below).subs(prefix, x)).is_negative,
    ]


def _lengths(d: Derivation) -> list[Any]:
    """On a slow link the saving is negative below the crossover length and positive above; on a fast one never."""
    length, saving = d.formula("crossover_prefix"), d.formula("transfer_saving")
    at = sp.simplify(length.subs(SLOW))
    return [
        sp.simplify(saving.subs(SLOW).subs(prefix, at)),
        at.is_positive,
        sp.factor(saving.subs(SLOW).subs(prefix, at / (1 + e))).is_negative,
        sp.factor(saving.subs(SLOW).subs(prefix, at * (1 + e))).is_positive,
        length.subs(FAST),
        sp.factor(saving.subs(FAST).subs(prefix, e)).is_positive,
    ]


def _mixed(d: Derivation) -> list[Any]:
    """Compute the first y tokens, move the rest, one after the other: first and second order in y."""
    y, whole = sp.symbols("y whole", positive=True)
    total = compute.subs(prefix, y) + (whole - y) * kappa_store / nic
    best = d.formula("recompute_prefix")
    (stationary,) = sp.solve(sp.diff(total, y), y)
    slope_on_fast = sp.factor(sp.diff(total, y).subs(FAST))
    return [
        sp.simplify((stationary - best).subs(SLOW)),
        sp.diff(total, y, 2).is_positive,
        best.subs(FAST),
        slope_on_fast.is_positive,  # moving is cheaper from the first token on
        sp.simplify((d.formula("crossover_prefix") - 2 * best).subs(SLOW)),
        sp.simplify(
            compute.subs(prefix, whole) - total.subs(y, stationary) - (whole - stationary) ** 2 / s_0
        ),  # better than computing all, by a square
    ]


def _kv(layers: int, width: int) -> int:
    """Bytes of keys and values a token, 2 bytes each."""
    return 2 * layers * width * 2


def _lightstorm(
    id: str, words: str, printed: float, billions: int, kv: int, mfu: str, scale: int, digit: float
) -> Published:
    rate = sp.Rational(mfu) * 989 * 10**12 / (2 * billions * 10**9)
    return Published(
        f"V08-{id}",
        f"Lightstorm (2608.14967), H100 at 989 TFLOP/s: {words}",
        "S",
        printed,
        "crossover_nic",
        {"r_P": rate, "kappa_store": sp.Rational(kv, scale)},
        sp.Rational(8, 10**9),
        "Gb/s",
        rounding=digit,
        reason="a secondary account",
    )


LLAMA_8B, LLAMA_70B, LLAMA_405B = _kv(32, 4096), _kv(80, 8192), _kv(126, 16384)

D13 = Derivation(
    id="D13",
    name="Transfer or recompute",
    statement="Moving the KV of a prefix is faster than computing it again above a bandwidth r_P kappa, whatever its "
    "length. With quadratic attention that bandwidth falls with the length; on a slower link the two mix best: compute "
    "the first tokens, whose attention is short, and move the others.",
    assumptions=(
        "one prefill GPU and its link, nothing else in their way",
        "every token of the prefix has kappa_store bytes of KV",
        "prefill takes 1/r_P per token, or 1/r_0 and attention to all earlier tokens besides",
    ),
    steps=(
        Step("Moving takes", move),
        Step("computing, linear,", prefix / r_P),
        Step("or with attention to all earlier tokens", compute),
        Step("Equal times", sp.Eq(kappa_store / nic, 1 / r_0 + prefix / s_0)),
        Step("Token number y alone: moving it is faster where", sp.Ge(1 / r_0 + 2 * prefix / s_0, kappa_store / nic)),
    ),
    forms=(
        ClosedForm(
            "crossover_nic",
            r"b^\ast",
            r_P * kappa_store,
            "B/s/GPU",
            "Bandwidth above which moving KV is faster than computing it, with work linear in the tokens.",
            (r_P, kappa_store),
            code_symbol="b_min",
        ),
        ClosedForm(
            "crossover_nic_quadratic",
            r"b^\ast",
            kappa_store / (1 / r_0 + prefix / s_0),
            "B/s/GPU",
            "Bandwidth above which moving the KV of a prefix is faster than computing it, with quadratic attention.",
            (kappa_store, prefix, r_0, s_0),
            code_symbol="b_min",
        ),
        ClosedForm(
            "transfer_saving",
            r"\Delta t",
            compute - move,
            "s*GPU/req",
            "Time that moving a prefix saves against computing it; negative where computing is faster.",
            (prefix, kappa_store, nic, r_0, s_0),
            shown="s",
            code_symbol="saving",
        ),
        ClosedForm(
            "crossover_prefix",
            r"x^\ast",
            sp.Max(0, _long),
            "tok/req",
            "Prefix above which moving all of it is faster than computing all of it; 0 where moving always is.",
            (kappa_store, nic, r_0, s_0),
            shown="tok",
            code_symbol="prefix",
        ),
        ClosedForm(
            "recompute_prefix",
            r"y^\ast",
            sp.Max(0, _long / 2),
            "tok/req",
            "Leading tokens of a longer prefix that are best computed, the others being moved after them.",
            (kappa_store, nic, r_0, s_0),
            shown="tok",
            code_symbol="computed",
        ),
    ),
    proofs=(
        Proof("linear: equal times give one bandwidth for every prefix", _linear),
        Proof("quadratic: the bandwidth falls with the prefix, from the linear one to 0", _quadratic),
        Proof("moving saves time above the crossover bandwidth, and only there", _saving),
        Proof("on a slow link above the crossover length, and only there; on a fast one always", _lengths),
        Proof("computing a head and moving the tail: first and second order, and the gain", _mixed),
    ),
    limits=(
        "Moving and computing at once is faster than either: then both ends meet where their times are equal.",
        "A prefix shorter than recompute_prefix is best computed in full.",
        "The GPU that recomputes is not free for other prompts, while the link mostly is: in throughput moving wins "
        "wherever the fabric condition (D12) leaves room.",
        "Prefix caching saves the computing of the sender too.",
    ),
    source="theory, group 3; the mixed optimum is ours",
    published=(
        _lightstorm("70B", "70B, multi-head, 50 % MFU", 74, 70, LLAMA_70B, "0.5", 1, 0.5),
        _lightstorm("70B-75", "70B, multi-head, 75 % MFU", 111, 70, LLAMA_70B, "0.75", 1, 0.5),
        _lightstorm("70B-GQA4", "70B, a quarter of the heads, 50 % MFU", 18.5, 70, LLAMA_70B, "0.5", 4, 0.05),
        _lightstorm("70B-GQA8", "70B, an eighth of the heads, 50 % MFU", 9.3, 70, LLAMA_70B, "0.5", 8, 0.05),
        _lightstorm("8B", "8B, multi-head, 50 % MFU", 130, 8, LLAMA_8B, "0.5", 1, 0.5),
        _lightstorm("8B-75", "8B, multi-head, 75 % MFU", 194, 8, LLAMA_8B, "0.75", 1, 0.5),
        _lightstorm("405B", "405B, multi-head, 50 % MFU", 40, 405, LLAMA_405B, "0.5", 1, 0.5),
        _lightstorm("405B-75", "405B, multi-head, 75 % MFU", 60, 405, LLAMA_405B, "0.75", 1, 0.5),
    ),
)

DERIVATIONS = (D13,)
