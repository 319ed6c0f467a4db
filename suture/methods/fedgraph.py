"""FedGraph: Federated graph learning with intelligent sampling. Chen, Li, Miyazaki and Wu, IEEE TPDS 2021.

As FedDEP (Zhang et al., SDM 2024, section 1 and appendix C) and FedGGR describe it: which neighbours of a node other clients
hold is known, their embeddings (never their features) take part in its convolution, the server manages the process with
auxiliary data, and how many neighbours are sampled is learned.

    for t = 1..T
      1  server chooses a sampling size s_t, by UCB1 (Auer et al., 2002) on the relative drop of the training loss
      2  client k sends h_v, the input of its last layer, of each node; the server returns the mean h over s_t neighbours
         of v at other clients
      3  client k: w_k <- local epochs with these neighbours in the input of the last layer; w <- sum_k (n_k / n) w_k

What we read into it
- In our protocols nobody knows links between clients, and a comparison in which one method did would not be one. The server
  holds an embedding of every node (the auxiliary data) and takes the most similar nodes of other clients, as in `fedgnn`.
- The original learns its sampling policy by deep reinforcement learning. Ours chooses among `sizes` for the foreign
  neighbours: a bandit is what is left of that policy when its state is ignored. The reward is (l - l') / l.

Privacy: as `fedgnn`, the server sees an embedding of every node in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from suture.core.message import Model, Nothing
from suture.method import Clients, Cohort, Shared, Task
from suture.methods.averaging import SERVER, Up
from suture.methods.fedgnn import Counted, Expanded, Expanding
from suture.settings import Count, NonNegative


@dataclass(frozen=True)
class Sampling(Counted):
    """The global model; how often each sampling size was chosen and the sum of its rewards [1, A]; the last loss [1]."""

    chosen: Tensor
    reward: Tensor
    loss: Tensor


@dataclass(frozen=True)
class FedGraph(Expanding[Sampling, Expanded]):
    """FedGNN whose server learns how many foreign neighbours to sample."""

    name: ClassVar[str] = "fedgraph"
    summary: ClassVar[str] = "FedAvg with embeddings of other clients' similar nodes, as many as a bandit finds useful"
    paper: ClassVar[str] = "Chen et al., IEEE TPDS 2021"
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")

    sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 3, 5, 10)
    """Sampling sizes the server chooses from."""
    exploration: NonNegative = 0.1
    """How much a rarely tried size is preferred; 0 always takes the best so far."""

    def init_server(self, task: Task) -> Sampling:
        """The initial model, and nothing known about any size."""
        none = torch.zeros(1, len(self.sizes))
        return Sampling(SERVER, self.initial_shared(task), 0, none, none.clone(), torch.full((1,), torch.nan))

    def choice(self, server: Sampling) -> int:
        """Line 1: the place in `sizes` with the highest upper bound; each is tried once before any is repeated."""
        bonus = (2 * torch.log(server.chosen.sum().clamp_min(1)) / server.chosen.clamp_min(1)).sqrt()
        bound = server.reward / server.chosen.clamp_min(1) + self.exploration * bonus
        return int(torch.where(server.chosen == 0, torch.inf, bound)[0].argmax())

    def init_clients(self, clients: Clients[Nothing]) -> Expanded:
        """The initial model, and no foreign neighbours."""
        return self.unexpanded(clients)

    def wanted(self, server: Sampling) -> int:
        """Line 1: s_t."""
        return self.sizes[self.choice(server)]

    def combine(self, server: Sampling, handed: Model, up: Up, cohort: Cohort) -> Sampling:
        """The average of line 3, and what the chosen size was worth."""
        loss = up.loss.mean().reshape(1)
        gain = torch.nan_to_num((server.loss - loss) / server.loss)  # nothing to compare the first loss with
        tried = torch.zeros_like(server.chosen)
        tried[0, self.choice(server)] = 1
        averaged = super().combine(server, handed, up, cohort)
        return replace(averaged, chosen=server.chosen + tried, reward=server.reward + gain * tried, loss=loss)
