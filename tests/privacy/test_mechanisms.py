# mypy: disable-error-code="no-untyped-call"
"""DP-SGD on the client axis against Opacus, against one gradient at a time, and against its own definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from harness import assert_separable, small, small_world
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers import optimizer as opacus_optimizer
from torch import Tensor, nn

from suture.core.streams import Streams, generator
from suture.core.tree import Tree, tile
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, Pairs
from suture.methods import METHODS
from suture.nn.backbones import Backbone, Sage, make_backbone
from suture.nn.module import ModuleBackbone
from suture.nn.sampler import sample_batch
from suture.privacy.mechanisms import clip_factors, noise_like, poisson_sample, private_gradient
from suture.settings import ModelSettings, TrainingSettings
from suture.training.batches import Batch, batches
from suture.training.local import train_locally
from suture.training.optimisers import fresh_moments

SILENT = 1e-12  # a noise multiplier that switches DP-SGD on and adds nothing
WORLD = small_world()
GRAPH = WORLD.clients


def one_step(backbone: Backbone, graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> tuple[Tree, Tree]:
    """(parameters before, parameters after one epoch)."""
    start = tile(backbone.init(generator(0, "weights")), len(graph.ids))
    after, _, _ = train_locally(
        graph, start, fresh_moments(start, settings), lambda p, b: b.loss(backbone, p), settings, rng
    )
    return start, after


def test_a_step_is_the_step_of_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client with a plain perceptron, noise included: Opacus is handed the noise our stream draws."""
    graph = GRAPH.select(GRAPH.ids[:1])
    backbone = make_backbone(ModelSettings(kind="mlp", hidden=8, dropout=0.0), WORLD.task.features, WORLD.task.classes)
    settings = TrainingSettings(optimizer="sgd", lr=0.5, dp_sigma=1.3, dp_clip=0.2)
    rng = Streams.of(0, graph.ids, "test")
    start, ours = one_step(backbone, graph, settings, rng)

    x, y = graph.x.dense()[graph.train.nodes], graph.y[graph.train.nodes]
    net = nn.Sequential(nn.Linear(x.shape[1], 8), nn.ReLU(), nn.Linear(8, WORLD.task.classes))
    names = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"]
    with torch.no_grad():
        for parameter, name in zip(net.parameters(), names, strict=True):
            parameter.copy_(start[name][0].T if name.endswith("weight") else start[name][0])
    stream = rng.fork("epoch", 0).fork("batch", 0)
    noise = noise_like(start, settings.dp_sigma * settings.dp_clip, stream)
    queue = iter([noise[name][0].T if name.endswith("weight") else noise[name][0] for name in names])
    deviations = []

    def from_our_stream(std: float, reference: Tensor, **_: object) -> Tensor:
        deviations.append(std)
        value = next(queue)
        assert value.shape == reference.shape
        return value

    monkeypatch.setattr(opacus_optimizer, "_generate_noise", from_our_stream)
    private_net = GradSampleModule(net)
    optimizer = DPOptimizer(
        torch.optim.SGD(private_net.parameters(), lr=0.5),
        noise_multiplier=settings.dp_sigma,
        max_grad_norm=settings.dp_clip,
        expected_batch_size=len(y),
    )
    F.cross_entropy(private_net(x.requires_grad_()), y).backward()
    optimizer.step()
    assert deviations == [pytest.approx(settings.dp_sigma * settings.dp_clip)] * 4
    for parameter, name in zip(net.parameters(), names, strict=True):
        own = ours[name][0].T if name.endswith("weight") else ours[name][0]
        torch.testing.assert_close(own, parameter.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_every_example_is_clipped_on_its_own(kind: str, clip: float) -> None:
    """All clients at once against one client, one example, one backward pass at a time."""
    model = ModelSettings(kind=kind, hidden=8, heads=2, dropout=0.0)  # type: ignore[arg-type]
    backbone = make_backbone(model, WORLD.task.features, WORLD.task.classes)
    settings = TrainingSettings(optimizer="sgd", lr=1.0, dp_sigma=SILENT, dp_clip=clip)
    start, after = one_step(backbone, GRAPH, settings, Streams.of(0, GRAPH.ids, "test"))
    clipped = 0
    for k, name in enumerate(GRAPH.ids):
        graph = GRAPH.select([name])
        leaves = {n: v[k : k + 1].clone().requires_grad_() for n, v in start.items()}
        total = [torch.zeros_like(v) for v in leaves.values()]
        for node in graph.train.nodes:
            logits = backbone.logits(leaves, graph)
            grads = torch.autograd.grad(
                F.cross_entropy(logits[node : node + 1], graph.y[node : node + 1]), [*leaves.values()]
            )
            norm = torch.cat([g.flatten() for g in grads]).norm()
            clipped += int(norm > clip)
            total = [t + g * min(1.0, clip / float(norm)) for t, g in zip(total, grads, strict=True)]
        for t, n in zip(total, leaves, strict=True):
            torch.testing.assert_close(start[n][k] - t[0] / int(graph.num_train), after[n][k], rtol=1e-4, atol=1e-6)
    assert (clipped > 0) == (clip == 0.05)


def test_without_clipping_and_noise_it_is_ordinary_training() -> None:
    backbone = make_backbone(ModelSettings(hidden=8, dropout=0.0), WORLD.task.features, WORLD.task.classes)
    settings = TrainingSettings(local_epochs=3, lr=0.05)
    rng = Streams.of(0, GRAPH.ids, "test")
    _, plain = one_step(backbone, GRAPH, replace(settings, optimizer="sgd"), rng)
    _, private = one_step(backbone, GRAPH, replace(settings, optimizer="sgd", dp_sigma=SILENT, dp_clip=1e6), rng)
    for name, value in plain.items():
        torch.testing.assert_close(private[name], value, rtol=1e-4, atol=1e-5)


def _rows(gradients_BKD: Tensor) -> Iterator[tuple[Tree, Tensor]]:
    for grads in gradients_BKD:
        yield {"a": grads[:, :4], "b": grads[:, 4:].reshape(-1, 2, 3)}, torch.ones(grads.shape[0], dtype=torch.bool)


def test_no_example_moves_the_sum_by_more_than_the_clip() -> None:
    """The sensitivity that the noise is made for."""
    examples = torch.randn(6, 3, 10, generator=torch.Generator().manual_seed(0)) * 10
    like = {"a": torch.zeros(3, 4), "b": torch.zeros(3, 2, 3)}
    rng, expected = Streams.of(0, ["x", "y", "z"]), torch.ones(3)
    everything = private_gradient(_rows(examples), like, 0.7, 0.0, expected, rng)
    for i in range(6):
        without = private_gradient(_rows(examples[torch.arange(6) != i]), like, 0.7, 0.0, expected, rng)
        moved = sum((everything[name] - without[name]).flatten(1).square().sum(1) for name in like)
        torch.testing.assert_close(torch.as_tensor(moved).sqrt(), torch.full((3,), 0.7))  # all were longer than 0.7


def test_short_gradients_are_left_alone() -> None:
    grads = {"a": torch.tensor([[3.0], [0.3], [0.0]]), "b": torch.tensor([[4.0], [0.4], [0.0]])}
    torch.testing.assert_close(clip_factors(grads, 1.0), torch.tensor([0.2, 1.0, 1.0]))


def test_noise_is_as_strong_as_promised_and_every_clients_own() -> None:
    like = {"a": torch.zeros(3, 100, 200), "b": torch.zeros(3, 5000)}
    noise = noise_like(like, 2.5, Streams.of(0, ["x", "y", "z"]))
    for value in noise.values():
        flat = value.flatten(1)
        torch.testing.assert_close(flat.std(1), torch.full((3,), 2.5), rtol=0.05, atol=0)
        assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 0.05
    alone = noise_like({"a": torch.zeros(1, 100, 200)}, 2.5, Streams.of(0, ["y"]))
    assert torch.equal(alone["a"][0], noise["a"][1])


def test_every_step_draws_each_node_with_its_clients_probability() -> None:
    settings = TrainingSettings(batch_size=4, dp_sigma=1.0)
    drawn, steps = torch.zeros(GRAPH.num_nodes), torch.zeros(4)
    for epoch in range(400):
        for batch in batches(GRAPH, settings, Streams.of(0, GRAPH.ids, "test", epoch)):
            drawn += torch.bincount(batch.view.nodes, minlength=GRAPH.num_nodes)
            steps += batch.active
    assert steps.tolist() == [400 * -(-n // 4) for n in GRAPH.num_train.tolist()]
    nodes, owner = GRAPH.train.nodes, GRAPH.train.segments.client
    rate = (4 / GRAPH.num_train).clamp_max(1)[owner]
    deviation = (rate * (1 - rate) / steps[owner]).sqrt()
    assert ((drawn[nodes] / steps[owner] - rate).abs() <= 5 * deviation).all()
    assert drawn.sum() == drawn[nodes].sum()


def test_draws_do_not_depend_on_each_other() -> None:
    """Poisson: the number drawn varies like a binomial, unlike a shuffled mini-batch, which always has the same."""
    rate = (4 / GRAPH.num_train).clamp_max(1)
    streams = [Streams.of(0, GRAPH.ids, "test", i) for i in range(2000)]
    drawn = torch.stack([poisson_sample(GRAPH.train.segments, rate, rng) for rng in streams]).double()
    count = drawn[:, GRAPH.train.segments.client == 0].sum(1)
    assert float(count.var()) == pytest.approx(4 * (1 - float(rate[0])), rel=0.15)


def test_an_empty_step_still_adds_its_noise() -> None:
    """Otherwise standing still would tell that nobody was drawn."""
    backbone = make_backbone(ModelSettings(kind="mlp", layers=1), WORLD.task.features, WORLD.task.classes)
    graph = GRAPH.select(GRAPH.ids[:1])
    settings = TrainingSettings(optimizer="sgd", batch_size=1, dp_sigma=1.0)
    start = tile(backbone.init(generator(0, "weights")), 1)
    empty = 0
    for batch in batches(graph, settings, Streams.of(0, graph.ids, "test")):
        empty += int(batch.counts) == 0
        assert bool(batch.active.all())
    assert empty > 0
    moments = fresh_moments(start, settings)
    _, moments, _ = train_locally(
        graph, start, moments, lambda p, b: b.loss(backbone, p), settings, Streams.of(0, graph.ids, "test")
    )
    assert int(moments["step"]) == int(graph.num_train)


def test_an_example_sees_only_its_own_sampled_neighbourhood() -> None:
    model = ModelSettings(kind="sage", hidden=8, dropout=0.0)
    backbone = make_backbone(model, WORLD.task.features, WORLD.task.classes)
    assert isinstance(backbone, Sage)
    settings = TrainingSettings(optimizer="sgd", lr=1.0, batch_size=100, fanouts=(2, 2), dp_sigma=SILENT, dp_clip=1e6)
    rng = Streams.of(0, GRAPH.ids, "test")
    start, after = one_step(backbone, GRAPH, settings, rng)
    stream = rng.fork("epoch", 0).fork("batch", 0)
    leaves = {n: v[:1].clone().requires_grad_() for n, v in start.items()}
    graph = GRAPH.select(GRAPH.ids[:1])
    losses = []
    for j, node in enumerate(graph.train.nodes):
        own = Streams(stream.fork("example", j).fork("sample").keys[:1])
        sampled = sample_batch(graph, node.view(1), (2, 2), own, replace=False)
        losses.append(F.cross_entropy(backbone.sampled_logits(leaves, sampled), graph.y[node.view(1)]))
    grads = torch.autograd.grad(torch.stack(losses).mean(), [*leaves.values()])
    for name, grad in zip(leaves, grads, strict=True):
        torch.testing.assert_close(start[name][0] - grad[0], after[name][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["fedsage", "fedprox", "fedpub", "fedgnn"])
def test_methods_need_not_know(name: str) -> None:
    """Batched, alone and through bytes, private training ends alike: all of it is each client's own."""
    training = {"dp_sigma": 0.5, "dp_clip": 0.1, "batch_size": 16, "optimizer": "sgd"}
    assert_separable(small(METHODS[name], training=training), WORLD)


def test_links_are_refused() -> None:
    pairs = Pairs(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), torch.ones(1))
    with pytest.raises(ConfigError, match="dp_sigma"):
        next(batches(replace(GRAPH, pairs=pairs), TrainingSettings(dp_sigma=1.0), Streams.of(0, GRAPH.ids)))


class Normed(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(features), nn.Linear(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.out(self.norm(x))
        return out


def test_running_statistics_stay_at_home() -> None:
    backbone = ModuleBackbone(ModelSettings(), WORLD.task.features, WORLD.task.classes, Normed)
    start = tile(backbone.init(generator(0, "weights")), len(GRAPH.ids))

    def objective(params: Tree, batch: Batch) -> Tensor:
        return batch.loss(backbone, params)

    for sigma in (0.0, 1.0):
        settings = TrainingSettings(dp_sigma=sigma, batch_size=2)
        moments = fresh_moments(start, settings)
        rng = Streams.of(0, GRAPH.ids, "test")
        after, _, _ = train_locally(GRAPH, start, moments, objective, settings, rng, backbone.frozen_names())
        assert torch.equal(after["norm.running_mean"], start["norm.running_mean"]) == (sigma > 0)
        assert not torch.equal(after["out.weight"], start["out.weight"])
