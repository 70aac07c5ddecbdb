"""Make the tiny checkpoints under fixtures/.

Every fixture is a row in one of the modules of rows/, in the form that rows/common.py describes: its config.json, how the
tensors are stored, and the prompts to capture. The weights are random but fixed: their seed is the fixture's and the tensor's
name, so a second run gives the same bytes.

Example:
    python scripts/make_fixtures.py                     # all of them, and fixtures/README.md
    python scripts/make_fixtures.py llama-plain         # one
    python scripts/make_fixtures.py --out /tmp/fixtures # elsewhere
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

import truth
from rows import FIXTURES
from rows.common import DTYPES, rng_for, text_config

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 120_000  # bytes of a folder beyond which a row is worth making smaller


def merge(saved: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """What transformers saved with the row's keys over it, down into nested configs; the older spellings drive out the newer."""
    result = dict(saved)
    if "rope_theta" in written or "rope_scaling" in written:
        result.pop("rope_parameters", None)
    if "torch_dtype" in written:
        result.pop("dtype", None)
    for key, value in written.items():
        nested = key.endswith("_config") and isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if nested else value
    return dict(sorted(result.items()))


def final_config(row: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """config.json as it will stand on disk."""
    if row.get("exact"):
        return row["config"]
    config = merge(saved, row["config"])
    for path in row.get("drop", []):
        *outer, key = path.split(".")
        holder = config
        for name in outer:
            holder = holder[name]
        holder.pop(key, None)
    return config


def parts(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.Tensor]]:
    """Name, owner and value of everything that gets random values: parameters, and the buffers of fractions that are stored."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        yield name, modules[name.rpartition(".")[0]], parameter
    for name, buffer in model.named_buffers():
        owner, _, own = name.rpartition(".")
        if buffer.is_floating_point() and own not in modules[owner]._non_persistent_buffers_set:
            yield name, modules[owner], buffer


def random_values(row: dict[str, Any], name: str, owner: torch.nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """Values that a fault cannot hide behind."""
    noise = rng_for(row["name"], name).standard_normal(shape)
    if name.endswith("bias"):
        return 0.3 * noise
    if "norm" in name or "Norm" in type(owner).__name__:
        zero = row.get("norm_zero", False)
        return (0.0 if (zero(name) if callable(zero) else zero) else 1.0) + 0.2 * noise
    if isinstance(owner, torch.nn.Embedding):
        return row.get("embed", 1.0) * noise
    if len(shape) < 2:
        return 0.3 * noise
    transposed = isinstance(owner, Conv1D) or name.endswith(tuple(row.get("transposed", ())))
    return noise / np.sqrt(shape[-2] if transposed else np.prod(shape[1:]) if "conv" in name else shape[-1])


@torch.no_grad()
def randomise(model: torch.nn.Module, row: dict[str, Any]) -> None:
    """Give every parameter its values, then the dtype that it is stored in."""
    for name, owner, tensor in parts(model):
        tensor.data = torch.from_numpy(np.asarray(random_values(row, name, owner, tuple(tensor.shape)))).to(torch.float32)
    if "prepare" in row:
        row["prepare"](model, partial(rng_for, row["name"]))
    cycle = [torch.float32, torch.bfloat16, torch.float16]
    for number, (name, _, tensor) in enumerate(parts(model)):
        dtype = cycle[number % 3] if row["store"] == "mix" else DTYPES[row["store"]]
        tensor.data = tensor.data.to(torch.float32 if name.endswith(tuple(row.get("keep_f32", ()))) else dtype)


def prompts_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The row's prompts with their tokens in random order: none comes twice before every other token came once."""
    vocab = text_config(row["config"])["vocab_size"]
    result = []
    for entry in row["prompts"]:
        again = [f"draw {entry['draw']}"] if entry.get("draw") else []
        rng, tokens = rng_for(row["name"], "prompt", entry["id"], *again), []
        while len(tokens) < entry["count"]:
            tokens += [token for token in rng.permutation(vocab).tolist() if token not in row.get("avoid", ())]
        result.append({"id": entry["id"], "tokens": tokens[: entry["count"]], "positions": entry["positions"]})
    return result


