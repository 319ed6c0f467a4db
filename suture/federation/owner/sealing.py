"""Secure aggregation at an owner: the verbs with which its replies leave as sealed words, and their sum is opened.

    seal-keys     fresh public keys for step `number`, signed
    seal-shares   everybody's keys are checked, and encrypted shares of the own secrets handed out
    seal-ask      the step is answered in sealed words
    seal-agree    the survivors are signed
    seal-open     shown that enough survivors have signed the same, the owner gives what opens the sum, once

The coordinator is not trusted: see the page on the threat model. What cannot be the coordinator's doing is answered with
`accused`, the names of owners whose keys or shares cannot be used; nothing else is told then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from suture.core.headers import read_header
from suture.core.storage import Json
from suture.errors import IntegrityError
from suture.federation.owner.opened import Answered, OpenedSums
from suture.federation.owner.run import RunAtOwner
from suture.federation.owner.secrecy import Secrecy
from suture.federation.owner.sitting import Sitting
from suture.federation.wire.bounds import FRAME_HEADER
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.sealed import Sealed, shape_as_json, summed_shape, to_words
from suture.federation.wire.transcript import (
    LARGEST_SIGNATURE,
    Advertised,
    Purpose,
    content_of,
    from_hex,
    keys_statement,
    question,
    survivors_statement,
    transcript,
)
from suture.privacy.secure_aggregation import AtFault, Member
from suture.seam import Audit

LARGEST_SHARE = 160
"""Bytes: a nonce, two shares, a tag."""


class Sealing:
    """The verbs of secure aggregation; `run_of` finds the open run that a frame speaks of."""

    def __init__(self, owner: str, home: Path, run_of: Callable[[Frame], RunAtOwner[Any]], audit: Audit) -> None:
        self._owner, self._run, self._audit = owner, run_of, audit
        self._opened = OpenedSums(home)
        self.verbs: dict[str, Callable[[Frame], Frame]] = {
            "seal-keys": self._keys,
            "seal-shares": self._shares,
            "seal-ask": self._ask,
            "seal-agree": self._agree,
            "seal-open": self._open,
        }

    def _keys(self, frame: Frame) -> Frame:
        """Begin a sum, in the place of one that was not opened."""
        run, number, member = self._run(frame), frame.number("number"), Member(self._owner)
        secrecy = _secrecy(run)
        statement = keys_statement(Purpose(run.name, secrecy.terms, number), self._owner, member.public())
        advertised = Advertised(member.public(), secrecy.identity.sign(statement), secrecy.identity.pem)
        run.sittings.begin(Sitting(number, member, advertised))
        return Frame({"keys": advertised.as_json()})

    def _sitting(self, frame: Frame) -> Sitting:
        """The sum that this owner has begun, if the frame speaks of it and of no other."""
        sitting = self._run(frame).sittings.of(frame.number("number"))
        if not sitting.session or sitting.session != frame.text("session"):
            raise Refused("this is not the secure sum this owner has begun", Code.SECRECY)
        return sitting

    def _shares(self, frame: Frame) -> Frame:
        sitting = self._run(frame).sittings.of(frame.number("number"))
        return sitting.once(frame, lambda: self._shared(frame, sitting))

    def _shared(self, frame: Frame, sitting: Sitting) -> Frame:
        run, listed = self._run(frame), told_of_everybody(frame)
        secrecy = _secrecy(run)
        purpose = Purpose(run.name, secrecy.terms, sitting.number)
        if strangers := sorted(set(listed) - set(secrecy.owners)):
            raise Refused(f"{strangers[0]} is none of the owners that the terms name", Code.SECRECY)
        secrecy.check_members(listed)
        members, accused = self._checked(secrecy, purpose, listed)
        if accused:
            return self._accuse(run, sitting, accused)
        if members.get(self._owner) != sitting.advertised:
            raise Refused("the keys that came as this owner's are not its own; nothing is shared", Code.SECRECY)
        sitting.session, sitting.members, needed = frame.text("session"), members, secrecy.needed(len(members))
        public = {name: one.keys for name, one in members.items()}
        sealed = sitting.member.shares(public, transcript(purpose, sitting.session, members), needed)
        shares: dict[str, Json] = {name: data.hex() for name, data in sealed.items()}
        return Frame({"shares": shares, "needed": needed})

    def _checked(
        self, secrecy: Secrecy, purpose: Purpose, listed: Mapping[str, Json]
    ) -> tuple[dict[str, Advertised], dict[str, str]]:
        """(keys by member, what is wrong with those of others)."""
        members, accused = dict[str, Advertised](), dict[str, str]()
        for name, content in listed.items():
            try:
                one = Advertised.read(content)
                secrecy.identity.verify(name, one.certificate, keys_statement(purpose, name, one.keys), one.signature)
                members[name] = one
            except IntegrityError as error:
                accused[name] = str(error)
        return members, accused

    def _accuse(self, run: RunAtOwner[Any], sitting: Sitting, accused: Mapping[str, str]) -> Frame:
        """Say who is at fault, and nothing else: this sum does not go on."""
        for name, why in accused.items():
            self._audit.note("accused", run=run.name, number=sitting.number, owner=name, reason=why)
        told: dict[str, Json] = dict(accused)
        return Frame({"accused": told})

    def _ask(self, frame: Frame) -> Frame:
        sitting = self._sitting(frame)
        return sitting.once(frame, lambda: self._sealed(frame, sitting))

    def _sealed(self, frame: Frame, sitting: Sitting) -> Frame:
        run, step, round = self._run(frame), frame.text("step"), frame.number("round")
        if step not in run.agreed.method.sums:
            raise Refused(f"{run.agreed.method.name} does not declare that it needs only sums of {step}", Code.UNDECLARED)
        shares, content = frame.header.get("shares"), content_of(frame.body)
        if not isinstance(shares, dict):
            raise Refused("a secure sum needs everybody's shares", Code.MALFORMED)
        secrecy, method = _secrecy(run), run.agreed.method
        of_data = f"{method.name} {step}" if step in method.of_data else ""
        sum, followed = f"{run.name} {sitting.number} {sitting.session}", f"{secrecy.work} {step} {content}"
        sitting.answered = Answered(followed, sum, of_data, secrecy.policy.secure_regroup)
        # Whoever has opened this is in no other sum of it, not even as one that others open.
        self._opened.seal(run.name, sitting.number, sitting.answered, list(sitting.members))
        reply, _ = run.ask(step, sitting.number, frame.number("base"), frame.body, round)
        received = {name: _share(data) for name, data in shares.items()}
        sitting.asked = question(sitting.member.transcript, step, round, content)
        try:
            words = sitting.member.masked(to_words(reply, len(sitting.members)), received, sitting.asked)
        except AtFault as error:
            return self._accuse(run, sitting, error.accused)
        sealed = Sealed(run.agreed.graph.ids, torch.from_numpy(words.view("int64")).unsqueeze(0))
        run.record(sitting.number, step, sealed)
        return Frame({"number": sitting.number, "shape": shape_as_json(summed_shape(reply))}, sealed.pack())

    def _agree(self, frame: Frame) -> Frame:
        sitting = self._sitting(frame)
        return sitting.once(frame, lambda: self._agreed(frame, sitting))

    def _agreed(self, frame: Frame, sitting: Sitting) -> Frame:
        run, listed = self._run(frame), frame.header.get("survivors")
        secrecy = _secrecy(run)
        survivors = sorted(map(str, listed)) if isinstance(listed, list) else []
        secrecy.check_members(sitting.member.check_survivors(survivors))
        self._opened.check(run.name, sitting.number, sitting.answered, survivors)
        sitting.survivors = tuple(survivors)
        return Frame({"signature": secrecy.identity.sign(_signed(sitting)).hex()})

    def _open(self, frame: Frame) -> Frame:
        sitting = self._sitting(frame)
        return sitting.once(frame, lambda: self._opening(frame, sitting))

    def _opening(self, frame: Frame, sitting: Sitting) -> Frame:
        run = self._run(frame)
        secrecy, listed = _secrecy(run), told_of_everybody(frame)
        if not sitting.survivors:
            raise Refused("nobody has said who the survivors are", Code.SECRECY)
        signed = {name for name in sitting.survivors if self._has_signed(secrecy, sitting, name, listed.get(name))}
        needed = secrecy.needed(len(sitting.members))
        if len(signed | {self._owner}) < needed:
            raise Refused(f"{len(signed)} owners have signed that these are the survivors, {needed} must", Code.SECRECY)
        # On disk before anything is given: neither another session nor another process may open this for others.
        self._opened.open(run.name, sitting.number, sitting.answered, sitting.survivors)
        given = sitting.member.open(sitting.survivors)
        shares: dict[str, Json] = {name: f"{kind} {share:0132x}" for name, (kind, share) in given.items()}
        return Frame({"opened": shares})

    def _has_signed(self, secrecy: Secrecy, sitting: Sitting, name: str, told: Json | None) -> bool:
        """Whether this survivor has signed the same survivors."""
        try:
            signature = from_hex(told, LARGEST_SIGNATURE)
            certificate = sitting.members[name].certificate
            secrecy.identity.verify(name, certificate, _signed(sitting), signature)
        except IntegrityError:
            return False
        return True


def _secrecy(run: RunAtOwner[Any]) -> Secrecy:
    if run.agreed.secrecy is None:
        raise Refused("the terms do not speak of secure aggregation", Code.TERMS)
    return run.agreed.secrecy


def _signed(sitting: Sitting) -> bytes:
    return survivors_statement(sitting.asked, sitting.survivors)


def _share(data: Json) -> bytes:
    """An encrypted share; one that is none will not be read, which is its sender's fault."""
    try:
        return from_hex(data, LARGEST_SHARE)
    except IntegrityError:
        return b""


def told_of_everybody(frame: Frame) -> dict[str, Json]:
    """A JSON object that came as the body, for it may be large."""
    try:
        return read_header(frame.body, FRAME_HEADER, finite=True)
    except ValueError as error:
        raise Refused(f"a secure sum needs to know of everybody in it ({error})", Code.MALFORMED) from error
