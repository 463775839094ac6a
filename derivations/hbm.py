"""Where the capacity comes from: HBM that prefill GPUs leave free, unused KV space of decode GPUs, host DRAM."""

from typing import Any

import sympy as sp

from derivations.buffer import D15, FULL
from derivations.core import ClosedForm, Convention, Derivation, Proof, Published, Step, positive, value
from derivations.functions import Ratio
from derivations.shock import GB
from derivations.symbols import A_P, H, N, W, delta_down, delta_up, g_P, isl, isl_sq, kappa_store, phi, quantity, tau
from derivations.units import one

oo = sp.oo

kv_prefill = quantity(
    "kv_prefill", "K_P", "B/GPU", "KV of the prompts that are in prefill, per prefill GPU", 1e9, "nonnegative"
)
kv_free = quantity("kv_free", "F_D", "B/GPU", "KV space of a decode GPU that is unused", 1e10, "nonnegative")
dram = quantity("dram", "M", "B/GPU", "host DRAM for KV, per prefill GPU", 1e11, "nonnegative")
C_gpu = quantity("C_gpu", "C", "B/GPU", "capacity that is wanted, per prefill GPU", 4e11)
W_experts = quantity("W_experts", r"W_{\mathrm{exp}}", "B/GPU", "expert weights of the whole model", 7.29e11)
room = quantity("room", "R", "B/GPU", "HBM per GPU that C and all but the experts leave", 5e10)

latent_layers = quantity(
    "latent_layers", r"\ell", "1", "layers that keep a latent vector per token", 78.0, integer=True
)
latent_width = quantity(
    "latent_width", "w", "1", "numbers of a latent vector, rotary part included", 576.0, integer=True
)
index_layers = quantity("index_layers", r"\ell_i", "1", "layers with an index key", 19.0, "nonnegative", integer=True)
index_width = quantity("index_width", "w_i", "1", "numbers of an index key", 128.0, integer=True)
number_bytes = quantity("number_bytes", "e", "B/tok", "bytes per number", 2.0, shown="B")

own = sp.Max(0, H - W - A_P - kv_prefill)
per_gpu = own + (1 - phi) / phi * kv_free + dram
SYMBOLS = (H, W, A_P, kv_prefill)

share, weights, taken, in_flight = sp.symbols("share weights taken in_flight", positive=True)
over = sp.Symbol("over", positive=True)
FITS = {H: W + A_P + kv_prefill + over}  # something is left
FULL_UP = {H: W + A_P + kv_prefill}
TOO_BIG = {W: H - A_P - kv_prefill + over}


def _left(d: Derivation) -> list[Any]:
    """What is left where the model fits, and nothing where it does not."""
    left = d.formula("prefill_side_capacity")
    return [left.subs(FITS) - over, left.subs(FULL_UP), sp.simplify(left.subs(TOO_BIG))]


def _nothing_twice(d: Derivation) -> list[Any]:
    """Both pools' HBM is used once: weights, activations, prompts in prefill, sequences in flight, and the capacity."""
    n_prefill, n_decode = phi * N, (1 - phi) * N
    a_decode = sp.Symbol("a_decode", positive=True)
    unused = H - weights - a_decode - in_flight
    fleet = d.formula("fleet_capacity").subs(kv_free, unused).subs(FITS)
    total = (n_prefill * H).subs(FITS) + n_decode * H.subs(FITS) + n_prefill * dram
    used = n_prefill * (W + A_P + kv_prefill) + n_decode * (weights + a_decode + in_flight)
    return [sp.expand(fleet - (total - used))]


def _per_gpu(d: Derivation) -> list[Any]:
    """The fleet's capacity over its prefill GPUs, in both faces; one pool alone at the ends."""
    inside = {phi: share / (1 + share)}
    fleet, regular = d.formula("fleet_capacity"), d.regular("capacity_per_prefill_gpu")
    each = d.formula("capacity_per_prefill_gpu")
    return [
        *(sp.simplify((fleet / (phi * N) - each).subs(inside).subs(case)) for case in (FITS, TOO_BIG)),
        *(sp.simplify((regular - each).subs(inside).subs(case).doit()) for case in (FITS, TOO_BIG)),
        sp.simplify(regular.subs(phi, 1) - own - dram),
        sp.Eq(regular.subs(phi, 0), oo),
        sp.simplify(fleet.subs(phi, 0) - N * kv_free),
    ]


