"""Who looks at what: one reader for each run that somebody looks at, however many they are; none where nobody does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from suture.dashboard.curves import Course, courses_of
from suture.dashboard.index import Index
from suture.dashboard.rows import IS_AT_IT, Row
from suture.errors import ConfigError, SutureError

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LOOKS_AT_REST = 3.0
"""Nothing runs; something may be resumed."""
SHARE_OF_LOOKING, MOST_SECONDS_BETWEEN_LOOKS = 0.02, 10.0
"""Looking may take this share of the time, unless that would be seldom."""
SECONDS_BETWEEN_SIGNS = 15.0
"""A line that says nothing, so that proxies and browsers keep the stream."""
MOST_WAITING = 8
"""Events that one viewer may be behind; then it is told all anew."""
MOST_VIEWERS = 200

Event = dict[str, Any]


class TooMany(ConfigError):
    """More viewers than this program serves."""


class Reader:
    """What a stream tells: a first word for whoever comes, then what is new."""

    def first(self) -> Event:
        """All that has been read so far."""
        raise NotImplementedError

    def more(self) -> Event | None:
        """What is new; None: nothing."""
        raise NotImplementedError

    def at_rest(self) -> bool:
        """Whether nothing is going on."""
        raise NotImplementedError


class RunReader(Reader):
    """One run or comparison: its line of the list, and its curves."""

    def __init__(self, index: Index, id: str) -> None:
        self.index, self.id = index, id
        self.row = index.row(id)
        self.courses: list[Course] = []

    def first(self) -> Event:
        """The line and whole curves."""
        return {"row": self.row.as_json(), "runs": {course.name: course.whole() for course in self.courses}}

    def more(self) -> Event | None:
        """The line if it has changed, and new points."""
        before, self.row = self.row, self.index.row(self.id)
        found = courses_of(self.index.path(self.id), self.row)
        if [one.name for one in found] != [one.name for one in self.courses]:
            self.courses = found
        added: dict[str, Any] = {}
        for course in self.courses:
            anew, points = course.more()
            if anew:
                added[course.name] = course.whole() | {"anew": True}
            elif points:
                added[course.name] = {"method": course.method, "seed": course.seed, "points": points}
        if not added and before == self.row:
            return None
        return {"row": self.row.as_json(), "added": added}

    def at_rest(self) -> bool:
        """Whether no process is at it."""
        return self.row.standing not in IS_AT_IT


class ListReader(Reader):
    """The list: lines that have changed, and ids that are gone."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.known: dict[str, Row] = {}

    def first(self) -> Event:
        """Nothing but that it is listened to: pages of the list are asked for."""
        return {"rows": [], "gone": []}

    def more(self) -> Event | None:
        """What has changed."""
        before, self.known = self.known, {row.id: row for row in self.index.rows()}
        changed = [row.as_json() for id, row in self.known.items() if before.get(id) is not row and before.get(id) != row]
        gone = [id for id in before if id not in self.known]
        return {"rows": changed, "gone": gone} if changed or gone else None

    def at_rest(self) -> bool:
        """Whether nothing runs."""
        return not any(row.standing in IS_AT_IT for row in self.known.values())


@dataclass
class _Channel:
    """One reader and those who listen to it."""

    reader: Reader | None = None
    """None before the first of them."""
    listeners: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


@dataclass
class Hub:
    """All streams of a dashboard."""

    most: int = MOST_VIEWERS
    _channels: dict[str, _Channel] = field(default_factory=dict)
    viewers: int = 0

    async def stream(self, name: str, make: Callable[[], Reader]) -> AsyncIterator[bytes]:
        """Server-sent events for one viewer, until it goes."""
        if self.viewers >= self.most:
            raise TooMany(f"{self.most} pages listen already; close some of them")
        self.viewers += 1
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        channel = self._channels.setdefault(name, _Channel())
        try:
            async with channel.lock:
                if channel.reader is None:
                    channel.reader = await run_in_threadpool(make)
                reader = channel.reader
                await self._tell(channel, reader)  # what is new is new to those who listen already, too
                first = await run_in_threadpool(reader.first)
                channel.listeners.add(queue)
            self._channels.setdefault(name, channel)
            if channel.task is None:
                channel.task = asyncio.create_task(self._look(channel, reader))
            yield _written("first", first)
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), SECONDS_BETWEEN_SIGNS)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event is None:
                    return
                yield event
        finally:
            self.viewers -= 1
            self._leave(name, channel, queue)

    def _leave(self, name: str, channel: _Channel, queue: asyncio.Queue[bytes | None]) -> None:
        channel.listeners.discard(queue)
        if not channel.listeners:
            if channel.task is not None:
                channel.task.cancel()
                channel.task = None  # somebody may be coming at this moment
            if self._channels.get(name) is channel:
                del self._channels[name]

    async def _look(self, channel: _Channel, reader: Reader) -> None:
        """Tell everybody what is new, about once a second; less often where looking takes long, so that it costs little."""
        took = 0.0
        while channel.listeners:
            usual = SECONDS_BETWEEN_LOOKS_AT_REST if reader.at_rest() else SECONDS_BETWEEN_LOOKS
            await asyncio.sleep(max(usual, min(took / SHARE_OF_LOOKING, MOST_SECONDS_BETWEEN_LOOKS)))
            async with channel.lock:
                started = time.perf_counter()
                await self._tell(channel, reader)
                took = time.perf_counter() - started

    async def _tell(self, channel: _Channel, reader: Reader) -> None:
        """What is new, to everybody who listens."""
        try:
            event = await run_in_threadpool(reader.more)
        except SutureError as error:
            event = {"over": str(error)}
        if event is not None and channel.listeners:
            written = _written("more", event)  # once, however many there are
            for queue in list(channel.listeners):
                _hand(queue, written)

    def end(self) -> None:
        """Let every viewer go, so that the program can end."""
        for channel in self._channels.values():
            for queue in channel.listeners:
                _hand(queue, None)


def _hand(queue: asyncio.Queue[bytes | None], event: bytes | None) -> None:
    """A viewer that is too far behind is let go; its browser comes again and is told all."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _written(name: str, event: Event) -> bytes:
    return f"event: {name}\ndata: {json.dumps(event, separators=(',', ':'), allow_nan=False)}\n\n".encode()
