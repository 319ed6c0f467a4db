"""FedGCN against the uncut graph, by a dense computation, and what it does not send."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from harness import small, small_world
from numpy.testing import assert_allclose

from suture.core.message import Model, Nothing
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.method import Clients
from suture.methods.fedgcn import FedGcn, Sums


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
