# mypy: disable-error-code="no-untyped-call"
"""A user's own torch module, with batch normalisation and dropout, under FedAvg."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, to_undirected

from suture.core.message import Model
from suture.core.streams import Streams, generator
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of
from suture.method import Task
from suture.methods.averaging import Kept, Server
from suture.methods.fedavg import FedAvg
from suture.nn.module import ModuleBackbone
from suture.settings import ModelSettings, TrainingSettings

FEATURES, CLASSES = 5, 3
SIZES = (14, 9, 11)


class Net(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, 8, bias=False)  # BatchNorm would cancel it; Adam would then follow rounding
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.classify = nn.Linear(8, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.conv(x, edge_index)).relu())
        return self.classify(hidden)  # type: ignore[no-any-return]


class NetWithoutDropout(Net):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.drop = nn.Dropout(0.0)


@pytest.fixture
def graph() -> GraphBatch:
    rng = torch.Generator().manual_seed(0)
    nodes = sum(SIZES)
    y = torch.randint(CLASSES, (nodes,), generator=rng)
    data = Data(
        x=torch.randn(nodes, FEATURES, generator=rng) + F.one_hot(y, FEATURES),
        edge_index=coalesce(to_undirected(torch.randint(nodes, (2, 4 * nodes), generator=rng))),
        y=y,
    )
    roles = [torch.randint(1, 4, (size,), generator=rng, dtype=torch.int8) for size in SIZES]
    return batch_of(data, ["a", "b", "c"], torch.arange(nodes).split(SIZES), roles, [False] * 3)


def task_of(module: type[nn.Module]) -> Task:
    return Task(FEATURES, CLASSES, seed=3, module=module)


def run(graph: GraphBatch, module: type[nn.Module] = Net, rounds: int = 3, **engine: object) -> tuple[Server, list[Kept]]:
    method = FedAvg(training=TrainingSettings(local_epochs=2, lr=0.05))
    cohort = EmbeddedCohort.start(method, graph, task_of(module), **engine)  # type: ignore[arg-type]
    server = method.init_server(task_of(module))
    for _ in range(rounds):
        server = method.round(server, cohort)  # type: ignore[arg-type]
    return server, cohort.states()


def loss_of(server: Server, graph: GraphBatch) -> float:
    logits = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Net).logits(
        {name: value.expand(3, *value.shape[1:]) for name, value in server.params.items()}, graph
    )
    return float(F.cross_entropy(logits[graph.train.nodes], graph.y[graph.train.nodes]))


def test_parameters_and_float_buffers_make_up_the_tree() -> None:
    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Net)
    tree = backbone.init(generator(0, "w"))
    assert set(tree) == {n for n, v in Net(FEATURES, CLASSES).state_dict().items() if v.is_floating_point()}
    assert all(value.shape[0] == 1 for value in tree.values())
    assert {"norm.running_mean", "norm.running_var"} <= backbone.frozen_names()
    assert not backbone.frozen_names() & {name for name, _ in Net(FEATURES, CLASSES).named_parameters()}


def test_initial_values_follow_from_the_generator_alone() -> None:
    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Net)
    first = backbone.init(generator(0, "w"))
    torch.manual_seed(99)
    again, other = backbone.init(generator(0, "w")), backbone.init(generator(1, "w"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classify.weight"], other["classify.weight"])


def test_training_lowers_the_loss(graph: GraphBatch) -> None:
    start, end = run(graph, rounds=0)[0], run(graph, rounds=15)[0]
    assert loss_of(end, graph) < 0.7 * loss_of(start, graph)


@pytest.mark.parametrize("engine", [{"chunk_size": 1}, {"chunk_size": 2}, {"through_bytes": True}])
def test_together_is_the_same_as_one_client_at_a_time(graph: GraphBatch, engine: dict[str, object]) -> None:
    together, alone = run(graph)[0].params, run(graph, **engine)[0].params  # type: ignore[arg-type]
    for name, value in together.items():
        torch.testing.assert_close(alone[name], value, atol=1e-6, rtol=1e-5)


def test_running_statistics_are_collected_by_clients_and_averaged_by_the_server(graph: GraphBatch) -> None:
    server, (kept,) = run(graph, rounds=1)
    mean_KH = kept.params["norm.running_mean"]
    assert not torch.allclose(mean_KH[0], mean_KH[1])
    share = graph.num_train / graph.num_train.sum()
    torch.testing.assert_close(server.params["norm.running_mean"][0], (share.unsqueeze(1) * mean_KH).sum(0))


def test_one_local_update_is_a_plain_torch_loop(graph: GraphBatch) -> None:
    _, (kept,) = run(graph, NetWithoutDropout, rounds=1)
    initial = FedAvg().initial_params(task_of(NetWithoutDropout))
    for k in range(3):
        net, one = NetWithoutDropout(FEATURES, CLASSES), graph.client_data(k)
        net.load_state_dict(net.state_dict() | {name: value[0] for name, value in initial.items()})
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(net(one.x, one.edge_index)[one.train_mask], one.y[one.train_mask]).backward()
            optimizer.step()
        for name, value in kept.params.items():
            torch.testing.assert_close(value[k], net.state_dict()[name], atol=1e-5, rtol=1e-5)


def test_the_global_generator_is_not_touched_and_does_not_matter(graph: GraphBatch) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = run(graph)[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = run(graph)[0]
    assert all(torch.equal(first.params[name], again.params[name]) for name in first.params)


def test_dropout_differs_between_clients_steps_and_evaluation(graph: GraphBatch) -> None:
    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Net)
    params = {n: v.repeat(3, *[1] * (v.dim() - 1)) for n, v in backbone.init(generator(0, "w")).items()}
    streams = Streams.of(0, graph.ids)
    first, second = (backbone.logits(copy.deepcopy(params), graph, streams.fork(i)) for i in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, backbone.logits(copy.deepcopy(params), graph, streams.fork(0)))
    before = copy.deepcopy(params)
    evaluated = backbone.logits(params, graph)
    assert torch.equal(evaluated, backbone.logits(params, graph))
    assert all(torch.equal(params[n], before[n]) for n in params)


def test_evaluation_through_the_cohort_leaves_the_model_alone(graph: GraphBatch) -> None:
    method, task = FedAvg(), task_of(Net)
    cohort = EmbeddedCohort.start(method, graph, task)
    server = method.init_server(task)
    before = {name: value.clone() for name, value in server.params.items()}
    scores = cohort.ask(method.evaluate, method.deploy(server, graph.ids))
    assert scores.total.sum() == sum(SIZES)
    assert all(torch.equal(server.params[name], before[name]) for name in before)
    assert isinstance(method.deploy(server, graph.ids), Model)


class HalfFrozen(Net):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.conv.requires_grad_(False)


def test_a_parameter_the_user_froze_stays_frozen(graph: GraphBatch) -> None:
    start, end = run(graph, HalfFrozen, rounds=0)[0].params, run(graph, HalfFrozen, rounds=2)[0].params
    torch.testing.assert_close(end["conv.lin.weight"], start["conv.lin.weight"])
    assert not torch.allclose(end["classify.weight"], start["classify.weight"])


class Tied(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.encode, self.again = nn.Linear(features, features), nn.Linear(features, features)
        self.again.weight = self.encode.weight
        self.classify = nn.Linear(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.classify(self.again(self.encode(x).relu()).relu())  # type: ignore[no-any-return]


def test_tied_parameters_stay_tied(graph: GraphBatch) -> None:
    end = run(graph, Tied, rounds=2)[0].params
    assert "encode.weight" in end and "again.weight" not in end


def test_personal_names_are_the_last_submodules() -> None:
    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Net)
    assert backbone.personal_names(0) == []
    assert backbone.personal_names(1) == ["classify.weight", "classify.bias"]
    assert set(backbone.personal_names(2)) == {
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "classify.weight",
        "classify.bias",
    }


def test_edges_reach_the_module_numbered_from_zero(graph: GraphBatch) -> None:
    seen: list[tuple[int, Tensor]] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
            seen.append((x.shape[0], edge_index))
            return super().forward(x)

    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Spy)
    params = {n: v.expand(3, *v.shape[1:]) for n, v in backbone.init(generator(0, "w")).items()}
    backbone.logits(params, graph)
    for k, (nodes, edges) in enumerate(seen):
        assert nodes == SIZES[k]
        assert torch.equal(edges, graph.client_data(k).edge_index)
