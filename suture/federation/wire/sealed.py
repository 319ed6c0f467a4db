"""Secure aggregation on the wire: replies as sealed words, and the coordinator's walk through the protocol.

A reply to a summed step becomes the vector (weight * every entry, weight). What is opened is the sum over owners, which
becomes a reply with one row, the weighted mean: a method that only averages cannot tell the difference.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from suture.core.message import DTYPES, Message
from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.federation.wire.exchange import BadReply, Frame
from suture.privacy.secure_aggregation import Words, decode, encode, opened_sum, threshold

WEIGHT = "weight"
SUM = ("sum",)
"""The one row of a reply that was opened from a sum."""
Layout = list[tuple[str, str, tuple[int, ...]]]


@dataclass(frozen=True)
class Sealed(Message):
    """What an owner sends under secure aggregation: `words` int64 [1, n], uniformly random to whoever lacks the others'."""

    words: Tensor


def layout_of(reply: Message) -> Layout:
    """Paths, types and shapes of the entries that are summed, the weight apart."""
    tensors = reply.tensors()
    if WEIGHT not in tensors:
        raise IntegrityError(f"a {type(reply).__name__} has no weight, so it cannot be summed securely")
    entries = [(path, str(t.dtype).removeprefix("torch."), tuple(t.shape[1:])) for path, t in tensors.items()]
    return [entry for entry in entries if entry[0] != WEIGHT]


def to_words(reply: Message, owners: int) -> Words:
    """One owner's reply as fixed-point words."""
    tensors = reply.tensors()
    weight = tensors[WEIGHT].double()
    flat = [tensors[path].double().flatten() * weight for path, _, _ in layout_of(reply)]
    return encode(torch.cat([*flat, weight]).numpy(), owners)


def from_sum(kind: type[Message], layout: Layout, words: Words) -> Message:
    """The weighted mean as a reply with one row."""
    values = torch.from_numpy(decode(words))
    total = values[-1]
    tensors: dict[str, Tensor] = {WEIGHT: total.view(1).float()}
    start = 0
    for path, dtype, shape in layout:
        size = math.prod(shape)
        tensors[path] = (values[start : start + size] / total.clamp_min(1e-12)).view(1, *shape).to(DTYPES[dtype])
        start += size
    return kind.from_tensors(SUM, {}, tensors)


Call = Callable[[Mapping[str, tuple[dict[str, Json], bytes]]], tuple[dict[str, Frame], dict[str, Exception]]]


Header = Callable[[str], dict[str, Json]]
Result = tuple[Message | None, dict[str, Exception]]


@dataclass
class SecureAsk:
    """One summed step. `call` delivers frames to several owners at once and gives (answers, failures)."""

    call: Call
    owners: Sequence[str]
    number: int
    base: int
    step: str
    round: int

    def run(self, kind: type[Message], bodies: Mapping[str, bytes], may_drop: bool) -> Result:
        """(the mean of those that answered, those that did not); no mean if there are too few, or any unless `may_drop`."""
        session = secrets.token_hex(16)
        common: dict[str, Json] = {"session": session, "number": self.number}
        lost: dict[str, Exception] = {}

        def all_of(
            owners: Sequence[str], header: Callable[[str], dict[str, Json]], body: Mapping[str, bytes]
        ) -> dict[str, Frame]:
            good, bad = self.call({owner: ({**common, **header(owner)}, body.get(owner, b"")) for owner in owners})
            lost.update(bad)
            return good

        told = all_of(self.owners, lambda owner: {"verb": "seal-keys"}, {})
        keys = {owner: _keys(frame) for owner, frame in told.items()}
        if (lost and not may_drop) or len(keys) < threshold(len(self.owners)):
            return None, lost
        public: dict[str, Json] = {owner: [pair[0].hex(), pair[1].hex()] for owner, pair in keys.items()}
        given = all_of(list(keys), lambda owner: {"verb": "seal-shares", "keys": public}, {})
        shares = {owner: _texts(frame, "shares") for owner, frame in given.items()}
        if (lost and not may_drop) or len(shares) < threshold(len(keys)):
            return None, lost
        partners = sorted(shares)

        def ask(owner: str) -> dict[str, Json]:
            sealed: dict[str, Json] = {other: shares[other][owner] for other in partners if other != owner}
            return {"verb": "seal-ask", "step": self.step, "base": self.base, "round": self.round, "shares": sealed}

        replies = all_of(partners, ask, bodies)
        if (lost and not may_drop) or len(replies) < threshold(len(keys)):
            return None, lost
        masked, layout = _masked(replies)
        survivors: list[Json] = [*sorted(masked)]
        opened = all_of(sorted(masked), lambda owner: {"verb": "seal-open", "survivors": survivors}, {})
        answers = {owner: _shares(frame) for owner, frame in opened.items()}
        if len(answers) < threshold(len(keys)):
            return None, lost
        total = opened_sum(masked, keys, partners, answers, session)
        return from_sum(kind, layout, total), {owner: why for owner, why in lost.items() if owner not in masked}


def _keys(frame: Frame) -> tuple[bytes, bytes]:
    return bytes.fromhex(frame.text("encryption")), bytes.fromhex(frame.text("masking"))


def _texts(frame: Frame, key: str) -> dict[str, str]:
    found = frame.header.get(key)
    if not isinstance(found, dict):
        raise BadReply(f"its {key} are missing")
    return {name: str(value) for name, value in found.items()}


def _shares(frame: Frame) -> dict[str, tuple[str, int]]:
    pairs = (text.partition(" ") for text in _texts(frame, "opened").values())
    return {name: (kind, int(share, 16)) for name, (kind, _, share) in zip(_texts(frame, "opened"), pairs, strict=True)}


def _masked(replies: Mapping[str, Frame]) -> tuple[dict[str, Words], Layout]:
    """The sealed words by owner; everybody must have sealed the same entries."""
    layouts = {owner: str(frame.header.get("layout")) for owner, frame in replies.items()}
    if len(set(layouts.values())) > 1:
        raise BadReply(f"owners sealed different entries: {', '.join(sorted(layouts))}")
    layout = _layout(next(iter(replies.values())).header.get("layout"))
    length = 1 + sum(math.prod(shape) for _, _, shape in layout)
    masked = {}
    for owner, frame in replies.items():
        words = Sealed.unpack(frame.body).words
        if words.dtype != torch.int64 or words.shape != (1, length):
            raise BadReply(f"owner {owner} sealed {list(words.shape)} words, expected {length}")
        masked[owner] = words[0].numpy().view(np.uint64)
    return masked, layout


def _layout(listed: Json) -> Layout:
    layout: Layout = []
    for entry in listed if isinstance(listed, list) else []:
        path, dtype, shape = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
        if not isinstance(path, str) or dtype not in DTYPES or not isinstance(shape, list):
            raise BadReply("owners do not say what they sealed")
        layout.append((path, str(dtype), tuple(n for n in shape if isinstance(n, int))))
    return layout
