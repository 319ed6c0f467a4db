"""Each node's k most similar nodes, found without ever holding all N x N similarities.

`exact` compares block by block: memory is one block, time grows with N^2. `approximate` asks a faiss index that looks only
into the cells of space near a node, which grows with N^1.5; `neighbours` takes it from `APPROXIMATE_FROM` nodes on. Where
pairs are searched again after points have moved a little, the pairs of before are the index: `updated` looks among the
neighbours of neighbours only (NN-descent: Dong, Moses and Li, WWW 2011), which grows with N. Which pairs are kept has no
gradient; their similarities have (`similarities`). Legend: N nodes of all clients, H width, M kept pairs.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from suture.core.kernels import Differentiable, Segments, SparseMatrix, products_at
from suture.errors import ConfigError, unknown

Similarity = Literal["cosine", "inner", "euclidean"]
"""cosine; inner product; or 1 / (1 + squared distance), which has a gradient even where two nodes coincide."""
Index = Literal["auto", "exact", "approximate"]
"""auto: approximate for clients of at least `APPROXIMATE_FROM` nodes."""

APPROXIMATE_FROM = 50_000
BLOCK_ENTRIES = 1 << 24
"""Similarities held at once: 64 MB."""
CELLS_SEEN = 0.05
"""Share of the cells of space in which `approximate` looks for neighbours, of at most `MOST_CELLS`."""
MOST_CELLS = 32
SPARE = 4
"""`of_others` looks at so many times as many nodes as are wanted, since some are the owner's own."""
AMONG = 16
"""`updated` looks among so many neighbours of so many neighbours."""


@dataclass(frozen=True)
class Links:
    """Kept pairs of N nodes, int64 [M]: `node` has chosen `neighbour`, a node of the same client."""

    node: Tensor
    neighbour: Tensor
    nodes: int

    def with_loops(self) -> Links:
        """The same, and every node has chosen itself."""
        loops = torch.arange(self.nodes, device=self.node.device)
        return Links(torch.cat([self.node, loops]), torch.cat([self.neighbour, loops]), self.nodes)

    def listed(self, first: int, last: int, k: int) -> Tensor | None:
        """What the nodes from `first` on and before `last` have chosen, counted from `first`, [N, k]; None if not k each."""
        mine = (self.node >= first) & (self.node < last)
        if self.nodes < last or not bool((torch.bincount(self.node[mine] - first, minlength=last - first) == k).all()):
            return None
        return (self.neighbour[mine] - first).view(-1, k)

    @cached_property
    def one_way(self) -> SparseMatrix:
        """Row v lists what v has chosen, as a matrix whose value is the number of the pair, 0..M-1."""
        number = torch.arange(self.node.numel(), device=self.node.device)
        return SparseMatrix.from_coo(self.node, self.neighbour, number, (self.nodes, self.nodes))

    @cached_property
    def both_ways(self) -> SparseMatrix:
        """Every pair in both directions, as a matrix whose value is the number of the pair, 0..M-1.

        A pair of nodes that chose each other is there twice, and a node that chose itself too.
        """
        number = torch.arange(self.node.numel(), device=self.node.device)
        row, col = torch.cat([self.node, self.neighbour]), torch.cat([self.neighbour, self.node])
        return SparseMatrix.from_coo(row, col, torch.cat([number, number]), (self.nodes, self.nodes))


