"""What is checked of a message beyond its type: its numbers are finite and not absurd, its shapes are those of the others.

A number is judged by what its field declares to tell (`suture.core.message.Kind`): counts are not negative, scores are in
the range of their metric, and a model is not a million times as large as everybody else's. `suture.federation.wire.bounds`
has the bounds and the reasons.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from suture.core.message import Kind, Message, Record
from suture.core.metrics import Metric
from suture.core.packing import Scalar
from suture.errors import IntegrityError
from suture.federation.wire import bounds
from suture.method import Scores

COMPARED = frozenset(
    {
        *(Kind.WEIGHTS, Kind.MOMENTS, Kind.GRADIENTS),
        *(Kind.EMBEDDINGS, Kind.PREDICTIONS, Kind.PROTOTYPES, Kind.SIGNATURES, Kind.FEATURES),
    }
)
"""Kinds whose size the owners of a run have in common. Statistics are of raw numbers, each on a scale of its own."""

MessageShape = tuple[tuple[str, str, tuple[int, ...]], ...]
"""(path, type, shape) of every tensor of one client's message, its leading axis apart: that is the client's, or its rows."""


def shape_of(message: Message) -> MessageShape:
    """What two owners' replies to the same step have in common."""
    return tuple(
        (path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
        for path, tensor in message.tensors().items()
    )


def check_finite(message: Record) -> None:
    """NaN and infinity do not travel, and no server goes on with them."""
    for path, tensor in message.tensors().items():
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise IntegrityError(f"{path} of its {type(message).__name__} holds NaN or infinity")
    for name, value in message.contents():
        if isinstance(value, float) and not math.isfinite(value):
            raise IntegrityError(f"{name} of its {type(message).__name__} is {value}")
        if isinstance(value, int) and abs(value) > bounds.MOST_SCALAR and isinstance(message, Message):
            raise IntegrityError(f"{name} of its {type(message).__name__} is beyond {bounds.MOST_SCALAR:,}")


def _is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite terms only, and is found much faster; another sum may just have overflowed."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def check_sizes(message: Message) -> None:
    """Refuse numbers that nobody's data have: beyond any bound, or counts and weights below zero."""
    for path, tensor in message.tensors().items():
        counted = type(message).kind_of(path) == Kind.COUNTS
        if not counted and not tensor.is_floating_point():
            continue
        low, high = _extremes(tensor)
        least, most = (0.0, bounds.MOST_NODES) if counted else (-bounds.MOST_MAGNITUDE, bounds.MOST_MAGNITUDE)
        if not least <= low <= high <= most:
            raise IntegrityError(f"its {path} holds {low if low < least else high:.4g}, expected is {least:g} to {most:g}")


def check_scores(scores: Scores, metric: Metric) -> None:
    """Refuse scores that the metric cannot give."""
    low, high = _extremes(scores.value)
    least, most = metric.range
    if not least - bounds.SHARE_TOLERANCE <= low <= high <= most + bounds.SHARE_TOLERANCE:
        wrong = low if low < least else high
        raise IntegrityError(f"it tells a {metric.name} of {wrong:.6g}, which is from {least:g} to {most:g}")


def _extremes(tensor: Tensor) -> tuple[float, float]:
    """The smallest and the largest number; (0, 0) of none and of truth values."""
    if tensor.numel() == 0 or tensor.dtype == torch.bool:
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def absurd(replies: Mapping[str, Message]) -> dict[str, str]:
    """Owners whose numbers are so many times as large as everybody's that an average with them is theirs alone.

    Compared are the largest entries of each field, of at least three owners, with the median of them.
    """
    if len(replies) < bounds.FEWEST_TO_COMPARE:
        return {}
    found: dict[str, str] = {}
    for path in _compared(next(iter(replies.values()))):
        sizes = {owner: max(map(abs, _extremes(reply.tensors()[path]))) for owner, reply in replies.items()}
        usual = max(1.0, statistics.median_low(sizes.values()))
        for owner, size in sizes.items():
            if size > bounds.MOST_TIMES_THE_USUAL * usual:
                found.setdefault(owner, f"its {path} is as large as {size:.3g}, that of the others usually {usual:.3g}")
    return found


def _compared(reply: Message) -> list[str]:
    return [
        path
        for path, tensor in reply.tensors().items()
        if tensor.is_floating_point() and (type(reply).kind_of(path) or Kind.WEIGHTS) in COMPARED
    ]


@dataclass
class Expectations:
    """The shape of each step's replies: what most owners send, and have sent before."""

    seen: dict[str, MessageShape] = field(default_factory=dict)

    def odd(self, step: str, replies: Mapping[str, Message]) -> dict[str, str]:
        """Owners whose reply does not look like the others', with the reason."""
        shapes = {owner: shape_of(reply) for owner, reply in replies.items()}
        common, votes = Counter(shapes.values()).most_common(1)[0]
        if votes * 2 > len(shapes) and (votes > 1 or step not in self.seen):
            self.seen[step] = common  # may follow from how many owners there are, who get fewer
        elif step not in self.seen:
            return dict.fromkeys(shapes, "its reply and the others' differ in shape, and nobody has a majority")
        expected = self.seen[step]
        odd = {owner: _difference(found, expected) for owner, found in shapes.items() if found != expected}
        scalars = {owner: _scalars_of(reply) for owner, reply in replies.items() if owner not in odd}
        usual = next((told for told, _ in Counter(scalars.values()).most_common(1)), "")
        differing = [owner for owner, told in scalars.items() if told != usual]
        return odd | dict.fromkeys(differing, f"what all owners tell alike it tells otherwise than {usual}")


def _scalars_of(reply: Message) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in reply.contents() if isinstance(value, Scalar))


def _difference(found: MessageShape, expected: MessageShape) -> str:
    mine, theirs = {entry[0]: entry[1:] for entry in found}, {entry[0]: entry[1:] for entry in expected}
    for path in sorted(mine.keys() | theirs.keys()):
        if mine.get(path) != theirs.get(path):
            return f"its {path} is {_shown(mine.get(path))}, expected {_shown(theirs.get(path))}"
    return "its fields come in another order"


def _shown(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if entry is None else f"{entry[0]} {list(entry[1])}"
