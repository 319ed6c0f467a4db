"""Runs as the tools' own readers see them, against metrics.jsonl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import suture
from suture.cli import main
from suture.errors import ConfigError, IntegrityError
from suture.runs.loop import Interrupted
from suture.trackers import tracking
from suture.trackers.tracker import numbers_in

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
CLIENTS = ("client-00", "client-01", "client-02")
Curves = dict[str, list[tuple[int, float]]]


def expected(run: Path) -> Curves:
    """From metrics.jsonl, by hand."""
    curves: Curves = {}
    for step, text in enumerate((run / "metrics.jsonl").read_text().splitlines(), start=1):
        line = json.loads(text)
        for name in ("loss", "train", "validation", "test", "validation_loss"):
            curves.setdefault(name, []).append((step, line[name]))
        for name in ("client_validation", "client_test"):
            for client, value in zip(CLIENTS, line[name], strict=True):
                curves.setdefault(f"{name}/{client}", []).append((step, value))
    return curves


def tensorboard(folder: Path, run: Path) -> Curves:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / f"{GRAPH_LABEL}/{run.name}"), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in reader.Tags()["scalars"] if not tag.startswith("result/")]
    return {tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in tags}


def mlflow(folder: Path, run: Path) -> Curves:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("suture").experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["training.rounds"] == "6"
    names = [name for name in found.data.metrics if not name.startswith("result/")]
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)] for name in names
    }


def wandb(folder: Path, run: Path) -> Curves:
    pytest.importorskip("wandb")
    from suture.trackers.wandb import history

    curves: Curves = {}
    for step, values in history(folder, json.loads((run / "tracking.json").read_text())["wandb"]):
        for name, value in values.items():
            if not name.startswith("_"):
                curves.setdefault(name, []).append((step, value))
    return curves


READERS: dict[str, Callable[[Path, Path], Curves]] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
GRAPH_LABEL = "csbm"


def same(found: Curves, run: Path) -> None:
    wanted = expected(run)
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name


@pytest.mark.trackers
@pytest.mark.parametrize("name", READERS)
def test_every_number_of_a_stopped_and_resumed_run_is_there_once(name: str, tmp_path: Path) -> None:
    """Stopped after its fourth round: what comes after goes on in the same tracked run."""
    pytest.importorskip(name)
    run, rounds = tmp_path / "run", 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds == 4

    options = suture.Options(track=[f"{name}:{tmp_path / 'logs'}"], stop=stop)
    with pytest.raises(Interrupted):
        suture.run(GRAPH, rounds=6, clients=3, out=run, options=options)
    suture.resume(run, options=suture.Options(track=[f"{name}:{tmp_path / 'logs'}"]))
    same(READERS[name](tmp_path / "logs", run), run)


KILLED = """
import os, sys, suture
rounds = []

def watch(method, seed, tick):
    rounds.append(tick)
    if len(rounds) == 4:
        os.kill(os.getpid(), 9)

options = suture.Options(track=[f"{sys.argv[1]}:{sys.argv[2]}/logs"], watch=watch)
suture.run(sys.argv[3], rounds=6, clients=3, out=f"{sys.argv[2]}/run", options=options)
"""


@pytest.mark.trackers
@pytest.mark.parametrize("name", READERS)
def test_a_killed_run_goes_on_without_a_gap_or_a_double_point(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    # W&B's process of its own is one for this process and its children; a user's killed run takes its own along.
    alone = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    command = [sys.executable, "-c", KILLED, name, str(tmp_path), GRAPH]
    done = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert done.returncode == -9, done.stderr
    suture.resume(tmp_path / "run", options=suture.Options(track=[f"{name}:{tmp_path / 'logs'}"]))
    same(READERS[name](tmp_path / "logs", tmp_path / "run"), tmp_path / "run")


@pytest.mark.trackers
def test_the_command_line_tracks_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    small = ("--dataset", GRAPH, "--clients", "3", "--set", "rounds=2", "--methods", "local,fedavg", "--seeds", "0,1")
    assert main(["compare", *small, "--out", "runs/first", "--track", "tensorboard", "--quiet"]) == 0
    found = sorted(path.name for path in (tmp_path / "runs" / "tensorboard" / "first").iterdir())
    assert found == ["fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1"]
    reader = EventAccumulator(str(tmp_path / "runs/tensorboard/first/fedavg-seed1")).Reload()
    result = json.loads((tmp_path / "runs/first/fedavg-seed1/result.json").read_text())
    (point,) = reader.Scalars("result/accuracy_client_mean")
    assert point.value == pytest.approx(result["accuracy_client_mean"])


class Broken(tracking.Tracker):
    """Fails when it is told to; a real one with a full disk does."""

    name, extra = "tensorboard", "tensorboard"
    when = "begin"

    def begin(self, run: Any) -> str:
        self._fail("begin")
        return "x"

    def log(self, step: int, values: Any) -> None:
        self._fail("log")

    def end(self, finished: bool, results: Any) -> None:
        self._fail("end")

    def _fail(self, when: str) -> None:
        if self.when == when:
            raise OSError("No space left on device")


@pytest.mark.parametrize("when", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_one_sentence_and_the_run_goes_on(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("Broken", (Broken,), {"when": when})
    monkeypatch.setattr(tracking, "TRACKERS", {"json": kind})  # a module that is there
    said: list[str] = []
    monkeypatch.setattr(kind, "name", "json")
    options = suture.Options(track=["json"], warn=said.append)
    result = suture.run(GRAPH, rounds=3, clients=3, out=tmp_path / "run", options=options)
    assert result.outcome.rounds == 3
    assert said == ["json does not track this run any further (No space left on device); the run goes on"]


def test_what_there_is_not_is_refused_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for track, why in ((["tensorbord"], "unknown tracker 'tensorbord'"), (["absent_module"], "is not installed")):
        monkeypatch.setattr(tracking, "TRACKERS", {"absent_module": type("A", (Broken,), {"name": "absent_module"})})
        with pytest.raises(ConfigError, match=why):
            suture.run(GRAPH, rounds=3, clients=3, out=tmp_path / "run", options=suture.Options(track=track))
    assert not (tmp_path / "run").exists()


@pytest.mark.trackers
def test_a_hostile_record_of_trackers_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    suture.run(GRAPH, rounds=2, clients=3, out=tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    said: list[str] = []
    options = suture.Options(track=[f"tensorboard:{tmp_path / 'logs'}"], warn=said.append)
    (tmp_path / "run" / "tracking.json").write_text('{"tensorboard": "../elsewhere"}')
    suture.resume(tmp_path / "run", options=options)
    assert len(said) == 1 and "leads out of" in said[0] and not (tmp_path / "elsewhere").exists()
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "tracking.json").write_text('{"tensorboard": 3}')
    with pytest.raises(IntegrityError, match=r"tracking\.json is damaged"):
        suture.resume(tmp_path / "run", options=options)


def test_numbers_of_a_line_have_the_names_of_their_clients() -> None:
    line = {"phase": "round", "round": 1, "loss": 0.5, "test": None, "client_test": [0.1, None], "suspicion": {"a": 1}}
    assert numbers_in(line, ("x", "y")) == {"loss": 0.5, "client_test/x": 0.1, "suspicion/a": 1.0}
    assert numbers_in(line) == {"loss": 0.5, "client_test/0": 0.1, "suspicion/a": 1.0}
