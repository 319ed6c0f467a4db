"""Nodes that carry, beside their features, a vector that something else than the owner's graph says of them.

Legend: N nodes, D width of such an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from torch import Tensor

from suture.core.kernels import Segments
from suture.graph.batch import GraphBatch, View
from suture.graph.features import Features

PER_GRAPH = ("_remembered", "_completed")
"""Where a graph keeps what others derived from it, which a copy may have differently."""


@dataclass(frozen=True)
class MendedFeatures(Features):
    """Node features with an embedding each: `embedding` [N, D]."""

    embedding: Tensor

    def take(self, index: Tensor, segments: Segments) -> MendedFeatures:
        """Features and embeddings of some nodes."""
        plain = super().take(index, segments)
        return MendedFeatures(plain.matrix, segments, self.embedding[index])

    def between(self, start: int, end: int, segments: Segments) -> MendedFeatures:
        """Features and embeddings of the nodes from `start` on and before `end`."""
        plain = super().between(start, end, segments)
        return MendedFeatures(plain.matrix, segments, self.embedding[start:end])


def with_embeddings(graph: GraphBatch, embedding_ND: Tensor) -> GraphBatch:
    """The same graphs with an embedding at every node, sharing all operators derived so far."""
    out = replace(graph, x=MendedFeatures(graph.x.matrix, graph.segments, embedding_ND))
    vars(out).update(derived(graph))
    return out


def with_features(graph: GraphBatch, x: Features) -> GraphBatch:
    """The same graphs with other features, sharing all operators derived so far."""
    out = replace(graph, x=x)
    vars(out).update(derived(graph, "gcn_input", "mean_input", "gcn_input_once", "mean_input_once", *PER_GRAPH))
    return out


def derived(graph: GraphBatch, *changed: str) -> dict[str, object]:
    """What has been derived from a graph so far, for a copy of it of which these do not hold."""
    own = {item.name for item in fields(graph)}.union(changed)
    # Views point back to the graph they were taken from, which is not the copy.
    return {name: value for name, value in vars(graph).items() if name not in own and not isinstance(value, View)}
