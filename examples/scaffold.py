"""SCAFFOLD: Stochastic controlled averaging for federated learning. Karimireddy et al., ICML 2020.

    server keeps x and c, client i keeps c_i; c and every c_i start at 0
    for t = 1..T
      1  server sends x and c to a sample S of the N clients
      2  client i: y <- x; for each of its K local steps  y <- y - lr (g_i(y) - c_i + c)
      3  client i: c+ <- c_i - c + (x - y) / (K lr); sends y and c+ - c_i; c_i <- c+                       (option II)
      4  server: x <- x + server_lr (mean of y - x);  c <- c + |S| / N (mean of c+ - c_i)

Line 2 is SGD on g_i plus the linear term <c - c_i, y>; line 3 takes (x - y) / (K lr) for a mean gradient, so all but SGD is
refused (--set scaffold.training.optimizer=sgd). The paper's means are plain ones: training.weighting=uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from suture.core.message import Kind, Model, Nothing
from suture.core.tree import Tree, map_tree, mean, tile
from suture.errors import ConfigError
from suture.method import Clients, Cohort, Task
from suture.methods.averaging import SERVER, Averaging, Kept, Trained, Up, weighted_loss
from suture.settings import Positive
from suture.training.batches import Batch
from suture.training.optimisers import in_round


@dataclass(frozen=True)
class Controlled(Kept):
    """What client i keeps: also c_i, and c as it was last told, each [K, ...]."""

    control: Tree
    common: Tree


@dataclass(frozen=True)
class Down(Model):
    """Line 1: x and c; also what the server keeps."""

    control: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class Back(Up):
    """Line 3: y and the change of c_i."""

    control: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class Scaffold(Averaging[Down, Controlled, Down, Back]):
    """FedAvg whose clients correct their drift."""

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg whose clients correct each step by how their gradients differ from the others'"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    server_lr: Positive = 1.0
    """How far the server goes towards the mean of the clients' models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.optimizer != "sgd" or self.training.momentum:
            raise ConfigError("scaffold needs plain SGD: set scaffold.training.optimizer=sgd, and its momentum to 0")

    def init_server(self, task: Task) -> Down:
        return Down(SERVER, self.initial_params(task), map_tree(torch.zeros_like, self.initial_params(task)))

    def init_clients(self, clients: Clients[Nothing]) -> Controlled:
        zero = map_tree(torch.zeros_like, tile(self.initial_params(clients.task), len(clients.ids)))
        return Controlled(**vars(self.fresh(clients)), control=zero, common=zero)

    def hand_out(self, server: Down, ids: Sequence[str]) -> Down:  # line 1
        return Down(tuple(ids), tile(server.params, len(ids)), tile(server.control, len(ids)))

    def informed(self, clients: Clients[Controlled], down: Down) -> Controlled:  # line 2
        return replace(clients.state, common=down.control)

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Controlled]) -> Tree:
        linear = sum(((c - clients.state.control[n]) * params[n]).flatten(1).sum(1) for n, c in clients.state.common.items())
        return super().loss_terms(params, batch, received, clients) | {"control": linear}  # line 2

    def conclude(self, clients: Clients[Controlled], down: Down, trained: Trained) -> tuple[Controlled, Back]:  # line 3
        kept, lr, rows = clients.state, in_round(self.training, clients.round).lr, "k,k...->k..."
        far = lr * (trained.moments["step"] - kept.moments["step"] * self.training.keep_optimizer)  # K lr; 0 without a step
        went = {n: x - trained.params[n] - torch.einsum(rows, far, down.control[n]) for n, x in down.params.items()}
        change = {name: torch.einsum(rows, 1 / far.clamp_min(lr), value) for name, value in went.items()}
        control = {name: value + change[name] for name, value in kept.control.items()}
        state = replace(kept, params=trained.params, moments=trained.moments, control=control)
        return state, Back(clients.ids, trained.params, self.weight(clients), trained.loss, change)

    def combine(self, server: Down, handed: Down, up: Back, cohort: Cohort) -> Down:  # line 4
        cohort.report(loss=weighted_loss(up))
        y, change, share = mean(up.params, up.weight), mean(up.control, up.weight), len(handed.ids) / len(cohort.ids)
        params = {name: x + self.server_lr * (y[name] - x) for name, x in server.params.items()}
        return replace(server, params=params, control={n: c + share * change[n] for n, c in server.control.items()})
