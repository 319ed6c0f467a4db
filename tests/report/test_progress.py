from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from suture.core.progress import Step, work
from suture.report import progress
from suture.report.progress import how_far, state, watching
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


def test_runs_side_by_side_have_a_line_each() -> None:
    file = io.StringIO()
    with watching(Console(file=file, force_terminal=True, width=100, color_system=None), 2, quiet=False) as watch:
        for done in (3, 10):
            for method in ("fedsage", "fedprox"):
                watch(method, 0, tick(done))
                time.sleep(0.15)  # long enough to be drawn
    drawn, over = file.getvalue().split("1/2 fedsage seed 0: round 10/10", 1)
    assert drawn.rindex("2/2 fedprox seed 0") > drawn.rindex("1/2 fedsage seed 0") > 0  # both at once, one below the other
    assert "2/2 fedprox seed 0: round 10/10" in over


def screen(file: io.StringIO, terminal: bool, width: int = 80) -> Console:
    return Console(file=file, force_terminal=terminal, width=width, color_system=None)


@pytest.mark.parametrize("width", [80, 120])
def test_long_work_is_drawn_on_a_terminal_and_gone_when_it_is_done(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_UNSEEN", 0.0)
    file = io.StringIO()
    with watching(screen(file, True, width), 1, quiet=False), work("import", "reading tables", 4, "tables") as going:
        going.at("nodes.csv")
        going.advance()
        time.sleep(0.3)
    text = file.getvalue()
    assert "reading tables" in text and "nodes.csv" in text and "of 4 tables" in text
    assert max(len(line) for line in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()) <= width


def test_work_of_a_moment_does_not_flicker() -> None:
    file = io.StringIO()
    with watching(screen(file, True), 1, quiet=False), work("partition", "cutting"):
        pass
    assert "cutting" not in file.getvalue()


def test_in_a_pipe_work_is_silent_but_for_a_sign_of_life_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    with watching(screen(file, False), 1, quiet=False), work("download", "cora", 3e6, "bytes") as going:
        going.at("")
    assert file.getvalue() == ""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with watching(screen(file, False), 1, quiet=False), work("download", "cora", 3e6, "bytes"):
        pass
    assert file.getvalue() == "cora: 0 B of 3.00 MB, 0.0 s so far\n"


def test_quiet_work_is_silent_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_UNSEEN", 0.0)
    file = io.StringIO()
    with watching(screen(file, True), 1, quiet=True), work("download", "cora"):
        time.sleep(0.2)
    assert file.getvalue() == ""


def test_how_far_work_is_in_words() -> None:
    def step(done: float, total: float | None, unit: str, note: str = "") -> Step:
        return Step("import", "x", "going", done, total, unit, 6.0, note)

    assert how_far(step(1, 4, "tables", "nodes.csv")) == "1 of 4 tables, nodes.csv, 18 s left"
    assert how_far(step(2e6, 4e6, "bytes")) == "2.00 MB of 4.00 MB, 6.0 s left"
    assert how_far(step(0, None, "", "roughly 5 s to 20 s")) == "roughly 5 s to 20 s, 6.0 s so far"
