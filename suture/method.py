"""The vocabulary a method is written in.

A method is a server script with one verb, `replies = cohort.ask(step, message)`. A step is a pure function of the clients
it is given and the message they received; it is written for K clients at once and runs with K = all in one process or
K = 1 at a real owner. Nothing else crosses between clients.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from suture.config.strict import check_fields
from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
from suture.core.metrics import AUTO, Metric, metric_for
from suture.core.streams import Streams, generator
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, Pairs
from suture.graph.parts import Scored
from suture.graph.target import Kind as TargetKind
from suture.graph.target import Target
from suture.nn.backbones import GAP, Backbone, make_backbone
from suture.nn.module import ModuleBackbone, ModuleFactory
from suture.privacy.mechanisms import Mechanism
from suture.seam import Cohort as Cohort
from suture.seam import M as M
from suture.seam import R as R
from suture.seam import S as S
from suture.seam import V as V
from suture.seam import is_asked, is_step
from suture.seam import step as step
from suture.seam import step_if as step_if
from suture.settings import ModelSettings, TrainingSettings
from suture.training.losses import nodes_loss, pairs_loss
from suture.training.shared import steps_at_server

S_co = TypeVar("S_co", bound=Record, covariant=True)
"""What clients keep, to whoever only reads it: clients that keep more will do."""
Step = Callable[["Clients[S]", M], tuple[S, R]]
AnyMethod = "Method[Any, Any]"
Mends = Literal["nothing", "known", "any"]
"""No graph; only that which was trained on; any graph of an owner who took part."""
Shared = Literal["moments", "server"]
"""What a round may share of optimisers: clients' moments, and steps that the server makes."""


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
    metric: str = AUTO
    """By which clients score their models."""


@dataclass(frozen=True)
class Clients(Generic[S_co]):
    """K clients: their private graphs, what they keep between calls, and one random stream each."""

    graph: GraphBatch
    state: S_co
    rng: Streams
    task: Task
    round: int = 0
    """The number of the iteration inside its phase, from 1; 0 before the first and where a model is only tested."""
    spent: bool = False
    """Whether the engine forgets `state` with this step, so that its memory may be written over instead of copied."""

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
    """What a client tells about its model. Shapes: value float64, total int64 [K, 3] (train, validation, test), losses [K].

    `value` is what the metric says of `total` examples (0 where there are none, or too few to say); `loss` is that of the
    training examples, `validation_loss` that of the validation examples (0 where there are none).
    """

    value: Annotated[Tensor, Kind.SCORES]
    total: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]
    validation_loss: Annotated[Tensor, Kind.LOSSES]


@dataclass(frozen=True)
class Supposed(Record):
    """What a method puts in the place of what a cut took away, for whoever has the truth to compare it with.

    `missing` [N_k] neighbours that each node is thought to have lost; `links` [L_k, 2] nodes that are linked, by their place
    at the client; `thing` [N_k] of what the server links, the number inside the client, -1 for none; `meets` [N_k] where a
    node meets those of other clients, a number that means the same to all. Empty: nothing such.
    """

    missing: Rows
    links: Rows
    thing: Rows
    meets: Rows

    @staticmethod
    def of(graph: GraphBatch, links: Rows | None = None, **of_nodes: Tensor | None) -> Supposed:
        """`missing`, `thing` and `meets` are of all nodes, flat."""
        none = torch.zeros(len(graph.ids) + 1, dtype=torch.int64, device=graph.device)
        absent = torch.zeros(0, dtype=torch.int64, device=graph.device)
        rows = {name: Rows(part.long(), graph.segments.ptr) for name, part in of_nodes.items() if part is not None}
        nothing = dict.fromkeys(("missing", "thing", "meets"), Rows(absent, none))
        return Supposed(graph.ids, links=Rows(absent.view(0, 2), none) if links is None else links, **nothing | rows)


