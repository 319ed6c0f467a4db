"""What secure aggregation signs, and what a sum is bound to.

    keys         owner i signs (run, terms, number, owner i, its public keys)
    transcript   sha256 of (run, terms, number, session, everybody's signed keys); shares are encrypted under it
    question     sha256 of (transcript, step, round, content); masks are derived from it
    survivors    owner i signs (question, survivors)

`number` is that of the step, `terms` the hash of all that was agreed on before the run, the owners' names among it, and
`content` the hash of what everybody is asked with: were that another model for each, a coordinator could give all but one
owner a model whose update is zero (Pasquini et al., Eluding secure aggregation in federated learning via model
inconsistency, CCS 2022). Owners that are asked differently do not share their masks, so their sum is noise. Everything is
signed and hashed as a JSON list that begins with its purpose, so no signature stands for another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from suture.core.packing import apart
from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.privacy.secure_aggregation import PublicKeys

LARGEST_SIGNATURE = 1024
"""Bytes."""


def from_hex(text: object, most: int) -> bytes:
    """Bytes that came as text, at most so many."""
    if not isinstance(text, str) or len(text) > 2 * most:
        raise IntegrityError("what should be bytes is none")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise IntegrityError("what should be bytes is none") from error


@dataclass(frozen=True)
class Advertised:
    """An owner's public keys for one sum, with what proves that they are its own."""

    keys: PublicKeys
    signature: bytes
    certificate: str

    def as_json(self) -> list[Json]:
        """For the wire."""
        public = [self.keys.encryption.hex(), self.keys.masking.hex(), self.keys.commitment.hex()]
        return [*public, self.signature.hex(), self.certificate]

    @staticmethod
    def read(content: object) -> Advertised:
        """As it came; whether it is true is for `suture.federation.identity` to say."""
        if not isinstance(content, list) or len(content) != 5 or not isinstance(content[4], str):
            raise IntegrityError("its public keys are missing")
        keys = PublicKeys(*(from_hex(one, 32) for one in content[:3]))
        keys.check()
        return Advertised(keys, from_hex(content[3], LARGEST_SIGNATURE), content[4])


@dataclass(frozen=True)
class Purpose:
    """What a sum is for."""

    run: str
    terms: str
    number: int


def keys_statement(purpose: Purpose, owner: str, keys: PublicKeys) -> bytes:
    """What an owner signs of its keys."""
    public = [keys.encryption.hex(), keys.masking.hex(), keys.commitment.hex()]
    return _statement("keys", [purpose.run, purpose.terms, purpose.number, owner, *public])


def transcript(purpose: Purpose, session: str, members: Mapping[str, Advertised]) -> bytes:
    """What all that follows in a sum is bound to."""
    about: list[Json] = [purpose.run, purpose.terms, purpose.number, session]
    known: list[Json] = [[name, *one.as_json()] for name, one in sorted(members.items())]
    return sha256(_statement("transcript", [*about, known])).digest()


def question(transcript: bytes, step: str, round: int, content: str) -> bytes:
    """What everybody in a sum is asked."""
    return sha256(_statement("question", [transcript.hex(), step, round, content])).digest()


def survivors_statement(asked: bytes, survivors: Sequence[str]) -> bytes:
    """What an owner signs before a sum is opened."""
    return _statement("survivors", [asked.hex(), [*sorted(survivors)]])


def _statement(what: str, content: list[Json]) -> bytes:
    return json.dumps([f"suture seal {what} 1", *content], separators=(",", ":")).encode()


def content_of(body: bytes) -> str:
    """A hash of what an owner was asked with, whoever it is: the same at all owners that were told the same."""
    layout, values = apart(body)
    hashed = sha256(len(layout).to_bytes(8, "little") + layout)
    hashed.update(values)
    return hashed.hexdigest()


def is_same(bodies: Sequence[bytes]) -> bool:
    """Whether all of these say the same to whom they are for."""
    (layout, values), *others = (apart(body) for body in bodies)
    first = bytes(values)  # comparing views goes number by number
    return all(other == layout and bytes(told) == first for other, told in others)
