"""Noise on sums over neighbours: against dense arithmetic, against what one edge or node may change, and in every method."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest, norm
from torch import Tensor

import suture
from suture.cli import main
from suture.core.kernels import Segments
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph import edges
from suture.graph.batch import Features, GraphBatch, View, feature_matrix
from suture.graph.cut import load_manifest
from suture.method import Method
from suture.methods import METHODS
from suture.nn.aggregates import bounded, encoded, heard, noised_hops, noised_sums
from suture.nn.backbones import Gap, make_backbone
from suture.nn.encoders import RIDGE, classified, projected
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import NoisySums, grid_for, noise_rows, secret_sums
from suture.runs.plan import plan
from suture.settings import ModelSettings
from suture.testing import properties
from suture.testing.world import small_world

QUIET = ModelSettings(kind="gap", gap_sigma=0.0, gap_hops=2, hidden=8)
CLASSES = 3
MEMBERS = (
    *("fedavg", "fedprox", "fedper", "fedproto", "fedpub", "gcfl", "gcfl_plus", "local", "scaffold"),
    *("ditto", "moon", "fedala"),
)


def world() -> GraphBatch:
    """A graph of its own for each test: what is derived from it is kept with it."""
    return replace(small_world().clients)


def without(graph: GraphBatch, pairs: Sequence[tuple[int, int]]) -> GraphBatch:
    kept = [edge not in pairs for edge in zip(*graph.edge_index.tolist(), strict=True)]
    return replace(graph, edge_index=graph.edge_index[:, torch.tensor(kept)])


def hops_of(graph: GraphBatch, settings: ModelSettings, seed: int = 0) -> Tensor:
    return noised_hops(graph, settings, CLASSES, seed)


def dense_classifier(graph: GraphBatch) -> Tensor:
    """Ridge regression in its other form, (X'X + ridge I)^-1 X'Y, in double precision."""
    x = torch.nn.functional.normalize(graph.x.dense().double(), dim=1)
    rows = []
    for start, end in itertools.pairwise(graph.segments.bounds):
        taught = torch.nonzero(graph.role[start:end] == 1).squeeze(1) + start
        y = torch.eye(CLASSES, dtype=torch.float64)[graph.y[taught]] - 1 / CLASSES
        square = x[taught].T @ x[taught] + RIDGE * torch.eye(x.shape[1], dtype=torch.float64)
        rows.append(x[start:end] @ torch.linalg.solve(square, x[taught].T @ y))
    return torch.nn.functional.normalize(torch.cat(rows), dim=1)


def dense_hops(graph: GraphBatch, hops: int) -> Tensor:
    """The module's equations with dense matrices in double precision, without noise."""
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    row, found = dense_classifier(graph), []
    for _ in range(hops):
        row = torch.nn.functional.normalize(adjacency @ row, dim=1)
        found.append(row)
    return torch.cat(found, 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_encoder_is_ridge_regression(sparse: bool) -> None:
    graph = world()
    dense = graph.x.dense()
    matrix = feature_matrix(dense.to_sparse_csr() if sparse else dense)
    graph = replace(graph, x=Features(matrix, graph.segments))
    torch.testing.assert_close(classified(graph, CLASSES).double(), dense_classifier(graph), atol=2e-4, rtol=0)


def test_without_noise_the_sums_are_the_equations() -> None:
    graph = world()
    torch.testing.assert_close(
        hops_of(graph, replace(QUIET, gap_hops=3), 0).double(), dense_hops(graph, 3), atol=1e-3, rtol=0
    )


def test_the_network_is_a_perceptron_on_features_and_sums() -> None:
    graph = world()
    backbone = make_backbone(QUIET, graph.x.width, 3)
    params = {
        n: v.repeat(len(graph.ids), *[1] * (v.dim() - 1)) for n, v in backbone.init(torch.Generator().manual_seed(0)).items()
    }
    both = torch.cat([graph.x.dense(), dense_hops(graph, 2).float()], 1)
    first = torch.cat([params["layer1.weight"][0], params["layer1.sums"][0]])
    expected = torch.relu(both @ first + params["layer1.bias"][0]) @ params["layer2.weight"][0] + params["layer2.bias"][0]
    torch.testing.assert_close(backbone.logits(params, graph), expected, atol=1e-3, rtol=0)
    some = View(graph, torch.tensor([0, 3, 60, 119]))
    torch.testing.assert_close(backbone.logits(params, graph, view=some), expected[some.nodes], atol=1e-3, rtol=0)
    torch.testing.assert_close(
        backbone.logits(params, graph, view=graph.train), expected[graph.train.nodes], atol=1e-3, rtol=0
    )


def test_noise_has_the_deviation_it_is_said_to_have() -> None:
    """From the real sums: a node that hears nobody has a row of pure noise, one that hears one node is pulled to its row."""
    nodes, width, sigma, draws = 40, 50, 3.0, 400
    segments = Segments(torch.tensor([0, nodes]))
    blank = torch.zeros(nodes, dtype=torch.int64)
    pair = torch.tensor([[0, 1], [1, 0]])
    x = Features(torch.eye(nodes, width), segments)
    graph = GraphBatch(("one",), segments, x, pair, blank, blank.to(torch.int8), blank)
    settings = replace(QUIET, gap_sigma=sigma, gap_hops=1, gap_level="node", hidden=width)
    found = torch.stack([hops_of(graph, settings, seed) for seed in range(draws)])
    torch.testing.assert_close(torch.linalg.vector_norm(found, dim=2), torch.ones(draws, nodes))
    assert float(found[:, 2:].var()) == pytest.approx(1 / width, rel=0.02)
    # Node 0 hears node 1, a row of length one. Its share of the sum is 1 / |noise|, which is sigma sqrt(width) or nearly.
    said = torch.stack([projected(x, width, seed)[1] for seed in range(draws)])
    share, deviation = (found[:, 0] * said).sum(1).mean(), 1 / math.sqrt(width * draws)
    assert float(share) == pytest.approx(1 / (sigma * math.sqrt(width)), abs=4 * deviation)
    assert float(share) > 4 * deviation
    raw = noise_rows(torch.tensor([0, 20_000]), 3, sigma, Streams.of(0, ["one"]))
    assert float(raw.std()) == pytest.approx(sigma, rel=0.02)


def test_an_edge_changes_the_sums_of_its_ends_alone_and_by_no_more_than_root_two() -> None:
    graph = world()
    source, target = graph.edge_index[:, 0].tolist()
    other = without(graph, [(source, target), (target, source)])
    x = encoded(graph, QUIET, CLASSES, 0)
    change = heard(graph, QUIET, 0).times(x) - heard(other, QUIET, 0).times(x)
    moved = torch.linalg.vector_norm(change, dim=1) > 1e-6
    assert set(moved.nonzero().squeeze(1).tolist()) == {source, target}
    assert float(torch.linalg.vector_norm(change)) == pytest.approx(math.sqrt(2), abs=1e-5)


def test_a_silent_node_changes_no_more_sums_than_it_may_stand_in() -> None:
    """Every node in turn loses its features and whom it tells; nobody else's choice may move."""
    graph, settings = world(), replace(QUIET, gap_level="node", gap_max_degree=2)
    x, listed = encoded(graph, settings, CLASSES, 0), heard(graph, settings, 0)
    largest, degrees = 0.0, torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    assert int(degrees.max()) > 2
    for node in range(graph.num_nodes):
        told = [(s, t) for s, t in zip(*graph.edge_index.tolist(), strict=True) if s == node]
        silent = x.clone()
        silent[node] = 0
        change = listed.times(x) - heard(without(graph, told), settings, 0).times(silent)
        largest = max(largest, float(torch.linalg.vector_norm(change)))
    assert largest == pytest.approx(math.sqrt(2), abs=1e-5)


def test_nobody_tells_more_than_it_may_and_all_do_where_they_can() -> None:
    graph = world()
    before = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    after = torch.bincount(bounded(graph, 3, 0)[0], minlength=graph.num_nodes)
    assert torch.equal(after, before.clamp_max(3))


def test_the_same_graph_meets_the_same_noise_and_another_graph_another() -> None:
    """Alone, in a batch, or after a resume it is the same; a graph that differs by an edge must not share noise."""
    settings, graph = replace(QUIET, gap_sigma=1.0), world()
    all_at_once = hops_of(graph, settings, 0)
    for k, name in enumerate(graph.ids):
        start, end = graph.segments.bounds[k : k + 2]
        torch.testing.assert_close(hops_of(graph.select([name]), settings, 0), all_at_once[start:end])
    s, t = graph.edge_index[:, 0].tolist()
    other = hops_of(without(graph, [(s, t), (t, s)]), settings, 0)
    first = graph.segments.bounds[1]
    assert not torch.isclose(other[:first], all_at_once[:first]).any(1).all()
    lonely = [node for node in range(first) if not (graph.edge_index == node).any()]
    assert lonely and not torch.allclose(other[lonely], all_at_once[lonely])
    torch.testing.assert_close(other[first:], all_at_once[first:])
    assert not torch.allclose(hops_of(graph, settings, 1), all_at_once)


def test_an_owners_key_takes_the_place_of_the_public_seed() -> None:
    settings, graph = replace(QUIET, gap_sigma=1.0, gap_hops=1), world().select([world().ids[0]])
    own, others = (replace(graph, secret=Keystream(bytes([k]) * 32)) for k in (1, 2))
    assert torch.equal(hops_of(own, settings), hops_of(own, settings))
    assert not torch.allclose(hops_of(own, settings), hops_of(others, settings))
    assert not torch.allclose(hops_of(own, settings), hops_of(graph, settings))


def noise_at_owner(graph: GraphBatch, settings: ModelSettings, outputs: int = 3) -> torch.Tensor:
    """Of the first hop, with the first rows that were summed."""
    listed = heard(graph, settings, 0)
    row, total = next(noised_sums(graph, settings, outputs, 0))
    return total.double() - listed.times(row).double()


@pytest.mark.parametrize(
    "other",
    [{"gap_sigma": 2.0}, {"gap_hops": 1}, {"gap_level": "node"}, {"gap_level": "node", "gap_max_degree": 4}],
    ids=str,
)
def test_an_owners_noise_of_other_sums_cannot_be_subtracted(other: dict[str, Any]) -> None:
    """The same numbers in another size are the same noise: 2 z(1) - z(2) would be the sums themselves."""
    one = replace(QUIET, gap_sigma=1.0, hidden=3)
    graph = replace(world().select([world().ids[0]]), secret=Keystream(bytes(32)))
    pair = torch.stack([noise_at_owner(graph, replace(one, **values)).flatten() for values in ({}, other)])
    assert torch.equal(noise_at_owner(graph, one).flatten(), pair[0])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(pair.shape[1])


def test_an_owners_sums_are_whole_numbers_of_a_grid_with_the_noise_that_is_accounted_for() -> None:
    """A sum of rounded rows is exact, so that no low bit of it tells what was summed; the noise pays for the rounding."""
    rows = torch.nn.functional.normalize(torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    rows[7] = torch.nan
    pairs = torch.randint(40_000, (2, 100_000), generator=torch.Generator().manual_seed(1))
    listed = edges.adjacency(pairs, None, 40_000)
    total = secret_sums(listed, rows, 3.0, Keystream(bytes(32)))
    noise = (total.double() - listed.times(torch.nan_to_num(rows)).double()).flatten()
    assert (float(noise.mean()), float(noise.std())) == pytest.approx((0.0, 3.0), abs=0.05)
    assert kstest(noise.numpy() / 3, "norm").pvalue > 1e-3
    grid, _ = grid_for(3.0, 1.0, 3, "model.gap_sigma")
    places = total.double() / grid
    assert float((places - places.round()).abs().max()) <= 2.0**-24 * float(places.abs().max()) + 1e-6
    with pytest.raises(ConfigError, match=r"model.gap_sigma=1e-09 is beyond"):
        secret_sums(listed, rows, 1e-9, Keystream(bytes(32)))


def test_an_edge_changes_sums_of_bounded_lists_by_no_more_than_it_is_charged_for() -> None:
    """Every edge of a real client is taken away in both directions, and lists that were full take somebody else in."""
    graph, settings = world(), replace(QUIET, gap_level="node", gap_max_degree=2)
    x = encoded(graph, settings, 3, 0)
    listed, largest = heard(graph, settings, 0).times(x), 0.0
    for s, t in {tuple(sorted(pair)) for pair in graph.edge_index.T.tolist()}:
        change = listed - heard(without(graph, [(s, t), (t, s)]), settings, 0).times(x)
        largest = max(largest, float(torch.linalg.vector_norm(change)))
    assert math.sqrt(2) < largest <= 1.0 / NoisySums(1, 1.0, 2).edge_multiplier + 1e-5


def test_a_public_graph_gets_no_noise() -> None:
    graph = replace(world(), public=True)
    torch.testing.assert_close(hops_of(graph, replace(QUIET, gap_sigma=5.0), 0), hops_of(graph, QUIET, 0))


def test_projected_features_keep_angles_roughly_and_are_the_same_for_everybody() -> None:
    graph = world()
    found = projected(graph.x, 30, 0)
    assert found.shape == (graph.num_nodes, 30)
    exact = torch.nn.functional.normalize(graph.x.dense(), dim=1)
    error = (found @ found.T - exact @ exact.T).abs().mean()
    assert float(error) < 2 / math.sqrt(30)
    torch.testing.assert_close(projected(graph.select([graph.ids[2]]).x, 30, 0), found[85:110])


@pytest.mark.parametrize("name", MEMBERS)
def test_methods_that_average_keep_their_promises_with_noise_on_sums(name: str) -> None:
    values = {"model": {"kind": "gap", "gap_hops": 2}}
    properties.separable(METHODS[name], values)
    properties.resumes_after_any_iteration(METHODS[name], values)


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(MEMBERS) - {"fed_gnn", "fed_mlp", "global"}))
def test_methods_that_use_edges_otherwise_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="gap hides edges"):
        METHODS[name](model=QUIET)


