"""KV-cache bytes per token from a model's architecture: used, reserved in pages, and transferred.

The architecture comes from the catalogue, from a Hugging Face `config.json` (`read_config`), or is written down as an
`Architecture`.

>>> layers = Heads(layers=80, heads=64, kv_heads=8, key_dim=128, value_dim=128)
>>> llama = Architecture("Llama-3.1-70B", 8192, 128256, (layers,), FeedForward(dense_layers=80, dense_width=28672))
>>> kv_bytes(llama).used, kv_bytes(llama, dtype="fp8").used, kv_bytes(llama, tp=16).used
(327680.0, 163840.0, 655360.0)
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluidq._architecture import Architecture as Architecture
from fluidq._architecture import FeedForward as FeedForward
from fluidq._architecture import Heads as Heads
from fluidq._architecture import Latent as Latent
from fluidq._architecture import Parameters as Parameters
from fluidq._architecture import State as State
from fluidq._config_json import from_config as from_config
from fluidq._config_json import read_config as read_config
from fluidq._errors import refuse, unknown
from fluidq._numerics import Scalar, least, positive_part
from fluidq.formulas import capacity
from fluidq.units import Number

Config = Architecture | Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True)
class CacheType:
    """How the numbers of a cache are stored: bytes per number, and bytes per scale for each `span` numbers.

    `span` 0 is one scale per vector (a head's key or value, or a latent). A scale per tensor weighs nothing per token:
    `scale` 0. `rope` is for the rotary part of a latent where it is stored otherwise; index keys have figures of
    their own, for engines keep them in fp8 with a scale per 128 numbers as soon as the cache is not 16 bits wide.
    """

    name: str
    number: Number
    scale: Number = 0.0
    span: int = 0
    rope: Number | None = None
    index_number: Number = 1.0
    index_scale: Number = 4.0
    latent_only: bool = False

    def __post_init__(self) -> None:
        for field in ("number", "scale", "index_number", "index_scale"):
            value = getattr(self, field)
            if not 0 <= value <= 16 or (value == 0 and field == "number"):
                raise refuse(f"{self.name}.{field}", value, "a number of bytes, at most 16")
        if self.span < 0:
            raise refuse(f"{self.name}.span", self.span, "a whole number of numbers >= 0; 0 is one scale per vector")

    def vector(self, numbers: int) -> Number:
        """Bytes of one vector with its scales."""
        return numbers * self.number + self.scale * (math.ceil(numbers / self.span) if self.span else 1)

    def latent(self, rank: int, rope: int) -> Number:
        """Bytes of one latent vector with its rotary part."""
        return self.vector(rank + rope) if self.rope is None else self.vector(rank) + rope * self.rope

    def index_key(self, numbers: int) -> Number:
        """Bytes of one index key."""
        return numbers * self.index_number + self.index_scale * math.ceil(numbers / 128)


CACHE_TYPES: Mapping[str, CacheType] = {
    kind.name: kind
    for kind in (
        CacheType("bf16", 2.0, index_number=2.0, index_scale=0.0),
        CacheType("fp16", 2.0, index_number=2.0, index_scale=0.0),
        CacheType("fp8", 1.0),  # one scale per tensor, or per head for the whole cache
        CacheType("int8", 1.0),
        CacheType("fp8_per_token_head", 1.0, scale=4.0),
        CacheType("int8_per_token_head", 1.0, scale=4.0),
        CacheType("fp8_ds_mla", 1.0, scale=4.0, span=128, rope=2.0, latent_only=True),  # vLLM: 656 B per layer
        CacheType("fp4", 0.5, scale=1.0, span=16),  # NVFP4: an fp8 scale for 16 numbers
    )
}


class KVBytes(NamedTuple):
    """KV bytes per token of context.

    `used` and `reserved` count every copy on the `tp` GPUs of a worker (divide by `tp` for one GPU), `reserved` in
    whole pages; `transferred` is one copy of each page, what a link must carry at least.
    """

    used: Scalar
    reserved: Scalar
    transferred: Scalar


class KVRead(NamedTuple):
    """What one decode step reads of a sequence's cache: `scan` [B per token of context] and `fixed` [B per sequence].

    Holds where the context is at least the window, and at least the number of tokens that sparse attention picks.
    """

    scan: float
    fixed: float


def _architecture(config: Config) -> Architecture:
    if isinstance(config, Architecture):
        return config
    return from_config(config) if isinstance(config, Mapping) else read_config(config)


def _kind(dtype: str | CacheType, model: Architecture) -> CacheType:
    if isinstance(dtype, str):
        if dtype.lower() not in CACHE_TYPES:
            raise unknown("KV cache dtype", dtype, CACHE_TYPES)
        dtype = CACHE_TYPES[dtype.lower()]
    if dtype.latent_only and not any(isinstance(group, Latent) for group in model.attention):
        raise refuse("dtype", dtype.name, f"one for keys and values: {model.name} keeps no latent")
    return dtype


def _whole(field: str, value: Number, words: str) -> int:
    if isinstance(value, bool) or value != value or value in (math.inf, -math.inf) or value != int(value) or value < 1:
        raise refuse(field, value, words)
    return int(value)


class _Part(NamedTuple):
    """Part of a cache: bytes per token kept, tokens of the window (None: all), copies on a worker's GPUs."""

    size: float
    window: int | None
    copies: float


def _parts(model: Architecture, kind: CacheType, tp: int) -> tuple[list[_Part], float]:
    """The parts of a cache that count tokens, and the bytes per sequence that do not."""
    parts, constant = [], 0.0
    for group in model.attention:
        if isinstance(group, Latent):
            _divides(tp, group.heads, model, "attention heads")
            size = capacity.latent_kv_bytes(  # D32, with widths in bytes
                number_bytes=1.0,
                latent_layers=group.layers,
                latent_width=kind.latent(group.rank, group.rope_dim),
                index_layers=group.index_layers,
                index_width=kind.index_key(group.index_dim) if group.index_layers else 1.0,
            )
            parts.append(_Part(float(size), None, float(tp)))
        elif isinstance(group, Heads):
            _divides(tp, group.heads, model, "attention heads")
            if max(tp, group.kv_heads) % min(tp, group.kv_heads):
                words = f"a divisor or a multiple of the {group.kv_heads} KV heads of {model.name}"
                raise refuse("tp", tp, words)
            each = kind.vector(group.key_dim) + kind.vector(group.value_dim)
            parts.append(_Part(group.layers * group.kv_heads * each, group.window, max(1.0, tp / group.kv_heads)))
        else:
            _divides(tp, group.value_heads, model, "heads of linear attention")
            constant += group.layers * group.size()
    return parts, constant


def _divides(tp: int, heads: int, model: Architecture, words: str) -> None:
    if heads % tp:
        near = max(d for d in range(1, heads + 1) if heads % d == 0 and d <= tp)
        raise refuse("tp", tp, f"a divisor of the {heads} {words} of {model.name}, such as {near}")


def kv_bytes(
    config: Config,
    dtype: str | CacheType = "bf16",
    *,
    tp: Number = 1,
    length: Scalar | None = None,
    page: Number = 1,
    evict: bool = True,
) -> KVBytes:
    """KV-cache bytes per token: used, reserved, transferred.

    Per token and layer: 2 * KV heads * head dimension numbers (MHA, GQA), or one latent with its rotary part (MLA)
    and an index key where the layer has one (D32). Over tensor parallelism KV heads are split until each GPU has one,
    then copied; latents and index keys are copied to every GPU. A layer with a window keeps min(length, window)
    tokens; linear attention keeps a state per sequence, spread over `length`.

    Args:
        config: an `Architecture`, the fields of a `config.json`, or the path of one.
        dtype: a name of `CACHE_TYPES` or a `CacheType`.
        tp: GPUs over which the attention of one worker is split (1 for data-parallel attention).
        length: tokens of the sequence [tok] > 0, any shape, differentiable; None is the limit of a long sequence,
            where windows and states weigh nothing. Under `jax.jit` it is not checked.
        page: tokens of one page of the engine (vLLM: 16; FlashMLA: 64); the last page counts in full.
        evict: the engine frees pages that the window has left; False keeps them, as engines without a hybrid cache
            manager do.

    Returns:
        `KVBytes`, as floats where `length` is a number or None, else as arrays of its shape.

    Raises:
        InputError: unknown dtype; `tp` that does not divide the heads; length or page out of range; a config refused.
    """
    model = _architecture(config)
    kind, tp = _kind(dtype, model), _whole("tp", tp, "a whole number of GPUs >= 1")
    page = _whole("page", page, "a whole number of tokens >= 1")
    parts, constant = _parts(model, kind, tp)
    if length is None:
        kept = [part for part in parts if part.window is None or not evict]
        used, once = sum(p.size * p.copies for p in kept), sum(p.size for p in kept)
        return KVBytes(float(used), float(used), float(once))
    if isinstance(length, bool | int | float) and not 0 < length < math.inf:
        raise refuse("length", length, "a finite number of tokens > 0")
    tokens = jnp.asarray(length, dtype=jnp.result_type(float))
    pages = jnp.ceil(tokens / page) * page
    used, reserved, moved = (jnp.full_like(tokens, constant) for _ in range(3))
    for part in parts:
        kept, held = tokens, pages
        if part.window is not None and evict:
            kept = least(tokens, float(part.window))
            held = pages - jnp.floor(positive_part(tokens - part.window) / page) * page
        used = used + part.size * part.copies * kept
        reserved = reserved + part.size * part.copies * held
        moved = moved + part.size * held
    result = (used / tokens, reserved / tokens, moved / tokens)
    return KVBytes(*result) if isinstance(length, jax.Array) or jnp.ndim(length) else KVBytes(*map(float, result))


def kv_read(config: Config, dtype: str | CacheType = "bf16", *, tp: Number = 1) -> KVRead:
    """What one decode step reads of a sequence's cache, over all GPUs of a worker.

    Every cached token where attention is full; with sparse attention the index keys of all tokens (`scan`) and the
    latents of the `index_topk` chosen (`fixed`); windows and states are `fixed`.
    """
    model = _architecture(config)
    kind = _kind(dtype, model)
    parts, constant = _parts(model, kind, _whole("tp", tp, "a whole number of GPUs >= 1"))
    scan, fixed = 0.0, constant
    cached = [group for group in model.attention if not isinstance(group, State)]
    for group, part in zip(cached, parts, strict=True):
        if isinstance(group, Latent) and group.index_layers:
            keys = group.index_layers * kind.index_key(group.index_dim) * part.copies
            scan, fixed = scan + keys, fixed + (part.size * part.copies - keys) * group.index_topk
        elif part.window is None:
            scan += part.size * part.copies
        else:
            fixed += part.size * part.copies * part.window
    return KVRead(scan, fixed)


def parameters(config: Config) -> Parameters:
    """Total, active and routed-expert parameters of a decoder; see `Architecture.parameters`."""
    return _architecture(config).parameters()


def weight_bytes(config: Config, precision: str) -> float:
    """Bytes of a decoder's weights, counted: 2 per parameter in bf16, 1 in fp8, and what fp4 checkpoints do.

    fp4: 4 bits and a scale of 8 per 16 numbers for the routed experts, or for all but the embeddings where there are
    none; bf16 for the rest. Scales of fp8 (below 0.1 %) and layers left in bf16 are not counted.
    """
    model = _architecture(config)
    count = model.parameters()
    known = ("bf16", "fp8", "fp4")
    if precision not in known:
        raise unknown("weight precision", precision, known)
    if precision != "fp4":
        return count.total * (2.0 if precision == "bf16" else 1.0)
    tables = model.vocabulary * model.hidden * (1 if model.tied else 2)
    packed = count.routed or count.total - tables
    return packed * 0.5625 + (count.total - packed) * 2.0
