from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import igraph
import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph

from suture.errors import ConfigError, PartitionError
from suture.graph.data import largest_component
from suture.graph.partition import Partition, make_partition, stream, undirected_edges
from suture.settings import PartitionSettings

DISJOINT = ["louvain", "metis", "imbalanced", "random", "dirichlet"]
DRAWN = [*DISJOINT, "communities", "metis-overlap"]


@pytest.fixture
def citeseer(dataset: Callable[[str], Data]) -> Data:
    return dataset("citeseer")


@pytest.fixture
def cora_largest(cora: Data) -> Data:
    return largest_component(cora)


def graph(pairs: list[tuple[int, int]], nodes: int) -> Data:
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    return Data(x=torch.ones(nodes, 1), edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.arange(nodes) % 2)


def ring(nodes: int) -> Data:
    return graph([(node, (node + 1) % nodes) for node in range(nodes)], nodes)


def cut(data: Data, seed: int = 0, /, **settings: object) -> Partition:
    return make_partition(data, PartitionSettings(**settings), seed)  # type: ignore[arg-type]


def missing_links(data: Data, partition: Partition) -> int:
    owner = torch.empty(data.num_nodes, dtype=torch.int64)
    for client, nodes in enumerate(partition.members):
        owner[nodes] = client
    return int((owner[data.edge_index[0]] != owner[data.edge_index[1]]).sum()) // 2


def same(left: Partition, right: Partition) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.members, right.members, strict=True))


def sizes(partition: Partition) -> list[int]:
    return [len(nodes) for nodes in partition.members]


@pytest.mark.parametrize("kind", DRAWN)
def test_same_seed_same_clients_other_seed_other_clients(cora: Data, kind: str) -> None:
    first = cut(cora, 0, kind=kind, clients=10)
    random.random()
    assert same(first, cut(cora, 0, kind=kind, clients=10))
    for seed in range(1, 4):
        assert not same(first, cut(cora, seed, kind=kind, clients=10))


@pytest.mark.parametrize("kind", DRAWN)
def test_members_are_sorted_distinct_int64(cora: Data, kind: str) -> None:
    partition = cut(cora, kind=kind, clients=10)
    assert partition.ids == tuple(f"client-{k:02d}" for k in range(10))
    assert partition.graphless == (False,) * 10
    for nodes in partition.members:
        assert nodes.dtype == torch.int64
        assert len(nodes) and bool((nodes.diff() > 0).all())


@pytest.mark.parametrize("kind", DISJOINT)
@pytest.mark.parametrize("clients", [1, 2, 3, 7, 20])
def test_disjoint_kinds_give_every_node_to_exactly_one_client(cora: Data, kind: str, clients: int) -> None:
    partition = cut(cora, kind=kind, clients=clients)
    assert len(partition.members) == clients
    assert torch.equal(torch.cat(partition.members).sort().values, torch.arange(cora.num_nodes))


@pytest.mark.parametrize("kind", DISJOINT)
@pytest.mark.parametrize("seed", range(5))
def test_no_client_is_empty_even_on_a_tiny_graph(kind: str, seed: int) -> None:
    for data in (ring(16), graph([(0, node) for node in range(1, 16)], 16), graph([], 16)):
        partition = cut(data, seed, kind=kind, clients=8, dirichlet_alpha=0.05)
        assert min(sizes(partition)) >= 1
        assert torch.equal(torch.cat(partition.members).sort().values, torch.arange(16))


# FedSage, Table 1 and FedDEP, appendix Table 1: share of links missing, lower and higher of the two.
@pytest.mark.parametrize(("clients", "low", "high"), [(3, 0.0742, 0.0940), (5, 0.1046, 0.1085), (10, 0.1711, 0.1728)])
def test_louvain_loses_about_as_many_links_of_cora_as_published(cora: Data, clients: int, low: float, high: float) -> None:
    cuts = [cut(cora, seed, kind="louvain", clients=clients) for seed in range(5)]
    lost = np.mean([missing_links(cora, found) / (cora.num_edges / 2) for found in cuts])
    assert 0.85 * low < lost < 1.15 * high


@pytest.mark.parametrize(("clients", "low", "high"), [(3, 0.0341, 0.0391), (5, 0.0437, 0.0492), (10, 0.0543, 0.0636)])
def test_louvain_loses_about_as_many_links_of_citeseer_as_published(
    citeseer: Data, clients: int, low: float, high: float
) -> None:
    cuts = [cut(citeseer, seed, kind="louvain", clients=clients) for seed in range(5)]
    lost = np.mean([missing_links(citeseer, found) / (citeseer.num_edges / 2) for found in cuts])
    assert 0.85 * low < lost < 1.2 * high


