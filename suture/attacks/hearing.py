"""What an attacker hears: the recorded messages of a run, as far as they passed the attacker.

Messages are unpacked as the types that their steps declare, and as nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from suture.core.message import Message
from suture.core.packing import Scalar
from suture.federation.wire.signatures import read, signature, wire_types
from suture.method import Method
from suture.privacy.tape import Frame, TapeReader


@dataclass(frozen=True)
class Recorded:
    """The tape of a run of a method."""

    tape: TapeReader
    method: Method[Any, Any]
    opened: set[str] = field(default_factory=set, compare=False)
    """Steps whose replies an attack has made use of."""

    def frames(self) -> Iterator[Frame]:
        """Of the steps that the method declares; what owners told of their data before the run is none of them."""
        declared = self.steps
        return (frame for frame in self.tape.frames if frame.step in declared)

    @cached_property
    def steps(self) -> frozenset[str]:
        """What clients could be asked for."""
        return frozenset(type(self.method).steps())

    def read(self, frame: Frame) -> Message:
        """The message of a frame, for one client, to make use of it."""
        self.use(frame)
        return self.peek(frame)

    def use(self, frame: Frame) -> None:
        """Say that what was peeked at is made use of."""
        if frame.direction == "up":
            self.opened.add(frame.step)

    def peek(self, frame: Frame) -> Message:
        """The same, to see what is in it."""
        kind = type(self.method)
        declared = signature(kind, frame.step)
        wanted = declared.message if frame.direction == "down" else declared.reply
        return read(self.tape.content(frame), wanted, wire_types(kind))


class Noise(Recorded):
    """The same messages with independent noise in the place of all they say: nobody can learn anything from them.

    How long messages are stays, since that is no content. Whole numbers become random ones from 0 to 9.
    """

    def peek(self, frame: Frame) -> Message:
        """Noise that depends on nothing but the frame's number, step, way and client."""
        message = super().peek(frame)
        name = f"{frame.ask} {frame.step} {frame.direction} {frame.client}"
        rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        scalars = {key: value for key, value in message.contents() if isinstance(value, Scalar)}
        tensors = {path: _noise(path, value, rng) for path, value in message.tensors().items()}
        return type(message).from_tensors(message.ids, scalars, tensors)


def _noise(path: str, value: Tensor, rng: torch.Generator) -> Tensor:
    if path.endswith(".ptr"):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, generator=rng).to(value.dtype)
    return torch.randint(0, 2 if value.dtype is torch.bool else 10, value.shape, generator=rng).to(value.dtype)


@dataclass(frozen=True)
class Said:
    """One message as somebody heard it."""

    ask: int
    client: str
    message: Any
    """A `Message` of one client; attacks look at fields that only some types have."""


@dataclass(frozen=True)
class Heard:
    """What passed somebody: everything for the server, else what went to and came from `attackers`."""

    recorded: Recorded
    victim: str
    attackers: frozenset[str] | None = None
    """Clients that attack; None is the server."""
    sealed: frozenset[str] = frozenset()
    """Steps of whose replies the server is shown the sum alone."""

    @property
    def by_server(self) -> bool:
        """Whether the server listens."""
        return self.attackers is None

    def says(self, step: str, direction: str, client: str | None = None, most: int | None = None) -> list[Said]:
        """The first messages of a step, of everybody or of one client, in their order; none that passed others only."""
        found: list[Said] = []
        for frame in self.recorded.frames():
            if most is not None and len(found) >= most:
                break
            if self._passed(frame) and (frame.step, frame.direction) == (step, direction) and client in (None, frame.client):
                found.append(Said(frame.ask, frame.client, self.recorded.read(frame)))
        return found

    def frames(self, step: str, direction: str) -> dict[str, list[Frame]]:
        """The same unread, by client: what a long run said does not fit into memory."""
        found: dict[str, list[Frame]] = {}
        for frame in self.recorded.frames():
            if self._passed(frame) and (frame.step, frame.direction) == (step, direction):
                found.setdefault(frame.client, []).append(frame)
        return found

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        """(step, direction) of what was heard, in the order of their first message."""
        heard = (frame for frame in self.recorded.frames() if self._passed(frame))
        return list(dict.fromkeys((frame.step, frame.direction) for frame in heard))

    def _passed(self, frame: Frame) -> bool:
        if self.attackers is not None:
            return frame.client in self.attackers
        return frame.direction == "down" or frame.step not in self.sealed
