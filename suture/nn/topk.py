"""Each node's k most similar nodes, found without ever holding all N x N similarities.

`exact` compares block by block: memory is one block, time grows with N^2. `approximate` asks a faiss index that looks only
into the cells of space near a node; `neighbours` takes it from `APPROXIMATE_FROM` nodes on. Which pairs are kept has no
gradient; their similarities have (`similarities`). Legend: N nodes of all clients, H width, M kept pairs.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
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
"""Share of the cells of space in which `approximate` looks for neighbours."""


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


def neighbours(h_NH: Tensor, k: int, segments: Segments, similarity: Similarity = "cosine", index: Index = "auto") -> Links:
    """The k most similar other nodes of each node, among the nodes of its client (all of them, if they are fewer)."""
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
            search = approximate if large else exact
            # In the order of nodes, because that of similarities hangs on their last digit.
            near_Nk = search(h_NH[first:last].detach(), min(k, size - 1), similarity).sort(1).values
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
    if importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            f"{h_NH.shape[0]} nodes need an approximate index: install suture-fl[index], or set index to exact and wait"
        )
    import faiss

    nodes = h_NH.shape[0]
    points = (F.normalize(h_NH) if similarity == "cosine" else h_NH).float().cpu().contiguous().numpy()
    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    cells = max(1, min(round(math.sqrt(nodes)), nodes // 39))  # k-means wants 39 points a cell
    flat = faiss.IndexFlat(points.shape[1], metric)
    index = faiss.IndexIVFFlat(flat, points.shape[1], cells, metric)
    index.train(points)
    index.add(points)
    index.nprobe = max(8, round(CELLS_SEEN * cells))
    _, found = index.search(points, k + 1)
    near = torch.from_numpy(found)
    # A node finds itself, usually first; where it does not, the last one found is one too many.
    itself = near == torch.arange(nodes).unsqueeze(1)
    itself[:, -1] |= ~itself.any(1)
    return near[~itself].view(nodes, k).to(h_NH.device)


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
