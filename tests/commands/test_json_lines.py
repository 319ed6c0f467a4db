"""`--json-lines`: what programs read of every long command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suture.cli import main

SMALL = ("--dataset", "csbm:nodes=240,features=40,words_per_node=8,classes=3", "--clients", "3")
FEW = ("--set", "rounds=3", "--set", "hidden=8")
Event = dict[str, Any]
Cli = Callable[..., tuple[int, list[Event], str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, list[Event], str]:
        capsys.readouterr()
        code = main([*arguments, "--json-lines"])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return call


def frame(events: list[Event], command: str) -> Event:
    """The first line says what this is, the last one what came of it; returns that."""
    assert events[0] == {"event": "begin", "format": 1, "command": command}
    assert [one["event"] for one in events].count("begin") == 1
    assert events[-1]["event"] == "result" and all(one["event"] != "result" for one in events[:-1])
    return events[-1]


def of(events: list[Event], kind: str) -> list[Event]:
    return [one for one in events if one["event"] == kind]


def test_rounds_of_a_comparison_are_the_lines_of_its_metrics(cli: Cli) -> None:
    code, events, err = cli("compare", *SMALL, *FEW, "--methods", "local,fedavg", "--seeds", "0,1", "--out", "c")
    assert code == 0 and err == ""
    result = frame(events, "compare")["result"]
    assert result["out"] == "c" and [(run["method"], run["seed"]) for run in result["runs"]] == [
        ("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1),
    ]  # fmt: skip
    for method in ("local", "fedavg"):
        for seed in (0, 1):
            rounds = [one for one in of(events, "round") if (one["method"], one["seed"]) == (method, seed)]
            kept = (Path("c") / f"{method}-seed{seed}" / "metrics.jsonl").read_text().splitlines()
            assert [one["line"] for one in rounds] == [json.loads(line) for line in kept]
            assert [(one["done"], one["total"]) for one in rounds] == [(1, 3), (2, 3), (3, 3)]
            assert rounds[-1]["seconds_left"] == 0
    assert {one["work"] for one in of(events, "progress")} >= {"load", "partition"}


def test_run_and_resume_end_with_the_same_result(cli: Cli) -> None:
    first = frame(cli("run", *SMALL, *FEW, "--out", "r")[1], "run")
    again = frame(cli("resume", "r")[1], "resume")
    assert first == again


def test_a_cut_is_told_with_its_costs(cli: Cli) -> None:
    code, events, err = cli("partition", *SMALL, "--out", "cut.json")
    result = frame(events, "partition")["result"]
    assert code == 0 and err == "" and result["manifest"] == "cut.json" and Path("cut.json").exists()
    assert sum(result["nodes"]) <= 240 and len(result["clients"]) == 3 and result["missing_links"] > 0
    cutting = [one for one in of(events, "progress") if one["work"] == "partition"]
    assert [one["state"] for one in cutting] == ["begun", "ended"]


def test_an_import_tells_its_tables_and_its_summary(cli: Cli) -> None:
    assert main(["data", "example", "fraud", "--out", "tables"]) == 0
    tables = ("--nodes", "tables/{owner}/accounts.csv", "--edges", "tables/{owner}/transfers.csv")
    code, events, err = cli(
        "import", "graph", *tables, "--id", "account", "--label", "fraud", "--source", "payer", "--target", "payee"
    )
    if code:
        pytest.fail(err)
    result = frame(events, "import")["result"]
    assert result["out"] == "graph" and {one["table"] for one in result["tables"]} == {"nodes", "edges"}
    assert result == {"out": "graph", **json.loads(Path("graph/summary.json").read_text())}
    read = [one for one in of(events, "progress") if one["what"] == "reading tables"]
    assert read[-1]["state"] == "ended" and read[-1]["done"] == read[-1]["total"] == 3
    rows = [one for one in of(events, "progress") if one["unit"] == "rows" and one["state"] == "ended"]
    assert sum(one["done"] for one in rows) == sum(one["kept"] for one in result["tables"] if one["table"] == "nodes")


def test_attacks_tell_which_one_is_tried(cli: Cli) -> None:
    assert main(["run", *SMALL, *FEW, "--record", "--out", "r", "--quiet"]) == 0
    code, events, _ = cli("attack", "r", "--attack", "labels,links", "--view", "server", "--minutes", "0.05")
    result = frame(events, "attack")["result"]
    assert code == 0 and [one["attack"] for one in result["findings"]] == ["links", "labels"]
    tried = [one for one in of(events, "progress") if one["work"] == "attack" and one["unit"] == "attacks"]
    assert {one["note"].partition(":")[0] for one in tried if one["note"]} == {"labels as server", "links as server"}
    assert (tried[-1]["state"], tried[-1]["done"], tried[-1]["total"]) == ("ended", 2, 2)


def test_pieces_that_are_merged_shared_and_run_again(cli: Cli) -> None:
    for seed in ("0", "1"):
        assert main(["run", *SMALL, *FEW, "--seed", seed, "--out", f"pieces/{seed}", "--quiet"]) == 0
    code, events, err = cli("merge", "pieces", "--out", "all")
    result = frame(events, "merge")["result"]
    assert code == 0 and err == "" and (result["seeds"], result["runs"], result["missing"]) == ([0, 1], 2, [])
    told = [(one["what"], one["done"], one["total"]) for one in of(events, "progress") if one["state"] == "ended"]
    assert told == [("reading runs", 2, 2), ("copying runs", 2, 2)]
    assert main(["share", "all", "--out", "all.zip"]) == 0
    code, events, err = cli("rerun", "all.zip", "--out", "again")
    result = frame(events, "rerun")["result"]
    assert code == 0 and err == "" and result["same"] and len(of(events, "round")) == 6
    code, events, err = cli("rerun", "all.zip", "--out", "again")
    assert code == 2 and err == f"suture: {events[-1]['text']}\n" and "holds a run already" in err


def test_a_search_tells_the_rounds_of_its_trials(cli: Cli) -> None:
    code, events, err = cli("tune", *SMALL, *FEW, "--trials", "2", "--search-seeds", "100", "--out", "t")
    result = frame(events, "tune")["result"]
    assert code == 0 and err == "" and len(result["methods"]["fedavg"]) == 2
    assert [one["method"] for one in of(events, "round") if one["done"] == 1] == [f"fedavg trial {n} of 2," for n in (1, 2)]


def test_an_assessment_tells_its_pilot_and_its_rounds(cli: Cli) -> None:
    code, events, err = cli("assess", *SMALL, "--set", "rounds=3", "--seeds", "0,1,2", "--methods", "fedper")
    result = frame(events, "assess")["result"]
    assert code == 0 and err == "" and {one["method"] for one in result["methods"]} >= {"local", "fedavg", "fedper"}
    pilot = [one for one in of(events, "progress") if one["work"] == "pilot"]
    assert pilot[-1]["state"] == "ended" and pilot[-1]["done"] == len(result["methods"])
    assert {one["method"] for one in of(events, "round")} >= {"local", "fedavg", "fedper"} and of(events, "note")


def test_a_refusal_is_the_last_line_and_a_sentence_on_stderr(cli: Cli) -> None:
    code, events, err = cli("run", *SMALL[:2], "--clients", "500")
    assert code == 2 and events[-1]["event"] == "error" and err == f"suture: {events[-1]['text']}\n"


def test_results_and_lines_do_not_both_go_to_stdout(cli: Cli) -> None:
    code, events, err = cli("run", *SMALL, "--json", "-")
    assert code == 2 and events == [] and "--json-lines" in err


def test_a_killed_run_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    """Through real pipes: lines come while the run goes on, and Ctrl-C ends in an error line."""
    command = [sys.executable, "-m", "suture", "run", *SMALL, "--set", "rounds=100000", "--json-lines", "--out", "r"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ}
    )
    assert process.stdout is not None
    seen: list[Event] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if len(of(seen, "round")) == 3:
            process.terminate()
            break
    rest, err = process.communicate(timeout=60)
    seen += [json.loads(line) for line in rest.splitlines()]
    assert process.returncode == 2
    assert seen[-1]["event"] == "error" and seen[-1]["text"].endswith("continue with: suture resume r")
    assert err.splitlines()[-1] == f"suture: {seen[-1]['text']}"
