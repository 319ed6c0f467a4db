# mypy: disable-error-code="no-untyped-call"
"""Local training of K clients at once against plain torch and PyG loops, one client at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from suture.core.streams import Streams
from suture.core.tree import Tree, tile
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of
from suture.method import Task
from suture.methods.fedavg import FedAvg
from suture.nn.backbones import make_backbone
from suture.settings import ModelSettings, TrainingSettings
from suture.training.batches import Batch, batches
from suture.training.local import train_locally
from suture.training.optimisers import fresh_moments, optimise

FEATURES, CLASSES = 6, 3
SIZES = (16, 9, 23, 8)
IDS = ("a", "b", "c", "d")


def toy_batch(train: tuple[int, ...] = (7, 4, 12, 0)) -> GraphBatch:
    """Four clients; by default the last has no training node."""
    rng = torch.Generator().manual_seed(0)
    nodes = sum(SIZES)
    y = torch.randint(CLASSES, (nodes,), generator=rng)
    edges = remove_self_loops(torch.randint(nodes, (2, 6 * nodes), generator=rng))[0]
    data = Data(
        x=torch.randn(nodes, FEATURES, generator=rng) + F.one_hot(y, FEATURES),
        edge_index=coalesce(to_undirected(edges)),
        y=y,
    )
    roles = []
    for size, count in zip(SIZES, train, strict=True):
        role = torch.full((size,), 3, dtype=torch.int8)
        role[torch.randperm(size, generator=rng)[:count]] = 1
        roles.append(role)
    return batch_of(data, IDS, torch.arange(nodes).split(SIZES), roles, [False] * 4)


def random_tree(clients: int, seed: int) -> Tree:
    rng = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(clients, 3, 2, generator=rng), "scale": torch.randn(clients, generator=rng)}


OPTIMIZERS = {
    "adam": TrainingSettings(optimizer="adam", lr=0.05, weight_decay=0.01),
    "adam without decay": TrainingSettings(optimizer="adam", lr=0.05),
    "adam, clipped": TrainingSettings(optimizer="adam", lr=0.05, weight_decay=0.01, clip=1.5),
    "adamw": TrainingSettings(optimizer="adamw", lr=0.05, weight_decay=0.1),
    "sgd": TrainingSettings(optimizer="sgd", lr=0.05, weight_decay=0.01),
    "sgd with momentum": TrainingSettings(optimizer="sgd", lr=0.05, weight_decay=0.01, momentum=0.9),
    "sgd with momentum, clipped": TrainingSettings(optimizer="sgd", lr=0.05, momentum=0.5, clip=1.5),
}


def torch_optimizer(parameters: list[Tensor], settings: TrainingSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        decay, momentum = settings.weight_decay, settings.momentum
        return torch.optim.SGD(parameters, lr=settings.lr, weight_decay=decay, momentum=momentum)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
    return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


EVERYBODY = [[True] * 3] * 10
SOMEBODY = [[True, step % 2 == 0, step in (3, 8)] for step in range(10)]
ONE_STARTS_LATE = [[True, step >= 4, True] for step in range(10)]


@pytest.mark.parametrize("schedule", [EVERYBODY, SOMEBODY, ONE_STARTS_LATE], ids=["everybody", "somebody", "late"])
@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optimise_is_one_torch_optimizer_for_each_client(settings: TrainingSettings, schedule: list[list[bool]]) -> None:
    ours = random_tree(3, seed=0)
    moments = fresh_moments(ours, settings)
    theirs = [[value[k].clone().requires_grad_() for value in ours.values()] for k in range(3)]
    optimizers = [torch_optimizer(own, settings) for own in theirs]
    for step, active in enumerate(schedule):
        grads = random_tree(3, seed=100 + step)
        optimise(ours, grads, moments, torch.tensor(active), settings)
        for k in range(3):
            if active[k]:
                for leaf, grad in zip(theirs[k], grads.values(), strict=True):
                    leaf.grad = grad[k].clone()
                if settings.clip:
                    torch.nn.utils.clip_grad_norm_(theirs[k], settings.clip)
                optimizers[k].step()
    assert moments["step"].tolist() == [sum(active[k] for active in schedule) for k in range(3)]
    for k in range(3):
        for name, expected in zip(ours, theirs[k], strict=True):
            torch.testing.assert_close(ours[name][k], expected.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optimise_with_nobody_active_changes_nothing(settings: TrainingSettings) -> None:
    params = random_tree(3, seed=0)
    moments = fresh_moments(params, settings)
    optimise(params, random_tree(3, seed=1), moments, torch.zeros(3, dtype=torch.bool), settings)
    assert all(torch.equal(params[name], value) for name, value in random_tree(3, seed=0).items())
    assert not any(value.any() for value in moments.values())


@pytest.mark.parametrize("active", [[True, True], [True, False]], ids=["stacked", "one by one"])
@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optimise_takes_gradients_in_any_memory_layout(settings: TrainingSettings, active: list[bool]) -> None:
    """Autograd hands out transposed and expanded gradients; torch's fused Adam would misread them silently."""
    transposed = torch.arange(-6.0, 6.0).view(2, 2, 3).transpose(1, 2)
    expanded = torch.tensor([1.0, -1.0]).view(2, 1, 1).expand(2, 3, 2)
    for gradient in (transposed, expanded):
        ours, theirs = {"w": torch.zeros(2, 3, 2)}, {"w": torch.zeros(2, 3, 2)}
        optimise(ours, {"w": gradient}, fresh_moments(ours, settings), torch.tensor(active), settings)
        optimise(theirs, {"w": gradient.contiguous()}, fresh_moments(theirs, settings), torch.tensor(active), settings)
        assert torch.equal(ours["w"], theirs["w"])
        assert (torch.sign(ours["w"][0]) == -torch.sign(gradient[0])).all()


