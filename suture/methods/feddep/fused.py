"""Embedding-fused graph convolution (FedDEP, section 3.1): a node carries, beside its features, a deep embedding.

    x_v^k = sigma(W^(k) [x_v^{k-1} || mean of x_u^{k-1} over neighbours u || z_v])

z_v is the mean embedding of the neighbours that v is thought to miss. It has weights of its own in every layer (statement
3.1), so that with z = 0, or on a graph whose nodes carry none, the network is GraphSAGE.

Two other ways to hear z_v (`fusion`):
- input: also before the first layer, x_v^0 = sigma(W^(0) [x_v || z_v]), as section 3.1 prints it; W^(0) is [F, H].
- neighbours: z_v stands for c more neighbours beside the d that are known, and goes through their weights. From the second
  layer on the neighbours' mean is ((d mean_u x_u^{k-1} + c z_v P^(k)) / (c + d), P^(k) [D, H] making it one of them. What
  share c / (c + d) is, comes along with z_v as its last number.
With z = 0 all three are GraphSAGE, of x^0 or of x.
Legend: K clients, N nodes, D width of an embedding, F features, H output width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from suture.core.kernels import Segments, activate, segment_product
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


Fusion = Literal["own", "input", "neighbours"]
FIRST = "layer1"


@dataclass(frozen=True)
class FusedSage(Sage):
    """GraphSAGE with a further weight for the deep embedding in every layer."""

    embedding: int
    fusion: Fusion = "own"

    def widths(self) -> list[int]:
        """The first layer is given features, or x^0."""
        first, *rest = super().widths()
        return [self.settings.hidden if self.fusion == "input" else first, *rest]

    def init(self, rng: torch.Generator) -> Tree:
        """GraphSAGE's weights, then `layerN.embedding` [1, D, H], and those of x^0, `layer0`."""
        tree, widths = super().init(rng), self.widths()
        # Through the neighbours' weights an embedding takes the place of an input, otherwise of an output.
        into = {i: widths[i - 1] for i in range(2, len(widths))} if self.fusion == "neighbours" else dict(enumerate(widths))
        for index, width in into.items():
            if index or self.fusion == "input":
                tree[f"layer{index}.embedding"] = layers.glorot((1, self.embedding, width), self.embedding, width, rng)
        return tree | (layers.linear_init("layer0", self.features, widths[0], rng) if self.fusion == "input" else {})

    def entered(self, params: Tree, x: Features) -> Tensor | Features:
        """x^0 [N, H], or the features."""
        if self.fusion != "input":
            return x
        out = x.times(params["layer0.weight"])
        if isinstance(x, MendedFeatures):
            out = out + segment_product(x.embedding, params["layer0.embedding"], x.segments)
        return activate(out, params["layer0.bias"], x.segments)

    def heard(
        self, name: str, params: Tree, out: Tensor, before: Tensor | Features, z: Tensor, segments: Segments
    ) -> Tensor:
        """A layer's output `out` of nodes whose input was `before`, with what z says of missing neighbours."""
        if self.fusion != "neighbours":
            return out + segment_product(z, params[f"{name}.embedding"], segments)
        if name == FIRST or not isinstance(before, Tensor):
            return out
        known = out - segment_product(before, params[f"{name}.self"], segments)
        deep, share = torch.split(z, [self.embedding, 1], 1)
        supposed = segment_product(deep, params[f"{name}.embedding"], segments)
        return out + share * (segment_product(supposed, params[f"{name}.neighbour"], segments) - known)

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """GraphSAGE's layer plus z W."""
        out = super().apply_layer(name, params, h, graph, view)
        if not isinstance(graph.x, MendedFeatures):
            return out
        before = layers.rows(h, view) if isinstance(h, Tensor) else h
        return self.heard(name, params, out, before, layers.rows(graph.x.embedding, view), (view or graph).segments)

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
        before = h[block.targets] if isinstance(h, Tensor) else h
        return self.heard(name, params, out, before, block.embedding, block.segments)
