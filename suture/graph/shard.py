"""One owner's piece of the graph in one file: what `suture owner start --data` reads and nobody else ever sees.

Two kinds are read, neither of them pickled:

    .safetensors   as `save_shard` writes it (x, or x.rowptr, x.col, x.val of its CSR layout; edge_index; y; role; node_id)
    .npz           the owner's own: x [N, F], edge_index [2, E], y [N] and train_mask, val_mask, test_mask; node_id optional
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.kernels import SparseMatrix
from suture.core.storage import write_atomically
from suture.errors import DataError
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.checks import validate
from suture.graph.data import MASKS, csr_from_parts, num_classes, row_normalise

FORMAT = "suture-shard/1"


@dataclass(frozen=True)
class Shard:
    """An owner's graph, its nodes' roles int8 [N], and what is public about it."""

    data: Data
    roles: Tensor
    classes: int
    row_normalised: bool

    @property
    def features(self) -> int:
        """F."""
        return int(self.data.x.shape[1])

    def batch(self, owner: str, normalise: bool) -> GraphBatch:
        """The graph as the single client `owner`; `normalise` divides feature rows by their sums unless they are already."""
        data = row_normalise(self.data) if normalise and not self.row_normalised else self.data
        everything = torch.arange(int(data.num_nodes))
        return batch_of(data, [owner], [everything], [self.roles], [False])


def save_shard(graph: GraphBatch, owner: str, path: Path, *, classes: int, row_normalised: bool) -> None:
    """Write the piece of one client of a cut."""
    one = graph.select([owner])
    tensors = {"edge_index": one.edge_index, "y": one.y, "role": one.role, "node_id": one.node_id}
    matrix = one.x.matrix
    if isinstance(matrix, SparseMatrix):
        tensors |= {"x.rowptr": matrix.rowptr, "x.col": matrix.col, "x.val": matrix.val}
    else:
        tensors["x"] = matrix
    about = {"format": FORMAT, "features": one.x.width, "classes": classes, "row_normalised": row_normalised}
    content = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, safetensors.torch.save(content, {"suture": json.dumps(about)}))


def load_shard(path: Path) -> Shard:
    """Read and check an owner's file."""
    if path.suffix not in (".safetensors", ".npz"):
        raise DataError(f"{path} is neither a .safetensors nor a .npz file; see docs/federation.md for what they hold")
    if not path.exists():
        raise DataError(f"{path} does not exist; give the file with this owner's graph")
    if path.suffix == ".npz" and not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file, whatever its name says; write it with numpy.savez")
    try:
        shard = _from_safetensors(path) if path.suffix == ".safetensors" else _from_npz(path)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} is not a graph as docs/federation.md describes it ({error}); write it again") from error
    if not bool((shard.roles == 1).any()):
        raise DataError(f"{path} has no training node; mark at least one in train_mask")
    return shard


def _from_safetensors(path: Path) -> Shard:
    with safetensors.safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {})["suture"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    if about.get("format") != FORMAT:
        raise ValueError(f"its format is {about.get('format')!r}, this version reads {FORMAT!r}")
    x = tensors.get("x")
    if x is None:
        rowptr, column = tensors["x.rowptr"].long(), tensors["x.col"].long()
        x = csr_from_parts(rowptr, column, tensors["x.val"], (rowptr.numel() - 1, int(about["features"])))
    data = validate(Data(x=x, edge_index=tensors["edge_index"], y=tensors["y"], node_id=tensors["node_id"]))
    roles = tensors["role"].to(torch.int8)
    if roles.shape != data.y.shape or int(roles.min()) < 0 or int(roles.max()) > 3:
        raise ValueError("role must be a number from 0 to 3 for every node")
    return Shard(data, roles, max(int(about["classes"]), num_classes(data)), bool(about["row_normalised"]))


def _from_npz(path: Path) -> Shard:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}
    absent = [name for name in ("x", "edge_index", "y", *MASKS) if name not in arrays]
    if absent:
        raise ValueError(f"it has no {absent[0]}")
    known = ("x", "edge_index", "y", "node_id", *MASKS)
    data = validate(Data(**{name: value for name, value in arrays.items() if name in known}))
    roles = torch.zeros(int(data.num_nodes), dtype=torch.int8)
    for code, name in reversed(list(enumerate(MASKS, start=1))):
        roles[data[name]] = code
    return Shard(data, roles, num_classes(data), False)
