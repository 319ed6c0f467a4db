"""AdaFGL: A new paradigm for federated node classification with topology heterogeneity. Li et al., ICDE 2024.

    step 1  T rounds of FedAvg; the last mean W is everybody's federated knowledge extractor
    step 2  client k, alone, from W and its own graph (P its extractor's class shares [N, C], u_i = P_i / |P_i|):
      1  optimised propagation   Pi = alpha A~ + (1 - alpha) D^-1/2 (u u^T - I) D^-1/2         its links, and who is alike
      2  knowledge smoothing     X~ = [X | Pi X | ... | Pi^hops X]
      3  where neighbours are alike:     Q_same  = (P + softmax(f_same(X~))) / 2
           with the loss  cross-entropy(f_same) + mean over nodes of |softmax(f_same) - P|^2       (knowledge is preserved)
      4  where they are not:             Q_other = (softmax(f_alone(X)) + softmax(f_smooth(X~)) + softmax(H')) / 3
           H = f_heard(X~),  p = softmax(H),  s_i = p_i / |p_i|,  S = s s^T less its mean,
           H' = H + ReLU(S) H / N - ReLU(-S) H / N
           with the cross-entropy of each of the three
      5  homophily confidence h: half of its training labels is spread over A~, Y <- restart Y0 + (1 - restart) A~ Y, and
           h is the share of the other half that this tells right
      6  it predicts  h Q_same + (1 - h) Q_other
    each f is a perceptron with one hidden layer; `adapt_epochs` epochs of Adam on the sum of the losses.

We had the paper's abstract and public descriptions of it, and read a public code (OpenFGL's) to learn what it does; the
equations are ours after these. Decisions where they differ or are silent: u u^T is used as it is, where
code keeps entries above 0.999; both parts of Pi are scaled by themselves, so that alpha means the same in small and large
graphs; since ReLU(S) - ReLU(-S) = S, line 4 is S H / N, and with s and u no number of pairs of nodes is ever kept: X~ times
weights is computed as X W_0 + Pi (X W_1 + Pi (...)). The reported round may be one of step 1, if validation prefers it.

`adapt_epochs` = 0 is FedAvg. A client without edges has h = 0; one with a single training node h = 1/2; one without any has
nothing to adapt by and keeps W. Traffic and what is told are FedAvg's, and W once more; step 2 sends nothing. Secure sums
as in FedAvg. DP-SGD is refused: what a client adapts by its labels has no noise. One class a node; no link prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, activate, client_mean, segment_product, sparse_product
from suture.core.message import Message, Model, Nothing
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, prefixed, split, tile, under
from suture.graph.batch import GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Phase, Shared, Task, check_links, step_if
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server
from suture.nn import layers
from suture.settings import Count, NonNegative, Positive, Search, Share, TrainingSettings, Whole
from suture.training.batches import Batch
from suture.training.local import sum_terms, train_locally
from suture.training.optimisers import Moments, fresh_moments, in_round

OWN, CONFIDENCE = "own.", "confidence"
"""In models: names of a client's perceptrons begin so; h, [K], below 0 before step 2."""
SMOOTHED = ("same", "smooth", "heard")
"""The perceptrons that read X~: their hidden layers lie side by side."""
ALONE = "alone"
TIE = 1e-6
"""Shares of classes that differ by less are alike."""
SOFTER = 0.01
"""What losses of step 2 are multiplied with: Adam's epsilon is then 1e-6 of a slope, and rounding makes no step."""


@dataclass(frozen=True)
class Adapted(Kept):
    """What a client keeps: also its perceptrons [K, ...] and their moments, and h [K], below 0 before step 2."""

    own: Tree
    own_moments: Moments
    confidence: Tensor


