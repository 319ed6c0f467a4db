"""Runs that are started, stopped and gone on with from a page: real processes of the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from dashboards import GRAPH, Serve

from suture import api
from suture.cli import main
from suture.dashboard.form import Misfit, Planner, Wish
from suture.runs.folder import METRICS, RESULT
from suture.runs.pulse import holder_of


def sentence_of(text: str) -> str:
    """What the command line said, on one line and without its name."""
    return re.sub(r"\s+", " ", text).strip().removeprefix("suture: ")


WISH = {"dataset": GRAPH, "methods": ["fedavg"], "clients": "3", "seeds": "0", "protocol": "", "overrides": ["rounds=4"]}
LONG = WISH | {"overrides": ["rounds=100000"]}


@pytest.mark.parametrize(
    ("change", "field", "options"),
    [
        ({"dataset": "coar"}, "dataset", ["--dataset=coar", "--method=fedavg"]),
        ({"methods": ["fedavgg"]}, "methods", [f"--dataset={GRAPH}", "--method=fedavgg"]),
        ({"clients": "0"}, "clients", [f"--dataset={GRAPH}", "--clients=0"]),
        ({"overrides": ["rounds=4", "round=3"]}, "overrides", [f"--dataset={GRAPH}", "--set=round=3"]),
        ({"overrides": ["rounds=0"]}, "overrides", [f"--dataset={GRAPH}", "--set=rounds=0"]),
        ({"overrides": ["fedprox.mu"]}, "overrides", [f"--dataset={GRAPH}", "--set=fedprox.mu"]),
    ],
)
def test_a_mistake_is_told_as_the_command_line_tells_it(
    change: dict[str, object], field: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Misfit) as told:
        Planner().plan(Wish.read(WISH | change))
    assert told.value.field == field
    assert main(["run", *options, "--dry-run"]) == 2
    assert sentence_of(str(told.value)) == sentence_of(capsys.readouterr().err)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such policy")
def test_the_dashboard_gives_way_and_what_it_starts_does_not() -> None:
    code = (
        "import os, subprocess, sys; from suture.dashboard import processes; processes.give_way();"
        "one = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
        "before = os.sched_getscheduler(one.pid);"
        "processes._as_usual(one.pid); print(os.sched_getscheduler(0), before, os.sched_getscheduler(one.pid)); one.kill()"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert list(map(int, told)) == [os.SCHED_BATCH, os.SCHED_BATCH, os.SCHED_OTHER]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seeds": "0,x"}, "seeds"),
        ({"seeds": "0,0"}, "seeds"),
        ({"seeds": "-1"}, "seeds"),
        ({"clients": "three"}, "clients"),
        ({"protocol": "../evil.toml"}, "protocol"),
        ({"methods": []}, "methods"),
        ({"methods": "fedavg"}, "methods"),
        ({"dataset": "/etc"}, "dataset"),
        ({"dataset": ["cora"]}, "dataset"),
        ({"overrides": ["a=1"] * 1000}, "overrides"),
        ({"overrides": ["partition.file=/etc/passwd"]}, "overrides"),
    ],
)
def test_what_no_form_may_hold(change: dict[str, object], field: str) -> None:
    with pytest.raises(Misfit) as told:
        Planner().plan(Wish.read(WISH | change))
    assert told.value.field == field and "\n" not in str(told.value)


def test_a_page_lets_no_code_in(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(ran)!r}, 'w')\nclass Evil: ...\n")
    for change in ({"methods": [f"{evil}:Evil"]}, {"dataset": f"{evil}:Evil"}, {"overrides": [f"model.kind={evil}:Evil"]}):
        with pytest.raises(Misfit, match="suture trust"):
            Planner().plan(Wish.read(WISH | change))
    assert not ran.exists()


def test_words_cannot_become_options() -> None:
    wish = Wish.read(WISH | {"dataset": "--out=/tmp/x", "overrides": ["--out=/tmp/y", "-q"], "methods": ["--help", "b"]})
    words = wish.options({})
    assert words[0] == "compare" and all(
        word.startswith(("--dataset=", "--method", "--s", "--clients=")) for word in words[1:]
    )


def test_started_stopped_and_gone_on_with(serve: Serve) -> None:
    served = serve()
    told = served.post("/api/check", LONG).json()
    assert told["said"] == "1 run of 100000 rounds, protocol fedpub-disjoint, seed 0" and told["command"][:2] == [
        "suture",
        "run",
    ]
    id = served.post("/api/start", LONG).json()["id"]
    name = next(row["name"] for row in served.rows() if row["id"] == id)
    row = served.until(name, "running")
    assert row["can_stop"] and not row["can_resume"] and row["progress"]["total"] == 100000
    assert served.post(f"/api/runs/{id}/resume", {}).status_code == 409
    assert served.post(f"/api/runs/{id}/stop", {}).json()["said"] == "stopping after this round"
    assert served.row(name)["stopping"] or served.row(name)["standing"] == "stopped"
    row = served.until(name, "stopped")
    assert row["can_resume"] and not row["can_stop"] and row["note"].startswith("stopped after round")
    assert served.post(f"/api/runs/{id}/stop", {}).status_code == 409
    rounds = (served.root / name / METRICS).read_text().count("\n")
    assert served.post(f"/api/runs/{id}/resume", {}).status_code == 200
    served.until(name, "running")
    holder = holder_of(served.root / name)
    assert holder is not None
    while (served.root / name / METRICS).read_text().count("\n") <= rounds:
        time.sleep(0.2)
    os.kill(holder.pid, signal.SIGKILL)
    row = served.until(name, "resumable")
    assert "killed" in row["note"] and row["can_resume"]
    assert "continue with: suture resume" in served.get(f"/api/runs/{id}").json()["log"]


def test_a_run_from_the_form_ends_as_one_from_python(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    id = served.post("/api/start", WISH | {"methods": ["local", "fedavg"]}).json()["id"]
    name = next(row["name"] for row in served.rows() if row["id"] == id)
    row = served.until(name, "finished")
    ours = api.compare(GRAPH, ["local", "fedavg"], clients=3, seeds=[0], rounds=4, out=tmp_path / "ours")
    for one, outcome in zip(row["results"], ours.outcomes, strict=True):
        assert (one["method"], one["mean"]) == (outcome.method, pytest.approx(outcome.accuracy_client_mean, abs=1e-6))
    told = json.loads((served.root / name / "fedavg-seed0" / RESULT).read_text())
    assert told["best_round"] == ours.outcomes[1].best_round


def test_what_fails_before_its_first_round_says_why(serve: Serve) -> None:
    """More clients than nodes: no plan knows, the process does."""
    served = serve()
    served.dashboard.processes.most = 1
    id = served.post("/api/start", WISH | {"clients": "500"}).json()["id"]
    again = served.post("/api/start", WISH)
    assert again.status_code == 409 and "wait for one of them" in again.json()["error"]
    while (row := next(row for row in served.rows() if row["id"] == id))["standing"] == "starting":
        time.sleep(0.2)
    assert row["standing"] == "failed" and "500" in row["note"] and "\n" not in row["note"]
    assert not row["can_resume"] and served.post(f"/api/runs/{id}/resume", {}).status_code == 409


def test_a_made_up_process_is_not_signalled(serve: Serve, copied: Path) -> None:
    """A folder may say what it likes of who is at it: only a process that has its lock open is stopped."""
    (copied / "one" / RESULT).unlink()
    (copied / "one" / ".lock").write_text(f"{os.getpid()} {os.uname().nodename}\n")
    served = serve(copied)
    id = served.row("one")["id"]
    assert served.post(f"/api/runs/{id}/stop", {}).status_code == 409
    assert served.dashboard.processes._process(copied / "one") is None


def test_ctrl_c_ends_the_dashboard_and_says_nothing_more(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suture", "dashboard", str(tmp_path), "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address, _, token = process.stdout.readline().strip().partition("/?token=")
    with httpx.Client(base_url=address, timeout=None) as browser:
        browser.get("/", params={"token": token})
        with browser.stream("GET", "/api/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "event: first"
            process.send_signal(signal.SIGINT)
            assert all(not line.startswith("event: more") for line in lines)
    said = process.communicate()[1]
    assert process.returncode == 0 and "Traceback" not in said and said.count("\n") == 1


def test_a_folder_that_is_not_there_is_a_mistake_and_the_usual_one_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suture", "dashboard"]
    done = subprocess.run([*command, "rnus", "--port=0"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("suture: there is no folder rnus; give the folder")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "rnus").exists()
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, "--port=0"], cwd=tmp_path, text=True, **piped)
    assert process.stdout is not None and "/?token=" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert (tmp_path / "runs").is_dir()
