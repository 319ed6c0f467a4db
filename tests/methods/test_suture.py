"""Suture: its experts are trained as if each were alone, and are mixed as the equations of its box say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from harness import World, assert_separable, beginning, small, small_world
from numpy.testing import assert_allclose

from suture.core.message import Nothing
from suture.core.tree import under
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.target import Target
from suture.methods.fedavg import FedAvg
from suture.methods.fedgram import FedGram
from suture.methods.local import Local
from suture.methods.suture import Suture
from suture.methods.suture.method import FLOOR, MIXTURE
from suture.methods.suture.mixture import Judged, pooled
from suture.methods.suture.settling import GOING, settled

AVERAGED = {"moments": "averaged"}
SURE: dict[str, Any] = {"dropout": 0.0}
"""What is dropped depends on how often owners were asked before, which differs."""


def run(method: Any, world: World) -> tuple[Any, EmbeddedCohort[Any]]:
    """(the server, the clients) after the last round."""
    cohort, server = EmbeddedCohort.start(method, world.clients, world.task), method.init_server(world.task)
    for phase in method.plan():
        for number in range(phase.times):
            cohort.begin(phase.name, number + 1)
            server = phase.body(server, cohort)
    return server, cohort


@pytest.fixture(scope="module")
def whole() -> tuple[Any, Any]:
    """Suture with all experts, on a world where nobody knows links."""
    graph = dataclasses.replace(small_world().clients, boundary=None)
    return run(small(Suture, model=SURE), dataclasses.replace(small_world(), clients=graph))


@pytest.mark.parametrize(
    ("prefix", "alone"),
    [
        ("common.set.", small(FedAvg, training=AVERAGED, model=SURE)),
        ("common.sage.", small(FedAvg, training=AVERAGED, model={"kind": "sage", **SURE})),
        ("common.gprgnn.", small(FedAvg, training=AVERAGED, model={"kind": "gprgnn", **SURE})),
        ("common.mlp.", small(FedAvg, training=AVERAGED, model={"kind": "mlp", **SURE})),
        ("common.gram.", small(FedGram, training=AVERAGED, model=SURE, stages=0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_expert_is_trained_as_if_it_were_alone(whole: tuple[Any, Any], prefix: str, alone: Any) -> None:
    found, expected = under(prefix, whole[0].params), run(alone, small_world())[0].params
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_allclose(found[name].numpy(), value.numpy(), atol=1e-5, err_msg=name)


def test_own_models_are_trained_alone(whole: tuple[Any, Any]) -> None:
    own, local = whole[1].states()[0].params, run(small(Local, model=SURE), small_world())[1].states()[0].params
    for name, value in under("own.set.", own).items():
        assert_allclose(value.numpy(), local[name].numpy(), atol=1e-5, err_msg=name)
    assert not any(name.startswith("own.") for name in whole[0].params)


def test_one_expert_is_fedavg_with_averaged_moments() -> None:
    one = small(Suture, beside=(), own=False, rank=0, seams=0)
    (server, mine), (plain, theirs) = run(one, small_world()), run(small(FedAvg, training=AVERAGED), small_world())
    for name, value in plain.params.items():
        assert torch.equal(server.params[f"common.set.{name}"], value)
    scores = [cohort.evaluate(Nothing(cohort.ids)).tensors() for cohort in (mine, theirs)]
    for path, value in scores[1].items():
        assert torch.equal(scores[0][path], value), path


def judged(likely: list[list[float]], client: list[int], clients: int) -> Judged:
    return Judged(torch.tensor(likely, dtype=torch.float64), torch.tensor(client), clients)


def test_weights_are_the_most_likely_ones() -> None:
    """Against a search over all weights of two experts: validation log-likelihood plus the prior's."""
    rng = np.random.default_rng(3)
    likely, prior, doubt = rng.random((30, 2)), np.array([0.3, 0.7]), 7.0
    grid = np.linspace(1e-4, 1 - 1e-4, 20_001)
    mixed = np.log(np.outer(grid, likely[:, 0]) + np.outer(1 - grid, likely[:, 1])).sum(1)
    best = grid[np.argmax(mixed + doubt * (prior[0] * np.log(grid) + prior[1] * np.log(1 - grid)))]
    found = judged(likely.tolist(), [0] * 30, 1).weights(torch.tensor(prior).unsqueeze(0), doubt)
    assert_allclose(found[0].numpy(), [best, 1 - best], atol=2e-3)


