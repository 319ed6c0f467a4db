"""FedDyn: Federated learning based on dynamic regularization. Acar et al., ICLR 2021, algorithm 1.

    suture run --method examples/feddyn.py:FedDyn --dataset cora

    server keeps x and h, client i keeps a slope g_i; h and every g_i start at 0
    for t = 1..T
      1  server sends x to a sample S of the N clients
      2  client i: y <- E local epochs from x on   L_i(y) - <g_i, y> + (alpha / 2) ||y - x||^2
      3  client i: g_i <- g_i - alpha (y - x); sends y
      4  server: h <- h - alpha |S| / N (mean of y - x);   x <- mean of y - h / alpha

Where clients solve line 2 to the end, g_i is the slope of their own loss, and all of them stop at the same x. Means are
plain ones in the paper: training.weighting=uniform.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from suture.core.message import Model, Nothing
from suture.core.tree import Tree, map_tree, mean, squared_distance
from suture.method import Clients, Cohort, Task
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Trained, Up, weighted_loss
from suture.settings import Positive
from suture.training.batches import Batch


@dataclass(frozen=True)
class Sloped(Kept):
    """What client i keeps: also g_i, [K, ...]."""

    slope: Tree


@dataclass(frozen=True)
class Corrected(Server):
    """What the server keeps: also h, [1, ...]."""

    drift: Tree


@dataclass(frozen=True)
class FedDyn(ModelAveraging[Corrected, Sloped]):
    """FedAvg whose clients' losses are tilted until they agree."""

    name: ClassVar[str] = "feddyn"
    summary: ClassVar[str] = "FedAvg whose clients' losses are tilted until all of them stop at one model"
    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    alpha: Positive = 0.1
    """How strongly clients are held at x, and how slowly their slopes are learnt."""

    def init_server(self, task: Task) -> Corrected:
        params = self.initial_shared(task)
        return Corrected(SERVER, params, map_tree(torch.zeros_like, params))

    def init_clients(self, clients: Clients[Nothing]) -> Sloped:
        kept = self.fresh(clients)
        return Sloped(**vars(kept), slope=map_tree(torch.zeros_like, kept.params))

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Sloped]) -> Tree:  # line 2
        tilts = [(slope * params[name]).flatten(1).sum(1) for name, slope in clients.state.slope.items()]
        dynamic = self.alpha / 2 * squared_distance(params, received) - torch.stack(tilts).sum(0)
        return super().loss_terms(params, batch, received, clients) | {"dynamic": dynamic}

    def conclude(self, clients: Clients[Sloped], down: Model, trained: Trained) -> tuple[Sloped, Up]:  # line 3
        state, up = super().conclude(clients, down, trained)
        went = {name: trained.params[name] - x for name, x in down.params.items()}
        return replace(state, slope={n: g - self.alpha * went[n] for n, g in clients.state.slope.items()}), up

    def combine(self, server: Corrected, handed: Model, up: Up, cohort: Cohort) -> Corrected:  # line 4
        cohort.report(loss=weighted_loss(up))
        y, share = mean(up.params, up.weight), len(handed.ids) / len(cohort.ids)
        drift = {name: h - self.alpha * share * (y[name] - server.params[name]) for name, h in server.drift.items()}
        return replace(server, params={n: value - drift[n] / self.alpha for n, value in y.items()}, drift=drift)
