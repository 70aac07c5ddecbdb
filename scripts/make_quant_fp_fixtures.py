"""Makes fixtures/quant/NAME, tiny models whose weights are FP8 or FP4, and oracles/quant/NAME.safetensors, the float32 weights
that these stand for, under the names of the plain model.

The values are those of the owners' own functions, in float32. A second evaluation in NumPy ("Formulas"), which decodes every
small float from its bits, starts from the bytes of the folder and must give the same values bit for bit.

Example:
    pip install -r scripts/requirements.txt && pip install --no-deps -r scripts/requirements-quant-fp.txt
    pip install --no-deps --target DIR -r scripts/requirements-quark.txt
    python scripts/make_quant_fp_fixtures.py --quark DIR            # all of them, and PROVENANCE-fp.json
    python scripts/make_quant_fp_fixtures.py fp8-block ct-nvfp4     # some
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from make_quant_int_fixtures import ROOT, Made, is_projection, llama, plain_config, plain_tensors, write
from rows.common import DTYPES, read_safetensors, rng_for, write_safetensors

# --- The dialects ---------------------------------------------------------------------------------------------------------
# `model` is what `llama` gives; `make` is one of the makers; the rest are the maker's arguments.

RAGGED = llama(1, 40, 176, 10, 61)  # no dimension is a multiple of 32 or 128, and of 48 none either
SMALL = llama(1, 32, 64, 8, 61)
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 32,
    "intermediate_size": 64, "moe_intermediate_size": 48, "num_experts": 3, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "mlp_only_layers": [1], "norm_topk_prob": True, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 61, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 2048, "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 32,
    "intermediate_size": 48, "num_local_experts": 3, "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "vocab_size": 61, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 2048,
    "hidden_act": "silu", "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
LLAMA4 = {
    "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "num_hidden_layers": 1, "hidden_size": 32,
    "intermediate_size": 48, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 1, "num_local_experts": 3,
    "num_experts_per_tok": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61,
    "attention_chunk_size": 8192, "attn_temperature_tuning": False, "use_qk_norm": False, "no_rope_layer_interval": 4,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 2048, "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 32, "num_local_experts": 3, "num_experts_per_tok": 2, "experts_per_token": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "attention_bias": True, "sliding_window": 6, "rms_norm_eps": 1e-5,
    "layer_types": ["sliding_attention", "full_attention"], "hidden_act": "silu", "swiglu_limit": 7.0, "rope_theta": 150000,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": False},
    "initial_context_length": 4096, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
QWEN35_MOE = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "num_hidden_layers": 2, "hidden_size": 32,
    "layer_types": ["linear_attention", "full_attention"], "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "num_experts": 3, "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61,
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 8, "rms_norm_eps": 1e-6, "attention_bias": False, "hidden_act": "silu", "max_position_embeddings": 2048,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
                        "rope_type": "default"},
    "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL4 = {
    "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "num_hidden_layers": 1, "hidden_size": 32,
    "intermediate_size": 64, "moe_intermediate_size": 48, "n_routed_experts": 3, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "qk_head_dim": 16, "v_head_dim": 9,
    "head_dim": 16, "vocab_size": 61, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 1024,
    "hidden_act": "silu", "norm_topk_prob": True, "routed_scaling_factor": 1.0, "rope_interleave": True,
    "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                        "original_max_position_embeddings": 8, "max_position_embeddings": 1024, "beta_fast": 32.0,
                        "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                        "partial_rotary_factor": 0.375},
}  # fmt: skip
DEEPSEEK = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8")
DIALECTS: list[dict[str, Any]] = [
    # --- fp8, of DeepSeek and transformers ---
    dict(name="fp8-block", make="fp8", model=RAGGED, block=[128, 128], config=DEEPSEEK | dict(weight_block_size=[128, 128]),
         says="E4M3, F32 scales of blocks of 128 x 128, as DeepSeek-V3 has them; short blocks at the ends"),
    dict(name="fp8-block-oblong", make="fp8", model=RAGGED | dict(num_hidden_layers=2), block=[32, 48],
         config=DEEPSEEK | dict(weight_block_size=[32, 48], modules_to_not_convert=["lm_head", "model.layers.1.self_attn"]),
         skip=["layers.1.self_attn"],
         says="E4M3, blocks of 32 x 48 with short ones at both ends; the attention of layer 1 left as it is"),
    dict(name="fp8-block-bf16", make="fp8", model=RAGGED, block=[128, 128], scale="BF16",
         config=DEEPSEEK | dict(weight_block_size=[128, 128], modules_to_not_convert=[
             "lm_head", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]),
         says="E4M3, BF16 scales, as Qwen3 has them"),
    dict(name="fp8-block-e8m0", make="fp8", model=RAGGED, block=[32, 48], scale="F8_E8M0", extreme=[0, 1, 245],
         config=DEEPSEEK | dict(weight_block_size=[32, 48], scale_fmt="ue8m0"),
         says="E4M3, E8M0 scales; the smallest there is and the largest by which no code overflows"),
    dict(name="fp8-block-pow2", make="fp8", model=RAGGED, block=[128, 128], scale="F32", pow2=True,
         config=DEEPSEEK | dict(weight_block_size=[128, 128], scale_fmt="ue8m0"),
         says="E4M3, scale_fmt ue8m0 but F32 scales, all powers of two, as DeepSeek-V3.1 has them"),
    dict(name="fp8-block-u8", make="fp8", model=SMALL, block=[1, 32], scale="U8", loads=True,
         config=DEEPSEEK | dict(weight_block_size=[1, 32], scale_fmt="ue8m0"),
         says="MXFP8: E4M3, E8M0 scales of 32 inputs kept as U8"),
    dict(name="fp8-block-dot-scale", make="fp8", model=SMALL, block=[32, 32], scale="F8_E8M0", scale_name="scale", loads=True,
         config=DEEPSEEK | dict(weight_block_size=[32, 32], scale_fmt="ue8m0"),
         says="E4M3, the scales are named X.scale, as DeepSeek-V4 has them"),
    dict(name="fp8-tensor", make="fp8", model=SMALL, loads=True, static=("activation_scale", []),
         config=dict(activation_scheme="static", dequantize=False, modules_to_not_convert=["lm_head"], quant_method="fp8",
                     weight_block_size=None),
         says="E4M3, a scalar weight_scale_inv and a static activation_scale, as transformers writes them"),
    dict(name="fp8-tensor-bf16", make="fp8", model=SMALL, loads=True, scale="BF16", static=("activation_scale", []),
         config=dict(activation_scheme="static", dequantize=False, modules_to_not_convert=["lm_head"], quant_method="fp8",
                     weight_block_size=None),
         says="the same with BF16 scalars, as Ministral 3 has them"),
    dict(name="fp8-autofp8", make="fp8", model=SMALL, scale_name="weight_scale", scale_shape=[1], static=("input_scale", [1]),
         config=dict(activation_scheme="static", ignored_layers=["lm_head"], quant_method="fp8"),
         says="E4M3, weight_scale and input_scale of one element, as AutoFP8 writes them"),
    dict(name="fp8-e5m2", make="fp8", model=SMALL, kind="F8_E5M2", scale_name="weight_scale",
         config=dict(activation_scheme="dynamic", fmt="e5m2", quant_method="fp8"),
         says="E5M2, a scalar weight_scale"),
    # --- fbgemm_fp8 ---
    dict(name="fbgemm-fp8", make="fp8", model=llama(2, 32, 64, 8, 61), block=[1, None], scale_name="weight_scale",
         config=dict(activation_scale_ub=1200.0, quant_method="fbgemm_fp8", modules_to_not_convert=[
             "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj",
             "model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj", "lm_head"]),
         skip=["layers.0.self_attn", "layers.1.mlp.down_proj"],
         says="E4M3, a scale a row, modules_to_not_convert"),
    # --- compressed-tensors ---
    dict(name="ct-fp8-tensor", make="compressed", model=SMALL, preset="FP8", kv_cache=True,
         says="float-quantized: a scale a tensor, static scales of activations and of the KV cache"),
    dict(name="ct-fp8-channel", make="compressed", model=llama(2, 32, 51, 8, 61), preset="FP8_DYNAMIC",
         ignore=["lm_head", "re:.*layers\\.1\\.self_attn.*"],
         says="float-quantized: a BF16 scale a row, `re:` in ignore"),
    dict(name="ct-fp8-block", make="compressed", model=RAGGED, preset="FP8_BLOCK", store="F32",
         says="float-quantized: F32 scales of blocks of 128 x 128, short ones at the ends"),
    dict(name="ct-nvfp4", make="compressed", model=SMALL, preset="NVFP4",
         says="nvfp4-pack-quantized: groups of 16 with E4M3 scales, which weight_global_scale divides"),
    dict(name="ct-nvfp4a16", make="compressed", model=llama(2, 32, 48, 8, 61), preset="NVFP4A16", extreme=range(1, 127),
         ignore=["lm_head", "re:.*self_attn.*"],
         says="nvfp4-pack-quantized, weights alone, attention ignored; scales of every value from the smallest to the largest"),
    dict(name="ct-mxfp4", make="compressed", model=SMALL, preset="MXFP4",
         says="mxfp4-pack-quantized: groups of 32 with E8M0 scales in U8"),
    dict(name="ct-mxfp4a16", make="compressed", model=SMALL, preset="MXFP4A16", extreme=[0, 1, 2, 126, 127, 128, 252],
         says="mxfp4-pack-quantized, weights alone; the smallest scale there is and the largest by which no code overflows"),
    dict(name="ct-mxfp8", make="compressed", model=SMALL, preset="MXFP8",
         says="mxfp8-quantized: groups of 32 with E8M0 scales in U8"),
    dict(name="ct-fp8-head", make="compressed", model=SMALL, preset="FP8_DYNAMIC", store="F32", ignore=["model.layers.0.mlp.up_proj"],
         says="float-quantized: an F32 scale a row; lm_head quantised too, one module ignored by its name"),
    dict(name="ct-fp8-alone", make="compressed", model=SMALL, preset="FP8", alone=True, store="F16",
         says="naive-quantized: weights alone, an F16 scale a tensor"),
    dict(name="ct-fp8-old", make="compressed", model=SMALL, preset="FP8_DYNAMIC", old=True,
         says="float-quantized, a scale a row; config with the keys of older versions"),
    dict(name="ct-mixed-fp", make="compressed", model=SMALL, preset="NVFP4A16", second=("FP8_DYNAMIC", ["re:.*down_proj$", "re:.*self_attn.*"]),
         targets=["re:.*(gate|up)_proj$"],
         says="mixed-precision: two groups, nvfp4-pack-quantized and float-quantized"),
    # --- ModelOpt ---
    dict(name="modelopt-fp8", make="modelopt", model=SMALL, quantise="FP8_DEFAULT_CFG", kv_cache=True,
         says="FP8: a scale a tensor, static scales of activations and of the KV cache"),
    dict(name="modelopt-fp8-side", make="modelopt", model=SMALL, quantise="FP8_DEFAULT_CFG", only_side=True,
         says="FP8, with hf_quant_config.json alone, as older versions write it"),
    dict(name="modelopt-fp8-channel", make="modelopt", model=llama(1, 32, 51, 8, 61), quantise="FP8_PER_CHANNEL_PER_TOKEN_CFG",
         says="FP8_PER_CHANNEL_PER_TOKEN: a scale a row, in one dimension"),
    dict(name="modelopt-fp8-block", make="modelopt", model=llama(1, 32, 256, 8, 61), quantise="FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
         attention=False, says="fp8_pb_wo: scales of blocks of 128 x 128 in four dimensions; attention left as it is"),
    dict(name="modelopt-mxfp8", make="modelopt", model=SMALL, quantise="MXFP8_DEFAULT_CFG",
         says="MXFP8: groups of 32 with E8M0 scales in U8"),
    dict(name="modelopt-nvfp4", make="modelopt", model=llama(2, 32, 64, 8, 61), quantise="NVFP4_DEFAULT_CFG", attention=False,
         says="NVFP4: groups of 16 with E4M3 scales, which weight_scale_2 multiplies; attention left as it is"),
    dict(name="modelopt-nvfp4-side", make="modelopt", model=SMALL, quantise="NVFP4_DEFAULT_CFG", kv_cache=True, extreme=range(1, 127),
         only_side=True, says="NVFP4 with hf_quant_config.json alone; scales of every value from the smallest to the largest"),
    dict(name="modelopt-nvfp4-fp8", make="modelopt", model=SMALL, quantise="W4A8_NVFP4_FP8_CFG",
         says="W4A8_NVFP4_FP8: the same with groups of 32"),
    dict(name="modelopt-mxfp4", make="modelopt", model=SMALL, quantise="W4A8_MXFP4_FP8_CFG",
         says="W4A8_MXFP4_FP8: groups of 32 with E8M0 scales in U8, no second scale"),
    dict(name="modelopt-mixed", make="modelopt", model=SMALL, quantise="FP8_DEFAULT_CFG", nvfp4=["*mlp*"],
         says="MIXED_PRECISION: the attention FP8, the rest NVFP4"),
    # --- Quark ---
    dict(name="quark-fp8", make="quark", model=SMALL, weight=("FP8E4M3PerTensorSpec", dict(observer_method="min_max")), static=True,
         says="E4M3, scalar scales, static ones of activations"),
    dict(name="quark-fp8-channel", make="quark", model=llama(1, 32, 51, 8, 61), weight=("FP8E4M3PerChannelSpec", dict(ch_axis=0)),
         says="E4M3, a scale a row, in one dimension"),
    dict(name="quark-mxfp4", make="quark", model=SMALL, weight=("OCP_MXFP4Spec", dict(ch_axis=-1)), extreme=[0, 1, 2, 126, 252],
         says="groups of 32 with E8M0 scales in U8; the smallest scale there is and the largest by which no code overflows"),
    # --- gpt-oss ---
    dict(name="mxfp4-gpt-oss", make="mxfp4", model=GPT_OSS,
         config=dict(quant_method="mxfp4", modules_to_not_convert=[
             "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]),
         says="the experts of a layer in blocks of 32 with E8M0 scales, transposed against the plain model"),
    # --- Mixtures of experts ---
    dict(name="fp8-block-moe", make="fp8", model=MOE, block=[32, 48], scale="BF16",
         config=DEEPSEEK | dict(weight_block_size=[32, 48], modules_to_not_convert=[
             "lm_head", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.layers.0.mlp.gate",
             "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"]),
         says="Qwen3-MoE: every expert a module of its own, blocks of 32 x 48, one dense layer"),
    dict(name="fp8-tensor-moe", make="fp8", model=MIXTRAL, scale_name="weight_scale", static=("input_scale", []),
         config=dict(activation_scheme="static", ignored_layers=[
             "lm_head", "model.layers.0.block_sparse_moe.gate"], quant_method="fp8"),
         says="Mixtral: every expert a module of its own, scalar scales, as AutoFP8 writes them"),
    dict(name="fp4-experts", make="fp8", model=MOE | dict(moe_intermediate_size=64), block=[16, 16], scale="F8_E8M0", fp4=["experts"],
         loads=True,
         config=DEEPSEEK | dict(weight_block_size=[16, 16], scale_fmt="ue8m0", expert_dtype="fp4"),
         says="expert_dtype fp4: the experts are E2M1 in I8 with E8M0 scales of 32 inputs, the rest FP8 of blocks of 16 x 16"),
    dict(name="fp8-fused-mistral4", make="fp8", model=MISTRAL4, scale="BF16", static=("activation_scale", []),
         config=dict(activation_scheme="static", dequantize=False, modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"],
                     quant_method="fp8", weight_block_size=None),
         says="Mistral 4: the experts of a layer in one tensor, a scale an expert; scalar scales otherwise"),
    dict(name="ct-fp8-moe", make="compressed", model=MOE, preset="FP8_DYNAMIC", ignore=["lm_head", "re:.*mlp\\.gate$"],
         says="float-quantized Qwen3-MoE: every expert a module of its own"),
    dict(name="ct-nvfp4-moe", make="compressed", model=MOE, preset="NVFP4", ignore=["lm_head", "re:.*mlp\\.gate$", "re:.*self_attn.*"],
         says="nvfp4-pack-quantized Qwen3-MoE: every expert a module of its own, attention ignored"),
    dict(name="modelopt-nvfp4-moe", make="modelopt", model=MOE, quantise="NVFP4_DEFAULT_CFG", attention=False,
         says="NVFP4 Qwen3-MoE: every expert a module of its own"),
    dict(name="modelopt-fp8-llama4", make="modelopt", model=LLAMA4, quantise="FP8_DEFAULT_CFG", attention=False,
         says="FP8 Llama 4: the experts of a layer in one tensor, a scale for all of them"),
    dict(name="modelopt-nvfp4-llama4", make="modelopt", model=LLAMA4, quantise="NVFP4_DEFAULT_CFG", attention=False,
         says="NVFP4 Llama 4: the experts of a layer in one tensor, packed along its middle dimension"),
    dict(name="fbgemm-fp8-llama4", make="fbgemm_experts", model=LLAMA4,
         config=dict(activation_scale_ub=1200.0, quant_method="fbgemm_fp8", modules_to_not_convert=[
             "model.layers.0.self_attn", "model.layers.0.feed_forward.router", "model.layers.0.feed_forward.shared_expert",
             "lm_head"]),
         says="Llama 4: the experts of a layer in one E4M3 tensor, a scale an output"),
    dict(name="fbgemm-fp8-llama4-square", make="fbgemm_experts", model=LLAMA4 | dict(intermediate_size=32),
         config=dict(activation_scale_ub=1200.0, quant_method="fbgemm_fp8", modules_to_not_convert=[
             "self_attn", "router", "shared_expert", "lm_head"]),
         says="the same with experts as wide as the model, so that no shape says that a scale of down_proj is an output's"),
    dict(name="fp8-moe-split", make="fp8", block=[16, 16], model=QWEN35_MOE, loads=True, fuse=True,
         config=DEEPSEEK | dict(weight_block_size=[16, 16], modules_to_not_convert=[
             "lm_head", "model.embed_tokens", "model.layers.0.linear_attn.in_proj_qkv", "model.layers.0.linear_attn.in_proj_z",
             "model.layers.0.linear_attn.in_proj_a", "model.layers.0.linear_attn.in_proj_b", "model.layers.0.linear_attn.conv1d",
             "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate", "model.layers.1.mlp.gate",
             "model.layers.1.mlp.shared_expert_gate"]),
         says="Qwen3.5-MoE: every expert a module of its own, as in the published FP8 files, where the plain ones have all in one tensor"),
]  # fmt: skip

KINDS = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "U8": torch.uint8, **DTYPES}
BYTES = torch.arange(256, dtype=torch.int32).to(torch.uint8)


# --- Plain models ---------------------------------------------------------------------------------------------------------


def plain(row: dict[str, Any], store: str) -> dict[str, torch.Tensor]:
    """The weights before quantising; those of families that keep the experts of a layer in one tensor too."""
    if row["model"]["model_type"] not in ("gpt_oss", "llama4_text", "mistral4"):
        return plain_tensors(row, store)
    with tempfile.TemporaryDirectory() as scratch, torch.device("meta"):
        Path(scratch, "config.json").write_text(json.dumps(plain_config(row, "F32")))
        model = getattr(transformers, row["model"]["architectures"][0])(transformers.AutoConfig.from_pretrained(scratch))
    result = {}
    for name, tensor in sorted(model.state_dict().items()):
        noise, inputs = rng_for(row["name"], name).standard_normal(tuple(tensor.shape)), tensor.shape[-2 if tensor.ndim == 3 else -1]
        centre = 1 if "norm" in name else 0
        spread = 0.2 if tensor.ndim == 1 or name.endswith("bias") else 1 if "embed" in name else 1 / np.sqrt(inputs)
        result[name] = torch.from_numpy(np.ascontiguousarray(centre + spread * noise)).to(DTYPES[store])
    return result


def plain_folder(row: dict[str, Any], store: str, scratch: Path) -> None:
    (scratch / "config.json").write_text(json.dumps(plain_config(row, store)))
    write_safetensors(scratch / "model.safetensors", sorted(plain(row, store).items()), {"format": "pt"})


# --- Formulas, in NumPy, from the stored bytes ----------------------------------------------------------------------------


def small_float(codes: np.ndarray, exponent: int, mantissa: int) -> np.ndarray:
    """The values of floats with that many bits of exponent and mantissa, as float32."""
    codes = codes.astype(np.int64)
    bias = 2 ** (exponent - 1) - 1
    sign = np.where(codes >> (exponent + mantissa) & 1, np.float32(-1), np.float32(1))
    power, part = codes >> mantissa & (2**exponent - 1), codes & (2**mantissa - 1)
    whole = np.where(power > 0, part + 2**mantissa, part).astype(np.float32)
    return sign * np.ldexp(whole, (np.maximum(power, 1) - bias - mantissa).astype(np.int32))


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor of single bytes, in its shape."""
    return tensor.contiguous().view(torch.uint8).numpy().reshape(tuple(tensor.shape))


