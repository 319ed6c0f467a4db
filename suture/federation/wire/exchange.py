"""What crosses between a coordinator and an owner, whatever carries the bytes.

A frame is a JSON header and a body, never pickled:

    b"SUX1" | header length (4 bytes, little endian) | JSON header | body

The header's `verb` says what is wanted: `open` a run under its terms, `ask` a declared step, `evaluate`, `retain` the model
as it is now, `finish`. `ask` is numbered and names its round; an owner answers a repeated number from its journal, so
delivering twice is harmless. The body is a packed message of the type that the step declares, nothing else is unpacked.

A call costs about as much as a small step, so requests that are known together travel together: the verb `several` holds
frames, which are answered one after the other as if each had come alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from suture.core.message import Message, Rows, kind_of
from suture.core.storage import Json
from suture.errors import IntegrityError, SutureError
from suture.method import Method

MAGIC = b"SUX1"
SEVERAL = "several"


class Refused(SutureError):
    """An owner or the coordinator will not do what it was asked to; the text says why."""


class Unreachable(SutureError):
    """A party did not answer in time, or its process is gone."""


class BadReply(SutureError):
    """A reply that is not what the step declares: malformed, of another type or shape, oversized, or not finite."""


@dataclass(frozen=True)
class Frame:
    """One request or one answer."""

    header: dict[str, Json]
    body: bytes = b""

    def pack(self) -> bytes:
        """To bytes."""
        header = json.dumps(self.header, separators=(",", ":")).encode()
        return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, self.body])

    @staticmethod
    def unpack(data: bytes) -> Frame:
        """From bytes, or a refusal."""
        end = 8 + int.from_bytes(data[4:8], "little")
        if not isinstance(data, bytes) or data[:4] != MAGIC or end > len(data):
            raise IntegrityError("malformed frame (it does not start like one of ours); it was refused")
        try:
            header = json.loads(data[8:end])
        except (ValueError, RecursionError) as error:
            raise IntegrityError("malformed frame (its header cannot be read); it was refused") from error
        if not isinstance(header, dict):
            raise IntegrityError("malformed frame (its header is not an object); it was refused")
        return Frame(header, data[end:])

    @staticmethod
    def several(frames: Sequence[Frame]) -> Frame:
        """One frame for all of these; a single one stays itself."""
        if len(frames) == 1:
            return frames[0]
        packed = [frame.pack() for frame in frames]
        return Frame({"verb": SEVERAL, "sizes": [len(one) for one in packed]}, b"".join(packed))

    def parts(self) -> list[Frame]:
        """The frames that `several` put together."""
        if self.header.get("verb") != SEVERAL:
            return [self]
        sizes = self.header.get("sizes")
        sizes = sizes if isinstance(sizes, list) else []
        ends = list(accumulate(size for size in sizes if type(size) is int and size > 0))
        if not ends or len(ends) != len(sizes) or ends[-1] != len(self.body):
            raise IntegrityError("malformed frame (it does not hold what it says); it was refused")
        return [Frame.unpack(self.body[start:end]) for start, end in pairwise([0, *ends])]

    def text(self, key: str) -> str:
        """A header entry that must be a string."""
        value = self.header.get(key)
        if not isinstance(value, str):
            raise IntegrityError(f"malformed frame ({key} must be a text); it was refused")
        return value

    def number(self, key: str) -> int:
        """A header entry that must be a whole number from 0 on."""
        value = self.header.get(key)
        if type(value) is not int or value < 0:
            raise IntegrityError(f"malformed frame ({key} must be a whole number from 0 on); it was refused")
        return value


def digest(data: bytes) -> str:
    """What identifies a message."""
    return hashlib.sha256(data).hexdigest()


def wire_types(method: type[Method[Any, Any]]) -> dict[str, type[Message]]:
    """The message types a method's own modules know, by name; the most derived module wins."""
    found: dict[str, type[Message]] = {}
    for kind in reversed(method.__mro__):
        module = sys.modules.get(kind.__module__)
        for value in vars(module).values() if module else ():
            if isinstance(value, type) and issubclass(value, Message):
                found[value.__name__] = value
    return found


@dataclass(frozen=True)
class Signature:
    """The declared message and reply of a step; None where the declaration only says `Message`."""

    message: type[Message] | None
    reply: type[Message] | None


def signature(step: Callable[..., Any]) -> Signature:
    """Read a step's annotations."""
    hints = get_type_hints(getattr(step, "__func__", step))
    returned = get_args(hints.pop("return"))[1]
    hints.pop("clients", None)
    (message,) = hints.values()
    return Signature(_concrete(message), _concrete(returned))


def _concrete(hint: object) -> type[Message] | None:
    return hint if isinstance(hint, type) and issubclass(hint, Message) and hint is not Message else None


def read(data: bytes, declared: type[Message] | None, known: Mapping[str, type[Message]]) -> Message:
    """Unpack as the declared type, or, where any message will do, as the type of that name among the known ones."""
    if declared is None:
        name = kind_of(data)
        if name not in known:
            raise IntegrityError(f"expected one of {', '.join(sorted(known))}, got {name!r}; it was refused")
        declared = known[name]
    return declared.unpack(data)


def check_finite(message: Message) -> None:
    """NaN and infinity do not travel."""
    for path, tensor in message.tensors().items():
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise BadReply(f"{path} of its {type(message).__name__} holds NaN or infinity")


def _is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite terms only, and is found much faster; another sum may just have overflowed."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


Layout = tuple[tuple[str, str, tuple[int, ...]], ...]


def layout(message: Message) -> Layout:
    """Paths, types and shapes of one client's content, apart from how many rows its ragged fields have."""
    ragged = {
        f"{name}.{part}" for name, value in message.contents() if isinstance(value, Rows) for part in ("values", "ptr")
    }
    return tuple(
        (path, str(tensor.dtype), tuple(tensor.shape[1:]) if path in ragged else tuple(tensor.shape))
        for path, tensor in message.tensors().items()
    )


@dataclass
class Expectations:
    """The layout of each step's replies: what most owners send, and have sent before."""

    seen: dict[str, Layout] = field(default_factory=dict)

    def odd(self, step: str, replies: Mapping[str, Message]) -> dict[str, str]:
        """Owners whose reply does not look like the others', with the reason."""
        layouts = {owner: layout(reply) for owner, reply in replies.items()}
        if step not in self.seen:
            common, votes = Counter(layouts.values()).most_common(1)[0]
            if len(set(layouts.values())) > 1 and votes * 2 <= len(layouts):
                return dict.fromkeys(layouts, "its reply and the others' differ in shape, and nobody has a majority")
            self.seen[step] = common
        expected = self.seen[step]
        return {owner: _difference(found, expected) for owner, found in layouts.items() if found != expected}


def _difference(found: Layout, expected: Layout) -> str:
    mine, theirs = {entry[0]: entry[1:] for entry in found}, {entry[0]: entry[1:] for entry in expected}
    for path in sorted(mine.keys() | theirs.keys()):
        if mine.get(path) != theirs.get(path):
            return f"its {path} is {_shown(mine.get(path))}, expected {_shown(theirs.get(path))}"
    return "its fields come in another order"


def _shown(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if entry is None else f"{entry[0].removeprefix('torch.')} {list(entry[1])}"
