"""Measure a cold run of a checkpoint that is much larger than the run's memory: time against reading and computing, peak memory.

Makes a random bf16 checkpoint with the shape of Llama-3.1-8B (16 GB in 4 shards), measures, and deletes it. In each round:

  read     page cache dropped; plain reads of 4 MiB, in order, of all that a run needs (every file but the embedding's bytes,
           of which a run reads one row per token)
  cold     page cache dropped; the run
  compute  the same run once more, at once, with the files in the page cache as far as they fit

Cold and compute are measured for every token count. The ratio is cold / max(read, compute), of the medians. "From disk" says what
a process really read from the disk: a cold run that did not is an error, since the page cache was not dropped; a warm run that
did had too little memory for the page cache, and its time is more than computing.

The page cache is dropped for the whole system where that is permitted (root, Linux), else for the checkpoint's files alone.

Examples:
    python scripts/bench_streaming.py --dir /data/streaming
    python scripts/bench_streaming.py --dir /data/streaming --keep --tokens 64 --runs 5
    python scripts/bench_streaming.py --layers 2 --runs 1 --drop files
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import measure

MOST_SHARDS = 4
EMBEDDING = "model.embed_tokens.weight"
READ_BYTES = 4 << 20
LENGTH_BYTES = 8
"""A safetensors file starts with the length of its header."""
NOISE_ELEMENTS = 8_388_593
"""A prime, so that no two rows of a matrix are the same piece of the noise."""


def config(layers: int) -> dict:
    """The config of Llama-3.1-8B, with so many layers."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": 4096, "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "use_cache": True, "pretraining_tp": 1,
        "bos_token_id": 128000, "eos_token_id": 128001,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }


def shard_names(layers: int) -> list[str]:
    """The files' names, as large checkpoints have them; no shard is without a layer."""
    count = min(MOST_SHARDS, layers)
    return [f"model-{shard + 1:05}-of-{count:05}.safetensors" for shard in range(count)]


def shapes(settings: dict) -> list[list[tuple[str, list[int]]]]:
    """The tensors of each shard. Layers are shared out in order; within a file tensors are sorted by name, as in most checkpoints."""
    hidden, mlp, vocab = settings["hidden_size"], settings["intermediate_size"], settings["vocab_size"]
    q, kv = settings["num_attention_heads"] * settings["head_dim"], settings["num_key_value_heads"] * settings["head_dim"]
    layers = settings["num_hidden_layers"]
    shards: list[list[tuple[str, list[int]]]] = [[] for _ in shard_names(layers)]
    shards[0].append((EMBEDDING, [vocab, hidden]))
    shards[-1] += [("lm_head.weight", [vocab, hidden]), ("model.norm.weight", [hidden])]
    for layer in range(layers):
        parts = {
            "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
            "self_attn.q_proj": [q, hidden], "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden],
            "self_attn.o_proj": [hidden, q], "mlp.gate_proj": [mlp, hidden], "mlp.up_proj": [mlp, hidden], "mlp.down_proj": [hidden, mlp],
        }
        shards[layer * len(shards) // layers] += [(f"model.layers.{layer}.{part}.weight", shape) for part, shape in parts.items()]
    return [sorted(shard) for shard in shards]


def size(shape: list[int]) -> int:
    """Bytes of a bf16 tensor."""
    return 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)


def make(folder: Path, layers: int) -> None:
    """Write the checkpoint; config.json comes last and says that all is there.

    Weights are N(0, 1/fan_in), norms near one. A matrix is a long stretch of one block of noise, over and over, starting at another
    place for every tensor: writing is then as fast as the disk.
    """
    import numpy as np

    random = np.random.default_rng(8)

    def bf16(values: np.ndarray) -> memoryview:
        """Rounded to bf16 (ties away from zero, which is good enough for noise), as bytes."""
        return memoryview(((values.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes())

    settings = config(layers)
    blocks: dict[int, memoryview] = {}
    weight_map, total = {}, 0
    for shard, tensors in zip(shard_names(layers), shapes(settings)):
        header, offset = {}, 0
        for name, shape in tensors:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size(shape)]}
            offset += size(shape)
            weight_map[name] = shard
        total += offset
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / shard).open("wb", buffering=0) as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, shape in tensors:
                if len(shape) == 1:
                    file.write(bf16(random.uniform(0.9, 1.1, shape[0])))
                    continue
                fan_in = shape[1]
                if fan_in not in blocks:
                    blocks[fan_in] = bf16(random.standard_normal(NOISE_ELEMENTS, dtype=np.float32) * fan_in**-0.5)
                block, left = blocks[fan_in], size(shape)
                start = 2 * int(random.integers(NOISE_ELEMENTS))
                while left > 0:
                    written = file.write(block[start : start + left])
                    start, left = (start + written) % len(block), left - written
            os.fsync(file.fileno())
        measure.say(f"{shard}: {offset / 1e9:.2f} GB")
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")


