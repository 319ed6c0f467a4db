"""Whether a run is carried out at this moment: told by the system, not by what a killed process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suture import api
from suture.errors import StorageError
from suture.runs.folder import METRICS
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick
from suture.runs.pulse import (
    LOCK,
    PROGRESS,
    State,
    alone_in,
    carried_out,
    holder_of,
    is_carried_out,
    read_progress,
    telling,
)

GRAPH = "csbm:nodes=120,features=8,classes=3"


def _command(out: Path, *more: str) -> list[str]:
    asked = ["run", "--method=fedavg", f"--dataset={GRAPH}", "--clients=3", "--set=rounds=100000", f"--out={out}", "-q"]
    return [sys.executable, "-m", "suture", *(more or asked)]


def _wait_for_rounds(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while not (folder / PROGRESS).exists() or (read_progress(folder) or pytest.fail("unreadable")).done < 1:
        assert process.poll() is None, "the run ended before its first round"
        time.sleep(0.1)


def test_a_killed_run_is_not_being_carried_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(_command(out))
    try:
        _wait_for_rounds(out, process)
        assert is_carried_out(out)
        holder, told = holder_of(out), read_progress(out)
        assert holder is not None and told is not None
        assert (holder.pid, holder.is_here, told.pid, told.state) == (process.pid, True, process.pid, State.RUNNING)
        assert told.total == 100000 and told.bytes_up > 0
        assert len((out / METRICS).read_text().splitlines()) >= 1  # lines are there while the run goes on

        again = subprocess.run(_command(out, "resume", str(out), "-q"), capture_output=True, text=True)
        assert again.returncode == 2
        assert f"is in use by process {process.pid}" in again.stderr and again.stderr.count("\n") == 1
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not is_carried_out(out)
    last = read_progress(out)
    assert last is not None and last.state == State.RUNNING  # all that it could say


def _stop_after(rounds: int) -> api.Options:
    seen: list[Tick] = []

    def watch(method: str, seed: int, tick: Tick) -> None:
        seen.append(tick)

    return api.Options(watch=watch, stop=lambda: len(seen) >= rounds)


def test_how_it_ended_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        api.run(GRAPH, clients=3, out=out, options=_stop_after(2), rounds=4)
    told = read_progress(out)
    assert told is not None and (told.state, told.reason) == (State.STOPPED, "stopped after round 2 of 4")
    assert not is_carried_out(out)
    api.resume(out)
    told = read_progress(out)
    assert told is not None and (told.state, told.done, told.total) == (State.FINISHED, 4, 4)


def test_telling_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), telling(tmp_path) as pulse:
        pulse.tell(done=1 // 0)
    told = read_progress(tmp_path)
    assert told is not None and told.state == State.FAILED and "ZeroDivisionError" in told.reason
    with pytest.raises(KeyboardInterrupt), telling(tmp_path):
        raise KeyboardInterrupt
    told = read_progress(tmp_path)
    assert told is not None and told.state == State.STOPPED


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(StorageError, match=f"process {os.getpid()}"), alone_in(tmp_path, 0.2):
        pass
    assert not is_carried_out(tmp_path)
    with carried_out(tmp_path):
        assert is_carried_out(tmp_path)


def test_a_part_of_a_comparison_is_left_alone_while_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "both"
    with pytest.raises(Interrupted):
        api.compare(GRAPH, ["local", "fedavg"], clients=3, seeds=[0], out=out, options=_stop_after(2), rounds=4)
    told = read_progress(out)
    assert told is not None and (told.runs, told.method) == (2, "local")
    with alone_in(out), pytest.raises(StorageError, match="is a part of"):
        api.resume(out / "local-seed0")


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(other)
    with pytest.raises(StorageError), alone_in(tmp_path / "run"):
        pass
    assert other.read_text() == "precious" and not is_carried_out(tmp_path / "run")


def test_the_same_lines_with_and_without_somebody_looking(tmp_path: Path) -> None:
    quiet = api.run(GRAPH, clients=3, rounds=3)
    watched = api.run(GRAPH, clients=3, rounds=3, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert lines == quiet.finished.history == watched.finished.history


def test_lines_of_a_round_are_on_disk_when_the_next_one_begins(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def look(method: str, seed: int, tick: Tick) -> None:
        metrics, ledger = (out / name for name in ("metrics.jsonl", "ledger.jsonl"))
        seen.append((metrics.read_text().count("\n"), ledger.stat().st_size > 0 and is_carried_out(out)))

    out = tmp_path / "run"
    api.run(GRAPH, rounds=3, clients=3, out=out, options=api.Options(watch=look))
    assert seen == [(1, True), (2, True), (3, True)]
