"""FedAvg: Communication-efficient learning of deep networks from decentralized data. McMahan et al., AISTATS 2017.

    for t = 1..T
      1  server samples a share of the clients and sends them w
      2  client k: w_k <- E local epochs of the optimiser from w on its own training nodes
      3  client k sends w_k
      4  w <- sum_k (n_k / n) w_k

Every method here that only changes what clients minimise, share or keep is a few lines on top of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing, Record
from suture.core.tree import Tree, mean, tile
from suture.method import Clients, Cohort, Method, Phase, Task, step
from suture.privacy.mechanisms import Mechanism, NoisyGradients
from suture.training.batches import Batch
from suture.training.local import sum_terms, train_locally
from suture.training.optimisers import Moments, fresh_moments, in_round

SERVER = ("server",)


@dataclass(frozen=True)
class Server(Record):
    """The global model: `params` [1, ...]."""

    params: Tree


@dataclass(frozen=True)
class Kept(Record):
    """What a client keeps: its model as it last left it [K, ...], and its optimiser's moments."""

    params: Tree
    moments: Moments


@dataclass(frozen=True)
class Up(Message):
    """Client to server: trained parameters, the client's weight in the average [K], its training loss [K]."""

    params: Annotated[Tree, Kind.WEIGHTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class FedAvg(Method[Server, Kept]):
    """Average the clients' models, weighted by their size."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "average the clients' models after each round"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)

    def shared_names(self, task: Task) -> list[str]:
        """Parameters that travel: all of them."""
        return list(self.initial_params(task))

    def frozen_names(self, task: Task) -> frozenset[str]:
        """Entries of a client's model that no gradient reaches."""
        return self.backbone(task).frozen_names()

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, task: Task) -> dict[str, Tensor]:
        """What a client minimises: the sum of these, each one value a client [K]."""
        return {"cross-entropy": batch.cross_entropy(self.backbone(task), params)}

    def init_server(self, task: Task) -> Server:
        """The shared part of the initial model."""
        params = self.initial_params(task)
        return Server(SERVER, {name: params[name] for name in self.shared_names(task)})

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        device = clients.graph.device
        params = {n: v.to(device) for n, v in tile(self.initial_params(clients.task), len(clients.ids)).items()}
        return Kept(clients.ids, params, fresh_moments(params, self.training))

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """DP-SGD if the settings ask for it."""
        training = self.training
        if training.dp_sigma == 0:
            return ()
        return (NoisyGradients("local_update", training.local_epochs, training.batch_size, training.dp_sigma),)

    def plan(self) -> tuple[Phase[Server], ...]:
        """One loop."""
        return (Phase("round", self.round, self.training.rounds, evaluate=True),)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Lines 1-4 of the box."""
        cohort = cohort.sample(self.training.participation)
        up = cohort.ask(self.local_update, Model(cohort.ids, tile(server.params, len(cohort.ids))))
        cohort.report(loss=float((up.loss * up.weight).sum() / up.weight.sum().clamp_min(1e-9)))
        return Server(SERVER, mean(up.params, up.weight))

    @step
    def local_update(self, clients: Clients[Kept], down: Model) -> tuple[Kept, Up]:
        """Lines 2 and 3."""
        start = clients.state.params | down.params
        kept = clients.state.moments
        if not self.training.keep_optimizer:
            kept = {name: torch.zeros_like(value) for name, value in kept.items()}
        params, moments, loss = train_locally(
            clients.graph,
            start,
            kept,
            lambda p, batch: sum_terms(self.loss_terms(p, batch, start, clients.task)),
            in_round(self.training, clients.round),
            clients.rng,
            self.frozen_names(clients.task),
        )
        sent = {name: params[name] for name in down.params}
        return Kept(clients.ids, params, moments), Up(clients.ids, sent, self.weight(clients), loss)

    def weight(self, clients: Clients[Kept]) -> Tensor:
        """n_k, float [K]."""
        graph = clients.graph
        sizes = {"train-nodes": graph.num_train, "nodes": graph.sizes, "uniform": torch.ones_like(graph.sizes)}
        return sizes[self.training.weighting].float()

    def deploy(self, server: Server, ids: Sequence[str]) -> Message:
        """The global model for everybody."""
        return Model(tuple(ids), tile(server.params, len(ids)))

    def assemble(self, clients: Clients[Kept], deployed: Message) -> Model:
        """Received parameters over kept ones."""
        received = deployed.params if isinstance(deployed, Model) else {}
        return Model(clients.ids, clients.state.params | received)
