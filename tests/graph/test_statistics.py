from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch_geometric.data import Data

from suture.graph.cut import Cut, make_cut
from suture.graph.data import largest_component
from suture.graph.partition import Partition
from suture.graph.splits import make_split
from suture.graph.statistics import CutStatistics, describe, label_heterogeneity, mean_clustering
from suture.settings import PartitionSettings, PreprocessSettings, SplitSettings


@pytest.fixture
def cora_largest(cora: Data) -> Data:
    return largest_component(cora)


@pytest.fixture
def citeseer_largest(dataset: Callable[[str], Data]) -> Data:
    return largest_component(dataset("citeseer"))


def cut_of(data: Data, *members: list[int]) -> Cut:
    tensors = tuple(torch.tensor(nodes) for nodes in members)
    partition = Partition(tuple(map(str, range(len(members)))), tensors, (False,) * len(members))
    return Cut(partition, make_split(data, partition, SplitSettings(), 0), {}, 0, "toy", "", {})


def drawn(data: Data, kind: str, clients: int, seed: int = 0) -> CutStatistics:
    settings = PartitionSettings(kind=kind, clients=clients)  # type: ignore[arg-type]
    split = SplitSettings(train=0.2, val=0.4, test=0.4)
    return describe(data, make_cut(data, "graph", PreprocessSettings(), settings, split, seed))


@pytest.fixture
def house() -> Data:
    """A square 0-1-2-3 with the roof 4 on 0 and 1, and the separate pair 5-6: seven edges, one triangle."""
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 4], [1, 4], [5, 6]]).t()
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    return Data(x=torch.ones(7, 1), edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=y)


def test_toy_graph_by_hand(house: Data) -> None:
    found = describe(house, cut_of(house, [0, 1, 4, 5], [2, 3, 6]))
    assert found.nodes == (4, 3)
    assert found.edges == (3, 1)
    assert found.missing_links == 3  # 1-2, 3-0, 5-6
    assert found.missing_ratio == pytest.approx(3 / 7)
    assert found.clustering_coefficient == pytest.approx((3 / 4 + 0) / 2)
    assert sum(found.train_nodes) == 4


def test_shared_nodes_count_at_each_client_and_shared_edges_are_missed_once_at_most(house: Data) -> None:
    found = describe(house, cut_of(house, [0, 1, 2, 4], [0, 1, 3, 4]))
    assert found.edges == (4, 4)
    assert found.missing_links == 2  # 2-3, 5-6


def test_one_client_misses_nothing(house: Data) -> None:
    found = describe(house, cut_of(house, list(range(7))))
    assert (found.missing_links, found.missing_ratio) == (0, 0.0)
    assert found.label_heterogeneity == pytest.approx(0.0)


def test_clustering_equals_networkx() -> None:
    graph = networkx.powerlaw_cluster_graph(200, 3, 0.4, seed=1)
    graph.add_nodes_from(range(200, 210))
    assert mean_clustering(210, np.array(graph.edges)) == pytest.approx(networkx.average_clustering(graph))


def test_clustering_of_a_real_cut_equals_networkx(cora_largest: Data) -> None:
    settings = PartitionSettings(kind="metis", clients=5)
    cut = make_cut(cora_largest, "cora", PreprocessSettings(), settings, SplitSettings(), 0)
    whole = networkx.Graph(cora_largest.edge_index.t().tolist())
    expected = [networkx.average_clustering(whole.subgraph(nodes.tolist())) for nodes in cut.partition.members]
    assert describe(cora_largest, cut).clustering_coefficient == pytest.approx(np.mean(expected))


def test_heterogeneity_of_two_clients_is_half_their_distance() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2])
    members = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    distance = jensenshannon([2, 1, 0], [0, 2, 1])
    # The four ordered pairs have distances 0, 0, d, d.
    assert label_heterogeneity(labels, members) == pytest.approx(distance / 2)


def test_heterogeneity_equals_scipys_distance_of_all_ordered_pairs() -> None:
    rng = np.random.default_rng(3)
    labels = rng.choice(5, p=[0.5, 0.3, 0.1, 0.05, 0.05], size=300)
    members = [rng.choice(300, size=size, replace=False) for size in (5, 20, 60, 100, 7)]
    shares = [np.bincount(labels[nodes], minlength=5) / len(nodes) for nodes in members]
    divergences = [jensenshannon(p, q) ** 2 for p, q in itertools.product(shares, shares)]
    assert label_heterogeneity(labels, members) == pytest.approx(np.median(np.sqrt(divergences)))


def test_clients_without_a_common_label_are_as_far_apart_as_can_be() -> None:
    members = [np.array([k]) for k in range(4)]
    assert label_heterogeneity(np.arange(4), members) == pytest.approx(np.sqrt(np.log(2)))


def test_statistics_of_a_whole_graph_are_the_published_ones(cora_largest: Data) -> None:
    # FED-PUB, Table 4, column Ori.
    found = describe(cora_largest, cut_of(cora_largest, list(range(cora_largest.num_nodes))))
    assert (found.nodes, found.edges) == ((2485,), (10138 // 2,))
    assert found.clustering_coefficient == pytest.approx(0.238, abs=5e-4)


# FED-PUB, Table 4: nodes, edges (both directions), clustering coefficient, heterogeneity.
@pytest.mark.parametrize(
    ("kind", "clients", "nodes", "edges", "clustering", "heterogeneity"),
    [
        ("metis", 5, 497, 1866, 0.250, 0.590),
        ("metis", 10, 249, 891, 0.259, 0.606),
        ("metis", 20, 124, 422, 0.263, 0.665),
        ("metis-overlap", 10, 621, 1249, 0.133, 0.297),
        ("metis-overlap", 30, 207, 379, 0.129, 0.567),
        ("metis-overlap", 50, 124, 215, 0.125, 0.613),
    ],
)
def test_cora_as_published(
    cora_largest: Data, kind: str, clients: int, nodes: int, edges: int, clustering: float, heterogeneity: float
) -> None:
    found = [drawn(cora_largest, kind, clients, seed) for seed in range(3)]
    assert np.mean([one.nodes for one in found]) == pytest.approx(nodes, abs=1)
    assert 2 * np.mean([one.edges for one in found]) == pytest.approx(edges, rel=0.05)
    assert np.mean([one.clustering_coefficient for one in found]) == pytest.approx(clustering, abs=0.015)
    assert np.mean([one.label_heterogeneity for one in found]) == pytest.approx(heterogeneity, abs=0.06)


@pytest.mark.parametrize(("clients", "edges", "heterogeneity"), [(5, 1410, 0.517), (10, 675, 0.541), (20, 326, 0.568)])
def test_citeseer_as_published(citeseer_largest: Data, clients: int, edges: int, heterogeneity: float) -> None:
    found = [drawn(citeseer_largest, "metis", clients, seed) for seed in range(3)]
    assert 2 * np.mean([one.edges for one in found]) == pytest.approx(edges, rel=0.02)
    assert np.mean([one.label_heterogeneity for one in found]) == pytest.approx(heterogeneity, abs=0.04)
    assert sum(found[0].edges) + found[0].missing_links == 7358 // 2


def test_label_skew_shows_in_the_heterogeneity(cora: Data) -> None:
    assert drawn(cora, "random", 10).label_heterogeneity < 0.15 < drawn(cora, "metis", 10).label_heterogeneity
