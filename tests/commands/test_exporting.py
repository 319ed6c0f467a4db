"""An exported folder, used as somebody without Suture uses it: the same numbers as `suture predict`, also for new nodes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from small_tables import Kind, imported

import suture
from suture.cli import main
from suture.report.model_card import hanley, wilson
from suture.tables import GraphFolder

CASES = {
    "gcn": Kind("classification", directed=True, weighted=True),
    "sage": Kind("multi-label", weighted=True),
    "gat": Kind("classification", directed=True),
    "gprgnn": Kind("regression", weighted=True),
    "mlp": Kind("classification"),
    "sage-plain": Kind("classification"),
}
IMPORTED = ("gat", "gprgnn")
"""Their loaders read the graph folder, the others an .npz file."""
FEW = {"rounds": 3, "hidden": 8, "model.heads": 2, "lr": 0.05}

# Every loader in one fresh process, in which importing Suture fails.
DRIVER = """
import os, runpy, sys
sys.modules["suture"] = None
for folder in sys.argv[1:]:
    graph = "graph.npz" if os.path.exists(f"{folder}/graph.npz") else "new/graph"
    sys.argv = ["loader.py", f"{folder}/{graph}", f"{folder}/found.csv"]
    runpy.run_path(f"{folder}/model/loader.py", run_name="__main__")
