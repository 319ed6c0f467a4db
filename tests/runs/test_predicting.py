"""Predictions after a run: the same as at its end, on its own graph; and right on graphs that came later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from small_tables import Kind, imported
from torch_geometric.data import Data

import suture
from suture.cli import main
from suture.errors import ConfigError, DataError
from suture.graph.scaling import Statistics
from suture.methods import METHODS
from suture.runs.card import DataCard
from suture.runs.folder import read_card
from suture.tables import GraphFolder

FEW = {"rounds": 2, "hidden": 8, "evaluation.select": "last"}
FEWER_STEPS: dict[str, dict[str, object]] = {
    "fedsage_plus": {"generator_epochs": 4},
    "locsage_plus": {"generator_epochs": 4},
    "feddep": {"generator_epochs": 3, "pretrain_epochs": 2, "d_z": 8, "clusters": 3},
    "fedggr": {"pretrain_rounds": 2, "code_width": 4, "k": 3, "codes": "nodes"},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphFolder:
    return imported(tmp_path_factory.mktemp("small"), Kind())


def trained(graph: GraphFolder | Data, out: Path, method: str = "fedavg", **values: Any) -> suture.Result:
    few = FEW | {f"{method}.{name}": value for name, value in FEWER_STEPS.get(method, {}).items()} | values
    return suture.run(graph.path if isinstance(graph, GraphFolder) else graph, method, out=out, overrides=few)


@pytest.fixture(scope="module")
def fedavg(graph: GraphFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, suture.Result]:
    out = tmp_path_factory.mktemp("runs") / "fedavg"
    return out, trained(graph, out)


def by_hand(model: torch.nn.Module, data: Data, run: Path, nodes: torch.Tensor | None = None) -> torch.Tensor:
    """Probabilities by a plain PyG module on the nodes' induced subgraph, features standardised here."""
    found = DataCard.read(read_card(run)).statistics
    assert isinstance(found, Statistics)
    chosen = torch.arange(data.num_nodes) if nodes is None else nodes
    x = (data.x.to_dense() - torch.tensor(found.shift)) / torch.tensor(found.scale)
    place = torch.full((data.num_nodes,), -1)
    place[chosen] = torch.arange(len(chosen))
    edges = place[data.edge_index]
    edges = edges[:, (edges >= 0).all(0)]
    with torch.no_grad():
        return torch.softmax(model(x[chosen], edges), 1)


class TestSameAsAtItsEnd:
    @pytest.mark.parametrize("method", sorted(METHODS))
    def test_prediction_from_the_folder_is_that_of_the_result(self, graph: GraphFolder, method: str, tmp_path: Path) -> None:
        known = {"partition.boundary": "both"} if method == "fedgcn" else {}
        result = trained(graph, tmp_path / "run", method, **{"evaluation.metric": "accuracy", **known})
        assert main(["predict", str(tmp_path / "run"), "--out", str(tmp_path / "p.parquet")]) == 0
        table, data = pl.read_parquet(tmp_path / "p.parquet"), result.data
        found = torch.tensor(table.select("probability high", "probability low", "probability mid").to_numpy())
        torch.testing.assert_close(found, data.probability, atol=1e-5, rtol=0)
        assert table["id"].to_list() == data.node_name
        assert table["owner"].to_list() == [result.client_ids[k] for k in data.client]
        names = [data.class_names[k] for k in data.prediction]
        assert table["prediction"].to_list() == names
        # What was tested at the end saw the clients' own states, not what was remembered of them.
        for k, name in enumerate(result.client_ids):
            mask = data.test_mask & (data.client == k)
            right = float((data.prediction[mask] == data.y[mask]).double().mean())
            assert right == pytest.approx(result.evaluation["clients"][name]["test"]["accuracy"], abs=1e-9)

    def test_of_a_graph_of_the_catalogue_cut_by_a_protocol(self, tmp_path: Path) -> None:
        few = {"rounds": 2, "hidden": 8}
        made = "csbm:nodes=200,features=20,words_per_node=5,classes=3"
        result = suture.run(made, "fedavg", protocol="fedpub-overlap", clients=5, out=tmp_path / "r", overrides=few)
        found = suture.predict(tmp_path / "r")
        torch.testing.assert_close(found.probability, result.data.probability, atol=1e-5, rtol=0, equal_nan=True)
        assert torch.equal(found.client, result.data.client)

    def test_mending_needs_what_the_run_kept(self, graph: GraphFolder, tmp_path: Path) -> None:
        run = tmp_path / "run"
        result = trained(graph, run, "fedsage_plus", rounds=3)
        mended, plain = suture.predict(run).probability, suture.predict(run, mend=False).probability
        assert (mended - plain).abs().max() > 1e-3
        data, north = graph.to_data(), None
        for k, _ in enumerate(result.client_ids):
            north = torch.nonzero(data.client == k).squeeze(1)
            torch.testing.assert_close(plain[north], by_hand(result.model(), data, run, north), atol=1e-5, rtol=0)
        (run / "memory.safetensors").write_bytes(b"no")
        with pytest.raises(suture.SutureError, match="damaged; train it again"):
            suture.predict(run)


