"""Writes src/checkpoint/dtype/tables.rs: the grids of GGML's IQ formats, from gguf-py.

    python scripts/make_block_tables.py

Each entry of a grid is 16 bits: eight codes of two bits, or four of four bits, the first one lowest. gguf-py holds the
same packing in hexadecimal. What a code means is arithmetic that the decoders do; this script checks it, and the signs.
"""

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).resolve().parent.parent / "src/checkpoint/dtype/tables.rs"

# Name, class, elements of an entry, what the decoder makes of a code.
GRIDS = [
    ("IQ2_XXS", quants.IQ2_XXS, 8, lambda c: 8 + 17 * c + (c >> 1)),
    ("IQ2_XS", quants.IQ2_XS, 8, lambda c: 8 + 17 * c + (c >> 1)),
    ("IQ2_S", quants.IQ2_S, 8, lambda c: 8 + 17 * c + (c >> 1)),
    ("IQ3_XXS", quants.IQ3_XXS, 4, lambda c: 4 + 8 * c + 2 * (c == 7)),
    ("IQ3_S", quants.IQ3_S, 4, lambda c: 2 * c + 1),
    ("IQ1", quants.IQ1_S, 8, lambda c: c - 1),
]


def main():
    text = (
        "//! The grids of the IQ formats, as gguf-py has them (`grid_hex` in gguf/quants.py); made by\n"
        "//! scripts/make_block_tables.py. An entry holds eight codes of two bits, or four of four bits, the first one "
        "lowest.\n"
    )
    for name, quant, elements, meaning in GRIDS:
        quant.init_grid()
        assert quant.grid_shape[1] == elements
        packed = np.frombuffer(bytes.fromhex(quant.grid_hex.decode()), dtype="<u2")
        bits = 16 // elements
        codes = (packed[:, None] >> (bits * np.arange(elements))) & ((1 << bits) - 1)
        values = np.vectorize(meaning)(codes.astype(int)).astype(np.float32)
        assert np.array_equal(values, quant.grid.reshape(quant.grid_shape)), name
        text += f"\npub static {name}: [u16; {len(packed)}] = [\n"
        for line in (packed[i : i + 14] for i in range(0, len(packed), 14)):
            text += "    " + " ".join(f"0x{v:04x}," for v in line) + "\n"
        text += "];\n"
    signs = np.frombuffer(quants.IQ2_XXS.ksigns, dtype=np.uint8)
    assert all(s == i | (bin(i).count("1") & 1) << 7 for i, s in enumerate(signs)), "the eighth sign is the parity"
    OUT.write_text(text)


if __name__ == "__main__":
    main()
