"""DistServe: waiting in front of prefill by kind of parallelism, and the link that its KV cache needs (D12, D24)."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from fluidq._systems_compute import kappa
from fluidq.figures._overlay import OWN, Mark, Reproduced, by_start, dot, keys, of_system, overlay
from fluidq.formulas import aggregated, transfer

SOURCE = "arXiv 2401.09670, equations 1 to 3, figure 4 (shape) and section 3.3; D24, D12"
CAPTION = (
    "Tensor parallelism is the faster way at low load and pipelining at high load, and the crossing moves with its "
    "speed-up K; the 90 Gb/s of ten prompts a second are GiB taken for GB, in decimal units they are 96.6."
)
SIZE = (8.2, 3.5)
PROMPT, SPEEDUPS = 512, (1.5, 1.7)
OFFERED = np.linspace(0.0, 1.96, 240)


def compute() -> Reproduced:
    """Mean TTFT in units of one prompt's time over the offered load R D, and Gb/s over prompts per second."""
    curves = {
        "offered": OFFERED,
        "one GPU": _until(1.0, lambda load: 1 + np.asarray(aggregated.queue_wait(load=load, service=1.0, scv=0.0))),
        "two, pipelined": _until(2.0, lambda load: aggregated.ttft_pipelined(load=load, service=1.0)),
        "requests": np.linspace(0.0, 15.0, 61),
    }
    for speedup in SPEEDUPS:
        curves[f"two, tensor, K = {speedup:g}"] = _until(
            speedup, lambda load, k=speedup: aggregated.ttft_tensor(load=load, service=1.0, speedup=k)
        )
    # The link of one prompt a second: the flow of a GPU that computes so many tokens a second (b* of D13).
    each = float(transfer.crossover_nic(r_P=float(PROMPT), kappa_store=kappa("OPT-66B"))) * 8 / 1e9
    curves["decimal"] = curves["requests"] * each
    curves["binary"] = curves["decimal"] * 1e9 / 2**30
    return Reproduced(CAPTION, _marks(), curves, {"gbit_per_prompt": each})


def _marks() -> tuple[Mark, ...]:
    """The paper prints the crossings as a figure only, so their values are ours."""
    return tuple(
        replace(mark, evidence=OWN) if mark.what.startswith("load at which") else mark
        for mark in of_system("DistServe")
    )


def _until(capacity: float, of_load: object) -> np.ndarray:
    """The curve up to its capacity, nan beyond."""
    assert callable(of_load)
    load = OFFERED / capacity
    return np.where(load < 1, np.asarray(of_load(np.minimum(load, 0.999))), np.nan)


def crossing_of(mark: Mark) -> float:
    """The TTFT at which the two curves of a crossover meet, in units of a prompt's time."""
    return float(aggregated.ttft_pipelined(load=mark.ours / 2, service=1.0))


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the waits, right the link."""
    wait, link = figure.subplots(1, 2, width_ratios=(1.25, 1))
    names = ["one GPU", "two, pipelined", *(f"two, tensor, K = {k:g}" for k in SPEEDUPS)]
    for name, style in zip(names, ("-", "-.", "--", ":"), strict=True):
        wait.plot(data.curves["offered"], data.curves[name], ls=style, label=name)
    for mark in by_start(data.marks, "load at which"):
        wait.plot([mark.published], [crossing_of(mark)], **dot(mark), zorder=5)
    wait.set(xlim=(0, 1.96), ylim=(0.4, 4))
    wait.set_xlabel("offered load R D  [GPUs]")
    wait.set_ylabel("mean TTFT  [times of one prompt]")
    wait.set_title("squares: crossings, as the theory has them")
    wait.legend(loc="upper left")
    link.plot(data.curves["requests"], data.curves["decimal"], "-", label="1 GB = 10⁹ B")
    link.plot(data.curves["requests"], data.curves["binary"], "--", label="GiB taken for GB")
    overlay(link, [10.0], by_start(data.marks, "link for"))
    link.set(xlim=(0, 15), ylim=(0, 150))
    link.set_xlabel("prompts of 512 tokens  [1/s]")
    link.set_ylabel("link  [Gb/s]")
    link.set_title("OPT-66B")
    lines = link.get_lines()[:2]
    link.legend(handles=[*lines, *keys(by_start(data.marks, "link for"), "")], loc="upper left")
