"""Ditto: Fair and robust federated learning through personalization. Li et al., ICML 2021, algorithm 1.

    for t = 1..T
      1  server samples a share of the clients and sends them w
      2  client k: w_k <- E local epochs from w on F_k                                               (FedAvg's own line)
      3  client k: v_k <- E local epochs from its last v_k on the personal objective
             h_k(v; w) = F_k(v) + (lambda / 2) ||v - w||^2
      4  client k sends w_k;  w <- sum_k (n_k / n) w_k

Client k predicts by v_k, which never leaves it. lambda = 0 is local training beside a FedAvg that nobody uses; the larger
lambda, the nearer v_k stays to the federation's model. The paper chooses lambda by validation, per client if it may; here it
is one number for all. It trains both models by the same optimiser for as many steps, and so do we; the personal one has
moments of its own, and both see the same batches and drop the same units. Where v and w differ by rounding alone there is no
pull: Adam scales the smallest gradient up to a whole step.

Traffic, what is told and secure sums are FedAvg's: only w_k travels. A client without edges takes part as in FedAvg, with
two perceptrons. A client that was never asked predicts by the initial model. Under DP-SGD both models are trained with
noise, each with its own, and the account covers both, so that predictions may be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from suture.core.message import Message, Model, Nothing
from suture.core.tree import Tree, squared_distance, unless_rounded
from suture.method import Clients, Shared, Task
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Trained, Up
from suture.privacy.mechanisms import Mechanism, NoisyGradients
from suture.settings import NonNegative
from suture.training.batches import Batch
from suture.training.local import sum_terms, train_locally
from suture.training.optimisers import Moments, in_round
from suture.training.shared import at_round_start, client_memory


@dataclass(frozen=True)
class TwoModels(Kept):
    """What a client keeps: w_k (`params`) with its moments, and v_k (`own`) with its own, each [K, ...]."""

    own: Tree
    own_moments: Moments


@dataclass(frozen=True)
class Ditto(ModelAveraging[Server, TwoModels]):
    """FedAvg, and beside it a personal model that is pulled towards the common one."""

    name: ClassVar[str] = "ditto"
    summary: ClassVar[str] = "FedAvg, and a personal model of each client that is pulled towards the common one"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    one_model: ClassVar[bool] = False
    edges_by_layers: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")

    pull: NonNegative = 0.1
    """Lambda, how strongly a personal model is pulled towards the common one; 0: it is trained alone."""

    def init_server(self, task: Task) -> Server:
        """The common model."""
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> TwoModels:
        """Both models begin at the common initial one."""
        kept = self.fresh(clients)
        return TwoModels(**vars(kept), own=kept.params, own_moments=client_memory(kept.params, self.training, sums=False))

    def conclude(self, clients: Clients[TwoModels], down: Model, trained: Trained) -> tuple[TwoModels, Up]:
        """Lines 3 and 4: w_k is sent, v_k stays."""
        before, common = clients.state, self.received(clients, down)
        own, moments, _ = train_locally(
            self.seen(clients, training=True),
            before.own,
            at_round_start(before.own_moments, self.training),
            lambda params, batch: sum_terms(self.personal_terms(params, batch, common, clients)),
            in_round(self.training, clients.round),
            # The same noise on two gradients would cancel in their difference.
            clients.rng.fork("personal") if self.training.dp_sigma > 0 else clients.rng,
            self.frozen_names(clients.task),
        )
        state, up = super().conclude(clients, down, trained)
        return replace(state, own=own, own_moments=moments), up

    def personal_terms(self, params: Tree, batch: Batch, common: Tree, clients: Clients[TwoModels]) -> dict[str, Tensor]:
        """h_k of line 3, [K]."""
        towards = {name: unless_rounded(value, common[name]) for name, value in params.items()}
        pulled = self.pull / 2 * squared_distance(params, towards)
        return self.loss_terms(params, batch, common, clients) | {"pull": pulled}

    def assemble(self, clients: Clients[TwoModels], deployed: Message) -> Model:
        """v_k, whatever the server hands out."""
        return Model(clients.ids, clients.state.own)

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Both models read the training nodes: twice as many noisy steps."""
        doubled = (
            replace(used, epochs=2 * used.epochs) if isinstance(used, NoisyGradients) else used
            for used in super().mechanisms()
        )
        return tuple(doubled)
