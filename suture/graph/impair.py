"""Graph impairing: hide some nodes of every client together with their links, so that there is something known to recover.

Who trains to generate missing neighbours needs nodes whose missing neighbours are known. Each client therefore holds out a
share h of its own nodes; what is left, the impaired graph, is to be mended, and the hidden neighbours are the truth
(FedSage+, section 4.1; FedDEP hides the same way).

Any node may be hidden, whatever its role: only features and links of hidden nodes are used, never their labels, and a
client sees features and links of its validation and test nodes while training anyway. Nodes that remain keep their labels
and roles. Which nodes are hidden depends on the client's own stream alone.

Legend: K clients, N nodes of the given graph, R remaining nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch


@dataclass(frozen=True)
class Impaired:
    """What is left of a graph, and what was hidden of it.

    `graph` holds the remaining nodes and the links among them; `remaining` [R] says where these nodes stand in the given
    graph; row v of `hidden` [R, N] lists the hidden neighbours that v, which remained, heard from, as positions in the given
    graph, with the weights of the lost edges.
    """

    graph: GraphBatch
    remaining: Tensor
    hidden: SparseMatrix

    @property
    def count(self) -> Tensor:
        """How many neighbours each remaining node lost, n_v, int64 [R]."""
        return self.hidden.rowptr.diff().long()


def impair(graph: GraphBatch, share: float, rng: Streams) -> Impaired:
    """Hide `share` of every client's nodes: at least one, and never all of them."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of hidden nodes must lie between 0 and 1, got {share}; the paper has 0.03 to 0.28")
    concealed = hidden_nodes(graph, share, rng)
    remaining = torch.nonzero(~concealed).squeeze(1)
    new_position = torch.full((graph.num_nodes,), -1, device=graph.device)
    new_position[remaining] = torch.arange(remaining.numel(), device=graph.device)
    source, target = graph.edge_index
    lost = concealed[source] & ~concealed[target]
    row, col = new_position[target[lost]], source[lost]
    weight = torch.ones(row.numel(), device=graph.device) if graph.edge_weight is None else graph.edge_weight[lost]
    hidden = SparseMatrix.from_coo(row, col, weight, (remaining.numel(), graph.num_nodes))
    return Impaired(graph.induced(remaining), remaining, hidden)


def hidden_nodes(graph: GraphBatch, share: float, rng: Streams) -> Tensor:
    """Which nodes to hide, bool [N]: a random subset of each client's nodes."""
    wanted = (graph.sizes * share).round().long().clamp_min(1).minimum(graph.sizes - 1).clamp_min(0)  # [K]
    order = rng.shuffle(graph.segments.ptr)
    concealed = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    concealed[order[graph.segments.place < wanted[graph.segments.client]]] = True
    return concealed
