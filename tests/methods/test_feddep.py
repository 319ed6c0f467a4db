"""FedDEP: reductions, one round by hand, every term of its objective, and what crosses while its generator trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from harness import Ending, World, assert_separable, run_to_end, small, small_world

from suture.core.message import Message, Model, Nothing
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.embeddings import MendedFeatures
from suture.method import Clients, Method
from suture.methods import METHODS
from suture.methods.feddep.dgen import Generated, bernoulli, nearest_listed, nearest_of_each
from suture.methods.feddep.kept import Generating
from suture.methods.feddep.method import FedDep
from suture.methods.fedsage import FedSage
from suture.nn.export import to_pyg
from suture.privacy.mechanisms import DrawnEdges, NoisyGradients, NoisyMeans, SampledNeighbours
from suture.settings import ModelSettings, TrainingSettings

QUICK = {"d_z": 8, "clusters": 3, "pretrain_epochs": 2, "generator_epochs": 3, "most": 3, "batch_size": 0}


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def quick(**fields: Any) -> FedDep:
    method = small(FedDep, **{**QUICK, **fields})
    assert isinstance(method, FedDep)
    return method


class Heard:
    """A ledger that keeps what was said in which step."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, Message]] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        self.messages.append((step, direction, message))

    def bytes_in(self, *steps: str) -> int:
        return sum(sum(message.nbytes()) for step, _, message in self.messages if step in steps)


def clients_before_rounds(method: FedDep, world: World) -> Clients[Generating]:
    """All clients as they stand after prototypes were exchanged (or embeddings computed), before the generator trains."""
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    method.plan()[0].body(method.init_server(world.task), cohort)
    return Clients(world.clients, cohort.states()[0], Streams.of(0, world.clients.ids, "test"), world.task)


def test_without_dgen_it_is_fedsage(world: World) -> None:
    mine = run_to_end(quick(dgen=False, batch_size=32), world.clients, world.task)
    fedsage = small(FedSage, batch_size=32)
    theirs = run_to_end(fedsage, world.clients, world.task)
    for path, tensor in theirs.server.tensors().items():
        torch.testing.assert_close(mine.server.tensors()[path], tensor, rtol=0, atol=0)
    torch.testing.assert_close(mine.scores.tensors()["value"], theirs.scores.tensors()["value"], rtol=0, atol=0)


def test_keeping_no_generated_embedding_trains_as_without_dgen(world: World) -> None:
    """r = 0: z = 0 in every round, so the classifier cannot tell that there is a generator."""
    without = run_to_end(quick(dgen=False), world.clients, world.task)
    nothing_kept = _rounds_after_generator(quick(r=0.0, as_published=True), world)
    kept = _rounds_after_generator(quick(r=1.0, as_published=True), world)
    name = "params.layer1.neighbour"
    # Dropout differs (it follows the number of questions asked before), so weights are compared without it.
    torch.testing.assert_close(nothing_kept.server.tensors()[name], without.server.tensors()[name])
    assert not torch.allclose(kept.server.tensors()[name], without.server.tensors()[name])


def _rounds_after_generator(method: FedDep, world: World) -> Ending:
    """Only the rounds, from a trained generator, with the questions counted from zero."""
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    *before, rounds = method.plan()
    for phase in before:
        server = phase.body(server, cohort)
    cohort.restore(cohort.states(), 0)
    for _ in range(rounds.times):
        server = rounds.body(server, cohort)
    return Ending(server, [], cohort.evaluate(Nothing(cohort.ids)))


def test_the_uncut_graph_is_predicted_without_embeddings(world: World) -> None:
    method = quick()
    end = run_to_end(method, world.clients, world.task)
    params = {name.removeprefix("params."): value for name, value in end.server.tensors().items()}
    plain = {name: value for name, value in params.items() if "embedding" not in name}
    scores = method.predict(world.whole, Model(("uncut",), params), world.task)
    sage = small(FedSage, batch_size=0)
    torch.testing.assert_close(scores, sage.predict(world.whole, Model(("uncut",), plain), world.task), rtol=0, atol=0)
    exported = to_pyg(params, method.model, world.task.features, world.task.classes)
    torch.testing.assert_close(exported(world.whole.x.dense(), world.whole.edge_index), scores, rtol=1e-4, atol=1e-5)


