"""Reads a Hugging Face `config.json` into an `Architecture`; what it cannot count it refuses, by file and field."""

import json
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluidq._architecture import Architecture, Attention, FeedForward, Heads, Latent, State
from fluidq._errors import InputError, refuse

LARGEST_FILE = 4 * 2**20  # bytes; published files are below 100 kB

# Where multi-modal files keep the decoder, outermost first.
_NESTED = ("thinker_config", "text_config", "language_config", "llm_config")
_DECODERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForImageTextToText", "ChatGLMModel")
_ENCODERS = (
    *("albert", "bert", "bge", "camembert", "clip", "convnext", "deberta", "deberta-v2", "dinov2", "distilbert"),
    *("electra", "mobilebert", "modernbert", "mpnet", "nomic_bert", "roberta", "siglip", "siglip2", "swin", "vit"),
    *("wav2vec2", "xlm-roberta"),
)
# Fields of caches that are counted in another way; each would make the figure silently wrong.
_NOT_COVERED = {
    "compress_ratios": "compressed attention, whose cache is not one entry per token",
    "hybrid_override_pattern": "layers of a state-space model",
    "layers_block_type": "layers of a state-space model",
    "mamba_d_state": "layers of a state-space model",
    "ssm_cfg": "layers of a state-space model",
    "state_size": "layers of a state-space model",
    "attn_layer_period": "layers of a state-space model",
    "block_configs": "blocks of unequal shape",
    "sparse_attention_config": "sparse attention other than DSA",
    "index_kpool": "pooled index keys",
    "num_kv_shared_layers": "layers that share a cache",
    "use_cla": "layers that share a cache",
    "global_head_dim": "heads of unequal size",
    "num_global_key_value_heads": "heads of unequal size",
    "attention_k_eq_v": "keys that are values too",
}
_PLAIN = ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2")
_PERIODS = {"gpt_oss": 2, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}  # every n-th layer is full
_KINDS = {
    "full_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "state",
}
_LIMITS = {"layers": 2_000, "heads": 8_192, "width": 10_000_000, "vocabulary": 100_000_000, "tokens": 10**9}
_MISSING: Any = object()