def test_louvain_clients_have_similar_sizes(cora: Data) -> None:
    assert max(sizes(cut(cora, kind="louvain", clients=3))) - min(sizes(cut(cora, kind="louvain", clients=3))) <= 40
    ten = sizes(cut(cora, kind="louvain", clients=10))
    assert min(ten) > 0.8 * 270.8 and max(ten) < 1.2 * 270.8


def test_louvain_keeps_separate_cliques_whole() -> None:
    cliques = [(8 * c + i, 8 * c + j) for c in range(4) for i in range(8) for j in range(i)]
    data = graph(cliques, 32)
    assert missing_links(data, cut(data, kind="louvain", clients=2)) == 0
    communities = cut(data, kind="communities", clients=3)
    assert {tuple(set((nodes // 8).tolist())) for nodes in communities.members} < {(0,), (1,), (2,), (3,)}
    assert sizes(communities) == [8, 8, 8]


# FedGLS, Table 4: 192 nodes and 695 edges (both directions) per client of Cora; 149 and 535 of CiteSeer.
@pytest.mark.parametrize(("name", "nodes", "edges"), [("cora", 192, 695), ("citeseer", 149, 535)])
def test_communities_have_the_published_sizes(request: pytest.FixtureRequest, name: str, nodes: int, edges: int) -> None:
    data = request.getfixturevalue(name)
    cuts = [cut(data, seed, kind="communities", clients=8) for seed in range(5)]
    assert np.mean([sizes(found) for found in cuts]) == pytest.approx(nodes, rel=0.05)
    held = [inner_edges(data, members) for found in cuts for members in found.members]
    assert np.mean(held) == pytest.approx(edges, rel=0.07)


def inner_edges(data: Data, members: Tensor) -> int:
    return int(torch.isin(data.edge_index, members).all(dim=0).sum())


def test_communities_are_the_largest_first_and_may_leave_nodes_out(cora: Data) -> None:
    held = sizes(cut(cora, kind="communities", clients=8))
    assert held == sorted(held, reverse=True)
    assert sum(held) < cora.num_nodes


def test_too_few_communities_is_said() -> None:
    with pytest.raises(PartitionError, match="finds 2 communities, too few for 3 clients"):
        cut(graph([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)], 6), kind="communities", clients=3)


def test_louvain_leaves_the_random_module_and_igraph_alone(cora: Data) -> None:
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    cut(cora, kind="louvain", clients=3)
    assert [random.random() for _ in range(3)] == expected
    random.seed(5)
    first = igraph.Graph.Erdos_Renyi(n=50, m=100).get_edgelist()
    random.seed(5)
    assert igraph.Graph.Erdos_Renyi(n=50, m=100).get_edgelist() == first


# FED-PUB, Table 4: edges per client, counted in both directions, on the largest component.
@pytest.mark.parametrize(("clients", "edges"), [(5, 1866), (10, 891), (20, 422)])
def test_metis_keeps_the_published_number_of_edges(cora_largest: Data, clients: int, edges: int) -> None:
    cuts = [cut(cora_largest, seed, kind="metis", clients=clients) for seed in range(3)]
    kept = np.mean([cora_largest.num_edges - 2 * missing_links(cora_largest, found) for found in cuts]) / clients
    assert kept == pytest.approx(edges, rel=0.02)
    assert max(max(sizes(found)) for found in cuts) < 1.06 * cora_largest.num_nodes / clients


def test_overlap_samples_each_part_several_times(cora_largest: Data) -> None:
    partition = cut(cora_largest, kind="metis-overlap", clients=10)
    assert sum(sizes(partition)) == pytest.approx(5 * cora_largest.num_nodes * 0.5, abs=10)
    first, second = (set(torch.cat(partition.members[k : k + 5]).tolist()) for k in (0, 5))
    assert not first & second
    # A node of a part escapes all five samples of one half with probability 1/32.
    assert len(first | second) / cora_largest.num_nodes == pytest.approx(31 / 32, abs=0.02)
    shared = len(set(partition.members[0].tolist()) & set(partition.members[1].tolist()))
    assert shared / len(partition.members[0]) == pytest.approx(0.5, abs=0.1)
    # FED-PUB, Table 4: 1249 edges per client, both directions.
    held = np.mean([inner_edges(cora_largest, members) for members in partition.members])
    assert held == pytest.approx(1249, rel=0.05)


def test_overlap_size_follows_its_fraction(cora: Data) -> None:
    partition = cut(cora, kind="metis-overlap", clients=6, overlap_copies=3, overlap_fraction=0.25)
    assert sum(sizes(partition)) == pytest.approx(3 * 0.25 * cora.num_nodes, abs=6)


def test_ten_imbalanced_clients_are_merged_5_3_2_2_2_2_and_four_single_parts(cora: Data) -> None:
    parts = np.array(sizes(cut(cora, kind="imbalanced", clients=10))) / (cora.num_nodes / 20)
    assert np.rint(parts).tolist() == [5, 3, 2, 2, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("clients", "merged"),
    [(1, [2]), (2, [3, 1]), (3, [3, 2, 1]), (5, [3, 2, 2, 2, 1]), (20, [9, 5, *[2] * 8, *[1] * 10])],
)
def test_other_numbers_of_imbalanced_clients_take_two_parts_each_on_average(
    cora: Data, clients: int, merged: list[int]
) -> None:
    parts = np.array(sizes(cut(cora, kind="imbalanced", clients=clients))) / (cora.num_nodes / (2 * clients))
    assert np.allclose(parts, merged, atol=0.5)
    assert sum(merged) == 2 * clients


def test_random_clients_differ_by_one_node_and_keep_one_edge_in_ten(cora: Data) -> None:
    partition = cut(cora, kind="random", clients=10)
    assert set(sizes(partition)) == {270, 271}
    assert missing_links(cora, partition) / (cora.num_edges / 2) == pytest.approx(0.9, abs=0.02)


def test_dirichlet_skew_grows_when_alpha_falls(cora: Data) -> None:
    def largest_label_share(alpha: float) -> float:
        members = cut(cora, kind="dirichlet", clients=10, dirichlet_alpha=alpha).members
        shares = [torch.bincount(cora.y[nodes]).max() / len(nodes) for nodes in members]
        return float(np.mean(shares))

    shares = [largest_label_share(alpha) for alpha in (100.0, 1.0, 0.1)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(float(torch.bincount(cora.y).max()) / cora.num_nodes, abs=0.06)
    assert shares[2] > 1.9 * shares[0]


@pytest.mark.parametrize(("fraction", "hidden"), [(0.0, 0), (0.04, 0), (0.25, 3), (0.5, 5), (1.0, 10)])
def test_graphless_fraction_hides_that_share_of_the_clients(fraction: float, hidden: int) -> None:
    partitions = [cut(ring(40), seed, kind="random", clients=10, graphless_fraction=fraction) for seed in range(4)]
    assert {sum(found.graphless) for found in partitions} == {hidden}
    if 0 < hidden < 10:
        assert len({found.graphless for found in partitions}) > 1


def test_ids_are_as_wide_as_the_count() -> None:
    assert cut(ring(300), kind="random", clients=101).ids[::50] == ("client-000", "client-050", "client-100")


def test_undirected_edges_counts_each_edge_once() -> None:
    data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[3, 0, 1, 2, 2, 0], [0, 3, 2, 1, 2, 3]]))
    assert undirected_edges(data).tolist() == [[0, 3], [1, 2]]


def test_undirected_edges_equals_half_of_a_symmetric_edge_index() -> None:
    torch.manual_seed(0)
    edge_index = erdos_renyi_graph(60, 0.1)
    expected = edge_index[:, edge_index[0] < edge_index[1]].t()
    assert {*map(tuple, undirected_edges(Data(edge_index=edge_index, num_nodes=60)).tolist())} == {
        *map(tuple, expected.tolist())
    }


def test_streams_of_other_purposes_and_seeds_are_different() -> None:
    draws = {tuple(stream(seed, purpose).integers(2**32, size=4)) for seed in (0, 1) for purpose in ("split", "partition")}
    assert len(draws) == 4


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kind": "metis", "clients": 0}, PartitionError, "clients must be at least 1, got 0"),
        ({"kind": "random", "clients": -3}, PartitionError, "at least 1, got -3"),
        ({"kind": "random", "clients": 13}, PartitionError, "12 nodes, too few for 13 clients"),
        ({"kind": "imbalanced", "clients": 7}, PartitionError, "12 nodes, too few for the 14 METIS parts of 7 clients"),
        ({"kind": "metis-overlap", "clients": 7}, PartitionError, "multiple of partition.overlap_copies, got 7 and 5"),
        ({"kind": "metis-overlap", "clients": 5, "overlap_copies": 0}, PartitionError, "got 5 and 0"),
        ({"kind": "metis-overlap", "clients": 5, "overlap_fraction": 0.0}, ConfigError, "overlap_fraction"),
        ({"kind": "metis-overlap", "clients": 5, "overlap_fraction": 0.01}, PartitionError, "none to give"),
        ({"kind": "metis-overlap", "clients": 100}, PartitionError, "too few for the 20 METIS parts of 100"),
        ({"kind": "dirichlet", "clients": 2, "dirichlet_alpha": 0.0}, ConfigError, "dirichlet_alpha"),
        ({"kind": "random", "clients": 2, "graphless_fraction": 1.5}, ConfigError, "graphless_fraction"),
        ({"kind": "metsi", "clients": 2}, ConfigError, "did you mean 'metis'"),
        ({"kind": "file"}, PartitionError, "partition.file=PATH"),
    ],
)
def test_cuts_that_cannot_be_made_say_why(settings: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cut(ring(12), **settings)


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed must be >= 0, got -1"):
        cut(ring(12), -1, kind="random", clients=2)


def assignment(folder: Path, text: str) -> str:
    path = folder / "clients.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "ids", "members"),
    [
        ("b\na\nb\na\n", ("a", "b"), ([1, 3], [0, 2])),
        ("10\n9\n9\n10", ("client-09", "client-10"), ([1, 2], [0, 3])),
        ("node,client\n3,bank-2\n0,bank-1\n1,bank-1\n2,bank-2\n", ("bank-1", "bank-2"), ([0, 1], [2, 3])),
        ("\ufeff0, 1\r\n1, 0\r\n2, 0\r\n3, 0\r\n", ("client-00", "client-01"), ([1, 2, 3], [0])),
        ("0,a\n1,a\n2,b\n3,b\n1,b\n", ("a", "b"), ([0, 1], [1, 2, 3])),
    ],
    ids=["names", "numbers", "csv", "csv without header", "csv with a shared node"],
)
def test_a_users_own_file_decides(tmp_path: Path, text: str, ids: tuple[str, ...], members: tuple[list[int], ...]) -> None:
    partition = cut(ring(4), kind="file", file=assignment(tmp_path, text))
    assert partition.ids == ids
    assert tuple(nodes.tolist() for nodes in partition.members) == members


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold one client per line"),
        ("a\nb\na\n", "has 3 lines; expected 4"),
        ("a\n\na\nb\n", "line 2 must hold one client"),
        ("a\nb\na\nb,c\n", "line 4 must hold one client, got 'b,c'"),
        ("a,b,c\n", "its first line has 3"),
        ("node,client\n0,a\n1,a\n2\n3,a\n", "line 4 must hold 'node,client', got '2'"),
        ("node,client\n0,a\n1,a\n2,\n3,a\n", "line 4 must hold 'node,client'"),
        ("node,client\n0,a\n1,a\n4,a\n3,a\n", "line 4: node must be a number from 0 to 3, got '4'"),
        ("0,a\n-1,a\n2,a\n3,a\n", "line 2: node must be a number from 0 to 3, got '-1'"),
        ("id,owner\n0,a\n1,a\n2,a\n3,a\n", "line 1: node must be a number"),
        ("0,a\n1,a\n1,a\n3,a\n", "line 3 gives node 1 to 'a' a second time"),
        ("0,a\n3,a\n", "gives 2 of the graph's 4 nodes to no client, the first of them node 1"),
        ("a\n../b\na\nb\n", r"client name '\.\./b' must start with"),
        ("a b\na\na\nb\n", "client name 'a b'"),
    ],
)
def test_a_wrong_file_says_which_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        cut(ring(4), kind="file", file=assignment(tmp_path, text))


def test_a_missing_or_binary_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="cannot read the client assignment"):
        cut(ring(4), kind="file", file=str(tmp_path / "nowhere.txt"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x9f")
    with pytest.raises(PartitionError, match="cannot read the client assignment"):
        cut(ring(4), kind="file", file=str(tmp_path / "binary"))


def test_a_graph_that_brings_its_clients_is_cut_by_them() -> None:
    data = ring(5)
    data.client = torch.tensor([4, 2, 2, 4, 7])
    partition = cut(data, kind="given")
    assert partition.ids == ("client-02", "client-04", "client-07")
    assert [nodes.tolist() for nodes in partition.members] == [[1, 2], [0, 3], [4]]


def test_a_graph_with_wrong_clients_is_refused() -> None:
    for client in (torch.tensor([0, 1]), torch.tensor([0, 1, -1, 0]), torch.tensor([0.0, 1.0, 0.0, 1.0])):
        data = ring(4)
        data.client = client
        with pytest.raises(PartitionError, match=r"data\.client must hold one client number >= 0"):
            cut(data, kind="given")