@dataclass(frozen=True)
class AdaFgl(ModelAveraging[Server, Adapted]):
    """FedAvg, and then own perceptrons that weigh links by how far they can be relied on."""

    name: ClassVar[str] = "adafgl"
    summary: ClassVar[str] = "FedAvg, then own networks that hear links as far as these tell a client's classes"
    paper: ClassVar[str] = "Li et al., ICDE 2024"
    one_model: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ("local_update",)
    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})

    adapt_epochs: Annotated[Whole, Search(choices=(50, 100, 200))] = 100
    """Local epochs of step 2; 0 is FedAvg."""
    alpha: Annotated[Share, Search(0.0, 1.0, log=False)] = 0.5
    """How much of the propagation is the client's own links."""
    hops: Annotated[Whole, Search(choices=(1, 2, 3, 4, 5))] = 3
    """How often features are propagated."""
    preserve: Annotated[NonNegative, Search(0.1, 10.0)] = 1.0
    """Weight of the loss that preserves the extractor's knowledge."""
    restart: Share = 0.5
    """How much of the known labels every step of line 5 keeps."""
    spread: Count = 10
    """Steps of line 5."""
    adapt_rate: Annotated[Positive, Search(0.001, 0.1)] = 0.01
    """Learning rate of step 2."""
    adapt_decay: NonNegative = 5e-4
    """Weight decay of step 2."""

    def beyond_dp_sgd(self) -> str:
        """What is adapted reads training labels."""
        return "adapts to its training labels without noise, which DP-SGD does not cover" if self.adapt_epochs else ""

    def beyond_links(self) -> str:
        """It is about classes."""
        return "asks how far links tell classes of nodes"

    # What there is

    def init_server(self, task: Task) -> Server:
        """The initial model."""
        if task.link:
            check_links(self)
        return Server(SERVER, self.initial_shared(task))

    def init_clients(self, clients: Clients[Nothing]) -> Adapted:
        """The initial model, and fresh perceptrons."""
        own = tile(self.fresh_own(clients.task), len(clients.ids), clients.graph.device)
        before = torch.full((len(clients.ids),), -1.0, device=clients.graph.device)
        return Adapted(
            **vars(self.fresh(clients)), own=own, own_moments=fresh_moments(own, self.adapting()), confidence=before
        )

    def fresh_own(self, task: Task) -> Tree:
        """The perceptrons of step 2, the same for everybody, [1, ...]."""
        rng, wide = generator(task.seed, "adafgl"), self.model.hidden
        tree = layers.linear_init(f"{ALONE}1", task.features, wide, rng)
        tree |= layers.linear_init(f"{ALONE}2", wide, task.classes, rng)
        shape, fan_in = (1, task.features, wide * len(SMOOTHED)), task.features * (self.hops + 1)
        tree |= {f"hop{j}": layers.glorot(shape, fan_in, wide, rng) for j in range(self.hops + 1)}
        tree |= {"hop.bias": torch.zeros(1, shape[2])}
        for name in SMOOTHED:
            tree |= layers.linear_init(f"{name}2", wide, task.classes, rng)
        return tree

    def adapting(self) -> TrainingSettings:
        """How step 2 trains."""
        decay = SOFTER * self.adapt_decay
        return replace(
            self.training,
            optimizer="adam",
            lr=self.adapt_rate,
            weight_decay=decay,
            local_epochs=1,
            moments="own",
            fanouts=(),
        )

    def plan(self) -> tuple[Phase[Server], ...]:
        """Step 1, the extractor for everybody, step 2; and stitching, if there is any."""
        rounds, *after = super().plan()
        if not self.adapt_epochs:
            return (rounds, *after)
        knowledge = Phase("knowledge", self.share_knowledge)
        return (rounds, knowledge, Phase("adapt", self.adapt, self.adapt_epochs, evaluate=True), *after)

    # Step 2

    def share_knowledge(self, server: Server, cohort: Cohort) -> Server:
        """Everybody is sent W."""
        cohort.ask(self.take_knowledge, self.hand_out(server, cohort.ids))
        return server

    @step_if(lambda self: self.adapt_epochs > 0)
    def take_knowledge(self, clients: Clients[Adapted], down: Model) -> tuple[Adapted, Nothing]:
        """W is kept, and line 5; a client without training nodes keeps W alone."""
        found = homophily(clients.graph, clients.task.classes, self.restart, self.spread, clients.rng.fork("half"))
        taught = torch.where(clients.graph.num_train > 0, found, -1.0)
        return replace(clients.state, params=self.received(clients, down), confidence=taught), Nothing(clients.ids)

    def adapt(self, server: Server, cohort: Cohort) -> Server:
        """An epoch of everybody's."""
        cohort.ask(self.adapt_locally, Nothing(cohort.ids))
        return server

    @step_if(lambda self: self.adapt_epochs > 0)
    def adapt_locally(self, clients: Clients[Adapted], message: Nothing) -> tuple[Adapted, Nothing]:
        """An epoch of lines 1 to 4."""
        state, graph = clients.state, clients.graph
        with torch.no_grad():
            known = Knowledge.of(graph, self.extracted(graph, state.params, clients.task), self.alpha)
        own, moments, _ = train_locally(
            graph,
            state.own,
            state.own_moments,
            lambda params, batch: SOFTER * sum_terms(self.adapting_terms(params, batch, known)),
            in_round(self.adapting(), clients.round),
            clients.rng,
        )
        return replace(state, own=own, own_moments=moments), Nothing(clients.ids)

    def extracted(self, graph: GraphBatch, params: Tree, task: Task) -> Tensor:
        """P, [N, C]."""
        return self.backbone(task).logits(params, graph).softmax(1)

    def adapting_terms(self, own: Tree, batch: Batch, known: Knowledge) -> dict[str, Tensor]:
        """The losses of lines 3 and 4, [K] each."""
        said, graph = self.said(own, known, batch.rng), batch.graph
        terms = {name: batch.loss_of(out[batch.view.nodes]) for name, out in said.items()}
        apart_N = (said["same"].softmax(1) - known.shares).square().sum(1)
        return terms | {"preserve": self.preserve * client_mean(apart_N, graph.segments.client, len(graph.ids))}

    def said(self, own: Tree, known: Knowledge, rng: Streams | None = None) -> dict[str, Tensor]:
        """What each perceptron says of every node, before softmax, [N, C]; with `rng`, units are dropped."""
        x, segments = known.graph.x, known.graph.segments
        h = x.times(own[f"hop{self.hops}"])
        for j in reversed(range(self.hops)):
            h = known.propagated(h) + x.times(own[f"hop{j}"])
        hidden = self.hidden(h, own["hop.bias"], segments, rng and rng.fork("smoothed"))
        parts = torch.split(hidden, self.model.hidden, 1)
        said = {name: self.last(name, part, own, segments) for name, part in zip(SMOOTHED, parts, strict=True)}
        alone = self.hidden(x.times(own[f"{ALONE}1.weight"]), own[f"{ALONE}1.bias"], segments, rng and rng.fork(ALONE))
        return said | {"heard": with_messages(said["heard"], segments), ALONE: self.last(ALONE, alone, own, segments)}

    def hidden(self, h_NH: Tensor, bias_KH: Tensor, segments: Segments, rng: Streams | None) -> Tensor:
        """A hidden layer, after bias, ReLU and dropout."""
        return layers.dropout(activate(h_NH, bias_KH, segments), rng, self.model.dropout, segments)

    def last(self, name: str, h_NH: Tensor, own: Tree, segments: Segments) -> Tensor:
        """The last layer of a perceptron."""
        out = segment_product(h_NH.contiguous(), own[f"{name}2.weight"], segments)
        return activate(out, own[f"{name}2.bias"], segments, relu=False)

    # What is predicted

    def assemble(self, clients: Clients[Adapted], deployed: Message) -> Model:
        """W, the perceptrons and h."""
        model, state = super().assemble(clients, deployed), clients.state
        if not self.adapt_epochs:
            return model
        return Model(clients.ids, model.params | prefixed(OWN, state.own) | {CONFIDENCE: state.confidence})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Line 6; before step 2 what the extractor says."""
        own = under(OWN, model.params)
        network = split(model.params, [*(OWN + name for name in own), CONFIDENCE])[1]
        logits = self.backbone(task).logits(network, graph)
        if not own or not bool((model.params[CONFIDENCE] >= 0).any()):
            return logits
        shares, h_N1 = logits.softmax(1), model.params[CONFIDENCE][graph.segments.client].unsqueeze(1)
        said = {name: out.softmax(1) for name, out in self.said(own, Knowledge.of(graph, shares, self.alpha)).items()}
        same = (shares + said["same"]) / 2
        other = (said[ALONE] + said["smooth"] + said["heard"]) / 3
        return torch.where(h_N1 < 0, logits, (h_N1 * same + (1 - h_N1) * other).clamp_min(1e-12).log())


@dataclass(frozen=True)
class Knowledge:
    """What the extractor says of graphs, and line 1: shares P [N, C], alike u [N, C], scale D^-1/2 [N, 1]."""

    graph: GraphBatch
    shares: Tensor
    alike: Tensor
    scale: Tensor
    alpha: float

    @staticmethod
    def of(graph: GraphBatch, shares: Tensor, alpha: float) -> Knowledge:
        """Line 1."""
        alike = F.normalize(shares, dim=1)
        degree = (alike * graph.segments.sum(alike)[graph.segments.client]).sum(1, keepdim=True) - 1
        return Knowledge(graph, shares, alike, degree.clamp_min(1e-6).rsqrt() * (degree > 1e-6), alpha)

    def propagated(self, h_NH: Tensor) -> Tensor:
        """Pi h."""
        operator: SparseMatrix = self.graph.gcn_operator
        scaled = self.scale * h_NH
        similar = segment_product(self.alike, sums_of_products(self.alike, scaled, self.graph.segments), self.graph.segments)
        return self.alpha * sparse_product(operator, h_NH) + (1 - self.alpha) * self.scale * (similar - scaled)


def sums_of_products(a_NC: Tensor, b_NH: Tensor, segments: Segments) -> Tensor:
    """Sum over each client's nodes of a_i b_i^T, [K, C, H]."""
    sizes: list[int] = segments.ptr.diff().tolist()
    return torch.stack([a.T @ b for a, b in zip(torch.split(a_NC, sizes), torch.split(b_NH, sizes), strict=True)])


