"""FedSage+: Subgraph federated learning with missing neighbor generation. Zhang et al., NeurIPS 2021.

    once (here: every `rehide` iterations anew)
      0  client i hides a share h of its nodes and their links; what is left is its impaired graph (section 4.1)
    for t = 1..e_g (Algorithm 1, procedures A, C, D, E)
      1  client i samples nodes V_i^t that remained; for p = 1..n_v its fGen makes x~_v^p from z_v + noise
           keeps the gradient of  lambda_d L^d + lambda_f L^f_i,local          (equation 4)
           sends fGen_i and the rows z_v + noise
      2  server routes them; client j returns the gradient with respect to fGen_i of
           L^f_i,j = 1/|V_i^t| sum_v sum_p min_u |x~_v^p - x_u|^2   (here: a soft minimum)
      3  server returns to i the sum over j != i
      4  client i: one Adam step along its own gradient + lambda_f alpha x the sum (equation 6)
    once
      5  client i adds round(n~_v) generated neighbours to each of its nodes (here: m_v + s (x~ - m_v), see below)
    for t = 1..e_c (procedures B, F)
      6  FedSage on the mended graphs

What the paper leaves open, and what we do
- Equation (3) prints the target n_v as the input of dGen; it must be z_v. Counts are rounded when mending (appendix D.1)
  and capped at `most` (5, as in the public code). Most counts are below one half: rounded to the nearest, as printed, nine
  in ten expected neighbours are lost. Rounded up or down at random (`unbiased`), as many are generated as are expected.
- Equations (4) and (6) sum over p in [n~_v], a rounded prediction: no gradient reaches it, and the minimum is over the empty
  set where nothing is missing. Training generates as many neighbours as are really hidden (at most `most`), so that every
  generated row has something to match from the first step on.
- H^g_i in (6) is fGen alone: the foreign term does not depend on dGen. The noise is added before anything is sent, so no
  noise travels beside the embeddings and nobody sees a clean one. Gradients are returned for fGen's weights only, summed
  over the rows; a gradient with respect to a row z or x~ would hand over x_u itself.
- The nearest node of another client to a generated row, which is smooth, is one of the lightest there, and often the same
  for all rows. `softness` weighs client j's nodes by exp(-|x~ - x_u|^2 / temperature) instead,
  with a temperature relative to the row's mean squared distance: the gradient of the soft minimum draws x~ to their mean.
  Mended neighbourhoods come closer to the uncut graph's with it (docs/fedsage.md), and no answer is about single nodes.
- At most `exchanged` rows of a client travel in an iteration; their gradient is scaled up to all rows of V_i^t.
- Algorithm 1 optimises equation (6) and trains the classifier afterwards; so do we.
- "Epoch" of the generator: one iteration of the box, with one mini-batch. e_g, learning rate, widths, h: not stated. h is
  5%, towards the smaller end of the shares of links that the paper's cuts lose (3% to 28%), because a neighbour generated
  for a node that lost none harms (with 8% validation accuracy is lower on Cora); `width` is narrow for privacy. The
  learning rate falls to zero.
- Line 0 is repeated with other nodes every `rehide` iterations (0: once, as printed). With few hidden once, a generator
  learns the nodes that are hidden by heart; anew, predicted counts follow the real ones much better (docs/fedsage.md).
- Line 5 does not trust x~ more than it deserves. With m_v the mean of v's known neighbours (the client's, if v has none), a
  generated neighbour is m_v + s (x~ - m_v). On graphs impaired once more, s in [0, 1] is the least-squares fit of the
  changes of neighbourhoods that would be right to those that x~ makes; it takes nothing but the client's own graph.
  `calibrated=False` is the line as printed, s = 1.
- The test graph is the uncut graph, never mended; a client's own test is on its mended graph.
- `shared_generator`: the variant of appendix D.2, one NeighGen trained by FedAvg with equation (4), without exchange.

Privacy: features, edges, labels and node ids never leave a client as such. Other clients see fGen_i and noisy embeddings of
sampled nodes. But the gradient of fGen's output layer is H^T S, with H [R, width] the hidden activations of the rows, which
the sender and the server can compute, and S [R, F] the weighted differences x~ - x_u: with no more rows than hidden units
whoever sees the gradient could solve it for S and read off x_u (the sender: their sum over the other clients). As printed,
the method does not prevent that. Here a client answers an offer only if its rows outnumber the hidden units and the bias,
so that the system has no unique solution, and if their match amounts to at least `DISTINCT` different nodes. fGen is narrow
for that reason, and its activation is tanh, since a ReLU unit that is active for a single row would reveal that row. This
rules out solving and looking, not every inference: rows are sparse, and gradients of many iterations accumulate.
Legend: K clients, M senders, N nodes, B nodes of a batch, R generated rows, E rows exchanged, Z latent, F features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, client_mean, segments_of
from suture.core.message import Kind, Message, Model, Nothing, Rows
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, is_tiled, map_tree, mean, split, tile
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch, View
from suture.graph.impair import Impaired, impair
from suture.graph.matching import dense_rows, nearest_of_listed, shares_of_each_client
from suture.method import Clients, Cohort, Phase, Task, step
from suture.methods.averaging import SERVER, Kept, Server
from suture.methods.fedsage import Sampled
from suture.methods.fedsage_plus.mend import (
    Patch,
    averaged,
    kept_entries,
    largest_entries,
    mended,
    no_patch,
    usual_neighbour,
)
from suture.methods.fedsage_plus.neighgen import FGEN, NeighGen
from suture.nn.sampler import sample_batch
from suture.settings import TrainingSettings
from suture.training.local import Moments, fresh_moments, optimise, sum_terms

# Generated features held at a time while mending: 64 MB.
FEATURES_AT_A_TIME = 1 << 24
# A client answers only offers whose match amounts to at least so many different nodes of its own.
DISTINCT = 3
# Graphs impaired anew to learn how far generated rows can be trusted; a small client hides a few nodes in each.
CALIBRATIONS = 4


@dataclass(frozen=True)
class Mending(Kept):
    """What a client keeps: also its generator with moments, a gradient waiting for its foreign part, its new neighbours."""

    generator: Tree
    generator_moments: Moments
    waiting: Tree
    source: Rows
    column: Rows
    value: Rows


@dataclass(frozen=True)
class Offer(Message):
    """Line 1, client to server: fGen, rows z + noise [K, E, Z], what each row weighs in the loss [K, E] (0: padding)."""

    fgen: Annotated[Tree, Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Offers(Message):
    """Line 2, server to each client: fGen of M clients [K, M, ...], rows [K, M, E, Z], weights [K, M, E] (0 for its own)."""

    fgen: Annotated[Tree, Kind.WEIGHTS]
    rows: Annotated[Tensor, Kind.EMBEDDINGS]
    weight: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Gradients(Message):
    """Line 2, client to server: its gradient for each of M clients' fGen [K, M, ...] (zero for its own)."""

    fgen: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class ForeignGradient(Message):
    """Line 3, server to client: the sum of the others' gradients of its fGen [K, ...]."""

    fgen: Annotated[Tree, Kind.GRADIENTS]


