"""FGSSL: the reduction to FedAvg, both of its losses pair by pair and neighbour by neighbour, and its views."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from harness import assert_same, beginning, run_to_end, small, small_world
from torch import Tensor

from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.methods.fedavg import FedAvg
from suture.methods.fgssl import Fgssl, class_contrast, some_of_each, structure_gap, weakened
from suture.training.batches import batches

WORLD = small_world()
GRAPH = WORLD.clients


def drawn(width: int, seed: int) -> Tensor:
    return torch.randn(GRAPH.num_nodes, width, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


def test_without_its_terms_it_is_fedavg() -> None:
    left = run_to_end(small(Fgssl, contrast_weight=0.0, structure_weight=0.0), GRAPH, WORLD.task)
    assert_same(left, run_to_end(small(FedAvg), GRAPH, WORLD.task), tolerance=0.0)


def test_the_contrast_pair_by_pair() -> None:
    learner, teacher, nodes = drawn(4, 0), drawn(4, 1), GRAPH.train.nodes
    got = class_contrast(learner, teacher, GRAPH, nodes, 0.3)
    for k in range(len(GRAPH.ids)):
        inside, total = [v for v in nodes.tolist() if int(GRAPH.segments.client[v]) == k], 0.0
        for i in inside:
            phi = {j: math.exp(cosine(learner[i], teacher[j]) / 0.3) for j in inside}
            others = sum(phi[q] for q in inside if GRAPH.y[q] != GRAPH.y[i])
            same = [p for p in inside if GRAPH.y[p] == GRAPH.y[i]]
            total += sum(-math.log(phi[p] / (phi[p] + others)) for p in same) / len(same)
        assert float(got[k]) == pytest.approx(total / len(inside), rel=1e-4)


def test_the_structure_neighbour_by_neighbour() -> None:
    learnt, taught = drawn(3, 0), drawn(3, 1)
    got = structure_gap(learnt, taught, GRAPH, 0.5)
    source, target = GRAPH.edge_index.tolist()
    near: dict[int, list[int]] = {}
    for j, i in zip(source, target, strict=True):
        near.setdefault(i, []).append(j)
    sums = torch.zeros(len(GRAPH.ids), 2)
    for i, neighbours in near.items():
        shares = []
        for z in (taught, learnt):
            power = [math.exp(cosine(z[i], z[j]) / 0.5) for j in neighbours]
            shares.append([one / sum(power) for one in power])
        gap = sum(t * math.log(t / s) for t, s in zip(*shares, strict=True))
        sums[int(GRAPH.segments.client[i])] += torch.tensor([gap, 1.0])
    torch.testing.assert_close(got, sums[:, 0] / sums[:, 1].clamp_min(1), rtol=1e-4, atol=1e-6)


def test_a_model_that_agrees_with_its_teacher_has_no_gap() -> None:
    z = drawn(3, 0)
    torch.testing.assert_close(structure_gap(z, z, GRAPH, 0.1), torch.zeros(len(GRAPH.ids)), rtol=0, atol=1e-6)
    bare = WORLD.without_edges(*GRAPH.ids).clients
    assert structure_gap(z, drawn(3, 1), bare, 0.1).tolist() == [0.0] * len(GRAPH.ids)


def test_views_lose_links_both_ways_and_whole_features() -> None:
    rng = Streams.of(0, GRAPH.ids, "test")
    view = weakened(GRAPH, 0.4, 0.3, rng)
    kept = {tuple(edge) for edge in view.edge_index.T.tolist()}
    assert kept == {(b, a) for a, b in kept} and kept < {tuple(edge) for edge in GRAPH.edge_index.T.tolist()}
    assert 0.45 < len(kept) / GRAPH.edge_index.shape[1] < 0.75
    before, after = GRAPH.x.dense(), view.x.dense()
    for k in range(len(GRAPH.ids)):
        mine = GRAPH.segments.client == k
        whole = (after[mine] == before[mine]).all(0)
        assert (after[mine][:, ~whole] == 0).all() and 0.5 < float(whole.float().mean()) < 0.98
    same = weakened(GRAPH, 0.0, 0.0, rng)
    assert torch.equal(same.edge_index, GRAPH.edge_index) and torch.equal(same.x.dense(), before)


def test_the_terms_are_those_of_both_models_on_their_views() -> None:
    method = small(Fgssl, contrast_weight=2.0, structure_weight=3.0, model={"dropout": 0.0})
    clients = len(GRAPH.ids)
    params = {name: value.expand(clients, *value.shape[1:]) for name, value in method.initial_params(WORLD.task).items()}
    other = {name: value + 0.1 for name, value in params.items()}
    (batch,) = batches(GRAPH, method.training, Streams.of(0, GRAPH.ids, "test"))
    terms = method.loss_terms(params, batch, other, beginning(method, GRAPH, WORLD.task))
    backbone = method.backbone(WORLD.task)
    weak = weakened(GRAPH, 0.3, 0.3, batch.rng.fork("weak view"))
    strong = weakened(GRAPH, 0.8, 0.5, batch.rng.fork("strong view"))
    learner, teacher = backbone.embed(params, strong), backbone.embed(other, weak)
    contrast = class_contrast(learner, teacher, GRAPH, GRAPH.train.nodes, 0.1)
    torch.testing.assert_close(terms["contrast"], 2 * contrast)
    gap = structure_gap(backbone.logits(params, strong), backbone.logits(other, weak), GRAPH, 0.1)
    torch.testing.assert_close(terms["structure"], 3 * gap)
    torch.testing.assert_close(terms["labels"], batch.loss(backbone, params))


def test_of_many_nodes_some_are_compared() -> None:
    view, rng = GRAPH.train, Streams.of(0, GRAPH.ids, "test")
    some = some_of_each(view.nodes, view.segments, 3, rng)
    counts = torch.bincount(GRAPH.segments.client[some], minlength=len(GRAPH.ids))
    assert counts.tolist() == view.segments.ptr.diff().clamp_max(3).tolist()
    assert set(some.tolist()) <= set(view.nodes.tolist())
    assert torch.equal(some_of_each(view.nodes, view.segments, 99, rng), view.nodes)


def test_dp_sgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="fgssl compares every training node with others"):
        replace(small(Fgssl), training=replace(small(Fgssl).training, dp_sigma=1.0))
