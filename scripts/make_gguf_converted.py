"""GGUF twins of fixtures, written by llama.cpp's own converter.

`python scripts/make_gguf_converted.py LLAMA_CPP`, with the source tree of llama.cpp that is in llama-cpp-python 0.3.36
(`pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36`; vendor/llama.cpp). The converter is as it is but for
the vocabulary, which a fixture doesn't have: a token for each row of the embedding. Adds to fixtures/gguf/ and its
twins.json what scripts/make_gguf_fixtures.py doesn't write; that one comes first.
"""

import json
import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "fixtures" / "gguf"
NONE = None

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
LLAMA4 = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
          "original_max_position_embeddings": 8192}


def twin(name, changes=NONE, folder=NONE, **how):
    """`changes` are what the config says differently on both sides, since the architecture can't say something else."""
    return dict(name=name, folder=folder or name, changes=changes or {}, **how)


TWINS = [
    twin("deepseek_v2-lite", {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    twin("deepseek_v2-groups", {"norm_topk_prob": False}),
    twin("deepseek_v3-mtp"),
    twin("gpt_oss-yarn", {"swiglu_limit": 7.0}),
    twin("gpt_oss-mxfp4", folder="gguf/gpt_oss-mxfp4", source="gguf/packed"),
    twin("gemma3n-padded", folder="gguf/gemma3n-padded"),
    twin("granitemoehybrid-moe", {"max_position_embeddings": 2**20}, "granitemoehybrid-moe-nope"),
    twin("granitemoehybrid-no-experts", folder="gguf/granitemoehybrid-no-experts"),
    # Of Granite 4 without Mamba layers the converter makes Granite.
    twin("granitemoehybrid-attention", {}, "granitemoehybrid-dense-rope"),
    twin("mamba2-groups", folder="gguf/mamba2-groups"),
    twin("qwen3_next-published", {"full_attention_interval": 2}),
    twin("llama4-chunks", {"attention_chunk_size": 8192, "attn_scale": 0.1, "floor_scale": 8192, "no_rope_layers": [],
                           "rope_theta": 20000.0, "rope_scaling": LLAMA4}, "llama4_text-chunks"),
    twin("gpt2-plain", without=".attn.bias"),
    twin("gpt_neox-parallel", raw=True),
    # Without num_kv_heads the converter takes what transformers makes of it, one for each head.
    twin("falcon-multi-query", {"num_kv_heads": 1}),
    twin("falcon-new"),
    twin("lfm2_moe-published"),
    twin("qwen3_5-dense", folder="qwen3_5-mtp"),
    twin("qwen3_5-turns", {"mtp_num_hidden_layers": 1}, "gguf/qwen3_5-turns"),
    twin("qwen3_5_moe-experts", {"mtp_num_hidden_layers": 1}, "qwen3_5_moe_text-experts"),
    twin("olmo3-yarn"),
    twin("kimi_linear-published"),
    twin("ministral3-scaling"),
    twin("mistral3-mistral"),
    twin("hunyuan_v1_moe-bias", {"moe_topk": [2, 2], "moe_intermediate_size": [16, 16], "num_shared_expert": [1, 1]}),
    twin("qwen3_vl-published"),
    twin("qwen3_vl_moe-layer", folder="gguf/qwen3_vl_moe-layer"),
    twin("gemma4-dense"),
    twin("gemma4-moe", {"rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 100000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"}}}),
    twin("gemma4-e-padded", folder="gguf/gemma4-e-padded"),
]


