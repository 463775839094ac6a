"""What the published figures of the systems are computed from: inputs as published, formulas and catalogue."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidq import catalog
from fluidq.deployment import Deployment
from fluidq.formulas import (
    aggregated,
    balance,
    requests,
    rounding,
    stages,
    transfer,
)
from fluidq.kv import kv_bytes
from fluidq.units import Number

GIB = 2.0**30

# --- what the figures are computed from ---------------------------------------------------------------------------


@functools.cache
def kappa(model: str, dtype: str = "bf16") -> float:
    shape = catalog.model(model).architecture
    assert shape is not None
    return float(np.asarray(kv_bytes(shape, dtype).used))


@functools.cache
def glm() -> Deployment:
    return Deployment.preset("GLM-5.2", "B200", nic="400Gbps")


def of_glm(formula: Callable[..., Any], **rest: Number) -> float:
    d = glm()
    return float(formula(r_P=d.r_P, kappa_store=d.kappa_store, **rest))


def splitwise(t_P: Number, osl: Number, context: Number) -> float:
    """Prefill machines of 40 that balance (BLOOM-176B on machines of 8 H100, 640 GB, 352.5 GB of weights)."""
    room = {"H": 640e9, "W": 352.5e9, "A_D": 0.0, "kappa_store": kappa("BLOOM-176B"), "theta_ctx": context}
    t_D = osl * 35.5e-3 / float(requests.hbm_batch(**room))
    return 40 * float(requests.balance_ratio_work(t_P=t_P, t_D=t_D))


def grid(machines: Number, step: int = 5) -> float:
    return float(step * round(machines / step))


DEEPSEEK = {"isl": 608e9, "osl": 168e9, "r_P": 73_700.0, "B": 14_800.0, "t_step": 1.0}
DAY = 86_400.0


def deepseek_nodes() -> float:
    """Nodes whose balanced throughput is the day's traffic, taken as one request a day."""
    return 1 / DAY / float(balance.balanced_throughput(N=1.0, **DEEPSEEK))


def deepseek_income() -> float:
    prices = {"price_hit": 0.14e-6, "price_miss": 0.55e-6, "price_out": 2.19e-6}
    return float(requests.income_per_request(isl=608e9, osl=168e9, hit=342 / 608, **prices))


# Low-latency kernels: 128 tokens, 8 experts, width 7168; expert parallelism -> (time [s], published [GB/s]).
DISPATCH = {8: (77, 98), 16: (118, 63), 32: (155, 48), 64: (173, 43), 128: (192, 39), 256: (194, 39)}
COMBINE = {8: (114, 127), 16: (195, 74), 32: (273, 53), 64: (314, 46), 128: (369, 39), 256: (360, 40)}


def deepep(formula: Callable[..., Any], micros: Number) -> float:
    return float(formula(tokens=128, top_k=8, hidden=7168, t_exchange=micros * 1e-6)) / 1e9


def crossing(speedup: Number) -> float:
    """Offered load R D at which `speedup` is just the one that tensor parallelism needs (D24)."""
    low, high = 0.0, 1.999
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(aggregated.speedup_needed(offered=middle)) < speedup else (low, middle)
    return low


# arXiv 2603.04716, DeepSeek-V3.1 on eight H200 with SGLang: 5 million tokens a minute, 6144 in, 512 out.
LAM = 5e6 / 60 / (6144 + 512)


def plan_rate() -> float:
    return float(rounding.planned_prefill_rate(r_P=28_300.0, isl=6144, g_P=1.0, prompt_time=1.9))


def plan_ratio() -> float:
    phi = float(requests.balance_ratio_work(t_P=6144 / plan_rate(), t_D=512 / 1700))
    return phi / (1 - phi)


def plan_capacity(prefill: int, decode: int) -> float:
    pools = {"t_P": 6144 / plan_rate(), "t_D": 512 / 1700}
    return float(rounding.two_pool_throughput(n_P=prefill, n_D=decode, **pools)) * (6144 + 512) * 60 / 1e6


def crossover(billions: Number, kappa: Number, mfu: Number) -> float:
    return float(transfer.crossover_nic(r_P=mfu * 989e12 / (2e9 * billions), kappa_store=kappa)) * 8 / 1e9


def mha(layers: int, width: int) -> float:
    return 2.0 * layers * width * 2


def micro_batches(hop: Number) -> float:
    return float(math.ceil(stages.micro_batches_needed(t_attention=1.0, t_ffn=1.0, t_hop=hop)))


def recipe(hit: Number) -> float:
    """Prefill share of GLM-5 on B200 at 64K in, 400 out, with the modelled rates and what fits of an fp8 cache."""
    from fluidq.sizing import size

    m = catalog.model("GLM-5.2")
    rate = next(p.figure.value for p in m.prefill if p.gpu == "B200")
    d = Deployment.preset(
        "GLM-5.2", "B200", r_P=rate, kv_bytes_per_token=47_700.0, gpus_per_prefill_worker=4, gpus_per_decode_worker=8
    )
    return size(d, 64_000, 400, 1200, hit=hit, batch=math.inf).phi


def largest_sm_gain(saturation: Number) -> float:
    """The most that a split GPU gains over temporal sharing: at the phi where both sides take as long."""
    phi = (1 - saturation) / (2 - saturation)
    return float(aggregated.sm_split_gain(phi=phi, saturation=saturation))


def sm(count: int, grain: int) -> float:
    return float(rounding.sm_rounding_bound(sm_count=float(count), sm_grain=float(grain)))
