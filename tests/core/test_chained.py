"""A file that only grows, and tells where it was changed."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from suture.core.chained import START, ChainedFile
from suture.errors import IntegrityError, StorageError


def filled(path: Path, lines: int = 4) -> ChainedFile:
    file = ChainedFile(path, "account")
    for number in range(lines):
        file.append({"number": number})
    return file


def test_lines_come_back_and_the_head_moves(tmp_path: Path) -> None:
    file = ChainedFile(tmp_path / "a.jsonl", "account")
    assert file.verified() == [] and file.head() == START
    heads = {START}
    for number in range(3):
        file.append({"number": number})
        heads.add(file.head())
    assert [line["number"] for line in file.verified()] == [0, 1, 2] and len(heads) == 4


@pytest.mark.parametrize("change", ["edit", "drop", "swap", "insert", "rehash", "nonsense", "deep"])
def test_every_change_is_found_and_its_line_named(change: str, tmp_path: Path) -> None:
    file = filled(tmp_path / "a.jsonl")
    lines = file.path.read_text().splitlines()
    if change == "edit":
        lines[1] = lines[1].replace('"number":1', '"number":7')
    elif change == "drop":
        del lines[1]
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif change == "insert":
        lines.insert(1, lines[0])
    elif change == "rehash":
        lines[1] = json.dumps({"number": 7, "chain": "0" * 64})
    elif change == "nonsense":
        lines[1] = '"chain"'
    else:
        lines[1] = "[" * 100_000
    file.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(IntegrityError, match="line 2"):
        file.verified()
    with pytest.raises(IntegrityError, match="line 2"):
        ChainedFile(file.path, "account").append({"number": 4})


def test_a_killed_writers_half_line_is_cut_off_by_the_next(tmp_path: Path) -> None:
    file = filled(tmp_path / "a.jsonl", 2)
    with file.path.open("ab") as raw:
        raw.write(b'{"number":2,"cha')
    assert len(file.verified()) == 2
    file.append({"number": 9})
    assert [line["number"] for line in file.verified()] == [0, 1, 9]


def test_a_decision_that_raises_leaves_the_file_alone(tmp_path: Path) -> None:
    file = filled(tmp_path / "a.jsonl")
    before = file.path.read_bytes()
    with pytest.raises(ValueError):
        file.append_if(lambda lines: [{"number": int("x")}])
    assert file.path.read_bytes() == before


def _spend(path: str, times: int) -> None:
    file = ChainedFile(Path(path), "account")
    for _ in range(times):
        file.append_if(lambda lines: [{"spent": 1}] if len(lines) < 50 else [])


def test_processes_that_decide_at_once_never_overspend(tmp_path: Path) -> None:
    """Four processes want 30 each of a budget of 50: without the lock some would decide on the same lines."""
    path = tmp_path / "a.jsonl"
    workers = [multiprocessing.get_context("fork").Process(target=_spend, args=(str(path), 30)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(ChainedFile(path, "account").verified()) == 50


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\nhalf a line")
    (tmp_path / "a.jsonl").symlink_to(victim)
    with pytest.raises(StorageError):
        ChainedFile(tmp_path / "a.jsonl", "account").append({"number": 0})
    assert victim.read_text() == "precious\nhalf a line"


def test_one_object_sees_what_others_appended_and_a_file_that_shrank(tmp_path: Path) -> None:
    one = filled(tmp_path / "a.jsonl", 2)
    ChainedFile(one.path, "account").append({"number": 2})
    one.append({"number": 3})
    assert [line["number"] for line in one.verified()] == [0, 1, 2, 3]
    one.path.write_bytes(b"")
    with pytest.raises(IntegrityError):
        one.append({"number": 4})
