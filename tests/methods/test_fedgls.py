"""FedGLS: one round by hand, what it reduces to, and that every part of it does something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import World, run_to_end, small, small_world
from torch import Tensor

from suture.core.kernels import Segments
from suture.core.message import Message, Model, Nothing
from suture.core.streams import Streams
from suture.core.tree import Tree, tile
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.graph.links import hide_links
from suture.method import Clients, Task, score
from suture.methods.fedavg import FedAvg
from suture.methods.fedgls.edgeless import Edgeless
from suture.methods.fedgls.method import FedGls, KeptGls, parts
from suture.settings import ModelSettings, SplitSettings, TrainingSettings
from suture.training.optimisers import descend

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def world() -> World:
    return small_world().without_edges("owner-birch", "owner-dogwood")


def gls(**fields: object) -> FedGls:
    method = small(FedGls, **fields)
    assert isinstance(method, FedGls)
    return method


# One round by hand ----------------------------------------------------------------------------------------------------

TASK = Task(features=4, classes=2, seed=1)
PATH = [(0, 1), (1, 2), (2, 3), (3, 4)]


def two_clients() -> GraphBatch:
    """`path` has five nodes in a row, `bare` has six and no edges."""
    segments = Segments(torch.tensor([0, 5, 11]))
    x = torch.rand(11, 4, generator=torch.Generator().manual_seed(5))
    edges = torch.tensor(PATH + [(b, a) for a, b in PATH]).T
    role = torch.tensor([1, 1, 2, 3, 1, 1, 1, 1, 1, 2, 3], dtype=torch.int8)
    y = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1])
    return GraphBatch(("path", "bare"), segments, Features(x, segments), edges, y, role, torch.arange(11))


def relu(a: np.ndarray) -> np.ndarray:
    return np.maximum(a, 0)


def gcn(x: np.ndarray, s: np.ndarray, theta: Arrays) -> np.ndarray:
    hidden = relu(s @ x @ theta["layer1.weight"] + theta["layer1.bias"])
    return s @ hidden @ theta["layer2.weight"] + theta["layer2.bias"]


def predictor(z: np.ndarray, theta: Arrays) -> np.ndarray:
    score = relu(z) @ theta["head.weight"] + theta["head.bias"]
    score = score - score.max(1, keepdims=True)
    return score - np.log(np.exp(score).sum(1, keepdims=True))


def graph_of(x: np.ndarray, omega: Arrays, k: int) -> np.ndarray:
    """Equations (13)-(18)."""
    r = x
    for layer in (1, 2):
        r = relu(r * omega[f"generator{layer}.weight"])
    unit = r / np.linalg.norm(r, axis=1, keepdims=True)
    cosine = unit @ unit.T
    kept = np.zeros_like(cosine)
    for i, row in enumerate(cosine):
        nearest = [j for j in np.argsort(-row) if j != i][:k]
        kept[i, [i, *nearest]] = row[[i, *nearest]]
    symmetric = (relu(kept) + relu(kept).T) / 2
    scale = 1 / np.sqrt(symmetric.sum(1))
    return scale[:, None] * symmetric * scale


def contrast(z: np.ndarray, h: np.ndarray, temperature: float) -> float:
    """Equations (8) and (9)."""
    z, h = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, h))
    to_h, to_z = np.exp(z @ h.T / temperature), np.exp(z @ z.T / temperature)
    others = ~np.eye(len(z), dtype=bool)
    return float(np.mean(-np.log(np.diag(to_h) / ((to_h + to_z) * others).sum(1))))


def descended(loss: Callable[[Arrays], float], params: Arrays, lr: float) -> Arrays:
    """One plain gradient step, by central differences."""
    new = {}
    for name, value in params.items():
        gradient = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            sides = []
            for shift in (1e-6, -1e-6):
                moved = value.copy()
                moved[place] += shift
                sides.append(loss(params | {name: moved}))
            gradient[place] = (sides[0] - sides[1]) / 2e-6
        new[name] = value - lr * gradient
    return new


def arrays(tree: Tree, row: int = 0) -> Arrays:
    return {name: value[row].double().numpy() for name, value in tree.items()}


def test_one_round_by_hand() -> None:
    """Algorithm 1 with E = 2, plain gradient steps, from the equations alone."""
    graph, k, tau = two_clients(), 2, 0.5
    lr, learner_lr = 0.3, 0.7
    training = TrainingSettings(rounds=1, local_epochs=2, optimizer="sgd", lr=lr, weighting="nodes")
    model = ModelSettings(hidden=3, head=True, dropout=0.0)
    method = FedGls(model=model, training=training, neighbours=k, learner_lr=learner_lr, temperature=tau)
    theta0, phi0, omega0 = (arrays(part) for part in parts(method.initial_params(TASK)))

    features = graph.x.dense().double().numpy()
    adjacency = np.eye(5)
    for a, b in PATH:
        adjacency[a, b] = adjacency[b, a] = 1
    scale = 1 / np.sqrt(adjacency.sum(1))
    results = []
    for name, rows in (("path", slice(0, 5)), ("bare", slice(5, 11))):
        x, y, train = features[rows], graph.y[rows].numpy(), (graph.role[rows] == 1).numpy()
        theta, phi, omega = theta0, phi0, omega0
        s = scale[:, None] * adjacency * scale
        if name == "bare":
            h = gcn(x, np.eye(6), phi)
            omega = descended(lambda o, x=x, h=h: contrast(gcn(x, graph_of(x, o, k), theta0), h, tau), omega, learner_lr)
            s = graph_of(x, omega, k)
        for _ in range(2):

            def cross_entropy(t: Arrays, x=x, s=s, y=y, train=train) -> float:
                return float(-predictor(gcn(x, s, t), t)[train, y[train]].mean())

            theta = descended(cross_entropy, theta, lr)
            teacher = predictor(gcn(x, s, theta), theta)

            def divergence(p: Arrays, x=x, teacher=teacher, theta=theta) -> float:
                student = predictor(gcn(x, np.eye(len(x)), p), theta)
                return float((np.exp(teacher) * (teacher - student)).sum())

            phi = descended(divergence, phi, lr)
        results.append((theta, phi, omega))

    cohort = EmbeddedCohort.start(method, graph, TASK)
    server = method.round(method.init_server(TASK), cohort)
    found_theta, found_phi, _ = parts(server.params)
    for part, found in ((0, found_theta), (1, found_phi)):
        for name, value in found.items():
            expected = (5 * results[0][part][name] + 6 * results[1][part][name]) / 11
            np.testing.assert_allclose(value[0].numpy(), expected, rtol=2e-4, atol=2e-5, err_msg=name)
    kept = parts(cohort.states()[0].params)[2]
    for name, value in kept.items():
        np.testing.assert_allclose(value[0].numpy(), omega0[name], err_msg="a client with edges learns no graph")
        np.testing.assert_allclose(value[1].numpy(), results[1][2][name], rtol=2e-4, atol=2e-5, err_msg=name)
        assert np.abs(results[1][2][name] - omega0[name]).max() > 1e-3


# Reductions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [0, 7])
def test_without_graphless_clients_theta_is_that_of_fedavg(batch_size: int) -> None:
    world = small_world()
    method = gls(training={"batch_size": batch_size})
    plain = FedAvg(model=method.model, training=method.training)
    found, expected = run_to_end(method, world.clients, world.task), run_to_end(plain, world.clients, world.task)
    for name, value in expected.server.tensors().items():
        assert torch.equal(found.server.tensors()[name], value), name
    assert torch.equal(found.scores.tensors()["value"], expected.scores.tensors()["value"])


@pytest.mark.parametrize("kind", ["attentive", "mlp"])
def test_a_learner_that_stands_still_keeps_the_graph_of_raw_features(world: World, kind: str) -> None:
    """With a rate of zero, theta is what FedAvg makes of the weighted graph of nearest neighbours."""
    method = gls(learner_lr=0.0, generator=kind)
    omega = tile(parts(method.initial_params(world.task))[2], 4)
    edgeless = Edgeless.of(world.clients)
    completed = edgeless.completed(world.clients, method.learn(edgeless, omega, world.task)[1])
    plain = FedAvg(model=method.model, training=method.training)
    expected = run_to_end(plain, completed, world.task)
    found = run_to_end(method, world.clients, world.task)
    for name, value in expected.server.tensors().items():
        torch.testing.assert_close(found.server.tensors()[name], value)


def test_the_perceptron_learns_how_features_belong_together(world: World) -> None:
    """Equation (14): matrices, whose entries beside the diagonal start at zero and move; those of (15) are vectors."""
    method = gls(generator="mlp", learner_lr=0.01)
    omega = parts(method.initial_params(world.task))[2]
    width = world.task.features
    assert {tuple(value.shape) for value in omega.values()} == {(1, width, width)}
    assert all(torch.equal(value[0], torch.eye(width)) for value in omega.values())
    found = run_to_end(method, world.clients, world.task)
    ends = [parts(state.params)[2] for state in found.states]  # type: ignore[attr-defined]
    moved = max(
        float((value - torch.diag_embed(value.diagonal(0, 1, 2))).abs().max()) for end in ends for value in end.values()
    )
    assert moved > 1e-3
    assert not any("learner" in name for name in found.server.tensors())


# Parts ----------------------------------------------------------------------------------------------------------------


def ingredients(method: FedGls, world: World) -> tuple[Tree, Tree, Tree]:
    params = tile(method.initial_params(world.task), len(world.clients.ids))
    return parts({name: value.clone() for name, value in params.items()})


def test_embedding_with_a_gradient_is_that_of_the_backbone(world: World) -> None:
    method = gls()
    theta, phi, omega = ingredients(method, world)
    edgeless = Edgeless.of(world.clients)
    learned = method.learn(edgeless, omega, world.task)[1]
    completed = edgeless.completed(world.clients, learned)
    expected = method.backbone(world.task).embed(theta, completed)
    torch.testing.assert_close(method.embed(edgeless.x, theta, learned), expected[edgeless.nodes])
    features_only = method.encoder(world.task).embed(phi, world.clients)
    torch.testing.assert_close(method.embed(edgeless.x, phi), features_only[edgeless.nodes])
    own = ~world.clients.graphless[world.clients.segments.client]
    untouched = method.backbone(world.task).embed(theta, world.clients)
    torch.testing.assert_close(expected[own], untouched[own])
    owner = completed.segments.client
    assert torch.equal(owner[completed.gcn_operator.row], owner[completed.gcn_operator.col.long()])


def test_every_loss_term_has_a_gradient(world: World) -> None:
    method = gls()
    theta, phi, omega = ingredients(method, world)
    for part in (theta, phi, omega):
        for value in part.values():
            value.requires_grad_()
    edgeless = Edgeless.of(world.clients)
    links = method.learn(edgeless, omega, world.task)[0]
    terms: list[tuple[Tensor, Tree]] = [
        (method.contrast(edgeless, theta, phi, omega, world.task, links), omega),
        (method.distillation(world.clients, theta, phi, world.task, Streams.of(0, world.clients.ids)), phi),
    ]
    for loss, own in terms:
        assert loss.shape == (4,)
        every = [value for part in (theta, phi, omega) for value in part.values()]
        grads = torch.autograd.grad(loss.sum(), every, allow_unused=True)
        for value, grad in zip(every, grads, strict=True):
            if any(value is mine for mine in own.values()):
                assert grad is not None
                assert float(grad.abs().max()) > 0
    contrast_K = terms[0][0].detach()
    assert (contrast_K == 0).tolist() == [True, False, True, False], "a client with edges has no contrastive loss"


def test_contrastive_steps_bring_the_two_embeddings_together(world: World) -> None:
    method = gls(neighbours=4)
    theta, phi, omega = ingredients(method, world)
    everyone, settings = world.clients.graphless, replace(method.training, lr=0.02)
    moments = FedGls.init_clients(
        method, Clients(world.clients, Nothing(world.clients.ids), Streams.of(0, world.clients.ids), world.task)
    ).learner_moments
    edgeless = Edgeless.of(world.clients)
    links = method.learn(edgeless, omega, world.task)[0]
    first = method.contrast(edgeless, theta, phi, omega, world.task, links)
    for _ in range(20):
        omega, moments, _ = descend(
            lambda leaf: method.contrast(edgeless, theta, phi, leaf, world.task, links), omega, moments, settings, everyone
        )
    last = method.contrast(edgeless, theta, phi, omega, world.task, links)
    assert bool((last < first)[everyone].all())


class Listener:
    """A ledger that keeps the names of what was sent."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        self.names |= set(message.tensors())


