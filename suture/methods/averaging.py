"""Averaging: the round that FedAvg and its many relatives share, with a hook for each line in which they differ.

    for t = 1..T
      1  server samples a share of the clients, hands each something, and tells them what else they must know
                                                                                                      hand_out, exchange
      2  client k starts from what it received and trains E local epochs on the graph it sees
                                                                      received, informed, seen, loss_terms, frozen_names
      3  client k keeps what it needs and replies                                                     conclude, weight
      4  server makes the replies into what it hands out next                                         combine

A method says what the server keeps (V), what a client keeps (S), what goes down (D) and what comes up (U), and overrides
the hooks of the lines it changes; state is replaced, never rebuilt, so fields it does not know stay as they are.

`ModelAveraging` fills the hooks in for methods whose messages are models: the weighted mean of line 4 is FedAvg's. FedAvg is
the one of them that keeps nothing else. What else than models clients and server share of their optimisers, and how the
server goes on from the mean, is `suture.training.shared`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from suture.core.kernels import Segments, segments_of
from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
from suture.core.tree import Tree, mean, tile
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.graph.target import Kind as TargetKind
from suture.method import Clients, Cohort, Method, Phase, Shared, Task, step, step_if
from suture.methods.links import (
    Asked,
    Heard,
    Offered,
    Wanted,
    asked_of_all,
    known_to,
    own_among,
    routed,
    sums_over_links,
    wanted_by,
)
from suture.methods.stitching import STITCH, heard_by, longest_heard, shortened, stitched, stitched_scores, told_rows
from suture.nn.backbones import GAP
from suture.privacy.mechanisms import Mechanism, NoisyGradients, NoisyRows, NoisySums
from suture.settings import TrainingSettings
from suture.training.batches import Batch
from suture.training.local import sum_terms, train_locally
from suture.training.optimisers import Moments, in_round
from suture.training.shared import at_round_start, client_memory, local_settings, server_step, steps_at_server, taken, told

SERVER = ("server",)


@dataclass(frozen=True)
class Server(Record):
    """The global model: `params` [1, ...]; `moments` that are handed out with it; what its own `optimizer` remembers."""

    params: Tree
    moments: Tree = field(default_factory=dict, kw_only=True)
    optimizer: Tree = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Kept(Record):
    """What a client keeps: its model as it last left it [K, ...], and its optimiser's moments.

    Of stitching: which of its nodes others asked for, places among its own, int64 rows; and what it heard of others' nodes
    in every step, rows [N, steps, C + 1].
    """

    params: Tree
    moments: Moments
    stitch_asked: Rows | None = field(default=None, kw_only=True)
    stitch_heard: Rows | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Up(Message):
    """Client to server: trained parameters, the client's weight in the average [K], its training loss [K].

    `moments` go along where a round shares them; sums of gradients are sent in the place of parameters.
    """

    params: Annotated[Tree, Kind.WEIGHTS]
    weight: Annotated[Tensor, Kind.COUNTS]
    loss: Annotated[Tensor, Kind.LOSSES]
    moments: Annotated[Tree, Kind.MOMENTS] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Trained:
    """Where local epochs ended: parameters and moments [K, ...], mean loss of the last epoch [K]."""

    params: Tree
    moments: Moments
    loss: Tensor


V = TypeVar("V", bound=Record)
"""What the server keeps."""
VS = TypeVar("VS", bound=Server)
"""The same, where it is a model and perhaps more."""
S = TypeVar("S", bound=Kept)
"""What a client keeps."""
D = TypeVar("D", bound=Message)
"""What is handed out."""
U = TypeVar("U", bound=Message)
"""What comes back."""


def stitching(method: Method[Any, Any]) -> bool:
    """Whether the plan ends with steps of stitching."""
    return method.training.stitch > 0 and not method.sees_uncut_graph


HOW_REPLIES_ARE_USED = frozenset({"round", "local_update", "conclude", "combine"})
WHO_SEES_MOMENTS = frozenset({"local_update", "train", "informed", "loss_terms", "conclude"})


@dataclass(frozen=True)
class Averaging(Method[V, S], Generic[V, S, D, U]):
    """The box above; see its hooks."""

    targets: ClassVar[frozenset[TargetKind]] = frozenset({"class", "labels", "value"})
    sums_gradients: ClassVar[bool] = False
    """Whether clients add up the gradients of a round: entries `name.sum` of their moments."""
    stitches: ClassVar[bool] = True
    spends: ClassVar[bool] = False
    """Whether no hook looks at moments of before training, so that an engine which forgets them lets it write over them."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if HOW_REPLIES_ARE_USED & vars(cls).keys():
            # Whoever does something else with the replies must promise anew that their sum is enough, and what is shared.
            for promise in ("sums", "shares"):
                if promise not in vars(cls):
                    setattr(cls, promise, ())
        if WHO_SEES_MOMENTS & vars(cls).keys() and "spends" not in vars(cls):
            cls.spends = False

    # Hooks of the server

    @abstractmethod
    def hand_out(self, server: V, ids: Sequence[str]) -> D:
        """Line 1: what these clients start a round from."""

    def exchange(self, server: V, handed: D, sampled: Cohort) -> V:
        """Line 1: ask and tell the clients of this round anything else before they train. Nothing by default."""
        return server

    @abstractmethod
    def combine(self, server: V, handed: D, up: U, cohort: Cohort) -> V:
        """Line 4; `cohort` is everybody. Reports the loss."""

    # Hooks of the clients

    def received(self, clients: Clients[S], down: D) -> Tree:
        """Line 2: the parameters [K, ...] to start from; a method that hands out no `Model` says which."""
        return cast(Model, down).params

    def informed(self, clients: Clients[S], down: D) -> S:
        """Line 2: what clients keep, with what came along with the parameters, for the loss to find it there."""
        return clients.state

    def loss_terms(self, params: Tree, batch: Batch, received: Tree, clients: Clients[S]) -> dict[str, Tensor]:
        """Line 2: what a client minimises is the sum of these, each one value a client [K].

        `received` is what training started from, `clients.state` what the clients keep.
        """
        return {"labels": batch.loss(self.backbone(clients.task), params)}

    def frozen_names(self, task: Task) -> frozenset[str]:
        """Entries of a client's model that no gradient reaches."""
        return self.backbone(task).frozen_names()

    @abstractmethod
    def conclude(self, clients: Clients[S], down: D, trained: Trained) -> tuple[S, U]:
        """Line 3: what the clients keep, and what they send."""

    def weight(self, clients: Clients[S]) -> Tensor:
        """n_k, float [K]."""
        return sizes_of(clients.graph, self.training)

    # The box

    def plan(self) -> tuple[Phase[V], ...]:
        """One loop; and after it steps of stitching, if there are any, of what was cut."""
        rounds = Phase("round", self.round, self.training.rounds, evaluate=True)
        smoothing = Phase(STITCH, self.stitch, self.training.stitch, evaluate=True)
        return (rounds, smoothing) if stitching(self) else (rounds,)

    def round(self, server: V, cohort: Cohort) -> V:
        """Lines 1-4 on the server."""
        sampled = cohort.sample(self.training.participation)
        handed = self.hand_out(server, sampled.ids)
        server = self.exchange(server, handed, sampled)
        return self.combine(server, handed, sampled.ask(self.local_update, handed), cohort)

    @step
    def local_update(self, clients: Clients[S], down: D) -> tuple[S, U]:
        """Lines 2 and 3 on the clients."""
        clients = replace(clients, state=self.informed(clients, down))
        return self.conclude(clients, down, self.train(clients, self.received(clients, down)))

    def train(self, clients: Clients[S], start: Tree) -> Trained:
        """Line 2: the local epochs."""
        params, moments, loss = train_locally(
            self.seen(clients, training=True),
            start,
            at_round_start(clients.state.moments, self.training),
            lambda p, batch: sum_terms(self.loss_terms(p, batch, start, clients)),
            in_round(local_settings(self.training), clients.round),
            clients.rng,
            self.frozen_names(clients.task),
            # Moments that came with a message are the server's, too.
            spent=clients.spent and self.spends and self.training.moments == "own",
        )
        return Trained(params, moments, loss)

    def fresh(self, clients: Clients[Nothing]) -> Kept:
        """Everybody's initial model; `Mine(**vars(self.fresh(clients)), more=...)` is a state with more in it."""
        if steps_at_server(self.training) and self.frozen_names(clients.task):
            raise ConfigError(
                "the network has buffers, such as running means, that an optimiser at the server must not step: "
                "set training.server_optimizer=none and training.server_lr=1"
            )
        params = tile(self.initial_params(clients.task), len(clients.ids), clients.graph.device)
        return Kept(clients.ids, params, client_memory(params, self.training, sums=self.sums_gradients))

    def deploy(self, server: V, ids: Sequence[str]) -> Message:
        """What a round would start from."""
        return self.hand_out(server, ids)

    def assemble(self, clients: Clients[S], deployed: Message) -> Model:
        """What a round would start from, or the model as it was left."""
        left = isinstance(deployed, Nothing)
        return Model(clients.ids, clients.state.params if left else self.received(clients, cast(D, deployed)))

    # Stitching: see `suture.methods.stitching`

    def stitch(self, server: V, cohort: Cohort) -> V:
        """One step: who wants to hear of whom, what they are told, and what they make of it."""
        wanted = cohort.ask(self.stitch_wants, Nothing(cohort.ids))
        cohort.ask(self.stitch_asked_for, asked_of_all(wanted))
        offered = cohort.ask(self.stitch_offer, cast(D, self.deploy(server, cohort.ids)))
        heard = routed(wanted, offered)
        cohort.ask(self.stitch_hear, heard)
        cohort.report(told=float(offered.rows.ptr[-1]), heard=float(heard.offered.values.sum()))
        return server

    @step_if(stitching)
    def stitch_wants(self, clients: Clients[S], message: Nothing) -> tuple[S, Wanted]:
        """To which foreign nodes there are links."""
        return clients.state, Wanted(clients.ids, wanted_by(clients.graph))

    @step_if(stitching)
    def stitch_asked_for(self, clients: Clients[S], asked: Asked) -> tuple[S, Nothing]:
        """Which own nodes others have links to."""
        nodes, segments = own_among(clients.graph, asked), clients.graph.segments
        ptr = segments_of(segments.client[nodes], len(clients.ids)).ptr
        return replace(clients.state, stitch_asked=Rows(segments.place[nodes], ptr)), Nothing(clients.ids)

    @step_if(stitching)
    def stitch_offer(self, clients: Clients[S], down: D) -> tuple[S, Offered]:
        """What is predicted of them so far."""
        graph, asked = clients.graph, cast(Rows, clients.state.stitch_asked)
        with torch.no_grad():
            now = self.stitched(clients, self.assemble(clients, down))
        nodes = asked.values + graph.segments.ptr[Segments(asked.ptr).client]
        rows = told_rows(graph, now, nodes, self.training.stitch_sigma, clients.rng.fork("stitch"))
        addresses = Rows(known_to(graph).address[nodes], asked.ptr)
        return clients.state, Offered(clients.ids, addresses, rows)

    @step_if(stitching)
    def stitch_hear(self, clients: Clients[S], heard: Heard) -> tuple[S, Nothing]:
        """What others predict of the foreign ends."""
        if self.training.stitch_sigma > 0:
            near = shortened(heard.rows.values, longest_heard(self.training.stitch_sigma))
            heard = replace(heard, rows=Rows(near, heard.rows.ptr))
        new, kept = sums_over_links(clients.graph, heard).unsqueeze(1), clients.state.stitch_heard
        joined = new if kept is None else torch.cat([kept.values, new], 1)
        return replace(clients.state, stitch_heard=Rows(joined, clients.graph.segments.ptr)), Nothing(clients.ids)

    def outputs(self, clients: Clients[S], model: Model) -> tuple[GraphBatch, Tensor]:
        """Also what was heard over known links."""
        graph, heard = clients.graph, heard_by(clients.state)
        if heard is None:
            return super().outputs(clients, model)
        return graph, stitched_scores(graph, self._own_outputs(clients, model), heard, self.training)

    def stitched(self, clients: Clients[S], model: Model) -> Tensor:
        """Class probabilities of the clients' own nodes, as far as they have been smoothed, [N, C]."""
        return stitched(clients.graph, self._own_outputs(clients, model), clients.state.stitch_heard, self.training)

    def _own_outputs(self, clients: Clients[S], model: Model) -> Tensor:
        """What the models give for the clients' own nodes, without those that a method put to them, [N, C]."""
        graph, (seen, out) = clients.graph, super().outputs(clients, model)
        return out if seen.num_nodes == graph.num_nodes else out[seen.segments.place < graph.sizes[seen.segments.client]]

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """DP-SGD, noise on sums over neighbours and on what is told over links, if the settings ask for them."""
        training, model = self.training, self.model
        used: tuple[Mechanism, ...] = ()
        if training.dp_sigma > 0:
            used += (NoisyGradients("local_update", training.local_epochs, training.batch_size, training.dp_sigma),)
        if model.kind == GAP and model.gap_sigma > 0:
            used += (NoisySums(model.gap_hops, model.gap_sigma, model.gap_max_degree if model.gap_level == "node" else 0),)
        if training.stitch and training.stitch_sigma > 0:
            sigma = training.stitch_sigma
            used += (NoisyRows("stitch_offer", sigma, training.stitch, training.stitch_share, longest_heard(sigma)),)
        return used


