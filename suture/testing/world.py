"""Small cut graphs, runs on them, and comparisons of where runs end."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from suture.core.message import Nothing, Record
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.engines.sealed import folded
from suture.graph.batch import GraphBatch, batch_of, uncut
from suture.graph.boundary import Boundary
from suture.graph.synthetic import contextual_block_model
from suture.method import Clients, Cohort, Method, Task
from suture.settings import ModelSettings, TrainingSettings

TOLERANCE = 2e-5
"""How far rounding may move a result when clients are computed in another grouping or order."""
NODES, CLASSES, FEATURES = 120, 3, 40
IDS = ("owner-ash", "owner-birch", "owner-cedar", "owner-dogwood")


@dataclass(frozen=True)
class World:
    """Some clients, and the uncut graph they are pieces of."""

    clients: GraphBatch
    whole: GraphBatch
    task: Task

    def graph_for(self, method: Method[Any, Any]) -> GraphBatch:
        """What a method trains on."""
        return self.whole if method.sees_uncut_graph else self.clients

    def without_edges(self, *names: str) -> World:
        """The same world, in which these clients are graphless."""
        graph = self.clients
        hidden = torch.tensor([name in names for name in graph.ids])
        seen = ~hidden[graph.segments.client[graph.edge_index[0]]]
        weight = None if graph.edge_weight is None else graph.edge_weight[seen]
        kept = dataclasses.replace(graph, edge_index=graph.edge_index[:, seen], edge_weight=weight)
        if graph.boundary is not None:  # who has no edges knows of none that leads elsewhere
            open_ = ~hidden[graph.segments.client[graph.boundary.node]]
            node, foreign = graph.boundary.node[open_], graph.boundary.foreign[open_]
            kept = dataclasses.replace(kept, boundary=Boundary(node, foreign, graph.boundary.address))
        return dataclasses.replace(self, clients=kept)

    def permuted(self, order: list[int]) -> World:
        """The same clients in another order."""
        return dataclasses.replace(self, clients=self.clients.select([self.clients.ids[k] for k in order]))


@cache
def small_world(seed: int = 0) -> World:
    """Four clients of different sizes, one of them almost without edges; all know where their lost links lead."""
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(seed))
    return _cut([piece.sort().values for piece in torch.split(order, [50, 35, 25, 10])], seed)


@cache
def odd_world(seed: int = 0) -> World:
    """A usual client, a graphless one, one with a single node (to train on), and one whose nodes are all of one class."""
    alike = torch.nonzero(_graph(seed).y == 0).squeeze(1)
    others = torch.nonzero(_graph(seed).y != 0).squeeze(1)
    usual, hidden, single = others[2:40], others[40:], others[:1]
    return _cut([usual, hidden, single, alike], seed).without_edges(IDS[1])


@cache
def weighted_world(seed: int = 0) -> World:
    """The small world with edges that have weights and a direction: half of them, each way by itself, are left."""
    world, rng = small_world(seed), torch.Generator().manual_seed(seed)
    data = _graph(seed)
    source, target = data.edge_index
    kept = torch.rand(NODES, NODES, generator=rng)[source, target] < 0.5
    data.edge_index = data.edge_index[:, kept]
    data.edge_weight = torch.rand(int(kept.sum()), generator=rng) * 3 + 0.1
    bounds = world.clients.segments.bounds
    members = [world.clients.node_id[start:end] for start, end in itertools.pairwise(bounds)]
    roles = [world.clients.role[start:end] for start, end in itertools.pairwise(bounds)]
    clients = batch_of(data, IDS, members, roles, [False] * len(IDS), "both")
    return World(clients, uncut(data, world.whole.role), world.task)


def _graph(seed: int) -> Any:
    return contextual_block_model(nodes=NODES, classes=CLASSES, features=FEATURES, degree=5.0, communities=2, seed=seed)


def _cut(members: list[Tensor], seed: int) -> World:
    data, roles = _graph(seed), (torch.arange(NODES) % 3 + 1).to(torch.int8)
    for piece in members:
        if len(piece) == 1:
            roles[piece] = 1
    clients = batch_of(data, IDS, members, [roles[piece] for piece in members], [False] * len(IDS), "both")
    return World(clients, uncut(data, roles), Task(FEATURES, CLASSES, seed))


def small(method: type[Method[Any, Any]], **values: Any) -> Method[Any, Any]:
    """The method with two rounds of two local epochs on a small model; `values` are its hyper-parameters."""
    model = ModelSettings(**{"hidden": 8, "head": True, "dropout": 0.5, **values.pop("model", {})})
    training = TrainingSettings(**{"rounds": 2, "local_epochs": 2, "lr": 0.05, **values.pop("training", {})})
    return method(model=model, training=training, **values)


def beginning(method: Method[Any, Any], graph: GraphBatch, task: Task) -> Clients[Any]:
    """The clients before anything was asked of them."""
    rng = Streams.of(task.seed, graph.ids, "init")
    return Clients(graph, method.init_clients(Clients(graph, Nothing(graph.ids), rng, task)), rng, task)


@dataclass(frozen=True)
class Ending:
    """Where a run ended: everything the server and the clients keep, and every client's scores."""

    server: Record
    states: list[Record]
    scores: Record

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by where it is."""
        found = {f"server's {path}": tensor for path, tensor in self.server.tensors().items()}
        for state in self.states:
            found |= {f"{path} of {state.ids[0]}": tensor for path, tensor in state.tensors().items()}
        return found | {f"the scores' {path}": tensor for path, tensor in self.scores.tensors().items()}


Watching = Callable[[Any, EmbeddedCohort[Any]], Cohort]
"""(method, cohort) to the cohort that the method is shown in its place."""


def run_to_end(
    method: Method[Any, Any], graph: GraphBatch, task: Task, *, shown: Watching | None = None, **engine: Any
) -> Ending:
    """All phases, without a runner around them."""
    cohort = EmbeddedCohort.start(method, graph, task, **engine)
    return ending(method, carried_out(method, shown(method, cohort) if shown else cohort, task), cohort)


def carried_out(method: Method[Any, Any], cohort: Any, task: Task) -> Record:
    """The server after all phases."""
    server: Record = method.init_server(task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    return server


def ending(method: Method[Any, Any], server: Record, cohort: EmbeddedCohort[Any]) -> Ending:
    """Where a run stands."""
    states = [state.select([name]) for state in cohort.states() for name in state.ids]
    return Ending(server, sorted(states, key=lambda state: state.ids), cohort.evaluate(Nothing(cohort.ids)))


def assert_same(left: Ending, right: Ending, tolerance: float = TOLERANCE) -> None:
    """Two runs ended alike."""
    assert_close(left.server, right.server, tolerance)
    assert len(left.states) == len(right.states)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert_close(mine, theirs, tolerance)
    assert_close(left.scores, right.scores.select(left.scores.ids), tolerance)


def assert_close(left: Record, right: Record, tolerance: float) -> None:
    """Two records hold the same, up to rounding."""
    assert type(left) is type(right), f"one is a {type(left).__name__}, the other a {type(right).__name__}"
    mine, theirs = left.tensors(), right.tensors()
    assert mine.keys() == theirs.keys(), f"one holds {list(mine)}, the other {list(theirs)}"
    for path, tensor in mine.items():
        where = f"{path} of {type(left).__name__} {', '.join(left.ids)}"
        # Where training has driven values far, the smallest of them are rounded like the largest.
        largest = float(tensor.abs().max()) if tensor.numel() and tensor.is_floating_point() else 1.0
        torch.testing.assert_close(
            tensor,
            theirs[path],
            rtol=tolerance,
            atol=tolerance * max(1.0, largest),
            msg=partial("{}: {}".format, where),
        )


def assert_separable(method: Method[Any, Any], world: World, by_bytes: float | None = 0.0) -> Ending:
    """Batched, one client at a time, and one client at a time through bytes must end alike; the place where they do.

    Bytes change nothing, but tensors of one row may then lie elsewhere in memory, and some products round by that:
    `by_bytes` is what they may change, None leaves them out.

    A step that looks at another client's graph, state or message cannot pass: alone, it would not find them.
    """
    graph = world.graph_for(method)
    together = run_to_end(method, graph, world.task)
    alone = run_to_end(method, graph, world.task, chunk_size=1)
    assert_same(together, alone)
    if by_bytes is not None:
        assert_same(alone, run_to_end(method, graph, world.task, chunk_size=1, through_bytes=True), by_bytes)
    return together


def assert_finite(end: Ending) -> None:
    """No NaN and no infinity anywhere."""
    for where, tensor in end.tensors().items():
        assert bool(tensor.isfinite().all()), f"{where} is not finite"


@dataclass(frozen=True)
class Folding:
    """A cohort that answers promised steps with one row, the weighted mean, as secure aggregation does."""

    method: Method[Any, Any]
    cohort: Any

    @property
    def ids(self) -> tuple[str, ...]:
        """Who belongs to it."""
        ids: tuple[str, ...] = self.cohort.ids
        return ids

    def ask(self, step: Callable[..., Any], message: Any) -> Any:
        """The replies, or their mean."""
        reply = self.cohort.ask(step, message)
        return folded(reply) if step.__name__ in self.method.sums else reply

    def sample(self, fraction: float) -> Folding:
        """Some of them."""
        return Folding(self.method, self.cohort.sample(fraction))

    def groups(self, most: int) -> list[Folding]:
        """All of them, in groups."""
        return [Folding(self.method, group) for group in self.cohort.groups(most)]

    def report(self, **values: float) -> None:
        """To whoever watches."""
        self.cohort.report(**values)

    def keep(self, **tensors: Tensor) -> None:
        """To whoever draws."""
        self.cohort.keep(**tensors)
