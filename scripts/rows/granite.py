"""Granite 3 and 4: four multipliers, experts in fused tensors, Mamba-2 layers, attention with and without RoPE.

`# transformers:` marks what its code does and its configuration or documentation does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .common import prompt
from .dense import prompts

ATTENTION, MAMBA = "attention", "mamba"


def prepare_mamba(model: torch.nn.Module, rng: Callable[..., np.random.Generator]) -> None:
    """Decays between fast and slow, steps neither 0 nor saturated, skips around 1."""
    for number, layer in enumerate(model.model.layers):
        if layer.mamba is not None:
            for name, centre, spread in (("A_log", 0.3, 0.6), ("dt_bias", -0.5, 0.6), ("D", 1.0, 0.3)):
                parameter = getattr(layer.mamba, name)
                values = centre + spread * rng(name, str(number)).standard_normal(parameter.shape[0])
                parameter.copy_(torch.from_numpy(values).to(parameter.dtype))


MULTIPLIERS = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.45, "logits_scaling": 2.5}

FIXTURES: list[dict[str, Any]] = [
    # --- granite ---
    # transformers: attention_multiplier takes the place of 1/sqrt(head_dim) (1.0 if absent); logits are divided by logits_scaling.
    dict(
        name="granite-plain", pack="granite", store="BF16", embed=0.5,
        config={
            "architectures": ["GraniteForCausalLM"], "model_type": "granite", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "attention_bias": False, "attention_dropout": 0.0,
            "mlp_bias": False, "rope_theta": 10000000.0, "rope_scaling": None, "tie_word_embeddings": True,
            "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "transformers_version": "4.47.0",
        } | MULTIPLIERS,
        says="multipliers of embeddings, attention, residuals and logits, GQA 4:2, tied, theta 1e7 in the old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="granite-bias-untied", pack="granite", store="F16",
        config={
            "architectures": ["GraniteForCausalLM"], "model_type": "granite", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 12, "rms_norm_eps": 1e-2, "max_position_embeddings": 8192, "attention_bias": True, "mlp_bias": True,
            "embedding_multiplier": 2, "attention_multiplier": 0.35, "residual_multiplier": 0.7, "logits_scaling": 3,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, "tie_word_embeddings": False,
        },
        embed=0.2,
        says="attention and MLP biases, head_dim 12 (hidden/heads is 10), multipliers that are integers, linear RoPE, MQA, eps 1e-2, "
        "untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- granitemoe ---
    # transformers: the router takes the top k logits first and softmaxes them; there is no key for it. No MLP biases, no mlp_bias key.
    dict(
        name="granitemoe-plain", pack="granitemoe", store="BF16", embed=0.5,
        config={
            "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 24, "intermediate_size": 14, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_local_experts": 7, "num_experts_per_tok": 3, "output_router_logits": False, "router_aux_loss_coef": 0.0,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "attention_bias": False, "attention_dropout": 0.1,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
            "pad_token_id": 0, "transformers_version": "4.46.0.dev0",
        } | MULTIPLIERS,
        says="7 experts, 3 per token, in fused input_linear and output_linear, softmax over the chosen logits, the multipliers, tied, old "
        "spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="granitemoe-bias-untied", pack="granitemoe", store="F16",
        config={
            "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 20, "intermediate_size": 11, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_local_experts": 5, "num_experts_per_tok": 2, "rms_norm_eps": 1e-2, "max_position_embeddings": 4096,
            "attention_bias": True, "hidden_act": "gelu", "embedding_multiplier": 2, "attention_multiplier": 0.35,
            "residual_multiplier": 0.7, "logits_scaling": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
            "tie_word_embeddings": False,
        },
        embed=0.2,
        says="biases on q, k, v and o, 5 experts of 11, exact GELU, multipliers that are integers, MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- granitemoehybrid ---
    # transformers: RoPE only if position_embedding_type is "rope" ("nope", null and absent mean none); rope_theta may be there all the same.
    # transformers: every layer has shared_mlp, beside the experts or alone (num_local_experts 0); intermediate_size is the experts' size.
    # transformers: the gated norm normalises y * silu(z) in mamba_n_groups groups; mamba_chunk_size changes rounding only.
    # transformers: the step is clamped to time_step_limit over a whole prompt, but not when one token is decoded from a cache (differs
    # only where the limit is not (0, inf)); attention layers and Mamba ones ignore position_ids unless there is RoPE.
    # transformers: layer_types has "mamba"/"attention" in published files and "linear_attention"/"full_attention" in what 5.x writes.
    dict(
        name="granitemoehybrid-moe-nope", pack="granitemoehybrid", store="BF16", embed=0.5, prepare=prepare_mamba,
        config={
            "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 24, "intermediate_size": 10, "shared_intermediate_size": 18, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "layer_types": [MAMBA, ATTENTION, MAMBA, ATTENTION], "num_local_experts": 6,
            "num_experts_per_tok": 2, "mamba_chunk_size": 5, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 8,
            "mamba_d_state": 10, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 6, "mamba_proj_bias": False,
            "normalization_function": "rmsnorm", "position_embedding_type": "nope", "rms_norm_eps": 1e-5, "init_method": "mup",
            "max_position_embeddings": 131072, "attention_bias": False, "output_router_logits": False, "router_aux_loss_coef": 0.01,
            "rope_theta": 10000, "rope_scaling": None, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
            "pad_token_id": 0, "transformers_version": "4.56.0",
        } | MULTIPLIERS,
        drop=["time_step_limit"],
        says="two Mamba-2 layers and two attention layers without RoPE, 6 experts (2 per token) and a shared MLP, chunks of 5, one group, "
        "the multipliers, tied, old spelling, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("chunk", 5), prompt("chunk-plus-one", 6)],
    ),
    dict(
        name="granitemoehybrid-moe-rope", pack="granitemoehybrid", store="F16", prepare=prepare_mamba,
        config={
            "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 20, "intermediate_size": 9, "shared_intermediate_size": 14, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 1, "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "num_local_experts": 5, "num_experts_per_tok": 3, "mamba_chunk_size": 7, "mamba_conv_bias": False, "mamba_d_conv": 3,
            "mamba_d_head": 15, "mamba_d_state": 6, "mamba_expand": 3, "mamba_n_groups": 2, "mamba_n_heads": 4, "mamba_proj_bias": True,
            "time_step_limit": [0.2, 0.9], "position_embedding_type": "rope", "rms_norm_eps": 1e-2, "max_position_embeddings": 4096,
            "attention_bias": True, "embedding_multiplier": 2, "attention_multiplier": 0.35, "residual_multiplier": 0.7,
            "logits_scaling": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "tie_word_embeddings": False,
        },
        embed=0.2,
        says="RoPE on the attention layers, two groups, biases on in_proj and out_proj but not on the convolution of width 3, "
        "time_step_limit [0.2, 0.9], attention biases, 5 experts (3 per token), MQA, eps 1e-2, untied, new spelling, F16",
        prompts=prompts(17, 2),
    ),
    dict(
        name="granitemoehybrid-dense-rope", pack="granitemoehybrid", store="BF16", embed=0.5,
        config={
            "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 32, "intermediate_size": 42, "shared_intermediate_size": 42, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "layer_types": [ATTENTION] * 3, "num_local_experts": 0, "num_experts_per_tok": 0,
            "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_state": 256,
            "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False, "normalization_function": "rmsnorm",
            "position_embedding_type": "rope", "rms_norm_eps": 1e-5, "init_method": "mup", "max_position_embeddings": 131072,
            "attention_bias": False, "output_router_logits": False, "router_aux_loss_coef": 0.01, "rope_theta": 10000000,
            "rope_scaling": None, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
            "transformers_version": "4.56.0",
        } | MULTIPLIERS,
        drop=["time_step_limit"],
        says="Granite 4 micro: attention only, RoPE, no experts (shared_mlp alone) although the Mamba keys are there, untied, old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="granitemoehybrid-dense-nope", pack="granitemoehybrid", store="mix", embed=0.5, prepare=prepare_mamba,
        config={
            "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "float32", "vocab_size": 47,
            "hidden_size": 22, "intermediate_size": 26, "shared_intermediate_size": 26, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 1, "layer_types": [MAMBA, MAMBA, ATTENTION, ATTENTION], "num_local_experts": 0,
            "num_experts_per_tok": 0, "mamba_chunk_size": 4, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": "auto",
            "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False,
            "normalization_function": "rmsnorm", "position_embedding_type": "nope", "rms_norm_eps": 1e-3, "init_method": "mup",
            "max_position_embeddings": 32768, "attention_bias": False, "rope_theta": 10000, "rope_scaling": None,
            "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "transformers_version": "4.56.0",
        } | MULTIPLIERS,
        drop=["time_step_limit"],
        says="Granite 4 hybrid without experts: two Mamba-2 layers (mamba_d_head `auto`) and two attention layers without RoPE, eps 1e-3, "
        "tied, old spelling, F32+F16+BF16 mixed",
        prompts=[prompt("main", 17), prompt("two", 2), prompt("chunk", 4), prompt("chunk-plus-one", 5)],
    ),
]
