"""A file that only grows: JSON lines, each of which holds a hash of all before it.

    {"event": "opened", "chain": sha256(chain of the line before, the line without its chain)}

Whoever changes, drops or moves a line breaks the chain from there on, and `verified` names the line. A chain alone cannot
tell that its last lines are missing: who needs that keeps the last `chain` elsewhere too.

Several processes may append: each holds a lock on the file from reading its end to having written behind it. A line is on
disk when `append` returns. What a killed writer has left of a line is no line: nobody has acted on it, and the next writer
cuts it off.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from suture.core.storage import Json, disk_errors
from suture.errors import IntegrityError

CHAIN = "chain"
START = "0" * 64
"""What the first line's hash begins with."""
Line = dict[str, Json]


def link(before: str, line: Line) -> str:
    """The hash that binds a line to all before it."""
    canonical = json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


class ChainedFile:
    """See the module docstring. `what` is how people call it: "account", "audit log"."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        self._known: tuple[int, int, str] = (0, 0, START)
        """(bytes, lines, the last one's hash) as far as this object has read and checked."""

    def append(self, line: Line) -> None:
        """One more line; only what others have written since is read again."""
        self.append_after(lambda new: [line])

    def append_after(self, decide: Callable[[Sequence[Line]], Sequence[Line]], *, sync: bool = True) -> None:
        """As `append_if`, for whoever remembers: `decide` gets only lines that this object has neither read nor written.

        Without `sync` a line survives its writer, but not a crash of the machine.
        """
        with self._locked() as file:
            size, number, chain = self._known
            if os.fstat(file.fileno()).st_size < size:
                raise self._broken(number)
            file.seek(size)
            added, new, chain = self._read(file, number, chain)
            self._known = size + added, number + len(new), chain
            self._known = self._written(file, *self._known, list(decide(new)), sync)

    def append_if(self, decide: Callable[[Sequence[Line]], Sequence[Line]]) -> list[Line]:
        """Decide on the lines so far which to add, with nobody writing meanwhile; all lines after it.

        What `decide` raises leaves the file as it was.
        """
        with self._locked() as file:
            whole, lines, chain = self._read(file)
            added = list(decide(lines))
            self._known = self._written(file, whole, len(lines), chain, added)
            return [*lines, *added]

    def verified(self) -> list[Line]:
        """All lines without their hashes; a broken chain is one sentence."""
        if not self.path.exists():
            return []
        with disk_errors("read", self.path), self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._read(file)[1]

    def head(self) -> str:
        """The last line's hash, which stands for the whole file."""
        if not self.path.exists():
            return START
        with disk_errors("read", self.path), self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._read(file)[2]

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        with disk_errors("write", self.path):
            # A link in the file's place would let somebody else's file be cut.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "r+b") as file:
            with disk_errors("lock", self.path):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _written(
        self, file: BinaryIO, size: int, number: int, chain: str, lines: Sequence[Line], sync: bool = True
    ) -> tuple[int, int, str]:
        """Write lines behind `size` bytes; what is known of the file then."""
        written = b""
        for line in lines:
            chain = link(chain, line)
            written += json.dumps({**line, CHAIN: chain}, separators=(",", ":")).encode() + b"\n"
        if written:
            with disk_errors("write", self.path):
                file.truncate(size)
                file.seek(size)
                file.write(written)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        return size + len(written), number + len(lines), chain

    def _read(self, file: BinaryIO, before: int = 0, chain: str = START) -> tuple[int, list[Line], str]:
        """(bytes of whole lines, the lines, the last one's hash), from where the file stands: behind `before` lines."""
        content = file.read()
        whole = content.rfind(b"\n") + 1
        lines: list[Line] = []
        for number, raw in enumerate(content[:whole].split(b"\n")[:-1], before + 1):
            try:
                line = json.loads(raw)
                told = line.pop(CHAIN)
                chain = link(chain, line)
            except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
                raise self._broken(number) from error
            if told != chain:
                raise self._broken(number)
            lines.append(line)
        return whole, lines, chain

    def _broken(self, number: int) -> IntegrityError:
        return IntegrityError(
            f"the {self.what} {self.path} was changed: line {number} does not follow from those before it; "
            "find out who did, and put back the file that was there"
        )
