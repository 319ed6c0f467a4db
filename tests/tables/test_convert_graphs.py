"""Graphs of other libraries, and the mistakes people make with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

from suture.errors import DataError, SutureError
from suture.tables import from_any
from suture.tables.graphs import import_graph

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def graph(**changes: Any) -> Data:
    return Data(**({"x": X, "edge_index": PATH, "y": torch.tensor([0, 1, -1])} | changes))


def same(data: Data) -> None:
    assert torch.equal(data.x.to_dense(), X) and data.y.tolist() == [0, 1, -1]
    assert data.edge_index.tolist() == PATH.tolist() and data.directed is False and data.task == "classification"


class TestOneGraphInManyForms:
    def test_pyg(self) -> None:
        same(from_any(graph()))

    def test_numpy_in_pyg(self) -> None:
        same(from_any(graph(x=X.numpy(), edge_index=PATH.numpy(), y=np.array([0, 1, -1]))))

    def test_sparse_features(self) -> None:
        same(from_any(graph(x=sp.csr_matrix(X.numpy()))))

    def test_scipy_and_numpy_adjacency(self) -> None:
        adjacency = np.zeros((3, 3))
        adjacency[tuple(PATH.numpy())] = 1
        same(from_any(adjacency, x=X, y=[0, 1, -1]))
        same(from_any(sp.csr_matrix(adjacency), x=X.numpy(), y=np.array([0, 1, -1])))

    def test_networkx(self) -> None:
        made = nx.Graph([("p", "q"), ("q", "r")])
        for name, row, label in zip("pqr", X.tolist(), [0, 1, -1], strict=True):
            made.nodes[name].update(x=row, y=label)
        data = from_any(made)
        same(data)
        assert data.node_name == ["p", "q", "r"]

    def test_a_file(self, tmp_path: Path) -> None:
        torch.save(graph(), tmp_path / "g.pt")
        same(from_any(tmp_path / "g.pt"))
        same(from_any(str(tmp_path / "g.pt")))

    def test_a_file_that_would_run_code(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (tmp_path / "ran",)

        torch.save({"x": Evil()}, tmp_path / "g.pt")
        with pytest.raises(DataError, match="not opened for safety"):
            from_any(tmp_path / "g.pt")
        assert not (tmp_path / "ran").exists()


class TestWhatIsKept:
    def test_direction_and_weights(self) -> None:
        data = from_any(
            graph(edge_index=torch.tensor([[0, 0, 1, 2], [1, 1, 2, 2]]), edge_weight=torch.tensor([1.0, 2, 3, 4]))
        )
        assert data.edge_index.tolist() == [[0, 1], [1, 2]] and data.edge_weight.tolist() == [3, 3] and data.directed is True
        assert any("self loops" in note for note in data.notes) and any("repeated" in note for note in data.notes)

    def test_masks_and_owners(self) -> None:
        mask = torch.tensor([True, False, False])
        data = from_any(graph(train_mask=mask, client=torch.tensor([0, 1, 1]), owners=["n", "s"]))
        assert torch.equal(data.train_mask, mask) and data.client.tolist() == [0, 1, 1] and data.owners == ["n", "s"]

    def test_a_graph_for_each_owner(self) -> None:
        data = from_any({"n": graph(), "s": graph(edge_index=torch.zeros(2, 0, dtype=torch.int64))})
        assert data.owners == ["n", "s"] and data.client.tolist() == [0, 0, 0, 1, 1, 1] and data.graphless == ["s"]
        assert data.edge_index.tolist() == PATH.tolist()
        assert from_any([graph(), graph()]).edge_index.max() == 5

    def test_an_owner_without_edges_beside_directed_and_weighted_ones(self) -> None:
        linked = graph(edge_index=PATH[:, :1], edge_weight=torch.tensor([2.0]), feature_names=["a", "b"])
        data = from_any({"n": linked, "s": graph(edge_index=PATH[:, :0], feature_names=["a", "b"])})
        assert data.directed is True and data.edge_weight.tolist() == [2.0] and data.graphless == ["s"]
        assert data.feature_names == ["a", "b"]

    def test_regression_and_multi_label(self) -> None:
        assert from_any(graph(y=torch.tensor([0.5, float("nan"), 2.0]))).task == "regression"
        assert from_any(graph(y=torch.tensor([[1, 0], [1, 1], [0, 0]]))).task == "multi-label"


def heavy() -> nx.Graph:
    made = nx.Graph([(0, 1, {"weight": "heavy"})])
    nx.set_node_attributes(made, {node: {"x": [1.0], "y": node} for node in made})
    return made


MISTAKES: dict[str, Any] = {
    "hetero": HeteroData(),
    "a label of 10 million": graph(y=torch.tensor([0, 10**7, 1])),
    "a label of 2^40": graph(y=torch.tensor([0, 2**40, 1])),
    "labels below -1": graph(y=torch.tensor([0, -2, 1])),
    "labels of another length": graph(y=torch.tensor([0, 1])),
    "1e30": graph(x=X * 1e30),
    "nan": graph(x=X * float("nan")),
    "flat features": graph(x=torch.ones(3)),
    "no features": Data(edge_index=PATH, y=torch.zeros(3, dtype=torch.int64), num_nodes=3),
    "words as features": graph(x=np.array([["a"], ["b"], ["c"]])),
    "edges to nowhere": graph(edge_index=torch.tensor([[0], [3]])),
    "edges the wrong way round": graph(edge_index=PATH.T),
    "edges of floats": graph(edge_index=PATH.float()),
    "no edges": Data(x=X, y=torch.zeros(3, dtype=torch.int64)),
    "doubled names": graph(node_name=["a", "a", "b"]),
    "owners of floats": graph(client=torch.tensor([0.0, 1, 1])),
    "huge owner": graph(client=torch.tensor([0, 1, 2**40])),
    "a mask of numbers": graph(train_mask=torch.tensor([0, 1, 1])),
    "a wrong mask": graph(train_mask=torch.tensor([True])),
    "weights of another length": graph(edge_weight=torch.ones(2)),
    "lists of other things": [1, 2],
    "an oblong matrix": np.zeros((3, 2)),
    "a number": 7,
    "nothing": None,
    "no such file": "nowhere.pt",
    "owners of different labels": [graph(y=torch.ones(3, 2)), graph(y=torch.ones(3, 4))],
    "owners of different names": [graph(feature_names=["a", "b"]), graph(feature_names=["a", "c"])],
    "names in one text": graph(class_names="ab"),
    "names that are a number": graph(class_names=5),
    "too few names of features": graph(feature_names=["a"]),
    "complex features": graph(x=torch.ones(3, 2, dtype=torch.complex64)),
    "complex adjacency": sp.csr_matrix(np.eye(3) * 1j),
    "weights of text": heavy(),
    "a boundary out of range": graph(boundary_node=[9], boundary_foreign=["z"], boundary_outgoing=[True]),
    "a boundary without directions": graph(boundary_node=[1], boundary_foreign=["z"]),
    "a boundary of other lengths": graph(boundary_node=[1], boundary_foreign=["y", "z"], boundary_outgoing=[True]),
    "columns of classes": graph(y=torch.ones(3, 2), task="classification"),
    "owners of different width": [graph(), graph(x=torch.ones(3, 5))],
    "some with masks": [graph(), graph(train_mask=torch.tensor([True, False, False]))],
    "a ragged networkx": nx.Graph([("a", "b")]),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_sentence(what: str) -> None:
    with pytest.raises(SutureError) as complaint:
        from_any(MISTAKES[what])
    assert "\n" not in str(complaint.value) and len(str(complaint.value)) < 400


def test_owners_must_hold_equally_many_splits() -> None:
    one, two = (graph(train_mask=torch.ones(3, splits, dtype=torch.bool)) for splits in (1, 2))
    assert from_any([two, two]).train_mask.shape == (6, 2)
    with pytest.raises(DataError, match="differ in how many splits train_mask holds"):
        from_any([one, two])


def test_a_folder_holds_one_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a graph folder holds one split, and the masks hold 2: give one column"):
        import_graph(tmp_path / "out", graph(train_mask=torch.ones(3, 2, dtype=torch.bool)))
