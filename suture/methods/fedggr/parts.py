"""The settings of FedGGR, and the networks it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from suture.core.message import Nothing
from suture.core.streams import generator
from suture.core.tree import Tree, tile
from suture.method import Clients, Method, Task
from suture.methods.fedggr.anchors import AnchorBranch
from suture.methods.fedggr.autoencoder import GraphAutoencoder, LinearAutoencoder, of_each
from suture.methods.fedggr.fusion import Fusion
from suture.methods.fedggr.kept import Embedded, GraphServer
from suture.methods.fedggr.server_graph import ServerGraph
from suture.nn.backbones import Backbone, make_backbone
from suture.nn.graph_learner import Between, Edges, Generator, GraphLearner
from suture.nn.module import ModuleBackbone
from suture.nn.topk import Index, Similarity
from suture.settings import Count, DroppedShare, NonNegative, Search, Share, TrainingSettings, Whole

PAPERS_FORM: Mapping[str, str | float] = {
    "codes": "nodes",
    "encoder": "relu",
    "alignment": "none",
    "edges": "plain-elu",
    "refresh": 1,
    "returned": "last",
    "branch_dropout": 0.0,
    "code_dropout": 0.0,
    "fusion_dropout": 0.0,
    "server_lr": 0.0,
}
"""What the paper says where we do otherwise: equations (1), (2), (7) and algorithm 1."""


@dataclass(frozen=True)
class GgrParts(Method[GraphServer, Embedded]):
    """See `suture.methods.fedggr.method`."""

    form: Literal["ours", "paper"] = "ours"
    """paper: a GCN auto-encoder of each client's own, whose codes are taken as they are; plain ELU; gradients of Z added up;
    neighbours searched in every round; nothing hidden while training. This sets the fields named in `PAPERS_FORM`."""
    k: Annotated[Count, Search(5, 50)] = 20
    """Neighbours each node chooses in the learned graph."""
    gsl: bool = True
    """Use the server's graph; without (Figure 3) this is FedAvg with the classifier of equation (4)."""
    local_width: Whole = 0
    """F_l, width of local embeddings; 0: one for each class, and the classifier starts as the sum of local and global."""
    global_width: Whole = 0
    """F_g, width of global embeddings; 0: one for each class."""
    codes: Literal["anchors", "groups", "nodes"] = "anchors"
    """What the server sees of codes: sums over everybody's nodes near its anchors; or those of groups of nodes that are
    alike; or of every node, as published."""
    smallest: Annotated[int, Field(ge=2)] = 5
    """codes = groups: fewest nodes of a group; a client with fewer has no code and no global embedding. codes = anchors:
    fewest nodes of a client near an anchor that it speaks of."""
    anchors: Annotated[int, Field(ge=1, le=100_000)] = 200
    """codes = anchors: how many there are."""
    near: Count = 10
    """codes = anchors: how many of them a node hears."""
    anchor_rounds: Annotated[int, Field(ge=2)] = 15
    """codes = anchors: rounds in which they are placed; the first one finds centre and scale."""
    code_width: Annotated[int, Field(ge=2)] = 64
    """p, numbers a node's features are compressed to; one alone has no direction, by which codes are compared."""
    encoder: Literal["linear", "relu"] = "linear"
    """The auto-encoder's GCNs: without activation, brought to the optimum by power iterations; or with, trained by Adam."""
    alignment: Literal["averaged", "shared", "none"] = "averaged"
    """Auto-encoders are averaged after every pretraining round, or only start alike, or not even that."""
    pretrain_rounds: Whole = 10
    """Rounds of pretraining, each one power iteration or `pretrain_epochs` epochs; without averaging they add up."""
    pretrain_epochs: Count = 5
    """encoder = relu: epochs of each of these rounds."""
    pretrain_lr: NonNegative = 0.003
    """encoder = relu: learning rate."""
    pretrain_hidden: Count = 128
    """encoder = relu: hidden width of encoder and decoder."""
    generator: Generator = "mlp-d"
    """What is learned about codes before they are compared."""
    between: Between = "none"
    """Activation inside the generator."""
    similarity: Similarity = "cosine"
    """How codes are compared."""
    edges: Edges = "relu"
    """P of equation (7), from similarities to weights."""
    refresh: Count = 50
    """Rounds after which neighbours are searched anew."""
    index: Index = "auto"
    """How they are searched: exact, approximate (faiss), or by the number of nodes."""
    activation: Literal["none", "relu"] = "none"
    """Of [local || global] before the classifier; relu is for wide embeddings."""
    fusion_dropout: DroppedShare = 0.0
    """Dropped share of [local || global] embeddings while training."""
    branch_dropout: Share = 1.0
    """Share of training nodes for which one of local and global embedding is hidden, so that both learn to classify."""
    code_dropout: Annotated[DroppedShare, Search(0.0, 0.8, log=False)] = 0.5
    """Dropped share of the codes' numbers the server's GCN reads while training; neighbours are found by all of them."""
    server_lr: NonNegative = 0.0
    """Learning rate of the server; 0: that of the clients."""
    returned: Literal["last", "first", "mean"] = "last"
    """Which local epoch's gradient of Z a client sends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "paper":
            for name, value in PAPERS_FORM.items():
                object.__setattr__(self, name, value)

    def widths(self, task: Task) -> tuple[int, int]:
        """(F_l, F_g)."""
        return self.local_width or task.classes, (self.global_width or task.classes) if self.gsl else 0

    def local_network(self, task: Task) -> Backbone:
        """f_theta of equation (3): its outputs are embeddings, not classes."""
        settings, width = replace(self.model, head=False), self.widths(task)[0]
        if task.module is not None:
            return ModuleBackbone(settings, task.features, width, task.module)
        return make_backbone(settings, task.features, width)

    @property
    def fusion(self) -> Fusion:
        """Equations (4) and (5)."""
        return Fusion(self.activation == "relu", self.fusion_dropout, self.branch_dropout)

    @property
    def anchored(self) -> bool:
        """Whether the global embedding is made of anchors, by the clients themselves."""
        return self.gsl and self.codes == "anchors"

    @property
    def branch(self) -> AnchorBranch:
        """What takes the place of equations (6) to (8) with anchors."""
        return AnchorBranch(self.code_width, self.near, self.model.dropout, self.code_dropout)

    @property
    def server_graph(self) -> ServerGraph:
        """Equations (6) to (8)."""
        kind = (self.generator, self.similarity, self.edges, self.between)
        learner = GraphLearner(self.code_width, self.k, *kind, index=self.index)
        return ServerGraph(learner, self.model.dropout, self.code_dropout)

    @property
    def _pretraining(self) -> TrainingSettings:
        return replace(self.training, optimizer="adam", lr=self.pretrain_lr, weight_decay=0.0)

    def autoencoder(self, task: Task) -> GraphAutoencoder | LinearAutoencoder:
        """Equation (1)."""
        if self.encoder == "linear":
            return LinearAutoencoder(task.features, self.code_width)
        return GraphAutoencoder(task.features, self.pretrain_hidden, self.code_width)

    def initial_params(self, task: Task) -> Tree:
        """The local network and the classifier of [local || global]."""
        rng = generator(task.seed, "initial weights")
        local, fusion = self.local_network(task).init(rng), self.fusion.init(self.widths(task), task.classes, rng)
        beside = self.branch.init(self.model.hidden, self.widths(task)[1], rng) if self.anchored else {}
        return local | fusion | beside

    def initial_autoencoder(self, task: Task) -> Tree:
        """The one everybody starts from, [1, ...]."""
        return self.autoencoder(task).init(generator(task.seed, "initial auto-encoder"))

    def initial_autoencoders(self, clients: Clients[Nothing]) -> Tree:
        """Of each client, [K, ...]."""
        if self.alignment != "none":
            return tile(self.initial_autoencoder(clients.task), len(clients.ids), clients.graph.device)
        return of_each(self.autoencoder(clients.task), clients.task.seed, clients.ids, clients.graph.device)
