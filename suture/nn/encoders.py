"""What a node says of itself before its neighbours' rows are summed: a row of length one for every node.

    classifier   what a ridge regression on the client's own training nodes says of the node's label, [N, C]
    random       the node's features, projected at random by numbers that everybody draws from the run's seed, [N, W]

GAP (see `suture.nn.aggregates`) trains its encoder first. A regression has a closed form, so nothing is sent for it and
nobody waits for it; its columns are the labels, which mean the same at all clients, and few columns are what makes the noise
on sums bearable: in the columns of a bag of words it drowns everything. It is made of features and labels, not of edges,
so that at edge level it costs no privacy. At node level it would: one node's label reaches all rows. There, random is left.

Legend: N nodes of one client, n of them to train on, F features, C labels.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from suture.core.kernels import SparseMatrix
from suture.core.streams import generator
from suture.graph.batch import Features, GraphBatch

RIDGE = 1.0
"""Added to the diagonal of the products of rows, which have length one."""
ITERATIONS = 60
"""Of conjugate gradients; with this ridge they end at rounding error after fewer."""


def row_normalised(rows_NW: Tensor) -> Tensor:
    """Every row of length one; one without any length stays as it is."""
    length: Tensor = torch.linalg.vector_norm(rows_NW, dim=1, keepdim=True)
    return rows_NW / length.clamp_min(1e-12)


def projected(x: Features, width: int, seed: int) -> Tensor:
    """Random, [N, W]."""
    projection = torch.randn(1, x.width, width, generator=generator(seed, "projection of features")) / width**0.5
    return row_normalised(x.times(projection.to(x.segments.ptr.device).expand(x.segments.clients, -1, -1)))


def classified(graph: GraphBatch, outputs: int) -> Tensor:
    """Classifier: each client's own, [N, C]; rows of a client without a training node are zero."""
    bounds, train, rows = graph.segments.bounds, graph.train, []
    told = _told(graph, outputs)
    for k, (start, end) in enumerate(itertools.pairwise(bounds)):
        nodes = train.nodes[train.segments.bounds[k] : train.segments.bounds[k + 1]]
        every = graph.x.between(start, end, graph.segments).matrix
        rows.append(row_normalised(_regression(every, nodes - start, told[nodes])))
    return torch.cat(rows)


def _told(graph: GraphBatch, outputs: int) -> Tensor:
    """Labels as numbers around zero, [N, C]; of nodes that do not train they may be anything."""
    if graph.target.kind == "class":
        return one_hot(graph.y.clamp_min(0), outputs).float() - 1.0 / outputs
    y_NC = graph.y.float().view(graph.num_nodes, -1)
    return y_NC - 0.5 if graph.target.kind == "labels" else y_NC


def _regression(x: Tensor | SparseMatrix, nodes: Tensor, told_nC: Tensor) -> Tensor:
    """X X_n' (X_n X_n' + ridge I)^-1 Y with rows of length one, by conjugate gradients, [N, C]."""
    taught: Tensor | SparseMatrix
    if isinstance(x, SparseMatrix):
        squared = x.val.new_zeros(x.rows).index_add_(0, x.row, x.val.square())
        x = SparseMatrix(x.rowptr, x.col, x.val / squared.sqrt().clamp_min(1e-12)[x.row], x.columns)
        taught = x.take_rows(nodes)
    else:
        x = row_normalised(x)
        taught = x[nodes]

    def backwards(value_nC: Tensor) -> Tensor:
        return taught.transposed.times(value_nC) if isinstance(taught, SparseMatrix) else taught.T @ value_nC

    def forwards(matrix: Tensor | SparseMatrix, value_FC: Tensor) -> Tensor:
        return matrix.times(value_FC) if isinstance(matrix, SparseMatrix) else matrix @ value_FC

    solution, residual = torch.zeros_like(told_nC), told_nC.clone()
    direction, length = residual.clone(), residual.square().sum(0)
    for _ in range(ITERATIONS if nodes.numel() else 0):
        product = forwards(taught, backwards(direction)) + RIDGE * direction
        pace = length / (direction * product).sum(0).clamp_min(1e-30)
        solution, residual = solution + pace * direction, residual - pace * product
        shorter = residual.square().sum(0)
        direction, length = residual + shorter / length.clamp_min(1e-30) * direction, shorter
    return forwards(x, backwards(solution))
