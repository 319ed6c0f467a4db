"""Progress on stderr: live lines on a terminal, next to nothing elsewhere.

What is shown are the rounds of runs, and all work that tells of itself (`suture.core.progress`). In a pipe or a file a run
leaves one line when it has ended, and work of minutes a sign of life now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from suture.core.progress import Step, listening
from suture.report.text import byte_size, duration, score
from suture.runs.outcome import Tick

Watch = Callable[[str, int, Tick], None]
SECONDS_BETWEEN_LINES = 60.0
"""Where nothing is drawn over."""
SECONDS_UNSEEN = 0.3
"""Work that is done sooner is not shown: it would only flicker."""
WIDEST_BAR = 40


@contextmanager
def watching(console: Console, runs: int, quiet: bool, live: bool = True) -> Iterator[Watch]:
    """A function to call after every round of any of the runs; without `live` nothing is drawn over.

    Other work inside is shown as well.
    """
    if quiet:
        yield lambda method, seed, tick: None
    elif live and console.is_terminal:
        with _Lively(console) as progress:
            screen = _Live(progress, runs)
            with listening(screen.hear):
                yield screen
    else:
        lines = _Lines(console)
        with listening(lines.hear):
            yield lines


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


def how_far(step: Step) -> str:
    """`3 of 10 tables, nodes.csv, 12 s left`; without a total, `roughly 5 s to 20 s, 7.0 s so far`."""
    parts = []
    if step.total is not None and step.unit == "bytes":
        parts.append(f"{byte_size(step.done)} of {byte_size(step.total)}")
    elif step.total is not None:
        parts.append(f"{step.done:,.0f} of {step.total:,.0f} {step.unit}".rstrip())
    if step.note:
        parts.append(step.note)
    left = step.seconds_left
    parts.append(f"{duration(step.seconds)} so far" if left is None else f"{duration(left)} left")
    return ", ".join(parts)


class _Lively(Progress):
    """Bars, but for those of work that may be done in a moment."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=WIDEST_BAR, table_column=Column(ratio=1)),
            _State(table_column=Column(no_wrap=True, justify="right")),
        )
        super().__init__(*columns, console=console, expand=True, transient=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn, ten times a second."""
        shown = [task for task in self.tasks if "step" not in task.fields or (task.elapsed or 0.0) >= SECONDS_UNSEEN]
        if shown:
            yield self.make_tasks_table(shown)


class _State(ProgressColumn):
    """How far a run or a work is, in words; seconds go on while it says nothing."""

    max_refresh = None

    def render(self, task: Task) -> Text:
        step: Step | None = task.fields.get("step")
        if step is None:
            return Text(str(task.fields.get("state", "")))
        return Text(how_far(step if step.total else replace(step, seconds=task.elapsed or step.seconds)))


class _Live:
    """A bar for each run that is at it, and for each work under way; finished runs become lines above them."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self.progress, self.runs = progress, runs
        self.seen: list[tuple[str, int]] = []
        self.bars: dict[tuple[str, int], TaskID] = {}
        self.works: dict[int, TaskID] = {}

    def __call__(self, method: str, seed: int, tick: Tick) -> None:
        run = method, seed
        if run not in self.seen:
            self.seen.append(run)
        place = f"{self.seen.index(run) + 1}/{self.runs} " if self.runs > 1 else ""
        name = f"{place}{method} seed {seed}"
        if run not in self.bars:
            self.bars[run] = self.progress.add_task(name, total=tick.total, state="")
        self.progress.update(self.bars[run], description=name, total=tick.total, completed=tick.done, state=state(tick))
        if tick.done == tick.total:
            self.progress.remove_task(self.bars.pop(run))
            self.progress.console.print(f"{name}: {state(tick)}")

    def hear(self, step: Step) -> None:
        """Something of a work."""
        if step.over:
            if (bar := self.works.pop(step.key, None)) is not None:
                self.progress.remove_task(bar)
            return
        bar = self.works.get(step.key)
        if bar is None:
            bar = self.works[step.key] = self.progress.add_task(step.what, total=step.total, step=step)
        self.progress.update(bar, description=step.what, total=step.total, completed=step.done, step=step)


class _Lines:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = time.monotonic()

    def __call__(self, method: str, seed: int, tick: Tick) -> None:
        self._print(f"{method} seed {seed}: {state(tick)}", tick.done == tick.total)

    def hear(self, step: Step) -> None:
        """Something of a work; the end of one is no news."""
        if not step.over:
            self._print(f"{step.what}: {how_far(step)}", False)

    def _print(self, line: str, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            self.console.print(line, soft_wrap=True)
