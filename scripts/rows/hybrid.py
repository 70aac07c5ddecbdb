"""Layers that keep a state of fixed size: short convolutions, the scan of Mamba-2, the gated delta rule; mixed with attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from .common import SPARSE, edit_tensors, prompt, rng_for
from .latent import decays
from .mixture import fuse_experts, spread_out


def scan(model: torch.nn.Module, rng: Any) -> None:
    """Decays that keep some of the state over a prompt, and a skip connection that matters."""
    decays(model, rng)
    spread_out("mixer.D")(model, rng)


def zero_centred(name: str) -> bool:
    """The gated norm behind the delta rule is multiplied by its weight, all others by one plus it."""
    return "linear_attn.norm" not in name


def mtp_tensors(folder: Path, source: str, rng: Any, hidden: int) -> None:
    """The prediction layer of published checkpoints, mtp.*: a copy of an attention layer, and what joins two streams."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        extra = {name.replace(source, "mtp.layers.0."): tensor.flip(0) for name, tensor in tensors.items() if name.startswith(source)}
        if not any("self_attn.q_proj" in name for name in extra):
            raise SystemExit(f"{folder.name}: {source} is no attention layer")
        stored = next(iter(extra.values())).dtype
        shapes = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,), "mtp.pre_fc_norm_embedding.weight": (hidden,),
                  "mtp.pre_fc_norm_hidden.weight": (hidden,)}
        extra |= {name: torch.from_numpy(rng(name).standard_normal(shape)).to(stored) for name, shape in shapes.items()}
        return tensors | extra

    edit_tensors(folder, change)