def test_training_from_parameters_in_any_memory_layout() -> None:
    graph, settings = toy_batch(), TrainingSettings(local_epochs=2)
    backbone = make_backbone(local_model("mlp"), FEATURES, CLASSES)
    plain = {n: v.repeat(4, *[1] * (v.dim() - 1)) for n, v in backbone.init(torch.Generator().manual_seed(1)).items()}
    odd = {n: v.mT.contiguous().mT if v.dim() == 3 else v for n, v in plain.items()}
    results = [
        train_locally(
            graph,
            start,
            fresh_moments(start, settings),
            lambda p, b: b.loss(backbone, p),
            settings,
            Streams.of(0, IDS),
        )[0]
        for start in (plain, odd)
    ]
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, atol=1e-6, rtol=1e-5)


def test_optimise_takes_a_client_alone_as_in_company() -> None:
    settings = OPTIMIZERS["adam"]
    together, alone = random_tree(3, seed=0), {n: v[1:2].clone() for n, v in random_tree(3, seed=0).items()}
    of_all, of_one = fresh_moments(together, settings), fresh_moments(alone, settings)
    for step in range(5):
        grads = random_tree(3, seed=step)
        optimise(together, grads, of_all, torch.tensor([step != 2, True, True]), settings)
        optimise(alone, {n: g[1:2] for n, g in grads.items()}, of_one, torch.tensor([True]), settings)
    for name, value in alone.items():
        torch.testing.assert_close(together[name][1:2], value, atol=1e-6, rtol=1e-6)


def test_clipping_is_by_each_clients_own_length() -> None:
    """Lengths 5, 50 and 1: the first two are shortened to 2, the third is not."""
    grads = {"a": torch.tensor([[3.0], [30.0], [0.6]]), "b": torch.tensor([[4.0], [40.0], [0.8]])}
    params = {name: torch.zeros(3, 1) for name in grads}
    settings = TrainingSettings(optimizer="sgd", lr=1.0, clip=2.0)
    optimise(params, grads, fresh_moments(params, settings), torch.ones(3, dtype=torch.bool), settings)
    torch.testing.assert_close(params["a"], -torch.tensor([[1.2], [1.2], [0.6]]))
    torch.testing.assert_close(params["b"], -torch.tensor([[1.6], [1.6], [0.8]]))
    assert grads["a"][0] == 3.0  # the caller's gradient is left alone


