"""FedGram against computations over everybody's rows, its reduction to FedAvg, and what it must not use or send."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from harness import World, small, small_world
from numpy.testing import assert_allclose
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.message import Model, Nothing, Rows
from suture.core.streams import Streams
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.engines.sealed import SealedCohort
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, View
from suture.graph.embeddings import MendedFeatures, with_embeddings
from suture.graph.features import Features
from suture.method import Clients
from suture.methods.fedavg import FedAvg
from suture.methods.fedgram import FedGram
from suture.methods.fedgram.sure import UNSURE, stage_at
from suture.nn.backbones import BESIDE, make_backbone
from suture.nn.sampler import sample_batch
from suture.settings import ModelSettings

LARGE = 100
"""More directions than there are features."""


def with_features(world: World, change: Any) -> World:
    """The world with other features, by a function of the node's number and its features."""
    graph = world.clients
    matrix = change(graph.node_id, graph.x.dense())
    return dataclasses.replace(world, clients=dataclasses.replace(graph, x=Features(matrix, graph.segments)))


def words(_: Tensor, x: Tensor) -> SparseMatrix:
    """Counts of words, few of which a node has."""
    counts = torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.2, x.abs().ceil() + 1, 0.0)
    row, col = counts.nonzero().T
    return SparseMatrix.from_coo(row, col, counts[row, col], (x.shape[0], x.shape[1]))


def numbers(_: Tensor, x: Tensor) -> Tensor:
    """Numbers that are never zero, on very different scales, of no more than six directions."""
    rng = torch.Generator().manual_seed(6)
    narrow = torch.randn(x.shape[0], 6, generator=rng) @ torch.randn(6, x.shape[1], generator=rng)
    return (narrow + 3) * torch.logspace(-2, 2, x.shape[1])


def run(method: Any, world: World, engine: Any = EmbeddedCohort) -> tuple[Any, Any]:
    """(the server, the clients) after the last round; clients know the number of each."""
    cohort, server = engine.start(method, world.clients, world.task), method.init_server(world.task)
    for phase in method.plan():
        for number in range(phase.times):
            cohort.begin(phase.name, number + 1)
            server = phase.body(server, cohort)
    return server, cohort


def look_at(cohort: Any, look: Any) -> Any:
    """What a function finds at the clients."""
    found: list[Any] = []

    def noting(clients: Clients[Any]) -> Nothing:
        found.append(look(clients))
        return Nothing(clients.ids)

    cohort.peek(noting)
    return found[0]


def rows_by_hand(x: np.ndarray) -> np.ndarray:
    """T of line 1, from everybody's rows."""
    filled = x != 0
    if filled.mean() < 0.5:
        held = filled.sum(0)
        size = np.abs(x).sum(0) / np.maximum(held, 1)
        scaled = x / np.where(size > 0, size, 1) * np.log(np.maximum(len(x) / (1 + held), 1))
    else:
        deviation = x.std(0)
        scaled = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize(("features", "rank"), [(words, LARGE), (numbers, LARGE), (numbers, 6)])
def test_what_a_node_hears_is_what_everybodys_rows_say(features: Any, rank: int) -> None:
    world = with_features(small_world(), features)
    method = small(FedGram, rank=rank, strength=1.0, ridge=0.5, fewest=1, stages=0, training={"rounds": 1})
    server, cohort = run(method, world)
    graph = look_at(cohort, lambda clients: method.seen(clients, training=True))
    t = rows_by_hand(world.clients.x.dense().double().numpy())
    basis = server.gram["basis"][0].double().numpy()
    width = basis.shape[1]
    heard = graph.x.embedding.double().numpy()

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    # Line 5, without any basis: one step of message passing over the similarities of all pairs.
    assert_allclose(heard[:, :width] @ basis.T, unit(t @ t.T @ t), atol=1e-5)
    # Line 6, in the coordinates of V, edge by edge.
    z = t @ basis
    ends, crossed = 0.5 * np.eye(width), np.zeros((width, width))
    for source, target in world.clients.edge_index.T.tolist():
        ends += np.outer(z[target], z[target])
        crossed += np.outer(z[target], z[source])
    assert_allclose(heard[:, width:], unit(z @ np.linalg.solve(ends, crossed)), atol=1e-4)


def test_fewer_directions_are_those_of_the_largest_eigenvalues() -> None:
    world = with_features(small_world(), words)
    server, _ = run(small(FedGram, rank=5, power=300, training={"rounds": 1}), world)
    t = rows_by_hand(world.clients.x.dense().double().numpy())
    value, vector = np.linalg.eigh(t.T @ t)
    assert_allclose(server.gram["gram"][0], value[::-1][:5], rtol=1e-4)
    basis, leading = server.gram["basis"][0].double().numpy(), vector[:, ::-1][:, :5]
    assert_allclose(basis @ basis.T, leading @ leading.T, atol=1e-2)


