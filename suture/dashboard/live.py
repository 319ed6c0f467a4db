"""Who looks at what: one reader for each run that somebody looks at, however many they are; none where nobody does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
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
SHARE_OF_LOOKING, MOST_SECONDS_BETWEEN_LOOKS = 0.0025, 10.0
"""Looking and telling may take this share of a processor, unless that would be seldom: jobs need it more."""
SECONDS_BETWEEN_SIGNS = 15.0
"""After these comes a line that says nothing, so that proxies and browsers keep the stream."""
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
        before, self.row = self.row, self.index.row(self.id, SECONDS_BETWEEN_LOOKS / 2)
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
    first: bytes | None = None
    """What whoever comes is told, as long as nothing new was told after it."""
    listeners: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    users: int = 0
    """Those who listen, and those who are only coming."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    looked: float = 0.0
    told: float = 0.0
    """When it was looked at, and when anything was said, by the monotonic clock."""

    @property
    def pause(self) -> float:
        """Seconds from one look to the next, where looking costs nothing."""
        at_rest = self.reader is not None and self.reader.at_rest()
        return SECONDS_BETWEEN_LOOKS_AT_REST if at_rest else SECONDS_BETWEEN_LOOKS

    def tell(self, written: bytes) -> None:
        """Everybody who listens: the same bytes, however many there are."""
        self.told = time.monotonic()
        for queue in list(self.listeners):
            _hand(queue, written)


@dataclass
class Hub:
    """All streams of a dashboard, and one task that looks for all of them: a wake-up is dearer than what it finds."""

    most: int = MOST_VIEWERS
    _channels: dict[str, _Channel] = field(default_factory=dict)
    viewers: int = 0
    _task: asyncio.Task[None] | None = None

    async def stream(self, name: str, make: Callable[[], Reader]) -> AsyncIterator[bytes]:
        """Server-sent events for one viewer, until it goes."""
        if self.viewers >= self.most:
            raise TooMany(f"{self.most} pages listen already; close some of them")
        self.viewers += 1
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        channel = self._channels.setdefault(name, _Channel())
        channel.users += 1
        try:
            async with channel.lock:
                if channel.reader is None:
                    channel.reader = await run_in_threadpool(make)
                if channel.first is None:
                    await _look([channel])  # what is new is new to those who listen already, too
                    channel.first = _written("first", await run_in_threadpool(channel.reader.first))
                first = channel.first
                channel.listeners.add(queue)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look_on())
            yield first
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self.viewers -= 1
            channel.users -= 1
            channel.listeners.discard(queue)
            if not channel.users:
                del self._channels[name]

    async def _look_on(self) -> None:
        """Tell everybody what is new, about once a second; less often where that takes long, so that it costs little."""
        spent, earlier, mark = 0.0, 0.0, time.thread_time()
        while self._channels:
            usual = min(channel.pause for channel in self._channels.values())
            lasting = min(spent, earlier)  # who comes costs something, too, but only once
            await asyncio.sleep(max(usual, min(lasting / SHARE_OF_LOOKING, MOST_SECONDS_BETWEEN_LOOKS)))
            now = time.monotonic()
            channels = [one for _, one in sorted(self._channels.items()) if one.reader is not None]
            due = [one for one in channels if now - one.looked >= 0.9 * one.pause]
            async with AsyncExitStack() as held:
                for channel in due:
                    await held.enter_async_context(channel.lock)
                spent, earlier = await _look(due), spent
            for channel in channels:
                if now - channel.told > SECONDS_BETWEEN_SIGNS:
                    channel.tell(b": still here\n\n")
            mark, before = time.thread_time(), mark
            spent += mark - before

    def end(self) -> None:
        """Let every viewer go, so that the program can end."""
        for channel in self._channels.values():
            for queue in channel.listeners:
                _hand(queue, None)


async def _look(channels: Sequence[_Channel]) -> float:
    """Look at all of them, tell their listeners what is new; the seconds of processor time that it took."""

    def found() -> tuple[list[Event | None], float]:
        started = time.thread_time()
        events = [_more(channel.reader) for channel in channels if channel.reader is not None]
        return events, time.thread_time() - started

    events, spent = await run_in_threadpool(found)
    for channel, event in zip(channels, events, strict=True):
        channel.looked = time.monotonic()
        if event is not None:
            channel.first = None
            if channel.listeners:
                channel.tell(_written("more", event))
    return spent


def _more(reader: Reader) -> Event | None:
    try:
        return reader.more()
    except SutureError as error:
        return {"over": str(error)}


def _hand(queue: asyncio.Queue[bytes | None], event: bytes | None) -> None:
    """A viewer that is too far behind is let go; its browser comes again and is told all."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _written(name: str, event: Event) -> bytes:
    return f"event: {name}\ndata: {json.dumps(event, separators=(',', ':'), allow_nan=False)}\n\n".encode()
