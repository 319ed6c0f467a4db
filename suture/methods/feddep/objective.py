"""What FedDEP's generator minimises (equation 3.1), and what its embeddings are to resemble.

Legend: K clients, M of them in all, N nodes that remained, P most generated neighbours of a node, D width of an embedding,
C prototypes of each client, T targets, R generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, client_mean
from suture.core.message import Rows
from suture.core.streams import Streams
from suture.core.tree import Tree, under
from suture.graph.batch import GraphBatch
from suture.graph.embeddings import with_embeddings
from suture.graph.impair import Impaired
from suture.methods.feddep.dgen import Generated, bernoulli, nearest_listed, nearest_of_each
from suture.methods.feddep.fused import FusedSage, Fusion
from suture.methods.feddep.without_proto import along
from suture.settings import TrainingSettings
from suture.training.losses import nodes_loss

CLASSIFIER = "classifier."
"""Prefix of the local F that is trained with the generator."""


@dataclass(frozen=True)
class Targets:
    """What generated embeddings are to resemble.

    `values` [T_k, D] are the client's prototypes (without Proto all its embeddings), `of` [N_k] says which of them stands
    for each node of the whole graph, `others` [K, M - 1, C, D] are the prototypes received.
    """

    values: Rows
    of: Rows
    others: Tensor

    def listed(self, hurt: Impaired) -> SparseMatrix:
        """For each node that remained the targets its hidden neighbours stand for, [N, T]."""
        owner = hurt.graph.segments.client[hurt.hidden.row]
        target = self.values.ptr[owner] + self.of.values[hurt.hidden.col.long()]
        return SparseMatrix(hurt.hidden.rowptr, target.int(), hurt.hidden.val, self.values.values.shape[0])


@dataclass(frozen=True)
class Objective:
    """Equation 3.1: `classifier` is the local F of L^c, `kept_share` the r of Ber(r), `training` says which loss L^c is."""

    classifier: FusedSage
    kept_share: float
    training: TrainingSettings

    def terms(
        self, params: Tree, made: Generated, hurt: Impaired, targets: Targets, rng: Streams, pulls_RD: Tensor | None
    ) -> dict[str, Tensor]:
        """One value a client each [K]; `pulls_RD` are the others' gradients, without Proto."""
        segments, used = hurt.graph.segments, made.used
        listed = targets.listed(hurt)
        own = torch.zeros_like(made.count)
        for p, z in enumerate(made.slots):
            target, known = nearest_listed(z, listed, targets.values.values)
            own = own + (z - target).square().sum(1) * (known & used[:, p])
        off = F.smooth_l1_loss(made.count, hurt.count.to(made.count.dtype), reduction="none")
        other = _apart_from(made, targets.others, segments) if pulls_RD is None else along(made, pulls_RD)
        terms = {"count": off, "own": own, "others": other}
        means = {name: client_mean(value, segments.client, segments.clients) for name, value in terms.items()}
        return means | {"labels": self.labels(params, made, hurt, rng)}

    def labels(self, params: Tree, made: Generated, hurt: Impaired, rng: Streams) -> Tensor:
        """L^c on the impaired graph, mended, [K]."""
        kept = bernoulli(made.used, self.kept_share, hurt.graph.segments, rng.fork("bernoulli"))
        graph = with_embeddings(hurt.graph, attached(made, kept, hurt.graph, self.classifier.fusion))
        view = graph.train
        logits = self.classifier.logits(under(CLASSIFIER, params), graph, rng.fork("classifier"), view)
        return nodes_loss(logits, graph.y[view.nodes], view.segments.client, len(graph.ids), graph.target, self.training)


def attached(made: Generated, chosen_NP: Tensor, graph: GraphBatch, fusion: Fusion) -> Tensor:
    """What nodes carry: z_v, the mean of the chosen slots [N, D], and the share of their neighbours that these are."""
    z_ND = made.mean(chosen_NP)
    if fusion != "neighbours":
        return z_ND
    supposed_N = chosen_NP.sum(1).to(z_ND.dtype)
    share_N = supposed_N / (supposed_N + graph.degree).clamp_min(1)
    return torch.cat([z_ND, share_N.unsqueeze(1)], 1)


def _apart_from(made: Generated, others_KMCD: Tensor, segments: Segments) -> Tensor:
    """sum_j sum_p min |z~_v^p - z'|^2 over Z'_j, [N]."""
    total, used = torch.zeros_like(made.count), made.used
    # A client too small to have prototypes has sent zeros, which nothing is to resemble.
    told_N = (others_KMCD.flatten(2).abs().sum(2) > 0).sum(1)[segments.client]
    for p, z in enumerate(made.slots):
        # sum_j |z - t_j|^2 = (number of j) |z|^2 - 2 z . sum_j t_j + sum_j |t_j|^2 needs no copy of z for every j.
        nearest, length = nearest_of_each(z, others_KMCD, segments)
        apart = told_N * z.square().sum(1) - 2 * (z * nearest).sum(1) + length
        total = total + apart * used[:, p]
    return total
