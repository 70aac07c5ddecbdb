"""Write what transformers computes for any checkpoint, a folder or a GGUF file, and tokens: float32 logits and the float64 truth, as TSV files.

The float64 model needs 8 bytes of memory per parameter. Standard output gets the top five logits of both.

Example:
    python scripts/capture_real.py models/smollm2-135m 2 818 5279 529 7001 563 --out models/ --name smollm2-135m
    python scripts/capture_real.py models/gemma-3-270m-q4_k_m.gguf 2 818 5279 529 7001 563 --out models/ --name gemma3-270m
    oracle run models/smollm2-135m 2 818 5279 529 7001 563 -o ours.tsv
    oracle diff models/smollm2-135m.f32.tsv ours.tsv --atol 1e-3 --truth models/smollm2-135m.f64.tsv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import truth


def numbers(text: str) -> list[int]:
    """A comma-separated list of integers that are not negative."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 0:
        raise ValueError(text)
    return values


def top(row: np.ndarray, count: int = 5) -> str:
    """The largest logits with their indices; ties go to the lowest index."""
    best = np.argsort(-row, kind="stable")[:count]
    return ", ".join(f"{index} ({row[index]:.4f})" for index in best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and safetensors, or GGUF file")
    parser.add_argument("tokens", type=numbers, nargs="+", help="token ids, as words or comma-separated")
    parser.add_argument("--positions", type=numbers, help="comma-separated positions, one per token (default: 0..n-1)")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for NAME.f32.tsv and NAME.f64.tsv (default: here)")
    parser.add_argument("--name", help="NAME (default: the checkpoint's name)")
    parser.add_argument("--threads", type=int, default=1, help="threads for transformers (default: 1)")
    args = parser.parse_args()
    tokens = [token for group in args.tokens for token in group]
    if args.positions is not None and len(args.positions) != len(tokens):
        parser.error(f"{len(tokens)} tokens, but {len(args.positions)} positions")
    if not args.checkpoint.is_file() and not (args.checkpoint / "config.json").is_file():
        parser.error(f"{args.checkpoint}: no GGUF file, and no config.json there")
    vocab = getattr(truth.config_of(args.checkpoint), "vocab_size", None)
    if vocab is not None and max(tokens) >= vocab:
        parser.error(f"token {max(tokens)} is beyond the vocabulary of {vocab}")
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.name or args.checkpoint.resolve().name.removesuffix(".gguf")
    f32 = truth.logits_f32(args.checkpoint, tokens, args.positions)
    f64 = truth.logits_f64(args.checkpoint, tokens, args.positions)
    for kind, logits in (("f32", f32), ("f64", f64)):
        path = args.out / f"{name}.{kind}.tsv"
        truth.write_tsv(path, tokens, args.positions, logits[-1])
        print(f"{path}: top five {top(logits[-1])}")
    last, all_rows = truth.distance(f32[-1], f64[-1]), truth.distance(f32, f64)
    print(f"transformers' float32 from the truth, last position: max {last['max_abs']:.3e}, RMS {last['rms']:.3e}")
    print(f"transformers' float32 from the truth, all positions: max {all_rows['max_abs']:.3e}, RMS {all_rows['rms']:.3e}")


if __name__ == "__main__":
    main()
