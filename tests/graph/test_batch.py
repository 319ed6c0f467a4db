from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce, remove_self_loops, subgraph, to_dense_adj

from suture.core.kernels import Segments, SparseMatrix
from suture.core.tree import tile
from suture.graph.batch import Features, GraphBatch, View, batch_of, feature_matrix, uncut
from suture.testing.world import small_world

IDS = ("a", "b", "c")


def toy_data(nodes: int = 30, features: int = 6, *, sparse: bool = False) -> Data:
    """A directed graph: nothing here may rely on symmetry."""
    rng = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes, (2, 5 * nodes), generator=rng)
    edges = coalesce(remove_self_loops(edges)[0])
    edges = edges[:, (edges != 4).all(0)]  # node 4 is isolated
    x = torch.randn(nodes, features, generator=rng) * (torch.rand(nodes, features, generator=rng) < 0.4)
    y = torch.randint(3, (nodes,), generator=rng)
    return Data(x=x.to_sparse_csr() if sparse else x, edge_index=edges, y=y)


def toy_members() -> list[Tensor]:
    """Overlapping, of different sizes; node 29 belongs to nobody."""
    return [torch.arange(0, 12), torch.arange(8, 14), torch.tensor([0, 3, 4, *range(14, 29)])]


def toy_batch(*, sparse: bool = False, graphless: tuple[bool, ...] = (False, False, False)) -> GraphBatch:
    members = toy_members()
    rng = torch.Generator().manual_seed(1)
    roles = [torch.randint(0, 4, (m.numel(),), generator=rng, dtype=torch.int8) for m in members]
    roles[1][roles[1] == 1] = 0  # client b has nothing to train on
    return batch_of(toy_data(sparse=sparse), IDS, members, roles, graphless)


def edge_set(edge_index: Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, edge_index.T.tolist()))


class TestCutting:
    @pytest.mark.parametrize("sparse", [False, True])
    def test_clients_get_their_induced_subgraphs(self, sparse: bool) -> None:
        data, batch = toy_data(), toy_batch(sparse=sparse)
        for k, members in enumerate(toy_members()):
            one = batch.client_data(k)
            expected, _ = subgraph(members, data.edge_index, relabel_nodes=True, num_nodes=30)
            assert edge_set(one.edge_index) == edge_set(expected)
            assert one.edge_index.shape == expected.shape
            assert torch.equal(one.x, data.x[members])
            assert torch.equal(one.y, data.y[members])
            assert torch.equal(one.node_id, members)

    def test_edges_never_leave_a_client(self) -> None:
        batch = toy_batch()
        source, target = batch.segments.client[batch.edge_index]
        assert torch.equal(source, target)

    def test_a_graphless_client_keeps_nodes_and_loses_edges(self) -> None:
        batch, whole = toy_batch(graphless=(False, True, False)), toy_batch()
        assert batch.client_data(1).edge_index.shape == (2, 0)
        assert torch.equal(batch.client_data(1).x, whole.client_data(1).x)
        assert edge_set(batch.client_data(2).edge_index) == edge_set(whole.client_data(2).edge_index)

    def test_the_owners_own_numbers_are_kept(self) -> None:
        data = toy_data()
        data.node_id = torch.arange(30) * 100 + 7
        batch = batch_of(data, ["a"], [torch.tensor([2, 5])], [torch.tensor([1, 3], dtype=torch.int8)], [False])
        assert batch.node_id.tolist() == [207, 507]

    def test_uncut_is_the_whole_graph(self) -> None:
        data = toy_data()
        batch = uncut(data, torch.ones(30, dtype=torch.int8))
        assert batch.ids == ("uncut",)
        assert edge_set(batch.edge_index) == edge_set(data.edge_index)
        assert batch.num_train.tolist() == [30]


