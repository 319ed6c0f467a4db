"""A part of a large graph that is still one: neighbourhoods of every owner, not nodes drawn one by one."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from suture.graph.data import select_nodes
from suture.graph.partition import stream

STARTS = 50
"""As many nodes as an owner's sample begins at."""


def sampled(data: Data, share: float, seed: int) -> Data:
    """About this share of every owner's nodes; edges between those that stay.

    From a few nodes of each owner on, neighbours and their neighbours at the same owner are taken until there are enough;
    where a neighbourhood ends, another begins.
    """
    nodes = int(data.num_nodes)
    owner = np.zeros(nodes, dtype=np.int64) if data.get("client") is None else data.client.numpy()
    source, target = data.edge_index.numpy()
    inside = owner[source] == owner[target]
    ones = np.ones(int(inside.sum()), dtype=np.int8)
    adjacency = sp.csr_matrix((ones, (source[inside], target[inside])), shape=(nodes, nodes))
    rng = stream(seed, "assess/sample")
    kept = [_around(adjacency, rng.permutation(np.flatnonzero(owner == number)), share) for number in np.unique(owner)]
    return select_nodes(data, torch.from_numpy(np.sort(np.concatenate(kept))))


def _around(adjacency: sp.csr_matrix, mixed: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The part of one owner's nodes, which come in the order in which they may begin a neighbourhood."""
    wanted = max(1, round(share * len(mixed)))
    found = np.zeros(adjacency.shape[0], dtype=bool)
    taken: list[NDArray[np.int64]] = []
    number, next_start = 0, 0
    front = np.zeros(0, dtype=np.int64)
    while number < wanted:
        if not len(front):
            begin = mixed[next_start : next_start + STARTS]
            next_start += STARTS
            front = begin[~found[begin]]
        front = front[: wanted - number]
        found[front] = True
        taken.append(front)
        number += len(front)
        around = np.unique(adjacency[front].indices) if len(front) else front
        front = around[~found[around]]
    return np.concatenate(taken)