def complete(folder: Path, layers: int) -> bool:
    """Whether the folder holds the checkpoint already, from an earlier run with --keep."""
    path = folder / "config.json"
    return path.is_file() and json.loads(path.read_text()) == config(layers)


def prepare(folder: Path, layers: int) -> None:
    """Make the checkpoint unless it is there, in a process of its own: its memory must not count as ours."""
    if complete(folder, layers):
        measure.say(f"{folder}: already complete")
        return
    if any(folder.iterdir()):
        raise SystemExit(f"{folder}: not empty, and not the checkpoint of {layers} layers; choose another --dir")
    needed = sum(size(shape) for shard in shapes(config(layers)) for _, shape in shard)
    free = shutil.disk_usage(folder).free
    if free < needed + (1 << 30):
        raise SystemExit(f"{folder}: {needed / 1e9:.1f} GB needed and 1 GB to spare, {free / 1e9:.1f} GB free; choose another --dir")
    started = time.perf_counter()
    process = multiprocessing.get_context("spawn").Process(target=make, args=(folder, layers))
    process.start()
    try:
        process.join()
    finally:
        process.kill()
        process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{folder}: the checkpoint was not made")
    measure.say(f"{folder}: {needed / 1e9:.2f} GB written in {time.perf_counter() - started:.0f} s")


