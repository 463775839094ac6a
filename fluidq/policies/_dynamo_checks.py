"""What Dynamo's planner refuses: names that it does not know, and numbers that are out of range or in another unit."""

from typing import Any

import numpy as np
from jax.core import Tracer

from fluidq._errors import refuse, unknown
from fluidq.policies.base import check_numbers

TARGETS = ("throughput", "latency", "load", "sla")
MODES = ("disagg", "prefill", "decode")
PREDICTORS = ("arima", "constant", "holt", "kalman", "moving_average")
CLAMPS = ("no-reversal", "proportional")
_THRESHOLDS = (
    "prefill_scale_up_queue_tokens",
    "prefill_scale_down_queue_tokens",
    "decode_scale_up_kv_rate",
    "decode_scale_down_kv_rate",
)


def check_choices(p: Any) -> None:
    for kind, name, known in (
        ("optimization_target", p.optimization_target, TARGETS),
        ("budget_clamp", p.budget_clamp, CLAMPS),
    ):
        if name not in known:
            raise unknown(kind, name, known)
    if p.mode not in MODES:
        if p.mode == "agg":
            raise refuse("mode", p.mode, "disagg, prefill or decode: the plant has two pools")
        raise unknown("mode", p.mode, MODES)
    if p.load_predictor not in PREDICTORS:
        if p.load_predictor == "prophet":
            raise refuse("load_predictor", p.load_predictor, f"one of {', '.join(PREDICTORS)}: Prophet is not here")
        raise unknown("load_predictor", p.load_predictor, PREDICTORS)
    if not (p.load_based or p.throughput_based):
        raise refuse("enable_load_scaling", False, "true where enable_throughput_scaling is false: nothing would scale")
    if p.min_gpu_budget != -1:
        raise refuse("min_gpu_budget", p.min_gpu_budget, "-1 (off): a floor on GPUs is set by min_endpoint here")
    slow, fast = p.throughput_adjustment_interval_seconds, p.load_adjustment_interval_seconds
    for name, value in (("throughput_adjustment_interval_seconds", slow), ("load_adjustment_interval_seconds", fast)):
        if not 0 < value < float("inf"):
            raise refuse(name, value, "a time > 0 s")
    if fast >= slow:
        wanted = f"below throughput_adjustment_interval_seconds, which is {slow!r}"
        raise refuse("load_adjustment_interval_seconds", fast, wanted)


def check_given_numbers(p: Any) -> None:
    inf = float("inf")
    _check_scale(p, "load_scaling_down_sensitivity", "per cent, 0 to 100", 100.0)
    for name in _THRESHOLDS[2:]:
        _check_scale(p, name, "the KV use in per cent", 100.0)
    for name in ("ttft_ms", "itl_ms"):
        _check_scale(p, name, "milliseconds", 1000.0)
    if p.optimization_target == "load":
        for name in _THRESHOLDS:
            if getattr(p, name) is None:
                raise refuse(name, None, "given: target 'load' has no thresholds of its own")
    limits = {name: (0.0, inf) for name in ("kalman_q_level", "kalman_q_trend", "max_throughput_scaling_replicas")}
    limits |= {name: (0.0, inf) for name in _THRESHOLDS[:2]} | {name: (0.0, 1000.0) for name in _THRESHOLDS[2:]}
    limits |= {name: (1.0, inf) for name in ("min_endpoint", "prefill_min_endpoint", "decode_min_endpoint")}
    limits |= {"load_scaling_down_sensitivity": (0.0, 100.0), "context_length": (1.0, inf), "kalman_r": (1e-12, inf)}
    limits |= {"max_gpu_budget": (-1.0, inf), "ttft_ms": (0.0, inf), "itl_ms": (0.0, inf)}
    check_numbers(p, limits)
    for up, down in (_THRESHOLDS[:2], _THRESHOLDS[2:]):
        high, low = (_number(getattr(p, name)) for name in (up, down))
        if high is not None and low is not None and low >= high:
            raise refuse(down, low, f"below {up}, which is {high!r}")


def _check_scale(p: Any, name: str, unit: str, factor: float) -> None:
    """A value of at most 1 was meant in another unit: say which, and what to write."""
    value = _number(getattr(p, name))
    if value is not None and 0 < value <= 1:
        raise refuse(name, value, f"{unit}: write {value * factor:g} for {value:g}")


def _number(value: Any) -> float | None:
    """The number that a user typed; None for one that is not given, traced or batched."""
    if value is None or isinstance(value, Tracer) or np.ndim(value) > 0:
        return None
    return float(value)
