"""FedGGR against the same model trained in one process, and each of its parts by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import World, run_to_end, small_world

from suture.core.kernels import Segments
from suture.core.streams import Streams, generator
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.synthetic import contextual_block_model
from suture.method import Task
from suture.methods.fedggr.autoencoder import BASIS, GraphAutoencoder, LinearAutoencoder, orthonormal
from suture.methods.fedggr.messages import Down
from suture.methods.fedggr.method import GLOBAL, FedGgr
from suture.methods.fedggr.server_graph import everybodys
from suture.nn.backbones import make_backbone
from suture.nn.layers import dropout
from suture.nn.topk import Links
from suture.settings import ModelSettings, TrainingSettings


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def small(**fields: Any) -> FedGgr:
    training = TrainingSettings(
        **{"rounds": 3, "local_epochs": 1, "lr": 0.05, "weighting": "nodes", **fields.pop("training", {})}
    )
    model = ModelSettings(hidden=8, dropout=fields.pop("dropout", 0.0), kind=fields.pop("kind", "gcn"), heads=2)
    few = {"branch_dropout": 0.0, "code_width": 6, "k": 4, "pretrain_rounds": 2, "pretrain_epochs": 2, "pretrain_hidden": 12}
    few |= {"local_width": 8, "global_width": 8, "codes": "nodes", "code_dropout": 0.0}
    return FedGgr(model=model, training=training, **(few | fields))


def dense_gcn_operator(graph: GraphBatch) -> torch.Tensor:
    a = torch.zeros(graph.num_nodes, graph.num_nodes)
    a[graph.edge_index[1], graph.edge_index[0]] = 1
    a += torch.eye(graph.num_nodes)
    return a / torch.sqrt(a.sum(1, keepdim=True) * a.sum(1))


def single_client(world: World) -> GraphBatch:
    """Everybody's nodes as one client's."""
    data = contextual_block_model(nodes=90, classes=3, features=40, degree=5.0, communities=2, seed=5)
    roles = (torch.arange(90) % 3 + 1).to(torch.int8)
    return batch_of(data, ["only"], [torch.arange(90)], [roles], [False])


@pytest.mark.parametrize(("activation", "code_width"), [("none", 6), ("relu", 12)])  # narrower and wider than a layer's 8
def test_split_learning_is_exact(world: World, activation: str, code_width: int) -> None:
    """One client, Q = 1: the same numbers as one model, one tape and one Adam in one process, on full matrices."""
    graph, task = single_client(world), Task(features=40, classes=3, seed=3)
    method = small(refresh=1, activation=activation, code_width=code_width, training={"weight_decay": 1e-3})
    cohort = EmbeddedCohort.start(method, graph, task)
    server = method.init_server(task)
    for phase in method.plan()[:2]:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    w = {name: value[0].clone().requires_grad_() for name, value in (server.params | server.own).items()}
    adam = torch.optim.Adam(w.values(), lr=0.05, weight_decay=1e-3)
    e, a, x, train = everybodys(server.codes), dense_gcn_operator(graph), graph.x.dense(), graph.role == 1

    def scores() -> torch.Tensor:
        unit = F.normalize(e * w["generator1.weight"] * w["generator2.weight"])
        cosine = unit @ unit.T
        nearest = (cosine - 9 * torch.eye(90)).detach().topk(4).indices
        kept = torch.eye(90).scatter(1, nearest, 1.0)
        weight = torch.relu(cosine) * kept
        symmetric = (weight + weight.T) / 2
        scale = symmetric.sum(1).rsqrt()
        learned = scale[:, None] * symmetric * scale
        z = torch.relu(learned @ (e @ w["gcn1.weight"]) + w["gcn1.bias"])
        z = learned @ (z @ w["gcn2.weight"]) + w["gcn2.bias"]
        local = a @ torch.relu(a @ (x @ w["layer1.weight"]) + w["layer1.bias"]) @ w["layer2.weight"] + w["layer2.bias"]
        fused = torch.cat([local, z], 1)
        return (torch.relu(fused) if activation == "relu" else fused) @ w["fusion.weight"] + w["fusion.bias"]

    for _ in range(4):
        adam.zero_grad()
        F.cross_entropy(scores()[train], graph.y[train]).backward()
        assert all(float(value.grad.abs().max()) > 0 for value in w.values() if value.grad is not None)
        adam.step()
        server = method.round(server, cohort)
        for name, value in (server.params | server.own).items():
            torch.testing.assert_close(value[0], w[name].detach(), rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    server = dataclasses.replace(server, links=method.search(server))
    model = cohort.peek(lambda clients: method.assemble(clients, method.deploy(server, clients.ids)))
    torch.testing.assert_close(method.predict(graph, model, task), scores().detach(), rtol=1e-3, atol=1e-3)


def test_the_gradient_of_z_is_that_of_every_clients_own_loss(world: World) -> None:
    """Against finite differences of the clients' losses, for clients of different sizes."""
    method = small()
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for phase in method.plan()[:2]:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    server = dataclasses.replace(server, links=method.search(server))
    z = method.global_embeddings(server, server.own).detach()
    down = method.down(server, z, cohort.ids)
    states = cohort.states()
    up = cohort.ask(method.local_update, down)
    graph = world.clients
    for row in (0, 60, 115):
        # Double precision would need double features, so the step is wide and the tolerance with it.
        bumped = []
        for sign in (1, -1):
            cohort.restore(states, cohort.asked)
            moved = down.z.values.clone()
            moved[row, 2] += sign * 0.05
            again = cohort.ask(method.local_update, dataclasses.replace(down, z=dataclasses.replace(down.z, values=moved)))
            bumped.append(again.loss)
        slope = (bumped[0] - bumped[1]) / 0.1
        client = int(graph.segments.client[row])
        torch.testing.assert_close(up.z_grad.values[row, 2], slope[client], rtol=0.05, atol=2e-4)
        assert float(slope.abs().sum() - slope[client].abs()) < 1e-6
    train = graph.role == 1
    assert bool((up.z_grad.values[~train] == 0).all())
    assert float(up.z_grad.values[train].abs().sum()) > 0