def _missing(d: Derivation) -> list[Any]:
    """With the missing DRAM the capacity is the wanted one, with a byte less it is not; none where there is enough."""
    needed, each = d.formula("dram_needed"), d.formula("capacity_per_prefill_gpu")
    inside = {phi: share / (1 + share)}
    there = sp.simplify(each.subs(dram, 0).subs(inside).subs(FITS))
    short, enough = {C_gpu: there + over / 2}, {C_gpu: there / (1 + over)}
    asked = sp.simplify(needed.subs(inside).subs(FITS).subs(short))
    regular = d.regular("dram_needed")
    return [
        sp.simplify(asked - over / 2),
        sp.simplify(each.subs(inside).subs(FITS).subs(dram, asked) - there - over / 2),
        sp.simplify(needed.subs(inside).subs(FITS).subs(enough)),
        *(
            sp.simplify((regular - needed).subs(inside).subs(FITS).subs(case).doit())
            for case in (short, enough, {C_gpu: there})
        ),
        regular.subs(phi, 0),
    ]


def _wide(d: Derivation) -> list[Any]:
    """At this width the experts fill exactly the room, so the capacity is the wanted one; wider leaves more."""
    width = d.formula("expert_width")
    held = W_experts / sp.Symbol("width", positive=True)
    dense = H - A_P - kv_prefill - C_gpu - room  # the room is what these leave
    left = H - dense - held - A_P - kv_prefill
    at = left.subs(sp.Symbol("width", positive=True), width)
    return [sp.simplify(at - C_gpu), sp.diff(left, sp.Symbol("width", positive=True)).is_positive]


def _half_a_prompt(d: Derivation) -> list[Any]:
    """Renewal-reward over prompts: KV grows in a straight line, so the mean is E[I^2] / (2 E[I]) of a token's KV."""
    speed, length, when = sp.symbols("speed length when", positive=True)
    one_prompt = sp.integrate(kappa_store * speed * when, (when, 0, length / speed))  # bytes times seconds
    coefficient = sp.simplify(one_prompt / length**2)  # so its mean is this times E[I^2]
    mean = coefficient * isl_sq / (positive(isl) / speed) / g_P
    form = d.formula("kv_in_prefill").subs(isl, positive(isl))
    regular = d.regular("kv_in_prefill").subs(isl, positive(isl))
    return [
        sp.simplify(mean - form),
        sp.simplify(regular - form),
        sp.simplify(form.subs(isl_sq, positive(isl) ** 2) - kappa_store * positive(isl) / 2 / g_P),
        d.regular("kv_in_prefill").subs(isl, 0),
    ]


def _layer_by_layer(d: Derivation) -> list[Any]:
    """The sum over the layers, of which some have an index key besides."""
    layer = sp.Symbol("layer", integer=True)
    latents: Any = sp.Sum(number_bytes * latent_width, (layer, 1, latent_layers)).doit()
    keys: Any = sp.Sum(number_bytes * index_width, (layer, 1, index_layers)).doit()
    form = d.formula("latent_kv_bytes")
    return [sp.expand(latents + keys - form), form.subs(index_layers, 0) - number_bytes * latent_layers * latent_width]


# --- GLM-5.2-FP8 on B200 ----------------------------------------------------------------------------------------------

RESIDENT, CHECKPOINT = sp.Rational("743.7") * GB / 8, sp.Rational("755.6") * GB / 8
B200 = {"H": 192 * GB, "A_P": 0, "kv_prefill": 0}
DEFAULT = 150 * GB  # the article's default capacity per prefill GPU


def _default_needs_more(d: Derivation) -> list[Any]:
    """Even with no activation and the smaller figure the default does not fit; and it is not a matter of rounding."""
    at = B200 | {"W": RESIDENT, "C_gpu": DEFAULT, "phi": 1, "kv_free": 0}
    needed = value(d.formula("dram_needed"), at)
    own_share = value(d.formula("prefill_side_capacity"), at)
    return [sp.simplify(needed + own_share - DEFAULT) == 0, bool(needed > 50 * GB), bool(own_share < DEFAULT)]


