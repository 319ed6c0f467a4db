"""A graph of one's own through Python: what it says of itself is honoured, what is wrong with it is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_networkx

import suture
from suture.errors import ConfigError, DataError, PartitionError, SutureError

OWNERS, NODES, FEATURES = 3, 90, 5
QUICK: dict[str, Any] = {"rounds": 2, "hidden": 8}


def own_graph(**changes: object) -> Data:
    """Three owners without a link between them; real-valued features, a third of the nodes unlabelled."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(OWNERS), [40, 30, 20])
    y = rng.integers(0, 2, NODES)
    x = rng.normal(3.0, 2.0, (NODES, FEATURES)) + y[:, None]
    x[:, 0] = rng.integers(0, 2, NODES)
    pairs = [(a, b) for a in range(NODES) for b in range(a) if client[a] == client[b] and rng.random() < 0.1]
    index = np.array(pairs + [(b, a) for a, b in pairs]).T
    y[rng.random(NODES) < 1 / 3] = -1
    fields: dict[str, object] = {
        "x": torch.from_numpy(x).float(),
        "edge_index": torch.from_numpy(index),
        "y": torch.from_numpy(y),
        "client": torch.from_numpy(client),
        "owners": ["north", "south", "west"],
    }
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


def masks_of(train: Tensor, val: Tensor, test: Tensor) -> dict[str, object]:
    return {"train_mask": train, "val_mask": val, "test_mask": test}