def with_messages(h_NC: Tensor, segments: Segments) -> Tensor:
    """H' of line 4."""
    s_NC, owner = F.normalize(h_NC.softmax(1), dim=1), segments.client
    sizes_K1 = segments.ptr.diff().clamp_min(1).unsqueeze(1)
    ones = torch.ones_like(s_NC[:, :1])
    total_KC, mean_KC = (sums_of_products(ones, part, segments).squeeze(1) for part in (s_NC, h_NC))
    alike_K1 = (total_KC / sizes_K1).square().sum(1, keepdim=True)
    heard = segment_product(s_NC, sums_of_products(s_NC, h_NC, segments), segments) / sizes_K1[owner]
    return h_NC + heard - (alike_K1 * mean_KC / sizes_K1)[owner]


def homophily(graph: GraphBatch, classes: int, restart: float, spread: int, rng: Streams) -> Tensor:
    """Line 5: h, [K]; 0 without edges, 1/2 where there is no other half. A tie of classes tells nothing right."""
    view = graph.train
    shuffled = view.nodes[rng.shuffle(view.segments.ptr)]
    first = view.segments.place < (graph.num_train[view.segments.client] + 1) // 2
    first_N = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    first_N[shuffled[first]] = True
    start = torch.where(first_N.unsqueeze(1), F.one_hot(graph.y.clamp(0, classes - 1), classes).float(), 1 / classes)
    label = start
    for _ in range(spread):
        label = restart * start + (1 - restart) * sparse_product(graph.gcn_operator, label)
    held = shuffled[~first]
    truth = label[held].gather(1, graph.y[held].unsqueeze(1))
    right = ((label[held] > truth - TIE).sum(1) == 1).float()
    owner = graph.segments.client[held]
    told = torch.where(graph.num_train > 1, client_mean(right, owner, len(graph.ids)), 0.5)
    return torch.where(graph.graphless, 0.0, told)