assert not [name for name in sys.modules if name.startswith("suture.")]
"""


@dataclass(frozen=True)
class Case:
    run: Path
    graph: GraphFolder
    """Nodes that came after training."""
    model: Path
    found: np.ndarray
    """What loader.py wrote for them."""
    header: list[str]


def as_npz(graph: GraphFolder, out: Path) -> None:
    """A graph without its mirrored edges, as people have it in a file."""
    data = graph.to_data()
    one_way = torch.ones(data.edge_index.shape[1], dtype=torch.bool)
    if not data.directed:
        one_way = data.edge_index[0] < data.edge_index[1]
    parts = {"x": data.x.to_dense().numpy(), "edge_index": data.edge_index[:, one_way].numpy()}
    if data.get("edge_weight") is not None:
        parts["edge_weight"] = data.edge_weight[one_way].numpy()
    np.savez(out, **parts)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root, places = tmp_path_factory.mktemp("exported"), {}
    for name, kind in CASES.items():
        place = places[name] = root / name
        graph = imported(place / "old", kind)
        few = FEW | {"model.kind": name.partition("-")[0]}
        suture.run(graph.path, "fedavg", out=place / "run", overrides=few)
        later = imported(place / "new", kind, place / "run/schema.json", first=500, nodes=40, seed=3, owners=("north",))
        if name not in IMPORTED:
            as_npz(later, place / "graph.npz")
        assert main(["export", str(place / "run"), "--out", str(place / "model")]) == 0
    subprocess.run([sys.executable, "-c", DRIVER, *map(str, places.values())], check=True, cwd=root)
    made = {}
    for name, place in places.items():
        table = pl.read_csv(place / "found.csv")
        values = table.drop("node").to_numpy()
        made[name] = Case(place / "run", GraphFolder.read(place / "new/graph"), place / "model", values, table.columns[1:])
    return made


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_loader_gives_what_predict_gives_for_new_nodes(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    found = suture.predict(case.run, case.graph.path)
    scale = 1.0 if found.task != "regression" else float(found.probability.abs().max())
    np.testing.assert_allclose(case.found, found.probability.numpy(), atol=1e-5 * scale)
    assert float(found.probability.std(0).max()) > 1e-3 * scale  # a constant would agree with anything
    names = {"classification": ["high", "low", "mid"], "multi-label": ["rich", "old"], "regression": ["0"]}
    assert case.header == names[CASES[name].task]


@pytest.mark.parametrize("name", sorted(CASES))
def test_so_does_the_program_of_torch_export(cases: dict[str, Case], name: str) -> None:
    case, data = cases[name], cases[name].graph.to_data()
    inputs = [data.x.to_dense(), data.edge_index]
    if CASES[name].weighted:
        inputs.append(data.edge_weight)
    program = torch.export.load(case.model / "model.pt2").module()
    found = program(*inputs).detach().numpy()
    np.testing.assert_allclose(found, case.found, rtol=1e-5, atol=1e-5)
    alone = [inputs[0][:1], torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0)][: len(inputs)]
    assert program(*alone).shape == (1, found.shape[1])


def test_edges_that_go_one_way_would_be_wrong(cases: dict[str, Case]) -> None:
    """What the exported code did before: it did not symmetrise."""
    data = cases["sage-plain"].graph.to_data()
    program = torch.export.load(cases["sage-plain"].model / "model.pt2").module()
    one_way = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    off = (program(data.x.to_dense(), one_way).detach() - torch.from_numpy(cases["sage-plain"].found)).abs().max()
    assert off > 1e-2


def test_the_folder_holds_what_the_card_says(cases: dict[str, Case]) -> None:
    folder = cases["gcn"].model
    files = sorted(file.name for file in folder.iterdir())
    assert files == ["MODEL_CARD.md", "loader.py", "model.pt2", "model.safetensors", "schema.json"]
    card = (folder / "MODEL_CARD.md").read_text()
    for name in files[1:]:
        assert f"| {name} | `{hashlib.sha256((folder / name).read_bytes()).hexdigest()}` |" in card
    result = json.loads((cases["gcn"].run / "result.json").read_text())
    evaluation = json.loads((cases["gcn"].run / "evaluation.json").read_text())
    assert f"The metric is {result['metric']}" in card and f"Mean over owners {result['accuracy_client_mean']:.4f}" in card
    tested = evaluation["clients"]["north"]["test"]
    row = next(line for line in card.splitlines() if line.startswith("| north |"))
    assert f"| {tested['support']} | {tested[result['metric']]:.4f} |" in row
    for text in ("fedavg", "protocol: own", "| income | numeric |", "| town | categorical | 3 categories |", "No guarantee"):
        assert text in card
    assert "$" not in card
    with safe_open(folder / "model.safetensors", "pt") as content:
        told = json.loads(content.metadata()["preprocessing"])
    assert told["edges"] == "as given" and told["weighted"] and told["edge_scale"] > 1


def test_a_directed_graph_that_was_mirrored_is_mirrored_by_the_loader(tmp_path: Path) -> None:
    graph = imported(tmp_path / "g", Kind(directed=True, weighted=True))
    few = FEW | {"preprocess.direction": "mirror", "model.kind": "gcn"}
    suture.run(graph.path, "fedavg", out=tmp_path / "run", overrides=few)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "m")]) == 0
    found, data = _in_this_process(tmp_path / "m"), graph.to_data()
    ours = suture.predict(tmp_path / "run", graph.path, uncut=True).probability
    theirs = found["predict"](data.x.to_dense(), data.edge_index, data.edge_weight)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="give edge_weight"):
        found["predict"](data.x.to_dense(), data.edge_index)


def _in_this_process(folder: Path) -> dict[str, Any]:
    known: dict[str, Any] = {"__file__": str(folder / "loader.py"), "__name__": "loader"}
    exec((folder / "loader.py").read_text(), known)
    return known


class Deaf(torch.nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(features, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.lin(x)  # type: ignore[no-any-return]


class Hearing(Deaf):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        h = self.lin(x)
        weight = torch.ones(edge_index.shape[1]) if edge_weight is None else edge_weight
        return h.index_add(0, edge_index[1], weight.unsqueeze(1) * h[edge_index[0]])  # type: ignore[no-any-return]


class TestOneFile:
    def test_the_printed_code_does_all_of_it(self, cases: dict[str, Case], tmp_path: Path, capsys: Any) -> None:
        case = cases["gprgnn"]
        assert main(["export", str(case.run), "--out", str(tmp_path / "m.safetensors")]) == 0
        code = capsys.readouterr().out
        assert "suture" not in code
        data = case.graph.to_data()
        known: dict[str, Any] = {"x": data.x, "edge_index": data.edge_index, "edge_weight": data.edge_weight}
        exec(code, known)
        np.testing.assert_allclose(known["scores"].numpy(), case.found, rtol=1e-5)
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]


class TestWhatCannotBeExportedWhole:
    def test_mending_is_left_out_and_said(self, cases: dict[str, Case], tmp_path: Path, capsys: Any) -> None:
        graph = GraphFolder.read(cases["mlp"].run.parent / "old/graph")
        few = {"rounds": 2, "hidden": 8, "fedsage_plus.generator_epochs": 3}
        suture.run(graph.path, "fedsage_plus", out=tmp_path / "r", overrides=few)
        assert main(["export", str(tmp_path / "r"), "--out", str(tmp_path / "m")]) == 0
        assert "predict --no-mend" in capsys.readouterr().err
        assert "what it mends with is not exported" in (tmp_path / "m/MODEL_CARD.md").read_text()
        north = graph.per_owner(tmp_path / "pieces")["north"]
        data = GraphFolder.read(north).to_data()
        theirs = _in_this_process(tmp_path / "m")["predict"](data.x.to_dense(), data.edge_index)
        torch.testing.assert_close(theirs, suture.predict(tmp_path / "r", north, mend=False).probability, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("network", [Deaf, Hearing])
    def test_an_own_network_is_asked_for(self, network: Any, cases: dict[str, Case], tmp_path: Path) -> None:
        graph = GraphFolder.read(cases["gcn"].run.parent / "old/graph")
        suture.run(graph.path, "fedavg", out=tmp_path / "r", model=network, overrides={"rounds": 2})
        assert main(["export", str(tmp_path / "r"), "--out", str(tmp_path / "m")]) == 0
        assert not (tmp_path / "m/model.pt2").exists()
        loader, data = _in_this_process(tmp_path / "m"), graph.to_data()
        with pytest.raises(SystemExit, match="own network"):
            loader["load"]()
        x = data.x.to_dense()
        model = loader["load"](layers=network(x.shape[1], 3))
        theirs = loader["predict"](x, data.edge_index, data.edge_weight, model=model)
        ours = suture.predict(tmp_path / "r", graph.path, uncut=True, model=network).probability
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)

    def test_a_used_folder_is_refused(self, cases: dict[str, Case], tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        assert main(["export", str(cases["mlp"].run), "--out", str(tmp_path)]) == 2
        assert "is there already" in capsys.readouterr().err
        assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_intervals_against_published_and_simulated_ones() -> None:
    """Wilson: 10 of 20 is 0.299 to 0.701 (Newcombe 1998). Hanley and McNeil's is exact for exponential scores."""
    assert wilson(0.5, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)
    rng, positive, negative = np.random.default_rng(0), 30, 60
    high, low = rng.exponential(4.0, (4000, positive, 1)), rng.exponential(1.0, (4000, 1, negative))
    areas = (high > low).mean((1, 2))
    bottom, top = hanley(0.8, positive, negative)
    assert areas.mean() == pytest.approx(0.8, abs=0.01)
    assert (top - bottom) / 2 / 1.96 == pytest.approx(areas.std(), rel=0.05)
