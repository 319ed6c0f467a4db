"""FGGP: Federated graph learning under domain shift with generalizable prototypes. Wan, Huang and Ye, AAAI 2024.

    for t = 1..T
      1  server sends w
      2  client k: candidates are its links and, of every node, links to the `near` nodes most alike by w's embeddings z;
         E local epochs from w, each step with a view B of its graph in which candidate i, j is there with the chance
             (1 - renewed) [i, j is a link] + renewed sigmoid(<z_i, z_j> / sqrt(H)),
         on  L(w_k, own graph) + view_weight ( L(w_k, B) + L_align + L_links ),   L the cross-entropy,
             L_align = mean over classes c of -log( e(p_c, q_c) / (e(p_c, q_c) + sum over others b of e(p_c, q_b)) )
             L_links = binary cross-entropy of <z_i, z_j> / sqrt(H): candidates against as many pairs drawn at random
         where p_c and q_c are class means of embeddings on the client's graph and on B, e(p, q) = exp(cos(p, q) / 0.5)
      3  client k sends w_k and p_kc, the mean embedding of its nodes of class c, weighed by how sure they are: a training
           node has its label and weighs 1, another one the class that w_k thinks it has, and weighs the chance of that
      4  server: w <- sum_k (n_k / n) w_k;  g_c1, g_c2, ... <- means of the clusters that FINCH finds among the p_kc of class
           c; clients are told all g
    a node's class c is by  log sum_j exp(cos(z, g_cj) / temperature)   where prototypes predict, else by the network

FINCH (Sarfraz et al., CVPR 2019) links everybody with its first neighbour, by cosine, and takes connected parts; then the
same among the means of these, as long as more than one is left. So domains keep prototypes of their own, and nobody says how
many domains there are.

We had the paper's abstract and a public summary of it, and read two public codes (the authors' and OpenFGL's) to learn what
it does. They sample a relaxed matrix of all pairs of nodes; here only candidates are drawn, each as a whole, so that no
number of pairs is kept, and L_links is what the augmentation learns by. They predict by the nearest of a queue of
prototypes, here it is by all of the last round. Embeddings are the output of the last layer before head and activation.

`view_weight` = 0 with `predict_by` = classifier is FedAvg, and prototypes do not travel then. In the first round there are
none, and the network predicts. A client without edges has candidates, its view is of these alone. The server learns each
client's mean embedding of classes of which it has, or thinks to have, at least `smallest` nodes: secure sums are refused but
with predict_by=classifier. DP-SGD is refused, as nodes are compared with each other. One class a node; no link prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, client_mean
from suture.core.message import Kind, Message, Model, Nothing, Rows
from suture.core.streams import Streams
from suture.core.tree import Tree, split, tile
from suture.graph.batch import GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Shared, Task, check_links, step_if
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server
from suture.nn.topk import neighbours
from suture.settings import Count, NonNegative, Positive, Search, Share
from suture.training.batches import Batch

PROTOTYPES, KNOWN = "prototypes", "known"
"""In models and messages: g, [K, C, J, H], and which of these there are, [K, C, J]; J is `most`."""
ALIGN = 0.5
"""The temperature of L_align, as in the authors' code."""


@dataclass(frozen=True)
class OwnPrototypes(Message):
    """Client to server: p_k [K, C, H], and of which classes it tells, bool [K, C]."""

    means: Annotated[Tensor, Kind.PROTOTYPES]
    told: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class CommonPrototypes(Message):
    """Server to client: g, and which of these there are."""

    common: Annotated[Tree, {PROTOTYPES: Kind.PROTOTYPES, KNOWN: Kind.COUNTS}]


@dataclass(frozen=True)
class Prototyped(Server):
    """What the server keeps: also g, [1, ...]."""

    common: Tree


@dataclass(frozen=True)
class Guessed(Kept):
    """What a client keeps: also the g it was last told, and its candidates, by the places of their ends, rows [M, 2]."""

    common: Tree
    candidates: Rows


