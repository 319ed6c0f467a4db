"""What holds for every method: functions of a method's class and hyper-parameters that fail where it does not."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch

from suture.core.message import UNDECLARED, Message, Model
from suture.core.message import Kind as Tells
from suture.core.streams import Streams
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.federation.wire.signatures import signature, wire_types
from suture.graph.links import hide_from_uncut, hide_links
from suture.method import Clients, Method
from suture.methods.averaging import Averaging
from suture.runs.checkpoint import load_checkpoint, save_checkpoint
from suture.settings import SplitSettings
from suture.testing.extremes import extremes
from suture.testing.world import (
    TOLERANCE,
    Folding,
    World,
    assert_close,
    assert_finite,
    assert_same,
    assert_separable,
    carried_out,
    ending,
    odd_world,
    run_to_end,
    small,
    small_world,
    weighted_world,
)
from suture.training.batches import batches

Kind = type[Method[Any, Any]]
Property = Callable[[Kind, Mapping[str, Any]], None]
ANOTHER_ORDER = [2, 0, 3, 1]


def separable(kind: Kind, values: Mapping[str, Any]) -> None:
    """All clients at once, one at a time, and one at a time through bytes end alike."""
    assert_separable(small(kind, **values), small_world())


def separable_with_partial_participation(kind: Kind, values: Mapping[str, Any]) -> None:
    """The same where only half of the clients are asked in a round."""
    training = {**values.get("training", {}), "participation": 0.5}
    assert_separable(small(kind, **{**values, "training": training}), small_world())


def order_of_clients_does_not_matter(kind: Kind, values: Mapping[str, Any]) -> None:
    """Content is routed by name, never by position."""
    method, world = small(kind, **values), small_world()
    shuffled = world.permuted(ANOTHER_ORDER)
    first = run_to_end(method, world.graph_for(method), world.task)
    assert_same(first, run_to_end(method, shuffled.graph_for(method), world.task))


def graphless_clients_can_take_part(kind: Kind, values: Mapping[str, Any]) -> None:
    """Separable, in any order and finite, whatever a graphless client keeps instead of edges."""
    method = _accepting(kind, values)
    world = small_world().without_edges("owner-birch", "owner-dogwood")
    first = assert_separable(method, world)
    shuffled = world.permuted(ANOTHER_ORDER)
    assert_same(first, run_to_end(method, shuffled.graph_for(method), world.task))
    assert_finite(first)


def odd_clients_can_take_part(kind: Kind, values: Mapping[str, Any]) -> None:
    """The same with a client that has one node, and one whose nodes are all of one class."""
    assert_finite(assert_separable(_accepting(kind, values), odd_world(), by_bytes=TOLERANCE))


def direction_and_weights_are_borne(kind: Kind, values: Mapping[str, Any]) -> None:
    """Separable and finite where edges have a direction and weights; or refused in a sentence, a `ConfigError`."""
    try:
        assert_finite(assert_separable(small(kind, **values), weighted_world(), by_bytes=TOLERANCE))
    except ConfigError as error:
        raise SkipTest(f"it refuses: {error}") from error


def extreme_hyper_parameters_are_borne(kind: Kind, values: Mapping[str, Any]) -> None:
    """Every hyper-parameter at the ends of what it may be, one at a time: separable and finite, or refused in a sentence."""
    _accepting(kind, values)
    training = {**values.get("training", {}), "rounds": 2, "local_epochs": 1}
    world = odd_world()
    for extreme in extremes(kind):
        try:
            method = small(kind, **{**values, "training": training, extreme.name: extreme.value})
        except ConfigError:
            continue
        try:
            # Without an end there is always a value that makes training chaotic: rounding then leads somewhere else.
            alike = assert_separable(method, world, by_bytes=None) if extreme.end else None
            assert_finite(alike or run_to_end(method, world.graph_for(method), world.task))
        except Exception as error:
            raise AssertionError(f"with {extreme.name} = {extreme.value!r}: {type(error).__name__}: {error}") from error


def resumes_after_any_iteration(kind: Kind, values: Mapping[str, Any]) -> None:
    """Stopped after any iteration and gone on with from a checkpoint, a run ends with the same digits."""
    method, world = small(kind, **values), small_world()
    graph = world.graph_for(method)
    undisturbed = run_to_end(method, graph, world.task)
    iterations = [phase for phase in method.plan() for _ in range(phase.times)]
    for stop in range(1, len(iterations)):
        cohort = EmbeddedCohort.start(method, graph, world.task)
        server = method.init_server(world.task)
        for phase in iterations[:stop]:
            server = phase.body(server, cohort)
        states = {f"clients-{i}": state for i, state in enumerate(cohort.states())}
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Path(folder), {"asked": cohort.asked, "iteration": stop}, {"server": server, **states})
            saved = load_checkpoint(Path(folder))
        assert saved is not None
        again = EmbeddedCohort.start(method, graph, world.task)
        kinds = [type(state) for state in again.states()]
        restored = [saved.records[f"clients-{i}"].as_record(kept) for i, kept in enumerate(kinds)]
        again.restore(restored, int(str(saved.progress["asked"])))
        server = saved.records["server"].as_record(type(server))
        for phase in iterations[stop:]:
            server = phase.body(server, again)
        assert_same(undisturbed, ending(method, server, again), tolerance=0.0)


class _Keeping(EmbeddedCohort[Any]):
    overwrites = False


def what_is_spent_is_not_missed(kind: Kind, values: Mapping[str, Any]) -> None:
    """An engine that keeps what clients had before a step ends with the same digits as one that lets it be written over."""
    method, world = small(kind, **values), small_world()
    graph = world.graph_for(method)
    cohorts = [engine.start(method, graph, world.task) for engine in (EmbeddedCohort, _Keeping)]
    one, other = (ending(method, carried_out(method, cohort, world.task), cohort) for cohort in cohorts)
    assert_same(one, other, tolerance=0.0)


def links_can_be_predicted(kind: Kind, values: Mapping[str, Any]) -> None:
    """Outputs are embeddings, without a head; a method that cannot do that says so with a `ConfigError`."""
    method = small(kind, **values)
    method = dataclasses.replace(method, model=dataclasses.replace(method.model, head=False))
    world = small_world()
    clients = hide_links(world.clients.select(world.clients.ids[:3]), SplitSettings(), 0)
    whole = hide_from_uncut(world.whole, clients, clients.node_id)
    task = dataclasses.replace(world.task, classes=8, link=True)
    try:
        end = assert_separable(method, World(clients, whole, task))
    except ConfigError as error:
        raise SkipTest(f"it refuses: {error}") from error
    scores = end.scores.tensors()
    assert float(scores["value"][:, 1:].min()) >= 0, "a score is negative"
    assert float(scores["value"].max()) <= 1, "a score is above 1"
    # The uncut graph holds nothing out of its own: it is tested on the clients' pairs.
    assert method.sees_uncut_graph or int(scores["total"][:, 1:].min()) > 0, "a client was not tested"


def owners_understand_every_message(kind: Kind, values: Mapping[str, Any]) -> None:
    """Between processes a message is unpacked as what its step declares, or as one that the method's modules know."""
    known = wire_types(kind)
    for step, direction, message in _heard(kind, values):
        declared = signature(kind, step).message if direction == "down" else signature(kind, step).reply
        expected, got = declared or known.get(type(message).__name__), type(message)
        assert got is expected, (
            f"{step} declares {expected and expected.__name__} on its way {direction}, got {got.__name__}"
        )


