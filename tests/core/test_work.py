"""Work says how far it is, to whoever listens."""

from __future__ import annotations

import threading

import pytest

from suture.core import progress
from suture.core.progress import Step, each, listening, work


def told(step: Step) -> tuple[str, str, float, float | None, str]:
    return step.work, step.state, step.done, step.total, step.note


def test_a_listener_hears_the_beginning_the_steps_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_STEPS", 0.0)
    heard: list[Step] = []
    with listening(heard.append), work("download", "cora", total=3, unit="bytes") as going:
        going.advance()
        going.advance(2, "its last file")
    assert [told(step) for step in heard] == [
        ("download", "begun", 0, 3, ""),
        ("download", "going", 1, 3, ""),
        ("download", "going", 3, 3, "its last file"),
        ("download", "ended", 3, 3, "its last file"),
    ]
    assert len({step.key for step in heard}) == 1 and all(step.what == "cora" for step in heard)


def test_steps_in_quick_succession_are_heard_together_and_the_end_always() -> None:
    heard: list[Step] = []
    with listening(heard.append), work("import", "nodes.csv", unit="rows") as going:
        for _ in range(100_000):
            going.advance()
    assert len(heard) < 1000
    assert heard[-1].state == "ended" and heard[-1].done == 100_000


def test_failed_work_says_so_and_the_error_goes_on() -> None:
    heard: list[Step] = []
    with pytest.raises(ZeroDivisionError), listening(heard.append), work("partition", "a cut"):
        raise ZeroDivisionError
    assert [step.state for step in heard] == ["begun", "failed"] and heard[-1].over


def test_every_item_is_named_before_its_turn() -> None:
    heard: list[Step] = []
    with listening(heard.append):
        for item in each("attack", "all attacks", ("links", "rows"), unit="attacks"):
            assert told(heard[-1]) == ("attack", "going", len(heard) - 2, 2, item)
    assert told(heard[-1]) == ("attack", "ended", 2, 2, "rows")


def test_nobody_hears_what_is_done_outside_or_in_another_thread() -> None:
    heard: list[Step] = []

    def elsewhere() -> None:
        with work("download", "elsewhere"):
            pass

    with work("download", "before"):
        pass
    with listening(heard.append):
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    with work("download", "after"):
        pass
    assert heard == []


def test_several_listeners_hear_the_same() -> None:
    first: list[Step] = []
    second: list[Step] = []
    with listening(first.append), listening(second.append), work("tuning", "lr"):
        pass
    assert first == second != []


def test_time_left_follows_the_pace_and_is_unknown_without_a_total() -> None:
    def step(done: float, total: float | None) -> Step:
        return Step("import", "rows", "going", done, total, "rows", 6.0)

    assert step(2, 8).seconds_left == pytest.approx(18.0)
    assert step(8, 8).seconds_left == 0
    assert step(0, 8).seconds_left is step(2, None).seconds_left is None
