"""The topologies on one day: TTFT and TPOT through the day, and the throughput of each against its closed form.

Each system has the same GPUs, engine numbers and workload; its fleet stays as it is, split by its own balance ratio.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from fluidq._errors import refuse
from fluidq._types import Scalar
from fluidq.figures._canvas import sheet
from fluidq.fleet import Fleet
from fluidq.formulas import aggregated, balance, rounding, stages
from fluidq.plant import Plant
from fluidq.policies.base import Asked, Policy, Reading
from fluidq.simulate import Load, load_of, simulate
from fluidq.topologies import AttentionFFN, Chunked, Partitioned, Temporal, Windowed, green_context
from fluidq.workload import default_workload

SOURCE = "computed here: fluidq.topologies on the default day; closed forms D21, D23, D28"
# One engine for all: a GPU's prefill rate and step law, near the reference rates of the default day.
PUBLISHED: dict[str, Any] = {
    "r_P": 10_000.0,
    "batch": 64.0,
    "t_step_a": 0.02,
    "t_step_b": 1e-4,
    "t_step_c": 8e-9,
    "kappa": 95e3,
}
PARAMETERS = ("gpus", "overlap", "saturation", "itl", "seed")
HOUR, TICK = 3600.0, 15.0
MICRO_BATCHES, ATTENTION_RATIO, LAYERS = 2.0, 0.25, 60.0


class Held(Policy):
    """A fleet that stays: so many GPUs for prefill, the rest for decode."""

    prefill: Scalar
    decode: Scalar

    def initial(self, fleet: Fleet, width: Scalar | None) -> Asked:
        """Workers at time 0."""
        return Asked(self.prefill, self.decode)

    def decide(self, memory: None, reading: Reading, fleet: Fleet, width: Scalar | None) -> tuple[None, Asked]:
        """The same as ever."""
        return None, Asked(jnp.asarray(self.prefill), jnp.asarray(self.decode))


@dataclass(frozen=True)
class Topology:
    """One system: hourly means over requests of TTFT and TPOT [s], what the day gave, and its throughput.

    `throughput` [req/s] of the saturated fleet as simulated, at the day's mean lengths; `expected` by its closed form.
    """

    name: str
    ttft: np.ndarray
    tpot: np.ndarray
    done: float
    attained: float
    throughput: float
    expected: float


@dataclass(frozen=True)
class Topologies:
    """The systems in the order of the legend; `figure` is what was drawn, None where only numbers were asked for."""

    gpus: int
    systems: list[Topology]
    figure: Figure | None = None

    @property
    def worst_error(self) -> float:
        """Largest relative distance of a simulated throughput from its closed form."""
        return max(abs(s.throughput / s.expected - 1) for s in self.systems)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "gpus": self.gpus,
            "systems": [
                {
                    "name": s.name,
                    "throughput": s.throughput,
                    "expected": s.expected,
                    "done": s.done,
                    "attained": s.attained,
                    "ttft_busiest_hour": float(s.ttft.max()),
                    "tpot_busiest_hour": float(s.tpot.max()),
                }
                for s in self.systems
            ],
            "worst_error": self.worst_error,
        }


def compute(
    *, gpus: int = 28, overlap: float = 0.8, saturation: float = 0.4, itl: float = 0.05, seed: int = 0
) -> Topologies:
    """Run every system on the default day of `seed`, and saturated.

    Arguments: `gpus` of each fleet; `overlap` of chunked prefill; `saturation`, the share of the multiprocessors that
    saturates the HBM of a split GPU; `itl` [s], DuetServe's objective, more than a full decode step.

    Raises:
        InputError: fewer than 2 GPUs, a share outside 0 to 1, an objective that no split keeps.
    """
    if gpus < 2:
        raise refuse("gpus", gpus, "at least 2, one for each phase")
    for name, value in (("overlap", overlap), ("saturation", saturation)):
        if not 0 < value <= 1:
            raise refuse(name, value, "a share above 0 and up to 1")
    day = default_workload(seed)
    mix = {"isl": day.mean_isl, "osl": day.mean_osl}
    plant = _plant()
    t_step = plant.t_step_a + plant.batch * (plant.t_step_b + plant.t_step_c * (mix["isl"] + (mix["osl"] - 1) / 2))
    if not itl > t_step:
        raise refuse("itl", itl, f"more than the step of a full batch, {t_step:.3g} s")
    load = load_of(day, TICK)
    rows = _systems(plant, mix, t_step, overlap, saturation, itl, gpus)
    return Topologies(gpus, [_system(*row, load, mix, gpus) for row in rows])


def _plant() -> Plant:
    """The hardware and engine of all systems: links and buffer that do not bind."""
    links: dict[str, Any] = {"nic_prefill": 50e9, "nic_decode": 50e9, "fabric": float("inf"), "capacity": 100e9}
    return Plant(**PUBLISHED, **links, prefill_worker=1.0, decode_worker=1.0, place="prefill")


def _systems(
    plant: Plant, mix: dict[str, float], t_step: float, overlap: float, saturation: float, itl: float, gpus: int
) -> list[tuple[str, Plant, float, float]]:
    """Name, plant, prefill share of the fleet, and the closed form of the throughput [req/s]."""
    isl, osl = mix["isl"], mix["osl"]
    t_P, t_D = isl / plant.r_P, osl * t_step / plant.batch
    phi = float(balance.balance_ratio(B=plant.batch, isl=isl, osl=osl, r_P=plant.r_P, t_step=t_step))
    whole = max(1, min(gpus - 1, round(phi * gpus))) / gpus

    def pools(prefill: float, decode: float, work: float = t_D) -> float:
        return float(rounding.two_pool_throughput(n_P=prefill * gpus, n_D=decode * gpus, t_P=t_P, t_D=work))

    shared = float(aggregated.output_rate(N=gpus, phi=phi, B=plant.batch, t_step=t_step)) / osl
    share = green_context(float(aggregated.best_sm_share(phi=phi, saturation=saturation)))
    left = float(aggregated.decode_sm_share(saturation=saturation, t_step=t_step, itl_max=itl))
    afd = AttentionFFN.of(plant, attention_ratio=ATTENTION_RATIO, micro_batches=MICRO_BATCHES, layers=LAYERS)
    micro = float(afd.micro_batch(plant.batch, 1.0))
    times = afd.stage_times(micro, isl + (osl - 1) / 2)
    apart = osl * LAYERS / float(stages.afd_throughput(attention_ratio=ATTENTION_RATIO, **times))
    third = max(1, min(gpus - 1, round(gpus * float(stages.stage_share(t_stage=t_P, t_others=apart))))) / gpus
    return [
        ("two pools, transfer after prefill", Windowed.of(plant, isl=isl), whole, pools(whole, 1 - whole)),
        ("two pools, transfer by chunks", Windowed.of(plant, isl=isl, chunks=8.0), whole, pools(whole, 1 - whole)),
        ("temporal aggregation", Temporal.of(plant), phi, shared),
        ("chunked prefill", Chunked.of(plant, overlap=overlap), phi,
         shared * float(aggregated.chunk_gain(phi=phi, overlap=overlap))),
        ("split GPU, moving (Bullet)", Partitioned.of(plant, saturation=saturation), phi,
         shared * float(aggregated.sm_split_gain(phi=phi, saturation=saturation))),
        ("split on demand (DuetServe)", Partitioned.of(plant, saturation=saturation, itl=itl, hybrid=True), phi,
         pools(1 - left, t_step / itl) if (1 - phi) * itl < t_step else shared),
        ("fixed partitions (green contexts)", Partitioned.of(plant, saturation=saturation, share=share), phi,
         pools(share, min(1.0, (1 - share) / saturation))),
        ("attention and FFN apart", afd, third, pools(third, 1 - third, apart)),
    ]  # fmt: skip


def _system(
    name: str, plant: Plant, prefill: float, expected: float, load: Load, mix: dict[str, float], gpus: int
) -> Topology:
    """The day and a day of three times what the fleet can do, on one fleet."""
    fleet = Fleet.make(
        plant,
        cold_start=0.0,
        budget=float(gpus),
        initial_gpus=float(gpus),
        request_gpu_seconds=gpus / expected,
        interval=TICK,
    )
    law = Held(prefill * gpus, (1 - prefill) * gpus)
    run = simulate(fleet, load, law)
    n = jnp.full_like(load.requests, 3 * expected * TICK)
    full = simulate(fleet, Load(n, n * mix["isl"], n * mix["isl"], n * mix["osl"]), law)
    if run.trajectory is None or full.trajectory is None:
        raise AssertionError("simulate records unless it is told not to")
    return Topology(
        name=name,
        ttft=_hourly(run.trajectory.ttft, load.requests),
        tpot=_hourly(run.trajectory.tpot, load.requests),
        done=float(run.done),
        attained=float(run.attained),
        throughput=float(full.trajectory.done[-1]) / TICK,
        expected=expected,
    )


def _hourly(value: Any, requests: Any) -> np.ndarray:
    """Mean over the requests of each hour."""
    value, weight = (np.asarray(x).reshape(-1, round(HOUR / TICK)) for x in (value, requests))
    return (value * weight).sum(axis=1) / weight.sum(axis=1)


def topologies(
    path: str | Path | None = None, *, gpus: int = 28, overlap: float = 0.8, saturation: float = 0.4, itl: float = 0.05,
    seed: int = 0,
) -> Topologies:  # fmt: skip
    """Draw the systems, into `path` where one is given; arguments and errors as `compute`."""
    data = compute(gpus=gpus, overlap=overlap, saturation=saturation, itl=itl, seed=seed)
    with sheet(10.4, 3.9, path) as figure:
        wait, token, rate = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
        styles = [_style(k) for k in range(len(data.systems))]
        for axes, name, unit in ((wait, "ttft", 1.0), (token, "tpot", 1e3)):
            _day(axes, data, name, unit, styles)
        wait.set_yscale("log")
        wait.set_ylabel("TTFT  [s]")
        wait.set_title(f"{gpus} GPUs, the default day")
        token.set_ylabel("TPOT  [ms]")
        token.set_title("means over the hour's requests")
        _throughput(rate, data, styles)
        lines = [Line2D([], [], **style) for style in styles]
        figure.legend(lines, [s.name for s in data.systems], loc="outside lower center", ncols=4)
    return Topologies(data.gpus, data.systems, figure)


def _style(k: int) -> dict[str, Any]:
    """The two ways of transfer share a colour."""
    return {"color": f"C{max(k - 1, 0)}", "ls": "--" if k == 1 else "-"}


def _day(axes: Axes, data: Topologies, name: str, unit: float, styles: list[dict[str, Any]]) -> None:
    for system, style in zip(data.systems, styles, strict=True):
        values = unit * getattr(system, name)
        axes.plot(np.arange(len(values)) + 0.5, values, **style)
    axes.set_xlabel("hour of the day")
    axes.set_xlim(0, 24)
    axes.xaxis.set_major_locator(MultipleLocator(6))


def _throughput(axes: Axes, data: Topologies, styles: list[dict[str, Any]]) -> None:
    """Bars: simulated; marks: the closed forms."""
    rows = np.arange(len(data.systems))[::-1]
    for row, system, style in zip(rows, data.systems, styles, strict=True):
        hatch = {"hatch": "//", "alpha": 0.7} if style["ls"] == "--" else {}
        axes.barh(row, system.throughput, color=style["color"], height=0.65, **hatch)
        axes.text(system.throughput, row, f"  {system.throughput:.0f}", va="center", fontsize=8)
    axes.plot([s.expected for s in data.systems], rows, "|", color="0.1", ms=13, mew=1.5)
    axes.set_yticks([])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(0, 1.15 * max(s.throughput for s in data.systems))
    axes.set_xlabel("throughput, saturated  [req/s]")
    axes.set_title("bars: simulated, marks: closed form")
