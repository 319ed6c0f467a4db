"""What is checked of a message beyond its type: that its numbers are finite and its shapes are those of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from suture.core.message import Message
from suture.errors import IntegrityError

MessageShape = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(path, type, shape) of every tensor of one client's message, its leading axis apart: that is the client's, or its rows."""


def shape_of(message: Message) -> MessageShape:
    """What two owners' replies to the same step have in common."""
    return tuple(
        (path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
        for path, tensor in message.tensors().items()
    )


def check_finite(message: Message) -> None:
    """NaN and infinity do not travel."""
    for path, tensor in message.tensors().items():
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise IntegrityError(f"{path} of its {type(message).__name__} holds NaN or infinity")


def _is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite terms only, and is found much faster; another sum may just have overflowed."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


@dataclass
class Expectations:
    """The shape of each step's replies: what most owners send, and have sent before."""

    seen: dict[str, MessageShape] = field(default_factory=dict)

    def odd(self, step: str, replies: Mapping[str, Message]) -> dict[str, str]:
        """Owners whose reply does not look like the others', with the reason."""
        shapes = {owner: shape_of(reply) for owner, reply in replies.items()}
        if step not in self.seen:
            common, votes = Counter(shapes.values()).most_common(1)[0]
            if len(set(shapes.values())) > 1 and votes * 2 <= len(shapes):
                return dict.fromkeys(shapes, "its reply and the others' differ in shape, and nobody has a majority")
            self.seen[step] = common
        expected = self.seen[step]
        return {owner: _difference(found, expected) for owner, found in shapes.items() if found != expected}


def _difference(found: MessageShape, expected: MessageShape) -> str:
    mine, theirs = {entry[0]: entry[1:] for entry in found}, {entry[0]: entry[1:] for entry in expected}
    for path in sorted(mine.keys() | theirs.keys()):
        if mine.get(path) != theirs.get(path):
            return f"its {path} is {_shown(mine.get(path))}, expected {_shown(theirs.get(path))}"
    return "its fields come in another order"


def _shown(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if entry is None else f"{entry[0]} {list(entry[1])}"