class TestHonoured:
    def test_no_owner_vanishes(self) -> None:
        result = suture.run(own_graph(), **QUICK)
        assert result.client_ids == ("north", "south", "west")
        assert torch.equal(result.data.client, own_graph().client)

    def test_a_paper_protocol_that_drops_owners_says_so(self) -> None:
        result = suture.run(own_graph(), protocol="fedpub-disjoint", clients=2, **QUICK)
        dropped = [note for note in result.notes if "largest component" in note]
        assert len(dropped) == 1 and "all nodes of south, west among them" in dropped[0]

    def test_features_are_standardised_by_everybodys_nodes_and_flags_stay(self) -> None:
        x, given = suture.run(own_graph(), **QUICK).data.x, own_graph().x
        assert torch.equal(x[:, 0], given[:, 0])
        expected = (given - given.mean(0)) / given.std(0, correction=0)
        assert torch.allclose(x[:, 1:], expected[:, 1:], atol=1e-5)

    def test_given_masks_are_the_masks_that_were_used(self) -> None:
        place = torch.arange(NODES) % 3
        data = own_graph(**masks_of(place == 0, place == 1, place == 2))
        result = suture.run(data, **QUICK)
        known = data.y >= 0
        for name in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(result.data[name], data[name] & known)
        assert any("have no label" in note for note in result.notes)

    def test_drawn_roles_are_of_labelled_nodes_and_of_every_class_at_every_owner(self) -> None:
        data = suture.run(own_graph(), **QUICK).data
        assert not bool((data.train_mask | data.val_mask | data.test_mask)[data.y < 0].any())
        for owner in range(OWNERS):
            for mask in (data.train_mask, data.val_mask, data.test_mask):
                assert set(data.y[mask & (data.client == owner)].tolist()) == {0, 1}

    def test_unlabelled_nodes_pass_messages_and_are_predicted(self) -> None:
        data = own_graph()
        before = suture.run(data, **QUICK).data
        changed = own_graph()
        changed.x[data.y < 0] += 10
        after = suture.run(changed, **QUICK).data
        assert bool((before.prediction[data.y < 0] >= 0).all())
        # The shared scale moves with the features, so look at outputs of labelled nodes with an unlabelled neighbour.
        assert not torch.allclose(before.probability[data.y >= 0], after.probability[data.y >= 0], atol=1e-3)

    def test_without_a_validation_mask_training_nodes_validate_and_it_is_said(self) -> None:
        place = torch.arange(NODES) % 2
        data = own_graph(train_mask=place == 0, test_mask=place == 1)
        result = suture.run(data, **QUICK)
        assert bool(result.data.val_mask.any()) and not bool((result.data.val_mask & data.test_mask).any())
        assert any("no validation mask" in note for note in result.notes)

    def test_an_owner_without_labels_is_served(self) -> None:
        data = own_graph()
        data.y[data.client == 2] = -1
        result = suture.run(data, **QUICK)
        assert bool((result.data.prediction[data.client == 2] >= 0).all())
        assert any("no training node: west" in note for note in result.notes)

    def test_the_untrained_model_of_an_owner_without_labels_is_named(self) -> None:
        data = own_graph()
        data.y[data.client == 2] = -1
        alone = suture.predict(suture.run(data, "local", **QUICK), data)
        assert any("west had no training node" in note and "may be chance" in note for note in alone.notes)
        shared = suture.predict(suture.run(data, "fedavg", **QUICK), data)
        assert not any("had no training node" in note for note in shared.notes)

    def test_a_method_that_cannot_predict_numbers_is_refused_before_others_train(self, tmp_path: Path) -> None:
        data = own_graph(y=own_graph().x[:, 1])
        with pytest.raises(ConfigError, match="fedproto can predict one class of a node, not numbers"):
            suture.compare(data, ["local", "fedproto"], seeds=[0], out=tmp_path / "runs", **QUICK)
        assert not list(tmp_path.glob("runs/local*"))

    def test_rows_known_in_part_hold_labels_of_0_and_1_too(self) -> None:
        y = torch.zeros(NODES, 2)
        y[::2, 0], y[3] = 1, torch.tensor([float("nan"), 5.0])
        with pytest.raises(DataError, match="must be 0 or 1"):
            suture.run(own_graph(y=y), **QUICK)

    def test_edges_that_no_owner_hears_are_counted(self) -> None:
        data = own_graph()
        inside, links = data.edge_index.shape[1] // 2, torch.tensor([[0, 1, 50], [45, 80, 85]])
        data.edge_index = torch.cat([data.edge_index, links, links.flip(0)], 1)
        assert any(f"3 of {inside + 3:,} edges lie between owners" in note for note in suture.run(data, **QUICK).notes)
        assert not any("between owners" in note for note in suture.run(own_graph(), **QUICK).notes)
        data.edge_index, data.directed = torch.cat([own_graph().edge_index, links], 1), True
        notes = suture.run(data, **QUICK).notes
        assert any(f"3 of {2 * inside + 3:,} edges lie between owners" in note for note in notes)

    def test_probabilities_are_those_of_the_exported_model(self) -> None:
        result = suture.run(own_graph(), **QUICK)
        data = result.data
        with torch.no_grad():
            scores = result.model()(data.x, data.edge_index)
        assert torch.allclose(data.probability, scores.softmax(1), atol=1e-5)
        assert torch.equal(data.prediction, scores.argmax(1))

    def test_direction_is_kept(self) -> None:
        data = own_graph()
        one_way = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        result = suture.run(own_graph(edge_index=one_way, directed=True), **QUICK)
        assert torch.equal(result.data.edge_index, one_way[:, torch.argsort(one_way[0] * NODES + one_way[1])])
        mirrored = suture.run(own_graph(edge_index=one_way, directed=True), direction="mirror", **QUICK)
        assert mirrored.data.edge_index.shape[1] == 2 * one_way.shape[1]
        assert any("goes both ways" in note for note in mirrored.notes)

    def test_a_test_of_one_class_says_that_it_says_nothing(self) -> None:
        data = own_graph()
        data.y[data.y > 0] = 0
        assert any("all test nodes are of class 0" in text for text in suture.run(data, **QUICK).outcome.warnings)


