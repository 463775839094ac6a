"""Sarathi-Serve: the length of a mixed step over its token budget, and the balance of chunks and decodes (D23)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq import catalog
from fluidq.figures._overlay import AT_MOST, SECONDARY, Mark, Reproduced, keys, of_system, overlay, source, table, ticks
from fluidq.formulas import aggregated
from fluidq.kv import Architecture, FeedForward, Heads, kv_bytes, parameters

SOURCE = "arXiv 2403.02310 (Sarathi-Serve, Yi-34B on two A100), secondary; arXiv 2308.16369 (SARATHI); D23"
CAPTION = (
    "A budget bounds the step and with it the time between tokens, a whole prompt in one step takes several times as "
    "long; the roofline's step is 19 to 44 % below the published P99, for it is a mean on perfect kernels."
)
SIZE = (8.6, 4.2)
WIDTHS = (16, 32, 64)
# How near a roofline has to come to a measured step to be called right.
CLOSE, MEAN = 0.1, "ours: the step of a full budget at the roofline, a mean"


def engine() -> dict[str, Any]:
    """Yi-34B in bf16 on one of its two A100: weights, KV read per token, arithmetic of a token, rates."""
    given, gpu = table()["sarathi"], catalog.gpu("A100")
    layers, width = given["layers"], given["head_dim"]
    model = Architecture(
        "Yi-34B", given["hidden"], given["vocabulary"],
        (Heads(layers=layers, heads=given["heads"], kv_heads=given["kv_heads"], key_dim=width, value_dim=width),),
        FeedForward(dense_layers=layers, dense_width=given["ffn"]), source=source("yi"),
    )  # fmt: skip
    total = float(parameters(model).total)
    share = given["gpus"]
    return {
        "W": 2 * total / share,
        "kappa_read": float(np.asarray(kv_bytes(model, "bf16").used)) / share,
        "flop_token": 2 * total / share,
        "peak": gpu.peaks["bf16"].value,
        "hbm_rate": gpu.hbm_rate.value,
    }


def compute() -> Reproduced:
    """Step time over the budget, with its bound-free part, and prompt over output lengths that keep every step full."""
    given, gpu = table()["sarathi"], engine()
    batch, context = float(given["batch"]), float(given["context"])
    budget = np.geomspace(batch + 1, 16_384, 200)

    def step(tokens: Any, prior: float = 0.0) -> Any:
        return np.asarray(aggregated.mixed_step(chunk=tokens - batch, prior=prior, B=batch, theta_ctx=context, **gpu))

    curves: dict[str, Any] = {"budget": budget, "step": step(budget), "chunk": np.linspace(64.0, 2048.0, 63)}
    for width in WIDTHS:
        curves[f"B = {width}"] = np.asarray(aggregated.decode_maximal_ratio(chunk=curves["chunk"], B=float(width)))
    marks = _marks(step, gpu)
    gaps = [mark.gap for mark in marks if mark.note == MEAN]
    numbers = {
        "nearest": max(gaps),
        "farthest": min(gaps),
        "free_chunk": float(aggregated.free_chunk(B=batch, theta_ctx=context, **gpu)),
        "step_at_1024": float(step(np.asarray(1024.0))),
    }
    return Reproduced(CAPTION, (*marks, *of_system("SARATHI")), curves, numbers)


def _marks(step: Any, gpu: dict[str, Any]) -> list[Mark]:
    """P99 times between tokens at the budget and of whole prompts, and the overhead of small chunks."""
    given, words = table()["sarathi"], source("sarathi")
    sets, budget = ("sharegpt4", "arxiv"), float(given["budget"])
    marks = []
    for way, label in (("both", "chunks and hybrid batches"), ("chunked", "chunks only")):
        for name, tail in zip(sets, given["tbt"][way], strict=True):
            what = f"P99 time between tokens, {label}, {name}"
            marks.append(Mark(what, "s", tail, float(step(np.asarray(budget))), CLOSE, words, SECONDARY, note=MEAN))
    tail, prompt = given["tbt"]["whole"][1], float(given["prompt"])
    note = "ours: a prompt of the median length; the P99 is of a longer one"
    ours = float(step(np.asarray(prompt + given["batch"])))
    marks.append(
        Mark("P99 time between tokens, whole prompts, arxiv", "s", tail, ours, 1e-9, words, SECONDARY, AT_MOST, note)
    )
    note = "ours: traffic alone, as a factor on the whole prompt's time"
    longest = 1 + given["overhead_512"]
    what = "time of a prompt in chunks of 512 over that in one pass"
    marks.append(Mark(what, "1", longest, _overhead(gpu), 1e-9, words, SECONDARY, AT_MOST, note))
    return marks


def _overhead(gpu: dict[str, Any], chunk: float = 512.0) -> float:
    """Time of a prompt in chunks over that in one pass, without a decode batch."""
    prompt = float(table()["sarathi"]["prompt"])
    starts = np.arange(0.0, prompt, chunk)
    lengths = np.minimum(chunk, prompt - starts)
    rest: dict[str, Any] = {"B": 0.0, "theta_ctx": 0.0, **gpu}
    parts = np.asarray(aggregated.mixed_step(chunk=lengths, prior=starts, **rest)).sum()
    return float(parts / aggregated.mixed_step(chunk=prompt, prior=0.0, **rest))


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the step time, right the decode-maximal ratio."""
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    given = table()["sarathi"]
    left.plot(data.curves["budget"], data.curves["step"], label="ours: roofline of a mixed step")
    tails = [mark for mark in data.marks if mark.what.startswith("P99")]
    at = [given["budget"]] * 4 + [given["prompt"]]
    overlay(left, at, tails, side=-1)
    words = f"bound, {tails[4].gap:+.0%}"
    left.annotate(words, (at[4], tails[4].published), (-8, -4), textcoords="offset points", ha="right", fontsize=8)
    free = data.numbers["free_chunk"] + given["batch"]
    left.plot([free, free], [0.01, 0.08], color="0.5", lw=0.8, ls=":")
    left.text(free * 1.1, 0.017, f"{free:.0f} tok: as long as decoding alone", fontsize=8)
    left.set(xscale="log", yscale="log", xlim=(33, 16_384), ylim=(0.015, 6))
    ticks(left.xaxis, (50, 100, 300, 1000, 3000, 10_000))
    ticks(left.yaxis, (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2))
    left.set_xlabel("tokens in a step  [tok]")
    left.set_ylabel("time between tokens  [s]")
    left.set_title("Yi-34B, two A100, 32 sequences")
    left.legend(handles=[left.get_lines()[0], *keys(tails, "")], loc="upper left", bbox_to_anchor=(0.0, 1.0))
    for width, style in zip(WIDTHS, ("-", "--", ":"), strict=True):
        right.plot(data.curves["chunk"], data.curves[f"B = {width}"], ls=style, label=f"{width} sequences")
    right.set(yscale="log", xlim=(0, 2048))
    ticks(right.yaxis, (1, 3, 10, 30, 100))
    right.set_xlabel("chunk C  [tok]")
    right.set_ylabel("ISL / OSL that keeps every step full")
    right.set_title("decode-maximal batches: C / (B - 1)")
    right.legend()
