"""FedDEP: Deep efficient private neighbor generation for subgraph federated learning. Zhang et al., SDM 2024.

    prototypes (Proto, section 3.2), once
      1  client i trains a GNN of depth L on its own graph; z_v <- the embedding of each node v
         Z'_i <- the means of C clusters of its z_v; sends Z'_i
      2  server sends every client the Z'_j of all others
    generator (DGen, section 3.1, and pseudo-FL), for e_g epochs, without communication
      3  client i hides a share h of its nodes; n_v, N_v: number and set of the neighbours that v lost
      4  n~_v and z~_v^p <- DGen on what is left; z_v <- mean of the z~_v^p, p <= n~_v, that Ber(r) keeps
      5  min  mean_v [ L1smooth(n~_v - n_v) + sum_p min_{u in N_v} |z~_v^p - z'_u|^2
                       + sum_{j != i} sum_p min_{z' in Z'_j} |z~_v^p - z'|^2 ] + L^c                               (3.1)
         z'_u: the prototype of u's cluster;  L^c: cross-entropy of a local F on the graph mended with z_v
    for t = 1..T
      6  server sends F; client i mends its whole graph with z_v (noise and Ber(r) drawn anew) and trains F on it
      7  F <- mean of the clients' F
    F is embedding-fused GraphSAGE (methods/feddep/fused.py); on the uncut graph z = 0.

Variants: `dgen=False` is line 6 with z = 0, so FedSage. `proto=False` replaces lines 1, 2 and 5 by Table 1's middle row:
z'_u is z_u itself, and in every epoch client i sends all z~_v^p to every j, which returns 2 (z~ - its nearest z_u), the
gradient of its part of (3.1). `nfdp=False` trains what leaves a client, the GNN of line 1 and F, by DP-SGD, with r = 1.

What the paper leaves open, and what we do (v: by validation accuracy on Cora, one seed)
- F. Section 3.1 prints K + 1 matrices and none for the node itself, section 4.1 says two-layer GraphSage: a layer here is
  GraphSAGE's, plus z_v with weights of its own (statement 3.1). The printed form, without a matrix for the node itself, is
  two points worse in test accuracy (Cora, 10 clients, two seeds, z = 0).
- The GNN of line 1 has L layers of width d_z and a linear classifier. z_v is its last layer after ReLU, scaled to length
  one, so that distances mean the same at every client. Clients start it from the same weights and train it alone
  (`pretrain_epochs`): averaging it would cost as much as the classifier.
- Clustering: k-means (methods/feddep/kmeans.py). Prototypes are of the whole graph's nodes, hidden ones included.
- DGen's sums run over p <= round(n~_v), at most `most`; the first minimum is over nobody, so zero, where v lost nobody.
  sigma: softplus for n~, tanh for z~ (after a ReLU it ends at zero and stays there). Its optimiser is Adam, full batch: with
  noise of variance one in d_z directions SGD at 0.1 diverges. DGen is never sent.
- Ber_r keeps each of the n~_v embeddings with probability r. Where it keeps none z_v = 0, and as it is drawn anew in every
  round, F learns to do without z, as it must on the uncut graph. r is not stated (v).
- Validation and client tests: a client's own graph is mended, with all n~_v embeddings.
- Line 5 is done before line 6 (as FedSage's algorithm 1); the local F of L^c is thrown away. `joint`: in each round some of
  its epochs come before line 6, and the F of L^c is the one received, so that (3.1) is one problem. What else F may do
  with z is `fusion` (methods/feddep/fused.py); docs/feddep.md says what was tried.
- Line 2 with more than `partners` + 1 clients: inside random groups. The sum over j in (3.1) is then one over the group.
- h = 0.5, K = 2, beta = 1, and C, d_z by data set: as printed. L = 0 is FedSage+ (`fedsage_plus`).

Privacy: what leaves a client is its C prototypes and the weights of F in every round. Theorem 3.1 promises edge-LDP for
sampled neighbours, but composed over all draws of a run it promises nothing (docs/privacy.md), and its account leaves out
F's rounds and prototypes, whose embeddings see all neighbours; one of a single node is its embedding. Hence, by default:
- Before line 1 a client draws each of its edges with probability `edge_share`, once (a real owner by a key of its own, in
  all runs alike). Lines 1 to 7 see drawn edges only, which is (0, edge_share)-private for each edge; tests see all edges.
- A prototype is of at least `smallest` nodes, and has noise (`prototype_sigma`).
`as_published=True` is the paper's form. With `proto=False` what clients return tells embeddings of their nodes.
Legend: K clients, M of them in all, N nodes, D = d_z, C clusters, T targets, R generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.kernels import Segments, pointers
from suture.core.message import Model, Nothing, Record, Rows
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, prefixed
from suture.graph.batch import GraphBatch
from suture.graph.drawn import drawn_graph
from suture.graph.embeddings import with_embeddings
from suture.graph.impair import Impaired, impair
from suture.method import Clients, Cohort, Mends, Phase, Supposed, Task, step_if
from suture.methods.averaging import SERVER, Server
from suture.methods.feddep.dgen import Generated, bernoulli
from suture.methods.feddep.kept import Generating, Generators
from suture.methods.feddep.kmeans import kmeans
from suture.methods.feddep.objective import CLASSIFIER, Objective, Targets, attached
from suture.methods.feddep.parts import DepParts
from suture.methods.feddep.prototypes import (
    OthersPrototypes,
    Prototypes,
    among_groups,
    careful,
    trained_embeddings,
    without_excess,
)
from suture.methods.feddep.without_proto import DeepNeighbours, Pulls, everybody_elses, pulls_towards, summed_pulls
from suture.training.local import sum_terms
from suture.training.optimisers import descend, fresh_moments


@dataclass(frozen=True)
class FedDep(DepParts):
    """FedAvg over subgraphs mended with generated embeddings of missing neighbours."""

    name: ClassVar[str] = "feddep"
    summary: ClassVar[str] = "FedAvg on subgraphs mended with deep embeddings of missing neighbours"
    paper: ClassVar[str] = "Zhang et al., SDM 2024"
    mends: ClassVar[Mends] = "any"
    memory: ClassVar[type[Record]] = Generators

    def telling(self, clients: Clients[Generating]) -> Clients[Generating]:
        """The clients with that of their graphs which may be seen in what they send: the edges they drew."""
        if not self.draws_once:
            return clients
        graph, draw, share = clients.graph, clients.state.draw, self.edge_share
        drawn = graph.once("drawn", (share, *draw.tolist()), lambda: drawn_graph(graph, share, Streams(draw)))
        return replace(clients, graph=drawn)

    def init_server(self, task: Task) -> Server:
        """F."""
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Generating:
        """F, a generator that starts alike everywhere, and no targets yet."""
        device, count = clients.graph.device, len(clients.ids)
        made = self.initial_generator(clients.task) if self.dgen else {}
        # Copies, not one copy seen by all: a run that is resumed here must round as one that goes on.
        made = {name: value.to(device).repeat(count, *[1] * (value.dim() - 1)) for name, value in made.items()}
        none = torch.zeros(count + 1, dtype=torch.int64, device=device)
        return Generating(
            **vars(self.fresh(clients)),
            generator=made,
            generator_moments=fresh_moments(made, self.generator_training) if made else {},
            targets=Rows(torch.zeros(0, self.d_z, device=device), none),
            target_of=Rows(none[:0], none),
            others=torch.zeros(count, 0, self.clusters, self.d_z, device=device),
            epoch=0,
            draw=clients.rng.fork("edges").keys,
        )

    def initial_generator(self, task: Task) -> Tree:
        """DGen and the local F of L^c, [1, ...]."""
        rng = generator(task.seed, "initial generator")
        classifier = prefixed(CLASSIFIER, self.backbone(task).init(rng))
        return self.deep_generator(task).init(rng) | classifier

    def plan(self) -> tuple[Phase[Server], ...]:
        """Lines 1-2, 3-5 and 6-7."""
        if not self.dgen:
            return super().plan()
        if self.proto:
            prototypes = Phase("prototypes", self.exchange_prototypes)
            alone = () if self.joint else (Phase("generator", self.pseudo_fl),)
            return (prototypes, *alone, *super().plan())
        phases = (Phase("embeddings", self.embed), Phase("generator", self.generator_round, self.generator_epochs))
        return (*phases, *super().plan())

    def exchange_prototypes(self, server: Server, cohort: Cohort) -> Server:
        """Lines 1 and 2."""
        told = cohort.ask(self.prototype, Nothing(cohort.ids))
        groups = cohort.groups(self.partners + 1 if self.partners else len(cohort.ids))
        cohort.ask(self.remember, among_groups(told, [group.ids for group in groups]))
        return server

    @step_if(lambda self: self.dgen and self.proto)
    def prototype(self, clients: Clients[Generating], message: Nothing) -> tuple[Generating, Prototypes]:
        """Line 1."""
        segments = clients.graph.segments
        z_ND = self.embeddings(clients)
        centres, cluster = kmeans(z_ND, segments, self.clusters, clients.rng.fork("k-means"))
        centres, cluster, told = self.groups(z_ND, centres, cluster, segments, clients.rng)
        ptr = torch.arange(len(clients.ids) + 1, device=centres.device) * self.clusters
        state = replace(clients.state, targets=Rows(centres.flatten(0, 1), ptr), target_of=Rows(cluster, segments.ptr))
        return state, Prototypes(clients.ids, told)

    def groups(
        self, z_ND: Tensor, centres: Tensor, cluster: Tensor, segments: Segments, rng: Streams
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Line 1, of k-means' clusters: (centres, cluster of each node, what is told of the centres)."""
        rng, sigma = rng.fork("prototypes"), self.prototype_sigma
        return careful(z_ND, centres, cluster, segments, 0 if self.as_published else self.smallest, sigma, rng)

    def embeddings(self, clients: Clients[Generating]) -> Tensor:
        """Line 1: z_v of every node, [N, D]."""
        graph, (network, initial, settings) = self.telling(clients).graph, self.pretraining(clients.task)
        return trained_embeddings(network, initial, graph, settings, clients.rng.fork("pretrain"))

    @step_if(lambda self: self.dgen and self.proto)
    def remember(self, clients: Clients[Generating], others: OthersPrototypes) -> tuple[Generating, Nothing]:
        """Line 2."""
        heard = without_excess(others.centres) if self.prototype_sigma and not self.as_published else others.centres
        return replace(clients.state, others=heard), Nothing(clients.ids)

    def pseudo_fl(self, server: Server, cohort: Cohort) -> Server:
        """Lines 3-5: one call, and nothing crosses."""
        cohort.ask(self.train_generator, Nothing(cohort.ids))
        return server

    @step_if(lambda self: self.dgen and self.proto)
    def train_generator(self, clients: Clients[Generating], message: Nothing) -> tuple[Generating, Nothing]:
        """Lines 3-5, all epochs."""
        for _ in range(self.generator_epochs):
            clients = replace(clients, state=self.generator_epoch(clients))
        return clients.state, Nothing(clients.ids)

    def informed(self, clients: Clients[Generating], down: Model) -> Generating:
        """Line 6; `joint`: after some epochs of line 5, whose F is the one received."""
        state = super().informed(clients, down)
        if not self.joint:
            return state
        state = replace(state, generator=state.generator | prefixed(CLASSIFIER, down.params))
        for _ in range(-(-self.generator_epochs // self.training.rounds)):
            state = self.generator_epoch(replace(clients, state=state))
        return state

    def generator_epoch(self, clients: Clients[Generating], pulls_RD: Tensor | None = None) -> Generating:
        """One step of equation 3.1; `pulls_RD` are the others' gradients, without Proto."""
        state = clients.state

        def loss(params: Tree) -> Tensor:
            return sum_terms(self.generator_terms(params, self.generated(params, clients), clients, pulls_RD))

        made, moments, _ = descend(loss, state.generator, state.generator_moments, self.generator_training)
        return replace(state, generator=made, generator_moments=moments, epoch=state.epoch + 1)

    def impaired(self, clients: Clients[Generating]) -> Impaired:
        """Line 3, the same for the whole run."""
        graph, seed = self.telling(clients).graph, clients.task.seed
        streams = Streams.of(seed, graph.ids, "impair", device=graph.device)
        return graph.once("impaired", (seed, self.hidden_share), lambda: impair(graph, self.hidden_share, streams))

    def epoch_streams(self, clients: Clients[Generating]) -> Streams:
        """What an epoch draws from: the same in all calls of the epoch, which without Proto are two."""
        return Streams.of(clients.task.seed, clients.ids, "generator", clients.state.epoch, device=clients.graph.device)

    def generated(self, params: Tree, clients: Clients[Generating]) -> Generated:
        """Line 4: neighbours for the nodes that remained."""
        rng = self.epoch_streams(clients)
        graph = self.impaired(clients).graph
        return self.deep_generator(clients.task)(params, graph, rng.fork("noise"), rng.fork("dropout"))

    def generator_terms(
        self, params: Tree, made: Generated, clients: Clients[Generating], pulls_RD: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Line 5: the terms of equation 3.1, one value a client each [K]."""
        state, rng = clients.state, self.epoch_streams(clients)
        targets = Targets(state.targets, state.target_of, state.others)
        objective = Objective(self.backbone(clients.task), self.kept_share, self.generator_training)
        return objective.terms(params, made, self.impaired(clients), targets, rng, pulls_RD)

    def embed(self, server: Server, cohort: Cohort) -> Server:
        """Without Proto: line 1 up to the embeddings."""
        cohort.ask(self.embed_nodes, Nothing(cohort.ids))
        return server

    @step_if(lambda self: self.dgen and not self.proto)
    def embed_nodes(self, clients: Clients[Generating], message: Nothing) -> tuple[Generating, Nothing]:
        """Without Proto: every node is its own target."""
        segments = clients.graph.segments
        targets, target_of = Rows(self.embeddings(clients), segments.ptr), Rows(segments.place, segments.ptr)
        return replace(clients.state, targets=targets, target_of=target_of), Nothing(clients.ids)

    def generator_round(self, server: Server, cohort: Cohort) -> Server:
        """Without Proto: an epoch of the generator, in which everybody's embeddings go to everybody."""
        offered = cohort.ask(self.offer, Nothing(cohort.ids))
        pulls = cohort.ask(self.judge, everybody_elses(offered))
        cohort.ask(self.improve, summed_pulls(offered, pulls))
        return server

    @step_if(lambda self: self.dgen and not self.proto)
    def offer(self, clients: Clients[Generating], message: Nothing) -> tuple[Generating, DeepNeighbours]:
        """Without Proto: send all z~_v^p, p <= n~_v, node after node."""
        with torch.no_grad():
            made = self.generated(clients.state.generator, clients)
            owner = self.impaired(clients).graph.segments.client
            lengths = torch.bincount(owner.repeat_interleave(made.used.sum(1)), minlength=len(clients.ids))
            return clients.state, DeepNeighbours(clients.ids, Rows(made.rows(), pointers(lengths)))

    @step_if(lambda self: self.dgen and not self.proto)
    def judge(self, clients: Clients[Generating], offered: DeepNeighbours) -> tuple[Generating, Pulls]:
        """Without Proto: how the rows received should change to be nearer to the client's own nodes."""
        return clients.state, Pulls(clients.ids, pulls_towards(clients.state.targets, offered.rows))

    @step_if(lambda self: self.dgen and not self.proto)
    def improve(self, clients: Clients[Generating], pulls: Pulls) -> tuple[Generating, Nothing]:
        """Without Proto: line 5."""
        return self.generator_epoch(clients, pulls.rows.values), Nothing(clients.ids)

    def seen(self, clients: Clients[Generating], training: bool) -> GraphBatch:
        """Line 6: the whole graphs, mended by the share of the generated embeddings that Ber(r) keeps; in tests by all."""
        if training:
            return self.mended(self.telling(clients), clients.state.generator, self.kept_share)
        return self.mended(clients, clients.state.generator, 1.0)

    def mended(self, clients: Clients[Record], generator: Tree, share: float) -> GraphBatch:
        """Line 6 with a share of what the generators make of the clients' graphs."""
        if not self.dgen:
            return clients.graph
        graph, rng = clients.graph, clients.rng.fork("mend")
        with torch.no_grad():
            made = self.deep_generator(clients.task)(generator, graph, rng.fork("noise"))
            chosen_NP = bernoulli(made.used, share, graph.segments, rng.fork("bernoulli"))
        return with_embeddings(graph, attached(made, chosen_NP, graph, self.fusion))

    def supposed(self, clients: Clients[Generating]) -> Supposed:
        """round(n~_v) of the whole graphs."""
        if not self.dgen:
            return Supposed.of(clients.graph)
        made = self.deep_generator(clients.task)(clients.state.generator, clients.graph, clients.rng.fork("noise"))
        return Supposed.of(clients.graph, missing=made.used.sum(1))

    def remembered(self, clients: Clients[Generating]) -> Generators:
        """DGen, without the local F it was trained with."""
        kept = {name: value for name, value in clients.state.generator.items() if not name.startswith(CLASSIFIER)}
        return Generators(clients.ids, kept)

    def recalled(self, clients: Clients[Generators]) -> GraphBatch:
        """As in tests."""
        return self.mended(clients, clients.state.generator, 1.0)