@dataclass(frozen=True)
class Fggp(ModelAveraging[Prototyped, Guessed]):
    """FedAvg with a second view of each graph, and prototypes of each class and domain to predict by."""

    name: ClassVar[str] = "fggp"
    summary: ClassVar[str] = "FedAvg with a second view of each graph, and clustered prototypes of classes to predict by"
    paper: ClassVar[str] = "Wan et al., AAAI 2024"
    one_model: ClassVar[bool] = True
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")

    view_weight: Annotated[NonNegative, Search(0.1, 3.0)] = 1.0
    """Weight of all that the second view brings."""
    near: Annotated[Count, Search(choices=(3, 5, 10))] = 5
    """With how many of the most alike nodes every node may be linked in it."""
    renewed: Annotated[Share, Search(0.0, 1.0, log=False)] = 0.5
    """How much of a link's chance is how alike its ends are."""
    predict_by: Literal["prototype", "classifier"] = "prototype"
    """prototype: the likeness to prototypes of each class; classifier: the network."""
    temperature: Annotated[Positive, Search(0.03, 1.0)] = 0.1
    """What cosines with prototypes are divided by."""
    most: Count = 8
    """Prototypes of a class that are kept: of more clusters, FINCH's next coarser partition."""
    smallest: Count = 2
    """Fewest nodes of a class whose prototype is told: a mean of one is that node's embedding."""

    def beyond_dp_sgd(self) -> str:
        """Losses and prototypes are of several nodes."""
        return "compares nodes with each other and tells means of them, which DP-SGD does not cover"

    def beyond_links(self) -> str:
        """It is about classes."""
        return "is about prototypes of classes"

    def beyond_sums(self) -> str:
        """The server clusters prototypes."""
        if self.predict_by == "classifier":
            return ""
        return "clusters its clients' prototypes, each by itself; fggp.predict_by=classifier tells none"

    # What there is

    def width(self, task: Task) -> int:
        """H."""
        return task.classes if task.module else self.backbone(task).widths()[-1]

    def none_yet(self, task: Task) -> Tree:
        """No prototypes, [1, ...]."""
        shape = (1, task.classes, self.most)
        return {PROTOTYPES: torch.zeros(*shape, self.width(task)), KNOWN: torch.zeros(shape)}

    def init_server(self, task: Task) -> Prototyped:
        """The initial model."""
        if task.link:
            check_links(self)
        return Prototyped(SERVER, self.initial_shared(task), common=self.none_yet(task))

    def init_clients(self, clients: Clients[Nothing]) -> Guessed:
        """The initial model."""
        graph = clients.graph
        nobody = Rows(torch.zeros(0, 2, dtype=torch.int64, device=graph.device), torch.zeros_like(graph.segments.ptr))
        common = tile(self.none_yet(clients.task), len(clients.ids), graph.device)
        return Guessed(**vars(self.fresh(clients)), common=common, candidates=nobody)

    # Lines 1 and 2

    def informed(self, clients: Clients[Guessed], down: Model) -> Guessed:
        """Line 2: candidates are looked for."""
        state = super().informed(clients, down)
        if self.view_weight == 0:
            return state
        with torch.no_grad():
            z_NH = self.backbone(clients.task).embed(self.received(clients, down), clients.graph)
        return replace(state, candidates=candidates(clients.graph, z_NH, self.near))

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Guessed]) -> dict[str, Tensor]:
        """Line 2."""
        terms = super().loss_terms(params, batch, received, clients)
        if self.view_weight == 0:
            return terms
        graph, backbone = batch.graph, self.backbone(clients.task)
        with torch.no_grad():
            common_NH = backbone.embed(received, graph)
        ends_2M = flat(clients.state.candidates, graph.segments)
        view = self.drawn(graph, common_NH, ends_2M, batch.rng.fork("view"))
        own_NH = backbone.embed(params, graph, batch.rng)
        other_NH = backbone.embed(params, view, batch.rng.fork("view"))
        own_NC, other_NC = (backbone.classify(params, z, graph.segments) for z in (own_NH, other_NH))
        label, sure = guessed(graph, own_NC.detach())
        aligned = alignment(*(class_means(graph, z, label, sure, clients.task.classes) for z in (own_NH, other_NH)))
        weight = self.view_weight
        return terms | {
            "view": weight * batch.loss_of(other_NC[batch.view.nodes]),
            "align": weight * aligned,
            "links": weight * links_loss(graph, own_NH, ends_2M, batch.rng.fork("pairs")),
        }

    def drawn(self, graph: GraphBatch, z_NH: Tensor, ends_2M: Tensor, rng: Streams) -> GraphBatch:
        """B."""
        one, other = ends_2M
        owner, place = graph.segments.client[one], graph.segments.place
        linked = is_link(graph, ends_2M)
        chance = (1 - self.renewed) * linked + self.renewed * torch.sigmoid(likeness(z_NH, ends_2M))
        there = rng.of_pairs(owner, place[one], place[other]) < chance
        both = torch.cat([ends_2M[:, there], ends_2M[:, there].flip(0)], 1)
        return replace(graph, edge_index=both, edge_weight=None)

    # Lines 3 and 4

    def round(self, server: Prototyped, cohort: Cohort) -> Prototyped:
        """Lines 1 to 4 on the server: also prototypes."""
        sampled = cohort.sample(self.training.participation)
        handed = self.hand_out(server, sampled.ids)
        server = self.combine(server, handed, sampled.ask(self.local_update, handed), cohort)
        if self.predict_by == "classifier":
            return server
        server = self.clustered(server, sampled.ask(self.tell_prototypes, Nothing(sampled.ids)))
        cohort.report(prototypes=float(server.common[KNOWN].sum()))
        sampled.ask(self.take_prototypes, CommonPrototypes(sampled.ids, tile(server.common, len(sampled.ids))))
        return server

    @step_if(lambda self: self.predict_by == "prototype")
    def tell_prototypes(self, clients: Clients[Guessed], message: Nothing) -> tuple[Guessed, OwnPrototypes]:
        """Line 3."""
        graph, params, backbone = clients.graph, clients.state.params, self.backbone(clients.task)
        with torch.no_grad():
            z_NH = backbone.embed(params, graph)
            label, sure = guessed(graph, backbone.classify(params, z_NH, graph.segments))
            means, counts = class_means(graph, z_NH, label, sure, clients.task.classes)
        told = counts >= self.smallest
        return clients.state, OwnPrototypes(clients.ids, means * told.unsqueeze(2), told)

    def clustered(self, server: Prototyped, up: OwnPrototypes) -> Prototyped:
        """Line 4; a class that nobody tells of has no prototype."""
        up = up.select(sorted(up.ids))
        common = {name: torch.zeros_like(value, device=up.means.device) for name, value in server.common.items()}
        for c, told in enumerate(up.told.unbind(1)):
            if bool(told.any()):
                means = finch(up.means[told, c], self.most)
                common[PROTOTYPES][0, c, : len(means)] = means
                common[KNOWN][0, c, : len(means)] = 1.0
        return replace(server, common=common)

    @step_if(lambda self: self.predict_by == "prototype")
    def take_prototypes(self, clients: Clients[Guessed], down: CommonPrototypes) -> tuple[Guessed, Nothing]:
        """What clients predict by."""
        return replace(clients.state, common=down.common), Nothing(clients.ids)

    # What is predicted

    def deploy(self, server: Prototyped, ids: Sequence[str]) -> Message:
        """The network, and the prototypes if they are what is predicted by."""
        model = replace(self.hand_out(server, ids), moments={})
        if self.predict_by == "classifier":
            return model
        return replace(model, params=model.params | tile(server.common, len(ids)))

    def assemble(self, clients: Clients[Guessed], deployed: Message) -> Model:
        """The same, from what was deployed or from what the client keeps."""
        model = super().assemble(clients, deployed)
        known = {} if self.predict_by == "classifier" else clients.state.common
        return Model(clients.ids, known | model.params)

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C]; of a class without a prototype, below all that have one."""
        common, network = split(model.params, (PROTOTYPES, KNOWN))
        if not common:
            return self.backbone(task).logits(network, graph)
        z_NH, owner = self.backbone(task).embed(network, graph), graph.segments.client
        unit_NH, unit_KCJH = F.normalize(z_NH, dim=1), F.normalize(common[PROTOTYPES], dim=3)
        near_CJ = [[(unit_NH * g_KH[owner]).sum(1) for g_KH in of_class.unbind(1)] for of_class in unit_KCJH.unbind(1)]
        near_NCJ = torch.stack([torch.stack(each, 1) for each in near_CJ], 1) / self.temperature
        scores = near_NCJ.masked_fill(common[KNOWN][owner] == 0, -2 / self.temperature - 10).logsumexp(2)
        told_K1 = common[KNOWN].flatten(1).any(1, keepdim=True)
        return torch.where(told_K1[owner], scores, self.backbone(task).classify(network, z_NH, graph.segments))


def candidates(graph: GraphBatch, z_NH: Tensor, near: int) -> Rows:
    """Pairs of nodes that are linked or alike, each once, the lower place first, by client and places."""
    links = neighbours(z_NH, near, graph.segments)
    one, other = torch.cat([graph.edge_index, torch.stack([links.node, links.neighbour])], 1)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    key = torch.unique((low * graph.num_nodes + high)[low != high])
    low, high = key // graph.num_nodes, key % graph.num_nodes
    owner, place = graph.segments.client[low], graph.segments.place
    counts = torch.bincount(owner, minlength=len(graph.ids))
    return Rows(torch.stack([place[low], place[high]], 1), torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def flat(pairs: Rows, segments: Segments) -> Tensor:
    """Pairs of places as flat positions, [2, M]."""
    ends_M2: Tensor = pairs.values + segments.ptr[Segments(pairs.ptr).client].unsqueeze(1)
    return ends_M2.T


def is_link(graph: GraphBatch, ends_2M: Tensor) -> Tensor:
    """Which of these pairs are linked, in any direction, float [M]."""
    source, target = graph.edge_index
    keys = torch.minimum(source, target) * graph.num_nodes + torch.maximum(source, target)
    return torch.isin(ends_2M[0] * graph.num_nodes + ends_2M[1], keys).float()


def likeness(z_NH: Tensor, ends_2M: Tensor) -> Tensor:
    """<z_i, z_j> / sqrt(H), [M]."""
    products: Tensor = (z_NH[ends_2M[0]] * z_NH[ends_2M[1]]).sum(1)
    return products / math.sqrt(z_NH.shape[1])


def links_loss(graph: GraphBatch, z_NH: Tensor, ends_2M: Tensor, rng: Streams) -> Tensor:
    """L_links, [K]; a pair drawn at random may be a candidate, or a node and itself."""
    owner = graph.segments.client[ends_2M[0]]
    ptr = torch.cat([owner.new_zeros(1), torch.bincount(owner, minlength=len(graph.ids)).cumsum(0)])
    drawn_M2 = (rng.uniform(ptr, 2) * graph.sizes[owner].unsqueeze(1)).long() + graph.segments.ptr[owner].unsqueeze(1)
    there, absent = F.softplus(-likeness(z_NH, ends_2M)), F.softplus(likeness(z_NH, drawn_M2.T))
    return client_mean((there + absent) / 2, owner, len(graph.ids))


def guessed(graph: GraphBatch, out_NC: Tensor) -> tuple[Tensor, Tensor]:
    """(class, how sure it is) of every node: what is known of training nodes, and what is predicted of others."""
    sure, label = out_NC.softmax(1).max(1)
    train = graph.role == 1
    return torch.where(train, graph.y, label), torch.where(train, 1.0, sure)


def class_means(graph: GraphBatch, z_NH: Tensor, label: Tensor, sure: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(mean embedding of each class, weighed by how sure it is [K, C, H]; how many nodes these are [K, C])."""
    clients, cell = len(graph.ids), graph.segments.client * classes + label
    sums = z_NH.new_zeros(clients * classes, z_NH.shape[1]).index_add(0, cell, z_NH * sure.unsqueeze(1))
    weight = sure.new_zeros(clients * classes).index_add(0, cell, sure)
    means = sums / weight.clamp_min(1e-12).unsqueeze(1)
    return means.view(clients, classes, -1), torch.bincount(cell, minlength=clients * classes).view(clients, classes)


