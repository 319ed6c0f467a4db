from __future__ import annotations

import json
from pathlib import Path

import pytest

import suture
from suture.api import Result
from suture.errors import IntegrityError
from suture.report.history import read_curve, read_traffic

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"


def run(out: Path, select: str) -> Result:
    overrides = ["rounds=6", "hidden=8", f"select={select}"]
    return suture.run(GRAPH, "fedper", clients=3, overrides=overrides, out=out)


@pytest.mark.parametrize("select", ["best-validation", "best-validation-per-client", "last"])
def test_reported_accuracies_are_those_of_the_result(tmp_path: Path, select: str) -> None:
    outcome = run(tmp_path / "r", select).outcome
    curve = read_curve(tmp_path / "r")
    values = [value for value in curve.reported(outcome.best_rounds) if value is not None]
    assert sum(values) / 3 == pytest.approx(outcome.accuracy_client_mean, abs=1e-6)
    assert min(values) == pytest.approx(outcome.accuracy_worst, abs=1e-6)
    assert curve.iterations == 6 and curve.rounds == (1, 2, 3, 4, 5, 6)


def test_traffic_adds_up_to_the_result(tmp_path: Path) -> None:
    outcome = run(tmp_path / "r", "last").outcome
    counted = {(t.step, t.direction): t for t in read_traffic(tmp_path / "r")}
    up, down = counted["local_update", "up"], counted["local_update", "down"]
    assert (up.bytes, down.bytes) == (outcome.bytes_up, outcome.bytes_down)
    assert up.messages == 3 * 6 and list(up.fields) == ["params", "weight", "loss"]
    assert ("evaluate", "up") in counted


def test_a_line_being_written_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"phase":"round","round":1}\n{"phase":"rou')
    assert read_curve(tmp_path).iterations == 1
    assert read_curve(tmp_path / "not begun").iterations == 0


@pytest.mark.parametrize("line", ["{", '{"validation": 0.5}', '{"validation": "x"}', "[]"])
def test_damage_is_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(IntegrityError, match="damaged"):
        read_curve(tmp_path)


def test_a_ledger_whose_step_is_no_word_is_one_sentence_too(tmp_path: Path) -> None:
    line = {"step": True, "direction": "up", "clients": ["a"], "bytes": [3], "fields": ["x"]}
    (tmp_path / "ledger.jsonl").write_text(f"{json.dumps(line)}\n")
    with pytest.raises(IntegrityError, match="damaged"):
        read_traffic(tmp_path)
