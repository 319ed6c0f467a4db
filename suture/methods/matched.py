"""What an owner keeps of private matching (`suture.methods.matching`), and what it makes of it: addresses of a run.

Legend: A ids asked for so far, T own entries published so far, P owners known so far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Record, Rows
from suture.core.streams import Streams
from suture.graph.batch import GraphBatch
from suture.graph.boundary import Boundary
from suture.privacy.blinding import ENTRY, looked_up

NOBODY = -1
"""In the place of an address: a question or an entry that only fills up."""
KEY_ID = 16
BETWEEN = "\n"
"""Between names."""
PERSON = b"suture matched"


@dataclass(frozen=True)
class Matched(Record):
    """What clients keep. Rows: asked, published int64 [A], [T]; keys uint8 [P, 16]; codes, tables uint8 [., 24].

    `answered` and `known`, int64 [P], say how many of the codes and of the tables' entries are of each peer.
    """

    peers: str
    asked: Rows
    published: Rows
    keys: Rows
    answered: Rows
    known: Rows
    codes: Rows
    tables: Rows

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody whom a client knows of."""
        return tuple(self.peers.split(BETWEEN)) if self.peers else ()


@dataclass(frozen=True)
class Peer:
    """What one owner knows of another: its key, tags and pads of the first questions, and its table."""

    key: bytes = bytes(KEY_ID)
    codes: np.ndarray = field(default_factory=lambda: np.zeros((0, ENTRY), np.uint8))
    table: np.ndarray = field(default_factory=lambda: np.zeros((0, ENTRY), np.uint8))


@dataclass(frozen=True)
class Book:
    """One owner's notes: addresses it has asked for, addresses it has published, and what each peer told."""

    asked: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    published: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    peers: Mapping[str, Peer] = field(default_factory=dict)

    def among(self, keys: Mapping[str, bytes]) -> Book:
        """With these owners; what one with another key told before is forgotten."""
        fresh = {name: Peer(key) for name, key in keys.items() if self.peers.get(name, Peer()).key != key}
        return replace(self, peers={**self.peers, **fresh})

    def hearing(self, name: str, codes: np.ndarray, table: np.ndarray) -> Book:
        """With what a peer told now."""
        before = self.peers[name]
        joined = Peer(before.key, np.concatenate([before.codes, codes]), np.concatenate([before.table, table]))
        return replace(self, peers={**self.peers, name: joined})

    def holders(self) -> dict[int, tuple[str, int]]:
        """Of every address that was found: who holds it and the secret; of several holders the first by name."""
        found: dict[int, tuple[str, int]] = {}
        for name in sorted(self.peers, reverse=True):
            peer = self.peers[name]
            there, secrets = looked_up(peer.codes, peer.table)
            asked = self.asked[: len(peer.codes)]
            real = there & (asked != NOBODY)
            found.update({int(a): (name, int(s)) for a, s in zip(asked[real], secrets[real], strict=True)})
        return found

    def held_twice(self) -> int:
        """How many addresses several peers hold."""
        total = np.zeros(self.asked.size, dtype=np.int64)
        for peer in self.peers.values():
            total[: len(peer.codes)] += looked_up(peer.codes, peer.table)[0]
        return int((total > 1).sum())


def books_of(state: Matched) -> list[Book]:
    """The notes of every client."""
    books = []
    for k in range(len(state.ids)):
        part = state.select([state.ids[k]])
        codes = np.split(_array(part.codes), np.cumsum(_array(part.answered))[:-1]) if state.names else []
        tables = np.split(_array(part.tables), np.cumsum(_array(part.known))[:-1]) if state.names else []
        each = zip(state.names, _array(part.keys), codes, tables, strict=True)
        peers = {name: Peer(key.tobytes(), code, table) for name, key, code, table in each}
        books.append(Book(_array(part.asked), _array(part.published), peers))
    return books


