"""Batches: a step time that depends on batch and context, quadratic prefill, and what limits the batch."""

from typing import Any

import sympy as sp

from derivations._cases import nonnegative
from derivations._traces import AZURE_CODE, AZURE_CONV, DAY6, MOMENTS, SPLITWISE_PREFILL
from derivations.core import (
    ClosedForm,
    Convention,
    Derivation,
    Proof,
    Published,
    Step,
    both_faces_agree,
    positive,
    value,
)
from derivations.functions import Ratio
from derivations.symbols import (
    A_D,
    B,
    H,
    W,
    isl,
    isl_sq,
    kappa_store,
    lam,
    osl,
    quantity,
    r_0,
    r_P,
    s_0,
    t_P,
    t_step,
    t_step_a,
    t_step_b,
    t_step_c,
    theta_ctx,
)

oo = sp.oo

x, y = sp.symbols("x y", positive=True)

# --- D07 ------------------------------------------------------------------------------------------------------------

itl_max = quantity(
    "itl_max", r"t_{\max}", "s*seq/tok", "longest decode step that the objective allows", 0.05, shown="s"
)
decode_rate = quantity(
    "decode_rate", "r_D", "tok/s/GPU", "output tokens per second of a decode GPU", 2000.0, "nonnegative"
)

step = t_step_a + t_step_b * B + t_step_c * B * theta_ctx
per_sequence = t_step_b + t_step_c * theta_ctx
STEP = (t_step_a, t_step_b, t_step_c, theta_ctx)
room = sp.Max(0, H - W - A_D)


def _odds_context(d: Derivation) -> Any:
    return B * isl / (r_P * d.formula("step_time") * osl)


def _step_inside(d: Derivation) -> list[Any]:
    ratio, odds = d.formula("balance_ratio_context"), _odds_context(d)
    return [
        sp.simplify(ratio / (1 - ratio) - odds),
        d.formula("step_time").subs({B: 1, theta_ctx: 0}) - t_step_a - t_step_b,
    ]


def _grows_with_batch(d: Derivation) -> list[Any]:
    ratio = positive(d.formula("balance_ratio_context"))
    slope = sp.factor(sp.diff(ratio, B))
    a_only = positive(isl * osl * t_step_a * r_P) / positive(B * isl + r_P * osl * step) ** 2
    return [
        sp.simplify(slope - a_only),
        nonnegative(slope),
        sp.simplify(sp.limit(ratio, B, oo) - positive(d.formula("balance_ratio_large_batch"))),
    ]


def _batch_elasticity(d: Derivation) -> list[Any]:
    share = d.formula("batch_elasticity")
    odds = _odds_context(d)
    return [sp.simplify(B * sp.diff(sp.log(odds), B) - share), sp.limit(share, t_step_a, oo) - 1]


def _second_moment(d: Derivation) -> list[Any]:
    """Two prompts, any lengths and weights: the mean work; the square of the mean is never above the mean square."""
    w1, w2, i1, i2 = sp.symbols("w1 w2 i1 i2", positive=True)
    mean = (w1 * i1 + w2 * i2) / (w1 + w2)
    square = (w1 * i1**2 + w2 * i2**2) / (w1 + w2)
    work = sum(w * (i / r_0 + i**2 / s_0) for w, i in ((w1, i1), (w2, i2))) / (w1 + w2)
    at = {isl: mean, isl_sq: square}
    more = d.formula("second_moment_ratio").subs(at) - 1
    gap = w1 * w2 * (i1 - i2) ** 2 / (w1 + w2) ** 2 / mean**2  # a square: at least 0
    quadratic = d.formula("quadratic_prefill_work")
    return [
        sp.simplify(work - quadratic.subs(at)),
        sp.simplify(more - gap),
        sp.simplify(
            quadratic
            - isl / r_0
            - positive(d.formula("second_moment_ratio") * isl**2)
            .subs(positive(isl), isl)
            .subs(sp.Symbol("isl_sq", positive=True), isl_sq)
            / s_0
        ),
    ]


