"""FedSage+: its losses and its exchange by hand, what crosses, and its relatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from harness import World, assert_separable, run_to_end, small, small_world
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from suture.config.resolve import resolve
from suture.core.message import Message
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.method import Clients
from suture.methods.fedsage import FedSage
from suture.methods.fedsage_plus.exchange import foreign_gradients, route, safe_to_answer
from suture.methods.fedsage_plus.joint import mended_logits
from suture.methods.fedsage_plus.messages import ForeignGradient, Offers
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.methods.fedsage_plus.neighgen import FGEN, NeighGen
from suture.methods.globsage import GlobSage
from suture.methods.local import Local
from suture.methods.locsage import LocSage
from suture.methods.locsage_plus import LocSagePlus
from suture.methods.uncut import Global
from suture.runs.prepare import prepare, preprocess
from suture.settings import ModelSettings, TrainingSettings

FULL_BATCH = {"answers": "exact", "batch_size": 0, "generator_batch": 0, "latent": 6, "width": 5, "exchanged": 8}
"""Small enough to write out; the smallest client has too few rows to be answered."""


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _clients(method: FedSagePlus, world: World) -> Clients[Any]:
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    (state,) = cohort.states()
    return Clients(world.clients, state, Streams.of(0, world.clients.ids, "test"), world.task)


def _random(tree: Tree, seed: int = 0) -> Tree:
    """Other weights for each client, so that a mix-up of clients shows."""
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(value.shape, generator=rng) for name, value in tree.items()}


def _fgen(params: Tree, k: int, rows: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(rows @ params["feature1.weight"][k] + params["feature1.bias"][k])
    return hidden @ params["feature2.weight"][k] + params["feature2.bias"][k]


def test_neighgen_is_graphsage_then_perceptrons(world: World) -> None:
    """Equation (3) against PyG layers, client by client."""
    graph, network = world.clients, NeighGen(40, latent=6, width=5)
    params = _random({name: value.expand(4, *value.shape[1:]) for name, value in network.init(torch.Generator()).items()})
    z = network.encode(params, graph)
    counts, made = network.missing(params, z, graph.degree, graph.segments), network.neighbours(params, z, graph.segments)
    bounds = graph.segments.bounds
    for k in range(4):
        data = graph.client_data(k)
        h = data.x
        for layer in ("layer1", "layer2"):
            conv = SAGEConv(h.shape[1], 6, aggr="mean")
            conv.lin_r.weight.data = params[f"encoder.{layer}.self"][k].T
            conv.lin_l.weight.data = params[f"encoder.{layer}.neighbour"][k].T
            conv.lin_l.bias.data = params[f"encoder.{layer}.bias"][k]
            h = torch.relu(conv(h, data.edge_index)).detach()
        mine = slice(bounds[k], bounds[k + 1])
        torch.testing.assert_close(z[mine], h, rtol=1e-4, atol=1e-5)
        rate, base, alone = torch.nn.functional.softplus(h @ params["count.weight"][k] + params["count.bias"][k]).T
        degree = torch.bincount(data.edge_index[1], minlength=h.shape[0])
        expected = rate * degree + base + torch.where(degree == 0, alone, torch.zeros(()))
        torch.testing.assert_close(counts[mine], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made[mine], _fgen(params, k, h), rtol=1e-4, atol=1e-4)


def test_losses_by_hand(world: World) -> None:
    """Equation (4): smooth L1 of the counts, squared distance to the nearest hidden neighbour, both over |V_i|."""
    method = small(FedSagePlus, hidden_share=0.3, **FULL_BATCH)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    params = _random(clients.state.generator)
    hurt, x, loss = method.impaired(clients), world.clients.x.dense(), method.own_loss(world.task)
    batch = loss.batch(hurt, clients.rng)
    terms, rows = loss.terms(params, batch, hurt, world.clients.x, clients.rng)
    z = method.neighgen(world.task).encode(params, hurt.graph)
    predicted = method.neighgen(world.task).missing(params, z, hurt.graph.degree, hurt.graph.segments)
    for k in range(4):
        nodes = torch.nonzero(hurt.graph.segments.client == k).squeeze(1)
        off = (predicted[nodes] - hurt.count[nodes]).abs()
        smooth = torch.where(off < 1, 0.5 * off.square(), off - 0.5)
        torch.testing.assert_close(terms["count"][k], smooth.mean(), rtol=1e-4, atol=1e-5)
        mine = torch.nonzero(batch.row_segments.client == k).squeeze(1)
        total = 0.0
        for r in mine.tolist():
            node = int(batch.nodes[batch.row[r]])
            start, end = hurt.hidden.rowptr[node : node + 2].tolist()
            hidden = x[hurt.hidden.col[start:end].long()]
            total += float((_fgen(params, k, rows[r]) - hidden).square().sum(1).min())
        assert float(terms["features"][k]) == pytest.approx(total / nodes.numel(), rel=1e-4)
    expected_rows = torch.bincount(hurt.graph.segments.client, weights=hurt.count.clamp_max(5).double(), minlength=4)
    assert batch.row_segments.ptr.diff().tolist() == expected_rows.tolist()


def test_every_generator_term_has_a_gradient(world: World) -> None:
    method = small(FedSagePlus, hidden_share=0.3)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    params = {name: value.requires_grad_() for name, value in _random(clients.state.generator).items()}
    hurt, loss = method.impaired(clients), method.own_loss(world.task)
    terms, _ = loss.terms(params, loss.batch(hurt, clients.rng), hurt, world.clients.x, clients.rng)
    for name, reached in (("count", "count.weight"), ("features", "feature2.weight")):
        wanted = [params[reached], params["encoder.layer1.self"]]
        for grad in torch.autograd.grad(terms[name].sum(), wanted, retain_graph=True):
            assert float(grad.abs().max()) > 0, name


@pytest.mark.parametrize("softness", [0.0, 0.3])
def test_foreign_gradient_by_hand(world: World, softness: float) -> None:
    """The foreign part of equation (6): plain autograd over all distances, for every pair of clients."""
    method = small(FedSagePlus, hidden_share=0.3, softness=softness, **FULL_BATCH)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    clients = replace(clients, state=replace(clients.state, generator=_random(clients.state.generator)))
    _, offer = method.offer(clients, Message(clients.ids))
    _, gradients = method.feed_forward(clients, route(offer))
    x, bounds = world.clients.x.dense(), world.clients.segments.bounds
    answers = 0
    for i in range(4):
        for j in range(4):
            leaves = {name: offer.fgen[name][i : i + 1].clone().requires_grad_() for name in FGEN}
            made = _fgen(leaves, 0, offer.rows[i])
            distance = torch.cdist(made, x[bounds[j] : bounds[j + 1]]).square()
            scale = softness * distance.detach().mean(1, keepdim=True)
            if softness:
                term = -scale.squeeze(1) * torch.logsumexp(-distance / scale, 1)
                share = torch.softmax(-distance.detach() / scale, 1)
            else:
                term, matched = distance.min(1)
                share = torch.nn.functional.one_hot(matched, distance.shape[1]).float()
            real = offer.weight[i] > 0
            nodes = 1 / float(share[real].mean(0).square().sum()) if bool(real.any()) else 0
            answered = i != j and int(real.sum()) > 6 and nodes >= 3
            answers += answered
            loss = (term * offer.weight[i]).sum() * answered
            for name, grad in zip(FGEN, torch.autograd.grad(loss, [leaves[n] for n in FGEN]), strict=True):
                torch.testing.assert_close(gradients.fgen[name][j, i], grad[0], rtol=1e-3, atol=1e-4)
    assert 0 < answers < 12, "some pairs must be answered and some refused for this to test both"


def test_offers_that_would_reveal_nodes_are_not_answered() -> None:
    """Five rows of four senders: on five nodes, on two, three of them real, and on four nodes, one of them twice."""
    nearest = torch.tensor([[1, 2, 3, 4, 5], [1, 1, 1, 2, 2], [1, 2, 3, 4, 5], [3, 1, 2, 1, 0]])
    share = torch.nn.functional.one_hot(nearest, 6).permute(2, 0, 1).float()
    weight = torch.ones(4, 5)
    weight[2, 3:] = 0
    assert safe_to_answer(share, weight, width=2).tolist() == [1, 0, 0, 1]
    assert safe_to_answer(share, weight, width=4).tolist() == [0, 0, 0, 0]
    # Four nodes of which one has nearly everything are not four nodes.
    lopsided = torch.tensor([0.9, 0.04, 0.03, 0.03]).view(4, 1, 1).expand(4, 1, 5)
    assert safe_to_answer(lopsided, torch.ones(1, 5), width=2).tolist() == [0]


def test_gradients_cannot_be_solved_for_their_rows(world: World) -> None:
    """The hidden activations of answered rows, with the bias, never have full row rank."""
    method = small(FedSagePlus, hidden_share=0.4, **FULL_BATCH)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    _, offer = method.offer(clients, Message(clients.ids))
    _, gradients = method.feed_forward(clients, route(offer))
    for i in range(4):
        if float(gradients.fgen["feature2.weight"][:, i].abs().sum()) > 0:
            rows = offer.rows[i][offer.weight[i] > 0]
            hidden = torch.tanh(rows @ offer.fgen["feature1.weight"][i] + offer.fgen["feature1.bias"][i])
            known = torch.cat([hidden, torch.ones(rows.shape[0], 1)], 1)
            assert int(torch.linalg.matrix_rank(known)) < rows.shape[0]


def test_a_step_adds_foreign_gradients_weighted_by_alpha(world: World) -> None:
    """Line 4, with the sign of Adam's first step as the witness."""
    for alpha in (0.5, 2.0):
        method = small(FedSagePlus, hidden_share=0.3, alpha=alpha, lambda_f=0.5, **FULL_BATCH)
        assert isinstance(method, FedSagePlus)
        clients = _clients(method, world)
        state, offer = method.offer(clients, Message(clients.ids))
        waiting = replace(clients, state=state)
        _, gradients = method.feed_forward(waiting, route(offer))
        foreign = {name: value.sum(0) for name, value in gradients.fgen.items()}
        after, _ = method.update_generator(waiting, ForeignGradient(clients.ids, foreign))
        for name in FGEN:
            total = state.waiting[name] + 0.5 * alpha * foreign[name]
            torch.testing.assert_close(after.generator_moments[f"{name}.first"], 0.1 * total, rtol=1e-4, atol=1e-6)
        name = "encoder.layer1.self"
        torch.testing.assert_close(after.generator_moments[f"{name}.first"], 0.1 * state.waiting[name])


