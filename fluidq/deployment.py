"""A deployment: rates, sizes and links of the two pools, from the catalogue or from the user's own figures."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from fluidq import catalog
from fluidq._errors import refuse, unknown
from fluidq._numerics import Scalar
from fluidq.catalog import Figure
from fluidq.formulas import requests
from fluidq.kv import Architecture, Heads, Latent, kv_bytes
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
        s_P: quadratic part of prefill, t_P = isl/r_P + isl^2/s_P (D07) [tok^2/s/GPU]; infinite without it.
        nic_decode: link of a decode GPU where it is another one [B/s].
        kappa_held: KV bytes resident per token where tensor parallelism copies KV heads [B/tok].
        hbm_prefill, weights_prefill: of a prefill GPU and worker where they are other ones [B].
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
    s_P: Number = math.inf
    nic_decode: Number | None = None
    hbm_prefill: Number | None = None
    weights_prefill: Number | None = None
    kappa_held: Number | None = None
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
            "s_P": ("1", None, 0.0, True),
            "nic_decode": ("bytes/s", None, 0.0, True),
            "hbm_prefill": ("bytes", None, 0.0, True),
            "weights_prefill": ("bytes", 0.0, None, False),
            "kappa_held": ("bytes/token", None, 0.0, False),
        }
        same_as = {"nic_decode": "nic", "hbm_prefill": "hbm", "weights_prefill": "weights"}
        for name, same in {**same_as, "kappa_held": "kappa_store"}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, same))
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
        for name, weights, hbm in (
            ("gpus_per_prefill_worker", self.weights_prefill, self.hbm_prefill),
            ("gpus_per_decode_worker", self.weights, self.hbm),
        ):
            assert weights is not None  # set above
            assert hbm is not None
            share = weights / getattr(self, name)
            if share >= hbm:
                need = math.floor(weights / hbm) + 1
                raise refuse(
                    name,
                    getattr(self, name),
                    f"at least {need}: {format(share, 'bytes')} of weights per GPU are "
                    f"{format(share - hbm, 'bytes')} more than its {format(hbm, 'bytes')} of HBM",
                )
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        object.__setattr__(self, "alternatives", MappingProxyType(dict(self.alternatives)))

    def t_step(self, batch: Scalar, context: Scalar) -> Scalar:
        """Time of one decode step [s] with `batch` sequences per GPU at mean `context` [tok]: a + b*B + c*B*context."""
        law = {"t_step_a": self.t_step_a, "t_step_b": self.t_step_b, "t_step_c": self.t_step_c}
        return requests.step_time(**law, B=batch, theta_ctx=context)

    def receive_nic(self) -> float:
        """Link of a decode GPU [B/s]."""
        assert self.nic_decode is not None  # set when made
        return float(self.nic_decode)

    def prefill_work(self, computed: Number, attended: Number = 0.0) -> float:
        """Prefill work [GPU s] of `computed` tokens [tok] that attend `attended` = (1 - h^2) isl^2 [tok^2] (D04)."""
        return computed / self.r_P + attended / self.s_P

    @classmethod
    def joined(cls, prefill: "Deployment", decode: "Deployment") -> "Deployment":
        """Prefill on the GPUs of one deployment, decode on those of another, with the same model.

        Raises:
            InputError: two models, or two KV sizes.
        """
        if prefill.model != decode.model:
            raise refuse("model", decode.model, f"that of the prefill pool, {prefill.model}")
        if prefill.kappa_store != decode.kappa_store:
            raise refuse(
                "kappa_store", decode.kappa_store, f"that of the prefill pool, {prefill.kappa_store:g} B/token"
            )
        kept = ("r_P", "s_P", "nic", "gpus_per_prefill_worker")
        return replace(
            decode,
            gpu=prefill.gpu if prefill.gpu == decode.gpu else f"{prefill.gpu} + {decode.gpu}",
            **{name: getattr(prefill, name) for name in kept},
            nic_decode=decode.nic_decode,
            fabric=min(prefill.fabric, decode.fabric),
            hbm_prefill=prefill.hbm_prefill,
            weights_prefill=prefill.weights_prefill,
            sources={**decode.sources, **{k: v for k, v in prefill.sources.items() if k in kept}},
            alternatives={**decode.alternatives, "r_P": prefill.alternatives.get("r_P", ())},
        )

    def free_hbm(self) -> float:
        """HBM of a decode GPU that weights leave [B]; activations are not subtracted."""
        return self.hbm - self.weights / self.gpus_per_decode_worker

    def with_batch(self, batch: Number) -> "Deployment":
        """The same deployment with `batch` decode sequences per GPU."""
        return replace(self, batch=batch)

    def kv_per_gpu(self, context: Number) -> float:
        """KV of a full decode batch at that mean context [B per GPU]: B * context * kappa."""
        return self.batch * context * self.held()

    def held(self) -> float:
        """KV bytes that a decode worker holds per token [B/tok], copies included."""
        assert self.kappa_held is not None  # set when made
        return float(self.kappa_held)

    def fits(self, context: Number) -> float:
        """Sequences per decode GPU whose KV at mean `context` [tok] > 0 fits beside the weights, not rounded (D07)."""
        weights = self.weights / self.gpus_per_decode_worker
        room = requests.hbm_batch(H=self.hbm, W=weights, A_D=0.0, kappa_store=self.held(), theta_ctx=context)
        return float(room)

    def most_sequences(self, context: Number) -> int:
        """The largest batch per GPU whose KV at mean `context` [tok] > 0 fits beside the weights (D07)."""
        return math.floor(self.fits(context))

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
                f"{remedy}: {self.batch:g} sequences x {context:,.0f} tok x {self.held():,.0f} B need "
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
        tp: Number | None = None,
        attention: bool = False,
        own: catalog.Catalog | str | os.PathLike[str] | None = None,
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
            tp: GPUs that share the attention of one sequence; more than there are KV heads hold copies.
            attention: count the arithmetic of attention in prefill, quadratic in the prompt; the article does not.
            own: a catalogue, or a TOML file to lay over the one that is shipped (`fluidq.catalog.load`).

        Raises:
            InputError: unknown model, GPU or precision (nearest names); a value out of range.
        """
        book = own if isinstance(own, catalog.Catalog) else catalog.load(own)
        m, g = book.model(model), book.gpu(gpu)
        asked = precision
        precision = ("fp8" if "fp8" in g.peaks else "bf16") if precision is None else precision
        if precision not in g.peaks or precision not in m.weights:
            raise unknown(f"precision for {m.name} on {g.name}", precision, set(g.peaks) & set(m.weights))
        weights = m.weights[precision]
        rate = _prefill_rate(m, g, precision, prefill_efficiency, r_P)
        kv = m.kv[0]
        if kv_bytes_per_token is not None:
            kv = _given(si(kv_bytes_per_token, "bytes/token", "kv_bytes_per_token", above=0.0))
        copies = _copies(m, tp)
        link = g.nic if nic is None else _given(si(nic, "bytes/s", "nic", above=0.0))
        fits = [s for s in m.steps if s.gpu == g.name]
        if asked is not None:  # a fit for other weights reads other bytes per step
            fits = [s for s in fits if s.precision in ("", asked)]
        fit = fits[0] if fits else None
        workers = fit.worker_gpus if fit else m.worker_gpus
        if tp is not None:
            workers = max(workers, int(tp))
        while weights.value / workers > _WEIGHT_SHARE * g.hbm.value:
            workers *= 2
        decode = workers if gpus_per_decode_worker is None else gpus_per_decode_worker
        if fit:
            # The fit counts sequences per rank; a rank of several GPUs holds that many times B per GPU.
            a, b, c = fit.a, fit.b * fit.rank_gpus, fit.c * fit.rank_gpus
            other = f"; weights here {precision}" if fit.precision not in ("", precision) else ""
            step = Figure(a, f"fit for {fit.label}, mean error {fit.error:.0%}{other}", fit.source)
        else:
            read = (weights.value / max(decode, 1), m.kv_fixed.value, m.kv_scan.value)
            a, b, c = (size / g.hbm_rate.value for size in read)
            step = Figure(a, "roofline, weights and cache read once a step at the peak HBM rate", g.hbm_rate.source)
        return cls(
            model=m.name,
            gpu=g.name,
            r_P=rate.value,
            kappa_store=kv.value,
            kappa_held=kv.value * copies,
            t_step_a=a,
            t_step_b=b,
            t_step_c=c,
            batch=batch,
            nic=link.value,
            hbm=g.hbm.value,
            weights=weights.value,
            fabric=si(fabric, "bytes/s", "fabric", above=0.0),
            s_P=_attention_rate(m, g, precision, prefill_efficiency) if attention else math.inf,
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


def _copies(m: catalog.Model, tp: Number | None) -> float:
    """KV bytes held over those counted once, at that tensor parallelism; refuses one that does not divide the heads."""
    if tp is None:
        return 1.0
    if m.architecture is None:
        raise refuse("tp", tp, f"left out: {m.name} has no architecture in the catalogue to divide")
    count = kv_bytes(m.architecture, tp=tp)
    # Floats, as no length is given.
    return count.used / count.transferred  # pyright: ignore[reportReturnType, reportOperatorIssue]


def _attention_rate(m: catalog.Model, g: catalog.Gpu, precision: str, efficiency: Quantity) -> float:
    """s_P [tok^2/s/GPU]: a prompt of I tokens attends I^2/2 pairs; windowed layers are linear and left out."""
    if m.architecture is None:
        raise refuse("attention", True, f"left out: {m.name} has no architecture in the catalogue")
    pair = attention_flops(m.architecture)
    share = si(efficiency, "1", "prefill_efficiency", above=0.0)
    return math.inf if pair == 0 else 2 * g.peaks[precision].value * share / pair


def attention_flops(model: Architecture) -> float:
    """Arithmetic of prefill per token and token attended in full-attention layers and indexers [FLOP/tok^2]."""
    total = 0.0
    for group in model.attention:
        if isinstance(group, Heads) and group.window is None:
            total += 2.0 * group.layers * group.heads * (group.key_dim + group.value_dim)
        elif isinstance(group, Latent):
            full = group.layers if not group.index_layers else 0  # an indexer picks what is attended: linear
            total += 2.0 * full * group.heads * (group.nope_dim + group.rope_dim + group.value_dim)
            total += 2.0 * group.index_layers * group.index_heads * group.index_dim
    return total


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