class TestNodesThatCameLater:
    @pytest.fixture
    def later(self, fedavg: tuple[Path, suture.Result], tmp_path: Path) -> GraphFolder:
        """Sixty other nodes of owners that took part."""
        return imported(tmp_path / "later", Kind(), fedavg[0] / "schema.json", first=1000, nodes=60, seed=9)

    def test_each_owner_predicts_on_its_own_piece(self, fedavg: tuple[Path, suture.Result], later: GraphFolder) -> None:
        run, result = fedavg
        found, data = suture.predict(run, later.path), later.to_data()
        for k in range(3):
            nodes = torch.nonzero(data.client == k).squeeze(1)
            torch.testing.assert_close(
                found.probability[nodes], by_hand(result.model(), data, run, nodes), atol=1e-5, rtol=0
            )
        assert any("20 edges between owners were left out" in note for note in found.notes)

    def test_uncut_takes_edges_between_owners_in(self, fedavg: tuple[Path, suture.Result], later: GraphFolder) -> None:
        run, result = fedavg
        found, data = suture.predict(run, later.path, uncut=True), later.to_data()
        torch.testing.assert_close(found.probability, by_hand(result.model(), data, run), atol=1e-5, rtol=0)
        assert (found.probability - suture.predict(run, later.path).probability).abs().max() > 1e-3
        assert torch.equal(found.client, data.client)
        assert any("--uncut" in note for note in found.notes)

    def test_nodes_added_to_the_graph_change_only_their_surroundings(
        self, fedavg: tuple[Path, suture.Result], graph: GraphFolder
    ) -> None:
        run, data = fedavg[0], graph.to_data()
        grown = data.clone()
        grown.x = torch.cat([data.x, data.x[:1]])
        grown.y = torch.cat([data.y, torch.tensor([-1])])
        grown.client = torch.cat([data.client, data.client[:1]])
        grown.node_name = [*data.node_name, "new"]
        grown.edge_index = torch.cat([data.edge_index, torch.tensor([[0, 90], [90, 0]])], 1)
        before, after = suture.predict(run).probability, suture.predict(run, grown).probability
        changed = torch.nonzero((before - after[:90]).abs().sum(1) > 1e-6).squeeze(1).tolist()
        assert 0 in changed and len(changed) < 30
        torch.testing.assert_close(after[90].sum(), torch.tensor(1.0))

    def test_a_new_owner_gets_the_model_for_everybody(self, fedavg: tuple[Path, suture.Result], tmp_path: Path) -> None:
        run, result = fedavg
        east = imported(tmp_path / "east", Kind(), run / "schema.json", nodes=30, owners=("east",))
        found = suture.predict(run, east.path)
        torch.testing.assert_close(found.probability, by_hand(result.model(), east.to_data(), run), atol=1e-5, rtol=0)
        assert any("east did not take part" in note for note in found.notes)

    def test_a_new_owner_is_refused_where_everybody_has_a_model(self, graph: GraphFolder, tmp_path: Path) -> None:
        trained(graph, tmp_path / "run", "local")
        east = imported(tmp_path / "east", Kind(), tmp_path / "run/schema.json", nodes=30, owners=("east",))
        with pytest.raises(ConfigError, match=r"no model for east.*those of north, south, west"):
            suture.predict(tmp_path / "run", east.path)
        with pytest.raises(ConfigError, match="no model for the graph as a whole"):
            suture.predict(tmp_path / "run", uncut=True)

    def test_anchors_tell_new_nodes_as_much_as_old_ones(self, graph: GraphFolder, tmp_path: Path) -> None:
        run = tmp_path / "run"
        trained(graph, run, "fedggr", **{"fedggr.codes": "anchors", "fedggr.anchors": 5})
        later = imported(tmp_path / "later", Kind(), run / "schema.json", first=1000, nodes=60, seed=9).path
        found = suture.predict(run, later)
        assert not found.probability.isnan().any() and not any("not mended" in note for note in found.notes)
        with pytest.raises(ConfigError, match="fedggr does not mend graphs"):
            suture.predict(run, later, mend=True)

    def test_generators_mend_new_graphs_and_foreign_neighbours_cannot(self, graph: GraphFolder, tmp_path: Path) -> None:
        for method, mends in (("fedsage_plus", True), ("feddep", True), ("fedgnn", False), ("fedggr", False)):
            run = tmp_path / method
            trained(graph, run, method)
            later = imported(tmp_path / f"l-{method}", Kind(), run / "schema.json", first=1000, nodes=60, seed=9).path
            found, plain = suture.predict(run, later), suture.predict(run, later, mend=False)
            assert bool((found.probability - plain.probability).abs().max() > 1e-6) == mends
            assert not found.probability.isnan().any()
            torch.testing.assert_close(found.probability, suture.predict(run, later).probability)
            if not mends:
                assert any("not mended: north, south, west" in note for note in found.notes)
                with pytest.raises(ConfigError, match=f"{method} can mend only the nodes it was trained on"):
                    suture.predict(run, later, mend=True)


