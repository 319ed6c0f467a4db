"""What methods no longer tell: rows of nodes, edges that were not drawn, means of too few, and counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from harness import Ending, World, run_to_end, small, small_world

from suture import testing
from suture.core.kernels import Segments, SparseMatrix
from suture.core.message import Message
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.engines.sealed import SealedCohort
from suture.graph.batch import Features, GraphBatch
from suture.graph.drawn import drawn_graph
from suture.graph.grouping import Groups, alike_groups, group_features, random_groups
from suture.method import Clients, Method
from suture.methods.feddep.method import FedDep
from suture.methods.feddep.prototypes import Prototypes, told_centres, without_small
from suture.methods.fedggr.grouped import code_groups
from suture.methods.fedggr.method import FedGgr
from suture.methods.fedproto import COUNTS, PROTOTYPES, FedProto
from suture.methods.fedsage_plus.answering import coarse
from suture.methods.fedsage_plus.exchange import share
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.privacy.accountant import account, facts_of
from suture.privacy.disclosure import Disclosure

SAGE = {"batch_size": 0, "generator_batch": 0, "latent": 6, "width": 3, "exchanged": 12, "hidden_share": 0.4}
DEP = {"d_z": 8, "clusters": 4, "pretrain_epochs": 2, "generator_epochs": 3, "most": 3, "batch_size": 8}
GGR = {"code_width": 6, "k": 4, "pretrain_rounds": 2}


class Heard:
    """A ledger that keeps all that clients send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, torch.Tensor]]] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        if direction == "up" and step != "evaluate":
            self.sent.append((step, {path: tensor.clone() for path, tensor in message.tensors().items()}))


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def heard(method: Method[Any, Any], graph: GraphBatch, world: World) -> list[tuple[str, dict[str, torch.Tensor]]]:
    ledger = Heard()
    run_to_end(method, graph, world.task, ledger=ledger)
    return ledger.sent


def is_same(first: Any, second: Any) -> bool:
    pairs = zip(first, second, strict=True)
    return all(a[0] == b[0] and all(torch.equal(a[1][path], b[1][path]) for path in a[1]) for a, b in pairs)


def with_features(graph: GraphBatch, x: torch.Tensor) -> GraphBatch:
    return replace(graph, x=Features(x, graph.segments))


# Groups


@pytest.mark.parametrize("smallest", [1, 2, 5, 7])
@pytest.mark.parametrize("kind", ["random", "alike"])
def test_no_group_is_smaller_than_it_may_be(kind: str, smallest: int) -> None:
    sizes = [23, 4, 5, 0, 1, 40]
    segments = Segments(torch.tensor(np.cumsum([0, *sizes])))
    rng = Streams.of(0, [str(k) for k in range(6)], "groups")
    points = torch.randn(segments.total, 3, generator=torch.Generator().manual_seed(1))
    groups = random_groups(segments, smallest, rng) if kind == "random" else alike_groups(points, segments, smallest)
    bounds = segments.bounds
    for k, size in enumerate(sizes):
        mine = groups.of[bounds[k] : bounds[k + 1]]
        if size < smallest:
            assert mine.tolist() == [-1] * size
            continue
        first, last = groups.segments.bounds[k : k + 2]
        counts = torch.bincount(mine - first, minlength=last - first)
        assert int(counts.min()) >= smallest, "a group is too small"
        assert int(counts.max()) < 2 * smallest, "a group could have been two"
        assert int(counts.sum()) == size
    assert groups.sizes.tolist() == torch.bincount(groups.of[groups.of >= 0], minlength=groups.segments.total).tolist()


def test_groups_that_are_alike_are_nearer_than_random_ones() -> None:
    points = torch.randn(200, 2, generator=torch.Generator().manual_seed(2))
    segments = Segments(torch.tensor([0, 200]))

    def spread(groups: Groups) -> float:
        return float((points - groups.spread(groups.means(points))).square().sum(1).mean())

    alike, random = alike_groups(points, segments, 5), random_groups(segments, 5, Streams.of(0, ["a"], "x"))
    assert spread(alike) < 0.25 * spread(random)


