"""The one loss of nodes and pairs, against torch's own and formulas written out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.streams import Streams
from suture.core.tree import tile
from suture.graph.batch import GraphBatch
from suture.graph.target import Target
from suture.method import score
from suture.nn.backbones import make_backbone
from suture.settings import ModelSettings, TrainingSettings
from suture.testing.world import CLASSES, FEATURES, small_world
from suture.training.batches import batches, examples
from suture.training.local import train_locally
from suture.training.losses import nodes_loss, pairs_loss
from suture.training.optimisers import fresh_moments

OUT = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3
CLIENT = (torch.arange(30) * 7 % 4).sort().values
CLIENTS = 5  # the last has no node
WEIGHTS = (0.5, 1.0, 7.0)
PLAIN, FOCAL = TrainingSettings(), TrainingSettings(loss="focal", focal_gamma=2.0)


def each(out: Tensor, y: Tensor, target: Target, settings: TrainingSettings = PLAIN) -> Tensor:
    return nodes_loss(out, y, CLIENT, CLIENTS, target, settings)


def test_weighted_cross_entropy_is_torchs_for_every_client() -> None:
    found = each(OUT, Y, Target(class_weights=WEIGHTS))
    for k in range(4):
        expected = F.cross_entropy(OUT[k == CLIENT], Y[k == CLIENT], weight=torch.tensor(WEIGHTS))
        assert float(found[k]) == pytest.approx(float(expected), rel=1e-5)
    assert float(found[4]) == 0.0


def test_focal_loss_by_its_formula_and_without_gamma_cross_entropy() -> None:
    chance = OUT.softmax(1).gather(1, Y.unsqueeze(1)).squeeze(1)
    one = -((1 - chance) ** 2) * chance.log()
    weight = torch.tensor(WEIGHTS)[Y]
    plain, weighted = each(OUT, Y, Target(), FOCAL), each(OUT, Y, Target(class_weights=WEIGHTS), FOCAL)
    for k in range(4):
        at = k == CLIENT
        assert float(plain[k]) == pytest.approx(float(one[at].mean()), rel=1e-5)
        assert float(weighted[k]) == pytest.approx(float((one * weight)[at].sum() / weight[at].sum()), rel=1e-5)
    none = dataclasses.replace(FOCAL, focal_gamma=0.0)
    torch.testing.assert_close(each(OUT, Y, Target(), none), each(OUT, Y, Target()))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_of_what_is_certain_has_a_finite_slope(gamma: float) -> None:
    out = torch.tensor([[60.0, 0.0], [0.0, 60.0]], requires_grad=True)
    settings = TrainingSettings(loss="focal", focal_gamma=gamma)
    nodes_loss(out, torch.tensor([0, 0]), torch.zeros(2, dtype=torch.int64), 1, Target(), settings).sum().backward()
    assert out.grad is not None and bool(out.grad.isfinite().all())


def test_labels_are_torchs_binary_cross_entropy_with_the_weight_of_a_yes() -> None:
    y = (OUT.roll(1, 0) > 0.3).float()
    found = each(OUT, y, Target("labels", WEIGHTS))
    for k in range(4):
        at = k == CLIENT
        expected = F.binary_cross_entropy_with_logits(OUT[at], y[at], pos_weight=torch.tensor(WEIGHTS))
        assert float(found[k]) == pytest.approx(float(expected), rel=1e-5)


def test_unknown_labels_change_nothing_and_have_no_slope() -> None:
    out = OUT.clone().requires_grad_()
    y = (OUT.roll(1, 0) > 0.3).float()
    y[:, 2] = torch.nan
    found = each(out, y, Target("labels"))
    torch.testing.assert_close(found, nodes_loss(out[:, :2], y[:, :2], CLIENT, CLIENTS, Target("labels"), PLAIN))
    found.sum().backward()
    assert out.grad is not None and not out.grad[:, 2].any() and bool(out.grad.isfinite().all())


def test_numbers_are_compared_on_the_scale_of_the_network() -> None:
    y, target = 100 + 5 * OUT.roll(1, 0), Target("value", shift=(100.0,) * 3, scale=(5.0,) * 3)
    found = each(OUT, y, target)
    for k in range(4):
        at = k == CLIENT
        assert float(found[k]) == pytest.approx(float((OUT.roll(1, 0) - OUT)[at].square().mean()), rel=1e-4)


def test_pairs_are_binary_and_may_be_focal() -> None:
    value, label = OUT[:, 0], (Y > 0).float()
    chance = torch.where(label > 0, value.sigmoid(), 1 - value.sigmoid())
    plain, focal = (pairs_loss(value, label, CLIENT, CLIENTS, settings) for settings in (PLAIN, FOCAL))
    for k in range(4):
        at = k == CLIENT
        assert float(plain[k]) == pytest.approx(float(-chance[at].log().mean()), rel=1e-5)
        assert float(focal[k]) == pytest.approx(float((-((1 - chance) ** 2) * chance.log())[at].mean()), rel=1e-5)


def world_with(target: Target) -> GraphBatch:
    return dataclasses.replace(small_world().clients, target=target)


def test_under_dp_sgd_weights_of_classes_do_not_cancel() -> None:
    backbone = make_backbone(ModelSettings("mlp", hidden=8, dropout=0.0), FEATURES, CLASSES)
    settings = TrainingSettings(dp_sigma=1e-9, dp_clip=1e9)
    weights = tuple(float(c + 1) for c in range(CLASSES))
    plain, weighted = world_with(Target()), world_with(Target(class_weights=weights))
    start = tile(backbone.init(torch.Generator().manual_seed(1)), len(plain.ids))
    for graph in (plain, weighted):
        (batch,) = batches(graph, settings, Streams.of(0, graph.ids))
        one = next(iter(examples(batch, settings)))
        factor = 1.0 if graph is plain else torch.tensor(weights)[graph.y[one.view.nodes]]
        alone = F.cross_entropy(one.logits(backbone, start), graph.y[one.view.nodes], reduction="none") * factor
        torch.testing.assert_close(one.loss(backbone, start)[one.counts > 0], alone)

    def step(graph: GraphBatch) -> Tensor:
        sgd = dataclasses.replace(settings, optimizer="sgd", lr=0.1)
        return train_locally(
            graph, start, fresh_moments(start, sgd), lambda p, b: b.loss(backbone, p), sgd, Streams.of(0, graph.ids)
        )[0]["layer2.bias"]  # fmt: skip

    assert not torch.allclose(step(plain), step(weighted))


@pytest.mark.parametrize("kind", ["class", "labels", "value"])
def test_nodes_without_a_label_reach_no_metric_and_no_loss(kind: str) -> None:
    graph = small_world().clients
    role = graph.role.clone()
    role[::4] = 0
    y = graph.y if kind == "class" else F.one_hot(graph.y, CLASSES).float()
    metric = {"class": "log_loss", "labels": "roc_auc", "value": "mae"}[kind]
    known = dataclasses.replace(graph, role=role, y=y, target=Target(kind))  # type: ignore[arg-type]
    hidden = dataclasses.replace(known, y=y.index_fill(0, torch.arange(0, len(y), 4), -1 if kind == "class" else torch.nan))
    out = torch.randn(graph.num_nodes, CLASSES, generator=torch.Generator().manual_seed(0))
    first, second = (score(one, out, metric, PLAIN) for one in (known, hidden))
    for name in ("value", "total", "loss", "validation_loss"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert bool((first.total[:, 1] > 0).any()) and bool(second.value.isfinite().all())
    backbone = make_backbone(ModelSettings("gcn", hidden=8), FEATURES, CLASSES)
    params = backbone.init(torch.Generator().manual_seed(1))
    losses = [next(iter(batches(one, PLAIN, Streams.of(0, one.ids)))).loss(backbone, params) for one in (known, hidden)]
    assert torch.equal(*losses) and bool(losses[0].isfinite().all())


def test_scores_are_the_loss_of_training_and_of_validation_in_the_users_units() -> None:
    graph = small_world().clients
    target = Target("value", shift=(10.0,) * CLASSES, scale=(2.0,) * CLASSES)
    y = 10 + 2 * F.one_hot(graph.y, CLASSES).float()
    graph = dataclasses.replace(graph, y=y, target=target)
    out = torch.zeros(graph.num_nodes, CLASSES)
    found = score(graph, out, "mae", PLAIN)
    # Each node has one number that is off by 2 in its units and by 1 on the network's scale, and others that are right.
    has = found.total[:, 1] > 0
    torch.testing.assert_close(found.value[has, 1], torch.full_like(found.value[has, 1], 2 / CLASSES))
    torch.testing.assert_close(found.validation_loss[has], torch.full_like(found.validation_loss[has], 1 / CLASSES))