def decoded(tensor: torch.Tensor, exponents: bool = False) -> np.ndarray:
    """The float32 values of a stored tensor; `exponents`: U8 holds E8M0."""
    if tensor.dtype == torch.float8_e4m3fn:
        return small_float(bytes_of(tensor), 4, 3)
    if tensor.dtype == torch.float8_e5m2:
        return small_float(bytes_of(tensor), 5, 2)
    if tensor.dtype == torch.float8_e8m0fnu or (tensor.dtype == torch.uint8 and exponents):
        return np.ldexp(np.float32(1), bytes_of(tensor).astype(np.int32) - 127)
    if tensor.dtype == torch.bfloat16:
        return (tensor.contiguous().view(torch.int16).numpy().astype(np.uint32) << 16).view(np.float32)
    assert tensor.dtype in (torch.float16, torch.float32)
    return tensor.numpy().astype(np.float32)


def spread(scales: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """The scale of every element of a matrix."""
    rows, columns = np.arange(shape[0]) // block[0], np.arange(shape[1]) // block[1]
    return scales[rows][:, columns]


# --- Quantising -----------------------------------------------------------------------------------------------------------


def finite(kind: torch.dtype) -> torch.Tensor:
    """Every byte that is a number of that kind."""
    return BYTES[BYTES.view(kind).float().isfinite()]


def blocks_of(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The largest magnitude of every block, at least 1e-4."""
    rows, columns = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
    padded = torch.zeros(rows * block[0], columns * block[1])
    padded[: weight.shape[0], : weight.shape[1]] = weight.abs()
    return padded.reshape(rows, block[0], columns, block[1]).amax((1, 3)).clamp(min=1e-4)


def to_scale(scale: torch.Tensor, kind: str, pow2: bool) -> torch.Tensor:
    if pow2 or kind in ("F8_E8M0", "U8"):
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    if kind == "U8":
        return scale.to(torch.float8_e8m0fnu).view(torch.uint8)
    return scale.to(KINDS[kind])


def stored_scale(scale: torch.Tensor, kind: str) -> torch.Tensor:
    return (scale.view(torch.float8_e8m0fnu) if kind == "U8" else scale).float()


def cover(codes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The same with all of `values` at the front, as far as there is room."""
    flat = codes.contiguous().view(torch.uint8).reshape(-1)
    count = min(len(values), len(flat))
    flat[:count] = values[:count]
    return flat.view(codes.dtype).reshape(codes.shape)


def skipped(row: dict[str, Any], name: str) -> bool:
    return not (is_projection(name) or name.endswith("kv_a_proj_with_mqa.weight")) or any(part in name for part in row.get("skip", ()))


# --- fp8 ------------------------------------------------------------------------------------------------------------------


def fp8(row: dict[str, Any]) -> Made:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, _dequantize_fp8_weight

    kind, scale_kind, block = KINDS[row.get("kind", "F8_E4M3")], row.get("scale", "F32"), row.get("block")
    scale_name = row.get("scale_name", "weight_scale_inv")
    function = "integrations.finegrained_fp8._dequantize_fp8_weight (FP4 and experts in one tensor: Fp8Dequantize) to float32"
    function += ", and from_pretrained with dequantize" * row.get("loads", False)
    made = Made({}, {"quantization_config": row["config"]}, {}, {}, f"transformers {transformers.__version__}", function)
    for name, weight in plain(row, "BF16").items():
        if weight.ndim == 3 and "experts" in name:
            fused_experts(row, made, name, weight.float())
            continue
        if skipped(row, name):
            made.tensors[name] = weight
            continue
        module, weight = name.removesuffix(".weight"), weight.float()
        if any(part in name for part in row.get("fp4", ())):
            count = weight.numel() // 2
            codes = torch.from_numpy(rng_for(row["name"], name, "codes").integers(0, 256, count).astype(np.uint8))
            codes = cover(codes, BYTES).view(torch.int8).reshape(len(weight), -1)
            scale = to_scale(blocks_of(weight, (1, 32)) / 6, scale_kind, True)
            made.tensors |= {name: codes, f"{module}.{scale_name}": scale}
            made.golden[name] = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
            made.formula[name] = nibbles(codes) * spread(decoded(scale), weight.shape, (1, 32))
            continue
        size = tuple(extent if side is None else side for side, extent in zip(block or (None, None), weight.shape))
        scale = to_scale(blocks_of(weight, size) / torch.finfo(kind).max, scale_kind, row.get("pow2", False))
        divisor = stored_scale(scale, scale_kind).repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)
        codes = (weight / divisor[: weight.shape[0], : weight.shape[1]]).clamp(-torch.finfo(kind).max, torch.finfo(kind).max).to(kind)
        codes = cover(codes, finite(kind))
        if "extreme" in row:
            scale = cover(scale, torch.tensor(row["extreme"], dtype=torch.uint8))
        made.golden[name] = _dequantize_fp8_weight(codes, stored_scale(scale, scale_kind), size, torch.float32)
        if block is None:
            scale = scale.reshape(row.get("scale_shape", []))
        made.tensors |= {name: codes, f"{module}.{scale_name}": scale}
        if "static" in row:
            part, shape = row["static"]
            made.tensors[f"{module}.{part}"] = torch.tensor(0.02 + 0.001 * len(made.tensors), dtype=KINDS[scale_kind]).reshape(shape)
        made.formula[name] = decoded(codes) * spread(decoded(scale, True).reshape(divisor_shape(scale)), codes.shape, size)
    if row.get("fuse"):
        made.golden = fused(made.golden, torch.cat, torch.stack)
        made.formula = fused(made.formula, np.concatenate, np.stack)
    if row.get("loads"):
        check_loaded(row, made)
    return made


def fused(values: dict[str, Any], join: Callable[..., Any], stack: Callable[..., Any]) -> dict[str, Any]:
    """The same with all experts of a layer in one tensor, gate above up."""
    experts: dict[str, list[dict[str, Any]]] = {}
    result = {}
    for name, value in values.items():
        layer, _, rest = name.partition(".experts.")
        if not rest:
            result[name] = value
            continue
        index, part, _ = rest.split(".")
        parts = experts.setdefault(f"{layer}.experts", [])
        parts.extend({} for _ in range(len(parts), int(index) + 1))
        parts[int(index)][part] = value
    for name, parts in experts.items():
        result[f"{name}.gate_up_proj"] = stack([join([part["gate_proj"], part["up_proj"]]) for part in parts])
        result[f"{name}.down_proj"] = stack([part["down_proj"] for part in parts])
    return result


def fused_experts(row: dict[str, Any], made: Made, name: str, weight: torch.Tensor) -> None:
    """The experts of a layer, [experts, outputs, inputs], with a scale an expert."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    scale = to_scale(weight.abs().amax((1, 2), keepdim=True) / 448, row["scale"], False)
    codes = cover((weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn), finite(torch.float8_e4m3fn))
    activation = torch.linspace(0.02, 0.05, len(weight)).to(scale.dtype)
    made.tensors |= {name: codes, f"{name}_scale_inv": scale, f"{name}_activation_scale": activation}
    made.golden[name] = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    made.formula[name] = decoded(codes) * decoded(scale)


def divisor_shape(scale: torch.Tensor) -> tuple[int, int]:
    return tuple(scale.shape) if scale.ndim == 2 else (1, 1)


def check_loaded(row: dict[str, Any], made: Made) -> None:
    """transformers loads the folder to the very values."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "config.json").write_text(json.dumps(plain_config(row, "BF16") | made.config))
        write_safetensors(Path(scratch, "model.safetensors"), sorted(made.tensors.items()), made.metadata)
        model = transformers.AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32)
    state = model.state_dict()
    for name, value in made.golden.items():
        same = torch.equal(loaded(state, name).view(torch.int32), value.view(torch.int32))
        assert same, f"{row['name']}: {name}: transformers' two decoders differ"