@pytest.mark.parametrize("sparse", [True, False])
def test_means_leave_out_what_is_rare(sparse: bool) -> None:
    """By hand: a feature that fewer nodes of a client have than its groups are large is not told of that client."""
    rng = torch.Generator().manual_seed(3)
    x = (torch.rand(20, 12, generator=rng) < 0.3).float()
    x[:, 0], x[:, 1] = 0, 0
    x[2, 0], x[12:17, 1] = 1, 1  # one of the first client's nodes; five of the second's
    segments = Segments(torch.tensor([0, 10, 20]))
    groups = random_groups(segments, 5, Streams.of(0, ["a", "b"], "x"))
    row, col = x.nonzero().T
    matrix = SparseMatrix.from_coo(row, col, x[row, col], (20, 12)) if sparse else x
    found = group_features(Features(matrix, segments), groups).dense()
    for k in range(2):
        mine = slice(10 * k, 10 * k + 10)
        common = (x[mine] != 0).sum(0) >= 5
        for g in range(2 * k, 2 * k + 2):
            expected = x[mine][groups.of[mine] == g].mean(0) * common
            torch.testing.assert_close(found[g], expected)
    assert float(found[:, 0].sum()) == 0
    assert float(found[:, 1].sum()) > 0


# FedSage+


def answers_of(method: Method[Any, Any], graph: GraphBatch, world: World) -> dict[str, torch.Tensor]:
    """What every client answers the same offers with: those that the unchanged world makes."""
    assert isinstance(method, FedSagePlus)
    offer = _offer(method, world)
    state = EmbeddedCohort.start(method, graph, world.task).states()[0]
    clients = Clients(graph, state, Streams.of(0, graph.ids, "test"), world.task)
    _, given = method.answer(clients, share(offer))
    return given.fgen


def _offer(method: FedSagePlus, world: World) -> Any:
    state = EmbeddedCohort.start(method, world.clients, world.task).states()[0]
    clients = Clients(world.clients, state, Streams.of(0, world.clients.ids, "test"), world.task)
    return method.offer(clients, Message(clients.ids))[1]


def test_answers_see_means_of_groups_only(world: World) -> None:
    """Two nodes of one group exchange their features: no answer changes by a bit. Two of different groups: it does."""
    x = (world.clients.x.dense() * 8).round() / 8  # sums of these are exact in any order
    graph = with_features(world.clients, x)
    groups = random_groups(graph.segments, 5, Streams.of(world.task.seed, graph.ids, "answering groups"))
    members = torch.nonzero(groups.of == 0).squeeze(1)
    stranger = torch.nonzero(groups.of == 1).squeeze(1)[:1]

    def exchanged(one: torch.Tensor, other: torch.Tensor) -> GraphBatch:
        moved = x.clone()
        moved[one], moved[other] = x[other], x[one]
        return with_features(world.clients, moved)

    for form, hidden in (("means", True), ("coarse", False)):
        method = small(FedSagePlus, answers=form, smallest=5, **SAGE)
        first = answers_of(method, graph, world)
        assert any(float(value[0].abs().sum()) > 0 for value in first.values()), "the first client answers nobody"
        again = answers_of(method, exchanged(members[:1], members[1:2]), world)
        # The features of nodes that exchange are matched with the same rows, so single nodes give the same sum as well.
        assert all(torch.equal(first[name], again[name]) for name in first) or not hidden
        moved = x.clone()
        change = torch.zeros(x.shape[1])
        change[3] = 1.0
        moved[members[0]] += change
        moved[members[1]] -= change  # the group's mean stays, both rows change
        third = answers_of(method, with_features(world.clients, moved), world)
        assert all(torch.equal(first[name], third[name]) for name in first) == hidden
    means = small(FedSagePlus, smallest=5, **SAGE)
    other = answers_of(means, exchanged(members[:1], stranger), world)
    assert not all(torch.equal(value, other[name]) for name, value in answers_of(means, graph, world).items())


def test_a_client_without_a_group_answers_nobody(world: World) -> None:
    largest = int(world.clients.sizes.max())
    silent = answers_of(small(FedSagePlus, smallest=largest + 1, **SAGE), world.clients, world)
    assert all(float(value.abs().sum()) == 0 for value in silent.values())


