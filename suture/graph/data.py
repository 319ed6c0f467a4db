"""What is done to a whole checked graph (`graph.checks`) before it is cut.

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
from torch_geometric.utils import coalesce, subgraph

from suture.errors import DataError
from suture.graph.mirror import both_ways

MASKS = ("train_mask", "val_mask", "test_mask")
NODE_NUMBERS = ("node_id", "client", "community")
"""Node-level integers that survive a check: original index, given client, planted community."""

DENSE_FROM = 0.4
"""Share of non-zero features from which a dense layout is smaller and faster than a sparse one."""

LISTS = ("feature_names", "class_names", "node_name", "graphless", "boundary_foreign")
"""Names of things, as lists of text."""

MOST_CLASSES = 10_000
"""A larger label is a mistake, and would cost memory before anybody notices."""

ROWS_AT_ONCE = 8192


def largest_component(data: Data) -> Data:
    """Keep the largest connected component, in the given node order; `node_id` holds the original indices."""
    source, target = data.edge_index.numpy()
    nodes = data.y.numel()
    adjacency = sp.coo_matrix((np.ones(source.size, dtype=np.int8), (source, target)), shape=(nodes, nodes))
    _, component = connected_components(adjacency, directed=False)
    return select_nodes(data, torch.from_numpy(np.flatnonzero(component == np.bincount(component).argmax())))


def select_nodes(data: Data, index: Tensor) -> Data:
    """The induced subgraph on distinct nodes, in the order of `index`; `node_id` holds the original indices."""
    position = torch.full((int(data.num_nodes),), -1)
    position[index] = torch.arange(index.numel())
    weight = data.get("edge_weight")
    edge_index, weight = subgraph(index, data.edge_index, weight, num_nodes=int(data.num_nodes))
    if weight is None:
        edge_index = coalesce(position[edge_index], num_nodes=index.numel())
    else:
        edge_index, weight = coalesce(position[edge_index], weight, num_nodes=index.numel())
    chosen = copy.copy(data)
    chosen.x, chosen.edge_index, chosen.y = select_rows(data.x, index), edge_index, data.y[index]
    if weight is not None:
        chosen.edge_weight = weight
    for name in MASKS + NODE_NUMBERS:
        if data.get(name) is not None:
            chosen[name] = data[name][index]
    if data.get("node_name") is not None:
        chosen.node_name = [data.node_name[row] for row in index.tolist()]
    if chosen.get("node_id") is None:
        chosen.node_id = index.clone()
    return _with_boundary_of(chosen, data, position)


def _with_boundary_of(chosen: Data, data: Data, position: Tensor) -> Data:
    """Boundary edges of the nodes that stay, at their new positions."""
    if data.get("boundary_node") is None:
        return chosen
    node = position[data.boundary_node]
    kept = node >= 0
    chosen.boundary_node = node[kept]
    chosen.boundary_foreign = [data.boundary_foreign[row] for row in torch.nonzero(kept).squeeze(1).tolist()]
    for name in ("boundary_outgoing", "boundary_weight"):
        if data.get(name) is not None:
            chosen[name] = data[name][kept]
    return chosen


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of a dense or sparse_csr matrix, in the layout it has."""
    if x.layout != torch.sparse_csr:
        return x[index]
    return csr_tensor(scipy_matrix(x)[index.numpy()])


def row_normalise(data: Data) -> Data:
    """Divide each node's features by their sum, where that says something: counts become shares.

    Rows that sum to zero or have a negative value, as those of word embeddings, stay as they are. Sparse stays sparse.
    """
    normalised, x, signed = copy.copy(data), data.x, rows_with_negatives(data.x)
    if x.layout != torch.sparse_csr:
        normalised.x = x / _divisor(x.sum(dim=1, dtype=torch.float64), signed).unsqueeze(1)
        return normalised
    rowptr = x.crow_indices()
    divisor = _divisor(torch.from_numpy(np.asarray(scipy_matrix(x).sum(axis=1, dtype=np.float64)).ravel()), signed)
    normalised.x = csr_from_parts(rowptr, x.col_indices(), x.values() / divisor.repeat_interleave(rowptr.diff()), x.shape)
    return normalised


