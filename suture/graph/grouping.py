"""Groups of nodes: what is told of a group of enough nodes is told of none of them.

Who sends means of groups instead of rows of nodes hides a node among those it is grouped with (micro-aggregation,
Domingo-Ferrer and Mateo-Sanz, IEEE TKDE 2002). Groups are made once, by each client from its own nodes, and none has fewer
than `smallest`; a client with fewer nodes has no group at all, and nothing to tell.

    at random    means say least of single nodes
    by likeness  a node's group is near to it: for those who must find its like elsewhere

Legend: K clients, N nodes, G groups of all clients, D width of a point, F features.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, pointers
from suture.core.streams import Streams
from suture.graph.batch import Features


@dataclass(frozen=True)
class Groups:
    """Whose groups they are (`segments`), and the group of each node: `of` [N], flat numbers, -1 for none."""

    of: Tensor
    segments: Segments

    @cached_property
    def members(self) -> Tensor:
        """Nodes that are in a group, [M]."""
        return torch.nonzero(self.of >= 0).squeeze(1)

    @cached_property
    def sizes(self) -> Tensor:
        """Nodes of each group, int64 [G]."""
        return torch.bincount(self.of[self.members], minlength=self.segments.total)

    def sums(self, values_ND: Tensor) -> Tensor:
        """The sum over each group's nodes, [G, D]."""
        total = values_ND.new_zeros(self.segments.total, values_ND.shape[1])
        return total.index_add_(0, self.of[self.members], values_ND[self.members])

    def means(self, values_ND: Tensor) -> Tensor:
        """The mean over each group's nodes, [G, D]."""
        return self.sums(values_ND) / self.sizes.unsqueeze(1)

    def spread(self, values_GD: Tensor) -> Tensor:
        """To each node what its group has, [N, D]; nothing, so zero, to a node without a group."""
        out = values_GD.new_zeros(self.of.numel(), values_GD.shape[1])
        out[self.members] = values_GD[self.of[self.members]]
        return out


def random_groups(segments: Segments, smallest: int, rng: Streams) -> Groups:
    """As many groups as there can be, of sizes that differ by one at most."""
    groups_K = segments.ptr.diff() // smallest
    order = rng.shuffle(segments.ptr)
    local = segments.place * groups_K[segments.client] // segments.ptr.diff()[segments.client]
    of = torch.empty_like(order)
    of[order] = torch.where(groups_K[segments.client] > 0, pointers(groups_K)[:-1][segments.client] + local, -1)
    return Groups(of, Segments(pointers(groups_K)))


def alike_groups(points_ND: Tensor, segments: Segments, smallest: int) -> Groups:
    """Groups of nodes whose points are near: a client's nodes are halved along their widest direction while they can be.

    All sums are in double precision and a tie is decided by the order of nodes, so that a client groups its nodes alike
    alone and in a batch.
    """
    of = torch.full((segments.total,), -1, device=points_ND.device)
    found = [0]
    for start, end in itertools.pairwise(segments.bounds):
        pieces = _halved(points_ND[start:end].double(), smallest) if end - start >= smallest else []
        for number, piece in enumerate(pieces):
            of[start + piece] = sum(found) + number
        found.append(len(pieces))
    return Groups(of, Segments(pointers(torch.tensor(found[1:], device=points_ND.device))))


def _halved(points_ND: Tensor, smallest: int) -> list[Tensor]:
    """Pieces of at least `smallest` rows and fewer than twice as many."""
    waiting, done = [torch.arange(points_ND.shape[0], device=points_ND.device)], []
    while waiting:
        piece = waiting.pop()
        groups = piece.numel() // smallest
        if groups < 2:
            done.append(piece)
            continue
        mine = points_ND[piece]
        along = (mine - mine.mean(0)) @ _widest(mine)
        cut = piece.numel() * (groups // 2) // groups
        order = torch.argsort(along, stable=True)
        waiting += [piece[order[:cut].sort().values], piece[order[cut:].sort().values]]
    return done


def _widest(points_ND: Tensor) -> Tensor:
    """From the point farthest from the mean to the point farthest from that: near the first principal direction, [D]."""
    one = points_ND[(points_ND - points_ND.mean(0)).square().sum(1).argmax()]
    other = points_ND[(points_ND - one).square().sum(1).argmax()]
    return other - one


def group_features(x: Features, groups: Groups) -> Features:
    """The mean features of each group, [G, F], without what is rare.

    A feature that is not 0 at fewer nodes of a client than its smallest group has would tell that one of a few has it: it
    counts as 0.
    """
    owner_N, width = x.segments.client, x.width
    fewest_K = torch.full((x.segments.clients,), torch.iinfo(torch.int64).max, device=owner_N.device)
    fewest_K = fewest_K.scatter_reduce(0, groups.segments.client, groups.sizes, "amin")
    if not isinstance(x.matrix, SparseMatrix):
        holders_KF = x.segments.sum((x.matrix != 0).float())
        common_KF = holders_KF >= fewest_K.unsqueeze(1)
        return Features(groups.means(x.matrix) * common_KF[groups.segments.client], groups.segments)
    row, col = x.matrix.row, x.matrix.col.long()
    holders = torch.bincount((owner_N[row] * width + col)[x.matrix.val != 0], minlength=x.segments.clients * width)
    told = (groups.of[row] >= 0) & (holders[owner_N[row] * width + col] >= fewest_K[owner_N[row]])
    group, col, val = groups.of[row[told]], col[told], x.matrix.val[told]
    cell, place = torch.unique(group * width + col, return_inverse=True)
    mean = val.new_zeros(cell.numel()).index_add_(0, place, val) / groups.sizes[cell // width]
    means = SparseMatrix.from_coo(cell // width, cell % width, mean, (groups.segments.total, width))
    return Features(means, groups.segments)
