"""Request-level replay for a certificate: two policies on the same whole requests, in a sample of the load."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from tqdm import tqdm

from fluidq._errors import InputError
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies import Policy
from fluidq.replay import Estimate, draw, replay
from fluidq.replay import Run as RequestRun
from fluidq.simulate import Run, simulate
from fluidq.workload import Workload

# Requests served in all, both policies and all seeds together: about ten seconds.
REQUESTS = 200_000
SEEDS = 4
CONFIDENCE = 0.95
# A window covers this many reaction times at least, so that what a law asks for arrives in it, and is no longer than
# this: a longer one says little more.
REACTIONS, LONGEST, SHORTEST = 4.0, 1800.0, 120.0
# Where two windows would need a copy of the system below this share of its size, one window gets all requests.
SMALLEST_FOR_TWO = 0.1
# Numbers of laws that count GPUs: they shrink with the system.
IN_GPUS = ("step", "gpus", "max_gpu_budget")
# The copy is true where the law asks for the same share of the GPUs there, to this, on average over the fluid's time.
SAME = 0.01


@dataclass(frozen=True)
class Requested:
    """The same requests under the policy before and after.

    Attributes:
        windows: (start, end) of each window [s]. seeds: realisations. requests: served under each policy, in all.
        share: size of the replayed copy of the system; 1 is the system itself.
        before, after: mean over seeds of cost, paid [GPU-hours, of the whole system] and SLO attainment.
        cost, paid, attainment: after minus before, over seeds, with Student's t interval at `confidence`.
        after_attainment: attainment after, over seeds, with its interval.
    """

    windows: tuple[tuple[float, float], ...]
    seeds: int
    requests: int
    share: float
    before: dict[str, float]
    after: dict[str, float]
    cost: Estimate
    paid: Estimate
    attainment: Estimate
    after_attainment: Estimate
    confidence: float = CONFIDENCE

    def worse(self, wanted: float | None) -> str:
        """Why the tuned policy is worse on requests beyond chance, in words; "" where it is not.

        Without a `wanted` attainment: its cost is higher. With one: it attains less than the given policy and less than
        what is wanted, or it pays more.
        """
        level = f"{self.confidence:.0%} interval"
        if wanted is None:
            if self.cost.low > 0:
                return f"on requests it costs {self.cost.mean:.4g} GPU-h more ({level} {_interval(self.cost)})"
            return ""
        if self.attainment.high < 0 and self.after_attainment.high < wanted:
            return (
                f"on requests it attains {self.after['attainment']:.1%}, {-self.attainment.mean:.1%} less than before "
                f"({level} of the difference {_interval(self.attainment)}) and less than the {wanted:.1%} wanted"
            )
        if self.paid.low > 0 and not self.attainment.low > 0:
            return f"on requests it pays {self.paid.mean:.4g} GPU-h more ({level} {_interval(self.paid)})"
        return ""

    @property
    def sample(self) -> str:
        """What was replayed, in words."""
        where = " and ".join(f"{a:,.0f}-{b:,.0f} s" for a, b in self.windows)
        first = "the busiest window" if len(self.windows) == 1 else "the busiest window and a random one"
        whole = (
            "the whole system"
            if self.share == 1
            else f"a copy of the system at 1/{1 / self.share:.3g} of its size (smaller workers)"
        )
        return (
            f"{first}, {where}, {self.seeds} seeds, {self.requests:,} requests under each policy, on {whole}; each "
            "window starts with empty queues and the workers that its own law has there in the fluid"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; an interval that a single seed leaves open is null."""
        return {
            "replayed": True,
            "sample": self.sample,
            "windows_s": [list(w) for w in self.windows],
            "seeds": self.seeds,
            "requests": self.requests,
            "share_of_the_system": self.share,
            "confidence": self.confidence,
            "method": "Student's t over seeds, both policies on the same requests",
            "before": dict(self.before),
            "after": dict(self.after),
            "cost_difference": _to_dict(self.cost),
            "paid_difference": _to_dict(self.paid),
            "attainment_difference": _to_dict(self.attainment),
        }


