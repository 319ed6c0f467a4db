"""The coordinator's walk through secure aggregation: keys, shares, sealed replies, signed survivors, and the sum opened.

What one owner sends wrongly ends at that owner: it is named in `lost`, and where owners may be lost the step goes on without
it, or is begun anew with fresh keys where its part is in the others' already. What only owners can see they tell, `accused`:

- most of the others accuse it: an owner is at fault;
- few do, of what everybody can check (keys): the accuser is;
- few do, of what nobody else can read (shares): one of the two is, and who cannot be told, so both are left out.

A call costs about as much as a small step, so what is known together travels together: the test with the step, the next
step's keys with the signatures of this one's survivors, its shares with the opening. A secure round is three calls.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    is_same,
    keys_statement,
    question,
    survivors_statement,
    transcript,
)
from suture.privacy.secure_aggregation import PRIME, AtFault, Opening

T = TypeVar("T")
FEWEST = 2
"""A sum of one is that one's update. Owners may insist on more."""


class BegunAnew(SutureError):
    """Owners were found at fault whose part is in the others' already."""


@dataclass(frozen=True)
class Begun:
    """A sum up to where it can be asked for: everybody's keys, and everybody's shares for everybody."""

    purpose: Purpose
    session: str
    keys: Mapping[str, Advertised]
    shares: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By sender and receiver."""
    needed: Mapping[str, int] = field(default_factory=dict)
    """How many shares give back a sender's secrets."""


@dataclass
class BegunAhead:
    """The next step's sum, begun with the calls of this one: two calls less."""

    begun: Begun | None = None

    def forget(self, owners: Sequence[str] | Mapping[str, object]) -> None:
        """The run is opened anew at these: what was begun there is gone."""
        if self.begun is not None and set(owners) & set(self.begun.keys):
            self.begun = None

    def take(self, purpose: Purpose, owners: Sequence[str]) -> Begun | None:
        """What was begun, if it was for this step and these owners; once."""
        begun, self.begun = self.begun, None
        return begun if begun is not None and begun.purpose == purpose and set(begun.shares) == set(owners) else None