def test_without_sums_and_pseudo_labels_it_is_fedavg() -> None:
    world = small_world()
    server, cohort = run(small(FedGram, rank=0, stages=0), world)
    other, others = run(small(FedAvg), world)
    for name, value in other.params.items():
        assert torch.equal(server.params[name], value)
    assert server.params.keys() == other.params.keys()
    mine, theirs = (each.evaluate(Nothing(each.ids)) for each in (cohort, others))
    assert torch.equal(mine.value, theirs.value)


def test_secure_sums_lead_to_the_same_model() -> None:
    world, method = small_world(), small(FedGram, training={"rounds": 4})
    plain, _ = run(method, world)
    sealed, _ = run(method, world, SealedCohort)
    for name, value in plain.params.items():
        torch.testing.assert_close(sealed.params[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fewest", [5, 11])
def test_owners_with_few_nodes_add_nothing(fewest: int) -> None:
    world = small_world()
    last = world.clients.segments.client == 3  # has ten nodes
    strange = with_features(world, lambda _, x: torch.where(last.unsqueeze(1), x * 2 + 1, x))
    method = small(FedGram, fewest=fewest, training={"rounds": 1})
    grams = [run(method, each)[0].gram for each in (world, strange)]
    same = all(torch.equal(grams[0][name], grams[1][name]) for name in grams[0])
    assert same == (fewest > 10)


def test_owners_with_few_edges_add_none() -> None:
    world = small_world()
    owner = world.clients.segments.client[world.clients.edge_index[1]]
    few = int(torch.bincount(owner).min())
    assert few > 0
    method = small(FedGram, fewest=few + 1, training={"rounds": 1})
    without = world.without_edges(world.clients.ids[int(torch.bincount(owner).argmin())])
    grams = [run(method, each)[0].gram for each in (world, without)]
    torch.testing.assert_close(grams[0]["generator"], grams[1]["generator"], rtol=0, atol=0)


# Pseudo-labels


@pytest.mark.parametrize(
    ("stages", "begin", "expected"),
    [(2, 0.5, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2]), (1, 0.0, [0, *[1] * 10]), (0, 0.5, [0] * 11), (3, 0.9, [0] * 10 + [1])],
)
def test_when_nodes_are_asked(stages: int, begin: float, expected: list[int]) -> None:
    assert [stage_at(number, 10, begin, stages) for number in range(11)] == expected


def pseudo(**values: Any) -> Any:
    """With pseudo-labels from the third of four rounds on."""
    training = {"rounds": 4, "local_epochs": 6, "lr": 0.1}
    asked = {"begin": 0.5, "stages": 1, "sure": 0.4, "model": {"dropout": 0.0}, "training": training}
    return small(FedGram, **{**asked, **values})


def test_sure_nodes_train_with_the_class_the_received_model_gives_them() -> None:
    world, method = small_world(), pseudo()
    cohort, server = EmbeddedCohort.start(method, world.clients, world.task), method.init_server(world.task)
    *sums, rounds = method.plan()
    for phase in sums:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    for number in (1, 2):
        cohort.begin("round", number)
        server = rounds.body(server, cohort)
    received = method.deploy(server, cohort.ids)
    out = look_at(cohort, lambda clients: method.outputs(clients, method.assemble(clients, received))[1]).detach()
    likely, found = torch.softmax(out, 1).max(1)
    expected = torch.where((likely > 0.4) & (world.clients.role != 1), found, UNSURE)
    assert 0 < int((expected != UNSURE).sum()) < world.clients.num_nodes
    assert bool((look_at(cohort, lambda clients: clients.state.classes.values) == UNSURE).all())
    cohort.begin("round", 3)
    server = rounds.body(server, cohort)
    assert torch.equal(look_at(cohort, lambda clients: clients.state.classes.values), expected)
    training = look_at(cohort, lambda clients: method.seen(clients, training=True))
    assert torch.equal(training.train.nodes, torch.nonzero((world.clients.role == 1) | (expected >= 0)).squeeze(1))
    assert torch.equal(training.y, torch.where(expected >= 0, expected, world.clients.y))
    tested = look_at(cohort, lambda clients: method.seen(clients, training=False))
    assert torch.equal(tested.y, world.clients.y)
    assert torch.equal(tested.role, world.clients.role)


def test_labels_of_nodes_that_do_not_train_are_never_used() -> None:
    world, method = small_world(), pseudo()
    graph = world.clients
    hidden = torch.where(graph.role == 1, graph.y, (graph.y + 1) % world.task.classes)
    other = dataclasses.replace(world, clients=dataclasses.replace(graph, y=hidden))
    first, second = run(method, world)[0], run(method, other)[0]
    assert all(torch.equal(value, second.params[name]) for name, value in first.params.items())


@pytest.mark.parametrize("sure", [0.4, 1.0])
def test_nobody_is_surer_than_certain(sure: float) -> None:
    world = small_world()
    with_, without = run(pseudo(sure=sure), world)[0], run(pseudo(stages=0), world)[0]
    assert torch.equal(with_.params["layer1.weight"], without.params["layer1.weight"]) == (sure == 1.0)


# Where it is used


def test_predictions_for_nodes_that_come_later_need_the_model_alone() -> None:
    world, method = small_world(), small(FedGram)
    server, cohort = run(method, world)
    model = cohort.retain(method.deploy(server, cohort.ids), cohort.ids)
    seen = look_at(cohort, lambda clients: method.outputs(clients, model)[1])
    again = method.predict(dataclasses.replace(world.clients), Model(model.ids, dict(model.params)), world.task)
    torch.testing.assert_close(seen, again)
    without = {name: value for name, value in model.params.items() if name != BESIDE}
    assert not torch.allclose(seen, method.predict(world.clients, Model(model.ids, without), world.task))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "gprgnn", "mlp"])
