r"""Graph auto-encoders that reconstruct features: encoder and decoder are two-layer GCNs (FedGGR equations 1 and 2).

`GraphAutoencoder` has a ReLU inside and is trained by gradients. `LinearAutoencoder` has none, its decoder is its encoder
transposed; then the best of all is known (Eckart and Young), and a few power iterations find it. That needs a symmetric
\hat A of norm one, so it propagates along edges in both directions, whether they have one or not; their weights count.

Legend: K clients, N nodes, F features, P width of the compressed features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suture.core.kernels import activate, sparse_product
from suture.core.streams import generator
from suture.core.tree import Tree, prefixed, under
from suture.graph.batch import GraphBatch
from suture.graph.edges import symmetric
from suture.graph.grouping import Groups
from suture.nn.backbones import Gcn
from suture.settings import ModelSettings, TrainingSettings
from suture.training.optimisers import Moments, descend

ENCODER, DECODER = "encoder.", "decoder."


@dataclass(frozen=True)
class GraphAutoencoder:
    """F features to P and back, over `hidden` units each way."""

    features: int
    hidden: int
    width: int

    def init(self, rng: torch.Generator) -> Tree:
        """Fresh weights [1, ...]."""
        encoder, decoder = self._encoder.init(rng), self._decoder.init(rng)
        return prefixed(ENCODER, encoder) | prefixed(DECODER, decoder)

    def encode(self, params: Tree, graph: GraphBatch) -> Tensor:
        """E of equation (1), [N, P]."""
        return self._encoder.logits(under(ENCODER, params), graph)

    def decode(self, params: Tree, e_NP: Tensor, graph: GraphBatch) -> Tensor:
        """X^rec of equation (1), [N, F]."""
        own, network = under(DECODER, params), self._decoder
        h = activate(network.apply_layer("layer1", own, e_NP, graph), own["layer1.bias"], graph.segments)
        return activate(network.apply_layer("layer2", own, h, graph), own["layer2.bias"], graph.segments, relu=False)

    def loss(self, params: Tree, graph: GraphBatch, x_NF: Tensor) -> Tensor:
        """The mean squared error of each client's features, [K]; zero for a client without nodes."""
        error_N = (self.decode(params, self.encode(params, graph), graph) - x_NF).square().mean(1)
        total = error_N.new_zeros(len(graph.ids)).index_add(0, graph.segments.client, error_N)
        return total / graph.sizes.clamp_min(1)

    def train(
        self, params: Tree, moments: Moments, graph: GraphBatch, epochs: int, settings: TrainingSettings
    ) -> tuple[Tree, Moments, Tensor]:
        """(auto-encoders, moments, last loss [K]) after some epochs, each one step."""
        x_NF, loss = graph.x.dense(), torch.zeros(len(graph.ids), device=graph.device)
        for _ in range(epochs):
            params, moments, loss = descend(lambda p: self.loss(p, graph, x_NF), params, moments, settings)
        return params, moments, loss

    @property
    def _encoder(self) -> Gcn:
        return Gcn(ModelSettings(kind="gcn", layers=2, hidden=self.hidden, dropout=0.0), self.features, self.width)

    @property
    def _decoder(self) -> Gcn:
        return Gcn(ModelSettings(kind="gcn", layers=2, hidden=self.hidden, dropout=0.0), self.width, self.features)


BASIS = "basis"


@dataclass(frozen=True)
class LinearAutoencoder:
    r"""E = \hat A^2 X W and X^rec = \hat A^2 E W^T, with W^T W = I: weights of two layers without ReLU are one matrix.

    |X - X^rec|^2 = |X|^2 - tr(W^T M W) with M = X^T (2 \hat A^4 - \hat A^8) X, so that W spans the first eigenvectors of M.
    One `step` is M W; made orthonormal it is the next W (orthogonal iteration). Since M is a sum over nodes, the mean of
    clients' steps is the step on everybody's features. Where F < P the last P - F numbers of a code are zero.
    """

    features: int
    width: int

    def init(self, rng: torch.Generator) -> Tree:
        """Random directions, [1, F, P]."""
        random = torch.randn(1, self.features, min(self.features, self.width), generator=rng)
        return orthonormal({BASIS: random})

    def encode(self, params: Tree, graph: GraphBatch) -> Tensor:
        """E of equation (1), [N, P]."""
        with torch.no_grad():
            codes = smoothed(graph, graph.x.times(params[BASIS]))
            return torch.nn.functional.pad(codes, (0, self.width - codes.shape[1]))

    def step(self, params: Tree, graph: GraphBatch, groups: Groups | None = None) -> tuple[Tree, Tensor]:
        r"""M W of each client over its number of nodes [K, F, P], and the mean squared error of W, [K].

        With groups, M is that of the means m_g of \hat A^2 X over them, sum_g |g| m_g m_g^T, and the error is of these.
        """
        basis = params[BASIS].detach().requires_grad_()
        projected = graph.x.times(basis)
        clients = torch.zeros(len(graph.ids), device=graph.device)
        if groups is None:
            rebuilt = smoothed(graph, smoothed(graph, projected))
            explained = clients.index_add(0, graph.segments.client, (2 * projected * rebuilt - rebuilt.square()).sum(1))
        else:
            mean_GP = groups.means(smoothed(graph, projected))
            explained = clients.index_add(0, groups.segments.client, groups.sizes * mean_GP.square().sum(1))
        # The form tr(W^T M W) has the gradient 2 M W.
        (slope,) = torch.autograd.grad(explained.sum(), basis)
        nodes = graph.sizes.clamp_min(1)
        total = clients.index_add(0, graph.segments.client, graph.x.squared_norms)
        return {BASIS: slope / (2 * nodes[:, None, None])}, (total - explained.detach()) / (nodes * self.features)


def of_each(network: GraphAutoencoder | LinearAutoencoder, seed: int, ids: Sequence[str], device: torch.device) -> Tree:
    """Fresh weights of each of these clients, from a stream of its own, [K, ...]."""
    each = [network.init(generator(seed, "own", name)) for name in ids]
    return {name: torch.cat([tree[name] for tree in each]).to(device) for name in each[0]}


def orthonormal(params: Tree) -> Tree:
    """Orthonormal columns that span the same."""
    return {name: torch.linalg.qr(value).Q for name, value in params.items()}


def smoothed(graph: GraphBatch, h: Tensor) -> Tensor:
    r"""\hat A^2 h."""
    operator = graph.gcn_operator
    if bool(graph.directed.any()):
        operator = graph.completed("symmetric", _symmetric).gcn_operator
    return sparse_product(operator, sparse_product(operator, h))


def _symmetric(graph: GraphBatch) -> GraphBatch:
    edge_index, weight = symmetric(graph.edge_index, graph.edge_weight, graph.num_nodes)
    return replace(graph, edge_index=edge_index, edge_weight=weight)