def _bridges(d: Derivation) -> list[Any]:
    """Without DRAM a full step either way is bridged for 9.1 s: less than the fastest of the known cold starts."""
    own_share = value(d.formula("prefill_side_capacity"), B200 | {"W": CHECKPOINT})
    (longest,) = sp.solve(D15.formula("minimal_capacity").subs({delta_up: FULL, delta_down: FULL}) - own_share, tau)
    return [bool(sp.Rational(91, 10) < longest), bool(longest < sp.Rational(96, 10))]


MLA = {"latent_width": 512 + 64, "index_width": 128, "index_layers": 0, "number_bytes": 2}
GLM_LAYERS = {"latent_layers": 78, "index_layers": 19}
DRAFT = "the article's author, draft on wide expert parallelism: latent attention of 576"
GLM = "theory, D32: B200 with 192 GB, GLM-5.2-FP8 over 8 GPUs"

D32 = Derivation(
    id="D32",
    name="Where the capacity comes from",
    statement="The buffer is the HBM that prefill GPUs leave free, the unused KV space of the decode GPUs, and a share "
    "of the host's DRAM.",
    assumptions=(
        "prefill side: KV waits where it was made until decode reads it (DistServe, NIXL)",
        "decode side: space that is reserved for no sequence",
        "a worker prefills one prompt at a time and is busy",
    ),
    steps=(
        Step("A prefill GPU has left, if that is positive,", H - W - A_P - kv_prefill),
        Step("A decode GPU has F_D left; a prefill GPU's share of that is", (1 - phi) / phi * kv_free),
        Step("With the share M of the host's DRAM that makes", sp.Eq(C_gpu, per_gpu)),
        Step(
            "While a prompt is in prefill its KV grows in a straight line, and long prompts stay longer. So the mean "
            "over time is half of E[I^2]/E[I] tokens, spread over the GPUs of the worker",
            sp.Eq(kv_prefill, kappa_store * isl_sq / (2 * isl * g_P)),
            False,
        ),
        Step(
            "The KV of a token is, with latent attention, one vector a layer, and an index key in some of them,",
            sp.Eq(kappa_store, number_bytes * (latent_layers * latent_width + index_layers * index_width)),
        ),
        Step("Where a capacity C is wanted and decode has nothing to spare, DRAM must hold", sp.Max(0, C_gpu - own)),
        Step(
            "or the experts are spread over w GPUs, so that the room that C and all else leave holds their share",
            sp.Le(W_experts / sp.Symbol("w", positive=True), room),
            False,
        ),
    ),
    forms=(
        ClosedForm(
            "prefill_side_capacity",
            "C_P",
            own,
            "B/GPU",
            "HBM that a prefill GPU has left for KV that waits for decode.",
            SYMBOLS,
            code_symbol="C_P",
        ),
        ClosedForm(
            "capacity_per_prefill_gpu",
            "C",
            per_gpu,
            "B/GPU",
            "Capacity of the buffer per prefill GPU, from all three places.",
            (*SYMBOLS, phi, kv_free, dram),
            regular=Ratio(phi * (own + dram) + (1 - phi) * kv_free, phi, oo),
            code_symbol="C",
            conventions=(Convention(sp.Eq(phi, 0), "phi = 0 (no prefill GPU shares it): inf"),),
        ),
        ClosedForm(
            "fleet_capacity",
            "N_P C",
            N * (phi * (own + dram) + (1 - phi) * kv_free),
            "B",
            "Capacity of the buffer of the whole fleet.",
            (*SYMBOLS, phi, kv_free, dram, N),
            code_symbol="n_P C",
        ),
        ClosedForm(
            "dram_needed",
            r"M_{\min}",
            sp.Max(0, C_gpu - own - (1 - phi) / phi * kv_free),
            "B/GPU",
            "Host DRAM per prefill GPU that a wanted capacity needs.",
            (C_gpu, *SYMBOLS, phi, kv_free),
            regular=Ratio(sp.Max(0, phi * (C_gpu - own) - (1 - phi) * kv_free), phi),
            code_symbol="M_min",
            conventions=(Convention(sp.Eq(phi, 0), "phi = 0 (no prefill GPU): 0"),),
        ),
        ClosedForm(
            "expert_width",
            r"w_{\min}",
            W_experts / room,
            "1",
            "Smallest number of GPUs over which the experts must be spread to leave the wanted capacity.",
            (W_experts, room),
            code_symbol="w_min",
            note="room = H - W_dense - A_P - K_P - C, the HBM left for experts; at or below 0 no width is enough.",
        ),
        ClosedForm(
            "kv_in_prefill",
            "K_P",
            kappa_store * isl_sq / (2 * isl * g_P),
            "B/GPU",
            "Mean KV of the prompt in prefill, per GPU of a busy worker.",
            (kappa_store, isl, isl_sq, g_P),
            regular=Ratio(kappa_store * isl_sq / (2 * g_P), isl),
            dimensional=one("req") * kappa_store * isl_sq / (2 * isl * g_P),
            code_symbol="K_P",
            conventions=(Convention(sp.Eq(isl, 0), "isl = 0 (no prompts): 0"),),
        ),
        ClosedForm(
            "latent_kv_bytes",
            r"\kappa",
            number_bytes * (latent_layers * latent_width + index_layers * index_width),
            "B/tok",
            "Resident KV per token of a model with latent attention and index keys.",
            (number_bytes, latent_layers, latent_width, index_layers, index_width),
            code_symbol="kappa",
        ),
    ),
    proofs=(
        Proof("what is left on a prefill GPU, by cases", _left),
        Proof("no byte is counted twice: capacity and uses add up to all HBM and DRAM", _nothing_twice),
        Proof("per prefill GPU it is the fleet's over the prefill GPUs, in both forms", _per_gpu),
        Proof("the DRAM needed is enough and not too much, in both forms", _missing),
        Proof("the width of the experts leaves exactly the wanted capacity", _wide),
        Proof("the KV of a token is the sum over the layers", _layer_by_layer),
        Proof("the prompt in prefill holds E[I^2]/(2 E[I]) tokens in the mean", _half_a_prompt),
        Proof(
            "GLM-5.2 on B200: the article's default of 150 GB needs more than 50 GB of DRAM or wider experts",
            _default_needs_more,
        ),
        Proof("and without them a full step is bridged for 9.1 s, less than the fastest cold start of 9.6 s", _bridges),
    ),
    limits=(
        "Space on decode GPUs is reserved by the sequences that wait there (D25): count only what is free.",
        "A push of KV moves the stock to the decode side; the sum is the same, the place is not.",
        "DRAM has its own bandwidth, which is not modelled here.",
    ),
    source="theory, group 5; DistServe (2401.09670) and NIXL for the place of the stock",
    published=(
        *(
            Published(f"D32-{name}", f"{GLM}, {words}", "D", printed, ours, at, sp.Rational(1, GB), "GB", rounding=half)
            for name, words, printed, ours, at, half in (
                ("resident", "resident weights per GPU", 93.0, lambda d: RESIDENT, {}, 0.05),
                ("checkpoint", "whole checkpoint per GPU", 94.5, lambda d: CHECKPOINT, {}, 0.05),
                ("least", "left by the checkpoint", 97.5, "prefill_side_capacity", B200 | {"W": CHECKPOINT}, 0.05),
                ("most", "left by the resident weights", 99.0, "prefill_side_capacity", B200 | {"W": RESIDENT}, 0.5),
            )
        ),
        *(
            Published(name, words, "P", printed, "latent_kv_bytes", MLA | at, unit="B", rounding=half)
            for name, words, printed, at, half in (
                ("V05", "the article's author: resident KV of GLM-5.2 in BF16, 19 indexers", 94_720.0, GLM_LAYERS, 0.5),
                ("V05-catalogue", "inference-lab: the same with 21", 95_232.0, GLM_LAYERS | {"index_layers": 21}, 0.5),
                ("V06-V4-Pro", f"{DRAFT}, V4-Pro in FP8", 35e3, {"latent_layers": 61, "number_bytes": 1}, 500.0),
                ("V06-Kimi", f"{DRAFT}, Kimi in BF16", 70e3, {"latent_layers": 61}, 500.0),
                ("V06-GLM-5.2", f"{DRAFT}, GLM-5.2 in BF16 without index keys", 90e3, {"latent_layers": 78}, 500.0),
            )
        ),
    ),
)

GENERATED = "capacity"
DERIVATIONS = (D32,)
