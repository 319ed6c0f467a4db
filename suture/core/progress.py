"""How far long work is: whoever works says so, whoever listens hears it, and neither knows the other.

    with work("download", "cora", total=size, unit="bytes") as going:
        going.advance(len(chunk))

    for attack in each("attack", "all attacks", attacks, unit="attacks"):
        ...

    with listening(show):       # `show` is called with a `Step` now and then, and always at the beginning and at the end
        anything_long()

Listening holds for the code inside its `with`, in its own thread. With nobody listening, telling costs next to nothing. It
reaches the listener past the functions in between, as `logging` does: readers of files and cutters of graphs would otherwise
all have to hand a listener on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeVar

State = Literal["begun", "going", "ended", "failed"]
SECONDS_BETWEEN_STEPS = 0.1
"""A listener hears of one work at most so often, apart from its beginning and its end."""

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """How far one piece of work is."""

    work: str
    """What kind of work: download, import, partition, pilot, attack, audit, ... a word for programs."""
    what: str
    """Of what, in words."""
    state: State
    done: float
    total: float | None
    """None: nobody knows how much there is."""
    unit: str
    """What is counted: bytes, rows, owners, ...; empty: parts of the whole."""
    seconds: float
    """Since its beginning."""
    note: str = ""
    """What it is at, in words."""
    key: int = 0
    """The same for all steps of one piece of work, while it lasts."""

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; None: nobody knows."""
        if self.total is None or not 0 < self.done <= self.total:
            return None
        return self.seconds / self.done * (self.total - self.done)

    @property
    def over(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.state in ("ended", "failed")


Listener = Callable[[Step], None]
_LISTENERS: ContextVar[tuple[Listener, ...]] = ContextVar("suture progress listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear of all work that is done inside, beside whoever listens already."""
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


class Work:
    """One piece of work under way; made by `work`."""

    def __init__(self, kind: str, what: str, total: float | None, unit: str) -> None:
        self.kind, self.what, self.total, self.unit = kind, what, total, unit
        self.done, self.note = 0.0, ""
        self._begun = self._told = time.monotonic()
        self._listeners = _LISTENERS.get()

    def advance(self, by: float = 1, note: str | None = None) -> None:
        """So much more is done; `note` says what it is at now."""
        self.reach(self.done + by, note)

    def reach(self, done: float, note: str | None = None, total: float | None = None) -> None:
        """So much is done in all; `total` if only now it is known how much there is."""
        self.done, self.total = done, self.total if total is None else total
        self.note = self.note if note is None else note
        now = time.monotonic()
        if now - self._told >= SECONDS_BETWEEN_STEPS:
            self._told = now
            self.tell("going")

    def at(self, note: str) -> None:
        """What it is at now; told at once, because the next step may be long in coming."""
        self.note, self._told = note, time.monotonic()
        self.tell("going")

    def through(self, parts: Iterable[T], size: Callable[[T], float] = lambda part: 1) -> Iterator[T]:
        """The parts, one after the other; each is done when the next one is asked for."""
        for part in parts:
            yield part
            self.advance(size(part))

    def tell(self, state: State) -> None:
        """Let everybody who listens know."""
        if not self._listeners:
            return
        seconds = time.monotonic() - self._begun
        step = Step(self.kind, self.what, state, self.done, self.total, self.unit, seconds, self.note, id(self))
        for listener in self._listeners:
            listener(step)


def tell(step: Step) -> None:
    """Let everybody who listens here know of work that is done in another process."""
    for listener in _LISTENERS.get():
        listener(step)


@contextmanager
def work(kind: str, what: str, total: float | None = None, unit: str = "") -> Iterator[Work]:
    """Say that a piece of work is begun, how far it is, and that it has ended, whatever ended it."""
    going = Work(kind, what, total, unit)
    going.tell("begun")
    try:
        yield going
    except BaseException:
        going.tell("failed")
        raise
    going.tell("ended")


def each(kind: str, what: str, items: Collection[T], unit: str = "", name: Callable[[T], str] = str) -> Iterator[T]:
    """The items, one after the other; told before each one: its name, and how many are done."""
    with work(kind, what, len(items), unit) as going:
        for item in items:
            going.at(name(item))
            yield item
            going.done += 1
