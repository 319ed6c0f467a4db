"""All run folders below a root, found again and again: what has not changed is not read again.

A folder is named by an id, not by its path: an id that no scan gave out stands for nothing, so that no request can name a
place of its own. Ids are made of the path below the root, and stay the same from one start to the next.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import real_path
from suture.dashboard.folders import is_listed, parts, signature
from suture.dashboard.rows import IS_AT_IT, Row, is_alive, row_of
from suture.errors import ConfigError

DEEPEST = 4
"""Levels below the root that are searched."""
MOST_FOLDERS = 20_000
SECONDS_FRESH = 1.0
SECONDS_BETWEEN_WALKS = 30.0
"""The size of a run that is at it is measured so often."""


class Unknown(ConfigError):
    """An id that stands for no folder."""


@dataclass
class _Known:
    """What was found at the last look."""

    row: Row
    signature: object
    walked: float
    runs: list[Path]
    looked: float
    """When that was, by the monotonic clock, as `walked`: when its size was measured."""


@dataclass
class Index:
    """See the module docstring. May be asked from several threads."""

    root: Path
    _known: dict[str, _Known] = field(default_factory=dict)
    _paths: dict[str, Path] = field(default_factory=dict)
    _looked: float = -1e9
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.root = real_path(self.root)

    def rows(self, fresh: float = SECONDS_FRESH) -> list[Row]:
        """Every folder's line, the newest first; as of at most so many seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked > fresh:
                self._scan()
                self._looked = time.monotonic()
            known = [one.row for one in self._known.values()]
        return sorted(known, key=lambda row: (-row.began, row.name))

    def path(self, id: str) -> Path:
        """The folder of an id; it is looked for once more if it is not known yet."""
        for _ in range(2):
            with self._lock:
                path = self._paths.get(id)
            if path is not None:
                return path
            self.rows(0.0)
        raise Unknown("there is no such run below the root any more; go back to the list")

    def row(self, id: str, fresh: float = 0.0) -> Row:
        """The line of one folder, as it is now, or as of at most so many seconds ago."""
        path = self.path(id)
        with self._lock:
            known = self._known.get(id)
            if known is not None and time.monotonic() - known.looked < fresh:
                return known.row
            return self._look(id, path)

    def _scan(self) -> None:
        found = {id_of(self.root, path): path for path in _found(self.root)}
        self._paths = found
        for gone in self._known.keys() - found.keys():
            del self._known[gone]
        for id, path in found.items():
            self._look(id, path)

    def _look(self, id: str, path: Path) -> Row:
        known, now = self._known.get(id), time.monotonic()
        stamp = (signature(path, known.runs if known else []), alive := is_alive(path))
        if known is not None and known.signature == stamp and not alive and known.row.standing not in IS_AT_IT:
            known.looked = now
            return known.row
        measured = known is not None and alive and now - known.walked < SECONDS_BETWEEN_WALKS
        size = known.row.size if known is not None else 0
        row = row_of(path, id, path.relative_to(self.root).as_posix(), (lambda: size) if measured else None)
        runs = _runs(path, row)
        if known is None or known.runs != runs:
            stamp = (signature(path, runs), alive)
        self._known[id] = _Known(row, stamp, known.walked if known and measured else now, runs, now)
        return row


def _runs(path: Path, row: Row) -> list[Path]:
    return parts(path, row.methods, row.seeds) if row.runs > 1 else []


def id_of(root: Path, path: Path) -> str:
    """The same for the same place below the root."""
    return hashlib.sha256(path.relative_to(root).as_posix().encode(errors="surrogateescape")).hexdigest()[:20]


def _found(root: Path) -> Iterator[Path]:
    """Folders to be listed; the runs of a comparison belong to it."""
    if is_listed(root):
        yield root
        return
    waiting, looked = [(root, 0)], 0
    while waiting:
        place, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            looked += 1
            # A link could lead anywhere, and its folder is listed where it lies.
            if looked > MOST_FOLDERS or entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if is_listed(path):
                yield path
            elif depth + 1 < DEEPEST:
                waiting.append((path, depth + 1))
