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
- Everybody answering everybody costs K^2 answers an iteration. With more than `partners` + 1 clients these are divided into
  random groups, other ones in every iteration; line 2 goes on inside a group, and line 3 scales its sum up to all others.
- Algorithm 1 optimises equation (6) and trains the classifier afterwards; so do we. `joint` adds L^c of equation (5), by
  which section 4.2 defines LocSage+, to (4) and (6); its classifier stays at the client and is thrown away (joint.py).
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
for that reason, and its activation is tanh, since a ReLU unit that is active for a single row would reveal that row. That
looks at one iteration. All of them together span a client's features (`answers="exact"`), so that by default rows are
matched with means of groups of nodes, and the server needs only the sum of all clients' answers (answering.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from suture.core.message import Model, Nothing, Record
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, is_tiled, map_tree, mean, prefixed, split, tile
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.impair import Impaired, impair
from suture.method import Clients, Cohort, Mends, Phase, Supposed, Task, step, step_if
from suture.methods.averaging import SERVER
from suture.methods.fedsage import Sampled
from suture.methods.fedsage_plus.answering import Answering, Form
from suture.methods.fedsage_plus.exchange import MOST_BLOCKS, blocks_of, offered_rows, route, share, summed
from suture.methods.fedsage_plus.generator import OwnGradient, OwnLoss
from suture.methods.fedsage_plus.joint import CLASSIFIER
from suture.methods.fedsage_plus.kept import Generators, Mending, MendingServer
from suture.methods.fedsage_plus.mending import Mender
from suture.methods.fedsage_plus.messages import (
    Answers,
    ForeignGradient,
    GeneratorUp,
    Gradients,
    Offer,
    Offers,
    SharedOffers,
)
from suture.methods.fedsage_plus.neighgen import FGEN, NeighGen
from suture.methods.fedsage_plus.patch import Patch, no_patch, with_generated_nodes
from suture.nn.backbones import Sage
from suture.settings import Count, NonNegative, OpenShare, Positive, Search, TrainingSettings, Whole
from suture.training.optimisers import fresh_moments, stepped


def exchanging(method: FedSagePlus) -> bool:
    """Whether generators learn from other clients' nodes."""
    return method.alpha > 0 and not method.shared_generator