def test_what_all_answers_of_a_run_span(world: World) -> None:
    """The server's view of a whole run: as published it spans the features of a client, now no more than means of groups."""

    def rank(form: str) -> int:
        method = small(FedSagePlus, answers=form, smallest=5, softness=0.1, generator_epochs=40, **SAGE)
        assert isinstance(method, FedSagePlus)
        cohort, known = EmbeddedCohort.start(method, world.clients, world.task), []

        class Ledger:
            offers: Any = None

            def record(self, number: int, step: str, direction: str, message: Any) -> None:
                if step in ("answer", "feed_forward") and direction == "down":
                    self.offers = message.of_others() if step == "answer" else message
                elif step in ("answer", "feed_forward"):
                    known.append(_solved(self.offers, message, client=0))

        cohort._common.ledger = Ledger()
        server = method.init_server(world.task)
        for _ in range(40):
            server = method.generator_round(server, cohort)
        strength = torch.linalg.svdvals(torch.cat(known))
        return int((strength > 1e-5 * strength[0]).sum())

    nodes = int(world.clients.sizes[0])
    assert rank("exact") > 2 * (nodes // 5)
    assert 0 < rank("means") <= nodes // 5


def _solved(offers: Any, given: Any, client: int) -> torch.Tensor:
    """H^T S with what the server knows taken away: sums of what a client matched, one for each unit and the bias."""
    found = []
    for i in range(offers.rows.shape[1]):
        rows, fgen = offers.rows[0, i].double(), {name: value[0, i].double() for name, value in offers.fgen.items()}
        hidden = torch.tanh(rows @ fgen["feature1.weight"] + fgen["feature1.bias"])
        made = hidden @ fgen["feature2.weight"] + fgen["feature2.bias"]
        known = torch.cat([hidden, torch.ones(len(rows), 1)], 1)
        bias, weight = given.fgen["feature2.bias"][client, i], given.fgen["feature2.weight"][client, i]
        if float(bias.abs().sum()) > 0:
            slope = torch.cat([weight, bias.unsqueeze(0)]).double()
            found.append(known.T @ (2 * offers.weight[client, i].unsqueeze(1) * made) - slope)
    return torch.cat(found) if found else torch.zeros(0, made.shape[1], dtype=torch.float64)


def test_coarse_answers_are_few_and_rounded(world: World) -> None:
    """All that is ever answered are fewer equations than the client has nodes, and every number has eight binary places."""
    method = small(FedSagePlus, answers="coarse", generator_epochs=20, **SAGE)
    told = [tensors for step, tensors in heard(method, world.clients, world) if step == "answer"]
    for tensors in told:
        assert all(torch.equal(value, coarse(value)) for path, value in tensors.items() if path != "weight")
    for k, nodes in enumerate(world.clients.sizes.tolist()):
        answers = sum(int((t["fgen.feature2.bias"][k].abs().sum(1) > 0).sum()) for t in told)
        assert answers * (method.width + 1) < nodes  # type: ignore[attr-defined]
    assert sum(float(t["fgen.feature2.bias"].abs().sum()) for t in told) > 0


@pytest.mark.parametrize("form", ["means", "coarse"])
def test_the_sum_of_answers_is_enough(world: World, form: str) -> None:
    """Under the sealed engine no single answer is seen, and the generators end as they do when all are."""
    method = small(FedSagePlus, answers=form, **SAGE)

    def ended(kind: type[EmbeddedCohort[Any]]) -> Ending:
        cohort = kind.start(method, world.clients, world.task)
        server = method.init_server(world.task)
        for phase in method.plan():
            for _ in range(phase.times):
                server = phase.body(server, cohort)
        return Ending(server, list(cohort.states()), cohort.evaluate(method.deploy(server, cohort.ids)))

    seen, sealed = ended(EmbeddedCohort), ended(SealedCohort)
    for mine, theirs in ((seen.server, sealed.server), *zip(seen.states, sealed.states, strict=True)):
        for path, tensor in mine.tensors().items():
            torch.testing.assert_close(theirs.tensors()[path], tensor, rtol=1e-3, atol=1e-4)


# FedDEP


def test_an_edge_that_was_not_drawn_changes_nothing_that_leaves(world: World) -> None:
    """All messages of a run, bit by bit; and an edge that was drawn does change them."""
    for fields in ({}, {"proto": False}, {"batch_size": 0}, {"prototype_sigma": 0.0}):
        method = small(FedDep, **{**DEP, **fields})
        assert isinstance(method, FedDep)
        graph = world.clients
        state = EmbeddedCohort.start(method, graph, world.task).states()[0]
        drawn = drawn_graph(graph, method.edge_share, Streams(state.draw)).edge_index
        kept = {tuple(pair) for pair in drawn.T.tolist()}
        undrawn = next(pair for pair in graph.edge_index.T.tolist() if tuple(pair) not in kept)
        known = next(pair for pair in graph.edge_index.T.tolist() if tuple(pair) in kept)
        first = heard(method, graph, world)
        assert len(first) > 3
        assert is_same(first, heard(method, _without(graph, undrawn), world)), fields
        assert not is_same(first, heard(method, _without(graph, known), world)), fields
    # As published, the same edge is seen.
    published = small(FedDep, **DEP, as_published=True)
    assert not is_same(heard(published, graph, world), heard(published, _without(graph, undrawn), world))


def _without(graph: GraphBatch, pair: list[int]) -> GraphBatch:
    """Without one edge, in both directions."""
    ends = torch.tensor(pair).unsqueeze(1)
    gone = (graph.edge_index == ends).all(0) | (graph.edge_index == ends.flip(0)).all(0)
    return replace(graph, edge_index=graph.edge_index[:, ~gone])


def test_edges_are_drawn_with_the_probability_that_is_accounted_for(world: World) -> None:
    """Over many keys: each edge with probability q, both directions together, and two edges independently."""
    graph, share = world.clients.select(world.clients.ids[:1]), 0.3
    pairs = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    draws = []
    for key in range(400):
        drawn = drawn_graph(graph, share, Streams.of(key, graph.ids, "x")).edge_index
        forth, back = ({tuple(p) for p in index.T.tolist()} for index in (drawn, drawn.flip(0)))
        assert forth == back
        draws.append([tuple(p) in forth for p in pairs.T.tolist()])
    table = np.array(draws, dtype=float)
    assert abs(table.mean() - share) < 0.01
    assert np.abs(table.mean(0) - share).max() < 5 * math.sqrt(share * (1 - share) / 400)
    correlation = np.corrcoef(table.T) - np.eye(table.shape[1])
    assert np.abs(correlation).mean() < 1.2 / math.sqrt(400)


def test_the_account_is_of_one_draw_however_long_the_run(world: World) -> None:
    """(0, q): the chance that an edge is drawn at all, which more rounds do not change."""
    for rounds in (1, 100):
        method = small(FedDep, **DEP, edge_share=0.4, training={"rounds": rounds})
        found = [one for one in account(method, facts_of(world.clients), Disclosure()) if one.mechanism == "NFDP"]
        assert {(g.bound.epsilon, g.bound.delta) for g in found} == {(0.0, 0.4)}
        assert not any(g.vacuous for g in found)
        assert "weak protection: with a probability of up to 0.4 nothing is hidden" in found[0].in_words()
    published = account(small(FedDep, **DEP, as_published=True), facts_of(world.clients), Disclosure())
    assert all("the weights of all rounds" in g.in_words() for g in published)


def test_noise_on_prototypes_is_accounted_as_a_gaussian(world: World) -> None:
    """Balle and Wang (ICML 2018), equation 6: the exact delta of a Gaussian at the epsilon that is told."""
    disclosure = Disclosure()
    for name in world.clients.ids:
        disclosure.replies[name]["prototype"] = 1
    found = account(small(FedDep, **DEP, prototype_sigma=2.0), facts_of(world.clients), disclosure)
    bounds = {g.bound for g in found if g.mechanism == "Gaussian means"}
    (bound,) = bounds

    def normal(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2))

    sigma, eps = 2.0, bound.epsilon
    exact = normal(1 / (2 * sigma) - eps * sigma) - math.exp(eps) * normal(-1 / (2 * sigma) - eps * sigma)
    assert exact <= bound.delta
    assert exact > 0.3 * bound.delta


