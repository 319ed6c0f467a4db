# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch, batch_of
from suture.nn.backbones import Sage
from suture.nn.sampler import sample_batch, sample_neighbours
from suture.settings import ModelSettings

SIZES = (20, 6, 35)


def toy_batch(*, sparse: bool = False) -> GraphBatch:
    """Three clients; the last node of each is isolated, the first of each is a hub."""
    rng = torch.Generator().manual_seed(0)
    nodes = sum(SIZES)
    members = torch.arange(nodes).split(SIZES)
    hubs = torch.cat([torch.stack([m[0].expand(m.numel() - 2), m[1:-1]]) for m in members], dim=1)
    edges = torch.cat([torch.randint(nodes, (2, 3 * nodes), generator=rng), hubs], dim=1)
    edges = edges[:, ~torch.isin(edges, torch.stack([m[-1] for m in members])).any(0)]
    x = torch.randn(nodes, 7, generator=rng)
    data = Data(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=coalesce(to_undirected(remove_self_loops(edges)[0])),
        y=torch.zeros(nodes, dtype=torch.int64),
    )
    roles = [torch.ones(size, dtype=torch.int8) for size in SIZES]
    return batch_of(data, ["a", "b", "c"], members, roles, [False] * 3)


def neighbours_of(graph: GraphBatch) -> dict[int, set[int]]:
    listed: dict[int, set[int]] = {node: set() for node in range(graph.num_nodes)}
    for source, target in graph.edge_index.T.tolist():
        listed[target].add(source)
    return listed


def sampled_lists(nodes: Tensor, position: Tensor, neighbour: Tensor) -> dict[int, list[int]]:
    lists: dict[int, list[int]] = {node: [] for node in nodes.tolist()}
    for p, v in zip(position.tolist(), neighbour.tolist(), strict=True):
        lists[int(nodes[p])].append(v)
    return lists


def every_node(graph: GraphBatch) -> Tensor:
    return torch.arange(graph.num_nodes)


@pytest.mark.parametrize("fanout", [1, 3, 100])
def test_without_replacement_draws_distinct_true_neighbours(fanout: int) -> None:
    graph = toy_batch()
    drawn = sample_neighbours(every_node(graph), fanout, graph, Streams.of(0, graph.ids), replace=False)
    for node, known in neighbours_of(graph).items():
        sampled = sampled_lists(every_node(graph), *drawn[:2])[node]
        assert len(sampled) == min(len(known), fanout)
        assert len(set(sampled)) == len(sampled)
        assert set(sampled) <= known


@pytest.mark.parametrize("fanout", [1, 3, 50])
def test_with_replacement_draws_exactly_the_fanout(fanout: int) -> None:
    graph = toy_batch()
    drawn = sample_neighbours(every_node(graph), fanout, graph, Streams.of(0, graph.ids), replace=True)
    for node, known in neighbours_of(graph).items():
        sampled = sampled_lists(every_node(graph), *drawn[:2])[node]
        assert len(sampled) == (fanout if known else 0)
        assert set(sampled) <= known


@pytest.mark.parametrize("replace", [False, True])
def test_every_neighbour_is_as_likely(replace: bool) -> None:
    graph = toy_batch()
    hub = torch.tensor([SIZES[0] + SIZES[1]])  # the hub of client c
    known = sorted(neighbours_of(graph)[int(hub)])
    assert len(known) >= 30
    _, drawn, _ = sample_neighbours(hub.repeat(5000), 3, graph, Streams.of(1, graph.ids), replace=replace)
    counts = torch.bincount(drawn, minlength=graph.num_nodes)[known]
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_every_pair_is_as_likely_without_replacement() -> None:
    graph = toy_batch()
    node = next(v for v, known in neighbours_of(graph).items() if len(known) == 5)
    _, drawn, _ = sample_neighbours(torch.tensor([node] * 5000), 2, graph, Streams.of(2, graph.ids), replace=False)
    _, counts = torch.unique(drawn.view(5000, 2).sort(dim=1).values, dim=0, return_counts=True)
    assert counts.numel() == 10
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("replace", [False, True])
def test_a_client_samples_the_same_alone_and_in_company(replace: bool) -> None:
    graph = toy_batch()
    seeds = torch.tensor([0, 3, 19, 20, 22, 26, 30, 31, 60])
    together = sample_batch(graph, seeds, (3, 2), Streams.of(0, graph.ids), replace=replace)
    for k, name in enumerate(graph.ids):
        start = graph.segments.bounds[k]
        own = graph.segments.client[seeds] == k
        one = graph.select([name])
        alone = sample_batch(one, seeds[own] - start, (3, 2), Streams.of(0, [name]), replace=replace)
        inputs = together.inputs.segments.client == k
        assert torch.equal(alone.inputs.dense(), together.inputs.dense()[inputs])
        for ours, theirs, previous in zip(alone.blocks, together.blocks, (inputs, None), strict=True):
            rows = theirs.segments.client == k
            columns = previous if previous is not None else together.blocks[0].segments.client == k
            assert torch.equal(ours.mean.to_dense(), theirs.mean.to_dense()[rows][:, columns])