def loaded(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A weight of the loaded model, which holds the experts of a layer in one tensor, gate above up."""
    if name in state:
        return state[name]
    layer, number, part = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)_proj\.weight", name).groups()
    if part == "down":
        return state[f"{layer}.down_proj"][int(number)]
    return state[f"{layer}.gate_up_proj"][int(number)].chunk(2)[part == "up"].contiguous()


# --- compressed-tensors ---------------------------------------------------------------------------------------------------


def compressed(row: dict[str, Any]) -> Made:
    import compressed_tensors
    from compressed_tensors.compressors import BaseCompressor, ModelCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    store = row.get("store", "BF16")
    function = "quantization.lifecycle.forward.dequantize of what was saved, with float32 scales"
    made = Made({}, {}, {}, {}, f"compressed-tensors {compressed_tensors.__version__}", function)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_folder(row, store, folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[store])
        groups = {"group_0": preset_name_to_scheme(row["preset"], row.get("targets", ["Linear"]))}
        if row.get("alone"):
            groups["group_0"].input_activations = None
        if "second" in row:
            groups["group_1"] = preset_name_to_scheme(*row["second"])
        config = QuantizationConfig(config_groups=groups, ignore=row.get("ignore", ["lm_head"]))
        single_experts(row, store, model)
        apply_quantization_config(model, config)
        schemes = {}
        for name, module in model.named_modules():
            for part in ("input_scale", "input_global_scale"):
                if hasattr(module, part):
                    value = float(np.exp(rng_for(row["name"], name, part).standard_normal()) * (40 if "global" in part else 0.025))
                    getattr(module, part).data = torch.full_like(getattr(module, part), value)
            if getattr(getattr(module, "quantization_scheme", None), "weights", None) is None:
                continue
            schemes[name] = weights = module.quantization_scheme
            magnitude = blocks_of(module.weight.data.float(), sides(weights.weights, module.weight.shape))
            scale = magnitude / (448 if weights.weights.num_bits == 8 else 6)
            if hasattr(module, "weight_global_scale"):
                whole = 448 * 6 / module.weight.data.float().abs().max()
                module.weight_global_scale.data = whole.reshape(module.weight_global_scale.shape)
                scale = (scale * whole).to(torch.float8_e4m3fn)
            elif weights.weights.scale_dtype == torch.uint8:
                scale = torch.exp2(torch.ceil(torch.log2(scale)))
            module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        out = folder / "out"
        model.save_pretrained(out)
        compressor.update_config(out)
        made.tensors = read_safetensors(out / "model.safetensors")
        made.config = {"quantization_config": json.loads((out / "config.json").read_text())["quantization_config"]}
    if row.get("old"):
        by_old_compressed(made.config["quantization_config"])
    if row.get("kv_cache"):  # compressed-tensors 0.20.1 doesn't find the cache of transformers 5.24
        scheme = QuantizationArgs(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True)
        made.config["quantization_config"]["kv_cache_scheme"] = json.loads(scheme.model_dump_json(exclude_none=True))
        for layer in range(row["model"]["num_hidden_layers"]):
            for part in ("k_scale", "v_scale"):
                made.tensors[f"model.layers.{layer}.self_attn.{part}"] = torch.full((1,), 0.03 + 0.01 * layer, dtype=DTYPES[store])
    for module, scheme in schemes.items():
        args = scheme.weights
        scale, whole = made.tensors[f"{module}.weight_scale"], made.tensors.get(f"{module}.weight_global_scale")
        if "extreme" in row:
            scale = made.tensors[f"{module}.weight_scale"] = cover(scale, torch.tensor(row["extreme"], dtype=torch.uint8))
        if args.num_bits == 4:
            packed = made.tensors[f"{module}.weight_packed"]
            packed = made.tensors[f"{module}.weight_packed"] = cover(packed, BYTES)
            values, codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, torch.float32), nibbles(packed)
        else:
            weight = made.tensors[f"{module}.weight"]
            weight = made.tensors[f"{module}.weight"] = cover(weight, finite(weight.dtype))
            values, codes = weight, decoded(weight)
        wide = decompress_mx_scale(scale).float() if scale.dtype == torch.uint8 else scale.float()
        made.golden[module + ".weight"] = dequantize(values, wide, args=args, global_scale=whole, dtype=torch.float32).contiguous()
        scales = decoded(scale, True) if whole is None else decoded(scale, True) / decoded(whole)
        scales = scales.reshape(divisor_shape(scale))
        made.formula[module + ".weight"] = codes * spread(scales, codes.shape, sides(args, codes.shape))
        if scheme.format in ("float-quantized", "naive-quantized", "mxfp8-quantized"):
            stored = {"weight": values, "weight_scale": scale if scheme.format == "mxfp8-quantized" else wide}
            again = BaseCompressor.get_value_from_registry(scheme.format).decompress(stored, scheme)["weight"]
            same = torch.equal(again.float(), made.golden[module + ".weight"].to(again.dtype).float())
            assert same, f"{row['name']}: {module}: compressed-tensors' two decoders differ"
    return made


def by_old_compressed(config: dict[str, Any]) -> None:
    """With the keys of older versions, none of which says anything of the weights."""
    for group in config["config_groups"].values():
        del group["format"]
        for part, observer in (("input_activations", "memoryless"), ("weights", "minmax")):
            group[part] |= {"block_structure": None, "observer": observer, "observer_kwargs": {}}
    for key in ("moe_sparsity_config", "sparsity_config", "transform_config", "version"):
        config.pop(key)
    config |= {"global_compression_ratio": 1.239, "quantization_status": "frozen"}


def single_experts(row: dict[str, Any], store: str, model: Any) -> None:
    """Every expert a module of its own with linear layers, as llm-compressor has it before it quantises."""
    weights = plain(row, store)
    for name, module in [(name, module) for name, module in model.named_modules() if name.endswith(".mlp.experts")]:
        experts = torch.nn.ModuleList()
        for number in range(row["model"]["num_experts"]):
            experts.append(torch.nn.Module())
            for part in ("gate_proj", "up_proj", "down_proj"):
                weight = weights[f"{name}.{number}.{part}.weight"]
                layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
                layer.weight.data = weight
                experts[number].add_module(part, layer)
        model.set_submodule(name, experts)


def sides(args: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """The extents of the blocks that have a scale each."""
    strategy = getattr(args.strategy, "value", args.strategy)
    if strategy == "block":
        return tuple(args.block_structure)
    return shape[0] if strategy == "tensor" else 1, args.group_size if "group" in strategy else shape[1]


def nibbles(packed: torch.Tensor) -> np.ndarray:
    """The values of E2M1 codes, the low half of a byte first."""
    raw = bytes_of(packed)
    codes = np.stack([raw & 15, raw >> 4], raw.ndim).reshape(*raw.shape[:-1], -1)
    return small_float(codes, 2, 1)


# --- ModelOpt -------------------------------------------------------------------------------------------------------------


def modelopt(row: dict[str, Any]) -> Made:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    config = copy.deepcopy(getattr(mtq, row["quantise"]))
    if not row.get("attention", True):
        config["quant_cfg"].append({"quantizer_name": "*self_attn*", "enable": False})
    for pattern in row.get("nvfp4", ()):
        for entry in mtq.NVFP4_DEFAULT_CFG["quant_cfg"]:
            if entry["quantizer_name"] in ("*weight_quantizer", "*input_quantizer"):
                config["quant_cfg"].append(entry | {"quantizer_name": pattern + entry["quantizer_name"].removeprefix("*")})
    if row.get("kv_cache"):
        config = mtq.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    function = "FP8QTensor, MXFP4QTensor, MXFP8QTensor or NVFP4QTensor.dequantize to float32; a negative zero stays one"
    made = Made({}, {}, {}, {}, f"nvidia-modelopt {version('nvidia-modelopt')}", function)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_folder(row, "BF16", folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        model = mtq.quantize(model, config, lambda model: model(torch.arange(1, 13)[None]))
        out = folder / "out"
        export_hf_checkpoint(model, export_dir=out)
        made.tensors = read_safetensors(out / "model.safetensors")
        made.config = {"quantization_config": json.loads((out / "config.json").read_text())["quantization_config"]}
        made.files["hf_quant_config.json"] = json.loads((out / "hf_quant_config.json").read_text())
    if row.get("only_side"):
        made.config = {}
        made.files["hf_quant_config.json"]["quantization"]["exclude_modules"] = ["lm_head"]
    for name, tensor in made.tensors.items():  # what depends on the calibration's arithmetic
        if name.endswith(("input_scale", "k_scale", "v_scale")):
            made.tensors[name] = torch.full_like(tensor, float(np.exp(rng_for(row["name"], name).standard_normal()) / 40))
    for name in [name for name in made.tensors if name.endswith("weight_scale")]:
        weight = name.removesuffix("_weight_scale" if name.endswith("_proj_weight_scale") else "_scale")
        by_modelopt(row, made, weight, name)
    return made


def by_modelopt(row: dict[str, Any], made: Made, name: str, scale_name: str) -> None:
    """One weight: every code, the owner's value and the formula's."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    weight, scale = made.tensors[name], made.tensors[scale_name]
    if weight.ndim == 3:
        return by_modelopt_fused(made, name, scale_name)
    if weight.dtype == torch.uint8:
        weight = made.tensors[name] = cover(weight, BYTES)
        if "extreme" in row:
            scale = made.tensors[scale_name] = cover(scale, torch.tensor(row["extreme"], dtype=torch.uint8))
        shape, whole = (weight.shape[0], 2 * weight.shape[1]), made.tensors.get(scale_name + "_2")
        group = shape[1] // scale.shape[1]
        if whole is None:
            value = MXFP4QTensor(shape, torch.float32, weight).dequantize(torch.float32, scale=scale, block_sizes={-1: group})
            scales = decoded(scale, True)
        else:
            owner = NVFP4QTensor(shape, torch.float32, weight)
            value = owner.dequantize(scale=scale, double_scale=whole, block_sizes={-1: group})
            scales = decoded(scale) * decoded(whole)
        formula = nibbles(weight) * spread(scales, shape, (1, group))
        value = torch.where(value == 0, torch.copysign(value, torch.from_numpy(formula)), value)
    else:
        shape = tuple(weight.shape)
        weight = made.tensors[name] = cover(weight, finite(weight.dtype))
        if scale.dtype == torch.uint8:
            value = MXFP8QTensor(shape, torch.float32, weight).dequantize(scale=scale)
            formula = decoded(weight) * spread(decoded(scale, True), shape, (1, 32))
        else:
            blocks, size = {0: ((1, 1), shape), 1: ((shape[0], 1), (1, shape[1])), 4: (scale.shape[::2], (128, 128))}[scale.ndim]
            further = {"block_sizes": {-1: 128, -2: 128}} if scale.ndim == 4 else {}
            value = FP8QTensor(shape, torch.float32, weight).dequantize(scale=scale.reshape(blocks), **further)
            formula = decoded(weight) * spread(decoded(scale).reshape(blocks), shape, size)
    made.golden[name], made.formula[name] = value.contiguous(), formula


def by_modelopt_fused(made: Made, name: str, scale_name: str) -> None:
    """The experts of a layer, [experts, inputs, outputs]; NVFP4 is packed along the inputs, which lie in the middle."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    weight, scale = made.tensors[name], made.tensors[scale_name]
    if weight.dtype == torch.uint8:
        weight = made.tensors[name] = cover(weight, BYTES)
        whole, outward = made.tensors[scale_name + "_2"], weight.transpose(1, 2).contiguous()
        shape = (*outward.shape[:2], 2 * outward.shape[2])
        scales = {"scale": scale.transpose(1, 2), "double_scale": whole}
        value = NVFP4QTensor(shape, torch.float32, outward).dequantize(**scales, block_sizes={-1: 16})
        formula = nibbles(outward).transpose(0, 2, 1) * np.repeat(decoded(scale) * decoded(whole), 16, 1)
        value = value.transpose(1, 2).contiguous()
        formula = np.ascontiguousarray(formula)
        value = torch.where(value == 0, torch.copysign(value, torch.from_numpy(formula)), value)
    else:
        weight = made.tensors[name] = cover(weight, finite(weight.dtype))
        value = FP8QTensor(tuple(weight.shape), torch.float32, weight).dequantize(scale=scale)
        formula = decoded(weight) * decoded(scale)
    made.golden[name], made.formula[name] = value.contiguous(), formula


# --- Quark ----------------------------------------------------------------------------------------------------------------


def quark(row: dict[str, Any]) -> Made:
    if row["quark"] is None:
        raise SystemExit(f"{row['name']}: needs --quark")
    sys.path.append(str(row["quark"]))
    import quark.torch.quantization as specs
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.kernel.hw_emulation.hw_emulation_interface import dequantize_impl
    from quark.torch.utils.pack import create_pack_method

    kind, options = row["weight"]
    weight = getattr(specs, kind)(is_dynamic=False, **options).to_quantization_spec()
    inputs = getattr(specs, kind)(is_dynamic=False, **options).to_quantization_spec() if row.get("static") else None
    config = specs.QConfig(global_quant_config=specs.QLayerConfig(weight=weight, input_tensors=inputs), exclude=["lm_head"])
    made = Made({}, {}, {}, {}, "amd-quark 0.13", "hw_emulation_interface.dequantize_impl with float32 scales")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_folder(row, "BF16", folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        quantizer = ModelQuantizer(config)
        model = quantizer.freeze(quantizer.quantize_model(model, torch.utils.data.DataLoader(torch.arange(1, 13)[None])))
        export_safetensors(model, str(folder / "out"))
        made.tensors = read_safetensors(folder / "out/model.safetensors")
        made.config = {"quantization_config": json.loads((folder / "out/config.json").read_text())["quantization_config"]}
    for name, tensor in made.tensors.items():  # what depends on the calibration's arithmetic
        if name.endswith("input_scale"):
            made.tensors[name] = torch.full_like(tensor, float(np.exp(rng_for(row["name"], name).standard_normal()) / 40))
    for name in [name.removesuffix("_scale") for name in made.tensors if name.endswith(".weight_scale")]:
        codes, scale = made.tensors[name], made.tensors[name + "_scale"]
        codes = made.tensors[name] = cover(codes, BYTES if codes.dtype == torch.uint8 else finite(codes.dtype))
        if codes.dtype == torch.uint8:
            scale = made.tensors[name + "_scale"] = cover(scale, torch.tensor(row["extreme"], dtype=torch.uint8))
            values = create_pack_method("per_group", "fp4").unpack(codes, reorder=False).float()
            wide = scale.view(torch.float8_e8m0fnu).float()
            made.golden[name] = dequantize_impl("fp4", values, wide, None, -1, 32, "per_group")
            made.formula[name] = nibbles(codes) * spread(decoded(scale, True), tuple(values.shape), (1, 32))
        else:
            scheme = "per_channel" if scale.ndim else "per_tensor"
            made.golden[name] = dequantize_impl("fp8_e4m3", codes, scale.float(), None, 0, None, scheme)
            made.formula[name] = decoded(codes) * decoded(scale.reshape(-1, 1))
    return made


# --- gpt-oss --------------------------------------------------------------------------------------------------------------


def mxfp4(row: dict[str, Any]) -> Made:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    made = Made({}, {"quantization_config": row["config"]}, {}, {}, f"transformers {transformers.__version__}",
                "integrations.mxfp4.convert_moe_packed_tensors to float32, and from_pretrained with dequantize")  # fmt: skip
    for name, weight in plain(row, "BF16").items():
        if weight.ndim != 3:
            made.tensors[name] = weight
            continue
        experts, inputs, outputs = weight.shape
        rng = rng_for(row["name"], name, "codes")
        blocks = torch.from_numpy(rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8))
        scales = torch.from_numpy(rng.integers(119, 124, (experts, outputs, inputs // 32)).astype(np.uint8))
        blocks, scales = cover(blocks, BYTES), cover(scales, torch.tensor([0, 1, 2], dtype=torch.uint8))
        made.tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        made.golden[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        formula = (nibbles(blocks) * decoded(scales, True)[..., None]).reshape(experts, outputs, inputs)
        made.formula[name] = np.ascontiguousarray(formula.transpose(0, 2, 1))
    check_loaded(row, made)
    return made


# --- fbgemm_fp8 of experts in one tensor ----------------------------------------------------------------------------------


def fbgemm_experts(row: dict[str, Any]) -> Made:
    """The owner needs a GPU both ways: its writer runs with the quantiser of a row replaced, and the values are evaluated."""
    from transformers.integrations import fbgemm_fp8

    def rows_to_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = weight.float().abs().amax(1) / 448
        return (weight.float() / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    made = Made({}, {"quantization_config": row["config"]}, {}, {}, f"transformers {transformers.__version__}",
                "integrations.fbgemm_fp8.FbgemmFp8Quantize writes; weight * scale of the output, for there is no decoder")  # fmt: skip
    fbgemm_fp8.quantize_fp8_per_row = rows_to_fp8
    config = transformers.Llama4TextConfig(**{key: value for key, value in row["model"].items() if key != "architectures"})
    holder = torch.nn.Module()
    holder.experts = fbgemm_fp8.FbgemmFp8Llama4TextExperts(config)
    for name, weight in plain(row, "BF16").items():
        if weight.ndim != 3:
            made.tensors[name] = weight
            continue
        part = name.rsplit(".", 1)[1]
        stored = fbgemm_fp8.FbgemmFp8Quantize(None).convert({f"experts.{part}": [weight]}, model=holder)
        codes, scale = (stored[f"experts.{part}{end}"].data.contiguous() for end in ("", "_scale"))
        declared = getattr(holder.experts, part), getattr(holder.experts, f"{part}_scale")
        assert (codes.shape, scale.shape) == tuple(tensor.shape for tensor in declared), name
        codes = cover(codes, finite(codes.dtype))
        made.tensors |= {name: codes, f"{name}_scale": scale}
        outputs = scale.reshape(len(scale), 1, -1)
        made.golden[name] = codes.float() * outputs
        made.formula[name] = decoded(codes) * decoded(outputs)
    return made


MAKERS: dict[str, Callable[[dict[str, Any]], Made]] = {
    "fp8": fp8, "compressed": compressed, "modelopt": modelopt, "quark": quark, "mxfp4": mxfp4,
    "fbgemm_experts": fbgemm_experts,
}  # fmt: skip
PACKAGES = ("torch", "transformers", "numpy", "compressed-tensors", "nvidia-modelopt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="dialects to make (default: all)")
    parser.add_argument("--fixtures", type=Path, default=ROOT / "fixtures/quant", help="folder of the models")
    parser.add_argument("--goldens", type=Path, default=ROOT / "oracles/quant", help="folder of the values")
    parser.add_argument("--quark", type=Path, help="folder that holds amd-quark 0.13 and what it imports")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows = {row["name"]: row for row in DIALECTS}
    if unknown := set(args.names) - set(rows):
        raise SystemExit(f"no such dialect: {', '.join(sorted(unknown))}; there are {', '.join(sorted(rows))}")
    provenance = args.goldens / "PROVENANCE-fp.json"
    facts = json.loads(provenance.read_text())["dialects"] if args.names and provenance.exists() else {}
    for name in args.names or rows:
        facts[name] = write(rows[name], MAKERS[rows[name]["make"]]({**rows[name], "quark": args.quark}), args.fixtures, args.goldens)
    versions = {"python": sys.version.split()[0]} | {package: version(package) for package in PACKAGES}
    print(", ".join(f"{package} {number}" for package, number in versions.items()))
    content = {"versions": versions, "regenerate": "python scripts/make_quant_fp_fixtures.py --quark DIR", "dialects": dict(sorted(facts.items()))}
    provenance.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
