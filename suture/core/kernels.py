"""The few differentiable operations everything else is made of, each with a client axis.

Nodes of all K clients lie in one flat array, client after client; weights are stacked [K, ...]. Legend of shape suffixes:
K clients, N nodes of all clients, E edges, F input width, H output width, C classes.

Sparse products go through `embedding_bag`: on CPUs it is 1.5 to 3 times faster than torch's CSR product, and its weighted
row sum is exactly a sparse-times-dense product. Backward passes are written out so that the transposed operator is built
once per graph instead of once per step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import scipy.sparse
import torch
from torch import Tensor

from suture.core.tree import is_tiled


def pointers(lengths: Tensor) -> Tensor:
    """Where each of consecutive pieces begins, and where the last one ends, [K] to [K + 1]."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


@dataclass(frozen=True)
class SparseMatrix:
    """A constant sparse matrix in CSR form. Shapes: rowptr [rows + 1], col [nnz], val [nnz]; int32 indices."""

    rowptr: Tensor
    col: Tensor
    val: Tensor
    columns: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.rowptr.numel() - 1

    @cached_property
    def row(self) -> Tensor:
        """The row of each entry, int64 [nnz]."""
        lengths = self.rowptr.diff().long()
        return torch.repeat_interleave(torch.arange(self.rows, device=lengths.device), lengths)

    @cached_property
    def transposed(self) -> SparseMatrix:
        """The transpose, again in CSR form."""
        if self.val.device.type == "cpu":
            # scipy counts where torch would sort: the same order, some thirty times sooner.
            by_column = self._scipy.tocsc()
            return self._of_scipy(by_column, self.rows)
        return SparseMatrix.from_coo(self.col.long(), self.row, self.val, (self.columns, self.rows))

    @staticmethod
    def from_coo(row: Tensor, col: Tensor, val: Tensor, shape: tuple[int, int]) -> SparseMatrix:
        """From coordinates in any order (kept stable inside a row)."""
        order = _grouped(row, shape[0])
        counts = torch.bincount(row, minlength=shape[0])
        return SparseMatrix(pointers(counts).int(), col[order].int(), val[order], shape[1])

    def take_rows(self, index: Tensor) -> SparseMatrix:
        """Some rows, in the given order."""
        if self.val.device.type == "cpu":
            return self._of_scipy(self._scipy[index.numpy()], self.columns)
        start = self.rowptr[index].long()
        lengths = self.rowptr[index + 1].long() - start
        rowptr = pointers(lengths)
        within = torch.arange(int(rowptr[-1]), device=index.device) - torch.repeat_interleave(rowptr[:-1], lengths)
        entry = torch.repeat_interleave(start, lengths) + within
        return SparseMatrix(rowptr.int(), self.col[entry], self.val[entry], self.columns)

    @cached_property
    def _scipy(self) -> scipy.sparse.csr_array:
        """The same memory, for scipy's routines."""
        parts = (self.val.numpy(), self.col.numpy(), self.rowptr.numpy())
        return scipy.sparse.csr_array(parts, shape=(self.rows, self.columns))

    @staticmethod
    def _of_scipy(matrix: scipy.sparse.csr_array | scipy.sparse.csc_array, columns: int) -> SparseMatrix:
        rowptr, col, val = (torch.from_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data))
        return SparseMatrix(rowptr.int(), col.int(), val, columns)

    def times(self, dense: Tensor) -> Tensor:
        """The product with [columns, H], without autograd."""
        return _weighted_sums(dense, self.col, self.rowptr, self.val)

    def to_dense(self) -> Tensor:
        """[rows, columns]."""
        out = self.val.new_zeros(self.rows, self.columns)
        return out.index_put_((self.row, self.col.long()), self.val, accumulate=True)


def _weighted_sums(dense: Tensor, index: Tensor, ptr: Tensor, weight: Tensor | None = None) -> Tensor:
    """Row i is the sum of the rows `index[ptr[i] : ptr[i + 1]]` of `dense`, weighted. What `F.embedding_bag` calls."""
    return torch.embedding_bag(dense, index, ptr, False, 0, False, weight, True)[0]


def _grouped(row: Tensor, rows: int) -> Tensor:
    """The stable order that brings equal rows together."""
    if row.device.type != "cpu":
        return torch.argsort(row, stable=True)
    # Transposing a matrix with one entry a line counts where torch would sort: the same order, six times sooner. With
    # 32-bit numbers it takes half the memory.
    number = torch.arange(row.numel() + 1, dtype=torch.int32 if row.numel() < 2**31 else torch.int64, device="cpu")
    parts = (number[:-1].numpy(), row.to(number.dtype).numpy(), number.numpy())
    return torch.from_numpy(scipy.sparse.csr_array(parts, shape=(row.numel(), rows)).tocsc().data)


