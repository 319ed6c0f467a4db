"""Clients without edges: their nodes, and the graphs that are learned for them (FedGLS).

A client keeps its graph as it counts its own nodes; a batch counts the nodes of all graphless clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix, segments_of
from suture.core.message import Rows
from suture.graph.batch import Features, GraphBatch
from suture.nn.graph_learner import LearnedGraph
from suture.nn.topk import Links


@dataclass(frozen=True)
class Edgeless:
    """The nodes of graphless clients. Shapes: nodes [N'] flat positions in the batch; `x` has their features, K clients."""

    nodes: Tensor
    x: Features

    @staticmethod
    def of(graph: GraphBatch) -> Edgeless:
        """Clients with edges have no node here."""
        nodes = torch.nonzero(graph.graphless[graph.segments.client]).squeeze(1)
        segments = segments_of(graph.segments.client[nodes], len(graph.ids))
        return Edgeless(nodes, graph.x.take(nodes, segments))

    def packed(self, links: Links, learned: LearnedGraph) -> tuple[Rows, Rows]:
        """A graph as its client counts: links, and the weights of S."""
        segments = self.x.segments
        owner = segments.client[links.node]
        first = segments.ptr[owner]
        pairs = torch.stack([links.node - first, links.neighbour - first], 1)
        entries = segments_of(segments.client[learned.row], segments.clients)
        return Rows(pairs, segments_of(owner, segments.clients).ptr), Rows(learned.weight, entries.ptr)

    def unpacked(self, links: Rows) -> Links:
        """Links in positions among the nodes of all graphless clients."""
        first = torch.repeat_interleave(self.x.segments.ptr[:-1], links.ptr.diff())
        return Links(links.values[:, 0] + first, links.values[:, 1] + first, self.x.segments.total)

    def unpacked_graph(self, links: Rows, weights: Rows) -> LearnedGraph:
        """S, of kept links and weights."""
        pairs = self.unpacked(links).with_loops().both_ways
        return LearnedGraph(pairs.row, pairs.col.long(), pairs.rowptr, weights.values)

    def completed(self, graph: GraphBatch, learned: LearnedGraph) -> GraphBatch:
        """The batch in which graphless clients propagate with S, everybody else with its edges."""
        base = graph.gcn_operator
        theirs = ~graph.graphless[graph.segments.client[base.row]]
        row = torch.cat([base.row[theirs], self.nodes[learned.row]])
        col = torch.cat([base.col[theirs].long(), self.nodes[learned.col]])
        val = torch.cat([base.val[theirs], learned.weight])
        return graph.propagating_with(SparseMatrix.from_coo(row, col, val, (graph.num_nodes, graph.num_nodes)))
