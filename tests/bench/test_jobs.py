"""Comparisons with several runs side by side: the same files as one process writes, whatever happens to some of them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import suture
from suture import api
from suture.core.forks import Died
from suture.errors import ConfigError, SutureError
from suture.methods.fedavg import FedAvg
from suture.runs.folder import is_begun, read_asked, read_outcome
from suture.runs.outcome import Tick

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
METHODS = ("local", "fedavg", "global")
SAME = ("metrics.jsonl", "ledger.jsonl", "manifest.json", "config.toml", "evaluation.json", "model.safetensors", "run.json")


def _compare(out: Path | None, jobs: int, methods: Any = METHODS, rounds: int = 4, **more: Any) -> api.Comparison:
    options = api.Options(jobs=jobs, **more)
    return suture.compare(GRAPH, methods, clients=4, seeds=(0, 1), rounds=rounds, out=out, options=options)


def _without_times(comparison: api.Comparison) -> list[object]:
    return [dataclasses.replace(outcome, seconds=0.0) for outcome in comparison.outcomes]


def _assert_same_files(one: Path, other: Path) -> None:
    runs = sorted(path.parent.name for path in one.glob("*/result.json"))
    assert runs and runs == sorted(path.parent.name for path in other.glob("*/result.json"))
    for run in runs:
        for name in SAME:
            assert (one / run / name).read_bytes() == (other / run / name).read_bytes(), (run, name)


def test_side_by_side_every_file_and_number_is_that_of_one_process(tmp_path: Path) -> None:
    ticks: dict[tuple[str, int], list[int]] = {}

    def watch(method: str, seed: int, tick: Tick) -> None:
        ticks.setdefault((method, seed), []).append(tick.done)

    alone, together = _compare(tmp_path / "alone", 1), _compare(tmp_path / "together", 3, watch=watch)
    assert _without_times(alone) == _without_times(together)
    assert alone.histories == together.histories
    _assert_same_files(tmp_path / "alone", tmp_path / "together")
    assert read_asked(tmp_path / "together") == read_asked(tmp_path / "alone")
    assert ticks == {(method, seed): [1, 2, 3, 4] for method in METHODS for seed in (0, 1)}
    assert json.loads((tmp_path / "together" / "progress.json").read_text())["at_once"] == 3


def test_without_a_folder_the_numbers_come_back_too() -> None:
    assert _without_times(_compare(None, 2, ("local", "fedavg"))) == _without_times(_compare(None, 1, ("local", "fedavg")))


def test_threads_are_divided_among_jobs_and_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        _compare(tmp_path / "divided", 2, ("local", "fedavg"), 1)
        assert torch.get_num_threads() == 4
        _compare(tmp_path / "given", 2, ("local", "fedavg"), 1, threads=1)
    finally:
        torch.set_num_threads(before)
    for run in (tmp_path / "divided", tmp_path / "divided" / "fedavg-seed1"):
        assert read_asked(run).threads == 2
    assert read_asked(tmp_path / "given" / "local-seed0").threads == 1


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Dies of the second seed, as if memory had been used up."""

    name: ClassVar[str] = "fragile"

    def init_server(self, task: Any) -> Any:
        if task.seed == 1 and type(self) is Fragile:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().init_server(task)


@dataclass(frozen=True)
class Mended(Fragile):
    name: ClassVar[str] = "fragile"


def test_a_run_that_is_killed_is_named_and_all_others_are_kept(tmp_path: Path) -> None:
    with pytest.raises(Died) as caught:
        _compare(tmp_path, 2, ("local", Fragile, "fedavg"))
    assert str(caught.value) == (
        "fragile seed 1 was ended by SIGKILL, as the system does when memory is used up; all other runs are kept"
    )
    names = [f"{method}-seed{seed}" for method in ("local", "fragile", "fedavg") for seed in (0, 1)]
    assert [read_outcome(tmp_path / name) is not None for name in names] == [True, True, True, False, True, True]
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert progress["state"] == "failed" and progress["reason"].startswith("fragile seed 1 was ended")

    resumed = suture.resume(tmp_path, methods=[Mended], options=api.Options(jobs=2))
    whole = _compare(None, 1, ("local", Mended, "fedavg"))
    assert _without_times(resumed) == _without_times(whole)


@dataclass(frozen=True)
class Refusing(FedAvg):
    name: ClassVar[str] = "refusing"

    def init_server(self, task: Any) -> Any:
        raise ConfigError("refusing refuses everything; choose another method")


@dataclass(frozen=True)
class Broken(FedAvg):
    name: ClassVar[str] = "broken"

    def init_server(self, task: Any) -> Any:
        raise ZeroDivisionError("by hand")


def test_errors_of_runs_say_whose_they_are(tmp_path: Path) -> None:
    sentence = (
        "^refusing seed 0: refusing refuses everything; choose another method; 1 more failed; all other runs are kept$"
    )
    with pytest.raises(ConfigError, match=sentence):
        _compare(tmp_path / "refused", 2, ("local", Refusing))
    with pytest.raises(ZeroDivisionError, match="by hand") as caught:
        _compare(None, 2, ("local", Broken))
    assert "in broken seed 0" in caught.value.__notes__ and "init_server" in caught.value.__notes__[0]


def test_what_cannot_be_done_side_by_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="jobs must be a whole number from 1 on, got 0"):
        _compare(None, 0)
    with pytest.raises(SutureError, match="not on meta"):
        _compare(None, 2, device="meta")


def _begun(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line, training."""
    command = [sys.executable, "-m", "suture", *arguments, "--jobs", "2", "-q"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    until = time.monotonic() + 600
    while not _trains(out) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    return process


def _trains(out: Path) -> bool:
    """Two runs have rounds behind them that were not there before the process."""
    grown = [
        path for path in out.glob("*/metrics.jsonl") if path.stat().st_size and not (path.parent / "result.json").exists()
    ]
    return is_begun(out) and len(grown) >= 2


def test_interrupted_and_killed_a_comparison_goes_on_without_loss(tmp_path: Path) -> None:
    out, asked = tmp_path / "stopped", ("--dataset", GRAPH, "--clients", "4", "--seeds", "0,1", "--set", "rounds=80")
    process = _begun(out, "compare", *asked, "--methods", "local,fedavg", "--threads", "1", "--out", str(out))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process at once
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "stopped after round" in said and f"continue with: suture resume {out}" in said
    assert "Traceback" not in said

    process = _begun(out, "resume", str(out))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=600)

    suture.resume(out, options=api.Options(jobs=2))
    _compare(tmp_path / "whole", 1, ("local", "fedavg"), 80)
    _assert_same_files(tmp_path / "whole", out)
