"""Time `oracle run` against a transformers float32 script, from the start of the process to the finished oracle file.

Same checkpoint, same tokens, same machine, one after the other in turns (A B A B ...), after one discarded run of each, so that
both find the files in the page cache. Both use all processors. The two files of every token count are compared with
`oracle diff`; if they are too far apart, the exit code is 1 and there is no table.

The peer is this file with --peer: load the folder in float32 with transformers' default attention, one forward pass, only the
last position's logits, no cache.

Token i is (7919 i + 1009) mod vocab_size.

Examples:
    python scripts/bench_peers.py
    python scripts/bench_peers.py --tokens 8,64 --runs 9 --model models/smollm2-135m --oracle target/release/oracle
    python scripts/bench_peers.py --json > peers.json
    python scripts/bench_peers.py --peer models/smollm2-135m 2,818,5279,529,7001,563 theirs.tsv
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

STAGES = ("import", "load", "forward", "write")


def peer(folder: str, token_list: str, out: str) -> None:
    """The peer's whole run; prints the seconds of its stages as JSON."""
    times = [time.perf_counter()]
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokens = [int(token) for token in token_list.split(",")]
    times.append(time.perf_counter())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    times.append(time.perf_counter())
    with torch.no_grad():
        row = model(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=1).logits[0, -1]
    times.append(time.perf_counter())
    attention = model.config._attn_implementation
    with open(out, "w", newline="\n") as file:
        file.write("format\tmemra-checkpoint-oracle-v1\n")
        file.write(f"engine\ttransformers-{attention}\n")
        file.write("numeric_class\tsource-weights-float32-accumulation\n")
        file.write(f"tokens\t{','.join(map(str, tokens))}\nvocab\t{len(row)}\n")
        file.write(f"producer\ttransformers {transformers.__version__}, torch {torch.__version__}\n")
        bits = row.numpy().view("uint32").tolist()
        file.write("".join(f"logit\t{index}\t{value:08x}\n" for index, value in enumerate(bits)))
    times.append(time.perf_counter())
    stages = {name: end - start for name, start, end in zip(STAGES, times, times[1:])}
    versions = f"transformers {transformers.__version__} ({attention}), torch {torch.__version__}"
    print(json.dumps({"versions": versions, "stages": stages}))


def agree(oracle: Path, theirs: Path, ours: Path, atol: float) -> float:
    """The largest difference of the two files; ends the script when `oracle diff` does not pass."""
    command = [str(oracle), "diff", str(theirs), str(ours), "--atol", str(atol), "--format", "json"]
    diff = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if diff.returncode != 0:
        reasons = json.loads(diff.stdout)["reasons"] if diff.stdout else []
        said = "; ".join(reason["message"] for reason in reasons)
        raise SystemExit(f"{theirs.name} and {ours.name} do not agree (oracle diff --atol {atol}, exit code {diff.returncode}): {said}")
    return json.loads(diff.stdout)["metrics"]["max_abs"]["value"]


def bench(args: argparse.Namespace, count: int, scratch: Path) -> dict:
    """All runs with so many tokens."""
    vocab = json.loads((args.model / "config.json").read_text())["vocab_size"]
    tokens = measure.tokens(count, vocab)
    listed = ",".join(map(str, tokens))
    token_file = scratch / f"{count}.txt"
    token_file.write_text(listed + "\n")
    ours_file, peer_file = scratch / f"{count}.ours.tsv", scratch / f"{count}.theirs.tsv"
    ours_command = [args.oracle, "run", args.model, "--tokens-file", token_file, "-o", ours_file, "--quiet"]
    peer_command = [args.python, Path(__file__).resolve(), "--peer", args.model, listed, peer_file]
    ours, theirs = [], []
    for run in range(args.runs + 1):
        measure.say(f"{count} tokens, run {run} of {args.runs}" + (" (discarded)" if run == 0 else ""))
        ours.append(measure.run(ours_command))
        theirs.append(measure.run(peer_command, {"HF_HUB_OFFLINE": "1"}))
    max_abs = agree(args.oracle, peer_file, ours_file, args.atol)
    said = [json.loads(usage.stdout) for usage in theirs[1:]]
    return {
        "tokens": count,
        "ours_seconds": [usage.seconds for usage in ours[1:]],
        "peer_seconds": [usage.seconds for usage in theirs[1:]],
        "ours_peak_bytes": max(usage.peak_bytes for usage in ours[1:]),
        "peer_peak_bytes": max(usage.peak_bytes for usage in theirs[1:]),
        "peer_stages": {name: statistics.median(one["stages"][name] for one in said) for name in STAGES},
        "peer_versions": said[0]["versions"],
        "max_abs_difference": max_abs,
    }


def report(args: argparse.Namespace, results: list[dict]) -> str:
    """The Markdown text."""
    head = ["tokens", "oracle, s", "transformers, s", "times faster", "oracle, peak MB", "transformers, peak MB", "memory ratio", "max difference"]
    rows = []
    for one in results:
        ours, theirs = one["ours_seconds"], one["peer_seconds"]
        own_peak, peer_peak = one["ours_peak_bytes"], one["peer_peak_bytes"]
        rows.append([
            str(one["tokens"]), measure.spread(ours), measure.spread(theirs), f"{statistics.median(theirs) / statistics.median(ours):.1f}",
            measure.megabytes(own_peak), measure.megabytes(peer_peak), f"{peer_peak / own_peak:.1f}", f"{one['max_abs_difference']:.1e}",
        ])
    stages = [[str(one["tokens"]), *(f"{one['peer_stages'][name]:.2f}" for name in STAGES)] for one in results]
    return "\n".join([
        f"{args.model.resolve().name}, {args.runs} runs each, median (min-max). {measure.machine()}. {results[0]['peer_versions']}.", "",
        measure.table(head, rows), "", "Where transformers' seconds go (medians):", "",
        measure.table(["tokens", *STAGES], stages),
    ])


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        if len(sys.argv) != 5:
            raise SystemExit("usage: bench_peers.py --peer CKPT TOKENS OUT")
        peer(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=measure.ROOT / "models" / "smollm2-135m", help="checkpoint folder (default: models/smollm2-135m)")
    parser.add_argument("--oracle", type=Path, default=measure.ORACLE, help="a release build (default: target/release/oracle)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that has torch and transformers (default: this one)")
    parser.add_argument("--tokens", type=measure.numbers, default=[8, 64, 512], help="token counts (default: 8,64,512)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, after one that is discarded (default: 5)")
    parser.add_argument("--atol", type=float, default=1e-3, help="how far the two files may be apart (default: 1e-3)")
    parser.add_argument("--json", action="store_true", help="all figures as JSON instead of the Markdown tables")
    parser.add_argument("--peer", nargs=3, metavar=("CKPT", "TOKENS", "OUT"), help="be the transformers script, nothing else")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: at least 1")
    if not (args.model / "config.json").is_file():
        parser.error(f"{args.model}: no config.json there; scripts/fetch_models.py makes a checkpoint")
    if not args.oracle.is_file():
        parser.error(f"{args.oracle}: no such file; cargo build --release makes it")
    measure.warn_if_busy()
    with tempfile.TemporaryDirectory(prefix="oracle-peers-") as scratch:
        results = [bench(args, count, Path(scratch)) for count in args.tokens]
    if args.json:
        document = {"machine": measure.machine(), "model": args.model.resolve().name, "runs": args.runs, "results": results}
        print(json.dumps(document, indent=2))
    else:
        print(report(args, results))


if __name__ == "__main__":
    main()
