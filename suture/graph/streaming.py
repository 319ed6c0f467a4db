"""Cutting a graph in passes over its nodes, in memory that grows with nodes and not with edges (partition.kind=streaming).

METIS and Louvain hold a graph several times over. Linear deterministic greedy (LDG: Stanton and Kliot, Streaming graph
partitioning for large distributed graphs, KDD 2012) looks at a node with its neighbours and gives it to the client k with
the largest

    |neighbours that k holds already|  (1 - |nodes of k| / capacity),      capacity = (1 + SLACK) N / K

or to the smallest client where that is nowhere above zero. Further passes over the same stream see where neighbours went
before (restreaming: Nishimura and Ugander, KDD 2013), and lose far fewer links than the first.

Here nodes come in random blocks, and those of a block do not see where the others of it go: blocks are small against
clients, and all of a block is a few operations on arrays. Clients stay within their capacity exactly: who comes too late
goes to the smallest. Edges are read from where they lie, a block's at a time, so that they may be mapped from disk.
Legend: N nodes, K clients, B nodes of a block.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

PASSES, SLACK, BLOCKS = 8, 0.05, 200
"""Passes over the stream; how much larger than the mean a client may become; blocks of a pass, at least."""
MOST = 1 << 16
"""Nodes of a block at most."""


def stream_parts(
    rowptr: NDArray[np.int64], column: NDArray[np.int64], clients: int, rng: Generator, passes: int = PASSES
) -> NDArray[np.int64]:
    """The client of each node, int64 [N], from the neighbours of node v in column[rowptr[v]:rowptr[v + 1]]."""
    nodes = rowptr.size - 1
    capacity = int(np.ceil((1 + SLACK) * nodes / clients))
    owner = np.full(nodes, -1, dtype=np.int32)
    load = np.zeros(clients, dtype=np.int64)
    # Nodes whose numbers are near often belong together, so that a block is a run of numbers, and blocks come in any order.
    size = max(1, min(MOST, nodes // max(BLOCKS, 4 * clients)))
    starts = np.arange(0, nodes, size)
    for _ in range(passes):
        for start in rng.permutation(starts):
            block = slice(int(start), min(int(start) + size, nodes))
            held = owner[block][owner[block] >= 0]
            load -= np.bincount(held, minlength=clients)
            owner[block] = -1
            owner[block] = _placed(_links(rowptr, column, owner, block, clients), load, capacity)
            load += np.bincount(owner[block], minlength=clients)
    return owner.astype(np.int64)


def _links(
    rowptr: NDArray[np.int64], column: NDArray[np.int64], owner: NDArray[np.int32], block: slice, clients: int
) -> NDArray[np.int64]:
    """How many neighbours of each node of a block every client holds, [B, K]."""
    count = block.stop - block.start
    found = owner[column[rowptr[block.start] : rowptr[block.stop]]]
    row = np.repeat(np.arange(count), np.diff(rowptr[block.start : block.stop + 1]))
    known = found >= 0
    return np.bincount(row[known] * clients + found[known], minlength=count * clients).reshape(count, clients)


def _placed(links: NDArray[np.int64], load: NDArray[np.int64], capacity: int) -> NDArray[np.int32]:
    """The client of each node of a block; those with most neighbours at one client choose first."""
    score = links * (1 - load / capacity)
    best = score.argmax(1)
    undecided = score.max(1) <= 0
    chosen = np.where(undecided, -1, best)
    order = np.argsort(-score.max(1), kind="stable")
    room = np.maximum(capacity - load, 0)
    # The place of each node among those of its choice, in order; whoever comes after the room is filled is sent on.
    for client in np.unique(chosen[chosen >= 0]):
        mine = order[chosen[order] == client]
        chosen[mine[room[client] :]] = -1
    total = load + np.bincount(chosen[chosen >= 0], minlength=load.size)
    left = np.flatnonzero(chosen < 0)
    if left.size:
        chosen[left] = _levelled(total, left.size)
    return chosen.astype(np.int32)


def _levelled(load: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Clients for `count` nodes that fill the smallest up first, so that all become as even as can be."""
    order = np.argsort(load, kind="stable")
    heights = load[order]
    # How many it takes to bring the first i clients to the height of the next one.
    needed = np.append(np.cumsum(np.diff(heights) * np.arange(1, load.size)), np.iinfo(np.int64).max)
    few = int(np.searchsorted(needed, count)) + 1
    level, over = divmod(int(heights[:few].sum()) + count, few)
    given = level - heights[:few] + (np.arange(few) < over)
    return np.repeat(order[:few], given)
