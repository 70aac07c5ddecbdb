"""Makes fixtures/quant/NAME, tiny models whose weights are integers or indices into a codebook, and
oracles/quant/NAME.safetensors, the float32 weights that these stand for, under the names of the plain model.

The folders are written by the packages that own the formats, as far as these run without a GPU, and the values are those of
the owners' own functions; scales are cast to float32 first where the owner would compute in their type. A second evaluation
in NumPy (`bits`, `scaled` and the rest of "Formulas") starts from the bytes of the folder and must give the same values bit
for bit.

Example:
    pip install -r scripts/requirements.txt && pip install --no-deps -r scripts/requirements-quant-int.txt
    pip install --no-deps --target DIR compressed-tensors==0.12.2
    python scripts/make_quant_int_fixtures.py --old-compressed-tensors DIR      # all of them, and PROVENANCE-int.json
    python scripts/make_quant_int_fixtures.py gptq-4bit awq-gemm                # some
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the owners' functions as written, not as a compiler fuses them

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rows.common import DTYPES, read_safetensors, rng_for, write_safetensors

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 210_000  # bytes of a folder or a golden


# --- The dialects ---------------------------------------------------------------------------------------------------------
# `make` is one of MAKERS, `model` the config of the plain model; the rest are arguments of the maker.


def llama(layers: int, hidden: int, intermediate: int, head_dim: int, vocab: int, **more: Any) -> dict[str, Any]:
    """A Llama with 4 heads and 2 KV heads."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim,
        "vocab_size": vocab, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 2048, "hidden_act": "silu", "tie_word_embeddings": False, **more,
    }  # fmt: skip


GROUPS_32 = llama(2, 32, 96, 8, 61)  # inputs of 1 and 3 groups of 32
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 32,
    "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "mlp_only_layers": [1], "norm_topk_prob": True, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 61, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 2048, "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 32,
    "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 61, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 2048,
    "hidden_act": "silu", "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