def neighbours(
    h_NH: Tensor,
    k: int,
    segments: Segments,
    similarity: Similarity = "cosine",
    index: Index = "auto",
    before: Links | None = None,
) -> Links:
    """The k most similar other nodes of each node, among the nodes of its client (all of them, if they are fewer).

    `before` are those of before the points moved, if there are any: a start for clients too large for an exact search.
    """
    if k < 1:
        raise ConfigError(f"a node needs at least one neighbour, got k = {k}")
    if similarity not in get_args(Similarity):
        raise unknown("similarity", similarity, get_args(Similarity))
    if index not in get_args(Index):
        raise unknown("index", index, get_args(Index))
    found: list[Tensor] = []
    chosen: list[Tensor] = []
    with torch.no_grad():
        for first, last in itertools.pairwise(segments.bounds):
            size = last - first
            if size < 2:
                continue
            large = index == "approximate" or (index == "auto" and size >= APPROXIMATE_FROM)
            old_Nk = before.listed(first, last, k) if large and before is not None else None
            if old_Nk is not None:
                near_Nk = updated(h_NH[first:last].detach(), old_Nk, similarity)
            else:
                near_Nk = (approximate if large else exact)(h_NH[first:last].detach(), min(k, size - 1), similarity)
            # In the order of nodes, because that of similarities hangs on their last digit.
            near_Nk = near_Nk.sort(1).values
            node = torch.arange(first, last, device=h_NH.device).repeat_interleave(near_Nk.shape[1])
            real = near_Nk.flatten() >= 0
            found.append(node[real])
            chosen.append(near_Nk.flatten()[real] + first)
    nobody = torch.zeros(0, dtype=torch.int64, device=h_NH.device)
    return Links(torch.cat([nobody, *found]), torch.cat([nobody, *chosen]), segments.total)


def exact(h_NH: Tensor, k: int, similarity: Similarity) -> Tensor:
    """The k nearest others of each row, nearest first, int64 [N, k]."""
    nodes = h_NH.shape[0]
    left, right, offset = _as_products(h_NH, similarity)
    near = torch.empty(nodes, k, dtype=torch.int64, device=h_NH.device)
    block = max(1, BLOCK_ENTRIES // nodes)
    for first in range(0, nodes, block):
        rows = torch.arange(first, min(first + block, nodes), device=h_NH.device)
        score = left[rows] @ right.T
        if offset is not None:
            score -= offset
        score[rows - first, rows] = -math.inf
        near[rows] = score.topk(k).indices
    return near


def approximate(h_NH: Tensor, k: int, similarity: Similarity) -> Tensor:
    """As `exact`, by an inverted file: space is divided into sqrt(N) cells, and the nearest of them are searched.

    Where these hold fewer than k others, the row ends with -1.
    """
    _require_faiss(h_NH.shape[0])
    import faiss

    nodes = h_NH.shape[0]
    points = (F.normalize(h_NH) if similarity == "cosine" else h_NH).float().cpu().contiguous().numpy()
    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    near = torch.from_numpy(_searched(points, metric, k + 1)[1])
    # A node finds itself, usually first; where it does not, the last one found is one too many.
    itself = near == torch.arange(nodes).unsqueeze(1)
    itself[:, -1] |= ~itself.any(1)
    return near[~itself].view(nodes, k).to(h_NH.device)


def _require_faiss(nodes: int) -> None:
    if importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            f"{nodes} nodes need an approximate index: install suture-fl[index], or set index to exact and wait"
        )


