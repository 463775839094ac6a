"""Files in, objects out; the core never imports this package."""

from fluidq.io.benchmarks import read_benchmark as read_benchmark
from fluidq.io.policies import read_policy as read_policy
from fluidq.io.policies import write_policy as write_policy
from fluidq.io.prometheus import read_prometheus as read_prometheus
from fluidq.io.tables import Inspection as Inspection
from fluidq.io.tables import inspect_file as inspect_file
from fluidq.io.traces import ReadReport as ReadReport
from fluidq.io.traces import read_trace as read_trace

__all__ = [
    "Inspection",
    "ReadReport",
    "inspect_file",
    "read_benchmark",
    "read_policy",
    "read_prometheus",
    "read_trace",
    "write_policy",
]
