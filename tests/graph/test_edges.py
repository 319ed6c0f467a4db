"""Operators of edges with direction and weights, against PyG's and dense algebra."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce, remove_self_loops, to_dense_adj, to_undirected

from suture.core.kernels import Segments
from suture.core.streams import Streams
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.edges import symmetric
from suture.graph.impair import impair
from suture.graph.target import Target

NODES = 40
MEMBERS = [torch.arange(0, 18), torch.arange(15, 22), torch.arange(22, 40)]
IDS = ("a", "b", "c")


def weighted_data(seed: int = 0, *, undirected: bool = False) -> Data:
    rng = torch.Generator().manual_seed(seed)
    edges = coalesce(remove_self_loops(torch.randint(NODES, (2, 8 * NODES), generator=rng))[0])
    weight = torch.rand(edges.shape[1], generator=rng) * 4 + 0.01
    if undirected:
        edges, weight = to_undirected(edges, weight, NODES, reduce="mean")
    x = torch.randn(NODES, 5, generator=rng)
    return Data(x=x, edge_index=edges, edge_weight=weight, y=torch.arange(NODES) % 3)


def weighted_batch(seed: int = 0, *, undirected: bool = False) -> GraphBatch:
    roles = [torch.ones(m.numel(), dtype=torch.int8) for m in MEMBERS]
    return batch_of(weighted_data(seed, undirected=undirected), IDS, MEMBERS, roles, [False, False, True])


def dense(batch: GraphBatch) -> Tensor:
    """Entry (v, u): what the edge from u to v weighs."""
    adjacency: Tensor = to_dense_adj(batch.edge_index, edge_attr=batch.edge_weight, max_num_nodes=batch.num_nodes)[0].T
    return adjacency


def named(data: Data) -> dict[tuple[int, int], float]:
    """Weights by the owners' own numbers of both ends."""
    ends = data.node_id[data.edge_index].T.tolist()
    return {(u, v): w for (u, v), w in zip(ends, data.edge_weight.tolist(), strict=True)}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("undirected", [False, True])
def test_gcn_operator_is_pygs(seed: int, undirected: bool) -> None:
    batch = weighted_batch(seed, undirected=undirected)
    edges, weight = gcn_norm(batch.edge_index, batch.edge_weight, num_nodes=batch.num_nodes)
    expected = to_dense_adj(edges, edge_attr=weight, max_num_nodes=batch.num_nodes)[0].T
    torch.testing.assert_close(batch.gcn_operator.to_dense(), expected)
    symmetric = torch.allclose(expected, expected.T)
    assert symmetric == undirected


@pytest.mark.parametrize("undirected", [False, True])
def test_mean_operator_is_the_weighted_mean(undirected: bool) -> None:
    batch = weighted_batch(undirected=undirected)
    adjacency = dense(batch)
    total = adjacency.sum(1, keepdim=True)
    assert (total == 0).any()
    torch.testing.assert_close(batch.mean_operator.to_dense(), adjacency / torch.where(total > 0, total, 1.0))
    torch.testing.assert_close(batch.weighted_neighbours.to_dense(), adjacency)
    assert torch.equal(batch.weighted_neighbours.col, batch.neighbours.col)
    assert torch.equal(batch.degree, (adjacency > 0).sum(1).float())


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_equal_weights_leave_the_mean_as_it_is(weight: float) -> None:
    batch = weighted_batch()
    alike = dataclasses.replace(batch, edge_weight=torch.full((batch.edge_index.shape[1],), weight))
    plain = dataclasses.replace(batch, edge_weight=None)
    torch.testing.assert_close(alike.mean_operator.to_dense(), plain.mean_operator.to_dense())
    same = torch.allclose(alike.gcn_operator.to_dense(), plain.gcn_operator.to_dense())
    assert same == (weight == 1.0), "the self loops of a GCN weigh one"