def test_nobody_answers_about_itself_and_copies_change_nothing(world: World) -> None:
    method = small(FedSagePlus, hidden_share=0.3, **FULL_BATCH)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    _, offer = method.offer(clients, Message(clients.ids))
    tiled = route(offer)
    assert float(tiled.weight.diagonal().abs().sum()) == 0
    copies = Offers(tiled.ids, {n: v.contiguous() for n, v in tiled.fgen.items()}, tiled.rows.contiguous(), tiled.weight)
    _, expected = method.feed_forward(clients, tiled)
    _, found = method.feed_forward(clients, copies)
    for name in FGEN:
        assert float(found.fgen[name].diagonal(dim1=0, dim2=1).abs().sum()) == 0
        torch.testing.assert_close(found.fgen[name], expected.fgen[name], rtol=1e-4, atol=1e-5)


class _Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Message]] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        self.heard.append((direction, message))


@pytest.mark.parametrize("shared", [False, True])
def test_no_message_shows_a_feature_row_even_after_scaling(world: World, shared: bool) -> None:
    """Search every row of every message, of any length and at any scale, for a feature row of a client."""
    method = small(FedSagePlus, hidden_share=0.3, shared_generator=shared, generator_epochs=6, width=5, exchanged=16)
    listener = _Listener()
    run_to_end(method, world.clients, world.task, ledger=listener)
    unit = torch.nn.functional.normalize(world.clients.x.dense())
    assert listener.heard
    for _, message in listener.heard:
        for path, tensor in message.tensors().items():
            assert tensor.is_floating_point() or tensor.numel() < world.clients.num_nodes, path
            if tensor.shape[-1] == unit.shape[1]:
                rows = torch.nn.functional.normalize(tensor.reshape(-1, unit.shape[1]).float())
                assert float((rows @ unit.T).abs().max()) < 0.999, f"{path} points along a feature row"


