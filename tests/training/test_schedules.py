"""The learning rate over the rounds: against torch's schedulers, in every method, and in resumed runs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import World, small, small_world
from torch.optim import lr_scheduler

import suture
from suture.core.message import Record
from suture.engines.embedded import EmbeddedCohort
from suture.errors import SutureError
from suture.methods import METHODS
from suture.settings import TrainingSettings
from suture.training.optimisers import in_round

ROUNDS = 12
SCHEDULES: dict[str, tuple[dict[str, Any], Any]] = {
    "constant": ({}, lambda sgd: lr_scheduler.ConstantLR(sgd, factor=1.0)),
    "cosine": ({"schedule": "cosine"}, lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, T_max=ROUNDS)),
    "step": (
        {"schedule": "step", "schedule_step": 5, "schedule_factor": 0.3},
        lambda sgd: lr_scheduler.StepLR(sgd, step_size=5, gamma=0.3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torchs_scheduler(name: str) -> None:
    fields, scheduler = SCHEDULES[name]
    settings = TrainingSettings(rounds=ROUNDS, lr=0.7, **fields)
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.7)
    theirs = scheduler(sgd)
    for number in range(1, ROUNDS + 1):
        assert in_round(settings, number).lr == pytest.approx(theirs.get_last_lr()[0], rel=1e-6)
        sgd.step()
        theirs.step()


def test_before_the_first_round_the_rate_is_the_first() -> None:
    settings = TrainingSettings(rounds=ROUNDS, lr=0.7, schedule="cosine")
    assert in_round(settings, 0) == in_round(settings, 1) == settings
    assert in_round(settings, ROUNDS + 5).lr == pytest.approx(0.0, abs=1e-12)


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def kept_by_clients(name: str, world: World, schedule: dict[str, Any]) -> list[Record]:
    """What clients keep before the last round, and after it."""
    no_steps_after_rounds = {"suture": {"seams": 0}, "adafgl": {"adapt_epochs": 0}}.get(name, {})
    method = small(METHODS[name], training={"optimizer": "sgd", **schedule}, **no_steps_after_rounds)
    cohort = EmbeddedCohort.start(method, world.graph_for(method), world.task)
    server, kept = method.init_server(world.task), []
    for phase in method.plan():
        for number in range(1, phase.times + 1):
            kept = [*cohort.states()]
            cohort.begin(phase.name, number)
            server = cohort.carry_out(phase.body, server)
    assert len(kept) == 1
    return [*kept, *cohort.states()]


@pytest.mark.parametrize("name", METHODS)
def test_the_schedule_reaches_the_training_of_every_method(name: str, world: World) -> None:
    """In the first of two rounds all is as without; in the second, with next to no learning rate, it is not."""
    falling = {"schedule": "step", "schedule_step": 1, "schedule_factor": 1e-6}
    still, last = kept_by_clients(name, world, falling)
    before, after = kept_by_clients(name, world, {})
    params = [path for path in after.tensors() if path.startswith("params.")]
    assert params
    first = max(float((still.tensors()[path] - before.tensors()[path]).abs().max()) for path in params)
    assert first == 0
    moved = sum(float((after.tensors()[path] - last.tensors()[path]).abs().sum()) for path in params)
    assert moved > 1e-3


def scheduled_run(folder: Path, *more: str, stops: tuple[int, ...] = ()) -> list[dict[str, object]]:
    """The lines of a run of seven rounds in which half of the clients sit out; it is stopped after some and resumed."""
    graph = "csbm:nodes=120,classes=3,features=20,degree=6.0,communities=3"
    overrides = ["rounds=7", "hidden=8", "optimizer=sgd", "momentum=0.9", "lr=0.5", "participation=0.5", *more]
    finished: list[int] = []

    def stop() -> bool:
        finished.append(len(finished) + 1)
        return finished[-1] in stops

    options = suture.Options(stop=stop)
    with pytest.raises(SutureError, match="stopped after round") if stops else nullcontext():
        suture.run(graph, "fedavg", clients=4, overrides=overrides, out=folder, options=options)
    for last in stops:
        with pytest.raises(SutureError, match="stopped after round") if last != stops[-1] else nullcontext():
            suture.resume(folder, options=options)
    (path,) = folder.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 8))
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_a_resumed_run_goes_on_with_the_rate_of_its_round(tmp_path: Path) -> None:
    undisturbed = scheduled_run(tmp_path / "undisturbed", "schedule=cosine")
    assert scheduled_run(tmp_path / "resumed", "schedule=cosine", stops=(2, 5)) == undisturbed
    assert scheduled_run(tmp_path / "constant") != undisturbed