def remove(folder: Path, layers: int) -> None:
    """Delete what `make` wrote, and the folder if nothing else is in it."""
    for name in ("config.json", "model.safetensors.index.json", *shard_names(layers)):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def needed_ranges(path: Path) -> list[range]:
    """The bytes of a file that a run reads: all but the embedding's."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(LENGTH_BYTES))
        header = json.loads(file.read(length))
    end = path.stat().st_size
    if EMBEDDING not in header:
        return [range(end)]
    first, last = (LENGTH_BYTES + length + offset for offset in header[EMBEDDING]["data_offsets"])
    return [range(first), range(last, end)]


def read_plainly(needed: dict[Path, list[range]]) -> float:
    """Seconds of reading the files in order, in large pieces, into one buffer."""
    buffer = memoryview(bytearray(READ_BYTES))
    started = time.perf_counter()
    for path, ranges in needed.items():
        with path.open("rb", buffering=0) as file:
            for part in ranges:
                at = part.start
                while at < part.stop:
                    count = os.preadv(file.fileno(), [buffer[: part.stop - at]], at)
                    if count == 0:
                        raise SystemExit(f"{path}: ended early")
                    at += count
    return time.perf_counter() - started


def bench(args: argparse.Namespace, folder: Path, scratch: Path) -> dict:
    """All rounds."""
    files = [folder / name for name in shard_names(args.layers)]
    needed = {path: needed_ranges(path) for path in files}
    total = sum(len(part) for ranges in needed.values() for part in ranges)
    reads: list[float] = []
    runs: dict[int, dict[str, list[measure.Usage]]] = {count: {"cold": [], "warm": []} for count in args.tokens}
    commands = {}
    for count in args.tokens:
        token_file = scratch / f"{count}.txt"
        token_file.write_text(" ".join(map(str, measure.tokens(count, config(args.layers)["vocab_size"]))) + "\n")
        commands[count] = [args.oracle, "run", folder, "--tokens-file", token_file, "-o", scratch / "out.tsv", "--quiet"]
    for one in range(1, args.runs + 1):
        method = measure.drop_page_cache(files, args.drop)
        seconds = read_plainly(needed)
        reads.append(seconds)
        measure.say(f"round {one} of {args.runs}: read {seconds:.2f} s, {total / seconds / 1e9:.2f} GB/s")
        for count, command in commands.items():
            measure.drop_page_cache(files, args.drop)
            cold = measure.run(command)
            if cold.disk_bytes < 0.95 * total:
                raise SystemExit(
                    f"a cold run read {cold.disk_bytes / 1e9:.2f} GB of {total / 1e9:.2f} GB from the disk: the page cache was not "
                    f"dropped (method: {method}), or {folder} is not on a disk"
                )
            warm = measure.run(command)
            runs[count]["cold"].append(cold)
            runs[count]["warm"].append(warm)
            measure.say(f"round {one} of {args.runs}: {count} tokens: cold {cold.seconds:.2f} s, compute {warm.seconds:.2f} s")
    results = []
    for count, kinds in runs.items():
        cold, warm = ([usage.seconds for usage in kinds[kind]] for kind in ("cold", "warm"))
        results.append({
            "tokens": count, "cold_seconds": cold, "compute_seconds": warm,
            "ratio": statistics.median(cold) / max(statistics.median(reads), statistics.median(warm)),
            "peak_bytes": max(usage.peak_bytes for usage in kinds["cold"] + kinds["warm"]),
            "cold_disk_bytes": min(usage.disk_bytes for usage in kinds["cold"]),
            "compute_disk_bytes": max(usage.disk_bytes for usage in kinds["warm"]),
        })
    return {
        "machine": measure.machine(), "layers": args.layers, "dropped": method, "bytes_to_read": total, "read_seconds": reads,
        "results": results,
    }


def report(document: dict, runs: int) -> str:
    """The Markdown text."""
    read = measure.spread(document["read_seconds"])
    rate = document["bytes_to_read"] / statistics.median(document["read_seconds"]) / 1e9
    rows = [
        [
            str(one["tokens"]), read, measure.spread(one["compute_seconds"]), measure.spread(one["cold_seconds"]), f"{one['ratio']:.2f}",
            measure.megabytes(one["peak_bytes"]), f"{one['cold_disk_bytes'] / 1e9:.2f}", f"{one['compute_disk_bytes'] / 1e9:.2f}",
        ]
        for one in document["results"]
    ]
    head = ["tokens", "read, s", "compute, s", "cold run, s", "ratio", "peak MB", "cold, GB from disk", "compute, GB from disk"]
    cache = {"system": "of the whole system", "files": "of these files"}[document["dropped"]]
    return "\n".join([
        f"{document['layers']} layers of the 8B shape, {document['bytes_to_read'] / 1e9:.2f} GB to read ({rate:.2f} GB/s), {runs} rounds, median "
        f"(min-max). Page cache dropped: {cache}. {document['machine']}.", "", measure.table(head, rows),
    ])


def stop(*_: object) -> None:
    """End, after deleting the checkpoint; a second signal must not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="folder for the checkpoint, on the disk to measure (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="do not delete the checkpoint; the next run with the same --dir uses it")
    parser.add_argument("--layers", type=int, default=32, help="layers (default: 32; each is 0.44 GB, the rest 2.1 GB)")
    parser.add_argument("--tokens", type=measure.numbers, default=[1, 64], help="token counts (default: 1,64)")
    parser.add_argument("--runs", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--drop", choices=["auto", "system", "files"], default="auto", help="whose page cache to drop (default: auto)")
    parser.add_argument("--oracle", type=Path, default=measure.ORACLE, help="a release build (default: target/release/oracle)")
    parser.add_argument("--json", action="store_true", help="all figures as JSON instead of the Markdown table")
    args = parser.parse_args()
    if args.runs < 1 or args.layers < 1:
        parser.error("--runs and --layers: at least 1")
    if not args.oracle.is_file():
        parser.error(f"{args.oracle}: no such file; cargo build --release makes it")
    measure.warn_if_busy()
    signal.signal(signal.SIGTERM, stop)
    temporary = args.dir is None
    folder = Path(tempfile.mkdtemp(prefix="oracle-streaming-")) if temporary else args.dir
    folder.mkdir(parents=True, exist_ok=True)
    ours = temporary or complete(folder, args.layers) or not any(folder.iterdir())
    try:
        prepare(folder, args.layers)
        with tempfile.TemporaryDirectory(prefix="oracle-streaming-") as scratch:
            document = bench(args, folder, Path(scratch))
    finally:
        if ours and not (args.keep and complete(folder, args.layers)):
            remove(folder, args.layers)
    print(json.dumps(document, indent=2) if args.json else report(document, args.runs))


if __name__ == "__main__":
    main()
