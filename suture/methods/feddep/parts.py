"""The settings of FedDEP, and the networks it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from suture.core.streams import generator
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.method import Task
from suture.methods.averaging import ModelAveraging, Server
from suture.methods.feddep.dgen import DeepGenerator
from suture.methods.feddep.fused import FusedSage, Fusion
from suture.methods.feddep.kept import Generating
from suture.nn.backbones import Sage
from suture.privacy.mechanisms import DrawnEdges, Mechanism, NoisyGradients, NoisyMeans, SampledNeighbours
from suture.settings import Count, NonNegative, OpenShare, Positive, Search, Share, TrainingSettings, Whole


@dataclass(frozen=True)
class DepParts(ModelAveraging[Server, Generating]):
    """See `suture.methods.feddep.method`."""

    d_z: Count = 128
    """Width of generated embeddings, 64 to 256 in the paper."""
    clusters: Annotated[Count, Search(5, 40)] = 10
    """C, prototypes of each client; 3 to 20 in the paper."""
    depth: Count = 2
    """L, how many hops of context a generated embedding stands for; 0 would be fedsage_plus."""
    r: Share = 0.5
    """Probability that a generated embedding is kept by the Bernoulli sampler."""
    hidden_share: Annotated[OpenShare, Search(0.1, 0.7, log=False)] = 0.5
    """h, the share of nodes a client hides to train its generator."""
    most: Count = 5
    """Most neighbours generated for a node."""
    dgen: bool = True
    """Generate neighbours at all; without, this is FedSage."""
    proto: bool = True
    """Exchange prototypes once; without, embeddings and gradients travel in every epoch of the generator."""
    nfdp: bool = True
    """Privacy by sampling alone; without, by DP-SGD."""
    as_published: bool = False
    """The paper's form: neighbours are sampled anew in every batch, prototypes see all of them and may be of single nodes;
    its account then covers the training of line 1 only."""
    edge_share: Annotated[float, Field(ge=0.01, lt=1)] = 0.5
    """Share of its edges that a client draws, once; all that it sends is computed from these."""
    smallest: Count = 5
    """Fewest nodes of a prototype; smaller clusters join the nearest, and a client with fewer nodes has no prototype."""
    partners: Whole = 32
    """Others whose prototypes a client hears of: of more clients, those in its random group; 0: all, as printed."""
    prototype_sigma: NonNegative = 4.0
    """Gaussian noise on prototypes, as a multiple of what replacing one node's embedding can change in a mean; 0: none, and
    then they tell who has a node."""
    sigma: Positive = 2.0
    """nfdp=False: noise multiplier of DP-SGD."""
    pretrain_epochs: Count = 20
    """Epochs of the GNN whose embeddings are clustered."""
    generator_epochs: Count = 50
    """Epochs of the generator, each one full-batch step."""
    generator_lr: Annotated[Positive, Search(0.001, 0.01)] = 0.003
    """Learning rate of the generator's Adam."""
    batch_size: Whole = 32
    """Training nodes in a mini-batch; 0 trains full batch, without sampling neighbours."""
    fanout: Count = 5
    """Neighbours sampled in each layer."""
    fusion: Fusion = "own"
    """How F hears generated embeddings: by weights of their own; before the first layer too, as printed; or by the weights
    of the neighbours for which they stand."""
    joint: bool = False
    """Train the generator inside the rounds, beside the F that is handed out, and not before them."""

    def __post_init__(self) -> None:
        if not self.nfdp:  # noise of its own, of which `mechanisms` tells
            object.__setattr__(self, "training", replace(self.training, dp_sigma=0.0))
        super().__post_init__()
        if self.joint and not (self.dgen and self.proto):
            raise ConfigError("feddep.joint trains a generator beside its prototypes: keep feddep.dgen and feddep.proto on")
        training = replace(self.training, batch_size=self.batch_size, fanouts=self._fanouts(self.model.layers))
        if not self.nfdp:
            training = replace(training, dp_sigma=self.sigma)
        object.__setattr__(self, "model", replace(self.model, kind="sage"))
        object.__setattr__(self, "training", training)

    def beyond_dp_sgd(self) -> str:
        """L^c reads the labels of training nodes, and F is trained on what the generator makes."""
        return "learns its generator from training nodes, without noise, so DP-SGD hides nothing" if self.dgen else ""

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """F's, and those of the network of line 1: its embeddings, clustered or not, leave the client as well."""
        if not self.dgen:
            return super().mechanisms()
        trained = "prototype" if self.proto else "embed_nodes"
        stated = list(super().mechanisms())
        if not self.nfdp:
            stated.append(NoisyGradients(trained, self.pretrain_epochs, self.batch_size, self.sigma))
        elif self.draws_once:
            stated.append(DrawnEdges(self.edge_share))
        else:
            fanouts = self._fanouts(self.depth)
            beside = (f"{'prototypes' if self.proto else 'embeddings'} of all neighbours", "the weights of all rounds")
            stated.append(SampledNeighbours(trained, self.pretrain_epochs, fanouts, self.training.replace, self.r, beside))
        if self.proto and self.prototype_sigma and not self.as_published:
            stated.append(NoisyMeans(trained, self.prototype_sigma))
        return tuple(stated)

    def _fanouts(self, layers: int) -> tuple[int, ...]:
        return (self.fanout,) * layers if self.batch_size else ()

    @property
    def draws_once(self) -> bool:
        """Whether all that leaves a client is computed from edges that it drew before line 1."""
        return self.dgen and self.nfdp and not self.as_published

    @property
    def kept_share(self) -> float:
        """r; one without NFDP, of which the Bernoulli sampler is a part."""
        return self.r if self.nfdp else 1.0

    @property
    def generator_training(self) -> TrainingSettings:
        """How the generator's optimiser is set."""
        return TrainingSettings(optimizer="adam", lr=self.generator_lr)

    def backbone(self, task: Task) -> FusedSage:
        """F."""
        if task.module is not None:
            raise ConfigError("feddep needs its own model: a layer of yours would not know what to do with embeddings")
        return FusedSage(self.model, task.features, task.classes, self.d_z, self.fusion)

    def deep_generator(self, task: Task) -> DeepGenerator:
        """DGen; its encoder is as deep and wide as F."""
        return DeepGenerator(Sage(replace(self.model, head=False), task.features, self.d_z), self.most)

    def pretraining(self, task: Task) -> tuple[Sage, Tree, TrainingSettings]:
        """The network of line 1, its first weights, and how every client trains it alone."""
        network = Sage(replace(self.model, layers=self.depth, hidden=self.d_z, head=True), task.features, task.classes)
        settings = replace(self.training, local_epochs=self.pretrain_epochs, fanouts=self._fanouts(self.depth))
        return network, network.init(generator(task.seed, "initial local network")), settings
