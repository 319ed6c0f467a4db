"""Edges for clients that have none: each node and those whose raw features are most like its own."""

from __future__ import annotations

from dataclasses import replace

import torch

from suture.core.kernels import segments_of
from suture.graph.batch import GraphBatch
from suture.nn.topk import neighbours, similarities


def with_nearest_neighbours(graph: GraphBatch, k: int) -> GraphBatch:
    """The batch in which every node of a graphless client is linked with its k nearest by cosine, in both directions.

    Clients that have edges keep theirs. Nodes that share no feature are not linked, be they the nearest: a node without any
    feature stays alone. Computed once for a batch.
    """
    return graph.completed(("nearest neighbours", k), lambda batch: _linked(batch, k))


def _linked(graph: GraphBatch, k: int) -> GraphBatch:
    nodes = torch.nonzero(graph.graphless[graph.segments.client]).squeeze(1)
    if not nodes.numel():
        return graph
    segments = segments_of(graph.segments.client[nodes], len(graph.ids))
    x_NF = graph.x.take(nodes, segments).dense()
    links = neighbours(x_NF, k, segments)
    alike = similarities(x_NF, links, "cosine") > 0
    chosen = torch.stack([links.neighbour[alike], links.node[alike]])
    # A pair that chose each other is one edge.
    both = torch.unique(torch.cat([chosen, chosen.flip(0)], 1), dim=1)
    return replace(graph, edge_index=torch.cat([graph.edge_index, nodes[both]], 1))
