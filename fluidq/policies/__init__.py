"""Autoscaling policies, one file per law."""

from fluidq.policies.base import Asked as Asked
from fluidq.policies.base import Policy as Policy
from fluidq.policies.base import Reading as Reading
from fluidq.policies.base import Tunable as Tunable
from fluidq.policies.thresholds import PARAMETERS as PARAMETERS
from fluidq.policies.thresholds import Signals as Signals
from fluidq.policies.thresholds import Thresholds as Thresholds

__all__ = ["PARAMETERS", "Asked", "Policy", "Reading", "Signals", "Thresholds", "Tunable"]