def test_noise_has_the_deviation_it_is_accounted_for(world: World) -> None:
    def told(sigma: float) -> torch.Tensor:
        sent = heard(small(FedDep, **{**DEP, "d_z": 64}, prototype_sigma=sigma, smallest=4), world.clients, world)
        return next(tensors["centres"] for step, tensors in sent if step == "prototype")

    noise = told(3.0) - told(0.0)
    assert float(noise.std()) == pytest.approx(3.0 * 2 / 4, rel=0.1)
    assert abs(float(noise.mean())) < 0.2


def test_no_prototype_is_of_few_nodes() -> None:
    """Small clusters join the nearest; every centre that is told is the mean of enough nodes, or none is told."""
    rng = torch.Generator().manual_seed(0)
    sizes = [30, 3, 12]
    segments = Segments(torch.tensor(np.cumsum([0, *sizes])))
    z = torch.randn(45, 4, generator=rng)
    cluster = torch.cat([torch.tensor([0] * 14 + [1] * 13 + [2, 2, 3]), torch.tensor([0, 1, 1]), torch.zeros(12).long()])
    centres = torch.stack(
        [
            torch.stack([z[a:b][cluster[a:b] == c].mean(0) if (cluster[a:b] == c).any() else z[a] for c in range(4)])
            for a, b in zip(segments.bounds[:-1], segments.bounds[1:], strict=True)
        ]
    )
    merged, of = without_small(z, centres, cluster, segments, smallest=5)
    told = told_centres(merged, segments, smallest=5)
    for k, (a, b) in enumerate(zip(segments.bounds[:-1], segments.bounds[1:], strict=True)):
        groups = [z[a:b][of[a:b] == c] for c in of[a:b].unique()]
        assert len(groups) == 1 or min(len(group) for group in groups) >= 5
        for centre in told[k]:
            if b - a < 5:
                assert float(centre.abs().sum()) == 0
            else:
                assert min(float((group.mean(0) - centre).abs().max()) for group in groups) < 1e-5
    assert len(of[:30].unique()) == 2


