from __future__ import annotations

import igraph
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import homophily, is_undirected

from suture.errors import ConfigError
from suture.graph.data import fingerprint
from suture.graph.synthetic import block_communities, contextual_block_model


class TestBlockCommunities:
    @pytest.mark.parametrize(
        ("clients", "p_in", "p_out"), [((5, 5, 40), 0.5, 0.1), ((5, 15), 0.7, 0.01)], ids=["figure 1", "figure 3"]
    )
    def test_settings_of_the_paper(self, clients: tuple[int, ...], p_in: float, p_out: float) -> None:
        data = block_communities(clients, p_in=p_in, p_out=p_out)
        nodes = 30 * sum(clients)
        assert data.num_nodes == nodes
        assert torch.bincount(data.client).tolist() == [30] * sum(clients)
        assert torch.bincount(data.community).tolist() == [30 * count for count in clients]
        source, target = data.edge_index
        inside = int((data.community[source] == data.community[target]).sum())
        pairs_inside = sum((30 * count) * (30 * count - 1) for count in clients)
        pairs_between = nodes * (nodes - 1) - pairs_inside
        assert inside / pairs_inside == pytest.approx(p_in, rel=0.01)
        assert (source.numel() - inside) / pairs_between == pytest.approx(p_out, rel=0.1)

    def test_labels_follow_the_community(self) -> None:
        data = block_communities((20, 20, 20), purity=0.7, seed=3)
        for community in range(3):
            share = torch.bincount(data.y[data.community == community], minlength=3) / 600
            expected = torch.full((3,), 0.15)
            expected[community] = 0.7
            torch.testing.assert_close(share, expected, atol=0.06, rtol=0)  # three standard deviations

    def test_class_means_lie_apart_as_asked(self) -> None:
        data = block_communities((50, 50), separation=4.0, features=8)
        means = torch.stack([data.x[data.y == label].mean(dim=0) for label in range(2)])
        assert float((means[0] - means[1]).norm()) == pytest.approx(4.0, abs=0.2)

    def test_seed(self) -> None:
        assert fingerprint(block_communities((2, 3), seed=1)) == fingerprint(block_communities((2, 3), seed=1))
        assert fingerprint(block_communities((2, 3), seed=1)) != fingerprint(block_communities((2, 3), seed=2))

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"clients": (5,)}, "clients"),
            ({"clients": (5, 0)}, "clients"),
            ({"p_in": 1.5}, "p_in must be a probability from 0 to 1, got 1.5"),
            ({"p_out": float("nan")}, "p_out"),
            ({"purity": -0.1}, "purity"),
            ({"features": 2}, "features must be at least 3"),
            ({"separation": -1.0}, "separation"),
            ({"nodes_per_client": 0}, "nodes_per_client"),
        ],
    )
    def test_mistakes(self, arguments: dict[str, int | float | tuple[int, ...]], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            block_communities(**arguments)  # type: ignore[arg-type]


class TestContextualBlockModel:
    @pytest.mark.parametrize("wanted", [0.0, 0.25, 0.8, 1.0])
    def test_homophily_and_degree_are_exact(self, wanted: float) -> None:
        data = contextual_block_model(nodes=3000, degree=10, homophily=wanted, seed=2)
        assert homophily(data.edge_index, data.y, method="edge") == pytest.approx(wanted, abs=1e-4)
        assert data.edge_index.shape[1] == 30000
        assert is_undirected(data.edge_index)

    def test_classes_and_communities_are_of_equal_size(self) -> None:
        data = contextual_block_model(nodes=1200, classes=4, communities=3)
        assert torch.bincount(data.y).tolist() == [300] * 4
        assert torch.bincount(data.community).tolist() == [100] * 12
        for community in range(12):
            assert data.y[data.community == community].unique().numel() == 1

    def test_communities_can_be_found(self) -> None:
        """Louvain on the graph alone finds the planted blocks; without planted blocks it finds at most the classes."""
        data = contextual_block_model(nodes=2000, classes=2, communities=5, degree=20, homophily=0.9)
        graph = igraph.Graph(n=2000, edges=data.edge_index[:, data.edge_index[0] < data.edge_index[1]].T.tolist())
        found = graph.community_multilevel().membership
        assert igraph.compare_communities(found, data.community.tolist(), method="nmi") > 0.95

    def test_words(self) -> None:
        """Words of the own class come up with probability s + (1 - s) / C; features 1000 keep repeated words rare."""
        data = contextual_block_model(nodes=2000, classes=4, features=1000, words_per_node=20, topic_strength=0.5)
        assert data.x.layout == torch.sparse_csr
        assert data.x.values().unique().tolist() == [1.0]
        row = torch.arange(2000).repeat_interleave(data.x.crow_indices().diff())
        own = (data.x.col_indices() % 4 == data.y[row]).float().mean()
        assert float(own) == pytest.approx(0.5 + 0.5 / 4, abs=0.02)
        assert int(data.x.crow_indices().diff().max()) <= 20

    def test_every_word_of_an_uneven_vocabulary_is_used(self) -> None:
        data = contextual_block_model(nodes=2000, classes=3, features=11, words_per_node=1, topic_strength=1.0)
        used = data.x.to_dense().sum(dim=0)
        assert bool((used > 0).all())
        assert torch.equal(data.x.to_dense().argmax(dim=1) % 3, data.y)

    def test_neighbours_tell_more_than_words(self) -> None:
        """What makes the graph worth learning on: a vote among neighbours beats a vote among a node's own words."""
        data = contextual_block_model()
        votes = torch.zeros(data.num_nodes, 5).index_add_(
            0, data.edge_index[0], torch.nn.functional.one_hot(data.y[data.edge_index[1]], 5).float()
        )
        words = torch.stack([data.x.to_dense()[:, label::5].sum(dim=1) for label in range(5)], dim=1)
        by_neighbours = float((votes.argmax(dim=1) == data.y).float().mean())
        by_words = float((words.argmax(dim=1) == data.y).float().mean())
        assert 0.4 < by_words < by_neighbours < 0.99

    def test_seed(self) -> None:
        one = contextual_block_model(nodes=500, seed=1)
        assert fingerprint(one) == fingerprint(contextual_block_model(nodes=500, seed=1))
        assert fingerprint(one) != fingerprint(contextual_block_model(nodes=500, seed=2))

    def test_large(self) -> None:
        """As large as ogbn-arxiv; a matrix of all pairs would take 29 GB even with one byte each."""
        data = contextual_block_model(nodes=170_000, classes=40, features=128, degree=240 / 17)
        assert data.edge_index.shape == (2, 2_400_000)
        assert homophily(data.edge_index, data.y, method="edge") == pytest.approx(0.7, abs=1e-4)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"nodes": 10}, "nodes must be at least 20"),
            ({"classes": 1}, "classes must be at least 2"),
            ({"features": 4}, "features must be at least 5"),
            ({"homophily": 1.2}, "homophily must be a share from 0 to 1, got 1.2"),
            ({"degree": -1.0}, "degree"),
            ({"degree": float("inf")}, "degree"),
            ({"words_per_node": 0}, "words_per_node"),
            ({"topic_strength": 2.0}, "topic_strength"),
            ({"communities": 0}, "communities"),
            ({"nodes": 100, "degree": 8.0}, "smaller degree, fewer communities or more nodes"),
        ],
    )
    def test_mistakes(self, arguments: dict[str, int | float], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            contextual_block_model(**arguments)  # type: ignore[arg-type]


def test_generated_graphs_pass_their_own_check() -> None:
    data: Data = contextual_block_model(nodes=400)
    assert data.validate()
    assert not data.has_self_loops()
