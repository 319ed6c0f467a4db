"""FedGNN: Federated graph neural network for privacy-preserving recommendation. Wu et al., 2021.

For subgraphs as FED-PUB (Baek et al., ICML 2023, appendix B.2) describes it: local subgraphs are expanded with relevant
nodes of other clients, found by a similarity above a threshold, and the expanded subgraphs are trained by FedAvg.

    for t = 1..T
      1  server samples a share of the clients and sends them w
      2  every `interval` rounds
           client k sends h_v, the input of its last message-passing layer under w, of each node v
           server, as the third party that matches: M_v <- the at most `neighbours` nodes u of other clients that are most
             similar to v, those with cos(h_u, h_v) > threshold; returns |M_v| and z_v = mean of h_u over M_v
      3  client k: w_k <- E local epochs from w, with the frozen foreign neighbours in the input of the last layer,
           h_v <- (h_v + |M_v| z_v) / (1 + |M_v|), also when it predicts
      4  w <- sum_k (n_k / n) w_k

As in Wu et al. it is embeddings that are exchanged and a third party that knows whose they are. They match users by
encrypted ids of common items; for disjoint subgraphs FED-PUB matches by similarity, and so do we for overlapping ones,
where copies of a node resemble each other most. Their pseudo items are not part of FED-PUB's description. Their noise is
`sigma` (FedDEP's Table 2 has 2.0): local training is then DP-SGD. The embeddings themselves get no noise.
Neighbours are never sampled here, whatever fan-out the protocol prescribes, and an exported model knows only its own graph.

Privacy: this method reveals more than FedAvg. The third party sees an embedding of every node, from which it may infer
labels and, wherever the layers below can be inverted (such as one layer that is no narrower than the features), features;
other clients see means of up to `neighbours` embeddings. No raw features, edges, labels or node ids are sent.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.method import Clients, Cohort, Mends, Shared, Task, step
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Up
from suture.nn.backbones import DOOR as BACKBONES
from suture.nn.backbones import Backbone
from suture.nn.topk import APPROXIMATE_FROM, of_others
from suture.settings import Count, NonNegative, Search

# Cosines held at a time while matching: 64 MB, whatever the number of nodes.
COSINES_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class Counted(Server):
    """The global model, and how many rounds there were."""

    rounds: int


@dataclass(frozen=True)
class Embeddings(Message):
    """Client to third party: `rows` [N_k, H], one embedding a node."""

    rows: Annotated[Rows, Kind.EMBEDDINGS]


@dataclass(frozen=True)
class Foreign(Message):
    """Third party to client, for each of its nodes: mean embedding of the matched ones [N_k, H], their number [N_k]."""

    mean: Annotated[Rows, Kind.EMBEDDINGS]
    count: Annotated[Rows, Kind.COUNTS]


@dataclass(frozen=True)
class Expanded(Kept):
    """What a client keeps: also what it last heard about foreign neighbours."""

    mean: Rows
    count: Rows


@dataclass(frozen=True)
class Neighbours(Record):
    """What a client remembers after a run of the foreign neighbours of its nodes: mean embedding [N_k, H], number [N_k]."""

    mean: Rows
    count: Rows


C = TypeVar("C", bound=Counted)
X = TypeVar("X", bound=Expanded)


@dataclass(frozen=True)
class Expanding(ModelAveraging[C, X], Generic[C, X]):
    """Averaging on subgraphs expanded with similar nodes of other clients, whatever else a method keeps."""

    mends: ClassVar[Mends] = "known"
    memory: ClassVar[type[Record]] = Neighbours
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")

    threshold: Annotated[float, Search(0.0, 1.0, log=False)] = 0.5
    """Cosine above which a node of another client becomes a neighbour; above 1 is FedAvg."""
    sigma: NonNegative = 0.0
    """Noise multiplier of DP-SGD in local training; 0 trains without noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.layers < 2:
            raise ConfigError(
                f"{self.name} needs a model with layers >= 2: below a single layer there are only raw features"
            )
        training = replace(self.training, fanouts=())
        object.__setattr__(self, "training", replace(training, dp_sigma=self.sigma) if self.sigma else training)

    def backbone(self, task: Task) -> ExpandingBackbone:
        """The network the settings name, with foreign neighbours in its last layer."""
        if task.module is not None:
            raise ConfigError(f"{self.name} needs one of the built-in models: it has to see the input of the last layer")
        return expanding_backbone(self.model.kind)(self.model, task.features, task.classes)

    def unexpanded(self, clients: Clients[Nothing]) -> Expanded:
        """The initial model, and no foreign neighbours."""
        graph = clients.graph
        means = torch.zeros(graph.num_nodes, self.model.hidden, device=graph.device)
        counts = torch.zeros(graph.num_nodes, device=graph.device)
        ptr = graph.segments.ptr
        return Expanded(**vars(self.fresh(clients)), mean=Rows(means, ptr), count=Rows(counts, ptr))

    def exchange(self, server: C, handed: Model, sampled: Cohort) -> C:
        """Line 2."""
        most = self.wanted(server)
        if most:
            found = self.match(sampled.ask(self.reveal, handed), most)
            sampled.ask(self.expand, found)
            sampled.report(foreign_neighbours=float(found.count.values.mean()))
        return server

    @abstractmethod
    def wanted(self, server: C) -> int:
        """Line 2: most foreign neighbours that a node is given in this round; 0: those it has stay."""

    def combine(self, server: C, handed: Model, up: Up, cohort: Cohort) -> C:
        """Line 4."""
        cohort.report(loss=float(up.loss.mean()))
        return replace(self.advanced(server, up), rounds=server.rounds + 1)

    @step
    def reveal(self, clients: Clients[X], down: Model) -> tuple[X, Embeddings]:
        """Line 2, first half."""
        return clients.state, Embeddings(clients.ids, Rows(self.hidden(clients, down), clients.graph.segments.ptr))

    def hidden(self, clients: Clients[X], down: Model) -> Tensor:
        """h_v of every node, [N, H]."""
        with torch.no_grad():
            return self.backbone(clients.task).hidden(down.params, clients.graph)

    def match(self, revealed: Embeddings, most: int) -> Foreign:
        """Line 2, second half: all nodes against all others, a block of nodes at a time; very many by an index."""
        # In an order of its own, so that equally similar nodes are chosen alike whatever the order of the clients.
        rows = revealed.select(sorted(revealed.ids)).rows
        hidden, lengths = rows.values, rows.ptr.diff()
        owner = torch.repeat_interleave(torch.arange(lengths.numel(), device=hidden.device), lengths)
        unit = F.normalize(hidden, dim=1)
        means, counts = torch.zeros_like(hidden), hidden.new_zeros(hidden.shape[0])
        nodes = torch.arange(hidden.shape[0], device=hidden.device)
        indexed = of_others(unit, owner, most) if nodes.numel() >= APPROXIMATE_FROM else None
        for block in torch.split(nodes, max(1, COSINES_AT_A_TIME // max(1, nodes.numel()))):
            if indexed is None:
                cosine = (unit[block] @ unit.T).masked_fill_(owner[block].unsqueeze(1) == owner, -2.0)
                best, place = cosine.topk(min(most, nodes.numel()), dim=1)
            else:
                best, place = (part[block] for part in indexed)
            near = (best > self.threshold).to(hidden.dtype)
            counts[block] = near.sum(1)
            total = torch.einsum("bm,bmh->bh", near, hidden[place])
            means[block] = total / counts[block].clamp_min(1).unsqueeze(1)
        found = Foreign(tuple(sorted(revealed.ids)), Rows(means, rows.ptr), Rows(counts, rows.ptr))
        return found.select(revealed.ids)

    @step
    def expand(self, clients: Clients[X], found: Foreign) -> tuple[X, Nothing]:
        """Remember the foreign neighbours for line 3."""
        return replace(clients.state, mean=found.mean, count=found.count), Nothing(clients.ids)

    def seen(self, clients: Clients[X], training: bool) -> GraphBatch:
        """Line 3: the expanded subgraphs, also when they are tested."""
        return _expanded(clients.graph, clients.state)

    def remembered(self, clients: Clients[X]) -> Neighbours:
        """What was last heard of each node."""
        return Neighbours(clients.ids, clients.state.mean, clients.state.count)

    def recalled(self, clients: Clients[Neighbours]) -> GraphBatch:
        """As in tests: nobody is asked for neighbours of other nodes."""
        return _expanded(clients.graph, clients.state)


@dataclass(frozen=True)
class ExpandingAtIntervals(Expanding[Counted, X], Generic[X]):
    """Every now and then, always with as many foreign neighbours."""

    neighbours: Annotated[Count, Search(1, 20)] = 5
    """Most foreign neighbours a node can have."""
    interval: Count = 1
    """Rounds from one exchange of embeddings to the next."""

    def init_server(self, task: Task) -> Counted:
        """The initial model."""
        return Counted(SERVER, self.initial_shared(task), 0)

    def wanted(self, server: Counted) -> int:
        """The same in every `interval`-th round."""
        return self.neighbours if server.rounds % self.interval == 0 else 0


@dataclass(frozen=True)
class FedGnn(ExpandingAtIntervals[Expanded]):
    """FedAvg on subgraphs expanded with similar nodes of other clients."""

    name: ClassVar[str] = "fedgnn"
    summary: ClassVar[str] = "FedAvg on subgraphs expanded with similar nodes' embeddings from other clients"
    paper: ClassVar[str] = "Wu et al., 2021"

    def init_clients(self, clients: Clients[Nothing]) -> Expanded:
        """The initial model, and no foreign neighbours."""
        return self.unexpanded(clients)


@dataclass(frozen=True)
class ExpandedGraph(GraphBatch):
    """Clients' graphs, and what they know of each node's foreign neighbours: mean embedding [N, H], number [N]."""

    foreign: tuple[Tensor, Tensor] | None = None

    def expanded(self, h_NH: Tensor) -> Tensor:
        """(h_v + |M_v| z_v) / (1 + |M_v|)."""
        if self.foreign is None:
            return h_NH
        mean_NH, count_N1 = self.foreign[0], self.foreign[1].unsqueeze(1)
        return (h_NH + count_N1 * mean_NH) / (1 + count_N1)


def _expanded(graph: GraphBatch, state: Expanded | Neighbours) -> ExpandedGraph:
    """The clients' graphs with the foreign neighbours they know of."""
    own = {item.name: getattr(graph, item.name) for item in fields(graph)}
    expanded = ExpandedGraph(**own, foreign=(state.mean.values, state.count.values))
    # Operators and views derived from the own edges stay as they are; deriving them anew would cost more than a step.
    vars(expanded).update({name: value for name, value in vars(graph).items() if name not in own})
    return expanded


class ExpandingBackbone(Backbone):
    """A backbone whose last layer also hears a node's foreign neighbours."""

    def hidden(self, params: Tree, graph: GraphBatch) -> Tensor:
        """The input of the last layer without foreign neighbours and without dropout, [N, H]."""
        h = super().last_input(params, graph)
        if isinstance(h, Features):
            raise TypeError("a model with one layer has no hidden embeddings")
        return h

    def last_input(self, params: Tree, graph: GraphBatch, rng: Streams | None = None) -> Tensor | Features:
        """The activations, with foreign neighbours mixed in."""
        h = super().last_input(params, graph, rng)
        return graph.expanded(h) if isinstance(graph, ExpandedGraph) and isinstance(h, Tensor) else h


@cache
def expanding_backbone(kind: str) -> type[ExpandingBackbone]:
    """The backbone of this name with foreign neighbours in its last layer."""
    plain = BACKBONES.recall(kind)
    return type(f"Expanding{plain.__name__}", (ExpandingBackbone, plain), {})
