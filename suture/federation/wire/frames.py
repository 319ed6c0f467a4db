"""What crosses between a coordinator and an owner, whatever carries the bytes.

A frame is a JSON header and a body, never pickled:

    b"SUX1" | header length (4 bytes, little endian) | JSON header | body

The header's `verb` says what is wanted: `open` a run under its terms, `ask` a declared step, `evaluate`, `retain` the model
as it is now, `finish`. `ask` is numbered and names its round; an owner answers a repeated number from its journal, so
delivering twice is harmless. The body is a packed message of the type that the step declares, nothing else is unpacked. An
answer that refuses says so in `refused`, a sentence, and in `code`.

A call costs about as much as a small step, so requests that are known together travel together: the verb `several` holds
frames, which are answered one after the other as if each had come alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.federation.wire.reasons import Reason, Refused, code_named

MAGIC = b"SUX1"
SEVERAL = "several"


@dataclass(frozen=True)
class Frame:
    """One request or one answer."""

    header: dict[str, Json]
    body: bytes = b""

    def pack(self) -> bytes:
        """To bytes."""
        header = json.dumps(self.header, separators=(",", ":")).encode()
        return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, self.body])

    @property
    def header_bytes(self) -> int:
        """How large the header travels."""
        return len(json.dumps(self.header, separators=(",", ":")).encode())

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

    @staticmethod
    def refusal(reason: Reason) -> Frame:
        """The answer that tells why there is no other."""
        return Frame({"refused": reason.text, "code": reason.code.value})

    @property
    def refused(self) -> Refused | None:
        """What an answer says instead of an answer."""
        if "refused" not in self.header:
            return None
        return Refused(self.text("refused")[:500], code_named(self.header.get("code")))