def record_of(ids: Sequence[str], books: Sequence[Book]) -> Matched:
    """The same as a record; clients of one process know of the same others."""
    names = tuple(sorted(set().union(*(book.peers for book in books))))
    each = [[book.peers.get(name, Peer()) for name in names] for book in books]
    return Matched(
        tuple(ids),
        BETWEEN.join(names),
        _rows([book.asked for book in books]),
        _rows([book.published for book in books]),
        _rows([np.frombuffer(b"".join(peer.key for peer in one), np.uint8).reshape(-1, KEY_ID) for one in each]),
        _rows([np.array([len(peer.codes) for peer in one], np.int64) for one in each]),
        _rows([np.array([len(peer.table) for peer in one], np.int64) for one in each]),
        _rows([np.concatenate([Peer().codes, *(peer.codes for peer in one)]) for one in each]),
        _rows([np.concatenate([Peer().table, *(peer.table for peer in one)]) for one in each]),
    )


def _array(rows: Rows) -> np.ndarray:
    array: np.ndarray = rows.values.cpu().numpy()
    return array


def _rows(parts: Sequence[np.ndarray]) -> Rows:
    values = torch.from_numpy(np.concatenate(parts).copy())
    return Rows(values, pointers(torch.tensor([len(part) for part in parts], dtype=torch.int64)))


def key_for(graph: GraphBatch, k: int, seed: int, *labels: int | str) -> bytes:
    """32 bytes for one purpose: of a real owner's lasting secret, or in a simulation of the seed."""
    if graph.secret is not None:
        words = graph.secret.fork("matching", *labels).words(4)
    else:
        words = Streams.of(seed, [graph.ids[k]], "matching", *labels).bits(torch.tensor([0, 1]), 4)
    return words.cpu().contiguous().numpy().tobytes()


def wanted_of(graph: GraphBatch, k: int) -> np.ndarray:
    """The addresses of a client's foreign ends, each once."""
    if graph.boundary is None:
        return np.zeros(0, np.int64)
    known = graph.boundary.between(*graph.segments.bounds[k : k + 2])
    return np.unique(known.foreign.cpu().numpy())


def held_by(graph: GraphBatch, k: int) -> np.ndarray:
    """The addresses of a client's own nodes."""
    if graph.boundary is None:
        return np.zeros(0, np.int64)
    first, last = graph.segments.bounds[k : k + 2]
    return np.unique(graph.boundary.address[first:last].cpu().numpy())


def secrets_of(key: bytes, addresses: np.ndarray) -> np.ndarray:
    """A holder's secret about each of its nodes, int64 [N]."""
    return _hashes(addresses, b"", key)


def private_boundary(graph: GraphBatch, state: Matched, seed: int, run: str) -> Boundary:
    """The same links under addresses of this run, which only holders of a node and those linked with it can compute.

    A foreign end that nobody holds keeps its link, under an address that is nobody's.
    """
    known = graph.boundary
    if known is None:
        raise ValueError("nobody knows of any link")
    address, foreign = known.address.clone(), known.foreign.clone()
    end_of = graph.segments.client[known.node]
    for k, book in enumerate(books_of(state)):
        first, last = graph.segments.bounds[k : k + 2]
        mine = known.address[first:last].cpu().numpy()
        secrets = secrets_of(key_for(graph, k, seed, "secrets"), mine)
        address[first:last] = _in_run(secrets, run).to(address.device)
        links = torch.nonzero(end_of == k).squeeze(1)
        ends, holders = known.foreign[links].cpu().numpy(), book.holders()
        told = np.array([holders[int(end)][1] if int(end) in holders else 0 for end in ends], np.int64)
        alone = secrets_of(key_for(graph, k, seed, "nobody's"), ends)
        found = np.array([int(end) in holders for end in ends], bool)
        foreign[links] = _in_run(np.where(found, told, alone), run).to(foreign.device)
    return Boundary(known.node, foreign, address)


def _in_run(secrets: np.ndarray, run: str) -> Tensor:
    """63 bits, as every address has."""
    return torch.from_numpy(_hashes(secrets, run.encode(), b"")).bitwise_and_((1 << 63) - 1)


def _hashes(numbers: np.ndarray, label: bytes, key: bytes) -> np.ndarray:
    """BLAKE2b of each number int64 [N] and a label, int64 [N]."""
    raw = np.ascontiguousarray(numbers, dtype="<i8").tobytes()
    parts = (raw[start : start + 8] for start in range(0, len(raw), 8))
    digests = (hashlib.blake2b(part + label, digest_size=8, key=key, person=PERSON).digest() for part in parts)
    return np.frombuffer(b"".join(digests), dtype="<i8").copy()
