"""FedGCN: Convergence-communication tradeoffs in federated training of GCNs. Yao, Jin, Ravi, Joe-Wong, NeurIPS 2023.

Owners who know the far ends of their lost links (`suture.graph.boundary`) tell each other sums of features, once:

    d_v is one more than the number of v's neighbours, own and foreign;  N(v) are they and v itself
      1  owner j, for every foreign node v it has links to: sends the sum of x_u / sqrt(d_u) over its nodes u in N(v)
      2  server adds up what came for v; v's owner i has now  a_v = sum over N(v) of x_u / sqrt(d_u d_v), a row of A X
      3  (hops = 2) owner i sends a_v and d_v of every v that others have links to; these become nodes at those owners
    for t = 1..T  FedAvg of a GCN whose first layer is a_v W in the place of what own neighbours alone would give, and whose
                  other layers hear the nodes of line 3 as well

With two hops and two layers a network says of every node what it would say on the uncut graph. With one, only its first
layer does. What the paper hides by homomorphic encryption is here

    fewest   an owner sends no sum of fewer of its rows than this: one alone is a row (21 % of Cora's nodes have one foreign
             neighbour). Rows of line 3 with fewer neighbours are not sent either
    owners   v's owner gets no sum to which fewer owners contributed than this
    together all owners answer line 1 for all nodes that anybody has links to, with zeros where they have none: then the sum
             over owners is all that is needed, and secure aggregation hides who contributed what
    clip, sigma   rows are shortened to `clip`, and every number sent has noise N(0, (sigma clip)^2). In line 3 the noise is
             on the owner's own part of a_v, shortened to `clip` too; the others' part had its noise in line 1

What noise is worth is accounted for at the level of links and of nodes (`suture.privacy.mechanisms.NoisyLinks`).

It trains a GCN whatever network the protocol prescribes. Links count alike. Owners who have links to a node that nobody
answers for hear nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, segments_of
from suture.core.message import Nothing, Record, Rows
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.method import Clients, Cohort, Mends, Phase, Task, step, step_if
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server
from suture.methods.link_sums import Sums, Together, added_up, joined, noisy_sums
from suture.methods.links import Asked, Wanted, asked_of_all, known_to, own_among, places_among, wanted_by, within
from suture.methods.stitching import shortened
from suture.privacy.mechanisms import Mechanism, NoisyLinks
from suture.settings import Count, NonNegative, Search


@dataclass(frozen=True)
class Aggregated(Kept):
    """What a client keeps, once it was exchanged: the foreign part of every node's sum, and of how many, rows [N, F + 1].

    And a and d of the foreign nodes it has links to, rows [W, F + 1]; d is 0 where nobody answered.
    """

    foreign: Rows | None = None
    around: Rows | None = None


@dataclass(frozen=True)
class Known(Record):
    """The same, for predicting when the run is over; `heard` are rows of `around` again, one for every known link.

    Links stay in the order of the graph, whatever their foreign ends were called in the run.
    """

    foreign: Rows | None
    heard: Rows | None


@dataclass(frozen=True)
class FedGcn(ModelAveraging[Server, Aggregated]):
    """FedAvg on features that were summed over known links beforehand."""

    name: ClassVar[str] = "fedgcn"
    summary: ClassVar[str] = "FedAvg of a GCN on features that owners summed over known links before training"
    paper: ClassVar[str] = "Yao et al., NeurIPS 2023"
    sums: ClassVar[tuple[str, ...]] = ("local_update", "post_together")
    of_data: ClassVar[tuple[str, ...]] = ("post_together",)
    mends: ClassVar[Mends] = "known"
    knows_links: ClassVar[bool] = True
    memory: ClassVar[type[Record]] = Known

    hops: Annotated[Literal[1, 2], Search(choices=(1, 2))] = 2
    """1: sums over a node's neighbours; 2: also those of its foreign neighbours."""
    fewest: Count = 2
    """The fewest rows of an owner that it adds up for others; 1 sends single ones."""
    owners: Count = 1
    """The fewest owners that contribute to a sum which a node's owner gets."""
    together: bool = False
    """All owners answer for all addresses, so that --secure hides who contributed what; costs as many rows each."""
    clip: NonNegative = 0.0
    """The longest row that is summed; 0: any."""
    sigma: NonNegative = 0.0
    """Noise on every number that is sent, as a multiple of clip; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma > 0 and self.clip == 0:
            raise ConfigError("fedgcn.sigma is a multiple of fedgcn.clip, which is 0: set fedgcn.clip to the longest row")
        if self.together and self.training.aggregation != "mean":
            raise ConfigError("fedgcn.together needs plain sums; set training.aggregation=mean, or fedgcn.together=false")
        if self.model.layers < 2:
            raise ConfigError(
                "fedgcn puts sums over neighbours in the place of what the first layer of a GCN hears, and trains those "
                "after it: set fedgcn.model.layers to at least 2"
            )
        object.__setattr__(self, "model", replace(self.model, kind="gcn"))
        object.__setattr__(self, "training", replace(self.training, fanouts=()))

    def init_server(self, task: Task) -> Server:
        """The initial model."""
        if task.module is not None:
            raise ConfigError("fedgcn needs its own GCN: sums take the place of what its first layer hears")
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Aggregated:
        """The initial model; nothing is heard yet."""
        return Aggregated(**vars(self.fresh(clients)))

    def beyond_sums(self) -> str:
        """Line 1 tells each owner's own sums."""
        return "" if self.together else "tells every owner's sums of features by themselves unless fedgcn.together=true"

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Noise on sums, besides that of training."""
        steps = ("post_together" if self.together else "post_sums", "post_around")[: self.hops]
        return (*super().mechanisms(), *((NoisyLinks(steps, self.sigma),) if self.sigma > 0 else ()))

    # Lines 1 to 3

    def plan(self) -> tuple[Phase[Server], ...]:
        """The exchange, then the rounds."""
        return (Phase("sums", self.exchange_sums), *super().plan())

    def exchange_sums(self, server: Server, cohort: Cohort) -> Server:
        """Lines 1 to 3 on the server."""
        nobody = Nothing(cohort.ids)
        boxes = cohort.ask(self.own_boxes, nobody)
        if self.together:
            asked = asked_of_all(boxes)
            sums = added_up(boxes, joined(asked, cohort.ask(self.post_together, asked), self.owners))
        else:
            sums = added_up(boxes, cohort.ask(self.post_sums, nobody), owners=self.owners)
        cohort.ask(self.take_sums, sums)
        if self.hops == 2:
            wanted = cohort.ask(self.foreign_ends, nobody)
            offered = cohort.ask(self.post_around, asked_of_all(wanted))
            cohort.ask(self.take_around, added_up(wanted, offered, mean=True))
        return server

    @step
    def own_boxes(self, clients: Clients[Aggregated], message: Nothing) -> tuple[Aggregated, Wanted]:
        """Line 2: own nodes that have links elsewhere."""
        graph = clients.graph
        if graph.edge_weight is not None or bool(graph.directed.any()):
            raise ConfigError(
                "fedgcn sums over links that weigh alike and go both ways: set preprocess.direction=mirror and "
                "preprocess.edge_weights=drop"
            )
        nodes = torch.unique(known_to(graph).node)
        ptr = segments_of(graph.segments.client[nodes], len(clients.ids)).ptr
        return clients.state, Wanted(clients.ids, within(Rows(known_to(graph).address[nodes], ptr)))

    @step_if(lambda self: not self.together)
    def post_sums(self, clients: Clients[Aggregated], message: Nothing) -> tuple[Aggregated, Sums]:
        """Line 1."""
        graph, known, wanted = clients.graph, known_to(clients.graph), wanted_by(clients.graph)
        place = places_among(graph, wanted)
        one = torch.ones_like(known.node, dtype=torch.float32)
        listed = SparseMatrix.from_coo(place, known.node, one, (wanted.values.numel(), graph.num_nodes))
        return clients.state, self.told(clients, listed, self.scaled_rows(graph), wanted, listed.rowptr.diff())

    @step_if(lambda self: self.together)
    def post_together(self, clients: Clients[Aggregated], asked: Asked) -> tuple[Aggregated, Together]:
        """Line 1, for everybody's addresses."""
        state, sums = self.post_sums(clients, Nothing(clients.ids))
        count = len(clients.ids)
        listed = asked.addresses.values.view(count, -1)
        rows = sums.rows.values.new_zeros(count, listed.shape[1], sums.rows.values.shape[1])
        parts = rows.new_zeros(count, listed.shape[1])
        owner = Segments(sums.addresses.ptr).client
        for k in range(count):
            address = sums.addresses.values[owner == k].contiguous()
            at = torch.searchsorted(listed[k].contiguous(), address).clamp_max(max(listed.shape[1] - 1, 0))
            there = listed[k][at] == address if listed.shape[1] else torch.zeros_like(address, dtype=torch.bool)
            rows[k, at[there]], parts[k, at[there]] = sums.rows.values[owner == k][there], 1.0
        return state, Together(clients.ids, rows, parts, rows.new_ones(count))

    @step
    def take_sums(self, clients: Clients[Aggregated], heard: Sums) -> tuple[Aggregated, Nothing]:
        """Line 2: what came for own nodes."""
        graph = clients.graph
        nodes = own_among(graph, Asked(heard.ids, heard.addresses))
        # Boxes are in the order of addresses, nodes in that of the graph.
        order = torch.argsort(known_to(graph).address[nodes], stable=True)
        order = order[torch.argsort(graph.segments.client[nodes][order], stable=True)]
        rows = torch.cat([heard.rows.values, heard.counts.values.unsqueeze(1)], 1)
        foreign = rows.new_zeros(graph.num_nodes, rows.shape[1])
        foreign[nodes[order]] = rows
        return replace(clients.state, foreign=Rows(foreign, graph.segments.ptr)), Nothing(clients.ids)

    @step_if(lambda self: self.hops == 2)
    def foreign_ends(self, clients: Clients[Aggregated], message: Nothing) -> tuple[Aggregated, Wanted]:
        """Line 3: the foreign nodes to hear of."""
        return clients.state, Wanted(clients.ids, wanted_by(clients.graph))

    @step_if(lambda self: self.hops == 2)
    def post_around(self, clients: Clients[Aggregated], asked: Asked) -> tuple[Aggregated, Sums]:
        """Line 3: a and d of those that others have links to."""
        graph = clients.graph
        nodes = own_among(graph, asked)
        owner = graph.segments.client[nodes]
        order = torch.argsort(known_to(graph).address[nodes], stable=True)
        nodes = nodes[order[torch.argsort(owner[order], stable=True)]]
        d = self.degrees(graph)
        each, one = torch.arange(nodes.numel() + 1, device=nodes.device), torch.ones_like(d[nodes])
        listed = SparseMatrix(each, nodes, one, graph.num_nodes)
        addresses = Rows(known_to(graph).address[nodes], segments_of(owner, len(clients.ids)).ptr)
        if self.sigma == 0:
            return clients.state, self.told(
                clients, listed, self.aggregated(graph, clients.state.foreign), addresses, d[nodes]
            )
        mine = shortened(self.aggregated(graph, None), self.clip)
        heard = torch.zeros_like(mine) if clients.state.foreign is None else clients.state.foreign.values[:, :-1]
        sums = self.told(clients, listed, mine, addresses, d[nodes])
        kept = heard[nodes[d[nodes] >= self.fewest]] / sums.counts.values.sqrt().unsqueeze(1)
        return clients.state, replace(sums, rows=Rows(sums.rows.values + kept, sums.rows.ptr))

    @step_if(lambda self: self.hops == 2)
    def take_around(self, clients: Clients[Aggregated], heard: Sums) -> tuple[Aggregated, Nothing]:
        """Line 3: what is known of the foreign nodes."""
        rows = torch.cat([heard.rows.values, heard.counts.values.unsqueeze(1)], 1)
        return replace(clients.state, around=Rows(rows, heard.rows.ptr)), Nothing(clients.ids)

    def told(
        self, clients: Clients[Aggregated], listed: SparseMatrix, rows_NF: Tensor, addresses: Rows, counts: Tensor
    ) -> Sums:
        """Sums of rows, with noise on them, of those that are of enough."""
        enough = torch.nonzero(counts >= self.fewest).squeeze(1)
        segments = segments_of(Segments(addresses.ptr).client[enough], len(clients.ids))
        rows = noisy_sums(listed.take_rows(enough), rows_NF, segments, self.sigma, self.clip, clients.rng)
        ptr, sent = segments.ptr, counts[enough].float()
        return Sums(clients.ids, Rows(addresses.values[enough], ptr), Rows(rows, ptr), Rows(sent, ptr))

    # What clients make of it

    def degrees(self, graph: GraphBatch) -> Tensor:
        """d, float [N]: of links whose far ends nobody answers for, too."""
        return 1 + graph.degree + torch.bincount(known_to(graph).node, minlength=graph.num_nodes)

    def scaled_rows(self, graph: GraphBatch) -> Tensor:
        """x_u / sqrt(d_u), shortened to `clip` first, [N, F]."""
        x = graph.x.dense()
        if self.clip > 0:
            x = shortened(x, self.clip)
        return x / self.degrees(graph).sqrt().unsqueeze(1)

    def aggregated(self, graph: GraphBatch, foreign: Rows | None) -> Tensor:
        """a, [N, F]."""
        own = self.scaled_rows(graph)
        total = own + graph.neighbours.times(own)
        if foreign is not None:
            total = total + foreign.values[:, :-1]
        return total / self.degrees(graph).sqrt().unsqueeze(1)

    def seen(self, clients: Clients[Aggregated], training: bool) -> GraphBatch:
        """The graphs with what was heard: a in the place of A X, and foreign nodes for the other layers."""
        graph, foreign, around = clients.graph, clients.state.foreign, clients.state.around
        if foreign is None:
            return graph
        key = (foreign.values, None if around is None else around.values)
        return graph.once("fedgcn", key, lambda: self.completed(graph, foreign, around))

    def remembered(self, clients: Clients[Aggregated]) -> Known:
        """What was heard of each node's neighbours."""
        graph, state, heard = clients.graph, clients.state, None
        if state.around is not None:
            owner = graph.segments.client[known_to(graph).node]
            rows = state.around.values[places_among(graph, wanted_by(graph))]
            heard = Rows(rows[torch.argsort(owner, stable=True)], segments_of(owner, len(clients.ids)).ptr)
        return Known(clients.ids, state.foreign, heard)

    def recalled(self, clients: Clients[Known]) -> GraphBatch:
        """As in tests: nobody is asked again."""
        graph, state, around = clients.graph, clients.state, None
        if state.foreign is None:
            return graph
        if state.heard is not None:
            wanted, owner = wanted_by(graph), graph.segments.client[known_to(graph).node]
            rows = state.heard.values.new_zeros(wanted.values.numel(), state.heard.values.shape[1])
            rows[places_among(graph, wanted)[torch.argsort(owner, stable=True)]] = state.heard.values
            around = Rows(rows, wanted.ptr)
        return self.completed(graph, state.foreign, around)

    def completed(self, graph: GraphBatch, foreign: Rows, around: Rows | None) -> GraphBatch:
        """As `seen`, made once."""
        a, d = self.aggregated(graph, foreign), self.degrees(graph)
        if around is None:
            return with_input(graph, a, graph.gcn_operator)
        wanted, known = wanted_by(graph), known_to(graph)
        ptr = graph.segments.ptr + wanted.ptr
        own = torch.arange(graph.num_nodes, device=graph.device) + wanted.ptr[graph.segments.client]
        told, total = around.values, int(ptr[-1])
        ghost = torch.arange(told.shape[0], device=graph.device) + graph.segments.ptr[1:][Segments(wanted.ptr).client]
        rows, degree = a.new_zeros(total, a.shape[1]), a.new_ones(total)
        rows[own], rows[ghost] = a, told[:, :-1]
        degree[own], degree[ghost] = d, told[:, -1].clamp_min(1)
        heard = told[:, -1] > 0
        place = places_among(graph, wanted)
        links = torch.stack([ghost[place], own[known.node]])[:, heard[place]]
        loops = torch.arange(total, device=graph.device)
        source, target = torch.cat([own[graph.edge_index], links, torch.stack([loops, loops])], 1)
        value = (degree[source] * degree[target]).rsqrt()
        operator = SparseMatrix.from_coo(target, source, value, (total, total))
        return with_input(_larger(graph, own, total, Segments(ptr), links), rows, operator)


def with_input(graph: GraphBatch, rows_NF: Tensor, operator: SparseMatrix) -> GraphBatch:
    """A copy whose first GCN layer multiplies these rows, and whose others propagate with this operator."""
    copy = graph.propagating_with(operator)
    for name in ("gcn_input", "gcn_input_once"):  # where the cached properties look first
        copy.__dict__[name] = Features(rows_NF, graph.segments)
    return copy


def _larger(graph: GraphBatch, own: Tensor, total: int, segments: Segments, links: Tensor) -> GraphBatch:
    """The clients' graphs with more nodes, of which nothing is known but links into own ones."""
    width = graph.x.width
    empty = SparseMatrix(torch.zeros(total + 1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), torch.empty(0), width)

    def spread(values: Tensor, blank: float) -> Tensor:
        out = values.new_full((total, *values.shape[1:]), blank)
        out[own] = values
        return out

    return GraphBatch(
        graph.ids,
        segments,
        Features(empty, segments),
        torch.cat([own[graph.edge_index], links], 1),
        spread(graph.y, torch.nan if graph.y.is_floating_point() else -1),
        spread(graph.role, 0),
        spread(graph.node_id, -1),
        graph.pairs.moved(own) if graph.pairs is not None else None,
        target=graph.target,
    )
