"""FedAMP: Personalized cross-silo federated learning on non-IID data. Huang et al., AAAI 2021, its form HeurFedAMP.

    suture run --method examples/fedamp.py:FedAMP --dataset cora

    for t = 1..T
      1  server sends every sampled client i its personal model u_i
      2  client i: w_i <- E local epochs from u_i on   F_i(w) + (pull / 2) ||w - u_i||^2;  sends w_i
      3  server: u_i <- own w_i + (1 - own) sum_j a_ij w_j,   a_ij = softmax over j != i of sharpness * cos(w_i, w_j)

Cosines are of models with the initial one subtracted, which all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.message import Model, Nothing
from suture.core.tree import Tree, mix, squared_distance
from suture.method import Clients, Cohort, Task
from suture.methods.averaging import Averaging, Kept, Server, Trained, Up
from suture.methods.personal import NEWCOMER, heard, looked_up
from suture.settings import NonNegative, Share
from suture.training.batches import Batch


@dataclass(frozen=True)
class FedAMP(Averaging[Server, Kept, Model, Up]):
    """Personal averages that listen most to the most alike."""

    name: ClassVar[str] = "fedamp"
    summary: ClassVar[str] = "personal averages that listen most to clients whose models went the same way"
    paper: ClassVar[str] = "Huang et al., AAAI 2021"
    one_model: ClassVar[bool] = False
    own: Share = 0.5
    """How much of its personal model is a client's own."""
    sharpness: NonNegative = 10.0
    """How much more the alike are listened to; 0: all others alike."""
    pull: NonNegative = 0.01
    """How strongly a client is held at its personal model."""

    def init_server(self, task: Task) -> Server:
        """A row for each client that was heard of, and the initial model for newcomers."""
        return Server((NEWCOMER,), self.initial_params(task))

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        return self.fresh(clients)

    def hand_out(self, server: Server, ids: Sequence[str]) -> Model:  # line 1
        return Model(tuple(ids), looked_up(server, ids).params)

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        """Line 2."""
        pulled = self.pull / 2 * squared_distance(params, received)
        return super().loss_terms(params, batch, received, clients) | {"pull": pulled}

    def conclude(self, clients: Clients[Kept], down: Model, trained: Trained) -> tuple[Kept, Up]:
        """Line 2."""
        state = replace(clients.state, params=trained.params, moments=trained.moments)
        return state, Up(clients.ids, trained.params, self.weight(clients), trained.loss)

    def combine(self, server: Server, handed: Model, up: Up, cohort: Cohort) -> Server:
        """Line 3."""
        first = looked_up(server, (NEWCOMER,)).params
        moved = torch.cat([(w - first[name].to(w.device)).flatten(1) for name, w in up.params.items()], 1)
        alike_KK = F.cosine_similarity(moved.unsqueeze(1), moved.unsqueeze(0), dim=2)
        itself = torch.eye(len(up.ids), device=alike_KK.device)
        others = torch.softmax((self.sharpness * alike_KK).masked_fill(itself.bool(), -torch.inf), 1).nan_to_num()
        weights = self.own * itself + (1 - self.own) * others if len(up.ids) > 1 else itself
        cohort.report(loss=float(up.loss.mean()), alike=float(alike_KK.mean()))
        return heard(server, Server(up.ids, mix(up.params, weights)))