def test_who_has_no_validation_nodes_takes_everybodys_weights() -> None:
    prior = torch.tensor([[0.2, 0.8], [0.2, 0.8]], dtype=torch.float64)
    some = judged([[0.9, 0.1], [0.8, 0.1]], [1, 1], 2)
    for doubt in (0.0, 20.0):
        assert_allclose(some.weights(prior, doubt)[0].numpy(), [0.2, 0.8])
    assert_allclose(some.shares(prior)[0].numpy(), [0.2, 0.8])
    # By hand: 0.2 * 0.9 / (0.2 * 0.9 + 0.8 * 0.1) and 0.2 * 0.8 / (0.2 * 0.8 + 0.8 * 0.1), and their mean.
    assert_allclose(some.shares(prior)[1, 0], (0.18 / 0.26 + 0.16 / 0.24) / 2)
    assert float(some.weights(prior, 0.0)[1, 0]) > 0.98


def test_everybodys_weights_are_the_mean_of_the_owners_shares() -> None:
    """One round by hand: the server's mixture is the owners' responsibilities, weighted by training nodes."""
    world = small_world()
    method: Any = small(Suture, beside=("mlp",), own=False, rank=0, seams=0, training={"rounds": 1})
    server, cohort = run(method, world)
    graph, state = world.clients, cohort.states()[0]
    with torch.no_grad():
        said = [
            network.logits(under(prefix, state.params), graph).softmax(1)
            for prefix, network in method.experts(world.task).items()
        ]
    total, weight = np.zeros(2), 0.0
    for k in range(len(graph.ids)):
        mine = (graph.segments.client == k) & (graph.role == 2)
        q = torch.stack([p[mine, graph.y[mine]] for p in said], 1).double().numpy()
        n = float(graph.num_train[k])
        total, weight = total + n * (q / q.sum(1, keepdims=True)).mean(0), weight + n
    assert_allclose(server.params[MIXTURE][0].numpy(), total / weight, atol=1e-5)
    assert 0 < FLOOR < 0.5


def test_experts_are_mixed_by_what_labels_mean() -> None:
    graph = small_world().clients
    rng = torch.Generator().manual_seed(1)
    out = torch.randn(2, graph.num_nodes, 3, generator=rng)
    weights = torch.tensor([[0.25, 0.75]]).expand(len(graph.ids), 2)
    labels, value = (dataclasses.replace(graph, target=Target(kind)) for kind in ("labels", "value"))
    mixed = 0.25 * out[0].softmax(1) + 0.75 * out[1].softmax(1)
    assert_allclose(pooled(graph, out, weights, link=False).exp().numpy(), mixed.numpy(), atol=1e-6)
    each = 0.25 * out[0].sigmoid() + 0.75 * out[1].sigmoid()
    assert_allclose(pooled(labels, out, weights, link=False).sigmoid().numpy(), each.numpy(), atol=1e-6)
    assert_allclose(pooled(value, out, weights, link=False).numpy(), (0.25 * out[0] + 0.75 * out[1]).numpy(), atol=1e-6)
    ends = pooled(graph, out, weights, link=True)
    score = 0.25 * (out[0, 0] * out[0, 1]).sum() + 0.75 * (out[1, 0] * out[1, 1]).sum()
    assert_allclose(float((ends[0] * ends[1]).sum()), float(score), rtol=1e-5)


@pytest.mark.parametrize("kind", ["labels", "value"])
def test_labels_and_numbers_can_be_predicted(kind: Any) -> None:
    world = small_world()
    y = torch.nn.functional.one_hot(world.clients.y, 3).float()
    y[::7, 1] = float("nan")
    world = dataclasses.replace(world, clients=dataclasses.replace(world.clients, y=y, target=Target(kind)))
    world = dataclasses.replace(world, task=dataclasses.replace(world.task, metric="auto"))
    _, cohort = run(small(Suture, training={"rounds": 10}), world)
    scores = cohort.evaluate(Nothing(cohort.ids))
    assert bool(scores.validation_loss.isfinite().all())
    untrained = small(Suture)
    clients = beginning(untrained, world.clients, world.task)
    _, first = untrained.evaluate(clients, Nothing(clients.ids))
    assert float(scores.loss.mean()) < float(first.loss.mean())


def test_known_links_are_stitched_and_unknown_ones_are_not(whole: tuple[Any, Any]) -> None:
    _, knowing = run(small(Suture), small_world())
    heard = knowing.states()[0].stitch_heard
    assert heard is not None
    assert heard.values.shape[1] == 2  # `seams` steps
    assert float(heard.values[..., -1].sum()) > 0
    assert whole[1].states()[0].stitch_heard is None
    assert run(small(Suture, seams=0), small_world())[1].states()[0].stitch_heard is None


