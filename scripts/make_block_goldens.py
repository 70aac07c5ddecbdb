"""Writes oracles/ggml/blocks.safetensors: bytes of every tensor type of GGML and the float32 values that they stand for.

    python scripts/make_block_goldens.py

The values are those of gguf-py's `dequantize`. It has none for F64, the integers, Q8_1, Q8_K and Q1_0: theirs are
evaluated here from ggml's structs and formulas (`formula`).

For each type the file holds `TYPE.bytes` (U8 [rows, row bytes]) and `TYPE.values` (F32 [rows, columns]): rows of random
bytes with ordinary scales, one of encoded random floats where gguf-py can encode them, and rows whose scales are
subnormal, zero, negative, huge, infinite and not a number. The metadata holds, for each type, the SHA-256 of the values
(every NaN as 0x7fc00000) of SAMPLE blocks of random bytes, enough to meet every entry of every grid.
"""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

OUT = Path(__file__).resolve().parent.parent / "oracles/ggml/blocks.safetensors"
SAMPLE = 4096
PER_ROW = {1: 96, 32: 4, 64: 2, 128: 2, 256: 2}

# ggml's block_q8_1 has two float16, as it has had since 2023; gguf-py has two float32.
SIZES = {t.name: GGML_QUANT_SIZES[t] for t in GGMLQuantizationType} | {"Q8_1": (32, 36)}

# Where the float16 scales of a block lie; other kinds of scales are set in `scaled`.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ3_XXS": [0],
    "IQ1_S": [0], "IQ4_NL": [0], "IQ3_S": [0], "IQ2_S": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "Q1_0": [0],
}  # fmt: skip
EXTREMES = [0x0001, 0x8001, 0x83FF, 0x0000, 0x8000, 0xFBFF, 0x7BFF, 0x7C00, 0xFC00, 0x7E01]


def noise(seed: int, n: int) -> np.ndarray:
    """`n` bytes of SplitMix64, started at `seed`, eight of each number, the lowest first."""
    z = (np.uint64(seed) + np.arange(1, -(-n // 8) + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return z.astype("<u8").view(np.uint8)[:n]


def formula(name: str, blocks: np.ndarray) -> np.ndarray:
    """What gguf-py does not decode: `blocks` is [n, block bytes], the result [n, elements]."""
    if name == "F64":
        return blocks.view("<f8").astype(np.float32)
    if name.startswith("I") and name[1:].isdigit():
        return blocks.view(f"<i{int(name[1:]) // 8}").astype(np.float32)
    if name == "Q8_1":
        return blocks[:, 0:2].view("<f2").astype(np.float32) * blocks[:, 4:].view(np.int8).astype(np.float32)
    if name == "Q8_K":
        return blocks[:, 0:4].view("<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)
    if name == "Q1_0":
        d = blocks[:, 0:2].view("<f2").astype(np.float32)
        return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") == 1, d, -d)
    raise KeyError(name)


def decoded(name: str, rows: np.ndarray) -> np.ndarray:
    """`rows` is [rows, row bytes], the result [rows, columns]."""
    elements, size = SIZES[name]
    blocks = np.ascontiguousarray(rows).reshape(-1, size)
    with np.errstate(all="ignore"):
        try:
            values = quants.dequantize(blocks, GGMLQuantizationType[name])
        except NotImplementedError:
            values = formula(name, blocks.copy())
    assert values.dtype == np.float32 and values.size == len(blocks) * elements
    return values.reshape(len(rows), -1)


def scaled(name: str, blocks: np.ndarray, halves: list[int]) -> np.ndarray:
    """Gives each block one of the scales `halves`, in turn, and another one where it has a second."""
    blocks = blocks.copy()
    for i, block in enumerate(blocks):
        for k, at in enumerate(HALVES.get(name, [])):
            block[at : at + 2] = np.frombuffer(struct.pack("<H", halves[(i + 3 * k) % len(halves)]), np.uint8)
        d = halves[i % len(halves)]
        if name == "IQ1_M":
            for k in range(4):
                block[49 + 2 * k] = block[49 + 2 * k] & 15 | (d >> (4 * k) & 15) << 4
        elif name == "Q8_K":
            block[0:4] = np.array([d], np.uint16).view(np.float16).astype("<f4").view(np.uint8)
            if d == 0x8001:
                block[0:4] = np.array([0x80000001], "<u4").view(np.uint8)
        elif name == "MXFP4":
            block[0] = [0, 1, 2, 255, 254, 130][i % 6] if halves is EXTREMES else 115 + d % 16
        elif name == "NVFP4":
            block[0:4] = [0, 0x7F, 0x80, 0xFF][i % 4 :] + [1, 7, 8, 0x7E][: i % 4] if halves is EXTREMES else d % 0x60
    return blocks


def made(name: str, seed: int) -> np.ndarray:
    """Rows of stored bytes."""
    elements, size = SIZES[name]
    per_row = PER_ROW[elements]
    dtype = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}.get(name)
    if elements == 1:
        rows = noise(seed, 4 * per_row * size).reshape(4, -1).copy()
        if dtype:
            ordinary = noise(seed + 1, 8 * per_row).view(np.int64) / 2.0**62
            specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 65519.0, 2.0**-150, 1e39, -7.0, 1 / 3])
            with np.errstate(over="ignore"):
                rows[0] = ordinary.astype(dtype).view(np.uint8)
                rows[1] = np.resize(specials, per_row).astype(dtype).view(np.uint8)
        return rows
    random = lambda k, n: noise(seed + k, n * per_row * size).reshape(-1, size)
    ordinary = [0x1C00 + 37 * seed % 0x1000, 0xA000 + 41 * seed % 0x1000, 0x2A17, 0x9FFF]
    blocks = [scaled(name, random(0, 2), ordinary)]
    floats = noise(seed + 1, 4 * per_row * elements).view(np.int32) / np.float32(2**31)
    try:
        with np.errstate(all="ignore"):
            blocks.append(quants.quantize(floats.astype(np.float32), GGMLQuantizationType[name]).reshape(-1, size))
    except NotImplementedError:
        pass
    rows = -(-len(EXTREMES) // per_row)
    blocks.append(scaled(name, random(2, rows), EXTREMES))
    return np.concatenate(blocks).reshape(-1, per_row * size)


def main():
    tensors, metadata = {}, {}
    for kind in GGMLQuantizationType:
        name, seed = kind.name, 1000 * (1 + kind.value)
        elements, size = SIZES[name]
        rows = made(name, seed)
        tensors[f"{name}.bytes"], tensors[f"{name}.values"] = rows, decoded(name, rows)
        sample = decoded(name, noise(seed + 500, SAMPLE * size).reshape(SAMPLE, size))
        bits = np.where(np.isnan(sample), np.uint32(0x7FC00000), sample.view(np.uint32))
        metadata[name] = hashlib.sha256(bits.astype("<u4").tobytes()).hexdigest()
    header, data = {"__metadata__": metadata}, b""
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        stored = np.ascontiguousarray(array).tobytes()
        dtype = {1: "U8", 4: "F32"}[array.dtype.itemsize]
        offsets = [len(data), len(data) + len(stored)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += stored
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    OUT.write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"{OUT}: {OUT.stat().st_size} bytes, {len(metadata)} types")


if __name__ == "__main__":
    main()
