"""An owner's journal: the state after every answered step, and the reply, so that nothing is run twice and nothing is lost.

- A step delivered twice is answered twice and run once.
- A step with a number that was answered before, but another content (the coordinator went on differently after a crash), is
  run from the state before it.
- A new process goes on where the last one was killed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from suture.core.storage import disk_errors, make_folder
from suture.errors import IntegrityError

LATER_THAN_ANY = 2**63
CHECK_BYTES = 4


@dataclass(frozen=True)
class Entry:
    """One answered step."""

    number: int
    digest: str
    state: bytes
    reply: bytes


class Journal:
    """Answered steps on disk, one file each; older ones go when the coordinator cannot ask for them any more."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_folder(folder)
        with disk_errors("read", folder):
            self.numbers = sorted(int(path.stem) for path in folder.glob("*.step"))

    def last_before(self, number: int) -> Entry | None:
        """The latest step answered before `number`."""
        earlier = [n for n in self.numbers if n < number]
        return self.get(earlier[-1]) if earlier else None

    def get(self, number: int) -> Entry | None:
        """A step by its number."""
        if number not in self.numbers:
            return None
        path = self._path(number)
        with disk_errors("read", path):
            data = path.read_bytes()
        check, content = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if zlib.crc32(content).to_bytes(CHECK_BYTES, "little") != check:
            raise IntegrityError(f"the journal entry {path} is damaged; start the run anew")
        size = int.from_bytes(content[64:72], "little")
        return Entry(number, content[:64].decode(), content[72 : 72 + size], content[72 + size :])

    def put(self, entry: Entry) -> None:
        """Write a step down, in the place of this and all later ones."""
        content = [entry.digest.encode(), len(entry.state).to_bytes(8, "little"), entry.state, entry.reply]
        check = 0
        for piece in content:
            check = zlib.crc32(piece, check)
        # A killed process loses nothing that was written; only a crash of the machine could, and the check would tell.
        path = self._path(entry.number)
        with disk_errors("write", path):
            for number in [n for n in self.numbers if n >= entry.number]:
                self._path(number).unlink(missing_ok=True)
            part = path.with_suffix(".part")
            with part.open("wb", buffering=0) as file:
                for piece in (check.to_bytes(CHECK_BYTES, "little"), *content):
                    file.write(piece)
            part.replace(path)
        self.numbers = [n for n in self.numbers if n < entry.number] + [entry.number]

    def forget_before(self, base: int) -> None:
        """Keep the state at step `base` and everything after it."""
        at_base = [n for n in self.numbers if n <= base]
        with disk_errors("clean", self.folder):
            for number in at_base[:-1]:
                self._path(number).unlink(missing_ok=True)
        self.numbers = [n for n in self.numbers if n not in at_base[:-1]]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.step"
