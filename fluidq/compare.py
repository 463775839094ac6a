"""Several laws on the same workload and fleet, each in its hard form, side by side."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from fluidq._callable import make_callable
from fluidq._errors import InputError, refuse
from fluidq.clairvoyant import clairvoyant
from fluidq.fleet import Fleet
from fluidq.laws import LAWS, law
from fluidq.objective import Objective
from fluidq.policies.base import Policy
from fluidq.simulate import Load, Run, load_of, simulate
from fluidq.workload import Workload


@dataclass(frozen=True)
class Comparison:
    """Runs by name, cheapest first, the laws, why one could not run, and what to know; `str()` is the table.

    `bound` is the clairvoyant bound [GPU-hours] where it was asked for: no policy can cost less.
    """

    runs: dict[str, Run]
    policies: dict[str, Policy]
    refused: dict[str, str]
    notes: tuple[str, ...] = ()
    bound: float | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One object per law; costs in GPU-hours, shares of the time that the buffer was full or empty."""
        return [
            {
                "policy": name,
                "cost": float(run.cost.cost),
                "gpu_hours": float(run.cost.gpu_hours),
                "slo_loss": float(run.cost.slo_loss),
                "lost_flow": float(run.cost.lost_flow),
                "stalled_flow": float(run.cost.stalled_flow),
                "slo_attainment": float(run.attained),
                "actions": float(run.actions),
                "time_full": float(run.full),
                "time_empty": float(run.empty),
                "requests_lost": float(run.lost),
                "requests_left": float(run.left),
                "bound_ratio": float(run.cost.cost) / self.bound if self.bound else None,
            }
            for name, run in self.runs.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "unit": "GPU-hours over the workload",
            "clairvoyant_bound": self.bound,
            "policies": self.rows(),
            "refused": dict(self.refused),
            "hints": list(self.notes),
        }

    def __str__(self) -> str:
        head = ("policy", "cost", "GPU-hours", "SLO loss", "lost", "stalled", "in SLO", "actions", "full", "empty")
        if self.bound:
            head = (*head, "cost / bound")
        lines = [[*head]]
        for row in self.rows():
            parts = [row[key] for key in ("cost", "gpu_hours", "slo_loss", "lost_flow", "stalled_flow")]
            shares = [f"{100 * row[key]:.1f} %" for key in ("slo_attainment", "time_full", "time_empty")]
            line = [row["policy"], *(f"{x:,.0f}" for x in parts), shares[0], f"{row['actions']:,.0f}", *shares[1:]]
            lines.append([*line, f"{row['bound_ratio']:.2f}"] if self.bound else line)
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

        def text(line: list[str]) -> str:
            first, *rest = line
            return "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))])

        return "\n".join(
            [*map(text, lines), *self.notes, *(f"{name}: not run: {why}" for name, why in self.refused.items())]
        )


def compare(
    fleet: Fleet,
    workload: Workload | Load,
    policies: Mapping[str, Policy] | Sequence[str] | None = None,
    objective: Objective | None = None,
    *,
    bound: bool = False,
    progress: bool = True,
) -> Comparison:
    """Run every law on the workload, hard form, and put them side by side.

    Arguments:
        fleet, workload, objective: as for `simulate`.
        policies: laws by any name, or names of `fluidq.laws.LAWS`; None for all of those.
        bound: compute the clairvoyant bound too, beside the runs (half a minute for a day of 15 s ticks).
        progress: a bar, on a terminal.

    Returns a `Comparison`, cheapest first. A law that refuses the fleet (it scales on KV memory that the plant does not
    state, say) is listed under `refused`. Raises InputError for an unknown name, and where no law can run.
    """
    objective = objective or Objective()
    load = workload if isinstance(workload, Load) else load_of(workload, fleet.interval)
    refused: dict[str, str] = {}
    chosen: dict[str, Policy] = {}
    if isinstance(policies, Mapping):
        chosen = dict(policies)
    else:
        for name in LAWS if policies is None else policies:
            chosen[name] = law(name, fleet, objective)
    if not chosen:
        raise refuse("policies", "none", "at least one law")

    def run(item: tuple[str, Policy]) -> tuple[str, Run | str]:
        name, policy = item
        try:
            return name, jax.block_until_ready(simulate(fleet, load, policy, objective))
        except InputError as error:
            return name, str(error)

    runs: dict[str, Run] = {}
    # Most of the time is compilation, one program per law, which threads share.
    with (
        ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        tqdm(total=len(chosen), desc="laws", disable=None if progress else True) as bar,
    ):
        least = pool.submit(clairvoyant, fleet, load, objective, progress=False) if bound else None
        for name, out in pool.map(run, chosen.items()):
            if isinstance(out, str):
                refused[name] = out
            else:
                runs[name] = out
            bar.update()
        value = least.result().value if least is not None else None
    if not runs:
        raise InputError(f"no law could run: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
    order = sorted(runs, key=lambda name: float(runs[name].cost.cost))
    return Comparison({name: runs[name] for name in order}, chosen, refused, _blind(fleet, load), value)


def _blind(fleet: Fleet, load: Load) -> tuple[str, ...]:
    """Say so where the KV memory can never fill: a law that scales decode on its use then sees no overload."""
    n = float(jnp.sum(load.requests))
    each = float(jnp.sum(load.stored) + 0.5 * jnp.sum(load.output)) / n if n else 0.0
    most = float(fleet.plant.batch) * each / float(fleet.kv_tokens())
    if not 0 < most < 0.9:
        return ()
    return (
        f"The batch limit fills {most:.0%} of the KV memory at this load's mean lengths: "
        "laws that scale decode on KV use (dynamo, wva) see no overload there.",
    )


make_callable(__name__)
