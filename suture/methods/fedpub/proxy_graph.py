"""Random graphs on which models are compared: given the same input, their outputs tell how alike the models are.

Baek et al., Personalized subgraph federated learning (FED-PUB), ICML 2023: section 4.1, appendices B.3 and C.6.
Legend: K models, N nodes of the random graph, F features, H hidden, R the rank of the features.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.streams import Streams, generator
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch, View
from suture.nn.backbones import Backbone, Gcn

ProxyKind = Literal["sbm", "erdos-renyi", "single-node", "own-features"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ProxySettings:
    """Which graph: `blocks` of `block_size` nodes; links inside a block with `p_in`, between blocks with `p_out`."""

    kind: ProxyKind
    blocks: int
    block_size: int
    p_in: float
    p_out: float
    rank: int = 0
    """Of the features; 0: as many as there are, each drawn by itself."""
    precision: Precision = "float32"
    """In which they are multiplied."""


@dataclass(frozen=True)
class SharedFeatures(Features):
    """The same dense features [N, F] for every client, in memory once: `matrix`, or that times a `basis` [R, F].

    The first layer on the random graph is the most expensive thing in a round where features are wide. With a basis it is a
    small product: R rows and not N meet the weights. In bfloat16 three digits of a cosine remain, for half the time where
    the processor has instructions for it.
    """

    basis: Tensor | None = None
    precision: Precision = "float32"

    @property
    def width(self) -> int:
        """F."""
        return self._own.shape[1] if self.basis is None else self.basis.shape[1]

    def times(self, weight_KFH: Tensor) -> Tensor:
        """[K * N, H]: with a basis B, X (B W) for each client; else one product with all weights side by side."""
        clients, width, hidden = weight_KFH.shape
        if self.basis is not None:
            projected_KRH = torch.matmul(self._shared, weight_KFH.to(self._shared.dtype)).to(weight_KFH.dtype)
            return torch.matmul(self._own, projected_KRH).reshape(-1, hidden)
        side_by_side = self._shared.new_empty(width, clients, hidden).copy_(weight_KFH.transpose(0, 1))
        out_NKH = (self._shared @ side_by_side.view(width, -1)).view(-1, clients, hidden)
        return out_NKH.transpose(0, 1).reshape(-1, hidden).to(weight_KFH.dtype)

    def propagated(self, operator: SparseMatrix) -> Features | None:
        """The operator has the same block for every client."""
        first = torch.arange(self._own.shape[0], device=self._own.device)
        return replace(self, matrix=operator.take_rows(first).times(self._own))

    def dense(self) -> Tensor:
        """[K * N, F], for user modules."""
        own_NF = self._own if self.basis is None else self._own @ self.basis
        return own_NF.repeat(self.segments.clients, 1)

    @property
    def _own(self) -> Tensor:
        return self.matrix if isinstance(self.matrix, Tensor) else self.matrix.to_dense()

    @cached_property
    def _shared(self) -> Tensor:
        """What meets the weights, in the precision it does so."""
        wide = self._own if self.basis is None else self.basis
        return wide.to(torch.bfloat16) if self.precision == "bfloat16" else wide


@dataclass(frozen=True)
class _Average(View):
    """The mean of each client's nodes, as if it were one node."""

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """The mean of the operator's rows in each block."""
        whole, segments = self.graph.gcn_operator, self.graph.segments
        mean = torch.bincount(whole.col.long(), whole.val, minlength=whole.columns) / self.graph.sizes[segments.client]
        every = torch.arange(whole.columns, dtype=torch.int32, device=mean.device)
        return SparseMatrix(segments.ptr.int(), every, mean, whole.columns)


@dataclass(frozen=True)
class ProxyGraph:
    """K copies of a random graph."""

    graph: GraphBatch

    @cached_property
    def average(self) -> View:
        """The mean of each copy's nodes."""
        return _Average(self.graph, self.graph.segments.ptr[:-1])

    def embed(self, backbone: Backbone, params: Tree) -> Tensor:
        """The mean embedding of the nodes under each of K models, [K, H]."""
        with torch.no_grad():
            if isinstance(backbone, Gcn) and backbone.settings.layers > 1:
                # The last layer is linear up to here, so its input can be averaged instead of its output.
                return backbone.embed(params, self.graph, view=self.average)
            return self.graph.segments.sum(backbone.embed(params, self.graph)) / self.graph.sizes.unsqueeze(1)

    def on_features_of(self, graph: GraphBatch, rng: Streams) -> ProxyGraph:
        """The same graphs, their nodes carrying features of the K clients' own, randomly chosen nodes."""
        segments = self.graph.segments
        chosen = (rng.uniform(segments.ptr).squeeze(1) * graph.sizes[segments.client]).long()
        own = graph.x.take(chosen + graph.segments.ptr[segments.client], segments)
        return ProxyGraph(replace(self.graph, ids=graph.ids, x=own))


# A pure function of its arguments: remembering spares drawing and propagating the same features every round.
@functools.lru_cache(maxsize=2)
def proxy_graph(settings: ProxySettings, copies: int, features: int, seed: int, device: torch.device) -> ProxyGraph:
    """Draw the graph; its features are standard normal, or of a rank, a random mixture of so many that are."""
    rng = generator(seed, "proxy graph")
    nodes = 1 if settings.kind == "single-node" else settings.blocks * settings.block_size
    upper = torch.rand(nodes, nodes, generator=rng, device="cpu") < _probability(settings, nodes)
    edges = torch.nonzero(upper.triu(1)).T
    both = torch.cat([edges, edges.flip(0)], 1).to(device)
    low = 0 < settings.rank < features
    x = torch.randn(nodes, settings.rank if low else features, generator=rng).to(device)
    basis = torch.randn(settings.rank, features, generator=rng).div_(settings.rank**0.5).to(device) if low else None
    segments = Segments(torch.arange(copies + 1, device=device) * nodes)
    blank = torch.zeros(copies * nodes, dtype=torch.int64, device=device)
    graph = GraphBatch(
        ids=tuple(f"copy-{k}" for k in range(copies)),
        segments=segments,
        x=SharedFeatures(x, segments, basis, settings.precision),
        edge_index=torch.cat([both + k * nodes for k in range(copies)], 1),
        y=blank,
        role=blank.to(torch.int8),
        node_id=blank,
        public=True,
    )
    return ProxyGraph(graph)


def _probability(settings: ProxySettings, nodes: int) -> Tensor:
    """Of each pair to be linked, [N, N]."""
    block = torch.arange(nodes) // settings.block_size
    chance = torch.where(block.unsqueeze(1) == block, settings.p_in, settings.p_out)
    if settings.kind == "erdos-renyi":
        # As many edges as the block model has on average, so that only the structure differs.
        return chance.triu(1).sum() / max(1, nodes * (nodes - 1) // 2) * torch.ones_like(chance)
    return chance
