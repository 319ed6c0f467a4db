"""GCFL: Federated graph classification over non-IID graphs. Xie et al., NeurIPS 2021.

Here for node tasks on subgraphs, as FED-PUB (Baek et al., ICML 2023, appendix B.2) compares with it: all weights are shared.

    one cluster C holds everybody
    for t = 1..T
      1  server sends each sampled client k the model w_C of its cluster
      2  client k: w_k <- E local epochs from w_C; sends w_k, and the server computes the update dw_k = w_k - w_C
      3  for each cluster with more than two members, if t > warm_up and
             ||sum_k (n_k / n_C) dw_k|| < eps1 * max_k ||dw_k||     as a whole the cluster stands still,
             max_k ||dw_k|| > eps2 * ||w_C||                        but some member still moves:
           cut it in two along the minimum cut of the complete graph with weights 1 + cos(dw_i, dw_j)
      4  for each cluster: w_C <- sum_{k in C} (n_k / n_C) w_k

The paper compares both norms with constants, which its authors' scripts choose anew for every dataset (0.025 to 0.08 and
0.045 to 0.4), because the length of an update depends on optimiser, learning rate and model. Line 3 is free of that scale:
the first norm is measured against the second (the authors' pairs have ratios of 0.2 to 0.56) and the second against the
model. Equally long updates of n unrelated clients average to 1 / sqrt(n) of their length, so the smaller a cluster, the
more its members must disagree to be cut again. The server remembers the cosine of two clients from the last round in which
both took part; until then it is 0. The authors' code waits 20 rounds before the first cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from suture.core.message import Model, Nothing
from suture.core.tree import Tree, map_tree, mix, tile
from suture.method import Clients, Cohort, Shared, Task
from suture.methods.averaging import Kept, ModelAveraging, Server, Up
from suture.methods.personal import NEWCOMER, enrolled, looked_up, positions, written_over
from suture.settings import NonNegative, Search, Whole


@dataclass(frozen=True)
class Clusters(Server):
    """Personal rows (`suture.methods.personal`); before the first round there is one, for everybody to come.

    Shapes: `params` [K, ...] of the client's cluster; `cluster` int64 [K], numbers from 0; `memory` [K, ...], what is
    known about the clients' likeness.
    """

    cluster: Tensor
    memory: Tree
    rounds: int

    def models(self, ids: Sequence[str]) -> Model:
        """Each client's cluster's model. One for all is one row in memory, so that clients can work on it together."""
        if not bool(self.cluster.any()):
            first, moments = (map_tree(lambda value: value[:1], tree) for tree in (self.params, self.moments))
            return Model(tuple(ids), tile(first, len(ids)), moments=tile(moments, len(ids)))
        return looked_up(Model(self.ids, self.params, moments=self.moments), ids)


@dataclass(frozen=True)
class Gcfl(ModelAveraging[Clusters, Kept]):
    """FedAvg inside clusters that are cut in two wherever clients pull apart."""

    name: ClassVar[str] = "gcfl"
    summary: ClassVar[str] = "FedAvg in clusters, cut in two by the similarity of their clients' updates"
    paper: ClassVar[str] = "Xie et al., NeurIPS 2021"
    edges_by_layers: ClassVar[bool] = True
    one_model: ClassVar[bool] = False
    shares: ClassVar[tuple[Shared, ...]] = ("moments",)

    eps1: Annotated[NonNegative, Search(0.05, 1.0)] = 0.5
    """A cluster stands still if its mean update is shorter than this share of its longest; 0 never cuts."""
    eps2: Annotated[NonNegative, Search(0.005, 0.5)] = 0.01
    """A client moves if its update is longer than this share of its cluster's model."""
    warm_up: Annotated[Whole, Search(5, 50)] = 20
    """Rounds before the first cut."""

    def init_server(self, task: Task) -> Clusters:
        """The initial model; who will take part is not known yet."""
        return Clusters((NEWCOMER,), self.initial_shared(task), torch.zeros(1, dtype=torch.int64), self.blank(1), 0)

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        return self.fresh(clients)

    def hand_out(self, server: Clusters, ids: Sequence[str]) -> Model:
        """Line 1: everybody's cluster's model."""
        return server.models(ids)

    def combine(self, server: Clusters, handed: Model, up: Up, cohort: Cohort) -> Clusters:
        """Lines 3 and 4 of the box."""
        if server.rounds == 0:
            server = self.enrol(server, cohort.ids)
        heard = torch.tensor(positions(server, up.ids))
        gram = inner_products({name: value - handed.params[name] for name, value in up.params.items()})
        server = replace(server, memory=self.remember(server.memory, heard, gram), rounds=server.rounds + 1)
        if server.rounds > self.warm_up:
            settled = self.settled(server.cluster[heard], gram, up.weight.cpu(), lengths(handed.params))
            server = self.cut(server, settled)
        cohort.report(loss=float(up.loss.mean()), clusters=int(server.cluster.max()) + 1)
        params = self.averaged(server, heard, up, up.params, server.params)
        return replace(server, params=params, moments=self.averaged(server, heard, up, up.moments, server.moments))

    def enrol(self, server: Clusters, ids: Sequence[str]) -> Clusters:
        """One cluster of everybody."""
        return replace(enrolled(replace(server, memory={}), ids), memory=self.blank(len(ids)))

    def settled(self, cluster_K: Tensor, gram_KK: Tensor, weight_K: Tensor, length_K: Tensor) -> list[int]:
        """The two conditions of line 3, from the updates of this round's K clients: the clusters they hold for."""
        found = []
        for number in sorted(set(cluster_K.tolist())):
            share = torch.where(cluster_K == number, weight_K, 0).to(gram_KK.dtype)
            share = share / share.sum()
            mean = (share @ gram_KK @ share).clamp_min(0).sqrt()
            longest = gram_KK.diagonal()[cluster_K == number].max().sqrt()
            model = length_K[cluster_K == number].max()
            if bool(mean < self.eps1 * longest) and bool(longest > self.eps2 * model):
                found.append(number)
        return found

    def cut(self, server: Clusters, settled: Sequence[int]) -> Clusters:
        """The rest of line 3: of a cluster cut in two, one part keeps the number, the other gets a new one."""
        cluster, memory = server.cluster.clone(), server.memory
        for number in settled:
            members = torch.nonzero(cluster == number).squeeze(1)
            likeness = self.likeness(memory, members) if members.numel() > 2 else None
            if likeness is not None:
                cluster[members[minimum_cut(likeness)]] = cluster.max() + 1
                memory = self.forget(memory, members)
        return replace(server, cluster=cluster, memory=memory)

    def averaged(self, server: Clusters, heard: Tensor, up: Up, new: Tree, old: Tree) -> Tree:
        """Line 4: the aggregation matrix has a block for each cluster; one that nobody was heard of stays as it is."""
        present, row = torch.unique(server.cluster[heard], return_inverse=True)
        block_RK = torch.nn.functional.one_hot(row, present.numel()).T.to(up.weight.device) * up.weight.double()
        means = mix(new, block_RK / block_RK.sum(1, keepdim=True))
        if not bool(server.cluster.any()):
            return tile(means, len(server.ids))
        fresh = torch.nonzero(torch.isin(server.cluster, present)).squeeze(1)
        source = torch.searchsorted(present, server.cluster[fresh])
        return written_over(old, map_tree(lambda value: value[source], means), fresh, len(server.ids))

    def blank(self, clients: int) -> Tree:
        """The memory before anything is known: `cosine` [K, K] of the clients' updates."""
        return {"cosine": torch.zeros(clients, clients)}

    def remember(self, memory: Tree, heard: Tensor, gram_KK: Tensor) -> Tree:
        """Write down the cosines of this round's updates."""
        length = gram_KK.diagonal().sqrt().clamp_min(1e-12)
        cosine = memory["cosine"].clone()
        cosine[heard.unsqueeze(1), heard] = gram_KK / (length.unsqueeze(1) * length)
        return {"cosine": cosine}

    def likeness(self, memory: Tree, members: Tensor) -> Tensor | None:
        """How alike the members are, not negative, [m, m]; None if not enough is known."""
        return (1 + memory["cosine"][members.unsqueeze(1), members]).clamp_min(0)

    def forget(self, memory: Tree, members: Tensor) -> Tree:
        """After a cut: cosines stay valid."""
        return memory


def inner_products(tree: Tree) -> Tensor:
    """<row_i, row_j> over all tensors of a tree, [K, K]; kept on the CPU, where the server decides."""
    flat = [value.flatten(1) for value in tree.values()]
    return torch.stack([value @ value.T for value in flat]).sum(0).cpu()


def lengths(tree: Tree) -> Tensor:
    """||row_k|| over all tensors of a tree, [K]."""
    return torch.stack([value.flatten(1).square().sum(1) for value in tree.values()]).sum(0).sqrt().cpu()


def minimum_cut(weight_KK: Tensor) -> Tensor:
    """One side of the cheapest cut of a complete graph with K >= 2 vertices (Stoer and Wagner, exact), without vertex 0."""
    import igraph  # a second to import, and most runs have no use for it

    clients = weight_KK.shape[0]
    first, second = torch.triu_indices(clients, clients, offset=1)
    graph = igraph.Graph(n=clients, edges=zip(first.tolist(), second.tolist(), strict=True))
    side = torch.tensor(graph.mincut(capacity=weight_KK[first, second].tolist()).membership)
    return torch.nonzero(side != side[0]).squeeze(1)
