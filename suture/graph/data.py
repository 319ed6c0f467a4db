"""A PyG `Data` in, a checked one out; and what is done to a whole graph before it is cut.

A checked graph has float32 features (dense, or `torch.sparse_csr` when less than a quarter of them is non-zero), int64
labels and an undirected int64 `edge_index` in both directions: sorted, without repeated edges, without self-loops.
Every function returns a new `Data`; tensors that need no change are shared with the one that came in.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, subgraph, to_undirected

from suture.errors import DataError

MASKS = ("train_mask", "val_mask", "test_mask")
NODE_NUMBERS = ("node_id", "client", "community")
"""Node-level integers that survive a check: original index, given client, planted community."""

DENSE_FROM = 0.25
"""Share of non-zero features from which a dense layout is smaller and faster than a sparse one."""

ROWS_AT_ONCE = 8192


def validate(data: Data) -> Data:
    """Check a graph and bring it into the one form the rest of Suture reads.

    Directed edges are mirrored, repeated edges and self-loops dropped. Kept besides x, edge_index and y: the three
    masks, `node_id`, `client` and `community`. Anything else (edge weights too) is left behind.

    Raises:
        DataError: Says which node, edge or label is wrong and what was expected.
    """
    x = _checked_features(data)
    nodes = x.shape[0]
    checked = Data(x=x, edge_index=_checked_edges(data, nodes), y=_checked_labels(data, nodes))
    for name in MASKS + NODE_NUMBERS:
        value = data.get(name)
        if value is not None:
            checked[name] = _checked_node_values(name, value, nodes)
    return checked


def largest_component(data: Data) -> Data:
    """Keep the largest connected component, in the given node order; `node_id` holds the original indices."""
    source, target = data.edge_index.numpy()
    nodes = data.y.numel()
    adjacency = sp.coo_matrix((np.ones(source.size, dtype=np.int8), (source, target)), shape=(nodes, nodes))
    _, component = connected_components(adjacency, directed=False)
    return select_nodes(data, torch.from_numpy(np.flatnonzero(component == np.bincount(component).argmax())))


def select_nodes(data: Data, index: Tensor) -> Data:
    """The induced subgraph on distinct nodes, in the order of `index`; `node_id` holds the original indices."""
    position = torch.full((data.y.numel(),), -1)
    position[index] = torch.arange(index.numel())
    edge_index, _ = subgraph(index, data.edge_index, num_nodes=data.y.numel())
    edge_index = coalesce(position[edge_index], num_nodes=index.numel())
    chosen = Data(x=select_rows(data.x, index), edge_index=edge_index, y=data.y[index])
    for name in MASKS + NODE_NUMBERS:
        if data.get(name) is not None:
            chosen[name] = data[name][index]
    if chosen.get("node_id") is None:
        chosen.node_id = index.clone()
    return chosen


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of a dense or sparse_csr matrix, in the layout it has."""
    if x.layout != torch.sparse_csr:
        return x[index]
    return csr_tensor(_scipy(x)[index.numpy()])


def row_normalise(data: Data) -> Data:
    """Divide each node's features by their sum; rows that sum to zero stay as they are. Sparse features stay sparse."""
    normalised, x = copy.copy(data), data.x
    if x.layout != torch.sparse_csr:
        normalised.x = x / _divisor(x.sum(dim=1, dtype=torch.float64)).unsqueeze(1)
        return normalised
    rowptr = x.crow_indices()
    divisor = _divisor(torch.from_numpy(np.asarray(_scipy(x).sum(axis=1, dtype=np.float64)).ravel()))
    normalised.x = csr_from_parts(rowptr, x.col_indices(), x.values() / divisor.repeat_interleave(rowptr.diff()), x.shape)
    return normalised


def num_classes(data: Data) -> int:
    """One more than the largest label."""
    return int(data.y.max()) + 1


def fingerprint(data: Data) -> str:
    """SHA-256 of the nodes, features, edges and labels.

    The same graph gives the same text on any machine, whether its features are dense or sparse and whatever the order
    of its edges. Masks do not count.
    """
    nodes, width = data.x.shape
    source, target = data.edge_index.numpy().astype(np.int64, copy=False)
    parts = [
        f"suture graph 1: {nodes} nodes, {width} features".encode(),
        *_feature_digests(data.x),
        _digest(np.sort(source * nodes + target).astype("<i8")),
        _digest(data.y.numpy().astype("<i8")),
    ]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def csr_tensor(matrix: sp.csr_matrix) -> Tensor:
    """A scipy matrix as float32 `torch.sparse_csr` with int64 indices, sorted, without stored zeros."""
    matrix = matrix.astype(np.float32)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    rowptr, column = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
    return csr_from_parts(rowptr.long(), column.long(), torch.from_numpy(matrix.data), matrix.shape)


