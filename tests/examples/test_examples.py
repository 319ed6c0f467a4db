"""Every example runs as its reader would run it, and what it prints is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output_of(script: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(output: str, heading: str) -> list[list[str]]:
    """The rows below a heading, cell by cell."""
    below = output[output.index(heading) :].split("\n\n")[0]
    return [line.split() for line in below.splitlines()[1:]]


def test_own_graph() -> None:
    output = output_of("own_graph.py")
    mean = {row[0]: float(row[1]) for row in table(output, "method")}
    worst = {row[0]: float(row[2]) for row in table(output, "method")}
    assert mean["local"] < mean["fedavg"] < mean["global"]
    # The example counts right predictions by itself: an owner after the other, they are what the library reported.
    counted = [float(row[1]) for row in table(output, "clinic ")]
    assert len(counted) == 3
    assert sum(counted) / 3 == pytest.approx(mean["fedavg"], abs=0.011)
    assert min(counted) == pytest.approx(worst["fedavg"], abs=0.011)
    patients = [[int(cell) for cell in row] for row in table(output, "patient")]
    assert len(patients) == 5
    assert all(0 <= clinic < 3 and 0 <= seen < 3 and 0 <= predicted < 3 for _, clinic, seen, predicted in patients)


def test_own_network() -> None:
    output = output_of("own_network.py")
    rows = table(output, "method")
    assert [row[0] for row in rows] == ["local", "fedavg", "fedper"]
    # Four classes of equal size: guessing is right in a quarter of all cases.
    assert all(40 < float(row[1]) <= 100 for row in rows)
    hidden, features, classes = 32, 200, 4
    by_hand = (features + 1) * hidden + 3 * (hidden + 1) * hidden + (2 * hidden + 1) * classes
    assert {int(row[2]) for row in rows} == {by_hand}
    found = re.search(r"JumpingGin on three new nodes: classes \[(.*)\]", output)
    assert found and all(0 <= int(number) < classes for number in found.group(1).split(","))


def test_read_a_run() -> None:
    output = output_of("read_a_run.py")
    assert output.startswith("fedavg on csbm:nodes=400, seed 0")
    curve = table(output, "round")
    assert [row[0] for row in curve] == ["1", "2", "3", "4", "5"]
    (reported,) = [row for row in curve if row[-1] == "reported"]
    assert float(reported[1]) == max(float(row[1]) for row in curve)
    counted, said = re.search(r"without evaluation: (\d+); the result says (\d+)", output).groups()  # type: ignore[union-attr]
    # Three clients, five rounds, a GCN: each model is at least its first layer, 500 words times 128 units of four bytes.
    assert int(counted) == int(said) > 3 * 5 * 500 * 128 * 4


def test_read_a_run_of_ones_own(tmp_path: Path) -> None:
    import suture

    run = tmp_path / "mine"
    suture.run("csbm:nodes=200", "fedper", clients=2, seed=3, overrides=["rounds=2"], out=run)
    assert output_of("read_a_run.py", str(run)).startswith("fedper on csbm:nodes=200, seed 3")


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w.]+\.py)\)", (EXAMPLES / "README.md").read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == listed
