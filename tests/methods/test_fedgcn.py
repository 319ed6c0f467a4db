"""FedGCN against the uncut graph, by a dense computation, and what it does not send."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import small, small_world
from numpy.testing import assert_allclose

import suture
from suture.core.message import Model, Nothing
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.engines.sealed import SealedCohort
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.graph.boundary import Boundary
from suture.method import Clients
from suture.methods.fedgcn import FedGcn, Sums, shortened
from suture.privacy.gdp import gaussian_epsilon
from suture.privacy.mechanisms import NoisyLinks
from suture.report.privacy import read_privacy
from suture.testing.properties import PROPERTIES


def exchanged(method: Any) -> tuple[Any, EmbeddedCohort[Any]]:
    """(the server, the clients) after lines 1 to 3."""
    world = small_world()
    cohort, server = EmbeddedCohort.start(method, world.clients, world.task), method.init_server(world.task)
    return method.exchange_sums(server, cohort), cohort


def seen(method: Any, cohort: EmbeddedCohort[Any]) -> GraphBatch:
    """The graphs that clients train on."""
    found: list[GraphBatch] = []

    def look(clients: Clients[Any]) -> Nothing:
        found.append(method.seen(clients, training=True))
        return Nothing(clients.ids)

    cohort.peek(look)
    return found[0]


def dense_operator() -> np.ndarray:
    """D^-1/2 (A + I) D^-1/2 of the uncut graph."""
    whole = small_world().whole
    looped = np.eye(whole.num_nodes)
    looped[whole.edge_index[1], whole.edge_index[0]] = 1
    scale = 1 / np.sqrt(looped.sum(1))
    return looped * scale[:, None] * scale


@pytest.mark.parametrize("hops", [1, 2])
def test_the_first_layer_hears_the_rows_of_the_uncut_graph(hops: int) -> None:
    world = small_world()
    method = small(FedGcn, hops=hops, fewest=1)
    graph = seen(method, exchanged(method)[1])
    assert graph.gcn_input is not None
    own = graph.node_id >= 0
    mixed = dense_operator() @ world.whole.x.dense().double().numpy()
    assert_allclose(graph.gcn_input.dense()[own], mixed[graph.node_id[own]], atol=1e-5)


def test_with_two_hops_pieces_predict_what_the_whole_predicts() -> None:
    """Of any model of two layers."""
    world = small_world()
    method = small(FedGcn, hops=2, fewest=1)
    server, cohort = exchanged(method)
    graph = seen(method, cohort)
    params = {name: value + 0.1 for name, value in server.params.items()}
    with torch.no_grad():
        pieces = method.predict(graph, Model(graph.ids, tile(params, len(graph.ids))), world.task)
        whole = method.predict(world.whole, Model(world.whole.ids, params), world.task)
    own = graph.node_id >= 0
    assert int(own.sum()) == world.clients.num_nodes < graph.num_nodes
    assert_allclose(pieces[own], whole[graph.node_id[own]], atol=1e-5)


def test_without_links_it_is_fedavg_on_pieces() -> None:
    world = small_world()
    nothing = torch.empty(0, dtype=torch.int64)
    assert world.clients.boundary is not None
    unknown = dataclasses.replace(world.clients.boundary, node=nothing, foreign=nothing)
    blind = dataclasses.replace(world.clients, boundary=unknown)
    method = small(FedGcn, fewest=1)
    cohort = EmbeddedCohort.start(method, blind, world.task)
    method.exchange_sums(method.init_server(world.task), cohort)
    graph = seen(method, cohort)
    expected = blind.gcn_operator.times(blind.x.dense())
    assert graph.gcn_input is not None
    assert_allclose(graph.gcn_input.dense(), expected, atol=1e-6)
    assert_allclose(graph.gcn_operator.to_dense(), blind.gcn_operator.to_dense(), atol=1e-6)


@pytest.mark.parametrize("fewest", [1, 2, 3])
def test_no_sum_of_fewer_rows_leaves(fewest: int) -> None:
    sent: list[Sums] = []

    class Listener:
        def record(self, number: int, step: str, direction: str, message: Any) -> None:
            if step == "post_sums" and direction == "up":
                sent.append(message)

    world = small_world()
    method = small(FedGcn, fewest=fewest)
    cohort = EmbeddedCohort.start(method, world.clients, world.task, ledger=Listener())
    method.exchange_sums(method.init_server(world.task), cohort)
    counts = torch.cat([message.counts.values for message in sent])
    assert counts.numel() and int(counts.min()) == fewest, "there are sums of exactly so many"
    boundary = world.clients.boundary
    assert boundary is not None
    links = torch.stack([world.clients.segments.client[boundary.node], boundary.foreign], 1)
    by_hand = torch.unique(links, dim=0, return_counts=True)[1]
    assert counts.numel() == int((by_hand >= fewest).sum())


def test_noise_is_on_every_number_and_rows_are_clipped() -> None:
    world, clip, sigma = small_world(), 0.5, 3.0
    noisy = small(FedGcn, hops=1, fewest=1, clip=clip, sigma=sigma)
    plain = small(FedGcn, hops=1, fewest=1, clip=clip)
    rows = [exchanged(method)[1].states()[0].foreign.values for method in (noisy, plain)]
    told = rows[1][:, -1] > 0
    difference = (rows[0] - rows[1])[told, :-1]
    # What came from several owners has the noise of each.
    assert sigma * clip < float(difference.std()) < 2 * sigma * clip
    count = rows[1][told, -1]
    assert bool((rows[1][told, :-1].norm(dim=1) <= clip * count / np.sqrt(2) + 1e-6).all())
    assert world.clients.x.dense().norm(dim=1).max() > clip, "rows are longer than that"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sigma": 0.1}, "set fedgcn.clip"),
        ({"model": {"layers": 1}}, "at least 2"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        small(FedGcn, **values)


def foreign_parts(method: Any, engine: type[EmbeddedCohort[Any]] = EmbeddedCohort) -> torch.Tensor:
    """What everybody heard of its nodes' foreign neighbours."""
    world = small_world()
    cohort = engine.start(method, world.clients, world.task)
    method.exchange_sums(method.init_server(world.task), cohort)
    return torch.cat([state.foreign.values for state in cohort.states()])[:, :-1]


