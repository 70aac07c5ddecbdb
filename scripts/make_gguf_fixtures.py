"""GGUF twins of fixtures: the same weights and config as llama.cpp's converter would write them.

Names come from gguf-py's own table, and each transformation is the converter's, written down again here (permuted rows,
norms plus one, stacked experts): nothing of it is shared with the product. `python scripts/make_gguf_fixtures.py` writes
fixtures/gguf/ anew; twins.json says which folder each file is the twin of, and which config keys the test sets in the folder
because a GGUF file can't say something else.
"""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "fixtures" / "gguf"
ARCHES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
NONE = None


def twin(name, folder, arch, *, override=None, meta=None, permute=False, plus_one=False, **more):
    return dict(name=name, folder=folder, arch=arch, override=override or {}, meta=meta or {}, permute=permute,
                plus_one=plus_one, **more)


SILU = {"hidden_act": "silu"}
PLAIN_ROPE = {"rope_parameters": NONE, "rope_scaling": NONE}
TWINS = [
    twin("llama-plain", "llama-plain", "llama", permute=True),
    twin("llama-minimal", "llama-minimal", "llama", permute=True),
    # Published llama3 parameters, which come back from rope_freqs.weight; heads wide enough to have frequencies of all kinds.
    twin("llama-bias-llama3", "llama-bias-llama3", "llama", permute=True, override={
        "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
    twin("llama-linear", "llama-linear-tied-stored", "llama", permute=True, override={**SILU, "tie_word_embeddings": False}),
    twin("llama-yarn", "llama-yarn", "llama", permute=True, override=SILU),
    twin("mistral-window", "mistral-window", "llama", permute=True, meta={"attention.sliding_window": 7}),
    twin("mixtral-experts", "mixtral-experts", "llama", permute=True, override={"sliding_window": NONE}),
    twin("qwen2-plain", "qwen2-plain", "qwen2"),
    twin("qwen2_moe-window", "qwen2_moe-window", "qwen2moe",
         override={"use_sliding_window": False, "norm_topk_prob": False, "qkv_bias": False}),
    twin("qwen3-plain", "qwen3-plain", "qwen3"),
    twin("qwen3-yarn", "qwen3-bias-yarn", "qwen3", override={"rope_parameters": NONE, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}),
    twin("qwen3_moe-layers", "gguf/qwen3_moe-layers", "qwen3moe"),
    twin("gemma-plain", "gemma-plain", "gemma", plus_one=True),
    twin("gemma2-softcap", "gemma2-softcap", "gemma2", plus_one=True, override={"query_pre_attn_scalar": 10}),
    twin("gemma3-plain", "gemma3-plain", "gemma3", plus_one=True, override={"query_pre_attn_scalar": 10},
         meta={"attention.sliding_window_pattern": 3}),
    twin("phi3-window", "phi3-window", "phi3"),
    twin("phi3-longrope", "phi3-longrope", "phi3"),
    twin("starcoder2-window", "starcoder2-window", "starcoder2",
         override={"sliding_window": NONE, "rope_theta": 999999.44}),
    twin("starcoder2-no-bias", "starcoder2-no-bias", "starcoder2", override={"hidden_act": NONE}),
    twin("olmo2-plain", "olmo2-plain", "olmo2"),
    twin("olmoe-clip", "olmoe-clip", "olmoe"),
    twin("granite-plain", "granite-plain", "granite", permute=True),
    twin("granitemoe-plain", "granitemoe-plain", "granitemoe", permute=True),
    twin("cohere-plain", "cohere-plain", "command-r"),
    twin("cohere2-hybrid", "cohere2-hybrid", "cohere2", meta={"attention.sliding_window_pattern": 2}),
    twin("smollm3-plain", "smollm3-plain", "smollm3", permute=True,
         override={"no_rope_layers": NONE, "no_rope_layer_interval": NONE}),
    twin("stablelm-serial", "stablelm-serial", "stablelm"),
    twin("stablelm-parallel", "stablelm-parallel", "stablelm", override=SILU),
    twin("nemotron-plain", "nemotron-plain", "nemotron", plus_one=True),
    twin("phi-plain", "phi-plain", "phi2"),
    twin("seed_oss-plain", "seed_oss-plain", "seed_oss"),
    twin("ernie4_5-plain", "ernie4_5-plain", "ernie4_5"),
    twin("exaone4-hybrid", "exaone4-hybrid", "exaone4", override={"rope_scaling": NONE}),
    twin("hunyuan_v1_dense-bias", "hunyuan_v1_dense-bias", "hunyuan-dense"),
    twin("minimax_m2-partial", "minimax_m2-partial", "minimax-m2"),
    twin("glm4-plain", "glm4-plain", "glm4"),
    twin("glm4_moe-groups", "glm4_moe-groups", "glm4moe"),
    twin("lfm2-published", "lfm2-published", "lfm2"),
]


def weights(folder):
    tensors = {}
    for file in sorted((ROOT / "fixtures" / folder).glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            for name in f.keys():
                tensors[name] = f.get_tensor(name).to(torch.float32).numpy()
    return tensors


def folder_of_moe_layers():
    """Qwen3 MoE without dense layers, which its GGUF architecture can't have: layers 1 and 3 of a fixture of four."""
    folder = OUT / "qwen3_moe-layers"
    folder.mkdir()
    config = json.loads((ROOT / "fixtures" / "qwen3_moe-raw-topk" / "config.json").read_text())
    config.update({"num_hidden_layers": 2, "mlp_only_layers": [], "norm_topk_prob": True})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {}
    for name, w in weights("qwen3_moe-raw-topk").items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and int(layer[1]) % 2 == 0:
            continue
        tensors[name.replace(layer[0], f"layers.{int(layer[1]) // 2}.") if layer else name] = w
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors")


def permuted(w, heads):
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def stacked(tensors):
    """One tensor of all experts, and one of all heads' norms, named as the converter names them before the table."""
    out, groups = {}, {}
    for name, w in tensors.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        head = re.fullmatch(r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.(.*)", name)
        match = expert or head
        if match:
            groups.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = w
        else:
            out[name] = w
    for name, parts in groups.items():
        out[name] = np.stack([parts[i] for i in range(len(parts))])
    return out


def split_fused(tensors):
    """GraniteMoE: input_linear holds gate and up."""
    out = {}
    for name, w in tensors.items():
        if name.endswith("block_sparse_moe.input_linear.weight"):
            half = w.shape[1] // 2
            base = name.removesuffix("input_linear.weight")
            out[base + "gate_exps"] = w[:, :half]
            out[base + "up_exps"] = w[:, half:]
        else:
            out[name] = w
    return out


def first(config, *keys, default=None):
    return next((config[k] for k in keys if config.get(k) is not None), default)


def metadata(writer, t, config, vocab):
    arch = t["arch"]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    scaling = {**rope, **scaling}
    layers = config["num_hidden_layers"]
    nextn = config.get("num_nextn_predict_layers", 0) if arch == "glm4moe" else 0
    writer.add_block_count(layers + nextn)
    writer.add_context_length(first(config, "max_position_embeddings", default=2048))
    writer.add_embedding_length(hidden)
    kv = first(config, "num_key_value_heads", default=heads)
    writer.add_head_count(heads)
    if arch == "lfm2":
        writer.add_head_count_kv([kv if i in config["full_attn_idxs"] else 0 for i in range(layers)])
        width = int(2 * config["block_ff_dim"] / 3)
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length(multiple * ((width + multiple - 1) // multiple))
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    else:
        writer.add_head_count_kv(kv)
        writer.add_feed_forward_length(config["intermediate_size"])
    head_dim = first(config, "head_dim", default=hidden // heads)
    if config.get("head_dim") is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    eps = first(config, "rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon", default=1e-6)
    if arch in ("starcoder2", "command-r", "cohere2", "stablelm", "nemotron", "phi2"):
        writer.add_layer_norm_eps(eps)
    else:
        writer.add_layer_norm_rms_eps(eps)
    writer.add_rope_freq_base(float(first(scaling, "rope_theta", default=first(config, "rope_theta", default=10000.0))))
    factor = first(scaling, "partial_rotary_factor", default=first(config, "partial_rotary_factor", default=1.0))
    writer.add_rope_dimension_count(round(head_dim * factor))
    kind = first(scaling, "rope_type", "type", default="default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "longrope":
        original, longest = config["original_max_position_embeddings"], config["max_position_embeddings"]
        scale = longest / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(1.0 if scale <= 1.0 else math.sqrt(1 + math.log(scale) / math.log(original)))
    writer.add_vocab_size(vocab)
    if arch in ("gemma2", "gemma3", "phi3", "cohere2", "exaone4") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if arch == "exaone4":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch.startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if arch == "stablelm":
        writer.add_parallel_residual(config.get("use_parallel_residual", False))
    experts = first(config, "num_local_experts", "num_experts", "n_routed_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch == "minimax-m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch == "glm4moe":
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_nextn_predict_layers(nextn)
    if config.get("clip_qkv"):
        writer.add_clamp_kqv(config["clip_qkv"])
    for key, value in t["meta"].items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(vocab)])
    writer.add_token_types([1] * vocab)
    writer.add_bos_token_id(1)
    return kind, scaling, head_dim, kv, layers + nextn


def llama3_factors(scaling, theta, dim):
    """convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    original = scaling["original_max_position_embeddings"]
    low, high = original / scaling["low_freq_factor"], original / scaling["high_freq_factor"]
    out = []
    for freq in freqs:
        wavelen = 2 * math.pi / freq
        if wavelen < high:
            out.append(1)
        elif wavelen > low:
            out.append(scaling["factor"])
        else:
            smooth = (original / wavelen - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            out.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def converted(t):
    """Config, and what the converter would write: names and float32 values."""
    config = json.loads((ROOT / "fixtures" / t["folder"] / "config.json").read_text())
    config.update(t["override"])
    tensors = split_fused(stacked(weights(t["folder"])))
    return config, tensors


def write(t, path, quantise=None, **options):
    config, tensors = converted(t)
    arch = t["arch"]
    writer = gguf.GGUFWriter(path, arch, **options)
    if "alignment" in t:
        writer.add_custom_alignment(t["alignment"])
    writer.add_name(t["name"])
    vocab = config["vocab_size"]
    kind, scaling, head_dim, kv, blocks = metadata(writer, t, config, vocab)
    table = gguf.get_tensor_name_map(ARCHES[arch], blocks)
    heads = config["num_attention_heads"]
    if kind == "llama3":
        theta = first(scaling, "rope_theta", default=first(config, "rope_theta", default=10000.0))
        writer.add_tensor("rope_freqs.weight", llama3_factors(scaling, theta, head_dim))
    if kind == "longrope":
        writer.add_tensor("rope_factors_long.weight", np.array(scaling["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(scaling["short_factor"], dtype=np.float32))
    tied = config.get("tie_word_embeddings", arch in ("gemma", "gemma2", "gemma3"))
    for name, w in tensors.items():
        if name == "lm_head.weight" and tied:
            continue
        if match := re.fullmatch(r"(?:model\.)?layers\.(\d+)\.block_sparse_moe\.(gate|up)_exps", name):
            new = f"blk.{match[1]}.ffn_{match[2]}_exps.weight"
        else:
            lookup = name if name.startswith(("model.", "lm_head")) else "model." + name
            if lookup.endswith("e_score_correction_bias"):
                lookup = lookup.replace("e_score_correction_bias", "e_score_correction.bias")
            new = table.get_name(lookup, try_suffixes=(".weight", ".bias"))
        if new is None:
            sys.exit(f"{t['name']}: gguf-py has no name for {name}")
        if t["permute"] and re.search(r"\.q_proj\.", name):
            w = permuted(w, heads)
        if t["permute"] and re.search(r"\.k_proj\.", name):
            w = permuted(w, kv)
        if t["plus_one"] and name.endswith("norm.weight"):
            w = w + np.float32(1)
        if arch == "lfm2" and name.endswith("conv.conv.weight"):
            w = w.squeeze(1)
        if new.endswith("ffn_gate_inp_shexp.weight"):
            w = w.squeeze()
        qtype = quantise(new, w) if quantise else None
        if qtype:
            writer.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(w), qtype), raw_dtype=qtype)
        else:
            writer.add_tensor(new, np.ascontiguousarray(w))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixed(name, w):
    """Two block formats where rows are whole blocks."""
    if w.ndim < 2 or w.shape[-1] % 32:
        return None
    return Q.Q8_0 if "attn_k" in name or "token_embd" in name else Q.Q4_0


def dequantised(source, path):
    """The same file with every tensor as the float32 values of its blocks."""
    reader = gguf.GGUFReader(source)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    writer = gguf.GGUFWriter(path, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.alignment"):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    folder_of_moe_layers()
    twins = []
    for t in TWINS:
        write(t, OUT / f"{t['name']}.gguf")
        twins.append({"file": f"{t['name']}.gguf", "folder": t["folder"], "set": t["override"]})
    split = next(t for t in TWINS if t["name"] == "llama-plain")
    write({**split, "name": "llama-split"}, OUT / "llama-split.gguf", split_max_tensors=9)
    parts = sorted(OUT.glob("llama-split-*.gguf"))
    twins.append({"file": parts[0].name, "folder": "llama-plain", "set": {}})
    granite = next(t for t in TWINS if t["name"] == "granite-plain")
    write({**granite, "name": "granite-blocks", "alignment": 8}, OUT / "granite-blocks.gguf", quantise=mixed)
    dequantised(OUT / "granite-blocks.gguf", OUT / "granite-dequantised.gguf")
    (OUT / "twins.json").write_text(json.dumps(twins, indent=1) + "\n")


if __name__ == "__main__":
    main()
