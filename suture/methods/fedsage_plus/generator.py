"""What a client's generator learns from nodes the client itself has hidden: equation (4) of FedSage+, or (5) (`joint.py`).

    L^d = 1/|V| sum_v L1smooth(n~_v - n_v)
    L^f = 1/|V| sum_v sum_{p <= n_v} min over the hidden neighbours u of v of |x~_v^p - x_u|^2

Legend: K clients, B nodes of a batch, R generated rows, Z latent, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, client_mean, segments_of
from suture.core.streams import Streams
from suture.core.tree import Tree, under
from suture.graph.batch import Features, View
from suture.graph.impair import Impaired
from suture.graph.matching import dense_rows, nearest_of_listed
from suture.methods.fedsage_plus.joint import CLASSIFIER, labels_loss
from suture.methods.fedsage_plus.neighgen import NeighGen
from suture.nn.backbones import Sage
from suture.nn.sampler import sample_batch
from suture.training.local import sum_terms
from suture.training.optimisers import leaves_of, slopes


@dataclass(frozen=True)
class GeneratorBatch:
    """Nodes of one step, client after client, and the rows generated for them.

    Shapes: nodes [B] positions in the impaired graph; row [R] the place in `nodes` of the node a row belongs to.
    """

    nodes: Tensor
    segments: Segments
    row: Tensor
    row_segments: Segments

    @property
    def sizes(self) -> Tensor:
        """|V_i^t|, [K]."""
        return self.segments.ptr.diff()


@dataclass(frozen=True)
class OwnGradient:
    """The gradient of equation (4) [K, ...], its loss [K], and the rows z + noise [R, Z] of its batch."""

    grads: Tree
    loss: Tensor
    rows_RZ: Tensor
    batch: GeneratorBatch


@dataclass(frozen=True)
class OwnLoss:
    """Equation (4). `nodes` and `fanout` say what is sampled, `most` how many rows are generated for a node."""

    network: NeighGen
    nodes: int
    fanout: int
    replace: bool
    most: int
    lambda_d: float
    lambda_f: float
    lambda_c: float = 0.0
    classifier: Sage | None = None
    """F of equation (5), where it is trained jointly."""

    def gradient(self, start: Tree, hurt: Impaired, x: Features, rng: Streams) -> OwnGradient:
        """Of one batch, at `start`; `x` are the features of the whole graph."""
        leaves, batch = leaves_of(start), self.batch(hurt, rng)
        terms, rows_RZ = self.terms(leaves, batch, hurt, x, rng)
        loss = sum_terms(terms)
        return OwnGradient(slopes(loss, leaves), loss.detach(), rows_RZ.detach(), batch)

    def batch(self, hurt: Impaired, rng: Streams) -> GeneratorBatch:
        """V_i^t: `nodes` random nodes that remained, or all of them, each with as many rows as it lost neighbours."""
        everybody = hurt.graph.segments
        nodes = rng.fork("nodes").shuffle(everybody.ptr)
        if self.nodes:
            nodes = nodes[everybody.place < self.nodes]
        owner = everybody.client[nodes]
        draws = hurt.count[nodes].clamp_max(self.most)
        row = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), draws)
        clients = everybody.clients
        return GeneratorBatch(nodes, segments_of(owner, clients), row, segments_of(owner[row], clients))

    def terms(
        self, params: Tree, batch: GeneratorBatch, hurt: Impaired, x: Features, rng: Streams
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The terms of equation (4) [K], and the embeddings with noise [R, Z] that were turned into neighbours."""
        network, clients = self.network, batch.segments.clients
        sampled = None
        if self.nodes:
            fanouts = (self.fanout,) * network.encoder.settings.layers
            sampled = sample_batch(hurt.graph, batch.nodes, fanouts, rng.fork("sample"), replace=self.replace)
        z_BZ = network.encode(params, hurt.graph, View(hurt.graph, batch.nodes), sampled)
        truth = hurt.count[batch.nodes].to(z_BZ.dtype)
        degree = hurt.graph.degree[batch.nodes]
        off = F.smooth_l1_loss(network.missing(params, z_BZ, degree, batch.segments), truth, reduction="none")
        count_loss = client_mean(off, batch.segments.client, clients)
        rows_RZ = z_BZ[batch.row] + rng.fork("noise").normal(batch.row_segments.ptr, network.latent)
        feature_loss, labels_terms = z_BZ.new_zeros(clients), {}
        made_RF = z_BZ.new_zeros(0, network.features)
        if batch.row.numel():
            made_RF = network.neighbours(params, rows_RZ, batch.row_segments)
            nearest = nearest_of_listed(made_RF.detach(), hurt.hidden.take_rows(batch.nodes[batch.row]), x)
            distance = (made_RF - dense_rows(x, nearest)).square().sum(1)
            feature_loss = feature_loss.index_add(0, batch.row_segments.client, distance) / batch.sizes
        if self.classifier is not None:
            own, source_R = under(CLASSIFIER, params), batch.nodes[batch.row]
            loss = labels_loss(self.classifier, own, hurt.graph, batch.nodes, source_R, made_RF)
            labels_terms = {"labels": self.lambda_c * loss}
        return {"count": self.lambda_d * count_loss, "features": self.lambda_f * feature_loss} | labels_terms, rows_RZ
