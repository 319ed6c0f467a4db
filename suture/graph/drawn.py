"""Edges drawn once: what is computed from them, however often, says nothing of an edge that was not drawn.

Every edge is drawn with the same probability q, in both directions together and independently of all others: whether it is
there is decided by the client's key and its two ends alone. An edge more or less in the graph therefore changes nothing at
all with probability 1 - q, so that whatever follows from the drawn edges is (0, q)-private for each (`privacy.accountant`).

In a simulation the key follows from the run's seed. A real owner has one of its own (`GraphBatch.secret`), which stays: in
every run the same edges are drawn, of a larger share those of a smaller one and more. Runs with shares q and q' together are
(0, max(q, q'))-private, where draws of their own would add up. An end is then the owner's own number of the node.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from suture.core.streams import Streams, unit
from suture.graph.batch import GraphBatch, Pairs


def drawn_graph(graph: GraphBatch, share: float, rng: Streams) -> GraphBatch:
    """The same nodes with a share of their edges; linked pairs to learn from that were not drawn are left out too."""
    kept = _drawn(graph, graph.edge_index, share, rng)
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    pairs = graph.pairs
    if pairs is not None:
        shown = (pairs.role != 1) | (pairs.label == 0) | _drawn(graph, pairs.nodes, share, rng)
        pairs = Pairs(pairs.nodes[:, shown], pairs.label[shown], pairs.role[shown])
    return replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=weight, pairs=pairs)


def _drawn(graph: GraphBatch, ends: Tensor, share: float, rng: Streams) -> Tensor:
    """Which of these pairs of nodes [2, E] are drawn, bool [E]."""
    if graph.secret is not None:
        return unit(graph.secret.fork("drawn edges").of_pairs(*graph.node_id[ends])) < share
    place = graph.segments.place
    return rng.of_pairs(graph.segments.client[ends[1]], place[ends[0]], place[ends[1]]) < share
