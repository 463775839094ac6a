"""Every law on three public traces, and the threshold law tuned on each.

The hour-long traces are cut to the same whole number of ticks, so that each law compiles once for both. The load of
each is scaled to the same share of the budget as on the embedded day.
"""

from typing import Any

import numpy as np

from fluidq.deployment import mean_context
from fluidq.io.traces import read_trace
from fluidq.scenario import DEFAULTS, Case, build_case
from fluidq.simulate import load_of
from fluidq.tune import tune
from fluidq.workload import Workload
from paper.experiments._laws import compared, curve
from paper.measure import Experiment, data_folder

TICK = 15.0
HOUR = 230  # ticks that both hour-long traces fill
TRACES = {
    "azure": ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", HOUR),
    "mooncake": ("mooncake/conversation_trace.jsonl.gz", HOUR),
    "servegen": ("servegen/windows_deepseek-r1.csv", None),
}
SEARCH = {"steps": 30, "starts": 2, "realisations": 2, "unseen": 8}
SHOWN = ("balance", "thresholds", "heteroscale")


def read(name: str) -> Workload:
    """The trace in windows of a control interval."""
    file, ticks = TRACES[name]
    load, _ = read_trace(data_folder() / file, TICK)
    return load if ticks is None else load.slice(0.0, ticks * TICK)


def case_of(name: str) -> Case:
    """The fleet of the embedded day under this trace."""
    return build_case({"tune": SEARCH}, workload=read(name))


def compute() -> dict[str, Any]:
    """Per trace: the laws, the bound, and the threshold law before and after a short search."""
    out: dict[str, Any] = {"tick": TICK, "load share": DEFAULTS["workload"]["load_share"]}
    for name in TRACES:
        case = case_of(name)
        found, table, bound = compared(case)
        result = tune(case.fleet, case.workload, case.policy, case.objective, case.settings, progress=False)
        change = result.unseen_after - result.unseen_before
        found["tuned"] = {
            **{key: float(x) for key, x in result.hard_after.items()},
            "unseen before": float(result.unseen_before.mean()),
            "unseen after": float(result.unseen_after.mean()),
            "unseen better": int((change < 0).sum()),
            "unseen": len(change),
        }
        if name == "servegen":
            found["curves"] = curves(case, table, bound)
        out[name] = found
    return out


def curves(case: Case, table: Any, bound: Any) -> dict[str, Any]:
    """The day as it is drawn: GPUs that the load needs of each pool, and ready GPUs under some laws and the bound."""
    load = load_of(case.workload, case.fleet.interval)
    plant, dt = case.fleet.plant, case.fleet.interval
    context = mean_context(case.workload.mean_isl, case.workload.mean_osl)
    step = np.asarray(case.deployment.t_step(case.deployment.batch, context))
    out = {
        "hours": curve(np.arange(len(load.requests)) * dt / 3600.0),
        "prefill demand": curve(np.asarray(load.computed) / dt / np.asarray(plant.r_P)),
        "decode demand": curve(np.asarray(load.output) / dt * step / np.asarray(plant.batch)),
        "bound": {"prefill": curve(bound.prefill_gpus), "decode": curve(bound.decode_gpus)},
    }
    for name in SHOWN:
        run = table.runs[name].trajectory
        out[name] = {"prefill": curve(run.prefill_gpus), "decode": curve(run.decode_gpus)}
    return out


EXPERIMENT = Experiment(
    "traces",
    "every law and a tuned one on traces",
    __name__,
    compute,
    tuple(file for file, _ in TRACES.values()),
)
