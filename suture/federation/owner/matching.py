"""Private matching at an owner: what its policy allows, how often it was asked, and what it has found out.

Every answered question tells the asker whether this owner holds an id, so answers are counted for good, in `matching.jsonl`:

    {"event": "answered", "run": "night-7.matching", "peer": "clinic-b", "ids": 1200}

What was found lies in `matched.record`, for this owner alone; a run keeps the state it began with beside its journal.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suture.core.chained import ChainedFile, Line
from suture.core.message import Message, Record
from suture.core.storage import disk_errors, write_atomically
from suture.errors import IntegrityError
from suture.federation.identity import Identity
from suture.federation.wire.reasons import Code, Refused
from suture.methods.matched import NOBODY, Matched, books_of
from suture.methods.matching_messages import (
    Answers,
    Asked,
    Found,
    Questions,
    answers_signed_with,
    proofs_in,
    questions_in,
    signed_with,
)
from suture.privacy.blinding import SIZE
from suture.seam import Audit
from suture.settings import Count

ACCOUNT, FOUND = "matching.jsonl", "matched.record"


@dataclass(frozen=True)
class MatchingRules:
    """What an owner answers when others ask which ids it holds."""

    allowed: bool | None = None
    """Whether it takes part; absent: yes, unless there is a privacy budget, as no noise covers an answer."""
    only_with: tuple[str, ...] | None = None
    """Owners whose questions are answered; absent: everybody's."""
    max_ids: Count = 1_000_000
    """Ids that are answered in all matchings together."""
    times: Count = 100
    """Matchings in which anything is answered, in all."""
    required: bool = False
    """Refuse runs in which foreign ids would be compared openly, as hashes that can be guessed."""


class MatchingAtOwner:
    """One matching, as far as it is about what the owner allows and keeps."""

    def __init__(self, home: Path, run: str, rules: MatchingRules, audit: Audit, identity: Identity | None = None) -> None:
        self.home, self.run, self.rules, self.audit, self.identity = home, run, rules, audit, identity
        self._file = ChainedFile(home / ACCOUNT, "account of matchings")
        self._digest = _digest(home / FOUND)

    def before(self, message: Message, state: Record) -> None:
        """Count what is about to be answered, and believe no answer that is not its owner's, or refuse."""
        if isinstance(message, Found) and isinstance(state, Matched):
            self._check_answers(message, state)
        if not isinstance(message, Asked):
            return
        try:
            questions = questions_in(message)
            if self.identity is not None:
                for name, (points, signature, certificate) in questions.items():
                    signed = _asked(self.run, name, self.identity.name, points)
                    self.identity.verify(name, certificate.decode(), signed, signature)
        except (ValueError, IntegrityError) as error:
            raise Refused(f"it is asked which ids it holds, but {error}", Code.MALFORMED) from error
        asked = {name: len(points) // SIZE for name, (points, _, _) in questions.items()}
        others = [] if self.rules.only_with is None else [name for name in asked if name not in self.rules.only_with]
        if others:
            raise Refused(f"the policy matches no ids with {', '.join(others)}", Code.POLICY)
        if asked:
            self._file.append_if(lambda lines: self._decided(lines, asked))
            self.audit.note("answered a matching", run=self.run, ids={**asked})

    def _decided(self, lines: Sequence[Line], asked: Mapping[str, int]) -> list[Line]:
        answered = sum(int(str(line["ids"])) for line in lines)
        runs = {str(line["run"]) for line in lines} | {self.run}
        if answered + sum(asked.values()) > self.rules.max_ids:
            raise Refused(
                f"the policy allows {self.rules.max_ids:,} ids to be asked for in all matchings, {answered:,} have been, "
                f"and {sum(asked.values()):,} more are",
                Code.BUDGET,
            )
        if len(runs) > self.rules.times:
            raise Refused(f"the policy allows {self.rules.times} matchings, and they have been", Code.BUDGET)
        return [{"event": "answered", "run": self.run, "peer": peer, "ids": ids} for peer, ids in asked.items()]

    def _check_answers(self, message: Found, state: Matched) -> None:
        """Whoever answers with a scalar and a table of its own learns to whom this owner has links."""
        if self.identity is None:
            return
        try:
            (book,) = books_of(state)
            for name, (points, entries, signature, certificate) in proofs_in(message, book).items():
                signed = _answered(self.run, name, self.identity.name, points, entries)
                self.identity.verify(name, certificate.decode(), signed, signature)
        except (ValueError, IntegrityError) as error:
            raise Refused(f"it is told which ids others hold, but {error}", Code.MALFORMED) from error

    def signed(self, message: Message, reply: Message) -> Message:
        """Questions and answers with this owner's signature, if it has a key."""
        mine, run = self.identity, self.run
        if mine is None:
            return reply
        if isinstance(reply, Questions):
            return signed_with(reply, lambda peer, *said: mine.sign(_asked(run, mine.name, peer, *said)), mine.pem.encode())
        if isinstance(reply, Answers) and isinstance(message, Asked):
            return answers_signed_with(
                message, reply, lambda peer, *said: mine.sign(_answered(run, mine.name, peer, *said)), mine.pem.encode()
            )
        return reply

    def after(self, step: str, state: Record) -> None:
        """Keep what is known, before anybody hears of it."""
        if not isinstance(state, Matched):
            return
        with (self.home / f".{FOUND}.lock").open("a") as lock, disk_errors("lock", self.home):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _digest(self.home / FOUND) != self._digest:
                raise Refused("another matching of this owner went on meanwhile; begin this run again", Code.CHANGED)
            write_atomically(self.home / FOUND, state.pack())
            (self.home / FOUND).chmod(0o600)
            self._digest = _digest(self.home / FOUND)
        if step == "take":
            (book,) = books_of(state)
            wanted = int(np.count_nonzero(book.asked != NOBODY))
            self.audit.note("matched", run=self.run, wanted=wanted, found=len(book.holders()), twice=book.held_twice())


def _asked(run: str, asker: str, peer: str, points: bytes) -> bytes:
    """What an asker signs: for one run, for one peer."""
    return _statement(b"suture matching question", run.encode(), asker.encode(), peer.encode(), points)


def _answered(run: str, holder: str, peer: str, points: bytes, entries: bytes) -> bytes:
    """What a holder signs, in the same way."""
    return _statement(b"suture matching answer", run.encode(), holder.encode(), peer.encode(), points, entries)


def _statement(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def found_before(home: Path, owner: str) -> Matched | None:
    """What earlier matchings have found; None: nothing."""
    return _read(home / FOUND, owner)


def found_for(home: Path, folder: Path, owner: str) -> Matched:
    """What a run speaks of nodes by: as it was known when the run began."""
    kept = folder / FOUND
    state = _read(kept, owner)
    if state is None:
        state = found_before(home, owner)
        if state is None:
            raise Refused("this run speaks of nodes by private addresses, and no matching has made any here", Code.TERMS)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, state.pack())
        kept.chmod(0o600)
    return state


def _read(path: Path, owner: str) -> Matched | None:
    if not path.exists():
        return None
    with disk_errors("read", path):
        state = Matched.unpack(path.read_bytes())
    return state if state.ids == (owner,) else None


def _digest(path: Path) -> str:
    with disk_errors("read", path):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
