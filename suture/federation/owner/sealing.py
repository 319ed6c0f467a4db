"""Secure aggregation at an owner: the verbs with which its replies leave as sealed words, and their sum is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suture.core.storage import Json, read_json, write_json
from suture.federation.owner.run import RunAtOwner
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.sealed import Sealed, shape_as_json, summed_shape, to_words
from suture.privacy.secure_aggregation import Member

OPENED = "opened.json"
"""For which survivors each step's sum has been opened."""


class Sealing:
    """The verbs of secure aggregation; `run_of` finds the open run that a frame speaks of."""

    def __init__(self, owner: str, run_of: Callable[[Frame], RunAtOwner[Any]]) -> None:
        self._owner, self._run = owner, run_of
        self.verbs: dict[str, Callable[[Frame], Frame]] = {
            "seal-keys": self._keys,
            "seal-shares": self._shares,
            "seal-ask": self._ask,
            "seal-open": self._open,
        }

    def _keys(self, frame: Frame) -> Frame:
        run = self._run(frame)
        if not run.agreed.secure:
            raise Refused("the terms do not speak of secure aggregation", Code.TERMS)
        run.member = Member(self._owner, frame.text("session"))
        encryption, masking = run.member.public_keys()
        return Frame({"encryption": encryption.hex(), "masking": masking.hex()})

    def _member(self, frame: Frame) -> Member:
        member = self._run(frame).member
        if member is None or member.session != frame.text("session"):
            raise Refused("this is not the secure sum this owner has begun", Code.SECRECY)
        return member

    def _shares(self, frame: Frame) -> Frame:
        listed = frame.header.get("keys")
        if not isinstance(listed, dict):
            raise Refused("a secure sum needs everybody's public keys", Code.MALFORMED)
        keys = {}
        for name, pair in listed.items():
            if not isinstance(pair, list) or len(pair) != 2:
                raise Refused("a public key is missing", Code.MALFORMED)
            keys[name] = (bytes.fromhex(str(pair[0])), bytes.fromhex(str(pair[1])))
        shares: dict[str, Json] = {name: data.hex() for name, data in self._member(frame).shares(keys).items()}
        return Frame({"shares": shares})

    def _ask(self, frame: Frame) -> Frame:
        run, step, number, member = self._run(frame), frame.text("step"), frame.number("number"), self._member(frame)
        if step not in run.agreed.method.sums:
            raise Refused(f"{run.agreed.method.name} does not declare that it needs only sums of {step}", Code.UNDECLARED)
        shares = frame.header.get("shares")
        if not isinstance(shares, dict):
            raise Refused("a secure sum needs everybody's shares", Code.MALFORMED)
        reply, _ = run.ask(step, number, frame.number("base"), frame.body, frame.number("round"))
        received = {name: bytes.fromhex(str(data)) for name, data in shares.items()}
        words = member.masked(to_words(reply, len(member.keys)), received)
        sealed = Sealed(run.agreed.graph.ids, torch.from_numpy(words.view("int64")).unsqueeze(0))
        run.record(number, step, sealed)
        return Frame({"number": number, "shape": shape_as_json(summed_shape(reply))}, sealed.pack())

    def _open(self, frame: Frame) -> Frame:
        run, number, member = self._run(frame), frame.number("number"), self._member(frame)
        listed = frame.header.get("survivors")
        survivors = sorted(map(str, listed)) if isinstance(listed, list) else []
        # Written down before anything is opened: a new process must not open the same step for others either.
        record = run.folder / OPENED
        opened = read_json(record, "record of opened sums") if record.exists() else {}
        if opened.get(str(number), survivors) != survivors:
            raise Refused(
                f"step {number} has been opened for other survivors; two sums would give an owner away", Code.SECRECY
            )
        given = member.open(survivors)
        write_json(record, {**opened, str(number): survivors})
        shares: dict[str, Json] = {name: f"{kind} {share:x}" for name, (kind, share) in given.items()}
        return Frame({"opened": shares})