class TestRoles:
    def test_training_nodes_are_counted_per_client(self) -> None:
        batch = toy_batch()
        expected = [int((batch.client_data(k).train_mask).sum()) for k in range(3)]
        assert batch.num_train.tolist() == expected
        assert expected[1] == 0 and expected[0] > 0 and expected[2] > 0
        assert batch.train.segments.clients == 3
        assert torch.equal(batch.train.nodes, torch.nonzero(batch.role == 1).squeeze(1))
        assert batch.sizes.tolist() == [12, 6, 18]

    def test_masks_of_client_data(self) -> None:
        batch = toy_batch()
        one = batch.client_data(2)
        role = batch.role[18:]
        for code, mask in ((1, one.train_mask), (2, one.val_mask), (3, one.test_mask)):
            assert torch.equal(mask, role == code)


class TestSelect:
    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("ids", [("c",), ("c", "a"), ("b", "c", "a")])
    def test_each_client_is_the_same_in_any_company(self, ids: tuple[str, ...], sparse: bool) -> None:
        batch = toy_batch(sparse=sparse)
        part = batch.select(ids)
        assert part.ids == ids
        for k, name in enumerate(ids):
            ours, theirs = part.client_data(k), batch.client_data(IDS.index(name))
            assert ours.keys() == theirs.keys()
            for key in ours.keys():  # noqa: SIM118 - PyG's Data iterates over pairs
                assert torch.equal(ours[key], theirs[key]), key

    def test_everybody_in_order_is_the_batch_itself(self) -> None:
        batch = toy_batch()
        assert batch.select(list(IDS)) is batch
        assert batch.to(torch.device("cpu")) is batch


class TestOperators:
    def test_gcn_operator_is_pygs(self) -> None:
        batch = toy_batch()
        edges, weight = gcn_norm(batch.edge_index, num_nodes=batch.num_nodes)
        expected = to_dense_adj(edges, edge_attr=weight, max_num_nodes=batch.num_nodes)[0].T
        torch.testing.assert_close(batch.gcn_operator.to_dense(), expected)

    def test_neighbours_and_their_mean(self) -> None:
        batch = toy_batch()
        adjacency = to_dense_adj(batch.edge_index, max_num_nodes=batch.num_nodes)[0].T
        assert torch.equal(batch.neighbours.to_dense(), adjacency)
        degree = adjacency.sum(1, keepdim=True)
        assert (degree == 0).any()
        torch.testing.assert_close(batch.mean_operator.to_dense(), adjacency / degree.clamp_min(1))

    def test_a_batch_without_any_edge(self) -> None:
        batch = toy_batch(graphless=(True, True, True))
        assert torch.equal(batch.gcn_operator.to_dense(), torch.eye(batch.num_nodes))
        assert not batch.mean_operator.to_dense().any()

    @pytest.mark.parametrize("nodes", [[0, 11, 18, 35], [14, 12], []])
    def test_a_view_keeps_the_rows_of_its_nodes(self, nodes: list[int]) -> None:
        batch = toy_batch()
        view = View(batch, torch.tensor(nodes, dtype=torch.int64))
        assert view.segments.ptr.diff().tolist() == [
            sum(a <= n < b for n in nodes) for a, b in ((0, 12), (12, 18), (18, 36))
        ]
        assert torch.equal(view.gcn_operator.to_dense(), batch.gcn_operator.to_dense()[nodes])
        assert torch.equal(view.mean_operator.to_dense(), batch.mean_operator.to_dense()[nodes])


SEGMENTS = Segments(torch.tensor([0, 4, 4, 10]))


def features(kind: str, width: int = 5) -> tuple[Tensor, Features]:
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(10, width, generator=rng) * (torch.rand(10, width, generator=rng) < 0.5)
    return x, Features(feature_matrix(x.to_sparse_csr() if kind == "sparse" else x), SEGMENTS)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
