"""Runs on a local Ray: the numbers of one process; what cannot go there is refused."""

from __future__ import annotations

import dataclasses
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import suture
from suture import api
from suture.bench.on_ray import Ended, kept
from suture.core.forks import Died
from suture.errors import ConfigError, IntegrityError
from suture.methods.fedavg import FedAvg
from suture.runs.folder import read_asked

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
METHODS = ("local", "fedavg")
SAME = ("metrics.jsonl", "ledger.jsonl", "manifest.json", "config.toml", "evaluation.json", "model.safetensors", "run.json")


def _compare(out: Path | None, on: str | None, methods: Any = METHODS, **more: Any) -> api.Comparison:
    options = api.Options(on=on, **more)
    return suture.compare(GRAPH, methods, clients=4, seeds=(0, 1), rounds=3, out=out, options=options)


@pytest.mark.slow
def test_a_local_ray_gives_the_files_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(suture.__file__).parents[1]))  # of Ray's own processes
    alone, there = _compare(tmp_path / "alone", None), _compare(tmp_path / "ray", "ray")
    numbers = [[dataclasses.replace(one, seconds=0.0) for one in each.outcomes] for each in (alone, there)]
    assert numbers[0] == numbers[1] and alone.histories == there.histories
    assert read_asked(tmp_path / "ray") == read_asked(tmp_path / "alone")
    for run in (f"{method}-seed{seed}" for method in METHODS for seed in (0, 1)):
        for name in SAME:
            assert (tmp_path / "alone" / run / name).read_bytes() == (tmp_path / "ray" / run / name).read_bytes(), (
                run,
                name,
            )
    assert [one.method for one in suture.resume(tmp_path / "ray").outcomes] == ["local", "local", "fedavg", "fedavg"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from suture.bench import on_ray

    def carry(made: Any, graph: Any, cut: Any, folder: Path) -> None:
        if made == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        folder.mkdir()
        (folder / "result").write_text(made)

    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(suture.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    errands: Any = [on_ray.Errand(name, name, None) for name in ("lives", "dies", "lives on")]  # type: ignore[arg-type]
    graph: Any = None
    ends: list[Ended[Any]] = on_ray.carry_out(
        errands, graph, carry, on="ray", threads=1, ended=lambda end: None, stop=lambda: False
    )
    found = {end.name: end.result or end.error for end in ends}
    assert found["lives"] == {"result": b"lives"} and found["lives on"] == {"result": b"lives on"}
    assert isinstance(found["dies"], Died) and str(found["dies"]) == "dies was ended on Ray (WorkerCrashedError)"


@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"


def test_what_cannot_go_to_ray_is_refused() -> None:
    pytest.importorskip("ray")
    for asked, sentence in (
        ({"on": "slurm"}, "--on slurm is no place to compute; give ray"),
        ({"on": "ray", "jobs": 2}, "Ray decides itself how many runs it does at once; leave --jobs 2 out"),
        ({"on": "ray", "track": ("tensorboard",)}, "leave --track tensorboard out"),
        ({"on": "ray", "methods": (Mine,)}, "mine is your own code, which Ray's machines do not have"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            _compare(None, **asked)


def test_files_that_would_lie_elsewhere_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="in no run folder"), kept({"../outside": b""}, tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir())
    with kept({"a/b": b"content"}, tmp_path / "run") as folder:
        assert (folder / "a" / "b").read_bytes() == b"content"