def test_the_first_layer_of_every_network_hears_what_nodes_carry(kind: str) -> None:
    """One layer is linear: what is carried adds its product, whichever nodes are asked for."""
    world = small_world()
    network = make_backbone(ModelSettings(kind=kind, layers=1, heads=1, hops=1), 40, 3)
    params = tile(network.init(torch.Generator().manual_seed(0)), 4)
    z = torch.randn(world.clients.num_nodes, 7, generator=torch.Generator().manual_seed(1))
    params[BESIDE] = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(2))
    more = torch.einsum("nd,ndc->nc", z, params[BESIDE][world.clients.segments.client])
    if kind == "gprgnn":
        gamma = params["hops.gamma"][0]
        more = gamma[0] * more + gamma[1] * world.clients.gcn_operator.times(more)
    graph = with_embeddings(world.clients, z)
    plain, out = network.logits(params, world.clients), network.logits(params, graph)
    torch.testing.assert_close(out, plain + more)
    some = View(graph, torch.tensor([3, 60, 119]))
    torch.testing.assert_close(network.logits(params, graph, view=some), out[some.nodes], rtol=1e-4, atol=1e-5)
    if kind == "sage":
        sampled = sample_batch(graph, some.nodes, (1000,), Streams.of(0, graph.ids, "sample"), replace=False)
        assert isinstance(sampled.inputs, MendedFeatures)
        torch.testing.assert_close(network.sampled_logits(params, sampled), out[some.nodes], rtol=1e-4, atol=1e-5)


def test_a_graphless_owner_hears_as_much() -> None:
    world, method = small_world(), small(FedGram, training={"rounds": 1})
    _, cohort = run(method, world.without_edges("owner-ash"))
    graph: GraphBatch = look_at(cohort, lambda clients: method.seen(clients, training=False))
    assert isinstance(graph.x, MendedFeatures)
    assert float(graph.x.embedding[:50].norm(dim=1).min()) > 1


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"training": {"dp_sigma": 1.0}}, "set fedgram.stages=0"),
        ({"model": {"kind": "gap"}}, "choose a method that does not"),
    ],
)
def test_refusals(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        small(FedGram, **values)


def test_a_network_of_ones_own_is_refused() -> None:
    world = small_world()
    task = dataclasses.replace(world.task, module=lambda features, classes: torch.nn.Linear(features, classes))
    with pytest.raises(ConfigError, match=r"set fedgram\.rank=0"):
        small(FedGram).init_server(task)


def test_several_labels_and_links_have_no_pseudo_labels() -> None:
    world, method = small_world(), pseudo(sure=0.0)
    graph = world.clients
    target = dataclasses.replace(graph.target, kind="labels")
    several = dataclasses.replace(graph, y=torch.nn.functional.one_hot(graph.y, 3).float(), target=target)
    _, cohort = run(method, dataclasses.replace(world, clients=several))
    classes: Rows = look_at(cohort, lambda clients: clients.state.classes)
    assert bool((classes.values == UNSURE).all())