@dataclass(frozen=True)
class ModelAveraging(Averaging[VS, S, Model, Up], Generic[VS, S]):
    """Models go down, trained models come back, and the server's model is their weighted mean."""

    shares: ClassVar[tuple[Shared, ...]] = ("moments", "server")
    spends: ClassVar[bool] = True

    def shared_names(self, task: Task) -> list[str]:
        """Parameters that travel: all of them."""
        return list(self.initial_params(task))

    def initial_shared(self, task: Task) -> Tree:
        """The part of the initial model that travels, [1, ...]."""
        params = self.initial_params(task)
        return {name: params[name] for name in self.shared_names(task)}

    def hand_out(self, server: VS, ids: Sequence[str]) -> Model:
        """The global model for everybody."""
        return Model(tuple(ids), tile(server.params, len(ids)), moments=tile(server.moments, len(ids)))

    def deploy(self, server: VS, ids: Sequence[str]) -> Message:
        """What a round would start from; who predicts needs no moments."""
        return replace(self.hand_out(server, ids), moments={})

    def received(self, clients: Clients[S], down: Model) -> Tree:
        """Received parameters over kept ones."""
        return clients.state.params | down.params

    def informed(self, clients: Clients[S], down: Model) -> S:
        """Received moments over kept ones."""
        return replace(clients.state, moments=taken(clients.state.moments, down.moments)) if down.moments else clients.state

    def conclude(self, clients: Clients[S], down: Model, trained: Trained) -> tuple[S, Up]:
        """Keep everything, send what travels."""
        names = list(down.params)
        if self.training.moments == "server":
            names = [name for name in names if name in self.frozen_names(clients.task)]
        sent = {name: trained.params[name] for name in names}
        moments = told(trained.moments, down.params, self.training)
        state = replace(clients.state, params=trained.params, moments=trained.moments)
        return state, Up(clients.ids, sent, self.weight(clients), trained.loss, moments=moments)

    def combine(self, server: VS, handed: Model, up: Up, cohort: Cohort) -> VS:
        """The mean, weighted by n_k."""
        cohort.report(loss=weighted_loss(up))
        return self.advanced(server, up)

    def advanced(self, server: VS, up: Up) -> VS:
        """The server when the replies' mean has been taken, and its own optimiser has made a step."""
        params, moments = mean(up.params, up.weight), mean(up.moments, up.weight)
        params, optimizer = server_step(server.params, params, moments, server.optimizer, self.training)
        kept = {} if self.training.moments == "server" else moments
        return replace(server, params=params, moments=kept, optimizer=optimizer)


def sizes_of(graph: GraphBatch, training: TrainingSettings) -> Tensor:
    """What clients weigh, and tell of how many nodes they have, float [K]."""
    if training.weighting == "uniform":
        return torch.ones(len(graph.ids), device=graph.device)
    if training.weighting == "rounded":
        return torch.exp2(graph.num_train.clamp_min(1).double().log2().round()).float() * (graph.num_train > 0)
    return (graph.sizes if training.weighting == "nodes" else graph.num_train).float()


class Weighed(Protocol):
    """A reply with the client's weight and training loss, both [K]."""

    @property
    def weight(self) -> Tensor:
        """n_k."""

    @property
    def loss(self) -> Tensor:
        """Of its last local epoch."""


def weighted_loss(up: Weighed) -> float:
    """The clients' training loss, as their models are averaged."""
    return float((up.loss * up.weight).sum() / up.weight.sum().clamp_min(1e-9))