def test_a_network_with_a_layer_before_is_not_exported_as_graphsage(world: World) -> None:
    method = quick(fusion="input")
    with pytest.raises(ConfigError, match="no part of a sage model"):
        to_pyg(method.initial_params(world.task), method.model, world.task.features, world.task.classes)


def test_joint_training_moves_the_generator_in_every_round(world: World) -> None:
    """Nothing is trained before the rounds; in one, the generator makes line 5's step with the F that was handed out."""
    method = quick(joint=True, generator_epochs=2, training={"rounds": 2})
    assert [phase.name for phase in method.plan()] == ["prototypes", "round"]
    clients = clients_before_rounds(method, world)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.plan()[0].body(method.init_server(world.task), cohort)
    handed = {name: value.expand(4, *value.shape[1:]) for name, value in server.params.items()}
    start = clients.state.generator | {f"classifier.{name}": value for name, value in handed.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    loss = sum(method.generator_terms(leaves, method.generated(leaves, clients), clients).values())
    wanted = [name for name in leaves if name.startswith(("embedding.", "count."))]
    slopes = torch.autograd.grad(loss.sum(), [leaves[name] for name in wanted])  # type: ignore[union-attr]
    server = method.round(server, cohort)
    state = cohort.states()[0]
    assert state.epoch == 1
    for name, slope in zip(wanted, slopes, strict=True):
        expected = start[name] - 0.003 * slope / (slope.abs() + 1e-8)  # the first step of Adam
        torch.testing.assert_close(state.generator[name], expected, rtol=1e-4, atol=1e-5)
    assert method.round(server, cohort) and cohort.states()[0].epoch == 2


@pytest.mark.parametrize("fields", [{"dgen": False}, {"proto": False}])
def test_joint_training_needs_prototypes(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="beside its prototypes"):
        quick(joint=True, **fields)


VARIANTS = [
    {"proto": False},
    {"nfdp": False},
    {"proto": False, "batch_size": 32},
    {"joint": True},
    {"fusion": "input", "batch_size": 32},
    {"fusion": "neighbours", "batch_size": 32},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_variants_are_separable(fields: dict[str, Any], world: World) -> None:
    assert_separable(quick(**fields), world)


@pytest.mark.parametrize("proto", [True, False])
def test_every_term_has_a_gradient(proto: bool, world: World) -> None:
    method = quick(proto=proto)
    clients = clients_before_rounds(method, world)
    params = {name: value.clone().requires_grad_() for name, value in clients.state.generator.items()}
    made = method.generated(params, clients)
    pulls = None if proto else torch.ones(int(made.used.sum()), method.d_z)
    reaches = {"count": "count.", "own": "embedding.", "others": "embedding.", "labels": "embedding."}
    terms = method.generator_terms(params, made, clients, pulls)
    assert terms.keys() == reaches.keys()
    for term, loss in terms.items():
        wanted = [value for name, value in params.items() if name.startswith((reaches[term], "encoder."))]
        grads = torch.autograd.grad(loss.sum(), wanted, retain_graph=True, allow_unused=True)
        assert all(grad is not None and float(grad.abs().max()) > 0 for grad in grads[-2:]), term


def test_the_objective_by_hand(world: World) -> None:
    """Equation 3.1 node by node in numpy, without the cross-entropy."""
    method = quick(prototype_sigma=0.0)
    clients = clients_before_rounds(method, world)
    made = method.generated(clients.state.generator, clients)
    terms = method.generator_terms(clients.state.generator, made, clients)
    hurt, state = method.impaired(clients), clients.state
    sets = state.targets.values.view(4, method.clusters, method.d_z).numpy()
    owner = hurt.graph.segments.client.tolist()
    expected = {name: np.zeros(4) for name in ("count", "own", "others")}
    for v, i in enumerate(owner):
        lost = hurt.hidden.col[hurt.hidden.rowptr[v] : hurt.hidden.rowptr[v + 1]].tolist()
        off = abs(float(made.count[v].detach()) - len(lost))
        expected["count"][i] += 0.5 * off**2 if off < 1 else off - 0.5
        for p in range(min(method.most, round(float(made.count[v])))):
            z = made.slots[p][v].detach().numpy()
            if lost:
                clusters = [int(state.target_of.values[u]) for u in lost]
                expected["own"][i] += min(((z - sets[i, c]) ** 2).sum() for c in clusters)
            for j in range(4):
                if j != i:
                    expected["others"][i] += min(((z - centre) ** 2).sum() for centre in sets[j])
    sizes = np.bincount(owner)
    assert expected["own"].max() > 0
    for name, total in expected.items():
        np.testing.assert_allclose(terms[name].detach().numpy(), total / sizes, rtol=1e-4, atol=1e-5)


def test_one_epoch_without_proto_by_hand(world: World) -> None:
    """What comes back to each client is the gradient of the others' part of 3.1 over all their nodes."""
    method = quick(proto=False)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    method.plan()[0].body(server, cohort)
    state, streams = cohort.states()[0], Streams.of(0, world.clients.ids, "test")
    clients = Clients(world.clients, state, streams, world.task)
    made = method.generated(state.generator, clients)
    rows = torch.cat([made.rows().detach()]).requires_grad_()
    owner = clients.graph.segments.client
    row_owner = method.impaired(clients).graph.segments.client.repeat_interleave(made.used.sum(1))
    loss = torch.zeros(())
    for r in range(rows.shape[0]):
        for j in range(4):
            if j != int(row_owner[r]):
                loss = loss + (rows[r] - state.targets.values[owner == j]).square().sum(1).min()
    (expected,) = torch.autograd.grad(loss, rows)
    heard = Heard()
    cohort._common.ledger = heard
    method.plan()[1].body(server, cohort)
    pulls = next(message for step, direction, message in heard.messages if (step, direction) == ("improve", "down"))
    torch.testing.assert_close(pulls.tensors()["rows.values"], expected, rtol=1e-4, atol=1e-5)


def test_ber_r_and_the_mean_by_hand() -> None:
    count = torch.tensor([0.4, 1.6, 2.5, 9.0])
    slots = tuple(torch.full((4, 2), float(p + 1)) for p in range(3))
    made = Generated(count, slots)
    assert made.used.tolist() == [[False] * 3, [True, True, False], [True, True, False], [True] * 3]
    torch.testing.assert_close(made.mean(made.used)[:, 0], torch.tensor([0.0, 1.5, 1.5, 2.0]))
    graph = small_world().clients
    used = torch.ones(graph.num_nodes, 200, dtype=torch.bool)
    kept = bernoulli(used, 0.3, graph.segments, Streams.of(0, graph.ids, "test"))
    assert abs(float(kept.float().mean()) - 0.3) < 0.01
    assert not bool(bernoulli(~used, 1.0, graph.segments, Streams.of(0, graph.ids, "test")).any())


def test_searches_equal_exhaustive_ones(world: World) -> None:
    rng = torch.Generator().manual_seed(0)
    graph = world.clients
    z, sets = torch.randn(graph.num_nodes, 5, generator=rng), torch.randn(4, 3, 6, 5, generator=rng)
    total, length = nearest_of_each(z, sets, graph.segments)
    table = torch.randn(graph.num_nodes, 5, generator=rng)
    found, some = nearest_listed(z, graph.neighbours, table)
    for v, k in enumerate(graph.segments.client.tolist()):
        best = torch.stack([part[(z[v] - part).square().sum(1).argmin()] for part in sets[k]])
        torch.testing.assert_close(total[v], best.sum(0))
        torch.testing.assert_close(length[v], best.square().sum())
        listed = table[graph.edge_index[0][graph.edge_index[1] == v]]
        assert bool(some[v]) == (listed.shape[0] > 0)
        expected = listed[(z[v] - listed).square().sum(1).argmin()] if listed.shape[0] else torch.zeros(5)
        torch.testing.assert_close(found[v], expected)


def test_nothing_crosses_while_the_generator_trains(world: World) -> None:
    heard = Heard()
    run_to_end(quick(), world.clients, world.task, ledger=heard)
    steps = [step for step, _, _ in heard.messages]
    between = heard.messages[steps.index("train_generator") : steps.index("local_update")]
    assert {step for step, _, _ in between} == {"train_generator"}
    assert all(not message.tensors() for _, _, message in between)
    told = next(message for step, direction, message in heard.messages if (step, direction) == ("prototype", "up"))
    assert told.tensors()["centres"].shape == (4, 3, 8)


def test_traffic_follows_table_1(world: World) -> None:
    """Generators of FedSage+, FedDEP without Proto, and FedDEP: each sends less than the one before."""
    epochs = 20
    plus, deep, proto = Heard(), Heard(), Heard()
    neighbours = small(METHODS["fedsage_plus"], generator_epochs=epochs, batch_size=0, exchanged=120)
    run_to_end(neighbours, world.clients, world.task, ledger=plus)
    run_to_end(quick(proto=False, generator_epochs=epochs), world.clients, world.task, ledger=deep)
    run_to_end(quick(generator_epochs=epochs), world.clients, world.task, ledger=proto)
    fedsage_plus = plus.bytes_in("offer", "feed_forward", "update_generator")
    without_proto = deep.bytes_in("embed_nodes", "offer", "judge", "improve")
    feddep = proto.bytes_in("prototype", "remember", "train_generator")
    assert fedsage_plus > without_proto > feddep > 0
    # Prototypes do not grow with the number of epochs; embeddings do.
    again = Heard()
    run_to_end(quick(generator_epochs=2 * epochs), world.clients, world.task, ledger=again)
    assert again.bytes_in("prototype", "remember", "train_generator") == feddep


def test_the_generator_learns(world: World) -> None:
    method = quick(generator_lr=0.01)
    clients = clients_before_rounds(method, world)

    def objective(now: Clients[Generating]) -> float:
        made = method.generated(now.state.generator, now)
        return float(sum(term.sum() for term in method.generator_terms(now.state.generator, made, now).values()))

    before = objective(clients)
    for _ in range(30):
        clients = replace(clients, state=method.generator_epoch(clients))
    # The same noise as before, so that only the weights differ.
    assert objective(replace(clients, state=replace(clients.state, epoch=0))) < 0.8 * before


def test_mending_draws_anew_in_every_round(world: World) -> None:
    method = quick(r=0.5)
    clients = clients_before_rounds(method, world)
    first = method.seen(clients, training=True).x
    second = method.seen(replace(clients, rng=clients.rng.fork("next")), training=True).x
    assert isinstance(first, MendedFeatures)
    assert isinstance(second, MendedFeatures)
    zero = (first.embedding.abs().sum(1) == 0).float().mean()
    assert 0.1 < float(zero) < 0.9
    assert not torch.equal(first.embedding, second.embedding)


def test_a_single_client(world: World) -> None:
    one = world.clients.select(world.clients.ids[:1])
    for proto in (True, False):
        end = run_to_end(quick(proto=proto), one, world.task)
        assert torch.isfinite(end.server.tensors()["params.layer1.self"]).all()


def test_variants_set_the_training_they_stand_for() -> None:
    training = TrainingSettings(batch_size=64, fanouts=(3, 3))
    method: Method[Any, Any] = FedDep(model=ModelSettings(), training=training)
    assert (method.training.batch_size, method.training.fanouts, method.training.dp_sigma) == (32, (5, 5), 0.0)
    noisy = FedDep(model=ModelSettings(), training=training, nfdp=False, sigma=4.2)
    assert (noisy.training.dp_sigma, noisy.kept_share) == (4.2, 1.0)


def test_what_is_promised_covers_the_network_whose_embeddings_are_sent() -> None:
    """NFDP for what line 1 trained on sampled neighbours; DP-SGD for it and for F without NFDP."""
    published = FedDep(pretrain_epochs=7, depth=3, fanout=4, r=0.25, as_published=True)
    beside = ("prototypes of all neighbours", "the weights of all rounds")
    expected = SampledNeighbours("prototype", 7, (4, 4, 4), published.training.replace, 0.25, beside)
    assert published.mechanisms() == (expected,)
    plain = FedDep(edge_share=0.3, prototype_sigma=4.0)
    assert plain.mechanisms() == (DrawnEdges(0.3), NoisyMeans("prototype", 4.0))
    (embedded,) = FedDep(proto=False, as_published=True).mechanisms()
    assert embedded.step == "embed_nodes"
    assert FedDep(dgen=False).mechanisms() == ()
    noisy = FedDep(nfdp=False, sigma=1.5, pretrain_epochs=7, batch_size=16).mechanisms()
    epochs = FedDep().training.local_epochs
    gradients = (NoisyGradients("local_update", epochs, 16, 1.5), NoisyGradients("prototype", 7, 16, 1.5))
    assert noisy == (*gradients, NoisyMeans("prototype", FedDep().prototype_sigma))
    for used in (expected, plain.mechanisms()[1], embedded, *noisy):
        assert hasattr(FedDep, used.step)
