"""Secure aggregation on the wire: replies as sealed words.

A reply to a summed step becomes the vector (weight * every entry, weight). What is opened is the sum over owners, which
becomes a reply with one row, the weighted mean: a method that only averages cannot tell the difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from suture.core.message import Kind, Message
from suture.core.packing import DTYPES
from suture.core.storage import Json
from suture.errors import IntegrityError, SutureError
from suture.federation.wire.checks import MessageShape, shape_of
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply
from suture.privacy.secure_aggregation import Words, decode, encode

WEIGHT = "weight"
MOST_WORDS, MOST_AXES = 2**40, 8
"""No entry has more numbers or axes."""
SUM = ("sum",)
"""The one row of a reply that was opened from a sum."""


@dataclass(frozen=True)
class Sealed(Message):
    """What an owner sends under secure aggregation: `words` int64 [1, n], uniformly random to whoever lacks the others'."""

    words: Annotated[Tensor, Kind.SEALED]


def summed_shape(reply: Message) -> MessageShape:
    """The entries that are summed: all but the weight."""
    entries = shape_of(reply)
    if WEIGHT not in {path for path, _, _ in entries}:
        raise IntegrityError(f"a {type(reply).__name__} has no weight, so it cannot be summed securely")
    return tuple(entry for entry in entries if entry[0] != WEIGHT)


def to_words(reply: Message, owners: int) -> Words:
    """One owner's reply as fixed-point words."""
    tensors = reply.tensors()
    weight = tensors[WEIGHT].double()
    flat = [tensors[path].double().flatten() * weight for path, _, _ in summed_shape(reply)]
    return encode(torch.cat([*flat, weight]).numpy(), owners)


def from_sum(kind: type[Message], shape: MessageShape, words: Words) -> Message:
    """The weighted mean as a reply with one row."""
    values = torch.from_numpy(decode(words))
    total = values[-1]
    if not total > 0:
        raise BadReply("a secure sum has no weight: an owner has sealed numbers it must not, and which cannot be told")
    tensors: dict[str, Tensor] = {WEIGHT: total.view(1).float()}
    start = 0
    for path, dtype, dims in shape:
        size = math.prod(dims)
        tensors[path] = (values[start : start + size] / total).view(1, *dims).to(DTYPES[dtype])
        start += size
    return kind.from_tensors(SUM, {}, tensors)


def shape_as_json(shape: MessageShape) -> list[Json]:
    """For the header of a sealed reply."""
    return [[path, dtype, list(dims)] for path, dtype, dims in shape]


def read_shape(listed: Json) -> MessageShape:
    """As `shape_as_json` wrote it."""
    shape = []
    if not isinstance(listed, list) or len(listed) > MOST_WORDS:
        raise BadReply("it does not say what it has sealed")
    for entry in listed:
        path, dtype, dims = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
        if not isinstance(path, str) or not isinstance(dtype, str) or dtype not in DTYPES or not isinstance(dims, list):
            raise BadReply("it does not say what it has sealed")
        sizes = tuple(n for n in dims if type(n) is int and 0 <= n <= MOST_WORDS)
        if len(sizes) != len(dims) or len(sizes) > MOST_AXES:
            raise BadReply("it does not say what it has sealed")
        shape.append((path, dtype, sizes))
    return tuple(shape)


def sealed_words(replies: Mapping[str, Frame], lost: dict[str, Exception]) -> tuple[dict[str, Words], MessageShape]:
    """The sealed words by owner, of the entries that most of them have sealed; who has not is added to `lost`."""
    shapes: dict[str, MessageShape] = {}
    for owner, frame in replies.items():
        try:
            shapes[owner] = read_shape(frame.header.get("shape"))
        except BadReply as error:
            lost[owner] = error
    if not shapes:
        return {}, ()
    shape = Counter(shapes.values()).most_common(1)[0][0]
    length = 1 + sum(math.prod(dims) for _, _, dims in shape)
    masked = {}
    for owner, found in shapes.items():
        try:
            if found != shape:
                raise BadReply("it has sealed other entries than most")
            reply = Sealed.unpack(replies[owner].body)
            if reply.ids != (owner,) or reply.words.dtype != torch.int64 or reply.words.shape != (1, length):
                raise BadReply(f"it has sealed {list(reply.words.shape)} words, expected are {length}")
            masked[owner] = reply.words[0].numpy().view(np.uint64)
        except SutureError as error:
            lost[owner] = BadReply(str(error))
    return masked, shape
