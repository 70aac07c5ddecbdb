"""Dense families beside Llama, Mistral, Qwen2 and Qwen3: other norms, residual orders, rotary shapes and fused tensors.

`# transformers:` marks what its code does and its configuration or documentation does not say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .common import SPARSE, edit_tensors, prompt

SPARSE_WINDOW = [0, 2, 3, 9, 40, 41, 500, 501, 6000]  # longer than the windows here
FULL, SLIDING = "full_attention", "sliding_attention"


def prompts(count: int, short: int = 1, positions: list[int] | None = SPARSE) -> list[dict[str, Any]]:
    """The usual three prompts."""
    return [prompt("main", count), prompt("one" if short == 1 else "two", short), prompt("sparse", len(positions), positions)]


def old_buffers_neox(folder: Path, model: torch.nn.Module) -> None:
    """Mask and RoPE buffers that files written by transformers before 4.30 carry."""
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for layer in range(model.config.num_hidden_layers):
            at = f"gpt_neox.layers.{layer}.attention."
            tensors[at + "bias"] = torch.tril(torch.ones(24, 24, dtype=torch.uint8)).view(1, 1, 24, 24)
            tensors[at + "masked_bias"] = torch.tensor(-1e4, dtype=torch.float16)
            tensors[at + "rotary_emb.inv_freq"] = torch.tensor([1.0, 0.1], dtype=torch.float16)
        return tensors

    edit_tensors(folder, change)


def old_names_gpt2(folder: Path, model: torch.nn.Module) -> None:
    """Names without `transformer.` and the mask buffers, as in the first published GPT-2 files."""
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        for layer in range(model.config.n_layer):
            tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(24, 24)).view(1, 1, 24, 24)
        return tensors

    edit_tensors(folder, change)


FIXTURES: list[dict[str, Any]] = [
    # --- ministral3 ---
    # transformers: after RoPE each query is multiplied by 1 + beta * ln(1 + floor(position / original_max_position_embeddings)),
    # with both numbers from rope_parameters; there is no default for a missing llama_4_scaling_beta (the forward pass fails).
    # transformers: rope_parameters.max_position_embeddings is accepted and never read; `type` beside `rope_type` is redundant.
    dict(
        name="ministral3-scaling", pack="ministral3", store="BF16",
        config={
            "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "dtype": "bfloat16", "vocab_size": 53,
            "hidden_size": 28, "intermediate_size": 38, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "rms_norm_eps": 1e-3, "max_position_embeddings": 128, "sliding_window": None, "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn", "type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 8,
                "max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.35,
            },
        },
        says="query scaling by position in steps of original_max_position_embeddings 8 (beta 0.35), YaRN with mscale = mscale_all_dim "
        "(factor 1), head_dim 10 (hidden/heads is 7), eps 1e-3, untied, BF16",
        prompts=prompts(19),
    ),
    dict(
        name="ministral3-window-tied", pack="ministral3", store="F16", shard="12KB",
        config={
            "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "dtype": "float16", "vocab_size": 57,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "head_dim": 12, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "sliding_window": 7, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
                "beta_fast": 16.0, "beta_slow": 0.5, "mscale": 0.8, "mscale_all_dim": 1.3, "llama_4_scaling_beta": 0.1,
            },
        },
        says="window 7, YaRN with mscale and mscale_all_dim that differ, query scaling seen by the sparse prompt only, MQA, tied, F16, sharded",
        prompts=prompts(17, 2, SPARSE_WINDOW),
    ),
    # --- seed_oss ---
    dict(
        name="seed_oss-plain", pack="seed_oss", store="BF16",
        config={
            "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "rms_norm_eps": 1e-6, "max_position_embeddings": 524288, "attention_bias": True,
            "attention_out_bias": False, "attention_dropout": 0.1, "residual_dropout": 0.1, "mlp_bias": False, "pretraining_tp": 1,
            "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": False,
            "transformers_version": "4.55.0",
        },
        says="biases on q, k and v but not on o, head_dim 10 (hidden/heads is 7), theta 1e7 in the old spelling with rope_scaling "
        "`default`, dropout keys that are not zero, untied, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="seed_oss-all-biases", pack="seed_oss", store="mix",
        config={
            "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "dtype": "float32", "vocab_size": 47,
            "hidden_size": 22, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 8, "rms_norm_eps": 1e-2, "max_position_embeddings": 8192, "attention_bias": False,
            "attention_out_bias": True, "mlp_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
            "tie_word_embeddings": True,
        },
        says="a bias on o but not on q, k and v, MLP biases, linear RoPE, MQA, eps 1e-2, tied, F32+F16+BF16 mixed",
        prompts=prompts(16, 2),
    ),
    # --- smollm3 ---
    # transformers: no_rope_layers holds 1 for a layer WITH RoPE and 0 for one without.
    dict(
        name="smollm3-plain", pack="smollm3", store="BF16",
        config={
            "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "torch_dtype": "bfloat16", "vocab_size": 59,
            "hidden_size": 32, "intermediate_size": 42, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 65536, "max_window_layers": 28, "attention_bias": False, "mlp_bias": False,
            "no_rope_layer_interval": 4, "no_rope_layers": [1, 0, 1, 0], "layer_types": [FULL] * 4, "pretraining_tp": 2,
            "use_sliding_window": False, "sliding_window": None, "rope_scaling": None, "rope_theta": 5000000.0,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "transformers_version": "4.53.0",
        },
        drop=["tie_word_embeddings"], embed=0.5,
        says="layers 1 and 3 without RoPE by no_rope_layers (which overrules the interval), tie_word_embeddings absent (tied), theta 5e6 "
        "in the old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="smollm3-window-bias", pack="smollm3", store="F16",
        config={
            "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 28, "intermediate_size": 34, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 10, "rms_norm_eps": 1e-3, "max_position_embeddings": 8192, "attention_bias": True, "mlp_bias": True,
            "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 6,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048},
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
        },
        drop=["no_rope_layers", "layer_types"],
        # transformers: with layer_types absent the window falls on the layers WITHOUT RoPE; those with RoPE attend to everything.
        says="no_rope_layers and layer_types absent: layers 1 and 3 have no RoPE (interval 2) and window 6, the others YaRN and full "
        "attention; biases everywhere, head_dim 10 (hidden/heads is 7), MQA, untied, F16",
        prompts=prompts(18, 2, SPARSE_WINDOW),
    ),
    # --- ernie4_5 ---
    dict(
        name="ernie4_5-plain", pack="ernie4_5", store="BF16",
        config={
            "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "use_bias": False, "rope_theta": 500000.0,
            "rope_scaling": None, "tie_word_embeddings": True, "transformers_version": "4.54.0",
        },
        says="interleaved RoPE over the whole head, head_dim 10 (hidden/heads is 7), tied, theta 5e5 in the old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="ernie4_5-bias", pack="ernie4_5", store="F16",
        config={
            "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
            "head_dim": 8, "rms_norm_eps": 1e-2, "max_position_embeddings": 4096, "use_bias": True, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 1024},
        },
        says="interleaved RoPE with llama3 scaling, use_bias (all seven projections), eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- hunyuan_v1_dense ---
    # transformers: `dynamic` with a non-zero `alpha` is a fixed base theta * alpha^(dim/(dim-2)); factor, beta_*, mscale* are not read.
    # transformers: use_qk_norm, mlp_bias, use_cla and the other extra keys are not read: query_layernorm and key_layernorm (after
    # RoPE) are always there. head_dim must be given (null fails).
    dict(
        name="hunyuan_v1_dense-alpha", pack="hunyuan_v1_dense", store="BF16",
        config={
            "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "attention_head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "attention_bias": False,
            "mlp_bias": False, "use_qk_norm": True, "use_cla": False, "cla_share_factor": 2, "norm_type": "rms",
            "use_rotary_pos_emb": True, "position_embedding_xdrope": False, "pretraining_tp": 1, "org_vocab_size": 61, "pad_id": 0,
            "add_classification_head": False, "class_num": 0, "dense_list": [28, 0], "pool_type": "last", "mask_init_id": 12,
            "im_start_id": 3, "im_end_id": 5, "im_newline_id": 11, "text_start_id": 7, "text_end_id": 8, "sep_token_id": 4,
            "eod_token_id": 3, "rope_theta": 10000.0,
            "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "type": "dynamic"},
            "tie_word_embeddings": True, "transformers_version": "4.41.2",
        },
        says="QK-norm after RoPE, dynamic RoPE with alpha 1000 in the old spelling, head_dim 10 (hidden/heads is 7), tied, the extra "
        "keys of the published files, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="hunyuan_v1_dense-bias", pack="hunyuan_v1_dense", store="F16",
        config={
            "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 12, "rms_norm_eps": 1e-2, "max_position_embeddings": 2048, "attention_bias": True, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        },
        says="QK-norm after RoPE, biases on q, k, v and o, default RoPE with theta 2e4, MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    dict(
        name="hunyuan_v1_dense-dynamic", pack="hunyuan_v1_dense", store="F32",
        config={
            "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "dtype": "float32", "vocab_size": 47,
            "hidden_size": 20, "intermediate_size": 26, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 11, "attention_bias": False, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.5},
        },
        says="dynamic RoPE without alpha (the usual one) with prompts at, one over and well over max_position_embeddings 11, MHA, F32",
        prompts=[prompt("over", 16), prompt("limit", 11), prompt("limit-plus-one", 12), prompt("one", 1)],
    ),
    # --- exaone4 ---
    # transformers: a layer has RoPE if it is a sliding one, or if sliding_window is null (then all of them); sliding_window null needs
    # layer_types in the file (the default divides by 0). The pattern string is never parsed.
    dict(
        name="exaone4-hybrid", pack="exaone4", store="BF16",
        config={
            "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 34, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "sliding_window": 6, "sliding_window_pattern": "LLLG",
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "rope_theta": 1000000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 256},
            "tie_word_embeddings": False, "transformers_version": "4.54.0",
        },
        says="post-norm only, per-head QK-norm before RoPE, window 6 with RoPE (llama3) on sliding layers and no RoPE on full ones, "
        "head_dim 10 (hidden/heads is 7), untied, old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="exaone4-all-full", pack="exaone4", store="F16",
        config={
            "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "head_dim": 6, "rms_norm_eps": 1e-2, "max_position_embeddings": 65536, "sliding_window": None, "sliding_window_pattern": None,
            "layer_types": [FULL, FULL], "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        embed=0.5,
        says="post-norm only with sliding_window null: full attention with RoPE on all layers, MQA, eps 1e-2, tied, F16",
        prompts=prompts(16, 2),
    ),
    # --- olmo2 ---
    # transformers: the norm multiplies by its weight before the cast back; q_norm and k_norm run over all heads together.
    dict(
        name="olmo2-plain", pack="olmo2", store="BF16",
        config={
            "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "attention_bias": False, "rope_theta": 500000.0, "rope_scaling": None,
            "tie_word_embeddings": False, "transformers_version": "4.47.0",
        },
        says="post-norm only, QK-norm over the full width before the split into heads, GQA 6:2, untied, theta 5e5 in the old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="olmo2-bias-tied", pack="olmo2", store="F16", shard="8KB",
        config={
            "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 24, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": None,
            "head_dim": 10, "rms_norm_eps": 1e-2, "max_position_embeddings": 4096, "attention_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, "tie_word_embeddings": True,
        },
        embed=0.5,
        says="biases on q, k, v and o, KV heads null (= heads), head_dim 10 (hidden/heads is 8), linear RoPE, eps 1e-2, tied, F16, sharded",
        prompts=prompts(16, 2),
    ),
    # --- olmo3 ---
    # transformers: in the old spelling rope_scaling goes to the full layers only; rope_theta goes to the full layers too, and the
    # sliding ones always get 500000 (the key is popped once and asked for twice).
    # transformers: the YaRN key `truncate` is read from the outer dictionary, so inside a per-layer-type one it has no effect.
    dict(
        name="olmo3-yarn", pack="olmo3", store="BF16",
        config={
            "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 42, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "attention_bias": False, "sliding_window": 6,
            "layer_types": [SLIDING, SLIDING, FULL, FULL], "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 32.0,
                             "beta_slow": 1.0, "attention_factor": 1.2079441541679836},
            "tie_word_embeddings": False, "transformers_version": "4.57.0",
        },
        says="window 6 on two layers of four, YaRN on the full layers only (attention_factor given), full-width QK-norm, post-norm only, "
        "untied, old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="olmo3-two-bases", pack="olmo3", store="F16",
        config={
            "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-2, "max_position_embeddings": 4096, "attention_bias": True, "sliding_window": 5,
            "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
                SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
            },
            "tie_word_embeddings": True,
        },
        embed=0.5,
        says="rope_parameters per layer type with two bases (linear on full layers), window 5, biases on q, k, v and o, MQA, eps 1e-2, tied, F16",
        prompts=prompts(17, 2, SPARSE_WINDOW),
    ),
    # --- glm4 ---
    # transformers: post_attention_layernorm is the norm BEFORE the MLP; post_self_attn_layernorm and post_mlp_layernorm close the branches.
    dict(
        name="glm4-plain", pack="glm4", store="BF16",
        config={
            "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 38, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 12, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "attention_bias": True,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": [3, 5, 7], "pad_token_id": 3,
            "transformers_version": "4.52.0",
        },
        says="sandwich norms, interleaved RoPE over half of head_dim 12 (hidden/heads is 7), fused gate_up_proj, biases on q, k and v, "
        "untied, old spelling with partial_rotary_factor, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="glm4-quarter-tied", pack="glm4", store="F16",
        config={
            "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 16, "rms_norm_eps": 1e-2, "max_position_embeddings": 4096, "attention_bias": False, "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": True, "eos_token_id": [3, 5], "pad_token_id": 3,
        },
        embed=0.5,
        says="interleaved RoPE over a quarter of head_dim 16, no biases, exact GELU, MQA, eps 1e-2, tied, new spelling, F16",
        prompts=prompts(16, 2),
    ),
    # --- cohere ---
    # transformers: with tie_word_embeddings absent the head is tied.
    dict(
        name="cohere-plain", pack="cohere", store="BF16",
        config={
            "architectures": ["CohereForCausalLM"], "model_type": "cohere", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "max_position_embeddings": 8192, "model_max_length": 131072,
            "attention_bias": False, "use_qk_norm": False, "rope_theta": 8000000.0, "transformers_version": "4.38.2",
        },
        drop=["tie_word_embeddings"],
        says="attention and MLP in parallel from one LayerNorm without bias, interleaved RoPE, logit_scale 0.0625, tie_word_embeddings "
        "absent (tied), theta 8e6 in the old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="cohere-qk-norm", pack="cohere", store="F16",
        config={
            "architectures": ["CohereForCausalLM"], "model_type": "cohere", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "layer_norm_eps": 1e-2, "logit_scale": 0.8333, "max_position_embeddings": 4096, "attention_bias": True, "use_qk_norm": True,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 75000.0, "factor": 2.0}, "tie_word_embeddings": False,
        },
        says="use_qk_norm (LayerNorm per head with a [heads, head_dim] weight), biases on q, k, v and o, logit_scale 0.8333, dynamic RoPE (acting on the sparse prompt), "
        "MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- cohere2 ---
    # transformers: head_dim in the file is overwritten by hidden_size / num_attention_heads. A layer has RoPE only if it is a sliding
    # one and sliding_window is not null. sliding_window_pattern (4 if absent) counts only where layer_types is absent. layer_switch,
    # order_of_interleaved_layers, position_embedding_type, rotary_pct, use_* are not read.
    dict(
        name="cohere2-hybrid", pack="cohere2", store="BF16",
        config={
            "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 38, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "layer_norm_eps": 1e-5, "logit_scale": 0.25, "max_position_embeddings": 8192, "attention_bias": False,
            "sliding_window": 6, "sliding_window_pattern": 2, "layer_switch": 2, "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "rope_theta": 50000, "rope_scaling": None,
            "cache_implementation": "hybrid", "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
            "use_parallel_embedding": True, "transformers_version": "4.48.0",
        },
        drop=["layer_types", "tie_word_embeddings"],
        says="window 6 with interleaved RoPE on layers 0 and 2, no RoPE and full attention on 1 and 3 by sliding_window_pattern 2 "
        "(layer_types absent), tied by default, logit_scale 0.25, the extra keys of the published files, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="cohere2-bias-untied", pack="cohere2", store="F16",
        config={
            "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 1,
            "head_dim": 6, "layer_norm_eps": 1e-2, "logit_scale": 1.3, "max_position_embeddings": 8192, "attention_bias": True,
            "hidden_act": "gelu", "sliding_window": 5, "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, "tie_word_embeddings": False,
        },
        says="layer_types in the file, biases on q, k, v and o, exact GELU, linear RoPE on sliding layers, window 5, eps 1e-2, "
        "logit_scale 1.3, MQA, untied, F16",
        prompts=prompts(16, 2, SPARSE_WINDOW),
    ),
    # --- starcoder2 ---
    # transformers: activation_function, norm_type and mlp_type are not read (hidden_act is); the LayerNorms have biases whatever use_bias says.
    dict(
        name="starcoder2-window", pack="starcoder2", store="BF16",
        config={
            "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh", "activation_function": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "norm_type": "layer_norm",
            "mlp_type": "default", "use_bias": True, "sliding_window": 7, "max_position_embeddings": 16384, "rope_theta": 999999.4420358813,
            "attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 0,
            "transformers_version": "4.37.0.dev0",
        },
        drop=["tie_word_embeddings"], embed=0.5,
        says="LayerNorm with bias, MLP of two matrices with tanh GELU, biases everywhere, window 7, tied by default, a theta that is no "
        "round number in the old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="starcoder2-no-bias", pack="starcoder2", store="F16",
        config={
            "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 46, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "hidden_act": "gelu", "norm_epsilon": 1e-2, "use_bias": False, "sliding_window": None, "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False, "bos_token_id": 0,
            "eos_token_id": 0,
        },
        says="use_bias false (the LayerNorms keep theirs), exact GELU, no window, MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- stablelm ---
    # transformers: with partial_rotary_factor absent it is 0.25; o_proj and the MLP never have biases.
    dict(
        name="stablelm-serial", pack="stablelm", store="F16",
        config={
            "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "torch_dtype": "float16", "vocab_size": 61,
            "hidden_size": 40, "intermediate_size": 46, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "layer_norm_eps": 1e-5, "max_position_embeddings": 4096, "use_qkv_bias": True, "partial_rotary_factor": 0.4,
            "rope_theta": 10000, "rope_scaling": None, "tie_word_embeddings": False, "hidden_dropout": 0.0, "transformers_version": "4.38.0",
        },
        drop=["qk_layernorm", "use_parallel_residual"],
        says="LayerNorm with bias, RoPE over 0.4 of head_dim 10, biases on q, k and v, gated MLP, untied, old spelling with "
        "partial_rotary_factor, F16",
        prompts=prompts(17),
    ),
    dict(
        name="stablelm-parallel", pack="stablelm", store="BF16",
        config={
            "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "dtype": "bfloat16", "vocab_size": 53,
            "hidden_size": 40, "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "layer_norm_eps": 1e-2, "max_position_embeddings": 4096, "use_qkv_bias": False, "qk_layernorm": True,
            "use_parallel_residual": True, "tie_word_embeddings": True, "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
        },
        embed=0.5,
        says="use_parallel_residual (attention and MLP share input_layernorm), qk_layernorm (a LayerNorm without bias for each head, a "
        "tensor each), RoPE over half of head_dim 8, exact GELU, MQA, eps 1e-2, tied, BF16",
        prompts=prompts(16, 2),
    ),
    # --- nemotron ---
    # transformers: with partial_rotary_factor absent it is 0.5; the MLP is down(relu(up(x))^2) without a gate.
    # num_key_value_heads must be given (null fails).
    dict(
        name="nemotron-plain", pack="nemotron", store="BF16", norm_zero=True,
        config={
            "architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 12, "hidden_act": "relu2", "norm_eps": 1e-5, "max_position_embeddings": 4096, "attention_bias": False,
            "mlp_bias": False, "partial_rotary_factor": 0.5, "rope_theta": 10000, "tie_word_embeddings": False,
            "transformers_version": "4.44.0",
        },
        says="LayerNorm with (1 + weight) and bias, relu squared without a gate, RoPE over half of head_dim 12 (hidden/heads is 7), "
        "untied, old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="nemotron-bias-tied", pack="nemotron", store="F16", norm_zero=True,
        config={
            "architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
            "head_dim": None, "hidden_act": "relu2", "norm_eps": 1e-2, "max_position_embeddings": 4096, "attention_bias": True,
            "mlp_bias": True, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.4},
        },
        embed=0.5,
        says="attention and MLP biases, MHA, head_dim null, linear RoPE over 0.4 of head_dim 10, eps 1e-2, tied, F16",
        prompts=prompts(16, 2),
    ),
    # --- phi ---
    # transformers: lm_head has a bias, tied or not; q, k, v, dense, fc1, fc2 always have biases; partial_rotary_factor is 0.5 if absent.
    dict(
        name="phi-plain", pack="phi", store="F16",
        config={
            "architectures": ["PhiForCausalLM"], "model_type": "phi", "torch_dtype": "float16", "vocab_size": 61,
            "hidden_size": 40, "intermediate_size": 54, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": None,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "partial_rotary_factor": 0.4,
            "qk_layernorm": False, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False,
            "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.1, "transformers_version": "4.37.0",
        },
        says="attention and MLP in parallel from one LayerNorm with bias, head with a bias, tanh GELU spelled gelu_new, RoPE over 0.4 of "
        "head_dim 10, MHA (KV heads null), untied, old spelling, F16",
        prompts=prompts(17),
    ),
    dict(
        name="phi-qk-norm-tied", pack="phi", store="BF16",
        config={
            "architectures": ["PhiForCausalLM"], "model_type": "phi", "dtype": "bfloat16", "vocab_size": 53,
            "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "hidden_act": "gelu", "layer_norm_eps": 1e-2, "max_position_embeddings": 2048, "qk_layernorm": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5}, "tie_word_embeddings": True,
        },
        embed=0.5,
        says="qk_layernorm (LayerNorm with bias, one for all heads), GQA 4:2, exact GELU, RoPE over half of head_dim 8, eps 1e-2, tied "
        "with a head bias, BF16",
        prompts=prompts(16, 2),
    ),
    # --- phi3 ---
    # transformers: `su` and `yarn` in rope_scaling mean longrope here, but fail to load unless original_max_position_embeddings lies
    # inside the dictionary too. original_max_position_embeddings beside the dictionary wins over one inside. The factor of cos and sin comes from max/original, on both sides of the switch.
    # transformers: generate() throws its cache away when a sequence grows over the switch, so its tokens follow whole-prompt logits.
    dict(
        name="phi3-window", pack="phi3", store="BF16",
        config={
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "attention_bias": False,
            "rope_theta": 10000.0, "rope_scaling": None, "sliding_window": 7, "tie_word_embeddings": False,
            "pad_token_id": 5, "eos_token_id": 5, "transformers_version": "4.40.2",
            "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        },
        says="fused qkv_proj and gate_up_proj, MHA, window 7, rope_scaling null, untied, old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="phi3-longrope", pack="phi3", store="F16",
        config={
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "torch_dtype": "float16", "vocab_size": 53,
            "hidden_size": 40, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-2, "max_position_embeddings": 352, "original_max_position_embeddings": 11, "attention_bias": False,
            "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.1, 1.9, 3.7, 6.0]},
            "sliding_window": 262144, "tie_word_embeddings": False, "pad_token_id": 5, "eos_token_id": 5, "transformers_version": "4.41.0",
        },
        says="LongRoPE spelled `type` with original_max_position_embeddings 11 beside it, prompts of original, original + 1 and more tokens, MQA in the fused qkv_proj, eps 1e-2, "
        "untied, F16",
        prompts=[prompt("over", 17), prompt("limit", 11), prompt("limit-plus-one", 12), prompt("sparse-limit", 4, [0, 2, 7, 10]),
                 prompt("sparse-over", 4, [0, 2, 7, 11])],
    ),
    dict(
        name="phi3-partial-rotary", pack="phi3", store="BF16",
        config={
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "torch_dtype": "bfloat16", "vocab_size": 57,
            "hidden_size": 32, "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "original_max_position_embeddings": 12, "attention_bias": False,
            "mlp_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "partial_rotary_factor": 0.75,
            "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.0, 1.0], "long_factor": [1.0, 1.118320672, 32.03]},
            "sliding_window": 262144, "tie_word_embeddings": True, "pad_token_id": 5, "eos_token_id": 5, "transformers_version": "4.45.0",
        },
        embed=0.5,
        says="Phi-4-mini: RoPE over 3/4 of head_dim 8 with LongRoPE on both sides of the switch, GQA 4:2, tied, the extra keys of the "
        "published file, BF16",
        prompts=[prompt("over", 16), prompt("limit", 12), prompt("limit-plus-one", 13), prompt("one", 1)],
    ),
    # --- gpt_neox ---
    # transformers: query_key_value is [heads, (q, k, v), head_dim], interleaved by head. embed_out is the head. rotary_pct is 0.25 and
    # rotary_emb_base 10000 if absent; rope_theta is not read in the old spelling.
    dict(
        name="gpt_neox-parallel", pack="gpt_neox", store="F16", finish=old_buffers_neox,
        config={
            "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "torch_dtype": "float16", "vocab_size": 61,
            "hidden_size": 40, "intermediate_size": 54, "num_hidden_layers": 3, "num_attention_heads": 5, "hidden_act": "gelu",
            "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "rotary_pct": 0.5, "rotary_emb_base": 10000,
            "use_parallel_residual": True, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
            "transformers_version": "4.24.0",
        },
        drop=["rope_parameters", "attention_bias", "attention_dropout", "hidden_dropout", "classifier_dropout"],
        says="parallel residual with two LayerNorms, fused query_key_value by head, RoPE over half of head_dim 8, exact GELU, untied, "
        "rotary_pct and rotary_emb_base, the mask and RoPE buffers of old files, F16",
        prompts=prompts(17),
    ),
    dict(
        name="gpt_neox-serial", pack="gpt_neox", store="BF16",
        config={
            "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "dtype": "bfloat16", "vocab_size": 53,
            "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-2, "max_position_embeddings": 2048, "use_parallel_residual": False, "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 1.0}, "tie_word_embeddings": True,
            "bos_token_id": 0, "eos_token_id": 0,
        },
        embed=0.5,
        says="serial residual, attention without biases (the MLP keeps its), RoPE over the whole of head_dim 12, tanh GELU spelled "
        "gelu_new, eps 1e-2, tied, new spelling, BF16",
        prompts=prompts(16, 2),
    ),
    # --- falcon ---
    # transformers: query_key_value is, in the new architecture, per KV head its queries, then k, then v; with multi_query all queries,
    # then one k, one v; otherwise [heads, (q, k, v), head_dim]. num_kv_heads is read in the new architecture only.
    # transformers: new_decoder_architecture makes multi_query irrelevant; num_ln_in_parallel_attn absent or null there means 2.
    # transformers: with alibi=true the slopes and biases are rounded to bfloat16 by name; no fixture has it.
    dict(
        name="falcon-multi-query", pack="falcon", store="BF16",
        config={
            "architectures": ["FalconForCausalLM"], "model_type": "falcon", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 5, "alibi": False, "apply_residual_connection_post_layernorm": False,
            "bias": False, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "layer_norm_epsilon": 1e-5,
            "attention_dropout": 0.0, "hidden_dropout": 0.0, "bos_token_id": 11, "eos_token_id": 11, "transformers_version": "4.27.4",
        },
        drop=["rope_parameters", "tie_word_embeddings", "activation", "ffn_hidden_size", "num_kv_heads", "num_ln_in_parallel_attn",
              "max_position_embeddings", "pad_token_id"],
        embed=0.5,
        says="Falcon-7B: multi-query, attention and MLP in parallel from one LayerNorm, no biases, everything else absent (tied, theta "
        "10000, MLP of 4 * hidden, exact GELU), BF16",
        prompts=prompts(17),
    ),
    dict(
        name="falcon-serial", pack="falcon", store="F16",
        config={
            "architectures": ["FalconForCausalLM"], "model_type": "falcon", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "ffn_hidden_size": 46, "num_hidden_layers": 2, "num_attention_heads": 5, "alibi": False, "bias": True,
            "multi_query": False, "new_decoder_architecture": False, "parallel_attn": False, "layer_norm_epsilon": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "tie_word_embeddings": False,
        },
        says="one k and v per head (query_key_value by head), two LayerNorms in series, biases everywhere, ffn_hidden_size 46, eps 1e-2, "
        "untied, F16",
        prompts=prompts(16, 2),
    ),
    dict(
        name="falcon-new", pack="falcon", store="BF16",
        config={
            "architectures": ["FalconForCausalLM"], "model_type": "falcon", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_kv_heads": 2, "alibi": False, "bias": False,
            "multi_query": True, "new_decoder_architecture": True, "parallel_attn": True, "layer_norm_epsilon": 1e-5,
            "attention_dropout": 0.0, "hidden_dropout": 0.0, "tie_word_embeddings": False, "rope_theta": 10000.0,
            "transformers_version": "4.33.0",
        },
        drop=["num_ln_in_parallel_attn", "ffn_hidden_size", "activation"],
        says="Falcon-40B: new_decoder_architecture, two KV heads of six in query_key_value, LayerNorms ln_attn and ln_mlp in parallel, "
        "untied, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="falcon-new-one-norm", pack="falcon", store="F16",
        config={
            "architectures": ["FalconForCausalLM"], "model_type": "falcon", "torch_dtype": "float16", "vocab_size": 53,
            "hidden_size": 32, "ffn_hidden_size": 54, "ff_factor": 4, "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2,
            "activation": "gelu_pytorch_tanh", "alibi": False, "bias": True, "multi_query": True, "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1, "parallel_attn": True, "layer_norm_epsilon": 1e-2, "max_position_embeddings": 8192,
            "rope_theta": 500042.0, "rope_scaling": None, "tie_word_embeddings": True, "transformers_version": "4.39.2",
        },
        embed=0.5,
        says="Falcon2-11B: num_ln_in_parallel_attn 1, theta 500042, biases everywhere, tanh GELU, eps 1e-2, tied, F16",
        prompts=prompts(16, 2),
    ),
    # --- gpt2 ---
    # transformers: Conv1D weights are [in, out]; c_attn is q, k, v side by side. reorder_and_upcast_attn changes rounding only.
    dict(
        name="gpt2-plain", pack="gpt2", store="F32", finish=old_names_gpt2,
        config={
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 47, "n_ctx": 24, "n_positions": 24, "n_embd": 20,
            "n_head": 5, "n_layer": 3, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1,
            "embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02, "summary_activation": None,
            "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
            "bos_token_id": 46, "eos_token_id": 46, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        exact=True, embed=0.5,
        says="learned positions, Conv1D weights, tied, MLP of 4 * hidden, names without `transformer.` and the mask buffers of the "
        "published file, which has neither dtype nor tie_word_embeddings, F32",
        prompts=prompts(17, 1, [0, 3, 9, 10, 17, 22, 23]),
    ),
    dict(
        name="gpt2-scaled-untied", pack="gpt2", store="BF16",
        config={
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "bfloat16", "vocab_size": 53, "n_positions": 31,
            "n_embd": 30, "n_head": 3, "n_layer": 3, "n_inner": 46, "activation_function": "gelu", "layer_norm_epsilon": 1e-2,
            "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "tie_word_embeddings": False,
            "bos_token_id": 0, "eos_token_id": 0,
        },
        embed=0.5,
        says="scale_attn_by_inverse_layer_idx (1/(layer + 1)), n_inner 46, exact GELU, names with `transformer.`, eps 1e-2, untied, BF16",
        prompts=prompts(18, 2, [0, 3, 9, 10, 17, 29, 30]),
    ),
    dict(
        name="gpt2-unscaled", pack="gpt2", store="F16",
        config={
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "float16", "vocab_size": 51, "n_positions": 29,
            "n_embd": 24, "n_head": 4, "n_layer": 2, "n_inner": None, "activation_function": "relu", "scale_attn_weights": False,
            "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
        },
        embed=0.2,
        says="scale_attn_weights false (no 1/sqrt(head_dim)), ReLU, tied, F16",
        prompts=prompts(16, 2, [0, 3, 9, 10, 17, 27, 28]),
    ),
]
