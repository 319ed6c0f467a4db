"""FedGTA: Topology-aware averaging for federated graph learning. Li et al., VLDB 2023.

    suture run --method examples/fedgta.py:FedGTA --dataset cora

    for t = 1..T
      1  server sends every sampled client i its own model w_i
      2  client i: w_i <- E local epochs; soft labels Y0 of all nodes, then for k = 1..hops, A~ = D~^-1/2 (A + I) D~^-1/2,
             Y <- restart Y0 + (1 - restart) A~ Y                                                  (label propagation)
      3  client i sends w_i, its smoothing confidence H_i = sum_v d~_v sum_c (1/e + Y_vc log Y_vc), and the mixed moments
             M_i = the means over its nodes of Y^q and of (Y - mean Y)^q, q = 1..orders
      4  server: w_i <- sum_j H_j w_j / sum_j H_j over the j with cos(M_i, M_j) >= threshold

Left open by the paper, and done as in the authors' code: training nodes have their own label in Y0, and moments are those of
the last hop. Rows of Y are scaled to sum to one before they are measured, where that code takes a softmax of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import sparse_product
from suture.core.message import Kind, Model, Nothing
from suture.core.tree import mix
from suture.errors import ConfigError
from suture.method import Clients, Cohort, Task
from suture.methods.averaging import Averaging, Kept, Server, Trained, Up
from suture.methods.personal import NEWCOMER, heard, looked_up
from suture.settings import Cosine, Count, Share


@dataclass(frozen=True)
class Told(Up):
    """Line 3: `weight` is the confidence H [K]; `mixed`, the moments M, [K, 2 orders classes]."""

    mixed: Annotated[Tensor, Kind.SIGNATURES]


@dataclass(frozen=True)
class FedGTA(Averaging[Server, Kept, Model, Told]):
    """Personal averages over clients whose predictions are smoothed alike."""

    name: ClassVar[str] = "fedgta"
    summary: ClassVar[str] = "personal averages over clients with alike moments of their propagated labels"
    paper: ClassVar[str] = "Li et al., VLDB 2023"
    one_model: ClassVar[bool] = False
    hops: Count = 5
    """k, steps of label propagation."""
    restart: Share = 0.5
    """How much of the soft labels every step keeps."""
    orders: Count = 13
    """Highest order of the moments."""
    threshold: Cosine = 0.65
    """Clients whose moments are at least so alike are averaged."""

    def init_server(self, task: Task) -> Server:
        """A row for each client that was heard of, and the initial model for newcomers."""
        if task.link:
            raise ConfigError("fedgta compares how labels of nodes spread; for links choose another method")
        return Server((NEWCOMER,), self.initial_params(task))

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        return self.fresh(clients)

    def hand_out(self, server: Server, ids: Sequence[str]) -> Model:  # line 1
        return Model(tuple(ids), looked_up(server, ids).params)

    def conclude(self, clients: Clients[Kept], down: Model, trained: Trained) -> tuple[Kept, Told]:
        """Lines 2 and 3."""
        graph, segments, sizes = clients.graph, clients.graph.segments, clients.graph.sizes.unsqueeze(1)
        with torch.no_grad():
            start = F.softmax(self.predict(graph, Model(clients.ids, trained.params), clients.task), 1)
        start[graph.train.nodes] = F.one_hot(graph.y[graph.train.nodes], start.shape[1]).to(start.dtype)
        label_NC = start
        for _ in range(self.hops):
            label_NC = self.restart * start + (1 - self.restart) * sparse_product(graph.gcn_operator, label_NC)
        label_NC = label_NC / label_NC.sum(1, keepdim=True)
        centred_NC = label_NC - (segments.sum(label_NC) / sizes)[segments.client]
        moments = [segments.sum(y**q) / sizes for y in (label_NC, centred_NC) for q in range(1, self.orders + 1)]
        degree_N = 1 + torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
        sure_N = degree_N * (math.exp(-1) + torch.xlogy(label_NC, label_NC)).sum(1)
        told = segments.sum(sure_N.unsqueeze(1)).squeeze(1), trained.loss, torch.cat(moments, 1)
        return Kept(clients.ids, trained.params, trained.moments), Told(clients.ids, trained.params, *told)

    def combine(self, server: Server, handed: Model, up: Told, cohort: Cohort) -> Server:  # line 4
        alike_KK = F.cosine_similarity(up.mixed.unsqueeze(1), up.mixed.unsqueeze(0), dim=2)
        share_KK = (alike_KK >= self.threshold).fill_diagonal_(True) * up.weight
        cohort.report(loss=float(up.loss.mean()), averaged=float((share_KK > 0).sum(1).float().mean()))
        return heard(server, Server(up.ids, mix(up.params, share_KK / share_KK.sum(1, keepdim=True))))
