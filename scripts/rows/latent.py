"""Latent attention: keys and values from one compressed vector per token; Kimi's layers that keep a state instead."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .common import SPARSE, edit_tensors, prompt, rng_for
from .mixture import mtp_layer, spread_out

BIAS = "e_score_correction_bias"


def decays(model: torch.nn.Module, rng: Any) -> None:
    """Decays of a state that forgets some and keeps some over a prompt; selection biases that matter."""
    spread_out(BIAS, by=0.4)(model, rng)
    for name, tensor in model.named_parameters():
        shape = tuple(tensor.shape)
        if name.endswith("A_log"):
            tensor.data = torch.from_numpy(np.log(rng(name, "decay").uniform(0.05, 1.5, shape))).float()
        if name.endswith("dt_bias"):
            tensor.data = torch.from_numpy(rng(name, "decay").normal(-0.8, 0.8, shape)).float()


def dense_under_mlp(folder: Path, model: torch.nn.Module) -> None:
    """Published names: dense layers under `mlp`; save_pretrained writes them under block_sparse_moe like the others."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        dense = [name for name in tensors if ".block_sparse_moe." in name and name.split(".")[4] in ("gate_proj", "up_proj", "down_proj")]
        return {name.replace("block_sparse_moe", "mlp") if name in dense else name: tensor for name, tensor in tensors.items()}

    edit_tensors(folder, change)