def messages_are_closed(kind: Kind, values: Mapping[str, Any]) -> None:
    """Every message survives bytes, is as large as the ledger says, and says what kind of thing each field tells."""
    for _, _, message in _heard(kind, values):
        for path in message.tensors():
            told = type(message).kind_of(path) or UNDECLARED
            assert told != UNDECLARED, f"{path} of {type(message).__name__} does not say its Kind"
        for client, size in zip(message.ids, message.nbytes(), strict=True):
            packed = message.select([client]).pack()
            assert len(packed) == size, f"{type(message).__name__} has {len(packed)} bytes, and says {size}"
            copy = type(message).unpack(packed)
            assert copy.ids == (client,)
            for path, tensor in message.select([client]).tensors().items():
                assert torch.equal(copy.tensors()[path], tensor), f"{path} does not survive bytes"


def no_message_carries_private_data(kind: Kind, values: Mapping[str, Any]) -> None:
    """No feature row, no list of labels, no list of edges in anything that clients send or get.

    Addresses of nodes to which owners know links are lists of nodes, and are declared as what they are.
    """
    graph = small_world().graph_for(small(kind, **values))
    features = graph.x.dense()
    for _, _, message in _heard(kind, values):
        for path, tensor in message.tensors().items():
            if tensor.ndim >= 1 and tensor.shape[-1] == features.shape[1] and tensor.is_floating_point():
                distance = torch.cdist(tensor.reshape(-1, features.shape[1]).to(features.dtype), features)
                assert float(distance.min()) > 1e-6, f"{path} holds a feature row"
            named = type(message).kind_of(path) == Tells.ADDRESSES
            fewer = tensor.numel() < graph.num_nodes
            assert fewer or named or tensor.is_floating_point(), f"{path} could be a list of nodes, and does not say so"