@dataclass
class SecureAsk:
    """One summed step. `call` delivers several frames to each of several owners and gives (answers, failures)."""

    call: Callable[[Mapping[str, Sequence[Request]]], tuple[dict[str, list[Frame]], Failures]]
    owners: Sequence[str]
    purpose: Purpose
    base: int
    step: str
    round: int
    may_drop: bool
    """Go on without owners that do not answer, as long as there are enough."""
    ahead: BegunAhead = field(default_factory=BegunAhead)
    along: Callable[[str], Request] | None = None
    """What else each owner is asked with the step, its test for instance."""
    lost: Failures = field(default_factory=dict)
    travelled: Answers = field(default_factory=dict)
    """The answers to that."""

    def run(self, kind: type[Message], bodies: Mapping[str, bytes]) -> Message | None:
        """The mean of those that answered; None if they are too few. `lost` says who did not, or is at fault."""
        if not is_same(list(bodies.values())):
            raise ConfigError(
                f"{self.step} is asked with another message for each owner; such steps are not summed securely"
            )
        content = content_of(bodies[self.owners[0]])
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
                return self._carried_out(members, kind, bodies, content)
            except BegunAnew:
                continue

    def _may_go_on(self, answered: Sequence[str] | Mapping[str, object], needed: int = FEWEST) -> bool:
        return (self.may_drop or not self.lost) and len(answered) >= needed

    def _carried_out(
        self, members: Sequence[str], kind: type[Message], bodies: Mapping[str, bytes], content: str
    ) -> Message | None:
        begun = self.ahead.take(self.purpose, members) or self._begun(members)
        if begun is None or not self._may_go_on(begun.shares, enough := max(begun.needed.values(), default=FEWEST)):
            return None
        masked, shape = sealed_words(self._sealed(begun, bodies), self.lost)
        if not self._may_go_on(masked, enough):
            return None
        bound = transcript(begun.purpose, begun.session, begun.keys)
        asked = question(bound, self.step, self.round, content)
        opened = self._opened(begun, self._agreed(begun, sorted(masked), asked), enough)
        if len(opened) < enough:
            return None
        try:
            public = {owner: one.keys for owner, one in begun.keys.items()}
            total, wrong = Opening(masked, public, begun.needed, asked).total(opened)
        except AtFault as error:
            self.lost.update({owner: BadReply(why) for owner, why in error.accused.items()})
            return None
        self.lost.update({owner: BadReply("it gave back wrong shares of others' secrets") for owner in wrong})
        # Whoever was lost after its reply came is in the sum.
        self.lost = {owner: why for owner, why in self.lost.items() if owner not in masked or isinstance(why, BadReply)}
        return from_sum(kind, shape, total)

    def _all(self, requests: Mapping[str, Request], also: Mapping[str, Request] | None = None) -> tuple[Answers, Answers]:
        """The answers to these, and to what travelled with them."""
        extra = also or {}
        calls = {owner: [request, *([extra[owner]] if owner in extra else [])] for owner, request in requests.items()}
        good, bad = self.call(calls)
        self.lost.update(bad)
        second = {owner: frames[1] for owner, frames in good.items() if len(frames) > 1}
        return {owner: frames[0] for owner, frames in good.items()}, second

    def _read(self, answers: Mapping[str, Frame], read: Callable[[str, Frame], T]) -> dict[str, T]:
        """What the answers say; an owner whose answer is not what it should be is lost."""
        found: dict[str, T] = {}
        for owner, frame in answers.items():
            try:
                found[owner] = read(owner, frame)
            except SutureError as error:
                self.lost[owner] = BadReply(str(error))
        return found

    def _begun(self, members: Sequence[str]) -> Begun | None:
        """Keys and shares of everybody, in calls of their own."""
        told, _ = self._all(dict.fromkeys(members, _keys_request(self.purpose)))
        keys = self._keys(told, self.purpose)
        if not self._may_go_on(keys):
            return None
        begun = Begun(self.purpose, secrets.token_hex(16), keys)
        answers, _ = self._all(_shares_requests(begun))
        found = judged({owner: _accused(frame) for owner, frame in answers.items()}, len(keys), is_private=False)
        self._leave_out(found)
        return self._shared(begun, answers)

    def _keys(self, answers: Answers, purpose: Purpose) -> dict[str, Advertised]:
        """Everybody's signed keys."""

        def checked(owner: str, frame: Frame) -> Advertised:
            one = Advertised.read(frame.header.get("keys"))
            check_signature(owner, one.certificate, keys_statement(purpose, owner, one.keys), one.signature)
            return one

        return self._read(answers, checked)

    def _shared(self, begun: Begun, answers: Answers) -> Begun:
        """The same with everybody's shares."""
        told = self._read(answers, lambda owner, frame: _shares_of(owner, frame, begun.keys))
        shares = {owner: shares for owner, (shares, _) in told.items()}
        return replace(begun, shares=shares, needed={owner: needed for owner, (_, needed) in told.items()})

    def _sealed(self, begun: Begun, bodies: Mapping[str, bytes]) -> Answers:
        partners = sorted(begun.shares)
        requests: dict[str, Request] = {}
        for owner in partners:
            received: dict[str, Json] = {other: begun.shares[other][owner] for other in partners if other != owner}
            about: dict[str, Json] = {"step": self.step, "round": self.round, "base": self.base, "shares": received}
            requests[owner] = ({**_header("seal-ask", begun), **about}, bodies[owner])
        also = {owner: self.along(owner) for owner in partners} if self.along else None
        answers, self.travelled = self._all(requests, also)
        found = judged({owner: _accused(frame) for owner, frame in answers.items()}, len(partners), is_private=True)
        self._leave_out(found)
        return answers

    def _agreed(self, begun: Begun, survivors: Sequence[str], asked: bytes) -> dict[str, str]:
        """The survivors' signatures of who they are; their keys for the next step come with them."""
        about: dict[str, Json] = {**_header("seal-agree", begun), "survivors": [*survivors]}
        after = replace(self.purpose, number=self.purpose.number + 1)
        undisturbed = set(survivors) == set(self.owners)
        also = dict.fromkeys(survivors, _keys_request(after)) if undisturbed else None
        answers, ahead = self._all(dict.fromkeys(survivors, (about, b"")), also)
        if undisturbed and set(ahead) == set(survivors) and not self.lost:
            self.ahead.begun = Begun(after, secrets.token_hex(16), self._keys(ahead, after))

        def checked(owner: str, frame: Frame) -> str:
            signature = from_hex(frame.header.get("signature"), LARGEST_SIGNATURE)
            check_signature(owner, begun.keys[owner].certificate, survivors_statement(asked, survivors), signature)
            return signature.hex()

        return self._read(answers, checked)

    def _opened(self, begun: Begun, signed: Mapping[str, str], needed: int) -> dict[str, dict[str, tuple[str, int]]]:
        """What the survivors that have signed give to open the sum, if they are enough; shares for the next step with it."""
        if len(signed) < needed:
            return {}
        # A refusal of what travels along would cost the opening; so it does only where nothing has gone wrong.
        following = self.ahead.begun if not self.lost else None
        self.ahead.begun = None
        everybody = (_header("seal-open", begun), json.dumps(dict(signed)).encode())
        answers, shares = self._all(dict.fromkeys(signed, everybody), _shares_requests(following) if following else None)
        if following and not self.lost and not any("accused" in frame.header for frame in shares.values()):
            self.ahead.begun = self._shared(following, shares)
        return self._read(answers, lambda owner, frame: _opened_shares(frame))

    def _leave_out(self, found: Failures) -> None:
        """Begin anew without those at fault."""
        if found:
            self.lost.update(found)
            raise BegunAnew


def _header(verb: str, begun: Begun) -> dict[str, Json]:
    return {"verb": verb, "number": begun.purpose.number, "session": begun.session}


def _keys_request(purpose: Purpose) -> Request:
    return {"verb": "seal-keys", "number": purpose.number}, b""


def _shares_requests(begun: Begun) -> dict[str, Request]:
    everybody = json.dumps({owner: one.as_json() for owner, one in begun.keys.items()}).encode()
    return dict.fromkeys(begun.keys, (_header("seal-shares", begun), everybody))


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
