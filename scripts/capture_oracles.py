"""Capture what transformers computes for every fixture and prompt: float32 logits and the float64 truth of all positions.

Writes, for a fixture F with prompts P: oracles/F.safetensors (P.tokens, P.positions, P.logits_f32, P.logits_f64), for the first
prompt's last position oracles/F.P.f32.tsv and oracles/F.P.f64.tsv, and oracles/PROVENANCE.json.

Example:
    python scripts/capture_oracles.py                # all fixtures
    python scripts/capture_oracles.py qwen3-plain    # one, keeping the others' entries in PROVENANCE.json
    python scripts/check_truth.py                    # then: the truth against an independent float64 implementation
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

import truth
from make_fixtures import ROOT
from rows import FIXTURES

CLOSE = 1e-4  # a choice by less (of experts, of an integer) may differ between float32 and float64


def capture(row: dict[str, Any], fixtures: Path, out: Path) -> dict[str, Any]:
    """Capture one fixture; returns its entry for PROVENANCE.json."""
    name, folder = row["name"], fixtures / row["name"]
    prompts_file = fixtures / f"{name}.prompts.json"
    prompts = json.loads(prompts_file.read_text())["prompts"]
    for stale in [out / f"{name}.safetensors", *out.glob(f"{name}.*.tsv")]:
        stale.unlink(missing_ok=True)
    tensors, entries = {}, []
    for number, entry in enumerate(prompts):
        ident, tokens, positions = entry["id"], entry["tokens"], entry["positions"]
        if positions is not None and len(positions) != len(tokens):
            raise SystemExit(f"{name} {ident}: {len(tokens)} tokens, but {len(positions)} positions")
        f32 = truth.logits_f32(folder, tokens, positions)
        with truth.margins() as margins:
            f64 = truth.logits_f64(folder, tokens, positions, row.get("rebuild"))
        if min(margins, default=1.0) < CLOSE:
            raise SystemExit(f"{name} {ident}: a router or a quantiser chooses by {min(margins):.1e}; give the prompt another draw")
        used = positions if positions is not None else list(range(len(tokens)))
        tensors |= {
            f"{ident}.tokens": np.array(tokens, np.int64), f"{ident}.positions": np.array(used, np.int64),
            f"{ident}.logits_f32": f32, f"{ident}.logits_f64": f64,
        }
        if number == 0:
            truth.write_tsv(out / f"{name}.{ident}.f32.tsv", tokens, positions, f32[-1])
            truth.write_tsv(out / f"{name}.{ident}.f64.tsv", tokens, positions, f64[-1])
        entries.append({"id": ident, "tokens": tokens, "positions": positions, "f32_from_truth": truth.distance(f32, f64),
                        "logits_range": float(f64.max() - f64.min())})
    save_file(tensors, out / f"{name}.safetensors")
    worst = max(entry["f32_from_truth"]["max_abs"] for entry in entries)
    print(f"{name}: {len(prompts)} prompts, transformers' float32 at most {worst:.2e} from the truth", flush=True)
    oracle_files = [out / f"{name}.safetensors", *sorted(out.glob(f"{name}.*.tsv"))]
    return {
        "pack": row["pack"], "exercises": row["says"], "prompts": entries,
        "fixture_sha256": {f"{name}/{file.name}": truth.sha256(file) for file in sorted(folder.iterdir())}
        | {prompts_file.name: truth.sha256(prompts_file)},
        "oracle_sha256": {file.name: truth.sha256(file) for file in oracle_files},
    }


def record(provenance: Path, fresh: dict[str, Any], only: set[str] | None) -> None:
    """Put entries into PROVENANCE.json; a lock keeps the entries of other runs. `only` names the fixtures that may stay."""
    with provenance.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = file.read()
        entries = (json.loads(before)["fixtures"] if before else {}) | fresh
        order = [row["name"] for row in FIXTURES]
        names = [name for name in order if name in entries] + sorted(set(entries) - set(order))
        text = json.dumps({
            "engine": "transformers-eager", "versions": truth.versions(), "threads": 1,
            "regenerate": "python scripts/make_fixtures.py && python scripts/capture_oracles.py && python scripts/check_truth.py",
            "fixtures": {name: entries[name] for name in names if only is None or name in only},
        }, indent=1)
        one_line = re.sub(r"\[[\s\d,]+\]", lambda match: json.dumps(json.loads(match.group())), text)  # lists of integers
        file.truncate(0)
        file.write(one_line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fixtures to capture (default: all)")
    parser.add_argument("--fixtures", type=Path, default=ROOT / "fixtures", help="where the fixtures are (default: fixtures/)")
    parser.add_argument("--out", type=Path, default=ROOT / "oracles", help="folder to write into (default: oracles/)")
    args = parser.parse_args()
    known = [row["name"] for row in FIXTURES]
    unknown = set(args.names) - set(known)
    if unknown:
        parser.error(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for row in FIXTURES:
        if not args.names or row["name"] in args.names:
            record(args.out / "PROVENANCE.json", {row["name"]: capture(row, args.fixtures, args.out)}, None if args.names else set(known))


if __name__ == "__main__":
    main()
