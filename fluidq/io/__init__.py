"""Files in, objects out; the core never imports this package."""

from fluidq.io.benchmarks import read_benchmark as read_benchmark
from fluidq.io.prometheus import read_prometheus as read_prometheus
from fluidq.io.traces import ReadReport as ReadReport
from fluidq.io.traces import read_trace as read_trace

__all__ = ["ReadReport", "read_benchmark", "read_prometheus", "read_trace"]
