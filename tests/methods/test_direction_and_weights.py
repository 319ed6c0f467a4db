"""Methods on graphs whose edges have a direction and weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from harness import Ending, World, assert_close, brief, run_to_end, small, small_world
from torch import Tensor
from torch_geometric.utils import to_dense_adj

from suture.core.message import Rows
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.edges import symmetric
from suture.graph.impair import impair
from suture.graph.links import hide_from_uncut, hide_links
from suture.methods import METHODS
from suture.methods.fed_gnnk import with_nearest_neighbours
from suture.methods.fedggr.autoencoder import LinearAutoencoder, orthonormal
from suture.methods.fedpub.communities import missing_edges
from suture.methods.fedsage_plus.patch import Patch, usual_neighbour, with_generated_nodes
from suture.settings import SplitSettings
from suture.testing.world import weighted_world

WITHOUT_EDGES = {"fed_mlp"}
"""They never look at an edge."""
REFUSING = {"fedgcn"}
"""They refuse what they cannot hear, and `test_who_cannot_hear_says_so` holds them to it."""
HEARING = [name for name in METHODS if name not in REFUSING]


def dense(graph: GraphBatch) -> Tensor:
    """Entry (v, u): what the edge from u to v weighs."""
    adjacency: Tensor = to_dense_adj(graph.edge_index, edge_attr=graph.edge_weight, max_num_nodes=graph.num_nodes)[0].T
    return adjacency


def with_edges(graph: GraphBatch, *, weights: bool, mirrored: bool) -> GraphBatch:
    edges, weight = graph.edge_index, graph.edge_weight
    if mirrored:
        edges, weight = symmetric(edges, weight, graph.num_nodes)
    return dataclasses.replace(graph, edge_index=edges, edge_weight=weight if weights else None)


def ended(name: str, world: World) -> Ending:
    method = small(METHODS[name])
    if name == "fedggr":  # which nodes are one group is decided by the last digit of a similarity
        method = dataclasses.replace(method, codes="nodes")
    return run_to_end(method, world.graph_for(method), world.task)


@pytest.mark.parametrize("name", HEARING)
def test_every_method_hears_weights_and_direction(name: str) -> None:
    world = weighted_world()
    ends: dict[tuple[bool, bool], dict[str, Tensor]] = {}
    for weights, mirrored in ((True, False), (False, False), (False, True)):
        clients, whole = (with_edges(g, weights=weights, mirrored=mirrored) for g in (world.clients, world.whole))
        ends[weights, mirrored] = ended(name, World(clients, whole, world.task)).tensors()
    both, directed, plain = ends[True, False], ends[False, False], ends[False, True]

    def differs(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
        return any(left[key].shape != right[key].shape or not torch.equal(left[key], right[key]) for key in left)

    assert differs(both, directed) == (name not in WITHOUT_EDGES), "weights"
    assert differs(directed, plain) == (name not in WITHOUT_EDGES), "direction"


@pytest.mark.parametrize("name", REFUSING)
@pytest.mark.parametrize("weights", [True, False])
def test_who_cannot_hear_says_so(name: str, weights: bool) -> None:
    world = weighted_world()
    clients, whole = (with_edges(g, weights=weights, mirrored=weights) for g in (world.clients, world.whole))
    with pytest.raises(ConfigError, match="links that weigh alike and go both ways"):
        ended(name, World(clients, whole, world.task))


@pytest.mark.parametrize("name", HEARING)
def test_weights_of_one_change_nothing(name: str) -> None:
    world = small_world()
    ones = [dataclasses.replace(g, edge_weight=torch.ones(g.edge_index.shape[1])) for g in (world.clients, world.whole)]
    assert_close(ended(name, world).server, ended(name, World(ones[0], ones[1], world.task)).server, 1e-3)


def patch_of(graph: GraphBatch, per_client: list[list[int]]) -> Patch:
    """Nodes with random features for the given places of each client."""
    ptr = torch.tensor([0, *(len(places) for places in per_client)]).cumsum(0)
    source = torch.tensor([place for places in per_client for place in places], dtype=torch.int32)
    width = graph.x.width
    column = torch.arange(width, dtype=torch.int32).expand(len(source), width).contiguous()
    value = torch.randn(len(source), width, generator=torch.Generator().manual_seed(0))
    return Patch(graph.ids, Rows(source, ptr), Rows(column, ptr), Rows(value, ptr))


def dense_features(world: World) -> GraphBatch:
    x = dataclasses.replace(world.clients.x, matrix=world.clients.x.dense())
    return dataclasses.replace(world.clients, x=x)


@pytest.mark.parametrize("mirrored", [False, True])
def test_generated_neighbours_weigh_what_edges_weigh_on_average(mirrored: bool) -> None:
    graph = with_edges(dense_features(weighted_world()), weights=True, mirrored=mirrored)
    per_client = [[0, 7], [3], [], [1, 1]]
    mended = with_generated_nodes(graph, patch_of(graph, per_client))
    whole = dense(mended)
    for k, places in enumerate(per_client):
        start, end = mended.segments.bounds[k : k + 2]
        own = end - start - len(places)
        before = dense(graph.select([graph.ids[k]]))
        block = whole[start:end, start:end]
        assert torch.equal(block[:own, :own], before), "what was there stays as it was"
        expected = torch.zeros(own, len(places))
        for column, place in enumerate(places):
            expected[place, column] = before[before > 0].mean() if before.any() else 1.0
        torch.testing.assert_close(block[:own, own:], expected)
        back = block[own:, :own]
        torch.testing.assert_close(back, torch.zeros_like(back) if bool(graph.directed[k]) else expected.T)
    assert graph.directed.tolist() == [not mirrored] * 3 + [False], "the last client has no edge"
    generated = mended.node_id == -1
    assert (mended.y[generated] == -1).all() and not mended.role[generated].any()
    assert mended.target == graph.target


def test_the_usual_neighbour_is_the_one_that_is_heard() -> None:
    graph = dense_features(weighted_world())
    made = usual_neighbour(graph)
    for k, name in enumerate(graph.ids):
        one = graph.select([name])
        said = dense(one).sum(0)
        expected = (said / said.sum().clamp_min(1e-9)) @ one.x.dense()
        torch.testing.assert_close(made[k], expected, atol=1e-5, rtol=1e-4)


def test_nearest_neighbours_beside_weighted_edges() -> None:
    world = weighted_world().without_edges("owner-birch")
    graph = with_nearest_neighbours(world.clients, 3)
    owner = graph.segments.client[graph.edge_index[1]]
    assert graph.edge_weight is not None
    assert (graph.edge_weight[owner == 1] == 1).all() and (owner == 1).any()
    alone = with_nearest_neighbours(world.clients.select(["owner-birch"]), 3)
    assert torch.equal(dense(graph.select(["owner-birch"])), dense(alone))
    others = ["owner-ash", "owner-cedar"]
    assert torch.equal(dense(graph.select(others)), dense(world.clients.select(others)))


def test_the_linear_auto_encoder_still_finds_the_best_basis() -> None:
    """Its error after many steps is that of the eigenvectors, computed by dense algebra."""
    graph = weighted_world().clients.select(["owner-ash"])
    network = LinearAutoencoder(graph.x.width, 6)
    params = network.init(torch.Generator().manual_seed(0))
    for _ in range(300):
        params = orthonormal(network.step(params, graph)[0])
    error = float(network.step(params, graph)[1])

    adjacency = dense(graph).double()
    loops = torch.maximum(adjacency, adjacency.T) + torch.eye(graph.num_nodes)
    scale = loops.sum(1).rsqrt()
    four = torch.linalg.matrix_power(scale[:, None] * loops * scale, 4)
    x = graph.x.dense().double()
    values = torch.linalg.eigvalsh(x.T @ (2 * four - four @ four) @ x)
    assert float(values.min()) > -1e-6
    best = (x.square().sum() - values[-6:].sum()) / x.numel()
    assert error == pytest.approx(float(best), rel=1e-3)


def test_links_of_a_directed_graph_are_not_predicted() -> None:
    with pytest.raises(ConfigError, match=r"preprocess\.direction=mirror"):
        hide_links(weighted_world().clients, SplitSettings(), 0)


def test_held_out_links_take_their_weights_with_them() -> None:
    world = weighted_world()
    clients = with_edges(world.clients.select(world.clients.ids[:3]), weights=True, mirrored=True)
    hidden = hide_links(clients, SplitSettings(), 0)
    before, after = dense(clients), dense(hidden)
    assert 0 < int((after > 0).sum()) < int((before > 0).sum())
    assert torch.equal(after, torch.where(after > 0, before, 0.0))
    whole = with_edges(world.whole, weights=True, mirrored=True)
    left = dense(hide_from_uncut(whole, hidden, hidden.node_id))
    assert int((left > 0).sum()) < int((dense(whole) > 0).sum())
    assert torch.equal(left, torch.where(left > 0, dense(whole), 0.0))


@pytest.mark.parametrize("name", ["fedavg", "fedsage_plus"])
def test_links_of_a_weighted_graph_can_be_predicted(name: str) -> None:
    world = weighted_world()
    clients = with_edges(world.clients.select(world.clients.ids[:3]), weights=True, mirrored=True)
    method: Any = small(METHODS[name], **brief(METHODS[name]))
    method = dataclasses.replace(method, model=dataclasses.replace(method.model, head=False))
    task = dataclasses.replace(world.task, classes=8, link=True)
    end = run_to_end(method, hide_links(clients, SplitSettings(), 0), task)
    assert all(bool(value.isfinite().all()) for value in end.tensors().values())


def test_links_between_clients_are_missed_in_either_direction() -> None:
    world = weighted_world()
    members = [world.clients.node_id[a:b] for a, b in zip(*_bounds(world), strict=True)]
    data = world.whole.client_data(0)
    missing = missing_edges(data, members)
    assert torch.equal(missing, missing.T)
    owner = torch.full((data.num_nodes,), -1)
    for k, nodes in enumerate(members):
        owner[nodes] = k
    pairs = {frozenset(pair) for pair in data.edge_index.T.tolist()}
    between = [pair for pair in pairs if {int(owner[node]) for node in pair} == {0, 1}]
    assert int(missing[0, 1]) == len(between) > 0


def _bounds(world: World) -> tuple[list[int], list[int]]:
    bounds = world.clients.segments.bounds
    return bounds[:-1], bounds[1:]


def test_impaired_graphs_stay_directed() -> None:
    graph = weighted_world().clients
    hurt = impair(graph, 0.2, Streams.of(0, graph.ids))
    assert hurt.graph.directed[0]
    assert hurt.graph.edge_weight is not None