class TestBatches:
    def test_the_full_batch_is_every_training_node(self) -> None:
        graph = toy_batch()
        (batch,) = batches(graph, TrainingSettings(), Streams.of(0, IDS))
        assert torch.equal(batch.view.nodes, torch.nonzero(graph.role == 1).squeeze(1))
        assert batch.counts.tolist() == [7, 4, 12, 0]

    @pytest.mark.parametrize("size", [1, 3, 5, 100])
    def test_an_epoch_visits_every_training_node_once(self, size: int) -> None:
        graph = toy_batch()
        visited = []
        for number, batch in enumerate(batches(graph, TrainingSettings(batch_size=size), Streams.of(0, IDS))):
            left = [max(0, count - number * size) for count in (7, 4, 12, 0)]
            assert batch.counts.tolist() == [min(size, count) for count in left]
            owner = graph.segments.client[batch.view.nodes]
            assert torch.equal(owner, owner.sort().values)
            visited.append(batch.view.nodes)
        assert sorted(torch.cat(visited).tolist()) == torch.nonzero(graph.role == 1).squeeze(1).tolist()

    def test_epochs_differ_in_their_order(self) -> None:
        graph, rng = toy_batch(), Streams.of(0, IDS)
        settings = TrainingSettings(batch_size=4)
        first, second = (torch.cat([b.view.nodes for b in batches(graph, settings, rng.fork("epoch", e))]) for e in range(2))
        assert not torch.equal(first, second)

    def test_a_client_gets_the_same_batches_alone(self) -> None:
        graph, settings = toy_batch(), TrainingSettings(batch_size=5, fanouts=(3, 2))
        together = list(batches(graph, settings, Streams.of(0, IDS)))
        alone = list(batches(graph.select(["c"]), settings, Streams.of(0, ["c"])))
        assert len(alone) == 3
        for ours, theirs in zip(alone, together, strict=True):
            own = graph.segments.client[theirs.view.nodes] == 2
            assert torch.equal(ours.view.nodes + graph.segments.bounds[2], theirs.view.nodes[own])

    def test_nobody_has_a_training_node(self) -> None:
        graph = toy_batch(train=(0, 0, 0, 0))
        assert list(batches(graph, TrainingSettings(batch_size=4), Streams.of(0, IDS))) == []


def test_the_loss_is_each_clients_own_mean() -> None:
    graph = toy_batch()
    backbone = make_backbone(ModelSettings(dropout=0.0, hidden=8), FEATURES, CLASSES)
    params = tile(backbone.init(torch.Generator().manual_seed(0)), 4)
    (batch,) = batches(graph, TrainingSettings(), Streams.of(0, IDS))
    loss = batch.loss(backbone, params)
    for k in range(3):
        one = graph.client_data(k)
        rows = graph.segments.client == k
        logits = backbone.logits(params, graph)[rows]
        expected = F.cross_entropy(logits[one.train_mask], one.y[one.train_mask])
        torch.testing.assert_close(loss[k], expected)
    assert loss[3] == 0


def local_model(kind: str) -> ModelSettings:
    return ModelSettings(kind, hidden=8, dropout=0.0)  # type: ignore[arg-type]


class PygNet(torch.nn.Module):
    """GCN or GraphSAGE in plain PyG, started from row 0 of our tree."""

    def __init__(self, kind: str, start: Tree) -> None:
        super().__init__()
        layer = GCNConv if kind == "gcn" else SAGEConv
        self.first, self.second = layer(FEATURES, 8), layer(8, CLASSES)
        for conv, name in ((self.first, "layer1"), (self.second, "layer2")):
            for parameter, part in self._parts(kind, conv):
                value = start[f"{name}.{part}"][0]
                parameter.data = (value.T if value.dim() == 2 else value).clone()
        self.kind = kind

    @staticmethod
    def _parts(kind: str, conv: torch.nn.Module) -> list[tuple[Tensor, str]]:
        if kind == "gcn":
            return [(conv.lin.weight, "weight"), (conv.bias, "bias")]  # type: ignore[union-attr, list-item]
        return [(conv.lin_l.weight, "neighbour"), (conv.lin_r.weight, "self"), (conv.lin_l.bias, "bias")]  # type: ignore[union-attr, list-item]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)  # type: ignore[no-any-return]

    def tree(self) -> Tree:
        layers = (("layer1", self.first), ("layer2", self.second))
        parts = [(f"{name}.{part}", value) for name, conv in layers for value, part in self._parts(self.kind, conv)]
        return {name: (value.T if value.dim() == 2 else value).detach() for name, value in parts}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_a_fedavg_round_is_a_plain_pyg_loop(kind: str, optimizer: TrainingSettings) -> None:
    """Two rounds of three epochs: local models, server average, losses and moments that outlive a round."""
    graph, task = toy_batch(), Task(FEATURES, CLASSES, seed=5)
    training = TrainingSettings(
        local_epochs=3, optimizer=optimizer.optimizer, lr=optimizer.lr, weight_decay=optimizer.weight_decay
    )
    method = FedAvg(model=local_model(kind), training=training)
    cohort = EmbeddedCohort.start(method, graph, task)
    server = method.init_server(task)
    expected = {name: value.clone() for name, value in server.params.items()}
    nets = [PygNet(kind, expected) for _ in IDS]
    optimizers = [torch_optimizer(list(net.parameters()), training) for net in nets]
    share = torch.tensor([7, 4, 12, 0]) / 23
    for _ in range(2):
        server = method.round(server, cohort)  # type: ignore[arg-type]
        losses = []
        for k, net in enumerate(nets[:3]):
            fresh = PygNet(kind, expected)
            for parameter, start in zip(net.parameters(), fresh.parameters(), strict=True):
                parameter.data.copy_(start.data)
            one = graph.client_data(k)
            for _ in range(3):
                optimizers[k].zero_grad()
                loss = F.cross_entropy(net(one.x, one.edge_index)[one.train_mask], one.y[one.train_mask])
                loss.backward()
                optimizers[k].step()
            losses.append(float(loss.detach()))
        trees = [net.tree() for net in nets]
        expected = {n: sum(share[k] * trees[k][n] for k in range(3)).unsqueeze(0) for n in expected}  # type: ignore[union-attr]
        for name, value in server.params.items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-5)
        weighted = sum(part * loss for part, loss in zip(share.tolist(), losses, strict=False))
        assert cohort.take_reports()["loss"] == pytest.approx(weighted, abs=1e-5)
    (kept,) = cohort.states()
    for k in range(3):
        for name, value in trees[k].items():
            torch.testing.assert_close(kept.params[name][k], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [0, 1])
