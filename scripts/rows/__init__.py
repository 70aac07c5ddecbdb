"""All fixtures: the rows of every module, in the order in which they are listed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

MODULES = ["llama", "dense", "gemma", "granite", "mixture", "latent", "hybrid", "ternary", "multimodal"]

FIXTURES: list[dict[str, Any]] = []
for module in MODULES:
    if Path(__file__).with_name(f"{module}.py").exists():
        FIXTURES += importlib.import_module(f"{__name__}.{module}").FIXTURES
