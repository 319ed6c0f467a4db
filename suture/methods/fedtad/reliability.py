"""How far a client's knowledge of a class can be relied on (FedTAD, section on class-wise knowledge reliability).

A node's embedding is h_v = [x_v || p_1(v) .. p_walks(v)], where p_s(v) is the chance that a random walk of s steps from v
ends at v, on the graph with self loops. A labelled node is reliable as far as its neighbours are like it,

    phi_v = mean of cos(h_v, h_u) over u in N(v) and v itself,

and a class by the sum of phi_v over the client's training nodes of that class: much of it, among its own kind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import sparse_product
from suture.graph.batch import GraphBatch

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 8192, 256


def class_reliability(graph: GraphBatch, classes: int, walks: int) -> Tensor:
    """Phi of every client and class, [K, C]; zero where a client has no training node of a class."""
    topology_NS, is_trained = return_chances(graph, walks), graph.role == 1
    source, target = graph.edge_index[:, is_trained[graph.edge_index[1]]]
    # A node is like itself, be it that it has no features at all.
    total_N = torch.ones(graph.num_nodes, device=graph.device)
    for some in torch.split(torch.arange(source.numel(), device=graph.device), ROWS_AT_ONCE):
        here, there = (_embedding(graph, topology_NS, ends[some]) for ends in (target, source))
        total_N.index_add_(0, target[some], F.cosine_similarity(here, there, dim=1))
    count_N = 1 + torch.bincount(target, minlength=graph.num_nodes)
    nodes = graph.train.nodes
    cell = graph.segments.client[nodes] * classes + graph.y[nodes]
    found = total_N.new_zeros(len(graph.ids) * classes).index_add(0, cell, (total_N / count_N)[nodes])
    return found.view(-1, classes)


def return_chances(graph: GraphBatch, walks: int) -> Tensor:
    """p_1 .. p_walks of every node, [N, walks].

    Column b of what is propagated is a walk from the b-th node of every client at once, as clients' graphs are apart. The
    work grows with edges times the nodes of the largest client.
    """
    segments, place = graph.segments, graph.segments.place
    # D~^-1/2 (A + I) D~^-1/2 has the same diagonal in every power as the walk's (A + I) D~^-1, where edges go both ways.
    operator, out = graph.gcn_operator, torch.zeros(graph.num_nodes, walks, device=graph.device)
    for first in range(0, int(graph.sizes.max()), COLUMNS_AT_ONCE):
        inside = torch.nonzero((place >= first) & (place < first + COLUMNS_AT_ONCE)).squeeze(1)
        now = torch.zeros(segments.total, COLUMNS_AT_ONCE, device=graph.device)
        now[inside, place[inside] - first] = 1.0
        for step in range(walks):
            now = sparse_product(operator, now)
            out[inside, step] = now[inside, place[inside] - first]
    return out


def _embedding(graph: GraphBatch, topology_NS: Tensor, nodes: Tensor) -> Tensor:
    """The embeddings of some nodes, [B, F + S]."""
    # Rows of an edge list need not be sorted by client, and `dense` does not ask whose they are.
    return torch.cat([graph.x.take(nodes, graph.segments).dense(), topology_NS[nodes]], 1)
