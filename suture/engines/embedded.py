"""The embedded engine: all clients in this process, batched along the client axis.

Clients run in chunks, which bounds memory; a chunk of one is exactly what a real owner would do. Chunk borders are fixed
for a run, so a client's state never moves. With `through_bytes` every message and reply really is packed and unpacked,
client by client, as on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, cast

import torch
from torch import Tensor

from suture.core.message import Message, Model, Nothing, Record, Scalar
from suture.core.streams import Streams, rank
from suture.engines.robust import Robust
from suture.graph.batch import GraphBatch
from suture.method import Clients, Cohort, M, Method, R, S, Scores, Task, V


class Ledger(Protocol):
    """Whoever writes down what was sent."""

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`."""


class NoLedger:
    """Nobody writes anything down."""

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """Ignore it."""


@dataclass
class Chunk(Generic[S]):
    """Some clients that compute together, and what they keep."""

    graph: GraphBatch
    state: S


@dataclass
class Shared(Generic[S]):
    """What a cohort and its samples have in common."""

    method: Method[Any, S]
    task: Task
    chunks: list[Chunk[S]]
    ledger: Ledger
    through_bytes: bool
    robust: Robust | None = None
    asked: int = 0
    round: int = 0
    reports: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)


class EmbeddedCohort(Generic[S]):
    """All clients, or a sample of them; see `suture.method.Cohort`."""

    def __init__(self, shared: Shared[S], ids: Sequence[str]) -> None:
        self._shared = shared
        self._ids = tuple(ids)

    @staticmethod
    def start(
        method: Method[Any, S],
        graph: GraphBatch,
        task: Task,
        *,
        chunk_size: int = 0,
        ledger: Ledger | None = None,
        through_bytes: bool = False,
        robust: Robust | None = None,
    ) -> EmbeddedCohort[S]:
        """Give every client its initial state. `chunk_size` 0 runs all clients at once."""
        size = chunk_size or len(graph.ids)
        chunks = []
        for first in range(0, len(graph.ids), size):
            part = graph.select(graph.ids[first : first + size])
            rng = Streams.of(task.seed, part.ids, "init", device=part.device)
            chunks.append(Chunk(part, method.init_clients(Clients(part, Nothing(part.ids), rng, task))))
        shared = Shared(method, task, chunks, ledger or NoLedger(), through_bytes, robust)
        return EmbeddedCohort(shared, graph.ids)

    @property
    def ids(self) -> tuple[str, ...]:
        """Who belongs to it."""
        return self._ids

    @property
    def asked(self) -> int:
        """How many times clients were asked so far; numbers the random streams."""
        return self._shared.asked

    def sample(self, fraction: float) -> EmbeddedCohort[S]:
        """A random share of the clients, at least one, whatever their order."""
        count = max(1, round(fraction * len(self._ids)))
        if count >= len(self._ids):
            return self
        ranks = rank(self._shared.task.seed, self._ids, "sample", self._shared.asked)
        chosen = {name for _, name in sorted(zip(ranks, self._ids, strict=True))[:count]}
        return EmbeddedCohort(self._shared, [name for name in self._ids if name in chosen])

    def report(self, **values: float) -> None:
        """Keep the numbers until the runner takes them."""
        self._shared.reports.update(values)

    def keep(self, **tensors: Tensor) -> None:
        """Keep the tensors until the runner takes them."""
        self._shared.kept.update({name: tensor.detach().cpu() for name, tensor in tensors.items()})

    def take_kept(self) -> dict[str, Tensor]:
        """The tensors kept since the last call."""
        taken, self._shared.kept = self._shared.kept, {}
        return taken

    def take_reports(self) -> dict[str, float]:
        """The numbers reported since the last call."""
        taken, self._shared.reports = self._shared.reports, {}
        return taken

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run a step on every client of the cohort, chunk by chunk."""
        shared = self._shared
        if not getattr(step, "__is_step__", False):
            raise TypeError(f"{step} is not a declared step of {type(shared.method).__name__}; decorate it with @step")
        shared.asked += 1
        reply = self._ask(step, message, shared.round)
        return shared.robust.fold(step.__name__, reply) if shared.robust else reply

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is; training goes on as if this had not been asked."""
        return self._ask(self._shared.method.evaluate, deployed)

    def _ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M, round: int = 0) -> R:
        shared, name = self._shared, step.__name__
        message = message.select(self._ids)
        shared.ledger.record(shared.asked, name, "down", message)
        replies: list[R] = []
        wanted = set(self._ids)
        for chunk in shared.chunks:
            ids = [name for name in chunk.graph.ids if name in wanted]
            if ids:
                replies.append(self._run(chunk, step, message.select(ids), round))
        reply = type(replies[0]).concat(replies).select(self._ids)
        shared.ledger.record(shared.asked, name, "up", reply)
        return reply

    def _run(self, chunk: Chunk[S], step: Callable[[Clients[S], M], tuple[S, R]], message: M, round: int) -> R:
        shared, ids = self._shared, message.ids
        graph = chunk.graph.select(ids)
        rng = Streams.of(shared.task.seed, ids, "ask", shared.asked, device=graph.device)
        message = on_device(_through_bytes(message) if shared.through_bytes else message, graph.device)
        state, reply = step(Clients(graph, chunk.state.select(ids), rng, shared.task, round), message)
        for record in (state, reply):
            _check(record, ids, step.__name__)
        chunk.state = chunk.state.replace_rows(state)
        return _through_bytes(reply) if shared.through_bytes else reply

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None, round: int = 0) -> V:
        """Iteration `round` of a phase; here nobody can get lost on the way."""
        self._shared.round = round
        return body(server, cast(Cohort, self))

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """The complete models of these clients, for the run to keep."""
        method = self._shared.method
        return self.peek(lambda clients: method.assemble(clients, deployed.select(clients.ids))).select(ids)

    def committed(self) -> None:
        """A checkpoint has been written; states live in it, so there is nothing to do."""

    def peek(self, look: Callable[[Clients[S]], R]) -> R:
        """What an experimenter, but no server, may see: `look` at the clients without asking them anything."""
        views = [Clients(chunk.graph, chunk.state, self._rng(chunk), self._shared.task) for chunk in self._shared.chunks]
        seen = [look(view) for view in views]
        return type(seen[0]).concat(seen)

    def _rng(self, chunk: Chunk[S]) -> Streams:
        return Streams.of(self._shared.task.seed, chunk.graph.ids, "peek", device=chunk.graph.device)

    def states(self) -> list[S]:
        """What the clients keep, chunk by chunk, for a checkpoint."""
        return [chunk.state for chunk in self._shared.chunks]

    def restore(self, states: Sequence[S], asked: int) -> None:
        """Continue from a checkpoint."""
        for chunk, state in zip(self._shared.chunks, states, strict=True):
            chunk.state = state
        self._shared.asked = asked


def _through_bytes(message: M) -> M:
    kind = type(message)
    return kind.concat([kind.unpack(message.select([name]).pack()) for name in message.ids])


def _check(record: Record, ids: tuple[str, ...], step: str) -> None:
    if record.ids != ids:
        raise ValueError(f"step {step} was given clients {ids} and answered for {record.ids}")
    for path, tensor in record.tensors().items():
        if tensor.requires_grad:
            raise ValueError(f"step {step} returned {path} with an autograd tape attached; detach it")


def on_device(message: M, device: torch.device) -> M:
    """The message with its tensors on `device`; itself if they are there already."""
    tensors = message.tensors()
    if all(tensor.device == device for tensor in tensors.values()):
        return message
    scalars = {name: value for name, value in message.contents() if isinstance(value, Scalar)}
    return type(message).from_tensors(message.ids, scalars, {path: t.to(device) for path, t in tensors.items()})
