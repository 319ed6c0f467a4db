"""Checked graphs kept on disk, so that raw files are read once.

A cache file that is missing, cut short or damaged counts as absent; a disk that cannot be written to only costs time.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch_geometric.data import Data

from suture.graph.data import csr_from_parts

FORM = "2"
"""Goes up whenever a reader or `validate` would make something else of the same raw files."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/suture`, or `~/.cache/suture`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "suture"


def read(path: Path) -> Data | None:
    """The graph in a cache file, or None if there is no intact one."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError):
        return None
    if metadata.get("crc32") != _checksum(tensors) or metadata.get("form") != FORM:
        return None
    if "x_rowptr" in tensors:
        rowptr, column, values = (tensors.pop(f"x_{part}") for part in ("rowptr", "column", "values"))
        tensors["x"] = csr_from_parts(rowptr, column, values, (rowptr.numel() - 1, int(metadata["features"])))
    return Data(**tensors)


def write(path: Path, data: Data) -> None:
    """Keep a checked graph; whoever reads sees the whole file or none."""
    tensors = {name: value.contiguous() for name, value in data.to_dict().items() if value.layout == torch.strided}
    if "x" not in tensors:
        tensors |= {"x_rowptr": data.x.crow_indices(), "x_column": data.x.col_indices(), "x_values": data.x.values()}
    metadata = {"form": FORM, "features": str(data.x.shape[1]), "crc32": _checksum(tensors)}
    content = save(tensors, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".write-") as staging:
            unfinished = Path(staging) / path.name
            unfinished.write_bytes(content)
            unfinished.replace(path)
    except OSError:
        return


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].numpy().data, zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
