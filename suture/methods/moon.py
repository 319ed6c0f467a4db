"""MOON: Model-contrastive federated learning. Li, He and Song, CVPR 2021, algorithm 1.

FedAvg whose clients minimise, in line 2 of its box,

    F_k(w_k) + mu * the mean over its training nodes v of l_con(v),

    l_con(v) = -log( exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)) )

where z, z_glob and z_prev, in R^H, are what the model that is trained, the model that was received and the client's model as
it left its last round make of node v: representations come near those of the common model and away from the client's own
earlier ones. No gradient goes into the latter two.

Here z is the output of the last message-passing layer before head and activation (`Backbone.embed`). The paper puts a
projection of two layers between its encoder and its classifier and takes z there; our networks are those of the other
methods, so that a comparison compares methods. Dropout is on for z, which is trained, and off for the other two. In a
client's first round both are the initial model, whose two terms cancel: l_con is log 2 and has no gradient.

The paper tries mu of 0.1, 1, 5 and 10; the default is the one with the best validation accuracy on Cora (docs/peers.md).

Link prediction contrasts the ends of a batch's pairs. A client without edges contrasts what its perceptron makes of its
nodes. Traffic, what is told and secure sums are FedAvg's; the earlier model stays at its client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import client_mean
from suture.core.tree import Tree
from suture.method import Clients
from suture.methods.averaging import Kept
from suture.methods.fedavg import FedAvg
from suture.settings import NonNegative, Positive
from suture.training.batches import Batch


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg whose representations stay near the common model's."""

    name: ClassVar[str] = "moon"
    summary: ClassVar[str] = (
        "FedAvg whose embeddings are drawn to the common model's and away from the client's earlier ones"
    )
    paper: ClassVar[str] = "Li et al., CVPR 2021"

    mu: NonNegative = 0.1
    """Weight of the contrast; 0 is FedAvg."""
    temperature: Positive = 0.5
    """tau, what cosines are divided by."""

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        """Cross-entropy, and the contrast."""
        terms = super().loss_terms(params, batch, received, clients)
        if self.mu == 0:
            return terms
        backbone = self.backbone(clients.task)
        with torch.no_grad():
            common_BH, earlier_BH = (
                backbone.embed(model, batch.graph, view=batch.view) for model in (received, clients.state.params)
            )
        now_BH = backbone.embed(params, batch.graph, batch.rng, batch.view)
        return terms | {"contrast": self.mu * contrast(now_BH, common_BH, earlier_BH, batch, self.temperature)}


def contrast(now_BH: Tensor, common_BH: Tensor, earlier_BH: Tensor, batch: Batch, temperature: float) -> Tensor:
    """The mean of l_con over each client's nodes of a batch, [K]; zero for a client that has none there."""
    # -log(e^near / (e^near + e^far)) = log(1 + e^(far - near)), and cosines are products of unit vectors. Where both
    # models are the same their difference is exactly zero, and Adam makes no step of what rounding would leave.
    apart_BH = F.normalize(earlier_BH, dim=1) - F.normalize(common_BH, dim=1)
    loss_B = F.softplus((F.normalize(now_BH, dim=1) * apart_BH).sum(1) / temperature)
    return client_mean(loss_B, batch.view.segments.client, len(batch.graph.ids))
