"""What left each client, by kind: every message of every method says what it is, and the sums are the bytes that crossed."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from harness import run_to_end, small, small_world
from torch import Tensor

from suture.core.message import UNDECLARED, Kind, Message, Model, Nothing, Rows
from suture.core.storage import LineFile
from suture.core.tree import Tree
from suture.errors import IntegrityError
from suture.method import Method
from suture.methods import METHODS
from suture.privacy.disclosure import EVALUATION_STEP, disclosure_of, read_disclosure
from suture.privacy.ledger import RunLedger

WORLD = small_world()


def messages_of(method: type[Method[Any, Any]]) -> set[type[Message]]:
    """Every type that a step of the method receives or replies with."""
    found: set[type[Message]] = set()
    for step in method.steps().values():
        hints = typing.get_type_hints(step)
        reply = typing.get_args(hints.pop("return"))[1]
        found |= {kind for kind in (reply, *hints.values()) if isinstance(kind, type) and issubclass(kind, Message)}
    return found


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_every_message_has_a_kind(name: str) -> None:
    """If this fails for a new method: `loss: Annotated[Tensor, Kind.LOSSES]`; see docs/add-a-method.md."""
    for message in messages_of(METHODS[name]):
        for field in dataclasses.fields(message)[1:]:
            hint = typing.get_type_hints(message, include_extras=True)[field.name]
            marks = getattr(hint, "__metadata__", ())
            assert any(isinstance(mark, Kind | dict) for mark in marks), f"{message.__name__}.{field.name} has no Kind"


def recorded(method: Method[Any, Any], path: Path) -> list[dict[str, Any]]:
    file = LineFile(path / "ledger.jsonl")
    ledger = RunLedger(file)
    run_to_end(method, WORLD.graph_for(method), WORLD.task, ledger=ledger)
    file.close()
    return [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", METHODS)
def test_nothing_undeclared_crosses(name: str, tmp_path: Path) -> None:
    """Trees with entries of several kinds, too, must name every entry."""
    for line in recorded(small(METHODS[name]), tmp_path):
        assert UNDECLARED not in line["kinds"], (line["step"], line["direction"], line["fields"])
        # README and SECURITY promise it of all methods here; a method that needs them must change these pages first.
        # Sums of features are declared as features: one of a single row would be that row.
        assert name == "fedgcn" or not {Kind.FEATURES, Kind.EDGES} & set(line["kinds"])


@dataclasses.dataclass(frozen=True)
class Several(Message):
    trees: Annotated[Tree, {"values": Kind.PROTOTYPES, "counts": Kind.COUNTS}]
    rows: Annotated[Rows, Kind.EMBEDDINGS]
    loss: Annotated[Tensor, Kind.LOSSES]
    secret: Tensor


def test_bytes_are_counted_by_kind(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "ledger.jsonl")
    rows = Rows(torch.zeros(5, 3), torch.tensor([0, 4, 5]))
    trees = {"values": torch.zeros(2, 7, dtype=torch.float64), "counts": torch.zeros(2, dtype=torch.int64)}
    message = Several(("a", "b"), trees, rows, torch.zeros(2), torch.zeros(2, 6, dtype=torch.uint8))
    RunLedger(file).record(1, "step", "up", message)
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [["a"], ["b"]]
    for line, count in zip(lines, (4, 1), strict=True):
        expected = {"prototypes": 56, "counts": 8, "node embeddings": 12 * count, "losses": 4, UNDECLARED: 6}
        assert line["kinds"] == expected
        packed = len(message.select(line["clients"]).pack())
        assert line["bytes"] == [packed]
        assert sum(expected.values()) < packed


def test_kinds_are_looked_up_by_path() -> None:
    assert Model.kind_of("params.layer1.weight") is Kind.WEIGHTS
    assert Several.kind_of("trees.counts") is Kind.COUNTS
    assert Several.kind_of("trees.other") is None
    assert Several.kind_of("secret") is None
    assert Nothing.kind_of("ids") is None


@pytest.mark.parametrize("name", ["local", "fedavg", "fedgnn", "fedproto", "fedpub"])
def test_kinds_and_envelopes_add_up_to_all_that_was_sent(name: str, tmp_path: Path) -> None:
    ledger = RunLedger()
    method = small(METHODS[name])
    run_to_end(method, WORLD.clients, WORLD.task, ledger=ledger)
    found = ledger.disclosure
    for direction in ("up", "down"):
        counted = [flow for flow in found.flows() if flow.direction == direction and flow.step != EVALUATION_STEP]
        assert sum(flow.bytes for flow in counted) == ledger.totals[direction]
    assert sum(sum(found.of_client(client).values()) for client in WORLD.clients.ids) == ledger.totals["up"]
    assert disclosure_of(recorded(method, tmp_path)) == found


LEFT = {
    "local": {"counts", "losses"},
    "fedavg": {"weights", "counts", "losses"},
    "fedgnn": {"node embeddings", "weights", "counts", "losses"},
    "fedproto": {"prototypes", "counts", "losses"},
    "fedpub": {"weights", "signatures", "losses"},
}


@pytest.mark.parametrize("name", LEFT)
def test_what_left_the_clients(name: str) -> None:
    """By hand, from the methods' boxes: two rounds, four clients."""
    ledger = RunLedger()
    run_to_end(small(METHODS[name]), WORLD.clients, WORLD.task, ledger=ledger)
    assert set(ledger.disclosure.left()) == LEFT[name]
    assert ledger.disclosure.replies["owner-ash"]["local_update"] == 2
    flows = {(flow.step, flow.receiver, flow.kind): flow for flow in ledger.disclosure.flows()}
    assert flows["local_update", "server", "losses"].bytes == 2 * 4 * 4
    assert flows["local_update", "server", "losses"].times == 2
    if name == "fedgnn":
        assert flows["reveal", "server", "node embeddings"].bytes == 2 * 120 * 8 * 4


