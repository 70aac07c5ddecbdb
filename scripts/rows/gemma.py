"""Gemma 1 to 4: scaled embeddings, (1 + w) norms up to Gemma 3, soft-caps, per-layer inputs, shared keys and values.

`# transformers:` marks what its code does and its configuration or documentation does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .common import edit_tensors, prompt, rng_for
from .dense import FULL, SLIDING, SPARSE_WINDOW, prompts


def set_values(tensor: torch.Tensor, values: np.ndarray) -> None:
    """Overwrite a tensor in place."""
    tensor.copy_(torch.from_numpy(np.asarray(values)).to(tensor.dtype).view(tensor.shape))


def prepare_gemma3n(model: torch.nn.Module, rng: Callable[..., np.random.Generator]) -> None:
    """AltUp routers whose tanh is neither flat nor linear, output scales around 1."""
    for number, layer in enumerate(model.model.layers):
        layer.altup.modality_router.weight.mul_(model.config.hidden_size)
        set_values(layer.altup.correct_output_scale, 1 + 0.2 * rng("scale", str(number)).standard_normal(model.config.hidden_size))


def unused_shared_kv(name: str) -> Callable[[Path, torch.nn.Module], None]:
    """The keys' and values' tensors of layers that take them from an earlier one: published files have them, nothing reads them."""
    def finish(folder: Path, model: torch.nn.Module) -> None:
        def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            for number, layer in enumerate(model.model.layers):
                if layer.self_attn.is_kv_shared_layer:
                    same = next(i for i, other in enumerate(model.model.layers)
                                if other.self_attn.layer_type == layer.self_attn.layer_type)
                    for own in ("k_proj", "v_proj", "k_norm"):
                        like = tensors[f"model.layers.{same}.self_attn.{own}.weight"]
                        noise = rng_for(name, "unused", str(number), own).standard_normal(tuple(like.shape))
                        tensors[f"model.layers.{number}.self_attn.{own}.weight"] = torch.from_numpy(noise).to(like.dtype)
            return tensors

        edit_tensors(folder, change)

    return finish


def rebuild_gemma3n(model: torch.nn.Module) -> None:
    """The three scales that Gemma 3n keeps as float32 tensors."""
    for module in model.modules():
        if hasattr(module, "router_input_scale"):
            module.router_input_scale = torch.tensor(module.config.hidden_size**-1.0)
        if hasattr(module, "per_layer_projection_scale"):
            module.per_layer_projection_scale = torch.tensor(module.hidden_size**-0.5)
            module.per_layer_input_scale = torch.tensor(2.0**-0.5)


def prepare_gemma4(model: torch.nn.Module, rng: Callable[..., np.random.Generator]) -> None:
    """Layer scalars and router scales around 1, routers that tell tokens apart."""
    for number, layer in enumerate(model.model.layers):
        set_values(layer.layer_scalar, 1 + 0.2 * rng("scalar", str(number)).standard_normal(1))
        if hasattr(layer, "router"):
            layer.router.proj.weight.mul_(8)
            for own in ("scale", "per_expert_scale"):
                parameter = getattr(layer.router, own)
                set_values(parameter, 1 + 0.2 * rng(own, str(number)).standard_normal(parameter.shape[0]))


FIXTURES: list[dict[str, Any]] = [
    # --- gemma ---
    # transformers: hidden_act "gelu" means the tanh one here, and the key hidden_activation of older files is not read.
    dict(
        name="gemma-plain", pack="gemma", store="BF16", norm_zero=True, embed=0.5,
        config={
            "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 10, "hidden_act": "gelu", "hidden_activation": None, "rms_norm_eps": 1e-6, "max_position_embeddings": 8192,
            "attention_bias": False, "rope_theta": 10000.0, "rope_scaling": None, "transformers_version": "4.38.0.dev0",
        },
        drop=["tie_word_embeddings", "use_bidirectional_attention"],
        says="(1 + w) norms around 0, embeddings times sqrt(28), hidden_act `gelu` that means the tanh one, MQA, head_dim 10 "
        "(hidden/heads is 7), tied by default, old spelling, BF16",
        prompts=prompts(17),
    ),
    dict(
        name="gemma-bias-untied", pack="gemma", store="F16", norm_zero=True,
        config={
            "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 12, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-2, "max_position_embeddings": 8192,
            "attention_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 2.0},
            "tie_word_embeddings": False,
        },
        embed=0.2,
        says="biases on q, k, v and o, GQA 4:2, linear RoPE, eps 1e-2, untied, F16",
        prompts=prompts(16, 2),
    ),
    # --- gemma2 ---
    # transformers: hidden_act is not read, hidden_activation is. hidden_size must be a multiple of num_attention_heads even so.
    dict(
        name="gemma2-softcap", pack="gemma2", store="BF16", norm_zero=True, embed=0.5,
        config={
            "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 38, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
            "max_position_embeddings": 8192, "attention_bias": False, "query_pre_attn_scalar": 6, "sliding_window": 6,
            "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "cache_implementation": "hybrid", "rope_theta": 10000.0,
            "transformers_version": "4.42.4",
        },
        drop=["layer_types", "tie_word_embeddings", "use_bidirectional_attention"],
        says="sandwich of (1 + w) norms, soft-caps 3 on attention and 5 on logits, query_pre_attn_scalar 6 with head_dim 10, window 6 on "
        "layers 0 and 2 (layer_types absent), tied by default, old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="gemma2-no-caps", pack="gemma2", store="F16", norm_zero=True,
        config={
            "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 12, "hidden_activation": "gelu", "rms_norm_eps": 1e-2, "max_position_embeddings": 8192,
            "attention_bias": True, "query_pre_attn_scalar": 20, "sliding_window": 5, "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "tie_word_embeddings": False,
        },
        embed=0.2,
        says="both soft-caps null, layer_types in the file, exact GELU, biases on q, k, v and o, MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2, SPARSE_WINDOW),
    ),
    # --- gemma3_text ---
    # transformers: attn_logit_softcapping is read and not used (final_logit_softcapping is used). rope_scaling acts on full layers only.
    dict(
        name="gemma3-plain", pack="gemma3", store="BF16", norm_zero=True, embed=0.5,
        config={
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": "bfloat16", "vocab_size": 61,
            "hidden_size": 28, "intermediate_size": 34, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 10, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
            "attention_bias": False, "query_pre_attn_scalar": 6, "sliding_window": 6, "sliding_window_pattern": 3,
            "attn_logit_softcapping": None, "final_logit_softcapping": None, "cache_implementation": "hybrid",
            "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "transformers_version": "4.50.0.dev0",
        },
        drop=["layer_types", "tie_word_embeddings", "use_bidirectional_attention", "_sliding_window_pattern"],
        says="QK-norm of (1 + w), window 6 on all layers but 2 and 5 (sliding_window_pattern 3), theta 1e6 with linear scaling on full "
        "layers and 1e4 on sliding ones, query_pre_attn_scalar 6 with head_dim 10, tied by default, old spelling, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="gemma3-cap-bias", pack="gemma3", store="F16", norm_zero=True,
        config={
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "dtype": "float16", "vocab_size": 53,
            "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 12, "hidden_activation": "gelu", "rms_norm_eps": 1e-2, "max_position_embeddings": 32768,
            "attention_bias": True, "query_pre_attn_scalar": 20, "sliding_window": 5, "layer_types": [FULL, SLIDING, SLIDING, FULL],
            "attn_logit_softcapping": None, "final_logit_softcapping": 4.0,
            "rope_parameters": {
                FULL: {"rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 512},
                SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
            },
            "tie_word_embeddings": False,
        },
        embed=0.2,
        says="rope_parameters per layer type (YaRN on full layers), final soft-cap 4, biases on q, k, v and o, exact GELU, MQA, eps 1e-2, "
        "untied, F16",
        prompts=prompts(16, 2, SPARSE_WINDOW),
    ),
    # --- gemma3n_text ---
    # transformers: norms multiply by w (not 1 + w); the values' norm has no weight; attention scale is 1; altup_coef_clip acts in
    # training only; tokens from vocab_size_per_layer_input on take row 0 of the per-layer table.
    # transformers: altup_active_idx chooses the stream that layers compute on, but the per-layer input is always added to streams 1
    # and up, and the merge at the end always measures stream 0. An activation sparsity p cuts gates below mean + icdf(p) * std (of the
    # population) and shifts the rest down by that much.
    # transformers: a layer that shares takes keys and values of the last earlier layer of its own type that computes them.
    dict(
        name="gemma3n-shared", pack="gemma3n", store="BF16", embed=0.5,
        prepare=prepare_gemma3n, rebuild=rebuild_gemma3n, finish=unused_shared_kv("gemma3n-shared"),
        config={
            "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "torch_dtype": "bfloat16", "vocab_size": 61,
            "vocab_size_per_layer_input": 53, "hidden_size": 24, "hidden_size_per_layer_input": 6, "intermediate_size": [34] * 6,
            "num_hidden_layers": 6, "num_kv_shared_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
            "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "attention_bias": False,
            "sliding_window": 5, "layer_types": [SLIDING, FULL, FULL, SLIDING, SLIDING, FULL],
            "activation_sparsity_pattern": [0.6, 0.8, 0.0, 0.0, 0.0, 0.0], "altup_active_idx": 0, "altup_coef_clip": 120.0,
            "altup_correct_scale": True, "altup_lr_multiplier": 1.0, "altup_num_inputs": 4, "laurel_rank": 5,
            "final_logit_softcapping": 6.0, "query_pre_attn_scalar": 256, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
            "rope_scaling": None, "transformers_version": "4.53.0.dev0",
        },
        drop=["tie_word_embeddings"],
        says="AltUp with 4 streams, LAuReL, per-layer inputs (a smaller vocabulary of their own), layers 4 and 5 share keys and values, "
        "activation sparsity 0.6 and 0.8 on layers 0 and 1, window 5, two bases, final soft-cap 6, unused tensors of the sharing "
        "layers, tied by default, old spelling, BF16",
        prompts=prompts(17, 1, SPARSE_WINDOW),
    ),
    dict(
        name="gemma3n-stream-one", pack="gemma3n", store="F16", prepare=prepare_gemma3n, rebuild=rebuild_gemma3n,
        config={
            "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "dtype": "float16", "vocab_size": 53,
            "vocab_size_per_layer_input": 53, "hidden_size": 24, "hidden_size_per_layer_input": 5,
            "intermediate_size": [26, 30, 34, 22], "num_hidden_layers": 4, "num_kv_shared_layers": 0, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 6, "hidden_activation": "gelu", "rms_norm_eps": 1e-2,
            "max_position_embeddings": 32768, "attention_bias": True, "sliding_window": 5,
            "layer_types": [FULL, SLIDING, SLIDING, FULL], "activation_sparsity_pattern": [0.0, 0.3, 0.0, 0.95],
            "altup_active_idx": 1, "altup_correct_scale": False, "altup_num_inputs": 3, "laurel_rank": 3,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {FULL: {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
                                SLIDING: {"rope_type": "default", "rope_theta": 1000.0}},
            "tie_word_embeddings": False,
        },
        embed=0.2,
        says="AltUp with 3 streams of which stream 1 is active and unscaled, no sharing, an MLP size per layer, biases on q, k, v and o, "
        "exact GELU, rope_parameters per layer type, MQA, eps 1e-2, untied, F16",
        prompts=prompts(16, 2, SPARSE_WINDOW),
    ),
    # --- gemma4_text ---
    # transformers: norms multiply by w; the values' norm has no weight; attention scale is 1; each layer's output is multiplied by its
    # layer_scalar, a stored buffer. Full layers take global_head_dim (512 if absent) and, where attention_k_eq_v, num_global_key_value_heads.
    # transformers: `proportional` RoPE divides the exponent by the whole head_dim and leaves the last pairs of the half-split unrotated.
    # transformers: attention_k_eq_v acts on full layers only: values are k_proj's output before k_norm and RoPE, through the values' norm.
    # transformers: save_pretrained writes per_layer_config ({"layer": {"head_dim", "num_key_value_heads"}}) in place of global_head_dim and
    # num_global_key_value_heads; where per_layer_config is present the two are ignored, and attention_k_eq_v does not gate its KV heads.
    # transformers: the last layer type is forced to full_attention. use_bidirectional_attention "vision" does nothing to text.
    dict(
        name="gemma4-dense", pack="gemma4", store="BF16", embed=0.5, prepare=prepare_gemma4,
        config={
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16", "vocab_size": 61,
            "vocab_size_per_layer_input": 61, "hidden_size": 28, "hidden_size_per_layer_input": 0, "intermediate_size": 34,
            "num_hidden_layers": 5, "num_kv_shared_layers": 0, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
            "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "attention_bias": False, "sliding_window": 6,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL], "final_logit_softcapping": 6.0, "enable_moe_block": False,
            "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None, "use_double_wide_mlp": False,
            "use_bidirectional_attention": "vision",
            "rope_parameters": {FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                                SLIDING: {"rope_theta": 10000.0, "rope_type": "default"}},
            "tie_word_embeddings": True,
        },
        drop=["per_layer_config"],
        says="dense without per-layer inputs: full layers with head_dim 16, one KV head, values that are the keys (attention_k_eq_v) and "
        "proportional RoPE over a quarter; sliding ones with head_dim 10, two KV heads and window 6; layer scalars, final soft-cap 6, "
        "tied, BF16",
        prompts=prompts(18, 1, SPARSE_WINDOW),
    ),
    dict(
        name="gemma4-moe", pack="gemma4", store="BF16", prepare=prepare_gemma4,
        config={
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16", "vocab_size": 53,
            "vocab_size_per_layer_input": 53, "hidden_size": 24, "hidden_size_per_layer_input": 0, "intermediate_size": 22,
            "num_hidden_layers": 4, "num_kv_shared_layers": 0, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "per_layer_config": {"1": {"head_dim": 12, "num_key_value_heads": 1}, "3": {"head_dim": 12, "num_key_value_heads": 1}},
            "attention_k_eq_v": True, "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-3, "max_position_embeddings": 262144, "attention_bias": False, "sliding_window": 5,
            "layer_types": [SLIDING, FULL, SLIDING, FULL], "final_logit_softcapping": None, "enable_moe_block": True,
            "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 10, "use_double_wide_mlp": False,
            "use_bidirectional_attention": None,
            "rope_parameters": {FULL: {"partial_rotary_factor": 0.5, "rope_theta": 100000.0, "rope_type": "proportional", "factor": 2.0},
                                SLIDING: {"rope_theta": 1000.0, "rope_type": "default"}},
            "tie_word_embeddings": False,
        },
        embed=0.2,
        # transformers: the router and the experts read the residual, each through a norm of its own (the router's has no weight, but
        # `scale` and 1/sqrt(hidden)); the three chosen weights are renormalised, then multiplied by per_expert_scale.
        says="the full layers' sizes in per_layer_config (what transformers 5.24 writes), a dense MLP and 7 experts (3 per token) side by side in every layer, per-expert scales, attention_k_eq_v, proportional RoPE "
        "with a factor, no final soft-cap, eps 1e-3, untied, BF16",
        prompts=[prompt("main", 17, draw=1), prompt("two", 2), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    dict(
        name="gemma4-e", pack="gemma4", store="BF16", embed=0.5, prepare=prepare_gemma4, finish=unused_shared_kv("gemma4-e"),
        config={
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16", "vocab_size": 61,
            "vocab_size_per_layer_input": 61, "hidden_size": 24, "hidden_size_per_layer_input": 6, "intermediate_size": 22,
            "num_hidden_layers": 6, "num_kv_shared_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8,
            "global_head_dim": 12, "num_global_key_value_heads": None, "attention_k_eq_v": False,
            "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "attention_bias": False,
            "sliding_window": 5, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL], "final_logit_softcapping": 6.0,
            "enable_moe_block": False, "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None,
            "use_double_wide_mlp": True, "use_bidirectional_attention": None,
            "rope_parameters": {FULL: {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
                                SLIDING: {"rope_theta": 10000.0, "rope_type": "default"}},
            "tie_word_embeddings": True,
        },
        drop=["per_layer_config"],
        # transformers: use_double_wide_mlp doubles the MLP of the layers that share keys and values only.
        says="E models: per-layer inputs, layers 3 to 5 share keys and values and have MLPs twice as wide, head_dim 8 and 12, MQA, layer "
        "scalars, final soft-cap 6, unused tensors of the sharing layers, tied, BF16",
        prompts=prompts(17, 1, SPARSE_WINDOW),
    ),
    dict(
        name="gemma4-bias", pack="gemma4", store="F16", prepare=prepare_gemma4,
        config={
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "float16", "vocab_size": 47,
            "vocab_size_per_layer_input": 47, "hidden_size": 22, "hidden_size_per_layer_input": 5, "intermediate_size": 26,
            "num_hidden_layers": 4, "num_kv_shared_layers": 0, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
            "global_head_dim": 10, "num_global_key_value_heads": 4, "attention_k_eq_v": False, "hidden_activation": "gelu",
            "rms_norm_eps": 1e-2, "max_position_embeddings": 131072, "attention_bias": True, "sliding_window": 4,
            "layer_types": [FULL, SLIDING, SLIDING, FULL], "final_logit_softcapping": None, "enable_moe_block": False,
            "rope_parameters": {FULL: {"rope_theta": 100000.0, "rope_type": "linear", "factor": 2.0},
                                SLIDING: {"rope_theta": 1000.0, "rope_type": "default"}},
            "tie_word_embeddings": False,
        },
        embed=0.2, drop=["per_layer_config"],
        # transformers: num_global_key_value_heads counts only where attention_k_eq_v is true.
        says="biases on q, k, v and o, num_global_key_value_heads present and without effect (attention_k_eq_v false), per-layer inputs "
        "without sharing, exact GELU, linear RoPE on full layers, eps 1e-2, untied, F16",
        prompts=prompts(16, 2, SPARSE_WINDOW),
    ),
]
