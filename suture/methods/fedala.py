"""FedALA: Adaptive local aggregation for personalized federated learning. Zhang et al., AAAI 2023, algorithm 1.

    for t = 1..T
      1  server samples a share of the clients and sends them w
      2  client k keeps its last model w_k and weights A_k in [0, 1] of its last `adaptive_layers` layers, number by number
             w^ = w_k + (w - w_k) * A_k                     element by element; the layers below take w as it is
             A_k <- clip(A_k - ala_rate dF_k(w^) / dA_k, 0, 1)          on a share of its training nodes
           once a round; in the round after its first until the loss has settled
      3  client k: w_k <- E local epochs from w^; sends w_k
      4  w <- sum_k (n_k / n) w_k

A_k begins at one, where w^ = w: with `ala_rate` = 0 it stays there, and this is FedAvg. What a client would be given next,
w^ by its weights as they stand, is what is tested as its aggregated model.

The loss has settled when its last ten values deviate by less than `settled` (as in the authors' code), or after
`start_steps`, a bound of ours. A pass over the share is one full-batch step here, drawn anew each round; the authors pass
over it in batches of ten. In a client's first round w_k = w, so that A_k has no gradient and nothing is learnt. In link
prediction the weights are learnt on all training pairs.

Traffic, what is told and secure sums are FedAvg's: A_k never leaves its client. A client without edges takes part as in
FedAvg. DP-SGD is refused, as weights learnt without noise would reach what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.message import Model, Nothing
from suture.core.tree import Tree, column, map_tree
from suture.graph.batch import View
from suture.method import Clients, Task
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server
from suture.settings import Count, NonNegative, PositiveShare
from suture.training.batches import Batch, batches
from suture.training.local import sum_terms
from suture.training.optimisers import slopes

WINDOW = 10
"""Of how many losses the deviation says whether they have settled."""


@dataclass(frozen=True)
class Adapting(Kept):
    """What a client keeps: also A_k [K, ...] by parameter, and in how many rounds it has learnt it, int64 [K]."""

    adapted: Tree
    learnt: Tensor


@dataclass(frozen=True)
class FedAla(ModelAveraging[Server, Adapting]):
    """FedAvg whose clients take from the common model what helps them."""

    name: ClassVar[str] = "fedala"
    summary: ClassVar[str] = "FedAvg whose clients learn, number by number, how much of the common model they take"
    paper: ClassVar[str] = "Zhang et al., AAAI 2023"
    one_model: ClassVar[bool] = False
    edges_by_layers: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ("local_update",)

    adaptive_layers: Count = 1
    """p, of how many of the last layers a client takes part only (the head counts as one)."""
    ala_rate: NonNegative = 1.0
    """Step size of these weights; 0 is FedAvg."""
    ala_share: PositiveShare = 0.8
    """s, the share of its training nodes that a client learns them on."""
    settled: NonNegative = 0.1
    """The first time, they are learnt until the last ten losses deviate by less."""
    start_steps: Count = 30
    """The most steps of that first time."""

    def beyond_dp_sgd(self) -> str:
        """How much of the common model is taken is learned from training nodes too."""
        return "learns from training nodes, without noise, how much of the common model it takes, so DP-SGD hides nothing"

    def init_server(self, task: Task) -> Server:
        """The common model."""
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Adapting:
        """The initial model, all of which is taken."""
        kept = self.fresh(clients)
        names = set(self.backbone(clients.task).personal_names(self.adaptive_layers)) - self.frozen_names(clients.task)
        adapted = {name: torch.ones_like(value) for name, value in kept.params.items() if name in names}
        learnt = torch.zeros(len(clients.ids), dtype=torch.int64, device=clients.graph.device)
        return Adapting(**vars(kept), adapted=adapted, learnt=learnt)

    def received(self, clients: Clients[Adapting], down: Model) -> Tree:
        """Line 2: what training starts from."""
        common = super().received(clients, down)
        return common | blended(clients.state.params, common, clients.state.adapted)

    def informed(self, clients: Clients[Adapting], down: Model) -> Adapting:
        """Line 2: learn A_k."""
        state = super().informed(clients, down)
        if self.ala_rate > 0:
            state = replace(state, adapted=self.learnt_weights(replace(clients, state=state), down))
        return replace(state, learnt=state.learnt + 1)

    def learnt_weights(self, clients: Clients[Adapting], down: Model) -> Tree:
        """A_k after this round's steps, [K, ...]."""
        state, batch = clients.state, self.share(clients)
        common, weights = super().received(clients, down), state.adapted
        losses: list[Tensor] = []
        # In its first round a client has nothing of its own that it could keep.
        active_K = state.learnt > 0
        while bool(active_K.any()) and len(losses) < self.start_steps:
            leaves = map_tree(lambda value: value.detach().requires_grad_(), weights)
            step = replace(batch, rng=batch.rng.fork("step", len(losses)))
            params = common | blended(state.params, common, leaves)
            loss_K = sum_terms(self.loss_terms(params, step, common, clients))
            slope, before = slopes(loss_K, leaves), weights
            moved = {name: (value - self.ala_rate * slope[name]).clamp(0, 1) for name, value in before.items()}
            weights = {name: torch.where(column(active_K, value) > 0, value, before[name]) for name, value in moved.items()}
            losses.append(loss_K.detach())
            active_K = active_K & (state.learnt == 1) & ~self.has_settled(losses)
        return map_tree(Tensor.detach, weights)

    def share(self, clients: Clients[Adapting]) -> Batch:
        """The training nodes that this round's weights are learnt on."""
        rng = clients.rng.fork("ala")
        (batch,) = batches(self.seen(clients, training=True), replace(self.training, batch_size=0, fanouts=()), rng)
        if batch.links is not None:
            return batch
        segments = batch.view.segments
        order = rng.fork("share").shuffle(segments.ptr)
        count_K = (segments.ptr.diff() * self.ala_share).ceil()
        chosen = order[segments.place < count_K[segments.client]]
        return replace(batch, view=View(batch.graph, batch.view.nodes[chosen]))

    def has_settled(self, losses: list[Tensor]) -> Tensor:
        """Whether a client's loss stands still, bool [K]."""
        if len(losses) <= WINDOW:
            return torch.zeros_like(losses[-1], dtype=torch.bool)
        return torch.stack(losses[-WINDOW:]).std(0, correction=0) < self.settled


def blended(own: Tree, common: Tree, weights: Tree) -> Tree:
    """w_k + (w - w_k) * A of the parameters that have weights, [K, ...]."""
    return {name: torch.lerp(own[name], common[name], weight) for name, weight in weights.items()}
