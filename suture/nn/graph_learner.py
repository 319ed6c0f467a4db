"""Graphs learned from node features: a generator, its nearest neighbours, and a processor that makes an adjacency of them.

    R = generator(X)                        an encoder (below) that starts as the identity
    S_ij = similarity(R_i, R_j)             for the k nearest j of each i, and for i itself
    A = (P(S) + P(S)^T) / 2                 P: activation of the similarities
    A* = D^-1/2 A D^-1/2                    D: degrees of A (of |A| with the plain ELU, which leaves negative weights)

The choice of neighbours has no gradient; gradients reach the generator through the similarities that were kept (Fatemi et
al., SLAPS, NeurIPS 2021). K clients learn K graphs at once; a server's graph over everybody's nodes is K = 1.

Generators, of `layers` layers with `between` between them:
- mlp: R W, full weights;
- activated: the same product with `between` also after the last layer (FedGLS equation 14);
- mlp-d: R diag(w), after SLAPS: a weight for each feature;
- attentive: the same product with `between` also after the last layer (Liu et al., SUBLIME, WWW 2022; FedGLS equation 15).

Legend: K clients, N nodes, F features, H width of what is propagated, M entries of the learned graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.config.strict import check_fields
from suture.core.kernels import Differentiable, Segments, SparseMatrix, products_at
from suture.core.tree import Tree
from suture.graph.batch import Features
from suture.nn.layers import project
from suture.nn.topk import Index, Links, Similarity, neighbours, similarities
from suture.settings import Count

Generator = Literal["mlp", "mlp-d", "attentive", "activated"]
FULL = ("mlp", "activated")
"""Generators with a weight for each pair of features."""
Between = Literal["none", "relu", "tanh"]
Edges = Literal["relu", "elu", "plain-elu", "none"]

STEEPNESS = 6.0
"""Of the ELU, as in SLAPS: ELU(6 s - 6) + 1, which is exp(6 (s - 1)) up to s = 1."""
SMALLEST_DEGREE = 1e-6


@dataclass(frozen=True)
class LearnedGraph:
    """A weighted graph, each client's its own block: entries in both directions, in the order of a CSR matrix.

    Shapes: row and col int64 [M], rowptr int32 [N + 1], weight [M], which carries the gradient. Weights are symmetric.
    """

    row: Tensor
    col: Tensor
    rowptr: Tensor
    weight: Tensor

    @cached_property
    def matrix(self) -> SparseMatrix:
        """The same as a constant."""
        return SparseMatrix(self.rowptr, self.col.int(), self.weight.detach(), self.rowptr.numel() - 1)

    def times(self, h_NH: Tensor) -> Tensor:
        """A* h, differentiable in both."""
        result: Tensor = _GraphProduct.apply(self, self.weight, h_NH)
        return result


class _GraphProduct(Differentiable):
    @staticmethod
    def forward(ctx: Any, graph: LearnedGraph, weight: Tensor, h_NH: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(h_NH)
        return graph.matrix.times(h_NH)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        grad, graph = grads[0].contiguous(), ctx.graph
        (h_NH,) = ctx.saved_tensors
        grad_weight = products_at(graph.matrix, grad, h_NH) if ctx.needs_input_grad[1] else None
        # The matrix is its own transpose.
        return None, grad_weight, graph.matrix.times(grad) if ctx.needs_input_grad[2] else None


@dataclass(frozen=True)
class GraphLearner:
    """Settings and pure functions, like a backbone: `init` makes one generator [1, ...], the rest runs K of them."""

    width: Count
    """F, of the features."""
    k: Count
    """Neighbours each node chooses, besides itself."""
    generator: Generator = "mlp-d"
    """The encoder whose outputs are compared."""
    similarity: Similarity = "cosine"
    """How outputs are compared."""
    edges: Edges = "relu"
    """P, which makes weights of similarities; plain-elu, unlike elu, and none leave negative ones."""
    between: Between = "relu"
    """Activation inside the generator."""
    layers: Count = 2
    """Layers of the generator."""
    index: Index = "auto"
    """How neighbours are searched."""

    def __post_init__(self) -> None:
        check_fields(self, "graph_learner")

    def init(self) -> Tree:
        """The identity: the first learned graph is that of the features' nearest neighbours."""
        weight = torch.eye(self.width) if self.generator in FULL else torch.ones(self.width)
        return {f"generator{layer}.weight": weight.unsqueeze(0).clone() for layer in range(1, self.layers + 1)}

    def generate(self, params: Tree, x: Tensor | Features, segments: Segments) -> Tensor:
        """R, [N, F]."""
        r = x
        for layer in range(1, self.layers + 1):
            weight = params[f"generator{layer}.weight"]
            r = project(r, weight, segments) if self.generator in FULL else _scaled(r, weight, segments)
            if layer < self.layers or self.generator in ("attentive", "activated"):
                r = self._activated(r)
        return r if isinstance(r, Tensor) else r.dense()

    def links(self, r_NF: Tensor, segments: Segments, before: Links | None = None) -> Links:
        """The k nearest of each node inside its client; `before` are those of an earlier search, if there was one."""
        return neighbours(r_NF, self.k, segments, self.similarity, self.index, before)

    def process(self, r_NF: Tensor, links: Links) -> LearnedGraph:
        """The adjacency A* of kept pairs."""
        chosen = links.with_loops()
        pairs = chosen.both_ways
        weight = self._weights(similarities(r_NF, chosen, self.similarity))[pairs.val] / 2
        row, col = pairs.row, pairs.col.long()
        # Negative weights would take from a degree until it is none.
        degree = weight.new_zeros(chosen.nodes).index_add(0, row, weight.abs() if self.edges == "plain-elu" else weight)
        scale = degree.clamp_min(SMALLEST_DEGREE).rsqrt()
        return LearnedGraph(row, col, pairs.rowptr, weight * scale[row] * scale[col])

    def graph(self, params: Tree, x: Tensor | Features, segments: Segments) -> LearnedGraph:
        """From features to the adjacency."""
        r_NF = self.generate(params, x, segments)
        return self.process(r_NF, self.links(r_NF, segments))

    def _weights(self, similarity_M: Tensor) -> Tensor:
        if self.edges == "elu":
            return F.elu(STEEPNESS * similarity_M - STEEPNESS) + 1
        if self.edges == "plain-elu":
            return F.elu(similarity_M)
        return F.relu(similarity_M) if self.edges == "relu" else similarity_M

    def _activated(self, r_NF: Tensor) -> Tensor:
        if self.between == "none":
            return r_NF
        return torch.relu(r_NF) if self.between == "relu" else torch.tanh(r_NF)


def _scaled(x: Tensor | Features, weight_KF: Tensor, segments: Segments) -> Tensor:
    """Every client's features times its own weight, feature by feature."""
    dense = x.dense() if isinstance(x, Features) else x
    return dense * (weight_KF if weight_KF.shape[0] == 1 else weight_KF[segments.client])