def _memory_filled(d: Derivation) -> list[Any]:
    """KV of the batch fills what weights and activations leave; nothing fits where they leave nothing."""
    theta = sp.Symbol("theta_ctx", positive=True)
    batch = d.formula("hbm_batch").subs(theta_ctx, theta)
    fits = batch.subs(H, W + A_D + x)
    in_step = (t_step_c * B * theta).subs(B, fits)
    return [
        sp.simplify(fits * kappa_store * theta - x),
        sp.simplify(in_step - t_step_c * x / kappa_store),  # the KV part of the step does not depend on the context
        batch.subs(W, H + x),
    ]


def _objective_filled(d: Derivation) -> list[Any]:
    batch = d.formula("slo_batch")
    reached = d.formula("step_time").subs(B, batch.subs(itl_max, t_step_a + x))
    return [sp.simplify(reached - t_step_a - x), batch.subs(t_step_a, itl_max + x)]


def _load_filled(d: Derivation) -> list[Any]:
    """Little: B = X O t_s(B) has one solution, positive exactly below the stable rate, and infinite at it."""
    o, theta = sp.symbols("osl theta_ctx", positive=True)
    batch, at = sp.Symbol("batch"), {osl: o, theta_ctx: theta}
    limit, time = d.formula("stable_request_rate").subs(at), d.formula("step_time").subs(at).subs(B, batch)

    def solved_for(request_rate: Any) -> Any:
        (found,) = sp.solve(sp.Eq(batch, request_rate * o * time), batch)
        return sp.factor(found)

    used = limit * x / (1 + x)
    solved, beyond = solved_for(used), solved_for(limit * (1 + x))
    return [
        sp.simplify(solved - used * o * t_step_a / (1 - used / limit)),
        solved.is_positive,
        beyond.is_negative,
        sp.Eq(sp.limit(solved, x, oo), oo),
    ]


def _little(d: Derivation) -> Any:
    return d.formula("batch_in_flight").subs(decode_rate, B / t_step) - B


def _closed_ends(d: Derivation) -> list[Any]:
    ratio = d.regular("balance_ratio_context")
    return [
        ratio.subs({isl: 0, osl: x, theta_ctx: y}),
        ratio.subs({osl: 0, isl: x, theta_ctx: y}) - 1,
        sp.Eq(d.regular("hbm_batch").subs(theta_ctx, 0), oo),
        sp.Eq(d.regular("stable_request_rate").subs(osl, 0), oo),
        d.regular("second_moment_ratio").subs(isl, 0) - 1,
    ]


# SplitwiseSim: BLOOM-176B on machines of 8 H100 (640 GB, 352.5 GB of weights), each counted as one GPU; its decode
# model gives about 35.5 ms per step whatever the batch.
_bloom = 2 * 70 * 14336 * 2


def _splitwise(which: str, trace: Any) -> Any:
    def machines(d: Derivation) -> Any:
        theta = (trace.mean("isl_osl") + (trace.mean("osl_sq") - trace.mean("osl")) / 2) / trace.mean("osl")
        fits = {
            "H": 640 * 10**9,
            "W": sp.Rational("352.5") * 10**9,
            "A_D": 0,
            "kappa_store": _bloom,
            "theta_ctx": theta,
        }
        lengths = {"isl": trace.mean("isl"), "osl": trace.mean("osl"), "theta_ctx": theta}
        at = lengths | {
            "B": value(d.formula("hbm_batch"), fits),
            "r_P": trace.mean("isl") / SPLITWISE_PREFILL[which],
            "t_step_a": sp.Rational("0.0355"),
            "t_step_b": 0,
            "t_step_c": 0,
        }
        return 40 * value(d.formula("balance_ratio_context"), at)

    return machines