def alignment(own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """L_align, [K], over the classes that a client has."""
    there_KC = own[1] > 0
    cosine_KCC = F.normalize(own[0], dim=2) @ F.normalize(other[0], dim=2).transpose(1, 2) / ALIGN
    cosine_KCC = cosine_KCC.masked_fill(~there_KC.unsqueeze(1), -1e9)
    each_KC = cosine_KCC.logsumexp(2) - cosine_KCC.diagonal(dim1=1, dim2=2)
    return (each_KC * there_KC).sum(1) / there_KC.sum(1).clamp_min(1)


def finch(points_PH: Tensor, most: int) -> Tensor:
    """Means of the clusters of the last partition that has more than one, or of the first, [clusters, H].

    If these are more than `most`, the one cluster of all.
    """
    group = _first_neighbours(points_PH)
    while int(group.max()) > 0:
        coarser = _first_neighbours(_merged(points_PH, group))
        if int(coarser.max()) == 0 and int(group.max()) < most:
            break
        group = coarser[group]
    return _merged(points_PH, group)


def _merged(points_PH: Tensor, group: Tensor) -> Tensor:
    counts = torch.bincount(group)
    return points_PH.new_zeros(len(counts), points_PH.shape[1]).index_add(0, group, points_PH) / counts.unsqueeze(1)


def _first_neighbours(points_PH: Tensor) -> Tensor:
    """Connected parts when everybody is linked with its first neighbour by cosine, numbered from 0, [P]."""
    count = len(points_PH)
    group = torch.arange(count, device=points_PH.device)
    if count < 2:
        return group
    unit = F.normalize(points_PH, dim=1)
    first = (unit @ unit.T).fill_diagonal_(-2.0).argmax(1)
    for _ in range(count):
        least = torch.minimum(group, group[first])
        least = least.scatter_reduce(0, first, least, "amin")
        if torch.equal(least, group):
            break
        group = least
    numbered: Tensor = torch.unique(group, return_inverse=True)[1]
    return numbered
