"""Whole multimodal folders: the text model nested in text_config, beside towers that a text prompt never uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .common import SPARSE, edit_tensors, prompt, rng_for

SPARSE_WINDOW = [0, 2, 3, 9, 40, 41, 500, 501, 6000]
SIGLIP = {"hidden_size": 8, "image_size": 8, "intermediate_size": 10, "model_type": "siglip_vision_model", "num_attention_heads": 2,
          "num_hidden_layers": 2, "patch_size": 4, "vision_use_head": False}
PIXTRAL = {"attention_dropout": 0.0, "head_dim": 4, "hidden_act": "silu", "hidden_size": 8, "image_size": 8, "initializer_range": 0.02,
           "intermediate_size": 10, "model_type": "pixtral", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
           "patch_size": 2, "rope_theta": 10000.0}


def qwen_vision(model_type: str, out: int) -> dict[str, Any]:
    """A tiny vision tower as Qwen3-VL's files describe it; published ones give it the model_type of the whole."""
    return {"deepstack_visual_indexes": [0, 1], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "in_channels": 3,
            "initializer_range": 0.02, "intermediate_size": 10, "model_type": model_type, "num_heads": 2, "num_position_embeddings": 16,
            "out_hidden_size": out, "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2}


def prepare_gemma4(model: torch.nn.Module, rng: Any) -> None:
    """Layer scalars around 1: they multiply the whole stream."""
    for number, layer in enumerate(model.model.language_model.layers):
        layer.layer_scalar.data = torch.from_numpy(1 + 0.2 * rng("scalar", str(number)).standard_normal(1)).float()


def transposed_experts(folder: Path, model: torch.nn.Module) -> None:
    """Published Qwen3-VL MoE files hold the experts' inputs in the last dimension but one."""
    edit_tensors(folder, lambda tensors: {
        name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor for name, tensor in tensors.items()})


def head_of_its_own(folder: Path, model: torch.nn.Module) -> None:
    """A head that differs from the embeddings although the config means tied."""
    noise = rng_for(folder.name, "language_model.lm_head.weight").standard_normal(tuple(model.lm_head.weight.shape))
    head = torch.from_numpy(noise / noise.shape[1] ** 0.5).to(model.lm_head.weight.dtype)
    edit_tensors(folder, lambda tensors: tensors | {"language_model.lm_head.weight": head})


def without_towers(model: torch.nn.Module) -> None:
    """For the float64 pass: no tower, so that none of its tables needs to be made again."""
    for holder in (model, model.model if hasattr(model, "model") else model):
        for name in ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "visual", "vision_model", "multi_modal_projector"):
            if name in holder._modules:
                holder._modules[name] = None


