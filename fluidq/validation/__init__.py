"""Validation on published deployments: is the split the one that the balance predicts, and is the rate?

`validate(path)` reads a table of deployments (one row per published operating point) and answers twice. *Balance*:
phi from the rates of a row against the split that was chosen. *Leave one out*: the request rate of a row from the
other rows of its group, its worker counts and its concurrency, without anything measured at the row itself.
`published_checks()` holds figures of further sources that need no table.
"""

from fluidq.validation._closed_loop import Loop as Loop
from fluidq.validation._closed_loop import Point as Point
from fluidq.validation._closed_loop import closed_loop as closed_loop
from fluidq.validation._published import Check as Check
from fluidq.validation._published import published_checks as published_checks
from fluidq.validation._report import Report as Report
from fluidq.validation._report import validate as validate
from fluidq.validation._rows import Row as Row
from fluidq.validation._rows import read_rows as read_rows

__all__ = ["Check", "Loop", "Point", "Report", "Row", "closed_loop", "published_checks", "read_rows", "validate"]
