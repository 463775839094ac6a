"""Whether a fleet could reach an SLO attainment at all, and which limit stands in the way."""

import jax.numpy as jnp
import numpy as np

from fluidq._errors import refuse
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.plant import Arrivals, latency
from fluidq.simulate import Load
from fluidq.units import format


def check_attainment(fleet: Fleet, load: Load, objective: Objective, wanted: float) -> None:
    """Raise InputError where no policy can reach the attainment `wanted`, naming the limit.

    Bounds from the formulas: TTFT of an empty plant (D24 without its wait) and TPOT of an empty batch (D07's t_step at
    no sequences), on each tick's own lengths; and the share of the requests that the whole budget can serve in the
    time, at D01's GPU time per request. Several classes are judged on TTFT and TPOT only.
    """
    n = np.asarray(load.requests)
    if not n.sum() > 0:
        return
    plant, budget = fleet.plant, float(fleet.budget)
    arrivals = Arrivals(*(jnp.reshape(part, -1) for part in load))
    felt = latency(plant.empty(), arrivals, budget, budget, plant, plant.t_step_a)
    over_ttft, over_tpot = (np.asarray(x) for x in objective.late_share(felt.ttft, felt.tpot))
    weights = n.reshape(-1) / n.sum()
    in_ttft, in_tpot = float(weights @ (1.0 - over_ttft)), float(1.0 - over_tpot)
    if in_ttft * in_tpot < wanted:
        if in_tpot <= in_ttft:
            got, limit = in_tpot, format(float(objective.tpot), "seconds")
            cause = (
                f"tpot = {limit}: alone in its batch a sequence takes {format(float(felt.tpot), 'seconds')} per token"
            )
        else:
            got, limit = in_ttft, format(float(objective.ttft), "seconds")
            mean = format(float(weights @ np.asarray(felt.ttft)), "seconds")
            cause = f"ttft = {limit}: without any queue prefill, transfer and first step take {mean} on average"
        raise refuse("tune.attainment", wanted, f"at most {in_ttft * in_tpot:.3f}; {got:.3f} are within {cause}")
    served = budget * len(n) * fleet.interval / float(fleet.request_gpu_seconds * n.sum())
    if n.ndim == 1 and served < wanted:
        cause = f"the whole budget of {budget:g} GPUs serves {served:.1%} of the requests in this time"
        raise refuse("tune.attainment", wanted, f"at most {served:.3f}: {cause}")
