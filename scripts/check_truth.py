"""Check oracles/ against a second float64 implementation, written here in NumPy from config.json and the stored tensors alone.

It shares no code with transformers, so agreement shows that the captured truth is the exact function of the stored weights:
nothing in it was rounded to float32. It knows the Llama-like families only and says how many fixtures it left out. Exit 1 if any prompt differs by more than the tolerance (relative to the logits' range).

Example:
    python scripts/check_truth.py
    python scripts/check_truth.py --tolerance 1e-13 llama-yarn qwen3-plain
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
}


def decode(dtype: str, data: bytes) -> np.ndarray:
    """Stored bytes as float64, exactly."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of the folder; a tensor named by an index is taken from the shard that the index names."""
    tensors: dict[str, np.ndarray] = {}
    index = folder / "model.safetensors.index.json"
    owner = json.loads(index.read_text())["weight_map"] if index.exists() else None
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name == "__metadata__" or (owner is not None and owner[name] != path.name):
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            full = name if name.startswith(("model.", "lm_head.")) else "model." + name
            tensors[full] = decode(entry["dtype"], raw[begin:end]).reshape(entry["shape"])
    return tensors


def rope_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The RoPE settings under their newer names, whichever spelling the file uses."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    outer = config.get("original_max_position_embeddings")
    rope["original"] = outer or rope.get("original_max_position_embeddings", config["max_position_embeddings"])
    return rope


def inverse_frequencies(config: dict[str, Any], dim: int, length: int) -> tuple[np.ndarray, float]:
    """Inverse frequencies [dim/2] and the factor on cos and sin, for a prompt whose largest position is length - 1."""
    rope = rope_keys(config)
    kind, base, factor, original = rope["rope_type"], rope["rope_theta"], rope.get("factor"), rope["original"]
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    plain = base**-exponents
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "dynamic":
        limit = config["max_position_embeddings"]
        stretched = base * (factor * max(length, limit) / limit - (factor - 1)) ** (dim / (dim - 2))
        return stretched**-exponents, 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = original * plain / (2 * np.pi)
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (blend + (1 - blend) / factor), 1.0
    if kind == "longrope":
        factor = factor or config["max_position_embeddings"] / original
        scale = rope.get("attention_factor")
        if scale is None:
            scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        return plain / np.array(rope["long_factor" if length > original else "short_factor"]), scale
    if kind == "yarn":
        def magnitude(weight: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

        def border(rotations: float) -> float:
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

        scale = rope.get("attention_factor")
        if scale is None:
            both = rope.get("mscale") and rope.get("mscale_all_dim")
            scale = magnitude(rope["mscale"]) / magnitude(rope["mscale_all_dim"]) if both else magnitude(1.0)
        low, high = border(rope.get("beta_fast") or 32), border(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
        return plain * (1 - ramp) + plain / factor * ramp, scale
    raise SystemExit(f"no such RoPE kind: {kind}")


ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2.0))),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def windows(config: dict[str, Any]) -> list[int | None]:
    """The sliding window of each layer, None for full attention."""
    layers, family = config["num_hidden_layers"], config["model_type"]
    if family == "llama":
        return [None] * layers
    if family == "mistral":
        return [config["sliding_window"]] * layers
    window = config["sliding_window"] if config.get("use_sliding_window", False) else None
    if config.get("layer_types"):
        return [window if kind == "sliding_attention" else None for kind in config["layer_types"]]
    return [window if layer >= config["max_window_layers"] else None for layer in range(layers)]


def reference(folder: Path, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits of all positions, [tokens, vocab], in float64."""
    config = json.loads((folder / "config.json").read_text())
    config = DEFAULTS[config["model_type"]] | config
    weights = read_weights(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or config["hidden_size"] // heads
    eps = config.get("rms_norm_eps", 1e-6)
    activation = ACTIVATIONS[config.get("hidden_act", "silu")]
    count = len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name + ".weight"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)

    frequencies, scale = inverse_frequencies(config, dim, int(positions.max()) + 1)
    angle = positions[:, None].astype(np.float64) * frequencies
    cos, sin = np.cos(angle)[:, None] * scale, np.sin(angle)[:, None] * scale

    def rotate(x: np.ndarray) -> np.ndarray:  # [tokens, heads, dim]: element i pairs with i + dim/2
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    x = weights["model.embed_tokens.weight"][tokens]
    query_slot, key_slot = np.arange(count)[:, None], np.arange(count)[None, :]
    for layer, window in enumerate(windows(config)):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm")
        q = linear(h, at + "self_attn.q_proj").reshape(count, heads, dim)
        k = linear(h, at + "self_attn.k_proj").reshape(count, kv_heads, dim)
        v = linear(h, at + "self_attn.v_proj").reshape(count, kv_heads, dim)
        if at + "self_attn.q_norm.weight" in weights:
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        q, k = rotate(q), rotate(k)
        visible = key_slot <= query_slot
        if window is not None:
            visible &= key_slot > query_slot - window
        mixed = np.empty((count, heads, dim))
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = np.where(visible, q[:, head] @ k[:, group].T / math.sqrt(dim), -np.inf)
            share = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = share / share.sum(-1, keepdims=True) @ v[:, group]
        x = x + linear(mixed.reshape(count, heads * dim), at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        x = x + linear(activation(linear(h, at + "mlp.gate_proj")) * linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")
    head_name = "model.embed_tokens" if config.get("tie_word_embeddings", False) else "lm_head"
    return linear(norm(x, "model.norm"), head_name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fixtures to check (default: every one that has an oracle)")
    parser.add_argument("--fixtures", type=Path, default=ROOT / "fixtures", help="where the fixtures are (default: fixtures/)")
    parser.add_argument("--oracles", type=Path, default=ROOT / "oracles", help="where the oracles are (default: oracles/)")
    parser.add_argument("--tolerance", type=float, default=1e-12, help="largest difference allowed, relative to the logits' range (default: 1e-12)")
    args = parser.parse_args()
    names = args.names or sorted(path.stem for path in args.oracles.glob("*.safetensors"))
    if not names:
        parser.error(f"no oracles in {args.oracles}")
    families = {name: json.loads((args.fixtures / name / "config.json").read_text())["model_type"] for name in names}
    left_out = sorted({family for family in families.values() if family not in DEFAULTS})
    if left_out:
        count = sum(family in left_out for family in families.values())
        print(f"not checked: {count} fixtures of families that only transformers computes here: {', '.join(left_out)}")
    failed = 0
    for name in names:
        if families[name] not in DEFAULTS:
            continue
        oracle = load_file(args.oracles / f"{name}.safetensors")
        for ident in sorted({key.split(".")[0] for key in oracle}):
            truth = oracle[f"{ident}.logits_f64"]
            ours = reference(args.fixtures / name, oracle[f"{ident}.tokens"], oracle[f"{ident}.positions"])
            span = truth.max() - truth.min()
            relative = np.abs(ours - truth).max() / span
            f32 = np.abs(oracle[f"{ident}.logits_f32"] - truth).max() / span
            good = relative <= args.tolerance
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {name} {ident}: truth {relative:.1e}, float32 {f32:.1e} of the logits' range")
    print(f"{failed} failed" if failed else "all agree")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
