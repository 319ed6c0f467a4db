"""A graph auto-encoder that reconstructs features: encoder and decoder are two-layer GCNs (FedGGR equations 1 and 2).

Legend: K clients, N nodes, F features, P width of the compressed features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.graph.batch import GraphBatch
from suture.kernels import activate
from suture.nn.backbones import Gcn
from suture.settings import ModelSettings
from suture.tree import Tree

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
        return {ENCODER + n: v for n, v in encoder.items()} | {DECODER + n: v for n, v in decoder.items()}

    def encode(self, params: Tree, graph: GraphBatch) -> Tensor:
        """E of equation (1), [N, P]."""
        return self._encoder.logits(_part(params, ENCODER), graph)

    def decode(self, params: Tree, e_NP: Tensor, graph: GraphBatch) -> Tensor:
        """X^rec of equation (1), [N, F]."""
        own, network = _part(params, DECODER), self._decoder
        h = activate(network.apply_layer("layer1", own, e_NP, graph), own["layer1.bias"], graph.segments)
        return activate(network.apply_layer("layer2", own, h, graph), own["layer2.bias"], graph.segments, relu=False)

    def loss(self, params: Tree, graph: GraphBatch, x_NF: Tensor) -> Tensor:
        """The mean squared error of each client's features, [K]; zero for a client without nodes."""
        error_N = (self.decode(params, self.encode(params, graph), graph) - x_NF).square().mean(1)
        total = error_N.new_zeros(len(graph.ids)).index_add(0, graph.segments.client, error_N)
        return total / graph.sizes.clamp_min(1)

    @property
    def _encoder(self) -> Gcn:
        return Gcn(ModelSettings(kind="gcn", layers=2, hidden=self.hidden, dropout=0.0), self.features, self.width)

    @property
    def _decoder(self) -> Gcn:
        return Gcn(ModelSettings(kind="gcn", layers=2, hidden=self.hidden, dropout=0.0), self.width, self.features)


def _part(params: Tree, prefix: str) -> Tree:
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
