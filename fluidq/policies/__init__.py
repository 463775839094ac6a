"""Autoscaling policies, one file per law."""

from fluidq.policies.thresholds import PARAMETERS as PARAMETERS
from fluidq.policies.thresholds import Bounds as Bounds
from fluidq.policies.thresholds import Signals as Signals
from fluidq.policies.thresholds import Thresholds as Thresholds

__all__ = ["PARAMETERS", "Bounds", "Signals", "Thresholds"]
