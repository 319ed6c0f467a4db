"""The audit log: one line for everything that was opened, refused, lost or finished, at every party.

{"time": "2026-01-01T12:00:00Z", "party": "hospital-a", "event": "refused", "code": "policy", "reason": "...", "run": "...",
 "chain": "..."}

Codes are those of `suture.federation.wire.reasons`. Each line holds a hash of all before it (`suture.core.chained`), so that
a line that was changed, dropped or moved is found. That the last lines are missing is found by what was written elsewhere:
whoever finishes a run keeps the log's `Head` with the run, and a party tells it to another, whose log then holds it.

A log that does not fit together, or is from before logs were chained, is not written to any more: it is set aside under
another name, and the new log begins with a line that says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from suture.core.chained import CHAIN, START, ChainedFile, Line, link
from suture.core.storage import Json, disk_errors, read_json, sha256_of_file
from suture.errors import IntegrityError

AUDIT = "audit.jsonl"
WHAT = "audit log"
HEAD = "audit"
"""Under which a record of a run holds the log's head."""
MOST_OF_A_TEXT = 2000
"""Characters: what others say is quoted, not kept whole."""


@dataclass(frozen=True)
class Head:
    """The end of a log at some moment: how many lines, and the last one's hash."""

    lines: int
    chain: str


class AuditLog:
    """Appends lines; several processes of a party can share the file."""

    def __init__(self, path: Path, party: str) -> None:
        self.path, self.party = path, party
        self._lock = threading.Lock()
        self._file = ChainedFile(path, WHAT)

    def note(self, event: str, **details: Json) -> None:
        """One line."""
        line = self._line(event, details)
        with self._lock:
            try:
                self._file.append(line)
            except IntegrityError:
                self._begin_anew()
                self._file.append(line)

    def head(self) -> dict[str, int | str]:
        """What the log ends with now, for the record of a run: the fields of a `Head`."""
        try:
            lines = self._file.verified()
        except IntegrityError:
            self._begin_anew()
            lines = self._file.verified()
        return {"lines": len(lines), "chain": chains(lines)[-1]}

    def _line(self, event: str, details: Mapping[str, Json]) -> Line:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"time": stamp, "party": self.party, "event": event, **{key: _cut(value) for key, value in details.items()}}

    def _begin_anew(self) -> None:
        """Set a log aside that cannot be gone on with; unless another process of this party has just done so."""
        with _alone(self.path):
            self._file = ChainedFile(self.path, WHAT)
            try:
                self._file.verified()
                return
            except IntegrityError as error:
                aside = _free_name(self.path)
                chained = _is_chained(self.path)
                with disk_errors("rename", self.path):
                    os.rename(self.path, aside)
                why = str(error) if chained else "it is from before logs were chained"
                said: dict[str, Json] = {"file": aside.name, "sha256": sha256_of_file(aside), "reason": why}
                self._file.append(self._line("log set aside", said))


def chains(lines: list[Line]) -> list[str]:
    """The hash after each number of lines, from none on."""
    found = [START]
    for line in lines:
        found.append(link(found[-1], line))
    return found


def read_audit(path: Path) -> list[dict[str, Json]]:
    """All lines so far, as far as they can be read: to look at, not to rely on."""
    if not path.exists():
        return []
    with disk_errors("read", path):
        content = path.read_bytes()
    found: list[dict[str, Json]] = []
    for raw in content.split(b"\n"):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            found.append({key: value for key, value in line.items() if key != CHAIN})
    return found


def verify_audit(home: Path) -> tuple[Head, list[str]]:
    """Check a party's log, and that it still holds what its finished runs were told of it.

    Gives the log's head and, in words, what was set aside and is not vouched for; raises `IntegrityError` where the log was
    changed or cut.
    """
    lines = ChainedFile(home / AUDIT, WHAT).verified()
    known = chains(lines)
    for record in sorted(home.glob("runs/*/*.json")):
        head = _head_in(record)
        if head is not None and (head.lines >= len(known) or known[head.lines] != head.chain):
            missing = head.lines >= len(known)
            how = f"it has {len(lines)} lines and had {head.lines}" if missing else f"line {head.lines} is another one"
            raise IntegrityError(
                f"the {WHAT} {home / AUDIT} is not the one that {record.parent.name} was written in: {how}; "
                "find out who changed it, and put back the file that was there"
            )
    aside = [f"{line.get('file')}: {line.get('reason')}" for line in lines if line.get("event") == "log set aside"]
    return Head(len(lines), known[-1]), aside


def _head_in(record: Path) -> Head | None:
    """The head that a record of a run holds, if it does."""
    if record.is_symlink() or record.name not in ("finished.json", "status.json"):
        return None
    told = read_json(record, "record of a run").get(HEAD)
    if not isinstance(told, dict):
        return None
    lines, chain = told.get("lines"), told.get("chain")
    return Head(lines, chain) if type(lines) is int and lines >= 0 and isinstance(chain, str) else None


def _cut(value: Json) -> Json:
    if isinstance(value, str) and len(value) > MOST_OF_A_TEXT:
        return f"{value[:MOST_OF_A_TEXT]}... ({len(value)} characters)"
    return value


def _is_chained(path: Path) -> bool:
    """Whether any of a log's lines has a hash."""
    with disk_errors("read", path):
        return f'"{CHAIN}":'.encode() in path.read_bytes()


def _free_name(path: Path) -> Path:
    return next(
        name for number in range(1, 10**6) if not (name := path.with_name(f"{path.stem}-before-{number}.jsonl")).exists()
    )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with disk_errors("write", path):
        handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