@dataclass(frozen=True)
class GeneratorUp(Message):
    """Client to server: its generator after a step of its own (empty if everybody keeps its own), and its loss [K]."""

    generator: Annotated[Tree, Kind.WEIGHTS]
    loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class MendingServer(Server):
    """The global classifier, and the generator of appendix D.2 [1, ...] (empty if everybody keeps its own)."""

    generator: Tree


@dataclass(frozen=True)
class GeneratorBatch:
    """Nodes of one step, client after client, and the rows generated for them.

    Shapes: nodes [B] positions in the impaired graph; row [R] the place in `nodes` of the node a row belongs to.
    """

    nodes: Tensor
    segments: Segments
    row: Tensor
    row_segments: Segments

    @property
    def sizes(self) -> Tensor:
        """|V_i^t|, [K]."""
        return self.segments.ptr.diff()


@dataclass(frozen=True)
class Draft:
    """What a generator makes for B nodes: row [R] the place in `nodes` of the node a row of `rows_RF` is for.

    known_BF is what is known of neighbours of each node: the mean of those it has, or of the client if it has none.
    """

    nodes: Tensor
    row: Tensor
    rows_RF: Tensor
    known_BF: Tensor


@dataclass(frozen=True)
class FedSagePlus(Sampled[MendingServer, Mending]):
    """FedSage on subgraphs mended with generated neighbours."""

    name: ClassVar[str] = "fedsage_plus"
    summary: ClassVar[str] = "FedSage on subgraphs mended by a generator of missing neighbours"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"

    hidden_share: float = 0.05
    """h, the share of nodes a client hides to train its generator."""
    generator_epochs: int = 200
    """e_g, optimiser steps of the generator."""
    generator_lr: float = 0.003
    """Learning rate of the generator's Adam."""
    latent: int = 64
    """Width of the generator's embeddings, d_z."""
    generator_batch: int = 128
    """|V_i^t|, nodes of a step of the generator; 0 takes all that remained, without sampling neighbours."""
    rehide: int = 10
    """After so many steps of the generator other nodes are hidden; 0: never."""
    calibrated: bool = True
    """Draw generated rows towards what is known, as far as other impaired graphs say."""
    unbiased: bool = True
    """Round counts up or down at random, so that nothing is lost on average; otherwise to the nearest, as printed."""
    softness: float = 0.3
    """How softly rows are matched with other clients' nodes; 0: with the nearest, as printed."""
    width: int = 8
    """Width of fGen's hidden layer; other clients answer only offers of at least two rows more than this."""
    alpha: float = 1.0
    """Weight of the other clients' gradients; 0 exchanges nothing while the generator trains."""
    lambda_d: float = 1.0
    """Weight of the count loss L^d."""
    lambda_f: float = 1.0
    """Weight of the feature loss L^f."""
    most: int = 5
    """Most neighbours generated for a node."""
    exchanged: int = 32
    """Most rows a client sends to the others in one iteration."""
    entries: int = 512
    """Entries kept of a generated feature row, where features are sparse."""
    shared_generator: bool = False
    """One generator for everybody by FedAvg (appendix D.2) instead of one for each client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.hidden_share < 1:
            raise ConfigError(f"{self.name}.hidden_share must lie between 0 and 1, got {self.hidden_share}")
        for field in ("generator_epochs", "latent", "width", "most", "exchanged", "entries"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{self.name}.{field} must be >= 1, got {getattr(self, field)}")
        if self.exchanged < self.width + 2 and self.alpha > 0 and not self.shared_generator:
            raise ConfigError(
                f"{self.name}.exchanged must be at least width + 2 = {self.width + 2}, got {self.exchanged}: "
                "nobody answers fewer rows, because their features could be solved for"
            )
        for field in ("alpha", "lambda_d", "lambda_f", "generator_batch", "rehide", "softness"):
            if getattr(self, field) < 0:
                raise ConfigError(f"{self.name}.{field} must be >= 0, got {getattr(self, field)}")
        if self.generator_lr <= 0:
            raise ConfigError(f"{self.name}.generator_lr must be > 0, got {self.generator_lr}")

    def neighgen(self, task: Task) -> NeighGen:
        """The generator."""
        return NeighGen(task.features, self.latent, self.width)

    @property
    def generator_training(self) -> TrainingSettings:
        """How the generator's optimiser is set."""
        return TrainingSettings(optimizer="adam", lr=self.generator_lr)

    def init_server(self, task: Task) -> MendingServer:
        """The classifier, and the shared generator if there is one."""
        made = self.fresh_generator(task) if self.shared_generator else {}
        return MendingServer(SERVER, self.initial_shared(task), made)

    def fresh_generator(self, task: Task) -> Tree:
        """Weights [1, ...] everybody can compute from the run's public seed."""
        return self.neighgen(task).init(generator(task.seed, "initial generator"))

    def init_clients(self, clients: Clients[Nothing]) -> Mending:
        """The classifier, a fresh generator that is the same for all, and no generated neighbour yet."""
        kept, device = self.fresh(clients), clients.graph.device
        fresh = tile(self.fresh_generator(clients.task), len(clients.ids))
        made = {name: value.to(device) for name, value in fresh.items()}
        patch = no_patch(clients.graph, self.entries)
        return Mending(
            clients.ids,
            # Laid out as a checkpoint restores them, because a product of tiled weights rounds differently.
            map_tree(torch.Tensor.contiguous, kept.params),
            kept.moments,
            generator=made,
            generator_moments=fresh_moments(made, self.generator_training),
            waiting={},
            source=patch.source,
            column=patch.column,
            value=patch.value,
        )

    def plan(self) -> tuple[Phase[MendingServer], ...]:
        """Train the generators, mend, then FedSage."""
        generators = Phase("generator", self.generator_round, self.generator_epochs)
        return (generators, Phase("mend", self.mend_round), *super().plan())

    def generator_round(self, server: MendingServer, cohort: Cohort) -> MendingServer:
        """Lines 1-4."""
        if self.shared_generator or self.alpha == 0:
            up = cohort.ask(self.train_alone, Model(cohort.ids, tile(server.generator, len(cohort.ids))))
            cohort.report(loss=float(up.loss.mean()))
            return replace(server, generator=mean(up.generator, torch.ones(len(up.ids))))
        offer = cohort.ask(self.offer, Nothing(cohort.ids))
        cohort.report(loss=float(offer.loss.mean()))
        gradients = cohort.ask(self.feed_forward, route(offer))
        foreign = map_tree(lambda value: value.sum(0), gradients.fgen)
        cohort.ask(self.update_generator, ForeignGradient(cohort.ids, foreign))
        return server

    @step
    def offer(self, clients: Clients[Mending], message: Nothing) -> tuple[Mending, Offer]:
        """Line 1."""
        waiting, rows_RZ, batch, loss = self.own_gradient(clients, clients.state.generator)
        fgen, _ = split(clients.state.generator, FGEN)
        rows, weight = self._exchanged(rows_RZ, batch)
        return replace(clients.state, waiting=waiting), Offer(clients.ids, fgen, rows, weight, loss)

    @step
    def feed_forward(self, clients: Clients[Mending], offers: Offers) -> tuple[Mending, Gradients]:
        """Line 2."""
        if not all(is_tiled(value) for value in (offers.rows, *offers.fgen.values())):
            # Everybody got the same offers, but as copies of its own: one client at a time.
            alone = [
                Clients(clients.graph.select([name]), clients.state.select([name]), clients.rng, clients.task)
                for name in clients.ids
            ]
            parts = [self.feed_forward(one, offers.select(one.ids))[1] for one in alone]
            return clients.state, Gradients.concat(parts)
        fgen = map_tree(lambda value: value[0], offers.fgen)
        network = self.neighgen(clients.task)
        gradients = foreign_gradients(network, fgen, offers.rows[0], offers.weight, clients.graph.x, self.softness)
        return clients.state, Gradients(clients.ids, gradients)

    @step
    def update_generator(self, clients: Clients[Mending], foreign: ForeignGradient) -> tuple[Mending, Nothing]:
        """Line 4."""
        force = self.lambda_f * self.alpha
        grads = {
            name: own + force * foreign.fgen[name] if name in foreign.fgen else own
            for name, own in clients.state.waiting.items()
        }
        return self._stepped(clients.state, clients.state.generator, grads), Nothing(clients.ids)

    @step
    def train_alone(self, clients: Clients[Mending], down: Model) -> tuple[Mending, GeneratorUp]:
        """One step by equation (4) only, from the generator received, or from its own if there is none."""
        start = clients.state.generator | down.params
        grads, _, _, loss = self.own_gradient(clients, start)
        state = self._stepped(clients.state, start, grads)
        sent = {name: state.generator[name] for name in down.params}
        return state, GeneratorUp(clients.ids, sent, loss)

    def _stepped(self, state: Mending, start: Tree, grads: Tree) -> Mending:
        """The state after one optimiser step of the generator."""
        params = map_tree(lambda value: value.clone(memory_format=torch.contiguous_format), start)
        moments = map_tree(torch.clone, state.generator_moments)
        everybody = torch.ones(len(state.ids), dtype=torch.bool, device=moments["step"].device)
        # Down to nothing: what Adam leaves in thousands of rare words would outweigh what it learnt of them.
        lr = self.generator_lr * (1 - min(steps_done(state), self.generator_epochs - 1) / self.generator_epochs)
        optimise(params, grads, moments, everybody, replace(self.generator_training, lr=lr))
        return replace(state, generator=params, generator_moments=moments, waiting={})

    def own_gradient(self, clients: Clients[Mending], start: Tree) -> tuple[Tree, Tensor, GeneratorBatch, Tensor]:
        """(gradient of equation 4 at `start`, embeddings with noise [R, Z], their batch, loss [K])."""
        params = {name: value.detach().requires_grad_() for name, value in start.items()}
        batch = self._generator_batch(self.impaired(clients), clients.rng)
        terms, rows_RZ = self.generator_terms(params, batch, clients)
        loss = sum_terms(terms)
        grads = torch.autograd.grad(loss.sum(), list(params.values()), materialize_grads=True)
        return dict(zip(params, grads, strict=True)), rows_RZ.detach(), batch, loss.detach()

    def generator_terms(
        self, params: Tree, batch: GeneratorBatch, clients: Clients[Mending]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The terms of equation (4) [K], and the embeddings with noise [R, Z] that were turned into neighbours."""
        network, rng, hurt, x = self.neighgen(clients.task), clients.rng, self.impaired(clients), clients.graph.x
        sampled = None
        if self.generator_batch:
            fanouts = (self.fanout,) * network.encoder.settings.layers
            sampled = sample_batch(hurt.graph, batch.nodes, fanouts, rng.fork("sample"), replace=self.training.replace)
        z_BZ = network.encode(params, hurt.graph, View(hurt.graph, batch.nodes), sampled)
        truth = hurt.count[batch.nodes].to(z_BZ.dtype)
        degree = hurt.graph.degree[batch.nodes]
        off = F.smooth_l1_loss(network.missing(params, z_BZ, degree, batch.segments), truth, reduction="none")
        count_loss = client_mean(off, batch.segments.client, len(clients.ids))
        rows_RZ = z_BZ[batch.row] + rng.fork("noise").normal(batch.row_segments.ptr, self.latent)
        feature_loss = z_BZ.new_zeros(len(clients.ids))
        if batch.row.numel():
            made_RF = network.neighbours(params, rows_RZ, batch.row_segments)
            nearest = nearest_of_listed(made_RF.detach(), hurt.hidden.take_rows(batch.nodes[batch.row]), x)
            distance = (made_RF - dense_rows(x, nearest)).square().sum(1)
            feature_loss = feature_loss.index_add(0, batch.row_segments.client, distance) / batch.sizes
        return {"count": self.lambda_d * count_loss, "features": self.lambda_f * feature_loss}, rows_RZ

    def impaired(self, clients: Clients[Mending]) -> Impaired:
        """Line 0; other nodes are hidden every `rehide` steps, and to calibrate."""
        graph, seed = clients.graph, clients.task.seed
        drawn = steps_done(clients.state) // self.rehide if self.rehide else 0
        streams = Streams.of(seed, graph.ids, "impair", drawn, device=graph.device)
        return graph.once("impaired", (seed, drawn, self.hidden_share), lambda: impair(graph, self.hidden_share, streams))

    def _generator_batch(self, hurt: Impaired, rng: Streams) -> GeneratorBatch:
        """V_i^t: `generator_batch` random nodes that remained, or all of them."""
        everybody = hurt.graph.segments
        nodes = rng.fork("nodes").shuffle(everybody.ptr)
        if self.generator_batch:
            place = torch.arange(nodes.numel(), device=nodes.device) - everybody.ptr[:-1][everybody.client]
            nodes = nodes[place < self.generator_batch]
        owner = everybody.client[nodes]
        draws = hurt.count[nodes].clamp_max(self.most)
        row = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), draws)
        clients = everybody.clients
        return GeneratorBatch(nodes, segments_of(owner, clients), row, segments_of(owner[row], clients))

    def _exchanged(self, rows_RZ: Tensor, batch: GeneratorBatch) -> tuple[Tensor, Tensor]:
        """The first `exchanged` rows of every client (their order is random), padded, and what each weighs."""
        made, owner = batch.row_segments.ptr.diff(), batch.row_segments.client
        place = torch.arange(owner.numel(), device=owner.device) - batch.row_segments.ptr[:-1][owner]
        sent = place < self.exchanged
        rows = rows_RZ.new_zeros(made.numel(), self.exchanged, self.latent)
        rows[owner[sent], place[sent]] = rows_RZ[sent]
        weight = rows_RZ.new_zeros(made.numel(), self.exchanged)
        # 1 / |V_i^t|, scaled up from the rows that travel to all rows.
        each = made / (made.clamp(1, self.exchanged) * batch.sizes.clamp_min(1))
        weight[owner[sent], place[sent]] = each[owner[sent]].to(weight.dtype)
        return rows, weight

    def mend_round(self, server: MendingServer, cohort: Cohort) -> MendingServer:
        """Line 5."""
        cohort.ask(self.mend, Model(cohort.ids, tile(server.generator, len(cohort.ids))))
        return server

    @step
    def mend(self, clients: Clients[Mending], down: Model) -> tuple[Mending, Nothing]:
        """Line 5: the generator is done, so its moments are dropped."""
        params, graph = clients.state.generator | down.params, clients.graph
        with torch.no_grad():
            patch = self.generated(params, clients)
        mended_state = replace(
            clients.state,
            generator=params,
            generator_moments={},
            waiting={},
            source=patch.source,
            column=patch.column,
            value=patch.value,
        )
        return mended_state, Nothing(graph.ids)

    def generated(self, params: Tree, clients: Clients[Mending]) -> Patch:
        """New neighbours for the nodes of the whole (not the impaired) graph."""
        graph, entries = clients.graph, kept_entries(clients.graph.x, self.entries)
        trust = self.trust(params, clients) if self.calibrated else torch.ones(len(clients.ids), device=graph.device)
        columns = [torch.zeros(0, entries, dtype=torch.int32, device=graph.device)]
        values = [torch.zeros(0, entries, device=graph.device)]
        sources = [torch.zeros(0, dtype=torch.int64, device=graph.device)]
        for k, made in self.drafts(params, graph, clients):
            known_RF = made.known_BF[made.row]
            low, high = value_range(graph.x, k)
            column, value = largest_entries(known_RF.lerp_(made.rows_RF, float(trust[k])).clamp_(low, high), entries)
            columns.append(column)
            values.append(value)
            sources.append(made.nodes[made.row])
        source = torch.cat(sources)
        segments = segments_of(graph.segments.client[source], len(graph.ids))
        place = (source - graph.segments.ptr[:-1][segments.client]).int()
        rows = (place, torch.cat(columns), torch.cat(values))
        return Patch(graph.ids, *(Rows(value, segments.ptr) for value in rows))

    def drafts(self, params: Tree, graph: GraphBatch, clients: Clients[Mending]) -> Iterator[tuple[int, Draft]]:
        """(client, what its generator makes for some nodes of `graph`), until all nodes had their turn."""
        network = self.neighgen(clients.task)
        z_NZ = network.encode(params, graph)
        count_N = network.missing(params, z_NZ, graph.degree, graph.segments)
        if self.unbiased:
            up_N = clients.rng.fork("count").uniform(graph.segments.ptr).squeeze(1)
            # A node without neighbours would consist of what is generated alone: only if it is likelier than not.
            count_N = torch.where(graph.degree > 0, (count_N + up_N).floor(), count_N)
        draws_N = count_N.round().clamp(0, self.most).long()
        nodes_V = torch.nonzero(draws_N).squeeze(1)
        segments = segments_of(graph.segments.client[nodes_V], len(graph.ids))
        row_R = torch.repeat_interleave(torch.arange(nodes_V.numel(), device=graph.device), draws_N[nodes_V])
        rows = segments_of(segments.client[row_R], len(graph.ids))
        noisy_RZ = z_NZ[nodes_V[row_R]] + clients.rng.fork("noise").normal(rows.ptr, self.latent)
        usual_KF, at_a_time = usual_neighbour(graph), max(1, FEATURES_AT_A_TIME // (graph.x.width * self.most))
        for k, (start, end) in enumerate(itertools.pairwise(segments.bounds)):
            own = {name: value[k : k + 1] for name, value in params.items()}
            for first in range(start, end, at_a_time):
                nodes_B = nodes_V[first : min(first + at_a_time, end)]
                here = (row_R >= first) & (row_R < first + nodes_B.numel())
                noisy = noisy_RZ[here]
                made_RF = network.neighbours(own, noisy, Segments(torch.tensor([0, noisy.shape[0]], device=graph.device)))
                operator = graph.mean_operator.take_rows(nodes_B)
                known_BF = averaged(operator, graph.x)
                known_BF[operator.rowptr.diff() == 0] = usual_KF[k]
                yield k, Draft(nodes_B, row_R[here] - first, made_RF, known_BF)

    def trust(self, params: Tree, clients: Clients[Mending]) -> Tensor:
        """s, how far generated rows are to be followed [K]: least squares of the changes that would be right on those made.

        On graphs that were impaired anew, both are changes of the mean features of a node's neighbours.
        """
        agreement = torch.zeros(len(clients.ids), device=clients.graph.device)
        length = torch.zeros_like(agreement)
        for hurt, k, made in self._trials(params, clients):
            kept = hurt.graph.mean_operator.take_rows(made.nodes).rowptr.diff()
            hidden = hurt.hidden.take_rows(made.nodes)
            lost = hidden.rowptr.diff()
            right_BF = averaged(hidden, clients.graph.x) - lost.unsqueeze(1) * made.known_BF
            right_BF /= (kept + lost).clamp_min(1).unsqueeze(1)
            drawn = torch.bincount(made.row, minlength=made.nodes.numel())
            change_BF = torch.zeros_like(right_BF).index_add_(0, made.row, made.rows_RF - made.known_BF[made.row])
            change_BF /= (kept + drawn).unsqueeze(1)
            agreement[k] += (right_BF * change_BF).sum()
            length[k] += change_BF.square().sum()
        return (agreement / length.clamp_min(1e-12)).clamp(0, 1)

    def _trials(self, params: Tree, clients: Clients[Mending]) -> Iterator[tuple[Impaired, int, Draft]]:
        """(impaired graph, client, what its generator makes for some of its nodes), for `CALIBRATIONS` impaired graphs."""
        for draw in range(CALIBRATIONS):
            streams = Streams.of(clients.task.seed, clients.ids, "calibrate", draw, device=clients.graph.device)
            hurt = impair(clients.graph, self.hidden_share, streams)
            for k, made in self.drafts(params, hurt.graph, clients):
                yield hurt, k, made

    def seen(self, clients: Clients[Mending], training: bool) -> GraphBatch:
        """Line 6: the graphs with their generated neighbours, which have no role, so that they are not tested."""
        graph, state = clients.graph, clients.state
        patch = Patch(clients.ids, state.source, state.column, state.value)
        return graph.once("mended", patch.value.values, lambda: mended(graph, patch))


def steps_done(state: Mending) -> int:
    """Steps that the generators have taken; all clients take them together."""
    return int(state.generator_moments["step"].max())


def route(offer: Offer) -> Offers:
    """Everybody's offer for everybody, without copying; nobody is asked about its own."""
    clients = len(offer.ids)
    everybody = tile({"rows": offer.rows.unsqueeze(0)} | map_tree(lambda value: value.unsqueeze(0), offer.fgen), clients)
    rows = everybody.pop("rows")
    others = 1 - torch.eye(clients, device=offer.weight.device)
    return Offers(offer.ids, everybody, rows, others.unsqueeze(2) * offer.weight)


def foreign_gradients(
    network: NeighGen, fgen: Tree, rows_MEZ: Tensor, weight_KME: Tensor, x: Features, softness: float
) -> Tree:
    """The gradient of each client's L^f_i,j with respect to each sender's fGen, [K, M, ...].

    All senders' rows are generated once; receivers take turns, because the K x M x E x F differences of all of them would
    not fit.
    """
    senders, each, latent = rows_MEZ.shape
    segments = Segments(torch.arange(senders + 1, device=rows_MEZ.device) * each)
    params = {name: value.detach().requires_grad_() for name, value in fgen.items()}
    made_RF = network.neighbours(params, rows_MEZ.reshape(-1, latent), segments)
    out = {name: value.new_empty(weight_KME.shape[0], *value.shape) for name, value in fgen.items()}
    for k, share_BR in enumerate(shares_of_each_client(made_RF.detach(), x, softness)):
        answered_M = safe_to_answer(share_BR.view(-1, senders, each), weight_KME[k], network.width)
        weight_R = (weight_KME[k] * answered_M.unsqueeze(1)).reshape(-1, 1)
        # d/dx~ of weight x (soft) minimum of |x~ - x_u|^2
        slope = (made_RF.detach() - x.mixed(k, share_BR)).mul_(2 * weight_R)
        grads = torch.autograd.grad(made_RF, list(params.values()), slope, retain_graph=True)
        for name, grad in zip(params, grads, strict=True):
            out[name][k] = grad
    return out


def safe_to_answer(share_BME: Tensor, weight_ME: Tensor, width: int) -> Tensor:
    """Whether a gradient would be a sum over enough rows and enough nodes, 1 or 0 [M]; see Privacy above.

    Nodes count by what they contribute: n nodes with equal shares of the answer are n nodes, 1 / the sum of squared shares.
    """
    real_ME = (weight_ME > 0).to(share_BME.dtype)
    rows_M = real_ME.sum(1)
    share_BM = torch.einsum("bme,me->bm", share_BME, real_ME) / rows_M.clamp_min(1)
    nodes_M = 1 / share_BM.square().sum(0).clamp_min(1e-12)
    return ((rows_M > width + 1) & (nodes_M >= DISTINCT)).to(weight_ME.dtype)


def value_range(x: Features, k: int) -> tuple[float, float]:
    """Smallest and largest feature value of one client."""
    start, end = x.segments.bounds[k : k + 2]
    if isinstance(x.matrix, SparseMatrix):
        first, last = int(x.matrix.rowptr[start]), int(x.matrix.rowptr[end])
        values = torch.cat([x.matrix.val[first:last], x.matrix.val.new_zeros(1)])
    else:
        values = x.matrix[start:end].flatten()
    return float(values.min()), float(values.max())
