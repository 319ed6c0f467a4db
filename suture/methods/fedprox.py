"""FedProx: Federated optimization in heterogeneous networks. Li et al., MLSys 2020.

FedAvg whose clients minimise, in line 2 of its box,

    F_k(w_k) + (mu / 2) ||w_k - w||^2

so that local models stay near the global one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from suture.core.tree import Tree, squared_distance
from suture.method import Clients
from suture.methods.averaging import Kept
from suture.methods.fedavg import FedAvg
from suture.settings import NonNegative, Search
from suture.training.batches import Batch


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg whose clients are pulled towards the global model"
    paper: ClassVar[str] = "Li et al., MLSys 2020"

    mu: Annotated[NonNegative, Search(1e-4, 1.0)] = 0.001
    """Weight of the proximal term; 0 is FedAvg."""

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        """Cross-entropy plus the proximal term (whose gradient is zero in the first of a round's local steps)."""
        proximal = self.mu / 2 * squared_distance(params, received)
        return super().loss_terms(params, batch, received, clients) | {"proximal": proximal}