FIXTURES: list[dict[str, Any]] = [
    # --- qwen3_vl ---
    # transformers: mrope_section acts on images only: text positions are the same in all three parts; rope_type default means plain RoPE.
    dict(
        name="qwen3_vl-published", pack="qwen3_vl", store="BF16", avoid=[60, 61, 62, 63], rebuild=without_towers,
        config={
            "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 62, "video_token_id": 63,
            "vision_start_token_id": 60, "vision_end_token_id": 61, "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0",
            "text_config": {
                "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 2,
                "head_dim": 12, "hidden_act": "silu", "hidden_size": 28, "initializer_range": 0.02, "intermediate_size": 34,
                "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 4, "num_hidden_layers": 3,
                "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 2, 2], "rope_type": "default"},
                "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 64,
            },
            "vision_config": qwen_vision("qwen3_vl", 28),
        },
        says="Qwen3 text under model.language_model with mrope keys, head_dim 12 (hidden/heads is 7), tied, a vision tower with deepstack "
        "mergers, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # --- qwen3_vl_moe ---
    # transformers: published experts are transposed: gate_up_proj [experts, hidden, 2 * intermediate], down_proj [experts, intermediate,
    # hidden]; save_pretrained writes them the other way round under the same names; the shape decides on loading.
    # transformers: the top-k is always normalised (norm_topk_prob is not read); num_experts and num_local_experts are the same key.
    dict(
        name="qwen3_vl_moe-published", pack="qwen3_vl_moe", store="BF16", avoid=[60, 61, 62, 63], rebuild=without_towers,
        config={
            "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "image_token_id": 62,
            "video_token_id": 63, "vision_start_token_id": 60, "vision_end_token_id": 61, "tie_word_embeddings": False,
            "transformers_version": "4.57.0.dev0",
            "text_config": {
                "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "decoder_sparse_step": 1, "dtype": "bfloat16",
                "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu", "hidden_size": 26, "initializer_range": 0.02,
                "intermediate_size": 30, "max_position_embeddings": 262144, "mlp_only_layers": [1], "model_type": "qwen3_vl_moe_text",
                "moe_intermediate_size": 11, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 6,
                "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"},
                "rope_theta": 5000000, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 64,
            },
            "vision_config": qwen_vision("qwen3_vl_moe", 26),
        },
        drop=["text_config.num_local_experts"], finish=transposed_experts,
        says="Qwen3 MoE text under model.language_model, experts fused and transposed, one dense layer by mlp_only_layers, top 2 of 6, "
        "untied, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # --- gemma3 ---
    # transformers: published files name little in text_config; what is absent has the defaults of gemma3_text (tied, query_pre_attn_scalar
    # 256, rope_theta 1e6, rope_local_base_freq 1e4, eps 1e-6). rope_scaling acts on the full layers only.
    dict(
        name="gemma3-multimodal", pack="gemma3", store="BF16", exact=True, norm_zero=lambda name: "vision" not in name,
        avoid=[68, 69, 70], rebuild=without_towers, embed=0.2,
        config={
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "boi_token_index": 68, "eoi_token_index": 69,
            "eos_token_id": [1, 6], "image_token_index": 70, "initializer_range": 0.02, "mm_tokens_per_image": 4,
            "text_config": {
                "head_dim": 10, "hidden_size": 24, "intermediate_size": 30, "model_type": "gemma3_text", "num_attention_heads": 4,
                "num_hidden_layers": 6, "num_key_value_heads": 2, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 6, "sliding_window_pattern": 3, "vocab_size": 71,
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": SIGLIP,
        },
        says="text_config with most keys absent, window 6 on two of three layers, linear RoPE on the full ones, tied by default, SigLIP "
        "tower and projector, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    # --- mistral3 ---
    # transformers: tie_word_embeddings of the whole config decides, text_config's does not count. Published files have neither, which
    # means tied for Mistral3Config; but a stored head that differs from the embeddings stays itself.
    dict(
        name="mistral3-mistral", pack="mistral", store="BF16", exact=True, avoid=[10], rebuild=without_towers, finish=head_of_its_own,
        verify=False,
        config={
            "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
            "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
            "text_config": {
                "attention_dropout": 0.0, "head_dim": 10, "hidden_act": "silu", "hidden_size": 28, "initializer_range": 0.02,
                "intermediate_size": 34, "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 4,
                "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000000000.0,
                "sliding_window": None, "use_cache": True, "vocab_size": 67,
            },
            "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": PIXTRAL, "vision_feature_layer": -1,
        },
        says="Mistral text (Mistral Small 3.1), theta 1e9, head_dim 10 (hidden/heads is 7), Pixtral tower, a head of its own "
        "although no key says so (as published), BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="mistral3-ministral3", pack="ministral3", store="F16", avoid=[10], rebuild=without_towers,
        config={
            "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
            "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "tie_word_embeddings": True,
            "text_config": {
                "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "silu", "hidden_size": 26, "initializer_range": 0.02,
                "intermediate_size": 30, "max_position_embeddings": 128, "model_type": "ministral3", "num_attention_heads": 6,
                "num_hidden_layers": 2, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
                "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                                    "mscale_all_dim": 1.0, "original_max_position_embeddings": 8, "rope_theta": 1000000.0,
                                    "rope_type": "yarn", "type": "yarn"},
                "sliding_window": None, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 61,
            },
            "dtype": "float16", "vision_config": PIXTRAL, "vision_feature_layer": -1,
        },
        says="Ministral 3 text: YaRN and a query temperature from position 8 on, tied, F16",
        prompts=[prompt("main", 17), prompt("two", 2), prompt("sparse", 7, SPARSE)],
    ),
    dict(
        name="mistral3-mistral4", pack="mistral4", store="BF16", avoid=[10], rebuild=without_towers,
        config={
            "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
            "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "tie_word_embeddings": False,
            "text_config": {
                "attention_bias": False, "first_k_dense_replace": 0, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 26,
                "kv_lora_rank": 10, "max_position_embeddings": 1024, "model_type": "mistral4", "moe_intermediate_size": 8, "n_group": 1,
                "n_routed_experts": 5, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4,
                "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 4, "q_lora_rank": 12, "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 8, "rms_norm_eps": 1e-6, "rope_interleave": True,
                "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                                    "original_max_position_embeddings": 8, "max_position_embeddings": 1024, "beta_fast": 32.0,
                                    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                                    "partial_rotary_factor": 0.5},
                "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 9, "vocab_size": 61,
                "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11,
            },
            "dtype": "bfloat16", "vision_config": PIXTRAL, "vision_feature_layer": -1,
        },
        says="Mistral Small 4 text (latent attention, fused experts) in the folder of a multimodal model, untied, BF16",
        prompts=[prompt("main", 17, draw=1), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # --- llama4 ---
    # transformers: Llama4ForConditionalGeneration fails on a prompt without image (no image_outputs); truth.py runs its language_model.
    # transformers: an empty no_rope_layers, as published, means the default by no_rope_layer_interval.
    dict(
        name="llama4-published", pack="llama4", store="BF16", avoid=[61, 62, 63], rebuild=without_towers,
        transposed=["experts.gate_up_proj", "experts.down_proj"],
        config={
            "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "boi_token_index": 61, "eoi_token_index": 62,
            "image_token_index": 63, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.0.dev0",
            "text_config": {
                "attention_bias": False, "attention_chunk_size": 6, "attention_dropout": 0.0, "attn_scale": 0.2,
                "attn_temperature_tuning": True, "bos_token_id": 1, "eos_token_id": [2, 3], "floor_scale": 5, "head_dim": 8,
                "hidden_act": "silu", "hidden_size": 26, "initializer_range": 0.02, "interleave_moe_layer_step": 2,
                "intermediate_size": 12, "intermediate_size_mlp": 26, "max_position_embeddings": 10485760, "model_type": "llama4_text",
                "no_rope_layer_interval": 2, "no_rope_layers": [], "num_attention_heads": 4, "num_experts_per_tok": 1,
                "num_hidden_layers": 4, "num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": False,
                "pad_token_id": 0, "rms_norm_eps": 1e-5,
                "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                 "original_max_position_embeddings": 256, "rope_type": "llama3"},
                "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype": "bfloat16",
                "use_cache": True, "use_qk_norm": True, "vocab_size": 64,
            },
            "vision_config": {
                "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 8, "image_size": 8, "initializer_range": 0.02,
                "intermediate_size": 32, "model_type": "llama4_vision_model", "multi_modal_projector_bias": False, "norm_eps": 1e-5,
                "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4, "pixel_shuffle_ratio": 0.5,
                "projector_dropout": 0.0, "projector_input_dim": 8, "projector_output_dim": 8, "rope_theta": 10000,
                "vision_feature_layer": -1, "vision_feature_select_strategy": "default", "vision_output_dim": 8,
            },
        },
        drop=["text_config.layer_types", "text_config.moe_layers"],
        says="text under language_model.model, no RoPE on every second layer by no_rope_layer_interval (no_rope_layers is empty), experts on "
        "every second layer, top 1 of 4, chunks of 6, temperature, QK-norm, untied, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    # --- gemma4 ---
    # transformers: image, audio and video tokens are replaced by the pad token for the per-layer inputs; text prompts have none.
    dict(
        name="gemma4-multimodal", pack="gemma4", store="BF16", avoid=[0, *range(64, 71)], rebuild=without_towers, embed=0.5,
        prepare=prepare_gemma4,
        config={
            "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "boi_token_id": 64, "eoi_token_id": 65,
            "image_token_id": 66, "video_token_id": 67, "boa_token_id": 68, "eoa_token_index": 69, "audio_token_id": 70,
            "initializer_range": 0.02, "tie_word_embeddings": True, "dtype": "bfloat16", "eos_token_id": [1, 6],
            "text_config": {
                "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False, "bos_token_id": 2, "dtype": "bfloat16",
                "enable_moe_block": False, "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 24, "hidden_size_per_layer_input": 4, "initializer_range": 0.02, "intermediate_size": 22,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                "max_position_embeddings": 131072, "model_type": "gemma4_text", "moe_intermediate_size": None, "num_attention_heads": 4,
                "num_experts": None, "num_hidden_layers": 6, "num_key_value_heads": 2, "num_kv_shared_layers": 2, "pad_token_id": 0,
                "global_head_dim": 12, "num_global_key_value_heads": None, "rms_norm_eps": 1e-6,
                "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
                                    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
                "sliding_window": 6, "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None,
                "use_cache": True, "use_double_wide_mlp": True, "vocab_size": 71, "vocab_size_per_layer_input": 71,
            },
            "vision_config": {
                "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 8, "intermediate_size": 10, "model_type": "gemma4_vision",
                "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2, "patch_size": 2, "pooling_kernel_size": 2,
                "position_embedding_size": 8, "use_clipped_linears": True,
            },
            "audio_config": {
                "attention_chunk_size": 4, "attention_context_left": 5, "attention_context_right": 0, "conv_kernel_size": 3, "hidden_size": 8,
                "model_type": "gemma4_audio", "num_attention_heads": 2, "num_hidden_layers": 1, "output_proj_dims": 12,
                "subsampling_conv_channels": [4, 2],
            },
        },
        drop=["text_config.per_layer_config"],
        says="Gemma 4 E text (per-layer inputs, shared KV, wider MLP on shared layers) under model.language_model beside a vision and an "
        "audio tower, tied, BF16",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 9, SPARSE_WINDOW)],
    ),
    # --- phi4_multimodal ---
    # transformers: original_max_position_embeddings at the top of config.json decides, the one inside rope_parameters does not count.
    # transformers: there is no text_config: the text keys are at the top. The files that Microsoft publishes say phi4mm instead, with LoRA
    # tensors (*.base_layer.weight, *.lora_A.speech.weight, ...), which transformers' own class does not load.
    dict(
        name="phi4_multimodal-longrope", pack="phi4_multimodal", store="BF16", avoid=[62, 63], rebuild=lambda model: None,
        config={
            "architectures": ["Phi4MultimodalForCausalLM"], "model_type": "phi4_multimodal", "attention_dropout": 0.0, "bos_token_id": 1,
            "embd_pdrop": 0.0, "eos_token_id": [1, 2], "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
            "intermediate_size": 30, "max_position_embeddings": 40, "num_attention_heads": 4, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "original_max_position_embeddings": 10, "pad_token_id": 1, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                                "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 2.1, 4.0], "original_max_position_embeddings": 10},
            "sliding_window": None, "tie_word_embeddings": False, "dtype": "bfloat16", "use_cache": True, "vocab_size": 64,
            "vision_config": {
                "crop_size": 16, "feature_layer": -2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size": 16, "image_token_id": 62,
                "intermediate_size": 10, "layer_norm_eps": 1e-6, "model_type": "phi4_multimodal_vision", "num_attention_heads": 2,
                "num_channels": 3, "num_hidden_layers": 2, "patch_size": 8,
            },
            "audio_config": {
                "audio_token_id": 63, "bias_max_distance": 4, "depthwise_separable_out_channel": 6, "ext_pw_out_channel": 6, "feature_layer": -2,
                "hidden_size": 6, "input_size": 8, "intermediate_size": 8, "kernel_size": 3, "model_type": "phi4_multimodal_audio",
                "nemo_conv_channels": 4, "num_attention_heads": 2, "num_blocks": 2, "time_reduction": 4,
            },
        },
        says="text keys at the top of config.json, fused qkv and gate_up, LongRoPE that switches at 10, 6 of head_dim 8 rotated, "
        "towers under model.embed_tokens_extend, untied, BF16",
        prompts=[prompt("over", 17), prompt("limit", 10), prompt("limit-plus-one", 11), prompt("one", 1)],
    ),
]
