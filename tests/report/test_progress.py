from __future__ import annotations

import io

import pytest
from rich.console import Console

from suture.graph import carving
from suture.report.progress import state, watching
from suture.runs.outcome import Tick


def tick(done: int) -> Tick:
    return Tick("round", done, 10, 2.0 * done, {"loss": 0.4123}, 0.8123)


def test_state_names_round_loss_validation_and_time_left() -> None:
    assert state(tick(4)) == "round 4/10, loss 0.412, validation score 81.2 %, 12 s left"
    assert state(tick(10)) == "round 10/10, loss 0.412, validation score 81.2 %, 20 s"
    assert state(Tick("fit", 1, 2, 1.0, {})) == "fit 1/2, 1.0 s left"


def test_plain_lines_come_at_the_end_of_a_run_and_seldom_before() -> None:
    file = io.StringIO()
    with watching(Console(file=file, width=60), 2, quiet=False) as watch:
        for done in range(1, 11):
            watch("fedavg", 0, tick(done))
    assert file.getvalue() == "fedavg seed 0: round 10/10, loss 0.412, validation score 81.2 %, 20 s\n"


def test_quiet_prints_nothing() -> None:
    file = io.StringIO()
    with watching(Console(file=file, force_terminal=True), 1, quiet=True) as watch:
        watch("fedavg", 0, tick(10))
    assert file.getvalue() == ""


@pytest.mark.parametrize("width", [80, 120])
def test_live_line_fits_the_terminal_and_finished_runs_stay(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    with watching(console, 18, quiet=False) as watch:
        for method in ("fedsage", "fedprox"):
            for done in (1, 10):
                watch(method, 12, tick(done))
    text = file.getvalue()
    assert "1/18 fedsage seed 12: round 10/10" in text and "2/18 fedprox seed 12: round 10/10" in text
    assert "…" not in text


@pytest.mark.parametrize("quiet", [False, True])
def test_long_cuts_are_told_of(quiet: bool) -> None:
    file = io.StringIO()
    with watching(Console(file=file, width=60), 1, quiet=quiet):
        carving.log.info("cutting %s", "9 nodes with metis, roughly 1 s to 2 s")
    carving.log.info("not listened to any more")
    assert file.getvalue() == ("" if quiet else "cutting 9 nodes with metis, roughly 1 s to 2 s\n")