def products_at(pattern: SparseMatrix, a_NH: Tensor, b_NH: Tensor) -> Tensor:
    """Inner products of row i of a and row j of b for every entry (i, j) of a matrix, in their order, without autograd."""
    # The gradient of a sparse product in its values: a loop over rows in cache, where gathering both ends fills memory.
    with torch.enable_grad():
        value = b_NH.new_zeros(pattern.col.numel(), requires_grad=True)
        product = SparseMatrix(pattern.rowptr, pattern.col, value, pattern.columns).times(b_NH.detach())
    return torch.autograd.grad(product, value, a_NH)[0]


@dataclass(frozen=True)
class Segments:
    """How the flat node axis is divided among clients."""

    ptr: Tensor

    @cached_property
    def bounds(self) -> list[int]:
        """`ptr` as Python integers."""
        values: list[int] = self.ptr.tolist()
        return values

    @cached_property
    def lengths(self) -> list[int]:
        """Rows of each client."""
        return [end - start for start, end in itertools.pairwise(self.bounds)]

    def pieces(self, value: Tensor) -> tuple[Tensor, ...]:
        """Each client's rows, [N, ...] to K views; one call of torch, where K slices are K calls."""
        return torch.split_with_sizes(value, self.lengths)

    @property
    def clients(self) -> int:
        """K."""
        return self.ptr.numel() - 1

    @property
    def total(self) -> int:
        """N."""
        return self.bounds[-1]

    @cached_property
    def client(self) -> Tensor:
        """The client (position 0..K-1) of each row, int64 [N]."""
        return torch.repeat_interleave(
            torch.arange(self.clients, device=self.ptr.device), self.ptr.diff(), output_size=self.total
        )

    @cached_property
    def place(self) -> Tensor:
        """The place (0, 1, ...) of each row inside its client, int64 [N]."""
        return torch.arange(self.total, device=self.ptr.device) - self.ptr[:-1][self.client]

    @cached_property
    def equal_size(self) -> int | None:
        """The common number of rows, if all clients have as many: then batched products apply."""
        sizes = set(self.ptr.diff().tolist())
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def _everyone(self) -> Tensor:
        return torch.arange(self.total, device=self.ptr.device, dtype=torch.int32)

    @cached_property
    def _short_ptr(self) -> Tensor:
        return self.ptr.int()

    def sum(self, values: Tensor) -> Tensor:
        """Sum over each client's rows, [N, H] to [K, H], without autograd."""
        if self.total == 0:
            return values.new_zeros(self.clients, values.shape[1])
        return _weighted_sums(values, self._everyone, self._short_ptr)


def segments_of(client: Tensor, clients: int) -> Segments:
    """Segments of rows that are sorted by client, from the client of each row."""
    counts = torch.bincount(client, minlength=clients)
    return Segments(pointers(counts))


class Differentiable(torch.autograd.Function):
    """An operation with a backward pass of its own. torch leaves `apply` without types; here it has them."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any:
            """What `forward` returns."""


class _SparseProduct(Differentiable):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(dense)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transposed.times(grads[0].contiguous())


def sparse_product(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    """Matrix @ dense, differentiable in `dense`: message passing, or sparse features times weights."""
    result: Tensor = _SparseProduct.apply(matrix, dense)
    return result


class _StackedProduct(Differentiable):
    """Sparse features times K weights.

    While all clients still hold the same weights (the first step after a broadcast) the product reads one copy of them,
    which stays in cache; gradients are each client's own all the same.
    """

    @staticmethod
    def forward(ctx: Any, plain: SparseMatrix, stacked: SparseMatrix, weight_KFH: Tensor) -> Tensor:
        ctx.stacked, ctx.shape = stacked, weight_KFH.shape
        if is_tiled(weight_KFH):
            return plain.times(weight_KFH[0].contiguous())
        return stacked.times(weight_KFH.reshape(-1, weight_KFH.shape[2]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.stacked.transposed.times(grads[0].contiguous()).view(ctx.shape)


def stacked_product(plain: SparseMatrix, stacked: SparseMatrix, weight_KFH: Tensor) -> Tensor:
    """Rows of `plain` times each owner's weight; `stacked` is `plain` with column f of client k at k * F + f."""
    result: Tensor = _StackedProduct.apply(plain, stacked, weight_KFH)
    return result