def rewritten(source, target, changes=NONE, tensors=lambda name, w: w):
    """A fixture with other config keys and tensors."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "fixtures" / source, target)
    config = json.loads((target / "config.json").read_text())
    config.update(changes or {})
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file in target.glob("*.safetensors"):
        kept = {name: tensors(name, w) for name, w in load_file(file).items()}
        save_file({name: w.contiguous() for name, w in kept.items() if w is not None}, file)


def settled(a_log):
    """Numbers near these that are the float32 next to the logarithm of their float32 exponential: what a file has tells them."""
    while True:
        back = torch.log(torch.exp(a_log.float()).double()).float()
        if torch.equal(back, a_log.float()):
            return back
        a_log = back


def folders():
    """Fixtures as a GGUF file can say them."""
    # The converter fills up the table of the layers' own inputs with zeros, to as many rows as there are tokens.
    rows = 61
    fill = lambda name, w: torch.nn.functional.pad(w, (0, 0, 0, rows - len(w))) if "per_layer.weight" in name else w
    rewritten("gemma3n-shared", OUT / "gemma3n-padded", {"vocab_size_per_layer_input": rows}, fill)
    rewritten("gemma4-e", OUT / "gemma4-e-padded", {"vocab_size_per_layer_input": rows}, fill)
    rewritten("granitemoehybrid-moe-nope", OUT / "granitemoehybrid-no-experts",
              {"num_local_experts": 0, "num_experts_per_tok": 0, "max_position_embeddings": 2**20},
              lambda name, w: NONE if "block_sparse_moe" in name else w)
    # A file can't have dense layers: the first layer alone.
    text = json.loads((ROOT / "fixtures/qwen3_vl_moe-published/config.json").read_text())["text_config"]
    rewritten("qwen3_vl_moe-published", OUT / "qwen3_vl_moe-layer",
              {"text_config": text | {"num_hidden_layers": 1, "mlp_only_layers": []}},
              lambda name, w: NONE if re.search(r"language_model\.layers\.[1-9]", name) else w)
    settle = lambda name, w: settled(w) if name.endswith("A_log") else w
    rewritten("mamba2-groups", OUT / "mamba2-groups", tensors=settle)
    # Of float16 the converter takes the exponential, and adds one, in float16.
    rewritten("qwen3_5_text-dense", OUT / "qwen3_5-turns", tensors=lambda name, w: settle(name, w).float())


def vocabulary(model):
    """What a tokenizer would give."""
    rows = model.hparams["vocab_size"]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_token_list([f"<{i}>" for i in range(rows)])
    model.gguf_writer.add_token_types([1] * rows)
    model.gguf_writer.add_bos_token_id(1)


MXFP4 = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 41, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 3,
    "num_experts_per_tok": 2, "sliding_window": 5, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "rope_theta": 150000, "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096,
                     "beta_fast": 32.0, "beta_slow": 1.0},
}


def mxfp4_folders(packed, plain):
    """gpt-oss as it is published, its experts in MXFP4, and with the values that transformers makes of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: (torch.randn(shape, generator=generator) * 0.3).to(torch.bfloat16)
    c = MXFP4
    hidden, inner, experts, dim = c["hidden_size"], c["intermediate_size"], c["num_local_experts"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    both = {"model.embed_tokens.weight": draw(c["vocab_size"], hidden) * 3, "model.norm.weight": 1 + draw(hidden),
            "lm_head.weight": draw(c["vocab_size"], hidden)}
    blocks = {}
    for i in range(c["num_hidden_layers"]):
        layer, attention, mlp = f"model.layers.{i}.", f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        both |= {layer + "input_layernorm.weight": 1 + draw(hidden), layer + "post_attention_layernorm.weight": 1 + draw(hidden),
                 attention + "sinks": draw(c["num_attention_heads"])}
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            both |= {f"{attention}{name}_proj.weight": draw(rows, columns), f"{attention}{name}_proj.bias": draw(rows)}
        both |= {mlp + "router.weight": draw(experts, hidden), mlp + "router.bias": draw(experts),
                 mlp + "experts.gate_up_proj_bias": draw(experts, 2 * inner),
                 mlp + "experts.down_proj_bias": draw(experts, hidden)}
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            shape = (experts, rows, columns // 32)
            blocks[f"{mlp}experts.{name}_blocks"] = torch.randint(256, (*shape, 16), generator=generator).to(torch.uint8)
            blocks[f"{mlp}experts.{name}_scales"] = torch.randint(121, 125, shape, generator=generator).to(torch.uint8)
    values = {name.removesuffix("_blocks"): convert_moe_packed_tensors(w, blocks[name.replace("_blocks", "_scales")])
              for name, w in blocks.items() if name.endswith("_blocks")}
    quantised = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    for folder, config, tensors in ((packed, c | quantised, both | blocks), (plain, c, both | values)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file({name: w.contiguous() for name, w in sorted(tensors.items())}, folder / "model.safetensors")


def convert(conversion, gguf, folder, changes, path, ftype="ALL_F32", raw=False, without=NONE):
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / path.stem
        drop = lambda name, w: NONE if without and name.endswith(without) else w
        rewritten(folder, source, changes, drop)
        config = json.loads((source / "config.json").read_text())
        # Gemma's converter counts its entries.
        rows = config.get("text_config", config)["vocab_size"]
        vocab = {f"<{i}>": i for i in range(rows)}
        (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        # Some of transformers' classes don't keep the keys that the converter asks for.
        hparams = config if raw else NONE
        seen = hparams or conversion.ModelBase.load_hparams(source, False)
        architecture = conversion.get_model_architecture(seen, conversion.ModelType.TEXT)
        kind = conversion.get_model_class(architecture)
        changed = type(kind.__name__, (kind,), {"model_arch": kind.model_arch, "set_vocab": vocabulary})
        model = changed(source, gguf.LlamaFileType[ftype], path, eager=True, model_name=path.stem, hparams=hparams)
        if hasattr(model, "impl"):
            model.impl.set_vocab = lambda: vocabulary(model.impl)
        model.write()


def older(gguf, file, folder, path):
    """A file of DeepSeek as before latent attention was split (llama.cpp's reader still knows them): kv_b as it is, a key/value
    head for each head, plain lengths, nothing about groups."""
    reader = gguf.GGUFReader(file)
    kept = {field.name: field.contents() for field in reader.fields.values()}
    arch = kept["general.architecture"]
    replaced = {f"{arch}.attention.head_count_kv": kept[f"{arch}.attention.head_count"],
                f"{arch}.attention.key_length": kept[f"{arch}.attention.key_length_mla"],
                f"{arch}.attention.value_length": kept[f"{arch}.attention.value_length_mla"]}
    dropped = ("_mla", "expert_group_count", "expert_group_used_count", "expert_gating_func")
    writer = gguf.GGUFWriter(path, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name.endswith(dropped):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else NONE
        writer.add_key_value(field.name, replaced.get(field.name, kept[field.name]), kind, inner)
    for tensor in reader.tensors:
        if "attn_k_b" not in tensor.name and "attn_v_b" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data.copy())
    for part in sorted((ROOT / "fixtures" / folder).glob("*.safetensors")):
        for name, w in load_file(part).items():
            if name.endswith("kv_b_proj.weight"):
                writer.add_tensor(f"blk.{name.split('.')[2]}.attn_kv_b.weight", w.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tree = Path(sys.argv[1])
    sys.path[:0] = [str(tree / "gguf-py"), str(tree)]
    logging.disable(logging.INFO)
    import conversion
    import gguf

    only = sys.argv[2:]
    twins = json.loads((OUT / "twins.json").read_text())
    folders()
    packed = OUT / "packed"
    mxfp4_folders(packed, OUT / "gpt_oss-mxfp4")
    for t in TWINS:
        if only and t["name"] not in only:
            continue
        file = f"{t.pop('name')}.gguf"
        source = t.pop("source", t["folder"])
        convert(conversion, gguf, path=OUT / file, **(t | {"folder": source}))
        twins = [twin for twin in twins if twin["file"] != file]
        twins.append({"file": file, "folder": t["folder"], "set": t["changes"], "by": "llama.cpp's converter"})
    lite = next(twin for twin in twins if twin["file"] == "deepseek_v2-lite.gguf")
    older(gguf, OUT / lite["file"], lite["folder"], OUT / "deepseek_v2-older.gguf")
    twins = [twin for twin in twins if twin["file"] != "deepseek_v2-older.gguf"]
    twins.append({**lite, "file": "deepseek_v2-older.gguf", "by": "scripts/make_gguf_converted.py, from the converter's"})
    shutil.rmtree(packed)
    (OUT / "twins.json").write_text(json.dumps(twins, indent=1) + "\n")


if __name__ == "__main__":
    main()