@pytest.mark.parametrize("which", ["first", "last", "mean"])
def test_which_epochs_gradient_returns(world: World, which: str) -> None:
    """Q = 2: the first epoch's gradient is Q = 1's; the last one's is Q = 1's from where the first epoch ended."""

    def once(method: FedGgr, params: Any, moments: Any) -> tuple[Any, Any]:
        cohort = EmbeddedCohort.start(method, world.clients, world.task)
        state = dataclasses.replace(cohort.states()[0], params=params, moments=moments)
        cohort.restore([state], 0)
        up = cohort.ask(method.local_update, Down(cohort.ids, params, z, 50))
        return up, cohort.states()[0]

    start = EmbeddedCohort.start(small(), world.clients, world.task).states()[0]
    rows = torch.randn(120, 8, generator=torch.Generator().manual_seed(1))
    z = dataclasses.replace(start.z, values=rows)
    first, after = once(small(), start.params, start.moments)
    second, _ = once(small(), after.params, after.moments)
    both, _ = once(small(training={"local_epochs": 2}, returned=which), start.params, start.moments)
    one, two = first.z_grad.values, second.z_grad.values
    expected = {"first": one, "last": two, "mean": (one + two) / 2}[which]
    torch.testing.assert_close(both.z_grad.values, expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(one, two, rtol=1e-2)


def test_the_autoencoder_by_hand() -> None:
    """Equations (1) and (2) on full matrices."""
    graph = single_client(small_world())
    network = GraphAutoencoder(40, 12, 6)
    params = network.init(generator(0, "test"))
    w = {name: value[0] for name, value in params.items()}
    a, x = dense_gcn_operator(graph), graph.x.dense()
    e = a @ torch.relu(a @ x @ w["encoder.layer1.weight"]) @ w["encoder.layer2.weight"]
    torch.testing.assert_close(network.encode(params, graph), e, rtol=1e-4, atol=1e-5)
    rebuilt = a @ torch.relu(a @ e @ w["decoder.layer1.weight"]) @ w["decoder.layer2.weight"]
    torch.testing.assert_close(network.loss(params, graph, x), F.mse_loss(rebuilt, x)[None], rtol=1e-4, atol=1e-6)


def test_a_step_of_the_linear_autoencoder_by_hand() -> None:
    """M W and the error of equation (2) on full matrices, of two clients at once."""
    data = contextual_block_model(nodes=50, classes=3, features=20, degree=5.0, communities=2, seed=2)
    roles = torch.ones(50, dtype=torch.int8)
    pieces = [torch.arange(30), torch.arange(30, 50)]
    graph = batch_of(data, ["a", "b"], pieces, [roles[:30], roles[30:]], [False] * 2)
    network = LinearAutoencoder(features=20, width=6)
    params = {BASIS: torch.cat([network.init(generator(seed, "test"))[BASIS] for seed in (0, 1)])}
    steps, loss = network.step(params, graph)
    codes = network.encode(params, graph)
    for k, (first, last) in enumerate([(0, 30), (30, 50)]):
        a, x, w = dense_gcn_operator(graph)[first:last, first:last], graph.x.dense()[first:last], params[BASIS][k]
        power = torch.linalg.matrix_power
        torch.testing.assert_close(codes[first:last], power(a, 2) @ x @ w, rtol=1e-4, atol=1e-5)
        m = x.T @ (2 * power(a, 4) - power(a, 8)) @ x
        torch.testing.assert_close(steps[BASIS][k], m @ w / (last - first), rtol=1e-3, atol=1e-4)
        rebuilt = power(a, 2) @ codes[first:last] @ w.T
        torch.testing.assert_close(loss[k], F.mse_loss(rebuilt, x), rtol=1e-3, atol=1e-5)


def test_clients_together_find_the_best_linear_autoencoder(world: World) -> None:
    """Rounds of pretraining end where numpy's eigenvectors of everybody's M are."""
    method = small(pretrain_rounds=150, code_width=3)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for _ in range(150):
        server = method.pretrain(server, cohort)
    a, x = dense_gcn_operator(world.clients).double(), world.clients.x.dense().double()
    m = x.T @ (2 * torch.linalg.matrix_power(a, 4) - torch.linalg.matrix_power(a, 8)) @ x
    best = np.linalg.eigvalsh(m.numpy())[-3:].sum()
    w = server.autoencoder[BASIS][0].double()
    assert float(torch.trace(w.T @ m @ w)) == pytest.approx(best, rel=1e-3)
    torch.testing.assert_close(w.T @ w, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-5)


def test_codes_wider_than_the_features_end_in_zeros(world: World) -> None:
    network = LinearAutoencoder(world.task.features, world.task.features + 2)
    start = network.init(generator(0, "test"))
    codes = network.encode({BASIS: start[BASIS].expand(len(world.clients.ids), -1, -1)}, world.clients)
    assert codes.shape[1] == world.task.features + 2
    assert bool((codes[:, -2:] == 0).all())
    assert float(codes[:, :-2].abs().min(1).values.max()) > 0
    assert orthonormal(start)[BASIS].shape == (1, world.task.features, world.task.features)


@pytest.mark.parametrize("encoder", ["linear", "relu"])
@pytest.mark.parametrize("alignment", ["averaged", "shared", "none"])
def test_alignment(world: World, alignment: str, encoder: str) -> None:
    """Only averaged encoders give two clients the same code for the same feature row."""
    data = contextual_block_model(nodes=60, classes=3, features=40, degree=4.0, communities=2, seed=1)
    roles = (torch.arange(60) % 3 + 1).to(torch.int8)
    everyone, some = torch.arange(60), torch.arange(30)
    # The third client pulls the average somewhere else; the first two have the same nodes.
    graph = batch_of(data, ["a", "b", "c"], [everyone, everyone, some], [roles, roles, roles[:30]], [False] * 3)
    method = small(alignment=alignment, encoder=encoder, training={"rounds": 1})
    ending = run_to_end(method, graph, Task(features=40, classes=3, seed=0))
    a, b, c = (ending.server.codes[name][0] for name in "abc")  # type: ignore[attr-defined]
    if alignment == "none":
        assert float((a - b).abs().max()) > 1e-2
    else:
        torch.testing.assert_close(a, b)
    assert a.shape == (60, 6)
    assert c.shape == (30, 6)
    together = torch.cat([a, b, c])
    torch.testing.assert_close(together.mean(0), torch.zeros(6), rtol=0, atol=1e-5)
    torch.testing.assert_close(together.std(), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_neighbours_are_searched_every_refresh_rounds(world: World) -> None:
    """In between the chosen pairs stay while their weights follow the generator."""
    method = small(refresh=2, server_lr=0.5)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for phase in method.plan()[:2]:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    seen, embeddings = [], []
    for _ in range(4):
        server = method.round(server, cohort)
        seen.append(server.links)
        embeddings.append(method.global_embeddings(server, server.own).detach())
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])
    assert not torch.allclose(embeddings[0], embeddings[1])