@dataclass(frozen=True)
class Method(ABC, Generic[V, S]):
    """A federated method. Its fields are its hyper-parameters; only its name and fields travel to the clients."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    """One line for `suture methods`."""
    paper: ClassVar[str] = ""
    one_model: ClassVar[bool] = True
    """One model serves everybody, so that it can be tested on the uncut graph."""
    serves_untaught: ClassVar[bool] = False
    """Owners have models of their own, but one that had no training node predicts by what the others learnt."""
    sees_uncut_graph: ClassVar[bool] = False
    """Trains on the uncut graph as a single client: a reference, not a federated method."""
    sees_hidden_edges: ClassVar[bool] = False
    """Is shown the edges that graphless clients do not have: a reference, not an answer to their problem."""
    accepts_graphless: ClassVar[bool] = True
    """Whether a client without any edge can take part."""
    mends: ClassVar[Mends] = "nothing"
    """Which graphs `recalled` can mend when a run is over."""
    knows_links: ClassVar[bool] = False
    """Uses far ends of lost links that owners know: what it brings is told apart from what mending without them brings."""
    memory: ClassVar[type[Record]] = Nothing
    """What `remembered` gives, saved with the models of a run."""
    of_nodes: ClassVar[tuple[str, ...]] = ()
    """Entries of a saved model that are of the nodes it was trained on [K, N, ...], and say nothing of others."""
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class"})
    """What it can predict of nodes: one class, several labels, numbers."""

    sums: ClassVar[tuple[str, ...]] = ()
    """Steps of whose replies the server needs the mean alone, by `weight`: these can be summed securely or robustly."""
    of_data: ClassVar[tuple[str, ...]] = ()
    """Those of them whose replies follow from clients' data alone, the same in every run, and that a run asks for once."""
    shares: ClassVar[tuple[Shared, ...]] = ()
    """What its rounds can share of optimisers: `moments` (training.moments=averaged), a model at the `server` that can be
    stepped (training.moments=server, training.server_optimizer)."""
    stitches: ClassVar[bool] = False
    """Whether predictions can be smoothed over known links after its last round (training.stitch)."""

    edges_by_layers: ClassVar[bool] = False
    """Edges reach what a client computes by the layers of its network alone, on its own graph: noise on sums hides them."""

    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _refuse_reserved(cls)

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        _check_training(self)
        if self.training.dp_sigma > 0 and (why := self.beyond_dp_sgd()):
            raise ConfigError(f"{self.name} {why}: set training.dp_sigma=0, or choose another method, such as fedavg")
        kind = type(self)
        if self.model.kind == GAP and not (kind.edges_by_layers and kind.seen is Method.seen):
            raise ConfigError(
                f"model.kind gap hides edges by noise on what layers hear, and {self.name} has layers of its own or uses "
                "edges outside of them; choose a method that does not, such as fedavg, or another model.kind"
            )

    def beyond_dp_sgd(self) -> str:
        """Why DP-SGD would promise too much of the method as it is set, which is refused; empty: it does not."""
        return ""

    def tells_scores(self) -> str:
        """How updates tell how good models are on nodes that they are tested on; empty: they do not."""
        return ""

    def beyond_links(self) -> str:
        """Why the method as it is set cannot predict links, which is refused; empty: it can."""
        return ""

    def beyond_sums(self) -> str:
        """Why secure aggregation would promise too much of the method as it is set, which is refused; empty: it does not."""
        return "" if self.sums else "needs more than sums of its clients' updates"

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
        """Client side: the complete model, from what was deployed (`Nothing`: as training left it) and is kept."""

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What the method does to hide its clients' data; `privacy.accountant` says what that is worth. None by default."""
        return ()

    @property
    def asks_per_iteration(self) -> int:
        """How often one iteration asks the same step at most: an owner does not answer more often than the plan can need."""
        return 1

    def seen(self, clients: Clients[S], training: bool) -> GraphBatch:
        """The graph that clients train on, or are tested on: their own, unless a method mends or completes it."""
        return clients.graph

    def remembered(self, clients: Clients[S]) -> Record:
        """What of the clients' state `recalled` will need when the run is over. Nothing by default."""
        return Nothing(clients.ids)

    def recalled(self, clients: Clients[Any]) -> GraphBatch:
        """After a run: the graph to predict on, mended as for tests, own nodes first; `clients.state` is their memory."""
        return clients.graph

    def supposed(self, clients: Clients[S]) -> Supposed:
        """For pictures of a simulation: what is put in the place of what was lost. Nothing by default."""
        return Supposed.of(clients.graph)

    def server_links(self, server: V) -> Tensor | None:
        """For pictures: the clients' `thing`s that the server links, clients in the order of names, [2, M]; None: none."""
        return None

    @property
    def mending(self) -> Mends:
        """`mends`, where a method's settings have a say in it."""
        return self.mends

    def for_strangers(self, model: Model) -> Model:
        """After a run: the models for nodes of which nothing is known but their features and edges."""
        return Model(model.ids, {n: value[:, :0] if n in self.of_nodes else value for n, value in model.params.items()})

    def predict(self, graph: GraphBatch, model: Model, task: Task) -> Tensor:
        """Class scores [N, C] of every node."""
        return self.backbone(task).logits(model.params, graph)

    def backbone(self, task: Task) -> Backbone:
        """The network the settings name, or the user's own."""
        if task.module is not None:
            return ModuleBackbone(self.model, task.features, task.classes, task.module)
        return make_backbone(self.model, task.features, task.classes).for_run(task.seed)

    def initial_params(self, task: Task) -> Tree:
        """Weights [1, ...] everybody can compute from the run's public seed."""
        return self.backbone(task).init(generator(task.seed, "initial weights"))

    def outputs(self, clients: Clients[S], model: Model) -> tuple[GraphBatch, Tensor]:
        """The graph that clients are tested on, and class scores [N, C] of its nodes."""
        graph = self.seen(clients, training=False)
        return graph, self.predict(graph, model, clients.task)

    @step
    def evaluate(self, clients: Clients[S], deployed: Message) -> tuple[S, Scores]:
        """Each client tests its model on its own nodes and tells how good it is, nothing else."""
        with torch.no_grad():
            graph, logits = self.outputs(clients, self.assemble(clients, deployed))
        return clients.state, score(graph, logits, clients.task.metric, self.training)

    @classmethod
    def steps(cls) -> dict[str, Callable[..., Any]]:
        """All declared steps by name."""
        names = (name for name in dir(cls) if is_step(getattr(cls, name)))
        return {name: getattr(cls, name) for name in names}

    def asked(self) -> frozenset[str]:
        """The steps that the plan asks for, as the method is set; tests are asked for by themselves."""
        steps = type(self).steps().items()
        return frozenset(name for name, one in steps if name != Method.evaluate.__name__ and is_asked(one, self))


