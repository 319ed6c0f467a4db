"""The vocabulary a method is written in.

A method is a server script with one verb, `replies = cohort.ask(step, message)`. A step is a pure function of the clients
it is given and the message they received; it is written for K clients at once and runs with K = all in one process or
K = 1 at a real owner. Nothing else crosses between clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from suture.config.strict import check_fields
from suture.core.kernels import client_mean
from suture.core.message import Kind, Message, Model, Nothing, Record
from suture.core.streams import Streams, generator
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch, Pairs
from suture.nn.backbones import Backbone, make_backbone
from suture.nn.module import ModuleBackbone, ModuleFactory
from suture.privacy.mechanisms import Mechanism
from suture.seam import Cohort as Cohort
from suture.seam import M as M
from suture.seam import R as R
from suture.seam import S as S
from suture.seam import V as V
from suture.settings import ModelSettings, TrainingSettings

S_co = TypeVar("S_co", bound=Record, covariant=True)
"""What clients keep, to whoever only reads it: clients that keep more will do."""
Step = Callable[["Clients[S]", M], tuple[S, R]]
AnyMethod = "Method[Any, Any]"


@dataclass(frozen=True)
class Task:
    """What everybody knows before the first round."""

    features: int
    classes: int
    seed: int
    module: ModuleFactory | None = None
    """A user's own network, built in this process only; None takes the backbone the settings name."""
    link: bool = False
    """Pairs of nodes are told apart, not classes of nodes; `classes` is then the width of an embedding."""


@dataclass(frozen=True)
class Clients(Generic[S_co]):
    """K clients: their private graphs, what they keep between calls, and one random stream each."""

    graph: GraphBatch
    state: S_co
    rng: Streams
    task: Task
    round: int = 0
    """The number of the iteration inside its phase, from 1; 0 before the first and where a model is only tested."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Names, in the order of the client axis."""
        return self.graph.ids


@dataclass(frozen=True)
class Phase(Generic[V]):
    """One outer loop of an algorithm box: `body` is run `times` times; a run can be resumed between any two."""

    name: str
    body: Callable[[V, Cohort], V]
    times: int = 1
    evaluate: bool = False


@dataclass(frozen=True)
class Scores(Message):
    """What a client tells about its model. Shapes: value float64 and total int64 [K, 3] (train, validation, test), loss [K].

    `value` is the accuracy, or in link prediction the ROC-AUC, over `total` examples (0 where there are none).
    """

    value: Annotated[Tensor, Kind.SCORES]
    total: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]


F = TypeVar("F", bound=Callable[..., Any])


def step(function: F) -> F:
    """Declare a method of a Method to be a client step: only declared steps can be asked for."""
    vars(function)["__is_step__"] = True
    return function


