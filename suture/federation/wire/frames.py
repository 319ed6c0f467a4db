"""What crosses between a coordinator and an owner, whatever carries the bytes.

A frame is a JSON header and a body, never pickled:

    b"SUX1" | header length (4 bytes, little endian) | JSON header | body

The header's `verb` says what is wanted: `open` a run under its terms, `ask` a declared step, `evaluate`, `retain` the model
as it is now, `finish`. `ask` is numbered and names its round; an owner answers a repeated number from its journal, so
delivering twice is harmless. The body is a packed message of the type that the step declares, nothing else is unpacked. An
answer that refuses says so in `refused`, a sentence, and in `code`.

A call costs about as much as a small step, so requests that are known together travel together: the verb `several` holds
frames, which are answered one after the other as if each had come alone.

An answer names in `answers` the digest of the request it is to. An answer that was given before, to another request, is
found out by that: whether a cache, a repeated delivery or somebody on the way brings it. An owner that *wants* to send old
numbers can: they are then its update.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from suture.core.headers import read_header
from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.federation.wire.bounds import FRAME_HEADER, MOST_NUMBER, MOST_PARTS
from suture.federation.wire.reasons import Reason, Refused, code_named

MAGIC = b"SUX1"
SEVERAL = "several"
ANSWERS = "answers"


@dataclass(frozen=True)
class Frame:
    """One request or one answer."""

    header: dict[str, Json]
    body: bytes = b""
    sent: memoryview | None = field(default=None, compare=False, repr=False)
    """The header as it came, of a frame that came."""

    def pack(self) -> bytes:
        """To bytes."""
        header = self._header
        if len(header) > FRAME_HEADER.size:
            raise IntegrityError(
                f"a header of {len(header):,} bytes is longer than the {FRAME_HEADER.size:,} that parties read: "
                "use fewer features, or a run that needs no statistics of them"
            )
        return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, self.body])

    @cached_property
    def _header(self) -> bytes | memoryview:
        # To write a header anew that came from somebody else would take a multiple of its size, and the time.
        return self.sent if self.sent is not None else json.dumps(self.header, separators=(",", ":")).encode()

    @property
    def header_bytes(self) -> int:
        """How large the header travels."""
        return len(self._header)

    @cached_property
    def digest(self) -> str:
        """By which an answer names this request."""
        digest = hashlib.sha256(self._header)
        digest.update(b"\0" + hashlib.sha256(self.body).digest())
        return digest.hexdigest()[:32]

    def answering(self, request: Frame) -> Frame:
        """This, as the answer to a request."""
        return Frame({**self.header, ANSWERS: request.digest}, self.body)

    def is_to(self, digest: str) -> bool:
        """Whether this is the answer to the request with this digest."""
        return self.header.get(ANSWERS) == digest

    @staticmethod
    def unpack(data: bytes) -> Frame:
        """From bytes, or a refusal."""
        end = 8 + int.from_bytes(data[4:8], "little")
        if not isinstance(data, bytes) or data[:4] != MAGIC or end > len(data):
            raise IntegrityError("malformed frame (it does not start like one of ours); it was refused")
        sent = memoryview(data)[8:end]
        try:
            header = read_header(sent, FRAME_HEADER, finite=True)
        except ValueError as error:
            raise IntegrityError(f"malformed frame (its header cannot be read: {error}); it was refused") from error
        return Frame(header, data[end:], sent)

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
        if len(sizes) > MOST_PARTS:
            raise IntegrityError(f"malformed frame (it holds {len(sizes):,} others, at most {MOST_PARTS}); it was refused")
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
        if type(value) is not int or not 0 <= value <= MOST_NUMBER:
            raise IntegrityError(f"malformed frame ({key} must be a whole number from 0 on); it was refused")
        return value

    @staticmethod
    def refusal(reason: Reason) -> Frame:
        """The answer that tells why there is no other."""
        return Frame({"refused": reason.text, "code": reason.code.value})

    @property
    def refused(self) -> Refused | None:
        """What an answer says instead of an answer."""
        if "refused" not in self.header:
            return None
        text = self.text("refused")[:500]  # of somebody else, for a log and a terminal
        return Refused("".join(one if one.isprintable() else "?" for one in text), code_named(self.header.get("code")))
