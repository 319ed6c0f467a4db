"""An owner is bound to its data, stop is heard before the first round, and all ledgers tell the same, open or sealed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from test_faults import OWNERS, QUICK, InProcess, coordinator, ordered, planned, shards  # noqa: F401

from suture.cli import main
from suture.federation.audit import AUDIT, AuditLog, verify_audit
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.binding import BINDING, bind
from suture.federation.owner.owner import Owner
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.status import State


class Stopping:
    """Says yes from its n-th question on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def interrupted(folder: Path, transport: InProcess, rounds: int = 6) -> Coordinator:
    """A run that was stopped after its first rounds."""
    order = ordered(planned("fedavg", rounds))
    leg = Coordinator(order, folder / "run", transport, AuditLog(folder / AUDIT, "coordinator"))  # type: ignore[arg-type]
    leg.stop = lambda: leg.tick is not None and leg.tick.done >= 2
    assert leg.carry_on() is None and leg.status.state == State.STOPPED
    return leg


@pytest.mark.parametrize("forgotten", [False, True], ids=["the owner knows", "the owner has forgotten"])
def test_a_run_does_not_go_on_with_other_data(forgotten: bool, shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    interrupted(tmp_path, transport)
    home = tmp_path / "owners" / "client-01"
    other = Owner.set_up("client-01", shards / "client-02.safetensors", None, home)
    transport.desks["client-01"] = other.desk()
    if forgotten:
        (home / "runs" / "run" / BINDING).unlink()
    leg = coordinator(ordered(planned("fedavg", 6)), tmp_path, transport)
    with pytest.raises(Refused, match=r"owner client-01 .*other data") as refused:
        leg.carry_on()
    assert refused.value.code == Code.CHANGED
    assert leg.status.reason is not None and leg.status.reason.code == Code.CHANGED
    transport.desks["client-01"] = Owner.set_up("client-01", shards / "client-01.safetensors", None, home).desk()
    if not forgotten:
        assert coordinator(ordered(planned("fedavg", 6)), tmp_path, transport).carry_on() is not None


def test_an_owner_refuses_by_itself(tmp_path: Path) -> None:
    """Whatever the coordinator makes of it; what comes before a run is bound with it."""
    told = bind(tmp_path, "run", "these data")
    assert bind(tmp_path, "run.matching", "these data") == told != bind(tmp_path, "another", "these data")
    for name in ("run", "run.matching", "run.census"):
        with pytest.raises(Refused, match="other data than it has now") as refused:
            bind(tmp_path, name, "other data")
        assert refused.value.code == Code.CHANGED


def test_what_is_told_of_data_tells_nothing_of_them(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """Two owners with the same data, and one owner in two runs: texts that have nothing in common."""
    told = []
    for name in ("a", "b"):
        shutil.copy(shards / "client-00.safetensors", tmp_path / f"{name}.safetensors")
        desk = Owner.set_up("client-00", tmp_path / f"{name}.safetensors", None, tmp_path / name).desk()
        transport = InProcess(tmp_path / "others", shards)
        transport.desks["client-00"] = desk
        for run in ("one", "two"):
            order = ordered(planned("fedavg", 1), run=run)
            audit = AuditLog(tmp_path / AUDIT, "c")
            assert Coordinator(order, tmp_path / name / "c" / run, transport, audit).carry_on() is not None  # type: ignore[arg-type]
            told.append(json.loads((tmp_path / name / "c" / run / "owners.json").read_text())["client-00"])
    assert len(set(told)) == 4


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_stop_is_heard_wherever_a_run_is(after: int, shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    leg = coordinator(ordered(planned("fedavg", 50)), tmp_path, transport)
    leg.stop = Stopping(after)
    assert leg.carry_on() is None
    assert leg.status.state == State.STOPPED and not (tmp_path / "run" / "result.json").exists()
    asked = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert max([line["ask"] for line in asked], default=0) <= after


def test_a_leg_that_ends_for_a_return_is_no_stop(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    leg = coordinator(ordered(planned("fedavg", 5)), tmp_path, InProcess(tmp_path / "owners", shards))
    leg.regroup = lambda: leg.tick is not None
    assert leg.carry_on() is None and leg.status.state == State.WAITING


class Weighing(InProcess):
    """Weighs what leaves each owner, tests apart: they may travel along in vain."""

    def __init__(self, folder: Path, shards: Path) -> None:  # noqa: F811
        super().__init__(folder, shards)
        self.left: Counter[str] = Counter()

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        reply = self.desks[owner].answer(request)
        asked, answers = Frame.unpack(request).parts(), Frame.unpack(reply).parts()
        for frame, answer in zip(asked, answers, strict=True):
            verb = str(frame.header["verb"])
            if verb.startswith("seal") or verb == "ask":
                self.left[owner] += len(answer.body) + (answer.header_bytes if verb.startswith("seal") else 0)
        return reply


def sent(path: Path, direction: str) -> Counter[tuple[str, str]]:
    """Bytes by (client, step) in a ledger."""
    sums: Counter[tuple[str, str]] = Counter()
    for line in map(json.loads, path.read_text().splitlines()):
        if line["direction"] == direction:
            for client, size in zip(line["clients"], line["bytes"], strict=True):
                sums[client, line["step"]] += size
    return sums


@pytest.mark.parametrize("secure", [False, True], ids=["open", "sealed"])
def test_ledgers_of_all_parties_agree(
    secure: bool,
    shards: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    transport = Weighing(tmp_path / "owners", shards)
    order = order_of(planned("fedavg", 4), "run", replace(QUICK), secure=secure)
    outcome = coordinator(order, tmp_path, transport).carry_on()
    assert outcome is not None
    ours, theirs = sent(tmp_path / "run" / "ledger.jsonl", "up"), Counter[tuple[str, str]]()
    for owner in OWNERS:
        theirs += sent(tmp_path / "owners" / owner / "runs" / "run" / "ledger.jsonl", "up")
    assert ours == theirs
    by_owner: Counter[str] = Counter()
    for (client, step), size in ours.items():
        by_owner[client] += size if step != "evaluate" else 0
    assert by_owner == transport.left, "every byte that passed is in the ledgers, and no other"
    counted = sum(size for (_, step), size in ours.items() if step != "evaluate")
    assert outcome.bytes_up == counted
    assert main(["privacy", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert ("sealed" in printed) == secure and "No guarantee" in printed
    assert main(["show", str(tmp_path / "run")]) == 0
    assert ("seal-shares" in capsys.readouterr().out) == secure


def test_privacy_of_a_noisy_run_between_owners_is_for_them_to_say(
    shards: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = planned("fedavg", 2, "training.dp_sigma=5.0", "training.batch_size=5")
    assert coordinator(ordered(made), tmp_path, InProcess(tmp_path / "owners", shards)).carry_on() is not None
    assert main(["privacy", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "Each owner keeps the account of its own budget" in printed and "No guarantee" not in printed


def test_the_end_of_a_run_holds_the_head_of_the_audit_logs(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    assert coordinator(ordered(planned("fedavg", 2)), tmp_path, transport).carry_on() is not None
    home = tmp_path / "owners" / "client-00"
    kept = json.loads((home / "runs" / "run" / "finished.json").read_text())["audit"]
    head, _ = verify_audit(home)
    assert kept == asdict(head)
    lines = [json.loads(line) for line in (tmp_path / AUDIT).read_text().splitlines()]
    told = {line["owner"]: line["audit"] for line in lines if line["event"] == "owner has its model"}
    assert told["client-00"] == kept and set(told) == set(OWNERS)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["audit"]["lines"] == len(lines)
