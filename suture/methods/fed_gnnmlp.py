"""Fed-GNNMLP: clients with edges share a GNN, graphless clients share a perceptron. A baseline of FedGLS (Fu et al., TMLR).

    0  every client tells whether it has edges: two groups
    for t = 1..T
      1  server sends each sampled client the model w_G of its group
      2  client k: w_k <- E local epochs from w_G
      3  for each group: w_G <- sum_{k in G} (n_k / n_G) w_k; a group nobody was heard of keeps its model

On a client without edges every layer of the backbone is a layer of a perceptron, since a node then hears from itself alone
(tested), so both groups run the same code.

Privacy: beyond FedAvg, the server learns which clients have no edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing
from suture.core.tree import mix
from suture.method import Clients, Cohort, Phase, Shared, Task, step
from suture.methods.averaging import Kept, ModelAveraging, Server, Up, weighted_loss
from suture.methods.personal import NEWCOMER, enrolled, looked_up, positions, written_over


@dataclass(frozen=True)
class Groups(Server):
    """Personal rows (`suture.methods.personal`); before line 0 there is one, for everybody to come.

    Shapes: `params` [K, ...] of the client's group; `graphless` bool [K].
    """

    graphless: Tensor


@dataclass(frozen=True)
class Edges(Message):
    """Client to server: whether it has no edge, bool [K]."""

    graphless: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class FedGnnMlp(ModelAveraging[Groups, Kept]):
    """FedAvg among clients with edges, and among those without."""

    name: ClassVar[str] = "fed_gnnmlp"
    summary: ClassVar[str] = "FedAvg in two groups: a GNN where there are edges, a perceptron where there are none"
    paper: ClassVar[str] = "baseline of Fu et al., TMLR 2024"
    one_model: ClassVar[bool] = False
    shares: ClassVar[tuple[Shared, ...]] = ("moments",)

    def init_server(self, task: Task) -> Groups:
        """The initial model; who will take part is not known yet."""
        return Groups((NEWCOMER,), self.initial_shared(task), torch.zeros(1, dtype=torch.bool))

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        return self.fresh(clients)

    def plan(self) -> tuple[Phase[Groups], ...]:
        """Line 0, then the rounds."""
        return (Phase("groups", self.form_groups), *super().plan())

    def form_groups(self, server: Groups, cohort: Cohort) -> Groups:
        """Line 0."""
        told = cohort.ask(self.tell_kind, Nothing(cohort.ids))
        groups = enrolled(server, told.ids)
        return replace(groups, graphless=told.select(groups.ids).graphless.cpu())

    @step
    def tell_kind(self, clients: Clients[Kept], message: Nothing) -> tuple[Kept, Edges]:
        """Whether there is any edge."""
        return clients.state, Edges(clients.ids, clients.graph.graphless)

    def combine(self, server: Groups, handed: Model, up: Up, cohort: Cohort) -> Groups:
        """Line 3."""
        cohort.report(loss=weighted_loss(up))
        heard = torch.tensor(positions(server, up.ids))
        weight_KH = (server.graphless.unsqueeze(1) == server.graphless[heard]) * up.weight.double().cpu()
        fresh_K = weight_KH.sum(1) > 0
        share_RH = weight_KH[fresh_K] / weight_KH[fresh_K].sum(1, keepdim=True)
        places, share_RH = torch.nonzero(fresh_K).squeeze(1), share_RH.to(up.weight.device)
        params, moments = (
            written_over(old, mix(new, share_RH), places, len(server.ids))
            for old, new in ((server.params, up.params), (server.moments, up.moments))
        )
        return replace(server, params=params, moments=moments)

    def hand_out(self, server: Groups, ids: Sequence[str]) -> Model:
        """Everybody's group's model."""
        return looked_up(Model(server.ids, server.params, moments=server.moments), ids)