def test_omega_stays_local(world: World) -> None:
    listener = Listener()
    ending = run_to_end(gls(learner_lr=0.1), world.clients, world.task, ledger=listener)
    assert any(name.startswith("params.encoder.") for name in listener.names)
    assert not any("learner" in name or "link" in name for name in listener.names)
    weights = {state.ids[0]: state.tensors()["params.learner.generator1.weight"] for state in ending.states}
    assert torch.equal(weights["owner-ash"], torch.ones(1, 40))
    assert not torch.equal(weights["owner-birch"], torch.ones(1, 40))
    assert not torch.equal(weights["owner-birch"], weights["owner-dogwood"])


def test_tests_use_the_kept_links_and_find_what_predict_finds(world: World) -> None:
    method = gls(learner_lr=0.5, neighbours=3)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    before = cohort.states()[0].links.values.clone()
    server = method.init_server(world.task)
    for _ in range(2):
        server = method.round(server, cohort)
    assert not torch.equal(before, cohort.states()[0].links.values), "the graph is learned"
    deployed = method.deploy(server, cohort.ids)
    models = cohort.peek(lambda clients: method.assemble(clients, deployed.select(clients.ids)))
    assert not any(name.startswith("encoder.") for name in models.params)
    with torch.no_grad():
        logits = method.predict(world.clients, models, world.task)
    expected, found = score(world.clients, logits, "accuracy", method.training), cohort.evaluate(deployed)
    assert torch.equal(expected.value, found.value)
    torch.testing.assert_close(expected.loss, found.loss)
    theta = {name: value for name, value in models.params.items() if not name.startswith("learner.")}
    blind = FedAvg(model=method.model).predict(world.clients, Model(models.ids, theta), world.task)
    assert not torch.allclose(blind, logits), "the learned graph matters"


