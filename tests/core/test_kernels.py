# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import softmax

from suture.core.kernels import (
    Segments,
    SparseMatrix,
    activate,
    client_mean,
    pointers,
    products_at,
    segment_product,
    segment_softmax,
    segments_of,
    sparse_product,
)

PTRS = {"unequal": [0, 3, 7, 9], "equal": [0, 3, 6, 9], "with empty clients": [0, 0, 4, 4, 9, 9], "one client": [0, 9]}
every_ptr = pytest.mark.parametrize("ptr", PTRS.values(), ids=PTRS.keys())


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_sparse(rows: int, columns: int, share: float = 0.3, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=rng, dtype=torch.float64)
    return dense * (torch.rand(rows, columns, generator=rng) < share)


def from_dense(dense: Tensor) -> SparseMatrix:
    row, col = dense.nonzero().flip(0).T  # deliberately not sorted by row
    return SparseMatrix.from_coo(row, col, dense[row, col], (dense.shape[0], dense.shape[1]))


def rowwise_weight(weight_KFH: Tensor, segments: Segments) -> Tensor:
    """Every row's own weight [N, F, H]: the slow, obvious way."""
    return weight_KFH[segments.client]


class TestSparseMatrix:
    def test_dense_round_trip_with_empty_rows_and_columns(self) -> None:
        dense = random_sparse(6, 5)
        dense[2] = 0
        dense[:, 3] = 0
        matrix = from_dense(dense)
        assert (matrix.rows, matrix.columns) == (6, 5)
        assert torch.equal(matrix.to_dense(), dense)
        assert torch.equal(matrix.row, dense.nonzero()[:, 0])
        assert torch.equal(matrix.transposed.to_dense(), dense.T)

    def test_repeated_coordinates_add_up(self) -> None:
        row, col = torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2])
        matrix = SparseMatrix.from_coo(row, col, torch.tensor([1.0, 5.0, 2.0]), (2, 3))
        assert matrix.to_dense().tolist() == [[5.0, 0.0, 0.0], [0.0, 0.0, 3.0]]
        assert matrix.times(torch.eye(3)).tolist() == matrix.to_dense().tolist()

    @pytest.mark.parametrize("index", [[0, 1, 2], [5, 0, 5, 2], [2], []])
    def test_take_rows_is_indexing(self, index: list[int]) -> None:
        dense = random_sparse(6, 5)
        dense[2] = 0
        taken = from_dense(dense).take_rows(torch.tensor(index, dtype=torch.int64))
        assert torch.equal(taken.to_dense(), dense[index])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_times_is_the_matrix_product(self, dtype: torch.dtype) -> None:
        dense, other = random_sparse(8, 6).to(dtype), normal(6, 17, dtype=dtype)
        torch.testing.assert_close(from_dense(dense).times(other), dense @ other)

    def test_a_matrix_without_entries_gives_zeros(self) -> None:
        nothing = torch.empty(0, dtype=torch.int64)
        matrix = SparseMatrix.from_coo(nothing, nothing, torch.empty(0), (3, 2))
        dense = torch.ones(2, 4, requires_grad=True)
        out = sparse_product(matrix, dense)
        out.sum().backward()
        assert torch.equal(out, torch.zeros(3, 4))
        assert dense.grad is not None and torch.equal(dense.grad, torch.zeros(2, 4))

    def test_sparse_product_gradient(self) -> None:
        matrix = from_dense(random_sparse(7, 5))
        assert torch.autograd.gradcheck(lambda d: sparse_product(matrix, d), normal(5, 3).requires_grad_())

    def test_sparse_product_takes_a_gradient_that_is_not_contiguous(self) -> None:
        dense = random_sparse(4, 5)
        other = normal(5, 3).requires_grad_()
        (sparse_product(from_dense(dense), other).T.contiguous() * normal(3, 4)).sum().backward()
        assert other.grad is not None
        torch.testing.assert_close(other.grad, dense.T @ normal(3, 4).T)


