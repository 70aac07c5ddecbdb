"""Mixtures of experts: routers, shared experts, the layouts of expert tensors, sinks, chunked attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from .common import SPARSE, edit_tensors, prompt, rng_for

SPARSE_WINDOW = [0, 2, 3, 9, 40, 41, 500, 501, 6000]


def fuse_experts(folder: Path, model: torch.nn.Module) -> None:
    """One tensor for all experts' gate and up and one for their down projections, as transformers names them in memory."""
    state = model.state_dict()
    edit_tensors(folder, lambda tensors: {name: state[name] for name in state if name != "lm_head.weight" or name in tensors})


def spread_out(*endings: str, by: float = 1.0) -> Any:
    """A `prepare` that draws the tensors with these endings again, N(0, by)."""

    def prepare(model: torch.nn.Module, rng_for: Any) -> None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(endings):
                tensor.data = torch.from_numpy(by * rng_for(name, "spread").standard_normal(tuple(tensor.shape))).float()

    return prepare


def mtp_layer(folder: Path, number: int, rng_for: Any, hidden: int, vocab: int) -> None:
    """The prediction layer of published checkpoints behind the last layer: a copy of it, and what joins two streams."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        last, new = f"model.layers.{number - 1}.", f"model.layers.{number}."
        extra = {name.replace(last, new): tensor.flip(0) for name, tensor in tensors.items() if name.startswith(last)}
        stored = tensors["model.embed_tokens.weight"].dtype
        shapes = {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden),
                  "shared_head.norm.weight": (hidden,), "shared_head.head.weight": (vocab, hidden), "embed_tokens.weight": (vocab, hidden)}
        for name, shape in shapes.items():
            extra[new + name] = torch.from_numpy(rng_for(new + name).standard_normal(shape)).to(stored)
        return tensors | extra

    edit_tensors(folder, change)


FIXTURES: list[dict[str, Any]] = [
    # --- mixtral ---
    # transformers: `sliding_window` given means a window on all layers; there is no `layer_types`.
    # transformers: softmax over all experts, then top-k, then always normalised; there is no norm_topk_prob.
    dict(
        name="mixtral-experts", pack="mixtral", store="BF16", shard="20KB",
        config={
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_dropout": 0.0, "bos_token_id": 1,
            "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 40, "initializer_range": 0.02, "intermediate_size": 14,
            "max_position_embeddings": 32768, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False, "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": 6, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 59,
        },
        drop=["head_dim", "router_jitter_noise", "pad_token_id"],
        says="one tensor per expert (block_sparse_moe.experts.N.w1/w2/w3), top 2 of 5, window 6 on all layers, BF16, sharded",
        prompts=[prompt("main", 17, draw=1), prompt("one", 1), prompt("window-plus-one", 7), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    dict(
        name="mixtral-fused", pack="mixtral", store="F16", finish=fuse_experts,
        config={
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "gelu", "hidden_size": 26,
            "intermediate_size": 14, "max_position_embeddings": 4096, "num_attention_heads": 6, "num_experts_per_tok": 3,
            "num_hidden_layers": 2, "num_key_value_heads": 3, "num_local_experts": 7, "rms_norm_eps": 1e-3, "head_dim": 8,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 3.0}, "sliding_window": None,
            "tie_word_embeddings": True, "dtype": "float16", "vocab_size": 53,
        },
        says="all experts in mlp.experts.gate_up_proj and mlp.experts.down_proj, top 3 of 7, head_dim 8 (hidden/heads is 4.3), "
        "exact GELU, linear RoPE, tied, F16",
        prompts=[prompt("main", 17), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- qwen2_moe ---
    # transformers: layer i has experts if it is not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0.
    # transformers: head_dim is read if config.json has it (a plain attribute), else hidden/heads.
    dict(
        name="qwen2_moe-shared", pack="qwen2_moe", store="BF16",
        config={
            "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "attention_dropout": 0.0, "bos_token_id": 0,
            "decoder_sparse_step": 2, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02,
            "intermediate_size": 30, "max_position_embeddings": 8192, "max_window_layers": 3, "mlp_only_layers": [3],
            "moe_intermediate_size": 14, "norm_topk_prob": False, "num_attention_heads": 4, "num_experts": 6,
            "num_experts_per_tok": 2, "num_hidden_layers": 6, "num_key_value_heads": 2, "output_router_logits": False,
            "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 22,
            "sliding_window": 5, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0",
            "use_cache": True, "use_sliding_window": False, "vocab_size": 61,
        },
        drop=["layer_types", "qkv_bias", "pad_token_id"],
        says="shared expert behind a sigmoid gate, top-k not normalised, experts on layers 1 and 5 of 6 (decoder_sparse_step 2, "
        "mlp_only_layers [3]), QKV biases by default, a window that is switched off, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # transformers: use_sliding_window puts the window on the even layers below max_window_layers (qwen2: on all from there on).
    dict(
        name="qwen2_moe-window", pack="qwen2_moe", store="F16",
        config={
            "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 30,
            "intermediate_size": 26, "max_position_embeddings": 8192, "max_window_layers": 3, "mlp_only_layers": [],
            "decoder_sparse_step": 1, "moe_intermediate_size": 12, "norm_topk_prob": True, "num_attention_heads": 6,
            "num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "shared_expert_intermediate_size": 18,
            "sliding_window": 5, "tie_word_embeddings": True, "dtype": "float16", "use_sliding_window": True, "qkv_bias": False,
            "vocab_size": 53, "head_dim": 8,
        },
        drop=["layer_types"],
        says="window 5 on layers 0 and 2 of 4 (max_window_layers 3, no layer_types), top-k normalised, no QKV biases, head_dim 8 "
        "(hidden/heads is 5), tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    # --- qwen3_moe ---
    dict(
        name="qwen3_moe-raw-topk", pack="qwen3_moe", store="BF16",
        config={
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 0, "decoder_sparse_step": 1, "eos_token_id": 1, "head_dim": 12, "hidden_act": "silu", "hidden_size": 28,
            "initializer_range": 0.02, "intermediate_size": 34, "max_position_embeddings": 40960, "max_window_layers": 4,
            "mlp_only_layers": [0, 2], "moe_intermediate_size": 14, "norm_topk_prob": False, "num_attention_heads": 4,
            "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 2,
            "output_router_logits": False, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 67,
        },
        drop=["pad_token_id", "num_local_experts"],
        says="softmax over all 8 experts, top 3 not normalised, dense layers 0 and 2 by mlp_only_layers, per-head QK-norm, head_dim 12 "
        "(hidden/heads is 7), BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # transformers: save_pretrained writes num_local_experts, published files have num_experts; either is read.
    # transformers: use_sliding_window means a window on every layer; max_window_layers and layer_types are not read.
    dict(
        name="qwen3_moe-window-yarn", pack="qwen3_moe", store="F16", shard="14KB",
        config={
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": True, "decoder_sparse_step": 2,
            "head_dim": 10, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 26, "max_position_embeddings": 2560,
            "max_window_layers": 1, "mlp_only_layers": [], "moe_intermediate_size": 12, "norm_topk_prob": True,
            "num_attention_heads": 4, "num_local_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-2, "sliding_window": 7, "use_sliding_window": True, "tie_word_embeddings": True, "dtype": "float16",
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 640},
            "vocab_size": 53,
        },
        says="top 2 of 6 normalised, experts on layers 1 and 3 (decoder_sparse_step 2), window 7 on all layers, attention biases, "
        "YaRN, MQA, eps 1e-2, tied, F16, sharded",
        prompts=[prompt("main", 19), prompt("two", 2), prompt("sparse", 9, SPARSE_WINDOW, draw=1)],
    ),
    # --- olmoe ---
    # transformers: clip_qkv is applied after the norms of q and k, before RoPE, and to v.
    dict(
        name="olmoe-clip", pack="olmoe", store="BF16",
        config={
            "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": False, "attention_dropout": 0.0,
            "clip_qkv": 1.1, "eos_token_id": 50, "hidden_act": "silu", "hidden_size": 30, "initializer_range": 0.02,
            "intermediate_size": 14, "max_position_embeddings": 4096, "norm_topk_prob": False, "num_attention_heads": 5,
            "num_experts": 7, "num_experts_per_tok": 3, "num_hidden_layers": 2, "num_key_value_heads": 5,
            "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
            "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.43.0.dev0", "use_cache": True, "vocab_size": 61,
        },
        drop=["bos_token_id"],
        says="QK-norm over the full width, q, k and v clipped at 1.1, top 3 of 7 not normalised, MHA, BF16",
        prompts=[prompt("main", 17, draw=1), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="olmoe-bias", pack="olmoe", store="F16",
        config={
            "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": True, "clip_qkv": None,
            "hidden_act": "gelu_pytorch_tanh", "hidden_size": 24, "intermediate_size": 18, "max_position_embeddings": 4096,
            "norm_topk_prob": True, "num_attention_heads": 6, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-2, "tie_word_embeddings": True, "dtype": "float16", "eos_token_id": 50,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "vocab_size": 53,
        },
        says="QK-norm over the full width with GQA 6:2, attention biases, no clipping, top 2 of 5 normalised, tanh GELU, eps 1e-2, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- glm4_moe ---
    # transformers: o_proj has no bias, whatever attention_bias says.
    # transformers: the selection bias is added to the sigmoid for choosing only; a group counts the sum of its two best.
    dict(
        name="glm4_moe-groups", pack="glm4_moe", store="BF16", keep_f32=["e_score_correction_bias"],
        prepare=spread_out("e_score_correction_bias", by=0.4),
        config={
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True, "attention_dropout": 0.0,
            "pad_token_id": 0, "eos_token_id": [1, 2, 3], "head_dim": 12, "hidden_act": "silu", "hidden_size": 22,
            "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 30, "max_position_embeddings": 131072,
            "moe_intermediate_size": 10, "norm_topk_prob": True, "num_attention_heads": 4, "n_group": 3, "topk_group": 2,
            "n_routed_experts": 9, "n_shared_experts": 1, "routed_scaling_factor": 1.5, "num_experts_per_tok": 3,
            "first_k_dense_replace": 1, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_scaling": None,
            "rope_theta": 1000000.0, "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.54.0", "use_cache": True, "use_qk_norm": False, "vocab_size": 59,
        },
        drop=["num_mtp_layers"],
        finish=lambda folder, model: mtp_layer(folder, 3, partial(rng_for, "glm4_moe-groups"), 22, 59),
        says="sigmoid router with selection bias, 2 of 3 groups, top 3 of 9, scale 1.5, one shared expert, first layer dense, half of "
        "head_dim 12 rotated, biases on q, k and v, a prediction layer (model.layers.3) that is not used, BF16 with F32 selection bias",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="glm4_moe-qk-norm", pack="glm4_moe", store="F16", keep_f32=["e_score_correction_bias"],
        prepare=spread_out("e_score_correction_bias", by=0.4),
        config={
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": False, "head_dim": 16,
            "hidden_act": "silu", "hidden_size": 28, "intermediate_size": 30, "max_position_embeddings": 131072,
            "moe_intermediate_size": 10, "norm_topk_prob": False, "num_attention_heads": 6, "n_group": 1, "topk_group": 1,
            "n_routed_experts": 6, "n_shared_experts": 2, "routed_scaling_factor": 0.7, "num_experts_per_tok": 2,
            "first_k_dense_replace": 2, "num_hidden_layers": 4, "num_key_value_heads": 3, "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": True, "dtype": "float16", "use_qk_norm": True, "vocab_size": 53,
        },
        says="per-head QK-norm, top 2 of 6 not normalised, scale 0.7, two shared experts, two dense layers, 4 of head_dim 16 rotated, "
        "eps 1e-3, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- minimax_m2 ---
    # transformers: use_qk_norm, qk_norm_type, scoring_func, use_routing_bias, attn_type_list and the MTP keys are not read; rotary_dim
    # becomes partial_rotary_factor. The sigmoids of the chosen are always normalised.
    dict(
        name="minimax_m2-plain", pack="minimax_m2", store="BF16", keep_f32=["e_score_correction_bias"], shard="24KB",
        prepare=spread_out("e_score_correction_bias", by=0.4),
        config={
            "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "attention_dropout": 0.0,
            "attn_type_list": [1, 1, 1], "head_dim": 12, "hidden_act": "silu", "hidden_size": 26, "initializer_range": 0.02,
            "intermediate_size": 14, "layernorm_full_attention_beta": 1.0, "max_position_embeddings": 196608,
            "mtp_transformer_layers": 1, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "num_local_experts": 7, "num_mtp_modules": 3, "output_router_logits": False,
            "qk_norm_type": "per_layer", "rms_norm_eps": 1e-6, "rope_theta": 5000000, "rotary_dim": 6, "router_aux_loss_coef": 0.001,
            "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "tie_word_embeddings": False,
            "transformers_version": "4.46.1", "use_cache": True, "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True,
            "vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2,
        },
        says="QK-norm over the full width with head_dim 12 (hidden/heads is 6.5), 6 of 12 dimensions rotated (rotary_dim), sigmoid "
        "router with selection bias, top 2 of 7, one tensor per expert under block_sparse_moe, BF16, sharded",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="minimax_m2-partial", pack="minimax_m2", store="F16", prepare=spread_out("e_score_correction_bias", by=0.4),
        config={
            "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "head_dim": 8, "hidden_act": "silu",
            "hidden_size": 30, "intermediate_size": 12, "max_position_embeddings": 4096, "num_attention_heads": 6,
            "num_experts_per_tok": 3, "num_hidden_layers": 2, "num_key_value_heads": 3, "num_local_experts": 5, "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True, "dtype": "float16", "vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2,
        },
        says="6 of 8 dimensions rotated by partial_rotary_factor, top 3 of 5, GQA 6:3, eps 1e-3, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    # --- hunyuan_v1_moe ---
    # transformers: type "dynamic" with alpha is static: base * alpha^(d/(d-2)); factor, mscale and the betas are not read then.
    # transformers: moe_topk may be a list per layer, num_experts may not; moe_intermediate_size, num_shared_expert, use_mixed_mlp_moe,
    # use_qk_norm and norm_topk_prob are not read: experts and the one shared MLP are intermediate_size wide, QK-norm comes after RoPE.
    dict(
        name="hunyuan_v1_moe-alpha", pack="hunyuan_v1_moe", store="BF16", keep_f32=["gate.wg.weight"],
        config={
            "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "attention_bias": False,
            "attention_dropout": 0.1, "attention_head_dim": 10, "bos_token_id": 1, "eod_token_id": 3, "eos_token_id": 2,
            "head_dim": 10, "hidden_act": "silu", "hidden_size": 28, "initializer_range": 0.02, "intermediate_size": 14,
            "max_position_embeddings": 32768, "mlp_bias": False, "moe_drop_tokens": False, "moe_intermediate_size": [14, 14, 14],
            "moe_layer_num_skipped": 0, "moe_random_routing_dropped_token": False, "moe_topk": [2, 3, 1], "norm_type": "rms",
            "num_attention_heads": 4, "num_experts": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
            "num_shared_expert": [1, 1, 1], "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
            "rope_scaling": {"alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                             "type": "dynamic"},
            "rope_theta": 10000.0, "sep_token_id": 4, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.41.2", "use_cache": True, "use_cla": False, "use_mixed_mlp_moe": True, "use_qk_norm": True,
            "vocab_size": 61,
        },
        says="moe_topk [2, 3, 1] per layer of 6 experts, shared MLP, QK-norm after RoPE, dynamic RoPE with alpha 50, head_dim 10 "
        "(hidden/heads is 7), BF16 with F32 routers",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="hunyuan_v1_moe-bias", pack="hunyuan_v1_moe", store="F16",
        config={
            "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "attention_bias": True, "head_dim": 8,
            "hidden_act": "silu", "hidden_size": 26, "intermediate_size": 16, "max_position_embeddings": 4096, "moe_topk": 2,
            "num_attention_heads": 3, "num_experts": 5, "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 3000.0}, "tie_word_embeddings": True, "dtype": "float16",
            "vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
        says="top 2 of 5 on all layers, attention biases, MQA, default RoPE, eps 1e-2, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 7, SPARSE, draw=1)],
    ),
    # --- gpt_oss ---
    # transformers: top-k of the router's logits (with its bias), softmax over the chosen; gate and up alternate in the last dimension
    # of gate_up_proj [experts, hidden, 2 * intermediate]; (up + 1) * gate * sigmoid(alpha * gate), gate cut above, up on both sides.
    # transformers: hidden_act, experts_per_token and initial_context_length are not read.
    dict(
        name="gpt_oss-yarn", pack="gpt_oss", store="BF16", transposed=["experts.gate_up_proj", "experts.down_proj"],
        prepare=spread_out("sinks", "router.bias"),
        config={
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": 2, "experts_per_token": 2, "head_dim": 10, "hidden_act": "silu", "hidden_size": 26,
            "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 14,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "max_position_embeddings": 131072, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4,
            "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-5,
            "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                             "rope_type": "yarn", "truncate": False},
            "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 6, "swiglu_limit": 1.2, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 59,
        },
        drop=["bos_token_id", "swiglu_alpha"],
        says="attention sinks, window 6 on every other layer, YaRN not truncated, experts transposed and fused with gate and up "
        "alternating, biases everywhere, SwiGLU clamped at 1.2, top 2 of 5, head_dim 10, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    dict(
        name="gpt_oss-no-bias", pack="gpt_oss", store="F16", transposed=["experts.gate_up_proj", "experts.down_proj"],
        prepare=spread_out("sinks", "router.bias"),
        config={
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": False, "head_dim": 8,
            "hidden_act": "silu", "hidden_size": 30, "intermediate_size": 12, "max_position_embeddings": 4096,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "num_attention_heads": 6, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 3,
            "num_local_experts": 4, "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_window": 4, "swiglu_alpha": 1.3, "swiglu_limit": 0.8, "tie_word_embeddings": True, "dtype": "float16",
            "vocab_size": 53,
        },
        says="no attention biases, default RoPE, layer_types not alternating, swiglu_alpha 1.3, limit 0.8, top 3 of 4, eps 1e-3, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    # --- llama4_text ---
    # transformers: no_rope_layers holds 1 where RoPE is used; layers without it attend to everything, the others within chunks.
    # transformers: chunks and the temperature's positions count cache slots, not position_ids.
    # transformers: the sigmoid of the chosen logit scales the expert's input, not its output. QK-norm (no weight, after RoPE, eps
    # rms_norm_eps) is on RoPE layers only.
    dict(
        name="llama4_text-chunks", pack="llama4", store="BF16", transposed=["experts.gate_up_proj", "experts.down_proj"],
        config={
            "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 7,
            "attention_dropout": 0.0, "attn_scale": 0.3, "attn_temperature_tuning": True, "bos_token_id": 1, "eos_token_id": [2, 3],
            "floor_scale": 3, "head_dim": 10, "hidden_act": "silu", "hidden_size": 28, "initializer_range": 0.02,
            "interleave_moe_layer_step": 2, "intermediate_size": 14, "intermediate_size_mlp": 34, "max_position_embeddings": 10485760,
            "moe_layers": [1, 3], "no_rope_layers": [1, 1, 0, 0], "num_attention_heads": 4, "num_experts_per_tok": 1,
            "num_hidden_layers": 4, "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
            "pad_token_id": 0, "rms_norm_eps": 1e-5,
            "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
                             "rope_type": "llama3"},
            "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "use_cache": True, "use_qk_norm": True, "vocab_size": 59,
        },
        drop=["layer_types", "no_rope_layer_interval"],
        says="RoPE (interleaved, llama3 scaling with equal frequency factors) on layers 0 and 1 in chunks of 7, no RoPE with temperature "
        "on 2 and 3, experts on 1 and 3 (transposed, fused; top 1 of 5) beside a shared expert, QK-norm without weight, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("chunk-plus-one", 8), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    dict(
        name="llama4_text-all-moe", pack="llama4", store="F16", transposed=["experts.gate_up_proj", "experts.down_proj"],
        config={
            "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "attention_bias": True, "attention_chunk_size": 5,
            "attn_temperature_tuning": False, "head_dim": 8, "hidden_act": "silu", "hidden_size": 26, "interleave_moe_layer_step": 1,
            "intermediate_size": 10, "intermediate_size_mlp": 22, "max_position_embeddings": 4096, "no_rope_layer_interval": 3,
            "num_attention_heads": 3, "num_experts_per_tok": 2, "num_hidden_layers": 6, "num_key_value_heads": 1,
            "num_local_experts": 4, "rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
            "tie_word_embeddings": True, "dtype": "float16", "use_qk_norm": False, "vocab_size": 53,
        },
        drop=["layer_types", "no_rope_layers", "moe_layers"],
        says="experts on all 6 layers, top 2 of 4, every third layer without RoPE by no_rope_layer_interval, chunks of 5, attention "
        "biases, neither QK-norm nor temperature, default RoPE, MQA, eps 1e-2, tied, F16",
        prompts=[prompt("main", 16), prompt("two", 2), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
]
