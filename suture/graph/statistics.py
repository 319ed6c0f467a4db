"""What a cut costs and how unlike its clients are, measured as the papers do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from suture.graph.cut import Cut
from suture.graph.partition import undirected_edges
from suture.graph.splits import Role

BINS = 10


@dataclass(frozen=True)
class CutStatistics:
    """One cut in numbers; edges are undirected and counted once."""

    nodes: tuple[int, ...]
    """Nodes of each client."""
    edges: tuple[int, ...]
    """Edges between two nodes of the client; of a graphless client, those it is not shown."""
    train_nodes: tuple[int, ...]
    """Training nodes of each client."""
    missing_links: int
    """Edges of the uncut graph that no client holds."""
    missing_ratio: float
    """`missing_links` over all edges."""
    boundary_edges: int
    """Edges to nodes that are in nobody's table, of a graph that knows of them."""
    label_heterogeneity: float
    """Median Jensen-Shannon distance between clients' label distributions, as FED-PUB measures it."""
    clustering_coefficient: float
    """Watts-Strogatz coefficient, mean over a client's nodes, then over clients."""


def describe(data: Data, cut: Cut) -> CutStatistics:
    """Measures the cut of this graph."""
    edges = undirected_edges(data)
    members = [nodes.numpy() for nodes in cut.partition.members]
    held = np.zeros(len(edges), dtype=bool)
    edge_counts: list[int] = []
    clustering: list[float] = []
    position = np.full(int(data.num_nodes), -1, dtype=np.int64)
    for nodes in members:
        position[nodes] = np.arange(len(nodes))
        local = position[edges]
        inside = (local >= 0).all(axis=1)
        held |= inside
        edge_counts.append(int(inside.sum()))
        clustering.append(mean_clustering(len(nodes), local[inside]))
        position[nodes] = -1
    missing = int((~held).sum())
    return CutStatistics(
        nodes=tuple(len(nodes) for nodes in members),
        edges=tuple(edge_counts),
        train_nodes=tuple(int((roles == Role.TRAIN).sum()) for roles in cut.split.client_roles),
        missing_links=missing,
        missing_ratio=missing / max(len(edges), 1),
        boundary_edges=0 if data.get("boundary_node") is None else int(data.boundary_node.numel()),
        label_heterogeneity=heterogeneity(data.y.numpy(), members),
        clustering_coefficient=float(np.mean(clustering)),
    )


def mean_clustering(nodes: int, edges: NDArray[np.int64]) -> float:
    """Share of a node's neighbour pairs that are linked, mean over nodes; 0 for nodes with fewer than two."""
    import igraph  # a second to import, with its drawing libraries

    graph = igraph.Graph(n=nodes, edges=edges)
    return float(np.mean(graph.transitivity_local_undirected(mode="zero")))


def heterogeneity(y: NDArray[Any], members: list[NDArray[np.int64]]) -> float:
    """`label_heterogeneity` of what is known, whatever is predicted.

    Of several labels each is a distribution of its own, and the mean counts; numbers are put into ten bins that all
    clients together fill alike. NaN where nobody knows anything.
    """
    if not np.issubdtype(y.dtype, np.floating):
        return _of_known(y, members)
    columns = y.reshape(len(y), -1).T
    each = [_of_known(in_bins(column), members) for column in columns]
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")


def in_bins(value_N: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers as the tenth they belong to (labels of 0 and 1 as themselves), -1 where they are not known."""
    known = ~np.isnan(value_N)
    inner = np.unique(np.quantile(value_N[known], np.linspace(0, 1, BINS + 1)[1:-1])) if known.any() else np.zeros(0)
    return np.where(known, np.searchsorted(inner, value_N, side="left"), -1)


def _of_known(labels: NDArray[Any], members: list[NDArray[np.int64]]) -> float:
    known = [nodes[labels[nodes] >= 0] for nodes in members]
    known = [nodes for nodes in known if len(nodes)]
    return label_heterogeneity(labels, known) if known else float("nan")


def label_heterogeneity(labels: NDArray[np.int64], members: list[NDArray[np.int64]]) -> float:
    """Median of the `label_distances` between clients.

    Over all K * K ordered pairs, a client with itself included: that is what FED-PUB's Table 4 holds, although its text
    says divergence between pairs (docs/partitions.md shows how we know).
    """
    return float(np.median(label_distances(labels, members)))


def label_distances(labels: NDArray[np.int64], members: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Jensen-Shannon distances sqrt(JSD), natural logarithm, between clients' label distributions [K, K]."""
    counts = np.stack([np.bincount(labels[nodes], minlength=labels.max() + 1) for nodes in members])
    p_KC = counts / counts.sum(axis=1, keepdims=True)
    entropy_K = _entropy(p_KC)
    mixed_KK = _entropy((p_KC[:, None] + p_KC[None, :]) / 2)
    divergence_KK = mixed_KK - (entropy_K[:, None] + entropy_K[None, :]) / 2
    return np.sqrt(np.maximum(divergence_KK, 0.0))


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    terms = np.log(p, where=p > 0, out=np.zeros_like(p)) * p
    return -np.asarray(terms.sum(axis=-1), dtype=np.float64)