def test_kept_links_survive_being_counted_by_their_client(world: World) -> None:
    method = gls(neighbours=3)
    omega = ingredients(method, world)[2]
    edgeless = Edgeless.of(world.clients)
    links, learned = method.learn(edgeless, omega, world.task)
    kept, weights = edgeless.packed(links, learned)
    assert weights.ptr.diff().tolist() == [0, 35 * 2 * 4, 0, 10 * 2 * 4]
    assert kept.ptr.diff().tolist() == [0, 35 * 3, 0, 10 * 3]
    assert int(kept.values.min()) == 0
    assert int(kept.values[kept.ptr[3] :].max()) == 9
    again = edgeless.unpacked(kept)
    assert torch.equal(again.node, links.node)
    assert torch.equal(again.neighbour, links.neighbour)


def test_moments_start_anew_if_they_are_not_kept(world: World) -> None:
    method = gls(training={"keep_optimizer": False})
    for state in run_to_end(method, world.clients, world.task).states:
        assert isinstance(state, KeptGls)
        assert int(state.moments["step"]) == int(state.encoder_moments["step"]) == 2
        assert int(state.learner_moments["step"]) == int(state.ids[0] in ("owner-birch", "owner-dogwood"))


# Refusals -------------------------------------------------------------------------------------------------------------


def test_links_and_foreign_networks_are_refused(world: World) -> None:
    method = gls()
    graph = hide_links(small_world().clients.select(["owner-ash"]), SplitSettings(), 0)
    with pytest.raises(ConfigError, match="fedgls compares two networks by the classes"):
        EmbeddedCohort.start(method, graph, world.task)
    with pytest.raises(ConfigError, match="choose another method for your network"):
        method.backbone(replace(world.task, module=lambda features, classes: torch.nn.Linear(features, classes)))