FIXTURES: list[dict[str, Any]] = [
    # --- lfm2 ---
    # transformers: with block_auto_adjust_ff_dim the MLP is int(2/3 * intermediate_size) wide, times block_ffn_dim_multiplier, rounded up
    # to block_multiple_of; block_ff_dim overrides intermediate_size, tie_embedding overrides tie_word_embeddings.
    # transformers: the other block_*, conv_* and num_heads keys of published files are not read. head_dim is hidden/heads.
    dict(
        name="lfm2-published", pack="lfm2", store="BF16",
        config={
            "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": True, "block_dim": 28,
            "block_ff_dim": 50, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 10,
            "block_norm_eps": 1e-5, "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True,
            "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 28, "conv_dim_out": 28, "conv_use_xavier_init": True,
            "eos_token_id": 7, "full_attn_idxs": [1, 4], "hidden_size": 28, "initializer_range": 0.02, "max_position_embeddings": 128000,
            "norm_eps": 1e-5, "num_attention_heads": 2, "num_heads": 2, "num_hidden_layers": 5, "num_key_value_heads": 1,
            "pad_token_id": 0, "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0",
            "use_cache": True, "use_pos_enc": True, "vocab_size": 59,
        },
        drop=["layer_types", "tie_word_embeddings", "intermediate_size"],
        says="short convolutions (kernel 3) on layers 0, 2 and 3, attention with per-head QK-norm on 1 and 4 by full_attn_idxs, MLP width "
        "40 computed from block_ff_dim 50, tied by default, final norm named embedding_norm, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("three", 3), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="lfm2-bias", pack="lfm2", store="F16", shard="14KB",
        config={
            "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": False, "conv_L_cache": 4,
            "conv_bias": True, "hidden_size": 30, "intermediate_size": 26, "layer_types": ["full_attention", "conv", "conv", "full_attention"],
            "max_position_embeddings": 4096, "norm_eps": 1e-2, "num_attention_heads": 5, "num_hidden_layers": 4,
            "num_key_value_heads": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "tie_word_embeddings": False,
            "dtype": "float16", "vocab_size": 53,
        },
        says="biases in the convolutions and their projections, kernel 4, layer_types, MLP width as given, MHA, eps 1e-2, untied, F16, sharded",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- lfm2_moe ---
    # transformers: sigmoid scores; the weights of the chosen are divided by their sum + 1e-6; experts are named w1, w3, w2 (gate, up, down).
    dict(
        name="lfm2_moe-published", pack="lfm2_moe", store="BF16", keep_f32=["expert_bias"], prepare=spread_out("expert_bias", by=0.4),
        config={
            "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False,
            "dtype": "bfloat16", "eos_token_id": 7, "hidden_size": 28, "initializer_range": 0.02, "intermediate_size": 34,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"], "max_position_embeddings": 128000,
            "moe_intermediate_size": 11, "norm_eps": 1e-5, "norm_topk_prob": True, "num_attention_heads": 2, "num_dense_layers": 1,
            "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 1, "pad_token_id": 0,
            "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "transformers_version": "4.56.1", "use_cache": True,
            "use_expert_bias": True, "vocab_size": 59,
        },
        drop=["tie_word_embeddings", "output_router_logits"],
        says="sigmoid router with selection bias, top 2 of 6 normalised, one dense layer, convolutions on 0 and 2, attention on 1 and 3, tied "
        "by default, BF16 with F32 selection bias",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="lfm2_moe-no-bias", pack="lfm2_moe", store="F16",
        config={
            "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "conv_L_cache": 4, "conv_bias": True, "hidden_size": 24,
            "intermediate_size": 22, "layer_types": ["full_attention", "conv", "conv", "full_attention"],
            "max_position_embeddings": 4096, "moe_intermediate_size": 10, "norm_eps": 1e-3, "norm_topk_prob": False,
            "num_attention_heads": 4, "num_dense_layers": 0, "num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 4,
            "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "routed_scaling_factor": 1.3,
            "tie_word_embeddings": False, "dtype": "float16", "use_expert_bias": False, "vocab_size": 53,
        },
        says="no selection bias, top 3 of 5 not normalised, scale 1.3, no dense layer, convolution biases, kernel 4, untied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- mamba2 ---
    # transformers: num_heads * head_dim must be expand * hidden_size. The gate comes first, then the norm, over each of n_groups groups;
    # norm_before_gate, rms_norm, time_step_rank/min/max/floor are not read in the forward pass; positions do not exist.
    # transformers: softplus(dt + dt_bias) is cut to time_step_limit, which published files write as [0.0, Infinity] (not JSON).
    # transformers: with a cache its single-token step does not cut dt to time_step_limit (measured: other logits); the truth is the full pass.
    # transformers: rescale_prenorm_residual, meant for training, divides the loaded out_proj by the root of the number of layers as well: a
    # mistake of 5.24; published files say false.
    # transformers: in_proj gives gate, x, B, C, dt in this order; x, B and C go through the convolution and SiLU.
    dict(
        name="mamba2-groups", pack="mamba2", store="BF16", keep_f32=["A_log", "dt_bias", "mixer.D"], prepare=scan,
        config={
            "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "bos_token_id": 0, "chunk_size": 5, "conv_kernel": 3,
            "eos_token_id": 0, "expand": 3, "head_dim": 10, "hidden_act": "silu", "hidden_size": 20, "initializer_range": 0.1,
            "layer_norm_epsilon": 1e-5, "n_groups": 3, "norm_before_gate": True, "num_heads": 6, "num_hidden_layers": 3,
            "pad_token_id": 0, "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "state_size": 7,
            "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_init_scheme": "random",
            "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 2,
            "time_step_scale": 1.0, "torch_dtype": "bfloat16", "transformers_version": "4.44.0.dev0", "use_bias": False,
            "use_cache": True, "use_conv_bias": True, "vocab_size": 59,
        },
        says="6 heads of 10 (expand 3), 3 groups, state 7, kernel 3, chunks of 5, time_step_limit [0.0, Infinity], untied, BF16 with F32 "
        "A_log, D and dt_bias",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("chunk", 5)],
    ),
    dict(
        name="mamba2-bias-tied", pack="mamba2", store="F16", prepare=scan, shard="12KB",
        config={
            "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "chunk_size": 256, "conv_kernel": 5, "expand": 2,
            "head_dim": 6, "hidden_act": "silu", "hidden_size": 24, "layer_norm_epsilon": 1e-2, "n_groups": 2, "num_heads": 8,
            "num_hidden_layers": 3, "residual_in_fp32": False, "state_size": 9, "tie_word_embeddings": True,
            "time_step_limit": [0.3, 0.9], "dtype": "float16", "use_bias": True, "use_conv_bias": False, "vocab_size": 53,
            "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
        },
        says="projection biases, no convolution bias, kernel 5, 2 groups, time_step_limit [0.3, 0.9] that cuts, eps 1e-2, tied, F16, sharded",
        prompts=[prompt("main", 18), prompt("two", 2), prompt("four", 4)],
    ),
    # --- qwen3_next ---
    # transformers: in_proj_qkvz and in_proj_ba hold one block per key head: q, k, its value heads' v, their z; b, a.
    # transformers: partial_rotary_factor is 0.25 when absent (qwen3_next, qwen3_5_text). q_proj holds per head the query, then its gate.
    # transformers: q and k are L2-normalised with eps 1e-6 inside the root; the gated norm (eps rms_norm_eps) has a plain weight.
    dict(
        name="qwen3_next-published", pack="qwen3_next", store="BF16", norm_zero=zero_centred, prepare=decays,
        finish=lambda folder, model: mtp_tensors(folder, "model.layers.3.", partial(rng_for, "qwen3_next-published"), 24),
        config={
            "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 1, "decoder_sparse_step": 1, "eos_token_id": 2, "full_attention_interval": 2, "head_dim": 12,
            "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 30, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 7, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 5,
            "max_position_embeddings": 262144, "mlp_only_layers": [], "moe_intermediate_size": 8, "norm_topk_prob": True,
            "num_attention_heads": 2, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 1,
            "output_router_logits": False, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "rope_scaling": None,
            "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 9, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_cache": True, "use_sliding_window": False,
            "vocab_size": 59,
        },
        drop=["layer_types", "pad_token_id"],
        says="gated delta rule on layers 0 and 2 (2 key and 4 value heads of 7 and 5), gated attention on 1 and 3 by "
        "full_attention_interval, 6 of head_dim 12 rotated, experts top 2 of 5 beside a gated shared one, zero-centred norms, unused mtp.*, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen3_next-mixed", pack="qwen3_next", store="F16", norm_zero=zero_centred, prepare=decays,
        config={
            "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": True, "decoder_sparse_step": 2,
            "head_dim": 8, "hidden_act": "silu", "hidden_size": 26, "intermediate_size": 18,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"], "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 6, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_value_head_dim": 8,
            "max_position_embeddings": 4096, "mlp_only_layers": [], "moe_intermediate_size": 10, "norm_topk_prob": False,
            "num_attention_heads": 4, "num_experts": 6, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "shared_expert_intermediate_size": 12, "tie_word_embeddings": True, "dtype": "float16", "vocab_size": 53,
        },
        says="layer_types, as many key as value heads, kernel 3, dense and expert layers in turn, top 3 of 6 not normalised, attention "
        "biases, 4 of head_dim 8 rotated, eps 1e-2, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- qwen3_5 ---
    # transformers: in_proj_qkv, in_proj_z, in_proj_b and in_proj_a are apart (qwen3_next: fused per key head); mrope_section acts on images only.
    # transformers: attn_output_gate, full_attention_interval beside layer_types, mamba_ssm_dtype and the mtp_* keys are not read.
    dict(
        name="qwen3_5_text-dense", pack="qwen3_5", store="F16", norm_zero=zero_centred, prepare=decays, shard="22KB",
        config={
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "attention_bias": False, "attn_output_gate": True,
            "full_attention_interval": 2, "head_dim": 12, "hidden_act": "silu", "hidden_size": 26, "intermediate_size": 22,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
            "linear_value_head_dim": 7, "max_position_embeddings": 262144, "mamba_ssm_dtype": "float32", "num_attention_heads": 4,
            "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-3,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.5,
                                "rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": True, "dtype": "float16", "vocab_size": 53,
        },
        drop=["layer_types"],
        says="text model alone: gated delta rule with 2 key and 6 value heads, gated attention on 1 and 3, 6 of head_dim 12 rotated, dense "
        "MLP, eps 1e-3, tied, F16, sharded",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="qwen3_5-mtp", pack="qwen3_5", store="BF16", norm_zero=lambda name: "visual" not in name and zero_centred(name),
        prepare=decays, avoid=[60, 61, 62, 63], keep_f32=["linear_attn.A_log", "linear_attn.norm.weight"],
        finish=lambda folder, model: mtp_tensors(folder, "model.language_model.layers.3.", partial(rng_for, "qwen3_5-mtp"), 24),
        config={
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "image_token_id": 62, "video_token_id": 63,
            "vision_start_token_id": 60, "vision_end_token_id": 61, "tie_word_embeddings": False, "dtype": "bfloat16",
            "transformers_version": "4.57.0.dev0",
            "text_config": {
                "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 2,
                "full_attention_interval": 2, "head_dim": 12, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02,
                "intermediate_size": 26, "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 7, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                "linear_value_head_dim": 5, "max_position_embeddings": 262144, "mamba_ssm_dtype": "float32",
                "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
                "num_attention_heads": 2, "num_hidden_layers": 4, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
                "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.5,
                                    "rope_theta": 10000000, "rope_type": "default"},
                "tie_word_embeddings": False, "use_cache": True, "vocab_size": 64,
            },
            "vision_config": {
                "deepstack_visual_indexes": [], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "in_channels": 3,
                "initializer_range": 0.02, "intermediate_size": 10, "model_type": "qwen3_5", "num_heads": 2,
                "num_position_embeddings": 16, "out_hidden_size": 24, "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2,
            },
        },
        says="a whole multimodal folder as published: text_config, a vision tower and mtp.* that text does not use; untied, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # --- qwen3_5_moe ---
    # transformers: experts fused (mlp.experts.gate_up_proj [experts, 2 * intermediate, hidden]) or one tensor each, both load; save_pretrained
    # writes one each. The top-k is always normalised; there is no dense layer and no norm_topk_prob.
    dict(
        name="qwen3_5_moe_text-experts", pack="qwen3_5_moe", store="BF16", norm_zero=zero_centred, prepare=decays,
        finish=fuse_experts,
        config={
            "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "attention_bias": False, "head_dim": 8,
            "hidden_act": "silu", "hidden_size": 26, "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "linear_conv_kernel_dim": 3, "linear_key_head_dim": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_value_head_dim": 6, "max_position_embeddings": 262144, "moe_intermediate_size": 9, "num_attention_heads": 4,
            "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5,
                                "rope_theta": 10000.0, "rope_type": "default"},
            "shared_expert_intermediate_size": 10, "tie_word_embeddings": False, "dtype": "bfloat16", "vocab_size": 59,
        },
        says="gated delta rule and gated attention with fused experts, top 2 of 6, a gated shared expert, untied, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
]
