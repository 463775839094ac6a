"""KV bytes per token and parameters from the architecture, against every row of the published tables."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidq import catalog
from fluidq._errors import InputError
from fluidq.kv import (
    CACHE_TYPES,
    Architecture,
    CacheType,
    FeedForward,
    Heads,
    Latent,
    State,
    from_config,
    kv_bytes,
    kv_read,
    parameters,
    read_config,
    weight_bytes,
)
from tests.helpers import data

CONFIGS = Path(__file__).parent / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))


def table(path: str) -> list[dict[str, str]]:
    with data(path).open(newline="") as handle:
        return list(csv.DictReader(handle))


def config(name: str) -> Path:
    return CONFIGS / f"{name}.json"


def fields(name: str = "Llama-3.1-8B", **changes: Any) -> dict[str, Any]:
    """The fields of one of the files, with changes; `...` takes a field away."""
    found = {**json.loads(config(name).read_text()), **changes}
    return {key: value for key, value in found.items() if value is not ...}


# --- the published tables ---------------------------------------------------------------------------------------------

# Rows whose cache is not counted; the table leaves their KV cells empty too.
MISSES = {
    "DeepSeek-V4-Pro": "compressed attention: the cache is not one entry per token",
    "Kimi-K3": "which layers keep a latent and which a constant state is not in the table",
}


def test_every_row_of_the_model_table():
    """KV exactly; parameters to the four digits that the table has."""
    rows = {row["model"]: row for row in table("deployments/models.csv")}
    missed = {name for name, row in rows.items() if not config(name).exists()}
    assert missed == set(MISSES)
    assert all(rows[name]["kv_bytes_per_tok_bf16"] == "" for name in missed)
    assert len(rows) - len(missed) == 17
    for name in set(rows) - missed:
        row, model = rows[name], read_config(config(name))
        assert kv_bytes(model).used == float(row["kv_bytes_per_tok_bf16"]), name
        assert kv_bytes(model, "fp8").used == float(row["kv_bytes_per_tok_fp8"]), name
        assert model.layers == int(row["n_layers"]), name
        assert model.growing_layers == int(row["n_layers_growing_kv"]), name
        count = parameters(model)
        if row["params_total_counted"]:
            assert count.total == pytest.approx(float(row["params_total_counted"]), rel=5e-4), name
            assert count.active == pytest.approx(float(row["params_active_counted"]), rel=5e-4), name
        else:
            assert name in ("GLM-4.5", "GLM-4.6")
        if row["params_total_published"]:
            # Names are rounded (32B of 32.8e9), and count the input embedding, which is looked up, as active.
            assert count.total == pytest.approx(float(row["params_total_published"]), rel=0.03), name
            assert count.active == pytest.approx(float(row["params_active_published"]), rel=0.07), name


HUB = {
    "Kimi-K2-Instruct": "Kimi-K2",
    "Qwen3-Coder-480B-A35B-Instruct": "Qwen3-Coder-480B-A35B",
    "Meta-Llama-3.1-8B": "Llama-3.1-8B",
    "Meta-Llama-3.1-70B": "Llama-3.1-70B",
    "Meta-Llama-3.1-405B": "Llama-3.1-405B",
}


def test_every_row_of_the_kv_table():
    """Exactly; two rows only without their index keys, which that table says it does not count."""
    rows = table("aiconfigurator/kv_bytes_per_token.csv")
    assert len(rows) == 15
    without_index = []
    for row in rows:
        name = row["model"].partition("/")[2]
        model = read_config(config(HUB.get(name, name)))
        keys = sum(g.index_layers * g.index_dim for g in model.attention if isinstance(g, Latent))
        if keys:
            assert "not counted" in row["note"]
            without_index.append(name)
        assert kv_bytes(model).used - 2 * keys == float(row["bytes_per_token_16bit"]), name
        # fp8 index keys: 128 B and a scale of 4 B
        assert kv_bytes(model, "fp8").used - keys * 132 / 128 == float(row["bytes_per_token_8bit"]), name
        assert model.growing_layers == int(row["kv_layers_growing_with_context"])
    assert without_index == ["DeepSeek-V3.2", "GLM-5"]


def test_every_kv_size_of_the_deployments():
    alias = {"DeepSeek-R1-0528": "DeepSeek-R1", "DeepSeek-R1/V3": "DeepSeek-V3", "DeepSeek-V3/R1": "DeepSeek-V3"}
    alias |= {"DeepSeek-V3-like 671B": "DeepSeek-V3", "LLaMA3-70B (dummy)": "Llama-3.1-70B"}
    seen = 0
    for row in table("deployments/deployments.csv"):
        if row["kv_bytes_per_tok"]:
            model = config(alias.get(row["model"], row["model"]))
            assert kv_bytes(model, row["kv_dtype"]).used == float(row["kv_bytes_per_tok"]), row["row_id"]
            seen += 1
    assert seen > 80


def test_published_layouts():
    # vLLM's layout for DSA in fp8: 656 B per layer, its rotary part in bf16; 48068 B with the index keys.
    assert kv_bytes(config("DeepSeek-V3.2"), "fp8_ds_mla").used == 61 * 656 + 61 * 132 == 48068
    # inference-lab's GLM-5.2, and what an SGLang pull request measured: 47702 B.
    assert kv_bytes(config("GLM-5.2"), "fp8_ds_mla").used == 53940
    assert kv_bytes(config("GLM-5.2"), "fp8").used == pytest.approx(47702, abs=2)
    # gpt-oss without eviction (73728 B), and a prompt of 131072 tokens in bf16: 9.66 GB.
    assert kv_bytes(config("gpt-oss-120b"), evict=False).used == 73728
    assert 131072 * kv_bytes(config("gpt-oss-120b"), length=131072, evict=False).used == pytest.approx(9.66e9, rel=1e-3)
    # DistServe: 1.13 GB for 512 tokens of OPT-66B, counted in GiB (theory, V07).
    assert 512 * kv_bytes(config("OPT-66B"), "fp16").used == 1.125 * 2**30
    # Splitwise: BLOOM-176B, 2 * 70 * 14336 * 2 B.
    assert kv_bytes(config("BLOOM-176B"), "fp16").used == 2 * 70 * 14336 * 2


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_counts_as_the_config_file(name: str):
    """Two writings of one architecture, with the catalogue's own typed KV figures as a third."""
    model, known = read_config(config(name)), catalog.model(name)
    own = known.architecture
    assert own is not None
    assert own.attention == model.attention
    assert own.parameters() == model.parameters()
    assert (own.hidden, own.vocabulary, own.layers, own.mtp_layers) == (
        *(model.hidden, model.vocabulary, model.layers),
        model.mtp_layers,
    )
    kv = {figure.value for figure in known.kv}
    assert {kv_bytes(model).used, kv_bytes(model, "fp8").used} <= kv
    scan, fixed = kv_read(model)
    if name != "GLM-5.2":  # the article's author counts 19 index keys
        assert known.kv_scan.value == scan
    assert known.kv_fixed.value == pytest.approx(fixed, rel=2e-4)  # 184 MB as published
    assert known.weights["fp8"].value == pytest.approx(parameters(model).total, rel=1e-3)


