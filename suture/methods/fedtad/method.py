"""FedTAD: Topology-aware data-free knowledge distillation for subgraph federated learning. Zhu et al., IJCAI 2024.

    once: client k tells Phi_k, how far its knowledge of each class can be relied on, [C] (`reliability`)
    for t = 1..T
      1  server sends w;  client k: w_k <- E local epochs from w; sends w_k
      2  server: w <- sum_k (n_k / n) w_k                                                                      (FedAvg)
           r_kc = Phi_kc / sum_j Phi_jc
      3  `distil_epochs` times, with fresh noise and labels c that are spread evenly over the classes:
           `generator_steps` times: G <- a step of Adam down  lambda1 L_sem - L_apart + lambda2 L_div
           `model_steps` times:     w <- a step of Adam down  L_apart
         on the pseudo-graph of G (`generator`), where, with i over its nodes and n_c how many of them have class c,
           L_sem   = sum_k sum_i r_kc(i) / n_c(i) cross-entropy(w_k at i, c(i))         clients know what is generated
           L_apart = sum_k sum_i r_kc(i) / n_c(i) mean over classes of |w at i - w_k at i|     where models disagree
           L_div   = exp(-mean over pairs of |z_i - z_j|^2 |x_i - x_j|)                       nodes are not all alike

The server looks for graphs of which reliable clients and the mean model think differently, and teaches the mean model what
the reliable ones think. G and both of Adam's memories last over the rounds.

Where the authors' code and the box differ or the paper is silent: p_s(v) are exact chances of return, where the code draws
one walk of each length; L_div counts once, not once a client; networks are asked without dropout. An owner that comes late
is asked for Phi_k when it comes. `distil_epochs` = 0 is FedAvg, and nobody is asked.

A client without edges is reliable as far as it has training nodes of a class (phi_v = 1): its perceptron is a teacher too.
Traffic: FedAvg's, and C numbers up, once. The server learns Phi_k, close to how many training nodes of each class a client
has, without noise, so that DP-SGD is refused. It needs every client's model by itself: secure sums are refused, and so are
steps of the server. One class a node; no link prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.message import Kind, Message, Model, Nothing
from suture.core.streams import generator
from suture.core.tree import Tree, map_tree
from suture.errors import ConfigError
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Shared, Task, check_links, step
from suture.methods.averaging import SERVER, Kept, ModelAveraging, Server, Up, weighted_loss
from suture.methods.fedtad.generator import NOISE, class_scores, fresh_generator, generated, linked, sameness
from suture.methods.fedtad.reliability import class_reliability
from suture.settings import Count, NonNegative, Positive, TrainingSettings, Whole
from suture.training.optimisers import Moments, fresh_moments, slopes, stepped

LAYERED = ("gcn", "sage", "gat", "mlp")
"""Networks of which the server can ask what they make of features that it is still changing."""
SOFTER = 0.01
"""What the server's losses are multiplied with: Adam's epsilon is then 1e-6 of a slope, and rounding makes no step."""


@dataclass(frozen=True)
class Reliability(Message):
    """Client to server: Phi of each class, [K, C]."""

    classes: Annotated[Tensor, Kind.STATISTICS]


@dataclass(frozen=True)
class Distilling(Server):
    """What the server keeps: also G and what two Adams remember, [1, ...]; Phi [1, C] by the names of clients."""

    made: Tree
    made_moments: Moments
    taught_moments: Moments
    seed: int
    rounds: int = 0
    reliability: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class FedTad(ModelAveraging[Distilling, Kept]):
    """FedAvg whose server teaches the mean model what reliable clients know."""

    name: ClassVar[str] = "fedtad"
    summary: ClassVar[str] = "FedAvg whose server distils, on generated graphs, what clients reliably know of each class"
    paper: ClassVar[str] = "Zhu et al., IJCAI 2024"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})
    shares: ClassVar[tuple[Shared, ...]] = ("moments",)

    distil_epochs: Whole = 5
    """How often a round generates anew and distils; 0 is FedAvg."""
    generator_steps: Count = 1
    """Steps of the generator each time."""
    model_steps: Count = 5
    """Steps of the mean model each time."""
    distil_rate: Positive = 0.001
    """Learning rate of both."""
    pseudo_nodes: Count = 100
    """Nodes of a generated graph."""
    pseudo_links: Count = 5
    """With how many of the most alike each of them is linked."""
    lambda1: NonNegative = 1.0
    """Weight of L_sem: clients must know what is generated."""
    lambda2: NonNegative = 1.0
    """Weight of L_div: nodes must differ."""
    walks: Count = 5
    """Longest random walk in a node's embedding."""

    def beyond_dp_sgd(self) -> str:
        """Reliability is told beside the model, if there is anything to distil."""
        told = "tells how far each class can be relied on, from training labels, without noise, which DP-SGD does not cover"
        return told if self.distil_epochs else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.kind not in LAYERED:
            raise ConfigError(
                f"fedtad's server changes features until networks disagree, layer by layer; model.kind {self.model.kind} "
                f"cannot be asked so: choose one of {', '.join(LAYERED)}"
            )

    def beyond_links(self) -> str:
        """It is about classes."""
        return "distils what is known of classes of nodes"

    def init_server(self, task: Task) -> Distilling:
        """The initial model, and a generator that everybody could compute."""
        if task.link:
            check_links(self)
        if task.module is not None:
            raise ConfigError(
                "fedtad asks a network layer by layer; for one of your own choose another method, such as fedavg"
            )
        params = self.initial_shared(task)
        made = fresh_generator(task.features, task.classes, generator(task.seed, "fedtad"))
        adam = self.steps_of_adam()
        return Distilling(SERVER, params, made, fresh_moments(made, adam), fresh_moments(params, adam), task.seed)

    def init_clients(self, clients: Clients[Nothing]) -> Kept:
        """Everybody starts from the same initial model."""
        return self.fresh(clients)

    def steps_of_adam(self) -> TrainingSettings:
        """How the server steps."""
        return TrainingSettings(lr=self.distil_rate, weight_decay=SOFTER * self.training.weight_decay)

    @step
    def tell_reliability(self, clients: Clients[Kept], message: Nothing) -> tuple[Kept, Reliability]:
        """Before line 1: Phi."""
        found = class_reliability(clients.graph, clients.task.classes, self.walks)
        return clients.state, Reliability(clients.ids, found)

    def exchange(self, server: Distilling, handed: Model, sampled: Cohort) -> Distilling:
        """Ask whoever was not asked yet."""
        if self.distil_epochs == 0 or all(name in server.reliability for name in sampled.ids):
            return server
        told = sampled.ask(self.tell_reliability, Nothing(sampled.ids))
        rows = {name: told.classes[k : k + 1] for k, name in enumerate(told.ids)}
        return replace(server, reliability=server.reliability | rows)

    def combine(self, server: Distilling, handed: Model, up: Up, cohort: Cohort) -> Distilling:
        """Lines 2 and 3."""
        server = replace(self.advanced(server, up), rounds=server.rounds + 1)
        apart = 0.0
        for number in range(self.distil_epochs):
            server, apart = self.distilled(server, up, number)
        cohort.report(loss=weighted_loss(up), apart=apart)
        return server

    def distilled(self, server: Distilling, up: Up, number: int) -> tuple[Distilling, float]:
        """One pass of line 3, and L_apart before its last step."""
        example = next(iter(up.params.values()))
        device, adam = example.device, self.steps_of_adam()
        rng = generator(server.seed, "fedtad", server.rounds, number)
        noise = torch.randn(self.pseudo_nodes, NOISE, generator=rng, device="cpu").to(device)
        lesson = Lesson.of(self, server, up, noise)
        made, made_moments = (map_tree(lambda value: value.to(device), t) for t in (server.made, server.made_moments))
        params, moments = server.params, map_tree(lambda value: value.to(device), server.taught_moments)
        for _ in range(self.generator_steps):
            leaves = map_tree(lambda value: value.detach().requires_grad_(), made)
            made, made_moments = stepped(
                leaves, slopes(SOFTER * lesson.generator_loss(leaves, params), leaves), made_moments, adam
            )
        with torch.no_grad():
            x = generated(made, noise, lesson.label)
            said = lesson.said_by_clients(x)
        apart = x.new_zeros(1)
        for _ in range(self.model_steps):
            leaves = map_tree(lambda value: value.detach().requires_grad_(), params)
            apart = lesson.apart(x, leaves, said)
            params, moments = stepped(leaves, slopes(SOFTER * apart, leaves), moments, adam)
        kept = replace(server, params=params, made=made, made_moments=made_moments, taught_moments=moments)
        return kept, float(apart.detach())


