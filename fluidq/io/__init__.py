"""Files in, objects out; the core never imports this package."""

from fluidq.io.traces import ReadReport as ReadReport
from fluidq.io.traces import read_trace as read_trace

__all__ = ["ReadReport", "read_trace"]