def test_the_papers_form(world: World) -> None:
    """Codes as each client's own auto-encoder makes them; neighbours of every round; one step along the sum of gradients."""
    method = small(form="paper", training={"optimizer": "sgd", "lr": 0.5, "rounds": 2}, returned="mean", codes="anchors")
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    assert server.autoencoder == {}
    server = method.plan()[0].body(server, cohort)
    trained = cohort.states()[0].autoencoder
    first = {name: value[0] for name, value in trained.items()}
    assert not any(torch.allclose(value[1], first[name]) for name, value in trained.items())
    network = GraphAutoencoder(40, 12, 6)
    server = method.plan()[1].body(server, cohort)
    codes_NP = network.encode(trained, world.clients)
    for k, name in enumerate(world.clients.ids):
        torch.testing.assert_close(server.codes[name][0], codes_NP[world.clients.segments.client == k])

    server = dataclasses.replace(server, links=method.search(server))
    leaves = {name: value.clone().requires_grad_() for name, value in server.own.items()}
    z = method.global_embeddings(server, leaves)
    up = cohort.ask(method.local_update, method.down(server, z.detach(), cohort.ids))
    assert len(up.weight.unique()) > 1, "clients of one size would weigh alike"
    order = sorted(range(len(up.ids)), key=lambda k: up.ids[k])
    added = torch.cat([up.z_grad.select([k]).values for k in order])
    slopes = torch.autograd.grad((z * added).sum(), list(leaves.values()), retain_graph=True)
    own, _ = method.backward(server, leaves, z, up)
    for (name, value), slope in zip(server.own.items(), slopes, strict=True):
        torch.testing.assert_close(own[name], value - 0.5 * slope)

    seen = []
    for _ in range(2):
        server = method.round(server, cohort)
        seen.append(server.links)
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("kind", ["gcn", "gat", "gprgnn", "sage", "mlp"])
@pytest.mark.parametrize("gsl", [True, False])
def test_every_backbone_with_and_without_the_servers_graph(world: World, kind: str, gsl: bool) -> None:
    method = small(kind=kind, gsl=gsl, dropout=0.5, training={"rounds": 2})
    ending = run_to_end(method, world.clients, world.task)
    assert bool(ending.scores.loss.isfinite().all())  # type: ignore[attr-defined]
    assert len(method.plan()) == (3 if gsl else 1)
    start = method.initial_params(world.task)
    assert start["fusion.weight"].shape == (1, 16 if gsl else 8, 3)
    assert all(not torch.equal(value, start[name]) for name, value in ending.server.params.items())  # type: ignore[attr-defined]


