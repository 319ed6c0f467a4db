"""The coordinator's walk through secure aggregation: keys, shares, sealed replies, and the sum of them opened."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from suture.core.message import Message
from suture.core.storage import Json
from suture.federation.coordinator.calls import Answers, Failures, Request
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply
from suture.federation.wire.sealed import from_sum, sealed_words
from suture.privacy.secure_aggregation import opened_sum, threshold

PublicKeys = dict[str, tuple[bytes, bytes]]


@dataclass
class SecureAsk:
    """One summed step. `call` delivers frames to several owners at once and gives (answers, failures)."""

    call: Callable[[Mapping[str, Request]], tuple[Answers, Failures]]
    owners: Sequence[str]
    number: int
    base: int
    step: str
    round: int
    may_drop: bool
    """Go on without owners that do not answer, as long as there are enough."""
    lost: Failures = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = secrets.token_hex(16)

    def run(self, kind: type[Message], bodies: Mapping[str, bytes]) -> Message | None:
        """The mean of those that answered; None if they are too few. `lost` says who did not."""
        keys = self._keys()
        if not self._enough(keys, self.owners):
            return None
        shares = self._shares(keys)
        if not self._enough(shares, keys):
            return None
        replies = self._sealed(shares, bodies)
        if not self._enough(replies, keys):
            return None
        masked, shape = sealed_words(replies)
        opened = self._opened(sorted(masked))
        if len(opened) < threshold(len(keys)):
            return None
        total = opened_sum(masked, keys, sorted(shares), opened, self.session)
        # Whoever was lost after its reply came is in the sum.
        self.lost = {owner: why for owner, why in self.lost.items() if owner not in masked}
        return from_sum(kind, shape, total)

    def _enough(self, answered: Mapping[str, object], wanted: Sequence[str] | Mapping[str, object]) -> bool:
        return (self.may_drop or not self.lost) and len(answered) >= threshold(len(wanted))

    def _all(
        self, owners: Sequence[str], verb: str, more: Callable[[str], dict[str, Json]], body: Mapping[str, bytes]
    ) -> Answers:
        common: dict[str, Json] = {"verb": verb, "session": self.session, "number": self.number}
        good, bad = self.call({owner: ({**common, **more(owner)}, body.get(owner, b"")) for owner in owners})
        self.lost.update(bad)
        return good

    def _keys(self) -> PublicKeys:
        told = self._all(self.owners, "seal-keys", lambda owner: {}, {})
        return {
            owner: (bytes.fromhex(frame.text("encryption")), bytes.fromhex(frame.text("masking")))
            for owner, frame in told.items()
        }

    def _shares(self, keys: PublicKeys) -> dict[str, dict[str, str]]:
        public: dict[str, Json] = {owner: [pair[0].hex(), pair[1].hex()] for owner, pair in keys.items()}
        given = self._all(list(keys), "seal-shares", lambda owner: {"keys": public}, {})
        return {owner: _texts(frame, "shares") for owner, frame in given.items()}

    def _sealed(self, shares: Mapping[str, Mapping[str, str]], bodies: Mapping[str, bytes]) -> Answers:
        partners = sorted(shares)

        def more(owner: str) -> dict[str, Json]:
            received: dict[str, Json] = {other: shares[other][owner] for other in partners if other != owner}
            return {"step": self.step, "base": self.base, "round": self.round, "shares": received}

        return self._all(partners, "seal-ask", more, bodies)

    def _opened(self, owners: Sequence[str]) -> dict[str, dict[str, tuple[str, int]]]:
        survivors: list[Json] = [*owners]
        told = self._all(owners, "seal-open", lambda owner: {"survivors": survivors}, {})
        return {owner: _opened_shares(frame) for owner, frame in told.items()}


def _texts(frame: Frame, key: str) -> dict[str, str]:
    found = frame.header.get(key)
    if not isinstance(found, dict):
        raise BadReply(f"its {key} are missing")
    return {name: str(value) for name, value in found.items()}


def _opened_shares(frame: Frame) -> dict[str, tuple[str, int]]:
    pairs = {name: text.partition(" ") for name, text in _texts(frame, "opened").items()}
    return {name: (kind, int(share, 16)) for name, (kind, _, share) in pairs.items()}
