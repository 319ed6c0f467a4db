"""FedProto: the reduction to Local, prototypes and their loss by hand, what travels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import World, beginning, ending, run_to_end, small, small_world

from suture.core.message import Message, Model
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.links import hide_links
from suture.methods.averaging import Server
from suture.methods.fedproto import COUNTS, PROTOTYPES, FedProto, prototypes
from suture.methods.local import Local
from suture.nn.export import to_pyg
from suture.settings import SplitSettings, TrainingSettings
from suture.training.batches import Batch, batches


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _embedding(method: FedProto, graph: GraphBatch, world: World) -> torch.Tensor:
    params = {n: v.expand(len(graph.ids), *v.shape[1:]) for n, v in method.initial_params(world.task).items()}
    return method.backbone(world.task).embed(params, graph)


def _whole_batch(graph: GraphBatch) -> Batch:
    return next(batches(graph, TrainingSettings(), Streams.of(0, graph.ids, "test")))


def _by_hand(embedding: torch.Tensor, graph: GraphBatch, k: int, label: int) -> tuple[torch.Tensor, int]:
    inside = (graph.segments.client == k) & (graph.y == label) & (graph.role == 1)
    rows = [embedding[v] for v in range(graph.num_nodes) if inside[v]]
    return (sum(rows) / len(rows) if rows else torch.zeros(embedding.shape[1])), len(rows)  # type: ignore[return-value]


def test_without_weight_it_is_local(world: World) -> None:
    pulled, local = (run_to_end(small(kind, **f), world.clients, world.task) for kind, f in _PAIR)
    for mine, theirs in zip(pulled.states, local.states, strict=True):
        for path, tensor in theirs.tensors().items():
            assert torch.equal(mine.tensors()[path], tensor), path
    assert torch.equal(pulled.scores.tensors()["value"], local.scores.tensors()["value"])


_PAIR = ((FedProto, {"proto_weight": 0.0}), (Local, {}))


def test_prototypes_by_hand(world: World) -> None:
    method, graph = small(FedProto), world.clients
    assert isinstance(method, FedProto)
    embedding = _embedding(method, graph, world)
    found = prototypes(embedding[graph.train.nodes], _whole_batch(graph), world.task.classes)
    for k in range(4):
        for label in range(3):
            mean, count = _by_hand(embedding, graph, k, label)
            torch.testing.assert_close(found[PROTOTYPES][k, label], mean, rtol=1e-5, atol=1e-6)
            assert float(found[COUNTS][k, label]) == count


class _Told:
    """A cohort in which every client answers what it is told to."""

    def __init__(self, up: object) -> None:
        self.up, self.ids = up, ("a", "b")

    def sample(self, fraction: float) -> _Told:
        return self

    def ask(self, step: object, message: Message) -> object:
        return self.up

    def report(self, **values: float) -> None:
        pass


def test_global_prototypes_by_hand(world: World) -> None:
    """Class 0: (1 * 10 + 3 * 2) / 4 = 4. Class 1: only the second client has it. Class 2: nobody; the old one stays."""
    cohort = EmbeddedCohort.start(small(FedProto), world.clients, world.task)
    method = small(FedProto)
    assert isinstance(method, FedProto)
    up = cohort.ask(method.local_update, Model(cohort.ids, _tiled(method, world, 4))).select(cohort.ids[:2])
    sent = {
        PROTOTYPES: torch.tensor([[[10.0], [0.0], [0.0]], [[2.0], [7.0], [0.0]]]),
        COUNTS: torch.tensor([[1.0, 0.0, 0.0], [3.0, 5.0, 0.0]]),
    }
    before = {PROTOTYPES: torch.tensor([[[1.0], [1.0], [9.0]]]), COUNTS: torch.tensor([[1.0, 1.0, 2.0]])}
    after = method.round(Server(("server",), before), _Told(replace(up, params=sent)))  # type: ignore[arg-type]
    assert after.params[PROTOTYPES].flatten().tolist() == [4.0, 7.0, 9.0]
    assert after.params[COUNTS].flatten().tolist() == [4.0, 5.0, 2.0]


def _tiled(method: FedProto, world: World, clients: int) -> dict[str, torch.Tensor]:
    return {n: v.expand(clients, *v.shape[1:]) for n, v in method.init_server(world.task).params.items()}


def test_the_loss_by_hand_and_its_gradient(world: World) -> None:
    """Only classes that both the client and the received prototypes have count."""
    method = replace(small(FedProto, proto_weight=0.7), model=replace(small(FedProto).model, dropout=0.0))
    assert isinstance(method, FedProto)
    graph, task = world.clients, world.task
    start = {n: v.expand(4, *v.shape[1:]).clone() for n, v in method.initial_params(task).items()}
    params = {name: value.requires_grad_() for name, value in start.items()}
    centre = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(3)).expand(4, 3, 8)
    received = start | {PROTOTYPES: centre, COUNTS: torch.tensor([[4.0, 0.0, 2.0]]).expand(4, 3)}
    batch = next(batches(graph, method.training, Streams.of(0, graph.ids, "test")))
    term = method.loss_terms(params, batch, received, beginning(method, graph, task))["prototypes"]
    embedding = _embedding(method, graph, world)
    for k in range(4):
        expected = 0.0
        for label in (0, 2):
            mean, count = _by_hand(embedding, graph, k, label)
            expected += 0.7 * float((mean - centre[k, label]).square().mean()) if count else 0.0
        assert float(term[k].detach()) == pytest.approx(expected, rel=1e-4)
    grads = torch.autograd.grad(term.sum(), [params["layer1.weight"], params["layer2.weight"]])
    assert [bool(grad[k].abs().max() > 0) for grad in grads for k in range(4)] == 2 * [bool(t > 0) for t in term]
    assert int((term > 0).sum()) >= 3


def test_class_means_are_pulled_together(world: World) -> None:
    spread = []
    for weight in (0.0, 1.0, 10.0):
        method = small(FedProto, proto_weight=weight)
        cohort = EmbeddedCohort.start(method, world.clients, world.task)
        server = method.init_server(world.task)
        for _ in range(15):
            server = method.round(server, cohort)
        kept = cohort.states()[0].params
        assert torch.equal(kept[PROTOTYPES][0], kept[PROTOTYPES][3])
        embedding = method.backbone(world.task).embed(kept, world.clients)
        found = prototypes(embedding[world.clients.train.nodes], _whole_batch(world.clients), 3)[PROTOTYPES]
        spread.append(float((found[0] - found[1]).norm()))
    assert spread[0] > spread[1] > spread[2]


def test_only_prototypes_travel(world: World) -> None:
    heard: list[Message] = []

    class Listener:
        def record(self, number: int, step: str, direction: str, message: Message) -> None:
            heard.extend([message] if step == "local_update" else [])

    run_to_end(small(FedProto), world.clients, world.task, ledger=Listener())
    assert len(heard) == 4
    for message in heard:
        tensors = {path: tuple(t.shape[1:]) for path, t in message.tensors().items()}
        assert tensors.pop(f"params.{PROTOTYPES}") == (3, 8)
        assert tensors.pop(f"params.{COUNTS}") == (3,)
        assert set(tensors) <= {"weight", "loss"}


def test_prediction_by_the_nearest_prototype(world: World) -> None:
    method = small(FedProto, predict_by="prototype")
    assert isinstance(method, FedProto)
    graph, task = world.clients, world.task
    params = {n: v.expand(4, *v.shape[1:]) for n, v in method.initial_params(task).items()}
    embedding = _embedding(method, graph, world)
    centre = torch.stack([embedding[5], embedding[17], embedding[40]]).expand(4, 3, 8)
    known = torch.tensor([[1.0, 1.0, 0.0]]).expand(4, 3)
    scores = method.predict(graph, Model(graph.ids, params | {PROTOTYPES: centre, COUNTS: known}), task)
    distance = torch.stack([(embedding - centre[0, j]).norm(dim=1) for j in range(2)], 1)
    assert torch.equal(scores.argmax(1), distance.argmin(1))
    assert int(scores[5].argmax()) == 0
    assert int(scores[17].argmax()) == 1
    end = run_to_end(method, graph, task)
    assert torch.isfinite(end.scores.tensors()["loss"]).all()


def test_a_client_s_network_can_be_exported(world: World) -> None:
    method = small(FedProto)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.round(method.init_server(world.task), cohort)
    deployed = method.deploy(server, cohort.ids)
    models = cohort.peek(lambda clients: method.assemble(clients, deployed.select(clients.ids)))
    module = to_pyg(models.params, method.model, 40, 3, row=1)
    data = world.clients.client_data(1)
    own = method.predict(world.clients.select([world.clients.ids[1]]), models.select([world.clients.ids[1]]), world.task)
    torch.testing.assert_close(module(data.x, data.edge_index), own, rtol=1e-4, atol=1e-5)
    assert ending(method, server, cohort).scores.ids == world.clients.ids


def test_prototypes_do_not_predict_links(world: World) -> None:
    linked = with_links(world)
    with pytest.raises(ConfigError, match="predict_by prototype is for nodes"):
        EmbeddedCohort.start(small(FedProto, predict_by="prototype"), linked.clients, linked.task)


def with_links(world: World) -> World:
    """The three clients that have edges enough, some of them held out."""
    graph = hide_links(world.clients.select(world.clients.ids[:3]), SplitSettings(), 0)
    return replace(world, clients=graph, task=replace(world.task, classes=8, link=True))


def test_prototypes_of_linked_and_unlinked_pairs_by_hand(world: World) -> None:
    linked = with_links(world)
    graph = linked.clients
    batch = _whole_batch(graph)
    assert batch.links is not None and graph.pairs is not None
    embedding = torch.randn(batch.view.nodes.numel(), 5, generator=torch.Generator().manual_seed(2))
    found = prototypes(embedding, batch, 2)
    row = {int(node): k for k, node in enumerate(batch.view.nodes)}
    edges = graph.pairs.nodes[:, graph.pairs.role == 1].T.tolist()
    for k in range(3):
        own = [(u, v) for u, v in edges if int(graph.segments.client[u]) == k]
        mean = torch.stack([embedding[row[u]] * embedding[row[v]] for u, v in own]).mean(0)
        torch.testing.assert_close(found[PROTOTYPES][k, 1], mean)
        assert found[COUNTS][k].tolist() == [len(own), len(own)]
    assert not torch.allclose(found[PROTOTYPES][:, 0], found[PROTOTYPES][:, 1])


def test_only_two_prototypes_travel_in_link_prediction(world: World) -> None:
    linked = with_links(world)
    method = small(FedProto)
    cohort = EmbeddedCohort.start(method, linked.clients, linked.task)
    server = method.round(method.init_server(linked.task), cohort)
    assert tuple(server.params[PROTOTYPES].shape) == (1, 2, 8)
    assert float(server.params[COUNTS].min()) > 0
