"""Autoscaling policies, one file per law, in the products' own names and defaults.

Ours are `Thresholds` and `BalanceTracking`; `facts(policy, fleet, workload)` says what a law can and cannot do.
"""

from fluidq.policies.aibrix import AIBrixAPA as AIBrixAPA
from fluidq.policies.aibrix import AIBrixKPA as AIBrixKPA
from fluidq.policies.aibrix import APATarget as APATarget
from fluidq.policies.aibrix import KPATarget as KPATarget
from fluidq.policies.balance import BalanceTracking as BalanceTracking
from fluidq.policies.base import Asked as Asked
from fluidq.policies.base import Policy as Policy
from fluidq.policies.base import Reading as Reading
from fluidq.policies.base import Tunable as Tunable
from fluidq.policies.dynamo import DynamoPlanner as DynamoPlanner
from fluidq.policies.heteroscale import HeteroScale as HeteroScale
from fluidq.policies.hpa import HPA as HPA
from fluidq.policies.hpa import HPABehavior as HPABehavior
from fluidq.policies.hpa import HPAMetric as HPAMetric
from fluidq.policies.hpa import HPAScalingPolicy as HPAScalingPolicy
from fluidq.policies.hpa import HPAScalingRules as HPAScalingRules
from fluidq.policies.hpa import HPATarget as HPATarget
from fluidq.policies.keda import KEDA as KEDA
from fluidq.policies.keda import KEDATarget as KEDATarget
from fluidq.policies.neural import Neural as Neural
from fluidq.policies.queueing_analyser import QueueingAnalyser as QueueingAnalyser
from fluidq.policies.ray_serve import RayServe as RayServe
from fluidq.policies.ray_serve import RayServeTarget as RayServeTarget
from fluidq.policies.static_ratio import StaticRatio as StaticRatio
from fluidq.policies.thresholds import PARAMETERS as PARAMETERS
from fluidq.policies.thresholds import Signals as Signals
from fluidq.policies.thresholds import Thresholds as Thresholds
from fluidq.policies.wva import WVASaturationV1 as WVASaturationV1
from fluidq.policies.wva import WVATokenCapacityV2 as WVATokenCapacityV2

__all__ = [
    "HPA",
    "KEDA",
    "PARAMETERS",
    "AIBrixAPA",
    "AIBrixKPA",
    "APATarget",
    "Asked",
    "BalanceTracking",
    "DynamoPlanner",
    "HPABehavior",
    "HPAMetric",
    "HPAScalingPolicy",
    "HPAScalingRules",
    "HPATarget",
    "HeteroScale",
    "KEDATarget",
    "KPATarget",
    "Neural",
    "Policy",
    "QueueingAnalyser",
    "RayServe",
    "RayServeTarget",
    "Reading",
    "Signals",
    "StaticRatio",
    "Thresholds",
    "Tunable",
    "WVASaturationV1",
    "WVATokenCapacityV2",
]
