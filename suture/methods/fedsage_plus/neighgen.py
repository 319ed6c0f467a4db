"""NeighGen, the generator of missing neighbours (FedSage+, section 4.1, equation 3), with a client axis.

    z_v   = GraphSAGE(v)                          the encoder H^e, 2 layers, ReLU after both
    n~_v  = s d_v + s' + s'' [d_v = 0], each a softplus of linear in z_v     dGen, how many neighbours v misses of d_v + n_v
    x~_v^p = tanh((z_v + noise_p) W_1 + b_1) W_2 + b_2     fGen, the features of the p-th, noise_p ~ N(0, I)

Equation (3) lets a random sampler R pick n~_v rows from what fGen emits for one noise vector. Here fGen emits one row for
one noise vector, and R is the draw of n~_v noise vectors: the same "features after inserting noise into z_v", but an
output layer of F columns instead of (most neighbours) x F. The public code's fGen, 256-2048-5F, would take 8 GB of weights
and moments for ten clients on a graph with 6805 features; this one takes tens of MB. The output is linear, because features
may have any sign and scale; whoever mends clamps rows to the range of the client's own features.

dGen also hears the degree: the mean aggregator erases it, yet who has many neighbours loses many (on the cuts of the paper
lost and remaining neighbours correlate at 0.4 to 0.6). So z_v tells which share of its links a node lost. A node without
any neighbour is a case of its own, hence the last term.

Legend: K clients, N nodes, B nodes of a batch, Z width of an embedding, F features, R generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, activate, segment_product
from suture.core.tree import Tree, prefixed, under
from suture.graph.batch import GraphBatch, View
from suture.nn import layers
from suture.nn.backbones import Sage
from suture.nn.sampler import SampledBatch
from suture.settings import ModelSettings

FGEN = ("feature1.weight", "feature1.bias", "feature2.weight", "feature2.bias")
"""Parameters of fGen: what other clients need to know to tell how its rows should change."""
ENCODER = "encoder."
QUIET = 0.01
"""fGen's output layer starts this small: of thousands of words a row holds a few, and what the start adds stays as noise."""
RARE = -2.0
"""Where dGen's biases start: softplus(-2) = 0.13 missing neighbours, and as many for each neighbour."""


@dataclass(frozen=True)
class NeighGen:
    """Encoder, dGen and fGen. `latent` is the width of embeddings and noise, `width` that of fGen's hidden layer."""

    features: int
    latent: int
    width: int

    @property
    def encoder(self) -> Sage:
        """H^e."""
        settings = ModelSettings(kind="sage", layers=2, hidden=self.latent, dropout=0.0, head=False)
        return Sage(settings, self.features, self.latent)

    def init(self, rng: torch.Generator) -> Tree:
        """Fresh weights [1, ...]."""
        tree = prefixed(ENCODER, self.encoder.init(rng))
        tree |= layers.linear_init("count", self.latent, 3, rng)
        tree["count.bias"] += RARE
        tree |= layers.linear_init("feature1", self.latent, self.width, rng)
        tree |= layers.linear_init("feature2", self.width, self.features, rng)
        tree["feature2.weight"] *= QUIET
        return tree

    def encode(
        self, params: Tree, graph: GraphBatch, view: View | None = None, sampled: SampledBatch | None = None
    ) -> Tensor:
        """Embeddings [N, Z], or [B, Z] of a view's nodes, from all neighbours or from sampled ones."""
        own = under(ENCODER, params)
        if sampled is not None:
            return torch.relu(self.encoder.sampled_logits(own, sampled))
        return torch.relu(self.encoder.embed(own, graph, view=view))

    def missing(self, params: Tree, z_BZ: Tensor, degree_B: Tensor, segments: Segments) -> Tensor:
        """Numbers of missing neighbours n~ [B], before rounding; `degree_B` counts neighbours, whatever they weigh."""
        out = activate(segment_product(z_BZ, params["count.weight"], segments), params["count.bias"], segments, relu=False)
        rate_B, base_B, alone_B = F.softplus(out).unbind(1)
        return rate_B * degree_B + base_B + alone_B * (degree_B == 0)

    def neighbours(self, params: Tree, noisy_RZ: Tensor, segments: Segments) -> Tensor:
        """Features x~ [R, F], one row for each embedding with its noise."""
        out = segment_product(noisy_RZ, params["feature1.weight"], segments)
        # Not a ReLU: the gradient of a unit that is active for one row only would be that row's target.
        h = torch.tanh(activate(out, params["feature1.bias"], segments, relu=False))
        out = segment_product(h, params["feature2.weight"], segments)
        return activate(out, params["feature2.bias"], segments, relu=False)
