"""A small cut graph, and the checks that hold for every method whatever it does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from suture.core.message import Nothing, Record
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of, uncut
from suture.graph.synthetic import contextual_block_model
from suture.method import Clients, Method, Task
from suture.methods import own_fields
from suture.settings import ModelSettings, TrainingSettings

TOLERANCE = 2e-5


@dataclass(frozen=True)
class World:
    """Four clients of different sizes, one of them almost without edges, and the uncut graph."""

    clients: GraphBatch
    whole: GraphBatch
    task: Task

    def graph_for(self, method: Method[Any, Any]) -> GraphBatch:
        return self.whole if method.sees_uncut_graph else self.clients

    def without_edges(self, *names: str) -> World:
        """The same world, in which these clients are graphless."""
        graph = self.clients
        hidden = torch.tensor([name in names for name in graph.ids])
        seen = ~hidden[graph.segments.client[graph.edge_index[0]]]
        return dataclasses.replace(self, clients=dataclasses.replace(graph, edge_index=graph.edge_index[:, seen]))


def small_world(seed: int = 0) -> World:
    data = contextual_block_model(nodes=120, classes=3, features=40, degree=5.0, communities=2, seed=seed)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(seed))
    members = [piece.sort().values for piece in order.split([50, 35, 25, 10])]
    roles = (torch.arange(120) % 3 + 1).to(torch.int8)
    ids = [f"owner-{name}" for name in ("ash", "birch", "cedar", "dogwood")]
    clients = batch_of(data, ids, members, [roles[m] for m in members], [False] * 4)
    return World(clients, uncut(data, roles), Task(features=40, classes=3, seed=seed))


# Fields that only say for how long something is trained before the rounds.
BRIEF = {"generator_epochs": 3}


def small(method: type[Method[Any, Any]], **fields: Any) -> Method[Any, Any]:
    """The method with two rounds of two local epochs on a small model."""
    fields = {name: value for name, value in BRIEF.items() if name in own_fields(method)} | fields
    model = ModelSettings(hidden=8, head=True, dropout=0.5)
    training = TrainingSettings(rounds=2, local_epochs=2, lr=0.05, **fields.pop("training", {}))
    return method(model=model, training=training, **fields)


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


def run_to_end(method: Method[Any, Any], graph: GraphBatch, task: Task, **engine: Any) -> Ending:
    cohort = EmbeddedCohort.start(method, graph, task, **engine)
    server = method.init_server(task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    return ending(method, server, cohort)


def ending(method: Method[Any, Any], server: Record, cohort: EmbeddedCohort[Any]) -> Ending:
    states = [state.select([name]) for state in cohort.states() for name in state.ids]
    return Ending(server, sorted(states, key=lambda state: state.ids), cohort.evaluate(Nothing(cohort.ids)))


def assert_same(left: Ending, right: Ending, tolerance: float = TOLERANCE) -> None:
    assert_close(left.server, right.server, tolerance)
    assert len(left.states) == len(right.states)
    for mine, theirs in zip(left.states, right.states, strict=True):
        assert_close(mine, theirs, tolerance)
    assert_close(left.scores, right.scores.select(left.scores.ids), tolerance)


def assert_close(left: Record, right: Record, tolerance: float) -> None:
    assert type(left) is type(right)
    mine, theirs = left.tensors(), right.tensors()
    assert mine.keys() == theirs.keys()
    for path, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[path], rtol=tolerance, atol=tolerance, msg=lambda m, p=path: f"{p}: {m}")


def assert_separable(method: Method[Any, Any], world: World) -> None:
    """Batched, one client at a time, and one client at a time through bytes must end alike.

    A step that looks at another client's graph, state or message cannot pass: alone, it would not find them.
    """
    graph = world.graph_for(method)
    together = run_to_end(method, graph, world.task)
    alone = run_to_end(method, graph, world.task, chunk_size=1)
    through_bytes = run_to_end(method, graph, world.task, chunk_size=1, through_bytes=True)
    assert_same(together, alone)
    # Bytes change nothing at all, so here not even rounding may differ.
    assert_same(alone, through_bytes, tolerance=0.0)


def permuted(world: World, order: list[int]) -> World:
    ids = [world.clients.ids[k] for k in order]
    return dataclasses.replace(world, clients=world.clients.select(ids))
