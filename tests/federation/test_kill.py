"""kill -9 of each party at random moments: after `resume` a run ends as if nothing had happened.

One run for each kind of victim, killed again and again: SUTURE_KILLS times (2 unless told).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, embedded, planned
from numpy.testing import assert_allclose

from suture.config.resolve import to_toml
from suture.runs.checkpoint import load_models

pytestmark = pytest.mark.federation
KILLS = int(os.environ.get("SUTURE_KILLS", "2"))
ROUNDS = 20 + 10 * KILLS
PATIENCE = 900.0


def made():
    return planned("fedper", 3, f"rounds={ROUNDS}", "model.hidden=16")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded(made(), tmp_path_factory.mktemp("embedded") / "run")


@dataclass
class Disturbed:
    """A run that a user starts, and resumes whenever the command says so."""

    federation: Loopback
    out: Path
    legs: int = 0
    said: list[str] = field(default_factory=list)
    command: subprocess.Popen[bytes] | None = None

    def go_on(self) -> bool:
        """Start the command if none is running; False once the run has come to its end."""
        if self.command is not None:
            code = self.command.poll()
            if code is None:
                return True
            assert self.command.stdout is not None
            self.said.append(self.command.stdout.read().decode())
            if code == 0:
                return False
            resumable = (self.out / "job.json").exists()
            assert ("federation resume" in self.said[-1]) == resumable, self.said[-1]
            self.federation.wait()
        self.legs += 1
        if (self.out / "job.json").exists():
            self.command = self.federation.suture("federation", "resume", str(self.out))
        else:
            kit, protocol = self.federation.kits["operator"], self.out.with_name("protocol.toml")
            protocol.write_text(to_toml(made().resolved))
            arguments = ["--kit", str(kit), "--method", "fedper", "--protocol", str(protocol), "--seed", "0"]
            self.command = self.federation.suture("federation", "run", *arguments, "--patience", "1", "--out", str(self.out))
        return True

    def leave(self) -> None:
        """Nothing of it goes on after the test."""
        if self.command is not None:
            self.command.kill()
            self.command.wait()

    def rounds(self) -> int:
        """As the coordinator's last checkpoint says."""
        try:
            run = json.loads((self.out / "order.json").read_text())["run"]
            folder = self.federation.kits["coordinator"] / "suture" / "runs" / run
            if (folder / "result.json").exists():
                return ROUNDS
            return int(json.loads((folder / "checkpoint" / "checkpoint.json").read_text())["progress"]["iteration"])
        except (FileNotFoundError, ValueError):
            return 0


def moment(chance: random.Random, run: Disturbed, before: int) -> None:
    """Until the next blow: some rounds later, in the middle of one, or, one time in five, while the job is starting."""
    end = time.monotonic() + PATIENCE
    if before and chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 15.0))
        return
    after = before + chance.randrange(1, 9)
    while run.rounds() < after:
        assert run.go_on(), "it ended before it could be disturbed"
        assert time.monotonic() < end, "the run does not go on"
        time.sleep(0.05)
    time.sleep(chance.uniform(0.0, 0.3))


def strike(chance: random.Random, victim: str, federation: Loopback) -> bool:
    name = "coordinator" if victim == "coordinator" else chance.choice(list(federation.owners))
    if victim == "owner's job process":
        process = federation.job_process(name)
        if process is not None:
            process.kill()
        return process is not None
    federation.kill(name)
    federation.start(name)
    return True


@pytest.mark.parametrize("victim", ["coordinator", "owner", "owner's job process"])
def test_kill(victim: str, federation: Loopback, undisturbed: Path, tmp_path: Path) -> None:
    chance, run = random.Random(victim), Disturbed(federation, tmp_path / "run")
    blows, begun = 0, time.monotonic()
    run.go_on()
    try:
        while blows < KILLS:
            moment(chance, run, run.rounds())
            blows += strike(chance, victim, federation)
            print(f"{victim}: blow {blows} after {run.rounds()} rounds, {time.monotonic() - begun:.0f} s", flush=True)
        end = time.monotonic() + PATIENCE
        while run.go_on():
            assert time.monotonic() < end, "the run does not come to its end"
            time.sleep(0.2)
    finally:
        run.leave()
    print(f"{victim}: {blows} blows, {run.legs} commands, {time.monotonic() - begun:.0f} s", flush=True)
    same_end(federation, run.out, undisturbed)


def same_end(federation: Loopback, out: Path, undisturbed: Path) -> None:
    ours, theirs = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (out, undisturbed)
    )
    assert [line["round"] for line in ours] == list(range(1, ROUNDS + 1)), "no round is lost or done twice"
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine["client_test"] == pytest.approx(expected["client_test"], abs=1e-5)
        assert mine["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    sent = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    updates = [line["ask"] for line in sent if line["step"] == "local_update" and line["direction"] == "up"]
    assert updates == list(range(1, ROUNDS + 1)), "no update is lost or counted twice"
    models, _ = load_models(undisturbed / "model.safetensors")
    run = json.loads((out / "order.json").read_text())["run"]
    for owner in federation.owners:
        mine, _ = load_models(federation.kits[owner] / "suture" / "runs" / run / "model.safetensors")
        for name, value in models[owner].items():
            assert_allclose(mine[owner][name].numpy(), value.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
