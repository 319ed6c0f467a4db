"""What a run folder says about communities, against counting by hand and against scipy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy import stats
from scipy.spatial.distance import jensenshannon
from torch_geometric.data import Data

from suture.api import compare
from suture.commands import communities as grouping
from suture.core.storage import read_json
from suture.errors import ConfigError, DataError, IntegrityError
from suture.graph import datasets
from suture.graph.synthetic import contextual_block_model
from suture.methods.fedavg import FedAvg
from suture.methods.fedpub.communities import analyse, correlations, draw, kept_similarities, missing_edges
from suture.methods.fedpub.method import FedPub
from suture.runs.execute import execute
from suture.runs.folder import Asked, RunFolder
from suture.runs.prepare import prepare
from suture.settings import ModelSettings, PartitionSettings, Protocol, TrainingSettings


@pytest.fixture(scope="module")
def data() -> Data:
    return contextual_block_model(nodes=240, classes=3, features=30, degree=6.0, communities=2, seed=1)


def finished(path: Path, data: Data, method: type[FedAvg]) -> Path:
    protocol = Protocol("test", partition=PartitionSettings(kind="metis-overlap", clients=10))
    prepared = prepare(data, "generated", protocol, seed=0)
    folder = RunFolder.create(path, Asked.now("generated", [method.name], [0]), "", prepared.cut)
    training = TrainingSettings(rounds=2, participation=0.8)
    execute(prepared, method(model=ModelSettings(hidden=8, head=True), training=training), protocol, folder=folder)
    return path


@pytest.fixture(scope="module")
def run_folder(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("run"), data, FedPub)


def test_missing_edges_are_those_neither_client_holds() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]
    both = edges + [(b, a) for a, b in edges]
    data = Data(edge_index=torch.tensor(both).T, num_nodes=5)
    members = [{0, 1, 2}, {2, 3}, {4}]
    expected = np.zeros((3, 3), dtype=int)
    for i, mine in enumerate(members):
        for j, theirs in enumerate(members):
            for u, v in both:
                held = {u, v} <= mine or {u, v} <= theirs
                expected[i, j] += i != j and u in mine and v in theirs and not held
    found = missing_edges(data, [torch.tensor(sorted(m)) for m in members])
    np.testing.assert_array_equal(found.numpy(), expected)
    assert expected.tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_correlations_are_scipys_over_pairs_that_were_compared() -> None:
    rng = np.random.default_rng(0)
    similarity, other = (rng.normal(size=(5, 5)) for _ in range(2))
    similarity[3], similarity[:, 3] = np.nan, np.nan
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5) if 3 not in (i, j)]
    left, right = [similarity[p] for p in pairs], [other[p] for p in pairs]
    pearson, rank = correlations(torch.from_numpy(similarity), torch.from_numpy(other))
    assert pearson == pytest.approx(stats.pearsonr(left, right).statistic)
    assert rank == pytest.approx(stats.spearmanr(left, right).statistic)
    assert correlations(torch.ones(4, 4), torch.rand(4, 4)) == (None, None)


def test_a_run_is_analysed_and_drawn(run_folder: Path, data: Data) -> None:
    found = analyse(run_folder, data)
    assert [agreement.round for agreement in found] == [1, 2]
    stored = read_json(run_folder / "communities.json", "analysis")
    matrices = safetensors.torch.load_file(run_folder / "communities.safetensors")
    manifest = read_json(run_folder / "manifest.json", "manifest")
    clients = manifest["clients"]
    assert isinstance(clients, list)
    assert stored["clients"] == [client["id"] for client in clients]
    counts = [np.bincount(data.y[client["nodes"]], minlength=3) for client in clients]
    expected = [[1 - jensenshannon(a, b, base=2) for b in counts] for a in counts]
    np.testing.assert_allclose(matrices["label_similarity"].numpy(), expected, atol=1e-6)

    similarity = kept_similarities(run_folder)[2]
    heard = ~similarity.diagonal().isnan()
    assert 8 <= int(heard.sum()) <= 10
    chosen = similarity[heard][:, heard].numpy()[np.triu_indices(int(heard.sum()), 1)]
    labels = np.array(expected)[heard][:, heard][np.triu_indices(int(heard.sum()), 1)]
    assert found[1].labels_pearson == pytest.approx(stats.pearsonr(chosen, labels).statistic, abs=1e-6)
    pytest.importorskip("matplotlib")
    assert draw(run_folder, rounds=(1, 2)).stat().st_size > 1000
    with pytest.raises(DataError, match="no similarities of round 7; it has rounds 1 to 2"):
        draw(run_folder, rounds=(7,))


def test_the_command_prints_the_chosen_rounds_and_refuses_others(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["rounds=2", "hidden=8"]
    compare(data, ("fedpub",), protocol="fedpub-overlap", clients=10, overrides=quick, seeds=(0,), out=tmp_path)
    monkeypatch.setattr(datasets, "load", lambda name, root: data)
    grouping.communities(tmp_path / "fedpub-seed0", [2], None, None)
    printed = capsys.readouterr().out
    stored = read_json(tmp_path / "fedpub-seed0" / "communities.json", "analysis")["rounds"]
    assert isinstance(stored, list)
    assert f"{stored[1]['labels_pearson']:.3f}" in printed.splitlines()[-1].split()
    with pytest.raises(ConfigError, match="has no round 7; it has rounds 1 to 2"):
        grouping.communities(tmp_path / "fedpub-seed0", [7], None, None)
    with pytest.raises(ConfigError, match="is a comparison"):
        grouping.communities(tmp_path, [], None, None)


def test_what_cannot_be_analysed_is_refused(run_folder: Path, data: Data, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="analyse a run of fedpub"):
        analyse(finished(tmp_path, data, FedAvg), data)
    other = contextual_block_model(nodes=240, classes=3, features=30, degree=6.0, communities=2, seed=2)
    with pytest.raises(IntegrityError, match="another graph"):
        analyse(run_folder, other)
