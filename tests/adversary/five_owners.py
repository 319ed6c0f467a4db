"""Five owners that are called directly, one of them hostile in whatever way a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from suture import api
from suture.core.message import Message
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.owner import Owner
from suture.federation.wire.frames import SEVERAL, Frame
from suture.federation.wire.orders import FaultSettings, order_of
from suture.graph.shard import save_shard
from suture.runs.checkpoint import load_models
from suture.runs.prepare import Source

DATASET = "csbm:nodes=240,features=20,words_per_node=5"
OWNERS = tuple(f"client-0{number}" for number in range(5))
BAD = "client-02"
GOOD = tuple(owner for owner in OWNERS if owner != BAD)
CONTINUE = FaultSettings(patience=0.0, step_timeout=30, on_loss="continue", max_reply_bytes=2_000_000)
WAIT = replace(CONTINUE, on_loss="wait")

Spoil = Callable[[Frame, Frame], bytes]
"""(what was asked, the honest answer) to what is sent instead."""


def planned(method: str = "fedavg", *more: str, rounds: int = 3) -> api.Plan:
    overrides = [f"rounds={rounds}", "model.hidden=4", *more]
    return api.plan(DATASET, [method], clients=len(OWNERS), seeds=[0], overrides=overrides)


def write_shards(folder: Path) -> Path:
    made = planned()
    world = Source(made).prepared(0)
    assert world.clients.ids == OWNERS
    normalised = made.protocol.preprocess.row_normalise
    for owner in OWNERS:
        path = folder / f"{owner}.safetensors"
        save_shard(world.clients, owner, path, classes=world.task.classes, row_normalised=normalised)
    return folder


class Parties:
    """The owners' desks; whatever the hostile one answers goes through `spoil`."""

    def __init__(self, folder: Path, shards: Path, spoil: Spoil = lambda asked, told: told.pack()) -> None:
        self.owned = {owner: Owner.set_up(owner, shards / f"{owner}.safetensors", None, folder / owner) for owner in OWNERS}
        self.desks = {owner: one.desk() for owner, one in self.owned.items()}
        self.spoil, self.hostile, self.heard = spoil, {BAD}, []
        self.heard: list[tuple[str, str, object]]

    @property
    def owners(self) -> tuple[str, ...]:
        return OWNERS

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        asked = Frame.unpack(request).parts()
        self.heard += [(owner, str(frame.header["verb"]), frame.header.get("number")) for frame in asked]
        reply = self.desks[owner].answer(request)
        if owner not in self.hostile:
            return reply
        sent = [self.spoil(one, told) for one, told in zip(asked, Frame.unpack(reply).parts(), strict=False)]
        return sent[0] if len(sent) == 1 else joined(sent)


def joined(frames: list[bytes]) -> bytes:
    return Frame({"verb": SEVERAL, "sizes": [len(one) for one in frames]}, b"".join(frames)).pack()


def headed(frame: Frame, **changes: object) -> bytes:
    return Frame({**frame.header, **changes}, frame.body).pack()  # type: ignore[dict-item]


def at(verb: str, spoil: Spoil, number: int | None = None, step: str | None = None) -> Spoil:
    """Hostile at this verb (from this step number on, at this step), honest elsewhere."""

    def when(asked: Frame, told: Frame) -> bytes:
        meant = asked.header["verb"] == verb and step in (None, asked.header.get("step"))
        late = meant and (number is None or asked.number("number") >= number)
        return spoil(asked, told) if late else told.pack()

    return when


def refuses(asked: Frame, told: Frame) -> bytes:
    return Frame({"refused": "I do not feel like it", "code": "policy"}).answering(asked).pack()


def changed(kind: type[Message], change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> Spoil:
    """The honest reply with other tensors."""

    def spoil(asked: Frame, told: Frame) -> bytes:
        reply = kind.unpack(told.body)
        scalars = {name: value for name, value in reply.contents() if isinstance(value, int | float | str)}
        tensors = {**reply.tensors(), **change(reply.tensors())}
        return Frame(told.header, kind.from_tensors(reply.ids, scalars, tensors).pack()).pack()

    return spoil


def coordinator(made: api.Plan, folder: Path, parties: Parties, faults: FaultSettings = CONTINUE) -> Coordinator:
    return Coordinator(order_of(made, "run", faults), folder / "run", parties, AuditLog(folder / AUDIT, "coordinator"))


def named(folder: Path) -> list[tuple[object, object, str]]:
    """(owner, code, reason) of everybody whose end the coordinator's audit log tells."""
    ends = ("reply refused", "refused by an owner")
    return [
        (line["owner"], line["code"], str(line["reason"])) for line in read_audit(folder / AUDIT) if line["event"] in ends
    ]


def assert_finished_without(folder: Path, parties: Parties, code: str) -> str:
    """The run is over, the hostile owner and nobody else is named, and all others have a model that predicts."""
    told = named(folder)
    assert {(owner, why) for owner, why, _ in told} == {(BAD, code)}, told
    for owner in GOOD:
        home = parties.owned[owner].home / "runs" / "run"
        assert (home / "finished.json").exists() and (home / "predictions.csv").exists()
        for tree in load_models(home / "model.safetensors")[0].values():
            assert all(bool(torch.isfinite(value).all()) for value in tree.values())
    outcome = json.loads((folder / "run" / "status.json").read_text())
    assert outcome["state"] == "finished"
    return told[0][2]
