"""Properties that every registered method has, present and future."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    TOLERANCE,
    World,
    assert_same,
    assert_separable,
    beginning,
    ending,
    permuted,
    run_to_end,
    small,
    small_world,
)

from suture.core.message import Message, Model
from suture.core.streams import Streams
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.federation.wire.signatures import wire_types
from suture.graph.links import hide_from_uncut, hide_links
from suture.method import Clients, Method, step
from suture.methods import METHODS
from suture.methods.averaging import Averaging, Kept, Up
from suture.methods.fedavg import FedAvg
from suture.runs.checkpoint import load_checkpoint, save_checkpoint
from suture.settings import SplitSettings
from suture.training.batches import batches

EVERY_METHOD = pytest.mark.parametrize("name", list(METHODS))


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


@EVERY_METHOD
def test_separable(name: str, world: World) -> None:
    assert_separable(small(METHODS[name]), world)


@EVERY_METHOD
def test_separable_with_partial_participation(name: str, world: World) -> None:
    assert_separable(small(METHODS[name], training={"participation": 0.5}), world)


@EVERY_METHOD
def test_the_order_of_clients_does_not_matter(name: str, world: World) -> None:
    method = small(METHODS[name])
    shuffled = permuted(world, [2, 0, 3, 1])
    first = run_to_end(method, world.graph_for(method), world.task)
    second = run_to_end(method, shuffled.graph_for(method), world.task)
    assert_same(first, second)


@EVERY_METHOD
def test_graphless_clients_can_take_part(name: str, world: World) -> None:
    """Separable and in any order, whatever a graphless client keeps instead of edges."""
    method = small(METHODS[name])
    if not method.accepts_graphless:
        pytest.skip(f"{name} says that it needs everybody's edges; tests/methods/test_graphless.py tests the refusal")
    graphless = world.without_edges("owner-birch", "owner-dogwood")
    assert_separable(method, graphless)
    shuffled = permuted(graphless, [2, 0, 3, 1])
    first = run_to_end(method, graphless.graph_for(method), world.task)
    assert_same(first, run_to_end(method, shuffled.graph_for(method), world.task))
    assert all(bool(tensor.isfinite().all()) for tensor in first.scores.tensors().values())


@EVERY_METHOD
def test_resumes_after_any_iteration(name: str, world: World, tmp_path: Path) -> None:
    method = small(METHODS[name])
    graph = world.graph_for(method)
    undisturbed = run_to_end(method, graph, world.task)
    iterations = [phase for phase in method.plan() for _ in range(phase.times)]
    for stop in range(1, len(iterations)):
        folder = tmp_path / str(stop)
        cohort = EmbeddedCohort.start(method, graph, world.task)
        server = method.init_server(world.task)
        for phase in iterations[:stop]:
            server = phase.body(server, cohort)
        states = {f"clients-{i}": state for i, state in enumerate(cohort.states())}
        save_checkpoint(folder, {"asked": cohort.asked, "iteration": stop}, {"server": server, **states})

        saved = load_checkpoint(folder)
        assert saved is not None
        again = EmbeddedCohort.start(method, graph, world.task)
        kinds = [type(state) for state in again.states()]
        restored = [saved.records[f"clients-{i}"].as_record(kind) for i, kind in enumerate(kinds)]
        again.restore(restored, int(str(saved.progress["asked"])))
        server = saved.records["server"].as_record(type(server))
        for phase in iterations[stop:]:
            server = phase.body(server, again)
        assert_same(undisturbed, ending(method, server, again), tolerance=0.0)


NODES_ONLY = {"fedggr", "fedgls"}
"""Their losses are stated for classes of nodes; they must say so."""


@EVERY_METHOD
def test_links_can_be_predicted(name: str, world: World) -> None:
    """Under the settings of the link protocol: no head, outputs are embeddings; clients train alone as together."""
    method = small(METHODS[name])
    method = dataclasses.replace(method, model=dataclasses.replace(method.model, head=False))
    clients = hide_links(world.clients.select(world.clients.ids[:3]), SplitSettings(), 0)
    whole = hide_from_uncut(world.whole, clients, clients.node_id)
    task = dataclasses.replace(world.task, classes=8, link=True)
    if name in NODES_ONLY:
        with pytest.raises(ConfigError, match="choose another method"):
            run_to_end(method, clients, task)
        return
    assert_separable(method, World(clients, whole, task))
    scores = run_to_end(method, whole if method.sees_uncut_graph else clients, task).scores.tensors()
    assert float(scores["value"][:, 1:].min()) >= 0 and float(scores["value"].max()) <= 1
    # The uncut graph holds nothing out of its own: it is tested on the clients' pairs.
    assert method.sees_uncut_graph or int(scores["total"][:, 1:].min()) > 0


class _Listener:
    """A ledger that keeps the messages themselves."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        self.heard.append(message)


