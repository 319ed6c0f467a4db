"""The embedded engine: all clients in this process, batched along the client axis.

Clients run in chunks, which bounds memory; a chunk of one is exactly what a real owner would do. Chunk borders are fixed
for a run, so a client's state never moves. With `through_bytes` every message and reply really is packed and unpacked,
client by client, as on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, cast

import torch

from suture.core.message import AnyRecord, Message, Model, Nothing, Record
from suture.core.packing import Scalar
from suture.core.streams import Streams
from suture.engines.robust import Robust
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, Scores, Task
from suture.seam import Cohort, CohortBase, Common, Ledger, M, NoLedger, R, S, V, check_step


@dataclass
class Chunk(Generic[S]):
    """Some clients that compute together, and what they keep."""

    graph: GraphBatch
    state: S


@dataclass
class Shared(Common, Generic[S]):
    """What a cohort and its samples have in common."""

    method: Method[Any, S]
    chunks: list[Chunk[S]]
    ledger: Ledger
    through_bytes: bool
    robust: Robust | None = None


class EmbeddedCohort(CohortBase[Shared[S]], Generic[S]):
    """All clients, or a sample of them; see `suture.seam`."""

    one_by_one: ClassVar[bool] = False
    """One client at a time and every message through bytes, whatever is asked for."""
    overwrites: ClassVar[bool] = True
    """Whether steps may write over what this engine is about to forget."""

    @classmethod
    def start(
        cls,
        method: Method[Any, S],
        graph: GraphBatch,
        task: Task,
        *,
        chunk_size: int = 0,
        ledger: Ledger | None = None,
        through_bytes: bool = False,
        robust: Robust | None = None,
    ) -> Self:
        """Give every client its initial state. `chunk_size` 0 runs all clients at once."""
        size, through_bytes = (1, True) if cls.one_by_one else (chunk_size or len(graph.ids), through_bytes)
        parts = [graph.select(graph.ids[first : first + size]) for first in range(0, len(graph.ids), size)]
        chunks = [cls._chunk(method, part, task) for part in parts]
        return cls(Shared(method, chunks, ledger or NoLedger(), through_bytes, robust, task=task), graph.ids)

    @staticmethod
    def _chunk(method: Method[Any, S], part: GraphBatch, task: Task) -> Chunk[S]:
        """These clients with their initial state."""
        rng = Streams.of(task.seed, part.ids, "init", device=part.device)
        return Chunk(part, method.init_clients(Clients(part, Nothing(part.ids), rng, task)))

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run a step on every client of the cohort, chunk by chunk."""
        shared = self._common
        check_step(step, shared.method)
        shared.asked += 1
        reply = self._ask(step, message, shared.round)
        return shared.robust.fold(step.__name__, reply) if shared.robust else reply

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is; training goes on as if this had not been asked."""
        return self._ask(self._common.method.evaluate, deployed)

    def _ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M, round: int = 0) -> R:
        shared, name = self._common, step.__name__
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
        shared, ids = self._common, message.ids
        graph = chunk.graph.select(ids)
        rng = Streams.of(shared.task.seed, ids, "ask", shared.asked, device=graph.device)
        message = on_device(_through_bytes(message) if shared.through_bytes else message, graph.device)
        given = chunk.state.select(ids)
        # What some clients keep may lie in the memory of everybody's.
        spent = self.overwrites and given is chunk.state
        state, reply = step(Clients(graph, given, rng, shared.task, round, spent), message)
        for record in (state, reply):
            _check(record, ids, step.__name__)
        chunk.state = chunk.state.written_over(given, state)
        graph.release()
        return _through_bytes(reply) if shared.through_bytes else reply

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None) -> V:
        """One iteration of a phase; here nobody can get lost on the way."""
        return body(server, cast(Cohort, self))

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """The complete models of these clients, for the run to keep."""
        method = self._common.method
        return self.peek(lambda clients: method.assemble(clients, deployed.select(clients.ids))).select(ids)

    def committed(self) -> None:
        """A checkpoint has been written; states live in it, so there is nothing to do."""

    def peek(self, look: Callable[[Clients[S]], AnyRecord]) -> AnyRecord:
        """What an experimenter, but no server, may see: `look` at the clients without asking them anything."""
        views = [Clients(chunk.graph, chunk.state, self._rng(chunk), self._common.task) for chunk in self._common.chunks]
        seen = [look(view) for view in views]
        return type(seen[0]).concat(seen)

    def _rng(self, chunk: Chunk[S]) -> Streams:
        return Streams.of(self._common.task.seed, chunk.graph.ids, "peek", device=chunk.graph.device)

    def states(self) -> list[S]:
        """What the clients keep, chunk by chunk, for a checkpoint."""
        return [chunk.state for chunk in self._common.chunks]

    def restore(self, states: Sequence[S], asked: int) -> None:
        """Continue from a checkpoint; its clients may have been together in other chunks."""
        chunks = self._common.chunks
        if [state.ids for state in states] != [chunk.graph.ids for chunk in chunks]:
            everybody = type(states[0]).concat(states)
            states = [everybody.select(chunk.graph.ids) for chunk in chunks]
        for chunk, state in zip(chunks, states, strict=True):
            chunk.state = state
        self._common.asked = asked


def _through_bytes(message: M) -> M:
    kind = type(message)
    return kind.concat([kind.unpack(message.select([name]).pack()) for name in message.ids])


def _check(record: Record, ids: tuple[str, ...], step: str) -> None:
    if record.ids != ids:
        raise ValueError(f"step {step} was given clients {ids} and answered for {record.ids}")
    if any(tensor.requires_grad for tensor in record.every_tensor()):
        path = next(path for path, tensor in record.tensors().items() if tensor.requires_grad)
        raise ValueError(f"step {step} returned {path} with an autograd tape attached; detach it")


def on_device(message: AnyRecord, device: torch.device) -> AnyRecord:
    """The message, or any record, with its tensors on `device`; itself if they are there already."""
    if all(tensor.device == device for tensor in message.every_tensor()):
        return message
    tensors = message.tensors()
    scalars = {name: value for name, value in message.contents() if isinstance(value, Scalar)}
    return type(message).from_tensors(message.ids, scalars, {path: t.to(device) for path, t in tensors.items()})