@pytest.mark.parametrize("replace", [False, True])
def test_nobody_hears_from_another_client(replace: bool) -> None:
    graph = toy_batch()
    batch = sample_batch(graph, every_node(graph), (4, 4), Streams.of(0, graph.ids), replace=replace)
    owner = batch.inputs.segments.client
    for block in batch.blocks:
        assert torch.equal(block.segments.client[block.mean.row], owner[block.mean.col.long()])
        assert torch.equal(block.segments.client, owner[block.targets])
        owner = block.segments.client


def test_each_hop_is_drawn_anew() -> None:
    graph = toy_batch()
    inner, outer = sample_batch(graph, every_node(graph), (3, 3), Streams.of(0, graph.ids), replace=False).blocks
    assert inner.mean.rows == outer.mean.rows == graph.num_nodes
    assert not torch.equal(inner.mean.to_dense(), outer.mean.to_dense())


def test_a_block_averages_and_an_isolated_node_gets_zero() -> None:
    graph = toy_batch()
    (block,) = sample_batch(graph, every_node(graph), (3,), Streams.of(0, graph.ids), replace=True).blocks
    sums = block.mean.to_dense().sum(1)
    isolated = torch.tensor([not known for known in neighbours_of(graph).values()])
    assert isolated.sum() >= 3
    torch.testing.assert_close(sums[~isolated], torch.ones(int((~isolated).sum())))
    assert not sums[isolated].any()


def random_params(clients: int, *, head: bool, layers: int) -> tuple[Sage, Tree]:
    settings = ModelSettings("sage", layers=layers, hidden=8, head=head)
    rng = torch.Generator().manual_seed(3)
    backbone = Sage(settings, 7, 4)
    single = backbone.init(rng)
    return backbone, {n: v + 0.3 * torch.randn(clients, *v.shape[1:], generator=rng) for n, v in single.items()}


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_fanout_above_every_degree_is_the_full_batch(sparse: bool, layers: int, head: bool) -> None:
    graph = toy_batch(sparse=sparse)
    backbone, params = random_params(3, head=head, layers=layers)
    seeds = torch.tensor([1, 2, 19, 20, 25, 27, 40, 60])
    batch = sample_batch(graph, seeds, (100,) * layers, Streams.of(0, graph.ids), replace=False)
    ours = {n: v.clone().requires_grad_() for n, v in params.items()}
    theirs = {n: v.clone().requires_grad_() for n, v in params.items()}
    sampled, full = backbone.sampled_logits(ours, batch), backbone.logits(theirs, graph)[seeds]
    torch.testing.assert_close(sampled, full, atol=1e-5, rtol=1e-5)
    mine = torch.autograd.grad(sampled.square().sum(), list(ours.values()))
    wanted = torch.autograd.grad(full.square().sum(), list(theirs.values()))
    for left, right in zip(mine, wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_seeds_keep_the_order_they_come_in() -> None:
    graph = toy_batch()
    backbone, params = random_params(3, head=False, layers=2)
    seeds = torch.tensor([5, 1, 3, 24, 21, 60, 30])  # sorted by client only, as a shuffled epoch gives them
    batch = sample_batch(graph, seeds, (100, 100), Streams.of(0, graph.ids), replace=False)
    torch.testing.assert_close(
        backbone.sampled_logits(params, batch), backbone.logits(params, graph)[seeds], atol=1e-5, rtol=1e-5
    )


def test_clients_without_seeds_are_left_out() -> None:
    graph = toy_batch()
    backbone, params = random_params(3, head=True, layers=2)
    seeds = torch.tensor([21, 23])
    batch = sample_batch(graph, seeds, (100, 100), Streams.of(0, graph.ids), replace=False)
    torch.testing.assert_close(
        backbone.sampled_logits(params, batch), backbone.logits(params, graph)[seeds], atol=1e-5, rtol=1e-5
    )


def test_the_sampled_mean_is_unbiased() -> None:
    """One layer is linear in the mean of its neighbours, so sampled logits average to the full ones."""
    graph = toy_batch()
    backbone, params = random_params(3, head=False, layers=1)
    rng, seeds = Streams.of(4, graph.ids), every_node(graph)
    batches = (sample_batch(graph, seeds, (2,), rng.fork(i), replace=False) for i in range(400))
    drawn = torch.stack([backbone.sampled_logits(params, batch) for batch in batches])
    error = drawn.std(0) / 400**0.5
    assert ((drawn.mean(0) - backbone.logits(params, graph)).abs() <= 5 * error + 1e-5).all()
