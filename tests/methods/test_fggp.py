"""FGGP: the reduction to FedAvg, each of its losses pair by pair, FINCH against connected parts, and prototypes by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from by_hand import array, linear, piece, softmax
from harness import beginning, run_to_end, small, small_world
from numpy.testing import assert_allclose
from torch import Tensor

from suture.core.message import Model
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.methods.fedavg import FedAvg
from suture.methods.fggp import (
    KNOWN,
    PROTOTYPES,
    Fggp,
    alignment,
    candidates,
    class_means,
    finch,
    flat,
    guessed,
    links_loss,
)
from suture.training.batches import batches

WORLD = small_world()
GRAPH = WORLD.clients


def drawn(width: int, seed: int, rows: int = GRAPH.num_nodes) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def test_without_view_and_prototypes_it_is_fedavg() -> None:
    mine = run_to_end(small(Fggp, view_weight=0.0, predict_by="classifier"), GRAPH, WORLD.task)
    theirs = run_to_end(small(FedAvg), GRAPH, WORLD.task)
    assert torch.equal(mine.scores.value, theirs.scores.value)
    for name, value in theirs.server.params.items():
        assert torch.equal(mine.server.params[name], value)


def test_candidates_are_links_and_nearest_nodes() -> None:
    z = drawn(4, 0)
    got = {tuple(sorted(pair)) for pair in flat(candidates(GRAPH, z, 2), GRAPH.segments).T.tolist()}
    expected = {tuple(sorted(pair)) for pair in GRAPH.edge_index.T.tolist()}
    for v in range(GRAPH.num_nodes):
        inside = [u for u in range(GRAPH.num_nodes) if u != v and GRAPH.segments.client[u] == GRAPH.segments.client[v]]
        near = sorted(inside, key=lambda u: -cosine(z[u].numpy(), z[v].numpy()))[:2]
        expected |= {(min(u, v), max(u, v)) for u in near}
    assert got == expected


def test_the_view_draws_links_by_their_chance() -> None:
    z, method = drawn(4, 0), small(Fggp, renewed=0.6)
    ends = flat(candidates(GRAPH, z, 2), GRAPH.segments)
    links = {tuple(sorted(pair)) for pair in GRAPH.edge_index.T.tolist()}
    counts = torch.zeros(ends.shape[1])
    for number in range(400):
        view = method.drawn(GRAPH, z, ends, Streams.of(number, GRAPH.ids, "view"))
        there = {tuple(pair) for pair in view.edge_index.T.tolist()}
        assert there == {(b, a) for a, b in there}
        counts += torch.tensor([tuple(pair) in there for pair in ends.T.tolist()])
    for (i, j), share in zip(ends.T.tolist(), (counts / 400).tolist(), strict=True):
        alike = 1 / (1 + math.exp(-float(z[i] @ z[j]) / 2))
        chance = 0.4 * ((min(i, j), max(i, j)) in links) + 0.6 * alike
        assert share == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / 400) + 1e-9)
    still = small(Fggp, renewed=0.0).drawn(GRAPH, z, ends, Streams.of(0, GRAPH.ids, "view"))
    assert {tuple(pair) for pair in still.edge_index.T.tolist()} == {tuple(pair) for pair in GRAPH.edge_index.T.tolist()}


def test_the_alignment_class_by_class() -> None:
    label, sure = GRAPH.y, torch.rand(GRAPH.num_nodes, generator=torch.Generator().manual_seed(5))
    means = [class_means(GRAPH, drawn(4, seed), label, sure, 3) for seed in (0, 1)]
    got = alignment(*means)
    for k in range(len(GRAPH.ids)):
        inside = (GRAPH.segments.client == k).numpy()
        there = sorted(set(label.numpy()[inside].tolist()))
        p: dict[int, np.ndarray] = {}
        q: dict[int, np.ndarray] = {}
        for found, seed in ((p, 0), (q, 1)):
            for c in there:
                mine = inside & (label.numpy() == c)
                found[c] = np.average(drawn(4, seed).numpy()[mine], axis=0, weights=sure.numpy()[mine])
        total = sum(
            -math.log(math.exp(2 * cosine(p[c], q[c])) / sum(math.exp(2 * cosine(p[c], q[b])) for b in there)) for c in there
        )
        assert float(got[k]) == pytest.approx(total / len(there), rel=1e-4)


def test_the_loss_of_links_pair_by_pair() -> None:
    z, rng = drawn(4, 0), Streams.of(0, GRAPH.ids, "pairs")
    ends = flat(candidates(GRAPH, drawn(4, 1), 2), GRAPH.segments)
    got = links_loss(GRAPH, z, ends, rng)
    owner = GRAPH.segments.client[ends[0]]
    ptr = torch.cat([owner.new_zeros(1), torch.bincount(owner, minlength=len(GRAPH.ids)).cumsum(0)])
    uniform = rng.uniform(ptr, 2)
    for k in range(len(GRAPH.ids)):
        terms, start, size = [], GRAPH.segments.bounds[k], int(GRAPH.sizes[k])
        for m in range(int(ptr[k]), int(ptr[k + 1])):
            i, j = ends[:, m].tolist()
            a, b = (start + int(float(u) * size) for u in uniform[m])
            there, absent = (1 / (1 + math.exp(-float(z[u] @ z[v]) / 2)) for u, v in ((i, j), (a, b)))
            terms.append(-(math.log(there) + math.log(1 - absent)) / 2)
        assert float(got[k]) == pytest.approx(np.mean(terms), rel=1e-4)


def partition(points: np.ndarray) -> list[list[int]]:
    """First neighbours as a graph, whose connected parts are clusters."""
    graph = nx.empty_graph(len(points))
    for i in range(len(points)):
        graph.add_edge(i, max((j for j in range(len(points)) if j != i), key=lambda j: cosine(points[i], points[j])))
    return [sorted(part) for part in nx.connected_components(graph)]


@pytest.mark.parametrize(("count", "most"), [(1, 8), (2, 8), (3, 8), (11, 8), (40, 8), (40, 1)])
def test_finch_by_connected_parts(count: int, most: int) -> None:
    points = drawn(3, count, count)
    got = finch(points, most)
    clusters = [[0]] if count == 1 else partition(points.double().numpy())
    while len(clusters) > 1:
        means = np.array([points.double().numpy()[part].mean(0) for part in clusters])
        coarser = partition(means)
        if len(coarser) == 1 and len(clusters) <= most:
            break
        clusters = [sorted(i for at in part for i in clusters[at]) for part in coarser]
    expected = np.array([points.numpy()[part].mean(0) for part in clusters])
    assert len(got) == len(expected) and (count < 40 or most == 1 or 1 < len(got) <= 8)
    assert_allclose(np.array(sorted(got.tolist())), np.array(sorted(expected.tolist())), atol=1e-5)


def test_a_round_of_prototypes_by_hand() -> None:
    """A linear network: what clients tell of each class, clusters of it, and what is predicted by them."""
    method = linear(Fggp, {"smallest": 3, "temperature": 0.2, "view_weight": 0.0})
    end = run_to_end(method, GRAPH, WORLD.task)
    told: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    for state in sorted(end.states, key=lambda state: state.ids):
        features, labels, rows, _ = piece(state.ids[0])
        z = features @ array(state, "params.layer1.weight")[0] + array(state, "params.layer1.bias")[0]
        sure, label = softmax(z).max(1), softmax(z).argmax(1)
        sure[rows], label[rows] = 1.0, labels[rows]
        for c in range(3):
            if (label == c).sum() >= 3:
                told[c].append(np.average(z[label == c], axis=0, weights=sure[label == c]))
    common = {c: finch(torch.tensor(np.array(means)), 8).numpy() for c, means in told.items() if means}
    got = array(end.server, f"common.{PROTOTYPES}")[0]
    for c, means in common.items():
        assert_allclose(got[c, : len(means)], means, atol=1e-4)
        assert array(end.server, f"common.{KNOWN}")[0, c].sum() == len(means)
    name = GRAPH.ids[0]
    one = GRAPH.select([name])
    model = method.deploy(end.server, [name])
    assert isinstance(model, Model)
    scores = method.predict(one, model, WORLD.task).double().numpy()
    z = piece(name)[0] @ array(end.server, "params.layer1.weight")[0] + array(end.server, "params.layer1.bias")[0]
    for c, means in common.items():
        expected = [math.log(sum(math.exp(cosine(row, g) / 0.2) for g in means)) for row in z]
        assert_allclose(scores[:, c], expected, atol=1e-3)


def test_the_terms_are_those_of_both_views() -> None:
    method = small(Fggp, view_weight=2.0, model={"dropout": 0.0})
    clients = beginning(method, GRAPH, WORLD.task)
    start = clients.state.params
    other = {name: value + 0.1 for name, value in start.items()}
    clients = replace(clients, state=method.informed(clients, Model(GRAPH.ids, other)))
    (batch,) = batches(GRAPH, method.training, Streams.of(0, GRAPH.ids, "test"))
    terms, backbone = method.loss_terms(start, batch, other, clients), method.backbone(WORLD.task)
    ends = flat(candidates(GRAPH, backbone.embed(other, GRAPH), method.near), GRAPH.segments)
    view = method.drawn(GRAPH, backbone.embed(other, GRAPH), ends, batch.rng.fork("view"))
    own_z, view_z = (backbone.embed(start, graph) for graph in (GRAPH, view))
    label, sure = guessed(GRAPH, backbone.logits(start, GRAPH))
    means = [class_means(GRAPH, z, label, sure, 3) for z in (own_z, view_z)]
    torch.testing.assert_close(terms["labels"], batch.loss(backbone, start))
    torch.testing.assert_close(terms["view"], 2 * batch.loss_of(backbone.logits(start, view, view=view.train)))
    torch.testing.assert_close(terms["align"], 2 * alignment(*means))
    torch.testing.assert_close(terms["links"], 2 * links_loss(GRAPH, own_z, ends, batch.rng.fork("pairs")))


def test_secure_sums_need_the_classifier_and_dp_sgd_is_refused() -> None:
    assert "clusters its clients' prototypes" in small(Fggp).beyond_sums()
    assert small(Fggp, predict_by="classifier").beyond_sums() == ""
    with pytest.raises(ConfigError, match="fggp compares nodes with each other"):
        small(Fggp, training={"dp_sigma": 1.0})
