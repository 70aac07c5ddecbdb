"""Llama, Mistral, Qwen2 and Qwen3: rows in a shorter form, which `complete` turns into the common one (rows/common.py)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from .common import DTYPES, FAR, SPARSE, prompt, rng_for, write_safetensors

# Sizes: (layers, hidden, intermediate, heads, kv heads or None for "key absent", vocab).
# `config` is written into config.json as it stands, `drop` removes keys that transformers would write, `legacy` uses the older
# spelling of RoPE (`rope_theta` + `rope_scaling`) and of `torch_dtype`; otherwise `rope` becomes `rope_parameters`.
# `store`: F32, F16, BF16, or mix (the three in turn). `head`: untied, tied (no head tensor), tied-stored (an equal head tensor).
ROWS: list[dict[str, Any]] = [
    # --- llama ---
    dict(
        name="llama-plain", pack="llama", sizes=(2, 24, 38, 4, 2, 61), store="F32", head="untied",
        config={"rms_norm_eps": 1e-5, "hidden_act": "silu"}, rope={"rope_type": "default", "rope_theta": 10000.0},
        says="default RoPE in the new spelling, GQA 4:2, untied, F32, one file",
        prompts=[prompt("main", 19), prompt("one", 1), prompt("sparse", 7, SPARSE), prompt("far", 4, FAR)],
    ),
    dict(
        name="llama-minimal", pack="llama", sizes=(2, 30, 44, 3, None, 53), store="BF16", head="untied", legacy=True, embed=0.05,
        config={}, only_config=True, metadata=None,
        says="every optional key absent: KV heads = heads, head_dim 10, eps 1e-6 (small embeddings make it matter), theta 10000, "
        "SiLU, untied; BF16; no metadata block",
        prompts=[prompt("main", 17), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="llama-bias-llama3", pack="llama", sizes=(3, 28, 34, 4, 1, 53), store="mix", head="tied", legacy=True, shard="13KB",
        config={"attention_bias": True, "mlp_bias": True, "head_dim": 14, "rms_norm_eps": 1e-5, "max_position_embeddings": 1024},
        rope={"rope_theta": 50000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 256},
        says="llama3 RoPE in the old spelling, attention and MLP biases, head_dim 14 (hidden/heads is 7), MQA, tied, "
        "F32+F16+BF16 mixed, sharded",
        prompts=[prompt("main", 18), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="llama-linear-tied-stored", pack="llama", sizes=(2, 32, 42, 4, 2, 57), store="F16", head="tied-stored", legacy=True,
        config={"head_dim": None, "hidden_act": "gelu", "rms_norm_eps": 1e-5},
        rope={"rope_theta": 10000.0, "type": "linear", "factor": 4.0},
        shuffle=True, metadata={"format": "pt", "note": "tensors in no particular order"},
        says="linear RoPE spelled `type`, tied with an equal head tensor stored, head_dim null, exact GELU, F16, tensors in "
        "shuffled order, metadata with an extra key",
        prompts=[prompt("main", 16), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="llama-dynamic", pack="llama", sizes=(3, 24, 34, 2, 1, 51), store="BF16", head="untied",
        config={"max_position_embeddings": 11, "hidden_act": "relu", "rms_norm_eps": 1e-2},
        rope={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.5},
        says="dynamic RoPE with prompts at, one over and well over max_position_embeddings 11, ReLU, eps 1e-2, BF16",
        prompts=[prompt("over", 17), prompt("limit", 11), prompt("limit-plus-one", 12), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="llama-yarn", pack="llama", sizes=(2, 32, 38, 4, 4, 55), store="F16", head="untied",
        config={"max_position_embeddings": 16384, "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 4},
        rope={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 4096},
        says="YaRN with every optional key absent (attention factor derived, beta 32/1, truncated), tanh GELU, MHA, F16",
        prompts=[prompt("main", 17), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="llama-longrope", pack="llama", sizes=(2, 36, 40, 3, 1, 53), store="BF16", head="untied",
        config={"max_position_embeddings": 48},
        rope={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 12,
              "short_factor": [1.0, 1.05, 1.1, 1.25, 1.4, 1.6], "long_factor": [1.0, 1.3, 2.0, 3.1, 4.5, 7.0]},
        says="LongRoPE without `factor` (max/original decides), prompts of original and original + 1 tokens, MQA, BF16",
        prompts=[prompt("over", 17), prompt("limit", 12), prompt("limit-plus-one", 13), prompt("two", 2),
                 prompt("sparse-limit", 4, [0, 2, 7, 11]), prompt("sparse-over", 4, [0, 2, 7, 12])],
    ),
    # --- mistral ---
    dict(
        name="mistral-window", pack="mistral", sizes=(3, 28, 30, 4, 2, 59), store="BF16", head="untied", legacy=True,
        config={"sliding_window": 7, "head_dim": 14, "rms_norm_eps": 1e-5}, rope={"rope_theta": 1000000.0},
        says="window 7 on all layers, head_dim 14 (hidden/heads is 7), theta 1e6 in the old spelling, BF16",
        prompts=[prompt("main", 19), prompt("window", 7), prompt("window-plus-one", 8), prompt("sparse", 11, [0, 2, 3, 9, 10, 40, 41, 500, 501, 502, 6000])],
    ),
    dict(
        name="mistral-long", pack="mistral", sizes=(2, 30, 46, 5, 1, 53), store="F16", head="untied", shard="12KB",
        config={"sliding_window": 16, "head_dim": None}, drop=["head_dim"],
        rope={"rope_type": "default", "rope_theta": 10000.0},
        says="a prompt of 70 tokens with window 16, MQA 5:1, head_dim absent, F16, sharded",
        prompts=[prompt("main", 70), prompt("one", 1)],
    ),
    dict(
        name="mistral-no-window", pack="mistral", sizes=(2, 20, 34, 5, 5, 51), store="F32", head="tied", embed=0.1,
        config={"sliding_window": None, "head_dim": None, "hidden_act": "gelu"},
        rope={"rope_type": "linear", "rope_theta": 20000.0, "factor": 3.0},
        says="sliding_window null, linear RoPE, head_dim null, MHA, tied, exact GELU, F32",
        prompts=[prompt("main", 18), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="mistral-defaults-yarn", pack="mistral", sizes=(2, 31, 25, 16, None, 53), store="mix", head="untied", shuffle=True,
        config={"head_dim": 6, "max_position_embeddings": 4096}, drop=["sliding_window", "num_key_value_heads"],
        rope={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 512,
              "mscale": 0.8, "mscale_all_dim": 1.3, "truncate": False},
        says="sliding_window absent (4096, counted in cache slots: the sparse prompt spans more positions), KV heads absent (8 of "
        "16), head_dim 6, YaRN with mscale and mscale_all_dim, not truncated; F32+F16+BF16 mixed in shuffled order with odd sizes, so that some F32 tensors are not aligned",
        prompts=[prompt("main", 16), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="mistral-longrope", pack="mistral", sizes=(2, 32, 38, 4, 2, 51), store="F16", head="untied", legacy=True,
        config={"sliding_window": 5, "max_position_embeddings": 40, "original_max_position_embeddings": 10},
        rope={"rope_theta": 10000.0, "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5],
              "long_factor": [1.1, 1.9, 3.7, 6.0]},
        says="LongRoPE in the old spelling with original_max_position_embeddings beside it instead of inside, window 5, F16",
        prompts=[prompt("over", 16), prompt("limit", 10), prompt("limit-plus-one", 11), prompt("two", 2)],
    ),
    # --- qwen2 ---
    dict(
        name="qwen2-plain", pack="qwen2", sizes=(2, 36, 34, 6, 2, 67), store="BF16", head="tied", legacy=True,
        config={"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 1}, rope={"rope_theta": 1000000.0},
        drop=["layer_types"],
        says="QKV biases, tied, sliding_window 5 present but switched off, theta 1e6 in the old spelling, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen2-window-yarn", pack="qwen2", sizes=(4, 24, 30, 2, None, 53), store="F16", head="untied", legacy=True, shard="9KB",
        config={"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2, "num_key_value_heads": None,
                "max_position_embeddings": 8192},
        rope={"rope_theta": 10000.0, "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        drop=["layer_types"],
        says="window 6 on layers 2 and 3 of 4 by max_window_layers, YaRN spelled `type` in the old spelling, KV heads null, F16, sharded",
        prompts=[prompt("main", 18), prompt("two", 2), prompt("sparse", 9, [0, 2, 3, 9, 40, 41, 500, 501, 6000])],
    ),
    dict(
        name="qwen2-layer-types-dynamic", pack="qwen2", sizes=(3, 24, 26, 4, 1, 57), store="F32", head="untied", shuffle=True,
        config={"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 28, "head_dim": 10,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "hidden_act": "gelu",
                "max_position_embeddings": 10, "rms_norm_eps": 1e-5},
        rope={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        says="layer_types overrides max_window_layers, window 5, head_dim 10 (hidden/heads is 6), MQA, dynamic RoPE acting and not, "
        "exact GELU, F32 in shuffled order",
        prompts=[prompt("over", 16), prompt("limit", 10), prompt("limit-plus-one", 11), prompt("one", 1)],
    ),
    dict(
        name="qwen2-longrope", pack="qwen2", sizes=(2, 36, 38, 6, 3, 53), store="BF16", head="tied-stored",
        config={"max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh"},
        rope={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 9, "factor": 5.0,
              "short_factor": [1.0, 1.2, 1.3], "long_factor": [1.2, 2.6, 5.5]},
        says="LongRoPE with `factor` (differs from max/original), odd number of frequencies, tied with an equal head tensor stored, "
        "tanh GELU, BF16",
        prompts=[prompt("over", 16), prompt("limit", 9), prompt("limit-plus-one", 10), prompt("sparse", 7, SPARSE)],
    ),
    # --- qwen3 ---
    dict(
        name="qwen3-plain", pack="qwen3", sizes=(2, 28, 42, 4, 2, 71), store="BF16", head="tied", legacy=True, bare=True,
        config={"head_dim": 12, "use_sliding_window": False, "sliding_window": None}, rope={"rope_theta": 1000000.0},
        drop=["layer_types"],
        says="QK-norm, head_dim 12 (hidden/heads is 7), tied, tensor names without `model.`, theta 1e6 in the old spelling, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen3-bias-yarn", pack="qwen3", sizes=(3, 28, 30, 4, 2, 53), store="mix", head="untied", shard="16KB",
        config={"head_dim": 12, "attention_bias": True, "rms_norm_eps": 1e-2, "max_position_embeddings": 2560},
        rope={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 640,
              "attention_factor": 0.85, "beta_fast": 8.0, "beta_slow": 0.5},
        says="QK-norm, biases on q, k, v and o, eps 1e-2, YaRN with attention_factor and beta_fast/beta_slow given, F32+F16+BF16 "
        "mixed, sharded",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen3-window-llama3", pack="qwen3", sizes=(3, 30, 36, 3, 1, 55), store="F16", head="untied",
        config={"head_dim": 12, "use_sliding_window": True, "sliding_window": 6, "hidden_act": "relu",
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "max_position_embeddings": 512},
        rope={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 256},
        says="QK-norm, window 6 by layer_types, llama3 RoPE in the new spelling, MQA, ReLU, F16",
        prompts=[prompt("main", 19), prompt("one", 1), prompt("sparse", 9, [0, 2, 3, 9, 40, 41, 500, 501, 6000])],
    ),
    dict(
        name="qwen3-head-dim-default", pack="qwen3", sizes=(2, 18, 26, 2, 1, 51), store="BF16", head="untied", legacy=True,
        config={"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        rope={"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}, drop=["layer_types", "head_dim"],
        says="head_dim absent (128, not hidden/heads), window 4 from layer 1 on by max_window_layers, linear RoPE in the old spelling, BF16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen3-longrope", pack="qwen3", sizes=(2, 22, 30, 2, 2, 53), store="F32", head="untied",
        config={"head_dim": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
        rope={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 11, "factor": 4.0,
              "attention_factor": 1.31, "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7], "long_factor": [1.0, 1.5, 2.5, 4.0, 8.0]},
        says="QK-norm, LongRoPE with attention_factor given, MHA, head_dim 10 (hidden/heads is 11), F32",
        prompts=[prompt("over", 16), prompt("limit", 11), prompt("limit-plus-one", 12), prompt("two", 2)],
    ),
]

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def written_config(row: dict[str, Any]) -> dict[str, Any]:
    """The keys that the row puts into config.json."""
    layers, hidden, intermediate, heads, kv_heads, vocab = row["sizes"]
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[row["pack"]]], "model_type": row["pack"],
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads,
    }
    if kv_heads is not None:
        config["num_key_value_heads"] = kv_heads
    if not row.get("only_config"):
        config["tie_word_embeddings"] = row["head"] != "untied"
    stored = "float32" if row["store"] == "mix" else str(DTYPES[row["store"]]).removeprefix("torch.")
    config["torch_dtype" if row.get("legacy") else "dtype"] = stored
    rope = dict(row.get("rope", {}))
    if row.get("legacy"):
        if not row.get("only_config"):
            config["transformers_version"] = "4.46.0"
        if rope:
            config["rope_theta"] = rope.pop("rope_theta")
            config["rope_scaling"] = rope or None
    else:
        config["rope_parameters"] = rope
    return config | row["config"]


def rewrite(row: dict[str, Any], folder: Path, model: torch.nn.Module) -> None:
    """Write the one-file checkpoint again where the row asks for an order, names, a head or metadata of its own."""
    tensors = dict(model.named_parameters())
    if row["head"] == "tied-stored":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if row.get("bare"):
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    names = sorted(tensors)
    if row.get("shuffle"):
        names = [names[i] for i in rng_for(row["name"], "order").permutation(len(names))]
    write_safetensors(folder / "model.safetensors", [(name, tensors[name]) for name in names], row.get("metadata", {"format": "pt"}))


def complete(row: dict[str, Any]) -> dict[str, Any]:
    """The row in the common form."""
    result = {key: row[key] for key in ("name", "pack", "store", "shard", "embed", "says", "prompts") if key in row}
    result |= {"config": written_config(row), "drop": list(row.get("drop", [])), "exact": row.get("only_config", False)}
    if row.get("legacy"):
        result["drop"] += ["rope_parameters", "dtype"]
    if any(key in row for key in ("shuffle", "metadata", "bare")) or row["head"] == "tied-stored":
        result["finish"] = partial(rewrite, row)
    return result


FIXTURES = [complete(row) for row in ROWS]
