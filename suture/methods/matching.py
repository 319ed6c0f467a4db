"""Private matching: owners find out who holds the foreign ends of their links, before a run, by way of the server.

    1  everybody        presents the name of its lasting scalar b                                            Presented
    2  owner i          blinds the ids it has links to, those that a peer has not answered yet               Questions
    3  owner j          blinds them once more with b, and adds a table of what it holds, as far as new       Answers
    4  owner i          takes its own blinding off, and looks into the tables                                Found

Real owners sign what they ask (2) and what they answer (3), each part for the one it is for. A server that could ask in
an owner's name would learn what others hold; one that could answer with a scalar and a table of its own, to whom
somebody has links.

Steps 2 to 4 are `suture.privacy.blinding` between every two owners. Owner i learns which of its own foreign ends j holds,
and a secret number for each; with that number and the name of a run both compute the address by which they speak of the node
in that run (`suture.graph.boundary`): another one in every run, that nobody else can connect with an id. The server relays
points, tags and sizes. With `pad`, questions and tables are filled up with made-up ones to a multiple of it, so that sizes
are told that coarsely.

Lists only grow, and everybody says how far it has those of the others: repeated, only new ids travel, of both sides. Of an
owner with another scalar than before all is forgotten. Legend: P owners, Q questions, T entries of tables.

It is no method to choose; runs that stitch carry it out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from suture.core.kernels import pointers
from suture.core.message import Message, Model, Nothing, Record, Rows
from suture.method import Clients, Cohort, Method, Phase, Task, step
from suture.methods.matched import (
    BETWEEN,
    NOBODY,
    Book,
    Matched,
    books_of,
    held_by,
    key_for,
    record_of,
    secrets_of,
    wanted_of,
)
from suture.methods.matching_messages import (
    Answers,
    Asked,
    Found,
    Peers,
    Presented,
    Questions,
    counts_of,
    heard_from,
    part_of,
    rows_of,
    split_up,
    to_askers,
    to_peers,
    unsigned,
)
from suture.privacy.blinding import ENTRY, SIZE, codes_of, entries, hashed_times, key_id, things, times, usable_scalar
from suture.settings import Whole


@dataclass(frozen=True)
class Relayed(Record):
    """The server remembers nothing."""


@dataclass(frozen=True)
class Matching(Method[Relayed, Matched]):
    """The box above."""

    name: ClassVar[str] = "matching"
    summary: ClassVar[str] = "who holds the foreign ends of links, found out privately before a run"

    pad: Whole = 0
    """Questions and tables are filled up to a multiple of this; 0: not at all."""

    def init_server(self, task: Task) -> Relayed:
        """Nothing."""
        return Relayed(("server",))

    def init_clients(self, clients: Clients[Nothing]) -> Matched:
        """Nobody was asked yet."""
        return record_of(clients.ids, [Book() for _ in clients.ids])

    def plan(self) -> tuple[Phase[Relayed], ...]:
        """All of it."""
        return (Phase("match", self.match),)

    def match(self, server: Relayed, cohort: Cohort) -> Relayed:
        """The server's part: names, and who gets whose."""
        presented = cohort.ask(self.present, Nothing(cohort.ids))
        names = tuple(sorted(presented.ids))
        keys = presented.select(names).key
        everybody = Rows(keys.repeat(len(names), 1), pointers(torch.full((len(names),), len(names))))
        asked = cohort.ask(self.ask_ids, Peers(names, BETWEEN.join(names), everybody)).select(names)
        answers = cohort.ask(self.answer, to_peers(asked)).select(names)
        cohort.ask(self.take, to_askers(asked, answers))
        return server

    # Client side

    @step
    def present(self, clients: Clients[Matched], message: Nothing) -> tuple[Matched, Presented]:
        """Line 1."""
        keys = [np.frombuffer(key_id(_scalars(clients, k, "holding")[0]), dtype=np.uint8) for k in range(len(clients.ids))]
        return clients.state, Presented(clients.ids, torch.from_numpy(np.stack(keys)))

    @step
    def ask_ids(self, clients: Clients[Matched], peers: Peers) -> tuple[Matched, Questions]:
        """Line 2."""
        names, books, points = tuple(peers.names.split(BETWEEN)), books_of(clients.state), []
        for k, owner in enumerate(clients.ids):
            keys = part_of(peers.keys, k)
            if len(keys) != len(names) or len(set(names)) != len(names) or owner not in names:
                raise ValueError("everybody must be named once, with one key each, and this owner too")
            book = books[k].among({name: key.tobytes() for name, key in zip(names, keys, strict=True)})
            books[k], blinded = self._asking(clients, k, book, names)
            points.append(blinded)
        return record_of(clients.ids, books), Questions(
            clients.ids,
            BETWEEN.join(names),
            rows_of(points, SIZE),
            torch.tensor([_start(book, owner, names) for book, owner in zip(books, clients.ids, strict=True)]),
            counts_of([[len(book.peers[name].codes) for name in names] for book in books]),
            counts_of([[len(book.peers[name].table) for name in names] for book in books]),
            *unsigned(len(books), len(names)),
        )

    def _asking(self, clients: Clients[Matched], k: int, book: Book, names: Sequence[str]) -> tuple[Book, np.ndarray]:
        """The notes with new questions, and all that some peer has not answered yet as points, [Q, 32]."""
        start, before = _start(book, clients.ids[k], names), book.asked.size
        asked = np.concatenate([book.asked, filled(np.setdiff1d(wanted_of(clients.graph, k), book.asked), self.pad)])
        scalar = _scalars(clients, k, "asking", asked.size, start)[0]
        points = hashed_times(scalar, _things(clients, k, "asked", asked, start))
        # New ones in an order that says nothing of what is asked; earlier ones stay where they were.
        old, new = points[: before - start], points[before - start :]
        order = np.lexsort(new.T[::-1])
        asked = np.concatenate([book.asked, asked[before:][order]])
        return replace(book, asked=asked), np.concatenate([old, new[order]])

    @step
    def answer(self, clients: Clients[Matched], asked: Asked) -> tuple[Matched, Answers]:
        """Line 3."""
        books, names, points, tables, begun, lost = books_of(clients.state), asked.names.split(BETWEEN), [], [], [], []
        for k, owner in enumerate(clients.ids):
            questions, counts, known = part_of(asked.points, k), part_of(asked.counts, k), part_of(asked.tables, k)
            if counts.size != len(names) or known.size != len(names):
                raise ValueError("questions and their counts do not fit together")
            split_up(questions, counts)
            theirs = [int(one) for name, one in zip(names, known, strict=True) if name != owner]
            lost.append(int(max(theirs, default=0) > books[k].published.size))
            start = 0 if lost[-1] else min(theirs, default=0)
            books[k], table = self._published(clients, k, books[k], start)
            points.append(times(_scalars(clients, k, "holding")[0], questions))
            tables.append(table)
            begun.append(start)
        state = record_of(clients.ids, books)
        told = rows_of(points, SIZE), rows_of(tables, ENTRY), torch.tensor(begun), torch.tensor(lost)
        return state, Answers(clients.ids, *told, *unsigned(len(clients.ids), len(names)))

    def _published(self, clients: Clients[Matched], k: int, book: Book, start: int) -> tuple[Book, np.ndarray]:
        """The notes with all that is held now, and the table from the `start`-th entry on, [T, 24]."""
        before = book.published.size
        published = np.concatenate(
            [book.published, filled(np.setdiff1d(held_by(clients.graph, k), book.published), self.pad)]
        )
        points = hashed_times(_scalars(clients, k, "holding")[0], _things(clients, k, "held", published, start))
        table = entries(points, secrets_of(_key(clients, k, "secrets"), published[start:]))
        old, new = table[: before - start], table[before - start :]
        order = np.lexsort(new.T[::-1])  # sorted by tags, which are as good as random
        published = np.concatenate([book.published, published[before:][order]])
        return replace(book, published=published), np.concatenate([old, new[order]])

    @step
    def take(self, clients: Clients[Matched], found: Found) -> tuple[Matched, Nothing]:
        """Line 4."""
        books, names = books_of(clients.state), found.names.split(BETWEEN)
        for k, owner in enumerate(clients.ids):
            inverse = _scalars(clients, k, "asking", books[k].asked.size, _start(books[k], owner, names))[1]
            parts = heard_from(found, k, books[k])
            opened = codes_of(times(inverse, np.concatenate([points for points, _ in parts.values()])))
            begins = np.cumsum([0, *(len(points) for points, _ in parts.values())])
            for (name, (points, table)), begin in zip(parts.items(), begins[:-1], strict=True):
                books[k] = books[k].hearing(name, opened[begin : begin + len(points)], table)
        return record_of(clients.ids, books), Nothing(clients.ids)

    def deploy(self, server: Relayed, ids: Sequence[str]) -> Message:
        """There is no model."""
        return Nothing(tuple(ids))

    def assemble(self, clients: Clients[Matched], deployed: Message) -> Model:
        """There is no model."""
        return Model(clients.ids, {})