def _searched(points: NDArray[np.float32], metric: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(similarities or distances, places) of the k nearest points to each, itself among them, [N, k] each."""
    import faiss

    nodes, width = points.shape
    cells = max(1, min(round(math.sqrt(nodes)), nodes // 39))  # k-means wants 39 points a cell
    flat = faiss.IndexFlat(width, metric)
    index = faiss.IndexIVFFlat(flat, width, cells, metric)
    index.cp.niter, index.cp.max_points_per_centroid = 10, 64
    index.train(points)
    index.add(points)
    index.nprobe = max(8, min(MOST_CELLS, round(CELLS_SEEN * cells)))
    found: tuple[NDArray[np.float32], NDArray[np.int64]] = index.search(points, k)
    return found


def updated(h_NH: Tensor, old_Nk: Tensor, similarity: Similarity) -> Tensor:
    """The k nearest of each row among its k nearest of before and their nearest of before, int64 [N, k]."""
    nodes, k = old_Nk.shape
    left, right, offset = _as_products(h_NH, similarity)
    near, few = torch.empty_like(old_Nk), min(k, AMONG)
    block = max(1, BLOCK_ENTRIES // ((k + few * few) * h_NH.shape[1]))
    for rows in torch.split(torch.arange(nodes, device=h_NH.device), block):
        # Which ones of k are taken changes from row to row, so that none is left out by all.
        turn = (torch.arange(few, device=rows.device) + rows.unsqueeze(1)) % k
        through = old_Nk[rows].gather(1, turn)
        beyond = old_Nk[through].gather(2, turn.unsqueeze(1).expand(-1, few, -1))
        listed = torch.cat([old_Nk[rows], beyond.flatten(1)], 1).sort(1).values
        score = torch.bmm(right[listed], left[rows].unsqueeze(2)).squeeze(2)
        if offset is not None:
            score -= offset[listed]
        twice = torch.zeros_like(listed, dtype=torch.bool)
        twice[:, 1:] = listed[:, 1:] == listed[:, :-1]
        score.masked_fill_(twice | (listed == rows.unsqueeze(1)), -math.inf)
        near[rows] = listed.gather(1, score.topk(k, 1).indices)
    return near


def of_others(unit_NH: Tensor, owner_N: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(cosine, place) of nodes of other owners near to each, nearest first, by the approximate index, [N, k]; -2: none.

    Of `SPARE` times as many nodes that are near those of other owners are taken.
    """
    _require_faiss(unit_NH.shape[0])
    import faiss

    wanted = min(unit_NH.shape[0], SPARE * (k + 1))
    points = unit_NH.float().cpu().contiguous().numpy()
    cosine, place = (torch.from_numpy(found) for found in _searched(points, faiss.METRIC_INNER_PRODUCT, wanted))
    cosine, place = cosine.to(unit_NH.device), place.clamp_min(0).to(unit_NH.device)
    cosine = cosine.masked_fill((owner_N[place] == owner_N.unsqueeze(1)) | (cosine < -1.5), -2.0)
    best = cosine.topk(min(k, wanted), 1)
    return best.values, place.gather(1, best.indices)


def similarities(h_NH: Tensor, links: Links, similarity: Similarity) -> Tensor:
    """How similar the ends of each pair are, [M], differentiable in h."""
    if similarity == "cosine":
        return _products(F.normalize(h_NH), links)
    product = _products(h_NH, links)
    if similarity == "inner":
        return product
    square = h_NH.square().sum(1)
    distance = (square[links.node] + square[links.neighbour] - 2 * product).clamp_min(0)
    return 1 / (1 + distance)


def _products(h_NH: Tensor, links: Links) -> Tensor:
    result: Tensor = _PairProducts.apply(h_NH, links)
    return result


class _PairProducts(Differentiable):
    """Inner products of the ends of pairs. Written out because autograd would keep both ends of every pair."""

    @staticmethod
    def forward(ctx: Any, h_NH: Tensor, links: Links) -> Tensor:
        ctx.save_for_backward(h_NH)
        ctx.links = links
        pairs: SparseMatrix = links.one_way
        return h_NH.new_empty(pairs.val.numel()).index_copy_(0, pairs.val, products_at(pairs, h_NH, h_NH))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (h_NH,) = ctx.saved_tensors
        pairs: SparseMatrix = ctx.links.both_ways
        return SparseMatrix(pairs.rowptr, pairs.col, grads[0][pairs.val], pairs.columns).times(h_NH), None


def _as_products(h_NH: Tensor, similarity: Similarity) -> tuple[Tensor, Tensor, Tensor | None]:
    """(a, b, c) such that a_i . b_j - c_j orders the nodes j as their similarity to i does."""
    if similarity == "cosine":
        unit = F.normalize(h_NH)
        return unit, unit, None
    return h_NH, h_NH, None if similarity == "inner" else h_NH.square().sum(1) / 2