class TestTaken:
    """Everything the issue lists as a traceback."""

    def test_networkx(self) -> None:
        graph = to_networkx(own_graph(), node_attrs=["x", "y", "client"], to_undirected=True)
        assert len(suture.run(graph, **QUICK).client_ids) == OWNERS

    def test_scipy_with_features_and_labels(self) -> None:
        data = own_graph()
        ones = np.ones(data.edge_index.shape[1])
        matrix = sp.csr_matrix((ones, data.edge_index.numpy()), shape=(NODES, NODES))
        result = suture.run(matrix, x=data.x.numpy(), y=data.y.numpy(), clients=2, **QUICK)
        assert len(result.client_ids) == 2

    def test_a_list_of_graphs_is_one_owner_each(self) -> None:
        data = own_graph()
        parts = [data.subgraph(data.client == owner) for owner in range(OWNERS)]
        for part in parts:
            del part.client, part.owners
        assert suture.run(parts, **QUICK).client_ids == ("owner-1", "owner-2", "owner-3")

    def test_numpy_features(self) -> None:
        assert suture.run(own_graph(x=own_graph().x.numpy()), **QUICK).data.x.shape == (NODES, FEATURES)

    def test_text_as_folder_and_as_one_override(self, tmp_path: Path) -> None:
        result = suture.run(own_graph(), overrides="rounds=3", out=str(tmp_path / "r"), hidden=8)
        assert result.outcome.rounds == 3 and (tmp_path / "r" / "result.json").exists()
        assert suture.resume(str(tmp_path / "r"), own_graph()).outcomes[0].rounds == 3

    def test_overrides_as_a_mapping(self) -> None:
        assert suture.run(own_graph(), "fedprox", overrides={"rounds": 3, "fedprox.mu": 0.5}, hidden=8).outcome.rounds == 3

    def test_a_clients_model_by_name_number_or_place(self) -> None:
        result = suture.run("csbm:nodes=200", "local", clients=3, protocol="fedpub-disjoint", **QUICK)
        wanted = result.model("client-02").state_dict()
        for spelled in ("client-2", 2):
            assert all(torch.equal(value, wanted[name]) for name, value in result.model(spelled).state_dict().items())
        with pytest.raises(ConfigError, match="client-7"):
            result.model("client-7")

    def test_an_imported_folder_by_its_path(self, tmp_path: Path) -> None:
        pytest.importorskip("polars")
        from suture.tables import Roles, Tables, Wishes, import_tables

        lines = [f"{node},{node % 2},{node * 0.5},{'ab'[node % 2]}" for node in range(60)]
        (tmp_path / "nodes.csv").write_text("id,y,size,owner\n" + "\n".join(lines) + "\n")
        (tmp_path / "edges.csv").write_text("source,target\n" + "\n".join(f"{n},{(n + 2) % 60}" for n in range(60)) + "\n")
        wishes = Wishes(Roles(id=("id",), label=("y",), owner="owner"))
        import_tables(tmp_path / "g", [Tables(tmp_path / "nodes.csv", tmp_path / "edges.csv")], wishes)
        result = suture.run(str(tmp_path / "g"), out=tmp_path / "r", **QUICK)
        assert result.client_ids == ("a", "b")
        assert (tmp_path / "r" / "schema.json").read_bytes() == (tmp_path / "g" / "schema.json").read_bytes()

    def test_a_run_is_resumed_with_the_graph_that_is_given_or_refused(self, tmp_path: Path) -> None:
        stopping = suture.Options(stop=lambda: True)
        with pytest.raises(SutureError, match="stopped after"):
            suture.run(own_graph(), out=tmp_path / "r", options=stopping, **QUICK)
        torch.save(own_graph(x=torch.ones(NODES, FEATURES)), tmp_path / "other.pt")
        with pytest.raises(SutureError, match="another graph"):
            suture.resume(tmp_path / "r", str(tmp_path / "other.pt"))
        with pytest.raises(SutureError, match="another graph"):
            suture.resume(tmp_path / "r", "cora")
        assert suture.resume(tmp_path / "r", own_graph()).outcomes[0].rounds == QUICK["rounds"]