def rows_with_negatives(x: Tensor) -> Tensor:
    """Which rows of a dense or sparse_csr matrix have a value below zero, bool [N]."""
    if x.layout != torch.sparse_csr:
        return (x < 0).any(1)
    row = torch.arange(x.shape[0]).repeat_interleave(x.crow_indices().diff())
    return torch.zeros(x.shape[0], dtype=torch.bool).index_fill(0, row[x.values() < 0], True)


def mirrored(data: Data) -> Data:
    """Every edge in both directions; where both have a weight, these are added."""
    if not data.get("directed"):
        return data
    made, nodes = copy.copy(data), int(data.num_nodes)
    made.directed = False
    made.edge_index, weight = both_ways(data.edge_index, data.get("edge_weight"), nodes)
    if weight is not None:
        made.edge_weight = weight
    return made


def num_classes(data: Data) -> int:
    """What is told apart: the named classes, or one more than the largest label; columns of labels that have some."""
    if data.y.is_floating_point():
        return int(data.y.shape[1]) if data.y.dim() == 2 else 1
    return max(len(data.get("class_names") or ()), int(data.y.max()) + 1)


def splits_in(data: Data) -> int:
    """How many splits the masks hold, a column each; 0: they hold one, without columns, or there are none."""
    columns = {name: int(data[name].shape[1]) for name in MASKS if data.get(name) is not None and data[name].dim() == 2}
    if len(set(columns.values())) > 1:
        said = ", ".join(f"data.{name} {count}" for name, count in columns.items())
        raise DataError(f"masks must hold equally many splits, a column each, got {said}")
    return max(columns.values(), default=0)


def refuse_several_splits(data: Data, what: str) -> None:
    """For what can hold one split only."""
    if splits_in(data):
        raise DataError(f"{what} holds one split, and the masks hold {splits_in(data)}: give one column, such as mask[:, 0]")


def single_split(data: Data, number: int) -> Data:
    """The graph with one of its splits as its masks; a mask without columns is part of each."""
    chosen = copy.copy(data)
    for name in MASKS:
        if data.get(name) is not None and data[name].dim() == 2:
            chosen[name] = data[name][:, number].contiguous()
    return chosen


def labelled(data: Data) -> Tensor:
    """Which nodes have a label, bool [N]."""
    return known_labels(data.y)


def known_labels(y: Tensor) -> Tensor:
    """Which of these labels [N] or [N, C] are known, bool [N]."""
    return ~torch.isnan(y.view(y.shape[0], -1)).any(dim=1) if y.is_floating_point() else y >= 0


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
        _digest(_sorted_keys(source, target, nodes).astype("<i8", copy=False)),
        _digest(data.y.numpy().astype("<f4" if data.y.is_floating_point() else "<i8")),
    ]
    if data.get("edge_weight") is not None:
        order = np.argsort(source * nodes + target)
        parts.append(_digest(data.edge_weight.numpy()[order].astype("<f4")))
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


def scipy_matrix(x: Tensor) -> sp.csr_matrix:
    """A dense or sparse matrix as scipy's."""
    if x.layout == torch.sparse_csr:
        parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
        return sp.csr_matrix(parts, shape=tuple(x.shape))
    x = x.to_sparse().coalesce()
    return sp.csr_matrix((x.values().numpy(), x.indices().numpy()), shape=tuple(x.shape))


def _divisor(sums: Tensor, signed: Tensor) -> Tensor:
    return torch.where((sums == 0) | signed, 1.0, sums).float()


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
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()


def _sorted_keys(source: np.ndarray, target: np.ndarray, nodes: int) -> np.ndarray:
    """One number for each edge, ascending; in place, because a few copies of ten million edges are a GB."""
    key: np.ndarray = source * nodes
    key += target
    key.sort()
    return key