class _Short:
    """Shows a value in few characters, however large it is."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return reprlib.repr(self.value)


def _bad(field: str, value: object, wanted: str) -> InputError:
    return refuse(field, _Short(value), wanted)


class _Fields:
    """The fields of one JSON object, checked as they are read; `where` is the file, `inside` the object's name."""

    def __init__(self, table: Mapping[str, Any], where: str, inside: str = "") -> None:
        self.table, self.where, self.inside = table, where, inside

    def name(self, field: str) -> str:
        return f"{self.where}: {self.inside}{field}"

    def get(self, *names: str) -> tuple[str, Any]:
        """The first of `names` that holds something, and what it holds; None is the same as nothing."""
        return next(((n, self.table[n]) for n in names if self.table.get(n) is not None), (names[0], None))

    def has(self, *names: str) -> bool:
        return self.get(*names)[1] is not None

    def whole(self, *names: str, most: str = "width", least: int = 1, default: Any = _MISSING) -> int:
        """A whole number under any of `names`, from `least` to the limit of its kind; `default` where there is none."""
        field, value = self.get(*names)
        if value is None:
            if default is not _MISSING:
                return default
            also = f" (nor {', '.join(names[1:])})" if names[1:] else ""
            raise InputError(f"{self.name(field)} is missing{also}; a decoder's config.json has it.")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LIMITS[most]:
            raise _bad(self.name(field), value, f"a whole number from {least} to {_LIMITS[most]:,}")
        return value

    def perhaps(self, *names: str, most: str = "width") -> int | None:
        """As `whole`, or None where no name holds anything."""
        return self.whole(*names, most=most) if self.has(*names) else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.table.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _bad(self.name(name), value, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self.table.get(name)
        if value is not None and not isinstance(value, str):
            raise _bad(self.name(name), value, "text")
        return value or ""

    def entries(self, name: str, length: int | None = None, kind: type = str) -> list[Any] | None:
        """A list of `kind`; one entry per layer where `length` is given (more may follow, for MTP layers)."""
        value = self.table.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(type(v) is kind for v in value):
            raise _bad(self.name(name), value, f"a list of {'text' if kind is str else 'whole numbers'}")
        if length is not None and len(value) < length:
            raise _bad(self.name(name), f"{len(value)} entries", f"one per layer, {length} in all")
        return list(value)[:length]


def _decoder(table: Mapping[str, Any], where: str) -> _Fields:
    """The fields of the decoder inside the file; refuses what is none."""
    outer = _Fields(table, where)
    names = outer.entries("architectures") or []
    kind = outer.text("model_type")
    if outer.flag("is_encoder_decoder"):
        raise _bad(outer.name("is_encoder_decoder"), True, "false: an encoder-decoder keeps another cache")
    if names and not any(name.endswith(_DECODERS) for name in names):
        raise _bad(outer.name("architectures"), names, "a decoder that generates text, such as LlamaForCausalLM")
    if kind in _ENCODERS and not names:
        raise _bad(outer.name("model_type"), kind, "a decoder that generates text, such as llama")
    inside = ""
    for key in _NESTED:
        if key in table:
            inner = table[key]
            if not isinstance(inner, Mapping):
                raise _bad(f"{where}: {inside}{key}", inner, "an object that holds the decoder's fields")
            table, inside = inner, f"{inside}{key}."
    if not inside and "vision_config" in table and "num_hidden_layers" not in table:
        raise _bad(outer.name("vision_config"), "all there is", "beside a text_config: this is no text decoder")
    fields = _Fields(table, where, inside)
    for name, reason in _NOT_COVERED.items():
        if table.get(name) not in (None, 0, False, [], {}, ""):
            shown = table[name] if isinstance(table[name], int | str) else "there"
            raise _bad(fields.name(name), shown, f"left out: fluidq does not count {reason}")
    return fields


def _kinds(f: _Fields, layers: int, model: str) -> list[str]:
    """What each layer is: full, window or state."""
    if (given := f.entries("layer_types", layers)) is not None:
        for name in given:
            if name not in _KINDS:
                raise _bad(f"{f.name('layer_types')} entry", name, f"one of {', '.join(_KINDS)}")
        return [_KINDS[name] for name in given]
    if (given := f.entries("hybrid_layer_pattern", layers, int)) is not None:
        return ["window" if v else "full" for v in given]
    if (given := f.entries("attn_type_list", layers, int)) is not None:
        if not all(given):
            raise _bad(f.name("attn_type_list"), given, "1 for each layer: fluidq does not count lightning attention")
        return ["full"] * layers
    if f.has("linear_attn_config"):
        full = _linear(f).entries("full_attn_layers", kind=int) or []  # counted from 1
        return ["full" if i + 1 in full else "state" for i in range(layers)]
    if f.has("full_attention_interval"):
        period = f.whole("full_attention_interval", most="layers")
        return ["state" if (i + 1) % period else "full" for i in range(layers)]
    if f.has("attention_chunk_size"):
        period = f.whole("no_rope_layer_interval", most="layers", default=4)
        return ["window" if (i + 1) % period else "full" for i in range(layers)]
    if f.has("sliding_window") and f.flag("use_sliding_window", True):
        if f.has("sliding_window_pattern") or model in _PERIODS:
            period = f.whole("sliding_window_pattern", most="layers", default=_PERIODS.get(model, 1))
            return ["window" if (i + 1) % period else "full" for i in range(layers)]
        first = f.whole("max_window_layers", most="layers", least=0, default=0)
        return ["full" if i < first else "window" for i in range(layers)]
    return ["full"] * layers


def _linear(f: _Fields) -> _Fields:
    inner = f.table["linear_attn_config"]
    if not isinstance(inner, Mapping):
        raise _bad(f.name("linear_attn_config"), inner, "an object")
    return _Fields(inner, f.where, f"{f.inside}linear_attn_config.")


def _state(f: _Fields, layers: int) -> State:
    if f.has("linear_attn_config"):
        inner = _linear(f)
        heads, dim = inner.whole("num_heads", most="heads"), inner.whole("head_dim")
        return State(layers, heads, heads, dim, dim, inner.whole("short_conv_kernel_size"), gate_rank=dim)
    return State(
        layers,
        f.whole("linear_num_key_heads", most="heads"),
        f.whole("linear_num_value_heads", most="heads"),
        f.whole("linear_key_head_dim"),
        f.whole("linear_value_head_dim"),
        f.whole("linear_conv_kernel_dim"),
    )


def _index_layers(f: _Fields, layers: int) -> int:
    """Layers with an index key of their own; the others use the last one's choice.

    Without a list, layer i has one where max(i - offset + 1, 0) is a multiple of the frequency, as in vLLM.
    """
    if not f.has("index_topk", "index_head_dim"):
        return 0
    if (given := f.entries("indexer_types", layers)) is not None:
        return sum(kind == "full" for kind in given)
    pattern = f.table.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - {"F", "S"} or len(pattern) < layers:
            raise _bad(f.name("index_topk_pattern"), pattern, f"an F or S for each of the {layers} layers")
        return pattern[:layers].count("F")
    often = f.whole("index_topk_freq", most="layers", default=1)
    offset = f.whole("index_skip_topk_offset", most="layers", least=0, default=2)
    return sum(max(i - offset + 1, 0) % often == 0 for i in range(layers))


def _latent(f: _Fields, layers: int, heads: int) -> Latent:
    indexed = _index_layers(f, layers)
    return Latent(
        layers,
        heads,
        rank=f.whole("kv_lora_rank"),
        rope_dim=f.whole("qk_rope_head_dim", least=0),
        nope_dim=f.whole("qk_nope_head_dim", least=0),
        value_dim=f.whole("v_head_dim"),
        query_rank=f.perhaps("q_lora_rank"),
        index_layers=indexed,
        index_dim=f.whole("index_head_dim") if indexed else 0,
        index_heads=f.whole("index_n_heads", most="heads") if indexed else 0,
        index_topk=f.whole("index_topk", most="tokens") if indexed else 0,
    )


def _heads(f: _Fields, layers: int, heads: int, hidden: int, model: str, window: int | None, prefix: str) -> Heads:
    """Layers with keys and values; `prefix` names the fields that window layers may have for themselves."""
    kv_names = [f"{prefix}num_key_value_heads"] if prefix else []
    kv_names += ["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"]
    single = f.flag("multi_query") and not f.flag("new_decoder_architecture")
    kv = 1 if single else f.whole(*kv_names, most="heads", default=heads)
    if heads % kv:
        raise _bad(f.name(f.get(*kv_names)[0]), kv, f"a divisor of the {heads} attention heads")
    own = (f"{prefix}head_dim", "head_dim") if prefix else ("head_dim",)
    if not f.has(*own) and hidden % heads:
        raise InputError(f"{f.name('head_dim')} is missing, and {heads} heads do not divide hidden_size {hidden}.")
    key = f.whole(*own, default=hidden // heads)
    value_names = (f"{prefix}v_head_dim", "v_head_dim") if prefix else ("v_head_dim",)
    value = f.whole(*value_names, default=key)
    gated = f.flag("attn_output_gate", default=model.startswith(("qwen3_next", "qwen3_5")))
    return Heads(layers, heads, kv, key, value, window, gated)


def _attention(f: _Fields, layers: int, heads: int, hidden: int, model: str) -> tuple[Attention, ...]:
    kinds = _kinds(f, layers, model)
    full, window, state = (kinds.count(kind) for kind in ("full", "window", "state"))
    groups: list[Attention] = []
    if f.has("kv_lora_rank"):
        if window:
            raise _bad(f.name("kv_lora_rank"), f.table["kv_lora_rank"], "left out where layers have a window")
        groups.append(_latent(f, full, heads))
    elif full:
        groups.append(_heads(f, full, heads, hidden, model, None, ""))
    if window:
        width = f.whole("sliding_window", "sliding_window_size", "attention_chunk_size", most="tokens")
        own = f.whole("swa_num_attention_heads", most="heads", default=heads)
        groups.append(_heads(f, window, own, hidden, model, width, "swa_"))
    if state:
        groups.append(_state(f, state))
    return tuple(group for group in groups if group.layers)


_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "moe_k")
_WIDTH = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")


def _expert_layers(f: _Fields, layers: int) -> int:
    """Layers whose feed-forward part is made of experts."""
    if (given := f.entries("mlp_layer_types", layers)) is not None:
        return sum(kind == "sparse" for kind in given)
    if isinstance(f.table.get("moe_layer_freq"), list):
        return sum(f.entries("moe_layer_freq", layers, int) or ())
    if (given := f.entries("moe_layers", kind=int)) is not None:
        return sum(0 <= i < layers for i in given)
    first = f.whole("first_k_dense_replace", most="layers", least=0, default=0)
    often = f.whole("moe_layer_freq", most="layers", default=1)
    step = f.whole("decoder_sparse_step", "interleave_moe_layer_step", most="layers", default=1)
    dense = f.entries("mlp_only_layers", kind=int) or ()
    return sum(i >= first and i % often == 0 and (i + 1) % step == 0 and i not in dense for i in range(layers))


def _feed_forward(f: _Fields, layers: int, hidden: int, model: str) -> FeedForward:
    matrices = 2 if model in _PLAIN else 3
    experts = f.whole(*_EXPERTS, least=0, default=0)
    if experts <= 1:
        # GPT-2, BLOOM and Falcon leave the width out: it is four times the hidden size.
        width = f.whole(*_WIDTH, default=4 * hidden if matrices == 2 else _MISSING)
        return FeedForward(matrices, layers, width)
    chosen = f.whole(*_CHOSEN)
    if chosen > experts:
        raise _bad(f.name(f.get(*_CHOSEN)[0]), chosen, f"at most the {experts} experts")
    sparse = _expert_layers(f, layers)
    width = f.whole("moe_intermediate_size", "expert_intermediate_size", *_WIDTH)
    number = f.whole("n_shared_experts", "num_shared_experts", least=0, default=int(model.startswith("llama4")))
    shared = f.whole("shared_expert_intermediate_size", "shared_intermediate_size", least=0, default=number * width)
    dense = f.whole("intermediate_size_mlp", *_WIDTH) if sparse < layers else 0
    return FeedForward(matrices, layers - sparse, dense, sparse, experts, chosen, width, shared)


def from_config(table: Mapping[str, Any], where: str = "config") -> Architecture:
    """The architecture that the fields of a `config.json` describe.

    Args:
        table: the file's object; a `text_config` and its like are entered.
        where: what messages call the file.

    Raises:
        InputError: no decoder, a field that is missing, of the wrong type or out of range, or a cache of a kind that
            is not counted here.
    """
    if not isinstance(table, Mapping):
        raise _bad(where, table, "a JSON object")
    f = _decoder(table, where)
    model = f.text("model_type") or _Fields(table, where).text("model_type")
    layers = f.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers", most="layers")
    hidden = f.whole("hidden_size", "n_embd", "d_model")
    heads = f.whole("num_attention_heads", "n_head", "num_heads", most="heads")
    attention = _attention(f, layers, heads, hidden, model)
    mtp = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
    tied_by_default = model in (*_PLAIN, "gemma", "gemma2", "gemma3", "gemma3_text") and model != "phi"
    return Architecture(
        name=model[:80] or "decoder",
        hidden=hidden,
        vocabulary=f.whole("vocab_size", "padded_vocab_size", most="vocabulary"),
        attention=attention,
        feed_forward=_feed_forward(f, layers, hidden, model),
        tied=f.flag("tie_word_embeddings", default=tied_by_default),
        mtp_layers=f.whole(*mtp, most="layers", least=0, default=0),
        max_context=f.perhaps("max_position_embeddings", "n_positions", most="tokens"),
        source=where,
    )


def read_config(path: str | os.PathLike[str]) -> Architecture:
    """The architecture in a local Hugging Face `config.json`, or in the folder that holds one. Nothing is fetched.

    Raises:
        InputError: no such file, more than 4 MiB, no JSON object, or what `from_config` refuses; names file and field.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    where = str(file)
    if not file.is_file():
        raise refuse("config", where, "a config.json or the folder that holds one")
    try:
        with file.open("rb") as handle:
            raw = handle.read(LARGEST_FILE + 1)
    except OSError as error:
        raise refuse("config", where, f"a file that can be read ({error.strerror})") from None
    if len(raw) > LARGEST_FILE:
        raise InputError(f"{where} holds more than {LARGEST_FILE:,} bytes; it must be a config.json, not the weights.")
    try:
        table = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {str(error)[:120]}.") from None
    if not isinstance(table, dict):
        raise InputError(f"{where} holds a {type(table).__name__}; it must be a JSON object.")
    return from_config(table, where)