class Wide(nn.Module):
    """Gives two numbers too many."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layer = GCNConv(features, classes + 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.layer(x, edge_index)
        return out


REFUSED: list[tuple[dict[str, object], dict[str, Any], str]] = [
    ({}, {"clients": 5}, "the graph has 3 owners (north, south, west), not 5"),
    ({"x": torch.full((NODES, 2), 1e30)}, {}, "features go up to 1e+30"),
    ({"y": torch.arange(NODES) * 10**7}, {}, "would mean 890,000,001 classes"),
    ({"y": torch.full((NODES,), -1)}, {}, "the graph has no labels"),
    (masks_of(torch.arange(NODES) < 50, torch.arange(NODES) >= 50, torch.zeros(NODES).bool()), {}, "left to test"),
    ({"node_name": ["same"] * NODES}, {}, "data.node_name must hold 90 different names"),
    ({"edge_weight": torch.zeros(3)}, {}, "edge_weight must be one finite number for each"),
    ({"x": torch.ones(NODES, 2, dtype=torch.complex64)}, {}, "node features must be an array of numbers (it holds torch.c"),
    (
        {"y": torch.ones(NODES, 3), "task": "classification"},
        {},
        "labels have 3 columns: one class per node is",
    ),
    ({"feature_names": ["a", "b"]}, {}, "data.feature_names names 2 of 5 features"),
    ({"client": torch.full((NODES,), -1)}, {}, "data.client must number the owners from 0"),
    ({}, {"model": Wide}, "the network must give [nodes, 2], a score a class; for 2 nodes it gives [2, 4]"),
    ({}, {"model": Wide(5, 2)}, "model must make a fresh network, not be one"),
    ({}, {"model": lambda features, classes: GCNConv(7, classes)}, "cannot be used as module(x, edge_index)"),
    ({}, {"options": suture.Options(device="gpu")}, "the device 'gpu' cannot be used here"),
    ({}, {"round": 5}, "round"),
    ({}, {"rounds": "many"}, "rounds"),
    ({}, {"hidden": object()}, "hidden cannot be"),
]


class TestRefused:
    @pytest.mark.parametrize(("changes", "arguments", "says"), REFUSED, ids=[says[:30] for _, _, says in REFUSED])
    def test_in_one_sentence(self, changes: dict[str, object], arguments: dict[str, Any], says: str) -> None:
        with pytest.raises(SutureError) as raised:
            suture.run(own_graph(**changes), **(QUICK | arguments))
        assert says in str(raised.value) and "\n" not in str(raised.value)

    @pytest.mark.parametrize("thing", [HeteroData(), [], 7, nx.Graph(), "no/such/folder", Path("nothing.pt"), {"a": 1}])
    def test_what_is_no_graph(self, thing: object) -> None:
        with pytest.raises(DataError):
            suture.run(thing, **QUICK)

    def test_owners_are_not_cut_in_two_by_a_wrong_number(self) -> None:
        with pytest.raises(PartitionError, match="leave the number of clients out"):
            suture.run(own_graph(), overrides=["partition.clients=2"], **QUICK)


class TestUntouched:
    """Features are standardised where they lie; those of the user's own graph must not be."""

    @pytest.mark.parametrize("owners", [1, 3])
    @pytest.mark.parametrize("more", [{}, {"options": suture.Options(chunk=1)}], ids=["together", "in chunks"])
    def test_by_a_run(self, owners: int, more: dict[str, Any]) -> None:
        graph = own_graph(edge_weight=None) if owners == 3 else own_graph(client=torch.zeros(NODES).long(), owners=["all"])
        before = graph.clone()
        first, again = (suture.run(graph, **QUICK, **more) for _ in range(2))
        assert torch.equal(graph.x, before.x) and torch.equal(graph.edge_index, before.edge_index)
        assert torch.equal(first.data.x, again.data.x) and not torch.equal(first.data.x, before.x)

    def test_by_clients_that_share_nodes_or_by_a_comparison(self) -> None:
        graph = own_graph()
        before = graph.clone()
        shared = {"partition.kind": "metis-overlap", "clients": 4, "partition.overlap_copies": 2, **QUICK}
        compared = suture.compare(graph, methods=["fedavg", "fedper"], seeds=[0, 1], overrides=shared)
        assert torch.equal(graph.x, before.x) and len(compared.outcomes) == 4

    def test_a_single_label_of_zero_and_one_stays_one(self) -> None:
        graph = own_graph(y=own_graph().y.clamp_min(0), task="multi-label")
        data = suture.run(graph, **QUICK).data
        assert data.probability.shape == (NODES, 1) and set(data.prediction.unique().tolist()) <= {0, 1}
