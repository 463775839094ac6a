"""What the catalogue holds: GPUs, models, links and measured transfers, each figure in SI with its source."""

from collections.abc import Mapping
from dataclasses import dataclass

from fluidq.kv import Architecture


@dataclass(frozen=True)
class Figure:
    """One figure: its value in SI units, what it is, and where it was published."""

    value: float
    label: str
    source: str


@dataclass(frozen=True)
class Gpu:
    """An accelerator, per GPU and one direction: dense peaks [FLOP/s] by precision, HBM [B] and [B/s], NIC [B/s].

    `scaleup` [B/s] is what it sends over NVLink or its like to the `scaleup_gpus` of its domain together; `pcie` [B/s].
    """

    name: str
    peaks: Mapping[str, Figure]
    hbm: Figure
    hbm_rate: Figure
    nic: Figure
    note: str = ""
    scaleup: Figure | None = None
    scaleup_gpus: int = 1
    pcie: Figure | None = None


@dataclass(frozen=True)
class StepFit:
    """Decode step t = a + b*B + c*B*context, with B sequences per rank of `rank_gpus` GPUs.

    `a` [s], `b` [s/seq], `c` [s/(seq tok)]; `error` is the mean relative error of the fit, `precision` that of the
    weights.
    """

    gpu: str
    label: str
    a: float
    b: float
    c: float
    error: float
    rank_gpus: int
    worker_gpus: int
    source: str
    precision: str = ""


@dataclass(frozen=True)
class PrefillRate:
    """A measured or modelled prefill rate [tok/s/GPU] on `gpu`, with weights in `precision`."""

    gpu: str
    figure: Figure
    precision: str = ""


@dataclass(frozen=True)
class Model:
    """A model: parameters, resident weights [B] by precision, KV bytes per token, step fits, prefill rates.

    `kv` holds the preset's own figure first. `kv_scan` [B/tok] and `kv_fixed` [B/seq] are what one decode step
    reads of a sequence's cache: less than what is stored where attention is sparse. `architecture` is what
    `fluidq.kv` counts from; what the files leave out was counted from it.
    """

    name: str
    params_active: Figure
    params_total: Figure
    weights: Mapping[str, Figure]
    worker_gpus: int
    kv: tuple[Figure, ...]
    kv_scan: Figure
    kv_fixed: Figure
    steps: tuple[StepFit, ...]
    prefill: tuple[PrefillRate, ...]
    architecture: Architecture | None = None


@dataclass(frozen=True)
class Link:
    """A link, one direction: `kind` is "rdma", "scaleup" or "pcie", `rate` [B/s] the rated figure."""

    name: str
    kind: str
    rate: Figure
    note: str = ""


@dataclass(frozen=True)
class Transfer:
    """A measured KV transfer: `measured` and `nominal` [B/s] for the same `scope`, `size` [B] of one transfer."""

    name: str
    software: str
    hardware: str
    scope: str
    measured: Figure
    nominal: Figure | None
    size: Figure | None
    note: str = ""

    @property
    def efficiency(self) -> float | None:
        """Measured over nominal; None where the source gives no nominal rate."""
        return None if self.nominal is None else self.measured.value / self.nominal.value
