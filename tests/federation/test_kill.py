"""kill -9 of each party at random moments, and hanging it longer than a step may take: a run ends as if nothing had been.

One run for each kind of victim, struck again and again: SUTURE_KILLS times (2 unless told). Whoever operates the run reads
the name of an owner that was struck in the middle of it within seconds: SUTURE_NAMED_WITHIN (8 unless told; on a machine
that does nothing else it is less than five).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, embedded, planned
from numpy.testing import assert_allclose

from suture.config.resolve import to_toml
from suture.runs.checkpoint import load_models

pytestmark = pytest.mark.federation
KILLS = int(os.environ.get("SUTURE_KILLS", "2"))
MOST_ROUNDS_BETWEEN = 9
ROUNDS = 20 + 20 * KILLS
"""Enough for all blows: after one the run goes on for a moment before the next is prepared."""
PATIENCE = 900.0
NAMED_WITHIN = float(os.environ.get("SUTURE_NAMED_WITHIN", "8"))
STEP_SECONDS, HANGS = 10, 15.0
"""How long a step may take, and how long somebody hangs."""


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
    lines: list[tuple[float, str]] = field(default_factory=list)
    """All that the commands have printed, and when."""
    command: subprocess.Popen[bytes] | None = None
    begun: int = 0
    reader: threading.Thread | None = None

    def go_on(self) -> bool:
        """Start the command if none is running; False once the run has come to its end."""
        if self.command is not None:
            code = self.command.poll()
            if code is None:
                return True
            assert self.reader is not None
            self.reader.join()
            self.said.append("".join(line for _, line in self.lines[self.begun :]))
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
            faults = ["--patience", "1", "--step-timeout", str(STEP_SECONDS)]
            self.command = self.federation.suture("federation", "run", *arguments, *faults, "--out", str(self.out))
        self.begun, self.reader = len(self.lines), threading.Thread(target=self._read, args=[self.command])
        self.reader.start()
        return True

    def _read(self, command: subprocess.Popen[bytes]) -> None:
        assert command.stdout is not None
        for line in command.stdout:
            self.lines.append((time.monotonic(), line.decode()))

    def named(self, owner: str, since: float) -> float | None:
        """Seconds from then to the first line that names the owner."""
        end = since + NAMED_WITHIN
        while time.monotonic() < end:
            for when, line in list(self.lines):
                if when >= since and owner in line:
                    return when - since
            time.sleep(0.05)
        return None

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


def moment(chance: random.Random, run: Disturbed, before: int) -> bool:
    """Until the next blow: some rounds later, in the middle of one, or, one time in five, while the job is starting.

    Whether the run is under way at that moment.
    """
    end = time.monotonic() + PATIENCE
    if before and chance.random() < 0.2:
        end = time.monotonic() + chance.uniform(0.0, 15.0)
        while time.monotonic() < end and run.rounds() < before + MOST_ROUNDS_BETWEEN:  # a job that runs already runs on
            time.sleep(0.05)
        return False
    after = before + chance.randrange(1, MOST_ROUNDS_BETWEEN)
    while run.rounds() < after:
        assert run.go_on(), "it ended before it could be disturbed"
        assert time.monotonic() < end, "the run does not go on"
        time.sleep(0.05)
    time.sleep(chance.uniform(0.0, 0.3))
    return True


def strike(name: str, how: str, federation: Loopback) -> bool:
    """Kill or hang a party, or its job process alone; whether there was one."""
    if "job process" in how:
        process = federation.job_process(name)
        if process is not None:
            process.kill()
        return process is not None
    if how.startswith("hung"):
        parent = psutil.Process(federation.processes[name].pid)
        processes = [parent, *parent.children(recursive=True)]
        for one in processes:
            one.send_signal(signal.SIGSTOP)
        threading.Timer(HANGS, _wake, [processes]).start()
        return True
    federation.kill(name)
    return True


def _wake(processes: list[psutil.Process]) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "victim", ["coordinator", "coordinator's job process", "owner", "owner's job process", "hung owner", "hung coordinator"]
)
def test_kill(victim: str, federation: Loopback, undisturbed: Path, tmp_path: Path) -> None:
    chance, run = random.Random(victim), Disturbed(federation, tmp_path / "run")
    blows, begun = 0, time.monotonic()
    run.go_on()
    try:
        while blows < KILLS:
            under_way = moment(chance, run, run.rounds())
            name = "coordinator" if "coordinator" in victim else chance.choice(list(federation.owners))
            when = time.monotonic()
            struck = strike(name, victim, federation)
            blows += struck
            after = run.named(name, when) if struck and under_way and name != "coordinator" else None
            if "process" not in victim and not victim.startswith("hung"):
                federation.start(name)
            told = "" if after is None else f", named after {after:.1f} s"
            print(f"{victim}: blow {blows} after {run.rounds()} rounds, {when - begun:.0f} s{told}", flush=True)
            if struck and under_way and name != "coordinator":
                assert after is not None, f"nobody was told of {name}: {run.lines[-5:]}"
            if victim.startswith("hung"):
                time.sleep(max(0.0, HANGS + 1 - (time.monotonic() - when)))
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
