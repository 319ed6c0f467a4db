"""A command resolves its configuration once, whatever it does with the plan."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import suture
from suture.cli import main
from suture.config.resolve import resolve
from suture.runs.plan import plan_as_written

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
SMALL = ["--dataset", GRAPH, "--clients", "3", "--set", "rounds=2", "--set", "hidden=8", "--quiet"]


@contextmanager
def counted(*functions: Callable[..., object]) -> Iterator[Counter[str]]:
    """How often these functions are entered, as the interpreter sees it."""
    codes = {function.__code__: function.__name__ for function in functions}
    calls: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            calls[codes[frame.f_code]] += 1

    sys.setprofile(trace)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--methods", "local,fedavg", "--seeds", "0,1"],
        ["run", "--method", "local"],
        ["compare", "--methods", "local,fedavg", "--dry-run"],
    ],
    ids=["compare", "run", "dry-run"],
)
def test_one_plan_and_one_resolve(command: list[str], tmp_path: Path) -> None:
    with counted(plan_as_written, resolve) as calls:
        assert main([*command, *SMALL, "--out", str(tmp_path / "r")]) == 0
    assert calls == {"plan_as_written": 1, "resolve": 1}


def test_resume_reads_its_plan_once(tmp_path: Path) -> None:
    out = tmp_path / "r"
    assert main(["compare", "--methods", "local,fedavg", "--seeds", "0", *SMALL, "--out", str(out)]) == 0
    (out / "fedavg-seed0" / "result.json").unlink()
    with counted(plan_as_written, resolve) as calls:
        assert main(["resume", str(out), "--quiet"]) == 0
    assert calls == {"plan_as_written": 1, "resolve": 1}


def test_the_python_interface_plans_once() -> None:
    with counted(plan_as_written, resolve) as calls:
        suture.compare(GRAPH, ["local", "fedavg"], clients=3, seeds=[0, 1], overrides=["rounds=1", "hidden=8"])
    assert calls == {"plan_as_written": 1, "resolve": 1}