def _refuse_reserved(cls: type[Method[Any, Any]]) -> None:
    """A hyper-parameter in the place of something that all methods have would break it without a word."""
    parents = cls.__mro__[1:]
    # A parent's own hyper-parameter may be declared again, with another default.
    fields = {item.name for parent in parents if is_dataclass(parent) for item in dataclasses.fields(parent)}
    fields -= {"model", "training"}
    taken = {name for parent in parents for name in (*vars(parent), *vars(parent).get("__annotations__", {}))} - fields
    for name, hint in vars(cls).get("__annotations__", {}).items():
        if name in taken and "ClassVar" not in str(hint):
            raise ConfigError(
                f"{cls.__qualname__}.{name} is a reserved name: a hyper-parameter cannot take the place of the `{name}` "
                "that all methods have; rename the field, or make it a ClassVar if it is that one"
            )


def _check_training(method: Method[Any, Any]) -> None:
    """Refuse shared moments, steps of the server and stitching where a method does not have them."""
    training, shares, name = method.training, method.shares, method.name
    if training.stitch and not method.stitches:
        raise ConfigError(f"{name} does not stitch predictions over known links: set {name}.training.stitch=0")
    if training.moments == "averaged" and "moments" not in shares:
        raise ConfigError(
            f"{name} does not average its clients' models as fedavg does, so it cannot average their moments: "
            f"set {name}.training.moments=own"
        )
    if steps_at_server(training) and "server" not in shares:
        raise ConfigError(
            f"{name} has no single model at its server that an optimiser could step: "
            f"set {name}.training.server_optimizer=none and {name}.training.server_lr=1"
        )
    if training.moments == "server" and not ("server" in shares and method.one_model):
        raise ConfigError(
            f"{name} trains parameters that do not reach its server, so its optimiser cannot be the server's: "
            f"set {name}.training.moments=averaged or own"
        )


