"""`--threads auto`: what is chosen is set, said, kept in the run folder and used again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suture.commands.options import threads_of
from suture.core.threads import Chosen, choose
from suture.errors import ConfigError

SMALL = ("--dataset", "csbm:nodes=300", "--clients", "3", "--set", "rounds=2")


def suture(*arguments: str | Path, allowed: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(allowed)}
    command = [sys.executable, "-m", "suture", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core there is nothing to choose")
def test_the_choice_is_said_and_kept_and_gone_on_with(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = suture("run", *SMALL, "--out", run, allowed=2).stderr
    found = re.search(r"computing with (\d+) threads?: ", said)
    assert found is not None, said
    chosen = int(found[1])
    assert chosen in (1, 2)
    assert json.loads((run / "run.json").read_text())["threads"] == chosen
    assert "computing with" not in suture("resume", run, allowed=2).stderr  # nothing is chosen anew


def test_a_number_that_was_given_is_taken(tmp_path: Path) -> None:
    said = suture("run", *SMALL, "--threads", "2", "--out", tmp_path / "run", allowed=1).stderr
    assert "computing with" not in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["threads"] == 2


def test_what_is_chosen_is_set_and_never_more_than_allowed() -> None:
    before = torch.get_num_threads()
    try:
        for allowed in (1, 2):
            torch.set_num_threads(allowed)
            chosen = choose()
            assert chosen.threads == torch.get_num_threads() <= min(allowed, len(os.sched_getaffinity(0)))
        torch.set_num_threads(2)
        assert choose(jobs=2) == Chosen(1, 1, 1.0)  # a core each: nothing to measure
    finally:
        torch.set_num_threads(before)


def test_sentences() -> None:
    assert Chosen(1, 2, 0.31).sentence().startswith("computing with 1 thread: 2 were 0.31 times as fast as 1;")
    assert Chosen(4, 8, 2.5).sentence().startswith("computing with 4 threads: just now 2.50 times as fast as 1;")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "two", "1025", "AUTO"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--threads must be auto or a whole number from 1"):
        threads_of(text)
    assert (threads_of("auto"), threads_of("3")) == (None, 3)
