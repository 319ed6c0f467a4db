"""Impairing against networkx and by hand."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.impair import hidden_nodes, impair
from suture.graph.synthetic import contextual_block_model


def _clients(sizes: tuple[int, ...] = (50, 35, 25, 8, 2)) -> GraphBatch:
    data = contextual_block_model(nodes=120, classes=3, features=40, degree=6.0, communities=2, seed=1)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(3))
    members = [piece.sort().values for piece in order.split(list(sizes))]
    roles = (torch.arange(120) % 4).to(torch.int8)
    ids = [f"owner-{k}" for k in range(len(sizes))]
    return batch_of(data, ids, members, [roles[m] for m in members], [False] * len(sizes))


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 0.95])
def test_what_is_left_and_what_was_hidden(share: float) -> None:
    graph = _clients()
    rng = Streams.of(0, graph.ids, "impair")
    impaired = impair(graph, share, rng)
    whole = nx.Graph()
    whole.add_nodes_from(range(graph.num_nodes))
    whole.add_edges_from(graph.edge_index.T.tolist())
    remaining = impaired.remaining.tolist()
    concealed = set(range(graph.num_nodes)) - set(remaining)
    assert concealed == set(torch.nonzero(hidden_nodes(graph, share, rng)).squeeze(1).tolist())

    left = {(remaining[a], remaining[b]) for a, b in impaired.graph.edge_index.T.tolist()}
    assert left == {pair for a, b in whole.subgraph(remaining).edges for pair in ((a, b), (b, a))}
    for v, node in enumerate(remaining):
        start, end = impaired.hidden.rowptr[v : v + 2].tolist()
        lost = set(whole[node]) & concealed
        assert set(impaired.hidden.col[start:end].tolist()) == lost
        assert int(impaired.count[v]) == len(lost) == end - start
    assert int(impaired.count.sum()) > 0


def test_remaining_nodes_keep_everything_they_had() -> None:
    graph = _clients()
    impaired = impair(graph, 0.3, Streams.of(0, graph.ids, "impair"))
    kept = impaired.remaining
    torch.testing.assert_close(impaired.graph.x.dense(), graph.x.dense()[kept])
    for name in ("y", "role", "node_id"):
        assert torch.equal(getattr(impaired.graph, name), getattr(graph, name)[kept])
    assert torch.equal(impaired.graph.segments.client, graph.segments.client[kept])


def test_every_client_loses_its_share_but_never_everything() -> None:
    graph = _clients()
    for share, expected in ((0.2, [10, 7, 5, 2, 1]), (0.001, [1, 1, 1, 1, 1]), (0.99, [49, 34, 24, 7, 1])):
        concealed = hidden_nodes(graph, share, Streams.of(0, graph.ids, "impair"))
        assert torch.bincount(graph.segments.client[concealed], minlength=5).tolist() == expected


def test_a_client_hides_the_same_nodes_alone_and_others_under_another_seed() -> None:
    graph = _clients()
    together = hidden_nodes(graph, 0.3, Streams.of(0, graph.ids, "impair"))
    alone = graph.select(["owner-2"])
    mine = hidden_nodes(alone, 0.3, Streams.of(0, alone.ids, "impair"))
    assert torch.equal(mine, together[graph.segments.client == 2])
    assert not torch.equal(together, hidden_nodes(graph, 0.3, Streams.of(1, graph.ids, "impair")))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_refuses_to_hide_nothing_or_everything(share: float) -> None:
    graph = _clients()
    with pytest.raises(ConfigError, match="share of hidden nodes"):
        impair(graph, share, Streams.of(0, graph.ids, "impair"))
