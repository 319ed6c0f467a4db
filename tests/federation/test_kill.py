"""kill -9 of each party at random moments: after `resume` every run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, embedded, planned, running

from suture.config import to_toml

pytestmark = pytest.mark.federation
MOMENTS = int(os.environ.get("SUTURE_KILLS", "2"))
ROUNDS = 60


def made():
    return planned("fedper", 3, f"rounds={ROUNDS}", "model.hidden=16")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("federation")
    (folder / "protocol.toml").write_text(to_toml(made().resolved))
    with running(made(), folder) as parties:
        yield parties


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded(made(), tmp_path_factory.mktemp("embedded") / "run")


def rounds_done(federation: Loopback, run: str) -> int:
    """As the coordinator's last checkpoint says."""
    pointer = federation.kits["coordinator"] / "suture" / "runs" / run / "checkpoint" / "checkpoint.json"
    try:
        return int(json.loads(pointer.read_text())["progress"]["iteration"])
    except (FileNotFoundError, ValueError):
        return 0


def _metrics(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("victim", ["coordinator", "owner", "owner's job process"])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_kill(victim: str, moment: int, federation: Loopback, undisturbed: Path, tmp_path: Path) -> None:
    chance = random.Random(f"{victim} {moment}")
    after, out = chance.randrange(0, ROUNDS - 5), tmp_path / "run"
    running = federation.suture(
        *("federation", "run", "--kit", str(federation.kits["operator"]), "--method", "fedper", "--patience", "1"),
        *("--protocol", str(federation.folder / "protocol.toml"), "--seed", "0", "--out", str(out)),
    )
    end = time.monotonic() + 400
    while not (out / "order.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    run = json.loads((out / "order.json").read_text())["run"]
    while rounds_done(federation, run) <= after and time.monotonic() < end and running.poll() is None:
        time.sleep(0.01)
    assert running.poll() is None, (
        running.stdout and running.stdout.read().decode()
    ) or "ended before it could be disturbed"
    name = "coordinator" if victim == "coordinator" else chance.choice(list(federation.owners))
    if victim == "owner's job process":
        process = federation.job_process(name)
        assert process is not None
        process.kill()
    else:
        federation.kill(name)
        time.sleep(2)
        federation.start(name)
    printed, _ = running.communicate(timeout=400)
    if running.returncode != 0:
        assert b"federation resume" in printed, printed.decode()
        federation.wait()
        code, text = federation.run("federation", "resume", str(out))
        assert code == 0, text
    ours, theirs = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (out, undisturbed)
    )
    assert [line["round"] for line in ours] == list(range(1, ROUNDS + 1)), "no round is lost or done twice"
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine["client_test"] == pytest.approx(expected["client_test"], abs=1e-5)
        assert mine["loss"] == pytest.approx(expected["loss"], abs=1e-5)
