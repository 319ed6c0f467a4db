"""A coordinator that does as it likes with the real desks of owners: every message of a secure sum is its own to make."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from folders import Desks

from suture import api
from suture.core.storage import sha256_of_json
from suture.federation.wire.description import Description, in_common
from suture.federation.wire.frames import Frame
from suture.federation.wire.sealed import Sealed, to_words
from suture.federation.wire.terms import Terms, terms_of
from suture.federation.wire.transcript import Advertised, Purpose, content_of, question, transcript
from suture.graph.shard import save_shard
from suture.method import Task
from suture.methods.averaging import Up
from suture.privacy.secure_aggregation import Opening, decode
from suture.runs.prepare import Source

OWNERS = tuple(f"client-{k:02d}" for k in range(5))
STEP = "local_update"


def planned(*more: str) -> api.Plan:
    overrides = ["rounds=3", "model.hidden=48", *more]
    return api.plan("csbm:nodes=200,features=30,words_per_node=6", ["fedavg"], clients=5, seeds=[0], overrides=overrides)


def write_shards(folder: Path) -> Path:
    world = Source(planned()).prepared(0)
    assert world.clients.ids == OWNERS
    for owner in OWNERS:
        save_shard(world.clients, owner, folder / f"{owner}.safetensors", classes=world.task.classes, row_normalised=True)
    return folder


def desks_in(folder: Path, shards: Path, policy: str = "") -> Desks:
    data = {owner: shards / f"{owner}.safetensors" for owner in OWNERS}
    return Desks(folder, data, dict.fromkeys(OWNERS, policy))


@dataclass
class Hostile:
    """Drives one sum after the other; nothing here is checked, as nobody checks a coordinator but the owners."""

    parties: Desks
    run: str = "run"
    number: int = 1
    secure: bool = True
    round: int = 1
    step: str = STEP

    @cached_property
    def terms(self) -> Terms:
        common = in_common({name: Description.read(one.describe()) for name, one in self.parties.owned.items()})
        return terms_of(planned(), common, self.secure, None, OWNERS)

    def tell(self, owner: str, verb: str, body: bytes = b"", **more: object) -> Frame:
        header = {"verb": verb, "run": self.run, "number": self.number, **more}
        return Frame.unpack(self.parties.desks[owner].answer(Frame(header, body).pack()))  # type: ignore[arg-type]

    def open_run(self, at: Sequence[str] = OWNERS, number: int = 0, **changes: object) -> dict[str, Frame]:
        content = {**self.terms.as_json(), **changes}
        return {owner: self.tell(owner, "open", number=number, terms=content) for owner in at}

    def body(self, owner: str, scale: float = 1.0) -> bytes:
        method, terms = planned().methods[0], self.terms
        server = method.init_server(Task(terms.features, terms.classes, terms.seed, metric=terms.metric))
        handed = method.hand_out(server, [owner])
        return type(handed)((owner,), {name: value * scale for name, value in handed.params.items()}).pack()

    # The five messages

    def keys(self, members: Sequence[str] = OWNERS) -> dict[str, object]:
        return {owner: self.tell(owner, "seal-keys").header["keys"] for owner in members}

    def shares(self, keys: Mapping[str, object], to: Sequence[str] | None = None) -> dict[str, Frame]:
        self.session = secrets.token_hex(16)
        return {owner: self.share(owner, keys) for owner in (keys if to is None else to)}

    def share(self, owner: str, keys: Mapping[str, object]) -> Frame:
        return self.tell(owner, "seal-shares", json.dumps(keys).encode(), session=self.session)

    def ask(self, owner: str, shares: Mapping[str, Frame], scale: float = 1.0) -> Frame:
        received = {other: told.header["shares"][owner] for other, told in shares.items() if other != owner}  # type: ignore
        about = {"session": self.session, "step": self.step, "round": self.round, "base": 0, "shares": received}
        return self.tell(owner, "seal-ask", self.body(owner, scale), **about)

    def agree(self, owner: str, survivors: Sequence[str]) -> Frame:
        return self.tell(owner, "seal-agree", session=self.session, survivors=[*survivors])

    def open(self, owner: str, signed: Mapping[str, object]) -> Frame:
        return self.tell(owner, "seal-open", json.dumps(signed).encode(), session=self.session)

    # As an honest one would

    def sealed(self, members: Sequence[str] = OWNERS) -> dict[str, Frame]:
        self.known = self.keys(members)
        self.handed = self.shares(self.known)
        return {owner: self.ask(owner, self.handed) for owner in members}

    def signatures(self, survivors: Sequence[str]) -> dict[str, object]:
        return {owner: self.agree(owner, survivors).header.get("signature") for owner in survivors}

    def sum(self, members: Sequence[str] = OWNERS, survivors: Sequence[str] | None = None) -> np.ndarray | None:
        """The opened sum of `survivors`; None where the owners do not open it."""
        words = self.sealed(members)
        if any(frame.refused for frame in words.values()):
            return None
        survivors = survivors or members
        signed = self.signatures(survivors)
        return self.opened(words, survivors, {owner: self.open(owner, signed) for owner in survivors})

    def opened(
        self, words: Mapping[str, Frame], survivors: Sequence[str], told: Mapping[str, Frame], scale: float = 1.0
    ) -> np.ndarray | None:
        """What can be made of the survivors' words with what owners gave; `scale` is that of the model masks hang on."""
        keys = {owner: Advertised.read(one) for owner, one in self.known.items()}
        purpose = Purpose(self.run, sha256_of_json(self.terms.as_json()), self.number)
        content = content_of(self.body(OWNERS[0], scale))
        asked = question(transcript(purpose, self.session, keys), self.step, self.round, content)
        answers = {}
        for owner, frame in told.items():
            if "opened" in frame.header:
                pairs = {name: text.split() for name, text in frame.header["opened"].items()}  # type: ignore[union-attr]
                answers[owner] = {name: (kind, int(share, 16)) for name, (kind, share) in pairs.items()}
        needed = {owner: int(frame.header["needed"]) for owner, frame in self.handed.items()}  # type: ignore[arg-type]
        if len(survivors) == 1:
            needed = {owner: needed[owner] for owner in survivors}  # the masks with others are left on
        if len(answers) < max(needed.values()):
            return None
        masked = {owner: words_of(words[owner]) for owner in survivors}
        public = {owner: one.keys for owner, one in keys.items()}
        return decode(Opening(masked, public, needed, asked).total(answers)[0])


def words_of(frame: Frame) -> np.ndarray:
    return Sealed.unpack(frame.body).words[0].numpy().view(np.uint64)


def true_update(folder: Path, shards: Path, owner: str) -> np.ndarray:
    """What the attack is after: the owner's own words, from a federation without secure aggregation."""
    plain = Hostile(desks_in(folder, shards), secure=False)
    plain.open_run([owner])
    told = plain.tell(owner, "ask", plain.body(owner), step=STEP, base=0, round=1)
    return decode(to_words(Up.unpack(told.body), len(OWNERS)))


def likeness(guess: np.ndarray, truth: np.ndarray) -> float:
    """Correlation: 1 where an update is known, about 0 for a guess."""
    return abs(float(np.corrcoef(guess, truth)[0, 1]))
