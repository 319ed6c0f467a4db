"""Private matching in this process: all owners' links under addresses that nobody but their two ends could compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch
from suture.method import Method, Task
from suture.methods.matched import Book, Matched, books_of, private_boundary
from suture.methods.matching import Matching
from suture.runs.counting import Record, Sent
from suture.settings import PartitionSettings


@dataclass(frozen=True)
class Matches:
    """The clients with private addresses, what must be said of it, and what was sent for it."""

    clients: GraphBatch
    notes: tuple[str, ...]
    sent: tuple[Sent, ...]


def uses_links(method: Method[Any, Any]) -> bool:
    """Whether a method tells others anything over links that owners know."""
    return method.knows_links or method.training.stitch > 0


def matching_of(settings: PartitionSettings) -> Matching:
    """The exchange that a protocol asks for."""
    return Matching(pad=settings.matching_pad)


def matched(clients: GraphBatch, settings: PartitionSettings, seed: int) -> Matches:
    """Carry matching out between the clients."""
    method, task, record = matching_of(settings), Task(clients.x.width, 1, seed), Record()
    cohort = EmbeddedCohort.start(method, clients, task, ledger=record)
    server = method.init_server(task)
    for phase in method.plan():
        cohort.begin(phase.name, 1)
        server = cohort.carry_out(phase.body, server)
    state = Matched.concat(cohort.states())
    boundary = private_boundary(clients, state, seed, f"seed {seed}")
    return Matches(replace(clients, boundary=boundary), tuple(notes_of(books_of(state))), tuple(record.sent))


def notes_of(books: Sequence[Book]) -> Iterator[str]:
    """What is said of foreign ids that were, and were not, found."""
    wanted = sum(int((book.asked >= 0).sum()) for book in books)
    found, twice = sum(len(book.holders()) for book in books), sum(book.held_twice() for book in books)
    yield (
        f"{found:,} of {wanted:,} foreign ids were matched privately: their holders are known to those who asked, and "
        "others see neither ids nor hashes of them"
    )
    if wanted > found:
        yield f"{wanted - found:,} foreign ids are held by no owner that takes part: nothing is heard over their links"
    if twice:
        yield f"{twice:,} foreign ids are held by several owners: the first by name is heard"
