"""The five workloads of the tuning benchmarks, each on the fleet of the embedded default, and the laws compared."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluidq.fleet import Fleet
from fluidq.io.traces import read_trace
from fluidq.laws import law
from fluidq.objective import Objective
from fluidq.policies import Policy
from fluidq.scenario import build_case
from fluidq.space import Space, make_space
from fluidq.tune import Moves
from fluidq.workload import Workload, default_workload
from tests.helpers import DATA

INTERVAL = 15.0
# The hour-long records end at slightly different times; cut to one length they share their compilations.
HOUR = 3420.0
# Name, file in the data folder ("" for the embedded day), seconds.
RECORDS = (
    ("azure conv", "azure-llm-2023/AzureLLMInferenceTrace_conv.csv", HOUR),
    ("azure code", "azure-llm-2023/AzureLLMInferenceTrace_code.csv", HOUR),
    ("mooncake conversation", "mooncake/conversation_trace.jsonl.gz", HOUR),
    ("servegen deepseek-r1", "servegen/windows_deepseek-r1.csv", 86_400.0),
    ("embedded default", "", 86_400.0),
)
LAWS = ("dynamo", "hpa", "balance")
# HPA's target for decode is a share of the batch: the law refuses more than 1, which its search space would allow.
BOUNDS = {"hpa": {"decode.target": (0.0, 1.0)}}


@dataclass(frozen=True)
class Bench:
    """A workload with its fleet and objective."""

    name: str
    fleet: Fleet
    workload: Workload
    objective: Objective

    def law(self, name: str) -> Policy:
        """The law with its product's defaults, spelled out so that they can move."""
        return law(name, self.fleet, self.objective).spelled_out()

    @staticmethod
    def moves(name: str) -> Moves:
        """What moves in that law: all that it can, within what it accepts."""
        return Moves(bounds=BOUNDS.get(name))

    def space(self, name: str) -> Space:
        """The search space that goes with it."""
        return make_space(self.law(name), self.fleet, **self.moves(name)._asdict())


def benches(*, quick: bool = False, only: list[str] | None = None) -> Iterator[Bench | tuple[str, str]]:
    """The workloads in order; (name, reason) where one cannot be had. Quick: cut to the first 24 minutes."""
    for name, file, seconds in RECORDS:
        if only and name not in only:
            continue
        path = DATA / file
        if file and not path.exists():
            yield name, f"{file} is not in the data folder beside this checkout"
            continue
        record = read_trace(path, INTERVAL)[0] if file else default_workload(seed=0, days=1, window=INTERVAL)
        case = build_case(workload=record.slice(0.0, 1440.0 if quick else seconds))
        yield Bench(name, case.fleet, case.workload, case.objective)


def other_draw(workload: Workload, number: int) -> Workload:
    """The same process on another day: regenerated where it is a generator, else redrawn around the record's level."""
    return workload.reseeded(int(np.random.SeedSequence([2026, number]).generate_state(1)[0]))