@EVERY_METHOD
def test_messages_are_closed(name: str, world: World) -> None:
    """Every message survives bytes, and is as large on the wire as the ledger says."""
    method = small(METHODS[name])
    listener = _Listener()
    run_to_end(method, world.graph_for(method), world.task, ledger=listener)
    assert listener.heard
    for message in listener.heard:
        for client, size in zip(message.ids, message.nbytes(), strict=True):
            packed = message.select([client]).pack()
            assert len(packed) == size
            copy = type(message).unpack(packed)
            assert copy.ids == (client,)
            for path, tensor in message.select([client]).tensors().items():
                assert torch.equal(copy.tensors()[path], tensor), path


@EVERY_METHOD
def test_no_message_carries_a_feature_row_a_label_list_or_an_edge_list(name: str, world: World) -> None:
    """Search what clients send for anything that equals their private data."""
    method = small(METHODS[name])
    listener = _Listener()
    graph = world.graph_for(method)
    run_to_end(method, graph, world.task, ledger=listener)
    features = graph.x.dense()
    for message in listener.heard:
        for path, tensor in message.tensors().items():
            if tensor.ndim >= 1 and tensor.shape[-1] == features.shape[1] and tensor.is_floating_point():
                distance = torch.cdist(tensor.reshape(-1, features.shape[1]), features)
                assert float(distance.min()) > 1e-6, f"{path} holds a feature row"
            assert tensor.numel() < graph.num_nodes or tensor.is_floating_point(), f"{path} could be a list of nodes"


@EVERY_METHOD
def test_every_loss_term_has_a_gradient(name: str, world: World) -> None:
    method = small(METHODS[name])
    if not isinstance(method, Averaging):
        pytest.skip(f"{name} is not trained through Averaging's loss terms; its own test file checks its terms")
    graph = world.graph_for(method)
    received = tile(method.initial_params(world.task), len(graph.ids))
    params = {key: (value + 0.1).clone().requires_grad_() for key, value in received.items()}
    rng = Streams.of(0, graph.ids, "test")
    batch = next(batches(graph, method.training, rng))
    for term, loss in method.loss_terms(params, batch, received, beginning(method, graph, world.task)).items():
        grads = torch.autograd.grad(loss.sum(), list(params.values()), allow_unused=True, retain_graph=True)
        largest = max(float(grad.abs().max()) for grad in grads if grad is not None)
        assert largest > 0, f"{term} has no gradient"


@EVERY_METHOD
def test_only_declared_steps_can_be_asked(name: str, world: World) -> None:
    method = small(METHODS[name])
    cohort = EmbeddedCohort.start(method, world.graph_for(method), world.task)
    with pytest.raises(TypeError, match="not a declared step"):
        cohort.ask(lambda clients, message: (clients.state, message), Model(cohort.ids, {}))


@EVERY_METHOD
def test_evaluating_more_often_changes_nothing(name: str, world: World) -> None:
    method = small(METHODS[name])
    graph = world.graph_for(method)
    plain = run_to_end(method, graph, world.task)
    cohort = EmbeddedCohort.start(method, graph, world.task)
    server = method.init_server(world.task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
            cohort.evaluate(method.deploy(server, cohort.ids))
    assert_same(plain, ending(method, server, cohort), tolerance=0.0)


@dataclass(frozen=True)
class Leaking(FedAvg):
    """FedAvg whose clients peek at each other's training loss through the shared batch."""

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        state, up = super().local_update(clients, down)
        return state, dataclasses.replace(up, params={k: v + 0.01 * up.loss.mean() for k, v in up.params.items()})


@dataclass(frozen=True)
class LeakingThroughTheGraph(FedAvg):
    """FedAvg whose clients weigh themselves by how large they are among all clients of the batch."""

    def weight(self, clients: Clients[Kept]) -> torch.Tensor:
        return super().weight(clients) / clients.graph.num_nodes + 0.1 * clients.graph.y.float().mean()


@pytest.mark.parametrize("leak", [Leaking, LeakingThroughTheGraph])
def test_separable_catches_a_leaking_step(leak: type[Method[Any, Any]], world: World) -> None:
    with pytest.raises(AssertionError):
        assert_separable(small(leak), world)


@dataclass(frozen=True)
class Taped(FedAvg):
    """FedAvg that forgets to detach what it sends."""

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        state, up = super().local_update(clients, down)
        return state, dataclasses.replace(up, loss=up.loss.clone().requires_grad_() * 2)


def test_no_autograd_tape_crosses_a_step(world: World) -> None:
    with pytest.raises(ValueError, match="autograd tape"):
        run_to_end(small(Taped), world.clients, world.task)


def test_tolerance_is_tight_enough_to_mean_something() -> None:
    assert TOLERANCE <= 2e-5


@EVERY_METHOD
def test_owners_know_every_message(name: str, world: World) -> None:
    """Between processes a message is looked up among those that the modules of the method's classes know."""
    method, known = small(METHODS[name]), wire_types(METHODS[name])

    class Listener:
        def record(self, number: int, step: str, direction: str, message: Message) -> None:
            assert known[type(message).__name__] is type(message), f"{step} {direction}"

    run_to_end(method, world.graph_for(method), world.task, ledger=Listener())
