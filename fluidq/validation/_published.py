"""Checks against published figures that need no table: DeepSeek's day, a planner's picks, measured points, a sweep."""

import functools
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fluidq._types import Scalar
from fluidq.formulas import balance, requests, rounding
from fluidq.rates import FittedRates
from fluidq.validation._closed_loop import Loop, closed_loop

# Growth of the time per token with the batch where one point is known: the slope of the common line of `_step_curve`.
_GROWTH = 0.35


@dataclass(frozen=True)
class Check:
    """A published figure and ours; `right` is whether they agree in the sense that `words` say."""

    group: str
    name: str
    published: float
    predicted: float
    right: bool
    words: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "name": self.name,
            "published": self.published,
            "predicted": self.predicted,
            "error": self.predicted / self.published - 1,
            "agrees": self.right,
            "words": self.words,
            "source": self.source,
        }


@functools.cache
def _figures() -> dict[str, Any]:
    return tomllib.loads(resources.files("fluidq.validation").joinpath("published.toml").read_text(encoding="utf-8"))


@functools.cache
def published_checks() -> tuple[Check, ...]:
    """All checks, in the order: DeepSeek day 6, AIConfigurator's picks, measured DeepSeek-V3 points, dstack's sweep."""
    figures = _figures()
    sources = figures["sources"]
    return (
        *_deepseek(figures["deepseek"], sources["deepseek"]),
        *_picks(figures["picks"], sources["picks"]),
        *_measured(figures["silicon"], figures["grid"], f"{sources['silicon']}; rates: {sources['grid']}"),
        *_sweep(figures["dstack"], sources["dstack"]),
    )


def _deepseek(day: Mapping[str, Any], source: str) -> list[Check]:
    """The nodes that the day's tokens need at the published rates, and how they divide."""
    per_second = {side: day[f"{side}_tokens"] / day["seconds"] for side in ("input", "output")}
    prefill, decode = per_second["input"] / day["prefill_node_rate"], per_second["output"] / day["decode_node_rate"]
    nodes = prefill + decode
    phi = float(requests.balance_ratio_work(t_P=prefill, t_D=decode))
    found = day["phi"]
    group, bound = "DeepSeek day 6", 1e-3
    return [
        Check(
            group,
            f"nodes, {prefill:.1f} prefill + {decode:.1f} decode",
            day["nodes"],
            nodes,
            abs(nodes / day["nodes"] - 1) <= bound,
            "within 0.1 %; an identity of averages that fixes the scale",
            source,
        ),
        Check(group, "phi", found, phi, abs(phi - found) <= bound, "within 0.001", source),
    ]