def test_it_refuses_what_it_cannot_promise() -> None:
    with pytest.raises(ConfigError, match="validation nodes"):
        small(Suture, training={"dp_sigma": 1.0})
    with pytest.raises(ConfigError, match="moments"):
        small(Suture, training={"moments": "server"})


def test_an_own_model_without_training_nodes_has_nothing_to_say() -> None:
    graph = small_world().clients
    role = torch.where((graph.segments.client == 0) & (graph.role == 1), 0, graph.role)
    role = torch.where((graph.segments.client == 1) & (graph.role == 2), 0, role)
    world = dataclasses.replace(small_world(), clients=dataclasses.replace(graph, role=role))
    method: Any = small(Suture)
    server, cohort = run(method, world)
    model = cohort.peek(lambda clients: method.assemble(clients, method.deploy(server, clients.ids)))
    assert float(model.params[MIXTURE][0, -1]) == 0
    assert bool((model.params[MIXTURE][1:, -1] > 0).all())
    assert_allclose(model.params[MIXTURE].sum(1).numpy(), np.ones(len(graph.ids)), atol=1e-6)
    # The second has no validation node: everybody's weights, with a small part for all.
    common = server.params[MIXTURE][0].numpy()
    assert_allclose(model.params[MIXTURE][1].numpy(), (1 - FLOOR) * common + FLOOR / common.size, atol=1e-6)


def test_experts_settle_when_they_no_longer_get_better() -> None:
    method: Any = small(Suture, beside=("mlp",), rank=0, seams=0)
    server = method.init_server(small_world().task)
    going, weight = [], torch.tensor([3.0, 1.0])
    for likely in ([-3.0, -2.0, -5.0], [-2.0, -2.5, -6.0], [-1.0, -2.1, -7.0], [-0.5, -1.0, -8.0]):
        told = torch.tensor([[*likely, 1.0], [0.0] * 4])  # the second owner has no validation nodes
        server = settled(server, told, weight, 2)
        going.append(server.params[GOING][0].tolist())
    # The second common expert was best in the first round: it settles after the third, and stays so. The own one never does.
    assert going == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1]]
    assert_allclose(server.best[0].numpy(), [-0.5, -1.0, -5.0])
    worse = torch.tensor([[-9.0, -9.0, -9.0, 1.0]])
    for _ in range(3):
        server, endless = settled(server, worse, weight[:1], 2), settled(server, worse, weight[:1], 0)
    assert server.params[GOING][0].tolist() == [0, 0, 1, 1]
    assert endless.params[GOING][0].tolist() == [0, 0, 1, 1], "with patience 0 nothing changes"
    nobody = settled(method.init_server(small_world().task), torch.zeros(2, 4), weight, 1)
    assert nobody.params[GOING][0].tolist() == [1, 1, 1, 1], "without validation nodes nobody can tell"


def test_a_settled_expert_is_trained_and_sent_no_more() -> None:
    world = dataclasses.replace(small_world(), clients=dataclasses.replace(small_world().clients, boundary=None))
    method: Any = small(Suture, beside=("mlp",), rank=0, training={"rounds": 4})
    cohort, server = EmbeddedCohort.start(method, world.clients, world.task), method.init_server(world.task)
    cohort.begin("round", 1)
    server = method.round(server, cohort)
    going = server.params[GOING].clone()
    going[0, 1] = 0
    server = dataclasses.replace(server, params=server.params | {GOING: going})
    before = {name: value.clone() for name, value in cohort.states()[0].params.items()}
    cohort.begin("round", 2)
    after = method.round(server, cohort)
    left = cohort.states()[0].params
    for name, value in left.items():
        if name.startswith("common.mlp."):
            assert torch.equal(value, before[name]) and torch.equal(after.params[name], server.params[name])
        elif name.startswith(("common.set.layer1", "own.set.layer1")):
            assert not torch.equal(value, before[name])
    handed = method.hand_out(after, cohort.ids)
    assert any(name.startswith("common.mlp.") for name in handed.params)
    assert not any(name.startswith("common.mlp.") for name in handed.moments)
    assert any(name.startswith("common.set.") for name in handed.moments)
    newcomer = beginning(method, world.clients, world.task)
    started = method.received(newcomer, handed)
    for name, value in after.params.items():
        if name.startswith("common.mlp."):
            assert torch.equal(started[name], value.expand_as(started[name])), "who comes late hears the common one"


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_settling_is_separable(participation: float) -> None:
    settling = small(
        Suture, beside=("mlp",), rank=0, patience=1, training={"rounds": 5, "lr": 0.5, "participation": participation}
    )
    end: Any = assert_separable(settling, small_world())
    assert float(end.server.params[GOING][0, :2].sum()) < 2, "somebody must have settled for this test to say something"
