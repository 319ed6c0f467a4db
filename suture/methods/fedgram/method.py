"""FedGram: what lost links would have told, from sums over everybody's nodes. Our own method; no paper.

Nobody knows the far ends of lost links, and no row of anybody leaves its owner. But nodes that are alike would have told
each other much of what neighbours tell, and what neighbours are like can be learnt where links were not lost. Both follow
from second moments, that is, from sums:

    once
      1  owners add up how often each feature is filled and how large it is (mostly zero: rare ones weigh more, as in
         tf-idf; otherwise also squares: mean 0, deviation 1);  node v's row t_v <- (x_v - m) s over its length
      2  `power` times: owners add up t_v (t_v . Q) over their nodes, [D, R];  server: Q <- an orthonormal basis of the sum
      3  with z_v = t_v Q owners add up z_v z_v^T over their nodes, z_v z_v^T and z_v z_u^T over their edges u -> v
      4  server: V, Lambda <- eigenvectors and eigenvalues of the first sum, those of T^T T;
                 W <- (second sum + ridge I)^-1 third sum
      5  owner: alike_v <- t_v V Lambda, a row of (T T^T) T V: one step of message passing over the similarities of all
         pairs of everybody's nodes, which nobody computes
      6  owner: expected_v <- t_v V W, what a neighbour of v is expected to be, by all owners' inner edges
    for t = 1..T  FedAvg of a network whose first layer hears alike_v and expected_v, of length c each, beside x_v
      7  once a share `begin` of the rounds is over, `stages` times in all, every owner lets those of its nodes train too
         whose class the model it receives is surer of than `sure`

Lines 1 to 4 are latent semantic analysis (Deerwester et al., JASIS 1990) by a randomised range finder (Halko, Martinsson
and Tropp, SIAM Review 2011); line 5 propagates once and without weights, as SGC does (Wu et al., ICML 2019), over a kernel
in the place of a graph; line 6 is a linear NeighGen (FedSage+) in closed form; line 7 is Lee's pseudo-labels (2013).

The server needs the sums only, so they can be summed securely, and should be: T_k^T T_k of an owner with few nodes spans
their rows. Owners with fewer than `fewest` nodes add nothing to the sums, nor edges if they have fewer of these. There is
no noise on them. Without R and stages it is FedAvg. Who has no edges hears lines 5 and 6 as everybody does. Nodes that come
later, and other graphs, are described by V, Lambda and W, which are part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.message import Message, Model, Nothing, Rows
from suture.core.streams import generator
from suture.core.tree import Tree, mean, prefixed, tile, under
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.embeddings import MendedFeatures, with_embeddings, with_features
from suture.method import Clients, Cohort, Phase, Task, step_if
from suture.methods.averaging import SERVER, ModelAveraging
from suture.methods.census import UNIT, column_sums, square_sums
from suture.methods.fedgram.gram import (
    BASIS,
    GRAM,
    MOSTLY_ZERO,
    SCALE,
    SHIFT,
    described,
    deviation_weights,
    lengthened,
    orthonormal,
    products_with,
    relations,
    scaled_rows,
    solved,
    word_weights,
)
from suture.methods.fedgram.messages import (
    Centre,
    Counted,
    Described,
    Description,
    Directions,
    GramServer,
    Products,
    Relations,
    Squares,
)
from suture.methods.fedgram.sure import UNSURE, stage_at, sure_classes, taught
from suture.nn.backbones import BESIDE, Backbone
from suture.nn.layers import glorot
from suture.settings import Count, DroppedShare, Positive, Share, Whole

GRAM_OF = "gram."
"""In models: names of what lines 1 to 4 found begin so."""


@dataclass(frozen=True)
class FedGram(ModelAveraging[GramServer, Described]):
    """FedAvg of a network that hears what sums over all owners' nodes say of each node."""

    name: ClassVar[str] = "fedgram"
    summary: ClassVar[str] = "FedAvg that hears of lost neighbours by sums over all owners' nodes, and pseudo-labels"
    paper: ClassVar[str] = "ours"
    sums: ClassVar[tuple[str, ...]] = ("local_update", "count", "measure", "multiply", "relate")
    of_data: ClassVar[tuple[str, ...]] = ("count", "measure", "relate")

    rank: Whole = 200
    """R, numbers a node is described by, at most as many as there are features; 0: none, and no sums."""
    power: Count = 4
    """Exchanges in which the directions of these are found."""
    ridge: Positive = 1.0
    """How many edges' worth of doubt the generator of neighbours begins with."""
    strength: Positive = 4.0
    """c, the length of what is heard beside the features."""
    weighed: bool = True
    """Whether t takes the place of x."""
    length: Positive = 1.0
    """Its length there."""
    fewest: Count = 5
    """The fewest nodes, and edges, of an owner that it adds up for others."""
    stages: Whole = 2
    """How often nodes are asked which class they are sure of; 0: never."""
    begin: DroppedShare = 0.5
    """Share of the rounds before they are asked."""
    sure: Share = 0.6
    """Probability above which they are."""

    def beyond_dp_sgd(self) -> str:
        """Whoever is sure of its class becomes an example."""
        told = "makes examples of nodes by pseudo-labels, for which DP-SGD does not account; set fedgram.stages=0 for none"
        return told if self.stages else ""

    # What there is

    def backbone(self, task: Task) -> Backbone:
        """The network the settings name."""
        if task.module is not None and self.rank:
            raise ConfigError(
                "fedgram's first layer hears more than features and edges, which a network of your own has no place for: "
                "set fedgram.rank=0, or choose another method"
            )
        return super().backbone(task)

    def width(self, task: Task) -> int:
        """R."""
        return min(self.rank, task.features)

    def initial_params(self, task: Task) -> Tree:
        """FedAvg's, and weights for what is heard beside the features."""
        params, width = super().initial_params(task), 2 * self.width(task)
        if not width:
            return params
        out = self.backbone(task).widths()[1]
        return params | {BESIDE: glorot((1, width, out), width, out, generator(task.seed, "initial weights beside"))}

    def init_server(self, task: Task) -> GramServer:
        """The initial model; nothing is known yet."""
        return GramServer(SERVER, self.initial_shared(task), first=self.first_directions(task))

    def first_directions(self, task: Task) -> Tensor:
        """Q before the first sum: at random, [1, D, R]."""
        shape = (task.features, self.width(task))
        drawn = torch.randn(shape, generator=generator(task.seed, "first directions"), dtype=torch.float64)
        return orthonormal(drawn).unsqueeze(0)

    def init_clients(self, clients: Clients[Nothing]) -> Described:
        """The initial model; nobody is sure of anything."""
        graph = clients.graph
        unsure = torch.full((graph.num_nodes,), UNSURE, device=graph.device)
        asked = torch.zeros(len(clients.ids), dtype=torch.int64, device=graph.device)
        return Described(**vars(self.fresh(clients)), classes=Rows(unsure, graph.segments.ptr), stage=asked)

    def plan(self) -> tuple[Phase[GramServer], ...]:
        """The sums, then the rounds."""
        if not self.rank:
            return super().plan()
        return (
            Phase("scale", self.find_scale),
            Phase("directions", self.find_directions, self.power),
            Phase("relations", self.find_relations),
            *super().plan(),
        )

    # Line 1

    def find_scale(self, server: GramServer, cohort: Cohort) -> GramServer:
        """Line 1 on the server."""
        up = cohort.ask(self.count, Nothing(cohort.ids))
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        nodes = float(up.weight.double().sum() / UNIT)
        found = mean({"mean": up.mean, "size": up.size, "filled": up.filled}, up.weight)
        if float(found["filled"].mean()) < MOSTLY_ZERO:
            scale, shift = word_weights(found["filled"], found["size"], nodes), torch.zeros_like(found["mean"])
        else:
            size = torch.where(found["size"] > 0, found["size"], 1.0)
            centre = tile({"mean": found["mean"], "size": size}, len(cohort.ids))
            squares = cohort.ask(self.measure, Centre(cohort.ids, **centre))
            squares = squares.select(sorted(squares.ids))
            square = mean({"square": squares.square}, squares.weight)["square"]
            scale, shift = deviation_weights(square, size), found["mean"]
        return replace(server, gram={SHIFT: shift, SCALE: scale, BASIS: server.first}, nodes=nodes)

    def told(self, graph: GraphBatch) -> Tensor:
        """Of how many nodes each client speaks, float64 [K]: of all, or of none if they are too few."""
        return torch.where(graph.sizes >= self.fewest, graph.sizes, 0).double()

    def share(self, graph: GraphBatch) -> Tensor:
        """What makes a client's sums means, float64 [K]; of too few nodes, zero."""
        told = self.told(graph)
        return (told > 0) / told.clamp_min(1)

    @step_if(lambda self: self.rank > 0)
    def count(self, clients: Clients[Described], message: Nothing) -> tuple[Described, Counted]:
        """Line 1: how often features are filled, and how large they are."""
        graph, told = clients.graph, self.told(clients.graph)
        each = torch.stack([column_sums(graph, k) for k in range(len(graph.ids))]) * self.share(graph).view(-1, 1, 1)
        return clients.state, Counted(graph.ids, each[:, 0], each[:, 1], each[:, 2], told * UNIT)

    @step_if(lambda self: self.rank > 0)
    def measure(self, clients: Clients[Described], centre: Centre) -> tuple[Described, Squares]:
        """Line 1: squared deviations, of features that are seldom zero."""
        graph, told = clients.graph, self.told(clients.graph)
        each = [square_sums(graph, k, centre.mean[k], centre.size[k]) for k in range(len(graph.ids))]
        return clients.state, Squares(graph.ids, torch.stack(each) * self.share(graph).unsqueeze(1), told * UNIT)

    # Lines 2 to 4

    def directions(self, server: GramServer, cohort: Cohort) -> Directions:
        """What is known before lines 2 and 3."""
        known = tile(server.gram, len(cohort.ids))
        return Directions(cohort.ids, known[SHIFT], known[SCALE], known[BASIS])

    def find_directions(self, server: GramServer, cohort: Cohort) -> GramServer:
        """Line 2 on the server; all directions there are need not be found."""
        if server.gram[BASIS].shape[1] == server.gram[BASIS].shape[2]:
            return server
        up = cohort.ask(self.multiply, self.directions(server, cohort))
        up = up.select(sorted(up.ids))
        total = mean({"products": up.products}, up.weight)["products"][0]
        return replace(server, gram=server.gram | {BASIS: orthonormal(total).unsqueeze(0)})

    @step_if(lambda self: self.rank > 0)
    def multiply(self, clients: Clients[Described], down: Directions) -> tuple[Described, Products]:
        """Line 2."""
        told = self.told(clients.graph)
        sums = products_with(scaled_rows(clients.graph.x, down.shift, down.scale), down.basis)
        return clients.state, Products(clients.ids, sums * self.share(clients.graph).view(-1, 1, 1), told)

    def find_relations(self, server: GramServer, cohort: Cohort) -> GramServer:
        """Lines 3 and 4 on the server; everybody is told what follows."""
        up = cohort.ask(self.relate, self.directions(server, cohort))
        up = up.select(sorted(up.ids))
        found = mean({"own": up.own, "ends": up.ends, "crossed": up.crossed}, up.weight)
        own, ends, crossed = (found[name][0] * server.nodes for name in ("own", "ends", "crossed"))
        scales = {name: server.gram[name].float() for name in (SHIFT, SCALE)}
        gram = scales | solved(server.gram[BASIS][0], own, ends, crossed, self.ridge)
        cohort.ask(self.learn, Description(cohort.ids, tile(gram, len(cohort.ids))))
        return replace(server, gram=gram)

    @step_if(lambda self: self.rank > 0)
    def relate(self, clients: Clients[Described], down: Directions) -> tuple[Described, Relations]:
        """Line 3."""
        graph, told = clients.graph, self.told(clients.graph)
        z_NR = scaled_rows(graph.x, down.shift, down.scale).times(down.basis)
        own, ends, crossed, edges = relations(graph, z_NR)
        share = self.share(graph).view(-1, 1, 1)
        linked = share * (edges >= self.fewest).view(-1, 1, 1)
        return clients.state, Relations(clients.ids, own * share, ends * linked, crossed * linked, told)

    @step_if(lambda self: self.rank > 0)
    def learn(self, clients: Clients[Described], down: Description) -> tuple[Described, Nothing]:
        """Line 4: what everybody is told."""
        return replace(clients.state, gram=down.gram), Nothing(clients.ids)

    # Lines 5 to 7

    def seen(self, clients: Clients[Described], training: bool) -> GraphBatch:
        """The graphs whose nodes carry what lines 5 and 6 say of them; in training, with the classes they are sure of."""
        graph, state = clients.graph, clients.state
        if state.gram:
            graph = graph.once("described", state.gram[BASIS], lambda: self.described(clients.graph, state.gram))
        if training and bool((state.classes.values != UNSURE).any()):
            plain = graph
            graph = plain.once("taught", state.classes.values, lambda: taught(plain, state.classes.values))
        return graph

    def described(self, graph: GraphBatch, gram: Tree) -> GraphBatch:
        """Lines 5 and 6."""
        rows = scaled_rows(graph.x, gram[SHIFT].double(), gram[SCALE].double())
        if self.weighed:
            graph = with_features(graph, lengthened(rows, self.length))
        return with_embeddings(graph, described(rows, gram, self.strength))

    def informed(self, clients: Clients[Described], down: Model) -> Described:
        """Line 7: clients that have not been asked in this stage ask their nodes now."""
        state, graph = super().informed(clients, down), clients.graph
        stage = stage_at(clients.round, self.training.rounds, self.begin, self.stages)
        due = state.stage < stage
        if graph.pairs is not None or graph.target.kind != "class" or not bool(due.any()):
            return state
        with torch.no_grad():
            model = self.assemble(clients, down)
            found = sure_classes(
                self.predict(self.seen(clients, training=False), model, clients.task), graph.role, self.sure
            )
        classes = torch.where(due[graph.segments.client], found, state.classes.values)
        return replace(state, classes=Rows(classes, graph.segments.ptr), stage=state.stage.clamp_min(stage))

    def deploy(self, server: GramServer, ids: Sequence[str]) -> Message:
        """The network, and all that describes a node to it: new nodes have no state that would know it."""
        model = replace(self.hand_out(server, ids), moments={})
        known = server.gram if GRAM in server.gram else {}  # before line 4 there is nothing to describe nodes by
        return replace(model, params=model.params | prefixed(GRAM_OF, tile(known, len(ids))))

    def assemble(self, clients: Clients[Described], deployed: Message) -> Model:
        """The same, from what was deployed or, as the last local training left it, from what the client keeps."""
        model = super().assemble(clients, deployed)
        return Model(clients.ids, prefixed(GRAM_OF, clients.state.gram) | model.params)

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C] of any nodes."""
        gram = under(GRAM_OF, model.params)
        if gram and not isinstance(graph.x, MendedFeatures):
            graph = self.described(graph, gram)
        return super().predict(graph, model, task)