def test_other_nodes_are_hidden_from_time_to_time(world: World) -> None:
    for rehide, again in ((2, False), (0, True)):
        method = small(FedSagePlus, hidden_share=0.3, alpha=0.0, rehide=rehide, generator_epochs=4)
        assert isinstance(method, FedSagePlus)
        cohort = EmbeddedCohort.start(method, world.clients, world.task)
        server, hidden = method.init_server(world.task), []
        for _ in range(3):
            (state,) = cohort.states()
            clients = Clients(world.clients, state, Streams.of(0, world.clients.ids, "test"), world.task)
            hidden.append(method.impaired(clients).remaining.tolist())
            server = method.generator_round(server, cohort)
        assert hidden[0] == hidden[1]
        assert (hidden[1] == hidden[2]) == again


def test_the_joint_classifier_sees_generated_neighbours_as_nodes(world: World) -> None:
    """Equation (5)'s F against PyG's SAGEConv on graphs to which the generated nodes were added."""
    method = small(FedSagePlus, joint=True)
    graph, rng = world.clients, torch.Generator().manual_seed(2)
    network = method.own_classifier(world.task)
    params = _random({name: value.repeat(4, *[1] * (value.dim() - 1)) for name, value in network.init(rng).items()})
    source = torch.randint(0, graph.num_nodes, (25,), generator=rng).sort().values
    made = torch.randn(25, world.task.features, generator=rng)
    found = mended_logits(network, params, graph, source, made)
    for k in range(4):
        one, start = graph.client_data(k), int(graph.segments.ptr[k])
        mine = graph.segments.client[source] == k
        new = torch.arange(int(mine.sum())) + one.num_nodes
        there = torch.stack([source[mine] - start, new])
        edges = torch.cat([one.edge_index, there, there.flip(0)], 1)
        h = torch.cat([one.x, made[mine]])
        for layer in (1, 2):
            own, neighbour, bias = (params[f"layer{layer}.{part}"][k] for part in ("self", "neighbour", "bias"))
            conv = SAGEConv(h.shape[1], own.shape[1])
            conv.load_state_dict({"lin_l.weight": neighbour.T, "lin_l.bias": bias, "lin_r.weight": own.T})
            h = conv(h, edges).relu() if layer == 1 else conv(h, edges)
        if "head.weight" in params:
            h = h.relu() @ params["head.weight"][k] + params["head.bias"][k]
        expected = h[: one.num_nodes]
        torch.testing.assert_close(found[start : start + one.num_nodes], expected, rtol=1e-4, atol=1e-4)


