"""Owners know the number of the round: a schedule is the same over the network, embedded, and after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from pipes import Piped

import pytest
from test_faults import DATASET, OWNERS, QUICK, coordinator, metrics, ordered, planned, shards  # noqa: F401

import suture

TRAINING = ("optimizer=sgd", "momentum=0.9", "lr=0.5", "participation=0.67")
FALLING = ("schedule=step", "schedule_step=2", "schedule_factor=0.01")
ROUNDS = 6


def over_pipes(folder: Path, shards: Path, *more: str, killed_at_call: int = 0) -> list[dict[str, object]]:  # noqa: F811
    """The lines of a run whose owners are processes; one of them may be killed on the way, and the run resumed."""
    transport = Piped(folder / "owners", OWNERS, shards)
    plain, calls, killed = transport.call, 0, []

    def killing(owner: str, request: bytes, timeout: float) -> bytes:
        nonlocal calls
        calls += 1
        if calls == killed_at_call:
            transport.kill(owner)
            killed.append(owner)
        return plain(owner, request, timeout)

    transport.call = killing  # type: ignore[method-assign]
    try:
        # Without patience: an owner that has begun anew must be opened again, which only a resumed run does.
        order = ordered(planned("fedavg", ROUNDS, *TRAINING, *more), replace(QUICK, patience=0.0))
        finished = coordinator(order, folder, transport).carry_on()
        assert (finished is None) == bool(killed_at_call)
        for owner in killed:
            transport.start(owner)
            assert coordinator(order, folder, transport).carry_on() is not None
    finally:
        transport.close()
    return metrics(folder)


def embedded(folder: Path, *more: str) -> list[dict[str, object]]:
    overrides = [f"rounds={ROUNDS}", "model.hidden=8", *TRAINING, *more]
    suture.run(DATASET, "fedavg", clients=3, overrides=overrides, out=folder)
    (path,) = folder.rglob("metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(lines: list[dict[str, object]]) -> list[float]:
    return [float(str(line["loss"])) for line in lines]


def test_the_rate_of_a_round_is_the_same_over_the_network(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    here = losses(embedded(tmp_path / "here", *FALLING))
    there = over_pipes(tmp_path / "there", shards, *FALLING)
    assert losses(there) == pytest.approx(here, rel=1e-4)
    assert losses(embedded(tmp_path / "constant")) != pytest.approx(here, rel=1e-2)
    assert over_pipes(tmp_path / "killed", shards, *FALLING, killed_at_call=13) == there
