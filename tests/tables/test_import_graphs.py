"""Graphs of other libraries into folders and back: nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import suture
from suture.cli import main
from suture.errors import DataError

pytest.importorskip("polars")

from suture.tables import GraphFolder, import_graph

NODES = 30


def graph(**changes: object) -> Data:
    rng = np.random.default_rng(0)
    pairs = np.array([(a, b) for a in range(NODES) for b in range(a) if rng.random() < 0.15]).T
    fields: dict[str, object] = {
        "x": torch.from_numpy(np.stack([rng.normal(size=NODES), rng.integers(0, 2, NODES)], 1)).float(),
        "edge_index": torch.from_numpy(pairs),
        "edge_weight": torch.linspace(1, 2, pairs.shape[1]),
        "directed": True,
        "y": torch.from_numpy(rng.integers(-1, 2, NODES)),
        "client": torch.arange(NODES) % 2,
        "owners": ["north", "south"],
        "class_names": ["no", "yes"],
        "node_name": [f"n{number}" for number in range(NODES)],
    }
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


def test_a_folder_gives_the_graph_back(tmp_path: Path) -> None:
    given = graph(train_mask=torch.arange(NODES) % 3 == 0, test_mask=torch.arange(NODES) % 3 == 1)
    folder, summary = import_graph(tmp_path / "g", given)
    back = GraphFolder.read(folder.path).to_data()
    order = torch.argsort(given.edge_index[0] * NODES + given.edge_index[1])
    assert torch.equal(back.edge_index, given.edge_index[:, order])
    assert torch.equal(back.edge_weight, given.edge_weight[order])
    for name in ("x", "y", "client", "train_mask", "test_mask"):
        assert torch.equal(back[name], given[name]), name
    assert back.directed and back.owners == given.owners and back.class_names == given.class_names
    assert back.node_name == given.node_name
    assert back.standardise.tolist() == [True, False]  # the second column is a flag
    assert "standardised when a run starts" in summary.text()


@pytest.mark.parametrize("task", ["regression", "multi-label", "unlabelled"])
def test_other_labels(task: str, tmp_path: Path) -> None:
    y = torch.linspace(0, 9, NODES) if task == "regression" else (torch.rand(NODES, 3) < 0.5).float()
    y = y if task != "unlabelled" else torch.full((NODES,), -1)
    import_graph(tmp_path / "g", graph(y=y, class_names=None))
    back = GraphFolder.read(tmp_path / "g").to_data()
    assert torch.equal(back.y, y)
    assert back.task == (task if task != "unlabelled" else "classification")


def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    x = (torch.rand(NODES, 200, generator=torch.Generator().manual_seed(0)) < 0.02).float() * 3
    import_graph(tmp_path / "g", graph(x=x))
    back = GraphFolder.read(tmp_path / "g").to_data()
    assert back.x.layout == torch.sparse_csr and torch.equal(back.x.to_dense(), x)


class TestFiles:
    def test_pt(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save(graph(), tmp_path / "data.pt")
        assert main(["import", str(tmp_path / "g"), "--graph", str(tmp_path / "data.pt")]) == 0
        assert "next: suture assess" in capsys.readouterr().out
        assert suture.run(tmp_path / "g", rounds=1).client_ids == ("north", "south")

    def test_npz_as_the_heterophilous_graphs_are(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        one = graph()
        arrays = {"node_features": one.x.numpy(), "node_labels": one.y.numpy(), "edges": one.edge_index.T.numpy()}
        np.savez(tmp_path / "data.npz", **arrays, train_masks=np.ones((10, NODES), dtype=bool))
        assert main(["import", str(tmp_path / "g"), "--graph", str(tmp_path / "data.npz")]) == 0
        assert "arrays train_masks of data.npz were dropped" in capsys.readouterr().out
        assert torch.equal(GraphFolder.read(tmp_path / "g").to_data().x, one.x)

    def test_graphml(self, tmp_path: Path) -> None:
        made = nx.path_graph(6)
        for node in made:
            made.nodes[node].update({"size": 0.5 * node, "is_new": node % 2, "label": node % 3})
        nx.write_graphml(made, tmp_path / "data.graphml")
        assert main(["import", str(tmp_path / "g"), "--graph", str(tmp_path / "data.graphml")]) == 0
        back = GraphFolder.read(tmp_path / "g").to_data()
        assert back.y.tolist() == [0, 1, 2, 0, 1, 2]
        assert torch.equal(back.x, torch.tensor([[node % 2, 0.5 * node] for node in range(6)]))

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--graph", "nothing.pt"], "cannot read nothing.pt"),
            (["--graph", "nothing.npz"], "cannot read nothing.npz"),
            (["--graph", "text.npz"], "is not an .npz file of plain arrays"),
            (["--graph", "text.graphml"], "is not a GraphML file"),
            (["--graph", "text.csv"], "is neither a graph folder nor a file of .pt, .npz, .graphml"),
            (["--graph", "a.pt", "--id", "x"], "--id is about tables"),
            ([], "give your tables with --nodes FILE"),
        ],
    )
    def test_one_sentence(
        self, arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.chdir(tmp_path)
        for name in ("text.npz", "text.graphml", "text.csv"):
            (tmp_path / name).write_text("no graph")
        assert main(["import", "g", *arguments]) == 2
        said = capsys.readouterr().err
        assert says in said and said.count("\n") == 1 and not (tmp_path / "g").exists()


def test_what_a_folder_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one number to predict"):
        import_graph(tmp_path / "g", graph(y=torch.rand(NODES, 2), task="regression", class_names=None))
    with pytest.raises(DataError, match="an owner cannot be called"):
        import_graph(tmp_path / "g", graph(owners=["../north", "south"]))
    assert not (tmp_path / "g").exists()
