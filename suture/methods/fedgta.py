"""FedGTA: Topology-aware averaging for personalized federated graph learning. Li et al., VLDB 2023.

    for t = 1..T
      1  server sends every sampled client i its own model w_i
      2  client i: w_i <- E local epochs; soft labels Y0 [N, C] of all its nodes, then, with A~ = D~^-1/2 (A + I) D~^-1/2,
             Y <- restart Y0 + (1 - restart) A~ Y                            for k = 1..hops     (label propagation)
      3  client i sends w_i, its local smoothing confidence H_i = sum_v d~_v sum_c (1/e + Y_vc log Y_vc), and its mixed
           moments M_i = the means over its nodes of Y^q and of (Y - mean Y)^q, q = 1..orders          [2 orders C]
      4  server: w_i <- sum_j H_j w_j / sum_j H_j over the j with cos(M_i, M_j) >= threshold

H_i is large where many nodes with many neighbours are predicted without doubt: 1/e + y log y is never negative and greatest
at y = 0 and y = 1. Left open by the paper, and done as in the authors' code: training nodes have their own label in Y0, and
moments are those of the last hop. Rows of Y are scaled to sum to one before they are measured, where that code takes a
softmax of them, at one temperature for H and another for M. `threshold` = 1 leaves every client alone; -1 averages all, and
with `weigh_by` = size that is FedAvg.

A client without edges propagates nothing: its Y is its own soft labels, and every node counts once in H_i. A newcomer gets
the initial model. Traffic: FedAvg's, and 2 orders C + 1 numbers up. The server learns a client's moments, from which the
shares of its predicted classes can be read (q = 1), and of its training labels as part of them; each client's model is
needed by itself, so that secure sums are refused, and so are averaged moments and steps of the server. DP-SGD is refused,
as the moments have no noise. Labels are those of nodes: link prediction, several labels and numbers are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import sparse_product
from suture.core.message import Kind, Model, Nothing
from suture.core.tree import Tree, mix
from suture.graph.batch import GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Task, check_links
from suture.methods.averaging import Averaging, Kept, Server, Trained, Up
from suture.methods.personal import NEWCOMER, heard, looked_up
from suture.settings import Cosine, Count, Share

PAIRS_AT_A_TIME = 1 << 17
"""Pairs of clients that are compared at once."""


@dataclass(frozen=True)
class Told(Up):
    """Line 3: `weight` is the confidence H [K]; `mixed`, the moments M, [K, 2 orders classes]."""

    mixed: Annotated[Tensor, Kind.STATISTICS]


@dataclass(frozen=True)
class FedGta(Averaging[Server, Kept, Model, Told]):
    """Personal averages over clients whose predictions are smoothed alike."""

    name: ClassVar[str] = "fedgta"
    summary: ClassVar[str] = "personal averages over clients with alike moments of their propagated labels"
    paper: ClassVar[str] = "Li et al., VLDB 2023"
    one_model: ClassVar[bool] = False
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})

    hops: Count = 5
    """k, steps of label propagation."""
    restart: Share = 0.5
    """How much of the soft labels every step keeps."""
    orders: Count = 13
    """Highest order of the moments."""
    threshold: Cosine = 0.65
    """Clients whose moments are at least so alike are averaged."""
    weigh_by: Literal["confidence", "size"] = "confidence"
    """What a client weighs in others' averages: how sure it is of its labels, or as in FedAvg."""

    def beyond_dp_sgd(self) -> str:
        """Moments are told beside the model."""
        return "tells moments of its labels, training labels among them, without noise, which DP-SGD does not cover"

    def beyond_links(self) -> str:
        """It is about classes."""
        return "compares how labels of nodes spread"

    def init_server(self, task: Task) -> Server:
        """A row for each client that was heard of, and the initial model for newcomers."""
        if task.link:
            check_links(self)
        return Server((NEWCOMER,), self.initial_params(task))

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        return self.fresh(clients)

    def hand_out(self, server: Server, ids: Sequence[str]) -> Model:
        """Line 1."""
        return Model(tuple(ids), looked_up(server, ids).params)

    def conclude(self, clients: Clients[Kept], down: Model, trained: Trained) -> tuple[Kept, Told]:
        """Lines 2 and 3."""
        label_NC = self.propagated(clients, trained.params)
        weight_K = confidence(clients.graph, label_NC) if self.weigh_by == "confidence" else self.weight(clients)
        mixed = mixed_moments(clients.graph, label_NC, self.orders)
        state = replace(clients.state, params=trained.params, moments=trained.moments)
        return state, Told(clients.ids, trained.params, weight_K, trained.loss, mixed)

    def propagated(self, clients: Clients[Kept], params: Tree) -> Tensor:
        """Y after the last hop, rows summing to one, [N, C]."""
        graph = clients.graph
        with torch.no_grad():
            start_NC = F.softmax(self.predict(graph, Model(clients.ids, params), clients.task), 1)
        train = graph.train.nodes
        start_NC[train] = F.one_hot(graph.y[train], start_NC.shape[1]).to(start_NC.dtype)
        label_NC = start_NC
        for _ in range(self.hops):
            label_NC = self.restart * start_NC + (1 - self.restart) * sparse_product(graph.gcn_operator, label_NC)
        return label_NC / label_NC.sum(1, keepdim=True)

    def combine(self, server: Server, handed: Model, up: Told, cohort: Cohort) -> Server:
        """Line 4."""
        # Some clients at a time: of all at once every pair would have a copy of its moments.
        rows = torch.split(up.mixed, max(1, PAIRS_AT_A_TIME // len(up.ids)))
        alike_KK = torch.cat([F.cosine_similarity(some.unsqueeze(1), up.mixed.unsqueeze(0), dim=2) for some in rows])
        # A client is like itself, whatever rounding says; and somebody must weigh something.
        chosen_KK = (alike_KK >= self.threshold).fill_diagonal_(True)
        share_KK = chosen_KK * up.weight.double().clamp_min(1e-12)
        cohort.report(loss=float(up.loss.mean()), averaged=float(chosen_KK.sum(1).float().mean()))
        if up.ids == cohort.ids:
            cohort.keep(similarity=alike_KK)
        return heard(server, Server(up.ids, mix(up.params, share_KK / share_KK.sum(1, keepdim=True))))


def confidence(graph: GraphBatch, label_NC: Tensor) -> Tensor:
    """H, [K]."""
    degree_N = 1 + torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    sure_N1 = degree_N.unsqueeze(1) * (math.exp(-1) + torch.xlogy(label_NC, label_NC)).sum(1, keepdim=True)
    return graph.segments.sum(sure_N1).squeeze(1)


def mixed_moments(graph: GraphBatch, label_NC: Tensor, orders: int) -> Tensor:
    """M, [K, 2 orders C]: raw moments of each class, then central ones."""
    segments, sizes_K1 = graph.segments, graph.sizes.unsqueeze(1).clamp_min(1)
    centred_NC = label_NC - (segments.sum(label_NC) / sizes_K1)[segments.client]
    parts = [segments.sum(part**q) / sizes_K1 for part in (label_NC, centred_NC) for q in range(1, orders + 1)]
    return torch.cat(parts, 1)