SPLITWISE = "Splitwise (2311.18677): prefill machines of 40 H100, sweep in steps of 5"
GRID = "a secondary account; the step time of the simulator's decode model and the HBM in use are assumed"

D07 = Derivation(
    id="D07",
    name="Context-dependent step",
    statement="The step time grows with the batch and its context, so a larger batch raises the prefill share only as "
    "far as the fixed part of the step goes; and quadratic attention makes the second moment of the input count.",
    assumptions=(
        "those of D01, with t_step = a + b B + c B theta",
        "theta depends on the workload only (D05)",
        "an HBM-limited batch keeps the whole context of its sequences resident",
    ),
    steps=(
        Step("The step time in the balance", sp.Eq(t_step, step)),
        Step("HBM that weights and activations leave", H - W - A_D),
        Step("holds a batch of that over the bytes of a context", sp.Eq(B, (H - W - A_D) / (kappa_store * theta_ctx))),
        Step("which makes the context part of the step a constant", t_step_c * (H - W - A_D) / kappa_store),
        Step("A batch limited by load obeys Little's law, B = X O t_step(B), linear in B", lam * osl * step),
        Step("Prefill with attention", sp.Eq(t_P, isl / r_0 + isl_sq / s_0)),
    ),
    forms=(
        ClosedForm(
            "step_time",
            "t_s",
            step,
            "s*seq/tok",
            "Decode step time of a batch at its mean context.",
            (t_step_a, t_step_b, t_step_c, B, theta_ctx),
            shown="s",
            code_symbol="t_step",
        ),
        ClosedForm(
            "balance_ratio_context",
            r"\phi",
            B * isl / (B * isl + r_P * osl * step),
            "1",
            "Balance ratio with the step time of the batch and its context.",
            (B, isl, osl, r_P, *STEP),
            regular=Ratio(B * isl, B * isl + r_P * osl * step),
            code_symbol="phi",
            conventions=(Convention(sp.Eq(isl, 0) & sp.Eq(osl, 0), "isl = osl = 0 (no work to balance): 0"),),
        ),
        ClosedForm(
            "balance_ratio_large_batch",
            r"\lim_{B \to \infty} \phi",
            isl / (isl + r_P * osl * per_sequence),
            "1",
            "Balance ratio that a growing batch approaches from below.",
            (isl, osl, r_P, t_step_b, t_step_c, theta_ctx),
            regular=Ratio(isl, isl + r_P * osl * per_sequence),
            code_symbol="phi_max",
            conventions=(Convention(sp.Eq(isl, 0) & sp.Eq(osl, 0), "isl = osl = 0 (no work to balance): 0"),),
        ),
        ClosedForm(
            "batch_elasticity",
            r"\partial \Lambda / \partial \ln B",
            t_step_a / step,
            "1",
            "Move of the log-odds per relative change of the batch: the fixed share of the step.",
            (t_step_a, t_step_b, t_step_c, B, theta_ctx),
            code_symbol="dlogodds/dlnB",
        ),
        ClosedForm(
            "quadratic_prefill_work",
            "t_P",
            isl / r_0 + isl_sq / s_0,
            "GPU*s/req",
            "Mean prefill work of a request with quadratic attention.",
            (isl, isl_sq, r_0, s_0),
            code_symbol="t_P",
        ),
        ClosedForm(
            "second_moment_ratio",
            r"\overline{I^2} / I^2",
            isl_sq / isl**2,
            "1",
            "Factor by which the mean length alone underestimates the attention work.",
            (isl, isl_sq),
            regular=Ratio(isl_sq, isl**2, 1),
            code_symbol="ratio",
            conventions=(Convention(sp.Eq(isl, 0), "isl = 0 (no input): 1"),),
        ),
        ClosedForm(
            "hbm_batch",
            "B",
            room / (kappa_store * theta_ctx),
            "seq/GPU",
            "Decode batch that the HBM of a GPU holds; 0 where the weights do not fit.",
            (H, W, A_D, kappa_store, theta_ctx),
            regular=Ratio(room, kappa_store * theta_ctx, oo),
            code_symbol="B",
            conventions=(Convention(sp.Eq(theta_ctx, 0), "theta_ctx = 0 (sequences take no room): inf"),),
        ),
        ClosedForm(
            "slo_batch",
            "B",
            sp.Max(0, itl_max - t_step_a) / per_sequence,
            "seq/GPU",
            "Decode batch whose step takes as long as the objective allows; 0 where an empty step is too long.",
            (itl_max, *STEP),
            code_symbol="B",
        ),
        ClosedForm(
            "stable_request_rate",
            r"X_{\max}",
            1 / (osl * per_sequence),
            "req/s/GPU",
            "Requests per second and decode GPU that no batch, however large, can exceed.",
            (osl, t_step_b, t_step_c, theta_ctx),
            regular=Ratio(1, osl * per_sequence, oo),
            code_symbol="X_max",
            conventions=(Convention(sp.Eq(osl, 0), "osl = 0 (nothing to decode): inf"),),
        ),
        ClosedForm(
            "batch_in_flight",
            "B",
            decode_rate * t_step,
            "seq/GPU",
            "Sequences in flight per decode GPU, from its output rate and the time per token of a user (Little).",
            (decode_rate, t_step),
            code_symbol="B",
        ),
    ),
    proofs=(
        Proof("it is D01 with this step time", _step_inside),
        Proof(
            "the share grows with the batch, by the fixed part of the step only, towards its limit", _grows_with_batch
        ),
        Proof("the log-odds moves by a / t_step per relative change of B", _batch_elasticity),
        Proof("the mean quadratic work, and the second moment is at least the square of the mean", _second_moment),
        Proof(
            "the batch fills HBM exactly, and its KV part of the step does not depend on the context", _memory_filled
        ),
        Proof("the batch of the objective takes just that long", _objective_filled),
        Proof("under load the batch is finite and positive below the stable rate only", _load_filled),
        Proof("in-flight sequences are the batch", _little),
        Proof("the ends of the domain", _closed_ends),
        both_faces_agree("balance_ratio_context", "balance_ratio_large_batch", "second_moment_ratio", "hbm_batch"),
        both_faces_agree("stable_request_rate"),
    ),
    limits=(
        "Sparse attention stores more than it reads per token: the step uses the bytes read, the batch those stored.",
        "A measured step is affine in pieces: launch overhead below, compute bound above.",
        "Whole sequences and KV blocks round the batch down.",
    ),
    source="theory, group 1; stable rate: arXiv 2504.11320",
    published=(
        Published(
            "V09",
            f"{SPLITWISE}, coding",
            "S",
            35,
            _splitwise("code", AZURE_CODE),
            unit="machines",
            rounding=2.5,
            reason=GRID,
        ),
        Published(
            "V09-conv",
            f"{SPLITWISE}, conversation",
            "S",
            25,
            _splitwise("conv", AZURE_CONV),
            unit="machines",
            rounding=2.5,
            reason=GRID,
        ),
        Published(
            "V10-spread-code",
            f"Azure code 2023: {MOMENTS}",
            "D",
            1.929,
            "second_moment_ratio",
            AZURE_CODE.moments,
            rounding=5e-4,
        ),
        Published(
            "V10-spread-conv",
            f"Azure conversation 2023: {MOMENTS}",
            "D",
            1.922,
            "second_moment_ratio",
            AZURE_CONV.moments,
            rounding=5e-4,
        ),
        Published(
            "D07-in-flight",
            f"{DAY6}: 14.8e3 tok/s per node at 21 tok/s per user; a node stands for a GPU",
            "D",
            705,
            "batch_in_flight",
            {"decode_rate": 14_800, "t_step": sp.Rational(1, 21)},
            unit="sequences/node",
            rounding=0.5,
        ),
    ),
)

GENERATED = "requests"
DERIVATIONS = (D07,)
