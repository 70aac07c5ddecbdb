"""BitNet: norms inside attention and MLP, ternary weights in their several forms, quantised activations.

The float64 truth of a quantised model is the model's own rounding in float64: truth.py lets no activation lie so near a tie that
float32 may round it to another integer. Exact ties happen (small integers times short weights): a prompt with one is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .common import SPARSE, edit_tensors, prompt

PUBLISHED: dict[str, Any] = {
    "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "relu2",
    "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 36, "max_position_embeddings": 4096, "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": 59,
}
ABSENT = ["attention_bias", "attention_dropout", "pad_token_id"]


def packed(multiplies: bool) -> Callable[[Path, torch.nn.Module], None]:
    """Every projection as uint8, four ternary rows in one (row r of the first quarter in the lowest two bits, each value plus one),
    with a weight_scale that multiplies the output or divides it."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        result = dict(tensors)
        for name, tensor in tensors.items():
            if name.endswith("_proj.weight"):
                weights = tensor.double()
                mean = weights.abs().mean()
                quarters = ((weights / mean).round().clamp(-1, 1) + 1).to(torch.uint8).chunk(4)
                assert len(quarters) == 4 and all(part.shape == quarters[0].shape for part in quarters)
                result[name] = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
                scale = mean if multiplies else 1 / mean
                result[name.replace(".weight", ".weight_scale")] = scale.reshape(1).to(tensor.dtype)
        return result

    return lambda folder, model: edit_tensors(folder, change)


FIXTURES: list[dict[str, Any]] = [
    # --- bitnet ---
    # transformers: without quantization_config nothing is ternary: the weights are used as they are, activations are not rounded.
    # transformers: attn_sub_norm is hidden_size wide, before o_proj; ffn_sub_norm is before down_proj, after relu(gate)^2 * up.
    dict(
        name="bitnet-plain", pack="bitnet", store="BF16",
        config={
            "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "attention_bias": True, "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "relu2", "hidden_size": 30, "intermediate_size": 34, "max_position_embeddings": 4096,
            "num_attention_heads": 5, "num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False, "dtype": "bfloat16",
            "vocab_size": 53,
        },
        says="no quantization_config: BF16 weights as they are, norms before o_proj and down_proj, squared ReLU, attention biases, MQA, "
        "eps 1e-2, untied",
        prompts=[prompt("main", 17), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
    # transformers: autobitlinear, online: weights are rounded in every forward pass: s = 1 / mean|W| (floor 1e-5), round(W s) cut to
    # [-1, 1], / s; activations per token: s = 127 / max|x| (floor 1e-5), round(x s) cut to [-128, 127], / s. Ties go to even. The head and
    # the embeddings are not touched.
    dict(
        name="bitnet-online", pack="bitnet", store="BF16",
        config=PUBLISHED | {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}},
        drop=ABSENT, verify=False,
        says="autobitlinear online, as the BF16 master weights are published: weights and activations are quantised on the fly, tied",
        prompts=[prompt("main", 16, draw=2), prompt("one", 1), prompt("sparse", 7, SPARSE, draw=2)],
    ),
    # transformers: autobitlinear, offline: the output is multiplied by weight_scale, activations as online.
    dict(
        name="bitnet-packed", pack="bitnet", store="BF16", finish=packed(True),
        config=PUBLISHED | {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}},
        drop=ABSENT, verify=False,
        says="autobitlinear offline, as published: projections packed four ternary rows to a byte, a weight_scale that multiplies, tied",
        prompts=[prompt("main", 16, draw=1), prompt("one", 1), prompt("sparse", 7, SPARSE, draw=1)],
    ),
    # transformers: bitlinear (also when linear_class is absent): the output is divided by the activations' scale and by weight_scale.
    dict(
        name="bitnet-divisor", pack="bitnet", store="BF16", finish=packed(False),
        config=PUBLISHED | {"tie_word_embeddings": False, "quantization_config": {"quant_method": "bitnet", "modules_to_not_convert": None}},
        drop=ABSENT, verify=False,
        says="bitlinear (no linear_class): packed projections and a weight_scale that divides, untied",
        prompts=[prompt("main", 16, draw=18), prompt("one", 1), prompt("sparse", 7, SPARSE)],
    ),
]
