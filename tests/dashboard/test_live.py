"""Curves that grow: every line once, one reader for all who look, and none for nobody."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dashboards import Serve

from suture.dashboard import live
from suture.dashboard.curves import Course, Tail, courses_of
from suture.dashboard.index import Index
from suture.runs.folder import METRICS
from suture.runs.pulse import FOLLOWED_LINES


def line(number: int, **more: object) -> bytes:
    told = {"phase": "round", "round": number, "loss": 1.0, "train": 0.1, "validation": 0.2, "test": 0.3, **more}
    return json.dumps(told).encode() + b"\n"


def test_every_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    tail = Tail(path)
    assert tail.more() == (False, [])
    path.write_bytes(line(1) + line(2)[:10])
    assert [one["round"] for one in tail.more()[1]] == [1]
    with path.open("ab") as file:
        file.write(line(2)[10:] + b"not JSON\n" + line(3))
    assert [one["round"] for one in tail.more()[1]] == [2, 3]
    assert tail.more() == (False, [])


@pytest.mark.parametrize("grown", [1, 5])
def test_a_file_that_was_cut_back_is_read_again(tmp_path: Path, grown: int) -> None:
    """A resumed run cuts off what came after its checkpoint, and may have grown past that before anybody looks again."""
    path = tmp_path / METRICS
    path.write_bytes(b"".join(line(number) for number in (1, 2, 3)))
    tail = Tail(path)
    tail.more()
    path.write_bytes(line(1) + b"".join(line(number, loss=9.5) for number in range(2, 2 + grown)))
    anew, lines = tail.more()
    assert anew and len(lines) == 1 + grown


def test_numbers_that_are_none(tmp_path: Path) -> None:
    content = line(1, validation=float("nan"), test=True, loss="x", train=10**400) + b'{"round": [1], "phase": {}}\n[1]\n'
    (tmp_path / METRICS).write_bytes(content)
    course = Course(tmp_path, "fedavg", 0)
    anew, points = course.more()
    assert not anew and points[0][3:] == [None] * 4 and len(points) == 2
    json.dumps(course.whole(), allow_nan=False)


def test_rounds_that_an_operator_only_heard_of(tmp_path: Path) -> None:
    course = Course(tmp_path, "fedavg", 0)
    (tmp_path / FOLLOWED_LINES).write_bytes(line(1, done=1) + line(4, done=4))
    assert [point[0] for point in course.more()[1]] == [1, 4]
    # The folder is brought home: now all rounds are known, and those that were heard of are not drawn twice.
    (tmp_path / METRICS).write_bytes(b"".join(line(number) for number in range(1, 7)))
    course.more()
    assert [point[0] for point in course.points] == [1, 2, 3, 4, 5, 6]


def _events(served: Any, path: str, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with served.browser.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for text in answer.iter_lines():
            if text.startswith("data: "):
                found.append(json.loads(text.removeprefix("data: ")))
                if len(found) == number:
                    return found
    return found


def test_a_stream_tells_all_and_then_what_is_new(serve: Serve, copied: Path) -> None:
    served = serve(copied)
    id = served.row("both")["id"]
    (first,) = _events(served, f"/api/runs/{id}/events", 1)
    assert set(first["runs"]) == {"local seed 0", "local seed 1", "fedavg seed 0", "fedavg seed 1"}
    lines = [json.loads(text) for text in (copied / "both" / "fedavg-seed1" / METRICS).read_text().splitlines()]
    drawn = first["runs"]["fedavg seed 1"]["points"]
    assert [point[6] for point in drawn] == [pytest.approx(one["test"], abs=1e-5) for one in lines]
    assert first["row"]["standing"] == "finished"


def test_too_many_viewers_are_sent_away(serve: Serve, copied: Path) -> None:
    served = serve(copied)
    served.dashboard.hub.most = 1
    id = served.row("one")["id"]
    with served.browser.stream("GET", f"/api/runs/{id}/events") as first:
        lines = first.iter_lines()
        assert next(lines) == "event: first"
        answer = served.get("/api/events")
        assert answer.status_code == 503 and "close some" in answer.json()["error"]
    while served.dashboard.hub.viewers:
        time.sleep(0.1)
    assert len(_events(served, "/api/events", 1)) == 1


def test_twenty_viewers_share_one_reader(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS_AT_REST", 0.05)
    index = Index(copied)
    id = next(row.id for row in index.rows() if row.name == "one")
    made: list[live.RunReader] = []

    def make() -> live.RunReader:
        made.append(live.RunReader(index, id))
        return made[-1]

    async def view(hub: live.Hub, points: list[int]) -> None:
        async with aclosing(hub.stream("run", make)) as events:
            async for raw in events:
                if not raw.startswith(b"event"):
                    continue
                event = json.loads(raw.split(b"data: ")[1])
                runs = event.get("runs") or event.get("added") or {}
                points += [point[0] for run in runs.values() for point in run["points"]]
                if points and points[-1] == 6:
                    return

    async def all_of_them() -> list[list[int]]:
        hub = live.Hub()
        seen: list[list[int]] = [[] for _ in range(20)]
        tasks = [asyncio.create_task(view(hub, points)) for points in seen]
        while hub.viewers < 20 or not all(seen):
            await asyncio.sleep(0.02)
        for number in (5, 6):
            with (copied / "one" / METRICS).open("ab") as file:
                file.write(line(number))
            await asyncio.sleep(0.2)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        await asyncio.sleep(0)
        assert hub.viewers == 0 and not hub._channels  # nobody looks, so nothing is read
        return seen

    seen = asyncio.run(all_of_them())
    assert seen == [[1, 2, 3, 4, 5, 6]] * 20
    assert len(made) == 1


@dataclass
class Costly(live.Reader):
    """Takes so many seconds of processor time for a look."""

    cost: float
    looks: int = 0
    firsts: int = 0

    def first(self) -> live.Event:
        self.firsts += 1
        return {}

    def more(self) -> live.Event:
        until = time.thread_time() + self.cost
        while time.thread_time() < until:
            pass
        self.looks += 1
        return {"looks": self.looks}

    def at_rest(self) -> bool:
        return False


@pytest.mark.parametrize(("cost", "seldom"), [(0.0, False), (0.02, True)])
def test_the_dearer_a_look_the_seldomer(monkeypatch: pytest.MonkeyPatch, cost: float, seldom: bool) -> None:
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(live, "SHARE_OF_LOOKING", 0.02)
    reader = Costly(cost)

    async def view() -> None:
        async with aclosing(live.Hub().stream("one", lambda: reader)) as events:
            async for _ in events:
                pass

    async def a_while() -> None:
        task = asyncio.create_task(view())
        await asyncio.sleep(3)
        task.cancel()

    asyncio.run(a_while())
    # A look of 20 ms may be had every second; one that costs nothing comes twenty times as often.
    assert (reader.looks < 8) == seldom and reader.looks > 1


def test_who_comes_when_nothing_is_new_gets_what_is_written_already() -> None:
    reader = Costly(0.0)
    reader.more = lambda: None  # type: ignore[method-assign,assignment]

    async def come(hub: live.Hub, everybody: asyncio.Barrier) -> bytes:
        async with aclosing(hub.stream("one", lambda: reader)) as events:
            first = await anext(events)
            await everybody.wait()
            return first

    async def all_of_them() -> list[bytes]:
        hub, everybody = live.Hub(), asyncio.Barrier(20)
        return await asyncio.gather(*(come(hub, everybody) for _ in range(20)))

    assert len(set(asyncio.run(all_of_them()))) == 1 and reader.firsts == 1


def test_which_runs_a_folder_has(copied: Path) -> None:
    index = Index(copied)
    rows = {row.name: row for row in index.rows()}
    assert [course.name for course in courses_of(copied / "both", rows["both"])] == [
        "local seed 0",
        "local seed 1",
        "fedavg seed 0",
        "fedavg seed 1",
    ]
    assert [course.name for course in courses_of(copied / "one", rows["one"])] == ["fedavg seed 0"]
