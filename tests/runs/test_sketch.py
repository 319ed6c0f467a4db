"""The sketch of a cut, against the cut's own statistics and computations by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import suture
from suture.graph.cut import load_manifest
from suture.graph.partition import undirected_edges
from suture.graph.statistics import describe
from suture.methods.fedpub.communities import missing_edges
from suture.runs import sketch as sketches
from suture.runs.views import two_dimensions

GRAPH = "csbm:nodes=900,classes=3,features=40,degree=6.0,communities=3"


@pytest.fixture(scope="module", params=["metis", "metis-overlap"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> suture.Result:
    out = tmp_path_factory.mktemp("sketch") / "run"
    overrides = ["rounds=1", f"partition.kind={request.param}", "partition.overlap_copies=2"]
    return suture.run(GRAPH, "fedavg", clients=4, overrides=overrides, out=out)


def _told(result: suture.Result) -> dict[str, object]:
    assert result.folder is not None
    told: dict[str, object] = json.loads((result.folder / "sketch.json").read_text())
    return told


def test_counts_are_those_of_the_cut(result: suture.Result) -> None:
    told, prepared = _told(result), result.finished.prepared
    assert result.folder is not None
    cut = load_manifest(result.folder / "manifest.json")
    stats = describe(prepared.graph, cut)
    assert told["sizes"] == list(stats.nodes) and told["lost_links"] == stats.missing_links
    assert told["lost"] == missing_edges(prepared.graph, cut.partition.members).tolist()
    for counts, members in zip(told["labels"], cut.partition.members, strict=True):  # type: ignore[call-overload]
        assert counts == torch.bincount(prepared.graph.y[members], minlength=3).tolist()


def test_distances_are_one_minus_the_cosine_of_mean_features(result: suture.Result) -> None:
    told, data = np.array(_told(result)["distances"]), result.finished.prepared.graph
    x = data.x.to_dense().double().numpy()
    means = np.stack([x[members.numpy()].mean(0) for members in result.finished.prepared.cut.partition.members])
    for i, one in enumerate(means):
        for j, other in enumerate(means):
            cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
            assert told[i, j] == pytest.approx(1 - cosine, abs=2e-5)


def test_the_sample_is_small_true_and_of_everybody(result: suture.Result) -> None:
    told, prepared = _told(result), result.finished.prepared
    owner, edges = told["node_owner"], told["edges"]
    assert isinstance(owner, list) and isinstance(edges, list)
    assert len(owner) <= sketches.NODES and len(edges) <= sketches.LINKS and set(owner) == {0, 1, 2, 3}
    first = sketches._owner(int(prepared.graph.num_nodes), [one.numpy() for one in prepared.cut.partition.members])
    all_edges = undirected_edges(prepared.graph)
    chosen = sketches.sampled(all_edges, first, sketches.NODES)
    assert owner == first[chosen].tolist()
    place = {int(node): number for number, node in enumerate(chosen)}
    among = sorted((place[a], place[b]) for a, b in all_edges.tolist() if a in place and b in place)
    assert sorted(map(tuple, edges)) == among[: len(edges)] or len(among) > sketches.LINKS


def test_a_run_that_was_resumed_keeps_its_sketch(result: suture.Result, tmp_path: Path) -> None:
    assert result.folder is not None
    before = (result.folder / "sketch.json").stat().st_mtime_ns
    suture.resume(result.folder)
    assert (result.folder / "sketch.json").stat().st_mtime_ns == before


def test_two_dimensions_are_principal_components() -> None:
    points = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 2.0, 0.1, 0.1])
    place, explained = two_dimensions(points)
    covariance = np.cov(points.double().numpy().T)
    values = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    assert place.var(0).tolist() == pytest.approx(values[:2].tolist())
    assert explained == pytest.approx(values[:2].sum() / values.sum())
    assert torch.equal(place, two_dimensions(points)[0])
