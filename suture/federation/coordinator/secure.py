"""The coordinator's walk through secure aggregation: keys, shares, sealed replies, signed survivors, and the sum opened.

What one owner sends wrongly ends at that owner: it is named in `lost`, and where owners may be lost the step goes on without
it, or is begun anew with fresh keys where its part is in the others' already. What only owners can see they tell, `accused`:

- most of the others accuse it: an owner is at fault;
- few do, of what everybody can check (keys): the accuser is;
- few do, of what nobody else can read (shares): one of the two is, and who cannot be told, so both are left out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from suture.core.message import Message
from suture.core.storage import Json
from suture.errors import ConfigError, SutureError
from suture.federation.coordinator.calls import Answers, Failures, Request
from suture.federation.identity import check_signature
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply, Code, Refused
from suture.federation.wire.sealed import from_sum, sealed_words
from suture.federation.wire.transcript import (
    LARGEST_SIGNATURE,
    Advertised,
    Purpose,
    content_of,
    from_hex,
    keys_statement,
    survivors_statement,
    transcript,
)
from suture.privacy.secure_aggregation import PRIME, AtFault, Opening

T = TypeVar("T")
FEWEST = 2
"""A sum of one is that one's update. Owners may insist on more."""


class BegunAnew(SutureError):
    """Owners were found at fault whose part is in the others' already."""


@dataclass
class KeysAhead:
    """Public keys that owners have handed out for their next step: one call less."""

    kept: dict[str, tuple[int, Json]] = field(default_factory=dict)

    def forget(self, owners: Sequence[str] | Mapping[str, object]) -> None:
        """The run is opened anew at these: what was begun there is gone."""
        for owner in owners:
            self.kept.pop(owner, None)

    def take(self, owner: str, number: int) -> Json | None:
        """What the owner has handed out for this step, once."""
        at, keys = self.kept.pop(owner, (-1, None))
        return keys if at == number else None


@dataclass
class SecureAsk:
    """One summed step. `call` delivers frames to several owners at once and gives (answers, failures)."""

    call: Callable[[Mapping[str, Request]], tuple[Answers, Failures]]
    owners: Sequence[str]
    purpose: Purpose
    base: int
    step: str
    round: int
    may_drop: bool
    """Go on without owners that do not answer, as long as there are enough."""
    ahead: KeysAhead = field(default_factory=KeysAhead)
    lost: Failures = field(default_factory=dict)

    def run(self, kind: type[Message], bodies: Mapping[str, bytes]) -> Message | None:
        """The mean of those that answered; None if they are too few. `lost` says who did not, or is at fault."""
        contents = {content_of(body) for body in bodies.values()}
        if len(contents) > 1:
            raise ConfigError(
                f"{self.step} is asked with another message for each owner; such steps are not summed securely"
            )
        while True:
            members = [owner for owner in self.owners if owner not in self.lost]
            if len(members) < FEWEST and not self.lost:
                raise Refused(
                    f"a secure sum of {self.step} is asked of {', '.join(members) or 'nobody'} alone, which would show its "
                    "own update; let more owners take part (training.participation)",
                    Code.SECRECY,
                )
            if not self._may_go_on(members):
                return None
            try:
                return self._carried_out(members, kind, bodies, *contents)
            except BegunAnew:
                self.ahead.forget(members)

    def _may_go_on(self, answered: Sequence[str] | Mapping[str, object], needed: int = FEWEST) -> bool:
        return (self.may_drop or not self.lost) and len(answered) >= needed

    def _carried_out(
        self, members: Sequence[str], kind: type[Message], bodies: Mapping[str, bytes], content: str
    ) -> Message | None:
        keys = self._keys(members)
        if not self._may_go_on(keys):
            return None
        self.session = secrets.token_hex(16)
        bound = transcript(self.purpose, self.step, self.round, content, self.session, keys)
        shares, needed = self._shares(keys, content)
        if not self._may_go_on(shares, max(needed.values(), default=FEWEST)):
            return None
        masked, shape = sealed_words(self._sealed(shares, bodies), self.lost)
        enough = max(needed.values())
        if not self._may_go_on(masked, enough):
            return None
        opened = self._opened(self._agreed(sorted(masked), keys, bound), enough)
        if len(opened) < enough:
            return None
        try:
            public = {owner: one.keys for owner, one in keys.items()}
            total, wrong = Opening(masked, public, needed, bound).total(opened)
        except AtFault as error:
            self.lost.update({owner: BadReply(why) for owner, why in error.accused.items()})
            return None
        self.lost.update({owner: BadReply("it gave back wrong shares of others' secrets") for owner in wrong})
        # Whoever was lost after its reply came is in the sum.
        self.lost = {owner: why for owner, why in self.lost.items() if owner not in masked or isinstance(why, BadReply)}
        return from_sum(kind, shape, total)

    def _all(
        self, owners: Sequence[str], verb: str, more: Callable[[str], dict[str, Json]], body: Mapping[str, bytes]
    ) -> Answers:
        common: dict[str, Json] = {"verb": verb, "number": self.purpose.number}
        good, bad = self.call({owner: ({**common, **more(owner)}, body.get(owner, b"")) for owner in owners})
        self.lost.update(bad)
        return good

    def _read(self, answers: Mapping[str, Frame], read: Callable[[str, Frame], T]) -> dict[str, T]:
        """What the answers say; an owner whose answer is not what it should be is lost."""
        found: dict[str, T] = {}
        for owner, frame in answers.items():
            try:
                found[owner] = read(owner, frame)
            except SutureError as error:
                self.lost[owner] = BadReply(str(error))
        return found

    def _keys(self, members: Sequence[str]) -> dict[str, Advertised]:
        """Everybody's signed keys: those handed out ahead, and those of a call to the rest."""
        number = self.purpose.number
        ahead = {owner: told for owner in members if (told := self.ahead.take(owner, number)) is not None}
        rest = [owner for owner in members if owner not in ahead]
        answers = self._all(rest, "seal-keys", lambda owner: {}, {}) if rest else {}
        answers |= {owner: Frame({"keys": told}) for owner, told in ahead.items()}

        def checked(owner: str, frame: Frame) -> Advertised:
            one = Advertised.read(frame.header.get("keys"))
            check_signature(owner, one.certificate, keys_statement(self.purpose, owner, one.keys), one.signature)
            return one

        return self._read(answers, checked)

    def _shares(self, keys: Mapping[str, Advertised], content: str) -> tuple[dict[str, dict[str, str]], dict[str, int]]:
        """(encrypted shares by sender and receiver, how many of its shares give back a sender's secrets)."""
        everybody = json.dumps({owner: one.as_json() for owner, one in keys.items()}).encode()
        about: dict[str, Json] = {"session": self.session, "step": self.step, "round": self.round, "content": content}
        answers = self._all(list(keys), "seal-shares", lambda owner: about, dict.fromkeys(keys, everybody))
        self._judge(answers, len(keys), is_private=False)
        told = self._read(answers, lambda owner, frame: _shares_of(owner, frame, keys))
        return {owner: shares for owner, (shares, _) in told.items()}, {owner: needed for owner, (_, needed) in told.items()}

    def _sealed(self, shares: Mapping[str, Mapping[str, str]], bodies: Mapping[str, bytes]) -> Answers:
        partners = sorted(shares)

        def more(owner: str) -> dict[str, Json]:
            received: dict[str, Json] = {other: shares[other][owner] for other in partners if other != owner}
            about: dict[str, Json] = {"session": self.session, "step": self.step, "round": self.round}
            return {**about, "base": self.base, "shares": received}

        answers = self._all(partners, "seal-ask", more, bodies)
        self._judge(answers, len(partners), is_private=True)
        return answers

    def _agreed(self, survivors: Sequence[str], keys: Mapping[str, Advertised], bound: bytes) -> dict[str, str]:
        """The survivors' signatures of who they are."""
        about: dict[str, Json] = {"session": self.session, "survivors": [*survivors]}
        answers = self._all(survivors, "seal-agree", lambda owner: about, {})

        def checked(owner: str, frame: Frame) -> str:
            signature = from_hex(frame.header.get("signature"), LARGEST_SIGNATURE)
            check_signature(owner, keys[owner].certificate, survivors_statement(bound, survivors), signature)
            return signature.hex()

        return self._read(answers, checked)

    def _opened(self, signed: Mapping[str, str], needed: int) -> dict[str, dict[str, tuple[str, int]]]:
        """What the survivors that have signed give to open the sum, if they are enough."""
        if len(signed) < needed:
            return {}
        everybody = json.dumps(dict(signed)).encode()
        answers = self._all(
            list(signed), "seal-open", lambda owner: {"session": self.session}, dict.fromkeys(signed, everybody)
        )
        for owner, frame in answers.items():
            self.ahead.kept[owner] = (self.purpose.number + 1, frame.header.get("next"))
        return self._read(answers, lambda owner, frame: _opened_shares(frame))

    def _judge(self, answers: Answers, members: int, is_private: bool) -> None:
        """Leave out those at fault, as the module's text says, and begin anew."""
        found = judged({owner: _accused(frame) for owner, frame in answers.items()}, members, is_private)
        if found:
            self.lost.update(found)
            raise BegunAnew