@dataclass(frozen=True)
class Lesson:
    """What a pass of line 3 is about. Shapes: noise [P, Z], label int64 [P], share [K, P] r_kc(i) / n_c(i)."""

    method: FedTad
    up: Up
    noise: Tensor
    label: Tensor
    share: Tensor
    task: Task

    @staticmethod
    def of(method: FedTad, server: Distilling, up: Up, noise: Tensor) -> Lesson:
        """Labels spread evenly over the classes, and what each client counts at each pseudo-node."""
        reliable_KC = torch.cat([server.reliability[name] for name in up.ids]).to(noise.device)
        classes, features = reliable_KC.shape[1], server.made["generator4.bias"].shape[1]
        label = torch.arange(noise.shape[0], device=noise.device) % classes
        share_KC = reliable_KC / reliable_KC.sum(0, keepdim=True).clamp_min(1e-12)
        share_KC = share_KC / torch.bincount(label, minlength=classes).clamp_min(1)
        return Lesson(method, up, noise, label, share_KC[:, label], Task(features, classes, server.seed))

    def generator_loss(self, made: Tree, params: Tree) -> Tensor:
        """What the generator goes down, [1]."""
        method, x = self.method, generated(made, self.noise, self.label)
        said_KPC = self.said_by_clients(x)
        label_KP = self.label.expand(len(self.share), -1)
        known = (self.share * F.cross_entropy(said_KPC.transpose(1, 2), label_KP, reduction="none")).sum()
        apart = self.apart(x, params, said_KPC.detach())
        return method.lambda1 * known - apart + method.lambda2 * sameness(self.noise, x)

    def apart(self, x: Tensor, params: Tree, said_KPC: Tensor) -> Tensor:
        """L_apart, [1], of the mean model from what clients' models said."""
        graph = linked(x, self.label, self.method.pseudo_links, SERVER)
        common_PC = class_scores(self.method.backbone(self.task), params, x, graph)
        return (self.share * (common_PC - said_KPC).abs().mean(2)).sum().unsqueeze(0)

    def said_by_clients(self, x: Tensor) -> Tensor:
        """What every client's model says of the pseudo-nodes, [K, P, C]."""
        ids = self.up.ids
        graph = linked(x, self.label, self.method.pseudo_links, ids)
        scores = class_scores(self.method.backbone(self.task), self.up.params, x.repeat(len(ids), 1), graph)
        return scores.view(len(ids), x.shape[0], -1)
