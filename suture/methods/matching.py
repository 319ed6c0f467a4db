"""Private matching: owners find out who holds the foreign ends of their links, before a run, by way of the server.

    1  everybody        presents the name of its lasting scalar b                                            Presented
    2  owner i          blinds the ids it has links to, those that a peer has not answered yet               Questions
    3  owner j          blinds them once more with b, and adds a table of what it holds, as far as new       Answers
    4  owner i          takes its own blinding off, and looks into the tables                                Found

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Kind, Message, Model, Nothing, Record, Rows
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
from suture.privacy.blinding import ENTRY, SIZE, codes_of, entries, hashed_times, key_id, things, times, usable_scalar
from suture.settings import Whole

Blinded = Annotated[Rows, Kind.BLINDED]
Counted = Annotated[Rows, Kind.COUNTS]


@dataclass(frozen=True)
class Presented(Message):
    """Client to server: what its lasting scalar is known by, uint8 [K, 16]."""

    key: Annotated[Tensor, Kind.KEYS]


@dataclass(frozen=True)
class Peers(Message):
    """Server to client: everybody who takes part, in the order of all counts, and by what its scalar is known, [P, 16]."""

    names: str
    keys: Annotated[Rows, Kind.KEYS]


@dataclass(frozen=True)
class Questions(Message):
    """Client to server: blinded ids [Q, 32], from the `start`-th that it has ever asked for.

    How many each peer has answered already, and how long a table of it is known, int64 [P] each. Real owners sign what they
    ask of each peer: signatures and the certificate, as bytes, and the lengths of these, int64 [P + 1].
    """

    names: str
    points: Blinded
    start: Annotated[Tensor, Kind.COUNTS]
    answered: Counted
    tables: Counted
    proofs: Annotated[Rows, Kind.KEYS]
    proof_sizes: Counted


@dataclass(frozen=True)
class Asked(Message):
    """Server to client: what others ask, one after the other, how many each, and how long a table each has, int64 [P].

    With the signature and the certificate of each, one after the other as bytes, and their lengths, int64 [2 P].
    """

    names: str
    points: Blinded
    counts: Counted
    tables: Counted
    proofs: Annotated[Rows, Kind.KEYS]
    proof_sizes: Counted


@dataclass(frozen=True)
class Answers(Message):
    """Client to server: what was asked, blinded again, in the same order; and its table, from the `start`-th entry on.

    `again`, int64 [K]: 1 if somebody knows more of the table than the client does, which has lost its notes; it is then told
    as a whole.
    """

    points: Blinded
    entries: Blinded
    start: Annotated[Tensor, Kind.COUNTS]
    again: Annotated[Tensor, Kind.COUNTS]


@dataclass(frozen=True)
class Found(Message):
    """Server to client: the others' answers to its questions, and the new parts of their tables, so many entries each."""

    names: str
    points: Blinded
    entries: Blinded
    counts: Counted


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
            keys = _part(peers.keys, k)
            if len(keys) != len(names) or len(set(names)) != len(names) or owner not in names:
                raise ValueError("everybody must be named once, with one key each, and this owner too")
            book = books[k].among({name: key.tobytes() for name, key in zip(names, keys, strict=True)})
            books[k], blinded = self._asking(clients, k, book, names)
            points.append(blinded)
        return record_of(clients.ids, books), Questions(
            clients.ids,
            BETWEEN.join(names),
            _rows(points, SIZE),
            torch.tensor([_start(book, owner, names) for book, owner in zip(books, clients.ids, strict=True)]),
            _counts([[len(book.peers[name].codes) for name in names] for book in books]),
            _counts([[len(book.peers[name].table) for name in names] for book in books]),
            _rows([np.zeros(0, np.uint8) for _ in books]),
            _counts([[0] * (len(names) + 1) for _ in books]),
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
            questions, counts, known = _part(asked.points, k), _part(asked.counts, k), _part(asked.tables, k)
            if counts.size != len(names) or known.size != len(names) or int(counts.sum()) != len(questions):
                raise ValueError("questions and their counts do not fit together")
            theirs = [int(one) for name, one in zip(names, known, strict=True) if name != owner]
            lost.append(int(max(theirs, default=0) > books[k].published.size))
            start = 0 if lost[-1] else min(theirs, default=0)
            books[k], table = self._published(clients, k, books[k], start)
            points.append(times(_scalars(clients, k, "holding")[0], questions))
            tables.append(table)
            begun.append(start)
        state = record_of(clients.ids, books)
        told = _rows(points, SIZE), _rows(tables, ENTRY), torch.tensor(begun), torch.tensor(lost)
        return state, Answers(clients.ids, *told)

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
            points, table, counts = _part(found.points, k), _part(found.entries, k), _part(found.counts, k)
            inverse = _scalars(clients, k, "asking", books[k].asked.size, _start(books[k], owner, names))[1]
            opened, begin, first = codes_of(times(inverse, points)), 0, 0
            for name, count in zip(names, counts, strict=True):
                missing = 0 if name == owner else books[k].asked.size - len(books[k].peers[name].codes)
                end, last = begin + missing, first + int(count)
                books[k] = books[k].hearing(name, opened[begin:end], table[first:last])
                begin, first = end, last
            if begin != len(points) or first != len(table):
                raise ValueError("answers and their counts do not fit together")
        return record_of(clients.ids, books), Nothing(clients.ids)

    def deploy(self, server: Relayed, ids: Sequence[str]) -> Message:
        """There is no model."""
        return Nothing(tuple(ids))

    def assemble(self, clients: Clients[Matched], deployed: Message) -> Model:
        """There is no model."""
        return Model(clients.ids, {})


def asked_of(asked: Questions, i: int, j: int) -> np.ndarray:
    """What the i-th asks of the j-th: what that one has not answered yet, [Q, 32]."""
    part = _part(asked.points, i)
    skip = len(part) if i == j else int(_part(asked.answered, i)[j]) - int(asked.start[i])
    if not 0 <= skip <= len(part):
        raise ValueError(f"{asked.ids[i]} says that more was answered than it has asked")
    return part[skip:]


def to_peers(asked: Questions) -> Asked:
    """What everybody is asked by each other, and how each has signed it."""
    names = asked.ids
    points = [[asked_of(asked, i, j) for i in range(len(names))] for j in range(len(names))]
    tables = [[int(_part(asked.tables, i)[j]) for i in range(len(names))] for j in range(len(names))]
    each = [_split(_part(asked.proofs, i), _part(asked.proof_sizes, i)) for i in range(len(names))]
    none, proofs = np.zeros(0, np.uint8), []
    for j, mine in enumerate(points):  # of those who ask for anything
        pairs = ((each[i][j], each[i][-1]) if len(part) else (none, none) for i, part in enumerate(mine))
        proofs.append([part for pair in pairs for part in pair])
    return Asked(
        names,
        asked.names,
        _rows([np.concatenate(mine) for mine in points], SIZE),
        _counts([[len(part) for part in mine] for mine in points]),
        _counts(tables),
        _rows([np.concatenate(mine) for mine in proofs]),
        _counts([[len(part) for part in mine] for mine in proofs]),
    )


def signed_with(asked: Questions, sign: Callable[[str, bytes], bytes], certificate: bytes) -> Questions:
    """One owner's questions, signed for each peer."""
    (owner,), names = asked.ids, asked.names.split(BETWEEN)
    answered, points = _part(asked.answered, 0), _part(asked.points, 0)
    parts = [points[max(0, int(answered[j]) - int(asked.start[0])) :] for j in range(len(names))]
    each = [sign(name, part.tobytes()) if name != owner else b"" for name, part in zip(names, parts, strict=True)]
    proofs = [np.frombuffer(one, np.uint8) for one in (*each, certificate)]
    sizes = _counts([[len(one) for one in proofs]])
    return replace(asked, proofs=_rows([np.concatenate(proofs)]), proof_sizes=sizes)


def questions_in(asked: Asked) -> dict[str, tuple[bytes, bytes, bytes]]:
    """What one owner is asked, by whom: points, signature and certificate, of those who ask for anything."""
    names, counts = asked.names.split(BETWEEN), _part(asked.counts, 0)
    proofs = _split(_part(asked.proofs, 0), _part(asked.proof_sizes, 0))
    if len(names) != len(counts) or len(proofs) != 2 * len(names) or len(set(names)) != len(names):
        raise ValueError("questions, counts and signatures do not fit together")
    parts = _split(_part(asked.points, 0), counts)
    return {
        name: (parts[k].tobytes(), proofs[2 * k].tobytes(), proofs[2 * k + 1].tobytes())
        for k, name in enumerate(names)
        if counts[k]
    }


def _split(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """One after the other, as long as said."""
    if (sizes < 0).any() or int(sizes.sum()) != len(values):
        raise ValueError("parts and their lengths do not fit together")
    return list(np.split(values, np.cumsum(sizes)[:-1]))


def to_askers(asked: Questions, answers: Answers) -> Found:
    """What everybody hears of each other: answers to its own questions, and of tables what it does not have."""
    names, handed = asked.ids, to_peers(asked)
    points: list[list[np.ndarray]] = [[] for _ in names]
    tables: list[list[np.ndarray]] = [[] for _ in names]
    for j in range(len(names)):
        counts, answered, table = _part(handed.counts, j), _part(answers.points, j), _part(answers.entries, j)
        if len(answered) != int(counts.sum()):
            raise ValueError(f"{names[j]} answers another number of questions than it was asked")
        for i, part in enumerate(np.split(answered, np.cumsum(counts)[:-1])):
            skip = 0 if int(answers.again[j]) else int(_part(handed.tables, j)[i]) - int(answers.start[j])
            points[i].append(part)
            tables[i].append(table[max(0, skip) :] if i != j else table[:0])
    return Found(
        names,
        asked.names,
        _rows([np.concatenate(parts) for parts in points], SIZE),
        _rows([np.concatenate(parts) for parts in tables], ENTRY),
        _counts([[len(part) for part in parts] for parts in tables]),
    )


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


def _part(rows: Rows, k: int) -> np.ndarray:
    """One client's rows."""
    first, last = int(rows.ptr[k]), int(rows.ptr[k + 1])
    part: np.ndarray = rows.values[first:last].cpu().numpy()
    return part


def _rows(parts: Sequence[np.ndarray], width: int | None = None) -> Rows:
    """uint8 rows of every client, [., width] or [.]."""
    values = np.concatenate([part if width is None else part.reshape(-1, width) for part in parts])
    return Rows(torch.from_numpy(values), pointers(torch.tensor([len(part) for part in parts])))


def _counts(parts: Sequence[Sequence[int]]) -> Rows:
    """int64 rows of every client."""
    flat = [number for part in parts for number in part]
    return Rows(torch.tensor(flat, dtype=torch.int64), pointers(torch.tensor([len(part) for part in parts])))