@pytest.mark.parametrize("gsl", [True, False])
def test_embeddings_of_one_number_a_class_start_as_a_sum(world: World, gsl: bool) -> None:
    """Before training the scores are those of the local network, which is FedAvg's, plus Z."""
    method = small(gsl=gsl, local_width=0, global_width=0)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for phase in method.plan()[:-1]:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    model = cohort.peek(lambda clients: method.assemble(clients, method.deploy(server, clients.ids)))
    expected = make_backbone(method.model, world.task.features, world.task.classes).logits(model.params, world.clients)
    if gsl:
        expected = expected + method.global_embeddings(server, server.own)
    torch.testing.assert_close(method.predict(world.clients, model, world.task), expected)


def test_each_client_gets_the_rows_of_its_own_nodes(world: World) -> None:
    """In the order of names on the server, in the order of the question on the wire."""
    method = small(training={"rounds": 1})
    server = run_to_end(method, world.clients, world.task).server
    total = sum(codes.shape[1] for codes in server.codes.values())  # type: ignore[attr-defined]
    z = torch.arange(total).float().unsqueeze(1).expand(total, 8)
    asked = ("owner-cedar", "owner-ash")
    down = method.down(server, z, asked)  # type: ignore[arg-type]
    sizes = dict(zip(world.clients.ids, world.clients.sizes.tolist(), strict=True))
    first = {"owner-ash": 0, "owner-cedar": sizes["owner-ash"] + sizes["owner-birch"]}
    for k, name in enumerate(asked):
        rows = down.z.select([k]).values[:, 0]
        torch.testing.assert_close(rows, torch.arange(sizes[name]).float() + first[name])
    assert down.longest == max(sizes.values())


