"""From generators to new neighbours: how many, how far they are trusted, and what is made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import World, small_world

from suture.core.kernels import Segments
from suture.core.message import Nothing
from suture.core.streams import Streams
from suture.graph.features import Features
from suture.graph.impair import impair
from suture.method import Clients
from suture.methods.fedsage_plus.mending import CALIBRATIONS, Mender
from suture.methods.fedsage_plus.neighgen import NeighGen
from suture.methods.fedsage_plus.patch import with_generated_nodes
from suture.testing.world import weighted_world


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _clients(world: World) -> Clients[Nothing]:
    ids = world.clients.ids
    return Clients(world.clients, Nothing(ids), Streams.of(0, ids, "test"), world.task)


def _mender(more: float = 1.0) -> Mender:
    """Other weights for each client, and generators that find `more` missing neighbours than fresh ones."""
    network, rng = NeighGen(40, latent=6, width=5), torch.Generator().manual_seed(0)
    params = {name: 0.3 * torch.randn(4, *value.shape[1:], generator=rng) for name, value in network.init(rng).items()}
    params["count.bias"] += more
    return Mender(network, params, most=5, unbiased=True)


def test_generated_neighbours_stay_in_the_range_of_the_clients_features(world: World) -> None:
    clients = _clients(world)
    x_dense = Features(world.clients.x.dense(), world.clients.segments)
    clients = replace(clients, graph=replace(clients.graph, x=x_dense))
    patch = _mender(more=3.0).patch(clients, torch.ones(4), entries=10)
    assert patch.value.values.shape[1] == 40, "dense features keep all entries"
    x = world.clients.x.dense()
    assert float(patch.value.values.min()) >= float(x.min())
    assert float(patch.value.values.max()) <= float(x.max())
    sources = patch.source.values.long() + world.clients.segments.ptr[:-1][Segments(patch.source.ptr).client]
    assert int(torch.bincount(sources).max()) <= 5


def mean_of(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """By weight; zero of nothing."""
    return np.average(rows, 0, weights) if len(rows) else np.zeros(40, dtype=np.float32)


@pytest.mark.parametrize("world", [small_world(), weighted_world()], ids=["plain", "with direction and weights"])
def test_generated_rows_are_followed_as_far_as_new_impaired_graphs_say(world: World) -> None:
    """Least squares by numpy, over neighbourhoods written out node by node."""
    mender, clients = _mender(), _clients(world)
    usual = world.clients.mean_weight.numpy()
    found = mender.trust(clients, 0.3)
    x = world.clients.x.dense().numpy()
    right: list[list[np.ndarray]] = [[] for _ in range(4)]
    made: list[list[np.ndarray]] = [[] for _ in range(4)]
    for draw in range(CALIBRATIONS):
        hurt = impair(world.clients, 0.3, Streams.of(world.task.seed, clients.ids, "calibrate", draw))
        seen, owner = hurt.graph.x.dense().numpy(), hurt.graph.segments.client.numpy()
        edges, weight = hurt.graph.edge_index.numpy(), np.ones(hurt.graph.edge_index.shape[1])
        if hurt.graph.edge_weight is not None:
            weight = hurt.graph.edge_weight.numpy()
        for k, draft in mender.drafts(hurt.graph, clients.rng):
            for place, node in enumerate(draft.nodes.tolist()):
                new = draft.rows_RF[draft.row == place].numpy()
                kept, kept_weight = seen[edges[0][edges[1] == node]], weight[edges[1] == node]
                start, end = hurt.hidden.rowptr[node : node + 2].tolist()
                lost, lost_weight = x[hurt.hidden.col[start:end].long().numpy()], hurt.hidden.val[start:end].numpy()
                mine = owner[edges[0]] == k
                known = mean_of(kept, kept_weight) if len(kept) else mean_of(seen[edges[0][mine]], weight[mine])
                whole = mean_of(np.concatenate([kept, lost]), np.concatenate([kept_weight, lost_weight]))
                right[k].append(whole - known if len(kept) + len(lost) else np.zeros_like(known))
                new_weight = np.full(len(new), usual[k])
                mended = mean_of(np.concatenate([kept, new]), np.concatenate([kept_weight, new_weight]))
                made[k].append(mended - known)
    for k in range(4):
        a, b = np.concatenate(made[k]), np.concatenate(right[k])
        assert float(found[k]) == pytest.approx(float(np.clip(a @ b / (a @ a), 0, 1)), abs=1e-4)
    assert float(found.max()) > 0


def test_without_trust_a_generated_neighbour_is_the_mean_of_those_known(world: World) -> None:
    """Then mending moves no neighbourhood; with full trust it adds what fGen makes."""
    mender, clients = _mender(), _clients(world)
    graph, x = world.clients, world.clients.x.dense()
    grown = with_generated_nodes(graph, mender.patch(clients, torch.zeros(4), entries=40))
    own = torch.nonzero(grown.node_id >= 0).squeeze(1)
    assert grown.num_nodes > graph.num_nodes
    before, after = graph.mean_operator.times(x), grown.mean_operator.times(grown.x.dense())[own]
    linked = graph.degree > 0
    torch.testing.assert_close(after[linked], before[linked], rtol=1e-4, atol=1e-5)
    drafts = torch.cat([made.rows_RF for _, made in mender.drafts(graph, clients.rng)])
    made = mender.patch(clients, torch.ones(4), entries=40).value.values
    assert torch.allclose(made.mean(), drafts.clamp(float(x.min()), float(x.max())).mean(), atol=1e-2)


def test_counts_are_rounded_without_bias_where_neighbours_are_known(world: World) -> None:
    mender, graph = _mender(more=-1.0), world.clients
    network, params = mender.network, mender.params
    wanted = network.missing(params, network.encode(params, graph), graph.degree, graph.segments)
    made = []
    for number in range(400):
        streams = Streams.of(number, graph.ids, "test")
        drawn = torch.zeros(graph.num_nodes)
        for _, draft in mender.drafts(graph, streams):
            drawn.index_add_(0, draft.nodes[draft.row], torch.ones(draft.row.numel()))
        made.append(drawn)
    mean, alone = torch.stack(made).mean(0), graph.degree == 0
    small_enough = wanted < mender.most - 1
    # Four standard deviations of a mean of 400 draws that vary by less than one half.
    torch.testing.assert_close(mean[small_enough & ~alone], wanted[small_enough & ~alone], rtol=0, atol=0.1)
    torch.testing.assert_close(mean[alone], wanted[alone].round().clamp(0, mender.most))
    printed = replace(mender, unbiased=False)
    rounded = sum(int(draft.row.numel()) for _, draft in printed.drafts(graph, streams))
    assert rounded == int(wanted.round().clamp(0, mender.most).sum())