def test_weights_follow_their_edges_through_every_selection() -> None:
    data, batch = weighted_data(), weighted_batch()
    data.node_id = torch.arange(NODES)
    truth = named(data)
    inside = {0: set(range(18)), 1: set(range(15, 22))}
    for k, members in inside.items():
        expected = {ends: w for ends, w in truth.items() if set(ends) <= members}
        assert named(batch.client_data(k)) == expected
        assert named(batch.select(["c", IDS[k]]).client_data(1)) == expected
    assert not batch.client_data(2).edge_weight.numel()
    part = batch.induced(torch.tensor([0, 2, 3, 9, 20, 24]))
    assert all(truth[ends] == w for k in range(3) for ends, w in named(part.client_data(k)).items())
    assert part.edge_weight is not None and part.edge_weight.numel() > 0


def test_the_target_is_carried_along() -> None:
    batch = dataclasses.replace(weighted_batch(), target=Target("value", shift=(1.0,), scale=(2.0,)))
    assert batch.select(["b"]).target == batch.target
    assert batch.induced(torch.arange(5)).target == batch.target
    moved = batch.to(torch.device("meta"))
    assert moved.target == batch.target
    assert moved.edge_weight is not None and moved.edge_weight.device.type == "meta"


def test_weights_that_do_not_fit_the_edges_are_a_mistake() -> None:
    batch = weighted_batch()
    with pytest.raises(ValueError, match="edge_weight has shape"):
        dataclasses.replace(batch, edge_index=batch.edge_index[:, :-1])


def test_which_clients_have_directed_edges() -> None:
    assert weighted_batch().directed.tolist() == [True, True, False]
    assert not weighted_batch(undirected=True).directed.any()
    batch = weighted_batch(undirected=True)
    assert batch.edge_weight is not None
    first_of_b = int(torch.nonzero(batch.segments.client[batch.edge_index[0]] == 1)[0])
    heavier = batch.edge_weight.clone()
    heavier[first_of_b] += 1
    assert dataclasses.replace(batch, edge_weight=heavier).directed.tolist() == [False, True, False]
    kept = torch.arange(batch.edge_index.shape[1]) != first_of_b
    one_less = dataclasses.replace(batch, edge_index=batch.edge_index[:, kept], edge_weight=batch.edge_weight[kept])
    assert one_less.directed.tolist() == [False, True, False]


def test_mean_weights() -> None:
    batch = weighted_batch()
    assert batch.edge_weight is not None
    owner = batch.segments.client[batch.edge_index[1]]
    expected = [float(batch.edge_weight[owner == k].mean()) for k in range(2)]
    assert batch.mean_weight.tolist() == pytest.approx([*expected, 1.0])
    assert dataclasses.replace(batch, edge_weight=None).mean_weight.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("undirected", [False, True])
def test_symmetric_is_the_larger_of_both(undirected: bool) -> None:
    batch = weighted_batch(undirected=undirected)
    edges, weight = symmetric(batch.edge_index, batch.edge_weight, batch.num_nodes)
    adjacency = dense(batch)
    made = to_dense_adj(edges, edge_attr=weight, max_num_nodes=batch.num_nodes)[0]
    assert torch.equal(made, torch.maximum(adjacency, adjacency.T))
    plain, none = symmetric(batch.edge_index, None, batch.num_nodes)
    assert none is None
    assert torch.equal(plain, edges)


def test_hidden_neighbours_keep_their_weights() -> None:
    batch = weighted_batch()
    hurt = impair(batch, 0.3, Streams.of(0, batch.ids))
    adjacency, hidden = dense(batch), hurt.hidden.to_dense()
    gone = torch.ones(batch.num_nodes, dtype=torch.bool)
    gone[hurt.remaining] = False
    assert torch.equal(hidden, adjacency[hurt.remaining] * gone)
    assert torch.equal(dense(hurt.graph), adjacency[hurt.remaining][:, hurt.remaining])
    assert isinstance(hurt.graph.segments, Segments)