def test_branches_are_hidden_in_turn(world: World) -> None:
    """A third of the rows loses its local part, another third the global one, and nobody both."""
    method = small(branch_dropout=2 / 3)
    segments = Segments(torch.tensor([0, 2000, 3000]))
    rng = Streams.of(0, ("a", "b"), "test")
    seen = method.fusion.hide_branches(torch.ones(3000, 16), 8, segments, rng)
    local, shared = seen[:, :8], seen[:, 8:]
    assert bool((local == local[:, :1]).all())
    assert bool((shared == shared[:, :1]).all())
    for client in (slice(0, 2000), slice(2000, 3000)):
        assert abs(float(local[client].mean()) - 2 / 3) < 0.05
        assert abs(float(shared[client].mean()) - 2 / 3) < 0.05
    assert bool((local[:, 0] + shared[:, 0] >= 1).all())


def test_dropped_codes_are_read_by_the_gcn_alone(world: World) -> None:
    """Z = A* ReLU(A* E' W1 + b1) W2 + b2 where E' has lost numbers, and A* is that of E; for testing E' is E."""
    method = small(code_dropout=0.5, training={"rounds": 1})
    server: Any = run_to_end(method, world.clients, world.task).server
    codes, own = everybodys(server.codes), {name: value[0] for name, value in server.own.items()}
    only, rng = Segments(torch.tensor([0, codes.shape[0]])), Streams.of(0, ("server",), "test")
    graph = method.server_graph.learner.process(
        method.server_graph.learner.generate(server.own, codes, only), Links(*server.links[0], codes.shape[0])
    )
    a = torch.zeros(codes.shape[0], codes.shape[0]).index_put((graph.row, graph.col), graph.weight, accumulate=True)

    def expected(read: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(a @ read @ own["gcn1.weight"] + own["gcn1.bias"])
        return a @ hidden @ own["gcn2.weight"] + own["gcn2.bias"]

    kept = dropout(torch.ones_like(codes), rng.fork("codes"), 0.5, only)
    assert 0.4 < float((kept > 0).float().mean()) < 0.6
    torch.testing.assert_close(method.global_embeddings(server, server.own, rng), expected(codes * kept))
    torch.testing.assert_close(method.global_embeddings(server, server.own), expected(codes))


def test_an_unknown_graph_has_no_global_embedding(world: World) -> None:
    method = small(training={"rounds": 1})
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    model = cohort.peek(lambda clients: method.assemble(clients, method.deploy(method.init_server(world.task), clients.ids)))
    one = model.select(["owner-ash"])
    one.params[GLOBAL].fill_(1e3)
    blank = dataclasses.replace(one, params=one.params | {GLOBAL: torch.zeros_like(one.params[GLOBAL])})
    with torch.no_grad():
        scores, same = (method.predict(world.whole, m, world.task) for m in (one, blank))
    torch.testing.assert_close(scores, same)