class TestRefusals:
    def test_another_schema(self, fedavg: tuple[Path, suture.Result], tmp_path: Path, capsys: Any) -> None:
        other = imported(tmp_path / "other", Kind(directed=True))
        out = tmp_path / "p.csv"
        assert main(["predict", str(fedavg[0]), "--data", str(other.path), "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert "another schema" in said and "directed is True, not False" in said and "--schema" in said
        assert not out.exists()

    def test_a_graph_of_another_width(self, fedavg: tuple[Path, suture.Result]) -> None:
        with pytest.raises(DataError, match=r"2 features.*was trained on"):
            suture.predict(fedavg[0], Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]])))

    def test_a_comparison_names_its_runs(self, graph: GraphFolder, tmp_path: Path) -> None:
        suture.compare(graph.path, ["fedavg", "local"], seeds=[0], out=tmp_path / "c", overrides=FEW)
        with pytest.raises(ConfigError, match=r"is a comparison; choose one of its runs: .*fedavg-seed0.*local-seed0"):
            suture.predict(tmp_path / "c")

    def test_links(self, tmp_path: Path) -> None:
        made = "csbm:nodes=120,features=20,words_per_node=5,classes=2"
        suture.run(made, "fedavg", protocol="fedpub-link", clients=2, out=tmp_path / "r", overrides={"rounds": 1})
        with pytest.raises(ConfigError, match="nothing to say of single nodes"):
            suture.predict(tmp_path / "r")

    def test_a_graph_in_memory_must_be_given_again(self, graph: GraphFolder, tmp_path: Path) -> None:
        data = graph.to_data()
        result = trained(data, tmp_path / "r")
        with pytest.raises(DataError, match="given in memory"):
            suture.predict(tmp_path / "r")
        torch.testing.assert_close(suture.predict(tmp_path / "r", data).probability, result.data.probability)
        assert torch.equal(suture.predict(result).prediction, result.data.prediction)

    def test_weights_that_the_model_needs(self, tmp_path: Path) -> None:
        weighted = imported(tmp_path / "w", Kind(weighted=True))
        trained(weighted, tmp_path / "r")
        data = weighted.to_data()
        data.edge_weight = None
        with pytest.raises(DataError, match="edges with weights, these have none"):
            suture.predict(tmp_path / "r", data)

    def test_an_own_network_must_be_given_again(self, graph: GraphFolder, tmp_path: Path) -> None:
        class Net(torch.nn.Module):
            def __init__(self, features: int, classes: int) -> None:
                super().__init__()
                self.lin = torch.nn.Linear(features, classes)

            def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
                return self.lin(x)  # type: ignore[no-any-return]

        result = suture.run(graph.path, "fedavg", out=tmp_path / "r", model=Net, overrides=FEW)
        with pytest.raises(ConfigError, match="was your own"):
            suture.predict(tmp_path / "r")
        torch.testing.assert_close(suture.predict(tmp_path / "r", model=Net).probability, result.data.probability)


