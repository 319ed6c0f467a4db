"""What edges with direction and weights mean to a layer: the operators of a graph, as functions of its edges.

A row of `edge_index` [2, E] is (source, target): a node hears from the sources of the edges into it, and its degree is what
comes in. `weight` [E], above 0, is None where all edges weigh alike. Legend: K clients, N nodes, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, pointers, segments_of


def adjacency(edge_index: Tensor, weight: Tensor | None, nodes: int) -> SparseMatrix:
    """Row v lists the nodes v hears from, with the weights of the edges (one without weights), [N, N]."""
    source, target = edge_index
    value = torch.ones(source.numel(), device=source.device) if weight is None else weight
    return SparseMatrix.from_coo(target, source, value, (nodes, nodes))


def bounds_of(edge_index: Tensor, segments: Segments) -> Tensor | None:
    """Where the edges of each client begin and end, int64 [K + 1]; None if they do not lie client after client."""
    owner = segments.client[edge_index[1]]
    return None if bool((owner.diff() < 0).any()) else segments_of(owner, segments.clients).ptr


def of_clients(edge_index: Tensor, bounds: Tensor, chosen: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
    """(places, ends [2, .]) of the edges of some clients, in their order; client chosen[i]'s nodes move by move[i]."""
    count = bounds[chosen + 1] - bounds[chosen]
    which = torch.repeat_interleave(torch.arange(chosen.numel(), device=chosen.device), count)
    first = pointers(count)[:-1]
    place = torch.arange(which.numel(), device=chosen.device) + (bounds[chosen] - first)[which]
    return place, edge_index[:, place] + move[which]


def averaging(listed: SparseMatrix, weighted: bool) -> SparseMatrix:
    """Row v averages the nodes that row v of an adjacency lists, by their weights; an empty row stays empty."""
    if weighted:
        weight = listed.val.double()
        share = (weight / row_sums(listed)[listed.row]).float()
    else:
        # Not by `row`, which the matrix would keep: eight bytes an entry.
        degree = listed.rowptr.diff()
        share = torch.repeat_interleave(1.0 / degree.clamp_min(1), degree)
    return SparseMatrix(listed.rowptr, listed.col, share, listed.columns)


def row_sums(matrix: SparseMatrix) -> Tensor:
    """The sum of each row, float64 [rows]."""
    return torch.bincount(matrix.row, matrix.val.double(), minlength=matrix.rows)


def gcn_normalised(edge_index: Tensor, weight: Tensor | None, nodes: int) -> SparseMatrix:
    """D^-1/2 (A + I) D^-1/2 with the weights in A, and in D what comes into a node: PyG's `gcn_norm`, [N, N].

    Edges with a direction make it asymmetric; the sender, too, is scaled by what it hears, not by what it says.
    """
    # 32-bit numbers take half the memory of ten million edges.
    loops = torch.arange(nodes, device=edge_index.device, dtype=torch.int32 if nodes < 2**31 else torch.int64)
    source, target = (torch.cat([end.to(loops.dtype), loops]) for end in edge_index)
    if weight is None:
        scale = torch.bincount(target, minlength=nodes).float().rsqrt()
        value = scale[source].mul_(scale[target])
    else:
        weight = torch.cat([weight.double(), torch.ones_like(loops, dtype=torch.float64)])
        scale = torch.bincount(target, weight, minlength=nodes).rsqrt()
        value = (scale[source] * weight * scale[target]).float()
    return SparseMatrix.from_coo(target, source, value, (nodes, nodes))


def one_way(edge_index: Tensor, weight: Tensor | None, segments: Segments) -> Tensor:
    """Which clients have an edge without one of the same weight in the other direction, bool [K]."""
    source, target = edge_index
    forth, back = source * segments.total + target, target * segments.total + source
    # Sorted, a client's edges lie in the same places of both lists, since no edge leaves a client.
    one, other = torch.argsort(forth), torch.argsort(back)
    differs = forth[one] != back[other]
    if weight is not None:
        differs |= weight[one] != weight[other]
    return torch.bincount(segments.client[source[one[differs]]], minlength=segments.clients) > 0


def mean_weights(edge_index: Tensor, weight: Tensor | None, segments: Segments) -> Tensor:
    """What an edge of each client weighs on average, float [K]; 1 if it has no weights or no edges."""
    if weight is None:
        return torch.ones(segments.clients, device=edge_index.device)
    owner = segments.client[edge_index[1]]
    total = torch.bincount(owner, weight.double(), minlength=segments.clients)
    count = torch.bincount(owner, minlength=segments.clients)
    return torch.where(count > 0, total / count.clamp_min(1), 1.0).float()


def symmetric(edge_index: Tensor, weight: Tensor | None, nodes: int) -> tuple[Tensor, Tensor | None]:
    """Every edge in both directions; where both are there, both get the larger weight.

    So what is symmetric already stays as it is, beside clients whose edges are not (`mirror.both_ways` adds weights).
    """
    source, target = torch.cat([edge_index, edge_index.flip(0)], 1)
    key, place = torch.unique(source * nodes + target, return_inverse=True)
    pairs = torch.stack([key // nodes, key % nodes])
    if weight is None:
        return pairs, None
    return pairs, weight.new_zeros(key.numel()).scatter_reduce(0, place, torch.cat([weight, weight]), "amax")
