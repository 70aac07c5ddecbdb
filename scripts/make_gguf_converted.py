"""GGUF twins of fixtures, written by llama.cpp's own converter.

`python scripts/make_gguf_converted.py LLAMA_CPP`, with the source tree of llama.cpp that is in llama-cpp-python 0.3.36
(`pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36`; vendor/llama.cpp). The converter is as it is but for
the vocabulary, which a fixture doesn't have: a token for each row of the embedding. Adds to fixtures/gguf/ and its
twins.json what scripts/make_gguf_fixtures.py doesn't write; that one comes first.
"""

import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "fixtures" / "gguf"
NONE = None

# Name of the file, folder, what the config says differently on both sides: the architecture can't say something else.
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
TWINS = [
    ("deepseek_v2-lite", "deepseek_v2-lite", {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    ("deepseek_v2-groups", "deepseek_v2-groups", {}),
    ("deepseek_v3-mtp", "deepseek_v3-mtp", {}),
    ("gpt_oss-yarn", "gpt_oss-yarn", {}),
]


def vocabulary(model):
    """What a tokenizer would give."""
    rows = model.hparams["vocab_size"]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_token_list([f"<{i}>" for i in range(rows)])
    model.gguf_writer.add_token_types([1] * rows)
    model.gguf_writer.add_bos_token_id(1)


def convert(conversion, gguf, folder, changes, path, ftype="ALL_F32"):
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / path.stem
        shutil.copytree(ROOT / "fixtures" / folder, source)
        config = json.loads((source / "config.json").read_text())
        config.update(changes)
        (source / "config.json").write_text(json.dumps(config))
        # Gemma's converter counts its entries.
        rows = config.get("text_config", config)["vocab_size"]
        vocab = {f"<{i}>": i for i in range(rows)}
        (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        hparams = conversion.ModelBase.load_hparams(source, False)
        architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
        kind = conversion.get_model_class(architecture)
        changed = type(kind.__name__, (kind,), {"model_arch": kind.model_arch, "set_vocab": vocabulary})
        model = changed(source, gguf.LlamaFileType[ftype], path, eager=True, model_name=path.stem)
        model.write()


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
    for name, folder, changes, *ftype in TWINS:
        if only and name not in only:
            continue
        convert(conversion, gguf, folder, changes, OUT / f"{name}.gguf", *ftype)
        twins = [twin for twin in twins if twin["file"] != f"{name}.gguf"]
        twins.append({"file": f"{name}.gguf", "folder": folder, "set": changes, "by": "llama.cpp's converter"})
    (OUT / "twins.json").write_text(json.dumps(twins, indent=1) + "\n")


if __name__ == "__main__":
    main()
