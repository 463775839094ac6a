"""Chunked prefill: what it reads again, what rides along, and how far phases that overlap can beat two pools."""

from typing import Any

import sympy as sp

from derivations import _sm_split
from derivations._cases import decided, nonnegative
from derivations._sm_split import above_zero, below, saturation, x, z
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive
from derivations.functions import Least, Ratio
from derivations.symbols import B, W, isl, kappa_read, n_chunks, osl, phi, quantity, t_D, t_P, theta_ctx
from derivations.units import one

GENERATED = "aggregated"
oo = sp.oo
chunk = quantity("chunk", "c", "tok/GPU", "prefill tokens of a mixed step, per GPU", 1024.0)
prior = quantity(
    "prior", "p", "tok/GPU", "tokens of earlier chunks that a chunk attends, per GPU", 4096.0, "nonnegative"
)
flop_token = quantity("flop_token", "f", "flop/tok", "arithmetic of a token, twice the active weights", 8e10)
peak = quantity("peak", "F", "flop/s/GPU", "arithmetic rate of a GPU", 2.25e15)
hbm_rate = quantity("hbm_rate", r"\mathrm{BW}", "B/s/GPU", "HBM bandwidth of a GPU", 8e12)
weight_bytes = quantity("weight_bytes", "s", "B", "bytes of a stored weight", 2.0)
tokens_bound = quantity("tokens_bound", r"c^\ast", "tok/GPU", "tokens in a step above which arithmetic binds", 281.0)
overlap = quantity("overlap", r"\omega", "1", "share of the shorter phase that runs behind the longer", 0.6, (0, 1))

token = one("tok/seq")
# The balance ratio below, at and above one half; the overlap anywhere inside.
HALVES = ({phi: (1 / (1 + x)) / 2}, {phi: sp.Rational(1, 2)}, {phi: 1 - (1 / (1 + x)) / 2})
shorter = sp.Min(phi, 1 - phi)
reading = W + kappa_read * (B * theta_ctx + prior)


# --- chunks -----------------------------------------------------------------------------------------------------------


def _prefix_summed(d: Derivation) -> list[Any]:
    """Chunk i reads the i - 1 before it; with its own, n(n + 1)/2 loads. The first is read again n - 1 times."""
    i, n = sp.symbols("i n", integer=True, positive=True)
    again = sp.summation((i - 1) * isl / n * kappa_read, (i, 1, n))
    loads = d.formula("chunk_loads").subs(n_chunks, n)
    return [
        sp.simplify(again - d.formula("prefix_reread").subs(n_chunks, n)),
        sp.simplify(sp.summation(i, (i, 1, n)) - loads),
        sp.simplify(loads * isl / n * kappa_read - kappa_read * isl - d.formula("prefix_reread").subs(n_chunks, n)),
        d.formula("prefix_reread").subs(n_chunks, 1),
    ]


def _attention_unchanged(d: Derivation) -> Any:
    """Token pairs of n chunks of c: each attends what lies before it and half of itself; n drops out of the sum."""
    i, n, c = sp.symbols("i n c", integer=True, positive=True)
    pairs = sp.summation(c * (i - 1) * c + c**2 / 2, (i, 1, n))
    return sp.simplify(pairs - (n * c) ** 2 / 2)


def _free_until(d: Derivation) -> list[Any]:
    """Up to the free chunk a mixed step takes as long as the bare one; past it arithmetic binds and it grows."""
    theta = sp.Symbol("theta_ctx", positive=True)
    weights = sp.Symbol("W", positive=True)
    free = d.formula("free_chunk").subs({theta_ctx: theta, W: weights})
    inside = (free.args[1] if free.args[0] == 0 else free.args[0]) if isinstance(free, sp.Max) else sp.nan
    step = d.formula("mixed_step").subs({theta_ctx: theta, W: weights, prior: 0})
    bare = (weights + kappa_read * B * theta) / hbm_rate
    batch = {peak: flop_token * hbm_rate * (B + x) / (weights + kappa_read * B * theta)}  # then the free chunk is x
    return [
        sp.simplify(free.subs(batch) - x),
        sp.simplify(inside.subs(batch) - x),
        sp.simplify(decided(step.subs(batch).subs(chunk, x)) - bare),
        sp.simplify(decided(step.subs(batch).subs(chunk, x / (1 + z))) - bare),
        sp.simplify(decided(step.subs(batch).subs(chunk, x + z)) / bare - (B + x + z) / (B + x)),
    ]


