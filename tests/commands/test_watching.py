"""`suture watch`: folders that grow, that have ended, that were killed, and that somebody has damaged."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import suture
from suture.api import plan
from suture.cli import main
from suture.commands import watching
from suture.core.storage import write_json
from suture.errors import ConfigError
from suture.federation.operator.files import JOB
from suture.federation.wire.orders import ORDER, FaultSettings, order_of
from suture.federation.wire.reasons import Code, Reason
from suture.federation.wire.status import State, Status
from suture.report.gathering import gather
from suture.report.live import Screen
from suture.report.standing import standing

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watching, "SECONDS_TO_BEGIN", 0.0)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return (main(["watch", *arguments]), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("watched") / "many"
    suture.compare(GRAPH, ["local", "fedavg"], seeds=[0, 1], rounds=3, clients=3, out=out)
    return out


def test_a_finished_comparison_has_a_line_a_method(cli: Cli, compared: Path) -> None:
    code, out, err = cli(str(compared))
    assert code == 0 and "3 owners, 4 of 4 runs finished" in " ".join(out.split())
    (row,) = [line for line in out.splitlines() if line.startswith("fedavg")]
    last = json.loads((compared / "fedavg-seed1" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row.split()[1] == "2/2" and f"{100 * last['validation']:.1f}" in row.split()
    assert err == f"finished; look at it with: suture show {compared}\n"


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(compared: Path, width: int) -> None:
    found = standing(compared)
    assert found is not None
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(Screen(found))
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines) and not any("…" in line for line in lines)
    assert len([line for line in lines if line.startswith(("local", "fedavg"))]) == 2


def test_lines_for_programs_are_those_of_the_metrics(cli: Cli, compared: Path) -> None:
    events = [json.loads(line) for line in cli(str(compared), "--json-lines")[1].splitlines()]
    assert events[0]["event"] == "begin" and events[-1]["event"] == "result"
    rounds = [one["line"] for one in events if (one.get("method"), one.get("seed"), one["event"]) == ("local", 1, "round")]
    assert rounds == [json.loads(line) for line in (compared / "local-seed1" / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((compared / "fedavg-seed0" / "result.json").read_text())
    (told,) = [one for one in events[-1]["result"]["runs"] if (one["method"], one["seed"]) == ("fedavg", 0)]
    assert (told["bytes_up"], told["bytes_down"], told["state"]) == (result["bytes_up"], result["bytes_down"], "finished")


def test_it_follows_a_live_run_to_its_end_and_tells_a_killed_one(tmp_path: Path) -> None:
    """In real processes: rounds come while the run goes on; `kill -9` ends the watching, too."""
    run, start = tmp_path / "run", [sys.executable, "-m", "suture"]
    more = ["--dataset", GRAPH, "--clients", "3", "--set", "rounds=1000000", "--quiet", "--out", str(run)]
    trained = subprocess.Popen([*start, "run", *more])
    seen: list[int] = []
    try:
        end = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.1)
        watched = subprocess.Popen([*start, "watch", str(run), "--json-lines"], stdout=subprocess.PIPE, text=True)
        assert watched.stdout is not None
        known: int | None = None  # rounds that were there at the first look
        for text in watched.stdout:
            line = json.loads(text)
            if line["event"] == "round":
                seen.append(line["done"])
            elif line["event"] == "run" and line["state"] == "running":
                known = line["done"]
            if known is not None and seen and seen[-1] > known:
                break
    finally:
        trained.send_signal(signal.SIGKILL)
        trained.wait()
    # Read on from the same stream, which has read ahead: `communicate` would begin in the middle of a line.
    rest = [json.loads(text) for text in watched.stdout]
    assert rest[-1]["event"] == "result" and rest[-1]["result"]["state"] == "stopped" and watched.wait(timeout=120) == 0
    assert seen == list(range(1, len(seen) + 1)), "each round once, in order"


def test_a_stopped_run_says_how_to_go_on_and_a_resumed_one_is_read_anew(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    suture.run(GRAPH, rounds=3, clients=3, out=run)
    (run / "result.json").unlink()
    assert cli("run")[2] == "stopped; continue with: suture resume run\n"
    found = standing(run)
    assert found is not None and found.runs[0].done == 3
    suture.resume(run)  # cuts its files back first
    found.look()
    assert found.runs[0].done == 3 and found.state == "finished"


def test_absent_owners_and_reasons_of_a_federation_are_named(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    suture.run(GRAPH, rounds=3, clients=3, out=run)
    (run / "result.json").unlink()
    absent = {"clinic-b": Reason(Code.NO_ANSWER, "it gave no answer")}
    status = Status("r", "fedavg", State.WAITING, 0.0, absent=absent, reason=Reason(Code.NO_ANSWER, "clinic-b is lost"))
    (run / "status.json").write_text(json.dumps(status.as_json()))
    _, out, err = cli("run", "--once")
    assert "2 of 3 owners present" in " ".join(out.split())
    assert "clinic-b is absent: it gave no answer" in out and "waiting: clinic-b is lost" in out
    assert "the coordinator's folder; its operator continues it" in err and "resume run" not in err
    (run / JOB).write_text("{}")  # as the operator's folder has it
    assert cli("run", "--once")[2] == "stopped; continue with: suture federation resume run\n"


@pytest.mark.parametrize(
    "damage",
    ["gone", "file", "empty", "run.json", "metrics.jsonl", "ledger.jsonl", "list", "deep", "status.json", "config.toml"],
)
def test_a_damaged_folder_is_one_sentence(cli: Cli, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    if damage == "file":
        run.write_text("")
    elif damage == "empty":
        run.mkdir()
    elif damage != "gone":
        suture.run(GRAPH, rounds=2, clients=3, out=run)
        (run / "result.json").unlink()
        name, text = {"list": ("metrics.jsonl", "[1]\n"), "deep": ("metrics.jsonl", "[" * 100_000 + "\n")}.get(
            damage, (damage, '{"a": \n')
        )
        (run / name).write_text(text)
    code, out, err = cli("run")
    assert code == 2 and out == "" and err.startswith("suture: ") and err.count("\n") == 1


def test_a_line_that_is_being_written_is_read_when_it_is_whole(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    suture.run(GRAPH, rounds=2, clients=3, out=run)
    (run / "result.json").unlink()
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole[:-10])
    found = standing(run)
    assert found is not None and found.runs[0].done == 1
    (run / "metrics.jsonl").write_text(whole)
    found.look()
    assert found.runs[0].done == 2


def test_an_order_that_nobody_follows_is_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    """It failed before any round came home: watch must not look forever, and a report says why there is none."""
    folder = tmp_path / "ordered"
    folder.mkdir()
    made = plan(GRAPH, ["fedavg"], clients=3, seeds=[0])
    write_json(folder / ORDER, order_of(made, "run", FaultSettings()).as_json())
    code, _, err = cli("ordered")
    assert code == 2 and "no command follows it; go on with: suture federation resume ordered" in err
    assert cli("ordered", "--once")[0] == 2
    with pytest.raises(ConfigError, match="no leg of it has ended"):
        gather([folder])
