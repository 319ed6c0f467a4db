"""What passes in private matching (`suture.methods.matching`): messages, who gets whose, and how each part is signed.

Signatures are bytes behind each other, with a certificate at the end; whoever relays them cannot make one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Kind, Message, Rows
from suture.methods.matched import BETWEEN, Book
from suture.privacy.blinding import ENTRY, SIZE

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
    as a whole. Signatures for each who asked and the certificate, as in `Questions`.
    """

    points: Blinded
    entries: Blinded
    start: Annotated[Tensor, Kind.COUNTS]
    again: Annotated[Tensor, Kind.COUNTS]
    proofs: Annotated[Rows, Kind.KEYS]
    proof_sizes: Counted


@dataclass(frozen=True)
class Found(Message):
    """Server to client: the others' answers to its questions, and the new parts of their tables, so many entries each.

    With the signature and the certificate of each, as in `Asked`.
    """

    names: str
    points: Blinded
    entries: Blinded
    counts: Counted
    proofs: Annotated[Rows, Kind.KEYS]
    proof_sizes: Counted


def asked_of(asked: Questions, i: int, j: int) -> np.ndarray:
    """What the i-th asks of the j-th: what that one has not answered yet, [Q, 32]."""
    part = part_of(asked.points, i)
    skip = len(part) if i == j else int(part_of(asked.answered, i)[j]) - int(asked.start[i])
    if not 0 <= skip <= len(part):
        raise ValueError(f"{asked.ids[i]} says that more was answered than it has asked")
    return part[skip:]


def to_peers(asked: Questions) -> Asked:
    """What everybody is asked by each other, and how each has signed it."""
    names = asked.ids
    points = [[asked_of(asked, i, j) for i in range(len(names))] for j in range(len(names))]
    tables = [[int(part_of(asked.tables, i)[j]) for i in range(len(names))] for j in range(len(names))]
    said = [[len(part) > 0 for part in mine] for mine in points]
    return Asked(
        names,
        asked.names,
        rows_of([np.concatenate(mine) for mine in points], SIZE),
        counts_of([[len(part) for part in mine] for mine in points]),
        counts_of(tables),
        *passed_on(asked.proofs, asked.proof_sizes, said),
    )


def unsigned(clients: int, names: int) -> tuple[Rows, Rows]:
    """Proofs and their lengths where nobody has a key."""
    return rows_of([np.zeros(0, np.uint8)] * clients), counts_of([[0] * (names + 1)] * clients)


def signed_by_one(signatures: Sequence[bytes], certificate: bytes) -> tuple[Rows, Rows]:
    """Proofs and their lengths: a signature for each, and the certificate behind them."""
    proofs = [np.frombuffer(one, np.uint8) for one in (*signatures, certificate)]
    return rows_of([np.concatenate(proofs)]), counts_of([[len(one) for one in proofs]])


def passed_on(proofs: Rows, sizes: Rows, said: Sequence[Sequence[bool]]) -> tuple[Rows, Rows]:
    """For everybody the signature and the certificate of each who has said something to it; `said[to][by]`."""
    each = [split_up(part_of(proofs, by), part_of(sizes, by)) for by in range(len(said))]
    none, out = np.zeros(0, np.uint8), []
    for to, mine in enumerate(said):
        pairs = ((each[by][to], each[by][-1]) if spoke else (none, none) for by, spoke in enumerate(mine))
        out.append([part for pair in pairs for part in pair])
    return rows_of([np.concatenate(mine) for mine in out]), counts_of([[len(part) for part in mine] for mine in out])


def signed_with(asked: Questions, sign: Callable[[str, bytes], bytes], certificate: bytes) -> Questions:
    """One owner's questions, signed for each peer."""
    (owner,), names = asked.ids, asked.names.split(BETWEEN)
    answered, points = part_of(asked.answered, 0), part_of(asked.points, 0)
    parts = [points[max(0, int(answered[j]) - int(asked.start[0])) :] for j in range(len(names))]
    each = [sign(name, part.tobytes()) if name != owner else b"" for name, part in zip(names, parts, strict=True)]
    proofs, sizes = signed_by_one(each, certificate)
    return replace(asked, proofs=proofs, proof_sizes=sizes)


def answers_signed_with(
    asked: Asked, answers: Answers, sign: Callable[[str, bytes, bytes], bytes], certificate: bytes
) -> Answers:
    """One owner's answers, and what is new of its table, signed for each who asked."""
    (owner,), names, table = answers.ids, asked.names.split(BETWEEN), part_of(answers.entries, 0)
    points, known = split_up(part_of(answers.points, 0), part_of(asked.counts, 0)), part_of(asked.tables, 0)
    each = [
        b"" if name == owner else sign(name, points[k].tobytes(), news_of(answers, 0, table, int(known[k])).tobytes())
        for k, name in enumerate(names)
    ]
    proofs, sizes = signed_by_one(each, certificate)
    return replace(answers, proofs=proofs, proof_sizes=sizes)