def on_requests(
    fleets: tuple[Fleet, Fleet],
    policies: tuple[Policy, Policy],
    fluid: tuple[Run, Run],
    workload: Workload,
    objective: Objective,
    *,
    reaction: float,
    most: int = REQUESTS,
    seeds: int = SEEDS,
    seed: int = 0,
    progress: bool = True,
) -> Requested | str:
    """Serve a sample of the workload in whole requests under both policies, on the same requests.

    The windows: the busiest, and a random one where `most` allows it. Where a window of four reaction times has too
    many requests, the whole system shrinks (load, GPUs per worker, budget, buffer, fabric, and what the law counts in
    GPUs), so that the number of workers stays; requests are then coarser on it than on the real one. That is done only
    where the fluid says that the law does not see the difference.

    Arguments:
        fleets, policies: before and after. fluid: their hard runs on the workload, recorded.
        reaction: seconds from a change of the load to a ready worker.
        most: requests served in all. seeds: realisations, at least 2 for an interval. seed: of them and the windows.

    Returns what came out, or why there is nothing, in words.
    """
    seconds, count, share = _sample(workload, fleets[0], reaction, most // (2 * seeds))
    copies = [_smaller(fleet, share) for fleet in fleets]
    laws = [_smaller_law(policy, share) for policy in policies]
    off = (
        max(_off(*them, workload, objective, share) for them in zip(copies, laws, fluid, strict=True))
        if share < 1
        else 0
    )
    if off > SAME:
        need = 2 * seeds * _most_requests(workload, seconds)
        return (
            f"{type(policies[0]).__name__} acts otherwise on a smaller copy of the system (it asks for {off:.1%} other "
            f"GPUs there), and the system itself would take {need:,.0f} requests instead of {most:,}"
        )
    windows = _windows(workload, seconds, count, seed)
    values = np.zeros((2, seeds, 3))
    served = np.zeros(2, int)
    with tqdm(total=2 * seeds * len(windows), desc="requests", unit="replay", disable=not progress or None) as bar:
        for k in range(seeds):
            for number, (start, stop) in enumerate(windows):
                part = workload.slice(start, stop).scaled(share) if share < 1 else workload.slice(start, stop)
                try:
                    requests = draw(part, _seed(seed, k, number))
                    for i, (fleet, law, run) in enumerate(zip(copies, laws, fluid, strict=True)):
                        begun = _begun(fleet, run, start, share)
                        got = replay(begun, requests, law, seed=_seed(seed, k, number))
                        values[i, k] += _values(got, fleet, objective, share)
                        served[i] += got.arrived
                        bar.update()
                except InputError as error:
                    return str(error).rstrip(".")
    values[..., 2] /= len(windows)
    cost, paid, attainment = (Estimate.of((values[1] - values[0])[:, i].tolist(), CONFIDENCE) for i in range(3))
    before, after = (_named(v.mean(axis=0)) for v in values)
    after_attainment = Estimate.of(values[1, :, 2].tolist(), CONFIDENCE)
    return Requested(
        tuple(windows), seeds, int(served.max()), share, before, after, cost, paid, attainment, after_attainment
    )


def _named(values: np.ndarray) -> dict[str, float]:
    return {"cost": float(values[0]), "paid": float(values[1]), "attainment": float(values[2])}


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _most_requests(workload: Workload, seconds: float) -> float:
    """Requests of the busiest window of that length."""
    n = min(max(1, round(seconds / workload.window)), workload.rate.size)
    total = np.concatenate([[0.0], np.cumsum(workload.rate)])
    return float((total[n:] - total[:-n]).max()) * workload.window


def _sample(workload: Workload, fleet: Fleet, reaction: float, most: int) -> tuple[float, int, float]:
    """Length of a window [s], number of windows, and the size of the copy, for `most` requests per seed."""
    least = min(max(REACTIONS * reaction, SHORTEST), LONGEST, workload.duration)
    for count in (2, 1):
        peak = _most_requests(workload, least) / least
        seconds = min(max(most / (count * peak), least), LONGEST)
        if seconds >= workload.duration / 2:  # two windows would be the whole
            count, seconds = 1, workload.duration if most / peak >= workload.duration else seconds
        seconds = max(round(seconds / workload.window), 1) * workload.window
        share = min(1.0, most / (count * _most_requests(workload, seconds)))
        if share >= SMALLEST_FOR_TWO or count == 1:
            break
    # Whole batch slots per worker: the replay cuts what is left over.
    slots = float(fleet.plant.batch) * float(fleet.per_worker[1])
    share = min(1.0, math.ceil(share * slots - 1e-9) / slots)
    return min(seconds, workload.duration), count, share


def _windows(workload: Workload, seconds: float, count: int, seed: int) -> list[tuple[float, float]]:
    """The busiest window by requests, then random ones that do not overlap what is chosen, on whole windows."""
    n = max(1, round(seconds / workload.window))
    total = np.concatenate([[0.0], np.cumsum(workload.rate)])
    sums = total[n:] - total[:-n] if n <= workload.rate.size else total[-1:]
    chosen = [int(np.argmax(sums))]
    order = np.random.default_rng([seed, 1]).permutation(sums.size)
    for first in order.tolist():
        if len(chosen) == count:
            break
        if sums[first] > 0 and all(abs(first - other) >= n for other in chosen):
            chosen.append(first)
    return [(k * workload.window, min((k + n) * workload.window, workload.duration)) for k in chosen]


def _smaller(fleet: Fleet, share: float) -> Fleet:
    """The system at `share` of its size: as many workers, of fewer GPUs; a fluid cannot tell the two apart."""
    if share == 1:
        return fleet
    plant = fleet.plant
    changes = {n: float(getattr(plant, n)) * share for n in ("capacity", "fabric", "prefill_worker", "decode_worker")}
    small = fleet.with_plant(**changes)
    size = lambda f: (f.budget, f.initial_gpus)  # noqa: E731
    return eqx.tree_at(size, small, tuple(float(x) * share for x in size(fleet)))


def _smaller_law(policy: Policy, share: float) -> Policy:
    def shrink(path: Any, leaf: Any) -> Any:
        return float(leaf) * share if path and getattr(path[-1], "name", "") in IN_GPUS else leaf

    return jax.tree_util.tree_map_with_path(shrink, policy) if share < 1 else policy


def _begun(fleet: Fleet, fluid: Run, start: float, share: float) -> Fleet:
    """The fleet with the workers that the fluid's law has at that time."""
    index = round(start / fleet.interval) - 1
    if index < 0 or fluid.trajectory is None:
        return fleet
    t = fluid.trajectory
    gpus = float(t.requested_gpus[index]) * share
    prefill, decode = float(t.prefill_gpus[index]), float(t.decode_gpus[index])
    floor = float(fleet.min_workers) * sum(map(float, fleet.per_worker))
    ratio = prefill / (prefill + decode) if prefill > 0 and decode > 0 else float(fleet.initial_ratio)
    values = (min(max(gpus, floor), float(fleet.budget)), ratio)
    return eqx.tree_at(lambda f: (f.initial_gpus, f.initial_ratio), fleet, values)


def _off(copy: Fleet, law: Policy, fluid: Run, workload: Workload, objective: Objective, share: float) -> float:
    """How far what the law asks for in the copy is from its share of the whole, in the fluid: mean over mean."""
    small, whole = simulate(copy, workload.scaled(share), law, objective).trajectory, fluid.trajectory
    assert small is not None
    assert whole is not None
    asked = np.asarray(whole.requested_gpus)
    return float(np.mean(np.abs(np.asarray(small.requested_gpus) / share - asked)) / np.mean(asked))


def _values(run: RequestRun, fleet: Fleet, objective: Objective, share: float) -> np.ndarray:
    """Cost and what is paid [GPU-hours of the whole system], and the SLO attainment: the objective, on whole requests.

    A request over a limit counts once per limit, one that is not known to be late does not count; a prefill worker that
    holds a finished request is stalled. In a copy a request's own prefill and transfer take 1 / share as long: what is
    judged is their time in the whole system.
    """
    first = np.isfinite(run.first_token)
    served = np.where(first, run.prefill_end, 0.0) - np.where(first, run.prefill_start, 0.0)
    served += np.where(first, run.transfer_end, 0.0) - np.where(first, run.admitted, 0.0)
    waited = np.minimum(run.first_token, run.end) - run.requests.arrival - (1.0 - share) * served
    late, slow = waited > float(objective.ttft), run.tpot > float(objective.tpot)
    finished, lost = np.isfinite(run.finish), np.isfinite(run.lost_at)
    known = finished | lost | late
    attained = float(np.mean((finished & ~late & ~slow)[known])) if known.any() else 1.0

    stamps = np.minimum(np.minimum(run.handoff, run.lost_at), run.end)
    held = np.where(np.isfinite(run.prefill_end), stamps - np.minimum(run.prefill_end, run.end), 0.0)
    unit = float(fleet.request_gpu_seconds) / 3600.0
    paid = float(objective.gpu_hour_weight) * run.gpu_hours + share * float(objective.action_weight) * run.actions
    late_cost = float(objective.late_weight) * unit * float(np.sum(late) + np.sum(slow))
    lost_cost = float(objective.lost_weight) * unit * run.lost
    stalled = float(objective.stalled_weight) * float(fleet.per_worker[0]) * float(np.maximum(held, 0.0).sum()) / 3600.0
    return np.array([(paid + late_cost + lost_cost + stalled) / share, paid / share, attained], dtype=float)


def _interval(x: Estimate) -> str:
    return f"{x.low:.3g} to {x.high:.3g}"


def _to_dict(x: Estimate) -> dict[str, Any]:
    finite = lambda v: v if math.isfinite(v) else None  # noqa: E731
    return {"mean": x.mean, "low": finite(x.low), "high": finite(x.high), "values": list(x.values)}