@pytest.mark.parametrize("engine", [EmbeddedCohort, SealedCohort])
def test_together_is_the_same_sum_of_which_only_the_whole_is_needed(engine: type[EmbeddedCohort[Any]]) -> None:
    apart = foreign_parts(small(FedGcn, fewest=1))
    assert_allclose(foreign_parts(small(FedGcn, fewest=1, together=True), engine), apart, atol=1e-5)
    assert float(apart.abs().sum()) > 1


@pytest.mark.parametrize("together", [False, True])
def test_no_sum_of_fewer_owners_is_heard(together: bool) -> None:
    world = small_world()
    boundary = world.clients.boundary
    assert boundary is not None
    links = torch.stack([boundary.foreign, world.clients.segments.client[boundary.node]], 1).unique(dim=0)
    address, owners = links[:, 0].unique(return_counts=True)
    heard = foreign_parts(small(FedGcn, fewest=1, owners=2, together=together)).abs().sum(1) > 0
    assert set(boundary.address[heard].tolist()) == set(address[owners >= 2].tolist()) != set(address.tolist())


@pytest.mark.parametrize(
    "holds", ["separable", "promised_sums_suffice", "messages_are_closed", "owners_understand_every_message"]
)
def test_free_tests_hold_together_with_noise(holds: str) -> None:
    PROPERTIES[holds](FedGcn, {"together": True, "fewest": 1, "clip": 1.0, "sigma": 0.1})


class GivenDegrees(FedGcn):
    """Numbers of links are told, so that an account takes them as given."""

    given: torch.Tensor

    def degrees(self, graph: GraphBatch) -> torch.Tensor:
        return self.given


