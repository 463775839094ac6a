"""A roofline from the catalogue's figures: the model's architecture, the GPU's peaks, and how the workers are cut."""

import math

from fluidq import catalog, kv
from fluidq._errors import refuse, unknown
from fluidq.kv import Architecture, Heads, Latent
from fluidq.rates._roofline import DENSE, EXPERTS, Efficiency, Roofline, Side
from fluidq.units import Number, Quantity, si


def _attention(model: Architecture, decode: bool) -> tuple[float, float, float]:
    """Arithmetic per token and token attended: full [FLOP/tok^2], windowed [FLOP/tok^2], and the window [tok].

    A latent is expanded into keys and values of its own for prefill, and attended as it is (absorbed) in decode. With
    an indexer the index keys are scored for every token and the latents of the chosen ones only.
    """
    full = windowed = window = 0.0
    for group in model.attention:
        if isinstance(group, Heads):
            pair = 2.0 * group.layers * group.heads * (group.key_dim + group.value_dim)
            limit = group.window or 0
        elif isinstance(group, Latent):
            absorbed, expanded = 2 * group.rank + group.rope_dim, group.nope_dim + group.rope_dim + group.value_dim
            pair = 2.0 * group.layers * group.heads * (absorbed if decode else expanded)
            full += 2.0 * group.index_layers * group.index_heads * group.index_dim
            limit = group.index_topk if group.index_layers else 0
        else:
            continue  # linear attention: what it does per token is in the parameters
        if limit:
            windowed, window = windowed + pair, max(window, float(limit))
        else:
            full += pair
    return full, windowed, window


def _side(model: catalog.Model, gpu: catalog.Gpu, gpus: int, tp: int, weights: float, nic: float) -> Side:
    """A worker of `gpus` GPUs: attention and dense layers over `tp` of them, routed experts over all."""
    shape = model.architecture
    assert shape is not None
    count = kv.parameters(shape)
    routed = weights * count.routed / count.total
    full, windowed, _ = _attention(shape, decode=False)
    side = gpu.scaleup.value if gpu.scaleup is not None else nic
    # Of the tokens that meet experts elsewhere, those inside the scale-up domain go over its links, the rest over NICs.
    domain = min(gpus, gpu.scaleup_gpus or 1)
    near, far = (domain - 1) / gpus / side, (gpus - domain) / gpus / nic
    slowest = max(near, far)
    # Two reductions per layer; a ring moves 2 (tp - 1)/tp of a 16-bit hidden state, and a GPU's share is 1/tp of it.
    reduced = 2 * shape.layers * 2 * (tp - 1) * 2 * shape.hidden
    return Side(
        gpus=float(gpus),
        weights=(weights - routed) / tp,
        expert_weights=routed / gpus,
        attention=full,
        window_attention=windowed,
        exchange_rate=1 / slowest if routed and slowest else math.inf,
        reduce_bytes=float(reduced),
        reduce_rate=side,
    )


def from_catalog(
    model: str,
    gpu: str,
    *,
    tp: Number = 1,
    prefill_gpus: Number | None = None,
    decode_gpus: Number | None = None,
    precision: str | None = None,
    kv_dtype: str = "bf16",
    nic: Quantity | None = None,
    efficiency: Efficiency | None = None,
) -> Roofline:
    """The roofline of the catalogue's `model` on its `gpu`.

    Args:
        tp: GPUs that share the attention, and the dense layers, of one sequence.
        prefill_gpus, decode_gpus: GPUs of a worker, over which the experts are spread; default the catalogue's for a
            model with experts, else `tp`.
        precision: of weights and arithmetic; default fp8 where the GPU computes it, else bf16.
        kv_dtype: of the cache.
        nic: link of one GPU [B/s] instead of the GPU's usual one.
        efficiency: the named factors; default `EXPERTS` or `DENSE`.

    Raises:
        InputError: unknown model, GPU, precision or cache type (nearest names); a model without an architecture; a
            worker that `tp` does not divide.
    """
    m, g = catalog.model(model), catalog.gpu(gpu)
    shape = m.architecture
    if shape is None:
        raise refuse("model", m.name, "one with an architecture in the catalogue (its `config`), or use Roofline(...)")
    precision = ("fp8" if "fp8" in g.peaks else "bf16") if precision is None else precision
    if precision not in g.peaks or precision not in m.weights:
        raise unknown(f"precision for {m.name} on {g.name}", precision, set(g.peaks) & set(m.weights))
    across = _whole("tp", tp)
    usual = m.worker_gpus if shape.feed_forward.experts else across
    sizes = []
    for name, given in (("prefill_gpus", prefill_gpus), ("decode_gpus", decode_gpus)):
        size = _whole(name, max(usual, across) if given is None else given)
        if size % across:
            raise refuse(name, size, f"a multiple of tp, {across}")
        sizes.append(size)
    link = g.nic.value if nic is None else si(nic, "bytes/s", "nic", above=0.0)
    weights = m.weights[precision].value
    decode_full, decode_windowed, window = _attention(shape, decode=True)
    pre, dec = (_side(m, g, size, across, weights, link) for size in sizes)
    read = kv.kv_read(shape, kv_dtype, tp=across)
    feed = shape.feed_forward
    return Roofline(
        peak=g.peaks[precision].value,
        hbm_rate=g.hbm_rate.value,
        flop_token=2.0 * m.params_active.value,
        kappa_read=read.scan,
        prefill=pre,
        decode=Side(
            gpus=dec.gpus,
            weights=dec.weights,
            expert_weights=dec.expert_weights,
            attention=decode_full,
            window_attention=decode_windowed,
            exchange_rate=dec.exchange_rate,
            reduce_bytes=dec.reduce_bytes,
            reduce_rate=dec.reduce_rate,
        ),
        kv_fixed=read.fixed,
        window=window,
        experts=float(feed.experts),
        top_k=float(feed.experts_per_token),
        expert_layers=float(feed.expert_layers),
        hidden=float(shape.hidden),
        efficiency=(EXPERTS if feed.experts else DENSE) if efficiency is None else efficiency,
    )


def _whole(name: str, value: Number) -> int:
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise refuse(name, value, "a whole number of GPUs >= 1")
    return int(value)