def test_the_joint_loss_reaches_the_generator_and_stays_at_home(world: World) -> None:
    method = small(LocSagePlus, joint=True, hidden_share=0.3, generator_batch=0, batch_size=0, lambda_c=2.0)
    clients = _clients(method, world)
    leaves = {name: value.clone().requires_grad_() for name, value in clients.state.generator.items()}
    hurt, rng = method.impaired(clients), Streams.of(0, clients.ids, "test")
    loss = method.own_loss(world.task)
    batch = loss.batch(hurt, rng)
    terms, _ = loss.terms(leaves, batch, hurt, clients.graph.x, rng)
    grads = torch.autograd.grad(terms["labels"].sum(), list(leaves.values()), allow_unused=True, retain_graph=True)
    reached = {name for name, grad in zip(leaves, grads, strict=True) if grad is not None and float(grad.abs().max()) > 0}
    assert {"feature2.weight", "encoder.layer1.self", "classifier.layer1.self"} <= reached
    assert not any(name.startswith("count.") for name in reached)
    half = replace(loss, lambda_c=1.0).terms(leaves, batch, hurt, clients.graph.x, rng)[0]
    torch.testing.assert_close(terms["labels"], 2 * half["labels"])
    end = run_to_end(method, world.clients, world.task)
    assert not any(name.startswith("generator.classifier") for state in end.states for name in state.tensors())


@pytest.mark.parametrize(
    "fields",
    [
        {"shared_generator": True},
        {"batch_size": 0, "generator_batch": 0},
        {"alpha": 0.0},
        {"joint": True, "hidden_share": 0.3},
    ],
    ids=str,
)
def test_variants_are_separable(world: World, fields: dict[str, Any]) -> None:
    assert_separable(small(FedSagePlus, **fields), world)


