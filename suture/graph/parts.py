"""Parts of a batch that are spoken of by themselves: pairs of nodes, and some of its nodes.

Legend: P pairs, B nodes, E nodes with a role.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segments_of

if TYPE_CHECKING:
    from suture.graph.batch import GraphBatch


@dataclass(frozen=True)
class Pairs:
    """Pairs of nodes that are (label 1) or are not (0) linked. Shapes: nodes [2, P] flat positions, label and role [P]."""

    nodes: Tensor
    label: Tensor
    role: Tensor

    def moved(self, new_position: Tensor) -> Pairs:
        """The pairs whose nodes both have a new position (others are -1)."""
        nodes = new_position[self.nodes]
        inside = (nodes >= 0).all(0)
        return Pairs(nodes[:, inside], self.label[inside], self.role[inside])


@dataclass(frozen=True)
class View:
    """Some nodes of a graph whose outputs are wanted: a last layer need not compute the others.

    Shapes: nodes [B] flat positions sorted by client; the operators keep only these rows.
    """

    graph: GraphBatch
    nodes: Tensor

    @cached_property
    def segments(self) -> Segments:
        """How the nodes are divided among clients."""
        return segments_of(self.graph.segments.client[self.nodes], len(self.graph.ids))

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """Rows of the graph's GCN operator."""
        return self.graph.gcn_operator.take_rows(self.nodes)

    @cached_property
    def mean_operator(self) -> SparseMatrix:
        """Rows of the graph's mean operator."""
        return self.graph.mean_operator.take_rows(self.nodes)


@dataclass(frozen=True)
class Scored:
    """What is the same in every test of a graph. Shapes: cell [E] of chosen nodes."""

    chosen: slice | Tensor
    """Nodes with a role; others may have no label, and must not reach a metric."""
    cell: Tensor
    """Client and role of each, as 4 * client + role."""
    losses: tuple[tuple[Tensor, Tensor, Tensor], ...]
    """(nodes, their labels, their clients) of training and validation."""

    @staticmethod
    def of(graph: GraphBatch) -> Scored:
        """The nodes of a graph by their roles."""
        owner, with_role = graph.segments.client, (graph.role > 0).nonzero().squeeze(1)
        chosen = slice(None) if with_role.numel() == graph.num_nodes else with_role
        by_role = (graph.train.nodes, graph.nodes_in(2))
        losses = tuple((nodes, graph.y[nodes], owner[nodes]) for nodes in by_role)
        return Scored(chosen, (owner * 4 + graph.role)[chosen], losses)
