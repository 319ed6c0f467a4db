"""Where a run is computed, and by which code."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch

from suture.graph.cut import installed_version

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "igraph", "pymetis", "safetensors", "pydantic", "opacus")


def environment() -> dict[str, object]:
    """Where a run was computed, and by which code."""
    return {
        "suture": installed_version("suture-fl"),
        "source": source_hash(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "packages": {name: installed_version(name) for name in PACKAGES},
    }


def source_hash(package: Path = Path(__file__).parents[1]) -> str:
    """SHA-256 over the names and contents of a package's Python files: a version says less while code is being written."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py"), key=lambda file: file.relative_to(package).as_posix()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
