"""Mended graphs: who is linked to whom, and that nothing else changed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from suture.core.kernels import SparseMatrix
from suture.core.message import Rows
from suture.graph.batch import Features, GraphBatch, batch_of
from suture.graph.synthetic import contextual_block_model
from suture.methods.fedsage_plus.patch import Patch, kept_entries, largest_entries, no_patch, with_generated_nodes


def _clients(dense: bool = False) -> GraphBatch:
    data = contextual_block_model(nodes=30, classes=3, features=12, degree=2.5, communities=1, seed=1)
    members = [torch.arange(0, 12), torch.arange(12, 20), torch.arange(20, 30)]
    roles = (torch.arange(30) % 3 + 1).to(torch.int8)
    graph = batch_of(data, ["a", "b", "c"], members, [roles[m] for m in members], [False] * 3)
    x = graph.x.dense()
    row, col = torch.nonzero(x, as_tuple=True)
    matrix = x if dense else SparseMatrix.from_coo(row, col, x[row, col], (30, 12))
    return dataclasses.replace(graph, x=Features(matrix, graph.segments))


def _patch(graph: GraphBatch) -> tuple[Patch, torch.Tensor]:
    """Two generated nodes for the first client (both of its node 3), none for the second, one for the third."""
    rows = torch.rand(3, 12, generator=torch.Generator().manual_seed(0))
    column, value = largest_entries(rows, 12)
    ptr = torch.tensor([0, 2, 2, 3])
    return Patch(graph.ids, Rows(torch.tensor([3, 3, 9]).int(), ptr), Rows(column, ptr), Rows(value, ptr)), rows


@pytest.mark.parametrize("dense", [False, True])
def test_generated_nodes_hang_off_their_source(dense: bool) -> None:
    graph = _clients(dense)
    patch, rows = _patch(graph)
    grown = with_generated_nodes(graph, patch)
    assert grown.segments.ptr.tolist() == [0, 14, 22, 33]
    new, sources = [12, 13, 32], [3, 3, 22 + 9]
    for node, source, row in zip(new, sources, rows, strict=True):
        heard = grown.edge_index[0, grown.edge_index[1] == node].tolist()
        assert heard == [source]
        assert node in grown.edge_index[0, grown.edge_index[1] == source].tolist()
        torch.testing.assert_close(grown.x.dense()[node], row)
    assert grown.role[new].tolist() == [0, 0, 0]
    assert grown.node_id[new].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("dense", [False, True])
def test_own_nodes_are_as_they_were(dense: bool) -> None:
    graph = _clients(dense)
    grown = with_generated_nodes(graph, _patch(graph)[0])
    again = grown.induced(torch.nonzero(grown.node_id >= 0).squeeze(1))
    assert {tuple(e) for e in again.edge_index.T.tolist()} == {tuple(e) for e in graph.edge_index.T.tolist()}
    torch.testing.assert_close(again.x.dense(), graph.x.dense())
    for name in ("y", "role", "node_id"):
        assert torch.equal(getattr(again, name), getattr(graph, name))
    assert torch.equal(grown.num_train, graph.num_train)


def test_a_client_mends_the_same_way_alone() -> None:
    graph = _clients()
    patch, _ = _patch(graph)
    together, alone = (
        with_generated_nodes(graph, patch).select(["c"]),
        with_generated_nodes(graph.select(["c"]), patch.select(["c"])),
    )
    assert torch.equal(together.edge_index.sort(1).values, alone.edge_index.sort(1).values)
    assert torch.equal(together.x.dense(), alone.x.dense())


def test_nothing_generated_changes_nothing() -> None:
    graph = _clients()
    assert with_generated_nodes(graph, no_patch(graph, 4)) is graph


def test_the_largest_entries_are_kept() -> None:
    rows = torch.tensor([[0.1, -0.9, 0.0, 0.5], [0.0, 0.2, 0.3, 0.1]])
    column, value = largest_entries(rows, 2)
    assert column.tolist() == [[1, 3], [1, 2]]
    torch.testing.assert_close(value, torch.tensor([[-0.9, 0.5], [0.2, 0.3]]))
    assert kept_entries(_clients(dense=False).x, 5) == 5
    assert kept_entries(_clients(dense=True).x, 5) == 12