FIXTURES: list[dict[str, Any]] = [
    # --- deepseek_v2 ---
    # transformers: q_a_layernorm and kv_a_layernorm have eps 1e-6 whatever rms_norm_eps says (deepseek_v2, deepseek_v3, mistral4, kimi_linear).
    # transformers: norm_topk_prob, scoring_func, moe_layer_freq, aux_loss_alpha and seq_aux are not read: the weights of the top-k are the
    # softmax over all, times routed_scaling_factor. head_dim, if written, is qk_rope_head_dim.
    # transformers: YaRN turns the rope part by mscale(mscale)/mscale(mscale_all_dim) and multiplies the softmax scale by mscale(mscale_all_dim)^2.
    # transformers: deepseek_v2 can only run an even kv_lora_rank (its rope part is viewed as complex numbers within the same tensor).
    # transformers: a group counts its best expert (deepseek_v3: the sum of its two best).
    dict(
        name="deepseek_v2-lite", pack="deepseek_v2", store="BF16",
        config={
            "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": False, "attention_dropout": 0.0,
            "aux_loss_alpha": 0.001, "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1, "hidden_act": "silu",
            "hidden_size": 27, "initializer_range": 0.02, "intermediate_size": 34, "kv_lora_rank": 14, "max_position_embeddings": 163840,
            "moe_intermediate_size": 11, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 6, "n_shared_experts": 2,
            "norm_topk_prob": False, "num_attention_heads": 3, "num_experts_per_tok": 3, "num_hidden_layers": 3,
            "num_key_value_heads": 3, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
            "rms_norm_eps": 1e-4,
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 1.1,
                             "original_max_position_embeddings": 4096, "type": "yarn"},
            "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False,
            "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
            "v_head_dim": 9, "vocab_size": 59,
        },
        drop=["head_dim", "qk_head_dim", "mlp_bias", "pad_token_id", "output_router_logits"],
        says="no q_lora, value heads of 9 beside key heads of 10 + 6, YaRN with mscale 0.707 and mscale_all_dim 1.1, greedy top 3 of 6, "
        "two shared experts, first layer dense, BF16",
        prompts=[prompt("main", 17, draw=1), prompt("one", 1), prompt("sparse", 7, SPARSE, draw=2)],
    ),
    dict(
        name="deepseek_v2-groups", pack="deepseek_v2", store="F16", shard="24KB",
        config={
            "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": True, "first_k_dense_replace": 1,
            "hidden_act": "silu", "hidden_size": 28, "intermediate_size": 30, "kv_lora_rank": 10, "max_position_embeddings": 4096,
            "moe_intermediate_size": 9, "n_group": 3, "n_routed_experts": 9, "n_shared_experts": 1, "norm_topk_prob": True,
            "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 3, "q_lora_rank": 14, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
            "routed_scaling_factor": 4.0, "tie_word_embeddings": True, "dtype": "float16", "topk_group": 2,
            "topk_method": "group_limited_greedy", "v_head_dim": 10, "vocab_size": 53, "mlp_bias": False,
        },
        says="q_lora, group_limited_greedy: top 3 of 9 in 2 of 3 groups, scale 4, default RoPE, attention biases (q_a, kv_a, o), tied, "
        "F16, sharded",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- deepseek_v3 ---
    # transformers: with rope_interleave (the default, published files lack the key) the pairs are neighbours; scoring_func, topk_method,
    # moe_layer_freq, ep_size are not read.
    dict(
        name="deepseek_v3-mtp", pack="deepseek_v3", store="BF16", keep_f32=[BIAS], prepare=spread_out(BIAS, by=0.4),
        config={
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False, "attention_dropout": 0.0,
            "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 1,
            "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 30, "kv_lora_rank": 11,
            "max_position_embeddings": 163840, "moe_intermediate_size": 9, "moe_layer_freq": 1, "n_group": 3, "n_routed_experts": 9,
            "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 3,
            "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 13, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 6, "rms_norm_eps": 1e-6,
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "original_max_position_embeddings": 4096, "type": "yarn"},
            "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False,
            "topk_group": 2, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
            "v_head_dim": 7, "vocab_size": 59,
        },
        drop=["head_dim", "qk_head_dim", "pad_token_id", "output_router_logits", "rope_interleave"],
        finish=lambda folder, model: mtp_layer(folder, 3, partial(rng_for, "deepseek_v3-mtp"), 24, 59),
        says="q_lora, sigmoid router with selection bias, top 3 of 9 in 2 of 3 groups, scale 2.5, YaRN with mscale_all_dim in the softmax "
        "scale, interleaved rope part, a prediction layer (model.layers.3) that is not used, BF16 with F32 selection bias",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="deepseek_v3-halves", pack="deepseek_v3", store="F16", keep_f32=[BIAS], prepare=spread_out(BIAS, by=0.4),
        config={
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": True, "first_k_dense_replace": 2,
            "hidden_act": "silu", "hidden_size": 26, "intermediate_size": 22, "kv_lora_rank": 9, "max_position_embeddings": 4096,
            "moe_intermediate_size": 12, "n_group": 1, "n_routed_experts": 5, "n_shared_experts": 2, "norm_topk_prob": False,
            "num_attention_heads": 3, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 3, "q_lora_rank": None,
            "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-2, "rope_interleave": False,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 0.6, "mscale_all_dim": 1.3,
                                "original_max_position_embeddings": 512},
            "routed_scaling_factor": 0.8, "tie_word_embeddings": True, "dtype": "float16", "topk_group": 1, "v_head_dim": 10,
            "vocab_size": 53, "bos_token_id": 0, "eos_token_id": 1,
        },
        says="no q_lora, rope part in halves (rope_interleave false), mscale unlike mscale_all_dim, top 2 of 5 not normalised, scale 0.8, "
        "attention biases (kv_a, o), eps 1e-2, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- mistral4 ---
    # transformers: queries (rope and nope parts) are multiplied by 1 + beta * ln(1 + floor(position / original_max_position_embeddings)),
    # with llama_4_scaling_beta from rope_parameters, which must be there; position is the token's position_id.
    # transformers: softmax router; a group counts the sum of its two best; head_dim is qk_nope_head_dim + qk_rope_head_dim.
    # transformers: the experts stay fused on disk (mlp.experts.gate_up_proj [experts, 2 * intermediate, hidden]).
    dict(
        name="mistral4-small", pack="mistral4", store="BF16",
        config={
            "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "first_k_dense_replace": 0, "hidden_act": "silu",
            "hidden_size": 26, "intermediate_size": 30, "kv_lora_rank": 11, "max_position_embeddings": 1024, "moe_intermediate_size": 9,
            "n_group": 1, "n_routed_experts": 7, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4,
            "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 14, "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6, "rms_norm_eps": 1e-6, "rope_interleave": True,
            "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                                "original_max_position_embeddings": 8, "max_position_embeddings": 1024, "beta_fast": 32.0,
                                "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                                "partial_rotary_factor": 0.375},
            "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "dtype": "bfloat16", "topk_group": 1, "v_head_dim": 9,
            "vocab_size": 59, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11,
        },
        says="q_lora, YaRN with mscale_all_dim, query temperature from position 8 on (llama_4_scaling_beta), softmax router top 2 of 7 "
        "normalised, fused experts, one shared expert, interleaved rope part, BF16",
        prompts=[prompt("main", 19), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="mistral4-groups", pack="mistral4", store="F16",
        config={
            "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "attention_bias": True, "first_k_dense_replace": 2,
            "hidden_act": "silu", "hidden_size": 28, "intermediate_size": 22, "kv_lora_rank": 9, "max_position_embeddings": 4096,
            "moe_intermediate_size": 11, "n_group": 2, "n_routed_experts": 8, "n_shared_experts": 2, "norm_topk_prob": False,
            "num_attention_heads": 3, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 3, "q_lora_rank": None,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-3, "rope_interleave": False,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                                "beta_fast": 4.0, "beta_slow": 1.0, "mscale_all_dim": 1.4, "mscale": 0.7,
                                "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.5},
            "routed_scaling_factor": 1.7, "tie_word_embeddings": True, "dtype": "float16", "topk_group": 1, "v_head_dim": 10,
            "vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11,
        },
        says="no q_lora, rope part in halves, top 3 of 8 within one of two groups, not normalised, scale 1.7, two dense layers, "
        "attention biases, temperature from position 64 on with beta 0.3, tied, F16",
        prompts=[prompt("main", 16, draw=4), prompt("two", 2), prompt("sparse", 7, SPARSE, draw=1)],
    ),
    # --- kimi_linear ---
    # transformers: its latent attention rotates nothing (mla_use_nope, rope_theta and rope_scaling are not read); layer numbers in
    # linear_attn_config count from 1; moe_router_activation_func, moe_layer_freq and use_grouped_topk are not read.
    # transformers: save_pretrained writes dense layers under block_sparse_moe too, published files have them under mlp; both load.
    # transformers: decay exp(-exp(A_log) * softplus(f_b(f_a(x)) + dt_bias)) per channel; q and k are L2-normalised with eps 1e-6 inside the
    # root, q times head_dim^-0.5; the output norm (eps rms_norm_eps) is gated by a sigmoid.
    dict(
        name="kimi_linear-published", pack="kimi_linear", store="BF16", exact=True, keep_f32=[BIAS, "dt_bias", "A_log"], prepare=decays,
        finish=dense_under_mlp,
        config={
            "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 2,
            "first_k_dense_replace": 1, "head_dim": 8, "hidden_act": "silu", "hidden_size": 26, "initializer_range": 0.02,
            "intermediate_size": 30, "kv_lora_rank": 11,
            "linear_attn_config": {"full_attn_layers": [2, 4], "head_dim": 7, "kda_layers": [1, 3], "num_heads": 3,
                                   "short_conv_kernel_size": 4},
            "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 9,
            "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 4,
            "num_expert_group": 1, "num_experts": 6, "num_experts_per_token": 2, "num_hidden_layers": 4, "num_key_value_heads": 4,
            "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 58, "q_lora_rank": None, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 5, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
            "tie_word_embeddings": False, "topk_group": 1, "transformers_version": "4.56.2", "use_cache": True, "use_grouped_topk": True,
            "v_head_dim": 9, "vocab_size": 59,
        },
        says="delta attention on layers 0 and 2 (3 heads of 7, kernel 4), latent attention without RoPE on 1 and 3, published spelling "
        "(linear_attn_config), sigmoid router with selection bias, top 2 of 6, scale 2.446, first layer dense, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("four", 4)],
    ),
    dict(
        name="kimi_linear-groups", pack="kimi_linear", store="F16", keep_f32=[BIAS], prepare=decays, shard="24KB",
        config={
            "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_act": "silu", "hidden_size": 24,
            "intermediate_size": 22, "kv_lora_rank": 9, "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 3, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
            "model_max_length": 4096, "moe_intermediate_size": 10, "num_expert_group": 2, "topk_group": 1, "moe_renormalize": False,
            "num_attention_heads": 3, "num_experts": 6, "num_experts_per_token": 2, "num_hidden_layers": 4, "num_key_value_heads": 3,
            "num_shared_experts": 2, "q_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-2,
            "routed_scaling_factor": 0.9, "tie_word_embeddings": False, "dtype": "float16", "v_head_dim": 8, "vocab_size": 53,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
        says="layer_types and mlp_layer_types in the new spelling, q_lora, kernel 3, top 2 of 6 within one of two groups, not normalised, "
        "scale 0.9, two shared experts, eps 1e-2, F16, sharded",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("three", 3)],
    ),
]