def _prefix_is_traffic(d: Derivation) -> Any:
    """Each earlier token adds its bytes to what a step reads."""
    positive_step = positive(d.formula("mixed_step"))
    traffic = [a for a in positive_step.args if a.has(sp.Symbol("prior", positive=True))]
    return [sp.diff(t, sp.Symbol("prior", positive=True)) - kappa_read / hbm_rate for t in traffic]


def _weights_once(d: Derivation) -> Any:
    """n tokens take 2 n flop per weight, the weight is read once: equal times at the bound."""
    n = d.formula("compute_bound_tokens")
    return sp.simplify(2 * n / peak - weight_bytes / hbm_rate)


def _slots(d: Derivation) -> list[Any]:
    """B sequences live O steps, each with room for c* tokens of which B decode; the prompts are B I tokens."""
    i, o = sp.symbols("isl osl", positive=True)
    formula = d.formula("uncovered_prefill").subs({isl: i, osl: o})
    room = o * (tokens_bound - B)
    found = [
        sp.simplify(formula.subs(tokens_bound, B + B * i * factor / o) - left)
        for factor, left in ((1 / (1 + x), B * i * x / (1 + x)), (1 + x, 0))
    ]
    return [*found, sp.simplify((B * i - room) - (B * (i + o) - o * tokens_bound))]


def _decode_maximal(d: Derivation) -> Any:
    """One chunk carries B - 1 decodes: I/c chunks must hold the O tokens of one request."""
    ratio = d.formula("decode_maximal_ratio")
    prompt = ratio * osl
    return [
        sp.simplify(prompt / chunk * (B - 1) - osl),
        sp.simplify((d.regular("decode_maximal_ratio") - ratio).subs(B, 1 + x)),
    ]


# --- overlap ----------------------------------------------------------------------------------------------------------


def _overlapped(d: Derivation) -> list[Any]:
    """Of t_P + t_D the part omega min(t_P, t_D) is hidden; against 1/(t_P + t_D), which two pools have."""
    p, q = sp.symbols("t_P t_D", positive=True)
    found = []
    for work in ({p: q / (1 + x)}, {p: q}, {p: q * (1 + x)}):
        time = (p + q - below * sp.Min(p, q)).subs(work)
        share = (p / (p + q)).subs(work)
        gained = d.formula("chunk_gain").subs({phi: share, overlap: below})
        found.append(sp.simplify(decided(time) * decided(sp.simplify(gained)) - (p + q).subs(work)))
    whole = [(p + q - sp.Min(p, q)).subs(w) - sp.Max(p, q).subs(w) for w in ({p: q + x}, {q: p + x})]
    return [*found, *map(sp.simplify, whole)]


def _at_most_two(d: Derivation) -> list[Any]:
    """1 <= gain <= 2 on the whole domain, 2 only for equal phases that overlap wholly."""
    found: list[Any] = []
    for half in HALVES:
        gained = sp.simplify(decided(d.formula("chunk_gain").subs(half | {overlap: below})))
        found += [nonnegative(gained - 1), above_zero(2 - gained)]
        slope = sp.diff(decided(d.formula("chunk_gain").subs(half)), overlap)
        found.append(above_zero(slope.subs(overlap, below)))
    corner = {phi: sp.Rational(1, 2), overlap: 1}
    return [*found, d.formula("chunk_gain").subs(corner) - 2, d.formula("chunk_gain").subs(overlap, 0) - 1]


def _break_even(d: Derivation) -> list[Any]:
    """A specialisation gain of that size makes both equal, and nothing less does."""
    return [
        sp.simplify(
            decided((1 + d.formula("break_even_specialisation") - d.formula("chunk_gain")).subs(h | {overlap: below}))
        )
        for h in HALVES
    ]


