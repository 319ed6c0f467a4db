"""The two worked examples as docs/own-data.md walks them, held against plain PyG on the same pieces."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import suture
from suture.cli import main

pl = pytest.importorskip("polars")

NAMES = {"fraud": "yes", "contacts": "yes"}
"""The example, and the class that is looked for."""


def walked(name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """From nothing to a graph folder, typing what each command says."""
    monkeypatch.chdir(folder)
    assert main(["data", "example", name, "--out", "tables"]) == 0
    said = capsys.readouterr()
    command = next(line for line in (said.out + said.err).splitlines() if line.startswith("next: "))
    words = shlex.split(command.removeprefix("next: suture "))
    assert main(words) == 0
    assert "boundary edges" in (folder / words[1] / "summary.txt").read_text()
    return folder / words[1]


def area(score_N: Tensor, positive_N: Tensor) -> float:
    """ROC-AUC by its definition: the share of (positive, negative) pairs in the right order, ties counting half."""
    gap = score_N[positive_N].unsqueeze(1) - score_N[~positive_N].unsqueeze(0)
    return float((gap > 0).double().mean() + 0.5 * (gap == 0).double().mean())


def owners_mean(score_N: Tensor, data: Data, mask: Tensor) -> float:
    """The mean over owners of the area on their nodes in a mask."""
    parts = [mask & (data.client == owner) for owner in data.client.unique()]
    return sum(area(score_N[part], data.y[part] == 1) for part in parts) / len(parts)


def plain_pyg(data: Data, epochs: int = 150) -> float:
    """A class-weighted GraphSAGE of two layers on all pieces at once, its best round by validation, on the test nodes."""
    torch.manual_seed(0)
    inside = data.client[data.edge_index[0]] == data.client[data.edge_index[1]]
    x, edges = data.x, data.edge_index[:, inside]
    layers = torch.nn.ModuleList([SAGEConv(x.shape[1], 64), SAGEConv(64, 2)])
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4)
    weight = 1 / torch.bincount(data.y[data.train_mask]).float()
    best = (0.0, 0.0)
    for _ in range(epochs):
        out = layers[1](F.dropout(layers[0](x, edges).relu(), 0.5), edges)
        optimiser.zero_grad()
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask], weight).backward()
        optimiser.step()
        with torch.no_grad():
            out = layers[1](layers[0](x, edges).relu(), edges)
        best = max(best, tuple(owners_mean(out[:, 1] - out[:, 0], data, mask) for mask in (data.val_mask, data.test_mask)))
    return best[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_model_is_as_good_as_plain_pyg_and_better_than_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = walked(name, tmp_path, capsys, monkeypatch)
    assert main(["run", "--data", str(folder), "--method", "fedavg", "--out", "together", "-q"]) == 0
    alone = suture.run(folder, "local").outcome
    assert main(["predict", "together", "--out", "predictions.csv"]) == 0
    rows = pl.read_csv("predictions.csv", schema_overrides={"id": pl.String})
    data = suture.run(folder, rounds=1).data  # the masks and pieces of the same seed
    assert rows.height == data.num_nodes
    chance = torch.from_numpy(rows[f"probability {NAMES[name]}"].to_numpy().copy())
    saved = owners_mean(chance, data, data.test_mask)
    assert saved > plain_pyg(data) - 0.02
    assert alone.metric == "roc_auc" and saved > alone.accuracy_client_mean
    unlabelled = rows.filter(~pl.col("labelled"))
    assert unlabelled.height > 0 and unlabelled["prediction"].null_count() == 0
