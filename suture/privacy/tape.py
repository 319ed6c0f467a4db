"""The tape: the contents of every message of a run, kept for whoever wants to know what they are worth to an attacker.

The ledger says what kind of thing crossed; the tape holds the thing. A frame is one client's packed message:

    length of the head (4 bytes)   {"ask": 3, "step": "local_update", "direction": "up", "client": "client-0",
                                    "parts": [[212, 0], [1024, 0], [4, 1]]}   parts

The parts of a packed message are its header and its tensors. What a broadcast sends to everybody is written once: a part
with a 1 is the same, byte for byte, as that of the first client that was sent this message. Frames are appended, and a run
that is resumed cuts off what came after its checkpoint. Never pickled; only message types that a step declares are unpacked
by its readers. The file is for its owner's eyes (mode 600), and a link in its place is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from suture.core.message import Message
from suture.core.storage import AppendedFile, damaged, disk_errors

LONGEST_HEAD = 1 << 20
"""A head longer than this is none of ours; it is not worth its memory to find out."""
Place = tuple[int, int]
"""Where a part is in the file: its first byte, its length."""


@dataclass(frozen=True)
class Frame:
    """One message to or from one client, and where its parts are."""

    ask: int
    step: str
    direction: str
    client: str
    parts: tuple[Place, ...]


class TapeFile(AppendedFile):
    """See the module docstring."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        super().__init__(path, keep_bytes, mode=0o600)

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`; one of them is in memory at a time."""
        first: list[bytes] = []
        with disk_errors("write", self.path):
            for client in message.ids:
                parts = _parts(message.select([client]))
                first = first or parts
                same = [parts is not first and mine == theirs for mine, theirs in zip(parts, first, strict=True)]
                head: dict[str, Any] = {"ask": number, "step": step, "direction": direction, "client": client}
                head["parts"] = [[len(part), int(known)] for part, known in zip(parts, same, strict=True)]
                written = json.dumps(head, separators=(",", ":")).encode()
                self._file.write(len(written).to_bytes(4, "little") + written)
                self._file.writelines(part for part, known in zip(parts, same, strict=True) if not known)


def _parts(message: Message) -> list[bytes]:
    """A packed message, cut into its header and its tensors."""
    packed, sizes = message.pack(), [t.numel() * t.element_size() for t in message.tensors().values()]
    start = len(packed) - sum(sizes)
    parts = [packed[:start]]
    for size in sizes:
        parts.append(packed[start : start + size])
        start += size
    return parts


class TapeReader:
    """A tape's frames, in their order; contents are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors("read", path):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            self.frames = list(self._scan(file, os.fstat(file.fileno()).st_size))

    def _scan(self, file: BinaryIO, size: int) -> Iterator[Frame]:
        first: Frame | None = None
        while (start := file.tell()) + 4 <= size:
            length = int.from_bytes(file.read(4), "little")
            if length > LONGEST_HEAD:
                raise damaged(self.path)
            if start + 4 + length > size:
                return
            frame, end = self._frame(file.read(length), start + 4 + length, first)
            if end > size:  # what a killed writer has left of a message is none
                return
            if first is None or _sent(frame) != _sent(first):
                first = frame
            yield frame
            file.seek(end)

    def _frame(self, head: bytes, end: int, first: Frame | None) -> tuple[Frame, int]:
        """(a frame, where it ends) from its head."""
        try:
            told = json.loads(head)
            frame = Frame(int(told["ask"]), str(told["step"]), str(told["direction"]), str(told["client"]), ())
            parts: list[Place] = []
            for place, (size, same) in enumerate(told["parts"]):
                if same and (first is None or _sent(first) != _sent(frame) or first.parts[place][1] != size):
                    raise ValueError(place)
                if size < 0:
                    raise ValueError(size)
                parts.append(first.parts[place] if same and first is not None else (end, int(size)))
                end += 0 if same else int(size)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise damaged(self.path) from error
        return Frame(frame.ask, frame.step, frame.direction, frame.client, tuple(parts)), end

    def content(self, frame: Frame) -> bytes:
        """The packed message of a frame."""
        with disk_errors("read", self.path), self.path.open("rb") as file:
            return b"".join(_read(file, place) for place in frame.parts)


def _sent(frame: Frame) -> tuple[int, str, str]:
    return frame.ask, frame.step, frame.direction


def _read(file: BinaryIO, place: Place) -> bytes:
    file.seek(place[0])
    return file.read(place[1])
