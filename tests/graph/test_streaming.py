"""Streaming partitions: even, mostly whole communities, and better with every pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.graph.partition import make_partition
from suture.graph.streaming import SLACK, _levelled, stream_parts
from suture.settings import PartitionSettings


def _communities(nodes: int = 4000, clients: int = 8, inside: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """(edges [2, E] in order and in both directions, community of each node); numbers say nothing of communities."""
    rng = np.random.default_rng(0)
    community = rng.integers(0, clients, nodes)
    members = [np.flatnonzero(community == c) for c in range(clients)]
    source = rng.integers(0, nodes, 5 * nodes)
    near = np.array([rng.choice(members[community[node]]) for node in source])
    target = np.where(rng.random(source.size) < inside, near, rng.integers(0, nodes, source.size))
    both = np.stack([np.r_[source, target], np.r_[target, source]])
    return both[:, np.lexsort((both[1], both[0]))], community


def _cut_share(edges: np.ndarray, owner: np.ndarray) -> float:
    return float((owner[edges[0]] != owner[edges[1]]).mean())


def test_passes_bring_communities_together() -> None:
    edges, community = _communities()
    rowptr = np.searchsorted(edges[0], np.arange(4001))
    shares = [_cut_share(edges, stream_parts(rowptr, edges[1], 8, np.random.default_rng(1), p)) for p in (1, 8)]
    planted, by_chance = _cut_share(edges, community), 7 / 8
    assert planted < 0.1
    assert shares[1] < shares[0] < by_chance
    assert shares[1] < 0.4


@pytest.mark.parametrize("clients", [1, 3, 8])
def test_every_node_has_an_owner_and_nobody_too_many(clients: int) -> None:
    edges, _ = _communities(inside=1.0)
    rowptr = np.searchsorted(edges[0], np.arange(4001))
    sizes = np.bincount(stream_parts(rowptr, edges[1], clients, np.random.default_rng(0)), minlength=clients)
    assert sizes.sum() == 4000
    assert sizes.max() <= np.ceil((1 + SLACK) * 4000 / clients)


def test_what_has_no_neighbours_fills_the_smallest() -> None:
    assert np.bincount(_levelled(np.array([5, 1, 3]), 6), minlength=3).tolist() == [0, 4, 2]
    assert np.bincount(_levelled(np.array([5, 1, 3]), 1), minlength=3).tolist() == [0, 1, 0]
    assert np.bincount(_levelled(np.array([0, 0, 0, 0]), 7), minlength=4).tolist() == [2, 2, 2, 1]


def test_a_partition_by_name_is_the_same_for_the_same_seed() -> None:
    edges, _ = _communities(nodes=600, clients=3)
    data = Data(x=torch.zeros(600, 1), y=torch.zeros(600, dtype=torch.int64), edge_index=torch.from_numpy(edges))
    settings = PartitionSettings(kind="streaming", clients=3)
    one, again, other = (make_partition(data, settings, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.members, again.members, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.members, other.members, strict=True))
    assert sorted(torch.cat(one.members).tolist()) == list(range(600))
