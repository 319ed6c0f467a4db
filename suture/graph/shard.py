"""One owner's piece of the graph in one file: what `suture owner start --data` reads and nobody else ever sees.

Two kinds are read, neither of them pickled:

    .safetensors   as `save_shard` writes it (x, or x.rowptr, x.col, x.val of its CSR layout; edge_index; y; role; node_id;
                   edge_weight if there are weights; address, boundary_node and boundary_address of known links to others)
    .npz           the owner's own: x [N, F], edge_index [2, E], y [N] and train_mask, val_mask, test_mask; optional are
                   node_id [N], edge_weight [E] and directed

A label of -1 is none. Edges are heard in both directions unless the file says `directed`. A file is checked before anything
of the size that it claims is allocated.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
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
from suture.graph.batch import GraphBatch
from suture.graph.checks import checked
from suture.graph.data import MASKS, MOST_CLASSES, csr_from_parts, labelled, num_classes, refuse_several_splits

FORMAT = "suture-shard/1"
FORMAT_OF_WEIGHTS = "suture-shard/2"
"""Of files with weights or direction: a version that would not see these must not read them."""
LINKS = ("address", "boundary_node", "boundary_address")
"""What a file may know of links to other owners' nodes; see `graph.boundary`."""
MOST_FEATURES = 10_000_000
DENSEST = 1100
"""Bytes that deflate can make of one, and a few more; who promises more of a zip file lies."""
UNREADABLE = (
    RecursionError,
    safetensors.SafetensorError,
    zipfile.BadZipFile,
    zlib.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What libraries raise on files that are damaged or not what they say."""


@dataclass(frozen=True)
class Shard:
    """An owner's graph, its nodes' roles int8 [N], and what is public about it."""

    data: Data
    roles: Tensor
    classes: int
    row_normalised: bool


def save_shard(graph: GraphBatch, owner: str, path: Path, *, classes: int, row_normalised: bool) -> None:
    """Write the piece of one client of a cut."""
    one = graph.select([owner])
    directed = bool(one.directed.any())
    tensors = {"edge_index": one.edge_index, "y": one.y, "role": one.role, "node_id": one.node_id}
    if one.edge_weight is not None:
        tensors["edge_weight"] = one.edge_weight
    if (known := one.boundary) is not None:
        tensors |= {"address": known.address, "boundary_node": known.node, "boundary_address": known.foreign}
    matrix = one.x.matrix
    if isinstance(matrix, SparseMatrix):
        tensors |= {"x.rowptr": matrix.rowptr, "x.col": matrix.col, "x.val": matrix.val}
    else:
        tensors["x"] = matrix
    about = {
        "format": FORMAT_OF_WEIGHTS if directed or one.edge_weight is not None else FORMAT,
        "features": one.x.width,
        "classes": classes,
        "row_normalised": row_normalised,
        "directed": directed,
    }
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
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except UNREADABLE as error:
        why = error or type(error).__name__
        raise DataError(f"{path} is not a graph as docs/federation.md describes it ({why}); write it again") from error
    if not bool((shard.roles == 1).any()):
        raise DataError(f"{path} has no training node; mark at least one in train_mask")
    return shard


def _from_safetensors(path: Path) -> Shard:
    with safetensors.safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {})["suture"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    if about.get("format") not in (FORMAT, FORMAT_OF_WEIGHTS):
        raise ValueError(f"its format is {about.get('format')!r}, this version reads {FORMAT!r} and {FORMAT_OF_WEIGHTS!r}")
    classes, features = _count(about, "classes", MOST_CLASSES), _count(about, "features", MOST_FEATURES)
    x = tensors.get("x")
    if x is None:
        rowptr, column = tensors["x.rowptr"].long(), tensors["x.col"].long()
        x = csr_from_parts(rowptr, column, tensors["x.val"], (rowptr.numel() - 1, features))
    elif x.shape[1:] != (features,):
        raise ValueError(f"it says that there are {features} features, and x has shape {list(x.shape)}")
    known = {name: tensors[name] for name in ("edge_index", "y", "node_id")}
    if "edge_weight" in tensors:
        known["edge_weight"] = tensors["edge_weight"]
    data = _with_links(_checked(Data(x=x, directed=bool(about.get("directed", False)), **known)), tensors)
    role = tensors["role"]
    whole = role.shape == (int(data.num_nodes),) and not role.is_floating_point()
    if not whole or int(role.min()) < 0 or int(role.max()) > 3:
        raise ValueError("role must be a number from 0 to 3 for every node")
    return Shard(data, _roles(role.to(torch.int8), data), max(classes, num_classes(data)), bool(about["row_normalised"]))


def _with_links(data: Data, tensors: dict[str, Tensor]) -> Data:
    """The graph with the links to other owners' nodes that the file knows of, if it says anything of them."""
    if not any(name in tensors for name in LINKS):
        return data
    address, node, foreign = (tensors[name] for name in LINKS)
    nodes = int(data.num_nodes)
    whole = all(part.dtype == torch.int64 and part.dim() == 1 for part in (address, node, foreign))
    if not whole or address.numel() != nodes or node.shape != foreign.shape:
        raise ValueError(f"{', '.join(LINKS)} must be whole numbers: one for every node, and two for every link")
    if node.numel() and not 0 <= int(node.min()) <= int(node.max()) < nodes:
        raise ValueError(f"boundary_node must be numbers of nodes, from 0 to {nodes - 1}")
    data.address, data.boundary_node, data.boundary_address = address, node, foreign
    return data


def _from_npz(path: Path) -> Shard:
    _check_sizes(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}
    absent = [name for name in ("x", "edge_index", "y", *MASKS) if name not in arrays]
    if absent:
        raise ValueError(f"it has no {absent[0]}")
    known = ("x", "edge_index", "edge_weight", "y", "node_id", *MASKS)
    directed = bool(arrays.get("directed", torch.tensor(False)))
    data = _checked(Data(directed=directed, **{name: value for name, value in arrays.items() if name in known}))
    refuse_several_splits(data, "an owner's file")
    roles = torch.zeros(int(data.num_nodes), dtype=torch.int8)
    for code, name in reversed(list(enumerate(MASKS, start=1))):
        roles[data[name]] = code
    return Shard(data, _roles(roles, data), num_classes(data), False)


def _checked(data: Data) -> Data:
    made = checked(data)
    if made.task != "classification":
        raise DataError(f"labels must be one class per node, got {data.y.dtype} of shape {list(data.y.shape)}")
    return made


def _roles(roles: Tensor, data: Data) -> Tensor:
    nameless = torch.nonzero((roles > 0) & ~labelled(data)).squeeze(1)
    if nameless.numel():
        raise DataError(
            f"{nameless.numel()} nodes without a label are marked for training, validation or testing, the first is node "
            f"{int(nameless[0])}; take them out of the masks"
        )
    return roles


def _count(about: dict[str, Any], name: str, most: int) -> int:
    number = about[name]
    if type(number) is not int or not 1 <= number <= most:
        raise ValueError(f"it says that there are {number!r} {name}, a number from 1 to {most:,} was expected")
    return number


def _check_sizes(path: Path) -> None:
    """Whether each array of an .npz file is as large as its header says; numpy would allocate that first."""
    with zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            with archive.open(item) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                promised = math.prod(shape) * dtype.itemsize + member.tell()
            if promised != item.file_size or promised > DENSEST * path.stat().st_size:
                raise ValueError(f"{item.filename} says that it is {list(shape)}, and is not")
