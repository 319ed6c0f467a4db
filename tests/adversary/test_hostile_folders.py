"""Folders and files that somebody else has written: no escape reaches the terminal, no traceback, no file outside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from suture.cli import main
from suture.core.storage import copy_files
from suture.errors import ConfigError, SutureError
from suture.federation.audit import AUDIT, AuditLog, read_audit, verify_audit
from suture.federation.flare.kits import Kit
from suture.federation.operator.errand import read_order
from suture.federation.wire.names import job_id
from suture.federation.wire.orders import Order
from suture.report import console

ESCAPE = "\x1b]0;mine\x07\x1b[2J\u202eevil"
DEEP = "[" * 200_000
JUNK = {
    "deep": DEEP.encode(),
    "deep-object": ('{"a":' * 50_000).encode(),
    "binary": bytes(range(256)) * 4,
    "empty": b"",
    "other": b"[1, 2]\n",
    "long": json.dumps({"x" * 3_000_000: 1, "notes": ["y" * 3_000_000]}).encode(),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    tiny = "csbm:nodes=200,features=30,words_per_node=6"
    arguments = ["run", "--dataset", tiny, "--clients", "2", "--set", "rounds=2", "--set", "model.hidden=4", "--quiet"]
    assert main([*arguments, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def changed(path: Path, **more: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def test_no_escape_of_a_run_folder_reaches_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(run / "data.json", notes=[f"a note {ESCAPE}"])
    changed(run / "result.json", warnings=[f"a warning {ESCAPE}"], suspects=[ESCAPE])
    capsys.readouterr()
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr()
    assert "a note" in shown.out and "a warning" in shown.out
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.out + shown.err)
    assert "\\x1b[2J" in shown.out.replace("\n", "") and "\\u202eevil" in shown.out


def test_nor_one_of_an_error_or_of_what_an_owner_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"nowhere{ESCAPE}"]) == 2
    console.notes().print(f"owner a refuses: {ESCAPE}", soft_wrap=True)
    console.results().print(console.titled(ESCAPE, console.grid(ESCAPE)))
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)
    assert said.err.count("\\x1b[2J") == 2


def test_colours_of_our_own_still_reach_a_terminal() -> None:
    screen = console.CleanConsole(force_terminal=True, color_system="standard", width=80)
    with screen.capture() as captured:
        screen.print(console.titled("title\x1b[2J", console.grid("a")))
    assert "\x1b[1mtitle\\x1b[2J\x1b[0m" in captured.get()


@pytest.mark.parametrize("junk", list(JUNK))
def test_every_file_of_a_run_folder_may_be_junk(junk: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path.name for path in run.iterdir() if path.suffix in (".json", ".jsonl", ".toml", ".safetensors")]
    assert {"run.json", "config.toml", "result.json", "metrics.jsonl", "ledger.jsonl", "data.json"} <= set(files)
    for name in files:
        before = (run / name).read_bytes()
        (run / name).write_bytes(JUNK[junk])
        for command in ("show", "privacy"):
            one_sentence(lambda command=command: main([command, str(run)]), capsys)
        (run / name).write_bytes(before)


def test_every_entry_of_a_result_may_be_of_another_kind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    genuine = (run / "result.json").read_text()
    for key in json.loads(genuine):
        for value in ([], {}, [[0]], "x", None, -1, 1e300):
            changed(run / "result.json", **{key: value})
            one_sentence(lambda: main(["show", str(run)]), capsys)
            (run / "result.json").write_text(genuine)


def one_sentence(action: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> str:
    """Done, or refused in one line of a length that somebody reads; never a traceback, which would be raised here."""
    capsys.readouterr()
    code, said = action(), capsys.readouterr().err
    assert code == 0 or (code == 2 and said.count("\n") == 1), said[:500]
    assert len(said) < 10_000
    return said


@pytest.fixture(scope="module")
def made_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile") / "kits"
    assert (
        main(["federation", "create", "--owners", "a,b", "--server", "localhost:1", "--with-keys", "--out", str(out)]) == 0
    )
    return out


@pytest.fixture
def kits(made_kits: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_kits, tmp_path / "kits")
    return tmp_path / "kits"


COMMANDS = {
    "operator": (["federation", "status", "--kit"], ["about.json", "startup/fed_admin.json"]),
    "a": (["owner", "ledger"], ["about.json", "suture/audit.jsonl", "suture/runs/r/ledger.jsonl"]),
    "b": (["owner", "audit", "--verify"], ["about.json", "suture/audit.jsonl", "suture/runs/r/finished.json"]),
    "coordinator": (["coordinator", "audit"], ["about.json", "suture/audit.jsonl"]),
}


@pytest.mark.parametrize("junk", [*JUNK, "missing"])
@pytest.mark.parametrize("party", list(COMMANDS))
def test_every_file_of_a_kit_may_be_junk(party: str, junk: str, kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, files = COMMANDS[party]
    if party != "operator":
        (kits / party / "suture" / "runs" / "r").mkdir(parents=True)
        AuditLog(kits / party / "suture" / AUDIT, party).note("opened", run="r")
    for name in files:
        path = kits / party / name
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        if junk != "missing":
            path.write_bytes(JUNK[junk])
        one_sentence(lambda: main([*command, str(kits / party)]), capsys)
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)


@pytest.mark.parametrize("junk", [*JUNK, "missing"])
def test_a_party_does_not_start_on_settings_that_are_junk(
    junk: str, kits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "execv", lambda *command: pytest.fail("it would have started"))
    for name in ("resources", "authorization", "log_config"):
        path = kits / "coordinator" / "local" / f"{name}.json.default"
        before = path.read_bytes()
        path.unlink()
        if junk != "missing":
            path.write_bytes(JUNK[junk])
        capsys.readouterr()
        code = "would start"
        try:
            code = main(["coordinator", "start", str(kits / "coordinator")])
        except pytest.fail.Exception:
            # Rights are replaced whole, so what is in that file does not matter as long as it is an object.
            assert (name, junk) == ("authorization", "long")
            path.write_bytes(before)
            continue
        said = capsys.readouterr().err.splitlines()
        assert code == 2 and len(said) <= 2 and len(said[-1]) < 10_000, said
        path.write_bytes(before)


NAMES = ["../escaped", "/tmp/escaped", "a/b", "..", ".hidden", "", "a" * 200, "a\x00b", "a\nb", "RUN.census", "ä", 7, None]


@pytest.mark.parametrize("name", NAMES)
def test_a_runs_name_is_no_path(name: object) -> None:
    good = {"run": "20260101-fedavg", "method": "fedavg", "seed": 0, "config": ""}
    Order.read(good)
    with pytest.raises(ConfigError):
        Order.read({**good, "run": name})


def test_names_given_to_commands_and_in_folders_are_no_paths(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = kits.parent / "secret"
    secret.mkdir()
    (secret / "ledger.jsonl").write_text('{"step": "secret", "bytes": [1], "fields": {}}\n')
    assert main(["owner", "ledger", str(kits / "a"), "--run", "../../../../secret"]) == 2
    said = capsys.readouterr()
    assert "the run's name" in said.err and "secret" not in said.out
    for bad in ("x status", "../x", "x;shutdown", ""):
        with pytest.raises(ConfigError):
            job_id(bad)
    folder = kits.parent / "run"
    folder.mkdir()
    (folder / "order.json").write_text(json.dumps({"run": "r", "method": "fedavg", "seed": 0, "config": ""}))
    (folder / "job.json").write_text(json.dumps({"job": "x shutdown all", "run": "r", "kit": str(kits / "operator")}))
    with pytest.raises(ConfigError, match="job's id"):
        read_order(folder)


def test_links_are_not_followed_home(tmp_path: Path) -> None:
    source, target, outside = tmp_path / "source", tmp_path / "target", tmp_path / "outside"
    (source / "kept").mkdir(parents=True)
    outside.mkdir()
    (outside / "key.pem").write_text("secret")
    (source / "result.json").write_text("{}")
    (source / "kept" / "a").write_text("a")
    (source / "model").symlink_to(outside / "key.pem")
    (source / "folder").symlink_to(outside)
    target.mkdir()
    (target / "result.json").symlink_to(outside / "written")
    left = copy_files(source, target)
    assert sorted(Path(path).name for path in left) == ["folder", "model"]
    assert sorted(path.name for path in target.rglob("*")) == ["a", "kept", "result.json"]
    assert not (target / "result.json").is_symlink() and not (outside / "written").exists()


def log_of(home: Path, lines: int = 6) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    log = AuditLog(home / AUDIT, "a")
    for number in range(lines):
        log.note("opened", run="r", number=number)
    return home / AUDIT


@pytest.mark.parametrize(
    ("how", "line"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b'"opened"', b'"closed"'), *lines[3:]], 3),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines, lines[-1]], 7),
        (lambda lines: lines[1:], 1),
    ],
    ids=["changed", "dropped", "swapped", "repeated", "without its first"],
)
def test_a_changed_audit_log_is_named_by_its_line(
    how: Callable[[list[bytes]], list[bytes]], line: int, kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of(kits / "a" / "suture")
    assert main(["owner", "audit", str(kits / "a"), "--verify"]) == 0
    assert "6 lines" in capsys.readouterr().out
    path.write_bytes(b"\n".join([*how(path.read_bytes().split(b"\n")[:-1]), b""]))
    said = one_sentence(lambda: main(["owner", "audit", str(kits / "a"), "--verify"]), capsys)
    assert f"line {line} does not follow" in said


def test_a_log_whose_end_is_cut_is_not_that_of_its_runs(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    head = AuditLog(path, "a").head()
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "finished.json").write_text(json.dumps({"audit": head}))
    assert asdict(verify_audit(tmp_path)[0]) == head
    whole = path.read_bytes()
    path.write_bytes(b"\n".join([*whole.split(b"\n")[:4], b""]))
    with pytest.raises(SutureError, match="it has 4 lines and had 6"):
        verify_audit(tmp_path)
    path.unlink()
    for _ in range(7):
        AuditLog(path, "somebody else").note("opened")
    with pytest.raises(SutureError, match="line 6 is another one"):
        verify_audit(tmp_path)


def test_a_log_goes_on_after_a_killed_writer_and_after_another_format(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"event": "half')
    assert len(read_audit(path)) == 6
    AuditLog(path, "a").note("opened", run="r")
    assert verify_audit(tmp_path)[0].lines == 7
    old = b'{"time": "2026", "party": "a", "event": "opened"}\n{"event": "half'
    path.write_bytes(old)
    assert len(read_audit(path)) == 1
    AuditLog(path, "a").note("finished")
    head, aside = verify_audit(tmp_path)
    assert head.lines == 2 and "before logs were chained" in aside[0]
    assert (tmp_path / "audit-before-1.jsonl").read_bytes() == old
    path.write_bytes(path.read_bytes().replace(b"finished", b"finisher"))
    AuditLog(path, "a").note("opened")
    assert "was changed: line 2" in verify_audit(tmp_path)[1][0]


def test_what_others_say_is_not_kept_whole(tmp_path: Path) -> None:
    AuditLog(tmp_path / AUDIT, "a").note("refused", reason="x" * 3_000_000)
    assert (tmp_path / AUDIT).stat().st_size < 4000


def test_kits_in_the_wild_are_read(kits: Path) -> None:
    """Or the tests above would show nothing."""
    assert Kit.read(kits / "a", "owner").owners == ("a", "b")
    assert np.isfinite(verify_audit(kits / "a" / "suture")[0].lines)
