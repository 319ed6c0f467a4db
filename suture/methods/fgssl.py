"""FGSSL: Federated graph semantic and structural learning. Huang, Wan, Ye and Du, IJCAI 2023.

FedAvg whose clients minimise, in line 2 of its box, with w the model that was received,

    cross-entropy(w_k) + contrast_weight FNSC(w_k, w) + structure_weight FGSD(w_k, w)

    FNSC  node semantic contrast: the mean over labelled nodes i of
              -1 / |P_i| sum over p in P_i of log( phi(i, p) / (phi(i, p) + sum over q in Q_i of phi(i, q)) ),
              phi(i, j) = exp(cos(h_i, g_j) / temperature)
          where P_i are the labelled nodes of i's class (with i itself), Q_i those of other classes
    FGSD  graph structure distillation: the mean over nodes i with neighbours of
              KL( S_w(i) || S_k(i) ),   S(i)_j = softmax over the neighbours j of i of cos(z_i, z_j) / sharpness

h and z are embeddings (the last layer before head and activation) and class scores of w_k on a view of the client's graph
that lost many links and features, g and z of w those on a view that lost few: the received model is the steadier teacher. No
gradient goes into it. A view drops each link, both ways, and each feature of the client with some chance, afresh each step.

Shares of what views lose, temperature and sharpness are those of the authors' code; the two weights are ours, as is the
cosine by which neighbours are compared in S. Of a client with more than `most` labelled nodes in a batch so many are drawn
each step, because they are compared in pairs. Both weights at 0 are FedAvg.

A client without edges has no FGSD. Traffic, what is told and secure sums are FedAvg's: views and teacher stay at their
client. DP-SGD is refused, as an example's loss would look at other nodes. One class a node; no link prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, client_mean, segment_softmax
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Task, check_links
from suture.methods.averaging import Kept, Server
from suture.methods.fedavg import FedAvg
from suture.settings import Count, DroppedShare, NonNegative, Positive
from suture.training.batches import Batch

FAR = -1e9
"""Of a pair that does not count: exp makes nothing of it."""


@dataclass(frozen=True)
class Fgssl(FedAvg):
    """FedAvg whose clients hold on to what the common model says of classes and neighbours."""

    name: ClassVar[str] = "fgssl"
    summary: ClassVar[str] = "FedAvg whose clients keep to the common model's classes and likeness of neighbours"
    paper: ClassVar[str] = "Huang et al., IJCAI 2023"
    edges_by_layers: ClassVar[bool] = False
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})

    contrast_weight: NonNegative = 0.1
    """Weight of FNSC."""
    structure_weight: NonNegative = 0.1
    """Weight of FGSD."""
    temperature: Positive = 0.1
    """Of FNSC: what cosines are divided by."""
    sharpness: Positive = 0.1
    """Of FGSD: what cosines are divided by."""
    weak_links: DroppedShare = 0.3
    """Share of links that the teacher's view loses."""
    weak_features: DroppedShare = 0.3
    """Share of features that the teacher's view loses."""
    strong_links: DroppedShare = 0.8
    """Share of links that the learner's view loses."""
    strong_features: DroppedShare = 0.5
    """Share of features that the learner's view loses."""
    most: Count = 1024
    """Labelled nodes of a client that are compared in one step."""

    def beyond_dp_sgd(self) -> str:
        """The loss is not a sum over nodes."""
        return "compares every training node with others, so that DP-SGD could not tell whose gradient is whose"

    def beyond_links(self) -> str:
        """It is about classes."""
        return "contrasts classes of nodes"

    def init_server(self, task: Task) -> Server:
        """The initial model."""
        if task.link:
            check_links(self)
        return super().init_server(task)

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Kept]) -> dict[str, Tensor]:
        """Cross-entropy, FNSC and FGSD."""
        terms = super().loss_terms(params, batch, received, clients)
        if self.contrast_weight == 0 and self.structure_weight == 0:
            return terms
        backbone, graph = self.backbone(clients.task), batch.graph
        weak = weakened(graph, self.weak_links, self.weak_features, batch.rng.fork("weak view"))
        strong = weakened(graph, self.strong_links, self.strong_features, batch.rng.fork("strong view"))
        with torch.no_grad():
            teacher_NH = backbone.embed(received, weak)
            taught_NC = backbone.classify(received, teacher_NH, graph.segments)
        learner_NH = backbone.embed(params, strong, batch.rng.fork("learner"))
        learnt_NC = backbone.classify(params, learner_NH, graph.segments)
        chosen = some_of_each(batch.view.nodes, batch.view.segments, self.most, batch.rng.fork("contrast"))
        contrast = class_contrast(learner_NH, teacher_NH, graph, chosen, self.temperature)
        structure = structure_gap(learnt_NC, taught_NC, graph, self.sharpness)
        return terms | {"contrast": self.contrast_weight * contrast, "structure": self.structure_weight * structure}