def told_without_noise(method: FedGcn, graph: GraphBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """All sums of line 1 by (owner, address), and the own part of everybody's a, on a graph of one's choice."""
    known = graph.boundary
    assert known is not None
    addresses = 1000
    first = torch.zeros(len(graph.ids) * addresses, graph.x.width)
    place = graph.segments.client[known.node] * addresses + known.foreign
    first.index_add_(0, place, method.scaled_rows(graph)[known.node])
    return first, shortened(method.aggregated(graph, None), method.clip)


def moved(method: FedGcn, one: GraphBatch, other: GraphBatch) -> list[float]:
    """How far apart what is told of two graphs is, line by line."""
    pairs = zip(told_without_noise(method, one), told_without_noise(method, other), strict=True)
    return [float((a - b).norm()) for a, b in pairs]


def test_no_link_and_no_node_moves_more_than_the_account_says() -> None:
    world, clip = small_world(), 0.7
    graph, known = world.clients, world.clients.boundary
    assert known is not None
    method = small(GivenDegrees, fewest=1, clip=clip, sigma=1.0)
    object.__setattr__(method, "given", FedGcn.degrees(method, graph))
    (used,) = [one for one in method.mechanisms() if isinstance(one, NoisyLinks)]
    assert method.given.min() >= 1 and int(known.foreign.max()) < 1000
    found: dict[str, list[float]] = {"link": [], "node": []}
    for link in range(0, known.node.numel(), 3):
        kept = torch.arange(known.node.numel()) != link
        fewer = dataclasses.replace(graph, boundary=Boundary(known.node[kept], known.foreign[kept], known.address))
        found["link"].append(np.hypot(*moved(method, graph, fewer)))
    once = torch.nonzero(graph.edge_index[0] < graph.edge_index[1]).squeeze(1)
    for edge in once[::5].tolist():
        u, v = graph.edge_index[:, edge].tolist()
        same = ((graph.edge_index[0] == u) & (graph.edge_index[1] == v)) | (
            (graph.edge_index[0] == v) & (graph.edge_index[1] == u)
        )
        found["link"].append(
            np.hypot(*moved(method, graph, dataclasses.replace(graph, edge_index=graph.edge_index[:, ~same])))
        )
    for node in range(0, graph.num_nodes, 4):
        touching = (graph.edge_index == node).any(0)
        kept = known.node != node
        x = graph.x.dense().clone()
        x[node] = 0
        without = dataclasses.replace(
            graph,
            x=Features(x, graph.segments),
            edge_index=graph.edge_index[:, ~touching],
            boundary=Boundary(known.node[kept], known.foreign[kept], known.address),
        )
        found["node"].append(np.hypot(*moved(method, graph, without)))
    for level, most in (("link", used.link), ("node", used.node)):
        assert max(found[level]) <= most * clip + 1e-6
        assert max(found[level]) > 0.3 * most * clip, "the bound is not beside the point"


def test_noise_is_accounted_for_by_link_and_by_node(tmp_path: Path) -> None:
    sigma = 4.0
    settings = ["partition.boundary=both", "fedgcn.fewest=1", "fedgcn.clip=1", f"fedgcn.sigma={sigma}", "rounds=2"]
    suture.run("csbm:nodes=240", "fedgcn", clients=4, overrides=settings, out=tmp_path / "run")
    (run,) = read_privacy(tmp_path / "run", 1e-5)
    bounds = {one.mechanism: one for one in run.guarantees if one.client == "client-00"}
    assert bounds["Gaussian sums, link"].bound.epsilon == pytest.approx(gaussian_epsilon(np.sqrt(0.5) / sigma, 1e-5))
    assert bounds["Gaussian sums, node"].bound.epsilon == pytest.approx(gaussian_epsilon(np.sqrt(2) / sigma, 1e-5))
    assert "addresses" in bounds["Gaussian sums, link"].uncovered and bounds["Gaussian sums, link"].vacuous