def test_a_ledger_without_kinds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"step": "a", "direction": "up", "clients": ["x"], "bytes": [3]}\n')
    with pytest.raises(IntegrityError, match="start the run anew"):
        read_disclosure(tmp_path)


def test_what_is_told_again_is_counted_and_written_as_if_it_were_new(tmp_path: Path) -> None:
    """Messages that look like the one before take a short way; each of these is also told to a ledger that knows none."""
    file, ids = LineFile(tmp_path / "ledger.jsonl"), ("a", "b", "c")
    ledger, expected, totals = RunLedger(file), [], 0
    for number in range(12):
        names = ids if number % 4 else ids[:2]
        lengths = torch.tensor([0, 1, 1, 2])[: len(names) + 1] * (1 + number // 6)
        rows = Rows(torch.zeros(int(lengths[-1]), 3), lengths)
        trees = {"values": torch.full((len(names), 7), float(number)), "counts": torch.zeros(len(names))}
        message = Several(names, trees, rows, torch.zeros(len(names)), torch.zeros(len(names), 6))
        step, direction = ("one", "two")[number % 2], ("up", "down")[number // 3 % 2]
        fresh = LineFile(tmp_path / f"{number}.jsonl")
        for told in (ledger, alone := RunLedger(fresh)):
            told.record(number, step, direction, message)
        fresh.close()
        expected += (tmp_path / f"{number}.jsonl").read_text().splitlines()
        totals += alone.totals["up"]
        if number == 7:
            assert ledger.disclosure == disclosure_of(map(json.loads, expected))  # asked for in between
    file.close()
    assert (tmp_path / "ledger.jsonl").read_text().splitlines() == expected
    assert ledger.disclosure == disclosure_of(map(json.loads, expected)) and ledger.totals["up"] == totals
    assert sum(size for line in map(json.loads, expected) for size in line["bytes"]) == sum(ledger.totals.values())


@pytest.mark.parametrize("change", ["ids", "dtype", "shape", "rows", "entry"])
def test_records_of_another_layout_are_known_as_such(change: str) -> None:
    def made(what: str = "") -> Several:
        rows = Rows(torch.zeros(2, 3), torch.tensor([0, 2, 2] if what == "rows" else [0, 1, 2]))
        trees = {"other" if what == "entry" else "values": torch.zeros(2, 7)}
        loss = torch.zeros(2, dtype=torch.float64 if what == "dtype" else torch.float32)
        return Several(("a", "x" if what == "ids" else "b"), trees, rows, loss, torch.zeros(2, 5 + (what == "shape")))

    assert made().layout() == made().layout() != made(change).layout()