def test_a_shared_generator_is_the_same_for_all(world: World) -> None:
    ending = run_to_end(small(FedSagePlus, shared_generator=True), world.clients, world.task)
    first, *others = (state.tensors() for state in ending.states)
    for other in others:
        assert torch.equal(first["generator.feature2.weight"], other["generator.feature2.weight"])
    own = run_to_end(small(FedSagePlus), world.clients, world.task)
    first, second = (state.tensors()["generator.feature2.weight"] for state in own.states[:2])
    assert not torch.equal(first, second)


def test_local_relatives_send_no_parameters(world: World) -> None:
    for kind in (LocSage, LocSagePlus):
        listener = _Listener()
        run_to_end(small(kind), world.clients, world.task, ledger=listener)
        for _, message in listener.heard:
            assert set(message.tensors()) <= {"weight", "loss", "validation_loss", "value", "total"}, type(message)


@pytest.mark.parametrize(("own", "plain"), [(LocSage, Local), (GlobSage, Global)])
def test_relatives_are_the_plain_methods_with_sampled_graphsage(world: World, own: Any, plain: Any) -> None:
    model = ModelSettings(kind="sage", hidden=8, head=True, dropout=0.0)
    training = TrainingSettings(rounds=2, lr=0.05, batch_size=64, fanouts=(5, 5))
    graph = world.graph_for(own())
    left = run_to_end(own(model=replace(model, kind="gcn"), training=training), graph, world.task)
    right = run_to_end(plain(model=model, training=training), graph, world.task)
    for mine, theirs in zip(left.states, right.states, strict=True):
        for path, tensor in mine.tensors().items():
            assert torch.equal(tensor, theirs.tensors()[path]), path


def test_without_generated_neighbours_it_is_fedsage(world: World) -> None:
    """A generator that never predicts a missing neighbour leaves the graph alone; only random streams differ then."""
    method = small(FedSagePlus, batch_size=0)
    assert isinstance(method, FedSagePlus)
    clients = _clients(method, world)
    assert method.seen(clients, training=True) is world.clients
    plain = small(FedSage, batch_size=0)
    assert plain.initial_params(world.task).keys() == method.initial_params(world.task).keys()


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedsage_plus.exchanged must be at least width \+ 2 = 42, got 32"):
        FedSagePlus(width=40)
    with pytest.raises(ConfigError, match="exchanges nothing"):
        LocSagePlus(alpha=1.0)


def test_dgen_tells_who_lost_neighbours_to_the_cut(dataset: Callable[[str], Data]) -> None:
    """On Cora in three parts, predicted counts correlate with neighbours that really lie with other clients."""
    protocol = resolve("fedsage-louvain", "cora", [], clients=3, method_fields={}).protocol
    prepared = prepare(preprocess(dataset("cora"), protocol.preprocess), "cora", protocol, 0)
    method = FedSagePlus(protocol.model, protocol.training, generator_epochs=60, alpha=0.0, hidden_share=0.15)
    cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task)
    server = method.init_server(prepared.task)
    losses = []
    for _ in range(method.generator_epochs):
        server = method.generator_round(server, cohort)
        losses.append(cohort.take_reports()["loss"])
    # On nodes hidden for the first time: what is left of the loss is what nobody can know.
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])
    (state,) = cohort.states()
    network, graph = method.neighgen(prepared.task), prepared.clients
    with torch.no_grad():
        predicted = network.missing(state.generator, network.encode(state.generator, graph), graph.degree, graph.segments)
    position = torch.cat(list(prepared.cut.partition.members))
    lost = prepared.uncut.degree[position] - graph.degree
    assert np.corrcoef(predicted.numpy(), lost.numpy())[0, 1] > 0.2


def test_foreign_gradients_do_not_build_all_pairs(world: World) -> None:
    """Wide features: what is returned is as large as M generators, whatever the number of nodes."""
    network = NeighGen(40, latent=6, width=5)
    fgen = {
        name: value.expand(3, *value.shape[1:]) for name, value in network.init(torch.Generator()).items() if name in FGEN
    }
    out, answered = foreign_gradients(network, fgen, torch.randn(3, 8, 6), torch.ones(4, 3, 8), world.clients.x, 0.3)
    assert {name: tuple(value.shape) for name, value in out.items()} == {
        name: (4, 3, *value.shape[1:]) for name, value in fgen.items()
    }
    assert answered.shape == (4, 3)
