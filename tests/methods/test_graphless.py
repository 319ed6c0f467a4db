"""Clients without edges: how methods without a graph learner treat them, and who is shown what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from harness import World, run_to_end, small, small_world

from suture.core.streams import generator
from suture.core.tree import tile
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.graph.checks import validate
from suture.graph.synthetic import contextual_block_model
from suture.methods import METHODS
from suture.methods.fed_gnnk import FedGnnk, with_nearest_neighbours
from suture.methods.fedavg import FedAvg
from suture.nn.backbones import BACKBONES, make_backbone
from suture.runs.execute import execute
from suture.runs.prepare import Prepared, prepare
from suture.settings import ModelSettings, PartitionSettings, Protocol, TrainingSettings

GRAPHLESS = ("owner-birch", "owner-dogwood")
WITH_EDGES = ("owner-ash", "owner-cedar")


@pytest.fixture(scope="module")
def world() -> World:
    return small_world().without_edges(*GRAPHLESS)


def test_the_batch_knows_who_is_graphless(world: World) -> None:
    assert world.clients.graphless.tolist() == [False, True, False, True]
    assert world.clients.select(["owner-dogwood", "owner-ash"]).graphless.tolist() == [True, False]


@pytest.mark.parametrize("kind", list(BACKBONES))
def test_without_edges_every_backbone_is_a_perceptron(kind: Any, world: World) -> None:
    """A node's output depends on its own features alone, and for a GCN it is that of an MLP with the same weights."""
    graph = world.clients.select(GRAPHLESS)
    settings = ModelSettings(kind=kind, hidden=8, head=True, gap_sigma=0)
    backbone = make_backbone(settings, 40, 3)
    params = tile(backbone.init(generator(0, "weights")), 2)
    out = backbone.logits(params, graph)
    x = graph.x.dense().clone()
    x[1:] = x[1:].roll(1, 0)
    changed = backbone.logits(params, replace(graph, x=Features(x, graph.segments)))
    torch.testing.assert_close(changed[0], out[0])
    assert not torch.allclose(changed[1:], out[1:])
    if kind == "gcn":
        perceptron = make_backbone(replace(settings, kind="mlp"), 40, 3)
        torch.testing.assert_close(out, perceptron.logits(params, graph))