def judged(accusations: Mapping[str, Mapping[str, str]], members: int, is_private: bool) -> Failures:
    """Who is at fault, of those that accuse and those that are accused."""
    by_accused: dict[str, dict[str, str]] = {}
    for accuser, accused in accusations.items():
        for owner, why in accused.items():
            if owner != accuser:
                by_accused.setdefault(owner, {})[accuser] = why
    upheld = {owner for owner, told in by_accused.items() if 2 * len(told) > members - 1}
    found: Failures = {owner: BadReply(next(iter(by_accused[owner].values()))) for owner in upheld}
    for accuser, accused in accusations.items():
        others = {owner: why for owner, why in accused.items() if owner not in upheld}
        if accuser in upheld or not others:
            continue
        names = ", ".join(others)
        found[accuser] = BadReply(f"it says of {names}: {next(iter(others.values()))}; most others do not")
        if is_private and len(others) == 1:
            found.setdefault(names, BadReply(f"{accuser} says: {others[names]}; who of the two is right cannot be told"))
    return found


def _accused(frame: Frame) -> dict[str, str]:
    told = frame.header.get("accused", {})
    return {name: str(why)[:200] for name, why in told.items()} if isinstance(told, dict) else {}


def _texts(frame: Frame, key: str) -> dict[str, str]:
    found = frame.header.get(key)
    if not isinstance(found, dict):
        raise BadReply(f"its {key} are missing")
    return {name: str(value) for name, value in found.items()}


def _shares_of(owner: str, frame: Frame, keys: Mapping[str, object]) -> tuple[dict[str, str], int]:
    shares, needed = _texts(frame, "shares"), frame.number("needed")
    if set(shares) != set(keys) - {owner} or not FEWEST <= needed <= len(keys):
        raise BadReply("its shares are not for those they must be for")
    return shares, needed


def _opened_shares(frame: Frame) -> dict[str, tuple[str, int]]:
    found = {}
    for name, text in _texts(frame, "opened").items():
        kind, _, share = text.partition(" ")
        number = int.from_bytes(from_hex(share, 66), "big")
        if kind not in ("seed", "mask") or number >= PRIME:
            raise BadReply("what it gave to open a sum is none")
        found[name] = (kind, number)
    return found
