"""A folder in which somebody works: seen from another process, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import suture
from suture.errors import StorageError
from suture.runs.occupied import alone_in, is_occupied, occupant

HOLD = """
import sys
from pathlib import Path
from suture.runs.occupied import alone_in

with alone_in(Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""
GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"


def holding(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "in\n"
    return process


def test_a_folder_is_occupied_until_its_process_ends_or_is_killed(tmp_path: Path) -> None:
    assert not is_occupied(tmp_path) and occupant(tmp_path) is None
    process = holding(tmp_path)
    assert is_occupied(tmp_path) and occupant(tmp_path) == process.pid
    with pytest.raises(StorageError, match=rf"in use by another process \(number {process.pid}\)"), alone_in(tmp_path, 0.1):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not is_occupied(tmp_path) and occupant(tmp_path) is None
    with alone_in(tmp_path):
        assert is_occupied(tmp_path) and occupant(tmp_path) == os.getpid()
    assert not is_occupied(tmp_path)


def test_a_run_that_is_running_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "run"
    suture.run(GRAPH, rounds=2, clients=3, out=out)
    (out / "result.json").unlink()
    process = holding(out)
    try:
        with pytest.raises(StorageError, match="in use by another process"):
            suture.resume(out)
    finally:
        process.communicate("")
    suture.resume(out)
    assert (out / "result.json").exists()


def test_lines_of_a_round_are_on_disk_when_the_next_one_begins(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def look(method: str, seed: int, tick: object) -> None:
        metrics, ledger = (out / name for name in ("metrics.jsonl", "ledger.jsonl"))
        seen.append((metrics.read_text().count("\n"), ledger.stat().st_size > 0 and is_occupied(out)))

    out = tmp_path / "run"
    suture.run(GRAPH, rounds=3, clients=3, out=out, options=suture.Options(watch=look))
    assert seen == [(1, True), (2, True), (3, True)]


def test_a_link_in_the_place_of_the_lock_is_neither_followed_nor_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    assert not is_occupied(tmp_path / "run")
    with pytest.raises(StorageError), alone_in(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