def verify(row: dict[str, Any], folder: Path, model: torch.nn.Module) -> None:
    """The folder as written must load as the same config and the same values."""
    loaded = truth.load(folder)
    ignored = {"transformers_version", "_name_or_path", "dtype", "architectures", "quantization_config"}

    def facts(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: facts(part) for key, part in value.items() if key not in ignored}
        return value

    before, after = facts(model.config.to_dict()), facts(loaded.config.to_dict())
    different = {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)}
    if different:
        raise SystemExit(f"{row['name']}: config.json loads as another config: {different}")
    wanted, found = model.state_dict(), loaded.state_dict()
    wrong = [name for name in wanted | found if name not in wanted or name not in found or not torch.equal(wanted[name].float(), found[name].float())]
    if wrong and row.get("verify", True):
        raise SystemExit(f"{row['name']}: these tensors load with other values: {wrong}")


def make(row: dict[str, Any], out: Path) -> None:
    """Make one fixture: its folder and its prompts."""
    folder = out / row["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "config.json").write_text(json.dumps(row["config"]))
        config = AutoConfig.from_pretrained(scratch)
    model = truth.model_class(config)._from_config(config, dtype=torch.float32, **truth.IMPLEMENTATIONS)
    randomise(model, row)
    model.save_pretrained(folder, max_shard_size=row.get("shard") or "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(final_config(row, saved), indent=2) + "\n")
    if "finish" in row:
        row["finish"](folder, model)
    verify(row, folder, model)
    shards = len(list(folder.glob("*.safetensors")))
    if row.get("shard") and shards < 3:
        raise SystemExit(f"{row['name']}: {shards} shards; the row promises at least 3")
    lines = ",\n".join("    " + json.dumps(entry) for entry in prompts_of(row))
    (out / f"{row['name']}.prompts.json").write_text('{\n  "prompts": [\n' + lines + "\n  ]\n}\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{row['name']}: {size} bytes, {shards} file(s)" + (" (large)" if size > LARGEST else ""), flush=True)


def sizes_of(config: dict[str, Any]) -> str:
    """Layers, hidden size, intermediate size, heads, KV heads and vocabulary, each under the first name that the file uses."""
    names = [
        ("num_hidden_layers", "n_layer", "num_layers"), ("hidden_size", "n_embd"), ("intermediate_size", "n_inner", "ffn_hidden_size"),
        ("num_attention_heads", "n_head"), ("num_key_value_heads", "num_kv_heads"), ("vocab_size",),
    ]
    text = text_config(config)
    found = [next((text[name] for name in group if text.get(name) is not None), "-") for group in names]
    return ", ".join(map(str, found))


def write_readme(out: Path) -> None:
    """fixtures/README.md: the table of what exists."""
    lines = [
        "# Fixtures", "",
        "Tiny checkpoints with random weights, one folder each, and the prompts captured for each in `NAME.prompts.json`.",
        "Made by `python scripts/make_fixtures.py`; the expected logits are in `oracles/`.",
        "Norms lie around 1 (around 0 where the family adds one) with spread 0.2, biases are not zero, weights are N(0, 1/fan_in), "
        "embeddings N(0, 1) unless a row of `scripts/rows/` says otherwise.",
        "", "`gguf/` holds the same models as GGUF files (`scripts/make_gguf_fixtures.py`), `quant/` folders with quantised weights "
        "(`scripts/make_quant_int_fixtures.py`, `scripts/make_quant_fp_fixtures.py`; the values are in `oracles/quant/`), `tokenizers/` "
        "vocabularies (`scripts/capture_tokenizers.py`).",
        "", "| fixture | pack | layers, hidden, intermediate, heads, KV heads, vocabulary | exercises |", "|---|---|---|---|",
    ]
    for row in FIXTURES:
        if (out / row["name"]).is_dir():
            lines.append(f"| {row['name']} | {row['pack']} | {sizes_of(row['config'])} | {row['says']} |")
    fresh = out / f"README.{os.getpid()}"
    fresh.write_text("\n".join(lines) + "\n")
    fresh.replace(out / "README.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fixtures to make (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "fixtures", help="folder to write into (default: fixtures/)")
    args = parser.parse_args()
    known = {row["name"] for row in FIXTURES}
    unknown = set(args.names) - known
    if unknown:
        parser.error(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for row in FIXTURES:
        if not args.names or row["name"] in args.names:
            make(row, args.out)
    write_readme(args.out)


if __name__ == "__main__":
    main()
