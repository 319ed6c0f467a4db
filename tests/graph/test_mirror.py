"""Edges in order, against PyG's functions of the same purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.utils import coalesce, is_undirected, to_undirected

from suture.graph.mirror import both_ways, goes_both_ways, in_order

NODES = 40


def edges(seed: int, count: int = 300) -> tuple[Tensor, Tensor]:
    """Edges in any order, some of them repeated, some in both directions; weights that add without rounding."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(NODES, (2, count), generator=rng), torch.randint(1, 9, (count,), generator=rng).float()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [0, 1, 300])
def test_as_pyg_has_them(seed: int, count: int) -> None:
    index, weight = edges(seed, count)
    assert torch.equal(in_order(index, None, NODES)[0], coalesce(index, num_nodes=NODES))
    assert torch.equal(both_ways(index, None, NODES)[0], to_undirected(index, num_nodes=NODES))
    for ours, theirs in (
        (in_order(index, weight, NODES), coalesce(index, weight, num_nodes=NODES, reduce="sum")),
        (both_ways(index, weight, NODES), to_undirected(index, weight, num_nodes=NODES, reduce="add")),
    ):
        assert ours[1] is not None
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("seed", range(5))
def test_one_edge_that_goes_one_way_is_found(seed: int) -> None:
    index, weight = both_ways(*edges(seed), NODES)
    assert weight is not None
    assert goes_both_ways(index, None, NODES) and goes_both_ways(index, weight, NODES)
    kept = torch.arange(index.shape[1]) != int(torch.nonzero(index[0] != index[1])[seed])
    assert not goes_both_ways(index[:, kept], None, NODES)
    assert not is_undirected(index[:, kept], num_nodes=NODES)
    heavier = weight + ~kept
    assert goes_both_ways(index, None, NODES) and not goes_both_ways(index, heavier, NODES)


def test_no_edges_go_both_ways() -> None:
    assert goes_both_ways(torch.empty(2, 0, dtype=torch.int64), None, 3)