def test_a_method_that_completes_graphs_does_not_inherit_the_permission() -> None:
    class Completing(METHODS["fedavg"]):  # type: ignore[misc]
        def seen(self, clients: object, training: bool) -> GraphBatch:
            return world()

    assert Completing.seen is not Method.seen
    with pytest.raises(ConfigError, match="gap hides edges"):
        Completing(model=QUIET)


@pytest.mark.parametrize(
    ("protocol", "overrides", "sentence"),
    [
        (None, ["model.gap_level=node"], "training.dp_sigma above 0"),
        ("fedpub-link", [], "link prediction is trained to tell them"),
    ],
)
def test_what_noise_on_sums_cannot_hide_is_refused(protocol: str | None, overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan("cora", ["fedavg"], protocol=protocol, overrides=["model.kind=gap", *overrides])


def test_it_hears_every_edge_alike() -> None:
    assert Gap(QUIET, 3, 2).ignores_weights
    graph = world()
    weighted = replace(graph, edge_weight=torch.rand(graph.edge_index.shape[1]) + 0.1)
    torch.testing.assert_close(hops_of(weighted, QUIET, 0), hops_of(graph, QUIET, 0))
    twice = replace(graph, edge_index=torch.cat([graph.edge_index, graph.edge_index], 1))
    for one, other in itertools.pairwise([hops_of(graph, QUIET, 0), hops_of(twice, QUIET, 0)]):
        torch.testing.assert_close(one, other)


def test_the_account_is_the_closed_formula_and_predictions_meet_the_sums_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real run from the command line: its epsilon by the formula of Balle and Wang, its predictions as it was tested."""
    out = tmp_path / "gap"
    run = ["run", "--dataset", "csbm:nodes=200,features=30,degree=4", "--clients", "3", "--out", str(out)]
    settings = ["model.kind=gap", "rounds=3", "gap_hops=2", "gap_sigma=2.0"]
    assert main([*run, *(word for value in settings for word in ("--set", value))]) == 0
    capsys.readouterr()
    assert main(["privacy", str(out), "--json", "-"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    mu = math.sqrt(2 * 2) / 2.0
    assert [one["mechanism"] for one in told["guarantees"]] == ["GAP"] * 3
    for one in told["guarantees"]:
        assert one["hides"] == "one edge" and one["not_covered"] == [] and not one["vacuous"]
        epsilon = one["epsilon"]
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-6)
    assert main(["privacy", str(out)]) == 0
    assert "GAP hides one edge" in capsys.readouterr().out
    made = suture.predict(str(out))
    (cut,) = [load_manifest(out / "manifest.json")]
    hits, test = made.prediction == made.y, cut.split.roles == 3
    right = [float(hits[test & (made.client == k)].float().mean()) for k in range(3)]
    outcome = json.loads((out / "result.json").read_text())
    assert sum(right) / 3 == pytest.approx(outcome["accuracy_client_mean"], abs=1e-6)


CAN = {
    *("local", "global", "fedavg", "fedprox", "fedper", "fedproto", "fedpub", "gcfl", "gcfl_plus", "fed_gnn", "scaffold"),
    *("ditto", "moon", "fedala"),
}
"""As docs/privacy.md lists them; fed_mlp hears no edge, whatever is asked for."""


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fed_mlp"])
def test_a_method_hides_its_edges_or_says_that_it_cannot(name: str) -> None:
    if name in CAN:
        made = METHODS[name](model=ModelSettings(kind="gap"))
        assert [type(used) for used in made.mechanisms()] == [NoisySums]
        return
    with pytest.raises(ConfigError, match=f"{name} has layers of its own or uses edges outside of them"):
        METHODS[name](model=ModelSettings(kind="gap"))
