"""FedAvg: Communication-efficient learning of deep networks from decentralized data. McMahan et al., AISTATS 2017.

    for t = 1..T
      1  server samples a share of the clients and sends them w
      2  client k: w_k <- E local epochs of the optimiser from w on its own training nodes
      3  client k sends w_k
      4  w <- sum_k (n_k / n) w_k

The round is `suture.methods.averaging`'s, and nothing is kept beside the models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suture.core.message import Nothing
from suture.method import Clients, Task
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server


@dataclass(frozen=True)
class FedAvg(ModelAveraging[Server, Kept]):
    """Average the clients' models, weighted by their size."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "average the clients' models after each round"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    edges_by_layers: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ("local_update",)

    def init_server(self, task: Task) -> Server:
        """The shared part of the initial model."""
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        return self.fresh(clients)