class TestFeatures:
    def test_shape_and_content(self, kind: str) -> None:
        x, ours = features(kind)
        assert ours.width == 5
        assert ours.nonzeros == (50 if kind == "dense" else int((x != 0).sum()))
        assert torch.equal(ours.dense(), x)

    def test_take(self, kind: str) -> None:
        x, ours = features(kind)
        index = torch.tensor([3, 0, 9, 9])
        assert torch.equal(ours.take(index, Segments(torch.tensor([0, 2, 2, 4]))).dense(), x[index])

    def test_times_is_each_clients_own_product_with_its_gradient(self, kind: str) -> None:
        x, ours = features(kind)
        weight = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(3), requires_grad=True)
        cotangent = torch.randn(10, 2, generator=torch.Generator().manual_seed(4))
        product = ours.times(weight)
        expected = torch.einsum("nf,nfh->nh", x, weight[SEGMENTS.client])
        torch.testing.assert_close(product, expected)
        torch.testing.assert_close(
            torch.autograd.grad((product * cotangent).sum(), weight)[0],
            torch.autograd.grad((expected * cotangent).sum(), weight)[0],
        )

    def test_times_a_tiled_weight_with_and_without_gradient(self, kind: str) -> None:
        x, ours = features(kind)
        weight = torch.randn(1, 5, 2, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(ours.times(tile({"w": weight}, 3)["w"]), x @ weight[0])
        weight.requires_grad_()
        product = ours.times(weight.expand(3, 5, 2))
        torch.testing.assert_close(product, x @ weight[0])
        (gradient,) = torch.autograd.grad(product.square().sum(), weight)
        torch.testing.assert_close(gradient[0], 2 * x.T @ (x @ weight[0]))


def operator_on_ten_nodes() -> SparseMatrix:
    rng = torch.Generator().manual_seed(5)
    row, col = torch.randint(10, (2, 15), generator=rng)
    return SparseMatrix.from_coo(row, col, torch.rand(15, generator=rng), (10, 10))


@pytest.mark.parametrize(
    ("kind", "width", "first"), [("dense", 5, False), ("dense", 300, True), ("sparse", 5, True), ("sparse", 300, True)]
)
def test_propagating_first_where_it_is_cheaper(kind: str, width: int, first: bool) -> None:
    x, ours = features(kind, width)
    propagated = ours.propagated(operator_on_ten_nodes())
    assert (propagated is not None) == first
    if propagated is not None:
        torch.testing.assert_close(propagated.dense(), operator_on_ten_nodes().to_dense() @ x)


def test_very_sparse_features_are_not_made_dense() -> None:
    x = torch.zeros(10, 300)
    x[torch.arange(10), torch.arange(10)] = 1.0
    assert Features(feature_matrix(x.to_sparse_csr()), SEGMENTS).propagated(operator_on_ten_nodes()) is None


def test_features_become_single_precision() -> None:
    matrix = feature_matrix(torch.eye(3, dtype=torch.float64).to_sparse_csr())
    assert isinstance(matrix, SparseMatrix)
    assert matrix.val.dtype == torch.float32
    dense = feature_matrix(torch.eye(3, dtype=torch.float64))
    assert isinstance(dense, Tensor)
    assert dense.dtype == torch.float32


def test_another_operator_takes_the_place_of_the_one_of_the_edges() -> None:
    batch = toy_batch()
    other = SparseMatrix.from_coo(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), (batch.num_nodes,) * 2)
    before = batch.gcn_operator
    assert batch.propagating_with(other).gcn_operator is other
    assert batch.gcn_operator is before


def test_what_completes_a_batch_is_made_once_for_each_key() -> None:
    batch, made = toy_batch(), []
    for key in ("a", "b", "a"):
        batch.completed(key, lambda graph, key=key: made.append(key) or graph)
    assert made == ["a", "b"]


def test_some_of_many_clients_are_cut_out_like_a_new_batch() -> None:
    """The way that costs only what is chosen, against the one that looks at every edge."""
    graph = small_world().clients
    ids = graph.ids
    for chosen in ((ids[2], ids[0]), (ids[3],), (ids[0], ids[3])):
        few = graph.select(chosen)
        nodes = torch.cat([torch.arange(*graph.segments.bounds[k : k + 2]) for k in (ids.index(name) for name in chosen)])
        other = graph._at(nodes, chosen, few.segments)
        assert torch.equal(few.y, other.y) and torch.equal(few.x.dense(), other.x.dense())
        for one, two in zip(few.gcn_operator.__dict__.values(), other.gcn_operator.__dict__.values(), strict=False):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(two))