def weakened(graph: GraphBatch, links: float, features: float, rng: Streams) -> GraphBatch:
    """The graphs without these shares of their links and features."""
    source, target = graph.edge_index
    owner, place = graph.segments.client[target], graph.segments.place
    kept = rng.fork("links").of_pairs(owner, place[source], place[target]) >= links
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    clients, width = len(graph.ids), graph.x.width
    each = torch.arange(clients + 1, device=graph.device)
    seen_KF = (rng.fork("features").uniform(each, width) >= features).float()
    return replace(graph, x=_masked(graph.x, seen_KF), edge_index=graph.edge_index[:, kept], edge_weight=weight)


def _masked(x: Features, seen_KF: Tensor) -> Features:
    owner = x.segments.client
    if not isinstance(x.matrix, SparseMatrix):
        return Features(x.matrix * seen_KF[owner], x.segments)
    kept = seen_KF[owner[x.matrix.row], x.matrix.col.long()]
    return Features(replace(x.matrix, val=x.matrix.val * kept), x.segments)


def some_of_each(nodes: Tensor, segments: Segments, most: int, rng: Streams) -> Tensor:
    """At most so many of each client's nodes, sorted by client."""
    if int(segments.ptr.diff().max()) <= most:
        return nodes
    return nodes[rng.shuffle(segments.ptr)[segments.place < most]]


def class_contrast(learner_NH: Tensor, teacher_NH: Tensor, graph: GraphBatch, nodes: Tensor, temperature: float) -> Tensor:
    """FNSC over these nodes, [K]; zero for a client that has none of them."""
    owner, label = graph.segments.client[nodes], graph.y[nodes]
    first = torch.unique_consecutive(owner, return_inverse=True)[1]
    counts = torch.bincount(first)
    place = torch.arange(nodes.numel(), device=nodes.device) - (counts.cumsum(0) - counts)[first]
    # A client's pairs lie in one block; rows that are not filled up are of no class.
    shape = (counts.numel(), int(counts.max()) if counts.numel() else 0)
    label_RB = label.new_full(shape, -1).index_put((first, place), label)
    blocks = [
        h.new_zeros(*shape, h.shape[1]).index_put((first, place), F.normalize(h[nodes], dim=1))
        for h in (learner_NH, teacher_NH)
    ]
    alike_RBB = blocks[0] @ blocks[1].transpose(1, 2) / temperature
    there_RBB = (label_RB >= 0).unsqueeze(1) & (label_RB >= 0).unsqueeze(2)
    same_RBB = there_RBB & (label_RB.unsqueeze(2) == label_RB.unsqueeze(1))
    others_RB1 = alike_RBB.masked_fill(same_RBB | ~there_RBB, FAR).logsumexp(2, keepdim=True)
    # -log(phi_p / (phi_p + sum of phi_q)) = log(1 + exp(log sum of phi_q - log phi_p))
    each_RBB = F.softplus(others_RB1 - alike_RBB) * same_RBB
    loss_RB = each_RBB.sum(2) / same_RBB.sum(2).clamp_min(1)
    return client_mean(loss_RB[first, place], owner, len(graph.ids))


def structure_gap(learnt_NC: Tensor, taught_NC: Tensor, graph: GraphBatch, sharpness: float) -> Tensor:
    """FGSD, [K]; zero for a client without edges."""
    source, target = graph.edge_index
    learnt_E, taught_E = (_neighbour_shares(z, source, target, sharpness) for z in (learnt_NC, taught_NC))
    gap_E = taught_E * (taught_E.clamp_min(1e-12).log() - learnt_E.clamp_min(1e-12).log())
    gap_N = gap_E.new_zeros(graph.num_nodes).index_add(0, target, gap_E)
    hears = torch.nonzero(torch.bincount(target, minlength=graph.num_nodes)).squeeze(1)
    return client_mean(gap_N[hears], graph.segments.client[hears], len(graph.ids))


def _neighbour_shares(z_NC: Tensor, source: Tensor, target: Tensor, sharpness: float) -> Tensor:
    """S of every edge: how much of a node's likeness to its neighbours is to this one, [E]."""
    unit = F.normalize(z_NC, dim=1)
    score_E = (unit[source] * unit[target]).sum(1) / sharpness
    return segment_softmax(score_E.unsqueeze(1), target, z_NC.shape[0]).squeeze(1)
