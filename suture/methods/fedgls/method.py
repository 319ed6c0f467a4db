"""FedGLS: Federated graph learning with graphless clients. Fu, Wang, Dong, Zhang, Chen and Li, TMLR 2024.

Some clients have features but no edges. Everybody trains a GNN f with parameters theta and distils it into a feature encoder
h with phi, which needs no edges; both are averaged. A graphless client learns a graph on which both agree.

    server (algorithm 1), theta and phi the initial weights
      for t = 1..T
      1    send theta, phi to every sampled client k, get theta_k, phi_k back
      2    theta <- sum_k (n_k / N) theta_k,   phi <- sum_k (n_k / N) phi_k                                           (12)

    client k, omega_k = 1 at first; theta_k <- theta, phi_k <- phi
      3  if it is graphless: S = g(X; omega_k), Z = f(X, S; theta_k), H = h(X; phi_k)                             (5)-(7)
           omega_k <- one optimiser step on the contrastive loss between Z and H; S <- g(X; omega_k)              (8), (9)
      4  E times
           theta_k <- one epoch of cross-entropy on its labelled nodes, on S or on its own edges                     (10)
           phi_k <- one step on sum_v KL(f_c(z_v; theta_k) || f_c(h_v; theta_k)) over all its nodes v                (11)
      5  return theta_k, phi_k; keep omega_k. Tests of a graphless client use S

    g: two layers r <- relu(r * w) (15), or relu(r W) with `generator = "mlp"` (14); cosine similarity, the `neighbours`
    nearest and the node itself (16), relu and symmetrise (17), normalise (18)

What the paper leaves open (v: chosen by validation accuracy, see docs/fedgls.md):
- k of (16) is `neighbours` (v: 5, 10 and 20 are within 0.2 points), beside the node itself, whose similarity is the highest.
- sigma of (15) and (17) is ReLU: the weights of S must not be negative. Layers start as ones, so that the first S is the
  weighted graph of nearest neighbours by raw features.
- f_c, the predictor that theta and phi have in common, is the head of the model the protocol prescribes; without a head Z
  has a column for each class, and f_c is the softmax alone.
- The contrastive loss is (8) as printed: the positive pair is not in the denominator, z_i is the only anchor, all nodes of
  the client are compared. Gradients reach omega alone, through the weights of S, not through the choice of neighbours.
- Dropout is on where theta and phi are trained, off in Z and H of line 3 and in the teacher of (11). The teacher is fixed:
  theta_k after its epoch, head included (algorithm 1 updates phi alone). (11) is a sum as printed; Adam does not mind.
- Algorithm 1 prints plain gradient steps, section 5.1.3 Adam: the protocol's optimiser with lr for theta and phi, and
  `learner_lr` for omega; moments stay with the client. In mini-batches (10) takes its steps, (9) and (11) stay whole.
- Only clients that were asked are in (12). The graphless set, the communities that become clients, the share of them and
  the metric are the protocol's (fedgls-graphless): redrawn for each seed, largest first, a half, plain mean over clients.

Without graphless clients theta is trained exactly as by FedAvg. It takes GCN layers, whatever the protocol prescribes.

Privacy: beyond FedAvg, phi travels, which knows what theta makes of a client's features. omega and S never leave the client.
Legend: K clients, G of them graphless, N nodes, F features, H width, C classes, L links.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import activate
from suture.core.message import Message, Model, Nothing, Rows
from suture.core.streams import Streams, generator
from suture.core.tree import Tree, map_tree, prefixed, split, under
from suture.errors import ConfigError
from suture.graph.batch import Features, GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Scores, Supposed, Task, check_links, score, step
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Up
from suture.methods.fedgls.contrast import contrastive_loss
from suture.methods.fedgls.edgeless import Edgeless
from suture.nn.backbones import Backbone, Gcn, Mlp
from suture.nn.graph_learner import Generator, GraphLearner, LearnedGraph
from suture.nn.layers import project
from suture.nn.topk import Links
from suture.settings import Count, NonNegative, Positive, Search
from suture.training.local import sum_terms, train_locally
from suture.training.optimisers import Moments, descend, fresh_moments, in_round

ENCODER, LEARNER = "encoder.", "learner."
"""What the names of phi and omega begin with; theta has the names of its backbone."""


@dataclass(frozen=True)
class KeptGls(Kept):
    """`params`: theta, phi and omega; `moments`: theta's; and the graph of omega, so that it is searched once a round.

    Shapes: `links` int64 [L_k, 2] (node, neighbour), counted inside the client; `weights` [M_k], the entries of S in the
    order of `Links.both_ways`. A client with edges has none.
    """

    encoder_moments: Moments
    learner_moments: Moments
    links: Rows
    weights: Rows


@dataclass(frozen=True)
class FedGls(ModelAveraging[Server, KeptGls]):
    """A GNN and its distillate for everybody, and a learned graph for whoever has none."""

    name: ClassVar[str] = "fedgls"
    summary: ClassVar[str] = "clients without edges learn a graph on which the GNN and its distillate agree"
    paper: ClassVar[str] = "Fu et al., TMLR 2024"
    # Equation (11) compares distributions over classes.
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})
    one_model: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ("local_update",)

    neighbours: Annotated[Count, Search(5, 30)] = 10
    """Nodes that each node of a graphless client is linked with, besides itself."""
    learner_lr: Annotated[NonNegative, Search(1e-4, 0.01)] = 0.001
    """Gamma, the learning rate of the graph learner; 0 leaves the graph of nearest neighbours as it is."""
    temperature: Annotated[Positive, Search(0.1, 1.0)] = 0.2
    """Tau of the contrastive loss."""
    learner_layers: Count = 2
    """Layers of the generator."""
    generator: Literal["attentive", "mlp"] = "attentive"
    """What learns the graph: a weight for each feature (15), as in the paper's experiments; or a perceptron (14), whose
    matrices are as large as the square of the features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", replace(self.model, kind="gcn"))

    def backbone(self, task: Task) -> Backbone:
        """f, a GCN."""
        if task.module is not None:
            raise ConfigError("fedgls learns the edges its own GCN propagates with; choose another method for your network")
        return Gcn(self.model, task.features, task.classes)

    def encoder(self, task: Task) -> Backbone:
        """h, a perceptron as deep and wide as f; its head is f's."""
        return Mlp(replace(self.model, kind="mlp"), task.features, task.classes)

    def learner(self, task: Task) -> GraphLearner:
        """The graph learner g."""
        kind: Generator = "attentive" if self.generator == "attentive" else "activated"
        return GraphLearner(task.features, self.neighbours, kind, layers=self.learner_layers)

    def initial_params(self, task: Task) -> Tree:
        """The theta of FedAvg, with phi and omega."""
        theta = super().initial_params(task)
        phi = split(self.encoder(task).init(generator(task.seed, "initial encoder")), ["head.weight", "head.bias"])[1]
        return theta | prefixed(ENCODER, phi) | prefixed(LEARNER, self.learner(task).init())

    def shared_names(self, task: Task) -> list[str]:
        """All but omega."""
        return [name for name in self.initial_params(task) if not name.startswith(LEARNER)]

    def init_server(self, task: Task) -> Server:
        """Theta and phi."""
        return Server(SERVER, self.initial_shared(task))

    def beyond_dp_sgd(self) -> str:
        """Phi is sent too."""
        return "sends a second network, which it trains on all nodes without noise, so DP-SGD covers one of two"

    def beyond_links(self) -> str:
        """Equation (11) compares classes."""
        return "compares two networks by the classes they predict of nodes"

    def init_clients(self, clients: Clients[Nothing]) -> KeptGls:
        """The initial model, and the nearest neighbours by raw features."""
        if clients.graph.pairs is not None:
            check_links(self)
        params = self.fresh(clients).params
        theta, phi, omega = parts(params)
        for_theta, for_phi, for_omega = (fresh_moments(part, self.training) for part in (theta, phi, omega))
        edgeless = Edgeless.of(clients.graph)
        with torch.no_grad():
            links, learned = self.learn(edgeless, omega, clients.task)
        return KeptGls(clients.ids, params, for_theta, for_phi, for_omega, *edgeless.packed(links, learned))

    @step
    def local_update(self, clients: Clients[KeptGls], down: Model) -> tuple[KeptGls, Up]:
        """Lines 3-5."""
        graph, state, task, rng = clients.graph, clients.state, clients.task, clients.rng
        theta, phi, omega = parts(state.params | down.params)
        moments = [state.moments, state.encoder_moments, state.learner_moments]
        if not self.training.keep_optimizer:
            moments = [map_tree(torch.zeros_like, kept) for kept in moments]
        theta_moments, phi_moments, omega_moments = moments
        settings = in_round(self.training, clients.round)

        edgeless, links, weights, completed = Edgeless.of(graph), state.links, state.weights, graph
        if edgeless.nodes.numel():
            contrast = partial(self.contrast, edgeless, theta, phi, task=task, links=edgeless.unpacked(links))
            its_own = replace(self.training, lr=self.learner_lr)
            omega, omega_moments, _ = descend(contrast, omega, omega_moments, its_own, graph.graphless)
            with torch.no_grad():
                learned = self.learn(edgeless, omega, task)
            links, weights = edgeless.packed(*learned)
            completed = edgeless.completed(graph, learned[1])

        loss = torch.zeros(len(clients.ids))
        for epoch in range(self.training.local_epochs):
            theta, theta_moments, loss = train_locally(
                completed,
                theta,
                theta_moments,
                lambda p, batch: sum_terms(self.loss_terms(p, batch, p, clients)),
                settings,
                rng,
                epochs=range(epoch, epoch + 1),
            )
            distil = partial(self.distillation, completed, theta, task=task, rng=rng.fork("encoder", epoch))
            phi, phi_moments, _ = descend(distil, phi, phi_moments, settings)
        params = theta | prefixed(ENCODER, phi) | prefixed(LEARNER, omega)
        sent = {name: params[name] for name in down.params}
        kept = KeptGls(clients.ids, params, theta_moments, phi_moments, omega_moments, links, weights)
        return kept, Up(clients.ids, sent, self.weight(clients), loss)

    def contrast(self, edgeless: Edgeless, theta: Tree, phi: Tree, omega: Tree, task: Task, links: Links) -> Tensor:
        """Equations (8) and (9), [K], differentiable in omega; zero for a client with edges."""
        learner, x = self.learner(task), edgeless.x
        z_NH = self.embed(x, theta, learner.process(learner.generate(omega, x, x.segments), links))
        with torch.no_grad():
            h_NH = self.embed(x, phi)
        return contrastive_loss(z_NH, h_NH, x.segments, self.temperature)

    def embed(self, x: Features, params: Tree, adjacency: LearnedGraph | None = None) -> Tensor:
        """Z of equation (6) on S, differentiable in its weights, or without S the H of (7); [N, H], without dropout."""
        h: Tensor | Features = x
        for index in range(1, self.model.layers + 1):
            out = project(h, params[f"layer{index}.weight"], x.segments)
            out = out if adjacency is None else adjacency.times(out)
            h = activate(out, params[f"layer{index}.bias"], x.segments, relu=index < self.model.layers)
        assert isinstance(h, Tensor)
        return h

    def distillation(self, completed: GraphBatch, theta: Tree, phi: Tree, task: Task, rng: Streams | None = None) -> Tensor:
        """Equation (11), [K], differentiable in phi."""
        f, segments = self.backbone(task), completed.segments
        with torch.no_grad():
            teacher_NC = F.log_softmax(f.logits(theta, completed), 1)
        student_NC = F.log_softmax(f.classify(theta, self.encoder(task).embed(phi, completed, rng), segments), 1)
        divergence_N = F.kl_div(student_NC, teacher_NC, reduction="none", log_target=True).sum(1)
        return divergence_N.new_zeros(segments.clients).index_add(0, segments.client, divergence_N)

    def learn(self, edgeless: Edgeless, omega: Tree, task: Task) -> tuple[Links, LearnedGraph]:
        """Equation (5): the neighbours g chooses, in positions among the graphless clients' nodes, and S."""
        learner, x = self.learner(task), edgeless.x
        r_NF = learner.generate(omega, x, x.segments)
        links = learner.links(r_NF, x.segments)
        return links, learner.process(r_NF, links)

    def supposed(self, clients: Clients[KeptGls]) -> Supposed:
        """The links of the graphs that were learned for clients without edges."""
        return Supposed.of(clients.graph, links=clients.state.links)

    def assemble(self, clients: Clients[KeptGls], deployed: Message) -> Model:
        """What predicting needs: theta and omega."""
        params = super().assemble(clients, deployed).params
        return Model(clients.ids, {name: value for name, value in params.items() if not name.startswith(ENCODER)})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C]; those of graphless clients on S."""
        theta, _, omega = parts(model.params)
        edgeless = Edgeless.of(graph)
        if edgeless.nodes.numel():
            graph = edgeless.completed(graph, self.learn(edgeless, omega, task)[1])
        return self.backbone(task).logits(theta, graph)

    @step
    def evaluate(self, clients: Clients[KeptGls], deployed: Message) -> tuple[KeptGls, Scores]:
        """What `predict` finds, on the S that was kept."""
        graph, state = clients.graph, clients.state
        theta, _, _ = parts(self.assemble(clients, deployed).params)
        edgeless, completed = Edgeless.of(graph), graph
        if edgeless.nodes.numel():
            completed = edgeless.completed(graph, edgeless.unpacked_graph(state.links, state.weights))
        with torch.no_grad():
            out_NC = self.backbone(clients.task).logits(theta, completed)
            return state, score(graph, out_NC, clients.task.metric, self.training)


def parts(params: Tree) -> tuple[Tree, Tree, Tree]:
    """(theta, phi, omega), each under its own names."""
    theta = {name: value for name, value in params.items() if not name.startswith((ENCODER, LEARNER))}
    return theta, under(ENCODER, params), under(LEARNER, params)
