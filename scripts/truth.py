"""What transformers says about a checkpoint: its float32 logits, and the float64 truth of the same weights.

The modelling code casts to float32 by name (norms, softmax, RoPE). `everything_is_float64` makes those names mean float64, so
that nothing in the forward pass, RoPE frequencies included, is rounded to float32.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

CLASS_F32 = "source-weights-float32-accumulation"
CLASS_F64 = "source-weights-float64-accumulation"

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning)


@contextlib.contextmanager
def everything_is_float64() -> Iterator[None]:
    """Within this block every way to say float32 says float64: the dtype's two names, Tensor.float, and the default dtype."""
    saved = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved[:3]
        torch.set_default_dtype(saved[3])


def load(folder: Path) -> torch.nn.Module:
    """The model with every weight in float32 (exact for F32, F16 and BF16), eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def forward(model: torch.nn.Module, tokens: list[int], positions: list[int] | None) -> np.ndarray:
    """Logits of all positions, [tokens, vocab]. The mask of ones keeps jumps in the positions from starting a new sequence."""
    arguments = {}
    if positions is not None:
        arguments = {"position_ids": torch.tensor([positions]), "attention_mask": torch.ones((1, len(tokens)), dtype=torch.int64)}
    return model(input_ids=torch.tensor([tokens]), use_cache=False, **arguments).logits[0].numpy()


def logits_f32(folder: Path, tokens: list[int], positions: list[int] | None) -> np.ndarray:
    """transformers' float32 logits, from a fresh model: dynamic RoPE remembers earlier prompts."""
    result = forward(load(folder), tokens, positions)
    assert result.dtype == np.float32
    return result


def logits_f64(folder: Path, tokens: list[int], positions: list[int] | None) -> np.ndarray:
    """The float64 truth, from a fresh model whose RoPE tables are made again in float64."""
    model = load(folder).double()
    with everything_is_float64():
        base = model.model
        base.rotary_emb = type(base.rotary_emb)(base.config)
        result = forward(model, tokens, positions)
    assert result.dtype == np.float64
    return result


def distance(f32: np.ndarray, f64: np.ndarray) -> dict[str, float]:
    """How far float32 logits are from the truth."""
    difference = f32.astype(np.float64) - f64
    return {"max_abs": float(np.abs(difference).max()), "rms": float(np.sqrt(np.mean(difference**2)))}


def versions() -> dict[str, str]:
    """What produced the logits."""
    return {
        "python": platform.python_version(), "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__, "numpy": np.__version__,
    }


def write_tsv(path: Path, tokens: list[int], positions: list[int] | None, row: np.ndarray) -> None:
    """One row of logits as a memra-checkpoint-oracle-v1 file; the row's dtype decides the class."""
    wide = row.dtype == np.float64
    lines = [
        "format\tmemra-checkpoint-oracle-v1", "engine\ttransformers-eager",
        f"numeric_class\t{CLASS_F64 if wide else CLASS_F32}",
        "tokens\t" + ",".join(map(str, tokens)), f"vocab\t{len(row)}",
    ]
    if positions is not None and positions != list(range(len(tokens))):
        lines.append("positions\t" + ",".join(map(str, positions)))
    lines.append(f"producer\ttransformers {transformers.__version__}")
    code = ">d" if wide else ">f"
    lines += [f"logit\t{index}\t{struct.pack(code, value).hex()}" for index, value in enumerate(row.tolist())]
    path.write_bytes(("\n".join(lines) + "\n").encode())


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
