"""Nearest nodes to made-up feature rows, without ever laying out nodes x candidates x features.

The squared distance |g|^2 - 2 g.x + |x|^2 of a generated row g is smallest where |x|^2 - 2 g.x is, so matching needs inner
products only: one sparse product against all nodes of a client, or a gather over listed candidates. Nothing here is
differentiated: whoever trains takes the squared distance to the node found.

Legend: K clients, N nodes, B nodes of one client, F features, R generated rows, P pairs of a row and a candidate.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.graph.batch import Features

# Numbers held at a time while matching: 64 MB.
SCORES_AT_A_TIME = 1 << 24


def dense_rows(x: Features, nodes: Tensor) -> Tensor:
    """The features of some nodes, [len(nodes), F]."""
    return x.take(nodes, Segments(torch.tensor([0, nodes.numel()]))).dense()


def nearest_of_listed(generated_RF: Tensor, candidates: SparseMatrix, x: Features) -> Tensor:
    """For each generated row the nearest of its own candidates (row r of `candidates` lists at least one node), [R]."""
    row_P, node_P = candidates.row, candidates.col.long()
    per_pair = max(1, x.nonzeros // max(1, x.segments.total))
    blocks = zip(*(torch.split(t, max(1, SCORES_AT_A_TIME // per_pair)) for t in (row_P, node_P)), strict=True)
    products = torch.cat([_inner_products(generated_RF, row, node, x) for row, node in blocks])
    score_P = x.squared_norms[node_P] - 2 * products
    best_R = score_P.new_full((candidates.rows,), torch.inf).scatter_reduce(0, row_P, score_P, "amin")
    winners = torch.nonzero(score_P == best_R[row_P]).squeeze(1)
    # Of equally near candidates the first listed.
    first = torch.full((candidates.rows,), node_P.numel(), device=node_P.device)
    return node_P[first.scatter_reduce(0, row_P[winners], winners, "amin")]


def _inner_products(generated_RF: Tensor, row_P: Tensor, node_P: Tensor, x: Features) -> Tensor:
    if isinstance(x.matrix, SparseMatrix):
        listed = x.matrix.take_rows(node_P)
        terms = generated_RF[row_P[listed.row], listed.col.long()] * listed.val
        return torch.zeros(row_P.numel(), device=terms.device).index_add_(0, listed.row, terms)
    return (generated_RF[row_P] * x.matrix[node_P]).sum(1)


def _products_with_all(generated_RF: Tensor, x: Features) -> Tensor:
    """Inner products of all nodes with all rows, [N, R]."""
    columns_FR = generated_RF.T.contiguous()
    return x.matrix.times(columns_FR) if isinstance(x.matrix, SparseMatrix) else x.matrix @ columns_FR


def nearest_of_each_client(generated_RF: Tensor, x: Features) -> Tensor:
    """For each client and each generated row, the client's nearest node (flat position), [K, R]."""
    norms, bounds = x.squared_norms.unsqueeze(1), x.segments.bounds
    found = []
    for block in torch.split(generated_RF, max(1, SCORES_AT_A_TIME // max(1, x.segments.total))):
        score_NR = _products_with_all(block, x).mul_(-2).add_(norms)
        pieces = itertools.pairwise(bounds)
        found.append(torch.stack([score_NR[start:end].argmin(0) + start for start, end in pieces]))
    return torch.cat(found, 1)


def shares_of_each_client(generated_RF: Tensor, x: Features, softness: float) -> Iterator[Tensor]:
    """Client after client, the share of each of its nodes in the match of each generated row, [B, R]; columns sum to one.

    The nearest node takes all if `softness` is zero. Otherwise shares fall with the squared distance as
    exp(-distance / (softness x the row's mean distance from the client's nodes)): then the gradient of the soft minimum of
    the distances draws a row to the mean of the nodes with these shares.
    """
    for distance_BR in _distances_of_each_client(generated_RF, x):
        if distance_BR.shape[0] == 0:
            yield distance_BR
        elif softness == 0:
            yield torch.zeros_like(distance_BR).scatter_(0, distance_BR.argmin(0, keepdim=True), 1)
        else:
            scale_R = distance_BR.mean(0).clamp_min(1e-12).mul_(softness)
            yield torch.softmax(distance_BR.neg().div_(scale_R), 0)


def _distances_of_each_client(generated_RF: Tensor, x: Features) -> Iterator[Tensor]:
    """Client after client, squared distances of its nodes from the rows, [B, R]; so many clients at a time as fit."""
    square_R, bounds = generated_RF.square().sum(1), x.segments.bounds
    most = max(1, SCORES_AT_A_TIME // max(1, generated_RF.shape[0]))
    first = 0
    while first < x.segments.clients:
        last = max(first + 1, bisect.bisect_right(bounds, bounds[first] + most) - 1)
        start, end = bounds[first], bounds[last]
        piece = Segments(torch.tensor([0, end - start]))
        some = x if end - start == x.segments.total else x.between(start, end, piece)
        distance_NR = _products_with_all(generated_RF, some).mul_(-2).add_(x.squared_norms[start:end].unsqueeze(1))
        distance_NR += square_R
        for one, after in itertools.pairwise(bounds[first : last + 1]):
            yield distance_NR[one - start : after - start]
        first = last