class _SegmentProduct(Differentiable):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, weight_KFH: Tensor, segments: Segments) -> Tensor:
        ctx.save_for_backward(x_NF, weight_KFH)
        ctx.segments = segments
        return _blockwise(x_NF, weight_KFH, segments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_NF, weight_KFH = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _blockwise(grad, weight_KFH.transpose(1, 2), ctx.segments)
        if ctx.needs_input_grad[1]:
            grad_weight = _outer(x_NF, grad, ctx.segments)
        return grad_x, grad_weight, None


def _blockwise(x_NF: Tensor, weight_KFH: Tensor, segments: Segments) -> Tensor:
    if is_tiled(weight_KFH):
        return x_NF @ weight_KFH[0]
    out = x_NF.new_empty(segments.total, weight_KFH.shape[2])
    if segments.equal_size is not None:
        # Written into `out`, because autograd forbids changing a view of a result in place, and `activate` does.
        shape = (segments.clients, segments.equal_size)
        stacked = x_NF.reshape(*shape, x_NF.shape[1])
        torch.bmm(stacked, weight_KFH, out=out.view(*shape, weight_KFH.shape[2]))
        return out
    for x_k, weight_k, out_k in zip(segments.pieces(x_NF), weight_KFH.unbind(), segments.pieces(out), strict=True):
        torch.mm(x_k, weight_k, out=out_k)
    return out


def _outer(x_NF: Tensor, grad_NH: Tensor, segments: Segments) -> Tensor:
    """For each client x_k^T grad_k, [K, F, H]."""
    if segments.equal_size is not None:
        shape = (segments.clients, segments.equal_size)
        return torch.bmm(x_NF.reshape(*shape, x_NF.shape[1]).mT, grad_NH.view(*shape, grad_NH.shape[1]))
    out = x_NF.new_empty(segments.clients, x_NF.shape[1], grad_NH.shape[1])
    for x_k, grad_k, out_k in zip(segments.pieces(x_NF), segments.pieces(grad_NH), out.unbind(), strict=True):
        torch.mm(x_k.T, grad_k, out=out_k)
    return out


def segment_product(x_NF: Tensor, weight_KFH: Tensor, segments: Segments) -> Tensor:
    """Each client's rows times its own weight, [N, H]."""
    result: Tensor = _SegmentProduct.apply(x_NF, weight_KFH, segments)
    return result


class _Activate(Differentiable):
    """Bias, ReLU and dropout in one pass, in place.

    After ReLU and dropout an element is positive exactly where both let it through, so the output itself is the mask of
    the backward pass and nothing else is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h_NH: Tensor,
        bias_KH: Tensor | None,
        segments: Segments,
        relu: bool,
        kept: Tensor | None,
        scale: float,
    ) -> Tensor:
        ctx.mark_dirty(h_NH)
        ctx.segments, ctx.relu, ctx.scale = segments, relu, scale
        if bias_KH is not None:
            if is_tiled(bias_KH):
                h_NH.add_(bias_KH[0])
            else:
                torch._foreach_add_(segments.pieces(h_NH), bias_KH.unbind())
        if relu:
            h_NH.relu_()
            if kept is not None:
                torch.ops.aten.threshold_backward.grad_input(h_NH, kept, 0, grad_input=h_NH).mul_(scale)
            ctx.save_for_backward(h_NH)
        return h_NH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        grad = grads[0]
        if ctx.relu:
            (out,) = ctx.saved_tensors
            # One fused pass: threshold_backward is grad where out > 0, else 0.
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
            if ctx.scale != 1.0:
                grad = grad.mul_(ctx.scale)
        grad_bias = ctx.segments.sum(grad.contiguous()) if ctx.needs_input_grad[1] else None
        return grad, grad_bias, None, None, None, None


def activate(
    h_NH: Tensor,
    bias_KH: Tensor | None,
    segments: Segments,
    *,
    relu: bool = True,
    kept: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """dropout(relu(h + bias)), overwriting `h_NH`. Units stay where `kept` [N, H] is above 0; `scale` is 1 / (1 - p)."""
    if kept is not None and not relu:
        raise ValueError("activate drops units after a ReLU only: its backward pass reads the mask from the output")
    result: Tensor = _Activate.apply(h_NH, bias_KH, segments, relu, kept, scale)
    return result


def segment_softmax(score_EA: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Softmax over the edges that share a target node, [E, A]."""
    index = target.unsqueeze(1).expand_as(score_EA)
    top = score_EA.new_full((nodes, score_EA.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, index, score_EA.detach(), "amax")
    weight = (score_EA - top[target]).exp()
    total = torch.zeros_like(top).index_add(0, target, weight)
    return weight / total[target].clamp_min(1e-16)


def client_mean(value_N: Tensor, client: Tensor, clients: int) -> Tensor:
    """Mean of a per-row scalar over each client's rows, [N] to [K], differentiable; zero for a client without any."""
    counts = torch.bincount(client, minlength=clients).clamp_min(1)
    return value_N.new_zeros(clients).index_add(0, client, value_N) / counts
