"""The rounds of FedGGR with anchors: all that the server needs of its clients are sums (`suture.methods.fedggr.anchors`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from suture.core.message import Kind, Message, Model
from suture.core.tree import Tree, map_tree, mean, prefixed, tile, under
from suture.graph.batch import GraphBatch
from suture.method import Clients, Cohort, Task, step_if
from suture.methods.averaging import Up, weighted_loss
from suture.methods.fedggr.anchors import drawn_anchors, moved_anchors, near_sums, unplaced
from suture.methods.fedggr.kept import Embedded, GraphServer
from suture.methods.fedggr.parts import GgrParts
from suture.training.batches import Batch
from suture.training.local import train_locally
from suture.training.optimisers import in_round

ENCODER, ANCHORS = "codes.", "anchors."
"""In messages and models: names of the auto-encoder's parameters, and of anchors, begin so."""


@dataclass(frozen=True)
class NearSums(Message):
    """Client to server: sums over its nodes by the nearest anchor, over `weight` [K], how many nodes these are.

    Shapes: sums [K, A, P], counts [K, A], squares [K, P].
    """

    sums: Annotated[Tensor, Kind.STATISTICS]
    counts: Annotated[Tensor, Kind.COUNTS]
    squares: Annotated[Tensor, Kind.STATISTICS]
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class AnchoredRounds(GgrParts):
    """Placing anchors, and training beside them."""

    def place_anchors(self, server: GraphServer, cohort: Cohort) -> GraphServer:
        """Lines 1 and 2 of `anchors`; clients keep the places they were told last."""
        before = server.codes or unplaced(self.anchors, self.code_width)
        told = prefixed(ENCODER, server.autoencoder) | prefixed(ANCHORS, before)
        up = cohort.ask(self.sum_near_anchors, Model(cohort.ids, tile(told, len(cohort.ids))))
        up = up.select(sorted(up.ids))  # sums round alike whatever the order of clients
        found = {name: value[0] for name, value in mean({"s": up.sums, "c": up.counts, "q": up.squares}, up.weight).items()}
        if server.codes:
            return replace(server, codes=moved_anchors(before, found["s"], found["c"]))
        return replace(server, codes=drawn_anchors(before, found["s"][0], found["q"], server.seed))

    @step_if(lambda self: self.anchored)
    def sum_near_anchors(self, clients: Clients[Embedded], down: Model) -> tuple[Embedded, NearSums]:
        """Line 1 of `anchors`."""
        autoencoder = clients.state.autoencoder | under(ENCODER, down.params)
        state = replace(clients.state, autoencoder=autoencoder, autoencoder_moments={}, anchors=under(ANCHORS, down.params))
        segments = clients.graph.segments
        with torch.no_grad():
            codes_NP = self.autoencoder(clients.task).encode(autoencoder, clients.graph)
        sums, counts, squares = near_sums(codes_NP, state.anchors, segments, self.smallest)
        told_K = counts.sum(1)
        share = 1 / told_K.clamp_min(1)
        means = sums * share[:, None, None], counts * share[:, None], squares * share[:, None]
        return state, NearSums(clients.ids, *means, told_K)

    def heard(self, autoencoder: Tree, anchors: Tree, graph: GraphBatch, task: Task) -> Tensor:
        """What each node hears of the anchors, [N, P]."""
        with torch.no_grad():
            codes_NP = self.autoencoder(task).encode(autoencoder, graph)
            return self.branch.heard(codes_NP, anchors, graph.segments)

    def met(self, clients: Clients[Embedded]) -> Tensor | None:
        """The anchor that each node hears most of [N], -1 for none; None: there are no anchors yet."""
        state = clients.state
        if not state.anchors:
            return None
        with torch.no_grad():
            codes_NP = self.autoencoder(clients.task).encode(state.autoencoder, clients.graph)
            alike, anchor = self.branch.alike(codes_NP, state.anchors, clients.graph.segments).max(1)
        return torch.where(alike > 0, anchor, -1)

    def round_with_anchors(self, server: GraphServer, cohort: Cohort) -> GraphServer:
        """Lines 3, 4 and 6 of the box; Z is the clients' own."""
        sampled = cohort.sample(self.training.participation)
        up = sampled.ask(self.train_with_anchors, Model(sampled.ids, tile(server.params, len(sampled.ids))))
        up = up.select(sorted(up.ids))
        cohort.report(loss=weighted_loss(up))
        return replace(server, params=mean(up.params, up.weight), round=server.round + 1)

    @step_if(lambda self: self.anchored)
    def train_with_anchors(self, clients: Clients[Embedded], down: Model) -> tuple[Embedded, Up]:
        """Line 3 of the box."""
        state, graph, task = clients.state, clients.graph, clients.task
        moments = state.moments if self.training.keep_optimizer else map_tree(torch.zeros_like, state.moments)
        heard_NP = self.heard(state.autoencoder, state.anchors, graph, task)
        params, moments, loss = train_locally(
            graph,
            state.params | down.params,
            moments,
            partial(self.loss_with_anchors, task, heard_NP),
            in_round(self.training, clients.round),
            clients.rng,
            self.local_network(task).frozen_names(),
        )
        sent = {name: params[name] for name in down.params}
        return replace(state, params=params, moments=moments), Up(clients.ids, sent, graph.sizes.float(), loss)

    def loss_with_anchors(self, task: Task, heard_NP: Tensor, params: Tree, batch: Batch) -> Tensor:
        """Equation (5) of each client [K]."""
        local_BL, view = batch.logits(self.local_network(task), params), batch.view
        z_BG = self.branch.embeddings(params, heard_NP[view.nodes], view.segments, batch.rng.fork("anchors"))
        return self.fusion.loss_of(params, torch.cat([local_BL, z_BG], 1), local_BL.shape[1], batch)

    def model_with_anchors(self, clients: Clients[Embedded], params: Tree) -> Model:
        """All that a prediction needs, also of nodes that nobody has seen."""
        state = clients.state
        return Model(clients.ids, params | prefixed(ENCODER, state.autoencoder) | prefixed(ANCHORS, state.anchors))

    def embedded_by_anchors(self, graph: GraphBatch, params: Tree, task: Task) -> Tensor:
        """Z [N, G]; nothing, so zero, before anchors have been placed."""
        anchors = under(ANCHORS, params)
        if not anchors:
            return torch.zeros(graph.num_nodes, self.widths(task)[1], device=graph.device)
        heard_NP = self.heard(under(ENCODER, params), anchors, graph, task)
        return self.branch.embeddings(params, heard_NP, graph.segments)