WIDE_32 = llama(2, 32, 96, 16, 61)  # the same with outputs that are multiples of 32
DIALECTS: list[dict[str, Any]] = [
    # --- GPTQ ---
    dict(name="gptq-4bit", make="gptq", model=GROUPS_32, bits=4, group=32,
         says="4 bits, symmetric, groups of 32, zeros one too small (v1), quantize_config.json"),
    dict(name="gptq-4bit-asym", make="gptq", model=GROUPS_32, bits=4, group=32, sym=False, style="autogptq",
         says="4 bits, asymmetric; config of AutoGPTQ, without checkpoint_format, all-zero biases"),
    dict(name="gptq-4bit-act-order", make="gptq", model=GROUPS_32, bits=4, group=32, desc_act=True, sym=False, style="gptqmodel2",
         says="4 bits, asymmetric, groups in the order of the activations (g_idx); config of GPTQModel 2"),
    dict(name="gptq-4bit-per-column", make="gptq", model=llama(2, 32, 96, 8, 61, attention_bias=True), bits=4, group=-1,
         says="4 bits, group_size -1, biases"),
    dict(name="gptq-v2-4bit-asym", make="gptq", model=GROUPS_32, bits=4, group=32, sym=False, v2=True,
         says="4 bits, asymmetric, checkpoint_format gptq_v2 (zeros as they are)"),
    dict(name="gptq-8bit", make="gptq", model=llama(1, 32, 96, 8, 61), bits=8, group=32, style="transformers",
         says="8 bits, symmetric; config of transformers' GPTQConfig"),
    dict(name="gptq-3bit", make="gptq", model=llama(1, 32, 96, 16, 61), bits=3, group=32, sym=False,
         says="3 bits, asymmetric: values across words"),
    dict(name="gptq-2bit", make="gptq", model=llama(1, 32, 96, 8, 61), bits=2, group=32, sym=False, desc_act=True,
         says="2 bits, asymmetric, activation order"),
    dict(name="gptq-dynamic", make="gptq", model=llama(2, 32, 64, 8, 64), bits=4, group=32, lm_head=True,
         dynamic={"+:.*\\.down_proj.*": {"bits": 8, "group_size": 32}, "-:.*layers\\.1\\.self_attn.*": {}},
         says="`dynamic`: down_proj with 8 bits, the attention of layer 1 left as it is; lm_head quantised too"),
    # --- AWQ ---
    dict(name="awq-gemm", make="awq", model=WIDE_32, group=32, says="version gemm, groups of 32"),
    dict(name="awq-gemm-64", make="awq", model=llama(1, 64, 128, 16, 61, attention_bias=True), group=64,
         says="version gemm, groups of 64, biases"),
    dict(name="awq-gemm-128-skip", make="awq", model=llama(2, 32, 128, 8, 61), group=128,
         skip=["self_attn", "gate_proj", "up_proj"],
         says="version gemm, groups of 128, modules_to_not_convert: only down_proj is quantised"),
    dict(name="awq-gemv", make="awq", model=llama(1, 32, 96, 16, 61), group=32, version="gemv",
         says="version gemv: packed along the inputs, zeros and scales padded"),
    dict(name="awq-gemv-fast", make="awq", model=llama(1, 64, 192, 16, 61), group=64, version="gemv_fast",
         says="version gemv_fast: I16 words of four rows, zeros already scaled"),
    # --- AutoRound ---
    dict(name="autoround-gptq", make="autoround", model=WIDE_32, packing="auto_round:auto_gptq",
         extra={"model.layers.0.mlp.down_proj": {"bits": 8}, "model.layers.1.self_attn.v_proj": {"bits": 16, "data_type": "float"}},
         says="packed like GPTQ without g_idx, zeros one too small; extra_config: down_proj with 8 bits, one module left as it is"),
    dict(name="autoround-asym", make="autoround", model=WIDE_32, packing="auto_round", sym=False,
         says="packed like GPTQ without g_idx, zeros as they are"),
    dict(name="autoround-awq", make="autoround", model=llama(1, 32, 96, 16, 61), packing="auto_round:auto_awq", sym=False,
         says="packed like AWQ gemm"),
    # --- compressed-tensors ---
    dict(name="ct-w4-group", make="compressed", model=GROUPS_32, weights=dict(num_bits=4, strategy="group", group_size=32),
         says="pack-quantized, 4 bits, symmetric, groups of 32, BF16 scales"),
    dict(name="ct-w4-channel", make="compressed", model=llama(1, 36, 51, 6, 61), store="F16",
         weights=dict(num_bits=4, strategy="channel"),
         says="pack-quantized, 4 bits, symmetric, one F16 scale a row; inputs that don't fill a word"),
    dict(name="ct-w4-asym", make="compressed", model=llama(1, 32, 96, 4, 61, num_attention_heads=8, num_key_value_heads=1),
         weights=dict(num_bits=4, strategy="group", group_size=32, symmetric=False),
         says="pack-quantized, 4 bits, asymmetric: zero points packed along the outputs, which don't always fill a word"),
    dict(name="ct-w4-asym-channel", make="compressed", model=llama(1, 36, 51, 6, 61),
         weights=dict(num_bits=4, strategy="channel", symmetric=False), store="F32",
         says="pack-quantized, 4 bits, asymmetric, one F32 scale a row; outputs that don't fill a word"),
    dict(name="ct-w4-act-order", make="compressed_old", model=GROUPS_32,
         weights=dict(num_bits=4, strategy="group", group_size=32, actorder="group"),
         says="pack-quantized, 4 bits, groups in the order of the activations (weight_g_idx)"),
    dict(name="ct-w3-old", make="compressed_old", model=llama(1, 32, 96, 8, 61),
         weights=dict(num_bits=3, strategy="group", group_size=32),
         says="pack-quantized, 3 bits as packed by 0.12: ten values a word"),
    dict(name="ct-w3-dense", make="compressed", model=llama(1, 32, 96, 8, 61),
         weights=dict(num_bits=3, strategy="group", group_size=32, symmetric=False),
         says="pack-quantized, 3 bits, asymmetric, as packed since: values across words"),
    dict(name="ct-w8", make="compressed", model=llama(1, 32, 51, 8, 61), weights=dict(num_bits=8, strategy="channel"),
         says="pack-quantized, 8 bits, one scale a row"),
    dict(name="ct-int8-channel", make="compressed", model=llama(1, 32, 51, 8, 61),
         weights=dict(num_bits=8, strategy="channel"), inputs=dict(num_bits=8, strategy="token", dynamic=True),
         says="int-quantized: I8 weights, one scale a row, activations quantised on the way"),
    dict(name="ct-int8-group", make="compressed", model=llama(1, 32, 96, 8, 61), store="F16",
         weights=dict(num_bits=8, strategy="group", group_size=32), inputs=dict(num_bits=8, strategy="token", dynamic=True),
         says="int-quantized: I8 weights in groups of 32, F16 scales"),
    dict(name="ct-int8-tensor", make="compressed", model=llama(1, 32, 51, 8, 61),
         weights=dict(num_bits=8, strategy="tensor"), inputs=dict(num_bits=8, strategy="tensor", symmetric=False),
         says="int-quantized: one scale a tensor, static scales of activations"),
    dict(name="ct-int8-asym", make="compressed", model=llama(1, 32, 51, 8, 61), format="naive-quantized",
         weights=dict(num_bits=8, strategy="channel", symmetric=False),
         says="naive-quantized: I8 weights and zero points, one each a row"),
    dict(name="ct-mixed", make="compressed", model=llama(2, 32, 96, 8, 61), targets=["re:.*(q|k|v|o|gate|up)_proj$"],
         weights=dict(num_bits=4, strategy="group", group_size=32),
         second=dict(targets=["re:.*down_proj$"], weights=dict(num_bits=8, strategy="channel"),
                     input_activations=dict(num_bits=8, strategy="token", dynamic=True)),
         ignore=["lm_head", "re:.*layers\\.1\\.self_attn.*"],
         says="two groups (4 bits packed, down_proj I8), `re:` targets, layer 1's attention ignored"),
    # --- bitsandbytes ---
    dict(name="bnb-nf4", make="bitsandbytes", model=llama(1, 36, 51, 6, 61),
         config=dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"),
         says="NF4, blocks of 64 across rows, the last one short"),
    dict(name="bnb-nf4-double", make="bitsandbytes", model=llama(2, 64, 96, 8, 64),
         config=dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                     bnb_4bit_compute_dtype="bfloat16", llm_int8_skip_modules=["lm_head", "model.layers.1.self_attn"]),
         says="NF4 with quantised scales, llm_int8_skip_modules"),
    dict(name="bnb-nf4-nested", make="bitsandbytes", model=llama(1, 48, 352, 12, 61),
         config=dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                     llm_int8_skip_modules=["lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]),
         says="NF4 with more than one block of quantised scales; only down_proj is quantised"),
    dict(name="bnb-fp4", make="bitsandbytes", model=llama(1, 33, 51, 6, 61, num_attention_heads=3, num_key_value_heads=1),
         store="F16", config=dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
         says="FP4, an odd number of weights"),
    dict(name="bnb-nf4-storage", make="bitsandbytes", model=llama(1, 36, 52, 6, 61),
         config=dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                     bnb_4bit_quant_storage="bfloat16"),
         says="NF4 with quantised scales, the bytes kept as BF16"),
    dict(name="bnb-int8", make="bitsandbytes", model=llama(1, 36, 51, 6, 61), store="F16", config=dict(load_in_8bit=True),
         says="LLM.int8(): I8 weights and SCB"),
    # --- HQQ ---
    dict(name="hqq-4bit", make="hqq", model=llama(1, 64, 96, 16, 61), bits=4, group=64, axis=1,
         says="4 bits, axis 1, groups of 64 over rows that aren't multiples of 64"),
    dict(name="hqq-4bit-axis0", make="hqq", model=llama(1, 64, 96, 16, 61), bits=4, group=64, axis=0, store="BF16",
         says="4 bits, axis 0, BF16 scales"),
    dict(name="hqq-3bit", make="hqq", model=llama(1, 64, 96, 8, 61), bits=3, group=32, axis=1,
         says="3 bits: ten values in an I32, padded"),
    dict(name="hqq-2bit", make="hqq", model=llama(1, 32, 96, 8, 61), bits=2, group=16, axis=1, view_as_float=True,
         says="2 bits, the bytes kept as F16 (view_as_float)"),
    dict(name="hqq-1bit", make="hqq", model=llama(1, 64, 96, 8, 61), bits=1, group=32, axis=0, says="1 bit, axis 0"),
    dict(name="hqq-8bit", make="hqq", model=llama(1, 32, 96, 8, 61), bits=8, group=None, axis=1, store="F32",
         tags={"self_attn.q_proj": dict(nbits=4, group_size=64, axis=1)},
         says="8 bits, one group a row, another quantisation for q_proj, F32 scales"),
    # --- MLX ---
    dict(name="mlx-4bit", make="mlx", model=llama(1, 64, 96, 8, 61), bits=4, group=32, store="BF16",
         says="4 bits, groups of 32, BF16; embeddings and head too"),
    dict(name="mlx-2bit", make="mlx", model=llama(1, 64, 128, 16, 61), bits=2, group=64, store="F16", says="2 bits, F16"),
    dict(name="mlx-3bit", make="mlx", model=llama(1, 64, 96, 8, 61, tie_word_embeddings=True), bits=3, group=32, store="F32",
         says="3 bits, F32, tied"),
    dict(name="mlx-5bit", make="mlx", model=llama(1, 64, 96, 8, 61), bits=5, group=32, store="BF16", says="5 bits"),
    dict(name="mlx-6bit", make="mlx", model=llama(1, 64, 96, 8, 61), bits=6, group=32, store="F16", says="6 bits"),
    dict(name="mlx-8bit", make="mlx", model=llama(1, 128, 64, 8, 61, num_attention_heads=2, num_key_value_heads=1), bits=8,
         group=128, store="BF16", says="8 bits, groups of 128; o_proj and down_proj left as they are, for their inputs are fewer"),
    dict(name="mlx-mixed", make="mlx", model=llama(2, 64, 64, 8, 61), bits=4, group=32, store="BF16",
         layers={"model.layers.0.mlp.down_proj": dict(group_size=32, bits=8), "lm_head": dict(group_size=64, bits=6),
                 "model.layers.1.self_attn.v_proj": False},
         says="settings of single modules: 8 and 6 bits, one left as it is"),
    dict(name="mlx-mxfp4", make="mlx", model=llama(1, 64, 96, 8, 61), bits=4, group=32, mode="mxfp4", store="BF16", says="mxfp4"),
    dict(name="mlx-nvfp4", make="mlx", model=llama(1, 64, 96, 8, 61), bits=4, group=16, mode="nvfp4", store="BF16", says="nvfp4"),
    dict(name="mlx-mxfp8", make="mlx", model=llama(1, 64, 96, 8, 61), bits=8, group=32, mode="mxfp8", store="BF16", says="mxfp8"),
    # --- Mixtures of experts ---
    dict(name="gptq-moe", make="gptq", model=MOE, bits=4, group=32, desc_act=True, dynamic={"-:.*mlp\\.gate$": {}},
         says="Qwen3-MoE: every expert a module of its own, the router left as it is, one dense layer"),
    dict(name="awq-moe", make="awq", model=MIXTRAL, group=32, skip=["gate"],
         says="Mixtral: every expert a module of its own, modules_to_not_convert names the router"),
    dict(name="ct-moe", make="compressed_old", model=MOE, weights=dict(num_bits=4, strategy="group", group_size=32),
         ignore=["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$", "re:.*layers\\.1\\..*"],
         says="Qwen3-MoE: experts alone are packed, `re:` in ignore"),
    dict(name="mlx-moe", make="mlx", bits=4, group=32, store="BF16",
         model={key: value for key, value in MOE.items() if key != "rope_parameters"}
         | {"rope_theta": 10000.0, "rope_scaling": None, "num_hidden_layers": 1, "hidden_size": 64, "mlp_only_layers": []},
         says="Qwen3-MoE: the experts of a layer in one tensor (switch_mlp), the router with 8 bits"),
]  # fmt: skip