def news_of(answers: Answers, j: int, table: np.ndarray, known: int) -> np.ndarray:
    """What of the j-th's table is new to somebody who has so many entries of it."""
    return table if int(answers.again[j]) else table[max(0, known - int(answers.start[j])) :]


def questions_in(asked: Asked) -> dict[str, tuple[bytes, bytes, bytes]]:
    """What one owner is asked, by whom: points, signature and certificate, of those who ask for anything."""
    names, counts = asked.names.split(BETWEEN), part_of(asked.counts, 0)
    proofs = split_up(part_of(asked.proofs, 0), part_of(asked.proof_sizes, 0))
    if len(names) != len(counts) or len(proofs) != 2 * len(names) or len(set(names)) != len(names):
        raise ValueError("questions, counts and signatures do not fit together")
    parts = split_up(part_of(asked.points, 0), counts)
    return {
        name: (parts[k].tobytes(), proofs[2 * k].tobytes(), proofs[2 * k + 1].tobytes())
        for k, name in enumerate(names)
        if counts[k]
    }


def heard_from(found: Found, k: int, book: Book) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What the k-th hears, by whom it is said to come from: (answers to what that one had not answered, entries)."""
    owner, names, points = found.ids[k], found.names.split(BETWEEN), part_of(found.points, k)
    if len(set(names)) != len(names) or any(name != owner and name not in book.peers for name in names):
        raise ValueError("answers come from others than were asked")
    missing = [0 if name == owner else book.asked.size - len(book.peers[name].codes) for name in names]
    parts = zip(
        split_up(points, np.array(missing)), split_up(part_of(found.entries, k), part_of(found.counts, k)), strict=True
    )
    return {name: part for name, part in zip(names, parts, strict=True) if name != owner}


def proofs_in(found: Found, book: Book) -> dict[str, tuple[bytes, bytes, bytes, bytes]]:
    """What one owner hears, by whom: points, entries, signature and certificate, of those who say anything."""
    names, proofs = found.names.split(BETWEEN), split_up(part_of(found.proofs, 0), part_of(found.proof_sizes, 0))
    if len(proofs) != 2 * len(names):
        raise ValueError("answers and signatures do not fit together")
    signed = {name: (proofs[2 * k].tobytes(), proofs[2 * k + 1].tobytes()) for k, name in enumerate(names)}
    return {
        name: (points.tobytes(), table.tobytes(), *signed[name])
        for name, (points, table) in heard_from(found, 0, book).items()
        if len(points) or len(table)
    }


def split_up(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """One after the other, as long as said."""
    if (sizes < 0).any() or (sizes > len(values)).any() or int(sizes.sum()) != len(values):
        raise ValueError("parts and their lengths do not fit together")
    return list(np.split(values, np.cumsum(sizes)[:-1]))


def to_askers(asked: Questions, answers: Answers) -> Found:
    """What everybody hears of each other: answers to its own questions, and of tables what it does not have."""
    names, handed = asked.ids, to_peers(asked)
    points: list[list[np.ndarray]] = [[] for _ in names]
    tables: list[list[np.ndarray]] = [[] for _ in names]
    for j in range(len(names)):
        counts, answered, table = part_of(handed.counts, j), part_of(answers.points, j), part_of(answers.entries, j)
        if len(answered) != int(counts.sum()):
            raise ValueError(f"{names[j]} answers another number of questions than it was asked")
        for i, part in enumerate(np.split(answered, np.cumsum(counts)[:-1])):
            points[i].append(part)
            tables[i].append(news_of(answers, j, table, int(part_of(handed.tables, j)[i])) if i != j else table[:0])
    said = [[len(one) + len(two) > 0 for one, two in zip(*both, strict=True)] for both in zip(points, tables, strict=True)]
    return Found(
        names,
        asked.names,
        rows_of([np.concatenate(parts) for parts in points], SIZE),
        rows_of([np.concatenate(parts) for parts in tables], ENTRY),
        counts_of([[len(part) for part in parts] for parts in tables]),
        *passed_on(answers.proofs, answers.proof_sizes, said),
    )


def part_of(rows: Rows, k: int) -> np.ndarray:
    """One client's rows."""
    first, last = int(rows.ptr[k]), int(rows.ptr[k + 1])
    part: np.ndarray = rows.values[first:last].cpu().numpy()
    return part


def rows_of(parts: Sequence[np.ndarray], width: int | None = None) -> Rows:
    """uint8 rows of every client, [., width] or [.]."""
    values = np.concatenate([part if width is None else part.reshape(-1, width) for part in parts])
    return Rows(torch.from_numpy(values), pointers(torch.tensor([len(part) for part in parts])))


def counts_of(parts: Sequence[Sequence[int]]) -> Rows:
    """int64 rows of every client."""
    flat = [number for part in parts for number in part]
    return Rows(torch.tensor(flat, dtype=torch.int64), pointers(torch.tensor([len(part) for part in parts])))