class TestTheTable:
    @pytest.mark.parametrize("task", ["classification", "multi-label", "regression"])
    def test_says_what_is_known_and_predicted(self, task: str, tmp_path: Path) -> None:
        graph = imported(tmp_path / "g", Kind(task))
        result = trained(graph, tmp_path / "r")
        assert main(["predict", str(tmp_path / "r"), "--out", str(tmp_path / "deep/er/p.csv")]) == 0
        table, data = pl.read_csv(tmp_path / "deep/er/p.csv"), result.data
        assert table["labelled"].to_list() == [v % 5 != 4 for v in range(90)]
        assert set(table["role"].drop_nulls()) == {"train", "val", "test"}
        assert table.filter(pl.col("role") == "test")["id"].to_list() == [
            name for name, tested in zip(data.node_name, data.test_mask.tolist(), strict=True) if tested
        ]
        given = pl.read_csv(tmp_path / "g/tables/nodes.csv")
        if task == "classification":
            assert table["label"].to_list() == given["label"].to_list()
        elif task == "multi-label":
            assert table["label old"].to_list() == given["old"].to_list()
            assert (table["predicted rich"] == (table["probability rich"] > 0.5).cast(pl.Int64)).all()
        else:
            torch.testing.assert_close(torch.tensor(table["prediction"].to_list()), data.prediction.squeeze(1))
            assert (table["label"] - given["label"]).abs().max() < 1e-3
            assert abs(table["prediction"].mean() - given["label"].mean()) < 200  # type: ignore[operator, arg-type]

    def test_ids_that_look_like_formulas_stay(self, tmp_path: Path, capsys: Any) -> None:
        graph = imported(tmp_path / "g", Kind())
        data = graph.to_data()
        data.node_name[3], data.node_name[4] = "=cmd|' /C calc'!A0", 'say "hi", ok\n'
        from suture.commands.predicting import answers_of
        from suture.runs.predicting import predict
        from suture.runs.trained import Trained
        from suture.tables.predictions import formulas_in, frame_of, write_predictions

        trained(graph, tmp_path / "r")
        frame = frame_of(answers_of(predict(Trained.read(tmp_path / "r"), data)))
        write_predictions(frame, tmp_path / "p.csv")
        assert pl.read_csv(tmp_path / "p.csv")["id"].to_list() == data.node_name
        assert formulas_in(frame) == 1

    def test_a_file_is_replaced_only_by_force(self, fedavg: tuple[Path, suture.Result], tmp_path: Path, capsys: Any) -> None:
        out = tmp_path / "p.csv"
        out.write_text("mine")
        assert main(["predict", str(fedavg[0]), "--out", str(out)]) == 2
        assert "--force" in capsys.readouterr().err and out.read_text() == "mine"
        assert main(["predict", str(fedavg[0]), "--out", str(out), "--force"]) == 0
        assert out.read_text().startswith("id,owner,prediction,")
        assert main(["predict", str(fedavg[0]), "--out", str(tmp_path / "p.xls")]) == 2
        assert [file.name for file in tmp_path.iterdir()] == ["p.csv"]
