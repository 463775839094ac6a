"""What people read after a run: text and figures."""

from pathlib import Path

import jax.numpy as jnp
import matplotlib

from fluidq import plot
from fluidq.scenario import Case
from fluidq.simulate import Trajectory, simulate
from fluidq.space import FLEET
from fluidq.tune import TuneResult, parameters
from fluidq.units import format

_ROWS = (
    ("cost", "cost", "GPU-h"),
    ("gpu_hours", "  GPU-hours paid", "GPU-h"),
    ("slo_loss", "  late requests", "GPU-h"),
    ("lost_flow", "  lost requests", "GPU-h"),
    ("stalled_flow", "  stalled prefill", "GPU-h"),
    ("churn", "  scaling actions", "GPU-h"),
    ("slo_attainment", "SLO attainment", ""),
    ("actions", "workers started or stopped", ""),
)
_WORDS = {
    "prefill_up": "s of queued prefill work",
    "prefill_down": "s of queued prefill work",
    "decode_up": "of batch slots",
    "decode_down": "of batch slots",
    "ratio": "of the GPUs prefill",
    "step": "GPUs per move",
}


def tune_text(case: Case, result: TuneResult, out: str | None) -> str:
    """The tuning report: what ran, the policy before and after, and what judged it."""
    w, d, f = case.workload, case.deployment, case.fleet
    lines = [
        f"Workload    {w.name}: {w.requests / case.load_scale:,.0f} requests in {format(w.duration, 'seconds')}, "
        f"mean ISL {w.mean_isl:,.0f} (computed {w.mean_isl_computed:,.0f}), mean OSL {w.mean_osl:,.0f}",
        f"Fleet       {d.model} on {d.gpu}, up to {float(f.budget):g} GPUs, "
        f"cold start {format(f.cold_start, 'seconds')}, control every {format(f.interval, 'seconds')}, "
        f"buffer {format(f.plant.capacity, 'bytes')}",
        f"Limits      TTFT {format(case.objective.ttft, 'seconds')}, TPOT {format(case.objective.tpot, 'seconds')}; "
        f"a late request costs {float(case.objective.late_weight):g} x the GPU time of serving one",
    ]
    if case.report:
        lines.append("Trace       " + str(case.report).replace("\n", "\n            "))
    lines += [f"Note        {note}" for note in case.notes]
    law = type(result.before).__name__
    wide = max(28, *(len(name) + 2 for name in parameters(result.before)))
    lines += ["", f"{law:<{wide}}{'before':>12}{'after':>12}"]
    before, after = parameters(result.before), parameters(result.after)
    moved = result.space.names if result.space else ()
    for name in before:
        words = _WORDS.get(name, "") if law == "Thresholds" else ""
        kept = "" if name in moved else "(fixed)"
        lines.append(f"{name:<{wide}}{before[name]:>12.4g}{after[name]:>12.4g}  {words} {kept}".rstrip())
    lines += [f"{name:<{wide}}{a:>12.4g}{b:>12.4g}" for name, (a, b) in _of_fleet(result).items()]
    lines += ["", f"{'hard replay':<28}{'before':>12}{'after':>12}  integer workers, comparisons on ticks"]
    for key, label, unit in _ROWS:
        a, b = result.hard_before[key], result.hard_after[key]
        shown = (f"{a:>12.1%}{b:>12.1%}",) if key == "slo_attainment" else (f"{a:>12,.1f}{b:>12,.1f}",)
        lines.append(f"{label:<28}{shown[0]}  {unit}".rstrip())
    mean_before, mean_after = result.unseen_before.mean(), result.unseen_after.mean()
    wins = int((result.unseen_after < result.unseen_before).sum())
    lines += [
        f"{'cost on unseen draws':<28}{mean_before:>12,.1f}{mean_after:>12,.1f}  GPU-h, better on {wins} of "
        f"{len(result.unseen_after)}",
    ]
    if result.stopped is not None:
        waited = f"no better hard cost for {result.settings.patience} judgements"
        lines.append(f"Stopped     after {result.stopped} steps: {waited}")
    lines += ["", str(result.certificate), ""]
    change = 1 - result.hard_after["cost"] / result.hard_before["cost"]
    verdict = f"{change:.0%} lower cost on the hard law" if change > 0 else "nothing better than the start was found"
    lines.append(f"Result      {verdict}; fluid model: means per tick, no percentiles.")
    names = "tune.json, tune.png, search.png, tune.log.jsonl, tune.checkpoint"
    lines.append(f"Files       {out}/{names}" if out else "Files       none; --out DIR writes them")
    return "\n".join(lines)


def _of_fleet(result: TuneResult) -> dict[str, tuple[float, float]]:
    """Numbers of the fleet that moved, before and after."""
    if result.space is None or result.coordinates is None:
        return {}
    before, after = (result.space.values(u) for u in (result.space.start(), jnp.asarray(result.coordinates)))
    return {name: (float(before[name]), float(after[name])) for name in result.space.names if name in FLEET}


def tune_figures(case: Case, result: TuneResult, folder: Path) -> None:
    """Write tune.png (before and after over time) and search.png (cost per gradient step) into `folder`."""
    matplotlib.use("Agg")
    runs: dict[str, Trajectory] = {}
    pairs = (("before", result.before, result.fleet_before), ("tuned", result.after, result.fleet_after))
    for label, policy, fleet in pairs:
        trajectory = simulate(fleet or case.fleet, case.workload, policy, case.objective).trajectory
        assert trajectory is not None
        runs[label] = trajectory
    plot.save(plot.trajectories(runs, case.fleet, case.objective)[0].figure, folder / "tune.png")
    plot.save(plot.tuning(result).figure, folder / "search.png")
