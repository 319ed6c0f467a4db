"""The worked examples: their numbers, that they are the same every time, and that neighbours across the boundary matter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.cli import main
from suture.tables import GraphFolder, Wishes, import_tables
from suture.tables.examples import write_example
from suture.tables.preparing import find_owners
from suture.tables.schema import Roles


def fraud(tmp_path: Path) -> Data:
    write_example("fraud", tmp_path / "bank")
    pattern = str(tmp_path / "bank" / "{owner}")
    tables = find_owners(f"{pattern}/accounts.csv", f"{pattern}/transfers.csv", None)
    roles = Roles(id=("account",), label=("fraud",), source=("payer",), target=("payee",), weight="amount")
    folder, _ = import_tables(tmp_path / "graph", tables, Wishes(roles))
    return folder.to_data()


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    rank = score.argsort().argsort() + 1
    return float((rank[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum()))


def test_fraud_depends_on_own_columns_and_on_neighbours_also_abroad(tmp_path: Path) -> None:
    data = fraud(tmp_path)
    assert data.owners == ["north", "south", "west"] and data.num_nodes == 15_000
    labelled = (data.y >= 0).numpy()
    assert 0.68 < labelled.mean() < 0.72
    fraudulent = data.y.numpy()[labelled] == 1
    assert 0.04 < fraudulent.mean() < 0.056
    column = {name: data.x.to_dense()[:, number].double().numpy() for number, name in enumerate(data.feature_names)}
    own, shown = column["night_share"], column["cash_share"]
    position = {name: number for number, name in enumerate(data.node_name)}
    abroad = np.array(
        [[a, position[name]] for a, name in zip(data.boundary_node.tolist(), data.boundary_foreign, strict=True)]
    ).T
    assert abroad.shape[1] > 10_000 and (data.client[abroad[0]] != data.client[abroad[1]]).all()

    def around(edges: np.ndarray) -> np.ndarray:
        ends = np.concatenate([edges, edges[::-1]], axis=1)
        degree = np.bincount(ends[0], minlength=15_000)
        return np.where(degree > 0, np.bincount(ends[0], shown[ends[1]], 15_000) / np.maximum(degree, 1), shown.mean())

    home = data.edge_index.numpy()
    scores = [own, own + around(home), own + around(np.concatenate([home[:, home[0] < home[1]], abroad], axis=1))]
    alone, local, mended = (auc(score[labelled], fraudulent) for score in scores)
    assert alone > 0.7 and local > alone + 0.03 and mended > local + 0.02, (alone, local, mended)


@pytest.mark.parametrize("name", ["fraud", "contacts"])
def test_the_same_seed_gives_the_same_files(tmp_path: Path, name: str) -> None:
    digests = []
    for number, seed in enumerate((0, 0, 1)):
        write_example(name, tmp_path / str(number), seed)
        files = sorted(path for path in (tmp_path / str(number)).rglob("*.csv"))
        digests.append(hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_the_printed_next_step_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One hospital has no contacts: it is an owner without a graph."""
    assert main(["data", "example", "contacts", "--out", str(tmp_path / "clinic")]) == 0
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("next: suture ").replace("'", "").split()
    assert main(command) == 0
    folder = GraphFolder.read(tmp_path / "clinic-graph")
    assert folder.graphless == ("yew",) and folder.owners == ("elm", "oak", "pine", "yew")
    assert folder.about["boundary"] > 1000


def test_twitch_by_tables_is_twitch_by_name(tmp_path: Path, data_root: Path, dataset: Callable[[str], Data]) -> None:
    """Two readers, one by Polars and one without, must agree on six real owners."""
    named = dataset("twitch")
    base = str(data_root / "Twitch" / "{owner}" / "musae_{owner}_")
    wishes = Wishes(
        Roles(id=("new_id",), label=("mature",)),
        duplicates="first",
        kinds=dict.fromkeys(("days", "views", "partner"), "ignored"),
    )
    owners = find_owners(base + "target.csv", base + "edges.csv", base + "features.json")
    folder, summary = import_tables(tmp_path / "out", owners, wishes)
    data = folder.to_data()
    assert data.owners == ["DE", "ENGB", "ES", "FR", "RU", "TW"]
    assert any(line.subject == "column 'id'" and line.done.startswith("dropped") for line in summary.lines)
    # Tables are in their own order; by name, nodes are in the order of their numbers.
    start = torch.tensor([0, *torch.bincount(data.client).cumsum(0).tolist()])
    place = start[data.client] + torch.tensor([int(name) for name in data.node_name])
    assert torch.equal(named.y[place], data.y) and torch.equal(named.client[place], data.client)
    assert torch.equal(named.x.to_dense()[place], data.x.to_dense())
    edges = place[data.edge_index]
    order = (edges[0] * data.num_nodes + edges[1]).argsort()
    assert torch.equal(edges[:, order], named.edge_index)