@dataclass(frozen=True)
class FedSagePlus(Sampled[MendingServer, Mending]):
    """FedSage on subgraphs mended with generated neighbours."""

    name: ClassVar[str] = "fedsage_plus"
    summary: ClassVar[str] = "FedSage on subgraphs mended by a generator of missing neighbours"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    mends: ClassVar[Mends] = "any"
    memory: ClassVar[type[Record]] = Generators
    sums: ClassVar[tuple[str, ...]] = ("local_update", "answer")

    hidden_share: OpenShare = 0.05
    """h, the share of nodes a client hides to train its generator."""
    generator_epochs: Count = 200
    """e_g, optimiser steps of the generator."""
    generator_lr: Annotated[Positive, Search(0.001, 0.01)] = 0.003
    """Learning rate of the generator's Adam."""
    latent: Count = 64
    """Width of the generator's embeddings, d_z."""
    generator_batch: Whole = 128
    """|V_i^t|, nodes of a step of the generator; 0 takes all that remained, without sampling neighbours."""
    rehide: Whole = 10
    """After so many steps of the generator other nodes are hidden; 0: never."""
    calibrated: bool = True
    """Draw generated rows towards what is known, as far as other impaired graphs say."""
    unbiased: bool = True
    """Round counts up or down at random, so that nothing is lost on average; otherwise to the nearest, as printed."""
    softness: NonNegative = 0.3
    """How softly rows are matched with other clients' nodes; 0: with the nearest, as printed."""
    answers: Form = "means"
    """What others' generators are answered by: means of groups of nodes; single nodes, coarsely and seldom; or exact, as
    published, from which whole feature rows can be reconstructed."""
    smallest: Count = 20
    """answers = means: fewest nodes of a group; a client with fewer answers nobody."""
    width: Count = 8
    """Width of fGen's hidden layer; other clients answer only offers of at least two rows more than this."""
    alpha: NonNegative = 1.0
    """Weight of the other clients' gradients; 0 exchanges nothing while the generator trains."""
    lambda_d: Annotated[NonNegative, Search(0.1, 10.0)] = 1.0
    """Weight of the count loss L^d."""
    lambda_f: Annotated[NonNegative, Search(0.1, 10.0)] = 1.0
    """Weight of the feature loss L^f."""
    joint: bool = False
    """Equation (5): a classifier of the client's own, which is not sent, is trained with the generator, on what it mends."""
    lambda_c: Annotated[NonNegative, Search(0.1, 10.0)] = 1.0
    """joint: weight of that classifier's loss L^c."""
    most: Count = 5
    """Most neighbours generated for a node."""
    exchanged: Count = 32
    """Most rows a client sends to the others in one iteration."""
    partners: Whole = 32
    """Others that answer a client in one iteration: of more clients, random groups answer each other, and the sum over all
    is estimated from theirs; 0: all others, as printed."""
    entries: Count = 512
    """Entries kept of a generated feature row, where features are sparse."""
    shared_generator: bool = False
    """One generator for everybody by FedAvg (appendix D.2) instead of one for each client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint and self.shared_generator:
            raise ConfigError(f"{self.name}.joint keeps its classifier at the client: use it without shared_generator")
        if self.exchanged < self.width + 2 and exchanging(self):
            raise ConfigError(
                f"{self.name}.exchanged must be at least width + 2 = {self.width + 2}, got {self.exchanged}: "
                "nobody answers fewer rows, because their features could be solved for"
            )

    def neighgen(self, task: Task) -> NeighGen:
        """The generator."""
        return NeighGen(task.features, self.latent, self.width)

    def own_loss(self, task: Task) -> OwnLoss:
        """Equation (4)."""
        return OwnLoss(
            self.neighgen(task),
            nodes=self.generator_batch,
            fanout=self.fanout,
            replace=self.training.replace,
            most=self.most,
            lambda_d=self.lambda_d,
            lambda_f=self.lambda_f,
            lambda_c=self.lambda_c,
            classifier=self.own_classifier(task) if self.joint else None,
        )

    def own_classifier(self, task: Task) -> Sage:
        """F of equation (5)."""
        return Sage(replace(self.model, kind="sage", dropout=0.0), task.features, task.classes)

    @property
    def generator_training(self) -> TrainingSettings:
        """How the generator's optimiser is set."""
        return TrainingSettings(optimizer="adam", lr=self.generator_lr)

    def beyond_dp_sgd(self) -> str:
        """Line 1 reads the labels of training nodes, and what it learns is trained on, and sent or not."""
        return "learns its generator from training nodes, without noise, so DP-SGD hides nothing"

    def init_server(self, task: Task) -> MendingServer:
        """The classifier, and the shared generator if there is one."""
        made = self.fresh_generator(task) if self.shared_generator else {}
        return MendingServer(SERVER, self.initial_shared(task), made)

    def fresh_generator(self, task: Task) -> Tree:
        """Weights [1, ...] everybody can compute from the run's public seed."""
        made = self.neighgen(task).init(generator(task.seed, "initial generator"))
        if not self.joint:
            return made
        return made | prefixed(CLASSIFIER, self.own_classifier(task).init(generator(task.seed, "initial joint classifier")))

    def init_clients(self, clients: Clients[Nothing]) -> Mending:
        """The classifier, a fresh generator that is the same for all, and no generated neighbour yet."""
        kept = self.fresh(clients)
        if self.joint and (clients.graph.pairs is not None or clients.task.module is not None):
            raise ConfigError(f"{self.name}.joint trains a GraphSAGE that classifies nodes; leave it out here")
        made = tile(self.fresh_generator(clients.task), len(clients.ids), clients.graph.device)
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
            drawn=clients.rng.keys,
            told=torch.zeros(len(clients.ids), dtype=torch.int64, device=clients.graph.device),
        )

    def plan(self) -> tuple[Phase[MendingServer], ...]:
        """Train the generators, mend, then FedSage."""
        generators = Phase("generator", self.generator_round, self.generator_epochs)
        return (generators, Phase("mend", self.mend_round), *super().plan())

    def generator_round(self, server: MendingServer, cohort: Cohort) -> MendingServer:
        """Lines 1-4."""
        if not exchanging(self):
            up = cohort.ask(self.train_alone, Model(cohort.ids, tile(server.generator, len(cohort.ids))))
            cohort.report(loss=float(up.loss.mean()))
            return replace(server, generator=mean(up.generator, torch.ones_like(up.loss)))
        offer = cohort.ask(self.offer, Nothing(cohort.ids))
        cohort.report(loss=float(offer.loss.mean()))
        cohort.ask(self.update_generator, self.foreign(offer, cohort))
        return server

    def foreign(self, offer: Offer, cohort: Cohort) -> ForeignGradient:
        """Lines 2 and 3: for each client the sum over all others, estimated from those in its group."""
        offering, parts = frozenset(offer.ids), []
        for group in cohort.groups(self.partners + 1 if self.partners else len(cohort.ids)):
            among = offer.select([name for name in group.ids if name in offering])
            scale = (len(offering) - 1) / max(1, len(among.ids) - 1)
            for block in blocks_of(among):
                if self.answers == "exact":
                    given = group.ask(self.feed_forward, route(block, among.ids)).fgen
                else:
                    given = group.ask(self.answer, share(block, among.ids)).fgen
                parts.append(ForeignGradient(block.ids, summed(given, len(among.ids), scale)))
        return ForeignGradient.concat(parts).select(offer.ids)

    @property
    def asks_per_iteration(self) -> int:
        """Offers of very many clients are answered a part at a time."""
        return 1 if self.partners else MOST_BLOCKS

    @step_if(exchanging)
    def offer(self, clients: Clients[Mending], message: Nothing) -> tuple[Mending, Offer]:
        """Line 1."""
        own = self.own_gradient(clients, clients.state.generator)
        fgen, _ = split(clients.state.generator, FGEN)
        rows, weight = offered_rows(own.rows_RZ, own.batch, self.exchanged)
        return replace(clients.state, waiting=own.grads), Offer(clients.ids, fgen, rows, weight, own.loss)

    def own_gradient(self, clients: Clients[Mending], start: Tree) -> OwnGradient:
        """Line 1: of equation (4)."""
        return self.own_loss(clients.task).gradient(start, self.impaired(clients), clients.graph.x, clients.rng)

    def impaired(self, clients: Clients[Mending]) -> Impaired:
        """Line 0; other nodes are hidden every `rehide` steps, and to calibrate."""
        graph, seed = clients.graph, clients.task.seed
        drawn = clients.state.generator_steps // self.rehide if self.rehide else 0
        streams = Streams.of(seed, graph.ids, "impair", drawn, device=graph.device)
        return graph.once("impaired", (seed, drawn, self.hidden_share), lambda: impair(graph, self.hidden_share, streams))

    @step_if(lambda self: exchanging(self) and self.answers == "exact")
    def feed_forward(self, clients: Clients[Mending], offers: Offers) -> tuple[Mending, Gradients]:
        """Line 2 as published: the server sees who answers whom with what."""
        state, given = self.answered(clients, offers)
        return state, Gradients(clients.ids, given)

    @step_if(lambda self: exchanging(self) and self.answers != "exact")
    def answer(self, clients: Clients[Mending], offers: SharedOffers) -> tuple[Mending, Answers]:
        """Line 2 where the server needs the sum over the clients that answer, and nothing else."""
        state, given = self.answered(clients, offers.of_others())
        return state, Answers(clients.ids, given, torch.ones(len(clients.ids), device=clients.graph.device))

    def answered(self, clients: Clients[Mending], offers: Offers) -> tuple[Mending, Tree]:
        """Line 2: what clients keep, and their gradients [K, M, ...]."""
        if not all(is_tiled(value) for value in (offers.rows, *offers.fgen.values())):
            # Everybody got the same offers, but as copies of its own: one client at a time.
            alone = [
                replace(clients, graph=clients.graph.select([name]), state=clients.state.select([name]))
                for name in clients.ids
            ]
            states, parts = zip(*(self.answered(one, offers.select(one.ids)) for one in alone), strict=True)
            return Mending.concat(states), {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        answering = Answering(self.answers, self.smallest, self.softness)
        network, state = self.neighgen(clients.task), clients.state
        given, told = answering.answer(network, offers, clients.graph, state.told, clients.task.seed)
        return replace(state, told=told), given

    @step_if(exchanging)
    def update_generator(self, clients: Clients[Mending], foreign: ForeignGradient) -> tuple[Mending, Nothing]:
        """Line 4."""
        force = self.lambda_f * self.alpha
        grads = {
            name: own + force * foreign.fgen[name] if name in foreign.fgen else own
            for name, own in clients.state.waiting.items()
        }
        return self.generator_step(clients.state, clients.state.generator, grads), Nothing(clients.ids)

    @step_if(lambda self: not exchanging(self))
    def train_alone(self, clients: Clients[Mending], down: Model) -> tuple[Mending, GeneratorUp]:
        """One step by equation (4) only, from the generator received, or from its own if there is none."""
        start = clients.state.generator | down.params
        own = self.own_gradient(clients, start)
        state = self.generator_step(clients.state, start, own.grads)
        sent = {name: state.generator[name] for name in down.params}
        return state, GeneratorUp(clients.ids, sent, own.loss)

    def generator_step(self, state: Mending, start: Tree, grads: Tree) -> Mending:
        """The state after one optimiser step of the generator."""
        # Down to nothing: what Adam leaves in thousands of rare words would outweigh what it learnt of them.
        lr = self.generator_lr * (1 - min(state.generator_steps, self.generator_epochs - 1) / self.generator_epochs)
        made, moments = stepped(start, grads, state.generator_moments, replace(self.generator_training, lr=lr))
        return replace(state, generator=made, generator_moments=moments, waiting={})

    def mend_round(self, server: MendingServer, cohort: Cohort) -> MendingServer:
        """Line 5."""
        cohort.ask(self.mend, Model(cohort.ids, tile(server.generator, len(cohort.ids))))
        return server

    @step
    def mend(self, clients: Clients[Mending], down: Model) -> tuple[Mending, Nothing]:
        """Line 5: the generator is done, so its moments are dropped."""
        params = clients.state.generator | down.params
        params = {name: value for name, value in params.items() if not name.startswith(CLASSIFIER)}
        patch = self.patch(clients, params)
        done = replace(clients.state, generator=params, generator_moments={}, waiting={}, drawn=clients.rng.keys)
        return replace(done, source=patch.source, column=patch.column, value=patch.value), Nothing(clients.ids)

    def patch(self, clients: Clients[Record], params: Tree) -> Patch:
        """Line 5: what generators make for the clients' graphs."""
        mender = Mender(self.neighgen(clients.task), params, self.most, self.unbiased)
        with torch.no_grad():
            trust = torch.ones(len(clients.ids), device=clients.graph.device)
            if self.calibrated:
                trust = mender.trust(clients, self.hidden_share)
            return mender.patch(clients, trust, self.entries)

    def seen(self, clients: Clients[Mending], training: bool) -> GraphBatch:
        """Line 6: the graphs with their generated neighbours, which have no role, so that they are not tested."""
        graph, state = clients.graph, clients.state
        patch = Patch(clients.ids, state.source, state.column, state.value)
        return graph.once("mended", patch.value.values, lambda: with_generated_nodes(graph, patch))

    def supposed(self, clients: Clients[Mending]) -> Supposed:
        """How many neighbours line 5 made for each node."""
        segments, source = clients.graph.segments, clients.state.source
        flat = source.values.long() + segments.ptr[:-1].repeat_interleave(source.ptr.diff())
        return Supposed.of(clients.graph, missing=torch.bincount(flat, minlength=segments.total))

    def remembered(self, clients: Clients[Mending]) -> Generators:
        """The generators; what they made once they make again."""
        return Generators(clients.ids, clients.state.generator, clients.state.drawn)

    def recalled(self, clients: Clients[Generators]) -> GraphBatch:
        """Line 5 on whatever graph a client has now."""
        drawing = replace(clients, rng=Streams(clients.state.drawn))
        return with_generated_nodes(clients.graph, self.patch(drawing, clients.state.generator))
