"""The tape of a run: what it holds, what a resume makes of it, and what is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch

import suture
from suture.attacks.hearing import Recorded
from suture.attacks.scenes import Scene
from suture.cli import main
from suture.core.message import Message, Model
from suture.errors import ConfigError, IntegrityError, StorageError
from suture.privacy.tape import TapeFile, TapeReader
from suture.runs.folder import TAPE
from suture.runs.loop import Interrupted

GRAPH = "csbm:nodes=120,features=200,degree=3"
SHORT = ["rounds=4", "model.hidden=8"]


def trained(out: Path, method: str = "fedavg", stop_after: int | None = None) -> Path:
    """A recorded run of three clients, perhaps interrupted and resumed."""
    ticks: list[object] = []
    options = suture.Options(
        record=True,
        watch=lambda method, seed, tick: ticks.append(tick),
        stop=lambda: stop_after is not None and len(ticks) >= stop_after,
    )
    try:
        suture.run(GRAPH, method, clients=3, overrides=SHORT, out=out, options=options)
    except Interrupted:
        suture.resume(out)
    return out


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "recorded")


def test_the_tape_holds_what_the_ledger_lists(recorded: Path) -> None:
    lines = [json.loads(line) for line in (recorded / "ledger.jsonl").read_text().splitlines()]
    listed = {
        (line["ask"], line["step"], line["direction"], client): size
        for line in lines
        for client, size in zip(line["clients"], line["bytes"], strict=True)
    }
    tape = TapeReader(recorded / TAPE)
    held = {(f.ask, f.step, f.direction, f.client): len(tape.content(f)) for f in tape.frames}
    assert held == listed


def test_what_was_broadcast_is_written_once(recorded: Path) -> None:
    """Three clients get the same model in every round: the tape is shorter than what crossed."""
    tape = TapeReader(recorded / TAPE)
    crossed = sum(len(tape.content(frame)) for frame in tape.frames)
    down = [f for f in tape.frames if (f.step, f.direction) == ("local_update", "down")]
    assert {frame.parts[1:] for frame in down[:3]} == {down[0].parts[1:]}
    assert (recorded / TAPE).stat().st_size < 0.8 * crossed


def test_messages_come_back_as_they_were_sent(recorded: Path) -> None:
    """The mean of what came up in a round is what went down in the next."""
    scene = Scene.read(recorded)
    ears = scene.heard("server")[scene.graph.ids[0]]
    up, down = ears.says("local_update", "up"), ears.says("local_update", "down")
    first = [said.message for said in up if said.ask == up[0].ask]
    weight = torch.cat([message.weight for message in first])
    mean = sum(w * m.params["layer1.weight"] for w, m in zip(weight / weight.sum(), first, strict=True))
    following = next(said.message for said in down if said.ask > up[0].ask)
    assert torch.allclose(mean, following.params["layer1.weight"], atol=1e-6)


def test_who_listens_hears_no_more_than_passed(recorded: Path) -> None:
    scene = Scene.read(recorded)
    first, second, third = scene.graph.ids
    owner, others = scene.heard("owner")[second], scene.heard("others")[second]
    assert {said.client for said in owner.says("local_update", "up")} == {first}
    assert {said.client for said in others.says("local_update", "down")} == {first, third}


def test_a_resumed_run_has_the_same_tape(recorded: Path, tmp_path: Path) -> None:
    resumed = trained(tmp_path / "resumed", stop_after=2)
    assert (resumed / TAPE).read_bytes() == (recorded / TAPE).read_bytes()


def test_only_its_owner_may_read_it(recorded: Path) -> None:
    assert stat.S_IMODE((recorded / TAPE).stat().st_mode) == 0o600


def test_a_recorded_run_computes_the_same(recorded: Path, tmp_path: Path) -> None:
    suture.run(GRAPH, "fedavg", clients=3, overrides=SHORT, out=tmp_path / "plain")
    assert (tmp_path / "plain" / "metrics.jsonl").read_bytes() == (recorded / "metrics.jsonl").read_bytes()
    assert not (tmp_path / "plain" / TAPE).exists()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    (tmp_path / TAPE).symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError):
        TapeFile(tmp_path / TAPE)
    with pytest.raises(StorageError):
        TapeReader(tmp_path / TAPE)
    assert (tmp_path / "precious").read_text() == "keep me"


def test_half_a_message_is_none_and_nonsense_is_refused(tmp_path: Path) -> None:
    tape = TapeFile(tmp_path / TAPE)
    tape.record(1, "local_update", "up", Model(("a", "b"), {"w": torch.ones(2, 3)}))
    tape.close()
    whole = (tmp_path / TAPE).read_bytes()
    assert len(TapeReader(tmp_path / TAPE).frames) == 2
    (tmp_path / TAPE).write_bytes(whole[:-3])
    assert len(TapeReader(tmp_path / TAPE).frames) == 1
    (tmp_path / TAPE).write_bytes(b"\xff\xff\xff\x7f" + whole)
    with pytest.raises(IntegrityError):
        TapeReader(tmp_path / TAPE)
    (tmp_path / TAPE).write_bytes(whole.replace(b'"parts":[[', b'"parts":[{'))
    with pytest.raises(IntegrityError):
        TapeReader(tmp_path / TAPE)


def test_types_that_a_step_does_not_declare_are_refused(recorded: Path, tmp_path: Path) -> None:
    class Stranger(Message):
        """No method declares it."""

    tape = TapeFile(tmp_path / TAPE)
    tape.record(1, "local_update", "up", Stranger(("a",)))
    tape.close()
    reader = TapeReader(tmp_path / TAPE)
    with pytest.raises(IntegrityError, match="Stranger"):
        Recorded(reader, Scene.read(recorded).method).read(reader.frames[0])


def test_recording_needs_a_folder_and_attacking_a_tape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="out="):
        suture.run(GRAPH, "fedavg", clients=3, overrides=SHORT, options=suture.Options(record=True))
    suture.run(GRAPH, "fedavg", clients=3, overrides=["rounds=1"], out=tmp_path / "plain")
    assert main(["attack", str(tmp_path / "plain")]) == 2
    assert "--record" in capsys.readouterr().err