@dataclass
class Made:
    """What a maker gives: the folder's contents, and the values that its weights stand for."""

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]  # keys beside the model's
    golden: dict[str, torch.Tensor]
    formula: dict[str, np.ndarray]
    owner: str
    function: str
    files: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] | None = field(default_factory=lambda: {"format": "pt"})
    own_config: bool = False  # `config` is all of config.json


# --- Plain models ---------------------------------------------------------------------------------------------------------


def plain_config(row: dict[str, Any], store: str) -> dict[str, Any]:
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return {
        **row["model"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": names[store],
        "transformers_version": "5.24.0",
        "use_cache": True,
    }


def plain_tensors(row: dict[str, Any], store: str) -> dict[str, torch.Tensor]:
    """The weights before quantising: seeded by the fixture's and the tensor's name, each row with a spread and an offset of its
    own, so that no two scales or zeros are alike."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "config.json").write_text(json.dumps(plain_config(row, "F32")))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(scratch), dtype=torch.float32)
        model.save_pretrained(scratch)
        shapes = {name: tuple(tensor.shape) for name, tensor in read_safetensors(Path(scratch, "model.safetensors")).items()}
    result = {}
    for name, shape in sorted(shapes.items()):
        rng = rng_for(row["name"], name)
        noise = rng.standard_normal(shape)
        if name.endswith("bias"):
            values = 0.3 * noise
        elif "norm" in name:
            values = 1 + 0.2 * noise
        elif "embed" in name:
            values = noise
        else:
            each = (*shape[:-1], 1)
            spread = np.exp(0.5 * rng.standard_normal(each))
            values = spread * (noise + 0.4 * rng.standard_normal(each)) / np.sqrt(shape[-1])
        result[name] = torch.from_numpy(np.ascontiguousarray(values)).to(DTYPES[store])
    return result


def plain_model(row: dict[str, Any], store: str, scratch: Path) -> None:
    """The plain model as a folder."""
    (scratch / "config.json").write_text(json.dumps(plain_config(row, store)))
    write_safetensors(scratch / "model.safetensors", sorted(plain_tensors(row, store).items()), {"format": "pt"})


def is_projection(name: str) -> bool:
    """A matrix of the layers that is no router."""
    return ".layers." in name and name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


# --- Formulas, in NumPy, from the stored bytes ----------------------------------------------------------------------------


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of each row."""
    return tensor.contiguous().view(torch.uint8).numpy().reshape(tensor.shape[0], -1)


def bits(rows: np.ndarray, width: int, count: int) -> np.ndarray:
    """`count` fields of `width` bits from the bytes of each row, lowest bits first, across bytes and words."""
    stream = np.unpackbits(rows, axis=1, bitorder="little")[:, : count * width].reshape(len(rows), count, width)
    return (stream.astype(np.int32) << np.arange(width)).sum(2).astype(np.int32)


def f32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32).numpy()


def scaled(codes: np.ndarray, zeros: np.ndarray | int, scales: np.ndarray) -> np.ndarray:
    """(code - zero) * scale: the difference is exact, the product rounded once."""
    return ((codes - zeros).astype(np.float32) * scales).astype(np.float32)


# --- GPTQ -----------------------------------------------------------------------------------------------------------------