def test_a_round_in_which_nobody_can_train_keeps_the_model(chunk_size: int) -> None:
    method, task = FedAvg(model=local_model("gcn")), Task(FEATURES, CLASSES, seed=5)
    cohort = EmbeddedCohort.start(method, toy_batch(train=(0, 0, 0, 0)), task, chunk_size=chunk_size)
    before = method.init_server(task)
    after = method.round(before, cohort)  # type: ignore[arg-type]
    for name, value in before.params.items():
        torch.testing.assert_close(after.params[name], value)


def trained(
    graph: GraphBatch, settings: TrainingSettings, model: ModelSettings, frozen: frozenset[str] = frozenset()
) -> tuple[Tree, Tree, Tree, Tensor]:
    """(start, new parameters, new moments, loss)."""
    backbone = make_backbone(model, FEATURES, CLASSES)
    start = tile(backbone.init(torch.Generator().manual_seed(1)), len(graph.ids))
    moments = fresh_moments(start, settings)

    def objective(params: Tree, batch: Batch) -> Tensor:
        return batch.loss(backbone, params)

    rng = Streams.of(0, graph.ids, "ask", 1)
    return start, *train_locally(graph, start, moments, objective, settings, rng, frozen)


SCHEDULES = {
    "full batch": TrainingSettings(local_epochs=3),
    "mini-batches": TrainingSettings(local_epochs=2, batch_size=3),
    "sampled": TrainingSettings(local_epochs=2, batch_size=3, fanouts=(3, 2)),
    "sampled with replacement": TrainingSettings(local_epochs=2, batch_size=3, fanouts=(3, 2), replace=True),
    "sgd": TrainingSettings(local_epochs=3, optimizer="sgd", lr=0.1),
}
every_schedule = pytest.mark.parametrize("settings", SCHEDULES.values(), ids=SCHEDULES.keys())


@every_schedule
def test_training_is_the_same_alone_and_in_company(settings: TrainingSettings) -> None:
    graph, model = toy_batch(), ModelSettings("sage", hidden=8, dropout=0.5)
    _, together, moments, loss = trained(graph, settings, model)
    for k, name in enumerate(IDS[:3]):
        _, alone, own_moments, own_loss = trained(graph.select([name]), settings, model)
        for path, value in alone.items():
            torch.testing.assert_close(together[path][k : k + 1], value, atol=1e-5, rtol=1e-4)
        assert torch.equal(moments["step"][k : k + 1], own_moments["step"])
        torch.testing.assert_close(loss[k : k + 1], own_loss, atol=1e-5, rtol=1e-4)


@every_schedule
def test_a_client_without_training_nodes_does_not_move(settings: TrainingSettings) -> None:
    start, params, moments, loss = trained(toy_batch(), settings, ModelSettings("sage", hidden=8))
    for name, value in params.items():
        assert torch.equal(value[3], start[name][3])
        assert not torch.equal(value[0], start[name][0])
    assert moments["step"][3] == 0
    assert loss[3] == 0


@every_schedule
def test_a_client_without_training_nodes_can_be_alone(settings: TrainingSettings) -> None:
    start, params, _, loss = trained(toy_batch().select(["d"]), settings, ModelSettings("sage", hidden=8))
    assert all(torch.equal(params[name], start[name]) for name in start)
    assert loss.tolist() == [0.0]


@every_schedule
def test_frozen_parameters_get_no_update(settings: TrainingSettings) -> None:
    frozen = frozenset({"layer1.self", "layer2.bias"})
    start, params, _, _ = trained(toy_batch(), settings, ModelSettings("sage", hidden=8), frozen)
    for name, value in params.items():
        assert torch.equal(value, start[name]) == (name in frozen)


