"""Fed-GNNk: FedAvg where graphless clients link nearest neighbours. A baseline of FedGLS (Fu et al., TMLR, section 5.1.2).

    before training, client k without edges links each node with its `neighbours` nearest by raw features (kNN)
    then FedAvg; clients with edges use their own, and tests use the same graphs

The paper states neither the number of neighbours nor the metric. Here: cosine of the raw features, links in both
directions, and as many neighbours as FedGLS, so that the two differ in learning the graph alone. On Cora 5 validate better
than the default's 10 (docs/fedgls.md), and the protocol has 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.kernels import segments_of
from suture.core.message import Model
from suture.graph.batch import GraphBatch
from suture.method import Clients, Task
from suture.methods.averaging import Kept
from suture.methods.fedavg import FedAvg
from suture.nn.topk import neighbours, similarities
from suture.settings import Count


@dataclass(frozen=True)
class FedGnnk(FedAvg):
    """FedAvg over true graphs and nearest-neighbour graphs."""

    name: ClassVar[str] = "fed_gnnk"
    summary: ClassVar[str] = "FedAvg; clients without edges link nearest neighbours by raw features"
    paper: ClassVar[str] = "baseline of Fu et al., TMLR 2024"

    neighbours: Count = 10
    """Nodes that each node of a graphless client chooses to be linked with."""

    def seen(self, clients: Clients[Kept], training: bool) -> GraphBatch:
        """The completed graphs."""
        return self.completed(clients.graph)

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C] on the completed graphs."""
        return super().predict(self.completed(graph), model, task)

    def completed(self, graph: GraphBatch) -> GraphBatch:
        """The graphs with edges for everybody."""
        return with_nearest_neighbours(graph, self.neighbours)


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
    edges = torch.cat([graph.edge_index, nodes[both]], 1)
    if graph.edge_weight is None:
        return replace(graph, edge_index=edges)
    # A graphless client has no weights of its own: all of its new edges weigh alike, as much as a node itself in a GCN.
    weight = torch.cat([graph.edge_weight, graph.edge_weight.new_ones(both.shape[1])])
    return replace(graph, edge_index=edges, edge_weight=weight)
