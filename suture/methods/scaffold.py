"""SCAFFOLD: Stochastic controlled averaging for federated learning. Karimireddy et al., ICML 2020.

    server keeps x and c, client i keeps c_i; c and every c_i start at 0
    for t = 1..T
      1  server sends x and c to a sample S of the N clients
      2  client i: y <- x; for each of its K local steps  y <- a step of the optimiser along g_i(y) - c_i + c
      3  client i: c+ <- the mean of its K gradients g_i(y); sends y and c+ - c_i; c_i <- c+                   (option II)
      4  server: x <- x + server_lr (mean of y - x);  c <- c + |S| / N (mean of c+ - c_i)

The paper steps by SGD, y <- y - lr (g_i(y) - c_i + c), and writes line 3 as c+ <- c_i - c + (x - y) / (K lr), which is the
same mean. Taken as what it is, a mean of gradients, it also holds for Adam, where (x - y) / (K lr) is no gradient. Line 2 is
training on the loss plus the linear term <c - c_i, y>. The paper's means are plain ones: training.weighting=uniform. A
client that made no step (it has no training node) changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.message import Model, Nothing
from suture.core.tree import Tree, column, map_tree, mean
from suture.method import Clients, Cohort, Shared, Task
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Trained, Up
from suture.training.batches import Batch
from suture.training.optimisers import STEP, SUM

CONTROL = ".control"
"""After a parameter's name among the moments that travel: c on the way down, c+ - c_i on the way up."""


@dataclass(frozen=True)
class Controlled(Kept):
    """What client i keeps: also c_i, and c as it was last told, each [K, ...]."""

    control: Tree
    common: Tree


@dataclass(frozen=True)
class Scaffold(ModelAveraging[Server, Controlled]):
    """FedAvg whose clients correct their drift."""

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg whose clients correct each step by how their gradients differ from the others'"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    edges_by_layers: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")
    sums_gradients: ClassVar[bool] = True

    def init_server(self, task: Task) -> Server:
        """The initial model; c is zero until somebody has told of a gradient."""
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Controlled:
        """Everybody starts from the same initial model, and nobody differs from the others yet."""
        kept = self.fresh(clients)
        zero = map_tree(torch.zeros_like, kept.params)
        return Controlled(**vars(kept), control=zero, common=zero)

    def informed(self, clients: Clients[Controlled], down: Model) -> Controlled:
        """Line 2: c, which the first round has not yet."""
        state = super().informed(clients, down)
        told = {name: down.moments[name + CONTROL] for name in down.params if name + CONTROL in down.moments}
        return replace(state, common=state.common | told)

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Controlled]) -> dict[str, Tensor]:
        """Line 2: the gradient of <c - c_i, y> is c - c_i."""
        state = clients.state
        parts = [((c - state.control[name]) * params[name]).flatten(1).sum(1) for name, c in state.common.items()]
        return super().loss_terms(params, batch, received, clients) | {"control": torch.stack(parts).sum(0)}

    def conclude(self, clients: Clients[Controlled], down: Model, trained: Trained) -> tuple[Controlled, Up]:
        """Line 3: the mean of what was stepped along is that of g_i - c_i + c."""
        before, change = clients.state, Tree()
        state, up = super().conclude(clients, down, trained)
        made = trained.moments[STEP] - before.moments[STEP] * self.training.keep_optimizer
        for name, c in before.common.items():
            total = trained.moments[f"{name}.{SUM}"]
            change[name] = (total / column(made.clamp_min(1), total) - c) * column(made > 0, total)
        control = {name: value + change[name] for name, value in before.control.items()}
        sent = {name + CONTROL: value for name, value in change.items()}
        return replace(state, control=control), replace(up, moments=up.moments | sent)

    def combine(self, server: Server, handed: Model, up: Up, cohort: Cohort) -> Server:
        """Line 4."""
        known, share = server.moments, len(handed.ids) / len(cohort.ids)
        changes = {name: value for name, value in up.moments.items() if name.endswith(CONTROL)}
        common = {n: known.get(n, 0) + share * value for n, value in mean(changes, up.weight).items()}
        server = super().combine(server, handed, up, cohort)
        return replace(server, moments=server.moments | common)