# --- tensor parallelism, dtypes, windows, pages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tp", "copies"),
    [
        ("Qwen3-235B-A22B", 4, 1),
        ("Qwen3-235B-A22B", 8, 2),  # 4 KV heads
        ("Qwen3-235B-A22B", 64, 16),
        ("Llama-3.1-70B", 8, 1),
        ("DeepSeek-V3", 8, 8),
        ("GLM-5.2", 4, 4),  # index keys are copied too
    ],
)
def test_copies_over_tensor_parallelism(name: str, tp: int, copies: int):
    one, many = kv_bytes(config(name)), kv_bytes(config(name), tp=tp)
    assert many.used == copies * one.used
    assert many.reserved == copies * one.reserved
    assert many.transferred == one.used


def test_dtypes():
    used = {kind: kv_bytes(config("Llama-3.1-70B"), kind).used for kind in CACHE_TYPES if kind != "fp8_ds_mla"}
    heads = 80 * 2 * 8
    assert used["bf16"] == used["fp16"] == heads * 256
    assert used["fp8"] == used["int8"] == heads * 128
    assert used["int8_per_token_head"] == used["fp8_per_token_head"] == heads * (128 + 4)
    assert used["fp4"] == heads * (64 + 128 / 16)
    assert kv_bytes(config("Llama-3.1-70B"), CacheType("int4", 0.5, scale=2.0, span=32)).used == heads * (64 + 8)
    assert kv_bytes(config("DeepSeek-V3"), "fp4").used == 61 * (288 + 36)


