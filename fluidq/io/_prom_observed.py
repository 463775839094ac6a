"""What Prometheus knows of a fleet: its load, what was measured, and where it stands now."""

from dataclasses import dataclass

from fluidq._errors import refuse
from fluidq.measurements import Measurements
from fluidq.plant import Contents, PlantState
from fluidq.workload import Workload


@dataclass(frozen=True)
class State:
    """What the fleet held at the end of the data: the start of a simulation.

    Times in Unix seconds; requests and workers as numbers, None where no series says; lengths in tokens.
    """

    time: float
    prefill_workers: float | None
    decode_workers: float | None
    waiting: float | None
    buffered: float | None
    running: float | None
    kv_use: float | None
    isl: float | None
    isl_computed: float | None
    osl: float | None

    def plant_state(self) -> PlantState:
        """The stores of the plant with these requests at these mean lengths; what is not known is empty.

        Raises `InputError` where a store holds requests whose lengths no series gives.
        """
        counts = {name: getattr(self, name) or 0.0 for name in ("waiting", "buffered", "running")}
        if any(counts.values()) and (self.isl is None or self.osl is None):
            raise refuse("the mean lengths of the requests", None, "known: export the input and output token series")
        isl, osl = self.isl or 0.0, self.osl or 0.0
        computed = isl if self.isl_computed is None else self.isl_computed

        def holding(n: float) -> Contents:
            return Contents(n, n * isl, n * osl)

        return PlantState(
            backlog=holding(counts["waiting"]),
            computed=counts["waiting"] * computed,
            buffer=holding(counts["buffered"]),
            active=holding(counts["running"]),
        )


@dataclass(frozen=True)
class Observed:
    """What Prometheus knows of a fleet.

    `workload` is None where no series gives rates and lengths (a note says which is missing). `load` says what its
    rate is: "offered" (what arrived) or "served" (what was finished, which in overload is less).
    `origin` is the Unix time [s] of time 0; times are subtracted from it in float64.
    """

    measurements: Measurements
    workload: Workload | None
    state: State
    load: str | None
    origin: float
    notes: tuple[str, ...]
