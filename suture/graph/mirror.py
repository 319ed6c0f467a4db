"""Edges in order: sorted, each once, in one direction or both.

By counting (scipy's compressed rows) and with 32-bit numbers where these do: PyG's functions of the same purpose sort, and
take several times the memory of ten million edges.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


def in_order(index: Tensor, weight: Tensor | None, nodes: int) -> tuple[Tensor, Tensor | None]:
    """Edges sorted by source, then target; repeated ones are joined and their weights added."""
    return _edges(_matrix(index, weight, nodes), weight is not None)


def both_ways(index: Tensor, weight: Tensor | None, nodes: int) -> tuple[Tensor, Tensor | None]:
    """Every edge in both directions, in order; the weights of two that meet are added."""
    matrix = _matrix(index, weight, nodes)
    return _edges(matrix + matrix.T.tocsr(), weight is not None)


def goes_both_ways(index: Tensor, weight: Tensor | None, nodes: int) -> bool:
    """Whether every edge is there in the other direction too, with the same weight."""
    one, other = (_matrix(ends, weight, nodes) for ends in (index, index.flip(0)))
    parts = ("indptr", "indices") if weight is None else ("indptr", "indices", "data")
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def _matrix(index: Tensor, weight: Tensor | None, nodes: int) -> sp.csr_array:
    """Rows of targets, sorted, each once."""
    source, target = (end.numpy().astype(np.int32 if nodes < 2**31 else np.int64) for end in index)
    # A truth is one byte, and the sum of two is one.
    value = np.ones(len(source), dtype=np.bool_) if weight is None else weight.numpy()
    return sp.coo_array((value, (source, target)), shape=(nodes, nodes)).tocsr()


def _edges(matrix: sp.csr_array, weighted: bool) -> tuple[Tensor, Tensor | None]:
    index = torch.empty(2, matrix.nnz, dtype=torch.int64)
    index[0] = torch.repeat_interleave(torch.from_numpy(np.diff(matrix.indptr)).long())
    index[1] = torch.from_numpy(matrix.indices)
    return index, torch.from_numpy(matrix.data) if weighted else None