def _best(gpus: int, g_P: int, g_D: int, rate: Callable[[int, int], float]) -> tuple[int, int]:
    """The whole workers on at most `gpus` GPUs with the highest rate; of equal ones the fewest GPUs."""
    pairs = [(p, d) for p in range(1, gpus // g_P + 1) for d in range(1, gpus // g_D + 1) if p * g_P + d * g_D <= gpus]
    return max(pairs, key=lambda pair: (round(rate(*pair), 9), -pair[0] * g_P - pair[1] * g_D))


def _picks(picks: Mapping[str, Any], source: str) -> list[Check]:
    """phi from the rates of the two workers against the planner's search over whole workers."""
    out = []
    for case in picks["cases"]:
        g_P, g_D = case["prefill_gpus"], case["decode_gpus"]
        t_P = g_P / (picks["prefill_share"] * case["prefill_rate"])
        t_D = g_D / (picks["decode_share"] * case["decode_rate"])
        n_P, n_D = case["prefill_workers"] * g_P, case["decode_workers"] * g_D

        def carried(p: int, d: int, t: tuple[float, float] = (t_P, t_D), g: tuple[int, int] = (g_P, g_D)) -> float:
            return float(rounding.two_pool_throughput(n_P=p * g[0], n_D=d * g[1], t_P=t[0], t_D=t[1]))

        best = _best(n_P + n_D, g_P, g_D, carried)
        picked = (case["prefill_workers"], case["decode_workers"])
        out.append(
            Check(
                "AIConfigurator's first picks",
                f"phi, {case['case']}, picked {picked[0]}P{picked[1]}D, ours {best[0]}P{best[1]}D",
                n_P / (n_P + n_D),
                float(requests.balance_ratio_work(t_P=t_P, t_D=t_D)),
                best == picked,
                "same whole workers",
                source,
            )
        )
    return out


def _measured(points: Mapping[str, Any], grid: Mapping[str, Any], source: str) -> list[Check]:
    """phi with r_P and t_step(B, context) of the modelled grid at the measured concurrency (B without a queue)."""
    out = []
    for case in points["cases"]:
        fit, isl, osl = grid[case["grid"]], case["isl"], case["osl"]
        rates = FittedRates(prefill=tuple(fit["prefill"]), step=tuple(fit["step"]))
        n_P, n_D, workers = case["prefill_gpus"], case["decode_gpus"], case["prefill_workers"]
        batch = case["concurrency"] / n_D
        step = rates.step_time(batch, requests.mean_context_fixed(isl=isl, osl=osl))
        phi = float(balance.balance_ratio(B=batch, isl=isl, osl=osl, r_P=rates.prefill_rate(isl), t_step=step))
        ideal = phi / (1 - phi) * n_D / (n_P / workers)
        out.append(
            Check(
                "measured DeepSeek-V3",
                f"phi, {case['case']}, {n_P}P:{n_D}D GPUs, {workers} prefill workers, ideal {ideal:.2f}",
                n_P / (n_P + n_D),
                phi,
                abs(ideal - workers) <= 1,
                "within one prefill worker",
                source,
            )
        )
    return out


def _sweep(sweep: Mapping[str, Any], source: str) -> list[Check]:
    """Rates of the splits that gave no rate, with the limit on concurrency and without, and the best split.

    r_P and one point of the decode curve are given: the run with one decode worker. Its latencies say, by Little, what
    share of the 128 requests was in flight (500 prompts are four rounds; filling and emptying takes a fifth).
    """
    out, size, total = [], sweep["worker_gpus"], sweep["concurrency"]
    for case in sweep["sweeps"]:
        runs, isl = case["runs"], case["isl"]
        given = min(runs, key=lambda run: run["workers"][1])
        latency = given["ttft"] + given["tpot"] * (given["osl"] - 1)
        share = min(given["rate"] * latency / total, 1.0)
        batch = given["rate"] * given["osl"] * given["tpot"] / (given["workers"][1] * size)
        output = given["rate"] * given["osl"] / (given["workers"][1] * size)

        predicted = []
        for run in runs:
            p, d = run["workers"]
            rate = _limited(total, isl, run["osl"], sweep["r_P"], p, p * size, d * size, batch, given["tpot"], share)
            predicted.append(float(rate))
            pools = rounding.two_pool_throughput(
                n_P=p * size, n_D=d * size, t_P=isl / sweep["r_P"], t_D=run["osl"] / output
            )
            # A run whose own prefill sets the rate is where r_P is from.
            if run is given or abs(float(pools) / run["rate"] - 1) < 1e-3:
                continue
            off = float(pools) / run["rate"] - 1
            out.append(
                Check(
                    "dstack sweep",
                    f"req/s, {case['case']}, {p}P{d}D",
                    run["rate"],
                    predicted[-1],
                    abs(predicted[-1] / run["rate"] - 1) <= 0.25,
                    f"within 25 %; pool rates without the limit on concurrency are {off:+.0%} off",
                    source,
                )
            )
        best = [max(range(len(runs)), key=values.__getitem__) for values in (predicted, [r["rate"] for r in runs])]
        words = ["{}P{}D".format(*runs[i]["workers"]) for i in best]
        out.append(
            Check(
                "dstack sweep",
                f"prefill workers of the best split, {case['case']}: measured {words[1]}, ours {words[0]}",
                float(runs[best[1]]["workers"][0]),
                float(runs[best[0]]["workers"][0]),
                best[0] == best[1],
                "same split",
                source,
            )
        )
    return out


@jax.jit
def _limited(
    concurrency: Scalar,
    isl: Scalar,
    osl: Scalar,
    r_P: Scalar,
    workers: Scalar,
    prefill_gpus: Scalar,
    decode_gpus: Scalar,
    batch: Scalar,
    tpot: Scalar,
    share: Scalar,
) -> Array:
    """Request rate [req/s] of a closed loop whose time per token is known at one batch and grows by a power of it."""
    return closed_loop(
        concurrency,
        isl,
        osl,
        r_P,
        workers,
        prefill_gpus,
        decode_gpus,
        lambda b: tpot * jnp.power(b / batch, _GROWTH),
        Loop(share=share, delay=0.0),
    ).request_rate


def finite(value: float) -> float | None:
    """A number as JSON has it: no infinity."""
    return value if math.isfinite(value) else None