def check_links(method: Method[Any, Any]) -> None:
    """Refuse to let a method predict links that cannot."""
    if why := method.beyond_links():
        raise ConfigError(f"{method.name} {why}: for links choose another method, such as fedavg")


def check_target(method: Method[Any, Any], target: Target) -> None:
    """Refuse to let a method predict what it cannot."""
    if target.kind not in method.targets:
        what = {"class": "one class of a node", "labels": "several labels of a node", "value": "numbers"}
        can = " and ".join(what[kind] for kind in what if kind in method.targets)
        raise ConfigError(f"{method.name} can predict {can}, not {what[target.kind]}; choose another method, such as fedavg")


def score(graph: GraphBatch, out_NC: Tensor, metric: str, training: TrainingSettings) -> Scores:
    """Every client's score by role, of its nodes or of its held-out pairs; a role without enough examples counts none."""
    if graph.pairs is not None:
        return _score_links(graph, graph.pairs, out_NC, metric, training)
    return _score_nodes(graph, out_NC, metric, training)


def _score_nodes(graph: GraphBatch, out_NC: Tensor, metric: str, training: TrainingSettings) -> Scores:
    clients, target = len(graph.ids), graph.target
    scored = graph.once("scored", None, lambda: Scored.of(graph))
    measured, out_EC = metric_for(metric, target.kind), target.in_units(out_NC[scored.chosen])
    value, total = _measured(measured, out_EC, graph.y[scored.chosen], scored.cell, clients)
    losses = [nodes_loss(out_NC[nodes], y, owner, clients, target, training) for nodes, y, owner in scored.losses]
    return Scores(graph.ids, value, total, *losses)


def _score_links(graph: GraphBatch, pairs: Pairs, out_NC: Tensor, metric: str, training: TrainingSettings) -> Scores:
    clients = len(graph.ids)
    value_P = (out_NC[pairs.nodes[0]] * out_NC[pairs.nodes[1]]).sum(1)
    owner = graph.segments.client[pairs.nodes[0]]
    held = pairs.role > 1
    cell = (owner * 4 + pairs.role)[held]
    value, total = _measured(metric_for(metric, "link"), value_P[held], pairs.label[held], cell, clients)
    losses = [
        pairs_loss(value_P[of], pairs.label[of].to(value_P.dtype), owner[of], clients, training)
        for of in (pairs.role == 1, pairs.role == 2)
    ]
    return Scores(graph.ids, value, total, *losses)


def _measured(metric: Metric, output: Tensor, label_E: Tensor, cell_E: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Values and numbers of examples [K, 3] of train, validation and test; of four cells a client the first has no role."""
    total = torch.bincount(cell_E, minlength=4 * clients)
    value = metric.measure(output, label_E, cell_E, 4 * clients).to(total.device)
    known = value.isfinite() & (total > 0)
    value, total = torch.where(known, value, 0), torch.where(known, total, 0)
    return value.view(clients, 4)[:, 1:], total.view(clients, 4)[:, 1:]
