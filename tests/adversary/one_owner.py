"""One real owner with its desk, and a coordinator that sends it whatever it likes."""

from __future__ import annotations

from pathlib import Path

import torch

from suture import api
from suture.core.message import Model
from suture.core.storage import Json
from suture.core.tree import Tree
from suture.federation.audit import AUDIT, read_audit
from suture.federation.owner.owner import Owner
from suture.federation.wire.description import Description
from suture.federation.wire.frames import Frame
from suture.federation.wire.terms import terms_of
from suture.graph.shard import save_shard
from suture.method import Scores, Task
from suture.methods.averaging import Up
from suture.runs.prepare import Source

DATASET = "csbm:nodes=200,features=30,words_per_node=6"
NAME, FEATURES, CLASSES = "client-00", 30, 5
NOISY = ("training.dp_sigma=5.0", "batch_size=0", "optimizer=sgd", "training.dp_clip=1.0", "lr=1.0", "local_epochs=1")


def planned(rounds: int = 2, *more: str) -> api.Plan:
    return api.plan(DATASET, ["fedavg"], clients=3, seeds=[0], overrides=[f"rounds={rounds}", "model.hidden=8", *more])


def write_shards(folder: Path) -> Path:
    """The pieces of three owners."""
    made = planned()
    world = Source(made).prepared(0)
    for owner in world.clients.ids:
        path = folder / f"{owner}.safetensors"
        save_shard(
            world.clients, owner, path, classes=world.task.classes, row_normalised=made.protocol.preprocess.row_normalise
        )
    return folder


def zeroed(made: api.Plan) -> Tree:
    """Weights of nothing: the gradient of all but the last bias is zero, so that what comes back there is noise alone."""
    params = made.methods[0].init_server(Task(FEATURES, CLASSES, 0)).params
    return {name: torch.zeros_like(value) for name, value in params.items()}


class Hostile:
    """A coordinator that has read the source, at the desk of one owner."""

    def __init__(self, folder: Path, shards: Path, policy: str = "") -> None:
        path = folder / "policy.toml"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(policy)
        self.owner = Owner.set_up(NAME, shards / f"{NAME}.safetensors", path, folder / NAME)
        self.desk = self.owner.desk()

    def reborn(self) -> None:
        """The owner's process was killed and started again."""
        self.desk = self.owner.desk()

    def send(self, header: dict[str, Json], body: bytes = b"") -> Frame:
        return Frame.unpack(self.desk.answer(Frame(header, body).pack()))

    def open(self, made: api.Plan, run: str = "run", number: int = 0) -> Frame:
        terms = terms_of(made, Description(FEATURES, CLASSES)).as_json()
        return self.send({"verb": "open", "run": run, "number": number, "terms": terms})

    def ask(self, params: Tree, number: int = 1, run: str = "run", base: int = 0) -> Frame:
        header: dict[str, Json] = {"verb": "ask", "run": run, "step": "local_update"}
        return self.send(header | {"number": number, "base": base, "round": 1}, Model((NAME,), params).pack())

    def test(self, params: Tree, number: int = 0, run: str = "run") -> Scores:
        answer = self.send({"verb": "evaluate", "run": run, "number": number}, Model((NAME,), params).pack())
        assert answer.refused is None, answer.header
        return Scores.unpack(answer.body)

    def audit(self) -> list[dict[str, Json]]:
        return read_audit(self.owner.home / AUDIT)


def update(answer: Frame) -> Tree:
    """What came back."""
    assert answer.refused is None, answer.header
    return Up.unpack(answer.body).params


def shifted(params: Tree, by: float) -> Tree:
    return {name: value + by for name, value in params.items()}


def always(made: api.Plan, answer: int) -> Tree:
    """A model that gives every node the same class."""
    params = zeroed(made)
    bias = next(name for name in params if name.endswith("bias") and params[name].shape[-1] == CLASSES)
    params[bias] = params[bias].clone()
    params[bias][..., answer] = 10.0
    return params
