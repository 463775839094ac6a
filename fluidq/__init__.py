"""Differentiable fluid-queue models of disaggregated prefill and decode.

The names below are what a notebook types; each is loaded when it is first used, so that importing fluidq stays quick.

>>> import fluidq as fq
>>> plan = fq.size(fq.Deployment.preset("GLM-5.2", "B200", nic="400Gbps"), isl=8192, osl=1024, gpus=64)
>>> (plan.prefill_gpus, plan.decode_gpus)
(16, 48)
"""

import importlib
from typing import TYPE_CHECKING, Any

import jax

# Seconds over days next to nanosecond steps need float64; this is the one place that asks for it.
jax.config.update("jax_enable_x64", True)

if TYPE_CHECKING:
    from fluidq import events as events
    from fluidq import policies as policies
    from fluidq import topologies as topologies
    from fluidq import waiting as waiting
    from fluidq import watched as watched
    from fluidq._errors import InputError as InputError
    from fluidq._xla import compiler_options as compiler_options
    from fluidq.certificate import certify as certify
    from fluidq.clairvoyant import clairvoyant as clairvoyant
    from fluidq.compare import compare as compare
    from fluidq.deployment import Deployment as Deployment
    from fluidq.fleet import Fleet as Fleet
    from fluidq.io.traces import read_trace as read_trace
    from fluidq.objective import Objective as Objective
    from fluidq.plant import Plant as Plant
    from fluidq.policies import Thresholds as Thresholds
    from fluidq.queue import Queue as Queue
    from fluidq.replay import replay as replay
    from fluidq.scenario import build_case as build_case
    from fluidq.scenario import read_scenario as read_scenario
    from fluidq.sensitivity import sensitivity as sensitivity
    from fluidq.simulate import simulate as simulate
    from fluidq.sizing import bounds as bounds
    from fluidq.sizing import size as size
    from fluidq.study import read_sweep as read_sweep
    from fluidq.study import study as study
    from fluidq.sweep import sweep as sweep
    from fluidq.tune import Moves as Moves
    from fluidq.tune import Settings as Settings
    from fluidq.tune import tune as tune
    from fluidq.workload import Workload as Workload
    from fluidq.workload import default_workload as default_workload

_HOMES = {
    "Deployment": "deployment",
    "Fleet": "fleet",
    "InputError": "_errors",
    "Moves": "tune",
    "Objective": "objective",
    "Plant": "plant",
    "Queue": "queue",
    "Settings": "tune",
    "Thresholds": "policies",
    "Workload": "workload",
    "bounds": "sizing",
    "build_case": "scenario",
    "certify": "certificate",
    "compiler_options": "_xla",
    "default_workload": "workload",
    "read_scenario": "scenario",
    "read_sweep": "study",
    "read_trace": "io.traces",
    "size": "sizing",
}
_VERBS = (
    "clairvoyant",
    "compare",
    "replay",
    "sensitivity",
    "simulate",
    "study",
    "sweep",
    "tune",
)  # modules that can be called (see _callable)
_MODULES = ("events", "policies", "topologies", "waiting", "watched")
__all__ = sorted([*_HOMES, *_VERBS, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _VERBS or name in _MODULES:
        return importlib.import_module(f"fluidq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fluidq' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fluidq.{home}"), name)


def __dir__() -> list[str]:
    return __all__
