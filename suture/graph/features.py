"""Node features of K clients at once, dense or sparse, in the layout that makes a first layer cheapest.

Legend: K clients, N nodes, F features, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segment_product, stacked_product

# A dense product does about this many multiply-adds in the time a sparse one does one: 1.5 where a client's weights fit the
# second cache, 2.4 where they do not (measured, one CPU thread, width 128).
DENSE_SPEED_UP = 2
# Never turn features into a dense matrix larger than this.
DENSE_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Features:
    """Node features of all clients, dense [N, F] or sparse."""

    matrix: Tensor | SparseMatrix
    segments: Segments

    @property
    def width(self) -> int:
        """F."""
        return self.matrix.columns if isinstance(self.matrix, SparseMatrix) else self.matrix.shape[1]

    @property
    def nonzeros(self) -> int:
        """Stored entries."""
        return self.matrix.col.numel() if isinstance(self.matrix, SparseMatrix) else self.matrix.numel()

    @cached_property
    def squared_norms(self) -> Tensor:
        """|x_v|^2 of every node, [N]."""
        if isinstance(self.matrix, SparseMatrix):
            return self.matrix.val.new_zeros(self.matrix.rows).index_add_(0, self.matrix.row, self.matrix.val.square())
        return self.matrix.square().sum(1)

    @cached_property
    def _stacked(self) -> SparseMatrix:
        """Sparse features against K weights on top of each other: column f of client k becomes k * F + f."""
        if not isinstance(self.matrix, SparseMatrix):
            raise TypeError("only sparse features are stacked")
        column = self.matrix.col.clone()
        # A client's entries lie together, so there is no need to look up the owner of each.
        bounds = self.matrix.rowptr[self.segments.ptr].tolist()
        for k in range(1, self.segments.clients):
            column[bounds[k] : bounds[k + 1]] += k * self.width
        return SparseMatrix(self.matrix.rowptr, column, self.matrix.val, self.width * self.segments.clients)

    def times(self, weight_KFH: Tensor) -> Tensor:
        """Each client's features times its own weight, [N, H]."""
        if not isinstance(self.matrix, SparseMatrix):
            return segment_product(self.matrix, weight_KFH, self.segments)
        return stacked_product(self.matrix, self._stacked, weight_KFH)

    @cached_property
    def _transposed_of_clients(self) -> list[SparseMatrix]:
        """Sparse features of each client, transposed, [F, N_k]."""
        whole = self._stacked.transposed
        found = []
        for k, start in enumerate(self.segments.bounds[:-1]):
            rowptr = whole.rowptr[k * self.width : (k + 1) * self.width + 1]
            first, last = int(rowptr[0]), int(rowptr[-1])
            nodes = self.segments.bounds[k + 1] - start
            found.append(SparseMatrix(rowptr - first, whole.col[first:last] - start, whole.val[first:last], nodes))
        return found

    def mixed(self, k: int, weight_BR: Tensor) -> Tensor:
        """Sums of the features of client k's nodes, weighted by R columns of weights, [R, F]."""
        if isinstance(self.matrix, SparseMatrix):
            return self._transposed_of_clients[k].times(weight_BR).T
        start, end = self.segments.bounds[k : k + 2]
        return weight_BR.T @ self.matrix[start:end]

    def between(self, start: int, end: int, segments: Segments) -> Features:
        """The features of the nodes from `start` on and before `end`; dense ones stay in the memory where they are."""
        if isinstance(self.matrix, SparseMatrix):
            return self.take(torch.arange(start, end, device=self.segments.ptr.device), segments)
        return Features(self.matrix[start:end], segments)

    def take(self, index: Tensor, segments: Segments) -> Features:
        """The features of some nodes."""
        if isinstance(self.matrix, SparseMatrix):
            return Features(self.matrix.take_rows(index), segments)
        return Features(self.matrix[index], segments)

    def propagated(self, operator: SparseMatrix) -> Features | None:
        """`operator @ features` as a dense matrix if a first layer is cheaper on it than propagating after the product.

        Propagating first costs N * F dense multiply-adds per output column and no message passing in the round; the other
        order costs one sparse multiply-add per non-zero feature and per edge.
        """
        if not isinstance(self.matrix, SparseMatrix):
            wider_than_hidden = self.width > 256  # then propagating raw features once saves little but costs nothing
            return Features(operator.times(self.matrix), self.segments) if wider_than_hidden else None
        size = self.segments.total * self.width
        if size * 4 > DENSE_LIMIT_BYTES or size > DENSE_SPEED_UP * (self.nonzeros + operator.col.numel()):
            return None
        return Features(operator.times(self.matrix.to_dense()), self.segments)

    def propagated_once(self, operator: SparseMatrix) -> Features | None:
        """`operator @ features` if these are dense and the outcome fits: as large as they are."""
        if isinstance(self.matrix, SparseMatrix) or self.matrix.numel() * 4 > DENSE_LIMIT_BYTES:
            return None
        return Features(operator.times(self.matrix), self.segments)

    def dense(self) -> Tensor:
        """[N, F]; for small graphs and user modules."""
        return self.matrix.to_dense() if isinstance(self.matrix, SparseMatrix) else self.matrix


def feature_matrix(x: Tensor) -> Tensor | SparseMatrix:
    """PyG features, dense or CSR, as our kernels want them."""
    if x.layout == torch.sparse_csr:
        return SparseMatrix(x.crow_indices().int(), x.col_indices().int(), x.values().float(), x.shape[1])
    return x.float()
