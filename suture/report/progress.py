"""Progress on stderr: one live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from suture.graph import carving
from suture.report.text import duration, score
from suture.runs.outcome import Tick

Watch = Callable[[str, int, Tick], None]
SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def watching(console: Console, runs: int, quiet: bool, live: bool = True) -> Iterator[Watch]:
    """A function to call after every round of any of the runs; without `live` nothing is drawn over."""
    if quiet:
        yield lambda method, seed, tick: None
        return
    with telling_of_cuts(console):
        if live and console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[state]}")
            with Progress(*columns, console=console, expand=True, transient=True) as progress:
                yield _Live(progress, runs)
        else:
            yield _Lines(console)


@contextmanager
def attempts(console: Console, quiet: bool) -> Iterator[Callable[[str, str, int, int, str], None]]:
    """A function to call with how far an attack has come: a line that changes on a terminal, nothing elsewhere."""
    if quiet or not console.is_terminal:
        yield lambda attack, view, done, planned, unit: None
        return
    with console.status("") as line:
        yield lambda attack, view, done, planned, unit: line.update(f"{attack}, as {view}: {done} of {planned} {unit}")


@contextmanager
def telling_of_cuts(console: Console) -> Iterator[None]:
    """Say how long a large graph will take to be cut, and that it is still being cut."""
    log, handler = carving.log, _Notes(console)
    if log.isEnabledFor(logging.INFO):  # then somebody listens already
        yield
        return
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def state(tick: Tick) -> str:
    """`round 37/100, loss 0.412, validation accuracy 81.2 %, 12 s left`."""
    parts = [f"{tick.phase} {tick.done}/{tick.total}"]
    if tick.loss is not None:
        parts.append(f"loss {tick.loss:.3f}")
    if tick.validation is not None:
        unit = " %" if tick.in_percent else ""
        parts.append(f"validation {tick.metric} {score(tick.validation, tick.in_percent, 1)}{unit}")
    finished = tick.done == tick.total
    parts.append(duration(tick.seconds) if finished else f"{duration(tick.seconds_left)} left")
    return ", ".join(parts)


class _Notes(logging.Handler):
    """Log lines as remarks."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self.console.print(record.getMessage(), soft_wrap=True)


class _Live:
    """A bar for the current run; finished ones become lines above it."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self.progress, self.runs = progress, runs
        self.seen: list[tuple[str, int]] = []
        self.bar: TaskID | None = None

    def __call__(self, method: str, seed: int, tick: Tick) -> None:
        if (method, seed) not in self.seen:
            self.seen.append((method, seed))
        place = f"{len(self.seen)}/{self.runs} " if self.runs > 1 else ""
        name = f"{place}{method} seed {seed}"
        if self.bar is None:
            self.bar = self.progress.add_task(name, total=tick.total, state="")
        self.progress.update(self.bar, description=name, total=tick.total, completed=tick.done, state=state(tick))
        if tick.done == tick.total:
            self.progress.remove_task(self.bar)
            self.bar = None
            self.progress.console.print(f"{name}: {state(tick)}")


class _Lines:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = time.monotonic()

    def __call__(self, method: str, seed: int, tick: Tick) -> None:
        now = time.monotonic()
        if tick.done == tick.total or now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            self.console.print(f"{method} seed {seed}: {state(tick)}", soft_wrap=True)
