"""Random graphs on which models are compared: given the same input, their outputs tell how alike the models are.

Baek et al., Personalized subgraph federated learning (FED-PUB), ICML 2023: section 4.1, appendices B.3 and C.6.
Legend: K clients, N nodes of the random graph, F features, H hidden.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.graph.batch import Features, GraphBatch, View, uncut
from suture.kernels import Segments, SparseMatrix
from suture.nn.backbones import Backbone, Gcn
from suture.streams import Streams, generator
from suture.tree import Tree, rows_of

BRIEF_FROM = 256
"""Narrower features are cheap, and their products stay exact."""

ProxyKind = Literal["sbm", "erdos-renyi", "single-node", "own-features"]


@dataclass(frozen=True)
class ProxySettings:
    """Which graph: `blocks` of `block_size` nodes; links inside a block with `p_in`, between blocks with `p_out`."""

    kind: ProxyKind
    blocks: int
    block_size: int
    p_in: float
    p_out: float


@dataclass(frozen=True)
class BriefFeatures(Features):
    """Dense features of one client whose products with weights are computed in bfloat16.

    The first layer on the random graph is the most expensive thing a server does in a round. Where the processor has
    instructions for it, this halves its time and leaves three digits of a cosine.
    """

    def times(self, weight_KFH: Tensor) -> Tensor:
        """[N, H], again in float32."""
        return (self.dense().to(torch.bfloat16) @ weight_KFH[0].to(torch.bfloat16)).float()

    def propagated(self, operator: SparseMatrix) -> Features | None:
        """Neighbours are averaged before rounding."""
        return BriefFeatures(operator.times(self.dense()).to(torch.bfloat16), self.segments)


@dataclass(frozen=True)
class _Average(View):
    """The mean of all nodes, as if it were one node."""

    @cached_property
    def gcn_operator(self) -> SparseMatrix:
        """The mean of the operator's rows."""
        whole, nodes = self.graph.gcn_operator, self.graph.num_nodes
        mean = torch.bincount(whole.col.long(), whole.val, minlength=nodes) / nodes
        every = torch.arange(nodes, dtype=torch.int32, device=mean.device)
        return SparseMatrix(torch.tensor([0, nodes], dtype=torch.int32, device=mean.device), every, mean, nodes)


@dataclass(frozen=True)
class ProxyGraph:
    """A random graph, the same for all models."""

    graph: GraphBatch

    @cached_property
    def average(self) -> View:
        """The mean of its nodes."""
        return _Average(self.graph, torch.zeros(1, dtype=torch.int64, device=self.graph.device))

    def embed(self, backbone: Backbone, params: Tree) -> Tensor:
        """The mean embedding of its nodes under each of K models, [K, H].

        One model after the other: so the graph is in memory once, and the products are large all the same.
        """
        with torch.no_grad():
            models = ({name: value[k : k + 1] for name, value in params.items()} for k in range(rows_of(params)))
            return torch.cat([self._mean(backbone, model) for model in models])

    def _mean(self, backbone: Backbone, model: Tree) -> Tensor:
        if isinstance(backbone, Gcn) and backbone.settings.layers > 1:
            # The last layer is linear up to here, so its input can be averaged instead of its output.
            return backbone.embed(model, self.graph, view=self.average)
        return backbone.embed(model, self.graph).mean(0, keepdim=True)


# A pure function of its arguments: remembering spares drawing and propagating the same features every round.
@functools.lru_cache(maxsize=2)
def proxy_graph(settings: ProxySettings, features: int, seed: int, device: torch.device) -> ProxyGraph:
    """Draw the graph; its features are standard normal."""
    rng = generator(seed, "proxy graph")
    nodes = 1 if settings.kind == "single-node" else settings.blocks * settings.block_size
    upper = torch.rand(nodes, nodes, generator=rng) < _probability(settings, nodes)
    edges = torch.nonzero(upper.triu(1)).T
    x = torch.randn(nodes, features, generator=rng)
    data = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.zeros(nodes, dtype=torch.int64))
    graph = uncut(data, torch.zeros(nodes, dtype=torch.int8), "proxy").to(device)
    if device.type == "cpu" and features >= BRIEF_FROM and torch.cpu.get_capabilities().get("avx512_bf16", False):
        graph = replace(graph, x=BriefFeatures(x, graph.segments))
    return ProxyGraph(graph)


def _probability(settings: ProxySettings, nodes: int) -> Tensor:
    """Of each pair to be linked, [N, N]."""
    block = torch.arange(nodes) // settings.block_size
    chance = torch.where(block.unsqueeze(1) == block, settings.p_in, settings.p_out)
    if settings.kind == "erdos-renyi":
        # As many edges as the block model has on average, so that only the structure differs.
        return chance.triu(1).sum() / max(1, nodes * (nodes - 1) // 2) * torch.ones_like(chance)
    return chance


def on_own_features(proxy: GraphBatch, graph: GraphBatch, rng: Streams) -> GraphBatch:
    """The proxy's edges once for each client, its nodes carrying features of the client's own, randomly chosen nodes."""
    clients, nodes = len(graph.ids), proxy.num_nodes
    segments = Segments(torch.arange(clients + 1, device=graph.device) * nodes)
    chosen = (rng.uniform(segments.ptr).squeeze(1) * graph.sizes[segments.client]).long()
    edges = [proxy.edge_index + k * nodes for k in range(clients)]
    blank = torch.zeros(clients * nodes, dtype=torch.int64, device=graph.device)
    return GraphBatch(
        graph.ids,
        segments,
        graph.x.take(chosen + graph.segments.ptr[segments.client], segments),
        torch.cat(edges, 1),
        blank,
        blank.to(torch.int8),
        blank,
    )
