"""Suture: for those who do not want to choose a method, a network, or what to share. Our own method; no paper.

Several experts are trained side by side, and what each of them has to say at an owner its validation nodes decide; where
they are few, everybody's. The experts e = 1..E:

    common.set        w, one for all: the network that the settings name
    common.BESIDE     the same of each network beside it: GraphSAGE (tells a node from its neighbours), GPR-GNN (learns how
                      far to look, and whether neighbours are alike or unlike) and a perceptron (looks at no neighbour)
    common.gram       the network that the settings name, hearing of links that nobody knows: suture.methods.fedgram
    own.set           v_k, of every owner alone; where there are training nodes

    lines 1 to 4 of FedGram;  a_bar <- 1 / E
    for t = 1..T
      1  server samples a share of the owners and sends them all w_e, Adam's moments of them, and a_bar
      2  owner k: local epochs of w_ke from w_e with the moments it received, and of v_k from where it was with its own
      3  owner k sends w_ke, their moments, and which share of its validation nodes each expert stands for,
             s_ke = mean_v a_bar_e q_ve / sum_f a_bar_f q_vf,     q_ve = p_e(y_v | v),    and l_ke = mean_v log q_ve
      4  server: w_e <- sum_k (n_k / n) w_ke, the moments alike (suture.training.shared),
                 a_bar <- sum_k (n_k / n) s_k, one step of EM for everybody
         a common expert whose l_e no longer grows settles: it is trained no more, and w_e alone is handed out
         (suture.methods.suture.settling)
    owner k predicts p(y | v) = sum_e a_ke p_e(y | v), with a_k by EM on its own validation nodes, as if `doubt` more of
    them were explained as a_bar says (suture.methods.suture.mixture)
      5  where owners know the far ends of lost links: `seams` steps of stitching (suture.methods.stitching)

All experts and a_bar are one tree of parameters. The experts' losses are added up: Adam takes every number by itself, so
that each is trained as if it were alone (but for training.clip, which is the length of all). No gradient reaches a_bar.

An owner without validation nodes has a_k = a_bar; one without edges has perceptrons; one without training nodes weighs
nothing. Several labels, numbers and links are mixed as `mixture` says; only classes are stitched. With `beside = ()`, `own`
false and `rank` 0 it is FedAvg with averaged moments, digit for digit.

What leaves an owner are sums, so that secure aggregation covers them: weights, moments, E shares, E likelihoods, FedGram's
sums. Over known links class probabilities leave. v_k and a_k stay. DP-SGD is refused, as validation nodes have a say
without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Message, Model, Nothing, Rows
from suture.core.streams import generator
from suture.core.tree import Tree, column, prefixed, under
from suture.graph.batch import GraphBatch, View
from suture.method import Clients, Cohort, Method, Shared, Task, step, step_if
from suture.methods.averaging import Trained, Up, stitching
from suture.methods.fedgram.gram import BASIS
from suture.methods.fedgram.messages import Described, GramServer
from suture.methods.fedgram.method import GRAM_OF, FedGram
from suture.methods.fedgram.sure import UNSURE, taught
from suture.methods.links import Wanted
from suture.methods.suture.mixture import Judged, pooled
from suture.methods.suture.settling import (
    BEFORE,
    BESIDE_EXPERTS,
    COMMON,
    GOING,
    MIXTURE,
    OWN,
    Experts,
    Validated,
    idle,
    settled,
)
from suture.nn.backbones import Backbone, make_backbone
from suture.settings import NonNegative, Whole
from suture.training.batches import Batch

SET, GRAM = "set", "gram"
"""Names of experts, beside those of networks."""
FLOOR = 0.05
"""How much of a_bar is shared out evenly, so that an expert that began badly can come back."""


@dataclass(frozen=True)
class Suture(FedGram):
    """Stable averages of several networks and an own one, mixed as validation nodes ask for it."""

    name: ClassVar[str] = "suture"
    summary: ClassVar[str] = "for those who do not want to choose: stable averages of several networks, mixed by validation"
    paper: ClassVar[str] = "ours"
    one_model: ClassVar[bool] = False
    serves_untaught: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = FedGram.sums
    shares: ClassVar[tuple[Shared, ...]] = ("moments",)

    beside: tuple[Literal["gcn", "sage", "gat", "gprgnn", "mlp"], ...] = ("sage", "gprgnn", "mlp")
    """Networks that are trained beside the one the settings name."""
    own: bool = True
    """Whether owners also train that network alone."""
    doubt: NonNegative = 20.0
    """For how many validation nodes of an owner everybody's weights of the experts count."""
    patience: Whole = 10
    """After how many rounds without a likelier validation node an expert is trained no more; 0: all are to the end."""
    seams: Whole = 2
    """Steps of stitching where owners know the far ends of lost links; training.stitch, if it is set, says how many."""
    stages: Whole = 0
    """How often nodes are asked which class they are sure of, as in fedgram; 0: never."""

    def __post_init__(self) -> None:
        training = self.training
        if training.moments == "own":
            training = replace(training, moments="averaged")
        if training.stitch == 0:
            training = replace(training, stitch=self.seams)
        object.__setattr__(self, "training", training)
        super().__post_init__()

    def beyond_dp_sgd(self) -> str:
        """What experts have to say follows from validation nodes."""
        return "weighs its networks by validation nodes, without noise, so DP-SGD hides nothing"

    def tells_scores(self) -> str:
        """Line 3."""
        return "tells with every update for which share of its validation nodes each network stands"

    # The experts

    def experts(self, task: Task) -> dict[str, Backbone]:
        """Their networks, by the prefix of their parameters."""
        chosen = Method.backbone(self, task)
        kinds = [kind for kind in dict.fromkeys(self.beside) if task.module is not None or kind != self.model.kind]
        found = {f"{COMMON}{SET}.": chosen}
        for kind in kinds:
            network = make_backbone(replace(self.model, kind=kind), task.features, task.classes)
            found[f"{COMMON}{kind}."] = network.for_run(task.seed)
        if self.rank and task.module is None:
            found[f"{COMMON}{GRAM}."] = chosen
        return found | ({f"{OWN}{SET}.": chosen} if self.own else {})

    def backbone(self, task: Task) -> Backbone:
        """The network the settings name, which may be the user's own."""
        return Method.backbone(self, task)

    def initial_params(self, task: Task) -> Tree:
        """All experts, each as everybody can compute it, with as much to say."""
        params, experts = Tree(), self.experts(task)
        for prefix, network in experts.items():
            hears_more = prefix == f"{COMMON}{GRAM}."
            first = super().initial_params(task) if hears_more else network.init(generator(task.seed, "initial weights"))
            params |= prefixed(prefix, first)
        going = torch.cat([torch.ones(1, len(experts)), torch.zeros(1, 1)], 1)
        return params | {MIXTURE: torch.full((1, len(experts)), 1 / len(experts)), GOING: going}

    def init_server(self, task: Task) -> Experts:
        """All experts are trained, and none was judged yet."""
        server, experts = super().init_server(task), len(self.experts(task))
        told = server.params | {GOING: torch.ones(1, experts + 1)}
        best, since = torch.full((1, experts), BEFORE), torch.zeros(1, experts, dtype=torch.int64)
        return Experts(**vars(server) | {"params": told}, best=best, since=since)

    def shared_names(self, task: Task) -> list[str]:
        """What is not an owner's own."""
        return [name for name in self.initial_params(task) if not name.startswith(OWN)]

    def frozen_names(self, task: Task) -> frozenset[str]:
        """Buffers of the networks, a_bar, and who is trained."""
        experts = self.experts(task).items()
        return frozenset(prefix + name for prefix, network in experts for name in network.frozen_names()) | {MIXTURE, GOING}

    # Lines 1 to 3

    def hand_out(self, server: GramServer, ids: Sequence[str]) -> Model:
        """Line 1; of experts that have settled no moments."""
        handed, at_rest = super().hand_out(server, ids), idle(server.params, server.params[GOING])
        return replace(
            handed, moments={name: value for name, value in handed.moments.items() if not name.startswith(at_rest)}
        )

    def received(self, clients: Clients[Described], down: Model) -> Tree:
        """Line 2: what was received; of experts that have settled the owner's own, if it has trained them."""
        kept, at_rest = clients.state.params, idle(down.params, down.params[GOING])
        told_K = kept[GOING][:, -1] > 0
        own = {n: torch.where(column(told_K, v) > 0, v, down.params[n]) for n, v in kept.items() if n.startswith(at_rest)}
        return super().received(clients, down) | own

    def train(self, clients: Clients[Described], start: Tree) -> Trained:
        """Line 2: the experts that have not settled."""
        at_rest, frozen = idle(start, start[GOING]), self.frozen_names(clients.task)
        going = {name: value for name, value in start.items() if name in frozen or not name.startswith(at_rest)}
        if going.keys() <= frozen:
            return Trained(start, clients.state.moments, torch.zeros(len(clients.ids), device=clients.graph.device))
        trained = super().train(clients, going)
        return replace(trained, params=start | trained.params)

    def seen(self, clients: Clients[Described], training: bool) -> GraphBatch:
        """The owners' graphs; in training, with the classes that nodes are sure of."""
        graph, classes = clients.graph, clients.state.classes.values
        if not training or not bool((classes != UNSURE).any()):
            return graph
        return graph.once("taught", classes, lambda: taught(graph, classes))

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[Described]) -> dict[str, Tensor]:
        """Line 2: every expert by itself."""
        terms, graph = dict[str, Tensor](), batch.graph
        going: list[float] = received[GOING][0].tolist()
        for number, (prefix, network) in enumerate(self.experts(clients.task).items()):
            if not going[number]:
                continue
            heard = self.heard_by(prefix, graph, clients.state.gram)
            if heard is not graph:
                view = heard.train if batch.view is graph.train else View(heard, batch.view.nodes)
                terms[prefix] = replace(batch, graph=heard, view=view, sampled=None).loss(network, under(prefix, params))
            else:
                terms[prefix] = batch.loss(network, under(prefix, params))
        return terms

    def heard_by(self, prefix: str, graph: GraphBatch, gram: Tree) -> GraphBatch:
        """The graph as an expert hears it: one of them with lines 5 and 6 of FedGram."""
        if prefix != f"{COMMON}{GRAM}." or not gram:
            return graph
        return graph.once("described", gram[BASIS], lambda: self.described(graph, gram))

    @step
    def local_update(self, clients: Clients[Described], down: Model) -> tuple[Described, Validated]:
        """Lines 2 and 3."""
        clients = replace(clients, state=self.informed(clients, down))
        return self.conclude(clients, down, self.train(clients, self.received(clients, down)))

    def conclude(self, clients: Clients[Described], down: Model, trained: Trained) -> tuple[Described, Validated]:
        """Line 3; the loss that is told is the mean of the experts that were trained."""
        prior, at_rest = trained.params[MIXTURE], idle(down.params, down.params[GOING])
        trained = replace(trained, loss=trained.loss / max(1, prior.shape[1] - len(at_rest)))
        sent = {name: value for name, value in down.params.items() if name != GOING and not name.startswith(at_rest)}
        state, up = super().conclude(clients, replace(down, params=sent), trained)
        known = state.params | prefixed(GRAM_OF, state.gram)
        with torch.no_grad():
            judged = Judged.of(clients.graph, self.said(clients.graph, known, clients.task))
        shares = judged.shares(self.prior(clients, prior)).float()
        told = vars(up) | {"params": up.params | {MIXTURE: shares}}
        return state, Validated(**told, validated=judged.validated().float())

    def combine(self, server: GramServer, handed: Model, up: Up, cohort: Cohort) -> GramServer:
        """Line 4."""
        after = super().combine(server, handed, up, cohort)
        assert isinstance(after, Experts) and isinstance(up, Validated)
        after = replace(after, params=server.params | after.params)
        after = settled(after, up.validated, up.weight, self.patience)
        cohort.report(trained=float(after.params[GOING][0, :-1].sum()))
        return after

    def prior(self, clients: Clients[Described], common_KE: Tensor) -> Tensor:
        """A_bar with a small part for everybody; an own model that has nothing to learn from has nothing to say."""
        prior, graph = (1 - FLOOR) * common_KE + FLOOR / common_KE.shape[1], clients.graph
        if not self.own or graph.pairs is not None:
            return prior
        prior = torch.cat([prior[:, :-1], (prior[:, -1] * (graph.num_train > 0)).unsqueeze(1)], 1)
        return prior / prior.sum(1, keepdim=True)

    # What is predicted

    def said(self, graph: GraphBatch, params: Tree, task: Task) -> Tensor:
        """What every expert says of every node, [E, N, C]; the latest is remembered with the graph."""
        of_experts = {name: value for name, value in params.items() if name not in BESIDE_EXPERTS}
        return graph.once("said", tuple(of_experts.values()), lambda: torch.stack(list(self._said(graph, params, task))))

    def _said(self, graph: GraphBatch, params: Tree, task: Task) -> Iterator[Tensor]:
        for prefix, network in self.experts(task).items():
            yield network.logits(under(prefix, params), self.heard_by(prefix, graph, under(GRAM_OF, params)))

    def deploy(self, server: GramServer, ids: Sequence[str]) -> Message:
        """All experts as they are common, those that have settled too."""
        all_of_them = {GOING: torch.ones_like(server.params[GOING])}
        return super().deploy(replace(server, params=server.params | all_of_them), ids)

    def assemble(self, clients: Clients[Described], deployed: Message) -> Model:
        """All experts, and a_k."""
        params = super().assemble(clients, deployed).params
        with torch.no_grad():
            judged = Judged.of(clients.graph, self.said(clients.graph, params, clients.task))
        weights = judged.weights(self.prior(clients, params[MIXTURE]), self.doubt)
        return Model(clients.ids, params | {MIXTURE: weights.float()})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """What they say together."""
        return pooled(graph, self.said(graph, model.params, task), model.params[MIXTURE], task.link)

    # Line 5

    def stitch(self, server: GramServer, cohort: Cohort) -> GramServer:
        """Nothing, where nobody knows a link that leads elsewhere."""
        wanted = cohort.ask(self.known_links, Nothing(cohort.ids))
        return super().stitch(server, cohort) if wanted.addresses.values.numel() else server

    @step_if(stitching)
    def known_links(self, clients: Clients[Described], message: Nothing) -> tuple[Described, Wanted]:
        """Which foreign nodes there are links to; of several labels, numbers and links nothing is stitched."""
        graph = clients.graph
        if graph.boundary is not None and graph.pairs is None and graph.target.kind == "class":
            return self.stitch_wants(clients, message)
        none = torch.zeros(0, dtype=torch.int64, device=graph.device)
        return clients.state, Wanted(clients.ids, Rows(none, pointers(none.new_zeros(len(clients.ids)))))
