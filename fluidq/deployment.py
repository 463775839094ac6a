"""A deployment: rates, sizes and links of the two pools, from the catalogue or from the user's own figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fluidq import catalog
from fluidq._errors import refuse, unknown
from fluidq._numerics import Scalar
from fluidq.catalog import Figure
from fluidq.formulas import requests
from fluidq.units import Number, Quantity, format, si

# Share of HBM that resident weights may take before the preset spreads them over twice the GPUs.
_WEIGHT_SHARE = 0.75


def mean_context(isl: Number, osl: Number) -> float:
    """Mean context of a decode step [tok] where every request has these lengths: isl + (osl - 1)/2 (D05).

    The decode pool runs `osl` steps; step j attends isl + j tokens. Below one output token the context is `isl`.

    >>> mean_context(8192, 1024)
    8703.5
    """
    return float(requests.mean_context_fixed(isl=isl, osl=osl))


@dataclass(frozen=True)
class Deployment:
    """Two pools and the link between them. All fields in SI units, rates per GPU; `sources` says where each is from.

    Args:
        model, gpu: names, for people.
        r_P: prefill rate [computed tok/s/GPU].
        kappa_store: KV bytes stored and transferred per token [B/tok].
        t_step_a, t_step_b, t_step_c: decode step a + b*B + c*B*context [s], [s/seq], [s/(seq tok)].
        batch: decode sequences per GPU, B.
        nic: link of one GPU, one direction [B/s]; may be infinite.
        fabric: what the whole fabric carries [B/s]; infinite where it is not a limit.
        gpus_per_prefill_worker, gpus_per_decode_worker: GPUs of one worker.
        hbm: memory of one GPU [B].
        weights: resident weights of one worker, spread evenly over its GPUs [B].
        sources: field name (`t_step` for its coefficients) -> the figure behind it, with what it is and where from.
        alternatives: field name -> other published figures for it.

    Raises:
        InputError: a field out of its range, or weights that do not fit in HBM (by how much, and what would).
    """

    model: str
    gpu: str
    r_P: Number
    kappa_store: Number
    t_step_a: Number
    t_step_b: Number
    t_step_c: Number
    batch: Number
    nic: Number
    hbm: Number
    weights: Number = 0.0
    fabric: Number = math.inf
    gpus_per_prefill_worker: Number = 1
    gpus_per_decode_worker: Number = 1
    sources: Mapping[str, Figure] = field(default_factory=dict, compare=False, repr=False)
    alternatives: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        bounds = {  # dimension, least value, value to exceed, may be infinite
            "r_P": ("tokens/s", None, 0.0, False),
            "kappa_store": ("bytes/token", None, 0.0, False),
            "t_step_a": ("seconds", 0.0, None, False),
            "t_step_b": ("seconds", 0.0, None, False),
            "t_step_c": ("seconds", 0.0, None, False),
            "batch": ("1", None, 0.0, False),
            "nic": ("bytes/s", None, 0.0, True),
            "hbm": ("bytes", None, 0.0, True),
            "weights": ("bytes", 0.0, None, False),
            "fabric": ("bytes/s", None, 0.0, True),
        }
        for name, (dimension, minimum, above, infinite) in bounds.items():
            given = getattr(self, name)
            value = si(given, dimension, name, minimum, above)
            if math.isinf(value) and not infinite:
                raise refuse(name, given, "a finite number")
            object.__setattr__(self, name, value)
        for name in ("gpus_per_prefill_worker", "gpus_per_decode_worker"):
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value) or value < 1:
                raise refuse(name, value, "a whole number of GPUs >= 1")
            object.__setattr__(self, name, int(value))
        if self.t_step_a + self.t_step_b + self.t_step_c <= 0:
            raise refuse("t_step_a", self.t_step_a, "> 0 s where t_step_b and t_step_c are 0 (a step takes time)")
        for name in ("gpus_per_prefill_worker", "gpus_per_decode_worker"):
            share = self.weights / getattr(self, name)
            if share >= self.hbm:
                need = math.floor(self.weights / self.hbm) + 1
                raise refuse(
                    name,
                    getattr(self, name),
                    f"at least {need}: {format(share, 'bytes')} of weights per GPU are "
                    f"{format(share - self.hbm, 'bytes')} more than its {format(self.hbm, 'bytes')} of HBM",
                )
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        object.__setattr__(self, "alternatives", MappingProxyType(dict(self.alternatives)))

    def t_step(self, batch: Scalar, context: Scalar) -> Scalar:
        """Time of one decode step [s] with `batch` sequences per GPU at mean `context` [tok]: a + b*B + c*B*context."""
        law = {"t_step_a": self.t_step_a, "t_step_b": self.t_step_b, "t_step_c": self.t_step_c}
        return requests.step_time(**law, B=batch, theta_ctx=context)

    def free_hbm(self) -> float:
        """HBM of a decode GPU that weights leave [B]; activations are not subtracted."""
        return self.hbm - self.weights / self.gpus_per_decode_worker

    def kv_per_gpu(self, context: Number) -> float:
        """KV of a full decode batch at that mean context [B per GPU]: B * context * kappa."""
        return self.batch * context * self.kappa_store

    def most_sequences(self, context: Number) -> int:
        """The largest batch per GPU whose KV at mean `context` [tok] > 0 fits beside the weights (D07)."""
        weights = self.weights / self.gpus_per_decode_worker
        room = requests.hbm_batch(H=self.hbm, W=weights, A_D=0.0, kappa_store=self.kappa_store, theta_ctx=context)
        return math.floor(float(room))

    def check_memory(self, context: Number) -> None:
        """Refuse a batch whose KV at mean `context` [tok] does not fit beside the weights.

        Raises:
            InputError: by how much it does not fit, and the largest batch that does.
        """
        need, free = self.kv_per_gpu(context), self.free_hbm()
        if need > free:
            most = self.most_sequences(context)
            remedy = f"at most {most}" if most else "on more GPUs per worker, as not one sequence fits"
            raise refuse(
                "batch",
                self.batch,
                f"{remedy}: {self.batch:g} sequences x {context:,.0f} tok x {self.kappa_store:,.0f} B need "
                f"{format(need, 'bytes')} per GPU, {format(need - free, 'bytes')} more than the "
                f"{format(free, 'bytes')} left of {format(self.hbm, 'bytes')} HBM by weights",
            )

    @classmethod
    def preset(
        cls,
        model: str,
        gpu: str,
        *,
        nic: Quantity | None = None,
        fabric: Quantity = math.inf,
        prefill_efficiency: Quantity = 1.0,
        r_P: Quantity | None = None,
        batch: Number = 64,
        kv_bytes_per_token: Quantity | None = None,
        precision: str | None = None,
        gpus_per_prefill_worker: Number | None = None,
        gpus_per_decode_worker: Number | None = None,
    ) -> "Deployment":
        """A deployment of the catalogue's `model` on its `gpu`; text with units or SI numbers override any figure.

        r_P is the roofline peak / (2 * active parameters) * `prefill_efficiency` unless given. The step time is a
        fit for this model and GPU where the catalogue has one, else a roofline: weights and cache read once a step.

        Args:
            nic: link of one GPU; default the GPU's usual one.
            fabric: limit of the whole fabric; default none.
            prefill_efficiency: share of peak compute that prefill reaches, in (0, 1].
            r_P: a prefill rate [tok/s/GPU] instead of the roofline.
            batch: decode sequences per GPU.
            kv_bytes_per_token: KV size instead of the catalogue's first figure.
            precision: of weights and compute; default fp8 where the GPU computes it, else bf16.
            gpus_per_prefill_worker, gpus_per_decode_worker: default the catalogue's, doubled until weights take at
                most three quarters of HBM.

        Raises:
            InputError: unknown model, GPU or precision (nearest names); a value out of range.
        """
        m, g = catalog.model(model), catalog.gpu(gpu)
        precision = ("fp8" if "fp8" in g.peaks else "bf16") if precision is None else precision
        if precision not in g.peaks or precision not in m.weights:
            raise unknown(f"precision for {m.name} on {g.name}", precision, set(g.peaks) & set(m.weights))
        weights = m.weights[precision]
        rate = _prefill_rate(m, g, precision, prefill_efficiency, r_P)
        kv = m.kv[0]
        if kv_bytes_per_token is not None:
            kv = _given(si(kv_bytes_per_token, "bytes/token", "kv_bytes_per_token", above=0.0))
        link = g.nic if nic is None else _given(si(nic, "bytes/s", "nic", above=0.0))
        fit = next((s for s in m.steps if s.gpu == g.name), None)
        workers = fit.worker_gpus if fit else m.worker_gpus
        while weights.value / workers > _WEIGHT_SHARE * g.hbm.value:
            workers *= 2
        decode = workers if gpus_per_decode_worker is None else gpus_per_decode_worker
        if fit:
            # The fit counts sequences per rank; a rank of several GPUs holds that many times B per GPU.
            a, b, c = fit.a, fit.b * fit.rank_gpus, fit.c * fit.rank_gpus
            step = Figure(a, f"fit for {fit.label}, mean error {fit.error:.0%}", fit.source)
        else:
            read = (weights.value / max(decode, 1), m.kv_fixed.value, m.kv_scan.value)
            a, b, c = (size / g.hbm_rate.value for size in read)
            step = Figure(a, "roofline, weights and cache read once a step at the peak HBM rate", g.hbm_rate.source)
        return cls(
            model=m.name,
            gpu=g.name,
            r_P=rate.value,
            kappa_store=kv.value,
            t_step_a=a,
            t_step_b=b,
            t_step_c=c,
            batch=batch,
            nic=link.value,
            hbm=g.hbm.value,
            weights=weights.value,
            fabric=si(fabric, "bytes/s", "fabric", above=0.0),
            gpus_per_prefill_worker=workers if gpus_per_prefill_worker is None else gpus_per_prefill_worker,
            gpus_per_decode_worker=decode,
            sources={
                "r_P": rate,
                "kappa_store": kv,
                "t_step": step,
                "nic": link,
                "hbm": g.hbm,
                "weights": Figure(weights.value, precision, weights.source),
            },
            alternatives={
                "kappa_store": tuple(k for k in m.kv if k.value != kv.value),
                "r_P": tuple(
                    p.figure for p in sorted(m.prefill, key=lambda p: p.gpu != g.name) if p.figure.value != rate.value
                ),
            },
        )


def _given(value: float) -> Figure:
    return Figure(value, "as given", "the caller")


def _prefill_rate(
    m: catalog.Model, g: catalog.Gpu, precision: str, efficiency: Quantity, given: Quantity | None
) -> Figure:
    if given is not None:
        return _given(si(given, "tokens/s", "r_P", above=0.0))
    share = si(efficiency, "1", "prefill_efficiency", above=0.0)
    if share > 1:
        raise refuse("prefill_efficiency", efficiency, "a share of peak in (0, 1]")
    peak, active = g.peaks[precision], m.params_active
    words = f"{format(peak.value, 'flop/s')} {precision} / (2 x {active.value / 1e9:g} B active) x efficiency {share:g}"
    return Figure(peak.value / (2 * active.value) * share, words, f"{peak.source}; {active.source}")