@dataclass(frozen=True)
class Method(ABC, Generic[V, S]):
    """A federated method. Its fields are its hyper-parameters; only its name and fields travel to the clients."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `suture methods`."""
    paper: ClassVar[str] = ""
    one_model: ClassVar[bool] = True
    """One model serves everybody, so that it can be tested on the uncut graph."""
    sees_uncut_graph: ClassVar[bool] = False
    """Trains on the uncut graph as a single client: an upper bound, not a federated method."""
    sees_hidden_edges: ClassVar[bool] = False
    """Is shown the edges that graphless clients do not have: a reference, not an answer to their problem."""
    accepts_graphless: ClassVar[bool] = True
    """Whether a client without any edge can take part."""

    sums: ClassVar[tuple[str, ...]] = ()
    """Steps of whose replies the server needs only the mean, weighted by their `weight`: these can be summed securely or
    robustly."""

    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def init_server(self, task: Task) -> V:
        """What the server starts with."""

    @abstractmethod
    def init_clients(self, clients: Clients[Nothing]) -> S:
        """What the clients start with."""

    @abstractmethod
    def plan(self) -> tuple[Phase[V], ...]:
        """The outer loops, in order."""

    @abstractmethod
    def deploy(self, server: V, ids: Sequence[str]) -> Message:
        """What the server hands to these clients for predicting."""

    @abstractmethod
    def assemble(self, clients: Clients[S], deployed: Message) -> Model:
        """Client side: the complete model, from what was deployed and what the client keeps.

        `Nothing` as `deployed` asks for the model as the last local training left it.
        """

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What the method does to hide its clients' data; `privacy.accountant` says what that is worth. None by default."""
        return ()

    def seen(self, clients: Clients[S], training: bool) -> GraphBatch:
        """The graph that clients train on, or are tested on: their own, unless a method mends or completes it."""
        return clients.graph

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C] of every node."""
        return self.backbone(task).logits(model.params, graph)

    def backbone(self, task: Task) -> Backbone:
        """The network the settings name, or the user's own."""
        if task.module is not None:
            return ModuleBackbone(self.model, task.features, task.classes, task.module)
        return make_backbone(self.model, task.features, task.classes)

    def initial_params(self, task: Task) -> Tree:
        """Weights [1, ...] everybody can compute from the run's public seed."""
        return self.backbone(task).init(generator(task.seed, "initial weights"))

    @step
    def evaluate(self, clients: Clients[S], deployed: Message) -> tuple[S, Scores]:
        """Each client tests its model on its own nodes and tells how good it is, nothing else."""
        with torch.no_grad():
            graph = self.seen(clients, training=False)
            logits = self.predict(graph, self.assemble(clients, deployed), clients.task)
        return clients.state, score(graph, logits)

    @classmethod
    def steps(cls) -> dict[str, Callable[..., Any]]:
        """All declared steps by name."""
        names = (name for name in dir(cls) if getattr(getattr(cls, name), "__is_step__", False))
        return {name: getattr(cls, name) for name in names}


def score(graph: GraphBatch, out_NC: Tensor) -> Scores:
    """Every client's score by role: accuracy of its nodes, or ROC-AUC of its held-out pairs."""
    return _score_links(graph, graph.pairs, out_NC) if graph.pairs is not None else _score_nodes(graph, out_NC)


def _score_nodes(graph: GraphBatch, logits_NC: Tensor) -> Scores:
    clients = len(graph.ids)
    cell = graph.segments.client * 4 + graph.role
    right = torch.bincount(cell[logits_NC.argmax(1) == graph.y], minlength=4 * clients).view(clients, 4)[:, 1:]
    total = torch.bincount(cell, minlength=4 * clients).view(clients, 4)[:, 1:]
    nodes = graph.train.nodes
    loss = torch.nn.functional.cross_entropy(logits_NC[nodes], graph.y[nodes], reduction="none")
    mean_loss = client_mean(loss, graph.train.segments.client, clients)
    return Scores(graph.ids, right.double() / total.clamp_min(1), total, mean_loss)


def _score_links(graph: GraphBatch, pairs: Pairs, out_NC: Tensor) -> Scores:
    clients = len(graph.ids)
    value_P = (out_NC[pairs.nodes[0]] * out_NC[pairs.nodes[1]]).sum(1)
    owner = graph.segments.client[pairs.nodes[0]]
    value = torch.zeros(clients, 3, dtype=torch.float64)
    total = torch.zeros(clients, 3, dtype=torch.int64)
    for role in (2, 3):
        for k in range(clients):
            chosen = (pairs.role == role) & (owner == k)
            if 0 < int(pairs.label[chosen].sum()) < int(chosen.sum()):
                value[k, role - 1] = roc_auc(value_P[chosen], pairs.label[chosen])
                total[k, role - 1] = int(chosen.sum())
    train = pairs.role == 1
    loss = torch.nn.functional.softplus(-value_P[train])
    return Scores(graph.ids, value, total, client_mean(loss, owner[train], clients))


def roc_auc(score_P: Tensor, label_P: Tensor) -> float:
    """The chance that a linked pair scores above an unlinked one, ties counting half (Mann-Whitney)."""
    _, tie = torch.unique(score_P, return_inverse=True)
    size = torch.bincount(tie).double()
    middle_rank = size.cumsum(0) - (size - 1) / 2
    linked = label_P > 0
    positives, negatives = int(linked.sum()), int((~linked).sum())
    rank_sum = float(middle_rank[tie[linked]].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
