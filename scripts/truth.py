"""What transformers says about a checkpoint: its float32 logits, and the float64 truth of the same weights.

The modelling code casts to float32 by name (norms, softmax, RoPE). `everything_is_float64` makes those names mean float64, and
`rebuild` makes the tables again that the model made in float32 when it was built. Two checks keep the truth from being less:
an operation that makes or takes a narrower number stops the run, and so does a table that nobody made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

CLASS_F32 = "source-weights-float32-accumulation"
CLASS_F64 = "source-weights-float64-accumulation"

IMPLEMENTATIONS = {"attn_implementation": "eager", "experts_implementation": "eager"}
NARROW = (torch.float32, torch.float16, torch.bfloat16)

torch.compiler.set_stance("force_eager")  # BitNet's code compiles its roundings
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


class OnlyWide(TorchDispatchMode):
    """Stops at an operation that takes or gives a float32, float16 or bfloat16 tensor of more than integers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW and not holds_integers(leaf):
                raise SystemExit(f"{func} has a tensor of {leaf.dtype} in the float64 pass: {leaf.flatten()[:4]}")
        return result


@contextlib.contextmanager
def margins() -> Iterator[list[float]]:
    """Collects by how much each choice was made, which float32 and float64 must make alike: of the largest (a router's), and of the
    next integer (a quantiser's; weights are the same in both, only their scale differs, so they may be a hundred times nearer)."""
    found, plain_topk, method_topk, plain_round = [], torch.topk, torch.Tensor.topk, torch.Tensor.round

    def topk(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        if k < scores.shape[-1]:
            with torch.utils._python_dispatch._disable_current_modes():
                best = plain_topk(scores, k + 1, dim=-1).values
                found.append(float((best[..., k - 1] - best[..., k]).min()))
        return plain_topk(scores, k, *args, **kwargs)

    def nearest(values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if values.dtype == torch.float64:
            with torch.utils._python_dispatch._disable_current_modes():
                found.append(float((0.5 - (values - plain_round(values)).abs()).min()) * (1 if values.dim() > 2 else 100))
        return plain_round(values, *args, **kwargs)

    torch.topk = torch.Tensor.topk = topk
    torch.Tensor.round = nearest
    try:
        yield found
    finally:
        torch.topk, torch.Tensor.topk, torch.Tensor.round = plain_topk, method_topk, plain_round


def holds_integers(tensor: torch.Tensor) -> bool:
    """Whether all values are integers or infinite, so that float64 would hold the same."""
    with torch.utils._python_dispatch._disable_current_modes():
        return bool(torch.all(torch.isinf(tensor) | (tensor == tensor.round())))


def model_class(config: Any) -> Any:
    """The class that config.json names, or the causal language model of its model_type."""
    for name in config.architectures or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return AutoModelForCausalLM._model_mapping[type(config)]


def source(checkpoint: Path) -> dict[str, Any]:
    """How from_pretrained is told of a folder, or of a GGUF file."""
    if checkpoint.is_file():
        return {"pretrained_model_name_or_path": checkpoint.parent, "gguf_file": checkpoint.name}
    return {"pretrained_model_name_or_path": checkpoint}


def config_of(checkpoint: Path) -> Any:
    """The configuration; a GGUF file has float32 numbers, which stand for the decimal numbers that they were written from."""
    config = AutoConfig.from_pretrained(**source(checkpoint))
    if checkpoint.is_file():
        for key, value in list(vars(config).items()):
            if isinstance(value, float) and float(np.float32(value)) == value:
                setattr(config, key, float(str(np.float32(value))))
    return config


def load(checkpoint: Path) -> torch.nn.Module:
    """The model with every weight in float32 (exact for F32, F16, BF16 and GGUF's blocks), everything eager; a tensor it lacks is an
    error."""
    config = config_of(checkpoint)
    known = model_class(config)
    model, found = known.from_pretrained(**source(checkpoint), config=config, dtype=torch.float32, output_loading_info=True, **IMPLEMENTATIONS)
    if found["missing_keys"] or found["mismatched_keys"]:
        raise SystemExit(f"{checkpoint.name}: missing {found['missing_keys']}, of another shape {found['mismatched_keys']}")
    return torch.nn.Module.float(model).eval()  # beside packed weights the others are left in their stored dtype


@torch.no_grad()
def forward(model: torch.nn.Module, tokens: list[int], positions: list[int] | None) -> np.ndarray:
    """Logits of all positions, [tokens, vocab]. The mask of ones keeps jumps in the positions from starting a new sequence."""
    if type(model).__name__ == "Llama4ForConditionalGeneration":  # in 5.24 it fails without an image, after its text model is done
        model = model.language_model
    arguments = {}
    if positions is not None:
        arguments = {"position_ids": torch.tensor([positions]), "attention_mask": torch.ones((1, len(tokens)), dtype=torch.int64)}
    return model(input_ids=torch.tensor([tokens]), use_cache=False, **arguments).logits[0].numpy()


def logits_f32(checkpoint: Path, tokens: list[int], positions: list[int] | None) -> np.ndarray:
    """transformers' float32 logits, from a fresh model: dynamic RoPE remembers earlier prompts."""
    result = forward(load(checkpoint), tokens, positions)
    assert result.dtype == np.float32
    return result


def rebuild_tables(model: torch.nn.Module) -> None:
    """Make again in float64 what most families made in float32: RoPE frequencies and embedding scales."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if any(own.endswith("inv_freq") for own, _ in child.named_buffers(recurse=False)) and hasattr(child, "config"):
                setattr(module, name, type(child)(child.config))
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)


def tables(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of fractions that are computed instead of stored."""
    stored = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name not in stored and buffer.is_floating_point()}


def logits_f64(
    checkpoint: Path, tokens: list[int], positions: list[int] | None, rebuild: Callable[[torch.nn.Module], None] | None = None
) -> np.ndarray:
    """The float64 truth, from a fresh model whose tables are made again in float64; `rebuild` makes those of a family's own."""
    model = load(checkpoint).double()
    before = tables(model)
    with everything_is_float64():
        rebuild_tables(model)
        if rebuild is not None:
            rebuild(model)
        for name, table in tables(model).items():
            if before.get(name) is table and not holds_integers(table):
                raise SystemExit(f"{checkpoint.name}: {name} was made in float32 and not made again")
        with OnlyWide():
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
