"""What the rows share: the form of a row, prompts, seeded randomness, reading and writing safetensors.

A row is a dictionary:

| key | meaning |
|---|---|
| name, pack | the fixture's name, the pack that serves it |
| config | config.json as it will stand on disk; keys that `save_pretrained` writes beside these are added |
| exact | true: config.json holds the row's keys and nothing else |
| drop | keys that `save_pretrained` would add and the file must lack (`text_config.layer_types` for nested ones); with `rope_theta` or `rope_scaling` in a config `rope_parameters` goes, with `torch_dtype` its newer name `dtype` |
| store | F32, F16, BF16, or mix (the three in turn) |
| keep_f32 | endings of tensor names that stay F32 whatever `store` says |
| shard | largest shard, like "12KB" |
| embed | spread of the embeddings (1.0) |
| norm_zero | true: norm weights lie around 0, because the family adds one; or a function of the name that says so |
| transposed | endings of the names of tensors whose inputs are the last dimension but one |
| prepare | function (model, rng_for) that changes parameters after the usual random values; rng_for(name, ...) gives a generator of the fixture's own |
| finish | function (folder, model) that rewrites what was saved |
| rebuild | function (model) that makes again, in float64, what transformers made in float32 and truth.py does not know of |
| verify | false: the stored tensors are not those of the model (packed weights); otherwise they are compared after loading |
| avoid | token ids that no prompt may have |
| says | what is exercised, in one sentence |
| prompts | list of `prompt(...)` |
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Positions that a packed cache may hold: small gaps, large gaps, neighbours.
SPARSE = [0, 3, 9, 500, 501, 4200, 6000]
FAR = [0, 9, 5000, 60000]

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CODES = {
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int8: "I8",
    torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.uint32: "U32",
}


def prompt(ident: str, count: int, positions: list[int] | None = None, draw: int = 0) -> dict[str, Any]:
    """A prompt of `count` tokens, distinct as far as the vocabulary goes, drawn when the fixture's vocabulary is known; another
    `draw` gives other tokens, for when capture_oracles.py finds a choice of experts too close."""
    return {"id": ident, "count": count, "positions": positions, "draw": draw}


def rng_for(*names: str) -> np.random.Generator:
    """A generator seeded by names alone."""
    return np.random.Generator(np.random.PCG64(zlib.crc32("/".join(names).encode())))


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the text model."""
    return config.get("text_config") or config


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The little-endian bytes of a tensor."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_safetensors(path: Path, tensors: list[tuple[str, torch.Tensor]], metadata: dict[str, str] | None) -> None:
    """A safetensors file with the tensors in the order given, which the usual writer would sort."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    offset, chunks = 0, []
    for name, tensor in tensors:
        data = raw_bytes(tensor)
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file in their stored dtypes."""
    names = {code: dtype for dtype, code in CODES.items()}
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    result = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            flat = torch.frombuffer(bytearray(raw[begin:end]), dtype=torch.uint8)
            result[name] = flat.view(names[entry["dtype"]]).reshape(entry["shape"])
    return result


def edit_tensors(folder: Path, change: Any) -> None:
    """Rewrite a one-file checkpoint: `change` gets the dictionary of its tensors and returns the new one."""
    path = folder / "model.safetensors"
    tensors = change(read_safetensors(path))
    write_safetensors(path, sorted(tensors.items()), {"format": "pt"})