class TestSegments:
    @every_ptr
    def test_views_of_the_same_division_agree(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        assert segments.clients == len(ptr) - 1
        assert segments.total == 9
        assert segments.client.tolist() == [k for k in range(len(ptr) - 1) for _ in range(ptr[k + 1] - ptr[k])]
        assert segments.place.tolist() == [i for first, last in itertools.pairwise(ptr) for i in range(last - first)]

    def test_pointers_are_the_running_sum_from_zero_on(self) -> None:
        for lengths in ([3, 0, 4], [0], []):
            found = pointers(torch.tensor(lengths, dtype=torch.int64))
            assert found.tolist() == list(itertools.accumulate(lengths, initial=0)) and found.dtype == torch.int64

    def test_equal_size_is_found(self) -> None:
        assert Segments(torch.tensor([0, 3, 6, 9])).equal_size == 3
        assert Segments(torch.tensor([0, 3, 6, 8])).equal_size is None
        assert Segments(torch.tensor([0, 4])).equal_size == 4

    @every_ptr
    def test_sums(self, ptr: list[int]) -> None:
        segments, values = Segments(torch.tensor(ptr)), normal(9, 4)
        expected = torch.stack([values[a:b].sum(0) for a, b in itertools.pairwise(ptr)])
        torch.testing.assert_close(segments.sum(values), expected)
        mean = client_mean(values[:, 0], segments.client, segments.clients)
        torch.testing.assert_close(mean, expected[:, 0] / torch.tensor(ptr).diff().clamp_min(1))

    @every_ptr
    def test_segments_of_a_sorted_list_of_clients(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        assert segments_of(segments.client, segments.clients).ptr.tolist() == ptr

    def test_sum_of_nothing_is_zero(self) -> None:
        assert torch.equal(Segments(torch.tensor([0, 0, 0])).sum(torch.empty(0, 3)), torch.zeros(2, 3))

    def test_client_mean_gradient_whatever_the_order_of_rows(self) -> None:
        client = torch.tensor([3, 1, 1, 3, 0, 3, 1, 1, 0])
        assert torch.autograd.gradcheck(lambda v: client_mean(v.square(), client, 5), normal(9).requires_grad_())


class TestSegmentProduct:
    @every_ptr
    def test_is_each_row_times_its_clients_weight(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        x, weight = normal(9, 4), normal(segments.clients, 4, 3, seed=1)
        expected = torch.einsum("nf,nfh->nh", x, rowwise_weight(weight, segments))
        torch.testing.assert_close(segment_product(x, weight, segments), expected)

    @every_ptr
    def test_gradient(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        inputs = (normal(9, 4).requires_grad_(), normal(segments.clients, 4, 3, seed=1).requires_grad_())
        assert torch.autograd.gradcheck(lambda x, w: segment_product(x, w, segments), inputs)

    @pytest.mark.parametrize(("wide", "out"), [(4, 20), (20, 3), (20, 20)], ids=["to many", "to few", "many"])
    @pytest.mark.parametrize("tiled", [False, True])
    @every_ptr
    def test_many_and_few_columns(self, ptr: list[int], tiled: bool, wide: int, out: int) -> None:
        segments = Segments(torch.tensor(ptr))
        x, weight = normal(9, wide).requires_grad_(), normal(segments.clients, wide, out, seed=1).requires_grad_()
        used = weight[:1].expand_as(weight) if tiled else weight
        expected = torch.einsum("nf,nfh->nh", x, rowwise_weight(used, segments))
        cotangent, got = normal(9, out, seed=2), segment_product(x, used, segments)
        torch.testing.assert_close(got, expected)
        ours = torch.autograd.grad((got * cotangent).sum(), (x, weight))
        for mine, other in zip(ours, torch.autograd.grad((expected * cotangent).sum(), (x, weight)), strict=True):
            torch.testing.assert_close(mine, other)

    @every_ptr
    def test_gradient_of_a_tiled_weight_is_summed_over_clients(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        inputs = (normal(9, 4).requires_grad_(), normal(1, 4, 3, seed=1).requires_grad_())
        assert torch.autograd.gradcheck(lambda x, w: segment_product(x, w.expand(segments.clients, 4, 3), segments), inputs)

    def test_rows_that_are_not_contiguous(self) -> None:
        segments = Segments(torch.tensor([0, 3, 6, 9]))
        wide, weight = normal(9, 8), normal(3, 4, 3, seed=1).requires_grad_()
        out = segment_product(wide[:, ::2], weight, segments)
        torch.testing.assert_close(out, segment_product(wide[:, ::2].contiguous(), weight, segments))
        assert torch.autograd.gradcheck(lambda w: segment_product(wide[:, ::2], w, segments), weight)

    def test_nobody_has_a_row(self) -> None:
        segments, weight = Segments(torch.tensor([0, 0, 0])), torch.ones(2, 4, 3, requires_grad=True)
        out = segment_product(torch.empty(0, 4), weight, segments)
        out.sum().backward()
        assert out.shape == (0, 3)
        assert weight.grad is not None and not weight.grad.any()


class TestActivate:
    """Against the same formula in plain autograd."""

    @every_ptr
    @pytest.mark.parametrize("tiled", [False, True])
    @pytest.mark.parametrize("relu", [False, True])
    def test_bias_and_relu(self, ptr: list[int], tiled: bool, relu: bool) -> None:
        segments = Segments(torch.tensor(ptr))
        bias = normal(1 if tiled else segments.clients, 4, seed=1).requires_grad_()
        full = bias.expand(segments.clients, 4)
        h = normal(9, 4).requires_grad_()
        expected = h + full[segments.client]
        self._compare(activate(h.clone(), full, segments, relu=relu), F.relu(expected) if relu else expected, h, bias)

    @every_ptr
    def test_dropout_mask(self, ptr: list[int]) -> None:
        segments = Segments(torch.tensor(ptr))
        bias, h = normal(segments.clients, 4, seed=1).requires_grad_(), normal(9, 4).requires_grad_()
        kept = 0.6 - torch.rand(9, 4, generator=torch.Generator().manual_seed(2))
        out = activate(h.clone(), bias, segments, kept=kept, scale=1 / 0.6)
        assert (out == 0).any() and (out > 0).any()
        self._compare(out, F.relu(h + bias[segments.client]) * (kept > 0) / 0.6, h, bias)

    @staticmethod
    def _compare(out: Tensor, expected: Tensor, *leaves: Tensor) -> None:
        torch.testing.assert_close(out, expected)
        cotangent = normal(*out.shape, seed=9)
        ours = torch.autograd.grad((out * cotangent).sum(), leaves)
        theirs = torch.autograd.grad((expected * cotangent).sum(), leaves)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other)

    def test_without_a_bias(self) -> None:
        h = normal(9, 4).requires_grad_()
        out = activate(h.clone(), None, Segments(torch.tensor([0, 4, 9])))
        self._compare(out, F.relu(h), h)

    def test_a_trained_bias_on_constant_activations(self) -> None:
        segments, bias = Segments(torch.tensor([0, 4, 9])), normal(2, 4, seed=1).requires_grad_()
        self._compare(activate(normal(9, 4), bias, segments), F.relu(normal(9, 4) + bias[segments.client]), bias)

    def test_works_in_place_on_fresh_memory_and_on_a_view(self) -> None:
        segments, h = Segments(torch.tensor([0, 4, 9])), normal(9, 2, 2).requires_grad_()
        fresh = (h * 1.0).flatten(1)
        out = activate(fresh, None, segments)
        assert out.data_ptr() == fresh.data_ptr()
        self._compare(out, F.relu(h.flatten(1)), h)

    def test_a_mask_without_relu_is_refused_instead_of_ignored(self) -> None:
        with pytest.raises(ValueError, match="after a ReLU only"):
            activate(normal(2, 2), None, Segments(torch.tensor([0, 2])), relu=False, kept=torch.ones(2, 2))


class TestSegmentSoftmax:
    def test_equals_pyg(self) -> None:
        target = torch.tensor([0, 2, 2, 5, 0, 5, 5, 2])  # nodes 1, 3, 4 hear from nobody
        score = (3 * normal(8, 3)).requires_grad_()
        ours, theirs = segment_softmax(score, target, 6), softmax(score, target, num_nodes=6)
        torch.testing.assert_close(ours, theirs)
        cotangent = normal(8, 3, seed=1)
        torch.testing.assert_close(
            torch.autograd.grad((ours * cotangent).sum(), score)[0],
            torch.autograd.grad((theirs * cotangent).sum(), score)[0],
        )

    def test_gradient(self) -> None:
        target = torch.tensor([0, 1, 1, 0, 1])
        assert torch.autograd.gradcheck(lambda s: segment_softmax(s, target, 2), normal(5, 2).requires_grad_())

    def test_large_scores_neither_overflow_nor_vanish(self) -> None:
        score = torch.tensor([[1e4], [1e4 - 1], [-1e4]])
        out = segment_softmax(score, torch.tensor([0, 0, 1]), 2).flatten()
        assert out[2] == 1
        torch.testing.assert_close(out[:2], torch.tensor([1.0, 0.0]).softmax(0))


def test_products_at_the_entries_of_a_matrix() -> None:
    """In the order of entries, one that is there twice included."""
    rng = torch.Generator().manual_seed(0)
    row, col = torch.tensor([2, 0, 2, 1, 2]), torch.tensor([1, 3, 1, 0, 0])
    pattern = SparseMatrix.from_coo(row, col, torch.ones(5), (3, 4))
    assert pattern.col.tolist() == [3, 0, 1, 1, 0]
    a, b = torch.randn(3, 7, generator=rng), torch.randn(4, 7, generator=rng)
    torch.testing.assert_close(products_at(pattern, a, b), (a @ b.T)[pattern.row, pattern.col.long()])
    nothing = SparseMatrix.from_coo(row[:0], col[:0], torch.ones(0), (3, 4))
    assert products_at(nothing, a, b).shape == (0,)