def affine(weight: torch.Tensor, width: int, group_of: torch.Tensor, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros [out, groups] of a weight [out, in], as GPTQ's quantiser without search has them; zeros at least 1."""
    groups = int(group_of.max()) + 1
    low = torch.stack([weight[:, group_of == k].amin(1) for k in range(groups)], 1).clamp(max=0)
    high = torch.stack([weight[:, group_of == k].amax(1) for k in range(groups)], 1).clamp(min=0)
    top = 2**width - 1
    if symmetric:
        high = torch.maximum(high, -low)
        return (2 * high / top).half().float(), torch.full_like(high, 2.0 ** (width - 1))
    scale = ((high - low) / top).clamp(min=1e-6).half().float()
    return scale, torch.round(-low / scale).clamp(1, top)


def by_gptqmodel(row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """As GPTQModel's writer has it, which adds to `meta` and names a folder of its machine."""
    meta = {key: value for key, value in own["meta"].items() if key != "offload_to_disk_path"}
    meta |= {
        "quantizer": [f"gptqmodel:{version('gptqmodel')}"], "uri": "https://github.com/modelcloud/gptqmodel", "damp_percent": 0.05,
        "damp_auto_increment": 0.01, "static_groups": False, "true_sequential": True,
    }  # fmt: skip
    return {**own, "meta": meta}


def by_gptqmodel2(row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """As GPTQModel 2 had it."""
    meta = {
        "quantizer": ["gptqmodel:2.2.0"], "uri": "https://github.com/modelcloud/gptqmodel", "damp_percent": 0.01,
        "damp_auto_increment": 0.0025, "static_groups": False, "true_sequential": True, "mse": 0.0,
    }  # fmt: skip
    kept = ("bits", "dynamic", "group_size", "desc_act", "sym", "lm_head", "quant_method", "checkpoint_format", "pack_dtype")
    return {"dynamic": None} | {key: own[key] for key in kept if key in own} | {"meta": meta}


def by_autogptq(row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """As AutoGPTQ 0.7 has it."""
    kept = {key: own[key] for key in ("bits", "group_size", "desc_act", "sym", "quant_method")}
    return {
        **kept, "damp_percent": 0.1, "static_groups": False, "true_sequential": True, "model_name_or_path": None,
        "model_file_base_name": "model", "is_marlin_format": False,
    }  # fmt: skip


def by_transformers(row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """As transformers and optimum have it."""
    from transformers import GPTQConfig

    meta = {"quantizer": ["optimum:2.1.0", f"gptqmodel:{version('gptqmodel')}"]}
    return GPTQConfig(
        bits=row["bits"], group_size=row["group"], dataset="c4", desc_act=own["desc_act"], sym=own["sym"], meta=meta
    ).to_dict()


GPTQ_STYLES = {"gptqmodel": by_gptqmodel, "gptqmodel2": by_gptqmodel2, "autogptq": by_autogptq, "transformers": by_transformers}


def gptq(row: dict[str, Any]) -> Made:
    import gptqmodel
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
    from gptqmodel.utils.model_dequant import convert_gptq_file

    v2, style = row.get("v2", False), row.get("style", "gptqmodel")
    symmetric, ordered, dynamic = row.get("sym", True), row.get("desc_act", False), row.get("dynamic")
    config = QuantizeConfig(
        bits=row["bits"], group_size=row["group"], sym=symmetric, desc_act=ordered, dynamic=copy.deepcopy(dynamic),
        lm_head=row.get("lm_head", False), format="gptq_v2" if v2 else "gptq",
    )  # fmt: skip
    plain = plain_tensors(row, "F16")
    made = Made(
        {},
        {},
        {},
        {},
        f"gptqmodel {gptqmodel.__version__}",
        "TorchLinear.dequantize_weight with float32 scales, after convert_gptq_v1_to_v2_format_module",
    )
    for name, weight in plain.items():
        module = name.removesuffix(".weight")
        rule = config.dynamic_get(module) if dynamic else {}
        quantised = is_projection(name) or (row.get("lm_head") and module == "lm_head")
        if not quantised or rule is False:
            made.tensors[name] = weight
            continue
        width, group = (rule or {}).get("bits", row["bits"]), (rule or {}).get("group_size", row["group"])
        outputs, inputs = weight.shape
        group = inputs if group == -1 else group
        group_of = torch.arange(inputs, dtype=torch.int32) // group
        if ordered:
            group_of = group_of[torch.from_numpy(np.argsort(rng_for(row["name"], name, "order").permutation(inputs)))]
        scales, zeros = affine(weight.float(), width, group_of, symmetric)
        linear = torch.nn.Linear(inputs, outputs, bias=False)
        linear.weight.data = weight.float()
        shape = {"in_features": inputs, "out_features": outputs, "bias": False}
        layer = partial(TorchLinear, bits=width, group_size=group, sym=symmetric, desc_act=ordered, **shape)
        packed = layer()
        packed.pack_original(linear, scales, zeros, group_of.clone())
        if not v2:
            convert_gptq_v2_to_v1_format_module(packed, config if not rule else QuantizeConfig(bits=width, group_size=group))
        stored = {part: getattr(packed, part).clone().contiguous() for part in ("qweight", "qzeros", "scales", "g_idx")}
        made.tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        if style == "autogptq":
            made.tensors[f"{module}.bias"] = torch.zeros(outputs, dtype=torch.float16)

        loaded = layer()
        for part, tensor in stored.items():
            loaded.register_buffer(part, tensor.clone())
        if not v2:
            convert_gptq_v1_to_v2_format_module(loaded, width, torch.int32)
        loaded.scales = loaded.scales.float()
        loaded.eval()
        made.golden[name] = loaded.dequantize_weight().t().contiguous()

        codes = bits(raw(stored["qweight"].t()), width, inputs)
        fields = bits(raw(stored["qzeros"]), width, outputs)
        zero = fields if v2 else (fields + 1) & (2**width - 1)
        lookup = stored["g_idx"].numpy()
        made.formula[name] = scaled(codes, zero[lookup].T, f32(stored["scales"])[lookup].T)
    quantization = json.loads(json.dumps(config.to_dict()))
    if not dynamic:  # the owner's decoder of whole files knows of one width only
        with tempfile.TemporaryDirectory() as scratch:
            write_safetensors(Path(scratch, "x.safetensors"), list(made.tensors.items()), {"format": "pt"})
            again = convert_gptq_file(Path(scratch, "x.safetensors"), torch.float32, quantization, "cpu")
        for name, value in made.golden.items():
            assert torch.equal(again[name], value), f"{row['name']}: {name}: gptqmodel's two decoders differ"
    quantization = GPTQ_STYLES[style](row, quantization)
    if style != "transformers":
        made.files["quantize_config.json"] = {
            key: value for key, value in quantization.items() if style != "autogptq" or key != "quant_method"
        }
    made.config = {"quantization_config": quantization}
    return made


# --- AWQ ------------------------------------------------------------------------------------------------------------------


def columns(words: torch.Tensor) -> np.ndarray:
    """The eight columns of each word, which lie in it in another order."""
    codes = bits(raw(words), 4, words.shape[1] * 8).reshape(len(words), -1, 8)
    return codes[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(len(words), -1)


def awq(row: dict[str, Any]) -> Made:
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV
    from awq.modules.linear.gemv_fast import WQLinear_GEMVFast
    from awq.quantize.quantizer import AwqQuantizer
    from awq.utils.packing_utils import dequantize_gemm

    kind, group, skip = row.get("version", "gemm"), row["group"], row.get("skip")
    layer = {"gemm": WQLinear_GEMM, "gemv": WQLinear_GEMV, "gemv_fast": WQLinear_GEMVFast}[kind]
    quantizer = AwqQuantizer.__new__(AwqQuantizer)
    quantizer.group_size, quantizer.zero_point, quantizer.w_bit = group, True, 4
    config = AwqConfig(zero_point=True, q_group_size=group, w_bit=4, version=kind, modules_to_not_convert=skip)
    made = Made({}, {"quantization_config": config.to_transformers_dict()}, {}, {}, f"autoawq {version('autoawq')}", "")
    for name, weight in plain_tensors(row, "F16").items():
        module = name.removesuffix(".weight")
        if not is_projection(name) or any(part in module for part in skip or ()):
            made.tensors[name] = weight
            continue
        outputs, inputs = weight.shape
        linear = torch.nn.Linear(inputs, outputs, bias=False)
        linear.weight.data, scales, zeros = quantizer.pseudo_quantize_tensor(weight.float())
        scales = scales.half().float()
        if kind == "gemm":
            scales, zeros = scales.t().contiguous(), zeros.t().contiguous()
        packed = layer.from_linear(linear, 4, group, False, scales, zeros)
        stored = {part: getattr(packed, part).clone().contiguous() for part in ("qweight", "qzeros", "scales")}
        made.tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        groups = inputs // group
        if kind == "gemm":
            made.function = "dequantize_gemm with float32 scales"
            value = dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"].float(), 4, group)
            made.golden[name] = value.t().contiguous()
            zero = columns(stored["qzeros"]).T.repeat(group, 1)
            made.formula[name] = scaled(columns(stored["qweight"]).T, zero, f32(stored["scales"]).T.repeat(group, 1))
            continue
        # The owner decodes these on a GPU alone. What went in is known: the codes that `from_linear` rounds to.
        made.function = f"{layer.__name__}.from_linear packs; the owner decodes on a GPU only: its inputs are evaluated"
        ints = torch.round(
            (linear.weight.data + (zeros * scales).repeat_interleave(group, 1))
            / scales.half().float().repeat_interleave(group, 1)
        ).to(torch.int32)
        if kind == "gemv":
            made.golden[name] = (ints - zeros.to(torch.int32).repeat_interleave(group, 1)).float() * scales.repeat_interleave(
                group, 1
            )
            codes = bits(raw(stored["qweight"]), 4, inputs)
            zero = bits(raw(stored["qzeros"]), 4, groups).repeat(group, 1)
            made.formula[name] = scaled(codes, zero, f32(stored["scales"])[:, :groups].repeat(group, 1))
        else:
            offset = -(scales * zeros).half().float()
            made.golden[name] = ints.float() * scales.repeat_interleave(group, 1) + offset.repeat_interleave(group, 1)
            words = stored["qweight"].numpy().view(np.uint16).reshape(outputs // 4, inputs // 64, 64)
            codes = np.stack([words >> shift & 15 for shift in (0, 4, 8, 12)], 3).astype(np.int32)
            codes = codes.reshape(outputs // 4, inputs // 64, 4, 64).transpose(0, 2, 1, 3).reshape(outputs, inputs // 32, 32)
            order = np.arange(32).reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 4, 2).transpose(0, 2, 1).reshape(32)
            plain = np.empty_like(codes)
            plain[..., order] = codes
            scale, zero = (f32(stored[part])[:groups].T.repeat(group, 1) for part in ("scales", "qzeros"))
            made.formula[name] = plain.reshape(outputs, inputs).astype(np.float32) * scale + zero
    return made


# --- AutoRound ------------------------------------------------------------------------------------------------------------


def autoround(row: dict[str, Any]) -> Made:
    from auto_round.compressors.base import SerializedCompressorConfig
    from auto_round.export.export_to_autoround.export import dynamic_import_quant_linear_for_packing
    from auto_round.export.utils import filter_quantization_config
    from awq.utils.packing_utils import dequantize_gemm

    packing, symmetric, extra, group = row["packing"], row.get("sym", True), row.get("extra", {}), 32
    made = Made(
        {}, {}, {}, {}, f"auto-round {version('auto-round')}", "QuantLinear.forward of the identity with float32 scales"
    )
    for name, weight in plain_tensors(row, "F16").items():
        module = name.removesuffix(".weight")
        width = extra.get(module, {}).get("bits", 4)
        if not is_projection(name) or width == 16:
            made.tensors[name] = weight
            continue
        outputs, inputs = weight.shape
        group_of = torch.arange(inputs) // group
        linear = torch.nn.Linear(inputs, outputs, bias=False)
        linear.weight.data = weight.float()
        scales, zeros = affine(weight.float(), width, group_of, symmetric)
        layer = dynamic_import_quant_linear_for_packing(packing, width, group, symmetric)
        if packing.endswith("awq"):
            packed = layer.from_linear(
                linear, width, group, False, scales.t().contiguous(), zeros.t().contiguous(), device="cpu"
            )
        else:
            packed = layer(width, group, inputs, outputs, False)
            packed.device = "cpu"
            packed.pack(linear, scales, zeros.clone(), None, device="cpu")
        stored = {part: getattr(packed, part).clone().contiguous() for part in ("qweight", "qzeros", "scales")}
        made.tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        scale = f32(stored["scales"]).T.repeat(group, 1)
        if packing.endswith("awq"):
            made.owner, made.function = (
                f"auto-round {version('auto-round')}, autoawq {version('autoawq')}",
                "dequantize_gemm with float32 scales",
            )
            made.golden[name] = (
                dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"].float(), 4, group).t().contiguous()
            )
            made.formula[name] = scaled(columns(stored["qweight"]).T, columns(stored["qzeros"]).T.repeat(group, 1), scale)
            continue
        loaded = layer(width, group, inputs, outputs, False)
        for part, tensor in stored.items():
            loaded.register_buffer(part, tensor.float() if part == "scales" else tensor.clone())
        made.golden[name] = loaded(torch.eye(inputs)).t().contiguous()
        zero = bits(raw(stored["qzeros"]), width, outputs) + (1 if "gptq" in packing else 0)
        made.formula[name] = scaled(bits(raw(stored["qweight"].t()), width, inputs), zero.T.repeat(group, 1), scale)
    config = dataclasses.asdict(SerializedCompressorConfig()) | {
        "bits": 4, "group_size": group, "sym": symmetric, "data_type": "int", "act_bits": 16, "iters": 200,
        "autoround_version": version("auto-round"), "quant_method": "auto-round", "packing_format": packing, "block_name_to_quantize": "model.layers",
    }  # fmt: skip
    config |= {"extra_config": extra} if extra else {}
    config.pop("supported_types")
    filter_quantization_config(config)
    made.config = {"quantization_config": config}
    return made


# --- compressed-tensors ---------------------------------------------------------------------------------------------------


def signed(tensor: torch.Tensor, width: int, count: int, dense: bool) -> np.ndarray:
    """Fields of a packed row, as numbers around zero."""
    if dense or 32 % width == 0:
        return bits(raw(tensor), width, count) - 2 ** (width - 1)
    words = tensor.contiguous().numpy().view(np.uint32).astype(np.int64)
    each = 32 // width
    codes = (words[:, :, None] >> (width * np.arange(each)) & (2**width - 1)).reshape(len(words), -1)[:, :count]
    return codes.astype(np.int32) - 2 ** (width - 1)


def compressed_formula(stored: dict[str, torch.Tensor], width: int, dense: bool) -> np.ndarray:
    """(q - zero) * scale, with one scale for a tensor, a row or a group of a row."""
    packed = "weight_packed" in stored
    outputs, inputs = stored["weight_shape"].tolist() if packed else stored["weight"].shape
    codes = signed(stored["weight_packed"], width, inputs, dense) if packed else stored["weight"].numpy().astype(np.int32)
    scales = f32(stored["weight_scale"]).reshape(-1, stored["weight_scale"].shape[-1] if stored["weight_scale"].ndim > 1 else 1)
    groups = scales.shape[1]
    lookup = stored["weight_g_idx"].numpy() if "weight_g_idx" in stored else np.arange(inputs) // (inputs // groups)
    if "weight_zero_point" not in stored:
        return scaled(codes, 0, scales[:, lookup])
    zeros = stored["weight_zero_point"]
    zeros = signed(zeros.t(), width, outputs, dense).T if packed else zeros.numpy().astype(np.int32).reshape(-1, groups)
    return scaled(codes, zeros[:, lookup], scales[:, lookup])


def range_of(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points by the smallest and largest values, as the min-max observer has them."""
    from compressed_tensors.quantization.utils import calculate_qparams

    strategy = args.strategy if isinstance(args.strategy, str) else args.strategy.value
    if strategy == "tensor":
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    else:
        parts = weight.reshape(weight.shape[0], -1, args.group_size if strategy == "group" else weight.shape[1])
        low, high = parts.amin(2), parts.amax(2)
    return calculate_qparams(low, high, args)


def compressed(row: dict[str, Any]) -> Made:
    import compressed_tensors
    from compressed_tensors.compressors import BaseCompressor, ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    store = row.get("store", "BF16")
    groups = {"group_0": {"targets": row.get("targets", ["Linear"]), "weights": row["weights"]}}
    if "inputs" in row:
        groups["group_0"]["input_activations"] = row["inputs"]
    if "second" in row:
        groups["group_1"] = row["second"]
    made = Made(
        {},
        {},
        {},
        {},
        f"compressed-tensors {compressed_tensors.__version__}",
        "BaseCompressor.decompress of the saved tensors with float32 scales",
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_model(row, store, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[store])
        apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=row.get("ignore", ["lm_head"])))
        schemes = {}
        for name, module in model.named_modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is None:
                continue
            schemes[name] = scheme
            scale, zero = range_of(module.weight.data, scheme.weights)
            module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype).reshape(module.weight_zero_point.shape)
            if hasattr(module, "input_scale"):
                rng = rng_for(row["name"], name, "input")
                module.input_scale.data = torch.full_like(module.input_scale, float(np.exp(rng.standard_normal()) / 40))
                if hasattr(module, "input_zero_point"):
                    module.input_zero_point.data = torch.full_like(module.input_zero_point, int(rng.integers(-20, 20)))
        compressor = ModelCompressor.from_pretrained_model(model, row.get("format"))
        compressor.compress_model(model)
        out = folder / "out"
        model.save_pretrained(out)
        compressor.update_config(out)
        made.tensors = read_safetensors(out / "model.safetensors")
        made.config = {"quantization_config": json.loads((out / "config.json").read_text())["quantization_config"]}
    for module, scheme in schemes.items():
        stored = {part[len(module) + 1 :]: tensor for part, tensor in made.tensors.items() if part.startswith(module + ".")}
        wide = {**stored, "weight_scale": stored["weight_scale"].float()}
        owner = BaseCompressor.get_value_from_registry(getattr(scheme.format, "value", scheme.format))
        made.golden[module + ".weight"] = owner.decompress(wide, scheme)["weight"]
        made.formula[module + ".weight"] = compressed_formula(stored, scheme.weights.num_bits, dense=True)
    return made


def compressed_old(row: dict[str, Any]) -> Made:
    """In another process, whose compressed-tensors is the old one; see `old_main`."""
    if row["old"] is None:
        raise SystemExit(f"{row['name']}: needs --old-compressed-tensors")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.pathsep.join([str(row["old"]), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, __file__, "--old-process", scratch, row["name"]],
            check=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        tensors, golden = (read_safetensors(Path(scratch, f"{part}.safetensors")) for part in ("tensors", "golden"))
        facts = json.loads(Path(scratch, "facts.json").read_text())
    made = Made(
        tensors,
        {"quantization_config": facts["config"]},
        golden,
        {},
        facts["owner"],
        "PackedQuantizationCompressor.decompress_weight with float32 scales",
    )
    for name in golden:
        module = name.removesuffix(".weight")
        stored = {part[len(module) + 1 :]: tensor for part, tensor in tensors.items() if part.startswith(module + ".")}
        made.formula[name] = compressed_formula(stored, row["weights"]["num_bits"], dense=False)
    return made


def old_main(row: dict[str, Any], folder: Path) -> None:
    import compressed_tensors
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationStatus

    args = QuantizationArgs(**row["weights"])
    config = QuantizationConfig(
        config_groups={"group_0": {"targets": ["Linear"], "weights": args}}, format="pack-quantized",
        ignore=row.get("ignore", ["lm_head"]), quantization_status=QuantizationStatus.COMPRESSED,
    )  # fmt: skip
    compressor = BaseCompressor.load_from_registry("pack-quantized", config=config)
    tensors, golden = {}, {}
    for name, weight in plain_tensors(row, "BF16").items():
        ignored = any(
            re.match(rule[3:], name.removesuffix(".weight")) for rule in row.get("ignore", ()) if rule.startswith("re:")
        )
        if ignored or not is_projection(name):
            tensors[name] = weight
            continue
        inputs = weight.shape[1]
        order = torch.arange(inputs)
        if args.actorder is not None:
            order = torch.from_numpy(rng_for(row["name"], name, "order").permutation(inputs).copy())
        g_idx = torch.empty(inputs, dtype=torch.int32)
        g_idx[order] = torch.arange(inputs, dtype=torch.int32) // args.group_size
        scale, zero = range_of(weight[:, order], args)
        scale = scale.to(torch.bfloat16)
        given = {"g_idx": g_idx} if args.actorder is not None else {}
        stored = compressor.compress_weight(weight, scale, args, zero_point=zero, **given)
        stored["weight_scale"] = scale
        if given:
            stored["weight_g_idx"] = g_idx
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": tensor.contiguous() for part, tensor in stored.items()}
        golden[name] = compressor.decompress_weight({**stored, "weight_scale": scale.float()}, args).contiguous()
    quantization = {
        "version": compressed_tensors.__version__,
        "quant_method": "compressed-tensors",
        "sparsity_config": {},
        "transform_config": {},
    }
    quantization |= json.loads(config.model_dump_json(exclude={"quant_method"}))
    write_safetensors(folder / "tensors.safetensors", list(tensors.items()), None)
    write_safetensors(folder / "golden.safetensors", list(golden.items()), None)
    (folder / "facts.json").write_text(
        json.dumps({"config": quantization, "owner": f"compressed-tensors {compressed_tensors.__version__}"})
    )


# --- bitsandbytes ---------------------------------------------------------------------------------------------------------


def bitsandbytes(row: dict[str, Any]) -> Made:
    import bitsandbytes as bnb
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from transformers import BitsAndBytesConfig

    store = row.get("store", "BF16")
    made = Made({}, {}, {}, {}, f"bitsandbytes {bnb.__version__}", "")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_model(row, store, folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=BitsAndBytesConfig(**row["config"]), device_map="cpu", dtype=DTYPES[store]
        )
        model.save_pretrained(folder / "out")
        made.tensors = read_safetensors(folder / "out/model.safetensors")
        made.config = {"quantization_config": json.loads((folder / "out/config.json").read_text())["quantization_config"]}
    for name, tensor in made.tensors.items():
        module = name.removesuffix(".weight")
        state = {part[len(name) + 1 :]: value for part, value in made.tensors.items() if part.startswith(name + ".")}
        if module + ".SCB" in made.tensors:
            scales = made.tensors[module + ".SCB"]
            made.function = "functional.int8_vectorwise_dequant"
            made.golden[name] = bnb.functional.int8_vectorwise_dequant(tensor, scales)
            made.formula[name] = tensor.numpy().astype(np.float32) * f32(scales)[:, None] * np.float32(7.874015718698502e-3)
        elif state:
            made.function = (
                "backends.default.ops._dequantize_4bit_compute to float32, the scales by functional.dequantize_blockwise"
            )
            loaded = bnb.functional.QuantState.from_dict({**state}, torch.device("cpu"))
            loaded.dtype, shape = torch.float32, loaded.shape
            scales = (
                bnb.functional.dequantize_blockwise(loaded.absmax, loaded.state2) + loaded.offset
                if loaded.nested
                else loaded.absmax
            )
            value = _dequantize_4bit_compute(
                tensor.contiguous().view(torch.uint8).reshape(-1), scales, loaded.code, loaded.blocksize, shape, torch.float32
            )
            made.golden[name] = value.contiguous()
            # Its kernel for CPUs with AVX-512 is wrong where a block goes on in the next row after 32 values: it does not
            # give back what `quantize_4bit` of the same package was given, as the above does.
            if shape[-1] % 64 != 32:
                assert torch.equal(bnb.functional.dequantize_4bit(tensor, loaded), value), (
                    f"{row['name']}: {name}: bitsandbytes' two decoders differ"
                )
            made.formula[name] = blocks_of_four(tensor, state)
    return made


def blocks_of_four(tensor: torch.Tensor, state: dict[str, torch.Tensor]) -> np.ndarray:
    """table[code] * scale of the block; the scales themselves may be table[code] * scale + offset."""
    (key,) = (part for part in state if part.startswith("quant_state."))
    facts = json.loads(state[key].numpy().tobytes())
    scales = state["absmax"].numpy()
    if "nested_absmax" in state:
        outer = f32(state["nested_absmax"]).repeat(facts["nested_blocksize"])[: len(scales)]
        scales = f32(state["nested_quant_map"])[scales] * outer + np.float32(facts["nested_offset"])
    packed = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[: np.prod(facts["shape"])]
    values = f32(state["quant_map"])[codes] * scales.repeat(facts["blocksize"])[: len(codes)]
    return values.reshape(facts["shape"])


# --- HQQ ------------------------------------------------------------------------------------------------------------------


def hqq(row: dict[str, Any]) -> Made:
    import hqq as package
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    store, tags = row.get("store", "F16"), row.get("tags", {})
    general = BaseQuantizeConfig(
        nbits=row["bits"], group_size=row["group"], axis=row["axis"], view_as_float=row.get("view_as_float", False)
    )
    named = {tag: BaseQuantizeConfig(**config) for tag, config in tags.items()}
    made = Made({}, {}, {}, {}, f"hqq {package.__version__}", "Quantizer.dequantize with compute_dtype float32")
    used = {}
    for name, weight in plain_tensors(row, store).items():
        module = name.removesuffix(".weight")
        if not is_projection(name):
            made.tensors[name] = weight
            continue
        tag = ".".join(module.split(".")[3:])
        used[tag] = config = named.get(tag, general)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight
        layer = HQQLinear(linear, copy.deepcopy(config), compute_dtype=DTYPES[store], device="cpu", initialize=True)
        stored = {part: tensor.clone() for part, tensor in layer.state_dict().items() if isinstance(tensor, torch.Tensor)}
        made.tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        meta = {**layer.meta, "compute_dtype": torch.float32, "scale": stored["scale"].float(), "zero": stored["zero"].float()}
        made.golden[name] = Quantizer.dequantize(stored["W_q"], meta).contiguous()
        made.formula[name] = planes(stored)
    made.config = {
        "quantization_config": {"quant_config": used if tags else general, "quant_method": "hqq", "skip_modules": ["lm_head"]}
    }
    return made


def planes(stored: dict[str, torch.Tensor]) -> np.ndarray:
    """(code - zero) * scale, both rounded, over groups that are the rows (axis 1) or columns (axis 0); a word holds the codes
    of rows that lie far apart, the first highest."""
    packing = bytes(stored["packing"].numpy()).decode()
    width, each, top = {
        "8bit_u8": (8, 1, 0),
        "4bit_u8": (4, 2, 4),
        "3bit_32": (3, 10, 27),
        "2bit_u8": (2, 4, 6),
        "1bit_u8": (1, 8, 7),
    }[packing]
    kind = torch.int32 if packing == "3bit_32" else torch.uint8
    words = stored["W_q"].contiguous().view(kind).numpy().astype(np.int64)
    codes = np.concatenate([words >> (top - width * part) & (2**width - 1) for part in range(each)])
    shape, group = stored["shape"].tolist(), int(stored["group_size"])
    codes = codes[: group if int(stored["axis"]) == 0 else np.prod(shape) // group]
    return ((codes.astype(np.float32) - f32(stored["zero"])) * f32(stored["scale"])).reshape(shape)


# --- MLX ------------------------------------------------------------------------------------------------------------------


def mlx(row: dict[str, Any]) -> Made:
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    layers, mode = row.get("layers", {}), row.get("mode", "affine")
    made = Made(
        {},
        {},
        {},
        {},
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}",
        "mlx.core.dequantize" + (" with float32 scales and biases" if mode == "affine" else " to float32"),
        own_config=True,
        metadata={"format": "mlx"},
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plain_model(row, row["store"], folder)
        model, config = load_model(folder)
        chosen = (lambda path, _: layers.get(path, True)) if layers else None
        model, config = quantize_model(model, config, row["group"], row["bits"], mode=mode, quant_predicate=chosen)
        for path, choice in layers.items():  # as a converter that writes them all has it
            if choice is False:
                config["quantization"][path] = config["quantization_config"][path] = False
        out = folder / "out"
        out.mkdir()
        save_model(out, model)
        save_config(config, out / "config.json")
        made.config = json.loads((out / "config.json").read_text())
        made.files["model.safetensors.index.json"] = json.loads((out / "model.safetensors.index.json").read_text())
        arrays = mx.load(str(out / "model.safetensors"))
        made.tensors = {name: from_mlx(array) for name, array in arrays.items()}
    for name in [name for name in arrays if name.endswith(".scales")]:
        module = name.removesuffix(".scales")
        single = made.config["quantization"].get(module)
        group, width = (single["group_size"], single["bits"]) if isinstance(single, dict) else (row["group"], row["bits"])
        weight, scales, biases = arrays[module + ".weight"], arrays[name], arrays.get(module + ".biases")
        if mode == "affine":
            value = mx.dequantize(weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=width)
        else:
            value = mx.dequantize(weight, scales, group_size=group, bits=width, mode=mode, dtype=mx.float32)
        golden = torch.from_numpy(np.array(value))
        stored = {part: made.tensors.get(f"{module}.{part}") for part in ("weight", "scales", "biases")}
        for expert in range(golden.shape[0]) if golden.ndim == 3 else [None]:
            own = module if expert is None else module.replace("switch_mlp", f"experts.{expert}")
            parts = {part: tensor if expert is None or tensor is None else tensor[expert] for part, tensor in stored.items()}
            made.golden[own + ".weight"] = golden if expert is None else golden[expert].contiguous()
            made.formula[own + ".weight"] = mlx_formula(parts, group, width, mode)
    return made


def from_mlx(array: Any) -> torch.Tensor:
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16)).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def mlx_formula(stored: dict[str, torch.Tensor], group: int, width: int, mode: str) -> np.ndarray:
    """code * scale + bias, the product and the sum each rounded; or the value of a small float times that of another."""
    rows = raw(stored["weight"])
    codes = bits(rows, width, rows.shape[1] * 8 // width)
    if mode == "affine":
        return codes.astype(np.float32) * f32(stored["scales"]).repeat(group, 1) + f32(stored["biases"]).repeat(group, 1)
    four = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([four, -four])[codes] if width == 4 else e4m3(codes)
    bytes_ = stored["scales"].numpy().astype(np.int32)
    scales = e4m3(bytes_) if mode == "nvfp4" else np.ldexp(np.float32(1), bytes_ - 127)
    return values * scales.repeat(group, 1)


def e4m3(codes: np.ndarray) -> np.ndarray:
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()


# --- Writing --------------------------------------------------------------------------------------------------------------


def write(row: dict[str, Any], made: Made, fixtures: Path, goldens: Path) -> dict[str, Any]:
    """One fixture and its golden, if the owner and the formula agree."""
    name = row["name"]
    assert made.golden and made.golden.keys() == made.formula.keys(), f"{name}: nothing to compare"
    for module, value in made.golden.items():
        assert value.dtype == torch.float32 and value.is_contiguous(), f"{name}: {module}"
        ours = np.ascontiguousarray(made.formula[module])
        assert ours.dtype == np.float32 and ours.shape == tuple(value.shape), f"{name}: {module}: {ours.dtype} {ours.shape}"
        different = int((ours.view(np.uint32) != value.numpy().view(np.uint32)).sum())
        largest = float(np.abs(ours - value.numpy()).max())
        assert different == 0, (
            f"{name}: {module}: the owner and the formula differ in {different} of {ours.size} values, by up to {largest}"
        )
    folder = fixtures / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = next(code for code, dtype in DTYPES.items() if dtype == made.tensors["model.norm.weight"].dtype)
    config = made.config if made.own_config else {**plain_config(row, store), **made.config}
    for file, content in {"config.json": dict(sorted(config.items())), **made.files}.items():
        (folder / file).write_text(json.dumps(content, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", sorted(made.tensors.items()), made.metadata)
    goldens.mkdir(parents=True, exist_ok=True)
    golden = goldens / f"{name}.safetensors"
    write_safetensors(golden, sorted(made.golden.items()), {"rounding": "F32"})
    sizes = sum(file.stat().st_size for file in folder.iterdir()), golden.stat().st_size
    print(f"{name}: folder {sizes[0]}, golden {sizes[1]} bytes" + (" (large)" if max(sizes) > LARGEST else ""), flush=True)
    return {
        "says": row["says"], "owner": made.owner, "function": made.function, "modules": len(made.golden),
        "folder_sha256": {file.name: sha256(file) for file in sorted(folder.iterdir())}, "golden_sha256": sha256(golden),
    }  # fmt: skip


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


MAKERS: dict[str, Callable[[dict[str, Any]], Made]] = {
    "gptq": gptq, "awq": awq, "autoround": autoround, "compressed": compressed, "compressed_old": compressed_old,
    "bitsandbytes": bitsandbytes, "hqq": hqq, "mlx": mlx,
}  # fmt: skip


def chosen(names: list[str]) -> Iterator[dict[str, Any]]:
    known = {row["name"] for row in DIALECTS}
    if unknown := set(names) - known:
        raise SystemExit(f"no such dialect: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return (row for row in DIALECTS if not names or row["name"] in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="dialects to make (default: all)")
    parser.add_argument("--fixtures", type=Path, default=ROOT / "fixtures/quant", help="folder of the models")
    parser.add_argument("--goldens", type=Path, default=ROOT / "oracles/quant", help="folder of the values")
    parser.add_argument("--old-compressed-tensors", type=Path, help="folder that holds compressed-tensors 0.12.2")
    parser.add_argument("--old-process", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if args.old_process:
        (row,) = chosen(args.names)
        return old_main(row, args.old_process)
    provenance = args.goldens / "PROVENANCE-int.json"
    facts = json.loads(provenance.read_text())["dialects"] if args.names and provenance.exists() else {}
    for row in chosen(args.names):
        torch.manual_seed(0)
        facts[row["name"]] = write(
            row, MAKERS[row["make"]]({**row, "old": args.old_compressed_tensors}), args.fixtures, args.goldens
        )
    packages = (
        "torch",
        "transformers",
        "numpy",
        "gptqmodel",
        "autoawq",
        "auto-round",
        "compressed-tensors",
        "bitsandbytes",
        "hqq",
        "mlx",
        "mlx-lm",
    )
    versions = {"python": sys.version.split()[0]} | {package: version(package) for package in packages}
    print(", ".join(f"{package} {number}" for package, number in versions.items()))
    content = {
        "versions": versions,
        "regenerate": "python scripts/make_quant_int_fixtures.py --old-compressed-tensors DIR",
        "dialects": dict(sorted(facts.items())),
    }
    provenance.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
