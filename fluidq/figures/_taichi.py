"""TTFT against TPOT: both phases on each GPU or two pools, as the load rises (D21, D24); TaiChi's three objectives."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fluidq import catalog
from fluidq._systems_compute import kappa
from fluidq.figures._overlay import SECONDARY, Mark, Reproduced, source, table, ticks
from fluidq.formulas import aggregated, balance, requests

SOURCE = "arXiv 2508.01989 (TaiChi), Llama-2-70B, secondary: which side keeps an objective more often; D21, D24"
CAPTION = (
    "Together, a prompt waits less and a token takes longer; apart, the reverse: which side carries more load depends "
    "on the objective, and ours names the published winner of all three."
)
SIZE = (8.6, 3.8)
# A stand-in for the paper's set-up, which the account does not give: long prompts, and prefill at half of the peak.
MODEL, GPU, WORKER, UTILISATION = "Llama-3.1-70B", "H100", 4.0, 0.5
ISL, OSL = 7059.0, 208.0
LOADS = np.linspace(0.02, 0.995, 391)


def engine() -> dict[str, float]:
    """Llama-70B in bf16 on workers of four H100: rates of the catalogue, and the batch that the memory holds."""
    model, gpu = catalog.model(MODEL), catalog.gpu(GPU)
    steps = next(s for s in model.steps if s.gpu == GPU and s.precision == "bf16")
    context = float(requests.mean_context_fixed(isl=ISL, osl=OSL))
    room = {"H": WORKER * gpu.hbm.value, "W": model.weights["bf16"].value, "A_D": 0.0, "kappa_store": kappa(MODEL)}
    batch = float(requests.hbm_batch(theta_ctx=context, **room))
    t_step = float(requests.step_time(t_step_a=steps.a, t_step_b=steps.b, t_step_c=steps.c, B=batch, theta_ctx=context))
    r_P = gpu.peaks["bf16"].value * UTILISATION / (2 * model.params_active.value)
    assert gpu.nic is not None
    phi = float(balance.balance_ratio(B=batch / WORKER, isl=ISL, osl=OSL, r_P=r_P, t_step=t_step))
    return {"r_P": r_P, "t_step": t_step, "phi": phi, "batch": batch, "nic": gpu.nic.value, "kappa": kappa(MODEL)}


def compute() -> Reproduced:
    """Mean TTFT and TPOT of both over the load, and who carries more load within each objective."""
    e = engine()
    shared: dict[str, Any] = {"isl": ISL, "r_P": e["r_P"], "t_step": e["t_step"]}
    curves = {
        "load": LOADS,
        "ttft_together": np.asarray(aggregated.ttft_temporal(load=LOADS, phi=e["phi"], g_worker=WORKER, **shared)),
        "tpot_together": np.asarray(aggregated.tpot_temporal(t_step=e["t_step"], load=LOADS, phi=e["phi"])),
        "ttft_apart": np.asarray(
            aggregated.ttft_disaggregated(load=LOADS, g_P=WORKER, kappa_store=e["kappa"], nic=e["nic"], **shared)
        ),
        "tpot_apart": np.full(LOADS.shape, e["t_step"]),
        "wait_ratio": np.asarray(aggregated.wait_ratio(load=LOADS, phi=e["phi"])),
    }
    marks, numbers = [], dict(e)
    for goal in table()["taichi"]["objectives"]:
        most = {way: _most(curves, way, goal) for way in ("together", "apart")}
        words = f"{goal['ttft']:g} s, {1e3 * goal['tpot']:g} ms"
        numbers |= {f"load_{way} ({words})": load for way, load in most.items()}
        marks.append(
            Mark(
                f"winner within {words}: 1 two pools, -1 both phases on each GPU", "1",
                _sign(goal["apart"] - goal["together"]), _sign(most["apart"] - most["together"]), 1e-9,
                source("taichi"), SECONDARY, note="ours: the larger load that keeps both means within the objective",
            )
        )  # fmt: skip
    return Reproduced(CAPTION, tuple(marks), curves, numbers)


def _most(curves: dict[str, Any], way: str, goal: dict[str, float]) -> float:
    """The largest load that keeps both means; 0 where none does."""
    kept = (curves[f"ttft_{way}"] <= goal["ttft"]) & (curves[f"tpot_{way}"] <= goal["tpot"])
    return float(LOADS[kept].max()) if kept.any() else 0.0


def _sign(value: float) -> float:
    return 1.0 if value > 0 else -1.0


def paint(figure: Figure, data: Reproduced) -> None:
    """Left the plane, right who carries how much."""
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    ways = (("together", "both phases on each GPU", "-", "C1"), ("apart", "two pools", "--", "C0"))
    for way, words, style, colour in ways:
        ttft, tpot = data.curves[f"ttft_{way}"], data.curves[f"tpot_{way}"]
        left.plot(ttft, 1e3 * tpot, ls=style, color=colour, label=words)
        for load in (0.5, 0.8, 0.9, 0.95):
            k = int(np.abs(LOADS - load).argmin())
            left.plot([ttft[k]], [1e3 * tpot[k]], ".", color=colour, ms=7)
            up = way == "together"
            left.annotate(
                f"{load:g}",
                (ttft[k], 1e3 * tpot[k]),
                (0, 4 if up else -11),
                textcoords="offset points",
                ha="right",
                fontsize=7.5,
            )
    goals = table()["taichi"]["objectives"]
    for goal in goals:
        x, y = goal["ttft"], 1e3 * goal["tpot"]
        left.plot([0.1, x, x], [y, y, 1], color="0.5", lw=0.8, ls=":")
        left.plot([x], [y], "o", color="0.1", mfc="white", ms=5.5)
        left.annotate(
            f"{goal['together']:.0%} / {goal['apart']:.0%}", (x, y), (3, 5), textcoords="offset points", fontsize=8
        )
    left.set(xscale="log", yscale="log", xlim=(0.4, 60), ylim=(20, 400))
    ticks(left.yaxis, (20, 50, 100, 200, 400))
    ticks(left.xaxis, (0.5, 1, 2, 5, 10, 20, 50))
    left.set_xlabel("mean TTFT  [s]; numbers on the curves: load")
    left.set_ylabel("mean TPOT  [ms]")
    left.set_title("hollow: objectives, share kept together / apart")
    left.legend(loc="upper left")
    _winners(right, data, goals, ways)


def _winners(axes: Any, data: Reproduced, goals: list[dict[str, float]], ways: Any) -> None:
    """Published attainment and our largest load, one pair of bars a side and objective."""
    for row, (goal, mark) in enumerate(zip(goals, data.marks, strict=True)):
        words = f"{goal['ttft']:g} s, {1e3 * goal['tpot']:g} ms"
        for k, (way, _, style, colour) in enumerate(ways):
            place = row + 0.2 * (2 * k - 1)
            hatch = "//" if style == "--" else ""
            load = data.numbers[f"load_{way} ({words})"]
            axes.barh(place, load, height=0.34, color=colour, hatch=hatch, edgecolor="white", lw=0)
            axes.plot([goal[way]], [place], "o", color="0.1", mfc="white", ms=5.5)
        axes.text(1.04, row, "agrees" if mark.error == 0 else "MISS", va="center", fontsize=8)
    axes.set_yticks(range(len(goals)), [f"{g['ttft']:g} s\n{1e3 * g['tpot']:g} ms" for g in goals])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1.0), ylim=(len(goals) - 0.5, -0.5))
    axes.set_xlabel("bars: largest load, ours\ndots: share that kept the objective, published")
    axes.set_title("same winner?")