def test_clients_with_too_few_nodes_tell_no_prototype(world: World) -> None:
    sent = heard(small(FedDep, **DEP, smallest=10_000), world.clients, world)
    (centres,) = [tensors["centres"] for step, tensors in sent if step == "prototype"]
    assert float(centres.abs().sum()) == 0
    assert Prototypes(world.clients.ids, centres).ids == world.clients.ids


# FedGGR


def test_the_server_of_fedggr_sees_groups_only(world: World) -> None:
    """As many codes and gradients as groups, each code a mean over a group's smoothed features, by a dense computation."""
    method = small(FedGgr, **GGR, codes="groups", smallest=5)
    graph = world.clients
    sent = dict(heard(method, graph, world))
    groups = code_groups(graph, 5, world.task.seed)
    assert int(groups.sizes.min()) >= 5
    assert sent["send_group_codes"]["codes.values"].shape == (groups.segments.total, 6)
    assert sent["local_update"]["z_grad.values"].shape[0] == groups.segments.total
    a = torch.zeros(graph.num_nodes, graph.num_nodes)
    a[graph.edge_index[1], graph.edge_index[0]] = 1
    a += torch.eye(graph.num_nodes)
    a = a / torch.sqrt(a.sum(1, keepdim=True) * a.sum(1))
    smooth = a @ a @ graph.x.dense()
    means = torch.stack([smooth[groups.of == g].mean(0) for g in range(groups.segments.total)])
    # The codes are a linear map of these means, the same for all clients.
    codes = sent["send_group_codes"]["codes.values"]
    solution = torch.linalg.lstsq(means.double(), codes.double()).solution
    torch.testing.assert_close(means.double() @ solution, codes.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("codes", ["groups", "anchors"])
def test_power_iterations_see_groups_only(codes: str, world: World) -> None:
    """By a dense computation: sum_g |g| m_g m_g^T W over the nodes, and nothing of single ones."""
    method = small(FedGgr, **GGR, codes=codes, smallest=5)
    graph = world.clients
    first = next(tensors for step, tensors in heard(method, graph, world) if step == "train_autoencoder")
    basis = method.initial_autoencoder(world.task)["basis"][0]  # type: ignore[attr-defined]
    groups = code_groups(graph, 5, world.task.seed)
    a = torch.zeros(graph.num_nodes, graph.num_nodes)
    a[graph.edge_index[1], graph.edge_index[0]] = 1
    a += torch.eye(graph.num_nodes)
    a = a / torch.sqrt(a.sum(1, keepdim=True) * a.sum(1))
    smooth = a @ a @ graph.x.dense()
    for k in range(len(graph.ids)):
        start, end = groups.segments.bounds[k : k + 2]
        total = torch.zeros_like(basis)
        for g in range(start, end):
            mean = smooth[groups.of == g].mean(0)
            total += groups.sizes[g] * mean.unsqueeze(1) @ (mean.unsqueeze(0) @ basis)
        torch.testing.assert_close(first["autoencoder.basis"][k], total / graph.sizes[k], rtol=1e-3, atol=1e-5)


def test_the_server_of_fedggr_with_anchors_sees_sums_only(world: World) -> None:
    """What leaves is as large with half of the nodes, and anchors with few of a client's nodes are not spoken of."""
    method = small(FedGgr, **GGR, codes="anchors", anchors=9, anchor_rounds=4, smallest=5)
    fewer = world.clients.induced(torch.arange(0, world.clients.num_nodes, 2))
    sent, less = (heard(method, graph, world) for graph in (world.clients, fewer))
    assert {step for step, _ in sent} == {"train_autoencoder", "sum_near_anchors", "train_with_anchors"}
    for (_, tensors), (_, others) in zip(sent, less, strict=True):
        assert {path: tensor.shape for path, tensor in tensors.items()} == {p: t.shape for p, t in others.items()}
    for step, tensors in sent:
        if step == "sum_near_anchors":
            held = (tensors["counts"] * tensors["weight"].unsqueeze(1)).round()
            assert bool(((held == 0) | (held >= 5)).all()) and bool((held > 0).any())
            assert bool((tensors["sums"].abs().sum(2)[held == 0] == 0).all())


# FedProto


def test_fedproto_tells_which_classes_there_are_and_not_how_many(world: World) -> None:
    graph = world.clients
    owner, label = graph.segments.client[graph.train.nodes], graph.y[graph.train.nodes]
    count = torch.bincount(owner * 3 + label, minlength=12).view(4, 3)
    smallest = int(count.flatten().sort().values[4])
    told = heard(small(FedProto, smallest=smallest), graph, world)[0][1]
    assert torch.equal(told[f"params.{COUNTS}"], (count >= smallest).float())
    assert torch.equal(told[f"params.{PROTOTYPES}"].abs().sum(2) > 0, count >= smallest)
    assert told["weight"].tolist() == [1.0] * 4
    published = heard(small(FedProto, told="counts", smallest=1), graph, world)[0][1]
    assert torch.equal(published[f"params.{COUNTS}"], count.float())


# The free tests of the forms that are not the default; those of the defaults are in test_every_method.py

FORMS: dict[str, tuple[type[Method[Any, Any]], dict[str, Any]]] = {
    "exact answers": (FedSagePlus, {"answers": "exact", "generator_epochs": 3}),
    "coarse answers": (FedSagePlus, {"answers": "coarse", "generator_epochs": 3}),
    "published feddep": (FedDep, {**DEP, "as_published": True}),
    "noisy prototypes": (FedDep, {**DEP, "prototype_sigma": 1.0}),
    "codes of nodes": (FedGgr, {"codes": "nodes", "code_width": 256, "pretrain_rounds": 2}),
    "counts": (FedProto, {"told": "counts", "smallest": 1}),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    "hold", ["separable", "graphless_clients_can_take_part", "odd_clients_can_take_part", "messages_are_closed"]
)
def test_every_form_is_a_method_like_others(form: str, hold: str) -> None:
    kind, values = FORMS[form]
    testing.PROPERTIES[hold](kind, values)
