"""The laws by name, each with its product's defaults, set up for a fleet.

A default that is a size of the fleet has no meaning elsewhere and is taken from the fleet: the GPU budget; the most
replicas of a pool, its share of the budget at the fleet's initial ratio (a law per pool knows nothing of the other, and
would else take its GPUs); and targets per worker: a decode worker is meant to run at `LOAD` of its batch slots, and a
prefill worker to have `QUEUE` requests waiting, as in the production-stack tutorial of vLLM.
"""

from collections.abc import Callable
from typing import NamedTuple

from fluidq._errors import unknown
from fluidq.fleet import Fleet
from fluidq.objective import Objective
from fluidq.policies.base import Policy, split

QUEUE = 5.0
LOAD = 0.8


class Law(NamedTuple):
    """A law by name: what it is, in one line, and how it is set up for a fleet and its limits."""

    words: str
    make: Callable[[Fleet, Objective], Policy]


def _slots(fleet: Fleet) -> float:
    return LOAD * float(fleet.plant.batch * fleet.plant.decode_worker)


def _most(fleet: Fleet) -> tuple[float, float]:
    """Most replicas of each pool: whole workers in its share of the budget."""
    prefill, decode = split(fleet.budget, fleet.initial_ratio, fleet, None)
    return float(prefill), float(decode)


def _thresholds(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.thresholds import Thresholds

    return Thresholds(ratio=fleet.initial_ratio, step=float(sum(map(float, fleet.per_worker))))


def _balance(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.balance import BalanceTracking

    return BalanceTracking(itl=objective.tpot)


def _dynamo(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.dynamo import DynamoPlanner

    return DynamoPlanner(max_gpu_budget=float(fleet.budget))


def _dynamo_sla(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.dynamo import DynamoPlanner

    return DynamoPlanner(
        optimization_target="sla",
        enable_load_scaling=True,
        load_predictor="kalman",
        ttft_ms=1e3 * float(objective.ttft),
        itl_ms=1e3 * float(objective.tpot),
        max_gpu_budget=float(fleet.budget),
    )


def _hpa(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.hpa import HPA, HPATarget

    prefill, decode = _most(fleet)
    return HPA(
        prefill=HPATarget("queue_length", QUEUE, maxReplicas=prefill),
        decode=HPATarget("batch_usage", LOAD, type="Pods", maxReplicas=decode),
    )


def _keda(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.keda import KEDA, KEDATarget

    prefill, decode = _most(fleet)
    return KEDA(
        prefill=KEDATarget("queue_length", QUEUE, minReplicaCount=1, maxReplicaCount=prefill),
        decode=KEDATarget("running", _slots(fleet), minReplicaCount=1, maxReplicaCount=decode),
    )


def _wva_v1(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.wva import WVASaturationV1

    return WVASaturationV1()


def _wva_v2(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.wva import WVATokenCapacityV2

    return WVATokenCapacityV2()


def _ray(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.ray_serve import RayServe, RayServeTarget

    prefill, decode = _most(fleet)
    return RayServe(
        prefill=RayServeTarget(max_replicas=prefill),
        decode=RayServeTarget(target_ongoing_requests=_slots(fleet), max_replicas=decode),
    )


def _apa(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.aibrix import AIBrixAPA, APATarget

    prefill, decode = _most(fleet)
    return AIBrixAPA(
        prefill=APATarget("queue_length", QUEUE, maxReplicas=prefill),
        decode=APATarget("running", _slots(fleet), maxReplicas=decode),
    )


def _kpa(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.aibrix import AIBrixKPA, KPATarget

    prefill, decode = _most(fleet)
    return AIBrixKPA(
        prefill=KPATarget("queue_length", QUEUE, maxReplicas=prefill),
        decode=KPATarget("running", _slots(fleet), maxReplicas=decode),
    )


def _kpa_intended(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.aibrix import AIBrixKPA, KPATarget

    prefill, decode = _most(fleet)
    form = "as intended"
    return AIBrixKPA(
        prefill=KPATarget("queue_length", QUEUE, maxReplicas=prefill, form=form),
        decode=KPATarget("running", _slots(fleet), maxReplicas=decode, form=form),
    )


def _heteroscale(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.heteroscale import HeteroScale

    return HeteroScale()


def _static(fleet: Fleet, objective: Objective) -> Policy:
    from fluidq.policies.static_ratio import StaticRatio

    return StaticRatio()


LAWS: dict[str, Law] = {
    "thresholds": Law("both pools along one ratio, by thresholds on wait and load", _thresholds),
    "balance": Law("balance tracking: joint, counts what starts, sizes for load and backlog (ours)", _balance),
    "dynamo": Law("NVIDIA Dynamo planner, target throughput (its default)", _dynamo),
    "dynamo-sla": Law("NVIDIA Dynamo planner, target sla: throughput floor and load-based steps", _dynamo_sla),
    "wva-v1": Law("llm-d Workload Variant Autoscaler, saturation, through its chart's HPA", _wva_v1),
    "wva-v2": Law("llm-d Workload Variant Autoscaler, token capacity", _wva_v2),
    "hpa": Law("Kubernetes HPA: queue length for prefill, use of the batch for decode", _hpa),
    "keda": Law("KEDA: queue length for prefill, running requests for decode", _keda),
    "ray-serve": Law("Ray Serve: ongoing requests per replica", _ray),
    "aibrix-apa": Law("AIBrix PodAutoscaler, APA", _apa),
    "aibrix-kpa": Law("AIBrix PodAutoscaler, KPA as coded (the mean over pods, not their sum)", _kpa),
    "aibrix-kpa-intended": Law("AIBrix PodAutoscaler, KPA with the sum over pods", _kpa_intended),
    "heteroscale": Law("HeteroScale: decode tokens/s moves both pools at a fixed ratio", _heteroscale),
    "static": Law("no scaling: sized once, for the busiest ten minutes", _static),
}


def law(name: str, fleet: Fleet, objective: Objective | None = None) -> Policy:
    """The law of that name, set up for the fleet. Raises InputError for an unknown name, with the nearest one."""
    if name not in LAWS:
        raise unknown("policy", name, LAWS)
    return LAWS[name].make(fleet, objective or Objective())