def brute_force_links(x: np.ndarray, k: int) -> set[tuple[int, int]]:
    """Pairs in both directions, from all similarities."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    cosine = (x @ x.T) / np.maximum(length * length.T, 1e-12)
    np.fill_diagonal(cosine, -np.inf)
    pairs = set()
    for i, row in enumerate(cosine):
        for j in np.argsort(-row, kind="stable")[:k]:
            if row[j] > 0:
                pairs |= {(i, int(j)), (int(j), i)}
    return pairs


def links_of(graph: GraphBatch, name: str) -> set[tuple[int, int]]:
    source, target = graph.select([name]).edge_index.tolist()
    return set(zip(source, target, strict=True))


def test_nearest_neighbours_are_those_of_brute_force(world: World) -> None:
    noise = torch.rand(world.clients.num_nodes, 40, generator=torch.Generator().manual_seed(1))
    noise[world.clients.segments.bounds[1] + 3] = 0  # a node of birch without any feature
    graph = replace(world.clients, x=Features(noise, world.clients.segments))
    found = with_nearest_neighbours(graph, 4)
    for name in GRAPHLESS:
        expected = brute_force_links(graph.select([name]).x.dense().double().numpy(), 4)
        assert links_of(found, name) == expected
    assert not any(3 in pair for pair in links_of(found, "owner-birch"))
    for name in WITH_EDGES:
        assert links_of(found, name) == links_of(graph, name)
    owner = found.segments.client[found.edge_index]
    assert torch.equal(owner[0], owner[1])
    assert with_nearest_neighbours(graph, 4) is found
    assert with_nearest_neighbours(graph, 5) is not found


def test_fed_gnnk_trains_and_tests_on_the_linked_graph(world: World) -> None:
    method = small(FedGnnk, neighbours=3)
    plain = FedAvg(model=method.model, training=method.training)
    found = run_to_end(method, world.clients, world.task)
    expected = run_to_end(plain, with_nearest_neighbours(world.clients, 3), world.task)
    for path, value in expected.server.tensors().items():
        torch.testing.assert_close(found.server.tensors()[path], value)
    torch.testing.assert_close(found.scores.tensors()["loss"], expected.scores.tensors()["loss"])


@pytest.mark.parametrize(("name", "plain"), [("fed_gnnk", "fedavg"), ("local_gnnk", "local"), ("fed_gnnmlp", "fedavg")])
def test_without_graphless_clients_nothing_is_added(name: str, plain: str) -> None:
    world = small_world()
    # Without dropout: the question of line 0 in fed_gnnmlp moves the random streams by one.
    first, second = (replace(small(METHODS[key]), model=ModelSettings(hidden=8, dropout=0.0)) for key in (name, plain))
    found, expected = run_to_end(first, world.clients, world.task), run_to_end(second, world.clients, world.task)
    for mine, theirs in zip(found.states, expected.states, strict=True):
        for path, value in theirs.tensors().items():
            torch.testing.assert_close(mine.tensors()[path], value)
    torch.testing.assert_close(found.scores.tensors()["loss"], expected.scores.tensors()["loss"])


def test_fed_mlp_uses_nobodys_edges() -> None:
    with_edges, without = small_world(), small_world().without_edges("owner-ash", *GRAPHLESS)
    method = small(METHODS["fed_mlp"])
    assert method.model.kind == "mlp"
    first, second = (run_to_end(method, one.clients, one.task) for one in (with_edges, without))
    for path, value in first.server.tensors().items():
        assert torch.equal(second.server.tensors()[path], value)


@pytest.mark.parametrize("group", [GRAPHLESS, WITH_EDGES])
def test_fed_gnnmlp_is_fedavg_in_each_group(group: tuple[str, ...], world: World) -> None:
    model = ModelSettings(hidden=8, dropout=0.0)
    both = replace(small(METHODS["fed_gnnmlp"]), model=model)
    kind = "mlp" if group == GRAPHLESS else "gcn"
    alone = FedAvg(model=replace(model, kind=kind), training=both.training)
    found = run_to_end(both, world.clients, world.task)
    expected = run_to_end(alone, world.clients.select(group), world.task)
    models = both.deploy(found.server, group).params
    for name, value in expected.server.tensors().items():
        for row in models[name.removeprefix("params.")]:
            torch.testing.assert_close(row, value[0])


def test_fed_gnnmlp_keeps_the_model_of_a_group_nobody_was_heard_of(world: World) -> None:
    method = small(METHODS["fed_gnnmlp"], training={"participation": 0.25})
    ending = run_to_end(method, world.clients, world.task)
    initial = method.initial_params(world.task)["layer1.weight"][0]
    weights = method.deploy(ending.server, world.clients.ids).params["layer1.weight"]
    moved = [not torch.equal(row, initial) for row in weights]
    assert moved[0] == moved[2]
    assert moved[1] == moved[3]
    assert any(moved)


def prepared(graphless: float) -> tuple[Prepared, Protocol]:
    data = validate(contextual_block_model(nodes=90, classes=3, features=20, degree=5.0, communities=3, seed=0))
    partition = PartitionSettings(kind="random", clients=4, graphless_fraction=graphless)
    training = TrainingSettings(rounds=2, local_epochs=2)
    protocol = Protocol("test", partition=partition, model=ModelSettings(hidden=8), training=training, seeds=(0,))
    return prepare(data, "toy", protocol, 0), protocol


def test_only_fed_gnn_is_shown_the_hidden_edges() -> None:
    """On a cut with graphless clients it does what FedAvg does on the same cut before edges were hidden."""
    (hidden, protocol), (whole, _) = prepared(0.5), prepared(0.0)
    assert int(hidden.clients.graphless.sum()) == 2
    assert not hidden.with_hidden_edges.graphless.any()
    fields = {"model": protocol.model, "training": protocol.training}
    shown = execute(hidden, METHODS["fed_gnn"](**fields), protocol)
    expected = execute(whole, METHODS["fedavg"](**fields), protocol)
    not_shown = execute(hidden, METHODS["fedavg"](**fields), protocol)
    assert shown.shared is not None and expected.shared is not None and not_shown.shared is not None
    assert torch.equal(shown.shared.params["layer1.weight"], expected.shared.params["layer1.weight"])
    assert not torch.equal(not_shown.shared.params["layer1.weight"], expected.shared.params["layer1.weight"])
    assert shown.outcome.accuracy_client_mean == expected.outcome.accuracy_client_mean
    assert not any(method.sees_hidden_edges for name, method in METHODS.items() if name != "fed_gnn")


@dataclass(frozen=True)
class NeedsEdges(FedAvg):
    """FedAvg that says it needs everybody's edges."""

    name: ClassVar[str] = "needs_edges"
    accepts_graphless: ClassVar[bool] = False


def test_a_method_that_needs_edges_refuses_graphless_clients() -> None:
    (hidden, protocol), (whole, _) = prepared(0.5), prepared(0.0)
    method = NeedsEdges(model=protocol.model, training=protocol.training)
    with pytest.raises(ConfigError, match="needs_edges cannot train clients without edges"):
        execute(hidden, method, protocol)
    execute(whole, method, protocol)
