"""What a run tells while it runs and after it: ticks, the history in memory, the validation score of the reported round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import suture
from suture.errors import ConfigError, IntegrityError
from suture.runs.folder import read_outcome
from suture.runs.outcome import Line, Tick

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
BRIEF = ["rounds=6", "hidden=8"]


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_history_and_ticks_are_what_the_metrics_file_holds(tmp_path: Path) -> None:
    ticks: list[Tick] = []
    options = suture.Options(watch=lambda method, seed, tick: ticks.append(tick))
    overrides = [*BRIEF, "training.aggregation=median"]
    result = suture.run(GRAPH, "fedavg", clients=3, overrides=overrides, out=tmp_path / "r", options=options)
    expected = lines(tmp_path / "r")
    assert len(expected) == 6 and result.history == expected
    assert [dict(tick.line) for tick in ticks] == expected
    assert {"suspicion", "loss", "client_test", "train"} <= expected[0].keys()
    assert [(tick.loss, tick.validation) for tick in ticks] == [(line["loss"], line["validation"]) for line in expected]
    without_folder = suture.run(GRAPH, "fedavg", clients=3, overrides=overrides)
    assert without_folder.history == expected


def test_between_two_tests_the_last_score_is_shown() -> None:
    ticks: list[Tick] = []
    options = suture.Options(watch=lambda method, seed, tick: ticks.append(tick))
    suture.run(GRAPH, "fedavg", clients=3, overrides=[*BRIEF, "evaluation.every=2"], options=options)
    scores = [tick.line.get("validation") for tick in ticks]
    assert scores[0] is None and scores[2] is None and None not in (scores[1], scores[3])
    assert [tick.validation for tick in ticks] == [None, scores[1], scores[1], scores[3], scores[3], scores[5]]


def test_history_is_whole_after_a_resume_and_in_a_comparison(tmp_path: Path) -> None:
    seen: list[float | None] = []
    options = suture.Options(watch=lambda *told: seen.append(told[2].validation), stop=lambda: len(seen) == 9)
    overrides = [*BRIEF, "evaluation.every=2"]
    with pytest.raises(suture.SutureError, match="stopped after round 3 of 6"):
        suture.compare(
            GRAPH, ["local", "fedavg"], clients=3, seeds=[0], overrides=overrides, out=tmp_path / "c", options=options
        )
    again: list[float | None] = []
    done = suture.resume(tmp_path / "c", options=suture.Options(watch=lambda *told: again.append(told[2].validation)))
    for method in ("local", "fedavg"):
        assert done.history(method, 0) == lines(tmp_path / "c" / f"{method}-seed0")
        assert [line["round"] for line in done.history(method, 0)] == [1, 2, 3, 4, 5, 6]
    assert again[0] is not None, "the fourth round is tested"
    assert suture.resume(tmp_path / "c").histories == done.histories
    with pytest.raises(ConfigError, match="fedavg was not run with seed 4; there are local with seed 0, fedavg with seed 0"):
        done.history("fedavg", 4)


@pytest.mark.parametrize("average", ["clients", "nodes"])
@pytest.mark.parametrize("select", ["best-validation", "last"])
def test_validation_of_the_outcome_is_that_of_the_reported_round(tmp_path: Path, select: str, average: str) -> None:
    overrides = [*BRIEF, f"select={select}", f"average={average}"]
    outcome = suture.run(GRAPH, "fedavg", clients=3, overrides=overrides, out=tmp_path / "r").outcome
    of_round = {line["round"]: line["validation"] for line in lines(tmp_path / "r")}
    assert outcome.validation == of_round[outcome.best_round]
    assert json.loads((tmp_path / "r" / "result.json").read_text())["validation"] == outcome.validation
    assert outcome.as_json()["validation"] == outcome.validation


def test_validation_with_a_round_for_each_client_is_that_of_their_rounds(tmp_path: Path) -> None:
    overrides = [*BRIEF, "select=best-validation-per-client"]
    outcome = suture.run(GRAPH, "fedavg", clients=3, overrides=overrides, out=tmp_path / "r").outcome
    best = [max(scores) for scores in zip(*(line["client_validation"] for line in lines(tmp_path / "r")), strict=True)]
    assert outcome.validation == pytest.approx(sum(best) / 3, abs=1e-6)


def test_results_from_before_there_was_a_validation_score_can_be_read(tmp_path: Path) -> None:
    result = suture.run(GRAPH, "local", clients=3, overrides=BRIEF, out=tmp_path / "r")
    file = tmp_path / "r" / "result.json"
    content = json.loads(file.read_text())
    assert content.pop("validation") is not None
    file.write_text(json.dumps(content))
    read = read_outcome(tmp_path / "r")
    assert read is not None and read.validation is None
    assert read.accuracy_client_mean == result.outcome.accuracy_client_mean
    del content["method"]
    file.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match="not complete"):
        read_outcome(tmp_path / "r")