def test_a_window_is_a_function_of_length():
    each = 18 * 2 * 8 * 64 * 2.0
    at = {n: kv_bytes(config("gpt-oss-120b"), length=n) for n in (1, 64, 128, 1000, 1e9)}
    assert at[1].used == at[64].used == at[128].used == 2 * each
    assert at[1000].used == pytest.approx(each * (1 + 128 / 1000), rel=1e-15)
    assert at[1e9].used == pytest.approx(kv_bytes(config("gpt-oss-120b")).used, rel=1e-6)
    assert all(isinstance(value, float) for value in at[64])


def test_a_state_is_spread_over_the_sequence():
    model = read_config(config("Qwen3.5-397B-A17B"))
    state = 45 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2)
    assert kv_bytes(model, length=4096).used == pytest.approx(30720 + state / 4096, rel=1e-15)
    assert kv_bytes(model, length=4096, tp=2).used == pytest.approx(30720 + state / 4096, rel=1e-15)
    assert kv_read(model).fixed == state


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 400), window=st.integers(1, 300), page=st.integers(1, 80))
def test_pages_are_those_that_hold_a_kept_token(length: int, window: int, page: int):
    """Counted one token at a time."""
    full, local = Heads(3, 4, 2, 8, 8), Heads(5, 4, 1, 8, 8, window=window)
    model = Architecture("two kinds", 64, 100, (full, local), FeedForward(dense_layers=8, dense_width=64))
    big, small = 3 * 2 * 16 * 2, 5 * 1 * 16 * 2  # bytes of a token in either group
    all_pages = {token // page for token in range(length)}
    kept = {token // page for token in range(max(0, length - window), length)}
    size = kv_bytes(model, length=length, page=page)
    held = page * (big * len(all_pages) + small * len(kept))
    assert size.used * length == pytest.approx(big * length + small * min(length, window), rel=1e-12)
    assert size.reserved * length == pytest.approx(held, rel=1e-12)
    assert size.transferred * length == pytest.approx(held, rel=1e-12)
    assert size.reserved >= size.used * (1 - 1e-12)


def test_pages_of_a_long_and_of_a_short_sequence():
    size = kv_bytes(config("DeepSeek-V3"), length=65, page=64, tp=8)
    assert size == pytest.approx((8 * 70272, 8 * 70272 * 128 / 65, 70272 * 128 / 65), rel=1e-15)
    assert kv_bytes(config("DeepSeek-V3"), length=128, page=64).reserved == 70272
    assert kv_bytes(config("DeepSeek-V3"), page=64).reserved == 70272


def test_length_is_differentiable_and_batches():
    model = read_config(config("gpt-oss-120b"))

    def total(n: jax.Array) -> jax.Array:
        return n * kv_bytes(model, length=n, page=16).used

    lengths = jnp.array([64.0, 1000.0, 5000.0])
    each = 18 * 2 * 8 * 64 * 2.0
    np.testing.assert_allclose(jax.vmap(jax.grad(total))(lengths), [2 * each, each, each], rtol=1e-12)
    batched = jax.jit(lambda n: kv_bytes(model, length=n, page=16))(lengths)
    for i, n in enumerate(lengths.tolist()):
        np.testing.assert_allclose([part[i] for part in batched], kv_bytes(model, length=n, page=16), rtol=1e-12)
    assert kv_bytes(model, length=np.array([64, 1000])).used.shape == (2,)


def test_what_a_step_reads():
    assert kv_read(config("Llama-3.1-8B"), tp=16) == (2 * 131072, 0)
    dsa = kv_read(config("GLM-5"))
    assert dsa == (78 * 256, 78 * 576 * 2 * 2048)
    assert kv_read(config("GLM-5"), "fp8") == (78 * 132, 78 * 576 * 2048)
    # GLM-5.2 shares its choice of tokens: 21 keys, but the latents of all 78 layers.
    assert kv_read(config("GLM-5.2")) == (21 * 256, 78 * 576 * 2 * 2048)
    assert kv_read(config("gpt-oss-120b")).fixed == 18 * 2 * 8 * 64 * 2 * 128


def test_weights():
    assert weight_bytes(config("DeepSeek-V3"), "fp8") == pytest.approx(671e9, rel=1e-3)
    assert weight_bytes(config("Llama-3.1-8B"), "bf16") == pytest.approx(16.06e9, rel=1e-3)
    # gpt-oss-120b as published is 65.2 GB with 4.25 bits; NVFP4 has 4.5.
    assert weight_bytes(config("gpt-oss-120b"), "fp4") == pytest.approx(65.2e9 * 4.5 / 4.25, rel=0.01)
    assert catalog.model("gpt-oss-120b").weights["fp4"].value == 65.2e9
    with pytest.raises(InputError, match="unknown weight precision 'int4'"):
        weight_bytes(config("Llama-3.1-8B"), "int4")


# --- reading configs --------------------------------------------------------------------------------------------------


def test_a_missing_kv_head_count_is_multi_head_attention():
    model = from_config(fields(num_key_value_heads=...))
    assert kv_bytes(model).used == 32 * 2 * 32 * 128 * 2
    falcon = from_config(
        {"model_type": "falcon", "n_layer": 32, "hidden_size": 4544, "n_head": 71, "multi_query": True, "vocab_size": 9}
    )
    assert kv_bytes(falcon).used == 32 * 2 * 64 * 2
    gpt2 = from_config({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    assert kv_bytes(gpt2).used == 12 * 2 * 768 * 2
    assert parameters(gpt2).total == pytest.approx(124e6, rel=0.01)
    assert parameters(gpt2).total == parameters(gpt2).active  # tied: the table is the output head


SWA = {"sliding_window": 100, "num_hidden_layers": 12}
MIMO = {"swa_num_key_value_heads": 4, "swa_head_dim": 64, "swa_v_head_dim": 32, "head_dim": 96, "v_head_dim": 48}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", **SWA}, 12),
        ({"model_type": "qwen2", **SWA, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", **SWA, "use_sliding_window": True, "max_window_layers": 8}, 4),
        ({"model_type": "gemma2", **SWA}, 6),
        ({"model_type": "gemma3_text", **SWA}, 10),
        ({"model_type": "cohere2", **SWA, "sliding_window_pattern": 3}, 8),
        ({"model_type": "gpt_oss", **SWA}, 6),
        ({"model_type": "llama4_text", "attention_chunk_size": 100, "num_hidden_layers": 12}, 9),
        ({**SWA, "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 7}, 5),
        ({**SWA, "sliding_window": None, "sliding_window_size": 100, "hybrid_layer_pattern": [0, 1, 1] * 4, **MIMO}, 8),
    ],
)
def test_which_layers_have_a_window(changes: dict, windows: int):
    model = from_config(fields(**changes))
    assert sum(g.layers for g in model.attention if isinstance(g, Heads) and g.window) == windows
    assert {g.window for g in model.attention if isinstance(g, Heads)} <= {None, 100}
    assert model.layers == 12
    if "hybrid_layer_pattern" in changes:
        assert model.attention == (Heads(4, 32, 8, 96, 48), Heads(8, 32, 4, 64, 32, window=100))


@pytest.mark.parametrize(
    "changes",
    [
        {"index_topk_pattern": "".join("F" if i < 3 or i % 4 == 2 else "S" for i in range(78))},
        {"indexer_types": ["full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)] + ["full"]},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_freq": 4},  # 0, 1, 5, 9, ..., 77
    ],
)
def test_how_to_say_which_layers_have_an_index_key(changes: dict):
    assert kv_bytes(from_config(fields("GLM-5", **changes))).used == 95232


def test_kimi_linear_keeps_a_latent_in_few_layers():
    linear = {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 8, "head_dim": 32}
    linear |= {"short_conv_kernel_size": 4}
    changes = {"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": linear}
    model = from_config(fields("DeepSeek-V3", **changes))
    assert model.attention[1] == State(2, 8, 8, 32, 32, 4, gate_rank=32)
    assert kv_bytes(model).used == 2 * 576 * 2
    hidden = 7168
    kda = 4 * hidden * 256 + 3 * 256 * 4 + 2 * 32 * (hidden + 256) + hidden * 8
    assert model.attention[1].parameters(hidden) == kda


def test_a_folder_or_a_nested_config(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": fields(), "model_type": "llava"}))
    assert kv_bytes(tmp_path).used == 131072
    omni = {"thinker_config": {"text_config": fields()}, "architectures": ["OmniForConditionalGeneration"]}
    assert kv_bytes(omni).used == 131072


def test_mtp_layers_are_left_out_and_said():
    with_mtp, without = (from_config(fields("DeepSeek-V3", num_nextn_predict_layers=n)) for n in (1, 0))
    assert (with_mtp.mtp_layers, without.mtp_layers) == (1, 0)
    assert with_mtp.parameters() == without.parameters()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": ...}, "config.json: num_hidden_layers is missing (nor n_layer, num_layers, n_layers)"),
        ({"hidden_size": ...}, "config.json: hidden_size is missing"),
        ({"num_attention_heads": ...}, "config.json: num_attention_heads is missing"),
        ({"vocab_size": ...}, "config.json: vocab_size is missing"),
        ({"intermediate_size": ...}, "config.json: intermediate_size is missing"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'; it must be a whole number from 1 to 2,000."),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers is 32.0; it must be a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; it must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number from 1 to 2,000."),
        ({"hidden_size": -4096}, "hidden_size is -4096"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000; it must be a whole number from 1"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; it must be a divisor of the 32 attention heads."),
        ({"hidden_size": 4100}, "head_dim is missing, and 32 heads do not divide hidden_size 4100."),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be true or false."),
        ({"layer_types": ["full_attention"]}, "layer_types is '1 entries'; it must be one per layer, 32 in all."),
        ({"layer_types": ["mamba"] * 32}, "layer_types entry is 'mamba'; it must be one of full_attention,"),
        ({"layer_types": "full"}, "layer_types is 'full'; it must be a list of text."),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        ({"sliding_window": 0}, "sliding_window is 0; it must be a whole number from 1 to"),
        ({"attn_type_list": [0] * 32}, "fluidq does not count lightning attention"),
        ({"architectures": ["BertModel"]}, "architectures is ['BertModel']; it must be a decoder that generates text"),
        ({"architectures": ["ViTForImageClassification"]}, "it must be a decoder that generates text"),
        ({"architectures": 7}, "architectures is 7; it must be a list of text."),
        ({"architectures": ..., "model_type": "roberta"}, "model_type is 'roberta'; it must be a decoder"),
        ({"model_type": 3}, "model_type is 3; it must be text."),
        ({"is_encoder_decoder": True}, "an encoder-decoder keeps another cache"),
        ({"text_config": 3}, "text_config is 3; it must be an object that holds the decoder's fields."),
        ({"text_config": {"num_hidden_layers": 3}}, "config.json: text_config.hidden_size is missing"),
        ({"compress_ratios": [4, 128]}, "compress_ratios is 'there'; it must be left out: fluidq does not count compr"),
        ({"hybrid_override_pattern": "M*-"}, "hybrid_override_pattern is 'M*-'; it must be left out"),
        ({"num_kv_shared_layers": 10}, "fluidq does not count layers that share a cache"),
        ({"num_local_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9; it must be at most the 8 exp"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"kv_lora_rank": 512, "sliding_window": 4}, "kv_lora_rank is 512; it must be left out where layers have a w"),
        ({"full_attention_interval": 4}, "linear_num_key_heads is missing"),
        ({"linear_attn_config": []}, "linear_attn_config is []; it must be an object."),
        ({"x" * 10: 1, "num_attention_heads": [1] * 9999}, "num_attention_heads is [1, 1, 1, 1, 1, 1, ...]; it must"),
    ],
)
def test_bad_configs(tmp_path: Path, changes: dict, message: str):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields(**changes)))
    with pytest.raises(InputError) as caught:
        read_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_vision_only_config_is_no_decoder():
    with pytest.raises(InputError, match="this is no text decoder"):
        from_config({"vision_config": {"hidden_size": 1024}, "model_type": "clip_like"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[1]", "holds a list; it must be a JSON object."),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b" " * (4 * 2**20 + 1), "holds more than 4,194,304 bytes; it must be a config.json, not the weights."),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_no_file(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere.json'; it must be a config.json or the folder that holds one"):
        read_config(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="the folder that holds one"):
        kv_bytes(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "bf8"}, "unknown KV cache dtype 'bf8'; did you mean 'fp8'?"),
        ({"dtype": "fp8_ds_mla"}, "dtype is 'fp8_ds_mla'; it must be one for keys and values: llama keeps no latent."),
        ({"tp": 3}, "tp is 3; it must be a divisor of the 32 attention heads of llama, such as 2."),
        ({"tp": 64}, "tp is 64; it must be a divisor of the 32 attention heads of llama, such as 32."),
        ({"tp": 0}, "tp is 0; it must be a whole number of GPUs >= 1."),
        ({"tp": 1.5}, "tp is 1.5"),
        ({"tp": math.nan}, "tp is nan"),
        ({"page": 0}, "page is 0; it must be a whole number of tokens >= 1."),
        ({"page": math.inf}, "page is inf"),
        ({"length": 0}, "length is 0; it must be a finite number of tokens > 0."),
        ({"length": -1.0}, "length is -1.0"),
        ({"length": math.nan}, "length is nan"),
        ({"length": math.inf}, "length is inf"),
    ],
)
def test_bad_arguments(given: dict, message: str):
    with pytest.raises(InputError) as caught:
        kv_bytes(config("Llama-3.1-8B"), **given)
    assert message in str(caught.value)


def test_tp_that_neither_divides_nor_is_divided_by_the_kv_heads():
    with pytest.raises(InputError, match="tp is 12; it must be a divisor or a multiple of the 8 KV heads of glm4_moe"):
        kv_bytes(config("GLM-4.5"), tp=12)
    with pytest.raises(InputError, match="tp is 128; it must be a divisor of the 64 attention heads of kimi_k2"):
        kv_bytes(config("Kimi-K2.5"), tp=128)


@pytest.mark.parametrize(("field", "value"), [("number", 0.0), ("number", math.nan), ("scale", -1.0), ("span", -1)])
def test_bad_cache_types(field: str, value: float):
    with pytest.raises(InputError, match=f"mine.{field}"):
        CacheType("mine", **{"number": 1.0, field: value})