def every_loss_term_has_a_gradient(kind: Kind, values: Mapping[str, Any]) -> None:
    """A term of the loss that moves no parameter is a mistake."""
    method, world = small(kind, **values), small_world()
    if not isinstance(method, Averaging):
        raise SkipTest(f"{kind.__name__} is not trained through Averaging's loss terms; test its terms yourself")
    graph = world.graph_for(method)
    cohort, server = EmbeddedCohort.start(method, graph, world.task), method.init_server(world.task)
    for phase in method.plan():
        server = phase.body(server, cohort)
    # After a round, because what a client keeps may be zero before the first.
    clients = Clients(graph, cohort.states()[0], Streams.of(0, graph.ids, "test"), world.task)
    received = tile(method.initial_params(world.task), len(graph.ids))
    params = {key: (value + 0.1).clone().requires_grad_() for key, value in received.items()}
    batch = next(batches(graph, method.training, clients.rng))
    for term, loss in method.loss_terms(params, batch, received, clients).items():
        grads = torch.autograd.grad(loss.sum(), list(params.values()), allow_unused=True, retain_graph=True)
        assert any(grad is not None and float(grad.abs().max()) > 0 for grad in grads), f"{term} has no gradient"


def only_declared_steps_can_be_asked(kind: Kind, values: Mapping[str, Any]) -> None:
    """Whatever is not decorated with @step is refused."""
    method, world = small(kind, **values), small_world()
    cohort = EmbeddedCohort.start(method, world.graph_for(method), world.task)
    try:
        cohort.ask(lambda clients, message: (clients.state, message), Model(cohort.ids, {}))
    except TypeError as error:
        assert "not a declared step" in str(error), str(error)
    else:
        raise AssertionError("a step that was not declared was run")


def evaluating_more_often_changes_nothing(kind: Kind, values: Mapping[str, Any]) -> None:
    """Tests advance no random stream and no state."""
    method, world = small(kind, **values), small_world()
    graph = world.graph_for(method)
    plain = run_to_end(method, graph, world.task)
    cohort = EmbeddedCohort.start(method, graph, world.task)
    server = method.init_server(world.task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
            cohort.evaluate(method.deploy(server, cohort.ids))
    assert_same(plain, ending(method, server, cohort), tolerance=0.0)


def promised_sums_suffice(kind: Kind, values: Mapping[str, Any]) -> None:
    """Where `sums` promises it, the weighted mean of the replies leads to the same server as the replies themselves."""
    method, world = small(kind, **values), small_world()
    if not method.sums:
        raise SkipTest(f"{kind.__name__} promises no sums, so it runs without secure or robust aggregation")
    graph = world.graph_for(method)
    plain = run_to_end(method, graph, world.task)
    of_sums = run_to_end(method, graph, world.task, shown=Folding)
    assert_close(plain.server, of_sums.server, 1e-4)


class _Listener:
    """A ledger that keeps the messages themselves."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, Message]] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """Keep it."""
        self.heard.append((step, direction, message))


def _heard(kind: Kind, values: Mapping[str, Any]) -> list[tuple[str, str, Message]]:
    """Step, direction and message of everything that is sent in a run."""
    method, world, listener = small(kind, **values), small_world(), _Listener()
    run_to_end(method, world.graph_for(method), world.task, ledger=listener)
    assert listener.heard, "nobody was asked anything"
    return listener.heard


def _accepting(kind: Kind, values: Mapping[str, Any]) -> Method[Any, Any]:
    method = small(kind, **values)
    if not method.accepts_graphless:
        raise SkipTest(f"{kind.__name__} says that it needs everybody's edges")
    return method


PROPERTIES: Mapping[str, Property] = {
    hold.__name__: hold
    for hold in (
        separable,
        separable_with_partial_participation,
        order_of_clients_does_not_matter,
        graphless_clients_can_take_part,
        odd_clients_can_take_part,
        direction_and_weights_are_borne,
        extreme_hyper_parameters_are_borne,
        resumes_after_any_iteration,
        what_is_spent_is_not_missed,
        links_can_be_predicted,
        messages_are_closed,
        owners_understand_every_message,
        no_message_carries_private_data,
        every_loss_term_has_a_gradient,
        only_declared_steps_can_be_asked,
        evaluating_more_often_changes_nothing,
        promised_sums_suffice,
    )
}