def csr_from_parts(rowptr: Tensor, column: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A `torch.sparse_csr` matrix from its three parts."""
    with warnings.catch_warnings():
        # The layout's "beta state" notice tells a user nothing that they could act on.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support", category=UserWarning)
        return torch.sparse_csr_tensor(rowptr, column, values, size=tuple(shape), check_invariants=True)


def _scipy(x: Tensor) -> sp.csr_matrix:
    if x.layout == torch.sparse_csr:
        parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
        return sp.csr_matrix(parts, shape=tuple(x.shape))
    x = x.to_sparse().coalesce()
    return sp.csr_matrix((x.values().numpy(), x.indices().numpy()), shape=tuple(x.shape))


def _divisor(sums: Tensor) -> Tensor:
    return torch.where(sums == 0, 1.0, sums).float()


def _checked_features(data: Data) -> Tensor:
    x = data.get("x")
    if not isinstance(x, Tensor):
        raise DataError("the graph has no node features: set data.x to a [nodes, features] tensor")
    if x.dim() != 2 or 0 in x.shape:
        raise DataError(f"node features must be [nodes, features] with at least one of each, got shape {list(x.shape)}")
    x = x.detach().cpu()
    if x.layout == torch.strided:
        return _checked_dense(x.float())
    matrix = _scipy(x).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if bad.size:
        rows = np.unique(np.searchsorted(matrix.indptr, bad, side="right") - 1)
        raise _not_finite(rows.size, int(rows[0]), x.shape[0])
    sparse = csr_tensor(matrix)
    return sparse if sparse.values().numel() < DENSE_FROM * x.numel() else sparse.to_dense()


def _checked_dense(x: Tensor) -> Tensor:
    bad = torch.nonzero(~torch.isfinite(x).all(dim=1)).squeeze(1)
    if bad.numel():
        raise _not_finite(bad.numel(), int(bad[0]), x.shape[0])
    if int(torch.count_nonzero(x)) >= DENSE_FROM * x.numel():
        return x.contiguous()
    return csr_tensor(sp.csr_matrix(x.numpy()))


def _not_finite(rows: int, first: int, nodes: int) -> DataError:
    return DataError(
        f"features are NaN or infinite in {rows} of {nodes} nodes, the first is node {first}; "
        "fill them in or drop those nodes"
    )


def _checked_edges(data: Data, nodes: int) -> Tensor:
    edge_index = data.get("edge_index")
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        shape = list(edge_index.shape) if isinstance(edge_index, Tensor) else "none"
        raise DataError(f"edges must be given as data.edge_index of shape [2, edges], got {shape}")
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise DataError(f"edge_index must hold whole node numbers, got {edge_index.dtype}; convert it with .long()")
    edge_index = edge_index.detach().cpu().long()
    outside = torch.nonzero(((edge_index < 0) | (edge_index >= nodes)).any(dim=0)).squeeze(1)
    if outside.numel():
        first = int(outside[0])
        source, target = edge_index[:, first].tolist()
        raise DataError(
            f"{outside.numel()} edges name nodes that do not exist, the first is edge {first} ({source} to {target}); "
            f"the graph has {nodes} nodes, numbered 0 to {nodes - 1}"
        )
    undirected: Tensor = to_undirected(remove_self_loops(edge_index)[0], num_nodes=nodes)
    return undirected.contiguous()


def _checked_labels(data: Data, nodes: int) -> Tensor:
    y = data.get("y")
    if not isinstance(y, Tensor):
        raise DataError("the graph has no labels: set data.y to one whole number (its class) per node")
    y = y.detach().cpu()
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() != 1 or y.numel() != nodes:
        raise DataError(f"labels must be one class per node, [{nodes}] like the features, got shape {list(y.shape)}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"labels must be whole numbers, got {y.dtype}; convert them with data.y.long()")
    negative = torch.nonzero(y < 0).squeeze(1)
    if negative.numel():
        raise DataError(
            f"{negative.numel()} labels are negative, the first is {int(y[negative[0]])} at node {int(negative[0])}; "
            "classes start at 0 (keep unlabelled nodes out of train_mask, val_mask and test_mask instead)"
        )
    return y.long()


def _checked_node_values(name: str, value: Tensor, nodes: int) -> Tensor:
    wanted = torch.bool if name in MASKS else torch.int64
    if not isinstance(value, Tensor) or value.shape != (nodes,) or value.dtype != wanted:
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise DataError(f"data.{name} must be {wanted} of shape [{nodes}], got {got}")
    return value.detach().cpu()


def _feature_digests(x: Tensor) -> list[bytes]:
    """Digests of the row lengths, columns and values of the non-zero features, taken a block of rows at a time."""
    hashes = [hashlib.sha256() for _ in range(3)]
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + ROWS_AT_ONCE, x.shape[0]))
        block = select_rows(x, rows)
        if block.layout != torch.sparse_csr:
            block = csr_tensor(sp.csr_matrix(block.numpy()))
        parts = (block.crow_indices().diff(), block.col_indices(), block.values())
        for hasher, part, form in zip(hashes, parts, ("<i8", "<i8", "<f4"), strict=True):
            hasher.update(part.numpy().astype(form, copy=False).tobytes())
    return [hasher.digest() for hasher in hashes]


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(values.tobytes()).digest()