def _start(book: Book, owner: str, names: Sequence[str]) -> int:
    """The first question that some peer has not answered."""
    return min((len(book.peers[name].codes) for name in names if name != owner), default=0)


def _key(clients: Clients[Matched], k: int, *labels: int | str) -> bytes:
    return key_for(clients.graph, k, clients.task.seed, *labels)


def _scalars(clients: Clients[Matched], k: int, *labels: int | str) -> tuple[bytes, bytes]:
    """A scalar of an owner, and its inverse: the same one for the same purpose."""
    return usable_scalar(lambda attempt: _key(clients, k, "scalar", *labels, attempt))


def _things(clients: Clients[Matched], k: int, what: str, addresses: np.ndarray, start: int) -> np.ndarray:
    """What is hashed of these addresses from the `start`-th on; in the place of nobody's something nobody can guess."""
    out = things(addresses[start:])
    for place in np.flatnonzero(addresses[start:] == NOBODY):
        out[place] = np.frombuffer(_key(clients, k, "nobody", what, int(start + place)), dtype=np.uint8)
    return out


def filled(new: np.ndarray, pad: int) -> np.ndarray:
    """New addresses, and nobody's behind them up to a multiple of `pad`."""
    return np.concatenate([new, np.full(-new.size % pad if pad else 0, NOBODY, dtype=np.int64)])
