"""Embedding-fused graph convolution (FedDEP, section 3.1): a node carries, beside its features, a deep embedding.

    x_v^k = sigma(W^(k) [x_v^{k-1} || mean of x_u^{k-1} over neighbours u || z_v])

z_v is the mean embedding of the neighbours that v is thought to miss. It has weights of its own in every layer (statement
3.1), so that with z = 0, or on a graph whose nodes carry none, the network is GraphSAGE.
Legend: K clients, N nodes, D width of an embedding, H output width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suture.core.kernels import segment_product
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch, View
from suture.graph.embeddings import MendedFeatures
from suture.nn import layers
from suture.nn.backbones import Sage
from suture.nn.sampler import Block, SampledBatch


@dataclass(frozen=True)
class MendedBlock(Block):
    """A sampled layer and the deep embeddings of its output nodes [outputs, D]."""

    embedding: Tensor


@dataclass(frozen=True)
class FusedSage(Sage):
    """GraphSAGE with a further weight for the deep embedding in every layer."""

    embedding: int

    def init(self, rng: torch.Generator) -> Tree:
        """GraphSAGE's weights, then `layerN.embedding` [1, D, H]."""
        tree = super().init(rng)
        for index, width in enumerate(self.widths()[1:], start=1):
            tree[f"layer{index}.embedding"] = layers.glorot((1, self.embedding, width), self.embedding, width, rng)
        return tree

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """GraphSAGE's layer plus z W."""
        out = super().apply_layer(name, params, h, graph, view)
        if not isinstance(graph.x, MendedFeatures):
            return out
        z = layers.rows(graph.x.embedding, view)
        return out + segment_product(z, params[f"{name}.embedding"], (view or graph).segments)

    def sampled_logits(self, params: Tree, batch: SampledBatch, rng: Streams | None = None) -> Tensor:
        """Class scores [B, C] of a batch's seeds from sampled neighbourhoods."""
        if isinstance(batch.inputs, MendedFeatures):
            z, blocks = batch.inputs.embedding, []
            for block in batch.blocks:
                z = z[block.targets]
                blocks.append(MendedBlock(block.mean, block.targets, block.segments, block.own, z))
            batch = replace(batch, blocks=tuple(blocks))
        return super().sampled_logits(params, batch, rng)

    def _sampled_layer(self, name: str, params: Tree, h: Tensor | Features, block: Block) -> Tensor:
        out = super()._sampled_layer(name, params, h, block)
        if not isinstance(block, MendedBlock):
            return out
        return out + segment_product(block.embedding, params[f"{name}.embedding"], block.segments)