@every_schedule
def test_the_arguments_are_left_untouched(settings: TrainingSettings) -> None:
    graph, backbone = toy_batch(), make_backbone(ModelSettings("sage", hidden=8), FEATURES, CLASSES)
    single = backbone.init(torch.Generator().manual_seed(1))
    for start in (tile(single, 4), {n: v.repeat(4, *[1] * (v.dim() - 1)) for n, v in single.items()}):
        moments = fresh_moments(start, settings)
        before = {n: v.clone() for n, v in (start | moments).items()}
        params, new_moments, _ = train_locally(
            graph, start, moments, lambda p, b: b.loss(backbone, p), settings, Streams.of(0, IDS)
        )
        assert all(torch.equal(value, before[n]) and not value.requires_grad for n, value in (start | moments).items())
        assert not any(value.requires_grad for value in (params | new_moments).values())
        assert not {v.data_ptr() for v in params.values()} & {v.data_ptr() for v in start.values()}


@every_schedule
def test_moments_that_are_spent_become_the_new_ones(settings: TrainingSettings) -> None:
    graph, backbone = toy_batch(), make_backbone(ModelSettings("sage", hidden=8), FEATURES, CLASSES)
    start = tile(backbone.init(torch.Generator().manual_seed(1)), 4)
    endings = []
    for spent in (False, True):
        moments, rng = fresh_moments(start, settings), Streams.of(0, IDS)
        ending = train_locally(graph, start, moments, lambda p, b: b.loss(backbone, p), settings, rng, spent=spent)
        assert all((new is moments[name]) == spent for name, new in ending[1].items())
        endings.append(ending[0] | ending[1])
    kept, written_over = endings
    assert all(torch.equal(value, written_over[name]) for name, value in kept.items())


def test_every_epoch_has_its_own_batches_and_its_own_noise() -> None:
    graph, settings = toy_batch(), TrainingSettings(local_epochs=3, batch_size=4)
    backbone = make_backbone(ModelSettings(hidden=8), FEATURES, CLASSES)
    seen: list[tuple[Tensor, Tensor]] = []

    def objective(params: Tree, batch: Batch) -> Tensor:
        seen.append((batch.view.nodes, batch.rng.keys))
        return batch.loss(backbone, params)

    start = tile(backbone.init(torch.Generator().manual_seed(1)), 4)
    train_locally(graph, start, fresh_moments(start, settings), objective, settings, Streams.of(0, IDS))
    assert len(seen) == 9
    assert len({tuple(nodes.tolist()) for nodes, _ in seen}) == 9
    assert len({tuple(keys.tolist()) for _, keys in seen}) == 9


def test_the_loss_reported_is_that_of_the_last_epoch() -> None:
    """With plain SGD the loss before each step can be written down from the parameters one epoch earlier."""
    graph, model = toy_batch(), local_model("gcn")
    _, after_two, _, _ = trained(graph, TrainingSettings(local_epochs=2, optimizer="sgd", lr=0.1), model)
    _, _, _, loss = trained(graph, TrainingSettings(local_epochs=3, optimizer="sgd", lr=0.1), model)
    (batch,) = batches(graph, TrainingSettings(), Streams.of(0, IDS))
    torch.testing.assert_close(loss, batch.loss(make_backbone(model, FEATURES, CLASSES), after_two))


def test_mini_batches_with_every_neighbour_are_mini_batches_on_the_full_graph() -> None:
    graph, model = toy_batch(), local_model("sage")
    _, full, _, _ = trained(graph, TrainingSettings(local_epochs=2, batch_size=3), model)
    _, sampled, _, _ = trained(graph, TrainingSettings(local_epochs=2, batch_size=3, fanouts=(99, 99)), model)
    for name, value in full.items():
        torch.testing.assert_close(sampled[name], value, atol=1e-5, rtol=1e-4)


def test_fresh_moments_know_their_optimizer() -> None:
    params = tile(random_tree(1, seed=0), 4)
    assert set(fresh_moments(params, OPTIMIZERS["sgd"])) == {"step"}
    assert set(fresh_moments(params, OPTIMIZERS["sgd with momentum"])) == {"step", "weight.first", "scale.first"}
    assert fresh_moments(params, OPTIMIZERS["adamw"]).keys() == fresh_moments(params, OPTIMIZERS["adam"]).keys()
    moments = fresh_moments(params, OPTIMIZERS["adam"])
    assert set(moments) == {"step", "weight.first", "weight.second", "scale.first", "scale.second"}
    assert all(value.shape[0] == 4 and not value.any() and value.is_contiguous() for value in moments.values())