def _overlap_faces(d: Derivation) -> list[Any]:
    return [
        sp.simplify(decided((d.formula(n) - d.regular(n)).subs(h | {overlap: below})))
        for n in ("chunk_gain", "break_even_specialisation")
        for h in HALVES
    ]


GAIN = 1 / (1 - overlap * shorter)
_hidden = overlap * Least(phi, 1 - phi)

D23 = Derivation(
    id="D23",
    name="Chunked prefill and the overlap bound",
    statement="A prompt in chunks reads its prefix again and again, but lets prefill ride on the weights' traffic of "
    "decode steps. If a share omega of the shorter phase is hidden, an aggregated GPU does 1/(1 - omega min(phi, 1 - "
    "phi)) times the work of two pools, at most twice: two pools must make that good by specialisation.",
    assumptions=(
        "same batch, r_P and step time as the two pools; omega from 0 (one after the other) to 1 (disjoint resources)",
        "chunks of equal length; a mixed step takes the longer of its arithmetic and its traffic",
        "a split GPU: prefill linear in its share of multiprocessors, decode linear until its share saturates the HBM",
    ),
    steps=(
        Step("Chunk i of n reads the i - 1 before it, in all", kappa_read * isl * (n_chunks - 1) / 2),
        Step("while the pairs that attention computes stay I^2/2"),
        Step(
            "A step with c prefill tokens and B sequences needs arithmetic for", flop_token * (chunk + B * token) / peak
        ),
        Step("and traffic for", reading / hbm_rate),
        Step(
            "The two are equal, without a prefix, at a chunk that costs no time",
            peak * (W + kappa_read * B * theta_ctx) / (flop_token * hbm_rate) - B * token,
        ),
        Step("Per request the phases take at least their longer, at most their sum", sp.Max(t_P, t_D)),
        Step("and with the share omega of the shorter hidden", t_P + t_D - overlap * sp.Min(t_P, t_D)),
        Step("of which t_P + t_D is what two pools take", GAIN),
        Step("A GPU split in space does one request in", sp.Max(t_D, t_P + saturation * t_D)),
    ),
    forms=(
        ClosedForm(
            "prefix_reread",
            r"\mathrm{reread}",
            kappa_read * isl * (n_chunks - 1) / 2,
            "B/req",
            "KV bytes of earlier chunks that a prompt in chunks reads again.",
            (kappa_read, isl, n_chunks),
            code_symbol="reread",
        ),
        ClosedForm(
            "chunk_loads",
            r"\mathrm{loads}",
            n_chunks * (n_chunks + 1) / 2,
            "1",
            "Loads of a chunk's KV that a prompt in chunks takes, its own included; without chunks 1.",
            (n_chunks,),
            code_symbol="loads",
        ),
        ClosedForm(
            "mixed_step",
            r"t_{\mathrm{mix}}",
            sp.Max(flop_token * (chunk + B) / peak, reading / hbm_rate),
            "s",
            "Time of a step that decodes a batch and prefills one chunk: the longer of arithmetic and traffic.",
            (chunk, prior, B, theta_ctx, W, kappa_read, flop_token, peak, hbm_rate),
            code_symbol="t_mix",
            dimensional=sp.Max(flop_token * (chunk + B * token) / peak, reading / hbm_rate),
        ),
        ClosedForm(
            "free_chunk",
            "c_0",
            sp.Max(0, peak * (W + kappa_read * B * theta_ctx) / (flop_token * hbm_rate) - B),
            "tok/GPU",
            "Prefill tokens that a decode step carries without taking longer; 0 where its own arithmetic binds.",
            (B, theta_ctx, W, kappa_read, flop_token, peak, hbm_rate),
            code_symbol="c_0",
            dimensional=sp.Max(0, peak * (W + kappa_read * B * theta_ctx) / (flop_token * hbm_rate) - B * token),
        ),
        ClosedForm(
            "compute_bound_tokens",
            r"c^\ast",
            peak * weight_bytes / (2 * hbm_rate),
            "tok",
            "Tokens in a step above which arithmetic takes longer than reading the weights.",
            (peak, weight_bytes, hbm_rate),
            code_symbol="c_bound",
            dimensional=peak * weight_bytes / (2 * hbm_rate) * one("tok/flop"),
        ),
        ClosedForm(
            "uncovered_prefill",
            r"\mathrm{uncovered}",
            sp.Max(0, B * (isl + osl) - osl * tokens_bound),
            "tok/GPU",
            "Prompt tokens per batch that find no room beside its decode steps.",
            (B, isl, osl, tokens_bound),
            code_symbol="uncovered",
            dimensional=sp.Max(0, B * (isl + osl) - osl * tokens_bound * one("req/tok")),
        ),
        ClosedForm(
            "chunk_gain",
            r"\frac{X_{\mathrm{chunk}}}{X_{\mathrm{dis}}}",
            GAIN,
            "1",
            "Throughput of aggregated GPUs whose phases overlap, over that of two balanced pools.",
            (phi, overlap),
            regular=Ratio(1, 1 - _hidden),
            code_symbol="X_chunk/X_dis",
        ),
        ClosedForm(
            "break_even_specialisation",
            r"\sigma^\ast",
            overlap * shorter / (1 - overlap * shorter),
            "1",
            "Gain that two pools must draw from specialisation to equal aggregated GPUs whose phases overlap.",
            (phi, overlap),
            regular=Ratio(_hidden, 1 - _hidden),
            code_symbol="sigma",
        ),
        ClosedForm(
            "decode_maximal_ratio",
            r"\frac{I}{O}",
            chunk / (B - 1),
            "1",
            "Input over output at which steps of one chunk and B - 1 decodes are always full (SARATHI).",
            (chunk, B),
            regular=Ratio(chunk, B - 1, oo),
            code_symbol="I/O",
            dimensional=chunk / ((B - one("seq/GPU")) * token),
            conventions=(Convention(sp.Le(B, 1), "B <= 1 (no decode rides along): inf"),),
        ),
        *_sm_split.FORMS,
    ),
    proofs=(
        Proof("the prefix summed over the chunks, and the loads", _prefix_summed),
        Proof("attention computes the same pairs", _attention_unchanged),
        Proof("up to the free chunk a mixed step takes no longer, beyond it does", _free_until),
        Proof("the prefix adds its traffic", _prefix_is_traffic),
        Proof("at the compute bound arithmetic and traffic of a weight are equal", _weights_once),
        Proof("prompt tokens less the free slots of the decode steps", _slots),
        Proof("SARATHI's ratio fills every step", _decode_maximal),
        Proof("time per request with overlap, on all three sides of phi = 1/2", _overlapped),
        Proof("the gain lies between 1 and 2, and 2 is reached", _at_most_two),
        Proof("the break-even specialisation equals the gain", _break_even),
        Proof("textbook and regular forms of the overlap agree", _overlap_faces),
        *_sm_split.PROOFS,
    ),
    limits=(
        "omega is measured, not derived, except for the split GPU; chunks also lose to tile sizes and re-reading.",
        "It limits the article's 'never worse': against good overlap two pools lose unless specialisation pays (D27).",
        "Multiprocessors come in steps (D10); bandwidth and caches are not partitioned, so contention slows both.",
    ),
    source="theory, group 5 (the bound is ours); SARATHI, Bullet, DuetServe",
    published=(
        Published(
            "V17",
            "the article's author on inference arithmetic: input 8192 in chunks of 1024, first chunk read again",
            "P",
            7,
            lambda d: 2 * d.formula("prefix_reread").subs({n_chunks: 8, kappa_read: 1, isl: 1}),
            unit="times",
            rounding=0.5,
        ),
        *(
            Published(
                f"D23-bound-{name}",
                f"theory, D23: compute-bound threshold, 16-bit weights on {name}",
                "D",
                published,
                "compute_bound_tokens",
                {"peak": sp.Rational(tera) * 10**12, "weight_bytes": 2, "hbm_rate": sp.Rational(terabytes) * 10**12},
                unit="tok",
                rounding=0.5,
            )
            for name, published, tera, terabytes in (
                ("A100", 153.0, "312", "2.039"),
                ("H100", 295.0, "989", "3.35"),
                ("B200", 281.0, "2250", "8"),
            )
        ),
    ),
)

DERIVATIONS = (D23,)
